//! The data disk of a guest, at the place that `nvidia-vm` used: a file below /raid, the host's
//! data array.

use super::{DataRequest, Disks, Notice, Place, StorageError, room};
use crate::apply::{FileStep, Preallocate, Space, Step, space};
use crate::domain::guest::{Disk, DiskFormat, DiskKind, Made, Role};
use crate::error::{Coded as _, Result, usage};
use crate::memsize::MemSize;
use crate::paths::path_text;
use crate::seed::DATA_DISK_SERIAL;
use crate::words;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Where the host's data array is mounted.
const ARRAY: &str = "/raid";
/// The directory of the volumes on it.
const DIRECTORY: &str = "dgx-kvm";

/// The fraction of a file system that is kept for its own metadata as files fill it: 1/256. So the
/// shares of all GPUs fit together on an otherwise empty file system.
const OWN_PART: u64 = 256;

/// Adds the guest's data disk if it gets one.
pub(super) fn add(place: &Place<'_>, disks: &mut Disks) -> Result<()> {
    on(Path::new(ARRAY), place, disks)
}

/// Whether this machine has a data array, on which guests get a share.
pub(super) fn has_array() -> bool {
    is_mount_point(Path::new(ARRAY))
}

/// The wanted size of a data disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WantedSize {
    /// A size in bytes.
    Bytes(u64),
    /// The share of the guest's GPUs.
    Share,
}

/// The requested size; `None` if no data disk, with the notice if that is to be reported.
fn wanted(place: &Place<'_>, disks: &mut Disks) -> Result<Option<WantedSize>> {
    let wanted = match place.wanted.data {
        DataRequest::None => return Ok(None),
        DataRequest::NoneTold => {
            disks.notices.push(Notice::NoDataDisk);
            return Ok(None);
        }
        DataRequest::Bytes(bytes) => WantedSize::Bytes(bytes),
        DataRequest::Share | DataRequest::ShareWithNotice => WantedSize::Share,
    };
    if wanted == WantedSize::Share && place.gpus().0 == 0 {
        return match &place.wanted.data_dir {
            None => Ok(None),
            Some(_) => Err(usage(
                "--data-dir is given, but a guest without GPUs has no share of a data file system",
                "add --data-size, or leave --data-dir out",
            )),
        };
    }
    match (place.is_here(), wanted) {
        (true, wanted) => Ok(Some(wanted)),
        (false, WantedSize::Share) => {
            note_no_data_disk(place, disks);
            Ok(None)
        }
        (false, WantedSize::Bytes(_)) => {
            Err(StorageError::Elsewhere
                .hint("run gpuvm on the host itself, or give --data-size none"))
        }
    }
}

/// Reports that there is no data file system, if that is to be reported.
fn note_no_data_disk(place: &Place<'_>, disks: &mut Disks) {
    if matches!(place.wanted.data, DataRequest::ShareWithNotice) {
        disks.notices.push(Notice::NoDataDisk);
    }
}

/// Adds a data disk; on this array if no directory is named.
fn on(array: &Path, place: &Place<'_>, disks: &mut Disks) -> Result<()> {
    let Some(wanted) = wanted(place, disks)? else { return Ok(()) };
    let Some((directory, steps)) = directory(array, place, disks, wanted)? else {
        return Ok(());
    };
    let preallocate = place.wanted.preallocate;
    let bytes = match (wanted, place.recorded) {
        (WantedSize::Bytes(bytes), true) => bytes,
        (WantedSize::Share, true) => return Ok(()),
        (wanted, false) => {
            let there = directory.ancestors().find(|at| at.is_dir()).unwrap_or(&directory);
            let space = space(there).ok_or_else(|| {
                StorageError::SizeUnknown { path: there.display().to_string() }.refusal("")
            })?;
            let gpus = place.gpus();
            let (bytes, share) = match wanted {
                WantedSize::Bytes(bytes) => (bytes, None),
                WantedSize::Share => (share(space.total, gpus), Some(gpus)),
            };
            if preallocate != Preallocate::None || share.is_some() {
                refuse_too_large(bytes, space, there, share)?;
            }
            bytes
        }
    };
    let path = directory.join(format!("vol-{}", place.planned.name));
    let text = path_text(&path)?;
    let steps = steps.into_iter().chain([Step::File(FileStep::CreateDisk {
        path,
        bytes,
        preallocate,
        from: None,
        sha256: None,
    })]);
    let mut disk = Disk::new(&text, DiskFormat::Raw, DiskKind::File);
    disk.serial = Some(DATA_DISK_SERIAL.to_owned());
    // mkfs first discards all blocks of a disk, which would free the preallocated space.
    disk.keeps_blocks = preallocate != Preallocate::None;
    disks.make(steps, disk, Made { role: Role::Data, path: text, volume: None });
    Ok(())
}

