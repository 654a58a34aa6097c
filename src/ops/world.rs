//! The world that an operation reads: the host, its hypervisor, the occupancy of domains. Each is
//! read on first use.

use crate::apply::{Change, other_state, state_root};
use crate::bdf::Bdf;
use crate::discover::exclusions;
use crate::discover::test_policy::{TestMode, test_policy};
use crate::disks::{functions_of_disks, linked_functions};
use crate::domain::DomainXml;
use crate::error::{Class, Doing as _, Error, Result, classed, usage};
use crate::fabric_desk::FabricDesk;
use crate::fsroot::FsRoot;
use crate::history::gpus::GpuRecords;
use crate::history::{History, Owner, UserRecords, of_users};
use crate::hypervisor::machine::{self, Machine};
use crate::hypervisor::network::VfPool;
use crate::hypervisor::none::{self, NoHypervisor};
use crate::hypervisor::{
    Definition, DomainSummary, Hypervisor, HypervisorError, XmlOf, definitions,
};
use crate::moved;
use crate::placement::{Exclusion, Held, Occupancy};
use crate::remote;
use crate::reporter::Reporter;
use crate::topology::{OldStack, Topology};
use crate::withheld;
use gpuvm_core::iommufd::Way;
use gpuvm_core::versions::{Stack, Versions};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// The settings that select the host and hypervisor of an operation.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The URI of the hypervisor.
    pub connect: String,
    /// Whether the caller gave it explicitly.
    pub connect_is_given: bool,
    /// A recorded host: a file or a directory.
    pub host: Option<PathBuf>,
    /// The caller's own directory for journals, histories of domains and the lock; `None` for this
    /// host's, which all callers share.
    pub state: Option<PathBuf>,
}

/// The remedy for a record without libvirt and QEMU.
const UNNAMED: &str =
    "the record names no libvirt and QEMU: `--assume libvirt=12.9,qemu=11.1` names them";

/// libvirt and QEMU of a recorded host.
#[derive(Debug, Clone, Copy)]
pub struct RecordedStack {
    /// Their versions and abilities.
    pub stack: Stack,
    /// Whether the record does not name them.
    pub is_assumed: bool,
}

/// The host and hypervisor of an operation.
pub struct World {
    /// The settings.
    pub settings: Settings,
    reporter: Arc<dyn Reporter>,
    /// The host, if the caller provides it.
    known: Option<Topology>,
    /// Fabric Manager, if the caller provides it.
    fabric: Option<FabricDesk>,
    /// The hypervisor after its first use, or why there is none.
    hypervisor: OnceCell<Result<Rc<dyn Hypervisor>, HypervisorError>>,
    /// Whether something of this machine was read because the connection's URI names no other
    /// machine.
    assumed_here: Cell<bool>,
    /// The omissions of the answer, reported once.
    unseen: OnceCell<String>,
    said: RefCell<BTreeSet<String>>,
    /// GPUs that are being tested, which are offered although they are not clean.
    tested: RefCell<BTreeSet<Bdf>>,
}

impl World {
    /// A world of which nothing has been read yet.
    pub fn new(settings: Settings, reporter: Arc<dyn Reporter>) -> World {
        World {
            settings,
            reporter,
            known: None,
            fabric: None,
            hypervisor: OnceCell::new(),
            assumed_here: Cell::new(false),
            unseen: OnceCell::new(),
            said: RefCell::default(),
            tested: RefCell::default(),
        }
    }

    /// A world whose hypervisor is open already.
    pub fn on(
        hypervisor: Rc<dyn Hypervisor>,
        settings: Settings,
        reporter: Arc<dyn Reporter>,
    ) -> World {
        let world = World::new(settings, reporter);
        let _ = world.hypervisor.set(Ok(hypervisor));
        world
    }

    /// The same with a given host, which is then not read.
    pub fn with_topology(self, known: Topology) -> World {
        World { known: Some(known), ..self }
    }

    /// The same with a given Fabric Manager, which is then not looked for.
    pub fn with_fabric(self, fabric: FabricDesk) -> World {
        World { fabric: Some(fabric), ..self }
    }

