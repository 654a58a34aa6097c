//! NVLinks as read from drivers rather than tables: the driver's report of each link, the stored
//! report for GPUs now bound to vfio-pci, and how both override the published table of a board.
//!
//! The stored file is not a setting: `host modules --write` writes it, and so does every change
//! that unbinds a GPU. NVLink bridges are changed only while the machine is off, so links stored
//! since the last boot are not queried again.

use super::answer::{GpuLinks, NvmlAnswer};
use super::nvml;
use crate::discover::trust::owned;
use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::shell::word;
use gpuvm_core::topology::vendor::VENDOR_NVIDIA;
use gpuvm_core::topology::{DeviceKind, Fabric, FabricModel, NvLink, Parts, PciDevice};
use gpuvm_core::words::count;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The stored file with links of GPUs not bound to the driver.
pub const PATH: &str = "/var/lib/gpuvm/nvlinks.json";
/// The stored file's `format`.
const FORMAT: &str = "gpuvm-nvlinks";
/// The stored file's `version`.
const VERSION: u32 = 1;
/// The most NVLinks of a GPU; a larger number is an error or forged.
pub const MOST_LINKS: u32 = 72;
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// One GPU of the stored file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StoredGpu {
    /// Vendor and device id, to detect another card in its place.
    ids: (u16, u16),
    #[serde(flatten)]
    links: GpuLinks,
    /// The boot in which they were read.
    boot: Option<String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct File {
    format: String,
    version: u32,
    /// GPUs by address.
    gpus: Vec<StoredGpu>,
}

/// The NVLinks read from a host.
#[derive(Debug, Clone, Default)]
pub struct Read {
    /// By address.
    pub gpus: Vec<GpuLinks>,
    /// The source as text; empty without one.
    pub by: String,
    /// Why NVML did not answer, for the user.
    pub note: Option<String>,
    /// Why the stored file is not used, with the remedy.
    pub unread: Option<String>,
}

/// NVIDIA GPUs that respond, without virtual functions.
fn gpus(parts: &Parts) -> impl Iterator<Item = &PciDevice> {
    let is_gpu = |device: &&PciDevice| {
        device.vendor == VENDOR_NVIDIA && device.kind() == DeviceKind::Gpu && !device.is_vf()
    };
    parts.devices.iter().filter(is_gpu)
}

/// Reads the stored file, and says why it is not used, or not wholly, if there are GPUs. It only
/// keeps the driver's report, so whatever is wrong with it is no error.
fn kept(root: &FsRoot, parts: &Parts) -> (Vec<StoredGpu>, Option<String>) {
    let ids: BTreeMap<Bdf, (u16, u16)> =
        gpus(parts).map(|gpu| (gpu.bdf, (gpu.vendor, gpu.device))).collect();
    let all = if ids.is_empty() { Ok(Vec::new()) } else { stored(root) };
    let all = match all {
        Ok(all) => all,
        Err(error) => return (Vec::new(), Some(unread(root, &error.to_string()))),
    };
    let mut wrong = None;
    let mut good = Vec::new();
    for kept in all {
        let strange = ids.get(&kept.links.bdf) != Some(&kept.ids);
        let peer = kept.links.direct.iter().find(|(peer, _)| !ids.contains_key(peer));
        let reason = match peer {
            _ if strange => "this host has no such GPU there".to_owned(),
            Some((peer, _)) => format!("this host has no GPU {peer}, to which it would be linked"),
            None if !kept.links.is_sane() => "no GPU has such NVLinks".to_owned(),
            None => {
                good.push(kept);
                continue;
            }
        };
        let shown = root.shown(PATH);
        wrong.get_or_insert(format!("{shown}: what it says of {}: {reason}", kept.links.bdf));
    }
    (good, wrong.map(|wrong| unread(root, &wrong)))
}

/// Returns the entries of the stored file; empty if it is missing.
fn stored(root: &FsRoot) -> Result<Vec<StoredGpu>, FsError> {
    if root.is_live() {
        // The files of a record belong to whoever made it.
        owned(root, PATH)?;
    } else {
        root.regular(PATH)?;
    }
    let known = (FORMAT, VERSION);
    let file = root.document(PATH, known, |file: &File| (&file.format, file.version))?;
    Ok(file.map(|file| file.gpus).unwrap_or_default())
}

