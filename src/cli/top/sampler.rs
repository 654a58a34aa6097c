//! Samples guests in a thread of its own: an answer that libvirt or the kernel owes holds up
//! neither the screen nor its keys.

use super::super::args::Global;
use super::super::context::Context;
use gpuvm_core::load::LoadReport;
use gpuvm_ops::top::{Top, TopRequest};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The first interval: there is soon something to see.
const FIRST: Duration = Duration::from_millis(300);

/// A message of the thread.
pub(super) enum Frame {
    /// The guests cannot be sampled.
    Failed(anyhow::Error),
    /// The load of the last interval.
    Load(LoadReport),
    /// The memory of this guest has been read.
    Memory(String),
}

/// The thread, which ends with the program: it may wait for libvirt then.
pub(super) struct Sampler {
    /// Names of guests whose memory is to be read.
    asks: Sender<String>,
    frames: Receiver<Frame>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// Starts to sample guests with a connection of its own.
    pub(super) fn open(global: Global, request: TopRequest, interval: Duration) -> Sampler {
        Sampler::start(move |asks, frames| {
            let cx = Context::new(&global);
            match Top::open(&cx, request) {
                Ok(top) => {
                    // The screen is gone if nothing receives any more.
                    let _ = sample(top, interval, &asks, &frames);
                }
                Err(error) => drop(frames.send(Frame::Failed(error.into()))),
            }
        })
    }

    fn start(work: impl FnOnce(Receiver<String>, Sender<Frame>) + Send + 'static) -> Sampler {
        let ((asks, asked), (sent, frames)) = (channel(), channel());
        let thread = Some(std::thread::spawn(move || work(asked, sent)));
        Sampler { asks, frames, thread }
    }

    /// Waits for the first load.
    pub(super) fn first(&mut self) -> anyhow::Result<LoadReport> {
        loop {
            match self.frames.recv() {
                Ok(Frame::Load(load)) => return Ok(load),
                Ok(Frame::Failed(error)) => return Err(error),
                Ok(Frame::Memory(_)) => {}
                Err(_) => self.rethrow(),
            }
        }
    }

    /// The next message that has come.
    pub(super) fn next(&mut self) -> Option<Frame> {
        match self.frames.try_recv() {
            Ok(frame) => Some(frame),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => self.rethrow(),
        }
    }

    /// Has the memory of a guest read by node.
    pub(super) fn read_memory(&self, name: &str) {
        let _ = self.asks.send(name.to_owned());
    }

    /// Continues a panic of the thread, which ends in no other way.
    fn rethrow(&mut self) -> ! {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            _ => unreachable!("the thread ends with its receiver"),
        }
    }
}

/// Samples until nothing receives the frames.
fn sample(
    mut top: Top,
    interval: Duration,
    asks: &Receiver<String>,
    frames: &Sender<Frame>,
) -> Option<()> {
    top.sample();
    let mut next = Instant::now() + FIRST.min(interval);
    loop {
        let frame = match asks.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(name) => {
                top.read_memory(&name);
                Frame::Memory(name)
            }
            Err(RecvTimeoutError::Timeout) => {
                top.sample();
                next = Instant::now() + interval;
                Frame::Load(top.report())
            }
            Err(RecvTimeoutError::Disconnected) => return None,
        };
        frames.send(frame).ok()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuvm_core::load::HostLoad;

    fn load() -> Frame {
        Frame::Load(LoadReport { interval_s: 1.0, host: HostLoad::default(), guests: vec![] })
    }

    #[test]
    fn a_thread_that_waits_for_libvirt_holds_nothing_up() {
        let (release, held) = channel::<()>();
        let mut sampler = Sampler::start(move |asks, frames| {
            frames.send(load()).unwrap();
            let _ = held.recv();
            frames.send(Frame::Memory(asks.recv().unwrap())).unwrap();
            let _ = asks.recv();
        });
        assert_eq!(sampler.first().unwrap().interval_s, 1.0);
        sampler.read_memory("a");
        assert!(sampler.next().is_none());
        release.send(()).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let frame = std::iter::from_fn(|| {
            std::thread::sleep(Duration::from_millis(1));
            (Instant::now() < until).then(|| sampler.next())
        });
        assert!(matches!(frame.flatten().next(), Some(Frame::Memory(name)) if name == "a"));
    }

    #[test]
    fn an_error_of_the_thread_is_the_programs() {
        let failed = |_, frames: Sender<Frame>| {
            frames.send(Frame::Failed(anyhow::anyhow!("no libvirt"))).unwrap();
        };
        assert_eq!(Sampler::start(failed).first().unwrap_err().to_string(), "no libvirt");
    }
}
