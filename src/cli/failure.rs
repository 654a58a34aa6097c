//! Errors for programs: with `--json` an error is the only document on standard output, and is not
//! repeated on standard error.

use super::args::{Cli, whole};
use super::codes::{Class, code};
use super::error::Told;
use super::output::{self, Output};
use crate::shell::word;
use clap::CommandFactory as _;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use serde::Serialize;
use std::ffi::OsString;

/// Name of the document.
const FORMAT: &str = "gpuvm-error";

/// An error as a document.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Failure {
    /// Its stable name, as gpuvm-codes(7) lists it.
    pub code: &'static str,
    /// What failed, with the value and its place.
    pub message: String,
    /// Why, level by level, and what it names.
    pub causes: Vec<String>,
    /// What would help.
    pub hint: Option<String>,
    /// The commands of the hint, which can be run as they are.
    pub commands: Vec<String>,
}

impl Failure {
    /// The document of an error.
    pub fn of(error: &anyhow::Error) -> Failure {
        Failure::told(code(error), Told::of(error))
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
        let told = Told {
            message: message.strip_prefix("error: ").unwrap_or(message).trim_end().to_owned(),
            causes: Vec::new(),
            hint: Some(hints.join("; ")).filter(|hint| !hint.is_empty()),
            command: None,
        };
        Failure::told(Class::Usage.into(), told)
    }

    /// The document of an internal error.
    pub fn internal(message: &str) -> Failure {
        let message = format!("internal error: {message}");
        let told = Told { message, causes: Vec::new(), hint: None, command: None };
        Failure::told(Class::Internal.into(), told)
    }

