//! `host modules`: which GPU is which module of its board, and the file that keeps that for GPUs that the NVIDIA driver
//! no longer has. What a publication says about a product is shown, but never written.

use crate::bdf::Bdf;
use crate::cli::args::ModulesArgs;
use crate::cli::context::Context;
use crate::cli::error::{Coded, EXIT_DONE};
use crate::cli::table::Table;
use crate::discover::fabric::links;
use crate::discover::fabric::modules::{Modules, PATH, Source};
use crate::discover::fabric::modules_now;
use crate::fsroot::FsRoot;
use crate::topology::Topology;
use gpuvm_ops::files;
use gpuvm_ops::host_settings::HostVerbError;
use serde::Serialize;
use std::path::Path;

/// Is one GPU.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Row {
    /// Its index.
    gpu: usize,
    /// Its address.
    bdf: Bdf,
    /// Its module id, where it is known.
    module: Option<u32>,
    /// Who says so.
    by: Option<String>,
}

/// Runs the verb.
pub fn run(args: &ModulesArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    if args.write {
        cx.refuse_recorded("host modules --write")?;
        cx.refuse_elsewhere("host modules --write")?;
    }
    let topology = cx.topology()?;
    let now = match cx.root()?.filter(|root| root.is_live()) {
        Some(root) => modules_now(&root, topology.parts())?,
        None => None,
    };
    let (modules, notes) = now.unwrap_or_default();
    let other = match cx.global.host.is_none() && cx.is_here()? {
        true => Source::Published.to_string(),
        false => "the recorded host".into(),
    };
    let rows = rows(&topology, &modules, &other);
    if cx.output.json {
        cx.output.json_rows("gpuvm-host-modules", &rows)?;
    } else {
        match rows.is_empty() {
            true => cx.output.text("no GPU on this host")?,
            false => cx.output.table(&table(&rows))?,
        }
    }
    for note in &notes {
        cx.output.warning(note);
    }
    if args.write {
        write(&topology, &modules, args.dry_run, cx)?;
    }
    Ok(EXIT_DONE)
}

/// Every GPU of a host; what is not known now may stand in its topology, by the word of `other`.
fn rows(topology: &Topology, modules: &Modules, other: &str) -> Vec<Row> {
    let planned = &topology.fabric().module_ids;
    let row = |(gpu, bdf): (usize, Bdf)| {
        let known = modules.get(bdf).zip(modules.source(bdf).map(|by| by.to_string()));
        let found = planned.iter().find(|(gpu, _)| *gpu == bdf && modules.is_empty());
        let known = known.or_else(|| found.map(|(_, id)| (*id, other.to_owned())));
        let (module, by) = known.unzip();
        Row { gpu, bdf, module, by }
    };
    topology.gpus().map(|gpu| gpu.bdf).enumerate().map(row).collect()
}

/// The table for a terminal.
fn table(rows: &[Row]) -> Table {
    let head = ["GPU", "address", "module", "known by"].map(ToOwned::to_owned).to_vec();
    let cells = |row: &Row| {
        let module = row.module.map_or("-".into(), |id| id.to_string());
        vec![row.gpu.to_string(), row.bdf.to_string(), module, row.by.clone().unwrap_or("-".into())]
    };
    let rows = std::iter::once(head).chain(rows.iter().map(cells)).collect();
    Table::of(rows)
}

/// Writes the admin's file, whole or not at all; or says that it would.
fn write(
    topology: &Topology,
    modules: &Modules,
    dry_run: bool,
    cx: &Context<'_>,
) -> anyhow::Result<()> {
    let renewed = match dry_run {
        true => links::to_keep(&FsRoot::live()?, true)?.is_some(),
        false => gpuvm_ops::links::keep(true, cx)?,
    };
    if renewed {
        let would = if dry_run { "would write " } else { "" };
        cx.output.progress(&format!("{would}{}: NVLinks by NVML", links::PATH));
    }
    if modules.is_empty() && Path::new(links::PATH).exists() {
        cx.output.progress("no GPU of this host has a module id");
        return Ok(());
    }
    if modules.is_empty() {
        let hint = "NVML sees GPUs only while they are bound to the driver `nvidia`; or write the file by hand, as \
                    {\"0000:1b:00.0\": 1, ...}";
        return Err(HostVerbError::NoModuleIds { path: PATH.to_string() }.hint(hint));
    }
    for gpu in topology.gpus().filter(|gpu| modules.get(gpu.bdf).is_none()) {
        cx.output
            .warning(&format!("the module id of GPU {} is not known and not written", gpu.bdf));
    }
    let (file, text) = (Path::new(PATH), modules.to_file());
    if std::fs::read_to_string(file).is_ok_and(|there| there == text) {
        cx.output.progress(&format!("{PATH}: already so"));
        return Ok(());
    }
    let number = modules.iter().count();
    if dry_run {
        cx.output.progress(&format!("would write {number} module ids to {PATH}"));
        return Ok(());
    }
    let dir = file.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(dir).map_err(|error| {
        HostVerbError::NoDirectory { dir: dir.display().to_string(), error: error.to_string() }
            .refusal("run it as root")
    })?;
    files::write(file, true, text.as_bytes())?;
    cx.output.progress(&format!("{PATH}: {number} module ids"));
    Ok(())
}
