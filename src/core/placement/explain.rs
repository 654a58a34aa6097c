//! Collects a plan's reasons, and formats numbers and names in sentences. Knows no rule of
//! placement.

pub(super) use crate::words::count;

use super::reason::{Because, Reason, Topic};
use std::fmt::Display;

/// Collects the reasons of one plan, in the order of its choices.
#[derive(Debug, Default)]
pub(super) struct Reasons(pub(super) Vec<Reason>);

impl Reasons {
    /// Adds why a choice was made.
    pub(super) fn say(&mut self, choice: Topic, because: impl Into<Because>) {
        self.0.push(Reason { choice, because: because.into(), compromise: false });
    }

    /// Adds remarks about a choice for the admin.
    pub(super) fn compromise(&mut self, choice: Topic, because: impl Into<Because>) {
        self.0.push(Reason { choice, because: because.into(), compromise: true });
    }
}

/// The hint if nothing is left.
pub const NOTHING_LEFT: &str = "`gpuvm capacity` shows what still fits, and what would free more";

/// The hint if no guest gets the GPUs that a host has.
pub const NO_GPUS: &str = "leave --gpus out for a guest without GPUs";
/// The same for GPUs that the request names.
pub const NO_NAMED_GPU: &str = "leave --gpu out for a guest without GPUs";

/// Names in a sentence: `a`, `a and b`, `a, b and c`; beyond eight, the rest as a number.
pub(super) fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    const SHOWN: usize = 8;
    let mut names: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    if names.len() > SHOWN {
        let rest = names.len() - (SHOWN - 1);
        names.truncate(SHOWN - 1);
        names.push(format!("{rest} more"));
    }
    match names.split_last() {
        None => "none".into(),
        Some((only, [])) => only.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
    }
}

/// Domain names in a sentence: "domain `a`", "domains `a` and `b`".
pub(super) fn domains<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_unstable();
    names.dedup();
    let noun = if names.len() == 1 { "domain" } else { "domains" };
    format!("{noun} {}", list(names.iter().map(|name| format!("`{name}`"))))
}

/// Numbers in a sentence, ascending and each once: `1, 2, 4, 8, 16`.
pub(super) fn numbers(numbers: impl IntoIterator<Item = usize>) -> String {
    let set: std::collections::BTreeSet<usize> = numbers.into_iter().collect();
    set.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_as_a_sentence() {
        assert_eq!(list(["a"; 0]), "none");
        assert_eq!(list(["a"]), "a");
        assert_eq!(list(["a", "b", "c"]), "a, b and c");
        assert_eq!(list(1..=20), "1, 2, 3, 4, 5, 6, 7 and 13 more");
        assert_eq!(domains(["b", "a", "b"]), "domains `a` and `b`");
        assert_eq!(numbers([4, 1, 4, 2]), "1, 2, 4");
    }
}
