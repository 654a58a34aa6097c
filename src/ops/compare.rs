//! A guest that exists against the request for it: what differs, and whether it can be changed in
//! place. What counts only while a guest is made (its image, its first settings, the choice between
//! places) is not compared, unless a file made it.

mod absent;
mod nics;
mod now;

pub use absent::create_if_absent;
pub(crate) use nics::wished_nics;
pub(crate) use now::{request_now, size_now, told_now};

use crate::bdf::Bdf;
use crate::create::{CreateError, CreateRequest, Told, told};
use crate::domain::disk_change::source_of;
use crate::domain::guest::{Made, Role, SPARE_PORTS, VolumeRef};
use crate::domain::view::View;
use crate::domain::{DomainXml, Element};
use crate::error::Coded as _;
use crate::error::{Class, Result, classed};
use crate::guest::{NameRequest, template_of};
use crate::history::guest as history;
use crate::hypervisor::{DomainSummary, Hypervisor, XmlOf};
use crate::images;
use crate::memsize::MemSize;
use crate::request::{
    CellWish, DeviceWish, GpuWish, HugePages, PageSize, PinPolicy, Request, VfSettings,
};
use crate::seed::DATA_DISK_SERIAL;
use crate::shell::word;
use crate::storage;
use crate::topology::{DeviceKind, Topology};
use crate::world::World;
use gpuvm_core::placement::ExtraKind;
use serde::Serialize;
use std::path::PathBuf;

/// The option of the most vCPUs.
pub(crate) const MAX_VCPUS: &str = "max-vcpus";

/// The option by which a guest may be moved.
pub(crate) const MOVABLE: &str = "movable";

/// The network of the option `privateIP`.
const PRIVATE_NET: &str = "private-net";

/// What a guest has of something, and what is requested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuestDifference {
    /// The option of `create`, without dashes.
    pub option: String,
    /// What it has.
    pub is: String,
    /// What is requested.
    pub wanted: String,
    /// Whether it can be changed without making the guest anew.
    pub changeable: bool,
}

impl std::fmt::Display for GuestDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let GuestDifference { option, is, wanted, .. } = self;
        write!(f, "{option} {is} -> {wanted}")
    }
}

/// A guest that exists, compared with a request.
#[derive(Debug)]
pub struct Compared {
    /// Name, state and UUID.
    pub summary: DomainSummary,
    /// What differs.
    pub differences: Vec<GuestDifference>,
    /// Whether it is known what it was told while it was made.
    pub is_told: bool,
}

/// Compares the domain of this name, if it is among these, with a request; none: there is no such
/// domain. Errors: gpuvm did not make it.
pub fn compare(
    world: &World,
    (hypervisor, topology, rows): (&dyn Hypervisor, &Topology, &[DomainSummary]),
    (name, wanted): (&str, &CreateRequest),
) -> Result<Option<Compared>> {
    let Some(summary) = rows.iter().find(|row| row.name == name).cloned() else { return Ok(None) };
    let xml = DomainXml::parse(&hypervisor.xml(name, XmlOf::Inactive)?)?;
    let view = View::of(&xml, Some(topology))?;
    let record = view.remembered.as_ref().and_then(|record| record.request.clone());
    let Some(record) = record.filter(|_| !xml.is_copy()) else {
        let message = format!("domain `{name}` exists, and gpuvm did not make it");
        let hint = format!("`gpuvm show {}` shows what it is; choose another name", word(name));
        return Err(classed(Class::Exists, message, hint));
    };
    let place = wanted.guest.place.as_ref().map(|place| place.wanted(topology)).transpose()?;
    let request = place.as_ref().unwrap_or(&wanted.guest.request);
    let mut found = Vec::new();
    sizes(request, &record, (&view, size_now(&xml, &record)), &mut found);
    max_vcpus(request, &record, view.vcpus, &mut found);
    let now = request_now(&xml, topology, &record);
    devices(request, &now, (&view, topology), &mut found);
    // It may run with another size than its next start takes, as after `set`.
    let live = if summary.state.is_active() {
        Some(DomainXml::parse(&hypervisor.xml(name, XmlOf::Live)?)?)
    } else {
        None
    };
    if let Some(live) = &live {
        let vcpus = size_now(live, &record).0;
        let view = View::of(live, Some(topology))?;
        running(request, &record, (&view, vcpus, topology), &mut found);
    }
    shape(request, (&record, &now), &mut found);
    let is = xml.root().attr("type").unwrap_or_default().into_owned();
    differ(&mut found, "virt-type", is, wanted.guest.virt.as_str().to_owned());
    nics::networks(wanted, (&xml, topology), &mut found);
    if let Some(live) = &live {
        nics::running(wanted, (live, topology), &mut found);
    }
    disks(wanted, (&xml, topology), &mut found);
    made_disks(&xml, &mut found);
    gone_disks(&xml, world, &mut found)?;
    let was = history::told(world.state(), &summary.uuid);
    let was = was.map(|was| told_now(was, &xml, hypervisor)).transpose()?;
    if let Some(was) = &was {
        told_at_first((was, has_own_data(&xml)), &told(wanted), &mut found);
    }
    Ok(Some(Compared { summary, differences: found, is_told: was.is_some() }))
}

