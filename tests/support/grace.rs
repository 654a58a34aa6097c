//! Hosts with Grace, made by rule from public facts (gpuvm-hardware(7), GRACE): two sockets of 72
//! cores, two GPUs each with eight nodes without CPUs, an IOMMU group and a PCI domain of its own.

use std::fmt::Display;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Cores of a socket.
const CORES: usize = 72;
/// Memory of a socket in KiB.
const SOCKET_KIB: u64 = 480 << 20;
/// GPUs of a tray with the ids of their board.
pub const TRAY: [&str; 4] = ["0008:01:00.0", "0009:01:00.0", "0018:01:00.0", "0019:01:00.0"];

/// A host.
#[derive(Clone, Copy)]
pub struct Grace<'a> {
    /// Its GPUs, by socket.
    pub gpus: &'a [&'a [&'a str]],
    /// PCI device id of the GPUs.
    pub id: &'a str,
    /// The driver that has them.
    pub driver: &'a str,
    /// Product name of the machine.
    pub product: &'a str,
    /// Memory of a GPU in KiB that is on its first node; 0: the host's driver does not have it.
    pub gpu_kib: u64,
}

impl Grace<'_> {
    /// A GB200 tray whose GPUs are ready for guests.
    pub fn tray() -> Grace<'static> {
        const SOCKETS: [&[&str]; 2] = [&[TRAY[0], TRAY[1]], &[TRAY[2], TRAY[3]]];
        Grace {
            gpus: &SOCKETS,
            id: "0x2941",
            driver: "nvgrace-gpu-vfio-pci",
            product: "GB200 NVL",
            gpu_kib: 0,
        }
    }

    /// A GH200 whose GPU the host's driver has.
    pub fn gh200() -> Grace<'static> {
        Grace {
            gpus: &[&["0009:01:00.0"]],
            id: "0x2342",
            driver: "nvidia",
            product: "GH200",
            gpu_kib: 96 << 20,
        }
    }

    /// Makes the tree.
    pub fn make(&self, root: &Path) {
        self.make_machine(root);
        self.make_cpus(root);
        self.make_nodes(root);
        let gpus = self.gpus.iter().enumerate();
        let gpus = gpus.flat_map(|(socket, gpus)| gpus.iter().map(move |gpu| (socket, *gpu)));
        for (at, (socket, gpu)) in gpus.enumerate() {
            self.make_gpu(root, at, socket, gpu);
        }
    }

    fn make_machine(&self, root: &Path) {
        put(root, "proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f");
        put(root, "proc/sys/kernel/arch", "aarch64");
        put(root, "proc/sys/kernel/osrelease", "6.17.0-1010-nvidia-64k");
        put(root, "proc/cmdline", "BOOT_IMAGE=/vmlinuz ro iommu.passthrough=0");
        put(root, "sys/class/dmi/id/sys_vendor", "NVIDIA");
        put(root, "sys/class/dmi/id/product_name", self.product);
        put(root, "dev/iommu", "");
        put(root, "sys/module/iommufd/refcnt", "1");
        put(root, "sys/module/vfio/refcnt", "1");
        let modules =
            "kernel/drivers/vfio/pci/nvgrace-gpu/nvgrace-gpu-vfio-pci.ko.zst: vfio.ko.zst";
        put(root, "lib/modules/6.17.0-1010-nvidia-64k/modules.dep", modules);
        for unit in 0..4 {
            let dir = root.join(format!("sys/class/iommu/smmu3.0x000000001{unit}000000"));
            fs::create_dir_all(dir).unwrap();
        }
        for size in ["2048", "524288"] {
            pool(root, "sys/kernel/mm/hugepages", size);
        }
    }

    fn make_cpus(&self, root: &Path) {
        let all = CORES * self.gpus.len();
        for name in ["online", "present"] {
            put(root, &format!("sys/devices/system/cpu/{name}"), format!("0-{}", all - 1));
        }
        for cpu in 0..all {
            let dir = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            put(root, &format!("{dir}/physical_package_id"), cpu / CORES);
            put(root, &format!("{dir}/core_id"), cpu % CORES);
            put(root, &format!("{dir}/thread_siblings_list"), cpu);
        }
    }

    /// The GPU and the socket of a node.
    fn owner(&self, node: usize) -> (Option<usize>, usize) {
        let sockets = self.gpus.len();
        if node < sockets {
            return (None, node);
        }
        let gpu = (node - sockets) / 8;
        let mut before = 0;
        for (socket, gpus) in self.gpus.iter().enumerate() {
            before += gpus.len();
            if gpu < before {
                return (Some(gpu), socket);
            }
        }
        unreachable!("each node has an owner")
    }

    /// As on a GB200: 10 from itself, 11 within a GPU, 40 between sockets, 80 to the own socket's
    /// CPUs, 120 elsewhere.
    fn distance(&self, from: usize, to: usize) -> u32 {
        let ((gpu, socket), (other_gpu, other)) = (self.owner(from), self.owner(to));
        match (gpu, other_gpu) {
            _ if from == to => 10,
            (None, None) => 40,
            (Some(gpu), Some(other)) if gpu == other => 11,
            (None, Some(_)) | (Some(_), None) if socket == other => 80,
            _ => 120,
        }
    }

    fn make_nodes(&self, root: &Path) {
        let sockets = self.gpus.len();
        let gpus: usize = self.gpus.iter().map(|gpus| gpus.len()).sum();
        let nodes = sockets + 8 * gpus;
        let dir = "sys/devices/system/node";
        put(root, &format!("{dir}/has_generic_initiator"), format!("{sockets}-{}", nodes - 1));
        for node in 0..nodes {
            let dir = format!("{dir}/node{node}");
            let first = node * CORES;
            let (cpus, kib) = match self.owner(node) {
                (None, _) => (format!("{first}-{}", first + CORES - 1), SOCKET_KIB),
                (Some(_), _) if (node - sockets).is_multiple_of(8) => (String::new(), self.gpu_kib),
                _ => (String::new(), 0),
            };
            put(root, &format!("{dir}/cpulist"), cpus);
            put(root, &format!("{dir}/meminfo"), format!("Node {node} MemTotal: {kib} kB"));
            let row: Vec<String> =
                (0..nodes).map(|to| self.distance(node, to).to_string()).collect();
            put(root, &format!("{dir}/distance"), row.join(" "));
            for size in ["2048", "524288"].iter().filter(|_| node < sockets) {
                pool(root, &format!("{dir}/hugepages"), size);
            }
        }
    }

    /// A GPU below a root port, both in a PCI domain of their own.
    fn make_gpu(&self, root: &Path, at: usize, socket: usize, gpu: &str) {
        let domain = &gpu[..4];
        let port = format!("{domain}:00:00.0");
        let above = format!("sys/devices/pci{domain}:00/{port}");
        let dir = format!("{above}/{gpu}");
        let no_bar = "0x0000000000000000 0x0000000000000000 0x0000000000000000";
        let bars = [
            "0x0000660000000000 0x0000660000ffffff 0x0000000000040200",
            no_bar,
            "0x0000660400000000 0x0000660407ffffff 0x000000000014220c",
        ];
        let bars: Vec<&str> = bars.into_iter().chain([no_bar; 10]).collect();
        for (dir, class, device, bars) in
            [(&above, "0x060400", "0x22b1", None), (&dir, "0x030200", self.id, Some(bars))]
        {
            put(root, &format!("{dir}/class"), class);
            put(root, &format!("{dir}/vendor"), "0x10de");
            put(root, &format!("{dir}/device"), device);
            put(root, &format!("{dir}/numa_node"), socket);
            if let Some(bars) = bars {
                put(root, &format!("{dir}/resource"), bars.join("\n"));
            }
            let name = dir.rsplit('/').next().unwrap();
            let below = dir.strip_prefix("sys/").unwrap();
            link(root, &format!("../../../{below}"), &format!("sys/bus/pci/devices/{name}"));
        }
        put(root, &format!("{dir}/reset_method"), "flr bus");
        link(
            root,
            &format!("../../../../bus/pci/drivers/{}", self.driver),
            &format!("{dir}/driver"),
        );
        fs::create_dir_all(root.join("sys/bus/pci/drivers").join(self.driver)).unwrap();
        let group = format!("sys/kernel/iommu_groups/{}", 10 + at);
        let below = dir.strip_prefix("sys/").unwrap();
        link(root, &format!("../../../../{below}"), &format!("{group}/devices/{gpu}"));
        link(
            root,
            &format!("../../../../kernel/iommu_groups/{}", 10 + at),
            &format!("{dir}/iommu_group"),
        );
    }
}

