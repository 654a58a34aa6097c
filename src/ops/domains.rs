//! Existing domains, whoever made them: a list of all, or one with all details.

use crate::address::best;
use crate::autostart::{clashing, lacking};
use crate::discover::process;
use crate::domain::guest::VirtType;
use crate::domain::view::{NicView, View, gpu_indexes, remembered};
use crate::domain::{DomainXml, DomainXmlError};
use crate::error::{Result, usage};
use crate::fsroot::FsRoot;
use crate::history::guest::accepts_shared_fabric;
use crate::hypervisor::network::NetworkLease;
use crate::hypervisor::{Definition, DomainState, DomainSummary, Hypervisor, XmlOf, definitions};
use crate::lookup::{find, refuse_unread};
use crate::network::{AddressSource, GuestAddress};
use crate::request::Request;
use crate::taken::{domains_of_files, is_active};
use crate::topology::Topology;
use crate::usage::{Usage, use_of};
use crate::verify::{Verify, verify};
use crate::world::World;
use gpuvm_core::finding::Severity;
use gpuvm_core::guest::{self, Opt};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// A domain of a list.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListedDomain {
    /// Name, state and UUID.
    #[serde(flatten)]
    pub summary: DomainSummary,
    /// The resources that it holds; `None` if its definition cannot be understood.
    #[serde(flatten)]
    pub view: Option<View>,
    /// Its address from DHCP leases; with --long also from its agent and ARP.
    pub address: Option<IpAddr>,
    /// Uptime in seconds; `None` if not running, not on this machine, or not requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uptime_s: Option<u64>,
    /// Whether it starts with the host; `None` if its driver does not report it, or more was not
    /// requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autostart: Option<bool>,
    /// Result of `verify`; `None` if not requested, or unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify: Option<Verdict>,
}

/// Number of `verify` findings on a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Verdict {
    /// Errors.
    pub errors: usize,
    /// Warnings.
    pub warnings: usize,
}

/// A domain with all its details.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShownDomain {
    /// Name, state and UUID.
    #[serde(flatten)]
    pub summary: DomainSummary,
    /// Its state and resources.
    #[serde(flatten)]
    pub view: View,
    /// Whether it starts with the host; `None` if its driver does not say.
    pub autostart: Option<bool>,
    /// Parts missing at boot for its start with the host, a line each: `gpuvm autostart NAME on`
    /// makes them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lacks_at_boot: Vec<String>,
    /// Resources of it held by others that prevent its start with the host, a line each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clashes_at_boot: Vec<String>,
    /// Its addresses, while it runs.
    pub addresses: Vec<GuestAddress>,
    /// Its present usage.
    pub usage: Usage,
    /// Options of `create` for such a guest; none: gpuvm did not make it.
    #[serde(skip)]
    pub options: Option<Vec<(Opt, Vec<String>)>>,
}

/// A domain with its definition, if that can be parsed.
type Defined = (DomainSummary, Result<DomainXml, DomainXmlError>);

/// Lists the domains of the hypervisor, or those in files of a recorded host. Each definition is
/// read once. `long`: with what takes longer, asked of each guest.
pub fn list(world: &World, files: &[PathBuf], long: bool) -> Result<Vec<ListedDomain>> {
    let files = domains_of_files(world, files)?;
    if files.is_empty() && world.is_recorded() {
        return Err(usage(
            "`list` asks libvirt, which a recorded host does not have, and no --domain-xml is \
             given",
            "--domain-xml PATH lists what `virsh dumpxml` printed there; `gpuvm list` without \
             --host asks the libvirt of this machine",
        ));
    }
    if !files.is_empty() {
        return Ok(listed(files.into_iter().map(of_file).collect(), world));
    }
    let mut rows = listed(known(world)?, world);
    let hypervisor = world.hypervisor()?;
    if long {
        if let Ok(all) = hypervisor.autostarted() {
            let starts = |row: &ListedDomain| all.contains(&row.summary.name);
            rows.iter_mut().for_each(|row| row.autostart = Some(starts(row)));
        }
        asked(&mut rows, &*hypervisor);
        judged(&mut rows, world);
    } else {
        leased(&mut rows, &*hypervisor)
    }
    Ok(rows)
}

