//! `fleet list`, `fleet capacity`, `fleet plan`, `fleet capture`: many hosts, read only.

mod hosts;

pub use hosts::names as host_names;

use super::args::{FleetPlanArgs, FleetVerb, HostsArgs, TakenArgs};
use super::context::Context;
use super::error::{EXIT_DONE, EXIT_FAILED, usage};
use super::failure::Failure;
use super::offer;
use super::table::Table;
use crate::words::count;
use gpuvm_core::fleet::HostCapacity;
use gpuvm_core::memsize::MemSize;
use gpuvm_host::program::{children, end_children_but};
use gpuvm_ops::error::NoPlace;
use gpuvm_ops::fleet::{FleetHost, Heard, HostPlace, capacities, capture, places};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The answer of a host, as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct HostAnswer<T> {
    /// Its name.
    name: String,
    /// The URI of its libvirt.
    connect: Option<String>,
    /// The record of its layout.
    record: Option<PathBuf>,
    /// Its answer; `None` if it has no place for the guest, or could not answer.
    #[serde(flatten)]
    answer: Option<T>,
    /// Why there is none.
    error: Option<Failure>,
    /// Whether it could be reached; false: its libvirt did not connect, or it was silent.
    reached: bool,
    /// An earlier host of the file whose connection leads to the same machine; sums count it once.
    same_as: Option<String>,
    /// Warnings.
    warnings: Vec<String>,
    /// Whether its answer is that it has no place.
    #[serde(skip)]
    no_place: bool,
}

/// The answers of all hosts.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Hosts<T> {
    /// Each of them.
    hosts: Vec<HostAnswer<T>>,
}

/// Guests that fit on all hosts.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct FleetCapacity {
    /// Each host.
    hosts: Vec<HostAnswer<HostCapacity>>,
    /// Guests that fit on all of them together, by number of GPUs.
    fits: BTreeMap<u32, u64>,
}

/// The hosts in the order in which they suit a guest.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct FleetPlan {
    /// Those with a place first, the best one leading.
    hosts: Vec<HostAnswer<HostPlace>>,
    /// The command that makes the guest on the first one; `None` if it has no connection, or no
    /// host has a place.
    command: Option<String>,
}

/// The recorded hosts.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct RecordedHost {
    /// The file.
    written: PathBuf,
}

/// Runs the verb.
pub fn run(verb: &FleetVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    if cx.global.host.is_some() || cx.global.connect_is_given {
        return Err(usage(
            "`fleet` asks the hosts of a file, so it takes neither --host nor --connect",
            "--hosts FILE names the file, --only NAME one host of it",
        ));
    }
    let before = children();
    let code = match verb {
        FleetVerb::List(args) => list(&args.hosts, cx),
        FleetVerb::Capacity(args) => sizes(&args.hosts, args.gpus, cx),
        FleetVerb::Plan(args) => plan(args, cx),
        FleetVerb::Capture(args) => record(&args.hosts, cx),
    };
    // An ssh to a host that did not answer would go on for a minute.
    end_children_but(&before);
    code
}

/// The hosts and the limit for each.
fn asked(args: &HostsArgs) -> anyhow::Result<(Vec<FleetHost>, Duration)> {
    Ok((hosts::read(args)?, Duration::from_secs(args.limit)))
}

/// Runs `fleet list`.
fn list(args: &HostsArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let (hosts, limit) = asked(args)?;
    let heard = answers(capacities(hosts, limit, Vec::new()), cx);
    let code = answered(&heard);
    if cx.output.json {
        cx.output.json("gpuvm-fleet-list", &Hosts { hosts: heard })?;
        return Ok(code);
    }
    let head = ["host", "state", "free GPUs", "largest guest", "free partitions", "guests"];
    let mut table = Table::new(head);
    for one in &heard {
        let HostAnswer { name, answer, .. } = one;
        let dash = || "-".to_owned();
        let of = |part: u32, whole: u32| format!("{part} of {whole}");
        let cells = match answer {
            None => [one.state().to_owned(), dash(), dash(), dash(), dash()],
            Some(host) => [
                one.state().to_owned(),
                of(host.free_gpus, host.gpus),
                host.largest.map_or_else(dash, |gpus| count(gpus, "GPU")),
                Some(of(host.free_partitions, host.partitions))
                    .filter(|_| host.partitions > 0)
                    .unwrap_or_else(dash),
                format!("{} running, {} off", host.running, host.guests - host.running),
            ],
        };
        table.push(std::iter::once(name.clone()).chain(cells));
    }
    cx.output.table(&table)?;
    Ok(code)
}

