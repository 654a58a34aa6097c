//! Partitions of vGPUs to restore after Fabric Manager restarts: those that were activated for
//! guests that run, from the record of activations alone. A guest whose partition another program
//! activated has none there, and is named.

use super::{Domain, Listed, Mode, Modules, RestoreEntry, RestoreList, Running};
use crate::bdf::Bdf;

/// The decision on partitions of vGPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VgpuRestore {
    /// The partitions to report or to activate, each for a running guest and with its functions.
    pub entries: Vec<RestoreEntry>,
    /// Running guests with vGPUs whose partition is not recorded, not listed or not free.
    pub unplaced: Vec<Domain>,
}

/// Decides which partitions of vGPUs are restored: in restart mode all that running guests use,
/// else those of them that are not active.
pub fn restore_vgpus(mode: &Mode, list: &RestoreList, running: &[Running]) -> VgpuRestore {
    let mut all = VgpuRestore::default();
    for one in running {
        let (found, is_complete) = used(list, one);
        let is_free = |entry: &RestoreEntry| match mode {
            Mode::Restart => Some(true),
            Mode::Normal(listed) => is_missing(entry, listed),
        };
        let places: Vec<(RestoreEntry, Option<bool>)> = found
            .into_iter()
            .map(|entry| {
                let is_free = is_free(&entry).filter(|free| !free || is_activatable(mode, &entry));
                (entry, is_free)
            })
            .collect();
        if !is_complete || places.iter().any(|(_, is_free)| is_free.is_none()) {
            all.unplaced.push(one.domain.clone());
        }
        for (entry, _) in places.into_iter().filter(|(_, is_free)| *is_free == Some(true)) {
            // Guests with vGPUs of one GPU share its partition.
            if all.entries.iter().all(|known| known.id != entry.id) {
                all.entries.push(entry);
            }
        }
    }
    all.entries.sort_by_key(|entry| entry.id);
    all
}

/// Whether an entry has a function of each GPU, without which it can be reported but not activated.
fn is_activatable(mode: &Mode, entry: &RestoreEntry) -> bool {
    *mode == Mode::Restart || entry.vfs.len() == entry.modules.len()
}

/// Whether a partition is listed as inactive and its GPUs are free; `None` if it cannot be
/// activated.
fn is_missing(entry: &RestoreEntry, listed: &[Listed]) -> Option<bool> {
    let found = listed.iter().find(|one| one.id == entry.id && one.modules() == entry.modules)?;
    let is_other = |other: &&Listed| other.id != entry.id && other.active;
    let is_taken = listed.iter().filter(is_other).any(|other| other.has_any(&entry.modules));
    if found.active { Some(false) } else { Some(true).filter(|_| !is_taken) }
}

/// Returns the entries that a running guest uses, and whether they are all that it needs: those
/// recorded for it, and those of GPUs of which it has a part, recorded for the first such guest.
fn used(list: &RestoreList, one: &Running) -> (Vec<RestoreEntry>, bool) {
    let mut left: Modules = one.vgpus.clone();
    let mut found: Vec<RestoreEntry> = Vec::new();
    for entry in list.partitions.iter().rev() {
        let is_its = entry.domain.eq_ignore_ascii_case(&one.domain.uuid);
        // The functions of a guest known from its process alone may not be seen.
        let is_current = one.vgpus.is_empty() || entry.modules.is_subset(&left);
        if is_its && is_current && !entry.modules.is_empty() {
            left = left.difference(&entry.modules).copied().collect();
            found.push(RestoreEntry { vfs: functions(entry, one, true), ..entry.clone() });
        }
    }
    for module in left.clone() {
        let own = Modules::from([module]);
        let is_it = |entry: &&RestoreEntry| entry.modules == own && one.shares(&own);
        if let Some(entry) = list.partitions.iter().rev().find(is_it) {
            left.remove(&module);
            let (domain, vfs) = (one.domain.uuid.clone(), functions(entry, one, false));
            found.push(RestoreEntry { domain, vfs, ..entry.clone() });
        }
    }
    let is_known = one.unknown == 0 || !found.is_empty();
    (found, left.is_empty() && is_known)
}

