//! Availability of this host's drives and partitions for guests: free, or the reasons against it.

use crate::availability::nothing_passes;
use crate::bdf::Bdf;
use crate::discover::discover_identified;
use crate::discover::drives::best_id;
use crate::discover::node::kernel_name;
use crate::discover::openers::{Opener, Sought, openers};
use crate::discover::source::load;
use crate::drives::error::DriveError;
use crate::error::{Class, Coded as _, Result, classed};
use crate::fsroot::FsRoot;
use crate::hypervisor::file_users::Uses as Disks;
use crate::placement::{Held, Occupancy};
use crate::topology::{Drive, DriveUse, PartitionTableEntry, Topology};
use crate::world::World;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The hint on listing names.
pub const NAMES_HINT: &str = "`gpuvm drive list` shows drives and partitions with their names";

/// Why a drive or partition cannot be given to a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "by", rename_all = "kebab-case")]
pub enum Reason {
    /// The host uses it.
    Host {
        /// The used device: the drive, or one of its partitions.
        name: String,
        /// The use.
        #[serde(flatten)]
        used: DriveUse,
    },
    /// A domain uses it, or a part of it, as a disk.
    Disk {
        /// The domain.
        domain: String,
        /// The held device.
        name: String,
    },
    /// A domain has its PCI function.
    Function {
        /// The domain.
        domain: String,
        /// The function.
        bdf: Bdf,
        /// The address at which it is recorded, if its definition has another function now.
        #[serde(skip_serializing_if = "Option::is_none")]
        recorded_at: Option<Bdf>,
    },
    /// A process has it open.
    Process {
        /// The open device.
        name: String,
        /// The process.
        #[serde(flatten)]
        process: Opener,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Host { name, used } => f.write_str(&used.says(name)),
            Reason::Disk { domain, name } => write!(f, "{name} is a disk of domain `{domain}`"),
            Reason::Function { domain, bdf, recorded_at: None } => {
                write!(f, "{bdf} is held by domain `{domain}`")
            }
            Reason::Function { domain, bdf, recorded_at: Some(was) } => {
                write!(f, "{bdf} is recorded for domain `{domain}`, which had it at {was}")
            }
            Reason::Process { name, process } => write!(f, "{name} is open by {process}"),
        }
    }
}

impl Reason {
    /// Whether the host needs it to boot.
    pub fn is_system(&self) -> bool {
        matches!(self, Reason::Host { used, .. } if used.is_system())
    }
}

/// The drives of a host and their users.
pub struct State {
    /// The host, with the names of its drives.
    pub topology: Topology,
    /// The occupancy of the domains.
    pub held: Occupancy,
    /// Domains and the kernel's name of a block device that each has as a disk.
    disks: BTreeSet<(String, String)>,
    /// Processes that have a block device open, by the kernel's name.
    openers: BTreeMap<String, Vec<Opener>>,
    /// Whether the host is this machine, and everything on it was accessible.
    pub is_complete: bool,
    /// Why no guest gets any PCI function.
    pub(super) nothing: Option<String>,
}

impl State {
    /// Reads the host. `held`: the occupancy of its domains.
    pub fn read(world: &World, held: Occupancy) -> Result<State> {
        let topology = match (world.root()?, &world.settings.host) {
            (Some(root), _) => discover_identified(&root)?,
            (None, Some(path)) => load(path)?,
            (None, None) => world.topology()?,
        };
        let nothing = nothing_passes(world, &topology, None)?;
        let mut state = State {
            nothing,
            topology,
            held,
            disks: BTreeSet::new(),
            openers: BTreeMap::new(),
            is_complete: false,
        };
        if let Some(root) = world.root()? {
            state.add_openers(&root)?;
            if root.is_live() {
                if let Some(hypervisor) = world.hypervisor_to_look()? {
                    for (domain, files) in &Disks::read(&*hypervisor)?.files() {
                        let names = files.iter().filter_map(|file| kernel_name(file));
                        state.disks.extend(names.map(|name| (domain.clone(), name)));
                    }
                }
                state.is_complete = nix::unistd::geteuid().is_root();
            }
        }
        Ok(state)
    }

    /// Names of the drives and partitions.
    fn names(&self) -> Vec<String> {
        let drives = self.topology.parts().drives.iter();
        let names = drives.flat_map(|drive| {
            let parts = drive.partitions.iter().map(|part| part.name.clone());
            std::iter::once(drive.name.clone()).chain(parts)
        });
        names.collect()
    }

    /// Finds the processes that have drives open.
    fn add_openers(&mut self, root: &FsRoot) -> Result<()> {
        let mut known = Vec::new();
        for name in self.names() {
            let number = root.read(&format!("sys/class/block/{name}/dev"))?.unwrap_or_default();
            known.push((name.clone(), number, format!("/dev/{name}")));
        }
        let sought: Vec<Sought<'_>> =
            known.iter().map(|(_, number, path)| Sought::Device(number, path)).collect();
        for (at, opener) in openers(root, &sought)? {
            self.openers.entry(known[at].0.clone()).or_default().push(opener);
        }
        Ok(())
    }

