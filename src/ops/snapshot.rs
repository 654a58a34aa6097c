//! `snapshot`: the content of a guest's disks at a time, kept in their own images by libvirt. Only
//! of guests that are off, whose disks are all of qcow2: nothing that a snapshot does not have is
//! left out silently.

use crate::apply::{MadeSnapshot, SnapshotStep, Step, now_s};
use crate::change::Change;
use crate::discover::openers::in_use;
use crate::domain::disk_change::{path_of, target_of};
use crate::domain::{DomainXml, Element};
use crate::domain_history::{boot, when};
use crate::drives;
use crate::error::{Coded, Result, dump_and_define, usage};
use crate::guest::stop_first;
use crate::history::Owner;
use crate::hypervisor::file_users::Uses;
use crate::hypervisor::snapshot::{Snapshot, SnapshotKind};
use crate::hypervisor::{DomainSummary, Hypervisor, XmlOf};
use crate::image::{ImageSnapshot, snapshots};
use crate::input::regular;
use crate::lookup::find;
use crate::made::said;
use crate::reporter::Question;
use crate::request::DomainName;
use crate::shell::{domain, word};
use crate::world::World;
use serde::Serialize;
use std::io::ErrorKind;
use std::path::Path;

/// The reason a snapshot is not made, reverted to or deleted.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "snapshot-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum SnapshotError {
    /// The domain runs.
    #[error("domain `{name}` {state}; its snapshots can only be changed while it is off")]
    Active { name: String, state: &'static str },
    /// The domain has no definition.
    #[error("domain `{name}` has no persistent definition, so it has no snapshots")]
    NoDefinition { name: String },
    /// The domain has a saved state, which belongs to the content of its disks.
    #[error("domain `{name}` has {what}, which belongs to the present content of its disks")]
    Saved { name: String, what: String },
    /// A disk of the domain cannot hold a snapshot.
    #[error("disk `{target}` of domain `{name}` cannot hold a snapshot: {why}")]
    Disk { name: String, target: String, why: String },
    /// The domain has a drive, whose content no snapshot has.
    #[error("a snapshot does not include what domain `{name}` writes to its drives: {drive}")]
    Drive { name: String, drive: String },
    /// The domain has no disk to make a snapshot of.
    #[error("domain `{name}` has no disk of its own to snapshot")]
    NoDisk { name: String },
    /// Others use a disk of the domain.
    #[error("disk {path} does not belong to domain `{name}` alone: {by}")]
    Shared { name: String, path: String, by: String },
    /// The image of a disk has other snapshots than libvirt knows.
    #[error("image {path} of domain `{name}` {why}")]
    Image { name: String, path: String, why: String },
    /// The domain has a snapshot of this name.
    #[error("domain `{name}` has a snapshot `{snapshot}`")]
    Exists { name: String, snapshot: String },
    /// The domain has no snapshot of this name.
    #[error("domain `{name}` has no snapshot `{snapshot}`{}", of_all(all))]
    NotFound { name: String, snapshot: String, all: Vec<String> },
    /// The snapshot is none that gpuvm handles.
    #[error("snapshot `{snapshot}` of domain `{name}` {why}, which gpuvm leaves to virsh")]
    Foreign { name: String, snapshot: String, why: &'static str },
    /// The domain has other disks than when the snapshot was made.
    #[error("domain `{name}` had {before} when snapshot `{snapshot}` was made; it now has {now}")]
    OtherDisks { name: String, snapshot: String, before: String, now: String },
}

impl Coded for SnapshotError {}

/// The snapshots that a domain has, in words.
fn of_all(all: &[String]) -> String {
    match all {
        [] => ", nor any other".to_owned(),
        all => format!("; it has `{}`", all.join("`, `")),
    }
}

/// A snapshot of a domain.
#[derive(Debug, Clone)]
pub struct SnapshotOf {
    /// The domain.
    pub name: String,
    /// The snapshot.
    pub snapshot: DomainName,
}

/// The fate of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotDeed {
    /// It was made.
    Created,
    /// The disks have its content again.
    Reverted,
    /// It was deleted.
    Deleted,
}

/// A snapshot that was made, reverted to or deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChangedSnapshot {
    /// The domain's name.
    pub name: String,
    /// The snapshot.
    pub snapshot: String,
    /// Its fate.
    pub deed: SnapshotDeed,
    /// The disks that it has, by their names in the guest.
    pub disks: Vec<String>,
}

