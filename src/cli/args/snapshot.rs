//! The verbs on snapshots of guests.

use super::heading::BEHAVIOUR;
use super::late::Late;
use super::{ChangeArgs, NameArgs};
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
    /// Create a snapshot of the disks of a guest
    ///
    /// Works on any libvirt domain that is off and whose disks are qcow2 images; read-only disks,
    /// such as the seed, are skipped. Refused with raw images (`gpuvm tune NAME --convert
    /// DISK=qcow2`), passed-through drives and partitions, and disks shared with others. Snapshots
    /// are stored in the images: later writes of the guest take additional space. Firmware settings
    /// are not included.
    #[command(after_long_help = CREATE)]
    Create(Late<SnapshotCreateArgs>),
    /// List the snapshots of a guest
    ///
    /// Includes snapshots that gpuvm did not create. KIND: internal snapshots are stored in the
    /// disk images, and gpuvm can revert to them; external snapshots, and those of a running guest,
    /// are left to virsh.
    #[command(after_long_help = LIST, alias = "ls")]
    List(Late<NameArgs>),
    /// Revert the disks of a guest to a snapshot
    ///
    /// Data written since is lost: gpuvm lists the disks, and asks, or takes --yes. The snapshot
    /// and later ones are kept. The definition is not reverted: devices and tuning stay as they
    /// are; refused if the guest now has other disks.
    #[command(after_long_help = REVERT, aliases = ["restore", "rollback"])]
    Revert(Late<SnapshotChangeArgs>),
    /// Delete a snapshot; the disks keep their content
    ///
    /// Asks, or takes --yes. Cannot be undone.
    #[command(after_long_help = DELETE, alias = "rm")]
    Delete(Late<SnapshotChangeArgs>),
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
    /// How it is made or shown.
    #[command(flatten)]
    pub change: ChangeArgs,
}

/// Arguments of `snapshot revert` and `snapshot delete`.
#[derive(Debug, Args)]
pub struct SnapshotChangeArgs {
    /// The arguments of `create`.
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
