//! The arguments of `capacity`.

use super::guest::{ShapeArgs, TakenArgs};
use super::heading::{BEHAVIOUR, DEVICES, PLACEMENT};
use super::values::number;
use super::view::ViewArgs;
use crate::request::VgpuWish;
use clap::{Args, ValueHint};
use gpuvm_core::versions::Stack;
use std::path::PathBuf;

/// Arguments of `capacity`.
#[derive(Debug, Args)]
pub struct CapacityArgs {
    /// Number of GPUs
    ///
    /// Default: every size that the board offers.
    #[arg(long, visible_alias = "gpu-count", value_name = "N", help_heading = DEVICES)]
    #[arg(value_parser = number)]
    pub gpus: Option<u32>,
    /// GPU model, such as H100 or 10de:2330
    ///
    /// Accepts a name, a part of a name, or a device ID.
    #[arg(long, value_name = "NAME", help_heading = DEVICES)]
    pub gpu_model: Option<String>,
    /// Give it vGPUs of this type: shares of a GPU
    ///
    /// Counts guests with vGPUs, not with whole GPUs; count=N: each with N of them. Without it, each
    /// type is listed with the number of vGPUs that can be created now.
    #[arg(long, value_name = "TYPE[,KEY=VALUE]", help_heading = DEVICES)]
    #[arg(conflicts_with_all = ["gpus", "gpu_model"])]
    pub vgpu: Option<VgpuWish>,
    /// The resources of each guest with its GPUs.
    #[command(flatten)]
    pub shape: ShapeArgs,
    /// The occupancy.
    #[command(flatten)]
    pub taken: TakenArgs,
    /// libvirt and QEMU of the recorded host
    ///
    /// Requires --host. Such as libvirt=12.9,qemu=11.1: they decide whether functions can be passed
    /// through by iommufd. Default: those of the record; a record without them is taken to have
    /// those of Debian 13.
    #[arg(long, value_name = "VERSIONS", help_heading = PLACEMENT, hide_short_help = true)]
    pub assume: Option<Stack>,
    /// Write Prometheus metrics to FILE
    ///
    /// Instead of the table; `-`: to standard output. What fits, who holds which GPU, NVLink
    /// partitions in use, pcpus and huge pages, for the node exporter's textfile collector, which
    /// reads names that end in .prom. The file is replaced atomically, if gpuvm made it.
    /// gpuvm-tuning(7) lists the metrics.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = BEHAVIOUR)]
    #[arg(hide_short_help = true)]
    pub metrics: Option<PathBuf>,
    /// The picture.
    #[command(flatten)]
    pub view: ViewArgs,
}
