//! The wrong machine: addresses that a guest only claims, MAC addresses of two guests, leases of
//! another guest, and connections that run a program.

use crate::libvirt::place::Place;
use crate::support::tree::scratch;
use crate::support::{gpuvm, project, run};
use std::path::Path;
use std::process::Stdio;

/// The MAC address of the guest.
const MAC: &str = "52:54:00:aa:00:11";
/// Another guest's.
const OTHER: &str = "52:54:00:aa:00:12";
/// The address of the guest.
const IP: &str = "10.88.0.77";

/// A machine with a NAT network `lab` on bridge `labbr`, and a guest that runs on it and has a
/// lease, but sends nothing.
struct Lab {
    /// The machine.
    place: Place,
}

impl Lab {
    /// Sets it up.
    fn new() -> Option<Lab> {
        let mut place = Place::new()?;
        place.net = true;
        let lab = Lab { place };
        lab.sh("ip link set lo up; ip link add nic0 type veth peer name far0; ip link set far0 \
                up; ip link set nic0 up; ip address add 10.77.0.2/24 dev nic0; ip route add \
                default via 10.77.0.1");
        let network = "network create lab --kind nat --range 10.88.0.0/24 --bridge labbr";
        lab.place.done(&network.split(' ').collect::<Vec<_>>());
        let (disks, nic) = (lab.place.disks.to_str().unwrap().to_owned(), format!("lab,mac={MAC}"));
        lab.place.done(&lab.place.create("fresh", &["--network", &nic, "--disk-dir", &disks]));
        lab.lease(&[(IP, MAC)]);
        Some(lab)
    }

    /// Runs a line of a shell in its network.
    fn sh(&self, line: &str) {
        let (code, out, err) = run(self.place.daemon.within_net("bash").args(["-ec", line]));
        assert_eq!(code, 0, "{line}: {out}{err}");
    }

    /// Writes the leases that dnsmasq has given just now.
    fn lease(&self, leases: &[(&str, &str)]) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let of = |(ip, mac): &(&str, &str)| {
            serde_json::json!({
                "ip-address": ip, "mac-address": mac, "expiry-time": now.as_secs() + 3600,
            })
        };
        let all: Vec<_> = leases.iter().map(of).collect();
        let status = self.place.daemon.inside("/var/lib/libvirt/dnsmasq/labbr.status");
        std::fs::write(status, serde_json::Value::from(all).to_string()).unwrap();
    }

    /// Defines a domain that is off, with this MAC address on the network.
    fn define(&self, name: &str, mac: &str) {
        let xml = format!(
            "<domain type='qemu'><name>{name}</name><memory>65536</memory><vcpu>1</vcpu><os>\
             <type arch='x86_64'>hvm</type></os><devices><interface type='network'><mac \
             address='{mac}'/><source network='lab'/></interface></devices></domain>"
        );
        let file = self.place.disks.join(format!("{name}.xml"));
        std::fs::write(&file, xml).unwrap();
        self.place.virsh(&["define", file.to_str().unwrap()]);
    }

    /// What `ssh --print` says to log in to the guest.
    fn ssh(&self, more: &[&str]) -> (i32, String, String) {
        let words = ["ssh", "fresh", "--print", "--wait", "0"];
        self.place.gpuvm(&[&words, more].concat())
    }
}

#[test]
fn ssh_goes_only_where_the_hosts_neighbours_have_the_guests_mac() {
    let Some(lab) = Lab::new() else { return };
    let me = ["--user", "me"];
    let refused = |says: &str| {
        let (code, out, err) = lab.ssh(&me);
        assert!(code == 1 && out.is_empty() && err.contains(says), "{says}: {code} {out}{err}");
        assert!(err.contains(&format!("gpuvm ssh fresh --address {IP}")), "{err}");
    };
    // It has a lease, and nothing answers there.
    refused(&format!("`fresh` does not answer at {IP}"));
    // Another guest with the address answers.
    lab.define("thief", OTHER);
    let neighbour = |mac: &str| {
        lab.sh(&format!("ip neigh replace {IP} lladdr {mac} dev labbr nud permanent"));
    };
    neighbour(OTHER);
    refused(&format!("{IP} is answered by {OTHER} of domain `thief`, not by {MAC} of `fresh`"));
    neighbour(MAC);
    let (code, out, err) = lab.ssh(&me);
    assert!(code == 0 && out.ends_with(&format!(" -- {IP}\n")), "{out}{err}");
    for option in ["StrictHostKeyChecking=accept-new", "ForwardAgent=no", "HostKeyAlias=gpuvm-"] {
        assert!(out.contains(option), "{option}: {out}");
    }
    // The neighbour is right, and the host's packets go to another machine.
    lab.sh(&format!("ip route add {IP}/32 via 10.77.0.1"));
    refused("it cannot be confirmed that packets to");
    lab.sh(&format!("ip route del {IP}/32; ip route add {IP}/32 dev nic0"));
    refused("it cannot be confirmed that packets to");
    lab.sh(&format!("ip route del {IP}/32"));
    assert_eq!(lab.ssh(&me).0, 0);
    // The user is not guessed.
    let (code, out, err) = lab.ssh(&[]);
    assert!(code == 1 && out.is_empty() && err.contains("is not recorded"), "{out}{err}");
    assert!(err.contains("--user NAME"), "{err}");
    named(&lab);
}

