//! Claims a guest's devices before it starts, and releases them after it is gone.
//!
//! The GPUs and NVSwitches of an NVLink board are bound to vfio-pci by our steps, before the guest
//! is defined (`create`) or started (`start`), and stay bound while it is defined: stopping a guest
//! does not return them to the host's driver, which can hang. `delete` restores the binding of each
//! from when the guest was made, as recorded in its metadata; one that was already on vfio-pci
//! stays there. A guest that is only defined gets its devices at its first start. libvirt binds all
//! other devices at each start and returns them at each stop. GPUs that we bind are reset before a
//! guest gets them and after it is gone, so that no tenant sees another's data; one that cannot be
//! reset is an error, until it is excluded. NVSwitches of the guest are reset after its GPUs, if
//! the kernel supports it.
//!
//! On a recorded host the steps follow from the record, which has no `driver_override`.

use super::{vfs, vgpu};
use crate::apply::{DeviceStep, Step, bind, owner};
use crate::bdf::Bdf;
use crate::discover::binding::binding;
use crate::domain::guest::Bound;
use crate::domain::{DomainXml, is_bound_by_us};
use crate::error::{Class, Coded, Result, classed};
use crate::fsroot::FsRoot;
use crate::function_users::{self, Take, UseKind};
use crate::hypervisor::machine::{Machine, command_there};
use crate::p2p;
use crate::partition::{self, Guest};
use crate::placement::reason::IsolationReason;
use crate::placement::{Exclusion, Occupancy, shared_fabric};
use crate::recognise;
use crate::shell::word;
use crate::topology::{Barred, Binding, Likeness, Topology, Trust, Weakness, is_vfio};
use crate::words::count;
use crate::world::World;
use gpuvm_host::fabric::program;
use std::collections::BTreeSet;

/// The reason a guest's devices cannot be claimed.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "claim-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum ClaimError {
    /// The host does not have functions that the guest needs.
    #[error(
        "domain `{domain}` needs {}, which {} missing",
        functions.iter().map(Bdf::to_string).collect::<Vec<_>>().join(", "),
        crate::words::are(functions.len())
    )]
    Absent { domain: String, functions: BTreeSet<Bdf> },
    /// No guest can get a function of the guest.
    #[error("domain `{domain}` cannot start: {function} {why}")]
    Barred { domain: String, function: Bdf, why: Barred },
    /// Fabric Manager of the host manages the board's NVSwitches, which the guest's Fabric Manager
    /// would do, too.
    #[error(
        "domain `{domain}` needs NVSwitches, and Fabric Manager of the host (process {process}) \
         manages their board: {} {} bound to the nvidia driver",
        count(switches.len(), "NVSwitch"),
        crate::words::are(switches.len())
    )]
    FabricManager {
        domain: String,
        /// The NVSwitches of the board that are still with the host.
        switches: Vec<Bdf>,
        process: u32,
    },
    /// Other guests reach its NVLinks, and the guests are declared strangers.
    #[error("domain `{domain}` is not started: {why}")]
    SharedFabric { domain: String, why: IsolationReason },
}

impl Coded for ClaimError {}

/// The steps for a guest's devices before it starts.
#[derive(Debug, Default)]
pub struct Claim {
    /// The steps.
    pub steps: Vec<Step>,
    /// The functions bound by them.
    pub bound: Vec<Bound>,
}

/// Reads the drivers of functions, from the machine or from its record; `None` for a missing one.
fn now(root: Option<&FsRoot>, topology: &Topology, bdf: Bdf) -> Result<Option<Binding>> {
    let Some(root) = root else {
        let device = topology.device(bdf);
        let driver = device.map(|d| Binding { driver: d.driver.clone(), driver_override: None });
        return Ok(driver);
    };
    if root.is_live() && topology.device(bdf).is_some() {
        // Reading it would block forever if an earlier unbind hangs.
        bind::readable(&format!("/sys/bus/pci/devices/{bdf}/driver_override"))?;
    }
    Ok(binding(root, bdf)?)
}

