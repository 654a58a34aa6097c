//! Services that run, and their configuration: units of libvirt's daemons, irqbalance, qemu.conf,
//! libvirt-guests.

use super::{lines, text};
use crate::fsroot::{FsError, FsRoot, not};
use gpuvm_core::topology::facts::{
    DaemonUnit, GPU_SERVICES, GuestsUnit, IRQBALANCE, LibvirtConfig,
};

/// Length of a process' name, as the kernel shows it.
const COMM: usize = 15;
const DAEMONS: [&str; 2] = ["libvirtd.service", "virtqemud.service"];
/// Where units are, the last one first.
const UNITS: [&str; 3] = ["etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"];
/// Where drop-ins are, in the order in which they are read.
const DROP_INS: [&str; 3] = ["usr/lib/systemd/system", "run/systemd/system", "etc/systemd/system"];
/// Capabilities that a daemon needs for guests that lock memory.
const NEEDED: [&str; 2] = ["CAP_SYS_RESOURCE", "CAP_IPC_LOCK"];

/// Whether processes of the host are visible.
pub(super) fn has_processes(root: &FsRoot) -> Result<bool, FsError> {
    Ok(root.names("proc")?.iter().any(|name| name.parse::<u32>().is_ok()))
}

/// Reads which of the services run; none where no process is visible.
pub(super) fn running(root: &FsRoot) -> Result<Option<Vec<String>>, FsError> {
    let mut found = Vec::new();
    let pids = root.names("proc")?.into_iter().filter(|name| name.parse::<u32>().is_ok());
    let pids: Vec<String> = pids.collect();
    for pid in &pids {
        // A process may end while it is read.
        let path = format!("proc/{pid}/comm");
        let name =
            if root.is_live() { root.read(&path).ok().flatten() } else { text(root, &path)? };
        let name = name.unwrap_or_default();
        let same = |service: &&str| service.chars().take(COMM).eq(name.trim().chars());
        found.extend(
            GPU_SERVICES.iter().chain([&IRQBALANCE]).copied().find(same).map(str::to_owned),
        );
    }
    found.sort();
    found.dedup();
    Ok((!pids.is_empty()).then_some(found))
}

/// Reads an admin's changes in the units of libvirt's daemons; `None` if there are no units.
pub(super) fn daemon_units(root: &FsRoot) -> Result<Option<Vec<DaemonUnit>>, FsError> {
    if !UNITS.iter().any(|dir| root.exists(dir)) {
        return Ok(None);
    }
    let mut units = Vec::new();
    for unit in DAEMONS {
        let whole = UNITS.iter().map(|dir| format!("{dir}/{unit}")).find(|path| root.exists(path));
        let mut files: Vec<String> = whole.into_iter().collect();
        let mut drop_ins: Vec<(String, String)> = Vec::new();
        for dir in DROP_INS {
            for name in root.names(&format!("{dir}/{unit}.d"))? {
                if name.ends_with(".conf") {
                    // One of a later directory replaces one of the same name.
                    drop_ins.retain(|(known, _)| *known != name);
                    drop_ins.push((name.clone(), format!("{dir}/{unit}.d/{name}")));
                }
            }
        }
        drop_ins.sort();
        files.extend(drop_ins.into_iter().map(|(_, path)| path));
        units.extend(daemon(root, unit, &files)?);
    }
    Ok(Some(units))
}

/// Reads one unit with its drop-ins, in their order.
fn daemon(root: &FsRoot, unit: &str, files: &[String]) -> Result<Option<DaemonUnit>, FsError> {
    let mut memlock = None;
    let mut allowed: Option<(Vec<String>, String)> = None;
    for path in files {
        let text = text(root, path)?.unwrap_or_default();
        for (number, line) in (1..).zip(text.lines()) {
            let Some((key, value)) = line.trim().split_once('=') else { continue };
            let value = value.trim();
            match key.trim() {
                "LimitMEMLOCK" => {
                    let wrong = || root.malformed(path, number, not(value, "a limit of memory"));
                    memlock = Some((limit(value).ok_or_else(wrong)?, path.clone()));
                }
                "CapabilityBoundingSet" => {
                    let before = allowed.take().map(|(list, _)| list);
                    allowed = Some((bounded(before, value), path.clone()));
                }
                _ => {}
            }
        }
    }
    // libvirt's own units, and an admin's whole copies of them, have a small limit, which its
    // daemon raises for guests.
    let memlock = memlock.filter(|(_, path)| path.starts_with("etc/") && path.contains(".d/"));
    let without = allowed.and_then(|(list, path)| {
        let missing = NEEDED.iter().filter(|needed| !list.iter().any(|one| one == *needed));
        let missing: Vec<String> = missing.map(|name| (*name).to_owned()).collect();
        (!missing.is_empty()).then_some((missing, path))
    });
    let unit = unit.to_owned();
    let is_changed = memlock.is_some() || without.is_some();
    Ok(is_changed.then_some(DaemonUnit { unit, memlock, without }))
}

