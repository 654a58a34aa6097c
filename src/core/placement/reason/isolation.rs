//! Reasons about a guest's isolation, as data and as text.

use crate::bdf::Bdf;
use crate::fabric::{Need, NeedRefusal, Obstacle};
use crate::placement::explain::{count, domains, list};
use crate::topology::{Topology, Trust, Weakness};
use std::fmt;

/// A reason about isolation on NVLink and by the IOMMU (gpuvm-hardware(7), ISOLATION).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IsolationReason {
    /// Fabric Manager controls the NVSwitches.
    FabricManager,
    /// Fabric Manager will activate the guest's partition.
    Partition(Need),
    /// Fabric Manager would not activate the guest's partition now.
    NotNow {
        /// The partition.
        need: Need,
        /// Why.
        why: Obstacle,
    },
    /// No partition can be activated.
    NoPartition(NeedRefusal),
    /// The admin's statement on guests that are not isolated.
    Trust(Option<Trust>),
    /// Why that statement is not read.
    TrustUnread(String),
    /// The guest owns every GPU of the host.
    WholeHost,
    /// The guest owns every GPU and NVSwitch of its board.
    WholeBoard {
        /// NVSwitches of the guest.
        switches: usize,
    },
    /// The guest can reprogram its NVSwitches.
    HoldsSwitches {
        /// NVSwitches of the guest.
        switches: usize,
    },
    /// No guest holds an NVSwitch.
    NoSwitchHeld,
    /// The NVLinks of the guest's GPUs stay on: nothing blocks them.
    LinksStayOn,
    /// The guest has all GPUs but not the functions of the bridge in front of the NVSwitches.
    NoBridge {
        /// The functions; empty if unknown.
        functions: Vec<Bdf>,
    },
    /// Others hold NVSwitches that the GPUs have links to.
    SwitchesOfOthers {
        /// Domain names.
        domains: Vec<String>,
    },
    /// The NVLinks of the guest's GPUs lead over the switches of a rack.
    Rack,
    /// No direct NVLink leads out of the set.
    NoLinkOut,
    /// Direct NVLinks lead out of the set.
    LinksOut {
        /// GPUs at their other ends.
        to: Vec<Bdf>,
    },
    /// Links that are not read may lead out of the set.
    LinksUnread {
        /// GPUs that may be at their other ends.
        to: Vec<Bdf>,
    },
    /// GPUs on modules, which have NVLinks, and the host's are not known.
    NvLinksUnread,
    /// The IOMMU isolates the functions.
    Iommu,
    /// The IOMMU does not isolate them.
    WeakIommu(Weakness),
    /// Isolation by the IOMMU is unknown.
    UnknownIommu,
}

impl IsolationReason {
    /// Returns the remedy where it is why guests are not isolated.
    pub fn advice(&self, topology: &Topology) -> String {
        let trust = topology.trust_advice();
        match self {
            IsolationReason::WeakIommu(weakness @ Weakness::OpenPorts(_)) => {
                format!("{}; otherwise {trust}", weakness.hint())
            }
            _ => trust.into_owned(),
        }
    }
}

