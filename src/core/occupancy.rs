//! Occupancy of a host: the resources that domains hold, read from their XML, which a plan avoids.

use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeSet};
use crate::fabric::Readiness;
use crate::host_device::HostDevice;
use crate::memsize::MemSize;
pub use crate::topology::GuestVgpu;
use crate::topology::Topology;
use serde::{Deserialize, Serialize};

/// Resources held by one domain of the host, including domains of other tools.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Held {
    /// Its name.
    pub domain: String,
    /// Whether it runs.
    pub active: bool,
    /// The pin of each vCPU that has one.
    pub vcpu_pins: Vec<CpuSet>,
    /// The emulator's pin.
    pub emulator_pin: Option<CpuSet>,
    /// The pins of I/O threads that have one.
    pub iothread_pins: Vec<CpuSet>,
    /// Passed-through PCI functions.
    pub devices: Vec<Bdf>,
    /// Memory by the host nodes that it is bound to; an empty set: bound nowhere.
    pub memory: Vec<(NodeSet, MemSize)>,
    /// Page size of its memory, if it requests huge pages.
    pub huge_page_kib: Option<MemSize>,
    /// Whether it starts with the host, or is counted as one that will run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub autostart: bool,
    /// MAC addresses of its interfaces, lower case.
    #[serde(skip)]
    pub macs: Vec<String>,
    /// vCPUs of the guest, pinned or not; 0: not known.
    #[serde(skip)]
    pub vcpus: u32,
    /// Its UUID; `None` if it has none yet.
    #[serde(skip)]
    pub uuid: Option<String>,
    /// Arguments of QEMU by which it may have functions that are not among its devices: why these
    /// are not known.
    #[serde(skip)]
    pub unread: Vec<String>,
    /// Devices of the host, other than PCI functions, that it has to itself.
    #[serde(skip)]
    pub host_devices: Vec<HostDevice>,
    /// Its vGPUs, as recorded for it: a type that is not set now is its own all the same.
    #[serde(skip)]
    pub vgpus: Vec<GuestVgpu>,
    /// Those of its devices that it holds since they are recorded for it, at other addresses than
    /// its definition has.
    #[serde(skip)]
    pub moved: Vec<Moved>,
}

/// A recorded device that is now at another address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Its address now.
    pub bdf: Bdf,
    /// The recorded address.
    pub was: Bdf,
    /// Whether it is a drive.
    pub is_drive: bool,
    /// Whether this is the one place of the device: others do not report the same.
    pub is_sure: bool,
}

impl Held {
    /// Adds a recorded device that is at another address now.
    pub fn add_moved(&mut self, moved: Moved) {
        if !self.moved.contains(&moved) {
            self.moved.push(moved);
        }
        if !self.devices.contains(&moved.bdf) {
            self.devices.push(moved.bdf);
        }
    }

    /// Where it had a device that it holds only by its record.
    pub fn moved_from(&self, bdf: Bdf) -> Option<Bdf> {
        self.moved.iter().find(|moved| moved.bdf == bdf).map(|moved| moved.was)
    }

    /// Whether a function is surely a device of its own, which has moved.
    pub fn is_moved_here(&self, bdf: Bdf) -> bool {
        self.moved.iter().any(|moved| moved.bdf == bdf && moved.is_sure)
    }

    /// How it holds a function, to be read after the function's address.
    pub fn holds(&self, bdf: Bdf) -> String {
        let domain = &self.domain;
        match self.moved_from(bdf) {
            Some(was) => format!("is recorded for domain `{domain}`, which had it at {was}"),
            None => format!("is held by domain `{domain}`"),
        }
    }

    /// Whether others may have its cores and its normal pages where nothing else is free: it is
    /// off, and does not start with the host. Its devices stay its own.
    pub fn yields(&self) -> bool {
        !self.active && !self.autostart
    }

    /// Whether it has something that it yields.
    fn has_to_yield(&self) -> bool {
        let has_pins = !self.vcpu_pins.is_empty()
            || self.emulator_pin.is_some()
            || !self.iothread_pins.is_empty();
        let has_memory = self.huge_page_kib.is_none() && !self.memory.is_empty();
        self.yields() && (has_pins || has_memory)
    }

