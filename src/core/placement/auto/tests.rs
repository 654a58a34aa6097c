//! Page sizes left to the planner.

use super::*;
use crate::placement::tests::testhost::HostSpec;
use crate::placement::{Topic, nearest};
use crate::topology::{HugePagePool, HugetlbMount, Parts};

/// A pool of which all pages are free.
fn pool(page: PageSize, total: u64) -> HugePagePool {
    HugePagePool { page_kib: page.size(), total, free: total, surplus: 0 }
}

/// A host of two nodes with a GPU and this much memory each and with these pools on each, mounted
/// or not.
fn host_of(gib: u64, gib_pages: u64, mib_pages: u64, mounted: bool) -> Topology {
    let mut parts = HostSpec::even(2, 8, gib, 2).parts();
    for node in &mut parts.nodes {
        node.huge_pages =
            vec![pool(PageSize::TwoMib, mib_pages), pool(PageSize::OneGib, gib_pages)];
    }
    let mount = |page: PageSize| HugetlbMount { page_kib: page.size(), at: "/dev/huge".into() };
    let mounts = [PageSize::TwoMib, PageSize::OneGib].map(mount);
    parts.machine.hugetlbfs = Some(if mounted { mounts.into() } else { Vec::new() });
    Topology::new(parts).unwrap()
}

/// The same with 160 GiB each, enough for pools and normal pages.
fn host(gib_pages: u64, mib_pages: u64, mounted: bool) -> Topology {
    host_of(160, gib_pages, mib_pages, mounted)
}

/// A guest of one GPU with this much memory.
fn asked(gib: u64) -> Request {
    Request { memory_kib: Some(MemSize::from_gib(gib)), ..Request::for_gpus(1) }
}

/// The reasons about pages, compromises marked.
fn said(found: &Placement) -> String {
    let reasons = found.reasons.iter().filter(|reason| reason.choice == Topic::HugePages);
    let line =
        |reason: &Reason| format!("{}{}", if reason.compromise { "!" } else { "" }, reason.because);
    reasons.map(line).collect::<Vec<_>>().join("\n")
}

/// The place of a request on an empty host.
fn placed(host: &Topology, request: &Request) -> Placement {
    super::super::plan(host, &Occupancy::default(), request).unwrap()
}

#[test]
fn the_largest_pages_that_are_there_and_mounted_are_taken() {
    let (gib, mib) = (Some(PageSize::OneGib), Some(PageSize::TwoMib));
    for (gib_pages, mib_pages, mounted, memory, page) in [
        (40, 0, true, 40, gib),
        (39, 0, true, 40, None),
        (39, 40 << 9, true, 40, mib),
        (40, 40 << 9, true, 40, gib),
        (40, 40 << 9, false, 40, None),
        (40, 0, true, 32, gib),
        // Small guests start fast on any.
        (40, 40 << 9, true, 31, None),
        (0, 0, true, 40, None),
    ] {
        let host = host(gib_pages, mib_pages, mounted);
        let found = placed(&host, &asked(memory));
        let case = format!("{gib_pages} {mib_pages} {mounted} {memory}: {}", said(&found));
        assert_eq!(found.huge_pages, page, "{case}");
        assert_eq!(found.node_pages.is_empty(), page.is_none(), "{case}");
        let silent = memory < 32;
        assert_eq!(said(&found).contains("!normal pages"), page.is_none() && !silent, "{case}");
        assert_eq!(said(&found).contains("the largest of which"), page.is_some(), "{case}");
    }
    let host = host(40, 40 << 9, true);
    let no_gpu = Request { memory_kib: Some(MemSize::from_gib(40)), ..Request::for_gpus(0) };
    assert_eq!(said(&placed(&host, &no_gpu)), "", "guests without GPUs have normal pages");
}

#[test]
fn the_advice_is_the_missing_amount() {
    for gib in [0, 7] {
        let before = host(0, gib << 9, true);
        let found = placed(&before, &asked(40));
        let all = 40 << 9;
        let command =
            format!("`gpuvm host pages --node 0 --size 2M --count {all}` reserves huge pages");
        assert!(said(&found).ends_with(&command), "{}", said(&found));
        assert!(said(&found).contains("at 2.4 instead of 9.8 GiB/s"), "{}", said(&found));
        let after = host(0, all, true);
        assert_eq!(placed(&after, &asked(40)).huge_pages, Some(PageSize::TwoMib));
    }
    let unmounted = placed(&host(0, 40 << 9, false), &asked(40));
    assert!(said(&unmounted).contains("mount -t hugetlbfs -o pagesize=2M"), "{}", said(&unmounted));
    // Without pools in the record, they are not mentioned.
    let bare = HostSpec::even(2, 8, 64, 2).build();
    let found = placed(&bare, &asked(40));
    assert!(said(&found).contains("the record names no pools of huge ones"), "{}", said(&found));
    assert!(!said(&found).contains("gpuvm host pages"), "{}", said(&found));
}

