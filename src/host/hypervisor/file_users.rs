//! Users of files, devices and volumes on the hypervisor's machine: the single check of every verb
//! before it removes a disk or gives one away.
//!
//! It covers the live and the persistent definition of every domain: disks with their backing
//! chains and mirrors, NVRAM, kernels and seeds; volumes with backing volumes; and loop devices.
//! Backing files come both from libvirt and from the image's own header. Files are the same if
//! their names, resolved names, inodes (also below an overlay file system) or device numbers are.
//! An unreadable image may have any backing file, so everything possible counts as used.

mod chain;
mod document;
mod layers;

use super::storage::{Pool, Storage, Volume};
use super::{
    Definition, DomainSummary, Hypervisor, HypervisorError, HypervisorErrorKind, XmlOf, definitions,
};
use crate::command::output;
use crate::discover::hung_mounts::Silent;
use crate::input;
use chain::Walk;
use document::Named;
use gpuvm_core::domain::guest::VolumeRef;
use gpuvm_core::domain::{DomainXml, arguments};
use layers::Layers;
use nix::sys::stat::makedev;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// The columns read of loop devices.
const LOOP_COLUMNS: &str = "NAME,BACK-MAJ:MIN,BACK-INO";
/// Its time limit in seconds.
const LOOP_S: u64 = 10;
/// The most files of a directory that are examined.
const MOST_BESIDE: usize = 10_000;

/// The user of a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum User {
    /// A domain.
    Domain {
        /// Its name.
        name: String,
        /// Its UUID.
        uuid: String,
    },
    /// A volume, as `pool/volume`.
    Volume(String),
    /// A loop device of the host, by the kernel's name.
    Loop(String),
}

/// The kind of use.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// It is a disk.
    Disk,
    /// It is an image's backing file.
    Over,
    /// A disk is being copied to it.
    Mirror,
    /// It holds the settings of the firmware.
    Nvram,
    /// The guest boots from it: kernel, firmware.
    Boot,
    /// Anything else.
    Other,
    /// Possibly: this image's backing files are unknown, for this reason.
    Uncertain(PathBuf, String),
}

/// One use of a file, a device or a volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Use {
    /// Who uses it.
    pub by: User,
    /// The kind of use.
    pub how: How,
    /// Whether the user writes it.
    pub writes: bool,
    /// Whether the use tolerates others (`<shareable/>`).
    pub shares: bool,
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.by {
            User::Domain { name, .. } => name,
            User::Volume(name) => return write!(f, "volume `{name}` is an overlay on it"),
            User::Loop(name) => return write!(f, "the host has it as {name}"),
        };
        match &self.how {
            How::Disk => write!(f, "domain `{name}` has it as a disk"),
            How::Over => write!(f, "domain `{name}` has an image over it"),
            How::Mirror => write!(f, "domain `{name}` copies a disk to it"),
            How::Nvram => write!(f, "domain `{name}` has it as its NVRAM"),
            How::Boot => write!(f, "domain `{name}` starts from it"),
            How::Other => write!(f, "domain `{name}` uses it"),
            How::Uncertain(image, why) => {
                let what = if image.is_absolute() { "image" } else { "argument" };
                write!(
                    f,
                    "domain `{name}` has {what} {}, whose backing file is unknown ({why})",
                    image.display()
                )
            }
        }
    }
}

/// A conflict on a disk of a domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// Number of the disk in the definition, from 0.
    pub nth: usize,
    /// The disk's file or device, or one below it.
    pub path: PathBuf,
    /// The use of it by others.
    pub used: Use,
}

/// A file that two disks of one domain have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Twice {
    /// Number of the later disk in the definition, from 0.
    pub nth: usize,
    /// Number of the other.
    pub first: usize,
    /// The file or device, as the later disk names it.
    pub path: PathBuf,
    /// Whether one is an overlay on it; else both are it.
    pub is_over: bool,
}

/// A file of a disk, or below it.
struct Part {
    /// Number of the disk in the definition, from 0.
    nth: usize,
    path: PathBuf,
    /// Whether the disk is an overlay on it.
    is_below: bool,
    writes: bool,
    shares: bool,
}

