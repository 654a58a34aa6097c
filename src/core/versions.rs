//! Versions of the components that a guest runs on, and the one table of versions with known
//! defects, which `check`, `verify` and `host doctor` judge by. Values and comparisons only.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// A version of up to three numbers: `6.12`, `10.0.2`; the rest of a name is ignored.
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

/// The versions that a hypervisor reports; none if it does not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Versions {
    /// libvirt's, of the daemon.
    pub libvirt: Option<Version>,
    /// That of the QEMU that guests run in.
    pub qemu: Option<Version>,
}

/// Optional features of a hypervisor, as it reports them; never guessed by a version.
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
    /// The fastest link that a root port can be set to, in units of 0.1 GT/s; none if it cannot be
    /// set.
    pub port_speed_dgts: Option<u32>,
    /// Whether libvirt offers iommufd for functions of the host, which it does where its QEMU and
    /// the kernel have it, too; `None` if not known, as in records of before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iommufd: Option<bool>,
    /// Whether a guest's SMMUv3 can be nested in the host's, as GPUs with coherent memory need;
    /// false also in records of before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accelerates_smmu: bool,
}

/// libvirt and QEMU of a host, as a record has them, or as they are assumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stack {
    /// libvirt's version.
    pub libvirt: Version,
    /// QEMU's version.
    pub qemu: Version,
    /// Their features: as reported, or, if they are assumed, those of these versions in Debian and
    /// Ubuntu.
    pub abilities: Abilities,
}

impl Stack {
    /// The stack of a recorded host that names none: that of Debian 13.
    pub fn usual() -> Stack {
        Stack::assumed(Version(11, 3, 0), Version(10, 0, 0))
    }

    /// The stack of these versions. Nobody can be asked; each number is that of the release in
    /// which the feature came.
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
            iommufd: Some(libvirt >= LIBVIRT_IOMMUFD_DEVICES),
            accelerates_smmu: libvirt >= LIBVIRT_SMMU && qemu >= QEMU_SMMU,
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

/// The first libvirt that takes an unmanaged function of any driver with a VFIO device
/// (`virPCIDeviceGetCurrentDriverNameAndType`), as vGPUs on virtual functions are.
pub const LIBVIRT_VGPU: Version = Version(10, 0, 0);
/// The first libvirt that knows `<driver iommufd='yes'/>` of a device.
pub const LIBVIRT_IOMMUFD_DEVICES: Version = Version(12, 1, 0);
/// The first libvirt that knows `<iommufd enabled='yes'/>` of a domain.
pub const LIBVIRT_IOMMUFD: Version = Version(12, 2, 0);

/// The first libvirt that knows `accel` of `<iommu model='smmuv3'>`.
pub const LIBVIRT_SMMU: Version = Version(12, 7, 0);
/// The first QEMU whose arm-smmuv3 can be nested in the host's.
pub const QEMU_SMMU: Version = Version(11, 0, 0);

/// The oldest libvirt of which it is measured that its schema has `dma_translation`.
const DMA_TRANSLATION: Version = Version(11, 3, 0);

impl Versions {
    /// Whether guest agents are not to be asked about their disks: this libvirt may take harm, or
    /// its version is not known.
    pub fn spares_agent_disks(&self) -> bool {
        self.libvirt.is_none_or(|version| LIBVIRT_AGENT_DISKS.is_in(version, ""))
    }

    /// Whether an IOMMU that only remaps interrupts translates DMA all the same: libvirt cannot
    /// turn that off.
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
}

/// The hosts that a defect concerns: those with the affected device or feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concern {
    /// Every host of GPU guests.
    Every,
    /// Those with iommufd.
    Iommufd,
    /// Those of them with functions whose only way to each other is PCIe.
    IommufdPeers,
    /// Those with processors of AMD.
    Amd,
    /// Those with processors of Arm.
    Arm,
    /// Those with a function of these ids, vendor and device.
    Function(&'static [(u16, u16)]),
}

/// The reliability of the source of a defect.
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
    /// Their effect.
    pub what: &'static str,
    /// The public source.
    pub source: &'static str,
    /// The reliability of the source.
    pub evidence: Evidence,
    /// The hosts that it concerns.
    pub concern: Concern,
    /// The component that brings it about, from this version on; `None` if it needs no other.
    pub with: Option<(Component, Version)>,
}

