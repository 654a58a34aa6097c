//! `nccl`.

use super::args::NcclArgs;
use super::context::Context;
use super::error::EXIT_DONE;
use gpuvm_ops::nccl::nccl;
use gpuvm_ops::source::Source;

/// Runs the verb.
pub fn run(args: &NcclArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let told = nccl(cx, &Source::guess(&args.target))?;
    if cx.output.json {
        cx.output.json("gpuvm-nccl", &told)?;
        return Ok(EXIT_DONE);
    }
    for note in &told.notes {
        match note.compromise {
            true => cx.output.warning(&note.says),
            false => cx.output.progress(&format!("note: {}", note.says)),
        }
    }
    cx.output.document(&told.file)?;
    Ok(EXIT_DONE)
}
