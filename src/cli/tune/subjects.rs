//! What is tuned: domains of libvirt or files, and what they are tuned by. Changes nothing.

use super::convert::{self, Conversion, Ground};
use crate::cli::args::{AllowArg, ItemArgs, TuneArgs};
use crate::cli::codes::Class;
use crate::cli::context::Context;
use crate::cli::error::{Coded, Hinted, classed, dump_and_define, usage};
use crate::domain::guest::{Abilities, DiskIo};
use crate::domain::wish::NicWish;
use crate::domain::{DomainXml, Element};
use crate::hypervisor::{DomainState, DomainSummary, Hypervisor, XmlOf};
use crate::placement::explain::NOTHING_LEFT;
use crate::placement::{Occupancy, PlanError};
use crate::shell::word;
use crate::topology::Topology;
use crate::tune::{Given, Item, ItemName, Items, TuneError, Tuned, together, tune};
use crate::versions::Versions;
use anyhow::Context as _;
use gpuvm_ops::networks::refuse_unfit;
use gpuvm_ops::storage::{abilities, best_io};
use gpuvm_ops::taken::xml_files;
use std::collections::BTreeMap;

/// Says why a domain is not tuned.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "tuned-")]
pub enum TunedError {
    /// The domain has no definition that could be changed.
    #[error("domain `{name}` has no definition that could be changed")]
    NoDefinition {
        /// Its name.
        name: String,
    },
}

impl Coded for TunedError {}

/// Is one domain that is tuned.
#[derive(Debug, Clone)]
pub struct Subject {
    /// Its name; of a file without one the file's.
    pub name: String,
    /// What `check` takes for it: the name, or the file.
    called: String,
    /// Its definition.
    pub xml: DomainXml,
    /// Whether it runs.
    pub running: bool,
    /// Whether it is a file, which is never changed.
    pub is_file: bool,
    /// The domain as it runs, where what runs is to be changed.
    pub live: Option<DomainXml>,
}

impl Subject {
    /// Its definition as it was read.
    pub fn text(&self) -> &str {
        self.xml.text()
    }
}

/// Is the domains that are tuned, with the host that they are on.
#[derive(Debug)]
pub struct Subjects {
    /// The domains.
    pub all: Vec<Subject>,
    /// The host.
    topology: Topology,
    /// What is taken, their own included.
    occupancy: Occupancy,
    /// How their disks are read and written best.
    disks: BTreeMap<String, DiskIo>,
    /// What the hypervisor can do.
    abilities: Abilities,
    /// What it is.
    versions: Versions,
    /// The disks of each that are converted, or why they are not.
    conversions: Vec<Result<Vec<Conversion>, TuneError>>,
    /// NICs that are asked for, each with whether its network hands out virtual functions.
    networks: Vec<(NicWish, bool)>,
}

/// Whether files are tuned, which are only printed.
pub fn are_files(args: &TuneArgs, cx: &Context<'_>) -> bool {
    let files = !args.targets.is_empty() && args.targets.iter().all(|target| is_file(target));
    files || (args.all_domains && cx.is_recorded())
}

/// Reads the domains and their host.
pub fn read(args: &TuneArgs, cx: &Context<'_>) -> anyhow::Result<Subjects> {
    let recorded = cx.is_recorded();
    let files = are_files(args, cx);
    convert::refuse_files(&args.items.convert, files)?;
    let hypervisor = match files && (recorded || args.taken.assume_empty) {
        true => None,
        false => Some(cx.hypervisor()?),
    };
    let all = match &hypervisor {
        Some(hypervisor) if !files => of_hypervisor(args, &**hypervisor, cx)?,
        _ => of_files(args)?,
    };
    let topology = cx.topology()?;
    let occupancy = cx.taken(&args.taken)?;
    let mut subjects = Subjects {
        all,
        topology,
        occupancy,
        disks: BTreeMap::new(),
        abilities: Abilities::default(),
        versions: Versions::default(),
        conversions: Vec::new(),
        networks: args.items.network.iter().map(|wish| (wish.clone(), false)).collect(),
    };
    if let Some(hypervisor) = hypervisor {
        subjects.conversions = conversions(&subjects.all, args, &*hypervisor, cx)?;
        let passes = |subject: &Subject| subject.xml.root().find("devices/hostdev").is_some();
        let passes = subjects.all.iter().any(passes);
        subjects.abilities = abilities(&*hypervisor, passes);
        subjects.networks = networks(&args.items.network, &*hypervisor)?;
        subjects.versions = hypervisor.versions();
        if hypervisor.machine().is_here() && !recorded {
            subjects.look_at_disks(cx);
        }
    }
    Ok(subjects)
}

