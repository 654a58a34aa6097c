//! `disk list`: the disks of a domain with kind, size, origin and other users.

use super::subject::can_be_opened;
use crate::domain::DomainXml;
use crate::domain::Element;
use crate::domain::disk_change::{path_of, source_of, target_of};
use crate::domain::guest::{Made, Role, VolumeRef};
use crate::error::{Doing as _, Result};
use crate::hypervisor::file_users::Uses;
use crate::hypervisor::{DiskSize, Hypervisor, XmlOf};
use crate::lookup::find;
use crate::made::{Fate, Proof};
use crate::world::World;
use gpuvm_host::discover::node::{DeviceKind, device_kind};
use serde::Serialize;
use std::path::Path;

/// The kind of a disk on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DiskSort {
    /// A file.
    File,
    /// A volume of a pool.
    Volume,
    /// A whole drive.
    Drive,
    /// A partition of a drive.
    Partition,
    /// Another block device.
    Device,
    /// On the network, or served by another process.
    Network,
    /// A drive without a medium.
    Empty,
}

impl DiskSort {
    /// Returns its word.
    pub fn word(self) -> &'static str {
        match self {
            DiskSort::File => "file",
            DiskSort::Volume => "volume",
            DiskSort::Drive => "drive",
            DiskSort::Partition => "partition",
            DiskSort::Device => "device",
            DiskSort::Network => "network",
            DiskSort::Empty => "empty",
        }
    }
}

/// When a domain has a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DiskWhen {
    /// Defined and, if the guest runs, attached.
    Always,
    /// Attached to the running guest only.
    UntilOff,
    /// Defined, and attached at the next start.
    NextStart,
}

/// A disk of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListedDisk {
    /// libvirt's name for it, such as `vda`; the guest may use another.
    pub target: String,
    /// Its kind.
    pub kind: DiskSort,
    /// File, block device, volume or name on the network, at last its protocol; `None` without
    /// medium.
    pub source: Option<String>,
    /// Its volume; `None` if not in an active pool.
    pub volume: Option<VolumeRef>,
    /// Format: `raw`, `qcow2`; `None` if not in the definition.
    pub format: Option<String>,
    /// Size seen by the guest, in bytes; `None` if unknown.
    pub bytes: Option<u64>,
    /// Bytes that it occupies on the host; `None` if unknown.
    pub allocated_bytes: Option<u64>,
    /// Its bus: `virtio`, `scsi`, `sata`.
    pub bus: String,
    /// Whether the guest only reads it.
    pub read_only: bool,
    /// When the domain has it.
    pub when: DiskWhen,
    /// Whether it was created for this domain; it is deleted with it, unless others use it.
    pub made: bool,
    /// Other domains that use it or a volume backed by it, and its users on the host.
    pub used_by: Vec<String>,
}

/// The facts that disks are judged by.
struct Ground<'a> {
    hypervisor: &'a dyn Hypervisor,
    uses: Uses,
    name: String,
    uuid: String,
}

/// Lists the disks of a domain: the defined ones, then those of the running guest only.
pub fn list(world: &World, name: &str) -> Result<Vec<ListedDisk>> {
    let hypervisor = &*world.hypervisor()?;
    let summary = find(hypervisor, name)?;
    let parsed = |which| {
        let text = hypervisor.xml(name, which)?;
        DomainXml::parse(&text).doing(|| format!("cannot read `{name}`"))
    };
    let runs = summary.state.is_active();
    let live = if runs { Some(parsed(XmlOf::Live)?) } else { None };
    let defined = if summary.persistent { Some(parsed(XmlOf::Public)?) } else { None };
    let uses = Uses::read(hypervisor)?;
    let ground = Ground { hypervisor, uses, name: summary.name, uuid: summary.uuid };
    let has = |xml: &Option<DomainXml>, disk: Element<'_>| {
        xml.as_ref().is_some_and(|xml| xml.disks().any(|other| is_same(other, disk)))
    };
    let mut listed = Vec::new();
    let made = match &defined {
        None => Vec::new(),
        Some(xml) => ground.made(xml, world),
    };
    for disk in defined.iter().flat_map(DomainXml::disks) {
        let is_always = !runs || has(&live, disk);
        let when = if is_always { DiskWhen::Always } else { DiskWhen::NextStart };
        listed.push(ground.listed(disk, when, &made));
    }
    for disk in live.iter().flat_map(DomainXml::disks).filter(|disk| !has(&defined, *disk)) {
        let when = if summary.persistent { DiskWhen::UntilOff } else { DiskWhen::Always };
        listed.push(ground.listed(disk, when, &made));
    }
    Ok(listed)
}

