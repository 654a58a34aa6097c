//! Compares active NVLink partitions with running guests where Fabric Manager controls the
//! NVSwitches, in the terms of `fabric show`. Without its partition a guest has no working CUDA
//! (gpuvm-hardware(7), SHARED NVSWITCH).

use super::report::{Between, Finding, Report, Wrong};
use crate::fabric::{
    Domain, Listed, Modules, ModulesText, PartitionState, RestoreList, Running, Verdict,
    modules_of, pending, states,
};
use crate::finding::Rule;
use crate::shell::word;

/// CUDA returns error 802 there.
const MISSING: Rule =
    Rule::error("partition-missing", "a running guest whose NVLink partition is inactive");
/// The active partition does not match the guest's GPUs.
const OVERLAP: Rule = Rule::error(
    "partition-overlap",
    "an active NVLink partition that has some GPUs of a running guest, and is not the guest's",
);
/// Guests of other partitions with these GPUs are refused.
const STALE: Rule =
    Rule::error("partition-stale", "an active NVLink partition with no running guest");
/// The guest's GPUs exchange data more slowly.
const DEGRADED: Rule =
    Rule::warning("partition-degraded", "a guest's NVLink partition with fewer NVLinks than most");
/// It was stopped while Fabric Manager was down.
const PENDING: Rule = Rule::warning(
    "partition-pending",
    "an NVLink partition of a guest that is off, still to be deactivated",
);

/// Rules of this module.
pub const RULES: &[Rule] = &[MISSING, OVERLAP, STALE, DEGRADED, PENDING];

/// The state of partitions.
#[derive(Debug)]
pub struct Partitions {
    /// Fabric Manager's list; `None` if it gives none.
    pub listed: Option<Vec<Listed>>,
    /// The running domains.
    pub running: Vec<Running>,
    /// The recorded activations.
    pub remembered: RestoreList,
}

impl Partitions {
    /// Returns every listed partition with its state; `None` if there is no list.
    pub fn states(&self) -> Option<Vec<PartitionState>> {
        self.listed.as_ref().map(|listed| states(listed, &self.running))
    }

    /// Returns how many partitions of stopped domains are still to be deactivated.
    pub fn pending(&self) -> usize {
        pending(&self.remembered, &self.running, self.listed.as_deref()).len()
    }

    /// The domain that a partition was activated for, by its UUID; `None` if unknown.
    fn remembered(&self, state: &PartitionState) -> Option<&str> {
        let entry = self.remembered.get(state.id)?;
        (entry.modules == state.modules).then_some(entry.domain.as_str())
    }
}

/// Reports faults of the partitions of one domain.
pub fn compare(domain: &Domain, partitions: &Partitions, report: &mut Report) {
    let is_it = |uuid: &str| uuid.eq_ignore_ascii_case(&domain.uuid);
    let states = partitions.states();
    if let Some(one) = partitions.running.iter().find(|one| is_it(&one.domain.uuid)) {
        let all = modules_of(partitions.listed.as_deref().unwrap_or_default());
        for state in states.iter().flatten() {
            of_running(one, state, one.has_exactly(&state.modules, &all), report);
        }
        return;
    }
    for state in states.iter().flatten().filter(|state| state.verdict == Verdict::Stale) {
        if partitions.remembered(state).is_some_and(is_it) {
            stale(state, format!("inactive, since domain `{}` is off", domain.name), report);
        }
    }
    let unknown = pending(&partitions.remembered, &partitions.running, None);
    for entry in unknown.iter().filter(|entry| is_it(&entry.domain) && states.is_none()) {
        let wrong = Wrong {
            what: partition(entry.id, &entry.modules),
            expected: format!("inactive, since domain `{}` is off", domain.name),
            found: "still to be deactivated".into(),
            at: at(entry.id),
            hint: &release(entry.id),
        };
        report.differs(&PENDING, Between::Host, wrong);
    }
}

/// Returns findings on partitions active for none of these domains and no running one.
pub fn without_guest(partitions: &Partitions, domains: &[&str]) -> Vec<Finding> {
    let mut report = Report::default();
    let is_one = |uuid: &str| domains.iter().any(|known| known.eq_ignore_ascii_case(uuid));
    for state in partitions.states().iter().flatten() {
        let known = partitions.remembered(state);
        if state.verdict == Verdict::Stale && !known.is_some_and(is_one) {
            stale(state, "inactive, since no running domain uses it".into(), &mut report);
        }
    }
    report.finish()
}