/// Refuses a stored file that cannot be read: a newer gpuvm's, or one of others.
pub fn refuse_foreign(root: &FsRoot) -> Result<(), FsError> {
    stored(root).map(drop)
}

/// Returns the message about a stored file that is not used, with its remedy.
fn unread(root: &FsRoot, why: &str) -> String {
    let shown = root.shown(PATH);
    let file = word(&shown);
    let anew = if root.is_live() {
        "; `gpuvm host modules --write` rewrites it while GPUs are bound to `nvidia`"
    } else {
        ""
    };
    format!(
        "{why}; so the NVLinks kept there are not used; `mv {file} {file}.old` puts it away{anew}"
    )
}

fn boot(root: &FsRoot) -> Result<Option<String>, FsError> {
    Ok(root.read(BOOT)?.map(|text| text.trim().to_owned()))
}

/// Returns GPUs bound to the driver whose links were not stored in this boot; empty with fewer than
/// two GPUs.
fn unknown(root: &FsRoot, parts: &Parts, kept: &[StoredGpu]) -> Result<Vec<Bdf>, FsError> {
    if !root.is_live() || gpus(parts).count() < 2 {
        return Ok(Vec::new());
    }
    let now = boot(root)?;
    let known = |bdf: Bdf| kept.iter().any(|kept| kept.links.bdf == bdf && kept.boot == now);
    let bound = gpus(parts).filter(|gpu| gpu.driver.as_deref() == Some("nvidia"));
    Ok(bound.map(|gpu| gpu.bdf).filter(|&bdf| !known(bdf)).collect())
}

/// A query in progress.
pub struct Begun {
    kept: Vec<StoredGpu>,
    /// Why the stored file is not used, with the remedy.
    unread: Option<String>,
    /// GPUs to query from NVML.
    pub unknown: Vec<Bdf>,
    all: Vec<Bdf>,
}

/// Looks up stored links, and which GPUs must be queried.
pub fn begin(root: &FsRoot, parts: &Parts) -> Result<Begun, FsError> {
    let (kept, unread) = kept(root, parts);
    let unknown = unknown(root, parts, &kept)?;
    let all = gpus(parts).map(|gpu| gpu.bdf).collect();
    Ok(Begun { kept, unread, unknown, all })
}

impl Begun {
    /// Asks NVML for links only, if any are unknown.
    pub fn ask(self) -> Read {
        let asked = !self.unknown.is_empty();
        let answer = asked.then(|| nvml::answer(nvml::begin(Vec::new(), self.unknown.clone())));
        self.end(answer.as_ref())
    }

    /// Combines stored links and NVML's answer.
    pub fn end(self, answer: Option<&Result<NvmlAnswer, String>>) -> Read {
        let Begun { kept, unread, unknown, all } = self;
        let mut note = None;
        let mut gpus: BTreeMap<Bdf, GpuLinks> =
            kept.into_iter().map(|kept| (kept.links.bdf, kept.links)).collect();
        let mut by = Vec::new();
        match answer {
            Some(Ok(answer)) => {
                for links in answer.links.iter().filter(|links| unknown.contains(&links.bdf)) {
                    gpus.insert(links.bdf, links.clone().among(&all));
                    by = vec!["NVML"];
                }
            }
            Some(Err(reason)) if !unknown.is_empty() => {
                note = Some(format!("NVML has not reported the NVLinks: {reason}"));
            }
            _ => {}
        }
        if gpus.keys().any(|bdf| by.is_empty() || !unknown.contains(bdf)) {
            by.push(PATH);
        }
        Read { gpus: gpus.into_values().collect(), by: by.join(" and "), note, unread }
    }
}

