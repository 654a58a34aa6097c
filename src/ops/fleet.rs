//! Many hosts at once, read only: each is asked by its own connection or read from its record, and
//! one that does not answer delays none of the others. Nothing is booked: what changes in between
//! is found by `create` on the host itself.

use crate::discover::source::Records;
use crate::error::{Coded, Error, Result};
use crate::files::{refuse_link, write};
use crate::guest::{GuestRequest, resolve};
use crate::hypervisor::machine::{self, Identity, Machine, Uri};
use crate::hypervisor::{HypervisorError, none};
use crate::input;
use crate::remote;
use crate::reporter::{Answer, Asked, Reporter};
use crate::taken::{Taken, taken_for_new};
use crate::topology::Trust;
use crate::topology::file::{from_json, to_json};
use crate::world::{Settings, World};
use gpuvm_core::fleet::{
    Fit, HostCapacity, MacOfDomain, fit, host_capacity, lost, macs, shared_macs,
};
use gpuvm_core::versions::Stack;
use serde::Serialize;
use std::cmp::Reverse;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

/// The largest record in bytes.
const MOST_BYTES: u64 = 64 << 20;
/// Hosts that are asked at once.
const AT_ONCE: usize = 8;

/// The reason that a host does not answer for itself.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "fleet-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum FleetError {
    /// It does not answer in time.
    #[error("no answer within {seconds} s")]
    Silent { seconds: u64 },
    /// Its record is of another kind of entry.
    #[error("`record` is for other machines; {connect} is read as it is now")]
    RecordOfHere { connect: String },
    /// It cannot be recorded.
    #[error("it cannot be recorded: {why}")]
    NotRecorded { why: &'static str },
    /// The file is not a recorded host, so it is not replaced.
    #[error("{path} is not a recorded host, so it is not replaced")]
    NotOurs { path: String },
}

impl Coded for FleetError {}

/// The reason that a file of hosts is refused.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "hosts-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum HostsError {
    /// It cannot be parsed.
    #[error("{at}: {why}")]
    Syntax { at: String, why: String },
    /// It has a field that is not known.
    #[error("{at}: unknown field `{field}`")]
    Field { at: String, field: String },
    /// A field cannot have this value.
    #[error("{at}: {why}")]
    Value { at: String, why: String },
}

impl Coded for HostsError {}

/// A host of a fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetHost {
    /// Its name.
    pub name: String,
    /// The URI of its libvirt; `None` if its record is all there is.
    pub connect: Option<String>,
    /// The record of its layout; `None` if the host is queried.
    pub record: Option<PathBuf>,
    /// Whether another host of the file has the same record, however each writes its path.
    pub is_shared: bool,
    /// Domains of a host without a connection: files, or directories of files.
    pub domain_xml: Vec<PathBuf>,
    /// The libvirt and QEMU of a host without a connection; `None` for those of its record, or
    /// usual ones.
    pub assume: Option<Stack>,
}

/// A host's answer.
#[derive(Debug)]
pub struct Heard<T> {
    /// The host.
    pub host: FleetHost,
    /// Its answer.
    pub answer: Result<T>,
    /// Whether it could be reached; false: its libvirt did not connect, or it was silent.
    pub is_reached: bool,
    /// An earlier host of the file that is the same machine, and answered.
    pub same_as: Option<String>,
    /// Warnings on the way.
    pub warnings: Vec<String>,
}

/// A place on a host.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostPlace {
    /// Indexes of its GPUs, as `host show` counts them.
    pub gpus: Vec<usize>,
    /// vCPUs.
    pub vcpus: u32,
    /// Memory in KiB.
    pub memory_kib: u64,
    /// The loss of the host's later guests: for each size the guests that fit no longer, times
    /// their GPUs.
    pub lost: u64,
    /// Choices that are worse than they could be; `gpuvm plan --explain` names them.
    pub compromises: usize,
    /// The fewest NVLinks between two of its GPUs; `None` if it has fewer than two.
    pub nvlinks: Option<u32>,
    /// How near a NIC is to the GPU that is farthest from all of them, as in `host matrix`; `None`
    /// if no GPU, or no NIC.
    pub nic: Option<String>,
    /// Why `create` refuses it as requested; absent: it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// How well it suits the guest.
    #[serde(skip)]
    pub fit: Fit,
    /// The MAC addresses of the host's domains.
    #[serde(skip)]
    pub macs: Vec<MacOfDomain>,
}

