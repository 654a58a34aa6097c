//! The content of block devices: signatures known to libblkid (file systems, RAID, LVM, LUKS,
//! BitLocker, Ceph, DRBD, VMFS, swap, hibernation, partition tables), read by `wipefs`, which lists
//! all of them and writes nothing; if a device may not be opened, or the host is a recorded one,
//! from udev's database. Content unknown to the library (a plain encrypted volume, a database's own
//! format) is detected by bytes that are not blank.

use super::device_users::{Uses, udev};
use super::node::{answering, is_held_now, kernel_name};
use super::released::plain;
use crate::command::{CommandError, output};
use crate::fsroot::{FsError, FsRoot, readable};
use gpuvm_core::topology::{Content, Drive, DriveUse, Signature};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Time limit of reading the signatures of all drives together, in seconds.
const ALL_S: u64 = 20;
/// Time limit for one drive, in seconds.
const ONE_S: u64 = 10;
/// Types of an EFI system partition: in a GPT, in an MBR.
const EFI_TYPES: [&str; 2] = ["c12a7328-f81f-11d2-ba4b-00a0c93ec93b", "0xef"];
/// Bytes examined at the start, where each partition table, boot loader and format begins.
const START: usize = 1 << 20;
/// Bytes examined at each other place.
const SAMPLE: usize = 4096;
/// Number of other places, evenly over the device, the last at its end.
const SAMPLES: u64 = 8;

/// The output of `wipefs --json`.
#[derive(Debug, Deserialize)]
struct Listed {
    #[serde(default)]
    signatures: Vec<Mark>,
}

/// A signature as printed by `wipefs`.
#[derive(Debug, Deserialize)]
struct Mark {
    /// The last part of the device's path.
    device: String,
    #[serde(rename = "type")]
    kind: String,
    label: Option<String>,
    uuid: Option<String>,
}

/// Reads the content of drives and partitions without a known use, and adds uses that only the
/// devices themselves show. `identify`: with labels and UUIDs.
pub fn fill(
    root: &FsRoot,
    uses: &Uses,
    identify: bool,
    drives: &mut [Drive],
) -> Result<(), FsError> {
    for drive in drives.iter_mut() {
        for part in &mut drive.partitions {
            part.efi_system = udev_efi(root, &part.name)?.unwrap_or(false);
        }
    }
    if root.is_live() {
        fill_live(root, uses, drives)?
    } else {
        fill_recorded(root, drives)?
    }
    for drive in drives {
        let parts = drive.partitions.iter_mut();
        let parts = parts.map(|part| (part.name.as_str(), &mut part.content, &mut part.used_by));
        let whole = (drive.name.as_str(), &mut drive.content, &mut drive.used_by);
        for (_, content, used_by) in std::iter::once(whole).chain(parts) {
            let Some(Content::Signatures(signatures)) = content else { continue };
            // Members of released arrays do not count as used.
            let member = |one: &Signature| {
                uses.member_of(&one.kind, one.label.as_deref(), one.uuid.as_deref())
            };
            let raid = |one: &Signature| one.kind == "linux_raid_member" && member(one).is_none();
            signatures.retain(|one| !raid(one));
            if used_by.is_empty() {
                used_by
                    .extend(signatures.iter().find_map(member).map(|of| DriveUse::Member { of }));
            }
            if !identify {
                signatures.iter_mut().for_each(|one| (one.label, one.uuid) = (None, None));
            }
        }
        let starts = drive.partitions.iter().any(|part| part.efi_system)
            && (drive.uses().next().is_some() || root.is_live() && is_started_from(drive));
        let efi = drive.partitions.iter_mut().filter(|part| part.efi_system && starts);
        for part in efi.filter(|part| part.used_by.is_empty()) {
            part.used_by.push(DriveUse::EfiSystem);
        }
    }
    Ok(())
}

fn fill_recorded(root: &FsRoot, drives: &mut [Drive]) -> Result<(), FsError> {
    for drive in drives {
        drive.content = udev_content(root, &drive.name)?;
        for part in &mut drive.partitions {
            part.content = udev_content(root, &part.name)?;
        }
    }
    Ok(())
}

