//! Obstacles to a guest's start besides its devices and memory, known before any change: a restart
//! must not power off a guest that cannot start again, and a preview reports the start's refusal.

use crate::apply::disk_conflict;
use crate::bdf::Bdf;
use crate::disks;
use crate::domain::DomainXml;
use crate::domain::claims::Claims;
use crate::error::{Coded, Error, Result};

use crate::hypervisor::file_users::{Conflict, How};
use crate::nic_sources::{self, NoSource};
use crate::shell::word;
use crate::topology::Topology;
use crate::world::World;
use gpuvm_core::check::{self, Finding};
use gpuvm_core::iommufd::{Lack, Way, or_back};
use gpuvm_core::versions::Versions;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The reason a guest cannot start.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "start-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum StartError {
    /// Another uses a disk, or has an image over it.
    #[error("domain `{name}` cannot start: its disk {} is not free: {by}", path.display())]
    DiskInUse {
        name: String,
        /// The disk, or its backing file.
        path: PathBuf,
        by: String,
    },
    /// A file of a disk does not exist.
    #[error("domain `{name}` cannot start: {what}")]
    DiskMissing {
        name: String,
        /// The file, and which disk is on it.
        what: String,
    },
    /// A network of its NICs does not exist.
    #[error("domain `{name}` cannot start: there is no network `{network}`")]
    NoNetwork { name: String, network: String },
    /// A network of its NICs is down.
    #[error("domain `{name}` cannot start: network `{network}` is not active")]
    NetworkDown { name: String, network: String },
    /// A bridge or network device of its NICs does not exist, or takes no guests.
    #[error("domain `{name}` cannot start: {why}")]
    NoLink { name: String, why: String },
    /// Its functions are passed through by iommufd, which the host does not have.
    #[error("domain `{name}` cannot start: {what}")]
    NoIommufd { name: String, what: String },
    /// It has functions, and the host's kernel lacks what libvirt needs to pass any through.
    #[error("domain `{name}` cannot start: {what}")]
    NoGroups { name: String, what: String },
}

impl Coded for StartError {}

/// Refuses a guest whose start would write below another's image, or would fail for a disk.
pub(crate) fn refuse_disks(xml: &DomainXml, world: &World) -> Result<()> {
    let hypervisor = world.hypervisor()?;
    let name = xml.name();
    let missing = check::disks(xml, &disks::missing(xml, &*hypervisor)?).into_iter().next();
    if let Some(Finding { says, hint, .. }) = missing {
        return Err(StartError::DiskMissing { name, what: says.message }.hint(hint));
    }
    if let Some(Conflict { path, used, .. }) = disk_conflict(xml, true, &*hypervisor)? {
        let hint = match used.how {
            How::Over => format!(
                "`gpuvm disk list {}` lists the users of each disk; the image over this one is \
                 worthless once the guest writes it, so delete or copy that one first",
                word(&name)
            ),
            _ => format!("`gpuvm disk list {}` lists the users of each disk", word(&name)),
        };
        let by = used.to_string();
        return Err(StartError::DiskInUse { name, path, by }.hint(hint));
    }
    Ok(())
}

/// Refuses a guest with functions on a host without what they need: libvirt does not name the
/// missing part ("failed to set memory accounting for iommufd: Bad file descriptor").
pub(crate) fn refuse_iommufd(xml: &DomainXml, world: &World) -> Result<()> {
    if Claims::read(xml).passed.is_empty() || !world.has_guests_here()? {
        return Ok(());
    }
    let topology = world.topology()?;
    if topology.lacks_vfio_groups()
        && let Some(error) = without_groups(xml, &world.way(&topology, None)?)
    {
        return Err(error);
    }
    let functions = by_iommufd(xml);
    without_iommufd(xml, &functions, &topology)
        .filter(|_| !functions.is_empty())
        .map_or(Ok(()), Err)
}

/// Why libvirt passes no function through to a guest; `None` if it does, as far as is known.
fn without_groups(xml: &DomainXml, way: &Way<'_>) -> Option<Error> {
    let lack = way.groups()?;
    Some(StartError::NoGroups { name: xml.name(), what: lack.what }.hint(lack.remedy))
}

/// The functions that a guest has by iommufd.
fn by_iommufd(xml: &DomainXml) -> Vec<Bdf> {
    let passed = Claims::read(xml).passed;
    let functions = passed.iter().filter(|passed| passed.iommufd);
    functions.map(|passed| passed.bdf.value).collect()
}

/// Why this host cannot start a guest with functions by iommufd; `None` if it can, as far as is
/// known. Who has defined it has a libvirt that knows it.
fn without_iommufd(xml: &DomainXml, functions: &[Bdf], topology: &Topology) -> Option<Error> {
    let way = Way { topology, versions: Versions::default(), offered: None };
    let lack = way.lacks(xml.is_by_iommufd(), functions).into_iter().next();
    let Lack { what, remedy, .. } = lack?;
    let name = xml.name();
    let hint = or_back(&remedy, &name, xml.needs_iommufd(topology));
    Some(StartError::NoIommufd { name, what }.hint(hint))
}

