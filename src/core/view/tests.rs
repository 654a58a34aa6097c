//! Pictures: as files, and by property on hosts of all kinds.

use super::*;
use crate::cpuset::{CpuSet, NodeSet, PcpuId};
use crate::memsize::MemSize;
use crate::placement::tests::properties::host;
use crate::placement::tests::testhost::{HostSpec, held as running};
use crate::placement::{Placement, plan};
use crate::request::Request;
use crate::share::cases;
use crate::topology::PciDevice;
use crate::topology::file::from_json;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[allow(clippy::disallowed_methods)] // Reads files of the project.
fn recorded(name: &str) -> Topology {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../topologies");
    from_json(&std::fs::read_to_string(format!("{root}/{name}.json")).unwrap()).unwrap()
}

/// Guests of these numbers of GPUs, one after the other.
fn occupied(topology: &Topology, guests: &[(&str, u32)]) -> Occupancy {
    let mut held = Occupancy::default();
    for (name, gpus) in guests {
        let placement = planned(topology, &held, *gpus);
        held.domains.push(running(name, &placement));
    }
    held
}

fn planned(topology: &Topology, held: &Occupancy, gpus: u32) -> Placement {
    plan(topology, held, &Request::for_gpus(gpus)).unwrap()
}

/// Compares a picture with its file, or renews the file.
#[allow(clippy::disallowed_methods)] // Reads files of the project.
fn golden(name: &str, is: &str) {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden");
    let was = std::fs::read_to_string(format!("{root}/view/{name}")).unwrap_or_default();
    crate::golden::compare(&format!("view/{name}"), &was, is);
}

#[test]
fn pictures_of_recorded_hosts() {
    let host = recorded("dgx-2");
    let mut held =
        occupied(&host, &[("train-a", 4), ("train-b", 2), ("infer-1", 1), ("infer-2", 1)]);
    held.domains[3].active = false;
    let new = [planned(&host, &held, 4).held("train-c")];
    golden("dgx-2.svg", &svg(&Subject { topology: &host, held: &held, planned: &new }));
    for (name, guests) in [
        ("dgx-1", &[("train-a", 2), ("train-b", 4)][..]),
        ("dgx-h100", &[("train-a", 4), ("infer-1", 1)]),
        ("dgx-a100", &[("train-a", 2), ("train-b", 1)]),
        ("dual-socket", &[("desk", 1)]),
    ] {
        let host = recorded(name);
        let held = occupied(&host, guests);
        let picture = svg(&Subject { topology: &host, held: &held, planned: &[] });
        golden(&format!("{name}.svg"), &picture);
        assert!(picture.starts_with(SVG_MARK));
    }
}

/// Names that would end an attribute, an element or a script, change direction, or take much room.
fn hostile() -> [String; 6] {
    [
        "</title><script>alert(1)</script>".into(),
        "\"'><img src=x onerror=alert(1)>".into(),
        "]]>--><!--&amp;&#60;".into(),
        "abc\u{202e}fed\u{200f}\u{2066}x".into(),
        "n".repeat(300),
        "a\tb\u{7f}\u{1b}[31m\u{0}\r".into(),
    ]
}

