//! Existing domains, whoever made them: a list of all, or one with all details.

use crate::domain::view::{View, gpu_indexes, remembered};
use crate::domain::{DomainXml, DomainXmlError};
use crate::error::{Result, usage};
use crate::guest::find;
use crate::hypervisor::{DomainState, DomainSummary, HypervisorErrorKind, XmlOf};
use crate::network::GuestAddress;
use crate::taken::{domains_of_files, is_active};
use crate::world::World;
use serde::Serialize;
use std::path::PathBuf;

/// A domain of a list.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListedDomain {
    /// Name, state and UUID.
    #[serde(flatten)]
    pub summary: DomainSummary,
    /// What it holds; none: its definition cannot be understood.
    #[serde(flatten)]
    pub view: Option<View>,
}

/// A domain, and all that is known of it.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShownDomain {
    /// Name, state and UUID.
    #[serde(flatten)]
    pub summary: DomainSummary,
    /// What it is and holds.
    #[serde(flatten)]
    pub view: View,
    /// Whether it starts with the host; none: its driver does not say.
    pub autostart: Option<bool>,
    /// Its addresses, while it runs.
    pub addresses: Vec<GuestAddress>,
}

/// A domain with its definition, if that can be parsed.
type Defined = (DomainSummary, Result<DomainXml, DomainXmlError>);

/// Lists the domains of the hypervisor, or those in files of a recorded host. Each definition is read once.
pub fn list(world: &World, files: &[PathBuf]) -> Result<Vec<ListedDomain>> {
    let files = domains_of_files(world, files)?;
    if files.is_empty() && world.is_recorded() {
        return Err(usage(
            "`list` asks libvirt, which a recorded host does not have, and no --domain-xml is given",
            "--domain-xml PATH lists what `virsh dumpxml` printed there; `gpuvm list` without --host asks the \
             libvirt of this machine",
        ));
    }
    let domains = match files.is_empty() {
        true => known(world)?,
        false => files.into_iter().map(of_file).collect(),
    };
    Ok(listed(domains, world))
}

/// Shows one domain.
pub fn show(world: &World, name: &str) -> Result<ShownDomain> {
    world.refuse_without_guests("show")?;
    let hypervisor = world.hypervisor()?;
    let summary = find(&*hypervisor, name)?;
    let xml = DomainXml::parse(&hypervisor.xml(name, XmlOf::Live)?)?;
    let mut view = View::of(&xml, world.topology().ok().as_ref())?;
    if summary.state.is_active() && summary.persistent {
        // What was made for it may have been removed since it was started.
        let inactive = hypervisor.xml(name, XmlOf::Inactive)?;
        view.remembered = remembered(&DomainXml::parse(&inactive)?);
    }
    let macs: Vec<String> = view.nics.iter().map(|nic| nic.mac.clone()).collect();
    let addresses =
        if summary.state.has_guest() { hypervisor.addresses(name, &macs)? } else { Vec::new() };
    let autostart = hypervisor.autostart(name).ok();
    Ok(ShownDomain { summary, view, autostart, addresses })
}

/// Returns the hypervisor's domains, each with its definition if that can be parsed.
fn known(world: &World) -> Result<Vec<Defined>> {
    let hypervisor = world.hypervisor()?;
    let mut found = Vec::new();
    for summary in hypervisor.domains()? {
        let text = match hypervisor.xml(&summary.name, XmlOf::Live) {
            // Deleted since it was listed.
            Err(error) if error.kind == HypervisorErrorKind::NoDomain => continue,
            text => text?,
        };
        let xml = DomainXml::parse(&text);
        found.push((summary, xml));
    }
    Ok(found)
}

/// A domain of a recorded host, as in its file.
fn of_file((_, xml): (PathBuf, DomainXml)) -> Defined {
    let state = if is_active(&xml) { DomainState::Running } else { DomainState::ShutOff };
    let uuid = xml.uuid().unwrap_or_default();
    (DomainSummary { name: xml.name(), uuid, state, persistent: true }, Ok(xml))
}

/// Reads what each domain holds.
fn listed(domains: Vec<Defined>, world: &World) -> Vec<ListedDomain> {
    let mut rows = Vec::with_capacity(domains.len());
    for (summary, xml) in domains {
        let view = xml.and_then(|xml| View::of(&xml, None));
        if let Err(error) = &view {
            world.warning(&format!("domain `{}`: {error}", summary.name));
        }
        rows.push(ListedDomain { summary, view: view.ok() });
    }
    let has_devices =
        |row: &ListedDomain| row.view.as_ref().is_some_and(|view| !view.devices.is_empty());
    // Reading the host takes as long as everything else, and only gives the indexes of GPUs.
    // Without a readable host these are missing, not the list.
    if rows.iter().any(has_devices)
        && let Ok(topology) = world.topology()
    {
        for view in rows.iter_mut().filter_map(|row| row.view.as_mut()) {
            view.gpus = gpu_indexes(&topology, &view.devices);
        }
    }
    rows
}
