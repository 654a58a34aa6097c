//! Other vGPUs of a guest: the remedy where it cannot get them as it is.

use super::SetRequest;
use crate::bdf::Bdf;
use crate::placement::shared_cards;
use crate::request::{VgpuCardName, VgpuWish};
use crate::shell::word;
use crate::topology::{GuestVgpu, Topology, are_of_one_model, frame_buffer};
use crate::tune::subject::Subject;
use crate::tune::subjects::Subjects;
use gpuvm_core::domain::claims::Claims;
use gpuvm_core::guest::gpus_of;
use gpuvm_core::tune::Item;
use gpuvm_core::tune::kinds::Kinds;
use gpuvm_core::tune::together::without;

/// The command that makes a refused change, as far as the guest's own GPUs or vGPUs are in the way;
/// `None` if they are not.
pub(super) fn remedy(
    subject: &Subject,
    subjects: &Subjects,
    wanted: &SetRequest,
) -> Option<String> {
    let topology = subjects.topology();
    let named = wanted.gpu_set.as_ref().map(|set| u32::try_from(set.len()).unwrap_or(u32::MAX));
    let gpus = wanted.gpus.or(named);
    let line = |other: SetRequest| other.line(wanted.live);
    match (&wanted.vgpu, gpus) {
        (Item::To(_), None) if !gpus_of(&subject.xml, topology).is_empty() => {
            let line = line(SetRequest { gpus: Some(0), ..wanted.clone() });
            Some(format!("`{line}` replaces its whole GPUs"))
        }
        (Item::Keep, Some(1..)) if has_some(subject, topology) => {
            let line = line(SetRequest { vgpu: Item::Off, ..wanted.clone() });
            Some(format!("`{line}` replaces its vGPUs"))
        }
        (Item::To(wish), _) if is_hidden(subject, subjects, wish) => {
            let line = line(wanted.clone());
            let name = word(&wanted.name);
            Some(format!(
                "`gpuvm set {name} --no-vgpu` clears its own vGPU, beside which the driver lists \
                 no other size; then `{line}`"
            ))
        }
        _ => None,
    }
}

/// Whether a guest has vGPUs, by its record or its functions.
fn has_some(subject: &Subject, topology: &Topology) -> bool {
    let (passed, kinds) = (Claims::read(&subject.xml).passed, Kinds::new(topology, &subject.xml));
    subject.xml.vgpus().is_ok_and(|vgpus| !vgpus.is_empty())
        || passed.iter().any(|passed| kinds.is_vgpu(passed.bdf.value))
}

/// Whether the driver may list a type only once the guest's own vGPUs are cleared, the only ones on
/// their card: without mixed mode it lists their size alone.
fn is_hidden(subject: &Subject, subjects: &Subjects, wish: &VgpuWish) -> bool {
    let topology = subjects.topology();
    let own = subject.xml.vgpus().unwrap_or_default();
    let is_typed =
        |own: &&GuestVgpu| topology.device(own.function).is_some_and(|vf| vf.vgpu_type().is_some());
    let is_number = wish.type_name.bytes().all(|byte| byte.is_ascii_digit());
    let may_be = |own: &&GuestVgpu| {
        let is_size = frame_buffer(&wish.type_name).is_some();
        is_number || is_size && are_of_one_model(&own.name, &wish.type_name)
    };
    let named: Option<Bdf> = match wish.gpu {
        None => None,
        Some(VgpuCardName::At(bdf)) => Some(bdf),
        Some(VgpuCardName::Index(index)) => topology.gpus().nth(index as usize).map(|gpu| gpu.bdf),
    };
    let is_named = |own: &&GuestVgpu| named.is_none_or(|bdf| bdf == own.card);
    let Some(first) = own.iter().filter(is_typed).filter(may_be).find(is_named) else {
        return false;
    };
    let cards = shared_cards(topology, &without(subjects.occupancy(), &subject.name));
    let is_offered =
        cards.iter().flat_map(|card| &card.offers).any(|of| of.is_named(&wish.type_name));
    let is_alone = cards.iter().filter(|card| card.bdf == first.card).all(|card| {
        let is_own = |function: Bdf| own.iter().any(|own| own.function == function);
        card.existing.iter().all(|one| is_own(one.function))
    });
    is_alone && !is_offered
}
