//! Documents of every shape: read and written back they are the same bytes, and no edit makes one
//! malformed.

use super::guests::made;
use crate::cpuset::{CpuSet, NodeId, PcpuId};
use crate::domain::DomainXml;
use crate::domain::edit::DomainEdit;
use crate::domain::guest::CpuModel;
use crate::domain::guest::{Disk, DiskFormat, DiskKind, Record, Reserved, VirtType};
use crate::domain::nic_request::NicSettings;
use crate::domain::pci::{Controller, PciAddress};
use crate::domain::placed::{DevicePlace, DiskSeat, IoThread, NicSeat};
use crate::memsize::MemSize;
use crate::placement::GuestTopology;
use crate::request::{PageSize, Request};
use proptest::prelude::*;

/// Documents that are awkward to keep as they are.
const AWKWARD: &[&str] = &[
    "<domain/>",
    "<domain\n/>",
    "\u{feff}<domain></domain>",
    "<?xml version='1.0' encoding='UTF-8'?>\r\n<domain>\r\n  <name>a</name>\r\n</domain>\r\n",
    "<domain><!----><![CDATA[]]><?pi x?></domain  >",
    "<domain a=\"'\" b='\"' c = '&quot;&#x41;&#10;'>&lt;&amp;&gt; é 漢 \t</domain>\n\n",
    "<domain xmlns='urn:default' xmlns:q='urn:q'><q:a q:b=''/><q:a>x</q:a></domain>",
    "<domain><name>a</name><name>b</name><devices/><devices><disk/></devices></domain>",
    "<domain>\n\t<devices>\n\t\t<disk/>\n\t</devices>\n</domain>",
    "<domain>a<b/>c<d/>e<![CDATA[<x>&y;]]></domain>",
];

/// A well-formed piece of a document of elements that the edits look for, and of others.
fn piece() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        Just("devices"),
        Just("cpu"),
        Just("numa"),
        Just("cell"),
        Just("cputune"),
        Just("vcpupin"),
        Just("vcpu"),
        Just("disk"),
        Just("source"),
        Just("target"),
        Just("driver"),
        Just("interface"),
        Just("controller"),
        Just("address"),
        Just("hostdev"),
        Just("alias"),
        Just("rng"),
        Just("memballoon"),
        Just("metadata"),
        Just("os"),
        Just("memory"),
        Just("memoryBacking"),
        Just("model"),
        Just("feature"),
        Just("x:y"),
        Just("été"),
    ];
    let attribute = prop_oneof![
        Just(""),
        Just(" type='pci'"),
        Just(" index = \"0\""),
        Just(" file='/a'"),
        Just(" name='x'"),
        Just(" vcpu='1'"),
        Just(" id='0'"),
        Just("\n model='virtio' "),
        Just(" cpus=\"&amp;'\""),
        Just(" bus='0x00' slot='0x02'"),
    ];
    let filler = prop_oneof![
        Just(""),
        Just(" "),
        Just("\n  "),
        Just("\r\n\t"),
        Just("<!-- <c> -->"),
        Just("text"),
        Just("&lt;&#65;"),
        Just("<![CDATA[<z]]>"),
        Just("<?pi?>"),
    ];
    let leaf = (name.clone(), attribute.clone(), filler.clone())
        .prop_map(|(name, attribute, filler)| format!("{filler}<{name}{attribute}/>"));
    leaf.prop_recursive(5, 40, 6, move |inner| {
        (name.clone(), attribute.clone(), prop::collection::vec(inner, 0..6), filler.clone())
            .prop_map(|(name, attribute, inner, filler)| {
                format!("{filler}<{name}{attribute}>{}{filler}</{name} >", inner.concat())
            })
    })
}

fn document() -> impl Strategy<Value = String> {
    prop::collection::vec(piece(), 0..8)
        .prop_map(|pieces| format!("<domain xmlns:x='urn:x'>{}</domain>", pieces.concat()))
}

