//! Counts the guests that still fit on a host, and the obstacles to more. Counts by planning one
//! guest after the other, so that it cannot promise a guest that [`plan`] would refuse.

use super::affinity::Homes;
use super::freeing::{self, Advice};
use super::groups::{Block, block, is_held_whole};
use super::reason::{Because, IsolationReason, Topic};
use super::shared_nvlink;
use super::short::plan;
use super::slots::{Mask, Slots, first, size};
use super::taken::Taken;
use super::types::PlanError;
use super::vgpu_capacity::{VgpuCapacity, vgpu_capacity};
use crate::bdf::Bdf;
use crate::occupancy::Occupancy;
use crate::request::{GpuWish, PinPolicy, Request};
use crate::topology::{Topology, Trust};
use crate::words::nouns;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeSet;

/// The text about guests that are not isolated on a host of strangers.
const OF_STRANGERS: &str = "guests of this host belong to strangers, by `gpuvm host trust`: none \
                            of these is counted, and `create` makes none";

/// The guests that still fit on a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Capacity {
    /// By number of GPUs, ascending.
    pub sizes: Vec<Size>,
    /// The largest size of which a guest fits now; `None` if no size does.
    pub largest: Option<u32>,
    /// The next size up, which does not fit now; `None` if every larger size fits, or there is
    /// none.
    pub next: Option<Blocked>,
    /// By model, if the host has several GPU models and none was requested: guests with GPUs of one
    /// model only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<OfModel>,
    /// vGPUs by type, where GPUs are shared among guests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vgpus: Vec<VgpuCapacity>,
    /// GPUs and NVSwitches that no guest gets even on the empty host, each with the reason.
    pub never_placed: Vec<String>,
    /// Sizes whose guests are not isolated from others on NVLink.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shared_fabric: Vec<u32>,
    /// Whether that is not known of them, but possible: links between the GPUs are not read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub links_unread: bool,
    /// Sizes whose guests are not isolated from others on PCIe, since ports do not redirect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub open_ports: Vec<u32>,
    /// The admin's setting for such guests, or the remedy; `None` if there are no such guests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<Cow<'static, str>>,
    /// Limits of the numbers, and why Fabric Manager would refuse partitions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl Capacity {
    /// Returns which sizes are not isolated from others, on NVLink and on PCIe, a line each.
    pub fn not_isolated(&self) -> Vec<String> {
        let Some(advice) = &self.advice else { return Vec::new() };
        let guests = |sizes: &[u32]| {
            let gpus = nouns(sizes.last().copied().unwrap_or_default(), "GPU");
            let sizes: Vec<String> = sizes.iter().map(u32::to_string).collect();
            format!("guests with {} {gpus}", sizes.join(", "))
        };
        let nvlink = (!self.shared_fabric.is_empty()).then(|| {
            let guests = guests(&self.shared_fabric);
            if self.links_unread {
                format!(
                    "whether Infinity Fabric links lead out of {guests} is unknown: gpuvm does not \
                     read them; {advice}"
                )
            } else {
                format!("not isolated on NVLink: {guests}; {advice}")
            }
        });
        let pcie = (!self.open_ports.is_empty()).then(|| {
            format!(
                "not isolated on PCIe: {}, since ports do not redirect (`gpuvm host doctor` names \
                 them); {advice}",
                guests(&self.open_ports)
            )
        });
        nvlink.into_iter().chain(pcie).collect()
    }
}

/// The guests with GPUs of one model that fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OfModel {
    /// Vendor and device id.
    pub ids: String,
    /// Its name, or the ids.
    pub model: String,
    /// GPUs of this model.
    pub gpus: u32,
    /// By number of GPUs, ascending.
    pub sizes: Vec<Size>,
}

/// Number of guests of a size that fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Size {
    /// GPUs of each guest.
    pub gpus: u32,
    /// Guests that fit beside the existing ones.
    pub now: u32,
    /// Guests that would fit if no domain held anything.
    pub empty: u32,
}

