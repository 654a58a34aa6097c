//! Steps on PCI functions of this machine: which driver has them.

use super::StepError;
use super::noun::{Noun, Ours};
use crate::apply::error::BindError;
use crate::apply::owner::Owner as _;
use crate::apply::{Observer, bind, drive, owner};
use crate::hypervisor::Hypervisor;
use crate::identity::Proof;
use gpuvm_core::bdf::Bdf;
use gpuvm_core::topology::{Binding, is_vfio};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One change of a PCI function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum DeviceStep {
    /// Binds a PCI function to another driver.
    #[serde(rename = "bind-device")]
    Bind {
        /// The function.
        bdf: Bdf,
        /// The driver to bind it to.
        to: Binding,
        /// The driver that it is bound to.
        was: Binding,
        /// Whether processes that have it open are ignored; guests never are.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Takes a PCI function from guests and lets the kernel choose its driver.
    #[serde(rename = "release-device")]
    Release {
        /// The function.
        bdf: Bdf,
        /// The driver that it is bound to.
        was: Binding,
        /// Whether processes that have it open are ignored; guests never are.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Resets an unused PCI function; not undone.
    #[serde(rename = "reset-device")]
    Reset {
        /// The function.
        bdf: Bdf,
        /// Whether its guest is gone, so that a function that others use now is left alone.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        back: bool,
    },
}

impl DeviceStep {
    /// The step that reverts it; `None` if there is none.
    pub(super) fn reversed(&self) -> Option<DeviceStep> {
        let mut back = self.clone();
        let DeviceStep::Bind { to, was, .. } = &mut back else { return None };
        std::mem::swap(to, was);
        Some(back)
    }
}

impl Noun for DeviceStep {
    fn expects(&self, hypervisor: &dyn Hypervisor) -> Result<(), StepError> {
        match self {
            DeviceStep::Bind { bdf, to, was, force } => {
                bind::on_this_machine(hypervisor, *force, |binder| {
                    binder.expect(*bdf, was)?;
                    binder.expect_free(*bdf, to.driver.as_deref())
                })?;
                Ok(drive::expect_function(*bdf)?)
            }
            DeviceStep::Release { bdf, was, force } => {
                bind::on_this_machine(hypervisor, *force, |binder| {
                    binder.expect(*bdf, was)?;
                    binder.expect_free(*bdf, None)
                })?;
                Ok(())
            }
            DeviceStep::Reset { bdf, .. } => {
                owner::on_this_machine(hypervisor, false, |owner| owner.free(&[*bdf]).map(drop))?;
                Ok(())
            }
        }
    }

    fn perform(
        &self,
        hypervisor: &dyn Hypervisor,
        _observer: &mut dyn Observer,
        _ours: &mut Ours<'_>,
    ) -> Result<(), StepError> {
        match self {
            DeviceStep::Bind { bdf, to, was, force } => {
                bind::on_this_machine(hypervisor, *force, |binder| binder.change(*bdf, was, to))?;
            }
            DeviceStep::Release { bdf, was, force } => {
                bind::on_this_machine(hypervisor, *force, |binder| binder.release(*bdf, was))?;
            }
            DeviceStep::Reset { bdf, .. } => {
                bind::on_this_machine(hypervisor, false, |binder| binder.reset(*bdf))?;
            }
        }
        Ok(())
    }

    fn undo(&self, hypervisor: &dyn Hypervisor, _: &Proof<'_>) -> Result<(), StepError> {
        match self {
            // Not by force: processes that have it open now appeared since.
            DeviceStep::Bind { bdf, was, .. } | DeviceStep::Release { bdf, was, .. } => {
                match bind::on_this_machine(hypervisor, false, |binder| binder.set(*bdf, was)) {
                    // A function that is gone needs no undo.
                    Err(BindError::Absent { .. }) => Ok(()),
                    undone => undone.map_err(StepError::from),
                }
            }
            DeviceStep::Reset { .. } => Ok(()),
        }
    }

    fn gives_back(&self) -> bool {
        match self {
            DeviceStep::Bind { to, was, .. } => {
                let is_vfio = |binding: &Binding| binding.driver.as_deref().is_some_and(is_vfio);
                is_vfio(was) && !is_vfio(to)
            }
            DeviceStep::Release { .. } => false,
            DeviceStep::Reset { back, .. } => *back,
        }
    }

    fn ends_with_boot(&self) -> bool {
        true
    }

    fn leaves_nothing(&self) -> bool {
        matches!(self, DeviceStep::Reset { .. })
    }

    fn is_of_host(&self) -> bool {
        true
    }
}

impl fmt::Display for DeviceStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceStep::Bind { bdf, to, was, .. } if to.driver == was.driver => {
                let to = to.driver_override.as_deref().unwrap_or("any driver");
                write!(f, "reserve {bdf} for {to}")
            }
            DeviceStep::Bind { bdf, to, was, .. } => match &to.driver {
                Some(driver) => write!(f, "bind {bdf} to {driver}, from {}", was.driver_text()),
                None => write!(f, "unbind {bdf} from {}", was.driver_text()),
            },
            DeviceStep::Release { bdf, was, .. } => {
                write!(f, "release {bdf} from {} to the host", was.driver_text())
            }
            DeviceStep::Reset { bdf, .. } => write!(f, "reset {bdf}"),
        }
    }
}
