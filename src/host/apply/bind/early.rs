//! Binding while the machine boots: only a function that reports the recorded identity.
//!
//! Serial numbers and MAC addresses are known only while the function's own driver has it. So a
//! drive or a NIC is first left to that driver, which reads it and writes nothing; it is taken from
//! the driver only if it is the recorded one and nothing uses it yet. The unit runs before the
//! system's udev, but after that of an initramfs, which may have assembled an array or volumes of the
//! drive: then the drive is in use, and stays with the host.

use super::{BindError, Binder};
use crate::blockdev::refuse_used_function;
use crate::discover::identity::{self, Present};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::topology::{Binding, DeviceIdentity, Likeness};

/// What became of a function.
#[derive(Debug, PartialEq, Eq)]
pub enum Done {
    /// It was bound to vfio-pci.
    Bound,
    /// vfio-pci has it already, and it is the recorded one.
    Already,
    /// It is left to the host, for this reason.
    Left(String),
}

/// Binds a function to vfio-pci if it is the recorded one.
///
/// # Errors
///
/// If a file cannot be read, or the kernel refuses.
pub fn bind(binder: &Binder<'_>, bdf: Bdf, recorded: &DeviceIdentity) -> Result<Done, BindError> {
    let Some(mut present) = identity::settled(binder.root, bdf, true)? else {
        return Ok(Done::Left(format!("{bdf} is not there: {recorded} is not bound")));
    };
    let mut likeness = recorded.likeness(&present.identity);
    if present.needs_proof() && likeness != Likeness::Same && !present.is_of_host() {
        // Also one that an initramfs of an older version has reserved.
        binder.hand_over(bdf)?;
        let Some(again) = identity::settled(binder.root, bdf, true)? else {
            return Ok(Done::Left(format!("{bdf} is not there: {recorded} is not bound")));
        };
        (likeness, present) = (recorded.likeness(&again.identity), again);
    }
    if let Some(why) = left(binder, bdf, recorded, (likeness, &present))? {
        return Ok(Done::Left(why));
    }
    if !present.is_of_host() && present.driver.is_some() {
        return Ok(Done::Already);
    }
    if present.is_storage()
        && let Err(error) = refuse_used_function(binder.root, bdf)
    {
        return Ok(Done::Left(format!("{bdf} ({recorded}) is not bound: {error}")));
    }
    binder.set(bdf, &Binding::vfio())?;
    Ok(Done::Bound)
}

/// Why a function is left to the host; none: it is bound.
fn left(
    binder: &Binder<'_>,
    bdf: Bdf,
    recorded: &DeviceIdentity,
    (likeness, present): (Likeness, &Present),
) -> Result<Option<String>, BindError> {
    Ok(match likeness {
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
