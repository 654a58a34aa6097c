//! `gpu list`: GPUs and NVSwitches with their partitions and whether they can be had.

use crate::bdf::Bdf;
use crate::cli::args::TakenArgs;
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::cli::names::model;
use crate::cli::table::Table;
use crate::cpuset::NodeId;
use crate::discover::cards::cards;
use crate::holders::{Take, Use};
use crate::placement::{DeviceState, Occupancy, device_states};
use crate::topology::{DeviceKind, PartitionId, PciDevice, Topology};
use gpuvm_ops::uses::uses;
use serde::Serialize;
use std::collections::BTreeMap;

/// Is one row.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Row {
    /// Index of the GPU; none for NVSwitches, displays and what does not answer.
    index: Option<usize>,
    /// Address.
    bdf: Bdf,
    /// UUID, where the NVIDIA driver has the GPU or the record was made with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
    /// Model, or the ids.
    model: String,
    /// Node.
    node: Option<NodeId>,
    /// NVLink partitions that need it or, of an NVSwitch, may take it.
    partitions: Vec<PartitionId>,
    /// Whether it can be had.
    state: DeviceState,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// Who uses it, as `device list` says.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    used_by: Vec<Use>,
}

/// Runs the verb.
pub fn run(args: &TakenArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let topology = cx.topology()?;
    let held = cx.taken(args)?;
    let mut uuids: BTreeMap<Bdf, String> = BTreeMap::new();
    if let Some(root) = cx.root()? {
        let cards = cards(&root)?.into_iter();
        uuids.extend(cards.filter_map(|(bdf, card)| Some((bdf, card.uuid?))));
    }
    let devices = listed(&topology);
    let functions: Vec<Bdf> = devices.iter().map(|(_, device)| device.bdf).collect();
    let uses = uses(cx, &topology, &held, &functions)?;
    let rows = rows(&topology, &held, &devices, &uses, &uuids);
    if cx.output.json {
        cx.output.json_rows("gpuvm-gpu-list", &rows)?;
    } else if rows.is_empty() {
        cx.output.progress(&topology.without("GPU"));
    } else {
        cx.output.table(&table(&rows))?;
    }
    Ok(EXIT_DONE)
}

/// GPUs by index, then those that do not count, NVSwitches, and what does not answer; each by address.
fn listed(topology: &Topology) -> Vec<(Option<usize>, &PciDevice)> {
    let gpus = topology.gpus().enumerate().map(|(index, gpu)| (Some(index), gpu));
    let displays = topology.displays().map(|(gpu, _)| (None, gpu));
    let switches = topology.of_kind(DeviceKind::NvSwitch).map(|switch| (None, switch));
    let dead = topology.devices().iter().filter(|device| device.may_be_silent_gpu());
    let dead = dead.filter(|device| device.kind() == DeviceKind::Other).map(|dead| (None, dead));
    gpus.chain(displays).chain(switches).chain(dead).collect()
}

/// One row for each.
fn rows(
    topology: &Topology,
    held: &Occupancy,
    devices: &[(Option<usize>, &PciDevice)],
    uses: &[Use],
    uuids: &BTreeMap<Bdf, String>,
) -> Vec<Row> {
    let bdfs: Vec<Bdf> = devices.iter().map(|(_, device)| device.bdf).collect();
    let states = device_states(topology, held, &bdfs);
    let row = |((index, device), (mut state, mut why)): (&(Option<usize>, &PciDevice), _)| {
        if state == DeviceState::Free {
            let take = Take::new(topology, uses, &[device.bdf]);
            let mut used = take.hindrances.into_iter().filter(|found| found.kind.is_some());
            if let Some(found) = used.next() {
                (state, why) = (DeviceState::Host, Some(found.why));
            }
        }
        let needs = topology.partitions().iter().filter(|partition| {
            partition.gpus.contains(&device.bdf) || partition.nvswitch_pool.contains(&device.bdf)
        });
        Row {
            index: *index,
            bdf: device.bdf,
            uuid: uuids.get(&device.bdf).or(device.uuid.as_ref()).cloned(),
            model: model(device),
            node: device.node,
            partitions: needs.map(|partition| partition.id).collect(),
            state,
            why,
            used_by: uses.iter().filter(|used| used.bdf == device.bdf).cloned().collect(),
        }
    };
    devices.iter().zip(states).map(row).collect()
}

/// Numbers of partitions, runs of three and more shortened: `0-2,5`.
fn numbers(ids: &[PartitionId]) -> String {
    let mut ids: Vec<u32> = ids.iter().map(|id| id.0).collect();
    ids.sort_unstable();
    let runs = ids.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [first, .., last] if run.len() > 2 => format!("{first}-{last}"),
        _ => run.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// The rows as a table; UUIDs only where one is known.
fn table(rows: &[Row]) -> Table {
    let has_uuids = rows.iter().any(|row| row.uuid.is_some());
    let mut head = vec!["GPU", "ADDRESS", "MODEL", "NODE", "PARTITIONS"];
    head.extend(has_uuids.then_some("UUID"));
    head.push("STATE");
    let mut table = Table::new(head);
    let dash = || "-".to_owned();
    for row in rows {
        let mut cells = vec![
            row.index.map_or_else(dash, |index| index.to_string()),
            row.bdf.to_string(),
            row.model.clone(),
            row.node.map_or_else(dash, |node| node.to_string()),
            if row.partitions.is_empty() { dash() } else { numbers(&row.partitions) },
        ];
        cells.extend(has_uuids.then(|| row.uuid.clone().unwrap_or_else(dash)));
        cells.push(row.why.clone().unwrap_or_else(|| "free".to_owned()));
        table.push(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_numbers_are_shortened() {
        let text =
            |ids: &[u32]| numbers(&ids.iter().map(|id| PartitionId(*id)).collect::<Vec<_>>());
        assert_eq!(text(&[]), "");
        assert_eq!(text(&[7, 1, 0, 2, 5, 6]), "0-2,5-7");
        assert_eq!(text(&[3, 1, 2, 9, 10]), "1-3,9,10");
    }
}
