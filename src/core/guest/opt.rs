//! The options that describe a guest, by name and by the shape of their values.

use serde::Serialize;
use std::fmt;

/// An option of `create`, and the same field of a file that `apply` takes.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Opt {
    /// Number of GPUs.
    Gpus,
    /// Named GPUs, by index or address.
    Gpu,
    /// Index of the first of consecutive GPUs.
    GpuIndex,
    /// GPU model.
    GpuModel,
    /// vGPUs.
    Vgpu,
    /// NICs, as whole functions.
    Nic,
    /// How near each GPU's NIC is.
    NicNear,
    /// Virtual functions of NICs.
    Vf,
    /// NVMe drives, as functions.
    Nvme,
    /// How near each GPU's drive is.
    NvmeNear,
    /// Peer-to-peer below a PCIe switch.
    P2pClique,
    /// Transfers between GPUs and NICs below a PCIe switch.
    P2p,
    /// How functions are passed through.
    Iommufd,
    /// Free root ports.
    SparePorts,
    /// vCPUs at start.
    Vcpus,
    /// Most vCPUs while it runs.
    MaxVcpus,
    /// Memory.
    Memory,
    /// Pages that back the memory.
    HugePages,
    /// How vCPUs are pinned.
    Pins,
    /// Guest NUMA cells.
    Cells,
    /// Threads of a core in the guest.
    Threads,
    /// Rule for sizes and pins.
    Profile,
    /// Cores of each node for the host.
    ReserveCores,
    /// Memory of each node for the host.
    ReserveMemory,
    /// Rules of the planner that may be broken.
    Allow,
    /// Choice between equally good places.
    Policy,
    /// Near NICs or one package.
    Prefer,
    /// L3 caches.
    L3,
    /// Machine type.
    Machine,
    /// Whether it may be moved to make room.
    Movable,
    /// Domain type.
    VirtType,
    /// NICs on networks of libvirt.
    Network,
    /// Disks to boot from.
    Disk,
    /// Further disks.
    AddDisk,
    /// Whole drives as disks.
    Drive,
    /// Partitions as disks.
    Partition,
    /// Whether a fabric that others reach is accepted.
    AcceptSharedFabric,
    /// Backing files of disks that are accepted.
    AcceptBacking,
    /// Domain XML to start from.
    Template,
    /// Image of the boot disk.
    Image,
    /// Pool of the images.
    ImagePool,
    /// Kind of the boot disk.
    OsDisk,
    /// Size of the boot disk.
    OsSize,
    /// Pool of its disks.
    Pool,
    /// Directory of its disks.
    DiskDir,
    /// Size of the data disk.
    DataSize,
    /// Directory of the data disk.
    DataDir,
    /// How space of disks is taken.
    Preallocate,
    /// Key for the first login.
    SshKey,
    /// User of the first login.
    User,
    /// Hash of the password.
    PasswordHash,
    /// cloud-init's user data.
    UserData,
    /// cloud-init's metadata.
    MetaData,
    /// cloud-init's network configuration.
    NetworkConfig,
    /// Without the guest agent.
    NoAgent,
    /// Without NCCL's topology file.
    NoNccl,
    /// How NCCL finds its topology file.
    Nccl,
    /// Address of a guest of the same IMEX domain.
    ImexNode,
    /// Without a cloud-init seed.
    NoSeed,
    /// Whether it starts with the host; only in files.
    Autostart,
    /// The set of guests that it is of; only in files.
    Set,
}

/// The shape of an option's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Present or not.
    Switch,
    /// A number.
    Number,
    /// One value.
    Text,
    /// Several values, each with the option before it.
    Each,
    /// Several values, after one option, separated by commas.
    Joined,
}

impl Opt {
    /// Returns the name of the field in a file: `huge-pages`.
    pub fn field(self) -> &'static str {
        self.into()
    }

    /// Returns the option of the command line: `--huge-pages`.
    pub fn flag(self) -> String {
        format!("--{}", self.field())
    }

    /// Returns the shape of its values.
    pub fn shape(self) -> Shape {
        match self {
            Opt::P2pClique
            | Opt::Movable
            | Opt::AcceptSharedFabric
            | Opt::NoAgent
            | Opt::NoNccl
            | Opt::NoSeed
            | Opt::Autostart => Shape::Switch,
            Opt::Gpus
            | Opt::GpuIndex
            | Opt::SparePorts
            | Opt::Vcpus
            | Opt::MaxVcpus
            | Opt::Threads
            | Opt::ReserveCores => Shape::Number,
            Opt::Gpu
            | Opt::Nic
            | Opt::Vf
            | Opt::Nvme
            | Opt::Network
            | Opt::Disk
            | Opt::AddDisk
            | Opt::Drive
            | Opt::Partition
            | Opt::AcceptBacking
            | Opt::SshKey
            | Opt::ImexNode => Shape::Each,
            Opt::Allow => Shape::Joined,
            Opt::GpuModel
            | Opt::Vgpu
            | Opt::NicNear
            | Opt::NvmeNear
            | Opt::P2p
            | Opt::Iommufd
            | Opt::Memory
            | Opt::HugePages
            | Opt::Pins
            | Opt::Cells
            | Opt::Profile
            | Opt::ReserveMemory
            | Opt::Policy
            | Opt::Prefer
            | Opt::L3
            | Opt::Machine
            | Opt::VirtType
            | Opt::Template
            | Opt::Image
            | Opt::ImagePool
            | Opt::OsDisk
            | Opt::OsSize
            | Opt::Pool
            | Opt::DiskDir
            | Opt::DataSize
            | Opt::DataDir
            | Opt::Preallocate
            | Opt::User
            | Opt::PasswordHash
            | Opt::UserData
            | Opt::MetaData
            | Opt::NetworkConfig
            | Opt::Nccl
            | Opt::Set => Shape::Text,
        }
    }
}

impl fmt::Display for Opt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.field())
    }
}
