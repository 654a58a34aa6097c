//! Binding of PCI functions to drivers: a function is brought to a [`Binding`] from any state, so
//! doing, undoing and repeating after an interruption are the same operation.
//!
//! A driver may never release a device: NVIDIA's waits forever while its device is in use
//! (gpuvm-hardware(7), BINDING AND RESET), and a process waiting in the kernel ignores signals. So
//! every write that can block is made by a process of its own, which is abandoned when its time is
//! over (`child`). New ids are never given to a driver: that would bind all functions of the id.
//! Ids that vfio-pci has by its options are removed from it if it would otherwise take back a
//! function it has to release.

pub mod boot;
mod child;
pub mod early;
#[cfg(test)]
mod tests;

pub use super::error::BindError;
pub use child::{Kernel, Live, readable};

use super::owner::{self, Owner};
use crate::discover::binding::binding;
use crate::discover::identity;
use crate::fsroot::FsRoot;
use crate::hypervisor::Hypervisor;
use gpuvm_core::bdf::Bdf;
use gpuvm_core::topology::{Binding, is_vfio};
use std::time::Duration;

/// How long writing `driver_override` may take, in seconds: no driver is involved.
const RESERVE_S: u64 = 10;
/// How long a driver may take to release a function, in seconds: a GPU with eight contexts takes
/// several.
const UNBIND_S: u64 = 60;
/// How long a driver may take to take a function, in seconds: NVIDIA's initializes the GPU
/// meanwhile.
const PROBE_S: u64 = 120;
/// How long a reset may take, in seconds: a GPU's own reset takes several, and the kernel waits up
/// to a minute for the device.
const RESET_S: u64 = 90;
/// How often to check whether a function is bound; some drivers probe asynchronously.
const LOOKS: u32 = 50;

impl BindError {
    /// Whether the kernel is still busy with the function, so that nothing else can be done with
    /// it.
    fn is_stuck(&self) -> bool {
        matches!(self, BindError::Stuck { .. } | BindError::Hangs { .. })
    }
}

/// The means of binding functions.
pub struct Binder<'a> {
    /// The host's files.
    pub root: &'a FsRoot,
    /// The writer to the kernel.
    pub kernel: &'a dyn Kernel,
    /// Finds the owner of a function.
    pub owner: &'a dyn Owner,
    /// How long to wait between two checks.
    pub pause: Duration,
}

