//! `host doctor`: reads the facts of a host and applies the rules of [`gpuvm_core::doctor`]; and
//! what `create` and `device bind` ask of these rules first.

use crate::apply::bind::boot;
use crate::apply::{nic, startup};
use crate::bdf::Bdf;
use crate::discover::facts;
use crate::error::{Coded, Error, Result};
use crate::fabric::{HOOK, UNIT as FABRIC_UNIT};
use crate::fsroot::FsRoot;
use crate::placement::Occupancy;
use crate::topology::{Facts, Topology};
use crate::world::World;
use gpuvm_core::doctor::{self, Case, Entry, Finding, KnownDefect};
use gpuvm_core::finding::Severity;
use gpuvm_core::topology::facts::ReplaceableProgram;
use gpuvm_core::versions::Versions;
use gpuvm_host::later;
use serde::Serialize;

/// What was found of a host.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Diagnosed {
    /// Findings: errors first, then in the order of the rules.
    pub findings: Vec<Finding>,
    /// Defects of the versions that the host has.
    pub known_defects: Vec<KnownDefect>,
    /// What the kernel's log tells; empty if it was not given.
    pub journal: Vec<Entry>,
    /// Number of rules applied.
    pub rules: usize,
    /// Rules that were not checked, or not wholly, each with the reason.
    pub not_checked: Vec<String>,
}

impl Diagnosed {
    /// The severity of each finding and of each entry of the log.
    pub fn severities(&self) -> impl Iterator<Item = Severity> {
        let found = self.findings.iter().map(|finding| finding.severity);
        found.chain(self.journal.iter().map(|entry| entry.severity))
    }

    /// Whether there is an error.
    pub fn has_errors(&self) -> bool {
        self.severities().any(|severity| severity == Severity::Error)
    }
}

/// The error of devices with which a guest surely fails.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "doctor-")]
pub enum DoctorError {
    /// A rule of `host doctor` says so.
    #[error("{lines}")]
    SurelyFails {
        /// What it says, a line each, with the rule.
        lines: String,
    },
}

impl Coded for DoctorError {}

/// Reads the facts of a host below a root directory.
pub fn facts(root: &FsRoot, topology: &Topology) -> Facts {
    let mut facts = facts::read(root, topology);
    match boot::identities(root) {
        Ok(listed) if !listed.is_empty() => {
            let drivers = facts.boot_drivers.get_or_insert_default();
            let needs_proof =
                |bdf: &Bdf| topology.device(*bdf).is_some_and(|device| device.needs_proof());
            let old = listed.iter().filter(|(bdf, one)| needs_proof(bdf) && one.is_none());
            drivers.unidentified = old.map(|(bdf, _)| *bdf).collect();
            drivers.at_boot = listed.into_keys().collect();
        }
        Ok(_) => {}
        Err(error) => {
            facts.boot_drivers = None;
            facts.unread.insert("etc/modprobe.d".to_owned(), error.to_string());
        }
    }
    if root.is_live() {
        facts.replaceable = Some(replaceable_programs(root));
    }
    facts
}

/// The programs of files of ours that others than root can replace. A file that cannot be read is
/// not one of ours.
fn replaceable_programs(root: &FsRoot) -> Vec<ReplaceableProgram> {
    let hooks = [HOOK, FABRIC_UNIT].map(|path| path.trim_start_matches('/'));
    let mut all = Vec::new();
    for file in [boot::UNIT, nic::boot::UNIT, startup::RECOVER].into_iter().chain(hooks) {
        let text = root.read(file).ok().flatten().unwrap_or_default();
        for program in later::programs(&text) {
            let Some(why) = later::replaceable(&program) else { continue };
            let (file, program) = (format!("/{file}"), program.display().to_string());
            all.push(ReplaceableProgram { file, program, why });
        }
    }
    all
}

