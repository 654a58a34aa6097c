//! The hypervisor through libvirt; the only file that uses the binding. It knows nothing of plans,
//! files or command-line flags.

mod abilities;
mod address;
mod agent;
mod call;
mod console;
mod domain;
mod leases;
mod live;
mod machine;
mod networks;
mod pin;
mod pools;
mod snapshots;
mod storage;
mod support;

use self::call::{Call, Failed, call};
use self::support::Supported;
use super::machine::{Machine, Uri, decide};
use super::{HypervisorError, HypervisorErrorKind, lazy};
use crate::quiet;
use gpuvm_core::domain::guest::Abilities;
use gpuvm_core::topology::software::GuestSupport;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::sync::{OnceLock, mpsc};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};
use virt::connect::Connect;
use virt::domain::Domain;
use virt::error::{Error, ErrorNumber};
use virt::event;

/// How long a libvirtd that has ended may take to come back while a change is undone.
const RECONNECT_WAIT: Duration = Duration::from_secs(10);
/// How long a daemon may take to open a connection. One started on demand by systemd first reads
/// all its domains.
const OPEN_WAIT: Duration = Duration::from_secs(30);
/// The same for a transport that may ask for a password.
const ASKING_WAIT: Duration = Duration::from_secs(180);
/// Seconds of silence before a keepalive message.
const ALIVE_SECONDS: i32 = 5;
/// Unanswered keepalive messages before the connection is closed.
const ALIVE_COUNT: u32 = 5;

/// A connection to libvirt.
pub struct Libvirt {
    /// The connection; replaced if it was lost.
    connected: RefCell<Connect>,
    uri: String,
    /// Why the connection is read-only; `None` if it is not.
    read_only: Option<HypervisorError>,
    /// Domains as they were last listed, by name.
    seen: RefCell<BTreeMap<String, Domain>>,
    agents: address::Agents,
    machine: OnceCell<Machine>,
    /// The guests that it can run, once asked.
    support: OnceCell<Option<GuestSupport>>,
    /// The question for them, where it has begun.
    supported: Cell<Option<JoinHandle<Option<Supported>>>>,
    /// A probe of its disk features that has begun.
    asked: Cell<Option<JoinHandle<Abilities>>>,
}

impl Libvirt {
    /// Connects; read-only if the user may not do more.
    pub fn open(uri: &str) -> Result<Libvirt, HypervisorError> {
        // Keepalive needs the event loop; a driver in this process has no daemon.
        let events = match uri {
            uri if is_embedded(uri) => Events::Now,
            uri if is_in_process(uri) => Events::Never,
            _ => Events::Later,
        };
        Libvirt::connect(uri, events)
    }

    /// Connects for a console: the guest's output arrives through libvirt's event loop, which runs
    /// from now on.
    pub fn open_for_console(uri: &str) -> Result<Libvirt, HypervisorError> {
        Libvirt::connect(uri, Events::Now)
    }

    /// Connects, with or without libvirt's event loop.
    fn connect(uri: &str, events: Events) -> Result<Libvirt, HypervisorError> {
        let doing = format_args!("connect to {uri}");
        let opened = call(Call::Works, doing, || {
            prepare(uri, events)?;
            match in_time(uri, Connect::open) {
                // The reason is kept for later refusals.
                Err(denied) if denied.kind() == HypervisorErrorKind::Denied => {
                    let denied = denied.named(doing);
                    match in_time(uri, Connect::open_read_only) {
                        Ok(connection) => Ok((connection, Some(denied))),
                        Err(_) => Err(denied.into()),
                    }
                }
                opened => Ok((opened?, None)),
            }
        });
        let (connection, read_only) = opened?;
        Ok(Libvirt {
            connected: RefCell::new(connection),
            uri: uri.to_owned(),
            read_only,
            seen: RefCell::default(),
            agents: address::Agents::default(),
            machine: OnceCell::new(),
            support: OnceCell::new(),
            supported: Cell::default(),
            asked: Cell::default(),
        })
    }

    fn connection(&self) -> Connect {
        self.connected.borrow().clone()
    }