impl Defect {
    /// A defect that the project's own words name, of every host.
    const fn documented(
        of: Component,
        bad: Bad,
        what: &'static str,
        source: &'static str,
    ) -> Defect {
        let evidence = Evidence::Documented;
        Defect { of, bad, what, source, evidence, concern: Concern::Every, with: None }
    }

    /// The same that only users have reported.
    const fn reported(of: Component, bad: Bad, what: &'static str, source: &'static str) -> Defect {
        Defect { evidence: Evidence::Reported, ..Defect::documented(of, bad, what, source) }
    }

    /// The same that concerns only these hosts.
    const fn of_hosts(self, concern: Concern) -> Defect {
        Defect { concern, ..self }
    }

    /// Whether a version has it; for a kernel with its whole release name.
    pub fn is_in(&self, version: Version, release: &str) -> bool {
        match self.bad {
            Bad::Before(good) => version < good,
            Bad::Between(bad, good) => (bad..good).contains(&version),
            Bad::From(bad) => version >= bad,
            Bad::Only(bad) => bad.contains(&version),
            Bad::Releases(bad) => bad.contains(&release),
        }
    }

    /// Returns the first version without it, if one is known.
    pub fn good_from(&self) -> Option<Version> {
        match self.bad {
            Bad::Before(good) | Bad::Between(_, good) => Some(good),
            _ => None,
        }
    }

    /// Returns the change to make, half a sentence.
    pub fn remedy(&self) -> String {
        let name = self.of.name();
        match self.good_from() {
            Some(good) => format!("{name} {good} or later does not"),
            None => format!("another version of {name} does not: {}", self.source),
        }
    }
}

