//! Images: the volumes of one libvirt pool that guests are made from.
//!
//! An image is a volume `NAME.raw` or `NAME.qcow2` without a backing file. libvirt is the only
//! database: format, sizes and time of an image are what libvirt reads from the volume, and nothing
//! else is stored. A checksum that was right when the image was added says nothing about its bytes
//! today, so it is checked on import, printed, and not stored; to check today, sum today's bytes
//! (`virsh vol-download`). Volumes are created with mode 0444: QEMU can read them and use them as
//! backing files, and a guest that gets one as its disk by mistake cannot write to it.
//!
//! A copy may take long, and other changes of the host must not wait for it. So the host's lock is
//! released once the volume exists, and until its copy is complete an empty volume `NAME.adding`
//! beside it marks it as incomplete. Every machine that uses the pool sees the marker.

pub mod add;
pub mod error;
pub mod fetch;
pub mod list;
mod name;
pub mod remove;
pub mod source;

use crate::apply::RESERVATION;
use crate::error::{Class, Coded as _, Result, classed};
use crate::hypervisor::Hypervisor;
use crate::hypervisor::storage::{Storage, Volume};
use crate::image::{Format, ImageName};
use crate::pools::file_pool;
use crate::shell::word;
use error::ImageError;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The default pool of images, created when the first is added.
pub const POOL: &str = "gpuvm-images";

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Image {
    /// Its name.
    pub name: ImageName,
    /// Its pool.
    pub pool: String,
    /// Its volume in the pool.
    pub volume: String,
    /// Where it is on the hypervisor's machine.
    pub path: PathBuf,
    /// Its format, by the volume's name; libvirt reads the same from its content where `fault` is
    /// none.
    pub format: Format,
    /// Size seen by a guest, in bytes.
    pub virtual_bytes: u64,
    /// Bytes that it occupies now.
    pub disk_bytes: u64,
    /// When it was last written, in nanoseconds since 1970; `None` if libvirt does not report it.
    pub modified_ns: Option<u64>,
    /// Why no guest can be made from it; `None` if one can.
    pub fault: Option<String>,
}

impl Image {
    /// A volume as an image; none if its name is not that of an image.
    fn of(volume: Volume) -> Option<Image> {
        let (name, format) = [Format::Raw, Format::Qcow2].into_iter().find_map(|format| {
            let name = volume.name.strip_suffix(&format!(".{format}"))?;
            Some((ImageName::new(name).ok()?, format))
        })?;
        let fault = match &volume.backing {
            Some(file) => Some(format!("it is an overlay on {}", file.display())),
            None if volume.format != format.to_string() => {
                Some(format!("it is named {format}, and libvirt reads {}", volume.format))
            }
            None => None,
        };
        Some(Image {
            name,
            pool: volume.pool,
            volume: volume.name,
            path: volume.path,
            format,
            virtual_bytes: volume.capacity_bytes,
            disk_bytes: volume.allocation_bytes,
            modified_ns: volume.modified_ns,
            fault,
        })
    }
}

/// The name of the marker volume beside an image whose copy is incomplete.
pub fn marker_name(name: &ImageName) -> String {
    format!("{name}{RESERVATION}")
}

/// The name of an image's volume.
pub fn volume_name(name: &ImageName, format: Format) -> String {
    format!("{name}.{format}")
}

/// The images of a pool, newest first.
pub fn images(storage: &dyn Storage, name: &str) -> Result<Vec<Image>> {
    if file_pool(storage, name, POOL)?.is_none() {
        return Ok(Vec::new());
    }
    let volumes = storage.volumes(name)?;
    let names: BTreeSet<String> = volumes.iter().map(|volume| volume.name.clone()).collect();
    let mut images: Vec<Image> = volumes.into_iter().filter_map(Image::of).collect();
    for image in &mut images {
        if names.contains(&marker_name(&image.name)) {
            image.fault =
                Some("its copy is not whole: it is being added, or was broken off".into());
        }
    }
    // The sort is stable: images of the same time stay sorted by name.
    images.sort_by_key(|image| std::cmp::Reverse(image.modified_ns));
    Ok(images)
}

/// The image that a guest is made from: the one of this name, or the newest that has no fault.
pub fn resolve(hypervisor: &dyn Hypervisor, pool: &str, name: Option<&ImageName>) -> Result<Image> {
    let images = images(hypervisor.storage(), pool)?;
    let Some(name) = name else {
        let sound = images.into_iter().find(|image| image.fault.is_none());
        return sound.ok_or_else(|| {
            let message = format!("pool `{pool}` holds no image that a guest can be made from");
            classed(Class::NotFound, message, "`gpuvm image add debian-13` fetches one")
        });
    };
    let image = find(images, pool, name)?;
    match &image.fault {
        None => Ok(image),
        Some(fault) => {
            Err(ImageError::Unusable { name: name.to_string(), fault: fault.to_string() }.hint(
                format!(
                    "remove it (`gpuvm image remove {name}`) and add it again",
                    name = word(&name.to_string())
                ),
            ))
        }
    }
}

/// The image of a name among those of a pool.
pub fn find(images: Vec<Image>, pool: &str, name: &ImageName) -> Result<Image> {
    let there: Vec<String> = images.iter().map(|image| image.name.to_string()).collect();
    images.into_iter().find(|image| image.name == *name).ok_or_else(|| {
        let hint = if there.is_empty() {
            "`gpuvm image add FILE` adds one, `gpuvm image list --known` has those that it fetches"
                .to_owned()
        } else {
            format!("there are: {}", there.join(", "))
        };
        classed(Class::NotFound, format!("pool `{pool}` has no image `{name}`"), hint)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pools::IMAGES_DIR;

    /// A volume of this name as libvirt reads it.
    fn volume(name: &str, format: &str, backing: Option<&str>) -> Volume {
        Volume {
            pool: POOL.into(),
            name: name.into(),
            path: PathBuf::from(IMAGES_DIR).join(name),
            format: format.into(),
            capacity_bytes: 3 << 30,
            allocation_bytes: 1 << 30,
            backing: backing.map(PathBuf::from),
            modified_ns: Some(7),
        }
    }

    #[test]
    fn an_image_is_a_volume_named_after_its_format_that_stands_alone() {
        let image = Image::of(volume("a.b.qcow2", "qcow2", None)).unwrap();
        assert_eq!((image.name.as_str(), image.format, image.fault), ("a.b", Format::Qcow2, None));
        assert_eq!(volume_name(&image.name, image.format), "a.b.qcow2");
        for name in ["a.img", ".raw", "raw", "a b.raw", "-x.qcow2"] {
            assert_eq!(Image::of(volume(name, "raw", None)), None, "{name}");
        }
        let fault = |name, format, backing| Image::of(volume(name, format, backing)).unwrap().fault;
        assert!(fault("a.qcow2", "raw", None).unwrap().contains("libvirt reads raw"));
        assert!(fault("a.raw", "qcow2", None).unwrap().contains("named raw"));
        assert!(fault("a.qcow2", "qcow2", Some("/x")).unwrap().contains("an overlay on /x"));
    }
}
