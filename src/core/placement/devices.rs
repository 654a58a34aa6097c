//! Chooses a guest's GPUs and NVSwitches. Knows of pcpus, memory, NICs and drives only the scores
//! it is given.

use super::affinity::Homes;
use super::chosen::{Devices, Set, WantedGpus};
use super::explain::{NO_GPUS, NO_NAMED_GPU, NOTHING_LEFT, Reasons, count, list};
use super::future::Future;
use super::groups::{self, Block};
use super::partitions;
use super::reason::{GpuReason, Topic};
use super::score::{Judges, Key, Ranking, Scorer};
use super::search;
use super::slots::{Mask, Slots, bits, size};
use super::taken::Taken;
use super::types::{DeviceState, PlanError};
use super::{compare, isolation};
use crate::bdf::Bdf;
use crate::request::{GpuWish, Request};
use crate::topology::model::model as model_name;
use crate::topology::{CoherentLack, Topology, Unsupported, VgpuInterface};
use std::collections::BTreeMap;

/// The hint if the host has no GPU at all.
const NO_GPU: &str =
    "leave --gpus and --gpu out for a guest without GPUs; `gpuvm host show` shows the devices";

/// Chooses the devices of a request.
pub(super) fn choose(
    topology: &Topology,
    homes: &Homes<'_>,
    taken: &Taken<'_>,
    judges: &Judges<'_>,
    request: &Request,
    reasons: &mut Reasons,
) -> Result<Devices, PlanError> {
    let mut slots = Slots::new(topology, homes, taken);
    of_model(&mut slots, request)?;
    let wanted = wanted(&slots, &request.gpus)?;
    supported(&slots, wanted)?;
    acceptable(&slots, wanted)?;
    let set = match wanted {
        WantedGpus::Any(0) => Set::default(),
        _ if !topology.is_partitioned() => unpartitioned(&slots, wanted, judges, request, reasons)?,
        _ => partitions::choose(&slots, wanted, judges, request, reasons)?,
    };
    let mut devices = Devices {
        partition: set.id,
        gpus: slots.gpus.of(set.gpus),
        switches: slots.switches.of(set.switches),
        given: taken.given().to_vec(),
        ..Devices::default()
    };
    let extras = judges.extras.choose(&devices.gpus, reasons);
    devices.extras = extras.map_err(|error| match wanted {
        // The set stands for all: none of them fits.
        WantedGpus::Any(number @ 1..) => {
            let gpus =
                format!("no set of {} fits; for {}: ", count(number, "GPU"), slots.label(set.gpus));
            error.after(&gpus)
        }
        _ => error,
    })?;
    let chosen = devices.asked();
    if let Some((bdf, group, _)) = groups::stranger(topology, &chosen) {
        let others = groups::strangers(topology, bdf, &chosen);
        let names: Vec<String> = others.map(|(_, other)| other.to_string()).collect();
        let (are, all) = if names.len() == 1 { ("is", "both") } else { ("are", "all of them") };
        return Err(PlanError::Impossible {
            what: format!(
                "{bdf} shares IOMMU group {group} with {}, which {are} not in the set",
                names.join(", ")
            ),
            hint: format!(
                "ask for {all}, or for a number of GPUs and leave the choice to the planner"
            ),
        });
    }
    devices.companions = groups::companions(topology, taken, &chosen);
    explain(&slots, &devices, reasons);
    untested(taken, &devices, reasons);
    isolation::iommu(topology, &devices.all(), reasons);
    isolation::explain(topology, taken, &devices, reasons);
    Ok(devices)
}