/// The directory of the data disk and the step that creates it; none, with a warning, if there is
/// no data file system and no disk was requested.
fn directory(
    array: &Path,
    place: &Place<'_>,
    disks: &mut Disks,
    wanted: WantedSize,
) -> Result<Option<(PathBuf, Option<Step>)>> {
    if let Some(dir) = &place.wanted.data_dir {
        let dir = std::path::absolute(dir)?;
        if !place.recorded {
            room::refuse_missing(&dir)?;
        }
        return Ok(Some((dir, None)));
    }
    let directory = array.join(DIRECTORY);
    if place.recorded {
        return Ok(Some((directory, None)));
    }
    if !is_mount_point(array) {
        if wanted == WantedSize::Share {
            note_no_data_disk(place, disks);
            return Ok(None);
        }
        let array = array.display();
        return Err(StorageError::NotMounted { array: array.to_string() }.hint(format!(
            "mount the data array on {array}, or name a directory with --data-dir"
        )));
    }
    let missing = directory.metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    // Any other problem with it is reported when the disk is created.
    let step = missing.then(|| Step::File(FileStep::CreateDirectory { path: directory.clone() }));
    Ok(Some((directory, step)))
}

/// The share of a guest's GPUs (`own` of `all`) in a file system of `total` bytes
/// (gpuvm-nvidia-vm(7), SIZES), in bytes, rounded to whole MiB.
fn share(total: u64, (own, all): (u64, u64)) -> u64 {
    let usable = MemSize::from_kib((total - total / OWN_PART) / 1024);
    usable.share(own, all.max(1)).round_down(MemSize::from_kib(1024)).kib() * 1024
}

/// Refuses a disk that its file system cannot hold now. `share`: the GPUs of the guest and of the
/// host, if the size is the default.
fn refuse_too_large(bytes: u64, space: Space, at: &Path, share: Option<(u64, u64)>) -> Result<()> {
    if bytes <= space.free {
        return Ok(());
    }
    let size = |bytes: u64| MemSize::from_kib(bytes / 1024);
    let at = at.display();
    let what = match share {
        Some((own, all)) => {
            format!(
                "the share of {own} of {} in the file system of {at} is {}",
                words::count(all, "GPU"),
                size(bytes)
            )
        }
        None => format!("a data disk of {} does not fit into the file system of {at}", size(bytes)),
    };
    let fits = size(space.free - space.free / OWN_PART).round_down(MemSize::from_kib(1024));
    Err(StorageError::NoRoom {
        what: what.to_string(),
        free: size(space.free).to_string(),
        size: size(space.total).to_string(),
    }
    .hint(format!("--data-size {} would fit; --data-size none makes no data disk", fits.typed())))
}