/// Every text and attribute value of a well-formed document.
fn texts(document: &str) -> Vec<String> {
    use quick_xml::events::Event;
    let mut reader = quick_xml::Reader::from_str(document);
    reader.config_mut().check_end_names = true;
    let (mut all, mut depth, mut now) = (Vec::new(), 0u32, String::new());
    loop {
        match reader.read_event().unwrap() {
            Event::Start(start) => {
                depth += 1;
                all.extend(start.attributes().map(|attr| attr.unwrap().value.into_owned()));
            }
            Event::Text(text) => now.push_str(&text),
            Event::GeneralRef(name) => {
                let name: &str = &name;
                now.push_str(match name {
                    "lt" => "<",
                    "gt" => ">",
                    "amp" => "&",
                    "quot" => "\"",
                    "#39" => "'",
                    other => panic!("&{other};"),
                });
            }
            Event::End(_) => {
                depth -= 1;
                all.push(std::mem::take(&mut now));
            }
            Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(depth, 0);
    all
}

#[test]
fn names_of_others_stay_text() {
    let host = recorded("dgx-2");
    for name in hostile() {
        let mut held = occupied(&host, &[("x", 2)]);
        held.domains[0].domain.clone_from(&name);
        let subject = Subject { topology: &host, held: &held, planned: &[] };
        let picture = svg(&subject);
        let plain = name.chars().all(|c| c.is_ascii_graphic());
        if plain {
            let found = texts(&picture);
            assert!(found.iter().any(|text| text.contains(&name)), "{name}");
        }
        let json = serde_json::to_string(&serde_json::json!({ "name": name })).unwrap();
        let page = page(&page_of(subject, &json));
        for document in [&picture, &page] {
            let lower = document.to_lowercase();
            assert!(!lower.contains("<script>alert") && !lower.contains("<img"), "{document}");
            let odd = |c: char| c.is_control() && c != '\n' && c != '\t' || c == '\u{202e}';
            assert!(!document.contains(odd), "{name:?}");
        }
        // The document in the page is still the same.
        let (_, rest) = page.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
        let (island, _) = rest.split_once("</script>").unwrap();
        let read: serde_json::Value = serde_json::from_str(island).unwrap();
        assert_eq!(read["name"], name.as_str());
    }
}

/// A page about the present state.
fn page_of<'a>(subject: Subject<'a>, json: &'a str) -> Page<'a> {
    Page {
        subject,
        verb: "host show",
        verdict: &[],
        date: None,
        placement: None,
        reasons: &[],
        capacity: None,
        fits: None,
        changed: &[],
        notes: &[],
        commands: &[],
        json,
        offered: str::to_owned,
    }
}

#[test]
fn a_page_answers_the_questions_of_a_reviewer() {
    let host = recorded("dgx-2");
    let held = occupied(&host, &[("train-a", 4)]);
    let placement = planned(&host, &held, 4);
    let new = [placement.held("train-c")];
    let subject = Subject { topology: &host, held: &held, planned: &new };
    let made = page(&Page {
        placement: Some(&placement),
        reasons: &placement.reasons,
        ..page_of(subject, "{}")
    });
    let answer = |id: &str| {
        let (_, rest) = made.split_once(&format!("<dd id=\"answer-{id}\">")).unwrap();
        rest.split_once("</dd>").unwrap().0.to_owned()
    };
    let gpus = answer("gpus");
    for bdf in placement.devices.iter().take(4) {
        assert!(gpus.contains(&bdf.to_string()), "{gpus}");
    }
    let id = placement.partition.unwrap();
    assert!(answer("partition").contains(&format!("train-c (B): NVLink partition {id} (4 GPUs")));
    let isolated = answer("isolated");
    assert!(isolated.starts_with("<p>train-c (B): "), "{isolated}");
    let pins = answer("pins");
    let first = placement.vcpu_pins[0].first().unwrap();
    let node = host.core_of(first).unwrap().node;
    assert!(pins.contains(&format!("22 vCPUs on pcpus {first}")), "{pins}");
    assert!(pins.contains(&format!("of node {node}")), "{pins}");
    assert!(answer("changes").contains("would define a guest with 22 vCPUs"));
    assert!(!made.contains("train-a (A): GPU"), "a plan is about its own guest");
    assert!(made.contains("data-name=\"train-a\""), "but shows the others");
    // The same input gives the same bytes, and no word loads anything.
    assert!(made.starts_with(PAGE_MARK));
    for word in ["src=", "href=\"http", "@import", "url(http", "<link", "<iframe"] {
        assert!(!made.contains(word), "{word}");
    }
}

#[test]
fn a_page_shows_what_changes_line_by_line() {
    let host = recorded("dual-socket");
    let held = Occupancy::default();
    let line = |old: Option<&str>, new: Option<&str>| Line {
        old: old.map(|text| (7, text.to_owned())),
        new: new.map(|text| (8, text.to_owned())),
    };
    let changed = [Changed {
        name: "a".into(),
        items: vec!["pins from none to core".into()],
        hunks: vec![vec![
            line(Some("<b/>"), Some("<b/>")),
            line(Some("<old/>"), Some("<new/>")),
            line(None, Some("<more/>")),
        ]],
    }];
    let subject = Subject { topology: &host, held: &held, planned: &[] };
    let made = page(&Page { changed: &changed, ..page_of(subject, "{}") });
    assert!(made.contains("a: 1 line removed, 2 added: pins from none to core"), "{made}");
    assert!(made.contains("- &lt;old/&gt;") && made.contains("+ &lt;more/&gt;"));
    assert!(!made.contains("- &lt;b/&gt;") && !made.contains("+ &lt;b/&gt;"));
}

/// A host of 4096 pcpus, 128 GPUs and 200 guests.
fn large() -> (Topology, Occupancy) {
    let host = HostSpec::even(8, 256, 2048, 128).build();
    let gpus: Vec<_> = host.gpus().map(|gpu| gpu.bdf).collect();
    let cores = host.cores().to_vec();
    let guest = |at: usize| {
        let own = &cores[at * 10..at * 10 + 10];
        let pins = own.iter().flat_map(|core| core.pcpus.iter()).map(CpuSet::of);
        Held {
            domain: format!("guest-{at:03}"),
            active: true,
            vcpu_pins: pins.collect(),
            vcpus: 20,
            devices: gpus.get(at).copied().into_iter().collect(),
            memory: vec![(NodeSet::of(own[0].node), MemSize::from_gib(32))],
            ..Held::default()
        }
    };
    let domains = (0..200).map(guest).collect();
    (host, Occupancy { domains, ..Occupancy::default() })
}

#[test]
fn large_hosts_have_bars_and_pages_stay_small() {
    let (host, held) = large();
    let subject = Subject { topology: &host, held: &held, planned: &[] };
    let scene = Scene::of(&subject);
    assert_eq!(scene.threads().count(), 0);
    let shares = scene.packages.iter().flat_map(|package| &package.nodes);
    let shares = shares.flat_map(|node| &node.caches).flat_map(|cache| &cache.shares);
    let mut by_guest: BTreeMap<usize, usize> = BTreeMap::new();
    for share in shares {
        *by_guest.entry(share.guest).or_default() += share.pcpus.len();
    }
    assert_eq!(by_guest.len(), 200);
    assert!(by_guest.values().all(|pcpus| *pcpus == 20));
    let size = page(&page_of(subject, "{}")).len();
    assert!(size < 2 << 20, "{size} bytes");
    let host = recorded("dgx-2");
    let guests: Vec<String> = (0..16).map(|at| format!("guest-{at}")).collect();
    let guests: Vec<(&str, u32)> = guests.iter().map(|name| (name.as_str(), 1)).collect();
    let held = occupied(&host, &guests);
    let subject = Subject { topology: &host, held: &held, planned: &[] };
    let json = serde_json::to_string_pretty(host.parts()).unwrap();
    let made = page(&page_of(subject, &json));
    let own = made.len() - json.len();
    assert!(own < 300 << 10, "{own} bytes");
}

/// The parts of a box are within it, and do not overlap.
fn inside(item: &Item) {
    let Item::Bridge(bridge) = item else { return };
    for (at, item) in bridge.items.iter().enumerate() {
        assert!(item.area().is_within(&bridge.area), "{item:?} in {:?}", bridge.area);
        let mut rest = bridge.items[at + 1..].iter();
        assert!(!rest.any(|other| other.area().overlaps(&item.area())), "{item:?}");
        inside(item);
    }
}

/// Nothing overlaps, everything is inside, every device and every held pcpu is there once.
fn check(subject: &Subject<'_>) {
    let scene = Scene::of(subject);
    let nodes = || scene.packages.iter().flat_map(|package| &package.nodes);
    let apart = |areas: &[Area], what: &str| {
        for (at, area) in areas.iter().enumerate() {
            assert!(area.is_within(&scene.area), "{what} {area:?} in {:?}", scene.area);
            let other = areas[at + 1..].iter().find(|other| area.overlaps(other));
            assert_eq!(other, None, "{what} {area:?}");
        }
    };
    apart(&scene.packages.iter().map(|one| one.area).collect::<Vec<_>>(), "package");
    apart(&nodes().map(|one| one.area).collect::<Vec<_>>(), "node");
    for node in nodes() {
        let memory = node.memory.iter().map(|bar| bar.area);
        let caches = node.caches.iter().map(|cache| cache.area);
        let parts: Vec<Area> =
            memory.chain(caches).chain(node.roots.iter().map(Item::area)).collect();
        apart(&parts, "part");
        parts.iter().for_each(|part| assert!(part.is_within(&node.area), "{part:?}"));
        node.roots.iter().for_each(inside);
        for cache in &node.caches {
            let cores: Vec<Area> = cache.cores.iter().map(|core| core.area).collect();
            apart(&cores, "core");
            cores.iter().for_each(|core| assert!(core.is_within(&cache.area)));
        }
        for bar in &node.memory {
            assert!(bar.segments.iter().all(|part| part.area.is_within(&bar.area)));
        }
    }
    let tiles = scene.tiles();
    apart(&tiles.iter().map(|tile| tile.area).collect::<Vec<_>>(), "tile");
    let drawn: BTreeSet<_> = tiles.iter().map(|tile| tile.device.bdf).collect();
    assert_eq!(drawn.len(), tiles.len(), "a device has two tiles");
    use crate::topology::DeviceKind::{Gpu, Nic, NvSwitch, Nvme};
    for device in subject.topology.devices() {
        // Only the first free virtual functions of a card are drawn: a test of their own has more.
        let is_vf = matches!(device.sriov, Some(crate::topology::Sriov::Vf { .. }));
        let must = [Gpu, NvSwitch, Nvme].contains(&device.kind()) && !is_vf
            || device.kind() == Nic
            || subject.held.domains.iter().any(|held| held.devices.contains(&device.bdf));
        assert!(!must || drawn.contains(&device.bdf), "{} has no tile", device.bdf);
    }
    let threads: BTreeMap<PcpuId, &Thread> = scene.threads().map(|one| (one.pcpu, one)).collect();
    assert_eq!(threads.len(), subject.topology.pcpus().len());
    let picture = svg(subject);
    for (place, guest) in scene.guests.iter().enumerate() {
        for held in &guest.held {
            let pins = held.vcpu_pins.iter().chain(&held.emulator_pin).chain(&held.iothread_pins);
            let narrow = pins.filter(|pin| !crate::placement::floats(subject.topology, pin));
            for pcpu in narrow.flat_map(|pin| pin.iter()) {
                let Some(thread) = threads.get(&pcpu) else { continue };
                assert!(thread.uses.iter().any(|one| one.guest == place), "pcpu {pcpu}");
                let first = &scene.guests[thread.uses[0].guest].letter;
                let id = format!("<g id=\"pcpu-{pcpu}\" ");
                let (_, group) = picture.split_once(&id).unwrap();
                let (group, _) = group.split_once("</g>").unwrap();
                assert!(group.contains(&format!("data-g=\"{first}\"")), "{group}");
                assert!(group.contains(&format!(">{first}</text>")), "{group}");
            }
        }
    }
    texts(&picture);
}

/// A host with some of its devices below bridges in bridges.
fn with_bridges(host: &Topology, seed: u64) -> Topology {
    let mut parts = host.parts().clone();
    let bridge = |bdf: &str, parent: Option<&str>| -> PciDevice {
        let json = serde_json::json!({ "bdf": bdf, "class": "0x060400", "vendor": "0x10b5",
            "device": "0x9797", "parent": parent, "node": null });
        serde_json::from_value(json).unwrap()
    };
    let bridges = [
        bridge("0000:02:00.0", None),
        bridge("0000:03:00.0", Some("0000:02:00.0")),
        bridge("0000:03:01.0", Some("0000:02:00.0")),
        bridge("0000:04:00.0", Some("0000:03:01.0")),
    ];
    for (at, device) in parts.devices.iter_mut().enumerate() {
        let choice = usize::try_from((seed >> (at % 32 * 2)) % 8).unwrap();
        device.parent = bridges.get(choice).map(|bridge| bridge.bdf);
    }
    parts.devices.splice(0..0, bridges);
    Topology::new(parts).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(200), failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn pictures_of_any_host_show_everything_once(
        host in host(), seed in any::<u64>(), sizes in proptest::collection::vec(0..5u32, 0..8)
    ) {
        let host = with_bridges(&host, seed);
        let mut held = Occupancy::default();
        let mut new = Vec::new();
        for (at, gpus) in sizes.into_iter().enumerate() {
            let Ok(placement) = plan(&host, &held, &Request::for_gpus(gpus)) else { continue };
            let domain = Held { active: at % 3 > 0, ..placement.held(&format!("g{at}")) };
            if at % 4 == 3 { new = vec![domain]; break }
            held.domains.push(domain);
        }
        let subject = Subject { topology: &host, held: &held, planned: &new };
        check(&subject);
        prop_assert_eq!(svg(&subject), svg(&subject));
        page(&page_of(subject, "{}"));
    }
}

#[test]
fn pictures_of_recorded_hosts_show_everything_once() {
    for name in ["dgx-1", "dgx-2", "dgx-a100", "dgx-h100", "dual-socket", "h100-guest"] {
        let host = recorded(name);
        let guests = if name == "h100-guest" { 0 } else { 1 };
        let held = occupied(&host, &[("a", guests)]);
        check(&Subject { topology: &host, held: &held, planned: &[] });
    }
}

/// A picture and a page of a recorded host without guests.
fn shown(host: &Topology) -> (String, String) {
    let held = Occupancy::default();
    let subject = Subject { topology: host, held: &held, planned: &[] };
    (svg(&subject), page(&page_of(subject, "{}")))
}

/// The group of a picture with this id.
fn group<'p>(picture: &'p str, id: &str) -> &'p str {
    let begin = format!("<g id=\"{id}\"");
    let at = picture.find(&begin).unwrap_or_else(|| panic!("{id} is not drawn"));
    picture[at..].split_once("</g>").unwrap().0
}

