//! Pools and volumes through libvirt.

use super::super::storage::{NewVolume, Pool, Progress, Storage, Volume, VolumeId, xml};
use super::super::{HypervisorError, HypervisorErrorKind};
use super::support::supported;
use super::{Libvirt, abilities, error, is_unsupported};
use gpuvm_core::domain::guest::Abilities;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use virt::error::ErrorNumber;
use virt::storage_pool::StoragePool;
use virt::storage_vol::StorageVol;
use virt::stream::Stream;

/// How long libvirt may keep a volume busy after an upload: it refreshes the pool after the
/// stream's end, and refuses to delete the volume meanwhile (storageVolUploadFDStreamClosed,
/// libvirt 11).
const STILL_IN_USE: Duration = Duration::from_secs(10);

/// Bytes of one message of a stream; libvirt's own limit is 4 MiB.
const CHUNK: usize = 256 << 10;

impl Libvirt {
    fn pool(&self, doing: &str, name: &str) -> Result<StoragePool, HypervisorError> {
        self.connection().lookup_storage_pool_by_name(name).map_err(|e| error(doing, &e))
    }

    fn volume(&self, doing: &str, pool: &str, name: &str) -> Result<StorageVol, HypervisorError> {
        let pool = self.pool(doing, pool)?;
        pool.lookup_storage_vol_by_name(name).map_err(|e| error(doing, &e))
    }

    /// Makes a volume, empty or from another.
    fn make(
        &self,
        pool: &str,
        new: &NewVolume,
        from: Option<(&str, &str)>,
    ) -> Result<PathBuf, HypervisorError> {
        let doing = format!("make volume `{}` in pool `{pool}`", new.name);
        self.may_change()?;
        let found = self.pool(&doing, pool)?;
        let document = xml::new_volume(new);
        let made = match from {
            None => StorageVol::create_xml(&found, &document, 0),
            Some(from) => {
                let from = self.volume(&doing, from.0, from.1)?;
                StorageVol::create_xml_from(&found, &document, &from, 0)
            }
        };
        let path = made.and_then(|volume| volume.path()).map_err(|e| error(&doing, &e))?;
        Ok(path.into())
    }
}

impl Storage for Libvirt {
    fn abilities(&self) -> Abilities {
        let asked = self.asked.take().and_then(|asked| asked.join().ok());
        asked.unwrap_or_else(|| abilities::ask(&self.connection()))
    }

    fn ask_ahead(&self) {
        let connection = self.connection();
        self.asked.replace(Some(crate::quiet::spawn(move || abilities::ask(&connection))));
        if self.support.get().is_none() {
            let connection = self.connection();
            let ask = move || supported(&connection);
            self.supported.replace(Some(crate::quiet::spawn(ask)));
        }
    }

    fn pools(&self) -> Result<Vec<Pool>, HypervisorError> {
        let doing = format!("list the pools of {}", self.uri);
        let all = match self.connection().list_all_storage_pools(0) {
            // The embedded driver has no storage.
            Err(e) if is_unsupported(&e) => return Ok(Vec::new()),
            all => all.map_err(|e| error(&doing, &e))?,
        };
        let mut pools = Vec::with_capacity(all.len());
        for pool in &all {
            match summary(pool, &doing) {
                // Forgotten since it was listed.
                Err(e) if e.kind == HypervisorErrorKind::NoVolume => {}
                read => pools.push(read?),
            }
        }
        pools.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(pools)
    }

    fn makes_pools(&self) -> Result<bool, HypervisorError> {
        match self.connection().num_of_storage_pools() {
            Err(e) if is_unsupported(&e) => Ok(false),
            number => number
                .map(|_| true)
                .map_err(|e| error(&format!("count the pools of {}", self.uri), &e)),
        }
    }

    fn make_pool(&self, name: &str, dir: &Path, uuid: Option<&str>) -> Result<(), HypervisorError> {
        let doing = format!("make pool `{name}` over {}", dir.display());
        self.may_change()?;
        let document = xml::new_pool(name, dir, uuid);
        let pool = self
            .connection()
            .define_storage_pool_xml(&document, 0)
            .map_err(|e| error(&doing, &e))?;
        // Building creates the directory; drivers without directories refuse it.
        let ready = match pool.build(0) {
            Err(e) if !is_unsupported(&e) => Err(e),
            _ => pool.create(0).and_then(|()| pool.set_autostart(true)),
        };
        ready.map_err(|e| {
            // The pool was defined by this call; the first error is the one to report.
            let _ = pool.undefine();
            error(&doing, &e)
        })
    }

