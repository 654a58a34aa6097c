//! `nic vfs`: sets the number of virtual functions of a card, now and at boot, with the reasons if
//! it cannot.

pub mod early;

use crate::apply::boot::steps as boot_steps;
use crate::apply::nic::NicStep;
use crate::apply::nic::boot::{self, AtBoot};
use crate::apply::{HostStep, Step};
use crate::bdf::Bdf;
use crate::cards::{functions_of, link_up};
use crate::change::Change;
use crate::error::{Coded, Result, usage};
use crate::fsroot::FsRoot;
use crate::function_users::{self, Use};
use crate::network::Card;
use crate::reporter::Question;
use crate::topology::{DeviceIdentity, PciDevice, Sriov, Topology, is_vfio};
use crate::world::World;
use gpuvm_core::versions::Version;

/// The reason the number of virtual functions of a network card is not changed.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "card-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum CardError {
    /// A card of the list for the boot did not get its virtual functions.
    #[error("{lines}")]
    NotAtBoot { lines: String },
    /// The host has no such network card.
    #[error("this host has no network card {called}")]
    Absent {
        /// The card, as it was given.
        called: String,
    },
    /// The named device is a virtual function.
    #[error("{called} is a virtual function itself, of {pf}")]
    IsFunction {
        /// The device, as it was given.
        called: String,
        pf: String,
    },
    /// The card has no SR-IOV.
    #[error("{bdf} has no SR-IOV: its sriov_totalvfs is absent or 0")]
    NoSriov { bdf: String },
    /// The card supports fewer virtual functions.
    #[error("{pf} can have {total} virtual functions, not {count}")]
    TooMany { pf: String, total: String, count: String },
    /// The card is not bound to a driver of the host.
    #[error("{pf} needs a driver of the host to have virtual functions, and {has}")]
    NoDriver { pf: String, has: String },
    /// The virtual functions of the card are in use.
    #[error("the virtual functions of {pf} are in use{lines}")]
    InUse { pf: String, lines: String },
    /// Another device is at the address of the card.
    #[error("{pf} is now {seen}, not {id}: no virtual functions are made")]
    OtherDevice { pf: String, seen: String, id: String },
    /// The card no longer has SR-IOV.
    #[error("{pf} no longer has SR-IOV")]
    SriovLost { pf: String },
    /// The card has no network device yet.
    #[error("{pf} has no network device yet: no virtual functions are made")]
    NoNetdev { pf: String },
}

impl Coded for CardError {}

/// The wanted virtual functions of a card.
#[derive(Debug, Clone)]
pub struct Functions {
    /// The card.
    pub card: Card,
    /// Their number.
    pub count: u32,
    /// Whether drivers of the host bind them.
    pub host_drivers: bool,
    /// The program that creates them at boot; `None` if only now.
    pub at_boot: Option<String>,
}

const LIST_HINT: &str = "`gpuvm nic list` shows the cards and their virtual functions";

/// Finds a card with SR-IOV, with the maximum and the current number of its virtual functions.
fn card<'t>(name: &Card, topology: &'t Topology) -> Result<(&'t PciDevice, u32, u32)> {
    let is_named = |device: &&PciDevice, name: &String| {
        device.net.as_ref().is_some_and(|net| net.netdevs.contains(name))
    };
    let (found, called) = match name {
        Card::At(bdf) => (topology.device(*bdf), bdf.to_string()),
        Card::Netdev(name) => {
            (topology.devices().iter().find(|device| is_named(device, name)), name.clone())
        }
    };
    let Some(device) = found else {
        return Err(CardError::Absent { called }.hint(LIST_HINT));
    };
    let bdf = device.bdf;
    match device.sriov {
        Some(Sriov::Pf { total, enabled }) => Ok((device, total, enabled)),
        Some(Sriov::Vf { pf }) => {
            Err(CardError::IsFunction { called, pf: pf.to_string() }.hint(LIST_HINT))
        }
        None => Err(CardError::NoSriov { bdf: bdf.to_string() }.hint(
            "some cards have it switched off in their firmware (mlxconfig SRIOV_EN, NUM_OF_VFS) or \
             in the BIOS",
        )),
    }
}

/// Plans to set a card's number of virtual functions. Existing ones are removed first, which needs
/// consent.
pub fn set_functions(world: &World, wanted: &Functions) -> Result<Change<Bdf>> {
    let (pf, steps) = steps(world, wanted)?;
    let gone = |step: &&Step| {
        matches!(step, Step::Host(HostStep::Nic(NicStep::SetCount { was: 1.., .. })))
    };
    let gone: Vec<String> = steps.iter().filter(gone).map(Step::to_string).collect();
    let question = (!gone.is_empty()).then(|| Question::Agree {
        lines: Some(gone),
        question: "take them away?",
        what: format!("taking the virtual functions of {pf} away"),
    });
    Ok(Change { question, ..Change::new("nic vfs", &pf.to_string(), steps, pf) })
}

