//! A guest modelled on another, by `clone` of one on this host and `import` of one from elsewhere:
//! its disks are copies, its place and its GPUs are planned as those of a new guest. It is not
//! started, and `undo` deletes it again.

mod disks;
mod error;
mod overlays;
mod shared;

pub use disks::Copied;
pub(crate) use disks::{Copies, Old, copies, disk_file, refuse_image, refuse_too_large};
pub use error::CloneError;
pub(crate) use overlays::{Overlays, overlays};

use crate::apply::{DomainStep, Step, now_s};
use crate::bdf::Bdf;
use crate::change::{Change, DomainChange, Part};
use crate::claim::claim;
use crate::disks::facts;
use crate::domain::arguments::Arguments;
use crate::domain::cloned::{Own, Stays};
use crate::domain::disk_change::{Port, free_target, target_of};
use crate::domain::guest::{Made, Role};
use crate::domain::setting::Setting;
use crate::domain::view::View;
use crate::domain::{DomainEdit, DomainXml, Element};
use crate::domain_history::{boot, refuse_of_another};
use crate::error::{Class, Coded as _, Error, Refusal, Result, classed, dump_and_define};
use crate::guest::stop_first;
use crate::history::guest;
use crate::hypervisor::{DomainSummary, Hypervisor};
use crate::nvram::refuse_settings;
use crate::placement::PlanError;
use crate::planned::Planned;
use crate::recognise;
use crate::request::{Allow, DomainName, GpuWish, VgpuWish};
use crate::shell::word;
use crate::storage::{Keyless, POOL, SeedRequest, SeedWanted, complete, room, seed_alone};
use crate::topology::{DeviceKind, GuestVgpu, Topology, Trust};
use crate::tune::Tune;
use crate::tune::subjects::{self, Subjects};
use crate::words::count;
use crate::world::World;
use gpuvm_core::check::{self, Finding};
use gpuvm_core::finding::Severity;
use gpuvm_core::tune::items::Resize;
use gpuvm_core::tune::{Item, Items, TuneError, Tuned};

/// A request for a guest as another one.
#[derive(Debug, Clone)]
pub struct CloneRequest {
    /// The other guest.
    pub name: String,
    /// The name that it gets.
    pub to: DomainName,
    /// Its GPUs; `None` for as many as the other has.
    pub gpus: Option<u32>,
    /// Which rules may be broken.
    pub allow: Allow,
    /// Whether other guests may reach its NVLinks.
    pub accept_shared_fabric: bool,
    /// Its UUID; `None` if libvirt chooses one, for previews.
    pub uuid: Option<String>,
    /// Its cloud-init seed.
    pub seed: SeedRequest,
    /// Whether the disks of both are overlays on the images of the other, instead of being copied.
    pub overlay: bool,
    /// Names of images that may be below its disks: paths, or QEMU's own words.
    pub accept_backing: Vec<String>,
}

impl CloneRequest {
    /// The command that clones, but for the GPUs.
    pub(crate) fn again(&self) -> String {
        let how = if self.overlay { " --overlay" } else { "" };
        format!("gpuvm clone {} {}{how}{}", word(&self.name), word(self.to.as_str()), self.rest())
    }

    /// The command that clones with whole copies.
    pub(crate) fn whole(&self) -> String {
        let gpus = self.gpus.map(|gpus| format!(" --gpus {gpus}")).unwrap_or_default();
        format!("gpuvm clone {} {}{gpus}{}", word(&self.name), word(self.to.as_str()), self.rest())
    }

    /// Its other options, but for the GPUs, as they are typed.
    pub(crate) fn rest(&self) -> String {
        let rest = options(self.allow, Some(&self.seed), self.accept_shared_fabric);
        let accepted = self.accept_backing.iter();
        accepted.fold(rest, |rest, name| format!("{rest} --accept-backing {}", word(name)))
    }
}

