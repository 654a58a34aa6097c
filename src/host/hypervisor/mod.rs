//! The hypervisor as the rest of the program sees it: few methods, plain values. [`Hypervisor`] is the edge; the one
//! that speaks to libvirt is in `libvirt`, the only file that knows the binding.

pub mod emulator;
mod kvm;
#[cfg(feature = "libvirt")]
pub mod lazy;
#[cfg(feature = "libvirt")]
pub mod libvirt;
pub mod machine;
pub mod network;
pub mod none;
pub mod storage;
#[cfg(test)]
mod stubs;
pub mod traced;
pub mod uses;

use gpuvm_core::bdf::Bdf;
use gpuvm_core::cpuset::CpuSet;
use gpuvm_core::domain::live::GuestThread;
use gpuvm_core::network::GuestAddress;
use gpuvm_core::versions::Versions;
use machine::{Identity, Machine};
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use std::path::PathBuf;

/// Whether a domain runs. All but [`DomainState::ShutOff`] are active by libvirt: there is a process, which holds the
/// domain's devices, disks, memory and bridge ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DomainState {
    /// Running or blocked on a resource.
    Running,
    /// Paused by a user or by an error.
    Paused,
    /// On its way down.
    ShuttingDown,
    /// Off: no process.
    ShutOff,
    /// The guest has crashed, and its process is kept with all it holds (`on_crash` preserve).
    Crashed,
}

impl DomainState {
    /// Whether the domain has a process, which holds its devices.
    pub fn is_active(self) -> bool {
        self != DomainState::ShutOff
    }

    /// Whether there is a guest to ask: one that has crashed holds what it had, and answers nobody.
    pub fn has_guest(self) -> bool {
        self.is_active() && self != DomainState::Crashed
    }
}

/// One row of the list of domains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DomainSummary {
    /// Its name.
    pub name: String,
    /// Its UUID, with dashes.
    pub uuid: String,
    /// Whether it runs.
    pub state: DomainState,
    /// Whether its definition outlives it.
    pub persistent: bool,
}

/// Which definition of a domain is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XmlOf {
    /// The one that the next start takes, with secrets.
    Inactive,
    /// The one that the next start takes, without secrets.
    Public,
    /// The running one; the same as the inactive one where it does not run.
    Live,
}

/// Whom a guest is asked by to shut down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum AskedBy {
    /// Its agent, which answers whether it will.
    Agent,
    /// The ACPI power button, which a guest may not hear.
    #[default]
    PowerButton,
}

/// What a console gives at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsoleRead {
    /// So many bytes.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// Nothing any more.
    End,
}

/// A guest's serial console, attached to while it lives. No call waits.
pub trait Console {
    /// Reads what the guest has written.
    fn read(&mut self, into: &mut [u8]) -> Result<ConsoleRead, HypervisorError>;
    /// Types to the guest; returns how many bytes it takes now.
    fn write(&mut self, from: &[u8]) -> Result<usize, HypervisorError>;
}

/// An address that a network's DHCP server has given to an interface, whether or not that is still there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The server.
    pub server: Ipv4Addr,
    /// The address.
    pub ip: Ipv4Addr,
    /// MAC address of the interface.
    pub mac: String,
}

/// What went wrong, by what the caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "libvirt-")]
pub enum HypervisorErrorKind {
    /// `libvirt.so.0` is not installed, or the program was built without it.
    NoLibrary,
    /// Nobody answers at the URI.
    NoConnection,
    /// The user may not.
    Denied,
    /// No domain of that name.
    NoDomain,
    /// A domain of that name is there already.
    Exists,
    /// The domain is not in the state for it.
    WrongState,
    /// The console is somebody else's now.
    #[strum(to_string = "console-busy")]
    Busy,
    /// No storage pool or volume of that name.
    NoVolume,
    /// A network that the domain names is not there, or does not run.
    NoNetwork,
    /// The definition is refused.
    BadXml,
    /// Anything else.
    #[strum(to_string = "error")]
    Other,
}

/// What is said of a daemon that is frozen, before the number of seconds.
pub const SILENT: &str = "has not answered for";

/// Says what the hypervisor could not do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{doing}: {message}")]
pub struct HypervisorError {
    /// What the caller can do about it.
    pub kind: HypervisorErrorKind,
    /// What was tried: "connect to qemu:///system", "define domain `x`".
    pub doing: String,
    /// What libvirt says, one line.
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
    /// Whether there is no libvirt: neither its library nor a daemon. One that is frozen is there.
    pub fn is_absent(&self) -> bool {
        use HypervisorErrorKind::{NoConnection, NoLibrary};
        matches!(self.kind, NoConnection | NoLibrary) && !self.is_silent()
    }

    /// Whether a daemon is there and does not answer.
    pub fn is_silent(&self) -> bool {
        self.kind == HypervisorErrorKind::NoConnection && self.message.contains(SILENT)
    }
}

/// A network that gives each of its interfaces a virtual function when their guest starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VfPool {
    /// Its name.
    pub name: String,
    /// The functions that it gives.
    pub functions: Vec<Bdf>,
}

/// Something that a hypervisor keeps of a domain beside its definition, and that belongs to the disks of then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// What it is: "a saved state", "2 snapshots".
    pub what: String,
    /// What shows it, or takes it away.
    pub hint: String,
    /// Whether the guest starts from it next, as it was then.
    pub starts: bool,
}

