//! `--diff`: the change of a domain's definition, as a unified diff.

use super::output::Output;
use super::printable::redacted;
use gpuvm_core::view::Line;
use serde::Serialize;
use similar::{DiffOp, TextDiff};

const AROUND: usize = 3;

/// The name of a missing side in `diff` and `patch`.
const NOTHING: &str = "/dev/null";

/// A domain's definition after a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Diff {
    /// The domain's name.
    name: String,
    /// Whether anything is different.
    changed: bool,
    /// The unified diff; empty if nothing differs.
    diff: String,
}

impl Diff {
    /// Compares two definitions of a domain; `None` if it does not exist before, or after.
    pub fn of(name: &str, before: Option<&str>, after: Option<&str>) -> Diff {
        let side = |text: Option<&str>, prefix: &str| match text {
            Some(_) => format!("{prefix}/{name}.xml"),
            None => NOTHING.to_owned(),
        };
        let (old, new) = (side(before, "a"), side(after, "b"));
        let lines = TextDiff::from_lines(before.unwrap_or_default(), after.unwrap_or_default());
        let diff = lines.unified_diff().header(&old, &new).to_string();
        Diff { name: name.to_owned(), changed: !diff.is_empty(), diff }
    }

    /// Prints that a change leaves the definition of a domain as it is.
    pub fn same(name: &str, output: Output) -> std::io::Result<()> {
        output.progress("the definition stays as it is; --dry-run prints the steps");
        Diff::of(name, Some(""), Some("")).print(output)
    }

    /// Prints it as the answer.
    pub fn print(&self, output: Output) -> std::io::Result<()> {
        if output.json {
            return output.json("gpuvm-diff", self);
        }
        if self.changed { output.verbatim(&self.diff) } else { Ok(()) }
    }

    /// Prints those of several domains as one answer.
    pub fn print_all(diffs: &[Diff], output: Output) -> std::io::Result<()> {
        if output.json {
            return output.json_rows("gpuvm-diffs", &diffs);
        }
        diffs.iter().try_for_each(|diff| diff.print(output))
    }
}

/// The changed parts of a definition, for a page: without passwords, lines side by side.
pub fn hunks(before: &str, after: &str) -> Vec<Vec<Line>> {
    let (before, after) = (redacted(before), redacted(after));
    let lines = TextDiff::from_lines(before.as_ref(), after.as_ref());
    let old = |at: usize| Some((at + 1, lines.old_slice(at)?.to_string()));
    let new = |at: usize| Some((at + 1, lines.new_slice(at)?.to_string()));
    let of = |op: &DiffOp| -> Vec<Line> {
        let (mut left, mut right) = (op.old_range(), op.new_range());
        let most = left.len().max(right.len());
        let line = |_| Line { old: left.next().and_then(old), new: right.next().and_then(new) };
        (0..most).map(line).collect()
    };
    let groups = lines.grouped_ops(AROUND);
    groups.iter().map(|ops| ops.iter().flat_map(of).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hunks_have_both_sides_and_no_password() {
        let before = "<a>\n<b passwd='geheim'/>\n</a>\n";
        let after = "<a>\n<b passwd='anders'/>\n<c/>\n</a>\n";
        let found = hunks(before, after);
        let text = format!("{found:?}");
        assert!(!text.contains("geheim") && !text.contains("anders"), "{text}");
        let new: Vec<&Line> = found.iter().flatten().filter(|line| line.old.is_none()).collect();
        assert_eq!(new, [&Line { old: None, new: Some((3, "<c/>\n".into())) }]);
        assert_eq!(hunks(before, before), Vec::<Vec<Line>>::new());
    }

    #[test]
    fn a_diff_has_the_sides_that_patch_knows() {
        let made = Diff::of("a", None, Some("<domain>\n</domain>\n"));
        let text = "--- /dev/null\n+++ b/a.xml\n@@ -0,0 +1,2 @@\n+<domain>\n+</domain>\n";
        assert_eq!((made.diff.as_str(), made.changed), (text, true));
        let gone = Diff::of("a", Some("<domain/>\n"), None);
        assert_eq!(gone.diff, "--- a/a.xml\n+++ /dev/null\n@@ -1 +0,0 @@\n-<domain/>\n");
        let same = Diff::of("a", Some("<domain/>"), Some("<domain/>"));
        assert_eq!((same.diff.as_str(), same.changed), ("", false));
        let tuned = Diff::of("a", Some("<a>\n<b/>\n</a>\n"), Some("<a>\n<c/>\n</a>\n"));
        assert!(tuned.diff.contains("-<b/>\n+<c/>\n"), "{}", tuned.diff);
    }
}
