//! The hypervisor as the rest of the program sees it: few methods, plain values. [`Hypervisor`] is
//! the interface; its implementation for libvirt is in `libvirt`, the only file that uses the
//! binding.

pub mod emulator;
mod kvm;
#[cfg(feature = "libvirt")]
pub mod lazy;
#[cfg(feature = "libvirt")]
pub mod libvirt;
pub mod machine;
pub mod network;
pub mod none;
pub mod slow;
pub mod snapshot;
pub mod storage;
#[cfg(test)]
mod stubs;
pub mod traced;
pub mod uses;

use crate::discover::reach::Reach;
use gpuvm_core::bdf::Bdf;
use gpuvm_core::cpuset::CpuSet;
use gpuvm_core::domain::guest::VirtType;
use gpuvm_core::domain::live::GuestThread;
use gpuvm_core::domain::{DomainXml, DomainXmlError};
use gpuvm_core::load::ByteCounts;
use gpuvm_core::network::GuestAddress;
use gpuvm_core::topology::software::GuestSupport;
use gpuvm_core::versions::Versions;
use gpuvm_core::words;
use machine::{Identity, Machine};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::PathBuf;

/// Whether a domain runs. All but [`DomainState::ShutOff`] are active by libvirt: there is a
/// process, which holds the domain's devices, disks, memory and bridge ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DomainState {
    /// Running or blocked on a resource.
    Running,
    /// Paused by a user or by an error.
    Paused,
    /// Asleep by its own wish (ACPI S3), until it is woken.
    Suspended,
    /// Shutting down.
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

    /// Whether there is a responsive guest: a crashed one still holds its resources but does not
    /// answer.
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
    /// Whether its definition remains when it stops.
    pub persistent: bool,
}

/// The requested definition of a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XmlOf {
    /// The one that the next start takes, with secrets.
    Inactive,
    /// The one that the next start takes, without secrets.
    Public,
    /// The running one; that of the next start if it does not run.
    Live,
}

/// A definition of a listed domain.
#[derive(Debug)]
pub struct Definition {
    /// Its row.
    pub summary: DomainSummary,
    /// Which of its definitions it is.
    pub which: XmlOf,
    /// The document, or why it is none.
    pub xml: Result<DomainXml, DomainXmlError>,
}

/// Reads the definitions of every domain that `wanted` names for it, by name. A domain deleted
/// since it was listed is left out. Each is parsed while the next ones are read.
pub fn definitions(
    hypervisor: &dyn Hypervisor,
    wanted: impl Fn(&DomainSummary) -> &'static [XmlOf],
) -> Result<Vec<Definition>, HypervisorError> {
    let rows = hypervisor.domains()?;
    let of_row = |row| wanted(row).iter().map(move |which| (row, *which));
    let asked: Vec<(&DomainSummary, XmlOf)> = rows.iter().flat_map(of_row).collect();
    let names: Vec<(&str, XmlOf)> =
        asked.iter().map(|(row, which)| (row.name.as_str(), *which)).collect();
    let mut read: Vec<Option<_>> = asked.iter().map(|_| None).collect();
    hypervisor.xmls(&names, &mut |at, xml| {
        read[at] = Some(xml.map(|xml| DomainXml::parse(&xml)));
    });
    let mut found = Vec::with_capacity(asked.len());
    for ((row, which), xml) in asked.into_iter().zip(read) {
        match xml {
            None => {}
            Some(Err(error)) if error.kind == HypervisorErrorKind::NoDomain => {}
            Some(xml) => found.push(Definition { summary: row.clone(), which, xml: xml? }),
        }
    }
    Ok(found)
}

/// How a guest is asked to shut down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum AskedBy {
    /// Its agent, which answers whether it will.
    Agent,
    /// The ACPI power button, which a guest may ignore.
    #[default]
    PowerButton,
}

/// The result of reading a console.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsoleRead {
    /// This many bytes.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// Nothing any more.
    End,
}

/// A guest's serial console, attached while this lives. No call blocks.
pub trait Console {
    /// Reads what the guest has written.
    fn read(&mut self, into: &mut [u8]) -> Result<ConsoleRead, HypervisorError>;
    /// Types to the guest; returns how many bytes it accepts now.
    fn write(&mut self, from: &[u8]) -> Result<usize, HypervisorError>;
}