/// The options that clones and imports share, as they are typed; `seed`: it may get one.
pub(crate) fn options(
    allow: Allow,
    seed: Option<&SeedRequest>,
    accept_shared_fabric: bool,
) -> String {
    let allowed = allow.rules().into_iter().map(<&str>::from);
    let mut all: String = allowed.map(|rule| format!(" --allow {rule}")).collect();
    if let Some(seed) = seed {
        let keys = seed.ssh_key.iter().map(|file| file.to_string_lossy());
        all.extend(keys.map(|file| format!(" --ssh-key {}", word(&file))));
        if seed.wanted == SeedWanted::No {
            all += " --no-seed";
        }
    }
    if accept_shared_fabric {
        all += " --accept-shared-fabric";
    }
    all
}

/// The parts of a guest that is modelled on another.
pub(crate) struct Another<'a> {
    /// The verb.
    pub verb: &'static str,
    /// The command, as it is run again.
    pub again: String,
    /// Its description for the history: "clone of domain `a`".
    pub what: String,
    /// The definition of the other.
    pub source: &'a DomainXml,
    /// How many GPUs that has.
    pub gpus: u32,
    /// Its disks.
    pub copies: Copies,
    /// The change of the other that has to precede its definition; `None` if that stays as it is.
    pub first: Option<DomainChange>,
    /// The other's identity that it keeps; `None` if it gets its own.
    pub stays: Option<Stays<'a>>,
    /// Whether the other is of another host, of which nothing is kept.
    pub is_elsewhere: bool,
}

/// A guest that is made as another one is.
pub(crate) struct CopiedGuest {
    /// Its name.
    pub name: String,
    /// Its UUID; `None` if libvirt chooses one.
    pub uuid: Option<String>,
    /// Its passed-through functions.
    pub devices: Vec<Bdf>,
    /// The MAC addresses of its NICs.
    pub macs: Vec<String>,
    /// Its disks.
    pub disks: Vec<Copied>,
    /// Its definition.
    pub definition: String,
}

/// Plans a guest that is made as another one is.
pub(crate) fn another<T>(
    world: &World,
    wanted: &CloneRequest,
    of: Another<'_>,
    about: impl FnOnce(CopiedGuest) -> T,
) -> Result<Change<T>> {
    let hypervisor = &*world.hypervisor()?;
    let topology = world.topology()?;
    let seeded = Seeded::of(&of, wanted);
    let doc = seeded.without(of.source)?;
    let held = world.occupancy(false)?.domains.into_iter();
    let taken_macs: Vec<String> = held.flat_map(|one| one.macs).collect();
    let own = Own {
        name: wanted.to.as_str(),
        uuid: wanted.uuid.as_deref(),
        disks: &of.copies.paths,
        made: &of.copies.made,
        taken_macs: &taken_macs,
        stays: of.stays,
    };
    let doc = without_vgpus(doc.cloned(&own)?, of.source, &topology)?;
    let (subjects, tuned) = place(world, wanted, &of, doc)?;
    let left_out = left_out(of.source, wanted)?;
    refuse_shared(&subjects, &tuned, wanted)?;
    let mut xml = tuned.after.clone();
    let devices = xml.held(false)?.devices;
    let name = wanted.to.as_str();
    let bound = claim(name, &devices, &topology, subjects.occupancy(), world)?.bound;
    xml.apply(&DomainEdit::Set { setting: Setting::Bound { bound } })?;
    recognise::record(world, &xml.clone(), &mut xml, &[])?;
    let Copies { mut steps, made, disks, .. } = of.copies;
    let macs: Vec<String> = View::of(&xml, None)?.nics.into_iter().map(|nic| nic.mac).collect();
    if seeded.is_wanted {
        let planned = planned(&subjects, &tuned, &xml, wanted)?;
        xml = seeded.with(&planned, &made, (xml, &macs, &mut steps), wanted, world)?;
    }
    room::refuse_taken(&steps, hypervisor)?;
    let doing = format!("make domain `{name}` ({})", of.what);
    let option = if of.verb == "clone" { "name" } else { "--name" };
    refuse_settings(&xml, (&doing, option), hypervisor)?;
    judge(&xml, &tuned, hypervisor, world)?;
    let accepts = wanted.accept_shared_fabric;
    let mut last = records(world, hypervisor, (of.verb, of.what), (&xml, &steps, accepts))?;
    last.push(DomainStep::Define { name: name.to_owned(), xml: xml.text().to_owned() }.into());
    let uuid = xml.uuid();
    let definition = xml.text().to_owned();
    let about =
        about(CopiedGuest { name: name.to_owned(), uuid, devices, macs, disks, definition });
    let mut change = Change::new(of.verb, name, Vec::new(), about);
    let makes = steps.iter().chain(of.first.iter().flat_map(|first| &first.first));
    change.warnings = room::warnings(&makes.cloned().collect::<Vec<_>>(), hypervisor)?;
    change.warnings.extend(left_out);
    if !of.is_elsewhere {
        change.warnings.extend(shared::warnings(of.source, &xml));
    }
    let (read_back, planned) = (name.to_owned(), xml);
    change.parts = vec![Part::Steps(steps)];
    change.parts.extend(of.first.map(Part::Domain));
    change.parts.push(Part::Steps(last));
    change.parts.push(Part::ReadBack { name: read_back, planned });
    change.again = of.again;
    Ok(change)
}

