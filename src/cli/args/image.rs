//! The verbs on images.

use super::LockArgs;
use super::heading::{BEHAVIOUR, DISKS};
use super::late::Late;
use crate::image::{ImageName, Sha256, Sha512};
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

/// Examples of `add`.
const ADD: &str = "Examples:
  gpuvm image add debian-13
  gpuvm image add https://example.com/images/train.qcow2
  gpuvm image add noble-server-cloudimg-amd64.img --name noble --dry-run
  gpuvm image add file:///srv/disk.raw --name train --sha256 $(cat disk.sha256)";
/// Examples of `list`.
const LIST: &str = "Examples:
  gpuvm image list
  gpuvm image list --known
  gpuvm image list --json --connect qemu+ssh://root@dgx/system";
/// Examples of `remove`.
const REMOVE: &str = "Examples:
  gpuvm image remove noble
  gpuvm image remove noble --yes";

/// A verb on images.
#[derive(Debug, Subcommand)]
pub enum ImageVerb {
    /// Fetch a known image, or copy a raw or qcow2 file, into the image pool
    ///
    /// NAME is a known image (debian-12, debian-13, ubuntu-24.04, ubuntu-26.04, fedora, rocky-9,
    /// rocky-10, alma, and those of /etc/gpuvm/images.toml): its vendor's current cloud image is
    /// fetched over https by curl, behind a proxy by https_proxy. A download that was broken off is
    /// continued. It is added only if it has the checksum that the vendor publishes. The list of
    /// checksums must be signed by the vendor where gpgv and the vendor's keyring are installed.
    ///
    /// The checksum of a file, or of another https URL, comes from --sha256, --sha512, or a file
    /// SHA512SUMS, SHA256SUMS or CHECKSUM beside the image that lists it. Without one it is added
    /// with a warning.
    ///
    /// The content decides the format, never the name; an image that needs another file is refused.
    /// Makes the pool gpuvm-images over /var/lib/libvirt/gpuvm-images if it is missing. Copies
    /// through libvirt, so the pool may be on another machine (--connect qemu+ssh://HOST/system).
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
    /// Storage pool of the images
    #[arg(long, value_name = "POOL", default_value = "gpuvm-images", help_heading = DISKS)]
    pub pool: String,
}

/// The images that are known by name.
#[derive(Debug, Args)]
pub struct KnownArgs {
    /// File of known images
    ///
    /// TOML. An entry adds a name, or replaces the one that the program has:
    ///
    ///   [image.lab]
    ///   url = "https://mirror.lab/lab-{arch}-*.qcow2"
    ///   sums = ["SHA256SUMS"]
    ///   signature = "{list}.gpg"
    ///   keyrings = ["/usr/share/keyrings/lab.gpg"]
    ///   ca = "lab-ca.pem"
    ///
    /// `*` in `url` and `sums` stands for the newest in that directory;
    /// {arch} for x86_64 or aarch64, {debarch} for amd64 or arm64, {file}
    /// for the image's file name. `sums`: lists of checksums beside the
    /// image. `signature` (or `inline`): of the list, by a key of
    /// `keyrings`. `ca`: certificates of the server's authority.
    #[arg(verbatim_doc_comment, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(default_value = KnownArgs::DEFAULT, help_heading = DISKS)]
    pub images: PathBuf,
}

impl KnownArgs {
    /// The administrator's file.
    pub const DEFAULT: &str = "/etc/gpuvm/images.toml";
}

/// Arguments of `image add`.
#[derive(Debug, Args)]
pub struct ImageAddArgs {
    /// Known image, image file, or https URL
    #[arg(value_name = "NAME|FILE|URL", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Image name
    ///
    /// Default: the known image's name, or the file name without .qcow2, .img or .raw.
    #[arg(long, value_name = "NAME")]
    pub name: Option<ImageName>,
    /// Expected SHA-256 of the image
    ///
    /// Default: the checksum in a list beside the image.
    #[arg(long, value_name = "HEX")]
    pub sha256: Option<Sha256>,
    /// Expected SHA-512 of the image
    #[arg(long, value_name = "HEX", conflicts_with = "sha256")]
    pub sha512: Option<Sha512>,
    /// The images that are known.
    #[command(flatten)]
    pub known: KnownArgs,
    /// The pool.
    #[command(flatten)]
    pub pool: ImagePoolArgs,
    /// Print the steps and change nothing
    ///
    /// Fetches, reads and checks the image as well; a fetched one stays in the cache.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Arguments of `image list`.
#[derive(Debug, Args)]
pub struct ImageListArgs {
    /// List the images that `image add` fetches by name
    #[arg(long)]
    pub known: bool,
    /// Where they are.
    #[command(flatten)]
    pub file: KnownArgs,
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
