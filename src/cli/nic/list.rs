//! `nic list`: network cards, their links and virtual functions, and the holders of these.

use crate::cli::args::NicListArgs;
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::cli::names::short;
use crate::cli::table::Table;
use crate::function_users::Use;
use crate::words;
use gpuvm_ops::nics::{NetworkCard, cards};

/// Runs the verb.
pub fn run(args: &NicListArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let (topology, held) = (cx.topology()?, cx.taken(&args.taken)?);
    let cards = cards(cx, &topology, &held)?;
    if cx.output.json {
        cx.output.json_rows("gpuvm-nic-list", &cards)?;
    } else if cards.is_empty() {
        cx.output.progress(&topology.without("network card"));
    } else {
        cx.output.table(&table(&cards))?;
    }
    Ok(EXIT_DONE)
}

/// Describes the holder of a function.
fn state(domains: &[String], used_by: &[Use]) -> String {
    if let Some(first) = used_by.first() {
        let more = used_by.len() - 1;
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        return format!("used by {}{more}", first.by);
    }
    match domains {
        [] => "free".into(),
        [domain] => format!("held by domain `{domain}`, which is off"),
        domains => format!("held by domains `{}`, which are off", domains.join("`, `")),
    }
}

/// A state, or why no guest gets a function that is free otherwise.
fn or_blocked(state: String, blocked: Option<&String>) -> String {
    blocked.filter(|_| state == "free").cloned().unwrap_or(state)
}

/// The cards as a table, each with its virtual functions below it.
fn table(cards: &[NetworkCard]) -> Table {
    let dash = || "-".to_owned();
    let joined = |names: &[String]| if names.is_empty() { dash() } else { names.join(",") };
    let mut table = Table::new([
        "ADDRESS", "MODEL", "NETDEV", "DRIVER", "NODE", "GPUS", "UP", "MAC", "VFS", "STATE",
    ]);
    for card in cards {
        let gpus: Vec<String> = card.gpus.iter().map(usize::to_string).collect();
        let vfs = card.enabled_vfs.zip(card.total_vfs);
        let mut state = state(&card.domains, &card.used_by);
        // As `plan` and `device list` say: a card with virtual functions goes to no guest.
        if let Some(count) = card.enabled_vfs.filter(|count| *count > 0 && state == "free") {
            state = format!("used by its {}", words::count(count as usize, "VF"));
        }
        state = or_blocked(state, card.blocked.as_ref());
        if let Some(count) = card.vfs_at_boot {
            state += &format!(", {count} VFs at boot");
        }
        let up = match (card.up, card.link.as_deref()) {
            (None, _) => dash(),
            (Some(false), _) => "no".into(),
            (Some(true), Some("up")) => "yes".into(),
            (Some(true), _) => "no link".into(),
        };
        table.push([
            card.bdf.to_string(),
            card.model.clone(),
            joined(&card.netdevs),
            card.driver.clone().unwrap_or_else(dash),
            card.node.map_or_else(dash, |node| node.to_string()),
            joined(&gpus),
            up,
            card.mac.clone().unwrap_or_else(dash),
            vfs.map_or_else(dash, |(enabled, total)| format!("{enabled} of {total}")),
            state,
        ]);
        for vf in &card.vfs {
            let name = format!("VF {} of {}", vf.number, short(card.bdf));
            table.push([
                format!("  {}", vf.bdf),
                name,
                joined(&vf.netdevs),
                vf.driver.clone().unwrap_or_else(dash),
                String::new(),
                String::new(),
                String::new(),
                String::new(),
                String::new(),
                or_blocked(self::state(&vf.domains, &vf.used_by), vf.blocked.as_ref()),
            ]);
        }
    }
    table
}
