//! Healthy paths of every kind, to be broken.

use super::super::host::*;
use super::super::*;
use crate::network::AddressSource;
use crate::network::firewall::Ruleset;
use crate::network::host::{HostAddress, HostNetwork, Link, Route};
use crate::network::{Kind, Mode, Range, Span, Subnet};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

/// The guest's MAC address.
pub const MAC: &str = "52:54:00:aa:00:01";
/// Its device in each place here.
pub const TAP: &str = "vnet0";

/// A place that can be broken.
pub struct Place {
    /// Whether the guest runs.
    pub running: bool,
    /// Its NIC.
    pub nic: Nic,
    /// Another domain with its MAC address.
    pub twin: Option<&'static str>,
    /// Its network.
    pub on: On,
    /// Its addresses.
    pub known: Vec<GuestAddress>,
    /// Whether it has the channel of an agent.
    pub has_channel: bool,
    /// The guest agent's report.
    pub inside: Option<Inside>,
    /// The card behind it.
    pub behind: Behind,
    /// The host.
    pub host: HostSide,
}

impl Place {
    /// Returns the diagnosis.
    pub fn look(&self) -> Diagnosis {
        examine(&Case {
            guest: "a",
            running: self.running,
            nic: &self.nic,
            twin: self.twin,
            on: self.on.clone(),
            known: &self.known,
            has_channel: self.has_channel,
            inside: self.inside.clone(),
            behind: self.behind.clone(),
            host: Some(&self.host),
        })
    }

    /// A network device.
    pub fn device(&mut self, name: &str) -> &mut Device {
        self.host.devices.iter_mut().find(|device| device.link.name == name).unwrap()
    }

    /// Takes a device away.
    pub fn without(&mut self, name: &str) {
        self.host.devices.retain(|device| device.link.name != name);
    }

    /// Its network.
    pub fn network(&mut self) -> &mut Network {
        let On::Known(network, _) = &mut self.on else { panic!("it has one") };
        network
    }
}

/// A device that is up.
pub fn device(index: u32, name: &str, kind: Option<&str>, master: Option<&str>) -> Device {
    let link = Link {
        index,
        name: name.into(),
        mtu: 1500,
        kind: kind.map(Into::into),
        master: master.map(Into::into),
        up: true,
        loopback: false,
        mac: None,
        most_mtu: None,
        over: None,
    };
    let port = master.filter(|master| master.contains("br")).map(|_| PortState::Forwarding);
    Device {
        link,
        carrier: true,
        packets_in: 0,
        port,
        forward_delay_s: None,
        calls_iptables: false,
        mode: None,
        vfs: BTreeMap::new(),
    }
}

/// A subnet.
pub fn subnet(text: &str) -> Subnet {
    text.parse::<Range>().unwrap().subnet
}

/// A host with these devices, whose default route goes by `eth0`.
pub fn host(devices: Vec<Device>) -> HostSide {
    let route = Route { to: subnet("0.0.0.0/0"), link: Some("eth0".into()), gateway: None };
    let links = devices.iter().map(|device| device.link.clone()).collect();
    HostSide {
        devices,
        network: HostNetwork { links, addresses: Vec::new(), routes: vec![route] },
        neighbours: Vec::new(),
        heard: BTreeMap::new(),
        kernel: Kernel {
            ip_forward: Some(true),
            forwarding: [("virbr0".to_owned(), true), ("eth0".to_owned(), true)].into(),
            bridge_calls_iptables: None,
        },
        firewall: Ok(Ruleset::default()),
        served: Some(BTreeSet::from(["default".to_owned()])),
    }
}

/// A NIC connected to something.
pub fn nic(attached: Attached) -> Nic {
    Nic {
        number: 1,
        mac: MAC.into(),
        network: None,
        attached,
        device: Some(TAP.into()),
        link_down: false,
        mtu: None,
        vlan: None,
    }
}

/// A guest on libvirt's `default`.
pub fn nat() -> Place {
    let mut network = Network::bare("default", Kind::Nat);
    network.bridge = Some("virbr0".into());
    network.own = Some(Ipv4Addr::new(192, 168, 122, 1));
    network.range = Some(subnet("192.168.122.0/24"));
    let ip = |last| Ipv4Addr::new(192, 168, 122, last);
    network.dhcp = vec![Span::new(ip(2), ip(254)).unwrap()];
    let bridge = Device { forward_delay_s: Some(2), ..device(3, "virbr0", Some("bridge"), None) };
    let tap = device(4, TAP, Some("tun"), Some("virbr0"));
    let mut host = host(vec![device(2, "eth0", None, None), bridge, tap]);
    let own = HostAddress { link: "virbr0".into(), ip: ip(1), subnet: subnet("192.168.122.0/24") };
    host.network.addresses.push(own);
    host.heard.insert(("virbr0".into(), MAC.into()), TAP.into());
    host.neighbours.push(Neighbour { link: "virbr0".into(), ip: ip(5), mac: MAC.into() });
    let known =
        vec![GuestAddress { mac: MAC.into(), ip: ip(5).into(), source: AddressSource::Lease }];
    let inside = Inside { name: Some("eth0".into()), mtu: Some(1500), up: Some(true) };
    Place {
        running: true,
        nic: nic(Attached::Bridge("virbr0".into())),
        twin: None,
        on: On::Known(Box::new(network), true),
        known,
        has_channel: true,
        inside: Some(inside),
        behind: Behind::default(),
        host,
    }
}

/// A guest in br0 over bond0 of eth0 and eth1, with packets of 9000 bytes.
pub fn bridged() -> Place {
    let bond = device(5, "bond0", Some("bond"), Some("br0"));
    let tap = device(4, TAP, Some("tun"), Some("br0"));
    let (one, two) =
        (device(2, "eth0", None, Some("bond0")), device(6, "eth1", None, Some("bond0")));
    let mut host = host(vec![one, device(3, "br0", Some("bridge"), None), tap, bond, two]);
    host.devices.iter_mut().for_each(|device| device.link.mtu = 9000);
    let mut nic = nic(Attached::Bridge("br0".into()));
    nic.mtu = Some(9000);
    Place { nic, on: On::None, known: Vec::new(), inside: None, host, ..nat() }
}

/// A guest's macvtap on eth0.
pub fn macvtap(mode: Mode) -> Place {
    let mut tap = Device { mode: Some(mode), ..device(4, TAP, Some("macvtap"), None) };
    tap.link.over = Some("eth0".into());
    let host = host(vec![device(2, "eth0", None, None), tap, device(3, "eth1", None, None)]);
    let nic = nic(Attached::Macvtap("eth0".into(), mode));
    Place { nic, on: On::None, known: Vec::new(), inside: None, host, ..nat() }
}

/// A guest with virtual function 1 of eth0.
pub fn function() -> Place {
    let vf = Vf { mac: Some(MAC.into()), vlan: Some(0), spoof_check: Some(true), disabled: false };
    let card = Device { vfs: [(1, vf)].into(), ..device(2, "eth0", None, None) };
    let nic = Nic { device: None, ..nic(Attached::Function("0000:01:10.1".into())) };
    let behind = Behind { pf: Some("eth0".into()), vf: Some(1) };
    Place {
        nic,
        twin: None,
        on: On::None,
        known: Vec::new(),
        has_channel: true,
        inside: None,
        behind,
        host: host(vec![card]),
        ..nat()
    }
}
