//! Topologies of recorded hosts, each read back as NCCL would.

use super::*;
use crate::p2p::{Acs, Ats};
use crate::topology::file::from_json;
use proptest::prelude::*;
use reader::Placed;
use std::fmt::Write as _;

#[allow(clippy::missing_docs_in_private_items)]
#[path = "../../../tests/nccl/reader.rs"]
mod reader;

fn host(name: &str) -> Topology {
    let text = match name {
        "dgx-1" => include_str!("../../../topologies/dgx-1.json"),
        "dgx-2" => include_str!("../../../topologies/dgx-2.json"),
        "dgx-a100" => include_str!("../../../topologies/dgx-a100.json"),
        "dgx-h100" => include_str!("../../../topologies/dgx-h100.json"),
        _ => include_str!("../../../topologies/dual-socket.json"),
    };
    from_json(text).unwrap()
}

/// The element of a function at an address of the guest.
fn hostdev(bdf: &str, at: (u32, u32, u32)) -> String {
    let bdf: Bdf = bdf.parse().unwrap();
    let (controller, slot, function) = at;
    format!(
        "<hostdev mode='subsystem' type='pci'><source><address domain='{}' bus='{}' slot='{}' \
         function='{}'/></source>\
         <address type='pci' bus='{controller}' slot='{slot}' function='{function}'/></hostdev>",
        bdf.segment(),
        bdf.bus(),
        bdf.device(),
        bdf.function()
    )
}

/// A domain with these cells, each with the host node of its memory, and these devices.
fn domain(cells: &[u32], devices: &str) -> DomainXml {
    let (mut numa, mut bound) = (String::new(), String::new());
    for (id, node) in cells.iter().enumerate() {
        write!(numa, "<cell id='{id}' cpus='{id}' memory='1024'/>").unwrap();
        write!(bound, "<memnode cellid='{id}' mode='strict' nodeset='{node}'/>").unwrap();
    }
    let cpu =
        if cells.is_empty() { String::new() } else { format!("<cpu><numa>{numa}</numa></cpu>") };
    let xml = format!(
        "<domain><name>t</name><vcpu>{}</vcpu><numatune>{bound}</numatune>\
         <os><type arch='x86_64' machine='q35'>hvm</type></os>{cpu}<devices>{devices}</devices></domain>",
        cells.len().max(1)
    );
    DomainXml::parse(&xml).unwrap()
}

/// An expander bus of a cell, with its number.
fn expander(index: u32, number: u32, cell: Option<usize>) -> String {
    let cell = cell.map_or(String::new(), |cell| format!("<node>{cell}</node>"));
    format!(
        "<controller type='pci' index='{index}' model='pcie-expander-bus'><target \
         busNr='{number}'>{cell}</target>\
         <address type='pci' bus='0' slot='{index}'/></controller>"
    )
}

/// A root port on a bus.
fn port(index: u32, bus: u32, slot: u32) -> String {
    format!(
        "<controller type='pci' index='{index}' model='pcie-root-port'><address type='pci' \
         bus='{bus}' slot='{slot}'/>\
         </controller>"
    )
}

/// A guest as `create` makes it: an expander bus for each cell, at 100, 132 and so on, a root port
/// for each function.
fn guest(cells: &[(u32, &[&str])]) -> DomainXml {
    let mut devices = String::new();
    let mut index = 30;
    for (cell, (_, functions)) in cells.iter().enumerate() {
        let own = u32::try_from(cell).unwrap() + 1;
        devices += &expander(own, 68 + 32 * own, Some(cell));
        for (function, slot) in functions.iter().zip(0..) {
            devices += &port(index, own, slot);
            devices += &hostdev(function, (index, 0, 0));
            index += 1;
        }
    }
    domain(&cells.iter().map(|(node, _)| *node).collect::<Vec<_>>(), &devices)
}

/// NCCL's reading, and the number of elements.
fn read(noted: &NotedSystem) -> (Vec<Placed>, usize) {
    let node = reader::read(noted.system.to_string().as_bytes()).unwrap();
    (node.placed(), node.count())
}

