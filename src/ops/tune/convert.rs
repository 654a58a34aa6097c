//! `--convert`: which disks are copied into volumes of another format, the steps, and the reasons
//! for those that are not.
//!
//! libvirt makes the copy, beside the old volume and in its pool, so that it happens where the disk
//! is; the old image is not changed. An image is not copied if it may be written meanwhile, if
//! others need it as it is, or if a copy would lose something: snapshots, backing files or
//! overlays.

use super::subject::Subject;
use crate::apply::{CheckStep, Comparison, Step, VolumeStep};
use crate::domain::Element;
use crate::domain::guest::{DiskFormat, Made, Role, VolumeRef};
use crate::error::{Result, usage};
use crate::hypervisor::Hypervisor;
use crate::hypervisor::file_users::{self, Uses};
use crate::hypervisor::storage::{NewVolume, Pool, Volume};
use crate::image::{HEAD, kept};
use crate::memsize::MemSize;
use crate::shell::word;
use crate::storage::room;
use gpuvm_core::tune::items::Converted;
use gpuvm_core::tune::{ItemName, TuneError};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A request to convert disks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Convert {
    /// The disk, by its name in the guest; `None` for every writable disk.
    pub disk: Option<String>,
    /// The format.
    pub format: DiskFormat,
}

/// Kinds of pools whose volumes are files.
const OF_FILES: [&str; 3] = ["dir", "fs", "netfs"];
/// File name extensions that name a format, and are replaced by that of the new one.
const ENDINGS: [&str; 3] = ["qcow2", "raw", "img"];

/// One disk that is converted.
#[derive(Debug, Clone)]
pub struct Conversion {
    /// Its file.
    pub path: String,
    /// Its replacement.
    pub converted: Converted,
    /// The steps that create and compare the copy.
    pub steps: [Step; 2],
    old: VolumeRef,
}

impl Conversion {
    /// The notice about the old image.
    pub fn stays(&self) -> String {
        let (path, VolumeRef { pool, name }) = (&self.path, &self.old);
        format!(
            "image {path} stays for `undo`; `virsh vol-delete --pool {pool} {name}` destroys it, \
             and the way back",
            pool = word(pool),
            name = word(name)
        )
    }
}

/// The storage on which disks are converted: every pool with its volumes, their users, and the
/// remaining space of each pool.
pub struct Ground<'h> {
    hypervisor: &'h dyn Hypervisor,
    pools: Vec<Pool>,
    volumes: Vec<Volume>,
    uses: Uses,
    /// Names of new volumes, with their pools.
    taken: BTreeSet<(String, String)>,
    /// Bytes that new volumes allocate at once, by pool.
    wanted: BTreeMap<String, u64>,
}

/// The error that a disk is not converted.
fn refused<T>(message: String, hint: impl Into<String>) -> Result<T> {
    Err(TuneError::Item { item: ItemName::Convert, message, hint: hint.into() }.into())
}

/// Refuses files and recorded hosts, whose images are not here.
pub fn refuse_files(wanted: &[Convert], files: bool) -> Result<()> {
    if wanted.is_empty() || !files {
        return Ok(());
    }
    Err(usage(
        "--convert copies the images of domains, and no domain of a hypervisor is named",
        "without --convert a file is tuned and printed",
    ))
}

