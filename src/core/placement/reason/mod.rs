//! The reasons for a plan, as data. Knows no rule of placement.

mod beside;
mod cores;
mod direct;
mod gpus;
mod isolation;
mod memory;
mod passing;
mod tree;
mod vgpu;

pub use beside::{BesideGpu, BesideReason};
pub use cores::{CoreReason, FewerThreads, NodeRule, Only, SetAsideBy};
pub use direct::{DirectReason, Peers};
pub(super) use gpus::label;
pub use gpus::{
    AfterSplit, Compared, Criterion, GpuList, GpuName, GpuReason, LostBy, Scatter, Unit,
};
pub use isolation::IsolationReason;
pub use memory::{MemoryReason, NoPages, Rounding, ScarcePool};
pub use passing::PassReason;
pub use tree::{TreeReason, WindowTooLarge};
pub use vgpu::{VgpuReason, vgpu_words};

use crate::topology::Topology;
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// The topic of a reason; in JSON and text its name in kebab case.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, strum::Display,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Topic {
    /// Which GPUs.
    Gpus,
    /// The vGPUs and their share of the host.
    Vgpus,
    /// Which NVSwitches.
    Nvswitches,
    /// Which NICs.
    Nics,
    /// Which virtual functions.
    Vfs,
    /// Which NVMe drives.
    Nvmes,
    /// Functions that are missing beside those of a tuned guest.
    Devices,
    /// Drivers of the functions.
    Drivers,
    /// Whether other guests reach the GPUs over NVLink.
    Isolation,
    /// The NVLink partition that the guest needs active.
    Partition,
    /// Whether guests that are not isolated on NVLink trust each other.
    Trust,
    /// Whether the IOMMU keeps the functions apart from others.
    Iommu,
    /// Whether functions are passed through by iommufd or by VFIO groups.
    Iommufd,
    /// Peer-to-peer between GPUs and NICs over PCIe.
    P2p,
    /// Host nodes.
    Nodes,
    /// Number of vCPUs and their cores.
    Vcpus,
    /// Pins of vCPUs.
    Pins,
    /// Pin of the emulator.
    Emulator,
    /// I/O threads.
    Iothreads,
    /// Guest memory.
    Memory,
    /// Rounding of memory to whole pages of each cell.
    MemoryRounding,
    /// Host nodes that the cells' memory is bound to.
    MemoryNodes,
    /// Pools of huge pages.
    HugePages,
    /// Mounted hugetlbfs.
    Hugetlbfs,
    /// Guest PCIe tree.
    Pcie,
    /// 64-bit PCI MMIO window.
    Window,
    /// The missing part of the domain's template.
    Template,
}

/// Why a choice was made: its facts, of which [`Display`](fmt::Display) makes a sentence without
/// full stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Because {
    /// Of GPUs and their companion functions.
    Gpus(GpuReason),
    /// Of vGPUs.
    Vgpu(VgpuReason),
    /// Of devices beside GPUs.
    Beside(BesideReason),
    /// Of the way in which functions are passed through.
    Passing(PassReason),
    /// Of the way of transfers between its functions.
    Direct(DirectReason),
    /// Of the guest's isolation.
    Isolation(IsolationReason),
    /// Of cores and the threads on them.
    Cores(CoreReason),
    /// Of memory and huge pages.
    Memory(MemoryReason),
    /// Of the guest's PCIe tree and its MMIO window.
    Tree(TreeReason),
    /// The words of a caller, or of a plan that was read from JSON.
    Said(String),
}

impl Because {
    /// Returns the remedy where it is why guests are not isolated.
    pub fn advice(&self, topology: &Topology) -> String {
        match self {
            Because::Isolation(why) => why.advice(topology),
            _ => topology.trust_advice().into_owned(),
        }
    }

    /// Whether cores or memory are those of stopped domains, because no others are free.
    pub(crate) fn is_of_stopped(&self) -> bool {
        matches!(
            self,
            Because::Cores(CoreReason::Yielded { .. })
                | Because::Memory(MemoryReason::Yielded { .. })
        )
    }

