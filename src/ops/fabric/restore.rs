//! Restores partitions after a restart of Fabric Manager. In restart mode it waits for the list of
//! active partitions, which is set once from the running guests, and exits without one after 60 s;
//! in normal mode nothing is active: the missing partitions are activated one by one, and guests
//! that ran meanwhile have lost NVLink.
//!
//! Fabric Manager may start before libvirt, and libvirt's start may wait for it: then the running
//! guests are found by the open files of QEMU processes, and the file of active partitions provides
//! the rest.

use super::{FabricError, address_of, running, unplaced};
use crate::apply::partition::{PartitionError, PartitionGpu, PartitionStep, Switch, Watched};
use crate::discover::{discover, process};
use crate::error::{Error, Result};
use crate::fsroot::FsRoot;
use crate::function_users;
use crate::partition::{placed, refuse_versions};
use crate::topology::{FabricModel, Sriov, Topology};
use crate::world::World;
use gpuvm_core::bdf::Bdf;
use gpuvm_core::fabric::{
    Call, Domain, KnownPartition, Listed, Meaning, Mode, Modules, Restore, RestoreEntry,
    RestoreList, Running, VgpuRestore, restore as decide, restore_vgpus,
};
use gpuvm_core::shell::word;
use gpuvm_host::fabric::config::{Config, PATH};
use gpuvm_host::fabric::{Manager, ManagerRefusal, RestoreFile};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long to wait for a starting Fabric Manager at boot: it waits 60 s for the list, from its own
/// start.
const BOOT: Duration = Duration::from_secs(45);
const LOOK: Duration = Duration::from_millis(500);
/// How long to wait for another process that changes partitions.
const LOCK: Duration = Duration::from_secs(10);
/// The key of a file with the admin's own partitions, whose numbers are in no table.
const DEFINITIONS: &str = "SHARED_PARTITION_DEFINITION_FILE";

/// Options of restoring partitions.
#[derive(Debug, Clone, Copy)]
pub struct Restoring {
    /// Whether it is only shown.
    pub dry_run: bool,
    /// Whether Fabric Manager is just starting: wait for it, and do not call libvirt.
    pub boot: bool,
}

/// The mode in which Fabric Manager started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum StartMode {
    /// It waits for the list of active partitions, and guests keep their NVLinks.
    Restart,
    /// Nothing was active.
    Normal,
}

/// A guest whose partition is not active, with the reason.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Unrestored {
    /// The guest.
    pub domain: Domain,
    /// Its partition; `None` if unknown.
    pub partition: Option<u32>,
    /// Why it is not active.
    pub why: String,
    /// The remedy.
    pub hint: String,
}

/// The partitions restored, or to restore.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Restored {
    /// The mode in which Fabric Manager started; `None` if NVSwitches of this host are not shared.
    pub mode: Option<StartMode>,
    /// Numbers of the partitions that are reported to it, or activated.
    pub partitions: Vec<u32>,
    /// Running guests whose partition is not known or not free: they have no NVLink.
    pub unplaced: Vec<Domain>,
    /// Guests that ran while nothing was active: they have lost NVLink and need a power cycle.
    pub broken: Vec<Domain>,
    /// Those of them that have no NVLink partition now, each with the remedy.
    pub unrestored: Vec<Unrestored>,
    /// Whether it was done, not only shown.
    pub made: bool,
}

impl Restored {
    /// Whether guests are left without NVLink.
    pub fn is_wrong(&self) -> bool {
        !self.unplaced.is_empty() || !self.broken.is_empty() || !self.unrestored.is_empty()
    }
}

/// Reads this machine; at boot without libvirt.
fn topology(world: &World, boot: bool, root: &FsRoot) -> Result<Topology> {
    if boot {
        world.refuse_named_elsewhere("fabric restore")?;
        return Ok(discover(root)?);
    }
    world.refuse_recorded("fabric restore")?;
    world.refuse_elsewhere("fabric restore")?;
    world.topology()
}

