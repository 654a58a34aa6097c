//! `set --nic`, `--vf` and `--nvme` on a real libvirtd, on a machine that has none to give:
//! refusals change nothing, and functions that a guest does not have are not taken from it. Guests
//! with such functions are those of tests/vdgx.

use super::place::{Place, same};
use crate::support::daemon::Tiny;
use serde_json::Value;

/// Name of the guest.
const NAME: &str = "functions-f";

#[test]
fn functions_that_the_host_does_not_have_are_refused() {
    let Some(place) = Place::new() else { return };
    let disks = place.disks.to_str().unwrap().to_owned();
    let shape = ["--no-start", "--os-size", "16M", "--disk-dir", &disks];
    place.done(&place.create(NAME, &shape));
    let before = place.state();
    for (args, code, ended) in [
        (&["--nic", "64"][..], "plan-impossible", 1),
        (&["--nvme", "ff:1f.7"], "tune-setting", 1),
        (&["--vf", "64,vlan=5"], "plan-impossible", 1),
        (&["--nic", "1", "--live"], "set-not-running", 1),
        (&["--nic", "1", "--nic", "2"], "usage", 2),
        (&["--nic", "ff:1f.7", "--nvme", "ff:1f.7"], "usage", 2),
    ] {
        let (is, out, err) = place.gpuvm(&[&["set", NAME, "--yes", "--json"], args].concat());
        let said: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
        assert_eq!((is, said["code"].as_str()), (ended, Some(code)), "{args:?}: {said}");
        assert!(said["hint"].as_str().is_some_and(|hint| !hint.is_empty()), "{args:?}: {said}");
        same(&before, &place.state(), "a refusal changed something");
    }
    let none = ["set", NAME, "--no-nic", "--no-vf", "--no-nvme", "--yes"];
    assert!(place.done(&none).contains("nothing to do"));
    same(&before, &place.state(), "nothing was to do");
    let (code, _, err) = place.gpuvm(&["set", NAME, "--nvme-near", "node", "--yes"]);
    assert!(code == 2 && err.contains("--nvme"), "{err}");
    place.done(&["delete", NAME, "--yes"]);
}

/// The root ports of a definition with nothing behind them.
fn free_ports(place: &Place) -> usize {
    let xml = place.virsh(&["dumpxml", "--inactive", NAME]);
    let xml = gpuvm_core::domain::DomainXml::parse(&xml).unwrap();
    xml.ports_without(&[]).unwrap().len()
}

#[test]
fn a_new_guest_has_a_free_root_port_or_as_many_as_requested() {
    let Some(mut place) = Place::new() else { return };
    place.net = true;
    let Some(tiny) = Tiny::new(&place.disks) else { return };
    let disks = place.disks.to_str().unwrap().to_owned();
    let template = tiny.template.to_str().unwrap();
    let shape =
        ["--template", template, "--no-start", "--disk-dir", &disks, "--network", "default"];
    place.done(&place.create(NAME, &shape));
    assert_eq!(free_ports(&place), 1);
    place.virsh(&["start", NAME]);
    let add = |networks: &[&str]| {
        let all: Vec<&str> = networks.iter().flat_map(|name| ["--network", name]).collect();
        place.gpuvm(&[&["set", NAME, "--live", "--yes"], &all[..]].concat())
    };
    let (code, out, err) = add(&["default", "private-net"]);
    assert!(code == 0 && out.contains("attach NIC"), "{out}{err}");
    assert_eq!(free_ports(&place), 0);
    let (code, _, err) = add(&["default", "private-net", "default"]);
    assert!(code == 1 && err.contains("no free root port"), "{err}");
    place.virsh(&["destroy", NAME]);
    place.done(&["delete", NAME, "--yes"]);
    let shown = place.done(&["plan", "--pins", "none", "--vcpus", "1", "--spare-ports", "3"]);
    assert!(shown.contains("3 free root ports"), "{shown}");
    place.done(&place.create(NAME, &[&shape[..], &["--spare-ports", "3"]].concat()));
    assert_eq!(free_ports(&place), 3);
    let got = place.done(&["get", NAME, "-o", "yaml"]);
    assert!(got.contains("spare-ports: 3"), "{got}");
    let file = place.disks.join("guests.yaml");
    for (text, is_same) in
        [(got.clone(), true), (got.replace("spare-ports: 3", "spare-ports: 2"), false)]
    {
        std::fs::write(&file, text).unwrap();
        let (ended, out, err) = place.gpuvm(&["apply", "-f", file.to_str().unwrap(), "--dry-run"]);
        assert_eq!(ended == 0, is_same, "{out}{err}");
        assert_eq!((out + &err).contains("spare-ports 3 -> 2"), !is_same);
    }
    place.done(&["delete", NAME, "--yes"]);
}