#[test]
fn a_host_whose_memory_is_in_pools_fills_them_by_default() {
    // A GPU's share of 64 GiB would be 60; the pool has 56.
    let host = host_of(64, 56, 0, true);
    let found = placed(&host, &Request::for_gpus(1));
    assert_eq!((found.huge_pages, found.memory()), (Some(PageSize::OneGib), MemSize::from_gib(56)));
    let asked_size =
        Request { huge_pages: HugePages::Size(PageSize::OneGib), ..Request::for_gpus(1) };
    assert!(placed(&host, &asked_size).memory() > found.memory(), "a named size is kept");
    // A small pool does not make a guest small.
    let found = placed(&host_of(64, 33, 0, true), &Request::for_gpus(1));
    assert_eq!(found.huge_pages, Some(PageSize::OneGib), "33 GiB are more than the 27 beside them");
    let found = placed(&host_of(64, 20, 0, true), &Request::for_gpus(1));
    assert_eq!(found.huge_pages, None);
    assert!(found.memory() > MemSize::from_gib(32), "{}", found.memory());
}

/// A DGX-2 with so many GiB in pages of a size on each node, of which so many are free on each.
fn dgx2_with(page: PageSize, gib: u64, free: [u64; 2]) -> Topology {
    let mut parts = crate::placement::tests::dgx2().parts().clone();
    let pages = |gib: u64| MemSize::from_gib(gib).kib() / page.size().kib();
    for (node, free) in parts.nodes.iter_mut().zip(free) {
        node.huge_pages = vec![HugePagePool { free: pages(free), ..pool(page, pages(gib)) }];
    }
    parts.machine.hugetlbfs =
        Some(vec![HugetlbMount { page_kib: page.size(), at: "/dev/huge".into() }]);
    Topology::new(parts).unwrap()
}

#[test]
fn the_default_size_follows_the_pages_that_are_free() {
    for page in [PageSize::OneGib, PageSize::TwoMib] {
        for (free, gpus, cells, text) in [
            ([700, 700], 16, &[700, 700][..], ""),
            ([700, 699], 16, &[700, 699], "; of node 1 699 GiB of 700 GiB are free"),
            ([690, 690], 8, &[690], "; of node 0 690 GiB of 700 GiB are free"),
            ([690, 300], 16, &[690, 300], "; of node 1 300 GiB of 700 GiB are free"),
            ([690, 690], 4, &[350], "in the huge pages of the nodes"),
            ([340, 340], 4, &[170], "; of node 0 340 GiB of 700 GiB are free"),
        ] {
            let found = placed(&dgx2_with(page, 700, free), &Request::for_gpus(gpus));
            let sizes: Vec<MemSize> = found.cells.iter().map(|cell| cell.memory_kib).collect();
            let wanted: Vec<MemSize> = cells.iter().map(|gib| MemSize::from_gib(*gib)).collect();
            assert_eq!((found.huge_pages, sizes), (Some(page), wanted), "{free:?} {gpus}");
            let why = found.reasons.iter().find(|reason| reason.choice == Topic::Memory).unwrap();
            assert!(why.because.to_string().ends_with(text), "{free:?}: {}", why.because);
        }
    }
    // As many guests fit.
    let host = dgx2_with(PageSize::OneGib, 700, [690, 690]);
    let fits = super::super::capacity(&host, &Occupancy::default(), &Request::for_gpus(1), &[1, 4]);
    assert_eq!(fits.sizes.iter().map(|size| size.now).collect::<Vec<_>>(), [16, 4]);
    // Beside a pool that is nearly used up, more is left in normal pages.
    let host = dgx2_with(PageSize::OneGib, 700, [10, 10]);
    assert_eq!(placed(&host, &Request::for_gpus(8)).huge_pages, None);
}