/// NICs that are asked for, each with whether its network hands out virtual functions. Refuses what networks cannot do.
fn networks(
    wishes: &[NicWish],
    hypervisor: &dyn Hypervisor,
) -> anyhow::Result<Vec<(NicWish, bool)>> {
    if wishes.is_empty() {
        return Ok(Vec::new());
    }
    refuse_unfit(wishes, hypervisor)?;
    let there = hypervisor.networks().all_networks()?;
    if let Some(wish) = wishes.iter().find(|wish| there.iter().all(|n| n.name != wish.network)) {
        let message = format!("{} has no network `{}`", hypervisor.uri(), wish.network);
        return Err(classed(
            Class::NotFound,
            message,
            "`gpuvm network list` shows those that are there",
        ));
    }
    let pools = hypervisor.vf_pools()?;
    let is_pool = |wish: &NicWish| pools.iter().any(|pool| pool.name == wish.network);
    Ok(wishes.iter().map(|wish| (wish.clone(), is_pool(wish))).collect())
}

/// The domains of a hypervisor that are named, or all.
fn of_hypervisor(
    args: &TuneArgs,
    hypervisor: &dyn Hypervisor,
    cx: &Context<'_>,
) -> anyhow::Result<Vec<Subject>> {
    let there = hypervisor.domains()?;
    let mut chosen: Vec<&DomainSummary> = Vec::new();
    if args.all_domains {
        for summary in &there {
            if summary.persistent {
                chosen.push(summary);
            } else {
                let name = &summary.name;
                cx.output.warning(&format!("{name}: it has no definition, so it is left out"));
            }
        }
    }
    for name in &args.targets {
        if is_file(name) {
            return Err(usage(
                format!("`{name}` is a file, and others are domains"),
                "tune files and domains each for themselves",
            ));
        }
        let summary = there.iter().find(|summary| summary.name == *name);
        let Some(summary) = summary else {
            let message = format!("there is no domain `{name}`");
            return Err(classed(
                Class::NotFound,
                message,
                "`gpuvm list` shows the domains that are there",
            ));
        };
        if !summary.persistent {
            return Err(
                TunedError::NoDefinition { name: name.to_string() }.hint(dump_and_define(name))
            );
        }
        if !chosen.iter().any(|other| other.name == summary.name) {
            chosen.push(summary);
        }
    }
    let subject = |summary: &DomainSummary| {
        let text = hypervisor.xml(&summary.name, XmlOf::Inactive)?;
        let failed = || format!("cannot read `{}`", summary.name);
        let running = !matches!(summary.state, DomainState::ShutOff | DomainState::Crashed);
        let xml = DomainXml::parse(&text).with_context(failed)?;
        let live = match args.live && running {
            true => Some(DomainXml::parse(&hypervisor.xml(&summary.name, XmlOf::Live)?)?),
            false => None,
        };
        let (name, called) = (summary.name.clone(), summary.name.clone());
        Ok(Subject { name, called, xml, running, is_file: false, live })
    };
    chosen.into_iter().map(subject).collect()
}

/// The disks of each domain that are converted, or why they are not; none at all where that is not asked for.
fn conversions(
    all: &[Subject],
    args: &TuneArgs,
    hypervisor: &dyn Hypervisor,
    cx: &Context<'_>,
) -> anyhow::Result<Vec<Result<Vec<Conversion>, TuneError>>> {
    let wanted = &args.items.convert;
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let mut ground = Ground::read(hypervisor)?;
    let mut conversions = Vec::new();
    for subject in all {
        conversions.push(match ground.plan(subject, wanted) {
            Ok(planned) => Ok(planned),
            Err(error) => Err(error.downcast::<TuneError>()?),
        });
    }
    let planned: Vec<Conversion> = conversions.iter().flatten().flatten().cloned().collect();
    for warning in ground.warnings(&planned)? {
        cx.output.warning(&warning);
    }
    Ok(conversions)
}

/// The domains of files.
fn of_files(args: &TuneArgs) -> anyhow::Result<Vec<Subject>> {
    let mut files: Vec<String> = args.targets.clone();
    if args.all_domains {
        for path in &args.taken.domain_xml {
            let paths = xml_files(path)?.into_iter();
            files.extend(paths.map(|path| path.display().to_string()));
        }
    }
    let subject = |file: &String| {
        let xml = DomainXml::parse(&read_file(file)?).with_context(|| file.clone())?;
        let name = Some(xml.name()).filter(|name| !name.is_empty());
        Ok(Subject {
            name: name.unwrap_or_else(|| file.clone()),
            called: file.clone(),
            running: xml.root().attr("id").is_some(),
            xml,
            is_file: true,
            live: None,
        })
    };
    files.iter().map(subject).collect()
}

impl Subjects {
    /// The host that they are on.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The disks of a domain, by its place, that are converted.
    pub fn conversions(&self, at: usize) -> &[Conversion] {
        self.conversions.get(at).and_then(|planned| planned.as_deref().ok()).unwrap_or_default()
    }

    /// Looks how each disk is read and written best.
    fn look_at_disks(&mut self, cx: &Context<'_>) {
        for subject in &self.all {
            let devices = subject.xml.root().child("devices");
            for disk in devices.into_iter().flat_map(|devices| devices.children("disk")) {
                let Some(path) = path_of(disk) else { continue };
                let (io, why) = best_io(&path, self.abilities);
                if let Some(why) = why {
                    cx.output.warning(&format!("{}: {why}", subject.name));
                }
                self.disks.insert(path, io);
            }
        }
    }

