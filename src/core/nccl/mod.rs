//! The topology file for NCCL in a guest (`NCCL_TOPO_FILE`): the host's PCIe tree around the
//! guest's devices, made from the guest's definition and its host.
//!
//! A guest sees each passed-through function below a root port of its own, so that NCCL considers
//! GPUs and NICs of one switch distant and disables GPUDirect RDMA. The file restores the host's
//! switches, as elements with addresses that no guest has. NCCL looks its GPUs and NICs up in it by
//! their addresses in the guest, which the guest's firmware assigns ([`bus`]), and takes their
//! parents from it (NVIDIA/nccl, src/graph/xml.cc and topo.cc, 2.30). What NCCL reads from the
//! guest itself, unless a file overrides it, is not written: affinities, CPU models, NVLinks,
//! ranks.
//!
//! Knows no bandwidth and no NVLink, and writes no file.

pub mod bus;
mod cells;
mod filled;
mod link;
pub mod place;
mod tree;
mod write;

use crate::bdf::Bdf;
use crate::check::guest::Guest;
use crate::domain::DomainXml;
use crate::domain::claims::Passed;
use crate::p2p::{Block, Code, Way};
use crate::topology::pairs::{PairRoute, Pairs};
use crate::topology::{DeviceKind, Moment, PciDevice, Sriov, Topology};
use bus::Buses;
use serde::Serialize;
use std::collections::BTreeSet;

pub use link::PcieLink;

/// The most elements written. NCCL reads 256 (src/graph/xml.h), and adds its own for GPUs, NICs and
/// NVLinks.
const MOST_ELEMENTS: usize = 200;
/// The most children of an element: NCCL 2.28 reads 128, later ones 640.
const MOST_BELOW: usize = 128;

/// The topology of a guest, as NCCL reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct System {
    /// Guest NUMA cells that have GPUs or NICs, by number.
    pub cpus: Vec<Cpu>,
}

/// A guest NUMA cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cpu {
    /// Its number in the guest.
    pub numaid: u32,
    /// Switches in host order, then functions in the order of their guest addresses.
    pub below: Vec<Pci>,
}

/// A switch of the host, or a function that is passed through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pci {
    /// A function's address in the guest; for a switch an address that no guest uses.
    pub busid: Bdf,
    /// Address on the host; for a switch that of its upstream port.
    pub host: Bdf,
    /// Class, subclass and programming interface: `0x030200`.
    pub class: String,
    /// The link to the next element above, or to the CPU.
    #[serde(flatten)]
    pub link: PcieLink,
    /// Model of a switch; none for a function, which NCCL queries itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ids: Option<SwitchIds>,
    /// The elements below a switch: switches in host order, then functions in the order of their
    /// guest addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub below: Vec<Pci>,
}

/// The ids of a switch, as in sysfs. By them NCCL recognizes models whose levels it counts as one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SwitchIds {
    /// Vendor.
    pub vendor: String,
    /// Device.
    pub device: String,
    /// Subsystem vendor.
    pub subsystem_vendor: String,
    /// Subsystem device.
    pub subsystem_device: String,
}

/// The subject of a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::Display)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum About {
    /// Whether the guest needs the file at all.
    Need,
    /// Switches that are left out.
    Switches,
    /// A link whose speed or width the host's record lacks.
    Link,
    /// The guest NUMA cell of a function.
    Cell,
    /// Bus numbers that are not proven for this guest's firmware.
    Firmware,
    /// Other requirements of GPUDirect RDMA.
    GpuDirect,
    /// NICs that a libvirt network assigns when the guest starts.
    Networks,
    /// Switches that redirect peer-to-peer requests to the root complex.
    Acs,
}

/// A note on the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Note {
    /// The subject.
    pub about: About,
    /// The fact, a sentence without full stop.
    pub says: String,
    /// Whether NCCL may choose worse because of it than on the host.
    pub compromise: bool,
}

/// A guest's topology, with notes on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotedSystem {
    /// The topology.
    pub system: System,
    /// Inferred, missing or omitted values.
    pub notes: Vec<Note>,
    /// Whether it makes a difference to NCCL: the guest has two GPUs, or a GPU and a NIC.
    pub is_needed: bool,
}

