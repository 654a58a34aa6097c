//! The dialect that messages, manuals and comments are freed of does not come back.

use crate::support::{project, run};
use std::process::Command;

#[test]
fn the_dialect_does_not_grow() {
    let (code, out, err) = run(&mut Command::new(project().join("tests/words/count")));
    assert_eq!(code, 0, "{out}{err}");
    let areas: Vec<&str> = out.lines().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(areas, ["src", "tests", "man1", "man7", "top"], "areas of tests/words/limits");
}
