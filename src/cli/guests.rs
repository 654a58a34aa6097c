//! Files of guests: read for `apply`, written by `get`. A guest's fields are the options of
//! `create`, read by the same parser: there is no second list of them, and no second meaning.

use super::args::CreateArgs;
use super::error::{Coded, classed, whole};
use crate::input;
use crate::request::DomainName;
use crate::tree::{self, Fault, Node, Spot, Value};
#[cfg(feature = "schema")]
use clap::builder::ValueParser;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, Args as _, Command, FromArgMatches as _};
use gpuvm_host::history::guest::AppliedFile;
use gpuvm_ops::described::{Described, DescribedGuest, GuestsError, NamedDisk};
use gpuvm_ops::error::Class;
use gpuvm_ops::guest::NameRequest;
use serde_json::{Map, Value as Json, json};
#[cfg(feature = "schema")]
use std::any::TypeId;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The format of a file of guests.
pub const FORMAT: &str = "gpuvm-guests";
const VERSION: &str = "1";
/// The largest file, in bytes.
const MOST: u64 = 1 << 20;
/// Options of `create` that affect how the command runs, not the guest; or say the same as others.
const NO_FIELDS: [&str; 17] = [
    "accept-data-loss",
    "assume",
    "assume-empty",
    "diff",
    "domain",
    "domain-xml",
    "drop-seed",
    "dry-run",
    "if-absent",
    "lock-wait",
    "no-start",
    "no-wait",
    "plan",
    "privateIP",
    "volGB",
    "wait",
    "help",
];
/// Fields of a guest that are no options of `create`.
const OWN_FIELDS: [(&str, &str); 3] = [
    ("autostart", "Start the guest with the host; unchanged if absent"),
    ("restart", "allowed: apply restarts the guest for a change that needs it"),
    ("start", "Start the guest once it is made; default: true"),
];
/// The field that is not shown in messages.
const SECRET: &str = "password-hash";
const HEAD: [&str; 4] = ["format", "version", "set", "guests"];

/// A file of guests.
#[derive(Debug)]
pub struct GuestsFile {
    /// The name of its set.
    pub set: Option<String>,
    /// Its guests.
    pub guests: Vec<DescribedGuest>,
}

struct Reader<'f> {
    /// Its path, as given.
    path: &'f Path,
    /// The options of `create`.
    command: Command,
}

/// The options of `create`, alone.
fn options() -> Command {
    let none = Command::default().name("create").disable_help_flag(true).no_binary_name(true);
    CreateArgs::augment_args(none)
}

/// The options that are fields of a guest.
fn fields(command: &Command) -> impl Iterator<Item = (&str, &Arg)> {
    let named = command.get_arguments().filter_map(|arg| Some((arg.get_long()?, arg)));
    named.filter(|(long, _)| !NO_FIELDS.contains(long))
}

/// Reads a file of guests, or `-`: standard input. `restart`: all of them may be restarted.
pub fn read(path: &Path, restart: bool) -> anyhow::Result<GuestsFile> {
    let text = input::text_or_stdin(path, MOST)?;
    let reader = Reader { path, command: options() };
    let by_name = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("toml"));
    let is_toml = by_name || begins_as_toml(&text);
    let tree = if is_toml { tree::toml(&text) } else { tree::yaml(&text) };
    let tree = tree.map_err(|Fault { at, why }| {
        let at = reader.place(at);
        GuestsError::Syntax { at, why }.bare::<anyhow::Error>()
    })?;
    reader.file(tree, restart)
}

/// Whether the first line of a text with anything in it is a table or `key = value`.
pub fn begins_as_toml(text: &str) -> bool {
    let lines = text.trim_start_matches('\u{feff}').lines().map(str::trim);
    let first = lines.into_iter().find(|line| !line.is_empty() && !line.starts_with('#'));
    first.is_some_and(|line| {
        let key = line.split_once('=').map(|(key, _)| key.trim());
        let is_key =
            |key: &str| key.chars().all(|c| c.is_ascii_alphanumeric() || "-_\"'.".contains(c));
        let table = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        line.starts_with("[[") || table.is_some_and(is_key) || key.is_some_and(is_key)
    })
}

