//! Output: the answer goes to standard output, everything else to standard error. Only this module,
//! `console`, the guest's own terminal, and the screen of `top` write there; foreign text is
//! escaped here.

use super::printable::{Form, escaped, redacted, redacted_urls};
use super::table::Table;
use super::{colour, offer, wrap};
use crate::shell::word;
use serde::Serialize;
use std::borrow::Cow;
use std::io::{BufRead as _, IsTerminal as _, Read as _, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use terminal_size::terminal_size_of;

/// The most bytes read of a typed answer.
const MOST_TYPED: u64 = 4096;

/// Version of the JSON documents.
pub const VERSION: u32 = 1;

/// The start of suggested commands if the connection is to another machine.
static AWAY: OnceLock<String> = OnceLock::new();

/// How this run prints.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// Print JSON instead of text.
    pub json: bool,
    /// Print no progress and no warnings.
    pub quiet: bool,
}

/// A value printed as JSON; it has a schema, listed in [`super::schema`] by document name.
#[cfg(feature = "schema")]
pub trait Answer: Serialize + schemars::JsonSchema {}
#[cfg(feature = "schema")]
impl<T: Serialize + schemars::JsonSchema> Answer for T {}
/// A value printed as JSON.
#[cfg(not(feature = "schema"))]
pub trait Answer: Serialize {}
#[cfg(not(feature = "schema"))]
impl<T: Serialize> Answer for T {}

/// A JSON document: its name and version, then the answer's own fields.
#[derive(Debug, Serialize)]
pub struct Document<'a, T> {
    format: &'static str,
    /// The version of its fields; new fields do not change it.
    version: u32,
    /// The answer, which is a JSON object.
    #[serde(flatten)]
    answer: &'a T,
}

impl<'a, T> Document<'a, T> {
    /// Wraps an answer that is a JSON object.
    pub fn new(format: &'static str, answer: &'a T) -> Document<'a, T> {
        Document { format, version: VERSION, answer }
    }
}

impl Output {
    /// Prints the answer as text, no line wider than the terminal; adds a newline if missing.
    pub fn text(self, text: &str) -> std::io::Result<()> {
        let text = offered(redacted(text));
        let text = escaped(&text, Form::Text);
        let on = colour::is_on(&std::io::stdout());
        print(&colour::headlines(&wrap::fit(&text, width()), on))
    }

    /// Prints text for other programs: scripts, pages, diffs. Lines are not wrapped.
    pub fn verbatim(self, text: &str) -> std::io::Result<()> {
        print(&escaped(&offered(redacted(text)), Form::Text))
    }

    /// Prints text that another program reads, unchanged; a terminal gets it escaped.
    pub fn exact(self, text: &str) -> std::io::Result<()> {
        if std::io::stdout().is_terminal() { self.verbatim(text) } else { print(text) }
    }

    /// Passes on the output of a program in a guest, byte by byte.
    pub fn passed_on(self, out: &[u8], err: &[u8]) -> std::io::Result<()> {
        std::io::stdout().write_all(out)?;
        std::io::stderr().write_all(err)
    }

    /// Prints a list.
    pub fn table(self, table: &Table) -> std::io::Result<()> {
        // Secrets were removed from each cell separately.
        print_marked(&offered(table.text(width()).into()))
    }

    /// Prints text that already fits the terminal and has marks; foreign text in it must have none.
    pub fn marked(self, text: &str) -> std::io::Result<()> {
        print_marked(&offered(redacted(text)))
    }

    /// Returns text with marks, as [`Output::marked`] prints it, for a screen that is drawn.
    pub fn drawn(self, text: &str) -> String {
        shown_marked(&offered(redacted(text)))
    }

    /// Prints the answer as a JSON document of this name.
    pub fn json<T: Answer>(self, format: &'static str, value: &T) -> std::io::Result<()> {
        self.print_json(&Document::new(format, value))
    }

