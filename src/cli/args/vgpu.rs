//! The verbs on shares of GPUs.

use super::heading::BEHAVIOUR;
use super::late::Late;
use super::{HeldArgs, LockArgs, about_records};
use crate::bdf::Bdf;
use clap::{Args, Subcommand};

/// Examples of `list`.
const LIST: &str = "Examples:
  gpuvm vgpu list
  gpuvm vgpu list --host my-host.json --json";

/// Examples of `vfs`.
const VFS: &str = "Examples:
  gpuvm vgpu vfs 3b:00.0 --on --dry-run
  gpuvm vgpu vfs 3b:00.0 --on --at-boot
  gpuvm vgpu vfs 3b:00.0 --off --at-boot";

/// A verb on vGPUs.
#[derive(Debug, Subcommand)]
pub enum VgpuVerb {
    /// List vGPU types, creatable vGPUs, and holders
    ///
    /// For each GPU that its driver shares: the interface (mdev: mediated devices, vfio: virtual
    /// functions on the vendor's VFIO driver), its types with the number that the driver can create now, and
    /// the vGPUs that exist with the domains that have them. CREATABLE: how many more fit, judged
    /// by frame buffer size and free virtual functions. MIG-backed types are also limited by their
    /// GPU instances if NVML reports them. A vGPU that no domain has is never cleared by gpuvm.
    #[command(after_long_help = LIST, alias = "ls")]
    #[command(group = about_records())]
    List(Late<HeldArgs>),
    /// Enable or disable the virtual functions (VFs) of a GPU
    ///
    /// Runs NVIDIA's sriov-manage, which takes the GPU from its driver for a moment and can leave it
    /// without. Then the driver is bound again, and the script run again after 30 s, three times at
    /// most. Waits until each VF offers vGPU types. Refused while a guest has the GPU or one of its
    /// VFs, and while a VF has a vGPU type, also with an unknown holder.
    #[command(after_long_help = VFS, override_usage = "gpuvm vgpu vfs [OPTIONS] <--on|--off> <PF>")]
    Vfs(Late<VgpuVfsArgs>),
}

/// Arguments of `vgpu vfs`.
#[derive(Debug, Args)]
pub struct VgpuVfsArgs {
    /// PCI address of the GPU
    #[arg(value_name = "PF", required = true)]
    pub pf: Option<Bdf>,
    /// Enable its VFs
    #[arg(long)]
    pub on: bool,
    /// Disable its VFs
    #[arg(long, conflicts_with = "on")]
    pub off: bool,
    /// Apply at every boot as well
    ///
    /// By a systemd unit that runs after NVIDIA's vGPU daemons and before libvirt. `--off
    /// --at-boot` removes the GPU from it.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub at_boot: bool,
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// Address of a GPU, as the unit of --at-boot gives it: enables without libvirt and without
    /// journal
    #[arg(long, hide = true, value_name = "BDF", conflicts_with_all = ["pf", "on", "off", "at_boot", "dry_run"])]
    pub early: Vec<Bdf>,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}
