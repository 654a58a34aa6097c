//! The vGPUs of a guest: their types are set and their mediated devices made before it starts, and
//! cleared once it is removed. Those of others or of unknown holders are left.

use crate::apply::vgpu::{VgpuStep, is_ours};
use crate::apply::{HostStep, Step};
use crate::bdf::Bdf;
use crate::domain::DomainXml;
use crate::error::{Coded, Result};
use crate::fsroot::FsRoot;
use crate::hypervisor::{Hypervisor, HypervisorErrorKind, XmlOf};
use crate::placement::GuestVgpu;
use crate::topology::{Mdev, NoVgpuMode, PciDevice, Topology, Vgpu};
use crate::world::World;
use gpuvm_core::check::vgpu::{clearing, planned_again, retyped, unoffered};
use gpuvm_core::versions::{LIBVIRT_VGPU, Version};

/// The reason a guest does not get its vGPUs.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "vgpu-claim-")]
#[allow(missing_docs)] // The messages explain the fields.
pub enum VgpuClaimError {
    /// The function is no slot for a vGPU.
    #[error(
        "domain `{domain}` is not started: {function} is no virtual function that a vGPU type can \
         be set for"
    )]
    NoSlot { domain: String, function: Bdf },
    /// The function has another type.
    #[error("domain `{domain}` is not started: {function} has vGPU type {now}, not {wanted}")]
    OtherType { domain: String, function: Bdf, now: String, wanted: String },
    /// The kernel or the driver gives the function no VFIO device.
    #[error(
        "domain `{domain}` is not started: {function} has no VFIO device (vfio-dev), without which \
         libvirt passes no vGPU through"
    )]
    NoVfio { domain: String, function: Bdf },
    /// libvirt refuses functions that are not bound to vfio-pci.
    #[error(
        "domain `{domain}` is not started: libvirt is {version}, and vGPUs on virtual functions \
         need {LIBVIRT_VGPU} or later"
    )]
    OldLibvirt { domain: String, version: Version },
    /// Fabric Manager activates no partition for virtual functions.
    #[error("domain `{domain}` is not started: {mode}")]
    FabricMode { domain: String, mode: NoVgpuMode },
    /// The type that the guest loses stays, so that the driver refuses the one that it gets.
    #[error(
        "domain `{domain}` cannot get vGPU type {wanted}: {function} keeps its type {now}, which \
         gpuvm did not set"
    )]
    NotCleared { domain: String, function: Bdf, now: u32, wanted: String },
    /// The card's other vGPUs leave no room for the type.
    #[error("domain `{domain}` is not started: {what}")]
    NotOffered { domain: String, what: String },
    /// The parent offers no such mediated device.
    #[error(
        "domain `{domain}` is not started: {function} offers no mediated devices of type {wanted}"
    )]
    NoType { domain: String, function: Bdf, wanted: String },
}

impl Coded for VgpuClaimError {}

const LIST_HINT: &str = "`gpuvm vgpu list` shows the cards and their vGPUs";

/// Returns the steps that set types and make mediated devices, as far as that is not so already.
pub fn steps(domain: &str, vgpus: &[GuestVgpu], topology: &Topology) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    for vgpu in vgpus {
        let step = match vgpu.number() {
            Some(number) => set_type(domain, vgpu, number, topology)?,
            None => make_mdev(domain, vgpu, topology)?,
        };
        steps.extend(step.map(Step::from));
    }
    Ok(steps)
}

/// The step that sets the type of a virtual function; `None` if it has it.
fn set_type(
    domain: &str,
    vgpu: &GuestVgpu,
    number: u32,
    topology: &Topology,
) -> Result<Option<VgpuStep>> {
    let (domain, function) = (domain.to_owned(), vgpu.function);
    match topology.device(function).map(|vf| &vf.vgpu) {
        Some(Some(Vgpu::Vfio { current, .. })) if *current == number => Ok(None),
        Some(Some(Vgpu::Vfio { current: 0, .. })) => {
            Ok(Some(VgpuStep::SetType { vf: function, to: number, was: 0, back: false }))
        }
        Some(Some(Vgpu::Vfio { current, .. })) => {
            let (now, wanted) = (current.to_string(), number.to_string());
            let hint = retyped(vgpu, &domain);
            Err(VgpuClaimError::OtherType { domain, function, now, wanted }.hint(hint))
        }
        _ => {
            let hint = format!("`gpuvm vgpu vfs {} --on` enables them", vgpu.card);
            Err(VgpuClaimError::NoSlot { domain, function }.hint(hint))
        }
    }
}

