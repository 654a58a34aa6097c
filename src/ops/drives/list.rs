//! `drive list`: drives and partitions with their users, and how each can be given to a guest.

use super::state::{Reason, State};
use crate::availability::Availability;
use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use crate::discover::drives::best_id;
use crate::placement::DeviceState;
use crate::topology::model::model;
use crate::topology::{DeviceKind, Drive, Topology};
use crate::words::natural;
use serde::Serialize;

/// The current role of a drive or partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DriveRole {
    /// The host does not boot without it.
    System,
    /// The host has data on it, or uses it otherwise.
    Host,
    /// A guest uses it.
    Guest,
    /// Unused, but with data: taken only by address or id, never by number.
    Data,
    /// It has no known user, and its content could not be read.
    Unknown,
    /// Unused, and blank, or of unknown content on a recorded host.
    Free,
}

impl DriveRole {
    /// Returns its word.
    pub fn word(self) -> &'static str {
        match self {
            DriveRole::System => "system",
            DriveRole::Host => "host",
            DriveRole::Guest => "guest",
            DriveRole::Data => "data",
            DriveRole::Unknown => "unknown",
            DriveRole::Free => "free",
        }
    }

    /// Derives the role from reasons against giving it away, and from its content.
    fn of(reasons: &[Reason], content: &[String]) -> DriveRole {
        let is_guest =
            |reason: &Reason| matches!(reason, Reason::Disk { .. } | Reason::Function { .. });
        match reasons {
            [] if content.is_empty() => DriveRole::Free,
            [] if content.iter().all(|one| one.contains("not known:")) => DriveRole::Unknown,
            [] => DriveRole::Data,
            all if all.iter().any(Reason::is_system) => DriveRole::System,
            all if all.iter().any(is_guest) => DriveRole::Guest,
            _ => DriveRole::Host,
        }
    }
}

/// One drive.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListedDrive {
    /// The kernel's name; `None` if the function has no host driver that provides a drive.
    pub name: Option<String>,
    /// Its names in /dev/disk/by-id, the preferred one first.
    pub ids: Vec<String>,
    /// PCI function that it is attached to.
    pub bdf: Option<Bdf>,
    /// Node.
    pub node: Option<NodeId>,
    /// Upstream port of the PCIe switch above it.
    pub switch: Option<Bdf>,
    /// Size.
    pub bytes: Option<u64>,
    /// Model.
    pub model: Option<String>,
    /// Its role.
    pub role: DriveRole,
    /// Ways to give it to a guest as it is: `pci`, `disk`.
    pub give: Vec<&'static str>,
    /// The users of it, or of a part of it, each with the purpose.
    pub used_by: Vec<Reason>,
    /// Content of the drive and its partitions, a phrase each; empty: blank, in use, or on a
    /// recorded host.
    pub content: Vec<String>,
    /// Why it cannot be given as a PCI function although unused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_blocked: Option<String>,
    /// Partitions.
    pub partitions: Vec<ListedPartition>,
}

/// One partition.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListedPartition {
    /// The kernel's name.
    pub name: String,
    /// PARTUUID.
    pub partuuid: Option<String>,
    /// Size.
    pub bytes: u64,
    /// Its role.
    pub role: DriveRole,
    /// `partition`, if it can be given to a guest as it is.
    pub give: Vec<&'static str>,
    /// The users of it, each with the purpose.
    pub used_by: Vec<Reason>,
    /// Its content.
    pub content: Vec<String>,
}

/// Every drive by name, then NVMe functions without one.
pub fn list(state: &State) -> Vec<ListedDrive> {
    let topology = &state.topology;
    let mut drives: Vec<&Drive> = topology.parts().drives.iter().collect();
    drives.sort_by(|a, b| natural(&a.name, &b.name));
    let mut rows: Vec<ListedDrive> = drives.into_iter().map(|drive| row(state, drive)).collect();
    let has = |bdf: Bdf| topology.parts().drives.iter().any(|drive| drive.bdf == Some(bdf));
    let bare = topology.of_kind(DeviceKind::Nvme).filter(|device| !has(device.bdf));
    for device in bare {
        let (used_by, blocked, content) = function(state, device.bdf);
        rows.push(ListedDrive {
            name: None,
            ids: Vec::new(),
            bdf: Some(device.bdf),
            node: device.node,
            switch: switch(topology, device.bdf),
            bytes: None,
            model: Some(model(device)),
            role: DriveRole::of(&used_by, &content),
            give: if blocked.is_none() { vec!["pci"] } else { Vec::new() },
            pci_blocked: blocked.filter(|_| used_by.is_empty()),
            used_by,
            content,
            partitions: Vec::new(),
        });
    }
    rows
}

/// Returns the domains that hold a function, why it cannot be passed through (`None` if it can),
/// and a note on its content if it has no drive.
fn function(state: &State, bdf: Bdf) -> (Vec<Reason>, Option<String>, Vec<String>) {
    let reasons = state.holders(bdf);
    let uses = (&[][..], state.nothing.as_deref());
    let Availability { state: is, said, .. } =
        Availability::of(&state.topology, &state.held, uses, bdf);
    let why = said.unwrap_or_default();
    match is {
        // A share of a drive is free by its address.
        DeviceState::Free | DeviceState::Display => (reasons, None, Vec::new()),
        DeviceState::Data => (reasons, None, vec![format!("its content is unknown: it {why}")]),
        _ => (reasons, Some(why), Vec::new()),
    }
}

fn row(state: &State, drive: &Drive) -> ListedDrive {
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
        ListedPartition {
            name: part.name.clone(),
            partuuid: part.partuuid.clone(),
            bytes: part.bytes,
            role: DriveRole::of(&used_by, &content),
            give: if can { vec!["partition"] } else { Vec::new() },
            used_by,
            content,
        }
    };
    let mut ids = drive.stable_ids.clone();
    if let Some(best) = best_id(&drive.stable_ids) {
        ids.sort_by_key(|id| (id != best, id.clone()));
    }
    ListedDrive {
        name: Some(drive.name.clone()),
        ids,
        bdf: drive.bdf,
        node: device.and_then(|device| device.node),
        switch: drive.bdf.and_then(|bdf| switch(topology, bdf)),
        bytes: Some(drive.bytes),
        model: drive.model.clone(),
        role: DriveRole::of(&used_by, &content),
        give,
        pci_blocked: blocked.filter(|_| used_by.is_empty()),
        used_by,
        content,
        partitions: drive.partitions.iter().map(part).collect(),
    }
}

/// The upstream port of the PCIe switch that a function is below: two bridges above it, and not
/// itself a root port.
fn switch(topology: &Topology, bdf: Bdf) -> Option<Bdf> {
    let path = topology.path_to_root(bdf);
    match &path[..] {
        [_, _, upstream, _, ..] => Some(*upstream),
        _ => None,
    }
}
