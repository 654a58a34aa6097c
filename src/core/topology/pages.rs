//! Huge pages of a host: their pools, and where they are mounted.

use super::Machine;
use crate::memsize::MemSize;
use serde::{Deserialize, Serialize};

/// A pool of huge pages of one size on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HugePagePool {
    /// Page size.
    pub page_kib: MemSize,
    /// Pages in the pool.
    pub total: u64,
    /// Free pages.
    pub free: u64,
    /// Pages of the pool beyond the number that was set: the kernel drops each when it is no longer
    /// used.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub surplus: u64,
}

impl HugePagePool {
    /// Returns the configured number: all pages but the surplus.
    pub fn reserved(&self) -> u64 {
        self.total.saturating_sub(self.surplus)
    }

    /// Pages in use.
    pub fn used(&self) -> u64 {
        self.total.saturating_sub(self.free)
    }
}

/// Whether a number is left out of a record.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A mounted hugetlbfs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HugetlbMount {
    /// Page size.
    pub page_kib: MemSize,
    /// Where it is mounted.
    pub at: String,
}

impl Machine {
    /// Whether a file system of huge pages of this size is mounted; `None` if unknown.
    pub fn mounts_pages(&self, page: MemSize) -> Option<bool> {
        let mounts = self.hugetlbfs.as_ref()?;
        Some(mounts.iter().any(|mount| mount.page_kib == page))
    }
}

/// Returns why a guest cannot use pages of a size without a mounted file system.
pub fn not_mounted(page: MemSize) -> String {
    format!(
        "libvirt backs guests with pages of {page} only where a hugetlbfs of that size was mounted \
         when its daemon started, and none is mounted"
    )
}

/// Returns how to mount such a file system, now and at boot.
pub fn how_to_mount(page: MemSize) -> String {
    let size = page.typed();
    let at = format!("/dev/hugepages{size}");
    format!(
        "`mkdir {at} && mount -t hugetlbfs -o pagesize={size} hugetlbfs {at}`, then `systemctl \
         restart libvirtd` (virtqemud where that is used); for every boot the line `hugetlbfs {at} \
         hugetlbfs pagesize={size} 0 0` in /etc/fstab"
    )
}
