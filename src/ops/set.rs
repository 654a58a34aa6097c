//! `set`: another size of an existing guest. The domain is edited as `tune` edits it, and planned
//! with the parts that it keeps: its devices, disks, NICs, UUID and name. A running guest gets its
//! size at its next start, NICs and vCPUs at once where that is requested. Refused with the nearest
//! sizes that have a place.

pub(crate) mod functions;
mod gpus;
mod nics;
mod pages;
#[cfg(test)]
mod tests;
mod vcpus;
mod vgpus;

pub(crate) use gpus::{allowed, refuse_shared};

use crate::autostart::stays_at_boot;
use crate::bdf::Bdf;
use crate::change::{Change, Part};
use crate::domain::nic_request::NicWish;
use crate::error::{Coded, Error, NoPlace, Refusal, Result, usage};
use crate::memsize::MemSize;
use crate::placement::PlanError;
use crate::reporter::Question;
use crate::request::{Allow, Extras, GpuWish, P2pWish, PageSize, Request, Spelled as _, VgpuWish};
use crate::shell::word;
use crate::source::Source;
use crate::taken::Taken;
use crate::tune::subject::Subject;
use crate::tune::subjects::{self, Subjects, refused};
use crate::tune::{Tune, Tuning, agreed, extra};
use crate::words;
use crate::world::World;
use gpuvm_core::guest::gpus_of;
use gpuvm_core::tune::items::{Never, NewNics, OtherFunctions, Resize};
use gpuvm_core::tune::{Item, Items, TuneError, Tuned};
pub use nics::explained;
use std::collections::BTreeSet;

/// The reason a guest does not get another size.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "set-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum SetError {
    /// The guest runs, and its GPUs or other devices are to be others.
    #[error("domain `{name}` is running; {what} can only be added or removed while it is off")]
    Runs { name: String, what: &'static str },
    /// No set of this number has all GPUs of the guest, or only its own.
    #[error("domain `{name}` cannot have {} and keep its own", words::count(*count, "GPU"))]
    NoSet { name: String, count: u32 },
    /// There is no running guest that could be changed at once.
    #[error("domain `{name}` {state}, so there is no running guest to change")]
    NotRunning { name: String, state: &'static str },
    /// This does not change while the guest runs.
    #[error("{what} of domain `{name}` cannot change while it runs")]
    NotLive { name: String, what: String },
    /// The running guest has no room for so many vCPUs.
    #[error("running domain `{name}` can have at most {}", words::count(*most, "vCPU"))]
    NoRoom { name: String, most: u32 },
    /// The running guest cannot lose vCPUs with which it started.
    #[error(
        "running domain `{name}` cannot have fewer than the {} that it started with",
        words::count(*least, "vCPU")
    )]
    StartedWith { name: String, least: u32 },
    /// QEMU does not report when an emulated guest has released vCPUs.
    #[error("running domain `{name}` is emulated, and QEMU takes no vCPUs from emulated guests")]
    Emulated { name: String },
    /// Only GPUs that are all others than its own are of this number.
    #[error(
        "no free set of {} has the GPUs of domain `{name}`; {gets} would be free",
        words::count(*count, "GPU")
    )]
    OtherGpus { name: String, count: u32, gets: String },
    /// The guest would share an NVLink fabric with other guests.
    #[error("{why}")]
    SharedFabric { why: String },
}

impl Coded for SetError {}

/// Memory that every host has for a guest, in GiB, also in large pages.
const LITTLE_GIB: u64 = 8;

/// The most GPUs of a board.
const MOST_GPUS: u32 = 16;