/// The guest that was asked for by name, if it exists exactly so; an error if it is another one.
pub fn is_there(world: &World, wanted: &CreateRequest) -> Result<Option<DomainSummary>> {
    let NameRequest::Exact(name) = &wanted.guest.name else {
        let message = "--if-absent needs the name of the guest";
        let hint = "`gpuvm create NAME --if-absent`, or --plan FILE of a plan";
        return Err(classed(Class::Usage, message, hint));
    };
    let (hypervisor, topology) = (world.hypervisor()?, world.topology()?);
    let rows = hypervisor.domains()?;
    let found = compare(world, (&*hypervisor, &topology, &rows), (name.as_str(), wanted))?;
    let Some(found) = found else { return Ok(None) };
    if found.differences.is_empty() {
        if !found.is_told {
            let row = &found.summary;
            let why = match world.unread_records_of(&row.name, &row.uuid) {
                None => "not recorded".to_owned(),
                Some(unread) => format!("not known ({unread})"),
            };
            world.note(&format!(
                "what `{name}` was told while it was made is {why}: its image, the size of its \
                 boot disk, its template and its first settings are not compared"
            ));
        }
        return Ok(Some(found.summary));
    }
    let what: Vec<String> = found.differences.iter().map(ToString::to_string).collect();
    let error = CreateError::Differs { name: name.to_string(), what: what.join("; ") };
    let name = word(name.as_str());
    Err(error.hint(format!("`gpuvm show {name}` shows it; choose another --name")))
}

/// Adds a difference that needs another guest.
fn differ(found: &mut Vec<GuestDifference>, option: &str, is: String, wanted: String) {
    if is != wanted {
        found.push(GuestDifference { option: option.to_owned(), is, wanted, changeable: false });
    }
}

/// Adds a difference of functions, which come and go if there are such.
fn other_functions(
    found: &mut Vec<GuestDifference>,
    option: &str,
    (is, wanted): (String, String),
    changeable: bool,
) {
    if is != wanted {
        found.push(GuestDifference { option: option.to_owned(), is, wanted, changeable });
    }
}

/// Pages as options name them.
pub(crate) fn pages_word(pages: Option<MemSize>) -> &'static str {
    match pages {
        Some(size) if size == PageSize::OneGib.size() => "1G",
        Some(_) => "2M",
        None => "off",
    }
}

