//! Errors for programs: with `--json` an error is the only document on standard output, and is not
//! repeated on standard error.

use super::codes::{Class, code};
use super::error::ErrorParts;
use super::output::{self, Output};
use clap::error::ErrorKind;
use serde::Serialize;
use std::ffi::OsString;

const FORMAT: &str = "gpuvm-error";

/// An error as a document.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Failure {
    /// Its stable name, as gpuvm-codes(7) lists it.
    pub code: &'static str,
    /// The failure, with the value and its place.
    pub message: String,
    /// The causes, level by level, and the named objects.
    pub causes: Vec<String>,
    /// The remedy.
    pub hint: Option<String>,
    /// The commands of the hint, which can be run as they are.
    pub commands: Vec<String>,
}

impl Failure {
    /// The document of an error.
    pub fn of(error: &anyhow::Error) -> Failure {
        Failure::of_parts(code(error), ErrorParts::of(error))
    }

    /// The document of a command line that cannot be read.
    pub fn of_usage(error: &clap::Error) -> Failure {
        let text = error.render().to_string();
        let shows_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
        let (text, usage) = text.split_once("\nUsage: ").unwrap_or((&text, ""));
        let message = if shows_help { "error: no verb" } else { text };
        let (message, tips) = message.split_once("\n\n").unwrap_or((message, ""));
        let usage = usage.lines().next().filter(|line| !line.is_empty());
        let says = |line: &&str| !line.is_empty() && !line.starts_with("For more information");
        let tips = tips.lines().map(str::trim).filter(says);
        let tips = tips.map(|line| line.strip_prefix("tip: ").unwrap_or(line).to_owned());
        let hints: Vec<String> = tips.chain(usage.map(|line| format!("usage: {line}"))).collect();
        let parts = ErrorParts {
            message: message.strip_prefix("error: ").unwrap_or(message).trim_end().to_owned(),
            causes: Vec::new(),
            hint: Some(hints.join("; ")).filter(|hint| !hint.is_empty()),
            command: None,
            more: Vec::new(),
        };
        Failure::of_parts(Class::Usage.into(), parts)
    }

    /// The document of an internal error.
    pub fn internal(message: &str) -> Failure {
        let message = format!("internal error: {message}");
        let (causes, more) = (Vec::new(), Vec::new());
        let parts = ErrorParts { message, causes, hint: None, command: None, more };
        Failure::of_parts(Class::Internal.into(), parts)
    }

    /// The document of the parts of an error.
    fn of_parts(code: &'static str, parts: ErrorParts) -> Failure {
        let offered = |text: &str| output::offered_text(text);
        let mut lines = parts.message.lines().map(str::trim);
        let message = lines.next().unwrap_or_default().to_owned();
        let named = lines.map(str::to_owned);
        let causes = parts.causes.iter().flat_map(|cause| cause.lines()).map(str::trim);
        let causes = named.chain(causes.map(str::to_owned)).filter(|cause| !cause.is_empty());
        let hints: Vec<String> = parts.hint.into_iter().chain(parts.more).collect();
        let hint = (!hints.is_empty()).then(|| offered(&hints.join("; ")));
        let command = parts.command.map(|command| offered(&format!("`{command}`")));
        let texts = [command.as_deref(), hint.as_deref()];
        let mut commands: Vec<String> = Vec::new();
        for found in texts.into_iter().flatten().flat_map(commands_in) {
            if !commands.contains(&found) {
                commands.push(found);
            }
        }
        Failure { code, message, causes: causes.collect(), hint, commands }
    }

    /// Prints it. A failure to print is ignored: the exit code still reports the error.
    pub fn print(&self) {
        let _ = Output { json: true, quiet: true }.json(FORMAT, self);
    }
}

/// Returns the commands in a hint: texts between backquotes that start with a program's name.
fn commands_in(hint: &str) -> Vec<String> {
    let quoted = hint.split('`').skip(1).step_by(2);
    // A single word is a name, not a command, and capital letters are placeholders.
    let is_command = |text: &&str| {
        let is_name = text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '/');
        let program = text.split(' ').next().unwrap_or_default();
        // `set: NAME` is a line of a file.
        is_name && text.contains(' ') && !text.contains("...") && !program.ends_with(':')
    };
    quoted.filter(is_command).map(str::to_owned).collect()
}

/// Whether a command line that cannot be parsed has `--json`.
pub fn wants_json(words: &[OsString]) -> bool {
    words.iter().skip(1).take_while(|word| *word != "--").any(|word| word == "--json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_file_is_no_command() {
        let hint = "add `set: NAME` to the file, or run `gpuvm get a`";
        assert_eq!(commands_in(hint), ["gpuvm get a"]);
    }
}