/// Returns which of the needed capabilities a set has after a line of it (systemd.exec(5)): words
/// are added, those after `~` removed; nothing empties it.
fn bounded(before: Option<Vec<String>>, value: &str) -> Vec<String> {
    let all = || NEEDED.map(str::to_owned).to_vec();
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    match value.strip_prefix('~') {
        Some(taken) => {
            let taken = words(taken);
            before.unwrap_or_else(all).into_iter().filter(|one| !taken.contains(one)).collect()
        }
        None if value.is_empty() => Vec::new(),
        None => before.unwrap_or_default().into_iter().chain(words(value)).collect(),
    }
}

/// Reads a limit: `infinity`, bytes, or with a suffix to the base 1024; of `soft:hard` the hard
/// one.
fn limit(text: &str) -> Option<u64> {
    let text = text.rsplit(':').next()?.trim();
    if text.is_empty() || text == "infinity" {
        return Some(u64::MAX);
    }
    let shift = match text.chars().next_back()? {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        'T' => 40,
        'P' => 50,
        'E' => 60,
        _ => 0,
    };
    let digits = if shift > 0 { &text[..text.len() - 1] } else { text };
    digits.trim().parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Reads whether irqbalance has a list of pcpus to leave alone; none where there is no /etc.
pub(super) fn irqbalance(root: &FsRoot) -> Result<Option<bool>, FsError> {
    if !root.exists("etc") {
        return Ok(None);
    }
    let mut banned = false;
    for path in ["etc/default/irqbalance", "etc/sysconfig/irqbalance"] {
        let text = text(root, path)?.unwrap_or_default();
        banned |= lines(&text).any(|line| line.starts_with("IRQBALANCE_BANNED_CPU"));
    }
    Ok(Some(banned))
}

/// Reads qemu.conf; none where there is none.
pub(super) fn libvirt(root: &FsRoot) -> Result<Option<LibvirtConfig>, FsError> {
    let path = "etc/libvirt/qemu.conf";
    let Some(text) = text(root, path)? else { return Ok(None) };
    let mut config = LibvirtConfig::default();
    let joined: String = lines(&text).map(|line| format!("{line}\n")).collect();
    for (at, _) in joined.match_indices('=') {
        let key = joined[..at].rsplit('\n').next().unwrap_or_default().trim();
        let value = joined[at + 1..].trim_start();
        let line = value.lines().next().unwrap_or_default().trim();
        let quoted = line.trim_matches('"').to_owned();
        match key {
            "cgroup_device_acl" => {
                let wrong = || root.malformed(path, 1, not(line, "a list of devices in brackets"));
                let inner = value.strip_prefix('[').and_then(|rest| rest.split_once(']'));
                let (inner, _) = inner.ok_or_else(wrong)?;
                let words = inner.split(',').map(|word| word.trim().trim_matches('"').to_owned());
                config.device_acl = Some(words.filter(|word| !word.is_empty()).collect());
            }
            "user" if line.starts_with('"') => config.user = Some(quoted),
            key if key.starts_with("auto_shutdown_") => {
                config.auto_shutdown |= !["none", "0"].contains(&quoted.as_str());
            }
            _ => {}
        }
    }
    if text.contains('\u{fffd}') || (joined.len() > 64 && !joined.contains('=')) {
        return Err(root.malformed(path, 1, not(&text, "libvirt's configuration")));
    }
    Ok(Some(config))
}

/// Reads how guests are ended at shutdown; none where libvirt-guests is not installed.
pub(super) fn guests_unit(root: &FsRoot) -> Result<Option<GuestsUnit>, FsError> {
    let unit = "libvirt-guests.service";
    if !UNITS.iter().any(|dir| root.exists(&format!("{dir}/{unit}"))) {
        return Ok(None);
    }
    let mut enabled = false;
    for target in ["multi-user.target.wants", "default.target.wants"] {
        enabled |=
            root.names(&format!("etc/systemd/system/{target}"))?.iter().any(|name| name == unit);
    }
    let mut timeout_s = None;
    for path in ["etc/default/libvirt-guests", "etc/sysconfig/libvirt-guests"] {
        let text = text(root, path)?.unwrap_or_default();
        for line in lines(&text) {
            let Some(value) = line.strip_prefix("SHUTDOWN_TIMEOUT=") else { continue };
            let value = value.trim_matches(['"', '\'']);
            let wrong = || root.malformed(path, 1, not(value, "a number of seconds"));
            timeout_s = Some((value.parse().map_err(|_| wrong())?, path.to_owned()));
        }
    }
    Ok(Some(GuestsUnit { enabled, timeout_s }))
}
