//! Versions of the components that a guest runs on, and the one table of versions with known
//! defects, which `check`, `verify` and `host doctor` judge by. Values and comparisons only.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A version of up to three numbers: `6.12`, `10.0.2`; what follows them in a name is not looked
/// at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// Reads the leading numbers of a text, at least two: `6.1.0-18-amd64` is 6.1.0. None if it has
    /// fewer.
    pub fn read(text: &str) -> Option<Version> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let mut numbers = text[..end].split('.').map(|number| number.parse().ok());
        let (major, minor) = (numbers.next()??, numbers.next()??);
        Some(Version(major, minor, numbers.next().flatten().unwrap_or(0)))
    }

    /// Converts libvirt's version number: a million for the first component, a thousand for the
    /// second.
    pub fn of_libvirt(number: u32) -> Version {
        Version(number / 1_000_000, number / 1000 % 1000, number % 1000)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Version(major, minor, micro) = self;
        write!(f, "{major}.{minor}.{micro}")
    }
}

/// What a hypervisor says of its own versions; none: it does not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Versions {
    /// libvirt's, of the daemon.
    pub libvirt: Option<Version>,
    /// That of the QEMU that guests run in.
    pub qemu: Option<Version>,
}

/// What a hypervisor can do that not every one can; asked of it, never guessed by a version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub struct Abilities {
    /// Whether its QEMU knows io_uring.
    pub io_uring: bool,
    /// Whether the queues of one disk can be spread over several I/O threads (libvirt 10.0 with
    /// QEMU 9.0).
    pub queue_mapping: bool,
    /// Whether libvirt is older than the oldest of which it is measured that it takes
    /// `dma_translation` of an IOMMU (11.3); where its version is not known, it does.
    pub translates_dma: bool,
    /// The fastest link that a root port can be told to have, in units of 0.1 GT/s; none: it cannot
    /// be told.
    pub port_speed_dgts: Option<u32>,
}

/// libvirt and QEMU of a host, as a record has them, or as they are assumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stack {
    /// libvirt's version.
    pub libvirt: Version,
    /// QEMU's version.
    pub qemu: Version,
    /// What they can do: as they were asked, or, where they are assumed, as these versions of Debian
    /// and Ubuntu can.
    pub abilities: Abilities,
}

impl Stack {
    /// The stack of a recorded host that names none: that of Debian 13.
    pub fn usual() -> Stack {
        Stack::assumed(Version(11, 3, 0), Version(10, 0, 0))
    }

    /// The stack of these versions. Nobody can be asked; each number is that of the release in which
    /// the feature came.
    pub fn assumed(libvirt: Version, qemu: Version) -> Stack {
        let versions = Versions { libvirt: Some(libvirt), qemu: Some(qemu) };
        let abilities = Abilities {
            io_uring: qemu >= Version(5, 0, 0) && libvirt >= Version(6, 3, 0),
            queue_mapping: qemu >= Version(9, 0, 0) && libvirt >= Version(10, 0, 0),
            translates_dma: versions.translates_dma(),
            port_speed_dgts: match qemu {
                Version(9.., ..) => Some(640),
                Version(4.., ..) => Some(160),
                _ => None,
            },
        };
        Stack { libvirt, qemu, abilities }
    }

    /// Its versions.
    pub fn versions(&self) -> Versions {
        Versions { libvirt: Some(self.libvirt), qemu: Some(self.qemu) }
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "libvirt {}, QEMU {}", self.libvirt, self.qemu)
    }
}

impl FromStr for Stack {
    type Err = String;
    /// Reads `libvirt=12.9,qemu=11.1`; one that is not named is that of [`Stack::usual`].
    fn from_str(text: &str) -> Result<Stack, String> {
        let usual = Stack::usual();
        let (mut libvirt, mut qemu) = (None, None);
        for word in text.split(',') {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let version = Version::read(value).ok_or_else(|| {
                format!("`{word}` is not libvirt=VERSION or qemu=VERSION, such as libvirt=12.9")
            })?;
            let twice = match name {
                "libvirt" => libvirt.replace(version),
                "qemu" => qemu.replace(version),
                _ => return Err(format!("`{name}` is neither libvirt nor qemu")),
            };
            if twice.is_some() {
                return Err(format!("{name}= is given twice"));
            }
        }
        Ok(Stack::assumed(libvirt.unwrap_or(usual.libvirt), qemu.unwrap_or(usual.qemu)))
    }
}