impl fmt::Display for IsolationReason {
    #[expect(clippy::too_many_lines, reason = "one arm for each variant")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IsolationReason::FabricManager => f.write_str(
                "the NVSwitches stay with Fabric Manager, which opens only the NVLinks of this \
                 partition",
            ),
            IsolationReason::Partition(need) => {
                write!(
                    f,
                    "gpuvm activates partition {need} before the start, and deactivates it once the guest is off"
                )
            }
            IsolationReason::NotNow { need, why } => {
                write!(
                    f,
                    "`create` refuses partition {need}, without which the guest has no working CUDA: {why}"
                )
            }
            IsolationReason::Trust(said) => f.write_str(Trust::advice(*said)),
            IsolationReason::TrustUnread(why) => f.write_str(&Trust::advice_of_host(None, Some(why))),
            IsolationReason::NoPartition(why) => write!(f, "{why}; {}", why.hint()),
            IsolationReason::WholeHost => f.write_str(
                "the guest owns every GPU of the host: no other guest is on its NVLinks",
            ),
            IsolationReason::WholeBoard { switches } => write!(
                f,
                "the guest owns every GPU and all {} of its board: no other guest is on the \
                 board's NVLinks; those between boards stay off as long as no guest turns them on \
                 at both ends",
                count(*switches, "NVSwitch")
            ),
            IsolationReason::HoldsSwitches { switches } => write!(
                f,
                "not isolated on NVLink: the guest holds {} and can reprogram {}, since stock QEMU \
                 filters no access to an NVSwitch; only guests \
                 with all GPUs of a board, or with 1 GPU while no guest holds an NVSwitch, are \
                 isolated",
                count(*switches, "NVSwitch"),
                if *switches == 1 { "it" } else { "them" },
            ),
            IsolationReason::NoSwitchHeld => f.write_str(
                "no NVSwitch is handed out: isolated on NVLink as long as no other guest holds one",
            ),
            IsolationReason::LinksStayOn => f.write_str(
                "not isolated on NVLink: on H100 and later the NVLinks of a guest with some of the \
                 board's GPUs stay on, and CUDA fails with error 802 there; gpuvm does not block \
                 them, since QEMU's resets lift the block; with FABRIC_MODE=1 in fabricmanager.cfg \
                 (shared NVSwitches) such guests are isolated",
            ),
            IsolationReason::NoBridge { functions } => {
                f.write_str(
                    "no NVLink in the guest: its NVSwitches are behind a ConnectX-7 bridge, ",
                )?;
                if functions.is_empty() {
                    f.write_str(
                        "whose functions are not known here (SW_MNG in their product data)",
                    )?
                } else {
                    write!(
                        f,
                        "whose functions {} go along where `--nic` names them",
                        list(functions)
                    )?
                }
                f.write_str(
                    "; with FABRIC_MODE=1 in fabricmanager.cfg Fabric Manager of the host keeps \
                             them",
                )
            }
            IsolationReason::SwitchesOfOthers { domains: names } => write!(
                f,
                "not isolated on NVLink: {} holds NVSwitches that these GPUs have links to, and \
                 stock QEMU filters no access to an NVSwitch",
                domains(names.iter().map(String::as_str))
            ),
            IsolationReason::Rack => f.write_str(
                "NVLinks lead over the rack's switches to all GPUs of its NVLink partition: only the \
                 rack's manager (NMX) separates them, and no host does",
            ),
            IsolationReason::NoLinkOut => f.write_str("no NVLink leads out of the set"),
            IsolationReason::LinksOut { to } => write!(
                f,
                "direct NVLinks lead to {}, which stay outside: nothing in stock QEMU blocks them",
                list(to)
            ),
            IsolationReason::LinksUnread { to } => write!(
                f,
                "whether Infinity Fabric links lead to {}, which {} outside, is unknown: gpuvm does \
                 not read them",
                list(to),
                if to.len() == 1 { "stays" } else { "stay" }
            ),
            IsolationReason::NvLinksUnread => f.write_str(
                "whether NVLinks lead out of the set is unknown: these GPUs are on modules that have \
                 some, and those of the host are not known",
            ),
            IsolationReason::Iommu => f.write_str(
                "the IOMMU confines these devices to the guest's memory: each has an IOMMU group, \
                 and neither pcie_acs_override= nor VFIO's unsafe interrupts are on",
            ),
            IsolationReason::WeakIommu(weakness) => f.write_str(&weakness.says()),
            IsolationReason::UnknownIommu => f.write_str(
                "whether the IOMMU isolates these devices is unknown: the record does not say how \
                 VFIO is set; `gpuvm host capture FILE` on the host records it",
            ),
        }
    }
}
