//! What `capacity` takes.

use super::guest::{ShapeArgs, TakenArgs};
use super::heading::DEVICES;
use super::view::ViewArgs;
use clap::Args;

/// Arguments of `capacity`.
#[derive(Debug, Args)]
pub struct CapacityArgs {
    /// Number of GPUs
    ///
    /// Default: every size that the board offers.
    #[arg(long, visible_alias = "gpu-count", value_name = "N", help_heading = DEVICES)]
    pub gpus: Option<u32>,
    /// GPU model, such as H100 or 10de:2330
    ///
    /// Accepts a name, a part of a name, or a device ID.
    #[arg(long, value_name = "NAME", help_heading = DEVICES)]
    pub gpu_model: Option<String>,
    /// What each guest gets with its GPUs.
    #[command(flatten)]
    pub shape: ShapeArgs,
    /// What is taken.
    #[command(flatten)]
    pub taken: TakenArgs,
    /// The picture.
    #[command(flatten)]
    pub view: ViewArgs,
}