/// Adds files of a tray that libvirt reads before it passes GPUs through: their configuration, which
/// shows a function level reset, their devices of VFIO, and the CPUs of nodes as libnuma reads them.
pub fn complete_for_libvirt(root: &Path) {
    for (at, gpu) in TRAY.iter().enumerate() {
        let dir = root.join(format!("sys/bus/pci/devices/{gpu}"));
        let mut config = vec![0_u8; 4096];
        config[..4].copy_from_slice(&[0xde, 0x10, 0x41, 0x29]);
        // The list of capabilities starts at 0x34; PCI Express, version 2, with that reset.
        (config[0x06], config[0x34], config[0x40]) = (0x10, 0x40, 0x10);
        (config[0x42], config[0x47]) = (0x02, 0x10);
        fs::write(dir.join("config"), config).unwrap();
        put(&dir, &format!("vfio-dev/vfio{at}/dev"), format!("511:{at}"));
    }
    for node in 0..2 + 8 * TRAY.len() {
        let masks = (0..2 * CORES).rev().step_by(32).map(|last| {
            let cpus = last / 32 * 32..(last / 32 + 1) * 32;
            let own = cpus.enumerate().filter(|(_, cpu)| cpu / CORES == node && *cpu < 2 * CORES);
            format!("{:08x}", own.fold(0_u32, |mask, (bit, _)| mask | 1 << bit))
        });
        let mask = masks.collect::<Vec<_>>().join(",");
        put(root, &format!("sys/devices/system/node/node{node}/cpumap"), mask);
    }
}

/// Writes a file, with the directories above it.
fn put(root: &Path, path: &str, text: impl Display) {
    let file = root.join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, format!("{text}\n")).unwrap();
}

/// Makes a symbolic link, with the directories above it.
fn link(root: &Path, target: &str, path: &str) {
    let file = root.join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    symlink(target, file).unwrap();
}

/// An empty pool of huge pages.
fn pool(root: &Path, dir: &str, size: &str) {
    for name in ["nr_hugepages", "free_hugepages", "surplus_hugepages"] {
        put(root, &format!("{dir}/hugepages-{size}kB/{name}"), 0);
    }
}
