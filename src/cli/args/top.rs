//! Arguments of `top`.

use super::heading::BEHAVIOUR;
use clap::{Args, ValueEnum};
use gpuvm_core::load::LoadOrder;
use std::time::Duration;

/// Examples of `top`.
pub const TOP: &str = "Examples:
  gpuvm top
  gpuvm top train-a train-b --interval 5
  gpuvm top --once --json
  gpuvm top --why train-b";

/// Arguments of `top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Domain names; default: all running domains
    #[arg(value_name = "NAME", id = "name")]
    pub names: Vec<String>,
    /// Print one sample
    ///
    /// Two readings, one interval apart. The default if standard input or output is no terminal.
    #[arg(long)]
    pub once: bool,
    /// Time between samples (default 1)
    ///
    /// From 0.2 to 3600. With --json but without --once, prints a document in one line for each
    /// interval until interrupted.
    #[arg(long, value_name = "SECONDS", value_parser = interval)]
    pub interval: Option<Duration>,
    /// Sort by findings, name, cpu, wait, mem, disk or net
    ///
    /// The default, findings, has the worst finding first, then the highest CPU%.
    #[arg(long, value_name = "COLUMN", value_enum, default_value = "findings")]
    #[arg(hide_default_value = true, hide_possible_values = true)]
    pub sort: SortArg,
    /// List all tasks that the vCPUs of NAME wait for
    ///
    /// Prints one sample of this guest, with every task that ran on the pcpu of a waiting vCPU.
    #[arg(long, value_name = "NAME", conflicts_with = "name", help_heading = BEHAVIOUR)]
    pub why: Option<String>,
}

/// A column to sort by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SortArg {
    /// Worst finding, then CPU%
    Findings,
    /// NAME
    Name,
    /// CPU%
    Cpu,
    /// WAIT%
    Wait,
    /// LOCAL%, lowest first
    Mem,
    /// READ and WRITE
    Disk,
    /// NET IN and OUT
    Net,
}

impl From<SortArg> for LoadOrder {
    fn from(arg: SortArg) -> LoadOrder {
        match arg {
            SortArg::Findings => LoadOrder::Findings,
            SortArg::Name => LoadOrder::Name,
            SortArg::Cpu => LoadOrder::Cpu,
            SortArg::Wait => LoadOrder::Wait,
            SortArg::Mem => LoadOrder::Memory,
            SortArg::Disk => LoadOrder::Disk,
            SortArg::Net => LoadOrder::Network,
        }
    }
}

/// Reads an interval in seconds.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if !(0.2..=3600.0).contains(&seconds) {
        return Err("out of range (0.2 to 3600 seconds)".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_bounded() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0.1", "3601", "-1", "nan", "inf", "1s", ""] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
