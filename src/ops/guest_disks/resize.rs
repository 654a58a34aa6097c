//! `disk resize`: a disk becomes larger, by its guest while that runs, else by its pool or as a file; then what lies on it.
//! It never becomes smaller: what is beyond the new end would be gone.

use super::error::GuestDiskError;
use super::inside::{self, InGuest};
use super::subject::Subject;
use crate::apply::{GrowBy, Step, space};
use crate::change::{Change, DomainChange, Part};
use crate::domain::Element;
use crate::domain::disk_change::path_of;
use crate::domain::guest::VolumeRef;
use crate::error::{Class, Coded as _, Result, classed};
use crate::hypervisor::machine::command_there;
use crate::hypervisor::uses::Uses;
use crate::hypervisor::{DiskSize, Hypervisor};
use crate::identity::FileId;
use crate::made::said;
use crate::memsize::MemSize;
use crate::pools::is_file_pool;
use crate::session::Session;
use crate::shell::word;
use crate::world::World;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// A new size for a disk of a domain.
#[derive(Debug, Clone)]
pub struct ResizeDisk {
    /// The domain.
    pub name: String,
    /// The disk, by its name in the definition.
    pub target: String,
    /// Its size, in bytes.
    pub bytes: u64,
}

/// A disk that was made larger.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResizedDisk {
    /// The domain's name.
    pub name: String,
    /// Name that libvirt knows the disk by.
    pub target: String,
    /// The file that it is on.
    pub source: String,
    /// Its size before.
    pub before_bytes: u64,
    /// Its size.
    pub bytes: u64,
    /// Whether a running guest was told.
    pub live: bool,
    /// What was done in the guest, and what is left to be typed there; none: it was not larger than before.
    pub guest: Option<InGuest>,
}

/// A disk that is to be made larger.
struct Grown<'a> {
    /// The domain.
    subject: &'a Subject,
    /// Where it is.
    hypervisor: &'a dyn Hypervisor,
    /// Who uses what.
    uses: Uses,
    /// The disk's name.
    target: &'a str,
    /// The file that it is on.
    path: String,
    /// Layout of its bytes by the definition.
    format: String,
    /// Its size afterwards, in bytes.
    bytes: u64,
}

/// Makes a disk larger, and has the guest grow what lies on it; none: it was only shown.
pub fn run(
    session: &mut Session<'_>,
    world: &World,
    wanted: &ResizeDisk,
) -> Result<Option<ResizedDisk>> {
    let done = session.run(|world| resize(world, wanted))?;
    if session.is_preview() {
        return Ok(None);
    }
    let mut about = done.change.about;
    if done.made {
        let hypervisor = &*world.hypervisor()?;
        let subject = Subject::read(hypervisor, &wanted.name)?;
        about.guest = Some(match subject.live.as_ref().filter(|_| about.live) {
            Some(live) => inside::grow(hypervisor, &wanted.name, live, wanted.bytes),
            None => inside::by_hand("it does not run"),
        });
    }
    Ok(Some(about))
}

