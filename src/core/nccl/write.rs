//! The text of a topology, as NCCL's own reader takes it: no prolog, no tabs, attributes on one line, lower-case addresses.

use super::{Pci, System};
use std::fmt;

/// What an admin of the guest reads first. NCCL skips comments, also before the first element.
const HEAD: &str = "<!-- Made by gpuvm for this guest. Switches with only one of its devices are left out. \
                    Stale after any change to its devices: make it again with gpuvm nccl. -->";

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEAD}\n<system version=\"1\">")?;
        for cpu in &self.cpus {
            writeln!(f, "  <cpu numaid=\"{}\">", cpu.numaid)?;
            for pci in &cpu.below {
                element(f, pci, 2)?;
            }
            writeln!(f, "  </cpu>")?;
        }
        writeln!(f, "</system>")
    }
}

/// Writes an element and what is below it.
fn element(f: &mut fmt::Formatter<'_>, pci: &Pci, depth: usize) -> fmt::Result {
    let indent = "  ".repeat(depth);
    write!(f, "{indent}<pci busid=\"{}\" class=\"{}\"", pci.busid, pci.class)?;
    if let Some(speed) = pci.link.link_speed {
        write!(f, " link_speed=\"{speed}\"")?;
    }
    if let Some(width) = pci.link.link_width {
        write!(f, " link_width=\"{width}\"")?;
    }
    if let Some(ids) = &pci.ids {
        write!(f, " vendor=\"{}\" device=\"{}\"", ids.vendor, ids.device)?;
        let (vendor, device) = (&ids.subsystem_vendor, &ids.subsystem_device);
        write!(f, " subsystem_vendor=\"{vendor}\" subsystem_device=\"{device}\"")?;
    }
    if pci.below.is_empty() {
        return writeln!(f, "/>");
    }
    writeln!(f, ">")?;
    for below in &pci.below {
        element(f, below, depth + 1)?;
    }
    writeln!(f, "{indent}</pci>")
}
