//! Where a guest keeps the topology file, and how NCCL finds it there.
//!
//! NCCL reads the file named by `NCCL_TOPO_FILE`, in the environment or in /etc/nccl.conf,
//! otherwise one at a fixed path below /run, since 2.10.3 (NVIDIA/nccl, src/graph/topo.cc and
//! src/misc/param.cc). /run is empty after each boot, so a tmpfiles.d line creates a link there,
//! and its directory, which container runtimes mount.

use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;

/// Path of the topology file.
pub const FILE: &str = "/etc/nccl-topo.xml";
/// Path where NCCL looks by default.
pub const FOUND_AT: &str = "/run/nvidia-topologyd/virtualTopology.xml";
/// The tmpfiles.d file that creates the link at each boot.
pub const TMPFILES: &str = "/etc/tmpfiles.d/nccl-topo.conf";
/// The same without its directory, as systemd-tmpfiles takes it.
pub const TMPFILES_NAME: &str = "nccl-topo.conf";
/// Its content.
pub const TMPFILES_TEXT: &str = "# Made by gpuvm: NCCL finds its topology file here.
d /run/nvidia-topologyd 0755 root root -
L+ /run/nvidia-topologyd/virtualTopology.xml - - - - /etc/nccl-topo.xml
";
/// NCCL's settings file.
pub const CONF: &str = "/etc/nccl.conf";
/// The variable that names the file in them, where they name none, as [`naming`] does; for a shell
/// in the guest.
pub const APPEND: &str = r#"conf=/etc/nccl.conf
grep -qs '^NCCL_TOPO_FILE=' "$conf" && exit 0
[ ! -s "$conf" ] || [ -z "$(tail -c 1 "$conf")" ] || echo >>"$conf"
echo NCCL_TOPO_FILE=/etc/nccl-topo.xml >>"$conf"
"#;

/// Possible unit files of NVIDIA's daemon that writes its own file at [`FOUND_AT`]; a guest with
/// the daemon has one of them.
pub const DAEMON: [&str; 3] = [
    "/usr/lib/systemd/system/nvidia-topologyd.service",
    "/lib/systemd/system/nvidia-topologyd.service",
    "/etc/systemd/system/nvidia-topologyd.service",
];
/// Files that may name another topology file and override [`CONF`]: environments, then a user's
/// NCCL settings. Shell patterns.
pub const OVER_CONF: [&str; 11] = [
    "/etc/environment",
    "/etc/environment.d/*.conf",
    "/etc/profile",
    "/etc/profile.d/*.sh",
    "/etc/bash.bashrc",
    "/etc/bashrc",
    "/etc/systemd/system.conf",
    "/etc/systemd/system.conf.d/*.conf",
    "/etc/systemd/user.conf",
    "/root/.nccl.conf",
    "/home/*/.nccl.conf",
];

/// Starts of our files, of either kind.
const OURS: [&str; 2] = ["<!-- Made by gpuvm ", "# Made by gpuvm"];
/// The first line, for the guest's admin, up to the checksum of the rest.
const HEAD: &str = "<!-- Made by gpuvm for this guest. Switches with only one of its devices are \
                    left out. Stale after any change to its devices: make it again with gpuvm \
                    nccl. Sum ";
const HEAD_END: &str = " -->";
/// Digits of the checksum that are written.
const SUM_DIGITS: usize = 16;

/// The SHA-256 of a text, as `sha256sum` prints it.
pub fn sum(text: &str) -> String {
    let bytes = Sha256::digest(text.as_bytes());
    bytes.iter().fold(String::new(), |mut digits, byte| {
        write!(digits, "{byte:02x}").expect("text");
        digits
    })
}

/// The first line of the file; `body`: the rest of the file.
pub(super) fn head(body: &str) -> String {
    format!("{HEAD}{}{HEAD_END}", &sum(body)[..SUM_DIGITS])
}

/// Returns the checksum in the first line of our file; `None` if it has none.
pub fn sum_of(file: &str) -> Option<&str> {
    file.lines().next()?.strip_prefix(HEAD)?.strip_suffix(HEAD_END)
}

/// Whether a file of a guest was written by gpuvm, even if changed since.
pub fn is_ours(text: &str) -> bool {
    OURS.iter().any(|head| text.starts_with(head))
}

/// Whether a file of a guest is exactly as gpuvm wrote it, so that it can be removed.
pub fn is_untouched(text: &str) -> bool {
    let of_nccl = || text.split_once('\n').is_some_and(|(first, body)| first == head(body));
    text == TMPFILES_TEXT || of_nccl()
}

