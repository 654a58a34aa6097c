//! `vgpu vfs`: enables and disables the virtual functions of a GPU that vGPUs are, now and at boot,
//! with the reasons if it cannot.

use crate::apply::boot::steps as boot_steps;
use crate::apply::vgpu::{SRIOV_MANAGE, VgpuStep, boot};
use crate::apply::{Quiet, Step, apply};
use crate::bdf::Bdf;
use crate::cards::functions_of;
use crate::change::Change;
use crate::error::{Class, Coded, Result, classed};
use crate::fsroot::FsRoot;
use crate::function_users::{self, Use};
use crate::hypervisor::none::NoHypervisor;
use crate::shell::word;
use crate::topology::{DeviceKind, PciDevice, Sriov, Topology, Vgpu, VgpuInterface, is_vfio};
use crate::world::World;
use gpuvm_core::topology::sharing::NVIDIA;
use gpuvm_core::topology::vendor::VENDOR_NVIDIA;

/// The reason the virtual functions of a GPU are not changed.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "vgpu-card-")]
#[allow(missing_docs)] // The messages explain the fields.
pub enum VgpuCardError {
    /// The device is no GPU of the host.
    #[error("{bdf} is not a GPU of this host")]
    NoGpu { bdf: Bdf },
    /// The named device is a virtual function.
    #[error("{bdf} is a virtual function itself, of {pf}")]
    IsFunction { bdf: Bdf, pf: Bdf },
    /// The card has no SR-IOV.
    #[error("{bdf} has no SR-IOV: its sriov_totalvfs is absent or 0")]
    NoSriov { bdf: Bdf },
    /// The card is not bound to NVIDIA's driver.
    #[error("{bdf} needs NVIDIA's driver to have virtual functions, and {has}")]
    NoDriver { bdf: Bdf, has: String },
    /// The vGPU host driver is not installed.
    #[error("/{SRIOV_MANAGE} is not there: NVIDIA's vGPU host driver is not installed")]
    NoScript,
    /// A guest has the card as a whole.
    #[error("{bdf} {holds}, as a whole")]
    Held { bdf: Bdf, holds: String },
    /// The host shows its console on the card.
    #[error("{bdf} is the host's boot display: sriov-manage takes its driver away for a moment")]
    Console { bdf: Bdf },
    /// The virtual functions of the card are in use.
    #[error("the virtual functions of {bdf} are in use{lines}")]
    InUse { bdf: Bdf, lines: String },
    /// A card of the list for the boot did not get its virtual functions.
    #[error("{lines}")]
    NotAtBoot { lines: String },
}

impl Coded for VgpuCardError {}

/// The wanted virtual functions of a GPU.
#[derive(Debug, Clone)]
pub struct CardFunctions {
    /// The card.
    pub pf: Bdf,
    /// Whether it has them.
    pub on: bool,
    /// The program that enables them at boot; `None` if only now.
    pub at_boot: Option<String>,
}

const LIST_HINT: &str = "`gpuvm vgpu list` shows the cards and their virtual functions";

/// Plans to enable or disable the virtual functions of a GPU.
pub fn set_functions(world: &World, wanted: &CardFunctions) -> Result<Change<Bdf>> {
    let CardFunctions { pf, on, at_boot: program } = wanted;
    let topology = world.topology()?;
    let (card, enabled) = card(*pf, &topology)?;
    if program.is_some() {
        world.refuse_recorded("vgpu vfs --at-boot")?;
        world.refuse_elsewhere("vgpu vfs --at-boot")?;
    }
    let root = world.root()?;
    if *on {
        refuse_held(*pf, world)?;
    }
    let mut steps = Vec::new();
    if *on != enabled {
        refuse(card, *on, root.as_ref(), &topology, world)?;
        steps.push(VgpuStep::SetFunctions { pf: *pf, on: *on, was: enabled }.into());
    }
    // The files of this machine do not apply to a recorded one.
    if let Some(root) = root.as_ref().filter(|root| root.is_live()) {
        let mut at_boot = boot::cards(root)?;
        let is_listed = at_boot.contains(pf);
        if let Some(program) = program {
            if *on {
                at_boot.insert(*pf)
            } else {
                at_boot.remove(pf)
            };
            steps.extend(boot_steps(boot::files(&at_boot, program))?);
        } else if is_listed && !on {
            world.warning(&format!(
                "{pf} gets its virtual functions at the next boot; --at-boot changes that, too"
            ));
        }
    }
    Ok(Change::new("vgpu vfs", &pf.to_string(), steps, *pf))
}

/// Finds a GPU with SR-IOV, and whether it has virtual functions.
fn card(bdf: Bdf, topology: &Topology) -> Result<(&PciDevice, bool)> {
    let card = topology.device(bdf).filter(|device| device.kind() == DeviceKind::Gpu);
    let Some(card) = card else { return Err(VgpuCardError::NoGpu { bdf }.hint(LIST_HINT)) };
    refuse_foreign(card)?;
    match card.sriov {
        Some(Sriov::Pf { enabled, .. }) => Ok((card, enabled > 0)),
        Some(Sriov::Vf { pf }) => {
            let hint = format!("`gpuvm vgpu vfs {pf} --on`");
            Err(VgpuCardError::IsFunction { bdf, pf }.hint(hint))
        }
        None => Err(VgpuCardError::NoSriov { bdf }.hint(
            "GPUs before A100 have mediated devices instead; SR-IOV may be off in the firmware's setup",
        )),
    }
}

