//! Steps on running guests, whose definitions stay: each is over when its guest stops.

use super::StepError;
use super::noun::{Noun, Ours};
use crate::apply::proven::running;
use crate::apply::{Observer, attach, detach, vcpus};
use crate::hypervisor::Hypervisor;
use crate::identity::{Identity, Proof};
use gpuvm_core::cpuset::CpuSet;
use gpuvm_core::domain::live::{GuestThread, Plugged};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How long a guest may take to let go of a disk or another device, in seconds. A PCI Express slot
/// takes five to be empty.
pub const LET_GO_S: u64 = 30;

/// One change of a running guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum LiveStep {
    /// Attaches a disk to a running guest; the definition is unchanged.
    AttachDisk {
        /// The domain's name.
        name: String,
        /// The disk's path on the host.
        path: String,
        /// The disk, as a device of the running guest.
        xml: String,
    },
    /// Asks a running guest to release a disk and waits until it has. The definition is unchanged.
    DetachDisk {
        /// The domain's name.
        name: String,
        /// The disk's path on the host.
        path: String,
        /// Time limit in seconds.
        wait_s: u64,
        /// The disk before, which undoing attaches again; `None` if not undone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        xml: Option<String>,
    },
    /// Attaches a NIC or a passed-through function to a running guest; the definition is unchanged.
    AttachDevice {
        /// The domain's name.
        name: String,
        /// Its identity among the guest's devices.
        device: Plugged,
        /// The device.
        xml: String,
    },
    /// Asks a running guest to release a NIC or a passed-through function and waits until it has.
    /// The definition is unchanged.
    DetachDevice {
        /// The domain's name.
        name: String,
        /// Its identity among the guest's devices.
        device: Plugged,
        /// Time limit in seconds.
        wait_s: u64,
        /// The device before, which undoing attaches again.
        xml: String,
    },
    /// Pins a thread of a running guest to other pcpus; the definition is unchanged.
    #[serde(rename = "pin-thread")]
    Pin {
        /// The domain's name.
        name: String,
        /// The thread.
        thread: GuestThread,
        /// The new pcpus.
        pcpus: CpuSet,
        /// The previous pcpus.
        was: CpuSet,
    },
    /// Plugs vCPUs into a running guest, or takes some; the definition is unchanged.
    PlugVcpus {
        /// The domain's name.
        name: String,
        /// How many it has then.
        vcpus: u32,
        /// How many it had.
        was: u32,
    },
    /// Changes settings of a device of a running guest; the definition is unchanged.
    #[serde(rename = "update-device")]
    Update {
        /// The domain's name.
        name: String,
        /// The device, for people: "interface 52:54:00:00:00:01".
        device: String,
        /// The device afterwards.
        xml: String,
        /// The device before.
        was: String,
    },
}

impl LiveStep {
    /// The domain's name.
    fn name(&self) -> &String {
        match self {
            LiveStep::AttachDisk { name, .. }
            | LiveStep::DetachDisk { name, .. }
            | LiveStep::AttachDevice { name, .. }
            | LiveStep::DetachDevice { name, .. }
            | LiveStep::Pin { name, .. }
            | LiveStep::PlugVcpus { name, .. }
            | LiveStep::Update { name, .. } => name,
        }
    }

    pub(super) fn name_mut(&mut self) -> &mut String {
        match self {
            LiveStep::AttachDisk { name, .. }
            | LiveStep::DetachDisk { name, .. }
            | LiveStep::AttachDevice { name, .. }
            | LiveStep::DetachDevice { name, .. }
            | LiveStep::Pin { name, .. }
            | LiveStep::PlugVcpus { name, .. }
            | LiveStep::Update { name, .. } => name,
        }
    }

    /// The step that reverts it; `None` if it is not undone.
    pub(super) fn reversed(&self) -> Option<LiveStep> {
        let name = self.name().clone();
        Some(match self.clone() {
            LiveStep::AttachDisk { path, xml, .. } => {
                LiveStep::DetachDisk { name, path, wait_s: LET_GO_S, xml: Some(xml) }
            }
            LiveStep::DetachDisk { path, xml, .. } => {
                LiveStep::AttachDisk { name, path, xml: xml? }
            }
            LiveStep::AttachDevice { device, xml, .. } => {
                LiveStep::DetachDevice { name, device, wait_s: LET_GO_S, xml }
            }
            LiveStep::DetachDevice { device, xml, .. } => {
                LiveStep::AttachDevice { name, device, xml }
            }
            LiveStep::Pin { thread, pcpus: was, was: pcpus, .. } => {
                LiveStep::Pin { name, thread, pcpus, was }
            }
            LiveStep::PlugVcpus { vcpus: was, was: vcpus, .. } => {
                LiveStep::PlugVcpus { name, vcpus, was }
            }
            LiveStep::Update { device, xml: was, was: xml, .. } => {
                LiveStep::Update { name, device, xml, was }
            }
        })
    }