    /// Returns why a whole drive cannot be given away; empty: it can.
    pub fn of_drive(&self, drive: &Drive) -> Vec<Reason> {
        let mut reasons = self.of_name(&drive.name, &drive.used_by);
        for part in &drive.partitions {
            reasons.extend(self.of_name(&part.name, &part.used_by));
        }
        reasons.extend(self.of_function(drive));
        reasons.dedup();
        reasons
    }

    /// Why a partition cannot be given away; empty: it can. Uses of the whole drive count for the
    /// partition, too.
    pub fn of_partition(&self, drive: &Drive, part: &PartitionTableEntry) -> Vec<Reason> {
        let mut reasons = self.of_name(&part.name, &part.used_by);
        // A process that reads the table of the drive does not use the partition.
        let whole = self.of_name(&drive.name, &drive.used_by).into_iter();
        reasons.extend(whole.filter(|reason| !matches!(reason, Reason::Process { .. })));
        reasons.extend(self.of_function(drive));
        reasons
    }

    /// Domains that have the drive's function, unless they only have disks of it.
    fn of_function(&self, drive: &Drive) -> Vec<Reason> {
        let Some(bdf) = drive.bdf else { return Vec::new() };
        let has = |domain: &str| {
            let parts = drive.partitions.iter().map(|part| &part.name);
            let mut names = std::iter::once(&drive.name).chain(parts);
            names.any(|name| self.disks.contains(&(domain.to_owned(), name.clone())))
        };
        let mut holders = self.holders(bdf);
        holders.retain(
            |reason| !matches!(reason, Reason::Function { domain, .. } if has(domain.as_str())),
        );
        holders
    }

    /// Domains that have a function, each once.
    pub fn holders(&self, bdf: Bdf) -> Vec<Reason> {
        let holders = self.held.domains.iter().filter(|held| held.devices.contains(&bdf));
        let of = |held: &Held| (held.domain.clone(), held.moved_from(bdf));
        let holders: BTreeMap<String, Option<Bdf>> = holders.map(of).collect();
        let reason = |(domain, recorded_at)| Reason::Function { domain, bdf, recorded_at };
        holders.into_iter().map(reason).collect()
    }

    /// Returns why the device of this name cannot be given away, considered alone.
    fn of_name(&self, name: &str, used_by: &[DriveUse]) -> Vec<Reason> {
        let owned = || name.to_owned();
        let host = |used: &DriveUse| Reason::Host { name: owned(), used: used.clone() };
        let mut reasons: Vec<Reason> = used_by.iter().map(host).collect();
        let disks = self.disks.iter().filter(|(_, disk)| disk == name);
        let domains: Vec<Reason> = disks
            .map(|(domain, _)| Reason::Disk { domain: domain.clone(), name: owned() })
            .collect();
        // Its processes belong to these domains.
        if domains.is_empty() {
            let openers = self.openers.get(name).into_iter().flatten().cloned();
            reasons.extend(openers.map(|process| Reason::Process { name: owned(), process }));
        }
        reasons.extend(domains);
        reasons
    }

    /// Whether the host needs something on the drive to boot.
    pub fn is_system(drive: &Drive) -> bool {
        drive.uses().any(|(_, used)| used.is_system())
    }

    /// The drive that a text names: by its name below /dev/disk/by-id, or the kernel's.
    pub fn find_drive(&self, text: &str) -> Result<&Drive> {
        let drives = &self.topology.parts().drives;
        let id = text.strip_prefix("/dev/disk/by-id/").unwrap_or(text);
        let name = text.strip_prefix("/dev/").unwrap_or(text);
        let is =
            |drive: &&Drive| drive.name == name || drive.stable_ids.iter().any(|own| own == id);
        if let Some(drive) = drives.iter().find(is) {
            return Ok(drive);
        }
        let part = drives.iter().flat_map(|drive| &drive.partitions).find(|part| {
            part.name == name
                || id.rsplit_once("-part").is_some_and(|(stem, number)| {
                    number == part.number.to_string()
                        && drives.iter().any(|drive| {
                            drive.partitions.contains(part)
                                && drive.stable_ids.iter().any(|own| own == stem)
                        })
                })
        });
        Err(match part.map(|part| part.partuuid.as_deref().unwrap_or("PARTUUID")) {
            Some(uuid) => DriveError::IsPartition { text: text.to_string() }
                .hint(format!("--partition {uuid}")),
            None => classed(Class::NotFound, format!("this host has no drive {text}"), NAMES_HINT),
        })
    }

    /// Returns the persistent path of a drive; none if udev gave it no name.
    pub fn stable_path(drive: &Drive) -> Option<String> {
        best_id(&drive.stable_ids).map(|id| format!("/dev/disk/by-id/{id}"))
    }
}
