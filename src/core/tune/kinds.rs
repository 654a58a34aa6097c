//! The kinds of a domain's functions, including those that the host no longer has.

use crate::bdf::Bdf;
use crate::domain::DomainXml;
use crate::domain::claims::Claims;
use crate::placement::ExtraKind;
use crate::topology::{DeviceIdentity, DeviceKind, KnownDevice, MarkKind, Topology};

/// The kinds of a domain's functions: by the host, or, for those that the host no longer has, by
/// the domain's record.
pub struct Kinds<'t> {
    topology: &'t Topology,
    known: Vec<KnownDevice>,
    /// Functions of its recorded vGPUs. A restart of the host takes the functions away, and they
    /// stay its vGPUs.
    vgpus: Vec<Bdf>,
}

impl<'t> Kinds<'t> {
    /// Those of a domain.
    pub fn new(topology: &'t Topology, xml: &DomainXml) -> Kinds<'t> {
        let vgpus = xml.vgpus().unwrap_or_default().into_iter().filter(|vgpu| !vgpu.is_mdev());
        let vgpus = vgpus.map(|vgpu| vgpu.function).collect();
        Kinds { topology, known: xml.known_devices(), vgpus }
    }

    /// The record of a function that the host does not have.
    fn absent(&self, bdf: Bdf) -> Option<&DeviceIdentity> {
        let known = self.known.iter().find(|one| one.bdf == bdf);
        known.filter(|_| self.topology.device(bdf).is_none()).map(|one| &one.identity)
    }

    /// The kind of a NIC, virtual function or drive.
    pub fn extra(&self, bdf: Bdf) -> Option<ExtraKind> {
        match self.topology.device(bdf) {
            Some(device) => ExtraKind::of(device),
            None => self.absent(bdf).and_then(recorded_kind),
        }
    }

    /// Whether it is a vGPU: by the host, or by the domain's record.
    pub fn is_vgpu(&self, bdf: Bdf) -> bool {
        self.topology.is_vgpu_function(bdf) || self.vgpus.contains(&bdf)
    }

    /// Whether it is a GPU or NVSwitch, as a whole.
    pub fn is_of_board(&self, bdf: Bdf) -> bool {
        match self.topology.device(bdf) {
            _ if self.is_vgpu(bdf) => false,
            Some(device) => matches!(device.kind(), DeviceKind::Gpu | DeviceKind::NvSwitch),
            None => self.absent(bdf).is_some_and(|one| one.values(MarkKind::Uuid).next().is_some()),
        }
    }

    /// The functions of a kind among these.
    pub(super) fn of(&self, functions: &[Bdf], kind: ExtraKind) -> Vec<Bdf> {
        functions.iter().copied().filter(|bdf| self.extra(*bdf) == Some(kind)).collect()
    }

    /// The functions of a kind that are passed to a domain, without drives that are disks.
    pub(super) fn passed(&self, claims: &Claims<'_>, kind: ExtraKind) -> Vec<Bdf> {
        let passed = claims.passed.iter();
        let passed = passed.filter(|passed| passed.is_hostdev());
        let all: Vec<Bdf> = passed.map(|passed| passed.bdf.value).collect();
        self.of(&all, kind)
    }
}

/// The option of `set` that names such a function.
pub fn option_of(identity: &DeviceIdentity) -> &'static str {
    match recorded_kind(identity) {
        Some(ExtraKind::Nvme) => "--nvme",
        Some(ExtraKind::Nic) => "--nic",
        Some(ExtraKind::Vf) => "--vf",
        None => "--gpu",
    }
}

/// The kind of a function by its recorded identity.
fn recorded_kind(identity: &DeviceIdentity) -> Option<ExtraKind> {
    let has = |kind| identity.values(kind).next().is_some();
    if identity.is_of_drive() {
        Some(ExtraKind::Nvme)
    } else if has(MarkKind::Mac) || has(MarkKind::Guid) {
        let is_virtual = identity.values(MarkKind::Part).any(|part| part.starts_with("vf"));
        Some(if is_virtual { ExtraKind::Vf } else { ExtraKind::Nic })
    } else {
        None
    }
}