/// The driver of a function on this machine.
pub fn bound_to(topology: &Topology, bdf: Bdf) -> Result<Option<Binding>> {
    now(Some(&FsRoot::live()?), topology, bdf)
}

/// Returns the steps for a guest's devices before it is defined, or started if it is already
/// defined. Refuses devices that the host or another guest uses.
pub fn claim(
    name: &str,
    devices: &[Bdf],
    topology: &Topology,
    held: &Occupancy,
    world: &World,
) -> Result<Claim> {
    let ours = devices.iter().copied().filter(|&bdf| is_bound_by_us(topology, bdf));
    let ours: Vec<Bdf> = ours.collect();
    claim_these(name, (&without_vgpus(devices, topology), &ours), topology, held, world)
}

/// Functions but vGPUs, which stay on the vendor's driver of VFIO and whose types have steps of their
/// own.
fn without_vgpus(devices: &[Bdf], topology: &Topology) -> Vec<Bdf> {
    devices.iter().copied().filter(|bdf| !topology.is_vgpu_function(*bdf)).collect()
}

/// The same, with `ours` being the devices that libvirt does not bind.
fn claim_these(
    name: &str,
    (devices, ours): (&[Bdf], &[Bdf]),
    topology: &Topology,
    held: &Occupancy,
    world: &World,
) -> Result<Claim> {
    let recorded = world.is_recorded();
    if devices.is_empty() || (!recorded && world.is_test()) {
        return Ok(Claim::default());
    }
    let root = if recorded { None } else { Some(FsRoot::live()?) };
    if let Some(root) = &root {
        refuse_managed(name, devices, topology, root)?;
        refuse_used(name, devices, topology, held, root, world)?;
    }
    let mut claim = Claim::default();
    for &bdf in ours {
        let Some(was) = now(root.as_ref(), topology, bdf)? else { continue };
        if !was.driver.as_deref().is_some_and(|driver| topology.passes_by(bdf, driver)) {
            let to = Binding::to(topology.passing_driver(bdf));
            claim.steps.push(DeviceStep::Bind { bdf, to, was: was.clone(), force: false }.into());
            claim.bound.push(Bound { bdf, was });
        }
    }
    let resets = partition::reset(ours, root.as_ref(), topology).into_iter();
    claim.steps.extend(resets.map(|bdf| Step::Device(DeviceStep::Reset { bdf, back: false })));
    Ok(claim)
}

/// Refuses NVSwitches of a board that Fabric Manager of this machine manages: host and guest must
/// never both do so ("Fabric Manager User Guide", full passthrough). Detected by its process and
/// the driver of the switches, even if it has none open yet.
fn refuse_managed(name: &str, devices: &[Bdf], topology: &Topology, root: &FsRoot) -> Result<()> {
    let is_switch = |bdf: &&Bdf| partition::is_switch(topology, **bdf);
    if !devices.iter().any(|bdf| is_switch(&bdf)) {
        return Ok(());
    }
    let board = match topology.partition_of(devices) {
        Ok(Some(partition)) if !partition.nvswitch_pool.is_empty() => &partition.nvswitch_pool[..],
        _ => devices,
    };
    let of_driver = |bdf: &Bdf| partition::is_managed(topology, *bdf);
    let switches: Vec<Bdf> = board.iter().copied().filter(of_driver).collect();
    if switches.is_empty() {
        return Ok(());
    }
    let Some(process) = program::process(root)? else { return Ok(()) };
    let error = ClaimError::FabricManager { domain: name.to_owned(), switches, process };
    Err(error.hint(partition::MANAGER_OFF))
}