/// Diagnoses the host; `log`: the kernel's log.
pub fn diagnose(world: &World, log: Option<&str>) -> Result<Diagnosed> {
    let topology = world.topology()?;
    let read = match world.root()? {
        Some(root) => facts(&root, &topology),
        None => topology.parts().facts.as_deref().cloned().unwrap_or_default(),
    };
    let libvirt = libvirt(world)?;
    let guests = libvirt.guests.as_ref().ok();
    let case = Case { topology: &topology, facts: &read, guests, versions: &libvirt.versions };
    let diagnosis = doctor::diagnose(&case);
    let mut not_checked = diagnosis.not_checked;
    if let Err(why) = &libvirt.guests {
        not_checked.push(format!("guests of libvirt ({why})"));
    }
    if let Some(why) = &topology.fabric().links_unread {
        not_checked.push(format!("NVLinks ({why})"));
    }
    let journal = log.map(|log| doctor::search(log.lines())).unwrap_or_default();
    match log {
        None => not_checked
            .push("the kernel's log (`journalctl -k | gpuvm host doctor --journal -`)".to_owned()),
        Some(log) if log.trim().is_empty() => not_checked
            .push("the kernel's log (what was given is empty: `journalctl -k` needs root)".into()),
        Some(log) if journal.is_empty() && !doctor::is_kernel_log(log) => not_checked
            .push("the kernel's log (no line of what was given is one of the kernel)".to_owned()),
        Some(_) => {}
    }
    Ok(Diagnosed {
        findings: diagnosis.findings,
        known_defects: diagnosis.known_defects,
        journal,
        rules: doctor::count_of_rules(log.is_some()),
        not_checked,
    })
}

/// What libvirt says.
struct Libvirt {
    /// Its version and QEMU's.
    versions: Versions,
    /// What its domains hold, or why that is not known.
    guests: std::result::Result<Occupancy, String>,
}

/// Asks libvirt. Most rules do without, so one that refuses, hangs or is not there is no error,
/// unless it was named by `--connect`.
fn libvirt(world: &World) -> Result<Libvirt> {
    let without = |why: String| Libvirt { versions: Versions::default(), guests: Err(why) };
    if world.is_recorded() {
        return Ok(without("not asked about a recorded host".to_owned()));
    }
    let hypervisor = match world.hypervisor_to_look() {
        Ok(Some(hypervisor)) => hypervisor,
        Ok(None) => {
            return Ok(without(format!("no libvirt answers at {}", world.settings.connect)));
        }
        Err(Error::Hypervisor(error)) if !world.settings.connect_is_given => {
            return Ok(without(error.to_string()));
        }
        Err(error) => return Err(error),
    };
    let guests = world.occupancy_to_look(false).map_err(|error| error.to_string());
    Ok(Libvirt { versions: hypervisor.versions(), guests })
}

/// Applies the rules to devices of this machine that a guest is to get: refuses if one says that it
/// surely fails, and warns of the others; `said`: rules whose warning the caller gives itself. Does
/// nothing on recorded and other machines.
pub fn before(
    world: &World,
    topology: &Topology,
    held: &Occupancy,
    devices: &[Bdf],
    said: &[&str],
) -> Result<()> {
    if devices.is_empty() || world.is_recorded() || !world.has_guests_here()? {
        return Ok(());
    }
    let Some(root) = world.root()? else { return Ok(()) };
    let facts = facts(&root, topology);
    let versions = Versions::default();
    let case = Case { topology, facts: &facts, guests: Some(held), versions: &versions };
    let found = doctor::concerning(doctor::diagnose(&case).findings, devices);
    let (fatal, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|one| one.says.fatal);
    if !fatal.is_empty() {
        let lines: Vec<String> = fatal.iter().map(sentence).collect();
        let mut hint = fatal[0].hint.clone();
        if let Some(bdf) = fatal[0].says.device {
            hint += &format!("; `gpuvm gpu exclude {bdf}` leaves it out, so that others are taken");
        }
        return Err(DoctorError::SurelyFails { lines: lines.join("\n  ") }.hint(hint));
    }
    for finding in others.into_iter().filter(|finding| !said.contains(&finding.rule)) {
        world.warning(&format!("{}; `gpuvm host doctor` says what helps", sentence(&finding)));
    }
    Ok(())
}

/// What a finding says, with its rule.
fn sentence(finding: &Finding) -> String {
    format!("{} ({})", finding.says.message, finding.rule)
}
