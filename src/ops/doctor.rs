//! `host doctor`: reads the facts of a host and applies the rules of [`gpuvm_core::doctor`]; and
//! the checks of `create` and `device bind` by these rules before a change.

use crate::apply::bind::boot;
use crate::apply::{nic, p2p, startup, vgpu};
use crate::bdf::Bdf;
use crate::command::output;
use crate::discover::facts;
use crate::discover::test_policy::{TestMode, test_policy};
use crate::domain::Element;
use crate::domain::claims::Claims;
use crate::error::{Coded, Error, Result};
use crate::fabric::{HOOK, UNIT as FABRIC_UNIT};
use crate::fsroot::FsRoot;
use crate::hypervisor::{Hypervisor, HypervisorErrorKind, XmlOf, definitions};
use crate::images;
use crate::placement::Occupancy;
use crate::topology::{Facts, Topology};
use crate::world::World;
use gpuvm_core::doctor::{self, Case, Connection, Entry, Finding, KnownDefect, Traits};
use gpuvm_core::finding::Severity;
use gpuvm_core::topology::facts::ReplaceableProgram;
use gpuvm_core::topology::software::Software;
use gpuvm_core::versions::{Stack, Versions, cves_in};
use gpuvm_host::later;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;

/// Seconds to read a changelog.
const CHANGELOG_S: u64 = 10;

/// The findings about a host.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Diagnosed {
    /// Findings: errors first, then in the order of the rules.
    pub findings: Vec<Finding>,
    /// Defects of the versions that the host has.
    pub known_defects: Vec<KnownDefect>,
    /// Problems in the kernel's log; empty if it was not given.
    pub journal: Vec<Entry>,
    /// Number of rules.
    pub rules: usize,
    /// Number of rules that were checked, wholly or in part.
    pub checked: usize,
    /// Rules that were not checked, or not wholly, and sources that were not read, each with the
    /// reason.
    pub not_checked: Vec<String>,
    /// The same, apart.
    #[serde(skip)]
    pub skipped: Skipped,
}

