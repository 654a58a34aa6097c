//! A hypervisor that traces calls and their duration: `INFO` for changes and calls longer than
//! `LONG`, `DEBUG` for everything; and has those watched that should be short. Documents and agent commands are not traced: they may contain
//! secrets.

use super::network::{NetworkLease, NetworkState, Networks};
use super::slow;
use super::snapshot::Snapshot;
use super::storage::{NewVolume, Pool, Progress, Storage, Volume, VolumeId};
use super::{
    AskedBy, Console, DiskSize, DomainSummary, Hypervisor, HypervisorError, Keep, Kept, Lease,
    Used, VfPool, XmlOf,
};
use crate::discover::reach::Reach;
use crate::hypervisor::machine::{Identity, Machine};
use crate::trace::seconds;
use gpuvm_core::cpuset::CpuSet;
use gpuvm_core::domain::guest::{Abilities, VirtType};
use gpuvm_core::domain::live::GuestThread;
use gpuvm_core::load::ByteCounts;
use gpuvm_core::network::GuestAddress;
use gpuvm_core::topology::software::GuestSupport;
use gpuvm_core::versions::Versions;
use std::collections::BTreeSet;
use std::fmt;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tracing::{Level, debug, enabled, info};

use Call::{Changes, Reads, Waits, Works};

/// The duration from which a read is traced as `INFO`.
const LONG: Duration = Duration::from_secs(1);
/// The duration from which a define took longer than libvirt alone needs.
const LONG_DEFINE: Duration = Duration::from_secs(2);

struct Traced {
    inner: Rc<dyn Hypervisor>,
}

/// Whether a call changes anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    /// It reads.
    Reads,
    /// It changes.
    Changes,
    /// It changes and may take as long as it takes: memory is filled, or a disk copied.
    Works,
    /// It reads, and waits for somebody else, or for much data.
    Waits,
}

/// Opens a hypervisor, traced if there is a subscriber.
pub fn open<H: Hypervisor + 'static>(
    uri: &str,
    open: impl FnOnce() -> Result<H, HypervisorError>,
) -> Result<Rc<dyn Hypervisor>, HypervisorError> {
    if !enabled!(Level::INFO) && !slow::is_on() {
        return Ok(Rc::new(open()?));
    }
    // It has a limit of its own.
    let inner = Rc::new(told(Works, format_args!("connect to {uri}"), open)?);
    Ok(Rc::new(Traced { inner }))
}

fn told<T>(
    call: Call,
    what: fmt::Arguments<'_>,
    run: impl FnOnce() -> Result<T, HypervisorError>,
) -> Result<T, HypervisorError> {
    let changes = matches!(call, Changes | Works);
    if changes {
        // Calls that never return are traced, too.
        debug!("libvirt begins: {what}");
    }
    let since = Instant::now();
    let done = match call {
        Reads | Changes => slow::watched(|| what.to_string(), run),
        Works | Waits => run(),
    };
    let took = seconds(since);
    let failed = done.as_ref().err().map_or(String::new(), |error| format!(": {}", error.message));
    if changes || since.elapsed() >= LONG {
        info!("libvirt: {what}, {took}{failed}")
    } else {
        debug!("libvirt: {what}, {took}{failed}")
    }
    done
}

/// Makes and traces a call that cannot fail.
fn asked<T>(what: &str, run: impl FnOnce() -> T) -> T {
    let Ok(answer) = told(Reads, format_args!("{what}"), || Ok(run())) else {
        unreachable!("nothing in it fails")
    };
    answer
}

