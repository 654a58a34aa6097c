//! Relays a guest's serial console to an input and an output, a terminal or pipes.

use crate::domain::DomainXml;
use crate::domain::view::View;
use crate::error::{Class, Coded, Error, Result, classed};
use crate::hypervisor::{Console, ConsoleRead, Hypervisor, HypervisorErrorKind, XmlOf};
use crate::lookup::find;
use crate::shell::{domain, word};
use crate::world::World;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{Error as IoError, Write};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// The reason no console can be attached.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "console-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum ConsoleError {
    /// The console of the domain is of a kind that cannot be attached.
    #[error("the console of domain `{name}` is a {kind}{at}, which cannot be attached to")]
    Kind { name: String, kind: String, at: String },
}

impl Coded for ConsoleError {}

/// Ctrl-], which detaches.
const ESCAPE: u8 = 0x1d;
/// Polling interval of the console while active, in milliseconds: imperceptible.
const SHORT_MS: u16 = 4;
const LONG_MS: u16 = 64;
/// The most console reads between checks of the input, so that an endlessly writing guest can be
/// left.
const MOST_READS: usize = 64;
/// The most input buffered for a guest that does not accept it; more is not read from a pipe.
const MOST_PENDING: usize = 64 << 10;
/// How long a guest may take to accept the end of the input.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// How a console session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsoleEnd {
    /// By Ctrl-].
    Left,
    /// With the input.
    InputEnded,
    /// With the guest, or because another client took over the console.
    ConsoleEnded,
    /// By a signal.
    Signal,
}

/// Opens the console of a running domain; `force`: even if it is in use.
pub fn attach(world: &World, name: &str, force: bool) -> Result<Box<dyn Console>> {
    world.refuse_without_guests("console")?;
    let hypervisor = world.hypervisor_for_console()?;
    check(&*hypervisor, name)?;
    hypervisor.console(name, force).map_err(|error| match error.kind {
        HypervisorErrorKind::Busy => classed(
            Class::InUse,
            error.to_string(),
            format!("`gpuvm console --force {name}` takes it over", name = word(name)),
        ),
        _ => error.into(),
    })
}

/// Refuses a domain that has no console to attach to.
fn check(hypervisor: &dyn Hypervisor, name: &str) -> Result<()> {
    if !find(hypervisor, name)?.state.is_active() {
        let message = format!("domain `{name}` does not run, so it has no console");
        return Err(classed(
            Class::WrongState,
            message,
            format!("`gpuvm start {name}` starts it", name = word(name)),
        ));
    }
    let xml = DomainXml::parse(&hypervisor.xml(name, XmlOf::Live)?)?;
    let Some(console) = View::of(&xml, None)?.console else {
        let hint = format!(
            "add `<console type='pty'/>` to its devices: `virsh edit {name}`",
            name = domain(name)
        );
        return Err(classed(
            Class::NotFound,
            format!("domain `{name}` has no console device"),
            hint,
        ));
    };
    if !matches!(console.kind.as_str(), "pty" | "unix") {
        let at = console.path.map_or(String::new(), |path| format!(" {path}"));
        return Err(ConsoleError::Kind {
            name: name.to_string(),
            kind: console.kind.to_string(),
            at: at.to_string(),
        }
        .hint(format!("make it `<console type='pty'/>`: `virsh edit {}`", domain(name))));
    }
    Ok(())
}

/// A console between an input and an output.
pub struct Relay<'a> {
    console: Box<dyn Console + 'a>,
    input: BorrowedFd<'a>,
    /// The destination of the guest's output.
    output: &'a mut dyn Write,
    /// Whether the input is a terminal, where Ctrl-] detaches.
    is_terminal: bool,
    /// Input not yet accepted by the guest.
    pending: Vec<u8>,
}