/// A size that does not fit now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Blocked {
    /// Its number of GPUs.
    pub gpus: u32,
    /// The shortage, with numbers.
    pub what: String,
    /// Who holds it, one line each.
    pub holders: Vec<String>,
    /// The shortage even on the empty host; none if it would fit there.
    pub even_empty: Option<String>,
    /// The cheapest way to free it; `None` if ending none of the examined guests would.
    pub advice: Option<Advice>,
    /// The moves that free it, and the command that makes them; `None` if no guest may be moved, or
    /// it was not looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room: Option<RoomOffer>,
    /// Whether more sets of guests exist than were examined, so that there may be a cheaper way.
    pub bounded: bool,
}

/// Moves by which a guest without a place would get one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RoomOffer {
    /// The command that makes them.
    pub command: String,
    /// The moves in words.
    pub moves: Vec<String>,
    /// Indexes of the GPUs that the guest gets then.
    pub gpus: Vec<usize>,
}

/// Counts the guests like this request that fit, for each of these numbers of GPUs (the request's
/// own is ignored); empty: for those that the board offers.
pub fn capacity(topology: &Topology, held: &Occupancy, like: &Request, gpus: &[u32]) -> Capacity {
    let readiness = held.readiness.without_domains();
    let empty = Occupancy { domains: Vec::new(), readiness, ..held.clone() };
    let wanted: BTreeSet<u32> = match gpus {
        [] => offered(topology),
        some => some.iter().copied().collect(),
    };
    let with = |gpus: u32| Request { gpus: GpuWish::Count(gpus), ..like.clone() };
    let count = |request: Request, gpus: u32| {
        let fit = |held: &Occupancy| fitting(topology, held, &request);
        let on_empty = fit(&empty);
        // Nothing is in use, so both counts are the same.
        let now = if held.domains.is_empty() && held.readiness == empty.readiness {
            on_empty
        } else {
            fit(held)
        };
        let is = |of: fn(&Fit) -> bool| of(&now) || now.guests == 0 && of(&on_empty);
        let shares = (is(|fit| fit.shares), is(|fit| fit.open), is(|fit| fit.unread));
        (Size { gpus, now: now.guests, empty: on_empty.guests }, shares)
    };
    let counted = wanted.iter().map(|&gpus| count(with(gpus), gpus));
    let (sizes, shares): (Vec<Size>, Vec<(bool, bool, bool)>) = counted.unzip();
    let of = |is: fn(&(bool, bool, bool)) -> bool| -> Vec<u32> {
        sizes.iter().zip(&shares).filter(|(_, one)| is(one)).map(|(size, _)| size.gpus).collect()
    };
    let (shared_fabric, open_ports) = (of(|(shares, ..)| *shares), of(|(_, open, _)| *open));
    let links_unread = shares.iter().any(|(shares, _, unread)| *shares && *unread);
    let of_model = |(ids, model, number): (String, String, u32)| {
        let wanted = wanted.iter().copied().filter(|&gpus| gpus <= number);
        let request = |gpus| Request { gpu_model: Some(ids.clone()), ..with(gpus) };
        let sizes = wanted.map(|gpus| count(request(gpus), gpus).0).collect();
        OfModel { ids: ids.clone(), model, gpus: number, sizes }
    };
    let models =
        Some(topology.gpu_models()).filter(|all| all.len() > 1 && like.gpu_model.is_none());
    let models = models.into_iter().flatten().map(of_model).collect();
    let largest = sizes.iter().filter(|size| size.now > 0).map(|size| size.gpus).max();
    let next = sizes.iter().find(|size| size.now == 0 && Some(size.gpus) > largest);
    let by_address = ByAddress::new(topology, held, &empty);
    let next = next.and_then(|size| by_address.blocked(held, &empty, &with(size.gpus), size.gpus));
    let causes = held.readiness.causes();
    let mut warnings: Vec<String> = causes.iter().map(ToString::to_string).collect();
    warnings.extend(topology.memory_warning());
    warnings.extend(topology.fabric().links_unread.clone());
    let machine = topology.machine();
    let advice = (!shared_fabric.is_empty() || !open_ports.is_empty()).then(|| {
        match (machine.trust, &machine.trust_unread) {
            // The common sentence leads here.
            (Some(Trust::Strangers), None) => OF_STRANGERS.into(),
            _ => topology.trust_advice(),
        }
    });
    Capacity {
        shared_fabric,
        links_unread,
        open_ports,
        advice,
        sizes,
        largest,
        next,
        models,
        vgpus: vgpu_capacity(topology, held),
        never_placed: by_address.never_placed(),
        warnings,
    }
}

