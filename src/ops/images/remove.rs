//! `image remove`: removes an image that nothing uses.

use super::error::ImageError;
use super::{POOL, find, images, marker_name};
use crate::apply::{Step, VolumeStep};
use crate::change::Change;
use crate::discover::openers::in_use;
use crate::domain::guest::VolumeRef;
use crate::error::{Coded as _, Result};
use crate::hypervisor::Hypervisor;
use crate::hypervisor::file_users::{Use, Uses};
use crate::identity::FileId;
use crate::image::ImageName;
use crate::pools::file_pool;
use crate::reporter::{Deed, Question};
use crate::world::World;

/// An image to be removed.
#[derive(Debug, Clone)]
pub struct RemoveImage {
    /// Its name.
    pub name: ImageName,
    /// Its pool.
    pub pool: String,
}

/// Plans the deletion of an image, unless something needs it.
pub fn remove(world: &World, wanted: &RemoveImage) -> Result<Change> {
    let name = wanted.name.as_str();
    let steps = steps(&*world.hypervisor()?, wanted)?;
    let question = Question::Name { deed: Deed::Delete, kind: "image", name: name.to_owned() };
    let again = format!("gpuvm image remove {name}");
    let change = Change::new("image remove", name, steps, ());
    Ok(Change { question: Some(question), again, ..change })
}

fn steps(hypervisor: &dyn Hypervisor, wanted: &RemoveImage) -> Result<Vec<Step>> {
    let RemoveImage { name, pool } = wanted;
    let storage = hypervisor.storage();
    let marker = marker_name(name);
    let images = images(storage, pool)?;
    let marked = file_pool(storage, pool, POOL)?.is_some()
        && storage.volumes(pool)?.iter().any(|volume| volume.name == marker);
    let unmark = marked
        .then(|| Step::Volume(VolumeStep::Delete { pool: pool.clone(), name: marker, file: None }));
    if let (Some(unmark), None) = (&unmark, images.iter().find(|image| image.name == *name)) {
        return Ok(vec![unmark.clone()]);
    }
    let image = find(images, pool, name)?;
    let uses = Uses::read(hypervisor)?;
    let volume = VolumeRef { pool: image.pool.clone(), name: image.volume.clone() };
    let opened = hypervisor.machine().is_here().then(|| in_use(&image.path, false)).flatten();
    let users: Vec<String> =
        uses.of_disk(&image.path, Some(&volume)).iter().map(Use::to_string).chain(opened).collect();
    if !users.is_empty() {
        let users = users.iter().map(|user| format!("\n  {user}")).collect();
        return Err(ImageError::InUse { name: name.to_string(), users }.hint(
            "delete what uses it first: `gpuvm delete NAME`, `virsh vol-delete VOLUME --pool POOL`",
        ));
    }
    let here = hypervisor.machine().is_here();
    let file = here.then(|| FileId::at(&image.path).ok().flatten()).flatten();
    let delete = Step::Volume(VolumeStep::Delete { pool: image.pool, name: image.volume, file });
    Ok([delete].into_iter().chain(unmark).collect())
}
