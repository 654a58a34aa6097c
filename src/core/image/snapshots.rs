//! The internal snapshots of a qcow2 image, by the table that its header names (docs/interop/qcow2
//! of QEMU). libvirt keeps a list of its own, which may know less of the image, or more.

use super::content::{long, read_at, word};
use std::io::{self, Read, Seek};

const MOST: u32 = 65_536;
/// Bytes of an entry before the strings that its lengths describe.
const ENTRY: usize = 40;

/// A snapshot in the table of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSnapshot {
    /// Its id in the image, which QEMU counts from 1; `qemu-img snapshot -a` looks for it first.
    pub id: String,
    /// Its name.
    pub name: String,
}

/// Returns the snapshots that an image has, each name as often as it is there; none of another
/// format.
pub fn snapshots(image: &mut (impl Read + Seek)) -> io::Result<Vec<ImageSnapshot>> {
    let head = read_at(image, 0, 72)?;
    let mut all = Vec::new();
    if !head.starts_with(b"QFI\xfb") {
        return Ok(all);
    }
    let (number, mut at) = (word(&head, 60), long(&head, 64));
    let bad = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
    if number > MOST {
        return Err(bad("its table of snapshots cannot be"));
    }
    for _ in 0..number {
        let entry = read_at(image, at, ENTRY)?;
        if entry.len() < ENTRY {
            return Err(bad("its table of snapshots is cut off"));
        }
        let short = |at: usize| u64::from(word(&entry, at) >> 16);
        let (id, name, extra) = (short(12), short(14), u64::from(word(&entry, 36)));
        let id_at = at.saturating_add(ENTRY as u64 + extra);
        let name_at = id_at.saturating_add(id);
        let mut text = |at: u64, length: u64| {
            let bytes = read_at(image, at, usize::try_from(length).unwrap_or_default())?;
            io::Result::Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        all.push(ImageSnapshot { id: text(id_at, id)?, name: text(name_at, name)? });
        at = name_at.saturating_add(name).next_multiple_of(8);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    /// An image with these snapshots, its table at 104.
    fn image(names: &[&str]) -> Vec<u8> {
        let mut bytes = b"QFI\xfb\0\0\0\x03".to_vec();
        bytes.resize(104, 0);
        bytes[63] = u8::try_from(names.len()).unwrap();
        bytes[71] = 104;
        for (nth, name) in names.iter().enumerate() {
            let mut entry = vec![0; ENTRY];
            (entry[13], entry[15], entry[39]) = (1, u8::try_from(name.len()).unwrap(), 16);
            entry.extend([0; 16]);
            entry.push(b'1' + u8::try_from(nth).unwrap());
            entry.extend(name.bytes());
            entry.resize(entry.len().next_multiple_of(8), 0);
            bytes.extend(entry);
        }
        bytes
    }

    #[test]
    fn each_snapshot_of_an_image_is_named() {
        let of = |bytes: Vec<u8>| {
            let all = snapshots(&mut Cursor::new(bytes))?.into_iter();
            io::Result::Ok(all.map(|one| format!("{} {}", one.id, one.name)).collect::<Vec<_>>())
        };
        assert_eq!(of(image(&[])).unwrap(), [""; 0]);
        assert_eq!(
            of(image(&["one", "a longer name", "one"])).unwrap(),
            ["1 one", "2 a longer name", "3 one"]
        );
        assert_eq!(of(vec![0; 4096]).unwrap(), [""; 0]);
        assert_eq!(of(Vec::new()).unwrap(), [""; 0]);
        let mut cut = image(&["one", "two"]);
        cut.truncate(180);
        assert!(of(cut).is_err());
        let mut many = image(&["one"]);
        many[60] = 0xff;
        assert!(of(many).is_err());
        let mut far = image(&["one"]);
        far[64..72].fill(0xff);
        assert!(of(far).is_err());
    }
}
