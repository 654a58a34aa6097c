//! Prepares a new guest: its place, its disks, pages and functions, its definition, and the steps
//! that make them. Changes nothing.

use super::machine::{lacks, networks_of, without_vhost};
use super::{CreateError, CreateRequest, CreationOptions, creation_options, macs, refuse_existing};
use crate::apply::{DomainStep, Step};
use crate::claim::claim;
use crate::disks;
use crate::doctor;
use crate::domain::edit::DomainEdit;
use crate::domain::guest::{Record, SeededNccl};
use crate::domain::setting::{Setting, serial_log_path};
use crate::domain::{DomainXml, Element};
use crate::error::{Class, Coded as _, Error, Refusal, Result, classed, usage};
use crate::fsroot::FsRoot;
use crate::guest::{Extra, NameRequest, render, resolve, resolve_on, template_of};
use crate::history::guest::{AppliedFile, GuestRecord, SlurmJob};
use crate::host_files::too_few_files;
use crate::hypervisor::machine::is_plain;
use crate::hypervisor::{Hypervisor, HypervisorError, HypervisorErrorKind};
use crate::network::{Kind, known};
use crate::networks::{self, on_demand, taken_up};
use crate::nvram::refuse_settings;
use crate::obstacles::Found;
use crate::p2p::claim::{Starting, to_start};
use crate::partition::{self, Guest};
use crate::placement::Topic;
use crate::planned::Planned;
use crate::recognise;
use crate::request::HugePages;
use crate::seed::Seed;
use crate::shell::word;
use crate::storage::{self, Disks, NcclWanted, Notice, refuse_without_image, remains, room};

use crate::topology::{Topology, Trust};
use crate::world::World;
use crate::{pages, vfs, vgpu};
use gpuvm_core::check::{self, DiskFact, Finding, HUGE_PAGES_SHORT, check, is_said};
use gpuvm_core::doctor::ACS_OVERRIDE;
use gpuvm_core::finding::Severity;
use gpuvm_core::nccl::{self, NcclError, place};
use gpuvm_core::versions::Versions;
use std::path::Path;
use std::rc::Rc;

/// The network of [`CreateRequest::private_net`].
const PRIVATE_NET: &str = "private-net";

/// A guest ready to be made.
#[derive(Debug)]
pub(super) struct Prepared {
    /// Its name.
    pub name: String,
    /// Its definition.
    pub xml: DomainXml,
    /// The steps that make it, up to its definition.
    pub steps: Vec<Step>,
    /// Data on drives that it gets, a phrase each.
    pub losses: Vec<String>,
}

