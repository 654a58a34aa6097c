//! Wraps lines to the terminal: between words, with a hanging indent. Text between backquotes is
//! for pasting and is never broken.

use std::borrow::Cow;
use tabled::grid::util::string::get_line_width as columns;

/// The column before which the values of labelled lines begin.
const LABEL: usize = 26;

/// Wraps a text to `width` columns, as far as commands allow. A labelled line continues below its
/// value, others two columns further in.
pub fn fit(text: &str, width: Option<usize>) -> Cow<'_, str> {
    let Some(width) = width else { return Cow::Borrowed(text) };
    if text.lines().all(|line| columns(line) <= width) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 64);
    for line in text.split_inclusive('\n') {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        if columns(line) <= width {
            shown.push_str(line)
        } else {
            hang(line, width, &mut shown)
        }
        shown.push_str(end);
    }
    Cow::Owned(shown)
}

/// Adds a line that is too wide, wrapped.
fn hang(line: &str, width: usize, shown: &mut String) {
    let begin = line.len() - line.trim_start_matches(' ').len();
    let value = value_of(line, begin).filter(|value| columns(&line[..*value]) <= width / 2);
    let (begin, hanging) = match value {
        Some(value) => (value, columns(&line[..value])),
        None => (begin, begin + 2),
    };
    let head = &line[..begin];
    let rooms = (width.saturating_sub(columns(head)), width.saturating_sub(hanging));
    let below = format!("\n{:hanging$}", "");
    shown.push_str(head);
    shown.push_str(&broken(&line[begin..], rooms.0, rooms.1).join(&below));
}

/// Returns where the value of a labelled line begins: after two blanks or more.
fn value_of(line: &str, begin: usize) -> Option<usize> {
    let gap = begin + line[begin..].find("  ")?;
    let value = line.len() - line[gap..].trim_start_matches(' ').len();
    (value < line.len() && columns(&line[..value]) <= LABEL).then_some(value)
}

/// A text in lines of at most `width` columns.
pub fn lines(text: &str, width: usize) -> Vec<String> {
    text.split('\n').flat_map(|line| broken(line, width, width)).collect()
}

/// Wraps one line, with a separate width for the first. A longer word is broken after its commas.
fn broken(text: &str, first: usize, others: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    let mut is_first_word = true;
    for word in words(text) {
        // Words for pasting are not broken.
        let breaks = columns(word) > others && !word.contains('`') && !word.starts_with("--");
        let pieces: Vec<&str> =
            if breaks { word.split_inclusive(',').collect() } else { vec![word] };
        for (at, piece) in pieces.into_iter().enumerate() {
            let room = if lines.len() == 1 { first } else { others };
            let blank = usize::from(at == 0 && !is_first_word);
            if used + blank + columns(piece) > room && used > 0 {
                lines.push(String::new());
                used = 0;
            } else if blank > 0 {
                lines.last_mut().expect("there is one").push(' ');
                used += blank;
            }
            lines.last_mut().expect("there is one").push_str(piece);
            used += columns(piece);
            is_first_word = false;
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

/// Whether a word is an option, which may be pasted with its value.
fn takes_value(word: &str) -> bool {
    word.starts_with("--")
        && word.len() > 2
        && word.ends_with(char::is_alphanumeric)
        && !word.contains(' ')
}

/// Returns the unbreakable parts: words, an option with its value, and text between backquotes.
fn words(text: &str) -> Vec<&str> {
    let paired = text.matches('`').count().is_multiple_of(2);
    let (mut found, mut begin, mut quoted) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '`' => quoted = paired && !quoted,
            ' ' if !quoted && !takes_value(&text[begin..at]) => {
                found.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    found.push(&text[begin..]);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_on_below_their_value() {
        for (text, shown) in [
            ("short", "short"),
            ("one two three four", "one two\n  three\n  four"),
            ("  a  bc de fgh\nxy\n", "  a  bc de\n     fgh\nxy\n"),
            ("! a  bc de fgh", "! a  bc de\n     fgh"),
            ("ab 1,2,3,4,5,6,7,8", "ab 1,2,3,\n  4,5,6,7,\n  8"),
            ("do `virsh start x` now", "do\n  `virsh start x`\n  now"),
            ("try --gpus 2", "try\n  --gpus 2"),
            ("it`s one two three", "it`s one\n  two\n  three"),
        ] {
            assert_eq!(fit(text, Some(10)), shown, "{text}");
            assert_eq!(fit(text, None), text);
        }
        assert_eq!(lines("a bcd\nef", 4), ["a", "bcd", "ef"]);
        assert_eq!(lines("", 4), [""]);
    }
}
