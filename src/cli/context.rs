//! What a verb works on: the host, its hypervisor, what is taken. Each is read when it is first asked for.

use super::args::{Global, TakenArgs};
use super::codes::Class;
use super::error::classed;
use super::output::Output;
use super::remote;
use crate::apply::Change;
use crate::bdf::Bdf;
use crate::discover::exclusions;
use crate::domain::DomainXml;
use crate::fsroot::FsRoot;
use crate::hypervisor::machine::{self, Machine};
use crate::hypervisor::none::{self, NoHypervisor};
use crate::hypervisor::{
    DomainState, Hypervisor, HypervisorError, HypervisorErrorKind, VfPool, XmlOf,
};
use crate::input::{self, DOMAIN_BYTES};
use crate::placement::{Exclusion, Held, Occupancy};
use crate::topology::Topology;
use anyhow::Context as _;
use std::cell::{Cell, OnceCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Is what a verb works on.
pub struct Context<'a> {
    /// What holds for every verb.
    pub global: &'a Global,
    /// How to print.
    pub output: Output,
    /// The hypervisor, once it was asked for, or why there is none.
    hypervisor: OnceCell<Result<Rc<dyn Hypervisor>, HypervisorError>>,
    /// Whether something of this machine was read because the connection's URI leads nowhere else.
    assumed_here: Cell<bool>,
    /// What was left out of the answer, told once.
    unseen: OnceCell<String>,
}

