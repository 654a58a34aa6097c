//! The obstacles to guests of a size, and their remedy, in words: the same for text and pages.

use super::capacity::{Blocked, Capacity, RoomOffer, Size};
use super::freeing::{Advice, Away};
use crate::words::{are, count, nouns};

/// The most holders of a size that are named; JSON has all.
const SHOWN: usize = 8;

impl Blocked {
    /// Returns the reasons against the size, the holders, indented, and the remedy, a line each.
    pub fn lines(&self) -> Vec<String> {
        let Blocked { gpus, what, holders, even_empty, advice, room, bounded } = self;
        let number = count(*gpus, "GPU");
        let verb = if *gpus == 1 { "does" } else { "do" };
        let mut lines = match even_empty {
            Some(why) => vec![format!("{number} {verb} not fit, even on the empty host: {why}")],
            None => vec![format!("{number} {verb} not fit now: {what}")],
        };
        if even_empty.is_none() {
            lines.extend(holders.iter().take(SHOWN).map(|holder| format!("  {holder}")));
            if holders.len() > SHOWN {
                lines.push(format!("  and {} more", holders.len() - SHOWN));
            }
        }
        match room {
            Some(RoomOffer { command, moves, .. }) => {
                lines.push(format!("`{command}` makes room: {}", moves.join("; ")));
            }
            None => lines.extend(advice.as_ref().map(advise)),
        }
        if *bounded && room.is_none() {
            lines.push("not every set of guests was tried: there may be a cheaper way".to_owned());
        }
        lines
    }
}

impl Capacity {
    /// Returns how many guests of each size fit, in a line: `4 guests with 1 GPU, 1 with 4 GPUs,
    /// none with 8`; `None` if no sizes were counted.
    pub fn in_a_line(&self) -> Option<String> {
        let fit = self.sizes.iter().filter(|size| size.now > 0).zip(0..);
        let mut parts: Vec<String> = fit
            .map(|(&Size { gpus, now, .. }, at)| match at {
                0 => format!("{} with {}", count(now, "guest"), count(gpus, "GPU")),
                _ => format!("{now} with {}", count(gpus, "GPU")),
            })
            .collect();
        let none: Vec<u32> =
            self.sizes.iter().filter(|size| size.now == 0).map(|size| size.gpus).collect();
        if let Some(last) = none.last() {
            let sizes: Vec<String> = none.iter().map(u32::to_string).collect();
            let word = if parts.is_empty() { "no guest" } else { "none" };
            parts.push(format!("{word} with {} {}", sizes.join(" or "), nouns(*last, "GPU")));
        }
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// Describes the cheapest solution in one sentence.
fn advise(advice: &Advice) -> String {
    let steps: Vec<String> = advice.guests.iter().map(step).collect();
    let ends = advice.guests.iter().any(|guest| guest.running && guest.to.is_none());
    let only = if ends { "only by ending a guest: " } else { "" };
    let place = match advice.partition {
        Some(id) if advice.gpus.len() > 1 => format!("partition {id} ({}) is", gpus(&advice.gpus)),
        _ => format!("{} {}", gpus(&advice.gpus), are(advice.gpus.len())),
    };
    // Not that they become free: they may be free now, while cores or memory are missing.
    format!("{only}{}: then {place} free", steps.join("; "))
}

/// The action on one guest.
fn step(guest: &Away) -> String {
    let Away { domain, running, gpus: number, vgpus, fixed, to } = guest;
    let with = match (number, vgpus) {
        (0, 0) => "no GPU".to_owned(),
        (0, vgpus) => count(*vgpus, "vGPU"),
        (number, _) => count(*number, "GPU"),
    };
    let stays = if *fixed { "which cannot be moved" } else { "which fits nowhere else" };
    let place = to.as_ref().map(|to| match to.gpus[..] {
        [] => "elsewhere".to_owned(),
        _ => format!("at {}", gpus(&to.gpus)),
    });
    match (running, place) {
        (true, Some(place)) => format!("stop `{domain}` ({with}) and start it {place}"),
        (true, None) => format!("end `{domain}` ({with}), {stays}"),
        (false, Some(place)) => format!("plan `{domain}` ({with}, it is off) again {place}"),
        (false, None) => {
            format!("give up `{domain}` ({with}, it is off), {stays}")
        }
    }
}

/// GPUs by index: `GPU 5`, `GPUs 8 to 15`, `GPUs 0, 5, 7`.
fn gpus(indexes: &[usize]) -> String {
    match indexes {
        [only] => format!("GPU {only}"),
        [first, .., last] if indexes.len() > 2 && last - first + 1 == indexes.len() => {
            format!("GPUs {first} to {last}")
        }
        _ => {
            let each: Vec<String> = indexes.iter().map(usize::to_string).collect();
            format!("GPUs {}", each.join(", "))
        }
    }
}
