//! The disks of guests: the boot disk, the data disk, the seed, drives and partitions; conflicts
//! with new ones, and their best I/O settings. Plans steps and creates nothing.
//!
//! Boot disk and seed are volumes of a libvirt pool, because libvirt copies and converts images by
//! itself. The data disk is a plain file, because it is as large as the disks of the host and is at
//! the place that `nvidia-vm` used.

mod data;
mod disk_for_existing;
mod error;
mod existing;
mod os;
mod passed;
mod request;
pub mod room;
mod seed;
mod tuning;

pub use disk_for_existing::{Owner, disk_for_existing};
pub use error::StorageError;
pub use os::refuse_without_image;
pub use request::{
    DataRequest, ImageRequest, Keyless, NcclWanted, NewDisk, OsDisk, SeedRequest, SeedWanted,
    StorageRequest,
};
pub use seed::complete;
use tuning::{IO_URING, past_the_cache};
pub use tuning::{abilities, best_io};

use crate::apply::{Step, VolumeStep};
use crate::backing::Trusted;
use crate::bdf::Bdf;
use crate::domain::guest::{Abilities, Disk, Made};
use crate::drives::state::State;
use crate::error::{Coded as _, Result};
use crate::hypervisor::Hypervisor;
use crate::hypervisor::machine::{Machine, command_there};
use crate::placement::Occupancy;
use crate::planned::Planned;
use crate::pools::{file_pool, make_pool};
use crate::seed::Seed;
use crate::topology::Topology;
use crate::world::World;
use gpuvm_core::versions::Version;
use std::fmt;
use std::path::{Path, PathBuf};

/// The pool of the guests' boot disks and seeds, which is created with the first guest.
pub const POOL: &str = "gpuvm-guests";
const POOL_DIR: &str = "/var/lib/libvirt/gpuvm-guests";

/// A notice to the admin about a guest's disks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The guest of a caller of `nvidia-vm` gets no data disk, since there is no data file system
    /// or none is wanted. Reported in its words, which scripts look for.
    NoDataDisk,
    /// A warning of something that may be unexpected.
    Warning(String),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::NoDataDisk => f.write_str(
                "WARNING: Host Data volume not setup, no VM data volume will be created",
            ),
            Notice::Warning(text) => f.write_str(text),
        }
    }
}

/// A guest's disks and the steps that create them.
#[derive(Debug, Default)]
pub struct Disks {
    /// The steps that create them, in order.
    pub steps: Vec<Step>,
    /// The disks, in the guest's order.
    pub disks: Vec<Disk>,
    /// Those that are created for the guest and removed with it.
    pub made: Vec<Made>,
    /// The disk features of the hypervisor.
    pub abilities: Abilities,
    /// The guest's settings for its first start, as far as they are known without its definition:
    /// [`complete`] adds the rest.
    pub seed: Option<Seed>,
    /// Notices to the admin.
    pub notices: Vec<Notice>,
    /// The data on drives that the guest gets and may overwrite, one phrase each.
    pub losses: Vec<String>,
    /// The image that the boot disk is made from, if it was looked for.
    pub image: Option<String>,
}

impl Disks {
    /// Adds a disk that these steps create.
    fn make(&mut self, steps: impl IntoIterator<Item = Step>, disk: Disk, made: Made) {
        for step in steps {
            // Two disks may need the same pool or directory.
            if !self.steps.contains(&step) {
                self.steps.push(step);
            }
        }
        self.disks.push(disk);
        self.made.push(made);
    }

    fn warn(&mut self, text: String) {
        self.notices.push(Notice::Warning(text));
    }
}

/// The data on the drives of PCI functions that a guest gets, one phrase each.
pub fn remains(topology: &Topology, functions: &[Bdf]) -> Vec<String> {
    let drives = topology.parts().drives.iter();
    let given = drives.filter(|drive| drive.bdf.is_some_and(|bdf| functions.contains(&bdf)));
    given.flat_map(|drive| drive.remains()).collect()
}