/// Skipped checks.
#[derive(Debug, Default)]
pub struct Skipped {
    /// Rules that were not checked.
    pub rules: Vec<String>,
    /// Rules that were checked in part.
    pub in_part: Vec<String>,
    /// Sources that were not read.
    pub sources: Vec<String>,
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
        /// Its text, a line each, with the rule.
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

/// The programs for guests that this machine has; `None` if it cannot be read.
pub fn software() -> Option<Software> {
    facts::read_needs(&FsRoot::live().ok()?).software
}

/// The programs of files of ours that others than root can replace. A file that cannot be read is
/// not one of ours.
fn replaceable_programs(root: &FsRoot) -> Vec<ReplaceableProgram> {
    let hooks = [HOOK, FABRIC_UNIT].map(|path| path.trim_start_matches('/'));
    let mut all = Vec::new();
    let units = [boot::UNIT, nic::boot::UNIT, vgpu::boot::UNIT, p2p::boot::UNIT, startup::RECOVER];
    for file in units.into_iter().chain(hooks) {
        let text = root.read(file).ok().flatten().unwrap_or_default();
        for program in later::programs(&text) {
            let Some(why) = later::replaceable(&program) else { continue };
            let (file, program) = (format!("/{file}"), program.display().to_string());
            all.push(ReplaceableProgram { file, program, why });
        }
    }
    all
}

/// Diagnoses the host; `named`: the libvirt and QEMU of a recorded one; `log`: the kernel's log.
pub fn diagnose(world: &World, named: Option<Stack>, log: Option<&str>) -> Result<Diagnosed> {
    let topology = world.topology_as_known(named)?;
    world.note_unknown_stack(&topology, named);
    let mut read = match world.root()? {
        Some(root) => facts(&root, &topology),
        None => topology.parts().facts.as_deref().cloned().unwrap_or_default(),
    };
    let libvirt = libvirt(world, named.or(topology.machine().stack))?;
    let is_asked = matches!(libvirt.connection, Connection::Answers(_));
    if let Some(tests) = read.gpu_tests.as_mut().filter(|_| is_asked)
        && tests.untestable.is_none()
    {
        tests.untestable = without_test_image(world)?;
    }
    let guests = libvirt.guests.as_ref().ok();
    let Libvirt { versions, connection, traits, fixed, offers_iommufd, .. } = &libvirt;
    let (topology, facts, traits) = (&topology, &read, *traits);
    let offers_iommufd = *offers_iommufd;
    let case =
        Case { topology, facts, guests, versions, offers_iommufd, connection, traits, fixed };
    let diagnosis = doctor::diagnose(&case);
    let mut sources = Vec::new();
    if let Err(why) = &libvirt.guests {
        sources.push(format!("guests of libvirt ({why})"));
    }
    if let Some(why) = &topology.fabric().links_unread {
        sources.push(format!("NVLinks ({why})"));
    }
    let journal = log.map(|log| doctor::search(log.lines())).unwrap_or_default();
    let unread_log = match log {
        None => Some("`journalctl -k | gpuvm host doctor --journal -`"),
        Some(log) if log.trim().is_empty() => {
            Some("the input is empty: `journalctl -k` needs root")
        }
        Some(log) if journal.is_empty() && !doctor::is_kernel_log(log) => {
            Some("the input has no kernel log lines")
        }
        Some(_) => None,
    };
    sources.extend(unread_log.map(|why| format!("the kernel's log ({why})")));
    // Rules on the log alone count once there is one.
    let rules = doctor::count_of_rules(unread_log.is_none());
    let skipped =
        Skipped { rules: diagnosis.not_checked, in_part: diagnosis.partly_checked, sources };
    Ok(Diagnosed {
        findings: diagnosis.findings,
        known_defects: diagnosis.known_defects,
        journal,
        rules,
        checked: rules - skipped.rules.len(),
        not_checked: [&skipped.rules[..], &skipped.in_part, &skipped.sources].concat(),
        skipped,
    })
}

/// Returns why the image that tests of GPUs must have cannot be used; `None` if it can, or none is
/// required.
fn without_test_image(world: &World) -> Result<Option<String>> {
    let Some(root) = world.root()?.filter(FsRoot::is_live) else { return Ok(None) };
    let Ok(policy) = test_policy(&root) else { return Ok(None) };
    let Some(image) = policy.image.filter(|_| policy.mode == TestMode::Require) else {
        return Ok(None);
    };
    let found = images::resolve(&*world.hypervisor()?, images::POOL, Some(&image));
    Ok(found.err().map(|error| error.whole()))
}

struct Libvirt {
    versions: Versions,
    /// The occupancy of its domains, or why that is not known.
    guests: std::result::Result<Occupancy, String>,
    connection: Connection,
    traits: Option<Traits>,
    /// Vulnerabilities that its installed package has fixed.
    fixed: BTreeSet<String>,
    /// Whether it passes functions through by iommufd.
    offers_iommufd: Option<bool>,
}

/// Asks libvirt. Most rules do without, so one that refuses, hangs or is not there is no error,
/// unless it was named by `--connect`. `known`: the one of a recorded host.
fn libvirt(world: &World, known: Option<Stack>) -> Result<Libvirt> {
    let without = |why: String, connection: Connection| Libvirt {
        versions: Versions::default(),
        guests: Err(why),
        connection,
        traits: None,
        fixed: BTreeSet::new(),
        offers_iommufd: None,
    };
    let not_asked = |why: String| without(why.clone(), Connection::NotAsked(why));
    if world.is_recorded() {
        let versions = known.map(|stack| stack.versions()).unwrap_or_default();
        let unasked = not_asked("not asked about a recorded host".to_owned());
        return Ok(Libvirt { versions, ..unasked });
    }
    let hypervisor = match world.hypervisor_to_look() {
        Ok(Some(hypervisor)) => hypervisor,
        Ok(None) => {
            let why = format!("no libvirt answers at {}", world.settings.connect);
            return Ok(without(why, absent(world)));
        }
        Err(Error::Hypervisor(error)) if !world.settings.connect_is_given => {
            return Ok(not_asked(error.to_string()));
        }
        Err(error) => return Err(error),
    };
    let guests = world.occupancy_to_look(false).map_err(|error| error.to_string());
    let connection = Connection::Answers(hypervisor.guest_support());
    let fixed = if world.has_guests_here()? { fixed_by_package() } else { BTreeSet::new() };
    let traits = traits(&*hypervisor);
    let (versions, offers_iommufd) = (hypervisor.versions(), hypervisor.offers_iommufd());
    Ok(Libvirt { versions, guests, connection, traits, fixed, offers_iommufd })
}

/// Reads the traits of guests' definitions; `None` if they cannot be read.
fn traits(hypervisor: &dyn Hypervisor) -> Option<Traits> {
    let mut traits = Traits::default();
    let found = definitions(hypervisor, |_| &[XmlOf::Public]).ok()?;
    for xml in found.iter().filter_map(|definition| definition.xml.as_ref().ok()) {
        let root = xml.root();
        let devices = || root.child("devices").into_iter().flat_map(|devices| devices.elements());
        let is_agent = |device: &Element<'_>| {
            let name = device.child("target").and_then(|target| target.attr("name"));
            name.as_deref() == Some("org.qemu.guest_agent.0")
        };
        traits.agent |= devices().any(|device| device.name() == "channel" && is_agent(&device));
        traits.tpm |= devices().any(|device| device.name() == "tpm");
        let claims = Claims::read(xml);
        let passed = claims.passed.iter().filter(|passed| passed.is_hostdev());
        for passed in passed {
            traits.iommufd |= passed.iommufd;
            traits.group |= !passed.iommufd;
        }
    }
    Some(traits)
}

