//! Tips for a command line that cannot be parsed: gpuvm's names for features of other tools, and
//! names spelt almost as typed. By spelling alone clap would suggest `--plan` for `--vlan`.

use super::args::whole;
use crate::shell::word;
use clap::Command;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;

/// The least similarity of a word that is suggested for another.
const NEAR: f32 = 0.75;

/// Names that other tools use for our verbs, with these verbs.
const VERBS_ELSEWHERE: [(&[&str], &str); 34] = [
    (&["launch", "new", "run", "install", "deploy", "add", "up", "define"], "gpuvm create"),
    (&["destroy", "kill", "poweroff"], "gpuvm stop --force"),
    (&["destroy", "remove", "purge", "undefine", "terminate"], "gpuvm delete"),
    (&["shutdown", "halt", "down"], "gpuvm stop"),
    (&["suspend", "freeze"], "gpuvm pause"),
    (&["reboot", "reset"], "gpuvm restart"),
    (&["boot", "poweron"], "gpuvm start"),
    (&["ps", "vm", "vms", "guest", "guests", "domain", "domains", "status", "state"], "gpuvm list"),
    (&["describe", "inspect", "dominfo", "status", "state"], "gpuvm show"),
    (&["login", "connect"], "gpuvm ssh"),
    (&["attach", "serial", "tty"], "gpuvm console"),
    (&["copy", "scp", "push", "pull", "transfer", "file"], "gpuvm cp"),
    (&["pull", "images"], "gpuvm image"),
    (&["net", "networks"], "gpuvm network"),
    (&["diff", "validate", "reconcile", "sync"], "gpuvm apply --dry-run"),
    (&["stats", "top", "usage", "uptime"], "gpuvm list --long"),
    (&["address", "addr", "domifaddr"], "gpuvm ip"),
    (&["topology", "topo", "numa", "layout"], "gpuvm host show"),
    (&["bind", "vfio", "pci", "lspci"], "gpuvm device list"),
    (&["dumpxml", "xml"], "gpuvm show --xml"),
    (
        &["resize", "modify", "edit", "config", "scale", "setvcpus", "setmem", "setmaxmem"],
        "gpuvm set",
    ),
    (&["pin", "optimize", "optimise", "fix"], "gpuvm tune"),
    (&["mv", "domrename"], "gpuvm rename"),
    (&["enable", "disable"], "gpuvm autostart"),
    (&["move", "migrate", "backup"], "gpuvm export --bundle"),
    (&["doctor", "diagnose", "health"], "gpuvm host doctor"),
    (&["capture", "record"], "gpuvm host capture"),
    (&["matrix"], "gpuvm host matrix"),
    (&["restore", "revert"], "gpuvm snapshot revert"),
    (&["rollback", "revert"], "gpuvm undo"),
    (&["mount", "attach-disk", "volume", "volumes", "storage"], "gpuvm disk"),
    (&["events", "journal"], "gpuvm history"),
    (&["completion", "autocomplete"], "gpuvm completions"),
    (&["manual", "docs"], "gpuvm man"),
];

/// Verbs of a group that mean the same, or for which one is typed in place of the other.
const ALIKE: [&[&str]; 4] = [
    &["list", "ls", "ps", "all", "get"],
    &["show", "info", "describe", "inspect", "status", "get", "cat"],
    &["create", "add", "new", "make", "pull", "fetch", "download", "import", "attach", "define"],
    &["delete", "remove", "rm", "del", "destroy", "drop", "detach", "purge", "undefine"],
];

/// Words that other tools take where a verb of ours takes another, and the replacement.
const WORDS_ELSEWHERE: [(&str, &[&str], &str); 13] = [
    ("create", &["-f", "--file", "--filename"], "`gpuvm apply -f FILE` makes the guests of a file"),
    ("create", &["--cdrom", "--location", "--import"], "`--image NAME` or `--disk PATH` boots it"),
    ("create", &["--os-variant", "--osinfo", "--os-type"], "leave it out: no option depends on it"),
    ("list", &["-a", "--all"], "leave it out: all domains are listed"),
    (
        "delete",
        &["-f", "--file", "--filename"],
        "`gpuvm apply -f FILE --prune` deletes guests of a file",
    ),
    ("delete", &["-a", "--all"], "name the guests: `gpuvm delete NAME NAME`"),
    ("undo", &["-a", "--all"], "name the guests: `gpuvm undo NAME NAME`"),
    (
        "plan",
        &["-f", "--file", "--filename"],
        "`gpuvm apply -f FILE --dry-run` plans the guests of a file",
    ),
    ("show", &["-o", "--output"], "`--json`, or `gpuvm get NAME -o yaml`"),
    ("ssh", &["-l", "--login"], "`--user USER` logs in as another user"),
    ("add", &["--size"], "`size=SIZE` in place of a path, such as size=10G"),
    ("add", &["--pool"], "`size=SIZE,pool=POOL` in place of a path"),
    ("snapshot", &["-n", "--name"], "leave it out: the snapshot's name follows the guest's"),
];

