//! Health of GPUs on a host: NVML's report where the driver has the GPU, else the remembered
//! findings, and Xid messages of this boot. Judges nothing itself (core's health.rs does), and does
//! not write the file.
//!
//! A remembered finding follows the GPU by its UUID. While the driver does not have a GPU its UUID
//! is unknown; then the entry made at its address applies, unless that GPU is seen elsewhere or the
//! function has other ids. A damaged file, or one that others may write, is a note: its GPUs count
//! as not checked.

use super::cards::{Card, cards};
use super::fabric::answer::{GpuReading, HealthAnswer};
use super::fabric::nvml;
use super::trust::owned;
use crate::child::Question;
use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::health::{Health, HealthCode, HealthFinding, HealthSource, XidCount, judge};
use gpuvm_core::topology::vendor::VENDOR_NVIDIA;
use gpuvm_core::topology::{DeviceKind, Mig, MigInstances, Parts, PciDevice, Vgpu, is_mig_backed};
use gpuvm_core::xid::xids;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;

/// The file, below the root.
pub const FILE: &str = "var/lib/gpuvm/health.json";

/// The first word of the file.
const FORMAT: &str = "gpuvm-health";
const VERSION: u32 = 1;
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
const LOG: &str = "/dev/kmsg";
/// The most of the buffer that is read; the kernel's largest is 16 MiB.
const MOST_LOG: usize = 32 << 20;

/// The remembered findings of one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remembered {
    /// Where it was; `None` if another GPU was found there since.
    pub bdf: Option<Bdf>,
    /// Its UUID; none if the driver could not read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Vendor and device id.
    pub ids: (u16, u16),
    /// The boot in which it was read.
    pub boot: Option<String>,
    /// The findings.
    pub findings: Vec<HealthFinding>,
    /// The overrides of an admin.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accepted: Vec<HealthCode>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// [`FORMAT`].
    format: String,
    /// [`VERSION`].
    version: u32,
    gpus: Vec<Remembered>,
}

/// The entries of a host's file; empty without a file.
pub fn entries(root: &FsRoot) -> Result<Vec<Remembered>, FsError> {
    if root.is_live() {
        owned(root, FILE)?;
    }
    let known = (FORMAT, VERSION);
    let file = root.document(FILE, known, |file: &File| (&file.format, file.version))?;
    Ok(file.map(|file| file.gpus).unwrap_or_default())
}

/// The text of a file with these entries.
pub fn to_json(gpus: &[Remembered]) -> String {
    let file = File { format: FORMAT.into(), version: VERSION, gpus: gpus.to_vec() };
    let text = serde_json::to_string_pretty(&file).expect("the values have only string keys");
    text + "\n"
}

/// Returns the place of a GPU's entry.
pub fn place(
    entries: &[Remembered],
    gpu: &PciDevice,
    cards: &BTreeMap<Bdf, Card>,
) -> Option<usize> {
    let uuid = |bdf: &Bdf| cards.get(bdf).and_then(|card| card.uuid.as_ref());
    let here = uuid(&gpu.bdf);
    if here.is_some() {
        let by_uuid = entries.iter().position(|entry| entry.uuid.as_ref() == here);
        if by_uuid.is_some() {
            return by_uuid;
        }
    }
    entries.iter().position(|entry| {
        // A GPU with another UUID has taken its place, or it has the place of another.
        let is_other = match (&entry.uuid, here) {
            (Some(_), Some(_)) => true,
            (Some(old), None) => cards.values().any(|card| card.uuid.as_ref() == Some(old)),
            (None, _) => false,
        };
        entry.bdf == Some(gpu.bdf) && entry.ids == (gpu.vendor, gpu.device) && !is_other
    })
}

/// NVIDIA GPUs that respond, without virtual functions.
fn gpus(parts: &Parts) -> impl Iterator<Item = &PciDevice> {
    let is_gpu = |device: &&PciDevice| {
        device.vendor == VENDOR_NVIDIA && device.kind() == DeviceKind::Gpu && !device.is_vf()
    };
    parts.devices.iter().filter(is_gpu)
}

