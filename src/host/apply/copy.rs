//! Whether a copy is what was copied: on the way out by the sum of what was read, and in its place by reading it back.
//! libvirt may report a stream as ended well whose end was never written, and tells a volume's format by its bytes.

use super::{Observer, Step, StepError};
use crate::hypervisor::Hypervisor;
use crate::hypervisor::storage::Volume;
use gpuvm_core::image::{Sha256, Summing};
use std::io::{self, Write};
use std::path::Path;

/// Refuses a copy that is not of the file, by sum and size, that was planned with; what was copied goes with its volume.
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

/// Refuses a volume that is not what a [`Step::CheckVolume`] says.
pub(super) fn check(
    step: &Step,
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
) -> Result<(), StepError> {
    let Step::CheckVolume { pool, name, format, capacity_bytes, bytes, sha256 } = step else {
        return Ok(());
    };
    seen((pool, name), (format, *capacity_bytes), hypervisor)?;
    let mut told = Told { observer, through: 0, bytes: *bytes, signal: None };
    let mut summing = Summing::new(&mut told);
    let read = hypervisor.storage().download(pool, name, 0..*bytes, &mut summing);
    let (sum, through) = summing.end();
    if let Some(signal) = told.signal {
        return Err(StepError::Signal { signal });
    }
    read?;
    match (sum, through) == (*sha256, *bytes) {
        true => Ok(()),
        false => Err(other(format!(
            "{through} bytes of it with SHA-256 {sum} came back, and {bytes} with {sha256} were sent"
        ))),
    }
}

/// The volume of a pool and a name, which the hypervisor has to take for one of this format and size that stands alone.
pub(super) fn seen(
    (pool, name): (&str, &str),
    (format, capacity_bytes): (&str, u64),
    hypervisor: &dyn Hypervisor,
) -> Result<Volume, StepError> {
    let volumes = hypervisor.storage().volumes(pool)?;
    match volumes.into_iter().find(|volume| volume.name == *name) {
        None => Err(other("it is not there any more".into())),
        Some(Volume { backing: Some(file), .. }) => {
            Err(other(format!("the hypervisor sees it lie over {}", file.display())))
        }
        Some(seen) if (&*seen.format, seen.capacity_bytes) != (format, capacity_bytes) => {
            let Volume { format, capacity_bytes, .. } = seen;
            Err(other(format!("the hypervisor takes it for {format} of {capacity_bytes} bytes")))
        }
        Some(seen) => Ok(seen),
    }
}

/// The error that a volume is another than it has to be.
pub(super) fn other(seen: String) -> StepError {
    StepError::OtherVolume { seen }
}

/// Takes bytes and tells an observer how many; a signal breaks off.
struct Told<'o> {
    /// Who watches.
    observer: &'o mut dyn Observer,
    /// Bytes that came.
    through: u64,
    /// Bytes that are to come.
    bytes: u64,
    /// The signal that broke off.
    signal: Option<String>,
}

impl Write for Told<'_> {
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
