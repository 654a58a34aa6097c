//! Healthy paths, and each of them broken in every way that has a name.

use super::*;
use crate::domain::DomainXml;
use crate::network::firewall::{Ruleset, read_iptables};
use crate::network::host::Route;
use crate::network::{Kind, Mode};
use places::*;
use std::collections::BTreeSet;

mod places;

/// The rules that are broken, with their hops.
fn found(place: &Place) -> Vec<(String, &'static str)> {
    let of = |hop: Hop| {
        let name = hop.name;
        hop.findings.into_iter().map(move |finding| (name.clone(), finding.rule))
    };
    place.look().hops.into_iter().flat_map(of).collect()
}

/// One break: the place, the change, the hop and the rule that finds it.
type Break = (fn() -> Place, fn(&mut Place), &'static str, &'static str);

/// Breaks of a guest on a network of libvirt's.
const NAT: &[Break] = &[
    (nat, |p| p.nic.link_down = true, "guest NIC", "nic-link-down"),
    (nat, |p| p.inside = Some(Inside::default()), "inside the guest", "guest-nic-missing"),
    (nat, |p| p.inside.as_mut().unwrap().up = Some(false), "eth0 in the guest", "guest-nic-down"),
    (nat, |p| p.nic.mtu = Some(1400), "eth0 in the guest", "guest-mtu"),
    (nat, |p| p.on = On::Gone("default".into()), "network default", "network-missing"),
    (nat, |p| p.without(TAP), "tap vnet0", "tap-missing"),
    (nat, |p| p.device(TAP).link.up = false, "tap vnet0", "tap-down"),
    (nat, |p| p.device(TAP).link.master = None, "tap vnet0", "tap-not-in-bridge"),
    (nat, |p| p.device(TAP).link.master = Some("br9".into()), "tap vnet0", "tap-not-in-bridge"),
    (nat, |p| p.device(TAP).port = Some(PortState::Waiting), "tap vnet0", "port-not-forwarding"),
    (nat, |p| p.device(TAP).port = Some(PortState::Blocking), "tap vnet0", "port-not-forwarding"),
    (nat, |p| p.device(TAP).link.mtu = 1400, "tap vnet0", "mtu-smaller"),
    (nat, |p| p.without("virbr0"), "bridge virbr0", "bridge-missing"),
    (nat, |p| p.device("virbr0").link.up = false, "bridge virbr0", "bridge-down"),
    (nat, |p| p.device("virbr0").link.mtu = 9000, "bridge virbr0", "mtu-larger"),
    (nat, |p| p.device("virbr0").link.mtu = 1280, "bridge virbr0", "bridge-mtu"),
    (nat, |p| p.host.served = Some(BTreeSet::new()), "DHCP server", "dnsmasq-missing"),
    (nat, |p| p.host.kernel.ip_forward = Some(false), "forwarding", "forwarding-off"),
    (
        nat,
        |p| p.host.kernel.forwarding = [("virbr0".to_owned(), false)].into(),
        "forwarding",
        "forwarding-off",
    ),
    (nat, |p| p.host.network.routes.clear(), "forwarding", "host-without-route"),
    (nat, |p| p.host.firewall = Ok(filter("-P FORWARD")), "firewall, guest to LAN", "firewall"),
    (
        nat,
        |p| p.host.firewall = Ok(filter("-A INPUT -p udp --dport 67 -j DROP")),
        "firewall, guest to host",
        "firewall",
    ),
    (nat, |p| p.device("eth0").link.up = false, "NIC eth0", "nic-down"),
    (nat, |p| p.device("eth0").carrier = false, "NIC eth0", "nic-no-carrier"),
    (nat, |p| p.known.clear(), "address", "no-address"),
    (
        nat,
        |p| {
            p.known.clear();
            p.device(TAP).packets_in = 7;
        },
        "address",
        "address-unknown",
    ),
    (nat, |p| p.host.neighbours[0].mac = "52:54:00:00:00:99".into(), "address", "address-twice"),
    (
        nat,
        |p| drop(p.host.heard.insert(("virbr0".into(), MAC.into()), "vnet9".into())),
        "address",
        "mac-elsewhere",
    ),
    (nat, |p| p.twin = Some("b"), "MAC address", "mac-shared"),
    (
        nat,
        |p| {
            p.host.network.routes.push(Route {
                to: subnet("192.168.122.0/28"),
                link: Some("eth0".into()),
                gateway: None,
            })
        },
        "address",
        "route-elsewhere",
    ),
];

