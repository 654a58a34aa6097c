//! `autostart`: has a guest start with the host, and provides its resources before libvirt starts
//! it: its functions bound, its virtual functions made, its huge pages reserved, its NVLink
//! partition activated by libvirt's hook.

use crate::apply::bind::boot::{self as bind_boot, Listed};
use crate::apply::boot::steps as boot_steps;
use crate::apply::nic::boot::{self as vf_boot, AtBoot};
use crate::apply::pages::boot::{self as page_boot, Numbers};
use crate::apply::startup::{self, Stranger, StrangerKind};
use crate::apply::vgpu::boot as vgpu_boot;
use crate::apply::{DomainStep, FileStep, Step};
use crate::bdf::Bdf;
use crate::bind::{DeviceError, refuse_unidentified};
use crate::change::{Change, DomainChange, Part};
use crate::claim::refuse_strangers;
use crate::discover::identity;
use crate::domain::{DomainXml, is_bound_by_us};
use crate::error::{Class, Coded as _, Error, Result, classed, dump_and_define};
use crate::fabric::{HOOK, file_steps, hook, refuse_old_libvirt};
use crate::fsroot::FsRoot;
use crate::hypervisor::file_users::{Conflict, How, User, Uses};
use crate::hypervisor::{Hypervisor, XmlOf};
use crate::initramfs::outdated;
use crate::input;
use crate::lookup::find;
use crate::recognise::{self, IdentityError};
use crate::shell::{domain, word};
use crate::sriov;
use crate::startable::networks_of;
use crate::topology::{FabricModel, Sriov, Topology};
use crate::words::count;
use crate::world::World;
use gpuvm_core::check::guest::Guest;
use gpuvm_core::check::memory::wanted_pages;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A request to start a guest with the host, or not.
#[derive(Debug, Clone)]
pub struct Autostart {
    /// The domain.
    pub name: String,
    /// Whether it starts with the host.
    pub on: bool,
    /// The program that units run at boot.
    pub program: String,
}

/// The result for a guest's start with the host.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Autostarted {
    /// Name of the domain.
    pub name: String,
    /// Whether it starts with the host.
    pub autostart: bool,
    /// Whether it did before.
    pub was: bool,
    /// Parts missing for its start at boot that this change makes, a line each.
    pub made: Vec<String>,
}

/// A guest's needs at boot, and the files that provide them, as they would be.
#[derive(Debug)]
struct Needed {
    /// The functions that are bound at boot.
    functions: Listed,
    /// The virtual functions that are made.
    cards: BTreeMap<Bdf, AtBoot>,
    /// The GPUs whose virtual functions are enabled for vGPUs.
    vgpus: BTreeSet<Bdf>,
    pages: Numbers,
    /// Those of the functions that the guest has.
    own: Vec<Bdf>,
    /// Those that are not set yet, in words.
    missing: Vec<String>,
}

/// Plans the change; without resources that are not on this machine. No steps if all is already
/// set.
pub fn autostart(world: &World, wanted: &Autostart) -> Result<Change<Autostarted>> {
    let Autostart { name, on, .. } = wanted;
    let hypervisor = &*world.hypervisor()?;
    let summary = find(hypervisor, name)?;
    if !summary.persistent {
        let message =
            format!("domain `{name}` has no persistent definition that could start with the host");
        return Err(classed(Class::WrongState, message, dump_and_define(name)));
    }
    let was = hypervisor.autostart(name)?;
    let before = hypervisor.xml(name, XmlOf::Inactive)?;
    let xml = DomainXml::parse(&before)?;
    let (mut first, mut made, mut after) = (Vec::new(), Vec::new(), xml.clone());
    if world.has_guests_here()? {
        (first, made) = at_boot(world, wanted, &xml, hypervisor)?;
        if *on {
            recognise::record(world, &xml, &mut after, &[])?;
            first.extend(compared_by_hook(world, wanted, &after, &mut made)?);
        }
    }
    if after.text() != xml.text() {
        made.push("the record of which devices it has".to_owned());
    }
    if was != *on {
        first.push(
            DomainStep::Autostart { name: name.clone(), uuid: summary.uuid.clone(), on: *on }
                .into(),
        );
    }
    let mut what: Vec<String> = Vec::new();
    if was != *on {
        what.push(if *on { "starts with the host" } else { "does not start with the host" }.into());
    }
    what.extend(made.iter().cloned());
    let about = Autostarted { name: name.clone(), autostart: *on, was, made };
    let mut change = Change::new("autostart", name, Vec::new(), about);
    if !*on && was {
        change.warnings = stays_at_boot(&xml, None, hypervisor, world)?;
    }
    change.again = format!("gpuvm autostart {} {}", word(name), if *on { "on" } else { "off" });
    if first.is_empty() && after.text() == xml.text() {
        change.parts.clear();
        return Ok(change);
    }
    change.parts = vec![Part::Domain(DomainChange {
        verb: "autostart",
        name: name.clone(),
        what,
        before,
        after,
        first,
        last: Vec::new(),
    })];
    Ok(change)
}

