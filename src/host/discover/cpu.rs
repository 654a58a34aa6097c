//! Reads processors: the pcpus, their cores, and their shared L3 caches. Knows nothing of memory.

use crate::fsroot::{Dir, FsError, FsRoot, not};
use gpuvm_core::cpuset::{CpuSet, Id, IdSet, PcpuId};
use gpuvm_core::memsize::MemSize;
use gpuvm_core::topology::{Core, CoreKind, L3, NumaNode, Speed};

const CPUS: &str = "sys/devices/system/cpu";
/// The most caches of a pcpu; the kernel numbers them from 0 without gaps.
const CACHES: usize = 10;

/// The pcpus of a host.
#[derive(Debug, Default)]
pub struct Pcpus {
    /// Pcpus that run.
    pub online: CpuSet,
    /// Pcpus that exist but are offline.
    pub offline: CpuSet,
    /// Pcpus isolated by the kernel.
    pub isolated: CpuSet,
}

/// Reads the pcpus. `offline` of the kernel also lists pcpus that were never there, so it is not
/// used.
pub fn pcpus(root: &FsRoot) -> Result<Pcpus, FsError> {
    let Some(dir) = root.dir(CPUS)? else { return Ok(Pcpus::default()) };
    let (online, present) = match (id_list(&dir, "online")?, id_list(&dir, "present")?) {
        (Some(online), Some(present)) => (online, present),
        (Some(online), None) => (online.clone(), online),
        (None, _) => listed_pcpus(&dir)?,
    };
    let isolated = id_list(&dir, "isolated")?.unwrap_or_default();
    Ok(Pcpus { offline: present.minus(&online), isolated, online })
}

/// Finds pcpus by their directories, if the kernel is too old to list them: online ones, and all.
fn listed_pcpus(dir: &Dir<'_>) -> Result<(CpuSet, CpuSet), FsError> {
    let (mut online, mut present) = (CpuSet::new(), CpuSet::new());
    for name in dir.names()? {
        let Some(pcpu) = numbered(&name, "cpu") else { continue };
        present.insert(pcpu);
        let off = match dir.dir(&name)? {
            Some(cpu) => cpu.read("online")?.is_some_and(|text| text == "0"),
            None => true,
        };
        if !off {
            online.insert(pcpu);
        }
    }
    Ok((online, present))
}

/// Reads cores, each once: its pcpus are online ones of one node.
pub fn cores(
    root: &FsRoot,
    online: &CpuSet,
    nodes: &[NumaNode],
    notes: &mut Vec<String>,
) -> Result<Vec<Core>, FsError> {
    let mut cores = Vec::new();
    let mut seen = CpuSet::new();
    for pcpu in online.iter() {
        if seen.contains(pcpu) {
            continue;
        }
        let dir = root.dir(&format!("{CPUS}/cpu{pcpu}/topology"))?;
        let identity = Identity::read(dir.as_ref(), pcpu)?;
        let said = identity.siblings.and(online).or(&CpuSet::of(pcpu));
        let pcpus = said.minus(&seen);
        if pcpus != said {
            notes
                .push(format!("pcpu {pcpu}: its siblings {said} are partly those of another core"));
        }
        seen = seen.or(&pcpus);
        let parts: Vec<_> = nodes
            .iter()
            .map(|node| (node.os_index, node.pcpus.and(&pcpus)))
            .filter(|(_, part)| !part.is_empty())
            .collect();
        if parts.len() > 1 {
            notes.push(format!("core of pcpu {pcpu}: its pcpus {pcpus} are on several nodes"));
        }
        let Identity { package, die, core_id, .. } = identity;
        let core = |(node, pcpus)| Core { package, die, core_id, node, pcpus };
        cores.extend(parts.into_iter().map(core));
    }
    cores.sort_by_key(|core| core.pcpus.first());
    Ok(cores)
}

/// The kernel's identification of a pcpu's core.
struct Identity {
    /// Package; 0 where there is none.
    package: u32,
    /// Die, where the kernel knows one.
    die: Option<u32>,
    core_id: u32,
    siblings: CpuSet,
}

impl Identity {
    /// Reads a pcpu's `topology` directory.
    fn read(dir: Option<&Dir<'_>>, pcpu: PcpuId) -> Result<Identity, FsError> {
        let Some(dir) = dir else {
            let siblings = CpuSet::of(pcpu);
            return Ok(Identity { package: 0, die: None, core_id: pcpu.0, siblings });
        };
        // -1 means "none", on Arm and in virtual machines.
        let id = |name: &str| -> Result<Option<u32>, FsError> {
            let parse = |text: &str| match text.parse::<i64>().ok()? {
                ..0 => Some(None),
                value => u32::try_from(value).ok().map(Some),
            };
            Ok(dir.parse(name, parse, "a number in range")?.flatten())
        };
        let siblings = match id_list(dir, "thread_siblings_list")? {
            Some(siblings) => siblings,
            None => mask(dir, "thread_siblings")?.unwrap_or_default(),
        };
        Ok(Identity {
            package: id("physical_package_id")?.unwrap_or(0),
            die: id("die_id")?,
            core_id: id("core_id")?.unwrap_or(pcpu.0),
            siblings,
        })
    }
}

/// The names of Intel's drivers of performance counters, by kind of core (`intel_pmu_init`).
const INTEL_KINDS: [(&str, Speed); 3] = [
    ("cpu_core", Speed::Performance),
    ("cpu_atom", Speed::Efficiency),
    ("cpu_lowpower", Speed::LowPower),
];

