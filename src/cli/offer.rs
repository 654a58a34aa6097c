//! Commands suggested to the caller: built from the caller's own arguments, so that they refer to
//! the same host, connection and guest, and can be pasted. The only place that writes such
//! commands.

use super::args::{Cli, called_as_vendor, is_about_records};
use super::options::{Edit, changes, text_of};
use crate::shell::word;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory as _};
use gpuvm_ops::error::NoPlace;
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Component, Path};
use std::sync::{Mutex, OnceLock, PoisonError};

static GIVEN: OnceLock<ArgMatches> = OnceLock::new();

/// Options that select the subject of an answer, in their order in suggested commands.
const CARRIED: [&str; 5] = ["connect", "host", "domain_xml", "assume_empty", "assume"];

/// The verb whose guests are only drawn: without a picture it refuses options about them.
const DRAWS_GUESTS: [&str; 2] = ["host", "show"];

const NAMELESS: [&str; 3] = ["qemu:///system", "qemu:///session", "test:///default"];

/// Options that only make sense of a recorded host.
const OF_RECORDS: [&str; 2] = ["--host", "--domain-xml"];

/// The option that makes `host pages` change the machine rather than show a record.
const CHANGES: &str = "--count";

/// The words after a command that is for the machine itself.
const NOT_RECORDED: &str = " without --host";

/// The words after a command that say where it is to be run.
const PLACED: [&str; 4] = [NOT_RECORDED, " on that ", " on the host", " there"];

/// The words after a command for another host, where nothing of this call holds.
const ELSEWHERE: &str = " on the other host";

/// The words after a command that changes the host, if that is a recorded one.
const ON_THAT_MACHINE: &str = " on that machine";

/// Verbs that are about no host.
const OF_NO_HOST: [&str; 3] = ["completions", "man", "schema"];

/// The start of one of our commands in the middle of a command line.
const NEXT_OURS: &str = " gpuvm ";

/// The default profile under the name `nvidia-vm`.
const VENDOR_PROFILE: &str = "--profile nvidia-vm";

/// The start of one of our commands in a text.
const OURS: &str = "`gpuvm ";

/// The start of a command of libvirt's in a text.
const VIRSH: &str = "`virsh ";
/// The start of such a command whose output is a word of another one.
const INNER_VIRSH: &str = "$(virsh ";

/// A command line: the verb's argument definitions and the given values.
#[derive(Debug, Clone)]
pub struct Call {
    /// The words of the verb: `network`, `create`.
    verb: Vec<String>,
    command: &'static Command,
    given: ArgMatches,
    /// Whether the program was called as `nvidia-vm`, with that profile as its default.
    is_vendor: bool,
}

impl Call {
    /// Takes the verb and the given values from a parsed command line of `gpuvm`.
    pub fn new(matches: &ArgMatches) -> Call {
        let (mut verb, mut command, mut given) = (Vec::new(), known(), matches);
        while let Some((name, below)) = given.subcommand() {
            let Some(next) = command.find_subcommand(name) else { break };
            (command, given) = (next, below);
            verb.push(name.to_owned());
        }
        let command = with_arguments(&verb, command);
        Call { verb, command, given: given.clone(), is_vendor: false }
    }

    /// The same command line under the name `nvidia-vm`.
    pub fn as_vendor(self) -> Call {
        Call { is_vendor: true, ..self }
    }

    /// The profile that a command needs to plan the guest of this call; `None` if it takes none, or
    /// names one.
    fn profile(&self, target: &'static Command, names_one: bool) -> Option<String> {
        let takes = || all_of(target).any(|arg| arg.get_long() == Some("profile"));
        (self.is_vendor && !names_one && takes()).then(|| VENDOR_PROFILE.to_owned())
    }

