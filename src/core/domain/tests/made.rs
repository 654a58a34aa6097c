//! Whole guests: planned on each recorded host, made from each template.

use super::guests::{TEMPLATES, guest, host, hosts, render, requests};
use crate::domain::edit::DomainEdit;
use crate::domain::guest::{Guest, VirtType, mac};
use crate::domain::nic_request::{NicModel, NicWish};
use crate::domain::setting::Setting;
use crate::domain::{DomainXml, Element, edits};
use crate::placement::{GuestTopology, Occupancy, Placement, plan};
use crate::request::{DeviceWish, HugePages, PageSize, Request};
use crate::topology::Topology;
use std::collections::BTreeSet;
use std::sync::LazyLock;

struct Made {
    what: String,
    topology: Topology,
    place: Placement,
    guest: Guest,
    xml: DomainXml,
}

/// Every guest that has a place, on every recorded host, from every template; made once.
static MADE: LazyLock<Vec<Made>> = LazyLock::new(|| {
    let mut made = Vec::new();
    for (host, topology) in hosts() {
        for (wish, request) in requests(&topology) {
            let Ok(place) = plan(&topology, &Occupancy::default(), &request) else { continue };
            for (name, template) in TEMPLATES {
                let virt = if name == "tiny" { VirtType::Qemu } else { VirtType::Kvm };
                let guest = guest(&format!("{host}-{wish}"), virt, &request);
                let xml = render(template, &guest, &place, &topology);
                let what = format!("{host} {wish} {name}");
                let (topology, place) = (topology.clone(), place.clone());
                made.push(Made { what, topology, place, guest, xml });
            }
        }
    }
    assert!(made.len() > 100, "only {} guests", made.len());
    made
});

/// Visits each of [`MADE`].
fn each(mut look: impl FnMut(&str, &Topology, &Placement, &Guest, &DomainXml)) {
    for Made { what, topology, place, guest, xml } in MADE.iter() {
        look(what, topology, place, guest, xml);
    }
}

#[test]
fn a_guest_that_is_there_needs_no_edit() {
    each(|what, topology, place, guest, xml| {
        assert_eq!(edits(xml, guest, place, topology).unwrap(), [], "{what}");
        let record = xml.record().unwrap().unwrap();
        assert_eq!(record, guest.record, "{what}");
    });
}

#[test]
fn a_guest_can_be_made_into_another_and_back() {
    let topology = host("dgx-2");
    let place = |gpus| {
        let request = Request::for_gpus(gpus);
        let place = plan(&topology, &Occupancy::default(), &request).unwrap();
        (guest("changing", VirtType::Kvm, &request), place)
    };
    for (_, template) in TEMPLATES {
        let (guest, small) = place(2);
        let mut xml = render(template, &guest, &small, &topology);
        let first = xml.clone();
        for gpus in [16, 1, 8, 0, 2] {
            let (guest, place) = place(gpus);
            let steps = edits(&xml, &guest, &place, &topology).unwrap();
            steps.iter().for_each(|edit| xml.apply(edit).unwrap());
            assert_eq!(edits(&xml, &guest, &place, &topology).unwrap(), [], "{gpus}");
            check_pci(&format!("{gpus} GPUs"), &xml);
        }
        let hostdevs = |xml: &DomainXml| -> Vec<String> {
            let devices = xml.root().child("devices").unwrap();
            devices.children("hostdev").map(|hostdev| hostdev.xml().to_owned()).collect()
        };
        assert_eq!(hostdevs(&xml).len(), hostdevs(&first).len());
    }
}