    /// Prints an answer that is a JSON array, whose schema has this name.
    pub fn json_rows<T: Answer>(self, schema: &str, value: &T) -> std::io::Result<()> {
        let _ = schema; // a test finds it here and looks it up
        self.print_json(value)
    }

    /// Returns the document that [`Output::json`] prints.
    pub fn json_string<T: Answer>(
        self,
        format: &'static str,
        value: &T,
    ) -> std::io::Result<String> {
        json_string(&Document::new(format, value))
    }

    /// Returns the array that [`Output::json_rows`] prints.
    pub fn json_rows_string<T: Answer>(self, schema: &str, value: &T) -> std::io::Result<String> {
        let _ = schema; // as there
        json_string(value)
    }

    fn print_json<T: Serialize>(self, value: &T) -> std::io::Result<()> {
        print(&json_string(value)?)
    }

    /// Prints one of several answers as a JSON document in one line.
    pub fn json_line<T: Answer>(self, format: &'static str, value: &T) -> std::io::Result<()> {
        let document = Document::new(format, value);
        let text = serde_json::to_string(&document).map_err(std::io::Error::other)?;
        print(&escaped(&shown_in_json(&text), Form::Json))
    }

    /// Prints a definition for further use, made from the caller's input: complete, including
    /// secrets.
    pub fn document(self, xml: &str) -> std::io::Result<()> {
        print(&escaped(xml, Form::Xml))
    }

    /// Prints a JSON answer with such a definition.
    pub fn json_document<T: Answer>(self, format: &'static str, value: &T) -> std::io::Result<()> {
        let document = Document::new(format, value);
        let text = serde_json::to_string_pretty(&document).map_err(std::io::Error::other)?;
        print(&escaped(&text, Form::Json))
    }

    /// Prints finished JSON.
    pub fn json_text(self, text: &str) -> std::io::Result<()> {
        print(&escaped(text, Form::Json))
    }

    /// Prints progress.
    pub fn progress(self, text: &str) {
        if !self.quiet {
            report(text);
        }
    }

    /// Prints a warning.
    pub fn warning(self, text: &str) {
        if !self.quiet {
            report(&format!("warning: {text}"));
        }
    }
}

fn json_string<T: Serialize>(value: &T) -> std::io::Result<String> {
    let text = serde_json::to_string_pretty(value).map_err(std::io::Error::other)?;
    Ok(escaped(&shown_in_json(&text), Form::Json).into_owned())
}

/// Writes to standard output; adds a newline if missing.
fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// Records that the connection at this URI is to another machine, so that suggested commands
/// connect there.
pub fn leads_away(uri: &str) {
    // A run has only one connection.
    let _ = AWAY.set(format!("`gpuvm --connect {} ", word(uri)));
}

/// Returns a text with its commands made pasteable, without secrets.
pub fn offered_text(text: &str) -> String {
    offered(redacted(text)).into_owned()
}

fn print_marked(text: &str) -> std::io::Result<()> {
    print(&shown_marked(text))
}

/// Returns a text with its marks as colours, and everything else escaped.
fn shown_marked(text: &str) -> String {
    let parts = text.split_inclusive(colour::is_mark).map(|part| {
        let own = part.strip_suffix(colour::is_mark).unwrap_or(part);
        format!("{}{}", escaped(own, Form::Text), &part[own.len()..])
    });
    let text: String = parts.collect();
    colour::marked(&text, colour::is_on(&std::io::stdout())).into_owned()
}

