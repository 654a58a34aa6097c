//! A guest that exists, in the words of a file that `apply` takes.

use super::vcpus::comes_at_once;
use crate::bdf::Bdf;
use crate::compare::{
    AT_FIRST, GuestDifference, MAX_VCPUS, has_own_data, is_on, is_own_data, pages_word, path_of,
    request_now, runs_otherwise, size_now, told_now,
};
use crate::create::{ACCEPTED, ACCEPTED_BACKING, Told};
use crate::domain::disk_change::path_of as local_path_of;
use crate::domain::guest::{Role, VirtType};
use crate::domain::nics::usual_queues;
use crate::domain::view::View;
use crate::domain::wish::{NicModel, NicSettings};
use crate::domain::{DomainXml, Element};
use crate::error::{Class, Result, classed};
use crate::guest::find;
use crate::history::guest::told;
use crate::hypervisor::{DomainSummary, Hypervisor, XmlOf};
use crate::request::{
    CellWish, DeviceWish, GpuWish, L3Wish, Near, PinPolicy, Policy, Prefer, Profile, Request,
    VfSettings,
};
use crate::shell::word;
use crate::topology::Topology;
use crate::world::World;
use serde_json::Value;

/// The option of the data disk's size.
const DATA_SIZE: &str = "data-size";
/// Options that take no value.
const SWITCHES: [&str; 3] = ["no-agent", "no-nccl", "no-seed"];

