//! Detects the format of a disk image from its first bytes. Guessing formats lets a guest read the
//! host's files: a guest can write a qcow2 header with any backing file to its raw disk, which the
//! next start would take for qcow2.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};

/// An image format that guests can be created from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// The disk's plain bytes.
    Raw,
    /// QEMU's own (docs/interop/qcow2 of QEMU).
    Qcow2,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Raw => "raw",
            Format::Qcow2 => "qcow2",
        })
    }
}

/// The kind and size of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Content {
    /// Its format.
    pub format: Format,
    /// Size seen by a guest, in bytes.
    pub virtual_bytes: u64,
    /// Whether it begins with a boot record, as a disk with a system does; always true of qcow2,
    /// which is not looked into.
    pub boots: bool,
}

/// The reason an image is refused.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "image-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum ContentError {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    #[strum(to_string = "unreadable")]
    Read(#[from] io::Error),
    /// It is another kind of file.
    #[error("is {kind}; only raw and qcow2 are supported")]
    #[strum(to_string = "type")]
    Other { kind: &'static str },
    /// It is qcow2, but not a standalone, intact one.
    #[error("is qcow2 {0}")]
    Qcow2(String),
    /// It holds nothing that could be a disk.
    #[error("has {bytes} bytes, too few for a disk")]
    TooSmall { bytes: u64 },
}

/// A kind of file by its first bytes: offset, bytes, name.
type Magic = (u64, &'static [u8], &'static str);

const DISKS: [Magic; 10] = [
    (0, b"KDMV", "a VMDK disk"),
    (0, b"COWD", "a VMDK disk"),
    (0, b"# Disk DescriptorFile", "the description of a VMDK disk"),
    (0, b"vhdxfile", "a VHDX disk"),
    (0, b"conectix", "a VHD disk"),
    (0x40, b"\x7f\x10\xda\xbe", "a VDI disk"),
    (0, b"QED\0", "a QED disk"),
    // libvirt takes these for Virtuozzo directories and cannot delete a plain file of this format.
    (0, b"WithouFreSpacExt", "a Parallels disk"),
    (0, b"WithoutFreeSpace", "a Parallels disk"),
    (0, b"OOOM\0\x01", "a disk of another hypervisor"),
];

const COMPRESSED: [Magic; 4] = [
    (0, b"\x1f\x8b", "compressed (gzip)"),
    (0, b"\xfd7zXZ\0", "compressed (xz)"),
    (0, b"\x28\xb5\x2f\xfd", "compressed (zstd)"),
    (0, b"BZh", "compressed (bzip2)"),
];

/// Files that hold no operating system; a guest's raw data disk may well start like this.
const OTHERS: [Magic; 5] = [
    (0, b"LUKS\xba\xbe", "encrypted (LUKS)"),
    (0, b"PK\x03\x04", "a ZIP archive"),
    (257, b"ustar", "a tar archive"),
    (0x8001, b"CD001", "a CD image (ISO 9660)"),
    (0, b"\x7fELF", "a program"),
];

/// Detects the format of an image.
pub fn content(image: &mut (impl Read + Seek)) -> Result<Content, ContentError> {
    let bytes = image.seek(SeekFrom::End(0))?;
    let head = read_at(image, 0, 512)?;
    if head.starts_with(b"QFI\xfb") {
        return qcow2(&head, bytes);
    }
    refuse(image, DISKS.iter().chain(&COMPRESSED).chain(&OTHERS))?;
    if bytes < 512 {
        return Err(ContentError::TooSmall { bytes });
    }
    let boots = head[510..512] == [0x55, 0xaa];
    Ok(Content { format: Format::Raw, virtual_bytes: bytes, boots })
}

/// The format and backing file of a disk that a guest gets unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its format.
    pub format: Format,
    /// Its backing file, as it names it; `None` if it is standalone.
    pub backing: Option<String>,
}

/// Detects the format of a disk that a guest gets unchanged. Any disk not of another format is raw;
/// its content is up to the guest.
pub fn disk(disk: &mut (impl Read + Seek)) -> Result<Found, ContentError> {
    let bytes = disk.seek(SeekFrom::End(0))?;
    let head = read_at(disk, 0, 512)?;
    if !head.starts_with(b"QFI\xfb") {
        refuse(disk, DISKS.iter().chain(&COMPRESSED))?;
        return Ok(Found { format: Format::Raw, backing: None });
    }
    let (name_at, name_bytes) = (long(&head, 8), word(&head, 16));
    // Its name is at most 1023 bytes long (docs/interop/qcow2).
    let name = read_at(disk, name_at, name_bytes.min(1023) as usize)?;
    let backing = (name_at != 0).then(|| String::from_utf8_lossy(&name).into_owned());
    // Apart from its backing file it must be valid; QEMU repairs one that was not closed.
    let mut own = head;
    if let Some(names) = own.get_mut(8..20) {
        names.fill(0);
    }
    if word(&own, 4) == 3 && own.len() >= 80 {
        own[79] &= !1;
    }
    qcow2(&own, bytes)?;
    Ok(Found { format: Format::Qcow2, backing })
}

