//! `host p2p restore`: sets the ports of running guests again that have lost their bit, by a reset
//! or because libvirt started the guest by itself, and restores those of guests that are off or
//! gone. A port that others have changed since is left, and named.

use super::claim::{Owners, cleared, ended, ports, processes};
use crate::apply::Step;
use crate::apply::boot::steps as boot_steps;
use crate::apply::p2p::{P2pStep, PortRecord, PortState, boot, records};
use crate::change::Change;
use crate::domain::DomainXml;
use crate::error::{Coded, Result};
use crate::fsroot::FsRoot;
use crate::hypervisor::XmlOf;
use crate::request::P2pWish;
use crate::topology::{DirectPort, Topology};
use crate::world::World;
use gpuvm_core::bdf::Bdf;
use gpuvm_core::p2p::bits;
use gpuvm_core::versions::Version;
use std::collections::{BTreeMap, BTreeSet};

/// The kernels that read `pci=config_acs=` for one device, and for several (stable releases of
/// April 2025).
const ARGUMENT_SINCE: Version = Version(6, 11, 0);
const SEVERAL_SINCE: Version = Version(6, 15, 0);
const SEVERAL_IN: [Version; 3] = [Version(6, 12, 23), Version(6, 13, 11), Version(6, 14, 2)];

/// The reason ports are not restored.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "p2p-")]
#[allow(missing_docs)] // The messages explain the fields.
pub enum RestoreError {
    /// Others have changed a port, or one must not be set any more; the others were restored.
    #[error("not restored:{lines}")]
    NotRestored { lines: String },
}

impl Coded for RestoreError {}

/// A port or a guest that is left as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Its name, and the reason.
    pub why: String,
    /// The remedy.
    pub advice: String,
}

/// The result of a restore, beside its steps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restored {
    /// Those that are left as they are.
    pub left: Vec<Left>,
    /// The argument by which the kernel itself would set the ports of running guests at boot;
    /// `None` if there are none, or it does not know the argument.
    pub argument: Option<String>,
}

impl Restored {
    /// Returns the error of the first that is left, if any is.
    pub fn refuse_left(&self) -> Result<()> {
        let Some(first) = self.left.first() else { return Ok(()) };
        let lines = self.left.iter().map(|left| format!("\n  {}", left.why)).collect();
        Err(RestoreError::NotRestored { lines }.hint(first.advice.clone()))
    }
}

/// Plans to restore the ports of all guests of this machine.
pub fn restore(world: &World) -> Result<Change<Restored>> {
    let (mut steps, mut found) = (Vec::new(), Restored::default());
    if !world.is_recorded() && world.has_guests_here()? {
        (steps, found) = planned(world, &records(&FsRoot::live()?), &processes()?)?;
    }
    Ok(Change::new("host p2p restore", "ports", steps, found))
}

fn planned(
    world: &World,
    records: &[PortRecord],
    processes: &BTreeSet<String>,
) -> Result<(Vec<Step>, Restored)> {
    let hypervisor = &*world.hypervisor()?;
    let rows = hypervisor.domains()?.into_iter().filter(|row| row.state.is_active());
    let active: BTreeMap<String, String> = rows.map(|row| (row.uuid, row.name)).collect();
    let had: Owners = records.iter().map(|record| (record.port, record.guests.clone())).collect();
    let (topology, held) = (world.topology()?, world.occupancy(false)?);
    let mut work = Work { topology: &topology, records, steps: Vec::new(), left: Vec::new() };
    let (mut clear, mut all) = (Vec::new(), BTreeSet::new());
    for (uuid, name) in &active {
        // It may have ended meanwhile.
        let Ok(text) = hypervisor.xml(name, XmlOf::Live) else { continue };
        let xml = DomainXml::parse(&text)?;
        let wants = xml.record().ok().flatten().is_some_and(|r| r.request.p2p == P2pWish::Auto);
        if !wants && !had.values().any(|guests| guests.contains(uuid)) {
            continue;
        }
        match ports(&xml, &topology, &held) {
            Ok(found) => {
                let needed: BTreeSet<Bdf> = found.ports.iter().map(|port| port.at).collect();
                found.ports.iter().for_each(|port| work.port(*port, uuid, name));
                clear.extend(cleared(uuid, &had, |port| !needed.contains(&port)));
                all.extend(needed);
            }
            Err(why) => {
                let why_not = format!("ports of domain `{name}`: {why}");
                work.left.push(Left { why: why_not, advice: why.advice() });
            }
        }
    }
    // They come last, so that a port that a running guest takes over is not cleared in between.
    let ended = ended(&active.into_keys().collect(), processes, &had);
    clear.extend(ended.iter().flat_map(|guest| cleared(guest, &had, |_| true)));
    let Work { mut steps, left, .. } = work;
    steps.extend(clear);
    Ok((steps, Restored { left, argument: argument(&topology, &all) }))
}

