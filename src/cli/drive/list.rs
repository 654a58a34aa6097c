//! `drive list`: drives and partitions with their users, and how each can be given to a guest.

use crate::bdf::Bdf;
use crate::cli::args::TakenArgs;
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::cli::names::drive_size;
use crate::cli::table::Table;
use crate::cpuset::NodeId;
use crate::discover::drives::best_id;
use crate::placement::{DeviceState, device_states};
use crate::topology::{DeviceKind, Drive, DriveUse, Topology};
use crate::words::natural;
use gpuvm_ops::drives::state::{Reason, State};
use serde::Serialize;

/// Is what a drive or partition is for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
enum Role {
    /// The host does not come up without it.
    System,
    /// The host has data on it, or uses it otherwise.
    Host,
    /// A guest has it.
    Guest,
    /// Nobody uses it, and data lies on it: only its address or id takes it, never a number.
    Data,
    /// Nobody is known to use it, and what lies on it could not be read.
    Unknown,
    /// Nobody uses it, and it is blank, or a recorded host does not tell.
    Free,
}

impl Role {
    /// Its word.
    fn word(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::Host => "host",
            Role::Guest => "guest",
            Role::Data => "data",
            Role::Unknown => "unknown",
            Role::Free => "free",
        }
    }

    /// What reasons against giving it away, and what lies on it, make of it.
    fn of(reasons: &[Reason], content: &[String]) -> Role {
        let is_guest =
            |reason: &Reason| matches!(reason, Reason::Disk { .. } | Reason::Function { .. });
        match reasons {
            [] if content.is_empty() => Role::Free,
            [] if content.iter().all(|one| one.contains("not known:")) => Role::Unknown,
            [] => Role::Data,
            all if all.iter().any(Reason::is_system) => Role::System,
            all if all.iter().any(is_guest) => Role::Guest,
            _ => Role::Host,
        }
    }
}

/// Is one drive.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Row {
    /// The kernel's name; none: the function is bound to no driver of the host that makes a drive of it.
    name: Option<String>,
    /// Its names below /dev/disk/by-id, the one that is used first.
    ids: Vec<String>,
    /// PCI function that it hangs on.
    bdf: Option<Bdf>,
    /// Node.
    node: Option<NodeId>,
    /// Upstream port of the PCIe switch that it is below.
    switch: Option<Bdf>,
    /// Size.
    bytes: Option<u64>,
    /// Model.
    model: Option<String>,
    /// What it is for.
    role: Role,
    /// Ways in which it can be given to a guest as it is: `pci`, `disk`.
    give: Vec<&'static str>,
    /// Who uses it, or a part of it, and for what.
    used_by: Vec<Reason>,
    /// What lies on it and on its partitions, a phrase each; empty: it is blank, used, or on a recorded host.
    content: Vec<String>,
    /// Why it cannot be given as a PCI function, where it is not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pci_blocked: Option<String>,
    /// Partitions.
    partitions: Vec<Part>,
}

/// Is one partition.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Part {
    /// The kernel's name.
    name: String,
    /// PARTUUID.
    partuuid: Option<String>,
    /// Size.
    bytes: u64,
    /// What it is for.
    role: Role,
    /// `partition`, where it can be given to a guest as it is.
    give: Vec<&'static str>,
    /// Who uses it, and for what.
    used_by: Vec<Reason>,
    /// What lies on it.
    content: Vec<String>,
}

/// Runs the verb.
pub fn run(args: &TakenArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let state = State::read(cx, cx.taken(args)?)?;
    let rows = rows(&state);
    if cx.output.json {
        cx.output.json_rows("gpuvm-drive-list", &rows)?;
    } else if rows.is_empty() {
        cx.output.progress("this host has no drive");
    } else {
        cx.output.table(&table(&rows))?;
        if cx.root()?.is_some_and(|root| root.is_live()) && !state.is_complete {
            cx.output.progress(
                "without root, processes of others are not seen, and devices are not read",
            );
        }
    }
    Ok(EXIT_DONE)
}

