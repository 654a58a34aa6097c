//! Reads the host's side of a guest's network path: network devices with their state, neighbours
//! and bridge forwarding entries, the kernel's forwarding settings, and the libvirt networks with a
//! running DHCP server. Covers this program's network namespace.

use super::network::{link_messages, links, mac as text, network};
use crate::fsroot::{FsError, FsRoot};
use crate::netlink::ask;
use gpuvm_core::network::Mode;
use gpuvm_core::network::doctor::{Behind, Device, HostSide, Kernel, Neighbour, PortState, Vf};
use gpuvm_core::network::firewall::Ruleset;
use gpuvm_core::network::host::Link;
use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::link::{
    BridgePortState, BridgeStpState, InfoBridge, InfoBridgePort, InfoData, InfoPortData,
    LinkAttribute, LinkExtentMask, LinkInfo, LinkMessage, LinkVfInfo, MacVtapMode, VfInfo,
    VfLinkState,
};
use netlink_packet_route::link::{InfoMacVlan, InfoMacVtap};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// The kernel's directory of IPv4 settings.
const IPV4: &str = "proc/sys/net/ipv4";
/// Part of the path of libvirt's dnsmasq configurations.
const DNSMASQ: &str = "/libvirt/dnsmasq/";

/// Reads the host's side of paths; `firewall` is the packet filter, as read from other programs.
/// Errors: those of the kernel, for queries that every kernel supports.
pub fn read(root: &FsRoot, firewall: Result<Ruleset, String>) -> io::Result<HostSide> {
    let messages = link_messages(&[LinkExtentMask::Vf])?;
    let all = links(&messages);
    let names: BTreeMap<u32, String> =
        all.iter().map(|link| (link.index, link.name.clone())).collect();
    let devices = all.into_iter().zip(&messages).map(|(link, message)| device(link, message));
    Ok(HostSide {
        devices: devices.collect(),
        network: network()?,
        neighbours: neighbours(&names)?,
        heard: heard(&names).unwrap_or_default(),
        kernel: kernel(root),
        firewall,
        served: served(root).ok(),
    })
}

/// A MAC address in its usual form; `None` if not an Ethernet address.
fn mac(bytes: &[u8]) -> Option<String> {
    bytes.get(..6).map(text)
}

/// Reads the properties of a device that paths need.
fn device(link: Link, message: &LinkMessage) -> Device {
    let mut device = Device {
        link,
        carrier: false,
        packets_in: 0,
        port: None,
        forward_delay_s: None,
        calls_iptables: false,
        mode: None,
        vfs: BTreeMap::new(),
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Carrier(on) => device.carrier = *on == 1,
            LinkAttribute::Stats64(stats) => device.packets_in = stats.rx_packets,
            LinkAttribute::LinkInfo(infos) => infos.iter().for_each(|info| kind(&mut device, info)),
            LinkAttribute::VfInfoList(functions) => {
                functions.iter().for_each(|LinkVfInfo(infos)| function(&mut device, infos));
            }
            _ => {}
        }
    }
    device
}

/// Reads the properties specific to its kind, or to a port of its master's kind.
fn kind(device: &mut Device, info: &LinkInfo) {
    let mode = |mode: &MacVtapMode| match mode {
        MacVtapMode::Bridge => Some(Mode::Bridge),
        MacVtapMode::Private => Some(Mode::Private),
        MacVtapMode::Vepa => Some(Mode::Vepa),
        MacVtapMode::Passthrough => Some(Mode::Passthrough),
        _ => None,
    };
    match info {
        LinkInfo::Data(InfoData::Bridge(settings)) => {
            let (mut stp, mut delay) = (false, 0);
            for value in settings {
                match value {
                    InfoBridge::StpState(state) => stp = *state != BridgeStpState::Disabled,
                    // In hundredths of a second.
                    InfoBridge::ForwardDelay(ticks) => delay = ticks / 100,
                    InfoBridge::NfCallIpTables(on) => device.calls_iptables = *on,
                    _ => {}
                }
            }
            device.forward_delay_s = stp.then_some(delay);
        }
        LinkInfo::Data(InfoData::MacVtap(settings)) => {
            device.mode = settings.iter().find_map(|value| match value {
                InfoMacVtap::Mode(word) => mode(word),
                _ => None,
            });
        }
        LinkInfo::Data(InfoData::MacVlan(settings)) => {
            device.mode = settings.iter().find_map(|value| match value {
                InfoMacVlan::Mode(word) => mode(word),
                _ => None,
            });
        }
        LinkInfo::PortData(InfoPortData::BridgePort(settings)) => {
            device.port = settings.iter().find_map(|value| match value {
                InfoBridgePort::State(state) => Some(match state {
                    BridgePortState::Forwarding => PortState::Forwarding,
                    BridgePortState::Listening | BridgePortState::Learning => PortState::Waiting,
                    _ => PortState::Blocking,
                }),
                _ => None,
            });
        }
        _ => {}
    }
}