/// A kernel that maps large BARs in 4 KiB pieces (gpuvm-hardware(7), LARGE BARS AND VERSIONS).
pub const KERNEL_SMALL_MAPS: Defect = Defect::documented(
    Component::Kernel,
    Bad::Before(Version(6, 12, 0)),
    "large BARs are mapped in 4 KiB pieces: the guest's start takes minutes longer",
    "gpuvm-hardware(7), LARGE BARS AND VERSIONS",
);
/// A QEMU that does not align large BARs for it (gpuvm-hardware(7), LARGE BARS AND VERSIONS).
pub const QEMU_SMALL_MAPS: Defect = Defect::documented(
    Component::Qemu,
    Bad::Before(Version(9, 2, 0)),
    "large BARs are mapped in 4 KiB pieces: the guest's start takes minutes longer",
    "gpuvm-hardware(7), LARGE BARS AND VERSIONS",
);
/// A QEMU that takes long for BARs of 256 GiB (gpuvm-hardware(7), LARGE BARS AND VERSIONS).
pub const QEMU_HUGE_BARS: Defect = Defect::documented(
    Component::Qemu,
    Bad::Before(Version(10, 1, 0)),
    "BARs of 256 GiB can keep the guest's firmware busy for minutes to an hour",
    "gpuvm-hardware(7), LARGE BARS AND VERSIONS",
);
/// A QEMU that misplaces the clique (gpuvm-hardware(7), PEER-TO-PEER CLIQUES).
pub const QEMU_CLIQUE: Defect = Defect::documented(
    Component::Qemu,
    Bad::Before(Version(8, 1, 0)),
    "the clique's capability can overlap another one of the GPU",
    "gpuvm-hardware(7), PEER-TO-PEER CLIQUES",
);
/// A QEMU that fills cells in turn (gpuvm-hardware(7), MEMORY AT START).
pub const QEMU_FILL: Defect = Defect::documented(
    Component::Qemu,
    Bad::Before(Version(9, 0, 0)),
    "the cells' huge pages are filled one cell after the other",
    "QEMU commit b41484ccb6",
);
/// A libvirt without `<maxphysaddr>` (gpuvm-hardware(7), BARS AND THE MMIO WINDOW).
pub const LIBVIRT_ADDRESS_BITS: Defect = Defect::documented(
    Component::Libvirt,
    Bad::Before(Version(8, 7, 0)),
    "<maxphysaddr> is not known, so large BARs may find no window",
    "libvirt news, 8.7.0",
);
/// Kernels whose change of PCI resets broke passed-through GPUs.
pub const KERNEL_RESET: Defect = Defect::reported(
    Component::Kernel,
    Bad::Only(&[Version(6, 14, 2), Version(6, 12, 23)]),
    "resetting a GPU between guests fails, so it works only once",
    "https://github.com/zen-kernel/zen-kernel/issues/380",
);
/// Kernels with which AMD's RDNA GPUs do not reset.
pub const KERNEL_RESET_RDNA: Defect = Defect::reported(
    Component::Kernel,
    Bad::From(Version(6, 15, 0)),
    "AMD RDNA GPUs may not be reset between guests",
    "https://github.com/void-linux/void-packages/issues/56829",
);
/// Kernels that do not report reset methods.
pub const KERNEL_RESET_METHOD: Defect = Defect::documented(
    Component::Kernel,
    Bad::Before(Version(5, 15, 0)),
    "reset methods are not shown and cannot be chosen",
    "Linux 5.15, Documentation/ABI/testing/sysfs-bus-pci",
);
/// Kernels that refuse a process its VFIO group.
pub const KERNEL_PERMISSION: Defect = Defect::reported(
    Component::Kernel,
    Bad::Releases(&["6.8.12-12-pve", "6.14.8-1-bpo12-pve"]),
    "QEMU gets no access to the VFIO group: \"error getting device from group: Permission \
           denied\"",
    "https://github.com/strongtz/i915-sriov-dkms/issues/322",
);
/// Kernels without `hugepages=NODE:N`.
pub const KERNEL_NODE_PAGES: Defect = Defect::documented(
    Component::Kernel,
    Bad::Before(Version(5, 16, 0)),
    "hugepages= on the command line cannot name a node",
    "Linux 5.16, Documentation/admin-guide/kernel-parameters.txt",
);
/// Kernels whose firmware framebuffer is not `simpledrm` or `efifb` by a switch of its own.
pub const KERNEL_SYSFB: Defect = Defect::documented(
    Component::Kernel,
    Bad::Before(Version(5, 15, 0)),
    "`initcall_blacklist=sysfb_init` is not known; `video=efifb:off` is",
    "Linux 5.15, drivers/firmware/sysfb.c",
);
/// Kernels whose vfio-pci leaves a VGA display's memory to the host's console.
pub const KERNEL_CONSOLE: Defect = Defect::documented(
    Component::Kernel,
    Bad::Before(Version(6, 0, 0)),
    "vfio-pci does not end the console on a display that it is bound to",
    "Linux 6.0, vfio_pci_vga_init() in drivers/vfio/pci/vfio_pci_core.c",
);
/// Kernels that no longer have the module `vfio_virqfd`.
pub const KERNEL_VIRQFD: Defect = Defect::reported(
    Component::Kernel,
    Bad::From(Version(6, 2, 0)),
    "the module `vfio_virqfd` is part of vfio, and a list that names it fails",
    "https://github.com/pavolelsig/passthrough_helper_fedora/issues/2",
);

/// A libvirt whose daemon an agent's answer about its disks can crash, or worse.
pub const LIBVIRT_AGENT_DISKS: Defect = Defect::documented(
    Component::Libvirt,
    Bad::Before(Version(12, 7, 0)),
    "a malicious guest agent makes the daemon free memory twice by its answer on disks",
    "CVE-2026-77158",
);
/// A libvirt that follows links where the state of emulated TPMs is.
pub const LIBVIRT_TPM_LOG: Defect = Defect::documented(
    Component::Libvirt,
    Bad::Before(Version(12, 7, 0)),
    "the daemon changes the owner of a file through a link",
    "CVE-2026-77159",
);
/// Vulnerabilities of libvirt, which distributions fix in older versions, too.
pub const LIBVIRT_CVES: [Defect; 5] = [
    Defect::documented(
        Component::Libvirt,
        Bad::Before(Version(12, 7, 0)),
        "an integer overflow that a read-only connection reaches",
        "CVE-2026-18917",
    ),
    LIBVIRT_AGENT_DISKS,
    LIBVIRT_TPM_LOG,
    Defect::documented(
        Component::Libvirt,
        Bad::Before(Version(11, 10, 0)),
        "the overlay of a snapshot of a stopped guest can be read by everybody",
        "CVE-2025-13193",
    ),
    Defect::documented(
        Component::Libvirt,
        Bad::Before(Version(11, 10, 0)),
        "accounts without full rights make the daemon use up memory",
        "CVE-2025-12748",
    ),
];