/// Numbers of GPUs that guests of a host have: the sizes of its partitions, otherwise powers of two
/// and all GPUs.
pub fn offered(topology: &Topology) -> BTreeSet<u32> {
    let there = u32::try_from(topology.gpus().count()).unwrap_or(u32::MAX);
    let sizes = topology.partitions().iter().map(|partition| partition.gpus.len());
    let mut sizes: BTreeSet<u32> = sizes.filter_map(|size| u32::try_from(size).ok()).collect();
    if sizes.is_empty() {
        sizes.extend((0..u32::BITS).map(|bit| 1 << bit).take_while(|&size| size < there));
        sizes.insert(there);
    }
    sizes.insert(1);
    sizes.retain(|&size| size > 0 && size <= there);
    sizes
}

#[derive(Clone, Copy)]
struct Fit {
    guests: u32,
    /// Whether the first of them is not isolated from others on NVLink, even if `create` refuses it
    /// for that.
    shares: bool,
    /// Whether ports do not redirect its transfers, likewise.
    open: bool,
    /// Whether links that are not read may lead out of its set.
    unread: bool,
}

/// How many guests of a request fit one after the other; no more than there are GPUs, or pcpus for
/// guests without GPUs.
fn fitting(topology: &Topology, held: &Occupancy, request: &Request) -> Fit {
    let mut held = held.clone();
    let most = match request.gpus {
        GpuWish::Count(0) => topology.pcpus().len(),
        _ => topology.gpus().count(),
    };
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    let strangers = topology.machine().trust == Some(Trust::Strangers);
    let mut fit = Fit { guests: 0, shares: false, open: false, unread: false };
    while fit.guests < most {
        let Ok(placement) = plan(topology, &held, request) else { return fit };
        // Any number floats; one is reported to fit where `create` makes one.
        if fit.guests > 0 && request.pins == PinPolicy::Auto && placement.pins() == PinPolicy::None
        {
            return fit;
        }
        if fit.guests == 0 {
            fit.open = placement.open_ports().is_some();
            let is_unread = |because: &Because| {
                matches!(because, Because::Isolation(IsolationReason::LinksUnread { .. }))
            };
            fit.unread = placement.shared_nvlink().is_some_and(is_unread);
            fit.shares = placement.reasons.iter().any(|reason| reason.choice == Topic::Trust)
                && (!fit.open || shared_nvlink(topology, &held, &placement.devices).is_some());
        }
        // `create` refuses it.
        if strangers && placement.shared_fabric().is_some() || placement.has_no_partition() {
            return fit;
        }
        held.domains.push(placement.held(&format!("({})", fit.guests)));
        fit.guests += 1;
    }
    fit
}

/// Which GPUs guests have only by their addresses, with their whole IOMMU group: no request by
/// number takes them, even on the empty host.
struct ByAddress<'a> {
    slots: Slots<'a>,
    had: Mask,
    now: Taken<'a>,
}