/// The step that makes a mediated device; `None` if it exists.
fn make_mdev(domain: &str, vgpu: &GuestVgpu, topology: &Topology) -> Result<Option<VgpuStep>> {
    let Some(uuid) = &vgpu.uuid else { return Ok(None) };
    let (domain, function, wanted) = (domain.to_owned(), vgpu.function, vgpu.type_id.clone());
    let parent = topology.device(function).and_then(|parent| parent.vgpu.as_ref());
    let Some(Vgpu::Mdev { types, devices }) = parent else {
        return Err(VgpuClaimError::NoType { domain, function, wanted }.hint(LIST_HINT));
    };
    let is_it = |mdev: &&Mdev| mdev.uuid.eq_ignore_ascii_case(uuid);
    match devices.iter().find(is_it).map(|mdev| mdev.type_id.clone().unwrap_or_default()) {
        Some(now) if now == wanted => Ok(None),
        Some(now) => {
            let hint = retyped(vgpu, &domain);
            Err(VgpuClaimError::OtherType { domain, function, now, wanted }.hint(hint))
        }
        None if types.iter().any(|of| of.id == wanted) => {
            Ok(Some(VgpuStep::CreateMdev { uuid: uuid.clone(), parent: function, type_id: wanted }))
        }
        None => Err(VgpuClaimError::NoType { domain, function, wanted }.hint(LIST_HINT)),
    }
}

/// Returns the steps that a guest's vGPUs need before it starts: types are lost at every restart of
/// the host.
pub fn claim_of(xml: &DomainXml, topology: &Topology, world: &World) -> Result<Vec<Step>> {
    let vgpus = xml.vgpus()?;
    if !vgpus.is_empty() && !world.is_recorded() && world.has_guests_here()? {
        let version = world.hypervisor()?.versions().libvirt;
        let root = FsRoot::live()?;
        refuse_stack(&xml.name(), &vgpus, (version, &root))?;
        refuse_mode(&xml.name(), &vgpus, topology)?;
    }
    steps(&xml.name(), &vgpus, topology)
}

/// Refuses types that the driver does not offer beside the vGPUs of others.
pub fn refuse_unoffered(xml: &DomainXml, topology: &Topology) -> Result<()> {
    let Some((what, hint)) = lacking(xml, topology)? else { return Ok(()) };
    Err(VgpuClaimError::NotOffered { domain: xml.name(), what }.hint(hint))
}

/// Warns of vGPUs that a guest that is off cannot get at its start.
pub fn warn_unoffered(xml: &DomainXml, topology: &Topology, world: &World) -> Result<()> {
    if let Some((what, hint)) = lacking(xml, topology)? {
        world.warning(&format!("domain `{}` cannot start now: {what}; {hint}", xml.name()));
    }
    Ok(())
}

/// The first vGPU that a guest cannot get now, in words, and the way to others.
fn lacking(xml: &DomainXml, topology: &Topology) -> Result<Option<(String, String)>> {
    let vgpus = xml.vgpus()?;
    let Some((vgpu, what)) = unoffered(&vgpus, topology).into_iter().next() else {
        return Ok(None);
    };
    let wish = xml.record()?.and_then(|record| record.request.vgpu);
    Ok(Some((what, planned_again(&xml.name(), &vgpus, wish.as_ref(), vgpu.card))))
}

/// Refuses vGPUs of an NVSwitch board in the modes for whole GPUs.
fn refuse_mode(domain: &str, vgpus: &[GuestVgpu], topology: &Topology) -> Result<()> {
    let Some(mode) = vgpus.iter().find_map(|vgpu| topology.no_vgpu_mode(vgpu.card)) else {
        return Ok(());
    };
    Err(VgpuClaimError::FabricMode { domain: domain.to_owned(), mode }.hint(mode.hint()))
}

