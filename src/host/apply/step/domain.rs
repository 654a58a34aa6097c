//! Steps on domains.

mod act;
mod undo;

use super::StepError;
use super::noun::{Noun, Ours};
use crate::apply::domain::{is_active, refused, row, started_again};
use crate::apply::firmware::is_bare;
use crate::apply::grow::GrowStep;
use crate::apply::{Observer, drive, last_check, lease};
use crate::hypervisor::{AskedBy, DomainState, Hypervisor, HypervisorErrorKind, XmlOf};
use crate::identity::{Identity, Proof, sum_of, uuid_of};
use gpuvm_core::domain::DomainXml;
use gpuvm_core::shell::word;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::Ipv4Addr;

/// One change of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum DomainStep {
    /// Defines a domain with an unused name.
    #[serde(rename = "define-domain")]
    Define {
        /// Its name.
        name: String,
        /// Its definition.
        xml: String,
    },
    /// Starts a domain.
    #[serde(rename = "start-domain")]
    Start {
        /// Its name.
        name: String,
        /// Its UUID; `None` if recorded by an older version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uuid: Option<String>,
    },
    /// Sets whether a domain starts with the host.
    Autostart {
        /// Its name.
        name: String,
        /// Its UUID.
        uuid: String,
        /// Whether it does; before, it was the other way.
        on: bool,
    },
    /// Asks a guest to shut down and waits until it has; undone only if it is to run again.
    #[serde(rename = "shut-down-domain")]
    ShutDown {
        /// Its name.
        name: String,
        /// Its UUID; `None` if recorded by an older version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uuid: Option<String>,
        /// How it is asked first; if its agent does not answer, by the power button.
        #[serde(default)]
        by: AskedBy,
        /// Time limit in seconds.
        wait_s: u64,
        /// Whether undoing it starts the guest again: it is off only for the rest of the change.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        restarts: bool,
    },
    /// Stops the vCPUs of a running domain, or resumes those of a paused one.
    #[serde(rename = "pause-domain")]
    Pause {
        /// Its name.
        name: String,
        /// Its UUID.
        uuid: String,
        /// Whether they are stopped; before, it was the other way.
        paused: bool,
    },
    /// Powers a domain off; not undone.
    #[serde(rename = "end-domain")]
    End {
        /// Its name.
        name: String,
        /// Its UUID; `None` if recorded by an older version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uuid: Option<String>,
    },
    /// Removes a domain's definition and its saved state; its NVRAM is kept until the removal is
    /// final.
    #[serde(rename = "undefine-domain")]
    Undefine {
        /// Its name.
        name: String,
        /// Its definition, to restore it if a later step fails.
        xml: String,
    },
    /// Removes the NVRAM of an undefined domain; not undone, so it comes last.
    DropNvram {
        /// Its name.
        name: String,
        /// Its definition, which is restored for a moment: NVRAM can only be removed with a
        /// definition.
        xml: String,
        /// Whether the state of its emulated TPM is removed instead, in the same way.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        tpm: bool,
    },
    /// Changes the definition of a domain; the running guest is unchanged.
    #[serde(rename = "redefine-domain")]
    Redefine {
        /// Its name.
        name: String,
        /// Its definition.
        xml: String,
        /// The one that it had.
        before: String,
    },
    /// Gives a defined domain that is off another name.
    #[serde(rename = "rename-domain")]
    Rename {
        /// Its name.
        name: String,
        /// Its new name, which is free.
        to: String,
        /// Its UUID.
        uuid: String,
    },
    /// Grows a domain's disk; not undone, since shrinking it would cut off data.
    GrowDisk(GrowStep),
    /// Returns an address of a removed guest to a DHCP server of this machine; not undone, because
    /// the guest requests one again when it starts.
    ReleaseLease {
        /// The server.
        server: Ipv4Addr,
        /// The address.
        ip: Ipv4Addr,
        /// MAC address of the interface that has it.
        mac: String,
    },
}

impl DomainStep {
    /// The name of its domain; `None` if that is removed.
    pub(super) fn name_mut(&mut self) -> Option<&mut String> {
        match self {
            DomainStep::Start { name, .. }
            | DomainStep::ShutDown { name, .. }
            | DomainStep::End { name, .. }
            | DomainStep::GrowDisk(GrowStep { name, .. })
            | DomainStep::Autostart { name, .. }
            | DomainStep::Pause { name, .. } => Some(name),
            _ => None,
        }
    }

    /// The step that reverts it; `None` if there is none, or its product is removed by other means.
    pub(super) fn reversed(&self) -> Option<DomainStep> {
        let mut back = self.clone();
        match &mut back {
            DomainStep::Redefine { xml, before, .. } => std::mem::swap(xml, before),
            DomainStep::Autostart { on, .. } => *on = !*on,
            DomainStep::Pause { paused, .. } => *paused = !*paused,
            _ => return None,
        }
        Some(back)
    }

    /// Refuses a name that a domain has.
    fn refuse_taken(&self, name: &str, hypervisor: &dyn Hypervisor) -> Result<(), StepError> {
        if row(hypervisor, name)?.is_none() {
            return Ok(());
        }
        let message = format!("{} has a domain of this name", hypervisor.uri());
        Err(refused(HypervisorErrorKind::Exists, self, message).into())
    }
}

