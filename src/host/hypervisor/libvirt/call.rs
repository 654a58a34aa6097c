//! A call to libvirt, named once: for its error, its trace and the watch over calls that should be
//! short. Traced are its name and duration: `INFO` for changes and calls longer than [`LONG`],
//! `DEBUG` for everything. No name holds a document or an agent's command: they may contain
//! secrets.

use super::super::{HypervisorError, HypervisorErrorKind, SILENT, slow};
use super::{ALIVE_COUNT, ALIVE_SECONDS};
use crate::trace::seconds;
use std::fmt::Arguments;
use std::time::{Duration, Instant};
use tracing::{debug, info};
use virt::error::{Error, ErrorNumber};

/// The duration from which a read is traced as `INFO`.
const LONG: Duration = Duration::from_secs(1);

/// The kind of a call, and whether it should be short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// It reads.
    Reads,
    /// It changes.
    Changes,
    /// It changes and may take as long as it takes: memory is filled, or a disk copied.
    Works,
    /// It reads, and waits for others, or for much data.
    Waits,
}

/// Why a call failed, without its operation.
#[derive(Debug)]
pub(super) enum Failed {
    /// By libvirt.
    Libvirt(Error),
    /// By ourselves.
    Own(HypervisorErrorKind, String),
    /// By an error that has a name of its own.
    Named(HypervisorError),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Libvirt(error)
    }
}

impl From<HypervisorError> for Failed {
    fn from(error: HypervisorError) -> Failed {
        Failed::Named(error)
    }
}

impl Failed {
    pub(super) fn other(message: impl Into<String>) -> Failed {
        Failed::Own(HypervisorErrorKind::Other, message.into())
    }

    /// A daemon that has not answered for this long.
    pub(super) fn silent(wait: Duration) -> Failed {
        let message = format!("libvirt's daemon {SILENT} {} s", wait.as_secs());
        Failed::Own(HypervisorErrorKind::NoConnection, message)
    }

    pub(super) fn kind(&self) -> HypervisorErrorKind {
        match self {
            Failed::Libvirt(error) => kind(error.code().known(), error.message()),
            Failed::Own(kind, _) => *kind,
            Failed::Named(error) => error.kind,
        }
    }

    /// The error of an operation that failed so.
    pub(super) fn named(self, doing: Arguments<'_>) -> HypervisorError {
        match self {
            Failed::Libvirt(e) => error(doing, &e),
            Failed::Own(kind, message) => {
                HypervisorError { kind, doing: doing.to_string(), message }
            }
            Failed::Named(error) => error,
        }
    }
}

/// Makes a call, which is traced and fails under this name.
pub(super) fn call<T>(
    call: Call,
    doing: Arguments<'_>,
    run: impl FnOnce() -> Result<T, Failed>,
) -> Result<T, HypervisorError> {
    call_as(call, doing, doing, run)
}

/// Makes a call that is traced as `what`, with more details than its error has.
pub(super) fn call_as<T>(
    call: Call,
    what: Arguments<'_>,
    doing: Arguments<'_>,
    run: impl FnOnce() -> Result<T, Failed>,
) -> Result<T, HypervisorError> {
    traced(call, what, || run().map_err(|failed| failed.named(doing)))
}

/// Makes a call that cannot fail.
pub(super) fn ask<T>(what: Arguments<'_>, run: impl FnOnce() -> T) -> T {
    let Ok(answer) = traced(Call::Reads, what, || Ok(run())) else {
        unreachable!("nothing in it fails")
    };
    answer
}

fn traced<T>(
    call: Call,
    what: Arguments<'_>,
    run: impl FnOnce() -> Result<T, HypervisorError>,
) -> Result<T, HypervisorError> {
    let changes = matches!(call, Call::Changes | Call::Works);
    if changes {
        // Calls that never return are traced, too.
        debug!("libvirt begins: {what}");
    }
    let since = Instant::now();
    let done = match call {
        Call::Reads | Call::Changes => slow::watched(|| what.to_string(), run),
        Call::Works | Call::Waits => run(),
    };
    let reason =
        || done.as_ref().err().map_or(String::new(), |error| format!(": {}", error.message));
    if changes || since.elapsed() >= LONG {
        info!("libvirt: {what}, {}{}", seconds(since), reason());
    } else {
        debug!("libvirt: {what}, {}{}", seconds(since), reason());
    }
    done
}

/// The error of an operation that failed by libvirt.
pub(super) fn error(doing: Arguments<'_>, error: &Error) -> HypervisorError {
    let message = error.message().trim().replace('\n', "; ");
    if message.contains("keepalive") {
        let seconds = u64::from(ALIVE_COUNT) * u64::from(ALIVE_SECONDS.unsigned_abs());
        return Failed::silent(Duration::from_secs(seconds)).named(doing);
    }
    let kind = kind(error.code().known(), &message);
    HypervisorError { kind, doing: doing.to_string(), message }
}

/// Whether a driver does not know a call or a flag of it.
pub(super) fn is_unsupported(error: &Error) -> bool {
    match error.code().known() {
        Some(ErrorNumber::NoSupport | ErrorNumber::ArgumentUnsupported) => true,
        Some(ErrorNumber::InvalidArg) => error.message().contains("unsupported flags"),
        _ => false,
    }
}

/// Classifies an error by the caller's remedy. libvirt gives a number, but many causes share one,
/// so its text counts, too.
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
}
