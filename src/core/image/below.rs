//! The files that an image refers to: its backing file and the files that hold its data. An image's
//! claims are trusted only so far that the files it names count as possibly needed.

use super::content::{long, read_at, word};
use std::io::{self, Read, Seek};

/// The most bytes read of a header; names lie within the first cluster.
const MOST_HEAD: usize = 64 << 10;
/// The bytes of a header before its extensions.
const HEAD: usize = 104;
/// The most entries of a table of tables: QEMU's own limit, 32 MiB.
const MOST_TABLES: usize = (32 << 20) / 8;
/// Longest name of a backing file, in bytes (docs/interop/qcow2).
const MOST_NAME: u32 = 1023;
/// Extension of a qcow2 header: the format of the backing file.
const BACKING_FORMAT: u32 = 0xe279_2aca;
/// Extension of a qcow2 header: the name of the external data file.
const DATA_FILE: u32 = 0x4441_5441;

/// A file that an image refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Below {
    /// Its name as the image has it: a path, relative to the image, or `json:` and QEMU's own
    /// words.
    pub name: String,
    /// Whether the image is declared raw, so that it has no backing file.
    pub raw: bool,
}

/// The error of an image whose backing files cannot be determined.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "backing-file-")]
pub enum BelowError {
    /// It cannot be read.
    #[error("{0}")]
    #[strum(to_string = "unreadable")]
    Read(#[from] io::Error),
    /// It names a file in a form that cannot be parsed.
    #[error("{0}")]
    Unclear(String),
}

/// Returns every file that an image refers to; none if it is standalone or raw.
pub fn below(image: &mut (impl Read + Seek)) -> Result<Vec<Below>, BelowError> {
    let head = read_at(image, 0, MOST_HEAD)?;
    if head.starts_with(b"QFI\xfb") {
        return qcow(image, &head);
    }
    if head.starts_with(b"QED\0") {
        let little = |at: usize| word(&head, at).swap_bytes();
        let named = little(16) & 1 != 0;
        let raw = little(16) & 4 != 0;
        return if named {
            Ok(vec![Below { name: name(image, little(56).into(), little(60))?, raw }])
        } else {
            Ok(Vec::new())
        };
    }
    if [&b"KDMV"[..], b"COWD", b"# Disk DescriptorFile"].iter().any(|magic| head.starts_with(magic))
    {
        return Ok(vmdk(&head));
    }
    // A dynamic VHD begins with a copy of its footer; type 4 is a differencing disk.
    if head.starts_with(b"conectix") && word(&head, 60) == 4 {
        return Err(BelowError::Unclear("it is a VHD image over another".into()));
    }
    Ok(Vec::new())
}

/// Whether a qcow2 image has no content and no snapshot of its own, so that a guest reads the
/// images below through it: its table of tables of clusters (docs/interop/qcow2: L1 table) names
/// none.
pub fn is_untouched(image: &mut (impl Read + Seek)) -> io::Result<bool> {
    let head = read_at(image, 0, HEAD)?;
    let entries = word(&head, 36) as usize;
    let is_qcow2 = head.starts_with(b"QFI\xfb") && matches!(word(&head, 4), 2 | 3);
    if head.len() < 72 || !is_qcow2 || word(&head, 60) != 0 || entries > MOST_TABLES {
        return Ok(false);
    }
    let table = read_at(image, long(&head, 40), entries * 8)?;
    // A table that is cut off may have had anything.
    Ok(table.len() == entries * 8 && table.iter().all(|byte| *byte == 0))
}

/// Returns the files that a qcow or qcow2 image refers to.
fn qcow(image: &mut (impl Read + Seek), head: &[u8]) -> Result<Vec<Below>, BelowError> {
    let version = word(head, 4);
    let (at, bytes) = (long(head, 8), word(head, 16));
    let (mut raw, mut all) = (false, Vec::new());
    if version >= 2 {
        let end = if at == 0 { head.len() as u64 } else { at };
        for (kind, content) in extensions(head, version, end) {
            match kind {
                BACKING_FORMAT => raw = content == b"raw",
                DATA_FILE => {
                    all.push(Below { name: text(content)?, raw: true });
                }
                _ => {}
            }
        }
    }
    if at != 0 {
        all.push(Below { name: name(image, at, bytes)?, raw });
    }
    // Bit 2 of a qcow2 image's features: external data file.
    let is_outside = version >= 3 && long(head, 72) & 4 != 0;
    if is_outside && !all.iter().any(|below| below.raw) {
        return Err(BelowError::Unclear("its bytes are in a file that it does not name".into()));
    }
    Ok(all)
}

/// Returns the extensions of a qcow2 header, type and content; they end before the backing file
/// name.
fn extensions(head: &[u8], version: u32, end: u64) -> Vec<(u32, &[u8])> {
    let mut at = if version == 2 { 72 } else { word(head, 100) as usize };
    let end = usize::try_from(end).unwrap_or(usize::MAX).min(head.len());
    let mut all = Vec::new();
    while at.saturating_add(8) <= end {
        let (kind, bytes) = (word(head, at), word(head, at + 4) as usize);
        let Some(content) = head.get(at + 8..(at + 8).saturating_add(bytes)) else { break };
        if kind == 0 {
            break;
        }
        all.push((kind, content));
        at += 8 + bytes.next_multiple_of(8);
    }
    all
}

/// The name at a place of an image.
fn name(image: &mut (impl Read + Seek), at: u64, bytes: u32) -> Result<String, BelowError> {
    if bytes > MOST_NAME {
        let message = format!("the name of what is below it has {bytes} bytes");
        return Err(BelowError::Unclear(message));
    }
    let content = read_at(image, at, bytes as usize)?;
    if content.len() < bytes as usize {
        return Err(BelowError::Unclear("it ends before the name of what is below it".into()));
    }
    text(&content)
}

fn text(content: &[u8]) -> Result<String, BelowError> {
    let unclear = |_| BelowError::Unclear("the name of what is below it is no text".into());
    let text = std::str::from_utf8(content).map_err(unclear)?;
    Ok(text.trim_end_matches('\0').to_owned())
}

/// Returns the files that a VMDK descriptor refers to: its parent and its extents.
fn vmdk(head: &[u8]) -> Vec<Below> {
    let text = String::from_utf8_lossy(head);
    let mut all = Vec::new();
    for line in text.lines() {
        let line = line.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
        let is_extent = ["RW ", "RDONLY "].iter().any(|word| line.starts_with(word));
        let is_parent = line.starts_with("parentFileNameHint");
        let name = line.split('"').nth(1).filter(|_| is_extent || is_parent);
        all.extend(name.map(|name| Below { name: name.to_owned(), raw: false }));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    /// A qcow2 header of version 3 with this backing file, with these extensions.
    fn qcow2(backing: &str, extensions: &[(u32, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        bytes[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
        if !backing.is_empty() {
            bytes[8..16].copy_from_slice(&0x200_u64.to_be_bytes());
            bytes[16..20].copy_from_slice(&u32::try_from(backing.len()).unwrap().to_be_bytes());
            bytes[0x200..0x200 + backing.len()].copy_from_slice(backing.as_bytes());
        }
        bytes[100..104].copy_from_slice(&104_u32.to_be_bytes());
        let mut at = 104;
        for (kind, content) in extensions {
            bytes[at..at + 4].copy_from_slice(&kind.to_be_bytes());
            let length = u32::try_from(content.len()).unwrap();
            bytes[at + 4..at + 8].copy_from_slice(&length.to_be_bytes());
            bytes[at + 8..at + 8 + content.len()].copy_from_slice(content);
            at += 8 + content.len().next_multiple_of(8);
        }
        bytes
    }

    /// The names, raw files marked with `!`.
    fn named(bytes: Vec<u8>) -> Result<Vec<String>, String> {
        let all = below(&mut Cursor::new(bytes)).map_err(|error| error.to_string())?;
        let mark = |raw| if raw { "!" } else { "" };
        Ok(all.into_iter().map(|b| b.name + mark(b.raw)).collect())
    }

    #[test]
    fn an_image_without_content_of_its_own_is_untouched() {
        let with = |at: usize, byte: u8| {
            let mut bytes = qcow2("/b", &[]);
            // Two tables of clusters, at 0x400.
            bytes[36..40].copy_from_slice(&2_u32.to_be_bytes());
            bytes[40..48].copy_from_slice(&0x400_u64.to_be_bytes());
            bytes[at] = byte;
            bytes
        };
        let untouched = |bytes: Vec<u8>| is_untouched(&mut Cursor::new(bytes)).unwrap();
        assert!(untouched(with(0x500, 7)), "what is not in the table does not count");
        assert!(!untouched(with(0x40f, 1)), "the last entry");
        assert!(!untouched(with(63, 1)), "a snapshot");
        assert!(!untouched(with(0, b'R')), "no qcow2 image");
        let mut cut = with(0x500, 0);
        cut.truncate(0x40f);
        assert!(!untouched(cut));
        let mut endless = with(0x500, 0);
        endless[36] = 0xff;
        assert!(!untouched(endless));
        assert!(!untouched(Vec::new()));
    }

    #[test]
    fn an_image_names_what_lies_below_it() {
        assert_eq!(named(vec![0; 100]), Ok(vec![]));
        assert_eq!(named(Vec::new()), Ok(vec![]));
        assert_eq!(named(qcow2("", &[])), Ok(vec![]));
        assert_eq!(named(qcow2("../b.raw", &[])), Ok(vec!["../b.raw".into()]));
        let raw = qcow2("/b", &[(7, b"xyz"), (BACKING_FORMAT, b"raw")]);
        assert_eq!(named(raw), Ok(vec!["/b!".into()]));
        let data = qcow2("/b", &[(BACKING_FORMAT, b"qcow2"), (DATA_FILE, b"/data")]);
        assert_eq!(named(data), Ok(vec!["/data!".into(), "/b".into()]));
        let mut outside = qcow2("", &[]);
        outside[79] = 4;
        assert!(named(outside).unwrap_err().contains("does not name"));
        let mut long = qcow2("/b", &[]);
        long[16..20].copy_from_slice(&5000_u32.to_be_bytes());
        assert!(named(long).unwrap_err().contains("5000 bytes"));
        let mut cut = qcow2("/b", &[]);
        cut.truncate(0x201);
        assert!(named(cut).unwrap_err().contains("ends before"));
        let vmdk =
            "# Disk DescriptorFile\nparentFileNameHint=\"/p.vmdk\"\nRW 4 FLAT \"f.vmdk\" 0\n";
        assert_eq!(named(vmdk.into()), Ok(vec!["/p.vmdk".into(), "f.vmdk".into()]));
        let mut vhd = b"conectix".to_vec();
        vhd.resize(512, 0);
        vhd[63] = 4;
        assert!(named(vhd).is_err());
    }
}
