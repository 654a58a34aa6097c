//! Where answers and everything else go: the answer to standard output, the rest to standard error. Only this module and
//! `console`, which is the guest's own terminal, write there; what others may have put into a text is made harmless here.

use super::args::Global;
use super::printable::{Form, escaped, redacted, redacted_urls};
use super::table::Table;
use super::{colour, offer, wrap};
use crate::shell::word;
use serde::Serialize;
use std::borrow::Cow;
use std::io::{BufRead as _, Read as _, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use terminal_size::terminal_size_of;

/// Bytes of an answer that are read.
const MOST_TYPED: u64 = 4096;

/// Version of the JSON documents.
pub const VERSION: u32 = 1;

/// How a command begins that is offered, where the connection is of another machine.
static AWAY: OnceLock<String> = OnceLock::new();

/// How this run prints.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// Print JSON instead of text.
    pub json: bool,
    /// Print no progress and no warnings.
    pub quiet: bool,
}

/// What is printed as JSON: it has a schema, which [`super::schema`] lists by the name of the document.
#[cfg(feature = "schema")]
pub trait Answer: Serialize + schemars::JsonSchema {}
#[cfg(feature = "schema")]
impl<T: Serialize + schemars::JsonSchema> Answer for T {}
/// What is printed as JSON.
#[cfg(not(feature = "schema"))]
pub trait Answer: Serialize {}
#[cfg(not(feature = "schema"))]
impl<T: Serialize> Answer for T {}

/// A JSON document: its name and version, then the answer's own fields.
#[derive(Debug, Serialize)]
pub struct Document<'a, T> {
    /// Its name.
    format: &'static str,
    /// The version of its fields; new ones are no new version.
    version: u32,
    /// The answer, which is a JSON object.
    #[serde(flatten)]
    answer: &'a T,
}

impl<'a, T> Document<'a, T> {
    /// Takes an answer that is a JSON object.
    pub fn new(format: &'static str, answer: &'a T) -> Document<'a, T> {
        Document { format, version: VERSION, answer }
    }
}

impl Output {
    /// How these arguments want it.
    pub fn new(global: &Global) -> Output {
        Output { json: global.json, quiet: global.quiet }
    }

    /// Prints the answer as text, no line wider than the terminal; adds a newline where it has none.
    pub fn text(self, text: &str) -> std::io::Result<()> {
        let text = offered(redacted(text));
        let text = escaped(&text, Form::Text);
        let on = colour::is_on(&std::io::stdout());
        print(&colour::headlines(&wrap::fit(&text, width()), on))
    }

    /// Prints text for other programs: scripts, pages, diffs. No line of it is broken.
    pub fn verbatim(self, text: &str) -> std::io::Result<()> {
        print(&escaped(&offered(redacted(text)), Form::Text))
    }

    /// Prints a list.
    pub fn table(self, table: &Table) -> std::io::Result<()> {
        // Its cells have been looked through for secrets, each by itself.
        print_marked(&offered(table.text(width()).into()))
    }

    /// Prints text that fits the terminal already and has marks, which the texts of others in it have not.
    pub fn marked(self, text: &str) -> std::io::Result<()> {
        print_marked(&offered(redacted(text)))
    }

    /// Prints the answer as a JSON document of this name.
    pub fn json<T: Answer>(self, format: &'static str, value: &T) -> std::io::Result<()> {
        self.print_json(&Document::new(format, value))
    }

    /// Prints an answer that is a JSON array, whose schema has this name.
    pub fn json_rows<T: Answer>(self, schema: &str, value: &T) -> std::io::Result<()> {
        let _ = schema; // a test reads it here and looks it up
        self.print_json(value)
    }

    /// Prints JSON.
    fn print_json<T: Serialize>(self, value: &T) -> std::io::Result<()> {
        let text = serde_json::to_string_pretty(value).map_err(std::io::Error::other)?;
        print(&escaped(&shown_in_json(&text), Form::Json))
    }

    /// Prints one of several answers as a JSON document in one line.
    pub fn json_line<T: Answer>(self, format: &'static str, value: &T) -> std::io::Result<()> {
        let document = Document::new(format, value);
        let text = serde_json::to_string(&document).map_err(std::io::Error::other)?;
        print(&escaped(&shown_in_json(&text), Form::Json))
    }

    /// Prints a definition that the caller goes on using, made of what the caller gave: whole, with what is secret in it.
    pub fn document(self, xml: &str) -> std::io::Result<()> {
        print(&escaped(xml, Form::Xml))
    }

