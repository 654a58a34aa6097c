//! The domain whose disks are changed: its definition and its live XML.

use super::error::GuestDiskError;
use crate::domain::disk_change::{path_of, target_of};
use crate::domain::{DomainXml, Element};
use crate::error::{Class, Coded as _, Doing as _, Result, classed, dump_and_define};
use crate::hypervisor::{DomainState, Hypervisor, XmlOf};
use crate::lookup::find;
use crate::shell::word;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

pub(super) struct Subject {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// Its state.
    pub state: DomainState,
    /// Its definition.
    pub xml: DomainXml,
    /// Its live XML; `None` if it is off.
    pub live: Option<DomainXml>,
}

impl Subject {
    /// Reads it. A domain without a definition of its own is refused.
    pub fn read(hypervisor: &dyn Hypervisor, name: &str) -> Result<Subject> {
        let summary = find(hypervisor, name)?;
        if !summary.persistent {
            return Err(
                GuestDiskError::NoDefinition { name: name.to_owned() }.hint(dump_and_define(name))
            );
        }
        let parsed = |which| {
            let text = hypervisor.xml(name, which)?;
            DomainXml::parse(&text).doing(|| format!("cannot read `{name}`"))
        };
        let xml = parsed(XmlOf::Inactive)?;
        let live = if summary.state.is_active() { Some(parsed(XmlOf::Live)?) } else { None };
        Ok(Subject { name: summary.name, uuid: summary.uuid, state: summary.state, xml, live })
    }

    /// Returns the live XML of a responsive guest; refuses a domain that is off or has crashed.
    pub fn running(&self) -> Result<&DomainXml> {
        let name = self.name.clone();
        match &self.live {
            Some(live) if self.state.has_guest() => Ok(live),
            Some(_) => Err(GuestDiskError::NotRunning { name, state: "has crashed" }
                .hint(crate::guest::restart_hint(&self.name))),
            None => Err(GuestDiskError::NotRunning { name, state: "does not run" }
                .hint("the same command without --live changes its next start")),
        }
    }

    /// Finds a disk by name in the definition and in the live XML; refuses one that is in neither.
    pub fn disk(&self, target: &str) -> Result<(Option<Element<'_>>, Option<Element<'_>>)> {
        let defined = self.xml.disk_named(target);
        let live = self.live.as_ref().and_then(|live| live.disk_named(target));
        if defined.is_some() || live.is_some() {
            return Ok((defined, live));
        }
        let both = std::iter::once(&self.xml).chain(&self.live);
        let mut all: Vec<String> = both.flat_map(DomainXml::disks).filter_map(target_of).collect();
        all.sort();
        all.dedup();
        let (name, target) = (self.name.clone(), target.to_owned());
        let hint = format!("`gpuvm disk list {}` shows its disks", word(&name));
        Err(GuestDiskError::NotFound { name, target, all }.hint(hint))
    }

    /// Refuses a definition with state that belongs to its current disks, such as a saved state.
    pub fn refuse_kept(&self, hypervisor: &dyn Hypervisor) -> Result<()> {
        let kept = hypervisor.keeps(&self.name)?.into_iter().find(|kept| kept.starts);
        match kept {
            None => Ok(()),
            Some(kept) => Err(classed(
                Class::WrongState,
                format!("domain `{}` has {}, which belongs to its disks", self.name, kept.what),
                kept.hint,
            )),
        }
    }
}

/// Whether libvirt can be queried for the size of a disk: it opens the file, and waits for ever for
/// one that is a named pipe, holding the domain.
pub(super) fn can_be_opened(path: &Path, hypervisor: &dyn Hypervisor) -> bool {
    let meta = hypervisor.machine().is_here().then(|| path.metadata().ok()).flatten();
    meta.is_none_or(|meta| meta.is_file() || meta.file_type().is_block_device())
}

/// Returns the path of a disk, or its name if it has none.
pub(super) fn said(disk: Element<'_>) -> String {
    path_of(disk).or_else(|| target_of(disk)).unwrap_or_default()
}
