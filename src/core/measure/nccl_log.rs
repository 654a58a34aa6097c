//! NCCL's own log (`NCCL_DEBUG=INFO`) of an all-reduce: how the GPUs exchange data.

use super::expected::Shape;

/// The parts of a log that explain a speed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NcclLog {
    /// Channels between GPUs, directly.
    pub direct: usize,
    /// Channels through memory of the guest (SHM).
    pub through_memory: usize,
    /// Whether the GPUs can reduce in the NVSwitches (NVLS); `None` if the log does not say.
    pub nvls: Option<bool>,
}

impl NcclLog {
    /// Reads a log; lines of other programs are skipped. Its lines are `HOST:PID:TID [GPU] NCCL
    /// INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read`, or `.. via SHM/direct/direct`, and
    /// `.. NVLS multicast support is not available on dev 0` (NCCL 2.18 and later, src/transport).
    pub fn read(output: &str) -> NcclLog {
        let mut log = NcclLog::default();
        for line in output.lines() {
            let Some((_, said)) = line.split_once("NCCL INFO ") else { continue };
            if let Some((_, way)) = said.split_once(" via ").filter(|_| said.starts_with("Channel"))
            {
                if way.starts_with("P2P/") {
                    log.direct += 1;
                } else if way.starts_with("SHM/") || way == "SHM" {
                    log.through_memory += 1;
                }
            } else if let Some(rest) = said.strip_prefix("NVLS multicast support is ") {
                // One GPU without it is enough.
                let is_available = rest.starts_with("available");
                log.nvls = Some(log.nvls.unwrap_or(true) && is_available);
            }
        }
        log
    }

    /// Returns the sentences that explain a low speed of GPUs of this shape.
    pub fn notes(self, shape: &Shape) -> Vec<String> {
        let mut notes = Vec::new();
        if self.through_memory > 0 {
            let all = self.direct + self.through_memory;
            notes.push(format!(
                "NCCL copies between GPUs through memory of the guest (SHM) on {} of {all} \
                 channels, not directly (P2P)",
                self.through_memory
            ));
        }
        if self.nvls == Some(false) && shape.has_nvls() {
            let note = "NCCL cannot reduce in the NVSwitches: NVLS multicast is not available";
            notes.push(note.to_owned());
        }
        notes
    }
}
