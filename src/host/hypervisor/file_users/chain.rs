//! Walks the backing chain of an image, as reported by libvirt for volumes and by the images' own
//! headers.

use super::Volume;
use crate::discover::hung_mounts::Silent;
use gpuvm_core::image::{Below, BelowError, below};
use nix::fcntl::OFlag;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The most files of one chain that are examined; QEMU opens no chain of this length.
const MOST: usize = 512;
/// QEMU's protocols that are not files of the host.
const ELSEWHERE: [&str; 14] = [
    "nbd", "nbd+unix", "rbd", "iscsi", "ssh", "http", "https", "ftp", "ftps", "gluster", "nfs",
    "nvme", "sheepdog", "vxhs",
];
/// QEMU's protocols of host files and devices.
const HERE: [&str; 3] = ["file", "host_device", "host_cdrom"];

/// The backing chain of an image.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// The files, without the image itself.
    pub files: BTreeSet<PathBuf>,
    /// The first image with an unknown backing file, and why.
    pub untold: Option<(PathBuf, String)>,
    /// Backing files that do not exist, each with its overlay.
    pub absent: Vec<(PathBuf, PathBuf)>,
}

/// The files that an image refers to.
#[derive(Debug, Default)]
struct NamedFiles {
    /// The files, each with whether it is raw.
    files: Vec<(PathBuf, bool)>,
    /// Those of them that do not exist by any name that they may have.
    absent: Vec<PathBuf>,
}

impl Walk {
    /// Walks down from an image; `here`: the unresponsive file systems, if files are on this
    /// machine.
    pub(super) fn from(top: &Path, volumes: &[Volume], here: Option<&Silent>) -> Walk {
        let mut walk = Walk::default();
        let mut open = vec![(top.to_owned(), false)];
        let mut seen = BTreeSet::from([top.to_owned()]);
        while let Some((image, raw)) = open.pop() {
            let volume = volumes.iter().find(|volume| volume.path == image);
            let backing = volume.and_then(|volume| volume.backing.clone());
            let mut next: Vec<(PathBuf, bool)> =
                backing.into_iter().map(|path| (path, false)).collect();
            if !raw {
                let read = match here.map(|silent| silent.why(&image)) {
                    Some(None) => named_by(&image),
                    Some(Some(why)) => Err(why),
                    None => Err("it is on another machine".to_owned()),
                };
                match read {
                    Ok(NamedFiles { files, absent }) => {
                        next.extend(files);
                        let of_it = |path| (path, image.clone());
                        walk.absent.extend(absent.into_iter().map(of_it));
                    }
                    // libvirt has read it, with more permissions than ours.
                    Err(_) if volume.is_some() => {}
                    Err(why) => walk.untold = walk.untold.or(Some((image, why))),
                }
            }
            for (path, raw) in next {
                if seen.len() >= MOST {
                    let why = format!("its chain of backing files has more than {MOST} images");
                    walk.untold = walk.untold.or(Some((path, why)));
                    return walk;
                }
                if seen.insert(path.clone()) {
                    walk.files.insert(path.clone());
                    open.push((path, raw));
                }
            }
        }
        walk
    }
}

/// Whether there is certainly no file of this name; an inaccessible one may exist.
pub(super) fn is_absent(path: &Path) -> bool {
    let kinds = [ErrorKind::NotFound, ErrorKind::NotADirectory];
    path.metadata().is_err_and(|error| kinds.contains(&error.kind()))
}

/// Returns the files that an image refers to.
fn named_by(image: &Path) -> Result<NamedFiles, String> {
    let mut file = match open(image) {
        Ok(Some(file)) => file,
        // A missing file has no backing file; nor has a directory.
        Ok(None) => return Ok(NamedFiles::default()),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(NamedFiles::default()),
        Err(error) => return Err(error.to_string()),
    };
    let all = below(&mut file).map_err(|error| match error {
        BelowError::Read(error) => error.to_string(),
        BelowError::Unclear(why) => why,
    })?;
    let mut named = NamedFiles::default();
    for Below { name, raw } in all {
        let mut names = Vec::new();
        paths(&name, &mut names, 0)?;
        for name in names {
            // Relative to the directory of the image: by its given path for QEMU, by its resolved
            // path for libvirt.
            let real = image.canonicalize().ok();
            let bases = [Some(image), real.as_deref()].into_iter().flatten();
            let found: BTreeSet<PathBuf> =
                bases.filter_map(|base| Some(base.parent()?.join(&name))).collect();
            if found.iter().all(|path| is_absent(path)) {
                named.absent.extend(found.first().cloned());
            }
            named.files.extend(found.into_iter().map(|path| (path, raw)));
        }
    }
    Ok(named)
}