/// A snapshot in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListedSnapshot {
    /// Its name.
    pub name: String,
    /// When it was made, UTC.
    pub made: String,
    /// Where its state is.
    pub kind: SnapshotKind,
    /// Whether gpuvm can revert to it.
    pub usable: bool,
    /// The disks whose content is in their own images, by their names in the guest.
    pub disks: Vec<String>,
}

struct Subject {
    row: DomainSummary,
    xml: DomainXml,
    snapshots: Vec<Snapshot>,
}

impl Subject {
    /// Reads it; refuses one that is not off.
    fn read(hypervisor: &dyn Hypervisor, name: &str) -> Result<Subject> {
        let row = find(hypervisor, name)?;
        let name = name.to_owned();
        if !row.persistent {
            let hint = dump_and_define(&name);
            return Err(SnapshotError::NoDefinition { name }.hint(hint));
        }
        if row.state.is_active() {
            let (state, hint) = stop_first(&row);
            return Err(SnapshotError::Active { name, state }.hint(hint));
        }
        let xml = DomainXml::parse(&hypervisor.xml(&name, XmlOf::Inactive)?)?;
        let snapshots = hypervisor.snapshots(&name)?;
        Ok(Subject { row, xml, snapshots })
    }

    /// Refuses a saved state: with other content of the disks it would destroy them.
    fn refuse_saved(&self, hypervisor: &dyn Hypervisor) -> Result<()> {
        let name = self.row.name.clone();
        match hypervisor.keeps(&name)?.into_iter().find(|kept| kept.starts) {
            None => Ok(()),
            Some(kept) => Err(SnapshotError::Saved { name, what: kept.what }.hint(kept.hint)),
        }
    }

    /// The disks that the guest writes, each with its file; refuses disks that cannot have
    /// snapshots, and those that others use.
    fn disks(&self, hypervisor: &dyn Hypervisor) -> Result<Vec<(String, String)>> {
        let name = &self.row.name;
        if let Some(drive) = drives::kept(&self.xml, hypervisor)?.into_iter().next() {
            let drive = drive.split(';').next().unwrap_or_default().to_owned();
            let hint = format!(
                "`gpuvm disk list {}` shows its disks; what is on a drive is copied in the guest",
                word(name)
            );
            return Err(SnapshotError::Drive { name: name.clone(), drive }.hint(hint));
        }
        let disks = self.xml.disks().filter(|disk| is_written(*disk));
        let disks = disks.map(|disk| self.fit(disk)).collect::<Result<Vec<_>>>()?;
        self.refuse_shared(&disks, hypervisor)?;
        if disks.is_empty() {
            let hint = format!("`gpuvm disk list {}` shows its disks", word(name));
            return Err(SnapshotError::NoDisk { name: name.clone() }.hint(hint));
        }
        Ok(disks)
    }

    /// Refuses disks that others have, by a definition or open: their content would change below
    /// them, and libvirt does not say if an image was in use and keeps its snapshot.
    fn refuse_shared(&self, disks: &[(String, String)], hypervisor: &dyn Hypervisor) -> Result<()> {
        let name = &self.row.name;
        let uses = Uses::read(hypervisor)?;
        for (target, path) in disks {
            let file = Path::new(path);
            let others = uses.others(file, &self.row.uuid);
            let open = || in_use(file, false).filter(|_| hypervisor.has_guests_here());
            let (by, hint) = if others.is_empty() {
                match (open(), uses.over_beside(file)) {
                    (Some(by), _) => {
                        let shows = format!("`fuser -v {}` shows it", word(path));
                        (by, format!("end that process, then try again; {shows}"))
                    }
                    (None, Some(over)) => over_it(&over),
                    (None, None) => continue,
                }
            } else {
                (
                    said(&others),
                    format!("`gpuvm disk list {}` shows who has `{target}`", word(name)),
                )
            };
            let (name, path) = (name.clone(), path.clone());
            return Err(SnapshotError::Shared { name, path, by }.hint(hint));
        }
        Ok(())
    }

