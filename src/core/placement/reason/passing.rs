//! Reasons for the way in which functions are passed through, as data and as text.

use std::fmt;

/// Whether functions are passed through by iommufd or by their VFIO groups, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassReason {
    /// By iommufd.
    Iommufd {
        /// Whether it was requested; otherwise the template has it.
        is_asked: bool,
        /// Whether the guest's memory is in huge pages, which are shared then.
        has_huge_pages: bool,
    },
    /// By iommufd, with an SMMUv3 in the guest, for GPUs with coherent memory.
    Coherent,
    /// By their groups.
    Groups {
        /// Whether they were requested; otherwise they are the default.
        is_asked: bool,
    },
}

impl fmt::Display for PassReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PassReason::Iommufd { is_asked, has_huge_pages } => {
                let why = if *is_asked { "as requested" } else { "as its domain XML says" };
                write!(f, "functions are passed through by iommufd, {why}")?;
                if *has_huge_pages {
                    f.write_str(
                        "; its huge pages are shared memory, since QEMU 10.1 to 11.0.1 would give \
                         devices other pages than the guest has",
                    )?;
                }
                Ok(())
            }
            PassReason::Coherent => f.write_str(
                "functions are passed through by iommufd, each GPU behind an SMMUv3 of the guest that \
                 is nested in the host's, as memory coherent with the CPU's needs; libvirt does not \
                 bind these GPUs, since it would take nvgrace-gpu-vfio-pci away when the guest stops",
            ),
            PassReason::Groups { is_asked: true } => {
                f.write_str("functions are passed through by VFIO groups, as requested")
            }
            PassReason::Groups { is_asked: false } => f.write_str(
                "functions are passed through by VFIO groups, the default: this guest needs nothing \
                 that only iommufd has",
            ),
        }
    }
}
