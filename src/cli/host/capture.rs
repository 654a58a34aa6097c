//! `host capture`: records this machine in a file for `--host`. The file is written completely or
//! not at all.

use crate::cli::args::CaptureArgs;
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::topology::file::to_json;
use gpuvm_ops::capture::{Capture, capture};
use gpuvm_ops::files::write;
use std::path::Path;

/// Runs the verb.
pub fn run(args: &CaptureArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let wanted = Capture { identify: args.identify, topo: args.topo.clone() };
    let topology = capture(cx, &wanted)?;
    let text = to_json(&topology);
    if args.file == Path::new("-") {
        cx.output.json_text(&text)?;
    } else {
        write(&args.file, args.overwrite, text.as_bytes())?;
        let parts = topology.parts();
        let (pcpus, functions) = (topology.pcpus().len(), parts.devices.len());
        let file = args.file.display();
        cx.output.progress(&format!("{file}: {pcpus} pcpus, {functions} PCI functions"));
    }
    for note in topology.parts().notes.iter().chain(&topology.fabric().links_unread) {
        cx.output.warning(note);
    }
    Ok(EXIT_DONE)
}
