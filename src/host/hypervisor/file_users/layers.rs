//! Overlay file systems (overlayfs), on which a file has another inode than the same file in the
//! directory that it comes from: one removed there is gone for whoever has it open by the other
//! name.

use crate::discover::hung_mounts::{Silent, bytes_of};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The kernel's list of mounts for this process.
const MOUNTS: &str = "/proc/self/mountinfo";

/// The overlay file systems of this machine, the last mounted first.
#[derive(Debug, Default)]
pub struct Layers(Vec<Overlay>);

#[derive(Debug, PartialEq, Eq)]
struct Overlay {
    at: PathBuf,
    /// Its directories, the upper one first.
    directories: Vec<PathBuf>,
}

impl Layers {
    /// Reads them, but for those over a file system that does not respond.
    pub fn read(silent: &Silent) -> Layers {
        let mut layers = Layers::parse(&std::fs::read(MOUNTS).unwrap_or_default());
        let answers = |directory: &PathBuf| silent.why(directory).is_none();
        layers.0.retain(|overlay| overlay.directories.iter().all(answers));
        layers
    }

    /// Reads them from the kernel's list.
    fn parse(mounts: &[u8]) -> Layers {
        let lines = mounts.split(|&byte| byte == b'\n');
        let mut all: Vec<Overlay> = lines.filter_map(overlay).collect();
        all.reverse();
        Layers(all)
    }

    /// Returns file system and inode of the file behind a name without links, in the uppermost
    /// directory that has it; `None` if it is on no overlay.
    pub fn inode(&self, real: &Path) -> Option<(u64, u64)> {
        let over = self.0.iter().filter(|overlay| real.starts_with(&overlay.at));
        let overlay = over.max_by_key(|overlay| overlay.at.components().count())?;
        let below = real.strip_prefix(&overlay.at).ok()?;
        let metas = overlay.directories.iter().map(|directory| directory.join(below).metadata());
        let found = metas.flatten().next()?;
        Some((found.dev(), found.ino()))
    }
}

/// Reads a line of the list; `None` if it is no overlay.
fn overlay(line: &[u8]) -> Option<Overlay> {
    let mut words = line.split(|&byte| byte == b' ');
    let at = path(words.nth(4)?);
    let mut words = words.skip_while(|word| *word != b"-").skip(1);
    if words.next()? != b"overlay" {
        return None;
    }
    let options = words.nth(1)?.split(|&byte| byte == b',');
    let options = options.filter_map(|option| {
        let equals = option.iter().position(|&byte| byte == b'=')?;
        Some((&option[..equals], &option[equals + 1..]))
    });
    let mut directories = Vec::new();
    for (name, value) in options {
        match name {
            b"upperdir" => directories.insert(0, path(value)),
            // Of several, two colons precede those that have data only.
            b"lowerdir" => directories.extend(parts(&bytes_of(value))),
            b"lowerdir+" | b"datadir+" => directories.push(path(value)),
            _ => {}
        }
    }
    Some(Overlay { at, directories })
}

/// Splits a list of directories at its colons; `\:` is a colon of a name.
fn parts(list: &[u8]) -> Vec<PathBuf> {
    let mut all = vec![Vec::new()];
    let mut bytes = list.iter().copied();
    while let Some(byte) = bytes.next() {
        match (byte, all.last_mut()) {
            (b':', _) => all.push(Vec::new()),
            (b'\\', Some(last)) => last.extend(bytes.next()),
            (byte, Some(last)) => last.push(byte),
            (_, None) => {}
        }
    }
    let named = all.into_iter().filter(|name| !name.is_empty());
    named.map(|name| PathBuf::from(OsString::from_vec(name))).collect()
}

/// The path that a word of the list names.
fn path(word: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes_of(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_overlays_are_read_as_the_kernel_lists_them() {
        let mounts = b"22 1 0:20 / /sys rw shared:1 - sysfs sysfs rw\n\
            40 1 0:33 / /srv/a\\040b rw shared:7 - overlay none rw,lowerdir=/low\\134:er:/l\\054w,\
            upperdir=/up,workdir=/work,xino=off\n\
            41 1 0:34 / /new rw - overlay none rw,lowerdir+=/one,lowerdir+=/two\n";
        let Layers(all) = Layers::parse(mounts);
        let named = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        let new = Overlay { at: "/new".into(), directories: named(&["/one", "/two"]) };
        let of_old = named(&["/up", "/low:er", "/l,w"]);
        assert_eq!(all, [new, Overlay { at: "/srv/a b".into(), directories: of_old }]);
    }
}
