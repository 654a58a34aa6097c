//! Refusals of guests with vGPUs: why no card has the type, or too few, and the remedy.

use super::{in_mode, most, offers};
use crate::bdf::Bdf;
use crate::memsize::MemSize;
use crate::occupancy::{Exclusion, Held, Occupancy};
use crate::placement::explain::list;
use crate::placement::shares::{SharedCard, VgpuOffer};
use crate::placement::types::PlanError;
use crate::request::{VgpuCardName, VgpuWish};
use crate::shell::word;
use crate::topology::vendor::VENDOR_NVIDIA;
use crate::topology::{
    DeviceKind, PciDevice, Sriov, Topology, VfKind, VgpuInterface, are_of_one_model, frame_buffer,
    is_mig_backed,
};
use crate::words::count;
use std::collections::BTreeSet;

/// Lists the cards of which guests have shares.
const LIST: &str = "`gpuvm vgpu list` shows the GPUs that have vGPUs";

/// Cards of which guests have shares, or could.
pub(in crate::placement) struct Cards<'t> {
    pub topology: &'t Topology,
    pub held: &'t Occupancy,
    pub all: Vec<SharedCard>,
}

impl Cards<'_> {
    /// The cards that a request may mean; an error if it names another device.
    pub fn named(&self, wish: &VgpuWish) -> Result<Vec<&SharedCard>, PlanError> {
        let Some(bdf) = address(self.topology, wish)? else { return Ok(self.all.iter().collect()) };
        match self.all.iter().find(|card| card.bdf == bdf) {
            Some(card) => Ok(vec![card]),
            None => Err(self.held_whole(wish, Some(bdf)).unwrap_or_else(|| self.other(wish, bdf))),
        }
    }

    /// The error of a request whose card a domain has as a whole; `None` if none has. Such a card
    /// is on vfio-pci, where it shows no sign of vGPUs.
    fn held_whole(&self, wish: &VgpuWish, named: Option<Bdf>) -> Option<PlanError> {
        let is_wanted = |gpu: &&PciDevice| match named {
            Some(bdf) => gpu.bdf == bdf,
            None => matches!(gpu.sriov, Some(Sriov::Pf { total: 1.., .. })),
        };
        let gpus = self.topology.of_kind(DeviceKind::Gpu).filter(is_wanted);
        let gpus = gpus.filter(|gpu| gpu.vendor == VENDOR_NVIDIA && !gpu.is_vf());
        let held = gpus.filter_map(|gpu| Some((gpu.bdf, self.holder(gpu.bdf)?)));
        let held: Vec<(Bdf, &Held)> = held.collect();
        let (_, first) = held.first()?;
        let line =
            |(bdf, holder): &(Bdf, &Held)| format!("{bdf} {}, as a whole", holder.holds(*bdf));
        let hint = release(&first.domain);
        Some(none_available(wish, held.iter().map(line).collect(), hint))
    }

    fn holder(&self, bdf: Bdf) -> Option<&Held> {
        self.held.domains.iter().find(|held| held.devices.contains(&bdf))
    }

    /// The error of a device that no driver shares by types.
    fn other(&self, wish: &VgpuWish, bdf: Bdf) -> PlanError {
        let impossible = |what: String, hint: String| PlanError::Impossible { what, hint };
        let Some(device) = self.topology.device(bdf) else {
            return impossible(format!("this host has no function {bdf}"), LIST.into());
        };
        if device.kind() != DeviceKind::Gpu {
            return impossible(format!("{bdf} is not a GPU"), LIST.into());
        }
        let itself = |vf: &PciDevice| {
            let kind = self.topology.vf_kind(vf)?;
            let is_passed =
                matches!(kind, VfKind::Gim | VfKind::IntelShare | VfKind::IntelIntegrated);
            is_passed.then(|| {
                format!("`gpuvm plan --gpu {}` plans a guest with the function itself", vf.bdf)
            })
        };
        if let Some(Sriov::Vf { pf }) = device.sriov {
            if self.all.iter().any(|card| card.bdf == pf) {
                let what =
                    format!("{bdf} is a virtual function, and vGPUs are chosen by their card");
                let named = VgpuWish { gpu: Some(VgpuCardName::At(pf)), ..wish.clone() };
                let hint = format!("`--vgpu {}` names its card", word(&named.to_string()));
                return impossible(what, hint);
            }
            let what =
                format!("{bdf} is a virtual function of {pf}, whose driver has no vGPU types");
            return impossible(what, itself(device).unwrap_or_else(|| LIST.into()));
        }
        if let Some(vf) = self.topology.vfs_of(bdf).next() {
            let what = format!(
                "{bdf} has no vGPUs: its driver gives guests virtual functions, without vGPU types"
            );
            return impossible(what, itself(vf).unwrap_or_else(|| LIST.into()));
        }
        let what = format!("{bdf} has no vGPUs: its driver does not share it among guests");
        impossible(what, format!("{LIST}; --gpu takes the whole GPU"))
    }

    /// The remedy for a card that gets no vGPUs.
    fn reopened(&self, bdf: Bdf) -> String {
        if let Some(mode) = self.topology.no_vgpu_mode(bdf) {
            return mode.hint();
        }
        if let Some(holder) = self.holder(bdf) {
            return release(&holder.domain);
        }
        match self.held.excluded.iter().find(|excluded| excluded.bdf == bdf) {
            Some(Exclusion { untested: true, .. }) => {
                format!("`gpuvm gpu test {bdf}`, or `gpuvm gpu include {bdf} --untested`")
            }
            Some(_) => format!("`gpuvm gpu include {bdf}`"),
            None => format!("`gpuvm gpu include {bdf} --despite-health` accepts it"),
        }
    }
}

