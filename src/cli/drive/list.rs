//! `drive list`.

use crate::cli::args::TakenArgs;
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::cli::names::drive_size;
use crate::cli::table::Table;
use crate::topology::DriveUse;
use gpuvm_ops::drives::list::{ListedDrive, list};
use gpuvm_ops::drives::state::{Reason, State};

/// Runs the verb.
pub fn run(args: &TakenArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let state = State::read(cx, cx.taken(args)?)?;
    let drives = list(&state);
    if cx.output.json {
        cx.output.json_rows("gpuvm-drive-list", &drives)?;
    } else if drives.is_empty() {
        cx.output.progress("this host has no drive");
    } else {
        cx.output.table(&table(&drives))?;
        if cx.root()?.is_some_and(|root| root.is_live()) && !state.is_complete {
            cx.output.progress(
                "without root, processes of others are not seen, and devices are not read",
            );
        }
    }
    Ok(EXIT_DONE)
}

/// The rows as a table. Names are for copying, so nothing is wrapped.
fn table(drives: &[ListedDrive]) -> Table {
    let mut table = Table::new([
        "DRIVE", "ADDRESS", "NODE", "SWITCH", "SIZE", "MODEL", "ROLE", "GIVE", "ID", "USED BY",
    ]);
    let dash = || "-".to_owned();
    let text = |value: Option<String>| value.unwrap_or_else(dash);
    let give = |give: &[&str]| if give.is_empty() { dash() } else { give.join(",") };
    for row in drives {
        // A partition's use is shown at the partition.
        let is_own = |reason: &&Reason| {
            let of_part = row.partitions.iter().any(|part| part.used_by.contains(reason));
            !of_part || matches!(reason, Reason::Function { .. })
        };
        let mut why: Vec<String> =
            row.used_by.iter().filter(is_own).map(ToString::to_string).collect();
        let of_part =
            |said: &&String| row.partitions.iter().any(|part| part.content.contains(said));
        why.extend(row.content.iter().filter(|said| !of_part(said)).cloned());
        why.extend(row.pci_blocked.iter().map(|blocked| format!("not as PCI: {blocked}")));
        table.push([
            text(row.name.clone()),
            text(row.bdf.map(|bdf| bdf.to_string())),
            text(row.node.map(|node| node.to_string())),
            text(row.switch.map(|switch| switch.to_string())),
            text(row.bytes.map(drive_size)),
            text(row.model.clone()),
            row.role.word().to_owned(),
            give(&row.give),
            text(row.ids.first().cloned()),
            why.join("; "),
        ]);
        for part in &row.partitions {
            let mut why: Vec<String> = part.used_by.iter().map(short).collect();
            why.extend(part.content.iter().cloned());
            table.push([
                format!("  {}", part.name),
                dash(),
                dash(),
                dash(),
                drive_size(part.bytes),
                dash(),
                part.role.word().to_owned(),
                give(&part.give),
                text(part.partuuid.clone()),
                why.join("; "),
            ]);
        }
    }
    table
}

/// Returns a reason, shortened if the row already names the device.
fn short(reason: &Reason) -> String {
    match reason {
        Reason::Host { used: DriveUse::Mounted { at }, .. } => format!("mounted at {at}"),
        Reason::Host { used: DriveUse::Swap, .. } => "swap space".to_owned(),
        other => other.to_string(),
    }
}
