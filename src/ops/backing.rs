//! The images below an image, as its own header names them. A header is the word of whoever wrote
//! the image: a guest can write one to its raw disk, and QEMU then opens any file of the host, of
//! another tenant, or a server. So only images beside it are opened without the admin's word, what
//! gpuvm made raw is raw, and the definition states the whole chain, so that no header is read
//! again.

use crate::apply::disk_format_made;
use crate::disks::of_host;
use crate::domain::DomainXml;
use crate::domain::disk_change::target_of;
use crate::domain::guest::{BackingImage, DiskFormat, DiskKind};
use crate::error::{Coded, Error};
use crate::image::{self, Format};
use crate::input::{open_block, open_regular};
use crate::paths::path_text;
use crate::pools::IMAGES_DIR;
use crate::shell::word;
use gpuvm_core::check::{DiskFact, DiskFault};
use gpuvm_core::image::{Below, below};
use std::fs::File;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

const MOST_BACKING: usize = 32;

/// The known facts about images besides their own bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trusted<'a> {
    /// Names of images that the admin accepts below others: paths, or QEMU's own words.
    pub accepted: &'a [String],
    /// The directory of gpuvm's records.
    pub state: &'a Path,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    /// From the top down. `None` if an accepted one is no file, so QEMU has to read its name
    /// itself.
    pub images: Option<Vec<BackingImage>>,
    /// Their names, as the images have them.
    pub names: Vec<String>,
}

/// The reason that files named by an image are not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The name, as the image has it.
    pub name: String,
    /// The reason.
    pub why: String,
    /// The option that accepts it; `None` if there is none.
    pub accept: Option<String>,
}

/// The reason a guest does not get an image.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "backing-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum BackingError {
    /// The image names a file that is opened only if the admin names it.
    #[error("disk `{at}` is refused: its image has a backing file, {name}: {why}")]
    Untrusted {
        at: String,
        /// The name, as the image has it.
        name: String,
        why: String,
    },
}

impl Coded for BackingError {}

/// Returns the error of an image that names files which a guest must not get on the image's word
/// alone.
pub(crate) fn untrusted(path: &Path, refused: Refused) -> Error {
    let Refused { name, why, accept } = refused;
    let at = path.display().to_string();
    let shown = format!("`qemu-img info {}` shows its header", word(&at));
    let hint = match accept {
        None => format!("{shown}; an image of unknown origin is not given to a guest"),
        Some(accept) => format!(
            "{shown}; if you trust the maker of the image, --accept-backing {} accepts it",
            word(&accept)
        ),
    };
    BackingError::Untrusted { at, name, why }.hint(hint)
}

impl Refused {
    /// The refusal of a name that nothing accepts.
    fn always(name: &str, why: impl Into<String>) -> Refused {
        Refused { name: name.to_owned(), why: why.into(), accept: None }
    }

    /// The refusal of a name that the admin may accept.
    fn unless(name: &str, why: impl Into<String>, accept: impl Into<String>) -> Refused {
        Refused { name: name.to_owned(), why: why.into(), accept: Some(accept.into()) }
    }
}

/// The format in which gpuvm made an image; `None` if unknown.
pub(crate) fn format_made(path: &Path, state: &Path) -> Option<DiskFormat> {
    match disk_format_made(state, path)?.as_str() {
        "raw" => Some(DiskFormat::Raw),
        "qcow2" => Some(DiskFormat::Qcow2),
        _ => None,
    }
}

/// Returns the images below a qcow2 image, or the first that is not accepted.
pub(crate) fn chain(top: &Path, trusted: Trusted<'_>) -> Result<Chain, Refused> {
    let mut chain = Chain { images: Some(Vec::new()), names: Vec::new() };
    let mut above = top.to_owned();
    for _ in 0..MOST_BACKING {
        let Some(named) = named(&above)? else { return Ok(chain) };
        chain.names.push(named.name.clone());
        let Some(path) = path_in(&named.name, trusted.accepted)? else {
            chain.images = None;
            return Ok(chain);
        };
        let image = real(&path, &above, &named.name)?;
        judge(&image, (top, &above), &named.name, trusted)?;
        let kind = kind(&image, &named.name)?;
        let format = format(&image, kind, &named, trusted)?;
        let text =
            path_text(&image).map_err(|error| Refused::always(&named.name, error.to_string()))?;
        chain.images.get_or_insert_default().push(BackingImage { path: text, format, kind });
        if format == DiskFormat::Raw {
            return Ok(chain);
        }
        above = image;
    }
    let name = top.display().to_string();
    Err(Refused::always(&name, format!("more than {MOST_BACKING} images are below it")))
}

/// The image that an image names below itself; `None` if it is standalone.
fn named(above: &Path) -> Result<Option<Below>, Refused> {
    let name = above.display().to_string();
    let refused = |why: String| Refused::always(&name, why);
    let mut file = opened(above).map_err(refused)?;
    // Refuses an external data file and every format but raw and qcow2.
    let found = image::disk(&mut file).map_err(|error| refused(error.to_string()))?;
    if found.backing.is_none() {
        return Ok(None);
    }
    let all = below(&mut file).map_err(|error| refused(error.to_string()))?;
    // An external data file is refused above; a leftover name of one is not used.
    let last = all.into_iter().next_back();
    Ok(Some(last.unwrap_or(Below { name: String::new(), raw: false })))
}

