//! `image add`: reads the file, checks it, copies it into the pool, and checks how libvirt reads
//! it.

use super::error::ImageError;
use super::fetch::{KnownImage, Meant, meant};
use super::source::{AddImage, Source, Word};
use super::{POOL, images, marker_name, volume_name};
use crate::apply::{CheckStep, Step, VolumeStep, WrittenVolume};
use crate::change::{Change, Hold, Part};
use crate::error::{Coded as _, Result};
use crate::hypervisor::Hypervisor;
use crate::hypervisor::storage::NewVolume;
use crate::image::{Format, ImageName, Sha256};
use crate::memsize::MemSize;
use crate::pools::IMAGES_DIR;
use crate::pools::{file_pool, make_pool};
use crate::session::Session;
use crate::shell::word;
use crate::world::World;
use serde::Serialize;

/// File mode of an image's volume: read-only for all.
const MODE: u32 = 0o444;

/// An image that was added.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Added {
    /// Its name.
    pub name: ImageName,
    /// Its pool.
    pub pool: String,
    /// Its volume.
    pub volume: String,
    /// Its format.
    pub format: Format,
    /// Size seen by a guest, in bytes.
    pub virtual_bytes: u64,
    /// Bytes that were copied.
    pub bytes: u64,
    /// Their SHA-256.
    pub sha256: Sha256,
    /// The earlier statement of that sum.
    pub verified: Word,
    /// The URL that it was fetched from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// Adds an image; `None` if its steps were only shown.
pub fn add(session: &mut Session<'_>, wanted: &AddImage) -> Result<Option<Added>> {
    match meant(&wanted.file, wanted.name.as_ref(), &wanted.known)? {
        Meant::Local => add_source(session, wanted, Source::open(wanted)?),
        Meant::Fetch(known) => add_fetched(session, wanted, &known),
    }
}

/// Fetches an image into the cache, and adds it from there.
fn add_fetched(
    session: &mut Session<'_>,
    wanted: &AddImage,
    known: &KnownImage,
) -> Result<Option<Added>> {
    let world = session.world();
    let name = wanted.name.as_ref().unwrap_or(&known.name).clone();
    refuse_obstacles(session, &wanted.pool, &name, None)?;
    let fetched = known.fetch(wanted.expected, world)?;
    let added =
        Source::fetched(&fetched, name).and_then(|source| add_source(session, wanted, source));
    // Data other than the published image is useless, and an added image is no longer needed.
    let is_wrong = added.as_ref().is_err_and(|error| {
        error.refusal().is_some_and(|refusal| refusal.code == "image-other-sum")
    });
    if is_wrong || matches!(added, Ok(Some(_))) {
        let path = fetched.part.path.clone();
        if let Err(error) = fetched.part.remove() {
            world.warning(&format!("{} stays: {error}", path.display()));
        }
    }
    added
}

/// Reports obstacles before a long file is read or fetched.
fn refuse_obstacles(
    session: &Session<'_>,
    pool: &str,
    name: &ImageName,
    file: Option<(&str, u64)>,
) -> Result<()> {
    if !session.manner().dry_run {
        session.refuse_unfinished()?;
    }
    refuse(&*session.world().hypervisor()?, pool, name, file)
}

/// Adds a file that is here.
fn add_source(
    session: &mut Session<'_>,
    wanted: &AddImage,
    mut source: Source,
) -> Result<Option<Added>> {
    let world = session.world();
    let file = (&*source.shown(), source.bytes);
    refuse_obstacles(session, &wanted.pool, &source.name, Some(file))?;
    let sha256 = sum(&mut source, world)?;
    warn(&source, world);
    let done = session.run(|world| plan(&*world.hypervisor()?, &wanted.pool, &source, sha256))?;
    let Source { name, content, bytes, word, url, .. } = source;
    Ok(done.made.then(|| Added {
        volume: volume_name(&name, content.format),
        name,
        pool: wanted.pool.clone(),
        format: content.format,
        virtual_bytes: content.virtual_bytes,
        bytes,
        sha256,
        verified: word,
        url,
    }))
}

/// Computes the file's checksum. Nothing has begun yet, so a signal ends the program.
fn sum(source: &mut Source, world: &World) -> Result<Sha256> {
    let reporter = world.reporter();
    reporter.progress(&format!("compute the SHA-256 of {}", source.shown()));
    let bytes = source.bytes;
    let summed = source.sum(&mut |through| {
        reporter.bytes(through, bytes);
        true
    });
    reporter.bytes(0, 0);
    summed
}

