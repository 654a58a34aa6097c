//! A domain being tuned setting by setting, with the changes of each. Knows no particular setting.

use super::request_of_domain::Guest;
use super::{Change, Given, Item, ItemName, TuneError, describe};
use crate::domain::setting::Setting;
use crate::domain::{DomainEdit, DomainXml};
use crate::placement::{Because, Placement, Reason, Topic};
use std::collections::BTreeSet;

/// The settings that are functions passed through.
const FUNCTIONS: [ItemName; 5] =
    [ItemName::Gpus, ItemName::Vgpu, ItemName::Nic, ItemName::Vf, ItemName::Nvme];

pub(super) struct Work<'a> {
    /// The domain as it was read.
    pub guest: &'a Guest<'a>,
    /// Its placement; `None` if no setting depends on it.
    pub placement: Option<&'a Placement>,
    /// The inputs of tuning.
    pub given: &'a Given<'a>,
    /// Its definition so far.
    pub xml: DomainXml,
    /// Changes so far.
    pub changes: Vec<Change>,
    /// Reasons besides the plan's.
    pub reasons: Vec<Reason>,
    /// The rules of `check` that find fault with the domain as it was read.
    pub faults: BTreeSet<&'static str>,
}

impl<'a> Work<'a> {
    /// Starts with an unchanged domain.
    pub fn new(
        current: &DomainXml,
        guest: &'a Guest<'a>,
        placement: Option<&'a Placement>,
        given: &'a Given<'a>,
        faults: BTreeSet<&'static str>,
    ) -> Work<'a> {
        let (changes, reasons) = (Vec::new(), Vec::new());
        Work { guest, placement, given, xml: current.clone(), changes, reasons, faults }
    }

    /// Whether a setting of a guest that gpuvm did not make is left as its owner chose it: it was
    /// not named, and no rule finds the fault that it cures.
    pub fn leaves(&self, item: ItemName, faults: &[&str]) -> bool {
        self.given.items.unnamed.contains(&item)
            && self.guest.asked.is_none()
            && !faults.iter().any(|fault| self.faults.contains(fault))
    }

    /// Applies a setting.
    pub fn set(&mut self, item: ItemName, setting: Setting) -> Result<(), TuneError> {
        self.make(item, &[DomainEdit::Set { setting }])
    }

    /// Makes edits, one after the other, and notes their changes.
    pub fn make(&mut self, item: ItemName, edits: &[DomainEdit]) -> Result<(), TuneError> {
        let before = self.xml.clone();
        for edit in edits.iter() {
            if self.xml.would_change(edit) {
                self.xml.apply(edit)?;
            }
        }
        if before != self.xml {
            self.note_changes(item, &before);
        }
        Ok(())
    }

    /// Whether functions that come or go are among the changes so far.
    pub fn has_other_functions(&self) -> bool {
        self.changes.iter().any(|change| FUNCTIONS.contains(&change.item))
    }

    /// Notes the changes of a setting. Functions of several kinds come and go at once.
    fn note_changes(&mut self, item: ItemName, before: &DomainXml) {
        let topology = self.given.topology;
        let of = |item| Change {
            item,
            was: describe::of(item, before, topology),
            now: describe::of(item, &self.xml, topology),
        };
        let mut changes = vec![of(item)];
        if FUNCTIONS.contains(&item) {
            let all = FUNCTIONS.map(of).into_iter().filter(|change| change.was != change.now);
            let all: Vec<Change> = all.collect();
            // Only settings of a function may differ.
            changes = if all.is_empty() { changes } else { all };
        }
        for change in changes {
            match self.changes.iter_mut().find(|known| known.item == change.item) {
                Some(known) => known.now = change.now,
                None => self.changes.push(change),
            }
        }
    }

    /// Adds a note for the admin.
    pub fn note(&mut self, about: Topic, because: impl Into<Because>) {
        self.reasons.push(super::place::compromise(about, because));
    }

    /// Returns why the guest's cells and their memory must not be divided by us; `None` if they
    /// may.
    pub fn cells_stay(&self) -> Option<&'static str> {
        if self.guest.plugs_memory {
            return Some("memory can be plugged into it");
        }
        if !self.guest.claims.empty_cells.is_empty() {
            return Some("it has cells for the memory of GPUs");
        }
        let mut pages = self.guest.claims.huge_pages.iter().flat_map(|pages| &pages.value);
        let by_cell = pages.any(|page| page.cells.is_some());
        let planned = match self.given.items.cells {
            Item::Off => Some(0),
            _ => self.placement.map(|placement| placement.cells.len()),
        };
        let is_other = planned.is_some_and(|planned| planned != self.guest.claims.cells.len());
        let kept = self.given.items.huge_pages.is_kept() && by_cell && is_other;
        kept.then_some("its cells have pages of their own")
    }

    /// vCPUs that the guest gets.
    pub fn vcpus(&self) -> u32 {
        self.guest.vcpus
    }
}
