//! Writes a topology in the form that NCCL's parser accepts: no prolog, no tabs, attributes on one
//! line, lower-case addresses.

use super::{Pci, System, place};
use std::fmt::{self, Write};

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut body = String::from("<system version=\"1\">\n");
        for cpu in &self.cpus {
            writeln!(body, "  <cpu numaid=\"{}\">", cpu.numaid)?;
            for pci in &cpu.below {
                element(&mut body, pci, 2)?;
            }
            writeln!(body, "  </cpu>")?;
        }
        body += "</system>\n";
        // NCCL skips comments, even before the first element.
        write!(f, "{}\n{body}", place::head(&body))
    }
}

/// Writes an element and its children.
fn element(f: &mut String, pci: &Pci, depth: usize) -> fmt::Result {
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