/// The reason no topology file can be made for a guest.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "nccl-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum NcclError {
    /// No GPU that NCCL uses is passed through.
    #[error("the guest has no NVIDIA GPU")]
    NoGpu,
    /// The guest has no PCI Express; its buses are numbered differently.
    #[error("the guest's machine type has no PCI Express")]
    NoPcie,
    /// A value of the definition cannot be read.
    #[error("domain XML, {path}: {message}")]
    Unreadable { path: String, message: String },
    /// The definition leaves an address to libvirt.
    #[error("{what} has no guest address: libvirt has not filled in the definition")]
    NoAddress { what: String },
    /// An argument of QEMU passes a function, so that its address is chosen when QEMU starts.
    #[error("{bdf} is passed by an argument of QEMU: its guest address is not in the definition")]
    ByArgument { bdf: Bdf },
    /// A function is on a controller that does not exist or is not below a root bus.
    #[error("{bdf} is on PCI controller {controller}, which is not connected to a root bus")]
    Unconnected { bdf: Bdf, controller: u32 },
    /// Controller 0 is not the machine's PCIe root.
    #[error("PCI controller 0 is a {model}, but must be the root bus")]
    NotRoot { model: String },
    /// A controller is on a bus of its own.
    #[error("PCI controller {controller} is on a bus below itself")]
    ControllerLoop { controller: u32 },
    /// Two controllers have one index.
    #[error("two PCI controllers have index {index}")]
    SameIndex { index: u32 },
    /// Two devices have the same address.
    #[error("domain XML, {second}: {first} is the same guest address")]
    SameAddress { first: String, second: String },
    /// A function is passed through twice.
    #[error("{bdf} is passed through twice")]
    PassedTwice { bdf: Bdf },
    /// A device is in a PCI segment that no guest has.
    #[error("domain XML, {path}: PCI domain {segment:#06x}; a guest has only domain 0")]
    OtherSegment { path: String, segment: u32 },
    /// Two root buses need the same bus numbers, or numbers above 255.
    #[error("{}", numbers_said(*root, *reached, *limit))]
    BusNumbers {
        root: u32,
        /// Number of the last bus below it.
        reached: u32,
        /// The highest number that it may have.
        limit: u32,
    },
    /// The host's record does not contain the place of a function.
    #[error("the host's record does not include the bridges above {bdf}")]
    UnknownPath { bdf: Bdf },
    /// NCCL would look a NIC up at another address than its own.
    #[error("NIC {bdf} is at {guest} in the guest, but NCCL looks for it at device 00, function 0")]
    NicPlace { bdf: Bdf, guest: Bdf },
    /// NCCL would take two NICs for one.
    #[error("NICs {first} and {second} are on guest bus {bus:02x}, so NCCL treats them as one")]
    NicsOnOneBus { first: Bdf, second: Bdf, bus: u8 },
    /// It exceeds a limit of NCCL.
    #[error("the topology has {count} {what}; NCCL reads at most {most}")]
    TooLarge { count: usize, what: &'static str, most: usize },
}

/// Says why buses cannot be numbered.
fn numbers_said(root: u32, reached: u32, limit: u32) -> String {
    if root > bus::LAST {
        format!("an expander bus has number {root}, and {} is the last one of PCI", bus::LAST)
    } else if reached == root {
        format!("two root buses of the guest have number {root}")
    } else if limit >= bus::LAST {
        format!(
            "the PCI buses below bus {root} need numbers up to {reached}, and {limit} is the last one \
             of PCI"
        )
    } else {
        let next = limit + 1;
        format!(
            "the PCI buses below bus {root} need number {reached}, and root bus {next} begins there"
        )
    }
}

/// A GPU or NIC of the guest.
#[derive(Debug, Clone)]
struct Function<'h> {
    host: &'h PciDevice,
    /// Its address in the guest.
    guest: Bdf,
    /// The guest NUMA cell that the guest's kernel reports for it; `None` if no particular cell.
    seen: Option<u32>,
}

/// Makes the topology of a guest on its host.
///
/// # Errors
///
/// If an address, a path or a limit of NCCL would make the file wrong: nothing is guessed.
pub fn topology(domain: &DomainXml, host: &Topology) -> Result<NotedSystem, NcclError> {
    if !domain.is_pcie() {
        return Err(NcclError::NoPcie);
    }
    let guest = Guest::read(domain);
    let of_devices = |path: &str| path.starts_with("/domain/devices/");
    let fault = guest.faults.iter().map(|fault| (fault.spot.path(), &fault.message));
    if let Some((path, message)) = fault.into_iter().find(|(path, _)| of_devices(path)) {
        return Err(NcclError::Unreadable { path, message: message.clone() });
    }
    filled::refuse_unfilled(domain, &guest)?;
    let functions = functions(domain, &guest, host)?;
    let gpus = functions.iter().filter(|one| one.host.kind() == DeviceKind::Gpu).count();
    if gpus == 0 {
        return Err(NcclError::NoGpu);
    }
    let nics = functions.len() - gpus;
    let mut notes = Vec::new();
    let system = tree::build(&functions, &guest, host, &mut notes)?;
    refuse_large(&system)?;
    let is_needed = functions.len() > 1;
    if !is_needed {
        let says = "not needed: one GPU and no NIC share nothing".to_owned();
        notes.push(Note { about: About::Need, says, compromise: false });
    }
    if nics > 0 {
        let says = "GPUDirect RDMA also needs nvidia-peermem in the guest, or dma-buf: Linux 5.12 \
                    and NVIDIA's open kernel modules";
        notes.push(Note { about: About::GpuDirect, says: says.into(), compromise: false });
    }
    if !domain.is_x86() {
        let says =
            "guest addresses are inferred: the order of bus numbers is proven for x86 firmware";
        notes.push(Note { about: About::Firmware, says: says.into(), compromise: false });
    }
    filled::note_networks(domain, &mut notes);
    Ok(NotedSystem { system, notes, is_needed })
}

