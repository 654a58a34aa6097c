//! Guests on QEMU's emulator whose kernel shows what generic initiators, expander buses and SMMUv3s
//! are to it. Functions of QEMU's tests are in the place of GPUs.
//!
//! Without KVM QEMU has no nested SMMUv3 ("accel=on requires KVM with kernel-irqchip=on support"),
//! none of its settings, and without /dev/iommu no iommufd: these are left out.

use super::libvirt::{emulated, place, rendered};
use super::srat::{Functions, judged};
use crate::support::tree::scratch;
use crate::support::{lawful, project, run, skip};
use gpuvm::bdf::Bdf;
use gpuvm::discover::source::load;
use gpuvm::topology::{NumaNode, Topology};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Settings that QEMU refuses of an SMMUv3 that is not nested.
const NESTED: [&str; 5] = ["accel", "ats", "ril", "ssidsize", "oas"];

/// Makes the Linux of an architecture; none: not in this run.
fn linux(architecture: &str) -> Option<PathBuf> {
    if std::env::var_os("GPUVM_TRIXIE_RUN").is_none() {
        return skip(lawful::NOT_DEBIAN_13);
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("linux-{architecture}"));
    let script = project().join("tests/trixie/linux");
    let (code, out, err) = run(Command::new(script).arg(architecture).arg(&dir));
    assert_eq!(code, 0, "{out}{err}");
    Some(dir)
}

/// The output of a guest.
struct Printed(Vec<String>);

impl Printed {
    /// Boots a guest of these arguments.
    fn of(emulator: &str, linux: &Path, console: &str, arguments: &[String]) -> Printed {
        let mut qemu = Command::new("timeout");
        qemu.args(["400", emulator, "-nodefaults", "-no-user-config", "-no-reboot"]);
        qemu.args(["-display", "none", "-monitor", "none", "-serial", "stdio", "-accel", "tcg"]);
        qemu.arg("-kernel").arg(linux.join("vmlinuz")).arg("-initrd").arg(linux.join("initrd"));
        qemu.args(["-append", &format!("console={console} loglevel=4 panic=-1")]).args(arguments);
        let (code, out, err) = run(&mut qemu);
        assert_eq!(code, 0, "{out}{err}{qemu:?}");
        let lines: Vec<String> = out.lines().map(|line| line.trim_end().to_owned()).collect();
        let at = |mark: &str| lines.iter().position(|line| line == mark).expect(&out);
        Printed(lines[at("[begin]") + 1..at("[end]")].to_vec())
    }

    /// The kind, the path and the text of each line.
    fn lines(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.0.iter().filter_map(|line| {
            let (head, text) = line.strip_prefix('[')?.split_once(']')?;
            let (kind, path) = head.split_once(' ').unwrap_or((head, ""));
            Some((kind, path, text.trim()))
        })
    }

    /// The content of a file, or the name that a link leads to.
    fn value(&self, path: &str) -> &str {
        let (_, _, text) = self.lines().find(|(_, of, _)| *of == path).expect(path);
        text.rsplit('/').next().unwrap()
    }

    fn node(&self, path: &str) -> &str {
        self.value(&format!("sys/devices/system/node/{path}"))
    }

    /// Directories of the functions that are in the place of GPUs, by address.
    fn functions(&self) -> Vec<String> {
        let of = |(_, path, text): (&str, &str, &str)| {
            let dir = path.strip_suffix("/device").filter(|_| text == "0x0005")?;
            Some(dir.to_owned())
        };
        self.lines().filter_map(of).collect()
    }

    /// The host that it would be if its functions were GPUs with coherent memory.
    fn host(&self) -> Topology {
        let dir = scratch();
        let put = |path: &str, bytes: &[u8]| {
            let file = dir.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, bytes).unwrap();
        };
        for (kind, path, text) in self.lines() {
            match kind {
                "file" => put(path, format!("{text}\n").as_bytes()),
                "hex" => put(path, &bytes(text)),
                "link" => {
                    let link = dir.path().join(path);
                    fs::create_dir_all(link.parent().unwrap()).unwrap();
                    symlink(text, link).unwrap();
                }
                _ => {}
            }
        }
        put("proc/sys/kernel/arch", b"aarch64\n");
        for function in self.functions() {
            for (name, text) in [("class", "0x030200"), ("vendor", "0x10de"), ("device", "0x2941")]
            {
                put(&format!("{function}/{name}"), format!("{text}\n").as_bytes());
            }
        }
        load(dir.path()).unwrap()
    }
}

