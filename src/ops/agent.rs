//! Commands to a guest's agent: a few within a common time limit. Comparisons only read; only `nccl
//! --install` and `--uninstall` write and move files.

use crate::cpuset::NodeSet;
use crate::domain::DomainXml;
use crate::domain::claims::{Claims, VcpuId};
use crate::domain::setting::AGENT;
use crate::hypervisor::{Hypervisor, HypervisorError};
use base64::Engine as _;
pub(crate) use base64::prelude::BASE64_STANDARD as BASE64;
use gpuvm_core::verify::guest::{Function, View};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long one answer may take.
const ANSWER: Duration = Duration::from_secs(5);
/// The most bytes read of a file: the list of PCI functions is the longest one.
const MOST: usize = 64 << 10;

/// A conversation with a guest's agent.
pub struct Agent<'h> {
    /// The hypervisor to call it through.
    hypervisor: &'h dyn Hypervisor,
    name: &'h str,
    until: Instant,
}

/// Whether a running guest's agent listens.
pub fn has_agent(live: &DomainXml) -> bool {
    let channels = live.root().child("devices").into_iter().flat_map(|d| d.children("channel"));
    let mut targets = channels.filter_map(|channel| channel.child("target"));
    targets.any(|target| {
        target.attr("name").as_deref() == Some(AGENT)
            && target.attr("state").as_deref() == Some("connected")
    })
}

/// Reads a guest's own view; `None` if no agent answers in time.
pub fn view(
    hypervisor: &dyn Hypervisor,
    name: &str,
    live: &Claims<'_>,
    wait: Duration,
) -> Option<View> {
    let agent = Agent::greet(hypervisor, name, wait)?;
    let mut view = View::default();
    match agent.ask("guest-get-vcpus", &json!({})) {
        Ok(answer) => view.vcpus = online(&answer),
        Err(_) => view.untold.push("the guest's vCPUs (not reported by its agent)"),
    }
    match agent.ask("guest-network-get-interfaces", &json!({})) {
        Ok(answer) => view.macs = Some(strings(&answer, "hardware-address")),
        Err(_) => view.untold.push("the guest's interfaces (not reported by its agent)"),
    }
    match agent.virtio_disks() {
        Ok(disks) => view.virtio_disks = Some(disks),
        Err(why) => view.untold.push(why),
    }
    agent.files(live, &mut view);
    Some(view)
}

