//! The vGPUs of a guest: their types are set and their mediated devices made before it starts, and
//! cleared once it is removed. Those of others or of unknown holders are left.

use crate::apply::Step;
use crate::apply::vgpu::VgpuStep;
use crate::bdf::Bdf;
use crate::domain::DomainXml;
use crate::error::{Coded, Result};
use crate::placement::GuestVgpu;
use crate::topology::{Mdev, PciDevice, Topology, Vgpu};
use crate::world::World;

/// The reason a guest does not get its vGPUs.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "vgpu-claim-")]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum VgpuClaimError {
    /// The function is no slot for a vGPU.
    #[error(
        "domain `{domain}` is not started: {function} is no virtual function that a vGPU type can \
         be set for"
    )]
    NoSlot { domain: String, function: Bdf },
    /// The function has another type.
    #[error(
        "domain `{domain}` is not started: {function} has vGPU type {now}, not {wanted}: it has another \
         holder"
    )]
    OtherType { domain: String, function: Bdf, now: String, wanted: String },
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
            Err(VgpuClaimError::OtherType { domain, function, now, wanted }.hint(LIST_HINT))
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
            Err(VgpuClaimError::OtherType { domain, function, now, wanted }.hint(LIST_HINT))
        }
        None if types.iter().any(|of| of.id == wanted) => {
            Ok(Some(VgpuStep::CreateMdev { uuid: uuid.clone(), parent: function, type_id: wanted }))
        }
        None => Err(VgpuClaimError::NoType { domain, function, wanted }.hint(LIST_HINT)),
    }
}

/// Returns the steps that a guest's vGPUs need before it starts: types are lost at every restart of
/// the host.
pub fn claim_of(xml: &DomainXml, topology: &Topology) -> Result<Vec<Step>> {
    steps(&xml.name(), &xml.vgpus()?, topology)
}

/// Returns the steps that clear the vGPUs of a guest that is gone: types that are as recorded, and
/// its mediated devices.
pub fn give_back(xml: &DomainXml, world: &World) -> Result<Vec<Step>> {
    let vgpus = xml.vgpus()?;
    if vgpus.is_empty() || !world.has_guests_here()? {
        return Ok(Vec::new());
    }
    let topology = world.topology()?;
    Ok(vgpus.iter().filter_map(|vgpu| cleared(vgpu, &topology, world)).map(Step::from).collect())
}

/// The step that clears a vGPU; `None` if it is not there, or not as recorded.
fn cleared(vgpu: &GuestVgpu, topology: &Topology, world: &World) -> Option<VgpuStep> {
    let function: &PciDevice = topology.device(vgpu.function)?;
    match (&function.vgpu, vgpu.number(), &vgpu.uuid) {
        (Some(Vgpu::Vfio { current, .. }), Some(was), None) if *current == was => {
            Some(VgpuStep::SetType { vf: vgpu.function, to: 0, was, back: true })
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
    use gpuvm_core::topology::{MdevType, Sriov, file};

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