#[test]
fn a_node_with_too_few_free_pages_is_left_for_one_with_enough() {
    let mut parts = host(40, 40 << 9, true).parts().clone();
    let of_node = |parts: &mut Parts, at: usize, page: PageSize, free| {
        let pools = parts.nodes[at].huge_pages.iter_mut();
        pools.filter(|pool| pool.page_kib == page.size()).for_each(|pool| pool.free = free);
    };
    for full in [0, 1] {
        for page in [PageSize::OneGib, PageSize::TwoMib] {
            of_node(&mut parts, full, page, 5);
            of_node(&mut parts, 1 - full, page, MemSize::from_gib(40).kib() / page.size().kib());
        }
        let found = placed(&Topology::new(parts.clone()).unwrap(), &asked(40));
        let nodes: Vec<u32> = found.node_pages.iter().map(|pages| pages.node.0).collect();
        let said = said(&found);
        assert_eq!(
            (found.huge_pages, nodes),
            (Some(PageSize::OneGib), vec![1 - full as u32]),
            "{said}"
        );
    }
    // Pages that a defined guest will take are not free.
    let host = host(40, 0, true);
    let asked_size = Request { huge_pages: HugePages::Size(PageSize::OneGib), ..asked(40) };
    let mut held = Occupancy::default();
    for node in [0, 1] {
        let found = super::super::plan(&host, &held, &asked_size).unwrap();
        assert_eq!(found.node_pages[0].node.0, node);
        let domain = crate::placement::Held { active: false, ..found.held(&node.to_string()) };
        held.domains.push(domain);
    }
    held.domains.remove(0);
    let found = super::super::plan(&host, &held, &asked(40)).unwrap();
    assert_eq!((found.huge_pages, found.node_pages[0].node.0), (Some(PageSize::OneGib), 0));
}

#[test]
fn pages_are_not_worth_a_worse_place() {
    // Its pool has the pages for two GPUs, but on two nodes.
    let host = host(40, 0, true);
    let both = Request { memory_kib: Some(MemSize::from_gib(64)), ..Request::for_gpus(2) };
    let found = placed(&host, &both);
    let off = placed(&host, &Request { huge_pages: HugePages::Off, ..both });
    assert_eq!((found.cells.len(), found.vcpus()), (off.cells.len(), off.vcpus()));
}

#[test]
fn pages_that_are_not_mounted_are_named() {
    for (free, memory) in [(120, None), (150, None), (60, Some(50))] {
        let mut parts = host(free, 0, true).parts().clone();
        let mount = HugetlbMount { page_kib: PageSize::TwoMib.size(), at: "/dev/hugepages".into() };
        parts.machine.hugetlbfs = Some(vec![mount]);
        let host = Topology::new(parts).unwrap();
        let request = Request { memory_kib: memory.map(MemSize::from_gib), ..Request::for_gpus(1) };
        let said = said(&placed(&host, &request));
        assert!(
            said.contains(
                "!normal pages, since no hugetlbfs is mounted for the free pages of 1 GiB"
            ),
            "{said}"
        );
        assert!(said.contains("mount -t hugetlbfs -o pagesize=1G"), "{said}");
        let many = Request { memory_kib: Some(MemSize::from_gib(140)), ..request };
        if let Err(PlanError::Taken { hint, .. }) =
            super::super::plan(&host, &Occupancy::default(), &many)
        {
            assert_eq!(hint.contains("pagesize=1G"), free == 150, "{free}: {hint}");
        }
    }
}

#[test]
fn small_guests_go_into_pools_where_nothing_else_is_left() {
    let host = host_of(64, 62, 0, true);
    for request in
        [asked(8), Request { memory_kib: Some(MemSize::from_gib(8)), ..Request::for_gpus(0) }]
    {
        let found = placed(&host, &request);
        assert_eq!(found.huge_pages, Some(PageSize::OneGib), "{}", said(&found));
        assert!(said(&found).contains("too little memory is left beside them"), "{}", said(&found));
    }
}

#[test]
fn a_size_that_is_given_up_is_left_to_the_planner() {
    let none = Occupancy::default();
    let host = host(0, 0, true);
    let parts: &Parts = host.parts();
    let mut parts = parts.clone();
    parts.nodes.iter_mut().for_each(|node| node.huge_pages.truncate(1));
    let host = Topology::new(parts).unwrap();
    let asked_size = Request { huge_pages: HugePages::Size(PageSize::OneGib), ..asked(8) };
    assert_eq!(nearest(&host, &none, &asked_size)[0].huge_pages, HugePages::Auto);
}

#[test]
fn wishes_for_pages_are_read_and_written_as_ever() {
    for (json, pages) in [
        ("null", HugePages::Off),
        ("\"auto\"", HugePages::Auto),
        ("\"2M\"", HugePages::Size(PageSize::TwoMib)),
        ("\"1G\"", HugePages::Size(PageSize::OneGib)),
    ] {
        assert_eq!(serde_json::from_str::<HugePages>(json).unwrap(), pages);
        assert_eq!(serde_json::to_string(&pages).unwrap(), json);
    }
}