/// Returns the new content of the stored file if it changes: with NVML's report of the GPUs bound
/// to the driver (`again`: even of those read in this boot).
pub fn to_keep(root: &FsRoot, again: bool) -> Result<Option<String>, FsError> {
    let mut parts = Parts::default();
    super::super::pci::devices(root, &mut parts)?;
    let parts = &parts;
    let (mut kept, _) = kept(root, parts);
    let empty: &[StoredGpu] = &[];
    let unknown = unknown(root, parts, if again { empty } else { &kept })?;
    if unknown.is_empty() {
        return Ok(None);
    }
    let Ok(answer) = nvml::answer(nvml::begin(Vec::new(), unknown)) else { return Ok(None) };
    if answer.links.is_empty() {
        return Ok(None);
    }
    let boot = boot(root)?;
    let all: Vec<Bdf> = gpus(parts).map(|gpu| gpu.bdf).collect();
    for links in answer.links.into_iter().map(|links| links.among(&all)) {
        kept.retain(|kept| kept.links.bdf != links.bdf);
        let ids = gpus(parts).find(|gpu| gpu.bdf == links.bdf).map(|gpu| (gpu.vendor, gpu.device));
        kept.extend(ids.map(|ids| StoredGpu { ids, links, boot: boot.clone() }));
    }
    kept.sort_by_key(|kept| kept.links.bdf);
    let file = File { format: FORMAT.into(), version: VERSION, gpus: kept };
    let text = serde_json::to_string_pretty(&file).expect("a file of numbers") + "\n";
    let there = root.read(PATH).ok().flatten().unwrap_or_default();
    Ok(Some(text).filter(|text| text.trim() != there.trim()))
}

/// Returns the links of each pair with at least one GPU that was read: direct ones, otherwise, over
/// switches, those of the GPU with fewer. `before` is used for a GPU that was not read.
fn pairs(read: &[GpuLinks], before: &[NvLink]) -> BTreeMap<(Bdf, Bdf), u32> {
    let key = |a: Bdf, b: Bdf| (a.min(b), a.max(b));
    let mut pairs: BTreeMap<(Bdf, Bdf), u32> = BTreeMap::new();
    for gpu in read {
        for &(peer, links) in &gpu.direct {
            let pair = pairs.entry(key(gpu.bdf, peer)).or_insert(links);
            *pair = links.max(*pair);
        }
        for other in read.iter().filter(|other| other.bdf > gpu.bdf) {
            let shared = gpu.switched.min(other.switched);
            let pair = pairs.entry(key(gpu.bdf, other.bdf)).or_insert(shared);
            *pair = shared.max(*pair);
        }
    }
    for link in before {
        let of = |bdf: Bdf| read.iter().find(|gpu| gpu.bdf == bdf);
        let known = match (of(link.a), of(link.b)) {
            (Some(_), Some(_)) => continue,
            (None, None) => link.links,
            (Some(one), None) | (None, Some(one)) => link.links.min(one.switched),
        };
        pairs.entry(key(link.a, link.b)).or_insert(known);
    }
    pairs
}

/// Overrides a table's links by those read; returns notes. `listed`: the partitions come from
/// Fabric Manager and are kept.
pub fn lay_over(fabric: &mut Fabric, read: &Read, listed: bool) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    fabric.links_unread.clone_from(&read.unread);
    // Without a table there is no fallback, which the user should know.
    notes.extend(read.note.clone().filter(|_| fabric.links.is_empty() || !read.gpus.is_empty()));
    let most = read.gpus.iter().map(GpuLinks::all).max().unwrap_or(0);
    if read.gpus.is_empty() || (most == 0 && fabric.links.is_empty()) {
        return notes;
    }
    if most == 0 {
        notes.push(format!(
            "{} shows no NVLink that works, although this board has some; the published table \
             counts until they do: look at `nvidia-smi nvlink --status` and Fabric Manager",
            read.by
        ));
        return notes;
    }
    let pairs = pairs(&read.gpus, &fabric.links);
    let links: Vec<NvLink> = pairs
        .into_iter()
        .filter(|(_, links)| *links > 0)
        .map(|((a, b), links)| NvLink { a, b, links })
        .collect();
    if links != fabric.links {
        let said = format!("NVLinks read from {}", read.by);
        fabric.source = Some(match fabric.source.take() {
            Some(source) => format!("{source}; {said}"),
            None => said,
        });
        fabric.links = links;
    }
    if fabric.model != FabricModel::None && !listed {
        cap(fabric);
        for gpu in read.gpus.iter().filter(|gpu| gpu.all() < most) {
            let GpuLinks { bdf, .. } = gpu;
            let most = count(most, "NVLink");
            fabric.degraded.push(format!("GPU {bdf} has {} of {most}", gpu.all()));
        }
    }
    notes
}

/// Limits the NVLinks of partitions to those of their GPUs.
fn cap(fabric: &mut Fabric) {
    let Fabric { partitions, links, .. } = fabric;
    for partition in partitions.iter_mut().filter(|partition| partition.gpus.len() > 1) {
        let inside =
            |link: &&NvLink| partition.gpus.contains(&link.a) && partition.gpus.contains(&link.b);
        if let Some(least) = links.iter().filter(inside).map(|link| link.links).min() {
            partition.nvlinks_per_gpu = partition.nvlinks_per_gpu.min(least);
        }
    }
}