/// Refuses a guest that is not copied now.
pub(crate) fn refuse_busy(
    world: &World,
    hypervisor: &dyn Hypervisor,
    row: &DomainSummary,
    again: &str,
) -> Result<()> {
    let name = &row.name;
    refuse_of_another(world, row, hypervisor, again)?;
    if !row.persistent {
        let error = CloneError::NoDefinition { name: name.clone() };
        return Err(error.hint(dump_and_define(name)));
    }
    if row.state.is_active() {
        return Err(CloneError::Active { name: name.clone() }.hint(stop_first(row).1));
    }
    match hypervisor.keeps(name)?.into_iter().next() {
        None => Ok(()),
        Some(kept) => {
            let error = CloneError::Kept { name: name.clone(), what: kept.what };
            Err(error.hint(kept.hint))
        }
    }
}

/// Whether gpuvm made a domain, and it is not a copy of one made by others.
pub(crate) fn is_ours(xml: &DomainXml) -> bool {
    xml.is_ours() && matches!(xml.record(), Ok(Some(_)))
}

/// The part of a definition that no guest of a bundle has, except functions of the host and vGPUs,
/// which are chosen again; `None` if there is none.
pub(crate) fn not_bundled(xml: &DomainXml) -> Result<Option<String>> {
    Ok(without_functions(xml)?.not_bundled())
}

/// A definition without the functions of its host and without the mediated devices of its vGPUs.
pub(crate) fn without_functions(xml: &DomainXml) -> Result<DomainXml> {
    let mdevs = own_vgpus(xml)?.into_iter().filter_map(|own| Some(own.uuid?.to_lowercase()));
    let mut xml = xml.clone();
    xml.apply(&DomainEdit::SetHostdevs { hostdevs: Vec::new() })?;
    for uuid in mdevs {
        xml.apply(&DomainEdit::DropMdev { uuid })?;
    }
    Ok(xml)
}

/// The recorded vGPUs of a guest that gpuvm made, of which a copy gets others.
fn own_vgpus(xml: &DomainXml) -> Result<Vec<GuestVgpu>> {
    let record = xml.record()?.filter(|_| is_ours(xml));
    Ok(record.map(|record| record.vgpus).unwrap_or_default())
}

/// Refuses devices of the host that only one guest can have, but for GPUs and vGPUs, of which it
/// gets others.
pub(crate) fn refuse_devices(name: &str, xml: &DomainXml, topology: &Topology) -> Result<()> {
    // After a restart the host may not have their functions yet.
    let vgpus = own_vgpus(xml)?;
    let is_vgpu = |bdf: &Bdf| vgpus.iter().any(|own| !own.is_mdev() && own.function == *bdf);
    let is_of_board = |bdf: &Bdf| {
        let group = topology.iommu_group(*bdf).map(|group| &group.members[..]).unwrap_or_default();
        group.iter().chain([bdf]).any(|bdf| {
            let kind = topology.device(*bdf).map(|device| device.kind());
            matches!(kind, Some(DeviceKind::Gpu | DeviceKind::NvSwitch))
        })
    };
    let passed = xml.held(false)?.devices;
    let Arguments { functions, mediated, .. } = Arguments::read(xml.root());
    let mediated = mediated.first().map(|of| format!("mediated device {}", of.value));
    let of_arguments = functions.first().map(|of| of.value.to_string()).or(mediated);
    let of_arguments = of_arguments.map(|of| format!("{of} (by an argument of QEMU)"));
    let is_other = |bdf: &&Bdf| !is_of_board(bdf) && !is_vgpu(bdf);
    let other = passed.iter().find(is_other).map(Bdf::to_string);
    let other = of_arguments.or(other);
    let all = xml.root().child("devices").into_iter().flat_map(Element::elements);
    let mut hostdevs = all.filter(|device| device.name() == "hostdev");
    let kind = |device: Element<'_>| device.attr("type").unwrap_or_default().into_owned();
    let is_own_mdev = |device: Element<'_>| {
        let uuid = device.find("source/address").and_then(|address| address.attr("uuid"));
        uuid.is_some_and(|uuid| vgpus.iter().any(|own| own.is_device(&uuid)))
    };
    let other = other.or_else(|| {
        let device = hostdevs.find(|device| kind(*device) != "pci" && !is_own_mdev(*device))?;
        Some(format!("a device of type `{}`", kind(device)))
    });
    let Some(device) = other else { return Ok(()) };
    let hint = format!("`gpuvm show {}` shows what it has", word(name));
    Err(CloneError::Device { name: name.to_owned(), device }.hint(hint))
}