/// Refuses virtual functions that libvirt or the kernel cannot pass through on the vendor's driver.
fn refuse_stack(
    domain: &str,
    vgpus: &[GuestVgpu],
    (libvirt, root): (Option<Version>, &FsRoot),
) -> Result<()> {
    let functions = vgpus.iter().filter(|vgpu| !vgpu.is_mdev()).map(|vgpu| vgpu.function);
    let domain = domain.to_owned();
    for function in functions {
        if let Some(version) = libvirt.filter(|version| *version < LIBVIRT_VGPU) {
            let hint = "`virsh version` shows it; take libvirt from the distribution's backports";
            return Err(VgpuClaimError::OldLibvirt { domain, version }.hint(hint));
        }
        let at = format!("sys/bus/pci/devices/{function}");
        if root.exists(&at) && !root.exists(&format!("{at}/vfio-dev")) {
            let hint = "`lsmod | grep nvidia_vgpu_vfio` shows the module that makes it; Linux 6.1 \
                        or later is needed";
            return Err(VgpuClaimError::NoVfio { domain, function }.hint(hint));
        }
    }
    Ok(())
}

/// Returns the steps that clear the vGPUs of a guest that is gone: types that are as recorded and
/// that gpuvm has set, and its mediated devices.
pub fn give_back(xml: &DomainXml, world: &World) -> Result<Vec<Step>> {
    give_back_these(xml, &xml.vgpus()?, world)
}

/// The vGPUs that a guest's definition loses.
pub fn lost(before: &DomainXml, after: &DomainXml) -> Result<Vec<GuestVgpu>> {
    let has = after.vgpus()?;
    Ok(before.vgpus()?.into_iter().filter(|vgpu| !has.contains(vgpu)).collect())
}

/// The same for some of its vGPUs, which its definition loses. Those that another domain has, also
/// one that is off, stay as they are.
pub fn give_back_these(xml: &DomainXml, vgpus: &[GuestVgpu], world: &World) -> Result<Vec<Step>> {
    if vgpus.is_empty() || !world.has_guests_here()? {
        return Ok(Vec::new());
    }
    let (topology, root) = (world.topology()?, FsRoot::live()?);
    let others = others(&*world.hypervisor()?, &xml.uuid().unwrap_or_default())?;
    let mut steps = Vec::new();
    for vgpu in vgpus {
        if let Some(name) = others.iter().find_map(|(name, other)| has(other, vgpu).then_some(name))
        {
            let id = vgpu.uuid.clone().unwrap_or_else(|| vgpu.function.to_string());
            world.warning(&format!("domain `{name}` has vGPU {id}, too: it is left as it is"));
            continue;
        }
        steps.extend(cleared(vgpu, &topology, &root, world).map(Step::from));
    }
    Ok(steps)
}

/// Refuses types that the driver does not offer before another one of the guest is cleared, if that
/// is not among the steps: it stays at its function.
pub fn refuse_uncleared(
    before: &DomainXml,
    after: &DomainXml,
    steps: &[Step],
    topology: &Topology,
) -> Result<()> {
    let (had, has) = (before.vgpus()?, after.vgpus()?);
    let type_of = |function: Bdf| topology.device(function)?.vgpu_type();
    let is_cleared = |function: Bdf| {
        let clears = |step: &Step| {
            matches!(step, Step::Host(HostStep::Vgpu(VgpuStep::SetType { vf, to: 0, .. }))
                if *vf == function)
        };
        steps.iter().any(clears)
    };
    for new in has.iter().filter(|new| !had.contains(new)) {
        let vgpu = topology.device(new.function).and_then(|vf| vf.vgpu.as_ref());
        let (Some(Vgpu::Vfio { current, creatable }), Some(number)) = (vgpu, new.number()) else {
            continue;
        };
        if *current == number || *current == 0 && creatable.contains(&number) {
            continue;
        }
        let stays = had.iter().filter(|old| old.card == new.card && !is_cleared(old.function));
        let mut stays = stays.map(|old| old.function);
        if let Some((function, now)) = stays.find_map(|vf| Some((vf, type_of(vf)?))) {
            let (domain, wanted) = (after.name(), new.name.clone());
            let clears = clearing(function);
            let hint = format!("`{clears}` clears it, if no guest has it");
            return Err(VgpuClaimError::NotCleared { domain, function, now, wanted }.hint(hint));
        }
    }
    Ok(())
}

