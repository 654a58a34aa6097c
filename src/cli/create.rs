//! `create`: plan, check, define and start a guest, and say where it answers. It is done, or nothing is left.

use super::args::CreateArgs;
use super::change::{Watch, journal, print_steps, refuse_unfinished, watch};
use super::codes::Class;
use super::context::Context;
use super::diff::Diff;
use super::error::{EXIT_DONE, EXIT_FOUND, classed, hinted, usage};
use super::guest::resolve;
use super::host::files;
use super::ip::{Waited, wait_for};
use super::network;
use super::output::{Output, ask_yes, tell};
use super::render::{Extra, render};
use super::seed::{self, FirstBoot};
use super::storage::{self, Disks, remains, room};
use crate::apply::identity::random_uuid;
use crate::apply::{ApplyError, Step, Transaction};
use crate::check::{self, DiskFact, Finding, HUGE_PAGES_SHORT, check};
use crate::domain::edit::DomainEdit;
use crate::domain::view::View;
use crate::domain::{DomainXml, differences};
use crate::finding::Severity;
use crate::history::guest::GuestRecord;
use crate::hypervisor::{Hypervisor, HypervisorError, HypervisorErrorKind, XmlOf};
use crate::shell::word;
use crate::versions::Versions;
use anyhow::Context as _;
use gpuvm_ops::claim::claim;
use gpuvm_ops::guest::Planned;
use gpuvm_ops::links;
use gpuvm_ops::pages;
use gpuvm_ops::vfs;
use serde::Serialize;
use std::io::IsTerminal as _;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The network that `--privateIP` adds.
const PRIVATE_NET: &str = "private-net";

/// Is a guest that can be made.
struct Prepared {
    /// Its name.
    name: String,
    /// Its definition.
    xml: DomainXml,
    /// What makes it, up to its definition.
    steps: Vec<Step>,
    /// What lies on drives that it gets, a phrase each.
    losses: Vec<String>,
}

/// Is what `create` answers.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Created {
    /// Full name.
    name: String,
    /// Whether it was started.
    started: bool,
    /// MAC address of its first NIC.
    mac: Option<String>,
    /// Address of its first NIC, where one was had in time.
    ip: Option<IpAddr>,
    /// Whether its seed was taken away; none: that was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    seed_dropped: Option<bool>,
}

/// Runs the verb.
pub fn run(args: &CreateArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    if args.reserve_pages {
        pages::refuse_elsewhere("create", cx)?;
    }
    if args.dry_run || args.diff {
        return preview(args, cx);
    }
    cx.refuse_recorded("create")?;
    let mut reporter = watch(cx.output)?;
    let lock = reporter.lock(args.lock.wait())?;
    let hypervisor = cx.hypervisor()?;
    refuse_unfinished(&*hypervisor, cx.output)?;
    if let Some(name) = &args.guest.name {
        refuse_existing(&*hypervisor, name.as_str())?;
    }
    let Prepared { name, xml, steps, losses } = prepare(args, cx, Some(&*hypervisor))?;
    if !args.accept_data_loss {
        accept(&losses, &name)?;
    }
    let start = [start_step(&name, xml.uuid())];
    if cx.has_guests_here()? && !xml.held(false)?.devices.is_empty() {
        links::keep(false, cx)?;
    }
    let journal = journal("create", &name, &*hypervisor)?;
    let mut transaction = Transaction::new(&*hypervisor, &mut reporter, Some(journal));
    transaction.run(&steps)?;
    let nic = compare(&*hypervisor, &name, &xml, cx.output);
    let mut created = Created { name, started: false, mac: nic, ip: None, seed_dropped: None };
    let mut began = Instant::now();
    if !args.no_start {
        transaction.run(&start)?;
        // From here on everybody sees what is taken: before, another change could take what no domain runs with.
        drop(lock);
        created.started = true;
        transaction.complete()?;
        began = Instant::now();
        created.ip = wait(args, &created, &*hypervisor, &mut transaction, cx.output)?;
    }
    let waited = match args.seed.drop_seed {
        true => Some(wait_for_seed(args, &created, began, &*hypervisor, &mut transaction)?),
        false => None,
    };
    // A signal that came until here undoes all of it, as the help says.
    transaction.go_on()?;
    transaction.close()?;
    if let Some(waited) = waited {
        created.seed_dropped =
            Some(drop_seed(args, &created.name, &waited, &*hypervisor, &mut reporter, cx));
    }
    answer(&created, cx.output)?;
    let is_awaited = created.started && created.mac.is_some() && seconds(args) > 0;
    Ok(if is_awaited && created.ip.is_none() { EXIT_FOUND } else { EXIT_DONE })
}

