//! The hypervisor through libvirt; the only file that uses the binding. It knows nothing of plans,
//! files or command-line flags.

mod abilities;
mod address;
mod agent;
mod console;
mod domain;
mod leases;
mod machine;
mod networks;
mod pin;
mod pools;
mod storage;
mod support;

use self::support::Supported;
use super::machine::{Machine, Uri, decide};
use super::{HypervisorError, HypervisorErrorKind, SILENT, lazy};
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
    /// Why the connection is read-only; none: it is not.
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
        let doing = format!("connect to {uri}");
        if is_embedded(uri) {
            lazy::silence_log();
        }
        if let Err(message) = lazy::load() {
            return Err(HypervisorError { kind: HypervisorErrorKind::NoLibrary, doing, message });
        }
        virt::error::clear_error_callback();
        if events != Events::Never {
            run_event_loop(events).map_err(|e| error(&doing, &e))?;
        }
        let opened = |connection: Connect, read_only| Libvirt {
            connected: RefCell::new(connection),
            uri: uri.to_owned(),
            read_only,
            seen: RefCell::default(),
            agents: address::Agents::default(),
            machine: OnceCell::new(),
            support: OnceCell::new(),
            supported: Cell::default(),
            asked: Cell::default(),
        };
        let denied = match in_time(uri, &doing, Connect::open) {
            Ok(connection) => return Ok(opened(connection, None)),
            Err(denied) => denied,
        };
        if denied.kind == HypervisorErrorKind::Denied
            && let Ok(connection) = in_time(uri, &doing, Connect::open_read_only)
        {
            return Ok(opened(connection, Some(denied)));
        }
        Err(denied)
    }

    fn connection(&self) -> Connect {
        self.connected.borrow().clone()
    }

    /// Reconnects if the connection is lost, such as by a restart of libvirtd.
    fn connect_again(&self) -> Result<(), HypervisorError> {
        let until = Instant::now() + RECONNECT_WAIT;
        let doing = format!("connect to {} again", self.uri);
        loop {
            match in_time(&self.uri, &doing, Connect::open) {
                Ok(connection) => {
                    self.seen.borrow_mut().clear();
                    self.connected.replace(connection);
                    return self.is_same_machine(doing);
                }
                Err(failed) if Instant::now() > until => return Err(failed),
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    /// Refuses a new connection that leads to another machine than before.
    fn is_same_machine(&self, doing: String) -> Result<(), HypervisorError> {
        match self.machine.get() {
            Some(before) if *before != decide(self) => Err(HypervisorError {
                kind: HypervisorErrorKind::Other,
                doing,
                message: "another machine answers than before".into(),
            }),
            _ => Ok(()),
        }
    }

    fn find(&self, doing: &str, name: &str) -> Result<Domain, HypervisorError> {
        self.connection().lookup_domain_by_name(name).map_err(|e| match error(doing, &e) {
            missing if missing.kind == HypervisorErrorKind::NoDomain => self.missing(name),
            other => other,
        })
    }

    /// The error that there is no domain of a name.
    fn missing(&self, name: &str) -> HypervisorError {
        let there = self.connection().list_all_domains(0).unwrap_or_default();
        let there: Vec<String> = there.iter().filter_map(|domain| domain.name().ok()).collect();
        HypervisorError::no_domain(name, there.iter().map(String::as_str))
    }

    /// Finds a domain that is to be changed.
    fn find_to_change(&self, doing: &str, name: &str) -> Result<Domain, HypervisorError> {
        self.may_change()?;
        self.find(doing, name)
    }

    /// Refuses a change on a read-only connection, with the reason.
    fn may_change(&self) -> Result<(), HypervisorError> {
        self.read_only.clone().map_or(Ok(()), Err)
    }
}

/// Whether a URI belongs to a driver in this process, which cannot fail to answer.
fn is_in_process(uri: &str) -> bool {
    is_embedded(uri) || uri.starts_with("test:///")
}

/// Opens a connection with a time limit; if the daemon freezes later, the connection is closed, and
/// pending calls fail.
fn in_time(
    uri: &str,
    doing: &str,
    open: fn(Option<&str>) -> Result<Connect, Error>,
) -> Result<Connect, HypervisorError> {
    let failed = |e: Error| error(doing, &e);
    if is_in_process(uri) {
        return open(Some(uri)).map_err(failed);
    }
    let (tell, told) = mpsc::channel();
    let asked = uri.to_owned();
    // It is abandoned on a timeout, and ends with the program.
    quiet::spawn(move || {
        // After a timeout nobody receives this.
        let _ = tell.send(open(Some(&asked)));
    });
    let may_ask = Uri::parse(uri).is_none_or(|uri| uri.may_ask());
    let wait = if may_ask { ASKING_WAIT } else { OPEN_WAIT };
    let connection = match told.recv_timeout(wait) {
        Ok(opened) => opened.map_err(failed)?,
        Err(_) => return Err(silent(doing, wait)),
    };
    // A driver without keepalive works without it.
    let _ = connection.set_keep_alive(ALIVE_SECONDS, ALIVE_COUNT);
    Ok(connection)
}

/// The error that a daemon does not answer.
fn silent(doing: &str, wait: Duration) -> HypervisorError {
    let message = format!("libvirt's daemon {SILENT} {} s", wait.as_secs());
    HypervisorError { kind: HypervisorErrorKind::NoConnection, doing: doing.to_owned(), message }
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

fn error(doing: &str, error: &Error) -> HypervisorError {
    let message = error.message().trim().replace('\n', "; ");
    if message.contains("keepalive") {
        let seconds = u64::from(ALIVE_COUNT) * u64::from(ALIVE_SECONDS.unsigned_abs());
        return silent(doing, Duration::from_secs(seconds));
    }
    let kind = kind(error.code().known(), &message);
    HypervisorError { kind, doing: doing.to_owned(), message }
}

/// Whether a driver does not know a call or a flag of it.
fn is_unsupported(error: &Error) -> bool {
    match error.code().known() {
        Some(ErrorNumber::NoSupport | ErrorNumber::ArgumentUnsupported) => true,
        Some(ErrorNumber::InvalidArg) => error.message().contains("unsupported flags"),
        _ => false,
    }
}

/// Classifies an error by what the caller can do. libvirt gives a number, but many causes share
/// one, so its text counts, too.
fn kind(code: Option<ErrorNumber>, message: &str) -> HypervisorErrorKind {
    use ErrorNumber as N;
    use HypervisorErrorKind as K;
    let says = |text: &str| message.contains(text);
    match code {
        Some(N::NoDomain) => K::NoDomain,
        Some(N::DomExist) => K::Exists,
        Some(N::OperationFailed) if says("already exists") || says("already defined") => K::Exists,
        Some(N::OperationFailed) if says("Active console session") => K::Busy,
        Some(N::StorageVolExist) => K::Exists,
        Some(N::NoStoragePool | N::NoStorageVolume) => K::NoVolume,
        Some(N::NoNetwork) => K::NoNetwork,
        Some(N::OperationInvalid) if says("network '") && says("is not active") => K::NoNetwork,
        Some(N::OperationInvalid) => K::WrongState,
        Some(N::XmlError | N::XmlDetail | N::XmlInvalidSchema | N::ParseFailed) => K::BadXml,
        Some(N::OsType | N::NoOs | N::NoName | N::InvalidMac) => K::BadXml,
        Some(N::AuthFailed | N::AuthCancelled | N::AuthUnavailable) => K::Denied,
        Some(N::OperationDenied | N::AccessDenied) => K::Denied,
        Some(N::SystemError | N::InternalError | N::Rpc)
            if says("socket") && says("Permission denied") =>
        {
            K::Denied
        }
        Some(N::NoConnect | N::InvalidConn | N::UnknownHost | N::GnutlsError | N::Ssh) => {
            K::NoConnection
        }
        Some(N::Libssh | N::ConfSyntax) => K::NoConnection,
        Some(N::SystemError | N::InternalError | N::Rpc)
            if ["socket", "onnection re", "unable to connect", "roken pipe", "End of file"]
                .iter()
                .any(|text| says(text)) =>
        {
            K::NoConnection
        }
        _ => K::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_sorted_by_what_helps() {
        use ErrorNumber as N;
        use HypervisorErrorKind as K;
        let socket = "Failed to connect socket to '/run/libvirt/libvirt-sock': ";
        let cases = [
            (N::NoDomain, "Domain not found: no domain with matching name 'x'", K::NoDomain),
            (
                N::OperationFailed,
                "operation failed: domain 'x' already exists with uuid",
                K::Exists,
            ),
            (N::OperationFailed, "operation failed: disk full", K::Other),
            (N::OperationFailed, "Active console session exists for this domain", K::Busy),
            (N::SystemError, &format!("{socket}No such file or directory"), K::NoConnection),
            (N::SystemError, &format!("{socket}Connection refused"), K::NoConnection),
            (N::SystemError, &format!("{socket}Permission denied"), K::Denied),
            (N::SystemError, "Cannot recv data: Connection reset by peer", K::NoConnection),
            (N::SystemError, "End of file while reading data: Input/output error", K::NoConnection),
            (N::SystemError, "Cannot write data: Broken pipe", K::NoConnection),
            (N::SystemError, "cannot open file '/x': Permission denied", K::Other),
            (N::AuthUnavailable, "authentication unavailable: no polkit agent", K::Denied),
            (N::OperationDenied, "operation virDomainCreate forbidden", K::Denied),
            (N::NoNetwork, "Network not found: no network with matching name 'x'", K::NoNetwork),
            (N::OperationInvalid, "network 'default' is not active", K::NoNetwork),
            (N::OperationInvalid, "domain is not running", K::WrongState),
            (N::XmlInvalidSchema, "XML document failed to validate", K::BadXml),
        ];
        for (code, message, expected) in cases {
            assert_eq!(kind(Some(code), message), expected, "{code:?} {message}");
        }
    }

    #[test]
    fn a_uri_of_no_driver_is_an_error() {
        let Err(error) = Libvirt::open("nonsense:///x") else { panic!("connected to nonsense") };
        let kinds = [HypervisorErrorKind::NoConnection, HypervisorErrorKind::NoLibrary];
        assert!(kinds.contains(&error.kind), "{error:?}");
    }
}
