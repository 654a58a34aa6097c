//! `check` finds nothing in definitions that this program wrote: every slot of every recorded host,
//! and host after host filled with guests that are each checked against those before them.

use crate::support;
use clap::Parser;
use gpuvm::check::{self, Finding};
use gpuvm::cli::args::request;
use gpuvm::cli::args::{Cli, GuestArgs, Verb};
use gpuvm::domain::DomainXml;
use gpuvm::finding::Severity;
use gpuvm::placement::{Occupancy, plan};
use gpuvm::topology::{Topology, file};
use gpuvm::versions::Versions;
use gpuvm_ops::guest::{Extra, render};
use gpuvm_ops::planned::Planned;

/// The recorded hosts with their names.
fn hosts() -> Vec<(String, Topology)> {
    let dir = std::fs::read_dir(support::project().join("topologies")).unwrap();
    let mut hosts: Vec<_> = dir
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, file::from_json(&std::fs::read_to_string(path).unwrap()).unwrap())
        })
        .collect();
    hosts.sort_by(|a, b| a.0.cmp(&b.0));
    hosts
}

/// The arguments of `export` with these words.
fn arguments(words: &str) -> GuestArgs {
    let line = format!("gpuvm export {words}");
    match Cli::try_parse_from(line.split_whitespace()).unwrap().verb {
        Verb::Export(args) => args.guest.clone(),
        _ => unreachable!(),
    }
}

/// The domain for these words; none if the planner refuses.
fn export(topology: &Topology, occupancy: &Occupancy, words: &str) -> Option<DomainXml> {
    let args = arguments(words);
    let request = request(&args.gpus, &args.shape).unwrap();
    let placement = plan(topology, occupancy, &request).ok()?;
    let name = format!("guest-{}", occupancy.domains.len()).parse().unwrap();
    let (topology, occupancy) = (topology.clone(), occupancy.clone());
    let planned = Planned { topology, request, placement, name, occupancy, stack: None };
    Some(render(&args.request().unwrap(), &planned, &Extra::default()).unwrap())
}

/// Every slot of a host as words.
fn slots(topology: &Topology) -> Vec<String> {
    let gpus = topology.gpus().count();
    let sizes = [1, 2, 4, 8, 16].into_iter().filter(|size| *size <= gpus);
    sizes
        .flat_map(|size| (0..gpus).step_by(size).map(move |first| (size, first)))
        .map(|(size, first)| format!("--gpus {size} --gpu-index {first}"))
        .collect()
}

/// The host with enough free huge pages that every guest finds its own.
fn with_pages(topology: &Topology) -> Topology {
    let mut parts = topology.parts().clone();
    let pools = parts.nodes.iter_mut().flat_map(|node| node.huge_pages.iter_mut());
    pools.for_each(|pool| (pool.total, pool.free) = (1 << 30, 1 << 30));
    // Its mounts are not known.
    parts.machine.hugetlbfs = None;
    Topology::new(parts).unwrap()
}

/// The findings, without those about a recorded host's old kernel, which is no fault of a domain.
fn found(domain: &DomainXml, topology: &Topology, others: &Occupancy) -> Vec<Finding> {
    let mut findings = check::check(domain, topology, others, &Versions::default());
    findings.retain(|finding| finding.rule != "slow-large-bars");
    findings
}

#[test]
fn nothing_is_found_in_any_slot_of_any_recorded_host() {
    for (host, topology) in hosts() {
        let mut exported = 0;
        for slot in slots(&topology) {
            for more in ["", "--profile nvidia-vm", "--pins none", "--memory 64G"] {
                let words = format!("{slot} {more}");
                let empty = Occupancy::default();
                let Some(domain) = export(&topology, &empty, &words) else { continue };
                exported += 1;
                let findings = found(&domain, &topology, &empty);
                assert!(findings.is_empty(), "{host}: {words}: {findings:#?}");
            }
        }
        assert!(exported > 0, "{host} has no slot");
    }
}

#[test]
fn nothing_is_found_in_guests_on_huge_pages() {
    for (host, topology) in hosts() {
        let there = with_pages(&topology);
        for slot in slots(&topology) {
            for page in ["2M", "1G"] {
                let words = format!("{slot} --memory 61441M --huge-pages {page}");
                let empty = Occupancy::default();
                let Some(domain) = export(&topology, &empty, &words) else { continue };
                let findings = found(&domain, &there, &empty);
                assert!(findings.is_empty(), "{host}: {words}: {findings:#?}");
            }
        }
    }
}

#[test]
fn a_small_guest_on_many_nodes_is_a_compromise_and_no_error() {
    for (host, topology) in hosts() {
        for slot in slots(&topology) {
            let words = format!("{slot} --vcpus 4 --memory 8G");
            let empty = Occupancy::default();
            let Some(domain) = export(&topology, &empty, &words) else { continue };
            let mut findings = found(&domain, &topology, &empty);
            findings.retain(|finding| finding.severity == Severity::Error);
            assert!(findings.is_empty(), "{host}: {words}: {findings:#?}");
        }
    }
}

#[test]
fn nothing_is_found_in_guests_side_by_side() {
    for (host, topology) in hosts() {
        for size in [1, 2, 4] {
            let mut others = Occupancy::default();
            let words = format!("--gpus {size}");
            while let Some(domain) = export(&topology, &others, &words) {
                let findings = found(&domain, &topology, &others);
                let guest = others.domains.len();
                assert!(findings.is_empty(), "{host}: {words}: guest {guest}: {findings:#?}");
                others.domains.push(domain.held(true).unwrap());
            }
        }
    }
}
