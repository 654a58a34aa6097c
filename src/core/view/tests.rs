//! Pictures: as files, and by property on hosts of all kinds.

use super::*;
use crate::cpuset::{CpuSet, NodeSet, PcpuId};
use crate::memsize::MemSize;
use crate::placement::tests::properties::host;
use crate::placement::tests::testhost::{HostSpec, held as running};
use crate::placement::{Placement, plan};
use crate::request::Request;
use crate::topology::PciDevice;
use crate::topology::file::from_json;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A recorded host.
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

/// A guest's plan.
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

/// A page about what is there.
fn page_of<'a>(subject: Subject<'a>, json: &'a str) -> Page<'a> {
    Page {
        subject,
        verb: "host show",
        verdict: &[],
        date: None,
        placement: None,
        reasons: &[],
        capacity: None,
        changed: &[],
        notes: &[],
        commands: &[],
        json,
        told: str::to_owned,
    }
}

#[test]
fn a_page_answers_what_a_reviewer_asks() {
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
        // A card has too many virtual functions to draw those that nobody has.
        let is_vf = matches!(device.sriov, Some(crate::topology::Sriov::Vf { .. }));
        let must = [Gpu, Nic, NvSwitch, Nvme].contains(&device.kind()) && !is_vf
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
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
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
