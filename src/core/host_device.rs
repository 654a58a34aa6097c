//! Devices of the host, other than PCI functions, that a domain has to itself: USB and SCSI
//! devices, SCSI targets of the kernel and mediated devices.

use std::fmt;

/// A device of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostDevice {
    /// A USB device.
    Usb {
        /// Its vendor and product.
        id: Option<(u32, u32)>,
        /// Its bus and its number there.
        place: Option<(u32, u32)>,
    },
    /// A SCSI device: its adapter, bus, target and unit.
    Scsi(String),
    /// A target of the kernel's own, by its name.
    Target(String),
    /// A mediated device, by its UUID.
    Mediated(String),
}

impl HostDevice {
    /// Whether two are, or may be, one device.
    pub fn is(&self, other: &HostDevice) -> bool {
        match (self, other) {
            (
                HostDevice::Usb { id, place },
                HostDevice::Usb { id: other_id, place: other_place },
            ) => {
                let (places, ids) = (place.zip(*other_place), id.zip(*other_id));
                let is_id = ids.is_none_or(|(id, other)| id == other);
                // Without a place it is the one device of its kind.
                is_id && places.map_or(ids.is_some(), |(place, other)| place == other)
            }
            _ => self == other,
        }
    }
}

impl fmt::Display for HostDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostDevice::Usb { id: Some((vendor, product)), .. } => {
                write!(f, "USB device {vendor:04x}:{product:04x}")
            }
            HostDevice::Usb { place: Some((bus, number)), .. } => {
                write!(f, "USB device {number} of bus {bus}")
            }
            HostDevice::Usb { .. } => f.write_str("a USB device"),
            HostDevice::Scsi(name) => write!(f, "SCSI device {name}"),
            HostDevice::Target(name) => write!(f, "SCSI target {name}"),
            HostDevice::Mediated(uuid) => write!(f, "mediated device {uuid}"),
        }
    }
}
