//! A guest that exists, in the words of a file that `apply` takes.

use super::vcpus::comes_at_once;
use crate::compare::{AT_FIRST, has_own_data, is_on, is_own_data, options_now, path_of};
use crate::create::CreationOptions;
use crate::domain::disk_change::path_of as local_path_of;
use crate::domain::guest::{Role, VirtType};
use crate::domain::nic_request::{NicModel, NicSettings};
use crate::domain::nics::usual_queues;
use crate::domain::view::View;
use crate::domain::{DomainXml, Element};
use crate::error::{Class, Result, classed};
use crate::history::guest::{accepts_shared_fabric, creation_options};
use crate::hypervisor::{DomainSummary, Hypervisor, XmlOf};
use crate::lookup::{find, refuse_unread};
use crate::shell::word;
use crate::topology::Topology;
use crate::world::World;
use gpuvm_core::guest::{self, Found, GuestDifference, Opt, Shape, now, options, running};
use serde_json::Value;

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
    /// Whether its creation options are known.
    pub is_told: bool,
    /// Why that may be recorded where this run does not read; `None` if it reads all records.
    pub unread: Option<String>,
    /// Whether its definition has a NIC.
    pub has_nic: bool,
    /// Whether its definition has a disk.
    pub has_disk: bool,
    /// Its disks that no option of `create` makes: volumes named by their pool, disks on a network.
    pub other_disks: Vec<String>,
    /// Settings that it runs with and that differ from its next start, which the fields are of.
    pub runs: Vec<GuestDifference>,
    /// Whether `apply` gives it that at once, without a restart.
    pub at_once: bool,
}

/// Describes a guest that gpuvm made.
pub fn describe(world: &World, name: &str) -> Result<Described> {
    let hypervisor = world.hypervisor()?;
    let summary = find(&*hypervisor, name)?;
    let xml = DomainXml::parse(&hypervisor.xml(name, XmlOf::Inactive)?)?;
    refuse_unread(&xml)?;
    let described = of(world, &*hypervisor, &world.topology()?, (&summary, &xml))?;
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
        let xml = DomainXml::parse(&hypervisor.xml(&row.name, XmlOf::Inactive)?)?;
        if let Err(error) = refuse_unread(&xml) {
            world.warning(&error.whole());
            continue;
        }
        all.extend(of(world, &*hypervisor, &topology, (&row, &xml))?);
    }
    Ok(all)
}

/// Describes a domain; `None` if gpuvm did not make it.
fn of(
    world: &World,
    hypervisor: &dyn Hypervisor,
    topology: &Topology,
    (summary, xml): (&DomainSummary, &DomainXml),
) -> Result<Option<Described>> {
    let view = View::of(xml, Some(topology))?;
    let record = view.remembered.as_ref().and_then(|record| record.request.clone());
    let Some(record) = record.filter(|_| !xml.is_copy()) else { return Ok(None) };
    let now = now(xml, topology, &record);
    let sized = now.sized();
    let mut fields: Vec<Field> = vec![("name", summary.name.clone().into())];
    fields.extend(options(&sized).into_iter().map(field));
    if xml.root().attr("type").as_deref() == Some(VirtType::Qemu.as_str()) {
        fields.push(text(Opt::VirtType, VirtType::Qemu.as_str()));
    }
    networks(xml, view.vcpus, &mut fields);
    let other_disks = disks(xml, &mut fields);
    let recorded = creation_options(world.state(), &summary.uuid);
    let recorded = recorded.map(|recorded| options_now(recorded, xml, hypervisor)).transpose()?;
    if let Some(recorded) = &recorded {
        option_fields(recorded, &mut fields);
        let is_share = sized.gpus.number() > 0 && !recorded.contains_key(Opt::DataSize.field());
        if is_share && !has_own_data(xml) {
            fields.push(text(Opt::DataSize, "none"));
        }
    } else if accepts_shared_fabric(world.state(), &summary.uuid) {
        fields.push((Opt::AcceptSharedFabric.field(), true.into()));
    }
    if hypervisor.autostart(&summary.name)? {
        fields.push(field((Opt::Autostart, Vec::new())));
    }
    let (runs, at_once) = if summary.state.is_active() {
        let live = DomainXml::parse(&hypervisor.xml(&summary.name, XmlOf::Live)?)?;
        let mut runs = Found::default();
        let runs_with = guest::now(&live, topology, &now.request);
        running(&sized, &now.request, &runs_with, topology, &mut runs);
        let at_once = comes_at_once(&runs.0, summary, &live, now.vcpus);
        let runs = runs.0;
        (runs, at_once)
    } else {
        (Vec::new(), false)
    };
    let (name, is_told) = (summary.name.clone(), recorded.is_some());
    let mut devices = xml.root().children("devices");
    let has_nic = devices.any(|devices| devices.child("interface").is_some());
    let has_disk = xml.disks().any(|disk| path_of(disk).is_some());
    let unread = if is_told { None } else { world.unread_records_of(&summary.name, &summary.uuid) };
    Ok(Some(Described {
        name,
        fields,
        is_told,
        unread,
        has_nic,
        has_disk,
        other_disks,
        runs,
        at_once,
    }))
}

