//! The domains to be tuned, from a hypervisor or files, and the input for their tuning. Changes
//! nothing.

use super::Tune;
use super::convert::{self, Conversion, Convert, Ground};
use super::subject::Subject;
use crate::domain::guest::{Abilities, DiskIo};
use crate::domain::nic_request::NicWish;
use crate::domain::{DomainXml, Element};
use crate::error::{
    Class, Coded, Doing as _, Error, Refusal, Result, classed, dump_and_define, usage,
};
use crate::guest::{make_log_dir, refuse_same_mac};
use crate::hypervisor::{DomainSummary, Hypervisor, XmlOf};
use crate::lookup::{not_found, unread_hint};
use crate::network::{Kind, known};
use crate::networks::refuse_unfit;
use crate::placement::explain::{NO_GPUS, NO_NAMED_GPU, NOTHING_LEFT};
use crate::placement::{Occupancy, PlanError};
use crate::request::{Allow, Extras};
use crate::shell::word;
use crate::source::{Source, read_file};
use crate::storage::{abilities, best_io};
use crate::taken::{domains_of_files, is_active, ready_for_off, taken_for_off, xml_files};
use crate::topology::Topology;
use crate::world::World;
use gpuvm_core::check::free_cores;
use gpuvm_core::tune::items::PinOrder;
use gpuvm_core::tune::{Given, Item, Items, Left, TuneError, Tuned, left_alone, together, tune};
use gpuvm_core::versions::Versions;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The reason a domain is not tuned.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "tuned-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum TunedError {
    /// The domain has no definition that could be changed.
    #[error("domain `{name}` has no persistent definition to change")]
    NoDefinition { name: String },
}

impl Coded for TunedError {}

/// The domains to be tuned, with their host.
#[derive(Debug)]
pub struct Subjects {
    /// The domains.
    pub all: Vec<Subject>,
    topology: Topology,
    /// The occupancy of all domains, theirs included.
    occupancy: Occupancy,
    /// The best I/O settings of their disks.
    disks: BTreeMap<String, DiskIo>,
    abilities: Abilities,
    /// Where it keeps logs of guests; `None` if they are not tuned on it, or it keeps none here.
    log_dir: Option<PathBuf>,
    versions: Versions,
    /// The converted disks of each, or the reason they are not converted.
    conversions: Vec<Result<Vec<Conversion>, TuneError>>,
    /// The requested NICs, each with whether its network hands out virtual functions.
    networks: Vec<(NicWish, bool)>,
}

impl Tune {
    /// Whether the domains are files, which are only printed.
    pub fn are_files(&self, world: &World) -> bool {
        let is_file = |source: &Source| matches!(source, Source::File(_));
        let files = !self.sources.is_empty() && self.sources.iter().all(is_file);
        files || world.is_recorded()
    }
}

/// Reads the domains and their host.
pub fn read(world: &World, wanted: &Tune) -> Result<Subjects> {
    let recorded = world.is_recorded();
    let files = wanted.are_files(world);
    convert::refuse_files(&wanted.convert, files)?;
    refuse_same_mac(&wanted.networks, &Extras::default())?;
    let hypervisor = if files && (recorded || wanted.taken.assume_empty) {
        None
    } else {
        Some(world.hypervisor()?)
    };
    let all = match &hypervisor {
        Some(hypervisor) if !files => of_hypervisor(wanted, &**hypervisor, world)?,
        _ => of_files(wanted, world)?,
    };
    let topology = world.topology_as_known(wanted.taken.assume)?;
    let occupancy = taken_for_off(world, &wanted.taken, &topology, all.iter().map(|one| &one.xml))?;
    let stack = world.stack(&topology, wanted.taken.assume).map(|of| of.stack);
    // Defects of versions are judged where these are known, as `check` does.
    let named = wanted.taken.assume.or(topology.machine().stack).filter(|_| recorded);
    let mut subjects = Subjects {
        all,
        topology,
        occupancy,
        disks: BTreeMap::new(),
        abilities: stack.map(|stack| stack.abilities).unwrap_or_default(),
        log_dir: None,
        versions: named.map(|stack| stack.versions()).unwrap_or_default(),
        conversions: Vec::new(),
        networks: wanted.networks.iter().map(|wish| (wish.clone(), false)).collect(),
    };
    if let Some(hypervisor) = hypervisor {
        subjects.conversions = conversions(&subjects.all, &wanted.convert, &*hypervisor, world)?;
        let passes = |subject: &Subject| subject.xml.root().find("devices/hostdev").is_some();
        let size = wanted.items.size();
        let gets = size.gpus_said.is_some() || !size.vgpu.is_kept() || !size.functions.is_kept();
        let passes = gets || subjects.all.iter().any(passes);
        subjects.abilities = abilities_for(&wanted.items, &*hypervisor, passes);
        subjects.log_dir = hypervisor.log_dir().filter(|_| !files);
        if let Some(dir) = hypervisor.missing_log_dir().filter(|_| !files)
            && wanted.items.serial_log == Item::On
        {
            let message = format!("{} is missing, so nothing can be logged there", dir.display());
            return Err(classed(Class::NotFound, message, make_log_dir(&dir)));
        }
        let is_made = |name: &str| {
            let is_asked = wanted.items.all_nics.is_some();
            is_asked && known(name).is_some_and(|kind| kind != Kind::Sriov)
        };
        subjects.networks = networks(&wanted.networks, &*hypervisor, is_made)?;
        subjects.versions = hypervisor.versions();
        if hypervisor.machine().is_here() && !recorded {
            subjects.look_at_disks(world);
        }
    }
    Ok(subjects)
}