/// A copy without the mediated devices of the other, and without functions of its vGPUs that the
/// host does not show as such: the copy has no record by which tuning would know them.
fn without_vgpus(xml: DomainXml, source: &DomainXml, topology: &Topology) -> Result<DomainXml> {
    let (mdevs, functions): (Vec<_>, Vec<_>) =
        own_vgpus(source)?.into_iter().partition(GuestVgpu::is_mdev);
    let functions = functions.into_iter().map(|own| own.function);
    let devices: Vec<Bdf> = functions.filter(|bdf| !topology.is_vgpu_function(*bdf)).collect();
    let mut xml = xml;
    if !devices.is_empty() {
        xml.apply(&DomainEdit::Set { setting: Setting::Gone { devices } })?;
    }
    for uuid in mdevs.into_iter().filter_map(|own| own.uuid) {
        xml.apply(&DomainEdit::DropMdev { uuid: uuid.to_lowercase() })?;
    }
    Ok(xml)
}

/// The warning of the vGPUs that the other has, and a guest without GPUs does not get.
fn left_out(source: &DomainXml, wanted: &CloneRequest) -> Result<Option<String>> {
    let vgpu = source.record()?.and_then(|record| record.request.vgpu);
    let Some(wish) = vgpu.filter(|_| wanted.gpus == Some(0)) else { return Ok(None) };
    let (name, vgpus) = (wanted.to.as_str(), count(wish.count, "vGPU"));
    let again = VgpuWish { gpu: None, ..wish.clone() };
    let number = if wish.count == 1 { "one".to_owned() } else { wish.count.to_string() };
    Ok(Some(format!(
        "domain `{name}` gets no vGPU, and `{}` has {vgpus} {}: `gpuvm set {} --vgpu {}` plans \
         {number} of the type for it",
        wanted.name,
        wish.type_name,
        word(name),
        word(&again.to_string())
    )))
}

