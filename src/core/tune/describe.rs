//! Short descriptions of a domain's settings, for users. Judges nothing.

use super::ItemName;
use super::kinds::Kinds;
use crate::bdf::Bdf;
use crate::domain::claims::{Cell, Claims, Pin};
use crate::domain::read::memory;
use crate::domain::setting::AGENT;
use crate::domain::{DomainXml, Element};
use crate::placement::ExtraKind;
use crate::request::{
    Allow, CellWish, GpuWish, HugePages, P2pWish, PinPolicy, Request, Spelled as _,
};
use crate::topology::Topology;
use crate::words::{count, nouns};

/// How many values are shown before the rest is only counted.
const MOST: usize = 8;

/// Describes a domain's record alone.
fn recorded(item: ItemName, xml: &DomainXml) -> String {
    let request = xml.record().ok().flatten().map(|record| record.request);
    match item {
        ItemName::Movable => either(request.is_some_and(|request| request.movable), "on", "off"),
        ItemName::P2p => request.map_or(P2pWish::Off, |request| request.p2p).word().to_owned(),
        ItemName::Allow => request.map_or(Allow::default(), |request| request.allow).to_string(),
        _ => request.map_or("nothing".into(), |request| wish(&request)),
    }
}

/// Describes a setting of a domain.
pub(super) fn of(item: ItemName, xml: &DomainXml, topology: &Topology) -> String {
    let claims = Claims::read(xml);
    match item {
        ItemName::Vcpus => vcpus(&claims),
        ItemName::Memory => memory_words(xml, &claims),
        ItemName::Gpus | ItemName::Nic | ItemName::Vf | ItemName::Nvme => {
            functions(item, xml, &claims, topology)
        }
        ItemName::Vgpu => vgpus(xml, &claims, topology),
        ItemName::Pins => {
            let pins = claims.vcpu_pins.iter().map(|pin| pin.cpuset.value.to_string());
            listed(pins.collect(), ",", "not pinned")
        }
        ItemName::Topology => guest_topology(xml),
        ItemName::Emulator => {
            let pin = claims.emulator_pin.as_ref();
            pin.map_or("not pinned".into(), |pin| pin.value.to_string())
        }
        ItemName::Iothreads => iothreads(xml, &claims),
        ItemName::IothreadPins => {
            let pin = |pin: &Pin<'_>| format!("{} on {}", pin.of.value, pin.cpuset.value);
            listed(claims.iothread_pins.iter().map(pin).collect(), ", ", "not pinned")
        }
        ItemName::HugePages => huge_pages(&claims),
        ItemName::Fill => fill(xml),
        ItemName::Cells => cells(&claims),
        ItemName::MemoryNodes => memory_nodes(&claims),
        ItemName::MemoryRounding => format!("{} KiB", claims.memory.value.kib()),
        ItemName::Convert => of_driver(devices(xml, "disk"), "type"),
        ItemName::ConvertDevices => {
            let disks = devices(xml, "disk").map(on_bus);
            let all = disks.chain(devices(xml, "interface").map(of_model));
            listed(all.collect(), ", ", "no disk and no NIC")
        }
        ItemName::DiskCache => of_driver(devices(xml, "disk"), "cache"),
        ItemName::DiskIo => of_driver(devices(xml, "disk"), "io"),
        ItemName::DiskQueues => of_driver(devices(xml, "disk"), "queues"),
        ItemName::NetQueues => of_nics(xml, "driver", "queues", "1"),
        ItemName::Inbound => rates(devices(xml, "interface"), "inbound"),
        ItemName::Outbound => rates(devices(xml, "interface"), "outbound"),
        ItemName::Mtu => of_nics(xml, "mtu", "size", "the network's"),
        ItemName::Network => listed(devices(xml, "interface").map(on).collect(), "; ", "no NIC"),
        ItemName::Agent => either(has_agent(xml), "a channel", "no channel"),
        ItemName::Pcie => pcie(xml, &claims),
        ItemName::Iommufd => iommufd(xml),
        ItemName::Window => window(xml),
        ItemName::Maxphysaddr => address_bits(xml),
        ItemName::KvmHints => {
            let hint = attr_at(xml, "features/kvm/hint-dedicated", "state");
            either(hint.is_some_and(|state| state == "on"), "dedicated", "none")
        }
        ItemName::CpuCache => {
            attr_at(xml, "cpu/cache", "mode").unwrap_or_else(|| "QEMU's default".into())
        }
        ItemName::Invtsc => {
            let seen = attr_at(xml, "cpu", "migratable").is_some_and(|migrates| migrates == "off");
            either(seen, "seen by the guest", "hidden")
        }
        ItemName::Balloon => balloon(xml),
        ItemName::SerialLog => serial_log(xml),
        ItemName::Movable | ItemName::P2p | ItemName::Allow | ItemName::Request => {
            recorded(item, xml)
        }
    }
}