/// The GPUs and NICs of a guest, by guest address.
fn functions<'h>(
    domain: &DomainXml,
    guest: &Guest<'_>,
    host: &'h Topology,
) -> Result<Vec<Function<'h>>, NcclError> {
    let buses = Buses::new(domain, guest)?;
    let mut functions = Vec::new();
    let mut seen = BTreeSet::new();
    for passed in &guest.passed {
        let bdf = passed.bdf.value;
        // The namespaces of an NVMe drive are disks, not functions.
        let is_disk = passed.device.element().name() == "disk";
        if !is_disk && !seen.insert(bdf) {
            return Err(NcclError::PassedTwice { bdf });
        }
        let device = host.device(bdf).ok_or(NcclError::UnknownPath { bdf })?;
        if is_disk || is_withheld(passed) {
            continue;
        }
        if passed.by_argument {
            return Err(NcclError::ByArgument { bdf });
        }
        let no_address = || NcclError::NoAddress { what: bdf.to_string() };
        let at = passed.at.as_ref().ok_or_else(no_address)?;
        let counts = match device.kind() {
            DeviceKind::Gpu => device.vendor == crate::topology::vendor::VENDOR_NVIDIA,
            kind => kind == DeviceKind::Nic,
        };
        if !counts {
            continue;
        }
        let guest = buses.address(at.value, bdf)?;
        functions.push(Function { host: device, guest, seen: buses.cell_of(at.controller) });
    }
    functions.sort_by_key(|function| function.guest);
    one_nic_a_bus(functions)
}

/// Whether a function is detached from the host but not shown to the guest, as some members of an
/// IOMMU group are.
fn is_withheld(passed: &Passed<'_>) -> bool {
    let address = passed.device.element().child("address");
    address.is_some_and(|address| address.attr("type").as_deref() == Some("unassigned"))
}

/// Keeps one function of each NIC. NCCL looks a NIC up by function 0, since it treats ports as one
/// NIC, and by device 00, since it treats virtual functions of one card as one
/// (`NCCL_IB_MERGE_VFS`, src/transport/net_ib/init.cc).
fn one_nic_a_bus(functions: Vec<Function<'_>>) -> Result<Vec<Function<'_>>, NcclError> {
    let mut kept: Vec<Function<'_>> = Vec::new();
    let is_nic = |function: &Function<'_>| function.host.kind() == DeviceKind::Nic;
    for function in functions {
        let bdf = function.host.bdf;
        let on_bus = |other: &&Function<'_>| {
            is_nic(other) && other.guest.bus() == function.guest.bus() && is_nic(&function)
        };
        if let Some(first) = kept.iter().find(on_bus) {
            let slot = |bdf: Bdf| (bdf.segment(), bdf.bus(), bdf.device());
            let is_port = slot(first.host.bdf) == slot(bdf)
                && slot(first.guest) == slot(function.guest)
                && !matches!(function.host.sriov, Some(Sriov::Vf { .. }));
            if is_port {
                continue;
            }
            let bus = function.guest.bus();
            return Err(NcclError::NicsOnOneBus { first: first.host.bdf, second: bdf, bus });
        }
        let guest = function.guest;
        if is_nic(&function) && (guest.device(), guest.function()) != (0, 0) {
            return Err(NcclError::NicPlace { bdf, guest });
        }
        kept.push(function);
    }
    Ok(kept)
}

fn refuse_large(system: &System) -> Result<(), NcclError> {
    let fits = |count, what, most| {
        if count > most { Err(NcclError::TooLarge { count, what, most }) } else { Ok(()) }
    };
    let widest = system.cpus.iter().map(|cpu| widest(&cpu.below)).max().unwrap_or_default();
    fits(widest, "elements in one", MOST_BELOW)?;
    fits(system.elements(), "elements", MOST_ELEMENTS)
}

/// Returns the most elements at any one level.
fn widest(level: &[Pci]) -> usize {
    level.iter().map(|pci| widest(&pci.below)).fold(level.len(), usize::max)
}