/// Reads a card's settings of one of its virtual functions.
fn function(device: &mut Device, infos: &[VfInfo]) {
    for info in infos {
        let number = match info {
            VfInfo::Mac(info) => info.vf_id,
            VfInfo::Vlan(info) => info.vf_id,
            VfInfo::SpoofCheck(info) => info.vf_id,
            VfInfo::LinkState(info) => info.vf_id,
            _ => continue,
        };
        let vf: &mut Vf = device.vfs.entry(number).or_default();
        match info {
            VfInfo::Mac(info) => vf.mac = mac(&info.mac),
            VfInfo::Vlan(info) => vf.vlan = Some(info.vlan_id),
            VfInfo::SpoofCheck(info) => vf.spoof_check = Some(info.enabled),
            VfInfo::LinkState(info) => vf.disabled = info.state == VfLinkState::Disable,
            _ => {}
        }
    }
}

/// Reads the kernel's neighbour entries of an address family.
fn entries(family: AddressFamily) -> io::Result<Vec<NeighbourMessage>> {
    let mut message = NeighbourMessage::default();
    message.header.family = family;
    let answers = ask(NLM_F_DUMP, RouteNetlinkMessage::GetNeighbour(message))?;
    let messages = answers.into_iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewNeighbour(message) => Some(message),
        _ => None,
    });
    Ok(messages.collect())
}

/// The MAC address of an entry.
fn entry_mac(entry: &NeighbourMessage) -> Option<String> {
    entry.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => mac(bytes),
        _ => None,
    })
}

/// Reads the IPv4 neighbours.
fn neighbours(names: &BTreeMap<u32, String>) -> io::Result<Vec<Neighbour>> {
    let of = |entry: &NeighbourMessage| {
        let usable = |state| {
            !matches!(
                state,
                NeighbourState::Incomplete | NeighbourState::Failed | NeighbourState::Noarp
            )
        };
        let ip = entry.attributes.iter().find_map(|attribute| match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => Some(*ip),
            _ => None,
        })?;
        let link = names.get(&entry.header.ifindex)?.clone();
        usable(entry.header.state).then_some(Neighbour { link, ip, mac: entry_mac(entry)? })
    };
    Ok(entries(AddressFamily::Inet)?.iter().filter_map(of).collect())
}

/// Reads the bridge ports of learned MAC addresses, without permanent entries such as the ports'
/// own addresses.
fn heard(names: &BTreeMap<u32, String>) -> io::Result<BTreeMap<(String, String), String>> {
    let of = |entry: &NeighbourMessage| {
        let bridge = entry.attributes.iter().find_map(|attribute| match attribute {
            NeighbourAttribute::Controller(bridge) => names.get(bridge).cloned(),
            _ => None,
        })?;
        let learned = entry.header.state != NeighbourState::Permanent;
        let port = names.get(&entry.header.ifindex)?.clone();
        learned.then_some(((bridge, entry_mac(entry)?), port))
    };
    Ok(entries(AddressFamily::Bridge)?.iter().filter_map(of).collect())
}

fn kernel(root: &FsRoot) -> Kernel {
    let on = |path: &str| Some(root.read(path).ok()??.trim() != "0");
    let names = root.names(&format!("{IPV4}/conf")).unwrap_or_default();
    let forwarding = names.into_iter().filter_map(|name| {
        let on = on(&format!("{IPV4}/conf/{name}/forwarding"))?;
        Some((name, on))
    });
    Kernel {
        ip_forward: on(&format!("{IPV4}/ip_forward")),
        forwarding: forwarding.collect(),
        bridge_calls_iptables: on("proc/sys/net/bridge/bridge-nf-call-iptables"),
    }
}