fn opened(path: &Path) -> Result<File, String> {
    match path.metadata() {
        Ok(meta) if meta.file_type().is_block_device() => {
            open_block(path).map_err(|error| error.to_string())
        }
        _ => open_regular(path).map_err(|error| error.to_string()),
    }
}

/// The path in the name of an image; `None` if it is QEMU's word for something else, which is
/// accepted. As QEMU distinguishes them: a colon before the first slash ends the name of a
/// protocol.
fn path_in(name: &str, accepted: &[String]) -> Result<Option<PathBuf>, Refused> {
    if name.is_empty() || name.chars().any(char::is_control) {
        return Err(Refused::always(name, "it is no name of a file"));
    }
    match name.split('/').next().unwrap_or_default().split_once(':') {
        None => Ok(Some(PathBuf::from(name))),
        Some(_) if accepted.iter().any(|one| one == name) => Ok(None),
        Some((word, _)) => {
            let why =
                format!("QEMU opens that by its driver `{word}`, and not as a file beside it");
            Err(Refused::unless(name, why, name))
        }
    }
}

/// The file of a name, with its links resolved.
fn real(path: &Path, above: &Path, name: &str) -> Result<PathBuf, Refused> {
    let path = above.parent().unwrap_or(Path::new("/")).join(path);
    path.canonicalize()
        .map_err(|error| Refused::always(name, format!("{}: {error}", path.display())))
}

/// Refuses an image outside the directory of the one at the top, unless gpuvm or the admin vouches
/// for it.
fn judge(
    image: &Path,
    (top, above): (&Path, &Path),
    name: &str,
    trusted: Trusted<'_>,
) -> Result<(), Refused> {
    match of_host(image, true, false) {
        Ok(None) => {}
        Ok(Some(why)) => return Err(Refused::always(name, why)),
        Err(error) => return Err(Refused::always(name, error.to_string())),
    }
    let resolved = |path: &Path| path.canonicalize().ok();
    // As the image has it, or as the caller would name it.
    let beside = above.parent().unwrap_or(Path::new("."));
    let is_accepted = trusted.accepted.iter().any(|one| {
        [beside.join(one), PathBuf::from(one)]
            .iter()
            .any(|one| resolved(one).as_deref() == Some(image))
    });
    // A guest cannot write the header of an image that it never had raw.
    let is_ours = format_made(above, trusted.state) == Some(DiskFormat::Qcow2);
    let is_image = image.starts_with(IMAGES_DIR);
    if is_accepted || is_ours || is_image {
        return Ok(());
    }
    let shown = image.display().to_string();
    let beside = [
        top.parent().and_then(resolved),
        resolved(top).and_then(|top| top.parent().map(Into::into)),
    ];
    if !beside.iter().flatten().any(|dir: &PathBuf| image.parent() == Some(dir.as_path())) {
        return Err(Refused::unless(name, "it is not in the directory of the image", shown));
    }
    if disk_format_made(trusted.state, image).is_some() {
        return Err(Refused::unless(name, "gpuvm made it as a disk of another guest", shown));
    }
    Ok(())
}

fn kind(image: &Path, name: &str) -> Result<DiskKind, Refused> {
    let meta = image.metadata().map_err(|error| Refused::always(name, error.to_string()))?;
    Ok(if meta.file_type().is_block_device() { DiskKind::Block } else { DiskKind::File })
}

/// The format of an image below another one.
fn format(
    image: &Path,
    kind: DiskKind,
    named: &Below,
    trusted: Trusted<'_>,
) -> Result<DiskFormat, Refused> {
    if named.raw || kind == DiskKind::Block {
        return Ok(DiskFormat::Raw);
    }
    if let Some(made) = format_made(image, trusted.state) {
        return Ok(made);
    }
    let refused = |why: String| Refused::always(&named.name, why);
    let found = image::disk(&mut opened(image).map_err(refused)?);
    Ok(match found.map_err(|error| refused(format!("it {error}")))?.format {
        Format::Raw => DiskFormat::Raw,
        Format::Qcow2 => DiskFormat::Qcow2,
    })
}

/// Returns the disks of a domain whose image names others that gpuvm would not give a guest, unless
/// the definition states them.
pub(crate) fn facts(xml: &DomainXml, state: &Path) -> Vec<DiskFact> {
    let trusted = Trusted { accepted: &[], state };
    let mut facts = Vec::new();
    for (nth, disk) in xml.disks().enumerate() {
        let driver = disk.child("driver").and_then(|driver| driver.attr("type"));
        let is_read = driver.is_some_and(|format| format == "qcow2");
        let file = disk.child("source").and_then(|source| source.attr("file"));
        let Some(file) = file.filter(|_| is_read && disk.child("backingStore").is_none()) else {
            continue;
        };
        let path = Path::new(&*file);
        // Files that cannot be opened are reported by other rules.
        if opened(path).is_err() {
            continue;
        }
        if let Err(Refused { name, why, accept: Some(_) }) = chain(path, trusted) {
            let target = target_of(disk).unwrap_or_default();
            let why = format!("{file}: the image of disk `{target}` names {name}: {why}");
            facts.push(DiskFact { nth, fault: DiskFault::Backing, why });
        }
    }
    facts
}

#[cfg(test)]
mod tests;
