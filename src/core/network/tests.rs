//! Networks read, planned and refused.

use super::host::{HostAddress, HostNetwork, Link, Route};
use super::*;

/// A host: eth0 with the default route and 10.0.0.5/24, eth1 alone, eth2 in br0, a route by a
/// tunnel, and the bridge of libvirt's `default`.
fn host() -> HostNetwork {
    let link = |index, name: &str, mtu, kind: Option<&str>, master: Option<&str>| Link {
        index,
        name: name.into(),
        mtu,
        kind: kind.map(Into::into),
        master: master.map(Into::into),
        up: name != "eth1",
        loopback: name == "lo",
        mac: None,
        most_mtu: None,
        over: None,
    };
    let subnet = |text: &str| text.parse::<Range>().unwrap().subnet;
    let address = |link: &str, text: &str| HostAddress {
        link: link.into(),
        ip: text.split('/').next().unwrap().parse().unwrap(),
        subnet: subnet(text),
    };
    let route = |to: &str, link: Option<&str>| Route {
        to: subnet(to),
        link: link.map(Into::into),
        gateway: None,
    };
    HostNetwork {
        links: vec![
            link(1, "lo", 65_536, None, None),
            link(2, "eth0", 1500, None, None),
            link(3, "eth1", 9000, None, None),
            link(4, "eth2", 1500, None, Some("br0")),
            link(5, "br0", 1500, Some("bridge"), None),
            link(6, "virbr0", 1500, Some("bridge"), None),
        ],
        addresses: vec![
            address("lo", "127.0.0.1/8"),
            address("eth0", "10.0.0.5/24"),
            address("virbr0", "192.168.122.1/24"),
        ],
        routes: vec![
            route("0.0.0.0/0", Some("eth0")),
            route("10.0.0.0/24", Some("eth0")),
            route("192.168.123.0/24", Some("tun0")),
            route("172.16.0.0/12", None),
            route("192.168.122.0/24", Some("virbr0")),
        ],
    }
}

/// libvirt's `default`, as it prints it.
const DEFAULT: &str = "<network connections='1'>
  <name>default</name>
  <uuid>dd8fe884-6c02-601e-7551-cca97df1c5df</uuid>
  <forward mode='nat'><nat><port start='1024' end='65535'/></nat></forward>
  <bridge name='virbr0' stp='on' delay='0'/>
  <mac address='52:54:00:01:02:03'/>
  <ip address='192.168.122.1' netmask='255.255.255.0'>
    <dhcp>
      <range start='192.168.122.2' end='192.168.122.254'/>
      <host mac='52:54:00:AA:00:01' name='a' ip='192.168.122.45'/>
    </dhcp>
  </ip>
  <ip family='ipv6' address='fd00::1' prefix='64'/>
</network>";

/// A request for no more than a kind.
fn request(name: &str, kind: Kind) -> Request {
    Request::bare(name, kind)
}

/// A static address.
fn fixed(mac: u8, ip: &str) -> Static {
    Static { mac: format!("52:54:00:00:00:{mac:02x}"), ip: ip.parse().unwrap(), name: None }
}

/// Plans given the host and `default`.
fn planned(request: &Request) -> Result<Planned, Refused> {
    plan(request, Some(&host()), &[Network::read(DEFAULT).unwrap()], false)
}

fn refused(request: &Request) -> Vec<String> {
    let refused = planned(request).expect_err("it is planned");
    refused.problems.iter().map(ToString::to_string).collect()
}

