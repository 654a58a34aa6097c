//! Numbers of PCI vendors and of the classes of display devices and accelerators.

/// PCI vendor NVIDIA.
pub const VENDOR_NVIDIA: u16 = 0x10de;
/// PCI vendor Mellanox.
pub const VENDOR_MELLANOX: u16 = 0x15b3;
/// PCI vendor AMD, graphics (formerly ATI).
pub(crate) const VENDOR_ATI: u16 = 0x1002;
/// PCI vendor AMD, processors and their parts.
pub(super) const VENDOR_AMD: u16 = 0x1022;
pub(super) const VENDOR_INTEL: u16 = 0x8086;
pub(super) const VENDOR_HABANA: u16 = 0x1da3;
pub(super) const VENDOR_QUALCOMM: u16 = 0x17cb;

/// Class "VGA compatible controller"; all classes from the PCI ID list.
pub(super) const VGA: u32 = 0x0300;
/// Class "3D controller".
pub(super) const THREE_D: u32 = 0x0302;
pub(super) const DISPLAY: u32 = 0x0380;
pub(super) const PROCESSING: u32 = 0x1200;