fn notes(noted: &NotedSystem, about: About) -> Vec<&str> {
    noted.notes.iter().filter(|note| note.about == about).map(|note| note.says.as_str()).collect()
}

#[test]
fn functions_share_the_switches_of_the_host() {
    // DGX A100: the GPUs 07, 0f and the NICs 0c, 12 of node 3, in guest order on buses 101 to 104.
    let xml = guest(&[(3, &["07:00.0", "0c:00.0", "0f:00.0", "12:00.0"])]);
    let noted = topology(&xml, &host("dgx-a100")).unwrap();
    let expected = "<system version=\"1\">
  <cpu numaid=\"0\">
    <pci busid=\"ffff:ff:01.0\" class=\"0x060400\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\" vendor=\"0x1000\" \
      device=\"0xc010\" subsystem_vendor=\"0x1000\" subsystem_device=\"0xc010\">
      <pci busid=\"ffff:ff:02.0\" class=\"0x060400\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\" vendor=\"0x1000\" \
      device=\"0xc010\" subsystem_vendor=\"0x1000\" subsystem_device=\"0xc010\">
        <pci busid=\"0000:66:00.0\" class=\"0x020700\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\"/>
        <pci busid=\"0000:67:00.0\" class=\"0x030200\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\"/>
      </pci>
      <pci busid=\"0000:65:00.0\" class=\"0x030200\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\"/>
      <pci busid=\"0000:68:00.0\" class=\"0x020700\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\"/>
    </pci>
  </cpu>
</system>
";
    let text = noted.system.to_string();
    let (_, body) = text.split_once('\n').unwrap();
    assert_eq!(body, expected);
    assert!(text.is_ascii() && text.starts_with("<!-- ") && !text.contains('\t'));
    let (placed, elements) = read(&noted);
    assert_eq!((placed.len(), elements), (6, 8));
    for one in &placed {
        assert_eq!((one.numaid.as_str(), one.rate), ("0", Some(24_000)), "{one:?}");
    }
    let named: Vec<Bdf> = noted.system.functions().into_iter().map(|(_, guest)| guest).collect();
    assert_eq!(addresses_of(&text), named);
    assert_eq!(named.len(), 4);
    // Each GPU shares an element above it with its NIC.
    let above = |bus: &str| &placed.iter().find(|one| one.busid.starts_with(bus)).unwrap().above;
    assert_eq!(above("0000:66")[..], above("0000:67")[..]);
    assert_eq!(above("0000:65")[..], above("0000:68")[..]);
    assert_eq!(
        notes(&noted, About::Switches),
        ["left out: 4 switches of the host with only one device of this guest below"]
    );
    assert!(noted.is_needed && topology(&xml, &host("dgx-a100")).unwrap() == noted);
}

