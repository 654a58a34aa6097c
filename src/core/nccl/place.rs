//! Where a guest keeps the file, and by what NCCL finds it there.
//!
//! NCCL takes the file that `NCCL_TOPO_FILE` names, in the environment or in /etc/nccl.conf, else the one at a fixed place
//! below /run, from 2.10.3 on (NVIDIA/nccl, src/graph/topo.cc and src/misc/param.cc). /run is empty after each start, so that a
//! line of tmpfiles.d makes a link there. The directory is made too: who starts containers mounts it.

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

/// How a file of ours begins, of either kind.
const OURS: [&str; 2] = ["<!-- Made by gpuvm ", "# Made by gpuvm"];

/// Whether a file of a guest is one that gpuvm wrote.
pub fn is_ours(text: &str) -> bool {
    OURS.iter().any(|head| text.starts_with(head))
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
        }
    }

    #[test]
    fn what_gpuvm_writes_is_known_as_its_own() {
        let system = crate::nccl::System { cpus: Vec::new() };
        assert!(is_ours(&system.to_string()) && is_ours(TMPFILES_TEXT));
        assert!(!is_ours("<system version=\"1\">\n") && !is_ours(""));
    }
}