/// Reads the devices of this machine.
fn fill_live(root: &FsRoot, uses: &Uses, drives: &mut [Drive]) -> Result<(), FsError> {
    let free = held(drives);
    let mut contents = contents(root, uses, &free)?;
    for drive in drives {
        let mut is_blank = drive.partitions.is_empty();
        for part in &mut drive.partitions {
            part.content = contents.remove(&part.name);
            if !part.efi_system && part.content.is_some() {
                part.efi_system = is_efi_system(root, &part.name)?;
            }
        }
        drive.content = contents.remove(&drive.name);
        is_blank &= matches!(&drive.content, Some(Content::Signatures(all)) if all.is_empty());
        if is_blank {
            drive.content = Some(bytes_of(&node(&drive.name)));
        }
    }
    Ok(())
}

/// Adds devices held exclusively; returns the names of the others. A device marked as a member may
/// be in use by something that the kernel does not list, such as a ZFS pool.
fn held(drives: &mut [Drive]) -> Vec<String> {
    let is_used =
        |used: &[DriveUse]| used.iter().any(|one| !matches!(one, DriveUse::Member { .. }));
    let names = |drive: &Drive| {
        let parts = drive.partitions.iter().map(|part| &part.name);
        parts.chain([&drive.name]).map(|name| node(name)).collect::<Vec<_>>()
    };
    let unused = drives.iter().filter(|drive| !is_used(&drive.used_by));
    let answer = answering(&unused.flat_map(names).collect::<Vec<_>>());
    let is_held = |name: &str| !answer.contains(&node(name)) || is_held_now(&node(name));
    let mut free: Vec<String> = Vec::new();
    for drive in drives.iter_mut() {
        if is_used(&drive.used_by) {
            continue;
        }
        for part in drive.partitions.iter_mut().filter(|part| !is_used(&part.used_by)) {
            match (is_held(&part.name), part.used_by.is_empty()) {
                (true, _) => part.used_by.push(DriveUse::Kernel),
                (false, true) => free.push(part.name.clone()),
                (false, false) => {}
            }
        }
        // A drive cannot be opened exclusively while one of its partitions is in use.
        if drive.partitions.iter().any(|part| is_used(&part.used_by)) {
            continue;
        }
        let has_no_mark = drive.uses().next().is_none();
        match (is_held(&drive.name), has_no_mark) {
            (true, _) => drive.used_by.push(DriveUse::Kernel),
            (false, true) => free.push(drive.name.clone()),
            (false, false) => {}
        }
    }
    free
}

/// Reads the signatures of devices by the kernel's names.
fn contents(
    root: &FsRoot,
    _uses: &Uses,
    names: &[String],
) -> Result<BTreeMap<String, Content>, FsError> {
    let mut found = BTreeMap::new();
    let mut readable: Vec<String> = Vec::new();
    for name in names {
        match std::fs::File::open(node(name)) {
            Ok(_) => readable.push(node(name).display().to_string()),
            Err(error) => {
                let known = udev_content(root, name)?;
                let marks = known.filter(|content| !content.signatures().is_empty());
                let unread = || Content::Unread(error.to_string());
                found.insert(name.clone(), marks.unwrap_or_else(unread));
            }
        }
    }
    let paths: Vec<&str> = readable.iter().map(String::as_str).collect();
    let all = if paths.is_empty() { Ok(Vec::new()) } else { marks(&paths, ALL_S) };
    for path in paths {
        let name = path.trim_start_matches("/dev/").to_owned();
        let content = match &all {
            Ok(marks) => Content::Signatures(of_device(marks, &name)),
            // A hung device must not hide the content of the others.
            Err(_) => content(Path::new(path)),
        };
        found.insert(name, content);
    }
    Ok(found)
}

/// Reads the signatures on one device or image of this machine, without looking for unknown
/// content.
pub fn content(path: &Path) -> Content {
    let Some(text) = path.to_str() else { return Content::Unread("not UTF-8".to_owned()) };
    match marks(&[text], ONE_S) {
        Ok(marks) => Content::Signatures(marks.into_iter().map(Signature::from).collect()),
        Err(error) => Content::Unread(error.to_string()),
    }
}

/// Reads the content of a device to be added to the md array of this UUID, except that array's own
/// signatures.
pub fn foreign(path: &Path, array_uuid: &str) -> Content {
    let mut content = content(path);
    if let Content::Signatures(all) = &mut content {
        let own = |one: &Signature| {
            one.kind == "linux_raid_member"
                && one.uuid.as_deref().map(plain) == Some(plain(array_uuid))
        };
        all.retain(|one| !own(one));
    }
    content
}

/// Reads the content of a device, unknown content included.
pub fn whole_content(path: &Path) -> Content {
    match content(path) {
        Content::Signatures(all) if all.is_empty() => bytes_of(path),
        other => other,
    }
}