/// A file of a domain's disk that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent {
    /// Number of the disk in the definition, from 0.
    pub nth: usize,
    /// The file or device.
    pub path: PathBuf,
    /// The overlay on it; `None` if it is the disk's own.
    pub over: Option<PathBuf>,
}

/// The identity of a file under different names; on another machine only the name is known.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Identity {
    /// The name, as it is used.
    named: PathBuf,
    real: Option<PathBuf>,
    /// File system and inode of a file.
    inode: Option<(u64, u64)>,
    /// The same in the directory of an overlay file system that it comes from.
    layer: Option<(u64, u64)>,
    device: Option<u64>,
}

impl Identity {
    /// Reads the identity of a name; `here`: whether it is on this machine.
    fn of(named: &Path, here: bool) -> Identity {
        let mut identity = Identity { named: named.components().collect(), ..Identity::default() };
        if !here {
            return identity;
        }
        identity.real = named.canonicalize().ok().or_else(|| {
            // It does not exist, or is inaccessible; its directory may be accessible.
            let directory = named.parent()?.canonicalize().ok()?;
            Some(directory.join(named.file_name()?))
        });
        if let Ok(meta) = named.metadata() {
            let kind = meta.file_type();
            if kind.is_block_device() || kind.is_char_device() {
                identity.device = Some(meta.rdev())
            } else {
                identity.inode = Some((meta.dev(), meta.ino()))
            }
        }
        identity
    }

    /// Whether two names are one file.
    fn is(&self, other: &Identity) -> bool {
        self.named == other.named
            || (self.real.is_some() && self.real == other.real)
            || self.inodes().any(|one| other.inodes().any(|another| one == another))
            || (self.device.is_some() && self.device == other.device)
    }

    fn inodes(&self) -> impl Iterator<Item = (u64, u64)> {
        self.inode.into_iter().chain(self.layer)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    /// The file; `None` for a volume of an inactive pool.
    file: Option<Identity>,
    /// The volume that a definition names.
    volume: Option<(String, String)>,
    used: Use,
}

/// All uses.
#[derive(Debug, Default)]
pub struct Uses {
    /// Whether the hypervisor is on this machine.
    here: bool,
    entries: BTreeSet<Entry>,
    /// Uses by images with unknown backing files.
    untold: BTreeSet<Use>,
    /// Every volume of an active pool.
    volumes: Vec<Volume>,
    /// Directories of inactive pools, by name.
    inactive: BTreeMap<String, PathBuf>,
    /// File systems that do not respond.
    silent: Silent,
    /// File systems on which files have other inodes than where they come from.
    layers: Layers,
}

impl Uses {
    /// Reads every domain, every active pool and every loop device.
    pub fn read(hypervisor: &dyn Hypervisor) -> Result<Uses, HypervisorError> {
        let here = hypervisor.machine().is_here();
        let pools = hypervisor.storage().pools()?;
        let volumes = volumes_of(hypervisor.storage(), &pools)?;
        let inactive = pools.into_iter().filter(|pool| !pool.active);
        let inactive = inactive.filter_map(|pool| Some((pool.name, pool.path?))).collect();
        let silent = if here { Silent::read() } else { Silent::default() };
        let layers = if here { Layers::read(&silent) } else { Layers::default() };
        let mut uses = Uses { here, volumes, inactive, silent, layers, ..Uses::default() };
        let both = |row: &DomainSummary| -> &'static [XmlOf] {
            if row.state.is_active() { &[XmlOf::Public, XmlOf::Live] } else { &[XmlOf::Public] }
        };
        for Definition { summary, which, xml } in definitions(hypervisor, both)? {
            let xml = xml.map_err(|error| HypervisorError {
                kind: HypervisorErrorKind::BadXml,
                doing: format!("tell which disks domain `{}` has", summary.name),
                message: error.to_string(),
            })?;
            let by = User::Domain { name: summary.name, uuid: summary.uuid };
            uses.add_hidden(&by, &xml);
            for named in document::read(&xml, which == XmlOf::Live) {
                uses.add(&by, named);
            }
        }
        for (name, text) in hypervisor.saved()? {
            let xml = DomainXml::parse(&text).map_err(|error| HypervisorError {
                kind: HypervisorErrorKind::BadXml,
                doing: format!("tell which disks the saved state of domain `{name}` has"),
                message: error.to_string(),
            })?;
            let by = User::Domain { name, uuid: xml.uuid().unwrap_or_default() };
            document::read(&xml, true).into_iter().for_each(|named| uses.add(&by, named));
        }
        uses.add_volumes();
        uses.add_loops();
        Ok(uses)
    }

