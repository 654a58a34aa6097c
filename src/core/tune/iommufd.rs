//! Passes all functions of a guest through by iommufd, or by their VFIO groups.

use super::work::Work;
use super::{Item, ItemName, TuneError};
use crate::bdf::Bdf;
use crate::domain::DomainEdit;
use crate::domain::guest::Record;
use crate::domain::setting::Setting;
use crate::iommufd::{Lack, Way, or_back};
use crate::request::{IommufdWish, Request};
use crate::shell::domain;

/// Applies the setting, after that of huge pages: these are shared memory in a guest by iommufd.
pub(super) fn apply(work: &mut Work<'_>) -> Result<(), TuneError> {
    let (items, item) = (work.given.items, ItemName::Iommufd);
    match items.iommufd {
        Item::Keep => {}
        Item::On => convert(work, true)?,
        Item::Off => convert(work, false)?,
        Item::To(never) => match never {},
    }
    refuse_gained(work)?;
    let is_due = items.iommufd.is_on() || !items.huge_pages.is_kept();
    if !is_due || !work.xml.is_by_iommufd() || !work.xml.has_private_files() {
        return Ok(());
    }
    let item = if items.iommufd.is_on() { item } else { ItemName::HugePages };
    work.set(item, Setting::SharedMemory)
}

/// Converts the domain, and says so in the record.
fn convert(work: &mut Work<'_>, on: bool) -> Result<(), TuneError> {
    let item = ItemName::Iommufd;
    let edit = DomainEdit::Set { setting: Setting::iommufd(&work.xml, on) };
    if !work.xml.would_change(&edit) {
        return Ok(());
    }
    if work.xml.has_iommufd_of_caller() {
        let message = "the program that starts the domain opens /dev/iommu itself (fdgroup)";
        let hint = format!("`virsh edit {}` changes it", domain(&work.xml.name()));
        return Err(TuneError::item(item, message, hint));
    }
    if !on && work.xml.needs_iommufd(work.given.topology) {
        let message = "the guest has an SMMUv3 that is nested in the host's, or a GPU with \
                       coherent memory, which needs one: only iommufd passes functions to it";
        return Err(TuneError::item(item, message, "leave --iommufd off out"));
    }
    if on {
        let lacks = lacks(work, true, work.given.abilities.iommufd);
        refuse(item, &lacks, None)?;
    }
    work.make(item, &[edit])?;
    // A record by a later version stays as it is.
    match work.xml.record().ok().flatten() {
        Some(Record { request, .. }) if on != (request.iommufd == IommufdWish::On) => {
            let iommufd = if on { IommufdWish::On } else { IommufdWish::Off };
            let request = Box::new(Request { iommufd, ..request });
            work.set(item, Setting::Request { request })
        }
        _ => Ok(()),
    }
}

/// Refuses functions that come to a guest by iommufd if a new guest would not get them. A guest
/// that keeps or loses functions is no worse than before.
fn refuse_gained(work: &Work<'_>) -> Result<(), TuneError> {
    let had = &work.guest.claims.passed;
    let is_new = |bdf: &Bdf| !had.iter().any(|passed| passed.bdf.value == *bdf);
    let is_whole = work.xml.is_by_iommufd();
    let is_by_iommufd = is_whole || had.iter().any(|passed| passed.iommufd);
    if !is_by_iommufd || !work.guest.hostdevs.iter().any(is_new) {
        return Ok(());
    }
    // A libvirt that was not asked has accepted the element, but may never have started the guest
    // on this kernel.
    let accepted = (!work.given.topology.lacks_vfio_groups()).then_some(true);
    let lacks = lacks(work, is_whole, work.given.abilities.iommufd.or(accepted));
    let item = work.given.items.first_moved().unwrap_or(ItemName::Iommufd);
    let stays =
        lacks.iter().any(|lack| lack.by_groups_too) || work.xml.needs_iommufd(work.given.topology);
    let name = work.xml.name();
    refuse(item, &lacks, Some(&*name).filter(|_| !stays))
}

/// The missing parts of the host for the guest by iommufd, and why its functions could not reach
/// each other. `is_whole`: by the element of the domain; `offered`: whether libvirt offers it.
fn lacks(work: &Work<'_>, is_whole: bool, offered: Option<bool>) -> Vec<Lack> {
    let (topology, versions) = (work.given.topology, *work.given.versions);
    let way = Way { topology, versions, offered };
    let functions = &work.guest.hostdevs;
    let mut lacks = way.lacks(is_whole, functions);
    lacks.extend(way.unreached_lack(functions));
    lacks
}

