//! Tests that this machine cannot run: each reports it, is listed at the end of the run, and fails
//! if GPUVM_NO_SKIP is set, unless its reason is one of [`lawful`](super::lawful). Unit tests of
//! the crates use this file as well.

use std::io::Write as _;

/// Set to 1 if a skipped test counts as failed: in `.ci/run`.
const STRICT: &str = "GPUVM_NO_SKIP";
/// The file that lists skipped tests, one per line; `tests/with-root` shows it.
const LIST: &str = "GPUVM_SKIPPED";

/// A reason that CI accepts as well: no package provides the missing part.
#[derive(Clone, Copy)]
pub struct Lawful(pub &'static str);

/// The reason a test is skipped.
pub struct Why {
    /// The missing parts.
    text: String,
    /// Whether CI accepts it.
    is_lawful: bool,
}

impl From<&str> for Why {
    fn from(text: &str) -> Why {
        Why { text: text.to_owned(), is_lawful: false }
    }
}

impl From<String> for Why {
    fn from(text: String) -> Why {
        Why { text, is_lawful: false }
    }
}

impl From<&String> for Why {
    fn from(text: &String) -> Why {
        Why { text: text.clone(), is_lawful: false }
    }
}

impl From<Lawful> for Why {
    fn from(Lawful(text): Lawful) -> Why {
        Why { text: text.to_owned(), is_lawful: true }
    }
}

/// Skips the running test and returns nothing: `()`, `None`, `false`.
///
/// # Panics
///
/// If GPUVM_NO_SKIP is 1 and the reason is not lawful.
pub fn skip<T: Default>(why: impl Into<Why>) -> T {
    let why = why.into();
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let line = line(&test, &why);
    eprintln!("skipped: {line}");
    if let Some(list) = std::env::var_os(LIST) {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(list);
        // One write, so that lines of concurrent tests do not mix.
        let _ = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    }
    judge(&why, std::env::var(STRICT).is_ok_and(|value| value == "1"));
    T::default()
}

/// The line of the list.
fn line(test: &str, why: &Why) -> String {
    let text = why.text.split_whitespace().collect::<Vec<_>>().join(" ");
    let note = if why.is_lawful { " (allowed in CI)" } else { "" };
    format!("{test}: {text}{note}")
}

/// Fails if skips are not allowed.
fn judge(why: &Why, is_strict: bool) {
    assert!(!is_strict || why.is_lawful, "skipped, and {STRICT}=1 is set: {}", why.text);
}

#[test]
fn a_skipped_test_fails_where_that_is_asked_for_and_takes_one_line() {
    let (missing, lawful) = (Why::from("no x:\n  not found\n"), Why::from(Lawful("no /dev/y")));
    assert_eq!(line("a::b", &missing), "a::b: no x: not found");
    assert_eq!(line("a::c", &lawful), "a::c: no /dev/y (allowed in CI)");
    judge(&missing, false);
    judge(&lawful, true);
    let failed = std::panic::catch_unwind(|| judge(&Why::from("no x"), true)).unwrap_err();
    assert!(failed.downcast_ref::<String>().is_some_and(|said| said.contains("no x")));
}
