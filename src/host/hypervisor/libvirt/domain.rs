//! Domains through libvirt.

use super::super::kvm::{Node, closed};
use super::super::lazy;
use super::super::machine::{Identity, Machine, SYSTEM_LOGS, Told};
use super::super::snapshot::Snapshot;
use super::super::{
    AskedBy, Console, DiskSize, DomainState, DomainSummary, GuestAddress, Hypervisor,
    HypervisorError, HypervisorErrorKind, Keep, Kept, Lease, Used, VfPool, XmlOf, network, storage,
};
use super::support::Supported;
use super::{Libvirt, address, console, error, is_unsupported, leases, pin, pools, support};
use crate::discover::reach::Reach;
use gpuvm_core::cpuset::CpuSet;
use gpuvm_core::domain::guest::VirtType;
use gpuvm_core::domain::live::GuestThread;
use gpuvm_core::load::ByteCounts;
use gpuvm_core::shell::{self, word};
use gpuvm_core::topology::software::{GuestSupport, UnusableKvm};
use gpuvm_core::versions::{Version, Versions};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use virt::domain::{Domain, DomainState as State};
use virt::error::{Error, ErrorNumber};
use virt::sys;

/// How long a domain being ended may take to disappear. With the embedded driver of a second
/// process this is seen a moment after libvirt reported that the domain does not run.
const END_WAIT: Duration = Duration::from_secs(10);

/// Definitions that are asked for at a time: one less than the questions of one client at which a
/// daemon writes a warning to its log (`max_client_requests`).
const AT_ONCE: usize = 4;

impl Libvirt {
    /// Asks which guests it can run, unless that has begun.
    fn ask_support(&self) -> Option<GuestSupport> {
        if !self.uri.starts_with("qemu") {
            return None;
        }
        let asked = self.supported.take().and_then(|asked| asked.join().ok());
        let Supported { support, no_kvm } =
            asked.unwrap_or_else(|| support::supported(&self.connection()))?;
        let is_here = self.its_machine().is_here();
        let no_kvm = no_kvm.map(|why| match closed(&Node::of_this_machine()) {
            Some((why, command)) if is_here => UnusableKvm { why, command: Some(command) },
            _ => UnusableKvm { why, command: None },
        });
        Some(GuestSupport { no_kvm, ..support })
    }
}

impl Hypervisor for Libvirt {
    fn uri(&self) -> &str {
        &self.uri
    }

    fn opened_uri(&self) -> String {
        Told::uri(self)
    }

    fn machine(&self) -> Machine {
        self.its_machine().clone()
    }

    fn identity(&self) -> Identity {
        self.its_identity()
    }

    fn versions(&self) -> Versions {
        // libvirt's test driver returns its own version as QEMU's.
        let is_qemu = self.uri.starts_with("qemu");
        let qemu = self.connection().hyp_version().ok().filter(|_| is_qemu);
        let libvirt = self.connection().lib_version().ok();
        Versions { libvirt: libvirt.map(Version::of_libvirt), qemu: qemu.map(Version::of_libvirt) }
    }

    fn emulator(&self) -> Option<PathBuf> {
        if !self.its_machine().is_here() {
            return None;
        }
        support::emulator(&self.connection())
    }

    fn guest_support(&self) -> Option<GuestSupport> {
        self.support.get_or_init(|| self.ask_support()).clone()
    }

    fn refuses_machine(&self, machine: &str, virt: VirtType) -> Option<String> {
        support::refuses_machine(&self.connection(), machine, virt.as_str())
    }

    fn reconnect(&self) -> Result<(), HypervisorError> {
        self.connect_again()
    }

    fn run_id(&self, name: &str) -> Result<Option<u32>, HypervisorError> {
        Ok(self.find(&format!("look for domain `{name}`"), name)?.id())
    }

    fn storage(&self) -> &dyn storage::Storage {
        self
    }

    fn networks(&self) -> &dyn network::Networks {
        self
    }