/// Refuses a guest for which something is missing. `back`: the domain that could have its functions
/// by their groups instead.
fn refuse(item: ItemName, lacks: &[Lack], back: Option<&str>) -> Result<(), TuneError> {
    if lacks.is_empty() {
        return Ok(());
    }
    let words = |part: fn(&Lack) -> &str| lacks.iter().map(part).collect::<Vec<_>>().join("; ");
    let (what, remedy) = (words(|lack| &lack.what), words(|lack| &lack.remedy));
    let hint = match back {
        Some(name) => or_back(&remedy, name, false),
        None => remedy,
    };
    Err(TuneError::item(item, what, hint))
}

#[cfg(test)]
mod tests {
    use crate::domain::DomainXml;
    use crate::domain::guest::Abilities;
    use crate::placement::Occupancy;
    use crate::request::Allow;
    use crate::request::{IommufdWish, Request};
    use crate::topology::file::from_json;
    use crate::topology::{Iommufd, Topology};
    use crate::tune::testing::metadata;
    use crate::tune::{Given, Item, Items, TuneError, Tuned, tune};
    use crate::versions::{Version, Versions};
    use std::collections::BTreeMap;

    /// Tunes a domain on a host that has iommufd or not.
    fn tuned(text: &str, items: &Items, node: bool) -> Result<Tuned, TuneError> {
        let host = from_json(include_str!("../../../topologies/dgx-h100.json")).unwrap();
        let mut parts = host.parts().clone();
        parts.machine.iommufd = Some(Iommufd { node, unsafe_interrupts: None, groups: None });
        parts.machine.kernel_release = Some("7.3.4".to_owned());
        let (libvirt, qemu) = (Some(Version(12, 9, 0)), Some(Version(11, 0, 1)));
        let given = Given {
            topology: &Topology::new(parts).unwrap(),
            others: &Occupancy::default(),
            items,
            allow: Allow::default(),
            disks: &BTreeMap::new(),
            abilities: Abilities { iommufd: Some(node), ..Abilities::default() },
            versions: &Versions { libvirt, qemu },
        };
        tune(&DomainXml::parse(text).unwrap(), &given)
    }

    fn domain(more: &str, backing: &str) -> String {
        let request = Request { huge_pages: Default::default(), ..Request::for_gpus(0) };
        let record = metadata(Some(&request));
        format!(
            "<domain type='kvm'>\n<name>a</name>\n\
             <uuid>11111111-2222-4333-8444-555555555555</uuid>\n{record}\n\
             <memory unit='GiB'>4</memory>\n<memoryBacking>{backing}</memoryBacking>\n\
             <vcpu>4</vcpu>\n<os><type arch='x86_64' machine='q35'>hvm</type></os>\n{more}<devices>\n\
             <memballoon model='none'/></devices>\n</domain>"
        )
    }

    #[test]
    fn a_domain_is_converted_and_back_and_huge_pages_become_shared() {
        let switch = |iommufd| Items { iommufd, ..Items::default() };
        let (on, off) = (switch(Item::On), switch(Item::Off));
        let made = tuned(&domain("", "<hugepages/>"), &on, true).unwrap();
        let said: Vec<String> = made.changes.iter().map(ToString::to_string).collect();
        assert_eq!(said, ["iommufd: off -> on"]);
        let text = made.after.text().to_owned();
        assert!(text.contains("<iommufd enabled='yes'/>"), "{text}");
        assert!(text.contains("<hugepages/><access mode='shared'/>"), "{text}");
        let request = |xml: &DomainXml| xml.record().unwrap().unwrap().request;
        assert_eq!(request(&made.after).iommufd, IommufdWish::On);
        assert_eq!(tuned(&text, &on, true).unwrap().changes, []);
        let back = tuned(&text, &off, false).unwrap().after;
        assert!(!back.text().contains("iommufd enabled"), "{}", back.text());
        assert_eq!(request(&back).iommufd, IommufdWish::Off);
        // No other run of `tune` adds or removes it.
        for text in [domain("<iommufd enabled='yes'/>\n", ""), domain("", "")] {
            let after = tuned(&text, &Items::all(), true).unwrap().after;
            let has = text.contains("iommufd enabled");
            assert_eq!(after.is_by_iommufd(), has, "{}", after.text());
        }
    }

    #[test]
    fn missing_and_foreign_devices_are_refused() {
        let on = Items { iommufd: Item::On, ..Items::default() };
        let error = tuned(&domain("", ""), &on, false).unwrap_err().to_string();
        let wanted = ["--iommufd: ", "/dev/iommu", "CONFIG_IOMMUFD"];
        assert!(wanted.iter().all(|word| error.contains(word)), "{error}");
        let of_caller = domain("<iommufd enabled='yes' fdgroup='iommu'/>\n", "");
        assert_eq!(tuned(&of_caller, &on, true).unwrap().changes, []);
        let off = Items { iommufd: Item::Off, ..Items::default() };
        let error = tuned(&of_caller, &off, true).unwrap_err().to_string();
        assert!(error.contains("fdgroup"), "{error}");
    }
}
