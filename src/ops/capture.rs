//! Records a host for later use with `--host`: the recorded and the omitted parts.

use crate::discover::crosscheck::crosscheck;
use crate::discover::topo::{Topo, TopoError};
use crate::discover::{discover, discover_identified};
use crate::doctor::facts;
use crate::error::{Error, Refusal, Result, usage};
use crate::fsroot::FsRoot;
use crate::input;
use crate::storage::abilities;
use crate::topology::{Content, Facts, Parts, Topology, TopologyError};
use crate::world::World;
use gpuvm_core::versions::{Abilities, Stack, Versions};
use std::path::{Path, PathBuf};

/// The largest text of `nvidia-smi topo -m` in bytes; one with 16 GPUs and 32 NICs has some 20 KiB.
const TOPO_BYTES: u64 = 1 << 20;

/// A request to record a host.
#[derive(Debug, Clone, Default)]
pub struct Capture {
    /// Whether to include identifying data: its name, MAC addresses, serial numbers.
    pub identify: bool,
    /// A text of `nvidia-smi topo -m`, whose NVLinks are recorded.
    pub topo: Option<PathBuf>,
}

/// The host to record: this machine, or that of `--host`, which converts a directory or an lstopo
/// XML to a file.
pub fn capture(world: &World, wanted: &Capture) -> Result<Topology> {
    let topology = with_stack(world, with_facts(world, read(world, wanted)?)?)?;
    match &wanted.topo {
        Some(file) => with_topo(&topology, file),
        None => Ok(topology),
    }
}

/// The host with the facts for `host doctor`, if its files are here; without the present uses.
fn with_facts(world: &World, topology: Topology) -> Result<Topology> {
    let is_elsewhere = world.settings.host.is_none() && !world.is_here()?;
    let root = if is_elsewhere { None } else { world.root()? };
    let Some(root) = root else { return Ok(topology) };
    let facts = Facts { users: None, ..facts(&root, &topology) };
    let parts = topology.parts().clone();
    Ok(Topology::new(Parts { facts: Some(Box::new(facts)), ..parts })?)
}

/// The host with its libvirt and QEMU, if they answer.
fn with_stack(world: &World, topology: Topology) -> Result<Topology> {
    if world.settings.host.is_some() {
        return Ok(topology);
    }
    let Ok(hypervisor) = world.hypervisor() else { return Ok(topology) };
    let Versions { libvirt: Some(libvirt), qemu: Some(qemu) } = hypervisor.versions() else {
        return Ok(topology);
    };
    let abilities = Abilities {
        iommufd: hypervisor.offers_iommufd(),
        accelerates_smmu: hypervisor.accelerates_smmu(),
        ..abilities(&*hypervisor, true)
    };
    let mut parts = topology.parts().clone();
    parts.machine.stack = Some(Stack { libvirt, qemu, abilities });
    Ok(Topology::new(parts)?)
}

fn read(world: &World, wanted: &Capture) -> Result<Topology> {
    if world.settings.host.is_none() && world.settings.connect_is_given && !world.is_here()? {
        // It is recorded on the other machine, without identifying data.
        refuse_identified(wanted)?;
        return world.topology();
    }
    match (&world.settings.host, wanted.identify) {
        (None, false) => Ok(checked(discover(&FsRoot::live()?)?)?),
        (None, true) => Ok(checked(discover_identified(&FsRoot::live()?)?)?),
        (Some(dir), true) if dir.join("sys").is_dir() => {
            Ok(discover_identified(&FsRoot::at(dir)?)?)
        }
        (Some(_), true) => Ok(world.topology()?),
        (Some(_), false) => Ok(Topology::new(redacted(world.topology()?.parts().clone()))?),
    }
}

/// The host with the NVLinks of a text of `nvidia-smi topo -m`.
fn with_topo(topology: &Topology, file: &Path) -> Result<Topology> {
    let shown = file.display().to_string();
    let text = input::text(file, TOPO_BYTES)?;
    let wrong = |error: TopoError| {
        let hint = match error {
            TopoError::OtherHost { .. } => "give the table of this host",
            _ => "`nvidia-smi topo -m >topo.txt` on the machine writes such a file",
        };
        let message = format!("{shown}: {error}");
        Error::from(error).around(Refusal::around(message, hint))
    };
    Topo::parse(&text).and_then(|topo| topo.lay_over(topology, &shown)).map_err(wrong)
}

/// Refuses to record identifying data of another machine, which the gpuvm there leaves out.
fn refuse_identified(wanted: &Capture) -> Result<()> {
    if wanted.identify {
        Err(usage(
            "--identify records what only the machine itself tells, and the connection is of \
             another",
            "run it there, or without --connect for this machine",
        ))
    } else {
        Ok(())
    }
}

/// The host as it may be shown to others: without identifying data, or, if requested, with it.
pub fn shown(world: &World, topology: &Topology, identify: bool) -> Result<Topology> {
    if identify {
        let whole = capture(world, &Capture { identify, topo: None })?;
        return Ok(whole.with_old_stack(topology.machine().old_stack));
    }
    Ok(Topology::new(redacted(topology.parts().clone()))?)
}

/// Removes identifying data, which a recorded host may contain.
fn redacted(mut parts: Parts) -> Parts {
    parts.machine.host_name = None;
    parts.devices.iter_mut().for_each(|device| device.uuid = None);
    for net in parts.devices.iter_mut().filter_map(|device| device.net.as_mut()) {
        net.macs.clear();
    }
    for drive in &mut parts.drives {
        drive.stable_ids.clear();
        let content = drive.content.as_mut();
        let contents = drive.partitions.iter_mut().filter_map(|part| part.content.as_mut());
        for content in content.into_iter().chain(contents) {
            if let Content::Signatures(signatures) = content {
                for signature in signatures {
                    (signature.label, signature.uuid) = (None, None);
                }
            }
        }
        for partition in &mut drive.partitions {
            partition.partuuid = None;
        }
    }
    parts
}

/// This machine with notes on differences from hwloc.
pub fn checked(topology: Topology) -> Result<Topology, TopologyError> {
    let notes = crosscheck(&topology);
    if notes.is_empty() {
        return Ok(topology);
    }
    let mut parts = topology.parts().clone();
    parts.notes.extend(notes);
    Topology::new(parts)
}