/// The steps that install libvirt's hook, by which libvirt compares the guest's devices with the
/// recorded ones before it starts it. A guest with a drive does not start with the host without it:
/// libvirt would take the drive that is at its address then.
fn compared_by_hook(
    world: &World,
    wanted: &Autostart,
    xml: &DomainXml,
    made: &mut Vec<String>,
) -> Result<Vec<Step>> {
    let root = FsRoot::live()?;
    let is_drive = |bdf: &Bdf| -> Result<bool> {
        Ok(identity::read(&root, *bdf)?.is_some_and(|present| present.is_storage()))
    };
    let known = xml.known_devices();
    let mut drives = Vec::new();
    for bdf in xml.held(false)?.devices {
        if is_drive(&bdf)? {
            drives.push(bdf);
        }
    }
    let is_known = |bdf: &Bdf| known.iter().any(|one| one.bdf == *bdf);
    if let Some(&bdf) = drives.iter().find(|bdf| !is_known(bdf)) {
        let driver = identity::read(&root, bdf)?.and_then(|present| present.driver);
        return Err(unrecorded(xml, bdf, driver, &wanted.name));
    }
    if known.is_empty() && xml.vgpus()?.is_empty() {
        return Ok(Vec::new());
    }
    recognise::refuse_others(xml, &root)?;
    let file = hook(&wanted.program)?;
    let steps = refuse_old_libvirt(world).and_then(|()| file_steps(&file, false));
    match steps {
        Ok(steps) => {
            if !steps.is_empty() {
                let what = "the hook by which libvirt compares its devices before a start";
                made.push(what.to_owned());
            }
            Ok(steps)
        }
        Err(error) if drives.is_empty() => {
            world.warning(&format!("libvirt will not compare its devices: {}", error.whole()));
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

/// The error of a drive that would not be recognised.
fn unrecorded(xml: &DomainXml, bdf: Bdf, driver: Option<String>, name: &str) -> Error {
    let name = name.to_owned();
    if !xml.is_ours() {
        let hint = format!(
            "`gpuvm create` records it for guests that it makes; `virsh autostart {}` does without",
            domain(&name)
        );
        return IdentityError::NoRecord { name, bdf }.hint(hint);
    }
    let driver = driver.unwrap_or_else(|| "none".to_owned());
    let hint = format!("`gpuvm device release {bdf}` returns it to its driver, which reads it");
    DeviceError::Unidentified { bdf: bdf.to_string(), driver }.hint(hint)
}

/// The steps that revert the files that start with the host for guests that do, if this one is the
/// last of them and is removed. Users who may not write those files leave them.
pub fn without(name: &str, hypervisor: &dyn Hypervisor, world: &World) -> Result<Vec<Step>> {
    if !world.has_guests_here()? || !nix::unistd::geteuid().is_root() {
        return Ok(Vec::new());
    }
    let mut all = hypervisor.autostarted()?;
    if !all.remove(name) || !all.is_empty() {
        return Ok(Vec::new());
    }
    startup_steps(world, None, false)
}

/// The steps on the files that serve all guests that start with the host. Others' files in their
/// place stay, which is reported where it matters.
fn startup_steps(world: &World, program: Option<&str>, installed: bool) -> Result<Vec<Step>> {
    let (steps, strangers) = startup::steps(Path::new("/"), program, installed)?;
    for Stranger { path, kind } in strangers {
        let name = path.file_name().unwrap_or_default().display();
        let file = path.to_string_lossy();
        let file = word(&file);
        match kind {
            StrangerKind::Masked if program.is_some() => world.warning(&format!(
                "{name} is masked, so interrupted changes are not finished at boot: `systemctl \
                 unmask {name}`, then `systemctl daemon-reload`, and this command again"
            )),
            StrangerKind::Other if program.is_some() => world.warning(&format!(
                "{} was not made by gpuvm and stays: it takes the place of gpuvm's own; `cat \
                 {file}` shows it",
                path.display()
            )),
            StrangerKind::Changed => world.warning(&format!(
                "{} was changed since gpuvm made it and stays: `rm {file}` removes it",
                path.display()
            )),
            StrangerKind::Masked | StrangerKind::Other => {}
        }
    }
    Ok(steps)
}

/// The steps that undo a change, of which one may take back a start with the host: the files for
/// all guests that start with it stay as long as another one does, and go with the last.
pub(crate) fn undone(
    steps: Vec<Step>,
    name: &str,
    hypervisor: &dyn Hypervisor,
    world: &World,
) -> Result<Vec<Step>> {
    if !steps
        .iter()
        .any(|step| matches!(step, Step::Domain(DomainStep::Autostart { on: false, .. })))
    {
        return Ok(steps);
    }
    // Other guests, and NVLink partitions, may rely on the hook since: it stays, as it does when a
    // guest starts by hand again.
    let shared = startup::files(None, false).map(|(path, _)| Path::new("/").join(path));
    let shared: Vec<PathBuf> = shared.into_iter().chain([PathBuf::from(HOOK)]).collect();
    let is_shared = |step: &Step| match step {
        Step::File(FileStep::Set { path, .. }) => shared.contains(path),
        _ => false,
    };
    let mut own = Vec::new();
    for step in steps {
        // Needs of another guest at boot have been added to it: its old text would remove them.
        if let Step::File(FileStep::Set { path, was, .. }) = &step
            && !is_shared(&step)
            && input::state_bytes(path)?.as_deref() != was.as_deref().map(str::as_bytes)
        {
            let kept = format!("{} stays as it is: it has been changed since", path.display());
            world.warning(&kept);
        } else if !is_shared(&step) {
            own.push(step);
        }
    }
    own.extend(without(name, hypervisor, world)?);
    Ok(own)
}

/// The steps on files for the boot, and in words the parts missing without them.
fn at_boot(
    world: &World,
    wanted: &Autostart,
    xml: &DomainXml,
    hypervisor: &dyn Hypervisor,
) -> Result<(Vec<Step>, Vec<String>)> {
    let mut others = hypervisor.autostarted()?;
    others.remove(&wanted.name);
    let (root, program) = (FsRoot::live()?, wanted.program.as_str());
    let installed = startup::is_installed(&root, program)?;
    if !wanted.on {
        let program = (!others.is_empty()).then_some(program);
        return Ok((startup_steps(world, program, installed)?, Vec::new()));
    }
    let topology = world.topology()?;
    // libvirt starts it without asking gpuvm.
    refuse_strangers(xml, world)?;
    if let Some(clash) = clashes(xml, &others, hypervisor, world)?.into_iter().next() {
        let message = format!("domain `{}` cannot start with the host: {}", wanted.name, clash.why);
        return Err(classed(Class::InUse, message, clash.hint));
    }
    refuse_without_hook(xml, &wanted.name, &topology, || Ok(hook(program)?.installed))?;
    warn_of_networks(xml, hypervisor, world)?;
    let needed = needed(xml, &others, &root, &topology, hypervisor)?;
    let otherwise = format!(
        "`virsh edit {}`: with managed='yes' libvirt binds it when the guest starts",
        domain(&wanted.name)
    );
    refuse_unidentified(&topology, &needed.functions, &needed.own, &otherwise)?;
    let mut steps = Vec::new();
    if bind_boot::identities(&root)? != needed.functions {
        let files = bind_boot::all(&root, &topology, &needed.functions, program)?;
        steps.extend(boot_steps(files)?);
        if let Some(advice) = outdated(&steps, false)? {
            world.warning(&advice);
        }
    }
    if vf_boot::functions(&root)? != needed.cards {
        steps.extend(boot_steps(vf_boot::files(&needed.cards, program))?);
    }
    if vgpu_boot::cards(&root)? != needed.vgpus {
        steps.extend(boot_steps(vgpu_boot::files(&needed.vgpus, program))?);
    }
    steps.extend(boot_steps([page_boot::file(&needed.pages)])?);
    steps.extend(startup_steps(world, Some(program), installed)?);
    Ok((steps, needed.missing))
}

/// The parts missing for a guest's start with the host, in words; `None` if nothing is missing, or
/// it does not start with it. `read`: the host, if it has been read.
pub fn lacking(world: &World, xml: &DomainXml, read: Option<&Topology>) -> Result<Vec<String>> {
    let hypervisor = &*world.hypervisor()?;
    let mut others = hypervisor.autostarted()?;
    if !others.remove(&xml.name()) || !world.has_guests_here()? {
        return Ok(Vec::new());
    }
    let root = FsRoot::live()?;
    let mut missing = match read {
        Some(topology) => needed(xml, &others, &root, topology, hypervisor)?.missing,
        None => needed(xml, &others, &root, &world.topology()?, hypervisor)?.missing,
    };
    let needs_hook = !xml.known_devices().is_empty() || !xml.vgpus()?.is_empty();
    if needs_hook && !Path::new(HOOK).exists() {
        missing.push("the hook by which libvirt compares its devices before a start".to_owned());
    }
    Ok(missing)
}

/// An obstacle to a guest's start at boot, or one that must be.
#[derive(Debug)]
pub struct Clash {
    /// Why.
    pub why: String,
    /// The remedy.
    pub hint: String,
}

/// The resources of a guest that is to start with the host which others have, since libvirt does
/// not ask gpuvm then: an image over a disk that it would write, or a disk or function of a guest
/// that starts with the host, too.
pub fn clashes(
    xml: &DomainXml,
    others: &BTreeSet<String>,
    hypervisor: &dyn Hypervisor,
    world: &World,
) -> Result<Vec<Clash>> {
    let name = xml.name();
    let of = |other: &str, why: String| {
        let hint = format!("`gpuvm autostart {} off` first", word(other));
        Clash { why, hint }
    };
    let mut all = Vec::new();
    for Conflict { path, used, .. } in Uses::read(hypervisor)?.conflicts(xml, xml.uuid().as_deref())
    {
        let why = format!("its disk {} is not free: {used}", path.display());
        match &used.by {
            _ if used.how == How::Over => {
                let hint = format!(
                    "`gpuvm disk list {}` shows its disks; delete the guest or the image that lies \
                     over it first",
                    word(&name)
                );
                all.push(Clash { why, hint });
            }
            User::Domain { name: other, .. } if others.contains(other) => all.push(of(other, why)),
            User::Domain { .. } | User::Volume(_) | User::Loop(_) => {}
        }
    }
    let own = xml.held(false)?.devices;
    if own.is_empty() {
        return Ok(all);
    }
    for held in world.occupancy(false)?.domains {
        let both = own.iter().find(|bdf| held.devices.contains(bdf));
        if let Some(bdf) = both.filter(|_| held.domain != name && others.contains(&held.domain)) {
            let other = &held.domain;
            let why = format!("domain `{other}`, which starts with the host, has {bdf}, too");
            all.push(of(other, why));
        }
    }
    Ok(all)
}

/// The same of a guest that starts with the host, in words.
pub fn clashing(
    hypervisor: &dyn Hypervisor,
    xml: &DomainXml,
    world: &World,
) -> Result<Vec<String>> {
    let mut others = hypervisor.autostarted()?;
    others.remove(&xml.name());
    let all = clashes(xml, &others, hypervisor, world)?.into_iter();
    Ok(all.map(|Clash { why, hint }| format!("{why}; {hint}")).collect())
}

/// Settings kept for every boot that no guest that starts with the host needs any more, once this
/// one does not or has changed (`after`; `None` if it is removed), each with the command that
/// reverts it. The files do not record for whom a function or a page is reserved, so they are only
/// named.
pub(crate) fn stays_at_boot(
    xml: &DomainXml,
    after: Option<&DomainXml>,
    hypervisor: &dyn Hypervisor,
    world: &World,
) -> Result<Vec<String>> {
    let mut others = hypervisor.autostarted()?;
    if !others.remove(&xml.name()) || !world.has_guests_here()? {
        return Ok(Vec::new());
    }
    let (root, topology) = (FsRoot::live()?, world.topology()?);
    let parsed =
        |name: &String| DomainXml::parse(&hypervisor.xml(name, XmlOf::Inactive).ok()?).ok();
    let mut stay: Vec<DomainXml> = others.iter().filter_map(parsed).collect();
    stay.extend(after.cloned());
    let mut needed: BTreeSet<Bdf> = BTreeSet::new();
    let mut pages = Numbers::new();
    for one in &stay {
        needed.extend(one.held(false)?.devices);
        for (pool, number) in pages_of(one, &topology) {
            *pages.entry(pool).or_default() += number;
        }
    }
    let cards = |devices: &mut dyn Iterator<Item = Bdf>| -> BTreeSet<Bdf> {
        devices.filter_map(|bdf| card_of(&topology, bdf)).collect()
    };
    let own: BTreeSet<Bdf> = xml.held(false)?.devices.into_iter().collect();
    let gone: BTreeSet<Bdf> = own.difference(&needed).copied().collect();
    let mut warnings = Vec::new();
    let bound = bind_boot::functions(&root)?;
    let bound: Vec<String> = gone.intersection(&bound).map(Bdf::to_string).collect();
    if !bound.is_empty() {
        warnings.push(format!(
            "{} stay bound to vfio-pci at every boot: `gpuvm device release {} --at-boot` ends that",
            bound.join(", "),
            bound.join(" ")
        ));
    }
    let made = vf_boot::functions(&root)?;
    let still = cards(&mut needed.iter().copied());
    for pf in cards(&mut gone.iter().copied()).difference(&still).filter(|pf| made.contains_key(pf))
    {
        warnings.push(format!(
            "virtual functions of {pf} are still made at every boot: `gpuvm nic vfs {pf} --count 0 \
             --at-boot` ends that"
        ));
    }
    let reserved = page_boot::numbers(&root)?;
    for pool @ (node, page) in pages_of(xml, &topology).into_keys() {
        let left = pages.get(&pool).copied().unwrap_or_default();
        let Some(&number) = reserved.get(&pool).filter(|number| **number > left) else { continue };
        warnings.push(format!(
            "{} on node {node} are still reserved at every boot, and {left} needed: `gpuvm host \
             pages --node {node} --size {} --count {left} --at-boot` sets that, and those that are \
             there now",
            count(number, &format!("page of {page}")),
            page.typed()
        ));
    }
    Ok(warnings)
}

/// The guest's needs at boot, together with `others` that start with the host.
fn needed(
    xml: &DomainXml,
    others: &BTreeSet<String>,
    root: &FsRoot,
    topology: &Topology,
    hypervisor: &dyn Hypervisor,
) -> Result<Needed> {
    let mut needed = Needed {
        functions: bind_boot::identities(root)?,
        cards: vf_boot::functions(root)?,
        vgpus: vgpu_boot::cards(root)?,
        pages: page_boot::numbers(root)?,
        own: Vec::new(),
        missing: Vec::new(),
    };
    let devices = xml.held(false)?.devices;
    // libvirt binds the others itself.
    let unmanaged = xml.unmanaged();
    let is_ours = |bdf: &&Bdf| {
        let is_bound = is_bound_by_us(topology, **bdf) || unmanaged.contains(bdf);
        is_bound && !topology.is_vgpu_function(**bdf)
    };
    needed.own = devices.iter().filter(is_ours).copied().collect();
    for &bdf in &needed.own {
        let before = needed.functions.get(&bdf).cloned();
        if matches!(before, Some(Some(_))) {
            continue;
        }
        bind_boot::add(root, &mut needed.functions, [bdf])?;
        if before.is_none() {
            needed.missing.push(format!("the binding of {bdf} to vfio-pci"));
        } else if needed.functions.get(&bdf).is_some_and(Option::is_some) {
            needed.missing.push(format!("the identity of {bdf} in the list for the boot"));
        }
    }
    let others_vfs = devices.iter().filter(|bdf| !topology.is_vgpu_function(**bdf));
    for pf in others_vfs.filter_map(|bdf| card_of(topology, *bdf)) {
        add_card(&mut needed, pf, root, topology)?;
    }
    for card in xml.vgpus()?.into_iter().map(|vgpu| vgpu.card) {
        let sriov = topology.device(card).and_then(|card| card.sriov.as_ref());
        if matches!(sriov, Some(Sriov::Pf { enabled: 1.., .. })) && needed.vgpus.insert(card) {
            needed.missing.push(format!("the virtual functions of {card} for vGPUs"));
        }
    }
    add_pages(&mut needed, xml, others, (root, topology), hypervisor)?;
    Ok(needed)
}

/// The card of a virtual function.
fn card_of(topology: &Topology, bdf: Bdf) -> Option<Bdf> {
    match topology.device(bdf)?.sriov.as_ref()? {
        Sriov::Vf { pf } => Some(*pf),
        Sriov::Pf { .. } => None,
    }
}

/// Adds a card that gets as many virtual functions at boot as it has now.
fn add_card(needed: &mut Needed, pf: Bdf, root: &FsRoot, topology: &Topology) -> Result<()> {
    let Some(device) = topology.device(pf) else { return Ok(()) };
    let Some(Sriov::Pf { enabled, .. }) = &device.sriov else { return Ok(()) };
    let at_boot = needed.cards.get(&pf);
    if at_boot.is_some_and(|at_boot| at_boot.count >= *enabled) {
        return Ok(());
    }
    let host_drivers = at_boot.is_some_and(|at_boot| at_boot.host_drivers);
    let id = sriov::identity(root, device)?;
    needed.cards.insert(pf, AtBoot { id, count: *enabled, host_drivers });
    let functions = count(*enabled, "virtual function");
    needed.missing.push(format!("{functions} of {pf}"));
    Ok(())
}

/// Adds the huge pages of the guest and of the others that start with the host. Reservations in the
/// kernel's arguments are kept.
fn add_pages(
    needed: &mut Needed,
    xml: &DomainXml,
    others: &BTreeSet<String>,
    (root, topology): (&FsRoot, &Topology),
    hypervisor: &dyn Hypervisor,
) -> Result<()> {
    let own = pages_of(xml, topology);
    let mut all = own.clone();
    for name in others.iter().filter(|_| !own.is_empty()) {
        let Ok(text) = hypervisor.xml(name, XmlOf::Inactive) else { continue };
        let Ok(other) = DomainXml::parse(&text) else { continue };
        for (pool, number) in pages_of(&other, topology) {
            *all.entry(pool).or_default() += number;
        }
    }
    let arguments = root.read("proc/cmdline")?.unwrap_or_default();
    let is_of_kernel = arguments.split_whitespace().any(|word| word.starts_with("hugepages="));
    for pool @ (id, page) in own.into_keys() {
        let number = all.get(&pool).copied().unwrap_or_default();
        let node = topology.nodes().iter().find(|node| node.os_index == id);
        let pools = node.map(|node| node.huge_pages.as_slice()).unwrap_or_default();
        let now = pools.iter().find(|pool| pool.page_kib == page).map_or(0, |pool| pool.reserved());
        let at_boot = needed.pages.get(&pool).copied();
        let there = at_boot.unwrap_or(if is_of_kernel { now } else { 0 });
        if there < number {
            needed.pages.insert(pool, number);
            let pages = count(number, "page");
            needed.missing.push(format!("{pages} of {page} on node {id}"));
        }
    }
    Ok(())
}

/// The huge pages of a guest by node and size; those bound to several nodes are counted on the
/// first.
fn pages_of(xml: &DomainXml, topology: &Topology) -> Numbers {
    let guest = Guest::read(xml);
    let mut pages = Numbers::new();
    if guest.huge_pages.is_none() {
        return pages;
    }
    for ((nodes, page), (number, _)) in wanted_pages(&guest.banks(), topology) {
        if let Some(node) = nodes.iter().next() {
            *pages.entry((node, page)).or_default() += number;
        }
    }
    pages
}

/// Refuses a guest with GPUs of a board with shared NVSwitches whose partition would not be
/// activated: libvirt starts it without gpuvm. `has_hook`: whether libvirt's hook does.
pub(crate) fn refuse_without_hook(
    xml: &DomainXml,
    name: &str,
    topology: &Topology,
    has_hook: impl FnOnce() -> Result<bool>,
) -> Result<()> {
    let devices = xml.held(false)?.devices;
    let is_shared = topology.fabric().model == FabricModel::SharedNvswitch;
    let vgpus = xml.vgpus()?;
    let has = |gpu| devices.contains(&gpu) || vgpus.iter().any(|vgpu| vgpu.card == gpu);
    let has_any = topology.ruled().any(has);
    if !is_shared || !has_any || has_hook()? {
        return Ok(());
    }
    let message = format!(
        "the NVLink partition of domain `{name}` would not be activated when libvirt starts it at \
         boot"
    );
    let hint = format!(
        "`gpuvm fabric hook --install` lets libvirt activate it, then `gpuvm autostart {} on`",
        word(name)
    );
    Err(classed(Class::Refused, message, hint))
}

/// Warns of networks of the guest that do not start with the host, without which it does not start.
fn warn_of_networks(xml: &DomainXml, hypervisor: &dyn Hypervisor, world: &World) -> Result<()> {
    let known = hypervisor.networks().all_networks()?;
    for name in networks_of(xml) {
        let network = known.iter().find(|network| network.name == name);
        if network.is_some_and(|network| !network.autostart) {
            world.warning(&format!(
                "network `{name}` does not start with the host, and a guest on it neither: `virsh \
                 net-autostart {}`",
                word(&name)
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::reporter::Answer;
    use crate::session::{Confirm, Session};
    use crate::stage::{Stage, UUID, manner};

    fn request(on: bool) -> Autostart {
        Autostart { name: "a".into(), on, program: "/usr/bin/gpuvm".into() }
    }

    #[test]
    fn it_is_set_once_and_undone() {
        let stage = Stage::who_says(Answer::Nobody);
        stage.fake.put("a", UUID, false);
        let run = |on| {
            let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
            session.run(|world| autostart(world, &request(on))).unwrap()
        };
        let is_on = || stage.fake.autostarts.borrow().contains("a");
        let done = run(true);
        assert!(done.made && is_on() && !done.change.about.was);
        assert!(!run(true).made, "it is so already");
        let back: Vec<Step> = done.change.steps().iter().filter_map(Step::reversed).collect();
        assert!(
            matches!(&back[..], [Step::Domain(DomainStep::Autostart { on: false, .. })]),
            "{back:?}"
        );
        assert!(run(false).made && !is_on());
        stage.fake.transient.borrow_mut().insert("a".into());
        let error = autostart(&stage.world, &request(true)).unwrap_err();
        let Error::Refused(refusal) = &error else { panic!("{error}") };
        assert!(refusal.hint.contains("`virsh define a.xml`"), "{}", refusal.hint);
    }

    #[test]
    fn a_guest_in_conflict_with_another_does_not_autostart() {
        let stage = Stage::who_says(Answer::Nobody);
        let base = stage.dir.path().join("a.raw");
        std::fs::write(&base, vec![1; 4096]).unwrap();
        stage.fake.put_with_disk("a", &base);
        let with = |name: &str, devices: &str| {
            let text = crate::stage::fake::xml(name, UUID);
            let devices = format!("<devices>{devices}</devices></domain>");
            stage.fake.put_xml(&text.replace("</domain>", &devices), false);
        };
        let says = |name: &str, others: &[&str]| -> Vec<String> {
            let xml = DomainXml::parse(&stage.fake.definition(name)).unwrap();
            let others = others.iter().map(|&name| name.to_owned()).collect();
            let all = clashes(&xml, &others, &*stage.fake, &stage.world).unwrap().into_iter();
            all.map(|clash| format!("{}; {}", clash.why, clash.hint)).collect()
        };
        assert_eq!(says("a", &[]), [""; 0]);
        let over = format!(
            "<disk type='file'><driver name='qemu' type='qcow2'/><source file='/over.qcow2'/>\
             <backingStore type='file'><format type='raw'/><source file='{}'/></backingStore>\
             <target dev='vda' bus='virtio'/></disk>",
            base.display()
        );
        with("o", &over);
        let [said] = &says("a", &[])[..] else { panic!("{:?}", says("a", &[])) };
        assert!(said.contains("domain `o` has an image over it"), "{said}");
        assert!(said.contains("`gpuvm disk list a`"), "{said}");
        let gpu = "<hostdev mode='subsystem' type='pci'><source><address domain='0x0000' \
                   bus='0x34' slot='0x00' function='0x0'/></source></hostdev>";
        with("g", gpu);
        stage.fake.put_xml(
            &stage
                .fake
                .definition("g")
                .replace(">g<", ">h<")
                .replace(UUID, &UUID.replace('1', "3")),
            false,
        );
        assert_eq!(says("g", &["a"]), [""; 0], "the other starts by hand");
        let [said] = &says("g", &["h"])[..] else { panic!("{:?}", says("g", &["h"])) };
        let way = "`gpuvm autostart h off` first";
        assert!(said.contains("has 0000:34:00.0, too") && said.ends_with(way), "{said}");
    }
}
