//! Steps on the host and on networks, whose nouns have types of their own.

use super::StepError;
use super::noun::{Noun, Ours};
use crate::apply::Observer;
use crate::apply::array::ArrayStep;
use crate::apply::drive::WipeStep;
use crate::apply::hostnet::HostNetStep;
use crate::apply::network::NetworkStep;
use crate::apply::nic::NicStep;
use crate::apply::p2p::P2pStep;
use crate::apply::pages::{self, PagesStep};
use crate::apply::setting::{SettingError, SettingStep};
use crate::apply::text::TextStep;
use crate::apply::vgpu::VgpuStep;
use crate::fsroot::FsRoot;
use crate::hypervisor::Hypervisor;
use crate::identity::Proof;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One change of the host or of a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum HostStep {
    /// Changes an array, its content, or a file that refers to it.
    Array(ArrayStep),
    /// Erases a whole drive; not undone.
    WipeDrive(WipeStep),
    /// Changes a network card with virtual functions.
    Nic(NicStep),
    /// Changes vGPUs of a GPU.
    Vgpu(VgpuStep),
    /// Changes a switch port.
    P2p(P2pStep),
    /// Changes the number of huge pages of a node.
    SetPages(PagesStep),
    /// Changes a libvirt network.
    Network(NetworkStep),
    /// Changes one place of a text file that others own.
    EditText(TextStep),
    /// Changes a setting of the kernel.
    Set(SettingStep),
    /// Changes the host's own network.
    HostNet(HostNetStep),
}

impl HostStep {
    /// The step that reverts it; `None` if there is none.
    pub(super) fn reversed(&self) -> Option<HostStep> {
        let mut back = self.clone();
        match &mut back {
            // Its caller reverses it based on the file's current content.
            HostStep::EditText(_) => {}
            HostStep::Set(setting) => std::mem::swap(&mut setting.to, &mut setting.was),
            HostStep::SetPages(pages) => {
                std::mem::swap(&mut pages.to, &mut pages.was);
                pages.needed = 0;
            }
            _ => return None,
        }
        Some(back)
    }
}

impl Noun for HostStep {
    fn expects(&self, hypervisor: &dyn Hypervisor) -> Result<(), StepError> {
        match self {
            HostStep::Array(step) => step.expects()?,
            HostStep::WipeDrive(step) => step.expects(hypervisor)?,
            HostStep::Nic(step) => step.expects(hypervisor)?,
            HostStep::Vgpu(step) => step.expects(hypervisor)?,
            HostStep::P2p(step) => step.expects()?,
            HostStep::SetPages(step) => pages::on_this_machine(|pages| pages.expect(step))?,
            HostStep::Network(step) => step.expects(hypervisor)?,
            HostStep::EditText(step) => step.expects()?,
            HostStep::Set(step) => step.expects(&FsRoot::live().map_err(SettingError::from)?)?,
            HostStep::HostNet(step) => step.expects()?,
        }
        Ok(())
    }

    fn perform(
        &self,
        hypervisor: &dyn Hypervisor,
        observer: &mut dyn Observer,
        _ours: &mut Ours<'_>,
    ) -> Result<(), StepError> {
        match self {
            HostStep::Array(step) => step.perform()?,
            HostStep::WipeDrive(step) => step.perform(hypervisor, observer)?,
            HostStep::Nic(step) => step.perform(hypervisor)?,
            HostStep::Vgpu(step) => step.perform(hypervisor, observer)?,
            HostStep::P2p(step) => step.perform(observer)?,
            HostStep::SetPages(step) => pages::on_this_machine(|pages| pages.perform(step))?,
            HostStep::Network(step) => step.perform(hypervisor)?,
            HostStep::EditText(step) => step.perform()?,
            HostStep::Set(step) => step.perform()?,
            HostStep::HostNet(step) => step.perform(observer)?,
        }
        Ok(())
    }

    fn undo(&self, hypervisor: &dyn Hypervisor, _: &Proof<'_>) -> Result<(), StepError> {
        match self {
            HostStep::Array(step) => step.undo()?,
            HostStep::WipeDrive(_) => {}
            HostStep::Nic(step) => step.undo(hypervisor)?,
            HostStep::Vgpu(step) => step.undo(hypervisor)?,
            HostStep::P2p(step) => step.undo()?,
            HostStep::SetPages(step) => pages::on_this_machine(|pages| pages.undo(step))?,
            HostStep::Network(step) => step.undo(hypervisor)?,
            HostStep::EditText(step) => step.undo()?,
            HostStep::Set(step) => step.undo()?,
            HostStep::HostNet(step) => step.undo()?,
        }
        Ok(())
    }

    fn gives_back(&self) -> bool {
        match self {
            HostStep::Nic(step) => step.gives_back(),
            HostStep::Vgpu(step) => step.gives_back(),
            HostStep::P2p(step) => step.gives_back(),
            _ => false,
        }
    }

    fn ends_with_boot(&self) -> bool {
        matches!(
            self,
            HostStep::SetPages(_)
                | HostStep::Set(_)
                | HostStep::Nic(_)
                | HostStep::Vgpu(_)
                | HostStep::P2p(_)
        )
    }

    fn is_final(&self) -> bool {
        match self {
            HostStep::Array(step) => step.is_final(),
            HostStep::WipeDrive(_) => true,
            _ => false,
        }
    }

    fn takes_away(&self) -> bool {
        matches!(self, HostStep::Network(step) if step.takes_away())
    }

    fn leaves_nothing(&self) -> bool {
        match self {
            HostStep::Array(step) => !step.is_undone(),
            HostStep::Network(step) => !step.is_undone(),
            HostStep::HostNet(step) => !step.is_undone(),
            _ => false,
        }
    }

    fn is_of_host(&self) -> bool {
        !matches!(self, HostStep::Network(_))
    }
}

impl fmt::Display for HostStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostStep::Array(step) => step.fmt(f),
            HostStep::WipeDrive(step) => step.fmt(f),
            HostStep::Nic(step) => step.fmt(f),
            HostStep::Vgpu(step) => step.fmt(f),
            HostStep::P2p(step) => step.fmt(f),
            HostStep::SetPages(step) => step.fmt(f),
            HostStep::Network(step) => step.fmt(f),
            HostStep::EditText(step) => step.fmt(f),
            HostStep::Set(step) => step.fmt(f),
            HostStep::HostNet(step) => step.fmt(f),
        }
    }
}
