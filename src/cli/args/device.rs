//! The verbs on PCI devices and their drivers.

use super::heading::BEHAVIOUR;
use super::late::Late;
use super::{HeldArgs, LockArgs, about_records};
use crate::bdf::Bdf;
use clap::{Args, Subcommand};
use gpuvm_core::topology::DeviceIdentity;
use std::str::FromStr;

/// Examples of `list`.
const LIST: &str = "Examples:
  gpuvm device list
  gpuvm device list --all --json
  gpuvm device list --host topologies/dgx-2.json";
/// Examples of `bind`.
const BIND: &str = "Examples:
  gpuvm device bind 34:00.0 36:00.0 --dry-run
  gpuvm device bind 34:00.0 36:00.0 --yes --at-boot";
/// Examples of `release`.
const RELEASE: &str = "Examples:
  gpuvm device release 34:00.0
  gpuvm device release 34:00.0 --at-boot";

/// A verb on PCI devices.
#[derive(Debug, Subcommand)]
pub enum DeviceVerb {
    /// List GPUs, NVSwitches, NICs and NVMe drives and their users
    ///
    /// With driver, holder, and whether they can be passed through. RESET lists the kernel's reset
    /// methods in the order in which it tries them; flr resets the function alone. Only root sees
    /// the processes of other users.
    #[command(after_long_help = LIST, alias = "ls")]
    #[command(group = about_records())]
    List(Late<DeviceListArgs>),
    /// Bind devices and their IOMMU groups to vfio-pci
    ///
    /// Not needed before `create`, which binds the GPUs and NVSwitches of an NVLink board; libvirt
    /// binds all others when a guest starts. Useful once after boot, before a driver uses the
    /// devices. Refused, with the reason: a drive that is mounted or holds an array, swap or the
    /// root; a NIC with a default route or in a bridge or bond; a device of a running guest or with
    /// virtual functions; and devices that share an IOMMU group with one of these.
    #[command(after_long_help = BIND)]
    Bind(Late<BindArgs>),
    /// Return devices from vfio-pci to the host's drivers
    ///
    /// Refused for devices of running guests and their IOMMU groups and, without --force, for
    /// devices that a process has open. Checked again right before a device is taken from vfio-pci:
    /// a guest that was started meanwhile keeps it.
    #[command(after_long_help = RELEASE)]
    Release(Late<ReleaseArgs>),
}

/// Arguments of `device list`.
#[derive(Debug, Args)]
pub struct DeviceListArgs {
    /// List every PCI function except bridges
    #[arg(long)]
    pub all: bool,
    /// The occupancy.
    #[command(flatten)]
    pub held: HeldArgs,
}

/// Arguments of `device bind`.
#[derive(Debug, Args)]
pub struct BindArgs {
    /// PCI addresses
    #[arg(value_name = "BDF", required_unless_present = "early")]
    pub devices: Vec<Bdf>,
    /// Apply at every boot as well
    ///
    /// By files in /etc/modprobe.d and /etc/modules-load.d if all GPUs with a device ID are bound,
    /// else by a systemd unit. With initramfs-tools (Debian, Ubuntu) a script in the initramfs also
    /// reserves them for vfio-pci before any driver in it is loaded. A drive or a NIC is bound by
    /// the unit alone, after it has reported its recorded serial number or MAC address.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub at_boot: bool,
    /// Update the initramfs of every kernel
    ///
    /// It contains copies of what --at-boot writes. Without this option the command is printed.
    #[arg(long, requires = "at_boot", help_heading = BEHAVIOUR)]
    pub initramfs: bool,
    /// Bind devices that are in use
    ///
    /// Devices that a process has open, and NICs that have an address. A driver may never release
    /// an open device; then only a reboot helps.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub force: bool,
    /// Do not ask for confirmation
    ///
    /// Before devices are taken from the host's drivers.
    #[arg(short, long, help_heading = BEHAVIOUR)]
    pub yes: bool,
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// Address and identity, as the unit of --at-boot gives them: binds without asking, without
    /// libvirt and without journal
    #[arg(long, hide = true, value_name = "BDF=ID", conflicts_with_all = ["devices", "at_boot", "force", "dry_run"])]
    pub early: Vec<Early>,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Arguments of `device release`.
#[derive(Debug, Args)]
pub struct ReleaseArgs {
    /// PCI addresses
    #[arg(value_name = "BDF", required = true)]
    pub devices: Vec<Bdf>,
    /// Apply at every boot as well
    ///
    /// Stops binding them at boot.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub at_boot: bool,
    /// Update the initramfs of every kernel
    ///
    /// It contains copies of what --at-boot wrote. Without this option the command is printed.
    #[arg(long, requires = "at_boot", help_heading = BEHAVIOUR)]
    pub initramfs: bool,
    /// Release devices that a process has open
    ///
    /// vfio-pci lets go of them when the process ends. Devices that may belong to a guest, because
    /// libvirt does not answer, are not released.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub force: bool,
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// A function that is bound at boot, with the identity that it must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Early {
    /// The function.
    pub bdf: Bdf,
    /// Ids and marks: `10de:1db8`, `144d:a80a:144d:a801=serial:S6XNNA0T`.
    pub identity: DeviceIdentity,
}

impl FromStr for Early {
    type Err = String;
    fn from_str(text: &str) -> Result<Early, String> {
        let (bdf, id) = text.split_once('=').ok_or("it is not BDF=ID")?;
        let bdf = bdf.parse().map_err(|error: crate::bdf::BdfError| error.to_string())?;
        Ok(Early { bdf, identity: id.parse()? })
    }
}