/// Compares vCPUs, memory and pages.
fn sizes(
    request: &Request,
    record: &Request,
    (view, (vcpus_now, memory_now)): (&View, (u32, MemSize)),
    found: &mut Vec<GuestDifference>,
) {
    let mut change = |option: &str, is: String, wanted: String| {
        found.push(GuestDifference { option: option.to_owned(), is, wanted, changeable: true });
    };
    let vcpus = request.vcpus_at_start.or(request.vcpus);
    if let Some(vcpus) = vcpus.filter(|vcpus| *vcpus != vcpus_now) {
        change("vcpus", vcpus_now.to_string(), vcpus.to_string());
    }
    // What was requested may have been rounded to whole pages, but not further.
    let unit = view.huge_page_kib.unwrap_or_default().max(PageSize::TwoMib.size());
    let is_rounded = |memory: MemSize| {
        record.memory_kib == Some(memory) && memory_now.kib().abs_diff(memory.kib()) < unit.kib()
    };
    if let Some(memory) = request.memory_kib
        && memory != memory_now
        && !is_rounded(memory)
    {
        change("memory", memory_now.typed(), memory.typed());
    }
    let wanted = match request.huge_pages {
        HugePages::Auto => view.huge_page_kib,
        HugePages::Off => None,
        HugePages::Size(page) => Some(page.size()),
    };
    if wanted != view.huge_page_kib {
        change("huge-pages", pages_word(view.huge_page_kib).into(), pages_word(wanted).into());
    }
}

/// Compares how many vCPUs it may have while it runs, of `most`.
fn max_vcpus(request: &Request, record: &Request, most: u32, found: &mut Vec<GuestDifference>) {
    let wanted = request.vcpus_at_start.and(request.vcpus);
    // A request that leaves vCPUs to the planner leaves this, too.
    let has = record.vcpus_at_start.map(|_| most).filter(|_| request.vcpus.is_some());
    if wanted != has {
        let word = |most: Option<u32>| most.map_or("none".to_owned(), |most| most.to_string());
        let (option, is, wanted) = (MAX_VCPUS.to_owned(), word(has), word(wanted));
        found.push(GuestDifference { option, is, wanted, changeable: true });
    }
}

/// Compares the size with which a guest runs with that of its next start.
pub(crate) fn runs_otherwise(
    now: &Request,
    (xml, live): (&DomainXml, &DomainXml),
    topology: &Topology,
) -> Result<Vec<GuestDifference>> {
    let view = View::of(xml, Some(topology))?;
    let (vcpus, memory) = size_now(xml, now);
    let has_room = now.vcpus_at_start.is_some();
    let next = Request {
        vcpus: Some(if has_room { view.vcpus } else { vcpus }),
        vcpus_at_start: has_room.then_some(vcpus),
        memory_kib: Some(memory),
        huge_pages: match view.huge_page_kib {
            None => HugePages::Off,
            Some(size) if size == PageSize::OneGib.size() => HugePages::Size(PageSize::OneGib),
            Some(_) => HugePages::Size(PageSize::TwoMib),
        },
        ..now.clone()
    };
    let (runs, vcpus) = (View::of(live, Some(topology))?, size_now(live, now).0);
    let mut found = Vec::new();
    running(&next, now, (&runs, vcpus, topology), &mut found);
    Ok(found)
}

/// Compares the size with which it runs. What differs at its next start, too, is said once.
fn running(
    request: &Request,
    record: &Request,
    (live, vcpus, topology): (&View, u32, &Topology),
    found: &mut Vec<GuestDifference>,
) {
    let mut now = Vec::new();
    sizes(request, record, (live, (vcpus, live.memory_kib)), &mut now);
    max_vcpus(request, record, live.vcpus, &mut now);
    devices(request, request, (live, topology), &mut now);
    now.retain(|one| one.changeable);
    now.retain(|one| found.iter().all(|known| known.option != one.option));
    found.extend(now);
}