    /// Reads the identity of a name.
    fn identity(&self, path: &Path) -> Identity {
        let mut identity = Identity::of(path, self.here && self.silent.why(path).is_none());
        let real = identity.real.as_deref().filter(|_| identity.inode.is_some());
        identity.layer = real.and_then(|real| self.layers.inode(real));
        identity
    }

    /// Returns the unresponsive file systems; `None` if no file is on this machine.
    fn seen(&self) -> Option<&Silent> {
        self.here.then_some(&self.silent)
    }

    /// Adds a file named by a definition, with its backing chain.
    fn add(&mut self, by: &User, named: Named) {
        let Named { file, volume, how, raw, layered, is_whole, writes, shares } = named;
        let key = volume.clone();
        let resolved = key.and_then(|(pool, name)| {
            let found = self.volumes.iter().find(|v| v.pool == pool && v.name == name);
            // An inactive pool has it at the same path as an active one.
            let inactive = || Some(self.inactive.get(&pool)?.join(&name));
            found.map(|found| found.path.clone()).or_else(inactive)
        });
        let top = file.or(resolved);
        let used = Use { by: by.clone(), how, writes, shares };
        let identity = top.as_ref().map(|file| self.identity(file));
        self.entries.insert(Entry { file: identity, volume, used: used.clone() });
        let Some(top) = top.filter(|_| !raw) else { return };
        let walk = Walk::from(&top, &self.volumes, self.seen());
        let below = Use { how: How::Over, writes: false, shares: false, ..used };
        for file in walk.files {
            let file = Some(self.identity(&file));
            self.entries.insert(Entry { file, volume: None, used: below.clone() });
        }
        // The images below one that is absent are not known: its file system may not be mounted.
        let is_seen = self.here && self.silent.why(&top).is_none();
        let is_away = layered && !is_whole && is_seen && chain::is_absent(&top);
        let away = is_away.then(|| (top.clone(), "it is not there now".to_owned()));
        if let Some((image, why)) = walk.untold.filter(|_| !is_whole).or(away) {
            self.untold.insert(Use { how: How::Uncertain(image, why), ..below });
        }
    }

    /// Adds the arguments of a domain that may name any file.
    fn add_hidden(&mut self, by: &User, xml: &DomainXml) {
        for argument in arguments::hidden(xml.root()) {
            let why = "its files are named elsewhere".to_owned();
            let how = How::Uncertain(argument.into(), why);
            self.untold.insert(Use { by: by.clone(), how, writes: false, shares: false });
        }
    }

    /// Adds the volumes with a backing file, whether or not a domain has them.
    fn add_volumes(&mut self) {
        for volume in self.volumes.iter().filter(|volume| volume.backing.is_some()) {
            let by = User::Volume(format!("{}/{}", volume.pool, volume.name));
            let used = Use { by, how: How::Over, writes: false, shares: false };
            for file in Walk::from(&volume.path, &self.volumes, self.seen()).files {
                let file = Some(self.identity(&file));
                self.entries.insert(Entry { file, volume: None, used: used.clone() });
            }
        }
    }

