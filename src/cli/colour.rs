//! Colours and bold: when they are used, and which. Texts carry marks, which `output` turns into
//! escape sequences or removes; a mark in foreign text is escaped like any control character.

use clap::ValueEnum;
use clap::builder::styling::{AnsiColor, Style};
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};

/// Ends a marked part.
pub const END: char = '\u{fddf}';

/// The style of a part of a text; each is represented by a Unicode noncharacter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Heads of tables.
    Head,
    /// Good states: running, up, free.
    Good,
    /// Waiting or in use.
    Busy,
    /// Bad states.
    Bad,
}

impl Mark {
    /// Returns the character that starts it.
    pub fn begin(self) -> char {
        match self {
            Mark::Head => '\u{fdd0}',
            Mark::Good => '\u{fdd1}',
            Mark::Busy => '\u{fdd2}',
            Mark::Bad => '\u{fdd3}',
        }
    }

    /// Returns the mark that a character starts.
    fn of(begin: char) -> Option<Mark> {
        [Mark::Head, Mark::Good, Mark::Busy, Mark::Bad].into_iter().find(|m| m.begin() == begin)
    }

    fn style(self) -> Style {
        match self {
            Mark::Head => Style::new().bold(),
            Mark::Good => AnsiColor::Green.on_default(),
            Mark::Busy => AnsiColor::Yellow.on_default(),
            Mark::Bad => AnsiColor::Red.on_default(),
        }
    }
}

/// Returns the mark of a state's text in tables; `None` if it is not highlighted.
pub fn state(text: &str) -> Option<Mark> {
    let word = text.split([' ', ',', ':']).next().unwrap_or_default();
    match word {
        "running" | "up" | "free" => Some(Mark::Good),
        "paused" | "suspended" | "shutting" | "waits" | "data" => Some(Mark::Busy),
        "crashed" | "unknown" => Some(Mark::Bad),
        _ if text.contains("does not answer") => Some(Mark::Bad),
        _ => None,
    }
}

/// Whether a character is one of ours.
pub fn is_mark(c: char) -> bool {
    ('\u{fdd0}'..='\u{fdef}').contains(&c)
}

/// When there are colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ColorArg {
    /// On a terminal, unless NO_COLOR is set or TERM is `dumb`
    Auto,
    /// Always, except in JSON
    Always,
    /// Never
    Never,
}

impl ColorArg {
    /// The one of this name.
    pub fn named(name: &str) -> Option<ColorArg> {
        <ColorArg as ValueEnum>::from_str(name, false).ok()
    }
}

/// Applies `--color` of a command line before it is parsed, so that help and usage errors follow
/// it, too.
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

/// Sets the colours of this run. `auto` follows the terminal, NO_COLOR, CLICOLOR, CLICOLOR_FORCE
/// and TERM.
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

/// Returns a text with its marks as colours, or removed.
pub fn marked(text: &str, on: bool) -> Cow<'_, str> {
    if !text.contains(is_mark) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 64);
    let mut open: Option<Style> = None;
    for c in text.chars() {
        // The end mark may have been trimmed at the end of a line.
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

/// Returns a text with the starts of its lines in colour: `error:`, `warning:`, `hint:`; and states
/// after their label.
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

/// Adds a line, coloured if it gives a state: `state running`.
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
    fn headlines_are_recognised_by_the_beginning_of_a_line() {
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
