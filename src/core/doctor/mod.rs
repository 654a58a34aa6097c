//! Says what will go wrong with GPU guests on a host before anything is planned: rules on the
//! topology, the facts beside it, and what domains hold. Pure: values in, findings out; it reads
//! nothing and changes nothing. The rules of one domain are those of [`crate::check`].

mod boot;
mod coherent;
mod device;
mod fix;
mod guests;
mod iommu;
mod journal;
mod memory;
mod needs;
mod peers;
mod report;
mod speed;
mod vgpu;

pub use fix::script;
pub use guests::{NO_VHOST, NO_VHOST_HINT};
pub use iommu::ACS_OVERRIDE;
pub use journal::{Entry, PATTERNS, is_kernel_log, search};
pub use needs::{Connection, NO_FIRMWARE, NO_KVM, NO_QEMU, missing};
pub use report::{Finding, OfHost};

use crate::bdf::Bdf;
use crate::check::SLOW_BARS;
use crate::finding::{Rule, Severity};
use crate::placement::Occupancy;
use crate::topology::{DeviceKind, Facts, PciDevice, Topology};
use crate::verify::{BALANCING, GOVERNOR, REJECTED, THP, UNHEALTHY};
use crate::versions::{Component, Concern, DEFECTS, Defect, Evidence, Version, Versions};
use report::{Outcome, Report};
use serde::Serialize;
use std::collections::BTreeSet;

/// Every rule, in the order in which users meet the problems.
const RULES: &[&Rule] = &[
    &NO_KVM,
    &needs::NO_LIBVIRT,
    &NO_QEMU,
    &NO_FIRMWARE,
    &needs::NO_GPU,
    &iommu::OFF,
    &iommu::NO_GROUPS,
    &boot::DRIVER_FIRST,
    &boot::REPLACEABLE,
    &boot::UNIDENTIFIED,
    &iommu::GROUP_SHARED,
    &ACS_OVERRIDE,
    &iommu::ACS_OFF,
    &REJECTED,
    &device::CONSOLE,
    &boot::HOLDERS,
    &coherent::COHERENT,
    &vgpu::ON_VFIO,
    &vgpu::UNBOUND,
    &vgpu::NO_TYPE,
    &device::D3COLD,
    &UNHEALTHY,
    &device::RESET,
    &device::BAR_WINDOW,
    &device::LANES,
    &memory::MEMLOCK,
    &iommu::RMRR,
    &iommu::IRQ_REMAP,
    &guests::UNTESTABLE,
    &guests::PERMISSION,
    &SLOW_BARS,
    &memory::FRAGMENTED,
    &memory::KSM,
    &speed::IRQBALANCE,
    &GOVERNOR,
    &BALANCING,
    &THP,
    &speed::ISOLATION,
    &peers::ACS_REDIRECT,
    &speed::ASPM,
    &iommu::MODE,
    &guests::CONFIDENTIAL,
    &guests::VULNERABLE,
    &guests::QEMU_USER,
    &guests::VHOST_NET,
    &guests::SHUTDOWN,
];

/// Rules that look at the kernel's command line.
const BY_ARGUMENTS: &[&Rule] = &[
    &iommu::OFF,
    &boot::DRIVER_FIRST,
    &ACS_OVERRIDE,
    &iommu::IRQ_REMAP,
    &memory::FRAGMENTED,
    &speed::ISOLATION,
    &iommu::MODE,
    &guests::CONFIDENTIAL,
];
const ARGUMENTS: &str = "proc/cmdline";

/// Every rule, one by one: those on files and guests first, then those on the kernel's log alone.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    RULES.iter().chain(journal::RULES).copied()
}

/// How many rules there are without a log, and with one.
pub fn count_of_rules(has_log: bool) -> usize {
    RULES.len() + if has_log { journal::RULES.len() } else { 0 }
}

/// A host and the known facts about it.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// Its topology.
    pub topology: &'a Topology,
    /// Facts beyond its topology.
    pub facts: &'a Facts,
    /// The occupancy of domains; `None` if not known.
    pub guests: Option<&'a Occupancy>,
    /// Versions of QEMU and libvirt.
    pub versions: &'a Versions,
    /// Whether libvirt passes functions through by iommufd; `None` if not known.
    pub offers_iommufd: Option<bool>,
    /// Whether libvirt answers, and its report.
    pub connection: &'a Connection,
    /// The traits of guests' definitions; `None` if not known.
    pub traits: Option<Traits>,
    /// Vulnerabilities that the installed package of libvirt lists as fixed: `CVE-2026-77158`.
    pub fixed: &'a BTreeSet<String>,
}

/// The traits of some definition of the host's guests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traits {
    /// A channel of the guest's agent.
    pub agent: bool,
    /// An emulated TPM.
    pub tpm: bool,
    /// A function passed through by iommufd.
    pub iommufd: bool,
    /// A function passed through by its VFIO group.
    pub group: bool,
}

impl Traits {
    /// Whether every guest with functions has them by iommufd.
    fn are_without_groups(self) -> bool {
        self.iommufd && !self.group
    }
}

/// A defect of a version that this host has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KnownDefect {
    /// The component.
    pub of: Component,
    /// Its version.
    pub version: Version,
    /// The effect.
    pub what: &'static str,
    /// The first version without it, if one is known.
    pub good_from: Option<Version>,
    /// The public source.
    pub source: &'static str,
    /// The reliability of the source.
    pub evidence: Evidence,
}

/// The findings about a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Diagnosis {
    /// Findings: errors first, then in the order of the rules.
    pub findings: Vec<Finding>,
    /// Defects of the versions that the host has.
    pub known_defects: Vec<KnownDefect>,
    /// Rules that were not checked, each with the reason.
    pub not_checked: Vec<String>,
    /// Rules that were checked in part, each with the missing part.
    pub partly_checked: Vec<String>,
}

