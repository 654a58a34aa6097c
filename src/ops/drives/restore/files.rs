//! Reverts the changes of a release in text files.

use super::super::FSTAB;
use crate::apply::array::{ArrayStep, content, unmark};
use crate::error::Result;
use crate::world::World;
use std::path::Path;

/// Adds mount options that disable device files and set-user-ID programs.
pub(super) fn guarded(options: &str) -> String {
    let kept = options.split(',').filter(|word| !["dev", "suid", "nodev", "nosuid"].contains(word));
    kept.filter(|word| !word.is_empty()).chain(["nodev", "nosuid"]).collect::<Vec<_>>().join(",")
}

/// A line of fstab with such options; its other bytes stay.
fn guarded_line(line: &str) -> String {
    let mut fields = line.split_whitespace();
    let Some(options) = fields.nth(3) else { return format!("{line} nodev,nosuid") };
    let at = options.as_ptr() as usize - line.as_ptr() as usize;
    format!("{}{}{}", &line[..at], guarded(options), &line[at + options.len()..])
}

/// The step that puts the lines of a file back; none if it has no mark of the array.
pub(super) fn unmarked(
    path: &Path,
    name: &str,
    kept: &[String],
    guard: bool,
    world: &World,
) -> Result<Option<ArrayStep>> {
    let before = content(path)?;
    let text = before.as_deref().unwrap_or_default();
    let mut back = unmark(text, name);
    for line in kept.iter().filter(|line| !back.lines.contains(line)) {
        world.warning(&format!("{} has no longer the line `{line}`", path.display()));
    }
    if back.text == text {
        return Ok(None);
    }
    for line in back.lines.iter_mut().filter(|_| guard) {
        let safe = guarded_line(line);
        back.text = back.text.replacen(line.as_str(), &safe, 1);
        *line = safe;
    }
    let what = if back.lines.is_empty() {
        "take out the line that kept the array from being assembled".to_owned()
    } else {
        format!("put back `{}`", back.lines.join("`, `"))
    };
    // A file created only for the mark is removed with it.
    let after = Some(back.text).filter(|text| !text.is_empty());
    let (path, units) = (path.to_owned(), path == Path::new(FSTAB));
    Ok(Some(ArrayStep::ReplaceText { path, before, after, what, units }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_s_file_system_is_mounted_without_devices_and_set_user_ids() {
        for (options, safe) in [
            ("defaults", "defaults,nodev,nosuid"),
            ("rw,suid,dev,noatime", "rw,noatime,nodev,nosuid"),
            ("", "nodev,nosuid"),
        ] {
            assert_eq!(guarded(options), safe);
        }
        for (line, safe) in [
            (
                "UUID=a\t/raid\text4 defaults,nofail 0 2",
                "UUID=a\t/raid\text4 defaults,nofail,nodev,nosuid 0 2",
            ),
            ("/dev/md1 /raid ext4", "/dev/md1 /raid ext4 nodev,nosuid"),
        ] {
            assert_eq!(guarded_line(line), safe);
        }
    }
}