/// Returns a text whose commands can be pasted: with the host and connection of this call.
fn offered(text: Cow<'_, str>) -> Cow<'_, str> {
    offer::unnamed(led(offer::carried(text)))
}

/// Hides secrets in the strings of a JSON document, and makes their commands pasteable. Each string
/// separately: an unterminated secret would otherwise hide the rest of the document.
fn shown_in_json(text: &str) -> Cow<'_, str> {
    let is_plain = !offer::has_commands(text)
        && matches!(offer::unnamed(Cow::Borrowed(text)), Cow::Borrowed(_));
    if is_plain && matches!(redacted(text), Cow::Borrowed(_)) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 256);
    let mut rest = text;
    while let Some(begin) = rest.find('"') {
        let mut bytes = rest.bytes().enumerate().skip(begin + 1);
        let mut end = rest.len();
        while let Some((at, byte)) = bytes.next() {
            match byte {
                b'\\' => drop(bytes.next()),
                b'"' => {
                    end = at + 1;
                    break;
                }
                _ => {}
            }
        }
        let (string, after) = (&rest[begin..end], &rest[end..]);
        shown.push_str(&rest[..begin]);
        let made = unquoted(string).and_then(|plain| {
            let message = redacted(&plain);
            let message = if offer::has_commands(&message) { offered(message) } else { message };
            let message = offer::unnamed(message);
            if message == plain { None } else { serde_json::to_string(&message).ok() }
        });
        shown.push_str(made.as_deref().unwrap_or(string));
        rest = after;
    }
    shown.push_str(rest);
    Cow::Owned(shown)
}

/// The text of a JSON string, which is read only where it has escapes; none where it has no end.
fn unquoted(string: &str) -> Option<Cow<'_, str>> {
    let plain = string.strip_prefix('"').and_then(|string| string.strip_suffix('"'));
    match plain {
        Some(plain) if !plain.contains('\\') => Some(Cow::Borrowed(plain)),
        _ => serde_json::from_str(string).ok().map(Cow::Owned),
    }
}

/// Returns a text whose commands connect to the machine it is about.
fn led(text: Cow<'_, str>) -> Cow<'_, str> {
    let Some(away) = AWAY.get() else { return text };
    let away = if offer::is_nameless() { "`gpuvm --connect URI " } else { away.as_str() };
    let mut parts = text.split("`gpuvm ");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let named = ["--", "recover", "..."].iter().any(|word| part.starts_with(word));
        let command = part.split('`').next().unwrap_or_default();
        let named = named || command.contains("--connect ");
        shown.push_str(if named { "`gpuvm " } else { away });
        shown.push_str(part);
    }
    Cow::Owned(shown)
}

/// Writes to standard error, even with `--quiet`: errors, and the text before a question. Adds a
/// newline if missing.
pub fn report(text: &str) {
    let text = offered(redacted(text));
    let text = escaped(&text, Form::Text);
    let text = wrap::fit(&text, columns(std::io::stderr()));
    let text = colour::headlines(&text, colour::is_on(&std::io::stderr()));
    let end = if text.ends_with('\n') { "" } else { "\n" };
    // A closed standard error is ignored.
    let _ = write!(std::io::stderr(), "{text}{end}");
}

/// Writes a trace line to standard error: not wrapped, and without secrets.
pub fn trace(line: &str) {
    let line = redacted(line);
    let line = escaped(redacted_urls(&line).as_ref(), Form::Text).into_owned();
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Asks a question at the terminal; returns the trimmed input.
pub fn ask(question: &str) -> std::io::Result<String> {
    let mut err = std::io::stderr().lock();
    write!(err, "{} ", escaped(&redacted(question), Form::Text))?;
    err.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().take(MOST_TYPED).read_line(&mut answer)?;
    Ok(answer.trim().to_owned())
}

/// Asks a question answered by yes or no; anything else means no.
pub fn ask_yes(question: &str) -> std::io::Result<bool> {
    let answer = ask(&format!("{question} [y/N]"))?;
    Ok(matches!(answer.to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// Returns the width of standard output: `COLUMNS`, otherwise that of the terminal; `None` if
/// neither, and lines are not wrapped, so that programs get one record per line.
pub fn width() -> Option<usize> {
    columns(std::io::stdout())
}

/// Returns the width of a stream.
fn columns(stream: impl AsFd) -> Option<usize> {
    let asked = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let asked = asked.filter(|columns| *columns > 0);
    let of_terminal = || terminal_size_of(stream).map(|(width, _)| usize::from(width.0));
    asked.or_else(of_terminal)
}
