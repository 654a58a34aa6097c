//! Reserves huge pages at boot: one tmpfiles.d file of our own. sysctl would not do, since it
//! cannot name a node: the kernel spreads its number over all nodes.
//!
//! systemd runs these lines while it sets the system up, before libvirt's daemon and when hardly
//! any memory is used yet. They are marked to run at boot only (`w!`), so that a run of
//! systemd-tmpfiles at another time, as by package scripts, does not reset later reservations.
//! Kernel arguments act even earlier, but belong to the boot loader, which is not ours: their text
//! is printed.

use crate::apply::boot::{BootFile, lines, read_written, written};
use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::cpuset::NodeId;
use gpuvm_core::memsize::MemSize;
use std::collections::BTreeMap;

const FILE: &str = "etc/tmpfiles.d/gpuvm-pages.conf";
const HEAD: &str = "# Made by `gpuvm host pages --at-boot`, which takes a line back with --count \
                    0: huge pages of each node.\n";

/// Numbers of pages by node and size.
pub type Numbers = BTreeMap<(NodeId, MemSize), u64>;

/// The numbers that are reserved at boot.
pub fn numbers(root: &FsRoot) -> Result<Numbers, FsError> {
    Ok(lines(root, FILE, "a line for the pages of a node", entry)?.into_iter().collect())
}

fn entry(line: &str) -> Option<((NodeId, MemSize), u64)> {
    let (path, count) = read_written(line)?;
    let path = path.strip_prefix("/sys/devices/system/node/node")?;
    let (node, path) = path.split_once("/hugepages/hugepages-")?;
    let kib = path.strip_suffix("kB/nr_hugepages")?.parse().ok().filter(|kib| *kib > 0)?;
    Some(((NodeId(node.parse().ok()?), MemSize::from_kib(kib)), count.parse().ok()?))
}

/// The file that reserves these.
pub fn file(numbers: &Numbers) -> BootFile {
    let line = |((node, page), count): (&(NodeId, MemSize), &u64)| {
        let kib = page.kib();
        let pool = format!("/sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB");
        written(&format!("{pool}/nr_hugepages"), &count.to_string())
    };
    let lines: String = numbers.iter().map(line).collect();
    (FILE, (!lines.is_empty()).then(|| format!("{HEAD}{lines}")))
}

/// The kernel's arguments that reserve the same pages of a size; nodes are known to Linux 5.16 and
/// later.
pub fn arguments(numbers: &Numbers, page: MemSize) -> String {
    let of_size = numbers.iter().filter(|((_, size), _)| *size == page);
    let nodes: Vec<String> = of_size.map(|((node, _), count)| format!("{node}:{count}")).collect();
    format!("hugepagesz={} hugepages={}", page.typed(), nodes.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::skip;

    /// Two nodes with pages of 1 GiB, one of them with smaller ones, too.
    fn some() -> Numbers {
        let (small, large) = (MemSize::from_kib(2048), MemSize::from_gib(1));
        let all = [((0, small), 512), ((0, large), 4), ((1, large), 6)];
        all.into_iter().map(|((node, page), count)| ((NodeId(node), page), count)).collect()
    }

    #[test]
    fn written_values_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        assert_eq!((numbers(&root).unwrap(), file(&Numbers::new()).1), (Numbers::new(), None));
        let path = dir.path().join(FILE);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, file(&some()).1.unwrap()).unwrap();
        assert_eq!(numbers(&root).unwrap(), some());
        assert_eq!(arguments(&some(), MemSize::from_gib(1)), "hugepagesz=1G hugepages=0:4,1:6");
        for line in
            ["w /a - - - - 1", "nonsense", "w! /sys/devices/system/node/node0/hugepages/x 3"]
        {
            std::fs::write(&path, format!("# a\n\n{line}\n")).unwrap();
            let error = numbers(&root).unwrap_err().to_string();
            assert!(error.contains("gpuvm-pages.conf line 3: `"), "{error}");
        }
    }

    #[test]
    fn systemd_does_what_the_lines_say_at_boot_only() {
        let dir = tempfile::tempdir().unwrap();
        let pool = "sys/devices/system/node/node1/hugepages/hugepages-1048576kB";
        let number = dir.path().join(pool).join("nr_hugepages");
        std::fs::create_dir_all(number.parent().unwrap()).unwrap();
        std::fs::write(&number, "0\n").unwrap();
        let conf = dir.path().join("pages.conf");
        std::fs::write(&conf, file(&some()).1.unwrap()).unwrap();
        let run = |at_boot: &[&str]| {
            let mut command = crate::program::command("systemd-tmpfiles");
            command.arg(format!("--root={}", dir.path().display())).arg("--create");
            command.args(at_boot).arg(&conf).output()
        };
        let Ok(done) = run(&[]) else { return skip("systemd-tmpfiles is not installed") };
        assert!(done.status.success(), "{done:?}");
        assert_eq!(std::fs::read_to_string(&number).unwrap().trim(), "0", "not at boot");
        let done = run(&["--boot"]).unwrap();
        assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
        assert!(std::fs::read_to_string(&number).unwrap().starts_with('6'));
    }
}
