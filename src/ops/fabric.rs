//! Fabric Manager's partitions beside the domains that run: what each is worth, and the release of one that nobody uses.

mod boot_files;
mod ensure;
mod restore;

pub use boot_files::{
    BootFileError, FabricFile, HOOK, UNIT, config_steps, hook, steps as file_steps, unit,
};
pub use ensure::{EnsuredPartitions, ensure, release_of};
pub use restore::{Restored, Restoring, StartMode, restore};

use crate::apply::Step;
use crate::apply::partition::{PartitionError, PartitionGpu, PartitionStep};
use crate::bdf::Bdf;
use crate::change::Change;
use crate::command::output;
use crate::error::{Coded, Result};
use crate::fsroot::FsRoot;
use crate::partition::{self, running};
use crate::reporter::Question;
use crate::topology::{FabricModel, Topology};
use crate::world::World;
use gpuvm_core::fabric::{
    Domain, Listed, Modules, ModulesText, PartitionRefusal, PartitionState, Release, RestoreEntry,
    RestoreList, Running, Verdict, pending, release, states,
};
use gpuvm_core::verify::partition::Partitions;
use gpuvm_host::fabric::config::{Address, Config};
use gpuvm_host::fabric::{Manager, ManagerRefusal, RestoreFile, RestoreFileError};
use serde::Serialize;

/// How long Fabric Manager may take to tell its version, in seconds.
const VERSION_S: u64 = 5;

/// Why partitions are not shown or released.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "fabric-")]
pub enum FabricError {
    /// Nobody shares NVSwitches here.
    #[error("Fabric Manager rules no partitions here: NVSwitches of this host are not shared")]
    NotShared,
    /// Virtual GPUs are passed, and whose a partition is then is not known here.
    #[error(
        "FABRIC_MODE=2: GPUs are shared by virtual functions here, and which guests have those of partition {partition} is not known"
    )]
    Virtual {
        /// The partition.
        partition: u32,
    },
    /// Fabric Manager does not answer.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Manager(#[from] ManagerRefusal),
    /// The file of active partitions.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    File(#[from] RestoreFileError),
    /// The partition may not be released.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Refused(#[from] PartitionRefusal),
    /// Whether somebody has its GPUs cannot be told.
    #[error("NVLink partition {partition}: the GPUs of {} are not known", ModulesText(modules))]
    UnknownModules {
        /// The partition.
        partition: u32,
        /// Those whose GPU is unknown.
        modules: Modules,
    },
    /// A domain's GPUs are no partition.
    #[error(
        "the {} of domain `{domain}` ({}{}) {} no NVLink partition of this host: partitions have {sizes} GPUs",
        gpuvm_core::words::count(*count, "GPU"),
        ModulesText(modules),
        if *unknown == 0 { String::new() } else { format!(", {unknown} of unknown module id") },
        if *count == 1 { "is" } else { "are" }
    )]
    NoPartition {
        /// The domain.
        domain: String,
        /// How many GPUs it has.
        count: usize,
        /// Their module ids, where known.
        modules: Modules,
        /// The numbers of GPUs that partitions have.
        sizes: String,
        /// How many module ids are not known.
        unknown: usize,
    },
    /// Fabric Manager was told that a partition is active, and lists it as inactive.
    #[error(
        "Fabric Manager has taken the list of active partitions, and lists partition {partition} as inactive"
    )]
    NotTold {
        /// The partition.
        partition: u32,
    },
    /// Fabric Manager lists a partition that was deactivated as active, with other GPUs than then.
    #[error(
        "NVLink partition {partition} is active: Fabric Manager's list has changed since the plan"
    )]
    ChangedSince {
        /// The partition.
        partition: u32,
    },
    /// No partition can be activated for a domain's GPUs.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Need(#[from] gpuvm_core::fabric::NeedRefusal),
    /// A partition is not activated or deactivated.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Partition(#[from] PartitionError),
}

impl Coded for FabricError {}

/// A partition, as it is shown.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShownPartition {
    /// Its number.
    pub id: u32,
    /// Module ids of its GPUs.
    pub modules: Modules,
    /// Addresses of those GPUs whose module id is known.
    pub gpus: Vec<Bdf>,
    /// NVLinks of the GPU that has the fewest.
    pub links: u32,
    /// NVLinks that each of its GPUs should have in it.
    pub links_at_most: u32,
    /// Whether it is active.
    pub active: bool,
    /// The running domain that has it.
    pub holder: Option<Domain>,
    /// What is to be said of it.
    pub verdict: Verdict,
}