/// The address of the card that a request names; an error if no GPU has the index.
fn address(topology: &Topology, wish: &VgpuWish) -> Result<Option<Bdf>, PlanError> {
    let index = match wish.gpu {
        None => return Ok(None),
        Some(VgpuCardName::At(bdf)) => return Ok(Some(bdf)),
        Some(VgpuCardName::Index(index)) => index,
    };
    let gpu = topology.gpus().nth(index as usize).map(|gpu| gpu.bdf);
    let what = || format!("this host has no GPU {index}");
    let hint = || "`gpuvm vgpu list` shows the GPUs by index".to_owned();
    let none = || PlanError::Impossible { what: what(), hint: hint() };
    gpu.map(Some).ok_or_else(none)
}

/// The ways to take a whole GPU from a domain.
fn release(domain: &str) -> String {
    let name = word(domain);
    format!("`gpuvm delete {name}`, or `gpuvm set {name} --gpus 0`")
}

/// The error of cards that give no vGPU at all.
fn none_available(wish: &VgpuWish, holders: Vec<String>, hint: String) -> PlanError {
    let what = format!(
        "requested {} of vGPU type `{}`, 0 available",
        count(wish.count, "vGPU"),
        wish.type_name
    );
    PlanError::Taken { what, holders, hint }
}

/// The error of a type that no card has.
pub(super) fn without(cards: &Cards<'_>, wish: &VgpuWish) -> PlanError {
    let wanted = &wish.type_name;
    if cards.all.is_empty() {
        return cards.held_whole(wish, None).unwrap_or_else(|| {
            let what = cards.topology.without("GPU set up for vGPUs");
            let hint = "`gpuvm gpu list` shows the GPUs; vGPUs need NVIDIA's licensed host driver";
            PlanError::Impossible { what, hint: hint.into() }
        });
    }
    let here = match cards.named(wish) {
        Ok(here) => here,
        Err(error) => return error,
    };
    let is_unknown = |card: &&&SharedCard| card.interface == VgpuInterface::Unknown;
    // The guest's own whole card gets no virtual functions before it gives it back.
    let is_own = |card: &SharedCard| cards.held.own_devices.contains(&card.bdf);
    let mut open: Vec<&&SharedCard> =
        here.iter().filter(is_unknown).filter(|card| card.closed.is_none()).collect();
    open.sort_by_key(|card| is_own(card));
    let unknown = open.first();
    let enabling = |bdf: Bdf| {
        let enables = format!("`gpuvm vgpu vfs {bdf} --on` enables them");
        if cards.held.own_devices.contains(&bdf) {
            return format!("give {bdf} back first (--gpus 0 without --vgpu); then {enables}");
        }
        enables
    };
    if here.iter().all(|card| is_unknown(&card)) {
        let Some(card) = unknown else {
            let first = here.first().map(|card| cards.reopened(card.bdf)).unwrap_or_default();
            let lines = here.iter().filter_map(|card| card.closed.clone()).collect();
            return none_available(wish, lines, first);
        };
        let what =
            format!("no vGPU type `{wanted}` is known: {} has no virtual functions", card.bdf);
        return PlanError::Impossible { what, hint: enabling(card.bdf) };
    }
    let lines: String = here.iter().map(|card| format!("\n  {}", types_of(card))).collect();
    let what = format!("no GPU can have a vGPU of type `{wanted}` now; types by GPU:{lines}");
    let what = if is_mig_profile(wanted) {
        format!("`{wanted}` is a profile of MIG, which is not a vGPU type; {what}")
    } else {
        what
    };
    let mut hint = short_name(&here, wish).unwrap_or_else(|| size_hint(&here, wanted));
    if let Some(other) = cards.all.iter().find_map(|card| fitting(card, wish)) {
        let other = VgpuWish { gpu: Some(VgpuCardName::At(other)), ..wish.clone() };
        hint += &format!("; `--vgpu {}` names a GPU that has it", word(&other.to_string()));
    }
    if let Some(card) = unknown {
        hint += &format!("; {}", enabling(card.bdf));
    }
    PlanError::Impossible { what, hint }
}

