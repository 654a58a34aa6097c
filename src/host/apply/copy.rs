//! Verifies a copy: by the checksum of the data read, and by reading back the data written. libvirt
//! may report success for a stream whose end was never written, and detects a volume's format by
//! its content.

use super::disk::Source;
use super::{Observer, StepError};
use crate::hypervisor::Hypervisor;
use crate::hypervisor::storage::Volume;
use gpuvm_core::image::{Sha256, Summing};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::path::Path;

/// Refuses a copy if checksum or size are not those of the planned file; the copied data is removed
/// with its volume.
pub(super) fn same(
    path: &Path,
    (sum, through): (Sha256, u64),
    (planned, bytes): (Option<Sha256>, u64),
) -> Result<(), StepError> {
    let what = if through != bytes {
        format!("it had {bytes} bytes, and {through} were read")
    } else if let Some(planned) = planned.filter(|planned| *planned != sum) {
        format!("its SHA-256 was {planned}, and that of what was read is {sum}")
    } else {
        return Ok(());
    };
    Err(StepError::Changed { path: path.to_owned(), what })
}

/// A volume as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WrittenVolume {
    /// Its pool.
    pub pool: String,
    /// Its name.
    pub name: String,
    /// Its format: `raw`, `qcow2`.
    pub format: String,
    /// Size seen by a guest, in bytes.
    pub capacity_bytes: u64,
    /// Bytes that it was filled with.
    pub bytes: u64,
    /// Their SHA-256.
    pub sha256: Sha256,
}

impl WrittenVolume {
    /// Refuses a volume that is not so.
    pub(super) fn check(
        &self,
        hypervisor: &dyn Hypervisor,
        observer: &mut dyn Observer,
    ) -> Result<(), StepError> {
        let WrittenVolume { pool, name, format, capacity_bytes, bytes, sha256 } = self;
        seen((pool, name), (format, *capacity_bytes), None, hypervisor)?;
        let mut sink = ObservedSink { observer, through: 0, bytes: *bytes, signal: None };
        let mut summing = Summing::new(&mut sink);
        let read = hypervisor.storage().download(pool, name, 0..*bytes, &mut summing);
        let (sum, through) = summing.end();
        if let Some(signal) = sink.signal {
            return Err(StepError::Signal { signal });
        }
        read?;
        if (sum, through) == (*sha256, *bytes) {
            Ok(())
        } else {
            Err(other(format!(
                "{through} bytes of it with SHA-256 {sum} came back, and {bytes} with {sha256} \
                 were sent"
            )))
        }
    }
}

/// Refuses a file whose bytes are not these many with this checksum.
pub(super) fn read(
    source: &Source<'_>,
    (bytes, sha256): (u64, Sha256),
    observer: &mut dyn Observer,
) -> Result<(), StepError> {
    let mut sink = ObservedSink { observer, through: 0, bytes, signal: None };
    let mut summing = Summing::new(&mut sink);
    let read = source.read(&mut summing);
    let (sum, through) = summing.end();
    if let Some(signal) = sink.signal {
        return Err(StepError::Signal { signal });
    }
    read?;
    if (sum, through) == (sha256, bytes) {
        return Ok(());
    }
    Err(other(format!("its SHA-256 was {sha256} and is {sum}")))
}

/// Returns the volume, which the hypervisor must report with this format and size, standalone or
/// over `below`.
pub(super) fn seen(
    (pool, name): (&str, &str),
    (format, capacity_bytes): (&str, u64),
    below: Option<&Path>,
    hypervisor: &dyn Hypervisor,
) -> Result<Volume, StepError> {
    let volumes = hypervisor.storage().volumes(pool)?;
    match volumes.into_iter().find(|volume| volume.name == *name) {
        None => Err(other("it no longer exists".into())),
        Some(Volume { backing: Some(file), .. }) if below != Some(&*file) => {
            Err(other(format!("the hypervisor sees {} as its backing file", file.display())))
        }
        Some(seen) if (&*seen.format, seen.capacity_bytes) != (format, capacity_bytes) => {
            let Volume { format, capacity_bytes, .. } = seen;
            Err(other(format!("the hypervisor takes it for {format} of {capacity_bytes} bytes")))
        }
        Some(seen) => Ok(seen),
    }
}

/// Makes the error of a volume that is not as expected.
pub(super) fn other(seen: String) -> StepError {
    StepError::OtherVolume { seen }
}

/// A sink that reports progress to an observer; a signal cancels.
struct ObservedSink<'o> {
    observer: &'o mut dyn Observer,
    /// Bytes that came.
    through: u64,
    /// Bytes that are to come.
    bytes: u64,
    signal: Option<String>,
}

impl Write for ObservedSink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.through += bytes.len() as u64;
        self.observer.progress(self.through, self.bytes);
        self.signal = self.observer.interrupted();
        match self.signal {
            None => Ok(bytes.len()),
            Some(_) => Err(io::Error::other("broken off")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