#[test]
fn libvirts_own_document_is_read() {
    let network = Network::read(DEFAULT).unwrap();
    assert_eq!((network.kind, network.bridge.as_deref()), (Kind::Nat, Some("virbr0")));
    assert_eq!(network.range.unwrap().to_string(), "192.168.122.0/24");
    assert_eq!(network.dhcp[0].count(), 253);
    assert_eq!(network.statics[0].mac, "52:54:00:aa:00:01");
    for (forward, expected) in [
        ("", Kind::Isolated),
        ("<ip address='10.0.0.1' prefix='24'/>", Kind::Private),
        ("<forward/>", Kind::Nat),
        ("<forward mode='route'/>", Kind::Routed),
        ("<forward mode='bridge'/><bridge name='br0'/>", Kind::Bridge),
        (
            "<forward mode='bridge'><interface dev='eth0' connections='2'/></forward>",
            Kind::Macvtap(Mode::Bridge),
        ),
        ("<forward mode='vepa' dev='eth0'/>", Kind::Macvtap(Mode::Vepa)),
        (
            "<forward mode='hostdev' managed='yes'><pf dev='eth0'/><address type='pci' \
             domain='0x0000' bus='0x86' slot='0x10' function='0x0'/></forward>",
            Kind::Sriov,
        ),
        ("<forward mode='open'/>", Kind::Other),
    ] {
        let network = Network::read(&format!("<network><name>a</name>{forward}</network>"));
        assert_eq!(network.unwrap().kind, expected, "{forward}");
    }
    for bad in ["", "<network>", "<network/>", "<network><name>a</name>"] {
        assert!(Network::read(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_plan_is_read_back_unchanged() {
    let nic = |kind, nic: &str| Request { nic: Some(nic.into()), ..request("a", kind) };
    let statics = vec![fixed(1, "192.168.124.45")];
    for request in [
        Request { statics, mtu: Some(9000), ..request("a", Kind::Nat) },
        nic(Kind::Nat, "eth0"),
        request("a<&'\"", Kind::Private),
        Request { dhcp: Some(Dhcp::Off), ..request("a", Kind::Private) },
        nic(Kind::Macvtap(Mode::Bridge), "eth0"),
        nic(Kind::Macvtap(Mode::Passthrough), "eth1"),
        Request { bridge: Some("br0".into()), ..request("a", Kind::Bridge) },
        nic(Kind::Sriov, "eth0"),
    ] {
        let network = planned(&request).unwrap().network;
        let back = Network::read(&network.xml()).unwrap();
        assert_eq!(back, network, "{}", network.xml());
        assert_eq!(network.differences(&back), Vec::<String>::new());
    }
}

#[test]
fn a_difference_names_both_sides() {
    let network = planned(&request("a", Kind::Nat)).unwrap().network;
    let mut other = Network { mtu: Some(9000), ..network.clone() };
    other.dhcp.clear();
    other.bridge = Some("virbr7".into());
    assert_eq!(
        network.differences(&other),
        [
            "its MTU is 9000, planned was none",
            "what DHCP hands out is nothing, planned was 192.168.124.2-192.168.124.254"
        ]
    );
}

#[test]
fn a_range_that_is_free_is_taken() {
    // 122 belongs to `default`; 123 has a route.
    let Planned { network, notes } = planned(&request("a", Kind::Private)).unwrap();
    assert_eq!(network.range.unwrap().to_string(), "192.168.124.0/24");
    assert_eq!(network.own.unwrap().to_string(), "192.168.124.1");
    assert_eq!((network.bridge, notes), (None, vec![]), "libvirt chooses the bridge's name");
    // Without `default` that name gets its usual range, and its usual bridge if that is free.
    let default = |host: &HostNetwork| {
        plan(&request("default", Kind::Nat), Some(host), &[], false).unwrap().network
    };
    let mut host = host();
    assert_eq!(default(&host).range.unwrap().to_string(), "192.168.124.0/24");
    host.links.pop();
    host.addresses.pop();
    host.routes.pop();
    let network = default(&host);
    assert_eq!(network.range.unwrap().to_string(), "192.168.122.0/24");
    assert_eq!(network.bridge.as_deref(), Some("virbr0"));
    // Of another machine only the networks are known.
    let far = plan(&request("a", Kind::Nat), None, &[network], false).unwrap().network;
    assert_eq!(far.range.unwrap().to_string(), "192.168.123.0/24");
}

#[test]
fn ranges_that_clash_are_refused_with_the_numbers() {
    for (range, said) in [
        (
            "192.168.122.128/25",
            "range 192.168.122.128/25 overlaps 192.168.122.0/24 of network `default`",
        ),
        (
            "10.0.0.0/16",
            "range 10.0.0.0/16 overlaps 10.0.0.0/24, where the host has 10.0.0.5 on eth0",
        ),
        (
            "192.168.123.0/26",
            "range 192.168.123.0/26 overlaps the host's route to 192.168.123.0/24 by tun0",
        ),
        (
            "172.20.0.0/16",
            "range 172.20.0.0/16 overlaps the host's route to 172.16.0.0/12 that leads nowhere",
        ),
        ("10.9.0.0/31", "range 10.9.0.0/31 is not usable: its prefix must be 8 to 30 bits"),
        (
            "10.9.0.255/24",
            "10.9.0.255 cannot be the host's address: it is the broadcast address of 10.9.0.0/24",
        ),
    ] {
        let range = Some(range.parse().unwrap());
        let request = Request { range, ..request("a", Kind::Nat) };
        assert_eq!(refused(&request), [said]);
    }
    assert_eq!(refused(&request("default", Kind::Nat)), ["a network of this name already exists"]);
}

#[test]
fn static_addresses_shrink_the_dhcp_range() {
    let of = |dhcp, statics: &[(u8, &str)]| Request {
        range: Some("10.9.0.0/24".parse().unwrap()),
        dhcp,
        statics: statics.iter().map(|(mac, ip)| fixed(*mac, ip)).collect(),
        ..request("a", Kind::Nat)
    };
    let span = |text: &str| Some(Dhcp::Span(text.parse().unwrap()));
    let network = planned(&of(None, &[(1, "10.9.0.45")])).unwrap().network;
    assert_eq!(network.dhcp[0].to_string(), "10.9.0.46-10.9.0.254");
    let network = planned(&of(span("10.9.0.100-10.9.0.254"), &[(1, "10.9.0.45")])).unwrap().network;
    assert_eq!(network.dhcp[0].to_string(), "10.9.0.100-10.9.0.254");
    let hosts = "10.9.0.1-10.9.0.254";
    for (dhcp, statics, said) in [
        (
            span("10.9.0.2-10.9.0.254"),
            &[(1, "10.9.0.45")][..],
            "static address 10.9.0.45 is inside the DHCP range 10.9.0.2-10.9.0.254".to_owned(),
        ),
        (
            None,
            &[(1, "10.9.1.45")],
            format!("static address 10.9.1.45 is outside 10.9.0.0/24, whose hosts have {hosts}"),
        ),
        (None, &[(1, "10.9.0.1")], "static address 10.9.0.1 is the host's own".into()),
        (
            None,
            &[(1, "10.9.0.9"), (2, "10.9.0.9")],
            "static address 10.9.0.9 is given to 52:54:00:00:00:01 and to 52:54:00:00:00:02".into(),
        ),
        (
            None,
            &[(1, "10.9.0.9"), (1, "10.9.0.8")],
            "52:54:00:00:00:01 is given both 10.9.0.9 and 10.9.0.8".into(),
        ),
        (
            span("10.9.0.200-10.9.1.9"),
            &[],
            format!("DHCP cannot hand out 10.9.0.200-10.9.1.9: hosts of 10.9.0.0/24 have {hosts}"),
        ),
        (
            span("10.9.0.1-10.9.0.9"),
            &[],
            "DHCP cannot hand out 10.9.0.1-10.9.0.9: 10.9.0.1 is the host's own address".into(),
        ),
    ] {
        assert_eq!(refused(&of(dhcp, statics)), [said]);
    }
    let full = Request {
        range: Some("10.9.0.0/30".parse().unwrap()),
        statics: vec![fixed(1, "10.9.0.2")],
        ..request("a", Kind::Nat)
    };
    assert_eq!(refused(&full), ["static addresses leave no address of 10.9.0.1-10.9.0.2 for DHCP"]);
    let none_handed_out = Request { dhcp: Some(Dhcp::Off), ..full };
    assert_eq!(planned(&none_handed_out).unwrap().network.dhcp, []);
}

#[test]
fn devices_that_cannot_have_guests_are_refused() {
    let macvtap = |mode, nic: &str| {
        let nic = Some(nic.to_owned());
        Request { nic, ..request("a", Kind::Macvtap(mode)) }
    };
    let bridge = |name: &str| Request { bridge: Some(name.into()), ..request("a", Kind::Bridge) };
    for (request, said) in [
        (macvtap(Mode::Bridge, "eth9"), "this host has no network device eth9"),
        (macvtap(Mode::Bridge, "lo"), "lo is the loopback device"),
        (macvtap(Mode::Vepa, "eth2"), "eth2 is a port of br0, which receives its packets"),
        (
            macvtap(Mode::Passthrough, "eth0"),
            "eth0 carries the host's default route; in mode passthrough one guest owns it",
        ),
        (request("a", Kind::Macvtap(Mode::Bridge)), "a macvtap bridge network needs --nic NIC"),
        (request("a", Kind::Bridge), "a bridge network needs --bridge BRIDGE"),
        (bridge("br9"), "this host has no network device br9"),
        (bridge("eth0"), "eth0 is not a bridge but a NIC"),
        (bridge("virbr0"), "bridge virbr0 belongs to network `default`: use that network"),
        (
            Request { mtu: Some(9000), ..bridge("br0") },
            "--mtu is of nat and private networks, and this one is bridge",
        ),
        (
            Request { bridge: Some("eth0".into()), ..request("a", Kind::Nat) },
            "eth0 cannot be the name of its bridge: the host has a network device of this name",
        ),
        (
            Request { bridge: Some("a-bridge-too-long".into()), ..request("a", Kind::Nat) },
            "a-bridge-too-long cannot be the name of its bridge: it needs 1 to 15 letters, digits, \
             `-`, `_` and `.`",
        ),
    ] {
        assert_eq!(refused(&request), [said]);
    }
    let down = planned(&macvtap(Mode::Passthrough, "eth1")).unwrap();
    assert_eq!(down.notes, ["eth1 is down, so nothing passes until it is up"]);
    let whole = down.network;
    let beside = |mode| {
        let again = Request { name: "b".into(), ..macvtap(mode, "eth1") };
        plan(&again, Some(&host()), std::slice::from_ref(&whole), false).unwrap_err().to_string()
    };
    let said = "network `b` cannot be made: network `a` passes eth1 to a guest as a whole";
    assert_eq!(beside(Mode::Bridge), said);
}

#[test]
fn an_mtu_above_that_of_the_nic_is_refused() {
    let of = |nic: Option<&str>, mtu| Request {
        nic: nic.map(Into::into),
        mtu: Some(mtu),
        ..request("a", Kind::Nat)
    };
    assert_eq!(refused(&of(Some("eth0"), 9000)), ["MTU 9000 is above 1500, that of eth0"]);
    let bounds = "MTU 70000 is out of range (576 to 65535)";
    assert_eq!(refused(&of(None, 70_000)), [bounds]);
    assert_eq!(planned(&of(Some("eth1"), 9000)).unwrap().network.mtu, Some(9000));
    let unbound = planned(&of(None, 9000)).unwrap();
    assert!(
        unbound.notes[0]
            .starts_with("eth0, which has the host's default route, has an MTU of 1500")
    );
}

#[test]
fn a_replaced_network_keeps_its_identity_in_libvirt() {
    let mut request = request("default", Kind::Nat);
    request.statics = vec![fixed(1, "192.168.122.45")];
    let before = Network::read(DEFAULT).unwrap();
    let Planned { network, .. } =
        plan(&request, Some(&host()), std::slice::from_ref(&before), true).unwrap();
    assert_eq!((network.uuid, network.bridge), (before.uuid, before.bridge));
    assert_eq!((network.range, network.own), (before.range, before.own));
    assert_eq!(network.dhcp[0].to_string(), "192.168.122.46-192.168.122.254");
}

#[test]
fn every_kind_says_who_reaches_whom() {
    for kind in
        ["default", "private-net", "macvtap-net", "iovnet0"].map(|name| known(name).unwrap())
    {
        assert!(Reach::of(kind).is_some());
    }
    assert_eq!(known("train"), None);
    let host = |mode| Reach::of(Kind::Macvtap(mode)).unwrap().guest_host;
    assert!(host(Mode::Bridge).starts_with("no") && host(Mode::Vepa).contains("hairpin"));
}
