//! No hypervisor: for changes of the host itself, which journals record under [`URI`]. It has
//! nothing, and every other call fails.

use super::network::{NetworkLease, NetworkState, Networks};
use super::snapshot::Snapshots;
use super::storage::{NewVolume, Pool, Progress, Storage, Volume, VolumeId};
use super::{
    Addresses, AskedBy, Console, DomainSummary, Domains, Hypervisor, HypervisorError,
    HypervisorErrorKind, Lease, Live, XmlOf,
};
use gpuvm_core::cpuset::CpuSet;
use gpuvm_core::domain::live::GuestThread;
use gpuvm_core::network::GuestAddress;
use std::fmt::Arguments;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The pseudo-URI of the host itself.
pub const URI: &str = "host:";

/// No hypervisor.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHypervisor;

fn none<T>(doing: Arguments<'_>) -> Result<T, HypervisorError> {
    Err(HypervisorError {
        kind: HypervisorErrorKind::Other,
        doing: doing.to_string(),
        message: "this change is of the host alone".into(),
    })
}

/// Methods that only fail, by a function that gets a description of the operation.
macro_rules! fail {
    (
        $fail:ident;
        $(fn $name:ident($($argument:ident: $kind:ty),+) -> $answer:ty, $doing:literal;)+
    ) => {
        $(fn $name(&self, $($argument: $kind),+) -> Result<$answer, HypervisorError> {
            let _ = ($(&$argument,)+);
            $fail(format_args!($doing))
        })+
    };
}

#[cfg(test)]
pub(crate) use fail;

impl Hypervisor for NoHypervisor {
    fn uri(&self) -> &str {
        URI
    }
    fn storage(&self) -> &dyn Storage {
        self
    }
    fn networks(&self) -> &dyn Networks {
        self
    }
}

impl Domains for NoHypervisor {
    fn domains(&self) -> Result<Vec<DomainSummary>, HypervisorError> {
        Ok(Vec::new())
    }
    fail! {
        none;
        fn xml(name: &str, which: XmlOf) -> String, "read domain `{name}`";
        fn define(xml: &str) -> (), "define a domain";
        fn undefine(name: &str) -> (), "undefine domain `{name}`";
        fn autostart(name: &str) -> bool, "read autostart of domain `{name}`";
        fn set_autostart(name: &str, on: bool) -> (), "set autostart of domain `{name}`";
    }
}

impl Snapshots for NoHypervisor {}

impl Live for NoHypervisor {
    fail! {
        none;
        fn start(name: &str) -> (), "start domain `{name}`";
        fn shutdown(name: &str, by: AskedBy) -> (), "shut down domain `{name}`";
        fn destroy(name: &str) -> (), "end domain `{name}`";
        fn detach(name: &str, device: &str) -> (), "remove a device from domain `{name}`";
        fn pin(name: &str, thread: GuestThread, pcpus: &CpuSet) -> (),
            "pin a thread of domain `{name}`";
        fn update(name: &str, device: &str) -> (), "change a device of domain `{name}`";
        fn ask_agent(name: &str, command: &str, wait: Duration) -> String,
            "ask the agent of domain `{name}`";
        fn console(name: &str, force: bool) -> Box<dyn Console>,
            "attach to the console of domain `{name}`";
    }
}

impl Addresses for NoHypervisor {
    fail! {
        none;
        fn addresses(name: &str, macs: &[String]) -> Vec<GuestAddress>,
            "read addresses of domain `{name}`";
        fn leases(network: &str, mac: &str) -> Vec<Lease>, "read the leases of network `{network}`";
    }
}

impl Storage for NoHypervisor {
    fn pools(&self) -> Result<Vec<Pool>, HypervisorError> {
        Ok(Vec::new())
    }
    fail! {
        none;
        fn make_pool(name: &str, dir: &Path, uuid: Option<&str>) -> (), "make pool `{name}`";
        fn forget_pool(name: &str) -> (), "forget pool `{name}`";
        fn volume_id(pool: &str, name: &str) -> Option<VolumeId>,
            "look for volume `{name}` of pool `{pool}`";
        fn volumes(pool: &str) -> Vec<Volume>, "list pool `{pool}`";
        fn make_volume(pool: &str, new: &NewVolume) -> PathBuf, "make a volume in pool `{pool}`";
        fn copy_volume(pool: &str, new: &NewVolume, from: (&str, &str)) -> PathBuf,
            "copy a volume into pool `{pool}`";
        fn grow_volume(pool: &str, name: &str, bytes: u64) -> (), "grow a volume of pool `{pool}`";
        fn delete_volume(pool: &str, name: &str) -> (), "delete a volume of pool `{pool}`";
        fn upload(pool: &str, name: &str, from: &mut dyn Read, progress: Progress<'_>) -> (),
            "fill a volume of pool `{pool}`";
        fn download(pool: &str, name: &str, range: Range<u64>, to: &mut dyn Write) -> (),
            "read a volume of pool `{pool}`";
    }
}

impl Networks for NoHypervisor {
    fn all_networks(&self) -> Result<Vec<NetworkState>, HypervisorError> {
        Ok(Vec::new())
    }
    fail! {
        none;
        fn define_network(xml: &str) -> (), "define a network";
        fn undefine_network(name: &str) -> (), "undefine network `{name}`";
        fn start_network(name: &str) -> (), "start network `{name}`";
        fn stop_network(name: &str) -> (), "stop network `{name}`";
        fn autostart_network(name: &str, on: bool) -> (),
            "set whether network `{name}` starts by itself";
        fn network_leases(name: &str) -> Vec<NetworkLease>, "read the leases of network `{name}`";
    }
}