/// Says why a guest's start will fail for a network. It is no refusal: the network may come up
/// until then.
pub(crate) fn warn_of_networks_down(xml: &DomainXml, world: &World) -> Result<()> {
    if let Some((error, hint)) = network_down(xml, world)? {
        world.warning(&format!("{error}; {hint}"));
    }
    Ok(())
}

/// Refuses to stop a guest that could not be started again for a network.
pub(crate) fn refuse_networks_down(xml: &DomainXml, world: &World) -> Result<()> {
    network_down(xml, world)?.map_or(Ok(()), |(error, hint)| Err(error.hint(hint)))
}

/// Finds sources of a guest's NICs that are missing or down, with the remedy.
fn network_down(xml: &DomainXml, world: &World) -> Result<Option<(StartError, String)>> {
    let name = xml.name();
    let first = nic_sources::missing(xml, &*world.hypervisor()?)?.into_iter().next();
    let Some((_, missing)) = first else { return Ok(None) };
    let hint = missing.hint(&name);
    let error = match missing {
        NoSource::Network(network) => StartError::NoNetwork { name, network },
        NoSource::Down(network) => StartError::NetworkDown { name, network },
        NoSource::Bridge(_) | NoSource::Device(_) | NoSource::Loopback(_) => {
            StartError::NoLink { name, why: missing.to_string() }
        }
    };
    Ok(Some((error, hint)))
}

/// The names of the networks that a guest's NICs are on.
pub(crate) fn networks_of(xml: &DomainXml) -> BTreeSet<String> {
    let devices = xml.root().children("devices");
    let nics = devices.flat_map(|devices| devices.children("interface"));
    nics.filter_map(|nic| Some(nic.child("source")?.attr("network")?.into_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuvm_core::topology::Iommufd;
    use gpuvm_core::topology::file::from_json;

    #[test]
    fn a_guest_by_iommufd_needs_a_kernel_with_it() {
        let host = from_json(include_str!("../../topologies/dgx-2.json")).unwrap();
        let devices = "<devices><hostdev mode='subsystem' type='pci'><source><address bus='0x34' \
                       slot='0' function='0'/></source></hostdev></devices>";
        let guest = |element: &str| {
            DomainXml::parse(&format!("<domain><name>a</name>{element}{devices}</domain>")).unwrap()
        };
        let by_iommufd_of_domain = guest("<iommufd enabled='yes'/>");
        let functions = by_iommufd(&by_iommufd_of_domain);
        assert_eq!(functions.len(), 1);
        assert_eq!(by_iommufd(&guest("")), []);
        for (node, is_refused) in [(Some(false), true), (Some(true), false), (None, false)] {
            let mut parts = host.parts().clone();
            parts.machine.iommufd =
                node.map(|node| Iommufd { node, unsafe_interrupts: None, groups: None });
            let host = Topology::new(parts).unwrap();
            let refused = without_iommufd(&by_iommufd_of_domain, &functions, &host);
            assert_eq!(refused.is_some(), is_refused, "{node:?}");
            if let Some(refusal) = refused.as_ref().and_then(|error| error.refusal()) {
                assert_eq!(refusal.code, "start-no-iommufd");
                assert!(refusal.message.contains("CONFIG_IOMMUFD"), "{}", refusal.message);
                assert!(refusal.hint.contains("`gpuvm tune a --iommufd off`"), "{}", refusal.hint);
            }
        }
        let nested =
            "<devices><iommu model='smmuv3'><driver pciBus='0' accel='on'/></iommu></devices>";
        let nested = guest(&format!("<iommufd enabled='yes'/>{nested}"));
        let mut parts = host.parts().clone();
        parts.machine.iommufd =
            Some(Iommufd { node: false, unsafe_interrupts: None, groups: None });
        let refused = without_iommufd(&nested, &functions, &Topology::new(parts).unwrap()).unwrap();
        let hint = &refused.refusal().unwrap().hint;
        assert!(hint.contains("modprobe iommufd") && !hint.contains("--iommufd off"), "{hint}");
    }

    #[test]
    fn a_guest_with_functions_needs_a_kernel_with_vfio_groups() {
        let host = from_json(include_str!("../../topologies/dgx-2.json")).unwrap();
        let guest = DomainXml::parse("<domain><name>a</name></domain>").unwrap();
        for (groups, is_refused) in [(Some(false), true), (Some(true), false), (None, false)] {
            let mut parts = host.parts().clone();
            parts.machine.iommufd = Some(Iommufd { node: true, unsafe_interrupts: None, groups });
            let topology = &Topology::new(parts).unwrap();
            let way = Way { topology, versions: Versions::default(), offered: None };
            let refused = without_groups(&guest, &way);
            assert_eq!(refused.is_some(), is_refused, "{groups:?}");
            if let Some(refusal) = refused.as_ref().and_then(|error| error.refusal()) {
                assert_eq!(refusal.code, "start-no-groups");
                assert!(refusal.message.contains("CONFIG_VFIO_GROUP"), "{}", refusal.message);
                assert!(!refusal.hint.contains("--iommufd off"), "{}", refusal.hint);
            }
        }
    }
}