/// Returns the feasible sets of GPUs of a request, the best first, at most this many; empty also
/// for a request without GPUs.
pub(super) fn ranked(
    topology: &Topology,
    homes: &Homes<'_>,
    taken: &Taken<'_>,
    judges: &Judges<'_>,
    request: &Request,
    most: usize,
) -> Vec<(Key, Vec<Bdf>)> {
    let mut slots = Slots::new(topology, homes, taken);
    if of_model(&mut slots, request).is_err() {
        return Vec::new();
    }
    let Ok(wanted) = wanted(&slots, &request.gpus) else { return Vec::new() };
    let mut ranking = Ranking::keeping(most);
    match wanted {
        WantedGpus::Any(0) => {}
        _ if topology.is_partitioned() => {
            partitions::rank(&slots, wanted, judges, request, &mut ranking);
        }
        _ => {
            let future = Future::new(&slots, &[]);
            let scorer = Scorer::new(&slots, &future, judges, request);
            match wanted {
                WantedGpus::Any(number) => search::offer(&scorer, &mut ranking, number, false),
                WantedGpus::These(set) => ranking.offer(&scorer, set, 0, false),
            }
        }
    }
    let with_gpus = |key: Key| (key, slots.gpus.of(key.set()));
    ranking.kept().into_iter().map(with_gpus).collect()
}

/// Keeps only GPUs of the wanted model; an error if the host has none.
fn of_model(slots: &mut Slots<'_>, request: &Request) -> Result<(), PlanError> {
    if let Some(name) = &request.gpu_model {
        slots.gpus.mean(&of_this_model(slots.topology, name)?);
    }
    Ok(())
}

/// Refuses a model that no GPU of the host has.
pub fn check_model(topology: &Topology, name: &str) -> Result<(), PlanError> {
    of_this_model(topology, name).map(drop)
}

/// Returns the GPUs matching a model name; an error if the host has none.
pub(super) fn of_this_model(topology: &Topology, name: &str) -> Result<Vec<Bdf>, PlanError> {
    let bdfs: Vec<Bdf> = topology.gpus_of_model(name).iter().map(|gpu| gpu.bdf).collect();
    if !bdfs.is_empty() {
        return Ok(bdfs);
    }
    let models = topology.gpu_models();
    let model = |(ids, name, number): &(String, String, u32)| {
        if ids == name { format!("{number} x {ids}") } else { format!("{number} x {name} ({ids})") }
    };
    let hint = match models.first() {
        None => "`gpuvm host show` shows the devices".into(),
        Some((ids, ..)) => {
            format!("models here: {}; --gpu-model {ids}", list(models.iter().map(model)))
        }
    };
    Err(PlanError::Impossible { what: format!("this host has no GPU of model `{name}`"), hint })
}

/// Refuses GPUs that no guest gets, whatever holds them: those whose passthrough is not supported
/// yet and those that the IOMMU bars; all of them, or a named one.
fn supported(slots: &Slots<'_>, wanted: WantedGpus) -> Result<(), PlanError> {
    let row = &slots.gpus;
    let is_not = |&at: &usize| {
        let state = row.blocked[at].as_ref().map(Block::state);
        matches!(state, Some(DeviceState::Unsupported | DeviceState::Barred))
    };
    let all = super::slots::first(row.bdfs.len());
    let unsupported = bits(all).filter(is_not).fold(0, |set, at| set | 1 << at);
    let named = match wanted {
        WantedGpus::Any(0) => 0,
        WantedGpus::Any(_) if unsupported == all => unsupported,
        WantedGpus::Any(_) => 0,
        WantedGpus::These(gpus) => gpus & unsupported,
    };
    if named == 0 {
        return Ok(());
    }
    let needs_stack = |at: usize| {
        let device = slots.topology.device(row.bdfs[at]);
        let why = device.and_then(|device| slots.topology.unsupported(device));
        matches!(why, Some(Unsupported::Coherent(CoherentLack::Stack(old))) if old.is_assumed)
    };
    Err(PlanError::Impossible {
        what: slots.lines(named).join("; "),
        hint: match slots.barred(named) {
            Some(why) => why.hint().into(),
            None if bits(named).any(needs_stack) => {
                format!("--assume libvirt=12.9,qemu=11.1 names those of the record; {NO_GPUS}")
            }
            None => {
                match (wanted, bits(named).find_map(|at| share(slots.topology, row.bdfs[at]))) {
                    (WantedGpus::These(_), Some(share)) => share,
                    (WantedGpus::These(_), None) => NO_NAMED_GPU.into(),
                    (WantedGpus::Any(_), _) => NO_GPUS.into(),
                }
            }
        },
    })
}