/// Whether a file system is mounted on a directory.
fn is_mount_point(directory: &Path) -> bool {
    let device = |path: &Path| path.metadata().map(|meta| meta.dev()).ok();
    let above = directory.parent().and_then(device);
    directory.is_dir() && device(directory).is_some() && device(directory) != above
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::{Occupancy, plan};
    use crate::planned::Planned;
    use crate::request::{DomainName, Request};
    use crate::skip::skip;
    use crate::storage::StorageRequest;

    /// A request for this data disk.
    fn of(data: DataRequest) -> StorageRequest {
        StorageRequest { data, ..StorageRequest::default() }
    }

    /// The planned disks of a guest with this many GPUs of a DGX-2, with this array.
    fn planned(array: &Path, gpus: u32, wanted: &StorageRequest, recorded: bool) -> Result<Disks> {
        let json = include_str!("../../../topologies/dgx-2.json");
        let topology = crate::topology::file::from_json(json).unwrap();
        let request = Request::for_gpus(gpus);
        let occupancy = Occupancy::default();
        let placement = plan(&topology, &occupancy, &request).unwrap();
        let name = DomainName::new("a-1g0").unwrap();
        let planned = Planned { topology, request, placement, name, occupancy, stack: None };
        let planned = &planned;
        let place = Place {
            wanted,
            seed: None,
            planned,
            hypervisor: None,
            recorded,
            elsewhere: None,
            state: Path::new("/nonexistent"),
        };
        let mut disks = Disks::default();
        on(array, &place, &mut disks)?;
        Ok(disks)
    }

    #[test]
    fn shares_fit_together_and_are_those_of_the_replaced_tool() {
        // /raid of a DGX-2 with 8 drives: 27.83 TiB (gpuvm-nvidia-vm(7), SIZES).
        let raid = (27.83 * f64::from(1 << 20)) as u64 * (1 << 20);
        for (gpus, shown) in [(1, "1.7 TiB"), (2, "3.5 TiB"), (4, "6.9 TiB"), (8, "13.9 TiB")] {
            let bytes = share(raid, (gpus, 16));
            assert_eq!(MemSize::from_kib(bytes / 1024).to_string(), shown);
            assert!(bytes * (16 / gpus) < raid && bytes.is_multiple_of(1 << 20));
        }
        assert_eq!(share(0, (1, 16)), 0);
        assert!(share(u64::MAX, (16, 16)) < u64::MAX);
    }

    #[test]
    fn no_disk_is_made_where_no_array_is_mounted() {
        let dir = tempfile::tempdir().unwrap();
        for array in [dir.path(), &dir.path().join("absent")] {
            let error =
                planned(array, 1, &of(DataRequest::Bytes(7)), false).unwrap_err().to_string();
            assert!(error.contains("is not a mounted file system"), "{error}");
            for (gpus, data, is_noted) in [
                (1, DataRequest::ShareWithNotice, true),
                (1, DataRequest::Share, false),
                (1, DataRequest::NoneTold, true),
                (0, DataRequest::NoneTold, true),
                (1, DataRequest::None, false),
                (0, DataRequest::Share, false),
            ] {
                let disks = planned(array, gpus, &of(data), false).unwrap();
                assert!(disks.steps.is_empty() && disks.disks.is_empty(), "{gpus} {data:?}");
                let notices: &[Notice] = if is_noted { &[Notice::NoDataDisk] } else { &[] };
                assert_eq!(disks.notices, notices, "{gpus} {data:?}");
            }
        }
        let below = |dir: &Path| {
            let data_dir = Some(dir.to_owned());
            StorageRequest { data_dir, ..StorageRequest::default() }
        };
        let error = planned(dir.path(), 0, &below(Path::new("/")), false).unwrap_err().to_string();
        assert!(error.contains("has no share"), "{error}");
        let missing = below(&dir.path().join("absent"));
        assert!(planned(dir.path(), 1, &missing, false).is_err());
    }

    #[test]
    fn a_disk_lies_where_the_replaced_tool_put_it() {
        let shm = Path::new("/dev/shm");
        if !is_mount_point(shm) {
            return skip("nothing is mounted on /dev/shm");
        }
        let disks = planned(shm, 1, &of(DataRequest::Bytes(1_000_000_000)), false).unwrap();
        let path = "/dev/shm/dgx-kvm/vol-a-1g0";
        assert_eq!(disks.made[0].path, path);
        assert_eq!(disks.disks[0].serial.as_deref(), Some("gpuvm-data"));
        let create = |bytes, preallocate| {
            Step::File(FileStep::CreateDisk {
                path: path.into(),
                bytes,
                preallocate,
                from: None,
                sha256: None,
            })
        };
        let directory = Step::File(FileStep::CreateDirectory { path: "/dev/shm/dgx-kvm".into() });
        assert_eq!(disks.steps, [directory, create(1_000_000_000, Preallocate::Reserve)]);
        // The default is the share.
        let total = space(shm).unwrap().total;
        let full = StorageRequest { preallocate: Preallocate::Full, ..StorageRequest::default() };
        let disks = planned(shm, 2, &full, false).unwrap();
        assert_eq!(disks.steps[1], create(share(total, (2, 16)), Preallocate::Full));
        // A disk that does not fit is refused, unless it is sparse and may grow later.
        let large = of(DataRequest::Bytes(9000 << 40));
        let error = planned(shm, 1, &large, false).unwrap_err().to_string();
        assert!(
            error.contains("9000 TiB does not fit into the file system of /dev/shm"),
            "{error}"
        );
        let grows = StorageRequest { preallocate: Preallocate::None, ..large };
        planned(shm, 1, &grows, false).unwrap();
    }

    #[test]
    fn the_files_of_a_recorded_host_are_not_looked_at() {
        let absent = Path::new("/no/such/array");
        let disks = planned(absent, 4, &of(DataRequest::Share), true).unwrap();
        assert!(disks.steps.is_empty() && disks.notices.is_empty(), "{disks:?}");
        let large = of(DataRequest::Bytes(2 << 40));
        let disks = planned(absent, 4, &large, true).unwrap();
        assert_eq!(disks.made[0].path, "/no/such/array/dgx-kvm/vol-a-1g0");
        let elsewhere = StorageRequest { data_dir: Some("/fast".into()), ..large };
        let disks = planned(absent, 0, &elsewhere, true).unwrap();
        assert_eq!(disks.made[0].path, "/fast/vol-a-1g0");
    }
}