    /// Whether it attaches a device or vCPUs to a running guest or detaches them.
    pub(super) fn is_plugging(&self) -> bool {
        !matches!(self, LiveStep::Pin { .. } | LiveStep::Update { .. })
    }

    /// Whether its product ends with the guest.
    pub(super) fn ends_with_guest(&self) -> bool {
        !self.leaves_nothing()
    }
}

impl Noun for LiveStep {
    fn expects(&self, hypervisor: &dyn Hypervisor) -> Result<(), StepError> {
        match self {
            LiveStep::AttachDisk { name, path, .. } => {
                attach::expects(hypervisor, name, &Plugged::Disk(path.clone()))
            }
            LiveStep::AttachDevice { name, device, .. } => {
                attach::expects(hypervisor, name, device)
            }
            _ => Ok(()),
        }
    }

    fn perform(
        &self,
        hypervisor: &dyn Hypervisor,
        observer: &mut dyn Observer,
        _ours: &mut Ours<'_>,
    ) -> Result<(), StepError> {
        match self {
            LiveStep::AttachDisk { name, path, xml } => {
                attach::device(hypervisor, name, &Plugged::Disk(path.clone()), xml)
            }
            LiveStep::DetachDisk { name, path, wait_s, .. } => {
                let device = Plugged::Disk(path.clone());
                detach::device(hypervisor, Some(observer), name, &device, *wait_s)
            }
            LiveStep::AttachDevice { name, device, xml } => {
                attach::device(hypervisor, name, device, xml)
            }
            LiveStep::DetachDevice { name, device, wait_s, .. } => {
                detach::device(hypervisor, Some(observer), name, device, *wait_s)
            }
            LiveStep::Pin { name, thread, pcpus, .. } => Ok(hypervisor.pin(name, *thread, pcpus)?),
            LiveStep::PlugVcpus { name, vcpus, .. } => vcpus::plug(hypervisor, name, *vcpus),
            LiveStep::Update { name, xml, .. } => Ok(hypervisor.update(name, xml)?),
        }
    }

    fn made(&self, hypervisor: &dyn Hypervisor) -> Option<Identity> {
        if self.leaves_nothing() {
            return None;
        }
        let name = self.name();
        let uuid = hypervisor.domain(name).ok()??.uuid;
        Some(Identity::Run { uuid, id: hypervisor.run_id(name).ok()? })
    }

    fn undo(&self, hypervisor: &dyn Hypervisor, proof: &Proof<'_>) -> Result<(), StepError> {
        if self.leaves_nothing() || !running(hypervisor, self.name(), proof)? {
            return Ok(());
        }
        match self {
            LiveStep::AttachDisk { name, path, .. } => {
                detach::device(hypervisor, None, name, &Plugged::Disk(path.clone()), LET_GO_S)
            }
            LiveStep::DetachDisk { name, path, xml, .. } => match xml {
                Some(xml) => attach::device(hypervisor, name, &Plugged::Disk(path.clone()), xml),
                None => Ok(()),
            },
            LiveStep::AttachDevice { name, device, .. } => {
                detach::device(hypervisor, None, name, device, LET_GO_S)
            }
            LiveStep::DetachDevice { name, device, xml, .. } => {
                attach::device(hypervisor, name, device, xml)
            }
            LiveStep::Pin { name, thread, was, .. } => Ok(hypervisor.pin(name, *thread, was)?),
            LiveStep::PlugVcpus { name, was, .. } => vcpus::unplug(hypervisor, name, *was),
            LiveStep::Update { name, was, .. } => Ok(hypervisor.update(name, was)?),
        }
    }

    fn ends_with_boot(&self) -> bool {
        self.ends_with_guest()
    }

    fn leaves_nothing(&self) -> bool {
        matches!(self, LiveStep::DetachDisk { xml: None, .. })
    }
}

impl fmt::Display for LiveStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LiveStep::AttachDisk { name, path, .. } => {
                write!(f, "attach disk {path} to running domain `{name}`")
            }
            LiveStep::DetachDisk { name, path, wait_s, .. } => {
                write!(f, "detach disk {path} from domain `{name}`, waiting up to {wait_s} s")
            }
            LiveStep::AttachDevice { name, device, .. } => {
                write!(f, "attach {device} to running domain `{name}`")
            }
            LiveStep::DetachDevice { name, device, wait_s, .. } => {
                write!(f, "detach {device} from domain `{name}`, waiting up to {wait_s} s")
            }
            LiveStep::Pin { name, thread, pcpus, .. } => {
                write!(f, "pin {thread} of running domain `{name}` to pcpus {pcpus}")
            }
            LiveStep::PlugVcpus { name, vcpus, was } => {
                write!(f, "change vCPUs of running domain `{name}` from {was} to {vcpus}")
            }
            LiveStep::Update { name, device, .. } => {
                write!(f, "change {device} of running domain `{name}`")
            }
        }
    }
}