/// Passes the active partitions to Fabric Manager, or reports them without doing so.
pub fn restore(world: &World, wanted: Restoring) -> Result<Restored> {
    let root = FsRoot::live()?;
    let topology = topology(world, wanted.boot, &root)?;
    let nothing = Restored {
        mode: None,
        partitions: Vec::new(),
        unplaced: Vec::new(),
        broken: Vec::new(),
        unrestored: Vec::new(),
        made: false,
    };
    if topology.fabric().model != FabricModel::SharedNvswitch {
        return Ok(nothing);
    }
    refuse_versions(None)?;
    let manager = Manager::of_host(&root)?;
    let mode = started(&manager, wanted.boot).map_err(not_answered)?;
    let list = RestoreFile::read(RestoreFile::here());
    let list = list.map_err(|error| FabricError::from(error).with_hint())?;
    let running = if wanted.boot {
        by_processes(&root, &topology, &list)?
    } else {
        by_libvirt(world, &root, &topology, &list)?
    };
    let running = match &mode {
        // Partitions missing in the list are lost: a connection may not show all guests of the
        // machine.
        Mode::Restart => with_processes(running, &root, &topology, &list)?,
        Mode::Normal(_) => running,
    };
    let known = match &mode {
        Mode::Restart => by_table(&root, &topology)?,
        Mode::Normal(_) => Vec::new(),
    };
    let decided = if Config::read(&root)?.is_of_vgpu() {
        of_vgpus(&mode, &list, &running)
    } else {
        decide(&mode, &list, Some(&running), &known).into()
    };
    let Decided { ids, entries, unplaced } = decided;
    let mut restored = match &mode {
        Mode::Restart => {
            if !wanted.dry_run {
                set(&manager, &ids, &Owners { entries: &entries, running: &running, known })?;
            }
            let unrestored = unknown(&unplaced, &running, &topology);
            let mode = Some(StartMode::Restart);
            let made = !wanted.dry_run;
            Restored { mode, partitions: ids, unplaced, unrestored, made, ..nothing }
        }
        Mode::Normal(_) => {
            let failed = if wanted.dry_run {
                Vec::new()
            } else {
                activate_all(&manager, &entries, &topology)
            };
            let restored = activated(&entries, unplaced, &running, &topology, failed);
            let made = !wanted.dry_run && !restored.partitions.is_empty();
            Restored { made, ..restored }
        }
    };
    restored.unrestored.extend(unrecorded(&restored, &running));
    Ok(restored)
}

/// The partitions to report or to activate.
struct Decided {
    ids: Vec<u32>,
    /// Those to activate, and of vGPUs those to report.
    entries: Vec<RestoreEntry>,
    unplaced: Vec<Domain>,
}

impl From<Restore> for Decided {
    fn from(decided: Restore) -> Decided {
        match decided {
            Restore::Set { ids, unplaced } => Decided { ids, entries: Vec::new(), unplaced },
            Restore::Activate { entries, unplaced } => {
                Decided { ids: Vec::new(), entries, unplaced }
            }
        }
    }
}

/// The partitions of vGPUs, from the record of activations alone.
fn of_vgpus(mode: &Mode, list: &RestoreList, running: &[Running]) -> Decided {
    let VgpuRestore { entries, unplaced } = restore_vgpus(mode, list, running);
    Decided { ids: entries.iter().map(|entry| entry.id).collect(), entries, unplaced }
}

/// Returns guests with vGPUs that keep their partition inactive since gpuvm has no record of it.
fn unrecorded(restored: &Restored, running: &[Running]) -> Vec<Unrestored> {
    let is_explained =
        |domain: &Domain| restored.unrestored.iter().any(|one| one.domain == *domain);
    let has_vgpus =
        |domain: &Domain| running.iter().any(|one| one.domain == *domain && !one.vgpus.is_empty());
    let left = restored.unplaced.iter().filter(|one| has_vgpus(one) && !is_explained(one));
    left.map(|domain| Unrestored {
        domain: domain.clone(),
        partition: None,
        why: "gpuvm has no record of it with virtual functions, or another one has its GPUs".into(),
        hint: format!("`gpuvm restart {}` activates it", word(&domain.name)),
    })
    .collect()
}