/// The oldest libvirt of which it is measured that its schema has `dma_translation`.
const DMA_TRANSLATION: Version = Version(11, 3, 0);

impl Versions {
    /// Whether guest agents are not to be asked about their disks: this libvirt may take harm, or
    /// its version is not known.
    pub fn spares_agent_disks(&self) -> bool {
        self.libvirt.is_none_or(|version| LIBVIRT_AGENT_DISKS.is_in(version, ""))
    }

    /// Whether an IOMMU that only remaps interrupts translates DMA all the same: libvirt cannot
    /// tell it not to.
    pub fn translates_dma(&self) -> bool {
        self.libvirt.is_some_and(|version| version < DMA_TRANSLATION)
    }
}

/// The component that a version belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Component {
    /// The host's kernel.
    Kernel,
    /// QEMU.
    Qemu,
    /// libvirt.
    Libvirt,
}

impl Component {
    /// Its name in a sentence.
    pub fn name(self) -> &'static str {
        match self {
            Component::Kernel => "the host's kernel",
            Component::Qemu => "QEMU",
            Component::Libvirt => "libvirt",
        }
    }
}

/// The versions that have a defect.
#[derive(Debug, Clone, Copy)]
pub enum Bad {
    /// All before this one.
    Before(Version),
    /// From the first one on, before the second one.
    Between(Version, Version),
    /// This one and later ones; no good one is known.
    From(Version),
    /// These.
    Only(&'static [Version]),
    /// Kernels with these whole release names.
    Releases(&'static [&'static str]),
    /// Kernels of Debian 12, those of its backports included, as their configuration is.
    Debian12,
}

/// What the source of a defect is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// The project's own release notes, code or configuration, or measured.
    Documented,
    /// Users have reported it; the project has not named the cause.
    Reported,
}

/// A defect of some versions of a component.
#[derive(Debug, Clone, Copy)]
pub struct Defect {
    /// The component.
    pub of: Component,
    /// The versions that have it.
    pub bad: Bad,
    /// What happens with them.
    pub what: &'static str,
    /// The public source.
    pub source: &'static str,
    /// What the source is worth.
    pub evidence: Evidence,
}

impl Defect {
    /// Whether a version has it; for a kernel with its whole release name.
    pub fn is_in(&self, version: Version, release: &str) -> bool {
        match self.bad {
            Bad::Before(good) => version < good,
            Bad::Between(bad, good) => (bad..good).contains(&version),
            Bad::From(bad) => version >= bad,
            Bad::Only(bad) => bad.contains(&version),
            Bad::Releases(bad) => bad.contains(&release),
            Bad::Debian12 => {
                let is_debian = ["-amd64", "-arm64"].iter().any(|end| release.ends_with(end));
                is_debian && ((version.0, version.1) == (6, 1) || release.contains("+deb12"))
            }
        }
    }

    /// Returns the first version without it, if one is known.
    pub fn good_from(&self) -> Option<Version> {
        match self.bad {
            Bad::Before(good) | Bad::Between(_, good) => Some(good),
            _ => None,
        }
    }

    /// Returns what to change, half a sentence.
    pub fn remedy(&self) -> String {
        let name = self.of.name();
        match self.good_from() {
            Some(good) => format!("{name} {good} or later does not"),
            None => format!("another version of {name} does not: {}", self.source),
        }
    }
}