/// The bytes of hexadecimal digits.
fn bytes(digits: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// Has iasl compare the table of a guest's firmware with what gpuvm reads of it.
fn agrees_with_iasl(guest: &Printed, host: &Topology) {
    let Some(found) = judged(&bytes(guest.value("sys/firmware/acpi/tables/SRAT"))) else { return };
    let of = |node: &NumaNode| Some((u64::from(node.os_index.0), node.gpu?.to_string()));
    let read: Functions = host.nodes().iter().filter_map(of).collect();
    assert_eq!(read, found);
}

/// The arguments for QEMU's emulator of those that libvirt renders: the machine, its nodes, and
/// devices of GPUs.
fn arguments(rendered: &str) -> Vec<String> {
    let words: Vec<&str> = rendered.split_whitespace().collect();
    let mut kept = Vec::new();
    for pair in words.windows(2) {
        let [option, value] = pair else { unreachable!("windows of two") };
        let object = || serde_json::from_str::<Value>(value).unwrap_or_default();
        let value = match *option {
            "-numa" | "-smp" | "-m" => Some((*value).to_owned()),
            "-machine" => Some(without_firmware(value)),
            "-object" => of_nodes(object()).map(|object| object.to_string()),
            "-device" => device(object()).map(|device| device.to_string()),
            _ => None,
        };
        kept.extend(value.into_iter().flat_map(|value| [(*option).to_owned(), value]));
    }
    kept
}

/// Memory, wherever this machine has it, and generic initiators; none: another object.
fn of_nodes(mut object: Value) -> Option<Value> {
    let fields = object.as_object_mut()?;
    let kind = fields["qom-type"].as_str()?;
    if kind == "memory-backend-ram" {
        fields.retain(|name, _| ["qom-type", "id", "size"].contains(&name.as_str()));
        return Some(object);
    }
    (kind == "acpi-generic-initiator").then_some(object)
}

/// The machine without libvirt's firmware.
fn without_firmware(machine: &str) -> String {
    let is_kept = |part: &&str| !part.starts_with("pflash");
    machine.split(',').filter(is_kept).collect::<Vec<_>>().join(",")
}

/// A device of GPUs as the emulator can have it; none: another one.
fn device(mut device: Value) -> Option<Value> {
    let fields = device.as_object_mut()?;
    match fields["driver"].as_str()? {
        "pxb-pcie" => {}
        "pcie-root-port" if fields["bus"] != "pcie.0" => {}
        "arm-smmuv3" => fields.retain(|name, _| !NESTED.contains(&name.as_str())),
        "vfio-pci" => {
            fields.retain(|name, _| ["id", "bus", "addr"].contains(&name.as_str()));
            fields.insert("driver".into(), "pci-testdev".into());
            fields.insert("membar".into(), (64 << 20).into());
        }
        _ => return None,
    }
    Some(device)
}

/// A guest with these GPUs of a tray, as libvirt would run it; none: not here.
fn guest_of_tray(gpus: usize) -> Option<Printed> {
    let linux = linux("arm64")?;
    let (host, dir) = place()?;
    let vcpus = (2 * gpus).to_string();
    let options = ["--gpus", &gpus.to_string(), "--vcpus", &vcpus, "--memory", "2G"];
    fs::write(dir.path().join("a.xml"), emulated(host.path(), "a", &options)).unwrap();
    let said = rendered(host.path(), dir.path(), &["a".to_owned()]);
    let variables = dir.path().join("variables.fd");
    fs::copy("/usr/share/AAVMF/AAVMF_VARS.fd", &variables).unwrap();
    let code = "if=pflash,format=raw,readonly=on,file=/usr/share/AAVMF/AAVMF_CODE.no-secboot.fd";
    let variables = format!("if=pflash,format=raw,file={}", variables.display());
    let firmware = ["-cpu", "neoverse-n1", "-drive", code, "-drive", &variables];
    let all = [firmware.map(str::to_owned).to_vec(), arguments(&said[0])].concat();
    Some(Printed::of("qemu-system-aarch64", &linux, "ttyAMA0", &all))
}

#[test]
fn a_guest_with_one_gpu_shows_its_eight_nodes_and_its_smmu() {
    let Some(guest) = guest_of_tray(1) else { return };
    for (path, wanted) in [
        ("online", "0-8"),
        ("has_cpu", "0"),
        ("has_memory", "0"),
        ("has_generic_initiator", "1-8"),
        ("node0/distance", "10 80 80 80 80 80 80 80 80"),
        ("node1/distance", "80 10 11 11 11 11 11 11 11"),
        ("node8/distance", "80 11 11 11 11 11 11 11 10"),
    ] {
        assert_eq!(guest.node(path), wanted, "{path}");
    }
    let [gpu] = &guest.functions()[..] else { panic!("{:#?}", guest.0) };
    assert_eq!(guest.value(&format!("{gpu}/numa_node")), "0");
    let smmu = guest.value(&format!("{gpu}/iommu"));
    assert!(smmu.starts_with("smmu3.0x"), "{smmu}");
    // The firmware's table of this guest names the function.
    let host = guest.host();
    let gpu = host.gpus().next().unwrap().bdf;
    assert_eq!(host.nodes_of_gpu(gpu).count(), 8);
    agrees_with_iasl(&guest, &host);
}

/// The kernel of Debian has 16 nodes at most: gpuvm-hardware(7), GRACE.
#[test]
fn a_guest_with_a_tray_shows_an_smmu_for_each_gpu_and_the_nodes_that_debian_has_room_for() {
    let Some(guest) = guest_of_tray(4) else { return };
    let functions = guest.functions();
    let all = |name: &str| {
        functions.iter().map(|dir| guest.value(&format!("{dir}/{name}"))).collect::<Vec<_>>()
    };
    assert_eq!(all("numa_node"), ["0", "0", "1", "1"]);
    for name in ["iommu", "iommu_group"] {
        let names = all(name);
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 4, "{names:?}");
    }
    assert_eq!(guest.node("has_memory"), "0-1");
    assert_eq!(guest.node("has_generic_initiator"), "2-15");
    assert!(guest.0.iter().any(|line| line.contains("Too many proximity domains")));
}

