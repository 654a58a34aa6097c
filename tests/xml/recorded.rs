//! Guests of the hosts that others recorded: without findings of our checker, valid by libvirt's
//! schema, and accepted by its QEMU driver as if this machine were that host.

use super::tools::{as_host, guests_of, has, invalid, passes_functions};
use crate::support::shared::{Recorded, each_shared_host};
use crate::support::skip;
use gpuvm::check::check;
use gpuvm::domain::DomainXml;
use gpuvm::finding::Severity;
use gpuvm::placement::Occupancy;
use gpuvm::versions::Versions;
use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::ScopedJoinHandle;

/// A file's name as a domain's.
fn plain(name: &str) -> String {
    let name = name.split(".tar").next().unwrap().trim_end_matches(".xml");
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

/// The findings of our checker in a guest on an otherwise empty host.
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
            // A libvirt without iommufd knows none of the devices of Grace's guests.
            let is_judged = crate::iommufd::is_known() || !xml.text().contains("<iommufd");
            if validate && is_judged {
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

/// A record whose node 0 is missing: libvirt finds no node for its pcpus and says so, whatever the
/// guest.
const WITHOUT_NODE: &str = "offline-cpu0-node0.tar.bz2";

/// Whether this host can be presented to libvirt: x86 with the files that it reads.
fn can_be_shown(host: &Recorded<'_>) -> bool {
    let x86 = host.topology.machine().architecture.as_deref() == Some("x86_64");
    x86 && host.name != WITHOUT_NODE && host.path.join("proc/cpuinfo").is_file()
}

/// Hosts that are asked about at the same time.
const AT_ONCE: usize = 4;

/// Writes the guests of a host into a directory; the commands by which libvirt is asked about them.
fn commands(host: &Recorded<'_>, dir: &Path) -> Vec<String> {
    let mut commands = Vec::new();
    for (name, (_, place, xml)) in guests_of(&plain(host.name), host.topology) {
        fs::write(dir.join(format!("{name}.xml")), xml.text()).unwrap();
        commands.push(format!("define --validate {name}.xml"));
        // No 1 GiB pages can be mounted on every machine, and libvirt looks for a mount.
        let can_pass = place.devices.is_empty() || passes_functions(host.path);
        if can_pass && !name.ends_with("huge-1g") {
            commands.push(format!("domxml-to-native qemu-argv {name}.xml"));
        }
    }
    commands
}

/// The result of a thread; its panic fails the test.
fn ended<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|why| std::panic::resume_unwind(why))
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
    let (mut answers, mut bad) = (0, Vec::new());
    // The first question to QEMU of a host takes libvirt seconds, in which it waits: several hosts
    // wait at once.
    let loaded = std::thread::scope(|scope| {
        let (mut asked, mut said) = (VecDeque::new(), Vec::new());
        let look = |host: &Recorded<'_>| {
            if !can_be_shown(host) {
                return;
            }
            if asked.len() == AT_ONCE {
                said.extend(asked.pop_front().map(ended));
            }
            let dir = all.path().join(plain(host.name));
            fs::create_dir_all(dir.join("embedded/etc")).unwrap();
            let commands = commands(host, &dir);
            let (name, path) = (host.name.to_owned(), host.path.to_owned());
            let unpacked = Arc::clone(host.unpacked);
            asked.push_back(scope.spawn(move || {
                let answers = as_host(&path, &dir, &commands);
                drop(unpacked);
                (name, commands.into_iter().zip(answers).collect::<Vec<_>>())
            }));
        };
        let loaded = each_shared_host(look);
        said.extend(asked.into_iter().map(ended));
        for (host, said) in said {
            answers += said.len();
            let refused = said.into_iter().filter(|(_, said)| said.contains("error:"));
            bad.extend(refused.map(|(command, said)| format!("{host}: {command}: {said}")));
        }
        loaded
    });
    if loaded.is_none() {
        return;
    }
    assert_eq!(bad, Vec::<String>::new());
    assert!(answers >= 50, "{answers} answers");
}
