//! Which disks of a guest a clone gets copies of: every one that the guest writes. libvirt copies
//! volumes of pools of directories, gpuvm other files; both are whole, whatever the old image lies
//! over. Read-only disks stay shared.

use super::{CloneError, CloneRequest};
use crate::apply::{
    CheckStep, Comparison, FileStep, Preallocate, Step, VolumeStep, modified_ns, space,
};
use crate::backing::{Trusted, chain, format_made, untrusted};
use crate::domain::disk_change::target_of;
use crate::domain::guest::{DiskFormat, Made, Role, VolumeRef};
use crate::domain::{DomainXml, Element};
use crate::error::{Coded as _, Result};
use crate::hypervisor::file_users::Uses;
use crate::hypervisor::storage::{NewVolume, Volume, is_file_pool};
use crate::hypervisor::{DomainSummary, Hypervisor};
use crate::image::{self, Format, HEAD, kept};
use crate::input::open_regular;
use crate::memsize::MemSize;
use crate::paths::path_text;
use crate::shell::word;
use crate::storage::StorageError;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A copy of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Copied {
    /// Its name in the guest.
    pub target: String,
    /// The disk that it is a copy of.
    pub from: String,
    /// Where it is.
    pub path: String,
}

/// All copies, and the steps that make them.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// The steps.
    pub steps: Vec<Step>,
    /// New paths by old ones.
    pub paths: BTreeMap<String, String>,
    /// The objects that it makes.
    pub made: Vec<Made>,
    /// The copies.
    pub disks: Vec<Copied>,
}

pub(crate) struct Old<'a> {
    /// The domain's name.
    pub name: &'a str,
    /// Its name in the guest.
    pub target: &'a str,
    /// Its file.
    pub path: &'a Path,
    /// Its format, by the definition.
    pub format: &'a str,
    /// Its purpose in the guest.
    pub role: Role,
}

pub(crate) fn copies(
    xml: &DomainXml,
    wanted: &CloneRequest,
    row: &DomainSummary,
    uses: &Uses,
    hypervisor: &dyn Hypervisor,
    state: &Path,
) -> Result<Copies> {
    let mut copies = Copies::default();
    let recorded = xml.made();
    for disk in xml.disks() {
        let target = target_of(disk).unwrap_or_default();
        let Some(path) = disk_file(disk, &target, &wanted.name)? else { continue };
        let found = recorded.iter().find(|made| made.path == path);
        let role = found.map_or(Role::Data, |made| made.role);
        if role == Role::Seed {
            continue;
        }
        let driver = disk.child("driver").and_then(|driver| driver.attr("type"));
        let format = driver.unwrap_or_else(|| "raw".into());
        let name = &*wanted.name;
        let old = Old { name, target: &target, path: Path::new(&path), format: &format, role };
        old.refuse_shared(uses, &row.uuid)?;
        let volume = uses.volume_at(old.path).filter(|volume| is_of_directory(volume, hypervisor));
        if format == "qcow2" && hypervisor.has_guests_here() {
            refuse_backing(&old, disk, found.is_some(), wanted, state)?;
        }
        let (new, made) = match volume {
            Some(volume) => copies.volume(&old, volume, wanted, hypervisor)?,
            None => copies.file(&old, wanted)?,
        };
        copies.made.push(Made { role, path: new.clone(), volume: made });
        copies.disks.push(Copied { target: target.clone(), from: path.clone(), path: new.clone() });
        copies.paths.insert(path, new);
    }
    // Each is compared once all are copied, so that the disks of a guest that ran meanwhile are not
    // of different times.
    let compares =
        |step: &Step| matches!(step, Step::Check(CheckStep::Compare(_) | CheckStep::Source { .. }));
    copies.steps.sort_by_key(compares);
    // The copy of one alone has examined it.
    if copies.disks.len() == 1 {
        copies.steps.retain(|step| !matches!(step, Step::Check(CheckStep::Source { .. })));
    }
    Ok(copies)
}

impl Old<'_> {
    /// Refuses a disk that others have.
    pub(crate) fn refuse_shared(&self, uses: &Uses, uuid: &str) -> Result<()> {
        match uses.others(self.path, uuid).first() {
            None => Ok(()),
            Some(other) => refused(self, format!("{} is in use: {other}", self.path.display())),
        }
    }
}

/// The error that a disk is not copied.
pub(super) fn refused<T>(old: &Old<'_>, why: String) -> Result<T> {
    let (name, target) = (old.name.to_owned(), old.target.to_owned());
    let hint = format!("`gpuvm disk list {}` shows its disks", word(&name));
    Err(CloneError::Disk { name, target, why }.hint(hint))
}

