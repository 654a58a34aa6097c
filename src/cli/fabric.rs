//! `fabric show`, `fabric release`.

use super::args::{FabricReleaseArgs, FabricVerb};
use super::change::asking;
use super::context::Context;
use super::error::{EXIT_DONE, EXIT_FOUND};
use super::table::Table;
use crate::topology::FabricModel;
use gpuvm_ops::fabric::{ShownFabric, ShownPartition, release_partition, show};
use gpuvm_ops::session::{Manner, Of, Session};
use std::fmt::Display;

/// Runs the verb.
pub fn run(verb: &FabricVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    match verb {
        FabricVerb::Show => shows(cx),
        FabricVerb::Release(args) => releases(args, cx),
    }
}

/// Runs `fabric show`.
fn shows(cx: &Context<'_>) -> anyhow::Result<u8> {
    let shown = show(cx)?;
    if cx.output.json {
        cx.output.json("gpuvm-fabric-show", &shown)?;
    } else {
        cx.output.text(&head(&shown))?;
        if !shown.partitions.is_empty() {
            cx.output.table(&table(&shown.partitions))?;
        }
        for entry in &shown.pending {
            let (id, domain) = (entry.id, &entry.domain);
            cx.output.warning(&format!(
                "partition {id} is still to be deactivated: domain {domain} does not run; \
                 `gpuvm fabric release {id}` does it"
            ));
        }
        for unknown in shown.refusal.iter().chain(&shown.unread) {
            cx.output.warning(unknown);
        }
    }
    Ok(if shown.is_wrong() { EXIT_FOUND } else { EXIT_DONE })
}

/// What stands above the table.
fn head(shown: &ShownFabric) -> String {
    let board = shown.board.as_deref().unwrap_or("no NVLink board that is known");
    match shown.model {
        FabricModel::SharedNvswitch => {
            let version = shown.manager_version.as_deref().unwrap_or("of unknown version");
            format!(
                "{board}: NVSwitches are shared by Fabric Manager {version} at {}\n",
                shown.address
            )
        }
        FabricModel::FullPassthrough => {
            format!("{board}: NVSwitches go to guests, so Fabric Manager rules no partitions\n")
        }
        FabricModel::None => format!("{board}: Fabric Manager rules no partitions\n"),
    }
}

/// The partitions as a table.
fn table(rows: &[ShownPartition]) -> Table {
    let mut table = Table::new(["PARTITION", "MODULES", "GPUS", "NVLINKS", "HOLDER", "STATE"]);
    for row in rows {
        table.push([
            row.id.to_string(),
            joined(&row.modules),
            if row.gpus.is_empty() { "-".to_owned() } else { joined(&row.gpus) },
            format!("{} of {}", row.links, row.links_at_most),
            row.holder.as_ref().map_or("-", |domain| domain.name.as_str()).to_owned(),
            row.verdict.to_string(),
        ]);
    }
    table
}

/// Values with commas between them.
fn joined<T: Display>(all: impl IntoIterator<Item = T>) -> String {
    all.into_iter().map(|one| one.to_string()).collect::<Vec<_>>().join(",")
}

/// Runs `fabric release`.
fn releases(args: &FabricReleaseArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let FabricReleaseArgs { partition, yes, dry_run, lock } = args;
    let manner = Manner { of: Of::HostWithGuests, ..asking(lock, (*yes, *dry_run)) };
    let mut session = Session::begin(cx, manner)?;
    let done = session.run(|world| release_partition(world, *partition))?;
    if !done.made && !dry_run {
        cx.output.progress(&format!("partition {partition} is not active; nothing to do"));
    }
    Ok(EXIT_DONE)
}
