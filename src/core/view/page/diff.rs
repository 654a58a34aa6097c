//! Definitions that change, as hunks side by side.

use super::Writer;
use crate::words::count;

/// A definition that changes.
#[derive(Debug, Clone, Default)]
pub struct Changed {
    /// The domain's name.
    pub name: String,
    /// The changes, in words: `vcpupin: none -> core`.
    pub items: Vec<String>,
    /// Changed parts with some lines around them.
    pub hunks: Vec<Vec<Line>>,
}

/// A line of a hunk: on both sides if it stays, else on one, or on both with other text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Its number and text before.
    pub old: Option<(usize, String)>,
    /// Its number and text afterwards.
    pub new: Option<(usize, String)>,
}

impl Line {
    /// Whether it stays as it is.
    fn stays(&self) -> bool {
        matches!((&self.old, &self.new), (Some((_, old)), Some((_, new))) if old == new)
    }
}

impl Changed {
    pub(super) fn summary(&self) -> String {
        let lines = || self.hunks.iter().flatten().filter(|line| !line.stays());
        let gone = lines().filter(|line| line.old.is_some()).count();
        let new = lines().filter(|line| line.new.is_some()).count();
        if gone + new == 0 {
            return format!("{}: nothing", self.name);
        }
        let items = if self.items.is_empty() {
            String::new()
        } else {
            format!(": {}", self.items.join("; "))
        };
        format!("{}: {} removed, {new} added{items}", self.name, count(gone, "line"))
    }
}

impl Writer<'_, '_> {
    pub(super) fn changes(&mut self) {
        if self.page.changed.is_empty() {
            return;
        }
        self.section("changed", "Definition");
        for changed in self.page.changed {
            self.out.element("h3", &[], &changed.name);
            if changed.hunks.is_empty() {
                self.out.element("p", &[], "nothing changes");
                continue;
            }
            self.out.open("table", &[("class", &"diff mono")]);
            self.out.open("colgroup", &[]);
            for class in ["number", "text", "number", "text"] {
                self.out.open("col", &[("class", &class)]);
            }
            self.out.close("colgroup");
            self.out.open("thead", &[]);
            self.out.open("tr", &[]);
            for (span, word) in [(2, "before"), (2, "afterwards")] {
                self.out.element("th", &[("scope", &"col"), ("colspan", &span)], word);
            }
            self.out.close("tr");
            self.out.close("thead");
            self.out.open("tbody", &[]);
            for hunk in &changed.hunks {
                self.out.open("tr", &[]);
                self.out.element("td", &[("colspan", &4), ("class", &"soft")], "…");
                self.out.close("tr");
                hunk.iter().for_each(|line| self.diff_line(line));
            }
            self.out.close("tbody");
            self.out.close("table");
        }
        self.out.close("section");
        self.out.line();
    }

    fn diff_line(&mut self, line: &Line) {
        let stays = line.stays();
        self.out.open("tr", &[]);
        for (side, changed, place) in [(&line.old, "del", "old"), (&line.new, "add", "new")] {
            let class = match (side, stays) {
                (None, _) => "void",
                (Some(_), true) => "same",
                (Some(_), false) => changed,
            };
            let (number, text) = match side {
                Some((number, text)) => (number.to_string(), text.trim_end_matches(['\n', '\r'])),
                None => (String::new(), ""),
            };
            self.out.element("td", &[("class", &format_args!("no {class} {place}"))], number);
            let sign = match (class, place) {
                ("del", _) => "- ",
                ("add", _) => "+ ",
                _ => "",
            };
            let attrs = [("class", &format_args!("{class} {place}") as _)];
            self.out.element("td", &attrs, format_args!("{sign}{text}"));
        }
        self.out.close("tr");
        self.out.line();
    }
}
