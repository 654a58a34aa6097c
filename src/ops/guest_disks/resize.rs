//! `disk resize`: grows a disk, through its guest while that runs, otherwise through its pool or as
//! a file; then the file system on it. Never shrinks one: data beyond the new end would be lost.

use super::error::GuestDiskError;
use super::inside::{self, InGuest};
use super::subject::{Subject, can_be_opened};
use crate::apply::{DomainStep, GrowBy, GrowStep, Step, space, volume_file};
use crate::change::{Change, DomainChange, Part};
use crate::domain::Element;
use crate::domain::disk_change::path_of;
use crate::error::{Class, Coded as _, Result, classed};
use crate::hypervisor::file_users::Uses;
use crate::hypervisor::machine::command_there;
use crate::hypervisor::storage::is_file_pool;
use crate::hypervisor::{DiskSize, Hypervisor};
use crate::identity::FileId;
use crate::made::said;
use crate::memsize::MemSize;
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

/// A disk that was grown.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResizedDisk {
    /// The domain's name.
    pub name: String,
    /// libvirt's name for the disk.
    pub target: String,
    /// The file that it is on.
    pub source: String,
    /// Its size before.
    pub before_bytes: u64,
    /// Its size.
    pub bytes: u64,
    /// Whether it was grown through the running guest.
    pub live: bool,
    /// The steps made in the guest, and those that remain there; `None` if the disk was not grown.
    pub guest: Option<InGuest>,
}

struct Grown<'a> {
    subject: &'a Subject,
    hypervisor: &'a dyn Hypervisor,
    uses: Uses,
    target: &'a str,
    /// The file that it is on.
    path: String,
    format: String,
    /// Its size afterwards, in bytes.
    bytes: u64,
}

/// Grows a disk, and has the guest grow the file system on it; `None` if it was only shown.
pub fn run(
    session: &mut Session<'_>,
    world: &World,
    wanted: &ResizeDisk,
) -> Result<Option<ResizedDisk>> {
    let ResizeDisk { name, bytes, .. } = wanted;
    let hypervisor = &*world.hypervisor()?;
    let live = || Subject::read(hypervisor, name).ok().and_then(|subject| subject.live);
    let before = if session.is_preview() { None } else { live() };
    let others = before.map(|live| inside::others_of_size(hypervisor, name, &live, *bytes));
    let done = session.run(|world| resize(world, wanted))?;
    if session.is_preview() {
        return Ok(None);
    }
    let mut about = done.change.about;
    if done.made {
        let live = if about.live { live() } else { None };
        about.guest = Some(match live.zip(others) {
            Some((live, others)) => inside::grow(hypervisor, name, &live, *bytes, &others),
            None => inside::by_hand("the guest is off"),
        });
    }
    Ok(Some(about))
}

