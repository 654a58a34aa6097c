//! Domains as they are defined: their list, documents and autostart.

use super::error::{HypervisorError, HypervisorErrorKind, unsupported};
use gpuvm_core::domain::{DomainXml, DomainXmlError};
use serde::Serialize;
use std::collections::BTreeSet;

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
    hypervisor: &dyn Domains,
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

/// State that a hypervisor keeps of a domain besides its definition, tied to its disks' content at
/// that time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Its description: "a saved state", "2 snapshots".
    pub what: String,
    /// The command that shows or removes it.
    pub hint: String,
    /// Whether the guest starts from it next, as it was then.
    pub starts: bool,
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

/// The domains of a hypervisor.
pub trait Domains {
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
    /// Renames a defined domain that is off; its UUID, its autostart and its definition stay.
    fn rename(&self, name: &str, to: &str) -> Result<(), HypervisorError> {
        unsupported(format_args!("rename domain `{name}` to `{to}`"), "renames no domains")
    }
    /// State that it keeps of a domain tied to its disks' content; empty if unsupported.
    fn keeps(&self, _name: &str) -> Result<Vec<Kept>, HypervisorError> {
        Ok(Vec::new())
    }
    /// Whether a domain starts with the host.
    fn autostart(&self, name: &str) -> Result<bool, HypervisorError>;
    /// Sets whether a domain starts with the host.
    fn set_autostart(&self, name: &str, on: bool) -> Result<(), HypervisorError>;
    /// Names of the domains that are started with the host; all if the driver does not report them.
    fn autostarted(&self) -> Result<BTreeSet<String>, HypervisorError> {
        let names = self.domains()?.into_iter().map(|row| row.name);
        Ok(names.filter(|name| self.autostart(name).unwrap_or(true)).collect())
    }
}
