//! Which disks in a domain's metadata are removed with it: those that are proven to be its own and
//! that are not needed otherwise. Metadata is copied with a definition and can be written by
//! anybody, so it proves nothing by itself: the record must contain the UUID of this domain, and
//! the disk must be one of its disks still.

use crate::apply::{self, FileStep, Step, VolumeStep};
use crate::domain::DomainXml;
use crate::domain::disk_change::path_of;
use crate::domain::guest::{Made, Role, VolumeRef};
use crate::history::Owner;
use crate::hypervisor::Hypervisor;
use crate::hypervisor::file_users::{How, Use, User, Uses};
use crate::hypervisor::machine::run_there;
use crate::hypervisor::storage::Storage;
use crate::identity::{FileId, Identity};
use crate::seed::is_seed;
use crate::shell::word;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Bytes at the start of a volume that show whether it is a seed.
const HEAD: u64 = 512;
/// The largest NVRAM file of firmware settings, in bytes: that of 64-bit Arm.
const MOST_NVRAM: u64 = 64 << 20;

/// The fate of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It is removed by this step.
    Goes(Step),
    /// It no longer exists.
    Gone,
    /// It stays: the reason, and the command that removes it.
    Stays(String),
}

/// The facts that disks are judged by.
pub struct Proof<'a> {
    /// The users of disks and devices.
    uses: &'a Uses,
    storage: &'a dyn Storage,
    uuid: &'a str,
    recorded: Option<String>,
    /// The machine that the files are on, if it is another one.
    elsewhere: Option<String>,
    /// The hypervisor that the domain was created on, if it is another one of this machine.
    made_on: Option<String>,
    /// The directory of the records of which disks were made.
    state: PathBuf,
    /// Whether it has the record of a disk of this domain: then it has those of all.
    has_records: bool,
}

/// libvirt's knowledge of a recorded volume.
enum VolumeKnowledge {
    /// It is where it was.
    Same,
    /// It does not exist, or that is unknown: why.
    Other(String),
    /// It is gone.
    Gone,
}

