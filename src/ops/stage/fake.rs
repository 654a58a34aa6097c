//! A hypervisor in memory.

use super::agent::FakeAgent;
use super::failed;
use super::local::LocalAgent;
use crate::discover::reach::Reach;
use crate::hypervisor::network::{NetworkState, Networks};
use crate::hypervisor::snapshot::Snapshots;
use crate::hypervisor::storage::Storage;
use crate::hypervisor::{
    Addresses, AskedBy, Console, DiskSize, DomainState, DomainSummary, Domains, Hypervisor,
    HypervisorError, HypervisorErrorKind, Lease, Live, XmlOf,
};
use gpuvm_core::cpuset::CpuSet;
use gpuvm_core::domain::disk_change::path_of;
use gpuvm_core::domain::live::GuestThread;
use gpuvm_core::domain::{DomainEdit, DomainXml};
use gpuvm_core::network::GuestAddress;
use gpuvm_core::versions::Versions;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

/// An action at a call, which gets the call's number.
pub type At = Box<dyn Fn(usize)>;

/// A hypervisor in memory: domains by name, each with its definition and whether it runs.
#[derive(Default)]
pub struct Fake {
    /// The domains.
    pub domains: RefCell<BTreeMap<String, (String, bool)>>,
    /// The live XML of domains, if it differs from their definition.
    pub live: RefCell<BTreeMap<String, String>>,
    /// Domains that have crashed and kept their process.
    pub crashed: RefCell<BTreeSet<String>>,
    /// Domains that run in a state of their own.
    pub states: RefCell<BTreeMap<String, DomainState>>,
    /// Domains that start with the host.
    pub autostarts: RefCell<BTreeSet<String>>,
    /// Domains that cannot be read, and why.
    pub unreadable: RefCell<BTreeMap<String, HypervisorErrorKind>>,
    /// Domains whose definition does not outlive them.
    pub transient: RefCell<BTreeSet<String>>,
    /// Whether several I/O threads can serve one disk.
    pub maps_queues: Cell<bool>,
    /// Whether its driver has no storage.
    pub has_no_storage: Cell<bool>,
    /// Its networks, by name.
    pub networks: RefCell<BTreeMap<String, NetworkState>>,
    /// The answers of agents, by command.
    pub agent: RefCell<BTreeMap<&'static str, &'static str>>,
    /// The addresses that its guests have once they run.
    pub addresses: RefCell<Vec<GuestAddress>>,
    /// Where packets to addresses arrive; `None` for the guest itself.
    pub reach: RefCell<Option<Reach>>,
    /// The guest behind every agent; `None` if they answer from [`Fake::agent`].
    pub guest: RefCell<Option<FakeAgent>>,
    /// The agent that runs programs of this machine; `None` if it is one of the others.
    pub local: RefCell<Option<LocalAgent>>,
    /// Versions of libvirt and QEMU.
    pub versions: Cell<Versions>,
    /// The number of commands to agents so far.
    pub asked: Cell<usize>,
    /// Whether the hypervisor no longer answers.
    pub gone: Cell<bool>,
    /// The directories of its pools, by name.
    pub pools: RefCell<BTreeMap<String, tempfile::TempDir>>,
    /// Whether guests keep the devices that they are to let go of.
    pub holds: Cell<bool>,
    /// Whether the next start is refused.
    pub refuses_start: Cell<bool>,
    /// The number of changing calls so far.
    pub calls: Cell<usize>,
    /// The call from which on it is unreachable.
    pub away_from: Cell<Option<usize>>,
    /// The action at each changing call.
    pub at: RefCell<Option<At>>,
}

impl Fake {
    /// Counts a call, and fails it if the hypervisor is unreachable.
    pub(super) fn call(&self, doing: &str) -> Result<(), HypervisorError> {
        let number = self.calls.replace(self.calls.get() + 1);
        if let Some(at) = &*self.at.borrow() {
            at(number);
        }
        if self.away_from.get().is_none_or(|from| number < from) {
            return Ok(());
        }
        Err(failed(doing, HypervisorErrorKind::NoConnection))
    }

    /// Fails if the hypervisor does not answer.
    pub(super) fn answers(&self, doing: &str) -> Result<(), HypervisorError> {
        if self.gone.get() { Err(failed(doing, HypervisorErrorKind::NoConnection)) } else { Ok(()) }
    }

    fn with(
        &self,
        name: &str,
        change: impl FnOnce(&mut (String, bool)),
    ) -> Result<(), HypervisorError> {
        match self.domains.borrow_mut().get_mut(name) {
            Some(domain) => {
                change(domain);
                Ok(())
            }
            None => Err(absent(name)),
        }
    }

    /// Whether a domain runs; `None` if it does not exist.
    pub fn runs(&self, name: &str) -> Option<bool> {
        self.domains.borrow().get(name).map(|(_, runs)| *runs)
    }

    /// Changes the running definition of a domain.
    fn change_live(&self, name: &str, change: impl FnOnce(String) -> String) {
        let live = self.xml(name, XmlOf::Live).unwrap();
        self.live.borrow_mut().insert(name.to_owned(), change(live));
    }

