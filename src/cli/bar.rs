//! A progress bar for long operations, drawn on terminals only.

use super::output::Output;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal as _;

/// A progress bar, drawn once it gets progress.
pub struct Bar {
    /// Whether it may be drawn.
    draws: bool,
    /// The bar while it is drawn.
    bar: Option<ProgressBar>,
}

impl Bar {
    /// Makes a bar that is not drawn yet; never drawn without a terminal, with `--quiet` or
    /// `--json`.
    pub fn new(output: Output) -> Bar {
        let draws = !output.quiet && !output.json && std::io::stderr().is_terminal();
        Bar { draws, bar: None }
    }

    /// Draws that `through` of `bytes` bytes are done.
    pub fn set(&mut self, through: u64, bytes: u64) {
        if !self.draws {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template(
                "  {bar:30} {bytes} of {total_bytes}, {binary_bytes_per_sec}, {eta} left",
            );
            ProgressBar::new(bytes).with_style(style.expect("the template is well formed"))
        });
        bar.set_position(through);
    }

    /// Clears it.
    pub fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