/// Plans a guest, writes its definition and checks it. A recorded host has no hypervisor: no names
/// are taken, nothing is queried, and its disks are not on this machine.
pub(super) fn prepare(world: &World, wanted: &CreateRequest) -> Result<Prepared> {
    if wanted.reserve_pages {
        pages::refuse_elsewhere("create", world)?;
    }
    let opened = opened(world, wanted)?;
    let hypervisor = opened.as_deref();
    let Possible { planned, disks, networks } = possible(world, wanted, hypervisor)?;
    let name = planned.name.to_string();
    let Disks { mut steps, disks, made, abilities, seed, notices, mut losses, image } = disks;
    show(&notices, world);
    let devices = &planned.placement.devices;
    losses.extend(remains(&planned.topology, devices));
    doctor::before(world, &planned.topology, &planned.occupancy, devices, &[ACS_OVERRIDE.id])?;
    let claim = claim(&name, devices, &planned.topology, &planned.occupancy, world)?;
    let pages = pages::reserve(&planned, wanted.reserve_pages, wanted.starts, world)?;
    let reserves = !pages.steps.is_empty();
    // First, while memory is least fragmented; and a shortage is detected before a disk is filled.
    steps.splice(0..0, pages.steps);
    let functions = vfs::claim(devices, &planned.request, &planned.topology, world)?;
    let (bound, reserved, guarded) = (claim.bound, pages.reserved, functions.guarded);
    let mut extra = Extra { disks, made, abilities, bound, guarded, reserved, ..Extra::default() };
    extra.known = recognise::known_or_warn(world, &name, devices)?;
    extra.user = seed.as_ref().and_then(|seed| seed.user.clone());
    extra.uuid.clone_from(&wanted.uuid);
    extra.without_nics = wanted.without_nics;
    extra.networks.extend(wanted.private_net.then(|| PRIVATE_NET.to_owned()));
    if let (Some(hypervisor), Some(Beside { vf_pools, steps: more })) = (hypervisor, networks) {
        extra.vf_pools = vf_pools;
        steps.extend(more);
        room::refuse_taken(&steps, hypervisor)?;
        for warning in room::warnings(&steps, hypervisor)? {
            world.warning(&warning);
        }
    }
    let mut xml = defined(world, wanted, &planned, &extra, reserves, hypervisor)?;
    if let Some(hypervisor) = hypervisor {
        refuse_settings(&xml, (&format!("create domain `{name}`"), "--name"), hypervisor)?;
    }
    if let Some(mut seed) = seed {
        seed.nics = macs(&xml);
        if wanted.seed.nccl != NcclWanted::No
            && let Some(seeded) = add_nccl_file(&mut seed, &xml, &planned.topology, world)
        {
            remember_nccl(&mut xml, seeded, &planned)?;
        }
        storage::complete(&mut steps, &seed)?;
    }
    // A guest that is only defined gets its devices when it starts.
    if wanted.starts {
        steps.extend(claim.steps);
        steps.extend(functions.steps);
        steps.extend(vgpu::claim::claim_of(&xml, &planned.topology, world)?);
        let (uuid, vgpus) = (xml.uuid(), xml.vgpus()?);
        let guest = Guest { name: &name, uuid: uuid.as_deref(), devices, vgpus: &vgpus };
        steps.extend(partition::to_start(world, &planned.topology, guest)?);
        // The domains of a recorded host are in files.
        let held = world.is_recorded().then_some(&planned.occupancy);
        steps.extend(to_start(&xml, None, Starting::Create, held, world)?);
    }
    let mut options = creation_options(wanted);
    // The newest image is known by its name from then on.
    options.extend(image.map(|image| ("image".to_owned(), vec![image])));
    let words = (wanted.applied.clone(), options, wanted.job.clone());
    if let Some(note) = hypervisor
        .and_then(|hypervisor| kept(&xml, &name, (&extra, words), (hypervisor, world.state())))
    {
        // Reserved resources are recorded first; disks alone once they are made.
        let first = !extra.reserved.is_empty() || !extra.guarded.is_empty();
        steps.insert(if first { 0 } else { steps.len() }, note);
    }
    steps.push(DomainStep::Define { name: name.clone(), xml: xml.text().to_owned() }.into());
    Ok(Prepared { name, xml, steps, losses })
}

/// Shows the notices of a guest's disks.
fn show(notices: &[Notice], world: &World) {
    for notice in notices {
        match notice {
            Notice::NoDataDisk => world.note(&notice.to_string()),
            Notice::Warning(text) => world.warning(text),
        }
    }
}

/// A guest that nothing stops, as far as place, disks and networks go.
struct Possible {
    planned: Planned,
    disks: Disks,
    /// Its networks; `None` for a recorded host.
    networks: Option<Beside>,
}

/// Finds a guest's place, disks and networks. All of them are examined for obstacles before it is
/// refused.
fn possible(
    world: &World,
    wanted: &CreateRequest,
    hypervisor: Option<&dyn Hypervisor>,
) -> Result<Possible> {
    // The host is read, and a place looked for, until the answer is needed.
    if let Some(hypervisor) = hypervisor {
        hypervisor.storage().ask_ahead();
    }
    let (planned, mut obstacles) = placed(world, wanted, hypervisor)?;
    let disks = storage::plan(&wanted.storage, Some(&wanted.seed), &planned, world);
    let disks = obstacles.keep(disks);
    let networks = hypervisor.map(|hypervisor| beside(wanted, &planned, hypervisor, world));
    let networks = networks.and_then(|networks| obstacles.keep(networks));
    let disks = obstacles.end_with(disks)?;
    Ok(Possible { planned, disks, networks })
}

/// The hypervisor; `None` for a recorded host.
pub(super) fn opened(world: &World, wanted: &CreateRequest) -> Result<Option<Rc<dyn Hypervisor>>> {
    if world.is_recorded() {
        return Ok(None);
    }
    let opened = world.hypervisor();
    opened.map(Some).map_err(|error| without_hypervisor(world, wanted, error))
}