/// Adds its creation options.
fn option_fields(recorded: &CreationOptions, fields: &mut Vec<Field>) {
    for option in [Opt::AcceptSharedFabric, Opt::AcceptBacking].into_iter().chain(AT_FIRST) {
        let values = recorded.get(option.field()).cloned().unwrap_or_default();
        if values.is_empty() {
            continue;
        }
        fields.push(match (option.shape(), &values[..]) {
            (Shape::Switch, [one]) => (option.field(), (one == "true").into()),
            (_, [one]) if option != Opt::AcceptBacking => text(option, one),
            _ => (option.field(), values.into()),
        });
    }
}

fn field((opt, mut values): (Opt, Vec<String>)) -> Field {
    let number = |text: &str| text.parse::<u64>().map_or_else(|_| text.into(), Value::from);
    let value = match (opt.shape(), &mut values[..]) {
        (Shape::Switch, _) => true.into(),
        (Shape::Number, [one]) => number(one),
        (Shape::Text, [one]) => std::mem::take(one).into(),
        _ => values.into(),
    };
    (opt.field(), value)
}

/// An option with one value as a field.
fn text(opt: Opt, value: &str) -> Field {
    (opt.field(), value.into())
}

/// Adds a list, unless it is empty.
fn list(fields: &mut Vec<Field>, option: Opt, values: Vec<String>) {
    if !values.is_empty() {
        fields.push((option.field(), values.into()));
    }
}

/// Adds its NICs on networks, with their settings; those on bridges and interfaces are its
/// template's.
fn networks(xml: &DomainXml, vcpus: u32, fields: &mut Vec<Field>) {
    let devices = xml.root().children("devices");
    let nics = devices.flat_map(|devices| devices.children("interface"));
    let text_of = |nic: Element<'_>| {
        let network = nic.child("source")?.attr("network")?;
        let mut settings = NicSettings::of(nic);
        settings.model = settings.model.filter(|model| *model != NicModel::Virtio);
        settings.queues = settings.queues.filter(|queues| *queues != usual_queues(vcpus));
        Some(format!("{network}{}", settings.keys()))
    };
    list(fields, Opt::Network, nics.filter_map(text_of).collect());
}

/// Adds its disks, except for those that `create` makes by itself: those that it boots from, and
/// further ones, whoever made them. Returns those that no option makes.
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
    let boots_from_made = made.iter().any(|made| made.role == Role::Os);
    // `create` puts a data disk between those of --disk and those of --add-disk.
    let data = xml.disks().position(is_own_data);
    let after: Vec<String> = match data {
        Some(data) => xml.disks().skip(data).filter_map(local_path_of).collect(),
        None => Vec::new(),
    };
    let plain = given.iter().filter(|path| !path.starts_with("/dev/disk/")).cloned();
    let (added, named): (Vec<String>, Vec<String>) =
        plain.partition(|path| boots_from_made || after.contains(path));
    list(fields, Opt::Disk, named);
    list(fields, Opt::AddDisk, added);
    list(fields, Opt::Drive, drives);
    list(fields, Opt::Partition, partitions);
    other
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::DATA_DISK_SERIAL;

    #[test]
    fn disks_without_a_path_are_distinguished() {
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

    #[test]
    fn disks_after_the_made_data_disk_were_added() {
        let disk = |name: &str| {
            let serial = if name == "data" { DATA_DISK_SERIAL } else { name };
            format!("<disk type='file'><source file='/d/{name}'/><serial>{serial}</serial></disk>")
        };
        let xml = format!(
            "<domain type='kvm'><name>a</name><metadata><g:guest xmlns:g='urn:gpuvm:domain:1'>\
             <g:made><g:disk path='/d/data' role='data'/></g:made></g:guest></metadata>\
             <devices>{}{}{}</devices></domain>",
            disk("x"),
            disk("data"),
            disk("y")
        );
        let mut fields = Vec::new();
        disks(&DomainXml::parse(&xml).unwrap(), &mut fields);
        let wanted = [("disk", vec!["/d/x"].into()), ("add-disk", vec!["/d/y"].into())];
        assert_eq!(fields, wanted);
    }
}