impl Binder<'_> {
    /// Returns the present binding of a function.
    fn now(&self, bdf: Bdf) -> Result<Binding, BindError> {
        binding(self.root, bdf)?.ok_or(BindError::Absent { bdf })
    }

    /// Refuses a function whose binding has changed.
    pub fn expect(&self, bdf: Bdf, was: &Binding) -> Result<(), BindError> {
        let now = self.now(bdf)?;
        if now.driver == was.driver {
            return Ok(());
        }
        let (now, was) = (now.driver_text().to_owned(), was.driver_text().to_owned());
        Err(BindError::Changed { bdf, now, was })
    }

    /// Refuses a function that is in use if its driver would change.
    pub fn expect_free(&self, bdf: Bdf, driver: Option<&str>) -> Result<(), BindError> {
        if self.now(bdf)?.driver.as_deref() == driver {
            Ok(())
        } else {
            self.owner.free(&[bdf]).map(drop)
        }
    }

    /// Changes a binding from `was` to `wanted`; on failure, back to `was`.
    pub fn change(&self, bdf: Bdf, was: &Binding, wanted: &Binding) -> Result<(), BindError> {
        self.or_back(bdf, was, self.set(bdf, wanted))
    }

    /// Unbinds a function and lets the kernel choose a driver.
    pub fn release(&self, bdf: Bdf, was: &Binding) -> Result<(), BindError> {
        self.or_back(bdf, was, self.hand_over(bdf))
    }

    /// Goes back to `was` after a failure.
    fn or_back(
        &self,
        bdf: Bdf,
        was: &Binding,
        done: Result<(), BindError>,
    ) -> Result<(), BindError> {
        let Err(first) = done else { return Ok(()) };
        if first.is_stuck() {
            return Err(first);
        }
        match self.set(bdf, was) {
            Ok(()) => Err(first),
            Err(second) => {
                Err(BindError::Twice { first: Box::new(first), second: Box::new(second) })
            }
        }
    }

    /// Brings a function to a binding, whatever it has now.
    pub fn set(&self, bdf: Bdf, wanted: &Binding) -> Result<(), BindError> {
        let now = self.now(bdf)?;
        if now.driver != wanted.driver {
            if now.driver.is_some() {
                // Before any write: a function in use stays entirely as it is.
                drop(self.owner.free(&[bdf])?);
                if wanted.driver.as_deref().is_some_and(is_vfio) {
                    identity::remember(self.root, bdf);
                }
            }
            match &wanted.driver {
                Some(driver) => {
                    if !self.root.exists(&format!("sys/bus/pci/drivers/{driver}")) {
                        self.kernel.load(driver)?;
                    }
                    // The named driver gets it, and no other that matches its ids.
                    self.reserve(bdf, Some(driver))?;
                }
                None => self.reserve(bdf, wanted.driver_override.as_deref())?,
            }
            if let Err(error) = self.unbind(bdf, now.driver.as_deref()) {
                if matches!(error, BindError::InUse { .. } | BindError::Untold { .. }) {
                    self.reserve(bdf, now.driver_override.as_deref())?;
                }
                return Err(error);
            }
            if let Some(driver) = &wanted.driver {
                self.probe(bdf)?;
                let got = self.look(bdf, |now| now.driver.as_ref() == Some(driver))?;
                if got.driver.as_ref() != Some(driver) {
                    let (driver, now) = (driver.clone(), got.driver_text().to_owned());
                    return Err(BindError::NotTaken { bdf, driver, now });
                }
            }
        }
        if self.now(bdf)?.driver_override != wanted.driver_override {
            self.reserve(bdf, wanted.driver_override.as_deref())?;
        }
        Ok(())
    }

    /// Takes a function from vfio-pci and lets the kernel choose another driver, if it has one.
    pub fn hand_over(&self, bdf: Bdf) -> Result<(), BindError> {
        let now = self.now(bdf)?;
        self.reserve(bdf, None)?;
        if now.driver.as_deref().is_some_and(|driver| !is_vfio(driver)) {
            return Ok(());
        }
        self.unbind(bdf, now.driver.as_deref())?;
        let alias = self.root.read(&format!("sys/bus/pci/devices/{bdf}/modalias"))?;
        if let Some(alias) = alias {
            // It is not an error if no module matches: the function stays without driver.
            let _ = self.kernel.load(&alias);
        }
        self.probe(bdf)?;
        let mut got = self.now(bdf)?;
        if let Some(driver) = got.driver.clone().filter(|driver| is_vfio(driver))
            && self.forget_id(bdf, &driver).is_ok()
        {
            self.unbind(bdf, Some(&driver))?;
            self.probe(bdf)?;
            got = self.now(bdf)?;
        }
        match got.driver.as_deref().filter(|driver| is_vfio(driver)) {
            None => Ok(()),
            Some(driver) => Err(BindError::NotTaken {
                bdf,
                driver: "of the host".into(),
                now: format!("{driver}, which knows its ids by its options,"),
            }),
        }
    }

    /// Removes the ids of a function from those given to a driver by its options, until it is
    /// reloaded. The driver keeps the functions that it has.
    fn forget_id(&self, bdf: Bdf, driver: &str) -> Result<(), BindError> {
        let function = self.root.dir(&format!("sys/bus/pci/devices/{bdf}"))?;
        let function = function.ok_or(BindError::Absent { bdf })?;
        let ids = function.hex::<u16>("vendor")?.zip(function.hex::<u16>("device")?);
        let (vendor, device) = ids.ok_or(BindError::Absent { bdf })?;
        let path = format!("sys/bus/pci/drivers/{driver}/remove_id");
        self.kernel.write(&path, &format!("{vendor:04x} {device:04x}"), RESERVE_S)
    }

    /// Resets an unused function.
    pub fn reset(&self, bdf: Bdf) -> Result<(), BindError> {
        let no = |reason: String| BindError::NoReset { bdf, reason };
        let now = self.now(bdf)?;
        if !now.driver.as_deref().is_none_or(is_vfio) {
            let (now, was) = (now.driver_text().to_owned(), "vfio-pci".to_owned());
            return Err(BindError::Changed { bdf, now, was });
        }
        let path = format!("sys/bus/pci/devices/{bdf}/reset");
        if !self.root.exists(&path) {
            return Err(no("the kernel knows no way for it".into()));
        }
        // Held against other users until it is reset.
        let _hold = self.owner.free(&[bdf])?;
        self.kernel.write(&path, "1", RESET_S).map_err(|error| match error {
            BindError::Refused { reason, .. } => no(reason),
            BindError::Hangs { seconds, .. } => no(format!("no answer within {seconds} s")),
            error => error,
        })
    }

    /// Restricts a function to one driver (`driver_override`); `None` for any.
    fn reserve(&self, bdf: Bdf, driver: Option<&str>) -> Result<(), BindError> {
        let path = format!("sys/bus/pci/devices/{bdf}/driver_override");
        self.kernel.write(&path, driver.unwrap_or("\n"), RESERVE_S)
    }

    /// Unbinds a function from its driver.
    fn unbind(&self, bdf: Bdf, driver: Option<&str>) -> Result<(), BindError> {
        let Some(driver) = driver else { return Ok(()) };
        let path = format!("sys/bus/pci/drivers/{driver}/unbind");
        // A guest that got the function since, or was started by this very run, would be asked to
        // release it.
        drop(self.owner.free(&[bdf])?);
        let written = self.kernel.write(&path, &bdf.to_string(), UNBIND_S);
        match written {
            Err(BindError::Hangs { seconds, .. }) => {
                let (driver, holders) = (driver.to_owned(), self.holders(bdf));
                Err(BindError::Stuck { bdf, driver, seconds, holders })
            }
            // Unbound meanwhile, such as by unloading its driver.
            Err(_) if self.now(bdf)?.driver.is_none() => Ok(()),
            written => written,
        }
    }

    /// Lets the kernel look for a driver.
    fn probe(&self, bdf: Bdf) -> Result<(), BindError> {
        self.kernel.write("sys/bus/pci/drivers_probe", &bdf.to_string(), PROBE_S)
    }

    /// Checks a function until it is as wanted or the attempts are used up.
    fn look(&self, bdf: Bdf, good: impl Fn(&Binding) -> bool) -> Result<Binding, BindError> {
        let mut now = self.now(bdf)?;
        for _ in 0..LOOKS {
            if good(&now) {
                break;
            }
            std::thread::sleep(self.pause);
            now = self.now(bdf)?;
        }
        Ok(now)
    }

    /// Returns the holder of a function, as far as visible. `driver_override` is not read for it.
    fn holders(&self, bdf: Bdf) -> Vec<String> {
        let Ok(topology) = crate::discover::discover(self.root) else { return Vec::new() };
        let seen = crate::function_users::read(self.root, &topology, &[bdf]).unwrap_or_default();
        seen.uses.into_iter().map(|used| used.by).collect()
    }
}

/// Binds on this machine; owners of functions are looked up in the domains of `hypervisor`.
/// `force`: processes using it are ignored.
pub fn on_this_machine<T>(
    hypervisor: &dyn Hypervisor,
    force: bool,
    work: impl FnOnce(&Binder<'_>) -> Result<T, BindError>,
) -> Result<T, BindError> {
    owner::on_this_machine(hypervisor, force, |owner| {
        let (root, pause) = (owner.root, Duration::from_millis(100));
        work(&Binder { root, kernel: &Live, owner, pause })
    })
}