/// An address leased by a network's DHCP server to an interface, which may no longer exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The server.
    pub server: Ipv4Addr,
    /// The address.
    pub ip: Ipv4Addr,
    /// MAC address of the interface.
    pub mac: String,
}

/// The kind of an error, by what the caller can do.
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
    /// The console is in use by somebody else.
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
    /// What the caller can do about it.
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

/// A network that gives each of its interfaces a virtual function when their guest starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VfPool {
    /// Its name.
    pub name: String,
    /// The functions that it gives.
    pub functions: Vec<Bdf>,
}

/// State that a hypervisor keeps of a domain besides its definition, tied to its disks' content at
/// that time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// What it is: "a saved state", "2 snapshots".
    pub what: String,
    /// The command that shows or removes it.
    pub hint: String,
    /// Whether the guest starts from it next, as it was then.
    pub starts: bool,
}

/// How large a disk of a domain is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSize {
    /// Size seen by the guest, in bytes.
    pub capacity_bytes: u64,
    /// Bytes that it occupies on the host.
    pub allocation_bytes: u64,
}

/// What a running guest uses of its host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// CPU time since its start, in nanoseconds.
    pub cpu_ns: Option<u64>,
    /// Memory of the host that its process occupies, in KiB.
    pub memory_kib: Option<u64>,
}

/// The error of a hypervisor without snapshots.
fn no_snapshots(name: &str, snapshot: &str) -> HypervisorError {
    HypervisorError {
        kind: HypervisorErrorKind::Other,
        doing: format!("change snapshot `{snapshot}` of domain `{name}`"),
        message: "this hypervisor has no snapshots".to_owned(),
    }
}

/// State of a domain that outlives its definition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keep {
    /// The settings of its firmware.
    pub nvram: bool,
    /// The state of its emulated TPM.
    pub tpm: bool,
    /// Not even TPM state that the definition makes persistent; `tpm` comes first.
    pub no_tpm: bool,
}