    fn domains(&self) -> Result<Vec<DomainSummary>, HypervisorError> {
        let doing = format!("list the domains of {}", self.uri);
        let list = |flags| self.connection().list_all_domains(flags).map_err(|e| error(&doing, &e));
        let all = list(0)?;
        // Whether a domain is active comes with the list. What more is to be told of active ones is
        // asked of all at once, and only those that neither run nor are off are asked one by one.
        let named = |flags| -> Result<BTreeSet<String>, HypervisorError> {
            Ok(list(flags)?.iter().filter_map(|domain| domain.uuid_string().ok()).collect())
        };
        let known = if all.iter().any(|domain| domain.id().is_some()) {
            Known {
                running: named(sys::VIR_CONNECT_LIST_DOMAINS_RUNNING)?,
                persistent: named(sys::VIR_CONNECT_LIST_DOMAINS_PERSISTENT)?,
            }
        } else {
            Known::default()
        };
        let mut rows = Vec::with_capacity(all.len());
        for domain in &all {
            match known.summary(domain) {
                Ok(row) => rows.push(row),
                // Deleted since it was listed.
                Err(e) if e.code().is(ErrorNumber::NoDomain) => {}
                Err(e) => return Err(error(&doing, &e)),
            }
        }
        self.seen.replace(all.into_iter().filter_map(|d| Some((d.name().ok()?, d))).collect());
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(rows)
    }

    fn domain(&self, name: &str) -> Result<Option<DomainSummary>, HypervisorError> {
        let doing = format!("look for domain `{name}`");
        let found = self.connection().lookup_domain_by_name(name);
        match found.and_then(|domain| summary(&domain)) {
            Ok(row) => Ok(Some(row)),
            Err(e) if e.code().is(ErrorNumber::NoDomain) => Ok(None),
            Err(e) => Err(error(&doing, &e)),
        }
    }

    fn xml(&self, name: &str, which: XmlOf) -> Result<String, HypervisorError> {
        let doing = format!("read the definition of domain `{name}`");
        let flags = self.flags_of(which);
        // A listed domain need not be looked up, unless it was recreated since.
        if let Some(Ok(xml)) = self.seen.borrow().get(name).map(|d| d.xml_desc(flags)) {
            return Ok(xml);
        }
        self.find(&doing, name)?.xml_desc(flags).map_err(|e| error(&doing, &e))
    }

    fn saved(&self) -> Result<Vec<(String, String)>, HypervisorError> {
        let doing = format!("list the saved states of {}", self.uri);
        let saved = sys::VIR_CONNECT_LIST_DOMAINS_MANAGEDSAVE;
        let domains = match self.connection().list_all_domains(saved) {
            Err(e) if is_unsupported(&e) => return Ok(Vec::new()),
            domains => domains.map_err(|e| error(&doing, &e))?,
        };
        let mut found = Vec::new();
        for domain in domains {
            let name = domain.name().map_err(|e| error(&doing, &e))?;
            match lazy::saved_definition(&domain) {
                Ok(xml) => found.push((name, xml)),
                // It was resumed, or removed, meanwhile.
                Err(_) if !domain.has_managed_save(0).unwrap_or(false) => {}
                Err(e) => return Err(error(&format!("read the saved state of `{name}`"), &e)),
            }
        }
        Ok(found)
    }