impl<'a> Context<'a> {
    /// Makes the context of a run.
    pub fn new(global: &'a Global) -> Context<'a> {
        Context {
            global,
            output: Output::new(global),
            hypervisor: OnceCell::new(),
            assumed_here: Cell::new(false),
            unseen: OnceCell::new(),
        }
    }

    /// The host: the recorded one of `--host`, or that of the connection.
    pub fn topology(&self) -> anyhow::Result<Topology> {
        if let Some(path) = &self.global.host {
            let topology = crate::discover::source::load(path)?;
            self.refuse_record_of_another(&topology)?;
            return Ok(topology);
        }
        match self.machine()? {
            Machine::Here => Ok(crate::discover::discover(&FsRoot::live()?)?),
            Machine::Elsewhere { host } => {
                let topology = remote::topology(&self.hypervisor()?.opened_uri(), &host)?;
                let there = machine::command_there(&host, "gpu list");
                self.output.warning(&format!(
                    "what an admin took out of use on `{host}` is not known here: `{there}`"
                ));
                Ok(topology)
            }
        }
    }

    /// Refuses a record that names another machine than that of the connection. Most name none.
    fn refuse_record_of_another(&self, record: &Topology) -> anyhow::Result<()> {
        let Some(recorded) = record.parts().machine.host_name.as_deref() else { return Ok(()) };
        if !self.is_record_of_connection() {
            return Ok(());
        }
        let there = self.hypervisor()?.identity().host;
        if machine::is_same_name(recorded, &there) {
            return Ok(());
        }
        let message = format!(
            "--host is a record of machine `{recorded}`, and the connection is of `{there}`"
        );
        let hint =
            format!("`{} >host.json` records it", machine::command_there(&there, "host capture -"));
        Err(classed(Class::OtherMachine, message, hint))
    }

    /// The machine that the connection is of. One whose URI leads nowhere else is not opened for that; where it is later,
    /// and is of another machine, that is an error.
    pub fn machine(&self) -> anyhow::Result<Machine> {
        if self.hypervisor.get().is_none() && machine::is_plain(&self.global.connect) {
            self.assumed_here.set(true);
            return Ok(Machine::Here);
        }
        match self.hypervisor() {
            Ok(hypervisor) => Ok(hypervisor.machine()),
            Err(_) if machine::is_plain(&self.global.connect) => Ok(Machine::Here),
            Err(error) => Err(error),
        }
    }

    /// Whether the connection is of this machine.
    pub fn is_here(&self) -> anyhow::Result<bool> {
        Ok(self.machine()?.is_here())
    }

    /// Whether the guests of the connection run nowhere: those of libvirt's test driver.
    pub fn is_test(&self) -> bool {
        machine::is_test(&self.global.connect)
    }

    /// Whether the guests of the connection run on this machine, so that they have its devices and pages.
    pub fn has_guests_here(&self) -> anyhow::Result<bool> {
        Ok(self.is_here()? && !self.is_test())
    }

    /// Whether `--host` names a host without a hypervisor: nothing is asked, nothing is made on it. A record beside a
    /// connection to another machine that was named with it is of that machine.
    pub fn is_recorded(&self) -> bool {
        self.global.host.is_some() && !self.is_record_of_connection()
    }

    /// Whether the recorded host is that of the connection.
    fn is_record_of_connection(&self) -> bool {
        let leads_away = !machine::is_plain(&self.global.connect) && self.global.connect_is_given;
        leads_away && self.machine().map_or(true, |machine| !machine.is_here())
    }

    /// The hypervisor of `--connect`; a run has one connection.
    pub fn hypervisor(&self) -> anyhow::Result<Rc<dyn Hypervisor>> {
        self.opened(false)
    }

    /// The hypervisor of `--connect`, or none where none can be asked: for changes of the host, which ask it whose a
    /// function is. One that is there and does not answer may be in the middle of giving it to a guest.
    pub fn hypervisor_or_none(&self) -> anyhow::Result<Rc<dyn Hypervisor>> {
        let is_silent = |error: &anyhow::Error| {
            let error = error.downcast_ref::<HypervisorError>();
            error.is_some_and(HypervisorError::is_silent)
        };
        match self.hypervisor() {
            Err(error) if is_silent(&error) => Err(error),
            opened => Ok(opened.unwrap_or_else(|_| Rc::new(NoHypervisor))),
        }
    }

    /// The hypervisor of `--connect`, ready for a console; to be asked for before [`Context::hypervisor`].
    pub fn hypervisor_for_console(&self) -> anyhow::Result<Rc<dyn Hypervisor>> {
        self.opened(true)
    }

    /// The hypervisor of `--connect`; it is tried once.
    fn opened(&self, console: bool) -> anyhow::Result<Rc<dyn Hypervisor>> {
        let opened = self.hypervisor.get_or_init(|| open(&self.global.connect, console));
        let hypervisor = opened.as_ref().map_err(Clone::clone)?;
        if !machine::is_plain(&self.global.connect) && !hypervisor.machine().is_here() {
            super::output::leads_away(&self.global.connect);
        }
        if self.assumed_here.get()
            && let Machine::Elsewhere { host } = hypervisor.machine()
        {
            let message =
                format!("{} is of machine `{host}`, not of this one", self.global.connect);
            return Err(classed(
                Class::OtherMachine,
                message,
                format!("`{}`", machine::command_there(&host, "...")),
            ));
        }
        Ok(Rc::clone(hypervisor))
    }

    /// The hypervisor of `--connect`, for a verb that only looks; none, with one warning, where this machine has no
    /// libvirt. One that is frozen, refuses or is of another machine is an error as ever.
    pub fn hypervisor_to_look(&self) -> anyhow::Result<Option<Rc<dyn Hypervisor>>> {
        let absent = |error: &anyhow::Error| {
            let error = error.downcast_ref::<HypervisorError>();
            error.is_some_and(HypervisorError::is_absent)
        };
        match self.hypervisor() {
            Err(error) if absent(&error) && machine::is_plain(&self.global.connect) => {
                self.unseen.get_or_init(|| {
                    let told = format!(
                        "no libvirt answers at {}, so guests were not looked at: what they hold \
                         counts as free",
                        self.global.connect
                    );
                    self.output.warning(&told);
                    told
                });
                Ok(None)
            }
            hypervisor => hypervisor.map(Some),
        }
    }

    /// What was left out of the answer because there was nobody to ask.
    pub fn unseen(&self) -> Option<&str> {
        self.unseen.get().map(String::as_str)
    }

    /// The hypervisor of another URI, or that of `--connect` where it is the same.
    pub fn hypervisor_at(&self, uri: &str) -> anyhow::Result<Rc<dyn Hypervisor>> {
        if uri == self.global.connect {
            return self.hypervisor();
        }
        if uri == none::URI {
            return Ok(Rc::new(NoHypervisor));
        }
        Ok(open(uri, false)?)
    }

    /// The hypervisor of a change that was begun. Refuses one that is of another machine by now: a name that leads
    /// elsewhere since, or a journal that was begun on another machine.
    pub fn hypervisor_of(&self, change: &Change) -> anyhow::Result<Rc<dyn Hypervisor>> {
        let hypervisor = self.hypervisor_at(&change.uri)?;
        let Some(machine) = &change.machine else { return Ok(hypervisor) };
        let now = hypervisor.identity();
        if machine.is_same(&now) {
            return Ok(hypervisor);
        }
        let message = format!(
            "`{} {}` was begun on machine `{}`, and {} is of `{}`",
            change.verb, change.subject, machine.host, change.uri, now.host
        );
        Err(classed(
            Class::OtherMachine,
            message,
            format!(
                "`{}`; `gpuvm recover --discard` forgets it here",
                machine::command_there(&machine.host, "recover")
            ),
        ))
    }

    /// What every domain of the host holds, nothing on a recorded host, and what is out of use.
    pub fn occupancy(&self, assume_empty: bool) -> anyhow::Result<Occupancy> {
        if assume_empty || self.is_recorded() {
            return Ok(Occupancy { excluded: self.excluded()?, ..Occupancy::default() });
        }
        self.held_by(&*self.hypervisor()?)
    }

    /// The same for a verb that only looks: without domains, and with one warning, where this machine has no libvirt.
    fn occupancy_to_look(&self, assume_empty: bool) -> anyhow::Result<Occupancy> {
        if assume_empty || self.is_recorded() {
            return self.occupancy(assume_empty);
        }
        match self.hypervisor_to_look()? {
            Some(hypervisor) => self.held_by(&*hypervisor),
            None => self.occupancy(true),
        }
    }

    /// What the domains of a hypervisor hold.
    fn held_by(&self, hypervisor: &dyn Hypervisor) -> anyhow::Result<Occupancy> {
        let is_here = hypervisor.machine().is_here();
        let mut domains: Vec<Held> = Vec::new();
        for summary in hypervisor.domains()? {
            let active = !matches!(summary.state, DomainState::ShutOff | DomainState::Crashed);
            // What a running domain holds now, and what it will hold after its next start, may differ.
            let kinds =
                if active { &[XmlOf::Live, XmlOf::Inactive][..] } else { &[XmlOf::Inactive] };
            for &which in kinds {
                let text = match hypervisor.xml(&summary.name, which) {
                    // Deleted since it was listed.
                    Err(error) if error.kind == HypervisorErrorKind::NoDomain => continue,
                    text => text?,
                };
                let failed = || format!("cannot tell what domain `{}` holds", summary.name);
                let xml = DomainXml::parse(&text).with_context(failed)?;
                let mut held = xml.held(active).with_context(failed)?;
                if is_here {
                    let drives = super::drive::functions_of_disks(&xml);
                    held.devices.extend(drives.with_context(failed)?);
                }
                if domains.last() != Some(&held) {
                    domains.push(held);
                }
            }
        }
        let mut excluded = self.excluded()?;
        // libvirt gives them to whoever starts next.
        for VfPool { name, functions } in hypervisor.vf_pools()? {
            let reason = format!("network `{name}` hands it out");
            let of_pool = |bdf: Bdf| Exclusion { bdf, reason: reason.clone() };
            excluded.extend(functions.into_iter().map(of_pool));
        }
        Ok(Occupancy { domains, excluded, ..Occupancy::default() })
    }

    /// The same; without domains, and with a warning, where no libvirt answers.
    pub fn occupancy_or_warn(&self) -> anyhow::Result<Occupancy> {
        match self.occupancy(false) {
            Err(error)
                if self.is_here().unwrap_or(false)
                    && error.chain().any(|cause| cause.is::<HypervisorError>()) =>
            {
                let told = "libvirt does not answer, so devices of guests are known only by the \
                            processes that have them open";
                self.output.warning(told);
                Ok(Occupancy { excluded: self.excluded()?, ..Occupancy::default() })
            }
            held => held,
        }
    }

    /// The root directory of the host; none where it is recorded in a file, or another machine.
    pub fn root(&self) -> anyhow::Result<Option<FsRoot>> {
        Ok(match &self.global.host {
            None if !self.is_here()? => None,
            None => Some(FsRoot::live()?),
            Some(path) if path.is_dir() => Some(FsRoot::at(path)?),
            Some(_) => None,
        })
    }

    /// GPUs and NVSwitches that were taken out of use; a host that is recorded in a file has no such list.
    pub fn excluded(&self) -> anyhow::Result<Vec<Exclusion>> {
        let Some(root) = self.root()? else { return Ok(Vec::new()) };
        let excluded = exclusions::excluded(&root)?.into_iter();
        Ok(excluded.map(|(bdf, reason)| Exclusion { bdf, reason }).collect())
    }

    /// What the domains hold that these arguments speak of.
    pub fn taken(&self, args: &TakenArgs) -> anyhow::Result<Occupancy> {
        let mut occupancy = self.occupancy_to_look(args.assume_empty)?;
        for (path, xml) in self.domains_of_files(&args.domain_xml)? {
            let failed = || format!("cannot tell what the domain in `{}` holds", path.display());
            occupancy.domains.push(xml.held(is_active(&xml)).with_context(failed)?);
        }
        Ok(occupancy)
    }

    /// The domains of a recorded host that these files or directories of files have.
    pub fn domains_of_files(&self, paths: &[PathBuf]) -> anyhow::Result<Vec<(PathBuf, DomainXml)>> {
        if !paths.is_empty() && !self.is_recorded() {
            return Err(super::error::usage(
                "--domain-xml names the domains of a recorded host, and --host is not given",
                "without --host the domains of this machine are read from libvirt",
            ));
        }
        let files = paths.iter().map(|path| xml_files(path));
        let files = files.collect::<anyhow::Result<Vec<_>>>()?.concat().into_iter();
        let read = |path: PathBuf| {
            let failed = || format!("cannot tell what the domain in `{}` holds", path.display());
            let text = input::text(&path, DOMAIN_BYTES).with_context(failed)?;
            let xml = DomainXml::parse(&text).with_context(failed)?;
            Ok((path, xml))
        };
        files.map(read).collect()
    }

    /// Refuses a verb that changes this machine itself, where the connection is of another.
    pub fn refuse_elsewhere(&self, verb: &str) -> anyhow::Result<()> {
        // One that cannot be reached is not proven to be this machine.
        let named = machine::Uri::parse(&self.global.connect).and_then(|uri| uri.host);
        let named = named.map(|host| Machine::Elsewhere { host: host.to_owned() });
        match self.machine().or_else(|error| named.ok_or(error))? {
            Machine::Here => Ok(()),
            Machine::Elsewhere { host } => Err(super::error::usage(
                format!(
                    "`{verb}` is about this machine, and {} is of machine `{host}`",
                    self.global.connect
                ),
                format!(
                    "there: `{}`; here: `gpuvm --connect qemu:///system {verb} ...`",
                    machine::command_there(&host, &format!("{verb} ..."))
                ),
            )),
        }
    }

    /// Refuses a verb that looks at what a hypervisor has, on a recorded host, which has none.
    pub fn refuse_without_guests(&self, verb: &str) -> anyhow::Result<()> {
        match self.is_recorded() {
            false => Ok(()),
            true => Err(super::error::usage(
                format!(
                    "`{verb}` asks libvirt, which a recorded host does not have, so it does not take --host"
                ),
                format!("`gpuvm {verb}` without --host asks the libvirt of this machine"),
            )),
        }
    }

    /// Refuses a verb that changes something on a recorded host.
    pub fn refuse_recorded(&self, verb: &str) -> anyhow::Result<()> {
        match self.is_recorded() {
            false => Ok(()),
            true => Err(super::error::usage(
                format!("`{verb}` changes the machine, so it does not take --host"),
                match verb {
                    "create" => {
                        "`gpuvm export --host FILE` prints the domain XML that would be defined"
                    }
                    _ => "run it on that machine, without --host",
                },
            )),
        }
    }
}

/// Whether a domain ran when its XML was printed: libvirt prints the id of one that runs, and of no other.
pub fn is_active(xml: &DomainXml) -> bool {
    xml.root().attr("id").is_some()
}

/// The file itself, or the files of a directory that end in `.xml`, by name.
pub fn xml_files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let failed = || format!("cannot read directory `{}`", path.display());
    let entries = std::fs::read_dir(path).with_context(failed)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut files = paths.collect::<Result<Vec<_>, _>>().with_context(failed)?;
    files.retain(|file| file.extension().is_some_and(|end| end.eq_ignore_ascii_case("xml")));
    files.sort();
    Ok(files)
}

/// Connects to a hypervisor, for a console or for all else.
#[cfg(feature = "libvirt")]
fn open(uri: &str, console: bool) -> Result<Rc<dyn Hypervisor>, HypervisorError> {
    use crate::hypervisor::libvirt::Libvirt;
    use crate::hypervisor::traced;
    let open = if console { Libvirt::open_for_console } else { Libvirt::open };
    traced::open(uri, || open(uri))
}

/// Says that this program has no hypervisor.
#[cfg(not(feature = "libvirt"))]
fn open(uri: &str, _: bool) -> Result<Rc<dyn Hypervisor>, HypervisorError> {
    let error = HypervisorError {
        kind: HypervisorErrorKind::NoLibrary,
        doing: format!("connect to {uri}"),
        message: "this gpuvm was built without libvirt (cargo feature `libvirt`)".into(),
    };
    Err(error)
}
