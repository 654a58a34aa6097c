//! `vgpu list`: types of each card, how many can be created now, and who has those that exist.

use crate::cli::args::HeldArgs;
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::cli::table::Table;
use crate::placement::ExistingVgpu;
use crate::topology::VgpuInterface;
use gpuvm_ops::vgpu::list::{VgpuCard, cards};

/// Runs the verb.
pub fn run(args: &HeldArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let (topology, held) = (cx.topology_with(args.assume)?, cx.taken(args)?);
    let cards = cards(&topology, &held);
    if cx.output.json {
        cx.output.json_rows("gpuvm-vgpu-list", &cards)?;
    } else if cards.is_empty() {
        cx.output.progress(&topology.without("GPU set up for vGPUs"));
    } else {
        cx.output.table(&table(&cards))?;
    }
    Ok(EXIT_DONE)
}

/// The cards as a table, each with its types and its vGPUs below it.
fn table(cards: &[VgpuCard]) -> Table {
    let dash = || "-".to_owned();
    let mut table = Table::new(["GPU", "TYPE", "ID", "MEMORY", "CREATABLE", "IN USE", "STATE"]);
    for card in cards {
        let name = card.index.map_or_else(dash, |index| format!("GPU {index}"));
        let vfs = card.enabled_vfs.zip(card.total_vfs);
        table.push([
            format!("{}, {name}", card.bdf),
            card.interface.word().to_owned(),
            String::new(),
            String::new(),
            String::new(),
            vfs.map_or_else(String::new, |(enabled, total)| format!("{enabled} of {total} VFs")),
            state(card),
        ]);
        for of in &card.types {
            let mig = of.instance_words().map(|words| format!("MIG-backed, {words}"));
            table.push([
                String::new(),
                of.name.clone(),
                of.id.clone(),
                of.frame_buffer_kib.map_or_else(dash, |size| size.to_string()),
                of.creatable.to_string(),
                of.in_use.to_string(),
                mig.unwrap_or_default(),
            ]);
        }
        for vgpu in &card.vgpus {
            table.push([
                format!("  {}", vgpu.uuid.clone().unwrap_or_else(|| vgpu.function.to_string())),
                vgpu.name.clone().unwrap_or_else(dash),
                vgpu.type_id.clone().unwrap_or_else(dash),
                String::new(),
                String::new(),
                String::new(),
                holder(vgpu),
            ]);
        }
    }
    table
}

/// What to know of a card.
fn state(card: &VgpuCard) -> String {
    let mig = card.mig.filter(|mig| mig.enabled || mig.pending);
    let mig = mig.map(|mig| format!("MIG {}", mig.words()));
    // The functions of a card that gets no vGPUs are of no use, and may be refused.
    let interface = (card.interface == VgpuInterface::Unknown && card.closed.is_none())
        .then(|| format!("no VFs: types are known after `gpuvm vgpu vfs {} --on`", card.bdf));
    let excluded = card.vfs.iter().filter_map(|vf| {
        let why = vf.excluded.as_ref()?;
        Some(format!("{} is {why}", vf.bdf))
    });
    let closed = card.closed.iter().cloned();
    let parts: Vec<String> = closed.chain(interface).chain(mig).chain(excluded).collect();
    parts.join("; ")
}

/// Who has a vGPU.
fn holder(vgpu: &ExistingVgpu) -> String {
    match &vgpu.domains[..] {
        [] => "unknown holder: no domain has it".into(),
        [domain] => format!("domain `{domain}`"),
        domains => format!("domains `{}`", domains.join("`, `")),
    }
}
