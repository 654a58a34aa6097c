//! What a plan says of NICs and NVMe drives: which was taken beside which GPU, and what is farther than it could be.
//! Chooses nothing.

use super::explain::{Reasons, list};
use super::extras::{Wish, distance};
use super::reason::{BesideGpu, BesideReason, GpuName};
use crate::bdf::Bdf;
use crate::topology::Proximity;

/// The devices of a kind that a guest gets: the index of the GPU that each is for, where the guest has GPUs, and
/// the device's place among the candidates.
pub(super) type Choice = Vec<(Option<usize>, usize)>;

/// A nearness as a number; the nearer, the smaller.
pub(super) fn rank(proximity: Proximity) -> i32 {
    match proximity {
        Proximity::Same | Proximity::NvLink(_) | Proximity::Pix => 0,
        Proximity::Pxb => 1,
        Proximity::Phb => 2,
        Proximity::Node => 3,
        Proximity::Sys => 4,
    }
}

/// GPUs by their names: `GPU 3`, `GPUs 0, 5 and 7`.
pub(super) fn label(gpus: &[GpuName]) -> String {
    format!("{} {}", if gpus.len() == 1 { "GPU" } else { "GPUs" }, list(gpus))
}

/// Adds what was taken, and what of it is a compromise.
pub(super) fn explain(wish: &Wish, gpus: &[usize], choice: &Choice, reasons: &mut Reasons) {
    let mut choice: Vec<(usize, Option<(usize, Proximity)>)> =
        choice.iter().map(|&(gpu, at)| (at, nearest(wish, gpus, gpu, at))).collect();
    choice.sort_by_key(|(at, _)| *at);
    let bdf = |at: usize| wish.candidates[at].bdf;
    let kind = wish.kind;
    let taken = choice.iter().map(|&(at, beside)| BesideGpu {
        device: bdf(at),
        gpu: beside.map(|(gpu, proximity)| (wish.name(gpu), proximity)),
        node: wish.candidates[at].node,
    });
    let of = (!wish.is_exact).then_some(wish.free);
    reasons.say(kind.topic(), BesideReason::Taken { devices: taken.collect(), kind, of });
    let at_distance = |wanted: u32| {
        let far = choice.iter().filter(move |(_, beside)| {
            beside.is_some_and(|(_, proximity)| distance(proximity) == wanted)
        });
        far.map(|(at, _)| bdf(*at)).collect::<Vec<_>>()
    };
    for wanted in [1, 2] {
        // What hangs elsewhere and has no node that is known may be near.
        let is_unknown = |bdf: &Bdf| {
            let mut same = wish.candidates.iter().filter(|candidate| candidate.bdf == *bdf);
            wanted == 2 && same.all(|candidate| candidate.node.is_none())
        };
        let (unknown, far): (Vec<Bdf>, Vec<Bdf>) =
            at_distance(wanted).into_iter().partition(is_unknown);
        if !far.is_empty() {
            let why = match wanted {
                1 => BesideReason::OffSwitch { devices: far },
                _ => BesideReason::OffNode { devices: far },
            };
            reasons.compromise(kind.topic(), why);
        }
        if !unknown.is_empty() {
            reasons.compromise(kind.topic(), BesideReason::Unknown { devices: unknown });
        }
    }
    let lacks = |gpu: &&usize| choice.iter().all(|(at, _)| distance(wish.beside[**gpu][*at]) > 0);
    let without: Vec<GpuName> = gpus.iter().filter(lacks).map(|&gpu| wish.name(gpu)).collect();
    if wish.number >= gpus.len() && !without.is_empty() {
        reasons.compromise(kind.topic(), BesideReason::NoneOnSwitch { kind, gpus: without });
    }
}

/// The GPU of the guest that a device is nearest to, and how near; of equally near ones the one that it is for.
fn nearest(
    wish: &Wish,
    gpus: &[usize],
    meant: Option<usize>,
    at: usize,
) -> Option<(usize, Proximity)> {
    let all = gpus.iter().map(|&gpu| (wish.beside[gpu][at], Some(gpu) != meant, gpu));
    all.min().map(|(proximity, _, gpu)| (gpu, proximity))
}