/// Reads the kinds of cores, the fastest first; none where all are of one kind.
pub fn kinds(root: &FsRoot, online: &CpuSet) -> Result<Vec<CoreKind>, FsError> {
    let mut kinds = Vec::new();
    let mut seen = CpuSet::new();
    for (name, kind) in INTEL_KINDS {
        let Some(dir) = root.dir(&format!("sys/devices/{name}"))? else { continue };
        let pcpus = id_list(&dir, "cpus")?.unwrap_or_default().and(online).minus(&seen);
        seen = seen.or(&pcpus);
        kinds.push(CoreKind { kind, pcpus });
    }
    if kinds.is_empty() {
        kinds = by_capacity(root, online)?;
    }
    kinds.retain(|kind| !kind.pcpus.is_empty());
    // A single kind, or one that is known only in part, says nothing.
    Ok(if kinds.len() > 1 { kinds } else { Vec::new() })
}

/// Reads the kinds of Arm's cores by `cpu_capacity`, which is 1024 for the fastest at its largest
/// clock. Clocks of one kind differ a little.
fn by_capacity(root: &FsRoot, online: &CpuSet) -> Result<Vec<CoreKind>, FsError> {
    let mut capacities: Vec<(PcpuId, u64)> = Vec::new();
    for pcpu in online.iter() {
        let Some(dir) = root.dir(&format!("{CPUS}/cpu{pcpu}"))? else { return Ok(Vec::new()) };
        let parse = |text: &str| text.parse().ok();
        let Some(capacity) = dir.parse("cpu_capacity", parse, "a number")? else {
            return Ok(Vec::new());
        };
        capacities.push((pcpu, capacity));
    }
    let most = capacities.iter().map(|(_, capacity)| *capacity).max().unwrap_or(0);
    let fast = |capacity: u64| capacity.saturating_mul(4) >= most.saturating_mul(3);
    let of = |kind, is_fast| {
        let those = capacities.iter().filter(|(_, capacity)| fast(*capacity) == is_fast);
        CoreKind { kind, pcpus: those.map(|(pcpu, _)| *pcpu).collect() }
    };
    Ok(vec![of(Speed::Performance, true), of(Speed::Efficiency, false)])
}

/// Reads level-3 caches, each once.
pub fn l3(root: &FsRoot, online: &CpuSet) -> Result<Vec<L3>, FsError> {
    let mut caches = Vec::new();
    let mut seen = CpuSet::new();
    // Level 3 is index 3 nearly everywhere (two level-1 caches), and the same for all pcpus of a
    // kind.
    let mut index = 3;
    for pcpu in online.iter() {
        if seen.contains(pcpu) {
            continue;
        }
        seen.insert(pcpu);
        let Some((found, dir)) = l3_of(root, pcpu, index)? else { continue };
        index = found;
        let shared = match id_list(&dir, "shared_cpu_list")? {
            Some(shared) => shared,
            None => mask(&dir, "shared_cpu_map")?.unwrap_or_default(),
        };
        let pcpus = shared.and(online).minus(&seen).or(&CpuSet::of(pcpu));
        seen = seen.or(&pcpus);
        let size = |text: &str| text.strip_suffix('K')?.parse().ok().map(MemSize::from_kib);
        caches.push(L3 { pcpus, size_kib: dir.parse("size", size, "a size such as 512K")? });
    }
    Ok(caches)
}

/// Finds the directory of a pcpu's level-3 cache; looks at index `first` first.
fn l3_of(root: &FsRoot, pcpu: PcpuId, first: usize) -> Result<Option<(usize, Dir<'_>)>, FsError> {
    for index in std::iter::once(first).chain((0..CACHES).filter(|&index| index != first)) {
        let path = format!("{CPUS}/cpu{pcpu}/cache/index{index}");
        match root.dir(&path)? {
            Some(dir) if dir.read("level")?.is_some_and(|level| level == "3") => {
                return Ok(Some((index, dir)));
            }
            None if index != first => return Ok(None),
            _ => {}
        }
    }
    Ok(None)
}

/// Reads a list of ids such as `0-23,48-71`; none where the file is missing.
pub fn id_list<I: Id>(dir: &Dir<'_>, name: &str) -> Result<Option<IdSet<I>>, FsError> {
    match dir.read(name)? {
        Some(text) => text.parse().map(Some).map_err(|error| dir.malformed(name, 1, error)),
        None => Ok(None),
    }
}

/// Reads a mask such as `ffff0000,00ffffff`, 32 bits to a word, lowest word last; none where the
/// file is missing. Used only for kernels too old for lists.
pub fn mask(dir: &Dir<'_>, name: &str) -> Result<Option<CpuSet>, FsError> {
    let Some(text) = dir.read(name)? else { return Ok(None) };
    let mut set = CpuSet::new();
    for (word, digits) in text.rsplit(',').enumerate() {
        let bits = u32::from_str_radix(digits, 16).ok().filter(|_| word < 2048);
        let Some(bits) = bits.filter(|_| digits.bytes().all(|b| b.is_ascii_hexdigit())) else {
            let reason = not(&text, "a mask such as ffff0000,00ffffff");
            return Err(dir.malformed(name, 1, reason));
        };
        for bit in (0..32).filter(|bit| bits >> bit & 1 == 1) {
            set.insert(PcpuId(u32::try_from(word).expect("below 2048") * 32 + bit));
        }
    }
    Ok(Some(set))
}

/// Reads a directory's name such as `cpu12` or `node3`: the id after `prefix`.
pub fn numbered<I: Id>(name: &str, prefix: &str) -> Option<I> {
    let digits = name.strip_prefix(prefix)?;
    let set: IdSet<I> = digits.parse().ok()?;
    set.first().filter(|first| first.as_u32().to_string() == digits)
}
