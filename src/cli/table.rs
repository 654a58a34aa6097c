//! The style of all lists: a head in capitals, two blanks between columns, no rules. A table wider
//! than the terminal wraps its last column, then columns of prose, and if that is not enough each
//! row, like the head, continues on a line below: names and addresses are for copying and are never
//! broken.

use super::colour::{END, Mark, state};
use super::printable::{Form, escaped, redacted};
use super::wrap;
use std::ops::Range;
use tabled::builder::Builder;
use tabled::grid::util::string::get_text_width;
use tabled::settings::peaker::Priority;
use tabled::settings::{Color, Padding, Style, Width};

const GAP: usize = 2;
/// The least width of a last column before others shrink.
const LEAST: usize = 24;
/// The extra indent of a row's continuation.
const BELOW: usize = 4;
/// Columns of prose, which may be broken between words wherever they stand.
const PROSE: [&str; 1] = ["MODEL"];
const STATES: [&str; 2] = ["STATE", "ROLE"];

/// A table: its head and its rows.
#[derive(Debug, Clone)]
pub struct Table {
    rows: Vec<Vec<String>>,
    indent: usize,
}

/// A part of each row on a line of its own.
struct Part {
    columns: Range<usize>,
    widths: Vec<usize>,
    indent: usize,
}

impl Table {
    /// A table with its head.
    pub fn new<S: AsRef<str>>(head: impl IntoIterator<Item = S>) -> Table {
        let head = head.into_iter().map(|cell| capitals(cell.as_ref())).collect();
        Table { rows: vec![head], indent: 0 }
    }

    /// A table whose first row is its head.
    pub fn of(rows: Vec<Vec<String>>) -> Table {
        let mut rows = rows.into_iter();
        let mut table = Table::new(rows.next().unwrap_or_default());
        rows.for_each(|row| table.push(row));
        table
    }

    /// Indents the table.
    pub fn indented(mut self, indent: usize) -> Table {
        self.indent = indent;
        self
    }

    /// Adds a row.
    pub fn push<S: AsRef<str>>(&mut self, row: impl IntoIterator<Item = S>) {
        let cell = |cell: S| escaped(&redacted(cell.as_ref()), Form::Text).replace('\t', " ");
        self.rows.push(row.into_iter().map(cell).collect());
    }

    /// Formats it in lines of at most `width` columns, with marks; `None` if rows keep their
    /// natural width.
    pub fn text(&self, width: Option<usize>) -> String {
        let parts = self.parts(width);
        let rendered: Vec<Vec<Vec<String>>> = parts.iter().map(|part| self.part(part)).collect();
        let mut text = String::new();
        for row in 0..self.rows.len() {
            for line in rendered.iter().filter_map(|part| part.get(row)).flatten() {
                text.push_str(line);
                text.push('\n');
            }
        }
        text
    }

    /// Formats it in lines of at most `width` columns; columns that do not fit are cut off, those
    /// on the right first, so that a row stays on one line.
    pub fn cut(&self, width: usize) -> String {
        let count = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths = (0..count).map(|column| self.width(column)).collect();
        let part = Part { columns: 0..count, widths, indent: self.indent };
        let mut table = self.builder(&part).0.build();
        table.with(Style::empty()).with(Padding::new(0, GAP, 0, 0));
        let width = width.saturating_sub(self.indent);
        table.with(Width::truncate(width).suffix("…").priority(Priority::right()));
        self.mark(&mut table, &part);
        lines(&table, self.indent).into_iter().map(|line| line + "\n").collect()
    }

