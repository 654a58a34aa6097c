//! The verbs on snapshots of guests.

use super::heading::BEHAVIOUR;
use super::{LockArgs, NameArgs};
use crate::request::DomainName;
use clap::{Args, Subcommand};
use gpuvm_ops::snapshot::SnapshotOf;

/// Examples of `create`.
const CREATE: &str = "Examples:
  gpuvm snapshot create train-a before-upgrade
  gpuvm snapshot create train-a before-upgrade --dry-run";
/// Examples of `list`.
const LIST: &str = "Examples:
  gpuvm snapshot list train-a
  gpuvm snapshot list train-a --json";
/// Examples of `revert`.
const REVERT: &str = "Examples:
  gpuvm snapshot revert train-a before-upgrade
  gpuvm snapshot revert train-a before-upgrade --yes";
/// Examples of `delete`.
const DELETE: &str = "Examples:
  gpuvm snapshot delete train-a before-upgrade";

/// A verb on the snapshots of a guest.
#[derive(Debug, Subcommand)]
pub enum SnapshotVerb {
    /// Keep what the disks of a guest hold now
    ///
    /// Takes any domain of libvirt that is off and whose disks are qcow2 images; read-only ones,
    /// such as the seed, are left out. Refused with raw images
    /// (`gpuvm tune NAME --convert DISK=qcow2`), passed-through drives and partitions, and disks
    /// that others use. The images keep the content themselves: what the guest writes from then on
    /// takes more space. The settings of its firmware are not kept.
    #[command(after_long_help = CREATE)]
    Create(SnapshotCreateArgs),
    /// List the snapshots of a guest
    ///
    /// Also those that gpuvm did not make. KIND: internal ones are in the disks' own images, and
    /// gpuvm can revert to them; those in files of their own, and those of a running guest, are
    /// left to virsh.
    #[command(after_long_help = LIST)]
    List(NameArgs),
    /// Give the disks of a guest what a snapshot has
    ///
    /// What was written since is lost: gpuvm names the disks, and asks, or takes --yes. The
    /// snapshot stays, and so do later ones. The definition stays as it is now, with the devices
    /// and the tuning that the guest has; refused if its disks are other ones by now.
    #[command(after_long_help = REVERT)]
    Revert(SnapshotChangeArgs),
    /// Delete a snapshot; the disks stay as they are
    ///
    /// Asks, or takes --yes. A deleted snapshot does not come back.
    #[command(after_long_help = DELETE)]
    Delete(SnapshotChangeArgs),
}

/// Arguments of `snapshot create`.
#[derive(Debug, Args)]
pub struct SnapshotCreateArgs {
    /// Domain name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Name of the snapshot
    #[arg(value_name = "SNAPSHOT", value_parser = snapshot_name)]
    pub snapshot: DomainName,
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Arguments of `snapshot revert` and `snapshot delete`.
#[derive(Debug, Args)]
pub struct SnapshotChangeArgs {
    /// What `create` takes.
    #[command(flatten)]
    pub of: SnapshotCreateArgs,
    /// Do not ask for confirmation
    #[arg(short, long, help_heading = BEHAVIOUR)]
    pub yes: bool,
}

impl SnapshotCreateArgs {
    /// The snapshot.
    pub fn wanted(&self) -> SnapshotOf {
        SnapshotOf { name: self.name.clone(), snapshot: self.snapshot.clone() }
    }
}

/// Reads the name of a snapshot, which is one of those that domains can have.
fn snapshot_name(text: &str) -> Result<DomainName, String> {
    let named: Result<DomainName, _> = text.parse();
    named.map_err(|error| error.to_string().replacen("domain name", "snapshot name", 1))
}