/// The vulnerabilities that this machine's package of libvirt lists as fixed: distributions mend
/// versions that upstream has left. None known where no changelog is installed.
fn fixed_by_package() -> BTreeSet<String> {
    let debian = ["libvirt-daemon-driver-qemu", "libvirt-daemon", "libvirt0"].into_iter();
    let file = |package| format!("/usr/share/doc/{package}/changelog.Debian.gz");
    let file = { debian }.map(file).find(|file| Path::new(file).is_file());
    let text = match &file {
        Some(file) => output(&["gzip", "-cd", file], CHANGELOG_S),
        None => output(&["rpm", "-q", "--changelog", "libvirt-daemon"], CHANGELOG_S),
    };
    text.map(|text| cves_in(&text)).unwrap_or_default()
}

/// Why no libvirt answers at the connection of a world, of which that is known.
pub(crate) fn absent(world: &World) -> Connection {
    let connect = &world.settings.connect;
    let Err(Error::Hypervisor(error)) = world.hypervisor() else {
        return Connection::NotAsked(format!("no libvirt answers at {connect}"));
    };
    if !cfg!(feature = "libvirt") || !connect.starts_with("qemu") {
        return Connection::NotAsked(error.message);
    }
    let is_library = error.kind == HypervisorErrorKind::NoLibrary;
    Connection::Absent { why: error.message, is_library }
}

/// Applies the rules to devices of this machine that a guest is to get: refuses if one reports a
/// certain failure, and warns of the others; `said`: rules whose warning the caller gives itself.
/// Does nothing on recorded and other machines.
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
    let connection = &Connection::NotAsked("its rules are others'".to_owned());
    let (facts, versions, traits, fixed) = (&facts, &versions, None, &BTreeSet::new());
    let (guests, offers_iommufd) = (Some(held), None);
    let case =
        Case { topology, facts, guests, versions, offers_iommufd, connection, traits, fixed };
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

/// The text of a finding, with its rule.
fn sentence(finding: &Finding) -> String {
    format!("{} ({})", finding.says.message, finding.rule)
}
