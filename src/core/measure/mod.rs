//! Measurements in a guest by well-known programs that it has: which of them run and how, what
//! their output says, and which speed is expected. Pure: `gpuvm_ops::measure` runs them.
//!
//! Formats were read from the programs' sources (nvbandwidth 0.5 to 0.8, nccl-tests 2.13 to 2.17,
//! DCGM 3 and 4, perftest 4.5 and 24.04), from published outputs (mlc 3.5 to 3.11), and from real
//! runs (fio 3.33, cyclictest 2.40). Reference speeds and their sources are in gpuvm-hardware(7).

mod expected;
mod history;
mod nccl_log;
mod rdma;
mod read;
mod report;
mod tool;
mod what;

pub use expected::{BOARDS, Board, OwnExpected, Promise, RdmaPromise, RdmaReach, Shape};
pub use history::{KEPT, Run, keep_last, median, newest};
pub use nccl_log::NcclLog;
pub use rdma::{
    NicGpu, NicLinks, NicTransfer, RdmaCall, RdmaDevice, RdmaPair, RdmaSide, rdma_call, rdma_gpu,
    rdma_pairs, read_rdma_names, read_rdma_port,
};
pub use read::{
    Faulty, GpuState, MOST_VALUE, ReadError, Taken, one_line, read, read_cells, read_gpus,
};
pub use report::{Basis, Candidate, Line, MeasureReport, NotMeasured, Verdict, judge};
pub use tool::{Call, FioFile, Parts, Suite, Tool, diagnostics, numactl_paths, smi_paths};
pub use what::{Reading, What, candidates};

#[cfg(test)]
mod tests;
