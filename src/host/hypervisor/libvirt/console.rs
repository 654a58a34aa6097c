//! A guest's console through libvirt's nonblocking stream, which libvirt's event loop fills.

use super::super::{Console, ConsoleRead, HypervisorError};
use super::Libvirt;
use super::call::{Failed, error};
use std::fmt::Arguments;
use virt::error::Error;
use virt::stream::Stream;
use virt::sys;

/// A stream's return value if it would block.
const WOULD_WAIT: isize = -2;

struct Attached {
    /// The stream; none once it is closed.
    stream: Option<Stream>,
    doing: String,
}

/// Attaches to the first console of a guest.
pub(super) fn attach(
    libvirt: &Libvirt,
    name: &str,
    force: bool,
    doing: Arguments<'_>,
) -> Result<Box<dyn Console>, Failed> {
    let domain = libvirt.find_to_change(name)?;
    let stream = Stream::new(&libvirt.connection(), sys::VIR_STREAM_NONBLOCK)?;
    let flags = if force { sys::VIR_DOMAIN_CONSOLE_FORCE } else { 0 };
    domain.open_console(None, &stream, flags)?;
    Ok(Box::new(Attached { stream: Some(stream), doing: doing.to_string() }))
}

impl Attached {
    fn failed(&self, e: &Error) -> HypervisorError {
        error(format_args!("{}", self.doing), e)
    }
}

impl Console for Attached {
    fn read(&mut self, into: &mut [u8]) -> Result<ConsoleRead, HypervisorError> {
        let Some(stream) = &self.stream else { return Ok(ConsoleRead::End) };
        match stream.recv(into).map_err(|e| self.failed(&e))? {
            WOULD_WAIT => Ok(ConsoleRead::Nothing),
            got => Ok(match usize::try_from(got) {
                Ok(got @ 1..) => ConsoleRead::Bytes(got),
                Ok(0) | Err(_) => ConsoleRead::End,
            }),
        }
    }

    fn write(&mut self, from: &[u8]) -> Result<usize, HypervisorError> {
        let Some(stream) = &self.stream else { return Ok(0) };
        let sent = stream.send(from).map_err(|e| self.failed(&e))?;
        // Negative: it would block.
        Ok(usize::try_from(sent).unwrap_or(0))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            // An ended stream cannot be aborted; both end it.
            let _ = stream.abort();
        }
    }
}
