//! The programs that measure: where they are, and their fixed arguments.

use super::what::What;
use serde::{Deserialize, Serialize};

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Suite {
    /// About two minutes.
    Quick,
    /// About fifteen minutes.
    Full,
}

/// A program that measures.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    strum::Display,
    strum::EnumIter,
    strum::EnumString,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Tool {
    /// Copies between memory and GPUs.
    Nvbandwidth,
    /// An all-reduce of nccl-tests.
    AllReducePerf,
    /// DCGM's diagnostics.
    Dcgmi,
    /// Reads of a file.
    Fio,
    /// Memory bandwidth.
    Stream,
    /// Delays of timers.
    Cyclictest,
}

/// One run of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The program.
    pub tool: Tool,
    /// The quantity, for output that does not name it.
    pub what: Option<What>,
    /// Its arguments.
    pub words: Vec<String>,
    /// The most seconds it may take.
    pub limit_s: u64,
}

/// Directories of programs, in the order in which they are looked for.
const DIRECTORIES: [&str; 4] =
    ["/usr/bin", "/usr/local/bin", "/opt/nccl-tests/build", "/usr/local/cuda/bin"];

/// Returns the paths where `nvidia-smi` may be.
pub fn smi_paths(directories: &[String]) -> Vec<String> {
    paths(&["nvidia-smi"], directories)
}

fn paths(names: &[&str], directories: &[String]) -> Vec<String> {
    let all = directories.iter().map(String::as_str).chain(DIRECTORIES);
    all.flat_map(|directory| names.iter().map(move |name| format!("{directory}/{name}"))).collect()
}

/// Returns the run of DCGM's diagnostics at a level from 1 to 4; the times are NVIDIA's, doubled.
pub fn diagnostics(level: u8) -> Call {
    let limit_s = match level {
        0 | 1 => 120,
        2 => 600,
        3 => 1800,
        _ => 4 * 3600,
    };
    let words = format!("diag -r {level} -j");
    let words = words.split(' ').map(str::to_owned).collect();
    Call { tool: Tool::Dcgmi, what: None, words, limit_s }
}

impl Tool {
    /// Returns its names: the first one that the guest has is run.
    fn names(self) -> &'static [&'static str] {
        match self {
            Tool::Nvbandwidth => &["nvbandwidth"],
            Tool::AllReducePerf => &["all_reduce_perf"],
            Tool::Dcgmi => &["dcgmi"],
            Tool::Fio => &["fio"],
            Tool::Stream => &["stream", "stream_openmp"],
            Tool::Cyclictest => &["cyclictest"],
        }
    }

    /// Returns the paths where it may be, in these directories first.
    pub fn paths(self, directories: &[String]) -> Vec<String> {
        paths(self.names(), directories)
    }

    /// Whether it needs GPUs, and how many.
    pub fn least_gpus(self) -> usize {
        match self {
            Tool::Nvbandwidth | Tool::Dcgmi => 1,
            Tool::AllReducePerf => 2,
            Tool::Fio | Tool::Stream | Tool::Cyclictest => 0,
        }
    }

    /// Returns its runs in a guest with this many GPUs. `file`: the file that fio makes, reads and
    /// removes.
    pub fn calls(self, suite: Suite, gpus: usize, file: &str) -> Vec<Call> {
        let full = suite == Suite::Full;
        let seconds = if full { 60 } else { 10 };
        let call = |what: Option<What>, words: &str, limit_s: u64| Call {
            tool: self,
            what,
            words: words.split_whitespace().map(str::to_owned).collect(),
            limit_s,
        };
        let fio = |how: &str| {
            format!(
                "--output-format=json --name=gpuvm --filename={file} --unlink=1 --size=1G \
                 --direct=1 --ioengine=libaio --time_based --runtime={seconds} {how}"
            )
        };
        match self {
            Tool::Nvbandwidth => {
                let pairs = if gpus > 1 { " device_to_device_memcpy_read_ce" } else { "" };
                let tests = "-j -t host_to_device_memcpy_ce device_to_host_memcpy_ce";
                vec![call(None, &format!("{tests}{pairs}"), if full { 600 } else { 180 })]
            }
            Tool::AllReducePerf => {
                let most = if full { "16G" } else { "8G" };
                vec![call(None, &format!("-b 1G -e {most} -f 2 -g {gpus}"), 300)]
            }
            Tool::Dcgmi => {
                let (level, limit_s) = if full { (2, 600) } else { (1, 120) };
                vec![call(None, &format!("diag -r {level} -j"), limit_s)]
            }
            Tool::Fio => vec![
                call(Some(What::DiskRead), &fio("--rw=read --bs=1M --iodepth=16"), seconds + 120),
                call(
                    Some(What::DiskRandomRead),
                    &fio("--rw=randread --bs=4k --iodepth=32"),
                    seconds + 120,
                ),
            ],
            Tool::Stream => vec![call(None, "", 120)],
            Tool::Cyclictest => {
                let words = format!("-q -m -p95 -t -a -D {seconds} --json=/dev/stdout");
                vec![call(None, &words, seconds + 30)]
            }
        }
    }
}
