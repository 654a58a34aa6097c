//! `host modules`: the module id of each GPU on its board, and the file that keeps it for GPUs no
//! longer bound to the NVIDIA driver. Published ids of a product are shown but never written.

use crate::cli::args::ModulesArgs;
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::cli::table::Table;
use gpuvm_ops::modules::{ModuleOfGpu, modules};

/// Runs the verb.
pub fn run(args: &ModulesArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    if args.write {
        cx.refuse_recorded("host modules --write")?;
        cx.refuse_elsewhere("host modules --write")?;
    }
    let known = modules(cx)?;
    let rows = &known.rows;
    if cx.output.json {
        cx.output.json_rows("gpuvm-host-modules", rows)?;
    } else {
        if rows.is_empty() {
            cx.output.text("no GPU on this host")?
        } else {
            cx.output.table(&table(rows))?
        }
    }
    for note in &known.notes {
        cx.output.warning(note);
    }
    if args.write {
        known.write(cx, args.dry_run)?;
    }
    Ok(EXIT_DONE)
}

fn table(rows: &[ModuleOfGpu]) -> Table {
    let head = ["GPU", "address", "module", "known by"].map(ToOwned::to_owned).to_vec();
    let cells = |row: &ModuleOfGpu| {
        let module = row.module.map_or("-".into(), |id| id.to_string());
        vec![row.gpu.to_string(), row.bdf.to_string(), module, row.by.clone().unwrap_or("-".into())]
    };
    let rows = std::iter::once(head).chain(rows.iter().map(cells)).collect();
    Table::of(rows)
}