#[test]
fn ports_that_redirect_or_reject_are_those_of_the_pairs_of_host_p2p() {
    let xml = guest(&[(3, &["07:00.0", "0c:00.0", "0f:00.0", "12:00.0"])]);
    let noted = topology(&xml, &host("dgx-a100")).unwrap();
    // The ports that decide are named where they redirect, unless both ATS and DT are on.
    let redirecting = |ctl: u16, has_ats: bool| {
        let mut parts = host("dgx-a100").parts().clone();
        for device in &mut parts.devices {
            device.acs = Some(Acs { cap: 0x5f, ctl });
            device.ats = Some(Ats { present: has_ats, enabled: false });
        }
        redirects(&noted.system, &Topology::new(parts).unwrap(), Moment::Start)
    };
    let none = Redirects::default();
    assert_eq!(redirects(&noted.system, &host("dgx-a100"), Moment::Start), none);
    assert_eq!((redirecting(0x11, false), redirecting(0x5d, true)), (none.clone(), none));
    let ports = redirecting(0x1d, true);
    for ctl in [0x1d, 0x5d] {
        assert_eq!(redirecting(ctl, false).root, ports.root);
    }
    let host = host("dgx-a100");
    let below_shared = |port: &Bdf| host.device(*port).unwrap().parent.is_some();
    // Those of the NICs alone: GPUs with NVLinks exchange nothing over PCIe.
    let nic = |port: &Bdf| {
        host.of_kind(DeviceKind::Nic).any(|nic| host.path_to_root(nic.bdf).contains(port))
    };
    assert!(ports.root.len() >= 2 && ports.root.iter().all(below_shared), "{ports:?}");
    assert!(ports.root.iter().all(nic) && ports.rejected.is_empty(), "{ports:?}");
    let [note] = &ports.notes()[..] else { panic!("{ports:?}") };
    assert!(note.says.starts_with("ACS redirects transfers at "));
    // ATS that is off now is on once a guest starts, unless it runs already.
    let mut parts = host.parts().clone();
    for device in &mut parts.devices {
        device.acs = Some(Acs { cap: 0x5f, ctl: 0x5d });
        device.ats = Some(Ats { present: true, enabled: false });
    }
    let running = Topology::new(parts).unwrap();
    assert_eq!(redirects(&noted.system, &running, Moment::Running).root, ports.root);
    let rejected = redirecting(0x5f, true);
    assert!(rejected.root.is_empty() && !rejected.rejected.is_empty());
    assert!(rejected.notes()[0].says.contains("(bit TB is on): transfers between GPUs"));
    // Reads of a NIC without relaxed ordering return by the GPU's port.
    let mut parts = host.parts().clone();
    for device in &mut parts.devices {
        device.acs = Some(Acs { cap: 0x5f, ctl: 0x5d });
        device.ats = Some(Ats { present: true, enabled: true });
        device.devctl = Some(0);
    }
    let strict = redirects(&noted.system, &Topology::new(parts).unwrap(), Moment::Start);
    assert!(!strict.root.is_empty() && strict.root != ports.root, "{strict:?}");
    let note = &strict.notes()[0].says;
    assert!(note.starts_with("ACS redirects completions of reads at "), "{note}");
    assert!(note.contains("(relaxed ordering of ") && note.contains(": reads between"), "{note}");
    // A NIC that cannot ask for translations is named beside the ports.
    let mut parts = host.parts().clone();
    for device in &mut parts.devices {
        device.acs = Some(Acs { cap: 0x5f, ctl: 0x5d });
        device.ats = Some(Ats { present: false, enabled: false });
    }
    let old = redirects(&noted.system, &Topology::new(parts).unwrap(), Moment::Start);
    let note = &old.notes()[0].says;
    assert!(note.contains(" has no ATS") && !note.contains("ordering"), "{note}");
}

/// For every written switch, how many GPUs and NICs are directly below.
fn right_below(placed: &[Placed]) -> Vec<(usize, usize)> {
    let switches = placed.iter().filter(|one| one.class.starts_with("0x0604"));
    let count = |switch: &Placed, class: &str| {
        let below = |one: &&Placed| one.above.last() == Some(&switch.busid);
        placed.iter().filter(below).filter(|one| one.class.starts_with(class)).count()
    };
    switches.map(|switch| (count(switch, "0x03"), count(switch, "0x02"))).collect()
}