impl<'a> Proof<'a> {
    /// Gathers the facts of a domain from its definition and its UUID; with the state directory of
    /// the caller if it has its own.
    pub fn of(
        xml: &DomainXml,
        uuid: &'a str,
        uses: &'a Uses,
        hypervisor: &'a dyn Hypervisor,
        state: Option<&Path>,
    ) -> Proof<'a> {
        let (storage, machine) = (hypervisor.storage(), hypervisor.machine());
        let elsewhere = machine.elsewhere().map(str::to_owned);
        let made_on = Owner::of(uuid, hypervisor, state).other_hypervisor();
        let state = state.map_or_else(apply::state_root, Path::to_owned);
        let mut made = xml.made().into_iter();
        let is_recorded = |made: Made| apply::disk_made_at(&state, Path::new(&made.path)).is_some();
        let has_records = elsewhere.is_none() && made.any(is_recorded);
        let recorded = xml.recorded_uuid();
        Proof { uses, storage, uuid, recorded, elsewhere, made_on, state, has_records }
    }

    /// Whether the definition is a copy of another domain's, whose disks and devices its metadata
    /// lists.
    pub fn is_copy(&self) -> bool {
        self.recorded.as_ref().is_some_and(|recorded| !recorded.eq_ignore_ascii_case(self.uuid))
    }

    /// libvirt's knowledge of a volume that is recorded to be at a path.
    fn known(&self, volume: &VolumeRef, path: &Path) -> VolumeKnowledge {
        match self.uses.volume(volume) {
            Some(known) if self.uses.is_same(&known.path, path) => VolumeKnowledge::Same,
            Some(known) => VolumeKnowledge::Other(format!(
                "volume `{}` of pool `{}` is {} and not that",
                volume.name,
                volume.pool,
                known.path.display()
            )),
            None if !self.is_active(&volume.pool) => {
                let pool = &volume.pool;
                let start = format!("`virsh pool-start {}` starts it", word(pool));
                VolumeKnowledge::Other(format!("pool `{pool}` is not active, {start}"))
            }
            None => VolumeKnowledge::Gone,
        }
    }

    /// The fate of each disk that is deleted, in the order of their deletion: an image before the
    /// its backing file.
    pub fn fates(&self, xml: &DomainXml, made: &[&Made]) -> Vec<(String, Fate)> {
        let depth = |made: &Made| self.uses.below(Path::new(&made.path)).len();
        let (mut bases, disks): (Vec<&Made>, Vec<&Made>) =
            made.iter().partition(|made| made.role == Role::Base);
        bases.sort_by_key(|base| std::cmp::Reverse(depth(base)));
        let own: Vec<PathBuf> = xml.disks().filter_map(path_of).map(PathBuf::from).collect();
        let mut all = Vec::new();
        let mut going = Vec::new();
        for disk in disks.into_iter().chain(bases) {
            let fate = match disk.role {
                Role::Base => self.fate_of_base(disk, &own, &going),
                _ => self.fate(disk),
            };
            if !matches!(fate, Fate::Stays(_)) {
                going.push(PathBuf::from(&disk.path));
            }
            all.push((disk.path.clone(), fate));
        }
        all
    }

    /// The fate of an image below disks of this domain, of which `own` are all and `going` are
    /// deleted: it is deleted with the last image over it, if it is proven to be the one that gpuvm
    /// made.
    fn fate_of_base(&self, made: &Made, own: &[PathBuf], going: &[PathBuf]) -> Fate {
        let (path, volume) = (Path::new(&made.path), made.volume.as_ref());
        let stays = |why: String| Fate::Stays(format!("image {} stays: {why}", made.path));
        let is_going = |path: &Path| going.iter().any(|gone| self.uses.is_same(gone, path));
        let volume_of = |name: &str| {
            let (pool, name) = name.split_once('/')?;
            let volume = VolumeRef { pool: pool.to_owned(), name: name.to_owned() };
            self.uses.volume(&volume)
        };
        let needs = |one: &Use| match &one.by {
            User::Domain { uuid, .. } => uuid != self.uuid || one.how == How::Disk,
            User::Volume(name) => volume_of(name).is_none_or(|over| !is_going(&over.path)),
            User::Loop(_) => true,
        };
        let mut needed = self.uses.of_disk(path, volume);
        needed.retain(needs);
        // A volume that is a disk of a domain is reported with that domain.
        let of_domain = |one: &Use| match &one.by {
            User::Domain { uuid, .. } => Some(uuid.clone()),
            User::Volume(_) | User::Loop(_) => None,
        };
        let domains: Vec<String> = needed.iter().filter_map(of_domain).collect();
        let is_of_those = |path: &Path| {
            let all = self.uses.of_disk(path, None);
            all.iter().filter_map(of_domain).any(|uuid| domains.contains(&uuid))
        };
        needed.retain(|one| match &one.by {
            User::Volume(name) => !volume_of(name).is_some_and(|over| is_of_those(&over.path)),
            User::Domain { .. } | User::Loop(_) => true,
        });
        // Disks that others have are reported before those that no definition names.
        needed.sort_by_key(|one| !matches!(one.by, User::Domain { .. }));
        if !needed.is_empty() {
            return stays(said(&needed));
        }
        let is_over =
            |disk: &Path| self.uses.below(disk).iter().any(|b| self.uses.is_same(b, path));
        if let Some(disk) = own.iter().find(|disk| !is_going(disk) && is_over(disk)) {
            return stays(format!("disk {}, which is kept, is an overlay on it", disk.display()));
        }
        if let Some(why) = self.whose() {
            return stays(format!("{why}; {} removes it", removal(made)));
        }
        let known = volume.map(|volume| self.known(volume, path));
        if matches!(known, Some(VolumeKnowledge::Gone)) {
            return Fate::Gone;
        }
        let is_it = match apply::disk_made_at(&self.state, path) {
            Some(Identity::Volume { file: Some(was), .. } | Identity::File(was)) => {
                !apply::is_another_file(Some(&was), path)
            }
            _ => false,
        };
        match known {
            Some(VolumeKnowledge::Same)
                if is_it && self.elsewhere.is_none() && self.made_on.is_none() =>
            {
                Fate::Goes(self.deletion(made))
            }
            Some(VolumeKnowledge::Other(why)) => stays(why),
            _ => {
                stays(format!("it is not proven that gpuvm made it; {} removes it", removal(made)))
            }
        }
    }

    /// The fate of a disk.
    pub fn fate(&self, made: &Made) -> Fate {
        let path = Path::new(&made.path);
        let volume = made.volume.as_ref();
        let stays = |why: String| {
            // No command removes a disk that others need, nor the base of a snapshot that stays.
            let all = self.uses.of_disk(path, volume);
            let is_own =
                |one: &&Use| matches!(&one.by, User::Domain { uuid, .. } if uuid == self.uuid);
            let others: Vec<Use> = all.iter().filter(|one| !is_own(one)).cloned().collect();
            let is_base = all.iter().filter(is_own).any(|one| one.how == How::Over);
            let more = match (others.is_empty(), is_base) {
                (true, true) => "another kept image of the domain is an overlay on it".to_owned(),
                (true, false) => format!("{} removes it", removal(made)),
                (false, _) => said(&others),
            };
            Fate::Stays(format!("disk {} stays: {why}; {more}", made.path))
        };
        if let (Some(host), None) = (&self.elsewhere, volume) {
            let command = format!("rm -i -- {}", word(&made.path));
            return Fate::Stays(format!(
                "disk {} stays: it is a file of machine `{host}`; `{}` removes it",
                made.path,
                run_there(host, &command)
            ));
        }
        if let Some(why) = self.whose() {
            return stays(why);
        }
        if let Some(uri) = &self.made_on {
            let why = format!("it was made for the domain of this UUID at {uri}");
            return Fate::Stays(format!("disk {} stays: {why}", made.path));
        }
        let others = self.uses.others_of_disk(path, volume, self.uuid);
        if !others.is_empty() {
            return Fate::Stays(format!("disk {} stays: {}", made.path, said(&others)));
        }
        match volume.map(|volume| self.known(volume, path)) {
            Some(VolumeKnowledge::Gone) => return Fate::Gone,
            Some(VolumeKnowledge::Other(why)) => return stays(why),
            Some(VolumeKnowledge::Same) => {}
            None => {
                let meta = self.uses.silent(path).is_none().then(|| path.symlink_metadata().ok());
                if meta.flatten().is_some_and(|meta| !meta.is_file()) {
                    return stays("it is not a regular file".into());
                }
            }
        }
        let fixed = || self.uses.silent(path).or_else(|| apply::locked_in(path));
        if let (None, Some(why)) = (&self.elsewhere, fixed()) {
            return Fate::Stays(format!("disk {} stays: {why}", made.path));
        }
        if !self.is_disk(made) && !self.is_dropped_seed(made) {
            return stays("it is not a disk of the domain any more".into());
        }
        if self.is_another(made) {
            return stays("it is not the one that gpuvm made there".into());
        }
        if self.has_records && apply::disk_made_at(&self.state, path).is_none() {
            return stays("gpuvm has a record of other disks of the domain, and none of it".into());
        }
        Fate::Goes(self.deletion(made))
    }

    /// Whether a disk was made for the domain and is one of its disks still, whoever uses it
    /// beside.
    pub fn is_made(&self, made: &Made) -> bool {
        let is_proven = self.whose().is_none() && self.made_on.is_none();
        is_proven && self.is_disk(made) && !self.is_another(made)
    }

    /// Why the record of the domain does not show that its disks were made for it; `None` if it
    /// does.
    fn whose(&self) -> Option<String> {
        match &self.recorded {
            None => {
                Some("it was made by an earlier version, which did not write whose it is".into())
            }
            Some(other) if self.is_copy() => Some(format!(
                "it was made for the domain of UUID {other}, of which this one is a copy"
            )),
            Some(_) => None,
        }
    }

    /// The step that deletes a disk.
    fn deletion(&self, made: &Made) -> Step {
        let path = PathBuf::from(&made.path);
        match made.volume.clone() {
            None => {
                let file = FileId::at(&path).ok().flatten();
                Step::File(FileStep::DeleteDisk { path, file })
            }
            Some(VolumeRef { pool, name }) => {
                let here = self.elsewhere.is_none().then(|| FileId::at(&path).ok().flatten());
                Step::Volume(VolumeStep::Delete { pool, name, file: here.flatten() })
            }
        }
    }

    /// Whether another object is in the place of the disk that was made: a file or a volume of that
    /// name that was put there.
    fn is_another(&self, made: &Made) -> bool {
        let path = Path::new(&made.path);
        if self.elsewhere.is_some() {
            return false;
        }
        let key = |VolumeRef { pool, name }: &VolumeRef| {
            self.storage.volume_id(pool, name).ok().flatten().map(|now| now.key)
        };
        match apply::disk_made_at(&self.state, path) {
            Some(Identity::File(was)) => apply::is_another_file(Some(&was), path),
            Some(Identity::Volume { key: was, file }) => {
                let now = made.volume.as_ref().and_then(key);
                apply::is_another_file(file.as_ref(), path) || now.is_some_and(|now| now != was)
            }
            _ => false,
        }
    }

    /// Whether it is a disk of the domain itself, and not only a backing file of one.
    fn is_disk(&self, made: &Made) -> bool {
        let all = self.uses.of_disk(Path::new(&made.path), made.volume.as_ref());
        all.iter().any(|one| {
            let own = matches!(&one.by, User::Domain { uuid, .. } if uuid == self.uuid);
            own && one.how == How::Disk
        })
    }

    /// Whether it is a seed that was removed from the definition while the guest had it in use: it
    /// has the mark of one.
    fn is_dropped_seed(&self, made: &Made) -> bool {
        let (Role::Seed, Some(VolumeRef { pool, name })) = (made.role, &made.volume) else {
            return false;
        };
        let mut head = Vec::new();
        self.storage.download(pool, name, 0..HEAD, &mut head).is_ok() && is_seed(&head)
    }

    /// Whether a pool is active, so that a volume it does not list does not exist.
    fn is_active(&self, pool: &str) -> bool {
        self.storage
            .pools()
            .is_ok_and(|pools| pools.iter().any(|known| known.name == pool && known.active))
    }
}

