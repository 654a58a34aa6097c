//! Kernel settings of the host that affect guests: frequencies, transparent huge pages, open files.

use crate::cpuset::CpuSet;
use serde::Serialize;
use std::collections::BTreeMap;

/// libvirt's configuration of QEMU.
pub const CONF: &str = "etc/libvirt/qemu.conf";
/// Its key for the open-files limit of QEMU.
pub const MAX_FILES: &str = "max_files";

/// How the host's kernel is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Tuning {
    /// Pcpus by their frequency governor; empty where there is none, as in virtual machines.
    pub governors: BTreeMap<String, CpuSet>,
    /// When memory is put on huge pages by itself: `always`, `madvise`, `never`; `None` if this
    /// kernel cannot.
    pub transparent_huge_pages: Option<String>,
    /// How many files a guest that starts now may have open; `None` if not known.
    pub file_limit: Option<u64>,
}