/// A file's field and the words that it is on a command line.
type Words<'n> = Vec<(&'n (String, Spot, Node), Vec<String>)>;

impl Reader<'_> {
    /// A place in the file, as compilers print it.
    fn place(&self, at: Spot) -> String {
        format!("{}:{}:{}", self.path.display(), at.line, at.column)
    }

    fn bad<T>(&self, at: Spot, why: impl Into<String>) -> anyhow::Result<T> {
        let hint =
            "`gpuvm schema gpuvm-guests` describes the file; `gpuvm create --help` its fields";
        Err(GuestsError::Value { at: self.place(at), why: why.into() }.hint(hint))
    }

    /// The error of an unknown field, with the nearest one.
    fn unknown<T>(&self, at: Spot, field: &str, known: &[&str]) -> anyhow::Result<T> {
        let near = similar::get_close_matches(field, known, 1, 0.6);
        let hint = match near.first() {
            Some(near) => format!("`{near}`"),
            None => "`gpuvm schema gpuvm-guests` lists the fields".to_owned(),
        };
        Err(GuestsError::Field { at: self.place(at), field: field.escape_debug().to_string() }
            .hint(hint))
    }

    fn file(mut self, tree: Node, restart: bool) -> anyhow::Result<GuestsFile> {
        let Value::Map(fields) = tree.value else {
            return self.bad(tree.at, format!("the file is to begin with `format: {FORMAT}`"));
        };
        if let Some((key, at, _)) = fields.iter().find(|(key, ..)| !HEAD.contains(&key.as_str())) {
            return self.unknown(*at, key, &HEAD);
        }
        let field = |name: &str| fields.iter().find(|(key, ..)| key == name);
        for (name, wanted) in [("format", FORMAT), ("version", VERSION)] {
            let Some((_, _, node)) = field(name) else {
                return self.bad(tree.at, format!("`{name}: {wanted}` is missing"));
            };
            if node.value != Value::Text(wanted.to_owned()) {
                return self.bad(node.at, format!("{name} is to be {wanted}"));
            }
        }
        let set = match field("set").map(|(_, _, node)| node) {
            None => None,
            Some(node) => match &node.value {
                Value::Text(name) if DomainName::new(name).is_ok() => Some(name.clone()),
                _ => return self.bad(node.at, "a set's name has letters, digits, `-`, `_`, `.`"),
            },
        };
        let Some((_, at, list)) = field("guests") else {
            return self.bad(tree.at, "`guests` is missing");
        };
        let Value::List(list) = &list.value else {
            return self.bad(*at, "`guests` is to be a list");
        };
        let mut guests: Vec<DescribedGuest> = Vec::new();
        for node in list {
            let guest = self.guest(node, &set, restart)?;
            if guests.iter().any(|known| known.name == guest.name) {
                return self.bad(node.at, format!("guest `{}` appears twice", guest.name));
            }
            guests.push(guest);
        }
        Ok(GuestsFile { set, guests })
    }

    fn guest(
        &mut self,
        node: &Node,
        set: &Option<String>,
        restart: bool,
    ) -> anyhow::Result<DescribedGuest> {
        let Value::Map(fields) = &node.value else {
            return self.bad(node.at, "a guest is to have fields, such as `name`");
        };
        let (mut all, mut given): (Words<'_>, _) = (Vec::new(), BTreeMap::new());
        let (mut autostart, mut may_restart, mut disks) = (None, restart, Vec::new());
        for field in fields {
            let (key, at, value) = field;
            disks.extend(self.disks(key, value));
            let mut words = Vec::new();
            match key.as_str() {
                "autostart" => autostart = Some(self.switch(value)?),
                "start" => {
                    if !self.switch(value)? {
                        words.push("--no-start".to_owned());
                    }
                }
                "restart" => match &value.value {
                    Value::Text(text) if text == "allowed" => may_restart = true,
                    Value::Text(text) if text == "never" => {}
                    _ => return self.bad(value.at, "restart is allowed or never"),
                },
                _ => {
                    let values = self.option(key, *at, value, &mut words)?;
                    given.insert(key.clone(), values);
                }
            }
            all.push((field, words));
        }
        if !given.contains_key("name") {
            return self.bad(node.at, "the guest has no `name`");
        }
        let words: Vec<String> = all.iter().flat_map(|(_, words)| words.clone()).collect();
        let args = self.parsed(node, fields, &words)?;
        let mut create = match args.request() {
            Ok(create) => create,
            Err(error) => return self.refused(node, &all, &error),
        };
        let NameRequest::Exact(name) = create.guest.name.clone() else {
            return self.bad(node.at, "the guest has no `name`");
        };
        create.applied =
            Some(AppliedFile { name: Some(name.to_string()), set: set.clone(), options: given });
        Ok(DescribedGuest { name, create, autostart, may_restart, disks })
    }

    /// The disks that a field names.
    fn disks(&self, key: &str, value: &Node) -> Vec<NamedDisk> {
        if !NamedDisk::OPTIONS.contains(&key) {
            return Vec::new();
        }
        let nodes = match &value.value {
            Value::List(nodes) => &nodes[..],
            _ => std::slice::from_ref(value),
        };
        let named = |node: &Node| match &node.value {
            Value::Text(text) => {
                let (option, at) = (key.to_owned(), self.place(node.at));
                Some(NamedDisk { option, value: text.clone(), at })
            }
            _ => None,
        };
        nodes.iter().filter_map(named).collect()
    }

    /// The error that the words of fields cannot be meant, with the place of the field without
    /// which they can.
    fn refused<T>(
        &mut self,
        node: &Node,
        all: &Words<'_>,
        error: &anyhow::Error,
    ) -> anyhow::Result<T> {
        let mut is_good_without = |left_out: usize| {
            let kept = all.iter().enumerate().filter(|(number, _)| *number != left_out);
            let words: Vec<&String> = kept.flat_map(|(_, (_, words))| words).collect();
            let matches = self.command.try_get_matches_from_mut(words);
            let args = matches.and_then(|matches| CreateArgs::from_arg_matches(&matches));
            args.is_ok_and(|args| args.request().is_ok())
        };
        let about = (0..all.len()).find(|number| is_good_without(*number));
        let is_named = |(field, words): &&(&(String, Spot, Node), Vec<String>)| {
            let shows = |word: &String| {
                let value = word.split_once('=').map(|(_, value)| value);
                value.is_some_and(|value| whole(error).contains(value))
            };
            field.0 == SECRET && words.iter().any(shows)
        };
        let about = about.map(|number| &all[number]).or_else(|| all.iter().find(is_named));
        let Some(((key, _, value), _)) = about else {
            return self.bad(node.at, whole(error));
        };
        if key != SECRET {
            return self.bad(value.at, whole(error));
        }
        // Who writes the hash itself in place of its file's name does not want to see it in a log.
        let reason = error.chain().last().map(ToString::to_string);
        let reason = reason.filter(|reason| match &value.value {
            Value::Text(text) => !reason.contains(text.as_str()),
            _ => true,
        });
        let why = reason.unwrap_or_else(|| "it must be a file with the hash".to_owned());
        self.bad(value.at, format!("cannot take the file that {key} names: {why}"))
    }

    /// Adds the words of an option to a command line; returns its values.
    fn option(
        &self,
        key: &str,
        at: Spot,
        value: &Node,
        words: &mut Vec<String>,
    ) -> anyhow::Result<Vec<String>> {
        let known: Vec<&str> = fields(&self.command).map(|(long, _)| long).collect();
        let found = fields(&self.command).find(|(long, _)| *long == key);
        let Some((_, arg)) = found else {
            let own = OWN_FIELDS.map(|(field, _)| field);
            return self.unknown(at, key, &[&known[..], &own].concat());
        };
        if is_switch(arg) {
            let on = self.switch(value)?;
            words.extend(on.then(|| format!("--{key}")));
            return Ok(vec![on.to_string()]);
        }
        let nodes = match &value.value {
            Value::List(nodes) if is_list(arg) => &nodes[..],
            _ => std::slice::from_ref(value),
        };
        let mut values = Vec::new();
        for node in nodes {
            match &node.value {
                Value::Text(text) if text.chars().any(char::is_control) => {
                    return self
                        .bad(node.at, format!("`{key}` has a line break or a control character"));
                }
                Value::Text(text) => {
                    words.push(format!("--{key}={text}"));
                    values.push(text.clone());
                }
                Value::Null => {}
                Value::List(_) => return self.bad(node.at, format!("`{key}` takes one value")),
                Value::Map(_) => return self.bad(node.at, format!("`{key}` takes no fields")),
            }
        }
        Ok(values)
    }

    fn switch(&self, node: &Node) -> anyhow::Result<bool> {
        match &node.value {
            Value::Text(text) if matches!(text.as_str(), "true" | "yes" | "on") => Ok(true),
            Value::Text(text) if matches!(text.as_str(), "false" | "no" | "off") => Ok(false),
            _ => self.bad(node.at, "it takes true or false"),
        }
    }

    /// The arguments of `create` that the words are; an error with the place of the field that is
    /// wrong.
    fn parsed(
        &mut self,
        node: &Node,
        fields: &[(String, Spot, Node)],
        words: &[String],
    ) -> anyhow::Result<CreateArgs> {
        let matches = self.command.try_get_matches_from_mut(words);
        let error = match matches.and_then(|matches| CreateArgs::from_arg_matches(&matches)) {
            Ok(args) => return Ok(args),
            Err(error) => error,
        };
        let about = match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::String(arg)) => vec![arg.clone()],
            Some(ContextValue::Strings(args)) => args.clone(),
            _ => Vec::new(),
        };
        let is_about = |key: &str| {
            let name = |arg: &String| {
                let arg = arg.strip_prefix("--").unwrap_or(arg);
                arg.split([' ', '=', '<', '[']).next() == Some(key)
            };
            about.iter().any(name)
        };
        let at = fields.iter().find(|(key, ..)| is_about(key)).map_or(node.at, |(_, _, n)| n.at);
        let text = error.render().to_string();
        // The remaining lines are ways to call the program.
        let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
        let said = lines.collect::<Vec<_>>().join(" ");
        self.bad(at, said.strip_prefix("error: ").unwrap_or(&said))
    }
}