/// The uses of a thing in words: the first, and how many more there are.
pub fn said(all: &[Use]) -> String {
    let first = all.first().map(ToString::to_string).unwrap_or_default();
    match all.len() {
        0 | 1 => first,
        number => format!("{first}, and {} more", number - 1),
    }
}

/// The objects of a copy of another domain that stay, beyond the disks in the metadata: its own
/// disks, which are not recorded as created for it.
pub fn of_copy(xml: &DomainXml, uuid: &str, uses: &Uses) -> Vec<String> {
    if !xml.is_copy() {
        return Vec::new();
    }
    let recorded: Vec<String> = xml.made().into_iter().map(|made| made.path).collect();
    let devices = xml.root().children("devices").flat_map(|devices| devices.children("disk"));
    let written = devices.filter(|disk| disk.child("readonly").is_none());
    let files = written.filter_map(|disk| Some(disk.child("source")?.attr("file")?.into_owned()));
    let own = files.filter(|file| !recorded.contains(file));
    own.map(|file| {
        let others = uses.others(Path::new(&file), uuid);
        let more = if others.is_empty() {
            format!("`rm {}` removes it", word(&file))
        } else {
            said(&others)
        };
        format!("disk {file} stays: it is not recorded as made for this domain; {more}")
    })
    .collect()
}