/// A reading in progress.
pub struct Begun {
    /// NVML's answer; `None` if the driver has no GPU.
    question: Option<Question>,
}

/// Asks NVML about the GPUs that its driver has, on the live machine.
pub fn begin(root: &FsRoot, parts: &Parts) -> Begun {
    let bound = gpus(parts).filter(|gpu| gpu.driver.as_deref() == Some("nvidia"));
    let bound: Vec<(Bdf, Vec<u32>)> = bound.map(|gpu| (gpu.bdf, backed_types(gpu))).collect();
    let asks = root.is_live() && !bound.is_empty();
    Begun { question: asks.then(|| nvml::begin_health(bound)) }
}

/// Numbers of the vGPU types of a GPU that MIG backs.
fn backed_types(gpu: &PciDevice) -> Vec<u32> {
    let Some(Vgpu::Card { types }) = &gpu.vgpu else { return Vec::new() };
    types.iter().filter(|of| is_mig_backed(&of.name)).map(|of| of.id).collect()
}

/// The known health of a host's GPUs.
#[derive(Debug, Default)]
pub struct KnownHealth {
    /// The remembered findings.
    pub entries: Vec<Remembered>,
    /// Whether the file could be used.
    pub usable: bool,
    /// NVML's findings now, by address.
    pub now: BTreeMap<Bdf, Vec<HealthFinding>>,
    /// The MIG modes that NVML reports now, by address.
    pub mig: BTreeMap<Bdf, Mig>,
    /// GPU instances behind vGPU types that NVML reports now, by address and number of the type.
    instances: BTreeMap<(Bdf, u32), MigInstances>,
    /// Xid messages of this boot by address.
    xids: BTreeMap<Bdf, Vec<XidCount>>,
    /// The driver's reports.
    pub cards: BTreeMap<Bdf, Card>,
    /// This boot.
    pub boot: Option<String>,
    /// Facts that could not be read.
    pub notes: Vec<String>,
}

impl Begun {
    /// Waits for the answer, and reads the rest.
    pub fn end(self, root: &FsRoot, parts: &Parts) -> Result<KnownHealth, FsError> {
        let mut known = KnownHealth { usable: true, ..KnownHealth::default() };
        if gpus(parts).next().is_none() {
            return Ok(known);
        }
        known.cards = cards(root)?;
        known.boot = boot(root)?;
        known.entries = entries(root).unwrap_or_else(|error| {
            known.usable = false;
            known.notes.push(format!(
                "{error}; so the health of GPUs that the NVIDIA driver does not have is not known"
            ));
            Vec::new()
        });
        if root.is_live() {
            match log() {
                Ok(text) => known.xids = by_gpu(&text),
                Err(error) => known.notes.push(format!(
                    "cannot read {LOG}: {error}; Xid messages of GPUs are not known"
                )),
            }
        }
        match self.question.map(nvml::health_answer) {
            Some(Ok(answer)) => known.add(answer),
            Some(Err(reason)) => {
                known.notes.push(format!("NVML did not report the health of GPUs: {reason}"));
            }
            None => {}
        }
        Ok(known)
    }
}

impl KnownHealth {
    fn add(&mut self, answer: HealthAnswer) {
        for (gpu, reading) in answer {
            match reading {
                Ok(GpuReading { health: reading, instances }) => {
                    let all = instances.into_iter().map(|(of, found)| ((gpu, of), found));
                    self.instances.extend(all);
                    let mig = reading.mig.map(|(enabled, pending)| Mig { enabled, pending });
                    self.mig.extend(mig.map(|mig| (gpu, mig)));
                    self.now.insert(gpu, judge(Some(&reading), self.xids_of(gpu)));
                }
                Err(reason) => {
                    let what = format!("NVML did not report the health of GPU {gpu}");
                    self.notes.push(format!("{what}: {reason}"));
                }
            }
        }
    }

    /// The messages of this boot about a GPU.
    fn xids_of(&self, gpu: Bdf) -> &[XidCount] {
        self.xids.get(&gpu).map_or(&[], Vec::as_slice)
    }