/// Runs `wipefs`, which fails as a whole if it cannot read one of the devices.
fn marks(paths: &[&str], seconds: u64) -> Result<Vec<Mark>, CommandError> {
    let mut argv = vec!["wipefs", "--no-act", "--json", "--output", "DEVICE,TYPE,UUID,LABEL", "--"];
    argv.extend(paths);
    let text = output(&argv, seconds)?;
    let malformed = |error: serde_json::Error| CommandError::Failed {
        command: argv.join(" "),
        status: Some(0),
        message: error.to_string(),
    };
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    Ok(serde_json::from_str::<Listed>(&text).map_err(malformed)?.signatures)
}

/// Returns the signatures of one device, each kind once.
fn of_device(marks: &[Mark], name: &str) -> Vec<Signature> {
    let mut found: Vec<Signature> = Vec::new();
    for mark in marks.iter().filter(|mark| mark.device == name) {
        let one = Signature {
            kind: mark.kind.clone(),
            label: mark.label.clone(),
            uuid: mark.uuid.clone(),
        };
        // A GPT has signatures at both ends, and a protective MBR.
        if !found.iter().any(|known| known.says() == one.says()) {
            found.push(one);
        }
    }
    found
}

impl From<Mark> for Signature {
    fn from(mark: Mark) -> Signature {
        Signature { kind: mark.kind, label: mark.label, uuid: mark.uuid }
    }
}

/// Looks for bytes that are not blank, in a thread, since a hung drive blocks its reader forever.
fn bytes_of(path: &Path) -> Content {
    let (send, receive) = channel();
    let owned = path.to_owned();
    std::thread::spawn(move || send.send(sample(&owned)));
    match receive.recv_timeout(Duration::from_secs(ONE_S)) {
        Ok(Ok(true)) => Content::Signatures(Vec::new()),
        Ok(Ok(false)) => Content::Signatures(vec![Signature {
            kind: Signature::UNKNOWN.to_owned(),
            label: None,
            uuid: None,
        }]),
        Ok(Err(error)) => Content::Unread(error.to_string()),
        Err(_) => Content::Unread(format!("no answer within {ONE_S} s")),
    }
}