/// Plans the growth of a disk.
pub fn resize(world: &World, wanted: &ResizeDisk) -> Result<Change<ResizedDisk>> {
    let hypervisor = &*world.hypervisor()?;
    let ResizeDisk { name, target, bytes } = wanted;
    let subject = Subject::read(hypervisor, name)?;
    let (defined, running) = subject.disk(target)?;
    let Some(disk) = running.or(defined) else { unreachable!("one of both has it") };
    let path = fit(disk, target)?;
    if running.is_none() && subject.state.is_active() {
        let hint = format!("`gpuvm restart {}` gives it to the guest; resize it then", word(name));
        let why = "the running guest gets it only at its next start".to_owned();
        return Err(GuestDiskError::Fixed { target: target.clone(), why }.hint(hint));
    }
    let format = disk.child("driver").and_then(|driver| driver.attr("type"));
    let format = format.map_or_else(|| "raw".to_owned(), |format| format.into_owned());
    let uses = Uses::read(hypervisor)?;
    let bytes = *bytes;
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
    let by = if running.is_some() { grown.by_guest()? } else { grown.by_host(now)? };
    let live = by == GrowBy::Guest;
    let warnings = grown.room(now, &by)?;
    let (uuid, target) = (subject.uuid.clone(), target.clone());
    let size = |bytes: u64| MemSize::from_kib(bytes / 1024);
    let what = format!("disk {target}: {} -> {}", size(now.capacity_bytes), size(bytes));
    let step = Step::Domain(DomainStep::GrowDisk(GrowStep {
        name: name.clone(),
        uuid,
        target,
        bytes,
        by,
    }));
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

/// Returns the file of a disk that can be grown; refuses every other disk.
fn fit(disk: Element<'_>, target: &str) -> Result<String> {
    let fixed = |why: &str| {
        let (target, why) = (target.to_owned(), why.to_owned());
        GuestDiskError::Fixed { target, why }
    };
    let is_disk = disk.attr("device").is_none_or(|device| device == "disk");
    if !is_disk || disk.child("readonly").is_some() {
        return Err(fixed("the guest only reads it").bare());
    }
    let kind = disk.attr("type").unwrap_or_else(|| "file".into());
    let encrypted = disk.child("encryption").is_some();
    match path_of(disk).filter(|_| kind == "file" && !encrypted) {
        Some(path) => Ok(path),
        None if kind == "block" => Err(fixed("it is a block device of the host")
            .hint("grow the device itself; the guest sees its new size at its next start")),
        None => Err(fixed("it is not an image file on the host").bare()),
    }
}

impl Grown<'_> {
    fn size(&self) -> Result<DiskSize> {
        if !can_be_opened(Path::new(&self.path), self.hypervisor) {
            let why = format!("{} is neither a file nor a block device", self.path);
            let hint = format!("`ls -l {}` shows it", word(&self.path));
            return Err(GuestDiskError::Fixed { target: self.target.to_owned(), why }.hint(hint));
        }
        let reported = self.hypervisor.disk_size(&self.subject.name, self.target)?;
        let known = || {
            let known = self.uses.volume_at(Path::new(&self.path))?;
            let (capacity_bytes, allocation_bytes) = (known.capacity_bytes, known.allocation_bytes);
            Some(DiskSize { capacity_bytes, allocation_bytes })
        };
        reported.or_else(known).ok_or_else(|| {
            let hint = format!("`ls -l {}` on its machine shows the file", word(&self.path));
            GuestDiskError::NoSize { target: self.target.to_owned() }.hint(hint)
        })
    }

    /// Refuses a disk that others have, or are overlays on: each would see another size.
    fn refuse_others(&self) -> Result<()> {
        let others = self.uses.others_of_disk(Path::new(&self.path), None, &self.subject.uuid);
        if others.is_empty() {
            Ok(())
        } else {
            Err(classed(
                Class::InUse,
                format!(
                    "disk `{}` ({}) is not used by this domain alone: {}",
                    self.target,
                    self.path,
                    said(&others)
                ),
                format!("`gpuvm disk list {}` shows who has its disks", word(&self.subject.name)),
            ))
        }
    }

    /// Through the guest, which runs with it.
    fn by_guest(&self) -> Result<GrowBy> {
        self.subject.running()?;
        Ok(GrowBy::Guest)
    }

    /// Through its pool or as a file; no guest runs with it.
    fn by_host(&self, now: DiskSize) -> Result<GrowBy> {
        self.subject.refuse_kept(self.hypervisor)?;
        let name = word(&self.subject.name).into_owned();
        let online = format!("`gpuvm start {name}`, then resize it while the guest runs");
        let fixed = |why: String| GuestDiskError::Fixed { target: self.target.to_owned(), why };
        let path = Path::new(&self.path);
        if let Some(volume) = self.uses.volume_at(path) {
            if volume.format != self.format {
                let why = format!(
                    "its format is {} in the definition and {} by its content",
                    self.format, volume.format
                );
                return Err(fixed(why).bare());
            }
            let pools = self.hypervisor.storage().pools()?;
            let kind = pools.iter().find(|pool| pool.name == volume.pool).map(|pool| &*pool.kind);
            if !kind.is_some_and(is_file_pool) {
                return Err(fixed("its pool cannot grow volumes".to_owned()).hint(online));
            }
            let (pool, name) = (volume.pool.clone(), volume.name.clone());
            let id = self.hypervisor.storage().volume_id(&pool, &name)?;
            let file = match &id {
                Some(id) => volume_file(self.hypervisor, &id.path)?,
                None => None,
            };
            return Ok(GrowBy::Volume { pool, name, key: id.map(|id| id.key), file });
        }
        if let Some(host) = self.hypervisor.machine().elsewhere() {
            let line = format!("disk resize {name} {} SIZE", word(self.target));
            return Err(fixed(format!("it is a file of machine `{host}` outside any active pool"))
                .hint(format!("there: `{}`", command_there(host, &line))));
        }
        if self.format != "raw" {
            let why = format!("the guest is off, and {} outside any active pool", self.format);
            return Err(fixed(why).hint(online));
        }
        let real: PathBuf = path.canonicalize()?;
        let Some(file) = FileId::at(&real)? else {
            return Err(fixed("its file is gone".into()).bare());
        };
        let reserve = now.allocation_bytes >= now.capacity_bytes;
        Ok(GrowBy::File { path: real, file, reserve })
    }

    /// Warns of too little free space for the growth; refuses it if its blocks are reserved.
    fn room(&self, now: DiskSize, by: &GrowBy) -> Result<Vec<String>> {
        let more = self.bytes - now.capacity_bytes;
        let path = Path::new(&self.path);
        let free = match by {
            GrowBy::Volume { pool, .. } => {
                let pools = self.hypervisor.storage().pools()?;
                let pool = pools.into_iter().find(|known| known.name == *pool);
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
            "disk `{}` may grow by {}, but its storage has only {} free",
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
