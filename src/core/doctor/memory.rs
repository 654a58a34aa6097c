//! Rules on memory: locked memory, huge pages that cannot be reserved, merged pages.

use super::report::{Report, Wrong};
use super::{Case, Traits};
use crate::check::memory::default_page_size;
use crate::finding::Rule;
use crate::memsize::MemSize;
use crate::placement::Held;
use crate::shell::word;
use crate::topology::facts::DaemonUnit;
use crate::versions::KERNEL_NODE_PAGES;

/// QEMU cannot lock the guest's memory for DMA.
pub const MEMLOCK: Rule =
    Rule::warning("memlock", "a daemon or a kernel setting that limits locked memory");
/// 1 GiB pages need memory that is not in pieces.
pub const FRAGMENTED: Rule = Rule::warning(
    "pages-fragmented",
    "huge pages that are missing, on one node only, or that cannot be reserved",
);
/// Merging costs time, and reveals one tenant's memory to another.
pub const KSM: Rule = Rule::warning("ksm", "equal memory of guests that the kernel merges");

/// The kernel's own limit of mappings, of which a guest with large memory may use most.
const ENOUGH_ENTRIES: u64 = 65_535;

pub(super) fn judge(case: &Case<'_>, report: &mut Report<'_>) {
    // The kernel counts the memory of a guest by iommufd in another way.
    let is_counted = !case.traits.is_some_and(Traits::are_without_groups);
    if let Some(units) = report.need(&MEMLOCK, &case.facts.daemon_units, "etc/systemd/system") {
        units.iter().filter(|_| is_counted).for_each(|unit| daemon(case, unit, report));
    }
    if is_counted {
        entries(case, report);
    }
    pages(case, report);
    ksm(case, report);
}

/// The memory of the largest guest, in bytes; without one a GPU's share of the host's.
fn largest(case: &Case<'_>) -> u64 {
    let memory = |held: &Held| held.memory.iter().map(|(_, size)| *size).sum::<MemSize>();
    let guests = case.guests.iter().flat_map(|guests| &guests.domains);
    let largest = guests.map(memory).max().filter(|size| !size.is_zero());
    let all = || case.topology.nodes().iter().map(|node| node.memory_kib).sum::<MemSize>().kib();
    let gpus = case.topology.gpus().count().max(1) as u64;
    largest.map_or_else(|| all() / gpus, MemSize::kib).saturating_mul(1024)
}

/// Judges a changed unit of a daemon.
fn daemon(case: &Case<'_>, unit: &DaemonUnit, report: &mut Report<'_>) {
    let wanted = largest(case);
    let name = &unit.unit;
    let drop_in = |of: &str, line: &str| {
        let dir = format!("/etc/systemd/system/{name}.d");
        let text = format!("[Service]\\n{line}\\n");
        vec![
            format!("mkdir -p {}", word(&dir)),
            format!("printf {} >{}", word(&text), word(&format!("{dir}/zz-gpu-guests-{of}.conf"))),
            format!("systemctl daemon-reload && systemctl restart {}", word(name)),
        ]
    };
    if let Some((names, file)) = &unit.without {
        let list = names.join(" ");
        let wrong = Wrong {
            message: format!(
                "{name} runs without {list}, so it cannot raise the limit of locked memory of a \
                 guest with a GPU"
            ),
            values: (list.clone(), "removed by CapabilityBoundingSet".into()),
            at: format!("/{file}"),
            hint: format!("add `CapabilityBoundingSet={list}` by a drop-in and restart {name}"),
            fix: drop_in("capabilities", &format!("CapabilityBoundingSet={list}")),
        };
        report.add(&MEMLOCK, wrong);
    }
    if let Some((bytes, file)) = unit.memlock.as_ref().filter(|(bytes, _)| *bytes < wanted) {
        let wrong = Wrong {
            message: format!(
                "{name} limits locked memory to {} MiB, and a guest with a GPU locks all of its \
                 memory: {} MiB",
                bytes >> 20,
                wanted >> 20
            ),
            values: ("infinity".into(), bytes.to_string()),
            at: format!("/{file}"),
            hint: format!("set `LimitMEMLOCK=infinity` by a drop-in and restart {name}"),
            fix: drop_in("memlock", "LimitMEMLOCK=infinity"),
        };
        report.add(&MEMLOCK, wrong);
    }
}