    fn pool_uuid(&self, name: &str) -> Result<Option<String>, HypervisorError> {
        let doing = format!("look for pool `{name}`");
        match self.connection().lookup_storage_pool_by_name(name) {
            Ok(pool) => pool.uuid_string().map(Some).map_err(|e| error(&doing, &e)),
            // A driver without storage has no pool.
            Err(e) if is_unsupported(&e) || e.code().is(ErrorNumber::NoStoragePool) => Ok(None),
            Err(e) => Err(error(&doing, &e)),
        }
    }

    fn volume_id(&self, pool: &str, name: &str) -> Result<Option<VolumeId>, HypervisorError> {
        let doing = format!("look for volume `{name}` of pool `{pool}`");
        let volume = match self.volume(&doing, pool, name) {
            Err(e) if e.kind == HypervisorErrorKind::NoVolume => return Ok(None),
            volume => volume?,
        };
        let failed = |e: virt::error::Error| error(&doing, &e);
        let info = volume.info().map_err(failed)?;
        Ok(Some(VolumeId {
            key: volume.key().map_err(failed)?,
            path: volume.path().map_err(failed)?.into(),
            capacity_bytes: info.capacity,
        }))
    }

    fn forget_pool(&self, name: &str) -> Result<(), HypervisorError> {
        let doing = format!("forget pool `{name}`");
        self.may_change()?;
        let pool = self.pool(&doing, name)?;
        let stopped = match pool.is_active() {
            Ok(true) => pool.destroy(),
            active => active.map(|_| ()),
        };
        stopped.map_err(|e| error(&doing, &e))?;
        // It refuses a directory that is not empty, and drivers without directories refuse it.
        let _ = pool.delete(0);
        pool.undefine().map_err(|e| error(&doing, &e))
    }