impl Hypervisor for Traced {
    fn uri(&self) -> &str {
        self.inner.uri()
    }
    fn opened_uri(&self) -> String {
        self.inner.opened_uri()
    }
    fn machine(&self) -> Machine {
        asked("which machine it is on", || self.inner.machine())
    }
    fn identity(&self) -> Identity {
        asked("what tells its machine from others", || self.inner.identity())
    }
    fn has_guests_here(&self) -> bool {
        self.inner.has_guests_here()
    }
    fn log_dir(&self) -> Option<PathBuf> {
        self.inner.log_dir()
    }
    fn missing_log_dir(&self) -> Option<PathBuf> {
        self.inner.missing_log_dir()
    }
    fn versions(&self) -> Versions {
        asked("its versions", || self.inner.versions())
    }
    fn emulator(&self) -> Option<PathBuf> {
        asked("its QEMU", || self.inner.emulator())
    }
    fn guest_support(&self) -> Option<GuestSupport> {
        asked("the guests that it can run", || self.inner.guest_support())
    }
    fn refuses_machine(&self, machine: &str, virt: VirtType) -> Option<String> {
        asked("whether it has a machine type", || self.inner.refuses_machine(machine, virt))
    }
    fn reconnect(&self) -> Result<(), HypervisorError> {
        told(Changes, format_args!("connect again"), || self.inner.reconnect())
    }
    fn run_id(&self, name: &str) -> Result<Option<u32>, HypervisorError> {
        told(Reads, format_args!("id of domain `{name}`"), || self.inner.run_id(name))
    }
    fn storage(&self) -> &dyn Storage {
        self
    }
    fn networks(&self) -> &dyn Networks {
        self
    }
    fn domains(&self) -> Result<Vec<DomainSummary>, HypervisorError> {
        told(Reads, format_args!("list domains"), || self.inner.domains())
    }
    fn domain(&self, name: &str) -> Result<Option<DomainSummary>, HypervisorError> {
        told(Reads, format_args!("find domain `{name}`"), || self.inner.domain(name))
    }
    fn xml(&self, name: &str, which: XmlOf) -> Result<String, HypervisorError> {
        let what = format_args!("XML of domain `{name}` ({which:?})");
        told(Reads, what, || self.inner.xml(name, which))
    }
    fn xmls(
        &self,
        wanted: &[(&str, XmlOf)],
        take: &mut dyn FnMut(usize, Result<String, HypervisorError>),
    ) {
        asked(&format!("XML of {} domains", wanted.len()), || self.inner.xmls(wanted, take))
    }
    fn saved(&self) -> Result<Vec<(String, String)>, HypervisorError> {
        told(Reads, format_args!("list saved states"), || self.inner.saved())
    }
    fn define(&self, xml: &str) -> Result<(), HypervisorError> {
        let since = Instant::now();
        let done = told(Changes, format_args!("define a domain"), || self.inner.define(xml));
        if since.elapsed() >= LONG_DEFINE && self.inner.has_guests_here() {
            info!("{}", super::kvm::why_slow(&super::kvm::Node::of_this_machine()));
        }
        done
    }
    fn undefine(&self, name: &str) -> Result<(), HypervisorError> {
        told(Changes, format_args!("undefine domain `{name}`"), || self.inner.undefine(name))
    }
    fn undefine_but(&self, name: &str, keep: Keep) -> Result<(), HypervisorError> {
        let what = match (keep.nvram, keep.tpm) {
            (true, true) => ", but keep its NVRAM and TPM state",
            (true, false) => ", but keep its NVRAM",
            (false, true) => ", but keep its TPM state",
            (false, false) => "",
        };
        let what = format_args!("undefine domain `{name}`{what}");
        told(Changes, what, || self.inner.undefine_but(name, keep))
    }
    fn rename(&self, name: &str, to: &str) -> Result<(), HypervisorError> {
        let what = format_args!("rename domain `{name}` to `{to}`");
        told(Changes, what, || self.inner.rename(name, to))
    }
    fn keeps(&self, name: &str) -> Result<Vec<Kept>, HypervisorError> {
        let what = format_args!("snapshots and saved state of domain `{name}`");
        told(Reads, what, || self.inner.keeps(name))
    }
    fn snapshots(&self, name: &str) -> Result<Vec<Snapshot>, HypervisorError> {
        told(Reads, format_args!("snapshots of domain `{name}`"), || self.inner.snapshots(name))
    }
    fn make_snapshot(&self, name: &str, snapshot: &str, of: &str) -> Result<(), HypervisorError> {
        let what = format_args!("make snapshot `{snapshot}` of domain `{name}`");
        told(Works, what, || self.inner.make_snapshot(name, snapshot, of))
    }
    fn revert_snapshot(&self, name: &str, snapshot: &str) -> Result<(), HypervisorError> {
        let what = format_args!("revert domain `{name}` to snapshot `{snapshot}`");
        told(Works, what, || self.inner.revert_snapshot(name, snapshot))
    }
    fn delete_snapshot(&self, name: &str, snapshot: &str) -> Result<(), HypervisorError> {
        let what = format_args!("delete snapshot `{snapshot}` of domain `{name}`");
        told(Works, what, || self.inner.delete_snapshot(name, snapshot))
    }
    fn start(&self, name: &str) -> Result<(), HypervisorError> {
        told(Works, format_args!("start domain `{name}`"), || self.inner.start(name))
    }
    fn shutdown(&self, name: &str, by: AskedBy) -> Result<(), HypervisorError> {
        told(Changes, format_args!("shut down domain `{name}`"), || self.inner.shutdown(name, by))
    }
    fn pause(&self, name: &str, paused: bool) -> Result<(), HypervisorError> {
        let what = format_args!("{} domain `{name}`", if paused { "pause" } else { "resume" });
        told(Changes, what, || self.inner.pause(name, paused))
    }
    fn destroy(&self, name: &str) -> Result<(), HypervisorError> {
        told(Works, format_args!("power off domain `{name}`"), || self.inner.destroy(name))
    }
    fn detach(&self, name: &str, device: &str) -> Result<(), HypervisorError> {
        let what = format_args!("detach a device of domain `{name}`");
        told(Changes, what, || self.inner.detach(name, device))
    }
    fn attach(&self, name: &str, device: &str) -> Result<(), HypervisorError> {
        let what = format_args!("attach a device to domain `{name}`");
        told(Changes, what, || self.inner.attach(name, device))
    }
    fn used(&self, name: &str) -> Result<Used, HypervisorError> {
        told(Reads, format_args!("use of domain `{name}`"), || self.inner.used(name))
    }
    fn disk_bytes(&self, name: &str, target: &str) -> Result<Option<ByteCounts>, HypervisorError> {
        let what = format_args!("bytes of disk `{target}` of domain `{name}`");
        told(Reads, what, || self.inner.disk_bytes(name, target))
    }
    fn disk_size(&self, name: &str, target: &str) -> Result<Option<DiskSize>, HypervisorError> {
        let what = format_args!("size of disk `{target}` of domain `{name}`");
        told(Reads, what, || self.inner.disk_size(name, target))
    }
    fn grow_disk(&self, name: &str, target: &str, bytes: u64) -> Result<(), HypervisorError> {
        let what = format_args!("resize disk `{target}` of domain `{name}` to {bytes} bytes");
        told(Works, what, || self.inner.grow_disk(name, target, bytes))
    }
    fn pin(&self, name: &str, thread: GuestThread, pcpus: &CpuSet) -> Result<(), HypervisorError> {
        let what = format_args!("pin {thread} of domain `{name}` to pcpus {pcpus}");
        told(Changes, what, || self.inner.pin(name, thread, pcpus))
    }
    fn plug_vcpus(&self, name: &str, vcpus: u32) -> Result<(), HypervisorError> {
        let what = format_args!("change the vCPUs of running domain `{name}` to {vcpus}");
        told(Changes, what, || self.inner.plug_vcpus(name, vcpus))
    }
    fn update(&self, name: &str, device: &str) -> Result<(), HypervisorError> {
        let what = format_args!("update a device of domain `{name}`");
        told(Changes, what, || self.inner.update(name, device))
    }
    fn ask_agent(
        &self,
        name: &str,
        command: &str,
        wait: Duration,
    ) -> Result<String, HypervisorError> {
        let what = format_args!("ask the agent of domain `{name}`");
        told(Waits, what, || self.inner.ask_agent(name, command, wait))
    }
    fn autostart(&self, name: &str) -> Result<bool, HypervisorError> {
        told(Reads, format_args!("autostart of domain `{name}`"), || self.inner.autostart(name))
    }
    fn set_autostart(&self, name: &str, on: bool) -> Result<(), HypervisorError> {
        let what = format_args!("set autostart of domain `{name}` to {on}");
        told(Changes, what, || self.inner.set_autostart(name, on))
    }
    fn autostarted(&self) -> Result<BTreeSet<String>, HypervisorError> {
        told(Reads, format_args!("domains that start with the host"), || self.inner.autostarted())
    }
    fn console(&self, name: &str, force: bool) -> Result<Box<dyn Console>, HypervisorError> {
        let what = format_args!("attach to the console of domain `{name}`");
        told(Changes, what, || self.inner.console(name, force))
    }
    fn addresses(&self, name: &str, macs: &[String]) -> Result<Vec<GuestAddress>, HypervisorError> {
        let what = format_args!("addresses of domain `{name}`");
        told(Reads, what, || self.inner.addresses(name, macs))
    }
    fn reach(&self, name: &str, address: &GuestAddress) -> Result<Reach, HypervisorError> {
        let what = format_args!("where packets to {} of domain `{name}` arrive", address.ip);
        told(Reads, what, || self.inner.reach(name, address))
    }
    fn vf_pools(&self) -> Result<Vec<VfPool>, HypervisorError> {
        told(Reads, format_args!("networks of virtual functions"), || self.inner.vf_pools())
    }
    fn leases(&self, network: &str, mac: &str) -> Result<Vec<Lease>, HypervisorError> {
        let what = format_args!("leases of {mac} in network `{network}`");
        told(Reads, what, || self.inner.leases(network, mac))
    }
}