impl<'a> ByAddress<'a> {
    fn new(topology: &'a Topology, held: &'a Occupancy, empty: &'a Occupancy) -> ByAddress<'a> {
        let (homes, taken) = (Homes::new(topology, 0), Taken::new(topology, empty));
        let slots = Slots::new(topology, &homes, &taken);
        let now = Taken::new(topology, held);
        let is_had = |at: &usize| {
            slots.gpus.blocked[*at].as_ref().is_some_and(Block::is_shared)
                && is_held_whole(topology, &now, slots.gpus.bdfs[*at])
        };
        let had = (0..slots.gpus.bdfs.len()).filter(is_had).fold(0, |set, at| set | 1 << at);
        ByAddress { slots, had, now }
    }

    /// GPUs and NVSwitches that are unusable even on the empty host: dead, excluded, used by the
    /// host. Not those that a guest has by their addresses.
    fn never_placed(&self) -> Vec<String> {
        let slots = &self.slots;
        // Another member of the group is a guest's: no other gets the group now.
        let now = slots.gpus.bdfs.iter().map(|gpu| block(slots.topology, &self.now, *gpu));
        let now: Vec<Option<Block<'_>>> = now.collect();
        let is_partly = |at: &usize| {
            let is_so = |block: &Block<'_>| block.is_shared() && block.domain.is_some();
            slots.gpus.blocked[*at].as_ref().is_some_and(Block::is_tied)
                && now[*at].as_ref().is_some_and(is_so)
        };
        let partly = || (0..slots.gpus.bdfs.len()).filter(is_partly);
        let others = partly().fold(first(slots.gpus.bdfs.len()), |set, at| set & !(1 << at));
        let mut lines = slots.lines_with_hints(others & !self.had);
        lines.extend(partly().filter_map(|at| {
            let (gpu, block) = (slots.gpus.bdfs[at], now[at].as_ref()?);
            Some(format!("GPU {at} ({gpu}) {}", block.why(1)))
        }));
        let displays =
            slots.topology.displays().filter(|(gpu, _)| self.now.device(gpu.bdf).is_none());
        lines.extend(displays.map(|(gpu, why)| format!("GPU {} {}", gpu.bdf, why.why())));
        let switches = slots.switches.bdfs.iter().zip(&slots.switches.blocked);
        let line = |(bdf, block): (&Bdf, &Option<Block<'_>>)| {
            Some(format!("NVSwitch {bdf} {}", block.as_ref()?.why(1)))
        };
        lines.extend(switches.filter_map(line));
        lines
    }

    /// Returns the obstacles to guests of a size, and their remedy.
    fn blocked(
        &self,
        held: &Occupancy,
        empty: &Occupancy,
        request: &Request,
        gpus: u32,
    ) -> Option<Blocked> {
        let topology = self.slots.topology;
        let error = plan(topology, held, request).err()?;
        let what = error.to_string();
        let holders = match error {
            PlanError::Taken { holders, .. } => holders,
            PlanError::Impossible { .. } | PlanError::Request(_) => Vec::new(),
        };
        let even_empty = plan(topology, empty, request).err().map(|error| error.to_string());
        let even_empty = even_empty.filter(|_| !self.are_missing(gpus));
        // A test, too, makes room for it: the host is not too small.
        let waits = even_empty.is_some() && plan(topology, &tested(empty), request).is_ok();
        let even_empty = even_empty.filter(|_| !waits);
        let (advice, bounded) = match even_empty {
            None if !waits => freeing::cheapest(topology, held, request),
            _ => (None, false),
        };
        Some(Blocked { gpus, what, holders, even_empty, advice, room: None, bounded })
    }

    /// Whether guests hold what this many GPUs lack on the empty host.
    fn are_missing(&self, gpus: u32) -> bool {
        let free = size(self.slots.gpus.takeable());
        (free..free + size(self.had)).contains(&(gpus as usize).saturating_sub(1))
    }
}

/// The same without the GPUs that wait for a test.
fn tested(held: &Occupancy) -> Occupancy {
    let mut tested = held.clone();
    tested.excluded.retain(|one| !one.untested);
    tested
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_offered_up_to_the_gpus_that_are_there() {
        use crate::placement::tests::testhost::HostSpec;
        let of = |gpus| Vec::from_iter(offered(&HostSpec::even(1, 8, 64, gpus).build()));
        assert_eq!(of(0), [0; 0]);
        assert_eq!(of(1), [1]);
        assert_eq!(of(4), [1, 2, 4]);
        assert_eq!(of(6), [1, 2, 4, 6]);
    }
}