    /// The health of a GPU; `None` if not checked.
    pub fn health(&self, gpu: &PciDevice) -> Option<Health> {
        let entry = place(&self.entries, gpu, &self.cards).map(|at| &self.entries[at]);
        let accepted = entry.map(|entry| entry.accepted.clone()).unwrap_or_default();
        if let Some(findings) = self.now.get(&gpu.bdf) {
            return Some(Health {
                source: HealthSource::Nvml,
                findings: findings.clone(),
                accepted,
            });
        }
        let mut findings = judge(None, self.xids_of(gpu.bdf));
        let Some(entry) = entry else {
            let source = HealthSource::KernelLog;
            return (!findings.is_empty()).then_some(Health { source, findings, accepted });
        };
        let this_boot = self.boot.is_some() && entry.boot == self.boot;
        let is_xid = |code| matches!(code, HealthCode::Xid | HealthCode::XidFatal);
        let (read, old): (Vec<_>, Vec<_>) =
            entry.findings.iter().cloned().partition(|finding| this_boot || finding.code.lasts());
        // Those of this boot are in the log, unless newer messages have overwritten them.
        let logged = std::mem::take(&mut findings);
        let has_xid = |code| logged.iter().any(|found: &HealthFinding| found.code == code);
        findings.extend(read.into_iter().filter(|f| !is_xid(f.code) || !has_xid(f.code)));
        findings.extend(logged);
        findings.sort_by_key(|finding| finding.code);
        // Findings that a restart settles were not checked again since.
        if findings.is_empty() && !old.is_empty() {
            return None;
        }
        let source = if this_boot { HealthSource::Remembered } else { HealthSource::EarlierBoot };
        Some(Health { source, findings, accepted })
    }

    /// The entries with NVML's report of now; `None` if nothing to change, or the file is not ours
    /// to write over.
    pub fn renewed(&self, parts: &Parts) -> Option<Vec<Remembered>> {
        if !self.usable || self.now.is_empty() {
            return None;
        }
        let mut entries = self.entries.clone();
        for gpu in gpus(parts) {
            let Some(findings) = self.now.get(&gpu.bdf) else { continue };
            let entry = renew(&mut entries, gpu, &self.cards);
            (entry.findings, entry.boot) = (findings.clone(), self.boot.clone());
            // A finding that is gone and comes again is to be accepted again.
            let is_there = |code: &HealthCode| findings.iter().any(|found| found.code == *code);
            entry.accepted.retain(is_there);
        }
        (entries != self.entries).then_some(entries)
    }
}

/// Returns the entry of a GPU, made if there is none, with its place and UUID as they are now.
pub fn renew<'e>(
    entries: &'e mut Vec<Remembered>,
    gpu: &PciDevice,
    cards: &BTreeMap<Bdf, Card>,
) -> &'e mut Remembered {
    let at = place(entries, gpu, cards).unwrap_or_else(|| {
        let ids = (gpu.vendor, gpu.device);
        let (uuid, boot) = (None, None);
        let (findings, accepted) = (Vec::new(), Vec::new());
        entries.push(Remembered { bdf: None, uuid, ids, boot, findings, accepted });
        entries.len() - 1
    });
    for (other, entry) in entries.iter_mut().enumerate() {
        if other != at && entry.bdf == Some(gpu.bdf) {
            entry.bdf = None;
        }
    }
    let entry = &mut entries[at];
    entry.bdf = Some(gpu.bdf);
    let uuid = cards.get(&gpu.bdf).and_then(|card| card.uuid.clone());
    entry.uuid = uuid.or_else(|| entry.uuid.take());
    entry
}