/// Runs `fleet capacity`.
fn sizes(args: &HostsArgs, gpus: Option<u32>, cx: &Context<'_>) -> anyhow::Result<u8> {
    let (hosts, limit) = asked(args)?;
    let heard = answers(capacities(hosts, limit, gpus.into_iter().collect()), cx);
    let code = answered(&heard);
    let mut fits: BTreeMap<u32, u64> = BTreeMap::new();
    let once = heard.iter().filter(|one| one.same_as.is_none());
    for size in once.filter_map(|one| one.answer.as_ref()).flat_map(|host| &host.sizes) {
        *fits.entry(size.gpus).or_default() += u64::from(size.now);
    }
    if cx.output.json {
        cx.output.json("gpuvm-fleet-capacity", &FleetCapacity { hosts: heard, fits })?;
        return Ok(code);
    }
    let named = fits.keys().map(|gpus| count(*gpus, "GPU"));
    let mut table = Table::new(std::iter::once("host".to_owned()).chain(named));
    for HostAnswer { name, answer, .. } in &heard {
        let own = |gpus: &u32| {
            let size = answer.as_ref()?.sizes.iter().find(|size| size.gpus == *gpus)?;
            Some(size.now.to_string())
        };
        let cells = fits.keys().map(|gpus| own(gpus).unwrap_or_else(|| "-".into()));
        table.push(std::iter::once(name.clone()).chain(cells));
    }
    let all = fits.values().map(u64::to_string);
    table.push(std::iter::once("all hosts".to_owned()).chain(all));
    cx.output.table(&table)?;
    Ok(code)
}

/// Runs `fleet plan`.
fn plan(args: &FleetPlanArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    if args.guest.taken != TakenArgs::default() || args.guest.assume.is_some() {
        return Err(usage(
            "--domain-xml, --assume and --assume-empty are of one host",
            "`domain_xml` and `assume` of a host in the file say the same of a host without `connect`",
        ));
    }
    let input = Path::new("-");
    if args.hosts.hosts == input && args.guest.plan.as_deref() == Some(input) {
        return Err(usage("--hosts and --plan both read standard input", "name a file for one"));
    }
    let wanted = args.request()?;
    let (hosts, limit) = asked(&args.hosts)?;
    let mut heard = answers(places(hosts, limit, &wanted), cx);
    // A refusal says more than silence. The sort is stable: equals keep the order of the file.
    heard.sort_by_key(|one| match (&one.answer, one.no_place) {
        (Some(place), _) => (0, Some(place.order())),
        (None, true) => (1, None),
        (None, false) => (2, None),
    });
    if let Some(best) = args.best {
        let kept: BTreeSet<String> = heard
            .iter()
            .filter(|one| one.answer.is_some() && one.same_as.is_none())
            .take(best.get())
            .map(|one| one.name.clone())
            .collect();
        heard.retain(|one| kept.contains(&one.name));
    }
    let first = heard.first().filter(|one| one.answer.is_some());
    let has_place = first.is_some();
    let uri = first.and_then(|one| one.connect.as_deref());
    let command = if has_place { offer::create_on(uri) } else { None };
    // Who reads JSON may run it where he is.
    let on_connection = command.clone().filter(|_| uri.is_some());
    let code = if has_place { EXIT_DONE } else { EXIT_FAILED };
    if cx.output.json {
        let plan = FleetPlan { hosts: heard, command: on_connection };
        cx.output.json("gpuvm-fleet-plan", &plan)?;
        return Ok(code);
    }
    let head = ["host", "GPUs", "vCPUs", "memory", "lost", "links", "NIC", "place"];
    let mut table = Table::new(head);
    heard.iter().for_each(|one| table.push(row(one)));
    cx.output.table(&table)?;
    match (command, heard.first().filter(|_| has_place)) {
        (Some(command), Some(first)) => {
            cx.output.text(&format!("\n{command}\n"))?;
            if let Some(why) = first.answer.as_ref().and_then(|place| place.refused.as_ref()) {
                cx.output.progress(why);
            }
            if first.connect.is_none() {
                let name = &first.name;
                cx.output.progress(&format!("on `{name}`, which has no `connect` in the file"));
            }
        }
        _ => cx.output.progress("no host has a place for this guest"),
    }
    Ok(code)
}