impl GpuLinks {
    /// Links not leading to one of these GPUs lead to a switch: drivers before 470 do not
    /// distinguish them.
    fn among(mut self, gpus: &[Bdf]) -> GpuLinks {
        let (to_gpus, others): (Vec<_>, Vec<_>) =
            self.direct.into_iter().partition(|(peer, _)| gpus.contains(peer));
        self.direct = to_gpus;
        self.switched += others.iter().map(|(_, links)| links).sum::<u32>();
        self
    }

    /// Whether these links are plausible: none to itself, and no more than any GPU has.
    fn is_sane(&self) -> bool {
        let all = self.direct.iter().map(|(_, links)| u64::from(*links)).sum::<u64>();
        self.direct.iter().all(|(peer, _)| *peer != self.bdf)
            && all + u64::from(self.switched) <= u64::from(MOST_LINKS)
    }

    /// All its links.
    pub fn all(&self) -> u32 {
        self.switched + self.direct.iter().map(|(_, links)| links).sum::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first function of a bus.
    fn bdf(bus: u8) -> Bdf {
        Bdf::new(0, bus, 0, 0).unwrap()
    }

    /// The facts read of a GPU.
    fn gpu(bus: u8, direct: &[(u8, u32)], switched: u32) -> GpuLinks {
        let direct = direct.iter().map(|(bus, links)| (bdf(*bus), *links)).collect();
        GpuLinks { bdf: bdf(bus), direct, switched }
    }

    fn table(links: &[(u8, u8, u32)]) -> Fabric {
        let links = links.iter().map(|&(a, b, links)| NvLink { a: bdf(a), b: bdf(b), links });
        Fabric { links: links.collect(), ..Fabric::default() }
    }

    /// Overrides, and returns the links by bus.
    fn laid(mut fabric: Fabric, gpus: Vec<GpuLinks>) -> (Vec<(u8, u8, u32)>, Vec<String>) {
        let read = Read { gpus, by: "NVML".into(), ..Read::default() };
        let notes = lay_over(&mut fabric, &read, false);
        let links = fabric.links.iter().map(|l| (l.a.bus(), l.b.bus(), l.links)).collect();
        (links, notes)
    }

    #[test]
    fn implausible_values_of_a_gpu_are_not_believed() {
        for sane in [gpu(1, &[], 0), gpu(1, &[(2, 4), (3, 4)], 64)] {
            assert!(sane.is_sane(), "{sane:?}");
        }
        let much = u32::MAX;
        for made_up in [gpu(1, &[(1, 4)], 0), gpu(1, &[(2, much)], much), gpu(1, &[], 73)] {
            assert!(!made_up.is_sane(), "{made_up:?}");
        }
    }

    #[test]
    fn read_links_win_over_the_table() {
        let none = || table(&[]);
        let cross = vec![gpu(1, &[(4, 4)], 0), gpu(2, &[(3, 4)], 0), gpu(3, &[(2, 4)], 0)];
        assert_eq!(laid(none(), cross).0, [(1, 4, 4), (2, 3, 4)]);
        // One GPU has lost two links to its switches; one is on vfio-pci and gets the table's
        // links.
        let board = || table(&[(1, 2, 18), (1, 3, 18), (2, 3, 18)]);
        let read = vec![gpu(1, &[], 16), gpu(2, &[], 18)];
        assert_eq!(laid(board(), read).0, [(1, 2, 16), (1, 3, 16), (2, 3, 18)]);
        // A GPU without links falls out of the mesh; where no GPU has any, the fabric is not up.
        let read = vec![gpu(1, &[], 18), gpu(2, &[], 0), gpu(3, &[], 18)];
        assert_eq!(laid(board(), read).0, [(1, 3, 18)]);
        let (links, notes) = laid(board(), vec![gpu(1, &[], 0), gpu(2, &[], 0), gpu(3, &[], 0)]);
        assert_eq!(links.len(), 3);
        assert!(notes[0].contains("no NVLink that works"), "{notes:?}");
        // On a desktop there is nothing to say.
        assert_eq!(laid(none(), vec![gpu(1, &[], 0), gpu(2, &[], 0)]), (vec![], vec![]));
    }
}
