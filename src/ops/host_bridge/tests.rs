//! Bridges of a sample host: the losses, the order of the steps, the refusals.

use super::create::{cut_off, steps_of};
use super::delete::{DeleteHostBridge, Files, plan};
use super::{CREATED, facts, made};
use crate::apply::hostnet::HostNetStep;
use crate::apply::{FileStep, HostStep, Step};
use crate::error::{Error, Result};
use crate::history::History;
use crate::hostnet::netplan::{self, NOTHING};
use crate::hostnet::{self, Addressing, HostBridge, HostIp, Request};
use crate::network::host::{HostAddress, HostNetwork, Link, Route};

fn link(name: &str, kind: Option<&str>, master: Option<&str>) -> Link {
    Link {
        index: 1,
        name: name.into(),
        mtu: 1500,
        kind: kind.map(Into::into),
        master: master.map(Into::into),
        up: true,
        loopback: false,
        mac: Some("52:54:00:00:00:01".into()),
        most_mtu: None,
        over: None,
    }
}

/// A host with an address and the default route on this link.
fn host(on: &str, links: Vec<Link>) -> HostNetwork {
    let HostIp { ip, subnet } = "10.77.0.2/24".parse().unwrap();
    let to = "0.0.0.0/0".parse::<HostIp>().unwrap().subnet;
    let gateway = Some("10.77.0.1".parse().unwrap());
    HostNetwork {
        links,
        addresses: vec![HostAddress { link: on.into(), ip, subnet }],
        routes: vec![Route { to, link: Some(on.into()), gateway }],
    }
}

/// The bridge br0 over nic0, with DHCP.
fn bridge() -> HostBridge {
    let request = Request {
        name: "br0".into(),
        nics: vec!["nic0".into()],
        bond: None,
        addressing: Addressing::Dhcp,
        vlan: None,
        mtu: None,
    };
    hostnet::plan(&request, &host("nic0", vec![link("nic0", None, None)])).unwrap().bridge
}

/// The host with this bridge and a guest's port on it.
fn bridged() -> HostNetwork {
    let links = vec![
        link("nic0", None, Some("br0")),
        link("br0", Some("bridge"), None),
        link("vnet3", Some("tun"), Some("br0")),
    ];
    host("br0", links)
}

/// The steps that change the host's network.
fn host_steps(steps: &[Step]) -> Vec<&HostNetStep> {
    fn of_host(step: &Step) -> Option<&HostNetStep> {
        if let Step::Host(HostStep::HostNet(step)) = step { Some(step) } else { None }
    }
    steps.iter().filter_map(of_host).collect()
}

/// Plans to delete br0 with these files.
fn delete(files: Files, history: &History) -> Result<crate::change::Change> {
    let wanted = DeleteHostBridge { name: "br0".into(), within_s: 20 };
    plan(&wanted, files, &bridged(), history)
}

fn empty() -> (tempfile::TempDir, History) {
    let dir = tempfile::tempdir().unwrap();
    let history = History::of_host(Some(dir.path())).unwrap();
    (dir, history)
}

#[test]
fn a_bridge_is_kept_only_after_it_was_confirmed() {
    let steps = steps_of(&bridge(), "text", 20);
    let [
        HostNetStep::Try { path: tried, takes, .. },
        HostNetStep::Check(wanted),
        HostNetStep::Await { within_s: 20, .. },
        HostNetStep::Write { path: kept, text: Some(_), was: None },
        HostNetStep::Write { path: gone, text: None, was: Some(_) },
    ] = host_steps(&steps)[..]
    else {
        panic!("{steps:?}")
    };
    assert_eq!((tried, takes.len(), wanted.wait_s, wanted.leased), (gone, 0, 20, true));
    assert!(kept.starts_with("/etc") && tried.starts_with("/run"), "{kept:?} {tried:?}");
}