/// A field of a described guest: an option of `create` without its dashes, or `name` or
/// `autostart`.
pub type Field = (&'static str, Value);

/// A guest in the words of a file.
#[derive(Debug)]
pub struct Described {
    /// Its name.
    pub name: String,
    /// Its fields, in the order in which they are printed.
    pub fields: Vec<Field>,
    /// Whether it is known what it was told while it was made.
    pub is_told: bool,
    /// Why that may be recorded where this run does not read; none: it reads all records.
    pub unread: Option<String>,
    /// Whether its definition has a disk.
    pub has_disk: bool,
    /// Its disks that no option of `create` makes: volumes named by their pool, disks on a network.
    pub other_disks: Vec<String>,
    /// What it runs with otherwise than its next start, which the fields are of.
    pub runs: Vec<GuestDifference>,
    /// Whether `apply` gives it that at once, without a restart.
    pub at_once: bool,
}

/// Describes a guest that gpuvm made.
pub fn describe(world: &World, name: &str) -> Result<Described> {
    let hypervisor = world.hypervisor()?;
    let summary = find(&*hypervisor, name)?;
    let described = of(world, (&*hypervisor, &world.topology()?), &summary)?;
    described.ok_or_else(|| {
        let message =
            format!("gpuvm did not make domain `{name}`, so what was requested is unknown");
        classed(Class::Refused, message, format!("`gpuvm show {}` shows what it is", word(name)))
    })
}

/// Describes all guests that gpuvm made, by name.
pub fn describe_all(world: &World) -> Result<Vec<Described>> {
    let (hypervisor, topology) = (world.hypervisor()?, world.topology()?);
    let mut rows = hypervisor.domains()?;
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    let mut all = Vec::new();
    for row in rows {
        all.extend(of(world, (&*hypervisor, &topology), &row)?);
    }
    Ok(all)
}

/// Describes a domain; none: gpuvm did not make it.
fn of(
    world: &World,
    (hypervisor, topology): (&dyn Hypervisor, &Topology),
    summary: &DomainSummary,
) -> Result<Option<Described>> {
    let xml = DomainXml::parse(&hypervisor.xml(&summary.name, XmlOf::Inactive)?)?;
    let view = View::of(&xml, Some(topology))?;
    let record = view.remembered.as_ref().and_then(|record| record.request.clone());
    let Some(record) = record.filter(|_| !xml.is_copy()) else { return Ok(None) };
    let now = request_now(&xml, topology, &record);
    let (vcpus, memory) = size_now(&xml, &record);
    let mut fields: Vec<Field> = vec![("name", summary.name.clone().into())];
    gpus(&now, &mut fields);
    devices(&now, &mut fields);
    fields.push(("vcpus", vcpus.into()));
    if record.vcpus_at_start.is_some() {
        fields.push((MAX_VCPUS, view.vcpus.into()));
    }
    fields.push(("memory", memory.typed().into()));
    fields.push(("huge-pages", pages_word(view.huge_page_kib).into()));
    shape(&now, &mut fields);
    if xml.root().attr("type").as_deref() == Some(VirtType::Qemu.as_str()) {
        fields.push(("virt-type", VirtType::Qemu.as_str().into()));
    }
    networks(&xml, view.vcpus, &mut fields);
    let other_disks = disks(&xml, &mut fields);
    let told = told(world.state(), &summary.uuid);
    let told = told.map(|told| told_now(told, &xml, hypervisor)).transpose()?;
    if let Some(told) = &told {
        if told.get(ACCEPTED).is_some_and(|values| values == &["true"]) {
            fields.push((ACCEPTED, true.into()));
        }
        let accepted = told.get(ACCEPTED_BACKING).cloned();
        list(&mut fields, ACCEPTED_BACKING, accepted.unwrap_or_default());
        told_fields(told, &mut fields);
        let is_share = now.gpus.number() > 0 && !told.contains_key(DATA_SIZE);
        if is_share && !has_own_data(&xml) {
            fields.push((DATA_SIZE, "none".into()));
        }
    }
    if hypervisor.autostart(&summary.name)? {
        fields.push(("autostart", true.into()));
    }
    let (runs, at_once) = if summary.state.is_active() {
        let live = DomainXml::parse(&hypervisor.xml(&summary.name, XmlOf::Live)?)?;
        let runs = runs_otherwise(&now, (&xml, &live), topology)?;
        let at_once = comes_at_once(&runs, (summary, &live), vcpus);
        (runs, at_once)
    } else {
        (Vec::new(), false)
    };
    let (name, is_told) = (summary.name.clone(), told.is_some());
    let has_disk = xml.disks().any(|disk| path_of(disk).is_some());
    let unread = if is_told { None } else { world.unread_records_of(&summary.name, &summary.uuid) };
    Ok(Some(Described { name, fields, is_told, unread, has_disk, other_disks, runs, at_once }))
}

/// Adds what it was told while it was made.
fn told_fields(told: &Told, fields: &mut Vec<Field>) {
    for option in AT_FIRST {
        match told.get(option).map(Vec::as_slice) {
            None | Some([]) => {}
            Some([one]) if SWITCHES.contains(&option) => {
                fields.push((option, (one == "true").into()));
            }
            Some([one]) => fields.push((option, one.clone().into())),
            Some(several) => list(fields, option, several.to_vec()),
        }
    }
}

/// Adds a list, unless it is empty.
fn list(fields: &mut Vec<Field>, option: &'static str, values: Vec<String>) {
    if !values.is_empty() {
        fields.push((option, values.into()));
    }
}

/// Adds which GPUs it requests.
fn gpus(record: &Request, fields: &mut Vec<Field>) {
    match &record.gpus {
        GpuWish::Count(0) => {}
        GpuWish::Count(number) => fields.push(("gpus", (*number).into())),
        GpuWish::Run { first, count } => {
            fields.extend([("gpus", (*count).into()), ("gpu-index", (*first).into())]);
        }
        GpuWish::Indexes(indexes) => {
            list(fields, "gpu", indexes.iter().map(u32::to_string).collect());
        }
        GpuWish::Exact(bdfs) => list(fields, "gpu", bdfs.iter().map(Bdf::to_string).collect()),
    }
    if let Some(model) = &record.gpu_model {
        fields.push(("gpu-model", model.clone().into()));
    }
}

/// Adds its NICs, virtual functions and NVMe drives.
fn devices(record: &Request, fields: &mut Vec<Field>) {
    let extras = &record.extras;
    let words = |wish: &DeviceWish| match wish {
        DeviceWish::Count(0) => Vec::new(),
        DeviceWish::Count(number) => vec![number.to_string()],
        DeviceWish::Exact(bdfs) => bdfs.iter().map(Bdf::to_string).collect(),
    };
    list(fields, "nic", words(&extras.nics));
    let with_settings = |(at, mut word): (usize, String)| {
        if let Some(settings) = extras.vf_settings.get(at) {
            word += &vf_words(settings);
        }
        word
    };
    let vfs = words(&extras.vfs).into_iter().enumerate().map(with_settings);
    list(fields, "vf", vfs.collect());
    list(fields, "nvme", words(&extras.nvmes));
    for (option, near) in [("nic-near", extras.nic_near), ("nvme-near", extras.nvme_near)] {
        match near {
            Near::Any => {}
            Near::Switch => fields.push((option, "switch".into())),
            Near::Node => fields.push((option, "node".into())),
        }
    }
}

/// The settings of a virtual function as the option `vf` takes them.
fn vf_words(settings: &VfSettings) -> String {
    let on = |name: &str, value: Option<bool>| {
        value.map(|on| format!(",{name}={}", if on { "on" } else { "off" })).unwrap_or_default()
    };
    let mut words = settings.vlan.map(|vlan| format!(",vlan={vlan}")).unwrap_or_default();
    words += &on("trust", settings.guard.trust);
    words += &on("spoof", settings.guard.spoof);
    words + &settings.mac.as_ref().map(|mac| format!(",mac={mac}")).unwrap_or_default()
}

/// Adds how its CPU is pinned and shown, and how its place was chosen.
fn shape(record: &Request, fields: &mut Vec<Field>) {
    match record.pins {
        PinPolicy::Auto => {}
        // The profile has pins of its own.
        PinPolicy::Core | PinPolicy::Thread if record.profile == Profile::NvidiaVm => {}
        PinPolicy::Core => fields.push(("pins", "core".into())),
        PinPolicy::Thread => fields.push(("pins", "thread".into())),
        PinPolicy::None => fields.push(("pins", "none".into())),
    }
    if let CellWish::Count(cells) = record.cells {
        fields.push(("cells", cells.into()));
    }
    if let Some(threads) = record.threads {
        fields.push(("threads", threads.into()));
    }
    match record.profile {
        Profile::Share => {}
        Profile::Near => fields.push(("profile", "near".into())),
        Profile::NvidiaVm => fields.push(("profile", "nvidia-vm".into())),
    }
    if record.reserve.cores > 0 {
        fields.push(("reserve-cores", record.reserve.cores.into()));
    }
    if let Some(memory) = record.reserve.memory_kib {
        fields.push(("reserve-memory", memory.typed().into()));
    }
    let allow = [("remote", record.allow.remote), ("split", record.allow.split)];
    let allow = allow.into_iter().filter(|(_, is_allowed)| *is_allowed);
    list(fields, "allow", allow.map(|(rule, _)| rule.to_owned()).collect());
    if record.policy == Policy::Spread {
        fields.push(("policy", "spread".into()));
    }
    match record.prefer {
        Prefer::Auto => {}
        Prefer::Nic => fields.push(("prefer", "nic".into())),
        Prefer::Package => fields.push(("prefer", "package".into())),
    }
    if record.l3 == L3Wish::Large {
        fields.push(("l3", "large".into()));
    }
    if record.p2p_clique {
        fields.push(("p2p-clique", true.into()));
    }
    if let Some(ports) = record.spare_ports {
        fields.push(("spare-ports", ports.into()));
    }
    if record.movable {
        fields.push(("movable", true.into()));
    }
}

/// Adds its NICs on networks, with what is set on them; those on bridges and interfaces are its
/// template's.
fn networks(xml: &DomainXml, vcpus: u32, fields: &mut Vec<Field>) {
    let devices = xml.root().children("devices");
    let nics = devices.flat_map(|devices| devices.children("interface"));
    let told = |nic: Element<'_>| {
        let network = nic.child("source")?.attr("network")?;
        let mut settings = NicSettings::of(nic);
        settings.model = settings.model.filter(|model| *model != NicModel::Virtio);
        settings.queues = settings.queues.filter(|queues| *queues != usual_queues(vcpus));
        Some(format!("{network}{}", settings.keys()))
    };
    list(fields, "network", nics.filter_map(told).collect());
}