impl<'h> Agent<'h> {
    /// Starts a conversation with a guest's agent; `None` if it does not answer.
    pub fn greet(
        hypervisor: &'h dyn Hypervisor,
        name: &'h str,
        wait: Duration,
    ) -> Option<Agent<'h>> {
        let agent = Agent { hypervisor, name, until: Instant::now() + wait };
        agent.ask("guest-ping", &json!({})).ok()?;
        Some(agent)
    }

    /// Counts whole disks on virtio; an error says why they are not known. Where libvirt may take
    /// harm by an agent's answer about its disks, the guest's kernel is asked instead.
    fn virtio_disks(&self) -> Result<usize, &'static str> {
        if self.hypervisor.versions().spares_agent_disks() {
            let text = self.read("/proc/partitions").map_err(|_| SPARED)?;
            return Ok(virtio_names(&text));
        }
        let answer = self.ask("guest-get-disks", &json!({}));
        answer
            .map(|disks| virtio_disks(&disks))
            .map_err(|_| "the guest's disks (not reported by its agent)")
    }

    /// Sends a command and returns its result.
    pub fn ask(&self, command: &str, arguments: &Value) -> Result<Value, NoAnswer> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.as_secs() == 0 {
            return Err(NoAnswer::Late);
        }
        let text = json!({ "execute": command, "arguments": arguments }).to_string();
        let answer = self.hypervisor.ask_agent(self.name, &text, left.min(ANSWER))?;
        let mut answer: Value = serde_json::from_str(&answer).map_err(|_| NoAnswer::Nonsense)?;
        Ok(answer["return"].take())
    }

    /// Reads a file of the guest.
    pub fn read(&self, path: &str) -> Result<String, NoAnswer> {
        let opened = self.ask("guest-file-open", &json!({ "path": path, "mode": "r" }))?;
        let handle = opened.as_i64().ok_or(NoAnswer::Nonsense)?;
        let mut bytes = Vec::new();
        let read = loop {
            let arguments = json!({ "handle": handle, "count": 16 << 10 });
            let piece = match self.ask("guest-file-read", &arguments) {
                Ok(piece) => piece,
                Err(error) => break Err(error),
            };
            let Ok(more) = BASE64.decode(piece["buf-b64"].as_str().unwrap_or_default()) else {
                break Err(NoAnswer::Nonsense);
            };
            let end = more.is_empty() || piece["eof"].as_bool() == Some(true);
            bytes.extend(more);
            // A part of a file is not the file.
            if bytes.len() > MOST {
                break Err(NoAnswer::Nonsense);
            }
            if end {
                break Ok(());
            }
        };
        // If this fails, it is closed when the agent ends.
        let _ = self.ask("guest-file-close", &json!({ "handle": handle }));
        read?;
        String::from_utf8(bytes).map_err(|_| NoAnswer::Nonsense)
    }

    /// Writes a file of the guest; existing content is replaced.
    pub fn write(&self, path: &str, text: &str) -> Result<(), NoAnswer> {
        let opened = self.ask("guest-file-open", &json!({ "path": path, "mode": "w" }))?;
        let handle = opened.as_i64().ok_or(NoAnswer::Nonsense)?;
        let mut written = Ok(());
        for piece in text.as_bytes().chunks(12 << 10) {
            let arguments = json!({ "handle": handle, "buf-b64": BASE64.encode(piece) });
            written = match self.ask("guest-file-write", &arguments) {
                Ok(answer) if answer["count"].as_u64() == Some(piece.len() as u64) => Ok(()),
                Ok(_) => Err(NoAnswer::Nonsense),
                Err(untold) => Err(untold),
            };
            if written.is_err() {
                break;
            }
        }
        // Closing flushes buffered data, which may fail.
        let closed = self.ask("guest-file-close", &json!({ "handle": handle }));
        written.and(closed.map(drop))
    }

    /// Runs a program of the guest and waits for its end; returns its exit code, -1 for a signal,
    /// and its output.
    pub fn run(&self, program: &str, words: &[&str]) -> Result<(i64, String), NoAnswer> {
        let arguments = json!({ "path": program, "arg": words, "capture-output": true });
        let started = self.ask("guest-exec", &arguments)?;
        let pid = started["pid"].as_i64().ok_or(NoAnswer::Nonsense)?;
        loop {
            let status = self.ask("guest-exec-status", &json!({ "pid": pid }))?;
            if status["exited"].as_bool() == Some(true) {
                let printed = BASE64.decode(status["out-data"].as_str().unwrap_or_default()).ok();
                let text = printed.and_then(|bytes| String::from_utf8(bytes).ok());
                let code = status["exitcode"].as_i64().unwrap_or(-1);
                return Ok((code, text.ok_or(NoAnswer::Nonsense)?));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Reads cells, cores and PCI functions from the guest's files, if its agent may open them.
    fn files(&self, live: &Claims<'_>, view: &mut View) {
        let nodes = "/sys/devices/system/node";
        let online = match self.read(&format!("{nodes}/online")) {
            Ok(online) => online,
            Err(NoAnswer::Late) => return view.untold.push(LATE),
            Err(_) => return view.untold.push("the guest's cells (its agent cannot open files)"),
        };
        let cells = online.trim().parse().unwrap_or_else(|_| NodeSet::new());
        for cell in cells.iter() {
            let Ok(text) = self.read(&format!("{nodes}/node{cell}/cpulist")) else {
                return view.untold.push(LATE);
            };
            view.cells.extend(text.trim().parse().ok().map(|vcpus| (cell.0, vcpus)));
        }
        let Ok(text) = self.read("/proc/bus/pci/devices") else {
            return view.untold.push("the guest's PCI functions (not reported by its agent)");
        };
        let mut functions = Vec::new();
        for (address, vendor, device) in text.lines().filter_map(pci_line) {
            let passed = live.passed.len();
            // Only passed-through functions are looked up; a guest without any is skipped.
            let node = (passed > 0)
                .then(|| self.read(&format!("/sys/bus/pci/devices/{address}/numa_node")));
            let cell = node.and_then(Result::ok).and_then(|text| text.trim().parse().ok());
            functions.push(Function { vendor, device, cell });
        }
        view.functions = Some(functions);
        if !live.passed.is_empty() {
            view.nccl = self.read(gpuvm_core::nccl::place::FILE).ok();
            let driver = self.read("/sys/module/nvidia/version").ok();
            view.driver = driver.map(|text| text.trim().to_owned());
        }
        for VcpuId(vcpu) in live.plugged.iter() {
            let path = format!("/sys/devices/system/cpu/cpu{vcpu}/topology/thread_siblings_list");
            match self.read(&path) {
                Ok(text) => view.siblings.extend(text.trim().parse().ok().map(|s| (vcpu, s))),
                Err(NoAnswer::Late) => return view.untold.push(LATE),
                Err(_) => {}
            }
            // One vCPU's file covers all that it lists.
            if view.l3.values().any(|set| set.contains(VcpuId(vcpu))) {
                continue;
            }
            let path = format!("/sys/devices/system/cpu/cpu{vcpu}/cache/index3/shared_cpu_list");
            match self.read(&path) {
                Ok(text) => view.l3.extend(text.trim().parse().ok().map(|s| (vcpu, s))),
                Err(NoAnswer::Late) => return view.untold.push(LATE),
                Err(_) => {}
            }
        }
    }
}

/// The note on disks that were not queried.
const SPARED: &str = "the guest's disks (libvirt before 12.7 may be harmed by an agent's answer, \
                      CVE-2026-77158; and its agent cannot open files)";
const LATE: &str = "all of the guest's own view (its agent took too long: --agent-wait)";

/// Why a guest's agent gives no answer.
#[derive(Debug)]
pub enum NoAnswer {
    /// The time limit was reached.
    Late,
    /// The hypervisor or the agent refuses.
    Refused,
    /// The command is disabled in this guest.
    Forbidden,
    /// There is no such file.
    Absent,
    /// The answer is invalid.
    Nonsense,
}

impl From<HypervisorError> for NoAnswer {
    fn from(error: HypervisorError) -> NoAnswer {
        match &error.message {
            _ if is_forbidden(&error) => NoAnswer::Forbidden,
            said if said.contains("No such file or directory") => NoAnswer::Absent,
            _ => NoAnswer::Refused,
        }
    }
}

/// Whether an agent has the command disabled, as in some distributions.
pub fn is_forbidden(error: &HypervisorError) -> bool {
    let says = |text: &str| error.message.contains(text);
    says("has been disabled") || says("is not allowed") || says("has not been found")
}

/// How many vCPUs of an answer of `guest-get-vcpus` are online.
fn online(answer: &Value) -> Option<u32> {
    let online = answer.as_array()?.iter().filter(|vcpu| vcpu["online"].as_bool() == Some(true));
    u32::try_from(online.count()).ok()
}

/// The texts of a name in the parts of an answer, lower case.
fn strings(answer: &Value, name: &str) -> BTreeSet<String> {
    let parts = answer.as_array().into_iter().flatten();
    parts.filter_map(|part| Some(part[name].as_str()?.to_ascii_lowercase())).collect()
}

/// How many whole disks on virtio an answer of `guest-get-disks` names.
fn virtio_disks(answer: &Value) -> usize {
    let disks = answer.as_array().into_iter().flatten();
    let whole = disks.filter(|disk| disk["partition"].as_bool() == Some(false));
    whole.filter(|disk| disk["address"]["bus-type"].as_str() == Some("virtio")).count()
}

/// How many whole disks on virtio /proc/partitions names: `vda`, not `vda1`.
fn virtio_names(text: &str) -> usize {
    let names = text.lines().filter_map(|line| line.split_whitespace().nth(3));
    let letters = names.filter_map(|name| name.strip_prefix("vd"));
    let is_whole = |rest: &&str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_lowercase());
    letters.filter(is_whole).count()
}

/// A line of /proc/bus/pci/devices: bus, device and function in four digits, vendor and device in
/// eight.
fn pci_line(line: &str) -> Option<(String, u16, u16)> {
    let mut words = line.split_whitespace();
    let place = u16::from_str_radix(words.next()?, 16).ok()?;
    let id = u32::from_str_radix(words.next()?, 16).ok()?;
    let (bus, device, function) = (place >> 8, place >> 3 & 0x1f, place & 7);
    let vendor = u16::try_from(id >> 16).ok()?;
    Some((format!("0000:{bus:02x}:{device:02x}.{function}"), vendor, (id & 0xffff) as u16))
}

#[cfg(test)]
mod tests;