/// Returns the libvirt networks whose dnsmasq runs, by the configuration file it was started with.
fn served(root: &FsRoot) -> Result<BTreeSet<String>, FsError> {
    let mut served = BTreeSet::new();
    for name in root.names("proc")?.iter().filter(|name| name.bytes().all(|b| b.is_ascii_digit())) {
        // A process may end meanwhile.
        let Ok(Some(dir)) = root.dir(&format!("proc/{name}")) else { continue };
        let arguments = dir.zero_ended("cmdline");
        let is_it = arguments.first().is_some_and(|program| program.ends_with("dnsmasq"));
        let files = arguments.iter().filter_map(|argument| argument.strip_prefix("--conf-file="));
        let networks = files.filter_map(|file| {
            file.split_once(DNSMASQ)?.1.strip_suffix(".conf").map(str::to_owned)
        });
        served.extend(networks.filter(|_| is_it));
    }
    Ok(served)
}

/// Returns the PF's network device behind a passed-through function, and the function's number
/// there.
pub fn behind(root: &FsRoot, bdf: &str) -> Result<Behind, FsError> {
    let at = format!("sys/bus/pci/devices/{bdf}/physfn");
    let Some(card) = root.dir(&at)? else { return Ok(Behind::default()) };
    let pf = root.names(&format!("{at}/net"))?.into_iter().next();
    let mut vf = 0;
    // The links are numbered without gaps.
    while let Some(name) = card.link_name(&format!("virtfn{vf}"))? {
        if name == bdf {
            return Ok(Behind { pf, vf: Some(vf) });
        }
        vf += 1;
    }
    Ok(Behind { pf, vf: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_host_reports_a_loop() {
        let root = FsRoot::live().unwrap();
        let host = read(&root, Err("not asked".into())).unwrap();
        let lo = host.device("lo").unwrap();
        assert!(lo.link.loopback && lo.port.is_none() && lo.vfs.is_empty());
        assert!(host.kernel.ip_forward.is_some() && host.kernel.forwarding.contains_key("lo"));
        assert!(host.served.is_some());
    }

    #[test]
    fn settings_and_virtual_functions_are_read_below_a_root() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/sys/net/ipv4/ip_forward", "1\n");
        write("proc/sys/net/ipv4/conf/virbr0/forwarding", "0\n");
        write("proc/sys/net/bridge/bridge-nf-call-iptables", "1\n");
        let mine =
            "/usr/sbin/dnsmasq\0--conf-file=/var/lib/libvirt/dnsmasq/lab.conf\0--leasefile-ro\0";
        write("proc/77/cmdline", mine);
        write("proc/78/cmdline", &mine.replace("lab", "other").replace("/dnsmasq\0", "/vi\0"));
        let devices = "sys/bus/pci/devices";
        write(&format!("{devices}/0000:01:00.0/net/eth0/mtu"), "1500");
        for (vf, bdf) in ["0000:01:10.0", "0000:01:10.2"].iter().enumerate() {
            write(&format!("{devices}/{bdf}/vendor"), "0x8086");
            symlink("../0000:01:00.0", dir.path().join(format!("{devices}/{bdf}/physfn"))).unwrap();
            let link = dir.path().join(format!("{devices}/0000:01:00.0/virtfn{vf}"));
            symlink(format!("../{bdf}"), link).unwrap();
        }
        let root = FsRoot::at(dir.path()).unwrap();
        let kernel = kernel(&root);
        assert_eq!((kernel.ip_forward, kernel.bridge_calls_iptables), (Some(true), Some(true)));
        assert_eq!(kernel.forwarding, [("virbr0".to_owned(), false)].into());
        assert_eq!(served(&root).unwrap(), ["lab".to_owned()].into());
        let card = |bdf| behind(&root, bdf).unwrap();
        assert_eq!(card("0000:01:10.2"), Behind { pf: Some("eth0".into()), vf: Some(1) });
        assert_eq!(card("0000:01:00.0"), Behind::default());
    }
}
