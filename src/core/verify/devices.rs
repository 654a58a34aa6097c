//! Compares the files opened by a guest's process, and the drivers of passed-through functions,
//! with the running XML.

use super::report::{Between, Report, Wrong};
use crate::check::guest::Guest;
use crate::domain::Element;
use crate::finding::Rule;
use crate::shell::word;
use crate::topology::{Topology, is_vfio};
use crate::verify::process::{Opened, Process};

/// The guest's device is dead, or is about to be.
const DRIVER: Rule = Rule::error("hostdev-driver", "a passed function that is not bound to VFIO");
/// QEMU was started without it, or has lost it.
const NOT_OPEN: Rule = Rule::error(
    "hostdev-not-open",
    "a passed function that the guest's process does not have open",
);
/// The other way locks memory otherwise, and its devices may not reach each other.
const WAY: Rule = Rule::warning(
    "hostdev-way",
    "functions that the guest's process has by VFIO groups instead of iommufd, or the reverse",
);
/// Fewer queues than the definition has.
const QUEUES: Rule =
    Rule::warning("net-queues-missing", "fewer open network queues than the running XML has");
/// Packets go through QEMU's main thread.
const VHOST: Rule = Rule::warning("vhost-missing", "network queues that the kernel does not serve");
/// Reads and writes go through the host's page cache although they should not, or the reverse.
const CACHE: Rule =
    Rule::error("disk-cache", "a disk that is opened with another cache than the running XML has");

/// Rules of this module.
pub const RULES: &[Rule] = &[DRIVER, NOT_OPEN, WAY, QUEUES, VHOST, CACHE];

/// Compares devices with the running XML.
pub fn compare(live: &Guest<'_>, process: &Process, topology: &Topology, report: &mut Report) {
    drivers(live, topology, report);
    let Some(opened) = &process.opened else { return };
    let at = format!("/proc/{}/fd", process.pid);
    open_functions(live, opened, topology, &at, report);
    queues(live, opened, &at, report);
    for disk in devices(live, "disk") {
        cache(disk, opened, &at, report);
    }
}

fn devices<'t>(live: &Guest<'t>, name: &'static str) -> impl Iterator<Item = Element<'t>> {
    let devices = live.spot.element().child("devices");
    devices.into_iter().flat_map(move |devices| devices.children(name))
}

fn drivers(live: &Guest<'_>, topology: &Topology, report: &mut Report) {
    for passed in &live.passed {
        let bdf = passed.bdf.value;
        let Some(device) = topology.device(bdf) else { continue }; // has a rule in `check`
        // A vendor's own driver of VFIO makes such a device, too.
        if !device.driver.as_deref().is_some_and(is_vfio) && device.vfio.is_none() {
            let hint = format!("stop the guest, `gpuvm device bind {bdf}`, start it");
            let wrong = Wrong {
                what: format!("driver of {bdf}"),
                expected: "vfio-pci".into(),
                found: device.driver.clone().unwrap_or_else(|| "none".into()),
                at: format!("/sys/bus/pci/devices/{bdf}/driver"),
                hint: &hint,
            };
            report.differs(&DRIVER, Between::Reality, wrong);
        }
    }
}

/// The device by which a process has functions by iommufd.
const IOMMU: &str = "/dev/iommu";

/// Compares how the process has functions with how they are passed. Returns whether that is equal.
fn way(live: &Guest<'_>, opened: &Opened, at: &str, report: &mut Report) -> bool {
    // An argument of QEMU chooses for itself.
    if live.passed.is_empty() || live.passed.iter().any(|passed| passed.by_argument) {
        return true;
    }
    let is_asked = live.passed.iter().any(|passed| passed.iommufd);
    // Only where a function is open: one that is not has another rule.
    let is_so = opened.files.contains_key(IOMMU);
    if is_asked == is_so || !is_so && opened.vfio.is_empty() {
        return true;
    }
    let name = |is_iommufd| if is_iommufd { "by iommufd" } else { "by VFIO groups" };
    let found = if is_so { "/dev/iommu open" } else { "VFIO groups alone" };
    let hint = format!("`gpuvm restart {}` passes them as its definition says", word(&live.name));
    let wrong = Wrong {
        what: "functions are passed".into(),
        expected: name(is_asked).into(),
        found: found.into(),
        at: at.to_owned(),
        hint: &hint,
    };
    report.differs(&WAY, Between::Reality, wrong);
    false
}