/// GPUs of the x86 guest, and the nodes of each.
const GPUS: usize = 4;
/// Two nodes with CPUs and memory, then those of the GPUs.
const FIRST: usize = 2;

/// The GPU of a proximity domain.
fn owner(domain: usize) -> Option<usize> {
    let at = domain.checked_sub(FIRST)? / 8;
    Some(at).filter(|at| *at < GPUS)
}

/// Distances that say which GPU a node is of, by that to the first node.
fn distance(from: usize, to: usize) -> usize {
    match (owner(from), owner(to)) {
        _ if from == to => 10,
        (Some(a), Some(b)) if a == b => 11,
        (Some(gpu), None) if to == 0 => 60 + 10 * gpu,
        (None, Some(gpu)) if from == 0 => 60 + 10 * gpu,
        (None, None) => 21,
        _ => 120,
    }
}

/// The arguments of an x86 guest with two nodes, empty ones of four functions, and one with memory
/// alone, as behind CXL.
fn with_empty_nodes() -> Vec<String> {
    let last = FIRST + 8 * GPUS;
    let mut all: Vec<String> = ["-machine q35", "-cpu max", "-smp 2,sockets=2", "-m 1280M"]
        .map(|words| words.split(' ').map(str::to_owned).collect::<Vec<_>>())
        .concat();
    let mut add = |option: &str, value: String| all.extend([option.to_owned(), value]);
    for (node, size) in [(0, "512M"), (1, "512M"), (last, "256M")] {
        add("-object", format!("memory-backend-ram,id=ram{node},size={size}"));
    }
    for node in 0..=last {
        let parts = match node {
            _ if node == last => format!(",memdev=ram{node}"),
            0 | 1 => format!(",cpus={node},memdev=ram{node}"),
            _ => String::new(),
        };
        add("-numa", format!("node,nodeid={node}{parts}"));
    }
    for (from, to) in (0..=last).flat_map(|from| (0..=last).map(move |to| (from, to))) {
        add("-numa", format!("dist,src={from},dst={to},val={}", distance(from, to)));
    }
    for gpu in 0..GPUS {
        let (bus, node, slot) = (32 + 16 * gpu, 2 * gpu / GPUS, gpu + 1);
        let place = format!("bus=pcie.0,addr={slot}");
        add("-device", format!("pxb-pcie,bus_nr={bus},id=bus{gpu},numa_node={node},{place}"));
        add("-device", format!("pcie-root-port,chassis={gpu},id=port{gpu},bus=bus{gpu},addr=0"));
        add("-device", format!("pci-testdev,id=gpu{gpu},bus=port{gpu},addr=0"));
        for node in (0..8).map(|at| FIRST + 8 * gpu + at) {
            let object = format!("acpi-generic-initiator,id=gi{node},pci-dev=gpu{gpu}");
            add("-object", format!("{object},node={node}"));
        }
    }
    all
}

/// QEMU writes entries in the order of its hashes, and Linux numbers nodes as it meets them: only
/// the table says which GPU each of them is of.
#[test]
fn nodes_without_cpus_or_memory_are_read_as_a_kernel_numbers_them() {
    let Some(linux) = linux("amd64") else { return };
    let guest = Printed::of("qemu-system-x86_64", &linux, "ttyS0", &with_empty_nodes());
    for (path, wanted) in [
        ("online", "0-34"),
        ("has_cpu", "0-1"),
        ("has_memory", "0-1,34"),
        ("has_generic_initiator", "2-33"),
        ("node34/cpulist", ""),
    ] {
        assert_eq!(guest.node(path), wanted, "{path}");
    }
    let host = guest.host();
    let gpus: Vec<Bdf> = host.gpus().map(|gpu| gpu.bdf).collect();
    assert_eq!(gpus.len(), GPUS);
    let order: Vec<u32> = host.nodes()[0].distances[FIRST..FIRST + 8 * GPUS].to_vec();
    assert!(!order.is_sorted(), "the nodes are in order, which proves nothing: {order:?}");
    for node in host.nodes() {
        let far = host.nodes()[0].distances[node.os_index.0 as usize] as usize;
        let wanted = far.checked_sub(60).map(|far| gpus[far / 10]);
        assert_eq!(node.gpu, wanted, "node {}", node.os_index);
        let has_memory = matches!(node.os_index.0, 0 | 1 | 34);
        assert_eq!(!node.memory_kib.is_zero(), has_memory, "node {}", node.os_index);
    }
    agrees_with_iasl(&guest, &host);
    // Memory behind CXL is a guest's, and a GPU's is not.
    let last = host.nodes().last().unwrap();
    assert!(!host.is_gpu_memory(last) && !host.usable(last).memory_kib.is_zero());
}