    /// Returns the rest that it keeps if it yields these of its parts.
    fn kept(&self, yielded: Yielded) -> Held {
        let mut kept = self.clone();
        if !self.yields() {
            return kept;
        }
        if yielded.cores {
            (kept.vcpu_pins, kept.emulator_pin, kept.iothread_pins) = Default::default();
        }
        if yielded.memory && self.huge_page_kib.is_none() {
            kept.memory.clear();
        }
        kept
    }
}

/// The resources yielded by domains that are off.
#[derive(Debug, Clone, Copy)]
struct Yielded {
    cores: bool,
    memory: bool,
}

impl Occupancy {
    /// The same without the resources yielded by domains that are off; `None` if none of them
    /// yields anything.
    pub fn without_yielded(&self) -> Option<Occupancy> {
        self.yielding(Yielded { cores: true, memory: true })
    }

    /// The same without as little as may do: their cores, beside which both slow down, or their
    /// memory, without which they do not start, or both.
    pub fn yielding_less(&self) -> impl Iterator<Item = Occupancy> {
        let parts = [(true, false), (false, true), (true, true)];
        parts.into_iter().filter_map(|(cores, memory)| self.yielding(Yielded { cores, memory }))
    }

    /// The exclusion of a function, or of the card that it is a share of.
    pub fn exclusion_of(&self, topology: &Topology, bdf: Bdf) -> Option<&Exclusion> {
        Exclusion::of(&self.excluded, topology, bdf)
    }

    fn yielding(&self, yielded: Yielded) -> Option<Occupancy> {
        let kept = || self.domains.iter().map(|held| held.kept(yielded)).collect();
        let yields = self.domains.iter().any(Held::has_to_yield);
        yields.then(|| Occupancy { domains: kept(), ..self.clone() })
    }

    /// The same for a domain that exists, by its UUID and whether it runs: NVLink partitions may be
    /// ready for it that are not for others, and while it runs, its own is active. `ends`: a
    /// partition still active for it is deactivated first.
    pub fn ready_for(self, uuid: Option<&str>, runs: bool, ends: bool) -> Occupancy {
        let readiness =
            if runs { Readiness::default() } else { self.readiness.for_domain(uuid, ends) };
        Occupancy { readiness, ..self }
    }
}

/// The resources in use on a host, of every domain, running or only defined.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Occupancy {
    /// By domain name.
    pub domains: Vec<Held>,
    /// GPUs and NVSwitches that an admin took out of use, and GPUs that must be tested first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<Exclusion>,
    /// GPUs that are offered although they are not tested since their last guest.
    #[serde(skip)]
    pub formerly: Vec<Formerly>,
    /// The reasons why NVLink partitions cannot be activated for new guests.
    #[serde(skip)]
    pub readiness: Readiness,
    /// Pcpus whose cores are not offered although they are free: a plan that is to stay on some
    /// cores closes all others.
    #[serde(skip)]
    pub closed: CpuSet,
    /// Memory of the guest that is planned again, by the nodes that it is bound to now: memory of
    /// others on several nodes lies beside it, as when they were placed. It does not count as held.
    #[serde(skip)]
    pub own_memory: Vec<(NodeSet, MemSize)>,
    /// Functions of such a guest: it keeps those that no other would get, since they are excluded
    /// or unhealthy.
    #[serde(skip)]
    pub own_devices: Vec<Bdf>,
    /// vCPUs and memory of the cells of such a guest. An amount of memory that is theirs in all
    /// stays divided as it is, since shares are no longer known once huge pages came or went.
    #[serde(skip)]
    pub own_cells: Vec<(u32, MemSize)>,
    /// vGPUs of such a guest.
    #[serde(skip)]
    pub own_vgpus: OwnVgpus,
    /// Functions that the planned guest gets in any case: its vGPUs.
    #[serde(skip)]
    pub given: Vec<Bdf>,
}

impl Occupancy {
    /// Returns it with the vGPUs of these domains counted as cleared wherever none of its domains
    /// has their functions any more: a type stays set until its guest is moved or deleted.
    pub fn clearing(&self, goes: impl Fn(&Held) -> bool) -> Occupancy {
        let is_excluded =
            |vgpu: &GuestVgpu| self.excluded.iter().any(|one| one.bdf == vgpu.function);
        let mut own_vgpus = self.own_vgpus.clone();
        for held in self.domains.iter().filter(|held| goes(held)) {
            let new = held.vgpus.iter().filter(|vgpu| !own_vgpus.vgpus.contains(vgpu));
            let new: Vec<GuestVgpu> = new.filter(|vgpu| !is_excluded(vgpu)).cloned().collect();
            own_vgpus.vgpus.extend(new);
        }
        Occupancy { own_vgpus, ..self.clone() }
    }
}