    /// Whether memory was rounded to whole pages.
    pub(crate) fn is_rounded(&self) -> bool {
        let rounding = match self {
            Because::Memory(
                MemoryReason::Rounded { rounding, .. } | MemoryReason::Vendor { rounding, .. },
            ) => *rounding,
            _ => Rounding::None,
        };
        rounding != Rounding::None
    }
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Because::Gpus(why) => why.fmt(f),
            Because::Vgpu(why) => why.fmt(f),
            Because::Beside(why) => why.fmt(f),
            Because::Passing(why) => why.fmt(f),
            Because::Direct(why) => why.fmt(f),
            Because::Isolation(why) => why.fmt(f),
            Because::Cores(why) => why.fmt(f),
            Because::Memory(why) => why.fmt(f),
            Because::Tree(why) => why.fmt(f),
            Because::Said(words) => f.write_str(words),
        }
    }
}

impl Serialize for Because {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Because {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Because, D::Error> {
        String::deserialize(deserializer).map(Because::Said)
    }
}

impl From<GpuReason> for Because {
    fn from(why: GpuReason) -> Because {
        Because::Gpus(why)
    }
}

impl From<BesideReason> for Because {
    fn from(why: BesideReason) -> Because {
        Because::Beside(why)
    }
}

impl From<PassReason> for Because {
    fn from(why: PassReason) -> Because {
        Because::Passing(why)
    }
}

impl From<DirectReason> for Because {
    fn from(why: DirectReason) -> Because {
        Because::Direct(why)
    }
}

impl From<IsolationReason> for Because {
    fn from(why: IsolationReason) -> Because {
        Because::Isolation(why)
    }
}

impl From<CoreReason> for Because {
    fn from(why: CoreReason) -> Because {
        Because::Cores(why)
    }
}

impl From<MemoryReason> for Because {
    fn from(why: MemoryReason) -> Because {
        Because::Memory(why)
    }
}

impl From<TreeReason> for Because {
    fn from(why: TreeReason) -> Because {
        Because::Tree(why)
    }
}

impl From<String> for Because {
    fn from(words: String) -> Because {
        Because::Said(words)
    }
}

/// Why one choice was made, one line of `--explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reason {
    /// The choice.
    pub choice: Topic,
    /// The reason, a sentence without full stop.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub because: Because,
    /// Whether it is a compromise that the admin should know of.
    #[serde(default)]
    pub compromise: bool,
}

impl Reason {
    /// Whether it is a remedy for another compromise, and is none itself: whether guests that are
    /// not isolated trust each other.
    pub fn is_remedy(&self) -> bool {
        self.choice == Topic::Trust
    }

    /// Whether the compromise that a remedy helps against is this one.
    pub fn has_remedy(&self) -> bool {
        self.compromise && matches!(self.choice, Topic::Isolation | Topic::Iommu)
    }

    /// Whether it counts as a compromise.
    pub fn is_compromise(&self) -> bool {
        self.compromise && !self.is_remedy()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_printed_in_words_and_read_back_as_words() {
        let because = CoreReason::Floating {
            vcpus: 3,
            rule: crate::request::Profile::Share,
            is_asked: true,
            pcpus: 8,
        };
        let reason = Reason { choice: Topic::Vcpus, because: because.into(), compromise: false };
        let text = serde_json::to_string(&reason).unwrap();
        let words = "3 vCPUs, as requested; not pinned: they float over the 8 pcpus";
        assert_eq!(text, format!(r#"{{"choice":"vcpus","because":"{words}","compromise":false}}"#));
        let read: Reason = serde_json::from_str(&text).unwrap();
        assert_eq!(read.because, Because::Said(words.into()));
        let name = serde_json::to_string(&Topic::HugePages).unwrap();
        assert_eq!(name, format!("\"{}\"", Topic::HugePages));
    }
}
