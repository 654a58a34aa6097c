//! `clone --overlay`: the disks of both guests are overlays on the images that the first one had,
//! which are not written from then on. If the first one kept its images, its next start would change the
//! data below the clone; so it gets new ones, too, and is defined with them before the clone is
//! defined. An image that the first guest has not written since the last clone is left out: the
//! next clone is an overlay on the images below it.

use super::disks::{
    Copied, Copies, Old, disk_file, is_of_directory, own_name, refuse_image, refused,
};
use super::{CloneError, CloneRequest};
use crate::apply::{
    CheckStep, Comparison, Step, VolumeStep, disk_made_at, is_another_file, is_untouched,
};
use crate::change::DomainChange;
use crate::domain::disk_change::target_of;
use crate::domain::guest::{Made, Role, VolumeRef};
use crate::domain::setting::{DiskTuning, Put, Setting};
use crate::domain::{DomainEdit, DomainXml};
use crate::error::{Coded as _, Result};
use crate::history::guest::add_made;
use crate::hypervisor::file_users::Uses;
use crate::hypervisor::storage::{NewVolume, Volume};
use crate::hypervisor::{DomainSummary, Hypervisor};
use crate::identity::Identity;
use crate::paths::path_text;
use crate::shell::word;
use crate::world::World;
use nix::unistd::geteuid;
use std::path::{Path, PathBuf};

/// The most images below a disk: each costs the guest a look-up, and QEMU a file.
const MOST_BELOW: usize = 16;
/// The format of an image over another.
const FORMAT: &str = "qcow2";

/// Images over those of a guest, for it and for its clone.
pub(crate) struct Overlays {
    /// The clone's.
    pub copies: Copies,
    /// The first guest as the clone is made of it: its disks are of the clone's format.
    pub source: DomainXml,
    /// The change of the first guest; `None` if it has not written since its last clone.
    pub first: Option<DomainChange>,
    /// The new images of the first guest.
    pub disks: Vec<Copied>,
}

struct Plan<'a> {
    wanted: &'a CloneRequest,
    uses: &'a Uses,
    hypervisor: &'a dyn Hypervisor,
    /// The directory with the records of disks.
    state: PathBuf,
    /// The objects made for the first guest.
    recorded: Vec<Made>,
    copies: Copies,
    /// The images of the first guest: the steps, their products, and the changes of its disks.
    steps: Vec<Step>,
    made: Vec<Made>,
    tuned: Vec<DiskTuning>,
    disks: Vec<Copied>,
    taken: Vec<VolumeRef>,
}

pub(crate) fn overlays(
    xml: &DomainXml,
    wanted: &CloneRequest,
    row: &DomainSummary,
    uses: &Uses,
    hypervisor: &dyn Hypervisor,
    world: &World,
) -> Result<Overlays> {
    let mut plan = Plan {
        wanted,
        uses,
        hypervisor,
        state: world.state_root(),
        recorded: xml.made(),
        copies: Copies::default(),
        steps: Vec::new(),
        made: Vec::new(),
        tuned: Vec::new(),
        disks: Vec::new(),
        taken: Vec::new(),
    };
    let mut formats = Vec::new();
    for (nth, disk) in xml.disks().enumerate() {
        let target = target_of(disk).unwrap_or_default();
        let Some(path) = disk_file(disk, &target, &wanted.name)? else { continue };
        let made = plan.recorded.iter().find(|made| made.path == path).cloned();
        let role = made.as_ref().map_or(Role::Data, |made| made.role);
        if role == Role::Seed {
            continue;
        }
        let driver = disk.child("driver").and_then(|driver| driver.attr("type"));
        let format = driver.unwrap_or_else(|| "raw".into());
        let (name, path) = (&*wanted.name, Path::new(&path));
        let old = Old { name, target: &target, path, format: &format, role };
        if disk.child("backingStore").is_some_and(|below| below.child("source").is_some()) {
            return whole(&old, wanted, "its definition names its backing file".into());
        }
        plan.disk(&old, made.is_some(), nth, &row.uuid)?;
        let format = Put::Is(FORMAT.to_owned());
        formats.push(DiskTuning { nth, format, ..DiskTuning::default() });
    }
    let Plan { copies, steps, made, tuned, disks, .. } = plan;
    if copies.disks.is_empty() {
        let hint = format!("`{}` makes a clone", wanted.whole());
        return Err(CloneError::NoOverlay { name: wanted.name.clone() }.hint(hint));
    }
    let mut source = xml.clone();
    source.apply(&DomainEdit::Set { setting: Setting::Disks { disks: formats } })?;
    if disks.is_empty() {
        return Ok(Overlays { copies, source, first: None, disks });
    }
    let name = wanted.name.clone();
    let records = add_made(world.state(), &row.uuid, &name, hypervisor.uri(), &made)?;
    let said = |disk: &Copied| {
        format!("disk {} over {}, below clone {}", disk.target, disk.from, wanted.to)
    };
    let first = DomainChange {
        verb: "clone",
        name,
        what: disks.iter().map(said).collect(),
        before: xml.text().to_owned(),
        after: over(xml, tuned, &made)?,
        first: records.into_iter().chain(steps).collect(),
        last: Vec::new(),
    };
    Ok(Overlays { copies, source, first: Some(first), disks })
}