/// Judges how many mappings VFIO makes.
fn entries(case: &Case<'_>, report: &mut Report<'_>) {
    let path = "sys/module/vfio_iommu_type1/parameters/dma_entry_limit";
    let Some(&limit) = case.facts.kernel.dma_entry_limit.as_ref() else {
        report.skip_part(&MEMLOCK, format!("/{path} is not known"));
        return;
    };
    if limit >= ENOUGH_ENTRIES {
        return;
    }
    let wrong = Wrong {
        message: format!("VFIO makes at most {limit} mappings for a guest"),
        values: (ENOUGH_ENTRIES.to_string(), limit.to_string()),
        at: format!("/{path}"),
        hint: "remove `dma_entry_limit` from the options of vfio_iommu_type1 in /etc/modprobe.d"
            .into(),
        fix: vec![format!("echo {ENOUGH_ENTRIES} >/{path}")],
    };
    report.add(&MEMLOCK, wrong);
}

/// Judges huge pages: those that boot was to reserve, and free memory to make more of.
fn pages(case: &Case<'_>, report: &mut Report<'_>) {
    let nodes = case.topology.nodes();
    for (size, asked) in asked_at_boot(&case.topology.machine().kernel_arguments) {
        let pools =
            || nodes.iter().flat_map(|node| &node.huge_pages).filter(|pool| pool.page_kib == size);
        if pools().next().is_none() {
            continue;
        }
        let there: u64 = pools().map(|pool| pool.total).sum();
        if there >= asked {
            continue;
        }
        let wrong = Wrong {
            message: format!(
                "the kernel was to reserve {asked} pages of {size} at boot, and there are {there}"
            ),
            values: (asked.to_string(), there.to_string()),
            at: "/proc/cmdline".into(),
            hint: "ask for fewer, or name the nodes: `gpuvm host pages --node N --size 1G --count \
                   N --at-boot` reserves them early at boot"
                .into(),
            fix: vec!["gpuvm host pages".into()],
        };
        report.add(&FRAGMENTED, wrong);
    }
    one_node(case, report);
    let Some(free) = report.need(&FRAGMENTED, &case.facts.free_blocks, "proc/buddyinfo") else {
        return;
    };
    for blocks in free {
        let reserved = case.topology.node(blocks.node);
        let has_pages =
            reserved.is_some_and(|node| node.huge_pages.iter().any(|pool| pool.total > 0));
        // Less than 1 GiB free says nothing of how it lies.
        if has_pages
            || blocks.free_kib < 1 << 20
            || blocks.large_kib.saturating_mul(4) >= blocks.free_kib
        {
            continue;
        }
        let node = blocks.node;
        let wrong = Wrong {
            message: format!(
                "the free memory of node {node} lies in pieces: {} of {} MiB are in blocks of 2 MiB \
                 and more, so huge pages cannot be reserved",
                blocks.large_kib >> 10,
                blocks.free_kib >> 10
            ),
            values: ("a quarter of it, at least".into(), format!("{} MiB", blocks.large_kib >> 10)),
            at: "/proc/buddyinfo".into(),
            hint: "reserve them at boot, before memory is used: `gpuvm host pages --node N --size \
                   1G --count N --boot-only`"
                .into(),
            fix: vec![
                "echo 1 >/proc/sys/vm/compact_memory".into(),
                format!("gpuvm host pages --node {node}"),
            ],
        };
        report.add(&FRAGMENTED, wrong);
    }
}