/// The reason a domain's NVRAM stays; `None` if it is removed. libvirt removes whatever file the
/// definition names, so it must be one of libvirt's own that holds firmware settings.
pub fn nvram_stays(
    xml: &DomainXml,
    uuid: &str,
    uses: &Uses,
    hypervisor: &dyn Hypervisor,
) -> Option<String> {
    let path = xml.nvram()?;
    let others = uses.others(Path::new(&path), uuid);
    if !others.is_empty() {
        return Some(format!("NVRAM {path} stays: {}", said(&others)));
    }
    if let Some(why) = uses.as_firmware(Path::new(&path)) {
        return Some(format!("NVRAM {path} stays: {why}"));
    }
    let is_store = !hypervisor.machine().is_here() || is_store(Path::new(&path));
    let remove = format!("`rm {}` removes it", word(&path));
    if !is_store {
        return Some(format!("NVRAM {path} stays: it holds no settings of firmware; {remove}"));
    }
    let foreign = apply::foreign_nvram(Path::new(&path), &hypervisor.opened_uri());
    foreign.map(|why| format!("NVRAM {path} stays: {why}"))
}

/// Whether a file holds firmware settings, or cannot be read: then it does not exist, or only
/// libvirt may read it.
fn is_store(path: &Path) -> bool {
    let Ok(mut file) = apply::open(path) else {
        return !(path.exists() && nix::unistd::geteuid().is_root());
    };
    let mut head = [0; 44];
    let read = file.read_exact(&mut head).is_ok();
    let bytes = head[24..32].iter().fold(0_u64, |all, byte| all << 8 | u64::from(*byte));
    // EDK II's firmware volume, raw or in qcow2, and smaller than any disk of a guest.
    read && (head[40..44] == *b"_FVH" || head.starts_with(b"QFI\xfb") && bytes <= MOST_NVRAM)
}