/// NICs sit on the guest's buses, and so are named, in the order in which networks were requested;
/// virtual functions, on their expander buses, come last.
#[test]
fn the_first_network_is_the_first_nic_of_the_guest() {
    let topology = host("dgx-a100");
    let mut request = Request::for_gpus(1);
    request.extras.nics = DeviceWish::Count(1);
    let place = plan(&topology, &Occupancy::default(), &request).unwrap();
    for (name, template) in TEMPLATES {
        for (model, pools) in [(None, &[][..]), (Some(NicModel::E1000e), &["first".to_owned()])] {
            let mut guest = guest("ordered", VirtType::Kvm, &request);
            let names = ["first", "second", "third"];
            guest.networks = names.map(NicWish::on).to_vec();
            guest.networks[1].settings.model = model;
            guest.vf_pools = pools.to_vec();
            let xml = render(template, &guest, &place, &topology);
            let devices = xml.root().child("devices").unwrap();
            let of = |nic: Element<'_>| {
                let source = nic.child("source")?.attr("network")?.into_owned();
                let bus = nic.child("address")?.attr("bus")?.into_owned();
                names.contains(&&source[..]).then_some((bus, source))
            };
            let mut seen: Vec<_> = devices.children("interface").filter_map(of).collect();
            assert_eq!(seen.len(), 3, "{name}: {}", xml.text());
            // Their ports are numbered alike, with two digits.
            seen.sort();
            assert_eq!(seen.iter().map(|(_, of)| &of[..]).collect::<Vec<_>>(), names, "{name}");
        }
    }
}

#[test]
fn every_pci_device_has_an_address_of_its_own_on_a_bus_that_is_there() {
    each(|what, _, _, _, xml| check_pci(what, xml));
}

/// Checks the addresses of a document: none twice, each on a controller, bus numbers without
/// overlap.
fn check_pci(what: &str, xml: &DomainXml) {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).unwrap(),
        None => text.parse().unwrap(),
    };
    let field = |element: Element<'_>, name: &str| element.attr(name).map(|text| number(&text));
    let devices = xml.root().child("devices").unwrap();
    let is_pci = |controller: &Element<'_>| controller.attr("type").unwrap() == "pci";
    let controllers: Vec<_> = devices.children("controller").filter(is_pci).collect();
    let buses: BTreeSet<u32> =
        controllers.iter().map(|c| field(*c, "index").unwrap()).chain([0]).collect();
    assert!(
        buses.iter().copied().eq(0..u32::try_from(buses.len()).unwrap()),
        "{what}: gap in {buses:?}"
    );
    let (mut seen, mut below) = (BTreeSet::new(), std::collections::BTreeMap::new());
    for device in devices.elements() {
        let address =
            device.children("address").find(|a| a.attr("type").is_some_and(|t| t == "pci"));
        let Some(address) = address else {
            let named = |names: &[&str]| names.contains(&device.name());
            let virtio = device.attr("model").is_some_and(|model| model.starts_with("virtio"));
            let wants = named(&["hostdev", "interface", "video", "filesystem"]) || virtio;
            assert!(!wants, "{what}: no address for {}", device.xml());
            continue;
        };
        let key = ["bus", "slot", "function"].map(|name| field(address, name).unwrap());
        assert!(buses.contains(&key[0]), "{what}: {} is on bus {}", device.path(), key[0]);
        assert!(seen.insert(key), "{what}: {} is where another is", device.path());
        if device.name() == "controller" && is_pci(&device) {
            below.entry(key[0]).or_insert_with(Vec::new).push(field(device, "index").unwrap());
        }
    }
    // Each bridge takes one bus number; an expander bus and its ports take a run of them.
    let run = |start: u32| {
        let (mut all, mut at) = (vec![start], 0);
        while let Some(bus) = all.get(at) {
            all.extend(below.get(bus).into_iter().flatten());
            at += 1;
        }
        all
    };
    let mut runs: Vec<(u32, usize)> = Vec::new();
    let mut expanders = 0;
    for controller in &controllers {
        if controller.attr("model").unwrap() == "pcie-expander-bus" {
            let numbers = run(field(*controller, "index").unwrap()).len();
            expanders += numbers;
            runs.push((field(controller.child("target").unwrap(), "busNr").unwrap(), numbers));
        }
    }
    runs.push((0, buses.len() - expanders));
    runs.sort_unstable();
    for pair in runs.windows(2) {
        assert!(pair[0].0 as usize + pair[0].1 <= pair[1].0 as usize, "{what}: {runs:?}");
    }
    let (start, length) = runs[runs.len() - 1];
    assert!(start as usize + length <= 256, "{what}: {runs:?}");
}