impl Storage for Traced {
    fn abilities(&self) -> Abilities {
        asked("what it can do with disks", || self.inner.storage().abilities())
    }
    fn ask_ahead(&self) {
        self.inner.storage().ask_ahead();
    }
    fn pools(&self) -> Result<Vec<Pool>, HypervisorError> {
        told(Reads, format_args!("list pools"), || self.inner.storage().pools())
    }
    fn makes_pools(&self) -> Result<bool, HypervisorError> {
        told(Reads, format_args!("whether it has storage"), || self.inner.storage().makes_pools())
    }
    fn make_pool(&self, name: &str, dir: &Path, uuid: Option<&str>) -> Result<(), HypervisorError> {
        let what = format_args!("create pool `{name}` over {}", dir.display());
        told(Changes, what, || self.inner.storage().make_pool(name, dir, uuid))
    }
    fn pool_uuid(&self, name: &str) -> Result<Option<String>, HypervisorError> {
        told(Reads, format_args!("UUID of pool `{name}`"), || self.inner.storage().pool_uuid(name))
    }
    fn volume_id(&self, pool: &str, name: &str) -> Result<Option<VolumeId>, HypervisorError> {
        let what = format_args!("find volume `{name}` of pool `{pool}`");
        told(Reads, what, || self.inner.storage().volume_id(pool, name))
    }
    fn forget_pool(&self, name: &str) -> Result<(), HypervisorError> {
        let what = format_args!("stop and undefine pool `{name}`");
        told(Changes, what, || self.inner.storage().forget_pool(name))
    }
    fn find_files(&self, pool: &str, name: &str) -> Result<(), HypervisorError> {
        let what = format_args!("look for volume `{name}` of pool `{pool}`");
        told(Reads, what, || self.inner.storage().find_files(pool, name))
    }
    fn is_busy(&self, pool: &str) -> Result<bool, HypervisorError> {
        let what = format_args!("ask whether pool `{pool}` is busy");
        told(Reads, what, || self.inner.storage().is_busy(pool))
    }
    fn volumes(&self, pool: &str) -> Result<Vec<Volume>, HypervisorError> {
        let what = format_args!("list volumes of pool `{pool}`");
        told(Reads, what, || self.inner.storage().volumes(pool))
    }
    fn make_volume(&self, pool: &str, new: &NewVolume) -> Result<PathBuf, HypervisorError> {
        let what = format_args!("create volume `{}` in pool `{pool}`", new.name);
        told(Works, what, || self.inner.storage().make_volume(pool, new))
    }
    fn copy_volume(
        &self,
        pool: &str,
        new: &NewVolume,
        from: (&str, &str),
    ) -> Result<PathBuf, HypervisorError> {
        let (of, volume) = from;
        let new_name = &new.name;
        let what = format_args!("copy volume `{volume}` of `{of}` to `{new_name}` in `{pool}`");
        told(Works, what, || self.inner.storage().copy_volume(pool, new, from))
    }
    fn grow_volume(&self, pool: &str, name: &str, bytes: u64) -> Result<(), HypervisorError> {
        let what = format_args!("resize volume `{name}` of pool `{pool}` to {bytes} bytes");
        told(Works, what, || self.inner.storage().grow_volume(pool, name, bytes))
    }
    fn delete_volume(&self, pool: &str, name: &str) -> Result<(), HypervisorError> {
        let what = format_args!("delete volume `{name}` of pool `{pool}`");
        told(Works, what, || self.inner.storage().delete_volume(pool, name))
    }
    fn upload(
        &self,
        pool: &str,
        name: &str,
        from: &mut dyn Read,
        progress: Progress<'_>,
    ) -> Result<(), HypervisorError> {
        let what = format_args!("upload volume `{name}` of pool `{pool}`");
        told(Works, what, || self.inner.storage().upload(pool, name, from, progress))
    }
    fn download(
        &self,
        pool: &str,
        name: &str,
        range: Range<u64>,
        to: &mut dyn Write,
    ) -> Result<(), HypervisorError> {
        let what = format_args!("read bytes {range:?} of volume `{name}` of pool `{pool}`");
        let range = range.clone();
        told(Waits, what, || self.inner.storage().download(pool, name, range, to))
    }
}

