//! `tune`: brings any domain to the settings of a fresh plan. [`gpuvm_core::tune`] decides the
//! settings; here are the domains to tune (`subjects`), their input, and the changes beside the
//! definition: converted disks, huge pages, running guests.

pub mod answer;
pub mod convert;
pub mod extra;
pub(crate) mod live;
pub mod subject;
pub mod subjects;

use crate::apply::{HostStep, Step};
use crate::change::{Change, DomainChange, Part};
use crate::domain::nic_request::NicWish;
use crate::domain_history::{refuse_unreadable, warn_of_saved_state};
use crate::error::Result;
use crate::host_files::too_few_files;
use crate::reporter::Question;
use crate::request::Allow;
use crate::source::Source;
use crate::taken::Taken;
use crate::world::World;
use answer::TunedDomain;
use convert::Convert;
use extra::Extra;
use gpuvm_core::tune::{Items, Left, TuneError, Tuned};
use subject::Subject;
use subjects::Subjects;

/// A request to tune domains.
#[derive(Debug, Clone, Default)]
pub struct Tune {
    /// Domains, or files, which are never changed.
    pub sources: Vec<Source>,
    /// Every defined domain, or for a recorded host every one that `taken` names. One that is
    /// refused does not prevent the others.
    pub all_domains: bool,
    /// The action on each setting, except NICs and formats of disks.
    pub items: Items,
    /// NICs, by their network: changed if there is one, otherwise added.
    pub networks: Vec<NicWish>,
    /// Disks that get another format.
    pub convert: Vec<Convert>,
    /// Which rules may be broken.
    pub allow: Allow,
    /// The source of the domains' occupancy.
    pub taken: Taken,
    /// Whether running guests are changed as well.
    pub live: bool,
    /// Whether missing huge pages of stopped domains are reserved.
    pub reserve_pages: bool,
}

/// The tuning of domains.
#[derive(Debug)]
pub struct Tuning {
    /// The domains.
    pub subjects: Subjects,
    /// The result for each.
    pub tuned: Vec<Result<Tuned, TuneError>>,
    /// The changes beside each definition; empty if only the definitions were examined.
    pub extras: Vec<Extra>,
    /// The settings of each that stay as its owner chose them; empty where they were not
    /// determined.
    pub left: Vec<Vec<Left>>,
}

/// Tunes the definitions only.
pub fn look(world: &World, wanted: &Tune) -> Result<Tuning> {
    let subjects = subjects::read(world, wanted)?;
    let tuned = subjects.tune(world, wanted)?;
    // Each setting that stays is tuned for again, which takes too long for all of a host.
    let named = !wanted.all_domains;
    let left = if named { subjects.left_alone(wanted, &tuned) } else { Vec::new() };
    Ok(Tuning { subjects, tuned, extras: Vec::new(), left })
}

/// Tunes domains, including the changes beside their definitions.
pub fn look_beside(world: &World, wanted: &Tune) -> Result<Tuning> {
    let tuning = look(world, wanted)?;
    let extras = extra::of(&tuning.subjects, &tuning.tuned, world, wanted)?;
    Ok(Tuning { extras, ..tuning })
}

/// Plans the tuning of domains of the hypervisor.
pub fn tune(world: &World, wanted: &Tune) -> Result<Change<Tuning>> {
    let tuning = look_beside(world, wanted)?;
    let domains = tuning.domains(false);
    let question = agreed(&domains, "change the definitions?");
    let changes = tuning.changes("tune");
    let names: Vec<&str> = changes.iter().map(|change| change.name.as_str()).collect();
    let change = Change::new("tune", &names.join(" "), Vec::new(), tuning);
    Ok(Change { parts: changes.into_iter().map(Part::Domain).collect(), question, ..change })
}

/// The question before domains are changed; `None` if nothing is.
pub fn agreed(domains: &[TunedDomain], question: &'static str) -> Option<Question> {
    domains.iter().any(TunedDomain::is_changed).then(|| Question::Agree {
        lines: Some(domains.iter().flat_map(TunedDomain::agreed).collect()),
        question,
        what: "the change".into(),
    })
}