#[test]
fn a_template_keeps_its_own_settings() {
    each(|what, _, place, _, xml| {
        if what.ends_with("tiny") {
            let os = xml.root().child("os").unwrap();
            assert_eq!(os.child("kernel").unwrap().text(), "/tiny/vmlinuz");
            assert_eq!(xml.root().find("cpu/model").unwrap().text(), "Skylake-Client-v1");
            assert!(xml.root().find("cpu/maxphysaddr").is_none());
        }
        if what.ends_with("crowded") {
            for part in [
                "<shares>512</shares>",
                "<!-- kept -->",
                "<qemu:arg value='-msg'/>",
                "network='other'",
                "00:15:5d:00:00:01",
            ] {
                assert_eq!(
                    xml.text().contains(part),
                    part != "00:15:5d:00:00:01",
                    "{what}: {part}"
                );
            }
            let disks = xml.root().child("devices").unwrap().children("disk").count();
            assert_eq!(disks, 5, "{what}");
            assert!(xml.root().find("devices/hostdev").unwrap().child("address").is_some());
        }
        assert_eq!(xml.root().child("vcpu").unwrap().text(), place.vcpus().to_string());
    });
}

#[test]
fn functions_below_one_bus_for_each_cell_stay_unless_the_new_tree_is_asked_for() {
    let topology = host("dgx-2");
    let request = Request::for_gpus(16);
    let place = plan(&topology, &Occupancy::default(), &request).unwrap();
    let mut old = place.clone();
    let groups = std::mem::take(&mut old.guest_pcie.groups);
    for group in groups {
        match old.guest_pcie.groups.iter_mut().find(|other| other.cell == group.cell) {
            Some(other) => other.devices.extend(group.devices),
            None => old.guest_pcie.groups.push(group),
        }
    }
    let made = render(TEMPLATES[0].1, &guest("old", VirtType::Kvm, &request), &old, &topology);
    let tuned = |stays: bool| {
        let mut xml = made.clone();
        let edits = crate::domain::seat_edits(&xml, &place, &topology, None, stays).unwrap();
        xml.apply_all(&edits).unwrap();
        let buses = xml.text().matches("model='pcie-expander-bus'").count();
        let again = crate::domain::seat_edits(&xml, &place, &topology, None, true).unwrap();
        assert!(!again.iter().any(|edit| xml.would_change(edit)), "a second run changes it");
        (
            xml.root()
                .find("devices")
                .unwrap()
                .children("hostdev")
                .map(|h| h.child("address").unwrap().attr("bus").unwrap().into_owned())
                .collect::<Vec<_>>(),
            buses,
        )
    };
    let before: Vec<_> = made
        .root()
        .child("devices")
        .unwrap()
        .children("hostdev")
        .map(|h| h.child("address").unwrap().attr("bus").unwrap().into_owned())
        .collect();
    assert_eq!(tuned(true), (before, 2));
    assert_eq!(tuned(false).1, 4);
}

