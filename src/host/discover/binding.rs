//! The present driver of a PCI function.
//!
//! Apart from the topology: reading `driver_override` takes the kernel's device lock, which a hung
//! unbind holds forever, so it is read only before binding.

use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::topology::Binding;

/// Reads the binding; none if there is no such function.
pub fn binding(root: &FsRoot, bdf: Bdf) -> Result<Option<Binding>, FsError> {
    let Some(dir) = root.dir(&format!("sys/bus/pci/devices/{bdf}"))? else { return Ok(None) };
    let reserved = dir.read("driver_override")?;
    Ok(Some(Binding {
        driver: dir.link_name("driver")?,
        // The kernel prints `(null)` where nothing was written.
        driver_override: reserved.filter(|name| !name.is_empty() && name != "(null)"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn reads_driver_and_override_as_the_kernel_shows_them() {
        let tree = tempfile::tempdir().unwrap();
        let dir = tree.path().join("sys/bus/pci/devices/0000:01:00.0");
        let root = FsRoot::at(tree.path()).unwrap();
        let bdf: Bdf = "01:00.0".parse().unwrap();
        assert_eq!(binding(&root, bdf).unwrap(), None);
        fs::create_dir_all(&dir).unwrap();
        for (text, reserved) in [("(null)\n", None), ("\n", None), ("vfio-pci\n", Some("vfio-pci"))]
        {
            fs::write(dir.join("driver_override"), text).unwrap();
            let seen = binding(&root, bdf).unwrap().unwrap();
            assert_eq!(
                seen,
                Binding { driver: None, driver_override: reserved.map(str::to_owned) }
            );
        }
        symlink("../../../bus/pci/drivers/vfio-pci", dir.join("driver")).unwrap();
        assert_eq!(binding(&root, bdf).unwrap().unwrap(), Binding::vfio());
        fs::write(dir.join("driver_override"), b"\xff").unwrap();
        assert!(binding(&root, bdf).unwrap_err().to_string().contains("driver_override"));
    }
}
