//! The law with pools of huge pages: they neither cost guests, nor does a guest that is there
//! become another one when they come or go.

use super::clauses::{checked, tuned};
use super::own_hosts;
use super::pairs::Asked;
use gpuvm::discover::source::load;
use gpuvm::memsize::MemSize;
use gpuvm::placement::{GuestCell, Occupancy, Placement, capacity};
use gpuvm::request::{PageSize, Request};
use gpuvm::topology::{HugePagePool, HugetlbMount, NumaNode, Topology};

/// Of so many pairs of pools and a size one is judged, unless all are asked for.
const STRIDE: usize = 13;

/// How many hundredths of a node's memory lie in pages of 1 GiB and of 2 MiB.
type Pools = (u64, u64);

/// Pools that leave normal pages room, and such that leave nearly none.
const ALL: [Pools; 10] =
    [(0, 0), (96, 0), (90, 0), (60, 0), (47, 0), (30, 0), (0, 95), (0, 40), (45, 45), (10, 20)];

/// The host with pools on the nodes at these places, all pages of them free.
fn with_pools(host: &Topology, (gib, mib): Pools, on: impl Fn(usize) -> bool) -> Topology {
    let mut parts = host.parts().clone();
    let pool = |node: &NumaNode, page: PageSize, hundredths: u64| {
        let total = node.memory_kib.kib() * hundredths / 100 / page.size().kib();
        HugePagePool { page_kib: page.size(), total, free: total, surplus: 0 }
    };
    for (at, node) in parts.nodes.iter_mut().enumerate() {
        let (gib, mib) = if on(at) { (gib, mib) } else { (0, 0) };
        node.huge_pages =
            vec![pool(node, PageSize::TwoMib, mib), pool(node, PageSize::OneGib, gib)];
    }
    let mount = |page: PageSize| HugetlbMount { page_kib: page.size(), at: "/dev/huge".into() };
    parts.machine.hugetlbfs = Some([PageSize::TwoMib, PageSize::OneGib].map(mount).into());
    Topology::new(parts).unwrap()
}

/// The host after the guest has started: its pages are no longer free.
fn started(host: &Topology, guest: &Placement) -> Topology {
    let mut parts = host.parts().clone();
    for pages in &guest.node_pages {
        let node = parts.nodes.iter_mut().find(|node| node.os_index == pages.node).unwrap();
        let page = guest.huge_pages.map(PageSize::size);
        let pool = node.huge_pages.iter_mut().find(|pool| Some(pool.page_kib) == page).unwrap();
        pool.free -= pages.needed;
    }
    Topology::new(parts).unwrap()
}

/// Sizes that guests are asked for.
fn sizes(host: &Topology) -> Vec<String> {
    let gpus = host.gpus().count();
    let counts = [1, 2, 4, 8, 16].into_iter().filter(|count| *count <= gpus);
    let more = ["", "--memory 70G", "--pins none", "--cells 1", "--reserve-memory 40G"];
    counts.flat_map(|n| more.iter().map(move |m| format!("--gpus {n} {m}"))).collect()
}

/// How many guests of each size fit on the empty host.
fn counted(host: &Topology) -> Vec<(u32, u32)> {
    let counted = capacity(host, &Occupancy::default(), &Request::for_gpus(0), &[]);
    counted.sizes.iter().map(|size| (size.gpus, size.now)).collect()
}

#[test]
fn pools_cost_no_guest_of_default_size() {
    let mut wrong = Vec::new();
    for path in own_hosts() {
        let host = load(&path).unwrap();
        let bare = counted(&with_pools(&host, (0, 0), |_| true));
        for pools in ALL {
            let all = counted(&with_pools(&host, pools, |_| true));
            let first = counted(&with_pools(&host, pools, |at| at == 0));
            for (found, on) in [(all, "all nodes"), (first, "the first node")] {
                // A guest on all nodes has pages of one size, and one of them has nearly no others.
                let last = if on == "all nodes" { bare.len() } else { bare.len() - 1 };
                if found[..last] != bare[..last] {
                    wrong.push(format!("{path:?} {pools:?} on {on}: {found:?} of {bare:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn guests_stay_as_they_are_when_pools_come_and_go() {
    let (mut wrong, mut asked_of, mut in_pools) = (Vec::new(), 0, 0);
    for path in own_hosts() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let host = load(&path).unwrap();
        let all = ALL.iter().flat_map(|pools| sizes(&host).into_iter().map(move |s| (*pools, s)));
        let due = |at: usize| std::env::var_os("GPUVM_LAW").is_some() || at.is_multiple_of(STRIDE);
        for (_, (before, size)) in all.enumerate().filter(|(at, _)| due(*at)) {
            let there = with_pools(&host, before, |_| true);
            let asked = Asked::new(&there, &size);
            let Ok(placement) = &asked.answer else { continue };
            let Ok(xml) = asked.export(placement) else { continue };
            asked_of += 1;
            in_pools += usize::from(placement.huge_pages.is_some());
            let mut ask = |when: &str, host: &Topology| {
                let later = Asked { topology: host, ..Asked::new(&there, &size) };
                let found = tuned(&later, &xml);
                wrong.extend(
                    found.iter().map(|how| format!("{name} {before:?} {size} {when}: {how}")),
                );
            };
            let found = checked(&asked, placement, &xml);
            assert!(found.is_empty(), "{name} {before:?} {size}: {found:?}");
            ask("before its start", &there);
            let runs = started(&there, placement);
            ask("while it runs", &runs);
            // An unused guest is removed, and a free place is taken.
            let mut parts = runs.parts().clone();
            for node in &mut parts.nodes {
                for pool in &mut node.huge_pages {
                    (pool.total, pool.free) = (pool.used(), 0);
                }
            }
            ask("without the pools", &Topology::new(parts.clone()).unwrap());
            let nodes = parts.nodes.len() as u64;
            for (at, node) in parts.nodes.iter_mut().enumerate() {
                let part = |cell: &GuestCell| match cell.host_nodes.is_empty() {
                    true => cell.memory_kib.share(1, nodes),
                    false if cell.host_nodes.contains(node.os_index) => cell.memory_kib,
                    false => MemSize::default(),
                };
                let mine: MemSize = placement.cells.iter().map(part).sum();
                // Memory that the planner leaves to the host stays.
                let left = node.memory_kib.share(97, 100).saturating_sub(mine);
                let left = left.share(1 + at as u64 % 2, 3);
                let pool = &mut node.huge_pages[0];
                let more = left.kib() / pool.page_kib.kib();
                (pool.total, pool.free) = (pool.total + more, pool.free + more);
            }
            ask("with other pools", &Topology::new(parts).unwrap());
        }
    }
    eprintln!("{asked_of} guests, {in_pools} in huge pages");
    assert!(wrong.is_empty(), "{} of {asked_of}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(in_pools > 50, "{in_pools}");
}