/// vGPUs of a guest that is planned again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnVgpus {
    /// Each of them.
    pub vgpus: Vec<GuestVgpu>,
    /// Whether it keeps exactly these; otherwise their functions are free for it.
    pub stay: bool,
}

/// A GPU that is offered although it is not tested since its last guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Formerly {
    /// Where it is.
    pub bdf: Bdf,
    /// The guest that had it, as a clause.
    pub why: String,
}

/// A function that is never placed because an admin said so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Exclusion {
    /// Where it is.
    pub bdf: Bdf,
    /// The admin's reason; may be empty.
    #[serde(default)]
    pub reason: String,
    /// Whether the reason is that it is not tested since its last guest, and the host's policy
    /// requires that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub untested: bool,
}

impl Exclusion {
    /// A function that an admin excluded.
    pub fn new(bdf: Bdf, reason: impl Into<String>) -> Exclusion {
        Exclusion { bdf, reason: reason.into(), untested: false }
    }

    /// A GPU that must be tested first.
    pub fn untested(bdf: Bdf, why: impl Into<String>) -> Exclusion {
        Exclusion { bdf, reason: why.into(), untested: true }
    }

    /// The exclusion among these of a function, or of the card that it is a share of: a share works
    /// no better than its card.
    pub fn of<'e>(
        excluded: &'e [Exclusion],
        topology: &Topology,
        bdf: Bdf,
    ) -> Option<&'e Exclusion> {
        let at = |bdf: Bdf| excluded.iter().find(|excluded| excluded.bdf == bdf);
        if excluded.is_empty() {
            return None;
        }
        at(bdf).or_else(|| at(topology.device(bdf)?.pf()?))
    }

    /// Why it is not placed, to follow "is" or "are".
    pub fn says(&self) -> String {
        self.words("")
    }

    /// Why a function is not placed that is excluded itself or as a share of its card.
    pub fn says_of(&self, bdf: Bdf) -> String {
        if bdf == self.bdf { self.says() } else { self.says_of_share() }
    }

    /// Why a share of the card is not placed.
    pub fn says_of_share(&self) -> String {
        self.words(&format!(" with the card {}", self.bdf))
    }

    /// The start of the reason of a GPU whose test found a fault.
    pub const FAILED: &str = "it failed its test";

    fn words(&self, with: &str) -> String {
        let word = if !self.untested {
            "excluded"
        } else if self.reason.starts_with(Self::FAILED) {
            "withheld"
        } else {
            "untested"
        };
        format!("{word}{with}: {}", self.reason).trim_end_matches([':', ' ']).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_stopped_guests_with_spare_resources_make_room() {
        let pins = || vec![CpuSet::of(crate::cpuset::PcpuId(3))];
        let off = Held { domain: "a".into(), vcpu_pins: pins(), ..Held::default() };
        let occupancy = |held: Held| Occupancy { domains: vec![held], ..Occupancy::default() };
        let memory = vec![(NodeSet::new(), MemSize::from_gib(1))];
        for held in [
            off.clone(),
            Held { vcpu_pins: Vec::new(), emulator_pin: Some(CpuSet::new()), ..off.clone() },
            Held { vcpu_pins: Vec::new(), iothread_pins: pins(), ..off.clone() },
            Held { vcpu_pins: Vec::new(), memory: memory.clone(), ..off.clone() },
        ] {
            let rest = occupancy(held).without_yielded().map(|rest| rest.domains);
            assert_eq!(rest, Some(vec![Held { domain: "a".into(), ..Held::default() }]));
        }
        let paged = Some(MemSize::from_gib(1));
        for held in [
            Held { active: true, ..off.clone() },
            Held { autostart: true, ..off.clone() },
            Held { vcpu_pins: Vec::new(), memory, huge_page_kib: paged, ..off },
        ] {
            assert_eq!(occupancy(held).without_yielded(), None);
        }
    }
}
