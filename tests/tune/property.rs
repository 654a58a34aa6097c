//! Properties of every domain: a second tune changes nothing, and foreign parts stay.

use super::domains::{Wanted, tuned};
use crate::xml::guests::host;
use gpuvm::domain::DomainXml;
use gpuvm::placement::Occupancy;
use gpuvm::request::PageSize;
use gpuvm::topology::Topology;
use gpuvm::tune::items::PinOrder;
use gpuvm::tune::{Item, Items};
use proptest::prelude::*;
use std::sync::LazyLock;

/// The host of these tests.
pub(super) static DGX2: LazyLock<Topology> = LazyLock::new(|| host("dgx-2"));

/// Elements of others, each on its own line, which must remain.
const OTHERS: [&str; 4] = [
    "  <title>a  \"b\" &lt;c&gt;</title>",
    "  <!-- pins: see <wiki> -->",
    "  <qemu:commandline xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><qemu:arg \
     value=\"-x\"/></qemu:commandline>",
    "  <unknown  of = \"nobody\"><deep/></unknown>",
];

/// Elements that a domain may have already.
pub(super) const THERE: [&str; 8] = [
    "\n  <iothreads>46</iothreads>",
    "\n  <memoryBacking>\n    <hugepages/>\n    <locked/>\n  </memoryBacking>",
    "\n  <numatune>\n    <memory mode='strict' nodeset='1'/>\n  </numatune>",
    "\n  <iothreadids>\n    <iothread id='2'/>\n    <iothread id='5'/>\n  </iothreadids>",
    "\n  <numatune>\n    <memory mode=\"interleave\" nodeset='0-1'/>\n  </numatune>",
    "\n  <resource>\n    <partition>/x</partition>\n  </resource>",
    "\n  <currentMemory unit='GiB'>1</currentMemory>",
    "",
];

/// A guest of the vendor's kind, with other pins, sizes and elements.
fn domain() -> impl Strategy<Value = String> {
    let place = prop_oneof![
        Just((0, 1)),
        Just((9, 1)),
        Just((2, 2)),
        Just((4, 4)),
        Just((8, 8)),
        Just((0, 16))
    ];
    let pins = prop_oneof![Just(None), Just(Some(0_u32)), (0_u32..96).prop_map(Some)];
    let sizes = (1_u64..64, 0_u64..4096);
    (place, pins, sizes, prop::sample::subsequence(THERE.to_vec(), 0..3), 0..16_u8).prop_map(
        |((first, count), shift, (gib, odd), there, others)| {
            let mut wanted = Wanted::vendor(first, count);
            wanted.memory_kib = (gib << 20) + odd;
            match shift {
                None => wanted.pins.clear(),
                Some(shift) => wanted.pins.iter_mut().for_each(|pin| *pin = (*pin + shift) % 96),
            }
            let mut xml = wanted.xml(&DGX2);
            let mut more = there.concat();
            for (bit, other) in OTHERS.iter().enumerate() {
                if others & (1 << bit) != 0 {
                    more += &format!("\n{other}");
                }
            }
            xml = xml.replacen("\n  <os>", &format!("{more}\n  <os>"), 1);
            xml
        },
    )
}

/// What each bit of a number switches; of two that switch the same setting, the later one wins.
const SWITCHES: [fn(&mut Items); 16] = [
    |items| items.topology = Item::On,
    |items| items.emulator = Item::On,
    |items| items.iothreads = Item::On,
    |items| items.cells = Item::On,
    |items| items.memory_nodes = Item::On,
    |items| items.memory_rounding = Item::On,
    |items| items.pcie = Item::On,
    |items| (items.disk_cache, items.disk_io) = (Item::On, Item::On),
    |items| items.disk_queues = Item::To(2),
    |items| items.net_queues = Item::On,
    |items| items.mtu = Item::To(9000),
    |items| items.agent = Item::On,
    |items| (items.window, items.maxphysaddr) = (Item::On, Item::On),
    |items| items.balloon = Item::Off,
    |items| items.iothread_pins = Item::On,
    |items| items.pcie = Item::Off,
];

/// The settings for it.
fn items() -> impl Strategy<Value = Items> {
    let pages = prop_oneof![
        3 => Just(Item::Keep),
        1 => Just(Item::Off),
        1 => Just(Item::To(PageSize::TwoMib)),
        1 => Just(Item::To(PageSize::OneGib)),
    ];
    let pins = prop_oneof![3 => Just(Item::On), 1 => Just(Item::Off), 1 => Just(Item::To(PinOrder::Thread)), 1 => Just(Item::Keep)];
    (any::<bool>(), pages, pins, any::<u16>()).prop_map(|(all, huge_pages, pins, some)| {
        if all {
            return Items { huge_pages, pins, ..Items::all() };
        }
        let mut items = Items { huge_pages, pins, ..Items::default() };
        for (bit, switch) in SWITCHES.iter().enumerate() {
            if some & (1 << bit) != 0 {
                switch(&mut items);
            }
        }
        items
    })
}

/// How many cases are tried: few, so that the whole suite stays short, unless `GPUVM_CASES` says
/// more.
pub fn cases(usual: u32) -> u32 {
    std::env::var("GPUVM_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(96), failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_second_tune_changes_nothing_and_foreign_settings_stay(text in domain(), items in items()) {
        let unoccupied = Occupancy::default();
        let xml = DomainXml::parse(&text).unwrap();
        let Ok(first) = tuned(&xml, &DGX2, &unoccupied, &items) else { return Ok(()) };
        prop_assert_eq!(first.changes.is_empty(), first.after.text() == text);
        for other in OTHERS.iter().filter(|other| text.contains(**other)) {
            prop_assert!(first.after.text().contains(other), "{} is gone from\n{}", other, first.after.text());
        }
        let devices = |xml: &DomainXml| xml.held(false).unwrap().devices;
        prop_assert_eq!(devices(&xml), devices(&first.after));
        let second = tuned(&first.after, &DGX2, &unoccupied, &items);
        let second = second.map_err(|error| TestCaseError::fail(format!("{error}\n{}", first.after.text())))?;
        prop_assert_eq!(&second.changes, &[], "\n{}", first.after.text());
        prop_assert_eq!(second.after.text(), first.after.text());
    }
}

#[test]
fn a_guest_whose_emulator_is_not_pinned_stays_on_its_cores() {
    let unoccupied = Occupancy::default();
    let items = Items { pins: Item::On, ..Items::default() };
    let mut wanted = Wanted::vendor(2, 2);
    wanted.pins = (12..17).chain(60..65).collect();
    let xml = DomainXml::parse(&wanted.xml(&DGX2)).unwrap();
    let first = tuned(&xml, &DGX2, &unoccupied, &items).unwrap();
    let pinned = |pcpu: u32| first.after.text().contains(&format!("cpuset='{pcpu}'/>"));
    assert!((12..17).chain(60..65).all(pinned), "{}", first.after.text());
    let second = tuned(&first.after, &DGX2, &unoccupied, &items).unwrap();
    assert_eq!(second.changes, [], "{}", first.after.text());
}
