//! The order in which libvirt writes elements. Its schema accepts most of them in any order; new
//! elements are put where libvirt puts them, so that a domain reads the same before and after
//! define.

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