    fn find_files(&self, pool: &str, name: &str) -> Result<(), HypervisorError> {
        let doing = format!("look for volume `{name}` of pool `{pool}`");
        let found = self.pool(&doing, pool)?;
        let until = Instant::now() + STILL_IN_USE;
        loop {
            let refreshed = found.refresh(0);
            let is_known = found.lookup_storage_vol_by_name(name).is_ok();
            match refreshed {
                _ if is_known => return Ok(()),
                // A volume is being copied or filled.
                Err(e) if e.message().contains("asynchronous jobs running") => {}
                refreshed => refreshed.map_err(|e| error(&doing, &e))?,
            }
            if Instant::now() >= until {
                return Err(broken(&doing, "libvirt does not find its file".into()));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn is_busy(&self, pool: &str) -> Result<bool, HypervisorError> {
        let doing = format!("look at the files of pool `{pool}`");
        match self.pool(&doing, pool)?.refresh(0) {
            Err(e) if e.message().contains("asynchronous jobs running") => Ok(true),
            refreshed => refreshed.map(|_| false).map_err(|e| error(&doing, &e)),
        }
    }

    fn volumes(&self, pool: &str) -> Result<Vec<Volume>, HypervisorError> {
        let doing = format!("list the volumes of pool `{pool}`");
        let found = self.pool(&doing, pool)?;
        if self.read_only.is_none() {
            match found.refresh(0) {
                // A volume is being copied or filled; libvirt refreshes the pool once that has
                // ended.
                Err(e) if e.message().contains("asynchronous jobs running") => {}
                refreshed => refreshed.map_err(|e| error(&doing, &e))?,
            }
        }
        let all = found.list_all_volumes(0).map_err(|e| error(&doing, &e))?;
        let mut volumes = Vec::with_capacity(all.len());
        for volume in &all {
            match volume_of(pool, volume, &doing) {
                // Deleted since it was listed.
                Err(e) if e.kind == HypervisorErrorKind::NoVolume => {}
                read => volumes.push(read?),
            }
        }
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(volumes)
    }

    fn make_volume(&self, pool: &str, new: &NewVolume) -> Result<PathBuf, HypervisorError> {
        self.make(pool, new, None)
    }

    fn copy_volume(
        &self,
        pool: &str,
        new: &NewVolume,
        from: (&str, &str),
    ) -> Result<PathBuf, HypervisorError> {
        self.make(pool, new, Some(from))
    }

    fn grow_volume(&self, pool: &str, name: &str, bytes: u64) -> Result<(), HypervisorError> {
        let doing = format!("grow volume `{name}` of pool `{pool}`");
        self.may_change()?;
        self.volume(&doing, pool, name)?.resize(bytes, 0).map_err(|e| error(&doing, &e))
    }

    fn delete_volume(&self, pool: &str, name: &str) -> Result<(), HypervisorError> {
        let doing = format!("delete volume `{name}` of pool `{pool}`");
        self.may_change()?;
        let volume = self.volume(&doing, pool, name)?;
        let until = Instant::now() + STILL_IN_USE;
        loop {
            match volume.delete(0) {
                Err(e)
                    if e.code().known() == Some(ErrorNumber::OperationInvalid)
                        && Instant::now() < until =>
                {
                    std::thread::sleep(Duration::from_millis(50));
                }
                done => return done.map_err(|e| error(&doing, &e)),
            }
        }
    }

    fn upload(
        &self,
        pool: &str,
        name: &str,
        from: &mut dyn Read,
        progress: Progress<'_>,
    ) -> Result<(), HypervisorError> {
        let doing = format!("fill volume `{name}` of pool `{pool}`");
        self.may_change()?;
        let volume = self.volume(&doing, pool, name)?;
        let stream = Stream::new(&self.connection(), 0).map_err(|e| error(&doing, &e))?;
        volume.upload(&stream, 0, 0, 0).map_err(|e| error(&doing, &e))?;
        let sent = send(&stream, from, progress, &doing);
        match sent {
            Ok(()) => stream.finish().map_err(|e| error(&doing, &e)),
            Err(failed) => {
                // The stream is aborted; the first error is the one to report.
                let _ = stream.abort();
                Err(failed)
            }
        }
    }

    fn download(
        &self,
        pool: &str,
        name: &str,
        range: Range<u64>,
        to: &mut dyn Write,
    ) -> Result<(), HypervisorError> {
        let doing = format!("read volume `{name}` of pool `{pool}`");
        let volume = self.volume(&doing, pool, name)?;
        let stream = Stream::new(&self.connection(), 0).map_err(|e| error(&doing, &e))?;
        let length = range.end.saturating_sub(range.start);
        volume.download(&stream, range.start, length, 0).map_err(|e| error(&doing, &e))?;
        let mut buffer = vec![0; CHUNK];
        loop {
            let got = stream.recv(&mut buffer).map_err(|e| error(&doing, &e))?;
            match usize::try_from(got) {
                Ok(0) => break,
                Ok(got) => to.write_all(&buffer[..got]).map_err(|e| local(&doing, &e))?,
                Err(_) => return Err(broken(&doing, "the stream would block".into())),
            }
        }
        stream.finish().map_err(|e| error(&doing, &e))
    }
}

/// Sends everything that can be read.
fn send(
    stream: &Stream,
    from: &mut dyn Read,
    progress: Progress<'_>,
    doing: &str,
) -> Result<(), HypervisorError> {
    let mut buffer = vec![0; CHUNK];
    let mut through = 0;
    loop {
        let got = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(got) => got,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(local(doing, &e)),
        };
        let mut rest = &buffer[..got];
        while !rest.is_empty() {
            let sent = stream.send(rest).map_err(|e| error(doing, &e))?;
            let sent = usize::try_from(sent).ok().filter(|&sent| sent > 0);
            let Some(sent) = sent else {
                return Err(broken(doing, "the stream takes no more".into()));
            };
            rest = &rest[sent.min(rest.len())..];
        }
        through += got as u64;
        if !progress(through) {
            return Err(broken(doing, "broken off".into()));
        }
    }
}

/// Makes the error of the local file.
fn local(doing: &str, error: &io::Error) -> HypervisorError {
    broken(doing, error.to_string())
}

/// Makes an error without a libvirt code.
fn broken(doing: &str, message: String) -> HypervisorError {
    HypervisorError { kind: HypervisorErrorKind::Other, doing: doing.to_owned(), message }
}

fn summary(pool: &StoragePool, doing: &str) -> Result<Pool, HypervisorError> {
    let failed = |e: virt::error::Error| error(doing, &e);
    let text = pool.xml_desc(0).map_err(failed)?;
    let read: xml::Pool = xml::read(&text).map_err(|message| broken(doing, message))?;
    let info = pool.info().map_err(failed)?;
    Ok(Pool {
        name: read.name,
        kind: read.kind,
        path: read.target.path.map(PathBuf::from),
        active: pool.is_active().map_err(failed)?,
        capacity_bytes: info.capacity,
        available_bytes: info.available,
    })
}

fn volume_of(pool: &str, volume: &StorageVol, doing: &str) -> Result<Volume, HypervisorError> {
    let text = volume.xml_desc(0).map_err(|e| error(doing, &e))?;
    let read: xml::Volume = xml::read(&text).map_err(|message| broken(doing, message))?;
    let modified_ns = read.target.timestamps.as_ref().and_then(xml::Timestamps::modified_ns);
    let path = match read.target.path {
        Some(path) => path,
        None => volume.path().map_err(|e| error(doing, &e))?,
    };
    Ok(Volume {
        pool: pool.to_owned(),
        name: read.name,
        path: path.into(),
        format: read.target.format.map_or("raw".into(), |format| format.name),
        capacity_bytes: read.capacity.number,
        allocation_bytes: read.allocation.map_or(0, |allocation| allocation.number),
        backing: read.backing.and_then(|backing| backing.path).map(PathBuf::from),
        modified_ns,
    })
}
