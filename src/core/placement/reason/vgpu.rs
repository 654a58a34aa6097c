//! Reasons for the choice of vGPUs, as data and as text.

use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use crate::occupancy::GuestVgpu;
use crate::words::count;
use std::fmt;

/// Why a guest has these vGPUs and that much beside them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VgpuReason {
    /// Which.
    Chosen {
        /// The vGPUs.
        vgpus: Vec<GuestVgpu>,
        /// How many more of the type the cards can have.
        left: usize,
        /// Whether a card had none before.
        opens_card: bool,
    },
    /// Cores and memory follow from the part of a card.
    Share {
        /// The part, in thousandths.
        thousandths: u64,
    },
    /// Cores and memory follow from the virtual functions that its cards have.
    Functions {
        /// The part of a card that the guest's are, in thousandths.
        thousandths: u64,
    },
    /// MIG is on, and several GPUs would talk over NVLink.
    Mig {
        /// GPUs with MIG on.
        gpus: Vec<Bdf>,
    },
    /// MIG backs them, and NVML did not report how many instances there are.
    Instances {
        /// Their cards.
        gpus: Vec<Bdf>,
    },
    /// Cores are not on the node of the card.
    Remote {
        /// That node.
        node: Option<NodeId>,
    },
}

impl fmt::Display for VgpuReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VgpuReason::Chosen { vgpus, left, opens_card } => {
                let mut cards: Vec<String> = vgpus.iter().map(|one| one.card.to_string()).collect();
                cards.dedup();
                let name = vgpus.first().map(|one| one.name.as_str()).unwrap_or_default();
                let why = if *opens_card {
                    "no card with vGPUs has room for them"
                } else {
                    "the card with vGPUs that has the least room, so that others stay whole"
                };
                write!(
                    f,
                    "{} {name} on {}: {why}; {left} more fit there",
                    vgpus.len(),
                    cards.join(", ")
                )
            }
            VgpuReason::Share { thousandths } => write!(
                f,
                "cores and memory as {}.{} % of a card's share of its node, by the frame buffer",
                thousandths / 10,
                thousandths % 10
            ),
            VgpuReason::Functions { thousandths } => write!(
                f,
                "cores and memory as {}.{} % of a card's share of its node, since its virtual \
                 functions are parts of it",
                thousandths / 10,
                thousandths % 10
            ),
            VgpuReason::Mig { gpus } => {
                let names: Vec<String> = gpus.iter().map(Bdf::to_string).collect();
                write!(
                    f,
                    "MIG is on in {}, which leaves no NVLink between GPUs: `nvidia-smi -i {} -mig 0` \
                     turns it off",
                    names.join(", "),
                    names.join(",")
                )
            }
            VgpuReason::Instances { gpus } => {
                let names: Vec<String> = gpus.iter().map(Bdf::to_string).collect();
                write!(
                    f,
                    "how many GPU instances of MIG {} has for them is unknown, since NVML did not \
                     report it: the driver refuses the type if none has room",
                    names.join(", ")
                )
            }
            VgpuReason::Remote { node } => {
                let node = node.map_or("its node".to_owned(), |node| format!("node {node}"));
                write!(f, "cores and memory are not all on {node}, where the card is")
            }
        }
    }
}

/// Names vGPUs in a line: `2 x H200X-18C on 0000:3b:00.0`.
pub fn vgpu_words(vgpus: &[GuestVgpu]) -> String {
    let mut groups: Vec<(&GuestVgpu, usize)> = Vec::new();
    for vgpu in vgpus {
        match groups.iter_mut().find(|(of, _)| of.card == vgpu.card && of.name == vgpu.name) {
            Some((_, number)) => *number += 1,
            None => groups.push((vgpu, 1)),
        }
    }
    let one = |(of, number): &(&GuestVgpu, usize)| match number {
        1 => format!("{} on {}", of.name, of.card),
        number => format!("{number} x {} on {}", of.name, of.card),
    };
    let all: Vec<String> = groups.iter().map(one).collect();
    if all.is_empty() { count(0usize, "vGPU") } else { all.join(", ") }
}