    /// Reconnects if the connection is lost, such as by a restart of libvirtd.
    fn connect_again(&self) -> Result<(), Failed> {
        let until = Instant::now() + RECONNECT_WAIT;
        loop {
            match in_time(&self.uri, Connect::open) {
                Ok(connection) => {
                    self.seen.borrow_mut().clear();
                    self.connected.replace(connection);
                    return self.is_same_machine();
                }
                Err(failed) if Instant::now() > until => return Err(failed),
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    /// Refuses a new connection that leads to another machine than before.
    fn is_same_machine(&self) -> Result<(), Failed> {
        match self.machine.get() {
            Some(before) if *before != decide(self) => {
                Err(Failed::other("another machine answers than before"))
            }
            _ => Ok(()),
        }
    }

    fn find(&self, name: &str) -> Result<Domain, Failed> {
        self.connection().lookup_domain_by_name(name).map_err(|e| match e {
            e if e.code().is(ErrorNumber::NoDomain) => self.missing(name).into(),
            e => e.into(),
        })
    }

    /// The error that there is no domain of a name.
    fn missing(&self, name: &str) -> HypervisorError {
        let there = self.connection().list_all_domains(0).unwrap_or_default();
        let there: Vec<String> = there.iter().filter_map(|domain| domain.name().ok()).collect();
        HypervisorError::no_domain(name, there.iter().map(String::as_str))
    }

    /// Finds a domain that is to be changed.
    fn find_to_change(&self, name: &str) -> Result<Domain, Failed> {
        self.may_change()?;
        self.find(name)
    }

    /// Refuses a change on a read-only connection, with the reason.
    fn may_change(&self) -> Result<(), HypervisorError> {
        self.read_only.clone().map_or(Ok(()), Err)
    }
}

/// Loads libvirt for a URI, and runs its event loop if wanted.
fn prepare(uri: &str, events: Events) -> Result<(), Failed> {
    if is_embedded(uri) {
        lazy::silence_log();
    }
    lazy::load().map_err(|message| Failed::Own(HypervisorErrorKind::NoLibrary, message))?;
    virt::error::clear_error_callback();
    if events != Events::Never {
        run_event_loop(events)?;
    }
    Ok(())
}

/// Whether a URI belongs to a driver in this process, which cannot fail to answer.
fn is_in_process(uri: &str) -> bool {
    is_embedded(uri) || uri.starts_with("test:///")
}

/// Opens a connection with a time limit; if the daemon freezes later, the connection is closed, and
/// pending calls fail.
fn in_time(uri: &str, open: fn(Option<&str>) -> Result<Connect, Error>) -> Result<Connect, Failed> {
    if is_in_process(uri) {
        return Ok(open(Some(uri))?);
    }
    let (tell, answers) = mpsc::channel();
    let asked = uri.to_owned();
    // It is abandoned on a timeout, and ends with the program.
    quiet::spawn(move || {
        // After a timeout there is no receiver.
        let _ = tell.send(open(Some(&asked)));
    });
    let may_ask = Uri::parse(uri).is_none_or(|uri| uri.may_ask());
    let wait = if may_ask { ASKING_WAIT } else { OPEN_WAIT };
    let connection = match answers.recv_timeout(wait) {
        Ok(opened) => opened?,
        Err(_) => return Err(Failed::silent(wait)),
    };
    // A driver without keepalive works without it.
    let _ = connection.set_keep_alive(ALIVE_SECONDS, ALIVE_COUNT);
    Ok(connection)
}

/// Whether a URI is of an embedded driver.
fn is_embedded(uri: &str) -> bool {
    uri.contains("/embed")
}

/// When libvirt's event loop starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Events {
    /// Not at all.
    Never,
    /// After the program has run for [`EVENTS_REST`]: a pending call itself checks whether the
    /// daemon is alive, and a parallel loop is woken six times per call.
    Later,
    /// At once.
    Now,
}

/// How long a program runs without libvirt's event loop: most have ended by then.
const EVENTS_REST: Duration = Duration::from_secs(1);

/// Runs libvirt's event loop for the rest of the process. An embedded driver learns through it that
/// a QEMU has ended; it must run before the connection is opened.
fn run_event_loop(when: Events) -> Result<(), Error> {
    /// The thread that runs the loop, or why there is none.
    static RUNS: OnceLock<Result<Thread, Error>> = OnceLock::new();
    let start = || {
        event::event_register_default_impl()?;
        // Wakes the loop, so that it sees registrations of other threads.
        event::event_add_timeout(100, |_, _| {}, std::ptr::null_mut())?;
        let runs = quiet::spawn(move || {
            if when == Events::Later {
                std::thread::park_timeout(EVENTS_REST);
            }
            loop {
                if event::event_run_default_impl().is_err() {
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        });
        Ok(runs.thread().clone())
    };
    match RUNS.get_or_init(start) {
        Ok(runs) => {
            if when == Events::Now {
                runs.unpark();
            }
            Ok(())
        }
        Err(error) => Err(error.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_of_no_driver_is_an_error() {
        let Err(error) = Libvirt::open("nonsense:///x") else { panic!("connected to nonsense") };
        let kinds = [HypervisorErrorKind::NoConnection, HypervisorErrorKind::NoLibrary];
        assert!(kinds.contains(&error.kind), "{error:?}");
    }
}
