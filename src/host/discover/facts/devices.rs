//! Power and addresses of GPUs; the memory that the firmware's picture has.

use super::{Reader, flag, text};
use crate::fsroot::{FsError, FsRoot, not};
use gpuvm_core::topology::facts::{AddressRange, Framebuffer, FunctionFacts};
use gpuvm_core::topology::{DeviceKind, PciDevice, Topology};
use std::collections::BTreeMap;

/// Names of the memory of a picture in /proc/iomem, and of its devices.
const PICTURES: [&str; 8] = [
    "BOOTFB",
    "efifb",
    "simplefb",
    "vesafb",
    "simpledrm",
    "simple-framebuffer",
    "efi-framebuffer",
    "vesa-framebuffer",
];
/// A BAR is memory; a bit of its flags, from the kernel's include/linux/ioport.h.
const MEMORY: u64 = 0x200;
/// As [`MEMORY`]: it has no address.
const UNSET: u64 = 0x2000_0000;
/// BARs, without expansion ROM and windows.
const BARS: usize = 6;

/// Reads the memory of the firmware's picture; none where the kernel hides addresses.
pub(super) fn framebuffers(root: &FsRoot) -> Result<Option<Vec<Framebuffer>>, FsError> {
    let path = "proc/iomem";
    let Some(text) = text(root, path)? else { return Ok(None) };
    let (mut found, mut is_known) = (Vec::new(), false);
    for (number, line) in (1..).zip(text.lines()) {
        let wrong = || root.malformed(path, number, not(line, "a range of addresses and its name"));
        let (range, name) = line.trim().split_once(" : ").ok_or_else(wrong)?;
        let (first, last) = range.split_once('-').ok_or_else(wrong)?;
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let range = number(first).zip(number(last)).ok_or_else(wrong)?;
        let range = AddressRange { first: range.0, last: range.1 };
        is_known |= range.last > 0;
        if PICTURES.iter().any(|picture| name.starts_with(picture)) {
            found.push(Framebuffer { name: name.to_owned(), range });
        }
    }
    if !is_known {
        return Err(root.malformed(path, 1, "it shows addresses to root only"));
    }
    Ok(Some(found))
}

/// Reads the devices of the firmware's picture.
pub(super) fn framebuffer_devices(root: &FsRoot) -> Result<Option<Vec<String>>, FsError> {
    let dir = "sys/bus/platform/devices";
    if !root.exists(dir) {
        return Ok(None);
    }
    let is_picture = |name: &String| PICTURES.iter().any(|picture| name.starts_with(picture));
    Ok(Some(root.names(dir)?.into_iter().filter(is_picture).collect()))
}

pub(super) fn functions(reader: &mut Reader<'_>, topology: &Topology) -> Vec<FunctionFacts> {
    let shows_resets = topology.devices().iter().any(|device| device.reset_methods.is_some());
    let gpus = topology.of_kind(DeviceKind::Gpu);
    gpus.map(|gpu| FunctionFacts {
        // The kernel has no such file for a function that it cannot reset.
        can_reset: shows_resets
            .then(|| reader.root.names(&format!("sys/bus/pci/devices/{}", gpu.bdf)).ok())
            .flatten()
            .map(|names| names.iter().any(|name| name == "reset_method")),
        ..function(reader, gpu)
    })
    .collect()
}

fn function(reader: &mut Reader<'_>, device: &PciDevice) -> FunctionFacts {
    let at = format!("sys/bus/pci/devices/{}", device.bdf);
    let file = |name: &str| format!("{at}/{name}");
    let general = |name: &str| format!("sys/bus/pci/devices/N/{name}");
    let is_state =
        |text: &str| ["D0", "D1", "D2", "D3hot", "D3cold", "unknown", "error"].contains(&text);
    FunctionFacts {
        bdf: device.bdf,
        can_reset: None,
        d3cold_allowed: reader.keep(&general("d3cold_allowed"), |root| {
            super::value(root, &file("d3cold_allowed"), flag)
        }),
        memory: reader.keep(&general("resource"), |root| memory(root, &file("resource"))),
        resizable: reader.keep(&general("resource1_resize"), |root| {
            resizable(root, &file("resource1_resize"), device)
        }),
        power_state: reader.keep(&general("power_state"), |root| {
            super::value(root, &file("power_state"), |text| is_state(text).then(|| text.to_owned()))
        }),
    }
}

/// Reads the addresses of a function's memory BARs.
fn memory(
    root: &FsRoot,
    path: &str,
) -> Result<Option<BTreeMap<u8, Option<AddressRange>>>, FsError> {
    let Some(text) = text(root, path)? else { return Ok(None) };
    let mut bars = BTreeMap::new();
    for (index, line) in (0u8..).zip(text.lines().take(BARS)) {
        let wrong =
            || root.malformed(path, usize::from(index) + 1, not(line, "addresses and flags"));
        let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
        let words: Option<Vec<u64>> = line.split_whitespace().map(number).collect();
        let words = words.ok_or_else(wrong)?;
        let &[first, last, flags] = &words[..] else { return Err(wrong()) };
        if flags & MEMORY == 0 || (first, last) == (0, 0) {
            continue;
        }
        let has_address = first > 0 && flags & UNSET == 0;
        bars.insert(index, has_address.then_some(AddressRange { first, last }));
    }
    if text.trim().is_empty() {
        return Err(root.malformed(path, 1, "it is empty"));
    }
    Ok(Some(bars))
}

/// Reads the size of BAR 1, and the largest that it can have: a bit for each power of 2 MiB.
fn resizable(root: &FsRoot, path: &str, device: &PciDevice) -> Result<Option<(u64, u64)>, FsError> {
    let bits = super::value(root, path, |text| {
        u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
    })?;
    let now = device.bars.iter().find(|bar| bar.index == 1).map(|bar| bar.bytes);
    let largest = bits.filter(|bits| *bits > 0).map(u64::ilog2).filter(|bit| *bit < 43);
    Ok(now.zip(largest.map(|bit| 1 << (bit + 20))))
}