/// Refuses devices that others use. An address on a NIC only gives a warning: the planner
/// considered the NIC free.
fn refuse_used(
    name: &str,
    devices: &[Bdf],
    topology: &Topology,
    held: &Occupancy,
    root: &FsRoot,
    world: &World,
) -> Result<()> {
    let all = function_users::with_groups(topology, devices);
    let mut others = held.clone();
    others.domains.retain(|domain| domain.domain != name);
    let mut uses = function_users::known(topology, &others, &all);
    uses.extend(function_users::read(root, topology, &all)?.uses);
    let take = Take::new(topology, &uses, devices);
    let (light, heavy): (Vec<_>, Vec<_>) = take
        .hindrances
        .iter()
        .filter(|hindrance| hindrance.kind.is_some())
        .partition(|hindrance| hindrance.kind == Some(UseKind::Address));
    for hindrance in light {
        world.warning(&format!("{} {}", hindrance.bdf, hindrance.why));
    }
    let Some(first) = heavy.first() else { return Ok(()) };
    let mut message = format!("domain `{name}` cannot have {}", first.bdf);
    for hindrance in &heavy {
        message += &format!("\n  {} {}", hindrance.bdf, hindrance.why);
    }
    Err(classed(Class::InUse, message, "`gpuvm device list` shows who holds which device"))
}

/// Refuses to bind or release functions on another machine, which only the gpuvm there can do.
fn refuse_unbound(name: &str, ours: &[Bdf], verb: &str, world: &World) -> Result<()> {
    let (Some(first), Machine::Elsewhere { host }) = (ours.first(), world.machine()?) else {
        return Ok(());
    };
    let message = format!(
        "gpuvm itself binds {first} of domain `{name}` and gives it back, and it is on machine \
         `{host}`"
    );
    Err(classed(
        Class::OtherMachine,
        message,
        format!("`{}`", command_there(&host, &format!("{verb} {}", word(name)))),
    ))
}

/// Returns the steps for a defined guest's devices before it starts.
pub fn claim_of(xml: &DomainXml, world: &World) -> Result<Vec<Step>> {
    let devices = xml.held(false)?.devices;
    let has_any = !devices.is_empty() || !xml.vgpus()?.is_empty();
    if !has_any || world.is_test() {
        return Ok(Vec::new());
    }
    refuse_unbound(&xml.name(), &xml.unmanaged(), "start", world)?;
    if !world.is_here()? {
        return Ok(Vec::new());
    }
    let (topology, held) = (world.topology()?, world.occupancy(false)?);
    recognise::refuse_moved(xml, &FsRoot::live()?)?;
    refuse_absent(xml, &devices, &topology)?;
    recognise::refuse_others_here(xml, world)?;
    // Disks proven by its own record are its own, whatever an older record of another contains.
    let proven = recognise::compared(xml, &FsRoot::live()?, Likeness::Same)?;
    let others: Vec<Bdf> = devices.iter().copied().filter(|bdf| !proven.contains(bdf)).collect();
    recognise::refuse_of_others(&xml.name(), &others, &held)?;
    refuse_barred(&xml.name(), &devices, &topology)?;
    refuse_shared(&xml.name(), &devices, &topology, &held)?;
    warn_unhealthy(&devices, &topology, world);
    warn_open(&devices, &topology, world);
    let ours = without_vgpus(&xml.unmanaged(), &topology);
    let whole = without_vgpus(&devices, &topology);
    let mut steps = claim_these(&xml.name(), (&whole, &ours), &topology, &held, world)?.steps;
    steps.extend(vfs::claim_of(xml, &topology, world)?);
    steps.extend(vgpu::claim::claim_of(xml, &topology, world)?);
    vgpu::claim::refuse_unoffered(xml, &topology)?;
    // After the resets: before H100 a later reset would disable its NVLinks.
    let (name, uuid) = (xml.name(), xml.uuid());
    let vgpus = xml.vgpus()?;
    let guest = Guest { name: &name, uuid: uuid.as_deref(), devices: &devices, vgpus: &vgpus };
    steps.extend(partition::to_start(world, &topology, guest)?);
    Ok(steps)
}