impl<'a> Relay<'a> {
    /// Makes a relay of an attached console.
    pub fn new(
        console: Box<dyn Console + 'a>,
        input: BorrowedFd<'a>,
        is_terminal: bool,
        output: &'a mut dyn Write,
    ) -> Relay<'a> {
        Relay { console, input, output, is_terminal, pending: Vec::new() }
    }

    /// Copies both ways until one side ends, or it is interrupted.
    pub fn copy(&mut self, interrupted: &dyn Fn() -> bool) -> Result<ConsoleEnd> {
        let mut pause_ms = SHORT_MS;
        let mut input_ended: Option<Instant> = None;
        loop {
            let (more, ended) = self.show()?;
            if ended {
                return Ok(ConsoleEnd::ConsoleEnded);
            }
            if interrupted() {
                return Ok(ConsoleEnd::Signal);
            }
            let typed = self.type_pending()?;
            pause_ms = if more || typed { SHORT_MS } else { (pause_ms * 2).min(LONG_MS) };
            if let Some(since) = input_ended {
                if self.pending.is_empty() || since.elapsed() > LAST_WAIT {
                    self.show()?;
                    return Ok(ConsoleEnd::InputEnded);
                }
                std::thread::sleep(Duration::from_millis(pause_ms.into()));
                continue;
            }
            match self.listen(pause_ms)? {
                None => {}
                Some(ConsoleEnd::InputEnded) => input_ended = Some(Instant::now()),
                Some(end) => {
                    self.type_pending()?;
                    return Ok(end);
                }
            }
        }
    }

    /// Prints the guest's output; returns whether there was any, and whether the console has ended.
    fn show(&mut self) -> Result<(bool, bool)> {
        let mut buffer = [0; 4096];
        let (mut any, mut ended) = (false, false);
        for _ in 0..MOST_READS {
            match self.console.read(&mut buffer)? {
                ConsoleRead::Bytes(got) => {
                    self.output.write_all(&buffer[..got])?;
                    any = true;
                }
                ConsoleRead::Nothing => break,
                ConsoleRead::End => {
                    ended = true;
                    break;
                }
            }
        }
        if any {
            self.output.flush()?;
        }
        Ok((any, ended))
    }

    /// Sends typed input as far as the guest accepts it; returns whether any was sent.
    fn type_pending(&mut self) -> Result<bool> {
        if self.pending.is_empty() {
            return Ok(false);
        }
        let taken = self.console.write(&self.pending)?;
        self.pending.drain(..taken);
        Ok(taken > 0)
    }

    /// Waits for input; `None` if the session continues.
    fn listen(&mut self, pause_ms: u16) -> Result<Option<ConsoleEnd>> {
        let has_room = self.is_terminal || self.pending.len() < MOST_PENDING;
        let wanted = if has_room { PollFlags::POLLIN } else { PollFlags::empty() };
        let mut polled = [PollFd::new(self.input, wanted)];
        match poll(&mut polled, PollTimeout::from(pause_ms)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(failed(errno, "cannot wait for input")),
        }
        if !has_room {
            std::thread::sleep(Duration::from_millis(pause_ms.into()));
            return Ok(None);
        }
        if !polled[0].any().unwrap_or(false) {
            return Ok(None);
        }
        let mut buffer = [0; 4096];
        let got = match nix::unistd::read(self.input, &mut buffer) {
            // A closed terminal gives an input error.
            Ok(0) | Err(Errno::EIO) => return Ok(Some(ConsoleEnd::InputEnded)),
            Ok(got) => &buffer[..got],
            Err(Errno::EINTR | Errno::EAGAIN) => return Ok(None),
            Err(errno) => return Err(failed(errno, "cannot read the input")),
        };
        let escape = got.iter().position(|&byte| byte == ESCAPE).filter(|_| self.is_terminal);
        self.pending.extend_from_slice(&got[..escape.unwrap_or(got.len())]);
        Ok(escape.map(|_| ConsoleEnd::Left))
    }
}

/// Makes the error of a refusal by the system.
fn failed(errno: Errno, what: &str) -> Error {
    let source = Box::new(IoError::from(errno).into());
    Error::Doing { doing: what.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hypervisor::HypervisorError;
    use std::io::PipeWriter;
    use std::os::fd::AsFd as _;

    /// A guest that answers in capitals, accepts three bytes at a time, and ends after a `!`.
    #[derive(Default)]
    struct Shouter {
        said: Vec<u8>,
        /// Whether it ends after that output.
        ends: bool,
    }

    impl Console for Shouter {
        fn read(&mut self, into: &mut [u8]) -> Result<ConsoleRead, HypervisorError> {
            let got = self.said.len().min(into.len());
            into[..got].copy_from_slice(&self.said[..got]);
            self.said.drain(..got);
            Ok(match got {
                0 if self.ends => ConsoleRead::End,
                0 => ConsoleRead::Nothing,
                got => ConsoleRead::Bytes(got),
            })
        }
        fn write(&mut self, from: &[u8]) -> Result<usize, HypervisorError> {
            let taken = &from[..from.len().min(3)];
            self.said.extend(taken.to_ascii_uppercase());
            self.ends |= taken.contains(&b'!');
            Ok(taken.len())
        }
    }

    /// A session with typed `keys`, whose input then ends or not: how it ended, and its output.
    fn session(
        keys: &[u8],
        is_terminal: bool,
        ends: bool,
        interrupted: bool,
    ) -> (ConsoleEnd, String) {
        let (input, mut typing) = std::io::pipe().unwrap();
        typing.write_all(keys).unwrap();
        let _open: Option<PipeWriter> = (!ends).then_some(typing);
        let mut output = Vec::new();
        let guest = Box::new(Shouter::default());
        let end = Relay::new(guest, input.as_fd(), is_terminal, &mut output).copy(&|| interrupted);
        (end.unwrap(), String::from_utf8(output).unwrap())
    }

    #[test]
    fn a_session_ends_with_the_input_the_guest_the_escape_or_a_signal() {
        let shown = |end, text: &str| (end, text.to_owned());
        assert_eq!(session(b"hello", false, true, false), shown(ConsoleEnd::InputEnded, "HELLO"));
        assert_eq!(session(b"stop! and", false, false, false).0, ConsoleEnd::ConsoleEnded);
        assert_eq!(session(b"ab\x1dcd", true, false, false).0, ConsoleEnd::Left);
        // In a pipe the byte has no special meaning.
        assert_eq!(
            session(b"ab\x1dcd", false, true, false),
            shown(ConsoleEnd::InputEnded, "AB\x1dCD")
        );
        assert_eq!(session(b"", false, false, true).0, ConsoleEnd::Signal);
    }
}