    /// Fabric Manager, if the caller provided it.
    pub(crate) fn known_fabric(&self) -> Option<FabricDesk> {
        self.fabric.clone()
    }

    /// The libvirt and QEMU of a recorded host: as `named`, as they were recorded, or the usual
    /// ones; `None` if it is no record, and its libvirt is asked.
    pub fn stack(&self, topology: &Topology, named: Option<Stack>) -> Option<RecordedStack> {
        let recorded = topology.machine().stack;
        let stack = named.or(recorded).unwrap_or_else(Stack::usual);
        let is_assumed = recorded != Some(stack);
        self.is_recorded().then_some(RecordedStack { stack, is_assumed })
    }

    /// The host and the hypervisor by which functions are passed through. `stack`: those of a
    /// recorded host.
    pub(crate) fn way<'t>(
        &self,
        topology: &'t Topology,
        stack: Option<RecordedStack>,
    ) -> Result<Way<'t>> {
        let (versions, offered) = match stack {
            Some(of) => {
                // An assumed libvirt has not seen this kernel.
                let is_seen = |_: &bool| !(of.is_assumed && topology.lacks_vfio_groups());
                (of.stack.versions(), of.stack.abilities.iommufd.filter(is_seen))
            }
            None => match self.hypervisor_to_look()? {
                Some(hypervisor) => (hypervisor.versions(), hypervisor.offers_iommufd()),
                None => (Versions::default(), None),
            },
        };
        Ok(Way { topology, versions, offered })
    }

    /// The reporter.
    pub fn reporter(&self) -> &Arc<dyn Reporter> {
        &self.reporter
    }

    /// Reports progress.
    pub fn progress(&self, text: &str) {
        self.reporter.progress(text);
    }

    /// Warns once per text, because plans are made twice.
    pub fn warning(&self, text: &str) {
        if self.said.borrow_mut().insert(text.to_owned()) {
            self.reporter.warning(text);
        }
    }

    /// Reports something that is no fault, once per text.
    pub fn note(&self, text: &str) {
        if self.said.borrow_mut().insert(text.to_owned()) {
            self.reporter.progress(text);
        }
    }

    /// The host: the recorded one of `--host`, or that of the connection, as its libvirt and QEMU
    /// can use it.
    pub fn topology(&self) -> Result<Topology> {
        Ok(self.judged(self.read_topology()?, None))
    }

    /// The same with the libvirt and QEMU that are `named` for a recorded host, by a verb that takes
    /// them: a note says so where some are only assumed.
    pub fn topology_with(&self, named: Option<Stack>) -> Result<Topology> {
        self.refuse_assumed(named)?;
        let topology = self.judged(self.read_topology()?, named);
        if topology.has_assumed_stack() {
            self.note(UNNAMED);
        }
        Ok(topology)
    }

    /// The same for guests that are there, and for a host alone: of a recorded host only versions
    /// that are known count.
    pub fn topology_as_known(&self, named: Option<Stack>) -> Result<Topology> {
        self.refuse_assumed(named)?;
        let topology = self.read_topology()?;
        Ok(match named.or(topology.machine().stack) {
            None if self.is_recorded() => topology.with_old_stack(None),
            _ => self.judged(topology, named),
        })
    }

    /// Notes that libvirt and QEMU of a recorded host with GPUs of coherent memory are unknown, to
    /// a verb that takes them.
    pub fn note_unknown_stack(&self, topology: &Topology, named: Option<Stack>) {
        let is_known = named.or(topology.machine().stack).is_some();
        if self.is_recorded() && !is_known && topology.has_coherent_gpus() {
            self.note(UNNAMED);
        }
    }

    /// Refuses libvirt and QEMU that are named for a host that is not recorded.
    pub fn refuse_assumed(&self, named: Option<Stack>) -> Result<()> {
        if named.is_none() || self.is_recorded() {
            return Ok(());
        }
        Err(usage(
            "--assume names libvirt and QEMU of a recorded host, and --host is not given",
            "without --host they are asked",
        ))
    }

    /// A host with what libvirt and QEMU lack for its GPUs with coherent memory: those that are
    /// `named` for a recorded host, or its own.
    pub fn judged(&self, topology: Topology, named: Option<Stack>) -> Topology {
        if !topology.has_coherent_gpus() {
            return topology;
        }
        let is_assumed = self.is_recorded() && named.or(topology.machine().stack).is_none();
        let (versions, can) = match self.stack(&topology, named) {
            Some(of) => (of.stack.versions(), of.stack.abilities.accelerates_smmu),
            None => match self.hypervisor() {
                Ok(hypervisor) => (hypervisor.versions(), hypervisor.accelerates_smmu()),
                Err(_) => return topology,
            },
        };
        let Versions { libvirt, qemu } = versions;
        topology.with_old_stack((!can).then_some(OldStack { libvirt, qemu, is_assumed }))
    }

    /// Reads the host.
    fn read_topology(&self) -> Result<Topology> {
        if let Some(known) = &self.known {
            return Ok(known.clone());
        }
        if let Some(path) = &self.settings.host {
            let topology = crate::discover::source::load(path)?;
            self.refuse_record_of_another(&topology)?;
            return Ok(topology);
        }
        match self.machine()? {
            Machine::Here => Ok(crate::discover::discover(&FsRoot::live()?)?),
            Machine::Elsewhere { host } => {
                let topology = remote::topology(&self.hypervisor()?.opened_uri(), &host)?;
                let there = machine::command_there(&host, "gpu list");
                self.warning(&format!(
                    "GPUs excluded on `{host}` are not known here; `{there}` lists them"
                ));
                Ok(topology)
            }
        }
    }

    /// Refuses a record that names another machine than that of the connection. Most name none.
    fn refuse_record_of_another(&self, record: &Topology) -> Result<()> {
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

    /// The machine of the connection. If its URI names no other machine, it is not opened for that;
    /// if it is opened later and turns out to be another machine's, that is an error.
    pub fn machine(&self) -> Result<Machine> {
        if self.hypervisor.get().is_none() && machine::is_plain(&self.settings.connect) {
            self.assumed_here.set(true);
            return Ok(Machine::Here);
        }
        match self.hypervisor() {
            Ok(hypervisor) => Ok(hypervisor.machine()),
            Err(_) if machine::is_plain(&self.settings.connect) => Ok(Machine::Here),
            Err(error) => Err(error),
        }
    }

    /// The history of a domain of this machine, by its UUID.
    pub fn history(&self, uuid: &str) -> Result<History> {
        Ok(History::of(self.state(), uuid)?)
    }

    /// The history of the host.
    pub fn host_history(&self) -> Result<History> {
        Ok(History::of_host(self.state())?)
    }

    /// The caller's own directory for journals, histories and the lock; `None` for this host's.
    pub fn state(&self) -> Option<&Path> {
        self.settings.state.as_deref()
    }

    /// The directory of this run's records.
    pub fn state_root(&self) -> PathBuf {
        self.state().map_or_else(state_root, Path::to_owned)
    }

    /// The owner of the stored data of a domain's UUID, as seen from a connection.
    pub fn owner(&self, uuid: &str, on: &dyn Hypervisor) -> Owner {
        Owner::of(uuid, on, self.state())
    }

    /// Whether the connection is of this machine.
    pub fn is_here(&self) -> Result<bool> {
        Ok(self.machine()?.is_here())
    }

    /// Whether the guests of the connection do not really run: those of libvirt's test driver.
    pub fn is_test(&self) -> bool {
        machine::is_test(&self.settings.connect)
    }

    /// Whether the guests of the connection run on this machine, and so use its devices and pages.
    pub fn has_guests_here(&self) -> Result<bool> {
        Ok(self.is_here()? && !self.is_test())
    }

    /// Root's records of the guests of this machine, which this run does not read; `None` if it
    /// reads all records. To be reported before anything is reported as not recorded.
    pub fn unread_records(&self) -> Option<String> {
        let other = other_state().filter(|_| self.settings.state.is_none())?;
        // Without an answer it is not known whose guests are meant.
        let are_roots = self.hypervisor().map_or(true, |hypervisor| {
            hypervisor.has_guests_here() && !hypervisor.uri().contains("/session")
        });
        are_roots
            .then(|| format!("root's records in {} are not read; run with sudo", other.display()))
    }

    /// The same of the domain of a UUID; for root also the records of other users.
    pub fn unread_records_of(&self, name: &str, uuid: &str) -> Option<String> {
        self.unread_records().or_else(|| Some(unread_of_users(name, &self.records_of_users(uuid)?)))
    }

    /// The records of other users about the domain of a UUID, which this run does not read; `None`
    /// if root sees none.
    pub fn records_of_users(&self, uuid: &str) -> Option<Vec<UserRecords>> {
        let are_looked_for = self.settings.state.is_none() && self.is_here().unwrap_or(true);
        let records = if are_looked_for { of_users(uuid) } else { Vec::new() };
        (!records.is_empty()).then_some(records)
    }

    /// Whether `--host` names a host without a hypervisor: nothing is queried or changed on it. A
    /// record beside a connection to another machine that was named with it is of that machine.
    pub fn is_recorded(&self) -> bool {
        self.settings.host.is_some() && !self.is_record_of_connection()
    }

    /// Whether the recorded host is that of the connection.
    fn is_record_of_connection(&self) -> bool {
        let leads_away =
            !machine::is_plain(&self.settings.connect) && self.settings.connect_is_given;
        leads_away && self.machine().map_or(true, |machine| !machine.is_here())
    }

    /// The hypervisor of `--connect`; a run has one connection.
    pub fn hypervisor(&self) -> Result<Rc<dyn Hypervisor>> {
        self.opened(false)
    }

    /// The hypervisor, if it was needed so far and has answered.
    pub fn connected(&self) -> Option<Rc<dyn Hypervisor>> {
        self.hypervisor.get()?.as_ref().ok().map(Rc::clone)
    }

    /// The hypervisor of `--connect`, or none if none can be asked: for changes of the host, which
    /// ask it for the holder of a function. One that exists but does not answer is an error, since
    /// it may just be giving the function to a guest.
    pub fn hypervisor_or_none(&self) -> Result<Rc<dyn Hypervisor>> {
        let is_silent =
            |error: &Error| matches!(error, Error::Hypervisor(error) if error.is_silent());
        match self.hypervisor() {
            Err(error) if is_silent(&error) => Err(error),
            opened => Ok(opened.unwrap_or_else(|_| Rc::new(NoHypervisor))),
        }
    }

    /// The hypervisor of `--connect`, ready for a console; must be called before
    /// [`World::hypervisor`].
    pub fn hypervisor_for_console(&self) -> Result<Rc<dyn Hypervisor>> {
        self.opened(true)
    }

    /// The hypervisor of `--connect`; it is tried once.
    fn opened(&self, console: bool) -> Result<Rc<dyn Hypervisor>> {
        if let Some(part) = machine::program_in(&self.settings.connect) {
            let message =
                format!("connection {}: {part} names a program to run", self.settings.connect);
            let hint = "use qemu+ssh://HOST/system, with a ProxyCommand in ~/.ssh/config if needed";
            return Err(classed(Class::Refused, message, hint));
        }
        let opened = self.hypervisor.get_or_init(|| open(&self.settings.connect, console));
        let hypervisor = opened.as_ref().map_err(Clone::clone)?;
        if !machine::is_plain(&self.settings.connect) && !hypervisor.machine().is_here() {
            self.reporter.leads_away(&self.settings.connect);
        }
        if self.assumed_here.get()
            && let Machine::Elsewhere { host } = hypervisor.machine()
        {
            let message =
                format!("{} is of machine `{host}`, not of this one", self.settings.connect);
            return Err(classed(
                Class::OtherMachine,
                message,
                format!("`{}`", machine::command_there(&host, "...")),
            ));
        }
        Ok(Rc::clone(hypervisor))
    }

    /// The hypervisor of `--connect`, for a verb that changes nothing; none, with one warning, if
    /// this machine has no libvirt. One that hangs, refuses or is another machine's is still an
    /// error.
    pub fn hypervisor_to_look(&self) -> Result<Option<Rc<dyn Hypervisor>>> {
        let absent = |error: &Error| matches!(error, Error::Hypervisor(error) if error.is_absent());
        match self.hypervisor() {
            Err(error) if absent(&error) && machine::is_plain(&self.settings.connect) => {
                self.unseen.get_or_init(|| {
                    let warning = format!(
                        "no libvirt answers at {}: guests were not examined, and their resources count as \
                         free",
                        self.settings.connect
                    );
                    self.warning(&warning);
                    warning
                });
                Ok(None)
            }
            hypervisor => hypervisor.map(Some),
        }
    }

    /// The omissions of the answer because there was no hypervisor to ask.
    pub fn unseen(&self) -> Option<&str> {
        self.unseen.get().map(String::as_str)
    }

    /// The hypervisor of another URI, or that of `--connect` if it is the same.
    pub fn hypervisor_at(&self, uri: &str) -> Result<Rc<dyn Hypervisor>> {
        if uri == self.settings.connect {
            return self.hypervisor();
        }
        if uri == none::URI {
            return Ok(Rc::new(NoHypervisor));
        }
        Ok(open(uri, false)?)
    }

    /// The hypervisor of a change that has begun. Refuses one of another machine: a host name that
    /// has changed its target, or a journal from another machine.
    pub fn hypervisor_of(&self, change: &Change) -> Result<Rc<dyn Hypervisor>> {
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

    /// The occupancy of every domain of the host, nothing on a recorded host, and the excluded
    /// devices.
    pub fn occupancy(&self, assume_empty: bool) -> Result<Occupancy> {
        if assume_empty || self.is_recorded() {
            return self.without_domains();
        }
        self.held_by(&*self.hypervisor()?)
    }

    /// The same for a verb that changes nothing: without domains, and with one warning, if this
    /// machine has no libvirt.
    pub fn occupancy_to_look(&self, assume_empty: bool) -> Result<Occupancy> {
        if assume_empty || self.is_recorded() {
            return self.occupancy(assume_empty);
        }
        match self.hypervisor_to_look()? {
            Some(hypervisor) => self.held_by(&*hypervisor),
            None => self.occupancy(true),
        }
    }

    /// The occupancy of the domains of a hypervisor.
    fn held_by(&self, hypervisor: &dyn Hypervisor) -> Result<Occupancy> {
        let is_here = hypervisor.machine().is_here();
        let mut domains: Vec<Held> = Vec::new();
        // A device does not move while it is in use.
        let mut known = Vec::new();
        let has_guests_here = hypervisor.has_guests_here();
        // A running domain may hold other things now than after its next start.
        let kinds = |row: &DomainSummary| -> &'static [XmlOf] {
            if row.state.is_active() { &[XmlOf::Live, XmlOf::Inactive] } else { &[XmlOf::Inactive] }
        };
        let defined = definitions(hypervisor, kinds)?;
        let some_off = defined.iter().any(|one| !one.summary.state.is_active());
        let autostarted = if some_off { hypervisor.autostarted()? } else { BTreeSet::new() };
        for Definition { summary, which, xml } in defined {
            let failed = || format!("cannot determine the resources of domain `{}`", summary.name);
            let xml = xml.doing(failed)?;
            let mut held = xml.held(summary.state.is_active()).doing(failed)?;
            held.autostart = autostarted.contains(&summary.name);
            if is_here {
                let drives = functions_of_disks(&xml);
                held.devices.extend(drives.doing(failed)?);
                let linked = linked_functions(&xml);
                held.unread.retain(|why| !linked.iter().any(|(read, _)| read == why));
            }
            if has_guests_here && which == XmlOf::Inactive {
                let recorded = xml.valid_devices(&held.devices).into_iter();
                known.extend(recorded.map(|one| (summary.name.clone(), one)));
            }
            if domains.last() != Some(&held) {
                domains.push(held);
            }
        }
        for (name, text) in hypervisor.saved()? {
            let failed =
                || format!("cannot determine the resources of the saved state of domain `{name}`");
            let xml = DomainXml::parse(&text).doing(failed)?;
            let mut held = xml.held(false).doing(failed)?;
            if is_here {
                held.devices.extend(functions_of_disks(&xml).doing(failed)?);
            }
            if !domains.contains(&held) {
                domains.push(held);
            }
        }
        if !known.is_empty() {
            moved::relocate(&FsRoot::live()?, &mut domains, &known)?;
        }
        let mut held = self.without_domains()?;
        // libvirt gives them to the next guest that starts.
        for VfPool { name, functions } in hypervisor.networks().vf_pools()? {
            let reason = format!("network `{name}` hands it out");
            let of_pool = |bdf: Bdf| Exclusion::new(bdf, reason.clone());
            held.excluded.extend(functions.into_iter().map(of_pool));
        }
        Ok(Occupancy { domains, ..held })
    }

    /// The same; without domains, and with a warning, if no libvirt answers.
    pub fn occupancy_or_warn(&self) -> Result<Occupancy> {
        match self.occupancy(false) {
            Err(error) if self.is_here().unwrap_or(false) && is_of_hypervisor(&error) => {
                let note = "libvirt does not answer, so devices of guests are known only by the \
                            processes that have them open";
                self.warning(note);
                self.without_domains()
            }
            held => held,
        }
    }

    /// The devices that are not offered although no domain holds them.
    fn without_domains(&self) -> Result<Occupancy> {
        let mut held = Occupancy { excluded: self.excluded()?, ..Occupancy::default() };
        let Some(root) = self.root()? else { return Ok(held) };
        let policy = test_policy(&root)?;
        let mode = policy.mode;
        if mode == TestMode::Off {
            return Ok(held);
        }
        let is_strict = mode == TestMode::Require && self.settings.host.is_none();
        let unread = if is_strict { self.unread_records() } else { None };
        match unread {
            Some(why) => withheld::add_all(&mut held, &self.topology()?, &why),
            None => withheld::add(&mut held, &policy, &self.gpu_records(&root, mode)?, &root)?,
        }
        let tested = self.tested.borrow();
        held.excluded.retain(|one| !(one.untested && tested.contains(&one.bdf)));
        held.formerly.retain(|one| !tested.contains(&one.bdf));
        Ok(held)
    }

    /// Has these GPUs offered from now on although they are not clean, and no others.
    pub(crate) fn offer_to_test(&self, gpus: &[Bdf]) {
        self.tested.replace(gpus.iter().copied().collect());
    }

    /// The records of GPUs. Damaged ones are an error where a test is required, else a warning.
    pub(crate) fn gpu_records(&self, root: &FsRoot, mode: TestMode) -> Result<GpuRecords> {
        let mut records = match self.settings.host {
            Some(_) => GpuRecords::recorded(root)?,
            None => GpuRecords::of_this_machine(self.state())?,
        };
        for error in std::mem::take(&mut records.damaged) {
            if mode == TestMode::Require {
                return Err(error.into());
            }
            self.warning(&error.to_string());
        }
        Ok(records)
    }

    /// The root directory of the host; none if it is recorded in a file, or another machine.
    pub fn root(&self) -> Result<Option<FsRoot>> {
        Ok(match &self.settings.host {
            None if !self.is_here()? => None,
            None => Some(FsRoot::live()?),
            Some(path) if path.is_dir() => Some(FsRoot::at(path)?),
            Some(_) => None,
        })
    }

    /// Excluded GPUs and NVSwitches; a host recorded in a file has no such list.
    pub fn excluded(&self) -> Result<Vec<Exclusion>> {
        let Some(root) = self.root()? else { return Ok(Vec::new()) };
        let excluded = exclusions::excluded(&root)?.into_iter();
        Ok(excluded.map(|(bdf, reason)| Exclusion::new(bdf, reason)).collect())
    }

    /// Refuses a verb that changes this machine itself, if the connection is of another.
    pub fn refuse_elsewhere(&self, verb: &str) -> Result<()> {
        // A connection that cannot be opened is not proven to be of this machine.
        let named = machine::Uri::parse(&self.settings.connect).and_then(|uri| uri.host);
        let named = named.map(|host| Machine::Elsewhere { host: host.into_owned() });
        match self.machine().or_else(|error| named.ok_or(error))? {
            Machine::Here => Ok(()),
            Machine::Elsewhere { host } => Err(usage(
                format!(
                    "`{verb}` is about this machine, and {} is of machine `{host}`",
                    self.settings.connect
                ),
                format!(
                    "there: `{}`; here: `gpuvm --connect qemu:///system {verb} ...`",
                    machine::command_there(&host, &format!("{verb} ..."))
                ),
            )),
        }
    }

    /// Refuses a verb that changes this machine itself and never asks libvirt, if the command line
    /// names a record or a connection whose form may lead to another machine. The environment does
    /// not count: it is set for those who call such a verb, too, as for libvirt's hook.
    pub fn refuse_named_elsewhere(&self, verb: &str) -> Result<()> {
        let connect = &self.settings.connect;
        if self.settings.connect_is_given && !machine::is_plain(connect) {
            return Err(usage(
                format!(
                    "`{verb}` changes this machine without asking libvirt, and {connect} may be of \
                     another"
                ),
                "run it on that machine, without --connect",
            ));
        }
        self.refuse_recorded(verb)
    }

    /// Refuses a verb that reads the domains of a hypervisor, on a recorded host, which has none.
    pub fn refuse_without_guests(&self, verb: &str) -> Result<()> {
        if self.is_recorded() {
            Err(usage(
                format!(
                    "`{verb}` asks libvirt, which a recorded host does not have, so it does not \
                     take --host"
                ),
                format!("`gpuvm {verb}` without --host asks the libvirt of this machine"),
            ))
        } else {
            Ok(())
        }
    }

    /// Refuses a verb that runs programs in a guest, on a recorded host.
    pub fn refuse_without_running_guests(&self, verb: &str) -> Result<()> {
        if self.is_recorded() {
            Err(usage(
                format!(
                    "`{verb}` runs programs in a guest, which a recorded host does not have, so it \
                     does not take --host"
                ),
                "run it on that machine, without --host",
            ))
        } else {
            Ok(())
        }
    }

    /// Refuses a verb that changes something on a recorded host.
    pub fn refuse_recorded(&self, verb: &str) -> Result<()> {
        if self.is_recorded() {
            Err(usage(
                format!("`{verb}` changes the machine, so it does not take --host"),
                match verb {
                    "create" => {
                        "`gpuvm export --host FILE` prints the domain XML that would be defined"
                    }
                    _ => "run it on that machine, without --host",
                },
            ))
        } else {
            Ok(())
        }
    }
}