/// Edits with values that need escaping.
fn edits() -> impl Strategy<Value = Vec<DomainEdit>> {
    let text = "[a-z<>&'\"\n\t ]{0,6}";
    let set = prop::collection::btree_set(0_u32..9, 0..4)
        .prop_map(|ids| ids.into_iter().map(PcpuId).collect::<CpuSet>());
    let address = (0_u8..4, 0_u8..32, 0_u8..8, any::<bool>()).prop_map(
        |(bus, slot, function, multifunction)| PciAddress { bus, slot, function, multifunction },
    );
    let record = text.prop_map(|path| Record {
        request: Request::for_gpus(1),
        made: vec![made(&path)],
        bound: Vec::new(),
        reserved: vec![Reserved {
            node: NodeId(1),
            page_kib: MemSize::from_gib(1),
            count: 3,
            boot: "b".into(),
        }],
        guarded: Vec::new(),
        vgpus: Vec::new(),
        nccl: None,
        known: Vec::new(),
        user: None,
        assumed: None,
    });
    let topology = GuestTopology { sockets: 1, dies: 1, cores: 2, threads: 1 };
    let cpu =
        prop_oneof![Just(CpuModel::Maximum), Just(CpuModel::Named("x")), Just(CpuModel::Kept)]
            .prop_map(move |model| DomainEdit::SetCpu {
                model,
                topology,
                topoext: true,
                cells: vec![],
                initiators: None,
            });
    let disk = (text, address.clone()).prop_map(|(path, address)| DomainEdit::SetDisks {
        disks: vec![DiskSeat {
            disk: Disk::new(path, DiskFormat::Raw, DiskKind::File),
            target: "vda".into(),
            queues: 2,
            iothreads: vec![IoThread { id: 1, queues: 0..1 }, IoThread { id: 2, queues: 1..2 }],
            address: Some(address),
        }],
    });
    let nic = (text, any::<bool>()).prop_map(|(network, vhost)| DomainEdit::SetInterfaces {
        nics: vec![NicSeat {
            nth: 0,
            network: Some(network),
            mac: None,
            queues: Some(2),
            vhost,
            is_vf: false,
            settings: NicSettings::default(),
            address: None,
        }],
        dropped: vec![],
    });
    let places = (0_usize..3, address.clone()).prop_map(|(nth, address)| {
        DomainEdit::SetAddresses { addresses: vec![(DevicePlace { name: "rng", nth }, address)] }
    });
    let controllers = (address, 0_u8..3).prop_map(|(address, drop)| DomainEdit::SetControllers {
        controllers: vec![Controller::port(4, address)],
        dropped: vec![drop],
    });
    let edit = prop_oneof![
        Just(DomainEdit::SetType { virt: VirtType::Kvm }),
        "[a-z<&' ]{1,6}".prop_map(|name| DomainEdit::SetName { name }),
        "[0-9a-f<&' ]{1,6}".prop_map(|uuid| DomainEdit::SetUuid { uuid }),
        record.prop_map(|record| DomainEdit::SetMetadata {
            record: Box::new(record),
            partition: None,
            devices: vec![]
        }),
        Just(DomainEdit::SetMemory { memory: MemSize::from_gib(1) }),
        Just(DomainEdit::SetMemoryBacking { pages: Some(PageSize::TwoMib), threads: None }),
        Just(DomainEdit::SetMemoryBacking { pages: None, threads: None }),
        (prop::collection::vec(set.clone(), 0..4), set).prop_map(|(vcpus, emulator)| {
            DomainEdit::SetCputune { vcpus, emulator, iothreads: vec![] }
        }),
        cpu,
        disk,
        nic,
        places,
        controllers,
        Just(DomainEdit::SetBalloon { address: None }),
        Just(DomainEdit::SetHostdevs { hostdevs: vec![] }),
        Just(DomainEdit::SetPciHole { kib: 7 }),
        Just(DomainEdit::SetFirmwareWindow { mib: 7 }),
    ];
    prop::collection::vec(edit, 0..6)
}

#[test]
fn unchanged_elements_stay_byte_for_byte() {
    for text in AWKWARD {
        let mut xml = DomainXml::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        xml.apply_all(&[]).unwrap();
        assert_eq!(xml.text(), *text);
        let outside: String = text.chars().filter(|c| !c.is_ascii()).collect();
        xml.apply(&DomainEdit::SetBalloon { address: None })
            .unwrap_or_else(|e| panic!("{text:?}: {e}"));
        let after: String = xml.text().chars().filter(|c| !c.is_ascii()).collect();
        assert_eq!(outside, after);
        let devices = xml.root().child("devices").unwrap();
        assert_eq!(devices.child("memballoon").unwrap().attr("model").unwrap(), "none");
    }
}

#[test]
fn bombs_are_refused() {
    let entities: String = (1..10)
        .map(|n| format!("<!ENTITY a{n} \"{}\">", format!("&a{};", n - 1).repeat(10)))
        .collect();
    let bomb = format!(
        "<?xml version=\"1.0\"?>\n<!DOCTYPE domain [<!ENTITY a0 \
         \"ha\">{entities}]>\n<domain>&a9;</domain>"
    );
    let error = DomainXml::parse(&bomb).unwrap_err().to_string();
    assert!(error.contains("line 2") && error.contains("DOCTYPE"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn edits_leave_a_well_formed_document_and_nothing_to_do(text in document(), edits in edits()) {
        let mut xml = DomainXml::parse(&text).unwrap();
        prop_assert_eq!(xml.text(), &text);
        for edit in &edits {
            let would = xml.would_change(edit);
            let before = xml.clone();
            xml.apply(edit).unwrap();
            prop_assert_eq!(would, before != xml, "{:?}", edit);
            prop_assert!(!xml.would_change(edit), "{:?} again on\n{}", edit, xml.text());
        }
        let comments = |text: &str| text.matches("<!--").count();
        prop_assert!(comments(xml.text()) <= comments(&text));
    }

    #[test]
    fn no_input_makes_the_reader_panic(text in "[<>a-z/'\"=&;! \\-\\[\\]?x\n]{0,60}", inside in any::<bool>()) {
        let text = if inside { format!("<domain>{text}</domain>") } else { text };
        if let Ok(xml) = DomainXml::parse(&text) {
            prop_assert_eq!(xml.text(), text);
        }
    }
}