impl Networks for Traced {
    fn all_networks(&self) -> Result<Vec<NetworkState>, HypervisorError> {
        told(Reads, format_args!("list networks"), || self.inner.networks().all_networks())
    }
    fn define_network(&self, xml: &str) -> Result<(), HypervisorError> {
        told(Changes, format_args!("define a network"), || {
            self.inner.networks().define_network(xml)
        })
    }
    fn undefine_network(&self, name: &str) -> Result<(), HypervisorError> {
        let what = format_args!("undefine network `{name}`");
        told(Changes, what, || self.inner.networks().undefine_network(name))
    }
    fn start_network(&self, name: &str) -> Result<(), HypervisorError> {
        let what = format_args!("start network `{name}`");
        told(Changes, what, || self.inner.networks().start_network(name))
    }
    fn stop_network(&self, name: &str) -> Result<(), HypervisorError> {
        let what = format_args!("stop network `{name}`");
        told(Changes, what, || self.inner.networks().stop_network(name))
    }
    fn autostart_network(&self, name: &str, on: bool) -> Result<(), HypervisorError> {
        let what = format_args!("set autostart of network `{name}` to {on}");
        told(Changes, what, || self.inner.networks().autostart_network(name, on))
    }
    fn network_leases(&self, name: &str) -> Result<Vec<NetworkLease>, HypervisorError> {
        let what = format_args!("leases of network `{name}`");
        told(Reads, what, || self.inner.networks().network_leases(name))
    }
    fn network(&self, name: &str) -> Result<Option<NetworkState>, HypervisorError> {
        told(Reads, format_args!("find network `{name}`"), || self.inner.networks().network(name))
    }
}

#[cfg(test)]
mod tests {
    /// Names of the functions of a source text indented by four columns.
    fn functions(text: &str) -> Vec<&str> {
        let names = text.lines().filter_map(|line| line.strip_prefix("    fn "));
        names.filter_map(|rest| rest.split(['(', '<']).next()).collect()
    }

    /// The traits of a source text: from `pub trait NAME` to its closing brace.
    fn of_trait<'t>(text: &'t str, name: &str) -> &'t str {
        let begin = text.find(&format!("pub trait {name} {{")).unwrap();
        let rest = &text[begin..];
        &rest[..rest.find("\n}").unwrap()]
    }

    #[test]
    fn every_call_is_handed_on_also_those_with_a_default() {
        let own = include_str!("traced.rs");
        for (name, text) in [
            ("Hypervisor", include_str!("mod.rs")),
            ("Storage", include_str!("storage.rs")),
            ("Networks", include_str!("network.rs")),
        ] {
            let begin = own.find(&format!("impl {name} for Traced {{")).unwrap();
            let handed = &own[begin..];
            let handed = functions(&handed[..handed.find("\n}").unwrap()]);
            assert_eq!(handed, functions(of_trait(text, name)), "{name}");
        }
    }
}