/// The same for any verb that has the option of the first column.
const OPTIONS_ELSEWHERE: [(&str, &[&str], &str); 8] = [
    ("json", &["--format", "-o", "--output"], "`--json` prints JSON"),
    ("memory", &["--ram", "--mem"], "`--memory SIZE`, such as 16G"),
    ("vcpus", &["--cpus", "--cpu", "--cores"], "`--vcpus N`"),
    ("vf", &["--vlan"], "`--network NAME,vlan=ID`, or `--vf 1,vlan=ID`"),
    (
        "nvme",
        &["--hostdev", "--host-device", "--device"],
        "`--gpu`, `--nic` and `--nvme` pass a device through",
    ),
    ("os-size", &["--disk-size", "--root-size"], "`--os-size SIZE`"),
    ("wait", &["--timeout"], "`--wait SECONDS`"),
    ("connect", &["--uri", "-u"], "`--connect URI` names another libvirt"),
];

/// Suggests our verbs for a word that is none.
pub fn name_the_verb(error: &mut clap::Error, words: &[OsString]) {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidSubcommand) else {
        return;
    };
    let (root, unknown) = (whole(), unknown.clone());
    let until = words.iter().position(|word| *word == *unknown).unwrap_or(words.len());
    let (group, path) = deepest(&root, &words[..until]);
    let mut known = if path.is_empty() { elsewhere(&unknown) } else { alike(group, &unknown) };
    if known.is_empty() {
        known.extend(by_spelling(group, &unknown));
    }
    error.remove(ContextKind::SuggestedSubcommand);
    let below = path.iter().map(|verb| format!(" {verb}")).collect::<String>();
    let ours = known.iter().map(|ours| {
        if ours.starts_with("gpuvm ") { ours.clone() } else { format!("gpuvm{below} {ours}") }
    });
    let tips: Vec<StyledStr> = ours.map(|ours| tip(&root, &ours).into()).collect();
    if !tips.is_empty() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
}

/// Suggests ours for an argument that a verb does not take.
pub fn name_the_argument(error: &mut clap::Error, words: &[OsString]) {
    if error.kind() != ErrorKind::UnknownArgument {
        return;
    }
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return };
    let (root, unknown) = (whole(), unknown.clone());
    let (verb, path) = deepest(&root, words);
    // clap would offer the option as the value of a name.
    error.remove(ContextKind::Suggested);
    error.remove(ContextKind::SuggestedArg);
    let before = words.iter().filter_map(|word| word.to_str());
    let before = before.take_while(|word| *word != unknown).last().unwrap_or_default();
    let instead =
        instead(verb, &path, &unknown, before).or_else(|| option_by_spelling(verb, &unknown));
    if let Some(instead) = instead {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![instead.into()]));
    }
}

/// Names `--all` where a verb that takes it lacks the names.
pub fn name_all(error: &mut clap::Error, words: &[OsString]) {
    if error.kind() != ErrorKind::MissingRequiredArgument {
        return;
    }
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else { return };
    if !missing.iter().any(|arg| arg.starts_with("<NAME")) {
        return;
    }
    let root = whole();
    let (verb, path) = deepest(&root, words);
    if verb.get_arguments().any(|arg| arg.get_long() == Some("all")) {
        let instead = format!("`gpuvm {} --all` means every guest", path.join(" "));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![instead.into()]));
    }
}

/// The verb that a command line names, and its path.
fn deepest<'a>(root: &'a Command, words: &'a [OsString]) -> (&'a Command, Vec<&'a str>) {
    let (mut at, mut path) = (root, Vec::new());
    for word in words.iter().skip(1).filter_map(|word| word.to_str()) {
        if let Some(below) = at.find_subcommand(word) {
            at = below;
            path.push(below.get_name());
        }
    }
    (at, path)
}

/// Our verbs for a verb of another tool.
fn elsewhere(unknown: &str) -> Vec<String> {
    if unknown == "version" {
        return vec!["gpuvm --version".to_owned()];
    }
    let found = VERBS_ELSEWHERE.iter().filter(|(words, _)| words.contains(&unknown));
    found.map(|(_, ours)| (*ours).to_owned()).collect()
}