/// An address that the caller names is not proven, and is never the host's own.
fn named(lab: &Lab) {
    let to = |ip: &str| lab.ssh(&["--user", "me", "--address", ip]);
    let (code, out, err) = to("192.0.2.7");
    assert!(code == 0 && out.contains("StrictHostKeyChecking=ask"), "{out}{err}");
    for own in ["10.88.0.1", "10.77.0.2", "127.0.0.1", "::1", "::ffff:10.88.0.1", "0.0.0.0"] {
        let (code, out, err) = to(own);
        let says = "is an address of this machine";
        assert!(code == 1 && out.is_empty() && err.contains(says), "{own}: {code} {out}{err}");
    }
}

#[test]
fn deleting_a_copy_leaves_the_lease_of_the_original() {
    let Some(lab) = Lab::new() else { return };
    lab.define("copy", MAC);
    let (code, out, err) = lab.place.gpuvm(&["network", "doctor", "copy", "--json"]);
    assert!(code == 3 && out.contains("mac-shared"), "{code} {out}{err}");
    assert!(out.contains("`fresh`, too"), "{out}");
    let release = format!("release the lease of {IP}");
    let planned = |name: &str| lab.place.done(&["delete", name, "--dry-run"]);
    assert!(!planned("copy").contains(&release) && !planned("fresh").contains(&release));
    lab.place.done(&["delete", "copy", "--yes"]);
    assert!(planned("fresh").contains(&release), "{}", planned("fresh"));
}

#[test]
fn a_new_guest_of_the_same_name_has_another_mac_and_a_changed_one_keeps_its_own() {
    let Some(place) = Place::new() else { return };
    let (disks, more) = (place.disks.clone(), place.daemon.fresh_dir("more"));
    let macs = |name: &str| -> Vec<String> {
        let xml = place.virsh(&["dumpxml", "--inactive", name]);
        let parts = xml.split("<mac address='").skip(1);
        parts.map(|part| part.split('\'').next().unwrap().to_owned()).collect()
    };
    let make = |name: &str, disks: &Path| {
        place.done(&place.create(name, &["--no-start", "--disk-dir", disks.to_str().unwrap()]));
        macs(name)
    };
    let first = make("job", &disks);
    assert!(!first.is_empty());
    place.done(&["set", "job", "--memory", "512M", "--yes"]);
    place.done(&["rename", "job", "kept"]);
    assert_eq!(macs("kept"), first);
    // As on another host: the same name, without the first one.
    let second = make("job", &more);
    assert_eq!(second.len(), first.len());
    assert!(first.iter().all(|mac| !second.contains(mac)), "{first:?} {second:?}");
    place.done(&["delete", "kept", "--yes"]);
    place.done(&["delete", "job", "--yes"]);
    assert!(make("job", &more).iter().all(|mac| !second.contains(mac)), "it is another guest");
}

/// URIs that run this program, however they are written.
fn running(program: &Path) -> Vec<String> {
    let at = program.display();
    vec![
        format!("qemu+ext:///system?command={at}"),
        format!("qemu+EXT:///system?COMMAND={at}"),
        format!("qemu+ext:/system?command={at}"),
        format!("qemu+ssh://host/system?command={at}"),
        format!("qemu+ssh://host/system?%63ommand={at}"),
        format!("qemu+ssh://host/system?no_tty=1;Command={at}"),
        format!("qemu+ssh://host/system?command=ssh&no_tty=1&command={at}"),
        format!("qemu+SSH://host/system?command={at}#x"),
    ]
}

