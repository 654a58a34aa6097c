//! `disk list`: the disks of a domain, with what they are, how large, who made them and who else has them.

use crate::domain::DomainXml;
use crate::domain::Element;
use crate::domain::disk_change::path_of;
use crate::domain::guest::VolumeRef;
use crate::error::{Doing as _, Result};
use crate::guest::find;
use crate::hypervisor::uses::Uses;
use crate::hypervisor::{DiskSize, Hypervisor, XmlOf};
use crate::made::{Fate, Proof};
use crate::world::World;
use gpuvm_host::discover::node::{DeviceKind, device_kind};
use serde::Serialize;
use std::path::Path;

/// What a disk is on the host.
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
    /// A drive without medium.
    Empty,
}

impl DiskSort {
    /// Its word.
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
    /// It is defined, and what runs has it, too.
    Always,
    /// Only what runs has it.
    UntilOff,
    /// Only the next start has it.
    NextStart,
}

/// A disk of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListedDisk {
    /// Name that libvirt knows it by: `vda`. The guest may call it otherwise.
    pub target: String,
    /// What it is.
    pub kind: DiskSort,
    /// File, block device, volume or name on the network; none: there is no medium.
    pub source: Option<String>,
    /// The volume that it is; none: it is in no active pool.
    pub volume: Option<VolumeRef>,
    /// Layout of its bytes: `raw`, `qcow2`; none: the definition does not say.
    pub format: Option<String>,
    /// Size that the guest sees; none: that cannot be told.
    pub bytes: Option<u64>,
    /// Bytes that it takes on the host; none: that cannot be told.
    pub allocated_bytes: Option<u64>,
    /// What it hangs on: `virtio`, `scsi`, `sata`.
    pub bus: String,
    /// Whether the guest only reads it.
    pub read_only: bool,
    /// When the domain has it.
    pub when: DiskWhen,
    /// Whether it was made for this domain, and is deleted with it.
    pub made: bool,
    /// Who else has it, or an image over it; who uses it on the host.
    pub used_by: Vec<String>,
}

/// Where disks are looked up.
struct Ground<'a> {
    /// The hypervisor.
    hypervisor: &'a dyn Hypervisor,
    /// Who uses what.
    uses: Uses,
    /// The domain's name.
    name: String,
    /// Its UUID.
    uuid: String,
}

/// Lists the disks of a domain: those that are defined, then those that only what runs has.
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

/// Whether two documents speak of one disk: of the same name, on the same file or device.
fn is_same(one: Element<'_>, other: Element<'_>) -> bool {
    let target = |disk: Element<'_>| text(disk.child("target"), "dev");
    target(one) == target(other) && path_of(one) == path_of(other)
}

/// An attribute of an element.
fn text(element: Option<Element<'_>>, name: &str) -> Option<String> {
    element.and_then(|element| element.attr(name)).map(|text| text.into_owned())
}

impl Ground<'_> {
    /// The paths of the disks that were made for the domain and go with it.
    fn made(&self, xml: &DomainXml, world: &World) -> Vec<String> {
        let proof = Proof::of(xml, &self.uuid, &self.uses, (self.hypervisor, world.state()));
        let made = xml.made().into_iter();
        let own = made.filter(|made| matches!(proof.fate(made), Fate::Goes(_)));
        own.map(|made| made.path).collect()
    }

    /// One disk.
    fn listed(&self, disk: Element<'_>, when: DiskWhen, made: &[String]) -> ListedDisk {
        let target = text(disk.child("target"), "dev").unwrap_or_default();
        let source = disk.child("source");
        let named = text(source, "pool").zip(text(source, "volume"));
        let named = named.map(|(pool, name)| VolumeRef { pool, name });
        let known = named.as_ref().and_then(|volume| self.uses.volume(volume));
        let path = path_of(disk).or_else(|| Some(known?.path.display().to_string()));
        let volume = named.or_else(|| {
            let at = self.uses.volume_at(Path::new(path.as_deref()?))?;
            Some(VolumeRef { pool: at.pool.clone(), name: at.name.clone() })
        });
        let size = self.size(&target, volume.as_ref());
        let others = path
            .as_ref()
            .map(|path| self.uses.others_of_disk(Path::new(path), volume.as_ref(), &self.uuid));
        ListedDisk {
            kind: self.sort(disk, path.as_deref(), volume.is_some()),
            made: path.as_ref().is_some_and(|path| made.contains(path)),
            source: path.or_else(|| text(source, "name")).or_else(|| text(source, "dir")),
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

    /// How large a disk is: as the hypervisor says, else as its pool does.
    fn size(&self, target: &str, volume: Option<&VolumeRef>) -> Option<DiskSize> {
        let told = self.hypervisor.disk_size(&self.name, target).ok().flatten();
        told.or_else(|| {
            let known = self.uses.volume(volume?)?;
            let (capacity_bytes, allocation_bytes) = (known.capacity_bytes, known.allocation_bytes);
            Some(DiskSize { capacity_bytes, allocation_bytes })
        })
    }

    /// What a disk is.
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
