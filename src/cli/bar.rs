//! A progress bar for long operations. Without a terminal a line every 30 s takes its place.

use super::output::Output;
use indicatif::{BinaryBytes, HumanDuration, ProgressBar, ProgressStyle};
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

/// Time between two lines where no bar is drawn, and before the first.
const LINES: Duration = Duration::from_secs(30);

/// A progress bar, drawn once it gets progress; lines where none can be drawn.
pub struct Bar {
    shown: Shown,
    /// The bar while it is drawn.
    bar: Option<ProgressBar>,
    /// When the operation began, and when the last line was printed (at first its begin).
    since: Option<(Instant, Instant)>,
}

/// How a bar is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// Not at all.
    No,
    /// By lines.
    Lines,
    /// As a bar.
    Drawn,
}

impl Bar {
    /// Makes a bar that is not drawn yet; never drawn without a terminal, with `--quiet` or
    /// `--json`.
    pub fn new(output: Output) -> Bar {
        let shown = match (output.quiet || output.json, std::io::stderr().is_terminal()) {
            (true, _) => Shown::No,
            (false, true) => Shown::Drawn,
            (false, false) => Shown::Lines,
        };
        Bar { shown, bar: None, since: None }
    }

    /// Draws that `through` of `bytes` bytes are done; returns the line to print if one is due.
    pub fn set(&mut self, through: u64, bytes: u64) -> Option<String> {
        match self.shown {
            Shown::No => return None,
            Shown::Lines => return self.line(through, bytes, Instant::now()),
            Shown::Drawn => {}
        }
        let bar = self.bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template(
                "  {bar:30} {bytes} of {total_bytes}, {binary_bytes_per_sec}, {eta} left",
            );
            ProgressBar::new(bytes).with_style(style.expect("the template is well formed"))
        });
        bar.set_length(bytes);
        bar.set_position(through);
        None
    }

    /// The line due at `now`; `None` if none is due.
    fn line(&mut self, through: u64, bytes: u64, now: Instant) -> Option<String> {
        let (began, last) = self.since.get_or_insert((now, now));
        if now.duration_since(*last) < LINES {
            return None;
        }
        *last = now;
        let (through, bytes) = (through.min(bytes), bytes.max(1));
        let passed = now.duration_since(*began).as_millis();
        let left = (passed * u128::from(bytes - through)).checked_div(through.into());
        let left = left.and_then(|left| u64::try_from(left).ok()).map(Duration::from_millis);
        let left = left.map(|left| format!(", about {} left", HumanDuration(left)));
        let left = left.unwrap_or_default();
        let percent = u128::from(through) * 100 / u128::from(bytes);
        Some(format!("{} of {} ({percent} %){left}", BinaryBytes(through), BinaryBytes(bytes)))
    }

    /// Clears it.
    pub fn clear(&mut self) {
        self.since = None;
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_half_a_minute_apart() {
        let mut bar = Bar { shown: Shown::Lines, bar: None, since: None };
        let begin = Instant::now();
        let mut at =
            |seconds, gib: u64| bar.line(gib << 30, 64 << 30, begin + Duration::from_secs(seconds));
        assert_eq!([at(0, 0), at(29, 7)], [None, None]);
        let text = at(30, 16).unwrap();
        assert_eq!(text, "16.00 GiB of 64.00 GiB (25 %), about 2 minutes left");
        assert_eq!(at(59, 20), None);
        assert!(at(60, 32).unwrap().starts_with("32.00 GiB of 64.00 GiB (50 %)"));
    }

    #[test]
    fn whoever_wants_json_or_quiet_sees_none() {
        for output in [Output { json: true, quiet: false }, Output { json: false, quiet: true }] {
            let mut bar = Bar::new(output);
            assert_eq!((bar.set(1, 2), bar.shown), (None, Shown::No));
        }
    }
}