#[test]
fn a_login_that_comes_in_by_the_nic_is_named() {
    let before = host("nic0", vec![link("nic0", None, None)]);
    let ip = "10.77.0.2".parse().unwrap();
    let cut = cut_off(Some(ip), &bridge(), &before).unwrap();
    assert_eq!(cut, "interrupt this login, which comes in by 10.77.0.2 on nic0");
    assert_eq!(cut_off(None, &bridge(), &before), None);
    assert_eq!(cut_off(Some("10.77.0.3".parse().unwrap()), &bridge(), &before), None);
    let elsewhere = host("nic1", vec![link("nic0", None, None), link("nic1", None, None)]);
    assert_eq!(cut_off(Some(ip), &bridge(), &elsewhere), None);
}

#[test]
fn users_of_a_removed_bridge_are_named_and_its_change_forgotten() {
    let (_dir, mut history) = empty();
    let mut entry = history.next(CREATED, "", "", 7, String::new());
    entry.steps = steps_of(&bridge(), "text", 20);
    assert_eq!(made(&entry), Some("br0"));
    history.entries.push(entry);
    let text = netplan::text(&bridge(), "nic0");
    let change = delete(Files { kept: Some(text.clone()), tried: None }, &history).unwrap();
    assert_eq!(
        change.losses,
        [
            "take br0 away",
            "take 10.77.0.2 with it; nic0 get what other files say",
            "cut off vnet3, which is a port of it, and the guest behind it",
        ]
    );
    let steps = change.steps();
    let [
        HostNetStep::Try { text: hides, takes, was: None, .. },
        HostNetStep::Check(wanted),
        HostNetStep::Await { .. },
        HostNetStep::Write { text: None, was: Some(was), .. },
        HostNetStep::Write { text: None, was: Some(hidden), .. },
    ] = host_steps(&steps)[..]
    else {
        panic!("{steps:?}")
    };
    assert_eq!((hides.as_str(), hidden.as_str(), was), (NOTHING, NOTHING, &text));
    assert!(wanted.default_route && takes == &["br0"], "{takes:?}");
    assert!(
        matches!(steps.last(), Some(Step::File(FileStep::Remember { text: None, .. }))),
        "{steps:?}"
    );
    // The change of another bridge stays, and a change of another verb is no bridge's.
    history.entries[0].verb = "host files".into();
    assert_eq!(made(&history.entries[0]), None);
}

#[test]
fn foreign_files_stay() {
    let (_dir, history) = empty();
    let code = |files| {
        let error = delete(files, &history).unwrap_err();
        let Error::Refused(refusal) = error else { panic!("{error:?}") };
        refusal.code
    };
    assert_eq!(code(Files { kept: None, tried: None }), "host-bridge-not-ours");
    let edited = netplan::text(&bridge(), "nic0").split_once('\n').unwrap().1.to_owned();
    assert_eq!(code(Files { kept: Some(edited), tried: None }), "host-bridge-edited");
    // The file that is lost at the next boot is left if an interrupted change was forgotten.
    let tried = Some(netplan::text(&bridge(), "nic0"));
    let change = delete(Files { kept: None, tried: tried.clone() }, &history).unwrap();
    let steps = change.steps();
    assert!(matches!(host_steps(&steps)[0], HostNetStep::Try { was, .. } if *was == tried));
}

#[test]
fn ports_name_their_device() {
    let mut host = bridged();
    host.links.push(link("bond0", Some("bond"), Some("br0")));
    host.links.push(link("nic1", None, Some("bond0")));
    host.links
        .push(Link { over: Some("nic0".into()), ..link("nic0.5", Some("vlan"), Some("br0")) });
    let ports = facts::ports(&host, "br0");
    let commands: Vec<(&str, &[String])> =
        ports.iter().map(|port| (port.name.as_str(), &port.over[..])).collect();
    let (nic0, nic1) = (["nic0".to_owned()], ["nic1".to_owned()]);
    let expected: [(&str, &[String]); 4] =
        [("nic0", &[]), ("vnet3", &[]), ("bond0", &nic1), ("nic0.5", &nic0)];
    assert_eq!(commands, expected);
}