impl<'h> Ground<'h> {
    /// Reads the storage.
    pub fn read(hypervisor: &'h dyn Hypervisor) -> Result<Ground<'h>> {
        let storage = hypervisor.storage();
        let pools = storage.pools()?.into_iter().filter(|pool| pool.active).collect();
        Ok(Ground {
            hypervisor,
            pools,
            volumes: file_users::volumes(storage)?,
            uses: Uses::read(hypervisor)?,
            taken: BTreeSet::new(),
            wanted: BTreeMap::new(),
        })
    }

    /// The disks of a domain that are converted; the refusal is a [`TuneError`].
    pub fn plan(&mut self, subject: &Subject, wanted: &[Convert]) -> Result<Vec<Conversion>> {
        let devices = subject.xml.root().children("devices");
        let disks: Vec<Element<'_>> =
            devices.flat_map(|devices| devices.children("disk")).collect();
        let names: Vec<String> = disks.iter().map(|disk| target(*disk)).collect();
        for name in wanted.iter().filter_map(|convert| convert.disk.as_ref()) {
            if !names.contains(name) {
                return refused(
                    format!("it has no disk `{name}`"),
                    format!("it has {}", names.join(", ")),
                );
            }
        }
        let mut chosen: Vec<(Element<'_>, &str)> = Vec::new();
        for (disk, name) in disks.iter().zip(&names) {
            // A request for one disk has priority over one for all, and a later request over an
            // earlier one.
            let of_it = wanted.iter().rfind(|convert| convert.disk.as_ref() == Some(name));
            let of_all = wanted.iter().rfind(|convert| convert.disk.is_none());
            let Some(convert) = of_it.or(of_all) else { continue };
            if of_it.is_none() && !is_written(*disk) {
                continue;
            }
            let format = convert.format.as_str();
            if format_of(*disk) != format {
                chosen.push((*disk, format));
            }
        }
        if !chosen.is_empty() {
            self.refuse_domain(subject)?;
        }
        chosen.into_iter().map(|(disk, format)| self.one(subject, disk, format)).collect()
    }

    /// Refuses a domain whose disks cannot be copied now.
    fn refuse_domain(&self, subject: &Subject) -> Result<()> {
        let name = &subject.name;
        if subject.running {
            let hint = format!("`gpuvm stop {name}` first", name = word(name));
            return refused("it runs, and a disk that is written has no copy".into(), hint);
        }
        match self.hypervisor.keeps(name)?.into_iter().next() {
            None => Ok(()),
            Some(kept) => refused(
                format!("it has {}, which belongs to its present disks", kept.what),
                kept.hint,
            ),
        }
    }

    fn one(&mut self, subject: &Subject, disk: Element<'_>, format: &str) -> Result<Conversion> {
        let name = target(disk);
        let path = file_of(disk, &name)?;
        let old = self.volume(&name, &path)?.clone();
        self.refuse_image(&subject.name, disk, &name, &old)?;
        let new = NewVolume {
            name: self.free_name(&old, format),
            format: format.to_owned(),
            capacity_bytes: old.capacity_bytes,
            preallocated: format == "raw" && old.allocation_bytes >= old.capacity_bytes,
            backing: None,
            mode: 0o600,
        };
        self.take(&name, &old, &new)?;
        let file = old.path.with_file_name(&new.name);
        let volume = VolumeRef { pool: old.pool.clone(), name: new.name.clone() };
        let compare = Step::Check(CheckStep::Compare(Comparison {
            domain: subject.name.clone(),
            pool: old.pool.clone(),
            volume: new.name.clone(),
            format: format.to_owned(),
            capacity_bytes: old.capacity_bytes,
            disk: old.path.clone(),
            disk_format: old.format.clone(),
            content: self.hypervisor.has_guests_here(),
        }));
        let old = VolumeRef { pool: old.pool, name: old.name };
        let from = Some(old.clone());
        let make = Step::Volume(VolumeStep::Make { pool: old.pool.clone(), volume: new, from });
        let made =
            Made { role: Role::Data, path: file.display().to_string(), volume: Some(volume) };
        let converted = Converted { format: format.to_owned(), made };
        Ok(Conversion { path, converted, steps: [make, compare], old })
    }

    /// The volume of a disk's file.
    fn volume(&self, disk: &str, path: &str) -> Result<&Volume> {
        let Some(volume) = self.volumes.iter().find(|volume| volume.path == Path::new(path)) else {
            let dir = Path::new(path).parent().unwrap_or(Path::new("/")).display();
            return refused(
                format!("{path} of disk `{disk}` is in no active pool, so libvirt cannot copy it"),
                format!(
                    "`virsh pool-create-as NAME dir --target {dir}` makes one of its directory",
                    dir = word(&dir.to_string())
                ),
            );
        };
        let kind = self.pool(volume).map_or("", |pool| &pool.kind);
        if !OF_FILES.contains(&kind) {
            return refused(
                format!("{path} of disk `{disk}` is in pool `{}`, of kind `{kind}`", volume.pool),
                "only files in pools of directories are converted",
            );
        }
        Ok(volume)
    }

    fn pool(&self, volume: &Volume) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name == volume.pool)
    }

    /// Refuses an image that others need as it is, or that contains more than a disk.
    fn refuse_image(
        &self,
        domain: &str,
        disk: Element<'_>,
        name: &str,
        old: &Volume,
    ) -> Result<()> {
        let path = old.path.display();
        let said = format_of(disk);
        if old.format != said {
            return refused(
                format!("disk `{name}` is {said} by its definition, and {path} is {}", old.format),
                "the format is ambiguous: the guest may have written to the raw container",
            );
        }
        let below = disk.child("backingStore").and_then(|below| below.child("source"));
        if let Some(below) = old.backing.clone().or_else(|| below.map(|_| PathBuf::from("another")))
        {
            return refused(
                format!("{path} of disk `{name}` is an overlay on {}", below.display()),
                "`virsh blockpull` makes it independent of its backing file (while the domain \
                 runs)",
            );
        }
        let over = self.uses.volumes(&old.path);
        if !over.is_empty() {
            return refused(
                format!("volumes are overlays on {path} of disk `{name}`: {}", over.join(", ")),
                "they would be left on the old image",
            );
        }
        let others: Vec<String> =
            self.uses.domains(&old.path).into_iter().filter(|other| other != domain).collect();
        if !others.is_empty() {
            return refused(
                format!(
                    "{path} of disk `{name}` is also a disk of domain `{}`",
                    others.join("`, `")
                ),
                "each would have a disk of its own from then on",
            );
        }
        let mut head = Vec::new();
        self.hypervisor.storage().download(&old.pool, &old.name, 0..HEAD, &mut head)?;
        match kept(&head).filter(|_| old.format == "qcow2") {
            None => Ok(()),
            Some(kept) => refused(
                format!("{path} of disk `{name}` holds {kept}, which a copy does not have"),
                format!(
                    "`qemu-img info {path}` shows what it holds",
                    path = word(&path.to_string())
                ),
            ),
        }
    }