/// Another size of a guest; unnamed settings stay.
#[derive(Debug, Clone, Default)]
pub struct SetRequest {
    /// The domain.
    pub name: String,
    /// Where its definition is; `None` if the hypervisor has it.
    pub source: Option<Source>,
    /// vCPUs.
    pub vcpus: Option<u32>,
    /// The most vCPUs that it may have while it runs.
    pub max_vcpus: Option<u32>,
    /// Memory.
    pub memory: Option<MemSize>,
    /// GPUs; those that it has stay, as far as it has more.
    pub gpus: Option<u32>,
    /// Whether all of its GPUs may be others where no set of this number has its own; of a guest
    /// whose GPUs were only counted they may in any case, if it is off.
    pub may_move: bool,
    /// Exactly these GPUs, whichever it has; `None` if it chooses.
    pub gpu_set: Option<Vec<Bdf>>,
    /// How these GPUs were requested, which is recorded; `None` if GPUs do not change.
    pub gpus_said: Option<GpuWish>,
    /// vGPUs.
    pub vgpu: Item<VgpuWish>,
    /// The passed-through NICs, virtual functions and NVMe drives that it has afterwards.
    pub functions: OtherFunctions,
    /// Whether it may get drives with data on them.
    pub accept_data_loss: bool,
    /// All NICs on networks that it has afterwards; `None` for those that it has.
    pub networks: Option<Vec<NicWish>>,
    /// Whether the running guest is changed at once, too.
    pub live: bool,
    /// Whether other guests may reach its NVLinks.
    pub accept_shared_fabric: bool,
    /// Pages that back its memory.
    pub huge_pages: Item<PageSize>,
    /// Which rules may be broken.
    pub allow: Allow,
    /// Whether missing huge pages are reserved, if it is off.
    pub reserve_pages: bool,
    /// Whether it may be moved to make room for others; `None` to leave it.
    pub movable: Option<bool>,
    /// Whether its GPUs and NICs reach each other through their PCIe switch from its next start
    /// on; `None` to leave it.
    pub p2p: Option<P2pWish>,
    /// Which rules may be broken for it from now on; `None` to leave them.
    pub recorded_allow: Option<Allow>,
    /// The occupancy of other domains: of a recorded host, or of a file, which is only printed.
    pub taken: Taken,
    /// Whether its functions are passed through by iommufd.
    pub iommufd: Item<Never>,
}

impl SetRequest {
    /// The settings with these GPUs, `None` for its own; and with these root ports for
    /// functions, `None` for any.
    pub(crate) fn tuning(&self, gpus: Option<GpuWish>, ports: Option<BTreeSet<u8>>) -> Tune {
        let resize = Resize {
            vcpus: self.vcpus,
            max_vcpus: self.max_vcpus,
            memory: self.memory,
            gpus,
            gpus_said: self.gpus_said.clone(),
            vgpu: self.vgpu.clone(),
            functions: OtherFunctions { ports, ..self.functions.clone() },
            ..Resize::default()
        };
        let items = Items {
            resize: Some(resize),
            huge_pages: self.huge_pages,
            all_nics: self.networks.as_ref().map(|_| NewNics::FreeOrNew),
            movable: match self.movable {
                None => Item::Keep,
                Some(true) => Item::On,
                Some(false) => Item::Off,
            },
            p2p: match self.p2p {
                None => Item::Keep,
                Some(P2pWish::Auto) => Item::On,
                Some(P2pWish::Off) => Item::Off,
            },
            allow: match self.recorded_allow {
                None => Item::Keep,
                Some(none) if none == Allow::default() => Item::Off,
                Some(allow) => Item::To(allow),
            },
            iommufd: self.iommufd,
            ..Items::default()
        };
        Tune {
            sources: vec![self.source.clone().unwrap_or(Source::Domain(self.name.clone()))],
            items,
            taken: self.taken.clone(),
            networks: self.networks.clone().unwrap_or_default(),
            live: self.live,
            allow: self.allow,
            reserve_pages: self.reserve_pages,
            ..Tune::default()
        }
    }

    /// The command that asks for it; `live`: of the running guest at once, too.
    fn line(&self, live: bool) -> String {
        let mut words = vec!["gpuvm set".to_owned(), word(&self.name).into_owned()];
        words.extend(self.vcpus.map(|vcpus| format!("--vcpus {vcpus}")));
        words.extend(self.max_vcpus.map(|most| format!("--max-vcpus {most}")));
        words.extend(self.memory.map(|memory| format!("--memory {}", memory.typed())));
        words.extend(self.gpus.map(|gpus| format!("--gpus {gpus}")));
        words.extend(self.may_move.then(|| "--move".to_owned()));
        words.extend(match &self.vgpu {
            Item::Off => Some("--no-vgpu".to_owned()),
            Item::To(wish) => Some(format!("--vgpu {}", word(&wish.to_string()))),
            Item::Keep | Item::On => None,
        });
        words.extend(functions::words(&self.functions));
        words.extend(match self.huge_pages {
            Item::Off => Some("--huge-pages off".to_owned()),
            Item::To(page) => Some(format!("--huge-pages {}", page.word())),
            Item::Keep | Item::On => None,
        });
        match self.networks.as_deref() {
            Some([]) => words.push("--no-network".to_owned()),
            wishes => words.extend(
                { wishes.into_iter().flatten() }
                    .map(|wish| format!("--network {}", word(&wish.to_string()))),
            ),
        }
        words.extend(live.then(|| "--live".to_owned()));
        words.join(" ")
    }

