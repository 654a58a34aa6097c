//! The format of journals and histories: steps that older versions have recorded.

use super::*;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Steps of every kind, each as its JSON and, on the next line, its text. Lines may be added, never
/// changed: journals and histories of older versions have them.
const RECORDED: &str = include_str!("recorded.txt");

#[test]
fn steps_of_every_kind_are_read_and_written_as_they_were_recorded() {
    let mut now = String::new();
    let mut kinds = BTreeSet::new();
    for line in RECORDED.lines().filter(|line| line.starts_with('{')) {
        let step: Step = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        let json = serde_json::to_string(&step).unwrap();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        kinds.insert(value["step"].as_str().unwrap().to_owned());
        writeln!(now, "{json}\n  {step}").unwrap();
    }
    for (now, recorded) in now.lines().zip(RECORDED.lines()) {
        assert_eq!(now, recorded);
    }
    assert_eq!(kinds, Step::kinds().iter().map(|&kind| kind.to_owned()).collect());
}

#[test]
fn a_damaged_step_is_an_error_with_its_fault() {
    let damaged = [
        ("{}", "missing field `step`"),
        ("7", "invalid type: integer `7`"),
        (r#"{"step":7}"#, "invalid type: integer `7`"),
        (r#"{"step":"define-domain","name":"a"}"#, "step `define-domain`: missing field `xml`"),
        (r#"{"step":"define-domain","name":7,"xml":""}"#, "integer `7`, expected a string"),
        (r#"{"step":"array","do":"x"}"#, "unknown variant `x`, expected one of `replace-text`"),
        (r#"{"step":"array"}"#, "missing field `do`"),
        (r#"{"step":"reset-device","bdf":"x"}"#, "`x` is not a PCI address"),
        (r#"{"step":"set-pages","node":-1}"#, "invalid value: integer `-1`, expected u32"),
        (r#"{"step":"polish-lens"}"#, "unknown variant `polish-lens`, expected one of `"),
    ];
    for (text, wrong) in damaged {
        let error = serde_json::from_str::<Step>(text).unwrap_err().to_string();
        assert!(error.contains(wrong), "{text}: {error}");
    }
}