/// Plans it as a new guest of its size, with as many GPUs, or vGPUs of the same type.
fn place(
    world: &World,
    wanted: &CloneRequest,
    of: &Another<'_>,
    doc: DomainXml,
) -> Result<(Subjects, Tuned)> {
    // Another host's settings say nothing of this one.
    let items = if of.is_elsewhere { Items::all() } else { Items::default() };
    let record = of.source.record()?.filter(|_| wanted.gpus.is_none());
    // The other guest may have filled the card that was named for it.
    let vgpu = record.and_then(|record| record.request.vgpu);
    let vgpu = vgpu.map(|wish| VgpuWish { gpu: None, ..wish });
    let resize = |gpus: u32, vgpu: Option<&VgpuWish>| Resize {
        gpus: Some(GpuWish::Count(gpus)),
        vgpu: vgpu.map_or(Item::Off, |wish| Item::To(wish.clone())),
        ..Resize::default()
    };
    let tuning = |gpus: u32, vgpu| Tune {
        items: Items { resize: Some(resize(gpus, vgpu)), ..items.clone() },
        allow: wanted.allow,
        ..Tune::default()
    };
    let gpus = wanted.gpus.unwrap_or(of.gpus);
    let subjects = subjects::of_new(world, &tuning(gpus, vgpu.as_ref()), doc)?;
    let tuned = |gpus: u32, vgpu| {
        subjects.try_all(&tuning(gpus, vgpu)).1.pop().expect("one domain is planned")
    };
    let error = match tuned(gpus, vgpu.as_ref()) {
        Ok(tuned) => return Ok((subjects, tuned)),
        Err(error) => error,
    };
    let (name, again) = (wanted.name.clone(), &of.again);
    if let TuneError::Plan(why) = &error {
        // A board has a few, whatever number was typed.
        let most = u32::try_from(subjects.topology().gpus().count()).unwrap_or(u32::MAX);
        let above = if vgpu.is_some() { 1 } else { gpus.min(most + 1) };
        let fewer = (0..above).rev().find(|fewer| tuned(*fewer, None).is_ok());
        let mut hints = Vec::new();
        // Of a vGPU more may be missing than room: its virtual functions, or a mode.
        if let (Some(_), PlanError::Taken { hint, .. } | PlanError::Impossible { hint, .. }) =
            (&vgpu, why)
        {
            hints.push(hint.clone());
        }
        hints.push(match fewer {
            Some(number) => format!("`{again} --gpus {number}`"),
            None => "`gpuvm capacity` shows what still fits".to_owned(),
        });
        let hint = hints.join("; ");
        let devices = match &vgpu {
            Some(wish) => format!("{} {}", count(wish.count, "vGPU"), wish.type_name),
            None => count(gpus, "GPU"),
        };
        return Err(CloneError::NoPlace { name, devices, why: why.to_string() }.hint(hint));
    }
    let message = format!("cannot create a guest like domain `{name}`");
    let hint = if of.is_elsewhere {
        format!("`{again} --gpus 0` needs no device of this host")
    } else {
        format!("`gpuvm check {}` shows what is wrong with it", word(&name))
    };
    Err(Error::from(error).around(Refusal::around(message, hint)))
}

/// Refuses a guest whose NVLinks others reach, unless that was accepted.
fn refuse_shared(subjects: &Subjects, tuned: &Tuned, wanted: &CloneRequest) -> Result<()> {
    let said = subjects.topology().machine().trust;
    let shared = tuned.placement.as_ref().and_then(|placement| placement.shared_fabric());
    match shared.filter(|_| Trust::refuses(said, wanted.accept_shared_fabric)) {
        None => Ok(()),
        Some(why) => {
            Err(CloneError::SharedFabric { why: why.to_string() }
                .hint(why.advice(subjects.topology())))
        }
    }
}

fn planned(
    subjects: &Subjects,
    tuned: &Tuned,
    xml: &DomainXml,
    wanted: &CloneRequest,
) -> Result<Planned> {
    let record = xml.record()?;
    let (Some(record), Some(placement)) = (record, tuned.placement.clone()) else {
        return Err(CloneError::NotOurs { name: wanted.name.clone() }.bare());
    };
    Ok(Planned {
        topology: subjects.topology().clone(),
        request: record.request,
        placement,
        name: wanted.to.clone(),
        occupancy: subjects.occupancy().clone(),
        stack: None,
    })
}

/// The seed of a copy, and that of its source.
struct Seeded {
    is_wanted: bool,
    /// That of the source: its name in the guest, and where it is.
    old: Option<(String, Made)>,
}

impl Seeded {
    /// Decides on it: a guest made of an image gets one as `create` gives it.
    fn of(of: &Another<'_>, wanted: &CloneRequest) -> Seeded {
        let (source, made) = (of.source, &of.copies.made);
        if of.stays.is_some() {
            // It has booted, and keeps its creation options.
            return Seeded { is_wanted: false, old: None };
        }
        let recorded = source.made().into_iter().filter(|made| made.role == Role::Seed);
        let disk = |made: Made| Some((target_of(source.disk(&made.path)?)?, made));
        let old = recorded.filter_map(disk).next();
        let of_image = made.iter().any(|made| made.role == Role::Os && made.volume.is_some());
        let is_wanted = match wanted.seed.wanted {
            SeedWanted::No => false,
            SeedWanted::Usual => old.is_some() || of_image || !wanted.seed.ssh_key.is_empty(),
            SeedWanted::Yes => true,
        };
        Seeded { is_wanted, old }
    }

