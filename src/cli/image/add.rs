//! `image add`: read the file, check it, copy it into the pool, and see what libvirt makes of it.

use super::super::args::ImageAddArgs;
use super::super::change::{Watch, journal, print_steps, refuse_unfinished, watch};
use super::super::context::Context;
use super::super::error::{Coded, EXIT_DONE};
use super::super::output::Output;
use super::source::{Source, Word};
use crate::apply::{Observer as _, Step, Transaction};
use crate::hypervisor::Hypervisor;
use crate::hypervisor::storage::NewVolume;
use crate::image::{Format, ImageName, Sha256};
use crate::memsize::MemSize;
use crate::shell::word;
use gpuvm_ops::images::error::ImageError;
use gpuvm_ops::images::{POOL, POOL_DIR, images, marker_name, volume_name};
use gpuvm_ops::pools::file_pool;
use serde::Serialize;

/// Rights on an image's volume: nobody writes.
const MODE: u32 = 0o444;

/// Is what `image add` answers.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Added {
    /// Its name.
    name: ImageName,
    /// Its pool.
    pool: String,
    /// Its volume.
    volume: String,
    /// Its format.
    format: Format,
    /// Size that a guest sees, in bytes.
    virtual_bytes: u64,
    /// Bytes that were copied.
    bytes: u64,
    /// Their sum.
    sha256: Sha256,
    /// Who had said that sum before.
    verified: Word,
}

/// Runs the verb.
pub fn run(args: &ImageAddArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("image add")?;
    let mut reporter = watch(cx.output)?;
    let mut source = Source::open(args)?;
    let hypervisor = cx.hypervisor()?;
    // What stands in the way is told before a long file is read.
    if !args.dry_run {
        refuse_unfinished(&*hypervisor, cx.output)?;
    }
    refuse(&*hypervisor, &args.pool.pool, &source)?;
    let sha256 = sum(&mut source, &mut reporter, cx.output)?;
    warn(&source, cx.output);
    if args.dry_run {
        print_steps(&plan(&*hypervisor, &args.pool.pool, &source, sha256)?, cx)?;
        return Ok(EXIT_DONE);
    }
    let lock = reporter.lock(args.lock.wait())?;
    let steps = plan(&*hypervisor, &args.pool.pool, &source, sha256)?;
    let journal = journal("image add", source.name.as_str(), &*hypervisor)?;
    let mut transaction = Transaction::new(&*hypervisor, &mut reporter, Some(journal));
    let is_copy = |step: &Step| matches!(step, Step::FillVolume { .. });
    let (short, long) = steps.split_at(steps.iter().position(is_copy).unwrap_or(steps.len()));
    transaction.run(short)?;
    // From here on the pool says that the name is taken and the image not whole.
    drop(lock);
    transaction.run(long)?;
    transaction.close()?;
    answer(args, source, sha256, cx.output)?;
    Ok(EXIT_DONE)
}

/// Sums the file, with a bar. Nothing is begun, so a signal ends the program.
fn sum(source: &mut Source, reporter: &mut Watch, output: Output) -> anyhow::Result<Sha256> {
    output.progress(&format!("sum {}", source.path.display()));
    let bytes = source.bytes;
    let summed = source.sum(&mut |through| {
        reporter.progress(through, bytes);
        true
    });
    reporter.clear();
    summed
}

/// Says what is worse than it could be.
fn warn(source: &Source, output: Output) {
    let shown = source.path.display();
    if source.word == Word::None {
        output.warning(&format!(
            "{shown} is not verified: no --sha256 is given, and no SHA256SUMS beside it lists it"
        ));
    }
    if !source.content.boots {
        output.warning(&format!(
            "{shown} is taken for raw bytes of a disk, but has no boot record: a guest may not start from it"
        ));
    }
}