/// Plans a disk to become larger.
pub fn resize(world: &World, wanted: &ResizeDisk) -> Result<Change<ResizedDisk>> {
    let hypervisor = &*world.hypervisor()?;
    let ResizeDisk { name, target, bytes } = wanted;
    let subject = Subject::read(hypervisor, name)?;
    let (defined, running) = subject.disk(target)?;
    let Some(disk) = running.or(defined) else { unreachable!("one of both has it") };
    let path = fit(disk, target)?;
    if running.is_none() && subject.state.is_active() {
        let hint = format!("`gpuvm restart {}` gives it to the guest; resize it then", word(name));
        let why = "the running guest gets it at its next start only".to_owned();
        return Err(GuestDiskError::Fixed { target: target.clone(), why }.hint(hint));
    }
    let format = disk.child("driver").and_then(|driver| driver.attr("type"));
    let format = format.map_or_else(|| "raw".to_owned(), |format| format.into_owned());
    let uses = Uses::read(hypervisor)?;
    let (bytes, path) = (*bytes, path.clone());
    let grown = Grown { subject: &subject, hypervisor, uses, target, path, format, bytes };
    let now = grown.size()?;
    let about = |live| ResizedDisk {
        name: name.clone(),
        target: target.clone(),
        source: grown.path.clone(),
        before_bytes: now.capacity_bytes,
        bytes,
        live,
        guest: None,
    };
    if bytes == now.capacity_bytes {
        return Ok(Change::new("disk resize", name, Vec::new(), about(false)));
    }
    if bytes < now.capacity_bytes {
        let size = |bytes: u64| MemSize::from_kib(bytes / 1024).to_string();
        let (is, wanted) = (size(now.capacity_bytes), size(bytes));
        let hint = format!(
            "`gpuvm disk add {} size={}` makes a smaller one, to copy to",
            word(name),
            MemSize::from_kib(bytes / 1024).typed()
        );
        return Err(GuestDiskError::Smaller { target: target.clone(), is, wanted }.hint(hint));
    }
    grown.refuse_others()?;
    let by = match running.is_some() {
        true => grown.by_guest()?,
        false => grown.by_host(now)?,
    };
    let live = by == GrowBy::Guest;
    let warnings = grown.room(now, &by)?;
    let (uuid, target) = (subject.uuid.clone(), target.clone());
    let size = |bytes: u64| MemSize::from_kib(bytes / 1024);
    let what = format!("disk {target}: {} -> {}", size(now.capacity_bytes), size(bytes));
    let step = Step::GrowDisk { name: name.clone(), uuid, target, bytes, by };
    let text = subject.xml.text().to_owned();
    let change = DomainChange {
        verb: "disk resize",
        name: name.clone(),
        what: vec![what],
        before: text,
        after: subject.xml.clone(),
        first: Vec::new(),
        last: vec![step],
    };
    let all = Change::new("disk resize", name, Vec::new(), about(live));
    Ok(Change { parts: vec![Part::Domain(change)], warnings, ..all })
}

/// The file of a disk that the guest writes and whose size is its own; refuses every other.
fn fit(disk: Element<'_>, target: &str) -> Result<String> {
    let fixed = |why: &str, hint: &str| {
        let (target, why) = (target.to_owned(), why.to_owned());
        GuestDiskError::Fixed { target, why }.hint(hint)
    };
    let is_disk = disk.attr("device").is_none_or(|device| device == "disk");
    if !is_disk || disk.child("readonly").is_some() {
        return Err(fixed("the guest only reads it", ""));
    }
    let kind = disk.attr("type").unwrap_or_else(|| "file".into());
    let encrypted = disk.child("encryption").is_some();
    match path_of(disk).filter(|_| kind == "file" && !encrypted) {
        Some(path) => Ok(path),
        None if kind == "block" => Err(fixed(
            "it is a device of the host, which has the size that it has",
            "`lvextend` makes a volume of LVM larger; the guest sees that at its next start",
        )),
        None => Err(fixed("it is no image file of the host", "")),
    }
}

