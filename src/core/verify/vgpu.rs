//! Compares the vGPUs of a guest with what the host's driver has: types are lost at a restart of the
//! host, and a virtual function can get another one.

use super::report::{Between, Report, Wrong};
use crate::check::vgpu::retyped;
use crate::domain::DomainXml;
use crate::finding::Rule;
use crate::occupancy::{GuestVgpu, Occupancy};
use crate::placement::shared_cards;
use crate::shell::word;
use crate::topology::{Mdev, Topology, Vgpu};

/// The guest has no GPU, or another one than it was given.
const TYPE: Rule =
    Rule::error("vgpu-type", "a virtual function with another vGPU type than its guest was given");
/// It does not start.
const GONE: Rule =
    Rule::error("vgpu-gone", "a guest's virtual function that no vGPU type can be set for");
/// QEMU has lost it.
const MDEV: Rule =
    Rule::error("mdev-missing", "a running guest whose mediated device does not exist");
/// It takes frame buffer that no domain is known to have.
const ORPHAN: Rule =
    Rule::warning("vgpu-orphan", "a vGPU beside the guest's own that no domain has");

/// Rules of this module.
pub const RULES: &[Rule] = &[TYPE, GONE, MDEV, ORPHAN];

/// Compares a guest's vGPUs; `runs`: whether it does.
pub fn compare(
    definition: &DomainXml,
    runs: bool,
    (topology, others): (&Topology, &Occupancy),
    report: &mut Report,
) {
    let vgpus = definition.vgpus().unwrap_or_default();
    for vgpu in &vgpus {
        match vgpu.number() {
            Some(number) => of_function(definition, vgpu, (number, runs), topology, report),
            None if runs => of_mdev(definition, vgpu, topology, report),
            None => {}
        }
    }
    if !vgpus.is_empty() {
        orphans(&vgpus, (topology, others), report);
    }
}

/// Compares the type of a virtual function; while the guest is off it may have none.
fn of_function(
    definition: &DomainXml,
    vgpu: &GuestVgpu,
    (number, runs): (u32, bool),
    topology: &Topology,
    report: &mut Report,
) {
    let bdf = vgpu.function;
    let at = format!("/sys/bus/pci/devices/{bdf}/nvidia/current_vgpu_type");
    match topology.device(bdf).map(|device| &device.vgpu) {
        Some(Some(Vgpu::Vfio { current, .. })) => {
            if *current != number && (runs || *current != 0) {
                let name = definition.name();
                let hint = match (*current, runs) {
                    (0, _) => format!("`gpuvm restart {}` sets it", word(&name)),
                    (_, true) => format!("`gpuvm stop {}`; {}", word(&name), retyped(vgpu, &name)),
                    (_, false) => retyped(vgpu, &name),
                };
                let wrong = Wrong {
                    what: format!("vGPU type of {bdf}"),
                    expected: format!("{number} ({})", vgpu.name),
                    found: current.to_string(),
                    at,
                    hint: &hint,
                };
                report.differs(&TYPE, Between::Reality, wrong);
            }
        }
        _ => {
            let hint = format!("`gpuvm vgpu vfs {} --on --at-boot`", vgpu.card);
            let wrong = Wrong {
                what: format!("virtual function {bdf} of {}", vgpu.card),
                expected: format!("vGPU type {number} ({})", vgpu.name),
                found: "none that a type can be set for".into(),
                at,
                hint: &hint,
            };
            report.differs(&GONE, Between::Reality, wrong);
        }
    }
}

/// Looks for a mediated device of a running guest.
fn of_mdev(definition: &DomainXml, vgpu: &GuestVgpu, topology: &Topology, report: &mut Report) {
    let Some(uuid) = &vgpu.uuid else { return };
    let is_it = |mdev: &Mdev| mdev.uuid.eq_ignore_ascii_case(uuid);
    let parent = topology.device(vgpu.function).and_then(|parent| parent.vgpu.as_ref());
    let is_there = match parent {
        Some(Vgpu::Mdev { devices, .. }) => devices.iter().any(is_it),
        _ => false,
    };
    if !is_there {
        let hint = format!("`gpuvm restart {}` makes it", word(&definition.name()));
        let wrong = Wrong {
            what: format!("mediated device {uuid} of {}", vgpu.function),
            expected: format!("type {} ({})", vgpu.type_id, vgpu.name),
            found: "none".into(),
            at: format!("/sys/bus/mdev/devices/{uuid}"),
            hint: &hint,
        };
        report.differs(&MDEV, Between::Reality, wrong);
    }
}

