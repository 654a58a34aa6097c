//! The whole terminal as a screen: alternate buffer, raw mode, keys. Restored on every way out.

use super::super::args::Global;
use super::super::context::Context;
use super::super::error::EXIT_DONE;
use super::super::raw::Raw;
use super::frame::{Look, screen, utc};
use super::sampler::{Frame, Sampler};
use super::sorted;
use crate::apply::Interrupt;
use anyhow::Context as _;
use gpuvm_core::load::{LoadOrder, LoadReport};
use gpuvm_ops::top::TopRequest;
use gpuvm_ops::verify::{Verify, verify};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use std::io::{Stdin, Write as _};
use std::os::fd::AsFd as _;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use terminal_size::terminal_size_of;

/// How often the size of the terminal and signals are looked for.
const LOOK: Duration = Duration::from_millis(100);
/// How much later than its interval a sample may come before that is shown.
const LATE: Duration = Duration::from_secs(2);
/// How long the agent of a guest may take for `verify`.
const AGENT: Duration = Duration::from_secs(2);
/// Enters the alternate buffer and hides the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
/// Shows the cursor and leaves the alternate buffer.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The mode of the terminal before, while the screen is shown.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// The alternate screen; left on drop, and before a panic is reported.
struct Alternate<'a> {
    _raw: Raw<'a>,
}

impl<'a> Alternate<'a> {
    fn enter(stdin: &'a Stdin) -> anyhow::Result<Alternate<'a>> {
        let before = tcgetattr(stdin).context("cannot read the terminal's mode")?;
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        let hook = Arc::new(std::panic::take_hook());
        std::panic::set_hook(Box::new(move |panic| {
            leave();
            hook(panic);
        }));
        let raw = Raw::new(stdin.as_fd())?;
        write(ENTER)?;
        Ok(Alternate { _raw: raw })
    }
}

impl Drop for Alternate<'_> {
    fn drop(&mut self) {
        leave();
    }
}

/// Leaves the screen, if it is shown.
fn leave() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        // A closed terminal needs no restoring.
        let _ = write(LEAVE);
        let _ = tcsetattr(std::io::stdin(), SetArg::TCSADRAIN, &before);
    }
}

fn write(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// A key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Quit,
    Up,
    Down,
    Sort,
    Nodes,
    Verify,
    Other,
}

/// Reads the keys in the bytes of a terminal. An unknown sequence is one unknown key.
fn keys(bytes: &[u8]) -> Vec<Key> {
    let mut found = Vec::new();
    let mut rest = bytes;
    while let [first, after @ ..] = rest {
        (rest, _) = (after, ());
        found.push(match first {
            // In raw mode Ctrl-C is a key.
            b'q' | 3 => Key::Quit,
            b'k' => Key::Up,
            b'j' => Key::Down,
            b's' => Key::Sort,
            b'n' => Key::Nodes,
            b'\r' | b'\n' => Key::Verify,
            0x1b => match after {
                [b'[' | b'O', b'A', more @ ..] => (Key::Up, rest = more).0,
                [b'[' | b'O', b'B', more @ ..] => (Key::Down, rest = more).0,
                _ => {
                    rest = &[];
                    Key::Other
                }
            },
            _ => Key::Other,
        });
    }
    found
}

/// The present view.
struct Shown<'c> {
    cx: &'c Context<'c>,
    sampler: Sampler,
    order: LoadOrder,
    report: LoadReport,
    interval: Duration,
    /// When the last sample came, and the time of day then.
    came: (Instant, String),
    selected: Option<String>,
    /// Lines that are shown instead of the guests, until a key.
    page: Option<Vec<String>>,
    /// The findings of `verify`, once they are there.
    verifying: Option<Receiver<String>>,
    footer: Option<String>,
}