fn either(is: bool, yes: &str, no: &str) -> String {
    if is { yes } else { no }.to_owned()
}

fn devices<'t>(xml: &'t DomainXml, name: &'static str) -> impl Iterator<Item = Element<'t>> {
    let devices = xml.root().child("devices");
    devices.into_iter().flat_map(move |devices| devices.children(name))
}

/// An attribute of the element at a path.
fn attr_at(xml: &DomainXml, path: &str, name: &str) -> Option<String> {
    Some(xml.root().find(path)?.attr(name)?.into_owned())
}

fn vcpus(claims: &Claims<'_>) -> String {
    match (claims.plugged.len(), claims.vcpus.value) {
        (some, all) if some < all as usize => format!("{some} of {all}"),
        (_, all) => all.to_string(),
    }
}

fn memory_words(xml: &DomainXml, claims: &Claims<'_>) -> String {
    let all = claims.memory.value;
    let size = xml.root().child("currentMemory");
    let size = size.and_then(|size| memory(&size.text(), size.attr("unit").as_deref()).ok());
    size.filter(|size| *size < all)
        .map_or_else(|| all.to_string(), |size| format!("{size} of {all}"))
}

/// The functions of one kind; one that the host does not have counts as one of the board.
fn functions(item: ItemName, xml: &DomainXml, claims: &Claims<'_>, topology: &Topology) -> String {
    let kinds = Kinds::new(topology, xml);
    let of = ExtraKind::ALL.into_iter().find(|kind| ItemName::from(*kind) == item);
    let all = claims.passed.iter().map(|passed| passed.bdf.value);
    let all = all.filter(|bdf: &Bdf| kinds.extra(*bdf) == of && !kinds.is_vgpu(*bdf));
    listed(all.map(|bdf| bdf.to_string()).collect(), ", ", "none")
}

/// The functions that are vGPUs, and mediated devices.
fn vgpus(xml: &DomainXml, claims: &Claims<'_>, topology: &Topology) -> String {
    let kinds = Kinds::new(topology, xml);
    let all = claims.passed.iter().map(|passed| passed.bdf.value);
    let all = all.filter(|bdf| kinds.is_vgpu(*bdf)).map(|bdf| bdf.to_string());
    let all = all.chain(xml.mediated());
    listed(all.collect(), ", ", "none")
}

fn guest_topology(xml: &DomainXml) -> String {
    xml.root().find("cpu/topology").map_or("none".into(), |topology| {
        let part = |name| topology.attr(name).unwrap_or_else(|| "1".into()).into_owned();
        let dies = match &*part("dies") {
            "1" => String::new(),
            dies => format!("{dies}x"),
        };
        format!("{}x{dies}{}x{}", part("sockets"), part("cores"), part("threads"))
    })
}

fn iothreads(xml: &DomainXml, claims: &Claims<'_>) -> String {
    let serves = devices(xml, "disk").filter_map(|disk| {
        let threads = crate::domain::disks::named_iothreads(disk);
        let threads: Vec<String> = threads.iter().map(ToString::to_string).collect();
        (!threads.is_empty()).then(|| format!("{} by {}", target(disk), threads.join("+")))
    });
    let number = claims.iothreads.len();
    let served = listed(serves.collect(), ", ", "no disk served");
    if number == 0 { "none".into() } else { format!("{number}: {served}") }
}

fn huge_pages(claims: &Claims<'_>) -> String {
    let Some(pages) = &claims.huge_pages else { return "normal pages".into() };
    let sizes = pages.iter().map(|page| page.size.value.to_string()).collect();
    listed(sizes, ", ", "the host's default size")
}

fn fill(xml: &DomainXml) -> String {
    xml.root().find("memoryBacking/allocation").map_or("when used".into(), |fill| {
        let threads = fill.attr("threads").unwrap_or_else(|| "1".into());
        let noun = nouns(threads.parse::<u64>().unwrap_or(0), "thread");
        format!("before start by {threads} {noun}")
    })
}