    /// A free volume name in the pool, similar to the old one's.
    fn free_name(&mut self, old: &Volume, format: &str) -> String {
        let stem = ENDINGS.iter().find_map(|end| old.name.strip_suffix(&format!(".{end}")));
        let stem = stem.filter(|stem| !stem.is_empty()).unwrap_or(&old.name);
        let pool = &old.pool;
        let taken = |name: &String| {
            let is = |volume: &Volume| volume.pool == *pool && volume.name == *name;
            self.volumes.iter().any(is) || self.taken.contains(&(pool.clone(), name.clone()))
        };
        let numbered = (2..).map(|number| format!("{stem}-{number}.{format}"));
        let mut names = std::iter::once(format!("{stem}.{format}")).chain(numbered);
        let name = names.find(|name| !taken(name)).expect("numbers do not end");
        self.taken.insert((pool.clone(), name.clone()));
        name
    }

    /// Reserves space for a new volume, or refuses it.
    fn take(&mut self, disk: &str, old: &Volume, new: &NewVolume) -> Result<()> {
        let Some(pool) = self.pool(old) else { return Ok(()) };
        let (name, available) = (pool.name.clone(), pool.available_bytes);
        let needed = if new.preallocated { new.capacity_bytes } else { old.allocation_bytes };
        let wanted = self.wanted.entry(name.clone()).or_default();
        let left = available.saturating_sub(*wanted);
        if needed > left {
            let size = |bytes: u64| MemSize::from_kib(bytes.div_ceil(1024));
            return refused(
                format!(
                    "pool `{name}` has {} free, and the copy of disk `{disk}` needs {}",
                    size(left),
                    size(needed)
                ),
                "make room in it, or convert one disk at a time",
            );
        }
        *wanted += needed;
        Ok(())
    }

    /// The warnings before conversions are made.
    pub fn warnings(&self, all: &[Conversion]) -> Result<Vec<String>> {
        let steps: Vec<Step> = all.iter().flat_map(|one| one.steps.clone()).collect();
        let mut warnings = room::warnings(&steps, self.hypervisor)?;
        if !all.is_empty() && !self.hypervisor.has_guests_here() {
            warnings
                .push("the copy is not compared with the disk, which is on another machine".into());
        }
        Ok(warnings)
    }
}

/// The name of a disk in the guest.
fn target(disk: Element<'_>) -> String {
    disk.child("target").and_then(|target| target.attr("dev")).unwrap_or_default().into_owned()
}

/// Whether a disk is writable for the guest.
fn is_written(disk: Element<'_>) -> bool {
    let is_disk = disk.attr("device").is_none_or(|device| device == "disk");
    is_disk && disk.child("readonly").is_none()
}

/// The format in a disk's definition; raw if it has none, as in libvirt.
fn format_of(disk: Element<'_>) -> String {
    let driver = disk.child("driver").and_then(|driver| driver.attr("type"));
    driver.unwrap_or_else(|| "raw".into()).into_owned()
}

/// The file of a disk; an error if it has none, or one that must not be copied.
fn file_of(disk: Element<'_>, name: &str) -> Result<String> {
    if !is_written(disk) {
        return refused(
            format!("disk `{name}` is a medium that the guest only reads"),
            "formats count where a guest writes",
        );
    }
    let encrypted = |element: Element<'_>| element.child("encryption").is_some();
    let source = disk.child("source");
    if encrypted(disk) || source.is_some_and(encrypted) {
        return refused(
            format!("disk `{name}` is encrypted"),
            "its copy would need its key, or be in the clear",
        );
    }
    if disk.child("shareable").is_some() {
        return refused(
            format!("disk `{name}` is shared with other guests, here or elsewhere"),
            "each would have a disk of its own from then on",
        );
    }
    let file = source.and_then(|source| source.attr("file")).map(|file| file.into_owned());
    let kind = disk.attr("type").unwrap_or_else(|| "file".into());
    match file.filter(|_| kind == "file") {
        Some(file) => Ok(file),
        None => refused(
            format!("disk `{name}` is of type `{kind}`, and files are converted"),
            "name the disks that are: --convert vda=raw",
        ),
    }
}
