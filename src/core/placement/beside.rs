//! What a plan says of NICs and NVMe drives: which was taken beside which GPU, and what is farther than it could be.
//! Chooses nothing.

use super::explain::{Reasons, count, list};
use super::extras::{Wish, distance};
use crate::bdf::Bdf;
use crate::topology::Proximity;
use crate::words::are;

/// Is the devices of a kind that a guest gets: the index of the GPU that each is for, where the guest has GPUs, and
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
pub(super) fn label(wish: &Wish, gpus: &[usize]) -> String {
    let names = gpus.iter().map(|&gpu| wish.name(gpu));
    format!("{} {}", if gpus.len() == 1 { "GPU" } else { "GPUs" }, list(names))
}

/// Adds what was taken, and what of it is a compromise.
pub(super) fn explain(wish: &Wish, gpus: &[usize], choice: &Choice, reasons: &mut Reasons) {
    let mut choice: Vec<(usize, Option<(usize, Proximity)>)> =
        choice.iter().map(|&(gpu, at)| (at, nearest(wish, gpus, gpu, at))).collect();
    choice.sort_by_key(|(at, _)| *at);
    let bdf = |at: usize| wish.candidates[at].bdf;
    let taken = choice.iter().map(|&(at, beside)| match (beside, wish.candidates[at].node) {
        (Some((gpu, proximity)), _) => {
            format!("{} beside GPU {} ({proximity})", bdf(at), wish.name(gpu))
        }
        (None, Some(node)) => format!("{} on node {node}", bdf(at)),
        (None, None) => bdf(at).to_string(),
    });
    let of = match wish.is_exact {
        true => "as asked for".to_owned(),
        false => format!("of {} that can be had", count(wish.free, wish.kind.noun())),
    };
    reasons.say(wish.kind.topic(), format!("{}, {of}", list(taken)));
    let at_distance = |wanted: u32| {
        let far = choice.iter().filter(move |(_, beside)| {
            beside.is_some_and(|(_, proximity)| distance(proximity) == wanted)
        });
        far.map(|(at, _)| bdf(*at)).collect::<Vec<_>>()
    };
    for (wanted, place) in [
        (1, "below no PCIe switch with a GPU of the guest, on the node of one"),
        (2, "not on the node of any GPU of the guest"),
    ] {
        // What hangs elsewhere and has no node that is known may be near.
        let is_unknown = |bdf: &Bdf| {
            let mut same = wish.candidates.iter().filter(|candidate| candidate.bdf == *bdf);
            wanted == 2 && same.all(|candidate| candidate.node.is_none())
        };
        let (unknown, far): (Vec<Bdf>, Vec<Bdf>) =
            at_distance(wanted).into_iter().partition(is_unknown);
        if !far.is_empty() {
            let text = format!("{} {} {place}", list(&far), are(far.len()));
            reasons.compromise(wish.kind.topic(), text);
        }
        if !unknown.is_empty() {
            let (what, is) = (list(&unknown), are(unknown.len()));
            let text = format!(
                "whether {what} {is} on the node of a GPU of the guest is unknown: the kernel names \
                 no node"
            );
            reasons.compromise(wish.kind.topic(), text);
        }
    }
    let lacks = |gpu: &&usize| choice.iter().all(|(at, _)| distance(wish.beside[**gpu][*at]) > 0);
    let without: Vec<usize> = gpus.iter().filter(lacks).copied().collect();
    if wish.number >= gpus.len() && !without.is_empty() {
        let text = format!("no {} on the switch of {}", wish.kind.noun(), label(wish, &without));
        reasons.compromise(wish.kind.topic(), text);
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
