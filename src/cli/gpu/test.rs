//! `gpu test`: tests GPUs between guests.

use crate::cli::args::TestArgs;
use crate::cli::change::manner;
use crate::cli::context::Context;
use crate::cli::error::{EXIT_DONE, EXIT_FAILED, EXIT_FOUND};
use crate::cli::table::Table;
use gpuvm_host::history::gpus::TestVerdict;
use gpuvm_ops::gpu_test::{GpuTestRequest, GpusToTest, TestedGpu, test};
use gpuvm_ops::session::{Manner, Session};

/// Runs the verb.
pub fn run(args: &TestArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("gpu test")?;
    cx.refuse_elsewhere("gpu test")?;
    let gpus =
        if args.pending { GpusToTest::Pending } else { GpusToTest::Named(args.devices.clone()) };
    let mut session = Session::begin(cx, Manner { dry_run: args.dry_run, ..manner(&args.lock) })?;
    let tested = test(&mut session, &GpuTestRequest { gpus, level: args.level })?;
    if args.dry_run {
        return Ok(EXIT_DONE);
    }
    if cx.output.json {
        cx.output.json_rows("gpuvm-gpu-test", &tested)?;
    } else if tested.is_empty() {
        cx.output.progress("no GPU waits for a test");
    } else {
        cx.output.table(&table(&tested))?;
    }
    let has = |verdict| tested.iter().any(|gpu| gpu.verdict == verdict);
    Ok(match () {
        () if has(TestVerdict::Failed) => EXIT_FOUND,
        () if has(TestVerdict::Unknown) => EXIT_FAILED,
        () => EXIT_DONE,
    })
}

fn table(tested: &[TestedGpu]) -> Table {
    let mut table = Table::new(["ADDRESS", "RESULT", "STATE", "WHY"]);
    for gpu in tested {
        let state = match (gpu.excluded, gpu.state) {
            (true, _) => "excluded".to_owned(),
            (false, state) => state.map_or_else(|| "-".to_owned(), |state| state.to_string()),
        };
        let why = if gpu.why.is_empty() { "-".to_owned() } else { gpu.why.join("; ") };
        table.push([gpu.bdf.to_string(), gpu.verdict.to_string(), state, why]);
    }
    table
}
