//! `show`: one domain, its resources, its addresses, its plan.

use super::args::ShowArgs;
use super::context::Context;
use super::error::EXIT_DONE;
use super::names::state;
use super::options::words;
use super::several;
use crate::domain::view::{AgentState, View};
use crate::memsize::MemSize;
use crate::network::{AddressSource, GuestAddress};
use crate::placement::GuestVgpu;
use crate::shell::word;
use gpuvm_ops::domains::{ShownDomain, definition, show};
use gpuvm_ops::usage::{FileSystem, Part, Usage};
use gpuvm_ops::world::unread_of_users;
use humantime::format_duration;
use std::fmt::Write as _;
use std::time::Duration;

/// Runs the verb.
pub fn run(args: &ShowArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let chosen = several::chosen(&args.names, None, |_| true, cx)?;
    if args.xml {
        return several::each(&chosen, cx, |one, cx| {
            cx.output.verbatim(definition(cx, &one.name)?.trim_end())?;
            Ok(EXIT_DONE)
        });
    }
    if let ([one], false) = (&chosen[..], args.names.all) {
        let shown = read(&one.name, cx)?;
        if cx.output.json {
            cx.output.json("gpuvm-domain", &shown)?;
        } else {
            cx.output.text(&text(&shown))?;
        }
        return Ok(EXIT_DONE);
    }
    if cx.output.json {
        // An error would be a second document.
        let all = chosen.iter().map(|one| read(&one.name, cx));
        let all = all.collect::<anyhow::Result<Vec<ShownDomain>>>()?;
        cx.output.json_rows("gpuvm-domains", &all)?;
        return Ok(EXIT_DONE);
    }
    let mut gap = "";
    several::each(&chosen, cx, |one, cx| {
        cx.output.text(&format!("{gap}{}", text(&read(&one.name, cx)?)))?;
        gap = "\n";
        Ok(EXIT_DONE)
    })
}

/// Reads a domain, and warns of parts that are not visible.
fn read(name: &str, cx: &Context<'_>) -> anyhow::Result<ShownDomain> {
    let shown = show(cx, name)?;
    let ShownDomain { summary, view, .. } = &shown;
    if view.remembered.is_some()
        && let Some(records) = cx.records_of_users(&summary.uuid)
    {
        cx.output.warning(&unread_of_users(&summary.name, &records));
    }
    Ok(shown)
}

fn disks(usage: &Usage, view: &View, line: &mut dyn FnMut(&str, String)) {
    for disk in &view.disks {
        let source = if disk.source.is_empty() { "no medium" } else { &disk.source };
        let made = if disk.made { ", made for it" } else { "" };
        let format = if disk.format.is_empty() { "" } else { ", " };
        let size = usage.disks.iter().find(|size| size.target == disk.target).map(|size| {
            let (all, used) = (bytes(size.capacity_bytes), bytes(size.allocation_bytes));
            format!(", {all}, {used} on the host")
        });
        let size = size.unwrap_or_default();
        line("disk", format!("{}: {source}{format}{}{made}{size}", disk.target, disk.format));
    }
}

/// Lines of its addresses and its console.
fn reached(addresses: &[GuestAddress], view: &View, line: &mut dyn FnMut(&str, String)) {
    for address in addresses {
        let source = match address.source {
            AddressSource::Lease => "DHCP lease",
            AddressSource::Agent => "said by the guest",
            AddressSource::Arp => "seen in the host's ARP table",
        };
        line("address", format!("{} of {} ({source})", address.ip, address.mac));
    }
    let console = view.console.as_ref().map(|console| {
        let at = console.path.as_ref().map_or(String::new(), |path| format!(" {path}"));
        format!("{}{at}", console.kind)
    });
    line("console", console.unwrap_or_else(|| "none".into()));
}

