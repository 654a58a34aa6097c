//! The lines of /etc/fstab and mdadm.conf that refer to one array: commented out with a mark, and
//! restored byte for byte. Pure: text in, text out; every other line keeps its bytes.

use crate::discover::released::plain;
use std::collections::BTreeSet;

/// All names by which a line may refer to an array or its file system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// Paths of the device below /dev, links included.
    pub paths: BTreeSet<String>,
    /// UUID of the array.
    pub array_uuid: String,
    /// Its own name in its superblocks, with and without the host's name as prefix.
    pub array_names: BTreeSet<String>,
    /// UUID of the file system on it.
    pub fs_uuid: Option<String>,
    /// Label of the file system on it.
    pub fs_label: Option<String>,
}

impl Names {
    /// Whether the first field of a line of fstab refers to the device.
    fn is_spec(&self, spec: &str) -> bool {
        let spec = unescaped(spec);
        let is = |value: &str, wanted: &Option<String>| {
            let value = value.trim_matches(['"', '\'']);
            wanted.as_deref().is_some_and(|wanted| wanted.eq_ignore_ascii_case(value))
        };
        match spec.split_once('=') {
            Some(("UUID", value)) => is(value, &self.fs_uuid),
            Some(("LABEL", value)) => {
                let value = value.trim_matches(['"', '\'']);
                self.fs_label.as_deref() == Some(value)
            }
            _ => self.paths.contains(spec.as_str()),
        }
    }

    /// Whether an ARRAY entry refers to the array: by the UUID if given, otherwise by the device,
    /// otherwise by the name.
    fn is_entry(&self, words: &[String]) -> bool {
        let value = |key: &str| {
            words.iter().find_map(|word| {
                let (name, value) = word.split_once('=')?;
                name.eq_ignore_ascii_case(key).then_some(value)
            })
        };
        if let Some(uuid) = value("uuid") {
            return plain(uuid) == plain(&self.array_uuid);
        }
        let device = words.first().map(String::as_str).unwrap_or_default();
        let is_device = self.paths.contains(device)
            || self.paths.contains(&format!("/dev/{device}"))
            || self.paths.contains(&format!("/dev/md/{device}"));
        is_device || value("name").is_some_and(|name| self.array_names.contains(name))
    }
}

/// Returns the mark before a line that was commented out for an array.
fn mark(name: &str) -> String {
    format!("#gpuvm-released:{name}# ")
}

/// The mark at the end of a line that was added for an array.
fn added(name: &str) -> String {
    format!(" #gpuvm-released:{name}")
}

/// Replaces the escapes of fstab (`\040` for a blank).
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// A text with lines commented out, and these lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marked {
    /// The text.
    pub text: String,
    /// The lines, without their ends.
    pub lines: Vec<String>,
}

/// Comments out the lines of fstab that mount a device or use it for swap.
pub fn mark_fstab(text: &str, name: &str, names: &Names) -> Marked {
    let mut marked = Marked { text: String::new(), lines: Vec::new() };
    for line in text.split_inclusive('\n') {
        let spec = line.split_whitespace().next().unwrap_or_default();
        if !spec.is_empty() && !spec.starts_with('#') && names.is_spec(spec) {
            marked.text.push_str(&mark(name));
            marked.lines.push(line.trim_end_matches(['\n', '\r']).to_owned());
        }
        marked.text.push_str(line);
    }
    marked
}

/// Comments out the ARRAY entries of an array, and adds one that prevents its assembly: otherwise
/// udev would assemble the array as soon as the host sees its members again, such as when a guest
/// ends.
pub fn mark_mdadm_conf(text: &str, name: &str, names: &Names) -> Marked {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let mut marked = Marked { text: String::new(), lines: Vec::new() };
    let ignore = format!("ARRAY <ignore> UUID={}{}", names.array_uuid, added(name));
    let mut is_added = false;
    let mut at = 0;
    while at < lines.len() {
        // A line that starts with white space continues the one before (mdadm.conf(5)).
        let more = lines[at + 1..].iter().take_while(|line| line.starts_with([' ', '\t'])).count();
        let entry = &lines[at..=at + more];
        let words = words(entry);
        let is_array = words.first().is_some_and(|word| is_keyword(word, "array"));
        let is_ours = is_array && names.is_entry(&words[1..]);
        for line in entry {
            // Existing comments stay as they are.
            if is_ours && !line.trim_start().starts_with('#') {
                marked.text.push_str(&mark(name));
                marked.lines.push(line.trim_end_matches(['\n', '\r']).to_owned());
            }
            marked.text.push_str(line);
        }
        at += more + 1;
        if is_ours && !is_added {
            add(&mut marked.text, &ignore);
            is_added = true;
        }
    }
    if !is_added {
        add(&mut marked.text, &ignore);
    }
    marked
}