const OTHERS: &[Break] = &[
    (bridged, |p| p.device(TAP).link.mtu = 1500, "tap vnet0", "mtu-smaller"),
    (bridged, |p| p.device("br0").link.mtu = 1500, "bridge br0", "bridge-mtu"),
    (bridged, |p| p.device("bond0").link.mtu = 1500, "bond bond0", "mtu-smaller"),
    (bridged, |p| p.device("eth1").link.mtu = 1500, "NIC eth1", "mtu-smaller"),
    (bridged, |p| p.device("eth1").carrier = false, "NIC eth1", "port-lost"),
    (bridged, |p| p.device("eth1").link.up = false, "NIC eth1", "port-lost"),
    (bridged, |p| p.device("bond0").link.up = false, "bond bond0", "nic-down"),
    (bridged, |p| p.device("bond0").carrier = false, "bond bond0", "nic-no-carrier"),
    (bridged, |p| p.device("br0").link.kind = None, "bridge br0", "bridge-missing"),
    (bridged, |p| p.device("bond0").link.master = None, "bridge br0", "bridge-without-nic"),
    (
        bridged,
        |p| {
            p.host.kernel.bridge_calls_iptables = Some(true);
            p.host.firewall = Ok(filter("-P FORWARD"));
        },
        "firewall, bridged",
        "firewall",
    ),
    (|| macvtap(Mode::Bridge), |p| p.without(TAP), "macvtap vnet0", "tap-missing"),
    (|| macvtap(Mode::Bridge), |p| p.device(TAP).link.up = false, "macvtap vnet0", "tap-down"),
    (
        || macvtap(Mode::Bridge),
        |p| p.device(TAP).link.over = Some("eth1".into()),
        "macvtap vnet0",
        "macvtap-elsewhere",
    ),
    (|| macvtap(Mode::Private), |p| p.without("eth0"), "NIC eth0", "nic-missing"),
    (|| macvtap(Mode::Private), |p| p.device("eth0").link.up = false, "NIC eth0", "nic-down"),
    (
        || macvtap(Mode::Passthrough),
        |p| p.device("eth0").carrier = false,
        "NIC eth0",
        "nic-no-carrier",
    ),
    (|| macvtap(Mode::Vepa), |_| (), "macvtap vnet0", "vepa-needs-hairpin"),
    (function, |p| p.behind.pf = None, "function 0000:01:10.1", "pf-missing"),
    (function, |p| p.device("eth0").link.up = false, "NIC eth0", "nic-down"),
    (function, |p| p.device("eth0").carrier = false, "NIC eth0", "nic-no-carrier"),
    (function, |p| vf(p).disabled = true, "VF 1 of eth0", "vf-link-disabled"),
    (function, |p| vf(p).mac = Some("52:54:00:00:00:99".into()), "VF 1 of eth0", "vf-foreign-mac"),
    (function, |p| vf(p).vlan = Some(7), "VF 1 of eth0", "vf-vlan"),
    (function, |p| p.nic.vlan = Some(7), "VF 1 of eth0", "vf-vlan"),
];

/// The virtual function of a place.
fn vf(place: &mut Place) -> &mut Vf {
    place.device("eth0").vfs.get_mut(&1).unwrap()
}

/// A filter with one rule, or with a policy that drops forwarded packets.
fn filter(rule: &str) -> Ruleset {
    let policy = if rule == "-P FORWARD" { "DROP" } else { "ACCEPT" };
    let text = format!("*filter\n:INPUT ACCEPT [0:0]\n:FORWARD {policy} [0:0]\n{rule}\nCOMMIT\n");
    read_iptables(&text, "iptables filter")
}

#[test]
fn healthy_paths_have_no_finding() {
    let modes = [Mode::Bridge, Mode::Private, Mode::Passthrough];
    let others = modes.map(macvtap);
    for place in [nat(), bridged(), function()].into_iter().chain(others) {
        let seen = place.look();
        assert!(found(&place).is_empty() && !seen.is_broken(), "{seen:#?}");
    }
    let notes = macvtap(Mode::Bridge).look().notes;
    assert!(notes[0].starts_with("guest - host: no; a second NIC"), "{notes:?}");
    assert!(nat().look().notes.is_empty());
}

#[test]
fn each_break_is_named_at_its_hop() {
    let mut seen = BTreeSet::new();
    for (number, (place, damage, hop, rule)) in NAT.iter().chain(OTHERS).enumerate() {
        let mut place = place();
        damage(&mut place);
        let all = found(&place);
        assert!(all.contains(&(hop.to_string(), *rule)), "{number}: {hop}, {rule}: {all:?}");
        seen.insert(*rule);
        let severe = RULES.iter().find(|known| known.id == *rule).unwrap();
        let broken = place.look().is_broken();
        assert_eq!(
            broken,
            severe.severity == crate::finding::Severity::Error,
            "{number}: {rule}: {all:?}"
        );
    }
    // These need more than one change.
    let untold: Vec<_> = RULES.iter().map(|rule| rule.id).filter(|id| !seen.contains(id)).collect();
    assert_eq!(untold, ["network-down", "bond-without-port"]);
}