/// The function of each GPU of an entry: the recorded ones for the guest that it is recorded for,
/// else those that the guest has.
fn functions(entry: &RestoreEntry, one: &Running, is_its: bool) -> Vec<Bdf> {
    if is_its && entry.vfs.len() == entry.modules.len() {
        return entry.vfs.clone();
    }
    entry.modules.iter().filter_map(|module| one.functions.get(module).copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::ListedGpu;

    fn vf(module: u32) -> Bdf {
        format!("0000:{module:02x}:00.4").parse().unwrap()
    }

    fn entry(id: u32, modules: &[u32], domain: &str) -> RestoreEntry {
        let vfs = modules.iter().map(|module| vf(*module)).collect();
        RestoreEntry { id, modules: modules.iter().copied().collect(), domain: domain.into(), vfs }
    }

    /// A guest with vGPUs of these GPUs, which are parts of them or all.
    fn runs(name: &str, vgpus: &[u32], is_part: bool) -> Running {
        let vgpus: Modules = vgpus.iter().copied().collect();
        Running {
            domain: Domain { name: name.into(), uuid: name.into() },
            modules: vgpus.clone(),
            unknown: 0,
            placed: Modules::new(),
            parts: if is_part { vgpus.clone() } else { Modules::new() },
            functions: vgpus.iter().map(|module| (*module, vf(16 + *module))).collect(),
            vgpus,
        }
    }

    /// Partitions of 1 and 3, of 2 and 4, and of each alone.
    fn listed(active: &[u32]) -> Mode {
        let sets: [(u32, &[u32]); 6] =
            [(3, &[1, 3]), (4, &[2, 4]), (7, &[1]), (8, &[2]), (9, &[3]), (10, &[4])];
        let gpu = |module: &u32| ListedGpu { module: *module, bus: None, links: 18, most: 18 };
        let one = |(id, gpus): (u32, &[u32])| Listed {
            id,
            active: active.contains(&id),
            gpus: gpus.iter().map(gpu).collect(),
        };
        Mode::Normal(sets.into_iter().map(one).collect())
    }

    #[test]
    fn recorded_partitions_of_running_guests_are_restored_with_their_functions() {
        let list = RestoreList::default()
            .with(entry(3, &[1, 3], "a"))
            .with(entry(8, &[2], "gone"))
            .with(entry(10, &[4], "b"));
        let running = [runs("a", &[1, 3], false), runs("b", &[4], true), runs("c", &[4], true)];
        let decided = |mode: &Mode, running: &[Running]| {
            let VgpuRestore { entries, unplaced } = restore_vgpus(mode, &list, running);
            let names: Vec<String> = unplaced.into_iter().map(|one| one.name).collect();
            (entries, names)
        };
        let both = vec![entry(3, &[1, 3], "a"), entry(10, &[4], "b")];
        assert_eq!(decided(&Mode::Restart, &running), (both.clone(), vec![]));
        assert_eq!(decided(&listed(&[]), &running), (both.clone(), vec![]));
        assert_eq!(decided(&listed(&[3]), &running), (both[1..].to_vec(), vec![]));
        // Another partition has one of its GPUs.
        assert_eq!(decided(&listed(&[7]), &running), (both[1..].to_vec(), vec!["a".into()]));
        // The guest that it is recorded for is off: another one shares the GPU.
        let shared = RestoreEntry { vfs: vec![vf(20)], ..entry(10, &[4], "c") };
        assert_eq!(decided(&listed(&[]), &running[2..]), (vec![shared], vec![]));
        // None runs; one without a record; one known by its process alone.
        assert_eq!(decided(&Mode::Restart, &[]), (vec![], vec![]));
        let foreign = runs("x", &[2], false);
        assert_eq!(decided(&Mode::Restart, &[foreign]), (vec![], vec!["x".into()]));
        let blind = runs("a", &[], false);
        assert_eq!(decided(&listed(&[]), &[blind]), (both[..1].to_vec(), vec![]));
        assert_eq!(decided(&listed(&[]), &[runs("plain", &[], false)]), (vec![], vec![]));
    }

    #[test]
    fn a_record_without_functions_is_reported_but_not_activated() {
        let old = RestoreEntry { vfs: vec![], ..entry(3, &[1, 3], "a") };
        let list = RestoreList::default().with(old.clone());
        let blind = [runs("a", &[], false)];
        assert_eq!(restore_vgpus(&Mode::Restart, &list, &blind).entries, [old]);
        let decided = restore_vgpus(&listed(&[]), &list, &blind);
        assert_eq!((decided.entries.len(), decided.unplaced.len()), (0, 1));
        // The running guest's definition has them.
        let own = restore_vgpus(&listed(&[]), &list, &[runs("a", &[1, 3], false)]);
        assert_eq!(own.entries[0].vfs, [vf(17), vf(19)]);
    }
}
