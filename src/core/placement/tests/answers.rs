//! The planner's results, as numbers: the effect of a change on the recorded hosts shows in the
//! diff of `tests/golden/plan`, which `GPUVM_RENEW=1` renews. Texts are left out, so that they can
//! be changed freely.

use crate::golden::{compare, numbers};
use crate::placement::*;
use crate::request::Request;
use crate::topology::Topology;
use crate::topology::file;
use serde_json::{Value, json};
use std::fmt::Write;

/// Recorded hosts with the expected results.
const HOSTS: [(&str, &str, &str); 5] = [
    (
        "dgx-1",
        include_str!("../../../../topologies/dgx-1.json"),
        include_str!("../../../../tests/golden/plan/dgx-1.txt"),
    ),
    (
        "dgx-2",
        include_str!("../../../../topologies/dgx-2.json"),
        include_str!("../../../../tests/golden/plan/dgx-2.txt"),
    ),
    (
        "dgx-a100",
        include_str!("../../../../topologies/dgx-a100.json"),
        include_str!("../../../../tests/golden/plan/dgx-a100.txt"),
    ),
    (
        "dgx-h100",
        include_str!("../../../../topologies/dgx-h100.json"),
        include_str!("../../../../tests/golden/plan/dgx-h100.txt"),
    ),
    (
        "dual-socket",
        include_str!("../../../../topologies/dual-socket.json"),
        include_str!("../../../../tests/golden/plan/dual-socket.txt"),
    ),
];

/// The requests: their fields that differ from the defaults.
const ASKED: &[&str] = &[
    r#"{"gpus":{"count":0}}"#,
    r#"{"gpus":{"count":1}}"#,
    r#"{"gpus":{"count":2}}"#,
    r#"{"gpus":{"count":3}}"#,
    r#"{"gpus":{"count":4}}"#,
    r#"{"gpus":{"count":8}}"#,
    r#"{"gpus":{"count":16}}"#,
    r#"{"gpus":{"count":2},"profile":"nvidia-vm"}"#,
    r#"{"gpus":{"count":4},"profile":"nvidia-vm","huge_pages":"1G"}"#,
    r#"{"gpus":{"count":1},"pins":"none"}"#,
    r#"{"gpus":{"count":2},"pins":"none","vcpus":5,"threads":1,"cells":{"count":2}}"#,
    r#"{"gpus":{"count":2},"pins":"thread","vcpus":7}"#,
    r#"{"gpus":{"count":1},"vcpus":3,"memory_kib":8388608}"#,
    r#"{"gpus":{"count":1},"vcpus":34}"#,
    r#"{"gpus":{"count":2},"vcpus":300}"#,
    r#"{"gpus":{"count":1},"threads":1}"#,
    r#"{"gpus":{"count":1},"memory_kib":943718400}"#,
    r#"{"gpus":{"count":2},"memory_kib":9437184000}"#,
    r#"{"gpus":{"count":2},"huge_pages":"2M"}"#,
    r#"{"gpus":{"count":1},"huge_pages":"1G","memory_kib":67108864}"#,
    r#"{"gpus":{"count":4},"cells":{"count":2}}"#,
    r#"{"gpus":{"count":1},"extras":{"nics":{"count":1},"nvmes":{"count":1}}}"#,
    r#"{"gpus":{"count":2},"extras":{"nics":{"count":2},"nic_near":"switch"}}"#,
    r#"{"gpus":{"count":2},"extras":{"vfs":{"count":3},"nvmes":{"count":9},"nvme_near":"any"}}"#,
    r#"{"gpus":{"count":0},"vcpus":2,"extras":{"nics":{"count":1}}}"#,
    r#"{"gpus":{"count":1},"reserve":{"cores":3,"memory_kib":104857600}}"#,
    r#"{"gpus":{"count":2},"policy":"spread"}"#,
    r#"{"gpus":{"count":2},"prefer":"nic","extras":{"nics":{"count":1}}}"#,
    r#"{"gpus":{"count":3},"prefer":"package","allow":{"remote":true,"split":true}}"#,
    r#"{"gpus":{"count":1},"vcpus":60,"allow":{"remote":true}}"#,
    r#"{"gpus":{"run":{"first":2,"count":2}},"p2p_clique":true}"#,
    r#"{"gpus":{"indexes":[0,1,5]}}"#,
    r#"{"gpus":{"indexes":[7,6,3,0]},"allow":{"split":true},"p2p_clique":true}"#,
    r#"{"gpus":{"count":1},"gpu_model":"H100"}"#,
];

fn request(fields: &Value) -> Request {
    let mut request = serde_json::to_value(Request::for_gpus(0)).unwrap();
    for (name, value) in fields.as_object().unwrap() {
        request[name] = value.clone();
    }
    serde_json::from_value(request).unwrap()
}

/// The fields of a request that differ from the defaults.
fn fields(request: &Request) -> Value {
    let usual = serde_json::to_value(Request::for_gpus(0)).unwrap();
    let mut fields = serde_json::to_value(request).unwrap();
    fields.as_object_mut().unwrap().retain(|name, value| usual.get(name) != Some(value));
    fields
}

fn row<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    items
        .into_iter()
        .map(|item| item.to_string())
        .collect::<Vec<_>>()
        .join(" ")
        .replace("0000:", "")
}

