//! Snapshots of domains through libvirt.

use super::super::HypervisorError;
use super::super::snapshot::{Snapshot, Snapshots};
use super::Libvirt;
use super::call::Call::{Reads, Works};
use super::call::{Failed, call, is_unsupported};
use virt::domain::Domain;
use virt::domain_snapshot::DomainSnapshot;
use virt::error::ErrorNumber;

impl Libvirt {
    /// Finds a snapshot that is to be used or deleted.
    fn find_snapshot(&self, name: &str, snapshot: &str) -> Result<DomainSnapshot, Failed> {
        let domain = self.find_to_change(name)?;
        Ok(Domain::lookup_snapshot_by_name(&domain, snapshot, 0)?)
    }
}

impl Snapshots for Libvirt {
    fn snapshots(&self, name: &str) -> Result<Vec<Snapshot>, HypervisorError> {
        call(Reads, format_args!("read the snapshots of domain `{name}`"), || {
            let all = match self.find(name)?.list_all_snapshots(0) {
                // Not every driver has them.
                Err(e) if is_unsupported(&e) => return Ok(Vec::new()),
                all => all?,
            };
            let mut read = Vec::with_capacity(all.len());
            for one in &all {
                match one.xml_desc(0) {
                    // Deleted since it was listed.
                    Err(e) if e.code().is(ErrorNumber::NoDomainSnapshot) => {}
                    text => read.push(Snapshot::read(&text?).map_err(Failed::other)?),
                }
            }
            Ok(read)
        })
    }

    fn make_snapshot(&self, name: &str, snapshot: &str, of: &str) -> Result<(), HypervisorError> {
        call(Works, format_args!("make snapshot `{snapshot}` of domain `{name}`"), || {
            let domain = self.find_to_change(name)?;
            domain.create_snapshot_xml(&Snapshot::document(snapshot, of), 0)?;
            Ok(())
        })
    }

    fn revert_snapshot(&self, name: &str, snapshot: &str) -> Result<(), HypervisorError> {
        call(Works, format_args!("revert domain `{name}` to snapshot `{snapshot}`"), || {
            Ok(self.find_snapshot(name, snapshot)?.revert(0)?)
        })
    }

    fn delete_snapshot(&self, name: &str, snapshot: &str) -> Result<(), HypervisorError> {
        call(Works, format_args!("delete snapshot `{snapshot}` of domain `{name}`"), || {
            Ok(self.find_snapshot(name, snapshot)?.delete(0)?)
        })
    }
}