/// A card that a request could have named; `None` if it has too few of the type.
fn fitting(card: &SharedCard, wish: &VgpuWish) -> Option<Bdf> {
    let is_enough = |offer: &VgpuOffer| {
        offer.is_named(&wish.type_name) && offer.places.len() >= wish.count as usize
    };
    card.offers.iter().any(is_enough).then_some(card.bdf)
}

/// Whether a name is one of a MIG profile, such as `1g.18gb` or `1g.18gb+me`.
fn is_mig_profile(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let name = name.strip_prefix("mig ").unwrap_or(&name);
    let (profile, _) = name.split_once('+').unwrap_or((name, ""));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts = profile.split_once("g.");
    parts.is_some_and(|(slices, memory)| {
        is_number(slices) && memory.strip_suffix("gb").is_some_and(is_number)
    })
}

/// The remedy for a name without its model, such as `18C` for `H200X-18C`; `None` if no card has
/// room for such a type.
fn short_name(here: &[&SharedCard], wish: &VgpuWish) -> Option<String> {
    let is_meant = |offer: &&VgpuOffer| {
        let size = offer.name.split_once('-').map(|(_, size)| size);
        offer.creatable > 0 && size.is_some_and(|size| size.eq_ignore_ascii_case(&wish.type_name))
    };
    let offer = here.iter().flat_map(|card| &card.offers).find(is_meant)?;
    let full = VgpuWish { type_name: offer.name.clone(), ..wish.clone() };
    Some(format!("`--vgpu {}` names the type in full", word(&full.to_string())))
}

/// The remedy where the cards have types of other sizes only. Without mixed mode a type of another
/// size looks like one that the card never had.
fn size_hint(here: &[&SharedCard], wanted: &str) -> String {
    let is_of_model = |card: &&&SharedCard| {
        let alike = |offer: &VgpuOffer| are_of_one_model(&offer.name, wanted);
        frame_buffer(wanted).is_some() && card.offers.iter().any(alike)
    };
    let used: Vec<&&SharedCard> =
        here.iter().filter(|card| !card.existing.is_empty()).filter(is_of_model).collect();
    match (used.iter().find(|card| !is_mixed(card)), used.first()) {
        (Some(card), _) => format!(
            "a GPU has vGPUs of one frame buffer size unless it is in mixed mode: `nvidia-smi vgpu \
             -shm 1 -i {}`, before its first vGPU",
            card.bdf
        ),
        (None, Some(card)) => format!(
            "the vGPUs of {} leave no room for this size; `gpuvm vgpu list` shows them",
            card.bdf
        ),
        (None, None) => "`gpuvm vgpu list` shows the types".into(),
    }
}

/// Whether a card with vGPUs has, or can have, some of another size beside them.
fn is_mixed(card: &SharedCard) -> bool {
    let size = |name: &str| frame_buffer(name).filter(|_| !is_mig_backed(name));
    let there = card.existing.iter().filter_map(|one| size(one.name.as_deref()?));
    let offered = card.offers.iter().filter(|offer| offer.creatable > 0);
    let sizes: BTreeSet<MemSize> = there.chain(offered.filter_map(|one| size(&one.name))).collect();
    sizes.len() > 1
}