#[test]
fn whole_machines_are_written_within_nccls_limits() {
    let h100: [(u32, &[&str]); 2] = [
        (
            0,
            &[
                "18:00.0", "1b:00.0", "40:00.0", "43:00.0", "4f:00.0", "52:00.0", "5e:00.0",
                "61:00.0",
            ],
        ),
        (
            1,
            &[
                "9a:00.0", "9d:00.0", "c0:00.0", "c3:00.0", "ce:00.0", "d1:00.0", "dc:00.0",
                "df:00.0",
            ],
        ),
    ];
    let noted = topology(&guest(&h100), &host("dgx-h100")).unwrap();
    let (placed, elements) = read(&noted);
    assert_eq!(right_below(&placed), [(1, 1); 8]);
    assert!(placed.iter().all(|one| one.rate == Some(48_000)), "{placed:?}");
    assert_eq!((noted.system.cpus.len(), elements), (2, 27));
    let ids: Vec<&str> =
        placed.iter().map(|one| &one.busid[..]).filter(|id| id.starts_with('f')).collect();
    assert_eq!((ids[0], ids[7], ids.len()), ("ffff:ff:01.0", "ffff:ff:08.0", 8));

    let dgx1: [(u32, &[&str]); 2] = [
        (0, &["05:00.0", "06:00.0", "07:00.0", "0a:00.0", "0b:00.0", "0c:00.0"]),
        (1, &["84:00.0", "85:00.0", "86:00.0", "89:00.0", "8a:00.0", "8b:00.0"]),
    ];
    let (placed, elements) = read(&topology(&guest(&dgx1), &host("dgx-1")).unwrap());
    assert_eq!((right_below(&placed), elements), (vec![(2, 1); 4], 19));
    assert!(placed.iter().all(|one| one.rate == Some(12_000)), "{placed:?}");

    let dgx2: [Vec<String>; 2] = [0, 1].map(|node| {
        let host = host("dgx-2");
        let of_node = host.gpus().filter(|gpu| gpu.node == Some(crate::cpuset::NodeId(node)));
        of_node.map(|gpu| gpu.bdf.to_string()).collect()
    });
    let dgx2 = dgx2.each_ref().map(|gpus| gpus.iter().map(String::as_str).collect::<Vec<_>>());
    let (placed, elements) =
        read(&topology(&guest(&[(0, &dgx2[0]), (1, &dgx2[1])]), &host("dgx-2")).unwrap());
    // Four trees of a switch with two switches of two GPUs each.
    assert_eq!(right_below(&placed), [(0, 0), (2, 0), (2, 0)].repeat(4));
    assert_eq!(elements, 31);
}

#[test]
fn one_gpu_needs_no_file_and_an_unknown_link_is_left_out() {
    let noted = topology(&guest(&[(1, &["86:00.0"])]), &host("dual-socket")).unwrap();
    let (placed, elements) = read(&noted);
    assert_eq!((noted.is_needed, elements, placed.len()), (false, 3, 1));
    // The GPU's own link is faster than that of its root port.
    assert_eq!(placed[0].rate, Some(12_000));
    assert_eq!(notes(&noted, About::Need).len(), 1);

    let mut parts = host("dual-socket").parts().clone();
    for device in &mut parts.devices {
        device.link_max = None;
    }
    let unknown = Topology::new(parts).unwrap();
    let noted = topology(&guest(&[(1, &["86:00.0"])]), &unknown).unwrap();
    assert!(!noted.system.to_string().contains("link_"));
    assert_eq!(
        notes(&noted, About::Link),
        ["the host's record lacks the link speed or width above 0000:86:00.0: NCCL uses what the \
          guest shows"]
    );
}

#[test]
fn cells_stand_for_the_nodes_of_their_memory_or_the_nearest_are_taken() {
    let host = host("dgx-h100");
    let numaids = |noted: &NotedSystem| -> Vec<String> {
        read(noted).0.into_iter().filter(|one| one.above.is_empty()).map(|one| one.numaid).collect()
    };
    // The expander buses are of the wrong cells: the binding of the memory counts.
    let swapped = guest(&[(1, &["1b:00.0"]), (0, &["9d:00.0"])]);
    let noted = topology(&swapped, &host).unwrap();
    assert_eq!(noted.system.cpus.iter().map(|cpu| cpu.numaid).collect::<Vec<_>>(), [0, 1]);
    let (placed, _) = read(&noted);
    assert!(
        placed.iter().any(|one| one.busid == "0000:65:00.0" && one.numaid == "1"),
        "{placed:?}"
    );
    // A guest of one cell with a GPU of the other node.
    let noted = topology(&guest(&[(0, &["1b:00.0", "9d:00.0"])]), &host).unwrap();
    assert_eq!(numaids(&noted), ["0", "0"]);
    assert!(notes(&noted, About::Cell)[0].contains("0000:9d:00.0 is on host node 1"), "{noted:?}");
    // A guest without cells.
    let devices = expander(1, 100, None) + &port(2, 1, 0) + &port(3, 1, 1);
    let devices = devices + &hostdev("1b:00.0", (2, 0, 0)) + &hostdev("9d:00.0", (3, 0, 0));
    let noted = topology(&domain(&[], &devices), &host).unwrap();
    assert_eq!(numaids(&noted), ["0", "0"]);
    assert!(notes(&noted, About::Cell)[0].contains("no NUMA cells"), "{noted:?}");
}