/// Adds its disks, but for those that `create` makes by itself: those that it boots from, or that it
/// has besides, whoever made them. Returns those that no option makes.
fn disks(xml: &DomainXml, fields: &mut Vec<Field>) -> Vec<String> {
    let made = xml.made();
    let is_named = |disk: &Element<'_>| {
        let own = made.iter().find(|made| is_on(*disk, made));
        own.is_none_or(|made| made.role == Role::Data && !is_own_data(*disk))
    };
    let named = xml.disks().filter(is_named).filter(|disk| path_of(*disk).is_some());
    let (given, other): (Vec<_>, Vec<_>) = named.partition(|disk| local_path_of(*disk).is_some());
    let given: Vec<String> = given.into_iter().filter_map(local_path_of).collect();
    let other = other.into_iter().filter_map(path_of).collect();
    let below = |dir: &str| {
        let of = |path: &String| path.strip_prefix(dir).map(str::to_owned);
        given.iter().filter_map(of).collect::<Vec<_>>()
    };
    let (drives, partitions) = (below("/dev/disk/by-id/"), below("/dev/disk/by-partuuid/"));
    let plain = given.iter().filter(|path| !path.starts_with("/dev/disk/")).cloned().collect();
    let boots_from_made = made.iter().any(|made| made.role == Role::Os);
    list(fields, if boots_from_made { "add-disk" } else { "disk" }, plain);
    list(fields, "drive", drives);
    list(fields, "partition", partitions);
    other
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_without_a_path_are_told_apart() {
        let xml = "<domain type='kvm'><name>a</name><devices><disk type='file'><source \
                   file='/d/a.raw'/></disk><disk type='volume'><source pool='p' \
                   volume='v'/></disk><disk type='network'><source protocol='rbd' \
                   name='r/i'/></disk><disk type='network'><source protocol='http' \
                   name='/x.img'/></disk><disk type='network'><source protocol='nbd'><host \
                   name='h'/></source></disk><disk type='nvme'><source type='pci' \
                   namespace='1'/></disk><disk type='file' \
                   device='disk'/></devices></domain>";
        let mut fields = Vec::new();
        let other = disks(&DomainXml::parse(xml).unwrap(), &mut fields);
        assert_eq!(other, ["p/v", "r/i", "/x.img", "nbd", "nvme"]);
        assert_eq!(fields, [("disk", vec!["/d/a.raw"].into())]);
    }
}
