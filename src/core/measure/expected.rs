//! Expected speeds: those of the host's links, and reference numbers of boards.

use super::read::{GpuState, MOST_NAME, shortened};
use super::what::{Reading, What};
use serde::Serialize;
use std::collections::BTreeMap;

/// Part of the rate of a PCIe link, as NCCL counts it, that copies reach.
const PCIE_PART: f64 = 0.9;
/// Part of the rate of all NVLinks of a GPU that copies and collectives reach.
const NVLINK_PART: f64 = 0.75;
/// Part of a NIC's line rate that RDMA reaches, and of that through the root complex.
pub(super) const LINE_PART: f64 = 0.9;
pub(super) const ROOT_PART: f64 = 0.5;

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
    /// The model of its GPUs; of several models, the name of each one, joined by ` + `. Empty
    /// without GPUs.
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
    pub path_gb_s: Option<f64>,
    /// The fewest working NVLinks between two of its GPUs; 0: two have none.
    pub nvlinks: u32,
    /// The links of the two measured NICs.
    pub rdma: RdmaPromise,
}

/// The links of two NICs that exchange data.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RdmaPromise {
    /// Line rate in Gb/s of the slower one; `None` if unknown, or if they use no line.
    pub line_gbit_s: Option<f64>,
    /// The rates between each NIC and the memory that it reads or writes.
    pub sides: [RdmaReach; 2],
}

/// The rate between a NIC and memory.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RdmaReach {
    /// GB/s of the slowest PCIe link on the way, as NCCL counts; `None` if unknown.
    pub gb_s: Option<f64>,
    /// The part of a rate that is reached on this way; `None` if the way is unknown, or none.
    pub part: Option<f64>,
}

impl RdmaPromise {
    /// The expected rates in Gb/s: those of the line and of the PCIe paths.
    fn expected(&self) -> Vec<Expected> {
        let [Some(first), Some(second)] = self.sides.map(|side| side.part) else {
            return Vec::new();
        };
        // A path alone may be faster than the line.
        let Some(line) = self.line_gbit_s else { return Vec::new() };
        let part = first.min(second);
        let source = format!("line rate of {line} Gb/s x {part}");
        let paths = self.sides.into_iter().filter_map(|RdmaReach { gb_s, part }| {
            let (gbit_s, part) = (gb_s? * 8.0, part?);
            let source = format!("PCIe path of {gbit_s} Gb/s x {part}");
            Some(Expected { value: gbit_s * part, source })
        });
        std::iter::once(Expected { value: line * part, source }).chain(paths).collect()
    }
}

/// An expected value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Expected {
    pub(super) value: f64,
    pub(super) source: String,
}

/// Speeds that an admin expects of a model of GPU, instead of the paths and reference numbers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OwnExpected {
    /// The model's whole name, or one word of it, in upper or lower case.
    pub model: String,
    /// Values in the units of their quantities.
    pub values: BTreeMap<What, f64>,
}

impl OwnExpected {
    /// The file of them.
    pub const FILE: &str = "etc/gpuvm/expected.toml";
}

/// Whether a reading is not the latency of another cell's memory, which has no limit of its own.
fn is_own_cell(reading: &Reading) -> bool {
    let Some(device) = &reading.device else { return true };
    let cells: Vec<&str> =
        device.split_whitespace().filter(|word| word.parse::<u32>().is_ok()).collect();
    reading.what != What::MemoryLatency || cells.first() == cells.last()
}

/// The text between the names of several models.
const AND: &str = " + ";

impl Shape {
    /// Returns the shape of a guest with these GPUs.
    pub fn of(gpus: &[GpuState]) -> Shape {
        let mut models: Vec<&str> = Vec::new();
        for gpu in gpus {
            if !models.contains(&&*gpu.name) {
                models.push(&gpu.name);
            }
        }
        Shape {
            model: shortened(&models.join(AND), MOST_NAME),
            gpus: gpus.len(),
            driver: gpus.first().map(|gpu| gpu.driver.clone()).unwrap_or_default(),
        }
    }

    /// Whether the model's NVSwitches reduce (third generation and later).
    pub(super) fn has_nvls(&self) -> bool {
        const LINKS: u32 = 18;
        self.board().is_some_and(|board| board.nvlinks.0 >= LINKS)
    }

    /// Whether a name is the model's, or a word of it. Of several models, no one's numbers are
    /// those of all GPUs.
    fn is_model(&self, name: &str) -> bool {
        if self.model.contains(AND) {
            return self.is_named(name);
        }
        let mut words = self.model.split(|c: char| !c.is_ascii_alphanumeric());
        self.is_named(name) || words.any(|word| word.eq_ignore_ascii_case(name))
    }

    /// Whether a name is the model's whole one.
    fn is_named(&self, name: &str) -> bool {
        self.model.eq_ignore_ascii_case(name)
    }

    /// The board of the GPUs, if its numbers are known.
    fn board(&self) -> Option<&'static Board> {
        BOARDS.iter().find(|board| self.is_model(board.model))
    }

    /// Returns the expected value of a reading; `None` if nothing is known.
    pub(super) fn expected(
        &self,
        reading: &Reading,
        promise: Promise,
        own: &[OwnExpected],
    ) -> Option<Expected> {
        let own = own.iter().filter(|own| self.is_model(&own.model) && is_own_cell(reading));
        // A whole name says more than a word of it.
        let own =
            own.filter_map(|own| Some((self.is_named(&own.model), own.values.get(&reading.what)?)));
        let best = own.reduce(|best, other| if other.0 && !best.0 { other } else { best });
        if let Some((_, &value)) = best {
            return Some(Expected { value, source: format!("/{}", OwnExpected::FILE) });
        }
        let board = self.board();
        let of = |value: f64, source: &str| Expected { value, source: source.to_owned() };
        let count = promise.nvlinks;
        let links = |board: &Board| {
            let rate = board.nvlinks.1;
            let value = f64::from(count) * rate * NVLINK_PART;
            Expected { value, source: format!("{count} NVLinks of {rate} GB/s x {NVLINK_PART}") }
        };
        let all: Vec<Expected> = match reading.what {
            What::HostToDevice | What::DeviceToHost => {
                let path = promise.path_gb_s.map(|path| Expected {
                    value: path * PCIE_PART,
                    source: format!("PCIe path of {path} GB/s x {PCIE_PART}"),
                });
                path.into_iter().chain(board.map(|board| of(board.host, board.source))).collect()
            }
            What::DeviceToDevice if count > 0 => board.map(links).into_iter().collect(),
            // In a mesh of fewer links the way through it decides; no number is published.
            What::AllReduce if board.is_some_and(|board| count >= board.nvlinks.0) => {
                let whole = board.filter(|board| self.gpus == board.gpus);
                let table = whole.and_then(|board| Some(of(board.all_reduce?, board.source)));
                table.or_else(|| board.map(links)).into_iter().collect()
            }
            What::RdmaWrite | What::RdmaRead | What::RdmaWriteGpu | What::RdmaReadGpu => {
                promise.rdma.expected()
            }
            _ => Vec::new(),
        };
        all.into_iter().min_by(|a, b| a.value.total_cmp(&b.value))
    }
}
