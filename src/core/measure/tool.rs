//! The programs that measure: where they are, and their fixed arguments.

use super::what::What;
use serde::{Deserialize, Serialize};

/// How much is measured.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    strum::Display,
)]
#[strum(serialize_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Suite {
    /// About two minutes.
    #[default]
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
    /// RDMA writes of perftest, between two NICs or two guests.
    IbWriteBw,
    /// RDMA reads of perftest.
    IbReadBw,
    /// Reads of a file.
    Fio,
    /// Memory bandwidth.
    Stream,
    /// Intel's Memory Latency Checker.
    Mlc,
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
    /// The part of the guest that is measured, for output that does not name it.
    pub device: Option<String>,
    /// The command that runs the program: numactl, which binds it to a cell.
    pub before: Vec<String>,
    /// Its arguments.
    pub words: Vec<String>,
    /// The most seconds it may take.
    pub limit_s: u64,
    /// Number of GPUs that its output must have values of; 0 if it does not matter.
    pub gpus: usize,
}

/// The file that fio reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FioFile {
    /// One that it makes and removes.
    Own(String),
    /// One that exists, which it only reads.
    Existing(String),
}

impl FioFile {
    /// Returns its arguments for this file.
    fn words(&self) -> Vec<String> {
        let (path, more): (_, &[&str]) = match self {
            FioFile::Own(path) => (path, &["--unlink=1", "--size=1G"]),
            FioFile::Existing(path) => (path, &["--readonly", "--allow_file_create=0"]),
        };
        // A colon separates two names.
        let name = format!("--filename={}", path.replace(':', "\\:"));
        std::iter::once(name).chain(more.iter().map(|&word| word.to_owned())).collect()
    }
}

/// The parts of a guest that decide how programs run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    /// Number of GPUs.
    pub gpus: usize,
    /// The file that fio reads.
    pub file: FioFile,
    /// Numbers of its cells (NUMA nodes).
    pub cells: Vec<u32>,
    /// Path of numactl; `None` if the guest does not have it.
    pub numactl: Option<String>,
}

impl Parts {
    /// A guest with this many GPUs of which nothing else matters.
    pub fn of_gpus(gpus: usize) -> Parts {
        Parts { gpus, file: FioFile::Own(String::new()), cells: Vec::new(), numactl: None }
    }
}

/// Directories of programs, in the order in which they are looked for.
const DIRECTORIES: [&str; 4] =
    ["/usr/bin", "/usr/local/bin", "/opt/nccl-tests/build", "/usr/local/cuda/bin"];

/// Returns the paths where `nvidia-smi` may be.
pub fn smi_paths(directories: &[String]) -> Vec<String> {
    paths(&["nvidia-smi"], directories)
}

/// Returns the paths where `numactl` may be.
pub fn numactl_paths(directories: &[String]) -> Vec<String> {
    paths(&["numactl"], directories)
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
    Call::of(Tool::Dcgmi, None, words.split(' ').map(str::to_owned).collect(), limit_s)
}

impl Call {
    pub(super) fn of(tool: Tool, what: Option<What>, words: Vec<String>, limit_s: u64) -> Call {
        Call { tool, what, device: None, before: Vec::new(), words, limit_s, gpus: 0 }
    }
}

impl What {
    /// The program that measures it.
    pub fn tool(self) -> Tool {
        match self {
            What::HostToDevice | What::DeviceToHost | What::DeviceToDevice => Tool::Nvbandwidth,
            What::AllReduce => Tool::AllReducePerf,
            What::RdmaWrite | What::RdmaWriteGpu => Tool::IbWriteBw,
            What::RdmaRead | What::RdmaReadGpu => Tool::IbReadBw,
            What::DiskRead | What::DiskRandomRead => Tool::Fio,
            What::Triad => Tool::Stream,
            What::MemoryLatency => Tool::Mlc,
            What::TimerLatency => Tool::Cyclictest,
        }
    }
}

