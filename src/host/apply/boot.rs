//! Files of our own for boot. The first line of each names the command that made it and the one
//! that removes it, and its settings are read back from the file itself, so that no other record
//! can go stale. The modules of functions, NICs, pages and settings decide the content; this module
//! reads and writes it.

use super::error::BindError;
use super::{FileStep, Step, file};
use crate::fsroot::{FsError, FsRoot, not};
use std::path::Path;

/// A file of ours by its path below the root, with its text; no text: it must not exist.
pub type BootFile = (&'static str, Option<String>);

/// The start of the line that lists a file's functions.
const LIST: &str = "# Functions: ";
/// The type of tmpfiles.d lines that write a value at boot only: a run at another time, as by
/// package scripts, does not reset later changes.
const AT_BOOT: &str = "w!";

/// Returns the steps that write or remove files; none for one that is already so.
pub fn steps(files: impl IntoIterator<Item = BootFile>) -> Result<Vec<Step>, BindError> {
    let mut steps = Vec::new();
    for (path, text) in files {
        let path = Path::new("/").join(path);
        let was = file::content(&path)
            .map_err(|source| BindError::Configuration { path: path.clone(), source })?;
        if text != was {
            // Scripts of the initramfs are run only if they are executable.
            let program = path.starts_with("/etc/initramfs-tools/scripts");
            steps.push(FileStep::Set { path, text, was, program, kept: false }.into());
        }
    }
    Ok(steps)
}

/// A program's path as a unit of systemd has it: in double quotes where it has other characters
/// than plain ones, these escaped as in C, and `%` doubled, which begins a specifier
/// (systemd.service(5), COMMAND LINES).
pub fn unit_word(path: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+,:@".contains(c);
    if path.chars().all(is_plain) {
        return path.to_owned();
    }
    let escaped = path.chars().flat_map(|c| match c {
        '"' | '\\' => vec!['\\', c],
        '%' => vec!['%', '%'],
        _ => vec![c],
    });
    format!("\"{}\"", escaped.collect::<String>())
}

/// The first lines of a file that is about a list of functions: `head` says who made it.
pub fn listing(head: &str, words: &[String]) -> String {
    format!("{head}{LIST}{}\n", words.join(" "))
}

/// Returns the functions that a file lists; `what` names the expected form in errors.
pub fn listed<T>(
    root: &FsRoot,
    file: &str,
    what: &str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, FsError> {
    let mut all = Vec::new();
    let text = root.read(file)?.unwrap_or_default();
    for (number, line) in (1..).zip(text.lines()) {
        for word in line.strip_prefix(LIST).unwrap_or_default().split_whitespace() {
            let wrong = || root.malformed(file, number, not(word, what));
            all.push(read(word).ok_or_else(wrong)?);
        }
    }
    Ok(all)
}

/// Returns the values of a file's significant lines; `what` names the expected form in errors.
pub fn lines<T>(
    root: &FsRoot,
    file: &str,
    what: &str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, FsError> {
    let text = root.read(file)?.unwrap_or_default();
    let said = (1..).zip(text.lines());
    let said = said.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    said.map(|(number, line)| {
        read(line).ok_or_else(|| root.malformed(file, number, not(line, what)))
    })
    .collect()
}

/// The text of a unit of systemd that runs a command once. `unit`: the lines of its first section,
/// each with its end.
pub fn unit(listing: &str, unit: &str, command: &str) -> String {
    format!(
        "{listing}[Unit]\n{unit}\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart={command}\n"
    )
}

/// The text of a drop-in of a target, that makes the target want a unit, as a symlink would.
pub fn wants(head: &str, unit: &str) -> String {
    format!("{head}[Unit]\nWants={unit}\n")
}

/// The line of systemd-tmpfiles that writes a value to a path at boot.
pub fn written(path: &str, value: &str) -> String {
    format!("{AT_BOOT} {path} - - - - {value}\n")
}

/// The path and the value of such a line; `None` if it is no such line.
pub fn read_written(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split_whitespace();
    let path = words.next().filter(|word| *word == AT_BOOT).and_then(|_| words.next())?;
    Some((path, words.next_back()?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Fails if systemd finds a fault in a unit whose name begins so.
    pub(in crate::apply) fn verified(unit: &Path, name: &str) {
        let mut analyze = crate::program::command("systemd-analyze");
        match analyze.args(["verify", "--man=no"]).arg(unit).output() {
            Err(error) => crate::skip::skip(format!("systemd-analyze: {error}")),
            Ok(done) => {
                let said = String::from_utf8_lossy(&done.stderr).into_owned();
                let ours: Vec<&str> = said.lines().filter(|l| l.contains(name)).collect();
                assert!(done.status.success() && ours.is_empty(), "{said}");
            }
        }
    }

    #[test]
    fn boot_settings_are_read_back_exactly() {
        let line = written("/sys/kernel/x", "performance");
        assert_eq!(line, "w! /sys/kernel/x - - - - performance\n");
        assert_eq!(read_written(line.trim()), Some(("/sys/kernel/x", "performance")));
        for line in ["", "w /a - - - - 1", "w!", "w! /a", "# w! /a - - - - 1"] {
            assert_eq!(read_written(line), None, "{line}");
        }
    }

    #[test]
    fn a_list_and_lines_name_their_place_where_they_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        let number = |word: &str| word.parse::<u32>().ok();
        assert!(listed(&root, "unit", "a number", number).unwrap().is_empty());
        let text = listing("# Ours.\n", &["1".into(), "2".into()]);
        std::fs::write(dir.path().join("unit"), format!("{text}3\n")).unwrap();
        assert_eq!(listed(&root, "unit", "a number", number).unwrap(), [1, 2]);
        assert_eq!(lines(&root, "unit", "a number", number).unwrap(), [3]);
        std::fs::write(dir.path().join("unit"), "#\n# Functions: 1 x\n\ny\n").unwrap();
        let error = listed(&root, "unit", "a number", number).unwrap_err().to_string();
        assert!(error.contains("unit line 2: `x` is not a number"), "{error}");
        let error = lines(&root, "unit", "a number", number).unwrap_err().to_string();
        assert!(error.contains("unit line 4: `y` is not a number"), "{error}");
    }
}