impl Case<'_> {
    /// An argument of the kernel's command line, the last one of this name; empty: it has no value.
    fn argument(&self, name: &str) -> Option<&str> {
        let arguments = &self.topology.machine().kernel_arguments;
        arguments.iter().rev().find_map(|argument| {
            let (found, value) = argument.split_once('=').unwrap_or((argument, ""));
            (found == name).then_some(value)
        })
    }

    fn kernel(&self) -> Option<(&str, Version)> {
        let release = self.topology.machine().kernel_release.as_deref()?;
        Some((release, Version::read(release)?))
    }

    fn version(&self, of: Component) -> Option<Version> {
        match of {
            Component::Kernel => self.kernel().map(|(_, version)| version),
            Component::Qemu => self.versions.qemu,
            Component::Libvirt => self.versions.libvirt,
        }
    }

    /// The version with a defect, if the host has it.
    fn defect(&self, defect: &Defect) -> Option<Version> {
        let release = self.kernel().map(|(release, _)| release).unwrap_or_default();
        let is_with = |(of, from): (Component, Version)| {
            self.version(of).is_some_and(|version| version >= from)
        };
        let is_met = defect.with.is_none_or(is_with) && self.concerns(defect.concern);
        self.version(defect.of).filter(|version| is_met && defect.is_in(*version, release))
    }

    /// Whether a defect affects the host.
    fn concerns(&self, concern: Concern) -> bool {
        let machine = self.topology.machine();
        match concern {
            Concern::Every => true,
            Concern::Iommufd => {
                machine.iommufd.is_some_and(|iommufd| iommufd.node)
                    || self.traits.is_some_and(|traits| traits.iommufd)
            }
            Concern::IommufdPeers => {
                // GPUs with coherent memory have NVLink.
                let is_peer = |device: &&PciDevice| match device.kind() {
                    DeviceKind::Gpu => self.topology.coherent_model(device).is_none(),
                    kind => kind == DeviceKind::Nic,
                };
                let peers = self.topology.devices().iter().filter(is_peer).count();
                peers > 1 && self.concerns(Concern::Iommufd)
            }
            Concern::Amd => machine.cpu_vendor.as_deref() == Some("AuthenticAMD"),
            Concern::Arm => self.is_arm(),
            Concern::Function(ids) => {
                let devices = self.topology.devices().iter();
                { devices }.any(|device| ids.contains(&(device.vendor, device.device)))
            }
        }
    }

    /// Whether it is an Arm machine.
    fn is_arm(&self) -> bool {
        self.topology.machine().architecture.as_deref() == Some("aarch64")
    }

    /// The product of a machine, in parentheses after a blank; empty: unknown.
    fn product(&self) -> String {
        self.topology.machine().title().map_or_else(String::new, |title| format!(" ({title})"))
    }

    fn gpus(&self) -> impl Iterator<Item = &PciDevice> {
        self.topology.of_kind(DeviceKind::Gpu)
    }
}

/// How a device is named in a message.
fn name(device: &PciDevice) -> String {
    format!("GPU {} ({})", device.bdf, crate::topology::model::model(device))
}

/// Applies every rule.
pub fn diagnose(case: &Case<'_>) -> Diagnosis {
    let mut report = Report::new(case.facts);
    if let Some(why) = case.facts.unread.get(ARGUMENTS) {
        BY_ARGUMENTS.iter().for_each(|rule| report.skip(rule, why.as_str()));
    }
    needs::judge(case, &mut report);
    iommu::judge(case, &mut report);
    boot::judge(case, &mut report);
    coherent::judge(case, &mut report);
    vgpu::judge(case, &mut report);
    device::judge(case, &mut report);
    memory::judge(case, &mut report);
    speed::judge(case, &mut report);
    peers::judge(case, &mut report);
    guests::judge(case, &mut report);
    let Outcome { findings, not_checked, partly_checked } = report.finish();
    let known_defects = DEFECTS.iter().filter_map(|defect| {
        let version = case.defect(defect)?;
        let Defect { of, what, source, evidence, .. } = *defect;
        let good_from = defect.good_from();
        Some(KnownDefect { of, version, what, good_from, source, evidence })
    });
    let known_defects = known_defects.collect();
    Diagnosis { findings, known_defects, not_checked, partly_checked }
}

/// Returns the errors and warnings that concern a guest with these devices, or its binding: those
/// about one of them, but for what binding it finds itself, and errors about the whole host. The
/// others do not matter to it.
pub fn concerning(findings: Vec<Finding>, devices: &[Bdf]) -> Vec<Finding> {
    // A user who binds a GPU learns of its holders there, with the command that binds it.
    let by_binding = [boot::DRIVER_FIRST.id, boot::HOLDERS.id];
    let concerns = |finding: &Finding| match finding.says.device {
        _ if by_binding.contains(&finding.rule) => false,
        // That an idle GPU may lose its power is the kernel's default: a warning at each guest
        // would not be read.
        Some(_) if finding.rule == device::D3COLD.id && finding.severity > Severity::Error => false,
        Some(device) => devices.contains(&device) && finding.severity < Severity::Note,
        // A user who makes a guest learns of the machine's missing parts there.
        None if needs::RULES.iter().any(|rule| rule.id == finding.rule) => false,
        None if finding.rule == iommu::NO_GROUPS.id => false,
        None => finding.severity == Severity::Error,
    };
    findings.into_iter().filter(concerns).collect()
}

#[cfg(test)]
mod tests;