/// The error of a machine whose libvirt does not answer, with further reasons against the guest.
fn without_hypervisor(world: &World, wanted: &CreateRequest, error: Error) -> Error {
    let is_absent = matches!(&error, Error::Hypervisor(error) if error.is_absent());
    if !is_absent || !is_plain(&world.settings.connect) {
        return error;
    }
    let mut obstacles = Found::default();
    obstacles.add(error);
    let (Ok(topology), Ok(root)) = (world.topology(), FsRoot::live()) else {
        return obstacles.error();
    };
    obstacles.extend(lacks(world, wanted, &topology, None, Some(&root)));
    // Without libvirt no domain holds anything.
    let mut guest = wanted.guest.clone();
    guest.taken.assume_empty = true;
    obstacles.keep(resolve(world, &guest, None));
    obstacles.error()
}

/// The guest at its place, whose name is free, and the obstacles to its creation so far: parts
/// missing from the machine, and NVLinks that are not isolated unless sharing was accepted.
fn placed(
    world: &World,
    wanted: &CreateRequest,
    hypervisor: Option<&dyn Hypervisor>,
) -> Result<(Planned, Found)> {
    if let (Some(hypervisor), NameRequest::Exact(name)) = (hypervisor, &wanted.guest.name) {
        refuse_existing(hypervisor, name.as_str())?;
    }
    let mut obstacles = Found::default();
    let topology = world.topology()?;
    if hypervisor.is_some() && world.settings.host.is_none() {
        let root = machine_of_guests(world, hypervisor)?;
        obstacles.extend(lacks(world, wanted, &topology, hypervisor, root.as_ref()));
    }
    let mut planned = match resolve_on(world, &wanted.guest, Some(&wanted.storage), topology) {
        Ok(planned) => planned,
        Err(error) => {
            obstacles.add(error);
            if let Some(hypervisor) = hypervisor {
                obstacles.keep(refuse_without_image(&wanted.storage, hypervisor));
            }
            return Err(obstacles.error());
        }
    };
    if wanted.reserve_pages && planned.placement.huge_pages.is_none() {
        if wanted.guest.place.is_some() {
            let hint = "leave --reserve-pages out, or plan with --huge-pages 2M or 1G";
            return Err(usage("--reserve-pages: the plan has normal pages", hint));
        }
        let mut guest = wanted.guest.clone();
        let asked = guest.request.huge_pages;
        let page = pages::size_to_reserve(asked, &planned.topology)?;
        guest.request.huge_pages = HugePages::Size(page);
        planned = resolve(world, &guest, Some(&wanted.storage))?;
    }
    let said = planned.topology.machine().trust;
    let is_refused = Trust::refuses(said, wanted.accept_shared_fabric);
    if let Some(why) = planned.placement.shared_fabric().filter(|_| is_refused) {
        let advice = why.advice(&planned.topology);
        obstacles.add(CreateError::SharedFabric { why: why.to_string() }.hint(advice));
    }
    if let Some(hypervisor) = hypervisor {
        refuse_existing(hypervisor, planned.name.as_str())?;
    }
    Ok((planned, obstacles))
}

/// The files of the machine that the guest is to run on; `None` if it is another one, or only a
/// record of one.
fn machine_of_guests(world: &World, hypervisor: Option<&dyn Hypervisor>) -> Result<Option<FsRoot>> {
    let is_here = hypervisor.is_some_and(Hypervisor::has_guests_here);
    Ok(if is_here && world.settings.host.is_none() { Some(FsRoot::live()?) } else { None })
}

struct Beside {
    /// Those that hand out virtual functions.
    vf_pools: Vec<String>,
    /// The steps that make missing ones.
    steps: Vec<Step>,
}

/// Returns a guest's networks that hand out virtual functions, and the steps that make missing
/// networks.
fn beside(
    wanted: &CreateRequest,
    planned: &Planned,
    hypervisor: &dyn Hypervisor,
    world: &World,
) -> Result<Beside> {
    let nics = &wanted.guest.networks;
    let vf_pools = vfs::pools(nics, &planned.occupancy, wanted.starts, hypervisor)?;
    networks::refuse_unfit(nics, hypervisor)?;
    let private = wanted.private_net.then_some(PRIVATE_NET);
    // Those of the template matter where its NICs stay, and once it starts.
    let of_template = if nics.is_empty() && !wanted.without_nics {
        networks_of(&template_of(&wanted.guest, &planned.topology)?)
    } else {
        Vec::new()
    };
    let own = if wanted.starts { &of_template[..] } else { &[] };
    let named = nics.iter().map(|wish| wish.network.as_str()).chain(private);
    let asked = named.chain(own.iter().map(String::as_str));
    if wanted.starts {
        if let Some(name) = missing(asked.clone(), hypervisor)? {
            return Err(no_network(name, planned, hypervisor));
        }
    } else if let Some(name) =
        missing(asked.clone().chain(of_template.iter().map(String::as_str)), hypervisor)?
    {
        world.warning(&format!(
            "domain `{}` does not start before there is a network `{name}`: {}",
            planned.name,
            make_network(name)
        ));
    }
    let mut steps = on_demand(asked.clone(), hypervisor, world)?;
    if wanted.starts {
        steps.extend(taken_up(asked, hypervisor, world)?);
    }
    Ok(Beside { vf_pools, steps })
}

