//! `set`: another size of a guest that is there. The domain is edited as `tune` edits it, planned
//! anew with what it keeps: its devices, disks, NICs, UUID and name. A running guest gets its size
//! at its next start. Refused with the nearest sizes that have a place.

mod pages;
#[cfg(test)]
mod tests;

use crate::change::{Change, Part};
use crate::error::{Error, NoPlace, Refusal, Result};
use crate::memsize::MemSize;
use crate::placement::PlanError;
use crate::request::{PageSize, Request};
use crate::shell::word;
use crate::source::Source;
use crate::tune::subjects::{self, Subjects, refused};
use crate::tune::{Tune, Tuning, agreed, extra};
use crate::world::World;
use gpuvm_core::tune::{Item, Items, TuneError};

/// Memory that every host has for a guest, in GiB, also in large pages.
const LITTLE_GIB: u64 = 8;

/// Another size of a guest; what is not named stays.
#[derive(Debug, Clone)]
pub struct SetRequest {
    /// The domain.
    pub name: String,
    /// vCPUs.
    pub vcpus: Option<u32>,
    /// Memory.
    pub memory: Option<MemSize>,
    /// Pages that back its memory.
    pub huge_pages: Item<PageSize>,
    /// Whether cores and memory of other nodes than those of the devices may be used.
    pub allow_remote: bool,
    /// Whether missing huge pages are reserved, if it is off.
    pub reserve_pages: bool,
}

impl SetRequest {
    /// The settings that it means.
    fn tuning(&self) -> Tune {
        let items = Items {
            anew: true,
            vcpus: self.vcpus.map_or(Item::Keep, Item::To),
            memory: self.memory.map_or(Item::Keep, Item::To),
            huge_pages: self.huge_pages,
            ..Items::default()
        };
        Tune {
            sources: vec![Source::Domain(self.name.clone())],
            items,
            allow_remote: self.allow_remote,
            reserve_pages: self.reserve_pages,
            ..Tune::default()
        }
    }

    /// What of it a request for a guest can say.
    fn request(&self) -> Request {
        Request { vcpus: self.vcpus, memory_kib: self.memory, ..Request::for_gpus(0) }
    }
}

/// Plans another size, including the changes beside the definition.
pub fn look(world: &World, wanted: &SetRequest) -> Result<Tuning> {
    let tune = wanted.tuning();
    let subjects = subjects::read(world, &tune)?;
    let (_, mut tuned) = subjects.try_all(&tune);
    if let Some(Err(error)) = tuned.first() {
        return Err(no_place(&subjects, error, wanted));
    }
    let mut extras = extra::of(&subjects, &tuned, world, &tune)?;
    for ((subject, tuned), extra) in subjects.all.iter().zip(&mut tuned).zip(&mut extras) {
        if let Ok(tuned) = tuned {
            pages::less(subject, tuned, extra, subjects.topology(), world)?;
        }
    }
    Ok(Tuning { subjects, tuned, extras })
}

/// Plans the change.
pub fn set(world: &World, wanted: &SetRequest) -> Result<Change<Tuning>> {
    let tuning = look(world, wanted)?;
    let question = agreed(&tuning.domains(false), "change the guest?");
    let parts = tuning.changes("set").into_iter().map(Part::Domain).collect();
    let again = format!("gpuvm set {}", word(&wanted.name));
    let change = Change::new("set", &wanted.name, Vec::new(), tuning);
    Ok(Change { parts, question, again, ..change })
}

/// The error that a guest cannot get a size, with the nearest ones that it can get.
fn no_place(subjects: &Subjects, error: &TuneError, wanted: &SetRequest) -> Error {
    let [subject] = &subjects.all[..] else { unreachable!("one domain is named") };
    let message = format!("domain `{}` cannot be changed so", subject.name);
    let TuneError::Plan(planned) = error else {
        return refused(subject, &message, error, |_| false);
    };
    if let PlanError::Request(_) = planned {
        return refused(subject, &message, error, |_| false);
    }
    let nearest = nearest(subjects, wanted);
    let request = Box::new(wanted.request());
    Error::from(NoPlace { error: planned.clone(), request, nearest })
        .around(Refusal::around(message, ""))
}

/// The sizes nearest to the wanted one that it can get: fewer vCPUs, less memory, or both.
fn nearest(subjects: &Subjects, wanted: &SetRequest) -> Vec<Request> {
    let fits = |wanted: &SetRequest| {
        let (_, tuned) = subjects.try_all(&wanted.tuning());
        tuned.iter().all(Result::is_ok)
    };
    let vcpus = |of: &SetRequest| {
        let most = most(u64::from(of.vcpus?), |vcpus| {
            fits(&SetRequest { vcpus: u32::try_from(vcpus).ok(), ..of.clone() })
        })?;
        Some(SetRequest { vcpus: u32::try_from(most).ok(), ..of.clone() })
    };
    let memory = |of: &SetRequest| {
        let gib = of.memory?.kib() >> 20;
        let with = |gib| SetRequest { memory: Some(MemSize::from_gib(gib)), ..of.clone() };
        most(gib, |gib| fits(&with(gib))).map(with)
    };
    let mut found: Vec<SetRequest> =
        [vcpus(wanted), memory(wanted)].into_iter().flatten().collect();
    if found.is_empty()
        && let (Some(_), Some(asked)) = (wanted.vcpus, wanted.memory)
    {
        // Both are too much: as many vCPUs as it can get with little memory, then memory.
        let little = Some(asked.min(MemSize::from_gib(LITTLE_GIB)));
        let alone = vcpus(&SetRequest { memory: little, ..wanted.clone() });
        let both = alone.map(|few| SetRequest { memory: wanted.memory, ..few });
        found.extend(both.and_then(|both| memory(&both)));
    }
    found.iter().map(SetRequest::request).collect()
}

/// The largest number below one that does not fit; none: none from 1 on does.
fn most(above: u64, fits: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut low, mut high) = (0, above);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match fits(middle) {
            true => low = middle,
            false => high = middle,
        }
    }
    (low > 0).then_some(low)
}
