//! `host tuning`: shows the kernel settings that `verify` judges, each with its reason, or sets
//! them.

use crate::cli::args::HostTuningArgs;
use crate::cli::change::change_host;
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::cli::table::Table;
use gpuvm_ops::host_settings::{Setting, settings_now, tuned};
use std::collections::BTreeSet;

/// Runs the verb.
pub fn run(args: &HostTuningArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let wishes = [
        args.numa_balancing.map(|on| if on.is_on() { "1" } else { "0" }.to_owned()),
        args.governor.clone(),
        args.transparent_huge_pages.map(|when| when.as_str().to_owned()),
    ];
    if wishes.iter().all(Option::is_none) {
        return show(cx);
    }
    let plan = || Ok(tuned(&wishes, args.at_boot)?);
    let made = change_host("host tuning", &args.lock, args.dry_run, plan, cx)?;
    if cx.output.json && !args.dry_run {
        cx.output.json_rows("gpuvm-steps", &made)?;
    }
    Ok(EXIT_DONE)
}

fn show(cx: &Context<'_>) -> anyhow::Result<u8> {
    let settings = settings_now(cx)?;
    if cx.output.json {
        cx.output.json_rows("gpuvm-host-tuning", &settings)?;
        return Ok(EXIT_DONE);
    }
    let head = ["OPTION", "NOW", "AT BOOT", "ADVISED", "WHY"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for Setting { option, values, at_boot, advised, why, .. } in settings {
        let now: BTreeSet<&str> = values.values().map(String::as_str).collect();
        let now = if now.is_empty() { vec!["-"] } else { now.into_iter().collect() };
        let cells = [option, &now.join(" "), at_boot.as_deref().unwrap_or("-")];
        let mut row: Vec<String> = cells.map(str::to_owned).into();
        row.extend([advised.unwrap_or("-").to_owned(), why.to_owned()]);
        rows.push(row);
    }
    cx.output.table(&Table::of(rows))?;
    Ok(EXIT_DONE)
}
