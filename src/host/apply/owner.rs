//! Whose a PCI function is at this moment. A function that a guest runs with, or that a process has open, is not reset,
//! not taken from its driver and not set up otherwise, neither when a change is made nor when it is undone: what was
//! free when the change was planned may be somebody's by now.
//!
//! Three witnesses are heard, right before the kernel is written to. The domains that run say what they have; so does a
//! domain that is being started, before it has opened anything. The processes show what they have open, also where
//! libvirt is away. And the VFIO group, which the kernel opens for one at a time, is opened by us: whoever is not seen
//! otherwise has it open. It is kept open over a reset, so that nobody gets it in between; not over an unbinding, for
//! which kernels before 6.2 wait until the group is closed. All members of an IOMMU group are one. Where none of the
//! three can tell, the function stays as it is.

use super::bind::BindError;
use crate::fsroot::{FsError, FsRoot};
use crate::holders::{self, Seen, Use, UseKind};
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

/// How often it is looked again for processes: one that asks a GPU for its temperature has it open for a moment, and a
/// QEMU that was ended lets go a little later.
const LOOKS: u32 = 10;

/// Keeps functions from everybody else for as long as it lives.
#[derive(Debug, Default)]
pub struct Hold(Vec<File>);

impl Hold {
    /// How many groups are kept.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Tells whether functions may be taken, reset or given back now.
pub trait Owner {
    /// Refuses functions that somebody has, and keeps the others from everybody else.
    fn free(&self, functions: &[Bdf]) -> Result<Hold, BindError>;
}

/// Says that every function is free: for trees of tests.
#[cfg(test)]
pub struct Everyone;

#[cfg(test)]
impl Owner for Everyone {
    fn free(&self, _: &[Bdf]) -> Result<Hold, BindError> {
        Ok(Hold::default())
    }
}

/// A look at the host and its domains.
pub struct Look<'a> {
    /// The host's files.
    pub root: &'a FsRoot,
    /// Whose domains are asked.
    pub hypervisor: &'a dyn Hypervisor,
    /// Whether a process that has a function open yields, as `--force` says; a domain never does.
    pub force: bool,
    /// How long to wait between two looks.
    pub pause: Duration,
    /// What opens a VFIO group.
    pub open: &'a dyn Fn(&str) -> Result<File, Errno>,
}

/// Opens the node of a VFIO group on this machine.
pub fn open_group(group: &str) -> Result<File, Errno> {
    let path = Path::new("/dev/vfio").join(group);
    let opened = File::options()
        .read(true)
        .write(true)
        .custom_flags(nix::libc::O_CLOEXEC | nix::libc::O_NONBLOCK)
        .open(path);
    opened.map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
}

/// Works with what tells of this machine.
pub fn on_this_machine<T, E: From<FsError>>(
    hypervisor: &dyn Hypervisor,
    force: bool,
    work: impl FnOnce(&Look<'_>) -> Result<T, E>,
) -> Result<T, E> {
    let root = FsRoot::live()?;
    let pause = Duration::from_millis(100);
    work(&Look { root: &root, hypervisor, force, pause, open: &open_group })
}

/// What the domains say.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    /// This one runs with it.
    Has(Bdf, String),
    /// No domain does.
    Nobody,
    /// Not all could be asked, because of this.
    Untold(String),
}

/// The IOMMU group of a function, as far as it matters here.
struct Unit {
    /// The function.
    bdf: Bdf,
    /// The group; none: there is none.
    group: Option<String>,
    /// The function, and all members of the group.
    members: Vec<Bdf>,
}

impl Unit {
    /// Reads it.
    fn of(root: &FsRoot, bdf: Bdf) -> Result<Unit, FsError> {
        let dir = root.dir(&format!("sys/bus/pci/devices/{bdf}"))?;
        let group = dir.map(|dir| dir.link_name("iommu_group")).transpose()?.flatten();
        let mut members = vec![bdf];
        if let Some(group) = &group {
            let names = root.names(&format!("sys/kernel/iommu_groups/{group}/devices"))?;
            members.extend(names.iter().filter_map(|name| name.parse::<Bdf>().ok()));
            members.sort();
            members.dedup();
        }
        Ok(Unit { bdf, group, members })
    }
}

impl Owner for Look<'_> {
    fn free(&self, functions: &[Bdf]) -> Result<Hold, BindError> {
        self.free_of(functions, true)
    }
}