impl Noun for DomainStep {
    fn expects(&self, hypervisor: &dyn Hypervisor) -> Result<(), StepError> {
        match self {
            DomainStep::Define { name, xml } => {
                self.refuse_taken(name, hypervisor)?;
                drive::expect_domain(xml, false, hypervisor)?;
                last_check::expects_disks(xml, false, hypervisor)
            }
            DomainStep::Start { name, .. } => {
                if row(hypervisor, name)? == Some(DomainState::Running) {
                    let message = "it runs already".to_owned();
                    return Err(refused(HypervisorErrorKind::WrongState, self, message).into());
                }
                // If its definition cannot be read, it cannot be started either.
                let Ok(xml) = hypervisor.xml(name, XmlOf::Inactive) else { return Ok(()) };
                drive::expect_domain(&xml, true, hypervisor)?;
                last_check::expects_disks(&xml, true, hypervisor)
            }
            DomainStep::Rename { to, .. } => self.refuse_taken(to, hypervisor),
            DomainStep::Undefine { name, .. } if is_active(row(hypervisor, name)?) => {
                Err(started_again(self).into())
            }
            _ => Ok(()),
        }
    }

    fn stays(
        &self,
        _later: bool,
        hypervisor: &dyn Hypervisor,
    ) -> Result<Option<String>, StepError> {
        match self {
            DomainStep::DropNvram { xml, tpm, .. } => {
                last_check::state_stays(xml, *tpm, hypervisor)
            }
            _ => Ok(None),
        }
    }

    fn perform(
        &self,
        hypervisor: &dyn Hypervisor,
        observer: &mut dyn Observer,
        ours: &mut Ours<'_>,
    ) -> Result<(), StepError> {
        match self {
            DomainStep::Define { xml, .. } => Ok(hypervisor.define(xml)?),
            DomainStep::Start { name, .. } => Ok(hypervisor.start(name)?),
            DomainStep::Autostart { name, on, .. } => Ok(hypervisor.set_autostart(name, *on)?),
            DomainStep::ShutDown { name, by, wait_s, .. } => {
                act::shut_down(hypervisor, observer, name, *by, *wait_s)
            }
            DomainStep::Pause { name, paused, .. } => Ok(hypervisor.pause(name, *paused)?),
            DomainStep::End { name, .. } => Ok(hypervisor.destroy(name)?),
            DomainStep::Undefine { name, xml } => act::undefine(self, hypervisor, name, xml),
            DomainStep::DropNvram { name, xml, tpm } => {
                Ok(act::drop_state(hypervisor, observer, (name, xml, *tpm))?)
            }
            DomainStep::Redefine { name, xml, before } => {
                act::redefine(hypervisor, name, xml, before)
            }
            DomainStep::Rename { name, to, .. } => Ok(hypervisor.rename(name, to)?),
            DomainStep::GrowDisk(grow) => grow.perform(ours.later, hypervisor, observer),
            DomainStep::ReleaseLease { server, ip, mac } => {
                lease::give_back(hypervisor, (*server, *ip), mac, observer);
                Ok(())
            }
        }
    }

    fn made(&self, hypervisor: &dyn Hypervisor) -> Option<Identity> {
        let uuid = |name: &str| Some(hypervisor.domain(name).ok()??.uuid);
        match self {
            DomainStep::Define { name, .. } => {
                let bare = is_bare(hypervisor, name).unwrap_or(false);
                Some(Identity::Domain { uuid: uuid(name)?, bare })
            }
            DomainStep::Start { name, .. } => {
                Some(Identity::Run { uuid: uuid(name)?, id: hypervisor.run_id(name).ok()? })
            }
            DomainStep::Redefine { name, .. } => {
                let sum = sum_of(&hypervisor.xml(name, XmlOf::Inactive).ok()?);
                Some(Identity::Definition { uuid: uuid(name)?, sum })
            }
            _ => None,
        }
    }

    fn undo(&self, hypervisor: &dyn Hypervisor, proof: &Proof<'_>) -> Result<(), StepError> {
        match self {
            DomainStep::Define { name, xml } => undo::definition(hypervisor, name, xml, proof),
            DomainStep::Start { name, uuid } => undo::run(hypervisor, name, uuid.as_deref(), proof),
            DomainStep::Autostart { name, uuid, on } => {
                undo::autostart(hypervisor, name, uuid, !on)
            }
            DomainStep::ShutDown { name, uuid, wait_s, restarts: true, .. } => {
                undo::run_again(hypervisor, name, uuid.as_deref(), *wait_s)
            }
            DomainStep::Pause { name, uuid, paused } => {
                undo::pause(hypervisor, name, uuid, !paused)
            }
            DomainStep::Undefine { name, xml } => undo::define_again(hypervisor, name, xml),
            DomainStep::Redefine { name, xml, before } => {
                undo::define_as_before(hypervisor, name, (xml, before), proof)
            }
            DomainStep::Rename { name, to, uuid } => undo::rename_back(hypervisor, name, to, uuid),
            DomainStep::ShutDown { restarts: false, .. }
            | DomainStep::End { .. }
            | DomainStep::DropNvram { .. }
            | DomainStep::GrowDisk(_)
            | DomainStep::ReleaseLease { .. } => Ok(()),
        }
    }

