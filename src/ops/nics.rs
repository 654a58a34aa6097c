//! Network cards of the host with their links and virtual functions, and their users: `nic list`.

use crate::apply::nic::boot;
use crate::availability::{Availability, nothing_passes};
use crate::bdf::Bdf;
use crate::cards::{functions_of, is_up};
use crate::cpuset::NodeId;
use crate::error::Result;
use crate::fsroot::FsRoot;
use crate::function_users::{self, Use, UseKind};
use crate::placement::{DeviceState, Occupancy};
use crate::topology::model::model;
use crate::topology::{DeviceKind, PciDevice, Proximity, Sriov, Topology};
use crate::world::World;
use serde::Serialize;
use std::collections::BTreeSet;

/// A card: a physical function.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetworkCard {
    /// Address.
    pub bdf: Bdf,
    /// Model, or the ids.
    pub model: String,
    /// Network devices.
    pub netdevs: Vec<String>,
    /// Driver that has it.
    pub driver: Option<String>,
    /// Node.
    pub node: Option<NodeId>,
    /// Upstream port of the PCIe switch above it.
    pub switch: Option<Bdf>,
    /// Indexes of the GPUs that it reaches without a host bridge.
    pub gpus: Vec<usize>,
    /// Whether its first network device is up; `None` if unknown.
    pub up: Option<bool>,
    /// The state of its link as the kernel says it: `up`, `down`, `dormant`.
    pub link: Option<String>,
    /// MAC address of its first network device.
    pub mac: Option<String>,
    /// Maximum number of virtual functions; `None` without SR-IOV.
    pub total_vfs: Option<u32>,
    /// Virtual functions that it has.
    pub enabled_vfs: Option<u32>,
    /// Virtual functions created at boot.
    pub vfs_at_boot: Option<u32>,
    /// Domains that hold it, running or not.
    pub domains: Vec<String>,
    /// Who uses it.
    pub used_by: Vec<Use>,
    /// Why no guest gets it although it is not in use; absent: one can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
    /// Its virtual functions.
    pub vfs: Vec<CardFunction>,
}

/// A virtual function.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CardFunction {
    /// Its number on its card.
    pub number: usize,
    /// Address.
    pub bdf: Bdf,
    /// Driver that has it.
    pub driver: Option<String>,
    /// Network devices.
    pub netdevs: Vec<String>,
    /// IOMMU group.
    pub iommu_group: Option<u32>,
    /// Domains that hold it, running or not.
    pub domains: Vec<String>,
    /// Who uses it.
    pub used_by: Vec<Use>,
    /// Why no guest gets it although it is not in use; absent: one can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
}

/// The data that cards are reported from.
struct Host<'a> {
    topology: &'a Topology,
    /// Its files; none if the host is a recorded one.
    root: Option<FsRoot>,
    held: &'a Occupancy,
    uses: Vec<Use>,
    /// Why no guest gets any function.
    nothing: Option<String>,
}

/// The cards of a host; `held`: the occupancy of domains.
pub fn cards(world: &World, topology: &Topology, held: &Occupancy) -> Result<Vec<NetworkCard>> {
    let is_nic = |device: &&PciDevice| device.kind() == DeviceKind::Nic;
    let nics: Vec<&PciDevice> = topology.devices().iter().filter(is_nic).collect();
    let functions: Vec<Bdf> = nics.iter().map(|nic| nic.bdf).collect();
    let root = world.root()?;
    let mut uses = function_users::known(topology, held, &functions);
    if let Some(root) = &root {
        uses.extend(function_users::read(root, topology, &functions)?.uses);
    }
    let nothing = nothing_passes(world, topology, None)?;
    let host = Host { topology, root, held, uses, nothing };
    let is_card = |nic: &&&PciDevice| !nic.is_vf();
    nics.iter().filter(is_card).map(|nic| host.card(nic)).collect()
}

