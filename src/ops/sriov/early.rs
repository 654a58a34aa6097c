//! Creates virtual functions while the machine boots: they are unused, libvirt does not run, and
//! there is no terminal to ask at.

use super::{CardError, autoprobe, identity};
use crate::apply::nic::NicStep;
use crate::apply::nic::boot::AtBoot;
use crate::apply::{Quiet, Step, apply};
use crate::bdf::Bdf;
use crate::cards::link_up;
use crate::error::{Coded as _, Result};
use crate::fsroot::FsRoot;
use crate::hypervisor::none::NoHypervisor;
use crate::topology::{Likeness, Sriov};
use crate::world::World;
use gpuvm_core::words;
use std::time::{Duration, Instant};

/// How long to wait for a card's driver and the name of its network device.
const BOOT_WAIT: Duration = Duration::from_secs(60);

/// Creates the virtual functions of these cards. A card that cannot have them does not prevent the
/// others.
pub fn make(world: &World, cards: &[(Bdf, AtBoot)]) -> Result<()> {
    let root = FsRoot::live()?;
    let until = Instant::now() + BOOT_WAIT;
    let mut failed = Vec::new();
    for (pf, at_boot) in cards {
        let done = steps(*pf, at_boot, &root, until);
        match done.and_then(|steps| Ok(apply(&steps, &NoHypervisor, &mut Quiet, None)?)) {
            Ok(()) => {
                let count = words::count(at_boot.count, "virtual function");
                world.progress(&format!("{pf} has {count}"));
            }
            Err(error) => failed.push(error.whole()),
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(CardError::NotAtBoot { lines: failed.join("\n  ") }
        .hint("`gpuvm nic vfs PF --count N --at-boot` rewrites the list"))
}

/// The steps that create a card's virtual functions at boot, once its driver is bound and its
/// network device has its name.
fn steps(pf: Bdf, at_boot: &AtBoot, root: &FsRoot, until: Instant) -> Result<Vec<Step>> {
    let AtBoot { id, count, host_drivers } = at_boot;
    let count = *count;
    loop {
        let topology = crate::discover::discover(root)?;
        let device = topology.device(pf);
        let seen = device.map(|device| identity(root, device)).transpose()?;
        if seen.as_ref().is_none_or(|seen| id.likeness(seen) == Likeness::Other) {
            let seen = seen.map_or("nothing".to_owned(), |seen| seen.to_string());
            let (pf, id) = (pf.to_string(), id.to_string());
            return Err(CardError::OtherDevice { pf, seen, id }.bare());
        }
        let named = device.and_then(|d| d.net.as_ref()).and_then(|net| net.netdevs.first());
        if let (Some(device), Some(netdev)) = (device, named)
            && is_named_by_udev(root, netdev)?
        {
            let Some(Sriov::Pf { enabled: was, .. }) = device.sriov else {
                return Err(CardError::SriovLost { pf: pf.to_string() }.bare());
            };
            let mut steps = Vec::new();
            if was != count {
                steps.extend(autoprobe(pf, *host_drivers, Some(root), &topology)?);
                steps.push(NicStep::SetCount { pf, count, was }.into());
            }
            steps.extend(link_up(device, Some(root))?);
            return Ok(steps);
        }
        if Instant::now() >= until {
            return Err(CardError::NoNetdev { pf: pf.to_string() }.bare());
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Whether udev has finished with a network device, so that its name is final; also if udev does
/// not run.
fn is_named_by_udev(root: &FsRoot, netdev: &str) -> Result<bool> {
    let Some(dir) = root.dir(&format!("sys/class/net/{netdev}"))? else { return Ok(false) };
    let number: u32 = dir.number("ifindex")?.unwrap_or_default();
    Ok(!root.exists("run/udev/data") || root.exists(&format!("run/udev/data/n{number}")))
}
