//! `history`.

use super::args::HistoryArgs;
use super::context::Context;
use super::diff::Diff;
use super::error::{EXIT_DONE, usage};
use super::table::Table;
use crate::history::{Entry, History};
use crate::hypervisor::XmlOf;
use crate::shell::word;
use gpuvm_ops::domain_history::{refuse_elsewhere, when};
use gpuvm_ops::guest::find;

/// Runs the verb.
pub fn run(args: &HistoryArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_without_guests("history")?;
    let hypervisor = cx.hypervisor()?;
    refuse_elsewhere("history", &args.name, &*hypervisor)?;
    let history = History::of(&find(&*hypervisor, &args.name)?.uuid)?;
    if let Some(number) = args.diff {
        let entry = chosen(&history, number, &args.name)?;
        let after = match &entry.after {
            Some(after) => after.clone(),
            None => hypervisor.xml(&args.name, XmlOf::Inactive)?,
        };
        Diff::of(&args.name, Some(&entry.before), Some(&after)).print(cx.output)?;
    } else if cx.output.json {
        cx.output.json_rows("gpuvm-history", &history.entries)?;
    } else if history.entries.is_empty() {
        cx.output.progress(&format!("nothing was changed of domain `{}`", args.name));
    } else {
        cx.output.table(&table(&history.entries))?;
    }
    Ok(EXIT_DONE)
}

/// The change of a number, or the last one.
fn chosen<'a>(history: &'a History, number: Option<u32>, name: &str) -> anyhow::Result<&'a Entry> {
    let last = history.entries.last();
    let found = match number {
        None => last,
        Some(number) => history.entries.iter().find(|entry| entry.number == number),
    };
    found.ok_or_else(|| {
        let which = number.map_or("no change".to_owned(), |number| format!("no change {number}"));
        let hint = format!("`gpuvm history {name}` lists what there is", name = word(name));
        usage(format!("domain `{name}` has {which} to show"), hint)
    })
}

/// The changes as a table.
fn table(entries: &[Entry]) -> Table {
    let mut table = Table::new(["NUMBER", "WHEN (UTC)", "VERB", "WHAT"]);
    for entry in entries {
        let (number, what) = (entry.number.to_string(), entry.what.join("\n"));
        table.push([number, when(entry.at_s), entry.verb.clone(), what]);
    }
    table
}