    /// Returns the width of a column: the widest line of its cells.
    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| get_text_width(cell)).max().unwrap_or(0)
    }

    fn parts(&self, width: Option<usize>) -> Vec<Part> {
        let count = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut widths: Vec<usize> = (0..count).map(|column| self.width(column)).collect();
        let whole = |widths: &[usize]| {
            self.indent + widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
        };
        let one = |widths| vec![Part { columns: 0..count, widths, indent: self.indent }];
        let Some(width) = width.filter(|width| whole(&widths) > *width && count > 0) else {
            return one(widths);
        };
        let last = count - 1;
        let natural = widths[last];
        widths[last] = natural.min(LEAST);
        let missing = whole(&widths).saturating_sub(width);
        if missing == 0 {
            widths[last] += width - whole(&widths);
            return one(widths);
        }
        let prose = (0..last).find(|column| PROSE.contains(&self.rows[0][*column].as_str()));
        if let Some(prose) = prose
            && widths[prose] >= missing + self.longest_word(prose)
        {
            widths[prose] -= missing;
            return one(widths);
        }
        self.folded(widths, natural, width)
    }

    /// The widest word of a column.
    fn longest_word(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        let words = cells.flat_map(|cell| cell.split_whitespace().map(get_text_width));
        words.max().unwrap_or(0)
    }

    /// Splits rows that continue below: as many columns in a line as fit; the last one, `natural`
    /// wide, gets the rest.
    fn folded(&self, widths: Vec<usize>, natural: usize, width: usize) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        let mut used = 0;
        for (column, needed) in widths.into_iter().enumerate() {
            match parts.last_mut().filter(|_| used + GAP + needed <= width) {
                Some(part) => {
                    part.columns.end = column + 1;
                    part.widths.push(needed);
                    used += GAP + needed;
                }
                None => {
                    let indent = self.indent + if parts.is_empty() { 0 } else { BELOW };
                    let columns = column..column + 1;
                    parts.push(Part { columns, widths: vec![needed], indent });
                    used = indent + needed;
                }
            }
        }
        let last = parts.last_mut().and_then(|part| part.widths.last_mut());
        if let Some(last) = last {
            *last = natural.min(*last + width.saturating_sub(used));
        }
        parts
    }

    /// One part of every row, in lines.
    fn part(&self, part: &Part) -> Vec<Vec<String>> {
        let (builder, heights) = self.builder(part);
        let mut table = builder.build();
        table.with(Style::empty()).with(Padding::new(0, GAP, 0, 0));
        self.mark(&mut table, part);
        let mut lines = lines(&table, part.indent).into_iter();
        heights.into_iter().map(|height| lines.by_ref().take(height).collect()).collect()
    }

    /// The cells of a part, broken to its widths, and how many lines each row has.
    fn builder(&self, part: &Part) -> (Builder, Vec<usize>) {
        let empty = String::new();
        let (mut builder, mut heights) = (Builder::new(), Vec::with_capacity(self.rows.len()));
        for cells in &self.rows {
            let cells = part.columns.clone().map(|column| cells.get(column).unwrap_or(&empty));
            let shown = cells.zip(&part.widths).map(|(cell, width)| {
                if get_text_width(cell) > *width {
                    wrap::lines(cell, *width).join("\n")
                } else {
                    cell.clone()
                }
            });
            let shown: Vec<String> = shown.collect();
            heights.push(shown.iter().map(|cell| cell.split('\n').count()).max().unwrap_or(1));
            builder.push_record(shown);
        }
        (builder, heights)
    }

    /// Marks the head and the states of a part.
    fn mark(&self, table: &mut tabled::Table, part: &Part) {
        let mut mark = |row, at, mark: Mark| {
            table.modify((row, at), Color::new(mark.begin().to_string(), END.to_string()));
        };
        for (at, column) in part.columns.clone().enumerate() {
            mark(0, at, Mark::Head);
            if !STATES.contains(&self.rows[0][column].as_str()) {
                continue;
            }
            for (row, cells) in self.rows.iter().enumerate().skip(1) {
                if let Some(of) = cells.get(column).and_then(|cell| state(cell)) {
                    mark(row, at, of);
                }
            }
        }
    }
}

/// Puts a head's words in capitals, except those that have some: `MiB`, `GPUs`.
fn capitals(head: &str) -> String {
    let word = |word: &str| {
        if word.contains(char::is_uppercase) { word.to_owned() } else { word.to_uppercase() }
    };
    head.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// The lines of a table. Trailing padding of cells is trimmed.
fn lines(table: &tabled::Table, indent: usize) -> Vec<String> {
    let trimmed = |line: &str| {
        let line = format!("{:indent$}{line}", "");
        line.trim_end_matches([' ', END]).to_owned()
    };
    table.to_string().lines().map(trimmed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::colour::marked;

    /// A table in lines of at most `width` columns, without marks.
    fn text(table: &Table, width: Option<usize>) -> String {
        marked(&table.text(width), false).into_owned()
    }

    #[test]
    fn the_last_column_gives_way_then_prose_then_rows_go_on_below() {
        let mut table = Table::new(["address", "MODEL", "STATE"]);
        table.push([
            "0000:07:00.0",
            "a b c d e f g h i j",
            "used by the driver nvidia of this host",
        ]);
        table.push(["0000:08:00.0", "-", "free"]);
        let head = "ADDRESS       MODEL                STATE\n";
        let free = "0000:08:00.0  -                    free\n";
        let first = "0000:07:00.0  a b c d e f g h i j  used by the driver nvidia of this host\n";
        assert_eq!(text(&table, None), format!("{head}{first}{free}"));
        assert_eq!(text(&table, Some(73)), format!("{head}{first}{free}"));
        let wrapped = "0000:07:00.0  a b c d e f g h i j  used by the driver nvidia\n\
                       \x20                                  of this host\n";
        assert_eq!(text(&table, Some(60)), format!("{head}{wrapped}{free}"));
        let narrow = "ADDRESS       MODEL      STATE\n\
                      0000:07:00.0  a b c d e  used by the driver\n\
                      \x20             f g h i j  nvidia of this host\n\
                      0000:08:00.0  -          free\n";
        assert_eq!(text(&table, Some(50)), narrow);
        let folded = "ADDRESS\n    MODEL\n    STATE\n0000:07:00.0\n    a b c d e f g h i j\n    \
                      used by the driver\n    nvidia of this host\n0000:08:00.0\n    -\n    free\n";
        assert_eq!(text(&table, Some(24)), folded);
    }

    #[test]
    fn cells_of_others_have_no_marks_and_no_escapes() {
        let mut table = Table::new(["NAME", "STATE"]);
        table.push([&format!("{}x\u{1b}[2J", Mark::Bad.begin()), "running"]);
        let begin = Mark::Good.begin();
        let text = table.text(None);
        assert!(text.contains("\\u{fdd3}x\\x1b[2J"), "{text}");
        assert!(text.contains(&format!("{begin}running")), "{text}");
    }
}