/// The row of a page's table of devices.
fn row<'p>(page: &'p str, id: &str) -> &'p str {
    let begin = format!("<tr data-d=\"{id}\"");
    let at = page.find(&begin).unwrap_or_else(|| panic!("{id} is not listed"));
    page[at..].split_once("</tr>").unwrap().0
}

#[test]
fn nvswitches_of_fabric_manager_are_not_shown_as_free() {
    let (picture, page) = shown(&recorded("dgx-h100"));
    for bus in ["07", "08", "09", "0a"] {
        let id = format!("dev-0000-{bus}-00-0");
        let tile = group(&picture, &id);
        assert!(tile.contains("class=\"t u\"") && tile.contains(">FM</text>"), "{tile}");
        assert!(tile.contains("stays with Fabric Manager") && !tile.contains("free"), "{tile}");
        assert!(row(&page, &id[4..]).contains("stays with Fabric Manager"));
    }
    assert!(picture.contains("Fabric Manager&#39;s NVSwitch"), "the legend");
    // Guests of a DGX-2 get its NVSwitches.
    let (picture, _) = shown(&recorded("dgx-2"));
    assert!(group(&picture, "dev-0000-62-00-0").contains("class=\"t f\""));
    assert!(!picture.contains("Fabric Manager"));
}