/// A hypervisor that domains can be defined on.
pub trait Hypervisor {
    /// The URI of the connection, for messages.
    fn uri(&self) -> &str;
    /// The URI actually opened, with aliases resolved.
    fn opened_uri(&self) -> String {
        self.uri().to_owned()
    }
    /// The machine that its domains are on.
    fn machine(&self) -> Machine {
        Machine::Here
    }
    /// The identity of that machine, for a journal.
    fn identity(&self) -> Identity {
        Identity::of_this_machine()
    }
    /// Whether its guests run on this machine, so that they have its devices and pages; those of
    /// libvirt's `test` driver do not really run.
    fn has_guests_here(&self) -> bool {
        self.machine().is_here() && !machine::is_test(self.uri())
    }
    /// The directory of this machine that it keeps the logs of guests in; none: it keeps none here.
    fn log_dir(&self) -> Option<PathBuf> {
        None
    }
    /// The same, where the directory is missing; none: it is there, or it is not known where.
    fn missing_log_dir(&self) -> Option<PathBuf> {
        None
    }
    /// The versions of the components that guests run on, as far as reported.
    fn versions(&self) -> Versions {
        Versions::default()
    }
    /// The QEMU program of this machine that guests run in; none: they run elsewhere, or in none.
    fn emulator(&self) -> Option<PathBuf> {
        None
    }
    /// What it reports of the guests that it can run; none: a driver that does not report it.
    fn guest_support(&self) -> Option<GuestSupport> {
        None
    }
    /// Why guests cannot have this machine type; none: they can, or a driver that does not report it.
    fn refuses_machine(&self, _machine: &str, _virt: VirtType) -> Option<String> {
        None
    }
    /// Reconnects if the connection was lost.
    fn reconnect(&self) -> Result<(), HypervisorError> {
        Ok(())
    }
    /// The id of a running domain, which changes at each start; none: it does not run, or unknown.
    fn run_id(&self, _name: &str) -> Result<Option<u32>, HypervisorError> {
        Ok(None)
    }
    /// Its storage.
    fn storage(&self) -> &dyn storage::Storage;
    /// Its networks.
    fn networks(&self) -> &dyn network::Networks;
    /// Every domain, running or defined, by name.
    fn domains(&self) -> Result<Vec<DomainSummary>, HypervisorError>;
    /// One domain; none if there is none of this name.
    fn domain(&self, name: &str) -> Result<Option<DomainSummary>, HypervisorError> {
        Ok(self.domains()?.into_iter().find(|row| row.name == name))
    }
    /// A domain's definition.
    fn xml(&self, name: &str, which: XmlOf) -> Result<String, HypervisorError>;
    /// Several definitions, each given to `take` with its place in `wanted`, in any order.
    fn xmls(
        &self,
        wanted: &[(&str, XmlOf)],
        take: &mut dyn FnMut(usize, Result<String, HypervisorError>),
    ) {
        for (at, (name, which)) in wanted.iter().enumerate() {
            take(at, self.xml(name, *which));
        }
    }
    /// The definitions from which domains with a saved state start, each with the domain's name.
    fn saved(&self) -> Result<Vec<(String, String)>, HypervisorError> {
        Ok(Vec::new())
    }
    /// Defines a domain after checking it against libvirt's schema; never replaces one of another
    /// UUID.
    fn define(&self, xml: &str) -> Result<(), HypervisorError>;
    /// Removes a definition together with NVRAM, managed save and snapshot metadata.
    fn undefine(&self, name: &str) -> Result<(), HypervisorError>;
    /// Removes a definition together with managed save and snapshot metadata, but keeps this state.
    fn undefine_but(&self, name: &str, _keep: Keep) -> Result<(), HypervisorError> {
        self.undefine(name)
    }
    /// Gives a defined domain that is off another name; its UUID, its autostart and what is defined
    /// stay.
    fn rename(&self, name: &str, to: &str) -> Result<(), HypervisorError> {
        Err(HypervisorError {
            kind: HypervisorErrorKind::Other,
            doing: format!("rename domain `{name}` to `{to}`"),
            message: "this hypervisor renames no domains".to_owned(),
        })
    }
    /// State that it keeps of a domain tied to its disks' content; empty if unsupported.
    fn keeps(&self, _name: &str) -> Result<Vec<Kept>, HypervisorError> {
        Ok(Vec::new())
    }
    /// The snapshots of a domain; empty if unsupported.
    fn snapshots(&self, _name: &str) -> Result<Vec<snapshot::Snapshot>, HypervisorError> {
        Ok(Vec::new())
    }
    /// Makes a snapshot of a domain that is off, in the images of its disks.
    fn make_snapshot(&self, name: &str, snapshot: &str, _: &str) -> Result<(), HypervisorError> {
        Err(no_snapshots(name, snapshot))
    }
    /// Gives the disks of a domain that is off the content of a snapshot, and the domain its
    /// definition of that time.
    fn revert_snapshot(&self, name: &str, snapshot: &str) -> Result<(), HypervisorError> {
        Err(no_snapshots(name, snapshot))
    }
    /// Deletes a snapshot; the disks keep what they hold.
    fn delete_snapshot(&self, name: &str, snapshot: &str) -> Result<(), HypervisorError> {
        Err(no_snapshots(name, snapshot))
    }
    /// Starts a defined domain.
    fn start(&self, name: &str) -> Result<(), HypervisorError>;
    /// Asks a guest to shut down; does not wait until it has.
    fn shutdown(&self, name: &str, by: AskedBy) -> Result<(), HypervisorError>;
    /// Stops the vCPUs of a running guest, or lets those of a paused one go on.
    fn pause(&self, name: &str, _paused: bool) -> Result<(), HypervisorError> {
        Err(HypervisorError {
            kind: HypervisorErrorKind::Other,
            doing: format!("pause domain `{name}`"),
            message: "this hypervisor cannot pause guests".to_owned(),
        })
    }
    /// Ends a guest at once, like a power cut; succeeds if it no longer runs.
    fn destroy(&self, name: &str) -> Result<(), HypervisorError>;
    /// Asks a running guest to release a device, given as in its running definition; the definition
    /// of its next start is unchanged. The guest may take its time, or never do it:
    /// [`Hypervisor::xml`] shows when it has.
    fn detach(&self, name: &str, device: &str) -> Result<(), HypervisorError>;
    /// Gives a running guest a device more, and leaves the definition of its next start as it is.
    fn attach(&self, name: &str, _device: &str) -> Result<(), HypervisorError> {
        Err(HypervisorError {
            kind: HypervisorErrorKind::Other,
            doing: format!("attach a device to domain `{name}`"),
            message: "this hypervisor cannot attach devices to running guests".to_owned(),
        })
    }
    /// What a running guest uses of its host, as far as it is known.
    fn used(&self, _name: &str) -> Result<Used, HypervisorError> {
        Ok(Used::default())
    }
    /// How large a disk of a domain is, by its name in the guest; none where that is not told, as
    /// of a drive without medium.
    fn disk_size(&self, _name: &str, _target: &str) -> Result<Option<DiskSize>, HypervisorError> {
        Ok(None)
    }
    /// Bytes that a running guest has read from and written to a disk, by its name in the guest, as
    /// QEMU counts them; none where that is not told.
    fn disk_bytes(
        &self,
        _name: &str,
        _target: &str,
    ) -> Result<Option<ByteCounts>, HypervisorError> {
        Ok(None)
    }
    /// Makes a disk of a running guest larger, by its name in the guest, and tells the guest.
    fn grow_disk(&self, name: &str, target: &str, _bytes: u64) -> Result<(), HypervisorError> {
        Err(HypervisorError {
            kind: HypervisorErrorKind::Other,
            doing: format!("grow disk `{target}` of domain `{name}`"),
            message: "this hypervisor cannot grow disks of running guests".to_owned(),
        })
    }
    /// Pins a thread of a running guest; the definition of its next start is unchanged.
    fn pin(&self, name: &str, thread: GuestThread, pcpus: &CpuSet) -> Result<(), HypervisorError>;
    /// Has a running guest have this number of its vCPUs; the definition of its next start is
    /// unchanged.
    fn plug_vcpus(&self, name: &str, _vcpus: u32) -> Result<(), HypervisorError> {
        Err(HypervisorError {
            kind: HypervisorErrorKind::Other,
            doing: format!("change the number of vCPUs of running domain `{name}`"),
            message: "this hypervisor cannot plug vCPUs".to_owned(),
        })
    }
    /// Changes live settings of a running guest's device, such as bandwidth, given as in its
    /// running definition; the definition of its next start is unchanged.
    fn update(&self, name: &str, device: &str) -> Result<(), HypervisorError>;
    /// Gives a command to a running guest's agent and returns its answer, both JSON. What a guest
    /// answers is as trustworthy as the guest.
    fn ask_agent(
        &self,
        name: &str,
        command: &str,
        wait: std::time::Duration,
    ) -> Result<String, HypervisorError>;
    /// Whether a domain starts with the host.
    fn autostart(&self, name: &str) -> Result<bool, HypervisorError>;
    /// Sets whether a domain starts with the host.
    fn set_autostart(&self, name: &str, on: bool) -> Result<(), HypervisorError>;
    /// Names of the domains that are started with the host; of a driver that cannot tell, all.
    fn autostarted(&self) -> Result<BTreeSet<String>, HypervisorError> {
        let names = self.domains()?.into_iter().map(|row| row.name);
        Ok(names.filter(|name| self.autostart(name).unwrap_or(true)).collect())
    }
    /// Attaches to the first console of a running guest; `force` takes it over from another user.
    fn console(&self, name: &str, force: bool) -> Result<Box<dyn Console>, HypervisorError>;
    /// Returns the addresses of a running guest known now; none is not an error. For each interface
    /// those of the first source that has any (leases, the host's neighbours, the agent), asking
    /// sources until each of these interfaces has an address, or all sources if none is named.
    /// Addresses known to be older than the guest's start are left out. One that an agent reports
    /// counts as a neighbour's if the host's neighbour table agrees. An agent may take seconds to
    /// time out.
    fn addresses(&self, name: &str, macs: &[String]) -> Result<Vec<GuestAddress>, HypervisorError>;
    /// Where packets of this machine to an address of a running guest arrive, as far as the host can
    /// see without asking the guest.
    fn reach(&self, _name: &str, _address: &GuestAddress) -> Result<Reach, HypervisorError> {
        Ok(Reach::Elsewhere)
    }
    /// The networks that run and hand out virtual functions; empty for a hypervisor without
    /// networks.
    fn vf_pools(&self) -> Result<Vec<VfPool>, HypervisorError> {
        Ok(Vec::new())
    }
    /// IPv4 addresses that a network has given to an interface; empty if there is no network of
    /// this name.
    fn leases(&self, network: &str, mac: &str) -> Result<Vec<Lease>, HypervisorError>;
}
