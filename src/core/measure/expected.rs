//! Expected speeds: those of the host's links, and reference numbers of boards.

use super::what::{Reading, What};
use serde::Serialize;

/// Part of the rate of a PCIe link, as NCCL counts it, that copies reach.
const PCIE_PART: f64 = 0.9;
/// Part of the rate of all NVLinks of a GPU that copies and collectives reach.
const NVLINK_PART: f64 = 0.75;

/// Reference numbers of a board, measured or used as alarm thresholds in guests of clouds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Board {
    /// Part of the GPUs' name.
    pub model: &'static str,
    /// NVLinks of a GPU, and GB/s of each in one direction.
    pub nvlinks: (u32, f64),
    /// GPUs of the whole board.
    pub gpus: usize,
    /// GB/s of copies between memory and a GPU.
    pub host: f64,
    /// GB/s of bus bandwidth of an all-reduce over the whole board; `None` if no number is known.
    pub all_reduce: Option<f64>,
    /// Where the numbers are from.
    pub source: &'static str,
}

/// Every board with known numbers. Of several that fit, the first one counts.
pub const BOARDS: &[Board] = &[
    Board {
        model: "GB200",
        nvlinks: (18, 50.0),
        gpus: 4,
        host: 48.0,
        all_reduce: Some(432.0),
        source: "Azure health checks, nd128isr_ndr_gb200_v6",
    },
    Board {
        model: "B200",
        nvlinks: (18, 50.0),
        gpus: 8,
        host: 48.0,
        all_reduce: Some(747.0),
        source: "nccl 1807, less a tenth",
    },
    Board {
        model: "H200",
        nvlinks: (18, 25.0),
        gpus: 8,
        host: 48.0,
        all_reduce: Some(431.0),
        source: "Azure health checks, nd96isr_h200_v5",
    },
    Board {
        model: "H100",
        nvlinks: (18, 25.0),
        gpus: 8,
        host: 48.0,
        all_reduce: Some(414.0),
        source: "Azure health checks, nd96isr_h100_v5, less a tenth",
    },
    Board {
        model: "A100",
        nvlinks: (12, 25.0),
        gpus: 8,
        host: 21.6,
        all_reduce: Some(228.0),
        source: "Azure health checks, nd96amsr_a100_v4",
    },
    Board {
        model: "V100",
        nvlinks: (6, 25.0),
        gpus: 16,
        host: 10.0,
        all_reduce: None,
        source: "Azure health checks, nd40rs_v2",
    },
];

/// The GPUs of a guest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// The model of its first GPU; empty without GPUs.
    pub model: String,
    /// Number of GPUs.
    pub gpus: usize,
    /// Version of the driver; empty without GPUs.
    pub driver: String,
}

/// The links that the host gives a guest's GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Promise {
    /// GB/s of the slowest path to one of its GPUs, as NCCL counts; `None` if unknown.
    pub path_gb_s: Option<u32>,
    /// Whether its GPUs have working NVLinks with each other.
    pub nvlink: bool,
}

/// An expected value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Expected {
    pub(super) value: f64,
    pub(super) source: String,
}

impl Shape {
    /// The board of the GPUs, if its numbers are known.
    fn board(&self) -> Option<&'static Board> {
        BOARDS.iter().find(|board| {
            let mut words = self.model.split(|c: char| !c.is_ascii_alphanumeric());
            words.any(|word| word == board.model)
        })
    }

    /// Returns the expected value of a reading; `None` if nothing is known.
    pub(super) fn expected(&self, reading: &Reading, promise: Promise) -> Option<Expected> {
        let board = self.board();
        let of = |value: f64, source: &str| Expected { value, source: source.to_owned() };
        let links = |board: &Board| {
            let (count, rate) = board.nvlinks;
            let value = f64::from(count) * rate * NVLINK_PART;
            Expected { value, source: format!("{count} NVLinks of {rate} GB/s x {NVLINK_PART}") }
        };
        let all: Vec<Expected> = match reading.what {
            What::HostToDevice | What::DeviceToHost => {
                let path = promise.path_gb_s.map(|path| Expected {
                    value: f64::from(path) * PCIE_PART,
                    source: format!("PCIe path of {path} GB/s x {PCIE_PART}"),
                });
                path.into_iter().chain(board.map(|board| of(board.host, board.source))).collect()
            }
            What::DeviceToDevice if promise.nvlink => board.map(links).into_iter().collect(),
            What::AllReduce if promise.nvlink => {
                let whole = board.filter(|board| self.gpus == board.gpus);
                let table = whole.and_then(|board| Some(of(board.all_reduce?, board.source)));
                table.or_else(|| board.map(links)).into_iter().collect()
            }
            _ => Vec::new(),
        };
        all.into_iter().min_by(|a, b| a.value.total_cmp(&b.value))
    }
}
