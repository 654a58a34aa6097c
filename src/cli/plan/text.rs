//! The text output of a plan.

use crate::bdf::Bdf;
use crate::cpuset::CpuSet;
use crate::placement::{Placement, Reason, vgpu_words};
use crate::topology::{DeviceKind, Topology, Trust};
use crate::words::{count, nouns};
use gpuvm_core::fabric::need;
use gpuvm_ops::planned::Planned;
use std::fmt::Write as _;

/// A plan in lines: a label and its values, the label once.
#[derive(Default)]
struct Lines(String);

impl Lines {
    /// Adds the lines of a label; none without values.
    fn add(&mut self, label: &str, values: impl IntoIterator<Item = String>) {
        for (at, value) in values.into_iter().enumerate() {
            let label = if at == 0 { label } else { "" };
            writeln!(self.0, "  {label:<12} {value}").expect("text");
        }
    }
}

/// Returns the text of a plan.
pub fn describe(planned: &Planned) -> String {
    let Planned { topology, placement, name, .. } = planned;
    let mut lines = Lines(format!("{name}\n"));
    devices(topology, placement, &mut lines);
    lines.add("vCPUs", [vcpus(planned)]);
    let threads = placement.topology.threads.max(1) as usize;
    let pins = placement.cells.iter().map(|cell| {
        let own = cell.vcpus.start as usize..cell.vcpus.end as usize;
        let pins = placement.vcpu_pins.get(own).unwrap_or_default();
        let (first, last) = (cell.vcpus.start, cell.vcpus.end.saturating_sub(1));
        let which =
            if first == last { format!("vCPU {first}") } else { format!("vCPUs {first}-{last}") };
        format!("{which} on {}", pinned(pins, threads))
    });
    lines.add("pins", pins);
    let or_none =
        |set: &CpuSet| if set.is_empty() { "not pinned".into() } else { format!("pcpus {set}") };
    lines.add("emulator", [or_none(&placement.emulator_pin)]);
    let iothreads = placement.iothread_pins.iter().enumerate();
    lines.add(
        "I/O threads",
        iothreads
            .map(|(at, pin)| format!("{} on {}", at + 1, or_none(pin)))
            .map(|t| t.replace("on not", "not")),
    );
    let cells = placement.cells.iter().enumerate().map(|(at, cell)| {
        let nodes = if cell.host_nodes.is_empty() {
            "bound to no node".to_owned()
        } else {
            format!("on {} {}", nouns(cell.host_nodes.len(), "node"), cell.host_nodes)
        };
        format!("cell {at}: {} ({} KiB) {nodes}", cell.memory_kib, cell.memory_kib.kib())
    });
    lines.add("memory", cells);
    let pages = placement.huge_pages.map(|page| format!("of {}", page.size()));
    lines.add("pages", [pages.unwrap_or_else(|| "normal".into())]);
    let groups = placement.guest_pcie.groups.iter().map(|group| {
        let bus = group
            .cell
            .map_or("a bus of no cell".to_owned(), |cell| format!("a bus of cell {cell}"));
        let ports = count(placement.guest_pcie.ports_of(group), "root port");
        format!("{ports} below {bus}: {}", in_short(topology, &group.devices))
    });
    let spare = planned.request.spare_ports;
    let spare =
        spare.map(|ports| format!("{} for devices that come", count(ports, "free root port")));
    lines.add("guest PCIe", groups.chain(spare));
    lines.add("assumed", planned.assumed().map(|stack| stack.to_string()));
    lines.0
}

/// The number of vCPUs and their topology.
fn vcpus(planned: &Planned) -> String {
    let (vcpus, shape) = (planned.placement.vcpus(), planned.placement.topology);
    let start = planned.request.vcpus_at_start.filter(|start| *start < vcpus);
    let start = start.map(|start| format!(", {start} at start")).unwrap_or_default();
    let dies =
        if shape.dies > 1 { format!(" of {}", count(shape.dies, "die")) } else { String::new() };
    format!(
        "{vcpus}{start}: {}{dies} of {} with {}",
        count(shape.sockets, "socket"),
        count(shape.cores, "core"),
        count(shape.threads, "thread")
    )
}

fn devices(topology: &Topology, placement: &Placement, lines: &mut Lines) {
    let line = |bdf: Bdf| {
        let node = topology.device(bdf).and_then(|device| device.node);
        node.map_or(format!("{bdf}, node unknown"), |node| format!("{bdf}, node {node}"))
    };
    let kind = |bdf: &Bdf| topology.device(*bdf).map(|device| device.kind());
    let of = |wanted: DeviceKind| {
        placement.devices.iter().copied().filter(move |b| kind(b) == Some(wanted))
    };
    let gpus: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
    let gpu = |bdf: Bdf| match gpus.iter().position(|gpu| *gpu == bdf) {
        Some(index) => format!("{index}: {}", line(bdf)),
        // A display has no index.
        None => line(bdf),
    };
    let whole = of(DeviceKind::Gpu).filter(|bdf| !topology.is_vgpu_function(*bdf));
    lines.add("GPUs", whole.map(gpu));
    let vgpus = (!placement.vgpus.is_empty()).then(|| vgpu_words(&placement.vgpus));
    lines.add("vGPUs", vgpus);
    lines.add("NVSwitches", of(DeviceKind::NvSwitch).map(line));
    let is_vf = |bdf: &Bdf| {
        let device = topology.device(*bdf);
        device.is_some_and(|device| device.is_vf())
    };
    let named = |bdf: Bdf| match called(topology, bdf) {
        Some(name) => format!("{}, {name}", line(bdf)),
        None => line(bdf),
    };
    lines.add("NICs", of(DeviceKind::Nic).filter(|bdf| !is_vf(bdf)).map(named));
    lines.add("VFs", of(DeviceKind::Nic).filter(is_vf).map(named));
    lines.add("NVMe drives", of(DeviceKind::Nvme).map(named));
    let shown = [DeviceKind::Gpu, DeviceKind::NvSwitch, DeviceKind::Nic, DeviceKind::Nvme];
    let others = placement.devices.iter().copied();
    let others = others.filter(|b| !kind(b).is_some_and(|kind| shown.contains(&kind)));
    lines.add("with them", others.map(line));
    let activated = need(topology, &placement.devices).ok().flatten();
    let when = if placement.has_no_partition() {
        "which cannot be activated now"
    } else {
        "activated by gpuvm before the start"
    };
    lines.add(
        "partition",
        match activated {
            Some(need) => Some(format!("{need}, {when}")),
            None => placement.partition.map(|id| id.to_string()),
        },
    );
}