impl HostPlace {
    /// Its place in an order, the best first: whether `create` refuses it, whether its functions
    /// have IOMMU groups, the loss of later guests, then compromises, NVLinks, the NICs, and memory.
    pub fn order(&self) -> impl Ord + use<> {
        let links = Reverse(self.fit.nvlinks);
        let doubts = (self.refused.is_some(), !self.fit.has_groups);
        (doubts, self.lost, self.compromises, links, self.fit.nic, Reverse(self.memory_kib))
    }
}

/// One host's answer, and the identity of its machine.
struct HostReply<T> {
    answer: Result<T>,
    is_reached: bool,
    machine: Option<Identity>,
}

/// Which layout of a host with a connection is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// That of its record, if it has one.
    Recorded,
    /// That which it has now.
    Now,
}

#[derive(Default)]
struct Quiet(Mutex<Vec<String>>);

impl Reporter for Quiet {
    fn progress(&self, _: &str) {}

    fn warning(&self, text: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(text.to_owned());
    }

    fn preview(&self, _: &[crate::apply::Step]) -> io::Result<()> {
        Ok(())
    }

    fn ask(&self, _: Asked<'_>) -> io::Result<Answer> {
        Ok(Answer::Nobody)
    }
}

/// The resources of each host and those left, in the order of the hosts. `gpus`: the sizes counted;
/// none for those that each board offers.
pub fn capacities(
    hosts: Vec<FleetHost>,
    limit: Duration,
    gpus: Vec<u32>,
) -> Vec<Heard<HostCapacity>> {
    let heard = ask(hosts, (limit, Layout::Recorded), move |world, host| {
        let topology = world.topology_with(host.assume)?;
        let held = taken_for_new(world, &host.taken(), &topology, true)?;
        Ok(host_capacity(&topology, &held, &gpus))
    });
    warn_of_macs(heard, |host| &host.macs)
}

/// Adds warnings of MAC addresses that domains of two hosts have.
fn warn_of_macs<T>(mut heard: Vec<Heard<T>>, macs: impl Fn(&T) -> &[MacOfDomain]) -> Vec<Heard<T>> {
    let of = |one: &Heard<T>| match &one.answer {
        Ok(answer) if one.same_as.is_none() => macs(answer).to_vec(),
        _ => Vec::new(),
    };
    let all: Vec<_> = heard.iter().map(|one| (one.host.name.clone(), of(one))).collect();
    let all: Vec<_> = all.iter().map(|(host, macs)| (host.as_str(), macs.as_slice())).collect();
    for (one, warnings) in heard.iter_mut().zip(shared_macs(&all)) {
        one.warnings.extend(warnings);
    }
    heard
}

/// A place for a guest on each host, in the order of the hosts.
pub fn places(
    hosts: Vec<FleetHost>,
    limit: Duration,
    wanted: &GuestRequest,
) -> Vec<Heard<HostPlace>> {
    let wanted = wanted.clone();
    let heard = ask(hosts, (limit, Layout::Recorded), move |world, host| {
        let own = GuestRequest { taken: host.taken(), ..wanted.clone() };
        let planned = resolve(world, &own, None)?;
        let placement = &planned.placement;
        let indexed = planned.topology.gpus().zip(0..);
        let gpus = indexed.filter(|(gpu, _)| placement.devices.contains(&gpu.bdf));
        let fit = fit(&planned.topology, placement);
        let said = planned.topology.machine().trust;
        let shared = placement.shared_fabric().filter(|_| Trust::refuses(said, false));
        let refused = shared.map(|why| {
            let unless = match said {
                None => " without --accept-shared-fabric",
                Some(_) => "",
            };
            format!("`create` refuses it there{unless}: {why}")
        });
        Ok(HostPlace {
            gpus: gpus.map(|(_, index)| index).collect(),
            vcpus: placement.vcpus(),
            memory_kib: placement.memory().kib(),
            lost: lost(&planned.topology, &planned.occupancy, placement),
            compromises: placement.reasons.iter().filter(|reason| reason.is_compromise()).count(),
            nvlinks: fit.nvlinks,
            nic: fit.nic.map(|nic| nic.to_string()),
            refused,
            fit,
            macs: macs(&planned.occupancy),
        })
    });
    warn_of_macs(heard, |place| &place.macs)
}