/// Compares passed-through functions; `now`: the request that the guest has.
fn devices(
    request: &Request,
    now: &Request,
    (view, topology): (&View, &Topology),
    found: &mut Vec<GuestDifference>,
) {
    let is_gpu = |bdf: &&Bdf| topology.device(**bdf).is_some_and(|d| d.kind() == DeviceKind::Gpu);
    let gpus: Vec<Bdf> = view.devices.iter().filter(is_gpu).copied().collect();
    let listed = |gpus: &[Bdf]| {
        let words: Vec<String> = gpus.iter().map(ToString::to_string).collect();
        if words.is_empty() { "none".to_owned() } else { words.join(",") }
    };
    let indexes = |indexes: &[usize]| {
        let words: Vec<String> = indexes.iter().map(usize::to_string).collect();
        if words.is_empty() { "none".to_owned() } else { words.join(",") }
    };
    let is_index = |index: &usize| *index < topology.gpus().count();
    let sorted = |mut all: Vec<usize>| {
        all.sort_unstable();
        all
    };
    match &request.gpus {
        GpuWish::Count(number) => {
            if gpus.len() != *number as usize {
                let (option, is) = ("gpus".to_owned(), gpus.len().to_string());
                let wanted = number.to_string();
                found.push(GuestDifference { option, is, wanted, changeable: true });
            }
        }
        GpuWish::Run { first, count } => {
            let run: Vec<usize> =
                (*first..first.saturating_add(*count)).map(|i| i as usize).collect();
            let words = (indexes(&view.gpus), indexes(&run));
            other_functions(found, "gpu-index", words, run.iter().all(is_index));
        }
        GpuWish::Indexes(wanted) => {
            let wanted = sorted(wanted.iter().map(|&index| index as usize).collect());
            let words = (indexes(&view.gpus), indexes(&wanted));
            other_functions(found, "gpu", words, wanted.iter().all(is_index));
        }
        GpuWish::Exact(wanted) => {
            let (mut is, mut wanted) = (gpus, wanted.clone());
            is.sort_unstable();
            wanted.sort_unstable();
            let are_gpus = wanted.iter().all(|bdf| is_gpu(&bdf));
            other_functions(found, "gpu", (listed(&is), listed(&wanted)), are_gpus);
        }
    }
    let (is, wanted) = (&now.extras, &request.extras);
    for (option, is, wanted) in [
        ("nic", &is.nics, &wanted.nics),
        ("vf", &is.vfs, &wanted.vfs),
        ("nvme", &is.nvmes, &wanted.nvmes),
    ] {
        let has: Vec<Bdf> = match wanted {
            DeviceWish::Exact(bdfs) => {
                bdfs.iter().copied().filter(|bdf| view.devices.contains(bdf)).collect()
            }
            DeviceWish::Count(_) => Vec::new(),
        };
        let (is, wanted) = match wanted {
            DeviceWish::Exact(bdfs) if has.len() < bdfs.len() => (listed(&has), listed(bdfs)),
            _ => (is.number().to_string(), wanted.number().to_string()),
        };
        other_functions(found, option, (is, wanted), true);
    }
    let is_vf = |bdf: &&Bdf| topology.device(**bdf).and_then(ExtraKind::of) == Some(ExtraKind::Vf);
    for vf in view.devices.iter().filter(is_vf) {
        let (has, said) = (is.settings_of(*vf), wanted.settings_of(*vf));
        let word = |settings: VfSettings| format!("{vf}{settings}");
        if found.iter().all(|one| one.option != "vf") {
            other_functions(found, "vf", (word(has.clone()), word(has.over(&said))), true);
        }
    }
}