    /// The file of a domain's disk.
    fn disk_of(&self, name: &str, target: &str) -> Option<String> {
        let xml = DomainXml::parse(&self.xml(name, XmlOf::Live).ok()?).unwrap();
        path_of(xml.disk_named(target)?)
    }

    /// Adds a domain.
    pub fn put(&self, name: &str, uuid: &str, runs: bool) {
        self.domains.borrow_mut().insert(name.to_owned(), (xml(name, uuid), runs));
    }

    /// Adds a domain by its XML.
    pub fn put_xml(&self, xml: &str, runs: bool) {
        let name = DomainXml::parse(xml).unwrap().name();
        self.domains.borrow_mut().insert(name, (xml.to_owned(), runs));
    }

    /// The definition of a domain.
    pub fn definition(&self, name: &str) -> String {
        self.domains.borrow()[name].0.clone()
    }

    /// Adds a stopped domain with a file as its disk.
    pub fn put_with_disk(&self, name: &str, disk: &Path) {
        let disk = format!(
            "<devices><disk type='file'><driver name='qemu' type='raw'/><source file='{}'/>\
             <target dev='vda' bus='virtio'/></disk></devices></domain>",
            disk.display()
        );
        let uuid = "99999999-2222-4333-8444-555555555555";
        let xml = xml(name, uuid).replace("</domain>", &disk);
        self.domains.borrow_mut().insert(name.to_owned(), (xml, false));
    }
}

/// A definition.
pub fn xml(name: &str, uuid: &str) -> String {
    format!(
        "<domain type='test'><name>{name}</name><uuid>{uuid}</uuid><memory>1024</memory>\
         <vcpu>1</vcpu><os><type>hvm</type></os></domain>"
    )
}

/// The error that there is no such domain.
fn absent(name: &str) -> HypervisorError {
    HypervisorError::no_domain(name, [])
}

impl Hypervisor for Fake {
    fn uri(&self) -> &str {
        "test:///fake"
    }
    fn storage(&self) -> &dyn Storage {
        self
    }
    fn networks(&self) -> &dyn Networks {
        self
    }
    fn versions(&self) -> Versions {
        self.versions.get()
    }
}

impl Domains for Fake {
    fn domains(&self) -> Result<Vec<DomainSummary>, HypervisorError> {
        self.answers("list domains")?;
        let row = |(name, (xml, runs)): (&String, &(String, bool))| DomainSummary {
            name: name.clone(),
            uuid: DomainXml::parse(xml).unwrap().uuid().unwrap(),
            state: match runs {
                true if self.crashed.borrow().contains(name) => DomainState::Crashed,
                true => self.states.borrow().get(name).copied().unwrap_or(DomainState::Running),
                false => DomainState::ShutOff,
            },
            persistent: !self.transient.borrow().contains(name),
        };
        Ok(self.domains.borrow().iter().map(row).collect())
    }
    fn xml(&self, name: &str, which: XmlOf) -> Result<String, HypervisorError> {
        self.answers("read a domain")?;
        if let Some(kind) = self.unreadable.borrow().get(name) {
            return Err(failed(&format!("read domain `{name}`"), *kind));
        }
        let live = self.live.borrow().get(name).cloned().filter(|_| which == XmlOf::Live);
        if let Some(live) = live.filter(|_| self.runs(name) == Some(true)) {
            return Ok(live);
        }
        self.domains.borrow().get(name).map(|(xml, _)| xml.clone()).ok_or_else(|| absent(name))
    }
    fn define(&self, xml: &str) -> Result<(), HypervisorError> {
        self.call("define")?;
        let name = DomainXml::parse(xml).unwrap().name();
        let old = self.domains.borrow().get(&name).cloned();
        let runs = old.as_ref().is_some_and(|(_, runs)| *runs);
        if let Some((old, true)) = old {
            self.live.borrow_mut().entry(name.clone()).or_insert(old);
        }
        self.domains.borrow_mut().insert(name, (xml.to_owned(), runs));
        Ok(())
    }
    fn undefine(&self, name: &str) -> Result<(), HypervisorError> {
        self.call("undefine")?;
        self.domains.borrow_mut().remove(name).map(drop).ok_or_else(|| absent(name))
    }
    fn rename(&self, name: &str, to: &str) -> Result<(), HypervisorError> {
        self.call("rename")?;
        let (xml, runs) = self.domains.borrow_mut().remove(name).ok_or_else(|| absent(name))?;
        let old = format!("<name>{name}</name>");
        let xml = xml.replace(&old, &format!("<name>{to}</name>"));
        self.domains.borrow_mut().insert(to.to_owned(), (xml, runs));
        Ok(())
    }
    fn autostart(&self, name: &str) -> Result<bool, HypervisorError> {
        Ok(self.autostarts.borrow().contains(name))
    }
    fn set_autostart(&self, name: &str, on: bool) -> Result<(), HypervisorError> {
        self.call("set autostart")?;
        let mut all = self.autostarts.borrow_mut();
        if on {
            all.insert(name.to_owned());
        } else {
            all.remove(name);
        }
        Ok(())
    }
}

