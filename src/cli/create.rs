//! `create`: plan, check, define and start a guest, and say where it answers. It is done, or nothing is left.

use super::args::CreateArgs;
use super::change::{manner, print_steps};
use super::codes::Class;
use super::context::Context;
use super::diff::Diff;
use super::error::{Coded, EXIT_DONE, EXIT_FOUND, classed};
use super::output::Output;
use super::storage::{self, Disks, refuse_unfit, remains};
use crate::apply::Step;
use crate::apply::identity::random_uuid;
use crate::check::{self, DiskFact, Finding, HUGE_PAGES_SHORT, check};
use crate::domain::DomainXml;
use crate::domain::edit::DomainEdit;
use crate::finding::Severity;
use crate::history::guest::GuestRecord;
use crate::hypervisor::Hypervisor;
use crate::placement::{Occupancy, Topic};
use crate::topology::Topology;
use crate::versions::Versions;
use anyhow::Context as _;
use gpuvm_ops::change::Change;
use gpuvm_ops::claim::claim;
use gpuvm_ops::create::{self, Created, Prepared, Waits};
use gpuvm_ops::guest::{Extra, GuestRequest, Planned, refuse_foreign, render, resolve};
use gpuvm_ops::host_files::too_few_files;
use gpuvm_ops::session::{Confirm, Manner, Session};
use gpuvm_ops::storage::room;
use gpuvm_ops::world::World;
use gpuvm_ops::{disks, networks, pages, vfs};

/// Says why a guest is not created.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "create-")]
pub enum CreateError {
    /// The guest would share an NVLink fabric with other guests.
    #[error("{why}")]
    SharedFabric {
        /// Why.
        why: String,
    },
}

impl Coded for CreateError {}

/// The network that `--privateIP` adds.
const PRIVATE_NET: &str = "private-net";

/// Runs the verb.
pub fn run(args: &CreateArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    if args.reserve_pages {
        pages::refuse_elsewhere("create", cx)?;
    }
    if args.dry_run || args.diff {
        return preview(args, cx);
    }
    cx.refuse_recorded("create")?;
    let confirm = if args.accept_data_loss { Confirm::Given } else { Confirm::IfNeeded };
    let mut session = Session::begin(cx, Manner { confirm, ..manner(&args.lock) })?;
    // One for all that is planned of it: what is undone, and what goes with the guest later, is told by it.
    let guest = args.guest.request()?;
    let uuid = random_uuid().context("cannot choose a UUID")?;
    let waits =
        Waits { address_s: seconds(args), seed_s: args.seed.drop_seed.then_some(args.wait) };
    let plan = |world: &World| -> anyhow::Result<Change> {
        let hypervisor = world.hypervisor()?;
        if let Some(name) = &args.guest.name {
            create::refuse_existing(&*hypervisor, name.as_str())?;
        }
        let guest = prepare(args, &guest, cx, Some((&*hypervisor, &uuid)))?;
        Ok(create::create(world, guest, !args.no_start)?)
    };
    let made = create::run(&mut session, cx, plan, !args.no_start, waits)?;
    answer(&made, cx.output)?;
    let is_awaited = made.started && made.mac.is_some() && seconds(args) > 0;
    Ok(if is_awaited && made.ip.is_none() { EXIT_FOUND } else { EXIT_DONE })
}

/// How long the guest's address is waited for.
fn seconds(args: &CreateArgs) -> u64 {
    if args.no_wait { 0 } else { args.wait }
}

/// Prints the steps or the definition and changes nothing; so a recorded host will do, on which no domain is.
fn preview(args: &CreateArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let hypervisor = if !cx.is_recorded() { Some(cx.hypervisor()?) } else { None };
    // A dry run prints the same each time, so it chooses no UUID.
    let guest = args.guest.request()?;
    let prepared =
        prepare(args, &guest, cx, hypervisor.as_deref().map(|hypervisor| (hypervisor, "")))?;
    let Prepared { name, xml, mut steps, losses } = prepared;
    for loss in losses.iter().filter(|_| !args.accept_data_loss) {
        cx.output.warning(&format!("{loss}: `create` asks first, or takes --accept-data-loss"));
    }
    if args.diff {
        Diff::of(&name, None, Some(xml.text())).print(cx.output)?;
        return Ok(EXIT_DONE);
    }
    if !args.no_start {
        steps.push(create::start_step(&name, xml.uuid()));
    }
    print_steps(&steps, cx)?;
    Ok(EXIT_DONE)
}