    fn domain(&self) -> Option<(&str, Option<String>)> {
        match self {
            DomainStep::Start { name, uuid }
            | DomainStep::ShutDown { name, uuid, .. }
            | DomainStep::End { name, uuid } => Some((name, uuid.clone())),
            DomainStep::Undefine { name, xml } => Some((name, uuid_of(xml))),
            DomainStep::GrowDisk(GrowStep { name, uuid, .. })
            | DomainStep::Rename { name, uuid, .. }
            | DomainStep::Pause { name, uuid, .. }
            | DomainStep::Autostart { name, uuid, .. } => Some((name, Some(uuid.clone()))),
            DomainStep::Redefine { name, before, .. } => Some((name, uuid_of(before))),
            DomainStep::Define { .. }
            | DomainStep::DropNvram { .. }
            | DomainStep::ReleaseLease { .. } => None,
        }
    }

    fn by_hand(&self) -> Option<String> {
        Some(match self {
            DomainStep::Define { name, .. } => format!("gpuvm delete {}", word(name)),
            DomainStep::Start { name, .. } => format!("gpuvm stop {}", word(name)),
            DomainStep::ShutDown { name, .. } => format!("gpuvm start {}", word(name)),
            DomainStep::Pause { name, paused, .. } => {
                format!("gpuvm {} {}", if *paused { "resume" } else { "pause" }, word(name))
            }
            DomainStep::Redefine { name, .. } => format!("gpuvm history {} --diff", word(name)),
            DomainStep::Rename { name, to, .. } => {
                format!("gpuvm rename {} {}", word(to), word(name))
            }
            _ => return None,
        })
    }

    fn ends_with_boot(&self) -> bool {
        matches!(self, DomainStep::Start { .. } | DomainStep::Pause { .. })
    }

    fn is_final(&self) -> bool {
        matches!(self, DomainStep::DropNvram { .. } | DomainStep::GrowDisk(_))
    }

    fn takes_away(&self) -> bool {
        self.leaves_nothing() || matches!(self, DomainStep::Undefine { .. })
    }

    fn leaves_nothing(&self) -> bool {
        matches!(
            self,
            DomainStep::ShutDown { restarts: false, .. }
                | DomainStep::End { .. }
                | DomainStep::ReleaseLease { .. }
        )
    }

    fn is_of_machine(&self) -> bool {
        match self {
            DomainStep::ReleaseLease { .. } => true,
            DomainStep::GrowDisk(grow) => grow.is_of_machine(),
            _ => false,
        }
    }

    fn is_needed_by_guest(&self) -> bool {
        matches!(
            self,
            DomainStep::Start { .. }
                | DomainStep::Define { .. }
                | DomainStep::Undefine { .. }
                | DomainStep::Redefine { .. }
        )
    }
}

impl fmt::Display for DomainStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DomainStep::Define { name, .. } => write!(f, "define domain `{name}`"),
            DomainStep::Start { name, .. } => write!(f, "start domain `{name}`"),
            DomainStep::Autostart { name, on, .. } => {
                let not = if *on { "" } else { "not " };
                write!(f, "have domain `{name}` {not}start with the host")
            }
            DomainStep::ShutDown { name, by, wait_s, restarts, .. } => {
                let by = match by {
                    AskedBy::Agent => "its agent",
                    AskedBy::PowerButton => "the power button",
                };
                let again = if *restarts { ", to start it again" } else { "" };
                write!(f, "shut down domain `{name}` by {by}, waiting up to {wait_s} s{again}")
            }
            DomainStep::Pause { name, paused: true, .. } => write!(f, "pause domain `{name}`"),
            DomainStep::Pause { name, .. } => write!(f, "resume domain `{name}`"),
            DomainStep::End { name, .. } => write!(f, "end domain `{name}` as a power cut does"),
            DomainStep::Undefine { name, .. } => {
                write!(f, "undefine domain `{name}` with its saved state")
            }
            DomainStep::DropNvram { name, tpm: true, .. } => {
                write!(f, "delete the TPM state of domain `{name}`")
            }
            DomainStep::DropNvram { name, xml, .. } => {
                match DomainXml::parse(xml).ok().as_ref().and_then(DomainXml::nvram) {
                    Some(path) => write!(f, "delete NVRAM {path} of domain `{name}`"),
                    None => write!(f, "delete the NVRAM of domain `{name}`"),
                }
            }
            DomainStep::Redefine { name, .. } => {
                write!(f, "change the definition of domain `{name}`")
            }
            DomainStep::Rename { name, to, .. } => write!(f, "rename domain `{name}` to `{to}`"),
            DomainStep::GrowDisk(grow) => grow.fmt(f),
            DomainStep::ReleaseLease { ip, mac, .. } => {
                write!(f, "release the lease of {ip} by {mac}")
            }
        }
    }
}