/// The first guest's definition with disks over the images.
fn over(xml: &DomainXml, disks: Vec<DiskTuning>, made: &[Made]) -> Result<DomainXml> {
    let mut after = xml.clone();
    after.apply(&DomainEdit::Set { setting: Setting::Disks { disks } })?;
    for made in made {
        after = after.with_made(made)?;
    }
    Ok(after)
}

/// The error that an image does not go below two guests, of which a clone has a copy.
fn whole<T>(old: &Old<'_>, wanted: &CloneRequest, why: String) -> Result<T> {
    let hint = format!("`{}` copies it whole", wanted.whole());
    let (name, target) = (old.name.to_owned(), old.target.to_owned());
    Err(CloneError::Overlay { name, target, why }.hint(hint))
}

impl Plan<'_> {
    /// One disk, by its number in the definition.
    fn disk(&mut self, old: &Old<'_>, is_ours: bool, nth: usize, uuid: &str) -> Result<()> {
        let Plan { wanted, uses, hypervisor, .. } = *self;
        old.refuse_shared(uses, uuid)?;
        let volume = uses.volume_at(old.path).filter(|volume| is_of_directory(volume, hypervisor));
        let Some(volume) = volume else { return in_no_pool(old, wanted) };
        if !is_ours || !self.is_proven(old.path) {
            return self.unproven(old);
        }
        if volume.format != old.format {
            let why = format!(
                "it is {} by its pool, and {} by its definition",
                volume.format, old.format
            );
            return refused(old, why);
        }
        refuse_image(old)?;
        let below = self.unwritten(volume);
        let (base, is_new) = below.map_or((volume.clone(), true), |below| (below.clone(), false));
        let base = &base;
        let at = VolumeRef { pool: base.pool.clone(), name: base.name.clone() };
        let users = uses.others_of_disk(&base.path, Some(&at), uuid);
        if let Some(one) = users.iter().find(|one| one.writes) {
            let why = format!("its backing file {} is in use: {one}", base.path.display());
            return refused(old, why);
        }
        let number = uses.below(&base.path).len() + 1;
        if number > MOST_BELOW {
            return whole(
                old,
                wanted,
                format!("its chain of backing files would have {number} images"),
            );
        }
        let (path, new) = self.over(base, old, wanted.to.as_str())?;
        let bases = uses.below(&base.path);
        let is_below =
            |made: &&Made| made.role == Role::Base && bases.contains(Path::new(&made.path));
        let mut made: Vec<Made> = self.recorded.iter().filter(is_below).cloned().collect();
        let base_path = path_text(&base.path)?;
        made.push(Made { role: Role::Base, path: base_path.clone(), volume: Some(at) });
        let target = old.target.to_owned();
        self.copies.made.push(Made { role: old.role, path: path.clone(), volume: Some(new.0) });
        for base in &made {
            if !self.copies.made.contains(base) {
                self.copies.made.push(base.clone());
            }
        }
        self.copies.steps.push(new.1);
        self.copies.paths.insert(path_text(old.path)?, path.clone());
        self.copies.disks.push(Copied { target, from: base_path.clone(), path });
        if is_new {
            self.first(old, (base, &base_path), made.pop(), nth)?;
        }
        Ok(())
    }

    /// The first guest's own image over a base.
    fn first(
        &mut self,
        old: &Old<'_>,
        (base, base_path): (&Volume, &str),
        recorded: Option<Made>,
        nth: usize,
    ) -> Result<()> {
        let (path, (volume, make)) = self.over(base, old, old.name)?;
        let compare = Step::Check(CheckStep::Compare(Comparison {
            domain: old.name.to_owned(),
            pool: volume.pool.clone(),
            volume: volume.name.clone(),
            format: FORMAT.to_owned(),
            capacity_bytes: base.capacity_bytes,
            disk: base.path.clone(),
            disk_format: base.format.clone(),
            content: self.hypervisor.has_guests_here(),
        }));
        self.steps.extend([make, compare]);
        let target = old.target.to_owned();
        let (format, file) = (Put::Is(FORMAT.to_owned()), Put::Is(path.clone()));
        self.tuned.push(DiskTuning { nth, format, file, ..DiskTuning::default() });
        self.made.extend(recorded);
        self.made.push(Made { role: old.role, path: path.clone(), volume: Some(volume) });
        self.disks.push(Copied { target, from: base_path.to_owned(), path });
        Ok(())
    }

    /// The base below an image of the first guest that has no content of its own; `None` if it has,
    /// or the image below is not proven to be of gpuvm's making.
    fn unwritten(&self, volume: &Volume) -> Option<&Volume> {
        let below = volume.backing.as_ref()?;
        let path = below.to_str()?;
        let is_base = |made: &Made| made.role == Role::Base && made.path == path;
        let is_ours = self.recorded.iter().any(is_base) && self.is_proven(below);
        let base = self.uses.volume_at(below)?;
        let is_as_large = base.capacity_bytes == volume.capacity_bytes;
        (is_ours && is_as_large && is_untouched(&volume.path)).then_some(base)
    }

    /// The refusal of an image that gpuvm is not proven to have made: only root reads its records
    /// of the system's guests.
    fn unproven(&self, old: &Old<'_>) -> Result<()> {
        let path = old.path.display();
        if geteuid().is_root() || !self.hypervisor.uri().ends_with("/system") {
            return whole(old, self.wanted, format!("it is not proven that gpuvm made {path}"));
        }
        let why = format!("only root can tell whether gpuvm made {path}");
        let (name, target) = (old.name.to_owned(), old.target.to_owned());
        let hint = format!("`sudo {}`", self.wanted.again());
        Err(CloneError::Overlay { name, target, why }.hint(hint))
    }

    /// Whether a file is the one that gpuvm made there.
    fn is_proven(&self, path: &Path) -> bool {
        match disk_made_at(&self.state, path) {
            Some(Identity::Volume { file: Some(was), .. } | Identity::File(was)) => {
                !is_another_file(Some(&was), path)
            }
            _ => false,
        }
    }

    /// A new image over a base, for guest `owner`: its path, its volume and the step that makes it.
    fn over(
        &mut self,
        base: &Volume,
        old: &Old<'_>,
        owner: &str,
    ) -> Result<(String, (VolumeRef, Step))> {
        let pool = base.pool.clone();
        let usual = if owner == old.name {
            base.name.clone()
        } else {
            own_name(&base.name, old, self.wanted, &self.copies.paths)
        };
        let numbered = numbered(&usual);
        let mut names = std::iter::once(with_format(&usual)).chain(numbered);
        let is_free = |name: &String| {
            let volume = VolumeRef { pool: pool.clone(), name: name.clone() };
            self.uses.volume(&volume).is_none() && !self.taken.contains(&volume)
        };
        let name = names.find(is_free).expect("numbers do not end");
        let volume = VolumeRef { pool: pool.clone(), name: name.clone() };
        self.taken.push(volume.clone());
        let path = path_text(&base.path.with_file_name(&name))?;
        let new = NewVolume {
            name,
            format: FORMAT.to_owned(),
            capacity_bytes: base.capacity_bytes,
            preallocated: false,
            backing: Some((base.path.clone(), base.format.clone())),
            mode: 0o600,
        };
        Ok((path, (volume, Step::Volume(VolumeStep::Make { pool, volume: new, from: None }))))
    }
}