/// Records the layout of each host in its file; answers with that.
pub fn capture(hosts: Vec<FleetHost>, limit: Duration) -> Vec<Heard<PathBuf>> {
    ask(hosts, (limit, Layout::Now), move |world, host| {
        let refused = |why| FleetError::NotRecorded { why };
        let Some(file) = &host.record else {
            return Err(refused("it has no `record`").hint("`record = \"FILE\"` names the file"));
        };
        let Some(connect) = &host.connect else {
            return Err(refused("it has no `connect`").hint("`connect = \"URI\"` leads to it"));
        };
        if host.is_shared {
            let hint = "name a file of its own";
            return Err(refused("another host has the same `record`").hint(hint));
        }
        refuse_link(file)?;
        // A record of lstopo or a directory has more than would be written in its place.
        let is_record = |text: String| from_json(&text).is_ok();
        if file.exists() && !input::text(file, MOST_BYTES).is_ok_and(is_record) {
            let path = file.display().to_string();
            return Err(FleetError::NotOurs { path }.hint("name another file, or move it away"));
        }
        let machine = world.machine()?;
        let Machine::Elsewhere { host: there } = machine else {
            let hint = "`gpuvm host capture FILE` records this machine";
            return Err(refused("it is this machine").hint(hint));
        };
        let topology = remote::topology(connect, &there)?;
        write(file, true, to_json(&topology).as_bytes())?;
        Ok(file.clone())
    })
}

impl FleetHost {
    /// The source of its domains' occupancy.
    fn taken(&self) -> Taken {
        let assume = self.assume;
        Taken { domain_xml: self.domain_xml.clone(), assume, ..Taken::default() }
    }

    fn settings(&self) -> Settings {
        let connect = self.connect.as_deref().map(without_questions);
        let connect_is_given = connect.is_some();
        // A record without a connection is asked nothing.
        let connect = connect.unwrap_or_else(|| none::URI.to_owned());
        Settings { connect, connect_is_given, host: self.record.clone(), state: None }
    }

    fn world(
        &self,
        reporter: Arc<dyn Reporter>,
        layout: Layout,
        records: &Records,
    ) -> Result<World> {
        let settings = self.settings();
        let Some(record) = settings.host.clone() else {
            return Ok(World::new(settings, reporter));
        };
        if self.connect.is_none() {
            let topology = records.load(&record)?;
            return Ok(World::new(settings, reporter).with_topology(topology));
        }
        if layout == Layout::Now {
            return Ok(World::new(Settings { host: None, ..settings }, reporter));
        }
        if machine::is_test(&settings.connect) {
            // The test driver has domains, and no machine.
            let topology = records.load(&record)?;
            let settings = Settings { host: None, ..settings };
            return Ok(World::new(settings, reporter).with_topology(topology));
        }
        let world = World::new(settings, reporter);
        if world.is_here()? {
            let connect = world.settings.connect.clone();
            let hint = "leave `record` out, or `connect`";
            return Err(FleetError::RecordOfHere { connect }.hint(hint));
        }
        Ok(world)
    }
}

/// A URI with which ssh never prompts: several hosts would prompt at once.
fn without_questions(uri: &str) -> String {
    let asks = Uri::parse(uri)
        .is_some_and(|uri| uri.transport == Some("ssh") && uri.parameter("no_tty").is_none());
    match (asks, uri.contains('?')) {
        (false, _) => uri.to_owned(),
        (true, false) => format!("{uri}?no_tty=1"),
        (true, true) => format!("{uri}&no_tty=1"),
    }
}

/// Asks every host, several at once; the answers come in the order of the hosts.
fn ask<T: Send + 'static>(
    hosts: Vec<FleetHost>,
    how: (Duration, Layout),
    question: impl Fn(&World, &FleetHost) -> Result<T> + Send + Sync + 'static,
) -> Vec<Heard<T>> {
    type Place<T> = Mutex<Option<(Heard<T>, Option<Identity>)>>;
    let question = Arc::new((question, Records::default()));
    let next = AtomicUsize::new(0);
    let answers: Vec<Place<T>> = hosts.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(hosts.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let (Some(host), Some(place)) = (hosts.get(at), answers.get(at)) else { break };
                    let heard = one(host, how, &question);
                    *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(heard);
                }
            });
        }
    });
    let taken = |one: Place<T>| one.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut known: Vec<(Identity, String)> = Vec::new();
    let each = answers.into_iter().filter_map(taken).map(|(mut heard, machine)| {
        let is_told = |one: &Identity| one.uuid.as_deref().is_some_and(machine::is_one);
        let Some(machine) = machine.filter(|one| is_told(one) && heard.answer.is_ok()) else {
            return heard;
        };
        match known.iter().find(|(other, _)| *other == machine) {
            Some((_, name)) => heard.same_as = Some(name.clone()),
            None => known.push((machine, heard.host.name.clone())),
        }
        heard
    });
    each.collect()
}

