//! `gpu list`, `gpu exclude`, `gpu include`.

pub(super) mod list;

use super::args::{Device, ExcludeArgs, GpuVerb, IncludeArgs, LockArgs};
use super::change::{refuse_unfinished_at, watch};
use super::codes::Class;
use super::context::Context;
use super::error::{Coded, EXIT_DONE, classed};
use crate::apply::write_exclusions;
use crate::bdf::Bdf;
use crate::discover::cards::{Card, cards};
use crate::discover::exclusions::{Entry, FILE, entries, place};
use crate::fsroot::FsRoot;
use crate::topology::{DeviceKind, PciDevice, Topology};
use serde::Serialize;
use std::collections::BTreeMap;

/// Says why a GPU is not excluded or included.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "gpu-")]
pub enum GpuError {
    /// The device is neither a GPU nor an NVSwitch.
    #[error("{bdf} is neither a GPU nor an NVSwitch")]
    OtherDevice {
        /// Its PCI address.
        bdf: String,
    },
    /// The NVIDIA driver excludes the GPU.
    #[error("{bdf} is excluded by the NVIDIA driver, not by gpuvm")]
    ExcludedByDriver {
        /// Its PCI address.
        bdf: String,
    },
}

impl Coded for GpuError {}

/// Runs the verb.
pub fn run(verb: &GpuVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    match verb {
        GpuVerb::List(args) => list::run(args, cx),
        GpuVerb::Exclude(args) => exclude(args, cx),
        GpuVerb::Include(args) => include(args, cx),
    }
}

/// Is what a verb did or would do to the list.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Outcome {
    /// Where the function is.
    bdf: Bdf,
    /// The entry as it is afterwards; none: not excluded.
    entry: Option<Entry>,
    /// Whether the list changes; false where it was so already.
    changed: bool,
}

/// Whether a function can be taken out of use: GPUs, NVSwitches, and what stands in their place and does not answer.
fn is_ours(device: &PciDevice) -> bool {
    matches!(device.kind(), DeviceKind::Gpu | DeviceKind::NvSwitch) || device.may_be_silent_gpu()
}

/// Is the list of a host while a verb works on it.
struct List<'a> {
    /// The host.
    topology: &'a Topology,
    /// What the NVIDIA driver says.
    cards: BTreeMap<Bdf, Card>,
    /// The entries.
    entries: Vec<Entry>,
}

impl List<'_> {
    /// Where the device is; an error where this host has none such.
    fn find(&self, device: &Device) -> anyhow::Result<Bdf> {
        let bdf = match device {
            Device::At(bdf) => *bdf,
            Device::Uuid(uuid) => {
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

    /// Whether an entry speaks of a function.
    fn is_of(&self, entry: &Entry, bdf: Bdf) -> bool {
        place(entry, &self.cards) == Some(bdf)
    }

    /// Adds an entry, or changes its reason.
    fn exclude(&mut self, args: &ExcludeArgs) -> anyhow::Result<Outcome> {
        let bdf = self.find(&args.device)?;
        let uuid = match &args.device {
            Device::Uuid(uuid) => Some(uuid.clone()),
            Device::At(_) => None,
        };
        let old = self.entries.iter().position(|entry| self.is_of(entry, bdf));
        let before = old.map(|at| self.entries[at].clone());
        let reason = args.reason.clone().or_else(|| before.as_ref().map(|e| e.reason.clone()));
        // What was excluded by UUID keeps it: the address alone would let the GPU come back in another slot.
        let uuid = uuid.or_else(|| before.as_ref().and_then(|entry| entry.uuid.clone()));
        let entry = Entry { bdf, uuid, reason: reason.unwrap_or_default() };
        match old {
            Some(at) => self.entries[at] = entry.clone(),
            None => self.entries.push(entry.clone()),
        }
        self.entries.sort_by_key(|entry| entry.bdf);
        Ok(Outcome { bdf, changed: before.as_ref() != Some(&entry), entry: Some(entry) })
    }

    /// Removes the entries of a function.
    fn include(&mut self, args: &IncludeArgs) -> anyhow::Result<Outcome> {
        let named = |entry: &Entry| match &args.device {
            Device::Uuid(uuid) => entry.uuid.as_ref() == Some(uuid),
            Device::At(bdf) => entry.bdf == *bdf,
        };
        // A GPU that is no longer there can still be taken off the list.
        let bdf = match self.entries.iter().find(|entry| named(entry)) {
            Some(entry) => place(entry, &self.cards).unwrap_or(entry.bdf),
            None => self.find(&args.device)?,
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
        Ok(Outcome { bdf, changed: entries.len() < before, entry: None })
    }
}

/// Runs `gpu exclude`.
fn exclude(args: &ExcludeArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    if args.reason.as_ref().is_some_and(|reason| reason.chars().any(char::is_control)) {
        return Err(super::error::usage(
            "the reason is more than one line of text",
            "--reason takes a line without control characters",
        ));
    }
    change(cx, "gpu exclude", (args.dry_run, &args.lock), |list| list.exclude(args))
}

/// Runs `gpu include`.
fn include(args: &IncludeArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    change(cx, "gpu include", (args.dry_run, &args.lock), |list| list.include(args))
}

/// Changes the list under the host's lock, or says what would change.
fn change(
    cx: &Context<'_>,
    verb: &str,
    (dry_run, lock): (bool, &LockArgs),
    edit: impl FnOnce(&mut List<'_>) -> anyhow::Result<Outcome>,
) -> anyhow::Result<u8> {
    cx.refuse_recorded(verb)?;
    cx.refuse_elsewhere(verb)?;
    let mut reporter = watch(cx.output)?;
    let _lock = if dry_run { None } else { Some(reporter.lock(lock.wait())?) };
    if !dry_run {
        refuse_unfinished_at(&cx.global.connect, cx.output)?;
    }
    let root = FsRoot::live()?;
    let topology = cx.topology()?;
    let mut list = List { topology: &topology, cards: cards(&root)?, entries: entries(&root)? };
    let outcome = edit(&mut list)?;
    if outcome.changed && !dry_run {
        write_exclusions(root.path(), &list.entries)?;
    }
    if cx.output.json {
        cx.output.json("gpuvm-exclusions", &outcome)?;
        return Ok(EXIT_DONE);
    }
    let bdf = outcome.bdf;
    let text = match (&outcome.entry, outcome.changed, dry_run) {
        (Some(_), true, true) => format!("exclude {bdf} in /{FILE}"),
        (None, true, true) => format!("take {bdf} out of /{FILE}"),
        (_, false, true) => "nothing to do".to_owned(),
        (Some(_), true, false) => format!("{bdf} is excluded"),
        (None, true, false) => format!("{bdf} is in use again"),
        (Some(_), false, false) => format!("{bdf} is excluded already"),
        (None, false, false) => format!("{bdf} is not excluded"),
    };
    match dry_run {
        true => cx.output.text(&text)?,
        false => cx.output.progress(&text),
    }
    Ok(EXIT_DONE)
}
