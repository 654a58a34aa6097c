//! Storage pools whose volumes are files: they hold images, guests' disks and seeds.

use crate::apply::{Step, VolumeStep};
use crate::error::{Coded, Result};
use crate::hypervisor::storage::{FILE_POOLS, Pool, Storage, is_file_pool};
use crate::hypervisor::{Hypervisor, HypervisorError, HypervisorErrorKind};
use crate::shell::word;

/// The directory of the pool of images.
pub const IMAGES_DIR: &str = "/var/lib/libvirt/gpuvm-images";

/// The reason a pool is not used.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "storage-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum PoolError {
    /// The pool is not active.
    #[error("pool `{name}` is not active")]
    PoolInactive { name: String },
    /// The connection has no storage, so that no pool can be made.
    #[error("pool `{name}` cannot be made: {uri} has no storage driver")]
    NoStorage { name: String, uri: String },
    /// The pool does not hold files.
    #[error("pool `{name}` is of type {kind}; images and disks need a pool of files")]
    PoolKind { name: String, kind: String },
}

impl Coded for PoolError {}

/// A pool whose volumes are files; none if it is the one that is created on demand and it does not
/// exist yet.
pub fn file_pool(storage: &dyn Storage, name: &str, on_demand: &str) -> Result<Option<Pool>> {
    let Some(pool) = storage.pools()?.into_iter().find(|pool| pool.name == name) else {
        if name == on_demand {
            return Ok(None);
        }
        let (kind, doing) = (HypervisorErrorKind::NoVolume, format!("find pool `{name}`"));
        let message = "there is none of this name".to_owned();
        return Err(HypervisorError { kind, doing, message }.into());
    };
    if !pool.active {
        return Err(PoolError::PoolInactive { name: name.to_owned() }
            .hint(format!("`virsh pool-start {name}` starts it", name = word(name))));
    }
    if !is_file_pool(&pool.kind) {
        return Err(PoolError::PoolKind { name: name.to_owned(), kind: pool.kind.clone() }
            .hint(format!("--pool names another; kinds: {}", FILE_POOLS.join(", "))));
    }
    Ok(Some(pool))
}

/// The step that makes the pool that is created on demand; refused if the connection's driver has
/// no storage.
pub fn make_pool(hypervisor: &dyn Hypervisor, name: &str, path: &str) -> Result<Step> {
    if hypervisor.storage().makes_pools()? {
        return Ok(Step::Volume(VolumeStep::MakePool { name: name.to_owned(), path: path.into() }));
    }
    let (name, uri) = (name.to_owned(), hypervisor.uri().to_owned());
    Err(PoolError::NoStorage { name, uri }.hint(
        "`--connect qemu:///system` has storage; files are used with `--disk FILE` or `--disk-dir \
               DIR`",
    ))
}