/// Compares how its CPU is pinned and shown with what is requested; where that leaves it open, with
/// its record: `tune` changes that too, and others do not.
fn shape(request: &Request, (record, now): (&Request, &Request), found: &mut Vec<GuestDifference>) {
    let text = |value: String| value.to_ascii_lowercase();
    let pins = match request.pins {
        PinPolicy::Auto if record.pins == PinPolicy::Auto => now.pins,
        PinPolicy::Auto => record.pins,
        pins => pins,
    };
    let (is, wanted) = (format!("{:?}", now.pins), format!("{pins:?}"));
    differ(found, "pins", text(is), text(wanted));
    let cells = match request.cells {
        CellWish::Auto => record.cells,
        cells @ CellWish::Count(_) => cells,
    };
    let word = |cells: CellWish| match cells {
        CellWish::Auto => "auto".to_owned(),
        CellWish::Count(number) => number.to_string(),
    };
    differ(found, "cells", word(now.cells), word(cells));
    let threads = request.threads.or(record.threads);
    let word = |threads: Option<u32>| threads.map_or("auto".to_owned(), |t| t.to_string());
    differ(found, "threads", word(now.threads), word(threads));
    let (is, wanted) = (format!("{:?}", record.profile), format!("{:?}", request.profile));
    differ(found, "profile", text(is), text(wanted));
    let word = |on: bool| if on { "on" } else { "off" }.to_owned();
    differ(found, "p2p-clique", word(record.p2p_clique), word(request.p2p_clique));
    let ports = |request: &Request| request.spare_ports.unwrap_or(SPARE_PORTS).to_string();
    differ(found, "spare-ports", ports(record), ports(request));
    let (is, wanted) = (word(record.movable), word(request.movable));
    if is != wanted {
        found.push(GuestDifference { option: MOVABLE.to_owned(), is, wanted, changeable: true });
    }
}

/// Compares the disks that were named, and looks for others that were neither named nor made for
/// it.
fn disks(
    wanted: &CreateRequest,
    (xml, topology): (&DomainXml, &Topology),
    found: &mut Vec<GuestDifference>,
) {
    let there = disk_paths(xml);
    let has = |path: &str| there.iter().any(|disk| disk == path);
    let storage = &wanted.storage;
    let mut named: Vec<String> = Vec::new();
    let disks = storage.disk.iter().map(|path| ("disk", path));
    for (option, path) in disks.chain(storage.add_disk.iter().map(|path| ("add-disk", path))) {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let path = path.to_string_lossy().into_owned();
        if !has(&path) {
            differ(found, option, "no such disk".into(), path.clone());
        }
        named.push(path);
    }
    for (option, dir, ids) in [
        ("drive", "/dev/disk/by-id/", &storage.drive),
        ("partition", "/dev/disk/by-partuuid/", &storage.partition),
    ] {
        for id in ids.iter().filter(|id| !has(id) && !has(&format!("{dir}{id}"))) {
            differ(found, option, "no such disk".into(), id.clone());
        }
        named.extend(ids.iter().flat_map(|id| [id.clone(), format!("{dir}{id}")]));
    }
    // Those of its template are not known where it is not there any more.
    let Ok(template) = template_of(&wanted.guest, topology) else { return };
    named.extend(disk_paths(&template));
    let made = xml.made();
    let devices = xml.root().children("devices");
    for disk in devices.flat_map(|devices| devices.children("disk")) {
        let is_made = made.iter().any(|made| is_on(disk, made));
        let path = path_of(disk).filter(|path| !is_made && !named.contains(path));
        if let Some(path) = path {
            differ(found, "add-disk", path, "no such disk".into());
        }
    }
}

/// What the disks of a definition are on, but for media that can be changed.
fn disk_paths(xml: &DomainXml) -> Vec<String> {
    let devices = xml.root().children("devices");
    devices.flat_map(|devices| devices.children("disk")).filter_map(path_of).collect()
}

/// What a disk is on; none: no medium, or one that can be changed.
pub(crate) fn path_of(disk: Element<'_>) -> Option<String> {
    let is_fixed = disk.attr("device").is_none_or(|device| device == "disk" || device == "lun");
    source_of(disk).filter(|_| is_fixed)
}

/// Looks whether the disks that were made for it are still its own; its seed may be gone.
fn made_disks(xml: &DomainXml, found: &mut Vec<GuestDifference>) {
    let devices = xml.root().children("devices");
    let disks: Vec<Element<'_>> = devices.flat_map(|devices| devices.children("disk")).collect();
    for made in xml.made() {
        let option = match made.role {
            Role::Os => "os-disk",
            Role::Data => "data-size",
            Role::Seed | Role::Base => continue,
        };
        if !disks.iter().any(|disk| is_on(*disk, &made)) {
            differ(found, option, "no such disk".into(), made.path);
        }
    }
}

