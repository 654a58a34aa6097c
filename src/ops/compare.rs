//! A guest that exists against the request for it: what differs, and whether it can be changed in
//! place. What counts only while a guest is made (its image, its first settings, the choice between
//! places) is not compared, unless a file made it.

mod absent;
mod nics;
mod now;

pub use absent::create_if_absent;
pub(crate) use nics::wished_nics;
pub(crate) use now::options_now;

use crate::create::{CreateError, CreateRequest, CreationOptions, creation_options};
use crate::domain::disk_change::source_of;
use crate::domain::guest::{Made, Role, VolumeRef};
use crate::domain::view::View;
use crate::domain::{DomainXml, Element};
use crate::error::Coded as _;
use crate::error::{Class, Result, classed};
use crate::guest::{NameRequest, template_of};
use crate::history::guest as history;
use crate::hypervisor::{DomainSummary, Hypervisor, XmlOf};
use crate::images;
use crate::lookup::refuse_unread;
use crate::memsize::MemSize;
use crate::seed::DATA_DISK_SERIAL;
use crate::shell::word;
use crate::storage;
use crate::topology::Topology;
use crate::world::World;
use gpuvm_core::guest::{self, Found, GuestDifference, Opt, differences, now};
use std::path::PathBuf;

/// The network of the option `privateIP`.
const PRIVATE_NET: &str = "private-net";

/// A guest that exists, compared with a request.
#[derive(Debug)]
pub struct Compared {
    /// Name, state and UUID.
    pub summary: DomainSummary,
    /// The differences.
    pub differences: Vec<GuestDifference>,
    /// Whether its creation options are known.
    pub is_told: bool,
}

/// Compares the domain of this name, if it is among these, with a request; `None` if there is no
/// such domain. Errors: gpuvm did not make it.
pub fn compare(
    world: &World,
    (hypervisor, topology, rows): (&dyn Hypervisor, &Topology, &[DomainSummary]),
    (name, wanted): (&str, &CreateRequest),
) -> Result<Option<Compared>> {
    let Some(summary) = rows.iter().find(|row| row.name == name).cloned() else { return Ok(None) };
    let xml = DomainXml::parse(&hypervisor.xml(name, XmlOf::Inactive)?)?;
    refuse_unread(&xml)?;
    let view = View::of(&xml, Some(topology))?;
    let record = view.remembered.as_ref().and_then(|record| record.request.clone());
    let Some(record) = record.filter(|_| !xml.is_copy()) else {
        let message = format!("domain `{name}` exists, and gpuvm did not make it");
        let hint = format!("`gpuvm show {}` shows what it is; choose another name", word(name));
        return Err(classed(Class::Exists, message, hint));
    };
    let place = wanted.guest.place.as_ref().map(|place| place.wanted(topology)).transpose()?;
    let request = place.as_ref().unwrap_or(&wanted.guest.request);
    let now = now(&xml, topology, &record);
    let mut found = differences(request, &record, &now, topology);
    // It may run with another size than its next start takes, as after `set`.
    let live = if summary.state.is_active() {
        Some(DomainXml::parse(&hypervisor.xml(name, XmlOf::Live)?)?)
    } else {
        None
    };
    if let Some(live) = &live {
        let live = guest::now(live, topology, &record);
        guest::running(request, &record, &live, topology, &mut found);
    }
    let is = xml.root().attr("type").unwrap_or_default();
    found.fixed(Opt::VirtType, is, wanted.guest.virt.as_str());
    nics::networks(wanted, &xml, topology, &mut found);
    if let Some(live) = &live {
        nics::running(wanted, live, topology, &mut found);
    }
    disks(wanted, &xml, topology, &mut found);
    made_disks(&xml, &mut found);
    gone_disks(&xml, world, &mut found)?;
    let was = history::creation_options(world.state(), &summary.uuid);
    let was = was.map(|was| options_now(was, &xml, hypervisor)).transpose()?;
    if let Some(was) = &was {
        options_at_first(was, has_own_data(&xml), &creation_options(wanted), &mut found);
    }
    Ok(Some(Compared { summary, differences: found.0, is_told: was.is_some() }))
}

/// The guest that was requested by name, if it exists exactly so; an error if it is another one.
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
                "the creation options of `{name}` are {why}; image, boot disk size, template and \
                 seed were not compared"
            ));
        }
        return Ok(Some(found.summary));
    }
    let what: Vec<String> = found.differences.iter().map(ToString::to_string).collect();
    let error = CreateError::Differs { name: name.to_string(), what: what.join("; ") };
    let name = word(name.as_str());
    Err(error.hint(format!("`gpuvm show {name}` shows it; choose another --name")))
}

/// Compares the disks that were named, and looks for others that were neither named nor made for
/// it.
fn disks(wanted: &CreateRequest, xml: &DomainXml, topology: &Topology, found: &mut Found) {
    let there = disk_paths(xml);
    let has = |path: &str| there.iter().any(|disk| disk == path);
    let storage = &wanted.storage;
    let mut named: Vec<String> = Vec::new();
    let disks = storage.disk.iter().map(|path| (Opt::Disk, path));
    for (option, path) in disks.chain(storage.add_disk.iter().map(|path| (Opt::AddDisk, path))) {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let path = path.to_string_lossy().into_owned();
        if !has(&path) {
            found.fixed(option, "no such disk", path.clone());
        }
        named.push(path);
    }
    for (option, dir, ids) in [
        (Opt::Drive, "/dev/disk/by-id/", &storage.drive),
        (Opt::Partition, "/dev/disk/by-partuuid/", &storage.partition),
    ] {
        for id in ids.iter().filter(|id| !has(id) && !has(&format!("{dir}{id}"))) {
            found.fixed(option, "no such disk", id.clone());
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
            found.fixed(Opt::AddDisk, path, "no such disk");
        }
    }
}