/// A card with the types that it can have now, or why it has none.
fn types_of(card: &SharedCard) -> String {
    if let Some(why) = &card.closed {
        return why.clone();
    }
    if card.interface == VgpuInterface::Unknown {
        return format!("{}: not known, without virtual functions", card.bdf);
    }
    let names = card.offers.iter().filter(|offer| offer.creatable > 0);
    let names: Vec<&str> = names.map(|offer| offer.name.as_str()).collect();
    let names = if names.is_empty() { "none".into() } else { names.join(", ") };
    format!("{}: {names}", card.bdf)
}

/// Why a card's MIG mode does not permit a type.
pub(crate) fn mig_words(bdf: Bdf, type_name: &str) -> String {
    let (is, needs) = if is_mig_backed(type_name) {
        ("off", "is backed by MIG")
    } else {
        ("on", "is not backed by MIG")
    };
    format!("MIG of {bdf} is {is}, and vGPU type `{type_name}` {needs}")
}

/// The error of a type that does not go with a card's MIG mode.
pub(super) fn mig_mode(bdf: Bdf, offer: &VgpuOffer) -> PlanError {
    let mode = u8::from(offer.mig_backed);
    PlanError::Impossible {
        what: mig_words(bdf, &offer.name),
        hint: format!(
            "choose another type, or `nvidia-smi -i {bdf} -mig {mode}` while no guest has the GPU"
        ),
    }
}

/// The number of a type that a card has left, or why it gets none.
fn room(topology: &Topology, card: &SharedCard, offer: &VgpuOffer) -> String {
    if let Some(why) = &card.closed {
        return why.clone();
    }
    if in_mode(topology, &[(card, offer)]).is_empty() {
        return mig_words(card.bdf, &offer.name);
    }
    let (creatable, in_use) = (offer.creatable, offer.in_use);
    let mut room = format!("{}: {creatable} creatable, {in_use} in use", card.bdf);
    if let Some(words) = offer.instance_words() {
        room += &format!(", {words}");
    }
    if !card.excluded.is_empty() {
        room += &format!(", {} excluded", count(card.excluded.len(), "virtual function"));
    }
    room
}

/// An excluded virtual function of a card that has no vGPU, and would have room for one.
fn excluded_function(card: &SharedCard) -> Option<Bdf> {
    let is_unused = card.closed.is_none() && card.existing.is_empty();
    card.excluded.first().filter(|_| is_unused).map(|(function, _)| *function)
}

/// The error that no node has as many as requested.
pub(super) fn short(cards: &Cards<'_>, wish: &VgpuWish) -> PlanError {
    let topology = cards.topology;
    let offers = match offers(cards, wish) {
        Ok(offers) => offers,
        Err(error) => return error,
    };
    let fit = in_mode(topology, &offers);
    let most = most(topology, &fit, wish);
    let all: usize = fit.iter().map(|(_, offer)| offer.places.len()).sum();
    let to_whom = if all > most { " to one guest" } else { "" };
    let lines = offers.iter().map(|(card, offer)| room(topology, card, offer));
    let what = format!(
        "requested {} of vGPU type `{}`, {most} available{to_whom}",
        count(wish.count, "vGPU"),
        wish.type_name
    );
    let holders = offers.iter().flat_map(|(card, _)| &card.existing);
    let mut names: Vec<String> =
        holders.flat_map(|one| one.domains.iter().map(|name| format!("domain `{name}`"))).collect();
    names.sort_unstable();
    names.dedup();
    let lacking = fit.iter().find(|(_, offer)| offer.lacks_instances());
    let profile = lacking.and_then(|(card, offer)| Some((card.bdf, offer.profile?)));
    let closed = offers.iter().all(|(card, _)| card.closed.is_some());
    let closed = offers.first().filter(|_| closed).map(|(card, _)| card.bdf);
    let hint = match (closed, profile, &names[..]) {
        (Some(bdf), ..) => cards.reopened(bdf),
        (None, Some((bdf, profile)), _) => {
            format!("`nvidia-smi mig -i {bdf} -cgi {profile}` makes another GPU instance")
        }
        (None, None, []) => match offers.iter().find_map(|(card, _)| excluded_function(card)) {
            Some(function) => cards.reopened(function),
            None => "`gpuvm vgpu list` shows who has which".to_owned(),
        },
        (None, None, names) => {
            let verb = if names.len() == 1 { "has" } else { "have" };
            format!("{} {verb} vGPUs there; `gpuvm vgpu list` shows them", list(names.iter()))
        }
    };
    PlanError::Taken { what, holders: lines.collect(), hint }
}