/// The verbs of a group that match the typed word.
fn alike(group: &Command, unknown: &str) -> Vec<String> {
    let alike = ALIKE.iter().filter(|words| words.contains(&unknown));
    let verbs = alike.flat_map(|words| words.iter());
    verbs.filter(|verb| has_verb(group, verb)).map(|verb| (*verb).to_owned()).collect()
}

/// Whether a group has a verb of this very name.
fn has_verb(group: &Command, name: &str) -> bool {
    group.get_subcommands().any(|below| below.get_name() == name)
}

/// The verb that is spelt almost like this, or whose plural it is.
fn by_spelling(group: &Command, unknown: &str) -> Option<String> {
    let singular = unknown.strip_suffix('s').filter(|one| has_verb(group, one));
    let names: Vec<&str> = group.get_subcommands().map(Command::get_name).collect();
    singular.or_else(|| nearest(unknown, names)).map(str::to_owned)
}

/// The candidate that is most similar, if it is similar enough: a slip of the fingers seldom
/// changes the first letter.
fn nearest<'a>(unknown: &str, mut candidates: Vec<&'a str>) -> Option<&'a str> {
    candidates.retain(|one| one.chars().next() == unknown.chars().next());
    similar::get_close_matches(unknown, &candidates, 1, NEAR).first().copied()
}

/// The option that is spelt almost like this.
fn option_by_spelling(verb: &Command, unknown: &str) -> Option<String> {
    let unknown = unknown.strip_prefix("--")?;
    let shown = verb.get_arguments().filter(|arg| !arg.is_hide_set());
    let names: Vec<&str> = shown.filter_map(clap::Arg::get_long).collect();
    let near = nearest(unknown, names)?;
    let value = verb.get_arguments().find(|arg| arg.get_long() == Some(near));
    let value = value.filter(|arg| arg.get_action().takes_values());
    let value = value.and_then(|arg| arg.get_value_names()?.first().map(ToString::to_string));
    let value = value.map(|value| format!(" {value}")).unwrap_or_default();
    Some(format!("`--{near}{value}` is spelt like it"))
}

/// The replacement for a word that a verb does not take; `None` if it is not known. `before`: the
/// word before it.
fn instead(verb: &Command, path: &[&str], unknown: &str, before: &str) -> Option<String> {
    let has = |option: &str| verb.get_arguments().any(|arg| arg.get_long() == Some(option));
    let is_option = unknown.starts_with('-');
    let option = unknown.split('=').next().unwrap_or(unknown);
    let of_verb = WORDS_ELSEWHERE
        .iter()
        .find(|(name, words, _)| path.contains(name) && words.contains(&option));
    let of_any = OPTIONS_ELSEWHERE.iter().find(|(ours, words, _)| {
        (has(ours) || ["json", "connect"].contains(ours)) && words.contains(&option)
    });
    if let Some((.., tip)) = of_verb.or(of_any) {
        return Some((*tip).to_owned());
    }
    let name = verb.get_name();
    match option {
        "--yes" | "-y" | "--force" | "-f" if !has("yes") => {
            Some(format!("leave it out: `{name}` does not ask"))
        }
        "--name" | "--domain" if verb.get_positionals().any(|arg| arg.get_id() == "name") => {
            Some(format!("leave `{option}` out: the name follows the verb"))
        }
        _ if is_option => None,
        _ => in_place(name, path, unknown, before).or_else(|| counted(verb, unknown, before)),
    }
}

/// The same for a word that is no option.
fn in_place(verb: &str, path: &[&str], unknown: &str, before: &str) -> Option<String> {
    let unknown = word(unknown);
    match verb {
        "apply" => Some(format!("`-f {unknown}` names the file")),
        "make-room" if unknown.parse::<u32>().is_ok() => Some(format!("`--gpus {unknown}`")),
        "vfs" if unknown.parse::<u32>().is_ok() => Some(format!("`--count {unknown}`")),
        "ssh" => Some(format!("`-- {unknown}` runs it in the guest")),
        "list" if path == ["list"] => Some(format!("`gpuvm show {unknown}` shows one guest")),
        "add" if path == ["disk", "add"] && before.starts_with("size") => {
            Some(format!("`size={unknown}`"))
        }
        "plan" | "capacity" | "matrix" | "show" | "doctor"
            if path.len() < 3 && (path[0] == "host" || unknown.ends_with(".json")) =>
        {
            Some(format!("`--host {unknown}` reads a recorded host"))
        }
        _ => None,
    }
}

/// The option that `2 gpus` means.
fn counted(verb: &Command, unknown: &str, before: &str) -> Option<String> {
    let number = before.parse::<u32>().ok()?;
    let names =
        [unknown.to_owned(), format!("{unknown}s"), unknown.trim_end_matches('s').to_owned()];
    let option = verb.get_arguments().filter_map(clap::Arg::get_long);
    let option = option.into_iter().find(|option| names.iter().any(|name| name == option))?;
    Some(format!("`--{option} {number}`"))
}

