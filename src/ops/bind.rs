//! `device bind`, `device release`: binds functions of the host to vfio-pci and releases them, or
//! gives the reasons against it.

use crate::apply::bind::boot::{self, Listed};
use crate::apply::bind::{early, on_this_machine};
use crate::apply::boot::steps as boot_steps;
use crate::apply::{DeviceStep, Step};
use crate::bdf::Bdf;
use crate::change::{Change, Part};
use crate::claim::bound_to;
use crate::discover::facts::boot::EARLY;
use crate::doctor;
use crate::error::{Coded, Error, Result};
use crate::fsroot::FsRoot;
use crate::function_users::{self, Hindrance, Take, Use, UseKind};
use crate::hypervisor::none::NoHypervisor;
use crate::initramfs::renewal;
use crate::placement::Occupancy;
use crate::reporter::Question;
use crate::shell::word;
use crate::topology::{Binding, DeviceIdentity, Topology, VfKind, is_vfio};
use crate::world::World;
use std::collections::BTreeSet;

/// The reason a device is not bound or released.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "device-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum DeviceError {
    /// A device of the list for the boot is not bound.
    #[error("{lines}")]
    NotBoundAtBoot { lines: String },
    /// A device to be bound or released is in use.
    #[error("{names} cannot be {doing}{lines}")]
    InUse { names: String, doing: String, lines: String },
    /// A device reports nothing by which it could be recognised at the next boot.
    #[error(
        "{bdf} reports no serial number or address now (driver: {driver}), so it could not be \
         recognised at boot"
    )]
    Unidentified { bdf: String, driver: String },
    /// A virtual function is for vGPUs, or has mediated devices.
    #[error("virtual functions for vGPUs are not bound to vfio-pci{lines}")]
    ForVgpus { lines: String },
    /// The host has no such device.
    #[error("this host has no device {absent}")]
    Absent { absent: String },
}

impl Coded for DeviceError {}

/// Functions that are to be bound or released.
#[derive(Debug, Clone)]
pub struct Bind {
    /// Their addresses.
    pub devices: Vec<Bdf>,
    /// Whether to override uses.
    pub force: bool,
    /// The program that repeats it at each boot; `None` if only now.
    pub at_boot: Option<String>,
    /// Whether the initramfs is renewed.
    pub initramfs: bool,
}

impl Bind {
    /// The functions, each once, by address.
    fn sorted(&self) -> Vec<Bdf> {
        let all: BTreeSet<Bdf> = self.devices.iter().copied().collect();
        all.into_iter().collect()
    }

    /// Makes a change of these steps.
    fn change(&self, verb: &'static str, steps: Vec<Step>) -> Change {
        let names: Vec<String> = self.devices.iter().map(Bdf::to_string).collect();
        Change::new(verb, &names.join(" "), steps, ())
    }
}