/// Refuses a card of another vendor, whose driver enables virtual functions in its own way.
fn refuse_foreign(card: &PciDevice) -> Result<()> {
    if card.vendor == VENDOR_NVIDIA {
        return Ok(());
    }
    let bdf = card.bdf;
    let hint = match card.driver.as_deref() {
        Some("gim") => "AMD's driver gim enables them when it is loaded".to_owned(),
        Some("xe" | "i915") => {
            format!("`echo N >/sys/bus/pci/devices/{bdf}/sriov_numvfs`, as root, enables N of them")
        }
        _ => "the documentation of the card's driver says how it enables them".to_owned(),
    };
    let message = format!(
        "{bdf} is not a GPU by NVIDIA: gpuvm enables and disables virtual functions of these only"
    );
    Err(classed(Class::Refused, message, hint))
}

/// Refuses a card whose functions cannot be changed now.
fn refuse(
    card: &PciDevice,
    on: bool,
    root: Option<&FsRoot>,
    topology: &Topology,
    world: &World,
) -> Result<()> {
    let bdf = card.bdf;
    refuse_held(bdf, world)?;
    match card.driver.as_deref() {
        Some(NVIDIA) => {}
        driver => {
            let has = driver.map_or("no driver has it".into(), |name| format!("{name} has it"));
            let hint = format!("`gpuvm device release {bdf}` gives it back");
            return Err(VgpuCardError::NoDriver { bdf, has }.hint(hint));
        }
    }
    if card.boot_vga {
        let hint = "make another display the primary one in the firmware's setup";
        return Err(VgpuCardError::Console { bdf }.hint(hint));
    }
    if !on {
        refuse_used(bdf, root, topology, world)?;
    }
    if root.is_some_and(|root| root.is_live() && !root.exists(SRIOV_MANAGE)) {
        let hint = "install the package nvidia-vgpu of NVIDIA's licensed vGPU software, and reboot";
        return Err(VgpuCardError::NoScript.hint(hint));
    }
    Ok(())
}

/// Refuses a card that a domain has as a whole, also one that is off: it would not start beside
/// virtual functions.
fn refuse_held(bdf: Bdf, world: &World) -> Result<()> {
    let held = world.occupancy_or_warn()?;
    let Some(held) = held.domains.iter().find(|held| held.devices.contains(&bdf)) else {
        return Ok(());
    };
    let name = word(&held.domain);
    let hint = format!("`gpuvm delete {name}`, or `gpuvm set {name} --gpus 0`");
    Err(VgpuCardError::Held { bdf, holds: held.holds(bdf) }.hint(hint))
}

/// Refuses to remove virtual functions that have a type or a holder.
fn refuse_used(pf: Bdf, root: Option<&FsRoot>, topology: &Topology, world: &World) -> Result<()> {
    let functions: Vec<Bdf> = functions_of(topology, pf).iter().map(|vf| vf.bdf).collect();
    let held = world.occupancy_or_warn()?;
    let mut lines = String::new();
    for vf in topology.vfs_of(pf) {
        let mut domains: Vec<&str> = Vec::new();
        for held in held.domains.iter().filter(|held| held.devices.contains(&vf.bdf)) {
            if !domains.contains(&held.domain.as_str()) {
                domains.push(&held.domain);
            }
        }
        match (vf.vgpu_type(), &domains[..]) {
            (None, []) if has_mdevs(vf) => {
                lines += &format!("\n  {} has mediated devices", vf.bdf);
            }
            (None, []) => {}
            (Some(number), []) => {
                lines += &format!("\n  {} has vGPU type {number}, and an unknown holder", vf.bdf);
            }
            (_, domains) => {
                lines += &format!("\n  {} is held by domain `{}`", vf.bdf, domains.join("`, `"));
            }
        }
    }
    if lines.is_empty()
        && let Some(root) = root
    {
        let uses = function_users::read(root, topology, &functions)?.uses;
        let line = |Use { bdf, by, .. }: &Use| format!("\n  {bdf} is used by {by}");
        lines = uses.iter().map(line).collect();
    }
    if lines.is_empty() {
        return Ok(());
    }
    let hint = "`gpuvm vgpu list` shows the holders; delete the guests first";
    Err(VgpuCardError::InUse { bdf: pf, lines }.hint(hint))
}

/// Whether mediated devices of a virtual function exist.
fn has_mdevs(vf: &PciDevice) -> bool {
    matches!(&vf.vgpu, Some(Vgpu::Mdev { devices, .. }) if !devices.is_empty())
}

/// Enables the virtual functions of these cards while the machine boots. A card that cannot have
/// them does not prevent the others.
pub fn enable_at_boot(world: &World, cards: &[Bdf]) -> Result<()> {
    let mut failed = Vec::new();
    for &pf in cards {
        match enable(pf) {
            Ok(()) => world.progress(&format!("{pf} has its virtual functions")),
            Err(error) => failed.push(error.whole()),
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(VgpuCardError::NotAtBoot { lines: failed.join("\n  ") }
        .hint("`gpuvm vgpu vfs PF --on` tries again"))
}

fn enable(pf: Bdf) -> Result<()> {
    let topology = crate::discover::discover(&FsRoot::live()?)?;
    let (card, was) = card(pf, &topology)?;
    let is_ready = topology.vgpu_interface(card) != VgpuInterface::None;
    if was && is_ready {
        return Ok(());
    }
    // A guest that starts with the host may have it as a whole.
    if let Some(driver) = card.driver.as_deref().filter(|driver| is_vfio(driver)) {
        let has = format!("{driver} has it");
        let hint = format!("`gpuvm device release {pf}` gives it back");
        return Err(VgpuCardError::NoDriver { bdf: pf, has }.hint(hint));
    }
    let steps = [Step::from(VgpuStep::SetFunctions { pf, on: true, was })];
    Ok(apply(&steps, &NoHypervisor, &mut Quiet, None)?)
}

#[cfg(test)]
mod tests;