/// Refuses a name that an image has, and a pool that cannot take the file.
fn refuse(hypervisor: &dyn Hypervisor, pool_name: &str, source: &Source) -> anyhow::Result<()> {
    let (storage, name) = (hypervisor.storage(), &source.name);
    let Some(pool) = file_pool(storage, pool_name, POOL)? else { return Ok(()) };
    if images(storage, pool_name)?.iter().any(|image| image.name == *name) {
        return Err(ImageError::Exists {
            pool_name: pool_name.to_string(),
            name: name.to_string(),
        }
        .hint(format!(
            "choose another --name, or `gpuvm image remove {name}` first",
            name = word(&name.to_string())
        )));
    }
    if pool.available_bytes < source.bytes {
        let size = |bytes: u64| MemSize::from_kib(bytes / 1024);
        return Err(ImageError::PoolFull {
            pool_name: pool_name.to_string(),
            left: size(pool.available_bytes).to_string(),
            file: source.path.display().to_string(),
            size: size(source.bytes).to_string(),
        }
        .hint("remove what is not used (`gpuvm image list`), or name another --pool"));
    }
    Ok(())
}

/// The steps that copy a file into the pool.
fn plan(
    hypervisor: &dyn Hypervisor,
    pool_name: &str,
    source: &Source,
    sha256: Sha256,
) -> anyhow::Result<Vec<Step>> {
    refuse(hypervisor, pool_name, source)?;
    let mut steps = Vec::new();
    if file_pool(hypervisor.storage(), pool_name, POOL)?.is_none() {
        steps.push(Step::MakePool { name: pool_name.to_owned(), path: POOL_DIR.into() });
    }
    let pool = || pool_name.to_owned();
    let name = volume_name(&source.name, source.content.format);
    // Whatever the format, the file's bytes come as they are: an empty qcow2 made first could be the longer one, and
    // its end would stay behind. libvirt reads the format from the content when it has come. All of it is taken from
    // the pool first, because libvirtd 11.3 ends with a double free where the pool is full in the middle of a stream.
    let volume = |name: &str, bytes: u64| NewVolume {
        name: name.to_owned(),
        format: Format::Raw.to_string(),
        capacity_bytes: bytes,
        preallocated: true,
        backing: None,
        mode: MODE,
    };
    // The marker is the first to come and the last to go, also where all is undone.
    let marker = marker_name(&source.name);
    for volume in [volume(&marker, 0), volume(&name, source.bytes)] {
        steps.push(Step::MakeVolume { pool: pool(), volume, from: None });
    }
    steps.push(Step::FillVolume {
        pool: pool(),
        name: name.clone(),
        source: source.path.clone(),
        bytes: source.bytes,
        sha256: Some(sha256),
    });
    steps.push(Step::CheckVolume {
        pool: pool(),
        name,
        format: source.content.format.to_string(),
        capacity_bytes: source.content.virtual_bytes,
        bytes: source.bytes,
        sha256,
    });
    steps.push(Step::DeleteVolume { pool: pool(), name: marker, file: None });
    Ok(steps)
}

/// Prints the answer.
fn answer(
    args: &ImageAddArgs,
    source: Source,
    sha256: Sha256,
    output: Output,
) -> std::io::Result<()> {
    let Source { name, content, bytes, word, .. } = source;
    let added = Added {
        volume: volume_name(&name, content.format),
        name,
        pool: args.pool.pool.clone(),
        format: content.format,
        virtual_bytes: content.virtual_bytes,
        bytes,
        sha256,
        verified: word,
    };
    if output.json {
        return output.json("gpuvm-image-added", &added);
    }
    let Added { name, pool, format, virtual_bytes, .. } = &added;
    let size = MemSize::from_kib(virtual_bytes / 1024);
    let by = match &added.verified {
        Word::Given => "as given".to_owned(),
        Word::Listed(list) => format!("as {} says", list.display()),
        Word::None => "not verified".to_owned(),
    };
    output.text(&format!("{name}: {format} of {size} in pool {pool}\nSHA-256 {sha256} ({by})"))
}