#[test]
fn shortages_that_need_two_changes() {
    let mut place = nat();
    let network = place.network().clone();
    place.on = On::Known(Box::new(network), false);
    assert_eq!(found(&place), [("network default".into(), "network-down")]);
    let mut place = bridged();
    for name in ["eth0", "eth1"] {
        place.device(name).carrier = false;
    }
    let broken = [
        ("bond bond0", "bond-without-port"),
        ("NIC eth0", "nic-no-carrier"),
        ("NIC eth1", "nic-no-carrier"),
    ];
    assert_eq!(found(&place), broken.map(|(hop, rule)| (hop.to_owned(), rule)));
    // The walk continues from a VLAN to the device below it.
    let mut place = bridged();
    place.device("bond0").link.master = None;
    let mut vlan = device(9, "bond0.7", Some("vlan"), Some("br0"));
    vlan.link.over = Some("bond0".into());
    place.host.devices.push(vlan);
    assert_eq!(found(&place), [("VLAN bond0.7".into(), "mtu-smaller")]);
    assert!(place.look().hops.iter().any(|hop| hop.name == "NIC eth1"));
    // A card without spoof checking does not drop.
    let mut place = function();
    (vf(&mut place).mac, vf(&mut place).spoof_check) =
        (Some("52:54:00:00:00:99".into()), Some(false));
    assert!(found(&place).is_empty());
}

#[test]
fn unanswered_questions_are_reported() {
    let unchecked = |place: &Place| -> Vec<String> {
        let hops = place.look().hops.into_iter();
        hops.filter(|hop| hop.verdict == Verdict::NotChecked).map(|hop| hop.name).collect()
    };
    let mut place = nat();
    place.host.firewall = Err("nft is not there".into());
    place.host.served = None;
    (place.host.kernel.ip_forward, place.inside) = (None, None);
    let names = [
        "inside the guest",
        "DHCP server",
        "firewall, guest to host",
        "forwarding",
        "firewall, guest to LAN",
    ];
    assert_eq!(unchecked(&place), names);
    assert!(found(&place).is_empty());
    let mut place = nat();
    (place.running, place.nic.device, place.inside) = (false, None, None);
    assert_eq!((unchecked(&place), found(&place).len()), (vec!["tap".into(), "address".into()], 0));
    assert_eq!(unchecked(&bridged()), ["inside the guest", "address"]);
    let mut place = function();
    place.behind.vf = None;
    assert_eq!(unchecked(&place)[1], "function 0000:01:10.1");
}

#[test]
fn an_agent_that_does_not_answer_is_no_missing_channel() {
    let said = |has_channel: bool| {
        let mut place = nat();
        (place.inside, place.has_channel) = (None, has_channel);
        let diagnosis = place.look();
        let hop = diagnosis.hops.iter().find(|hop| hop.name == "inside the guest").unwrap();
        format!("{hop:?}")
    };
    let (there, missing) = (said(true), said(false));
    assert!(there.contains("qemu-guest-agent is not installed there") && !there.contains("tune"));
    assert!(missing.contains("`gpuvm tune a --agent on` gives it the channel"), "{missing}");
}

#[test]
fn nics_are_read_as_libvirt_writes_them() {
    let text = "<domain type='kvm'><name>a</name><devices>
      <interface type='network'><mac address='52:54:00:AA:00:01'/>
        <source network='default' portid='x' bridge='virbr0'/><target dev='vnet0'/><link state='down'/>
        <mtu size='9000'/></interface>
      <interface type='bridge'><mac address='52:54:00:aa:00:02'/><source bridge='br0'/><target dev='vnet1'/>
        <vlan><tag id='7'/></vlan></interface>
      <interface type='direct'><source network='macvtap-net' dev='eth0' mode='private'/><target dev='macvtap0'/></interface>
      <interface type='hostdev' managed='yes'><source>
        <address type='pci' domain='0x0000' bus='0x01' slot='0x10' function='0x2'/></source>
        <address type='pci' domain='0x0000' bus='0x05' slot='0x00' function='0x0'/></interface>
      <interface type='network'><source network='lab'/></interface>
      <interface type='user'/></devices></domain>";
    let nics = Nic::all(&DomainXml::parse(text).unwrap());
    let attached: Vec<_> = nics.iter().map(|nic| nic.attached.clone()).collect();
    assert_eq!(
        attached,
        [
            Attached::Bridge("virbr0".into()),
            Attached::Bridge("br0".into()),
            Attached::Macvtap("eth0".into(), Mode::Private),
            Attached::Function("0000:01:10.2".into()),
            Attached::Pending,
            Attached::Other("user".into()),
        ]
    );
    assert_eq!((nics[0].mac.as_str(), nics[0].link_down, nics[0].mtu), (MAC, true, Some(9000)));
    assert_eq!(
        (nics[1].vlan, nics[1].device.as_deref(), nics[1].number),
        (Some(7), Some("vnet1"), 2)
    );
    let mut pending = nics[4].clone();
    let network =
        Network { nics: vec!["eth3".into()], ..Network::bare("lab", Kind::Macvtap(Mode::Vepa)) };
    pending.resolve(&network);
    assert_eq!(pending.attached, Attached::Macvtap("eth3".into(), Mode::Vepa));
    let mut pending = nics[4].clone();
    pending.resolve(&Network { bridge: Some("br7".into()), ..Network::bare("lab", Kind::Bridge) });
    assert_eq!(pending.attached, Attached::Bridge("br7".into()));
}