/// Adds the addresses that networks have leased: one question for each network that guests which
/// run are on.
fn leased(rows: &mut [ListedDomain], hypervisor: &dyn Hypervisor) {
    let mut leases: BTreeMap<String, Vec<NetworkLease>> = BTreeMap::new();
    for row in rows.iter_mut().filter(|row| row.summary.state.has_guest()) {
        let Some(view) = &row.view else { continue };
        let mut known = Vec::new();
        for NicView { mac, source } in &view.nics {
            let given = leases.entry(source.clone()).or_insert_with(|| {
                // A bridge, or an interface of the host, leases nothing.
                hypervisor.networks().network_leases(source).unwrap_or_default()
            });
            let own = given.iter().filter(|lease| lease.mac == *mac);
            let latest = own.max_by_key(|lease| (lease.ip.is_ipv4(), lease.expires_s));
            known.extend(latest.map(|lease| GuestAddress {
                mac: mac.clone(),
                ip: lease.ip,
                source: AddressSource::Lease,
            }));
        }
        row.address = best(&macs(view), known).map(|address| address.ip);
    }
}

/// Adds the addresses that any source knows, and for how long guests have run.
fn asked(rows: &mut [ListedDomain], hypervisor: &dyn Hypervisor) {
    let root = hypervisor.has_guests_here().then(FsRoot::live).and_then(std::result::Result::ok);
    let processes = root.as_ref().and_then(|root| process::all(root).ok()).unwrap_or_default();
    for row in rows.iter_mut().filter(|row| row.summary.state.is_active()) {
        let pid = processes.get(&row.summary.uuid.to_ascii_lowercase());
        let age = root.as_ref().zip(pid).and_then(|(root, &pid)| process::age(root, pid));
        row.uptime_s = age.map(|age| age.as_secs());
        let Some(view) = row.view.as_ref().filter(|_| row.summary.state.has_guest()) else {
            continue;
        };
        let macs = macs(view);
        let known = hypervisor.addresses(&row.summary.name, &macs).unwrap_or_default();
        row.address = best(&macs, known).map(|address| address.ip);
    }
}

/// Adds the findings of `verify`, without asking agents. Where they are unknown the list is shown
/// without them.
fn judged(rows: &mut [ListedDomain], world: &World) {
    let wanted = Verify { names: Vec::new(), agent_wait: Duration::ZERO, sample: Duration::ZERO };
    let all = match verify(world, &wanted) {
        Ok(compared) => compared.all,
        Err(error) => return world.warning(&format!("nothing is verified: {}", error.whole())),
    };
    for row in rows {
        let found = all.iter().find(|found| found.domain == row.summary.name);
        row.verify = found.map(|found| {
            let of = |severity| found.findings.iter().filter(|f| f.severity == severity).count();
            Verdict { errors: of(Severity::Error), warnings: of(Severity::Warning) }
        });
    }
}

/// MAC addresses of a guest's NICs.
fn macs(view: &View) -> Vec<String> {
    view.nics.iter().map(|nic| nic.mac.clone()).collect()
}

