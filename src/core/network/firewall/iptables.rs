//! Parses the output of `iptables-save`: the table `filter`, the only one that drops packets of
//! guests.

use super::{Action, Asks, Chain, Condition, Hook, Rule, Ruleset, subnet};

/// Parses the output as a table of this name; unknown lines are ignored.
pub fn read(text: &str, table: &str) -> Ruleset {
    let mut rules = Ruleset::default();
    let mut is_filter = false;
    let key = |chain: &str| (table.to_owned(), chain.to_owned());
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('*') {
            is_filter = name == "filter";
        } else if !is_filter {
            continue;
        } else if let Some(chain) = line.strip_prefix(':') {
            let mut words = chain.split_whitespace();
            let name = words.next().unwrap_or_default();
            let hook = match name {
                "INPUT" => Some(Hook::Input),
                "FORWARD" => Some(Hook::Forward),
                _ => None,
            };
            let drops = words.next() == Some("DROP");
            rules.chains.insert(key(name), Chain { hook, drops, rules: Vec::new() });
        } else if let Some((name, rule)) = rule(line) {
            rules.chains.entry(key(&name)).or_default().rules.push(rule);
        }
    }
    rules
}

/// The words of a line; a quoted part is one word.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted, mut open) = (Vec::new(), String::new(), false, false);
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' if quoted => word.extend(letters.next()),
            '"' => (quoted, open) = (!quoted, true),
            letter if letter.is_whitespace() && !quoted => {
                if open {
                    words.push(std::mem::take(&mut word));
                }
                open = false;
            }
            letter => {
                word.push(letter);
                open = true;
            }
        }
    }
    if open {
        words.push(word);
    }
    words
}

/// A rule, with the name of its chain.
fn rule(line: &str) -> Option<(String, Rule)> {
    let words = words(line);
    let mut words = words.iter().map(String::as_str).peekable();
    if words.next() != Some("-A") {
        return None;
    }
    let chain = words.next()?.to_owned();
    let (mut conditions, mut action, mut not) = (Vec::new(), Action::Next, false);
    while let Some(word) = words.next() {
        let asks = match word {
            "!" => {
                not = true;
                continue;
            }
            "-j" | "-g" => {
                action = match (words.next().unwrap_or_default(), word) {
                    ("ACCEPT", _) => Action::Accept,
                    ("DROP" | "REJECT", _) => Action::Drop,
                    ("RETURN", _) => Action::Return,
                    (target, _) if is_extension(target) => Action::Next,
                    (target, "-g") => Action::Goto(target.to_owned()),
                    (target, _) => Action::Jump(target.to_owned()),
                };
                // The rest only says how it is rejected or logged.
                break;
            }
            // Names the module of the following options; the options themselves are the conditions.
            "-m" => {
                words.next();
                continue;
            }
            "--comment" => {
                words.next();
                continue;
            }
            _ => {
                let value = words.next_if(|next| !next.starts_with('-') && *next != "!");
                known(word, value.unwrap_or_default())
            }
        };
        conditions.push(Condition { asks, not: std::mem::take(&mut not) });
    }
    Some((chain, Rule { conditions, action, text: line.to_owned() }))
}

/// Whether a target does not decide about a packet. It is never a chain's name: `iptables` refuses
/// these.
fn is_extension(target: &str) -> bool {
    matches!(
        target,
        "LOG"
            | "NFLOG"
            | "MARK"
            | "CONNMARK"
            | "CT"
            | "TCPMSS"
            | "CHECKSUM"
            | "TRACE"
            | "SET"
            | "AUDIT"
    )
}

/// Returns the condition of an option.
fn known(option: &str, value: &str) -> Asks {
    let device = |make: fn(String, bool) -> Asks| match value.strip_suffix('+') {
        Some(begin) => make(begin.to_owned(), true),
        None => make(value.to_owned(), false),
    };
    let subnets = |make: fn(Vec<super::Subnet>) -> Asks| {
        let all: Option<Vec<_>> = value.split(',').map(subnet).collect();
        all.map_or(Asks::Unknown, make)
    };
    match option {
        "-i" => device(Asks::From),
        "-o" => device(Asks::To),
        "-s" => subnets(Asks::Source),
        "-d" => subnets(Asks::Target),
        "-p" => Asks::Protocol(vec![value.to_owned()]),
        "--dport" | "--dports" => {
            let run = |text: &str| {
                let (first, last) = text.split_once(':').unwrap_or((text, text));
                Some((first.parse().ok()?, last.parse().ok()?))
            };
            value.split(',').map(run).collect::<Option<Vec<_>>>().map_or(Asks::Unknown, Asks::Port)
        }
        "--ctstate" | "--state" => {
            Asks::State(value.split(',').map(str::to_ascii_lowercase).collect())
        }
        _ => Asks::Unknown,
    }
}
