//! Binding while the machine boots: only a function that reports the recorded identity.
//!
//! Serial numbers and MAC addresses are known only while the function's own driver has it. So a
//! drive or a NIC is first left to that driver, which reads it and writes nothing; it is taken from
//! the driver only if it is the recorded one and nothing uses it yet. The unit runs before the
//! system's udev. The scripts of initramfs-tools keep drives from every driver until then; where
//! they do not, the udev of an initramfs may have assembled an array or volumes of the drive: then
//! it is in use, and stays with the host.

use super::{BindError, Binder};
use crate::blockdev::refuse_used_function;
use crate::discover::identity::{self, Patience, Present};
use crate::fsroot::FsRoot;
use gpuvm_core::bdf::Bdf;
use gpuvm_core::topology::{Binding, CoherentModel, DeviceIdentity, Likeness, NVGRACE, VFIO};

/// The fate of a function.
#[derive(Debug, PartialEq, Eq)]
pub enum Done {
    /// It was bound to this driver.
    Bound(&'static str),
    /// That driver has it already, and it is the recorded one.
    Already,
    /// It is left to the host, for this reason.
    Left(String),
}

/// Binds each of these functions to its driver for guests if it is the recorded one. A failure does not stop the
/// others.
pub fn bind(
    binder: &Binder<'_>,
    functions: &[(Bdf, DeviceIdentity)],
) -> Vec<(Bdf, Result<Done, BindError>)> {
    // All are with their drivers before any is waited for.
    let offered: Vec<Result<(), BindError>> =
        functions.iter().map(|(bdf, recorded)| offer(binder, *bdf, recorded)).collect();
    let mut patience = Patience::default();
    let each = functions.iter().zip(offered);
    each.map(|((bdf, recorded), offered)| {
        (*bdf, offered.and_then(|()| take(binder, *bdf, recorded, &mut patience)))
    })
    .collect()
}

/// Hands a function over to the host's own driver if it is another one than recorded, or if only
/// its driver reads the proof that it is not.
fn offer(binder: &Binder<'_>, bdf: Bdf, recorded: &DeviceIdentity) -> Result<(), BindError> {
    if is_for_vgpus(binder.root, bdf) {
        return Ok(());
    }
    let Some(present) = identity::read(binder.root, bdf)? else { return Ok(()) };
    let is_offered = match recorded.likeness(&present.identity) {
        Likeness::Same => return Ok(()),
        Likeness::Other => true,
        Likeness::Unproven => present.needs_proof(),
    };
    if is_offered && !present.is_of_host() {
        // Also one that an initramfs has reserved.
        binder.hand_over(bdf)?;
    }
    let now = identity::read(binder.root, bdf)?;
    if let Some(module) = now.as_ref().and_then(Present::guid_module) {
        // Without it the function is not proven, which is reported.
        let _ = binder.kernel.load(module);
    }
    Ok(())
}

/// Whether a function is a virtual one that the vendor's driver serves as vGPUs, by the files that
/// this driver makes. Guests get no use of it without the driver.
fn is_for_vgpus(root: &FsRoot, bdf: Bdf) -> bool {
    let at = format!("sys/bus/pci/devices/{bdf}");
    let has = |file: &str| root.exists(&format!("{at}/{file}"));
    has("physfn") && (has("nvidia/current_vgpu_type") || has("mdev_supported_types"))
}

/// The driver that hands a function to guests. The topology is not read that early.
fn driver_for_guests(root: &FsRoot, identity: &DeviceIdentity) -> Result<&'static str, BindError> {
    if CoherentModel::of_ids(identity.vendor_and_device()).is_none() {
        return Ok(VFIO);
    }
    // Since Linux 6.1, as each kernel with the other driver has it.
    let architecture = root.read("proc/sys/kernel/arch")?;
    let is_arm = architecture.is_some_and(|name| name.trim() == "aarch64");
    Ok(if is_arm { NVGRACE } else { VFIO })
}

/// Binds a function to its driver for guests if it is the recorded one.
fn take(
    binder: &Binder<'_>,
    bdf: Bdf,
    recorded: &DeviceIdentity,
    patience: &mut Patience,
) -> Result<Done, BindError> {
    if is_for_vgpus(binder.root, bdf) {
        let why = "it is a virtual function for vGPUs, which its driver serves";
        return Ok(Done::Left(format!("{bdf} ({recorded}) is not bound: {why}")));
    }
    let Some(present) = identity::settled_at_boot(binder.root, bdf, patience)? else {
        return Ok(Done::Left(format!("{bdf} is not there: {recorded} is not bound")));
    };
    if let Some(why) = left(binder, bdf, recorded, &present)? {
        return Ok(Done::Left(why));
    }
    let driver = driver_for_guests(binder.root, &present.identity)?;
    let is_there = match present.driver.as_deref() {
        Some(now) if driver == NVGRACE => now == driver,
        Some(_) => !present.is_of_host(),
        None => false,
    };
    if is_there {
        return Ok(Done::Already);
    }
    if present.is_storage()
        && let Err(error) = refuse_used_function(binder.root, bdf)
    {
        return Ok(Done::Left(format!("{bdf} ({recorded}) is not bound: {error}")));
    }
    binder.set(bdf, &Binding::to(driver))?;
    Ok(Done::Bound(driver))
}

/// Why a function is left to the host; `None` if it is bound.
fn left(
    binder: &Binder<'_>,
    bdf: Bdf,
    recorded: &DeviceIdentity,
    present: &Present,
) -> Result<Option<String>, BindError> {
    Ok(match recorded.likeness(&present.identity) {
        Likeness::Same => None,
        Likeness::Other => {
            let place = match identity::find(binder.root, recorded)? {
                Some(place) => format!("which is now at {place}"),
                None => "which is not found".to_owned(),
            };
            let now = &present.identity;
            Some(format!("{bdf} is now {now}; not bound: {recorded} was listed, {place}"))
        }
        Likeness::Unproven if !present.needs_proof() => None,
        Likeness::Unproven if !recorded.is_marked() => Some(format!(
            "{bdf} is not bound: an older gpuvm listed it without its identity; `gpuvm device bind \
             {bdf} --at-boot` again records it"
        )),
        Likeness::Unproven => Some(format!(
            "{bdf} is not bound: it does not report what identifies {recorded} (driver: {})",
            present.driver.as_deref().unwrap_or("none")
        )),
    })
}
