//! The help of every verb: as in the golden files, within the terminal's width, short with `-h`,
//! and with the same words for the same option everywhere.

use crate::support::{gpuvm, project, run};
use clap::{Arg, Command};
use gpuvm::cli::args::{GROUPS, command};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The widths that are kept.
const WIDTHS: [usize; 2] = [80, 100];
/// The most lines of `-h`.
const SHORT_LINES: usize = 62;
/// Options that have another meaning, and so other words, in some verbs.
const OF_THE_VERB: [&str; 15] = [
    "stdin", "address", "all", "count", "domain", "force", "mtu", "name", "nic", "pool", "print",
    "user", "wait", "nvme", "remove",
];

/// The command line, built for a width, without clap's own verb.
fn built(width: usize) -> Command {
    let mut root = command().term_width(width).disable_help_subcommand(true);
    root.build();
    root
}

/// Calls `each` with every command and its words, a parent before those below it.
fn walk(command: &Command, words: &str, each: &mut impl FnMut(&Command, &str)) {
    each(command, words);
    for below in command.get_subcommands() {
        walk(below, &format!("{words} {}", below.get_name()), each);
    }
}

/// The visible arguments of a command.
fn shown(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| !arg.is_hide_set())
}

/// `-h` or `--help` of a command.
fn help(command: &Command, is_long: bool) -> String {
    let mut command = command.clone();
    let text = if is_long { command.render_long_help() } else { command.render_help() };
    // Lines between paragraphs hold the indentation.
    text.to_string().lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// The help of all verbs at a width.
fn all(width: usize) -> String {
    let root = built(width);
    let mut text = String::new();
    walk(&root, "gpuvm", &mut |command, words| {
        for (flag, is_long) in [("-h", false), ("--help", true)] {
            let mut shown = help(command, is_long);
            if words != "gpuvm" {
                let top = help(&root, is_long);
                let global = &top[top.find("Global options:").unwrap()..top.rfind("\n\n").unwrap()];
                assert!(shown.contains(global), "{words} {flag}: other global options");
                shown = shown.replace(global, "Global options: as above");
            }
            let _ = write!(text, "$ {words} {flag}\n{shown}\n");
        }
    });
    text
}

#[test]
fn help_is_as_it_was_agreed() {
    for width in WIDTHS {
        let path = project().join(format!("tests/golden/help/{width}.txt"));
        let found = all(width);
        if std::env::var_os("GPUVM_RENEW").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &found).unwrap();
        }
        let agreed = std::fs::read_to_string(&path).unwrap_or_default();
        let other = agreed.lines().zip(found.lines()).find(|(agreed, found)| agreed != found);
        assert!(agreed == found, "{}: {other:?}; GPUVM_RENEW=1 renews it", path.display());
    }
}

#[test]
fn help_follows_the_width_of_the_terminal() {
    let columns = [(80, Some("80")), (100, Some("100")), (100, Some("250")), (80, None)];
    for (width, columns) in columns {
        for words in ["gpuvm", "gpuvm create", "gpuvm network host-bridge create"] {
            let root = built(width);
            let below = words.split(' ').skip(1);
            let verb =
                below.clone().fold(&root, |above, word| above.find_subcommand(word).unwrap());
            for (flag, is_long) in [("-h", false), ("--help", true)] {
                let args: Vec<&str> = below.clone().chain([flag]).collect();
                let mut asked = gpuvm(&args);
                // Without it, a pipe has no width.
                match columns {
                    Some(columns) => asked.env("COLUMNS", columns),
                    None => asked.env_remove("COLUMNS"),
                };
                let (code, out, err) = run(&mut asked);
                assert_eq!((code, err.as_str()), (0, ""));
                let out: String =
                    out.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
                assert_eq!(out, help(verb, is_long), "{words} {flag} at {columns:?}");
            }
        }
    }
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for width in WIDTHS {
        walk(&built(width), "gpuvm", &mut |command, words| {
            for text in [help(command, false), help(command, true)] {
                let wide = text.lines().find(|line| line.chars().count() > width);
                assert_eq!(wide, None, "{words} at {width}");
            }
        });
    }
}

