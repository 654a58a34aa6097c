//! The admin's request for one NIC of a guest: its network, and settings beyond the plan.

mod read;
mod text;

use super::fragment::{Fragment, Want};
use super::rate::Rate;
use crate::request::Extras;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The most queues of a tap device (`MAX_TAP_QUEUES` of the kernel).
pub const MOST_QUEUES: u32 = 256;
/// The most queues of a NIC unless more are requested. Each is a pair of rings with a vhost thread
/// on the host and 64 KiB of its memory (OpenShift Virtualization, "About multi-queue
/// functionality"), and one for each of many vCPUs is wasted (kubevirt/kubevirt issue 18012): a
/// bridge or macvtap has one uplink, and address translation is slower still. Guests spread more
/// vCPUs over fewer queues (Linux 4.19, commit 2ca653d607ce). Drivers of physical NICs used eight
/// by default (DEFAULT_MAX_NUM_RSS_QUEUES of the kernel).
pub const USUAL_QUEUES: u32 = 8;
/// MTUs that the kernel accepts for a NIC.
pub const MTUS: std::ops::RangeInclusive<u32> = 68..=65_535;

/// The device that a guest sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum NicModel {
    /// virtio: the fast one, with queues.
    Virtio,
    /// An Intel 82574L, for guests without virtio drivers.
    E1000e,
    /// An Intel 82540EM, for older ones.
    E1000,
    /// An Intel 82576.
    Igb,
    /// A Realtek RTL8139, for the oldest ones.
    Rtl8139,
}

impl NicModel {
    /// Every model.
    pub const ALL: [NicModel; 5] =
        [NicModel::Virtio, NicModel::E1000e, NicModel::E1000, NicModel::Igb, NicModel::Rtl8139];

    /// Returns libvirt's name of the model.
    pub fn word(self) -> &'static str {
        match self {
            NicModel::Virtio => "virtio",
            NicModel::E1000e => "e1000e",
            NicModel::E1000 => "e1000",
            NicModel::Igb => "igb",
            NicModel::Rtl8139 => "rtl8139",
        }
    }
}

/// The settings of a NIC; none for the value of the plan or the document.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NicSettings {
    /// Its MAC address, lower case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// The device that the guest sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<NicModel>,
    /// Its queues, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<u32>,
    /// Its largest packet, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Inbound limit of the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inbound: Option<Rate>,
    /// Outbound limit of the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outbound: Option<Rate>,
    /// The VLAN of its frames, 1 to 4094.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
}

/// Returns a MAC address that two of a guest's NICs are given, virtual functions included; `None`
/// if there is no such.
pub fn mac_twice<'w>(nics: &'w [NicWish], extras: &'w Extras) -> Option<&'w str> {
    let own = nics.iter().filter_map(|nic| nic.settings.mac.as_deref());
    let functions = extras.vf_settings.iter().filter_map(|settings| settings.mac.as_deref());
    let mut seen = BTreeSet::new();
    own.chain(functions).find(|mac| !seen.insert(mac.to_ascii_lowercase()))
}

impl NicSettings {
    /// Whether nothing is set.
    pub fn is_plain(&self) -> bool {
        *self == NicSettings::default()
    }

    /// Whether the guest sees an emulated device instead of virtio, without queues.
    pub fn is_emulated(&self) -> bool {
        self.model.is_some_and(|model| model != NicModel::Virtio)
    }

    /// Returns the command-line keys of the settings that are set.
    pub fn words(&self) -> Vec<&'static str> {
        let set = [
            ("mac=", self.mac.is_some()),
            ("model=", self.model.is_some()),
            ("queues=", self.queues.is_some()),
            ("mtu=", self.mtu.is_some()),
            ("inbound=", self.inbound.is_some()),
            ("outbound=", self.outbound.is_some()),
            ("vlan=", self.vlan.is_some()),
        ];
        set.into_iter().filter_map(|(word, is_set)| is_set.then_some(word)).collect()
    }

    /// Adds them to an interface, except MAC address, model and queues, which also depend on other
    /// settings.
    pub(super) fn onto(&self, mut nic: Fragment) -> Fragment {
        let rates = [("inbound", self.inbound), ("outbound", self.outbound)];
        let rates = rates.into_iter().filter_map(|(name, rate)| Some(rate?.fragment(name)));
        let rates: Vec<Fragment> = rates.collect();
        if !rates.is_empty() {
            nic = nic.child(Fragment::new("bandwidth").children(rates));
        }
        nic.children(self.vlan.map(vlan))
            .children(self.mtu.map(|mtu| Fragment::new("mtu").attr("size", mtu)))
    }
}

/// The hint where more queues are requested than a NIC supports.
pub const QUEUES_HINT: &str = "leave queues= out: it has one for each vCPU then, at most 8";

/// A NIC of a guest on a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NicWish {
    /// libvirt's network.
    pub network: String,
    /// Its settings.
    #[serde(flatten)]
    pub settings: NicSettings,
}

impl NicWish {
    /// Makes the request for a NIC on a network with default settings.
    pub fn on(network: impl Into<String>) -> NicWish {
        NicWish { network: network.into(), settings: NicSettings::default() }
    }

    /// Returns why a guest with this many vCPUs cannot have it, which libvirt would report only at
    /// start; `None` if it can.
    pub fn too_many_queues(&self, vcpus: u32) -> Option<String> {
        let most = vcpus.min(MOST_QUEUES);
        let queues = self.settings.queues.filter(|queues| *queues > most)?;
        let network = &self.network;
        Some(format!(
            "{queues} queues on network `{network}`, and a NIC of {vcpus} vCPUs takes 1 to {most}"
        ))
    }
}

/// Returns the wanted `<vlan>` of an interface in one VLAN.
pub(super) fn vlan(id: u16) -> Fragment {
    let tag = Fragment::new("tag").attr("id", id);
    Fragment::new("vlan").want("trunk", Want::Absent).child(tag).only("tag")
}
