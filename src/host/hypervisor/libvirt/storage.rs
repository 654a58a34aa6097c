//! Pools and volumes through libvirt.

use super::super::storage::{NewVolume, Pool, Progress, Storage, Volume, VolumeId, xml};
use super::super::{HypervisorError, HypervisorErrorKind};
use super::call::Call::{Changes, Reads, Waits, Works};
use super::call::{Failed, ask, call, call_as, is_unsupported};
use super::support::supported;
use super::{Libvirt, abilities};
use gpuvm_core::domain::guest::Abilities;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use virt::error::{Error, ErrorNumber};
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
    fn pool(&self, name: &str) -> Result<StoragePool, Error> {
        self.connection().lookup_storage_pool_by_name(name)
    }

    fn volume(&self, pool: &str, name: &str) -> Result<StorageVol, Error> {
        self.pool(pool)?.lookup_storage_vol_by_name(name)
    }

    /// Finds a volume that is to be changed.
    fn volume_to_change(&self, pool: &str, name: &str) -> Result<StorageVol, Failed> {
        self.may_change()?;
        Ok(self.volume(pool, name)?)
    }

    /// Makes a volume, empty or from another.
    fn make(
        &self,
        pool: &str,
        new: &NewVolume,
        from: Option<(&str, &str)>,
    ) -> Result<PathBuf, Failed> {
        self.may_change()?;
        let found = self.pool(pool)?;
        let document = xml::new_volume(new);
        let made = match from {
            None => StorageVol::create_xml(&found, &document, 0),
            Some((pool, name)) => {
                StorageVol::create_xml_from(&found, &document, &self.volume(pool, name)?, 0)
            }
        };
        Ok(made?.path()?.into())
    }
}

impl Storage for Libvirt {
    fn abilities(&self) -> Abilities {
        ask(format_args!("what it can do with disks"), || {
            let asked = self.asked.take().and_then(|asked| asked.join().ok());
            asked.unwrap_or_else(|| abilities::ask(&self.connection()))
        })
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
        call(Reads, format_args!("list the pools of {}", self.uri), || {
            let all = match self.connection().list_all_storage_pools(0) {
                // The embedded driver has no storage.
                Err(e) if is_unsupported(&e) => return Ok(Vec::new()),
                all => all?,
            };
            let mut pools = Vec::with_capacity(all.len());
            for pool in &all {
                match summary(pool) {
                    // Forgotten since it was listed.
                    Err(e) if e.kind() == HypervisorErrorKind::NoVolume => {}
                    read => pools.push(read?),
                }
            }
            pools.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(pools)
        })
    }

    fn makes_pools(&self) -> Result<bool, HypervisorError> {
        call(Reads, format_args!("count the pools of {}", self.uri), || {
            match self.connection().num_of_storage_pools() {
                Err(e) if is_unsupported(&e) => Ok(false),
                number => Ok(number.map(|_| true)?),
            }
        })
    }

    fn make_pool(&self, name: &str, dir: &Path, uuid: Option<&str>) -> Result<(), HypervisorError> {
        call(Changes, format_args!("make pool `{name}` over {}", dir.display()), || {
            self.may_change()?;
            let document = xml::new_pool(name, dir, uuid);
            let pool = self.connection().define_storage_pool_xml(&document, 0)?;
            // Building creates the directory; drivers without directories refuse it.
            let ready = match pool.build(0) {
                Err(e) if !is_unsupported(&e) => Err(e),
                _ => pool.create(0).and_then(|()| pool.set_autostart(true)),
            };
            Ok(ready.inspect_err(|_| {
                // The pool was defined by this call; the first error is the one to report.
                let _ = pool.undefine();
            })?)
        })
    }

    fn pool_uuid(&self, name: &str) -> Result<Option<String>, HypervisorError> {
        call(Reads, format_args!("look for pool `{name}`"), || match self.pool(name) {
            // A driver without storage has no pool.
            Err(e) if is_unsupported(&e) || e.code().is(ErrorNumber::NoStoragePool) => Ok(None),
            pool => Ok(Some(pool?.uuid_string()?)),
        })
    }