/// How many other names a file has, hard links, under which its data stays when this one is
/// deleted.
pub fn other_names(path: &Path) -> u64 {
    let meta = path.symlink_metadata().ok().filter(std::fs::Metadata::is_file);
    meta.map_or(0, |meta| meta.nlink().saturating_sub(1))
}

/// The message about a file with other names, before one is deleted.
pub fn keep_data(path: &str, names: u64) -> Option<String> {
    let kept = match names {
        0 => return None,
        1 => "1 other name of the file keeps the data".to_owned(),
        names => format!("{names} other names of the file keep the data"),
    };
    let find = format!("`find / -xdev -samefile {}` shows them", word(path));
    Some(format!("{path} is deleted, and {kept}; {find}"))
}

/// The command that removes a disk.
pub fn removal(made: &Made) -> String {
    match &made.volume {
        Some(VolumeRef { pool, name }) => removal_of_volume(pool, name),
        None => removal_of_file(&made.path),
    }
}

/// The command that removes a file.
pub fn removal_of_file(path: &str) -> String {
    format!("`rm {}`", word(path))
}

/// The command that removes a volume.
pub fn removal_of_volume(pool: &str, name: &str) -> String {
    format!("`virsh vol-delete --pool {} {}`", word(pool), word(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_names_of_a_file_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let [first, second] = ["a b.raw", "b.raw"].map(|name| dir.path().join(name));
        std::fs::write(&first, "x").unwrap();
        assert_eq!((other_names(&first), other_names(dir.path())), (0, 0));
        assert_eq!(keep_data("/a", 0), None);
        std::fs::hard_link(&first, &second).unwrap();
        assert_eq!((other_names(&first), other_names(&second)), (1, 1));
        let advice = keep_data("/a b", 1).unwrap();
        assert!(advice.contains("1 other name of the file keeps the data"), "{advice}");
        assert!(advice.contains("`find / -xdev -samefile '/a b'`"), "{advice}");
    }
}