/// Every drive by name, then NVMe functions without one.
fn rows(state: &State) -> Vec<Row> {
    let topology = &state.topology;
    let mut drives: Vec<&Drive> = topology.parts().drives.iter().collect();
    drives.sort_by(|a, b| natural(&a.name, &b.name));
    let mut rows: Vec<Row> = drives.into_iter().map(|drive| row(state, drive)).collect();
    let has = |bdf: Bdf| topology.parts().drives.iter().any(|drive| drive.bdf == Some(bdf));
    let bare = topology.of_kind(DeviceKind::Nvme).filter(|device| !has(device.bdf));
    for device in bare {
        let (used_by, blocked, content) = function(state, device.bdf);
        rows.push(Row {
            name: None,
            ids: Vec::new(),
            bdf: Some(device.bdf),
            node: device.node,
            switch: switch(topology, device.bdf),
            bytes: None,
            model: Some(crate::cli::names::model(device)),
            role: Role::of(&used_by, &content),
            give: if blocked.is_none() { vec!["pci"] } else { Vec::new() },
            pci_blocked: blocked.filter(|_| used_by.is_empty()),
            used_by,
            content,
            partitions: Vec::new(),
        });
    }
    rows
}

/// Domains that hold a function, why it cannot be passed (none: it can), and what is said of its content where it has no
/// drive.
fn function(state: &State, bdf: Bdf) -> (Vec<Reason>, Option<String>, Vec<String>) {
    let holders = state.held.domains.iter().filter(|held| held.devices.contains(&bdf));
    let mut reasons: Vec<Reason> =
        holders.map(|held| Reason::Function { domain: held.domain.clone(), bdf }).collect();
    reasons.dedup();
    let blocked = device_states(&state.topology, &state.held, &[bdf]).pop();
    let (is, why) = blocked.unwrap_or((DeviceState::Free, None));
    let why = why.unwrap_or_default();
    match is {
        DeviceState::Free => (reasons, None, Vec::new()),
        DeviceState::Data => (reasons, None, vec![format!("what is on it is not known: it {why}")]),
        _ => (reasons, Some(why), Vec::new()),
    }
}

/// One drive.
fn row(state: &State, drive: &Drive) -> Row {
    let topology = &state.topology;
    let used_by = state.of_drive(drive);
    let content = drive.remains();
    let device = drive.bdf.and_then(|bdf| topology.device(bdf));
    let nvme = device.filter(|device| device.kind() == DeviceKind::Nvme);
    let blocked = nvme.and_then(|device| function(state, device.bdf).1);
    let mut give = Vec::new();
    if used_by.is_empty() {
        give.extend((nvme.is_some() && blocked.is_none()).then_some("pci"));
        give.push("disk");
    }
    let part = |part: &crate::topology::PartitionTableEntry| {
        let used_by = state.of_partition(drive, part);
        let content = part.remains();
        let can = used_by.is_empty() && !part.efi_system;
        Part {
            name: part.name.clone(),
            partuuid: part.partuuid.clone(),
            bytes: part.bytes,
            role: Role::of(&used_by, &content),
            give: if can { vec!["partition"] } else { Vec::new() },
            used_by,
            content,
        }
    };
    let mut ids = drive.stable_ids.clone();
    if let Some(best) = best_id(&drive.stable_ids) {
        ids.sort_by_key(|id| (id != best, id.clone()));
    }
    Row {
        name: Some(drive.name.clone()),
        ids,
        bdf: drive.bdf,
        node: device.and_then(|device| device.node),
        switch: drive.bdf.and_then(|bdf| switch(topology, bdf)),
        bytes: Some(drive.bytes),
        model: drive.model.clone(),
        role: Role::of(&used_by, &content),
        give,
        pci_blocked: blocked.filter(|_| used_by.is_empty()),
        used_by,
        content,
        partitions: drive.partitions.iter().map(part).collect(),
    }
}

/// The upstream port of the PCIe switch that a function is below: two bridges above it, and not itself a root port.
fn switch(topology: &Topology, bdf: Bdf) -> Option<Bdf> {
    let path = topology.path_to_root(bdf);
    match &path[..] {
        [_, _, upstream, _, ..] => Some(*upstream),
        _ => None,
    }
}

/// The rows as a table. Names are there to be copied, so nothing is wrapped.
fn table(rows: &[Row]) -> Table {
    let mut table = Table::new([
        "DRIVE", "ADDRESS", "NODE", "SWITCH", "SIZE", "MODEL", "ROLE", "GIVE", "ID", "USED BY",
    ]);
    let dash = || "-".to_owned();
    let text = |value: Option<String>| value.unwrap_or_else(dash);
    let give = |give: &[&str]| if give.is_empty() { dash() } else { give.join(",") };
    for row in rows {
        // What is used of a drive is said at its partition.
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

/// A reason, shortened where the row says what is used.
fn short(reason: &Reason) -> String {
    match reason {
        Reason::Host { used: DriveUse::Mounted { at }, .. } => format!("mounted at {at}"),
        Reason::Host { used: DriveUse::Swap, .. } => "swap space".to_owned(),
        other => other.to_string(),
    }
}