/// How long the guest's address is waited for.
fn seconds(args: &CreateArgs) -> u64 {
    if args.no_wait { 0 } else { args.wait }
}

/// Prints the steps or the definition and changes nothing; so a recorded host will do, on which no domain is.
fn preview(args: &CreateArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let hypervisor = if !cx.is_recorded() { Some(cx.hypervisor()?) } else { None };
    let Prepared { name, xml, mut steps, losses } = prepare(args, cx, hypervisor.as_deref())?;
    for loss in losses.iter().filter(|_| !args.accept_data_loss) {
        cx.output.warning(&format!("{loss}: `create` asks first, or takes --accept-data-loss"));
    }
    if args.diff {
        Diff::of(&name, None, Some(xml.text())).print(cx.output)?;
        return Ok(EXIT_DONE);
    }
    if !args.no_start {
        steps.push(start_step(&name, xml.uuid()));
    }
    print_steps(&steps, cx)?;
    Ok(EXIT_DONE)
}

/// The step that starts the guest.
fn start_step(name: &str, uuid: Option<String>) -> Step {
    Step::StartDomain { name: name.to_owned(), uuid }
}

/// Plans a guest, writes its definition and checks it; against the names that a hypervisor has, where there is one.
fn prepare(
    args: &CreateArgs,
    cx: &Context<'_>,
    hypervisor: Option<&dyn Hypervisor>,
) -> anyhow::Result<Prepared> {
    let planned = resolve(&args.guest, Some(&args.storage), cx)?;
    if let Some(why) = planned.placement.shared_fabric().filter(|_| !args.accept_shared_fabric) {
        return Err(hinted(why.to_owned(), "--accept-shared-fabric takes it as it is"));
    }
    let name = planned.name.to_string();
    if let Some(hypervisor) = hypervisor {
        refuse_existing(hypervisor, &name)?;
    }
    let Disks { mut steps, disks, made, abilities, warnings, mut losses } =
        storage::plan(&args.storage, Some(&args.seed), &planned, cx)?;
    for warning in &warnings {
        match warning.starts_with("WARNING") {
            true => cx.output.progress(warning),
            false => cx.output.warning(warning),
        }
    }
    let devices = &planned.placement.devices;
    losses.extend(remains(&planned.topology, devices));
    let claim = claim(&name, devices, &planned.topology, &planned.occupancy, cx)?;
    let pages = pages::reserve(&planned, args.reserve_pages, !args.no_start, cx)?;
    let reserves = !pages.steps.is_empty();
    // First, while most memory is in one piece; and what cannot be had is known before a disk is filled.
    steps.splice(0..0, pages.steps);
    let (bound, reserved) = (claim.bound, pages.reserved);
    let functions = vfs::claim(devices, &planned.request, &planned.topology, cx)?;
    let guarded = functions.guarded;
    let mut extra = Extra { disks, made, abilities, bound, guarded, reserved, ..Extra::default() };
    if args.private_ip {
        extra.networks.push(PRIVATE_NET.into());
    }
    // Without a hypervisor the host is a recorded one, whose disks are not on this machine.
    if let Some(hypervisor) = hypervisor {
        let (networks, held) = (&args.guest.network, &planned.occupancy);
        extra.vf_pools = vfs::pools(networks, held, !args.no_start, hypervisor)?;
        network::refuse_unfit(networks, hypervisor)?;
        let private = args.private_ip.then_some(PRIVATE_NET);
        let asked = networks.iter().map(|wish| wish.network.as_str()).chain(private);
        steps.extend(network::on_demand(asked, hypervisor, cx)?);
        room::refuse_taken(&steps, hypervisor)?;
        for warning in room::warnings(&steps, hypervisor)? {
            cx.output.warning(&warning);
        }
    }
    let mut xml = render(&args.guest, &planned, &extra)?;
    // A dry run prints the same each time, so it chooses none.
    if hypervisor.is_some() && !(args.dry_run || args.diff) {
        // What is undone, and what goes with the guest later, is told by it.
        let uuid = xml.uuid().map_or_else(random_uuid, Ok).context("cannot choose a UUID")?;
        xml.apply(&DomainEdit::SetUuid { uuid })?;
    }
    let versions = hypervisor.map(Hypervisor::versions).unwrap_or_default();
    let facts = match hypervisor {
        Some(hypervisor) => super::disks::facts(&xml, None, true, hypervisor)?,
        None => Vec::new(),
    };
    judge(&xml, &planned, &versions, (reserves, &facts), cx.output)?;
    files::warning(&xml, versions.qemu, cx).iter().for_each(|warning| cx.output.warning(warning));
    let kept_here = hypervisor.filter(|hypervisor| hypervisor.has_guests_here());
    let mut kept = None;
    if let (Some(hypervisor), Some(uuid)) = (kept_here, xml.uuid()) {
        // Known to be its own also when its definition is gone.
        let all = GuestRecord {
            reserved: extra.reserved.clone(),
            guarded: extra.guarded.clone(),
            made: extra.made.clone(),
            ..GuestRecord::new(&uuid, &name, hypervisor.uri())
        };
        kept = all.remember(None);
    }
    // A guest that is only defined gets its devices when it starts.
    if !args.no_start {
        steps.extend(claim.steps);
        steps.extend(functions.steps);
    }
    if let Some(note) = kept {
        // Of what is reserved before anything is; of disks alone once they are made.
        let first = !extra.reserved.is_empty() || !extra.guarded.is_empty();
        steps.insert(if first { 0 } else { steps.len() }, note);
    }
    steps.push(Step::DefineDomain { name: name.clone(), xml: xml.text().to_owned() });
    Ok(Prepared { name, xml, steps, losses })
}

