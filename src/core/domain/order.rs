//! The order in which libvirt writes elements. Its schema accepts most of them in any order; new
//! elements are put where libvirt puts them, so that a domain reads the same before and after
//! define.

use crate::words;

/// Elements of `<domain>`.
const DOMAIN: &[&str] = &[
    "name",
    "uuid",
    "genid",
    "title",
    "description",
    "metadata",
    "maxMemory",
    "memory",
    "currentMemory",
    "blkiotune",
    "memtune",
    "memoryBacking",
    "vcpu",
    "vcpus",
    "iothreads",
    "iothreadids",
    "defaultiothread",
    "cputune",
    "numatune",
    "resource",
    "sysinfo",
    "bootloader",
    "os",
    "idmap",
    "iommufd",
    "features",
    "cpu",
    "clock",
    "on_poweroff",
    "on_reboot",
    "on_crash",
    "on_lockfailure",
    "pm",
    "perf",
    "devices",
    "seclabel",
    "keywrap",
    "launchSecurity",
];
/// Elements of `<devices>`.
const DEVICES: &[&str] = &[
    "emulator",
    "disk",
    "controller",
    "lease",
    "filesystem",
    "interface",
    "smartcard",
    "serial",
    "parallel",
    "console",
    "channel",
    "input",
    "tpm",
    "graphics",
    "sound",
    "audio",
    "video",
    "hostdev",
    "redirdev",
    "redirfilter",
    "hub",
    "watchdog",
    "memballoon",
    "rng",
    "nvram",
    "panic",
    "shmem",
    "memory",
    "iommu",
    "vsock",
    "crypto",
    "pstore",
];
/// Elements of `<memoryBacking>`.
const MEMORY_BACKING: &[&str] =
    &["hugepages", "nosharepages", "locked", "source", "access", "allocation", "discard"];
/// Elements of `<cputune>`.
const CPUTUNE: &[&str] = &[
    "shares",
    "global_period",
    "global_quota",
    "period",
    "quota",
    "emulator_period",
    "emulator_quota",
    "iothread_period",
    "iothread_quota",
    "vcpupin",
    "emulatorpin",
    "iothreadpin",
    "vcpusched",
    "emulatorsched",
    "iothreadsched",
    "cachetune",
    "memorytune",
];
/// Elements of `<cpu>`.
const CPU: &[&str] = &["model", "vendor", "topology", "cache", "maxphysaddr", "feature", "numa"];
/// Elements of `<features>`.
const FEATURES: &[&str] = &[
    "pae",
    "acpi",
    "apic",
    "viridian",
    "privnet",
    "hap",
    "hyperv",
    "kvm",
    "xen",
    "pvspinlock",
    "pmu",
    "capabilities",
    "gic",
    "vmport",
    "smm",
    "ioapic",
    "hpt",
    "vmcoreinfo",
    "htm",
    "nested-hv",
    "msrs",
    "ccf-assist",
    "cfpc",
    "sbbc",
    "ibs",
    "tcg",
    "async-teardown",
    "ras",
    "ps2",
    "aia",
];
/// The elements that have a known list of children, and that list.
const LISTS: [(&str, &[&str]); 6] = [
    ("domain", DOMAIN),
    ("devices", DEVICES),
    ("features", FEATURES),
    ("cpu", CPU),
    ("memoryBacking", MEMORY_BACKING),
    ("cputune", CPUTUNE),
];

/// Why libvirt drops an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dropped {
    /// It belongs into this one.
    Misplaced(&'static str),
    /// It is spelt like this one.
    Misspelt(&'static str),
}

/// Whether libvirt drops a child of an element, silently; `None` if it does not, or this is
/// unknown.
pub fn dropped(parent: &str, name: &str) -> Option<Dropped> {
    let own = LISTS.iter().find(|(of, _)| *of == parent)?.1;
    if own.contains(&name) {
        return None;
    }
    let other = LISTS.iter().find(|(_, list)| list.contains(&name));
    match other {
        Some((of, _)) => Some(Dropped::Misplaced(of)),
        None => words::similar(name, own.iter().copied()).map(Dropped::Misspelt),
    }
}

/// Elements of a device; every kind has some of them.
const DEVICE: &[&str] = &[
    "driver",
    "auth",
    "source",
    "backingStore",
    "backend",
    "target",
    "model",
    "protocol",
    "iotune",
    "readonly",
    "shareable",
    "transient",
    "serial",
    "boot",
    "stats",
    "rate",
    "alias",
    "rom",
    "acpi",
    "address",
];
/// Elements of `<interface>`.
const INTERFACE: &[&str] = &[
    "mac",
    "source",
    "virtualport",
    "bandwidth",
    "vlan",
    "ip",
    "route",
    "script",
    "target",
    "guest",
    "model",
    "driver",
    "backend",
    "filterref",
    "tune",
    "link",
    "mtu",
    "boot",
    "alias",
    "rom",
    "acpi",
    "address",
];

/// Returns the rank of an element among its siblings, in ascending order. Unknown elements come
/// last.
pub(super) fn rank(parent: &str, name: &str) -> usize {
    let order = match parent {
        "domain" => DOMAIN,
        "devices" => DEVICES,
        "memoryBacking" => MEMORY_BACKING,
        "cputune" => CPUTUNE,
        "cpu" => CPU,
        "interface" => INTERFACE,
        "disk" | "hostdev" | "controller" | "rng" | "memballoon" => DEVICE,
        // A container of one kind of elements, or a device without a listed order: its address
        // comes last.
        _ => &[],
    };
    order.iter().position(|known| *known == name).unwrap_or(order.len())
}

/// Returns the name of a device's element as a static string; none for a device unknown to libvirt.
pub(super) fn device_name(name: &str) -> Option<&'static str> {
    DEVICES.iter().copied().find(|known| *known == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_dropped_by_libvirt_are_named_with_their_place() {
        for (parent, name, why) in [
            ("domain", "kvm", Some(Dropped::Misplaced("features"))),
            ("domain", "currentMemor", Some(Dropped::Misspelt("currentMemory"))),
            ("devices", "vcpu", Some(Dropped::Misplaced("domain"))),
            ("devices", "hostdevs", Some(Dropped::Misspelt("hostdev"))),
            ("devices", "memory", None),
            ("domain", "somethingelse", None),
            ("clock", "vcpu", None),
        ] {
            assert_eq!(dropped(parent, name), why, "{name} in {parent}");
        }
    }

    #[test]
    fn elements_come_in_libvirts_order() {
        for (parent, first, second) in [
            ("memoryBacking", "hugepages", "allocation"),
            ("domain", "memory", "devices"),
            ("interface", "source", "address"),
            ("disk", "driver", "unknown"),
        ] {
            assert!(rank(parent, first) < rank(parent, second), "{first} {second} in {parent}");
        }
    }
}