/// Shows guests until `q` or a signal.
pub(super) fn run(
    cx: &Context<'_>,
    request: TopRequest,
    interval: Duration,
    order: LoadOrder,
) -> anyhow::Result<u8> {
    let interrupt = Interrupt::hold(Box::new(|_, _| {})).context("cannot block signals")?;
    let mut sampler = Sampler::open(cx.global.clone(), request, interval);
    let report = sorted(sampler.first()?, order, false);
    let stdin = std::io::stdin();
    let mut shown = Shown {
        cx,
        sampler,
        order,
        report,
        interval,
        came: (Instant::now(), utc()),
        selected: None,
        page: None,
        verifying: None,
        footer: None,
    };
    interrupt.hold_at_once();
    let _screen = Alternate::enter(&stdin)?;
    let (mut is_new, mut drawn) = (true, None);
    while interrupt.came().is_none() {
        // The size is asked for: a handler of SIGWINCH would only interrupt the same wait.
        let size = size();
        is_new |= shown.receive(size.0);
        let now = (size, shown.late());
        if is_new || drawn.as_ref() != Some(&now) {
            shown.draw(size)?;
            (is_new, drawn) = (false, Some(now));
        }
        for key in typed(&stdin, LOOK)? {
            if key == Key::Quit {
                return Ok(EXIT_DONE);
            }
            shown.press(key);
            is_new = true;
        }
    }
    Ok(EXIT_DONE)
}

/// The last line while a sample does not come.
fn late(since: Duration, interval: Duration) -> Option<String> {
    let seconds = since.as_secs();
    (since > interval + LATE)
        .then(|| format!("no sample for {seconds} s: libvirt or the kernel does not answer"))
}

/// Columns and lines of the terminal.
fn size() -> (usize, usize) {
    let size = terminal_size_of(std::io::stdout());
    size.map_or((80, 24), |(width, height)| (usize::from(width.0), usize::from(height.0)))
}

/// Waits for keys.
fn typed(stdin: &Stdin, wait: Duration) -> anyhow::Result<Vec<Key>> {
    let mut ready = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    let wait = u16::try_from(wait.as_millis()).unwrap_or(u16::MAX);
    match poll(&mut ready, PollTimeout::from(wait)) {
        Ok(0) | Err(nix::errno::Errno::EINTR) => return Ok(Vec::new()),
        Ok(_) => {}
        Err(error) => return Err(error).context("cannot wait for keys"),
    }
    let mut bytes = [0; 64];
    match nix::unistd::read(stdin, &mut bytes) {
        // The terminal is gone.
        Ok(0) | Err(nix::errno::Errno::EIO) => Ok(vec![Key::Quit]),
        Ok(length) => Ok(keys(&bytes[..length])),
        Err(nix::errno::Errno::EINTR | nix::errno::Errno::EAGAIN) => Ok(Vec::new()),
        Err(error) => Err(error).context("cannot read keys"),
    }
}

