//! Judges host settings that cost this guest performance.

use super::report::{Between, Report, Wrong};
use crate::check::guest::Guest;
use crate::cpuset::CpuSet;
use crate::finding::Rule;
use crate::shell::word;
use crate::topology::Topology;
use crate::verify::tuning::Tuning;

/// A pcpu in a deep sleep state or at low frequency responds late.
pub(crate) const GOVERNOR: Rule =
    Rule::warning("governor", "pinned pcpus whose frequency is not governed for performance");
/// Unbound memory of a guest stays where it was allocated, wherever its vCPUs went.
pub(crate) const BALANCING: Rule = Rule::warning(
    "numa-balancing-off",
    "unbound memory on a host of several nodes that does not balance it",
);
/// Each access to a page not seen lately walks through more levels.
pub(crate) const THP: Rule = Rule::warning(
    "transparent-huge-pages-off",
    "memory on normal pages of a host that never joins them",
);
/// The kernel does not spread threads over isolated pcpus: all stay on the first.
const ISOLATED: Rule =
    Rule::warning("isolated-not-spread", "threads that float over several isolated pcpus");

/// A guest that has it keeps it; no other gets it.
pub(crate) const UNHEALTHY: Rule =
    Rule::warning("hostdev-unhealthy", "a passed-through GPU whose health is over a limit");

/// Rules of this module.
pub const RULES: &[Rule] = &[GOVERNOR, BALANCING, THP, ISOLATED, UNHEALTHY];

/// Judges the host's settings.
pub fn compare(defined: &Guest<'_>, topology: &Topology, tuning: &Tuning, report: &mut Report) {
    governors(defined, tuning, report);
    pages(defined, topology, tuning, report);
    isolated(defined, topology, report);
    unhealthy(defined, topology, report);
}

/// Judges the health of GPUs that the guest has.
fn unhealthy(defined: &Guest<'_>, topology: &Topology, report: &mut Report) {
    for passed in &defined.passed {
        let bdf = passed.bdf.value;
        let health = topology.device(bdf).and_then(|device| device.health.as_ref());
        let Some(health) = health.filter(|health| health.is_over()) else { continue };
        let wrong = Wrong {
            what: format!("health of {bdf}"),
            expected: "no finding over a limit".into(),
            found: health.why(),
            at: "`gpuvm gpu list`".into(),
            hint: "the guest keeps it; once it is off, NVIDIA's field diagnostic tells more",
        };
        report.differs(&UNHEALTHY, Between::Host, wrong);
    }
}

/// Judges the frequency governors of pcpus that vCPUs are pinned to.
fn governors(defined: &Guest<'_>, tuning: &Tuning, report: &mut Report) {
    let pins = defined.vcpu_pins.iter().fold(CpuSet::new(), |all, pin| all.or(&pin.cpuset.value));
    for (governor, pcpus) in &tuning.governors {
        let slow = pins.and(pcpus);
        if governor != "performance" && !slow.is_empty() {
            let wrong = Wrong {
                what: format!("governor of pcpus {slow}"),
                expected: "performance".into(),
                found: governor.clone(),
                at: "/sys/devices/system/cpu/cpuN/cpufreq/scaling_governor".into(),
                hint: "`gpuvm host tuning --governor performance --at-boot`",
            };
            report.differs(&GOVERNOR, Between::Host, wrong);
        }
    }
}

/// Judges the kernel's settings for memory that is neither bound nor on huge pages.
fn pages(defined: &Guest<'_>, topology: &Topology, tuning: &Tuning, report: &mut Report) {
    let bound = |bank: &crate::check::guest::Bank<'_, '_>| {
        bank.binding.is_some_and(|binding| binding.is_hard())
    };
    let huge = defined.huge_pages.is_some();
    let several = topology.nodes().iter().filter(|node| !node.memory_kib.is_zero()).count() > 1;
    let off = topology.machine().numa_balancing == Some(false);
    if several && off && !huge && !defined.banks().iter().all(bound) {
        let hint = format!(
            "`gpuvm host tuning --numa-balancing on`, or bind the memory: `gpuvm tune {} --cells \
             on --memory-nodes on`",
            word(&defined.name)
        );
        let wrong = Wrong {
            what: "automatic NUMA balancing".into(),
            expected: "1".into(),
            found: "0".into(),
            at: "/proc/sys/kernel/numa_balancing".into(),
            hint: &hint,
        };
        report.differs(&BALANCING, Between::Host, wrong);
    }
    if !huge && tuning.transparent_huge_pages.as_deref() == Some("never") {
        let wrong = Wrong {
            what: "transparent huge pages".into(),
            expected: "madvise or always".into(),
            found: "never".into(),
            at: "/sys/kernel/mm/transparent_hugepage/enabled".into(),
            hint: "`gpuvm host tuning --transparent-huge-pages madvise`, or give the guest huge \
                   pages",
        };
        report.differs(&THP, Between::Host, wrong);
    }
}

/// Judges pins to several isolated pcpus.
fn isolated(defined: &Guest<'_>, topology: &Topology, report: &mut Report) {
    let isolated = &topology.parts().isolated;
    let vcpus = defined.vcpu_pins.iter().map(|pin| (format!("vcpu {}", pin.of.value), &pin.cpuset));
    let helpers = crate::check::helper_pins(defined);
    for (what, pin) in vcpus.chain(helpers) {
        if pin.value.len() > 1 && pin.value.is_subset(isolated) {
            let wrong = Wrong {
                what: format!("pcpus of {what}, which the kernel spreads nothing over"),
                expected: "one pcpu, or pcpus that are not isolated".into(),
                found: pin.value.to_string(),
                at: pin.spot.path(),
                hint: "leave pcpus of emulator and I/O threads out of isolcpus=, or pin to one of \
                       them",
            };
            report.differs(&ISOLATED, Between::Host, wrong);
        }
    }
}