/// Bytes of an image's header that [`kept`] needs.
pub const HEAD: u64 = 104;

/// Returns what an image contains besides the current disk (snapshots, bitmaps), which a copy of
/// the disk would lose; `head` is its first [`HEAD`] bytes. `None` if nothing.
pub fn kept(head: &[u8]) -> Option<String> {
    if !head.starts_with(b"QFI\xfb") {
        return None;
    }
    match (word(head, 60), word(head, 4) >= 3 && long(head, 88) & 1 != 0) {
        (0, false) => None,
        (0, true) => Some("bitmaps of incremental backups".into()),
        (1, _) => Some("an internal snapshot".into()),
        (number, _) => Some(format!("{number} internal snapshots")),
    }
}

fn refuse<'m>(
    image: &mut (impl Read + Seek),
    kinds: impl Iterator<Item = &'m Magic>,
) -> Result<(), ContentError> {
    for (offset, magic, kind) in kinds {
        if read_at(image, *offset, magic.len())? == *magic {
            return Err(ContentError::Other { kind });
        }
    }
    Ok(())
}

/// Reads up to this many bytes from an offset.
pub(super) fn read_at(
    image: &mut (impl Read + Seek),
    offset: u64,
    most: usize,
) -> io::Result<Vec<u8>> {
    image.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::with_capacity(most);
    image.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text about an image on top of another.
pub const BACKED: &str = "that has a backing file, so it is not a complete image";

/// Incompatible features allowed in a qcow2 image that guests are made from. Bit 0 is dirty, 1
/// corrupt, 2 an external data file: not allowed; 3 is the compression type, 4 extended L2 entries:
/// QEMU handles both.
const HARMLESS: u64 = 1 << 3 | 1 << 4;

/// Reads a qcow2 header: big-endian, fields at fixed places.
fn qcow2(head: &[u8], file_bytes: u64) -> Result<Content, ContentError> {
    let wrong = |text: String| Err(ContentError::Qcow2(text));
    if head.len() < 104 && (head.len() < 72 || word(head, 4) != 2) {
        return wrong(format!("cut off after {file_bytes} bytes"));
    }
    let version = word(head, 4);
    if !matches!(version, 2 | 3) {
        return wrong(format!("of version {version}; 2 and 3 are known"));
    }
    if long(head, 8) != 0 {
        return wrong(BACKED.into());
    }
    if word(head, 32) != 0 {
        return wrong("that is encrypted".into());
    }
    let features = if version == 3 { long(head, 72) } else { 0 };
    for (bit, text) in [
        (2, "whose bytes are in another file (external data file)"),
        (1, "that is marked as corrupt; `qemu-img check -r all` may repair it"),
        (0, "that was not closed; `qemu-img check -r all` repairs it"),
    ] {
        if features & 1 << bit != 0 {
            return wrong(text.into());
        }
    }
    if features & !HARMLESS != 0 {
        return wrong(format!("with features that are not known: {features:#x}"));
    }
    let clusters = |count: u32| u64::from(count) << word(head, 20).min(21);
    let tables = [(40, u64::from(word(head, 36)) * 8), (48, clusters(word(head, 56)))];
    for (at, bytes) in tables {
        let end = long(head, at).saturating_add(bytes);
        if end > file_bytes {
            return wrong(format!("cut off: it has {file_bytes} bytes, and a table up to {end}"));
        }
    }
    let virtual_bytes = long(head, 24);
    let cluster_bits = word(head, 20);
    if virtual_bytes == 0 || virtual_bytes > 1 << 50 || !(9..=21).contains(&cluster_bits) {
        return wrong(format!(
            "with a size of {virtual_bytes} bytes in clusters of 2^{cluster_bits}, which cannot be"
        ));
    }
    Ok(Content { format: Format::Qcow2, virtual_bytes, boots: true })
}

/// Four bytes at a place; 0 past the end.
pub(super) fn word(head: &[u8], at: usize) -> u32 {
    head.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes)
}

/// Eight bytes at a place; 0 past the end.
pub(super) fn long(head: &[u8], at: usize) -> u64 {
    head.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_be_bytes)
}