/// The features that the items need of the hypervisor; `passes`: including those of root ports.
fn abilities_for(items: &Items, hypervisor: &dyn Hypervisor, passes: bool) -> Abilities {
    let is_by_iommufd = items.iommufd == Item::On;
    let iommufd = is_by_iommufd.then(|| hypervisor.offers_iommufd()).flatten();
    Abilities { iommufd, ..abilities(hypervisor, passes) }
}

/// A domain that is not there yet, with its host.
pub fn of_new(world: &World, wanted: &Tune, xml: DomainXml) -> Result<Subjects> {
    let mut subjects = read(world, wanted)?;
    if xml.root().find("devices/hostdev").is_some() {
        subjects.abilities = abilities_for(&wanted.items, &*world.hypervisor()?, true);
    }
    let topology = &subjects.topology;
    let others = std::mem::take(&mut subjects.occupancy);
    let empty = wanted.taken.assume_empty;
    subjects.occupancy = ready_for_off(world, others, topology, [&xml].into_iter(), empty)?;
    let (name, called) = (xml.name(), xml.name());
    subjects.all = vec![Subject { name, called, xml, running: false, is_file: false, live: None }];
    Ok(subjects)
}

/// The requested NICs, each with whether its network hands out virtual functions. Refuses settings
/// that their networks do not support, and missing networks that are not made with the change.
fn networks(
    wishes: &[NicWish],
    hypervisor: &dyn Hypervisor,
    is_made: impl Fn(&str) -> bool,
) -> Result<Vec<(NicWish, bool)>> {
    if wishes.is_empty() {
        return Ok(Vec::new());
    }
    refuse_unfit(wishes, hypervisor)?;
    let there = hypervisor.networks().all_networks()?;
    let is_missing = |name: &str| there.iter().all(|n| n.name != name) && !is_made(name);
    if let Some(wish) = wishes.iter().find(|wish| is_missing(&wish.network)) {
        let message = format!("{} has no network `{}`", hypervisor.uri(), wish.network);
        return Err(classed(
            Class::NotFound,
            message,
            "`gpuvm network list` shows those that are there",
        ));
    }
    let pools = hypervisor.networks().vf_pools()?;
    let is_pool = |wish: &NicWish| pools.iter().any(|pool| pool.name == wish.network);
    Ok(wishes.iter().map(|wish| (wish.clone(), is_pool(wish))).collect())
}

/// The named domains of a hypervisor, or all.
fn of_hypervisor(
    wanted: &Tune,
    hypervisor: &dyn Hypervisor,
    world: &World,
) -> Result<Vec<Subject>> {
    let there = hypervisor.domains()?;
    let mut chosen: Vec<&DomainSummary> = Vec::new();
    if wanted.all_domains {
        for summary in &there {
            if summary.persistent {
                chosen.push(summary);
            } else {
                let name = &summary.name;
                world.warning(&format!("{name}: skipped, since it has no persistent definition"));
            }
        }
    }
    for source in &wanted.sources {
        let Source::Domain(name) = source else {
            let name = source.named();
            return Err(usage(
                format!("`{name}` is a file, and others are domains"),
                "tune files and domains each for themselves",
            ));
        };
        let summary = there.iter().find(|summary| summary.name == *name);
        let Some(summary) = summary else {
            return Err(not_found(name, &there).into());
        };
        if !summary.persistent {
            return Err(TunedError::NoDefinition { name: name.clone() }.hint(dump_and_define(name)));
        }
        if !chosen.iter().any(|other| other.name == summary.name) {
            chosen.push(summary);
        }
    }
    let subject = |summary: &DomainSummary| {
        let text = hypervisor.xml(&summary.name, XmlOf::Inactive)?;
        let running = summary.state.is_active();
        let xml = DomainXml::parse(&text).doing(|| format!("cannot read `{}`", summary.name))?;
        let live = if wanted.live && running {
            Some(DomainXml::parse(&hypervisor.xml(&summary.name, XmlOf::Live)?)?)
        } else {
            None
        };
        let (name, called) = (summary.name.clone(), summary.name.clone());
        Ok(Subject { name, called, xml, running, is_file: false, live })
    };
    chosen.into_iter().map(subject).collect()
}