/// Whether an option takes no value.
fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

/// Whether an option can be given several times.
fn is_list(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
}

/// A list of guests as a document.
pub fn document(guests: &[Described]) -> Json {
    let guest = |guest: &Described| {
        let fields = guest.fields.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
        Json::Object(fields.collect::<Map<String, Json>>())
    };
    json!({ "guests": guests.iter().map(guest).collect::<Vec<_>>() })
}

/// Facts that a guest's fields cannot express, as comments.
fn unknown(guest: &Described) -> String {
    let mut text = String::new();
    if !guest.is_told {
        let what = "its image, boot disk size, template and first settings";
        let _ = match &guest.unread {
            None => writeln!(text, "# {}: not recorded are {what}", guest.name),
            Some(why) => writeln!(text, "# {}: not known are {what}: {why}", guest.name),
        };
    }
    for disk in &guest.other_disks {
        let what = format!(
            "no field describes its disk {disk:?}; unless its template has it, `apply` calls it a \
             difference"
        );
        let _ = writeln!(text, "# {}: {what}", guest.name);
    }
    if !guest.has_nic {
        let what = "it has no NIC; one made from this description has that of its template";
        let _ = writeln!(text, "# {}: {what}", guest.name);
    }
    if !guest.has_disk {
        let what = "it has no disk; one made from this description would boot from a new one";
        let _ = writeln!(text, "# {}: {what}", guest.name);
    }
    text
}