/// The way to a share of the card of a virtual function; `None` if guests get none by vGPU types.
fn share(topology: &Topology, bdf: Bdf) -> Option<String> {
    let pf = topology.device(bdf)?.pf()?;
    let (_, interface) = topology.shared_gpus().find(|(card, _)| card.bdf == pf)?;
    matches!(interface, VgpuInterface::Vfio | VgpuInterface::Mdev).then(|| {
        format!("`--vgpu TYPE,gpu={pf}` gives it a share; `gpuvm vgpu list` shows the types")
    })
}

/// Refuses named GPUs in a state that an admin can accept, with the option that does.
fn acceptable(slots: &Slots<'_>, wanted: WantedGpus) -> Result<(), PlanError> {
    let WantedGpus::These(gpus) = wanted else { return Ok(()) };
    let row = &slots.gpus;
    let acceptable = |at: usize| match row.blocked[at].as_ref()?.state() {
        state @ (DeviceState::Unhealthy | DeviceState::Untested) => Some(state),
        _ => None,
    };
    let first = bits(gpus).find_map(|at| Some((at, acceptable(at)?)));
    let Some((first, state)) = first else { return Ok(()) };
    let is_not = |at: &usize| acceptable(*at) == Some(state);
    let named = bits(gpus).filter(is_not).fold(0, |set, at| set | 1 << at);
    let bdf = row.bdfs[first];
    let command = match state {
        DeviceState::Untested => {
            format!("test it (`gpuvm gpu test {bdf}`), or `gpuvm gpu include {bdf} --untested`")
        }
        _ => format!("`gpuvm gpu include {bdf} --despite-health`"),
    };
    Err(PlanError::Impossible {
        what: slots.lines(named).join("; "),
        hint: format!("choose others, or {command}, which an admin answers for"),
    })
}

/// Returns why the host's GPUs are unknown, with a hint; none if its functions are listed.
fn unknown(topology: &Topology) -> Option<(String, String)> {
    let why = format!("; {}, so that its GPUs are not known", topology.unlisted()?);
    Some((why, "`gpuvm host show` has the notes of the record".into()))
}

/// Resolves the request on the host.
fn wanted(slots: &Slots<'_>, wish: &GpuWish) -> Result<WantedGpus, PlanError> {
    let there = slots.gpus.counted;
    let impossible = |what: String| {
        if let Some((why, hint)) = unknown(slots.topology) {
            return Err(PlanError::Impossible { what: what + &why, hint });
        }
        let hint = match (there, slots.by_address) {
            (0, Some((gpu, why))) => format!("{gpu} {}: --gpu {gpu}", why.why()),
            (0, None) => NO_GPU.into(),
            _ => format!("indexes run from 0 to {}; `gpuvm host show` shows the GPUs", there - 1),
        };
        Err(PlanError::Impossible { what, hint })
    };
    let set = match wish {
        GpuWish::Count(number) => return Ok(WantedGpus::Any(*number as usize)),
        GpuWish::Run { first, count: number } => {
            let (first, number) = (*first as usize, *number as usize);
            if number == 0 || first.saturating_add(number) > there {
                return impossible(format!(
                    "{} from index {first} on: this host has {there}",
                    count(number, "GPU")
                ));
            }
            (first..first + number).fold(0, |set, index| set | 1 << index)
        }
        GpuWish::Indexes(indexes) => {
            if let Some(index) = indexes.iter().find(|&&index| index as usize >= there) {
                return impossible(format!("no GPU has index {index}: this host has {there}"));
            }
            indexes.iter().fold(0, |set, index| set | 1 << index)
        }
        GpuWish::Exact(bdfs) => {
            if let Some(bdf) = bdfs.iter().find(|&&bdf| slots.gpus.index(bdf).is_none()) {
                return impossible(format!("{bdf} is not a GPU of this host"));
            }
            slots.gpus.mask(bdfs).unwrap_or_default()
        }
    };
    // An empty list of indexes or addresses means no GPU.
    Ok(if set == 0 { WantedGpus::Any(0) } else { WantedGpus::These(set) })
}