impl System {
    /// How many elements it has, itself included.
    pub fn elements(&self) -> usize {
        1 + self.cpus.iter().map(|cpu| 1 + count(&cpu.below)).sum::<usize>()
    }

    /// Returns the functions in the order of the file: address on the host, address in the guest.
    pub fn functions(&self) -> Vec<(Bdf, Bdf)> {
        let mut functions = Vec::new();
        let mut left: Vec<&Pci> =
            self.cpus.iter().rev().flat_map(|cpu| cpu.below.iter().rev()).collect();
        while let Some(pci) = left.pop() {
            if pci.ids.is_none() {
                functions.push((pci.host, pci.busid));
            }
            left.extend(pci.below.iter().rev());
        }
        functions
    }
}

/// Ports of the host through which transfers between functions of a guest below one switch do not
/// take their switch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Redirects {
    /// Those that send requests or completions to the root complex.
    pub root: BTreeSet<Bdf>,
    /// Those that reject translated requests.
    pub rejected: BTreeSet<Bdf>,
    /// Why requests of functions are not translated, so that the ports redirect them.
    pub untranslated: BTreeSet<Block>,
    /// The functions whose relaxed ordering is off, so that the ports redirect completions of their
    /// reads.
    pub strict: BTreeSet<Bdf>,
    /// Whether a port sends requests to the root complex, not only completions.
    pub requests: bool,
}

/// Finds the ports that decide on the transfers of `host p2p`, of the GPUs and NICs of a guest.
pub fn redirects(system: &System, host: &Topology, moment: Moment) -> Redirects {
    let functions: Vec<Bdf> = system.functions().into_iter().map(|(host, _)| host).collect();
    let pairs = Pairs::at(host, Some(&functions), moment).pairs;
    let mut found = Redirects::default();
    for PairRoute { from, to, way, blocked, .. } in pairs.iter().flat_map(|pair| &pair.routes) {
        match way {
            Way::Rejected => found.rejected.extend(blocked.iter().map(|block| block.at)),
            Way::Root => {
                let is_completion = |block: &Block| block.code == Code::CrWithoutRo;
                let port = |from, to| host.divergence(from, to).map(|port| port.bdf);
                if blocked.iter().any(is_completion) {
                    found.root.extend(port(*to, *from));
                    found.strict.extend(blocked.iter().filter(|b| is_completion(b)).map(|b| b.at));
                }
                if !blocked.iter().all(is_completion) {
                    found.requests = true;
                    found.root.extend(port(*from, *to));
                    let is_of_function =
                        |block: &&Block| matches!(block.code, Code::NoAts | Code::AtsOff);
                    found.untranslated.extend(blocked.iter().filter(is_of_function));
                }
            }
            Way::Switch | Way::Unknown => {}
        }
    }
    found
}

impl Redirects {
    /// The remarks on these ports.
    pub fn notes(&self) -> Vec<Note> {
        let named =
            |ports: &BTreeSet<Bdf>| ports.iter().map(Bdf::to_string).collect::<Vec<_>>().join(", ");
        let root = (!self.root.is_empty()).then(|| {
            let [what, traffic, go] = if self.requests {
                ["transfers", "traffic", "goes"]
            } else {
                ["completions of reads", "reads", "return"]
            };
            let strict = (!self.strict.is_empty())
                .then(|| format!("relaxed ordering of {} is off", named(&self.strict)));
            let why = self.untranslated.iter().map(Block::to_string).chain(strict);
            let why = why.collect::<Vec<_>>().join(", ");
            let why = if why.is_empty() { why } else { format!(" ({why})") };
            format!(
                "ACS redirects {what} at {}{why}: {traffic} between GPUs and NICs below one PCIe \
                 switch {go} through the host's root complex, slower than through the switch",
                named(&self.root)
            )
        });
        let rejected = (!self.rejected.is_empty()).then(|| {
            format!(
                "ACS rejects translated requests at {} (bit TB is on): transfers between GPUs and \
                 NICs below one PCIe switch fail; `gpuvm host p2p` shows them",
                named(&self.rejected)
            )
        });
        let note = |says| Note { about: About::Acs, says, compromise: true };
        root.into_iter().chain(rejected).map(note).collect()
    }
}

/// The guest addresses of the functions that a file of ours names, in its order; switches have
/// addresses that no guest has.
pub fn addresses_of(file: &str) -> Vec<Bdf> {
    let named = file.split("<pci busid=\"").skip(1).filter_map(|rest| rest.split('"').next());
    named
        .filter_map(|busid| busid.parse().ok())
        .filter(|busid: &Bdf| busid.segment() == 0)
        .collect()
}

/// How many elements these are with all below them.
fn count(level: &[Pci]) -> usize {
    level.iter().map(|pci| 1 + count(&pci.below)).sum()
}

#[cfg(test)]
mod tests;