#[test]
fn virtual_functions_are_drawn_and_listed_beside_their_card() {
    let host = recorded("dual-socket");
    let (picture, page) = shown(&host);
    let card = group(&picture, "dev-0000-3b-00-0");
    assert!(card.contains("class=\"t u\"") && !card.contains("<path"), "no red cross: {card}");
    assert!(card.contains("is used by its 4 virtual functions"), "{card}");
    for function in 2..6 {
        let id = format!("0000-3b-00-{function}");
        let tile = group(&picture, &format!("dev-{id}"));
        assert!(tile.contains("class=\"t f\"") && tile.contains(">3b:00."), "{tile}");
        assert!(tile.contains("VF of 0000:3b:00.0, free"), "{tile}");
        assert!(row(&page, &id).contains("<td data-h=\"standing\">free</td>"));
    }
    let mut held = occupied(&host, &[("desk", 1)]);
    held.domains[0].devices.push("0000:3b:00.3".parse().unwrap());
    let picture = svg(&Subject { topology: &host, held: &held, planned: &[] });
    let tile = group(&picture, "dev-0000-3b-00-3");
    assert!(tile.contains("data-g=\"A\"") && tile.contains(">A</text>"), "{tile}");
}

#[test]
fn of_many_virtual_functions_the_first_and_those_of_guests_are_drawn() {
    let mut parts = recorded("dual-socket").parts().clone();
    let at = parts.devices.iter().position(|one| one.bdf.to_string() == "0000:3b:00.2").unwrap();
    let vf = parts.devices[at].clone();
    parts.devices.retain(|one| one.sriov != vf.sriov);
    let vfs = (0..64).map(|number| {
        let bdf = format!("0000:3b:{:02x}.{}", 2 + number / 8, number % 8).parse().unwrap();
        let iommu_group = Some(200 + number);
        PciDevice { bdf, iommu_group, net: None, ..vf.clone() }
    });
    parts.devices.extend(vfs);
    parts.devices.sort_by_key(|device| device.bdf);
    let pf = parts.devices.iter_mut().find(|one| one.bdf.to_string() == "0000:3b:00.0").unwrap();
    pf.sriov = Some(crate::topology::Sriov::Pf { total: 64, enabled: 64 });
    let host = Topology::new(parts).unwrap();
    let last: crate::bdf::Bdf = "0000:3b:09.7".parse().unwrap();
    let domains =
        vec![Held { domain: "a".into(), active: true, devices: vec![last], ..Held::default() }];
    let held = Occupancy { domains, ..Occupancy::default() };
    let subject = Subject { topology: &host, held: &held, planned: &[] };
    let scene = Scene::of(&subject);
    scene.packages.iter().flat_map(|one| &one.nodes).flat_map(|one| &one.roots).for_each(inside);
    let drawn = scene.devices().into_iter().filter(|one| one.pf.is_some());
    let drawn: Vec<_> = drawn.map(|one| one.bdf).collect();
    assert_eq!((drawn.len(), drawn.last()), (17, Some(&last)));
    assert!(svg(&subject).contains(">64 VFs, 17 drawn</text>"));
    let page = page(&page_of(subject, "{}"));
    assert!(page.contains("47 more free virtual functions: `gpuvm device list` has all"));
}