/// The definitions of the other domains, by name. One that cannot be read is an error: what it has
/// is not known.
fn others(hypervisor: &dyn Hypervisor, own: &str) -> Result<Vec<(String, DomainXml)>> {
    let mut others = Vec::new();
    for row in hypervisor.domains()?.into_iter().filter(|row| row.uuid != own) {
        let mut definitions = vec![XmlOf::Inactive];
        definitions.extend(row.state.is_active().then_some(XmlOf::Live));
        for which in definitions {
            match hypervisor.xml(&row.name, which) {
                Ok(text) => others.push((row.name.clone(), DomainXml::parse(&text)?)),
                Err(error) if error.kind == HypervisorErrorKind::NoDomain => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(others)
}

/// Whether a definition has the function of a vGPU, or its mediated device.
fn has(xml: &DomainXml, vgpu: &GuestVgpu) -> bool {
    match &vgpu.uuid {
        Some(uuid) => xml.mediated().iter().any(|mdev| mdev.eq_ignore_ascii_case(uuid)),
        None => xml.held(true).is_ok_and(|held| held.devices.contains(&vgpu.function)),
    }
}

/// The step that clears a vGPU; `None` if it is not there, not as recorded, or set by another.
fn cleared(
    vgpu: &GuestVgpu,
    topology: &Topology,
    root: &FsRoot,
    world: &World,
) -> Option<VgpuStep> {
    let function: &PciDevice = topology.device(vgpu.function)?;
    match (&function.vgpu, vgpu.number(), &vgpu.uuid) {
        (Some(Vgpu::Vfio { current, .. }), Some(was), None) if *current == was => {
            let vf = vgpu.function;
            if is_ours(root, vf, was) {
                return Some(VgpuStep::SetType { vf, to: 0, was, back: true });
            }
            world.warning(&format!(
                "vGPU type {was} of {vf} was not set by gpuvm since the host started: it is left \
                 as it is; `{}` clears it",
                clearing(vf)
            ));
            None
        }
        (Some(Vgpu::Vfio { current: now @ 1.., .. }), Some(was), None) => {
            let vf = vgpu.function;
            world.warning(&format!(
                "{vf} has vGPU type {now}, and had {was} for this guest: it is left as it is"
            ));
            None
        }
        (Some(Vgpu::Mdev { devices, .. }), None, Some(uuid)) => {
            let is_it = |mdev: &Mdev| {
                mdev.uuid.eq_ignore_ascii_case(uuid)
                    && mdev.type_id.as_ref().is_none_or(|of| *of == vgpu.type_id)
            };
            devices.iter().any(is_it).then(|| VgpuStep::RemoveMdev {
                uuid: uuid.clone(),
                parent: vgpu.function,
                type_id: vgpu.type_id.clone(),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuvm_core::topology::{Fabric, MdevType, Sriov, file};

    const VF: &str = "0000:86:00.0";

    fn host(offer: Option<Vgpu>) -> Topology {
        let text = include_str!("../../../topologies/dual-socket.json");
        let mut parts = file::from_json(text).unwrap().parts().clone();
        let vf = parts.devices.iter_mut().find(|device| device.bdf == VF.parse().unwrap());
        vf.unwrap().vgpu = offer;
        assert!(parts.devices.iter().any(|device| matches!(device.sriov, Some(Sriov::Vf { .. }))));
        Topology::new(parts).unwrap()
    }

    fn guest(type_id: &str, uuid: Option<&str>) -> [GuestVgpu; 1] {
        let function = VF.parse().unwrap();
        let (type_id, name) = (type_id.to_owned(), "a type".to_owned());
        [GuestVgpu { card: function, function, type_id, name, uuid: uuid.map(str::to_owned) }]
    }

    /// A domain with a vGPU of this type.
    fn with(type_id: &str) -> DomainXml {
        let text = format!(
            "<domain><name>a</name><memory>1</memory><vcpu>1</vcpu><metadata><gpuvm:guest \
             xmlns:gpuvm='urn:gpuvm:domain:1'><gpuvm:vgpus><gpuvm:device bdf='{VF}' card='{VF}' \
             name='n' type='{type_id}'/></gpuvm:vgpus></gpuvm:guest></metadata></domain>"
        );
        DomainXml::parse(&text).unwrap()
    }

    fn said(offer: Option<Vgpu>, vgpus: &[GuestVgpu]) -> String {
        match steps("a", vgpus, &host(offer)) {
            Ok(steps) => steps.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_type_is_set_where_it_is_not_and_another_one_is_left() {
        let slot = |current| Some(Vgpu::Vfio { current, creatable: vec![7] });
        let own = guest("7", None);
        assert_eq!(said(slot(0), &own), format!("set vGPU type 7 for {VF}"));
        assert_eq!(said(slot(7), &own), "");
        assert!(said(slot(8), &own).contains("has vGPU type 8, not 7"));
        assert!(said(None, &own).contains("no virtual function that a vGPU type"));
    }

    #[test]
    fn a_type_that_is_not_offered_is_refused_before_anything_is_changed() {
        let is_refused = |current, creatable| {
            let topology = host(Some(Vgpu::Vfio { current, creatable }));
            refuse_unoffered(&with("7"), &topology).is_err()
        };
        assert!(is_refused(0, vec![8]) && is_refused(0, vec![]));
        assert!(!is_refused(0, vec![7, 8]) && !is_refused(7, vec![]));
    }

    #[test]
    fn a_type_that_stays_leaves_no_room_for_one_that_is_not_offered_beside_it() {
        let vf = VF.parse().unwrap();
        let clear = Step::from(VgpuStep::SetType { vf, to: 0, was: 7, back: true });
        let is_refused = |current, steps: &[Step]| {
            let topology = host(Some(Vgpu::Vfio { current, creatable: vec![8] }));
            refuse_uncleared(&with("7"), &with("8"), steps, &topology).is_err()
        };
        assert_eq!(
            [is_refused(7, &[]), is_refused(7, &[clear]), is_refused(0, &[])],
            [true, false, false]
        );
    }

    #[test]
    fn vgpus_of_a_board_need_the_mode_for_them() {
        let text = include_str!("../../../topologies/dgx-h100.json");
        let topology = file::from_json(text).unwrap();
        let card = topology.ruled().next().unwrap();
        let mut vgpus = guest("7", None);
        vgpus[0].card = card;
        let refused = |whole_gpus_only| {
            let mut parts = topology.parts().clone();
            let fabric = Fabric { whole_gpus_only, ..topology.fabric().clone() };
            parts.fabric = fabric;
            refuse_mode("a", &vgpus, &Topology::new(parts).unwrap()).is_err()
        };
        assert_eq!([false, true].map(refused), [false, true]);
    }

    #[test]
    fn an_old_libvirt_or_kernel_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        let said = |libvirt: &str, uuid| {
            let refused = refuse_stack("a", &guest("7", uuid), (Version::read(libvirt), &root));
            refused.err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(said("10.0.0", None), "");
        assert!(said("9.10.0", None).contains("libvirt is 9.10.0"), "{}", said("9.10.0", None));
        assert_eq!(said("9.10.0", Some("6ab1f0c4-44aa-4d06-8b4e-9cf1c0f0ce6b")), "");
        let function = dir.path().join(format!("sys/bus/pci/devices/{VF}"));
        std::fs::create_dir_all(&function).unwrap();
        assert!(said("10.0.0", None).contains("has no VFIO device"));
        std::fs::create_dir(function.join("vfio-dev")).unwrap();
        assert_eq!(said("10.0.0", None), "");
    }

    #[test]
    fn a_mediated_device_is_made_where_it_is_not() {
        let uuid = "6ab1f0c4-44aa-4d06-8b4e-9cf1c0f0ce6b";
        let parent = |of: Option<&str>| {
            let devices = of.map(|of| Mdev { uuid: uuid.into(), type_id: Some(of.into()) });
            let types = vec![MdevType {
                id: "t-1".into(),
                name: "t".into(),
                available: 1,
                frame_buffer_kib: None,
                max_instances: None,
            }];
            Some(Vgpu::Mdev { types, devices: devices.into_iter().collect() })
        };
        let own = guest("t-1", Some(uuid));
        assert!(said(parent(None), &own).starts_with("make mediated device"));
        assert_eq!(said(parent(Some("t-1")), &own), "");
        assert!(said(parent(Some("t-2")), &own).contains("has vGPU type t-2"));
        assert!(said(parent(None), &guest("t-9", Some(uuid))).contains("offers no mediated"));
    }
}
