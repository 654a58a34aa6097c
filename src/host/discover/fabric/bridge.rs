//! The ConnectX-7 bridge of a board whose NVSwitches are no PCI functions: Fabric Manager reaches them by it, on the host or in
//! the guest that has all GPUs. Of its four functions those with limits say so in their product data (gpuvm-hardware(7),
//! BOARDS).

use crate::fsroot::FsRoot;
use gpuvm_core::bdf::Bdf;
use gpuvm_core::topology::{Fabric, FabricModel, Parts};
use std::collections::BTreeSet;

/// PCI vendor of Mellanox.
const MELLANOX: u16 = 0x15b3;
/// What the product data of a function in front of NVSwitches holds.
const MARK: &[u8] = b"SW_MNG";

/// The functions of every card of which one function is marked, by address; empty also where product data cannot be read.
pub fn functions(root: &FsRoot, parts: &Parts) -> Vec<Bdf> {
    let slot = |bdf: Bdf| (bdf.segment(), bdf.bus(), bdf.device());
    let cards = parts.devices.iter().filter(|device| device.vendor == MELLANOX);
    let is_marked = |bdf: &Bdf| root.has_bytes(&format!("sys/bus/pci/devices/{bdf}/vpd"), MARK);
    let all: Vec<Bdf> = cards.map(|device| device.bdf).collect();
    let marked: BTreeSet<_> = all.iter().filter(|bdf| is_marked(bdf)).map(|b| slot(*b)).collect();
    all.into_iter().filter(|bdf| marked.contains(&slot(*bdf))).collect()
}

/// What is said of it in full passthrough, where the partition of all GPUs needs it.
pub fn note(fabric: &Fabric) -> Option<String> {
    let is_passed = fabric.model == FabricModel::FullPassthrough;
    if !is_passed || !fabric.partitions.iter().any(|partition| partition.gpus.len() > 1) {
        return None;
    }
    let functions: Vec<String> = fabric.bridge.iter().map(Bdf::to_string).collect();
    let which = match functions.is_empty() {
        true => "which are not known here: no product data with SW_MNG was read".to_owned(),
        false => format!("{}, which `--nic` passes", functions.join(", ")),
    };
    Some(format!(
        "in full passthrough a guest of all GPUs of this board also needs the functions of the ConnectX-7 bridge in \
         front of its NVSwitches ({which}); nobody has tried it"
    ))
}
