//! Current users of functions, as the kernel shows them: processes by open files, networks by
//! addresses.

use super::nodes::{Node, nodes, plain, vfio};
use super::{Use, UseKind};
use crate::fsroot::{Dir, FsError, FsRoot, NodeNumber};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::topology::Topology;
use std::collections::{BTreeMap, BTreeSet};

/// Scope of link-local IPv6 addresses, which do not indicate use.
const LINK_LOCAL: &str = "20";
/// Flag of a network device that is up (`IFF_UP`).
const UP: u32 = 1;

/// The users found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// Uses, by function.
    pub uses: Vec<Use>,
    /// Number of processes whose open files this user may not see.
    pub hidden: usize,
}

/// Finds the users of these functions.
pub fn read(root: &FsRoot, topology: &Topology, functions: &[Bdf]) -> Result<Seen, FsError> {
    let mut seen = Seen::default();
    let mut all: Vec<(Bdf, Node)> = Vec::new();
    for &bdf in functions {
        all.extend(nodes(root, topology, bdf)?.into_iter().map(|node| (bdf, node)));
        if root.exists(&format!("sys/bus/pci/devices/{bdf}/graphics")) {
            seen.uses.push(Use { bdf, kind: UseKind::Console, by: "the host's console".into() });
        }
    }
    if !all.is_empty() {
        open_files(root, &all, &mut seen)?;
    }
    addresses(root, topology, functions, &mut seen.uses)?;
    seen.uses.sort();
    seen.uses.dedup();
    Ok(seen)
}

/// Finds processes that have these functions open through VFIO, as guests do.
pub fn guests(root: &FsRoot, functions: &[Bdf]) -> Result<Seen, FsError> {
    by_nodes(root, functions, vfio)
}

/// Finds processes that have nodes of these functions open, which must be neither storage
/// controllers nor NICs: for these the function's own sysfs directory is enough.
pub fn openers(root: &FsRoot, functions: &[Bdf]) -> Result<Seen, FsError> {
    by_nodes(root, functions, plain)
}

/// Finds processes with open nodes, as found by a callback.
fn by_nodes(
    root: &FsRoot,
    functions: &[Bdf],
    nodes: impl Fn(&FsRoot, Bdf) -> Result<Vec<Node>, FsError>,
) -> Result<Seen, FsError> {
    let mut seen = Seen::default();
    let mut all: Vec<(Bdf, Node)> = Vec::new();
    for &bdf in functions {
        all.extend(nodes(root, bdf)?.into_iter().map(|node| (bdf, node)));
    }
    if !all.is_empty() {
        open_files(root, &all, &mut seen)?;
    }
    seen.uses.sort();
    seen.uses.dedup();
    Ok(seen)
}

/// Returns which of these functions each process has open through VFIO, as guests do. Other users'
/// processes may be invisible.
pub fn guest_processes(
    root: &FsRoot,
    functions: &[Bdf],
) -> Result<BTreeMap<u32, BTreeSet<Bdf>>, FsError> {
    let mut all: Vec<(Bdf, Node)> = Vec::new();
    for &bdf in functions {
        all.extend(vfio(root, bdf)?.into_iter().map(|node| (bdf, node)));
    }
    let mut found: BTreeMap<u32, BTreeSet<Bdf>> = BTreeMap::new();
    for (pid, bdf, _) in opened(root, &all, &mut 0)? {
        found.entry(pid).or_default().insert(bdf);
    }
    Ok(found)
}

/// Adds the processes that have one of these nodes open.
fn open_files(root: &FsRoot, all: &[(Bdf, Node)], seen: &mut Seen) -> Result<(), FsError> {
    for (pid, bdf, path) in opened(root, all, &mut seen.hidden)? {
        let name = root.read(&format!("proc/{pid}/comm")).ok().flatten().unwrap_or_default();
        let by = format!("process {pid} ({name}), which has {path} open");
        seen.uses.push(Use { bdf, kind: UseKind::Process, by });
    }
    Ok(())
}

/// The processes that have one of these nodes open, with function and path; counts processes
/// invisible to this user.
fn opened(
    root: &FsRoot,
    all: &[(Bdf, Node)],
    hidden: &mut usize,
) -> Result<Vec<(u32, Bdf, String)>, FsError> {
    let mut uses = Vec::new();
    if all.is_empty() {
        return Ok(uses);
    }
    let mut by_number: BTreeMap<NodeNumber, Vec<&(Bdf, Node)>> = BTreeMap::new();
    let mut by_path: BTreeMap<&str, Vec<&(Bdf, Node)>> = BTreeMap::new();
    for one in all {
        by_number.entry(one.1.number).or_default().push(one);
        by_path.entry(&one.1.path).or_default().push(one);
    }
    for name in root.names("proc")? {
        let Ok(pid) = name.parse::<u32>() else { continue };
        // A process may end meanwhile, and those of others may be invisible to this user.
        let dir = match root.dir(&format!("proc/{pid}/fd")) {
            Ok(Some(dir)) => dir,
            Ok(None) => continue,
            Err(_) => {
                *hidden += 1;
                continue;
            }
        };
        let Ok(files) = dir.names() else { continue };
        let mut found: BTreeSet<(Bdf, &str)> = BTreeSet::new();
        for file in &files {
            let Some(target) = device_path(&dir, file) else { continue };
            let nodes = match dir.node_number(file) {
                Some(number) => by_number.get(&number),
                // A record has no device nodes.
                None if !root.is_live() => by_path.get(target.as_str()),
                None => None,
            };
            let nodes = nodes.into_iter().flatten();
            found.extend(nodes.map(|(bdf, node)| (*bdf, node.path.as_str())));
        }
        uses.extend(found.into_iter().map(|(bdf, path)| (pid, bdf, path.to_owned())));
    }
    Ok(uses)
}

/// The path of an open file, unless it is a pipe, a socket or the like.
fn device_path(dir: &Dir<'_>, file: &str) -> Option<String> {
    dir.link(file).ok()?.filter(|target| target.starts_with('/'))
}

/// Adds network devices that are up and have an address.
fn addresses(
    root: &FsRoot,
    topology: &Topology,
    functions: &[Bdf],
    uses: &mut Vec<Use>,
) -> Result<(), FsError> {
    let devices = functions.iter().filter_map(|&bdf| topology.device(bdf));
    let nets: Vec<_> = devices.filter_map(|d| Some((d.bdf, d.net.as_ref()?))).collect();
    if nets.is_empty() {
        return Ok(());
    }
    // A network device with an IPv4 address has a route to the network of that address.
    let routes = root.read("proc/net/route")?.unwrap_or_default();
    let routed = routes.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    let mut with: BTreeSet<&str> = routed.collect();
    let inet6 = root.read("proc/net/if_inet6")?.unwrap_or_default();
    for line in inet6.lines() {
        if let [_, _, _, scope, _, name] = line.split_whitespace().collect::<Vec<_>>()[..]
            && scope != LINK_LOCAL
        {
            with.insert(name);
        }
    }
    for (bdf, net) in nets {
        for name in net.netdevs.iter().filter(|name| with.contains(name.as_str())) {
            let dir = root.dir(&format!("sys/class/net/{name}"))?;
            let flags = dir.map(|dir| dir.hex::<u32>("flags")).transpose()?.flatten();
            if flags.is_none_or(|flags| flags & UP != 0) {
                let by = format!("the host's network: {name} is up and has an address");
                uses.push(Use { bdf, kind: UseKind::Address, by });
            }
        }
    }
    Ok(())
}