/// Whether two elements describe the same disk: the same name, on the same file or device.
fn is_same(one: Element<'_>, other: Element<'_>) -> bool {
    target_of(one) == target_of(other) && path_of(one) == path_of(other)
}

fn text(element: Option<Element<'_>>, name: &str) -> Option<String> {
    element.and_then(|element| element.attr(name)).map(|text| text.into_owned())
}

impl Ground<'_> {
    /// Returns the paths of the disks that were created for the domain.
    fn made(&self, xml: &DomainXml, world: &World) -> Vec<String> {
        let proof = Proof::of(xml, &self.uuid, &self.uses, self.hypervisor, world.state());
        let made = xml.made().into_iter().filter(|made| made.role != Role::Base);
        let is_own = |made: &Made| proof.is_made(made) || matches!(proof.fate(made), Fate::Goes(_));
        let own = made.filter(is_own);
        own.map(|made| made.path).collect()
    }

    fn listed(&self, disk: Element<'_>, when: DiskWhen, made: &[String]) -> ListedDisk {
        let target = target_of(disk).unwrap_or_default();
        let source = disk.child("source");
        let named = text(source, "pool").zip(text(source, "volume"));
        let named = named.map(|(pool, name)| VolumeRef { pool, name });
        let known = named.as_ref().and_then(|volume| self.uses.volume(volume));
        let path = path_of(disk).or_else(|| Some(known?.path.display().to_string()));
        let volume = named.or_else(|| {
            let at = self.uses.volume_at(Path::new(path.as_deref()?))?;
            Some(VolumeRef { pool: at.pool.clone(), name: at.name.clone() })
        });
        let size = self.size(&target, path.as_deref(), volume.as_ref());
        let others = path
            .as_ref()
            .map(|path| self.uses.others_of_disk(Path::new(path), volume.as_ref(), &self.uuid));
        ListedDisk {
            kind: self.sort(disk, path.as_deref(), volume.is_some()),
            made: path.as_ref().is_some_and(|path| made.contains(path)),
            source: path.or_else(|| source_of(disk)),
            volume,
            format: text(disk.child("driver"), "type"),
            bytes: size.map(|size| size.capacity_bytes),
            allocated_bytes: size.map(|size| size.allocation_bytes),
            bus: text(disk.child("target"), "bus").unwrap_or_default(),
            read_only: disk.child("readonly").is_some(),
            when,
            used_by: others.unwrap_or_default().iter().map(ToString::to_string).collect(),
            target,
        }
    }

    /// Returns the size of a disk, from the hypervisor, otherwise from its pool.
    fn size(
        &self,
        target: &str,
        path: Option<&str>,
        volume: Option<&VolumeRef>,
    ) -> Option<DiskSize> {
        if !path.is_none_or(|path| can_be_opened(Path::new(path), self.hypervisor)) {
            return None;
        }
        let reported = self.hypervisor.disk_size(&self.name, target).ok().flatten();
        reported.or_else(|| {
            let known = self.uses.volume(volume?)?;
            let (capacity_bytes, allocation_bytes) = (known.capacity_bytes, known.allocation_bytes);
            Some(DiskSize { capacity_bytes, allocation_bytes })
        })
    }

    /// Determines the kind of a disk.
    fn sort(&self, disk: Element<'_>, path: Option<&str>, is_volume: bool) -> DiskSort {
        let kind = disk.attr("type").unwrap_or_else(|| "file".into());
        let Some(path) = path else {
            return match disk.child("source") {
                None => DiskSort::Empty,
                Some(_) if kind == "volume" => DiskSort::Volume,
                Some(_) => DiskSort::Network,
            };
        };
        let is_here = self.hypervisor.machine().is_here();
        match &*kind {
            "block" => match is_here.then(|| device_kind(Path::new(path))).flatten() {
                Some(DeviceKind::Drive) => DiskSort::Drive,
                Some(DeviceKind::Partition) => DiskSort::Partition,
                _ if is_volume => DiskSort::Volume,
                _ => DiskSort::Device,
            },
            "file" | "volume" if is_volume => DiskSort::Volume,
            "file" => DiskSort::File,
            _ => DiskSort::Network,
        }
    }
}