#[test]
fn isolated_and_offline_pcpus_are_marked() {
    let host = recorded("dual-socket");
    let (picture, _) = shown(&host);
    for pcpu in [2, 3, 34, 35] {
        let cell = group(&picture, &format!("pcpu-{pcpu}"));
        assert!(cell.contains("class=\"f i\"") && cell.contains("class=\"j\""), "{cell}");
        assert!(cell.contains("isolated by the kernel"), "{cell}");
    }
    assert!(!group(&picture, "pcpu-4").contains("isolated"));
    let cell = group(&picture, "pcpu-63");
    assert!(cell.contains("pcpu 63: offline") && cell.contains(">off</text>"), "{cell}");
    let scene_of = |host: &Topology| {
        let held = Occupancy::default();
        let scene = Scene::of(&Subject { topology: host, held: &held, planned: &[] });
        let nodes = scene.packages.iter().flat_map(|package| &package.nodes);
        let cores = nodes.flat_map(|node| &node.caches).flat_map(|cache| &cache.cores);
        for core in cores {
            let own = core.threads.iter().map(|thread| thread.area);
            let all: Vec<Area> = own.chain(core.offline.iter().map(|(area, _)| *area)).collect();
            assert!(all.iter().all(|area| area.is_within(&core.area)), "{core:?}");
        }
    };
    scene_of(&host);
    for words in ["16 cores, 32 pcpus · 4 isolated", "31 pcpus · 1 offline", "pcpus 2-3,34-35"] {
        assert!(picture.contains(words), "{words}");
    }
    assert!(picture.contains(">offline: pcpus 63</text>"));
    // An isolated pcpu that a guest has keeps its mark.
    let domains = vec![Held {
        domain: "a".into(),
        active: true,
        vcpus: 1,
        vcpu_pins: vec!["2".parse().unwrap()],
        ..Held::default()
    }];
    let held = Occupancy { domains, ..Occupancy::default() };
    let picture = svg(&Subject { topology: &host, held: &held, planned: &[] });
    let cell = group(&picture, "pcpu-2");
    assert!(cell.contains("data-g=\"A\"") && cell.contains("class=\"j\""), "{cell}");
    // Where no core is whole, offline pcpus are in the legend only.
    let mut parts = host.parts().clone();
    parts.offline = (32..64).map(PcpuId).collect();
    for core in &mut parts.cores {
        core.pcpus = CpuSet::of(core.pcpus.first().unwrap());
    }
    for node in &mut parts.nodes {
        node.pcpus = node.pcpus.iter().filter(|pcpu| pcpu.0 < 32).collect();
    }
    parts.l3.clear();
    let (picture, _) = shown(&Topology::new(parts).unwrap());
    assert!(picture.contains(">offline: pcpus 32-63</text>") && !picture.contains("pcpu-40\""));
}