#[test]
fn short_help_is_short() {
    walk(&built(80), "gpuvm", &mut |command, words| {
        let short = help(command, false);
        // The first one lists every verb.
        let most = if words == "gpuvm" { SHORT_LINES + 18 } else { SHORT_LINES };
        assert!(short.lines().count() <= most, "{words}: {} lines", short.lines().count());
        // Text that did not fit beside an option is indented deeper than any option.
        let second = short.lines().find(|line| line.starts_with("       "));
        assert_eq!(second, None, "{words} -h: an option takes more than a line");
        let last = short.lines().last().unwrap();
        assert!(last.starts_with('`') && last.contains(" --help` "), "{words} -h ends with {last}");
    });
}

/// The options that a shell offers for a verb.
fn completed(words: &str) -> Vec<String> {
    let line: Vec<_> = words.split(' ').chain(["--"]).map(Into::into).collect();
    let index = line.len() - 1;
    let found = clap_complete::engine::complete(&mut command(), line, index, None).unwrap();
    found.iter().map(|one| one.get_value().to_string_lossy().into_owned()).collect()
}

#[test]
fn every_option_has_help_and_rare_ones_long_help() {
    let pages: BTreeMap<String, String> = gpuvm::cli::pages::all().unwrap().into_iter().collect();
    let mut rare = 0;
    walk(&built(80), "gpuvm", &mut |command, words| {
        let long = help(command, true);
        let page = &pages[&format!("{}.1", words.replace(' ', "-"))];
        let completed = completed(words);
        for section in ["\n.SH \"EXIT STATUS\"\n", "internal error", "\n.SH \"SEE ALSO\"\n"] {
            assert!(page.contains(section), "{words}: no {section}");
        }
        for arg in shown(command) {
            let id = arg.get_id();
            let text = arg.get_help().map(ToString::to_string).unwrap_or_default();
            assert!(!text.is_empty() && !text.ends_with('.'), "{words} {id}: {text:?}");
            assert!(
                arg.get_value_names().unwrap_or_default().iter().all(|name| name.len() <= 20),
                "{words} {id}"
            );
            let Some(name) = arg.get_long() else { continue };
            rare += usize::from(arg.is_hide_short_help_set());
            let option = format!("--{name}");
            assert!(long.contains(&option) && completed.contains(&option), "{words} {option}");
            let item = page.split(&format!("\\fB{}\\fR", option.replace('-', "\\-"))).last();
            let words_there =
                text.split(' ').next().unwrap().replace('-', "\\-").replace('\'', "\\*(Aq");
            let item = item.unwrap().split("\n.TP").next().unwrap();
            assert!(item.contains(&words_there), "{words} {option} in the man page: {item}");
        }
    });
    assert!(rare > 20, "{rare} options are left out of -h");
}

#[test]
fn the_same_option_has_the_same_words_in_every_verb() {
    // One that takes a value is another option than one that takes none.
    let mut known: BTreeMap<(String, bool), (String, Option<String>, String)> = BTreeMap::new();
    let mut others = Vec::new();
    let mut shared = 0;
    walk(&built(80), "gpuvm", &mut |command, words| {
        for arg in shown(command) {
            let Some(name) = arg.get_long().filter(|name| !OF_THE_VERB.contains(name)) else {
                continue;
            };
            let text = arg.get_help().unwrap().to_string();
            let heading = arg.get_help_heading().map(str::to_owned);
            let key = (name.to_owned(), arg.get_action().takes_values());
            match known.get(&key) {
                None => {
                    known.insert(key, (text, heading, words.to_owned()));
                }
                Some((other, under, verb)) => {
                    shared += 1;
                    if (&text, &heading) != (other, under) {
                        others.push(format!("--{name} of {words} and of {verb}"));
                    }
                }
            }
        }
    });
    assert!(others.is_empty() && shared > 300, "{shared}: {others:#?}");
}

