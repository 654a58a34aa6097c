//! Steps on the hypervisor's networks. All are idempotent, so doing, undoing and repeating after an
//! interruption are the same operation.

use super::StepError;
use crate::hypervisor::network::NetworkState;
use crate::hypervisor::{Hypervisor, HypervisorError, HypervisorErrorKind};
use gpuvm_core::network::Network;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One change of a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum NetworkStep {
    /// Defines a network with an unused name.
    Define {
        /// Its name.
        name: String,
        /// Its definition.
        xml: String,
    },
    /// Changes the definition of a network that is down.
    Redefine {
        /// Its name.
        name: String,
        /// Its definition.
        xml: String,
        /// The one that it had.
        before: String,
    },
    /// Starts a network.
    Start {
        /// Its name.
        name: String,
    },
    /// Stops a network; its guests lose their links.
    Stop {
        /// Its name.
        name: String,
    },
    /// Sets whether a network starts with the hypervisor.
    Autostart {
        /// Its name.
        name: String,
        /// Whether it does.
        on: bool,
    },
    /// Removes the definition of a network.
    Undefine {
        /// Its name.
        name: String,
        /// Its definition, to restore it if a later step fails.
        xml: String,
    },
    /// Reads a network back, and compares it with the plan.
    Check {
        /// Its name.
        name: String,
        /// The planned definition.
        xml: String,
        /// Whether it must be up.
        active: bool,
    },
}

impl fmt::Display for NetworkStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetworkStep::Define { name, .. } => write!(f, "define network `{name}`"),
            NetworkStep::Redefine { name, .. } => {
                write!(f, "change the definition of network `{name}`")
            }
            NetworkStep::Start { name } => write!(f, "start network `{name}`"),
            NetworkStep::Stop { name } => write!(f, "stop network `{name}`"),
            NetworkStep::Autostart { name, on: true } => {
                write!(f, "have network `{name}` start with libvirt")
            }
            NetworkStep::Autostart { name, on: false } => {
                write!(f, "have network `{name}` not start with libvirt")
            }
            NetworkStep::Undefine { name, .. } => write!(f, "undefine network `{name}`"),
            NetworkStep::Check { name, .. } => {
                write!(f, "compare network `{name}` with the plan")
            }
        }
    }
}

impl NetworkStep {
    fn name(&self) -> &str {
        match self {
            NetworkStep::Define { name, .. }
            | NetworkStep::Redefine { name, .. }
            | NetworkStep::Start { name }
            | NetworkStep::Stop { name }
            | NetworkStep::Autostart { name, .. }
            | NetworkStep::Undefine { name, .. }
            | NetworkStep::Check { name, .. } => name,
        }
    }

    /// Whether an interrupted run that has begun it is finished rather than undone: links that
    /// guests have lost do not come back.
    pub(super) fn takes_away(&self) -> bool {
        matches!(self, NetworkStep::Stop { .. } | NetworkStep::Undefine { .. })
    }

    pub(super) fn is_undone(&self) -> bool {
        !matches!(self, NetworkStep::Check { .. })
    }

    /// The network as it is; `None` if it is not there.
    fn now(&self, hypervisor: &dyn Hypervisor) -> Result<Option<NetworkState>, HypervisorError> {
        hypervisor.networks().network(self.name())
    }

    /// The error of a network that differs from the required one.
    fn refused(&self, kind: HypervisorErrorKind, message: String) -> StepError {
        HypervisorError { kind, doing: self.to_string(), message }.into()
    }

    /// Refuses a step whose network is not as it was when the change was planned.
    pub(super) fn expects(&self, hypervisor: &dyn Hypervisor) -> Result<(), StepError> {
        use HypervisorErrorKind::{Exists, NoNetwork, WrongState};
        let now = self.now(hypervisor)?;
        match (self, now) {
            (NetworkStep::Define { .. }, Some(_)) => {
                let message = format!("{} has a network of this name", hypervisor.uri());
                Err(self.refused(Exists, message))
            }
            (NetworkStep::Redefine { .. } | NetworkStep::Undefine { .. }, Some(now))
                if now.active =>
            {
                let message = "it is active: it was started again meanwhile".to_owned();
                Err(self.refused(WrongState, message))
            }
            (NetworkStep::Redefine { name, before, .. }, Some(now)) if now.xml != *before => {
                Err(StepError::NetworkEdited { name: name.clone() })
            }
            (NetworkStep::Redefine { .. } | NetworkStep::Autostart { .. }, None) => {
                Err(self.refused(NoNetwork, "it no longer exists".into()))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn perform(&self, hypervisor: &dyn Hypervisor) -> Result<(), StepError> {
        let networks = hypervisor.networks();
        match self {
            NetworkStep::Define { xml, .. } | NetworkStep::Redefine { xml, .. } => {
                networks.define_network(xml)?;
            }
            NetworkStep::Start { name } => {
                if !self.now(hypervisor)?.is_some_and(|now| now.active) {
                    networks.start_network(name)?;
                }
            }
            NetworkStep::Stop { name } => {
                if self.now(hypervisor)?.is_some_and(|now| now.active) {
                    networks.stop_network(name)?;
                }
            }
            NetworkStep::Autostart { name, on } => networks.autostart_network(name, *on)?,
            // A transient network is gone once it is stopped.
            NetworkStep::Undefine { name, .. } => {
                if self.now(hypervisor)?.is_some() {
                    networks.undefine_network(name)?;
                }
            }
            NetworkStep::Check { xml, active, .. } => self.check(hypervisor, xml, *active)?,
        }
        Ok(())
    }

    /// Refuses a network that differs from the plan.
    fn check(&self, hypervisor: &dyn Hypervisor, xml: &str, active: bool) -> Result<(), StepError> {
        let other = |seen: String| StepError::OtherNetwork { name: self.name().to_owned(), seen };
        let now = self.now(hypervisor)?.ok_or_else(|| other("it is not there".into()))?;
        let (planned, defined) = (Network::read(xml).map_err(other)?, now.now());
        let mut seen = planned.differences(&Network::read(defined).map_err(other)?);
        if active && !now.active {
            seen.push("it is down".into());
        }
        if seen.is_empty() { Ok(()) } else { Err(other(seen.join("; "))) }
    }

    /// Undoes the step if it was done or may have been.
    pub(super) fn undo(&self, hypervisor: &dyn Hypervisor) -> Result<(), StepError> {
        let networks = hypervisor.networks();
        let now = self.now(hypervisor)?;
        let is_active = now.as_ref().is_some_and(|now| now.active);
        match (self, &now) {
            (NetworkStep::Define { name, .. }, Some(_)) => {
                if is_active {
                    networks.stop_network(name)?;
                }
                networks.undefine_network(name)?;
            }
            (NetworkStep::Redefine { before, .. }, Some(_)) => networks.define_network(before)?,
            (NetworkStep::Start { name }, Some(_)) if is_active => networks.stop_network(name)?,
            (NetworkStep::Stop { name }, Some(_)) if !is_active => networks.start_network(name)?,
            (NetworkStep::Autostart { name, on }, Some(_)) => {
                networks.autostart_network(name, !on)?;
            }
            (NetworkStep::Undefine { xml, .. }, None) => networks.define_network(xml)?,
            _ => {}
        }
        Ok(())
    }
}
