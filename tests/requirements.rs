//! The guide's requirements in gpuvm-nvidia-vm(7): every rule and option that the list names
//! exists.

use crate::manual::{bold, pages, plain};
use clap::CommandFactory as _;
use gpuvm::cli::args::Cli;
use gpuvm::verify;
use std::collections::BTreeSet;

/// A requirement: its numbers, and the commands that install it, find it missing and remove it, as
/// roff.
struct Requirement {
    numbers: Vec<u32>,
    here: String,
    rules: String,
    back: String,
}

/// The requirements of the page.
fn requirements() -> Vec<Requirement> {
    let page = pages().remove("gpuvm-nvidia-vm.7").unwrap();
    let list = page.split("\n.SH REQUIREMENTS OF THE GUIDE\n").nth(1).unwrap();
    let items = list.split("\n.SH ").next().unwrap().split("\n.TP 4\n").skip(1);
    items
        .map(|item| {
            let (tag, text) = item.split_once('\n').unwrap();
            let numbers = plain(tag).split_once(". ").unwrap().0.to_owned();
            let part = |name: &str| {
                let mut parts = text.split("\n.br\n").map(|part| part.replace('\n', " "));
                let part = parts.find_map(|part| part.strip_prefix(name).map(str::to_owned));
                part.unwrap_or_default()
            };
            let numbers = numbers.split(", ").map(|number| number.parse().unwrap()).collect();
            let (here, rules, back) = (part("Here: "), part("Rules: "), part("Back: "));
            Requirement { numbers, here, rules, back }
        })
        .collect()
}

/// The long options of a verb and of the verbs below it.
fn options(command: &clap::Command, into: &mut BTreeSet<String>) {
    for argument in command.get_arguments() {
        into.extend(argument.get_long().map(|long| format!("--{long}")));
        into.extend(
            argument.get_all_aliases().unwrap_or_default().iter().map(|a| format!("--{a}")),
        );
    }
    command.get_subcommands().for_each(|below| options(below, into));
}

#[test]
fn every_requirement_is_listed() {
    let all = requirements();
    assert!(all.iter().all(|one| !one.here.is_empty()));
    let mut numbers: Vec<u32> = all.into_iter().flat_map(|one| one.numbers).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=33).collect::<Vec<_>>());
}

#[test]
fn listed_requirements_exist() {
    let rules: BTreeSet<&str> = verify::rules().map(|rule| rule.id).collect();
    let mut command = Cli::command();
    command.build();
    let verbs: BTreeSet<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
    let mut known = BTreeSet::new();
    options(&command, &mut known);
    let (mut named, mut ruled) = (0, 0);
    for one in requirements() {
        let numbers = &one.numbers;
        for rule in bold(&one.rules) {
            ruled += 1;
            assert!(rules.contains(&*rule), "no rule `{rule}`: {numbers:?}");
        }
        for words in bold(&one.here).into_iter().chain(bold(&one.back)) {
            let verb = words.split(' ').next().unwrap();
            assert!(verbs.contains(verb), "no verb `{verb}`: {numbers:?}");
            for option in words.split(' ').filter(|word| word.starts_with("--")) {
                named += 1;
                assert!(known.contains(option), "no option `{option}`: {numbers:?}");
            }
        }
    }
    assert!(named > 20 && ruled > 40, "{named} options, {ruled} rules: the test proves nothing");
}