impl Tool {
    /// Returns its names: the first one that the guest has is run.
    fn names(self) -> &'static [&'static str] {
        match self {
            Tool::Nvbandwidth => &["nvbandwidth"],
            Tool::AllReducePerf => &["all_reduce_perf"],
            Tool::Dcgmi => &["dcgmi"],
            Tool::IbWriteBw => &["ib_write_bw"],
            Tool::IbReadBw => &["ib_read_bw"],
            Tool::Fio => &["fio"],
            Tool::Stream => &["stream", "stream_openmp"],
            Tool::Mlc => &["mlc"],
            Tool::Cyclictest => &["cyclictest"],
        }
    }

    /// Whether it needs a second process that answers it, on another NIC or in another guest.
    pub fn is_pair(self) -> bool {
        matches!(self, Tool::IbWriteBw | Tool::IbReadBw)
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
            Tool::IbWriteBw
            | Tool::IbReadBw
            | Tool::Fio
            | Tool::Stream
            | Tool::Mlc
            | Tool::Cyclictest => 0,
        }
    }

    /// Returns its runs in a guest; those of perftest are [`super::rdma_calls`].
    pub fn calls(self, suite: Suite, parts: &Parts) -> Vec<Call> {
        let gpus = parts.gpus;
        let full = suite == Suite::Full;
        let seconds = if full { 60 } else { 10 };
        let call = |what: Option<What>, words: &str, limit_s: u64| {
            let words = words.split_whitespace().map(str::to_owned).collect();
            Call::of(self, what, words, limit_s)
        };
        let fio = |what: What, how: &str| {
            let words = format!(
                "--output-format=json --name=gpuvm --direct=1 --ioengine=libaio --time_based \
                 --runtime={seconds} {how}"
            );
            let mut call = call(Some(what), &words, seconds + 120);
            call.words.extend(parts.file.words());
            // Its speed is not that of the guest's own file.
            if let FioFile::Existing(path) = &parts.file {
                call.device = Some(path.clone());
            }
            call
        };
        match self {
            Tool::Nvbandwidth => {
                let pairs = if gpus > 1 { " device_to_device_memcpy_read_ce" } else { "" };
                let tests = "-j -t host_to_device_memcpy_ce device_to_host_memcpy_ce";
                let limit_s = if full { 600 } else { 180 };
                vec![Call { gpus, ..call(None, &format!("{tests}{pairs}"), limit_s) }]
            }
            Tool::AllReducePerf => {
                let most = if full { "16G" } else { "8G" };
                // NCCL's log shows how the GPUs exchange data.
                let before = ["/usr/bin/env", "NCCL_DEBUG=INFO"].map(str::to_owned).into();
                vec![Call { before, ..call(None, &format!("-b 1G -e {most} -f 2 -g {gpus}"), 300) }]
            }
            Tool::Dcgmi => {
                let (level, limit_s) = if full { (2, 600) } else { (1, 120) };
                vec![call(None, &format!("diag -r {level} -j"), limit_s)]
            }
            Tool::IbWriteBw | Tool::IbReadBw => Vec::new(),
            Tool::Fio => vec![
                fio(What::DiskRead, "--rw=read --bs=1M --iodepth=16"),
                fio(What::DiskRandomRead, "--rw=randread --bs=4k --iodepth=32"),
            ],
            Tool::Stream => match &parts.numactl {
                Some(numactl) if parts.cells.len() > 1 => {
                    let each = parts.cells.iter().map(|cell| Call {
                        device: Some(format!("cell {cell}")),
                        before: vec![
                            numactl.clone(),
                            format!("--cpunodebind={cell}"),
                            format!("--membind={cell}"),
                        ],
                        ..call(None, "", 120)
                    });
                    each.collect()
                }
                _ => vec![call(None, "", 120)],
            },
            // Random reads, so that it need not switch prefetchers off, which a guest cannot.
            Tool::Mlc => vec![call(None, "--latency_matrix -e -r", 300)],
            Tool::Cyclictest => {
                let words = format!("-q -m -p95 -t -a -D {seconds} --json=/dev/stdout");
                vec![call(None, &words, seconds + 30)]
            }
        }
    }
}
