//! Golden files of `tests/golden`: the expected results, written without words and names, which may
//! change.

use std::fmt::Debug;

/// Extracts the values from debug output: numbers, quoted texts, booleans.
pub(crate) fn values(of: &impl Debug) -> String {
    let text = format!("{of:?}").replace("0000:", "");
    let mut found = Vec::new();
    for (part, quoted) in text.split('"').zip([false, true].into_iter().cycle()) {
        if quoted {
            found.push(format!("'{part}'"));
            continue;
        }
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_.:-".contains(c);
        let words = part.split(|c| !is_part(c)).map(|word| word.trim_matches([':', '.', '-']));
        let is_fact = |word: &&str| {
            word.starts_with(|c: char| c.is_ascii_digit())
                || matches!(*word, "true" | "false" | "None")
        };
        found.extend(words.filter(is_fact).map(str::to_owned));
    }
    found.join(" ")
}

pub(crate) fn numbers(text: &str) -> String {
    let text = text.replace("0000:", "");
    let is_part = |c: char| c.is_ascii_digit() || c == '.';
    let parts = text.split(|c| !is_part(c)).map(|part| part.trim_matches('.'));
    parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Compares a text with a golden file, or renews the file.
#[allow(clippy::disallowed_methods)] // Writes files of the project.
pub(crate) fn compare(name: &str, was: &str, is: &str) {
    if std::env::var_os("GPUVM_RENEW").is_some() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden");
        return std::fs::write(format!("{root}/{name}"), is).unwrap();
    }
    for (number, (was, is)) in was.lines().zip(is.lines()).enumerate() {
        assert_eq!(was, is, "{name}, line {}; GPUVM_RENEW=1 renews it", number + 1);
    }
    assert_eq!(was.lines().count(), is.lines().count(), "{name}");
}