    /// Tunes them. One that is refused is an error, but with --all-domains, where the others go on.
    pub fn tune(
        &self,
        args: &TuneArgs,
        cx: &Context<'_>,
    ) -> anyhow::Result<Vec<Result<Tuned, TuneError>>> {
        let mut items = items(&args.items, args.all);
        items.networks = self.networks.clone();
        let converted = self.conversions.iter().flatten().flatten();
        items.convert = converted.map(|one| (one.path.clone(), one.converted.clone())).collect();
        let given = Given {
            topology: &self.topology,
            others: &self.occupancy,
            items: &items,
            allow_remote: args.allow.contains(&AllowArg::Remote),
            disks: &self.disks,
            abilities: self.abilities,
            versions: &self.versions,
        };
        let members: Vec<DomainXml> = self.all.iter().map(|subject| subject.xml.clone()).collect();
        let mut tuned = together::together(&members, &given);
        for (planned, tuned) in self.conversions.iter().zip(&mut tuned) {
            if let Err(error) = planned {
                *tuned = Err(error.clone());
            }
        }
        for (subject, tuned) in self.all.iter().zip(&tuned) {
            let Err(error) = tuned else { continue };
            let afloat = Items { pins: Item::Off, ..items.clone() };
            let afloat = Given { items: &afloat, ..given };
            let error = refused(subject, error, || tune(&subject.xml, &afloat).is_ok());
            if !args.all_domains {
                return Err(error);
            }
            cx.output.warning(&crate::cli::error::whole(&error));
        }
        Ok(tuned)
    }
}

/// The path of a disk that is a file or a block device.
fn path_of(disk: Element<'_>) -> Option<String> {
    let source = disk.child("source")?;
    source.attr("file").or_else(|| source.attr("dev")).map(|path| path.into_owned())
}

/// The error that a domain cannot be tuned; `floats` says whether it can be without pins.
fn refused(subject: &Subject, error: &TuneError, floats: impl Fn() -> bool) -> anyhow::Error {
    let hint = match error {
        TuneError::Plan(PlanError::Taken { hint, .. } | PlanError::Impossible { hint, .. })
            if hint == NOTHING_LEFT && floats() =>
        {
            "`--pins off` lets its vCPUs float over all pcpus".to_owned()
        }
        TuneError::Plan(PlanError::Taken { hint, .. } | PlanError::Impossible { hint, .. })
        | TuneError::Item { hint, .. } => hint.clone(),
        TuneError::Unsound(findings) => {
            findings.first().map(|finding| finding.hint.clone()).unwrap_or_default()
        }
        TuneError::Kind { .. } | TuneError::Xml(_) | TuneError::Plan(PlanError::Request(_)) => {
            format!("`gpuvm check {}` says what is wrong with it", word(&subject.called))
        }
    };
    let message = format!("domain `{}` cannot be tuned", subject.name);
    anyhow::Error::from(error.clone()).context(Hinted::around(message, hint))
}

/// What becomes of each thing: all things where none is named, else what is named.
fn items(args: &ItemArgs, all: bool) -> Items {
    let all = all || args.name_none();
    let base = if all { Items::all() } else { Items::default() };
    let mut unnamed = base.unnamed;
    for (name, is_named) in [
        (ItemName::Pins, args.pins.is_some()),
        (ItemName::Topology, args.topology.is_some()),
        (ItemName::Cells, args.cells.is_some()),
    ] {
        if is_named {
            unnamed.remove(&name);
        }
    }
    /// What is named, else what holds without.
    fn or<T: Clone>(named: &Option<Item<T>>, base: Item<T>) -> Item<T> {
        named.clone().unwrap_or(base)
    }
    Items {
        pins: or(&args.pins, base.pins),
        topology: or(&args.topology, base.topology),
        emulator: or(&args.emulator, base.emulator),
        iothreads: or(&args.iothreads, base.iothreads),
        iothread_pins: or(&args.iothread_pins, base.iothread_pins),
        huge_pages: or(&args.huge_pages, base.huge_pages),
        fill: or(&args.fill, base.fill),
        cells: or(&args.cells, base.cells),
        memory_nodes: or(&args.memory_nodes, base.memory_nodes),
        memory_rounding: or(&args.memory_rounding, base.memory_rounding),
        convert: base.convert,
        disk_cache: or(&args.disk_cache, base.disk_cache),
        disk_io: or(&args.disk_io, base.disk_io),
        disk_queues: or(&args.disk_queues, base.disk_queues),
        net_queues: or(&args.net_queues, base.net_queues),
        inbound: or(&args.inbound, base.inbound),
        outbound: or(&args.outbound, base.outbound),
        mtu: or(&args.mtu, base.mtu),
        networks: base.networks,
        agent: or(&args.agent, base.agent),
        pcie: or(&args.pcie, base.pcie),
        window: or(&args.window, base.window),
        maxphysaddr: or(&args.maxphysaddr, base.maxphysaddr),
        balloon: or(&args.balloon, base.balloon),
        unnamed,
    }
}
