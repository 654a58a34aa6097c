//! Reasons for the way of transfers between a guest's GPUs and NICs, as data and as text.

use crate::bdf::Bdf;
use crate::p2p::{Block, Route, Way};
use crate::topology::DirectRefusal;
use std::fmt;

/// A NIC or GPU, and the GPUs that it meets below one switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peers {
    /// The one that reads and writes memory of the others.
    pub from: Bdf,
    /// Whether it is a GPU itself.
    pub is_gpu: bool,
    /// The GPUs, at least one.
    pub gpus: Vec<Bdf>,
    /// The bridge that all are below.
    pub meets: Bdf,
}

impl fmt::Display for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Peers { from, is_gpu, gpus, meets } = self;
        let kind = if *is_gpu { "GPU" } else { "NIC" };
        let noun = if gpus.len() == 1 { "GPU" } else { "GPUs" };
        let gpus: Vec<String> = gpus.iter().map(Bdf::to_string).collect();
        write!(f, "{kind} {from} and {noun} {} meet at switch {meets}: ", gpus.join(", "))
    }
}

/// The way of transfers, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectReason {
    /// Through the switch, by a bit of a port.
    Direct {
        /// The functions.
        peers: Peers,
        /// The port.
        port: Bdf,
        /// Whether it is set already.
        is_set: bool,
        /// The way of reads, if it is another one all the same.
        reads: Option<Route>,
    },
    /// Writes go through the switch without a bit of a port, and reads do not.
    Reads {
        /// The functions.
        peers: Peers,
        /// The way of reads.
        reads: Route,
    },
    /// Over the root complex.
    Root {
        /// The functions.
        peers: Peers,
        /// Why.
        why: Vec<Block>,
        /// The port that `--p2p auto` would set, if that would change it.
        offer: Option<Bdf>,
    },
    /// A port rejects them, with or without `--p2p auto`.
    Rejected {
        /// The functions.
        peers: Peers,
        /// Why.
        why: Vec<Block>,
    },
    /// A port must not be set.
    Refused {
        /// Why.
        why: DirectRefusal,
    },
}

fn list(blocks: &[Block]) -> String {
    blocks.iter().map(Block::to_string).collect::<Vec<_>>().join(", ")
}

/// The way of reads, to follow that of writes.
fn of_reads(Route { way, blocked }: &Route) -> String {
    let what = match way {
        Way::Switch => return String::new(),
        Way::Root => "reads return over the root complex",
        Way::Unknown => "the way of reads is not known",
        Way::Rejected => "reads are rejected",
    };
    format!("; {what}: {}", list(blocked))
}

impl fmt::Display for DirectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DirectReason::Direct { peers, port, is_set, reads } => {
                let set = if *is_set { "is set" } else { "is set before the guest starts" };
                write!(f, "{peers}direct, as bit DT of {port} {set}")?;
                reads.as_ref().map_or(Ok(()), |reads| write!(f, "{}", of_reads(reads)))
            }
            DirectReason::Reads { peers, reads } => {
                write!(f, "{peers}writes go through the switch{}", of_reads(reads))
            }
            DirectReason::Root { peers, why, offer } => {
                write!(f, "{peers}over the root complex at about half the rate: {}", list(why))?;
                match offer {
                    Some(port) => write!(f, "; --p2p auto sets bit DT of {port}"),
                    None => Ok(()),
                }
            }
            DirectReason::Rejected { peers, why } => write!(f, "{peers}rejected: {}", list(why)),
            DirectReason::Refused { why } => write!(f, "no port is set for --p2p auto: {why}"),
        }
    }
}