/// What Fabric Manager and libvirt say.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShownFabric {
    /// The board; none: it is unknown, or there is none.
    pub board: Option<String>,
    /// How NVSwitches serve guests.
    pub model: FabricModel,
    /// Fabric Manager's version; none: its program is not here, or does not tell.
    pub manager_version: Option<String>,
    /// Where it listens.
    pub address: String,
    /// Why it gave no partitions; none: it did, or is not asked because NVSwitches are not shared.
    pub refusal: Option<String>,
    /// Why the file of active partitions is not read, so that what is still to be deactivated is not known; none: it is read.
    pub unread: Option<String>,
    /// The partitions, by number.
    pub partitions: Vec<ShownPartition>,
    /// Partitions of domains that do not run, which are still to be deactivated.
    pub pending: Vec<RestoreEntry>,
}

impl ShownFabric {
    /// Whether something is to be mended.
    pub fn is_wrong(&self) -> bool {
        let wrong = self.partitions.iter().any(|partition| partition.verdict.is_wrong());
        wrong || self.refusal.is_some() || self.unread.is_some() || !self.pending.is_empty()
    }
}

/// What Fabric Manager and libvirt say of this machine.
pub fn show(world: &World) -> Result<ShownFabric> {
    world.refuse_without_guests("fabric show")?;
    world.refuse_elsewhere("fabric show")?;
    let topology = world.topology()?;
    let fabric = topology.fabric();
    let config = Config::read(&FsRoot::live()?)?;
    let (is_of_vgpu, address) = (config.is_of_vgpu(), config.address);
    let mut shown = ShownFabric {
        board: fabric.board.clone(),
        model: fabric.model,
        manager_version: None,
        address: address.to_string(),
        refusal: None,
        unread: None,
        partitions: Vec::new(),
        pending: Vec::new(),
    };
    if fabric.model != FabricModel::SharedNvswitch {
        return Ok(shown);
    }
    shown.manager_version = version();
    let Look { listed, running, file } = Look::at(world, &topology, &address)?;
    match file {
        Ok(file) => {
            let pending = pending(&file, &running, listed.as_deref().ok());
            shown.pending = pending.into_iter().cloned().collect();
        }
        Err(error) => shown.unread = Some(error.to_string()),
    }
    match listed {
        Ok(listed) => {
            let states = states(&listed, &running).into_iter();
            shown.partitions = states.map(|state| of_state(state, &topology)).collect();
            if is_of_vgpu {
                // Which guests have virtual functions or mediated devices of a GPU is not looked at.
                let all = shown.partitions.iter_mut().filter(|one| one.active);
                all.filter(|one| one.holder.is_none())
                    .for_each(|one| one.verdict = Verdict::Unknown);
            }
        }
        Err(refusal) => shown.refusal = Some(refusal.note(&address)),
    }
    Ok(shown)
}

/// What Fabric Manager, libvirt and the file of active partitions say of the same moment.
struct Look {
    /// Fabric Manager's list.
    listed: std::result::Result<Vec<Listed>, ManagerRefusal>,
    /// The domains that run, with the GPUs of the board that each has.
    running: Vec<Running>,
    /// What was activated for whom.
    file: std::result::Result<RestoreList, RestoreFileError>,
}

impl Look {
    /// Asks all three.
    fn at(world: &World, topology: &Topology, address: &Address) -> Result<Look> {
        let running = running(world, topology)?;
        let listed = Manager::at(address.clone()).list();
        Ok(Look { listed, running, file: RestoreFile::read(RestoreFile::here()) })
    }
}

/// What `verify` compares guests with, and what of it is not known, in words. None: NVSwitches are not shared here.
pub fn compared(world: &World, topology: &Topology) -> Result<(Option<Partitions>, Vec<String>)> {
    let mut untold = Vec::new();
    if topology.fabric().model != FabricModel::SharedNvswitch {
        return Ok((None, untold));
    }
    let config = Config::read(&FsRoot::live()?)?;
    if config.is_of_vgpu() {
        untold.push("NVLink partitions (FABRIC_MODE=2: they are those of virtual GPUs)".into());
        return Ok((None, untold));
    }
    let Look { listed, running, file } = Look::at(world, topology, &config.address)?;
    let listed = listed.map_err(|refusal| {
        untold.push(format!("NVLink partitions ({})", refusal.note(&config.address)));
    });
    let remembered = file.unwrap_or_else(|error| {
        untold.push(format!("NVLink partitions of guests that are off ({error})"));
        RestoreList::default()
    });
    Ok((Some(Partitions { listed: listed.ok(), running, remembered }), untold))
}

/// A partition with the addresses of its GPUs.
fn of_state(state: PartitionState, topology: &Topology) -> ShownPartition {
    let gpus = state.modules.iter().filter_map(|module| address_of(topology, *module)).collect();
    let PartitionState { id, modules, links, links_at_most, active, holder, verdict } = state;
    ShownPartition { id, modules, gpus, links, links_at_most, active, holder, verdict }
}