/// Compares open VFIO groups and, of functions by iommufd, open devices with the passed-through
/// functions.
fn open_functions(
    live: &Guest<'_>,
    opened: &Opened,
    topology: &Topology,
    at: &str,
    report: &mut Report,
) {
    let is_right = way(live, opened, at, report);
    // Without numbers of the host's record, no file identifies the devices.
    let numbered = |bdf| topology.device(bdf).is_some_and(|device| device.vfio.is_some());
    let alone = opened.vfio.iter().filter(|name| name.starts_with("devices/")).count();
    let are_told = live.passed.iter().all(|passed| numbered(passed.bdf.value));
    if alone >= live.passed.len() && !are_told {
        return;
    }
    for passed in &live.passed {
        let bdf = passed.bdf.value;
        let Some(device) = topology.device(bdf) else { continue };
        let node = device.vfio.filter(|vfio| vfio.node);
        let node = node.map(|vfio| format!("devices/vfio{}", vfio.number));
        let groups =
            device.iommu_group.map(|group| [group.to_string(), format!("noiommu-{group}")]);
        let (what, expected) = match (&node, &groups) {
            (Some(node), _) if passed.iommufd => ("the VFIO device open for", node.clone()),
            // No file shows which device is its own.
            (None, _) if passed.iommufd => continue,
            (_, Some([group, _])) => ("IOMMU groups open for", group.clone()),
            (_, None) => continue,
        };
        // Where the process has another way, or an argument chooses it, either is its own.
        let is_any = !is_right || passed.by_argument;
        let groups = groups.iter().flatten().filter(|_| is_any || !passed.iommufd);
        let nodes = node.iter().filter(|_| is_any || passed.iommufd);
        if { groups }.chain(nodes).any(|name| opened.vfio.contains(name)) {
            continue;
        }
        let hint = format!("`gpuvm restart {}`; its log says why QEMU let go", word(&live.name));
        let open: Vec<&str> = opened.vfio.iter().map(String::as_str).collect();
        let wrong = Wrong {
            what: format!("{what} {bdf}"),
            expected,
            found: if open.is_empty() { "none".into() } else { open.join(", ") },
            at: at.to_owned(),
            hint: &hint,
        };
        report.differs(&NOT_OPEN, Between::Reality, wrong);
    }
}

/// Compares open tap queues, and those served by vhost, with the queues of interfaces.
fn queues(live: &Guest<'_>, opened: &Opened, at: &str, report: &mut Report) {
    let (mut taps, mut vhosts) = (0, 0);
    // libvirt sets up no vhost for an emulated guest.
    let kvm = live.spot.element().attr("type").as_deref() == Some("kvm");
    for nic in devices(live, "interface") {
        let attr = |name: &str, attribute: &str| {
            nic.child(name).and_then(|child| child.attr(attribute)).map(|value| value.into_owned())
        };
        // Only interfaces with a network device on the host have a name there.
        let Some(target) = attr("target", "dev") else { continue };
        if nic.attr("type").is_some_and(|kind| matches!(&*kind, "vhostuser" | "vdpa" | "hostdev")) {
            continue;
        }
        let queues = attr("driver", "queues").and_then(|text| text.parse().ok()).unwrap_or(1);
        taps += queues;
        if kvm
            && attr("model", "type").as_deref() == Some("virtio")
            && attr("driver", "name").as_deref() != Some("qemu")
            && !target.is_empty()
        {
            vhosts += queues;
        }
    }
    let hint =
        format!("`gpuvm restart {}` reopens them; QEMU's log says what failed", word(&live.name));
    let mut tell = |rule, what: &str, expected: usize, found: usize, hint: &str| {
        if found < expected {
            let (what, at) = (what.to_owned(), at.to_owned());
            let (expected, found) = (expected.to_string(), found.to_string());
            report.differs(rule, Between::Reality, Wrong { what, expected, found, at, hint });
        }
    };
    tell(&QUEUES, "open network queues", taps, opened.taps, &hint);
    let hint = "`modprobe vhost_net`, then restart the guest";
    tell(&VHOST, "network queues served by the kernel", vhosts, opened.vhosts, hint);
}

/// Compares how a disk is opened with its cache mode: `none` and `directsync` bypass the host's
/// page cache.
fn cache(disk: Element<'_>, opened: &Opened, at: &str, report: &mut Report) {
    let cache = disk.child("driver").and_then(|driver| driver.attr("cache"));
    let source = disk.child("source");
    let source = source.and_then(|source| source.attr("file").or_else(|| source.attr("dev")));
    let (Some(cache), Some(source)) = (cache, source) else { return };
    let wanted = match &*cache {
        "none" | "directsync" => true,
        "writeback" | "writethrough" | "unsafe" => false,
        _ => return,
    };
    // A file opened under another name, through a link or by a helper, cannot be judged.
    let Some(&direct) = opened.files.get(&*source) else { return };
    if direct != wanted {
        let word = |direct| if direct { "O_DIRECT" } else { "the host's page cache" };
        let wrong = Wrong {
            what: format!("{source} is read and written by"),
            expected: format!("{} (cache='{cache}')", word(wanted)),
            found: word(direct).to_owned(),
            at: at.to_owned(),
            hint: "restart the guest; QEMU's log says whether the file system knows O_DIRECT",
        };
        report.differs(&CACHE, Between::Reality, wrong);
    }
}
