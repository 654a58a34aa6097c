//! The verbs on images.

use super::LockArgs;
use crate::image::{ImageName, Sha256};
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

/// Examples of `add`.
const ADD: &str = "Examples:
  gpuvm image add debian-13-genericcloud-amd64.qcow2
  gpuvm image add noble-server-cloudimg-amd64.img --name noble --dry-run
  gpuvm image add file:///srv/images/disk.raw --name train --sha256 $(cat disk.raw.sha256)";
/// Examples of `list`.
const LIST: &str = "Examples:
  gpuvm image list
  gpuvm image list --json --connect qemu+ssh://root@dgx/system";
/// Examples of `remove`.
const REMOVE: &str = "Examples:
  gpuvm image remove noble
  gpuvm image remove noble --yes";

/// Is a verb on images.
#[derive(Debug, Subcommand)]
pub enum ImageVerb {
    /// Copy a raw or qcow2 image into the pool of images
    ///
    /// The format is told by the image's content, never by its name; an image that needs another file is refused. Its
    /// SHA-256 is checked against --sha256, or against the file SHA256SUMS beside it where that lists the image. The
    /// pool gpuvm-images is made over /var/lib/libvirt/gpuvm-images where it is not there. The copy goes through
    /// libvirt, so the pool may be on another machine (--connect qemu+ssh://HOST/system).
    #[command(after_help = ADD)]
    Add(ImageAddArgs),
    /// List the images, the newest first, and who uses each
    #[command(after_help = LIST)]
    List(ImageListArgs),
    /// Delete an image that nothing uses
    ///
    /// Names what goes, then asks for the image's name, or takes --yes. An image that a domain has as a disk or below
    /// one, or that a volume of any pool lies over, is not deleted. Files that lie over it outside every pool are not
    /// seen, unless a running domain has them.
    #[command(after_help = REMOVE)]
    Remove(ImageRemoveArgs),
}

/// Is the pool of images.
#[derive(Debug, Args)]
pub struct ImagePoolArgs {
    /// libvirt storage pool of the images
    #[arg(long, value_name = "POOL", default_value = "gpuvm-images")]
    pub pool: String,
}

/// Is what `image add` takes.
#[derive(Debug, Args)]
pub struct ImageAddArgs {
    /// Image file, as a path or as file:///PATH
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Name of the image; default: the file's without .qcow2, .img or .raw
    #[arg(long, value_name = "NAME")]
    pub name: Option<ImageName>,
    /// SHA-256 that the image has to have; default: what SHA256SUMS beside the file says
    #[arg(long, value_name = "HEX")]
    pub sha256: Option<Sha256>,
    /// The pool.
    #[command(flatten)]
    pub pool: ImagePoolArgs,
    /// Read and check the image, print the steps and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Is what `image list` takes.
#[derive(Debug, Args)]
pub struct ImageListArgs {
    /// The pool.
    #[command(flatten)]
    pub pool: ImagePoolArgs,
}

/// Is what `image remove` takes.
#[derive(Debug, Args)]
pub struct ImageRemoveArgs {
    /// Name of the image
    #[arg(value_name = "NAME")]
    pub name: ImageName,
    /// The pool.
    #[command(flatten)]
    pub pool: ImagePoolArgs,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Print the steps and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}