fn cells(claims: &Claims<'_>) -> String {
    let cell = |cell: &Cell<'_>| {
        let vcpus = cell.vcpus.as_ref().map_or("no vCPU".into(), |set| set.value.to_string());
        format!("{vcpus} with {} KiB", cell.memory.value.kib())
    };
    listed(claims.cells.iter().map(cell).collect(), "; ", "none")
}

fn memory_nodes(claims: &Claims<'_>) -> String {
    let nodes = claims.bindings.iter().map(|b| match &b.cell {
        None => format!("all {} on {}", b.mode, b.nodes.value),
        Some(cell) => format!("cell {} {} on {}", cell.value, b.mode, b.nodes.value),
    });
    listed(nodes.collect(), ", ", "not bound")
}

/// An attribute of a child of each NIC; `none`: where there is none.
fn of_nics(xml: &DomainXml, child: &str, name: &str, none: &str) -> String {
    let value = |nic: Element<'_>| Some(nic.child(child)?.attr(name)?.into_owned());
    let values = devices(xml, "interface").map(|nic| value(nic).unwrap_or_else(|| none.to_owned()));
    listed(values.collect(), ", ", "no NIC")
}

fn pcie(xml: &DomainXml, claims: &Claims<'_>) -> String {
    let is_expander = |controller: &Element<'_>| {
        controller.attr("model").is_some_and(|model| model == "pcie-expander-bus")
    };
    let buses = devices(xml, "controller").filter(is_expander).count();
    let some = |number: usize, noun: &str, more: &str| match number {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}{more}"),
    };
    let functions = some(claims.passed.len(), "function", "s");
    format!("{functions} below {}", some(buses, "expander bus", "es"))
}

fn iommufd(xml: &DomainXml) -> String {
    match (xml.is_by_iommufd(), xml.devices_with_iommufd()) {
        (true, 0) => "on".into(),
        (false, 0) => "off".into(),
        _ => "by device".into(),
    }
}

fn balloon(xml: &DomainXml) -> String {
    let model = devices(xml, "memballoon").next().and_then(|balloon| balloon.attr("model"));
    model.unwrap_or_else(|| "libvirt's default".into()).into_owned()
}

fn serial_log(xml: &DomainXml) -> String {
    let log = devices(xml, "serial").find_map(|serial| serial.child("log")?.attr("file"));
    log.map_or("none".into(), |file| file.into_owned())
}

fn window(xml: &DomainXml) -> String {
    let mut holes = devices(xml, "controller").filter_map(|c| c.child("pcihole64"));
    holes.next().map_or("QEMU's default".into(), |hole| {
        format!("{} {}", hole.text(), hole.attr("unit").unwrap_or_else(|| "KiB".into()))
    })
}

fn address_bits(xml: &DomainXml) -> String {
    let cpu = xml.root().child("cpu");
    let mode = cpu.and_then(|cpu| cpu.attr("mode")).unwrap_or_else(|| "custom".into());
    let bits = cpu.and_then(|cpu| cpu.child("maxphysaddr"));
    let bits = bits.map(|bits| bits.attr("bits").or_else(|| bits.attr("mode")));
    let bits = bits.flatten().unwrap_or_else(|| "default".into());
    format!("CPU {mode}, bits {bits}")
}

/// Whether a domain has the channel of a guest's agent.
pub(super) fn has_agent(xml: &DomainXml) -> bool {
    let devices = xml.root().child("devices");
    let mut channels = devices.into_iter().flat_map(|devices| devices.children("channel"));
    let name = |channel: Element<'_>| Some(channel.child("target")?.attr("name")?.into_owned());
    channels.any(|channel| name(channel).is_some_and(|name| name == AGENT))
}

