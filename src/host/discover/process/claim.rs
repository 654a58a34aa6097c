//! Which process runs which domain. libvirt starts each QEMU with `-uuid`, but anybody can start a
//! program with such arguments: accepted are processes with a PID file of libvirt or in its control
//! group, and QEMUs of an account that libvirt's QEMUs run as. Open devices do not depend on
//! arguments: `holders` reads those of all processes.

use crate::fsroot::{Dir, FsError, FsRoot};
use gpuvm_core::verify::tuning::CONF;
use nix::unistd::geteuid;
use std::collections::{BTreeMap, BTreeSet};

/// The PID files of the system's libvirt, `NAME.pid`; only root can write there.
const PID_FILES: &str = "run/libvirt/qemu";
/// Control groups of the system libvirt's QEMUs, with and without systemd. Only root can move a
/// process there.
const GROUPS: [&str; 2] = ["/machine.slice/machine-qemu", "/machine/qemu-"];
/// Accounts that packages create for the QEMUs of the system's libvirt.
const ACCOUNTS: [&str; 2] = ["libvirt-qemu", "qemu"];

/// Why a process is accepted as that of the domain that its arguments name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Proof {
    /// It is a QEMU of root, the caller or an account of libvirt: libvirt may have lost track of
    /// it.
    Account,
    /// It has a PID file of libvirt, or is in libvirt's control group.
    Libvirt,
}

/// A process whose arguments name a domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The domain's UUID, in lower case.
    pub uuid: String,
    /// The process.
    pub pid: u32,
    /// Why it is accepted; `None` if anybody may have started it.
    pub proof: Option<Proof>,
}

/// Returns the processes that run domains, by the domain's UUID in lower case.
pub fn all(root: &FsRoot) -> Result<BTreeMap<String, u32>, FsError> {
    Ok(proven(&claims(root)?))
}

/// Returns the accepted processes among these, by UUID; of several the one with the better proof.
pub fn proven(claims: &[Claim]) -> BTreeMap<String, u32> {
    let mut found: BTreeMap<String, (Proof, u32)> = BTreeMap::new();
    for Claim { uuid, pid, proof } in claims {
        let Some(proof) = *proof else { continue };
        let known = found.entry(uuid.clone()).or_insert((proof, *pid));
        if known.0 < proof {
            *known = (proof, *pid);
        }
    }
    found.into_iter().map(|(uuid, (_, pid))| (uuid, pid)).collect()
}

/// Returns all processes whose arguments name a domain, by PID.
pub fn claims(root: &FsRoot) -> Result<Vec<Claim>, FsError> {
    let mut found = Vec::new();
    for name in root.names("proc")? {
        let Ok(pid) = name.parse::<u32>() else { continue };
        // A process may end meanwhile.
        let Ok(Some(dir)) = root.dir(&format!("proc/{name}")) else { continue };
        let arguments = dir.zero_ended("cmdline");
        let Some(pair) = arguments.windows(2).find(|pair| pair[0] == "-uuid") else { continue };
        found.push((pair[1].to_ascii_lowercase(), pid, dir));
    }
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let (written, accounts) = (written(root), accounts(root));
    let claim = |(uuid, pid, dir): (String, u32, Dir<'_>)| {
        let is_account = || is_qemu(&dir) && is_of(&dir, &accounts);
        let proof = if written.contains(&pid) || is_grouped(&dir) {
            Some(Proof::Libvirt)
        } else {
            is_account().then_some(Proof::Account)
        };
        Claim { uuid, pid, proof }
    };
    let mut claims: Vec<Claim> = found.into_iter().map(claim).collect();
    claims.sort_by_key(|claim| claim.pid);
    Ok(claims)
}

/// Returns the PIDs in libvirt's PID files.
fn written(root: &FsRoot) -> BTreeSet<u32> {
    let names = root.names(PID_FILES).unwrap_or_default();
    let files = names.iter().filter(|name| name.ends_with(".pid"));
    let texts = files.filter_map(|name| root.read(&format!("{PID_FILES}/{name}")).ok()?);
    texts.filter_map(|text| text.trim().parse().ok()).collect()
}

/// Whether a process is in a control group of libvirt.
fn is_grouped(process: &Dir<'_>) -> bool {
    let text = process.read_if_any("cgroup").ok().flatten().unwrap_or_default();
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.into_iter().any(|path| GROUPS.iter().any(|group| path.starts_with(group)))
}

/// Whether a process is a QEMU, by its program, or by its kernel name if that is unreadable.
fn is_qemu(process: &Dir<'_>) -> bool {
    let program = process.link_name("exe").ok().flatten();
    let name = program.or_else(|| process.read_if_any("comm").ok().flatten()).unwrap_or_default();
    name.contains("qemu") || name.starts_with("kvm")
}

/// Whether all user IDs of a process are among these.
fn is_of(process: &Dir<'_>, accounts: &BTreeSet<u32>) -> bool {
    let text = process.read_if_any("status").ok().flatten().unwrap_or_default();
    let Some(line) = text.lines().find_map(|line| line.strip_prefix("Uid:")) else { return false };
    let ids: Vec<Option<u32>> = line.split_whitespace().map(|id| id.parse().ok()).collect();
    ids.len() > 1 && ids.iter().all(|id| id.is_some_and(|id| accounts.contains(&id)))
}

/// Returns the accounts whose QEMUs are accepted: root, the caller, those of libvirt's packages and
/// of its configuration.
fn accounts(root: &FsRoot) -> BTreeSet<u32> {
    let conf = root.read(CONF).ok().flatten().unwrap_or_default();
    let set = conf.lines().filter_map(|line| {
        let value = line.trim_start().strip_prefix("user")?.trim_start().strip_prefix('=')?;
        Some(value.split('#').next()?.trim().trim_matches('"').to_owned())
    });
    let set: Vec<String> = set.collect();
    // A number may begin with a plus sign (libvirt's qemu.conf).
    let numbers = set.iter().filter_map(|user| user.trim_start_matches('+').parse().ok());
    let mut found: BTreeSet<u32> = [0, geteuid().as_raw()].into_iter().chain(numbers).collect();
    let passwd = root.read("etc/passwd").ok().flatten().unwrap_or_default();
    for line in passwd.lines() {
        let mut fields = line.split(':');
        let name = fields.next().unwrap_or_default();
        if ACCOUNTS.contains(&name) || set.iter().any(|user| user == name) {
            found.extend(fields.nth(1).and_then(|id| id.parse::<u32>().ok()));
        }
    }
    found
}
