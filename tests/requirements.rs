//! The README's table of the guide's requirements: every rule and option that it names is there.

use clap::CommandFactory as _;
use gpuvm::cli::args::Cli;
use gpuvm::verify;
use std::collections::BTreeSet;

/// The rows of the table, each as its cells.
fn rows() -> Vec<Vec<&'static str>> {
    let table = include_str!("../README.md").split("## The guide's requirements").nth(1).unwrap();
    let table = table.split("\n## ").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| "));
    let cells = |line: &'static str| line.trim_matches('|').split('|').map(str::trim).collect();
    rows.skip(1).map(cells).collect()
}

/// What stands between backquotes.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
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
fn every_requirement_has_a_row() {
    let mut numbers: Vec<u32> = Vec::new();
    for row in rows() {
        assert_eq!(row.len(), 5, "{row:?}");
        numbers.extend(row[0].split(", ").map(|number| number.parse::<u32>().unwrap()));
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=33).collect::<Vec<_>>());
}

#[test]
fn what_the_table_names_is_there() {
    let rules: BTreeSet<&str> = verify::rules().map(|rule| rule.id).collect();
    let command = Cli::command();
    let verbs: BTreeSet<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
    let mut known = BTreeSet::new();
    options(&command, &mut known);
    let mut named = 0;
    for row in rows() {
        for rule in quoted(row[3]) {
            assert!(rules.contains(rule), "no rule `{rule}`: {row:?}");
        }
        for words in quoted(row[2]).chain(quoted(row[4])) {
            let verb = words.split(' ').next().unwrap();
            assert!(verbs.contains(verb), "no verb `{verb}`: {row:?}");
            for option in words.split(' ').filter(|word| word.starts_with("--")) {
                named += 1;
                assert!(known.contains(option), "no option `{option}`: {row:?}");
            }
        }
    }
    assert!(named > 20, "only {named} options were seen: the test proves nothing");
}