/// Binds functions to vfio-pci while the machine boots, each if it reports its identity: nothing
/// uses them yet, no file can be written, and there is no libvirt. A failure does not stop the
/// others.
pub fn bind_at_boot(
    world: &World,
    functions: impl Iterator<Item = (Bdf, DeviceIdentity)>,
) -> Result<()> {
    let (functions, mut failed): (Vec<_>, Vec<String>) = (functions.collect(), Vec::new());
    let done = on_this_machine(&NoHypervisor, true, |binder| Ok(early::bind(binder, &functions)))?;
    for (bdf, done) in done {
        match done {
            Ok(early::Done::Bound(driver)) => {
                world.progress(&format!("{bdf} is bound to {driver}"));
            }
            Ok(early::Done::Already) => {}
            Ok(early::Done::Left(why)) => failed.push(why),
            Err(error) => failed.push(error.to_string()),
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    let lines = failed.join("\n  ");
    Err(DeviceError::NotBoundAtBoot { lines }.hint(format!(
        "`gpuvm device bind BDF --at-boot` lists a device as it is now; `rm /{EARLY}` and a new \
         initramfs end what older versions reserved in it"
    )))
}

/// The host that devices are bound on.
struct Host {
    root: FsRoot,
    topology: Topology,
    held: Occupancy,
}

impl Host {
    /// Reads this machine; without domains if no libvirt answers.
    fn read(world: &World) -> Result<Host> {
        let (topology, held) = (world.topology()?, world.occupancy_or_warn()?);
        Ok(Host { root: FsRoot::live()?, topology, held })
    }

    /// Returns the uses of these functions.
    fn uses(&self, functions: &[Bdf]) -> Result<Vec<Use>> {
        let mut uses = function_users::known(&self.topology, &self.held, functions);
        uses.extend(function_users::read(&self.root, &self.topology, functions)?.uses);
        Ok(uses)
    }

    /// Returns the steps on files for binding these functions at boot.
    fn at_boot(&self, wanted: &Listed, program: &str, initramfs: bool) -> Result<Vec<Step>> {
        let mut steps = boot_steps(boot::all(&self.root, &self.topology, wanted, program)?)?;
        // Also with the files as they are: an earlier run may have left the initramfs as it was.
        if initramfs {
            steps.push(renewal()?);
        }
        Ok(steps)
    }
}

/// Makes the error of devices that cannot be taken, with every reason.
fn refused(doing: &str, hindrances: &[&Hindrance], all: &[Hindrance]) -> Error {
    let bdfs: BTreeSet<String> = hindrances.iter().map(|h| h.bdf.to_string()).collect();
    let bdfs: Vec<String> = bdfs.into_iter().collect();
    let line = |hindrance: &&Hindrance| format!("\n  {} {}", hindrance.bdf, hindrance.why);
    let lines: String = hindrances.iter().map(line).collect();
    let yields = |h: &Hindrance| h.kind.is_some_and(UseKind::yields);
    let hint = if hindrances.iter().all(|h| yields(h)) && hindrances.len() == all.len() {
        "end what uses it, or --force, after which a driver may hang until a reboot"
    } else {
        "`gpuvm device list` shows who holds which device; nothing was changed"
    };
    DeviceError::InUse { names: bdfs.join(", "), doing: doing.to_owned(), lines }.hint(hint)
}

/// Plans to bind functions to vfio-pci. Taking one from a host driver asks for confirmation.
pub fn bind(world: &World, bind: &Bind) -> Result<Change> {
    let steps = binding(world, bind)?;
    let taken = steps.iter().filter(|step| takes(step)).map(Step::to_string);
    let taken: Vec<String> = taken.collect();
    let question = (!taken.is_empty()).then(|| Question::Agree {
        lines: Some(taken),
        question: "take them from the host?",
        what: "taking devices from the host".into(),
    });
    // A driver reports on GPUs only while it has them.
    let binds = steps.iter().any(|step| matches!(step, Step::Device(DeviceStep::Bind { .. })));
    let reports = binds.then_some(Part::Reports);
    let parts = reports.into_iter().chain([Part::Steps(steps)]).collect();
    Ok(Change { parts, question, ..bind.change("device bind", Vec::new()) })
}

/// Whether a step takes a function from a driver of the host.
fn takes(step: &Step) -> bool {
    matches!(step, Step::Device(DeviceStep::Bind { was, .. }) if was.driver.is_some())
}

fn binding(world: &World, bind: &Bind) -> Result<Vec<Step>> {
    let host = Host::read(world)?;
    let (topology, asked) = (&host.topology, bind.sorted());
    let on_vfio = |bdf: &Bdf| {
        let driver = topology.device(*bdf).and_then(|device| device.driver.as_deref());
        driver.is_some_and(|driver| topology.passes_by(*bdf, driver))
    };
    doctor::before(world, topology, &host.held, &asked, &[])?;
    let uses = host.uses(&function_users::with_groups(topology, &asked))?;
    let mut take = Take::new(topology, &uses, &asked);
    // A guest's function is already bound.
    take.hindrances.retain(|hindrance| !on_vfio(&hindrance.bdf));
    refuse_shared(&host.held, &take.functions)?;
    refuse_for_vgpus(topology, &take.functions)?;
    let refusals = take.refusals(bind.force);
    if !refusals.is_empty() {
        return Err(refused("bound", &refusals, &take.hindrances));
    }
    let mut steps = Vec::new();
    for &bdf in take.functions.iter().filter(|bdf| !on_vfio(bdf)) {
        let Some(was) = bound_to(topology, bdf)? else { continue };
        let to = Binding::to(topology.passing_driver(bdf));
        steps.push(DeviceStep::Bind { bdf, to, was, force: bind.force }.into());
    }
    if let Some(program) = &bind.at_boot {
        let mut wanted = boot::identities(&host.root)?;
        boot::add(&host.root, &mut wanted, take.functions.iter().copied())?;
        let otherwise =
            "libvirt binds it when a guest starts; --at-boot is not needed for it".to_owned();
        refuse_unidentified(&host.topology, &wanted, &take.functions, &otherwise)?;
        steps.extend(host.at_boot(&wanted, program, bind.initramfs)?);
    }
    Ok(steps)
}

/// Refuses cards of which a domain has vGPUs, also one that is off: without the vendor's driver it
/// does not start.
fn refuse_shared(held: &Occupancy, cards: &[Bdf]) -> Result<()> {
    let all = held.domains.iter().flat_map(|held| held.vgpus.iter().map(move |of| (held, of)));
    let shared = all.filter(|(_, vgpu)| cards.contains(&vgpu.card));
    let shared: BTreeSet<(Bdf, &str, &str)> =
        shared.map(|(held, vgpu)| (vgpu.card, held.domain.as_str(), vgpu.name.as_str())).collect();
    let Some((_, first, _)) = shared.first() else { return Ok(()) };
    let name = word(first);
    let hint = format!(
        "`gpuvm set {name} --no-vgpu` or `gpuvm delete {name}` gives back that of domain `{first}`"
    );
    let bdfs: BTreeSet<String> = shared.iter().map(|(bdf, ..)| bdf.to_string()).collect();
    let names = bdfs.into_iter().collect::<Vec<_>>().join(", ");
    let line = |(bdf, domain, of): &(Bdf, &str, &str)| {
        format!("\n  {bdf} is shared: domain `{domain}` has vGPU {of} of it")
    };
    let lines = shared.iter().map(line).collect();
    Err(DeviceError::InUse { names, doing: "bound".into(), lines }.hint(hint))
}

/// Refuses virtual functions that guests get as vGPUs: the vendor's driver serves these, and no
/// guest can use the function without it. Also those that come along with their IOMMU group.
fn refuse_for_vgpus(topology: &Topology, functions: &[Bdf]) -> Result<()> {
    let mut lines = String::new();
    let mut card = None;
    for vf in functions.iter().filter_map(|bdf| topology.device(*bdf)) {
        let what = match topology.vf_kind(vf) {
            Some(VfKind::FreeSlot) => "a slot for a vGPU",
            Some(VfKind::Vgpu) => "a vGPU",
            Some(VfKind::MdevParent) => "the parent of mediated devices",
            _ => continue,
        };
        let Some(pf) = vf.pf() else { continue };
        card.get_or_insert(pf);
        lines += &format!("\n  {} is {what} of {pf}", vf.bdf);
    }
    let Some(card) = card else { return Ok(()) };
    Err(DeviceError::ForVgpus { lines }.hint(format!(
        "`gpuvm create --vgpu TYPE` gives a guest a vGPU, of a type that `gpuvm vgpu list` shows; \
         `gpuvm vgpu vfs {card} --off` makes a whole GPU of the card again"
    )))
}

/// Refuses drives and NICs that report no identity by which they would be recognised at boot.
/// `otherwise`: the remedy where no driver of the host could read it.
pub(crate) fn refuse_unidentified(
    topology: &Topology,
    wanted: &Listed,
    asked: &[Bdf],
    otherwise: &str,
) -> Result<()> {
    let is_known = |bdf: &Bdf| {
        wanted.get(bdf).and_then(Option::as_ref).is_some_and(|identity| identity.is_named())
    };
    for device in asked.iter().filter_map(|bdf| topology.device(*bdf)) {
        if !device.needs_proof() || is_known(&device.bdf) {
            continue;
        }
        let driver = device.driver.as_deref().unwrap_or("no driver").to_owned();
        let hint = if is_vfio(&driver) {
            format!(
                "`gpuvm device release {}` returns it to its driver, which can read it; then this \
                 command again",
                device.bdf
            )
        } else {
            otherwise.to_owned()
        };
        return Err(DeviceError::Unidentified { bdf: device.bdf.to_string(), driver }.hint(hint));
    }
    Ok(())
}

/// Plans to release functions to the host's drivers.
pub fn release(world: &World, bind: &Bind) -> Result<Change> {
    let host = Host::read(world)?;
    let (topology, asked) = (&host.topology, bind.sorted());
    if let Some(absent) = asked.iter().find(|bdf| topology.device(**bdf).is_none()) {
        return Err(DeviceError::Absent { absent: absent.to_string() }
            .hint("`gpuvm device list --all` shows every device"));
    }
    let mut steps = Vec::new();
    let mut bound = Vec::new();
    for &bdf in &asked {
        let Some(was) = bound_to(topology, bdf)? else { continue };
        if was.driver.as_deref().is_some_and(is_vfio) {
            bound.push(bdf);
            steps.push(DeviceStep::Release { bdf, was, force: bind.force }.into());
        }
    }
    let uses = host.uses(&bound)?;
    let of = |used: Use| Hindrance {
        bdf: used.bdf,
        why: format!("is used by {}", used.by),
        kind: Some(used.kind),
    };
    let all: Vec<Hindrance> = uses.into_iter().map(of).collect();
    let take = Take { functions: bound, hindrances: all };
    let refusals = take.refusals(bind.force);
    if !refusals.is_empty() {
        return Err(refused("released", &refusals, &take.hindrances));
    }
    for domain in &host.held.domains {
        for bdf in domain.devices.iter().filter(|bdf| take.functions.contains(bdf)) {
            let name = &domain.domain;
            world.warning(&format!("domain `{name}` has {bdf} and takes it when it starts"));
        }
    }
    if let Some(program) = &bind.at_boot {
        let mut wanted = boot::identities(&host.root)?;
        wanted.retain(|bdf, _| !asked.contains(bdf));
        steps.extend(host.at_boot(&wanted, program, bind.initramfs)?);
    }
    let mut change = bind.change("device release", steps);
    if change.steps().iter().any(|step| matches!(step, Step::Device(DeviceStep::Release { .. }))) {
        change.parts.push(Part::Reports);
    }
    Ok(change)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuvm_core::topology::{Mdev, Sriov, Vgpu, file};

    /// A host whose first GPU has a virtual function that offers this.
    fn host(vgpu: Option<Vgpu>) -> (Topology, [Bdf; 2]) {
        let text = include_str!("../../topologies/dual-socket.json");
        let mut parts = file::from_json(text).unwrap().parts().clone();
        let is_gpu = |device: &&mut gpuvm_core::topology::PciDevice| {
            device.kind() == gpuvm_core::topology::DeviceKind::Gpu
        };
        let card = parts.devices.iter_mut().find(is_gpu).unwrap();
        card.sriov = Some(Sriov::Pf { total: 16, enabled: 1 });
        let pf = card.bdf;
        let bdf: Bdf = pf.to_string().replace(".0", ".4").parse().unwrap();
        let sriov = Some(Sriov::Vf { pf });
        let vf = gpuvm_core::topology::PciDevice { bdf, sriov, vgpu, ..card.clone() };
        parts.devices.push(vf);
        parts.devices.sort_by_key(|device| device.bdf);
        (Topology::new(parts).unwrap(), [pf, bdf])
    }

    #[test]
    fn virtual_functions_for_vgpus_are_not_bound() {
        let vfio = |current| Some(Vgpu::Vfio { current, creatable: Vec::new() });
        let mdev = Some(Vgpu::Mdev { types: Vec::new(), devices: Vec::<Mdev>::new() });
        for (vgpu, what) in [
            (vfio(0), "a slot for a vGPU"),
            (vfio(1437), "a vGPU"),
            (mdev, "the parent of mediated devices"),
        ] {
            let (topology, [pf, vf]) = host(vgpu);
            // Also one that only comes along.
            let error = refuse_for_vgpus(&topology, &[pf, vf]).unwrap_err();
            let refusal = error.refusal().unwrap();
            assert_eq!(refusal.code, "device-for-vgpus");
            assert!(refusal.message.contains(&format!("\n  {vf} is {what} of {pf}")), "{error}");
            assert!(refusal.hint.contains(&format!("`gpuvm vgpu vfs {pf} --off`")), "{error}");
            assert!(refuse_for_vgpus(&topology, &[pf]).is_ok());
        }
        // Nothing serves this one.
        let (topology, both) = host(None);
        assert!(refuse_for_vgpus(&topology, &both).is_ok());
    }
}