/// A hypervisor that domains can be defined on.
pub trait Hypervisor {
    /// The URI of the connection, for messages.
    fn uri(&self) -> &str;
    /// The URI that was opened in the end, where aliases are resolved.
    fn opened_uri(&self) -> String {
        self.uri().to_owned()
    }
    /// The machine that its domains are on.
    fn machine(&self) -> Machine {
        Machine::Here
    }
    /// What tells that machine from others, for a journal.
    fn identity(&self) -> Identity {
        Identity::of_this_machine()
    }
    /// Whether its guests run on this machine, so that they have its devices and pages; those of libvirt's `test` driver
    /// run nowhere.
    fn has_guests_here(&self) -> bool {
        self.machine().is_here() && !machine::is_test(self.uri())
    }
    /// The versions of what guests run on; nothing of what it does not tell.
    fn versions(&self) -> Versions {
        Versions::default()
    }
    /// The QEMU program of this machine that guests run in; none: they run elsewhere, or in none.
    fn emulator(&self) -> Option<PathBuf> {
        None
    }
    /// Connects anew where the connection was lost.
    fn reconnect(&self) -> Result<(), HypervisorError> {
        Ok(())
    }
    /// The number that a domain has while it runs, another at each start; none: it does not run, or there is no telling.
    fn run_id(&self, _name: &str) -> Result<Option<u32>, HypervisorError> {
        Ok(None)
    }
    /// Its storage.
    fn storage(&self) -> &dyn storage::Storage;
    /// Its networks.
    fn networks(&self) -> &dyn network::Networks;
    /// Every domain, running or defined, by name.
    fn domains(&self) -> Result<Vec<DomainSummary>, HypervisorError>;
    /// One domain; none where there is none of this name.
    fn domain(&self, name: &str) -> Result<Option<DomainSummary>, HypervisorError> {
        Ok(self.domains()?.into_iter().find(|row| row.name == name))
    }
    /// A domain's definition.
    fn xml(&self, name: &str, which: XmlOf) -> Result<String, HypervisorError>;
    /// Defines a domain after checking it against libvirt's schema; never replaces one of another UUID.
    fn define(&self, xml: &str) -> Result<(), HypervisorError>;
    /// Removes a definition together with NVRAM, managed save and snapshot metadata.
    fn undefine(&self, name: &str) -> Result<(), HypervisorError>;
    /// Removes a definition together with managed save and snapshot metadata; its NVRAM stays.
    fn undefine_but_nvram(&self, name: &str) -> Result<(), HypervisorError> {
        self.undefine(name)
    }
    /// What it keeps of a domain that belongs to its disks as they are; nothing where it has no such things.
    fn keeps(&self, _name: &str) -> Result<Vec<Kept>, HypervisorError> {
        Ok(Vec::new())
    }
    /// Starts a defined domain.
    fn start(&self, name: &str) -> Result<(), HypervisorError>;
    /// Asks a guest to shut down; does not wait until it has.
    fn shutdown(&self, name: &str, by: AskedBy) -> Result<(), HypervisorError>;
    /// Ends a guest at once, as a power cut; not running any more is success.
    fn destroy(&self, name: &str) -> Result<(), HypervisorError>;
    /// Asks a running guest to let go of a device, given as in its running definition, and leaves the definition of its
    /// next start as it is. The guest may take its time, or never do it: [`Hypervisor::xml`] shows when it has.
    fn detach(&self, name: &str, device: &str) -> Result<(), HypervisorError>;
    /// Pins a thread of a running guest and leaves the definition of its next start as it is.
    fn pin(&self, name: &str, thread: GuestThread, pcpus: &CpuSet) -> Result<(), HypervisorError>;
    /// Changes what a device of a running guest can take, bandwidth for one, given as in its running definition, and
    /// leaves the definition of its next start as it is.
    fn update(&self, name: &str, device: &str) -> Result<(), HypervisorError>;
    /// Gives a command to a running guest's agent and returns its answer, both JSON. What a guest answers is as
    /// trustworthy as the guest.
    fn ask_agent(
        &self,
        name: &str,
        command: &str,
        wait: std::time::Duration,
    ) -> Result<String, HypervisorError>;
    /// Whether a domain is started with the host.
    fn autostart(&self, name: &str) -> Result<bool, HypervisorError>;
    /// Attaches to the first console of a running guest; `force` takes it from whoever has it.
    fn console(&self, name: &str, force: bool) -> Result<Box<dyn Console>, HypervisorError>;
    /// Addresses of a running guest that its hypervisor knows now; none known is not an error. Of each interface those
    /// of the first source that knows any, in the order of [`AddressSource`](gpuvm_core::network::AddressSource), in which sources are asked until each of
    /// these interfaces has an address; all of them where none is named. None that is older than the guest's start, where
    /// that can be told. An agent may take seconds to say nothing.
    fn addresses(&self, name: &str, macs: &[String]) -> Result<Vec<GuestAddress>, HypervisorError>;
    /// The networks that run and hand out virtual functions; none of a hypervisor without networks.
    fn vf_pools(&self) -> Result<Vec<VfPool>, HypervisorError> {
        Ok(Vec::new())
    }
    /// IPv4 addresses that a network has given to an interface; none where there is no network of this name.
    fn leases(&self, network: &str, mac: &str) -> Result<Vec<Lease>, HypervisorError>;
}