impl Host<'_> {
    /// Why no guest gets a card that is free otherwise.
    fn blocked(&self, nic: &PciDevice) -> Option<String> {
        let has_functions = matches!(nic.sriov, Some(Sriov::Pf { enabled: 1.., .. }));
        let uses = (&self.uses[..], self.nothing.as_deref());
        let Availability { state, why, .. } =
            Availability::of(self.topology, self.held, uses, nic.bdf);
        let is_said = matches!(state, DeviceState::Held | DeviceState::Host) || has_functions;
        why.into_iter().next().filter(|_| !is_said)
    }

    fn card(&self, nic: &PciDevice) -> Result<NetworkCard> {
        let bdf = nic.bdf;
        let netdevs = nic.net.as_ref().map(|net| net.netdevs.clone()).unwrap_or_default();
        let at = netdevs.first().map(|name| format!("sys/class/net/{name}"));
        let (mut up, mut link, mut mac, mut at_boot) = (None, None, None, None);
        if let Some(root) = &self.root {
            at_boot = boot::functions(root)?.get(&bdf).map(|at_boot| at_boot.count);
            if let (Some(at), Some(name)) = (at, netdevs.first()) {
                up = is_up(root, name)?;
                link = root.read(&format!("{at}/operstate"))?.map(|text| text.trim().to_owned());
                mac = root.read(&format!("{at}/address"))?.map(|text| text.trim().to_owned());
            }
        }
        let near =
            |gpu: Bdf| matches!(self.topology.proximity(bdf, gpu), Proximity::Pix | Proximity::Pxb);
        let gpus = self.topology.gpus().enumerate();
        let (total_vfs, enabled_vfs) = match nic.sriov {
            Some(Sriov::Pf { total, enabled }) => (Some(total), Some(enabled)),
            _ => (None, None),
        };
        let vfs = functions_of(self.topology, bdf).into_iter().enumerate();
        Ok(NetworkCard {
            bdf,
            model: model(nic),
            driver: nic.driver.clone(),
            node: nic.node,
            switch: switch_of(self.topology, bdf),
            gpus: gpus.filter(|(_, gpu)| near(gpu.bdf)).map(|(index, _)| index).collect(),
            up,
            link,
            mac: mac.or_else(|| nic.net.as_ref()?.macs.first().cloned()),
            total_vfs,
            enabled_vfs,
            vfs_at_boot: at_boot,
            domains: self.domains(bdf),
            // Its virtual functions are listed separately.
            used_by: self.used_by(bdf, |used| used.kind != UseKind::Functions),
            blocked: self.blocked(nic),
            vfs: vfs.map(|(number, vf)| self.function(number, vf)).collect(),
            netdevs,
        })
    }

    fn function(&self, number: usize, vf: &PciDevice) -> CardFunction {
        CardFunction {
            number,
            bdf: vf.bdf,
            driver: vf.driver.clone(),
            netdevs: vf.net.as_ref().map(|net| net.netdevs.clone()).unwrap_or_default(),
            iommu_group: vf.iommu_group,
            domains: self.domains(vf.bdf),
            used_by: self.used_by(vf.bdf, |_| true),
            blocked: self.blocked(vf),
        }
    }

    /// The domains that have a function.
    fn domains(&self, bdf: Bdf) -> Vec<String> {
        let having = self.held.domains.iter().filter(|domain| domain.devices.contains(&bdf));
        let names: BTreeSet<String> = having.map(|domain| domain.domain.clone()).collect();
        names.into_iter().collect()
    }

    /// The users of a function, filtered by `counts`.
    fn used_by(&self, bdf: Bdf, counts: fn(&Use) -> bool) -> Vec<Use> {
        self.uses.iter().filter(|used| used.bdf == bdf && counts(used)).cloned().collect()
    }
}

/// The upstream port of the switch right above a function; none if it is connected to a root port.
fn switch_of(topology: &Topology, bdf: Bdf) -> Option<Bdf> {
    // The function, the switch's downstream port, its upstream port, and the port above that.
    match topology.path_to_root(bdf)[..] {
        [_, _, upstream, _, ..] => Some(upstream),
        _ => None,
    }
}
