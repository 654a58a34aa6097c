//! Network cards of the host: their virtual functions, and whether their network devices are up.

use crate::apply::Step;
use crate::apply::nic::NicStep;
use crate::bdf::Bdf;
use crate::error::Result;
use crate::fsroot::FsRoot;
use crate::topology::{PciDevice, Sriov, Topology};

/// The virtual functions of a card, by number.
pub fn functions_of(topology: &Topology, pf: Bdf) -> Vec<&PciDevice> {
    let is_its = |device: &&PciDevice| device.sriov == Some(Sriov::Vf { pf });
    // The kernel gives them ascending addresses.
    topology.devices().iter().filter(is_its).collect()
}

/// Returns the step that brings up a card's network device; none if it is up, or the card has none.
pub fn link_up(device: &PciDevice, root: Option<&FsRoot>) -> Result<Option<Step>> {
    let netdev = device.net.as_ref().and_then(|net| net.netdevs.first());
    let (Some(netdev), Some(root)) = (netdev, root) else { return Ok(None) };
    let up = is_up(root, netdev)?;
    Ok((up == Some(false)).then(|| NicStep::LinkUp { netdev: netdev.clone() }.into()))
}

/// Whether a network device is up; none if unknown.
pub fn is_up(root: &FsRoot, netdev: &str) -> Result<Option<bool>> {
    /// `IFF_UP` of netdevice(7).
    const UP: u32 = 1;
    let Some(dir) = root.dir(&format!("sys/class/net/{netdev}"))? else { return Ok(None) };
    Ok(dir.hex::<u32>("flags")?.map(|flags| flags & UP != 0))
}