#[test]
fn without_guests_a_page_says_what_fits() {
    let host = recorded("dgx-h100");
    let mut held = Occupancy::default();
    let fits = crate::placement::capacity(&host, &held, &Request::for_gpus(1), &[]);
    let made = |held: &Occupancy| {
        let subject = Subject { topology: &host, held, planned: &[] };
        page(&Page { fits: Some(&fits), ..page_of(subject, "{}") })
    };
    let page = made(&held);
    let line = "8 guests with 1 GPU, 4 with 2 GPUs, 2 with 4 GPUs, 1 with 8 GPUs";
    assert!(page.contains(&format!("<dd id=\"answer-fits\"><p>{line}</p></dd>")), "{page}");
    assert!(page.contains("free: 8 of 8, GPU 0-7"));
    for gone in ["no guest is there", "answer-pins", "answer-isolated", "answer-changes"] {
        assert!(!page.contains(gone), "{gone}");
    }
    held = occupied(&host, &[("a", 1)]);
    let page = made(&held);
    for there in ["answer-pins", "answer-isolated", "answer-partition", "answer-fits"] {
        assert!(page.contains(there), "{there}");
    }
}

#[test]
fn a_capacity_page_begins_with_its_answer() {
    let host = recorded("dgx-2");
    let held = occupied(&host, &[("a", 1), ("b", 8)]);
    let capacity = crate::placement::capacity(&host, &held, &Request::for_gpus(1), &[]);
    let subject = Subject { topology: &host, held: &held, planned: &[] };
    let made = page(&Page { capacity: Some(&capacity), ..page_of(subject, "{}") });
    let ids = ["id=\"capacity\"", "id=\"answers\"", "id=\"picture\"", "id=\"guests\""];
    let places: Vec<usize> = ids.iter().map(|id| made.find(id).unwrap()).collect();
    assert!(places.is_sorted(), "{places:?}");
    let section = &made[places[0]..places[1]];
    let next = capacity.next.unwrap();
    assert!(next.advice.is_some());
    for line in next.lines() {
        let line = line.trim().replace('`', "");
        let shown = section.replace('`', "");
        assert!(shown.contains(&format!(">{line}</p>")), "{line}: {section}");
    }
    assert!(next.lines().last().unwrap().contains("end `a`"), "{:?}", next.lines());
}