/// The card, and the steps of the change.
fn steps(world: &World, wanted: &Functions) -> Result<(Bdf, Vec<Step>)> {
    let Functions { card: name, count, host_drivers, at_boot: program } = wanted;
    let (count, host_drivers) = (*count, *host_drivers);
    let topology = world.topology()?;
    let (device, total, enabled) = card(name, &topology)?;
    let pf = device.bdf;
    if count > total {
        let (at, total, count) = (pf.to_string(), total.to_string(), count.to_string());
        let hint = format!("`gpuvm nic vfs {pf} --count {total}`");
        return Err(CardError::TooMany { pf: at, total, count }.hint(hint));
    }
    if host_drivers && count == 0 {
        let hint = "leave --host-drivers out";
        return Err(usage("--host-drivers speaks of virtual functions, and --count is 0", hint));
    }
    if program.is_some() {
        world.refuse_recorded("nic vfs --at-boot")?;
        world.refuse_elsewhere("nic vfs --at-boot")?;
    }
    let root = world.root()?;
    let mut steps = Vec::new();
    if count != enabled {
        match device.driver.as_deref() {
            Some(driver) if !is_vfio(driver) => {}
            driver => {
                let has = driver.map_or("no driver has it".into(), |d| format!("{d} has it"));
                return Err(CardError::NoDriver { pf: pf.to_string(), has }
                    .hint(format!("`gpuvm device release {pf}` gives it back")));
            }
        }
        refuse_used(pf, root.as_ref(), &topology, world)?;
        steps.extend(autoprobe(pf, count == 0 || host_drivers, root.as_ref(), &topology)?);
        steps.push(NicStep::SetCount { pf, count, was: enabled }.into());
        if count > 0 {
            steps.extend(link_up(device, root.as_ref())?);
        }
    }
    // The files of this machine do not apply to a recorded one.
    if let Some(root) = root.as_ref().filter(|root| root.is_live()) {
        let mut at_boot = boot::functions(root)?;
        let before = at_boot.get(&pf).map(|at_boot| at_boot.count);
        if let Some(program) = program {
            let id = identity(root, device)?;
            match count {
                0 => drop(at_boot.remove(&pf)),
                _ => drop(at_boot.insert(pf, AtBoot { id, count, host_drivers })),
            }
            steps.extend(boot_steps(boot::files(&at_boot, program))?);
        } else if let Some(before) = before.filter(|before| *before != count) {
            let warning = format!(
                "{pf} gets {before} virtual functions at the next boot; --at-boot changes that, too"
            );
            world.warning(&warning);
        }
    }
    Ok((pf, steps))
}

/// Refuses to remove virtual functions in use; warns of stopped guests that will miss them.
fn refuse_used(pf: Bdf, root: Option<&FsRoot>, topology: &Topology, world: &World) -> Result<()> {
    let functions: Vec<Bdf> = functions_of(topology, pf).iter().map(|vf| vf.bdf).collect();
    if functions.is_empty() {
        return Ok(());
    }
    let held = world.occupancy_or_warn()?;
    let mut uses = function_users::known(topology, &held, &functions);
    if let Some(root) = root {
        uses.extend(function_users::read(root, topology, &functions)?.uses);
    }
    for domain in held.domains.iter().filter(|domain| !domain.active) {
        for bdf in domain.devices.iter().filter(|bdf| functions.contains(bdf)) {
            let name = &domain.domain;
            let warning =
                format!("domain `{name}`, which is off, has {bdf} and does not start without it");
            world.warning(&warning);
        }
    }
    if uses.is_empty() {
        return Ok(());
    }
    let line = |Use { bdf, by, .. }: &Use| format!("\n  {bdf} is used by {by}");
    let lines: String = uses.iter().map(line).collect();
    Err(CardError::InUse { pf: pf.to_string(), lines }
        .hint("changing their number removes all of them first; stop what uses them"))
}

/// The first kernel that binds a function to the driver in `driver_override` although autoprobe is
/// off; before it, vfio-pci could not bind it either.
const OVERRIDES: Version = Version(5, 3, 0);

/// The step that keeps drivers of the host off new virtual functions, or allows them.
fn autoprobe(
    pf: Bdf,
    on: bool,
    root: Option<&FsRoot>,
    topology: &Topology,
) -> Result<Option<Step>> {
    let kernel = topology.machine().kernel_release.as_deref().and_then(Version::read);
    if !on && kernel.is_none_or(|kernel| kernel < OVERRIDES) {
        return Ok(None);
    }
    let path = format!("sys/bus/pci/devices/{pf}/sriov_drivers_autoprobe");
    let now = root.map(|root| root.read(&path)).transpose()?.flatten();
    // A kernel before 4.12 has no such setting, and a recorded host may lack it.
    let was = now.map(|text| text.trim() != "0");
    let differs = was.filter(|was| *was != on);
    Ok(differs.map(|was| NicStep::SetAutoprobe { pf, on, was }.into()))
}

/// The identity of a card for the boot.
pub(crate) fn identity(root: &FsRoot, card: &PciDevice) -> Result<DeviceIdentity> {
    let now = crate::discover::identity::read(root, card.bdf)?;
    Ok(now.map_or_else(|| DeviceIdentity::of(card), |present| present.identity))
}

#[cfg(test)]
mod tests;
