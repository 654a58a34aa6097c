//! Findings, and the holders that vCPUs wait for, as they are printed below the table.

use gpuvm_core::load::{GuestLoad, LoadFinding, LoadReport, ThreadKind};
use std::fmt::Write as _;

/// All findings with their hints.
pub(super) fn findings(report: &LoadReport) -> String {
    let host = report.host.findings.iter().map(|finding| finding_text("host", finding));
    let guests = report
        .guests
        .iter()
        .flat_map(|guest| guest.findings.iter().map(|finding| finding_text(&guest.name, finding)));
    host.chain(guests).collect()
}

fn finding_text(of: &str, finding: &LoadFinding) -> String {
    let LoadFinding { rule, severity, says, hint } = finding;
    format!("{severity}: {of}: {}\n  {} ({rule})\n  hint: {hint}\n", says.message, says.at)
}

/// Every task that ran where a vCPU of a guest waits.
pub(super) fn why(guest: &GuestLoad) -> String {
    let mut text = String::new();
    let vcpus = guest.threads.iter().filter(|thread| thread.kind == ThreadKind::Vcpu);
    for thread in vcpus.filter(|thread| !thread.neighbours.is_empty()) {
        let pcpu = thread.pcpu().map_or("-".to_owned(), |pcpu| pcpu.to_string());
        let (ran, waited) = (thread.run_ratio * 100.0, thread.waited_ratio * 100.0);
        let label = thread.label();
        let _ = writeln!(text, "{label} ran {ran:.1} % and waited {waited:.1} %, on pcpu {pcpu}");
        for neighbour in &thread.neighbours {
            let _ = writeln!(text, "  {neighbour} (thread {})", neighbour.tid);
        }
    }
    if text.is_empty() {
        text = format!("no pinned vCPU of {} waits\n", guest.name);
    }
    text
}