/// The converted disks of each domain, or the reason they are not converted; empty if that is not
/// requested.
fn conversions(
    all: &[Subject],
    wanted: &[Convert],
    hypervisor: &dyn Hypervisor,
    world: &World,
) -> Result<Vec<Result<Vec<Conversion>, TuneError>>> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let mut ground = Ground::read(hypervisor)?;
    let mut conversions = Vec::new();
    for subject in all {
        conversions.push(match ground.plan(subject, wanted) {
            Ok(planned) => Ok(planned),
            Err(Error::Tune(refused)) => Err(refused),
            Err(error) => return Err(error),
        });
    }
    let planned: Vec<Conversion> = conversions.iter().flatten().flatten().cloned().collect();
    for warning in ground.warnings(&planned)? {
        world.warning(&warning);
    }
    Ok(conversions)
}

fn of_files(wanted: &Tune, world: &World) -> Result<Vec<Subject>> {
    let mut files = Vec::new();
    for source in &wanted.sources {
        files.push(match source {
            Source::File(file) => file.clone(),
            Source::Domain(name) => file_of(name, wanted, world)?,
        });
    }
    if wanted.all_domains {
        for path in &wanted.taken.domain_xml {
            let paths = xml_files(path)?.into_iter();
            files.extend(paths.map(|path| path.display().to_string()));
        }
    }
    let subject = |file: &String| {
        let xml = DomainXml::parse(&read_file(file)?).doing(|| file.clone())?;
        let name = Some(xml.name()).filter(|name| !name.is_empty());
        Ok(Subject {
            name: name.unwrap_or_else(|| file.clone()),
            called: file.clone(),
            running: is_active(&xml),
            xml,
            is_file: true,
            live: None,
        })
    };
    files.iter().map(subject).collect()
}

/// The file that has the definition of a recorded host's domain.
fn file_of(name: &str, wanted: &Tune, world: &World) -> Result<String> {
    let all = domains_of_files(world, &wanted.taken.domain_xml)?;
    if let Some((path, _)) = all.iter().find(|(_, xml)| xml.name() == name) {
        return Ok(path.display().to_string());
    }
    if all.is_empty() {
        return Err(usage(
            format!("a recorded host has no domain `{name}` unless its definition is given"),
            "--domain-xml names the file with its definition",
        ));
    }
    let names: Vec<String> = all.iter().map(|(_, xml)| format!("`{}`", xml.name())).collect();
    let message = format!("none of the files of --domain-xml has domain `{name}`");
    Err(classed(Class::NotFound, message, format!("they have {}", names.join(", "))))
}

impl Subjects {
    /// The host of the domains.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The occupancy of all domains, theirs included.
    pub fn occupancy(&self) -> &Occupancy {
        &self.occupancy
    }

    /// The converted disks of a domain, by its index.
    pub fn conversions(&self, at: usize) -> &[Conversion] {
        self.conversions.get(at).and_then(|planned| planned.as_deref().ok()).unwrap_or_default()
    }

    /// Finds the best I/O settings of each disk.
    fn look_at_disks(&mut self, world: &World) {
        for subject in &self.all {
            let devices = subject.xml.root().child("devices");
            for disk in devices.into_iter().flat_map(|devices| devices.children("disk")) {
                let Some(path) = path_of(disk) else { continue };
                let (io, why) = best_io(&path, self.abilities);
                if let Some(why) = why {
                    world.warning(&format!("{}: {why}", subject.name));
                }
                self.disks.insert(path, io);
            }
        }
    }

    /// Tunes the domains. A refused one is an error, except with --all, where the others go
    /// on.
    pub fn tune(&self, world: &World, wanted: &Tune) -> Result<Vec<Result<Tuned, TuneError>>> {
        let (items, tuned) = self.try_all(wanted);
        let given = self.given(&items, wanted);
        for (subject, tuned) in self.all.iter().zip(&tuned) {
            let Err(error) = tuned else { continue };
            let others = together::without_member(&self.occupancy, &subject.xml, false);
            let goes = |pins: &Item<PinOrder>| {
                let items = Items { pins: *pins, ..items.clone() };
                tune(&subject.xml, &Given { items: &items, others: &others, ..given }).is_ok()
            };
            let message = format!("domain `{}` cannot be tuned", subject.name);
            let error = refused(subject, &message, error, goes);
            if !wanted.all_domains {
                return Err(error);
            }
            world.warning(&error.whole());
        }
        Ok(tuned)
    }