/// Guests as YAML.
pub fn to_yaml(guests: &[Described]) -> String {
    let mut text = format!("format: {FORMAT}\nversion: {VERSION}\nguests:");
    if guests.is_empty() {
        text += " []";
    }
    text.push('\n');
    for guest in guests {
        text += &unknown(guest);
        for (number, (key, value)) in guest.fields.iter().enumerate() {
            let lead = if number == 0 { "- " } else { "  " };
            match value {
                Json::Array(values) => {
                    let _ = writeln!(text, "{lead}{key}:");
                    for value in values {
                        let _ = writeln!(text, "  - {}", yaml_word(value));
                    }
                }
                value => {
                    let _ = writeln!(text, "{lead}{key}: {}", yaml_word(value));
                }
            }
        }
    }
    text
}

/// A value as YAML: plain where all versions of YAML read a word as this text.
fn yaml_word(value: &Json) -> String {
    let Some(text) = value.as_str() else { return value.to_string() };
    let first = text.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '/');
    let rest = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./,=".contains(c));
    let words = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    let is_word = words.contains(&text.to_ascii_lowercase().as_str());
    let number = text.strip_suffix(['K', 'M', 'G', 'T']);
    let is_size = number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    if is_size || first && rest && !is_word { text.to_owned() } else { value.to_string() }
}

