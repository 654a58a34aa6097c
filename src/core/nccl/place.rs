//! Where a guest keeps the file, and by what NCCL finds it there.
//!
//! NCCL takes the file that `NCCL_TOPO_FILE` names, in the environment or in /etc/nccl.conf, else the one at a fixed place
//! below /run, from 2.10.3 on (NVIDIA/nccl, src/graph/topo.cc and src/misc/param.cc). /run is empty after each start, so that a
//! line of tmpfiles.d makes a link there. The directory is made too: who starts containers mounts it.

use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;

/// The file.
pub const FILE: &str = "/etc/nccl-topo.xml";
/// Where NCCL looks for it by itself.
pub const FOUND_AT: &str = "/run/nvidia-topologyd/virtualTopology.xml";
/// What makes the link there at each start.
pub const TMPFILES: &str = "/etc/tmpfiles.d/nccl-topo.conf";
/// The same without its directory, as systemd-tmpfiles takes it.
pub const TMPFILES_NAME: &str = "nccl-topo.conf";
/// What is in it.
pub const TMPFILES_TEXT: &str = "# Made by gpuvm: NCCL finds its topology file here.
d /run/nvidia-topologyd 0755 root root -
L+ /run/nvidia-topologyd/virtualTopology.xml - - - - /etc/nccl-topo.xml
";
/// The settings of NCCL.
pub const CONF: &str = "/etc/nccl.conf";

/// Where NVIDIA's daemon that writes a file of its own at [`FOUND_AT`] has its unit, of which one is there in a guest with it.
pub const DAEMON: [&str; 3] = [
    "/usr/lib/systemd/system/nvidia-topologyd.service",
    "/lib/systemd/system/nvidia-topologyd.service",
    "/etc/systemd/system/nvidia-topologyd.service",
];
/// What may name another file for programs of the guest, over [`CONF`]: environments, then NCCL's settings of a user.
/// Patterns of a shell.
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

/// How a file of ours begins, of either kind.
const OURS: [&str; 2] = ["<!-- Made by gpuvm ", "# Made by gpuvm"];
/// What an admin of the guest reads first, before the sum of what follows.
const HEAD: &str = "<!-- Made by gpuvm for this guest. Switches with only one of its devices are left out. \
                    Stale after any change to its devices: make it again with gpuvm nccl. Sum ";
/// The end of that line.
const HEAD_END: &str = " -->";
/// Digits of the sum that are written.
const SUM_DIGITS: usize = 16;

/// The SHA-256 of a text, as `sha256sum` prints it.
pub fn sum(text: &str) -> String {
    let bytes = Sha256::digest(text.as_bytes());
    bytes.iter().fold(String::new(), |mut digits, byte| {
        write!(digits, "{byte:02x}").expect("text");
        digits
    })
}

/// The first line of the file; `body`: what follows it.
pub(super) fn head(body: &str) -> String {
    format!("{HEAD}{}{HEAD_END}", &sum(body)[..SUM_DIGITS])
}

/// The sum in the first line of a file of ours; none: there is none.
pub fn sum_of(file: &str) -> Option<&str> {
    file.lines().next()?.strip_prefix(HEAD)?.strip_suffix(HEAD_END)
}

/// Whether a file of a guest is one that gpuvm wrote, also where somebody has changed it since.
pub fn is_ours(text: &str) -> bool {
    OURS.iter().any(|head| text.starts_with(head))
}

/// Whether a file of a guest is one that gpuvm wrote, to the byte: nobody misses it.
pub fn is_untouched(text: &str) -> bool {
    let of_nccl = || text.split_once('\n').is_some_and(|(first, body)| first == head(body));
    text == TMPFILES_TEXT || of_nccl()
}

/// The file that a line of an environment or of a shell's settings names; none: it names none.
pub fn named_by(line: &str) -> Option<&str> {
    let (before, value) = line.split_once("NCCL_TOPO_FILE=")?;
    let starts_word = before.is_empty() || before.ends_with([' ', '\t', '"', '\'', ';', '=']);
    if before.trim_start().starts_with('#') || !starts_word {
        return None;
    }
    let value = value.trim_start_matches(['"', '\'']);
    value.split(['"', '\'', ' ', '\t', ';', '\r']).next().filter(|path| !path.is_empty())
}

/// The file that NCCL's settings name; none: they name none. As NCCL reads them: `KEY=VALUE` from the first column, and the
/// first one counts, since a later one does not overwrite it.
pub fn named(conf: &str) -> Option<&str> {
    conf.split('\n').find_map(|line| line.strip_prefix("NCCL_TOPO_FILE="))
}

/// NCCL's settings with the file named too; what they say already stays.
pub fn naming(conf: &str) -> String {
    let end = if conf.is_empty() || conf.ends_with('\n') { "" } else { "\n" };
    format!("{conf}{end}NCCL_TOPO_FILE={FILE}\n")
}

/// NCCL's settings without the line that names the file; what else they say stays.
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
    fn what_gpuvm_writes_is_known_as_its_own() {
        let system = crate::nccl::System { cpus: Vec::new() };
        let text = system.to_string();
        assert!(is_ours(&text) && is_ours(TMPFILES_TEXT));
        assert!(is_untouched(&text) && is_untouched(TMPFILES_TEXT));
        assert!(!is_ours("<system version=\"1\">\n") && !is_ours(""));
        // What somebody has changed is ours still, and is not thrown away.
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