/// Shows one domain.
pub fn show(world: &World, name: &str) -> Result<ShownDomain> {
    world.refuse_without_guests("show")?;
    let hypervisor = world.hypervisor()?;
    let summary = find(&*hypervisor, name)?;
    let xml = DomainXml::parse(&hypervisor.xml(name, XmlOf::Live)?)?;
    let topology = world.topology().ok();
    let mut view = View::of(&xml, topology.as_ref())?;
    let mut next = None;
    if summary.state.is_active() && summary.persistent {
        // Objects made for it may have been removed since it was started.
        let inactive = DomainXml::parse(&hypervisor.xml(name, XmlOf::Inactive)?)?;
        view.remembered = remembered(&inactive).filter(|_| inactive.is_ours());
        next = Some(inactive);
    }
    if let Err(error) = refuse_unread(next.as_ref().unwrap_or(&xml)) {
        world.warning(&error.whole());
    }
    let recorded = view.remembered.as_ref().and_then(|remembered| remembered.request.as_ref());
    let options = recorded.map(|recorded| {
        let accepts = accepts_shared_fabric(world.state(), &summary.uuid);
        options_of(next.as_ref().unwrap_or(&xml), topology.as_ref(), recorded, accepts)
    });
    let addresses = if summary.state.has_guest() {
        hypervisor.addresses(name, &macs(&view))?
    } else {
        Vec::new()
    };
    let autostart = hypervisor.autostart(name).ok();
    // Where the host cannot be read it is shown all the same.
    let lacks_at_boot = match autostart {
        Some(true) if summary.persistent => lacking(world, &xml, None).unwrap_or_default(),
        _ => Vec::new(),
    };
    let clashes_at_boot = match autostart {
        Some(true) if summary.persistent => clashing(&*hypervisor, &xml, world).unwrap_or_default(),
        _ => Vec::new(),
    };
    let usage = use_of(&*hypervisor, &summary, &view);
    Ok(ShownDomain {
        summary,
        view,
        autostart,
        lacks_at_boot,
        clashes_at_boot,
        addresses,
        usage,
        options,
    })
}

/// Returns the options of `create` for a guest as it is, without those of its disks, networks and
/// first boot; `accepts`: others may reach its NVLinks.
fn options_of(
    xml: &DomainXml,
    topology: Option<&Topology>,
    recorded: &Request,
    accepts: bool,
) -> Vec<(Opt, Vec<String>)> {
    let now = topology.map(|topology| guest::now(xml, topology, recorded).requested());
    let mut options = guest::options(now.as_ref().unwrap_or(recorded));
    if xml.root().attr("type").as_deref() == Some(VirtType::Qemu.as_str()) {
        options.push((Opt::VirtType, vec![VirtType::Qemu.as_str().to_owned()]));
    }
    if accepts {
        options.push((Opt::AcceptSharedFabric, Vec::new()));
    }
    options
}

/// Reads the definition of a domain as libvirt has it: that of its next start, or of a domain that
/// is gone when it ends, the one that it runs with.
pub fn definition(world: &World, name: &str) -> Result<String> {
    world.refuse_without_guests("show")?;
    let hypervisor = world.hypervisor()?;
    let persistent = find(&*hypervisor, name)?.persistent;
    let of = if persistent { XmlOf::Inactive } else { XmlOf::Live };
    Ok(hypervisor.xml(name, of)?)
}

/// Returns the hypervisor's domains, each with its definition if that can be parsed.
fn known(world: &World) -> Result<Vec<Defined>> {
    let hypervisor = world.hypervisor()?;
    let found = definitions(&*hypervisor, |_| &[XmlOf::Live])?.into_iter();
    Ok(found.map(|Definition { summary, xml, .. }| (summary, xml)).collect())
}

/// A domain of a recorded host, as in its file.
fn of_file((_, xml): (PathBuf, DomainXml)) -> Defined {
    let state = if is_active(&xml) { DomainState::Running } else { DomainState::ShutOff };
    let uuid = xml.uuid().unwrap_or_default();
    (DomainSummary { name: xml.name(), uuid, state, persistent: true }, Ok(xml))
}

fn listed(domains: Vec<Defined>, world: &World) -> Vec<ListedDomain> {
    let mut rows = Vec::with_capacity(domains.len());
    for (summary, xml) in domains {
        let view = xml.and_then(|xml| View::of(&xml, None));
        if let Err(error) = &view {
            world.warning(&format!("domain `{}`: {error}", summary.name));
        }
        let view = view.ok();
        rows.push(ListedDomain {
            summary,
            view,
            address: None,
            uptime_s: None,
            autostart: None,
            verify: None,
        });
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