impl Tuning {
    /// Each domain with its result, unless it is refused.
    pub fn pairs(&self) -> impl Iterator<Item = (&Subject, &Tuned)> {
        let pairs = self.subjects.all.iter().zip(&self.tuned);
        pairs.filter_map(|(subject, tuned)| Some((subject, tuned.as_ref().ok()?)))
    }

    /// Data on drives that domains get, a phrase each.
    pub fn losses(&self) -> impl Iterator<Item = &str> {
        self.extras.iter().flat_map(|extra| extra.losses.iter().map(String::as_str))
    }

    /// Whether none is refused.
    pub fn is_whole(&self) -> bool {
        self.tuned.iter().all(Result::is_ok)
    }

    /// Whether the definition of any domain changes.
    pub fn differs(&self) -> bool {
        self.tuned.iter().flatten().any(|tuned| !tuned.changes.is_empty())
    }

    /// The report on each domain; `explain`: with every reason, not only compromises.
    pub fn domains(&self, explain: bool) -> Vec<TunedDomain> {
        let domains = self.subjects.all.iter().zip(&self.tuned).zip(&self.extras);
        let domains = domains.map(|((subject, tuned), extra)| {
            TunedDomain::of(subject, tuned.as_ref(), explain).with_extra(extra)
        });
        let left = self.left.iter().map(Vec::as_slice).chain(std::iter::repeat(&[][..]));
        let domains = domains.zip(left).zip(&self.subjects.all);
        domains.map(|((domain, left), subject)| domain.with_left(subject, left)).collect()
    }

    /// The changes that apply the tuning to domains, as those of `verb`; files are never changed.
    pub fn changes(&self, verb: &'static str) -> Vec<DomainChange> {
        let mut changes = Vec::new();
        for ((subject, tuned), extra) in self.subjects.all.iter().zip(&self.tuned).zip(&self.extras)
        {
            let Ok(tuned) = tuned else { continue };
            if !extra::is_changed(subject, tuned, extra) {
                continue;
            }
            let beside = extra.first.iter().chain(&extra.last).map(Step::to_string);
            changes.push(DomainChange {
                verb,
                name: subject.name.clone(),
                what: tuned.changes.iter().map(ToString::to_string).chain(beside).collect(),
                before: subject.text().to_owned(),
                after: tuned.after.clone(),
                first: extra.first.clone(),
                last: extra.last.clone(),
            });
        }
        changes
    }

    /// Refuses domains that would change and whose history cannot be read, as the change would be.
    pub fn refuse_unreadable(&self, world: &World) -> Result<()> {
        self.changes("").iter().try_for_each(|change| refuse_unreadable(change, world))
    }

    /// Warns, before they are changed, of domains that start from a saved state.
    pub fn warn_of_saved_state(&self, world: &World) -> Result<()> {
        let changed = self.changes("");
        if changed.is_empty() {
            return Ok(());
        }
        let hypervisor = world.hypervisor()?;
        for change in &changed {
            warn_of_saved_state(&*hypervisor, &change.name, world);
        }
        Ok(())
    }

    /// Warnings to the admin about tuned domains, one line each.
    pub fn warnings(&self, world: &World, explain: bool) -> Result<Vec<String>> {
        let qemu = world.hypervisor()?.versions().qemu;
        let mut all = Vec::new();
        for (at, (subject, tuned)) in self.subjects.all.iter().zip(&self.tuned).enumerate() {
            let Ok(tuned) = tuned else { continue };
            // Pages that are missing are reserved with it.
            let first = self.extras.get(at).map_or(&[][..], |extra| &extra.first);
            let reserves =
                first.iter().any(|step| matches!(step, Step::Host(HostStep::SetPages(_))));
            let mut warnings = answer::warnings(subject, tuned, (explain, reserves));
            warnings.extend(too_few_files(world, &tuned.after, qemu));
            all.extend(warnings.iter().map(|warning| format!("{}: {warning}", subject.name)));
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests;
