//! Finds the current owner of a PCI function. A function of a running guest, or one that a process
//! has open, is not reset, unbound or reconfigured, neither by a change nor by its undo: a function
//! that was free when the change was planned may be in use now.
//!
//! Three sources are checked right before each write to the kernel. The definitions of running
//! domains, and of domains being started, before they have opened anything. The open files of
//! processes, even if libvirt is down. And the VFIO group, which the kernel opens exclusively, is
//! opened by us, which fails if an invisible process has it. It is kept open over a reset, so that
//! no other process gets it in between; not over an unbind, for which kernels before 6.2 wait until
//! the group is closed. A kernel without VFIO groups has only the function's own device, which is
//! bound to an iommufd of ours instead. The members of an IOMMU group count as one. If none of the
//! three has an answer, the function stays as it is.

mod device;

use super::error::BindError;
use crate::fsroot::{Dir, FsError, FsRoot};
use crate::function_users::{self, Seen, Use, UseKind};
use crate::hypervisor::{Hypervisor, HypervisorErrorKind, XmlOf, none};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::domain::DomainXml;
use gpuvm_core::placement::Occupancy;
use gpuvm_core::topology::is_vfio;
use nix::errno::Errno;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

/// How often to check processes again: one that reads a GPU's temperature has it open briefly, and
/// a terminated QEMU closes it a little later.
const LOOKS: u32 = 10;

/// An exclusive hold on functions while it lives.
#[derive(Debug, Default)]
pub struct Hold(Vec<File>);

impl Hold {
    /// Number of groups held.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no group is held.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Decides whether functions may be taken, reset or released now.
pub trait Owner {
    /// Refuses functions in use, and holds the others exclusively.
    fn free(&self, functions: &[Bdf]) -> Result<Hold, BindError>;
}

/// An owner for which every function is free: for test trees.
#[cfg(test)]
pub struct Everyone;

#[cfg(test)]
impl Owner for Everyone {
    fn free(&self, _: &[Bdf]) -> Result<Hold, BindError> {
        Ok(Hold::default())
    }
}

/// An inspection of the host and its domains.
pub struct Look<'a> {
    /// The host's files.
    pub root: &'a FsRoot,
    /// The hypervisor with the domains.
    pub hypervisor: &'a dyn Hypervisor,
    /// Whether processes using a function are ignored (`--force`); domains never are.
    pub force: bool,
    /// How long to wait between two checks.
    pub pause: Duration,
    /// Opens a node below /dev/vfio exclusively: that of a group, or `devices/vfioN`.
    pub open: &'a dyn Fn(&str) -> Result<File, Errno>,
}

/// Opens a node below /dev/vfio of this machine, so that no other process has its functions.
pub fn open_node(name: &str) -> Result<File, Errno> {
    if let Some(device) = name.strip_prefix("devices/") {
        return device::open(device);
    }
    let path = Path::new("/dev/vfio").join(name);
    let opened = File::options()
        .read(true)
        .write(true)
        .custom_flags(nix::libc::O_CLOEXEC | nix::libc::O_NONBLOCK)
        .open(path);
    opened.map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
}

/// Runs with the inspection of this machine.
pub fn on_this_machine<T, E: From<FsError>>(
    hypervisor: &dyn Hypervisor,
    force: bool,
    work: impl FnOnce(&Look<'_>) -> Result<T, E>,
) -> Result<T, E> {
    let root = FsRoot::live()?;
    let pause = Duration::from_millis(100);
    work(&Look { root: &root, hypervisor, force, pause, open: &open_node })
}

/// The result of checking domains.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    /// This domain runs with it.
    Has(Bdf, String),
    /// No domain does.
    Nobody,
    /// Not all could be checked, for this reason.
    Unknown(String),
}

/// The IOMMU group of a function, as far as needed.
struct Unit {
    bdf: Bdf,
    /// The group; `None` if there is none.
    group: Option<String>,
    /// The function, and all members of the group.
    members: Vec<Bdf>,
    /// Its own node, below /dev/vfio; `None` if the kernel makes none, or no VFIO driver has it.
    node: Option<String>,
}

impl Unit {
    fn of(root: &FsRoot, bdf: Bdf) -> Result<Unit, FsError> {
        let dir = root.dir(&format!("sys/bus/pci/devices/{bdf}"))?;
        let group = dir.as_ref().map(|dir| dir.link_name("iommu_group")).transpose()?.flatten();
        let node = dir.map(|dir| node_of(&dir)).transpose()?.flatten();
        let mut members = vec![bdf];
        if let Some(group) = &group {
            let names = root.names(&format!("sys/kernel/iommu_groups/{group}/devices"))?;
            members.extend(names.iter().filter_map(|name| name.parse::<Bdf>().ok()));
            members.sort();
            members.dedup();
        }
        Ok(Unit { bdf, group, members, node })
    }
}