    fn xmls(
        &self,
        wanted: &[(&str, XmlOf)],
        take: &mut dyn FnMut(usize, Result<String, HypervisorError>),
    ) {
        let listed = |(name, which): &(&str, XmlOf)| {
            self.seen.borrow().get(*name).map(|domain| (domain.clone(), self.flags_of(*which)))
        };
        let asked: Vec<Option<(Domain, u32)>> = wanted.iter().map(listed).collect();
        let next = AtomicUsize::new(0);
        // The calling thread takes what these read.
        let read = |tell: mpsc::Sender<(usize, Option<String>)>| {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(one) = asked.get(at) else { return };
                let text = one.as_ref().and_then(|(domain, flags)| domain.xml_desc(*flags).ok());
                if tell.send((at, text)).is_err() {
                    return;
                }
            }
        };
        std::thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            for _ in 0..AT_ONCE.min(asked.len()) {
                let tell = tell.clone();
                scope.spawn(|| read(tell));
            }
            drop(tell);
            for (at, text) in told {
                // One that cannot be read by its row is looked up by its name.
                let (name, which) = wanted[at];
                take(at, text.map_or_else(|| self.xml(name, which), Ok));
            }
        });
    }

    fn define(&self, xml: &str) -> Result<(), HypervisorError> {
        self.may_change()?;
        let defined =
            self.connection().define_domain_xml_flags(xml, sys::VIR_DOMAIN_DEFINE_VALIDATE);
        defined.map(|_| ()).map_err(|e| error("define the domain", &e))
    }

    fn undefine(&self, name: &str) -> Result<(), HypervisorError> {
        self.undefine_but(name, Keep::default())
    }

    fn undefine_but(&self, name: &str, keep: Keep) -> Result<(), HypervisorError> {
        self.undefine_with(name, keep)
    }

    fn rename(&self, name: &str, to: &str) -> Result<(), HypervisorError> {
        let doing = format!("rename domain `{name}` to `{to}`");
        let domain = self.find_to_change(&doing, name)?;
        let renamed = domain.rename(to, 0).map(drop).map_err(|e| error(&doing, &e));
        // What was listed is found by its name.
        self.seen.borrow_mut().clear();
        renamed
    }

    fn keeps(&self, name: &str) -> Result<Vec<Kept>, HypervisorError> {
        let doing = format!("look for snapshots of domain `{name}`");
        let domain = self.find(&doing, name)?;
        // Not every driver supports them.
        let number = |of: Result<u32, Error>| match of {
            Err(e) if is_unsupported(&e) => Ok(0),
            number => number.map_err(|e| error(&doing, &e)),
        };
        let mut kept = Vec::new();
        if number(domain.has_managed_save(0).map(u32::from))? > 0 {
            let hint = format!(
                "`gpuvm start {name}` lets it go on from there, then `gpuvm stop {name}` ends it; \
                     `virsh managedsave-remove {virsh}` throws it away",
                name = word(name),
                virsh = shell::domain(name)
            );
            kept.push(Kept { what: "a saved state".into(), hint, starts: true });
        }
        match number(domain.num_snapshots(0))? {
            0 => {}
            number => {
                let what = gpuvm_core::words::count(number, "snapshot");
                let hint = format!("`gpuvm snapshot list {name}` shows them", name = word(name));
                kept.push(Kept { what, hint, starts: false });
            }
        }
        Ok(kept)
    }

    fn snapshots(&self, name: &str) -> Result<Vec<Snapshot>, HypervisorError> {
        let doing = format!("read the snapshots of domain `{name}`");
        let all = match self.find(&doing, name)?.list_all_snapshots(0) {
            // Not every driver has them.
            Err(e) if is_unsupported(&e) => return Ok(Vec::new()),
            all => all.map_err(|e| error(&doing, &e))?,
        };
        let mut read = Vec::with_capacity(all.len());
        for one in &all {
            match one.xml_desc(0) {
                Ok(text) => {
                    read.push(Snapshot::read(&text).map_err(|message| HypervisorError {
                        kind: HypervisorErrorKind::Other,
                        doing: doing.clone(),
                        message,
                    })?)
                }
                // Deleted since it was listed.
                Err(e) if e.code().is(ErrorNumber::NoDomainSnapshot) => {}
                Err(e) => return Err(error(&doing, &e)),
            }
        }
        Ok(read)
    }

    fn make_snapshot(&self, name: &str, snapshot: &str, of: &str) -> Result<(), HypervisorError> {
        let doing = format!("make snapshot `{snapshot}` of domain `{name}`");
        let domain = self.find_to_change(&doing, name)?;
        let made = domain.create_snapshot_xml(&Snapshot::document(snapshot, of), 0);
        made.map(drop).map_err(|e| error(&doing, &e))
    }

    fn revert_snapshot(&self, name: &str, snapshot: &str) -> Result<(), HypervisorError> {
        let doing = format!("revert domain `{name}` to snapshot `{snapshot}`");
        let domain = self.find_to_change(&doing, name)?;
        let found = Domain::lookup_snapshot_by_name(&domain, snapshot, 0);
        found.and_then(|found| found.revert(0)).map_err(|e| error(&doing, &e))
    }

    fn delete_snapshot(&self, name: &str, snapshot: &str) -> Result<(), HypervisorError> {
        let doing = format!("delete snapshot `{snapshot}` of domain `{name}`");
        let domain = self.find_to_change(&doing, name)?;
        let found = Domain::lookup_snapshot_by_name(&domain, snapshot, 0);
        found.and_then(|found| found.delete(0)).map_err(|e| error(&doing, &e))
    }

    fn start(&self, name: &str) -> Result<(), HypervisorError> {
        let doing = format!("start domain `{name}`");
        let domain = self.find_to_change(&doing, name)?;
        domain.create().map_err(|e| error(&doing, &e))
    }

    fn shutdown(&self, name: &str, by: AskedBy) -> Result<(), HypervisorError> {
        let doing = format!("shut down domain `{name}`");
        let domain = self.find_to_change(&doing, name)?;
        let asked = match by {
            AskedBy::Agent => domain.shutdown_flags(sys::VIR_DOMAIN_SHUTDOWN_GUEST_AGENT),
            // Not every driver accepts the flag for ACPI; without it libvirt may ask the agent
            // first.
            AskedBy::PowerButton => {
                match domain.shutdown_flags(sys::VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN) {
                    Err(e) if is_unsupported(&e) => domain.shutdown(),
                    asked => asked,
                }
            }
        };
        asked.map_err(|e| error(&doing, &e))
    }

    fn pause(&self, name: &str, paused: bool) -> Result<(), HypervisorError> {
        let doing = format!("{} domain `{name}`", if paused { "pause" } else { "resume" });
        let domain = self.find_to_change(&doing, name)?;
        let done = if paused { domain.suspend() } else { domain.resume() };
        done.map(drop).map_err(|e| error(&doing, &e))
    }

    fn destroy(&self, name: &str) -> Result<(), HypervisorError> {
        let doing = format!("end domain `{name}`");
        let domain = self.find_to_change(&doing, name)?;
        match domain.destroy() {
            Err(e) if e.code().is(ErrorNumber::OperationInvalid) && ends(&domain) => Ok(()),
            other => other.map_err(|e| error(&doing, &e)),
        }
    }

    fn detach(&self, name: &str, device: &str) -> Result<(), HypervisorError> {
        let doing = format!("remove a device from domain `{name}`");
        let domain = self.find_to_change(&doing, name)?;
        let live = sys::VIR_DOMAIN_AFFECT_LIVE;
        domain.detach_device_flags(device, live).map_err(|e| error(&doing, &e))
    }

    fn attach(&self, name: &str, device: &str) -> Result<(), HypervisorError> {
        let doing = format!("attach a device to domain `{name}`");
        let domain = self.find_to_change(&doing, name)?;
        let live = sys::VIR_DOMAIN_AFFECT_LIVE;
        domain.attach_device_flags(device, live).map_err(|e| error(&doing, &e))
    }

    fn used(&self, name: &str) -> Result<Used, HypervisorError> {
        let domain = self.find(&format!("read the use of domain `{name}`"), name)?;
        // A driver that does not know one of them may know the other.
        let cpu_ns = domain.info().ok().map(|info| info.cpu_time);
        let stats = domain.memory_stats(0).unwrap_or_default();
        let rss = stats.iter().find(|stat| stat.tag == sys::VIR_DOMAIN_MEMORY_STAT_RSS);
        Ok(Used { cpu_ns, memory_kib: rss.map(|stat| stat.val) })
    }

    fn disk_size(&self, name: &str, target: &str) -> Result<Option<DiskSize>, HypervisorError> {
        let domain = self.find(&format!("read the disks of domain `{name}`"), name)?;
        // A drive without medium, a file that is gone and a driver without disks are no errors:
        // nothing is known of them.
        let Ok(info) = domain.block_info(target, 0) else { return Ok(None) };
        let (capacity_bytes, allocation_bytes) = (info.capacity, info.allocation);
        Ok((capacity_bytes > 0).then_some(DiskSize { capacity_bytes, allocation_bytes }))
    }

    fn disk_bytes(&self, name: &str, target: &str) -> Result<Option<ByteCounts>, HypervisorError> {
        let domain = self.find(&format!("read the disks of domain `{name}`"), name)?;
        // A drive without medium and a driver without statistics are no errors.
        let Ok(stats) = domain.block_stats(target) else { return Ok(None) };
        let counts = u64::try_from(stats.rd_bytes).ok().zip(u64::try_from(stats.wr_bytes).ok());
        Ok(counts.map(|(read, written)| ByteCounts { read, written }))
    }

    fn grow_disk(&self, name: &str, target: &str, bytes: u64) -> Result<(), HypervisorError> {
        let doing = format!("grow disk `{target}` of domain `{name}`");
        let domain = self.find_to_change(&doing, name)?;
        let in_bytes = sys::VIR_DOMAIN_BLOCK_RESIZE_BYTES;
        domain.block_resize(target, bytes, in_bytes).map_err(|e| error(&doing, &e))
    }

    fn pin(&self, name: &str, thread: GuestThread, pcpus: &CpuSet) -> Result<(), HypervisorError> {
        let doing = format!("pin {thread} of domain `{name}` to pcpus {pcpus}");
        let domain = self.find_to_change(&doing, name)?;
        pin::pin(&domain, thread, pcpus).map_err(|e| error(&doing, &e))
    }

    fn plug_vcpus(&self, name: &str, vcpus: u32) -> Result<(), HypervisorError> {
        let doing = format!("change the vCPUs of running domain `{name}` to {vcpus}");
        let domain = self.find_to_change(&doing, name)?;
        let live = sys::VIR_DOMAIN_VCPU_LIVE;
        domain.set_vcpus_flags(vcpus, live).map(drop).map_err(|e| error(&doing, &e))
    }

    fn update(&self, name: &str, device: &str) -> Result<(), HypervisorError> {
        let doing = format!("change a device of domain `{name}`");
        let domain = self.find_to_change(&doing, name)?;
        let live = sys::VIR_DOMAIN_AFFECT_LIVE;
        domain.update_device_flags(device, live).map_err(|e| error(&doing, &e))
    }

    fn ask_agent(
        &self,
        name: &str,
        command: &str,
        wait: Duration,
    ) -> Result<String, HypervisorError> {
        Libvirt::ask_agent(self, name, command, wait)
    }

    fn autostart(&self, name: &str) -> Result<bool, HypervisorError> {
        let doing = format!("read whether domain `{name}` starts with the host");
        self.find(&doing, name)?.autostart().map_err(|e| error(&doing, &e))
    }

    fn set_autostart(&self, name: &str, on: bool) -> Result<(), HypervisorError> {
        let doing = format!("set whether domain `{name}` starts with the host");
        let set = self.find_to_change(&doing, name)?.set_autostart(on);
        set.map_err(|e| error(&doing, &e))
    }

    fn log_dir(&self) -> Option<PathBuf> {
        self.logs_to().filter(|dir| dir.is_dir())
    }

    fn missing_log_dir(&self) -> Option<PathBuf> {
        self.logs_to().filter(|dir| !dir.is_dir())
    }

    fn autostarted(&self) -> Result<BTreeSet<String>, HypervisorError> {
        let doing = format!("list the domains of {} that start with the host", self.uri);
        let flags = sys::VIR_CONNECT_LIST_DOMAINS_AUTOSTART;
        let listed = self.connection().list_all_domains(flags).map_err(|e| error(&doing, &e))?;
        Ok(listed.iter().filter_map(|domain| domain.name().ok()).collect())
    }

    fn console(&self, name: &str, force: bool) -> Result<Box<dyn Console>, HypervisorError> {
        console::attach(self, name, force)
    }

    fn addresses(&self, name: &str, macs: &[String]) -> Result<Vec<GuestAddress>, HypervisorError> {
        let domain = self.find(&format!("read the addresses of domain `{name}`"), name)?;
        Ok(address::addresses(self, &domain, macs))
    }

    fn reach(&self, name: &str, address: &GuestAddress) -> Result<Reach, HypervisorError> {
        let domain = self.find(&format!("read the addresses of domain `{name}`"), name)?;
        address::reach_of(self, &domain, address)
    }

    fn vf_pools(&self) -> Result<Vec<VfPool>, HypervisorError> {
        pools::vf_pools(self)
    }

    fn leases(&self, network: &str, mac: &str) -> Result<Vec<Lease>, HypervisorError> {
        leases::leases(self, network, mac)
    }
}

