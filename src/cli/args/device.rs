//! The verbs on PCI devices and their drivers.

use super::{LockArgs, TakenArgs, about_records};
use crate::bdf::Bdf;
use clap::{Args, Subcommand};
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

/// Is a verb on PCI devices.
#[derive(Debug, Subcommand)]
pub enum DeviceVerb {
    /// List GPUs, NVSwitches, NICs and NVMe drives with their drivers, who holds them, and whether a guest can have them
    ///
    /// RESET is the kernel's methods in the order that it tries them; flr resets the function alone. Processes of other
    /// users are seen by root only.
    #[command(after_help = LIST)]
    #[command(group = about_records())]
    List(DeviceListArgs),
    /// Bind devices to vfio-pci, with what shares their IOMMU group
    ///
    /// `create` does it for the GPUs and NVSwitches of an NVLink board, and libvirt for all others when a guest starts;
    /// this verb is for doing it once, before anything uses them. Refused, with the reason: what holds a mounted drive,
    /// an array, swap or the root, a NIC with a default route or in a bridge or bond, a device of a guest that runs or
    /// with virtual functions, and what shares an IOMMU group with one of these.
    #[command(after_help = BIND)]
    Bind(BindArgs),
    /// Give devices that are bound to vfio-pci back to the host's drivers
    ///
    /// Refused: what a guest that runs has, or another of its IOMMU group, and without --force what a process has open.
    /// Looked at again right before a device is taken from vfio-pci: a guest that was started meanwhile keeps it.
    #[command(after_help = RELEASE)]
    Release(ReleaseArgs),
}

/// Is what `device list` takes.
#[derive(Debug, Args)]
pub struct DeviceListArgs {
    /// Every function but bridges
    #[arg(long)]
    pub all: bool,
    /// What is taken.
    #[command(flatten)]
    pub taken: TakenArgs,
}

/// Is what `device bind` takes.
#[derive(Debug, Args)]
pub struct BindArgs {
    /// PCI addresses
    #[arg(value_name = "BDF", required_unless_present = "early")]
    pub devices: Vec<Bdf>,
    /// Bind them at every boot, too: by files in /etc/modprobe.d and /etc/modules-load.d where all GPUs of an id are meant,
    /// else by a systemd unit
    #[arg(long)]
    pub at_boot: bool,
    /// Take what a process has open, too, or a NIC that only has an address. A driver may never let go of what is open;
    /// then only a reboot helps
    #[arg(long)]
    pub force: bool,
    /// Do not ask before a device is taken from a driver of the host
    #[arg(short, long)]
    pub yes: bool,
    /// Print the steps and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Address and ids, as the unit of --at-boot gives them: binds without asking, without libvirt and without journal
    #[arg(long, hide = true, value_name = "BDF=ID", conflicts_with_all = ["devices", "at_boot", "force", "dry_run"])]
    pub early: Vec<Early>,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Is what `device release` takes.
#[derive(Debug, Args)]
pub struct ReleaseArgs {
    /// PCI addresses
    #[arg(value_name = "BDF", required = true)]
    pub devices: Vec<Bdf>,
    /// Do not bind them at boot any more, either
    #[arg(long)]
    pub at_boot: bool,
    /// Release what a process has open, too, unless it may be a guest's, because libvirt does not answer; vfio-pci lets go of
    /// it when that ends
    #[arg(long)]
    pub force: bool,
    /// Print the steps and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Is a function that is bound at boot, with the ids that it has to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Early {
    /// The function.
    pub bdf: Bdf,
    /// Vendor and device: `10de:1db8`.
    pub id: String,
}

impl FromStr for Early {
    type Err = String;
    fn from_str(text: &str) -> Result<Early, String> {
        let (bdf, id) = text.split_once('=').ok_or("it is not BDF=ID")?;
        let bdf = bdf.parse().map_err(|error: crate::bdf::BdfError| error.to_string())?;
        Ok(Early { bdf, id: id.to_owned() })
    }
}