/// Plans a guest's disks. For a recorded host no image, pool or file is examined. `seed`: the
/// request for its first settings; none if only its definition is wanted, which needs no image.
pub fn plan(
    wanted: &StorageRequest,
    seed: Option<&SeedRequest>,
    planned: &Planned,
    world: &World,
) -> Result<Disks> {
    let recorded = world.is_recorded();
    let hypervisor = if recorded || (seed.is_none() && wanted.pool == POOL) {
        None
    } else {
        Some(world.hypervisor()?)
    };
    let machine = if recorded { Machine::Here } else { world.machine()? };
    let elsewhere = machine.elsewhere();
    let state = world.state_root();
    let place = Place {
        wanted,
        seed,
        planned,
        hypervisor: hypervisor.as_deref(),
        recorded,
        elsewhere,
        state: &state,
    };
    let mut disks = Disks::default();
    let is_made_of_image = os::add(&place, &mut disks)?;
    data::add(&place, &mut disks)?;
    for path in &wanted.add_disk {
        place.refuse_elsewhere(&format!("disk {}", path.display()))?;
        existing::existing_disk(path, place.trusted(), &mut disks)?;
    }
    passed::add(&place, world, &mut disks)?;
    seed::add(&place, is_made_of_image, &mut disks)?;
    // A definition depends on its QEMU's features of ports and disks, also if nothing is created
    // and QEMU is not asked elsewhere. An export works without libvirt, so a hypervisor that does
    // not answer is no error.
    let asked = if recorded { None } else { world.hypervisor().ok() };
    if let Some(of) = planned.stack {
        disks.abilities = of.stack.abilities;
    }
    tune(&place, asked.as_deref(), &mut disks);
    Ok(disks)
}

/// Plans the seed of a guest whose disks are planned: `made` are those, and `pool` is where it
/// goes.
pub fn seed_alone(
    wanted: &SeedRequest,
    pool: &str,
    planned: &Planned,
    made: &[Made],
    world: &World,
) -> Result<Disks> {
    let storage = StorageRequest { pool: pool.to_owned(), ..StorageRequest::default() };
    let hypervisor = world.hypervisor()?;
    let state = world.state_root();
    let place = Place {
        wanted: &storage,
        seed: Some(wanted),
        planned,
        hypervisor: Some(&*hypervisor),
        recorded: false,
        elsewhere: None,
        state: &state,
    };
    let mut disks = Disks { made: made.to_vec(), ..Disks::default() };
    seed::add(&place, true, &mut disks)?;
    disks.made.drain(..made.len());
    Ok(disks)
}

/// The number of writable disks of a guest for which none is named: the boot disk, and the data
/// disk if the host has a data array.
pub fn usual_disks(planned: &Planned, world: &World) -> Result<usize> {
    let has_gpus = planned.topology.gpus().any(|gpu| planned.placement.devices.contains(&gpu.bdf));
    let is_here = has_gpus && !world.is_recorded() && world.is_here()?;
    Ok(1 + usize::from(is_here && data::has_array()))
}

/// Chooses the I/O settings of each disk, by the hypervisor's features if there is one to ask.
fn tune(place: &Place<'_>, hypervisor: Option<&dyn Hypervisor>, disks: &mut Disks) {
    if let Some(hypervisor) = hypervisor {
        // Only the ports of passed-through devices matter, so otherwise QEMU is not asked.
        let ports = !place.planned.placement.guest_pcie.links.is_empty();
        disks.abilities = abilities(hypervisor, ports);
    }
    // The files and the kernel of another machine are not asked; settings that work everywhere are
    // used.
    if place.recorded {
        // A file system that takes O_DIRECT, and a kernel that the record names or one of today.
        let release = place.planned.topology.machine().kernel_release.as_deref();
        let kernel = release.and_then(Version::read).is_none_or(|of| of >= IO_URING);
        for disk in disks.disks.iter_mut().filter(|disk| !disk.read_only) {
            disk.io = past_the_cache(disks.abilities, kernel);
        }
        return;
    }
    if !place.is_here() {
        return;
    }
    for disk in disks.disks.iter_mut().filter(|disk| !disk.read_only) {
        let (io, why) = best_io(&disk.path, disks.abilities);
        disk.io = io;
        if let Some(why) = why {
            disks.notices.push(Notice::Warning(why));
        }
    }
}