/// Reports faults of a partition of a running guest. `is_exact`: it has exactly these GPUs.
fn of_running(one: &Running, state: &PartitionState, is_exact: bool, report: &mut Report) {
    let what = partition(state.id, &state.modules);
    let name = &one.domain.name;
    match state.verdict {
        Verdict::Missing if is_exact => {
            let hint =
                format!("`gpuvm restart {}` activates it and restarts the guest", word(name));
            let (expected, found) = ("active".into(), "inactive".into());
            let wrong = Wrong { what, expected, found, at: at(state.id), hint: &hint };
            report.differs(&MISSING, Between::Host, wrong);
        }
        Verdict::Overlap if !is_exact && one.has_any(&state.modules) => {
            let id = state.id;
            let hint = format!(
                "`gpuvm stop {}`, then `gpuvm fabric release {id}` deactivates it",
                word(name)
            );
            let expected =
                format!("inactive, since domain `{name}` has {}", ModulesText(&one.modules));
            let wrong = Wrong { what, expected, found: "active".into(), at: at(id), hint: &hint };
            report.differs(&OVERLAP, Between::Host, wrong);
        }
        Verdict::Degraded if is_exact => {
            let wrong = Wrong {
                what: format!("NVLinks of each GPU of {what}"),
                expected: state.links_at_most.to_string(),
                found: state.links.to_string(),
                at: at(state.id),
                hint: "`gpuvm host show` names the GPUs; `journalctl -u nvidia-fabricmanager`",
            };
            report.differs(&DEGRADED, Between::Host, wrong);
        }
        _ => {}
    }
}

/// Reports that a partition is active for no guest.
fn stale(state: &PartitionState, expected: String, report: &mut Report) {
    let wrong = Wrong {
        what: partition(state.id, &state.modules),
        expected,
        found: "active".into(),
        at: at(state.id),
        hint: &release(state.id),
    };
    report.differs(&STALE, Between::Host, wrong);
}

fn partition(id: u32, modules: &Modules) -> String {
    format!("NVLink partition {id} ({})", ModulesText(modules))
}

/// Returns the command that shows it.
fn at(id: u32) -> String {
    format!("partition {id} of `gpuvm fabric show`")
}