/// The fate of partitions that were to be activated, by those that were not.
fn activated(
    entries: &[RestoreEntry],
    unplaced: Vec<Domain>,
    running: &[Running],
    topology: &Topology,
    failed: Vec<(&RestoreEntry, String, String)>,
) -> Restored {
    let of = |entry: &RestoreEntry| {
        let its = running.iter().find(|one| one.domain.uuid == entry.domain);
        its.map(|one| one.domain.clone())
    };
    // Guests with vGPUs of one GPU share its partition.
    let has = |entry: &RestoreEntry, one: &Running| {
        one.domain.uuid == entry.domain || !entry.vfs.is_empty() && one.shares(&entry.modules)
    };
    let mut broken: Vec<Domain> = Vec::new();
    for entry in entries {
        for one in running.iter().filter(|one| has(entry, one)) {
            if !broken.contains(&one.domain) {
                broken.push(one.domain.clone());
            }
        }
    }
    let mut unrestored = unknown(&unplaced, running, topology);
    let mut partitions: Vec<u32> = entries.iter().map(|entry| entry.id).collect();
    partitions.retain(|id| failed.iter().all(|(entry, ..)| entry.id != *id));
    unrestored.extend(failed.into_iter().filter_map(|(entry, why, hint)| {
        Some(Unrestored { domain: of(entry)?, partition: Some(entry.id), why, hint })
    }));
    let mode = Some(StartMode::Normal);
    Restored { mode, partitions, unplaced, broken, unrestored, made: false }
}

/// Makes the error that Fabric Manager did not answer, with a hint.
fn not_answered(refusal: ManagerRefusal) -> Error {
    FabricError::from(refusal).with_hint()
}

/// Finds the mode in which it started. At boot waits for it.
fn started(manager: &Manager, boot: bool) -> Result<Mode, ManagerRefusal> {
    let until = Instant::now() + BOOT;
    loop {
        let refusal = match manager.list() {
            Ok(listed) => return Ok(Mode::Normal(listed)),
            Err(refusal) => refusal,
        };
        match refusal.meaning(Call::List) {
            Meaning::WrongMode => return Ok(Mode::Restart),
            Meaning::Unreachable | Meaning::Starting if boot && Instant::now() < until => {
                std::thread::sleep(LOOK);
            }
            _ => return Err(refusal),
        }
    }
}

/// Returns the running guests from libvirt; if it does not answer, from their processes.
fn by_libvirt(
    world: &World,
    root: &FsRoot,
    topology: &Topology,
    list: &RestoreList,
) -> Result<Vec<Running>> {
    match running(world, topology) {
        Err(error @ Error::Hypervisor(_)) => {
            let why = error.whole();
            world.warning(&format!("{why}, so guests are known by their processes alone"));
            by_processes(root, topology, list)
        }
        running => running,
    }
}

/// Adds guests known only by their processes.
fn with_processes(
    mut running: Vec<Running>,
    root: &FsRoot,
    topology: &Topology,
    list: &RestoreList,
) -> Result<Vec<Running>> {
    for one in by_processes(root, topology, list)? {
        let is_same = |other: &Running| match one.domain.uuid.as_str() {
            "" => {
                one.unknown == 0
                    && one.modules.is_subset(&other.modules)
                    && one.vgpus.is_subset(&other.vgpus)
            }
            uuid => other.domain.uuid.eq_ignore_ascii_case(uuid),
        };
        if !running.iter().any(is_same) {
            running.push(one);
        }
    }
    Ok(running)
}