    /// The part of it that a request for a guest has.
    fn request(&self) -> Request {
        let gpus = self.gpus.unwrap_or_default();
        let vcpus = self.max_vcpus.or(self.vcpus);
        let vcpus_at_start = self.max_vcpus.map(|most| self.vcpus.unwrap_or(1).min(most));
        let memory_kib = self.memory;
        let OtherFunctions { nics, vfs, nvmes, .. } = self.functions.clone();
        let extras = Extras {
            nics: nics.unwrap_or_default(),
            vfs: vfs.unwrap_or_default(),
            nvmes: nvmes.unwrap_or_default(),
            ..Extras::default()
        };
        let vgpu = self.vgpu.value().cloned();
        Request { vcpus, vcpus_at_start, memory_kib, extras, vgpu, ..Request::for_gpus(gpus) }
    }

    /// The same with so many vCPUs as the most that it can have.
    fn with_vcpus(&self, vcpus: u32) -> SetRequest {
        let both = self.max_vcpus.is_some();
        let max_vcpus = both.then_some(vcpus);
        let vcpus = if both { self.vcpus.map(|few| few.min(vcpus)) } else { Some(vcpus) };
        SetRequest { vcpus, max_vcpus, ..self.clone() }
    }
}

/// Plans another size of a domain in a file or of a recorded host: its definition alone.
pub fn look_at_file(world: &World, wanted: &SetRequest) -> Result<Tuning> {
    if wanted.live || wanted.reserve_pages {
        let option = if wanted.live { "--live" } else { "--reserve-pages" };
        return Err(usage(
            format!("{option} changes a machine, and the definition of a file is only printed"),
            format!("leave {option} out: the definition is the same"),
        ));
    }
    let subjects = subjects::read(world, &wanted.tuning(None, None))?;
    let tuned = best(&subjects, wanted)?.map_err(|error| no_place(&subjects, &error, wanted))?;
    let [subject] = &subjects.all[..] else { unreachable!("one domain is named") };
    allowed(&subjects, subject, tuned.placement.as_ref(), wanted, world)?;
    let extras = vec![extra::Extra::default()];
    Ok(Tuning { subjects, tuned: vec![Ok(tuned)], extras, left: Vec::new() })
}

/// Plans another size, including the changes beside the definition.
pub fn look(world: &World, wanted: &SetRequest) -> Result<Tuning> {
    if wanted.live {
        nics::refuse_not_live(world, wanted)?;
    }
    let tune = wanted.tuning(None, None);
    let subjects = subjects::read(world, &tune)?;
    let tuned = best(&subjects, wanted)?.map_err(|error| no_place(&subjects, &error, wanted))?;
    let mut tuned = vec![Ok(tuned)];
    let mut extras = extra::of(&subjects, &tuned, world, &tune)?;
    for ((subject, tuned), extra) in subjects.all.iter().zip(&mut tuned).zip(&mut extras) {
        if let Ok(tuned) = tuned {
            if wanted.live {
                // Other differences from the definition wait for the next start.
                extra.last.clear();
                extra.waits = Some(Vec::new());
            }
            functions::settle(subject, tuned, extra, (&subjects, wanted), world)?;
            pages::less(subject, tuned, extra, subjects.topology(), world)?;
            nics::settle(subject, tuned, extra, wanted, world)?;
            let hypervisor = &*world.hypervisor()?;
            let after = Some(&tuned.after);
            extra.stays.extend(stays_at_boot(&subject.xml, after, hypervisor, world)?);
            vcpus::settle(subject, extra, wanted)?;
        }
    }
    Ok(Tuning { subjects, tuned, extras, left: Vec::new() })
}

