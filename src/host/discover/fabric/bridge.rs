//! The ConnectX-7 bridge of a board whose NVSwitches are not PCI functions: Fabric Manager reaches
//! them through it, on the host or in the guest that has all GPUs. The limited ones of its four
//! functions are marked in their VPD (gpuvm-hardware(7), WHAT WORKS ON WHICH BOARD).

use crate::fsroot::FsRoot;
use gpuvm_core::bdf::Bdf;
use gpuvm_core::topology::{Fabric, FabricModel, Parts};
use std::collections::BTreeSet;

const MELLANOX: u16 = 0x15b3;
/// The mark in the VPD of a function in front of NVSwitches.
const MARK: &[u8] = b"SW_MNG";

/// Returns all functions of each card with a marked function, by address; none if no VPD is
/// readable.
pub fn functions(root: &FsRoot, parts: &Parts) -> Vec<Bdf> {
    let slot = |bdf: Bdf| (bdf.segment(), bdf.bus(), bdf.device());
    let cards = parts.devices.iter().filter(|device| device.vendor == MELLANOX);
    let is_marked = |bdf: &Bdf| root.has_bytes(&format!("sys/bus/pci/devices/{bdf}/vpd"), MARK);
    let all: Vec<Bdf> = cards.map(|device| device.bdf).collect();
    let marked: BTreeSet<_> = all.iter().filter(|bdf| is_marked(bdf)).map(|b| slot(*b)).collect();
    all.into_iter().filter(|bdf| marked.contains(&slot(*bdf))).collect()
}

/// Returns the note for full passthrough, where the partition of all GPUs needs the bridge.
pub fn note(fabric: &Fabric) -> Option<String> {
    let is_passed = fabric.model == FabricModel::FullPassthrough;
    if !is_passed || !fabric.partitions.iter().any(|partition| partition.gpus.len() > 1) {
        return None;
    }
    let functions: Vec<String> = fabric.bridge.iter().map(Bdf::to_string).collect();
    let which = if functions.is_empty() {
        "which are not known here: no product data with SW_MNG was read".to_owned()
    } else {
        format!("{}, which `--nic` passes", functions.join(", "))
    };
    Some(format!(
        "in full passthrough a guest of all GPUs of this board also needs the functions of the \
         ConnectX-7 bridge in front of its NVSwitches ({which}); untested"
    ))
}