/// Plans a guest, writes its definition and checks it; against the names that a hypervisor has, where there is one. With it
/// comes the UUID for a guest whose template has none; empty: it gets none.
fn prepare(
    args: &CreateArgs,
    wanted: &GuestRequest,
    cx: &Context<'_>,
    on: Option<(&dyn Hypervisor, &str)>,
) -> anyhow::Result<Prepared> {
    let hypervisor = on.map(|(hypervisor, _)| hypervisor);
    let unfit = |topology: &Topology, held: &Occupancy| {
        refuse_foreign(wanted, topology)?;
        refuse_unfit(&args.storage, held, cx)
    };
    let planned = resolve(cx, wanted, unfit)?;
    if let Some(why) = planned.placement.shared_fabric().filter(|_| !args.accept_shared_fabric) {
        return Err(CreateError::SharedFabric { why: why.to_string() }
            .hint("--accept-shared-fabric takes it as it is"));
    }
    let name = planned.name.to_string();
    if let Some(hypervisor) = hypervisor {
        create::refuse_existing(hypervisor, &name)?;
    }
    let Disks { mut steps, disks, made, abilities, warnings, mut losses } =
        storage::plan(&args.storage, Some(&args.seed), &planned, cx)?;
    for warning in &warnings {
        match warning.starts_with("WARNING") {
            true => cx.note(warning),
            false => cx.warning(warning),
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
        let (networks, held) = (&wanted.networks, &planned.occupancy);
        extra.vf_pools = vfs::pools(networks, held, !args.no_start, hypervisor)?;
        networks::refuse_unfit(networks, hypervisor)?;
        let private = args.private_ip.then_some(PRIVATE_NET);
        let asked = networks.iter().map(|wish| wish.network.as_str()).chain(private);
        steps.extend(networks::on_demand(asked, hypervisor, cx)?);
        room::refuse_taken(&steps, hypervisor)?;
        for warning in room::warnings(&steps, hypervisor)? {
            cx.warning(&warning);
        }
    }
    let mut xml = render(wanted, &planned, &extra)?;
    if let Some((_, uuid)) = on.filter(|(_, uuid)| !uuid.is_empty() && xml.uuid().is_none()) {
        xml.apply(&DomainEdit::SetUuid { uuid: uuid.to_owned() })?;
    }
    let versions = hypervisor.map(Hypervisor::versions).unwrap_or_default();
    let facts = match hypervisor {
        Some(hypervisor) => disks::facts(&xml, None, true, hypervisor)?,
        None => Vec::new(),
    };
    judge(&xml, &planned, &versions, (reserves, &facts), cx)?;
    too_few_files(cx, &xml, versions.qemu).iter().for_each(|warning| cx.warning(warning));
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

/// Refuses a definition that our own checker finds wrong; says what is only worse than it could be. `reserves`: whether
/// huge pages that are missing are reserved before the start; `facts`: whose its disks are.
fn judge(
    xml: &DomainXml,
    planned: &Planned,
    versions: &Versions,
    (reserves, facts): (bool, &[DiskFact]),
    world: &World,
) -> anyhow::Result<()> {
    let reasons = planned.placement.reasons.iter().filter(|reason| reason.compromise);
    for reason in reasons.filter(|reason| !(reserves && reason.choice == Topic::HugePages)) {
        world.warning(&format!("{}: {}", reason.choice, reason.because));
    }
    let mut findings = check(xml, &planned.topology, &planned.occupancy, versions);
    findings.retain(|finding| !(reserves && finding.rule == HUGE_PAGES_SHORT));
    findings.extend(check::disks(xml, facts));
    let (errors, warnings): (Vec<Finding>, Vec<Finding>) =
        findings.into_iter().partition(|finding| finding.severity == Severity::Error);
    for warning in warnings {
        world.warning(&format!("{}: {}", warning.says.path, warning.says.message));
    }
    let Some(first) = errors.first() else { return Ok(()) };
    let mut message = format!("domain `{}` would not be sound, so it is not created", planned.name);
    for error in &errors {
        message += &format!("\n  {}: {}", error.says.path, error.says.message);
    }
    Err(classed(Class::Unsound, message, first.hint.clone()))
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
