//! `gpu exclude`, `gpu include`: the list of GPUs and NVSwitches that no guest gets. It is a single
//! file, written atomically under the host's lock, so that no journal is needed.

use crate::apply::write_exclusions;
use crate::bdf::{Bdf, BdfError};
use crate::discover::cards::{Card, cards, is_uuid};
use crate::discover::exclusions::{Entry, entries, place};
use crate::discover::health::accepting;
use crate::error::{Class, Coded, Result, classed, usage};
use crate::fsroot::FsRoot;
use crate::gpu_health;
use crate::gpu_states;
use crate::health::Health;
use crate::history::gpus;
use crate::session::Session;
use crate::topology::{DeviceKind, PciDevice, Topology};
use crate::unfinished;
use crate::words::count;
use serde::Serialize;
use std::collections::BTreeMap;
use std::str::FromStr;

/// The reason a GPU is not excluded or included.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "gpu-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum GpuError {
    /// The device is neither a GPU nor an NVSwitch.
    #[error("{bdf} is neither a GPU nor an NVSwitch")]
    OtherDevice { bdf: String },
    /// The NVIDIA driver excludes the GPU.
    #[error("{bdf} is excluded by the NVIDIA driver, not by gpuvm")]
    ExcludedByDriver { bdf: String },
}

impl Coded for GpuError {}

/// A GPU or NVSwitch as a caller names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuName {
    /// By its UUID, in lower case after `GPU-`.
    Uuid(String),
    /// By its address.
    At(Bdf),
    /// By its index, as `create --gpu` takes it.
    Index(usize),
}

impl FromStr for GpuName {
    type Err = BdfError;
    fn from_str(text: &str) -> Result<GpuName, BdfError> {
        if is_uuid(text) {
            return Ok(GpuName::Uuid(format!("GPU-{}", text[4..].to_ascii_lowercase())));
        }
        match text.parse::<usize>() {
            Ok(index) => Ok(GpuName::Index(index)),
            Err(_) => text.parse().map(GpuName::At),
        }
    }
}

/// A change of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExclusionChange {
    /// Adds it to the list.
    Exclude {
        /// The device.
        device: GpuName,
        /// Why, in one line; `None` if unchanged.
        reason: Option<String>,
    },
    /// Removes it from the list.
    Include {
        /// The device.
        device: GpuName,
        /// Whether guests get it although its health is over a limit; otherwise the override is
        /// removed.
        despite_health: bool,
        /// Whether it counts as clean although it is not tested since its last guest.
        untested: bool,
    },
}

/// The change of the list, made or planned.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Excluded {
    /// Where the function is.
    pub bdf: Bdf,
    /// The entry as it is afterwards; `None` if not excluded.
    pub entry: Option<Entry>,
    /// Whether the list, or an override, changes; false if already set.
    pub changed: bool,
    /// Why it is still not offered, in words: its health is over a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unhealthy: Option<String>,
    /// Why it is still not offered, in words: it is not tested since its last guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub untested: Option<String>,
}

/// Whether a function can be excluded: GPUs, NVSwitches, and unresponsive functions in their place.
fn is_ours(device: &PciDevice) -> bool {
    matches!(device.kind(), DeviceKind::Gpu | DeviceKind::NvSwitch) || device.may_be_silent_gpu()
}

/// The list of a host being changed.
struct List<'a> {
    topology: &'a Topology,
    cards: BTreeMap<Bdf, Card>,
    entries: Vec<Entry>,
}

