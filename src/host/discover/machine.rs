//! The machine itself: vendor, processor model, kernel. Knows nothing of its devices.

use super::hugetlb;
use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::topology::Machine;
use procfs::{FromRead, KernelCmdline};

/// Kernel arguments relevant to VMs: exact names, or prefixes with `*`.
const ARGUMENTS: &[&str] = &[
    "iommu*",
    "intel_iommu*",
    "amd_iommu*",
    "intremap",
    "nointremap",
    "vfio*",
    "pci",
    "pcie_*",
    "kvm*",
    "hugepages*",
    "default_hugepagesz",
    "hugetlb_*",
    "transparent_hugepage",
    "isolcpus",
    "nohz_full",
    "rcu_nocbs",
    "irqaffinity",
    "nosmt",
    "maxcpus",
    "nr_cpus",
    "numa*",
    "mem",
    "memmap",
    "mem_encrypt",
    "mitigations",
    "module_blacklist",
    "modprobe.blacklist",
    "rd.driver.blacklist",
    "rd.driver.pre",
    "nouveau.*",
    "video",
];

/// Reads the machine; `identify`: with its host name. Facts that the kernel reports of itself are
/// left unknown with a note where they cannot be read: a host can be used without them.
pub fn machine(root: &FsRoot, identify: bool, notes: &mut Vec<String>) -> Result<Machine, FsError> {
    let mut machine = Machine::default();
    if let Some(dmi) = root.dir("sys/class/dmi/id")? {
        machine.vendor = filled(dmi.read("sys_vendor")?);
        machine.product = filled(dmi.read("product_name")?);
    }
    cpuinfo(&root.read_head("proc/cpuinfo")?.unwrap_or_default(), &mut machine);
    machine.iommu_address_bits = iommu_bits(root)?;
    let mut of_kernel = |name: &str| {
        let read = root.read(&format!("proc/sys/kernel/{name}"));
        filled(read.unwrap_or_else(|error| unknown(error, notes)))
    };
    if let Some(architecture) = of_kernel("arch") {
        machine.architecture = Some(architecture);
    }
    machine.kernel_release = of_kernel("osrelease");
    machine.numa_balancing = of_kernel("numa_balancing").map(|text| text != "0");
    machine.kernel_arguments = kernel_arguments(root).unwrap_or_else(|error| unknown(error, notes));
    machine.hugetlbfs = hugetlb::mounts(root)?;
    if identify {
        machine.host_name = if root.is_live() {
            sysinfo::System::host_name().ok()
        } else {
            filled(root.read("proc/sys/kernel/hostname")?)
        };
    }
    Ok(machine)
}

/// Reads the address bits of the narrowest IOMMU. Of Intel bits 21 to 16 of the capabilities are
/// one less (VT-d specification, Capability Register, MGAW). Of AMD bits 11 and 10 of the extended
/// features count the levels of its page tables beyond four, of 9 bits each (I/O Virtualization
/// Technology Specification, MMIO offset 30h, HATS).
fn iommu_bits(root: &FsRoot) -> Result<Option<u8>, FsError> {
    let Some(all) = root.dir("sys/class/iommu")? else { return Ok(None) };
    let mut least = None;
    for name in all.names()? {
        let of = |file: &str| root.dir(&format!("sys/class/iommu/{name}/{file}"));
        let bits = if let Some(dir) = of("intel-iommu")? {
            dir.parse("cap", of_intel, "a hexadecimal number")?
        } else if let Some(dir) = of("amd-iommu")? {
            dir.parse("features", of_amd, "hexadecimal numbers")?.flatten()
        } else {
            None
        };
        least = match (least, bits) {
            (Some(one), Some(other)) => Some(u8::min(one, other)),
            (one, other) => one.or(other),
        };
    }
    Ok(least)
}

/// The address bits of an IOMMU of Intel with these capabilities.
fn of_intel(cap: &str) -> Option<u8> {
    Some((u64::from_str_radix(cap, 16).ok()? >> 16 & 0x3f) as u8 + 1)
}

/// The address bits of an IOMMU of AMD with these features, `EFR` or `EFR:EFR2`; `None` if it does
/// not report them.
fn of_amd(features: &str) -> Option<Option<u8>> {
    let efr = u64::from_str_radix(features.split(':').next()?, 16).ok()?;
    Some(match efr >> 10 & 3 {
        _ if efr == 0 => None,
        0 => Some(48),
        1 => Some(57),
        2 => Some(64),
        _ => None,
    })
}

/// Notes that a value cannot be read, and leaves it empty.
fn unknown<T: Default>(error: FsError, notes: &mut Vec<String>) -> T {
    notes.push(error.to_string());
    T::default()
}

