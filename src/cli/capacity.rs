//! `capacity`: what still fits, what prevents more, and what would free it. Changes nothing.

mod text;

use super::args::{CapacityArgs, GpuArgs, request};
use super::context::Context;
use super::error::EXIT_DONE;
use gpuvm_ops::capacity::{CapacityRequest, Fits, capacity};

/// Runs the verb.
pub fn run(args: &CapacityArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    // One GPU, so that options about devices near GPUs are meaningful; each size replaces it.
    let gpu_model = args.gpu_model.clone();
    let gpus = GpuArgs { gpus: Some(1), gpu_model, ..GpuArgs::default() };
    let wanted = CapacityRequest {
        like: request(&gpus, &args.shape)?,
        sizes: args.gpus.into_iter().collect(),
        taken: (&args.taken).into(),
    };
    let Fits { capacity, is_empty, no_gpus } = capacity(cx, &wanted)?;
    for warning in &capacity.warnings {
        cx.output.warning(warning);
    }
    if cx.output.json {
        cx.output.json("gpuvm-capacity", &capacity)?;
        return Ok(EXIT_DONE);
    }
    if !capacity.sizes.is_empty() {
        cx.output.table(&text::table(&capacity, is_empty))?;
    }
    let rest = text::text(&capacity, &no_gpus);
    if !rest.is_empty() {
        cx.output.text(&rest)?;
    }
    Ok(EXIT_DONE)
}