    /// Adds the files of loop devices, including those below a domain's disk.
    fn add_loops(&mut self) {
        let (Ok(devices), true) = (std::fs::read_dir("/sys/block"), self.here) else { return };
        let mut unseen = false;
        for device in devices.flatten() {
            let name = device.file_name().to_string_lossy().into_owned();
            let Ok(mut file) = std::fs::read(device.path().join("loop/backing_file")) else {
                continue;
            };
            file.pop_if(|last| *last == b'\n');
            let path = PathBuf::from(OsString::from_vec(file));
            // Named as in another mount namespace, or unlinked.
            unseen = unseen || self.silent.why(&path).is_some() || !path.exists();
            let file = self.identity(&path);
            self.add_loop(name, file);
        }
        let loops_seen = if unseen { loops() } else { Vec::new() };
        for (name, inode) in loops_seen {
            self.add_loop(name, Identity { inode: Some(inode), ..Identity::default() });
        }
    }

    /// Adds the file of a loop device.
    fn add_loop(&mut self, name: String, file: Identity) {
        let by = User::Loop(name);
        let used = Use { by, how: How::Other, writes: true, shares: false };
        self.entries.insert(Entry { file: Some(file), volume: None, used });
    }

    /// Returns the uses of a file, a device, or a volume by its path.
    pub fn of(&self, path: &Path) -> Vec<Use> {
        self.of_disk(path, None)
    }

    /// Returns the uses of a disk, by its path and, if it is a volume, by that, too.
    pub fn of_disk(&self, path: &Path, volume: Option<&VolumeRef>) -> Vec<Use> {
        let file = self.identity(path);
        let is = |entry: &&Entry| {
            let is_volume = volume.is_some_and(|of| {
                entry.volume.as_ref().is_some_and(|v| v.0 == of.pool && v.1 == of.name)
            });
            match (&entry.file, &entry.volume) {
                (Some(other), _) => is_volume || other.is(&file),
                // The path of a volume of an unknown pool is unknown: its name must suffice.
                (None, Some((_, name))) => is_volume || path.file_name() == Some(OsStr::new(name)),
                (None, None) => false,
            }
        };
        let known = self.entries.iter().filter(is).map(|entry| &entry.used);
        let all: BTreeSet<Use> = known.chain(&self.untold).cloned().collect();
        // A certain user need not be listed as a possible one.
        let sure: BTreeSet<User> =
            all.iter().filter(|one| !one.is_uncertain()).map(|one| one.by.clone()).collect();
        all.into_iter().filter(|one| !one.is_uncertain() || !sure.contains(&one.by)).collect()
    }

    /// Returns the uses of a file by others than the domain of this UUID.
    pub fn others(&self, path: &Path, own_uuid: &str) -> Vec<Use> {
        self.others_of_disk(path, None, own_uuid)
    }

    /// Returns the uses of a disk by others than the domain of this UUID.
    pub fn others_of_disk(
        &self,
        path: &Path,
        volume: Option<&VolumeRef>,
        own_uuid: &str,
    ) -> Vec<Use> {
        let is_own = |one: &Use| matches!(&one.by, User::Domain { uuid, .. } if uuid == own_uuid);
        let all = self.of_disk(path, volume).into_iter();
        all.filter(|one| !is_own(one)).collect()
    }

    /// The reason a file that a domain has for its firmware's settings is not that domain's own:
    /// firmware or a template that domains start from, it too, or a file of the system.
    pub fn as_firmware(&self, path: &Path) -> Option<String> {
        let boots = self.of(path).into_iter().find(|one| one.how == How::Boot);
        let is_of_system = || {
            let real = if self.here { path.canonicalize().ok() } else { None };
            real.as_deref().unwrap_or(path).starts_with("/usr")
        };
        match boots {
            Some(one) => Some(one.to_string()),
            None => is_of_system().then(|| "it is a file of the system".to_owned()),
        }
    }

    /// Returns conflicts on the disks of a domain, by the disk's index in its definition: others
    /// write a file that it reads, or use one that it writes, and not both allow sharing.
    /// `own_uuid` is the domain's own UUID, if it is defined.
    pub fn conflicts(&self, xml: &DomainXml, own_uuid: Option<&str>) -> Vec<Conflict> {
        let mut all = Vec::new();
        for Part { nth, path, writes, shares, .. } in self.parts(xml) {
            let others = self.others_of_disk(&path, None, own_uuid.unwrap_or_default());
            let against = |one: &Use| {
                !one.is_uncertain() && (writes || one.writes) && !(shares && one.shares)
            };
            let used = others.into_iter().filter(against);
            all.extend(used.map(|used| Conflict { nth, path: path.clone(), used }));
        }
        all
    }