/// Asks whether a guest may get drives that data lies on; nothing where there is none.
fn accept(losses: &[String], name: &str) -> anyhow::Result<()> {
    if losses.is_empty() {
        return Ok(());
    }
    let lines: String = losses.iter().map(|loss| format!("\n  {loss}")).collect();
    if !std::io::stdin().is_terminal() {
        return Err(usage(
            format!("domain `{name}` would get drives with data on them{lines}"),
            "--accept-data-loss gives them as they are; `gpuvm drive wipe ID` erases one",
        ));
    }
    tell(&format!("domain `{name}` gets drives with data on them, and may overwrite it{lines}"));
    match ask_yes("give them to the guest?")? {
        true => Ok(()),
        false => Err(classed(Class::Declined, "declined; nothing is changed", "")),
    }
}

/// Refuses a name that a domain has, before anything is made.
fn refuse_existing(hypervisor: &dyn Hypervisor, name: &str) -> Result<(), HypervisorError> {
    if hypervisor.domain(name)?.is_none() {
        return Ok(());
    }
    Err(HypervisorError {
        kind: HypervisorErrorKind::Exists,
        doing: format!("create domain `{name}`"),
        message: format!("{} has a domain of this name", hypervisor.uri()),
    })
}

/// Refuses a definition that our own checker finds wrong; says what is only worse than it could be. `reserves`: whether
/// huge pages that are missing are reserved before the start; `facts`: whose its disks are.
fn judge(
    xml: &DomainXml,
    planned: &Planned,
    versions: &Versions,
    (reserves, facts): (bool, &[DiskFact]),
    output: Output,
) -> anyhow::Result<()> {
    let reasons = planned.placement.reasons.iter().filter(|reason| reason.compromise);
    for reason in reasons.filter(|reason| !(reserves && reason.choice == "huge-pages")) {
        output.warning(&format!("{}: {}", reason.choice, reason.because));
    }
    let mut findings = check(xml, &planned.topology, &planned.occupancy, versions);
    findings.retain(|finding| !(reserves && finding.rule == HUGE_PAGES_SHORT));
    findings.extend(check::disks(xml, facts));
    let (errors, warnings): (Vec<Finding>, Vec<Finding>) =
        findings.into_iter().partition(|finding| finding.severity == Severity::Error);
    for warning in warnings {
        output.warning(&format!("{}: {}", warning.says.path, warning.says.message));
    }
    let Some(first) = errors.first() else { return Ok(()) };
    let mut message = format!("domain `{}` would not be sound, so it is not created", planned.name);
    for error in &errors {
        message += &format!("\n  {}: {}", error.says.path, error.says.message);
    }
    Err(classed(Class::Unsound, message, first.hint.clone()))
}

