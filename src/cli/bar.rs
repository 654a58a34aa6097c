//! A bar for what takes minutes, on a terminal. Elsewhere nothing is drawn.

use super::output::Output;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal as _;

/// The place of a bar, which is drawn while something is told to it.
pub struct Bar {
    /// Whether one may be drawn.
    draws: bool,
    /// It, while it is drawn.
    bar: Option<ProgressBar>,
}

impl Bar {
    /// A place where nothing is drawn yet; nothing ever where it would be in the way.
    pub fn new(output: Output) -> Bar {
        let draws = !output.quiet && !output.json && std::io::stderr().is_terminal();
        Bar { draws, bar: None }
    }

    /// Draws that so many bytes of so many are through.
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

    /// Wipes it away.
    pub fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