/// A kernel that maps large BARs in 4 KiB pieces (gpuvm-hardware(7), LARGE BARS AND VERSIONS).
pub const KERNEL_SMALL_MAPS: Defect = Defect {
    of: Component::Kernel,
    bad: Bad::Before(Version(6, 12, 0)),
    what: "large BARs are mapped in 4 KiB pieces: the guest's start takes minutes longer",
    source: "gpuvm-hardware(7), LARGE BARS AND VERSIONS",
    evidence: Evidence::Documented,
};
/// A QEMU that does not align large BARs for it (gpuvm-hardware(7), LARGE BARS AND VERSIONS).
pub const QEMU_SMALL_MAPS: Defect = Defect {
    of: Component::Qemu,
    bad: Bad::Before(Version(9, 2, 0)),
    what: "large BARs are mapped in 4 KiB pieces: the guest's start takes minutes longer",
    source: "gpuvm-hardware(7), LARGE BARS AND VERSIONS",
    evidence: Evidence::Documented,
};
/// A QEMU that takes long for BARs of 256 GiB (gpuvm-hardware(7), LARGE BARS AND VERSIONS).
pub const QEMU_HUGE_BARS: Defect = Defect {
    of: Component::Qemu,
    bad: Bad::Before(Version(10, 1, 0)),
    what: "BARs of 256 GiB can keep the guest's firmware busy for minutes to an hour",
    source: "gpuvm-hardware(7), LARGE BARS AND VERSIONS",
    evidence: Evidence::Documented,
};
/// A QEMU that misplaces the clique (gpuvm-hardware(7), PEER-TO-PEER CLIQUES).
pub const QEMU_CLIQUE: Defect = Defect {
    of: Component::Qemu,
    bad: Bad::Before(Version(8, 1, 0)),
    what: "the clique's capability can lie over another one of the GPU",
    source: "gpuvm-hardware(7), PEER-TO-PEER CLIQUES",
    evidence: Evidence::Documented,
};
/// A QEMU that fills cells in turn (gpuvm-hardware(7), MEMORY AT START).
pub const QEMU_FILL: Defect = Defect {
    of: Component::Qemu,
    bad: Bad::Before(Version(9, 0, 0)),
    what: "the cells' huge pages are filled one cell after the other",
    source: "QEMU commit b41484ccb6",
    evidence: Evidence::Documented,
};
/// A libvirt without `<maxphysaddr>` (gpuvm-hardware(7), BARS AND THE MMIO WINDOW).
pub const LIBVIRT_ADDRESS_BITS: Defect = Defect {
    of: Component::Libvirt,
    bad: Bad::Before(Version(8, 7, 0)),
    what: "<maxphysaddr> is not known, so large BARs may find no window",
    source: "libvirt news, 8.7.0",
    evidence: Evidence::Documented,
};
/// Kernels whose change of PCI resets broke passed-through GPUs.
pub const KERNEL_RESET: Defect = Defect {
    of: Component::Kernel,
    bad: Bad::Only(&[Version(6, 14, 2), Version(6, 12, 23)]),
    what: "resetting a GPU between guests fails, so it works only once",
    source: "https://github.com/zen-kernel/zen-kernel/issues/380",
    evidence: Evidence::Reported,
};
/// Kernels with which AMD's RDNA GPUs do not reset.
pub const KERNEL_RESET_RDNA: Defect = Defect {
    of: Component::Kernel,
    bad: Bad::From(Version(6, 15, 0)),
    what: "AMD RDNA GPUs may not be reset between guests",
    source: "https://github.com/void-linux/void-packages/issues/56829",
    evidence: Evidence::Reported,
};
/// Kernels that do not tell reset methods.
pub const KERNEL_RESET_METHOD: Defect = Defect {
    of: Component::Kernel,
    bad: Bad::Before(Version(5, 15, 0)),
    what: "reset methods are not shown and cannot be chosen",
    source: "Linux 5.15, Documentation/ABI/testing/sysfs-bus-pci",
    evidence: Evidence::Documented,
};
/// Kernels that refuse a process its VFIO group.
pub const KERNEL_PERMISSION: Defect = Defect {
    of: Component::Kernel,
    bad: Bad::Releases(&["6.8.12-12-pve", "6.14.8-1-bpo12-pve"]),
    what: "QEMU gets no access to the VFIO group: \"error getting device from group: Permission \
           denied\"",
    source: "https://github.com/strongtz/i915-sriov-dkms/issues/322",
    evidence: Evidence::Reported,
};
/// Kernels without `hugepages=NODE:N`.
pub const KERNEL_NODE_PAGES: Defect = Defect {
    of: Component::Kernel,
    bad: Bad::Before(Version(5, 16, 0)),
    what: "hugepages= on the command line cannot name a node",
    source: "Linux 5.16, Documentation/admin-guide/kernel-parameters.txt",
    evidence: Evidence::Documented,
};
/// Kernels whose firmware framebuffer is not `simpledrm` or `efifb` by a switch of its own.
pub const KERNEL_SYSFB: Defect = Defect {
    of: Component::Kernel,
    bad: Bad::Before(Version(5, 15, 0)),
    what: "`initcall_blacklist=sysfb_init` is not known; `video=efifb:off` is",
    source: "Linux 5.15, drivers/firmware/sysfb.c",
    evidence: Evidence::Documented,
};
/// Kernels whose vfio-pci leaves a VGA display's memory to the host's console.
pub const KERNEL_CONSOLE: Defect = Defect {
    of: Component::Kernel,
    bad: Bad::Before(Version(6, 0, 0)),
    what: "vfio-pci does not end the console on a display that it is bound to",
    source: "Linux 6.0, vfio_pci_vga_init() in drivers/vfio/pci/vfio_pci_core.c",
    evidence: Evidence::Documented,
};
/// Kernels that no longer have the module `vfio_virqfd`.
pub const KERNEL_VIRQFD: Defect = Defect {
    of: Component::Kernel,
    bad: Bad::From(Version(6, 2, 0)),
    what: "the module `vfio_virqfd` is part of vfio, and a list that names it fails",
    source: "https://github.com/pavolelsig/passthrough_helper_fedora/issues/2",
    evidence: Evidence::Reported,
};