/// Plans each set of GPUs that the guest may get, and takes the plan with the fewest compromises
/// and cells, the nearest set first.
fn best(subjects: &Subjects, wanted: &SetRequest) -> Result<Result<Tuned, TuneError>> {
    let [subject] = &subjects.all[..] else { unreachable!("one domain is named") };
    let choices = gpus::choices(subject, subjects, wanted)?;
    let mut found: Option<Result<Tuned, TuneError>> = None;
    let cost = |tuned: &Tuned| {
        let compromises = tuned.reasons.iter().filter(|reason| reason.compromise).count();
        let cells = tuned.placement.as_ref().map_or(0, |placement| placement.cells.len());
        (compromises, cells)
    };
    for gpus in choices {
        let mut tune = wanted.tuning(gpus, functions::ports(subject, subjects, wanted)?);
        tune.items.all_nics = nics::ports(subject, wanted)?;
        let (_, mut tuned) = subjects.try_all(&tune);
        let Some(tuned) = tuned.pop() else { continue };
        let is_better = match (&found, &tuned) {
            (None, _) => true,
            (Some(Err(_)), tuned) => tuned.is_ok(),
            (Some(Ok(old)), Ok(new)) => cost(new) < cost(old),
            (Some(Ok(_)), Err(_)) => false,
        };
        if is_better {
            found = Some(tuned);
        }
    }
    if !matches!(found, Some(Ok(_)))
        && let Some(moved) = moved(subjects, subject, wanted)?
    {
        return Ok(Ok(moved));
    }
    found.ok_or_else(|| {
        let (name, count) = (subject.name.clone(), wanted.gpus.unwrap_or_default());
        let own = gpus::number(subject, subjects).unwrap_or_default();
        let fits = |number: &u32| {
            let other = SetRequest { gpus: Some(*number), ..wanted.clone() };
            let sets = gpus::choices(subject, subjects, &other).unwrap_or_default();
            // Who asks for more is not offered fewer than there are.
            let is_meant = *number != own && (*number > own) == (count > own);
            is_meant && !sets.is_empty() && matches!(best(subjects, &other), Ok(Ok(_)))
        };
        let from = count.min(MOST_GPUS);
        let beside = (0..=MOST_GPUS).flat_map(|by| [from.checked_add(by), from.checked_sub(by)]);
        let near = beside.flatten().find(fits);
        let hint = near.map(|number| format!("`gpuvm set {} --gpus {number}`", word(&name)));
        let capacity = || "`gpuvm capacity` shows which numbers of GPUs fit".to_owned();
        SetError::NoSet { name, count }.hint(hint.unwrap_or_else(capacity))
    })
}

/// Plans a guest with any GPUs of the wanted number, as `apply` does where none of that number has
/// its own; `None` if its GPUs stay, or there are no such GPUs.
fn moved(subjects: &Subjects, subject: &Subject, wanted: &SetRequest) -> Result<Option<Tuned>> {
    let Some(count) = wanted.gpus.filter(|_| !subject.running) else { return Ok(None) };
    let own = gpus::number(subject, subjects).unwrap_or_default();
    if wanted.gpu_set.is_some() || own == 0 || count == own || count == 0 {
        return Ok(None);
    }
    let ports = functions::ports(subject, subjects, wanted)?;
    let mut tune = wanted.tuning(Some(GpuWish::Count(count)), ports);
    tune.items.all_nics = nics::ports(subject, wanted)?;
    let (_, mut tuned) = subjects.try_all(&tune);
    let Some(Ok(tuned)) = tuned.pop() else { return Ok(None) };
    if wanted.may_move || gpus::were_counted(subject) {
        return Ok(Some(tuned));
    }
    let gets = gpus_of(&tuned.after, subjects.topology());
    let gets: Vec<String> = gets.iter().map(ToString::to_string).collect();
    let (name, gets) = (subject.name.clone(), gets.join(", "));
    let line = SetRequest { may_move: true, ..wanted.clone() }.line(false);
    Err(SetError::OtherGpus { name, count, gets }.hint(format!("`{line}` takes them")))
}

/// Plans the change.
pub fn set(world: &World, wanted: &SetRequest) -> Result<Change<Tuning>> {
    let tuning = look(world, wanted)?;
    let losses = tuning.extras.iter().flat_map(|extra| extra.losses.clone());
    let losses: Vec<String> = losses.filter(|_| !wanted.accept_data_loss).collect();
    let question = if losses.is_empty() {
        agreed(&tuning.domains(false), "change the guest?")
    } else {
        Some(Question::Losses { name: wanted.name.clone() })
    };
    let parts = tuning.changes("set").into_iter().map(Part::Domain).collect();
    let again = format!("gpuvm set {}", word(&wanted.name));
    let change = Change::new("set", &wanted.name, Vec::new(), tuning);
    Ok(Change { parts, question, losses, again, ..change })
}