/// The place on a host in cells of a table.
fn row(one: &HostAnswer<HostPlace>) -> Vec<String> {
    let mut cells = vec![one.name.clone()];
    let Some(place) = &one.answer else {
        cells.extend(["-"; 6].map(str::to_owned));
        cells.push(one.state().to_owned());
        return cells;
    };
    let dash = || "-".to_owned();
    let gpus = Some(ranges(&place.gpus)).filter(|gpus| !gpus.is_empty());
    let memory = MemSize::from_kib(place.memory_kib).to_string();
    let links = place.nvlinks.map(|links| links.to_string());
    cells.extend([gpus.unwrap_or_else(dash), place.vcpus.to_string(), memory]);
    cells.push(place.lost.to_string());
    cells.extend([links.unwrap_or_else(dash), place.nic.clone().unwrap_or_else(dash)]);
    let place_is = match place.compromises {
        0 => "without compromise".to_owned(),
        some => format!("with {}", count(some, "compromise")),
    };
    let refused = place.refused.as_ref().map_or("", |_| "; `create` refuses it");
    cells.push(format!("{place_is}{refused}"));
    cells
}

/// Runs `fleet capture`.
fn record(args: &HostsArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let (hosts, limit) = asked(args)?;
    let heard = capture(hosts, limit).into_iter().map(|heard| {
        let Heard { host, answer, is_reached, same_as, warnings } = heard;
        let answer = answer.map(|written| RecordedHost { written });
        Heard { host, answer, is_reached, same_as, warnings }
    });
    let heard = answers(heard.collect(), cx);
    let all = heard.iter().all(|one| one.answer.is_some());
    let code = if all { EXIT_DONE } else { EXIT_FAILED };
    if cx.output.json {
        cx.output.json("gpuvm-fleet-captured", &Hosts { hosts: heard })?;
        return Ok(code);
    }
    for HostAnswer { name, answer, .. } in &heard {
        if let Some(RecordedHost { written }) = answer {
            cx.output.progress(&format!("{name}: {}", written.display()));
        }
    }
    Ok(code)
}

impl<T> HostAnswer<T> {
    fn state(&self) -> &'static str {
        match (&self.answer, self.connect.is_some()) {
            (Some(_), true) => "ok",
            (Some(_), false) => "recorded",
            (None, _) if self.no_place => "none",
            (None, _) if self.reached => "failed",
            (None, _) => "unreachable",
        }
    }
}

/// Converts answers for printing; reports missing answers and the reasons on standard error.
fn answers<T>(heard: Vec<Heard<T>>, cx: &Context<'_>) -> Vec<HostAnswer<T>> {
    let each = heard.into_iter().map(|heard| {
        let Heard { host, answer, is_reached: reached, same_as, warnings } = heard;
        let (answer, error) = match answer {
            Ok(answer) => (Some(answer), None),
            Err(error) => (None, Some(anyhow::Error::from(error))),
        };
        let no_place =
            error.as_ref().is_some_and(|error| error.chain().any(|cause| cause.is::<NoPlace>()));
        let mut error = error.as_ref().map(Failure::of);
        let is_ours = |failure: &Failure| failure.code.starts_with("fleet-");
        // Hints on a connection that was not made are of the one connection of other verbs.
        if let Some(failure) = error.as_mut().filter(|failure| !reached && !is_ours(failure)) {
            failure.hint = None;
            failure.commands.clear();
        }
        if !cx.output.json {
            for warning in &warnings {
                cx.output.warning(&format!("{}: {warning}", host.name));
            }
            if let Some(other) = &same_as {
                let name = &host.name;
                cx.output.warning(&format!("{name}: the same machine as `{other}`"));
            }
            if let Some(failure) = &error {
                let Failure { message, causes, hint, .. } = failure;
                let causes: String = causes.iter().map(|cause| format!("\n  {cause}")).collect();
                let hint = hint.as_ref().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
                // A host without a place is an answer.
                let hint = if is_ours(failure) { hint } else { String::new() };
                cx.output.warning(&format!("{}: {message}{causes}{hint}", host.name));
            }
        }
        let FleetHost { name, connect, record, .. } = host;
        HostAnswer { name, connect, record, answer, error, reached, same_as, warnings, no_place }
    });
    each.collect()
}

/// Indexes as ranges: `0-3,8`.
fn ranges(indexes: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &index in indexes {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == index => *last = index,
            _ => parts.push((index, index)),
        }
    }
    let part = |(first, last): (usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    parts.into_iter().map(part).collect::<Vec<_>>().join(",")
}

/// The exit code of a list: 1 if a host has not answered.
fn answered<T>(heard: &[HostAnswer<T>]) -> u8 {
    if heard.iter().all(|one| one.answer.is_some() || one.no_place) {
        EXIT_DONE
    } else {
        EXIT_FAILED
    }
}