    /// The pool that it goes into.
    fn pool(&self) -> &str {
        let volume = self.old.as_ref().and_then(|(_, made)| made.volume.as_ref());
        volume.map_or(POOL, |volume| &volume.pool)
    }

    /// The source's definition without its seed, which names the source.
    fn without(&self, xml: &DomainXml) -> Result<DomainXml> {
        let Some((target, _)) = &self.old else { return Ok(xml.clone()) };
        Ok(xml.without_disk(target, None)?)
    }

    /// The clone's definition with its seed, and the steps that make that.
    fn with(
        &self,
        planned: &Planned,
        made: &[Made],
        (xml, macs, steps): (DomainXml, &[String], &mut Vec<Step>),
        wanted: &CloneRequest,
        world: &World,
    ) -> Result<DomainXml> {
        // Who could log in to the source can log in to its copy: users are on the disks.
        let seed = SeedRequest { keyless: Keyless::Accepted, ..wanted.seed.clone() };
        let disks = seed_alone(&seed, self.pool(), planned, made, world)?;
        if disks.seed.as_ref().is_some_and(|seed| seed.ssh_keys.is_empty()) {
            world.note(&format!(
                "no key is added for `{}`: who can log in to `{}` can log in there, too",
                wanted.to, wanted.name
            ));
        }
        for notice in &disks.notices {
            world.warning(&notice.to_string());
        }
        let mut own = disks.steps;
        if let Some(mut seed) = disks.seed {
            seed.nics = macs.to_vec();
            complete(&mut own, &seed)?;
        }
        steps.extend(own);
        let mut xml = xml;
        for (disk, made) in disks.disks.iter().zip(&disks.made) {
            // At its place, where the source has one.
            let old = self.old.as_ref().map(|(target, _)| target.clone());
            let target = old.unwrap_or_else(|| free_target(&[&xml]));
            let more = xml.with_disk(disk, &target, false, Port::FreeOrNew)?;
            xml = more.expect("a port is made where none is free").with_made(made)?;
        }
        Ok(xml)
    }
}

/// Refuses a definition with errors of the checker, and warns of the rest.
fn judge(xml: &DomainXml, tuned: &Tuned, hypervisor: &dyn Hypervisor, world: &World) -> Result<()> {
    let mut findings = tuned.findings.clone();
    findings.extend(check::disks(xml, &facts(xml, None, true, hypervisor)?));
    let (errors, warnings): (Vec<Finding>, Vec<Finding>) =
        findings.into_iter().partition(|finding| finding.severity == Severity::Error);
    for reason in tuned.reasons.iter().filter(|reason| reason.compromise) {
        world.warning(&format!("{}: {}", reason.choice, reason.because));
    }
    for warning in warnings {
        world.warning(&format!("{}: {}", warning.says.path, warning.says.message));
    }
    let Some(first) = errors.first() else { return Ok(()) };
    let mut message = format!("domain `{}` would fail `check`; not created", xml.name());
    for error in &errors {
        message += &format!("\n  {}: {}", error.says.path, error.says.message);
    }
    Err(classed(Class::Unsound, message, first.hint.clone()))
}

/// The steps that record the objects made for it, and that it is undone by its deletion: data
/// written over an image of another is lost with that.
fn records(
    world: &World,
    hypervisor: &dyn Hypervisor,
    (verb, what): (&'static str, String),
    (xml, makes, accepts): (&DomainXml, &[Step], bool),
) -> Result<Vec<Step>> {
    let Some(uuid) = xml.uuid() else { return Ok(Vec::new()) };
    let (name, uri) = (xml.name(), hypervisor.uri());
    let made = guest::add_copy(world.state(), (&uuid, &name, uri), &xml.made(), accepts)?;
    let history = world.history(&uuid)?;
    let mut entry = history.next(verb, uri, &name, now_s(), String::new());
    entry.what = vec![what];
    entry.boot = boot()?;
    entry.steps =
        makes.iter().filter(|step| step.makes_overlay() || step.makes_copy()).cloned().collect();
    Ok(made.into_iter().chain([history.remember(&entry, None)]).collect())
}