    /// The call with other options: a command that can be pasted.
    pub fn with(&self, edits: &[Edit]) -> String {
        let replaced = |arg: &Arg| {
            let flag = arg.get_long().map(|long| format!("--{long}")).unwrap_or_default();
            edits.iter().any(|edit| {
                edit.flag == flag || Edit::is_of_gpus(&edit.flag) && Edit::is_of_gpus(&flag)
            })
        };
        let mut words: Vec<String> = vec!["gpuvm".into()];
        words.extend(self.verb.iter().cloned());
        let places = self.arguments().filter(|arg| arg.is_positional());
        words.extend(places.flat_map(|arg| self.words(arg)));
        let kept = self.arguments().filter(|arg| !arg.is_positional() && !replaced(arg));
        words.extend(kept.flat_map(|arg| self.words(arg)));
        for Edit { flag, values } in edits {
            match values.as_deref() {
                None => {}
                Some([]) => words.push(flag.to_string()),
                Some(values) => {
                    words.extend(values.iter().flat_map(|value| [flag.to_string(), shown(value)]));
                }
            }
        }
        let names_one = words.iter().any(|word| word == "--profile");
        words.extend(self.profile(self.command, names_one));
        words.join(" ")
    }

    /// Whether its verb has an option.
    fn takes(&self, flag: &str) -> bool {
        all_of(self.command).any(|arg| arg.get_long() == flag.strip_prefix("--"))
    }

    /// Returns a hint with whole commands where it only names an option of this call that is to be
    /// added, as in `--yes does it without asking`, or left out, as in `leave --live out: ..`.
    fn spelled(&self, hint: &str) -> String {
        let part = |part: &str| {
            let (words, rest) = match part.strip_prefix("leave ") {
                Some(part) => part.split_once(" out: ")?,
                None => part.split_once(' ')?,
            };
            let flag = words.strip_prefix("--")?;
            let known = all_of(self.command).find(|arg| arg.get_long() == Some(flag))?;
            let is_switch = matches!(known.get_action(), ArgAction::SetTrue);
            let is_left_out = part.starts_with("leave ");
            let says = rest.starts_with(|first: char| first.is_ascii_lowercase());
            if !(is_switch && says) || self.has(words) != is_left_out {
                return None;
            }
            Some(if is_left_out {
                format!("`{}`: {rest}", self.without(words))
            } else {
                format!("`{} {words}` {rest}", self.with(&[]))
            })
        };
        let parts: Vec<String> =
            hint.split("; ").map(|text| part(text).unwrap_or_else(|| text.to_owned())).collect();
        parts.join("; ")
    }

    fn without(&self, flag: &str) -> String {
        self.without_all(&[flag])
    }

    /// The call without any of these options.
    fn without_all(&self, flags: &[&str]) -> String {
        let mut words: Vec<String> = vec!["gpuvm".into()];
        words.extend(self.verb.iter().cloned());
        let (places, options): (Vec<&Arg>, Vec<&Arg>) =
            self.arguments().partition(|arg| arg.is_positional());
        let is_kept =
            |arg: &&Arg| !flags.iter().any(|flag| arg.get_long() == flag.strip_prefix("--"));
        let kept = options.into_iter().filter(is_kept);
        words.extend(places.into_iter().chain(kept).flat_map(|arg| self.words(arg)));
        let names_one = words.iter().any(|word| word == "--profile");
        words.extend(self.profile(self.command, names_one));
        words.join(" ")
    }

    /// The `create` of the guest that this call describes, on another connection; `None` on that
    /// machine.
    fn create_on(&self, uri: Option<&str>) -> String {
        let (_, target) = verb_of("create");
        let mut words: Vec<String> = ["gpuvm".to_owned(), "create".to_owned()].into();
        words.extend(uri.into_iter().flat_map(|uri| ["-c".to_owned(), shown(uri)]));
        let is_of_create = |arg: &&Arg| {
            let has = |own: &Arg| match arg.get_long() {
                Some(long) => own.get_long() == Some(long),
                None => own.is_positional() && own.get_id() == arg.get_id(),
            };
            !global().any(|own| own.get_id() == arg.get_id()) && all_of(target).any(has)
        };
        let (places, options): (Vec<&Arg>, Vec<&Arg>) =
            self.arguments().filter(is_of_create).partition(|arg| arg.is_positional());
        words.extend(places.into_iter().chain(options).flat_map(|arg| self.words(arg)));
        let names_one = words.iter().any(|word| word == "--profile");
        words.extend(self.profile(target, names_one));
        words.join(" ")
    }

