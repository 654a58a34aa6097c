//! Placement of a guest: [`plan`] chooses devices, pcpus, memory and the guest's PCIe tree
//! together. Pure: the same host, occupancy and request give the same result; no clock, no I/O, no
//! environment.

mod affinity;
mod assign;
mod auto;
mod blocked;
mod budget;
mod caches;
mod candidates;
mod capacity;
mod chosen;
mod cliques;
mod coherent;
mod compare;
mod cover;
mod cpus;
mod devices;
mod direct;
pub mod explain;
mod extras;
mod free;
mod freeing;
mod future;
mod groups;
mod isolation;
pub mod joint;
mod kind;
mod left_out;
mod limits;
mod memory;
mod names;
mod nearest;
mod nearness;
mod pages;
mod partitions;
mod passing;
mod pcie;
mod pcpus;
mod pick;
mod place;
pub mod reason;
mod request_of_domain;
mod result;
pub mod room;
mod score;
mod search;
mod shares;
mod short;
mod shortage;
mod slots;
mod taken;
mod types;
mod vgpu;
mod vgpu_capacity;
mod whycores;
mod window;

pub use crate::occupancy::{Exclusion, Formerly, GuestVgpu, Held, Moved, Occupancy};
pub use budget::memory_node;
pub use caches::{caches_of, has_own_pcpus, needs_remapping, shows_caches, with_caches};
pub use capacity::{Blocked, Capacity, OfModel, RoomOffer, Size, capacity, offered};
pub use devices::check_model;
pub use free::{FABRIC_MANAGERS, device_states, idle_cores};
pub use freeing::{Advice, Away, Place};
pub use groups::{whole_gpus, whole_group};
pub use isolation::{not_ready, shared_fabric, shared_nvlink};
pub use kind::Kind as ExtraKind;
pub use limits::MOST_VCPUS;
pub use nearest::nearest;
pub use pages::page_to_reserve;
pub use reason::{Because, Reason, Topic, vgpu_words};
pub use request_of_domain::model_of;
pub use result::Placement;
pub use shares::{ExistingVgpu, SharedCard, UNKNOWN_INSTANCES, VgpuOffer, VgpuPlace, shared_cards};
pub(crate) use shares::{is_in_mode, room_now};
pub use short::plan;
pub use taken::floats;
pub use types::{
    DeviceState, GuestCache, GuestCell, GuestPcie, GuestTopology, InitiatorCells, Initiators,
    NodePages, PcieGroup, PcieLink, PlanError,
};
pub(crate) use vgpu::mig_words;
pub use vgpu_capacity::{VgpuCapacity, VgpuGuests, vgpu_capacity, vgpu_guests};
pub use window::{fits_no_guest, is_amd, window, window_reason};

#[cfg(test)]
pub(crate) mod tests;
