//! The host: pressure, free huge pages, governor.

use crate::discover::hugetlb::of_node;
use crate::fsroot::FsRoot;
use gpuvm_core::cpuset::{CpuSet, NodeId};
use gpuvm_core::load::{FreePages, HostLoad, Pressure};
use std::collections::BTreeMap;

/// Reads the host. Unreadable values are omitted.
pub fn host(root: &FsRoot) -> HostLoad {
    let online = root.read("sys/devices/system/cpu/online").ok().flatten();
    let online: Option<CpuSet> = online.and_then(|text| text.parse().ok());
    let governor = root.read("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    HostLoad {
        pcpus: online.map_or(0, |online| online.len()),
        guest_pcpus: 0,
        pressure: pressure(root),
        free_pages: free_pages(root),
        governor: governor.ok().flatten(),
        findings: Vec::new(),
    }
}

fn pressure(root: &FsRoot) -> BTreeMap<String, Pressure> {
    let each = ["cpu", "memory", "io"].into_iter().filter_map(|resource| {
        let text = root.read(&format!("proc/pressure/{resource}")).ok()??;
        let average = |line: &str| -> Option<f64> {
            let rest = text.lines().find_map(|found| found.strip_prefix(line))?;
            rest.split_ascii_whitespace().find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
        };
        let some = average("some ")?;
        Some((resource.to_owned(), Pressure { some, full: average("full ").unwrap_or(0.0) }))
    });
    each.collect()
}

fn free_pages(root: &FsRoot) -> Vec<FreePages> {
    let names = root.names("sys/devices/system/node").unwrap_or_default();
    let nodes = names.iter().filter_map(|name| name.strip_prefix("node")?.parse().ok());
    let mut nodes: Vec<u32> = nodes.collect();
    nodes.sort_unstable();
    let each = nodes.into_iter().map(NodeId).flat_map(|node| {
        let pools = of_node(root, node).ok().flatten().unwrap_or_default();
        pools.into_iter().filter(|pool| pool.total > 0).map(move |pool| FreePages {
            node,
            page_kib: pool.page_kib.kib(),
            free: pool.free,
        })
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        assert_eq!(host(&root), HostLoad::default());
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let some = "some avg10=1.50 avg60=0.00 avg300=0.00 total=9\n";
        write("proc/pressure/cpu", some);
        write("proc/pressure/memory", &format!("{some}full avg10=0.25 avg60=0 avg300=0 total=1\n"));
        write("sys/devices/system/cpu/online", "0-3\n");
        write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
        let pool = "sys/devices/system/node/node0/hugepages/hugepages-2048kB";
        for (name, number) in [("nr", "9\n"), ("free", "4\n"), ("surplus", "0\n")] {
            write(&format!("{pool}/{name}_hugepages"), number);
        }
        let found = host(&root);
        assert_eq!((found.pcpus, found.governor.as_deref()), (4, Some("performance")));
        assert_eq!(found.pressure["cpu"], Pressure { some: 1.5, full: 0.0 });
        assert_eq!(found.pressure["memory"], Pressure { some: 1.5, full: 0.25 });
        let free = FreePages { node: NodeId(0), page_kib: 2048, free: 4 };
        assert_eq!(found.free_pages, [free]);
    }
}
