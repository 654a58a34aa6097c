//! Network and RDMA devices of PCI functions, and why the host needs them. Knows nothing of
//! addresses and links.

use crate::fsroot::{Dir, FsError, FsRoot, not};
use gpuvm_core::topology::{NetFace, Parts};
use procfs::FromBufRead;
use procfs::net::RouteEntries;
use std::collections::BTreeSet;

/// Where the kernel lists network devices.
const NETDEVS: &str = "sys/class/net";
const CLASS_NETWORK: u32 = 0x02;
/// The most network devices on top of each other (bond, VLAN, bridge); those above are ignored.
const DEEPEST: usize = 6;

/// Adds network and RDMA devices to the functions in `parts.devices`; `identify`: with their MAC
/// addresses.
pub fn faces(root: &FsRoot, identify: bool, parts: &mut Parts) -> Result<(), FsError> {
    let mut defaults = None;
    for device in parts.devices.iter_mut().filter(|d| d.class >> 16 == CLASS_NETWORK) {
        let path = format!("sys/bus/pci/devices/{}", device.bdf);
        let Some(dir) = root.dir(&path)? else { continue };
        let mut face = NetFace { rdma: names_in(&dir, "infiniband")?, ..NetFace::default() };
        for netdev_dir in netdev_dirs(&dir)? {
            let Some((_, name)) = netdev_dir.path().rsplit_once('/') else { continue };
            face.netdevs.push(name.to_owned());
            if identify {
                face.macs.extend(netdev_dir.read_if_any("address")?);
            }
            let defaults = match &mut defaults {
                Some(defaults) => defaults,
                unread => unread.insert(default_routes(root)?),
            };
            uses(root, &netdev_dir, defaults, &mut face.used_by)?;
        }
        face.used_by.sort();
        face.used_by.dedup();
        if face != NetFace::default() {
            device.net = Some(face);
        }
    }
    Ok(())
}

/// Names in a directory below `dir`; empty where it is missing.
fn names_in(dir: &Dir<'_>, name: &str) -> Result<Vec<String>, FsError> {
    match dir.dir(name)? {
        Some(dir) => dir.names(),
        None => Ok(Vec::new()),
    }
}

/// Directories of a function's network devices, by name: directly below it or, for virtio, below
/// its virtio device.
fn netdev_dirs<'r>(dir: &Dir<'r>) -> Result<Vec<Dir<'r>>, FsError> {
    let mut holders = Vec::new();
    if let Some(net) = dir.dir("net")? {
        holders.push(net);
    } else {
        for name in dir.names()?.iter().filter(|name| name.starts_with("virtio")) {
            holders.extend(dir.dir(&format!("{name}/net"))?);
        }
    }
    let mut dirs = Vec::new();
    for holder in holders {
        for name in holder.names()? {
            dirs.extend(holder.dir(&name)?);
        }
    }
    Ok(dirs)
}

/// Network devices that a default route uses.
fn default_routes(root: &FsRoot) -> Result<BTreeSet<String>, FsError> {
    let mut names = BTreeSet::new();
    let path = "proc/net/route";
    let text = root.read(path)?.unwrap_or_default();
    let mut lines = text.lines();
    let header = lines.next().unwrap_or_default();
    for (index, line) in lines.enumerate() {
        // One line at a time below the header, so that an error can name the line.
        let table = format!("{header}\n{line}\n");
        let RouteEntries(routes) = RouteEntries::from_buf_read(table.as_bytes())
            .map_err(|_| root.malformed(path, index + 2, not(line, "a route")))?;
        let default = |route: &&procfs::net::RouteEntry| {
            route.destination.is_unspecified() && route.mask.is_unspecified()
        };
        names.extend(routes.iter().filter(default).map(|route| route.iface.clone()));
    }
    let text = root.read("proc/net/ipv6_route")?.unwrap_or_default();
    for words in text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()) {
        // destination, prefix length, .., name
        let zeros = |word: &str| word.bytes().all(|b| b == b'0');
        if let [destination, length, .., name] = words[..]
            && zeros(destination)
            && zeros(length)
        {
            names.insert(name.to_owned());
        }
    }
    Ok(names)
}

/// Adds why the host needs a network device: default routes and bridges over it or devices on it.
fn uses(
    root: &FsRoot,
    netdev: &Dir<'_>,
    defaults: &BTreeSet<String>,
    used_by: &mut Vec<String>,
) -> Result<(), FsError> {
    let name = netdev.path().rsplit('/').next().unwrap_or_default();
    if defaults.contains(name) {
        used_by.push("default route".into());
    }
    let mut level = uppers(netdev)?;
    let mut seen = BTreeSet::new();
    for _ in 0..DEEPEST {
        let mut next = Vec::new();
        for upper in level {
            if !seen.insert(upper.clone()) {
                continue;
            }
            let there = |kind: &str| root.exists(&format!("{NETDEVS}/{upper}/{kind}"));
            let kind = match () {
                () if there("bridge") => "bridge ",
                () if there("bonding") => "bond ",
                () => "",
            };
            used_by.push(format!("member of {kind}{upper}"));
            if defaults.contains(&upper) {
                used_by.push(format!("default route over {upper}"));
            }
            if let Some(dir) = root.dir(&format!("{NETDEVS}/{upper}"))? {
                next.extend(uppers(&dir)?);
            }
        }
        level = next;
    }
    Ok(())
}

/// Network devices directly on top of one: its bridge or bond, VLANs, macvtaps.
fn uppers(netdev: &Dir<'_>) -> Result<Vec<String>, FsError> {
    let mut uppers = Vec::new();
    for name in netdev.names()? {
        if name == "master" {
            uppers.extend(netdev.link_name(&name)?);
        } else if let Some(upper) = name.strip_prefix("upper_") {
            uppers.push(upper.to_owned());
        }
    }
    Ok(uppers)
}
