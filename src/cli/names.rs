//! Formats shared by several verbs: addresses, sizes, link speeds, states; model names are in the
//! topology.

use crate::bdf::Bdf;
use crate::cli::colour::is_mark;
use crate::hypervisor::DomainState;
pub use crate::topology::model::model;
use crate::topology::{Link, PciDevice};

/// An address without segment 0, as `lspci` prints it.
pub fn short(bdf: Bdf) -> String {
    let text = bdf.to_string();
    text.strip_prefix("0000:").map_or(text.clone(), ToOwned::to_owned)
}

/// A drive's size in decimal units, as vendors use.
pub fn drive_size(bytes: u64) -> String {
    let units: [(u64, _); 3] =
        [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB")];
    let Some((unit, name)) = units.into_iter().find(|(unit, _)| bytes >= *unit) else {
        return format!("{bytes} B");
    };
    let hundredths = u128::from(bytes) * 100 / u128::from(unit);
    let (whole, rest) = (hundredths / 100, hundredths % 100);
    match (whole, rest) {
        (100.., _) | (_, 0) => format!("{whole} {name}"),
        _ => format!("{whole}.{rest:02} {name}"),
    }
}

/// Describes a link below its maximum; none if it is at its maximum or unknown.
pub fn slow_link(device: &PciDevice) -> Option<String> {
    let (now, best) = (device.link.as_ref()?, device.link_max.as_ref()?);
    let speed = |link: &Link| link.speed_dgts.map(|dgts| (dgts, rate(dgts)));
    let mut lacks = Vec::new();
    if let (Some(now), Some(best)) = (now.width, best.width)
        && now < best
    {
        lacks.push(format!("x{now} of x{best}"));
    }
    if let (Some((now, text)), Some((best, best_text))) = (speed(now), speed(best))
        && now < best
    {
        lacks.push(format!("{text} of {best_text} GT/s"));
    }
    (!lacks.is_empty()).then(|| format!("link {}", lacks.join(", ")))
}

fn rate(dgts: u32) -> String {
    match (dgts / 10, dgts % 10) {
        (whole, 0) => whole.to_string(),
        (whole, tenth) => format!("{whole}.{tenth}"),
    }
}

/// Returns a text from the host without terminal control characters.
pub fn plain(text: &str) -> String {
    let harmless = |c: char| if c.is_control() || is_mark(c) { '\u{fffd}' } else { c };
    text.chars().map(harmless).collect()
}

/// Wraps words in lines of at most `width` columns: `head` precedes the first line, blanks of its
/// width the others. A word longer than a line gets its own.
pub fn wrapped(head: &str, words: &str, width: usize) -> String {
    let indent = head.chars().count();
    let (mut text, mut used) = (head.to_owned(), indent);
    for (position, word) in plain(words).split(' ').enumerate() {
        let long = word.chars().count();
        if position > 0 && used + 1 + long > width {
            text = text.trim_end().to_owned();
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', indent));
            used = indent;
        } else if position > 0 {
            text.push(' ');
            used += 1;
        }
        text.push_str(word);
        used += long;
    }
    text.push('\n');
    text
}

/// A domain's state in a word or two.
pub fn state(state: DomainState) -> &'static str {
    match state {
        DomainState::Running => "running",
        DomainState::Paused => "paused",
        DomainState::Suspended => "suspended",
        DomainState::ShuttingDown => "shutting down",
        DomainState::ShutOff => "shut off",
        DomainState::Crashed => "crashed (still holds its devices)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_makers_print_them() {
        for (bytes, text) in [
            (0, "0 B"),
            (512, "512 B"),
            (960_197_124_096, "960 GB"),
            (3_840_755_982_336, "3.84 TB"),
            (2_000_000_000_000, "2 TB"),
            (u64::MAX, "18446744 TB"),
        ] {
            assert_eq!(drive_size(bytes), text);
        }
    }

    #[test]
    fn words_go_on_below_each_other() {
        assert_eq!(wrapped("  a  ", "bc de fgh", 10), "  a  bc de\n     fgh\n");
        assert_eq!(wrapped("", "longer than this", 3), "longer\nthan\nthis\n");
        assert_eq!(wrapped("  ", "", 3), "  \n");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(plain("a\x1b[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
    }
}