    fn has(&self, flag: &str) -> bool {
        self.arguments().any(|arg| arg.get_long() == flag.strip_prefix("--"))
    }

    fn arguments(&self) -> impl Iterator<Item = &'static Arg> {
        let is_given = |arg: &&Arg| {
            let id = arg.get_id().as_str();
            self.given.try_contains_id(id).unwrap_or(false)
                && self.given.value_source(id) == Some(ValueSource::CommandLine)
        };
        all_of(self.command).filter(is_given)
    }

    /// An argument as it was given; while [`nameless`] lives, without who and where.
    fn words(&self, arg: &Arg) -> Vec<String> {
        let id = arg.get_id().as_str();
        let flag = arg.get_long().map(|long| format!("--{long}"));
        match arg.get_action() {
            ArgAction::SetTrue | ArgAction::SetFalse | ArgAction::Count => {
                return flag.into_iter().collect();
            }
            _ => {}
        }
        let Ok(Some(occurrences)) = self.given.try_get_raw_occurrences(id) else {
            return Vec::new();
        };
        let join = arg.get_value_delimiter().map(String::from);
        let mut words = Vec::new();
        for values in occurrences {
            let values = values.map(|v| v.to_string_lossy().into_owned());
            let values: Vec<String> = values.map(|value| public(id, value)).collect();
            let values = match &join {
                Some(join) => vec![values.join(join)],
                None => values,
            };
            words.extend(flag.clone());
            words.extend(values.iter().map(|value| shown(value)));
        }
        words
    }

    /// Returns a text with its commands adapted to the host and connection of this call.
    pub fn carried<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.virsh() {
            Some(virsh) if text.contains(VIRSH) => {
                let inner = format!("{INNER_VIRSH}{}", &virsh[VIRSH.len()..]);
                let text = text.replace(VIRSH, &virsh).replace(INNER_VIRSH, &inner);
                Cow::Owned(self.with_ours(&text).into_owned())
            }
            _ => self.with_ours(text),
        }
    }

    /// The start of a command of `virsh` on the connection of this call; `None` if it finds that
    /// itself.
    fn virsh(&self) -> Option<String> {
        let given = self.arguments().find(|arg| arg.get_id().as_str() == "connect");
        match given {
            Some(arg) => {
                let uri = self.words(arg).pop()?;
                Some(format!("{VIRSH}-c {uri} "))
            }
            // Without it virsh asks the libvirt of the user.
            None => (!is_root() && std::env::var_os("LIBVIRT_DEFAULT_URI").is_none())
                .then(|| format!("{VIRSH}-c qemu:///system ")),
        }
    }

    /// Returns a text with our commands adapted to the host and connection of this call.
    fn with_ours<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if !text.contains(OURS) {
            return Cow::Borrowed(text);
        }
        let mut parts = text.split(OURS);
        let mut shown = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            shown.push_str(OURS);
            match part.split_once('`') {
                Some((command, rest)) if rest.starts_with(ELSEWHERE) => {
                    shown.push_str(&format!("{command}`{rest}"));
                }
                Some((command, rest)) => {
                    let here = rest.starts_with(NOT_RECORDED);
                    let commands = ours(command);
                    let others: Vec<String> =
                        commands.iter().map(|command| self.about(command, here)).collect();
                    shown.push_str(&others.join(NEXT_OURS));
                    shown.push('`');
                    let is_placed = PLACED.iter().any(|place| rest.starts_with(place));
                    let changes = commands.iter().any(|command| changes_host(command));
                    if self.has("--host") && changes && !is_placed {
                        shown.push_str(ON_THAT_MACHINE);
                    }
                    shown.push_str(rest);
                }
                None => shown.push_str(part),
            }
        }
        Cow::Owned(shown)
    }

    /// Returns the words of a command after `gpuvm`, adding the caller's options that it accepts
    /// and does not have; `here`: it is for the machine itself.
    fn about(&self, command: &str, here: bool) -> String {
        let (verb, target) = verb_of(command);
        let is_named = command.starts_with('-') || command.contains("...") || verb.is_empty();
        if is_named {
            return command.to_owned();
        }
        if here && self.verb == command.split_whitespace().collect::<Vec<_>>() {
            let whole = self.without_all(&OF_RECORDS);
            return whole.strip_prefix("gpuvm ").unwrap_or(&whole).to_owned();
        }
        let changes = command.split_whitespace().any(|word| word == CHANGES);
        let is_picture = command.contains(" --html") || command.contains(" --svg");
        let mut more = Vec::new();
        for id in CARRIED {
            let known = all_of(target).find(|arg| arg.get_id().as_str() == id);
            let takes = match id {
                "host" => !here && !changes && is_about_records(target),
                // The machine itself has its guests and its libvirt.
                "domain_xml" | "assume_empty" | "assume" => {
                    let is_there = self.has("--host") && changes_host(command);
                    let is_taken = verb != DRAWS_GUESTS || is_picture || id == "assume";
                    !here && !is_there && is_taken
                }
                // A journal records its own connection.
                "connect" => verb != ["recover"],
                _ => true,
            };
            let Some(arg) = known.filter(|_| takes) else { continue };
            let long = arg.get_long().map(|long| format!("--{long}")).unwrap_or_default();
            if let Some(given) = self.arguments().find(|arg| arg.get_id().as_str() == id)
                && !command.split_whitespace().any(|word| word == long)
            {
                more.extend(self.words(given));
            }
        }
        let names_one = command.split_whitespace().any(|word| word == "--profile");
        more.extend(self.profile(target, names_one));
        let (first, rest) = command.split_at(verb_end(command, verb.len()));
        [first, &more.iter().map(|word| format!(" {word}")).collect::<String>(), rest].concat()
    }

    /// Returns a hint without the parts, between semicolons, that name options which the verb does
    /// not have: the planner's hints are also shown by other verbs, such as `tune`.
    pub fn fitting(&self, hint: &str) -> String {
        let has = |flag: &str| {
            all_of(self.command).any(|arg| {
                arg.get_long().is_some_and(|long| flag.strip_prefix("--") == Some(long))
                    || arg.get_all_aliases().unwrap_or_default().iter().any(|a| flag[2..] == **a)
            })
        };
        let fits = |part: &&str| bare_options(part).iter().all(|flag| has(flag));
        hint.split("; ").filter(fits).collect::<Vec<_>>().join("; ")
    }
}