#[test]
fn a_dgx_2_guest_carries_what_it_must() {
    let topology = host("dgx-2");
    let request =
        Request { huge_pages: HugePages::Size(PageSize::OneGib), ..Request::for_gpus(16) };
    let place = plan(&topology, &Occupancy::default(), &request).unwrap();
    let guest = guest("whole", VirtType::Kvm, &request);
    let xml = render(TEMPLATES[0].1, &guest, &place, &topology);
    let root = xml.root();
    let at = |path: &str, attr: &str| root.find(path).unwrap().attr(attr).unwrap().into_owned();
    let text = |path: &str| root.find(path).unwrap().text().into_owned();
    let pins: Vec<_> = root.child("cputune").unwrap().children("vcpupin").collect();
    assert_eq!((pins.len(), text("vcpu")), (92, "92".into()));
    assert_eq!(pins[1].attr("cpuset").unwrap(), "48");
    assert_eq!(at("memoryBacking/hugepages/page", "size"), "1048576");
    assert_eq!(at("memoryBacking/allocation", "threads"), "16");
    assert_eq!(at("cpu/maxphysaddr", "mode"), "passthrough");
    assert_eq!(at("cpu", "check"), "none");
    assert_eq!(at("numatune/memnode", "mode"), "strict");
    assert_eq!(at("os/firmware/feature", "enabled"), "no");
    let memory: u64 = root
        .find("cpu/numa")
        .unwrap()
        .children("cell")
        .map(|cell| cell.attr("memory").unwrap().parse::<u64>().unwrap())
        .sum();
    assert_eq!(text("memory"), memory.to_string());
    let devices = root.child("devices").unwrap();
    let models: Vec<_> = devices.children("controller").filter_map(|c| c.attr("model")).collect();
    assert_eq!(models.iter().filter(|model| *model == "pcie-expander-bus").count(), 4);
    let hostdevs: Vec<_> = devices.children("hostdev").collect();
    assert_eq!(hostdevs.len(), 28);
    assert!(hostdevs.iter().all(|hostdev| hostdev.attr("managed").unwrap() == "no"));
    assert_eq!(at("devices/hostdev/rom", "bar"), "off");
    assert_eq!(at("devices/disk/driver", "queues"), "64");
    assert_eq!(at("devices/disk/driver", "iothread"), "1");
    assert_eq!(at("devices/interface/driver", "queues"), "8");
    assert_eq!(at("devices/interface/mac", "address"), mac("whole", 0));
    assert_eq!(at("devices/memballoon", "model"), "none");
    assert_eq!(at("devices/channel/target", "name"), "org.qemu.guest_agent.0");
}

#[test]
fn nics_and_drives_have_root_ports_beside_their_gpu() {
    let topology = host("dgx-h100");
    let mut request = Request::for_gpus(1);
    request.extras.nics = DeviceWish::Count(1);
    request.extras.nvmes = DeviceWish::Count(1);
    let place = plan(&topology, &Occupancy::default(), &request).unwrap();
    let xml = render(TEMPLATES[0].1, &guest("beside", VirtType::Kvm, &request), &place, &topology);
    let devices = xml.root().child("devices").unwrap();
    let hostdevs: Vec<_> = devices.children("hostdev").collect();
    let bus = |at: usize| hostdevs[at].child("address").unwrap().attr("bus").unwrap();
    let port = |at: usize| {
        let own = |c: &Element<'_>| {
            c.attr("index")
                .is_some_and(|i| bus(at) == format!("0x{:02x}", i.parse::<u8>().unwrap()))
        };
        let port = devices.children("controller").find(own).unwrap();
        assert_eq!(port.attr("model").unwrap(), "pcie-root-port");
        port.child("address").unwrap().attr("bus").unwrap().into_owned()
    };
    assert_eq!(hostdevs.len(), 3);
    let bridge = |at: usize| topology.host_bridge(place.devices[at]);
    for at in [1, 2] {
        assert_eq!(port(at) == port(0), bridge(at) == bridge(0), "{at}: one bus for each bridge");
    }
    let managed = |at: usize| hostdevs[at].attr("managed").unwrap().into_owned();
    // libvirt binds devices that are not part of an NVLink board.
    assert_eq!([managed(0), managed(1), managed(2)], ["no", "yes", "yes"]);
}

#[test]
fn guests_differ_by_host_and_kind() {
    let (intel, amd) = (host("dgx-2"), host("dgx-a100"));
    let request = Request::for_gpus(1);
    let of = |topology: &Topology, virt| {
        let place = plan(topology, &Occupancy::default(), &request).unwrap();
        render(TEMPLATES[0].1, &guest("a", virt, &request), &place, topology)
    };
    assert!(of(&amd, VirtType::Kvm).text().contains("name='topoext'"));
    assert!(!of(&intel, VirtType::Kvm).text().contains("topoext"));
    // Eight L3 caches on two packages, shown by dies, on KVM.
    let whole = Request::for_gpus(8);
    let place = plan(&amd, &Occupancy::default(), &whole).unwrap();
    let cpu = |virt| {
        let xml = render(TEMPLATES[0].1, &guest("a", virt, &whole), &place, &amd);
        xml.root().child("cpu").unwrap().xml().to_owned()
    };
    assert!(cpu(VirtType::Kvm).contains("sockets='2' dies='4' cores='15' threads='2'"));
    assert!(cpu(VirtType::Kvm).contains("<cache mode='passthrough'/>"));
    assert!(cpu(VirtType::Qemu).contains("sockets='2' cores='60' threads='2'"));
    assert!(!cpu(VirtType::Qemu).contains("<cache"));
    let emulated = of(&intel, VirtType::Qemu);
    for absent in ["vhost", "maxphysaddr", "host-passthrough", "topoext"] {
        assert!(!emulated.text().contains(absent), "{absent}");
    }
}