impl List<'_> {
    /// Finds the device's address; an error if this host has no such device.
    fn find(&self, device: &GpuName) -> Result<Bdf> {
        let bdf = match device {
            GpuName::At(bdf) => *bdf,
            GpuName::Index(index) => match self.topology.gpus().nth(*index) {
                Some(gpu) => gpu.bdf,
                None => {
                    let gpus = count(self.topology.gpus().count(), "GPU");
                    let message = format!("this host has no GPU {index}: it has {gpus}, from 0");
                    let hint = "`gpuvm gpu list` shows GPUs and NVSwitches";
                    return Err(classed(Class::NotFound, message, hint));
                }
            },
            GpuName::Uuid(uuid) => {
                let has = |(_, card): &(&Bdf, &Card)| card.uuid.as_ref() == Some(uuid);
                match self.cards.iter().find(has) {
                    Some((bdf, _)) => return Ok(*bdf),
                    None => {
                        return Err(classed(
                            Class::NotFound,
                            format!("no GPU of this host is known to have the UUID {uuid}"),
                            "UUIDs are known while the NVIDIA driver has the GPU; `gpuvm gpu list` \
                             shows the addresses, which do as well",
                        ));
                    }
                }
            }
        };
        let hint = "`gpuvm gpu list` shows GPUs and NVSwitches";
        match self.topology.device(bdf) {
            None => Err(classed(Class::NotFound, format!("this host has no device {bdf}"), hint)),
            Some(device) if is_ours(device) => Ok(bdf),
            Some(_) => Err(GpuError::OtherDevice { bdf: bdf.to_string() }.hint(hint)),
        }
    }

    /// Whether an entry is about a function.
    fn is_of(&self, entry: &Entry, bdf: Bdf) -> bool {
        place(entry, &self.cards) == Some(bdf)
    }

    /// Adds an entry, or changes its reason.
    fn exclude(&mut self, device: &GpuName, reason: Option<&String>) -> Result<Excluded> {
        let bdf = self.find(device)?;
        let uuid = match device {
            GpuName::Uuid(uuid) => Some(uuid.clone()),
            GpuName::At(_) | GpuName::Index(_) => None,
        };
        let old = self.entries.iter().position(|entry| self.is_of(entry, bdf));
        let before = old.map(|at| self.entries[at].clone());
        let reason = reason.cloned().or_else(|| before.as_ref().map(|e| e.reason.clone()));
        // An entry made by UUID keeps it: with the address alone, the GPU would be available again
        // in another slot.
        let uuid = uuid.or_else(|| before.as_ref().and_then(|entry| entry.uuid.clone()));
        let entry = Entry { bdf, uuid, reason: reason.unwrap_or_default() };
        match old {
            Some(at) => self.entries[at] = entry.clone(),
            None => self.entries.push(entry.clone()),
        }
        self.entries.sort_by_key(|entry| entry.bdf);
        let changed = before.as_ref() != Some(&entry);
        Ok(Excluded { bdf, changed, entry: Some(entry), unhealthy: None, untested: None })
    }

    /// Removes the entries of a function.
    fn include(&mut self, device: &GpuName) -> Result<Excluded> {
        let at = match device {
            GpuName::Uuid(_) => None,
            GpuName::At(bdf) => Some(*bdf),
            GpuName::Index(_) => Some(self.find(device)?),
        };
        let named = |entry: &Entry| match device {
            GpuName::Uuid(uuid) => entry.uuid.as_ref() == Some(uuid),
            GpuName::At(_) | GpuName::Index(_) => Some(entry.bdf) == at,
        };
        // A GPU that no longer exists can still be removed from the list.
        let bdf = match self.entries.iter().find(|entry| named(entry)) {
            Some(entry) => place(entry, &self.cards).unwrap_or(entry.bdf),
            None => self.find(device)?,
        };
        if self.cards.get(&bdf).is_some_and(|card| card.is_excluded) {
            return Err(GpuError::ExcludedByDriver { bdf: bdf.to_string() }.hint(
                "`grep -r NVreg_ExcludedGpus /etc/modprobe.d /proc/cmdline` shows where; take it \
                 out there and load the driver again",
            ));
        }
        let before = self.entries.len();
        let (cards, entries) = (&self.cards, &mut self.entries);
        entries.retain(|entry| !named(entry) && place(entry, cards) != Some(bdf));
        let changed = entries.len() < before;
        Ok(Excluded { bdf, changed, entry: None, unhealthy: None, untested: None })
    }
}

/// The address of a GPU or NVSwitch of this host, as a caller names it.
pub(crate) fn locate(root: &FsRoot, topology: &Topology, device: &GpuName) -> Result<Bdf> {
    List { topology, cards: cards(root)?, entries: Vec::new() }.find(device)
}

/// Changes the list of this host, or reports what would change.
pub fn exclude(session: &mut Session<'_>, wanted: &ExclusionChange) -> Result<Excluded> {
    let world = session.world();
    exclude_in(session, wanted, || Ok((FsRoot::live()?, world.topology()?)))
}

/// The same for a host already read, under the lock.
fn exclude_in(
    session: &mut Session<'_>,
    wanted: &ExclusionChange,
    read: impl FnOnce() -> Result<(FsRoot, Topology)>,
) -> Result<Excluded> {
    if let ExclusionChange::Exclude { reason: Some(reason), .. } = wanted
        && reason.chars().any(char::is_control)
    {
        return Err(usage(
            "the reason is more than one line of text",
            "--reason takes a line without control characters",
        ));
    }
    let dry_run = session.manner().dry_run;
    let _lock = if dry_run { None } else { Some(session.lock()?) };
    let world = session.world();
    if !dry_run {
        let settings = &world.settings;
        unfinished::refuse(&settings.connect, settings.state.as_deref(), |text| {
            world.warning(text);
        })?;
    }
    let (root, topology) = read()?;
    let mut list = List { topology: &topology, cards: cards(&root)?, entries: entries(&root)? };
    let mut outcome = match wanted {
        ExclusionChange::Exclude { device, reason } => list.exclude(device, reason.as_ref())?,
        ExclusionChange::Include { device, .. } => list.include(device)?,
    };
    let mut accepted = Vec::new();
    if let ExclusionChange::Include { untested, .. } = wanted {
        let found = gpu_states::accept(&root, world.state(), outcome.bdf, *untested)?;
        (accepted, outcome.untested) = (found.steps, found.why);
    }
    let mut health = None;
    if let ExclusionChange::Include { despite_health, .. } = wanted
        && let Some(gpu) = topology.device(outcome.bdf)
    {
        health = accepting(&root, gpu, *despite_health)?;
        let findings = gpu.health.as_ref().filter(|_| !despite_health);
        let bare = findings.map(|health| Health { accepted: Vec::new(), ..health.clone() });
        outcome.unhealthy = bare.map(|health| health.why()).filter(|why| !why.is_empty());
    }
    if !dry_run {
        // Written first: whoever sees the GPU on no list any more sees that it is accepted, too.
        health.iter().try_for_each(|text| gpu_health::write(&root, text))?;
        gpus::write(&accepted)?;
        if outcome.changed {
            write_exclusions(root.path(), &list.entries)?;
        }
    }
    outcome.changed |= health.is_some() || !accepted.is_empty();
    Ok(outcome)
}

#[cfg(test)]
mod tests;
