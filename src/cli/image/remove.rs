//! `image remove`: an image that nothing uses.

use super::super::args::ImageRemoveArgs;
use super::super::change::{Agreed, confirm, journal, print_steps, refuse_unfinished, watch};
use super::super::context::Context;
use super::super::error::{Coded, EXIT_DONE};
use crate::apply::identity::FileId;
use crate::apply::{Step, apply};
use crate::hypervisor::Hypervisor;
use crate::hypervisor::uses::Uses;
use gpuvm_ops::images::error::ImageError;
use gpuvm_ops::images::{POOL, find, images, marker_name};
use gpuvm_ops::pools::file_pool;

/// Runs the verb.
pub fn run(args: &ImageRemoveArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("image remove")?;
    let name = args.name.as_str();
    let mut reporter = watch(cx.output)?;
    let hypervisor = cx.hypervisor()?;
    if args.dry_run {
        print_steps(&plan(&*hypervisor, args)?, cx)?;
        return Ok(EXIT_DONE);
    }
    refuse_unfinished(&*hypervisor, cx.output)?;
    let mut agreed = Agreed::default();
    if !args.yes {
        let steps = plan(&*hypervisor, args)?;
        confirm(&steps, "image", name)?;
        agreed = Agreed::to(&steps);
    }
    let _lock = reporter.lock(args.lock.wait())?;
    // Once more: a guest may have been made from it while the question stood.
    let steps = plan(&*hypervisor, args)?;
    agreed.covers(&steps, &[], &format!("gpuvm image remove {name}"))?;
    let journal = journal("image remove", name, &*hypervisor)?;
    apply(&steps, &*hypervisor, &mut reporter, Some(journal))?;
    cx.output.progress(&format!("image `{name}` is deleted"));
    Ok(EXIT_DONE)
}

/// The step of a deletion, unless something needs the image.
fn plan(hypervisor: &dyn Hypervisor, args: &ImageRemoveArgs) -> anyhow::Result<Vec<Step>> {
    let (pool, name) = (&args.pool.pool, &args.name);
    let storage = hypervisor.storage();
    let marker = marker_name(name);
    let images = images(storage, pool)?;
    let marked = file_pool(storage, pool, POOL)?.is_some()
        && storage.volumes(pool)?.iter().any(|volume| volume.name == marker);
    let unmark =
        marked.then(|| Step::DeleteVolume { pool: pool.clone(), name: marker, file: None });
    if let (Some(unmark), None) = (&unmark, images.iter().find(|image| image.name == *name)) {
        return Ok(vec![unmark.clone()]);
    }
    let image = find(images, pool, name)?;
    let uses = Uses::read(hypervisor)?;
    let mut users: Vec<String> =
        uses.domains(&image.path).iter().map(|domain| format!("domain `{domain}`")).collect();
    users.extend(uses.volumes(&image.path).iter().map(|volume| format!("volume `{volume}`")));
    if !users.is_empty() {
        let users: String = users.iter().map(|user| format!("\n  {user}")).collect();
        return Err(ImageError::InUse { name: name.to_string(), users: users.to_string() }.hint(
            "delete what uses it first: `gpuvm delete NAME`, `virsh vol-delete VOLUME --pool POOL`",
        ));
    }
    let here = hypervisor.machine().is_here();
    let file = here.then(|| FileId::at(&image.path).ok().flatten()).flatten();
    let delete = Step::DeleteVolume { pool: image.pool, name: image.volume, file };
    Ok([delete].into_iter().chain(unmark).collect())
}