/// Warns of properties of the image that could be better.
fn warn(source: &Source, world: &World) {
    let shown = source.shown();
    if source.word == Word::None {
        world.warning(&format!(
            "{shown} is not verified: no --sha256 or --sha512 is given, and no SHA512SUMS, \
             SHA256SUMS or CHECKSUM beside it lists it"
        ));
    }
    if !source.content.boots {
        world.warning(&format!(
            "{shown} is taken for raw bytes of a disk, but has no boot record: a guest may not \
             start from it"
        ));
    }
}

/// Refuses a name that an image already has, and a pool that cannot hold the file.
fn refuse(
    hypervisor: &dyn Hypervisor,
    pool_name: &str,
    name: &ImageName,
    file: Option<(&str, u64)>,
) -> Result<()> {
    let storage = hypervisor.storage();
    let Some(pool) = file_pool(storage, pool_name, POOL)? else {
        return make_pool(hypervisor, pool_name, IMAGES_DIR).map(drop);
    };
    if images(storage, pool_name)?.iter().any(|image| image.name == *name) {
        return Err(ImageError::Exists { pool_name: pool_name.to_owned(), name: name.to_string() }
            .hint(format!(
                "choose another --name, or `gpuvm image remove {name}` first",
                name = word(&name.to_string())
            )));
    }
    let Some((file, bytes)) = file else { return Ok(()) };
    if pool.available_bytes < bytes {
        let size = |bytes: u64| MemSize::from_kib(bytes / 1024);
        return Err(ImageError::PoolFull {
            pool_name: pool_name.to_owned(),
            left: size(pool.available_bytes).to_string(),
            file: file.to_owned(),
            size: size(bytes).to_string(),
        }
        .hint("remove what is not used (`gpuvm image list`), or name another --pool"));
    }
    Ok(())
}

/// Plans the copy of a file into the pool.
fn plan(
    hypervisor: &dyn Hypervisor,
    pool_name: &str,
    source: &Source,
    sha256: Sha256,
) -> Result<Change> {
    refuse(hypervisor, pool_name, &source.name, Some((&source.shown(), source.bytes)))?;
    let mut steps = Vec::new();
    if file_pool(hypervisor.storage(), pool_name, POOL)?.is_none() {
        steps.push(make_pool(hypervisor, pool_name, IMAGES_DIR)?);
    }
    let pool = || pool_name.to_owned();
    let name = volume_name(&source.name, source.content.format);
    // The volume is created raw, whatever the format: an empty qcow2 could be longer than the file,
    // and its end would remain. libvirt reads the format from the content after the copy. The full
    // size is allocated first, because libvirtd 11.3 crashes with a double free if the pool becomes
    // full in the middle of a stream.
    let volume = |name: &str, bytes: u64| NewVolume {
        name: name.to_owned(),
        format: Format::Raw.to_string(),
        capacity_bytes: bytes,
        preallocated: true,
        backing: None,
        mode: MODE,
    };
    // The marker is created first and removed last, also if everything is undone.
    let marker = marker_name(&source.name);
    for volume in [volume(&marker, 0), volume(&name, source.bytes)] {
        steps.push(VolumeStep::Make { pool: pool(), volume, from: None }.into());
    }
    let fill = Step::Volume(VolumeStep::Fill {
        pool: pool(),
        name: name.clone(),
        source: source.path.clone(),
        bytes: source.bytes,
        sha256: Some(sha256),
    });
    let check = Step::Check(CheckStep::Volume(WrittenVolume {
        pool: pool(),
        name,
        format: source.content.format.to_string(),
        capacity_bytes: source.content.virtual_bytes,
        bytes: source.bytes,
        sha256,
    }));
    let unmark = Step::Volume(VolumeStep::Delete { pool: pool(), name: marker, file: None });
    let mut change = Change::new("image add", source.name.as_str(), steps, ());
    // From then on the pool shows that the name is in use and the image incomplete.
    change.hold = Hold::First;
    change.parts.push(Part::Steps(vec![fill, check, unmark]));
    Ok(change)
}

#[cfg(test)]
mod tests;