/// Asks one host. Only a file is read of one without a connection, which needs no limit.
fn one<T: Send + 'static>(
    host: &FleetHost,
    (limit, layout): (Duration, Layout),
    question: &Arc<(impl Fn(&World, &FleetHost) -> Result<T> + Send + Sync + 'static, Records)>,
) -> (Heard<T>, Option<Identity>) {
    let quiet = Arc::new(Quiet::default());
    let reply_of_host = if host.connect.is_none() {
        reply(host, (&quiet, layout), question)
    } else {
        let (sender, heard) = mpsc::channel();
        let (own, asked, reporter) = (host.clone(), Arc::clone(question), Arc::clone(&quiet));
        // It is abandoned on a timeout, and ends with the program.
        std::thread::spawn(move || {
            // After a timeout there is no receiver.
            let _ = sender.send(reply(&own, (&reporter, layout), &asked));
        });
        heard.recv_timeout(limit).unwrap_or_else(|_| {
            let seconds = limit.as_secs();
            let silent = FleetError::Silent { seconds }.hint("--limit SECONDS waits longer");
            HostReply { answer: Err(silent), is_reached: false, machine: None }
        })
    };
    let warnings = std::mem::take(&mut *quiet.0.lock().unwrap_or_else(PoisonError::into_inner));
    let HostReply { answer, is_reached, machine } = reply_of_host;
    (Heard { host: host.clone(), answer, is_reached, same_as: None, warnings }, machine)
}

fn reply<T>(
    host: &FleetHost,
    (quiet, layout): (&Arc<Quiet>, Layout),
    (question, records): &(impl Fn(&World, &FleetHost) -> Result<T>, Records),
) -> HostReply<T> {
    let reporter: Arc<dyn Reporter> = Arc::clone(quiet) as _;
    let world = match host.world(reporter, layout, records) {
        Ok(world) => world,
        Err(error) => {
            let is_reached = !is_of_libvirt(&error);
            return HostReply { answer: Err(error), is_reached, machine: None };
        }
    };
    let answer = question(&world, host).and_then(|answer| match world.unseen() {
        // The resources of its guests would count as free.
        Some(_) if host.connect.is_some() => {
            // Nor are its warnings reported.
            quiet.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
            world.hypervisor().map(|_| answer)
        }
        _ => Ok(answer),
    });
    let connected = world.connected().filter(|_| host.connect.is_some());
    let is_reached = connected.is_some() || !answer.as_ref().is_err_and(is_of_libvirt);
    // Each connection of the test driver has guests of its own.
    let machine = connected.filter(|_| !world.is_test()).map(|hypervisor| hypervisor.identity());
    HostReply { answer, is_reached, machine }
}

fn is_of_libvirt(error: &Error) -> bool {
    let mut at: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = at {
        if error.is::<HypervisorError>() {
            return true;
        }
        at = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// A host of this name, without anything to ask.
    fn host(name: &str) -> FleetHost {
        FleetHost {
            name: name.into(),
            connect: None,
            record: None,
            is_shared: false,
            domain_xml: Vec::new(),
            assume: None,
        }
    }

    #[test]
    fn answers_come_in_the_order_of_the_hosts_and_none_waits_for_a_silent_one() {
        let mut hosts: Vec<FleetHost> = (0..30).map(|at| host(&format!("host-{at:02}"))).collect();
        for silent in [3, 17] {
            hosts[silent].connect = Some("test:///default".into());
        }
        let (never, gone) = mpsc::channel::<()>();
        let gone = Mutex::new(gone);
        let begun = Instant::now();
        let limit = Duration::from_millis(50);
        let heard = ask(hosts.clone(), (limit, Layout::Recorded), move |_, host| {
            if host.connect.is_some() {
                // It is silent for as long as the test runs.
                let _ = gone.lock().unwrap_or_else(PoisonError::into_inner).recv();
            }
            Ok(host.name.clone())
        });
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
        drop(never);
        for (heard, host) in heard.iter().zip(&hosts) {
            assert_eq!(heard.host, *host);
            match &heard.answer {
                Ok(name) => assert_eq!(*name, host.name),
                Err(error) => {
                    assert!(host.connect.is_some());
                    assert_eq!(error.refusal().unwrap().code, "fleet-silent");
                }
            }
        }
        assert_eq!(heard.iter().filter(|heard| heard.answer.is_err()).count(), 2);
    }

    #[test]
    fn ssh_never_prompts() {
        for (uri, asked) in [
            ("qemu+ssh://root@a/system", "qemu+ssh://root@a/system?no_tty=1"),
            ("qemu+ssh://a/system?keyfile=/k", "qemu+ssh://a/system?keyfile=/k&no_tty=1"),
            ("qemu+ssh://a/system?no_tty=0", "qemu+ssh://a/system?no_tty=0"),
            ("qemu:///system", "qemu:///system"),
            ("test:///default", "test:///default"),
        ] {
            assert_eq!(without_questions(uri), asked);
        }
    }
}
