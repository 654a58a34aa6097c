//! Errors of the operations: their own refusals, with a stable code and a hint, and errors of the
//! lower crates. Knows nothing of exit codes, nor of how an error is shown.

use crate::apply::array::ArrayError;
use crate::apply::bind::BindError;
use crate::apply::hostnet::HostNetError;
use crate::apply::nic::LinkError;
use crate::apply::pages::PagesError;
use crate::apply::{ApplyError, DiskError, ExclusionsError, JournalError, LockError, Step};
use crate::command::CommandError;
use crate::discover::DiscoverError;
use crate::discover::source::LoadError;
use crate::discover::topo::TopoError;
use crate::domain::DomainXmlError;
use crate::fetch::FetchError;
use crate::fsroot::FsError;
use crate::history::HistoryError;
use crate::hypervisor::HypervisorError;
use crate::image::{ContentError, SumError};
use crate::input::InputError;
use crate::placement::{PlanError, RoomOffer};
use crate::request::{Request, RequestError};
use crate::seed::SeedError;
use crate::shell::{domain, word};
use crate::topology::TopologyError;
use gpuvm_core::tune::TuneError;
use nix::errno::Errno;

/// The result of an operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The class of a verb's own refusal, by the caller's remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum Class {
    /// The command line is wrong.
    Usage,
    /// The request cannot be met; the message says why.
    Refused,
    /// Something named does not exist.
    NotFound,
    /// Something to be created already exists.
    Exists,
    /// Something needed is in use.
    InUse,
    /// Something has changed since the plan, or since it was made.
    Changed,
    /// The domain is not in a state that allows it.
    WrongState,
    /// An earlier change must be finished or undone first.
    Unfinished,
    /// A question was not answered with yes.
    Declined,
    /// It must be run on another machine.
    OtherMachine,
    /// The domain would fail `check`.
    Unsound,
    /// Something did not happen in time.
    Timeout,
    /// An error of the system without an error of its own.
    System,
    /// An internal error.
    Internal,
}

/// A guest that has no place on its host, with the nearest requests that have one.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NoPlace {
    /// Why it has none.
    #[source]
    pub error: PlanError,
    /// The request.
    pub request: Box<Request>,
    /// Requests that would have a place, the least change first.
    pub nearest: Vec<Request>,
    /// Moves of other guests after which it would have one; `None` if none is known.
    pub room: Option<Box<RoomOffer>>,
}

/// An error with a hint from where it was raised.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The fault.
    pub message: String,
    /// A command to run, or what to change; empty: no hint.
    pub hint: String,
    /// Its stable name, as gpuvm-codes(7) lists it.
    pub code: &'static str,
}

impl Refusal {
    /// Makes a refusal of a class.
    pub fn new(class: Class, message: impl Into<String>, hint: impl Into<String>) -> Refusal {
        Refusal::coded(class.into(), message, hint)
    }

    /// Makes a refusal with a code of its own.
    pub fn coded(
        code: &'static str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Refusal {
        Refusal { message: message.into(), hint: hint.into(), code }
    }

    /// A message around a cause, whose code it has.
    pub fn around(message: impl Into<String>, hint: impl Into<String>) -> Refusal {
        Refusal::new(Class::Refused, message, hint)
    }

    /// Whether it is a usage error.
    pub fn is_usage(&self) -> bool {
        self.code == <&str>::from(Class::Usage)
    }
}

/// An error with a code, to which the place that raises it adds a hint.
pub trait Coded: std::error::Error + Sized
where
    for<'e> &'static str: From<&'e Self>,
{
    /// Adds a hint: a command to run, or what to change.
    fn refusal(self, hint: impl Into<String>) -> Refusal {
        Refusal::coded((&self).into(), self.to_string(), hint)
    }

    /// The same as an error.
    fn hint<E: From<Refusal>>(self, hint: impl Into<String>) -> E {
        self.refusal(hint).into()
    }

    /// Converts it to an error without a hint.
    fn bare<E: From<Refusal>>(self) -> E {
        self.hint("")
    }
}

impl Coded for HypervisorError {}
impl Coded for DiskError {}
impl Coded for FetchError {}