fn placed(host: &Topology, held: &Occupancy, place: &Placement) -> String {
    let mut text = String::new();
    let partition = place.partition.map_or(String::new(), |id| format!("{id} of "));
    let states = device_states(host, held, &place.devices);
    let odd = states.iter().filter(|(state, _)| *state != DeviceState::Free).count();
    writeln!(text, "  {partition}{} ({odd} not free)", row(&place.devices)).unwrap();
    let GuestTopology { sockets, dies, cores, threads } = place.topology;
    let io = row(&place.iothread_pins);
    let pages = place.node_pages.iter().map(|of| numbers(&format!("{of:?}")));
    writeln!(
        text,
        "  {sockets}x{dies}x{cores}x{threads} emulator {} io {io} pages {:?} {}",
        place.emulator_pin,
        place.huge_pages,
        pages.collect::<Vec<_>>().join(", ")
    )
    .unwrap();
    for cell in &place.cells {
        let pins = &place.vcpu_pins[cell.vcpus.start as usize..cell.vcpus.end as usize];
        let (nodes, memory) = (&cell.host_nodes, cell.memory_kib);
        writeln!(text, "  cell on {nodes}: {memory}, {}", row(pins)).unwrap();
    }
    let groups = place.guest_pcie.groups.iter();
    let groups = groups.map(|g| format!("{:?}: {}", g.cell, row(&g.devices)));
    let links = place.guest_pcie.links.iter().map(|l| format!("{}x{}", l.speed_dgts, l.width));
    let cliques = place.guest_pcie.cliques.iter().map(row);
    let (groups, cliques) = (groups.collect::<Vec<_>>(), cliques.collect::<Vec<_>>());
    writeln!(text, "  {} | {} | {}", groups.join(", "), row(links), cliques.join(", ")).unwrap();
    let window =
        window(place, host).map(|window| window.map(|w| (w.bytes >> 20, w.explicit_mib())));
    let shared = place.shared_fabric().is_some();
    writeln!(text, "  window {} shared {shared}", numbers(&format!("{window:?}"))).unwrap();
    let why = window_reason(place, host);
    let reasons = place.reasons.iter().chain(&why).map(|reason| {
        let mark = if reason.compromise { "!" } else { "" };
        format!("{mark}{} {}", reason.choice, numbers(&reason.because.to_string()))
    });
    writeln!(text, "  {}", reasons.collect::<Vec<_>>().join("; ")).unwrap();
    text
}

/// The answer to a request, as lines.
fn answer(host: &Topology, held: &Occupancy, request: &Request) -> String {
    let facts = |what: &str, hint: &str| {
        let near = nearest(host, held, request);
        let near = near.iter().map(|request| format!("  near {}\n", fields(request)));
        format!("  {} hint {}\n{}", numbers(what), numbers(hint), near.collect::<String>())
    };
    match plan(host, held, request) {
        Ok(place) => placed(host, held, &place),
        Err(PlanError::Request(error)) => format!("  request {error}\n"),
        Err(PlanError::Impossible { what, hint }) => {
            format!("  impossible\n{}", facts(&what, &hint))
        }
        Err(PlanError::Taken { what, holders, hint }) => {
            format!("  taken by {}\n{}", numbers(&holders.join(", ")), facts(&what, &hint))
        }
    }
}

/// Occupancies: an empty host, a few guests, and a fragmented host with many exclusions.
fn occupied(host: &Topology) -> Vec<(&'static str, Occupancy)> {
    let add = |held: &mut Occupancy, fields: Value| {
        let Ok(place) = plan(host, held, &request(&fields)) else { return };
        let name = format!("g{}", held.domains.len());
        let active = held.domains.len().is_multiple_of(2);
        held.domains.push(Held { active, ..place.held(&name) });
    };
    let (mut few, mut pieces) = (Occupancy::default(), Occupancy::default());
    add(&mut few, json!({"gpus": {"count": 2}, "extras": {"nics": {"count": 1}}}));
    add(&mut few, json!({"gpus": {"count": 0}, "pins": "none", "memory_kib": 104_857_600}));
    add(&mut few, json!({"gpus": {"count": 1}, "vcpus": 3}));
    for gpu in 0..host.gpus().count() {
        add(&mut pieces, json!({"gpus": {"indexes": [gpu]}, "memory_kib": 16_777_216}));
    }
    let mut number = 0;
    pieces.domains.retain(|_| {
        number += 1;
        number % 3 != 0
    });
    let last = host.gpus().last().filter(|gpu| gpu.bdf.bus() > 0x80);
    pieces.excluded = last.map(|gpu| Exclusion::new(gpu.bdf, "broken")).into_iter().collect();
    vec![("empty", Occupancy::default()), ("few guests", few), ("in pieces", pieces)]
}

fn answers(host: &Topology) -> String {
    let mut text = String::new();
    for (name, held) in occupied(host) {
        writeln!(text, "== {name}: {}", row(held.domains.iter().map(|of| row(&of.devices))))
            .unwrap();
        for pages in ["null", "\"2M\""] {
            let like =
                request(&serde_json::from_str(&format!("{{\"huge_pages\":{pages}}}")).unwrap());
            let capacity = serde_json::to_value(capacity(host, &held, &like, &[])).unwrap();
            writeln!(text, "capacity {pages}: {}", counted(&capacity)).unwrap();
        }
        for asked in ASKED {
            let fields: Value = serde_json::from_str(asked).unwrap();
            writeln!(text, "{asked}").unwrap();
            text += &answer(host, &held, &request(&fields));
        }
    }
    text
}

/// A document with its texts reduced to numbers.
fn counted(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("{name} {}", counted(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => {
            format!("[{}]", items.iter().map(counted).collect::<Vec<_>>().join(", "))
        }
        Value::String(text) => numbers(text),
        other => other.to_string(),
    }
}

#[test]
fn the_planner_answers_as_it_did() {
    for (name, host, expected) in HOSTS {
        compare(&format!("plan/{name}.txt"), expected, &answers(&file::from_json(host).unwrap()));
    }
}