    /// Refuses images that do not have `fits` snapshots of this name: libvirt goes by names, and
    /// takes the first.
    fn refuse_images(
        &self,
        disks: &[(String, String)],
        snapshot: &str,
        (hypervisor, world): (&dyn Hypervisor, &World),
        fits: impl Fn(usize) -> bool,
    ) -> Result<()> {
        if !hypervisor.has_guests_here() {
            return Ok(());
        }
        for (_, path) in disks {
            let all = match regular(Path::new(path)).and_then(|mut image| snapshots(&mut image)) {
                Ok(all) => all,
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    world.warning(&format!(
                        "{path} cannot be read, so nobody looked for snapshots in it: {error}"
                    ));
                    continue;
                }
                Err(error) => {
                    let (name, why) = (self.row.name.clone(), format!("cannot be read: {error}"));
                    let hint = format!("`qemu-img check {}` looks at it", word(path));
                    return Err(SnapshotError::Image { name, path: path.clone(), why }.hint(hint));
                }
            };
            let number = all.iter().filter(|known| known.name == snapshot).count();
            if fits(number) {
                continue;
            }
            let why = match number {
                0 => format!("has no snapshot `{snapshot}`"),
                1 => format!("has a snapshot `{snapshot}`, which libvirt does not know"),
                number => format!("has {number} snapshots `{snapshot}`"),
            };
            let shows = format!("`qemu-img snapshot -l {}` shows those of the image", word(path));
            let hint = match number {
                1 => format!("{shows}; another name than `{snapshot}` does without it"),
                _ => shows,
            };
            let name = self.row.name.clone();
            return Err(SnapshotError::Image { name, path: path.clone(), why }.hint(hint));
        }
        Ok(())
    }

    /// Refuses a snapshot whose name is the id of another one in an image: libvirt has `qemu-img`
    /// revert by the name, and that looks for an id first.
    fn refuse_ids(
        &self,
        disks: &[(String, String)],
        snapshot: &str,
        hypervisor: &dyn Hypervisor,
    ) -> Result<()> {
        if !hypervisor.has_guests_here() {
            return Ok(());
        }
        let read = |path: &str| {
            regular(Path::new(path)).and_then(|mut image| snapshots(&mut image)).unwrap_or_default()
        };
        let images: Vec<_> = disks.iter().map(|(_, path)| (path, read(path))).collect();
        let other = |all: &[ImageSnapshot]| {
            let other = all.iter().find(|one| one.id == snapshot && one.name != snapshot);
            other.map(|one| one.name.clone())
        };
        let Some((path, other)) = images.iter().find_map(|(path, all)| Some((*path, other(all)?)))
        else {
            return Ok(());
        };
        let why = format!(
            "has snapshot `{other}` with the id {snapshot}, which QEMU would revert to instead of \
             snapshot `{snapshot}`"
        );
        let by_id = |(path, all): &(&String, Vec<ImageSnapshot>)| {
            let id = all.iter().find(|one| one.name == snapshot)?.id.clone();
            Some(format!("qemu-img snapshot -a {} {}", word(&id), word(path)))
        };
        let by_id: Vec<String> = images.iter().filter_map(by_id).collect();
        let hint = format!("`{}` reverts by the id of `{snapshot}`", by_id.join(" && "));
        let (name, path) = (self.row.name.clone(), path.clone());
        Err(SnapshotError::Image { name, path, why }.hint(hint))
    }

    /// A disk that can hold a snapshot, by its name and its file.
    fn fit(&self, disk: Element<'_>) -> Result<(String, String)> {
        let name = self.row.name.clone();
        let target = target_of(disk).unwrap_or_default();
        let is_file = disk.attr("type").is_some_and(|kind| kind == "file");
        let format = disk.child("driver").and_then(|driver| driver.attr("type"));
        let format = format.map_or_else(|| "raw".to_owned(), |format| format.into_owned());
        let list = format!("`gpuvm disk list {}` shows its disks", word(&name));
        let refused = |why: String, hint: String| {
            let (name, target) = (name.clone(), target.clone());
            Err(SnapshotError::Disk { name, target, why }.hint(hint))
        };
        let Some(path) = path_of(disk).filter(|_| is_file) else {
            let why = "it is not an image file".to_owned();
            let remove = format!(
                "{list}; `gpuvm disk remove {} {}` takes it from the guest and keeps its data",
                word(&name),
                word(&target)
            );
            return refused(why, remove);
        };
        if disk.child("shareable").is_some() {
            return refused("other guests may write it, too".to_owned(), list);
        }
        if let Some(kind) = disk.attr("snapshot").filter(|kind| kind != "internal") {
            let hint = format!("`virsh edit {}` takes that out, on the `<disk>`", domain(&name));
            return refused(format!("its definition has snapshot='{kind}'"), hint);
        }
        if format != "qcow2" {
            let hint = format!(
                "`gpuvm tune {} --convert {}=qcow2` makes it one that can",
                word(&name),
                word(&target)
            );
            return refused(format!("{path} is {format}, and only qcow2 can"), hint);
        }
        Ok((target, path))
    }

    /// The snapshot of a name; refuses one that is not of gpuvm's kind.
    fn snapshot(&self, wanted: &SnapshotOf) -> Result<&Snapshot> {
        let (name, snapshot) = (self.row.name.clone(), wanted.snapshot.as_str().to_owned());
        let Some(found) = self.snapshots.iter().find(|known| known.name == snapshot) else {
            let all = self.snapshots.iter().map(|known| known.name.clone()).collect();
            let hint = format!("`gpuvm snapshot list {}` shows its snapshots", word(&name));
            return Err(SnapshotError::NotFound { name, snapshot, all }.hint(hint));
        };
        let why = match found.kind {
            SnapshotKind::Internal => return Ok(found),
            SnapshotKind::External => "has image files of its own",
            SnapshotKind::Running => "is of the running guest, with its memory",
        };
        let hint =
            format!("`virsh snapshot-dumpxml {} {}` shows it", domain(&name), word(&snapshot));
        Err(SnapshotError::Foreign { name, snapshot, why }.hint(hint))
    }

    /// A snapshot as a step names it.
    fn made(&self, snapshot: &Snapshot) -> MadeSnapshot {
        MadeSnapshot {
            name: self.row.name.clone(),
            uuid: self.row.uuid.clone(),
            snapshot: snapshot.name.clone(),
            made_s: snapshot.made_s,
        }
    }
}

