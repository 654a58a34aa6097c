//! `gpu list`: GPUs and NVSwitches with their partitions and their availability.

use crate::cli::args::HeldArgs;
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::cli::table::Table;
use crate::discover::test_policy::TestMode;
use crate::placement::DeviceState;
use crate::topology::PartitionId;
use gpuvm_ops::devices::{ListedGpu, SharedGpu, gpus};
use gpuvm_ops::gpu_states::{ListedState, mode};

/// Runs the verb.
pub fn run(args: &HeldArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let (topology, held) = (cx.topology_with(args.assume)?, cx.taken(args)?);
    let rows = gpus(cx, &topology, &held, args.assume)?;
    for note in &topology.machine().health_unread {
        cx.warning(note);
    }
    if cx.output.json {
        cx.output.json_rows("gpuvm-gpu-list", &rows)?;
    } else if rows.is_empty() {
        cx.output.progress(&topology.without("GPU"));
    } else {
        let shows_tests = mode(cx)? != TestMode::Off;
        cx.output.table(&table(&rows, shows_tests))?;
    }
    Ok(EXIT_DONE)
}

/// Lists partition numbers, with runs of three or more shortened: `0-2,5`.
fn numbers(ids: &[PartitionId]) -> String {
    let mut ids: Vec<u32> = ids.iter().map(|id| id.0).collect();
    ids.sort_unstable();
    let runs = ids.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [first, .., last] if run.len() > 2 => format!("{first}-{last}"),
        _ => run.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// The rows as a table; UUIDs and health only where one is known.
fn table(rows: &[ListedGpu], shows_tests: bool) -> Table {
    let has_uuids = rows.iter().any(|row| row.uuid.is_some());
    let mut head = vec!["GPU", "ADDRESS", "MODEL", "NODE", "PARTITIONS"];
    head.extend(has_uuids.then_some("UUID"));
    let has_health = rows.iter().any(|row| row.health.is_some());
    head.extend(has_health.then_some("HEALTH"));
    let has_vgpus = rows.iter().any(|row| row.vgpu.is_some());
    head.extend(has_vgpus.then_some("VGPUS"));
    let has_mig = rows.iter().any(|row| row.mig.is_some_and(|mig| mig.enabled || mig.pending));
    head.extend(has_mig.then_some("MIG"));
    head.extend(shows_tests.then_some("TEST"));
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
        cells.extend(has_health.then(|| health(row)));
        cells.extend(has_vgpus.then(|| row.vgpu.as_ref().map_or_else(dash, vgpus)));
        cells.extend(has_mig.then(|| row.mig.map_or_else(dash, |mig| mig.words().to_owned())));
        cells.extend(shows_tests.then(|| row.test.as_ref().map_or_else(dash, ListedState::words)));
        cells.push(row.why.clone().unwrap_or_else(|| "free".to_owned()));
        table.push(cells);
    }
    table
}

/// The interface by which a GPU is shared, and its vGPUs.
fn vgpus(shared: &SharedGpu) -> String {
    let each = shared.vgpus.iter().map(|(name, number)| format!("{number} x {name}"));
    let excluded = (!shared.excluded.is_empty()).then(|| {
        let names: Vec<String> = shared.excluded.iter().map(ToString::to_string).collect();
        format!("{} excluded", names.join(" "))
    });
    let all = std::iter::once(shared.interface.word().to_owned()).chain(each).chain(excluded);
    all.collect::<Vec<_>>().join(", ")
}

/// The health of a row; STATE has the reason if no guest gets it for that.
fn health(row: &ListedGpu) -> String {
    match &row.health {
        None if row.index.is_none() => "-".into(),
        None => "not checked".into(),
        Some(_) if row.state == DeviceState::Unhealthy => "over limit".into(),
        Some(health) => health.words(),
    }
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
