//! PCI functions: ids, place in the tree, driver, IOMMU group, BARs, links, SR-IOV. Knows nothing
//! of network interfaces and drives, nor the meaning of config space registers.

use super::acs;
use crate::fsroot::{Dir, FsError, FsRoot, not};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::cpuset::NodeId;
use gpuvm_core::domain::arguments::is_uuid;
use gpuvm_core::topology::{Bar, Link, Parts, PciDevice, Sriov, Unsupported, VfioDevice};
use std::collections::BTreeSet;

/// Where the kernel lists every function, as links into its tree of devices.
const DEVICES: &str = "sys/bus/pci/devices";
/// A BAR is a port range; a bit of its flags, from the kernel's include/linux/ioport.h.
const IO: u64 = 0x100;
/// As [`IO`]: memory.
const MEMORY: u64 = 0x200;
/// As [`IO`]: prefetchable.
const PREFETCH: u64 = 0x2000;
/// As [`IO`]: may be above 4 GiB.
const MEMORY_64: u64 = 0x10_0000;
/// Flag of a BAR: it has no address.
const UNSET: u64 = 0x2000_0000;
/// Functions per thread, below which another thread costs more than it saves; and the most threads.
const PER_THREAD: usize = 32;
/// See [`PER_THREAD`].
const THREADS: usize = 4;

/// Reads every function into `parts.devices`; `parts.nodes` must be filled.
pub fn devices(root: &FsRoot, parts: &mut Parts) -> Result<(), FsError> {
    let Some(list) = root.dir(DEVICES)? else {
        parts.notes.push(unlisted(parts));
        return Ok(());
    };
    let mut wanted = Vec::new();
    for name in list.names()? {
        let Ok(bdf) = name.parse::<Bdf>() else {
            parts.notes.push(format!("{DEVICES}/{name} is not a PCI address; passed over"));
            continue;
        };
        wanted.push((bdf, name));
    }
    let mut devices = Vec::with_capacity(wanted.len());
    for (device, (_, name)) in read_all(root, &list, &wanted)?.into_iter().zip(&wanted) {
        match device {
            Some(device) => devices.push(device),
            None => parts.notes.push(format!("{DEVICES}/{name} leads nowhere; passed over")),
        }
    }
    devices.sort_unstable_by_key(|device| device.bdf);
    devices.dedup_by(|b, a| a.bdf == b.bdf);
    resolve(&mut devices, parts);
    parts.devices = devices;
    Ok(())
}

/// Returns the note that a record lists no functions; for a DGX Spark, that its GPU is known
/// anyway.
fn unlisted(parts: &Parts) -> String {
    let product = parts.machine.product.as_deref().unwrap_or_default();
    let spark = if product.replace(['_', ' '], "").contains("DGXSpark") {
        format!("; its one GPU, a GB10, is {}", Unsupported::Gb10)
    } else {
        String::new()
    };
    format!("{DEVICES} is missing: GPUs, NICs and drives are not known{spark}")
}

