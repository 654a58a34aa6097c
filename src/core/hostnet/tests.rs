//! Bridges planned, refused, and written for netplan.

use super::netplan::{file, judge, links, made, nics, text};
use super::units::Unit;
use super::*;
use crate::network::host::{HostAddress, HostNetwork, Link, Route};

/// A host: nic0 with 10.77.0.2/24 and the default route, nic1 alone, nic2 in br7, nic3 under a
/// macvtap, virbr0.
fn host() -> HostNetwork {
    let link = |index: u32, name: &str, kind: Option<&str>| Link {
        index,
        name: name.into(),
        mtu: 1500,
        kind: kind.map(Into::into),
        master: (name == "nic2").then(|| "br7".into()),
        up: name != "nic1",
        loopback: name == "lo",
        mac: Some(format!("52:54:00:00:00:{index:02x}")),
        most_mtu: (name == "nic1").then_some(9000),
        over: (name == "tap3").then(|| "nic3".into()),
    };
    let address = |link: &str, text: &str| {
        let HostIp { ip, subnet } = text.parse().unwrap();
        HostAddress { link: link.into(), ip, subnet }
    };
    let to = |text: &str| text.parse::<HostIp>().unwrap().subnet;
    let gateway = Some("10.77.0.1".parse().unwrap());
    HostNetwork {
        links: vec![
            link(1, "lo", None),
            link(2, "nic0", None),
            link(3, "nic1", None),
            link(4, "nic2", None),
            link(5, "nic3", None),
            link(6, "tap3", Some("macvtap")),
            link(7, "br7", Some("bridge")),
            link(8, "virbr0", Some("bridge")),
            link(9, "nic1.9", Some("vlan")),
        ],
        addresses: vec![address("nic0", "10.77.0.2/24"), address("virbr0", "192.168.122.1/24")],
        routes: vec![
            Route { to: to("0.0.0.0/0"), link: Some("nic0".into()), gateway },
            Route { to: to("10.77.0.0/24"), link: Some("nic0".into()), gateway: None },
        ],
    }
}

/// A request from the names of NICs and its differences from a bridge br0 without an address.
fn request(nics: &[&str], change: impl FnOnce(&mut Request)) -> Request {
    let mut request = Request {
        name: "br0".into(),
        nics: nics.iter().map(|nic| (*nic).to_owned()).collect(),
        bond: None,
        addressing: Addressing::Dhcp,
        vlan: None,
        mtu: None,
    };
    change(&mut request);
    request
}

