//! The verbs on images.

use super::LockArgs;
use super::heading::{BEHAVIOUR, DISKS};
use super::late::Late;
use crate::image::{ImageName, Sha256};
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

/// Examples of `add`.
const ADD: &str = "Examples:
  gpuvm image add debian-13-genericcloud-amd64.qcow2
  gpuvm image add noble-server-cloudimg-amd64.img --name noble --dry-run
  gpuvm image add file:///srv/disk.raw --name train --sha256 $(cat disk.sha256)";
/// Examples of `list`.
const LIST: &str = "Examples:
  gpuvm image list
  gpuvm image list --json --connect qemu+ssh://root@dgx/system";
/// Examples of `remove`.
const REMOVE: &str = "Examples:
  gpuvm image remove noble
  gpuvm image remove noble --yes";

/// A verb on images.
#[derive(Debug, Subcommand)]
pub enum ImageVerb {
    /// Copy a raw or qcow2 image into the image pool
    ///
    /// The content decides the format, never the name; an image that needs another file is refused.
    /// Checks the SHA-256 against --sha256, or against a file SHA256SUMS beside the image that
    /// lists it. Makes the pool gpuvm-images over /var/lib/libvirt/gpuvm-images if it is missing.
    /// Copies through libvirt, so the pool may be on another machine (--connect
    /// qemu+ssh://HOST/system).
    #[command(after_long_help = ADD)]
    Add(Late<ImageAddArgs>),
    /// List images, newest first, and their users
    #[command(after_long_help = LIST, alias = "ls")]
    List(Late<ImageListArgs>),
    /// Delete an unused image
    ///
    /// Lists what will be deleted, then asks for the image's name, or takes --yes. Keeps an image
    /// that a domain uses as a disk or as a backing file, or that backs a volume of any pool.
    /// Overlays outside every pool are seen only if a running domain uses them.
    #[command(after_long_help = REMOVE, aliases = ["rm", "delete"])]
    Remove(Late<ImageRemoveArgs>),
}

/// The pool of images.
#[derive(Debug, Args)]
pub struct ImagePoolArgs {
    /// libvirt storage pool of the images
    #[arg(long, value_name = "POOL", default_value = "gpuvm-images", help_heading = DISKS)]
    pub pool: String,
}

/// Arguments of `image add`.
#[derive(Debug, Args)]
pub struct ImageAddArgs {
    /// Image file: a path or file:///PATH
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Image name
    ///
    /// Default: the file name without .qcow2, .img or .raw.
    #[arg(long, value_name = "NAME")]
    pub name: Option<ImageName>,
    /// Expected SHA-256 of the image
    ///
    /// Default: that in SHA256SUMS beside the file.
    #[arg(long, value_name = "HEX")]
    pub sha256: Option<Sha256>,
    /// The pool.
    #[command(flatten)]
    pub pool: ImagePoolArgs,
    /// Print the steps and change nothing
    ///
    /// Reads and checks the image as well.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Arguments of `image list`.
#[derive(Debug, Args)]
pub struct ImageListArgs {
    /// The pool.
    #[command(flatten)]
    pub pool: ImagePoolArgs,
}

/// Arguments of `image remove`.
#[derive(Debug, Args)]
pub struct ImageRemoveArgs {
    /// Image name
    #[arg(value_name = "NAME")]
    pub name: ImageName,
    /// The pool.
    #[command(flatten)]
    pub pool: ImagePoolArgs,
    /// Do not ask for confirmation
    #[arg(short, long, help_heading = BEHAVIOUR)]
    pub yes: bool,
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}
