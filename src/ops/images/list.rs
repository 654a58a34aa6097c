//! `image list`: every image of a pool with its users.

use super::{Image, images};
use crate::error::Result;
use crate::hypervisor::file_users::Uses;
use crate::world::World;
use serde::Serialize;

/// An image with its users.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UsedImage {
    /// The image.
    #[serde(flatten)]
    pub image: Image,
    /// Names of the domains that use it as a disk or as a backing file.
    pub domains: Vec<String>,
    /// Volumes backed by it, as `pool/volume`.
    pub volumes: Vec<String>,
}

/// The images of a pool with their users, newest first.
pub fn list(world: &World, pool: &str) -> Result<Vec<UsedImage>> {
    let hypervisor = world.hypervisor()?;
    let images = images(hypervisor.storage(), pool)?;
    let uses = if images.is_empty() { Uses::default() } else { Uses::read(&*hypervisor)? };
    let used = |image: Image| UsedImage {
        domains: uses.domains(&image.path),
        volumes: uses.volumes(&image.path),
        image,
    };
    Ok(images.into_iter().map(used).collect())
}