impl Look<'_> {
    /// Refuses functions that guests have; what the host does with them does not matter.
    pub fn free_of_guests(&self, functions: &[Bdf]) -> Result<(), BindError> {
        self.free_of(functions, false).map(drop)
    }

    /// Refuses functions that guests have, or the host where it is asked, and keeps the others from everybody else.
    fn free_of(&self, functions: &[Bdf], host: bool) -> Result<Hold, BindError> {
        let mut units = Vec::new();
        for &bdf in functions {
            units.push(Unit::of(self.root, bdf)?);
        }
        let said = self.domains(&units)?;
        let hidden = self.processes(&units, &said, host)?;
        let hold = self.hold(&units, &said, hidden)?;
        // One that came between the first look and the opening has not opened it yet.
        if !hold.is_empty() {
            self.domains(&units)?;
        }
        Ok(hold)
    }

    /// Refuses functions that a domain has which runs, is being started or not quite ended.
    fn domains(&self, units: &[Unit]) -> Result<Said, BindError> {
        let said = self.asked(&units.iter().flat_map(|unit| &unit.members).copied().collect());
        let Said::Has(bdf, name) = said else { return Ok(said) };
        let unit = units.iter().find(|unit| unit.members.contains(&bdf));
        let asked = unit.map_or(bdf, |unit| unit.bdf);
        let by = match asked == bdf {
            true => format!("domain `{name}`, which runs"),
            false => format!("domain `{name}`, which runs with {bdf} of its IOMMU group"),
        };
        Err(BindError::InUse { bdf: asked, by })
    }

    /// Asks the domains whether one of them has one of these functions.
    fn asked(&self, functions: &BTreeSet<Bdf>) -> Said {
        if self.hypervisor.uri() == none::URI || !self.hypervisor.has_guests_here() {
            return Said::Untold("no domain of this machine was asked".into());
        }
        let rows = match self.hypervisor.domains() {
            Ok(rows) => rows,
            Err(error) => return Said::Untold(error.to_string()),
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
        untold.map_or(Said::Nobody, Said::Untold)
    }

    /// Refuses functions that a process has open, or the host in use otherwise where it is asked; returns of how many
    /// processes it could not be seen.
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

    /// Whether a process that has a VFIO group open gives way: it may be a guest's QEMU, unless every domain was heard.
    fn yields(&self, said: &Said) -> bool {
        self.force && *said == Said::Nobody
    }

    /// Which processes have functions as guests do.
    fn guests(&self, units: &[Unit]) -> Result<Seen, BindError> {
        let all: Vec<Bdf> = units.iter().flat_map(|unit| &unit.members).copied().collect();
        Ok(holders::guests(self.root, &all)?)
    }

    /// Who has functions in use over their drivers.
    fn host(&self, units: &[Unit]) -> Result<Vec<Use>, BindError> {
        let (mut plain, mut others) = (Vec::new(), Vec::new());
        for bdf in units.iter().map(|unit| unit.bdf) {
            let dir = self.root.dir(&format!("sys/bus/pci/devices/{bdf}"))?;
            let Some(dir) = dir else { continue };
            match dir.link_name("driver")? {
                None => {}
                Some(driver) if is_vfio(&driver) => {}
                // Mass storage and networks are used by what is above them.
                Some(_) => match dir.hex::<u32>("class")?.unwrap_or_default() >> 16 {
                    0x01 | 0x02 => others.push(bdf),
                    _ => plain.push(bdf),
                },
            }
        }
        let mut uses = holders::openers(self.root, &plain)?.uses;
        if let Some(&bdf) = others.first() {
            let topology = crate::discover::discover(self.root)
                .map_err(|error| BindError::Untold { bdf, why: error.to_string() })?;
            uses.extend(holders::read(self.root, &topology, &others)?.uses);
            uses.extend(holders::known(&topology, &Occupancy::default(), &others));
        }
        Ok(uses)
    }

    /// Refuses a NIC that the host's network leads over.
    pub fn carries_none(&self, bdf: Bdf) -> Result<(), BindError> {
        let topology = crate::discover::discover(self.root)
            .map_err(|error| BindError::Untold { bdf, why: error.to_string() })?;
        let mut uses = holders::known(&topology, &Occupancy::default(), &[bdf]);
        uses.extend(holders::read(self.root, &topology, &[bdf])?.uses);
        let of_network = |kind| matches!(kind, UseKind::Network | UseKind::Address);
        match uses.into_iter().find(|used| of_network(used.kind)) {
            Some(used) => Err(BindError::InUse { bdf, by: used.by }),
            None => Ok(()),
        }
    }

    /// Opens the VFIO groups of functions, so that nobody else can; refuses one that somebody has open who is not seen.
    fn hold(&self, units: &[Unit], said: &Said, hidden: usize) -> Result<Hold, BindError> {
        let mut hold = Hold::default();
        let mut done = BTreeSet::new();
        for Unit { bdf, group, .. } in units {
            let Some(group) = group else { continue };
            let is_there = self.root.exists(&format!("sys/class/vfio/{group}"));
            if !is_there || !done.insert(group) {
                continue;
            }
            match (self.open)(group) {
                Ok(file) => hold.0.push(file),
                Err(Errno::EBUSY) if self.yields(said) => {}
                Err(Errno::EBUSY) => {
                    let by =
                        format!("a process that is not seen here and has /dev/vfio/{group} open");
                    return Err(BindError::InUse { bdf: *bdf, by });
                }
                // The node is not there, as in a container, but every process was seen.
                Err(_) if hidden == 0 => {}
                Err(errno) => {
                    let why = match said {
                        Said::Untold(why) => format!("{why}; "),
                        Said::Has(..) | Said::Nobody => String::new(),
                    };
                    let why = format!(
                        "{why}the open files of {hidden} processes are not seen, and /dev/vfio/{group} \
                         cannot be opened: {}",
                        errno.desc()
                    );
                    return Err(BindError::Untold { bdf: *bdf, why });
                }
            }
        }
        Ok(hold)
    }
}

/// Which running domain, other than that of this UUID, has one of these functions, with that function and its name; none
/// where there is none, or libvirt does not say.
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
