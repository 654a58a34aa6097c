//! Colours and bold: when there are any, and which. Texts carry marks, which `output` turns into what a terminal obeys or
//! leaves out; a mark in a text of others is shown as any other character that nobody should obey.

use super::args::ColorArg;
use clap::builder::styling::{AnsiColor, Style};
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};

/// Ends what a mark began.
pub const END: char = '\u{fddf}';

/// How a part of a text looks; each has a character that Unicode keeps out of texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Heads of tables.
    Head,
    /// What is well: running, up, free.
    Good,
    /// What waits, or is used.
    Busy,
    /// What is wrong.
    Bad,
}

impl Mark {
    /// The character that begins it.
    pub fn begin(self) -> char {
        match self {
            Mark::Head => '\u{fdd0}',
            Mark::Good => '\u{fdd1}',
            Mark::Busy => '\u{fdd2}',
            Mark::Bad => '\u{fdd3}',
        }
    }

    /// What begins with a character.
    fn of(begin: char) -> Option<Mark> {
        [Mark::Head, Mark::Good, Mark::Busy, Mark::Bad].into_iter().find(|m| m.begin() == begin)
    }

    /// How it looks.
    fn style(self) -> Style {
        match self {
            Mark::Head => Style::new().bold(),
            Mark::Good => AnsiColor::Green.on_default(),
            Mark::Busy => AnsiColor::Yellow.on_default(),
            Mark::Bad => AnsiColor::Red.on_default(),
        }
    }
}

/// The mark of a state in words, as tables have it; none: it is as usual as any other.
pub fn state(text: &str) -> Option<Mark> {
    let word = text.split([' ', ',', ':']).next().unwrap_or_default();
    match word {
        "running" | "up" | "free" => Some(Mark::Good),
        "paused" | "shutting" | "waits" | "data" => Some(Mark::Busy),
        "crashed" | "unknown" => Some(Mark::Bad),
        _ if text.contains("does not answer") => Some(Mark::Bad),
        _ => None,
    }
}

/// Whether a character is one of ours.
pub fn is_mark(c: char) -> bool {
    ('\u{fdd0}'..='\u{fdef}').contains(&c)
}

/// Takes `--color` of a command line that was not read yet, so that its help and its errors look so, too.
pub fn choose(args: &[OsString]) {
    let mut words = args.iter().map(OsString::as_os_str).take_while(|word| *word != "--");
    let mut chosen = ColorArg::Auto;
    while let Some(word) = words.next() {
        let value = match word.to_str().and_then(|word| word.strip_prefix("--color=")) {
            Some(value) => Some(OsStr::new(value)),
            None if word == "--color" => words.next(),
            None => None,
        };
        chosen = value.and_then(OsStr::to_str).and_then(ColorArg::named).unwrap_or(chosen);
    }
    set(chosen);
}

/// Sets what holds for this run. By itself: as the terminal, NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say.
pub fn set(chosen: ColorArg) {
    match chosen {
        ColorArg::Auto => anstream::ColorChoice::Auto,
        ColorArg::Always => anstream::ColorChoice::Always,
        ColorArg::Never => anstream::ColorChoice::Never,
    }
    .write_global();
}

/// Whether a stream gets colours.
pub fn is_on(stream: &impl anstream::stream::RawStream) -> bool {
    anstream::AutoStream::choice(stream) != anstream::ColorChoice::Never
}

/// A text with its marks as colours, or without them.
pub fn marked(text: &str, on: bool) -> Cow<'_, str> {
    if !text.contains(is_mark) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 64);
    let mut open: Option<Style> = None;
    for c in text.chars() {
        // What is trimmed at the end of a line may have been the mark of its end.
        if let Some(style) = open.filter(|_| c == END || c == '\n') {
            shown.push_str(&style.render_reset().to_string());
            open = None;
        }
        match Mark::of(c) {
            Some(mark) if on => {
                shown.push_str(&mark.style().render().to_string());
                open = Some(mark.style());
            }
            _ if is_mark(c) => {}
            _ => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// A text for people with what its lines begin with in colour: `error:`, `warning:`, `hint:`; and states after their label.
pub fn headlines(text: &str, on: bool) -> Cow<'_, str> {
    if !on {
        return Cow::Borrowed(text);
    }
    let heads = [
        ("error:", AnsiColor::Red),
        ("internal error:", AnsiColor::Red),
        ("warning:", AnsiColor::Yellow),
        ("hint:", AnsiColor::Cyan),
        ("note:", AnsiColor::Cyan),
    ];
    let mut shown = String::with_capacity(text.len() + 64);
    for line in text.split_inclusive('\n') {
        let begin = line.len() - line.trim_start_matches(' ').len();
        let head = heads.iter().find(|(head, _)| line[begin..].starts_with(head));
        let Some((head, colour)) = head else {
            labelled_state(line, &mut shown);
            continue;
        };
        let style = colour.on_default().bold();
        let (before, after) = (&line[..begin], &line[begin + head.len()..]);
        shown.push_str(&format!("{before}{style}{head}{style:#}{after}"));
    }
    Cow::Owned(shown)
}

/// Adds a line, in colour where it says the state of one thing: `state     running`.
fn labelled_state(line: &str, shown: &mut String) {
    let value = line.strip_prefix("state ").map(|value| value.trim_start_matches(' '));
    let Some((value, mark)) = value.and_then(|value| Some((value, state(value.trim_end())?)))
    else {
        shown.push_str(line);
        return;
    };
    let (label, style) = (&line[..line.len() - value.len()], mark.style());
    let (value, end) = value.split_at(value.trim_end().len());
    shown.push_str(&format!("{label}{style}{value}{style:#}{end}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_become_colours_or_nothing() {
        let text = format!("{}a{END} b {}c\nd", Mark::Head.begin(), Mark::Good.begin());
        assert_eq!(marked(&text, false), "a b c\nd");
        assert_eq!(marked(&text, true), "\u{1b}[1ma\u{1b}[0m b \u{1b}[32mc\u{1b}[0m\nd");
    }

    #[test]
    fn headlines_are_told_by_how_a_line_begins() {
        let text = "error: no\n  hint: x\nan error: y";
        let red = "\u{1b}[1m\u{1b}[31merror:\u{1b}[0m no\n";
        let cyan = "  \u{1b}[1m\u{1b}[36mhint:\u{1b}[0m x\nan error: y";
        assert_eq!(headlines(text, true), format!("{red}{cyan}"));
        assert_eq!(headlines(text, false), text);
        let state = headlines("state  running\nstate  shut off\n", true);
        assert_eq!(state, "state  \u{1b}[32mrunning\u{1b}[0m\nstate  shut off\n");
    }

    #[test]
    fn states_have_colours_by_their_first_word() {
        assert_eq!(state("up, gone when it ends"), Some(Mark::Good));
        assert_eq!(state("shut off"), None);
        assert_eq!(state("0000:07:00.0 does not answer"), Some(Mark::Bad));
    }
}
