//! The verbs that Slurm runs.

use super::LockArgs;
use super::heading::{BEHAVIOUR, DEVICES, GUEST, PLACEMENT};
use super::late::Late;
use crate::image::ImageName;
use crate::memsize::MemSize;
use clap::{Args, Subcommand, ValueHint};
use gpuvm_core::versions::Stack;
use std::ffi::OsString;
use std::path::PathBuf;

/// Examples of `conf`.
const CONF: &str = "Examples:
  gpuvm slurm conf
  gpuvm slurm conf --host dgx-2.json --node-name dgx01 --json
  gpuvm slurm conf --files";
/// Examples of `prolog`.
const PROLOG: &str = "Examples:
  gpuvm slurm prolog -- --image debian-12 --network default
  gpuvm slurm prolog --job-image noble --max-job-vcpus 32 -- --image debian-12
  gpuvm slurm prolog --gres gpu -- --template /etc/gpuvm/job.xml --no-wait";
/// Examples of `epilog`.
const EPILOG: &str = "Examples:
  gpuvm slurm epilog";
/// Examples of `reconcile`.
const RECONCILE: &str = "Examples:
  gpuvm slurm reconcile --dry-run
  gpuvm slurm reconcile";

/// A verb that Slurm runs.
#[derive(Debug, Subcommand)]
pub enum SlurmVerb {
    /// Print the lines of gres.conf and slurm.conf for this node
    ///
    /// Slurm counts the GPUs of guests as GRES `gpuvm`, and gpuvm chooses which GPUs a guest gets.
    /// With --files Slurm chooses them itself: as GRES `gpu`, by device files, cores and links.
    #[command(after_long_help = CONF)]
    Conf(Late<SlurmConfArgs>),
    /// Create the guest of a job that begins on this node
    ///
    /// Run by slurmd as its Prolog, as root. A job with --gres=gpuvm:N gets a guest slurm-JOBID
    /// with N GPUs on each of its nodes; a job without gets none. The job's comment may name the
    /// guest's image, vCPUs and memory (image=NAME vcpus=N memory=SIZE) within the limits of the
    /// options below, and the public keys of the job's user may log in to a guest that boots from
    /// an image. The options of `gpuvm create`
    /// after `--` are those of all guests.
    ///
    /// If the guest is refused, the job is cancelled, with the reason as its AdminComment, and the
    /// node stays in service. Exits with 1, for which Slurm drains the node and requeues the job,
    /// if the machine fails: libvirt or Slurm does not answer, a change is unfinished, or a step
    /// fails.
    #[command(after_long_help = PROLOG)]
    Prolog(Late<SlurmPrologArgs>),
    /// Delete the guest of a job that has ended on this node
    ///
    /// Run by slurmd as its Epilog, as root. Deletes guests that were created for this job, as
    /// recorded by UUID, with the disks that were made for them; another domain of that name stays.
    /// Slurm is not asked.
    #[command(after_long_help = EPILOG)]
    Epilog(Late<SlurmEpilogArgs>),
    /// Delete guests whose jobs are gone
    ///
    /// For HealthCheckProgram: after slurmd, or the machine, has ended in the middle of a job.
    /// First finishes or undoes what an interrupted prolog or epilog has left. Deletes nothing if
    /// Slurm does not answer, nor a guest whose prolog or epilog runs.
    #[command(after_long_help = RECONCILE)]
    Reconcile(Late<SlurmReconcileArgs>),
}

/// How Slurm is reached.
#[derive(Debug, Clone, Args)]
pub struct SlurmArgs {
    /// Directory of Slurm's programs
    ///
    /// Of squeue, scontrol and scancel. Default: those of the system. SLURM_CONF names another
    /// configuration.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    #[arg(help_heading = BEHAVIOUR, hide_short_help = true)]
    pub programs: Option<PathBuf>,
}

