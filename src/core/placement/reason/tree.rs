//! Reasons for the guest's PCIe tree and MMIO window, as data and as text.

use crate::bdf::Bdf;
use crate::placement::InitiatorCells;
use crate::placement::explain::{count, list};
use std::fmt;

/// The MMIO window and the memory do not fit into the host's address bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a window of {window_gib} GiB for BARs and {memory_gib} GiB of memory do not fit into {bits} \
     physical address bits"
)]
pub struct WindowTooLarge {
    /// The window, in GiB.
    pub window_gib: u64,
    /// The guest's memory, in GiB.
    pub memory_gib: u64,
    /// Physical address bits of the host.
    pub bits: u8,
}

/// A reason for the guest's PCIe tree or MMIO window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeReason {
    /// Devices below an expander bus.
    Bus {
        /// Devices.
        devices: Vec<Bdf>,
        /// How many root ports they have: a card's functions have one.
        ports: usize,
        /// The bus's guest cell; `None` if cells are bound to no node.
        cell: Option<u32>,
    },
    /// Devices on another node than the vCPUs of the only cell.
    Away {
        /// Devices.
        devices: Vec<Bdf>,
    },
    /// Devices that the guest sees near no cell.
    NearNone {
        /// Devices.
        devices: Vec<Bdf>,
        /// Whether their node is known.
        is_known: bool,
    },
    /// The host's PCIe switches are left out.
    NoSwitches {
        /// Whether QEMU's switch ports support a configured speed.
        has_speed: bool,
    },
    /// The machine has no PCI Express.
    NoPcie {
        /// Its type.
        machine: String,
    },
    /// The window does not fit.
    TooLarge(WindowTooLarge),
    /// BARs are unknown.
    NoBars,
    /// A window.
    Window {
        /// Devices that are not counted, since their BARs are unknown.
        unknown: Vec<Bdf>,
        /// Its size, in GiB.
        gib: u64,
        /// The window that UEFI makes by itself, in GiB; `None` if the host's address bits are
        /// unknown.
        automatic_gib: Option<u64>,
        /// Whether the size is set for UEFI.
        is_told: bool,
        /// Physical address bits of the host.
        bits: u8,
    },
    /// Empty cells for the memory of GPUs.
    Initiators {
        /// By GPU.
        cells: Vec<InitiatorCells>,
        /// Whether all distances are known.
        is_known: bool,
    },
    /// APIC ids beyond 8 bits.
    Remaps,
    /// There is no built-in template for the host's architecture.
    NoTemplate {
        /// The architecture.
        architecture: String,
    },
}

/// Lists the devices below an expander bus.
fn bus(
    f: &mut fmt::Formatter<'_>,
    devices: &[Bdf],
    ports: usize,
    cell: Option<u32>,
) -> fmt::Result {
    let names = list(devices);
    match devices.len() {
        1 => write!(f, "{names} at a root port below an expander bus of "),
        all if all == ports => {
            write!(f, "{names}, a root port each, below an expander bus of ")
        }
        _ => {
            let ports = count(ports, "root port");
            write!(
                f,
                "{names}, those of a card in one slot as on the host, at {ports} below an expander \
                 bus of "
            )
        }
    }?;
    match cell {
        Some(cell) => write!(f, "cell {cell}"),
        None => f.write_str("no cell: cells are bound to no node"),
    }
}

/// Says which cells are for the memory of which GPU.
fn initiators(f: &mut fmt::Formatter<'_>, cells: &[InitiatorCells], is_known: bool) -> fmt::Result {
    let of = |InitiatorCells { gpu, cells }: &InitiatorCells| {
        format!("{gpu}: cells {}-{}", cells.start, cells.end.saturating_sub(1))
    };
    let each: Vec<String> = cells.iter().map(of).collect();
    write!(f, "empty cells for the memory of GPUs: {}", each.join("; "))?;
    if !is_known {
        f.write_str("; some distances are unknown on this host and left out")?;
    }
    Ok(())
}

impl fmt::Display for TreeReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TreeReason::Bus { devices, ports, cell } => bus(f, devices, *ports, *cell),
            TreeReason::Away { devices } => {
                write!(f, "{}: on another node than the guest's vCPUs", list(devices))
            }
            TreeReason::NearNone { devices, is_known } => {
                let why =
                    if *is_known { "no cell is on their node" } else { "their node is unknown" };
                write!(f, "{}: {why}, so the guest sees them near none", list(devices))
            }
            TreeReason::NoSwitches { has_speed: true } => f.write_str(
                "the host's switches are left out: gpuvm gives each device a root port with its \
                 path's link",
            ),
            TreeReason::NoSwitches { has_speed: false } => f.write_str(
                "the host's switches are left out: this QEMU cannot set the \
                 speed of switch ports, and NVIDIA's driver refuses peer-to-peer over 2.5 GT/s",
            ),
            TreeReason::NoPcie { machine } => {
                write!(
                    f,
                    "machine type `{machine}` has no PCI Express; only q35 gives devices root ports"
                )
            }
            TreeReason::TooLarge(error) => error.fmt(f),
            TreeReason::NoBars => f.write_str("not set: the record does not know the BARs"),
            TreeReason::Window { unknown, gib, automatic_gib, is_told, bits } => {
                write!(f, "{gib} GiB for 64-bit BARs")?;
                match (automatic_gib, is_told) {
                    (None, _) => f.write_str(
                        ", chosen by the firmware: the record does not know the address bits",
                    ),
                    (Some(own), true) => {
                        write!(
                            f,
                            ", set explicitly: the firmware would choose {own} GiB with {bits} address \
                             bits"
                        )
                    }
                    (Some(own), false) => write!(
                        f,
                        "; the firmware chooses {own} GiB itself with {bits} address bits (edk2-stable202211 \
                         and later)"
                    ),
                }?;
                if !unknown.is_empty() {
                    let unknown = list(unknown);
                    write!(f, "; the BARs of {unknown} are unknown and not counted")?;
                }
                Ok(())
            }
            TreeReason::Initiators { cells, is_known } => initiators(f, cells, *is_known),
            TreeReason::Remaps => f.write_str(
                "with APIC ids above 254 the guest has an Intel IOMMU that only remaps interrupts \
                 (eim), also on AMD hosts",
            ),
            TreeReason::NoTemplate { architecture } => write!(
                f,
                "there is no built-in template for {architecture}: --template FILE names one"
            ),
        }
    }
}