impl Libvirt {
    /// The flags of a question for a definition.
    fn flags_of(&self, which: XmlOf) -> u32 {
        let flags = match which {
            XmlOf::Inactive | XmlOf::Public => sys::VIR_DOMAIN_XML_INACTIVE,
            XmlOf::Live => 0,
        };
        // A read-only connection may not request secrets.
        let secret = which != XmlOf::Public && self.read_only.is_none();
        flags | if secret { sys::VIR_DOMAIN_XML_SECURE } else { 0 }
    }

    /// Where it keeps the logs of guests; none: another machine, or not the system's libvirt.
    fn logs_to(&self) -> Option<PathBuf> {
        let is_system = self.uri.split('?').next().is_some_and(|uri| uri.ends_with(":///system"));
        (is_system && self.has_guests_here()).then(|| PathBuf::from(SYSTEM_LOGS))
    }

    fn undefine_with(&self, name: &str, keep: Keep) -> Result<(), HypervisorError> {
        let doing = format!("undefine domain `{name}`");
        let domain = self.find_to_change(&doing, name)?;
        let saved =
            sys::VIR_DOMAIN_UNDEFINE_MANAGED_SAVE | sys::VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA;
        let nvram = if keep.nvram {
            sys::VIR_DOMAIN_UNDEFINE_KEEP_NVRAM
        } else {
            sys::VIR_DOMAIN_UNDEFINE_NVRAM
        };
        let tpm = match keep {
            Keep { tpm: true, .. } => sys::VIR_DOMAIN_UNDEFINE_KEEP_TPM,
            Keep { no_tpm: true, .. } => sys::VIR_DOMAIN_UNDEFINE_TPM,
            _ => 0,
        };
        // libvirt before 8.9 refuses the flag for a TPM; drivers without firmware, such as the test
        // driver, that for NVRAM, and some refuse every flag.
        for flags in [saved | nvram | tpm, saved | nvram, saved] {
            match domain.undefine_flags(flags) {
                Err(e) if is_unsupported(&e) => {}
                other => return other.map_err(|e| error(&doing, &e)),
            }
        }
        domain.undefine().map_err(|e| error(&doing, &e))
    }
}

