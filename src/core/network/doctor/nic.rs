//! A guest's NIC as defined in the domain, and checks of its own end of the path.

use super::super::{Kind, Mode, Network};
use super::report::Hops;
use super::{Case, rules};
use crate::domain::{DomainXml, Element};
use crate::shell::{domain, word};

/// The connection of a NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attached {
    /// A bridge of the host or of libvirt.
    Bridge(String),
    /// A network device of the host, by macvtap.
    Macvtap(String, Mode),
    /// A passed-through PCI function, by its address.
    Function(String),
    /// A network; its bridge or device is unknown while the guest is off.
    Pending,
    /// Something else, by libvirt's word for it.
    Other(String),
}

/// A NIC of a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    /// Its number in its domain, from 1.
    pub number: usize,
    /// MAC address, lower case.
    pub mac: String,
    /// libvirt's network.
    pub network: Option<String>,
    /// Its connection.
    pub attached: Attached,
    /// Its device on the host; `None` if the guest is off, or it has none.
    pub device: Option<String>,
    /// Whether its link is taken down.
    pub link_down: bool,
    /// MTU that it offers to the guest, in bytes; `None` if the guest chooses.
    pub mtu: Option<u32>,
    /// Its VLAN, if it has exactly one.
    pub vlan: Option<u32>,
}

impl Nic {
    /// The NICs of a domain, in their order.
    pub fn all(domain: &DomainXml) -> Vec<Nic> {
        let devices = domain.root().children("devices");
        let nics = devices.flat_map(|devices| devices.elements());
        // A passed-through function is a NIC only as an `<interface>`.
        let nics = nics.filter(|element| element.name() == "interface");
        nics.enumerate().map(|(nth, nic)| Nic::read(nth + 1, nic)).collect()
    }

    fn read(number: usize, nic: Element<'_>) -> Nic {
        let attr = |path: &str, name: &str| Some(nic.find(path)?.attr(name)?.into_owned());
        let kind = nic.attr("type").unwrap_or_default().into_owned();
        let mode = attr("source", "mode").and_then(|mode| mode_of(&mode));
        let address = nic.find("source/address").and_then(function);
        let attached = match (attr("source", "bridge"), attr("source", "dev"), address) {
            (Some(bridge), _, _) => Attached::Bridge(bridge),
            (_, _, Some(function)) if kind == "hostdev" => Attached::Function(function),
            // libvirt's own default is VEPA.
            (_, Some(dev), _) if kind == "direct" || kind == "network" => {
                Attached::Macvtap(dev, mode.unwrap_or(Mode::Vepa))
            }
            _ if kind == "network" => Attached::Pending,
            _ => Attached::Other(kind),
        };
        let mut vlans = nic.child("vlan").into_iter().flat_map(|vlan| vlan.children("tag"));
        let vlan = match (vlans.next(), vlans.next()) {
            (Some(tag), None) => tag.attr("id").and_then(|id| id.parse().ok()),
            _ => None,
        };
        Nic {
            number,
            mac: attr("mac", "address").unwrap_or_default().to_ascii_lowercase(),
            network: attr("source", "network"),
            attached,
            device: attr("target", "dev"),
            link_down: attr("link", "state").as_deref() == Some("down"),
            mtu: attr("mtu", "size").and_then(|size| size.parse().ok()),
            vlan,
        }
    }
}

impl Nic {
    /// Resolves the future connection of the NIC of a stopped guest, as far as its network
    /// determines it.
    pub fn resolve(&mut self, network: &Network) {
        if self.attached != Attached::Pending {
            return;
        }
        let bridge = || network.bridge.clone().map(Attached::Bridge);
        let attached = match network.kind {
            Kind::Macvtap(mode) => {
                network.nics.first().map(|nic| Attached::Macvtap(nic.clone(), mode))
            }
            Kind::Bridge => bridge(),
            kind if kind.has_own_bridge() => bridge(),
            _ => None,
        };
        self.attached = attached.unwrap_or(Attached::Pending);
    }
}

/// A mode of macvtap by libvirt's word.
fn mode_of(word: &str) -> Option<Mode> {
    [Mode::Bridge, Mode::Private, Mode::Vepa, Mode::Passthrough]
        .into_iter()
        .find(|mode| mode.word() == word)
}

/// The address of a passed PCI function, as sysfs names it.
fn function(address: Element<'_>) -> Option<String> {
    let number = |name: &str| {
        let text = address.attr(name)?;
        u32::from_str_radix(text.trim_start_matches("0x"), 16).ok()
    };
    let (bus, slot, function) = (number("bus")?, number("slot")?, number("function")?);
    let segment = number("domain").unwrap_or(0);
    Some(format!("{segment:04x}:{bus:02x}:{slot:02x}.{function:x}"))
}

/// Judges the NIC and the guest's report of it.
pub(super) fn judge(case: &Case<'_>, hops: &mut Hops) {
    let nic = case.nic;
    let hop = hops.hop("guest NIC");
    hop.says(if nic.link_down { "link down" } else { "link up" });
    if let Some(mtu) = nic.mtu {
        hop.says(format!("MTU {mtu}"));
    }
    if nic.link_down {
        let device = nic.device.as_deref().unwrap_or(&nic.mac);
        let hint = format!(
            "`virsh domif-setlink {} {device} up`, with --config for its next start",
            domain(case.guest),
            device = word(device)
        );
        let at = format!("domain, interface {} ({}), <link state=>", nic.number, nic.mac);
        hop.wrong(&rules::NIC_LINK, "its link is", ("up", "down"), at, hint);
    }
    let Some(inside) = &case.inside else {
        if case.running {
            let why = if case.has_channel {
                "the agent in the guest does not answer: qemu-guest-agent is not installed there, \
                 or does not run yet"
                    .to_owned()
            } else {
                format!(
                    "no agent answers (`gpuvm tune {} --agent on` gives it the channel)",
                    word(case.guest)
                )
            };
            hops.unchecked("inside the guest", &why);
        }
        return;
    };
    let Some(name) = &inside.name else {
        let hint = "look into the guest: `lspci -nnk`, `dmesg`";
        let hop = hops.hop("inside the guest");
        let expected = ("there", "not there");
        return hop.wrong(
            &rules::INSIDE_MISSING,
            format!("a NIC with {}", nic.mac),
            expected,
            "the guest",
            hint,
        );
    };
    let hop = hops.hop(&format!("{name} in the guest"));
    if inside.up == Some(false) {
        let hint = format!("in the guest: `ip link set {name} up`", name = word(name));
        hop.wrong(&rules::INSIDE_DOWN, "it is", ("up", "down"), "the guest", hint);
    } else if inside.up == Some(true) {
        hop.says("up");
    }
    if let Some(mtu) = inside.mtu {
        hop.says(format!("MTU {mtu}"));
        if let Some(offered) = nic.mtu.filter(|offered| *offered != mtu) {
            let hint =
                format!("in the guest: `ip link set {name} mtu {offered}`", name = word(name));
            hop.wrong(&rules::INSIDE_MTU, "its MTU is", (offered, mtu), "the guest", hint);
        }
    }
}
