//! The kinds of devices that a guest can have besides its GPUs, with the options for them.

use super::reason::Topic;
use crate::bdf::Bdf;
use crate::topology::{DeviceKind, PciDevice, Sriov, Topology};

/// A kind of device that a guest can have besides its GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Physical functions of network class.
    Nic,
    /// Virtual functions of network class.
    Vf,
    /// Functions of NVMe class.
    Nvme,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 3] = [Kind::Nic, Kind::Vf, Kind::Nvme];

    /// The kind of a function; `None` if a guest cannot ask for it here.
    pub fn of(device: &PciDevice) -> Option<Kind> {
        match (device.kind(), &device.sriov) {
            (DeviceKind::Nic, Some(Sriov::Vf { .. })) => Some(Kind::Vf),
            (DeviceKind::Nic, _) => Some(Kind::Nic),
            (DeviceKind::Nvme, _) => Some(Kind::Nvme),
            _ => None,
        }
    }

    /// Returns its name in a sentence.
    pub(super) fn noun(self) -> &'static str {
        match self {
            Kind::Nic => "NIC",
            Kind::Vf => "virtual function",
            Kind::Nvme => "NVMe drive",
        }
    }

    /// Returns the kind of an address of another kind, and the remedy; `None` if it is one of this
    /// kind.
    pub(crate) fn mistaken(self, bdf: Bdf, topology: &Topology) -> Option<(String, String)> {
        let noun = self.noun();
        let listed = || match self {
            Kind::Nic => "`gpuvm nic list` shows the NICs".to_owned(),
            Kind::Vf => "`gpuvm nic list` shows the NICs with virtual functions".to_owned(),
            Kind::Nvme => "`gpuvm drive list` shows the NVMe drives".to_owned(),
        };
        let Some(device) = topology.device(bdf) else {
            return Some((format!("{bdf} is not a device of this host"), listed()));
        };
        match Kind::of(device) {
            Some(is) if is == self => None,
            Some(is) => Some((
                format!("{bdf} is not a {noun} but a{} {}", n(is), is.noun()),
                format!("{} {bdf} asks for it", is.flag()),
            )),
            None => {
                let is = match device.kind() {
                    DeviceKind::Gpu => " but a GPU".to_owned(),
                    DeviceKind::NvSwitch => " but an NVSwitch".to_owned(),
                    _ => format!(": its class is {:#08x}", device.class),
                };
                Some((format!("{bdf} is not a {noun}{is}"), listed()))
            }
        }
    }

    /// Returns the topic of reasons for its choice.
    pub(super) fn topic(self) -> Topic {
        match self {
            Kind::Nic => Topic::Nics,
            Kind::Vf => Topic::Vfs,
            Kind::Nvme => Topic::Nvmes,
        }
    }

    /// Returns the option that requests it.
    pub(super) fn flag(self) -> &'static str {
        match self {
            Kind::Nic => "--nic",
            Kind::Vf => "--vf",
            Kind::Nvme => "--nvme",
        }
    }
}

/// Returns the `n` of the article before a vowel sound.
fn n(kind: Kind) -> &'static str {
    if kind == Kind::Nvme { "n" } else { "" }
}