/// A libvirt whose daemon an agent's answer about its disks can crash, or worse.
pub const LIBVIRT_AGENT_DISKS: Defect = Defect {
    of: Component::Libvirt,
    bad: Bad::Before(Version(12, 7, 0)),
    what: "a malicious guest agent makes the daemon free memory twice by its answer on disks",
    source: "CVE-2026-77158",
    evidence: Evidence::Documented,
};
/// Vulnerabilities of libvirt, which distributions fix in older versions, too.
pub const LIBVIRT_CVES: [Defect; 3] = [
    Defect {
        what: "an integer overflow that a read-only connection reaches",
        source: "CVE-2026-18917",
        ..LIBVIRT_AGENT_DISKS
    },
    LIBVIRT_AGENT_DISKS,
    Defect {
        what: "the daemon changes the owner of a file through a link",
        source: "CVE-2026-77159",
        ..LIBVIRT_AGENT_DISKS
    },
];

/// Defects that every GPU guest of such a version may meet, which `host doctor` lists. Those of the
/// table that depend on devices or files of the host are judged by its rules.
pub const DEFECTS: &[Defect] = &[
    QEMU_HUGE_BARS,
    QEMU_CLIQUE,
    QEMU_FILL,
    LIBVIRT_ADDRESS_BITS,
    KERNEL_RESET_METHOD,
    KERNEL_NODE_PAGES,
    Defect {
        of: Component::Kernel,
        bad: Bad::Before(Version(6, 8, 0)),
        what: "vGPUs by a vendor's VFIO driver are not possible",
        source: "gpuvm-hardware(7)",
        evidence: Evidence::Documented,
    },
    Defect {
        of: Component::Kernel,
        bad: Bad::Before(Version(6, 19, 0)),
        what: "devices of one guest cannot reach each other by iommufd and dma-buf",
        source: "Linux 6.19, drivers/vfio/pci/vfio_pci_dmabuf.c",
        evidence: Evidence::Documented,
    },
    Defect {
        of: Component::Kernel,
        bad: Bad::Debian12,
        what: "the kernel is built without iommufd, whatever libvirt offers",
        source: "configuration of Debian's kernels 6.1.0 and 6.12.95+deb12, CONFIG_IOMMUFD",
        evidence: Evidence::Documented,
    },
    Defect {
        of: Component::Libvirt,
        bad: Bad::Before(Version(10, 0, 0)),
        what: "VFIO drivers of a vendor's own are not bound",
        source: "libvirt news, 10.0.0",
        evidence: Evidence::Documented,
    },
    Defect {
        of: Component::Libvirt,
        bad: Bad::Between(Version(11, 2, 0), Version(11, 4, 0)),
        what: "going back to an internal snapshot fails",
        source: "libvirt news, 11.4.0",
        evidence: Evidence::Documented,
    },
    Defect {
        of: Component::Libvirt,
        bad: Bad::Between(Version(12, 1, 0), Version(12, 2, 0)),
        what: "the daemon can crash on a hot-plugged NIC that is a passed-through function",
        source: "libvirt news, 12.2.0",
        evidence: Evidence::Documented,
    },
    Defect {
        of: Component::Libvirt,
        bad: Bad::Before(Version(12, 3, 0)),
        what: "whether a bus can be reset is judged by bus 0 only",
        source: "libvirt news, 12.3.0",
        evidence: Evidence::Documented,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_kernels_and_distributions_write() {
        for (text, version) in [
            ("6.12", Some(Version(6, 12, 0))),
            ("6.1.0-18-amd64", Some(Version(6, 1, 0))),
            ("5.15.0-1040-nvidia", Some(Version(5, 15, 0))),
            ("10.0.2.1", Some(Version(10, 0, 2))),
            ("6.18.44-fc", Some(Version(6, 18, 44))),
            ("6", None),
            ("", None),
            ("v6.1", None),
            (".6.1", None),
            ("6.99999999999", None),
        ] {
            assert_eq!(Version::read(text), version, "{text}");
        }
        assert_eq!(Version::of_libvirt(11_003_000), Version(11, 3, 0));
        assert!(Version(6, 9, 0) < Version(6, 12, 0));
        assert_eq!(Version(9, 2, 0).to_string(), "9.2.0");
    }

    #[test]
    fn a_defect_is_in_the_versions_that_the_table_says() {
        let kernel =
            |defect: &Defect, release: &str| defect.is_in(Version::read(release).unwrap(), release);
        for (defect, bad, good) in [
            (&KERNEL_SMALL_MAPS, "6.11.9-amd64", "6.12.0-amd64"),
            (&KERNEL_RESET, "6.14.2-zen1", "6.14.3"),
            (&KERNEL_RESET, "6.12.23-generic", "6.12.24"),
            (&KERNEL_RESET_RDNA, "6.15.0", "6.14.9"),
            (&KERNEL_PERMISSION, "6.8.12-12-pve", "6.8.12-13-pve"),
            (&KERNEL_VIRQFD, "6.2.0", "6.1.0"),
        ] {
            assert!(kernel(defect, bad) && !kernel(defect, good), "{defect:?}");
        }
        let iommufd = DEFECTS.iter().find(|defect| matches!(defect.bad, Bad::Debian12)).unwrap();
        assert!(kernel(iommufd, "6.1.0-28-amd64") && !kernel(iommufd, "6.1.0-generic"));
        assert!(kernel(iommufd, "6.12.95+deb12-amd64") && !kernel(iommufd, "6.12.41+deb13-amd64"));
        let snapshot =
            Defect { bad: Bad::Between(Version(11, 2, 0), Version(11, 4, 0)), ..*iommufd };
        assert!(!snapshot.is_in(Version(11, 1, 9), "") && snapshot.is_in(Version(11, 3, 0), ""));
        assert_eq!(snapshot.good_from(), Some(Version(11, 4, 0)));
        assert!(DEFECTS.iter().all(|defect| !defect.source.is_empty()));
    }
}