/// Looks for vGPUs of the guest's cards that nobody has.
fn orphans(own: &[GuestVgpu], (topology, others): (&Topology, &Occupancy), report: &mut Report) {
    let cards = shared_cards(topology, others);
    for card in cards.iter().filter(|card| own.iter().any(|vgpu| vgpu.card == card.bdf)) {
        for vgpu in card.existing.iter().filter(|vgpu| vgpu.domains.is_empty()) {
            let is_own = |one: &GuestVgpu| match (&one.uuid, &vgpu.uuid) {
                (Some(own), Some(other)) => own.eq_ignore_ascii_case(other),
                _ => one.function == vgpu.function,
            };
            if own.iter().any(is_own) {
                continue;
            }
            let what = vgpu.uuid.clone().unwrap_or_else(|| vgpu.function.to_string());
            let wrong = Wrong {
                what: format!("holder of vGPU {what} of {}", card.bdf),
                expected: "a domain".into(),
                found: "none".into(),
                at: "`gpuvm vgpu list`".into(),
                hint: "whoever set it clears it: gpuvm never clears what it did not set",
            };
            report.differs(&ORPHAN, Between::Host, wrong);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{MdevType, file};

    const UUID: &str = "6ab1f0c4-44aa-4d06-8b4e-9cf1c0f0ce6b";

    /// The rules that a guest with this vGPU breaks on a host whose function offers this.
    fn rules(vgpu: &str, offer: Option<Vgpu>, runs: bool) -> Vec<&'static str> {
        let text = include_str!("../../../topologies/dual-socket.json");
        let mut parts = file::from_json(text).unwrap().parts().clone();
        let at = "0000:86:00.0".parse().unwrap();
        parts.devices.iter_mut().find(|device| device.bdf == at).unwrap().vgpu = offer;
        let topology = Topology::new(parts).unwrap();
        let text = format!(
            "<domain><name>a</name><uuid>{UUID}</uuid><memory>1</memory><vcpu>1</vcpu><metadata>\
             <gpuvm:guest xmlns:gpuvm='urn:gpuvm:domain:1' uuid='{UUID}'><gpuvm:vgpus>\
             <gpuvm:device bdf='0000:86:00.0' card='0000:86:00.0' name='n' {vgpu}/></gpuvm:vgpus>\
             </gpuvm:guest></metadata></domain>"
        );
        let xml = DomainXml::parse(&text).unwrap();
        assert_eq!(xml.vgpus().unwrap().len(), 1);
        let mut report = Report::default();
        compare(&xml, runs, (&topology, &Occupancy::default()), &mut report);
        report.finish().into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn a_type_is_compared_with_the_recorded_one() {
        let slot = |current| Some(Vgpu::Vfio { current, creatable: vec![] });
        assert!(rules("type='7'", slot(7), true).is_empty());
        assert!(rules("type='7'", slot(0), false).is_empty(), "it is set at the start");
        assert_eq!(rules("type='7'", slot(0), true), ["vgpu-type"]);
        assert_eq!(rules("type='7'", slot(8), false), ["vgpu-type"]);
        assert_eq!(rules("type='7'", None, false), ["vgpu-gone"]);
    }

    #[test]
    fn a_mediated_device_is_looked_for_while_its_guest_runs() {
        let parent = |uuids: &[&str]| {
            let mdev = |uuid: &&str| Mdev { uuid: (*uuid).into(), type_id: Some("t-1".into()) };
            let types = vec![MdevType {
                id: "t-1".into(),
                name: "t".into(),
                available: 1,
                frame_buffer_kib: None,
                max_instances: None,
            }];
            Some(Vgpu::Mdev { types, devices: uuids.iter().map(mdev).collect() })
        };
        let own = format!("type='t-1' uuid='{UUID}'");
        assert!(rules(&own, parent(&[UUID]), true).is_empty());
        assert!(rules(&own, parent(&[]), false).is_empty());
        assert_eq!(rules(&own, parent(&[]), true), ["mdev-missing"]);
        let other = "00000000-44aa-4d06-8b4e-9cf1c0f0ce6b";
        assert_eq!(rules(&own, parent(&[UUID, other]), true), ["vgpu-orphan"]);
    }
}