impl Shown<'_> {
    /// Takes the messages of other threads, and returns whether there was anything.
    fn receive(&mut self, width: usize) -> bool {
        let mut is_new = false;
        while let Some(frame) = self.sampler.next() {
            is_new = true;
            match frame {
                Frame::Load(load) => {
                    self.report = sorted(load, self.order, false);
                    self.came = (Instant::now(), utc());
                    if self.verifying.is_none() {
                        self.footer = None;
                    }
                }
                Frame::Memory(name) => {
                    self.footer = Some(format!("the memory of {name} is shown as of now"));
                }
                // Only the first sample fails.
                Frame::Failed(_) => {}
            }
        }
        if let Some(text) = self.verifying.as_ref().and_then(|text| text.try_recv().ok()) {
            let lines = text.lines();
            self.page = Some(
                lines.flat_map(|line| super::super::wrap::lines(line, width.max(40))).collect(),
            );
            (self.verifying, self.footer, is_new) = (None, None, true);
        }
        is_new
    }

    /// The sentence about a sample that does not come.
    fn late(&self) -> Option<String> {
        late(self.came.0.elapsed(), self.interval)
    }

    /// Draws the screen as one text, over the last one.
    fn draw(&self, size: (usize, usize)) -> std::io::Result<()> {
        let (width, height) = size;
        let lines = match &self.page {
            Some(page) => page.iter().take(height).cloned().collect(),
            None => screen(&self.report, &self.look(width, height)),
        };
        let mut text = "\x1b[H".to_owned();
        for (number, line) in lines.iter().enumerate() {
            text += if number == 0 { "" } else { "\r\n" };
            text += self.cx.output.drawn(line).trim_end_matches('\n');
            text += "\x1b[K";
        }
        write(&(text + "\x1b[J"))
    }

    fn look(&self, width: usize, height: usize) -> Look {
        let footer = self.late().or_else(|| self.footer.clone()).unwrap_or_else(|| {
            format!("q quit  s order: {}  n memory by node  Enter verify", self.order)
        });
        Look { clock: self.came.1.clone(), width, height, selected: self.selected.clone(), footer }
    }

    fn press(&mut self, key: Key) {
        if self.page.take().is_some() {
            return;
        }
        match key {
            Key::Up => self.select(-1),
            Key::Down => self.select(1),
            Key::Sort => {
                self.order = self.order.next();
                self.order.sort(&mut self.report.guests);
            }
            Key::Nodes => {
                let Some(name) = self.chosen() else { return };
                self.sampler.read_memory(&name);
                self.footer = Some(format!("reading the memory of {name} ..."));
            }
            // One at a time.
            Key::Verify if self.verifying.is_none() => {
                let Some(name) = self.chosen() else { return };
                self.footer = Some(format!("verify {name} ..."));
                let (send, verifying) = channel();
                let global = self.cx.global.clone();
                std::thread::spawn(move || drop(send.send(verified(global, &name))));
                self.verifying = Some(verifying);
            }
            Key::Verify | Key::Quit | Key::Other => {}
        }
    }

    /// The selected guest, or the first one.
    fn chosen(&self) -> Option<String> {
        let first = || self.report.guests.first().map(|guest| guest.name.clone());
        self.selected.clone().or_else(first)
    }

    fn select(&mut self, step: isize) {
        let guests = &self.report.guests;
        let selected = self.selected.as_deref();
        let at = guests.iter().position(|guest| Some(guest.name.as_str()) == selected);
        let at = match at {
            Some(at) => at.saturating_add_signed(step).min(guests.len().saturating_sub(1)),
            None => 0,
        };
        self.selected = guests.get(at).map(|guest| guest.name.clone());
    }
}

/// The findings of `verify` in a guest.
fn verified(mut global: Global, name: &str) -> String {
    // Warnings would be written over the screen; and a broken connection stays broken.
    global.quiet = true;
    let own = Context::new(&global);
    let mut text = String::new();
    match verify(
        &own,
        &Verify { names: vec![name.to_owned()], agent_wait: AGENT, sample: Duration::ZERO },
    ) {
        Ok(compared) => {
            for one in &compared.all {
                for finding in &one.findings {
                    let (message, at) = (&finding.says.message, &finding.says.at);
                    text += &format!("{}: {message}\n", finding.severity);
                    text += &format!("  {at} ({})\n  hint: {}\n", finding.rule, finding.hint);
                }
                let count = crate::words::count(one.findings.len(), "difference");
                text += &format!("{name}: {count}, {} rules checked\n", one.rules);
            }
        }
        Err(error) => text += &format!("error: {}\n", error.whole()),
    }
    text + "any key returns\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_that_does_not_come_is_reported() {
        let (second, interval) = (Duration::from_secs(1), Duration::from_secs(5));
        assert_eq!(late(second * 7, interval), None);
        let said = late(second * 8, interval).unwrap();
        assert_eq!(said, "no sample for 8 s: libvirt or the kernel does not answer");
    }

    #[test]
    fn keys_are_read_from_sequences() {
        use Key::{Down, Nodes, Other, Quit, Sort, Up, Verify};
        assert_eq!(keys(b"sn\rq"), [Sort, Nodes, Verify, Quit]);
        assert_eq!(keys(b"\x1b[A\x1bOBs"), [Up, Down, Sort]);
        assert_eq!(keys(b"\x1b[1;5Aq"), [Other], "an unknown sequence does not quit");
        assert_eq!(keys(b"\x03x\x1b"), [Quit, Other, Other]);
        assert_eq!(keys(b""), []);
    }
}
