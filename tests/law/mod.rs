//! The consistency law: on every machine and for every size, all verbs agree with `plan`. If it
//! accepts, then `export` writes XML that libvirt's schema accepts, the XML equals the plan,
//! `create` accepts or refuses for a reason that the plan named, `check` finds nothing, `tune
//! --check` has nothing to change, `capacity` has counted it, and `verify` of the running guest
//! finds nothing. If it refuses, all refuse, with the same reason.
//!
//! `make test` takes a fixed part of the pairs of host and size; GPUVM_LAW=all takes them all, and
//! GPUVM_LAW=TEXT those whose host or size contains it, each broken one named.

mod beside;
mod clauses;
mod fake;
mod foreign;
mod fuzz;
mod items;
mod outside;
mod pairs;
mod pools;

use crate::posted::each_posted;
use crate::support::project;
use crate::support::shared::{Recorded, each_shared_host};
use clauses::{Broken, Clause, judge};
use gpuvm::discover::source::load;
use gpuvm::topology::Topology;
use pairs::{Asked, sizes};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// `make test` judges one in this many pairs.
const STRIDE: usize = 43;
/// One in this many judged pairs is also checked with the program.
const OUTSIDE: usize = 75;

/// The results so far.
#[derive(Default)]
struct Judged {
    /// Pairs seen, judged or not.
    seen: usize,
    /// Number of pairs checked, by clause.
    asked: BTreeMap<Clause, usize>,
    /// The broken rules.
    broken: Vec<(String, Broken)>,
    /// Pairs that were accepted.
    yes: usize,
    /// Pairs that were refused.
    no: usize,
    /// Hosts.
    hosts: usize,
    /// Exports to be checked against libvirt's schema, one of each shape.
    shapes: outside::Shapes,
}

impl Judged {
    /// Judges the sizes of a host that are due.
    fn host(&mut self, name: &str, path: &Path, topology: &Topology, which: &Which) {
        self.hosts += 1;
        for size in sizes(topology) {
            self.seen += 1;
            if !which.takes(name, &size, self.seen) {
                continue;
            }
            let asked = Asked::new(topology, &size);
            if asked.answer.is_ok() {
                self.yes += 1
            } else {
                self.no += 1
            }
            let outcome = judge(&asked);
            for clause in outcome.asked {
                *self.asked.entry(clause).or_default() += 1;
            }
            let place = format!("{name}: {size}");
            self.broken.extend(outcome.broken.into_iter().map(|broken| (place.clone(), broken)));
            if let Some(xml) = &outcome.xml {
                self.shapes.add(&place, xml);
            }
            if (self.yes + self.no).is_multiple_of(OUTSIDE) {
                *self.asked.entry(Clause::Program).or_default() += 1;
                let broken = outside::program(path, &size, &asked);
                self.broken.extend(broken.into_iter().map(|broken| (place.clone(), broken)));
            }
        }
    }

    /// The table: pairs asked and broken by clause.
    fn table(&self) -> String {
        let mut text = format!(
            "{} of {} pairs on {} hosts judged: {} have a place, {} have none\n{:<12}{:>8}{:>8}\n",
            self.yes + self.no,
            self.seen,
            self.hosts,
            self.yes,
            self.no,
            "clause",
            "asked",
            "broken"
        );
        for (clause, asked) in &self.asked {
            let broken = self.broken.iter().filter(|(_, broken)| broken.clause == *clause).count();
            text += &format!("{:<12}{asked:>8}{broken:>8}\n", format!("{clause:?}").to_lowercase());
        }
        text
    }
}

/// Which pairs are judged.
enum Which {
    /// A fixed part.
    Part,
    /// All.
    All,
    /// Those whose host or size contains a text.
    Named(String),
}

impl Which {
    /// The selection in the environment.
    fn asked_for() -> Which {
        match std::env::var("GPUVM_LAW") {
            Err(_) => Which::Part,
            Ok(all) if all == "all" => Which::All,
            Ok(text) => Which::Named(text),
        }
    }

    /// Whether it includes a pair, which is number `at`.
    fn takes(&self, host: &str, size: &str, at: usize) -> bool {
        match self {
            Which::Part => at.is_multiple_of(STRIDE),
            Which::All => true,
            Which::Named(text) => format!("{host}: {size}").contains(text),
        }
    }
}

/// The project's own recorded hosts.
fn own_hosts() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(project().join("topologies")).unwrap();
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

/// What gpuvm has just made is right by `check`, `tune` and `verify` alike, also without GPUs.
#[test]
fn a_guest_without_gpus_is_right_on_every_recorded_host() {
    let (mut judged, mut broken) = (0, Vec::new());
    let mut ask = |name: &str, topology: &Topology| {
        for size in ["", "--vcpus 2", "--vcpus 3 --memory 1G", "--pins none"] {
            let outcome = judge(&Asked::new(topology, size));
            judged += usize::from(outcome.asked.contains(&Clause::Verify));
            let line = |broken: Broken| format!("{name} {size}: {broken}");
            broken.extend(outcome.broken.into_iter().map(line));
        }
    };
    for path in own_hosts() {
        ask(&path.display().to_string(), &load(&path).unwrap());
    }
    each_posted(|name, path| ask(name, &load(path).unwrap()));
    assert_eq!(broken, [""; 0]);
    assert!(judged >= 50, "{judged} judged");
}

#[test]
fn no_verb_contradicts_the_plan() {
    let (which, began) = (Which::asked_for(), Instant::now());
    let mut judged = Judged::default();
    for path in own_hosts() {
        let name = path.file_stem().unwrap().to_str().unwrap();
        judged.host(name, &path, &load(&path).unwrap(), &which);
    }
    each_posted(|name, path| judged.host(name, path, &load(path).unwrap(), &which));
    assert!(judged.hosts >= 16, "{} hosts of the project", judged.hosts);
    let look = |host: &Recorded<'_>| judged.host(host.name, host.path, host.topology, &which);
    each_shared_host(look);
    let invalid = judged.shapes.invalid();
    judged.asked.insert(Clause::Valid, judged.shapes.number());
    judged.broken.extend(invalid);
    eprintln!("{}{:.1} s", judged.table(), began.elapsed().as_secs_f64());
    let lines: Vec<String> =
        judged.broken.iter().map(|(place, broken)| format!("{place}\n    {broken}")).collect();
    assert!(lines.is_empty(), "{} broken:\n{}", lines.len(), lines.join("\n"));
    if matches!(which, Which::Part) {
        assert!(judged.yes >= 50 && judged.no >= 10, "{}", judged.table());
        assert!(judged.asked.get(&Clause::Program) >= Some(&2), "{}", judged.table());
    }
}