/// Chooses GPUs on hosts where any set is allowed.
fn unpartitioned(
    slots: &Slots<'_>,
    wanted: WantedGpus,
    judges: &Judges<'_>,
    request: &Request,
    reasons: &mut Reasons,
) -> Result<Set, PlanError> {
    let free = slots.gpus.takeable();
    let all = size(slots.gpus.meant & super::slots::first(slots.gpus.bdfs.len()));
    let gpus = match wanted {
        WantedGpus::These(gpus) if gpus & !slots.gpus.free != 0 => {
            let what = format!("cannot use {}", slots.label(gpus));
            let hint = slots.with_group(gpus, 1).unwrap_or_else(|| left(slots));
            return Err(slots.refusal(what, slots.lines(gpus), gpus, hint));
        }
        WantedGpus::These(gpus) => {
            reasons.say(Topic::Gpus, GpuReason::Asked { gpus: slots.label(gpus) });
            gpus
        }
        WantedGpus::Any(number) if number > all => {
            let of = request.gpu_model.as_ref().map(|model| format!(" of model `{model}`"));
            let of = of.unwrap_or_default();
            let there = if all == 0 { "none".to_owned() } else { all.to_string() };
            let what = format!("requested {}{of}, this host has {there}", count(number, "GPU"));
            let (why, hint) = match slots.by_address {
                Some((gpu, why)) => {
                    (format!("; {gpu} {}", why.why()), format!("--gpu {gpu} takes it"))
                }
                _ => unknown(slots.topology).unwrap_or_else(|| (String::new(), left(slots))),
            };
            return Err(PlanError::Impossible { what: what + &why, hint });
        }
        WantedGpus::Any(number) => {
            let future = Future::new(slots, &[]);
            let scorer = Scorer::new(slots, &future, judges, request);
            let mut ranking = Ranking::default();
            search::offer(&scorer, &mut ranking, number, false);
            let Some(key) = ranking.winner() else {
                let what = format!(
                    "requested {}, {} of {all} available",
                    count(number, "GPU"),
                    size(free)
                );
                return Err(short(slots, what, number));
            };
            let gpus = key.set();
            let unit = (number != 1).then(|| slots.shared_unit(gpus));
            reasons.say(Topic::Gpus, GpuReason::Together { gpus: slots.label(gpus), unit });
            compare::explain(&scorer, &ranking, reasons);
            compare::broken_units(slots, gpus, reasons);
            let least = compare::least_units(slots, number);
            let gathered = |units: &[Mask]| Some((compare::gathered(slots, units, number)?, 0));
            compare::scattered(&scorer, &key, least, &gathered, reasons);
            gpus
        }
    };
    mixed(slots, gpus, reasons);
    let links: u64 = slots.links(gpus);
    if links > 0 {
        reasons.say(Topic::Gpus, GpuReason::Links { links });
    }
    Ok(Set { id: None, gpus, switches: 0 })
}

/// Adds a reason if a guest gets GPUs of several models.
fn mixed(slots: &Slots<'_>, gpus: Mask, reasons: &mut Reasons) {
    let models: Vec<Mask> = slots.units.models.iter().map(|model| model & gpus).collect();
    let of = |model: &Mask| {
        let gpu = bits(*model).next().map(|at| slots.gpus.bdfs[at])?;
        Some((size(*model), model_name(slots.topology.device(gpu)?).to_string()))
    };
    let models: Vec<(usize, String)> = models.iter().filter_map(of).collect();
    if models.len() > 1 {
        reasons.compromise(Topic::Gpus, GpuReason::Mixed { models });
    }
}

/// Makes the error that there is no set of `number` GPUs.
fn short(slots: &Slots<'_>, what: String, number: usize) -> PlanError {
    let all = super::slots::first(slots.gpus.bdfs.len()) & slots.gpus.meant;
    if size(slots.gpus.takeable()) >= number {
        let set = count(number, "GPU");
        let what = format!(
            "{what}: some GPUs share an IOMMU group, and no set of {set} consists of whole groups"
        );
        return PlanError::Impossible { what, hint: "`gpuvm host show` shows the groups".into() };
    }
    let missing = number - size(slots.gpus.takeable());
    let hint = slots.with_group(all, missing).or_else(|| slots.with_test(all, missing));
    let hint = hint.unwrap_or_else(|| left(slots));
    slots.refusal(what, slots.lines(all), all, hint)
}