/// The vulnerabilities that a text names: `CVE-2026-77158`.
pub fn cves_in(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let words = text.split(|c: char| !is_part(c));
    let is_number = |word: &&str| {
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let parts = word.strip_prefix("CVE-").and_then(|rest| rest.split_once('-'));
        parts.is_some_and(|(year, number)| year.len() == 4 && digits(year) && digits(number))
    };
    words.filter(is_number).map(str::to_owned).collect()
}

/// QEMU whose iommufd maps guest memory by its file although the guest writes to private copies.
pub const QEMU_PRIVATE_MEMORY: Defect = Defect::documented(
    Component::Qemu,
    Bad::Between(Version(10, 1, 0), Version(11, 0, 2)),
    "with iommufd, devices read and write wrong pages of a guest on private huge pages",
    "QEMU commit e6c47bebdf, https://bugzilla.kernel.org/show_bug.cgi?id=220776",
)
.of_hosts(Concern::Iommufd);
/// Kernels by whose iommufd the devices of one guest do not reach each other.
pub const KERNEL_PEERS: Defect = Defect::documented(
    Component::Kernel,
    Bad::Before(Version(6, 19, 0)),
    "devices of one guest cannot reach each other by iommufd and dma-buf",
    "Linux 6.19, drivers/vfio/pci/vfio_pci_dmabuf.c",
)
.of_hosts(Concern::IommufdPeers);
/// QEMU by whose iommufd the devices of one guest do not reach each other.
pub const QEMU_PEERS: Defect = Defect::documented(
    Component::Qemu,
    Bad::Before(Version(11, 0, 0)),
    "devices of one guest cannot reach each other by iommufd",
    "QEMU 11.0, hw/vfio/iommufd.c",
)
.of_hosts(Concern::IommufdPeers);