/// Lines of a domain's usage.
fn used(usage: &Usage, view: &View, line: &mut dyn FnMut(&str, String)) {
    let uptime = usage.uptime_s.map(Duration::from_secs);
    line("uptime", uptime.map(|age| format_duration(age).to_string()).unwrap_or_default());
    if let Some(percent) = usage.cpu_percent {
        let (whole, part) = (percent / 100, percent % 100);
        line("cpu use", format!("{whole}.{part:02} of {} vCPUs", view.vcpu_text()));
    }
    let guest = usage.guest_memory.map(|part| format!("{} in the guest", of_whole(part)));
    let host = usage.host_memory_kib.map(|kib| format!("{} of the host", MemSize::from_kib(kib)));
    let both: Vec<String> = guest.into_iter().chain(host).collect();
    line("mem use", both.join(", "));
    for FileSystem { mount, part } in &usage.file_systems {
        line("files", format!("{mount}: {} used", of_whole(*part)));
    }
}

fn of_whole(part: Part) -> String {
    format!("{} of {}", MemSize::from_kib(part.used_kib), MemSize::from_kib(part.total_kib))
}

/// A number of bytes.
fn bytes(bytes: u64) -> MemSize {
    MemSize::from_kib(bytes.div_ceil(1024))
}

/// A domain for people, one fact a line.
fn text(shown: &ShownDomain) -> String {
    let ShownDomain {
        summary,
        view,
        autostart,
        lacks_at_boot,
        clashes_at_boot,
        addresses,
        usage,
        options,
    } = shown;
    let mut text = String::new();
    let mut line = |what: &str, value: String| {
        if !value.is_empty() {
            writeln!(text, "{what:<10}{value}").expect("text");
        }
    };
    line("name", summary.name.clone());
    line("uuid", summary.uuid.clone());
    let kept = if summary.persistent { "" } else { ", gone when it ends" };
    line("state", format!("{}{kept}", state(summary.state)));
    let started = autostart.map(|on| if on { "with the host" } else { "by hand" });
    line("started", started.unwrap_or_default().into());
    for lack in lacks_at_boot {
        line("at boot", format!("missing: {lack} (`gpuvm autostart {} on`)", word(&summary.name)));
    }
    clashes_at_boot.iter().for_each(|clash| line("at boot", clash.clone()));
    line("made by", if view.remembered.is_some() { "gpuvm" } else { "other" }.into());
    let pinned = if view.pcpus.is_empty() {
        "not pinned".to_owned()
    } else {
        format!("on pcpus {}", view.pcpus)
    };
    line("vcpus", format!("{}, {pinned}", view.vcpu_text()));
    let bound = match view.nodes.len() {
        0 => String::new(),
        1 => format!(", on node {}", view.nodes),
        _ => format!(", on nodes {}", view.nodes),
    };
    let pages = view.huge_page_kib.map(|page| format!(", huge pages of {page}"));
    line("memory", format!("{}{bound}{}", view.memory_kib, pages.unwrap_or_default()));
    let indexes: Vec<String> = view.gpus.iter().map(usize::to_string).collect();
    line("gpus", indexes.join(", "));
    for device in &view.devices {
        line("device", device.to_string());
    }
    for GuestVgpu { card, function, name, uuid, .. } in &view.vgpus {
        let what = uuid.clone().unwrap_or_else(|| function.to_string());
        line("vgpu", format!("{name} of {card}, {what}"));
    }
    for uuid in &view.mediated {
        line("device", format!("mediated device {uuid}"));
    }
    disks(usage, view, &mut line);
    for nic in &view.nics {
        line("nic", format!("{} on {}", nic.mac, nic.source));
    }
    reached(addresses, view, &mut line);
    let agent = match (view.agent, summary.state) {
        (AgentState::None, _) => "no channel for one",
        (_, state) if !state.has_guest() => "",
        (AgentState::Connected, _) => "connected",
        (AgentState::Disconnected, _) => "not connected",
    };
    line("agent", agent.into());
    used(usage, view, &mut line);
    line("request", options.clone().map(words).unwrap_or_default());
    text
}
