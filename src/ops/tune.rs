//! `tune`: any domain made as good as a fresh plan. How is [`gpuvm_core::tune`]'s; here is what is tuned (`subjects`), by
//! what, and what is changed beside the definition: disks that are converted, huge pages, what runs.

pub mod answer;
pub mod convert;
pub mod extra;
mod live;
pub mod subject;
pub mod subjects;

use crate::apply::Step;
use crate::change::{Change, DomainChange, Part};
use crate::domain::wish::NicWish;
use crate::error::Result;
use crate::host_files::too_few_files;
use crate::reporter::Question;
use crate::source::Source;
use crate::taken::Taken;
use crate::world::World;
use answer::TunedDomain;
use convert::Convert;
use extra::Extra;
use gpuvm_core::tune::{Change as ItemChange, Items, TuneError, Tuned};
use subject::Subject;
use subjects::Subjects;

/// What is to be tuned, and how.
#[derive(Debug, Clone, Default)]
pub struct Tune {
    /// Domains, or files, which are never changed.
    pub sources: Vec<Source>,
    /// Every domain that is defined, or of a recorded host every one that `taken` names. One that is refused does not keep
    /// the others.
    pub all_domains: bool,
    /// What becomes of each setting, but NICs and formats of disks.
    pub items: Items,
    /// NICs, by their network: changed where there is one, else added.
    pub networks: Vec<NicWish>,
    /// Disks that get another format.
    pub convert: Vec<Convert>,
    /// Whether cores and memory of other nodes than those of the devices may be taken.
    pub allow_remote: bool,
    /// Where what is taken is read from.
    pub taken: Taken,
    /// Whether what runs is changed, too.
    pub live: bool,
    /// Whether huge pages are reserved that domains are missing which do not run.
    pub reserve_pages: bool,
}

/// What domains are tuned to.
#[derive(Debug)]
pub struct Tuning {
    /// The domains.
    pub subjects: Subjects,
    /// What each is tuned to.
    pub tuned: Vec<Result<Tuned, TuneError>>,
    /// What is changed beside each; empty where only the definitions were looked at.
    pub extras: Vec<Extra>,
}

/// What the definitions are tuned to.
pub fn look(world: &World, wanted: &Tune) -> Result<Tuning> {
    let subjects = subjects::read(world, wanted)?;
    let tuned = subjects.tune(world, wanted)?;
    Ok(Tuning { subjects, tuned, extras: Vec::new() })
}

/// What domains are tuned to, with what is changed beside their definitions.
pub fn look_beside(world: &World, wanted: &Tune) -> Result<Tuning> {
    let tuning = look(world, wanted)?;
    let extras = extra::of(&tuning.subjects, &tuning.tuned, world, wanted)?;
    Ok(Tuning { extras, ..tuning })
}

/// Plans the tuning of domains of the hypervisor.
pub fn tune(world: &World, wanted: &Tune) -> Result<Change<Tuning>> {
    let tuning = look_beside(world, wanted)?;
    let domains = tuning.domains(false);
    let question = domains.iter().any(TunedDomain::is_changed).then(|| Question::Agree {
        lines: Some(domains.iter().flat_map(TunedDomain::agreed).collect()),
        question: "change the definitions?",
        what: "the change".into(),
    });
    let changes = tuning.changes();
    let names: Vec<&str> = changes.iter().map(|change| change.name.as_str()).collect();
    let change = Change::new("tune", &names.join(" "), Vec::new(), tuning);
    Ok(Change { parts: changes.into_iter().map(Part::Domain).collect(), question, ..change })
}

impl Tuning {
    /// Each domain with what it is tuned to, unless it is refused.
    pub fn pairs(&self) -> impl Iterator<Item = (&Subject, &Tuned)> {
        let pairs = self.subjects.all.iter().zip(&self.tuned);
        pairs.filter_map(|(subject, tuned)| Some((subject, tuned.as_ref().ok()?)))
    }

    /// Whether none is refused.
    pub fn is_whole(&self) -> bool {
        self.tuned.iter().all(Result::is_ok)
    }

    /// Whether the definition of one is different then.
    pub fn differs(&self) -> bool {
        self.tuned.iter().flatten().any(|tuned| !tuned.changes.is_empty())
    }

    /// What is said of each domain; `explain`: with every reason, not only compromises.
    pub fn domains(&self, explain: bool) -> Vec<TunedDomain> {
        let domains = self.subjects.all.iter().zip(&self.tuned).zip(&self.extras);
        let domains = domains.map(|((subject, tuned), extra)| {
            TunedDomain::of(subject, tuned.as_ref(), explain).with_extra(extra)
        });
        domains.collect()
    }

    /// The changes that make domains what they are tuned to; files are never changed.
    pub fn changes(&self) -> Vec<DomainChange> {
        let mut changes = Vec::new();
        for ((subject, tuned), extra) in self.subjects.all.iter().zip(&self.tuned).zip(&self.extras)
        {
            let Ok(tuned) = tuned else { continue };
            if !extra::is_changed(subject, tuned, extra) {
                continue;
            }
            let line =
                |ItemChange { item, was, now }: &ItemChange| format!("{item}: {was} -> {now}");
            let beside = extra.first.iter().chain(&extra.last).map(Step::to_string);
            changes.push(DomainChange {
                verb: "tune",
                name: subject.name.clone(),
                what: tuned.changes.iter().map(line).chain(beside).collect(),
                before: subject.text().to_owned(),
                after: tuned.after.clone(),
                first: extra.first.clone(),
                last: extra.last.clone(),
            });
        }
        changes
    }

    /// What an admin should know of domains that were tuned, one line each.
    pub fn warnings(&self, world: &World, explain: bool) -> Result<Vec<String>> {
        let qemu = world.hypervisor()?.versions().qemu;
        let mut all = Vec::new();
        for (subject, tuned) in self.pairs() {
            let mut warnings = answer::warnings(subject, tuned, explain);
            warnings.extend(too_few_files(world, &tuned.after, qemu));
            all.extend(warnings.iter().map(|warning| format!("{}: {warning}", subject.name)));
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests;