/// The GPU of a module id; none: it is not known.
fn address_of(topology: &Topology, module: u32) -> Option<Bdf> {
    let all = &topology.fabric().module_ids;
    all.iter().find(|(_, id)| *id == module).map(|(bdf, _)| *bdf)
}

/// The version of Fabric Manager's program, its last word with a digit in front; none where it is not to be had.
fn version() -> Option<String> {
    let said = output(&["nv-fabricmanager", "--version"], VERSION_S).ok()?;
    let is_version = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit());
    said.split_whitespace().rfind(is_version).map(str::to_owned)
}

/// Plans the release of a partition that is active for nobody; nothing where it is not active.
pub fn release_partition(world: &World, partition: u32) -> Result<Change> {
    world.refuse_recorded("fabric release")?;
    world.refuse_elsewhere("fabric release")?;
    let topology = world.topology()?;
    if topology.fabric().model != FabricModel::SharedNvswitch {
        return Err(FabricError::NotShared.hint("`gpuvm fabric show` shows the model"));
    }
    let refused = |error: FabricError, hint: &str| error.hint::<crate::error::Error>(hint);
    if Config::read(&FsRoot::live()?)?.is_of_vgpu() {
        let error = FabricError::Virtual { partition };
        return Err(refused(
            error,
            &format!("`fmpm -d {partition}` deactivates it, once no guest has its GPUs"),
        ));
    }
    let manager = Manager::of_host(&FsRoot::live()?)?;
    let listed = manager.list().map_err(|refusal| {
        let hint = refusal.advice().unwrap_or_default();
        refused(refusal.into(), hint)
    })?;
    let running = running(world, &topology)?;
    let steps = match release(partition, &listed, &running) {
        Release::AlreadySo => Vec::new(),
        Release::Deactivate => {
            let step = step(partition, &listed, &topology).map_err(|error| match error {
                FabricError::UnknownModules { .. } => {
                    refused(error, "`gpuvm host modules` shows which module ids are known")
                }
                error => error.bare(),
            })?;
            vec![Step::DeactivatePartition(step)]
        }
        Release::Refused(refusal) => {
            let hint = partition::hint(&refusal);
            return Err(refused(refusal.into(), &hint));
        }
    };
    let question = Some(Question::Agree {
        lines: None,
        question: "release it?",
        what: format!("releasing partition {partition}"),
    });
    let again = format!("gpuvm fabric release {partition}");
    let subject = partition.to_string();
    Ok(Change { question, again, ..Change::new("fabric release", &subject, steps, ()) })
}

/// The step that deactivates a listed partition.
fn step(
    partition: u32,
    listed: &[Listed],
    topology: &Topology,
) -> std::result::Result<PartitionStep, FabricError> {
    let found = listed.iter().find(|one| one.id == partition);
    let modules = found.map(Listed::modules).unwrap_or_default();
    let gpu = |&module: &u32| {
        address_of(topology, module).map(|bdf| PartitionGpu { module, bdf }).ok_or(module)
    };
    let (gpus, unknown): (Vec<_>, Vec<_>) = modules.iter().map(gpu).partition(|gpu| gpu.is_ok());
    if !unknown.is_empty() {
        let modules = unknown.into_iter().filter_map(std::result::Result::err).collect();
        return Err(FabricError::UnknownModules { partition, modules });
    }
    let file = RestoreFile::read(RestoreFile::here())?;
    let domain = file.get(partition).map(|entry| entry.domain.clone()).unwrap_or_default();
    let gpus = gpus.into_iter().flatten().collect();
    Ok(PartitionStep { partition, gpus, domain, vfs: Vec::new(), may_wait: false })
}

/// The error of a partition, with what helps.
fn refused(error: PartitionError) -> crate::error::Error {
    let hint = match &error {
        PartitionError::Refused(refusal) => match refusal.stale() {
            Some(partition) => format!("`gpuvm fabric release {partition}`"),
            None => "`gpuvm fabric show` lists partitions and who holds them".into(),
        },
        PartitionError::Manager(refusal) | PartitionError::Unsure(refusal) => {
            refusal.advice().unwrap_or("`journalctl -u nvidia-fabricmanager`").into()
        }
        _ => "`gpuvm fabric show` lists partitions and who holds them".into(),
    };
    FabricError::from(error).hint(hint)
}

/// Refuses to call a partition released that Fabric Manager lists as active: as one of other GPUs since the plan, say.
pub fn released(partition: u32) -> Result<()> {
    let listed = Manager::of_host(&FsRoot::live()?)?.list();
    let listed =
        listed.map_err(|refusal| FabricError::from(refusal).bare::<crate::error::Error>())?;
    match listed.iter().any(|one| one.id == partition && one.active) {
        true => Err(FabricError::ChangedSince { partition }
            .hint("`gpuvm fabric show` lists it as it is now")),
        false => Ok(()),
    }
}