/// Arguments of `slurm conf`.
#[derive(Debug, Args)]
pub struct SlurmConfArgs {
    /// Node name in Slurm
    ///
    /// Default: the host name up to its first dot; of a record, the name of its file.
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// Let Slurm choose the GPUs, by device files
    ///
    /// The files exist while the GPUs are bound to vfio-pci: `gpuvm device bind --at-boot`.
    #[arg(long)]
    pub files: bool,
    /// Give it vGPUs of this type: shares of a GPU
    ///
    /// Counts vGPUs instead of whole GPUs: as many as the GPUs have that offer it now. A job requests them by the type's word in the
    /// GRES, such as --gres=gpuvm:h200x_18c:1.
    #[arg(long, value_name = "TYPE", conflicts_with = "files")]
    #[arg(help_heading = DEVICES)]
    pub vgpu: Option<String>,
    /// Reserve N cores of each node for the host
    ///
    /// The first cores of every NUMA node become Slurm's CpuSpecList. The prolog takes it, too:
    /// `gpuvm slurm prolog -- --reserve-cores N`. Default: 0.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    #[arg(help_heading = PLACEMENT)]
    pub reserve_cores: u32,
    /// Reserve this much memory of each node for the host
    ///
    /// Its sum becomes Slurm's MemSpecLimit.
    #[arg(long, value_name = "SIZE", help_heading = PLACEMENT, hide_short_help = true)]
    pub reserve_memory: Option<MemSize>,
    /// libvirt and QEMU of the recorded host
    ///
    /// Requires --host. Such as libvirt=12.9,qemu=11.1: GPUs with coherent memory depend on them.
    /// Default: those of the record; a record without them is taken to have those of Debian 13.
    #[arg(long, value_name = "VERSIONS", help_heading = PLACEMENT, hide_short_help = true)]
    pub assume: Option<Stack>,
}

/// Reads the name of a GRES, without a type or a number.
fn gres(text: &str) -> Result<String, String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if text.is_empty() || !text.chars().all(is_name) {
        return Err("the name alone is needed, such as gpu or gpuvm".into());
    }
    Ok(text.into())
}

/// Arguments of `slurm prolog`.
#[derive(Debug, Args)]
pub struct SlurmPrologArgs {
    /// GRES of the GPUs of guests
    ///
    /// gpu for a node with the lines of `slurm conf --files`.
    #[arg(long, value_name = "NAME", default_value = gpuvm_core::slurm::GRES, value_parser = gres)]
    pub gres: String,
    /// Most vCPUs that a job may request
    ///
    /// In any case at most the CPUs that Slurm allotted to the job on the node, or the vCPUs that
    /// its guest gets without a comment: those after `--`, otherwise its GPUs' share of the host.
    #[arg(long, value_name = "N", help_heading = GUEST)]
    pub max_job_vcpus: Option<u32>,
    /// Most memory that a job may request
    ///
    /// In any case at most the memory that Slurm allotted to the job on the node, or what its guest
    /// gets without a comment.
    #[arg(long, value_name = "SIZE", help_heading = GUEST)]
    pub max_job_memory: Option<MemSize>,
    /// Image that a job may choose; repeatable
    ///
    /// In its comment, besides the image after `--`. Without this option it can choose no other.
    /// Separate several by commas.
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = GUEST)]
    pub job_image: Vec<ImageName>,
    /// Slurm.
    #[command(flatten)]
    pub slurm: SlurmArgs,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
    /// Options of `gpuvm create` for all guests
    #[arg(value_name = "CREATE OPTIONS", last = true)]
    pub create: Vec<OsString>,
}

/// Arguments of `slurm epilog`.
#[derive(Debug, Args)]
pub struct SlurmEpilogArgs {
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Arguments of `slurm reconcile`.
#[derive(Debug, Args)]
pub struct SlurmReconcileArgs {
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// Slurm.
    #[command(flatten)]
    pub slurm: SlurmArgs,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}
