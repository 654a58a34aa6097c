//! What a verb works on: the host, its hypervisor, what is taken. Each is read when it is first asked for.

use super::args::Global;
use super::output::Output;
use crate::hypervisor::Hypervisor;
use crate::placement::Occupancy;
use crate::topology::Topology;

/// Is what a verb works on.
pub struct Context<'a> {
    /// What holds for every verb.
    pub global: &'a Global,
    /// How to print.
    pub output: Output,
}

impl<'a> Context<'a> {
    /// Makes the context of a run.
    pub fn new(global: &'a Global) -> Context<'a> {
        Context { global, output: Output::new(global) }
    }

    /// The host: the recorded one of `--host`, or this machine.
    pub fn topology(&self) -> anyhow::Result<Topology> {
        Ok(match &self.global.host {
            Some(path) => crate::discover::source::load(path)?,
            None => crate::discover::discover(&crate::fsroot::FsRoot::live()?)?,
        })
    }

    /// The hypervisor of `--connect`.
    pub fn hypervisor(&self) -> anyhow::Result<Box<dyn Hypervisor>> {
        open(&self.global.connect)
    }

    /// What every domain of the host holds; nothing on a recorded host.
    pub fn occupancy(&self, assume_empty: bool) -> anyhow::Result<Occupancy> {
        if assume_empty || self.global.host.is_some() {
            return Ok(Occupancy::default());
        }
        let hypervisor = self.hypervisor()?;
        let mut domains = Vec::new();
        for summary in hypervisor.domains()? {
            let active = summary.state != crate::hypervisor::DomainState::ShutOff;
            let xml = hypervisor.xml(&summary.name, crate::hypervisor::XmlOf::Inactive)?;
            domains.push(crate::domain::DomainXml::parse(&xml)?.held(active)?);
        }
        Ok(Occupancy { domains })
    }

    /// Refuses a verb that changes something on a recorded host.
    pub fn refuse_recorded(&self, verb: &str) -> anyhow::Result<()> {
        match &self.global.host {
            None => Ok(()),
            Some(_) => Err(super::error::usage(
                format!("`{verb}` changes the machine, so it does not take --host"),
                "`gpuvm export --host FILE` prints the domain XML that would be defined",
            )),
        }
    }
}

/// Connects to a hypervisor.
#[cfg(feature = "libvirt")]
fn open(uri: &str) -> anyhow::Result<Box<dyn Hypervisor>> {
    Ok(Box::new(crate::hypervisor::libvirt::Libvirt::open(uri)?))
}

/// Says that this program has no hypervisor.
#[cfg(not(feature = "libvirt"))]
fn open(uri: &str) -> anyhow::Result<Box<dyn Hypervisor>> {
    let error = crate::hypervisor::HypervisorError {
        kind: crate::hypervisor::HypervisorErrorKind::NoLibrary,
        doing: format!("connect to {uri}"),
        message: "this gpuvm was built without libvirt (cargo feature `libvirt`)".into(),
    };
    Err(error.into())
}