/// Returns the command that deactivates it.
fn release(id: u32) -> String {
    format!("`gpuvm fabric release {id}` deactivates it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{ListedGpu, RestoreEntry};

    /// Partitions of two pairs, of all four and of one, of which these are active; module 4 has
    /// lost two links.
    fn listed(active: &[u32]) -> Vec<Listed> {
        let sets: [(u32, &[u32]); 4] = [(0, &[1, 2, 3, 4]), (1, &[1, 2]), (2, &[3, 4]), (3, &[1])];
        let gpu = |&module: &u32| {
            let links = if module == 4 { 16 } else { 18 };
            ListedGpu { module, bus: None, links, most: 18 }
        };
        let one = |(id, set): (u32, &[u32])| {
            let gpus = set.iter().map(gpu).collect();
            Listed { id, active: active.contains(&id), gpus }
        };
        sets.into_iter().map(one).collect()
    }

    /// A domain that runs with these GPUs, and some of unknown module id.
    fn runs(name: &str, modules: &[u32], unknown: usize) -> Running {
        let domain = Domain { name: name.into(), uuid: name.to_uppercase() };
        let modules = modules.iter().copied().collect();
        let (placed, vgpus, parts) = Default::default();
        let functions = std::collections::BTreeMap::new();
        Running { domain, modules, unknown, placed, vgpus, parts, functions }
    }

    /// Rules and partitions found for domain `a`.
    fn found(
        active: Option<&[u32]>,
        running: &[Running],
        remembered: &[u32],
    ) -> Vec<(&'static str, String)> {
        let entry = |&id: &u32| {
            let modules = listed(&[]).iter().find(|one| one.id == id).unwrap().modules();
            RestoreEntry { id, modules, domain: "A".into(), vfs: Vec::new() }
        };
        let partitions = remembered.iter().map(entry).collect();
        let remembered = RestoreList { partitions, ..RestoreList::default() };
        let running = running.to_vec();
        let all = Partitions { listed: active.map(listed), running, remembered };
        let mut report = Report::default();
        compare(&Domain { name: "a".into(), uuid: "a".into() }, &all, &mut report);
        let said = |finding: Finding| (finding.rule, finding.says.message.clone());
        report.finish().into_iter().map(said).collect()
    }

    #[test]
    fn a_guest_that_runs_needs_its_partition_alone_and_whole() {
        let (one, two) = (runs("a", &[1, 2], 0), runs("a", &[3, 4], 0));
        let missing = "NVLink partition 1 (modules 1, 2): expected active, found inactive";
        let overlap = "NVLink partition 0 (modules 1, 2, 3, 4): expected inactive, since domain \
                       `a` has modules 1, 2, found active";
        let part = "NVLink partition 3 (module 1): expected inactive, since domain `a` has modules \
                    1, 2, found active";
        let worn =
            "NVLinks of each GPU of NVLink partition 2 (modules 3, 4): expected 18, found 16";
        let all = worn.replace("2 (modules", "0 (modules 1, 2,");
        for (active, guest, wanted) in [
            (&[1][..], &one, &[][..]),
            (&[], &one, &[("partition-missing", missing)]),
            (&[0, 1], &one, &[("partition-overlap", overlap)]),
            (&[3], &one, &[("partition-missing", missing), ("partition-overlap", part)]),
            (&[2], &two, &[("partition-degraded", worn)]),
            // With module ids unknown only the partition of all GPUs is known to be the guest's.
            (&[0], &runs("a", &[1], 3), &[("partition-degraded", &*all)]),
            (&[1], &runs("a", &[1], 1), &[]),
            (&[3], &runs("a", &[1, 2], 1), &[("partition-overlap", part)]),
        ] {
            let got = found(Some(active), std::slice::from_ref(guest), &[]);
            let got: Vec<_> = got.iter().map(|(rule, text)| (*rule, text.as_str())).collect();
            assert_eq!(got, wanted, "{active:?} {guest:?}");
        }
        // Another guest's partition is not this one's.
        assert_eq!(found(Some(&[1, 2]), &[one, runs("b", &[3, 4], 0)], &[]), []);
    }

    #[test]
    fn leftovers_of_a_guest_are_found_with_or_without_its_name() {
        let stale = "NVLink partition 1 (modules 1, 2): expected inactive, since domain `a` is \
                     off, found active";
        let pending = "NVLink partition 1 (modules 1, 2): expected inactive, since domain `a` is \
                       off, found still to be deactivated";
        assert_eq!(found(Some(&[1]), &[], &[1]), [("partition-stale", stale.to_owned())]);
        assert_eq!(found(None, &[], &[1]), [("partition-pending", pending.to_owned())]);
        assert_eq!(found(Some(&[]), &[], &[1]), []);
        // Its former owner is unknown.
        assert_eq!(found(Some(&[1]), &[], &[]), []);
        // Another guest has got its GPUs.
        assert_eq!(found(Some(&[1]), &[runs("b", &[1, 2], 0)], &[1]), []);
        assert_eq!(found(None, &[runs("b", &[1, 2], 0)], &[1]), []);
        let all = |running: &[Running], remembered| Partitions {
            listed: Some(listed(&[1])),
            running: running.to_vec(),
            remembered,
        };
        let of = |domain: &str| {
            let modules = Modules::from([1, 2]);
            RestoreList::default().with(RestoreEntry {
                id: 1,
                modules,
                domain: domain.into(),
                vfs: Vec::new(),
            })
        };
        for (running, remembered, domains, wanted) in [
            (&[][..], of("A"), &["b"][..], 1),
            (&[], of("A"), &["a"], 0),
            (&[], RestoreList::default(), &["a"], 1),
            (&[runs("c", &[1, 2], 0)], of("A"), &["b"], 0),
            (&[runs("c", &[], 1)], of("A"), &["b"], 0),
        ] {
            let found = without_guest(&all(running, remembered), domains);
            assert_eq!(found.len(), wanted, "{running:?} {domains:?}");
            assert!(found.iter().all(|one| one.rule == "partition-stale"));
        }
    }
}
