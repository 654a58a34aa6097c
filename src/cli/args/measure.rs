//! Arguments of `measure`.

use super::heading::BEHAVIOUR;
use clap::{Args, ValueEnum};
use gpuvm_core::measure::{Suite, Tool};
use std::net::IpAddr;

/// Examples of `measure`.
pub const MEASURE: &str = "Examples:
  gpuvm measure train-a
  gpuvm measure train-a --suite full --json
  gpuvm measure train-a --program all_reduce_perf \
    --look-in /opt/nccl-tests/bin
  gpuvm measure train-a --peer train-b --program ib_write_bw
  gpuvm measure train-a --ssh --user ubuntu
  gpuvm measure train-a --history";

/// Arguments of `measure`.
#[derive(Debug, Args)]
pub struct MeasureArgs {
    /// Domain name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// How much to measure: quick or full
    ///
    /// quick takes some minutes. full runs each program longer, with more data, and DCGM's
    /// diagnostics at level 2 instead of 1.
    #[arg(long, value_name = "SUITE", value_enum, default_value = "quick")]
    #[arg(hide_default_value = true, hide_possible_values = true)]
    pub suite: SuiteArg,
    /// Measure with this program only; repeatable
    ///
    /// nvbandwidth, all_reduce_perf, dcgmi, ib_write_bw, ib_read_bw, fio, stream, mlc or
    /// cyclictest.
    #[arg(long = "program", value_name = "PROGRAM", value_enum, hide_possible_values = true)]
    pub programs: Vec<ToolArg>,
    /// Look in this directory of the guest first
    ///
    /// Repeatable; an absolute path. Then /usr/bin, /usr/local/bin, /opt/nccl-tests/build and
    /// /usr/local/cuda/bin.
    #[arg(long = "look-in", value_name = "DIR", value_parser = absolute)]
    pub directories: Vec<String>,
    /// RDMA to this guest, not between own NICs
    ///
    /// For ib_write_bw and ib_read_bw, which both guests need. The first NIC of NAME measures to
    /// the first one of the other guest, the second to the second, and so on. Both guests need an
    /// IPv4 connection with each other.
    #[arg(long, value_name = "NAME2")]
    pub peer: Option<String>,
    /// Let fio read this file of the guest
    ///
    /// An absolute path of a file or block device, which is only read. By default fio makes a file
    /// of 1 GiB in /var/tmp.
    #[arg(long = "fio-file", value_name = "PATH", value_parser = file)]
    pub file: Option<String>,
    /// Run programs by ssh instead of the guest agent
    ///
    /// For guests whose agent runs no programs, as RHEL ships it. Logs in as `gpuvm ssh` does, but
    /// without questions: by a key that needs no passphrase or that ssh-agent has, and only if the
    /// guest's host key is known already (`gpuvm ssh NAME` stores it). dcgmi and cyclictest may
    /// need root.
    #[arg(long)]
    pub ssh: bool,
    /// User in the guest, with --ssh
    ///
    /// Default: the one of `create --user`, as the domain's record has it.
    #[arg(long, value_name = "USER", requires = "ssh")]
    pub user: Option<String>,
    /// Address of the guest, with --ssh
    ///
    /// Needed where the host cannot see it, as with `gpuvm ssh --address`.
    #[arg(long, value_name = "IP", requires = "ssh")]
    pub address: Option<IpAddr>,
    /// Scale expected values (default 1)
    ///
    /// 0.8 accepts a fifth less. From 0.1 to 2.
    #[arg(long, value_name = "FACTOR", value_parser = factor, default_value = "1")]
    #[arg(hide_default_value = true)]
    pub threshold: f64,
    /// Print the medians of earlier runs; run nothing
    #[arg(long, conflicts_with_all = ["suite", "programs", "directories", "threshold", "force"])]
    #[arg(conflicts_with_all = ["peer", "file", "ssh", "user", "address"])]
    pub history: bool,
    /// Measure GPUs that are in use, too
    ///
    /// By default a GPU with a computing process, or that is busy more than 5 % of the time, is
    /// refused. The measurement would be too low, and would slow the work down.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub force: bool,
}

/// How much to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SuiteArg {
    /// Some minutes
    Quick,
    /// About half an hour
    Full,
}

impl From<SuiteArg> for Suite {
    fn from(arg: SuiteArg) -> Suite {
        match arg {
            SuiteArg::Quick => Suite::Quick,
            SuiteArg::Full => Suite::Full,
        }
    }
}

/// A measuring program, by its own name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum ToolArg {
    /// Copies between memory and GPUs
    Nvbandwidth,
    /// All-reduce over the guest's GPUs
    AllReducePerf,
    /// DCGM's diagnostics
    Dcgmi,
    /// RDMA writes between NICs or guests
    IbWriteBw,
    /// RDMA reads between NICs or guests
    IbReadBw,
    /// Reads of a file in /var/tmp of the guest
    Fio,
    /// Memory bandwidth
    Stream,
    /// Memory latency within and between cells
    Mlc,
    /// Delays of timers
    Cyclictest,
}

impl From<ToolArg> for Tool {
    fn from(arg: ToolArg) -> Tool {
        match arg {
            ToolArg::Nvbandwidth => Tool::Nvbandwidth,
            ToolArg::AllReducePerf => Tool::AllReducePerf,
            ToolArg::Dcgmi => Tool::Dcgmi,
            ToolArg::IbWriteBw => Tool::IbWriteBw,
            ToolArg::IbReadBw => Tool::IbReadBw,
            ToolArg::Fio => Tool::Fio,
            ToolArg::Stream => Tool::Stream,
            ToolArg::Mlc => Tool::Mlc,
            ToolArg::Cyclictest => Tool::Cyclictest,
        }
    }
}

fn absolute(text: &str) -> Result<String, String> {
    let text = text.trim_end_matches('/');
    if text.starts_with('/') { Ok(text.to_owned()) } else { Err("not an absolute path".to_owned()) }
}

/// An absolute path without characters that fio or a terminal takes for something else.
fn file(text: &str) -> Result<String, String> {
    let is_odd = |c: char| c.is_control() || c.is_whitespace() || c == '\\';
    match text {
        text if text.contains(is_odd) => Err("blanks and backslashes are not supported".to_owned()),
        text => absolute(text),
    }
}

fn factor(text: &str) -> Result<f64, String> {
    let factor: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.1..=2.0).contains(&factor) { Ok(factor) } else { Err("out of range (0.1 to 2)".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_and_directories_are_bounded() {
        assert_eq!(factor("0.8"), Ok(0.8));
        for wrong in ["0", "2.1", "nan", "-1", "x", ""] {
            assert!(factor(wrong).is_err(), "{wrong}");
        }
        assert_eq!(absolute("/opt/x/"), Ok("/opt/x".to_owned()));
        assert_eq!(
            file("/dev/disk/by-path/pci-0000:05:00.0"),
            absolute("/dev/disk/by-path/pci-0000:05:00.0")
        );
        assert!(file("/a b").is_err() && file("a").is_err() && file("/a\n").is_err());
        assert!(absolute("opt").is_err() && absolute("").is_err() && absolute("/").is_err());
    }
}