/// Reads functions on a few threads, in the order asked; none if a link is dangling.
fn read_all(
    root: &FsRoot,
    list: &Dir<'_>,
    wanted: &[(Bdf, String)],
) -> Result<Vec<Option<PciDevice>>, FsError> {
    let read = |part: &[(Bdf, String)]| {
        let one = |(bdf, name): &(Bdf, String)| match root.dir(&device_path(list, name)?)? {
            Some(dir) => device(&dir, *bdf).map(Some),
            None => Ok(None),
        };
        part.iter().map(one).collect::<Result<Vec<_>, FsError>>()
    };
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = processors.min(THREADS).min(wanted.len().div_ceil(PER_THREAD)).max(1);
    let mut parts = wanted.chunks(wanted.len().div_ceil(threads).max(1));
    let own = parts.next().unwrap_or_default();
    std::thread::scope(|scope| {
        let others: Vec<_> = parts.map(|part| scope.spawn(move || read(part))).collect();
        let mut devices = read(own)?;
        for other in others {
            match other.join() {
                Ok(read) => devices.extend(read?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(devices)
    })
}

/// The path of a function in the kernel's tree of devices, or its path in the list if that is not a
/// link.
fn device_path(list: &Dir<'_>, name: &str) -> Result<String, FsError> {
    let target = list.link(name)?;
    let path = target.as_deref().and_then(|target| target.strip_prefix("../../../"));
    Ok(match path {
        Some(path) => format!("sys/{path}"),
        None => format!("{DEVICES}/{name}"),
    })
}

/// Reads the directory of a function.
fn device(dir: &Dir<'_>, bdf: Bdf) -> Result<PciDevice, FsError> {
    let (parent, root) = place(dir.path());
    let ids = Ids::read(dir)?;
    let node = dir.number::<i32>("numa_node")?.and_then(|node| u32::try_from(node).ok());
    let mut device = PciDevice {
        bdf,
        parent,
        root,
        class: ids.class,
        vendor: ids.vendor,
        device: ids.device,
        subsystem_vendor: ids.subsystem_vendor,
        subsystem_device: ids.subsystem_device,
        node: node.map(NodeId),
        driver: dir.link_name("driver")?,
        iommu_group: iommu_group(dir)?,
        bars: bars(dir)?,
        link: link(dir, "current_link_speed", "current_link_width")?,
        link_max: link(dir, "max_link_speed", "max_link_width")?,
        sriov: sriov(dir)?,
        reset_methods: dir.read_if_any("reset_method")?.as_deref().and_then(reset_methods),
        net: None,
        // Only VGA functions have the file.
        boot_vga: ids.class >> 8 == 0x0300 && dir.read_if_any("boot_vga")?.as_deref() == Some("1"),
        uuid: None,
        health: None,
        acs: None,
        ats: None,
        mediated: mediated(dir)?,
        devctl: None,
        vfio: vfio(dir)?,
        vgpu: None,
        mig: None,
        second_display: false,
    };
    acs::read(dir, &mut device);
    Ok(device)
}

/// Reads reset methods; none if the text has other words.
fn reset_methods(text: &str) -> Option<Vec<String>> {
    let is_word = |word: &str| word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let is_list = text.len() <= 256 && text.split_whitespace().all(is_word);
    is_list.then(|| text.split_whitespace().map(str::to_owned).collect())
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ids {
    pub(super) class: u32,
    pub(super) vendor: u16,
    pub(super) device: u16,
    pub(super) subsystem_vendor: u16,
    pub(super) subsystem_device: u16,
}

impl Ids {
    /// Reads `modalias`, which contains all ids; if that is missing or has another form, the five
    /// files of one id each, 0 for a missing one. One file instead of five saves a third of the
    /// time on hosts with many functions.
    pub(super) fn read(dir: &Dir<'_>) -> Result<Ids, FsError> {
        if let Some(ids) = dir.read_if_any("modalias")?.as_deref().and_then(Ids::from_modalias) {
            return Ok(ids);
        }
        let class: u32 = dir.hex("class")?.unwrap_or(0);
        if class >= 1 << 24 {
            return Err(dir.malformed("class", 1, "above 24 bits"));
        }
        let id = |name: &str| Ok::<u16, FsError>(dir.hex(name)?.unwrap_or(0));
        Ok(Ids {
            class,
            vendor: id("vendor")?,
            device: id("device")?,
            subsystem_vendor: id("subsystem_vendor")?,
            subsystem_device: id("subsystem_device")?,
        })
    }

    /// Reads `pci:v000010DEd00001DB8sv000010DEsd0000131Dbc03sc02i00`.
    fn from_modalias(text: &str) -> Option<Ids> {
        let mut rest = text.strip_prefix("pci:")?;
        let mut field = |name: &str, digits: usize| {
            let (value, after) = rest.strip_prefix(name)?.split_at_checked(digits)?;
            rest = after;
            let good = value.bytes().all(|b| b.is_ascii_hexdigit());
            u32::from_str_radix(value, 16).ok().filter(|_| good)
        };
        let id = |value: u32| u16::try_from(value).ok();
        let (vendor, device) = (id(field("v", 8)?)?, id(field("d", 8)?)?);
        let (subsystem_vendor, subsystem_device) = (id(field("sv", 8)?)?, id(field("sd", 8)?)?);
        let class = field("bc", 2)? << 16 | field("sc", 2)? << 8 | field("i", 2)?;
        let ids = Ids { class, vendor, device, subsystem_vendor, subsystem_device };
        Some(ids).filter(|_| rest.is_empty())
    }
}

/// Returns the function directly above a path's last one, and the root complex. There is none
/// between a root complex and a function on its first bus, even if the root complex belongs to a
/// function (Intel VMD).
pub fn place(path: &str) -> (Option<Bdf>, Option<String>) {
    let mut parent = None;
    let mut above = path.rsplit('/').skip(1).peekable();
    if let Some(bdf) = above.peek().and_then(|name| name.parse().ok()) {
        parent = Some(bdf);
    }
    let root = above.find(|name| {
        let digits = name.strip_prefix("pci").and_then(|rest| rest.split_once(':'));
        digits.is_some_and(|(segment, bus)| {
            let hex = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
            hex(segment) && hex(bus)
        })
    });
    (parent, root.map(str::to_owned))
}

fn iommu_group(dir: &Dir<'_>) -> Result<Option<u32>, FsError> {
    match dir.link_name("iommu_group")? {
        Some(name) => match name.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(dir.malformed("iommu_group", 1, not(&name, "a group's number"))),
        },
        None => Ok(None),
    }
}

/// Reads the `resource` file: per line first address, last address and flags of a BAR, zeros for
/// none.
fn bars(dir: &Dir<'_>) -> Result<Vec<Bar>, FsError> {
    let text = dir.read_if_any("resource")?.unwrap_or_default();
    let mut bars = Vec::new();
    for (line, content) in text.lines().enumerate() {
        match bar(line, content) {
            Some(Some(bar)) => bars.push(bar),
            Some(None) => {}
            None => {
                let reason = not(content, "two addresses and flags, each with 0x in front");
                return Err(dir.malformed("resource", line + 1, reason));
            }
        }
    }
    Ok(bars)
}

/// Reads a line of the `resource` file; `Some(None)` is an absent BAR.
fn bar(line: usize, content: &str) -> Option<Option<Bar>> {
    let mut numbers = content.split_whitespace().map(|word| {
        let digits = word.strip_prefix("0x").filter(|digits| !digits.starts_with('+'));
        digits.and_then(|digits| u64::from_str_radix(digits, 16).ok())
    });
    let (start, end, flags) = (numbers.next()??, numbers.next()??, numbers.next()??);
    if flags & (IO | MEMORY) == 0 || (start, end) == (0, 0) {
        return Some(None);
    }
    Some(Some(Bar {
        index: u8::try_from(line).ok()?,
        bytes: end.checked_sub(start)?.checked_add(1)?,
        io: flags & IO != 0,
        is_64bit: flags & MEMORY_64 != 0,
        prefetchable: flags & PREFETCH != 0,
        unassigned: start == 0 || flags & UNSET != 0,
    }))
}

/// Reads a link's speed and width; none if the function is not PCIe.
fn link(dir: &Dir<'_>, speed: &str, width: &str) -> Result<Option<Link>, FsError> {
    let (Some(speed_text), Some(width_text)) = (dir.read_if_any(speed)?, dir.read_if_any(width)?)
    else {
        return Ok(None);
    };
    let Some(speed_dgts) = link_speed(&speed_text) else {
        return Err(dir.malformed(speed, 1, not(&speed_text, "a speed such as 8.0 GT/s PCIe")));
    };
    let width = match width_text.parse() {
        Ok(0 | 255) => None,
        Ok(width) => Some(width),
        Err(_) => return Err(dir.malformed(width, 1, not(&width_text, "a number of lanes"))),
    };
    Ok(Some(Link { speed_dgts, width }))
}

/// Reads `8.0 GT/s PCIe`, or `8 GT/s` of older kernels, in units of 0.1 GT/s; `Some(None)` for
/// `Unknown`.
fn link_speed(text: &str) -> Option<Option<u32>> {
    if text.starts_with("Unknown") {
        return Some(None);
    }
    let number = text.split_once(" GT/s")?.0;
    let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| {
        let good = (1..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        if good { text.parse::<u32>().ok() } else { None }
    };
    Some(Some(digits(whole)? * 10 + digits(tenth).filter(|&tenth| tenth < 10)?))
}

/// Reads the device of VFIO that a function is.
fn vfio(dir: &Dir<'_>) -> Result<Option<VfioDevice>, FsError> {
    let Some(devices) = dir.dir("vfio-dev")? else { return Ok(None) };
    for name in devices.names()? {
        let number = name.strip_prefix("vfio").and_then(|number| number.parse().ok());
        let (Some(number), Some(device)) = (number, devices.dir(&name)?) else { continue };
        return Ok(Some(VfioDevice { number, node: device.read_if_any("dev")?.is_some() }));
    }
    Ok(None)
}

/// Counts the mediated devices of a function: directories called by their UUIDs.
fn mediated(dir: &Dir<'_>) -> Result<u32, FsError> {
    if dir.dir("mdev_supported_types")?.is_none() {
        return Ok(0);
    }
    let names = dir.names()?;
    Ok(names.iter().filter(|name| is_uuid(name)).count().try_into().unwrap_or(u32::MAX))
}

fn sriov(dir: &Dir<'_>) -> Result<Option<Sriov>, FsError> {
    if let Some(name) = dir.link_name("physfn")? {
        return match name.parse() {
            Ok(pf) => Ok(Some(Sriov::Vf { pf })),
            Err(error) => Err(dir.malformed("physfn", 1, error)),
        };
    }
    match dir.number("sriov_totalvfs")? {
        None | Some(0) => Ok(None),
        Some(total) => {
            let enabled = dir.number("sriov_numvfs")?.unwrap_or(0);
            Ok(Some(Sriov::Pf { total, enabled }))
        }
    }
}

/// Drops dangling references and notes them: a node without a directory, a bridge that is hidden.
fn resolve(devices: &mut [PciDevice], parts: &mut Parts) {
    let known: BTreeSet<Bdf> = devices.iter().map(|device| device.bdf).collect();
    let notes = &mut parts.notes;
    for device in devices {
        let bdf = device.bdf;
        if device.vendor == 0 {
            notes.push(format!("PCI function {bdf}: the record does not say its vendor"));
        }
        if let Some(node) = device.node
            && !parts.nodes.iter().any(|known| known.os_index == node)
        {
            notes.push(format!("PCI function {bdf}: it names node {node}, which does not exist"));
            device.node = None;
        }
        if let Some(parent) = device.parent.filter(|parent| !known.contains(parent)) {
            notes.push(format!("PCI function {bdf}: the bridge {parent} above it is not listed"));
            device.parent = None;
        }
        if let Some(Sriov::Vf { pf }) = device.sriov
            && !known.contains(&pf)
        {
            notes.push(format!("PCI function {bdf}: its physical function {pf} is not listed"));
            device.sriov = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_all_ids_of_a_modalias_or_none() {
        let good = "pci:v000010DEd00001DB8sv000010DEsd0000131Dbc03sc02i01";
        let ids = Ids::from_modalias(good).unwrap();
        assert_eq!((ids.class, ids.vendor, ids.device), (0x03_0201, 0x10de, 0x1db8));
        assert_eq!((ids.subsystem_vendor, ids.subsystem_device), (0x10de, 0x131d));
        for length in 0..good.len() {
            assert_eq!(Ids::from_modalias(&good[..length]), None, "{length}");
        }
        for text in [
            "pci:v100010DEd00001DB8sv000010DEsd0000131Dbc03sc02i01",
            "pci:v+00010DEd00001DB8sv000010DEsd0000131Dbc03sc02i01",
            "pci:v000010DEd00001DB8sv000010DEsd0000131Dbc03sc02i01x",
            "virtio:d00000001v00001AF4",
            "pci:vé",
        ] {
            assert_eq!(Ids::from_modalias(text), None, "{text}");
        }
    }

    #[test]
    fn refuses_invalid_speeds() {
        for text in ["", "8.0", "x GT/s", "-1 GT/s", "8.55 GT/s", "99999999999 GT/s", "8. GT/s"] {
            assert_eq!(link_speed(text), None, "{text:?}");
        }
    }

    #[test]
    fn reads_speeds_of_old_and_new_kernels() {
        for (text, dgts) in [
            ("2.5 GT/s PCIe", Some(25)),
            ("8 GT/s", Some(80)),
            ("32.0 GT/s PCIe", Some(320)),
            ("Unknown", None),
            ("Unknown speed", None),
        ] {
            assert_eq!(link_speed(text), Some(dgts), "{text:?}");
        }
    }

    #[test]
    fn reads_lines_of_the_resource_file() {
        let gib64 = "0x0000383800000000 0x000038383fffffff 0x000000000014220c";
        let size = |text| bar(1, text).map(|bar| bar.map(|bar| (bar.bytes, bar.is_64bit, bar.io)));
        assert_eq!(size(gib64), Some(Some((1 << 30, true, false))));
        assert_eq!(size("0x0000000000000000 0x0000000000000000 0x0000000000000000"), Some(None));
        assert_eq!(size("0x2000 0x207f 0x40101"), Some(Some((128, false, true))));
        let unassigned = |text| bar(1, text).flatten().map(|bar| bar.unassigned);
        assert_eq!(unassigned(gib64), Some(false));
        assert_eq!(unassigned("0x0 0xfffffff 0x2014220c"), Some(true));
        assert_eq!(unassigned("0x0 0xfffffff 0x14220c"), Some(true));
        let bad = [
            "",
            "0x1",
            "0x1 0x2",
            "1 2 3",
            "0x2 0x1 0x200",
            "0x+1 0x2 0x200",
            "0x0 0xffffffffffffffff 0x200",
        ];
        for text in bad {
            assert_eq!(size(text), None, "{text:?}");
        }
    }

    #[test]
    fn finds_the_bridge_and_the_root_complex() {
        let bdf = |text: &str| text.parse::<Bdf>().ok();
        for (path, parent, root) in [
            ("sys/devices/pci0000:2b/0000:2b:00.0", None, Some("pci0000:2b")),
            (
                "sys/devices/pci0000:2b/0000:2b:00.0/0000:2c:00.0",
                bdf("2b:00.0"),
                Some("pci0000:2b"),
            ),
            (
                "sys/devices/pci0000:5d/0000:5d:05.5/pci10000:00/10000:00:02.0",
                None,
                Some("pci10000:00"),
            ),
            ("sys/devices/platform/x/pci0008:00/0008:00:00.0", None, Some("pci0008:00")),
            ("sys/bus/pci/devices/0000:2b:00.0", None, None),
        ] {
            assert_eq!(place(path), (parent, root.map(str::to_owned)), "{path}");
        }
    }
}
