//! Statistics of KVM about a guest, in debugfs: `kvm/PID-FD`, which only root can read. The
//! counters of all vCPUs are summed there by the kernel (`kvm_create_vm_debugfs`).

use crate::fsroot::{FsRoot, KeptFile, KeptLimit};
use gpuvm_core::load::KvmCounts;

/// Where debugfs has a directory for each virtual machine of KVM.
const MACHINES: &str = "sys/kernel/debug/kvm";

/// The open files of a guest.
#[derive(Debug)]
pub(super) struct KvmFiles {
    exits: Option<KeptFile>,
    /// Polls that found work, and those that did not.
    polls: Vec<KeptFile>,
}

impl KvmFiles {
    /// Opens the files of a process; the error says why there are none.
    pub(super) fn open(root: &FsRoot, pid: u32, limit: KeptLimit) -> Result<KvmFiles, String> {
        let names = root.names(MACHINES).map_err(|error| error.to_string())?;
        let begin = format!("{pid}-");
        let machine = names.into_iter().find(|name| name.starts_with(&begin));
        let machine =
            machine.ok_or_else(|| format!("/{MACHINES} has no entry of process {pid}"))?;
        let kept = |name: &str| {
            KeptFile::open(root, &format!("{MACHINES}/{machine}/{name}"), limit).ok().flatten()
        };
        let polls = ["halt_poll_success_ns", "halt_poll_fail_ns"].into_iter().filter_map(kept);
        Ok(KvmFiles { exits: kept("exits"), polls: polls.collect() })
    }

    /// Reads the counters so far.
    pub(super) fn read(&self, root: &FsRoot, buffer: &mut Vec<u8>) -> KvmCounts {
        let mut count =
            |file: &KeptFile| -> Option<u64> { file.read(root, buffer).ok()?.trim().parse().ok() };
        let exits = self.exits.as_ref().and_then(&mut count);
        let polls: Vec<u64> = self.polls.iter().filter_map(count).collect();
        // One without the other is an unknown kernel.
        let halt_poll_ns = if let [won, lost] = polls[..] { won.checked_add(lost) } else { None };
        KvmCounts { exits, halt_poll_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_those_of_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        let open = |pid| KvmFiles::open(&root, pid, KeptLimit::NONE);
        assert!(open(40).unwrap_err().contains("no entry of process 40"));
        let write = |path: &str, text: &str| {
            let path = dir.path().join(MACHINES).join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        // Process 401 is another one.
        write("401-12/exits", "7\n");
        assert!(open(40).is_err());
        write("40-12/exits", "123\n");
        write("40-12/halt_poll_success_ns", "1000\n");
        let mut buffer = Vec::new();
        let counts = open(40).unwrap().read(&root, &mut buffer);
        assert_eq!(counts, KvmCounts { exits: Some(123), halt_poll_ns: None });
        write("40-12/halt_poll_fail_ns", "500\n");
        write("40-12/exits", "x\n");
        let counts = open(40).unwrap().read(&root, &mut buffer);
        assert_eq!(counts, KvmCounts { exits: None, halt_poll_ns: Some(1500) });
    }
}
