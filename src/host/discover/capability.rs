//! Extended capabilities of a PCI function, from its config space (PCI Express Base Specification
//! 7.6.3).

use crate::fsroot::Dir;

/// Offset of the extended capabilities; only root can read that far.
const FIRST: u16 = 0x100;
/// The size of a function's config space in bytes.
const CONFIG: u16 = 4096;

/// Returns the two double words after the header of the capability of this ID; `None` if
/// unreadable, or the function has none.
pub fn extended(dir: &Dir<'_>, wanted: u16) -> Option<[u32; 2]> {
    let config = dir.words("config")?;
    let mut at = FIRST;
    // A cyclic list would be followed forever.
    for _ in 0..(CONFIG - FIRST) / 8 {
        let header = config.at(at)?;
        if header & 0xffff == u32::from(wanted) {
            return Some([config.at(at + 4)?, config.at(at + 8)?]);
        }
        at = u16::try_from(header >> 20).ok()?;
        if at < FIRST {
            break;
        }
    }
    None
}
