//! The table of the shoot-out as text, and as comma-separated values.

use super::metrics::METRICS;
use super::run::Outcome;
use super::stream::Variant;
use std::collections::BTreeSet;
use std::fmt::Write;

/// The results of all planners with one stream.
#[derive(Debug, Clone)]
pub struct Sheet {
    /// The host's name.
    pub host: String,
    /// Load of the stream.
    pub load: f64,
    /// The variant of its guests.
    pub variant: Variant,
    /// One for each planner, ours first.
    pub rows: Vec<Outcome>,
    /// Limits beside them: name, and the acceptance of each size by GPUs.
    pub limits: Vec<(String, Vec<(u32, f64)>)>,
}

const SIZES: [u32; 5] = [1, 2, 4, 8, 16];

/// A share with three digits; a dash for none.
fn share(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.3}"))
}

/// The value below which the share `q` of the values lies; none for no values.
fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let at = ((sorted.len() as f64 - 1.0) * q).round().max(0.0) as usize;
    sorted.get(at).copied()
}

/// The names of the columns after the planner's.
pub fn columns() -> Vec<String> {
    let sizes = SIZES.iter().map(|size| format!("A{size}"));
    let front = ["GPUs in", "guests"].map(String::from).into_iter();
    let back = ["largest", "split", "faults", "p50 us", "p99 us"].map(String::from);
    let use_ = std::iter::once("used".to_owned());
    front.chain(sizes).chain(use_).chain(METRICS.map(String::from)).chain(back).collect()
}

/// The cells of a planner's row after its name.
fn cells(row: &Outcome) -> Vec<String> {
    let mut cells = vec![share(Some(row.admitted())), row.guests.to_string()];
    cells.extend(SIZES.iter().map(|size| share(row.acceptance(*size))));
    cells.push(share(Some(row.utilisation)));
    cells.extend((0..METRICS.len()).map(|metric| share(row.mean(metric))));
    cells.push(format!("{:.2}", row.largest));
    cells.push(format!("{:.2}", row.split));
    cells.push(row.faults.1.to_string());
    for q in [0.5, 0.99] {
        cells.push(quantile(&row.times_us, q).map_or("-".into(), |time| format!("{time:.0}")));
    }
    cells
}

impl Sheet {
    /// The table as text, with the inputs that planners lack below it.
    pub fn text(&self) -> String {
        let mut lines = vec![[vec!["planner".to_owned()], columns()].concat()];
        lines.extend(self.rows.iter().map(|row| [vec![row.name.clone()], cells(row)].concat()));
        for (name, acceptance) in &self.limits {
            let of = |size: &u32| acceptance.iter().find(|(gpus, _)| gpus == size).map(|a| a.1);
            let sizes = SIZES.iter().map(|size| share(of(size)));
            lines.push([name.clone(), "-".into(), "-".into()].into_iter().chain(sizes).collect());
        }
        let width = |at: usize| lines.iter().filter_map(|l| l.get(at)).map(String::len).max();
        let widths: Vec<usize> = (0..lines[0].len()).map(|at| width(at).unwrap_or(0)).collect();
        let mut text = format!("\n{}, load {:.2}, {}\n", self.host, self.load, self.variant.name());
        for line in &lines {
            for (at, cell) in line.iter().enumerate() {
                let width = widths[at];
                let _ = if at == 0 {
                    write!(text, "{cell:<width$}")
                } else {
                    write!(text, "  {cell:>width$}")
                };
            }
            text.push('\n');
        }
        text
    }

    /// The table as comma-separated lines, without a head.
    pub fn csv(&self) -> String {
        let mut text = String::new();
        for row in &self.rows {
            let name = row.name.replace(',', " and ");
            let (variant, cells) = (self.variant.name(), cells(row).join(","));
            let _ = writeln!(text, "{},{:.2},{variant},{name},{cells}", self.host, self.load);
        }
        text
    }
}

/// The head of the comma-separated lines.
pub fn csv_head() -> String {
    format!("host,load,variant,planner,{}\n", columns().join(","))
}

/// What each planner lacks, one line each; those that lack nothing are not named.
pub fn lacks(sheets: &[Sheet]) -> String {
    let rows = sheets.iter().flat_map(|sheet| &sheet.rows).filter(|row| !row.lacks.is_empty());
    let lines: BTreeSet<String> =
        rows.map(|row| format!("  {} lacks {}\n", row.name, row.lacks.join(", "))).collect();
    lines.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sheet with one planner that admitted one of two guests.
    fn sheet() -> Sheet {
        let row = Outcome {
            name: "a, b".into(),
            lacks: vec!["NVLink partitions"],
            guests: 1,
            gpus: 2,
            asked: 4,
            classes: [(2, (2, 1))].into(),
            times_us: vec![1.0, 3.0, 2.0],
            ..Outcome::default()
        };
        let limits = vec![("repack".to_owned(), vec![(2, 0.75)])];
        Sheet { host: "h".into(), load: 0.8, variant: Variant::Plain, rows: vec![row], limits }
    }

    #[test]
    fn every_row_has_every_column() {
        let sheet = sheet();
        let text = sheet.text();
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(lines[0], "h, load 0.80, plain");
        assert!(lines[2].contains("0.500") && lines[2].ends_with('3'), "{text}");
        assert!(lines[3].starts_with("repack") && lines[3].contains("0.750"), "{text}");
        let csv = sheet.csv();
        assert_eq!(csv.trim_end().split(',').count(), csv_head().trim_end().split(',').count());
        assert_eq!(lacks(&[sheet]), "  a, b lacks NVLink partitions\n");
    }
}
