//! A host as a value that `--host` takes later: what is recorded, and what is left out of it.

use crate::discover::crosscheck::crosscheck;
use crate::discover::topo::{Topo, TopoError};
use crate::discover::{discover, discover_identified};
use crate::error::{Error, Refusal, Result, usage};
use crate::fsroot::FsRoot;
use crate::input;
use crate::topology::{Parts, Topology, TopologyError};
use crate::world::World;
use std::path::{Path, PathBuf};

/// Bytes that a text of `nvidia-smi topo -m` may have; one of 16 GPUs and 32 NICs has some 20 KiB.
const TOPO_BYTES: u64 = 1 << 20;

/// What is recorded.
#[derive(Debug, Clone, Default)]
pub struct Capture {
    /// Whether what identifies the machine is recorded, too: its name, MAC addresses, serial numbers.
    pub identify: bool,
    /// A text of `nvidia-smi topo -m`, whose NVLinks are recorded.
    pub topo: Option<PathBuf>,
}

/// The host to record: this machine, or that of `--host`, which makes a file of a directory or an lstopo XML.
pub fn capture(world: &World, wanted: &Capture) -> Result<Topology> {
    let topology = read(world, wanted)?;
    match &wanted.topo {
        Some(file) => with_topo(&topology, file),
        None => Ok(topology),
    }
}

/// It as it was read.
fn read(world: &World, wanted: &Capture) -> Result<Topology> {
    if world.settings.host.is_none() && world.settings.connect_is_given && !world.is_here()? {
        // It is recorded there: without what identifies it.
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

/// Refuses to record what identifies another machine, which its gpuvm leaves out.
fn refuse_identified(wanted: &Capture) -> Result<()> {
    match wanted.identify {
        false => Ok(()),
        true => Err(usage(
            "--identify records what only the machine itself tells, and the connection is of another",
            "run it there, or without --connect for this machine",
        )),
    }
}

/// Leaves out what identifies a machine, which a recorded host may hold.
fn redacted(mut parts: Parts) -> Parts {
    parts.machine.host_name = None;
    for net in parts.devices.iter_mut().filter_map(|device| device.net.as_mut()) {
        net.macs.clear();
    }
    for drive in &mut parts.drives {
        drive.stable_ids.clear();
        for partition in &mut drive.partitions {
            partition.partuuid = None;
        }
    }
    parts
}

/// This machine with notes on what hwloc sees differently.
pub fn checked(topology: Topology) -> Result<Topology, TopologyError> {
    let notes = crosscheck(&topology);
    if notes.is_empty() {
        return Ok(topology);
    }
    let mut parts = topology.parts().clone();
    parts.notes.extend(notes);
    Topology::new(parts)
}