/// Describes the parts of a request that settings may change.
fn wish(request: &Request) -> String {
    let pins = match request.pins {
        PinPolicy::Auto => "pins by core where cores are free",
        PinPolicy::Core => "pins by core",
        PinPolicy::Thread => "pins by thread",
        PinPolicy::None => "no pins",
    };
    let pages = match request.huge_pages {
        HugePages::Off => None,
        HugePages::Auto => Some("pages as they are free".to_owned()),
        HugePages::Size(page) => Some(format!("pages of {}", page.size())),
    };
    let cells = match request.cells {
        CellWish::Auto => "cells by node".to_owned(),
        CellWish::Count(1) => "1 cell".to_owned(),
        CellWish::Count(number) => count(number, "cell"),
    };
    let threads = request.threads.map(|threads| count(threads, "thread of a core"));
    let vcpus = request.vcpus.map(|vcpus| match request.vcpus_at_start {
        Some(start) => format!("{start} of {}", count(vcpus, "vCPU")),
        None => count(vcpus, "vCPU"),
    });
    let memory = request.memory_kib.map(|memory| memory.to_string());
    let gpus = request.gpus.number();
    let vgpu = request.vgpu.as_ref().map(|wish| format!("vGPU {wish}"));
    let named = |names: Vec<String>| format!("{} {}", nouns(names.len(), "GPU"), names.join(", "));
    let gpus = (gpus > 0).then(|| match &request.gpus {
        GpuWish::Count(number) => count(*number, "GPU"),
        GpuWish::Run { first, count: run } => format!("{} from {first} on", count(*run, "GPU")),
        GpuWish::Indexes(indexes) => named(indexes.iter().map(u32::to_string).collect()),
        GpuWish::Exact(gpus) => named(gpus.iter().map(ToString::to_string).collect()),
    });
    let pages = pages.unwrap_or_else(|| "normal pages".into());
    let allow = request.allow;
    let allow = (allow != Allow::default()).then(|| format!("allow {allow}"));
    let (pins, pages, cells) = (Some(pins.to_owned()), Some(pages), Some(cells));
    let all = [gpus, vgpu, pins, pages, cells, threads, vcpus, memory, allow];
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The name of a disk in the guest.
fn target(disk: Element<'_>) -> String {
    disk.child("target").and_then(|target| target.attr("dev")).unwrap_or_default().into_owned()
}

/// An attribute of each disk's driver.
fn of_driver<'t>(disks: impl Iterator<Item = Element<'t>>, name: &str) -> String {
    let value = |disk: Element<'t>| {
        let value = disk.child("driver").and_then(|driver| driver.attr(name));
        format!("{} {}", target(disk), value.unwrap_or_else(|| "default".into()))
    };
    listed(disks.map(value).collect(), ", ", "no disk")
}

/// Describes the connection of a NIC, and its settings.
fn on(nic: Element<'_>) -> String {
    let attr = |child: &str, name: &str| Some(nic.child(child)?.attr(name)?.into_owned());
    let source = ["network", "bridge", "dev"].into_iter().find_map(|name| attr("source", name));
    let place = source.unwrap_or_else(|| nic.attr("type").unwrap_or_default().into_owned());
    let rate = |name: &str| nic.child("bandwidth")?.child(name)?.attr("average");
    let vlan = || nic.child("vlan")?.child("tag")?.attr("id");
    let said = [
        attr("mac", "address").map(|mac| format!("mac {mac}")),
        attr("model", "type").map(|model| format!("model {model}")),
        attr("driver", "queues").map(|queues| format!("{queues} queues")),
        attr("mtu", "size").map(|mtu| format!("mtu {mtu}")),
        rate("inbound").map(|rate| format!("inbound {rate} kB/s")),
        rate("outbound").map(|rate| format!("outbound {rate} kB/s")),
        vlan().map(|id| format!("vlan {id}")),
    ];
    let all = std::iter::once(place).chain(said.into_iter().flatten());
    all.collect::<Vec<_>>().join(" ")
}

fn rates<'t>(nics: impl Iterator<Item = Element<'t>>, name: &str) -> String {
    let rate = |nic: Element<'t>| {
        let rate = nic.child("bandwidth").and_then(|rates| rates.child(name));
        rate.and_then(|rate| rate.attr("average")).map_or("free".into(), |a| format!("{a} kB/s"))
    };
    listed(nics.map(rate).collect(), ", ", "no NIC")
}

/// Lists values, shortened if there are many.
fn listed(values: Vec<String>, between: &str, none: &str) -> String {
    match values.len() {
        0 => none.to_owned(),
        number if number > MOST => {
            format!("{}{between}... {number} in all", values[..MOST].join(between))
        }
        _ => values.join(between),
    }
}

fn on_bus(disk: Element<'_>) -> String {
    let of = |name| disk.child("target").and_then(|target| target.attr(name));
    let name = of("dev").unwrap_or_default();
    match of("bus") {
        Some(bus) => format!("{name} on {bus}"),
        None => name.into_owned(),
    }
}

fn of_model(nic: Element<'_>) -> String {
    let model = nic.child("model").and_then(|model| model.attr("type"));
    format!("{} NIC", model.as_deref().unwrap_or("default"))
}