/// Looks whether the files of the disks that were made for it are there, on this machine; its seed
/// may be gone.
fn gone_disks(xml: &DomainXml, world: &World, found: &mut Vec<GuestDifference>) -> Result<()> {
    if !world.has_guests_here()? {
        return Ok(());
    }
    for Made { role, path, .. } in xml.made() {
        let option = match role {
            Role::Os => "os-disk",
            Role::Data => "data-size",
            Role::Seed | Role::Base => continue,
        };
        let is_gone = |error: std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
        let is_known = found.iter().any(|one| one.option == option && one.wanted == path);
        if !is_known && std::fs::symlink_metadata(&path).is_err_and(is_gone) {
            differ(found, option, "no such file".into(), path);
        }
    }
    Ok(())
}

/// Whether a disk is the data disk that `create` made, not one that `disk add` did.
pub(crate) fn is_own_data(disk: Element<'_>) -> bool {
    disk.child("serial").is_some_and(|serial| serial.text().trim() == DATA_DISK_SERIAL)
}

/// Whether a guest has the data disk that `create` made; one that others took away is still its
/// own, and missed.
pub(crate) fn has_own_data(xml: &DomainXml) -> bool {
    own_data(xml).is_some()
}

/// The record of the data disk that `create` made; none: it made none, or `disk remove` took it.
fn own_data(xml: &DomainXml) -> Option<Made> {
    let is_it = |made: &Made| {
        let mut on = xml.disks().filter(|disk| is_on(*disk, made)).peekable();
        made.role == Role::Data && (on.peek().is_none() || on.any(is_own_data))
    };
    xml.made().into_iter().find(is_it)
}

/// Whether a disk is on a file or volume, or on one that is above it, such as a snapshot's.
pub(crate) fn is_on(disk: Element<'_>, made: &Made) -> bool {
    let is_it = |source: Element<'_>| {
        let is = |name: &str, value: &str| source.attr(name).is_some_and(|is| is == value);
        let of = |volume: &VolumeRef| is("pool", &volume.pool) && is("volume", &volume.name);
        ["file", "dev"].into_iter().any(|name| is(name, &made.path))
            || made.volume.as_ref().is_some_and(of)
    };
    disk.child("source").is_some_and(is_it)
        || disk.child("backingStore").is_some_and(|below| is_on(below, made))
}

/// Options that count only while a guest is made, as they were and as they are.
pub const AT_FIRST: [&str; 20] = [
    "template",
    "image",
    "image-pool",
    "os-disk",
    "os-size",
    "pool",
    "disk-dir",
    "data-size",
    "data-dir",
    "preallocate",
    "ssh-key",
    "user",
    "password-hash",
    "user-data",
    "meta-data",
    "network-config",
    "no-agent",
    "no-nccl",
    "nccl",
    "no-seed",
];

/// Compares what the guest was told when it was made; `has_data`: it has a data disk.
fn told_at_first((was, has_data): (&Told, bool), now: &Told, found: &mut Vec<GuestDifference>) {
    let text = |values: &[String]| match values {
        [] => "default".to_owned(),
        values => values.join(","),
    };
    for option in AT_FIRST {
        let values = |told: &Told| told.get(option).cloned().unwrap_or_default();
        let (was, now) = (values(was), values(now));
        // Where no image is named, any will do; the share of a data disk may have been none.
        let is_open = match option {
            "image" => now.is_empty(),
            "data-size" => was.is_empty() && now == ["none"] && !has_data,
            _ => false,
        };
        if !is_open && meant(option, &was) != meant(option, &now) {
            differ(found, option, text(&was), text(&now));
        }
    }
}

