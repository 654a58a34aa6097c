//! What `capacity` takes.

use super::guest::{ShapeArgs, TakenArgs};
use clap::Args;

/// Is what `capacity` takes.
#[derive(Debug, Args)]
pub struct CapacityArgs {
    /// Only guests with so many GPUs; default: every size that the board offers
    #[arg(long, visible_alias = "gpu-count", value_name = "N")]
    pub gpus: Option<u32>,
    /// What each guest gets with its GPUs.
    #[command(flatten)]
    pub shape: ShapeArgs,
    /// What is taken.
    #[command(flatten)]
    pub taken: TakenArgs,
}
