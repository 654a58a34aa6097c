//! Pools of the hypervisor in memory: directories whose files are the volumes.

use super::fake::Fake;
use crate::domain::guest::Abilities;
use crate::hypervisor::storage::{NewVolume, Pool, Progress, Storage, Volume, VolumeId};
use crate::hypervisor::{HypervisorError, HypervisorErrorKind};
use crate::image;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek as _, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Free bytes of every pool.
const LEFT: u64 = 1 << 20;

/// An image over another: a qcow2 header of version 3 with the size and the name
/// (docs/interop/qcow2), and no content.
fn overlay(bytes: u64, below: &Path) -> Vec<u8> {
    let name = below.as_os_str().as_encoded_bytes();
    let mut image = vec![0; 104];
    image[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    image[8..16].copy_from_slice(&112_u64.to_be_bytes());
    image[16..20].copy_from_slice(&u32::try_from(name.len()).unwrap().to_be_bytes());
    image[20..24].copy_from_slice(&16_u32.to_be_bytes());
    image[24..32].copy_from_slice(&bytes.to_be_bytes());
    image[36..40].copy_from_slice(&1_u32.to_be_bytes());
    image[40..48].copy_from_slice(&0x800_u64.to_be_bytes());
    image[100..104].copy_from_slice(&104_u32.to_be_bytes());
    image.resize(112, 0);
    image.extend_from_slice(name);
    image.resize(0x808, 0);
    image
}

/// Has a guest write on an image over another: its table of clusters names one.
pub(crate) fn write_on(image: &Path) {
    let mut bytes = fs::read(image).unwrap();
    assert!(bytes.starts_with(b"QFI\xfb"), "{}", image.display());
    bytes[0x807] = 1;
    fs::write(image, bytes).unwrap();
}

/// The error of a failed call.
fn failed(doing: &str) -> impl Fn(io::Error) -> HypervisorError {
    move |error| HypervisorError {
        kind: HypervisorErrorKind::Other,
        doing: doing.to_owned(),
        message: error.to_string(),
    }
}

impl Fake {
    /// The path of a volume.
    pub(crate) fn volume(&self, pool: &str, name: &str) -> PathBuf {
        self.pools.borrow()[pool].path().join(name)
    }

    /// The names of a pool's volumes; none if there is no such pool.
    pub(crate) fn names(&self, pool: &str) -> Vec<String> {
        if !self.pools.borrow().contains_key(pool) {
            return Vec::new();
        }
        self.volumes(pool).unwrap().into_iter().map(|volume| volume.name).collect()
    }

    pub(crate) fn put_pool(&self, name: &str) {
        self.pools.borrow_mut().insert(name.to_owned(), tempfile::tempdir().unwrap());
    }
}

impl Storage for Fake {
    fn abilities(&self) -> Abilities {
        Abilities { queue_mapping: self.maps_queues.get(), ..Abilities::default() }
    }
    fn pools(&self) -> Result<Vec<Pool>, HypervisorError> {
        let pool = |(name, dir): (&String, &tempfile::TempDir)| Pool {
            name: name.clone(),
            kind: "dir".into(),
            path: Some(dir.path().to_owned()),
            active: true,
            capacity_bytes: 2 * LEFT,
            available_bytes: LEFT,
        };
        Ok(self.pools.borrow().iter().map(pool).collect())
    }
    fn makes_pools(&self) -> Result<bool, HypervisorError> {
        Ok(!self.has_no_storage.get())
    }
    fn make_pool(&self, name: &str, _: &Path, _: Option<&str>) -> Result<(), HypervisorError> {
        self.call("make a pool")?;
        self.put_pool(name);
        Ok(())
    }
    fn forget_pool(&self, name: &str) -> Result<(), HypervisorError> {
        self.call("forget a pool")?;
        self.pools.borrow_mut().remove(name);
        Ok(())
    }
    fn volume_id(&self, pool: &str, name: &str) -> Result<Option<VolumeId>, HypervisorError> {
        let all = self.volumes(pool)?;
        let found = all.into_iter().find(|volume| volume.name == name);
        Ok(found.map(|volume| VolumeId {
            key: volume.path.display().to_string(),
            path: volume.path,
            capacity_bytes: volume.capacity_bytes,
        }))
    }
    fn volumes(&self, pool: &str) -> Result<Vec<Volume>, HypervisorError> {
        let pools = self.pools.borrow();
        let Some(dir) = pools.get(pool) else { return Ok(Vec::new()) };
        let mut volumes = Vec::new();
        for entry in fs::read_dir(dir.path()).map_err(failed("list a pool"))? {
            let path = entry.map_err(failed("list a pool"))?.path();
            let bytes = fs::read(&path).map_err(failed("read a volume"))?;
            let is_qcow2 = bytes.starts_with(b"QFI\xfb");
            let long = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
            let below = || image::below(&mut io::Cursor::new(&bytes)).unwrap().pop();
            let backing = below().map(|below| PathBuf::from(below.name));
            let own_bytes = bytes.len().try_into().unwrap_or_default();
            volumes.push(Volume {
                pool: pool.to_owned(),
                name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                path,
                format: if is_qcow2 { "qcow2" } else { "raw" }.to_owned(),
                capacity_bytes: if backing.is_some() { long(24) } else { own_bytes },
                allocation_bytes: own_bytes,
                backing,
                modified_ns: Some(7),
            });
        }
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(volumes)
    }
    fn make_volume(&self, pool: &str, new: &NewVolume) -> Result<PathBuf, HypervisorError> {
        self.call("make a volume")?;
        let path = self.volume(pool, &new.name);
        let made = OpenOptions::new().write(true).create_new(true).open(&path);
        let made = made.and_then(|mut file| match &new.backing {
            None => file.set_len(new.capacity_bytes),
            Some((below, _)) => file.write_all(&overlay(new.capacity_bytes, below)),
        });
        made.map_err(failed("make a volume")).map(|()| path)
    }
    fn copy_volume(
        &self,
        pool: &str,
        new: &NewVolume,
        from: (&str, &str),
    ) -> Result<PathBuf, HypervisorError> {
        self.call("copy a volume")?;
        let path = self.volume(pool, &new.name);
        let copied = fs::copy(self.volume(from.0, from.1), &path);
        copied.map_err(failed("copy a volume")).map(|_| path)
    }
    fn grow_volume(&self, pool: &str, name: &str, bytes: u64) -> Result<(), HypervisorError> {
        self.call("grow a volume")?;
        let file = OpenOptions::new().write(true).open(self.volume(pool, name));
        file.and_then(|file| file.set_len(bytes)).map_err(failed("grow a volume"))
    }
    fn delete_volume(&self, pool: &str, name: &str) -> Result<(), HypervisorError> {
        self.call("delete a volume")?;
        fs::remove_file(self.volume(pool, name)).map_err(failed("delete a volume"))
    }
    fn upload(
        &self,
        pool: &str,
        name: &str,
        from: &mut dyn Read,
        progress: Progress<'_>,
    ) -> Result<(), HypervisorError> {
        self.call("fill a volume")?;
        let file = OpenOptions::new().write(true).open(self.volume(pool, name));
        let through = file.and_then(|mut file| io::copy(from, &mut file));
        progress(through.map_err(failed("fill a volume"))?);
        Ok(())
    }
    fn download(
        &self,
        pool: &str,
        name: &str,
        range: Range<u64>,
        to: &mut dyn Write,
    ) -> Result<(), HypervisorError> {
        let read = File::open(self.volume(pool, name)).and_then(|mut file| {
            file.seek(SeekFrom::Start(range.start))?;
            io::copy(&mut file.take(range.end - range.start), to)
        });
        read.map(drop).map_err(failed("read a volume"))
    }
}
