//! Virtual functions of recorded cards, with guests on a hypervisor in memory. None is enabled: this
//! machine has no such card.

use super::*;
use crate::reporter::Answer;
use crate::stage::{Stage, UUID};
use gpuvm_core::topology::{Topology, Vgpu};

const PF: &str = "0000:3b:00.0";
const VF: &str = "0000:3b:00.4";

/// A host whose card 3b:00.0 is a GPU with one virtual function of this type; `None` for none.
fn stage(number: Option<u32>, driver: &str) -> Stage {
    let text = include_str!("../../../../topologies/dual-socket.json");
    let host = gpuvm_core::topology::file::from_json(text).unwrap();
    let mut parts = host.parts().clone();
    let at = |bdf: &str| bdf.parse::<Bdf>().unwrap();
    let mut card = parts.devices.iter().find(|one| one.bdf == at("0000:86:00.0")).unwrap().clone();
    parts.devices.retain(|one| one.bdf.bus() != 0x3b);
    let mut function = card.clone();
    (card.bdf, card.driver) = (at(PF), Some(driver.to_owned()));
    (card.iommu_group, function.iommu_group) = (Some(900), Some(901));
    card.sriov = Some(Sriov::Pf { total: 16, enabled: u32::from(number.is_some()) });
    (function.bdf, function.sriov) = (at(VF), Some(Sriov::Vf { pf: at(PF) }));
    function.vgpu = number.map(|current| Vgpu::Vfio { current, creatable: vec![1437] });
    parts.devices.push(card);
    parts.devices.extend(number.map(|_| function));
    parts.devices.sort_by_key(|device| device.bdf);
    let mut stage = Stage::who_says(Answer::Yes);
    stage.world = stage.world.with_topology(Topology::new(parts).unwrap());
    stage
}

fn wanted(on: bool) -> CardFunctions {
    CardFunctions { pf: PF.parse().unwrap(), on, at_boot: None }
}

/// The steps of a change, or why there are none.
fn steps(stage: &Stage, on: bool) -> Result<Vec<String>, String> {
    let change = set_functions(&stage.world, &wanted(on)).map_err(|error| error.whole())?;
    Ok(change.steps().iter().map(ToString::to_string).collect())
}

#[test]
fn functions_are_enabled_once_and_disabled_while_unused() {
    // This machine has no script of NVIDIA's; previews of recorded hosts are in tests/vgpus.rs.
    let absent = "/usr/lib/nvidia/sriov-manage is not there";
    let (off, on) = (stage(None, "nvidia"), stage(Some(0), "nvidia"));
    assert!(steps(&off, true).unwrap_err().contains(absent));
    assert!(steps(&on, false).unwrap_err().contains(absent));
    assert_eq!((steps(&off, false), steps(&on, true)), (Ok(vec![]), Ok(vec![])));
    let said = steps(&stage(Some(1437), "nvidia"), false).unwrap_err();
    assert!(said.contains(&format!("{VF} has vGPU type 1437, and an unknown holder")), "{said}");
    let said = steps(&stage(None, "vfio-pci"), true).unwrap_err();
    assert!(said.contains("needs NVIDIA's driver"), "{said}");
}

#[test]
fn functions_of_a_guest_are_left() {
    let on = stage(Some(0), "nvidia");
    on.fake.put_xml(
        &format!(
            "<domain type='test'><name>a</name><uuid>{UUID}</uuid><memory>1024</memory><vcpu>1</vcpu>\
             <os><type>hvm</type></os><devices><hostdev mode='subsystem' type='pci' managed='no'>\
             <source><address domain='0' bus='0x3b' slot='0' function='4'/></source></hostdev>\
             </devices></domain>"
        ),
        false,
    );
    let said = steps(&on, false).unwrap_err();
    assert!(said.contains(&format!("{VF} is held by domain `a`")), "{said}");
}
