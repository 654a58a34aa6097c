//! Programs that files of ours run as root later: units at boot, libvirt's hook at each start of a
//! guest. A program that others can replace by then would give them root.

use nix::unistd::Uid;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

/// Permissions that let others than the owner write; an access list shows in the group's.
const OTHERS_WRITE: u32 = 0o022;
/// The most links on the way to a file, as in the kernel.
const MOST_LINKS: u32 = 40;
/// Settings of units that run a program.
const RUNS: [&str; 2] = ["ExecStart=", "ExecStartPost="];

/// Why others than root can replace a program; `None` if they cannot. Every directory on the way,
/// every link and the file itself must belong to root and be writable by root only. A sticky
/// directory does not suffice: whoever owns a file in it may replace it, and a missing one may be
/// made.
pub fn replaceable(program: &Path) -> Option<String> {
    replaceable_by(program, Uid::from_raw(0))
}

/// The same for files that belong to this user.
fn replaceable_by(program: &Path, owner: Uid) -> Option<String> {
    if !program.is_absolute() {
        return Some("it is not an absolute path".to_owned());
    }
    let names = |path: &Path| -> Vec<OsString> {
        let words = path.components().filter(|part| !matches!(part, Component::RootDir));
        words.map(|part| part.as_os_str().to_owned()).collect()
    };
    let mut left: VecDeque<OsString> = names(program).into();
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    loop {
        let meta = match at.symlink_metadata() {
            // A missing path cannot be made by another process: the directories above were fine.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => return Some(format!("{}: {error}", at.display())),
            Ok(meta) => meta,
        };
        if meta.uid() != owner.as_raw() {
            return Some(format!("{} belongs to user {}", at.display(), meta.uid()));
        }
        if meta.is_symlink() {
            links += 1;
            let target = at.read_link().ok().filter(|_| links <= MOST_LINKS);
            let Some(target) = target else {
                return Some(format!("{} is a link that leads nowhere", at.display()));
            };
            at.pop();
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            names(&target).into_iter().rev().for_each(|name| left.push_front(name));
        } else if meta.mode() & OTHERS_WRITE != 0 {
            let mode = meta.mode() & 0o7777;
            return Some(format!("{} has mode {mode:04o}: others can write it", at.display()));
        }
        match left.pop_front() {
            None => return None,
            Some(name) if name == ".." => _ = at.pop(),
            Some(name) if name == "." => {}
            Some(name) => at.push(name),
        }
    }
}

/// The programs that the text of a unit or of a hook of ours runs.
pub fn programs(text: &str) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = Vec::new();
    for line in text.lines() {
        let of_unit = RUNS.iter().find_map(|run| line.strip_prefix(run));
        let found = match (of_unit, line.strip_prefix("exec ")) {
            (Some(command), _) => of_systemd(command),
            (None, Some(command)) => of_shell(command),
            (None, None) => None,
        };
        all.extend(found.map(PathBuf::from).filter(|path| !all.contains(path)));
    }
    all
}

/// The first word of a command of systemd, as `unit_word` writes it.
fn of_systemd(command: &str) -> Option<String> {
    let command = command.trim_start_matches(['-', '@', ':', '+', '!']);
    let Some(quoted) = command.strip_prefix('"') else {
        return command.split_whitespace().next().map(|word| word.replace("%%", "%"));
    };
    let (mut word, mut letters) = (String::new(), quoted.chars());
    loop {
        match letters.next()? {
            '"' => return Some(word.replace("%%", "%")),
            '\\' => word.push(letters.next()?),
            letter => word.push(letter),
        }
    }
}

/// The first word of a shell's command, as [`gpuvm_core::shell::word`] writes it.
fn of_shell(command: &str) -> Option<String> {
    let (mut word, mut letters, mut quoted) = (String::new(), command.chars(), false);
    while let Some(letter) = letters.next() {
        match letter {
            '\'' => quoted = !quoted,
            '\\' if !quoted => word.push(letters.next()?),
            ' ' if !quoted => break,
            letter => word.push(letter),
        }
    }
    (!word.is_empty()).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    #[test]
    fn a_program_is_roots_alone_with_every_directory_and_link_on_its_way() {
        if !nix::unistd::geteuid().is_root() {
            return crate::skip::skip("owners of files are set by root only");
        }
        // Outside of /tmp, which all can write.
        let Ok(dir) = tempfile::tempdir_in("/run") else {
            return crate::skip::skip("/run cannot be written");
        };
        let dir = dir.path();
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        let bin = dir.join("bin");
        fs::create_dir(&bin).unwrap();
        let file = bin.join("gpuvm");
        fs::write(&file, "").unwrap();
        for (path, good) in [(dir, 0o755), (&bin, 0o755), (&file, 0o755)] {
            mode(path, good);
        }
        assert_eq!(replaceable(&file), None);
        for (path, bad) in [(dir, 0o775), (&*bin, 0o1777), (&*bin, 0o757), (&*file, 0o775)] {
            mode(path, bad);
            let why = replaceable(&file).unwrap();
            assert!(why.starts_with(&format!("{} has mode", path.display())), "{why}");
            mode(path, 0o755);
        }
        for path in [&*bin, &*file] {
            std::os::unix::fs::chown(path, Some(65534), None).unwrap();
            let why = replaceable(&file).unwrap();
            assert_eq!(why, format!("{} belongs to user 65534", path.display()));
            std::os::unix::fs::chown(path, Some(0), None).unwrap();
        }
        let theirs = dir.join("theirs");
        fs::create_dir(&theirs).unwrap();
        mode(&theirs, 0o777);
        // A link in a directory of others, and one that leads through it.
        for (link, target) in [("theirs/gpuvm", "../bin/gpuvm"), ("gpuvm", "theirs/../bin/gpuvm")] {
            symlink(target, dir.join(link)).unwrap();
            let why = replaceable(&dir.join(link)).unwrap();
            assert!(why.starts_with(&format!("{} has mode", theirs.display())), "{why}");
        }
        symlink("bin/gpuvm", dir.join("good")).unwrap();
        assert_eq!(replaceable(&dir.join("good")), None);
        symlink("loop", dir.join("loop")).unwrap();
        assert!(replaceable(&dir.join("loop")).unwrap().ends_with("leads nowhere"));
        assert!(
            replaceable(Path::new("/tmp/gpuvm")).is_some() && replaceable("x".as_ref()).is_some()
        );
        assert_eq!(replaceable(&bin.join("missing")), None);
    }

    #[test]
    fn programs_of_units_and_hooks_are_read_as_they_were_written() {
        for path in ["/usr/bin/gpuvm", "/opt/a b/gpuvm", "/opt/50%\"/g\\", "/opt/it's/gpuvm"] {
            let unit = crate::apply::boot::unit_word(path);
            let hook = gpuvm_core::shell::word(path);
            for text in [
                format!("[Service]\nExecStart={unit} --quiet recover\n"),
                format!("[Service]\nExecStartPost=-{unit} fabric restore --boot\n"),
                format!("#!/bin/sh\nexec {hook} --quiet fabric \"$verb\" --stdin >/dev/null\n"),
            ] {
                assert_eq!(programs(&text), [Path::new(path)], "{text}");
            }
        }
        assert_eq!(programs("vfio-pci\n# Made by `gpuvm`\n"), [""; 0].map(PathBuf::from));
    }
}