#[test]
fn remedies_of_a_compromise_are_not_counted() {
    let host = recorded("dgx-2");
    let held = Occupancy::default();
    let placement = planned(&host, &held, 4);
    let new = [placement.held("train-c")];
    let subject = Subject { topology: &host, held: &held, planned: &new };
    let reasons = &placement.reasons;
    let made = page(&Page { placement: Some(&placement), reasons, ..page_of(subject, "{}") });
    let marked: Vec<String> = reasons
        .iter()
        .filter(|reason| reason.compromise)
        .map(|reason| reason.choice.to_string())
        .collect();
    assert_eq!(marked, ["isolation", "trust", "huge-pages"]);
    assert!(made.contains("<p>2 compromises under Why</p>"), "{made}");
    let (_, why) = made.split_once("id=\"reasons\"").unwrap();
    let (why, _) = why.split_once("</section>").unwrap();
    assert_eq!(why.matches("class=\"bad\"").count(), 2);
    assert!(!why.contains(">trust</th>"));
    let (_, isolation) = why.split_once(">isolation</th>").unwrap();
    let (isolation, _) = isolation.split_once("</tr>").unwrap();
    assert!(isolation.contains("<p class=\"remedy\">") && isolation.contains("host trust"));
}

#[test]
fn links_below_their_best_are_shown_so() {
    let host = recorded("dual-socket");
    let (picture, page) = shown(&host);
    assert!(group(&picture, "dev-0000-18-00-0").contains("link 2.5 of 16 GT/s x16"));
    assert!(row(&page, "0000-18-00-0").contains(">2.5 of 16 GT/s x16</td>"));
    let gpu = "0000:18:00.0".parse().unwrap();
    let mut device = host.device(gpu).unwrap().clone();
    device.link.as_mut().unwrap().width = Some(8);
    assert_eq!(devices::link(&device).unwrap(), "2.5 of 16 GT/s x8 of x16");
    device.link_max = None;
    assert_eq!(devices::link(&device).unwrap(), "2.5 GT/s x8");
}

#[test]
fn nvlinks_to_switches_are_drawn_with_their_number() {
    for (name, gpus, links, switches) in [
        ("dgx-2", 16, 6, "12 NVSwitches"),
        ("dgx-a100", 8, 12, "6 NVSwitches"),
        ("dgx-h100", 8, 18, "4 NVSwitches"),
    ] {
        let host = recorded(name);
        let held = occupied(&host, &[("a", 2)]);
        let subject = Subject { topology: &host, held: &held, planned: &[] };
        let scene = Scene::of(&subject);
        let board = scene.board.as_ref().unwrap();
        assert_eq!(board.spokes.len(), gpus, "{name}");
        assert!(board.spokes.iter().all(|spoke| spoke.links == links), "{name}");
        assert_eq!(board.spokes.iter().filter(|spoke| spoke.slot.guest == Some(0)).count(), 2);
        let (title, _) = scene.nvlink.as_ref().unwrap();
        let rows = scene.partitions.iter().map(|row| row.area);
        let parts: Vec<Area> = rows.chain([board.area]).collect();
        for (at, part) in parts.iter().enumerate() {
            assert!(part.is_within(title), "{name}");
            assert!(parts[at + 1..].iter().all(|other| !other.overlaps(part)), "{name}");
        }
        for spoke in &board.spokes {
            assert!(spoke.slot.area.is_within(&board.area), "{name}");
        }
        let picture = svg(&subject);
        for index in 0..gpus {
            assert!(picture.contains(&format!("<title>GPU {index} 0000:")), "{name}");
        }
        assert!(picture.contains(&format!(">{switches}</text>")), "{name}");
        assert!(picture.contains(&format!("any two GPUs are linked by {links} NVLinks")));
    }
}

#[test]
fn memory_bars_have_a_scale() {
    let host = recorded("dual-socket");
    let held = occupied(&host, &[("desk", 1)]);
    let subject = Subject { topology: &host, held: &held, planned: &[] };
    let scene = Scene::of(&subject);
    let nodes = || scene.packages.iter().flat_map(|package| &package.nodes);
    let picture = svg(&subject);
    for node in nodes() {
        for bar in &node.memory {
            let taken: u32 = bar.segments.iter().map(|segment| segment.area.width).sum();
            assert_eq!(taken + bar.rest.0.width, bar.area.width);
            assert!(picture.contains(&format!(">{}</text>", bar.whole)), "{}", bar.whole);
            // Where there is no room in the bar, it is above.
            let above = format!(">{}, {}</text>", bar.label, bar.rest.1);
            let inside = picture.contains(&format!(">{}</text>", bar.rest.1));
            assert!(inside || picture.contains(&above), "{above}");
        }
    }
    assert_eq!(
        picture.matches(">0</text>").count(),
        nodes().flat_map(|one| &one.memory).count() + 1
    );
    let whole: Vec<&str> =
        nodes().flat_map(|node| &node.memory).map(|bar| bar.whole.as_str()).collect();
    assert!(whole.contains(&"188.5 GiB") && whole.contains(&"1024 pages"), "{whole:?}");
    let rest: Vec<&str> =
        nodes().flat_map(|node| &node.memory).map(|bar| bar.rest.1.as_str()).collect();
    assert!(rest.contains(&"768 free") && rest.contains(&"189.0 GiB not bound"), "{rest:?}");
}