/// What is read of all active domains at once, by UUID.
#[derive(Default)]
struct Known {
    running: BTreeSet<String>,
    persistent: BTreeSet<String>,
}

impl Known {
    fn summary(&self, domain: &Domain) -> Result<DomainSummary, Error> {
        let (name, uuid) = (domain.name()?, domain.uuid_string()?);
        let state = match (domain.id().is_some(), self.running.contains(&uuid)) {
            // One that is not persistent is gone when it is off.
            (false, false) => {
                let state = DomainState::ShutOff;
                return Ok(DomainSummary { name, uuid, state, persistent: true });
            }
            (true, true) => DomainState::Running,
            // Paused or crashed, or on its way from one to the other.
            _ => state(domain)?,
        };
        let persistent = self.persistent.contains(&uuid);
        Ok(DomainSummary { name, uuid, state, persistent })
    }
}

fn summary(domain: &Domain) -> Result<DomainSummary, Error> {
    let (name, uuid) = (domain.name()?, domain.uuid_string()?);
    let (state, persistent) = (state(domain)?, domain.is_persistent()?);
    Ok(DomainSummary { name, uuid, state, persistent })
}

/// The state of a domain. Only libvirt's own flag tells whether it is active and holds its devices.
fn state(domain: &Domain) -> Result<DomainState, Error> {
    if !domain.is_active()? {
        return Ok(DomainState::ShutOff);
    }
    Ok(active(domain.state()?.0.known()))
}