    /// The settings of each domain that tuning leaves alone, as its owner chose them.
    pub fn left_alone(&self, wanted: &Tune, tuned: &[Result<Tuned, TuneError>]) -> Vec<Vec<Left>> {
        let given = self.given(&wanted.items, wanted);
        let of = |(subject, tuned): (&Subject, &Result<Tuned, TuneError>)| {
            let Ok(tuned) = tuned else { return Vec::new() };
            let others = together::without_member(&self.occupancy, &subject.xml, false);
            left_alone(&subject.xml, &Given { others: &others, ..given }, tuned)
        };
        self.all.iter().zip(tuned).map(of).collect()
    }

    /// The inputs of tuning with these settings.
    fn given<'a>(&'a self, items: &'a Items, wanted: &Tune) -> Given<'a> {
        Given {
            topology: &self.topology,
            others: &self.occupancy,
            items,
            allow: wanted.allow,
            disks: &self.disks,
            abilities: self.abilities,
            versions: &self.versions,
        }
    }

    /// The inputs of changes beside the occupancy at another time.
    pub(crate) fn beside<'a>(
        &'a self,
        others: &'a Occupancy,
        items: &'a Items,
        topology: &'a Topology,
    ) -> Given<'a> {
        let (allow, versions) = (Allow::default(), &self.versions);
        let (disks, abilities) = (&self.disks, self.abilities);
        Given { topology, others, items, allow, disks, abilities, versions }
    }

    /// Tunes the domains, and returns the settings with the findings for them.
    pub fn try_all(&self, wanted: &Tune) -> (Items, Vec<Result<Tuned, TuneError>>) {
        let mut items = wanted.items.clone();
        items.networks = self.networks.clone();
        if items.serial_log == Item::On {
            let dir = self.log_dir.as_ref().and_then(|dir| dir.to_str());
            items.serial_log = dir.map_or(Item::Keep, |dir| Item::To(dir.to_owned()));
        }
        let converted = self.conversions.iter().flatten().flatten();
        items.convert = converted.map(|one| (one.path.clone(), one.converted.clone())).collect();
        let members: Vec<DomainXml> = self.all.iter().map(|subject| subject.xml.clone()).collect();
        let mut tuned = together::together(&members, &self.given(&items, wanted));
        for (planned, tuned) in self.conversions.iter().zip(&mut tuned) {
            if let Err(error) = planned {
                *tuned = Err(error.clone());
            }
        }
        (items, tuned)
    }
}

/// The path of a disk that is a file or a block device.
fn path_of(disk: Element<'_>) -> Option<String> {
    let source = disk.child("source")?;
    source.attr("file").or_else(|| source.attr("dev")).map(|path| path.into_owned())
}

/// The error that a domain cannot be tuned, with this headline; `goes`: whether it can be tuned
/// with other pins.
pub(crate) fn refused(
    subject: &Subject,
    message: &str,
    error: &TuneError,
    goes: impl Fn(&Item<PinOrder>) -> bool,
) -> Error {
    let name = word(&subject.called);
    let hint = match error {
        TuneError::Plan(PlanError::Taken { hint, .. } | PlanError::Impossible { hint, .. })
            if hint == NOTHING_LEFT && goes(&Item::To(PinOrder::Auto)) =>
        {
            free_cores(&subject.called)
        }
        TuneError::Plan(PlanError::Taken { hint, .. } | PlanError::Impossible { hint, .. })
            if hint == NOTHING_LEFT && goes(&Item::Off) =>
        {
            format!(
                "`gpuvm tune {name} --all-settings --pins off` lets its vCPUs float over all pcpus"
            )
        }
        // A guest that is there keeps its GPUs.
        TuneError::Plan(PlanError::Impossible { hint, .. })
            if [NO_GPUS, NO_NAMED_GPU].iter().any(|without| hint.ends_with(without)) =>
        {
            let hint = hint.trim_end_matches(NO_GPUS).trim_end_matches(NO_NAMED_GPU);
            match hint.trim_end_matches("; ") {
                "" => "`gpuvm host doctor` names the missing parts of the host".to_owned(),
                rest => rest.to_owned(),
            }
        }
        TuneError::Plan(PlanError::Taken { hint, .. } | PlanError::Impossible { hint, .. })
        | TuneError::Item { hint, .. } => hint.clone(),
        TuneError::Unsound(findings) => {
            findings.first().map(|finding| finding.hint.clone()).unwrap_or_default()
        }
        TuneError::Xml(_) if subject.xml.unread_request().is_some() => {
            unread_hint(&subject.xml).to_owned()
        }
        TuneError::Kind { .. }
        | TuneError::NoPort { .. }
        | TuneError::Xml(_)
        | TuneError::Plan(PlanError::Request(_)) => {
            format!("`gpuvm check {name}` shows what is wrong with it")
        }
    };
    Error::from(error.clone()).around(Refusal::around(message, subject.naming(&hint)))
}