/// Whether the examined parts of a device are blank: all zeros or all ones, as on an erased drive.
fn sample(path: &Path) -> std::io::Result<bool> {
    use std::io::{Seek as _, SeekFrom};
    let mut file = std::fs::File::open(path)?;
    let size = file.seek(SeekFrom::End(0))?;
    let mut buffer = vec![0; START];
    let mut is_blank = |at: u64, length: usize| -> std::io::Result<bool> {
        let length = usize::try_from(size.saturating_sub(at)).unwrap_or(length).min(length);
        let part = &mut buffer[..length];
        file.read_exact_at(part, at)?;
        Ok(part
            .first()
            .is_none_or(|first| matches!(first, 0 | 0xff) && part.iter().all(|byte| byte == first)))
    };
    if !is_blank(0, START)? {
        return Ok(false);
    }
    for number in 1..=SAMPLES {
        let at = (size / SAMPLES * number).saturating_sub(SAMPLE as u64);
        if !is_blank(at - at % SAMPLE as u64, SAMPLE)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reads udev's record of a device's content; `None` if udev has not probed it.
fn udev_content(root: &FsRoot, name: &str) -> Result<Option<Content>, FsError> {
    let udev = udev(root, name)?;
    if udev.is_empty() {
        return Ok(None);
    }
    let word = |key: &str| udev.get(key).filter(|word| !word.is_empty()).cloned();
    let mut signatures = Vec::new();
    if let Some(kind) = word("ID_FS_TYPE") {
        signatures.push(Signature { kind, label: word("ID_FS_LABEL"), uuid: word("ID_FS_UUID") });
    }
    let table = word("ID_PART_TABLE_TYPE");
    let is_multipath = udev.get("DM_MULTIPATH_DEVICE_PATH").is_some_and(|word| word == "1");
    let path = is_multipath.then(|| "mpath_member".to_owned());
    for kind in table.into_iter().chain(path) {
        signatures.push(Signature { kind, label: None, uuid: None });
    }
    Ok(Some(Content::Signatures(signatures)))
}

/// Whether udev calls a partition an EFI system partition; `None` if its type is not recorded.
fn udev_efi(root: &FsRoot, name: &str) -> Result<Option<bool>, FsError> {
    let udev = udev(root, name)?;
    Ok(udev.get("ID_PART_ENTRY_TYPE").map(|kind| EFI_TYPES.contains(&&*kind.to_lowercase())))
}

/// Whether a partition is an EFI system partition, by udev or, on this machine, by its table.
pub fn is_efi_system(root: &FsRoot, name: &str) -> Result<bool, FsError> {
    if let Some(known) = udev_efi(root, name)? {
        return Ok(known);
    }
    if !root.is_live() {
        return Ok(false);
    }
    let path = node(name).display().to_string();
    let argv = ["blkid", "--probe", "--match-tag", "PART_ENTRY_TYPE", "--output", "value", &path];
    let kind = output(&argv, ONE_S).unwrap_or_default();
    Ok(EFI_TYPES.contains(&&*kind.trim().to_lowercase()))
}

/// Whether this machine's firmware or its table of file systems names an EFI system partition of a
/// drive. If the firmware's entries cannot be read, this is assumed.
fn is_started_from(drive: &Drive) -> bool {
    let parts: Vec<&str> = drive
        .partitions
        .iter()
        .filter_map(|part| part.efi_system.then_some(part.name.as_str()))
        .collect();
    let tags: Vec<Tags> = parts.iter().map(|part| tags(part)).collect();
    if is_in_table(&std::fs::read("/etc/fstab").unwrap_or_default(), &parts, &tags) {
        return true;
    }
    let is_uuid =
        |(tag, value): &(String, String)| (tag == "PARTUUID").then(|| value.to_lowercase());
    let uuids: Vec<String> = tags.iter().flatten().filter_map(is_uuid).collect();
    let Ok(entries) = std::fs::read_dir("/sys/firmware/efi/efivars") else {
        // A machine without EFI does not boot from such a partition.
        return Path::new("/sys/firmware/efi").exists();
    };
    let boot = entries.flatten().filter(|entry| {
        let name = entry.file_name();
        name.to_str().is_some_and(|name| name.starts_with("Boot") || name.starts_with("Loader"))
    });
    let marks: Vec<[u8; 16]> = uuids.iter().filter_map(|uuid| guid_bytes(uuid)).collect();
    for entry in boot {
        let Ok(bytes) = std::fs::read(entry.path()) else { return true };
        if marks.iter().any(|mark| bytes.windows(mark.len()).any(|part| part == mark)) {
            return true;
        }
    }
    false
}

/// Whether a table of file systems names one of these partitions; its comments may be in any
/// encoding.
fn is_in_table(table: &[u8], parts: &[&str], tags: &[Tags]) -> bool {
    let table = readable(table);
    let lines = table.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_whitespace().next()).any(|named| {
        parts.iter().any(|part| kernel_name(Path::new(named)).as_deref() == Some(*part))
            || tags.iter().flatten().any(|(tag, value)| is_tag(named, tag, value))
    })
}

/// The tags that may identify a partition in fstab, each with its value.
type Tags = Vec<(String, String)>;

/// Returns the tags of a partition of this machine.
fn tags(name: &str) -> Tags {
    let path = node(name).display().to_string();
    let text = output(&["blkid", "--probe", "--output", "export", &path], ONE_S);
    let text = text.unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let pairs = pairs.filter_map(|(tag, value)| {
        let tag = match tag {
            "UUID" | "LABEL" => tag,
            "PART_ENTRY_UUID" => "PARTUUID",
            "PART_ENTRY_NAME" => "PARTLABEL",
            _ => return None,
        };
        Some((tag.to_owned(), value.replace("\\ ", " ")))
    });
    pairs.collect()
}

/// Whether a word of fstab, `UUID=AB12-34CD` or `LABEL="x"`, is this tag with this value.
fn is_tag(named: &str, tag: &str, value: &str) -> bool {
    let value_of = named.split_once('=').filter(|(key, _)| *key == tag).map(|(_, value)| value);
    value_of.is_some_and(|named| {
        named.trim_matches('"').replace("\\040", " ").eq_ignore_ascii_case(value)
    })
}

/// A GUID as EFI writes it: the first three groups with their lowest byte first.
fn guid_bytes(uuid: &str) -> Option<[u8; 16]> {
    let digits: String = uuid.chars().filter(char::is_ascii_hexdigit).collect();
    let mut bytes =
        u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32)?.to_be_bytes();
    bytes[..4].reverse();
    bytes[4..6].reverse();
    bytes[6..8].reverse();
    Some(bytes)
}

/// The node of a device by the kernel's name; `!` in it means `/`.
pub fn node(name: &str) -> std::path::PathBuf {
    Path::new("/dev").join(name.replace('!', "/"))
}

#[cfg(test)]
mod tests;