/// Returns a network that does not exist and is not made with the guest, which libvirt would refuse
/// only at start.
fn missing<'n>(
    asked: impl Iterator<Item = &'n str>,
    hypervisor: &dyn Hypervisor,
) -> Result<Option<&'n str>> {
    let is_made = |name: &str| known(name).is_some_and(|kind| kind != Kind::Sriov);
    let mut asked = asked.filter(|name| !is_made(name)).peekable();
    if asked.peek().is_none() {
        return Ok(None);
    }
    let there = hypervisor.networks().all_networks()?;
    Ok(asked.find(|name| there.iter().all(|other| other.name != *name)))
}

/// The refusal of a guest whose network is missing.
fn no_network(name: &str, planned: &Planned, hypervisor: &dyn Hypervisor) -> Error {
    let missing = HypervisorError {
        kind: HypervisorErrorKind::NoNetwork,
        doing: format!("create domain `{}`", planned.name),
        message: format!("{} has no network `{name}`", hypervisor.uri()),
    };
    let hint = format!("{}; `gpuvm network list` shows those that are there", make_network(name));
    let message = missing.to_string();
    Error::from(missing).around(Refusal::around(message, hint))
}

/// The hint that makes a missing network; one of a name that gpuvm knows needs no kind.
fn make_network(name: &str) -> String {
    let kind = if known(name).is_some() { "" } else { " --kind nat" };
    format!("`gpuvm network create {}{kind}` makes one", word(name))
}

/// Returns the definition of a guest, which passes the checker. `reserves`: missing huge pages are
/// reserved before it starts.
fn defined(
    world: &World,
    wanted: &CreateRequest,
    planned: &Planned,
    extra: &Extra,
    reserves: bool,
    hypervisor: Option<&dyn Hypervisor>,
) -> Result<DomainXml> {
    let mut xml = render(&wanted.guest, planned, extra)?;
    if let Some(uuid) = wanted.uuid.as_ref().filter(|_| xml.uuid().is_none()) {
        xml.apply(&DomainEdit::SetUuid { uuid: uuid.clone() })?;
    }
    log_serial(&mut xml, hypervisor)?;
    let versions = hypervisor.map(Hypervisor::versions).unwrap_or_default();
    let facts = match hypervisor {
        Some(hypervisor) => disks::facts(&xml, None, true, hypervisor)?,
        None => Vec::new(),
    };
    judge(&xml, planned, &versions, (reserves, &facts), world)?;
    if let Some(root) = machine_of_guests(world, hypervisor)?.filter(|_| wanted.starts)
        && let Some(warning) = without_vhost(&xml, &root)
    {
        world.warning(&warning);
    }
    if let Some(warning) = too_few_files(world, &xml, versions.qemu) {
        world.warning(&warning);
    }
    Ok(xml)
}

/// Has the serial console written to a file as well, where the hypervisor keeps logs and the
/// template says nothing of it.
fn log_serial(xml: &mut DomainXml, hypervisor: Option<&dyn Hypervisor>) -> Result<()> {
    let dir = hypervisor.and_then(Hypervisor::log_dir);
    let Some(dir) = dir.as_ref().and_then(|dir| dir.to_str()) else { return Ok(()) };
    let devices = xml.root().child("devices");
    let serial = devices.and_then(|devices| devices.children("serial").next());
    let is_bare = |serial: &Element<'_>| {
        serial.attr("type").is_some_and(|kind| kind == "pty") && serial.child("log").is_none()
    };
    if serial.is_some_and(|serial| is_bare(&serial)) {
        let path = Some(serial_log_path(dir, &xml.name()));
        xml.apply(&DomainEdit::Set { setting: Setting::SerialLog { path } })?;
    }
    Ok(())
}