/// Guests as TOML.
pub fn to_toml(guests: &[Described]) -> String {
    let mut text = format!("format = \"{FORMAT}\"\nversion = {VERSION}\n");
    if guests.is_empty() {
        text += "guests = []\n";
    }
    for guest in guests {
        let _ = write!(text, "\n{}[[guests]]\n", unknown(guest));
        for (key, value) in &guest.fields {
            let _ = writeln!(text, "{key} = {value}");
        }
    }
    text
}

/// The JSON Schema of a file of guests, made from the options of `create`.
#[cfg(feature = "schema")]
pub fn schema() -> Json {
    let command = options();
    let mut properties = Map::new();
    for (long, arg) in fields(&command) {
        let mut schema = value_schema(arg);
        if let (Some(help), Json::Object(schema)) = (arg.get_help(), &mut schema) {
            schema.insert("description".into(), help.to_string().into());
        }
        properties.insert(long.to_owned(), schema);
    }
    for (field, about) in OWN_FIELDS {
        let mut schema = match field {
            "restart" => json!({ "enum": ["allowed", "never"] }),
            _ => json!({ "type": "boolean" }),
        };
        schema["description"] = about.into();
        properties.insert(field.to_owned(), schema);
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": FORMAT,
        "type": "object",
        "properties": {
            "format": { "const": FORMAT },
            "version": { "const": 1 },
            "set": { "type": "string", "description": "Name of this set of guests, for --prune" },
            "guests": {
                "type": "array",
                "description": "The guests; fields are options of `gpuvm create`",
                "items": {
                    "type": "object",
                    "properties": properties,
                    "required": ["name"],
                    "additionalProperties": false,
                },
            },
        },
        "required": ["format", "version", "guests"],
        "additionalProperties": false,
    })
}

/// The schema of an option's value.
#[cfg(feature = "schema")]
fn value_schema(arg: &Arg) -> Json {
    if is_switch(arg) {
        return json!({ "type": "boolean" });
    }
    let parser: &ValueParser = arg.get_value_parser();
    let is = |of: TypeId| parser.type_id() == of;
    let words: Vec<String> =
        arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    let one = match () {
        () if is(TypeId::of::<u32>()) || is(TypeId::of::<u64>()) => {
            json!({ "type": "integer", "minimum": 0 })
        }
        () if !words.is_empty() => json!({ "enum": words }),
        () => json!({ "type": ["string", "integer"] }),
    };
    if !is_list(arg) {
        return one;
    }
    json!({ "anyOf": [one, { "type": "array", "items": one }] })
}

/// The refusal of a verb that names neither a guest nor all.
pub fn no_guest() -> anyhow::Error {
    classed(Class::Usage, "no guest is named", "`gpuvm get NAME`, or `gpuvm get --all`")
}

/// The path that `-f` names in messages.
pub fn named(path: &Path) -> PathBuf {
    if path.as_os_str() == "-" { PathBuf::from("standard input") } else { path.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toml_is_known_by_its_first_line() {
        for toml in [
            "format = \"gpuvm-guests\"\nversion = 1\nguests = []\n",
            "# a = b\n\n[[guests]] # the first\nname = \"a\"\n",
            "\"format\"=\"gpuvm-guests\"",
            &to_toml(&[]),
        ] {
            assert!(begins_as_toml(toml), "{toml}");
        }
        for other in [
            "format: gpuvm-guests\nx: a=b\n",
            "guests: [[a=b]]",
            "{\"format\": \"a=b\"}",
            "# a = b\n---\nset: a = b\n",
            "",
            &to_yaml(&[]),
        ] {
            assert!(!begins_as_toml(other), "{other}");
        }
    }
}
