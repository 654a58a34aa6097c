//! `-v` and `-vv`: prints to standard error what `gpuvm-host` tells of its doings, with the seconds since the start and
//! without secrets.

use super::output;
use std::io::{self, Write};
use std::time::Instant;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// Listens from now on: once, what changes, runs, or takes long; twice, everything.
pub fn listen(times: u8) {
    let level = match times {
        0 => return,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    let lines = tracing_subscriber::fmt().with_max_level(level).with_level(false);
    let lines = lines.with_target(false).with_ansi(false).with_timer(Since(Instant::now()));
    let lines = lines.with_writer(|| Lines).finish();
    // Whoever embeds the command may listen already.
    let _ = tracing::subscriber::set_global_default(lines);
}

/// The seconds since the program began.
struct Since(Instant);

impl FormatTime for Since {
    fn format_time(&self, w: &mut Writer<'_>) -> std::fmt::Result {
        write!(w, "{:8.3} s", self.0.elapsed().as_secs_f64())
    }
}

/// Standard error: it is given whole lines.
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