#[test]
fn all_nodes_have_their_cores_in_one_grid() {
    let host = recorded("dgx-a100");
    let held = Occupancy::default();
    let scene = Scene::of(&Subject { topology: &host, held: &held, planned: &[] });
    let nodes: Vec<&NodeBox> = scene.packages.iter().flat_map(|package| &package.nodes).collect();
    let grid = |node: &NodeBox| -> Vec<(u32, u32)> {
        let place = |cache: &Cache| (cache.area.x - node.area.x, cache.area.width);
        node.caches.iter().map(place).collect()
    };
    assert!(nodes.iter().any(|node| node.roots.is_empty()), "one has no devices");
    nodes.iter().for_each(|node| assert_eq!(grid(node), grid(nodes[0]), "{}", node.label));
}

#[test]
fn ports_of_the_host_are_not_called_switches() {
    let (picture, _) = shown(&recorded("dgx-h100"));
    // As `host show` has them.
    for words in ["root port 26:01.0", "root port 80:01.0", "switch 16:00.0", "switch 03:00.0"] {
        assert!(picture.contains(&format!(">{words}</text>")), "{words}");
    }
    assert!(!picture.contains("switch 26:01.0"));
    assert!(picture.contains("<title>root port 0000:26:01.0: 2 devices</title>"));
}

/// Sizes of all texts in styles, in px.
fn sizes(styles: &str) -> Vec<f64> {
    let after = |word: &'static str| styles.split(word).skip(1);
    let number = |rest: &str| -> f64 {
        let end = rest.find("px").unwrap();
        rest[..end].parse().unwrap()
    };
    after("font-size:").chain(after("font:")).map(number).collect()
}

#[test]
fn no_text_is_smaller_than_10_px() {
    let host = recorded("dgx-2");
    let (picture, page) = shown(&host);
    for document in [&picture, &page] {
        for style in document.split("<style>").skip(1) {
            let (style, _) = style.split_once("</style>").unwrap();
            let all = sizes(style);
            assert!(all.len() > 3 && all.iter().all(|size| *size >= 10.0), "{all:?}");
        }
        assert!(!document.contains("font-size=\""));
    }
    // The picture is shrunk only where its reader wants it.
    assert!(page.contains(&format!("figure svg{{display:block;width:100%;min-width:{WIDTH}px")));
    let min: Vec<&str> =
        page.match_indices("min-width:0").map(|(at, _)| &page[at - 40..at]).collect();
    assert!(
        min.iter().all(|before| before.contains("#fit:checked") || before.contains(".wide{")),
        "{min:?}"
    );
    assert!(page.contains("class=\"narrow\">The picture goes on to the right"));
}

#[test]
fn tables_become_cards_and_the_filter_stands_above_them() {
    let host = recorded("dual-socket");
    let held = occupied(&host, &[("desk", 1)]);
    let subject = Subject { topology: &host, held: &held, planned: &[] };
    let made = page(&page_of(subject, "{}"));
    let device = row(&made, "0000-3b-00-2");
    for head in ["address", "model", "node", "driver", "link", "reset", "standing"] {
        assert!(device.contains(&format!("<td data-h=\"{head}\"")), "{head}: {device}");
    }
    // Words that must not break: name, address, link, reset.
    assert_eq!(device.matches("class=\"keep\"").count(), 4, "{device}");
    for (table, _) in
        made.match_indices("<table class=\"sift").map(|(at, _)| made[at..].split_once('>').unwrap())
    {
        assert!(table.contains("cards"), "{table}");
    }
    let places: Vec<usize> = ["<figure>", "</figure>", "id=\"filter\"", "id=\"guests\""]
        .iter()
        .map(|word| made.find(word).unwrap())
        .collect();
    assert!(places.is_sorted(), "{places:?}");
    assert!(made.contains("#info:empty{display:none}"), "no bar without words");
    let name = "<th scope=\"row\" class=\"keep\"><bdi>desk</bdi>";
    assert!(made.contains(name), "{made}");
}
