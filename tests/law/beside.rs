//! Consistency among guests: those planned one after another are valid together, and `tune` leaves
//! each where it was planned.

use super::clauses::{checked, tuned};
use super::own_hosts;
use super::pairs::Asked;
use crate::posted::each_posted;
use gpuvm::discover::source::load;
use gpuvm::placement::Occupancy;
use gpuvm::topology::Topology;

/// Guests of a host at most.
const MOST: usize = 8;

/// The sizes that a host is filled with: the share of one GPU and of two, guests without GPUs, and
/// guests whose memory is more than their share, so that it comes to lie on several nodes.
fn sizes(topology: &Topology) -> Vec<String> {
    let node = topology.nodes().iter().map(|node| node.memory_kib.kib() >> 20).max().unwrap_or(0);
    let mut all: Vec<String> =
        ["--gpus 1", "--gpus 2", "--vcpus 2 --memory 2G"].map(str::to_owned).into();
    for part in [2, 3, 5].map(|tenths| node * tenths / 10).into_iter().filter(|gib| *gib > 1) {
        all.push(format!("--gpus 1 --vcpus 4 --memory {part}G --allow remote"));
        all.push(format!("--vcpus 2 --memory {part}G --allow remote"));
    }
    all
}

/// Fills a host with guests of a size. Returns their number, and adds the faults of one of them to
/// `wrong`.
fn fill(name: &str, topology: &Topology, size: &str, wrong: &mut Vec<String>) -> usize {
    let (mut there, mut guests) = (Occupancy::default(), Vec::new());
    while guests.len() < MOST {
        let asked = Asked::beside(topology, size, there.clone());
        let Ok(placement) = asked.answer.clone() else { break };
        let Ok(xml) = asked.export(&placement) else { break };
        let mut held = xml.held(true).unwrap();
        held.domain = format!("guest{}", guests.len());
        there.domains.push(held);
        guests.push((asked, placement, xml));
    }
    for (at, (asked, placement, xml)) in guests.iter_mut().enumerate() {
        asked.others = there.clone();
        asked.others.domains.remove(at);
        let place = format!("{name}: {size}: guest {at}");
        let found = checked(asked, placement, xml).into_iter().map(|how| ("check", how));
        let changed = tuned(asked, xml).into_iter().map(|how| ("tune", how));
        wrong.extend(found.chain(changed).map(|(verb, how)| format!("{place}\n    {verb}: {how}")));
    }
    guests.len()
}

#[test]
fn guests_stay_where_they_were_planned_beside_others() {
    let (mut wrong, mut guests, mut several) = (Vec::new(), 0, 0);
    let mut host = |name: &str, topology: &Topology| {
        let all = std::env::var_os("GPUVM_LAW").is_some();
        let due = |at: usize| all || at.is_multiple_of(2);
        for (_, size) in sizes(topology).into_iter().enumerate().filter(|(at, _)| due(*at)) {
            let there = fill(name, topology, &size, &mut wrong);
            guests += there;
            several += usize::from(there > 1);
        }
    };
    for path in own_hosts() {
        host(path.file_stem().unwrap().to_str().unwrap(), &load(&path).unwrap());
    }
    each_posted(|name, path| host(name, &load(path).unwrap()));
    eprintln!("{guests} guests, {several} hosts and sizes with several");
    assert!(wrong.is_empty(), "{} of {guests}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(several > 30, "{several}");
}
