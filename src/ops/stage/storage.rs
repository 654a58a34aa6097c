//! Pools of the hypervisor in memory: directories whose files are the volumes.

use super::fake::Fake;
use crate::domain::guest::Abilities;
use crate::hypervisor::storage::{NewVolume, Pool, Progress, Storage, Volume, VolumeId};
use crate::hypervisor::{HypervisorError, HypervisorErrorKind};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek as _, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Free bytes of every pool.
const LEFT: u64 = 1 << 20;

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

    /// The names of a pool's volumes; none: there is no such pool.
    pub(crate) fn names(&self, pool: &str) -> Vec<String> {
        if !self.pools.borrow().contains_key(pool) {
            return Vec::new();
        }
        self.volumes(pool).unwrap().into_iter().map(|volume| volume.name).collect()
    }

    /// Adds an existing pool.
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
            volumes.push(Volume {
                pool: pool.to_owned(),
                name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                path,
                format: if is_qcow2 { "qcow2" } else { "raw" }.to_owned(),
                capacity_bytes: bytes.len().try_into().unwrap_or_default(),
                allocation_bytes: bytes.len().try_into().unwrap_or_default(),
                backing: None,
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
        let made = made.and_then(|file| file.set_len(new.capacity_bytes));
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
