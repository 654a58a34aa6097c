//! vDPA devices: virtio data paths in hardware, which guests get by a character device.

use super::drives::function_above;
use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::bdf::Bdf;

/// The kernel's list of vDPA devices that a guest can have.
const CLASS: &str = "sys/class/vhost-vdpa";

/// Returns the PCI function that serves a vDPA device, by the name of its character device; `None`
/// if there is no such device, or software serves it.
pub fn function_of(root: &FsRoot, name: &str) -> Result<Option<Bdf>, FsError> {
    let Some(list) = root.dir(CLASS)? else { return Ok(None) };
    let Some(target) = list.link(name)? else { return Ok(None) };
    Ok(function_above(&format!("sys/{}", target.trim_start_matches("../"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_served_by_the_function_above_it() {
        let dir = tempfile::tempdir().unwrap();
        let class = dir.path().join(CLASS);
        std::fs::create_dir_all(&class).unwrap();
        let link = |name: &str, target: &str| {
            std::os::unix::fs::symlink(target, class.join(name)).unwrap();
        };
        let above = "../../devices/pci0000:00/0000:00:02.0/0000:31:00.2/vdpa0/vhost-vdpa-0";
        link("vhost-vdpa-0", above);
        link("vhost-vdpa-1", "../../devices/vdpasim/vdpa1/vhost-vdpa-1");
        let root = FsRoot::at(dir.path()).unwrap();
        let of = |name: &str| function_of(&root, name).unwrap();
        assert_eq!(of("vhost-vdpa-0"), Some("0000:31:00.2".parse().unwrap()));
        assert_eq!(of("vhost-vdpa-1"), None);
        assert_eq!(of("vhost-vdpa-2"), None);
    }
}
