//! Devices with their place in the guest: the content of each edit, as data.

use super::guest::Disk;
use super::nic_request::NicSettings;
use super::pci::PciAddress;
use crate::bdf::Bdf;
use serde::Serialize;
use std::ops::Range;

/// A disk with its place in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiskSeat {
    /// The disk.
    pub disk: Disk,
    /// Name that libvirt knows it by: `vda`.
    pub target: String,
    /// Queues; 1 is not written.
    pub queues: u32,
    /// The I/O threads that serve it; none where the guest has none.
    pub iothreads: Vec<IoThread>,
    /// Its address, where the edit sets one.
    pub address: Option<PciAddress>,
}

/// An I/O thread with its part of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IoThread {
    /// Its number, from 1.
    pub id: u32,
    /// The queues that it serves.
    pub queues: Range<u32>,
}

/// A NIC with its place in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NicSeat {
    /// Place among the document's interfaces, from 0; behind the last: a new one.
    pub nth: usize,
    /// libvirt network; `None` for that of the document.
    pub network: Option<String>,
    /// MAC address; `None` for that of the document.
    pub mac: Option<String>,
    /// Whether it is virtio and its packets are moved by the kernel or by QEMU, so that queues can
    /// be set.
    pub queues: Option<u32>,
    /// Whether the host's kernel moves its packets (vhost).
    pub vhost: bool,
    /// Whether its network hands out virtual functions, so that it has neither model nor driver.
    pub is_vf: bool,
    /// The admin's settings for it.
    #[serde(skip_serializing_if = "NicSettings::is_plain")]
    pub settings: NicSettings,
    /// Its address, where the edit sets one.
    pub address: Option<PciAddress>,
}

/// A passed-through function with its place in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostdevSeat {
    /// Its address on the host.
    pub bdf: Bdf,
    /// Name for `virsh` and overrides, with libvirt's prefix for users' names: `ua-gpu0`.
    pub alias: String,
    /// Whether libvirt rebinds it to vfio-pci and back.
    pub managed: bool,
    /// The name of its element, where the document has it and only its name and its place are set;
    /// `None` if it is all set.
    pub kept: Option<&'static str>,
    /// Whether it says for itself that it is passed through by iommufd, or not; `None` if that is
    /// left to the domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iommufd: Option<bool>,
    /// Its settings as a NIC, if its card configures them; `None` if it is passed through like any
    /// function.
    pub nic: Option<VfNic>,
    /// Empty cells of the guest that it is a generic initiator of; `None` if it is a function
    /// without coherent memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cells: Option<Range<u32>>,
    /// Its address in the guest.
    pub address: PciAddress,
}

/// A virtual function as a NIC of the guest: the settings that libvirt makes on its card at each
/// start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VfNic {
    /// Its MAC address.
    pub mac: String,
    /// The VLAN of its frames.
    pub vlan: Option<u16>,
}

/// A device of the document that has no name of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DevicePlace {
    /// The element's name.
    pub name: &'static str,
    /// Place among the document's devices of that name, from 0.
    pub nth: usize,
}
