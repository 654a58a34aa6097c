//! The verbs on network cards and their virtual functions.

use super::heading::BEHAVIOUR;
use super::late::Late;
use super::{LockArgs, TakenArgs, about_records};
use crate::apply::nic::boot::AtBoot;
use crate::bdf::Bdf;
use crate::network::Card;
use clap::{Args, Subcommand};

/// Examples of `list`.
const LIST: &str = "Examples:
  gpuvm nic list
  gpuvm nic list --json
  gpuvm nic list --host topologies/dgx-2.json";
/// Examples of `vfs`.
const VFS: &str = "Examples:
  gpuvm nic vfs enp134s0f0 --count 16 --dry-run
  gpuvm nic vfs 86:00.0 --count 16 --at-boot
  gpuvm nic vfs 86:00.0 --count 0 --at-boot --yes";

/// A verb on network cards.
#[derive(Debug, Subcommand)]
pub enum NicVerb {
    /// List NICs, their links, nearby GPUs and virtual functions
    ///
    /// One line for each physical function (PF), with its driver, the GPUs below the same PCIe
    /// switch, and the holders of its virtual functions. UP: its network device is up and has a
    /// link.
    #[command(after_long_help = LIST, alias = "ls")]
    #[command(group = about_records())]
    List(Late<NicListArgs>),
    /// Set the number of virtual functions (VFs) of a NIC
    ///
    /// The kernel accepts a new number only if there are no VFs, so all of them are removed first.
    /// Refused while a running guest or the host uses one, also if that changed while gpuvm asked
    /// or waited. Does nothing if the number is already set. Brings the NIC's network device up,
    /// without which no VF has a link.
    ///
    /// Keeps the host's drivers off the new VFs (sriov_drivers_autoprobe): else each would become a
    /// network device of the host, which its network service configures and which every start of a
    /// guest has to take away. Needs kernel 5.3; before, such VFs would get no driver at all.
    /// --count 0 restores the kernel's own setting.
    #[command(after_long_help = VFS)]
    Vfs(Late<VfsArgs>),
}

/// Arguments of `nic list`.
#[derive(Debug, Args)]
pub struct NicListArgs {
    /// The occupancy.
    #[command(flatten)]
    pub taken: TakenArgs,
}

/// Arguments of `nic vfs`.
#[derive(Debug, Args)]
pub struct VfsArgs {
    /// PCI address or network device of the NIC
    #[arg(value_name = "PF", required = true)]
    pub pf: Option<Card>,
    /// Number of VFs
    #[arg(long, value_name = "N", required = true)]
    pub count: Option<u32>,
    /// Apply at every boot as well
    ///
    /// By a systemd unit, which --count 0 removes.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub at_boot: bool,
    /// Bind the new VFs to the host's drivers
    ///
    /// For use on the host.
    #[arg(long)]
    pub host_drivers: bool,
    /// Do not ask for confirmation
    ///
    /// Before existing VFs are removed.
    #[arg(short, long, help_heading = BEHAVIOUR)]
    pub yes: bool,
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// Address, ids and number, as the unit of --at-boot gives them: sets without asking, without
    /// libvirt and without journal
    #[arg(long, hide = true, value_name = "BDF=ID=N", value_parser = early, conflicts_with_all = ["pf", "count", "at_boot", "host_drivers", "dry_run"])]
    pub early: Vec<(Bdf, AtBoot)>,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Reads a card that gets its virtual functions at boot.
fn early(text: &str) -> Result<(Bdf, AtBoot), &'static str> {
    AtBoot::parse(text).ok_or("it is not BDF=ID=N")
}
