//! Parts shared by the help of every verb: the groups of verbs, the last line of `-h`, the exit
//! status.

use super::heading::GLOBAL;
use super::late;
use clap::Command;
use std::fmt::Write as _;

/// The verbs by purpose, as `gpuvm -h` and gpuvm(1) list them.
pub const GROUPS: [(&str, &[&str]); 5] = [
    (
        "Guests",
        &[
            "create",
            "apply",
            "make-room",
            "get",
            "list",
            "show",
            "start",
            "stop",
            "restart",
            "pause",
            "resume",
            "autostart",
            "ip",
            "console",
            "logs",
            "ssh",
            "cp",
            "exec",
            "shell",
            "set",
            "rename",
            "clone",
            "import",
            "delete",
            "disk",
            "snapshot",
            "seed",
        ],
    ),
    ("Planning (changes nothing)", &["plan", "capacity", "export", "fleet"]),
    (
        "Tuning and checks",
        &["tune", "check", "verify", "top", "measure", "nccl", "history", "undo", "recover"],
    ),
    (
        "Host, devices, networks",
        &["host", "gpu", "vgpu", "fabric", "device", "nic", "drive", "network", "image", "slurm"],
    ),
    ("This program", &["completions", "man", "schema", "help"]),
];

/// The help of clap's own verb; it is not among the types.
const HELP: &str = "Print the help of a command";

/// The last line of `gpuvm -h`; gpuvm(1) lists the other pages of the manual.
const GUIDE: &str = "`gpuvm COMMAND --help` explains a command; `man gpuvm-guide` is the guide.";

/// Columns of help where neither a terminal nor `COLUMNS` says how many there are.
const WIDTH: usize = 80;
/// The widest help that is easy to read.
const WIDEST: usize = 100;

/// The command line with complete help.
pub fn command() -> Command {
    let root = dressed(late::whole(), "gpuvm");
    let top = top(&root);
    root.help_template(top)
}

/// The same, with its help in as many columns as standard output has.
pub fn fitted(columns: Option<usize>) -> Command {
    command().term_width(columns.unwrap_or(WIDTH).min(WIDEST))
}

/// The command with the last lines of its help, and those below it.
fn dressed(command: Command, path: &str) -> Command {
    let is_verb = !command.has_subcommands();
    let command = match (is_verb, command.get_after_long_help().map(ToString::to_string)) {
        (true, examples) => {
            let mut long = examples.map(|text| text + "\n\n").unwrap_or_default();
            long.push_str("Exit status:");
            for (code, meaning) in exit_status(path) {
                let _ = write!(long, "\n  {code:<2}  {meaning}");
            }
            let all = format!("`{path} --help` shows all options and examples.");
            command.after_help(all).after_long_help(long)
        }
        (false, _) => {
            let more = format!("`{path} COMMAND --help` explains a command in full.");
            command.after_help(if path == "gpuvm" { GUIDE.to_owned() } else { more })
        }
    };
    let command = command.mut_args(|arg| match arg.get_long_help().map(ToString::to_string) {
        Some(text) => arg.long_help(joined(&text)),
        None => arg,
    });
    command.mut_subcommands(|below| {
        let path = format!("{path} {}", below.get_name());
        dressed(below, &path)
    })
}

/// Joins the lines of each paragraph, which help breaks by its width. Indented lines are a list,
/// and stay.
fn joined(text: &str) -> String {
    let goes_on = |line: &str| !line.is_empty() && !line.starts_with(' ');
    let mut shown = String::with_capacity(text.len());
    let mut above = "";
    for line in text.lines() {
        if !shown.is_empty() {
            shown.push(if goes_on(above) && goes_on(line) { ' ' } else { '\n' });
        }
        shown.push_str(line);
        above = line;
    }
    shown
}

/// Exit codes of a verb, `gpuvm network doctor`, each with its meaning.
pub fn exit_status(path: &str) -> Vec<(u8, &'static str)> {
    let verb = path.strip_prefix("gpuvm ").unwrap_or_default();
    let found = match verb {
        "create" => Some("the guest runs, but had no address in time"),
        "apply" => Some("a change is pending; with --dry-run: something differs"),
        "check" => Some("the domain has mistakes"),
        "verify" => Some("something differs"),
        "top" => Some("one sample had a warning or an error"),
        "measure" => Some("a value is low or a test failed"),
        "gpu test" => Some("a GPU has a fault"),
        "tune" | "nccl" => Some("with --check: something would change"),
        "network doctor" => Some("the path is broken"),
        "host doctor" => Some("an error was found"),
        "fabric show" => Some("a partition is wrong, or Fabric Manager does not answer"),
        "fabric restore" => Some("guests are left without NVLink"),
        "" => Some("a check found something, or a new guest has no address yet"),
        _ => None,
    };
    let done = match verb {
        "check" => "no mistakes",
        "verify" => "no differences",
        "network doctor" => "the path is not broken",
        "host doctor" => "no error, though perhaps warnings",
        "fabric show" => "nothing is wrong",
        _ => "done, or nothing to do",
    };
    let failed = match verb {
        "ip" => "failed, or the guest has no address",
        "verify" => "failed, for one domain or all of them",
        _ => "failed",
    };
    let mut codes = vec![(0, done), (1, failed), (2, "usage error")];
    codes.extend(found.map(|meaning| (3, meaning)));
    codes.push((70, "internal error"));
    codes
}

/// The template of the top level's help, in which the verbs stand in groups.
fn top(root: &Command) -> String {
    let (header, literal) = (root.get_styles().get_header(), root.get_styles().get_literal());
    let width = GROUPS.iter().flat_map(|(_, verbs)| *verbs).map(|verb| verb.len()).max();
    let width = width.unwrap_or_default();
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n\n".to_owned();
    for (group, verbs) in GROUPS {
        let _ = writeln!(text, "{header}{group}:{header:#}");
        for verb in verbs {
            let about = root.find_subcommand(verb).and_then(Command::get_about);
            let about = about.map_or_else(|| HELP.to_owned(), ToString::to_string);
            let _ = writeln!(text, "  {literal}{verb:<width$}{literal:#}  {about}");
        }
        text.push('\n');
    }
    let _ = write!(text, "{header}{GLOBAL}:{header:#}\n{{options}}{{after-help}}");
    text
}
