//! vGPUs that a host has left, by type, and how many guests get some: counted by planning one guest
//! after the other, so that no guest is promised that [`plan`] would refuse.

use super::shares::{VgpuOffer, shared_cards};
use super::short::plan;
use super::types::PlanError;
use super::vgpu::Cards;
use crate::occupancy::Occupancy;
use crate::request::{GpuWish, Request, VgpuWish};
use crate::topology::Topology;
use serde::Serialize;

/// vGPUs of a type that a host has left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VgpuCapacity {
    /// The type: its number, or the name of its directory below `mdev_supported_types`.
    pub type_id: String,
    /// Its name.
    pub name: String,
    /// How many can be created now, each alone: those of another type may take their place.
    pub creatable: u32,
    /// How many there are.
    pub in_use: u32,
    /// Whether MIG backs it and the number of GPU instances is not known: they are counted by frame
    /// buffer, and the driver refuses those without an instance.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unknown_instances: bool,
    /// Guests that fit; none: they were not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guests: Option<VgpuGuests>,
}

/// Guests with vGPUs that fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VgpuGuests {
    /// vGPUs of each.
    pub vgpus: u32,
    /// How many fit beside the existing ones.
    pub now: u32,
    /// Why no further one fits.
    pub limit: String,
}

/// Returns the vGPUs left of each type, in the order of the cards.
pub fn vgpu_capacity(topology: &Topology, held: &Occupancy) -> Vec<VgpuCapacity> {
    let cards = shared_cards(topology, held);
    of_offers(cards.iter().flat_map(|card| &card.offers))
}

/// Adds up the offers of each type.
fn of_offers<'c>(offers: impl Iterator<Item = &'c VgpuOffer>) -> Vec<VgpuCapacity> {
    let mut all: Vec<VgpuCapacity> = Vec::new();
    for offer in offers {
        let VgpuOffer { id, name, creatable, in_use, .. } = offer;
        match all.iter_mut().find(|known| known.type_id == *id && known.name == *name) {
            Some(known) => {
                known.creatable += creatable;
                known.in_use += in_use;
                known.unknown_instances |= offer.has_unknown_instances();
            }
            None => all.push(VgpuCapacity {
                type_id: id.clone(),
                name: name.clone(),
                creatable: *creatable,
                in_use: *in_use,
                unknown_instances: offer.has_unknown_instances(),
                guests: None,
            }),
        }
    }
    all
}

/// Counts the guests like this request that get such vGPUs, on the card that it names if it names
/// one; an error if no such card has the type.
pub fn vgpu_guests(
    topology: &Topology,
    held: &Occupancy,
    like: &Request,
    wish: &VgpuWish,
) -> Result<VgpuCapacity, PlanError> {
    let request = Request { gpus: GpuWish::Count(0), vgpu: Some(wish.clone()), ..like.clone() };
    let mut beside = held.clone();
    let mut now = 0;
    let limit = loop {
        match plan(topology, &beside, &request) {
            Ok(placement) => beside.domains.push(placement.held(&format!("({now})"))),
            Err(error) => break error,
        }
        now += 1;
    };
    let cards = Cards { topology, held, all: shared_cards(topology, held) };
    let offers = cards.named(wish)?.into_iter().flat_map(|card| &card.offers);
    let named = of_offers(offers.filter(|offer| offer.is_named(&wish.type_name)));
    let guests = Some(VgpuGuests { vgpus: wish.count, now, limit: limit.to_string() });
    match named.into_iter().next() {
        Some(of) => Ok(VgpuCapacity { guests, ..of }),
        None => Err(limit),
    }
}