/// Every verb, without its arguments: to build all of them takes longer than a plan.
fn known() -> &'static Command {
    static KNOWN: OnceLock<Command> = OnceLock::new();
    KNOWN.get_or_init(Cli::command)
}

/// The arguments that hold for every verb.
fn global() -> impl Iterator<Item = &'static Arg> {
    known().get_arguments().filter(|arg| arg.is_global_set())
}

/// A verb with its arguments, built once; a group of verbs stays as it is.
fn with_arguments(verb: &[impl AsRef<str>], found: &'static Command) -> &'static Command {
    /// The built ones by their words; each stays until the program ends.
    static BUILT: Mutex<BTreeMap<String, &'static Command>> = Mutex::new(BTreeMap::new());
    if found.has_subcommands() {
        return found;
    }
    let words: Vec<&str> = verb.iter().map(AsRef::as_ref).collect();
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    built.entry(words.join(" ")).or_insert_with(|| {
        let command = found.clone().args(global()).version(env!("CARGO_PKG_VERSION"));
        let mut command = command.disable_help_flag(true).disable_version_flag(true);
        command.build();
        Box::leak(Box::new(command))
    })
}

/// The arguments of a verb: its own, then those that hold for every verb.
fn all_of(verb: &'static Command) -> impl Iterator<Item = &'static Arg> {
    let own = verb.get_arguments().filter(|own| global().all(|arg| arg.get_id() != own.get_id()));
    own.chain(global())
}

/// The verb of a command after `gpuvm`, and its arguments.
fn verb_of(command: &str) -> (Vec<&str>, &'static Command) {
    let (mut verb, mut target) = (Vec::new(), known());
    for name in command.split_whitespace() {
        let Some(next) = target.find_subcommand(name) else { break };
        target = next;
        verb.push(name);
    }
    let target = with_arguments(&verb, target);
    (verb, target)
}

/// Our commands in a command line after `gpuvm`: those after `&&`, `|` and `;` too.
fn ours(line: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    for part in line.split(NEXT_OURS) {
        match commands.last_mut() {
            Some(last) if !["&&", "|", ";"].iter().any(|end| last.ends_with(end)) => {
                last.push_str(NEXT_OURS);
                last.push_str(part);
            }
            _ => commands.push(part.to_owned()),
        }
    }
    commands
}

/// Whether a command after `gpuvm` acts on the machine that it runs on, whatever host was asked
/// about.
fn changes_host(command: &str) -> bool {
    let (verb, target) = verb_of(command);
    let mut words = command.split_whitespace();
    match verb.first() {
        None => false,
        Some(first) if OF_NO_HOST.contains(first) => false,
        Some(_) if words.clone().any(|word| word == "--host") => false,
        Some(_) => !is_about_records(target) || words.any(|word| word == CHANGES),
    }
}

/// Whether a command can be about a recorded host, by the words of its verb, which come first.
pub fn reads_records<'w>(words: impl IntoIterator<Item = &'w str>) -> bool {
    let mut verb = known();
    for name in words {
        let Some(next) = verb.find_subcommand(name) else { break };
        verb = next;
    }
    is_about_records(verb)
}

/// Returns where the words of the verb end in a command.
fn verb_end(command: &str, words: usize) -> usize {
    let mut end = 0;
    for name in command.split_whitespace().take(words) {
        end = command[end..].find(name).map_or(end, |at| end + at + name.len());
    }
    end
}

/// Returns the options in a text that belong to the called verb: not those of commands in it.
fn bare_options(text: &str) -> Vec<String> {
    let outside = text.split('`').enumerate();
    let outside = outside.filter(|(at, part)| at % 2 == 0 || part.starts_with("--"));
    let words = outside.flat_map(|(_, part)| part.split(|c: char| c.is_whitespace() || c == '='));
    let options = words.map(|word| word.trim_matches(|c: char| !c.is_alphanumeric() && c != '-'));
    options.filter(|word| word.len() > 2 && word.starts_with("--")).map(str::to_owned).collect()
}

/// A word of a command, in quotes where a shell needs them.
fn shown(text: &str) -> String {
    word(text).into_owned()
}

thread_local! {
    /// Whether commands leave out who and where.
    static IS_NAMELESS: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, commands offered by this thread name no machine, connection or folder: for files
/// that are given to others.
#[derive(Debug)]
pub struct Nameless(());

/// Begins it.
pub fn nameless() -> Nameless {
    IS_NAMELESS.set(true);
    Nameless(())
}

impl Drop for Nameless {
    fn drop(&mut self) {
        IS_NAMELESS.set(false);
    }
}

/// Whether the offered command names no machine now.
pub fn is_nameless() -> bool {
    IS_NAMELESS.get()
}

/// A value of an argument as it may be shown now: a folder often is a user's.
fn public(id: &str, value: String) -> String {
    if !is_nameless() {
        return value;
    }
    let path = Path::new(&value);
    match id {
        "connect" if NAMELESS.contains(&value.as_str()) => value,
        "connect" => "URI".to_owned(),
        _ if path.is_absolute() || path.components().any(|part| part == Component::ParentDir) => {
            path.file_name().map_or("FILE".to_owned(), |name| name.to_string_lossy().into_owned())
        }
        _ => value,
    }
}

/// A text as it may be shown now: without the connection of this call.
pub fn unnamed(text: Cow<'_, str>) -> Cow<'_, str> {
    let Some(call) = call().filter(|_| is_nameless()) else { return text };
    let Ok(Some(uri)) = call.given.try_get_one::<String>("connect") else { return text };
    // An alias is a word that other texts may have, too.
    let is_named = uri.contains("://") && !NAMELESS.contains(&uri.as_str());
    if is_named && text.contains(uri) { Cow::Owned(text.replace(uri, "URI")) } else { text }
}

/// Stores the arguments of this run.
pub fn remember(matches: &ArgMatches) {
    // A run has one command line.
    let _ = GIVEN.set(matches.clone());
}

/// The call of this run; none outside a run.
fn call() -> Option<&'static Call> {
    static CALL: OnceLock<Call> = OnceLock::new();
    let given = GIVEN.get()?;
    Some(CALL.get_or_init(|| {
        if called_as_vendor() { Call::new(given).as_vendor() } else { Call::new(given) }
    }))
}

/// Returns the option changes that would give a refused guest a place, the least change first, and
/// the command with the first of them.
pub fn nearest(refused: &NoPlace) -> (Vec<String>, Option<String>) {
    let edits = refused.nearest.iter().map(|near| needed(changes(&refused.request, near)));
    let edits: Vec<Vec<Edit>> = edits.collect();
    let command = edits.first().and_then(|edits| instead(edits));
    (edits.iter().map(|edits| text_of(edits)).collect(), command)
}

/// Returns the changes without removals of options that were not given.
fn needed(mut edits: Vec<Edit>) -> Vec<Edit> {
    if let Some(call) = call() {
        edits.retain(|edit| edit.values.is_some() || call.has(&edit.flag));
    }
    edits
}

/// The call with other options; none outside a run, and where they are not options of its verb but
/// fields of its file.
pub fn instead(edits: &[Edit]) -> Option<String> {
    let call = call().filter(|call| edits.iter().all(|edit| call.takes(&edit.flag)))?;
    Some(call.with(edits))
}

/// The call without some of its options; empty outside a run.
pub fn without(flags: &[&str]) -> String {
    call().map(|call| call.without_all(flags)).unwrap_or_default()
}

/// The `create` of this call's guest, on another connection, or on that machine; `None` outside a
/// run.
pub fn create_on(uri: Option<&str>) -> Option<String> {
    Some(call()?.create_on(uri))
}

/// Whether a text has commands that a call may adapt.
pub fn has_commands(text: &str) -> bool {
    text.contains(OURS) || text.contains(VIRSH)
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Returns a text with its commands adapted to this call.
pub fn carried(text: Cow<'_, str>) -> Cow<'_, str> {
    if !has_commands(&text) {
        return text;
    }
    match call() {
        None => text,
        Some(call) => Cow::Owned(call.carried(&text).into_owned()),
    }
}

/// Returns a hint reduced to options that the verb has, with whole commands.
pub fn fitting(hint: String) -> String {
    call().map_or_else(|| hint.clone(), |call| call.spelled(&call.fitting(&hint)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The call of a command line.
    fn call(line: &[&str]) -> Call {
        let words = ["gpuvm"].iter().chain(line);
        Call::new(&Cli::command().try_get_matches_from(words).unwrap())
    }

    #[test]
    fn an_option_of_this_call_is_offered_as_a_whole_command() {
        let gone = call(&["disk", "remove", "a b", "vdb", "--live", "-c", "u"]);
        let line = "gpuvm disk remove 'a b' vdb";
        for (hint, expected) in [
            (
                "--yes does it without asking",
                format!("`{line} --live --connect u --yes` does it without asking"),
            ),
            ("x; leave --live out: it stays", format!("x; `{line} --connect u`: it stays")),
            // Given already, not given, not a switch, not a sentence, or of another verb.
            ("--live does it", "--live does it".to_owned()),
            ("leave --dry-run out: it runs", "leave --dry-run out: it runs".to_owned()),
            ("--lock-wait waits", "--lock-wait waits".to_owned()),
            ("--yes X", "--yes X".to_owned()),
            ("--frob does it", "--frob does it".to_owned()),
        ] {
            let words = |text: &str| {
                let mut words: Vec<String> = text.split(' ').map(str::to_owned).collect();
                words.sort();
                words
            };
            assert_eq!(words(&gone.spelled(hint)), words(&expected), "{}", gone.spelled(hint));
        }
    }

    #[test]
    fn virsh_asks_the_same_libvirt() {
        let away = call(&["-c", "qemu+ssh://a/system?x='1", "stop", "b"]);
        let text = "`virsh resume b`, then `gpuvm stop b`";
        let all = away.carried(text).into_owned();
        assert!(all.starts_with("`virsh -c 'qemu+ssh://a/system?x="), "{all}");
        assert!(all.contains(" resume b`, then `gpuvm stop --connect "), "{all}");
        let named = format!("`virsh resume {}`", crate::shell::domain("1"));
        let all = away.carried(&named).into_owned();
        assert_eq!(all.matches("virsh -c 'qemu+ssh://a/system?x=").count(), 2, "{all}");
        if is_root() {
            assert_eq!(call(&["stop", "b"]).carried(text), text);
        }
    }

    #[test]
    fn given_options_are_carried_and_changed_ones_replaced() {
        let call = call(&[
            "--host",
            "my host.json",
            "plan",
            "--gpu-count",
            "3",
            "--gpu-index=1",
            "--vcpus",
            "8",
            "--allow",
            "split,remote",
            "--huge-pages",
            "1G",
            "--domain-xml",
            "a.xml",
            "--domain-xml",
            "b.xml",
            "--explain",
        ]);
        let gone = Edit { flag: "--huge-pages".into(), values: None };
        let edits = [Edit::to("--gpus", "2"), gone];
        let all = "gpuvm plan --vcpus 8 --allow split,remote --domain-xml a.xml --domain-xml b.xml \
                   --explain --host 'my host.json' --gpus 2";
        let sorted = |text: &str| {
            let mut words: Vec<String> = text.split(" --").map(str::to_owned).collect();
            words.sort();
            words
        };
        assert_eq!(sorted(&call.with(&edits)), sorted(all), "{}", call.with(&edits));
    }

    #[test]
    fn offers_are_about_the_host_and_the_connection_that_were_asked_about() {
        let recorded = call(&["plan", "--host", "a b", "--domain-xml", "d"]);
        for (text, shown) in [
            ("`gpuvm host show` shows", "`gpuvm host show --host 'a b'` shows"),
            ("`gpuvm host show --svg f`", "`gpuvm host show --host 'a b' --domain-xml d --svg f`"),
            ("`gpuvm capacity` and `x`", "`gpuvm capacity --host 'a b' --domain-xml d` and `x`"),
            (
                "`gpuvm nic vfs 1:00.0 --count 1` makes it",
                "`gpuvm nic vfs 1:00.0 --count 1` on that machine makes it",
            ),
            (
                "`gpuvm host trust one-tenant` says",
                "`gpuvm host trust one-tenant` on that machine says",
            ),
            ("`gpuvm host trust` on that host", "`gpuvm host trust` on that host"),
            (
                "`gpuvm host pages --count 1 && gpuvm host pages --count 2`",
                "`gpuvm host pages --count 1 && gpuvm host pages --count 2` on that machine",
            ),
            (
                "`gpuvm capacity | gpuvm plan`",
                "`gpuvm capacity --host 'a b' --domain-xml d | gpuvm plan --host 'a b' \
                 --domain-xml d`",
            ),
            ("`gpuvm host pages`", "`gpuvm host pages --host 'a b'`"),
            (
                "`gpuvm host pages --node 0 --size 2M --count 1`",
                "`gpuvm host pages --node 0 --size 2M --count 1` on that machine",
            ),
            ("`gpuvm man networks`", "`gpuvm man networks`"),
            ("`gpuvm host capture -` there", "`gpuvm host capture -` there"),
            ("`gpuvm host capture F` on the host", "`gpuvm host capture F` on the host"),
            ("`gpuvm list` without --host asks", "`gpuvm list` without --host asks"),
            ("`gpuvm export --host FILE`", "`gpuvm export --domain-xml d --host FILE`"),
            ("`gpuvm` alone", "`gpuvm` alone"),
            ("`gpuvm no end", "`gpuvm no end"),
        ] {
            assert_eq!(recorded.carried(text), shown);
        }
        let assumed =
            call(&["plan", "--host", "a", "--assume", "libvirt=12.9", "--domain-xml", "d"]);
        for (text, shown) in [
            ("`gpuvm host show`", "`gpuvm host show --host a --assume libvirt=12.9`"),
            ("`gpuvm host pages`", "`gpuvm host pages --host a`"),
            (
                "`gpuvm make-room --gpus 1`",
                "`gpuvm make-room --host a --domain-xml d --assume libvirt=12.9 --gpus 1`",
            ),
        ] {
            assert_eq!(assumed.carried(text), shown);
        }
        // The same command for this machine has its other words.
        let doctor = call(&["network", "doctor", "x y", "--json", "--host", "a"]);
        assert_eq!(
            doctor.carried("`gpuvm network doctor` without --host asks"),
            "`gpuvm network doctor 'x y' --json` without --host asks"
        );
        let test = call(&["-c", "test:///default", "start", "x"]);
        let text = test.carried("`gpuvm list` and `gpuvm recover --discard`").into_owned();
        assert_eq!(text, "`gpuvm list --connect test:///default` and `gpuvm recover --discard`");
        let text = "`gpuvm import b` on the other host makes it";
        assert_eq!(test.carried(text), text);
        // Every one of a line, but not a guest of our name.
        let text = "`gpuvm start gpuvm && gpuvm host pages --node 1 --count 8 && gpuvm ip gpuvm `";
        let command = test.carried(text).into_owned();
        let there = "--connect test:///default";
        assert_eq!(
            command,
            format!(
                "`gpuvm start {there} gpuvm && gpuvm host pages {there} --node 1 --count 8 && \
                 gpuvm ip {there} gpuvm `"
            )
        );
    }

    #[test]
    fn under_the_vendors_name_offers_have_its_profile() {
        let asked = call(&["plan", "--gpus", "1", "--memory", "10T"]).as_vendor();
        let memory = Edit::to("--memory", "1480G");
        let command = asked.with(&[memory]);
        assert_eq!(command, "gpuvm plan --gpus 1 --memory 1480G --profile nvidia-vm");
        for (text, shown) in [
            ("`gpuvm plan --gpus 1`", "`gpuvm plan --profile nvidia-vm --gpus 1`"),
            ("`gpuvm plan --profile share`", "`gpuvm plan --profile share`"),
            ("`gpuvm list`", "`gpuvm list`"),
        ] {
            assert_eq!(asked.carried(text), shown);
        }
        let named = call(&["plan", "--profile", "near"]).as_vendor();
        assert_eq!(named.with(&[]), "gpuvm plan --profile near");
    }

    #[test]
    fn options_of_another_verb_are_not_offered() {
        let tune = call(&["tune", "x"]);
        for (hint, left) in [
            ("at most 4: --vcpus 4; `--allow remote` takes more", "`--allow remote` takes more"),
            ("--pins on", "--pins on"),
            (
                "`gpuvm plan --gpus 2`; `virsh x --force`",
                "`gpuvm plan --gpus 2`; `virsh x --force`",
            ),
            ("leave --gpus out", ""),
        ] {
            assert_eq!(tune.fitting(hint), left);
        }
    }
}
