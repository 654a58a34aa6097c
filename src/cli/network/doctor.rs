//! `network doctor`.

use crate::cli::args::NetworkDoctorArgs;
use crate::cli::context::Context;
use crate::cli::error::{EXIT_DONE, EXIT_FOUND};
use crate::network::doctor::{Diagnosis, Finding, Hop, OfHop, Verdict};
use gpuvm_ops::networks::doctor::{Diagnosed, Diagnoses, diagnose};
use std::fmt::Write as _;
use std::time::Duration;

/// Runs the verb.
pub fn run(args: &NetworkDoctorArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_without_guests("network doctor")?;
    let answer = diagnose(cx, &args.name, Duration::from_secs(args.agent_wait))?;
    if cx.output.json {
        cx.output.json("gpuvm-network-doctor", &answer)?;
    } else {
        cx.output.text(&text(&answer))?;
    }
    Ok(if answer.broken { EXIT_FOUND } else { EXIT_DONE })
}

fn text(answer: &Diagnoses) -> String {
    let Diagnoses { domain, running, nics, .. } = answer;
    let state = if *running { "running" } else { "off" };
    let mut text = String::new();
    for Diagnosed { network, kind, diagnosis } in nics {
        let Diagnosis { nic, mac, hops, notes } = diagnosis;
        let on = network.as_ref().map_or(String::new(), |name| format!(" on network `{name}`"));
        let kind = kind.as_ref().map_or(String::new(), |kind| format!(" ({kind})"));
        writeln!(text, "{domain} ({state}), NIC {nic}, {mac}{on}{kind}").expect("text");
        let width = hops.iter().map(|hop| hop.name.len()).max().unwrap_or(0);
        for hop in hops {
            text += &hop_text(hop, width);
        }
        for note in notes {
            writeln!(text, "  note: {note}").expect("text");
        }
    }
    let broken = nics.iter().flat_map(|nic| &nic.diagnosis.hops);
    let broken = broken.filter(|hop| hop.verdict == Verdict::Broken).count();
    text + &match broken {
        0 => format!("{domain}: no path is broken\n"),
        1 => format!("{domain}: 1 hop is broken\n"),
        many => format!("{domain}: {many} hops are broken\n"),
    }
}

fn hop_text(hop: &Hop, width: usize) -> String {
    let Hop { name, verdict, says, findings } = hop;
    let verdict = match verdict {
        Verdict::Ok => "ok",
        Verdict::Broken => "broken",
        Verdict::NotChecked => "not checked",
    };
    let line = format!("  {verdict:<12} {name:<width$}  {says}");
    let mut text = line.trim_end().to_owned() + "\n";
    for Finding { rule, severity, says, hint } in findings {
        let OfHop { what, expected, found, at } = says;
        writeln!(text, "    {severity}: {what} {found}, expected {expected}").expect("text");
        writeln!(text, "      {at} ({rule})\n      hint: {hint}").expect("text");
    }
    text
}