/// Returns the topology file named by a line of an environment or shell profile; `None` if it names
/// none.
pub fn named_by(line: &str) -> Option<&str> {
    let (before, value) = line.split_once("NCCL_TOPO_FILE=")?;
    let starts_word = before.is_empty() || before.ends_with([' ', '\t', '"', '\'', ';', '=']);
    if before.trim_start().starts_with('#') || !starts_word {
        return None;
    }
    let value = value.trim_start_matches(['"', '\'']);
    value.split(['"', '\'', ' ', '\t', ';', '\r']).next().filter(|path| !path.is_empty())
}

/// Returns the topology file named by NCCL's settings; `None` if they name none. Read as by NCCL:
/// `KEY=VALUE` from the first column, and the first one counts.
pub fn named(conf: &str) -> Option<&str> {
    conf.split('\n').find_map(|line| line.strip_prefix("NCCL_TOPO_FILE="))
}

/// Adds the file to NCCL's settings; everything else stays.
pub fn naming(conf: &str) -> String {
    let end = if conf.is_empty() || conf.ends_with('\n') { "" } else { "\n" };
    format!("{conf}{end}NCCL_TOPO_FILE={FILE}\n")
}

/// Removes the line that names the file from NCCL's settings; everything else stays.
pub fn unnaming(conf: &str) -> String {
    let line = format!("NCCL_TOPO_FILE={FILE}");
    let kept = conf.split_inclusive('\n').filter(|one| one.trim_end_matches('\n') != line);
    kept.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_keep_what_they_say_and_name_the_file_on_a_line_of_its_own() {
        assert_eq!(named("# NCCL_TOPO_FILE=/a\nNCCL_DEBUG=INFO\n"), None);
        assert_eq!(named("NCCL_TOPO_FILE=/a\nNCCL_TOPO_FILE=/b"), Some("/a"));
        for (before, after) in [
            ("", "NCCL_TOPO_FILE=/etc/nccl-topo.xml\n"),
            ("NCCL_DEBUG=INFO", "NCCL_DEBUG=INFO\nNCCL_TOPO_FILE=/etc/nccl-topo.xml\n"),
            ("A=1\n", "A=1\nNCCL_TOPO_FILE=/etc/nccl-topo.xml\n"),
        ] {
            assert_eq!(naming(before), after);
            assert_eq!(named(&naming(before)), Some(FILE));
            assert_eq!(unnaming(after).trim_end(), before.trim_end());
        }
    }

    #[test]
    fn environments_and_shells_name_a_file_in_many_ways() {
        for (line, path) in [
            ("NCCL_TOPO_FILE=/a.xml", Some("/a.xml")),
            ("NCCL_TOPO_FILE=\"/a.xml\"", Some("/a.xml")),
            ("  export A=1 NCCL_TOPO_FILE='/a.xml'; b", Some("/a.xml")),
            ("DefaultEnvironment=\"A=1\" \"NCCL_TOPO_FILE=/a.xml\"", Some("/a.xml")),
            ("DefaultEnvironment=NCCL_TOPO_FILE=/a.xml\r", Some("/a.xml")),
            ("# NCCL_TOPO_FILE=/a.xml", None),
            ("MY_NCCL_TOPO_FILE=/a.xml", None),
            ("NCCL_TOPO_FILE=", None),
            ("NCCL_DEBUG=INFO", None),
        ] {
            assert_eq!(named_by(line), path, "{line}");
        }
    }

    #[test]
    fn gpuvm_recognises_its_own_files() {
        let system = crate::nccl::System { cpus: Vec::new() };
        let text = system.to_string();
        assert!(is_ours(&text) && is_ours(TMPFILES_TEXT));
        assert!(is_untouched(&text) && is_untouched(TMPFILES_TEXT));
        assert!(!is_ours("<system version=\"1\">\n") && !is_ours(""));
        // An edited file is still ours, but is not removed.
        for changed in
            [text.clone() + "\n", text.replace("system", "System"), "# Made by gpuvm".into()]
        {
            assert!(is_ours(&changed) && !is_untouched(&changed), "{changed}");
        }
        assert_eq!(sum_of(&text).map(str::len), Some(16));
        assert_eq!(sum_of(TMPFILES_TEXT), None);
        assert_eq!(&sum("abc")[..16], "ba7816bf8f01cfea");
    }
}