    /// The document of the parts of an error.
    fn told(code: &'static str, told: Told) -> Failure {
        let offered = |text: &str| output::offered_text(text);
        let mut lines = told.message.lines().map(str::trim);
        let message = lines.next().unwrap_or_default().to_owned();
        let named = lines.map(str::to_owned);
        let causes = told.causes.iter().flat_map(|cause| cause.lines()).map(str::trim);
        let causes = named.chain(causes.map(str::to_owned)).filter(|cause| !cause.is_empty());
        let hint = told.hint.map(|hint| offered(&hint));
        let command = told.command.map(|command| offered(&format!("`{command}`")));
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

/// Names that other tools use for our verbs, with these verbs.
const VERBS_ELSEWHERE: [(&[&str], &str); 24] = [
    (&["launch", "new", "run", "install", "deploy", "add", "up", "define"], "gpuvm create"),
    (&["destroy", "kill", "poweroff"], "gpuvm stop --force"),
    (&["destroy", "remove", "purge", "undefine", "terminate"], "gpuvm delete"),
    (&["shutdown", "halt", "down", "suspend"], "gpuvm stop"),
    (&["reboot", "reset"], "gpuvm restart"),
    (&["boot", "resume", "poweron"], "gpuvm start"),
    (&["ps", "vm", "vms", "guests", "domains", "status", "state"], "gpuvm list"),
    (&["describe", "inspect", "dominfo", "status", "state"], "gpuvm show"),
    (&["shell", "exec", "login", "connect"], "gpuvm ssh"),
    (&["attach", "serial", "tty"], "gpuvm console"),
    (&["copy", "scp", "push", "pull", "transfer"], "gpuvm cp"),
    (&["pull", "images"], "gpuvm image"),
    (&["net", "networks"], "gpuvm network"),
    (&["diff", "validate", "reconcile", "sync"], "gpuvm apply --dry-run"),
    (&["stats", "top"], "gpuvm list"),
    (&["address", "addr", "domifaddr"], "gpuvm ip"),
    (&["topology", "topo", "numa", "layout"], "gpuvm host show"),
    (&["bind", "vfio", "pci", "lspci"], "gpuvm device list"),
    (&["dumpxml", "xml"], "gpuvm export"),
    (
        &["resize", "modify", "edit", "config", "scale", "setvcpus", "setmem", "setmaxmem"],
        "gpuvm set",
    ),
    (&["pin", "optimize", "optimise", "fix"], "gpuvm tune"),
    (&["mv", "domrename"], "gpuvm rename"),
    (&["enable", "disable"], "gpuvm autostart"),
    (&["move", "migrate", "backup"], "gpuvm export --bundle"),
];

/// Suggests our verbs for a word that other tools use for them; by spelling alone clap would
/// suggest others.
pub fn name_the_verb(error: &mut clap::Error) {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return;
    };
    let found = VERBS_ELSEWHERE.iter().filter(|(words, _)| words.contains(&word.as_str()));
    let tips: Vec<StyledStr> = found.map(|(_, ours)| tip(ours).into()).collect();
    // Only at the top level: `network add` is something else.
    let is_top = matches!(error.get(ContextKind::Usage), Some(ContextValue::StyledStr(usage))
        if usage.to_string().contains("gpuvm [OPTIONS] <COMMAND>"));
    if is_top && !tips.is_empty() {
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
}

/// Words that other tools take where ours takes another, with the verb and what to write instead.
const WORDS_ELSEWHERE: [(&str, &[&str], &str); 9] = [
    ("create", &["-f", "--file", "--filename"], "`gpuvm apply -f FILE` makes the guests of a file"),
    ("create", &["--ram", "--mem"], "`--memory SIZE`, such as 16G"),
    ("create", &["--cdrom", "--location", "--import"], "`--image NAME` or `--disk PATH` boots it"),
    (
        "create",
        &["--hostdev", "--host-device", "--device"],
        "`--gpu`, `--nic` and `--nvme` pass a device through",
    ),
    ("create", &["--os-variant", "--osinfo", "--os-type"], "leave it out: no option depends on it"),
    ("list", &["-a", "--all"], "leave it out: all domains are listed"),
    (
        "delete",
        &["-f", "--file", "--filename"],
        "`gpuvm apply -f FILE --prune` deletes guests of a file",
    ),
    (
        "plan",
        &["-f", "--file", "--filename"],
        "`gpuvm apply -f FILE --dry-run` plans the guests of a file",
    ),
    ("show", &["-o", "--output"], "`--json`, or `gpuvm get NAME -o yaml`"),
];

/// What to write in place of a word that a verb does not take; none: it is not known.
fn instead(verb: &clap::Command, unknown: &str) -> Option<String> {
    let elsewhere = WORDS_ELSEWHERE
        .iter()
        .find(|(name, words, _)| *name == verb.get_name() && words.contains(&unknown));
    let is_option = unknown.starts_with('-');
    let takes_guest = verb.get_positionals().any(|arg| arg.get_id() == "name");
    match (elsewhere, verb.get_name()) {
        (Some((.., tip)), _) => Some((*tip).to_owned()),
        (None, "apply") if !is_option => Some(format!("`-f {}` names the file", word(unknown))),
        (None, "make-room") if unknown.parse::<u32>().is_ok() => {
            Some(format!("`--gpus {unknown}`"))
        }
        (None, "ssh") if !is_option => Some(format!("`-- {}` runs it in the guest", word(unknown))),
        (None, _) if unknown == "--name" && takes_guest => {
            Some("leave `--name` out: the name follows the verb".to_owned())
        }
        _ => None,
    }
}

/// Suggests `--name` where the name of a planned guest is given without it, and ours for words of
/// other tools.
pub fn name_the_guest(error: &mut clap::Error, words: &[OsString]) {
    if error.kind() == ErrorKind::MissingRequiredArgument {
        // A guest is named behind `export` only for its bundle.
        let lacks = error.get(ContextKind::InvalidArg).map(ToString::to_string);
        if lacks.is_some_and(|lacks| lacks.starts_with("--bundle ")) {
            let tip = "`--name NAME` names a guest that is planned";
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
        }
        return;
    }
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return };
    let root = whole();
    let mut given = words.iter().skip(1).filter_map(|word| word.to_str());
    let verb = given.find_map(|word| root.find_subcommand(word));
    let verb = verb.filter(|_| error.kind() == ErrorKind::UnknownArgument);
    if let Some(tip) = verb.and_then(|verb| instead(verb, unknown)) {
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    } else if unknown.starts_with('-')
        && verb.is_some_and(|verb| ["create", "plan"].contains(&verb.get_name()))
    {
        // clap would offer the option as the guest's name.
        error.remove(ContextKind::Suggested);
    }
}

/// Returns a command with the description of its verb.
fn tip(ours: &str) -> String {
    let root = Cli::command();
    let mut words = ours.split(' ').skip(1).take_while(|word| !word.starts_with('-'));
    let verb = words.try_fold(&root, |at, word| at.find_subcommand(word));
    let about = verb.and_then(clap::Command::get_about).map(ToString::to_string);
    format!("`{ours}`: {}", about.unwrap_or_default())
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
