//! `history`.

use super::args::HistoryArgs;
use super::context::Context;
use super::diff::Diff;
use super::error::EXIT_DONE;
use super::table::Table;
use crate::history::Entry;
use gpuvm_ops::domain_history::{change_of, history_of, when};

/// Runs the verb.
pub fn run(args: &HistoryArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_without_guests("history")?;
    let name = &args.name;
    let history = history_of(cx, "history", name)?;
    if let Some(number) = args.diff {
        let (before, after) = change_of(cx, name, &history, number)?;
        Diff::of(name, Some(&before), Some(&after)).print(cx.output)?;
        return Ok(EXIT_DONE);
    }
    let mut all: Vec<Entry> = history.all().cloned().collect();
    all.sort_by_key(|entry| entry.number);
    if cx.output.json {
        cx.output.json_rows("gpuvm-history", &all)?;
    } else if all.is_empty() {
        cx.output.progress(&format!("no change of domain `{name}` is recorded"));
    } else {
        cx.output.table(&table(&all))?;
    }
    Ok(EXIT_DONE)
}

fn table(entries: &[Entry]) -> Table {
    let mut table = Table::new(["NUMBER", "WHEN (UTC)", "VERB", "WHAT"]);
    for entry in entries {
        let (number, mut what) = (entry.number.to_string(), entry.what.join("\n"));
        if let Some(at_s) = entry.undone_at_s {
            what = format!("undone {}: {what}", when(at_s));
        }
        table.push([number, when(entry.at_s), entry.verb.clone(), what]);
    }
    table
}
