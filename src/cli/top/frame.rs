//! Draws the table of guests. Pure: the same report is the same text.

use super::super::colour::{END, Mark};
use super::bytes::page;
use super::columns::{Shown, fitting};
use crate::finding::Severity;
use crate::words::count;
use gpuvm_core::load::{GuestLoad, LoadFinding, LoadReport};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::SystemTime;
use tabled::grid::util::string::get_text_width;

/// Columns where no terminal says how many there are.
const WIDTH: usize = 80;
/// The fewest columns that are drawn for.
const LEAST: usize = 40;
/// The widest name that other columns make room for, and the widest of all.
const NAME: usize = 8;
const WIDEST_NAME: usize = 40;
/// The widest finding that other columns make room for.
const FINDING: usize = 13;

/// The time of day in UTC.
pub(super) fn utc() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = now.as_secs() % 86_400;
    format!("{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The frame beside the report.
pub(super) struct Look {
    /// The time.
    pub(super) clock: String,
    /// Columns of the terminal.
    pub(super) width: usize,
    /// Lines of the terminal.
    pub(super) height: usize,
    /// The guest that is selected.
    pub(super) selected: Option<String>,
    /// The last line.
    pub(super) footer: String,
}

/// The host and the table of guests, as it is printed once.
pub(super) fn table(report: &LoadReport, clock: String, width: Option<usize>) -> String {
    let width = width.unwrap_or(WIDTH).max(LEAST);
    let mut lines = vec![head(report, &clock, width)];
    lines.extend(rows(report, width, None).into_iter().map(|row| row.text));
    lines.join("\n") + "\n"
}

/// The whole screen, one line below the other: the selected guest is always on it.
pub(super) fn screen(report: &LoadReport, look: &Look) -> Vec<String> {
    let width = look.width.max(LEAST);
    let mut top = vec![head(report, &look.clock, width)];
    for finding in &report.host.findings {
        top.push(below(finding, width));
    }
    let selected = look.selected.as_deref();
    let mut rows = rows(report, width, Some(selected)).into_iter();
    top.extend(rows.next().map(|row| row.text));
    let mut lines = Vec::new();
    let mut at = 0;
    for (row, guest) in rows.zip(&report.guests) {
        let is_selected = Some(guest.name.as_str()) == selected;
        if is_selected {
            at = lines.len();
        }
        lines.push(row.text);
        // Of the selected guest all findings are shown, of others the worst.
        let most = if is_selected { usize::MAX } else { 1 };
        lines.extend(guest.findings.iter().take(most).map(|finding| below(finding, width)));
    }
    if report.guests.is_empty() {
        lines.push("no guest is running".to_owned());
    }
    let room = look.height.saturating_sub(top.len() + 1).max(1);
    let begin = at.saturating_sub(room / 2).min(lines.len().saturating_sub(room));
    let mut all = top;
    all.extend(lines.into_iter().skip(begin).take(room));
    all.truncate(look.height.saturating_sub(1).max(1));
    all.push(cut(&look.footer, width));
    all
}

/// `gpuvm 14:02:11Z  2 guests, 18 of 96 pcpus  pressure cpu 0.4 mem 0.0  2M free 412`.
fn head(report: &LoadReport, clock: &str, width: usize) -> String {
    let host = &report.host;
    let guests = count(report.guests.len(), "guest");
    let mut text = format!("gpuvm {clock}  {guests}, {} of {} pcpus", host.guest_pcpus, host.pcpus);
    let value = |resource: &str, full: bool| match host.pressure.get(resource) {
        Some(pressure) => format!("{:.1}", if full { pressure.full } else { pressure.some }),
        None => "-".to_owned(),
    };
    let _ = write!(text, "  pressure cpu {} mem {}", value("cpu", false), value("memory", true));
    let mut free: BTreeMap<u64, u64> = BTreeMap::new();
    for pool in &host.free_pages {
        *free.entry(pool.page_kib).or_default() += pool.free;
    }
    for (size, pages) in free {
        let _ = write!(text, "  {} free {pages}", page(size));
    }
    cut(&text, width)
}

/// A line of the table.
struct Row {
    text: String,
}

/// The head and the rows; `selected`: with a column that marks the selected guest.
fn rows(report: &LoadReport, width: usize, selected: Option<Option<&str>>) -> Vec<Row> {
    let guests = &report.guests;
    let findings: Vec<String> = guests.iter().map(finding_cell).collect();
    let widest = |texts: &mut dyn Iterator<Item = &str>| texts.map(get_text_width).max();
    let longest = widest(&mut guests.iter().map(|guest| &*guest.name)).unwrap_or(0).max(4);
    let finding = widest(&mut findings.iter().map(String::as_str)).unwrap_or(0).max(8);
    let mark = if selected.is_some() { 1 } else { 0 };
    let room = (width - mark).saturating_sub(longest.min(NAME) + 1 + finding.min(FINDING));
    let columns = fitting(guests, room);
    let used: usize = columns.iter().map(|column| column.width + 1).sum();
    let left = (width - mark).saturating_sub(used + 1);
    let name = longest.min(WIDEST_NAME).min(left.saturating_sub(finding).max(NAME.min(longest)));
    let layout = Layout { name, finding: left.saturating_sub(name), columns };
    let heads = layout.columns.iter().map(|column| column.head.to_owned()).collect();
    let blank = if mark > 0 { " " } else { "" };
    let head = format!("{blank}{}", layout.line("NAME", heads, "FINDINGS", None));
    let mut rows = vec![Row { text: format!("{}{}{END}", Mark::Head.begin(), head.trim_end()) }];
    for (at, guest) in guests.iter().enumerate() {
        let cells = layout.columns.iter().map(|column| column.cells[at].clone()).collect();
        let line = layout.line(&guest.name, cells, &findings[at], colour_of(guest));
        let marked = selected.map(|one| if one == Some(guest.name.as_str()) { ">" } else { " " });
        rows.push(Row { text: format!("{}{line}", marked.unwrap_or_default()) });
    }
    rows
}

/// The widths of a table.
struct Layout {
    name: usize,
    finding: usize,
    columns: Vec<Shown>,
}

impl Layout {
    fn line(&self, name: &str, cells: Vec<String>, finding: &str, mark: Option<Mark>) -> String {
        let mut line = padded(&cut(name, self.name), self.name);
        for (column, cell) in self.columns.iter().zip(cells) {
            let _ = write!(line, " {cell:>width$}", width = column.width);
        }
        let finding = cut(finding, self.finding);
        match mark {
            Some(mark) => format!("{line} {}{finding}{END}", mark.begin()),
            None => format!("{line} {finding}"),
        }
    }
}

/// The worst finding, and how many more there are.
fn finding_cell(guest: &GuestLoad) -> String {
    let rules: std::collections::BTreeSet<&str> =
        guest.findings.iter().map(|finding| finding.rule).collect();
    match guest.findings.first() {
        None => "-".to_owned(),
        Some(first) if rules.len() == 1 => first.rule.to_owned(),
        Some(first) => format!("{} +{}", first.rule, rules.len() - 1),
    }
}

fn colour_of(guest: &GuestLoad) -> Option<Mark> {
    match guest.findings.first()?.severity {
        Severity::Error => Some(Mark::Bad),
        Severity::Warning => Some(Mark::Busy),
        Severity::Note => None,
    }
}

/// The line of a finding below its guest.
fn below(finding: &LoadFinding, width: usize) -> String {
    cut(&format!("  {}: {}", finding.severity, finding.says.message), width)
}

/// A text of at most this many columns.
fn cut(text: &str, width: usize) -> String {
    if get_text_width(text) <= width {
        return text.to_owned();
    }
    let mut shown = String::new();
    for c in text.chars() {
        if get_text_width(&shown) + get_text_width(&c.to_string()) + 1 > width {
            break;
        }
        shown.push(c);
    }
    shown + "…"
}

fn padded(text: &str, width: usize) -> String {
    let blanks = width.saturating_sub(get_text_width(text));
    format!("{text}{}", " ".repeat(blanks))
}

#[cfg(test)]
mod tests;