/// Warns of GPUs of a guest that no new guest would get: it has them, so it keeps them.
fn warn_unhealthy(devices: &[Bdf], topology: &Topology, world: &World) {
    for device in devices.iter().filter_map(|&bdf| topology.device(bdf)) {
        if let Some(health) = device.health.as_ref().filter(|health| health.is_over()) {
            world.warning(&format!("{} is unhealthy: {}", device.bdf, health.why()));
        }
    }
}

/// Warns of ports that do not redirect: their ACS control may have been cleared since the guest was
/// made.
fn warn_open(devices: &[Bdf], topology: &Topology, world: &World) {
    let open = topology.open_ports(devices);
    if !open.is_empty() && topology.machine().trust != Some(Trust::OneTenant) {
        let weakness = Weakness::OpenPorts(open);
        world.warning(&format!("{}; {}", weakness.says(), weakness.hint()));
    }
}

/// The same refusal for a guest to be restarted, which already has its devices; no other check
/// applies.
pub fn refuse_strangers(xml: &DomainXml, world: &World) -> Result<()> {
    let devices = xml.held(false)?.devices;
    if devices.is_empty() || !world.has_guests_here()? {
        return Ok(());
    }
    refuse_shared(&xml.name(), &devices, &world.topology()?, &world.occupancy(false)?)
}

/// Refuses a guest whose NVLinks others reach if the admin declared the guests strangers, as
/// `create` does. Without a declaration it was accepted at creation.
fn refuse_shared(name: &str, devices: &[Bdf], topology: &Topology, held: &Occupancy) -> Result<()> {
    let said = topology.machine().trust;
    if !Trust::refuses(said, true) {
        return Ok(());
    }
    let mut others = held.clone();
    others.domains.retain(|domain| domain.domain != name);
    let Some(why) = shared_fabric(topology, &others, devices) else { return Ok(()) };
    let advice = why.advice(topology);
    Err(ClaimError::SharedFabric { domain: name.to_owned(), why }.hint(advice))
}

/// Refuses to start a guest with missing functions, before anything is done for the others; the
/// hint says how to recreate them.
fn refuse_absent(xml: &DomainXml, devices: &[Bdf], topology: &Topology) -> Result<()> {
    let absent = devices.iter().copied().filter(|&bdf| topology.device(bdf).is_none());
    let absent: BTreeSet<Bdf> = absent.collect();
    if absent.is_empty() {
        return Ok(());
    }
    let error = ClaimError::Absent { domain: xml.name(), functions: absent.clone() };
    Err(error.hint(vfs::made_by(&FsRoot::live()?, topology, absent)?))
}

/// Refuses to start a guest with functions that no guest can get, of which libvirt says only that
/// it does not support passthrough.
fn refuse_barred(name: &str, devices: &[Bdf], topology: &Topology) -> Result<()> {
    let barred = |&bdf: &Bdf| Some((bdf, topology.barred(topology.device(bdf)?)?));
    let Some((function, why)) = devices.iter().find_map(barred) else { return Ok(()) };
    Err(ClaimError::Barred { domain: name.to_owned(), function, why }.hint(why.hint()))
}

/// Returns the steps that release a guest's devices once it is gone. Those in use by another
/// running guest now are reported and left alone.
pub fn give_back(xml: &DomainXml, world: &World) -> Result<Vec<Step>> {
    let ours = xml.unmanaged();
    refuse_unbound(&xml.name(), &ours, "delete", world)?;
    let mut steps = vfs::give_back(xml, world)?;
    steps.extend(vgpu::claim::give_back(xml, world)?);
    steps.extend(p2p::claim::once_off(&xml.uuid().unwrap_or_default(), world)?);
    if ours.is_empty() || !world.has_guests_here()? {
        return Ok(steps);
    }
    steps.extend(give_back_these(xml, ours, world)?);
    Ok(steps)
}