    /// Returns the files that two disks of one domain share, and one of them writes, unless both
    /// allow sharing.
    pub fn twice(&self, xml: &DomainXml) -> Vec<Twice> {
        let parts = self.parts(xml);
        let all: Vec<Identity> = parts.iter().map(|part| self.identity(&part.path)).collect();
        let mut found = Vec::new();
        for (at, (one, file)) in parts.iter().zip(&all).enumerate() {
            for (other, before) in parts.iter().zip(&all).take(at) {
                let against = (one.writes || other.writes)
                    && !(one.shares && other.shares)
                    && one.nth != other.nth;
                if against && file.is(before) {
                    let is_over = one.is_below != other.is_below;
                    let (nth, first, path) = (one.nth, other.nth, one.path.clone());
                    found.push(Twice { nth, first, path, is_over });
                }
            }
        }
        found
    }

    /// The files of a domain's disks, and those below them.
    fn parts(&self, xml: &DomainXml) -> Vec<Part> {
        let mut all = Vec::new();
        for (nth, named) in document::disks(xml) {
            let shares = named.shares;
            let volume = named.volume.map(|(pool, name)| VolumeRef { pool, name });
            let known = volume.as_ref().and_then(|volume| self.volume(volume));
            let Some(top) = named.file.or_else(|| known.map(|known| known.path.clone())) else {
                continue;
            };
            let below = if named.raw {
                BTreeSet::new()
            } else {
                Walk::from(&top, &self.volumes, self.seen()).files
            };
            let part = |path, is_below, writes| Part { nth, path, is_below, writes, shares };
            all.push(part(top, false, named.writes));
            all.extend(below.into_iter().map(|path| part(path, true, false)));
        }
        all
    }

    /// Returns the files of a domain's disks, and those below them, that do not exist; on another
    /// machine none is known. A medium that libvirt may leave out is none.
    pub fn absent(&self, xml: &DomainXml) -> Vec<Absent> {
        let mut all = Vec::new();
        let Some(silent) = self.seen() else { return all };
        let may_go = |nth: usize| {
            let source = xml.disks().nth(nth).and_then(|disk| disk.child("source"));
            source.and_then(|source| source.attr("startupPolicy")).is_some_and(|p| p == "optional")
        };
        for (nth, named) in document::disks(xml).into_iter().filter(|(nth, _)| !may_go(*nth)) {
            let known = named.volume.map(|(pool, name)| VolumeRef { pool, name });
            let known = known.and_then(|volume| Some(self.volume(&volume)?.path.clone()));
            let Some(path) = named.file.or(known) else { continue };
            if silent.why(&path).is_some() {
                continue;
            }
            if chain::is_absent(&path) {
                all.push(Absent { nth, path, over: None });
            } else if !named.raw {
                let below = Walk::from(&path, &self.volumes, Some(silent)).absent.into_iter();
                all.extend(below.map(|(path, over)| Absent { nth, path, over: Some(over) }));
            }
        }
        all
    }

    /// A volume of an active pool.
    pub fn volume(&self, volume: &VolumeRef) -> Option<&Volume> {
        self.volumes.iter().find(|v| v.pool == volume.pool && v.name == volume.name)
    }

    /// The volume of an active pool that is at a path.
    pub fn volume_at(&self, path: &Path) -> Option<&Volume> {
        self.volumes.iter().find(|volume| volume.path == path)
    }

    /// Returns why a file of this machine cannot be accessed; `None` if it can.
    pub fn silent(&self, path: &Path) -> Option<String> {
        self.silent.why(path)
    }

    /// An image of the same directory that is an overlay on a file of this machine, and that no
    /// definition and no pool names: it was made by hand. Unreadable ones are not reported.
    pub fn over_beside(&self, path: &Path) -> Option<PathBuf> {
        let dir = path.parent().filter(|dir| self.here && self.silent.why(dir).is_none())?;
        let below = self.identity(path);
        let is_over = |image: &PathBuf| {
            let is_file = image.symlink_metadata().is_ok_and(|meta| meta.is_file());
            let walk = || Walk::from(image, &self.volumes, self.seen()).files;
            is_file && walk().iter().any(|file| self.identity(file).is(&below))
        };
        input::list(dir).ok()?.into_iter().take(MOST_BESIDE).find(is_over)
    }

