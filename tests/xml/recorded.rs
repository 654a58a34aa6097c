//! Guests of the hosts that others recorded: nothing wrong for our checker, valid by libvirt's schema, and taken by its
//! QEMU driver as if this machine were that host.

use super::tools::{as_host, guests_of, has, invalid};
use crate::support::shared::{Recorded, each_shared_host};
use crate::support::skip;
use gpuvm::check::check;
use gpuvm::domain::DomainXml;
use gpuvm::finding::Severity;
use gpuvm::placement::Occupancy;
use gpuvm::versions::Versions;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file's name as a domain's.
fn plain(name: &str) -> String {
    let name = name.split(".tar").next().unwrap().trim_end_matches(".xml");
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

/// What our checker says is wrong with a guest of a host on which nothing is taken.
fn wrong(host: &Recorded<'_>, xml: &DomainXml) -> Vec<String> {
    check(xml, host.topology, &Occupancy::default(), &Versions::default())
        .into_iter()
        .filter(|finding| finding.severity == Severity::Error)
        .map(|finding| format!("{}: {}: {}", host.name, finding.says.path, finding.says.message))
        .collect()
}

#[test]
fn guests_of_every_shared_host_are_sound_and_valid() {
    let validate = has("virt-xml-validate");
    let dir = tempfile::tempdir().unwrap();
    let (mut guests, mut bad) = (0, Vec::new());
    let look = |host: &Recorded<'_>| {
        // The template is for x86-64, and is refused elsewhere.
        if !matches!(host.topology.machine().architecture.as_deref(), None | Some("x86_64")) {
            return;
        }
        for (name, (_, _, xml)) in guests_of(&plain(host.name), host.topology) {
            guests += 1;
            bad.extend(wrong(host, &xml));
            if validate {
                let file = dir.path().join(format!("{name}.xml"));
                fs::write(&file, xml.text()).unwrap();
                bad.extend(invalid(&file));
            }
        }
    };
    let Some(hosts) = each_shared_host(look) else { return };
    assert_eq!(bad, Vec::<String>::new());
    assert!(hosts >= 40 && guests >= 100, "{guests} guests on {hosts} hosts");
}

/// An embedded driver's empty root; what QEMU can do is carried over from an earlier root, since asking takes seconds.
fn embedded(dir: &Path, before: Option<&PathBuf>) -> PathBuf {
    let root = dir.join("embedded");
    fs::create_dir_all(root.join("etc")).unwrap();
    if let Some(before) = before {
        fs::create_dir_all(root.join("cache")).unwrap();
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(before.join("cache/qemu")).arg(root.join("cache"));
        assert!(copy.status().unwrap().success());
    }
    root
}

/// A record whose node 0 is missing: libvirt finds no node for its pcpus and says so, whatever the guest.
const WITHOUT_NODE: &str = "offline-cpu0-node0.tar.bz2";

/// Whether libvirt can be shown this host: x86 with the files that it reads.
fn can_be_shown(host: &Recorded<'_>) -> bool {
    let x86 = host.topology.machine().architecture.as_deref() == Some("x86_64");
    x86 && host.name != WITHOUT_NODE && host.path.join("proc/cpuinfo").is_file()
}

#[test]
fn libvirt_takes_guests_of_shared_x86_hosts() {
    if !nix::unistd::geteuid().is_root() {
        return skip("needs root");
    }
    if !has("virsh") || !has("qemu-system-x86_64") {
        return;
    }
    let all = tempfile::tempdir().unwrap();
    fs::set_permissions(all.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (mut answers, mut bad, mut before) = (0, Vec::new(), None);
    let look = |host: &Recorded<'_>| {
        if !can_be_shown(host) {
            return;
        }
        let dir = all.path().join(plain(host.name));
        fs::create_dir(&dir).unwrap();
        let root = embedded(&dir, before.as_ref());
        let mut commands = Vec::new();
        for (name, (_, _, xml)) in guests_of(&plain(host.name), host.topology) {
            fs::write(dir.join(format!("{name}.xml")), xml.text()).unwrap();
            commands.push(format!("define --validate {name}.xml"));
            // No 1 GiB pages can be mounted on every machine, and libvirt looks for a mount.
            if !name.ends_with("huge-1g") {
                commands.push(format!("domxml-to-native qemu-argv {name}.xml"));
            }
        }
        let said = as_host(host.path, &dir, &commands);
        for (command, said) in commands.iter().zip(said) {
            answers += 1;
            if said.contains("error:") {
                bad.push(format!("{}: {command}: {said}", host.name));
            }
        }
        before = Some(root);
    };
    let Some(_) = each_shared_host(look) else { return };
    assert_eq!(bad, Vec::<String>::new());
    assert!(answers >= 50, "{answers} answers");
}
