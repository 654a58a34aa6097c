//! Images: `image add`, `image list`, `image remove`.

pub mod known;

use super::args::{ImageAddArgs, ImageListArgs, ImageRemoveArgs, ImageVerb};
use super::change::{asking, manner};
use super::context::Context;
use super::error::EXIT_DONE;
use super::table::Table;
use crate::image::Sum;
use crate::memsize::MemSize;
use gpuvm_ops::images::add::{self, Added};
use gpuvm_ops::images::fetch::Published;
use gpuvm_ops::images::list::{self, UsedImage};
use gpuvm_ops::images::remove::{self, RemoveImage};
use gpuvm_ops::images::source::AddImage;
use gpuvm_ops::images::source::Word;
use gpuvm_ops::session::{Manner, Session};

/// Runs the verb.
pub fn run(verb: &ImageVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    match verb {
        ImageVerb::Add(args) => add(args, cx),
        ImageVerb::List(args) => list(args, cx),
        ImageVerb::Remove(args) => remove(args, cx),
    }
}

/// Runs `image add`.
fn add(args: &ImageAddArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("image add")?;
    let manner = Manner { dry_run: args.dry_run, ..manner(&args.lock) };
    let mut session = Session::begin(cx, manner)?;
    let (file, name, pool) = (args.file.clone(), args.name.clone(), args.pool.pool.clone());
    let given = (args.sha256.map(Sum::Sha256)).or(args.sha512.map(Sum::Sha512));
    let known = known::read(&args.known)?;
    let wanted = AddImage { file, name, expected: given, pool, known };
    let Some(added) = add::add(&mut session, &wanted)? else { return Ok(EXIT_DONE) };
    if cx.output.json {
        cx.output.json("gpuvm-image-added", &added)?;
        return Ok(EXIT_DONE);
    }
    let Added { name, pool, format, virtual_bytes, sha256, .. } = &added;
    let size = MemSize::from_kib(virtual_bytes / 1024);
    let by = match &added.verified {
        Word::Given => "as given".to_owned(),
        Word::Listed(list) => format!("as {} says", list.display()),
        Word::Published(Published { list, signed_by: None }) => format!("as {list} says"),
        Word::Published(Published { list, signed_by: Some(key) }) => {
            format!("as {list} says, signed by {key}")
        }
        Word::None => "not verified".to_owned(),
    };
    cx.output
        .text(&format!("{name}: {format} of {size} in pool {pool}\nSHA-256 {sha256} ({by})"))?;
    Ok(EXIT_DONE)
}

/// Runs `image list`.
fn list(args: &ImageListArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    if args.known {
        let known = known::read(&args.file)?;
        if cx.output.json {
            cx.output.json_rows("gpuvm-image-known", &known)?;
            return Ok(EXIT_DONE);
        }
        let mut table = Table::new(["NAME", "URL"]);
        known.iter().for_each(|image| table.push([image.name.to_string(), image.url.clone()]));
        cx.output.table(&table)?;
        return Ok(EXIT_DONE);
    }
    cx.refuse_without_guests("image list")?;
    let images = list::list(cx, &args.pool.pool)?;
    if cx.output.json {
        cx.output.json_rows("gpuvm-image-list", &images)?;
    } else if images.is_empty() {
        cx.output.progress("there is no image; `gpuvm image add debian-13` fetches one");
    } else {
        cx.output.table(&table(&images))?;
    }
    for image in images.iter().map(|used| &used.image) {
        if let Some(fault) = &image.fault {
            cx.output.warning(&format!("image `{}` cannot be used: {fault}", image.name));
        }
    }
    Ok(EXIT_DONE)
}

fn table(images: &[UsedImage]) -> Table {
    let size = |bytes: u64| MemSize::from_kib(bytes.div_ceil(1024)).to_string();
    let mut table = Table::new(["NAME", "FORMAT", "SIZE", "ON DISK", "USED BY"]);
    for UsedImage { image, domains, volumes } in images {
        // Volumes are shown only if no domain uses them.
        let users = if domains.is_empty() { volumes } else { domains };
        table.push([
            image.name.to_string(),
            image.format.to_string(),
            size(image.virtual_bytes),
            size(image.disk_bytes),
            if users.is_empty() { "-".to_owned() } else { users.join(", ") },
        ]);
    }
    table
}

/// Runs `image remove`.
fn remove(args: &ImageRemoveArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("image remove")?;
    let wanted = RemoveImage { name: args.name.clone(), pool: args.pool.pool.clone() };
    let mut session = Session::begin(cx, asking(&args.lock, (args.yes, args.dry_run)))?;
    if session.run(|world| remove::remove(world, &wanted))?.made {
        cx.output.progress(&format!("image `{}` is deleted", args.name));
    }
    Ok(EXIT_DONE)
}