/// Returns the hint if no GPU is left; empty if some are, since how many fit is found by planning.
fn left(slots: &Slots<'_>) -> String {
    match (slots.gpus.counted, size(slots.gpus.takeable())) {
        (0, _) => NO_GPU.into(),
        (_, 0) => match slots.barred(super::slots::first(slots.gpus.bdfs.len())) {
            Some(why) => format!("no GPU is free; {}", why.hint()),
            None => format!("no GPU is free; {NOTHING_LEFT}"),
        },
        _ => NOTHING_LEFT.into(),
    }
}

/// Adds a reason if GPUs are not tested since their last guest, unless that is the planned one.
fn untested(taken: &Taken<'_>, devices: &Devices, reasons: &mut Reasons) {
    let is_new = |bdf| devices.gpus.contains(&bdf) && !taken.is_own(bdf);
    let gpus = taken.formerly.iter().filter(|gpu| is_new(gpu.bdf));
    let lines: Vec<String> = gpus.map(|gpu| format!("{}: {}", gpu.bdf, gpu.why)).collect();
    if !lines.is_empty() {
        reasons.compromise(Topic::Gpus, GpuReason::Untested { lines });
    }
}

/// Adds the reasons that apply to every set: companions, drivers, IOMMU.
fn explain(slots: &Slots<'_>, devices: &Devices, reasons: &mut Reasons) {
    let topology = slots.topology;
    let kept_together = |bdf: &Bdf| {
        let group = topology.iommu_group(*bdf);
        group.is_some_and(|group| devices.asked().iter().any(|asked| group.members.contains(asked)))
    };
    let (tied, card): (Vec<Bdf>, Vec<Bdf>) =
        devices.companions.iter().partition(|b| kept_together(b));
    for (functions, by_iommu) in [(tied, true), (card, false)] {
        if !functions.is_empty() {
            reasons.say(Topic::Gpus, GpuReason::Along { functions, by_iommu });
        }
    }
    for &gpu in &devices.gpus {
        let aside = topology.device(gpu).and_then(|gpu| topology.set_aside(gpu));
        if let Some(aside) = aside {
            reasons.compromise(Topic::Gpus, GpuReason::Display { gpu, aside });
        }
    }
    let all = devices.all();
    let mut unbound: BTreeMap<(&str, bool, &'static str), Vec<Bdf>> = BTreeMap::new();
    // A vGPU stays on the vendor's driver.
    let bound = all.iter().filter(|bdf| !topology.is_vgpu_function(**bdf));
    for device in bound.filter_map(|&bdf| topology.device(bdf)) {
        let to = topology.passing_driver(device.bdf);
        match device.driver.as_deref() {
            Some(driver) if driver.replace('_', "-") == to => {}
            driver => {
                let key = (driver.unwrap_or("no driver"), driver.is_some(), to);
                unbound.entry(key).or_default().push(device.bdf);
            }
        }
    }
    for ((driver, is_bound, to), functions) in unbound {
        let driver = is_bound.then(|| driver.to_owned());
        reasons.say(Topic::Drivers, GpuReason::Unbound { functions, driver, to });
    }
    let off: Vec<Bdf> =
        all.iter().copied().filter(|&bdf| topology.iommu_group(bdf).is_none()).collect();
    if !off.is_empty() {
        reasons.compromise(Topic::Drivers, GpuReason::NoGroup { functions: off });
    }
    let row = &slots.gpus;
    let never = super::slots::first(row.bdfs.len()) & !row.free & !row.held;
    if !devices.gpus.is_empty() && bits(never).next().is_some() {
        reasons.say(Topic::Gpus, GpuReason::Never { lines: slots.lines(never) });
    }
}
