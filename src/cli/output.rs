//! Where answers and everything else go: the answer to standard output, the rest to standard error.

use super::args::Global;
use serde::Serialize;
use std::io::Write;

/// Is how this run prints.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// Print JSON instead of text.
    pub json: bool,
    /// Print no progress and no warnings.
    pub quiet: bool,
}

impl Output {
    /// How these arguments want it.
    pub fn new(global: &Global) -> Output {
        Output { json: global.json, quiet: global.quiet }
    }

    /// Prints the answer as text; adds a newline where it has none.
    pub fn text(self, text: &str) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        if !text.ends_with('\n') {
            out.write_all(b"\n")?;
        }
        out.flush()
    }

    /// Prints the answer as JSON.
    pub fn json<T: Serialize>(self, value: &T) -> std::io::Result<()> {
        let text = serde_json::to_string_pretty(value).map_err(std::io::Error::other)?;
        self.text(&text)
    }

    /// Prints progress.
    pub fn progress(self, text: &str) {
        if !self.quiet {
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }

    /// Prints a warning.
    pub fn warning(self, text: &str) {
        if !self.quiet {
            let _ = writeln!(std::io::stderr(), "warning: {text}");
        }
    }
}

/// Columns of the terminal: `COLUMNS`, else what the terminal says, else 100.
pub fn width() -> usize {
    let asked = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let told = || terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    asked.or_else(told).unwrap_or(100)
}
