//! The boot disk: created from an image, blank, or an existing one.

use super::existing::existing_disk;
use super::{Disks, ImageRequest, OsDisk, Place, StorageError, StorageRequest};
use crate::apply::{FileStep, Preallocate, Step, VolumeStep};
use crate::domain::guest::{Disk, DiskFormat, DiskKind, Made, Role, VolumeRef};
use crate::error::{Coded as _, Result};
use crate::hypervisor::Hypervisor;
use crate::hypervisor::storage::NewVolume;
use crate::images::{self, Image};
use crate::memsize::MemSize;
use crate::paths::path_text;
use crate::pools::IMAGES_DIR;
use std::path::{Path, PathBuf};

/// Directory of a blank boot disk if none is named.
const BLANK_DIR: &str = "/var/lib/libvirt/images";

/// Adds the disks that the guest boots from. Returns whether they are created from an image.
pub(super) fn add(place: &Place<'_>, disks: &mut Disks) -> Result<bool> {
    let wanted = place.wanted;
    if !wanted.disk.is_empty() {
        for path in &wanted.disk {
            place.refuse_elsewhere(&format!("disk {}", path.display()))?;
            existing_disk(path, place.trusted(), disks)?;
        }
        return Ok(false);
    }
    let named = match &wanted.image {
        ImageRequest::Blank => return blank(place, disks).map(|()| false),
        ImageRequest::Newest if wanted.disk_dir.is_some() => {
            return blank(place, disks).map(|()| false);
        }
        ImageRequest::Named(name) => Some(name),
        ImageRequest::Newest => None,
    };
    let image = match place.hypervisor.filter(|_| place.seed.is_some()) {
        Some(hypervisor) => Some(images::resolve(hypervisor, &wanted.image_pool, named)?),
        None => None,
    };
    disks.image = image.as_ref().map(|image| image.name.to_string());
    let source = VolumeRef {
        pool: wanted.image_pool.clone(),
        name: match (&image, named) {
            (Some(image), _) => image.volume.clone(),
            (None, Some(name)) => name.to_string(),
            // No image is examined if the steps are only printed, or not even printed.
            (None, None) => "<the newest image>".to_owned(),
        },
    };
    of_image(place, disks, image.as_ref(), source).map(|()| true)
}

/// Refuses a guest whose image is missing, before its place is known.
pub fn refuse_without_image(wanted: &StorageRequest, hypervisor: &dyn Hypervisor) -> Result<()> {
    let named = match &wanted.image {
        ImageRequest::Blank => return Ok(()),
        ImageRequest::Newest if wanted.disk_dir.is_some() => return Ok(()),
        ImageRequest::Named(name) => Some(name),
        ImageRequest::Newest => None,
    };
    if wanted.disk.is_empty() {
        images::resolve(hypervisor, &wanted.image_pool, named)?;
    }
    Ok(())
}

/// Plans a blank boot disk, sparse, as a file.
fn blank(place: &Place<'_>, disks: &mut Disks) -> Result<()> {
    place.refuse_elsewhere("a blank boot disk")?;
    let dir = place.wanted.disk_dir.clone().unwrap_or_else(|| PathBuf::from(BLANK_DIR));
    let path = std::path::absolute(dir.join(format!("{}.raw", place.planned.name)))?;
    let text = path_text(&path)?;
    let bytes = place.wanted.os_size.kib() * 1024;
    let disk = Disk::new(&text, DiskFormat::Raw, DiskKind::File);
    let made = Made { role: Role::Os, path: text, volume: None };
    let preallocate = Preallocate::None;
    disks.make(
        [Step::File(FileStep::CreateDisk { path, bytes, preallocate, from: None, sha256: None })],
        disk,
        made,
    );
    Ok(())
}

/// Plans a boot disk that is created from an image.
fn of_image(
    place: &Place<'_>,
    disks: &mut Disks,
    image: Option<&Image>,
    source: VolumeRef,
) -> Result<()> {
    let (pool, bytes) = (&place.wanted.pool, place.wanted.os_size.kib() * 1024);
    if let Some(image) = image.filter(|image| image.virtual_bytes > bytes) {
        let size = MemSize::from_kib(image.virtual_bytes.div_ceil(1024));
        return Err(StorageError::SmallerThanImage {
            wanted: place.wanted.os_size.to_string(),
            image: image.name.to_string(),
            size: size.to_string(),
        }
        .hint(format!("--os-size {} or more", size.typed())));
    }
    let (dir, make_pool) = place.pool()?;
    let name = format!("{}.os", place.planned.name);
    let path = path_text(&dir.join(&name))?;
    let mut steps: Vec<Step> = make_pool.into_iter().collect();
    let new = |format: DiskFormat, bytes, backing| NewVolume {
        name: name.clone(),
        format: format.as_str().to_owned(),
        capacity_bytes: bytes,
        preallocated: false,
        backing,
        mode: 0o600,
    };
    let (format, pool) = match place.wanted.os_disk {
        kind @ (OsDisk::Clone | OsDisk::Qcow2) => {
            let copied = image.map_or(bytes, |image| image.virtual_bytes);
            let format = if kind == OsDisk::Clone { DiskFormat::Raw } else { DiskFormat::Qcow2 };
            let volume = new(format, copied, None);
            steps.push(VolumeStep::Make { pool: pool.clone(), volume, from: Some(source) }.into());
            if copied < bytes {
                let (pool, name) = (pool.clone(), name.clone());
                steps.push(VolumeStep::Grow { pool, name, bytes }.into());
            }
            (format, pool)
        }
        OsDisk::Overlay => {
            let below = match image {
                Some(image) => (image.path.clone(), image.format.to_string()),
                None => (Path::new(IMAGES_DIR).join(&source.name), "qcow2".to_owned()),
            };
            let volume = new(DiskFormat::Qcow2, bytes, Some(below));
            steps.push(VolumeStep::Make { pool: pool.clone(), volume, from: None }.into());
            (DiskFormat::Qcow2, pool)
        }
    };
    let volume = Some(VolumeRef { pool: pool.clone(), name });
    let disk = Disk::new(&path, format, DiskKind::File);
    disks.make(steps, disk, Made { role: Role::Os, path, volume });
    Ok(())
}