/// The file of a disk that the guest writes; `None` if it is only read, or there is no medium.
/// Refused if it is no file, or is not this guest's alone.
pub(crate) fn disk_file(disk: Element<'_>, target: &str, name: &str) -> Result<Option<String>> {
    let device = disk.attr("device").unwrap_or_else(|| "disk".into());
    let Some(source) = disk.child("source") else { return Ok(None) };
    let old = Old { name, target, path: Path::new(""), format: "", role: Role::Data };
    let file = source.attr("file").map(|file| file.into_owned());
    let is_medium = matches!(&*device, "cdrom" | "floppy");
    if is_medium || (disk.child("readonly").is_some() && file.is_some()) {
        return Ok(None);
    }
    let encrypted = |element: Element<'_>| element.child("encryption").is_some();
    if encrypted(disk) || encrypted(source) {
        return refused(&old, "it is encrypted".to_owned());
    }
    if disk.child("shareable").is_some() {
        return refused(&old, "other guests share it".to_owned());
    }
    if file.is_none() {
        let kind = disk.attr("type").unwrap_or_default();
        let what = match source.attr("dev") {
            Some(dev) => format!("{dev} is a drive or a partition, which one guest alone can have"),
            None => format!("it is of type `{kind}`, and files are copied"),
        };
        return refused(&old, what);
    }
    Ok(file)
}

/// Whether libvirt can copy a volume as a file.
pub(super) fn is_of_directory(volume: &Volume, hypervisor: &dyn Hypervisor) -> bool {
    let pools = hypervisor.storage().pools().unwrap_or_default();
    pools.iter().any(|pool| pool.name == volume.pool && is_file_pool(&pool.kind))
}

/// The file name of a copy: with the new name in place of the old one, where that is in it, unless
/// another copy has that.
pub(super) fn own_name(
    file: &str,
    old: &Old<'_>,
    wanted: &CloneRequest,
    taken: &BTreeMap<String, String>,
) -> String {
    let is_free = |name: &String| {
        let path = old.path.with_file_name(name);
        taken.values().all(|other| Path::new(other) != path)
    };
    let usual = usual_name(file, old.target, wanted);
    let numbered = |number: u32| match usual.rsplit_once('.') {
        Some((stem, end)) => format!("{stem}-{number}.{end}"),
        None => format!("{usual}-{number}"),
    };
    let mut names = std::iter::once(usual.clone()).chain((2..).map(numbered));
    names.find(is_free).expect("numbers do not end")
}

/// The unused file name of a copy.
fn usual_name(file: &str, target: &str, wanted: &CloneRequest) -> String {
    let (name, to) = (&*wanted.name, wanted.to.as_str());
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric());
    if let Some(rest) = file.strip_prefix(name).filter(|rest| ends(rest)) {
        return format!("{to}{rest}");
    }
    if let Some(before) = file.strip_suffix(name).filter(|before| before.ends_with('-')) {
        return format!("{before}{to}");
    }
    match file.rsplit_once('.') {
        Some((stem, end)) if !stem.is_empty() => format!("{to}-{target}.{end}"),
        _ => format!("{to}-{target}"),
    }
}

/// Refuses an image of another format than the guest's definition states, or with snapshots, which
/// no copy has.
pub(crate) fn refuse_image(old: &Old<'_>) -> Result<Option<String>> {
    let mut file = match open_regular(old.path) {
        Ok(file) => file,
        Err(error) => return refused(old, error.to_string()),
    };
    let mut head = Vec::new();
    file.by_ref().take(HEAD).read_to_end(&mut head)?;
    let found = match image::disk(&mut file) {
        Ok(found) => found,
        Err(error) => return refused(old, error.to_string()),
    };
    let format = match found.format {
        Format::Raw => "raw",
        Format::Qcow2 => "qcow2",
    };
    if format != old.format {
        let why = format!("it is {} by its definition, and {format} by its content", old.format);
        return refused(old, why);
    }
    match kept(&head).filter(|_| format == "qcow2") {
        Some(kept) => refused(old, format!("it holds {kept}, which a copy would not have")),
        None => Ok(found.backing),
    }
}

/// Refuses an image that names files which the admin does not accept: a copy contains their
/// content. Files stated in the definition are accepted, and those that gpuvm `made` for the guest
/// as an image over another.
fn refuse_backing(
    old: &Old<'_>,
    disk: Element<'_>,
    is_made: bool,
    wanted: &CloneRequest,
    state: &Path,
) -> Result<()> {
    if is_made && format_made(old.path, state) != Some(DiskFormat::Raw) {
        return Ok(());
    }
    let mut accepted = wanted.accept_backing.clone();
    let mut below = disk.child("backingStore");
    while let Some(store) = below {
        let source = store.child("source");
        let path = source.and_then(|source| source.attr("file").or_else(|| source.attr("dev")));
        accepted.extend(path.map(|path| path.into_owned()));
        below = store.child("backingStore");
    }
    let trusted = Trusted { accepted: &accepted, state };
    let Err(refused) = chain(old.path, trusted) else { return Ok(()) };
    Err(untrusted(old.path, refused))
}

/// Refuses a copy that does not fit.
pub(crate) fn refuse_too_large(what: &str, needed: u64, (free, all): (u64, u64)) -> Result<()> {
    if needed <= free {
        return Ok(());
    }
    let size = |bytes: u64| MemSize::from_kib(bytes / 1024).to_string();
    let what = format!("{what}, which takes {}, does not fit", size(needed));
    Err(StorageError::NoRoom { what, free: size(free), size: size(all) }.bare())
}