#[test]
fn impossible_guests_are_refused_with_the_place() {
    let topology = host("dgx-2");
    let request = Request::for_gpus(1);
    let place = plan(&topology, &Occupancy::default(), &request).unwrap();
    let guest = guest("a", VirtType::Kvm, &request);
    let error = |xml: &str, place: &Placement| {
        edits(&DomainXml::parse(xml).unwrap(), &guest, place, &topology).unwrap_err().to_string()
    };
    let pc = "<domain><os><type machine='pc-i440fx-9.0'>hvm</type></os></domain>";
    assert!(error(pc, &place).contains("os/type/@machine"));
    let crowd = Placement {
        vcpu_pins: vec![Default::default(); 256],
        topology: GuestTopology { sockets: 2, dies: 1, cores: 64, threads: 2 },
        ..place.clone()
    };
    let other = TEMPLATES[0].1.replacen("</devices>", "<iommu model='virtio'/></devices>", 1);
    assert!(error(&other, &crowd).contains("iommu"));
    let many = edits(&DomainXml::parse(TEMPLATES[0].1).unwrap(), &guest, &crowd, &topology);
    let remaps = Setting::RemapInterrupts { translates_dma: false };
    assert!(many.unwrap().contains(&DomainEdit::Set { setting: remaps }));
    let arm = TEMPLATES[0].1.replace("x86_64", "aarch64");
    assert!(error(&arm, &place).contains("os/type/@arch"));
    let numberless = "<domain><os><type machine='q35'>hvm</type></os><devices><controller \
                      type='pci' model='pcie-root-port'/></devices></domain>";
    assert!(error(numberless, &place).contains("domain/devices/controller"));
    let mut broken = place.clone();
    broken.vcpu_pins.pop();
    assert!(error(TEMPLATES[0].1, &broken).contains("vCPUs"));
    broken = place.clone();
    broken.cells.clear();
    assert!(error(TEMPLATES[0].1, &broken).contains("cell"));
    let full: String = (1..=255)
        .map(|i| format!("<controller type='pci' index='{i}' model='pcie-root-port'/>"))
        .collect();
    let full = format!(
        "<domain><os><type machine='q35'>hvm</type></os><devices>{full}</devices></domain>"
    );
    assert!(error(&full, &place).contains("domain/devices"));
}

#[test]
fn free_root_ports_are_made_once_and_on_the_root_bus() {
    for (name, gpus) in [("dgx-2", 0), ("dgx-2", 2), ("dual-socket", 1)] {
        let topology = host(name);
        let request = Request::for_gpus(gpus);
        let place = plan(&topology, &Occupancy::default(), &request).unwrap();
        for (template, text) in TEMPLATES {
            let what = format!("{name}, {gpus}, {template}");
            let mut guest = guest("a", VirtType::Kvm, &request);
            let free = |xml: &DomainXml| xml.ports_without(&[]).unwrap().len();
            let without = render(text, &guest, &place, &topology);
            let had = free(&DomainXml::parse(text).unwrap());
            guest.spare_ports = 3;
            let xml = render(text, &guest, &place, &topology);
            assert!(free(&xml) >= 3 && free(&xml) >= free(&without), "{what}");
            assert!(free(&xml) <= 3 + free(&without).max(had), "{what}");
            let again = edits(&xml, &guest, &place, &topology).unwrap();
            assert!(again.is_empty(), "{what}: {again:?}");
        }
    }
}