/// Returns the guests with a running QEMU, with the board's GPUs that each has open; if invisible,
/// those in the file.
pub(super) fn by_processes(
    root: &FsRoot,
    topology: &Topology,
    list: &RestoreList,
) -> Result<Vec<Running>> {
    let cards: Vec<Bdf> = topology.ruled().collect();
    let with_vfs = cards.iter().filter(|_| !topology.fabric().whole_gpus_only);
    let vfs = with_vfs.flat_map(|card| topology.vfs_of(*card)).map(|vf| vf.bdf);
    let board: Vec<Bdf> = cards.iter().copied().chain(vfs).collect();
    let opened = function_users::guest_processes(root, &board)?;
    let claims = process::claims(root)?;
    let proven = process::proven(&claims);
    let mut all = Vec::new();
    let mut seen: BTreeSet<Bdf> = BTreeSet::new();
    for (uuid, &pid) in &proven {
        let its = opened.get(&pid).into_iter().flatten();
        seen.extend(its.clone());
        let mut one = with_gpus(topology, (uuid, uuid), its);
        if one.modules.is_empty() && one.unknown == 0 {
            let its = list.partitions.iter().rev();
            let its = its.into_iter().find(|entry| entry.domain.eq_ignore_ascii_case(uuid));
            one.modules = its.map(|entry| entry.modules.clone()).unwrap_or_default();
        }
        all.push(one);
    }
    for (pid, gpus) in opened {
        let others: Vec<&Bdf> = gpus.iter().filter(|bdf| !seen.contains(bdf)).collect();
        if others.is_empty() {
            continue;
        }
        let said =
            claims.iter().find(|claim| claim.pid == pid && !proven.contains_key(&claim.uuid));
        all.push(match said {
            Some(claim) => with_gpus(topology, (&claim.uuid, &claim.uuid), others),
            None => with_gpus(topology, (&format!("process {pid}"), ""), others),
        });
    }
    Ok(all)
}

/// A guest of a name and UUID that runs with these GPUs.
fn with_gpus<'b>(
    topology: &Topology,
    (name, uuid): (&str, &str),
    gpus: impl IntoIterator<Item = &'b Bdf>,
) -> Running {
    let domain = Domain { name: name.to_owned(), uuid: uuid.to_owned() };
    let placed = placed(topology);
    let (modules, vgpus, parts, functions) = Default::default();
    let mut one = Running { domain, modules, unknown: 0, placed, vgpus, parts, functions };
    let module_of = |card: Bdf| {
        let ids = &topology.fabric().module_ids;
        ids.iter().find(|(known, _)| *known == card).map(|(_, module)| *module)
    };
    for bdf in gpus {
        let card = match topology.device(*bdf).map(|device| &device.sriov) {
            Some(Some(Sriov::Vf { pf })) if !topology.ruled().any(|gpu| gpu == *bdf) => *pf,
            _ => *bdf,
        };
        match module_of(card) {
            // Whether it is all of the GPU the open file does not show.
            Some(module) if card != *bdf => {
                one.vgpus.insert(module);
                one.parts.insert(module);
                one.functions.entry(module).or_insert(*bdf);
            }
            Some(module) => drop(one.modules.insert(module)),
            None => one.unknown += 1,
        }
    }
    one
}

/// Returns the GPUs of partitions by number from the board's table; empty if the admin has defined
/// others.
fn by_table(root: &FsRoot, topology: &Topology) -> Result<Vec<KnownPartition>> {
    let text = root.read(PATH)?.unwrap_or_default();
    if text.lines().any(|line| line.trim_start().starts_with(DEFINITIONS)) {
        return Ok(Vec::new());
    }
    let ids: BTreeMap<Bdf, u32> = topology.fabric().module_ids.iter().copied().collect();
    let sets = topology.fabric().partitions.iter().map(|partition| {
        let modules: Option<Modules> =
            partition.gpus.iter().map(|gpu| ids.get(gpu).copied()).collect();
        Some(KnownPartition { id: partition.id.0, modules: modules? })
    });
    Ok(sets.flatten().collect())
}

/// Who has which partitions.
struct Owners<'a> {
    /// The decided entries of vGPUs.
    entries: &'a [RestoreEntry],
    running: &'a [Running],
    /// Those of the board's table.
    known: Vec<KnownPartition>,
}

