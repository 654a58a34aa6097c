//! Domains as they are defined, through libvirt.

use super::super::kvm::{Node, why_slow};
use super::super::lazy;
use super::super::{
    DomainState, DomainSummary, Domains, Hypervisor as _, HypervisorError, Keep, Kept, XmlOf,
};
use super::Libvirt;
use super::call::Call::{Changes, Reads};
use super::call::{Failed, ask, call, call_as, error, is_unsupported};
use gpuvm_core::shell::{self, word};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tracing::{Level, enabled, info};
use virt::domain::{Domain, DomainState as State};
use virt::error::{Error, ErrorNumber};
use virt::sys;

/// Definitions that are requested at a time: one less than the number of requests of one client at
/// which a daemon writes a warning to its log (`max_client_requests`).
const AT_ONCE: usize = 4;
/// The duration from which a define took longer than libvirt alone needs.
const LONG_DEFINE: Duration = Duration::from_secs(2);

impl Domains for Libvirt {
    fn domains(&self) -> Result<Vec<DomainSummary>, HypervisorError> {
        call(Reads, format_args!("list the domains of {}", self.uri), || self.list())
    }

    fn domain(&self, name: &str) -> Result<Option<DomainSummary>, HypervisorError> {
        call(Reads, format_args!("look for domain `{name}`"), || {
            let found = self.connection().lookup_domain_by_name(name);
            match found.and_then(|domain| summary(&domain)) {
                Err(e) if e.code().is(ErrorNumber::NoDomain) => Ok(None),
                row => Ok(Some(row?)),
            }
        })
    }

    fn xml(&self, name: &str, which: XmlOf) -> Result<String, HypervisorError> {
        let what = format_args!("XML of domain `{name}` ({which:?})");
        call(Reads, what, || Ok(self.read_xml(name, which)?))
    }

    fn xmls(
        &self,
        wanted: &[(&str, XmlOf)],
        take: &mut dyn FnMut(usize, Result<String, HypervisorError>),
    ) {
        ask(format_args!("XML of {} domains", wanted.len()), || self.read_xmls(wanted, take));
    }

    fn saved(&self) -> Result<Vec<(String, String)>, HypervisorError> {
        call(Reads, format_args!("list the saved states of {}", self.uri), || {
            let saved = sys::VIR_CONNECT_LIST_DOMAINS_MANAGEDSAVE;
            let domains = match self.connection().list_all_domains(saved) {
                Err(e) if is_unsupported(&e) => return Ok(Vec::new()),
                domains => domains?,
            };
            let mut found = Vec::new();
            for domain in domains {
                let name = domain.name()?;
                match lazy::saved_definition(&domain) {
                    Ok(xml) => found.push((name, xml)),
                    // It was resumed, or removed, meanwhile.
                    Err(_) if !domain.has_managed_save(0).unwrap_or(false) => {}
                    Err(e) => {
                        let doing = format_args!("read the saved state of `{name}`");
                        return Err(error(doing, &e).into());
                    }
                }
            }
            Ok(found)
        })
    }

    fn define(&self, xml: &str) -> Result<(), HypervisorError> {
        let since = Instant::now();
        let (what, doing) = (format_args!("define a domain"), format_args!("define the domain"));
        let defined = call_as(Changes, what, doing, || {
            self.may_change()?;
            self.connection().define_domain_xml_flags(xml, sys::VIR_DOMAIN_DEFINE_VALIDATE)?;
            Ok(())
        });
        let is_slow = since.elapsed() >= LONG_DEFINE;
        if is_slow && enabled!(Level::INFO) && self.has_guests_here() {
            info!("{}", why_slow(&Node::of_this_machine()));
        }
        defined
    }

    fn undefine(&self, name: &str) -> Result<(), HypervisorError> {
        self.undefine_but(name, Keep::default())
    }

    fn undefine_but(&self, name: &str, keep: Keep) -> Result<(), HypervisorError> {
        let but = match (keep.nvram, keep.tpm) {
            (true, true) => ", but keep its NVRAM and TPM state",
            (true, false) => ", but keep its NVRAM",
            (false, true) => ", but keep its TPM state",
            (false, false) => "",
        };
        let doing = format_args!("undefine domain `{name}`");
        call_as(Changes, format_args!("{doing}{but}"), doing, || self.undefine_with(name, keep))
    }

    fn rename(&self, name: &str, to: &str) -> Result<(), HypervisorError> {
        call(Changes, format_args!("rename domain `{name}` to `{to}`"), || {
            let domain = self.find_to_change(name)?;
            let renamed = domain.rename(to, 0);
            // Listed domains are found by name.
            self.seen.borrow_mut().clear();
            Ok(renamed?)
        })
    }

    fn keeps(&self, name: &str) -> Result<Vec<Kept>, HypervisorError> {
        call(Reads, format_args!("look for snapshots of domain `{name}`"), || {
            let domain = self.find(name)?;
            // Not every driver supports them.
            let number = |of: Result<u32, Error>| match of {
                Err(e) if is_unsupported(&e) => Ok(0),
                number => number,
            };
            let mut kept = Vec::new();
            if number(domain.has_managed_save(0).map(u32::from))? > 0 {
                kept.push(saved_state(name));
            }
            match number(domain.num_snapshots(0))? {
                0 => {}
                number => {
                    let what = gpuvm_core::words::count(number, "snapshot");
                    let hint = format!("`gpuvm snapshot list {}` shows them", word(name));
                    kept.push(Kept { what, hint, starts: false });
                }
            }
            Ok(kept)
        })
    }