/// Opens a file or block device to be read; `None` if it is neither. Nothing else is opened, since
/// opening a device may have side effects, and opening a FIFO may block.
fn open(image: &Path) -> io::Result<Option<File>> {
    let is_disk = |kind: std::fs::FileType| kind.is_file() || kind.is_block_device();
    if !is_disk(image.metadata()?.file_type()) {
        return Ok(None);
    }
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(image)?;
    Ok(is_disk(file.metadata()?.file_type()).then_some(file))
}

/// Collects the paths in the name of a backing file: a path, a path after a QEMU protocol, or
/// QEMU's `json:`.
fn paths(name: &str, into: &mut Vec<PathBuf>, depth: usize) -> Result<(), String> {
    let unclear = || format!("its backing file is `{name}`, which gpuvm does not understand");
    if depth > 8 {
        return Err(unclear());
    }
    if let Some(text) = name.strip_prefix("json:") {
        let value: Value = serde_json::from_str(text).map_err(|_| unclear())?;
        let before = into.len();
        let elsewhere = json(&value, into, depth)?;
        return if into.len() > before || elsewhere { Ok(()) } else { Err(unclear()) };
    }
    // As QEMU distinguishes a protocol from a path: a colon before the first slash.
    let word = name.split('/').next().unwrap_or_default();
    match word.split_once(':') {
        None => into.push(name.into()),
        Some((word, _)) if HERE.contains(&word) => {
            let path = &name[word.len() + 1..];
            // As URIs are written: file:///a.
            let path = path.strip_prefix("//").filter(|path| path.starts_with('/'));
            into.push(path.unwrap_or(&name[word.len() + 1..]).into());
        }
        Some((word, _)) if ELSEWHERE.iter().any(|known| word.starts_with(known)) => {}
        Some(_) => return Err(unclear()),
    }
    Ok(())
}

/// Collects the paths in QEMU's description of a backing file; returns whether some of it is not on
/// a host file.
fn json(value: &Value, into: &mut Vec<PathBuf>, depth: usize) -> Result<bool, String> {
    let mut elsewhere = false;
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        match value {
            Value::Array(all) => open.extend(all),
            Value::Object(all) => {
                for (key, value) in all {
                    let key = key.rsplit('.').next().unwrap_or(key);
                    match (key, value.as_str()) {
                        ("filename", Some(path)) => paths(path, into, depth + 1)?,
                        ("driver", Some(word)) => elsewhere |= ELSEWHERE.contains(&word),
                        _ => open.push(value),
                    }
                }
            }
            _ => {}
        }
    }
    Ok(elsewhere)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_what_lies_below_are_read_as_qemu_reads_them() {
        let read = |name: &str| {
            let mut all = Vec::new();
            paths(name, &mut all, 0).map(|()| all)
        };
        let one = |path: &str| Ok(vec![PathBuf::from(path)]);
        assert_eq!(read("/a/b"), one("/a/b"));
        assert_eq!(read("../b:c/d"), one("../b:c/d"));
        assert_eq!(read("file:/a"), one("/a"));
        assert_eq!(read("file:///a"), one("/a"));
        assert_eq!(read("nbd://h/x"), Ok(vec![]));
        assert!(read("blkdebug:x:/a").is_err());
        assert_eq!(read(r#"json:{"driver":"qcow2","file.filename":"/a"}"#), one("/a"));
        let nested = r#"json:{"driver":"qcow2","file":{"driver":"file","filename":"b"}}"#;
        assert_eq!(read(nested), one("b"));
        let twice = r#"json:{"file":{"filename":"json:{\"filename\":\"/c\"}"}}"#;
        assert_eq!(read(twice), one("/c"));
        assert_eq!(read(r#"json:{"driver":"raw","file":{"driver":"nbd","host":"h"}}"#), Ok(vec![]));
        assert!(read("json:{").is_err());
        assert!(read(r#"json:{"driver":"qcow2","file":"node"}"#).is_err());
    }
}
