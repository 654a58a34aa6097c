//! Arguments of `clone` and `import`: a guest as one that is here, or was on another host.

use super::heading::{BEHAVIOUR, DEVICES, DISKS, FIRST_BOOT, GUEST, PLACEMENT};
use super::life::ChangeArgs;
use super::seed::home;
use super::storage::BackingArgs;
use super::values::word;
use crate::request::{DomainName, Rule};
use clap::{Args, ValueHint};
use gpuvm_ops::clone::CloneRequest;
use gpuvm_ops::import::{ImportRequest, NewIdentity};
use gpuvm_ops::storage::{NcclWanted, SeedRequest, SeedWanted};
use std::path::PathBuf;

/// Examples of `clone`.
pub const EXAMPLES: &str = "Examples:
  gpuvm clone train-a train-b --dry-run
  gpuvm clone train-a train-b
  gpuvm clone train-a train-b --overlay
  gpuvm clone train-a test-a --gpus 0
  gpuvm undo train-b";

/// Examples of `import`.
pub const IMPORT: &str = "Examples:
  gpuvm import /mnt/train-a --dry-run
  gpuvm import /mnt/train-a --disks /raid/guests
  gpuvm import /mnt/train-a --copy --name test-a --gpus 0
  gpuvm undo train-a";

/// Arguments of `clone`.
#[derive(Debug, Args)]
pub struct CloneArgs {
    /// Domain name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Name of the clone
    #[arg(value_name = "NEW")]
    pub to: DomainName,
    /// Overlay the original's disks instead of copying them
    ///
    /// Instant, and only changes take space. Both guests get a qcow2 overlay over each image, which
    /// is only read from then on: the original is redefined. An image is deleted with the last
    /// guest that needs it. `gpuvm undo` of the original works until it has written and while no
    /// clone is left. Only for disks that gpuvm created as volumes.
    #[arg(long, help_heading = DISKS)]
    pub overlay: bool,
    /// Images below the disks.
    #[command(flatten)]
    pub backing: BackingArgs,
    /// Its resources.
    #[command(flatten)]
    pub copy: CopyArgs,
}

/// The resources of a guest that is modelled on another.
#[derive(Debug, Args)]
pub struct CopyArgs {
    /// Number of GPUs
    ///
    /// Default: as many as the original. Sizes that `create` derived from the GPUs are derived
    /// again.
    #[arg(long, value_name = "N", help_heading = DEVICES)]
    pub gpus: Option<u32>,
    /// Rules to relax
    ///
    /// They are broken only if nothing else fits; the plan states the cost. Separate several by
    /// commas.
    #[arg(long, value_name = "RULE", value_parser = word::<Rule>(), value_delimiter = ',', help_heading = PLACEMENT)]
    pub allow: Vec<Rule>,
    /// File of SSH public keys that may log in; repeatable
    ///
    /// Default: yours (~/.ssh/id_*.pub). Users on the copied disks are kept.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = FIRST_BOOT)]
    pub ssh_key: Vec<PathBuf>,
    /// Create no cloud-init seed
    ///
    /// The clone then boots with the host name and SSH host keys of the original. Default for
    /// guests that were not created from an image.
    #[arg(long, conflicts_with = "ssh_key", help_heading = FIRST_BOOT)]
    pub no_seed: bool,
    /// Accept an NVLink fabric shared with other guests
    ///
    /// Takes NVSwitches or NVLinks that other guests can reach as well, and devices below PCIe
    /// ports that do not redirect; the plan names the guests or ports.
    #[arg(long, help_heading = BEHAVIOUR, hide_short_help = true)]
    pub accept_shared_fabric: bool,
    /// How it is made.
    #[command(flatten)]
    pub change: ChangeArgs,
}

impl CopyArgs {
    fn seed(&self) -> SeedRequest {
        let wanted = if self.no_seed { SeedWanted::No } else { SeedWanted::Usual };
        let (ssh_key, nccl) = (self.ssh_key.clone(), NcclWanted::No);
        // The agent is on the copied disk, or it was not wanted.
        SeedRequest { ssh_key, home: home(), nccl, wanted, ..SeedRequest::default() }
    }
}

impl CloneArgs {
    /// Returns the request.
    pub fn wanted(&self) -> CloneRequest {
        CloneRequest {
            name: self.name.clone(),
            to: self.to.clone(),
            gpus: self.copy.gpus,
            allow: self.copy.allow.iter().copied().collect(),
            accept_shared_fabric: self.copy.accept_shared_fabric,
            uuid: None,
            seed: self.copy.seed(),
            overlay: self.overlay,
            accept_backing: self.backing.accept_backing.clone(),
        }
    }
}

/// Arguments of `import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Directory written by `export --bundle`
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub bundle: PathBuf,
    /// Domain name
    ///
    /// Default: the one that it had.
    #[arg(long, value_name = "NAME", help_heading = GUEST)]
    pub name: Option<DomainName>,
    /// Create a different guest instead of the same one
    ///
    /// It gets its own UUID, MAC addresses, firmware settings and seed, as a clone does. Without
    /// --copy, the guest on the source host must not run again.
    #[arg(long, help_heading = GUEST)]
    pub copy: bool,
    /// Directory for its disks
    ///
    /// Default: /var/lib/libvirt/images. Files are named NAME-TARGET.FORMAT.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = DISKS)]
    pub disks: Option<PathBuf>,
    /// Its resources.
    #[command(flatten)]
    pub of: CopyArgs,
}

impl ImportArgs {
    /// Returns the request.
    pub fn wanted(&self) -> ImportRequest {
        let of = &self.of;
        ImportRequest {
            path: self.bundle.clone(),
            name: self.name.clone(),
            copy: self.copy.then(|| NewIdentity { uuid: None, seed: of.seed() }),
            disk_dir: self.disks.clone(),
            gpus: of.gpus,
            allow: of.allow.iter().copied().collect(),
            accept_shared_fabric: of.accept_shared_fabric,
        }
    }
}
