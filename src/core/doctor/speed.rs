//! Rules on causes of slow or uneven guests: processors, interrupts, links.

use super::report::{Report, Wrong};
use super::{Case, fix};
use crate::cpuset::CpuSet;
use crate::finding::Rule;
use crate::shell::word;
use crate::topology::Topology;
use crate::topology::facts::IRQBALANCE as IRQBALANCE_SERVICE;
use crate::verify::{BALANCING, GOVERNOR, THP};

/// Interrupts land on pcpus of guests.
pub const IRQBALANCE: Rule =
    Rule::note("irqbalance", "interrupts that are spread over isolated pcpus, too");
/// Isolated pcpus that no guest uses are lost.
pub const ISOLATION: Rule =
    Rule::warning("isolation-mismatch", "isolated pcpus and pcpus of guests that differ");
/// Links that sleep can be lost (Xid 79).
pub const ASPM: Rule = Rule::warning("aspm", "PCIe links whose power is saved");

pub(super) fn judge(case: &Case<'_>, report: &mut Report<'_>) {
    irqbalance(case, report);
    tuning(case, report);
    isolation(case, report);
    aspm(case, report);
}

fn irqbalance(case: &Case<'_>, report: &mut Report<'_>) {
    let isolated = &case.topology.parts().isolated;
    if isolated.is_empty() {
        return;
    }
    let services = report.need(&IRQBALANCE, &case.facts.services, "proc/PID/comm");
    let runs =
        services.is_some_and(|services| services.iter().any(|name| name == IRQBALANCE_SERVICE));
    if !runs {
        return;
    }
    let banned = report.need(&IRQBALANCE, &case.facts.irqbalance_banned, "etc/default/irqbalance");
    if banned == Some(&false) {
        let wrong = Wrong {
            message: format!(
                "irqbalance runs without a list of pcpus to leave alone, and pcpus {isolated} are \
                 isolated"
            ),
            values: (format!("IRQBALANCE_BANNED_CPULIST={isolated}"), "not set".into()),
            at: "/etc/default/irqbalance".into(),
            hint: format!(
                "`IRQBALANCE_BANNED_CPULIST={isolated}` in /etc/default/irqbalance (Fedora, RHEL: \
                 /etc/sysconfig/irqbalance) keeps interrupts off them with every version"
            ),
            fix: vec![
                format!("echo IRQBALANCE_BANNED_CPULIST={isolated} >>/etc/default/irqbalance"),
                "systemctl restart irqbalance".into(),
            ],
        };
        report.add(&IRQBALANCE, wrong);
    }
}

/// Shows the host's settings that `verify` judges for each guest.
fn tuning(case: &Case<'_>, report: &mut Report<'_>) {
    let kernel = &case.facts.kernel;
    let note = |report: &mut Report<'_>, rule, wrong| {
        report.add(rule, wrong).severity = crate::finding::Severity::Note;
    };
    let path = "sys/devices/system/cpu/cpuN/cpufreq/scaling_governor";
    if let Some(governors) = report.need(&GOVERNOR, &kernel.governors, path) {
        let slow = governors.iter().filter(|(governor, _)| *governor != "performance");
        let (names, pcpus) =
            slow.fold((Vec::new(), CpuSet::new()), |(mut names, all), (name, set)| {
                names.push(name.as_str());
                (names, all.or(set))
            });
        if !pcpus.is_empty() {
            let command = "gpuvm host tuning --governor performance --at-boot";
            let wrong = Wrong {
                message: format!(
                    "the frequency of pcpus {pcpus} is governed by {}",
                    names.join(", ")
                ),
                values: ("performance".into(), names.join(", ")),
                at: format!("/{path}"),
                hint: format!("`{command}`"),
                fix: vec![command.into()],
            };
            note(report, &GOVERNOR, wrong);
        }
    }
    let several =
        case.topology.nodes().iter().filter(|node| !node.memory_kib.is_zero()).count() > 1;
    let balancing = &case.topology.machine().numa_balancing;
    if report.need(&BALANCING, balancing, "proc/sys/kernel/numa_balancing") == Some(&false)
        && several
    {
        let command = "gpuvm host tuning --numa-balancing on --at-boot";
        let wrong = Wrong {
            message: "automatic NUMA balancing is off: memory of guests that is not bound stays \
                      where it was allocated"
                .into(),
            values: ("1".into(), "0".into()),
            at: "/proc/sys/kernel/numa_balancing".into(),
            hint: format!("`{command}`, if guests have unbound memory"),
            fix: vec![command.into()],
        };
        note(report, &BALANCING, wrong);
    }
    let path = "sys/kernel/mm/transparent_hugepage/enabled";
    let thp = report.need(&THP, &kernel.transparent_huge_pages, path);
    if thp.is_some_and(|policy| policy == "never") {
        let command = "gpuvm host tuning --transparent-huge-pages madvise --at-boot";
        let wrong = Wrong {
            message: "transparent huge pages are off: guests without huge pages are slow".into(),
            values: ("madvise or always".into(), "never".into()),
            at: format!("/{path}"),
            hint: format!("`{command}`"),
            fix: vec![command.into()],
        };
        note(report, &THP, wrong);
    }
}

