//! Reads a guest's QEMU process from the kernel: where its threads may run, where its memory is,
//! which devices it has open. Does not judge it. Data that this user may not read is reported as
//! such, not guessed.

mod filling;

pub use filling::{Filling, filling};

use crate::fsroot::{Dir, FsError, FsRoot};
use gpuvm_core::cpuset::NodeId;
use gpuvm_core::memsize::MemSize;
use gpuvm_core::verify::process::{Mapped, Opened, Process, Thread};
use nix::fcntl::OFlag;
use std::collections::BTreeMap;
use std::time::Duration;

mod claim;

pub use claim::{Claim, Proof, all, claims, proven};

/// Returns how long a process has been running; none if it has ended. Both numbers count from the
/// machine's boot: the 22nd field of stat, in hundredths of a second on every architecture
/// (USER_HZ, proc_pid_stat(5)), and uptime.
pub fn age(root: &FsRoot, pid: u32) -> Option<Duration> {
    let stat = root.read(&format!("proc/{pid}/stat")).ok()??;
    let uptime = root.read("proc/uptime").ok()??;
    let (_, fields) = stat.rsplit_once(')')?;
    let begun: u64 = fields.split_whitespace().nth(19)?.parse().ok()?;
    let now = Duration::try_from_secs_f64(uptime.split_whitespace().next()?.parse().ok()?).ok()?;
    Some(now.saturating_sub(Duration::from_millis(begun.checked_mul(10)?)))
}

/// Reads a process; none if it has ended.
pub fn read(root: &FsRoot, pid: u32) -> Result<Option<Process>, FsError> {
    let Some(dir) = root.dir(&format!("proc/{pid}"))? else { return Ok(None) };
    let threads = threads(root, pid)?;
    if threads.is_empty() {
        return Ok(None);
    }
    let memory = mapped(root, pid);
    let opened = opened(&dir);
    let served = opened.as_ref().is_some_and(|opened| opened.vhosts > 0);
    let own = threads.iter().any(|thread| thread.name.starts_with("vhost-"));
    let vhosts = if served && !own { kernel_threads(root, pid)? } else { Vec::new() };
    let file_limit = super::files::limit(root, pid).map(|limit| limit.soft);
    Ok(Some(Process { pid, threads, vhosts, memory, opened, file_limit }))
}

/// Reads the threads of a process, the main one first; empty if it has ended.
pub fn threads(root: &FsRoot, pid: u32) -> Result<Vec<Thread>, FsError> {
    let mut threads = Vec::new();
    for name in root.names(&format!("proc/{pid}/task"))? {
        let Ok(tid) = name.parse() else { continue };
        threads.extend(thread(root, &format!("proc/{pid}/task/{name}"), tid));
    }
    threads.sort_by_key(|thread: &Thread| (thread.tid != pid, thread.tid));
    Ok(threads)
}

/// Reads the memory of a process; none if this user may not see it. The kernel walks all of its
/// pages, with its memory map locked: 12 to 20 ms for each GiB of normal pages (measured on 6.18).
pub fn mapped(root: &FsRoot, pid: u32) -> Option<Vec<Mapped>> {
    let maps = root.read(&format!("proc/{pid}/numa_maps")).ok().flatten();
    maps.filter(|text| !text.is_empty()).map(|text| memory(&text))
}

/// Reads a thread; none where it has ended.
fn thread(root: &FsRoot, path: &str, tid: u32) -> Option<Thread> {
    let dir = root.dir(path).ok()??;
    let name = dir.read_if_any("comm").ok()??;
    let status = dir.read_if_any("status").ok()??;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(Thread { tid, name, pcpus: allowed.trim().parse().ok()? })
}

/// The kernel's threads that serve a process' queues: they have its id in their name.
fn kernel_threads(root: &FsRoot, pid: u32) -> Result<Vec<Thread>, FsError> {
    let wanted: String = format!("vhost-{pid}").chars().take(15).collect();
    let mut found = Vec::new();
    for name in root.names("proc")? {
        let Ok(tid) = name.parse() else { continue };
        let thread = thread(root, &format!("proc/{name}"), tid);
        found.extend(thread.filter(|thread| thread.name == wanted));
    }
    Ok(found)
}

/// Sums up a numa_maps:
/// `7f.. bind:0 file=/dev/hugepages/..ram-node0.x huge dirty=32 N0=32 kernelpagesize_kB=2048`.
fn memory(text: &str) -> Vec<Mapped> {
    let mut sums: BTreeMap<(Option<u32>, bool, MemSize), BTreeMap<NodeId, MemSize>> =
        BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split(' ').skip(1);
        let bound = words.next().is_some_and(|policy| policy.starts_with("bind"));
        let (mut cell, mut page, mut nodes) = (None, MemSize::from_kib(4), Vec::new());
        for word in words {
            if let Some(file) = word.strip_prefix("file=") {
                cell = cell_of(file);
            } else if let Some(kib) = word.strip_prefix("kernelpagesize_kB=") {
                page = kib.parse().map_or(page, MemSize::from_kib);
            } else if let Some((node, pages)) = word.split_once('=')
                && let Some(Ok(node)) = node.strip_prefix('N').map(str::parse)
                && let Ok(pages) = pages.parse::<u64>()
            {
                nodes.push((NodeId(node), pages));
            }
        }
        let sum = sums.entry((cell, bound, page)).or_default();
        for (node, pages) in nodes {
            let size = sum.entry(node).or_default();
            *size = *size + MemSize::from_kib(pages.saturating_mul(page.kib()));
        }
    }
    let all = sums.into_iter().filter(|(_, nodes)| !nodes.is_empty());
    all.map(|((cell, bound, page_kib), nodes)| Mapped { cell, bound, page_kib, nodes }).collect()
}

/// Returns the cell in the name of a memory file: libvirt names the memory of cell 1 `ram-node1`.
fn cell_of(file: &str) -> Option<u32> {
    let (_, rest) = file.split_once("ram-node")?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Reads the open files of a process; `None` if this user may not read them.
fn opened(process: &Dir<'_>) -> Option<Opened> {
    let fds = process.dir("fd").ok()??;
    let mut opened = Opened::default();
    for fd in fds.names().ok()? {
        // If one is inaccessible, all of them are.
        let Some(target) = fds.link(&fd).ok()? else { continue };
        match target.strip_prefix("/dev/") {
            Some("net/tun") => opened.taps += 1,
            Some("vhost-net") => opened.vhosts += 1,
            Some(name) if name.strip_prefix("tap").is_some_and(is_number) => opened.taps += 1,
            Some(name) if name.starts_with("vfio/") && name != "vfio/vfio" => {
                opened.vfio.insert(name["vfio/".len()..].to_owned());
            }
            _ if target.starts_with('/') => {
                let direct = is_direct(process, &fd);
                *opened.files.entry(target).or_default() |= direct;
            }
            _ => {}
        }
    }
    Some(opened)
}

/// Whether a text is a number.
fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether an open file bypasses the host's page cache: `flags:` of its fdinfo, octal.
fn is_direct(process: &Dir<'_>, fd: &str) -> bool {
    let info = process.dir("fdinfo").ok().flatten();
    let text = info.and_then(|dir| dir.read_if_any(fd).ok().flatten()).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| OFlag::from_bits_retain(flags).contains(OFlag::O_DIRECT))
}

#[cfg(test)]
mod tests;
