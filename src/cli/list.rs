//! `list`: every domain, whoever made it.

use super::args::ListArgs;
use super::context::Context;
use super::error::EXIT_DONE;
use super::names::state;
use super::table::Table;
use crate::domain::view::View;
use crate::words::count;
use gpuvm_ops::domains::{ListedDomain, Verdict, list};

/// Runs the verb.
pub fn run(args: &ListArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let rows = list(cx, &args.domain_xml, args.long)?;
    if cx.output.json {
        cx.output.json_rows("gpuvm-list", &rows)?;
    } else if rows.is_empty() {
        cx.output.progress("no domain is defined");
    } else {
        cx.output.table(&table(&rows, args.long))?;
    }
    Ok(EXIT_DONE)
}

/// The rows as a table; `long`: with slower columns.
fn table(rows: &[ListedDomain], long: bool) -> Table {
    let more: &[&str] = if long { &["STARTS", "UPTIME", "VERIFY"] } else { &[] };
    let usual = ["NAME", "STATE", "VCPUS", "MEMORY", "GPUS", "ADDRESS"];
    let heads = usual.iter().chain(more).chain(&["PCPUS", "MADE BY"]);
    let mut table = Table::new(heads.copied());
    for row in rows {
        let cell = |text: fn(&View) -> String| row.view.as_ref().map_or("?".to_owned(), text);
        let mut cells = vec![
            row.summary.name.clone(),
            state(row.summary.state).to_owned(),
            cell(View::vcpu_text),
            cell(|view| view.memory_kib.to_string()),
            cell(View::gpu_text),
            row.address.map_or("-".to_owned(), |ip| ip.to_string()),
        ];
        if long {
            let starts = |on| if on { "with host" } else { "by hand" };
            cells.push(row.autostart.map_or("-", starts).to_owned());
            cells.push(row.uptime_s.map_or("-".to_owned(), uptime));
            cells.push(row.verify.map_or("-".to_owned(), verdict));
        }
        cells.push(cell(
            |view| if view.pcpus.is_empty() { "any".into() } else { view.pcpus.to_string() },
        ));
        let is_ours = |view: &View| if view.remembered.is_some() { "gpuvm" } else { "other" };
        cells.push(row.view.as_ref().map_or("?", is_ours).to_owned());
        table.push(cells);
    }
    table
}

/// A time in its two largest units.
fn uptime(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, ..) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

/// The findings of `verify`, in words.
fn verdict(found: Verdict) -> String {
    match found {
        Verdict { errors: 0, warnings: 0 } => "ok".to_owned(),
        Verdict { errors: 0, warnings } => count(warnings, "warning"),
        Verdict { errors, .. } => count(errors, "error"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_verdicts_are_short() {
        assert_eq!([59, 60, 3661, 90_000].map(uptime), ["59 s", "1 min", "1 h 1 min", "1 d 1 h"]);
        let found = |errors, warnings| verdict(Verdict { errors, warnings });
        assert_eq!([found(0, 0), found(0, 1), found(2, 1)], ["ok", "1 warning", "2 errors"]);
    }
}