/// A restore as it is planned.
struct Work<'a> {
    topology: &'a Topology,
    records: &'a [PortRecord],
    steps: Vec<Step>,
    left: Vec<Left>,
}

impl Work<'_> {
    /// Plans a port that a running guest needs.
    fn port(&mut self, port: DirectPort, uuid: &str, name: &str) {
        let DirectPort { at, ctl } = port;
        let record = self.records.iter().find(|record| record.port == at);
        let set = P2pStep::SetDirect { port: at, guest: uuid.to_owned(), was: ctl };
        let Some(record) = record else {
            // A bit that is set without a record is not gpuvm's, and does.
            if ctl & bits::DT == 0 {
                self.steps.push(set.into());
            }
            return;
        };
        let ids = self.topology.device(at).map(|device| (device.vendor, device.device));
        let is_owner = record.guests.contains(uuid);
        let why = match record.state(ids.unwrap_or_default(), ctl) {
            PortState::Set if is_owner => return,
            PortState::Set | PortState::Lost => {
                self.steps.push(set.into());
                return;
            }
            PortState::Changed => format!(
                "its ACS control is {ctl:#x}, not {:#x} as set by gpuvm or {:#x} as before: others \
                 have changed it",
                record.set, record.was
            ),
            PortState::Replaced => "it is another device than the one that gpuvm set".to_owned(),
        };
        let why = format!("port {at} of domain `{name}`: {why}");
        let advice = format!(
            "`sudo lspci -vvs {at}` shows ACSCtl; `gpuvm restart {}` sets the port again, \
             based on its present value",
            crate::shell::word(name)
        );
        if !self.left.iter().any(|left| left.why == why) {
            self.left.push(Left { why, advice });
        }
    }
}

/// The kernel's argument that sets these ports at boot. `x` keeps the firmware's value, so bits
/// that isolate are named.
fn argument(topology: &Topology, ports: &BTreeSet<Bdf>) -> Option<String> {
    let kernel = Version::read(topology.machine().kernel_release.as_deref()?)?;
    let is_fixed = |fixed: &Version| (fixed.0, fixed.1) == (kernel.0, kernel.1) && kernel >= *fixed;
    let is_known = match ports.len() {
        0 => false,
        1 => kernel >= ARGUMENT_SINCE,
        _ => kernel >= SEVERAL_SINCE || SEVERAL_IN.iter().any(is_fixed),
    };
    let each = ports.iter().map(|port| format!("1x111x1@{}", topology.kernel_path(*port)));
    is_known.then(|| format!("pci=config_acs={}", each.collect::<Vec<_>>().join(";")))
}

/// The steps that have ports restored at every boot, or end that (`None`). `program`: the program
/// that the unit runs.
pub fn at_boot(program: Option<&str>) -> Result<Vec<Step>> {
    Ok(boot_steps(boot::files(program))?)
}

#[cfg(test)]
mod tests;