/// A command with the description of its verb.
fn tip(root: &Command, ours: &str) -> String {
    let mut words = ours.split(' ').skip(1).take_while(|word| !word.starts_with('-'));
    let verb = words.try_fold(root, |at, word| at.find_subcommand(word));
    let about = verb.filter(|verb| verb.get_name() != "gpuvm").and_then(Command::get_about);
    match about {
        Some(about) => format!("`{ours}`: {about}"),
        None => format!("`{ours}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Cli;
    use clap::CommandFactory as _;

    /// The tip for a command line.
    fn tips(line: &str) -> String {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let mut error = Cli::command().try_get_matches_from(&words).unwrap_err();
        name_the_verb(&mut error, &words);
        name_the_argument(&mut error, &words);
        let text = error.render().to_string();
        let tips = text.lines().filter_map(|line| line.trim().strip_prefix("tip: "));
        tips.collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn a_word_of_another_tool_is_answered_by_ours() {
        for (line, ours) in [
            ("gpuvm version", "`gpuvm --version`"),
            ("gpuvm usage", "`gpuvm list --long`"),
            ("gpuvm mount", "`gpuvm disk`"),
            ("gpuvm snapshots", "`gpuvm snapshot`"),
            ("gpuvm lst", "`gpuvm list`"),
            ("gpuvm crate", "`gpuvm create`"),
            ("gpuvm doctor", "`gpuvm host doctor`"),
            ("gpuvm guest list", "`gpuvm list`"),
            ("gpuvm image pull x", "`gpuvm image add`"),
            ("gpuvm host info", "`gpuvm host show`"),
            ("gpuvm network destroy x", "`gpuvm network delete`"),
            ("gpuvm snapshot remove a s", "`gpuvm snapshot delete`"),
            ("gpuvm create --vlan 3", "vlan=ID"),
            ("gpuvm create --ram 4G", "`--memory SIZE`"),
            ("gpuvm plan --cpus=4", "`--vcpus N`"),
            ("gpuvm create --memroy 3G", "`--memory SIZE`"),
            ("gpuvm ip a --yes", "leave it out: `ip` does not ask"),
            ("gpuvm rename a b --yes", "leave it out: `rename` does not ask"),
            ("gpuvm ssh -l x a", "`--user USER`"),
            ("gpuvm disk add a --size 10G", "`size=SIZE`"),
            ("gpuvm create 2 gpus", "`--gpus 2`"),
            ("gpuvm host show dgx-2.json", "`--host dgx-2.json`"),
            ("gpuvm list --format json", "`--json`"),
            ("gpuvm list -o json", "`--json`"),
            ("gpuvm list a", "`gpuvm show a`"),
            ("gpuvm nic vfs eth0 4", "`--count 4`"),
            ("gpuvm delete --all", "name the guests"),
            ("gpuvm apply guests.yaml", "`-f guests.yaml`"),
            ("gpuvm ssh a uptime", "`-- uptime`"),
        ] {
            assert!(tips(line).contains(ours), "{line}: {}", tips(line));
        }
    }

    #[test]
    fn dissimilar_words_are_not_suggested() {
        for line in ["gpuvm frobnicate", "gpuvm host frobnicate", "gpuvm create --frobnicate"] {
            assert_eq!(tips(line), "", "{line}");
        }
        for line in ["gpuvm list --xml", "gpuvm ip a --xml"] {
            assert!(!tips(line).contains("-- --"), "{line}: {}", tips(line));
        }
    }

    #[test]
    fn every_tip_names_a_verb_that_there_is() {
        let root = whole();
        for (_, ours) in VERBS_ELSEWHERE {
            let mut words = ours.split(' ').skip(1).take_while(|word| !word.starts_with('-'));
            assert!(words.try_fold(&root, |at, word| at.find_subcommand(word)).is_some(), "{ours}");
        }
    }

    #[test]
    fn all_is_named_where_names_are_missing_and_it_is_taken() {
        let said = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let mut error = Cli::command().try_get_matches_from(&words).unwrap_err();
            name_all(&mut error, &words);
            error.to_string()
        };
        assert!(said("gpuvm get").contains("`gpuvm get --all` means every guest"));
        assert!(said("gpuvm stop").contains("`gpuvm stop --all` means every guest"));
        assert!(!said("gpuvm delete").contains("--all"));
        assert!(!said("gpuvm get --nosuch").contains("--all"));
    }
}
