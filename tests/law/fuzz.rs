//! The law for random requests beside random guests. The seed is printed, and GPUVM_SEED takes one;
//! GPUVM_LAW=all judges thousands with a seed of the time.

use super::clauses::{checked, tuned};
use super::own_hosts;
use super::pairs::Asked;
use crate::posted::each_posted;
use clap::Parser as _;
use gpuvm::cli::args::{Cli, Verb, request};
use gpuvm::discover::source::load;
use gpuvm::domain::DomainXml;
use gpuvm::placement::{Occupancy, Placement, capacity, nearest, plan};
use gpuvm::request::{GpuWish, Request};
use gpuvm::topology::Topology;
use gpuvm_core::guest::{differences, now, options};
use std::time::{SystemTime, UNIX_EPOCH};

/// Requests in a run of every day, and nightly.
const REQUESTS: [usize; 2] = [120, 3000];

/// Options beside the number of GPUs.
const OPTIONS: [&str; 28] = [
    "",
    "--profile near",
    "--profile nvidia-vm",
    "--memory 7G",
    "--memory 100G",
    "--vcpus 1",
    "--vcpus 5",
    "--vcpus 6",
    "--vcpus 7 --memory 9G",
    "--vcpus 33",
    "--vcpus 4 --max-vcpus 8",
    "--huge-pages 2M",
    "--huge-pages 1G",
    "--huge-pages off",
    "--pins thread",
    "--pins none",
    "--pins none --threads 1",
    "--cells 1",
    "--cells 2",
    "--reserve-cores 1",
    "--reserve-memory 2G",
    "--allow remote",
    "--allow split",
    "--policy spread",
    "--prefer package",
    "--prefer nic --nic 1",
    "--nvme 1",
    "--spare-ports 3 --machine pc-q35-9.2",
];

/// Random numbers by splitmix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    /// A request that the command line takes.
    fn words(&mut self, topology: &Topology) -> String {
        loop {
            let most = topology.gpus().count();
            let gpus = [0, 1, 1, 2, 2, 3, 4, most / 2, most][self.below(9)];
            let mut words = if gpus > 0 { format!("--gpus {gpus}") } else { String::new() };
            for _ in 0..self.below(4) {
                words = format!("{words} {}", OPTIONS[self.below(OPTIONS.len())]);
            }
            let line = format!("gpuvm export {words}");
            let Ok(cli) = Cli::try_parse_from(line.split_whitespace()) else { continue };
            let Verb::Export(args) = cli.verb else { unreachable!() };
            if request(&args.guest.gpus, &args.guest.shape).is_ok() {
                return words.trim().to_owned();
            }
        }
    }
}

/// What contradicts the answer of `plan`.
fn contradictions(asked: &Asked<'_>) -> Vec<String> {
    let (topology, others) = (asked.topology, &asked.others);
    let mut wrong = Vec::new();
    if let GpuWish::Count(gpus @ 1..) = asked.request.gpus {
        let like = Request { gpus: GpuWish::Count(1), ..asked.request.clone() };
        let found = capacity(topology, others, &like, &[gpus]);
        let counted = found.sizes.first().map_or(0, |size| size.now);
        if asked.answer.is_ok() != (counted > 0) {
            wrong.push(format!("capacity counts {counted}"));
        }
    }
    match &asked.answer {
        Err(_) => {
            for near in nearest(topology, others, &asked.request) {
                if let Err(error) = plan(topology, others, &near) {
                    wrong.push(format!("offers {:?}, and that: {error}", options(&near)));
                }
            }
        }
        Ok(placement) => match asked.export(placement) {
            Err(error) => wrong.push(format!("export: {error}")),
            Ok(xml) => wrong.extend(of_guest(asked, placement, &xml)),
        },
    }
    wrong
}

/// What contradicts a guest that has a place.
fn of_guest(asked: &Asked<'_>, placement: &Placement, xml: &DomainXml) -> Vec<String> {
    let (topology, wanted) = (asked.topology, &asked.request);
    let mut wrong: Vec<String> =
        checked(asked, placement, xml).into_iter().map(|how| format!("check: {how}")).collect();
    wrong.extend(tuned(asked, xml).into_iter().map(|how| format!("tune: {how}")));
    let has = now(xml, topology, wanted);
    if options(&has.request) != options(wanted) {
        wrong.push(format!("reads back as {:?}", options(&has.request)));
    }
    let found = differences(wanted, wanted, &has, topology).0;
    wrong.extend(found.iter().map(|one| format!("apply: {one}")));
    wrong
}

#[test]
fn random_requests_beside_random_guests_contradict_nothing() {
    let is_nightly = std::env::var("GPUVM_LAW").is_ok_and(|law| law == "all");
    let given = std::env::var("GPUVM_SEED").ok().map(|seed| seed.parse().unwrap());
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let seed = given.unwrap_or_else(|| if is_nightly { clock() } else { 1 });
    let mut hosts: Vec<(String, Topology)> = Vec::new();
    for path in own_hosts() {
        hosts.push((path.file_stem().unwrap().to_str().unwrap().into(), load(&path).unwrap()));
    }
    each_posted(|name, path| hosts.push((name.to_owned(), load(path).unwrap())));
    let mut random = Random(seed);
    let (mut wrong, mut yes, mut no) = (Vec::new(), 0, 0);
    for _ in 0..REQUESTS[usize::from(is_nightly)] {
        let (name, topology) = &hosts[random.below(hosts.len())];
        let (mut others, mut beside) = (Occupancy::default(), Vec::new());
        for at in 0..random.below(4) {
            let words = random.words(topology);
            let asked = Asked::beside(topology, &words, others.clone());
            let Ok(placement) = &asked.answer else { continue };
            let Ok(xml) = asked.export(placement) else { continue };
            let mut held = xml.held(random.below(2) == 0).unwrap();
            held.domain = format!("guest{at}");
            others.domains.push(held);
            beside.push(words);
        }
        let words = random.words(topology);
        let asked = Asked::beside(topology, &words, others);
        if asked.answer.is_ok() {
            yes += 1
        } else {
            no += 1
        }
        let of = format!("{name}: {words} (beside: {})", beside.join(" | "));
        wrong.extend(contradictions(&asked).into_iter().map(|how| format!("{of}\n    {how}")));
    }
    eprintln!("seed {seed}: {yes} have a place, {no} have none");
    assert!(wrong.is_empty(), "seed {seed}: {} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(yes > 40 && no > 10, "{yes} {no}");
}