#[test]
fn ambiguous_values_for_nccl_are_refused() {
    let host = host("dgx-h100");
    let refused = |devices: &str| topology(&domain(&[0], devices), &host).unwrap_err();
    let bus = expander(1, 100, Some(0)) + &port(2, 1, 0) + &port(3, 1, 1);
    let gpu = hostdev("1b:00.0", (2, 0, 0));
    let with = |devices: String| format!("{bus}{gpu}{devices}");
    let bdf = |text: &str| text.parse::<Bdf>().unwrap();
    assert_eq!(refused(&bus), NcclError::NoGpu);
    assert_eq!(
        refused(&with(hostdev("f0:00.0", (3, 0, 0)))),
        NcclError::UnknownPath { bdf: bdf("f0:00.0") }
    );
    assert_eq!(
        refused(&with(hostdev("18:00.0", (3, 1, 0)))),
        NcclError::NicPlace { bdf: bdf("18:00.0"), guest: bdf("66:01.0") }
    );
    // Nor a virtual function: NCCL looks for it at device 00 of its bus.
    let mut parts = host.parts().clone();
    let vf = parts.devices.iter_mut().find(|one| one.bdf == bdf("18:00.0")).unwrap();
    vf.sriov = Some(Sriov::Vf { pf: bdf("40:00.0") });
    let vf = with(hostdev("18:00.0", (3, 1, 0)));
    assert_eq!(
        topology(&domain(&[0], &vf), &Topology::new(parts).unwrap()).unwrap_err(),
        NcclError::NicPlace { bdf: bdf("18:00.0"), guest: bdf("66:01.0") }
    );
    let two = hostdev("18:00.0", (3, 0, 0)) + &hostdev("40:00.0", (3, 1, 0));
    assert_eq!(
        refused(&with(two)),
        NcclError::NicsOnOneBus { first: bdf("18:00.0"), second: bdf("40:00.0"), bus: 0x66 }
    );
    let nowhere =
        "<hostdev mode='subsystem' type='pci'><source><address bus='0x18'/></source></hostdev>";
    assert_eq!(
        refused(&with(nowhere.into())),
        NcclError::NoAddress { what: "0000:18:00.0".into() }
    );
    let bad = hostdev("18:00.0", (3, 0, 0))
        .replace("slot='0' function='0'/></hostdev>", "slot='x'/></hostdev>");
    assert!(matches!(refused(&with(bad)), NcclError::Unreadable { .. }));
    let old = domain(&[0], &with(String::new()));
    let old = DomainXml::parse(&old.text().replace("machine='q35'", "machine='pc'")).unwrap();
    assert_eq!(topology(&old, &host).unwrap_err(), NcclError::NoPcie);
    // Two ports of one card in one slot are one NIC.
    let ports = hostdev("29:00.0", (3, 0, 0)) + &hostdev("29:00.1", (3, 0, 1));
    let (placed, _) = read(&topology(&domain(&[0], &with(ports)), &host).unwrap());
    assert_eq!(
        placed.iter().map(|one| &one.busid[..]).collect::<Vec<_>>(),
        ["0000:65:00.0", "0000:66:00.0"]
    );
    let pci = Pci {
        busid: bdf("01:00.0"),
        host: bdf("01:00.0"),
        class: "0x030200".into(),
        link: PcieLink::default(),
        ids: None,
        below: Vec::new(),
    };
    let system = |cpus: usize, each: usize| System {
        cpus: vec![Cpu { numaid: 0, below: vec![pci.clone(); each] }; cpus],
    };
    let large = |count, what, most| Err(NcclError::TooLarge { count, what, most });
    assert_eq!(refuse_large(&system(1, 129)), large(129, "elements in one", 128));
    assert_eq!(refuse_large(&system(4, 50)), large(205, "elements", 200));
    assert_eq!(refuse_large(&system(3, 65)), Ok(()));
}

