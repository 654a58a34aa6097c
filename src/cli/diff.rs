//! `--diff`: the change of a domain's definition, as a unified diff.

use super::output::Output;
use serde::Serialize;
use similar::TextDiff;

/// The name of a missing side in `diff` and `patch`.
const NOTHING: &str = "/dev/null";

/// What a change makes of a domain's definition.
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
    /// Compares two definitions of a domain; none: it does not exist before, or after.
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

#[cfg(test)]
mod tests {
    use super::*;

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
