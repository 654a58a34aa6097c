//! Settings that tuning leaves alone because the guest's owner has chosen them: the present value,
//! the value by the option, and the benefit.

use super::{Change, Given, Item, ItemName, Tuned, tune};
use crate::domain::DomainXml;
use serde::Serialize;

/// A setting that stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Left {
    /// The setting, and its option.
    pub item: ItemName,
    /// The present value.
    pub is: String,
    /// The value by the option.
    pub would_be: String,
    /// The gain of the change.
    pub gain: &'static str,
}

/// The settings of a guest that gpuvm did not make which were not named, stay, and would change if
/// they were; guests of ours follow the request of their creation. Settings decided by the guest's
/// system or by an argument of QEMU are not mentioned.
pub fn left_alone(current: &DomainXml, given: &Given<'_>, tuned: &Tuned) -> Vec<Left> {
    if current.record().ok().flatten().is_some() {
        return Vec::new();
    }
    let has_functions = tuned.after.held(false).is_ok_and(|held| !held.devices.is_empty());
    let pages = given.items.huge_pages.is_kept() && has_functions;
    let pages = pages.then_some(ItemName::HugePages);
    let names = given.items.unnamed.iter().copied().chain(pages);
    let changes_itself = |name| tuned.changes.iter().any(|change| change.item == name);
    names
        .filter(|name| !changes_itself(*name))
        .filter_map(|name| of(current, given, name))
        .collect()
}

/// The changes by naming a setting.
fn of(current: &DomainXml, given: &Given<'_>, name: ItemName) -> Option<Left> {
    let gain = gain(name)?;
    let mut items = given.items.clone();
    items.keep_chosen(current);
    items.unnamed.remove(&name);
    if name == ItemName::HugePages {
        items.huge_pages = Item::On;
    }
    let named = tune(current, &Given { items: &items, ..*given }).ok()?;
    let is_it = |change: &Change| change.item == name && change.was != change.now;
    let Change { item, was, now } = named.changes.into_iter().find(is_it)?;
    Some(Left { item, is: was, would_be: now, gain })
}

/// The purpose of a setting; none if it is not left alone.
fn gain(name: ItemName) -> Option<&'static str> {
    Some(match name {
        ItemName::Pins => "the cores nearest to its devices, a guest core on each",
        ItemName::Topology => "its scheduler sees which vCPUs are threads of one core",
        ItemName::Emulator => "the nearest core beside those of its vCPUs",
        ItemName::Cells => "it sees which memory and devices are near which vCPUs",
        ItemName::Pcie => "it sees which functions share a host bridge",
        ItemName::Maxphysaddr => "room for larger BARs and more memory",
        ItemName::KvmHints => "no spinlocks of a shared CPU, and polling while idle",
        ItemName::CpuCache => "its scheduler sees which vCPUs share an L3 cache",
        ItemName::Invtsc => "it keeps time by the TSC",
        ItemName::HugePages => "fewer TLB misses, and memory that is filled sooner",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{left, made, made_beside};
    use super::*;
    use crate::placement::{Held, Occupancy};
    use crate::tune::Items;

    /// A guest of another tool with a GPU of node 0 and four vCPUs.
    fn guest(cputune: &str, more: &str) -> DomainXml {
        let text = format!(
            "<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><name>a</name>\
             <memory unit='GiB'>8</memory><vcpu>4</vcpu><cputune>{cputune}</cputune>\
             <os><type machine='q35'>hvm</type></os><cpu mode='host-passthrough'/><devices>\
             <hostdev mode='subsystem' type='pci' managed='yes'><source>\
             <address domain='0' bus='0x34' slot='0' function='0'/></source></hostdev></devices>\
             {more}</domain>"
        );
        DomainXml::parse(&text).unwrap()
    }

    #[test]
    fn unchanged_settings_show_their_option_and_gain() {
        let found = left(&guest("", ""), &Items::all());
        let [bits, pages] = &found[..] else { panic!("{found:?}") };
        assert_eq!((bits.item, pages.item), (ItemName::Maxphysaddr, ItemName::HugePages));
        assert!(found.iter().all(|left| left.is != left.would_be && !left.gain.is_empty()));
        // Named settings are no longer left alone; neither are settings that were not requested.
        let named = Items { unnamed: Default::default(), ..Items::all() };
        assert_eq!(left(&guest("", ""), &named).len(), 1, "huge pages");
    }

    #[test]
    fn settings_decided_by_the_guest_or_an_argument_are_not_offered() {
        let argument = "<qemu:commandline><qemu:arg value='-cpu'/><qemu:arg value='host'/>\
                        </qemu:commandline>";
        let of = |more| {
            let found = left(&guest("", more), &Items::all());
            found.iter().map(|left| left.item).collect::<Vec<_>>()
        };
        assert!(of("").contains(&ItemName::Invtsc) || of("").contains(&ItemName::Maxphysaddr));
        for item in
            [ItemName::Invtsc, ItemName::Maxphysaddr, ItemName::KvmHints, ItemName::CpuCache]
        {
            assert!(!of(argument).contains(&item), "{item}");
        }
    }

    #[test]
    fn an_owners_emulator_stays_until_another_guest_has_its_core() {
        let pins: String = [4, 52, 5, 53]
            .into_iter()
            .zip(0..)
            .map(|(pcpu, vcpu): (u32, u32)| format!("<vcpupin vcpu='{vcpu}' cpuset='{pcpu}'/>"))
            .collect();
        let guest = guest(&format!("{pins}<emulatorpin cpuset='9,57'/>"), "");
        let of = |tuned: Tuned| tuned.after.text().contains("<emulatorpin cpuset='9,57'/>");
        assert!(of(made(&guest, &Items::all()).unwrap()));
        let pin = |pcpus: &str| pcpus.parse().unwrap();
        let other = Held {
            domain: "b".into(),
            active: true,
            vcpu_pins: vec![pin("9"), pin("57")],
            ..Held::default()
        };
        let beside = Occupancy { domains: vec![other], ..Occupancy::default() };
        assert!(!of(made_beside(&guest, &Items::all(), &beside).unwrap()));
    }
}