/// What the values of an option mean: the same for the same size or path, empty for its default.
fn meant(option: &str, values: &[String]) -> Vec<String> {
    let default = match option {
        "image-pool" => images::POOL,
        "os-disk" => "clone",
        "os-size" => "50G",
        "pool" => storage::POOL,
        "preallocate" => "reserve",
        "nccl" => "link",
        "no-agent" | "no-nccl" | "no-seed" => "false",
        _ => "",
    };
    let paths = [
        "template",
        "disk-dir",
        "data-dir",
        "ssh-key",
        "password-hash",
        "user-data",
        "meta-data",
        "network-config",
    ];
    let one = |value: &String| match option {
        "os-size" | "data-size" => value.parse().map_or_else(|_| value.clone(), MemSize::typed),
        option if paths.contains(&option) => {
            let path = std::path::absolute(value).unwrap_or_else(|_| PathBuf::from(value));
            let parts: PathBuf = path.components().collect();
            parts.to_string_lossy().into_owned()
        }
        _ => value.clone(),
    };
    let values: Vec<String> = values.iter().map(one).collect();
    if values == [default] { Vec::new() } else { values }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_the_same_is_no_difference() {
        let file = |fields: &[(&str, &[&str])]| {
            let field = |(option, values): &(&str, &[&str])| {
                ((*option).to_owned(), values.iter().map(ToString::to_string).collect())
            };
            fields.iter().map(field).collect::<Told>()
        };
        let differs = |was: &[(&str, &[&str])], now: &[(&str, &[&str])]| {
            let mut found = Vec::new();
            told_at_first((&file(was), false), &file(now), &mut found);
            found.len()
        };
        for (option, was, now) in [
            ("os-size", &["16M"][..], &["16384K"][..]),
            ("os-size", &[], &["51200M"]),
            ("data-size", &["1G"], &["1024M"]),
            ("no-seed", &[], &["false"]),
            ("ssh-key", &[], &[]),
            ("ssh-key", &["/k//a.pub"], &["/k/./a.pub"]),
            ("disk-dir", &["/d"], &["/d/"]),
            ("image", &[], &[]),
            ("image", &["noble"], &[]),
            ("data-size", &[], &["none"]),
            ("os-disk", &[], &["clone"]),
            ("preallocate", &["reserve"], &[]),
            ("pool", &[], &[storage::POOL]),
        ] {
            assert_eq!(differs(&[(option, was)], &[(option, now)]), 0, "{option} {was:?} {now:?}");
        }
        for (option, was, now) in [
            ("os-size", &["16M"][..], &["16G"][..]),
            ("os-size", &[], &["16M"]),
            ("data-size", &["none"], &[]),
            ("no-seed", &["true"], &["false"]),
            ("disk-dir", &["/d"], &["/e"]),
            ("user", &["a"], &[]),
            ("template", &["/t.xml"], &[]),
            ("image", &["a"], &["b"]),
        ] {
            assert_eq!(differs(&[(option, was)], &[(option, now)]), 1, "{option} {was:?} {now:?}");
        }
    }

    #[test]
    fn disks_that_were_made_are_looked_for() {
        let of = |source: &str| {
            let xml = format!(
                "<domain type='kvm'><name>a</name><metadata><g:guest \
                 xmlns:g='urn:gpuvm:domain:1'><g:made>\
                 <g:disk role='os' path='/d/a.raw'/><g:disk role='seed' \
                 path='/d/a.seed'/></g:made></g:guest>\
                 </metadata><devices><disk type='file'>{source}</disk></devices></domain>"
            );
            let mut found = Vec::new();
            made_disks(&DomainXml::parse(&xml).unwrap(), &mut found);
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of("<source file='/d/a.raw'/>"), [""; 0]);
        let above =
            "<source file='/d/a.snap'/><backingStore><source file='/d/a.raw'/></backingStore>";
        assert_eq!(of(above), [""; 0]);
        assert_eq!(of("<source file='/d/b.raw'/>"), ["os-disk no such disk -> /d/a.raw"]);
    }
}