/// The refusal of a file that libvirt makes no image over.
fn in_no_pool(old: &Old<'_>, wanted: &CloneRequest) -> Result<()> {
    let dir = old.path.parent().unwrap_or(Path::new("/")).display().to_string();
    let hint = format!(
        "`virsh pool-create-as NAME dir --target {}` makes a pool of its directory; `{}` copies it \
         whole",
        word(&dir),
        wanted.whole()
    );
    let why = format!("{} is in no pool of a directory", old.path.display());
    let (name, target) = (old.name.to_owned(), old.target.to_owned());
    Err(CloneError::Overlay { name, target, why }.hint(hint))
}

/// A file name that says nothing of another format.
fn with_format(name: &str) -> String {
    let other = [".raw", ".img"].into_iter().find_map(|end| name.strip_suffix(end));
    other.map_or_else(|| name.to_owned(), |stem| format!("{stem}.{FORMAT}"))
}

/// The names after a taken one: `a.os`, `a.os-2`, `a.os-3`. The number follows the role: `a-2.os`
/// would be the disk of a new guest `a-2`.
fn numbered(name: &str) -> impl Iterator<Item = String> {
    let name = with_format(name);
    let end = format!(".{FORMAT}");
    let (stem, end) = match name.strip_suffix(&end) {
        Some(stem) => (stem.to_owned(), end),
        None => (name, String::new()),
    };
    let last = stem.rsplit_once('-').and_then(|(before, number)| {
        Some((before.to_owned(), number.parse::<u32>().ok().filter(|number| *number >= 2)?))
    });
    let (stem, from) =
        last.map_or((stem, 2), |(before, number)| (before, number.saturating_add(1)));
    (from..).map(move |number| format!("{stem}-{number}{end}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_numbered_on() {
        for (name, first, second) in [
            ("a.os", "a.os-2", "a.os-3"),
            ("a.os-2", "a.os-3", "a.os-4"),
            ("a-2.os", "a-2.os-2", "a-2.os-3"),
            ("vol-a", "vol-a-2", "vol-a-3"),
            ("a-1.raw", "a-1-2.qcow2", "a-1-3.qcow2"),
            ("a.b.img", "a.b-2.qcow2", "a.b-3.qcow2"),
        ] {
            let names: Vec<String> = numbered(name).take(2).collect();
            assert_eq!(names, [first, second], "{name}");
        }
    }
}