/// Reads the health of GPUs into the parts of a host.
pub fn lay(root: &FsRoot, begun: Begun, parts: &mut Parts) -> Result<(), FsError> {
    let known = begun.end(root, parts)?;
    let health: Vec<(Bdf, Option<Health>)> =
        gpus(parts).map(|gpu| (gpu.bdf, known.health(gpu))).collect();
    for (bdf, health) in health {
        if let Some(device) = parts.devices.iter_mut().find(|device| device.bdf == bdf) {
            device.health = health;
            device.mig = known.mig.get(&bdf).copied();
            if let Some(Vgpu::Card { types }) = &mut device.vgpu {
                types
                    .iter_mut()
                    .for_each(|of| of.mig = known.instances.get(&(bdf, of.id)).copied());
            }
        }
    }
    parts.machine.health_unread.clone_from(&known.notes);
    parts.notes.extend(known.notes);
    Ok(())
}

/// Reads NVML's report for the file, which is to be written before the driver loses GPUs, and after
/// it got them back.
pub fn to_keep(root: &FsRoot) -> Result<ToKeep, FsError> {
    let mut parts = Parts::default();
    super::pci::devices(root, &mut parts)?;
    super::cards::mark_silent(root, &mut parts)?;
    let known = begin(root, &parts).end(root, &parts)?;
    let text = known.renewed(&parts).map(|entries| to_json(&entries));
    Ok(ToKeep { text, notes: if known.usable { Vec::new() } else { known.notes } })
}

/// The file to be written.
#[derive(Debug)]
pub struct ToKeep {
    /// The file; `None` if it does not change, or must not.
    pub text: Option<String>,
    /// Why the file is not used, if it is not.
    pub notes: Vec<String>,
}

/// Returns the file with an admin's overrides for a GPU, or without any; `None` if it does not
/// change.
pub fn accepting(root: &FsRoot, gpu: &PciDevice, accepts: bool) -> Result<Option<String>, FsError> {
    let (cards, before) = (cards(root)?, entries(root)?);
    let health = gpu.health.as_ref().filter(|_| accepts);
    let found = health.map(|health| health.findings.as_slice()).unwrap_or_default();
    let codes = found.iter().map(|finding| finding.code).filter(|code| code.is_over());
    let codes: Vec<HealthCode> = codes.collect();
    let old = place(&before, gpu, &cards).map(|at| &before[at]);
    let had_none = old.is_none_or(|entry| entry.accepted.is_empty());
    // Earlier overrides stay where nothing is known now.
    if codes.is_empty() && (accepts || had_none) {
        return Ok(None);
    }
    let mut after = before.clone();
    let entry = renew(&mut after, gpu, &cards);
    entry.accepted = codes;
    if health.is_some_and(|health| health.source != HealthSource::EarlierBoot) {
        entry.findings = found.to_vec();
        entry.boot = boot(root)?;
    }
    Ok((after != before).then(|| to_json(&after)))
}

fn boot(root: &FsRoot) -> Result<Option<String>, FsError> {
    Ok(root.read(BOOT)?.map(|text| text.trim().to_owned()))
}

/// Counts the Xid messages that report faults of hardware.
fn by_gpu(text: &str) -> BTreeMap<Bdf, Vec<XidCount>> {
    let mut all: BTreeMap<Bdf, Vec<XidCount>> = BTreeMap::new();
    for xid in xids(text) {
        let Some(kind) = xid.kind() else { continue };
        let of_gpu = all.entry(xid.gpu).or_default();
        match of_gpu.iter_mut().find(|known| known.kind.number == kind.number) {
            Some(known) => known.times += 1,
            None => of_gpu.push(XidCount { kind, times: 1 }),
        }
    }
    all
}

/// Reads the kernel's buffer of messages, which holds those of this boot only.
fn log() -> std::io::Result<String> {
    crate::trace::reads(LOG.as_ref());
    let mut open = OpenOptions::new();
    let mut file = open.read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(LOG)?;
    let (mut bytes, mut message) = (Vec::new(), vec![0; 16 << 10]);
    while bytes.len() < MOST_LOG {
        match file.read(&mut message) {
            Ok(0) => break,
            Ok(length) => bytes.extend_from_slice(&message[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // The message was overwritten before it was read: the next read is of the one after.
            Err(error) if error.raw_os_error() == Some(Errno::EPIPE as i32) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests;