/// Adds the NCCL topology file to a seed if the guest needs one. Below an expander bus no bus
/// number depends on devices that libvirt adds; if one does, the file is left to `nccl --install`.
fn add_nccl_file(
    seed: &mut Seed,
    xml: &DomainXml,
    topology: &Topology,
    world: &World,
) -> Option<SeededNccl> {
    let later = format!("`gpuvm nccl {} --install` writes it later", word(&xml.name()));
    let noted = match nccl::topology(xml, topology) {
        Ok(noted) if noted.is_needed => noted,
        Ok(_) | Err(NcclError::NoGpu) => return None,
        Err(error) => {
            world.note(&format!("the seed has no topology file for NCCL: {error}; {later}"));
            return None;
        }
    };
    if seed.has_own("write_files") {
        world.warning(&format!(
            "`write_files` of the user-data takes the place of gpuvm's own: no file for NCCL; \
             {later}"
        ));
        return None;
    }
    if seed.has_own("runcmd") {
        world.warning(
            "`runcmd` of the user-data takes the place of gpuvm's own: NCCL finds its topology \
             file from the guest's second start on, or after `systemd-tmpfiles --create \
             nccl-topo.conf` in the guest",
        );
        if seed.nccl_conf {
            world.warning("/etc/nccl.conf does not name that file, for the same reason");
        }
    }
    let file = noted.system.to_string();
    let sum = place::sum_of(&file).unwrap_or_default().to_owned();
    seed.nccl = Some(file);
    Some(SeededNccl { sum, functions: noted.system.functions() })
}

/// Records which NCCL topology file the seed installs.
fn remember_nccl(xml: &mut DomainXml, seeded: SeededNccl, planned: &Planned) -> Result<()> {
    let Some(record) = xml.record()? else { return Ok(()) };
    let record = Box::new(Record { nccl: Some(seeded), ..record });
    let placement = &planned.placement;
    let (partition, devices) = (placement.partition, placement.devices.clone());
    xml.apply(&DomainEdit::SetMetadata { record, partition, devices })?;
    Ok(())
}

/// Returns the record of the objects made for a guest, which outlives its definition.
fn kept(
    xml: &DomainXml,
    name: &str,
    (extra, (applied, options, job)): (
        &Extra,
        (Option<AppliedFile>, CreationOptions, Option<SlurmJob>),
    ),
    (hypervisor, state): (&dyn Hypervisor, Option<&Path>),
) -> Option<Step> {
    let uuid = xml.uuid().filter(|_| hypervisor.has_guests_here())?;
    let all = GuestRecord {
        reserved: extra.reserved.clone(),
        guarded: extra.guarded.clone(),
        made: extra.made.clone(),
        applied,
        job,
        creation_options: Some(options),
        ..GuestRecord::new(&uuid, name, hypervisor.uri())
    };
    all.remember(state, None)
}

/// Refuses a definition with errors of the checker, and prints warnings. `reserves`: missing huge
/// pages are reserved before the start; `facts`: the uses of its disks.
fn judge(
    xml: &DomainXml,
    planned: &Planned,
    versions: &Versions,
    (reserves, facts): (bool, &[DiskFact]),
    world: &World,
) -> Result<()> {
    let reasons = planned.placement.reasons.iter().filter(|reason| reason.compromise);
    // Trust between guests has been checked by then.
    let reasons = reasons.filter(|reason| reason.choice != Topic::Trust);
    for reason in reasons.filter(|reason| !(reserves && reason.choice == Topic::HugePages)) {
        world.warning(&format!("{}: {}", reason.choice, reason.because));
    }
    let mut findings = check(xml, &planned.topology, &planned.occupancy, versions);
    let is_said = |finding: &Finding| is_said(finding, &planned.placement.reasons);
    findings.retain(|finding| !(reserves && finding.rule == HUGE_PAGES_SHORT || is_said(finding)));
    findings.extend(check::disks(xml, facts));
    let (errors, warnings): (Vec<Finding>, Vec<Finding>) =
        findings.into_iter().partition(|finding| finding.severity == Severity::Error);
    for warning in warnings {
        world.warning(&format!("{}: {}", warning.says.path, warning.says.message));
    }
    let Some(first) = errors.first() else { return Ok(()) };
    let mut message = format!("domain `{}` would fail `check`; not created", planned.name);
    for error in &errors {
        message += &format!("\n  {}: {}", error.says.path, error.says.message);
    }
    Err(classed(Class::Unsound, message, first.hint.clone()))
}