/// The same for some of its functions, which its definition loses, while it is off.
pub fn give_back_some(xml: &DomainXml, gone: &[Bdf], world: &World) -> Result<Vec<Step>> {
    let mut ours = xml.unmanaged();
    ours.retain(|bdf| gone.contains(bdf));
    refuse_unbound(&xml.name(), &ours, "set", world)?;
    if ours.is_empty() || !world.has_guests_here()? {
        return Ok(Vec::new());
    }
    give_back_these(xml, ours, world)
}

/// Returns the steps that reset functions that we bound, and bind them as they were.
fn give_back_these(xml: &DomainXml, ours: Vec<Bdf>, world: &World) -> Result<Vec<Step>> {
    let topology = world.topology()?;
    let ours = without_vgpus(&ours, &topology);
    let excluded = world.excluded()?;
    let root = FsRoot::live()?;
    let (mut steps, mut back) = (Vec::new(), Vec::new());
    let bound = xml.bound()?;
    let others = world.hypervisor()?;
    let others = owner::runs_with(&*others, &xml.uuid().unwrap_or_default(), &ours);
    let replaced = recognise::compared(xml, &root, Likeness::Other)?;
    for bdf in ours {
        if topology.device(bdf).is_none() {
            continue;
        }
        if replaced.contains(&bdf) {
            world.warning(&format!(
                "{bdf} is not the device that domain `{}` had: it is left as it is",
                xml.name()
            ));
            continue;
        }
        if let Some((_, name)) = others.iter().find(|(other, _)| *other == bdf) {
            let warning =
                format!("{bdf} is in use by domain `{name}`, which runs: it is left as it is");
            world.warning(&warning);
            continue;
        }
        let Some(was) = now(Some(&root), &topology, bdf)? else { continue };
        if !was.driver.as_deref().is_some_and(is_vfio) {
            continue;
        }
        // A GPU that cannot be reset would block its guest's removal forever; no other guest gets
        // an excluded one.
        if Exclusion::of(&excluded, &topology, bdf).is_none() {
            let resets = partition::reset(&[bdf], Some(&root), &topology).into_iter();
            steps.extend(resets.map(|bdf| Step::Device(DeviceStep::Reset { bdf, back: true })));
        }
        if let Some(bound) = bound.iter().find(|bound| bound.bdf == bdf) {
            back.push(DeviceStep::Bind { bdf, to: bound.was.clone(), was, force: false }.into());
        }
    }
    steps.extend(back);
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuvm_core::topology::{Iommu, file};

    #[test]
    fn a_guest_with_a_function_that_the_iommu_bars_is_not_started() {
        let text = include_str!("../../topologies/dual-socket.json");
        let mut parts = file::from_json(text).unwrap().parts().clone();
        let devices: [Bdf; 2] = ["0000:18:00.0", "0000:86:00.0"].map(|bdf| bdf.parse().unwrap());
        let of = |parts: &gpuvm_core::topology::Parts, devices: &[Bdf]| {
            refuse_barred("a", devices, &Topology::new(parts.clone()).unwrap())
        };
        assert!(of(&parts, &devices).is_ok());
        let kept = parts.devices.iter().find(|device| device.bdf == devices[1]).unwrap();
        let firmware_groups = Some(kept.iommu_group.into_iter().collect());
        parts.machine.iommu = Some(Iommu { groups: 20, firmware_groups });
        assert!(of(&parts, &devices[..1]).is_ok());
        let error = of(&parts, &devices).unwrap_err();
        let refusal = error.refusal().expect("a refusal");
        assert_eq!(refusal.code, "claim-barred");
        let said = error.to_string();
        assert!(
            said.starts_with("domain `a` cannot start: 0000:86:00.0 cannot be passed"),
            "{said}"
        );
    }
}