impl Snapshots for Fake {}

impl Live for Fake {
    fn start(&self, name: &str) -> Result<(), HypervisorError> {
        self.call("start")?;
        if self.refuses_start.replace(false) {
            return Err(failed("start", HypervisorErrorKind::Other));
        }
        self.live.borrow_mut().remove(name);
        self.with(name, |domain| domain.1 = true)
    }
    fn shutdown(&self, name: &str, _: AskedBy) -> Result<(), HypervisorError> {
        self.call("shutdown")?;
        let keeps = name == "stubborn" || self.crashed.borrow().contains(name);
        self.with(name, |domain| domain.1 = keeps)
    }
    fn pause(&self, name: &str, paused: bool) -> Result<(), HypervisorError> {
        self.call("pause")?;
        let state = if paused { DomainState::Paused } else { DomainState::Running };
        self.states.borrow_mut().insert(name.to_owned(), state);
        Ok(())
    }
    fn destroy(&self, name: &str) -> Result<(), HypervisorError> {
        self.call("destroy")?;
        self.crashed.borrow_mut().remove(name);
        self.with(name, |domain| domain.1 = false)
    }
    fn detach(&self, name: &str, device: &str) -> Result<(), HypervisorError> {
        self.call("detach")?;
        if self.holds.get() {
            return Ok(());
        }
        self.change_live(name, |live| live.replace(device, ""));
        Ok(())
    }
    fn attach(&self, name: &str, device: &str) -> Result<(), HypervisorError> {
        self.call("attach")?;
        let end = format!("{device}</devices>");
        self.change_live(name, |live| live.replacen("</devices>", &end, 1));
        Ok(())
    }
    fn disk_size(&self, name: &str, target: &str) -> Result<Option<DiskSize>, HypervisorError> {
        let path = self.disk_of(name, target);
        let meta = path.and_then(|path| std::fs::metadata(path).ok());
        Ok(meta.map(|meta| DiskSize {
            capacity_bytes: meta.len(),
            allocation_bytes: meta.blocks() * 512,
        }))
    }
    fn grow_disk(&self, name: &str, target: &str, bytes: u64) -> Result<(), HypervisorError> {
        self.call("grow a disk")?;
        let path = self.disk_of(name, target).unwrap();
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
        Ok(())
    }
    fn plug_vcpus(&self, name: &str, vcpus: u32) -> Result<(), HypervisorError> {
        self.call("plug vcpus")?;
        self.change_live(name, |live| {
            let mut xml = DomainXml::parse(&live).unwrap();
            xml.apply(&DomainEdit::SetPlugged { vcpus: Some(vcpus) }).unwrap();
            xml.text().to_owned()
        });
        Ok(())
    }
    fn pin(&self, name: &str, thread: GuestThread, to: &CpuSet) -> Result<(), HypervisorError> {
        self.call("pin")?;
        let start = match thread {
            GuestThread::Vcpu(number) => format!("<vcpupin vcpu='{number}' cpuset='"),
            GuestThread::Emulator => "<emulatorpin cpuset='".to_owned(),
            GuestThread::Iothread(number) => format!("<iothreadpin iothread='{number}' cpuset='"),
        };
        self.change_live(name, |live| {
            let Some((before, rest)) = live.split_once(&start) else { return live };
            let (_, after) = rest.split_once('\'').unwrap();
            format!("{before}{start}{to}'{after}")
        });
        Ok(())
    }
    fn update(&self, _: &str, _: &str) -> Result<(), HypervisorError> {
        self.call("update")
    }
    fn ask_agent(&self, _: &str, what: &str, _: Duration) -> Result<String, HypervisorError> {
        self.asked.set(self.asked.get() + 1);
        if let Some(guest) = &*self.guest.borrow() {
            return guest.answer(what);
        }
        if let Some(local) = &*self.local.borrow() {
            return local.answer(what);
        }
        let agent = self.agent.borrow();
        let answer = agent.iter().find(|(command, _)| what.contains(*command));
        let answer = answer.map(|(_, answer)| format!("{{\"return\":{answer}}}"));
        answer.ok_or_else(|| absent("agent"))
    }
    fn console(&self, _: &str, _: bool) -> Result<Box<dyn Console>, HypervisorError> {
        Err(absent("console"))
    }
}

impl Addresses for Fake {
    fn leases(&self, _: &str, _: &str) -> Result<Vec<Lease>, HypervisorError> {
        Ok(Vec::new())
    }
    fn addresses(&self, _: &str, _: &[String]) -> Result<Vec<GuestAddress>, HypervisorError> {
        Ok(self.addresses.borrow().clone())
    }
    fn reach(&self, _: &str, _: &GuestAddress) -> Result<Reach, HypervisorError> {
        Ok(self.reach.borrow().clone().unwrap_or(Reach::Guest))
    }
}