/// The error that a guest cannot be changed so.
pub(crate) fn cannot(subject: &Subject, error: &TuneError) -> Error {
    let message = format!("domain `{}` cannot be changed so", subject.name);
    refused(subject, &message, error, |_| false)
}

/// The error that a guest cannot get a size, with the nearest ones that it can get.
fn no_place(subjects: &Subjects, error: &TuneError, wanted: &SetRequest) -> Error {
    let [subject] = &subjects.all[..] else { unreachable!("one domain is named") };
    let message = format!("domain `{}` cannot be changed so", subject.name);
    if let TuneError::NoPort { what } = error {
        let line = wanted.line(false);
        let hint = if wanted.functions.is_kept() {
            format!("`{line}` gives it the {what}, with a root port, at its next start")
        } else {
            let stop = format!("gpuvm stop {}", word(&subject.name));
            format!("`{stop}`, then `{line}` gives it the {what}, with a root port")
        };
        return Error::from(error.clone()).around(Refusal::around(message, hint));
    }
    if let (TuneError::Item { .. }, Some(vcpus)) = (error, wanted.vcpus)
        && wanted.max_vcpus.is_some_and(|most| most < vcpus)
    {
        let line = SetRequest { max_vcpus: Some(vcpus), ..wanted.clone() }.line(false);
        return Error::from(error.clone()).around(Refusal::around(message, format!("`{line}`")));
    }
    let TuneError::Plan(planned) = error else { return cannot(subject, error) };
    if let PlanError::Request(_) = planned {
        return cannot(subject, error);
    }
    if let Some(hint) = vgpus::remedy(subject, subjects, wanted) {
        return Error::from(error.clone()).around(Refusal::around(message, hint));
    }
    let nearest = nearest(subjects, wanted);
    let request = Box::new(wanted.request());
    Error::from(NoPlace { error: planned.clone(), request, nearest, room: None })
        .around(Refusal::around(message, ""))
}

/// The sizes nearest to the wanted one that it can get: fewer vCPUs, less memory, or both.
fn nearest(subjects: &Subjects, wanted: &SetRequest) -> Vec<Request> {
    let fits = |wanted: &SetRequest| matches!(best(subjects, wanted), Ok(Ok(_)));
    let vcpus = |of: &SetRequest| {
        let with = |vcpus| of.with_vcpus(u32::try_from(vcpus).unwrap_or(u32::MAX));
        let most = most(u64::from(of.max_vcpus.or(of.vcpus)?), |vcpus| fits(&with(vcpus)))?;
        Some(with(most))
    };
    let memory = |of: &SetRequest| {
        let gib = of.memory?.kib() >> 20;
        let with = |gib| SetRequest { memory: Some(MemSize::from_gib(gib)), ..of.clone() };
        most(gib, |gib| fits(&with(gib))).map(with)
    };
    let more = |of: &SetRequest| {
        let [subject] = &subjects.all[..] else { return None };
        let own = gpus::number(subject, subjects)?;
        let fewer = (own + 1..of.gpus?).rev();
        fewer.map(|gpus| SetRequest { gpus: Some(gpus), ..of.clone() }).find(|few| fits(few))
    };
    let mut found: Vec<SetRequest> =
        [vcpus(wanted), memory(wanted), more(wanted)].into_iter().flatten().collect();
    if found.is_empty()
        && let (Some(_), Some(asked)) = (wanted.vcpus.or(wanted.max_vcpus), wanted.memory)
    {
        // Both are too much: as many vCPUs as it can get with little memory, then memory.
        let little = Some(asked.min(MemSize::from_gib(LITTLE_GIB)));
        let alone = vcpus(&SetRequest { memory: little, ..wanted.clone() });
        let both = alone.map(|few| SetRequest { memory: wanted.memory, ..few });
        found.extend(both.and_then(|both| memory(&both)));
    }
    found.iter().map(SetRequest::request).collect()
}

/// The largest number below one that does not fit; `None` if none from 1 on does.
fn most(above: u64, fits: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut low, mut high) = (0, above);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    (low > 0).then_some(low)
}