/// A program that leaves a file, and that file.
fn trap(dir: &Path) -> (std::path::PathBuf, std::path::PathBuf) {
    use std::os::unix::fs::PermissionsExt as _;
    let (program, ran) = (dir.join("trap"), dir.join("ran"));
    std::fs::write(&program, format!("#!/bin/sh\n: >{}\nexit 1\n", ran.display())).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    (program, ran)
}

#[test]
fn no_connection_names_a_program_to_run() {
    let dir = scratch();
    let (program, ran) = trap(dir.path());
    for uri in running(&program) {
        for by_variable in [false, true] {
            let mut command = gpuvm(&["list"]);
            if by_variable {
                command.env("LIBVIRT_DEFAULT_URI", &uri);
            } else {
                command.args(["--connect", &uri]);
            }
            let (code, out, err) = run(command.stdin(Stdio::null()));
            assert!(code == 1 && out.is_empty(), "{uri}: {code} {out}{err}");
            assert!(err.contains("names a program to run"), "{uri}: {err}");
            assert!(!ran.exists(), "{uri}");
        }
    }
}

#[test]
fn a_file_of_hosts_runs_no_program_and_names_no_file() {
    let dir = scratch();
    let (program, ran) = trap(dir.path());
    let at = program.display();
    let mut uris = running(&program);
    uris.extend([
        format!("qemu+ssh://host/system?netcat={at}"),
        format!("qemu+ssh://host/system?keyfile={at}"),
        format!("qemu+ssh://host/system?socket={at}"),
        format!("qemu+ssh://host/system?no_tty=1;net%63at={at}&mode=auto"),
        format!("qemu+libssh2://host/system?known_hosts={at}"),
        format!("qemu+tls://host/system?pkipath={at}"),
        format!("qemu://host/system?PkiPath={at}"),
        format!("qemu+ssh://host/system?proxy={at}"),
        format!("qemu+ssh://host/system?name={at}"),
        format!("esx://host/?authfile={at}"),
        format!("qemu:///embed?root={}", dir.path().display()),
        format!("test://{at}"),
        "qemu+ssh://-oProxyCommand=x/system".to_owned(),
        "qemu+ssh://%2DoProxyCommand=x@host/system".to_owned(),
        "qemu+none://host/system".to_owned(),
        "qemu+ssh://host/system?no_verify=1".to_owned(),
        "qemu+libssh2://host/system?known_hosts_verify=ignore".to_owned(),
        format!("qemu:/system?command={at}"),
    ]);
    let file = dir.path().join("hosts.toml");
    for uri in uris {
        std::fs::write(&file, format!("[host.a]\nconnect = {uri:?}\n")).unwrap();
        for from in [file.to_str().unwrap(), "-"] {
            let mut command = gpuvm(&["fleet", "list", "--limit", "5", "--hosts", from]);
            let (code, out, err) = run(command.stdin(std::fs::File::open(&file).unwrap()));
            assert!(code == 1 && out.is_empty(), "{uri}: {code} {out}{err}");
            assert!(err.contains(":2:") && err.contains("is not accepted here"), "{uri}: {err}");
            assert!(!ran.exists(), "{uri}");
        }
    }
}

#[test]
fn fleet_warns_of_one_mac_address_on_two_hosts() {
    let dir = scratch();
    let record = project().join("topologies/dgx-2.json");
    let mut text = String::new();
    for host in ["one", "two"] {
        let domain = format!(
            "<domain type='kvm'><name>job</name><memory>1048576</memory><vcpu>1</vcpu><os><type \
             arch='x86_64' machine='q35'>hvm</type></os><devices><interface type='network'><mac \
             address='{MAC}'/><source network='default'/></interface></devices></domain>"
        );
        let xml = dir.path().join(format!("{host}.xml"));
        std::fs::write(&xml, domain).unwrap();
        text += &format!("[host.{host}]\nrecord = {record:?}\ndomain_xml = {xml:?}\n");
    }
    let file = dir.path().join("hosts.toml");
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let plan = ["--vcpus", "2", "--memory", "1G"];
    for verb in [&["list"][..], &[&["plan"], &plan[..]].concat()] {
        let (code, out, err) = run(&mut gpuvm(&[&["fleet"], verb, &["--hosts", file]].concat()));
        assert_eq!(code, 0, "{out}{err}");
        let says =
            format!("two: domain `job` has MAC address {MAC}, as domain `job` of host `one`");
        assert!(err.contains(&says), "{err}");
    }
}