/// The files and devices of a definition's disks, except for removable media.
fn disk_paths(xml: &DomainXml) -> Vec<String> {
    let devices = xml.root().children("devices");
    devices.flat_map(|devices| devices.children("disk")).filter_map(path_of).collect()
}

/// The file or device of a disk; `None` if it has no medium, or a removable one.
pub(crate) fn path_of(disk: Element<'_>) -> Option<String> {
    let is_fixed = disk.attr("device").is_none_or(|device| device == "disk" || device == "lun");
    source_of(disk).filter(|_| is_fixed)
}

/// Looks whether the disks that were made for it are still its own; its seed may be gone.
fn made_disks(xml: &DomainXml, found: &mut Found) {
    let devices = xml.root().children("devices");
    let disks: Vec<Element<'_>> = devices.flat_map(|devices| devices.children("disk")).collect();
    for made in xml.made() {
        let option = match made.role {
            Role::Os => Opt::OsDisk,
            Role::Data => Opt::DataSize,
            Role::Seed | Role::Base => continue,
        };
        if !disks.iter().any(|disk| is_on(*disk, &made)) {
            found.fixed(option, "no such disk", made.path);
        }
    }
}

/// Looks whether the files of the disks that were made for it are there, on this machine; its seed
/// may be gone.
fn gone_disks(xml: &DomainXml, world: &World, found: &mut Found) -> Result<()> {
    if !world.has_guests_here()? {
        return Ok(());
    }
    for Made { role, path, .. } in xml.made() {
        let option = match role {
            Role::Os => Opt::OsDisk,
            Role::Data => Opt::DataSize,
            Role::Seed | Role::Base => continue,
        };
        let is_gone = |error: std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
        let is_known = found.0.iter().any(|one| one.option == option && one.wanted == path);
        if !is_known && std::fs::symlink_metadata(&path).is_err_and(is_gone) {
            found.fixed(option, "no such file", path);
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

/// The record of the data disk that `create` made; `None` if it made none, or `disk remove` took
/// it.
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
pub const AT_FIRST: [Opt; 21] = [
    Opt::Template,
    Opt::Image,
    Opt::ImagePool,
    Opt::OsDisk,
    Opt::OsSize,
    Opt::Pool,
    Opt::DiskDir,
    Opt::DataSize,
    Opt::DataDir,
    Opt::Preallocate,
    Opt::SshKey,
    Opt::User,
    Opt::PasswordHash,
    Opt::UserData,
    Opt::MetaData,
    Opt::NetworkConfig,
    Opt::NoAgent,
    Opt::NoNccl,
    Opt::Nccl,
    Opt::ImexNode,
    Opt::NoSeed,
];

/// Compares the guest's creation options; `has_data`: it has a data disk.
fn options_at_first(
    was: &CreationOptions,
    has_data: bool,
    now: &CreationOptions,
    found: &mut Found,
) {
    let text = |values: &[String]| match values {
        [] => "default".to_owned(),
        values => values.join(","),
    };
    for option in AT_FIRST {
        let values =
            |options: &CreationOptions| options.get(option.field()).cloned().unwrap_or_default();
        let (was, now) = (values(was), values(now));
        // Where no image is named, any will do; the share of a data disk may have been none.
        let is_open = match option {
            Opt::Image => now.is_empty(),
            Opt::DataSize => was.is_empty() && now == ["none"] && !has_data,
            _ => false,
        };
        if !is_open && meant(option, &was) != meant(option, &now) {
            found.fixed(option, text(&was), text(&now));
        }
    }
}

/// The meaning of an option's values: the same for the same size or path, empty for its default.
fn meant(option: Opt, values: &[String]) -> Vec<String> {
    let default = match option {
        Opt::ImagePool => images::POOL,
        Opt::OsDisk => "clone",
        Opt::OsSize => "50G",
        Opt::Pool => storage::POOL,
        Opt::Preallocate => "reserve",
        Opt::Nccl => "link",
        Opt::NoAgent | Opt::NoNccl | Opt::NoSeed => "false",
        _ => "",
    };
    let paths = [
        Opt::Template,
        Opt::DiskDir,
        Opt::DataDir,
        Opt::SshKey,
        Opt::PasswordHash,
        Opt::UserData,
        Opt::MetaData,
        Opt::NetworkConfig,
    ];
    let one = |value: &String| match option {
        Opt::OsSize | Opt::DataSize => value.parse().map_or_else(|_| value.clone(), MemSize::typed),
        _ if paths.contains(&option) => {
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
    fn equivalent_values_are_no_difference() {
        let file = |fields: &[(&str, &[&str])]| {
            let field = |(option, values): &(&str, &[&str])| {
                ((*option).to_owned(), values.iter().map(ToString::to_string).collect())
            };
            fields.iter().map(field).collect::<CreationOptions>()
        };
        let differs = |was: &[(&str, &[&str])], now: &[(&str, &[&str])]| {
            let mut found = Found::default();
            options_at_first(&file(was), false, &file(now), &mut found);
            found.0.len()
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
            let mut found = Found::default();
            made_disks(&DomainXml::parse(&xml).unwrap(), &mut found);
            found.0.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of("<source file='/d/a.raw'/>"), [""; 0]);
        let above =
            "<source file='/d/a.snap'/><backingStore><source file='/d/a.raw'/></backingStore>";
        assert_eq!(of(above), [""; 0]);
        assert_eq!(of("<source file='/d/b.raw'/>"), ["os-disk no such disk -> /d/a.raw"]);
    }
}
