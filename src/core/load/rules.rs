//! The rules of `top`, and the form of their findings.

use crate::finding::{self, Rule, Says};
use serde::Serialize;

/// A fault in the load of a guest or of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OfLoad {
    /// The fault, with the value found.
    pub message: String,
    /// Where: a thread, a device, a file.
    pub at: String,
}

impl Says for OfLoad {
    const MOST_OF_ONE_RULE: usize = 20;

    fn rules() -> impl Iterator<Item = &'static Rule> {
        rules()
    }

    fn say_more(&mut self, text: &str) {
        self.message += text;
    }
}

/// A finding about the load of a guest or of the host.
pub type LoadFinding = finding::Finding<OfLoad>;

/// Something else runs where the guest was promised to run.
pub const WAITS: Rule = Rule::warning("vcpu-waits", "a pinned vCPU that waits for its pcpu");
/// A quota of libvirt, of a slice or of a container.
pub const THROTTLED: Rule = Rule::warning("vcpu-throttled", "a guest that a CPU quota holds back");
/// Disks, NICs and the monitor are served late.
pub(super) const EMULATOR: Rule =
    Rule::warning("emulator-busy", "emulator threads that use nearly all of their pcpus");
/// Only the width: idle GPUs lower the speed of their link on purpose.
pub(super) const LINK: Rule =
    Rule::warning("link-width", "a PCIe link with fewer lanes than both ends have");
pub(super) const AER: Rule = Rule::warning("aer-errors", "PCIe errors that were counted just now");
/// Guests wait for memory that is reclaimed, swapped or refaulted.
pub(super) const PRESSURE: Rule =
    Rule::warning("host-pressure", "a host on which tasks wait for memory");

/// Rules that `verify` has, too.
pub const VERIFY_RULES: &[Rule] = &[WAITS, THROTTLED];
/// Rules of `top` alone.
pub const OWN_RULES: &[Rule] = &[EMULATOR, LINK, AER, PRESSURE];

/// Every rule of this module.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    VERIFY_RULES.iter().chain(OWN_RULES)
}