/// Sets the list once, verifies it, and records the active partitions.
fn set(manager: &Manager, ids: &[u32], owners: &Owners<'_>) -> Result<()> {
    let Owners { entries, running, known } = owners;
    let file = RestoreFile::lock(RestoreFile::here(), LOCK);
    let mut file = file.map_err(|error| FabricError::from(error).with_hint())?;
    manager.set_activated(ids).map_err(not_answered)?;
    let listed = manager.list().map_err(not_answered)?;
    let is_active = |id: &u32| listed.iter().any(|one| one.id == *id && one.active);
    if let Some(&partition) = ids.iter().find(|id| !is_active(id)) {
        return Err(FabricError::NotTold { partition }.with_hint());
    }
    let modules_of = |id: u32| {
        let listed = listed.iter().find(|one| one.id == id).map(Listed::modules);
        listed.or_else(|| Some(known.iter().find(|known| known.id == id)?.modules.clone()))
    };
    let mut list = RestoreList::default();
    for &id in ids {
        if let Some(entry) = entries.iter().find(|entry| entry.id == id) {
            list = list.with(entry.clone());
            continue;
        }
        let Some(modules) = modules_of(id) else { continue };
        let its = running.iter().find(|one| one.modules == modules);
        let domain = its.map(|one| one.domain.uuid.clone());
        let was = file.list().get(id).map(|entry| entry.domain.clone());
        let domain = domain.or(was).unwrap_or_default();
        list = list.with(RestoreEntry { id, modules, domain, vfs: Vec::new() });
    }
    file.write(list).map_err(|error| FabricError::from(error).with_hint())
}

/// Returns guests whose partition is unknown because their GPUs' module ids are.
fn unknown(unplaced: &[Domain], running: &[Running], topology: &Topology) -> Vec<Unrestored> {
    let is_unknown = |domain: &&Domain| {
        running.iter().any(|one| one.domain.uuid == domain.uuid && one.unknown > 0)
    };
    let named = |domain: &Domain| Unrestored {
        domain: domain.clone(),
        partition: None,
        why: "the module ids of its GPUs are not known".into(),
        hint: topology.how_modules(),
    };
    unplaced.iter().filter(is_unknown).map(named).collect()
}

/// Activates the partitions of running guests; returns failures, each with its reason and a hint. A
/// failure does not stop the others, unless Fabric Manager does not answer at all.
fn activate_all<'e>(
    manager: &Manager,
    entries: &'e [RestoreEntry],
    topology: &Topology,
) -> Vec<(&'e RestoreEntry, String, String)> {
    let mut failed: Vec<(&RestoreEntry, String, String)> = Vec::new();
    let mut is_away = false;
    for entry in entries {
        if is_away && let Some((_, why, hint)) = failed.last().cloned() {
            failed.push((entry, why, hint));
            continue;
        }
        let Err(error) = activate(manager, entry, topology) else { continue };
        is_away = match &error {
            PartitionError::Manager(refusal) | PartitionError::Unsure(refusal) => {
                matches!(refusal, ManagerRefusal::Silent { .. })
                    || refusal.meaning(Call::Activate) == Meaning::Unreachable
            }
            _ => false,
        };
        let error = FabricError::from(error);
        failed.push((entry, error.to_string(), error.helps()));
    }
    failed
}

/// Activates the partition of a running guest.
fn activate(
    manager: &Manager,
    entry: &RestoreEntry,
    topology: &Topology,
) -> Result<(), PartitionError> {
    // The assignment of unknown module ids to GPUs does not matter here.
    let mut unknown = unplaced(topology).into_iter();
    let gpu = |&module: &u32| {
        let bdf = address_of(topology, module).or_else(|| unknown.next())?;
        Some(PartitionGpu { module, bdf })
    };
    let gpus = entry.modules.iter().filter_map(gpu).collect();
    let step = PartitionStep::new(entry.id, gpus, entry.domain.clone());
    let step = PartitionStep { vfs: entry.vfs.clone(), ..step };
    // Its guest runs with these GPUs, so they are not checked.
    let guests = |_: &[Bdf]| Ok(());
    let switch = Switch { manager, file: RestoreFile::here(), wait: LOCK, guests: &guests };
    switch.activate(&step, &mut Watched(None), &mut |_| Ok(()))
}

#[cfg(test)]
mod tests;