    /// Every backing file of an image, as far as known.
    pub fn below(&self, path: &Path) -> BTreeSet<PathBuf> {
        Walk::from(path, &self.volumes, self.seen()).files
    }

    /// Whether two names are one file.
    pub fn is_same(&self, a: &Path, b: &Path) -> bool {
        self.identity(a).is(&self.identity(b))
    }

    /// Every file and device of each domain's disks, by the domain's name.
    pub fn files(&self) -> BTreeMap<String, BTreeSet<PathBuf>> {
        let mut all: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
        for entry in &self.entries {
            if let (User::Domain { name, .. }, Some(file)) = (&entry.used.by, &entry.file) {
                all.entry(name.clone()).or_default().insert(file.named.clone());
            }
        }
        all
    }

    /// Returns the domains that use a file as a disk or in a backing chain, by name.
    pub fn domains(&self, file: &Path) -> Vec<String> {
        let users = self.of(file).into_iter().filter(|one| !one.is_uncertain());
        let names: BTreeSet<String> = users
            .filter_map(|one| match one.by {
                User::Domain { name, .. } => Some(name),
                _ => None,
            })
            .collect();
        names.into_iter().collect()
    }

    /// Returns the volumes with a file in their backing chain, as `pool/volume`.
    pub fn volumes(&self, file: &Path) -> Vec<String> {
        let users = self.of(file).into_iter();
        let names = users.filter_map(|one| match one.by {
            User::Volume(name) => Some(name),
            _ => None,
        });
        names.collect()
    }
}

impl Use {
    /// Whether it is only a possible use.
    pub fn is_uncertain(&self) -> bool {
        matches!(self.how, How::Uncertain(..))
    }
}

/// The volumes of every active pool.
pub fn volumes(storage: &dyn Storage) -> Result<Vec<Volume>, HypervisorError> {
    volumes_of(storage, &storage.pools()?)
}

/// The volumes of these pools, if they are active.
fn volumes_of(storage: &dyn Storage, pools: &[Pool]) -> Result<Vec<Volume>, HypervisorError> {
    let mut volumes: Vec<Volume> = Vec::new();
    for pool in pools.iter().filter(|pool| pool.active) {
        match storage.volumes(&pool.name) {
            // Undefined since it was listed.
            Err(error) if error.kind == HypervisorErrorKind::NoVolume => {}
            read => volumes.extend(read?),
        }
    }
    Ok(volumes)
}

/// Returns the files of this machine's loop devices, by file system and inode, from the kernel.
fn loops() -> Vec<(String, (u64, u64))> {
    let asked = output(&["losetup", "--list", "--noheadings", "--output", LOOP_COLUMNS], LOOP_S);
    let text = asked.unwrap_or_default();
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, device, inode) = (words.next()?, words.next()?, words.next()?);
        let (major, minor) = device.split_once(':')?;
        let device = makedev(major.parse().ok()?, minor.parse().ok()?);
        Some((name.trim_start_matches("/dev/").to_owned(), (device, inode.parse().ok()?)))
    };
    text.lines().filter_map(line).collect()
}

/// Every file that a domain's disks name: their own, their backing files, and their mirrors.
pub fn files_of(xml: &DomainXml, volumes: &[Volume]) -> Vec<PathBuf> {
    let file = |named: Named| {
        let volume = named.volume.and_then(|(pool, name)| {
            volumes.iter().find(|volume| volume.pool == pool && volume.name == name)
        });
        named.file.or_else(|| volume.map(|volume| volume.path.clone()))
    };
    let disks = document::read(xml, false).into_iter();
    let disks = disks.filter(|named| matches!(named.how, How::Disk | How::Over | How::Mirror));
    disks.filter_map(file).collect()
}

#[cfg(test)]
mod tests;