/// Converts an empty text to none.
fn filled(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

/// Reads the first processor of a cpuinfo. Keys differ by architecture; missing ones stay empty.
fn cpuinfo(text: &str, machine: &mut Machine) {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    for (key, value) in pairs.map(|(key, value)| (key.trim(), value.trim())) {
        let architecture = match key {
            "vendor_id" if value.starts_with("IBM/S390") => "s390x",
            "vendor_id" if value == "ARM" => "aarch64",
            "vendor_id" => "x86_64",
            "CPU implementer" => "aarch64",
            "cpu" if value.starts_with("POWER") => "ppc64le",
            _ => "",
        };
        let value = || Some(value.to_owned()).filter(|value| !value.is_empty());
        if machine.architecture.is_none() && !architecture.is_empty() {
            machine.architecture = Some(architecture.to_owned());
        }
        match key {
            "vendor_id" if machine.cpu_vendor.is_none() => machine.cpu_vendor = value(),
            "model name" | "cpu" if machine.cpu_model.is_none() => machine.cpu_model = value(),
            // `46 bits physical, 48 bits virtual`
            "address sizes" if machine.physical_address_bits.is_none() => {
                let bits = value().and_then(|v| v.split(' ').next().and_then(|n| n.parse().ok()));
                machine.physical_address_bits = bits.filter(|bits| (20..=64).contains(bits));
            }
            _ => {}
        }
    }
}

/// Reads the kernel arguments relevant to VMs; others may contain secrets.
fn kernel_arguments(root: &FsRoot) -> Result<Vec<String>, FsError> {
    let path = "proc/cmdline";
    let text = root.read(path)?.unwrap_or_default();
    let KernelCmdline(arguments) = KernelCmdline::from_read(text.as_bytes())
        .map_err(|error| root.malformed(path, 1, error))?;
    Ok(arguments.into_iter().filter(|argument| concerns_vms(argument)).collect())
}

/// Whether an argument of the kernel concerns VMs.
fn concerns_vms(argument: &str) -> bool {
    let name = argument.split('=').next().unwrap_or(argument);
    ARGUMENTS.iter().any(|known| match known.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == *known,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_only_arguments_that_concern_vms() {
        let text = "BOOT_IMAGE=/vmlinuz root=UUID=1-2 ro intel_iommu=on iommu=pt hugepagesz=1G \
                    hugepages=4 isolcpus=2-3 password=x vfio-pci.ids=10de:1db8 memtest=1";
        let kept: Vec<&str> = text.split(' ').filter(|a| concerns_vms(a)).collect();
        let wanted =
            "intel_iommu=on iommu=pt hugepagesz=1G hugepages=4 isolcpus=2-3 vfio-pci.ids=10de:1db8";
        assert_eq!(kept.join(" "), wanted);
    }

    #[test]
    fn the_narrowest_iommu_of_either_vendor_counts() {
        for (files, bits) in [
            (&[][..], None),
            (&[("dmar0/intel-iommu/cap", "d2008c40660462")], Some(39)),
            (
                &[
                    ("dmar0/intel-iommu/cap", "19ed008c40780c66"),
                    ("dmar1/intel-iommu/cap", "d2008c222f0686"),
                ],
                Some(48),
            ),
            (&[("ivhd0/amd-iommu/features", "246577efa2254afa:0")], Some(64)),
            (&[("ivhd0/amd-iommu/features", "25bf732fa2295afe:1d")], Some(64)),
            (&[("ivhd0/amd-iommu/features", "400")], Some(57)),
            (&[("ivhd0/amd-iommu/features", "f77ef22294ada:0")], Some(64)),
            (
                &[("ivhd0/amd-iommu/features", "1f3:0"), ("ivhd1/amd-iommu/features", "801:0")],
                Some(48),
            ),
            (&[("ivhd0/amd-iommu/features", "0:0")], None),
        ] {
            let dir = tempfile::tempdir().unwrap();
            for (file, text) in files {
                let path = dir.path().join("sys/class/iommu").join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, format!("{text}\n")).unwrap();
            }
            assert_eq!(iommu_bits(&FsRoot::at(dir.path()).unwrap()).unwrap(), bits, "{files:?}");
        }
    }

    #[test]
    fn reads_cpuinfo_of_every_kind() {
        for (text, architecture, model, bits) in [
            ("", None, None, None),
            (": :\n:::\nvendor_id\n", None, None, None),
            (
                "vendor_id\t: AuthenticAMD\nmodel name\t: EPYC\naddress sizes\t: 48 bits physical",
                Some("x86_64"),
                Some("EPYC"),
                Some(48),
            ),
            ("vendor_id: x\naddress sizes\t: 999 bits physical", Some("x86_64"), None, None),
            ("processor: 0\nCPU implementer\t: 0x41", Some("aarch64"), None, None),
            (
                "processor: 0\ncpu\t\t: POWER9, altivec supported",
                Some("ppc64le"),
                Some("POWER9, altivec supported"),
                None,
            ),
        ] {
            let mut machine = Machine::default();
            cpuinfo(text, &mut machine);
            assert_eq!(machine.architecture.as_deref(), architecture, "{text}");
            assert_eq!(machine.cpu_model.as_deref(), model, "{text}");
            assert_eq!(machine.physical_address_bits, bits, "{text}");
        }
    }
}