/// The node of a function's own VFIO device, below /dev/vfio.
fn node_of(function: &Dir<'_>) -> Result<Option<String>, FsError> {
    let Some(devices) = function.dir("vfio-dev")? else { return Ok(None) };
    for name in devices.names()? {
        let device = devices.dir(&name)?;
        if device.is_some_and(|device| device.exists("dev")) {
            return Ok(Some(format!("devices/{name}")));
        }
    }
    Ok(None)
}

impl Owner for Look<'_> {
    fn free(&self, functions: &[Bdf]) -> Result<Hold, BindError> {
        self.free_of(functions, true)
    }
}

impl Look<'_> {
    /// Refuses functions of guests; use by the host does not matter.
    pub fn free_of_guests(&self, functions: &[Bdf]) -> Result<(), BindError> {
        self.free_of(functions, false).map(drop)
    }

    /// Refuses functions of guests, or used by the host if `host`, and holds the others
    /// exclusively.
    fn free_of(&self, functions: &[Bdf], host: bool) -> Result<Hold, BindError> {
        let mut units = Vec::new();
        for &bdf in functions {
            units.push(Unit::of(self.root, bdf)?);
        }
        let said = self.domains(&units)?;
        let hidden = self.processes(&units, &said, host)?;
        let hold = self.hold(&units, &said, hidden)?;
        // A domain that appeared between the first check and the opening has not opened it yet.
        if !hold.is_empty() {
            self.domains(&units)?;
        }
        Ok(hold)
    }

    /// Refuses functions of a domain that runs, is starting or is shutting down.
    fn domains(&self, units: &[Unit]) -> Result<Said, BindError> {
        let said = self.asked(&units.iter().flat_map(|unit| &unit.members).copied().collect());
        let Said::Has(bdf, name) = said else { return Ok(said) };
        let unit = units.iter().find(|unit| unit.members.contains(&bdf));
        let asked = unit.map_or(bdf, |unit| unit.bdf);
        let by = if asked == bdf {
            format!("domain `{name}`, which runs")
        } else {
            format!("domain `{name}`, which runs with {bdf} of its IOMMU group")
        };
        Err(BindError::InUse { bdf: asked, by })
    }

    /// Asks the domains whether one of them has one of these functions.
    fn asked(&self, functions: &BTreeSet<Bdf>) -> Said {
        if self.hypervisor.uri() == none::URI || !self.hypervisor.has_guests_here() {
            return Said::Unknown("no domain of this machine was asked".into());
        }
        let rows = match self.hypervisor.domains() {
            Ok(rows) => rows,
            Err(error) => return Said::Unknown(error.to_string()),
        };
        let mut untold = None;
        for row in rows.into_iter().filter(|row| row.state.is_active()) {
            let text = match self.hypervisor.xml(&row.name, XmlOf::Live) {
                Ok(text) => text,
                // It has ended since it was listed.
                Err(error) if error.kind == HypervisorErrorKind::NoDomain => continue,
                Err(error) => {
                    untold = Some(error.to_string());
                    continue;
                }
            };
            match DomainXml::parse(&text).and_then(|xml| xml.held(true)) {
                Ok(held) => {
                    if let Some(&bdf) = held.devices.iter().find(|bdf| functions.contains(bdf)) {
                        return Said::Has(bdf, row.name);
                    }
                }
                Err(error) => untold = Some(format!("domain `{}`: {error}", row.name)),
            }
        }
        untold.map_or(Said::Nobody, Said::Unknown)
    }

    /// Refuses functions that a process has open, or that the host uses if `host`; returns how many
    /// processes could not be inspected.
    fn processes(&self, units: &[Unit], said: &Said, host: bool) -> Result<usize, BindError> {
        let mut looks = 0;
        loop {
            let guests = self.guests(units)?;
            let host = if host { self.host(units)? } else { Vec::new() };
            let of_guests = guests.uses.into_iter().find(|_| !self.yields(said));
            let of_host = host.into_iter().find(|used| !(self.force && used.kind.yields()));
            let Some(used) = of_guests.or(of_host) else { return Ok(guests.hidden) };
            looks += 1;
            if used.kind != UseKind::Process || looks >= LOOKS {
                let unit = units.iter().find(|unit| unit.members.contains(&used.bdf));
                let bdf = unit.map_or(used.bdf, |unit| unit.bdf);
                return Err(BindError::InUse { bdf, by: used.by });
            }
            std::thread::sleep(self.pause);
        }
    }

    /// Whether a process with an open VFIO group may be ignored: it may be a guest's QEMU unless
    /// every domain was checked.
    fn yields(&self, said: &Said) -> bool {
        self.force && *said == Said::Nobody
    }

    /// Returns the processes that have functions open as guests do.
    fn guests(&self, units: &[Unit]) -> Result<Seen, BindError> {
        let all: Vec<Bdf> = units.iter().flat_map(|unit| &unit.members).copied().collect();
        Ok(function_users::guests(self.root, &all)?)
    }

    /// Returns uses of functions through their drivers.
    fn host(&self, units: &[Unit]) -> Result<Vec<Use>, BindError> {
        let (mut plain, mut others) = (Vec::new(), Vec::new());
        for bdf in units.iter().map(|unit| unit.bdf) {
            let dir = self.root.dir(&format!("sys/bus/pci/devices/{bdf}"))?;
            let Some(dir) = dir else { continue };
            match dir.link_name("driver")? {
                None => {}
                Some(driver) if is_vfio(&driver) => {}
                // Storage and network devices are used by the devices built on them.
                Some(_) => match dir.hex::<u32>("class")?.unwrap_or_default() >> 16 {
                    0x01 | 0x02 => others.push(bdf),
                    _ => plain.push(bdf),
                },
            }
        }
        let mut uses = function_users::openers(self.root, &plain)?.uses;
        if let Some(&bdf) = others.first() {
            let topology = crate::discover::discover(self.root)
                .map_err(|error| BindError::Untold { bdf, why: error.to_string() })?;
            uses.extend(function_users::read(self.root, &topology, &others)?.uses);
            uses.extend(function_users::known(&topology, &Occupancy::default(), &others));
        }
        Ok(uses)
    }

    /// Refuses a NIC that the host's network uses.
    pub fn carries_none(&self, bdf: Bdf) -> Result<(), BindError> {
        let topology = crate::discover::discover(self.root)
            .map_err(|error| BindError::Untold { bdf, why: error.to_string() })?;
        let mut uses = function_users::known(&topology, &Occupancy::default(), &[bdf]);
        uses.extend(function_users::read(self.root, &topology, &[bdf])?.uses);
        let of_network = |kind| matches!(kind, UseKind::Network | UseKind::Address);
        match uses.into_iter().find(|used| of_network(used.kind)) {
            Some(used) => Err(BindError::InUse { bdf, by: used.by }),
            None => Ok(()),
        }
    }

    /// Opens the VFIO groups of functions, so that others cannot; refuses one opened by an
    /// invisible process.
    fn hold(&self, units: &[Unit], said: &Said, hidden: usize) -> Result<Hold, BindError> {
        let mut hold = Hold::default();
        let mut done = BTreeSet::new();
        for Unit { bdf, group, node, .. } in units {
            let has_node = |group: &&String| self.root.exists(&format!("sys/class/vfio/{group}"));
            let group = group.as_ref().filter(has_node);
            // The kernel keeps a bound device and an open group of it from each other.
            let Some(node) = group.or(node.as_ref()).filter(|node| done.insert(*node)) else {
                continue;
            };
            match (self.open)(node) {
                Ok(file) => hold.0.push(file),
                Err(Errno::EBUSY) if self.yields(said) => {}
                Err(Errno::EBUSY) => {
                    let by = format!(
                        "a process that is not seen here and has it open through VFIO \
                         (/dev/vfio/{node})"
                    );
                    return Err(BindError::InUse { bdf: *bdf, by });
                }
                // The device node is missing, as in a container, but every process was inspected.
                Err(_) if hidden == 0 => {}
                Err(errno) => {
                    let why = match said {
                        Said::Unknown(why) => format!("{why}; "),
                        Said::Has(..) | Said::Nobody => String::new(),
                    };
                    let why = format!(
                        "{why}the open files of {hidden} processes are not seen, and \
                         /dev/vfio/{node} cannot be opened: {}",
                        errno.desc()
                    );
                    return Err(BindError::Untold { bdf: *bdf, why });
                }
            }
        }
        Ok(hold)
    }
}

/// Returns functions held by running domains other than that of this UUID, with the domain's name;
/// empty if there are none, or libvirt does not answer.
pub fn runs_with(hypervisor: &dyn Hypervisor, uuid: &str, functions: &[Bdf]) -> Vec<(Bdf, String)> {
    let mut found = Vec::new();
    for row in hypervisor.domains().unwrap_or_default() {
        if row.uuid == uuid || !row.state.is_active() {
            continue;
        }
        let Ok(text) = hypervisor.xml(&row.name, XmlOf::Live) else { continue };
        let Ok(held) = DomainXml::parse(&text).and_then(|xml| xml.held(true)) else { continue };
        let its = held.devices.into_iter().filter(|bdf| functions.contains(bdf));
        found.extend(its.map(|bdf| (bdf, row.name.clone())));
    }
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests;