    /// The same in an answer as JSON.
    pub fn json_document<T: Answer>(self, format: &'static str, value: &T) -> std::io::Result<()> {
        let document = Document::new(format, value);
        let text = serde_json::to_string_pretty(&document).map_err(std::io::Error::other)?;
        print(&escaped(&text, Form::Json))
    }

    /// Prints JSON that is made already.
    pub fn json_text(self, text: &str) -> std::io::Result<()> {
        print(&escaped(text, Form::Json))
    }

    /// Prints progress.
    pub fn progress(self, text: &str) {
        if !self.quiet {
            tell(text);
        }
    }

    /// Prints a warning.
    pub fn warning(self, text: &str) {
        if !self.quiet {
            tell(&format!("warning: {text}"));
        }
    }
}

/// Writes to standard output; adds a newline where there is none.
fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// Says that the connection at this URI is of another machine: commands that are offered lead there, not here.
pub fn leads_away(uri: &str) {
    // There is one connection in a run.
    let _ = AWAY.set(format!("`gpuvm --connect {} ", word(uri)));
}

/// A text with the commands that can be run as they are, without secrets.
pub fn offered_text(text: &str) -> String {
    offered(redacted(text)).into_owned()
}

/// Prints text with marks.
fn print_marked(text: &str) -> std::io::Result<()> {
    let parts = text.split_inclusive(colour::is_mark).map(|part| {
        let own = part.strip_suffix(colour::is_mark).unwrap_or(part);
        format!("{}{}", escaped(own, Form::Text), &part[own.len()..])
    });
    let text: String = parts.collect();
    print(&colour::marked(&text, colour::is_on(&std::io::stdout())))
}

/// A text whose commands can be run as they are: about the host that was asked about, on the machine that it is about.
fn offered(text: Cow<'_, str>) -> Cow<'_, str> {
    led(offer::carried(text))
}

/// A JSON document with what is secret in its strings hidden, and with their commands as they can be run. Each string by
/// itself: one that begins as a secret does and does not end so would hide the rest of the document.
fn shown_in_json(text: &str) -> Cow<'_, str> {
    if !text.contains(offer::OURS) && matches!(redacted(text), Cow::Borrowed(_)) {
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
        let made = serde_json::from_str(string).ok().and_then(|plain: String| {
            let told = redacted(&plain);
            let told = if told.contains(offer::OURS) { offered(told) } else { told };
            if told == plain { None } else { serde_json::to_string(&told).ok() }
        });
        shown.push_str(made.as_deref().unwrap_or(string));
        rest = after;
    }
    shown.push_str(rest);
    Cow::Owned(shown)
}

/// A text whose commands lead to the machine that it is about.
fn led(text: Cow<'_, str>) -> Cow<'_, str> {
    let Some(away) = AWAY.get() else { return text };
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

/// Writes to standard error, also where little is to be said: errors, and what a question is about. Adds a newline where
/// there is none.
pub fn tell(text: &str) {
    let text = offered(redacted(text));
    let text = escaped(&text, Form::Text);
    let text = wrap::fit(&text, columns(std::io::stderr()));
    let text = colour::headlines(&text, colour::is_on(&std::io::stderr()));
    let end = if text.ends_with('\n') { "" } else { "\n" };
    // Who reads nothing is told nothing.
    let _ = write!(std::io::stderr(), "{text}{end}");
}

/// Writes a line of what is done to standard error: never broken, and without secrets.
pub fn trace(line: &str) {
    let line = redacted(line);
    let line = escaped(redacted_urls(&line).as_ref(), Form::Text).into_owned();
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Asks a question at the terminal; what is typed, without the white space around it.
pub fn ask(question: &str) -> std::io::Result<String> {
    let mut err = std::io::stderr().lock();
    write!(err, "{} ", escaped(&redacted(question), Form::Text))?;
    err.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().take(MOST_TYPED).read_line(&mut answer)?;
    Ok(answer.trim().to_owned())
}

/// Asks a question that is answered by yes or no; anything else is a no.
pub fn ask_yes(question: &str) -> std::io::Result<bool> {
    let answer = ask(&format!("{question} [y/N]"))?;
    Ok(matches!(answer.to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// Columns of the terminal that answers go to: `COLUMNS`, else what it says; none: `COLUMNS` is not set and it is no terminal,
/// and no line is broken, so that a program that reads them gets a record a line.
pub fn width() -> Option<usize> {
    columns(std::io::stdout())
}

/// Columns of a stream.
fn columns(stream: impl AsFd) -> Option<usize> {
    let asked = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let asked = asked.filter(|columns| *columns > 0);
    let told = || terminal_size_of(stream).map(|(width, _)| usize::from(width.0));
    asked.or_else(told)
}