/// Names the records of other users.
pub fn unread_of_users(name: &str, records: &[UserRecords]) -> String {
    let each = records.iter().map(|one| format!("{} ({})", one.user, one.directory.display()));
    let each = each.collect::<Vec<_>>().join(", ");
    format!("domain `{name}` was also changed by {each}, whose records are not read")
}

/// Whether an error comes from the hypervisor, at any operation.
fn is_of_hypervisor(error: &Error) -> bool {
    match error {
        Error::Hypervisor(_) => true,
        Error::Around { source, .. } | Error::Doing { source, .. } => is_of_hypervisor(source),
        _ => false,
    }
}

/// Connects to a hypervisor, for a console or for everything else.
#[cfg(feature = "libvirt")]
fn open(uri: &str, console: bool) -> Result<Rc<dyn Hypervisor>, HypervisorError> {
    use crate::hypervisor::libvirt::Libvirt;
    let open = if console { Libvirt::open_for_console } else { Libvirt::open };
    Ok(Rc::new(open(uri)?))
}

/// Returns the error that this build has no hypervisor support.
#[cfg(not(feature = "libvirt"))]
fn open(uri: &str, _: bool) -> Result<Rc<dyn Hypervisor>, HypervisorError> {
    let error = HypervisorError {
        kind: crate::hypervisor::HypervisorErrorKind::NoLibrary,
        doing: format!("connect to {uri}"),
        message: "this gpuvm was built without libvirt (cargo feature `libvirt`)".into(),
    };
    Err(error)
}
