//! No hypervisor: for changes of the host itself, which journals record under [`URI`]. Every call
//! fails.

use super::network::{NetworkLease, NetworkState, Networks};
use super::storage::{NewVolume, Pool, Storage, Volume, VolumeId};
use super::{
    AskedBy, Console, DomainSummary, GuestAddress, Hypervisor, HypervisorError,
    HypervisorErrorKind, Lease, XmlOf,
};
use gpuvm_core::cpuset::CpuSet;
use gpuvm_core::domain::live::GuestThread;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// The pseudo-URI of the host itself.
pub const URI: &str = "host:";

/// No hypervisor.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHypervisor;

fn none<T>(doing: &str) -> Result<T, HypervisorError> {
    Err(HypervisorError {
        kind: HypervisorErrorKind::Other,
        doing: doing.to_owned(),
        message: "this change is of the host alone".into(),
    })
}

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
    fn domains(&self) -> Result<Vec<DomainSummary>, HypervisorError> {
        Ok(Vec::new())
    }
    fn xml(&self, name: &str, _: XmlOf) -> Result<String, HypervisorError> {
        none(&format!("read domain `{name}`"))
    }
    fn define(&self, _: &str) -> Result<(), HypervisorError> {
        none("define a domain")
    }
    fn undefine(&self, name: &str) -> Result<(), HypervisorError> {
        none(&format!("undefine domain `{name}`"))
    }
    fn start(&self, name: &str) -> Result<(), HypervisorError> {
        none(&format!("start domain `{name}`"))
    }
    fn shutdown(&self, name: &str, _: AskedBy) -> Result<(), HypervisorError> {
        none(&format!("shut down domain `{name}`"))
    }
    fn destroy(&self, name: &str) -> Result<(), HypervisorError> {
        none(&format!("end domain `{name}`"))
    }
    fn detach(&self, name: &str, _: &str) -> Result<(), HypervisorError> {
        none(&format!("remove a device from domain `{name}`"))
    }
    fn pin(&self, name: &str, _: GuestThread, _: &CpuSet) -> Result<(), HypervisorError> {
        none(&format!("pin a thread of domain `{name}`"))
    }
    fn update(&self, name: &str, _: &str) -> Result<(), HypervisorError> {
        none(&format!("change a device of domain `{name}`"))
    }
    fn ask_agent(
        &self,
        name: &str,
        _: &str,
        _: std::time::Duration,
    ) -> Result<String, HypervisorError> {
        none(&format!("ask the agent of domain `{name}`"))
    }
    fn autostart(&self, name: &str) -> Result<bool, HypervisorError> {
        none(&format!("read autostart of domain `{name}`"))
    }
    fn set_autostart(&self, name: &str, _: bool) -> Result<(), HypervisorError> {
        none(&format!("set autostart of domain `{name}`"))
    }
    fn console(&self, name: &str, _: bool) -> Result<Box<dyn Console>, HypervisorError> {
        none(&format!("attach to the console of domain `{name}`"))
    }
    fn leases(&self, network: &str, _: &str) -> Result<Vec<Lease>, HypervisorError> {
        none(&format!("read the leases of network `{network}`"))
    }
    fn addresses(&self, name: &str, _: &[String]) -> Result<Vec<GuestAddress>, HypervisorError> {
        none(&format!("read addresses of domain `{name}`"))
    }
}

impl Storage for NoHypervisor {
    fn pools(&self) -> Result<Vec<Pool>, HypervisorError> {
        Ok(Vec::new())
    }
    fn make_pool(&self, name: &str, _: &Path, _: Option<&str>) -> Result<(), HypervisorError> {
        none(&format!("make pool `{name}`"))
    }
    fn forget_pool(&self, name: &str) -> Result<(), HypervisorError> {
        none(&format!("forget pool `{name}`"))
    }
    fn volume_id(&self, pool: &str, name: &str) -> Result<Option<VolumeId>, HypervisorError> {
        none(&format!("look for volume `{name}` of pool `{pool}`"))
    }
    fn volumes(&self, pool: &str) -> Result<Vec<Volume>, HypervisorError> {
        none(&format!("list pool `{pool}`"))
    }
    fn make_volume(&self, pool: &str, _: &NewVolume) -> Result<PathBuf, HypervisorError> {
        none(&format!("make a volume in pool `{pool}`"))
    }
    fn copy_volume(
        &self,
        pool: &str,
        _: &NewVolume,
        _: (&str, &str),
    ) -> Result<PathBuf, HypervisorError> {
        none(&format!("copy a volume into pool `{pool}`"))
    }
    fn grow_volume(&self, pool: &str, _: &str, _: u64) -> Result<(), HypervisorError> {
        none(&format!("grow a volume of pool `{pool}`"))
    }
    fn delete_volume(&self, pool: &str, _: &str) -> Result<(), HypervisorError> {
        none(&format!("delete a volume of pool `{pool}`"))
    }
    fn upload(
        &self,
        pool: &str,
        _: &str,
        _: &mut dyn Read,
        _: super::storage::Progress<'_>,
    ) -> Result<(), HypervisorError> {
        none(&format!("fill a volume of pool `{pool}`"))
    }
    fn download(
        &self,
        pool: &str,
        _: &str,
        _: std::ops::Range<u64>,
        _: &mut dyn Write,
    ) -> Result<(), HypervisorError> {
        none(&format!("read a volume of pool `{pool}`"))
    }
}

impl Networks for NoHypervisor {
    fn all_networks(&self) -> Result<Vec<NetworkState>, HypervisorError> {
        Ok(Vec::new())
    }
    fn define_network(&self, _: &str) -> Result<(), HypervisorError> {
        none("define a network")
    }
    fn undefine_network(&self, name: &str) -> Result<(), HypervisorError> {
        none(&format!("undefine network `{name}`"))
    }
    fn start_network(&self, name: &str) -> Result<(), HypervisorError> {
        none(&format!("start network `{name}`"))
    }
    fn stop_network(&self, name: &str) -> Result<(), HypervisorError> {
        none(&format!("stop network `{name}`"))
    }
    fn autostart_network(&self, name: &str, _: bool) -> Result<(), HypervisorError> {
        none(&format!("set whether network `{name}` starts by itself"))
    }
    fn network_leases(&self, name: &str) -> Result<Vec<NetworkLease>, HypervisorError> {
        none(&format!("read the leases of network `{name}`"))
    }
}
