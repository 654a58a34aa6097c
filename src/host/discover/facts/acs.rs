//! Files of the admin that write ACS control, such as the boot scripts that turn it off for NCCL.

use crate::fsroot::FsRoot;
use gpuvm_core::topology::Topology;

/// Where boot scripts, units, rules and cron jobs are, and the programs that these start.
const PLACES: [&str; 4] = ["etc", "usr/local/bin", "usr/local/sbin", "usr/local/lib/systemd"];
/// The register, as `setpci` names it.
const NAMES: [&[u8]; 2] = [b"ECAP_ACS", b"ecap_acs"];
/// The most directories and files that are examined, and the greatest depth.
const MOST: usize = 20_000;
/// See [`MOST`].
const DEPTH: usize = 8;

/// Finds them where the host has open ports; `None` if it has none, and nothing is looked for.
pub(super) fn files(root: &FsRoot, topology: &Topology) -> Option<Vec<String>> {
    if topology.open_ports(&[]).is_empty() {
        return None;
    }
    let (mut found, mut seen) = (Vec::new(), 0);
    let mut left: Vec<(String, usize)> =
        PLACES.iter().rev().map(|place| ((*place).to_owned(), 0)).collect();
    while let Some((path, depth)) = left.pop() {
        let Ok(Some(dir)) = root.dir(&path) else { continue };
        for name in dir.names().unwrap_or_default() {
            seen += 1;
            if seen > MOST {
                return Some(found);
            }
            let of = dir.path_of(&name);
            match root.kind(&of) {
                Some(kind) if kind.is_regular => {
                    let names = NAMES.iter().any(|register| root.has_bytes(&of, register));
                    found.extend(names.then_some(of));
                }
                // A link may lead back up.
                Some(_) if depth < DEPTH && dir.link(&name).is_ok_and(|link| link.is_none()) => {
                    left.push((of, depth + 1));
                }
                _ => {}
            }
        }
    }
    found.sort();
    Some(found)
}
