//! Which GPU is which module of its board, and the file that stores this for GPUs no longer bound
//! to the NVIDIA driver. Published data about a product is shown, but never written.

use crate::bdf::Bdf;
use crate::discover::fabric::links;
use crate::discover::fabric::modules::{Modules, PATH, Source};
use crate::discover::fabric::modules_now;
use crate::error::{Coded, Result};
use crate::files;
use crate::fsroot::FsRoot;
use crate::host_settings::HostVerbError;
use crate::input;
use crate::links::{keep, refuse_foreign};
use crate::topology::Topology;
use crate::world::World;
use serde::Serialize;
use std::path::Path;

/// A GPU with its module id.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModuleOfGpu {
    /// Its index.
    pub gpu: usize,
    /// Its address.
    pub bdf: Bdf,
    /// Its module id, if known.
    pub module: Option<u32>,
    /// Who says so.
    pub by: Option<String>,
}

/// The GPUs of a host with their module ids.
#[derive(Debug)]
pub struct KnownModules {
    /// Every GPU.
    pub rows: Vec<ModuleOfGpu>,
    /// Facts that could not be determined.
    pub notes: Vec<String>,
    topology: Topology,
    modules: Modules,
}

/// Reads the module ids of a host.
pub fn modules(world: &World) -> Result<KnownModules> {
    let topology = world.topology()?;
    let now = match world.root()?.filter(|root| root.is_live()) {
        Some(root) => modules_now(&root, topology.parts())?,
        None => None,
    };
    let (modules, notes) = now.unwrap_or_default();
    let other = if world.settings.host.is_none() && world.is_here()? {
        Source::Published.to_string()
    } else {
        "the recorded host".into()
    };
    let rows = rows(&topology, &modules, &other);
    Ok(KnownModules { rows, notes, topology, modules })
}

/// Every GPU of a host; a module id that is not known now may be in its topology, with the source
/// `other`.
fn rows(topology: &Topology, modules: &Modules, other: &str) -> Vec<ModuleOfGpu> {
    let planned = &topology.fabric().module_ids;
    let row = |(gpu, bdf): (usize, Bdf)| {
        let known = modules.get(bdf).zip(modules.source(bdf).map(|by| by.to_string()));
        let found = planned.iter().find(|(gpu, _)| *gpu == bdf && modules.is_empty());
        let known = known.or_else(|| found.map(|(_, id)| (*id, other.to_owned())));
        let (module, by) = known.unzip();
        ModuleOfGpu { gpu, bdf, module, by }
    };
    topology.gpus().map(|gpu| gpu.bdf).enumerate().map(row).collect()
}

impl KnownModules {
    /// Writes the admin's file atomically; with `dry_run` only reports it.
    pub fn write(&self, world: &World, dry_run: bool) -> Result<()> {
        let KnownModules { topology, modules, .. } = self;
        let renewed = if dry_run {
            refuse_foreign(&FsRoot::live()?)?;
            links::to_keep(&FsRoot::live()?, true)?.is_some()
        } else {
            keep(true, world)?
        };
        if renewed {
            let would = if dry_run { "would write " } else { "" };
            world.progress(&format!("{would}{}: NVLinks by NVML", links::PATH));
        }
        if modules.is_empty() && Path::new(links::PATH).exists() {
            world.progress("no GPU of this host has a module id");
            return Ok(());
        }
        if modules.is_empty() {
            let hint = "NVML sees GPUs only while they are bound to the driver `nvidia`; or write \
                        the file by hand, as {\"0000:1b:00.0\": 1, ...}";
            return Err(HostVerbError::NoModuleIds { path: PATH.to_string() }.hint(hint));
        }
        for gpu in topology.gpus().filter(|gpu| modules.get(gpu.bdf).is_none()) {
            world
                .warning(&format!("the module id of GPU {} is not known and not written", gpu.bdf));
        }
        let (file, text) = (Path::new(PATH), modules.to_file());
        files::refuse_link(file)?;
        if input::state(file).ok().flatten().is_some_and(|there| there == text) {
            world.progress(&format!("{PATH}: already set; nothing to do"));
            return Ok(());
        }
        let number = modules.iter().count();
        if dry_run {
            world.progress(&format!("would write {number} module ids to {PATH}"));
            return Ok(());
        }
        let dir = file.parent().unwrap_or(Path::new("/"));
        files::make_dir(dir).map_err(|error| {
            HostVerbError::NoDirectory { dir: dir.display().to_string(), error: error.to_string() }
                .refusal("run it as root")
        })?;
        files::write(file, true, text.as_bytes())?;
        world.progress(&format!("{PATH}: {number} module ids"));
        Ok(())
    }
}
