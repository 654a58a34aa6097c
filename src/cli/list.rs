//! `list`: every domain, whoever made it.

use super::args::ListArgs;
use super::context::Context;
use super::error::EXIT_DONE;
use super::names::state;
use super::table::Table;
use crate::domain::view::View;
use gpuvm_ops::domains::{ListedDomain, list};

/// Runs the verb.
pub fn run(args: &ListArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let rows = list(cx, &args.domain_xml)?;
    if cx.output.json {
        cx.output.json_rows("gpuvm-list", &rows)?;
    } else if rows.is_empty() {
        cx.output.progress("no domain is defined");
    } else {
        cx.output.table(&table(&rows))?;
    }
    Ok(EXIT_DONE)
}

/// The rows as a table.
fn table(rows: &[ListedDomain]) -> Table {
    let mut table = Table::new(["NAME", "STATE", "VCPUS", "MEMORY", "GPUS", "PCPUS", "MADE BY"]);
    for ListedDomain { summary, view } in rows {
        let cell = |text: fn(&View) -> String| view.as_ref().map_or("?".to_owned(), text);
        table.push([
            summary.name.clone(),
            state(summary.state).to_owned(),
            cell(|view| view.vcpus.to_string()),
            cell(|view| view.memory_kib.to_string()),
            cell(View::gpu_text),
            cell(|view| if view.pcpus.is_empty() { "any".into() } else { view.pcpus.to_string() }),
            cell(|view| if view.remembered.is_some() { "gpuvm" } else { "other" }.to_owned()),
        ]);
    }
    table
}