/// The isolated pcpus with whole cores: with the missing threads, unless these would leave no core
/// of a node to the host; then without the cores that are isolated in part.
fn whole_cores(topology: &Topology, isolated: &CpuSet) -> CpuSet {
    let mut whole = CpuSet::new();
    for node in topology.nodes() {
        let cores: Vec<&CpuSet> =
            topology.cores_of(node.os_index).map(|core| &core.pcpus).collect();
        let mut part: Vec<&CpuSet> =
            cores.iter().copied().filter(|pcpus| pcpus.intersects(isolated)).collect();
        if part.len() == cores.len() {
            let is_full = |pcpus: &&CpuSet| pcpus.is_subset(isolated);
            if part.iter().any(is_full) {
                part.retain(is_full);
            } else if !part.is_empty() {
                part.remove(0);
            }
        }
        whole = part.into_iter().fold(whole, |all, pcpus| all.or(pcpus));
    }
    whole
}

/// Compares isolated pcpus with cores, with `nohz_full=` and with the pins of guests.
fn isolation(case: &Case<'_>, report: &mut Report<'_>) {
    let isolated = &case.topology.parts().isolated;
    let mut say = |message: String, values: (String, String), at: &str, hint: &str| {
        let fix = vec![format!("# {hint}")];
        let wrong = Wrong { message, values, at: at.to_owned(), hint: hint.to_owned(), fix };
        report.add(&ISOLATION, wrong);
    };
    if isolated.is_empty() {
        return;
    }
    if case.topology.pcpus().is_subset(isolated) {
        say(
            format!("all pcpus, {isolated}, are isolated: none is left for the host's threads"),
            ("some pcpus for the host".into(), isolated.to_string()),
            "/proc/cmdline",
            "leave a core of each node out of isolcpus=: the host and the emulator threads of \
             guests need it",
        );
    }
    let whole = whole_cores(case.topology, isolated);
    if whole != *isolated {
        let cores = case.topology.cores().iter().map(|core| &core.pcpus);
        let touched = cores.filter(|pcpus| pcpus.intersects(isolated));
        let half = touched.fold(CpuSet::new(), |all, pcpus| all.or(pcpus)).minus(isolated);
        say(
            format!("isolcpus= takes pcpus {isolated}, and not {half} of the same cores"),
            (whole.to_string(), isolated.to_string()),
            "/proc/cmdline",
            "isolate whole cores: what runs on the other thread disturbs as much",
        );
    }
    let ticks = case.argument("nohz_full").and_then(|list| list.parse::<CpuSet>().ok());
    if let Some(ticks) = ticks.filter(|ticks| ticks != isolated) {
        say(
            format!("isolcpus= has pcpus {isolated}, and nohz_full= has {ticks}"),
            (isolated.to_string(), ticks.to_string()),
            "/proc/cmdline",
            "give both the same list",
        );
    }
    let Some(guests) = case.guests else {
        report.skip_part(&ISOLATION, "pins of guests are not known");
        return;
    };
    let pinned = guests.domains.iter().flat_map(|held| &held.vcpu_pins);
    let pinned = pinned.fold(CpuSet::new(), |all, pin| all.or(pin));
    if !guests.domains.is_empty() && !pinned.intersects(isolated) {
        let pins = if pinned.is_empty() { "none".to_owned() } else { pinned.to_string() };
        say(
            format!("the isolated pcpus {isolated} are unused: no guest is pinned to them"),
            (format!("guests on {isolated}"), pins),
            "/proc/cmdline",
            "remove isolcpus= from the kernel's arguments, or pin guests there: `man gpuvm-tune`",
        );
    }
    for held in guests.domains.iter().filter(|held| held.vcpu_pins.is_empty()) {
        say(
            format!(
                "domain `{}` has no pins: its threads run on no isolated pcpu, or all on one",
                held.domain
            ),
            ("a pin for each vCPU".into(), "none".into()),
            "/domain/cputune",
            &format!("`gpuvm tune {}` pins it", word(&held.domain)),
        );
    }
}

fn aspm(case: &Case<'_>, report: &mut Report<'_>) {
    let path = "sys/module/pcie_aspm/parameters/policy";
    let Some(policy) = report.need(&ASPM, &case.facts.kernel.aspm, path) else { return };
    if !["powersave", "powersupersave"].contains(&policy.as_str()) {
        return;
    }
    let wrong = Wrong {
        message: format!("PCIe links save power ({policy}): a GPU can fall off the bus (Xid 79)"),
        values: ("default or performance".into(), policy.clone()),
        at: format!("/{path}"),
        hint: format!(
            "`echo performance >/{path}`, and `pcie_aspm.policy=performance` on the kernel's command \
             line; `pcie_aspm=off` leaves what the firmware has set"
        ),
        fix: std::iter::once(format!("echo performance >/{path}"))
            .chain(fix::kernel(case.facts, &["pcie_aspm.policy=performance"], &[]))
            .collect(),
    };
    report.add(&ASPM, wrong);
}
