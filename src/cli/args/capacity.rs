//! What `capacity` takes.

use super::guest::{ShapeArgs, TakenArgs};
use clap::Args;

/// Is what `capacity` takes.
#[derive(Debug, Args)]
pub struct CapacityArgs {
    /// Only guests with so many GPUs; default: every size that the board offers
    #[arg(long, visible_alias = "gpu-count", value_name = "N")]
    pub gpus: Option<u32>,
    /// Only GPUs of this model: a name, a part of it, or a device id
    #[arg(long, value_name = "NAME")]
    pub gpu_model: Option<String>,
    /// What each guest gets with its GPUs.
    #[command(flatten)]
    pub shape: ShapeArgs,
    /// What is taken.
    #[command(flatten)]
    pub taken: TakenArgs,
}