    fn autostart(&self, name: &str) -> Result<bool, HypervisorError> {
        call(Reads, format_args!("read whether domain `{name}` starts with the host"), || {
            Ok(self.find(name)?.autostart()?)
        })
    }

    fn set_autostart(&self, name: &str, on: bool) -> Result<(), HypervisorError> {
        let doing = format_args!("set whether domain `{name}` starts with the host");
        call_as(Changes, format_args!("{doing}: {on}"), doing, || {
            Ok(self.find_to_change(name)?.set_autostart(on)?)
        })
    }

    fn autostarted(&self) -> Result<BTreeSet<String>, HypervisorError> {
        let doing = format_args!("list the domains of {} that start with the host", self.uri);
        call(Reads, doing, || {
            let flags = sys::VIR_CONNECT_LIST_DOMAINS_AUTOSTART;
            let listed = self.connection().list_all_domains(flags)?;
            Ok(listed.iter().filter_map(|domain| domain.name().ok()).collect())
        })
    }
}

impl Libvirt {
    fn list(&self) -> Result<Vec<DomainSummary>, Failed> {
        let list = |flags| self.connection().list_all_domains(flags);
        let all = list(0)?;
        // Whether a domain is active comes with the list. Further facts about active ones are
        // queried for all at once, and only those that neither run nor are off are queried one by
        // one.
        let named = |flags| -> Result<BTreeSet<String>, Error> {
            Ok(list(flags)?.iter().filter_map(|domain| domain.uuid_string().ok()).collect())
        };
        let known = if all.iter().any(|domain| domain.id().is_some()) {
            ActiveFacts {
                running: named(sys::VIR_CONNECT_LIST_DOMAINS_RUNNING)?,
                persistent: named(sys::VIR_CONNECT_LIST_DOMAINS_PERSISTENT)?,
            }
        } else {
            ActiveFacts::default()
        };
        let mut rows = Vec::with_capacity(all.len());
        for domain in &all {
            match known.summary(domain) {
                // Deleted since it was listed.
                Err(e) if e.code().is(ErrorNumber::NoDomain) => {}
                row => rows.push(row?),
            }
        }
        self.seen.replace(all.into_iter().filter_map(|d| Some((d.name().ok()?, d))).collect());
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(rows)
    }

    fn read_xml(&self, name: &str, which: XmlOf) -> Result<String, HypervisorError> {
        let doing = format_args!("read the definition of domain `{name}`");
        let flags = self.flags_of(which);
        // A listed domain need not be looked up, unless it was recreated since.
        if let Some(Ok(xml)) = self.seen.borrow().get(name).map(|d| d.xml_desc(flags)) {
            return Ok(xml);
        }
        let read = self.find(name).and_then(|domain| Ok(domain.xml_desc(flags)?));
        read.map_err(|failed| failed.named(doing))
    }

    fn read_xmls(
        &self,
        wanted: &[(&str, XmlOf)],
        take: &mut dyn FnMut(usize, Result<String, HypervisorError>),
    ) {
        let listed = |(name, which): &(&str, XmlOf)| {
            self.seen.borrow().get(*name).map(|domain| (domain.clone(), self.flags_of(*which)))
        };
        let asked: Vec<Option<(Domain, u32)>> = wanted.iter().map(listed).collect();
        let next = AtomicUsize::new(0);
        // The calling thread takes the values that these read.
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
            let (tell, answers) = mpsc::channel();
            for _ in 0..AT_ONCE.min(asked.len()) {
                let tell = tell.clone();
                scope.spawn(|| read(tell));
            }
            drop(tell);
            for (at, text) in answers {
                // One that cannot be read by its row is looked up by its name.
                let (name, which) = wanted[at];
                take(at, text.map_or_else(|| self.read_xml(name, which), Ok));
            }
        });
    }

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

    fn undefine_with(&self, name: &str, keep: Keep) -> Result<(), Failed> {
        let domain = self.find_to_change(name)?;
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
                other => return Ok(other?),
            }
        }
        Ok(domain.undefine()?)
    }
}

fn saved_state(name: &str) -> Kept {
    let hint = format!(
        "`gpuvm start {name}` lets it go on from there, then `gpuvm stop {name}` ends it; \
         `virsh managedsave-remove {virsh}` throws it away",
        name = word(name),
        virsh = shell::domain(name)
    );
    Kept { what: "a saved state".into(), hint, starts: true }
}

/// Facts about all active domains, read at once, by UUID.
#[derive(Default)]
struct ActiveFacts {
    running: BTreeSet<String>,
    persistent: BTreeSet<String>,
}

impl ActiveFacts {
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

/// The state of a domain. Only libvirt's own flag shows whether it is active and holds its devices.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hypervisor::{Addresses as _, HypervisorErrorKind, Live as _};
    use crate::skip::skip;

    #[test]
    fn active_domains_are_never_off() {
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
        libvirt.find("runs").unwrap().suspend().unwrap();
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
