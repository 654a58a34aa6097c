//! Access Control Services of a PCIe port, from its config space: whether peer-to-peer requests
//! below a switch are redirected to the root complex (PCI Express Base Specification 7.7.11).

use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::bdf::Bdf;

/// Size of a function's config space in bytes.
const CONFIG: usize = 4096;
/// Offset of the extended capabilities; only root can read that far.
const FIRST: usize = 0x100;
/// The ID of the capability.
const ACS: u16 = 0x000d;
/// Offset of its control register.
const CONTROL: usize = 6;
/// P2P Request Redirect, in that register.
const REDIRECT: u16 = 1 << 2;

/// Whether a port redirects requests; none: unreadable, or it has no such control.
pub fn redirects(root: &FsRoot, port: Bdf) -> Result<Option<bool>, FsError> {
    let Some(dir) = root.dir(&format!("sys/bus/pci/devices/{port}"))? else { return Ok(None) };
    let config = dir.bytes("config", CONFIG).unwrap_or_default();
    let word = |at: usize| Some(u16::from_le_bytes(config.get(at..at + 2)?.try_into().ok()?));
    let mut at = FIRST;
    // A cyclic list would be followed forever.
    for _ in 0..(CONFIG - FIRST) / 8 {
        let (Some(id), Some(next)) = (word(at), word(at + 2)) else { break };
        if id == ACS {
            return Ok(word(at + CONTROL).map(|control| control & REDIRECT != 0));
        }
        at = usize::from(next >> 4);
        if at < FIRST {
            break;
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_asked_for_what_its_control_register_says() {
        let dir = tempfile::tempdir().unwrap();
        let port: Bdf = "0000:01:08.0".parse().unwrap();
        let of = dir.path().join(format!("sys/bus/pci/devices/{port}"));
        let root = FsRoot::at(dir.path()).unwrap();
        assert_eq!(redirects(&root, port).unwrap(), None);
        std::fs::create_dir_all(&of).unwrap();
        let says = |config: &[u8]| {
            std::fs::write(of.join("config"), config).unwrap();
            redirects(&root, port).unwrap()
        };
        let mut config = vec![0; CONFIG];
        assert_eq!(says(&config), None);
        // AER, then ACS with source validation, request and completion redirect, and upstream
        // forwarding.
        config[0x100..0x104].copy_from_slice(&[0x01, 0x00, 0x02, 0x15]);
        config[0x150..0x158].copy_from_slice(&[0x0d, 0x00, 0x01, 0x00, 0x5f, 0x00, 0x1d, 0x00]);
        assert_eq!(says(&config), Some(true));
        config[0x156] = 0x01;
        assert_eq!(says(&config), Some(false));
        // What a user can read, and a cyclic and a broken list.
        assert_eq!(says(&config[..64]), None);
        config[0x150] = 0x0e;
        config[0x153] = 0x10;
        assert_eq!(says(&config), None);
        config[0x153] = 0xff;
        assert_eq!(says(&config), None);
    }
}
