//! An exclusive hold on a function by its own VFIO device, for kernels without VFIO groups.

#![allow(unsafe_code)] // an ioctl that nix does not have

use nix::errno::Errno;
use nix::libc;
use std::fs::File;
use std::mem::size_of;
use std::os::fd::AsRawFd as _;
use std::path::Path;

/// `struct vfio_device_bind_iommufd` of Linux, include/uapi/linux/vfio.h.
#[repr(C)]
struct Bind {
    argsz: u32,
    flags: u32,
    iommufd: i32,
    out_devid: u32,
}

nix::ioctl_readwrite_bad!(
    /// Binds a VFIO device to an iommufd: exclusively, and for as long as its file is open.
    bind,
    // _IO(VFIO_TYPE, VFIO_BASE + 18)
    nix::request_code_none!(b';', 100 + 18),
    Bind
);

/// Opens /dev/vfio/devices/NAME and binds it to an iommufd of our own. The kernel refuses one that
/// another process has bound; opening alone excludes no other process. Binding resets the function,
/// so it is only for an unused one.
pub(super) fn open(name: &str) -> Result<File, Errno> {
    let open = |path: &Path| {
        let opened = File::options().read(true).write(true).open(path);
        opened.map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
    };
    let iommufd = open(Path::new("/dev/iommu"))?;
    let device = open(&Path::new("/dev/vfio/devices").join(name))?;
    let mut argument = Bind {
        argsz: u32::try_from(size_of::<Bind>()).unwrap_or_default(),
        flags: 0,
        iommufd: iommufd.as_raw_fd(),
        out_devid: 0,
    };
    // SAFETY: both files are open, and the argument is the structure of this request.
    match unsafe { bind(device.as_raw_fd() as libc::c_int, &raw mut argument) } {
        Ok(_) => Ok(device),
        // Bound by another.
        Err(Errno::EINVAL) => Err(Errno::EBUSY),
        Err(errno) => Err(errno),
    }
}
