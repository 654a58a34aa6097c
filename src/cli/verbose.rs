//! `-v` and `-vv`: prints the traces of `gpuvm-host` to standard error, with the seconds since the
//! start and without secrets.

use super::output;
use std::io::{self, Write};
use std::time::Instant;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// Subscribes to traces: with one `-v` changes, programs and slow calls; with two, everything.
pub fn listen(times: u8) {
    let level = match times {
        0 => return,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    let lines = tracing_subscriber::fmt().with_max_level(level).with_level(false);
    let lines = lines.with_target(false).with_ansi(false).with_timer(Since(Instant::now()));
    let lines = lines.with_writer(|| Lines).finish();
    // A program that embeds the command may have a subscriber already.
    let _ = tracing::subscriber::set_global_default(lines);
}

/// The seconds since the program began.
struct Since(Instant);

impl FormatTime for Since {
    fn format_time(&self, w: &mut Writer<'_>) -> std::fmt::Result {
        write!(w, "{:8.3} s", self.0.elapsed().as_secs_f64())
    }
}

/// A writer of whole lines to standard error.
struct Lines;

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        output::trace(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