#[test]
fn definitions_that_cannot_start_as_they_are_are_refused() {
    let host = host("dgx-h100");
    let bus = expander(1, 100, Some(0)) + &port(2, 1, 0) + &port(3, 1, 1);
    let gpu = hostdev("1b:00.0", (2, 0, 0));
    let of = |more: &str| topology(&domain(&[0], &format!("{bus}{gpu}{more}")), &host);
    let bdf = |text: &str| text.parse::<Bdf>().unwrap();
    // A function that NCCL does not use must have an address, too, since it may get a port.
    let drive = host.devices().iter().find(|one| one.kind() == DeviceKind::Nvme).unwrap().bdf;
    let unplaced = hostdev(&drive.to_string(), (3, 0, 0))
        .replace("<address type='pci' bus='3' slot='0' function='0'/></hostdev>", "</hostdev>");
    assert_eq!(of(&unplaced), Err(NcclError::NoAddress { what: drive.to_string() }));
    let withheld = unplaced.replace("</hostdev>", "<address type='unassigned'/></hostdev>");
    assert!(of(&withheld).is_ok());
    let twice = hostdev("1b:00.0", (3, 0, 0));
    assert_eq!(of(&twice), Err(NcclError::PassedTwice { bdf: bdf("1b:00.0") }));
    let there = of(&hostdev("43:00.0", (2, 0, 0)));
    assert!(matches!(there, Err(NcclError::SameAddress { .. })), "{there:?}");
    let other = hostdev("43:00.0", (3, 0, 0))
        .replace("<address type='pci'", "<address type='pci' domain='1'");
    let other = of(&other);
    assert!(matches!(other, Err(NcclError::OtherSegment { segment: 1, .. })), "{other:?}");
    assert_eq!(of(&port(3, 1, 2)), Err(NcclError::SameIndex { index: 3 }));
    assert!(matches!(of("<controller type='pci'/>"), Err(NcclError::NoAddress { .. })));
    let network = "<interface type='network'><source network='vfs'/></interface>";
    assert_eq!(notes(&of(network).unwrap(), About::Networks).len(), 1);
}

#[test]
fn the_strict_reader_refuses_what_nccl_refuses() {
    let good = "<system version=\"1\">\n  <cpu numaid=\"0\">\n    <pci busid=\"0000:01:00.0\"/>\n  \
                </cpu>\n</system>\n";
    let read = |text: &str| reader::read(text.as_bytes());
    assert_eq!(read(good).unwrap().count(), 3);
    for accepted in [
        format!("<!-- a > <b> -->\n{good}"),
        good.replace('\n', "\r\n"),
        good.replace('"', "'"),
        good.replace(" busid", "  busid"),
        good.replace("  <cpu", "<!-- --> <other a=\"1\"><pci/></other>  <cpu"),
    ] {
        assert_eq!(read(&accepted).unwrap().count(), 3, "{accepted}");
    }
    let children =
        |count: usize| good.replace("<pci busid=\"0000:01:00.0\"/>", &"<pci/>".repeat(count));
    assert_eq!(read(&children(128)).unwrap().count(), 130);
    for (bad, why) in [
        (format!("<?xml version=\"1.0\"?>\n{good}"), "expected >, got '?'"),
        (good.replace("  <cpu", "\t<cpu"), "expecting '<', got '\\t'"),
        (good.replace(" numaid", "\nnumaid"), "expected >, got '\\n'"),
        (good.replace("</cpu>", "</pci>"), "mismatch: cpu / pci"),
        (good.replace("</system>\n", ""), "unterminated system"),
        (good.replace("\"0\"", "0"), "expected a quote, got '0'"),
        (children(129), "limited to 128 subnodes"),
        (good.replace("numaid", &"n".repeat(255)), "too long"),
    ] {
        let Err(reader::Refused::Internal(said)) = read(&bad) else { panic!("accepted: {bad}") };
        assert!(said.contains(why), "{said}: {bad}");
    }
    let other = read(&good.replace("version=\"1\"", "version=\"2\""));
    assert!(matches!(other, Err(reader::Refused::Usage(_))), "{other:?}");
}

