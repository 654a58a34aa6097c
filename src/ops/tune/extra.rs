//! The changes beside a tuned definition: missing huge pages, converted disks, and the running
//! guest.

use super::Tune;
use super::convert::Conversion;
use super::live;
use super::subject::Subject;
use super::subjects::Subjects;
use crate::apply::Step;
use crate::domain::guest::Made;
use crate::domain::live::live_changes;
use crate::error::Result;
use crate::fsroot::FsRoot;
use crate::history::guest;
use crate::pages::{self, Pools};
use crate::request::PageSize;
use crate::shell::word;
use crate::topology::Topology;
use crate::world::World;
use gpuvm_core::nccl::topology;
use gpuvm_core::tune::{TuneError, Tuned};

/// The changes beside a definition.
#[derive(Debug, Default)]
pub struct Extra {
    /// Steps on the host, before the definition changes.
    pub first: Vec<Step>,
    /// Steps on the running guest, after that.
    pub last: Vec<Step>,
    /// The parts of the definition that wait for the next start; `None` if no running guest was
    /// examined.
    pub waits: Option<Vec<String>>,
    /// The remains of the previous state, in words.
    pub stays: Vec<String>,
    /// The part of the request that is not done.
    pub undone: Option<String>,
    /// Data on drives that the guest gets, a phrase each.
    pub losses: Vec<String>,
}

/// The changes beside each definition, in the order of the domains.
pub fn of(
    subjects: &Subjects,
    tuned: &[Result<Tuned, TuneError>],
    world: &World,
    wanted: &Tune,
) -> Result<Vec<Extra>> {
    let host = subjects.topology();
    let all = host.pcpus();
    let root = if wanted.reserve_pages { pages::root(world)? } else { None };
    let mut pools = Pools::new();
    let mut extras = Vec::new();
    for (at, (subject, tuned)) in subjects.all.iter().zip(tuned).enumerate() {
        let mut extra = Extra::default();
        if let Ok(tuned) = tuned {
            if wanted.reserve_pages && !subject.is_file && !subject.running {
                extra.first = missing(tuned, &mut pools, root.as_ref())?;
            }
            let conversions = subjects.conversions(at);
            extra.first.extend(conversions.iter().flat_map(|one| one.steps.clone()));
            extra.first.extend(noted(subject, conversions, world)?);
            extra.stays = conversions.iter().map(Conversion::stays).collect();
            extra.stays.extend(nccl(subject, tuned, host));
            if wanted.reserve_pages && subject.running && has_pages(tuned) {
                let name = &subject.name;
                extra.undone = Some(format!(
                    "no pages are reserved for it while it runs: `gpuvm verify {name}` says \
                     whether its next start finds them, `gpuvm start {name} --reserve-pages` \
                     reserves them then",
                    name = word(name)
                ));
            }
            if let Some(runs) = &subject.live {
                let changes = live_changes(runs, &tuned.after, &all);
                extra.last = live::steps(&subject.name, &changes);
                extra.waits = Some(live::waits(&changes));
            }
        }
        extras.push(extra);
    }
    Ok(extras)
}

/// The notice that a topology file for NCCL in the guest is no longer valid, if the guest needed
/// one.
pub(crate) fn nccl(subject: &Subject, tuned: &Tuned, host: &Topology) -> Option<String> {
    let before = topology(&subject.xml, host).ok().filter(|noted| noted.is_needed)?;
    let is_same = topology(&tuned.after, host).is_ok_and(|after| after.system == before.system);
    let name = word(&subject.name);
    let command = if subject.is_file {
        // The guest that a file describes runs elsewhere, or not at all.
        subject.naming(&format!("as `gpuvm nccl {name}` prints it then"))
    } else {
        format!("`gpuvm nccl {name} --install`")
    };
    (!is_same).then(|| {
        format!(
            "a topology file for NCCL in the guest must be renewed after its next start: {command}"
        )
    })
}

/// The step that records converted disks as the domain's, so that they are known after its
/// definition is removed.
fn noted(subject: &Subject, conversions: &[Conversion], world: &World) -> Result<Option<Step>> {
    let Some(uuid) = subject.xml.uuid().filter(|_| !conversions.is_empty()) else {
        return Ok(None);
    };
    let hypervisor = world.hypervisor()?;
    if !hypervisor.has_guests_here() {
        return Ok(None);
    }
    let made: Vec<Made> = conversions.iter().map(|one| one.converted.made.clone()).collect();
    Ok(guest::add_made(world.state(), &uuid, &subject.name, hypervisor.uri(), &made)?)
}

/// Whether a domain should use huge pages.
fn has_pages(tuned: &Tuned) -> bool {
    tuned.after.root().find("memoryBacking/hugepages").is_some()
}

/// Whether there is something to do for a domain.
pub fn is_changed(subject: &Subject, tuned: &Tuned, extra: &Extra) -> bool {
    let beside = !extra.first.is_empty() || !extra.last.is_empty();
    !subject.is_file && (!tuned.changes.is_empty() || beside)
}

/// The steps that reserve the missing pages of a domain.
fn missing(tuned: &Tuned, pools: &mut Pools, root: Option<&FsRoot>) -> Result<Vec<Step>> {
    let Some(placement) = &tuned.placement else { return Ok(Vec::new()) };
    let Some(page) = placement.huge_pages.map(PageSize::size) else { return Ok(Vec::new()) };
    let steps = pages::steps(&placement.node_pages, page, pools, root)?;
    Ok(steps.into_iter().map(Step::from).collect())
}