/// Devices in a line: GPUs by index, and all others by address.
fn in_short(topology: &Topology, devices: &[Bdf]) -> String {
    let index = |bdf: Bdf| topology.gpus().position(|gpu| gpu.bdf == bdf);
    let gpus: Vec<String> =
        devices.iter().filter_map(|&bdf| index(bdf)).map(|at| at.to_string()).collect();
    let gpus = match &gpus[..] {
        [] => None,
        [only] => Some(format!("GPU {only}")),
        several => Some(format!("GPUs {}", several.join(","))),
    };
    let others = devices.iter().filter(|bdf| index(**bdf).is_none()).map(ToString::to_string);
    gpus.into_iter().chain(others).collect::<Vec<_>>().join(", ")
}

/// The kernel's name of a NIC or an NVMe drive, if the record has one.
fn called(topology: &Topology, bdf: Bdf) -> Option<String> {
    let net = topology.device(bdf).and_then(|device| device.net.as_ref());
    let net = net.and_then(|net| net.rdma.first().or(net.netdevs.first()));
    let drives = topology.parts().drives.iter();
    let drive = drives.filter(|drive| drive.bdf == Some(bdf)).map(|drive| &drive.name);
    net.or_else(|| drive.min()).cloned()
}

/// Pins of successive vCPUs by core: `0,48 1,49`; a run of cores as `0,48 to 4,52`.
fn pinned(pins: &[CpuSet], threads: usize) -> String {
    if pins.iter().all(CpuSet::is_empty) {
        return "any pcpu".into();
    }
    let cores: Vec<Vec<Option<u32>>> = pins
        .chunks(threads)
        .map(|core| {
            core.iter().map(|pin| pin.first().filter(|_| pin.len() == 1).map(|p| p.0)).collect()
        })
        .collect();
    let next = |a: &[Option<u32>], b: &[Option<u32>]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is_some() && a.map(|a| a + 1) == *b)
    };
    let name = |at: usize| -> String {
        let core = &pins[at * threads..(at * threads + threads).min(pins.len())];
        core.iter().map(|pin| pin.to_string()).collect::<Vec<_>>().join(",")
    };
    let mut runs: Vec<String> = Vec::new();
    let mut first = 0;
    while first < cores.len() {
        let mut last = first;
        while last + 1 < cores.len() && next(&cores[last], &cores[last + 1]) {
            last += 1;
        }
        match last - first {
            0 => runs.push(name(first)),
            1 => runs.extend([name(first), name(last)]),
            _ => runs.push(format!("{} to {}", name(first), name(last))),
        }
        first = last + 1;
    }
    runs.join(" ")
}

/// Formats the reasons: all of them, or only the compromises.
pub(super) fn reasons(reasons: &[Reason], all: bool) -> String {
    let said: Vec<&Reason> = reasons.iter().filter(|reason| all || reason.compromise).collect();
    let mut text = match (all, said.is_empty()) {
        (true, _) => "\nreasons (`!` marks a compromise)\n".to_owned(),
        (false, true) => String::new(),
        (false, false) => "\n".to_owned(),
    };
    for reason in said {
        let Reason { choice, because, .. } = reason;
        let mark = if reason.is_compromise() { '!' } else { ' ' };
        writeln!(text, "{mark} {choice:<12} {because}").expect("text");
    }
    text
}

/// The line of a guest that `create` refuses; the reason is above it.
pub(super) fn refused(topology: &Topology) -> String {
    let advice = match topology.machine().trust {
        Some(Trust::Strangers) => format!("; {}", topology.trust_advice()),
        _ => String::new(),
    };
    format!("! {:<12} `gpuvm create` refuses this guest{advice}\n", "create")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_shown_by_core() {
        let sets = |pins: &[&str]| pins.iter().map(|p| p.parse().unwrap()).collect::<Vec<CpuSet>>();
        for (pins, threads, text) in [
            (&["", ""][..], 2, "any pcpu"),
            (&["0", "48", "1", "49", "2", "50"], 2, "0,48 to 2,50"),
            (&["0", "48", "1", "49"], 2, "0,48 1,49"),
            (&["0", "48", "2", "50"], 2, "0,48 2,50"),
            (&["3", "4", "5", "9"], 1, "3 to 5 9"),
            (&["0-3", "4-7", "8"], 2, "0-3,4-7 8"),
        ] {
            assert_eq!(pinned(&sets(pins), threads), text);
        }
    }
}