/// Reads the definition back and says where it is not what was planned; returns the first NIC's MAC address.
fn compare(
    hypervisor: &dyn Hypervisor,
    name: &str,
    planned: &DomainXml,
    output: Output,
) -> Option<String> {
    let read = hypervisor.xml(name, XmlOf::Inactive).map_err(anyhow::Error::from);
    let defined = match read.and_then(|text| Ok(DomainXml::parse(&text)?)) {
        Ok(defined) => defined,
        Err(error) => {
            output.warning(&format!("the definition could not be read back: {error}"));
            return None;
        }
    };
    for difference in differences(planned, &defined) {
        output.warning(&format!("libvirt defined it otherwise than planned: {difference}"));
    }
    let nics = View::of(&defined, None).map(|view| view.nics).unwrap_or_default();
    nics.into_iter().next().map(|nic| nic.mac)
}

/// Waits for the address of a guest's first NIC. A signal meanwhile undoes the creation.
fn wait(
    args: &CreateArgs,
    created: &Created,
    hypervisor: &dyn Hypervisor,
    transaction: &mut Transaction<'_>,
    output: Output,
) -> Result<Option<IpAddr>, ApplyError> {
    let (Some(mac), name) = (&created.mac, &created.name) else { return Ok(None) };
    let seconds = seconds(args);
    if seconds > 0 {
        output.progress(&format!("waiting up to {seconds} s for an address of `{name}`"));
    }
    let (first, time) = ([mac.clone()], Duration::from_secs(seconds));
    match wait_for(hypervisor, name, &first, time, || transaction.go_on())? {
        Waited::Found(address) => return Ok(Some(address.ip)),
        Waited::Ended => output.warning(&format!("`{name}` has ended before it had an address")),
        Waited::Over if seconds > 0 => output.warning(&format!(
            "`{name}` has no address after {seconds} s; it runs on: `gpuvm ip {name} --wait` waits longer, `gpuvm console \
             {name}` shows what it does",
            name = word(name)
        )),
        Waited::Over => {}
    }
    Ok(None)
}

/// Waits until a guest has read its seed, as long as the waiting for its address has left. A signal meanwhile undoes the
/// creation.
fn wait_for_seed(
    args: &CreateArgs,
    created: &Created,
    began: Instant,
    hypervisor: &dyn Hypervisor,
    transaction: &mut Transaction<'_>,
) -> Result<FirstBoot, ApplyError> {
    let rest = Duration::from_secs(args.wait).saturating_sub(began.elapsed());
    seed::wait_for(hypervisor, &created.name, rest, || transaction.go_on())
}

/// Takes the seed of a guest away that has read it; whether that was done. That it was not is no reason to fail: the
/// guest is as it was wanted but for that.
fn drop_seed(
    args: &CreateArgs,
    name: &str,
    waited: &FirstBoot,
    hypervisor: &dyn Hypervisor,
    reporter: &mut Watch,
    cx: &Context<'_>,
) -> bool {
    let stays = |why: &str| {
        let later = format!("`gpuvm seed drop {name}` takes it away later", name = word(name));
        cx.output.warning(&format!("the seed of `{name}` stays: {why}; {later}"));
        false
    };
    match waited {
        FirstBoot::Done => {}
        FirstBoot::Over(said) => {
            return stays(&format!("cloud-init is not done after {} s ({said})", args.wait));
        }
        FirstBoot::Untold(why) => {
            return stays(&format!("the agent may not tell whether cloud-init is done ({why})"));
        }
    }
    let lock = reporter.lock(args.lock.wait()).map_err(anyhow::Error::from);
    let dropped = lock.and_then(|_lock| seed::drop_it(hypervisor, name, reporter, cx));
    dropped.unwrap_or_else(|error| stays(&error.to_string()))
}

/// Prints the answer, in the form of the replaced tool.
fn answer(created: &Created, output: Output) -> std::io::Result<()> {
    if output.json {
        return output.json("gpuvm-created", created);
    }
    let Created { name, started, mac, ip, .. } = created;
    let mac = mac.as_deref().unwrap_or("-");
    if !started {
        return output.verbatim(&format!("{name}: create mac: {mac}"));
    }
    let ip = ip.map_or("-".to_owned(), |ip| ip.to_string());
    output.verbatim(&format!("{name}: create start mac: {mac} ip: {ip}"))
}