/// Adds a line; a text without a final newline stays without one.
fn add(text: &mut String, line: &str) {
    if text.is_empty() || text.ends_with('\n') {
        text.push_str(line);
        text.push('\n');
    } else {
        text.push('\n');
        text.push_str(line);
    }
}

/// The words of an entry of mdadm.conf: without comments and quotes.
fn words(entry: &[&str]) -> Vec<String> {
    let mut all = Vec::new();
    for line in entry {
        for word in line.split_whitespace() {
            if word.starts_with('#') {
                break;
            }
            all.push(word.replace(['"', '\''], ""));
        }
    }
    all
}

/// Whether a word is a keyword of mdadm.conf, in either case and shortened to three letters or
/// more.
fn is_keyword(word: &str, keyword: &str) -> bool {
    word.len() >= 3 && keyword.starts_with(&word.to_ascii_lowercase())
}

/// Removes the marks of an array from a text, and the lines added for it.
pub fn unmark(text: &str, name: &str) -> Marked {
    let (mark, added) = (mark(name), added(name));
    let mut unmarked = Marked { text: String::new(), lines: Vec::new() };
    for line in text.split_inclusive('\n') {
        if let Some(rest) = line.strip_prefix(&mark) {
            unmarked.lines.push(rest.trim_end_matches(['\n', '\r']).to_owned());
            unmarked.text.push_str(rest);
        } else if line.trim_end_matches('\n').ends_with(&added) {
            if !line.ends_with('\n') {
                // It was added after a last line without newline.
                unmarked.text.truncate(unmarked.text.trim_end_matches('\n').len());
            }
        } else {
            unmarked.text.push_str(line);
        }
    }
    unmarked
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names() -> Names {
        let set = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect();
        Names {
            paths: set(&["/dev/md1", "/dev/md/raid", "/dev/disk/by-uuid/AB-1"]),
            array_uuid: "00000000:11111111:22222222:33333333".into(),
            array_names: set(&["raid", "dgx:raid"]),
            fs_uuid: Some("ab-1".into()),
            fs_label: Some("my raid".into()),
        }
    }

    #[test]
    fn lines_of_fstab_that_mean_something_else_stay() {
        for line in [
            "",
            "#",
            "# /dev/md1 /raid ext4 defaults 0 0",
            "#/dev/md1 /raid ext4",
            "/dev/md10 /raid ext4",
            "/dev/md1p1 /raid ext4",
            "UUID=ab-11 /raid",
            "LABEL=my\\040Raid /raid",
            "PARTUUID=ab-1 /raid",
            "tmpfs /dev/md1 tmpfs",
            "/dev/sda1 /raid ext4 x-systemd.requires=/dev/md1",
            "server:/dev/md1 /raid nfs",
            "//server/x /raid cifs password=ü",
        ] {
            for end in ["", "\n", "\r\n"] {
                let text = format!("{line}{end}");
                let marked = mark_fstab(&text, "md1", &names());
                assert_eq!(marked, Marked { text, lines: vec![] });
            }
        }
    }

    #[test]
    fn lines_of_fstab_that_mean_the_array_are_commented() {
        for line in [
            "/dev/md1 /raid ext4 defaults 0 2",
            "\t/dev/md1\t/raid\text4",
            "  UUID=ab-1 /raid ext4 # the array",
            "UUID=\"AB-1\" /raid ext4",
            "LABEL=my\\040raid /raid ext4",
            "/dev/md/raid none swap sw 0 0",
            "/dev/disk/by-uuid/AB-1 /raid",
        ] {
            for (before, after) in [("", ""), ("a b\n", "\nc d\n"), ("#x\r\n", "\r\n")] {
                let text = format!("{before}{line}{after}");
                let marked = mark_fstab(&text, "md1", &names());
                let wanted = format!("{before}#gpuvm-released:md1# {line}{after}");
                assert_eq!(
                    (marked.text.as_str(), &*marked.lines),
                    (&*wanted, &[line.to_owned()][..])
                );
                assert_eq!(unmark(&marked.text, "md1").text, text);
                // A second time changes nothing, and another array's mark stays.
                assert_eq!(mark_fstab(&marked.text, "md1", &names()).text, marked.text);
                assert_eq!(unmark(&marked.text, "md").text, marked.text);
            }
        }
    }

    #[test]
    fn exactly_the_entry_of_the_array_is_replaced() {
        let ignore = "ARRAY <ignore> UUID=00000000:11111111:22222222:33333333 #gpuvm-released:md1";
        let other = "ARRAY /dev/md0 metadata=1.2 UUID=ffffffff:11111111:22222222:33333333\n";
        let ours = "UUID=00000000:11111111:22222222:33333333";
        for entry in [
            format!("ARRAY /dev/md/0 metadata=1.2 {ours} name=dgx:0"),
            "array\t<ignore> uuid=00000000-1111-1111-2222-222233333333".to_owned(),
            "ARR /dev/md1 devices=/dev/a,/dev/b".to_owned(),
            "ARRAY raid".to_owned(),
            "ARRAY /dev/md/x name=dgx:raid".to_owned(),
            "ARRAY \"/dev/md1\" # with a remark".to_owned(),
        ] {
            for (before, after) in [("", "\n"), (other, "\n"), ("# x\n\n", &*format!("\n{other}"))]
            {
                let text = format!("{before}{entry}{after}");
                let marked = mark_mdadm_conf(&text, "md1", &names());
                let (newline, rest) = after.split_at(1);
                let wanted =
                    format!("{before}#gpuvm-released:md1# {entry}{newline}{ignore}\n{rest}");
                assert_eq!(marked.text, wanted);
                assert_eq!(marked.lines, std::slice::from_ref(&entry));
                assert_eq!(unmark(&marked.text, "md1").text, text);
            }
        }
    }

    #[test]
    fn entries_of_others_stay_and_those_over_several_lines_go_whole() {
        for entry in [
            "ARRAY /dev/md1 UUID=ffffffff:11111111:22222222:33333333",
            "ARRAY /dev/md10",
            "ARRAY /dev/md/y name=other:raid",
            "#ARRAY /dev/md1",
            "AR /dev/md1",
            "DEVICE /dev/md1",
            "MAILADDR root",
            "arrays /dev/md1",
        ] {
            for text in [format!("{entry}\n"), entry.to_owned(), String::new(), "\n\n".to_owned()] {
                let marked = mark_mdadm_conf(&text, "md1", &names());
                assert!(marked.lines.is_empty() && marked.text.starts_with(&text), "{marked:?}");
                assert_eq!(unmark(&marked.text, "md1").text, text);
            }
        }
        let text = "ARRAY /dev/md0\n\tUUID=ffffffff:11111111:22222222:33333333\nARRAY /dev/md1\n  \
                    # theirs\n  devices=/dev/a,\\\n\t/dev/b\nMAILADDR root";
        let marked = mark_mdadm_conf(text, "md1", &names());
        assert_eq!(marked.lines, ["ARRAY /dev/md1", "  devices=/dev/a,\\", "\t/dev/b"]);
        assert!(marked.text.starts_with("ARRAY /dev/md0\n\tUUID=ffff"), "{}", marked.text);
        assert!(marked.text.contains("\n  # theirs\n"), "{}", marked.text);
        assert_eq!(unmark(&marked.text, "md1").text, text);
    }

    proptest! {
        #[test]
        fn marked_text_is_restored_byte_for_byte(
            lines in proptest::collection::vec(
                "(ARRAY|array|ARR|#|DEVICE)? ?(/dev/md1|raid|UUID=ab-1|name=raid|/dev/md0)?[ \t\r#x]{0,4}", 0..8),
            end: bool,
        ) {
            let text = lines.join("\n") + if end { "\n" } else { "" };
            for marked in [mark_fstab(&text, "md1", &names()), mark_mdadm_conf(&text, "md1", &names())] {
                prop_assert_eq!(unmark(&marked.text, "md1").text, text.clone());
            }
        }
    }
}