impl Grown<'_> {
    /// How large it is.
    fn size(&self) -> Result<DiskSize> {
        let told = self.hypervisor.disk_size(&self.subject.name, self.target)?;
        let known = || {
            let known = self.uses.volume_at(Path::new(&self.path))?;
            let (capacity_bytes, allocation_bytes) = (known.capacity_bytes, known.allocation_bytes);
            Some(DiskSize { capacity_bytes, allocation_bytes })
        };
        let missing = || GuestDiskError::NoSize { target: self.target.to_owned() };
        told.or_else(known).ok_or_else(|| {
            let hint = format!("`ls -l {}` on its machine shows the file", word(&self.path));
            missing().hint(hint)
        })
    }

    /// Refuses a disk that others have, or lie over: each would see another size.
    fn refuse_others(&self) -> Result<()> {
        let others = self.uses.others_of_disk(Path::new(&self.path), None, &self.subject.uuid);
        match others.is_empty() {
            true => Ok(()),
            false => Err(classed(
                Class::InUse,
                format!(
                    "disk `{}` ({}) is not the domain's alone: {}",
                    self.target,
                    self.path,
                    said(&others)
                ),
                format!("`gpuvm disk list {}` shows who has its disks", word(&self.subject.name)),
            )),
        }
    }

    /// By the guest, which runs with it.
    fn by_guest(&self) -> Result<GrowBy> {
        self.subject.running()?;
        Ok(GrowBy::Guest)
    }

    /// By its pool or as a file; no guest runs with it.
    fn by_host(&self, now: DiskSize) -> Result<GrowBy> {
        self.subject.refuse_kept(self.hypervisor)?;
        let name = word(&self.subject.name).into_owned();
        let online = format!("`gpuvm start {name}`, then resize it while the guest runs");
        let fixed = |why: String| GuestDiskError::Fixed { target: self.target.to_owned(), why };
        let path = Path::new(&self.path);
        if let Some(volume) = self.uses.volume_at(path) {
            if volume.format != self.format {
                let why = format!(
                    "it is {} by its definition and {} by its content",
                    self.format, volume.format
                );
                return Err(fixed(why).bare());
            }
            let pools = self.hypervisor.storage().pools()?;
            let kind = pools.iter().find(|pool| pool.name == volume.pool).map(|pool| &*pool.kind);
            if !kind.is_some_and(is_file_pool) {
                return Err(fixed("its pool does not make volumes larger".to_owned()).hint(online));
            }
            let (pool, name) = (volume.pool.clone(), volume.name.clone());
            return Ok(GrowBy::Volume(VolumeRef { pool, name }));
        }
        if let Some(host) = self.hypervisor.machine().elsewhere() {
            let line = format!("disk resize {name} {} SIZE", word(self.target));
            return Err(fixed(format!("it is a file of machine `{host}`, in no active pool"))
                .hint(format!("there: `{}`", command_there(host, &line))));
        }
        if self.format != "raw" {
            let why = format!("it is {}, off, and in no active pool", self.format);
            return Err(fixed(why).hint(online));
        }
        let real: PathBuf = path.canonicalize()?;
        let Some(file) = FileId::at(&real)? else { return Err(fixed("it is gone".into()).bare()) };
        let reserve = now.allocation_bytes >= now.capacity_bytes;
        Ok(GrowBy::File { path: real, file, reserve })
    }

    /// What should be known of the room that it has to grow in; refuses too little for blocks that are reserved.
    fn room(&self, now: DiskSize, by: &GrowBy) -> Result<Vec<String>> {
        let more = self.bytes - now.capacity_bytes;
        let path = Path::new(&self.path);
        let free = match by {
            GrowBy::Volume(volume) => {
                let pools = self.hypervisor.storage().pools()?;
                let pool = pools.into_iter().find(|pool| pool.name == volume.pool);
                pool.map(|pool| pool.available_bytes)
            }
            _ if self.hypervisor.machine().is_here() => {
                path.parent().and_then(space).map(|space| space.free)
            }
            _ => None,
        };
        let Some(free) = free.filter(|free| *free < more) else { return Ok(Vec::new()) };
        let size = |bytes: u64| MemSize::from_kib(bytes / 1024);
        let said = format!(
            "disk `{}` may grow by {}, and {} is free where it lies",
            self.target,
            size(more),
            size(free)
        );
        match by {
            GrowBy::File { reserve: true, .. } => {
                let fits = now.capacity_bytes + free / 2;
                let hint = format!(
                    "`gpuvm disk resize {} {} {}` fits",
                    word(&self.subject.name),
                    word(self.target),
                    size(fits).typed()
                );
                Err(GuestDiskError::Fixed { target: self.target.to_owned(), why: said }.hint(hint))
            }
            _ => Ok(vec![said]),
        }
    }
}
