//! The error of a hypervisor, by the caller's remedy.

use gpuvm_core::words;
use std::fmt::Arguments;

/// The kind of an error, by the caller's remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "libvirt-")]
pub enum HypervisorErrorKind {
    /// `libvirt.so.0` is not installed, or the program was built without it.
    NoLibrary,
    /// No hypervisor answers at the URI.
    NoConnection,
    /// Permission denied.
    Denied,
    /// No domain of that name.
    NoDomain,
    /// A domain of that name already exists.
    Exists,
    /// The domain is in the wrong state.
    WrongState,
    /// The console is in use by others.
    #[strum(to_string = "console-busy")]
    Busy,
    /// No storage pool or volume of that name.
    NoVolume,
    /// A network that the domain names does not exist, or is inactive.
    NoNetwork,
    /// The definition is refused.
    BadXml,
    /// Anything else.
    #[strum(to_string = "error")]
    Other,
}

/// The message of a frozen daemon, before the number of seconds.
pub const SILENT: &str = "has not answered for";

/// The error of the hypervisor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{doing}{}", self.reason())]
pub struct HypervisorError {
    /// The kind, by the caller's remedy.
    pub kind: HypervisorErrorKind,
    /// The operation: "connect to qemu:///system", "define domain `x`".
    pub doing: String,
    /// libvirt's message, one line; empty: the operation says all.
    pub message: String,
}

impl strum::VariantNames for HypervisorError {
    const VARIANTS: &'static [&'static str] = HypervisorErrorKind::VARIANTS;
}

impl From<&HypervisorError> for &'static str {
    fn from(error: &HypervisorError) -> &'static str {
        error.kind.into()
    }
}

impl From<HypervisorError> for &'static str {
    fn from(error: HypervisorError) -> &'static str {
        error.kind.into()
    }
}

impl HypervisorError {
    /// The error that there is no domain of a name, with the most similar of those that there are.
    pub fn no_domain<'n>(name: &str, there: impl IntoIterator<Item = &'n str>) -> HypervisorError {
        let similar = words::similar(name, there);
        HypervisorError {
            kind: HypervisorErrorKind::NoDomain,
            doing: format!("there is no domain `{name}`"),
            message: similar.map(|one| format!("did you mean `{one}`?")).unwrap_or_default(),
        }
    }

    /// The message, to follow the operation.
    fn reason(&self) -> String {
        match (self.kind, self.message.as_str()) {
            (_, "") => String::new(),
            (HypervisorErrorKind::NoDomain, message) => format!("; {message}"),
            (_, message) => format!(": {message}"),
        }
    }

    /// Whether libvirt is absent: no library or no daemon. A frozen daemon is present.
    pub fn is_absent(&self) -> bool {
        use HypervisorErrorKind::{NoConnection, NoLibrary};
        matches!(self.kind, NoConnection | NoLibrary) && !self.is_silent()
    }

    /// Whether a daemon is present but does not answer.
    pub fn is_silent(&self) -> bool {
        self.kind == HypervisorErrorKind::NoConnection && self.message.contains(SILENT)
    }
}

/// Refuses an operation that a hypervisor does not support: the operation, and the missing ability.
pub(super) fn unsupported<T>(doing: Arguments<'_>, lacks: &str) -> Result<T, HypervisorError> {
    Err(HypervisorError {
        kind: HypervisorErrorKind::Other,
        doing: doing.to_string(),
        message: format!("this hypervisor {lacks}"),
    })
}