/// The state of a domain that is active. An active one reported as off is starting: libvirt assigns
/// its id first, starts QEMU with its vCPUs paused, and sets its state last (`qemuProcessInit`).
fn active(state: Option<State>) -> DomainState {
    match state {
        Some(State::Running | State::Blocked | State::NoState) | None => DomainState::Running,
        Some(State::Paused | State::Shutoff) => DomainState::Paused,
        Some(State::PMSuspended) => DomainState::Suspended,
        Some(State::Shutdown) => DomainState::ShuttingDown,
        Some(State::Crashed) => DomainState::Crashed,
    }
}

/// Whether a domain stops within [`END_WAIT`], or already has.
fn ends(domain: &Domain) -> bool {
    let until = Instant::now() + END_WAIT;
    loop {
        match domain.is_active() {
            Ok(false) => return true,
            // A transient domain disappears when it stops.
            Err(e) if e.code().is(ErrorNumber::NoDomain) => return true,
            Ok(true) | Err(_) if Instant::now() > until => return false,
            Ok(true) | Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::skip;

    #[test]
    fn what_is_active_is_never_off() {
        let states = [State::Paused, State::Shutdown, State::Shutoff, State::Crashed];
        for state in states.map(Some).into_iter().chain([None]) {
            assert!(active(state).is_active(), "{state:?}");
        }
        assert_eq!(active(Some(State::Crashed)), DomainState::Crashed);
        assert!(!DomainState::Crashed.has_guest());
    }

    /// A connection to libvirt's test driver; none, with the reason reported, without libvirt.
    fn test_driver(of: &str) -> Option<Libvirt> {
        match Libvirt::open(&format!("test://{of}")) {
            Err(error) if error.message.contains("cannot open shared object") => {
                skip(error.to_string())
            }
            libvirt => Some(libvirt.unwrap()),
        }
    }

    #[test]
    fn a_list_knows_what_runs_and_what_is_off() {
        // All connections to its default host see the same domains.
        let host = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(host.path(), "<node/>").unwrap();
        let Some(libvirt) = test_driver(host.path().to_str().unwrap()) else { return };
        for name in ["off", "runs"] {
            let xml = "<domain type='test'><name>N</name><memory>4096</memory><os><type>hvm</type></os></domain>";
            libvirt.define(&xml.replace('N', name)).unwrap();
        }
        let listed = || -> Vec<(String, DomainState, bool)> {
            let rows = libvirt.domains().unwrap().into_iter();
            rows.map(|row| (row.name, row.state, row.persistent)).collect()
        };
        let row = |name: &str, state| (name.to_owned(), state, true);
        let off = row("off", DomainState::ShutOff);
        assert_eq!(listed(), [off.clone(), row("runs", DomainState::ShutOff)]);
        libvirt.start("runs").unwrap();
        assert_eq!(listed(), [off.clone(), row("runs", DomainState::Running)]);
        libvirt.find("", "runs").unwrap().suspend().unwrap();
        assert_eq!(listed(), [off, row("runs", DomainState::Paused)]);
    }

    #[test]
    fn the_test_driver_goes_through_a_life() {
        let Some(libvirt) = test_driver("/default") else { return };
        let xml = "<domain type='test'><name>a</name><memory>4096</memory><os><type>hvm</type>\
                   </os></domain>";
        libvirt.define(xml).unwrap();
        assert_eq!(libvirt.define(xml).unwrap_err().kind, HypervisorErrorKind::Exists);
        assert_eq!(libvirt.define("<domain").unwrap_err().kind, HypervisorErrorKind::BadXml);
        let bogus = xml.replace("<memory>", "<memory bogus='1'>").replace(">a<", ">b<");
        assert_eq!(libvirt.define(&bogus).unwrap_err().kind, HypervisorErrorKind::BadXml);
        assert!(libvirt.xml("a", XmlOf::Inactive).unwrap().contains("<name>a</name>"));
        libvirt.start("a").unwrap();
        assert!(libvirt.start("a").is_err(), "started twice");
        let rows = libvirt.domains().unwrap();
        let row = rows.iter().find(|row| row.name == "a").unwrap();
        assert_eq!((row.state, row.persistent), (DomainState::Running, true));
        assert_eq!(libvirt.addresses("a", &[]).unwrap(), []);
        libvirt.destroy("a").unwrap();
        libvirt.destroy("a").unwrap();
        libvirt.undefine("a").unwrap();
        assert_eq!(libvirt.undefine("a").unwrap_err().kind, HypervisorErrorKind::NoDomain);
    }
}