/// The message about an overlay on another image, and the command that makes it whole.
pub(crate) fn over_it(image: &Path) -> (String, String) {
    let by = format!("image {} is an overlay on it", image.display());
    let (image, whole) = (image.to_string_lossy(), format!("{}.whole", image.display()));
    let (image, whole) = (word(&image), word(&whole));
    let hint = format!(
        "`qemu-img convert -O qcow2 {image} {whole}` writes all that it shows, but not its internal \
         snapshots, to an image of its own; then `rm {image}`"
    );
    (by, hint)
}

/// Whether a guest can write a disk.
fn is_written(disk: Element<'_>) -> bool {
    let is_medium = disk.attr("device").is_some_and(|kind| kind == "cdrom" || kind == "floppy");
    !is_medium && disk.child("readonly").is_none()
}

/// The change of a snapshot by one step, which is recorded, so that `undo` does not take an earlier
/// change for the last one.
fn change(
    (verb, world, hypervisor): (&'static str, &World, &dyn Hypervisor),
    (wanted, subject): (&SnapshotOf, &Subject),
    step: Step,
    (deed, disks): (SnapshotDeed, &[(String, String)]),
) -> Result<Change<ChangedSnapshot>> {
    let (name, snapshot) = (&wanted.name, wanted.snapshot.as_str());
    let about = ChangedSnapshot {
        name: name.clone(),
        snapshot: snapshot.to_owned(),
        deed,
        disks: disks.iter().map(|(target, _)| target.clone()).collect(),
    };
    let mut steps = Vec::new();
    if world.owner(&subject.row.uuid, hypervisor) == Owner::This {
        let history = world.history(&subject.row.uuid)?;
        let text = subject.xml.text().to_owned();
        let mut entry = history.next(verb, hypervisor.uri(), name, now_s(), text.clone());
        entry.what = vec![format!("snapshot {snapshot}")];
        entry.after = Some(text);
        entry.boot = boot()?;
        entry.steps = vec![step.clone()];
        steps.push(history.remember(&entry, None));
    }
    steps.push(step);
    let again = format!("gpuvm {verb} {} {}", word(name), word(snapshot));
    Ok(Change { again, ..Change::new(verb, name, steps, about) })
}

/// Plans to make a snapshot.
pub fn create(world: &World, wanted: &SnapshotOf) -> Result<Change<ChangedSnapshot>> {
    let hypervisor = &*world.hypervisor()?;
    let subject = Subject::read(hypervisor, &wanted.name)?;
    let (name, snapshot) = (wanted.name.clone(), wanted.snapshot.as_str().to_owned());
    if snapshot.bytes().all(|byte| byte.is_ascii_digit()) {
        let message = format!(
            "snapshot name `{snapshot}` is a number, which QEMU takes for the id of a snapshot"
        );
        let hint = format!("`gpuvm snapshot create {} s{snapshot}`", word(&name));
        return Err(usage(message, hint));
    }
    if subject.snapshots.iter().any(|known| known.name == snapshot) {
        let hint = format!("`gpuvm snapshot list {}` shows its snapshots", word(&name));
        return Err(SnapshotError::Exists { name, snapshot }.hint(hint));
    }
    subject.refuse_saved(hypervisor)?;
    let disks = subject.disks(hypervisor)?;
    subject.refuse_images(&disks, &snapshot, (hypervisor, world), |there| there == 0)?;
    let uuid = subject.row.uuid.clone();
    let step = Step::Snapshot(SnapshotStep::Make { name, uuid, snapshot });
    let by = ("snapshot create", world, hypervisor);
    change(by, (wanted, &subject), step, (SnapshotDeed::Created, &disks))
}

/// Plans to give a domain's disks the content of a snapshot again. Its definition stays as it is.
pub fn revert(world: &World, wanted: &SnapshotOf) -> Result<Change<ChangedSnapshot>> {
    let hypervisor = &*world.hypervisor()?;
    let subject = Subject::read(hypervisor, &wanted.name)?;
    let snapshot = subject.snapshot(wanted)?;
    subject.refuse_saved(hypervisor)?;
    let now = subject.disks(hypervisor)?;
    if snapshot.disks != now {
        let words = |disks: &[(String, String)]| {
            let all = disks.iter().map(|(target, path)| format!("{target} ({path})"));
            all.collect::<Vec<_>>().join(", ")
        };
        let (name, before, now) = (wanted.name.clone(), words(&snapshot.disks), words(&now));
        let hint = format!(
            "`gpuvm history {name}` shows what changed, and `gpuvm undo {name}` undoes the last \
             change",
            name = word(&name)
        );
        let snapshot = snapshot.name.clone();
        return Err(SnapshotError::OtherDisks { name, snapshot, before, now }.hint(hint));
    }
    // Else libvirt reverts some of the disks, or to the content of another snapshot of this name.
    subject.refuse_images(&now, &snapshot.name, (hypervisor, world), |there| there == 1)?;
    subject.refuse_ids(&now, &snapshot.name, hypervisor)?;
    let made = when(snapshot.made_s);
    let lost = now.iter().map(|(target, path)| {
        format!("what was written on disk `{target}` ({path}) since {made} is lost")
    });
    let lost: Vec<String> = lost.collect();
    let what = format!("reverting domain `{}` to snapshot `{}`", wanted.name, snapshot.name);
    let xml = subject.xml.text().to_owned();
    let step = Step::Snapshot(SnapshotStep::Revert { of: subject.made(snapshot), xml });
    let by = ("snapshot revert", world, hypervisor);
    let all = change(by, (wanted, &subject), step, (SnapshotDeed::Reverted, &now))?;
    let question = Some(Question::Agree { lines: None, question: "revert it?", what });
    Ok(Change { warnings: lost, question, ..all })
}

/// Plans to delete a snapshot; the disks keep their content.
pub fn delete(world: &World, wanted: &SnapshotOf) -> Result<Change<ChangedSnapshot>> {
    let hypervisor = &*world.hypervisor()?;
    let subject = Subject::read(hypervisor, &wanted.name)?;
    let snapshot = subject.snapshot(wanted)?;
    // It is removed from the images that it was made in, and others may have one of these now.
    subject.refuse_shared(&snapshot.disks, hypervisor)?;
    let there = snapshot.disks.iter().filter(|(_, path)| Path::new(path).exists());
    let there: Vec<_> = there.cloned().collect();
    subject.refuse_images(&there, &snapshot.name, (hypervisor, world), |there| there < 2)?;
    let what = format!("deleting snapshot `{}` of domain `{}`", snapshot.name, wanted.name);
    let step = Step::Snapshot(SnapshotStep::Delete(subject.made(snapshot)));
    let disks = &snapshot.disks;
    let by = ("snapshot delete", world, hypervisor);
    let all = change(by, (wanted, &subject), step, (SnapshotDeed::Deleted, disks))?;
    let question = Some(Question::Agree { lines: None, question: "delete it?", what });
    Ok(Change { question, ..all })
}

/// The snapshots of a domain, the oldest first.
pub fn list(world: &World, name: &str) -> Result<Vec<ListedSnapshot>> {
    let hypervisor = &*world.hypervisor()?;
    find(hypervisor, name)?;
    let mut all = hypervisor.snapshots(name)?;
    all.sort_by(|a, b| (a.made_s, &a.name).cmp(&(b.made_s, &b.name)));
    let listed = |one: Snapshot| ListedSnapshot {
        name: one.name,
        made: when(one.made_s),
        kind: one.kind,
        usable: one.kind == SnapshotKind::Internal,
        disks: one.disks.into_iter().map(|(target, _)| target).collect(),
    };
    Ok(all.into_iter().map(listed).collect())
}