#[test]
fn every_verb_that_asks_takes_the_short_yes() {
    let mut without = Vec::new();
    walk(&built(80), "gpuvm", &mut |command, words| {
        let yes = shown(command).find(|arg| arg.get_long() == Some("yes"));
        if yes.is_some_and(|yes| yes.get_short() != Some('y')) {
            without.push(words.to_owned());
        }
    });
    assert_eq!(without, Vec::<String>::new());
}

#[test]
fn usage_and_arguments_agree_on_required_ones() {
    let root = built(80);
    for (verb, usage) in [(["vgpu", "vfs"], "<--on|--off> <PF>"), (["nic", "vfs"], "<PF>")] {
        let found = verb.iter().fold(&root, |above, word| above.find_subcommand(word).unwrap());
        let short = help(found, false);
        assert!(short.contains(usage) && !short.contains("[PF]"), "{short}");
        let takes = |more: &[&str]| {
            let line = [&["gpuvm"][..], &verb, more].concat();
            command().try_get_matches_from(line).is_ok()
        };
        // The unit of --at-boot gives its own option alone.
        let early = if verb[0] == "nic" { "3b:00.0=8086:1572=4" } else { "3b:00.0" };
        assert!(takes(&["--early", early]) && !takes(&[]) && !takes(&["--at-boot"]), "{verb:?}");
    }
}

#[test]
fn short_help_has_what_other_pages_send_readers_for() {
    let root = built(80);
    let short = |verb: &str| help(root.find_subcommand(verb).unwrap(), false);
    for verb in ["create", "plan", "export", "make-room", "capacity", "set"] {
        assert!(short(verb).contains("--vgpu <TYPE"), "{verb}");
    }
    assert!(short("create").contains("--accept-shared-fabric"));
    let prolog = root.find_subcommand("slurm").unwrap().find_subcommand("prolog").unwrap();
    let prolog = help(prolog, false);
    let arguments = prolog.split("Arguments:\n").nth(1).unwrap();
    assert!(arguments.lines().next().unwrap().contains("CREATE OPTIONS"), "{prolog}");
}

#[test]
fn every_verb_is_in_one_group() {
    let root = command();
    let mut verbs: Vec<&str> =
        root.get_subcommands().map(Command::get_name).chain(["help"]).collect();
    let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, verbs)| *verbs).copied().collect();
    let order: Vec<&str> = grouped.iter().copied().filter(|verb| *verb != "help").collect();
    assert_eq!(order, verbs[..verbs.len() - 1], "the types have another order");
    verbs.sort_unstable();
    grouped.sort_unstable();
    assert_eq!(verbs, grouped);
}

#[test]
fn examples_are_command_lines() {
    let mut seen = 0;
    walk(&built(80), "gpuvm", &mut |verb, words| {
        let Some(text) = verb.get_after_long_help() else {
            assert!(verb.has_subcommands(), "{words} has no examples");
            return;
        };
        let text = text.to_string().replace("\\\n", "");
        assert!(text.starts_with("Examples:\n  "), "{words}: {text}");
        let lines = text.lines().filter_map(|line| line.strip_prefix("  gpuvm "));
        // A shell substitution is not a value.
        for line in lines.filter(|line| !line.contains("$(")) {
            let line = line.split(['>', '|', '<', '&']).next().unwrap().replace('\'', "");
            // A quoted value has blanks, which no other option takes.
            let line = line.split(" --reason").next().unwrap();
            let given = ["gpuvm"].into_iter().chain(line.split_whitespace());
            let matches = command().try_get_matches_from(given);
            assert!(matches.is_ok(), "{words}: {line}: {}", matches.unwrap_err());
            seen += 1;
        }
    });
    assert!(seen > 100, "{seen}");
}