/// Finds pages of 1 GiB that one of several nodes with GPUs has alone.
fn one_node(case: &Case<'_>, report: &mut Report<'_>) {
    let with_gpus = |node: &&crate::topology::NumaNode| {
        case.topology.gpus().any(|gpu| gpu.node == Some(node.os_index))
    };
    let nodes: Vec<_> = case.topology.nodes().iter().filter(with_gpus).collect();
    let page = MemSize::from_gib(1);
    let count = |node: &crate::topology::NumaNode| {
        node.huge_pages.iter().find(|pool| pool.page_kib == page).map(|pool| pool.total)
    };
    let counts: Option<Vec<u64>> = nodes.iter().map(|node| count(node)).collect();
    let Some(counts) = counts.filter(|counts| counts.len() > 1) else { return };
    let (some, none): (Vec<_>, Vec<_>) =
        nodes.iter().zip(&counts).partition::<Vec<_>, _>(|(_, count)| **count > 0);
    let (Some((first, most)), Some((empty, _))) = (some.first(), none.first()) else { return };
    let by_kernel = match case.defect(&KERNEL_NODE_PAGES) {
        Some(_) => String::new(),
        None => "; `hugepages=NODE:N` on the kernel's command line does, too".to_owned(),
    };
    let wrong = Wrong {
        message: format!(
            "node {} has {most} pages of 1 GiB and node {} none, and both have GPUs",
            first.os_index, empty.os_index
        ),
        values: ("pages on each node with GPUs".into(), "0".into()),
        at: format!("/sys/devices/system/node/node{}/hugepages", empty.os_index),
        hint: format!(
            "`gpuvm host pages --node {} --size 1G --count {most} --at-boot` reserves as many \
             there{by_kernel}",
            empty.os_index
        ),
        fix: vec![format!(
            "gpuvm host pages --node {} --size 1G --count {most} --at-boot",
            empty.os_index
        )],
    };
    report.add(&FRAGMENTED, wrong);
}

/// Returns the pages that kernel arguments ask for, by size: a number belongs to the size before
/// it, without one to the default size.
fn asked_at_boot(arguments: &[String]) -> Vec<(MemSize, u64)> {
    let mut size = Some(default_page_size(arguments));
    let mut asked: Vec<(MemSize, u64)> = Vec::new();
    for argument in arguments {
        match argument.split_once('=') {
            Some(("hugepagesz" | "default_hugepagesz", value)) => {
                size = value.parse::<MemSize>().ok()
            }
            Some(("hugepages", value)) => {
                let counts = value.split(',').map(|part| part.rsplit(':').next().unwrap_or(part));
                let counts: Option<Vec<u64>> = counts.map(|count| count.parse().ok()).collect();
                let sum = counts.map(|counts| counts.into_iter().fold(0, u64::saturating_add));
                if let (Some(size), Some(sum)) = (size, sum) {
                    asked.push((size, sum));
                }
            }
            _ => {}
        }
    }
    asked
}

fn ksm(case: &Case<'_>, report: &mut Report<'_>) {
    let Some(on) = report.need(&KSM, &case.facts.kernel.ksm, "sys/kernel/mm/ksm/run") else {
        return;
    };
    if *on {
        let wrong = Wrong {
            message: "the kernel merges equal pages of guests: it costs time at each write, and \
                      timing tells one tenant what another has in memory"
                .into(),
            values: ("0".into(), "1".into()),
            at: "/sys/kernel/mm/ksm/run".into(),
            hint: "`echo 2 >/sys/kernel/mm/ksm/run` ends and undoes it; `systemctl disable --now \
                   ksm ksmtuned` keeps it off"
                .into(),
            fix: vec![
                "echo 2 >/sys/kernel/mm/ksm/run".into(),
                "# where ksmtuned is installed: systemctl disable --now ksm ksmtuned".into(),
            ],
        };
        report.add(&KSM, wrong);
    }
}