/// A static address, with a gateway if given.
fn fixed(address: &str, gateway: &str) -> Addressing {
    let dns = vec!["10.77.0.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
    Addressing::Static { address: address.parse().unwrap(), gateway: gateway.parse().ok(), dns }
}

/// The bridge of a valid request.
fn bridge(nics: &[&str], change: impl FnOnce(&mut Request)) -> HostBridge {
    plan(&request(nics, change), &host()).unwrap().bridge
}

/// A bridge over one NIC with a static address.
fn simple() -> HostBridge {
    bridge(&["nic0"], |r| r.addressing = fixed("10.77.0.2/24", "10.77.0.1"))
}

/// A bridge in a VLAN over a bond, by DHCP.
fn stacked() -> HostBridge {
    bridge(&["nic0", "nic1"], |r| {
        (r.bond, r.vlan, r.mtu) = (Some(BondMode::Lacp), Some(5), Some(9000));
    })
}

/// A bridge in a VLAN besides the NIC's own network, without an address.
fn beside() -> HostBridge {
    bridge(&["nic0"], |r| (r.vlan, r.addressing) = (Some(5), Addressing::None))
}

#[test]
fn losses_of_the_nics_are_named() {
    let change_to = |addressing: Addressing| {
        plan(&request(&["nic0"], |r| r.addressing = addressing), &host()).unwrap()
    };
    let planned = change_to(fixed("10.77.0.2/24", "10.77.0.1"));
    let route = "take the default route by 10.77.0.1 from nic0";
    assert_eq!(planned.lost, ["move 10.77.0.2/24 from nic0 to br0", route]);
    assert!(planned.notes.is_empty(), "{:?}", planned.notes);
    assert!(planned.bridge.default_route);
    let planned = change_to(fixed("10.77.0.9/24", "10.77.0.1"));
    assert_eq!(planned.lost[0], "take 10.77.0.2/24 from nic0; br0 gets 10.77.0.9/24");
    let planned = change_to(Addressing::Dhcp);
    assert_eq!(planned.lost[0], "take 10.77.0.2/24 from nic0; br0 asks DHCP for an address");
    assert!(planned.notes[0].contains("another address than 10.77.0.2"), "{:?}", planned.notes);
    let planned = plan(&request(&["nic0"], |r| r.vlan = Some(5)), &host()).unwrap();
    assert!(planned.lost.is_empty() && planned.bridge.mac.is_none(), "the NIC keeps its own");
    assert!(!planned.bridge.default_route);
    let stacked = stacked();
    assert_eq!(stacked.links(), ["bond0", "bond0.5", "br0"]);
    assert_eq!(stacked.mac.as_deref(), Some("52:54:00:00:00:02"));
    let port = |port: &str, master: &str| (port.to_owned(), master.to_owned());
    assert_eq!(
        stacked.ports(),
        [port("nic0", "bond0"), port("nic1", "bond0"), port("bond0.5", "br0")]
    );
}

/// The text of a request's refusal.
fn refusal(nics: &[&str], change: impl FnOnce(&mut Request)) -> String {
    plan(&request(nics, change), &host()).unwrap_err().to_string()
}

#[test]
fn nics_that_cannot_be_in_a_bridge_are_refused() {
    for (nics, bond, said) in [
        (&["eth9"][..], None, "no network device eth9"),
        (&["lo"], None, "lo is not a NIC but the loopback device"),
        (&["virbr0"], None, "virbr0 is not a NIC but of kind bridge"),
        (&["nic2"], None, "nic2 is already a port of br7"),
        (&["nic3"], None, "tap3, a macvtap, is on top of nic3"),
        (&["nic0", "nic1"], None, "2 NICs in one bridge without a bond"),
        (&["nic0"], Some(BondMode::Xor), "a bond needs two NICs; 1 is given"),
        (&["nic0", "nic0"], Some(BondMode::Xor), "nic0 appears twice"),
    ] {
        let refused = refusal(nics, |r| r.bond = bond);
        assert!(refused.contains(said), "{said}: {refused}");
    }
}

#[test]
fn numbers_and_names_that_cannot_be_had_are_refused() {
    for (name, vlan, mtu, said) in [
        ("a-very-long-name", None, None, "it has 16 characters; the limit is 15"),
        ("br7", None, None, "br7 cannot be its name: this host has it, of kind bridge"),
        ("br/0", None, None, "it must begin with a letter"),
        ("br0", None, Some(9001), "MTU 9001 is above 9000, the maximum of nic1"),
        ("br0", None, Some(500), "MTU 500 is out of range (576"),
        ("br0", Some(4095), None, "VLAN 4095 is out of range (1 to 4094)"),
        ("br0", Some(9), None, "nic1.9, VLAN 9 of nic1, already exists"),
    ] {
        let change = |r: &mut Request| (r.name, r.vlan, r.mtu) = (name.into(), vlan, mtu);
        let refused = refusal(&["nic1"], change);
        assert!(refused.contains(said), "{said}: {refused}");
    }
    let both = refusal(&["nic1"], |r| (r.vlan, r.mtu) = (Some(0), Some(70_000)));
    assert!(both.contains("VLAN 0") && both.contains("70000"), "{both}");
}

#[test]
fn addresses_that_do_not_fit_are_refused() {
    for (nic, address, gateway, said) in [
        ("nic0", "10.77.0.2/24", "", "the host's default route, but br0 would have no gateway"),
        ("nic0", "10.77.0.0/24", "10.77.0.1", "it is the network address of 10.77.0.0/24"),
        ("nic0", "10.77.0.255/24", "10.77.0.1", "it is the broadcast address of 10.77.0.0/24"),
        ("nic0", "10.77.0.2/31", "10.77.0.3", "its prefix is 31 bits, and has to be 1 to 30"),
        ("nic0", "127.0.0.2/8", "127.0.0.1", "it is not one of a LAN"),
        ("nic0", "10.77.0.2/24", "10.78.0.1", "gateway 10.78.0.1 is outside 10.77.0.0/24"),
        ("nic0", "10.77.0.2/24", "10.77.0.255", "10.77.0.255 is the broadcast address of"),
        ("nic0", "10.77.0.2/24", "10.77.0.0", "10.77.0.0 is the network address of"),
        ("nic0", "10.77.0.2/24", "10.77.0.2", "10.77.0.2 is the host's own address"),
        ("nic1", "10.77.0.9/16", "10.77.0.1", "10.77.0.0/24, where the host has 10.77.0.2 on nic0"),
    ] {
        let refused = refusal(&[nic], |r| r.addressing = fixed(address, gateway));
        assert!(refused.contains(said), "{said}: {refused}");
    }
    let refused = refusal(&["nic0"], |r| r.addressing = Addressing::None);
    assert!(refused.contains("default route, but br0 would have no address"), "{refused}");
}

#[test]
fn modes_that_do_not_work_under_a_bridge_say_why() {
    for (word, said) in [
        ("balance-tlb", "a guest's MAC address at two of its ports"),
        ("balance-alb", "answers for guests with the MAC address of a NIC"),
        ("broadcast", "every packet twice"),
        ("x", "it is not 802.3ad, active-backup, balance-xor or balance-rr"),
    ] {
        let error = word.parse::<BondMode>().unwrap_err();
        assert!(error.contains(said), "{word}: {error}");
    }
    for mode in [BondMode::Lacp, BondMode::ActiveBackup, BondMode::Xor, BondMode::RoundRobin] {
        assert_eq!(mode.word().parse(), Ok(mode));
    }
}

#[test]
fn netplans_file_says_it_in_present_syntax() {
    assert_eq!(
        text(&simple(), ""),
        r#"# Made by `gpuvm network host-bridge create br0`; `gpuvm network host-bridge delete br0` takes it back.
# Makes: br0
# NICs: nic0
network:
  version: 2
  ethernets:
    "00-gpuvm-nic0":
      match: {name: "nic0"}
      dhcp4: false
      dhcp6: false
  bridges:
    "br0":
      interfaces: ["00-gpuvm-nic0"]
      macaddress: "52:54:00:00:00:02"
      parameters: {stp: false, forward-delay: 0}
      dhcp4: false
      addresses: ["10.77.0.2/24"]
      routes:
        - to: default
          via: "10.77.0.1"
      nameservers: {addresses: ["10.77.0.1", "2001:db8::1"]}
"#
    );
}

#[test]
fn netplans_file_of_a_bond_and_of_vlans() {
    assert_eq!(
        text(&stacked(), "").split_once("  ethernets:\n").unwrap().1,
        r#"    "00-gpuvm-nic0":
      match: {name: "nic0"}
      dhcp4: false
      dhcp6: false
      mtu: 9000
    "00-gpuvm-nic1":
      match: {name: "nic1"}
      dhcp4: false
      dhcp6: false
      mtu: 9000
  bonds:
    "bond0":
      interfaces: ["00-gpuvm-nic0", "00-gpuvm-nic1"]
      mtu: 9000
      parameters:
        mode: 802.3ad
        mii-monitor-interval: 100
        transmit-hash-policy: layer2+3
  vlans:
    "bond0.5":
      id: 5
      link: "bond0"
      mtu: 9000
  bridges:
    "br0":
      interfaces: ["bond0.5"]
      macaddress: "52:54:00:00:00:02"
      mtu: 9000
      parameters: {stp: false, forward-delay: 0}
      dhcp4: true
      dhcp-identifier: mac
"#
    );
    let beside = text(&beside(), "id0");
    assert!(
        beside.contains("  ethernets:\n    \"id0\": {}\n  vlans:\n    \"nic0.5\":\n"),
        "{beside}"
    );
    assert!(beside.contains("      link: \"id0\"\n") && !beside.contains("macaddress"), "{beside}");
    assert_eq!((made(&beside), file("br0").as_str()), (Some("br0"), "90-gpuvm-br0.yaml"));
    assert_eq!(
        (links(&beside), nics(&beside)),
        (vec!["nic0.5".into(), "br0".into()], vec!["nic0".to_owned()])
    );
    assert_eq!(made("network:\n"), None);
}

#[test]
fn the_units_that_netplan_makes_are_judged() {
    let unit = |file: &str, text: &str| Unit::read(file, text);
    let good = [
        unit("10-netplan-00-gpuvm-nic0.network", "[Match]\nName=nic0\n[Network]\nBridge=br0\n"),
        unit("10-netplan-nic0.network", "[Match]\nName=nic0\n[Network]\nAddress=10.77.0.2/24\n"),
        unit(
            "10-netplan-br0.network",
            "[Match]\nName=br0\n[Network]\nAddress=10.77.0.2/24\n[Route]\nGateway=10.77.0.1\n",
        ),
    ];
    let simple = simple();
    assert_eq!(judge(&simple, "", &good), Ok(()));
    let before = unit("05-all.network", "[Match]\nName=nic*\n[Network]\nDHCP=yes\n");
    let mut others = good.to_vec();
    others.push(before);
    let problem = judge(&simple, "", &others).unwrap_err().to_string();
    let ours = "nic0 would be configured by 05-all.network, which comes before \
                10-netplan-00-gpuvm-nic0.network";
    assert_eq!(problem, ours);
    let problem = judge(&simple, "", &good[..2]).unwrap_err().to_string();
    assert!(
        problem
            .contains("10-netplan-br0.network, which netplan generates, does not contain Address="),
        "{problem}"
    );
}

#[test]
fn commands_for_the_admin_are_shown_for_netplan() {
    let script = netplan::script(&simple());
    assert!(
        script.starts_with("cat >/etc/netplan/90-gpuvm-br0.yaml <<'END'\n# Made by "),
        "{script}"
    );
    let end = "END\nchmod 600 /etc/netplan/90-gpuvm-br0.yaml\nnetplan apply\n";
    assert!(script.ends_with(end), "{script}");
}
