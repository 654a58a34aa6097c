//! A guest's creation options, with its present disks.

use super::{is_on, own_data};
use crate::create::CreationOptions;
use crate::domain::DomainXml;
use crate::domain::guest::{Made, Role};
use crate::error::Result;
use crate::hypervisor::Hypervisor;
use crate::memsize::MemSize;
use gpuvm_core::guest::Opt;

/// KiB of a MiB.
const MIB_KIB: u64 = 1024;

/// A guest's creation options, with its present disks: they grow by `disk resize`, and by others,
/// and are removed by `disk remove`.
pub(crate) fn options_now(
    mut options: CreationOptions,
    xml: &DomainXml,
    hypervisor: &dyn Hypervisor,
) -> Result<CreationOptions> {
    let made = xml.made().into_iter().find(|made| made.role == Role::Os);
    for (option, made) in [(Opt::OsSize, made), (Opt::DataSize, own_data(xml))] {
        let Some([was]) = options.get(option.field()).map(Vec::as_slice) else { continue };
        let Ok(was) = was.parse::<MemSize>() else { continue };
        let Some(disk) = made else {
            forget_disk(option, &mut options);
            continue;
        };
        let Some(now) = capacity(xml, &disk, hypervisor)? else { continue };
        // Images are rounded up to whole blocks.
        if now.kib().abs_diff(was.kib()) >= MIB_KIB {
            options.insert(option.field().to_owned(), vec![now.typed()]);
        }
    }
    Ok(options)
}

/// Removes the creation options of a disk that `disk remove` took.
fn forget_disk(option: Opt, options: &mut CreationOptions) {
    if option == Opt::DataSize {
        options.insert(option.field().to_owned(), vec!["none".to_owned()]);
    }
    let of_it: &[Opt] = match option {
        Opt::DataSize => &[Opt::DataDir, Opt::Preallocate],
        _ => &[Opt::OsSize, Opt::OsDisk, Opt::Image, Opt::ImagePool, Opt::DiskDir],
    };
    options.retain(|option, _| of_it.iter().all(|gone| gone.field() != option));
}

/// The size of a disk that was made for a guest; `None` if the guest does not have it, or it is not
/// known.
fn capacity(xml: &DomainXml, made: &Made, hypervisor: &dyn Hypervisor) -> Result<Option<MemSize>> {
    let devices = xml.root().children("devices");
    let mut disks = devices.flat_map(|devices| devices.children("disk"));
    let disk = disks.find(|disk| is_on(*disk, made));
    let target = disk.and_then(|disk| disk.child("target")?.attr("dev"));
    let Some(target) = target else { return Ok(None) };
    let size = hypervisor.disk_size(&xml.name(), &target)?;
    Ok(size.map(|size| MemSize::from_kib(size.capacity_bytes / 1024)))
}