    fn volume_id(&self, pool: &str, name: &str) -> Result<Option<VolumeId>, HypervisorError> {
        call(Reads, format_args!("look for volume `{name}` of pool `{pool}`"), || {
            let volume = match self.volume(pool, name).map_err(Failed::from) {
                Err(e) if e.kind() == HypervisorErrorKind::NoVolume => return Ok(None),
                volume => volume?,
            };
            Ok(Some(VolumeId {
                key: volume.key()?,
                path: volume.path()?.into(),
                capacity_bytes: volume.info()?.capacity,
            }))
        })
    }

    fn forget_pool(&self, name: &str) -> Result<(), HypervisorError> {
        call(Changes, format_args!("forget pool `{name}`"), || {
            self.may_change()?;
            let pool = self.pool(name)?;
            if pool.is_active()? {
                pool.destroy()?;
            }
            // It refuses a directory that is not empty, and drivers without directories refuse it.
            let _ = pool.delete(0);
            Ok(pool.undefine()?)
        })
    }

    fn find_files(&self, pool: &str, name: &str) -> Result<(), HypervisorError> {
        call(Reads, format_args!("look for volume `{name}` of pool `{pool}`"), || {
            let found = self.pool(pool)?;
            let until = Instant::now() + STILL_IN_USE;
            loop {
                let refreshed = found.refresh(0);
                let is_known = found.lookup_storage_vol_by_name(name).is_ok();
                match refreshed {
                    _ if is_known => return Ok(()),
                    Err(e) if is_copying(&e) => {}
                    refreshed => refreshed?,
                }
                if Instant::now() >= until {
                    return Err(Failed::other("libvirt does not find its file"));
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        })
    }

    fn is_busy(&self, pool: &str) -> Result<bool, HypervisorError> {
        call(Reads, format_args!("look at the files of pool `{pool}`"), || {
            match self.pool(pool)?.refresh(0) {
                Err(e) if is_copying(&e) => Ok(true),
                refreshed => Ok(refreshed.map(|()| false)?),
            }
        })
    }

    fn volumes(&self, pool: &str) -> Result<Vec<Volume>, HypervisorError> {
        call(Reads, format_args!("list the volumes of pool `{pool}`"), || {
            let found = self.pool(pool)?;
            if self.read_only.is_none() {
                match found.refresh(0) {
                    // libvirt refreshes the pool once that has ended.
                    Err(e) if is_copying(&e) => {}
                    refreshed => refreshed?,
                }
            }
            let all = found.list_all_volumes(0)?;
            let mut volumes = Vec::with_capacity(all.len());
            for volume in &all {
                match volume_of(pool, volume) {
                    // Deleted since it was listed.
                    Err(e) if e.kind() == HypervisorErrorKind::NoVolume => {}
                    read => volumes.push(read?),
                }
            }
            volumes.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(volumes)
        })
    }

    fn make_volume(&self, pool: &str, new: &NewVolume) -> Result<PathBuf, HypervisorError> {
        call(Works, format_args!("make volume `{}` in pool `{pool}`", new.name), || {
            self.make(pool, new, None)
        })
    }

    fn copy_volume(
        &self,
        pool: &str,
        new: &NewVolume,
        from: (&str, &str),
    ) -> Result<PathBuf, HypervisorError> {
        let doing = format_args!("make volume `{}` in pool `{pool}`", new.name);
        let what = format_args!("{doing} from `{}` of `{}`", from.1, from.0);
        call_as(Works, what, doing, || self.make(pool, new, Some(from)))
    }

    fn grow_volume(&self, pool: &str, name: &str, bytes: u64) -> Result<(), HypervisorError> {
        let doing = format_args!("grow volume `{name}` of pool `{pool}`");
        call_as(Works, format_args!("{doing} to {bytes} bytes"), doing, || {
            Ok(self.volume_to_change(pool, name)?.resize(bytes, 0)?)
        })
    }

    fn delete_volume(&self, pool: &str, name: &str) -> Result<(), HypervisorError> {
        call(Works, format_args!("delete volume `{name}` of pool `{pool}`"), || {
            let volume = self.volume_to_change(pool, name)?;
            let until = Instant::now() + STILL_IN_USE;
            loop {
                match volume.delete(0) {
                    Err(e)
                        if e.code().known() == Some(ErrorNumber::OperationInvalid)
                            && Instant::now() < until =>
                    {
                        std::thread::sleep(Duration::from_millis(50));
                    }
                    done => return Ok(done?),
                }
            }
        })
    }

    fn upload(
        &self,
        pool: &str,
        name: &str,
        from: &mut dyn Read,
        progress: Progress<'_>,
    ) -> Result<(), HypervisorError> {
        let of = format_args!("volume `{name}` of pool `{pool}`");
        call_as(Works, format_args!("upload {of}"), format_args!("fill {of}"), || {
            let volume = self.volume_to_change(pool, name)?;
            let stream = Stream::new(&self.connection(), 0)?;
            volume.upload(&stream, 0, 0, 0)?;
            match send(&stream, from, progress) {
                Ok(()) => Ok(stream.finish()?),
                Err(failed) => {
                    // The stream is aborted; the first error is the one to report.
                    let _ = stream.abort();
                    Err(failed)
                }
            }
        })
    }

    fn download(
        &self,
        pool: &str,
        name: &str,
        range: Range<u64>,
        to: &mut dyn Write,
    ) -> Result<(), HypervisorError> {
        let doing = format_args!("read volume `{name}` of pool `{pool}`");
        call_as(Waits, format_args!("{doing}, bytes {range:?}"), doing, || {
            let volume = self.volume(pool, name)?;
            let stream = Stream::new(&self.connection(), 0)?;
            let length = range.end.saturating_sub(range.start);
            volume.download(&stream, range.start, length, 0)?;
            let mut buffer = vec![0; CHUNK];
            loop {
                match usize::try_from(stream.recv(&mut buffer)?) {
                    Ok(0) => return Ok(stream.finish()?),
                    Ok(got) => to.write_all(&buffer[..got]).map_err(local)?,
                    Err(_) => return Err(Failed::other("the stream would block")),
                }
            }
        })
    }
}

/// Whether a pool is not refreshed since a volume of it is being copied or filled.
fn is_copying(error: &Error) -> bool {
    error.message().contains("asynchronous jobs running")
}

/// Sends everything that can be read.
fn send(stream: &Stream, from: &mut dyn Read, progress: Progress<'_>) -> Result<(), Failed> {
    let mut buffer = vec![0; CHUNK];
    let mut through = 0;
    loop {
        let got = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(got) => got,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(local(e)),
        };
        let mut rest = &buffer[..got];
        while !rest.is_empty() {
            let sent = stream.send(rest)?;
            let sent = usize::try_from(sent).ok().filter(|&sent| sent > 0);
            let Some(sent) = sent else {
                return Err(Failed::other("the stream takes no more"));
            };
            rest = &rest[sent.min(rest.len())..];
        }
        through += got as u64;
        if !progress(through) {
            return Err(Failed::other("broken off"));
        }
    }
}

/// A failure at the local end.
fn local(error: io::Error) -> Failed {
    Failed::other(error.to_string())
}

fn summary(pool: &StoragePool) -> Result<Pool, Failed> {
    let text = pool.xml_desc(0)?;
    let read: xml::Pool = xml::read(&text).map_err(Failed::other)?;
    let info = pool.info()?;
    Ok(Pool {
        name: read.name,
        kind: read.kind,
        path: read.target.path.map(PathBuf::from),
        active: pool.is_active()?,
        capacity_bytes: info.capacity,
        available_bytes: info.available,
    })
}

fn volume_of(pool: &str, volume: &StorageVol) -> Result<Volume, Failed> {
    let text = volume.xml_desc(0)?;
    let read: xml::Volume = xml::read(&text).map_err(Failed::other)?;
    let modified_ns = read.target.timestamps.as_ref().and_then(xml::Timestamps::modified_ns);
    let path = match read.target.path {
        Some(path) => path,
        None => volume.path()?,
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