/// Defects that GPU guests of such a version may meet, which `host doctor` lists on affected hosts.
/// Those of the table that depend on devices or files of the host are judged by its rules.
pub const DEFECTS: &[Defect] = &[
    QEMU_HUGE_BARS,
    QEMU_CLIQUE,
    QEMU_FILL,
    QEMU_PRIVATE_MEMORY,
    QEMU_PEERS,
    Defect::reported(
        Component::Qemu,
        Bad::From(Version(10, 1, 0)),
        "BARs whose size is no power of two, such as memory of Grace, are mapped in small pages",
        "https://github.com/NVIDIA/QEMU/pull/13",
    )
    .of_hosts(Concern::Arm),
    LIBVIRT_ADDRESS_BITS,
    KERNEL_RESET_METHOD,
    KERNEL_NODE_PAGES,
    Defect::documented(
        Component::Kernel,
        Bad::Before(Version(6, 8, 0)),
        "vGPUs by a vendor's VFIO driver are not possible",
        "gpuvm-hardware(7)",
    ),
    KERNEL_PEERS,
    Defect::reported(
        Component::Kernel,
        Bad::Between(Version(6, 2, 0), Version(6, 18, 0)),
        "BARs of a guest by iommufd count as locked memory: large cards fail with \"Cannot \
         allocate memory\"",
        "https://github.com/NVIDIA/NV-Kernels/pull/249",
    )
    .of_hosts(Concern::Iommufd),
    Defect::reported(
        Component::Kernel,
        Bad::From(Version(6, 16, 0)),
        "programs cannot map the memory of Omni-Path adapters",
        "https://github.com/cornelisnetworks/opa-psm2/issues/74",
    )
    .of_hosts(Concern::Function(&[(0x8086, 0x24f0), (0x8086, 0x24f1)])),
    Defect::documented(
        Component::Libvirt,
        Bad::Before(Version(10, 0, 0)),
        "VFIO drivers of a vendor's own are not bound",
        "libvirt news, 10.0.0",
    ),
    Defect::documented(
        Component::Libvirt,
        Bad::Between(Version(11, 0, 0), Version(11, 5, 0)),
        "a domain's definition cannot be read while a migration of it comes in",
        "libvirt news, 11.5.0",
    ),
    Defect::documented(
        Component::Libvirt,
        Bad::Between(Version(11, 2, 0), Version(11, 4, 0)),
        "going back to an internal snapshot fails",
        "libvirt news, 11.4.0",
    ),
    Defect {
        with: Some((Component::Qemu, Version(10, 0, 0))),
        ..Defect::documented(
            Component::Libvirt,
            Bad::Before(Version(11, 10, 0)),
            "a migration of a guest with threads is refused: \"extra features: ht\"",
            "libvirt news, 11.10.0",
        )
    },
    Defect::documented(
        Component::Libvirt,
        Bad::Between(Version(10, 9, 0), Version(12, 0, 0)),
        "a guest with more than about 25 external snapshots does not start",
        "libvirt news, 12.0.0",
    ),
    Defect {
        with: Some((Component::Qemu, Version(10, 0, 0))),
        ..Defect::documented(
            Component::Libvirt,
            Bad::Before(Version(12, 1, 0)),
            "a saved guest is not restored",
            "libvirt news, 12.1.0",
        )
    },
    Defect::documented(
        Component::Libvirt,
        Bad::Between(Version(12, 1, 0), Version(12, 2, 0)),
        "the daemon can crash on a hot-plugged NIC that is a passed-through function",
        "libvirt news, 12.2.0",
    ),
    Defect::documented(
        Component::Libvirt,
        Bad::Before(Version(12, 3, 0)),
        "whether a bus can be reset is judged by bus 0 only",
        "libvirt news, 12.3.0",
    ),
    Defect::documented(
        Component::Libvirt,
        Bad::Before(Version(12, 3, 0)),
        "a guest with a macvtap NIC may not start while the host is busy",
        "libvirt news, 12.3.0",
    ),
    Defect::documented(
        Component::Libvirt,
        Bad::Before(Version(12, 4, 0)),
        "a new limit of a NIC in one direction removes that in the other",
        "libvirt news, 12.4.0",
    ),
    Defect {
        with: Some((Component::Qemu, Version(10, 1, 0))),
        ..Defect::documented(
            Component::Libvirt,
            Bad::Before(Version(12, 5, 0)),
            "features of guests are misreported (arch-capabilities); Windows may crash with them",
            "libvirt news, 12.5.0",
        )
        .of_hosts(Concern::Amd)
    },
    Defect::documented(
        Component::Libvirt,
        Bad::Before(Version(12, 7, 0)),
        "virsh crashes on some errors, as of detach-disk",
        "libvirt news, 12.7.0",
    ),
    Defect::documented(
        Component::Libvirt,
        Bad::Between(Version(12, 2, 0), Version(12, 9, 0)),
        "PCI devices can be missing from its list or be misjudged",
        "libvirt news, 12.9.0",
    ),
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
        let snapshot =
            Defect { bad: Bad::Between(Version(11, 2, 0), Version(11, 4, 0)), ..KERNEL_PEERS };
        assert!(!snapshot.is_in(Version(11, 1, 9), "") && snapshot.is_in(Version(11, 3, 0), ""));
        assert_eq!(snapshot.good_from(), Some(Version(11, 4, 0)));
        assert!(DEFECTS.iter().all(|defect| !defect.source.is_empty()));
        let text = "  * CVE-2026-77158, (CVE-2025-13193)\n CVE-20-1 xCVE-2024-1 CVE-2024-x";
        assert_eq!(Vec::from_iter(cves_in(text)), ["CVE-2025-13193", "CVE-2026-77158"]);
    }
}