impl Copies {
    /// Has libvirt copy a volume within its pool. Returns the path and the volume of the copy.
    fn volume(
        &mut self,
        old: &Old<'_>,
        volume: &Volume,
        wanted: &CloneRequest,
        hypervisor: &dyn Hypervisor,
    ) -> Result<(String, Option<VolumeRef>)> {
        if volume.format != old.format {
            let why = format!(
                "it is {} by its definition, and {} by its pool",
                old.format, volume.format
            );
            return refused(old, why);
        }
        refuse_image(old)?;
        let pools = hypervisor.storage().pools()?;
        let pool = volume.pool.clone();
        let preallocated = old.format == "raw" && volume.allocation_bytes >= volume.capacity_bytes;
        if let Some(known) = pools.iter().find(|known| known.name == pool) {
            let what = format!("a copy of {}", old.path.display());
            let has = (known.available_bytes, known.capacity_bytes);
            refuse_too_large(&what, volume.allocation_bytes, has)?;
        }
        let name = own_name(&volume.name, old, wanted, &self.paths);
        let path = path_text(&old.path.with_file_name(&name))?;
        let new = NewVolume {
            name: name.clone(),
            format: volume.format.clone(),
            capacity_bytes: volume.capacity_bytes,
            preallocated,
            backing: None,
            mode: 0o600,
        };
        let from = Some(VolumeRef { pool: pool.clone(), name: volume.name.clone() });
        self.steps.push(VolumeStep::Make { pool: pool.clone(), volume: new, from }.into());
        self.steps.push(
            CheckStep::Compare(Comparison {
                domain: wanted.name.clone(),
                pool: pool.clone(),
                volume: name.clone(),
                format: volume.format.clone(),
                capacity_bytes: volume.capacity_bytes,
                disk: volume.path.clone(),
                disk_format: volume.format.clone(),
                content: hypervisor.has_guests_here(),
            })
            .into(),
        );
        Ok((path, Some(VolumeRef { pool, name })))
    }

    /// Copies a file of this machine.
    fn file(
        &mut self,
        old: &Old<'_>,
        wanted: &CloneRequest,
    ) -> Result<(String, Option<VolumeRef>)> {
        if let Some(backing) = refuse_image(old)? {
            let dir = old.path.parent().unwrap_or(Path::new("/")).display().to_string();
            let hint = format!(
                "`virsh pool-create-as NAME dir --target {}` makes a pool of its directory, in \
                 which libvirt copies it whole",
                word(&dir)
            );
            let why = format!("it is an overlay on {backing}, and is in no pool");
            let (name, target) = (wanted.name.clone(), old.target.to_owned());
            return Err(CloneError::Disk { name, target, why }.hint(hint));
        }
        let meta: Metadata = old.path.metadata()?;
        let (bytes, allocated) = (meta.len(), meta.blocks() * 512);
        let file = old.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path: PathBuf = old.path.with_file_name(own_name(&file, old, wanted, &self.paths));
        if let Some(space) = old.path.parent().and_then(space) {
            let what = format!("a copy of {}", old.path.display());
            refuse_too_large(&what, allocated, (space.free, space.total))?;
        }
        let is_whole = old.role == Role::Data && old.format == "raw" && allocated >= bytes;
        let preallocate = if is_whole { Preallocate::Reserve } else { Preallocate::None };
        let text = path_text(&path)?;
        let from = Some(old.path.to_owned());
        self.steps
            .push(FileStep::CreateDisk { path, bytes, preallocate, from, sha256: None }.into());
        let (path, modified_ns) = (old.path.to_owned(), modified_ns(&meta));
        self.steps.push(CheckStep::Source { path, bytes, modified_ns }.into());
        Ok((text, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Allow, DomainName};
    use crate::storage::SeedRequest;

    #[test]
    fn no_two_copies_have_one_name() {
        let wanted = CloneRequest {
            name: "ca".into(),
            to: DomainName::new("cb").unwrap(),
            gpus: None,
            allow: Allow::default(),
            accept_shared_fabric: false,
            uuid: None,
            seed: SeedRequest::default(),
            overlay: false,
            accept_backing: Vec::new(),
        };
        let mut taken = BTreeMap::new();
        let mut names = Vec::new();
        for (target, path) in [
            ("vda", "/d/ca.raw"),
            ("vdb", "/d/data.raw"),
            ("vdc", "/d/ca-vdb.raw"),
            ("vdd", "/e/ca-vdb.raw"),
            ("vde", "/d/vol-ca"),
            ("vdf", "/d/cats"),
        ] {
            let path = Path::new(path);
            let old = Old { name: "ca", target, path, format: "raw", role: Role::Data };
            let file = path.file_name().unwrap().to_str().unwrap();
            let name = own_name(file, &old, &wanted, &taken);
            let new = path.with_file_name(&name).display().to_string();
            taken.insert(path.display().to_string(), new);
            names.push(name);
        }
        let expected = ["cb.raw", "cb-vdb.raw", "cb-vdb-2.raw", "cb-vdb.raw", "vol-cb", "cb-vdf"];
        assert_eq!(names, expected);
    }
}
