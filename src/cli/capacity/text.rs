//! The text output of `capacity`.

use crate::cli::table::Table;
use crate::placement::{Advice, Away, Blocked, Capacity, RoomOffer};
use crate::words::count;
use std::fmt::Write as _;

/// The most holders of a size printed; JSON has all.
const SHOWN: usize = 8;

/// Makes the table of fitting guests by size; on an empty host with one column.
pub(super) fn table(capacity: &Capacity, empty: bool) -> Table {
    let columns = if empty { 2 } else { 3 };
    let head = ["GPUs of a guest", "guests that fit", "on the empty host"];
    let mut table = Table::new(&head[..columns]);
    for size in &capacity.sizes {
        table.push([size.gpus, size.now, size.empty][..columns].iter().map(u32::to_string));
    }
    table
}

/// Returns the rest of the text output, `none` if there are no GPUs.
pub(super) fn text(capacity: &Capacity, none: &str) -> String {
    let mut text = String::new();
    if capacity.sizes.is_empty() {
        text += &format!("{none}; `gpuvm capacity --gpus 0` counts guests without GPUs\n");
    }
    for of in &capacity.models {
        let gpus = |number: u32| count(number as usize, "GPU");
        let sizes = of.sizes.iter().map(|size| format!("{} with {}", size.now, gpus(size.gpus)));
        let sizes: Vec<String> = sizes.collect();
        let gpus = gpus(of.gpus);
        writeln!(text, "{} ({}): {gpus}; guests that fit: {}", of.model, of.ids, sizes.join(", "))
            .expect("text");
    }
    for line in capacity.not_isolated() {
        writeln!(text, "{line}").expect("text");
    }
    for line in &capacity.never_placed {
        writeln!(text, "never placed: {line}").expect("text");
    }
    if let Some(next) = &capacity.next {
        text.push('\n');
        blocked(next, &mut text);
    }
    text
}

/// Adds what prevents a size, and what would free it.
fn blocked(next: &Blocked, text: &mut String) {
    let Blocked { gpus, what, holders, even_empty, advice, room, bounded } = next;
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
    for line in lines {
        writeln!(text, "{line}").expect("text");
    }
}

/// Describes the cheapest solution in one sentence.
fn advise(advice: &Advice) -> String {
    let steps: Vec<String> = advice.guests.iter().map(step).collect();
    let ends = advice.guests.iter().any(|guest| guest.running && guest.to.is_none());
    let only = if ends { "only by ending a guest: " } else { "" };
    let place = match advice.partition {
        Some(id) if advice.gpus.len() > 1 => format!("partition {id} ({})", gpus(&advice.gpus)),
        _ => gpus(&advice.gpus),
    };
    // Not that they become free: they may be free now, while cores or memory are missing.
    format!("{only}{}: then {place} is free", steps.join("; "))
}

/// What to do with one guest.
fn step(guest: &Away) -> String {
    let Away { domain, running, gpus: number, to } = guest;
    let with = match number {
        0 => "no GPU".to_owned(),
        number => count(*number, "GPU"),
    };
    let place = to.as_ref().map(|to| match to.gpus[..] {
        [] => "elsewhere".to_owned(),
        _ => format!("at {}", gpus(&to.gpus)),
    });
    match (running, place) {
        (true, Some(place)) => format!("stop `{domain}` ({with}) and start it {place}"),
        (true, None) => format!("end `{domain}` ({with}), which fits nowhere else"),
        (false, Some(place)) => format!("plan `{domain}` ({with}, it is off) again {place}"),
        (false, None) => {
            format!("give up `{domain}` ({with}, it is off), which fits nowhere else")
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