/// Why an operation cannot be done, or was not. Its text and code are those of the wrapped error,
/// which is its source.
#[derive(Debug, thiserror::Error, strum::VariantNames)]
#[strum(serialize_all = "kebab-case")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum Error {
    /// The operation refuses.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Refused(#[from] Refusal),
    /// The meaning of another error in this context.
    #[error("{refusal}")]
    #[strum(to_string = "-")]
    Around { refusal: Refusal, source: Box<Error> },
    /// An error with the operation during which it happened.
    #[error("{doing}")]
    #[strum(to_string = "-")]
    Doing { doing: String, source: Box<Error> },
    /// The change now includes something that was not confirmed.
    #[error("the plan has changed since it was shown: {what}; nothing was changed")]
    #[strum(to_string = "-")]
    Changed { what: String, again: String },
    /// Steps failed.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Apply(#[from] ApplyError),
    /// A disk.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Disk(#[from] DiskError),
    /// The journal.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Journal(#[from] JournalError),
    /// The lock.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Lock(#[from] LockError),
    /// A network that cannot be made.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Network(#[from] crate::network::Refused),
    /// A bridge of the host that cannot be made.
    #[error("{0}")]
    #[strum(to_string = "-")]
    HostBridge(#[from] crate::hostnet::Refused),
    /// A change of the host's network.
    #[error("{0}")]
    #[strum(to_string = "-")]
    HostNet(#[from] HostNetError),
    /// The hypervisor.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Hypervisor(#[from] HypervisorError),
    /// Several reasons at once.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Several(#[from] Obstacles),
    /// A guest has no place.
    #[error("{0}")]
    #[strum(to_string = "-")]
    NoPlace(#[from] NoPlace),
    /// A domain cannot be tuned.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Tune(#[from] TuneError),
    /// The plan is impossible.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Plan(#[from] PlanError),
    /// The request is invalid.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Request(#[from] RequestError),
    /// The seed of a guest.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Seed(#[from] SeedError),
    /// A definition.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Domain(#[from] DomainXmlError),
    /// The history of a domain.
    #[error("{0}")]
    #[strum(to_string = "-")]
    History(#[from] HistoryError),
    /// The host.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Discover(#[from] DiscoverError),
    /// A contradiction in a host's data.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Topology(#[from] TopologyError),
    /// A table of `nvidia-smi topo -m`.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Topo(#[from] TopoError),
    /// A recorded host.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Load(#[from] LoadError),
    /// A file of the host.
    #[error("{0}")]
    #[strum(to_string = "-")]
    File(#[from] FsError),
    /// A file of the caller.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Input(#[from] InputError),
    /// The list of excluded GPUs.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Exclusions(#[from] ExclusionsError),
    /// An array, or a file that refers to it.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Array(#[from] ArrayError),
    /// A function's driver.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Bind(#[from] BindError),
    /// An image.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Image(#[from] ContentError),
    /// A list of checksums.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Sums(#[from] SumError),
    /// A network device.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Link(#[from] LinkError),
    /// Huge pages.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Pages(#[from] PagesError),
    /// A program.
    #[error("{0}")]
    #[strum(to_string = "-")]
    Command(#[from] CommandError),
    /// The system.
    #[error("{0}")]
    #[strum(to_string = "-")]
    System(#[from] std::io::Error),
    /// Signals.
    #[error("cannot block signals")]
    #[strum(to_string = "-")]
    Signals(#[from] Errno),
}

impl Error {
    /// Returns the operation's own refusal, alone or around a cause.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Error::Refused(refusal) | Error::Around { refusal, .. } => Some(refusal),
            _ => None,
        }
    }

    /// Returns the failed step, if any.
    pub fn step(&self) -> Option<&Step> {
        match self {
            Error::Apply(ApplyError::Failed { step, .. }) => Some(step),
            _ => None,
        }
    }

    /// Wraps it with its meaning here.
    pub fn around(self, refusal: Refusal) -> Error {
        Error::Around { refusal, source: Box::new(self) }
    }

    /// Returns it with all its causes, in one line.
    pub fn whole(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let said = error.to_string();
            if !text.contains(&said) {
                text = format!("{text}: {said}");
            }
            cause = error.source();
        }
        text
    }
}

/// Adds the operation to an error.
pub trait Doing<T> {
    /// Wraps an error with the operation.
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::Doing { doing: what(), source: Box::new(error.into()) })
    }
}

/// The reasons why a guest cannot be created: at least two.
#[derive(Debug, thiserror::Error)]
#[error("the guest cannot be created, for {} reasons", errors.len())]
pub struct Obstacles {
    /// The reasons: the machine's missing parts first.
    pub errors: Vec<Error>,
}

/// Makes an error of a class, with a hint.
pub fn classed(class: Class, message: impl Into<String>, hint: impl Into<String>) -> Error {
    Refusal::new(class, message, hint).into()
}

/// Makes an error with a code of its own, with a hint.
pub fn coded(code: &'static str, message: impl Into<String>, hint: impl Into<String>) -> Error {
    Refusal::coded(code, message, hint).into()
}

/// Makes a usage error.
pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> Error {
    classed(Class::Usage, message, hint)
}

/// The state that a crashed guest that keeps its process would lose: libvirt's `on_crash` preserve
/// keeps it.
pub fn crashed(name: &str) -> String {
    format!("domain `{name}` has crashed, and its process is kept with its memory")
}

/// How the memory of a guest that has crashed is kept for a look. Only this way of `virsh dump`
/// takes one with devices of the host.
pub fn dump_hint(name: &str) -> String {
    let file = format!("{name}.dump");
    let (name, file) = (domain(name), word(&file));
    format!("`virsh dump --memory-only {name} {file}` writes its memory to a file")
}

/// Returns the commands that give a transient domain a definition.
pub fn dump_and_define(name: &str) -> String {
    let file = format!("{name}.xml");
    let file = word(&file);
    format!(
        "`virsh dumpxml {name} >{file}`, then `virsh define {file}` gives it one",
        name = domain(name)
    )
}