/// Refuses disks that a guest of any size cannot be given: errors that a smaller request would get
/// as well.
pub fn refuse_unfit(wanted: &StorageRequest, occupancy: &Occupancy, world: &World) -> Result<()> {
    let has_passed = !wanted.drive.is_empty() || !wanted.partition.is_empty();
    let named = || wanted.disk.iter().chain(&wanted.add_disk);
    if named().next().is_none() && !has_passed {
        return Ok(());
    }
    let recorded = world.is_recorded();
    let machine = if recorded { Machine::Here } else { world.machine()? };
    let mut disks = Disks::default();
    let state = world.state_root();
    for path in named() {
        refuse_elsewhere(machine.elsewhere(), &format!("disk {}", path.display()))?;
        let trusted = Trusted { accepted: &wanted.accept_backing, state: &state };
        existing::existing_disk(path, (!recorded).then_some(trusted), &mut disks)?;
    }
    if has_passed {
        refuse_elsewhere(machine.elsewhere(), "a drive or partition")?;
        let state = State::read(world, occupancy.clone())?;
        passed::choose(wanted, &state, &mut disks)?;
    }
    Ok(())
}

/// Refuses a disk on another machine that does not go through its libvirt: a file there cannot be
/// created or examined.
fn refuse_elsewhere(elsewhere: Option<&str>, disk: &str) -> Result<()> {
    let Some(host) = elsewhere else { return Ok(()) };
    Err(StorageError::NoVolume { disk: disk.to_string(), host: host.to_string() }.hint(format!(
        "--image NAME with --pool makes its disk there; or `{}`",
        command_there(host, "create ...")
    )))
}

/// The input for planning a guest's disks.
struct Place<'a> {
    wanted: &'a StorageRequest,
    /// The request for the seed; none if only the definition is wanted.
    seed: Option<&'a SeedRequest>,
    planned: &'a Planned,
    /// The hypervisor it is created on; none if that is not asked.
    hypervisor: Option<&'a dyn Hypervisor>,
    /// Whether the host is a recorded one, whose files are not here.
    recorded: bool,
    /// The machine that the guest is created on, if it is another one.
    elsewhere: Option<&'a str>,
    state: &'a Path,
}

impl Place<'_> {
    /// The known facts about existing images; `None` on a recorded host.
    fn trusted(&self) -> Option<Trusted<'_>> {
        let accepted = &self.wanted.accept_backing;
        (!self.recorded).then_some(Trusted { accepted, state: self.state })
    }

    /// How many GPUs the guest has, and how many the host.
    fn gpus(&self) -> (u64, u64) {
        let (topology, own) = (&self.planned.topology, &self.planned.placement.devices);
        let number = |gpus: usize| u64::try_from(gpus).unwrap_or(u64::MAX);
        let own = topology.gpus().filter(|gpu| own.contains(&gpu.bdf)).count();
        (number(own), number(topology.gpus().count()))
    }

    /// Whether the guest is created on this machine.
    fn is_here(&self) -> bool {
        self.elsewhere.is_none()
    }

    /// Refuses a disk on another machine that does not go through its libvirt.
    fn refuse_elsewhere(&self, disk: &str) -> Result<()> {
        refuse_elsewhere(self.elsewhere, disk)
    }

    /// The directory of the guest's pool, and the step that creates it if it is missing.
    fn pool(&self) -> Result<(PathBuf, Option<Step>)> {
        let name = &self.wanted.pool;
        let Some(hypervisor) = self.hypervisor else {
            let make =
                Step::Volume(VolumeStep::MakePool { name: name.clone(), path: POOL_DIR.into() });
            return Ok((POOL_DIR.into(), Some(make)));
        };
        let Some(pool) = file_pool(hypervisor.storage(), name, POOL)? else {
            return Ok((POOL_DIR.into(), Some(make_pool(hypervisor, name, POOL_DIR)?)));
        };
        let path = pool.path.ok_or_else(|| {
            StorageError::PoolWithoutDirectory { name: name.to_string() }.refusal("")
        })?;
        Ok((path, None))
    }
}