/// A link that NCCL knows, or none.
fn any_link() -> impl Strategy<Value = PcieLink> {
    let speed = prop::sample::select(vec![None, Some(25), Some(160), Some(640)]);
    let width = prop::option::of(1u8..33);
    (speed, width)
        .prop_map(|(speed_dgts, width)| PcieLink::new(&crate::topology::Link { speed_dgts, width }))
}

/// A function, or a switch with others below it.
fn any_pci() -> impl Strategy<Value = Pci> {
    let bdf = (any::<u8>(), 0u8..32, 0u8..8).prop_map(|(b, d, f)| Bdf::new(0, b, d, f).unwrap());
    let class = prop::sample::select(vec!["0x030200", "0x020000", "0x020700"]);
    let function = (bdf, class, any_link()).prop_map(|(busid, class, link)| {
        let (class, ids, below) = (class.to_owned(), None, Vec::new());
        Pci { busid, host: busid, class, link, ids, below }
    });
    function.prop_recursive(3, 40, 5, |below| {
        let below = prop::collection::vec(below, 1..5);
        let bdf = (1u8..32, 0u8..8).prop_map(|(d, f)| Bdf::new(0xffff, 0xff, d, f).unwrap());
        (bdf, any::<[u16; 4]>(), any_link(), below).prop_map(|(busid, ids, link, below)| {
            let [vendor, device, subsystem_vendor, subsystem_device] =
                ids.map(|id| format!("{id:#06x}"));
            let ids = SwitchIds { vendor, device, subsystem_vendor, subsystem_device };
            Pci { busid, host: busid, class: "0x060400".into(), link, ids: Some(ids), below }
        })
    })
}

/// An element as it must be read.
fn as_read(pci: &Pci) -> reader::Node {
    let mut attributes = vec![("busid", pci.busid.to_string()), ("class", pci.class.clone())];
    attributes.extend(pci.link.link_speed.map(|speed| ("link_speed", speed.to_owned())));
    attributes.extend(pci.link.link_width.map(|width| ("link_width", width.to_string())));
    if let Some(ids) = &pci.ids {
        attributes.push(("vendor", ids.vendor.clone()));
        attributes.push(("device", ids.device.clone()));
        attributes.push(("subsystem_vendor", ids.subsystem_vendor.clone()));
        attributes.push(("subsystem_device", ids.subsystem_device.clone()));
    }
    reader::Node {
        name: "pci".into(),
        attributes: attributes.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        below: pci.below.iter().map(as_read).collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nccl_reads_the_written_file(
        cpus in prop::collection::vec((0u32..64, prop::collection::vec(any_pci(), 1..4)), 1..3)
    ) {
        let cpus: Vec<Cpu> =
            cpus.into_iter().map(|(numaid, below)| Cpu { numaid, below }).collect();
        let system = System { cpus };
        prop_assume!(refuse_large(&system).is_ok());
        let read = reader::read(system.to_string().as_bytes()).unwrap();
        let expected: Vec<Vec<reader::Node>> =
            system.cpus.iter().map(|cpu| cpu.below.iter().map(as_read).collect()).collect();
        let found: Vec<Vec<reader::Node>> = read.below.into_iter().map(|cpu| cpu.below).collect();
        prop_assert_eq!(found, expected);
    }
}
