//! The choice of GPUs against its definition ([`crate::placement::score`]), implemented a second
//! time and tried set by set.

use super::testhost::{HostSpec, device};
use super::{dgx2, plan_on, refusal, run, says};
use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use crate::memsize::MemSize;
use crate::placement::*;
use crate::request::{Allow, DeviceWish, Extras, GpuWish, Policy, Prefer};
use crate::request::{PinPolicy, Request};
use crate::share::cases;
use crate::topology::Topology;
use crate::topology::{FabricModel, NvLink};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A PCIe switch, or a root port, with its GPUs: its node, how many GPUs, whether it is a switch.
type Port = (usize, usize, bool);

/// A host of up to eight GPUs and its occupancy.
#[derive(Debug, Clone)]
struct Case {
    /// Nodes; two make a package.
    nodes: usize,
    ports: Vec<Port>,
    links: Vec<(usize, usize, u32)>,
    /// Two GPUs of one IOMMU group.
    twins: Option<(usize, usize)>,
    /// The guest that holds each GPU, of three; 0: none.
    owners: Vec<usize>,
    number: usize,
    spread: bool,
    /// The model of each GPU, of three.
    models: Vec<u16>,
    /// The model that is wanted, if one is.
    model: Option<u16>,
    /// Requested number of NICs; there is one below every second port that is a switch.
    nics: usize,
    prefer: Prefer,
}

/// Device ids of three models, the first of one that no GPU has alone.
const MODELS: [u16; 3] = [0x20b0, 0x2684, 0x2b85];

impl Case {
    fn nic_ports(&self) -> Vec<usize> {
        let switches = self.ports.iter().enumerate().filter(|(_, port)| port.2);
        switches.map(|(at, _)| at).step_by(2).collect()
    }

    /// NICs that are requested and exist.
    fn wanted_nics(&self) -> usize {
        self.nics.min(self.nic_ports().len())
    }

    /// How far the nearest choice of NICs is from a set, by ports, nodes and packages: of the
    /// farthest GPU, of all, and of the NICs themselves.
    fn far(&self, set: &BTreeSet<usize>) -> [i64; 3] {
        let gpus = self.gpus();
        let node = |port: usize| self.ports[port].0;
        let steps = |gpu: &usize, nic: &usize| match (gpus[*gpu], *nic) {
            (gpu, nic) if gpu == nic => 0,
            (gpu, nic) if self.root(gpu) == self.root(nic) => 2,
            (gpu, nic) if node(gpu) == node(nic) => 3,
            (gpu, nic) if node(gpu) / 2 == node(nic) / 2 => 4,
            _ => 5,
        };
        let all = self.nic_ports();
        let choices = (0..1u32 << all.len()).map(|bits| {
            let taken = (0..all.len()).filter(|at| bits >> at & 1 == 1).map(|at| all[at]);
            taken.collect::<Vec<usize>>()
        });
        let cost = |nics: Vec<usize>| {
            let near = |gpu| nics.iter().map(|nic| steps(gpu, nic)).min().unwrap_or(0);
            let own = |nic: &usize| match set.iter().map(|gpu| steps(gpu, nic)).min() {
                Some(0) => 0,
                Some(2 | 3) => 1,
                Some(4) => 2,
                _ => 3,
            };
            let farthest = set.iter().map(near).max().unwrap_or(0);
            [farthest, set.iter().map(near).sum(), nics.iter().map(own).sum()]
        };
        let wanted = self.wanted_nics();
        choices.filter(|nics| nics.len() == wanted).map(cost).min().unwrap_or_default()
    }

    /// Whether one package counts before the distance to NICs.
    fn package_first(&self) -> bool {
        let gpus = self.gpus().len();
        match self.prefer {
            Prefer::Auto => self.linked().len() < gpus * (gpus - 1) / 2,
            prefer => prefer == Prefer::Package,
        }
    }

    fn gpus(&self) -> Vec<usize> {
        let all = self.ports.iter().enumerate().flat_map(|(at, port)| vec![at; port.1]);
        all.take(8).collect()
    }

    /// The address of a GPU.
    fn bdf(gpu: usize) -> Bdf {
        Bdf::new(0, u8::try_from(0x80 + gpu).unwrap(), 0, 0).unwrap()
    }

    /// The root complex of a port: two of each node.
    fn root(&self, port: usize) -> String {
        format!("pci0000:{:02x}", 0x10 * self.ports[port].0 + port % 2)
    }

    fn host(&self) -> Topology {
        let mut parts = HostSpec::even(self.nodes, 8, 64, 0).parts();
        let mut add = |bus: usize, class, parent: Option<Bdf>, port: usize| {
            let node = NodeId(u32::try_from(self.ports[port].0).unwrap());
            let mut new = device(u8::try_from(bus).unwrap(), class, 0x20b0, Some(node));
            (new.parent, new.root) = (parent, Some(self.root(port)));
            parts.devices.push(new);
            parts.devices.last().unwrap().bdf
        };
        let mut below = Vec::new();
        for (port, (_, _, switch)) in self.ports.iter().enumerate() {
            let top = add(0x10 + port, 0x06_0400, None, port);
            below.push(if *switch { add(0x20 + port, 0x06_0400, Some(top), port) } else { top });
        }
        for (gpu, port) in self.gpus().into_iter().enumerate() {
            let down = add(0x40 + gpu, 0x06_0400, Some(below[port]), port);
            let parent = if self.ports[port].2 { down } else { below[port] };
            add(0x80 + gpu, 0x03_0200, Some(parent), port);
        }
        for port in self.nic_ports() {
            let down = add(0x50 + port, 0x06_0400, Some(below[port]), port);
            add(0x60 + port, 0x02_0000, Some(down), port);
        }
        for (device, model) in
            parts.devices.iter_mut().filter(|d| d.bdf.bus() >= 0x80).zip(&self.models)
        {
            device.device = MODELS[usize::from(*model)];
        }
        if let Some((a, b)) = self.twins() {
            for device in
                parts.devices.iter_mut().filter(|d| [a, b].map(Case::bdf).contains(&d.bdf))
            {
                device.iommu_group = Some(999);
            }
        }
        parts.devices.sort_by_key(|device| device.bdf);
        for (&(a, b), &links) in &self.linked() {
            parts.fabric.links.push(NvLink { a: Case::bdf(a), b: Case::bdf(b), links });
        }
        Topology::new(parts).unwrap()
    }

    /// Links of each pair, the lower index first.
    fn linked(&self) -> BTreeMap<(usize, usize), u32> {
        let gpus = self.gpus().len();
        let real = |(a, b, _): &&(usize, usize, u32)| a < b && *b < gpus;
        self.links.iter().filter(real).map(|&(a, b, links)| ((a, b), links)).collect()
    }

    /// Two different GPUs of one IOMMU group.
    fn twins(&self) -> Option<(usize, usize)> {
        self.twins.filter(|(a, b)| a < b && *b < self.gpus().len())
    }

    /// The guests, each with its GPUs.
    fn domains(&self) -> Vec<Held> {
        let of = |owner: usize| -> Vec<Bdf> {
            let own = (0..self.gpus().len()).filter(|&gpu| self.owners[gpu] == owner);
            own.map(Case::bdf).collect()
        };
        let domain =
            |owner| Held { domain: format!("g{owner}"), devices: of(owner), ..Held::default() };
        (1..=3).map(domain).collect()
    }

    fn free(&self) -> Vec<usize> {
        let twin = |gpu: usize| match self.twins() {
            Some((a, b)) if a == gpu => b,
            Some((a, b)) if b == gpu => a,
            _ => gpu,
        };
        let free = |gpu: &usize| self.owners[*gpu] == 0 && self.owners[twin(*gpu)] == 0;
        (0..self.gpus().len()).filter(free).collect()
    }

    /// The cost of a set, field by field, without cores and devices, which these requests do not
    /// constrain.
    fn key(&self, set: &BTreeSet<usize>) -> Vec<i64> {
        let ports = self.gpus();
        let distinct = |of: &dyn Fn(usize) -> String| {
            set.iter().map(|&gpu| of(gpu)).collect::<BTreeSet<String>>().len() as i64
        };
        let node = |gpu: usize| self.ports[ports[gpu]].0;
        let switch = |gpu: usize| {
            if self.ports[ports[gpu]].2 {
                format!("switch {}", ports[gpu])
            } else {
                format!("gpu {gpu}")
            }
        };
        let links = |inside: bool| -> i64 {
            let free = self.free();
            let counted = |(a, b): &(usize, usize)| {
                if inside {
                    set.contains(a) && set.contains(b)
                } else {
                    set.contains(a) != set.contains(b) && free.contains(a) && free.contains(b)
                }
            };
            self.linked().iter().filter(|(pair, _)| counted(pair)).map(|(_, n)| i64::from(*n)).sum()
        };
        let nodes: BTreeSet<usize> = set.iter().map(|&gpu| node(gpu)).collect();
        let held = |gpu: &usize| {
            let twin = self.twins().filter(|(a, b)| a == gpu || b == gpu);
            let by = |at: usize| self.owners[at] != 0;
            nodes.contains(&node(*gpu)) && (by(*gpu) || twin.is_some_and(|(a, b)| by(a) || by(b)))
        };
        let neighbours = (0..ports.len()).filter(held).count() as i64;
        let packages = distinct(&|gpu| (node(gpu) / 2).to_string());
        let [far, gpus_far, nics_far] = self.far(set);
        let mut key = vec![
            -links(true),
            nodes.len() as i64,
            if self.package_first() { packages } else { 0 },
            far,
            gpus_far,
            nics_far,
            packages,
            distinct(&|gpu| self.root(ports[gpu])),
            distinct(&switch),
            distinct(&|gpu| self.models[gpu].to_string()),
            if self.spread { neighbours } else { 0 },
            self.stranded(set, &switch, &node),
            links(false),
        ];
        key.extend(set.iter().map(|&gpu| gpu as i64));
        key
    }

    /// Expected stranded GPUs, times 100, once a set is taken.
    fn stranded(
        &self,
        set: &BTreeSet<usize>,
        switch: &dyn Fn(usize) -> String,
        node: &dyn Fn(usize) -> usize,
    ) -> i64 {
        let all = 0..self.gpus().len();
        let free: Vec<usize> = self.free().into_iter().filter(|gpu| !set.contains(gpu)).collect();
        let mut sum = 0;
        for (size, share) in [(1, 40), (2, 25), (4, 20), (8, 10), (16, 5)] {
            let mut rooms: BTreeMap<String, usize> = BTreeMap::new();
            for &gpu in &free {
                let around = [switch(gpu), format!("node {}", node(gpu)), "host".to_owned()];
                let within = |level: usize, other: usize| match level {
                    0 => switch(other) == around[0],
                    1 => node(other) == node(gpu),
                    _ => true,
                };
                let holds =
                    |&level: &usize| all.clone().filter(|&o| within(level, o)).count() >= size;
                if let Some(level) = (0..3).find(holds) {
                    *rooms.entry(around[level].clone()).or_default() += 1;
                }
            }
            let usable: usize = rooms.values().map(|room| room / size * size).sum();
            sum += share * (free.len() - usable) as i64;
        }
        sum
    }

    fn sets(&self) -> Vec<BTreeSet<usize>> {
        let free = self.free();
        let whole = |set: &BTreeSet<usize>| {
            self.twins().is_none_or(|(a, b)| set.contains(&a) == set.contains(&b))
        };
        let masks = (0..1u32 << free.len()).filter(|m| m.count_ones() as usize == self.number);
        let set =
            |mask: u32| (0..free.len()).filter(move |at| mask >> at & 1 == 1).map(|at| free[at]);
        let meant = |set: &BTreeSet<usize>| {
            self.model.is_none_or(|model| set.iter().all(|gpu| self.models[*gpu] == model))
        };
        masks.map(|mask| set(mask).collect()).filter(whole).filter(meant).collect()
    }
}

fn case() -> impl Strategy<Value = Case> {
    let ports =
        |nodes: usize| proptest::collection::vec((0..nodes, 1..=4usize, any::<bool>()), 1..5);
    let links = proptest::collection::vec((0..8usize, 0..8usize, 1..3u32), 0..12);
    let links = prop_oneof![Just(Vec::new()), links];
    let twins = proptest::option::weighted(0.2, (0..8usize, 0..8usize));
    let owners = proptest::collection::vec(prop_oneof![3 => Just(0), 1 => 1..4usize], 8);
    let models = prop_oneof![
        Just(vec![0; 8]),
        proptest::collection::vec(prop_oneof![2 => Just(0u16), 1 => 1..3u16], 8),
    ];
    let model = proptest::option::weighted(0.2, 0..3u16);
    let prefer = prop_oneof![Just(Prefer::Auto), Just(Prefer::Nic), Just(Prefer::Package)];
    (1..=4usize)
        .prop_flat_map(move |nodes| (Just(nodes), ports(nodes)))
        .prop_flat_map(move |(nodes, ports)| {
            (
                Just(nodes),
                Just(ports),
                links.clone(),
                twins.clone(),
                owners.clone(),
                1..5usize,
                any::<bool>(),
                models.clone(),
                model.clone(),
                (0..4usize, prefer.clone()),
            )
        })
        .prop_map(|(nodes, ports, links, twins, owners, number, spread, models, model, near)| {
            Case {
                nodes,
                ports,
                links,
                twins,
                owners,
                number,
                spread,
                models,
                model,
                nics: near.0,
                prefer: near.1,
            }
        })
}

/// A request that does not constrain cores and memory.
fn floating(number: usize, spread: bool) -> Request {
    Request {
        pins: PinPolicy::None,
        vcpus: Some(1),
        memory_kib: Some(MemSize::from_gib(1)),
        policy: if spread { Policy::Spread } else { Policy::Pack },
        ..Request::for_gpus(u32::try_from(number).unwrap())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(400), ..ProptestConfig::default() })]

    #[test]
    fn no_set_has_a_smaller_key_than_the_chosen_one(case in case()) {
        let host = case.host();
        let gpu_model = case.model.map(|model| format!("{:04x}", MODELS[usize::from(model)]));
        let nics = DeviceWish::Count(u32::try_from(case.wanted_nics()).unwrap());
        let extras = Extras { nics, ..Extras::default() };
        let prefer = case.prefer;
        let base = floating(case.number, case.spread);
        let request = Request { extras, prefer, gpu_model, ..base };
        let mut domains = case.domains();
        let answer = plan_on(&host, &domains, &request);
        domains.reverse();
        let reversed = plan_on(&host, &domains, &request);
        prop_assert_eq!(answer.as_ref().ok(), reversed.as_ref().ok(), "the order of domains");
        let best = case.sets().into_iter().map(|set| (case.key(&set), set)).min();
        match (answer, best) {
            (Ok(placement), Some((key, best))) => {
                let gpu = |bdf: &Bdf| (0..8).find(|&gpu| Case::bdf(gpu) == *bdf);
                let set: BTreeSet<usize> = placement.devices.iter().filter_map(gpu).collect();
                prop_assert_eq!(&set, &best, "{:?} against {:?}", case.key(&set), key);
            }
            (Err(_), None) => {}
            (answer, best) => prop_assert!(false, "{answer:?} against {best:?}"),
        }
    }
}

/// A DGX-2 whose GPUs of these indexes are each held by a guest.
fn held_singles(host: &Topology, gpus: &[usize]) -> Vec<Held> {
    let bdfs: Vec<Bdf> = host.gpus().map(|gpu| gpu.bdf).collect();
    let one = |&gpu: &usize| Held {
        domain: format!("g{gpu}"),
        devices: vec![bdfs[gpu]],
        ..Held::default()
    };
    gpus.iter().map(one).collect()
}

#[test]
fn a_split_set_is_the_last_choice_and_says_its_price() {
    let host = dgx2();
    let split = Allow { split: true, ..Allow::default() };
    let request = |number| Request { allow: split, ..Request::for_gpus(number) };
    let domains = held_singles(&host, &[0, 4, 8, 12]);
    assert!(plan_on(&host, &domains, &Request::for_gpus(4)).is_err());
    let placement = plan_on(&host, &domains, &request(4)).unwrap();
    assert_eq!((placement.partition, placement.devices.len()), (None, 4), "no NVSwitch");
    let text = "GPUs 1, 2, 3 and 5 do not form a partition: no NVLink between them";
    let gpus =
        placement.reasons.iter().find(|reason| reason.compromise && reason.choice == Topic::Gpus);
    assert!(
        gpus.unwrap().because.to_string().contains("no NVLink between them"),
        "{text} {gpus:?}"
    );
    let whole = plan_on(&host, &domains, &request(2)).unwrap();
    assert!(whole.partition.is_some(), "a partition of 2 is free");
    assert_eq!(plan_on(&host, &[], &request(3)).unwrap().devices.len(), 3);
    let exact = Request { gpus: GpuWish::Indexes(vec![2, 5]), ..request(0) };
    assert!(says(
        &plan_on(&host, &[], &exact).unwrap(),
        "GPUs 2 and 5 do not form a partition",
        true
    ));
    let (what, _, _) = refusal(plan_on(
        &host,
        &domains,
        &Request { gpus: GpuWish::Indexes(vec![0, 1]), ..request(0) },
    ));
    assert_eq!(what, "cannot use GPUs 0 and 1");
}

#[test]
fn fabric_manager_never_gets_a_split_set() {
    let mut parts = dgx2().parts().clone();
    parts.fabric.model = FabricModel::SharedNvswitch;
    for partition in &mut parts.fabric.partitions {
        (partition.nvswitches, partition.nvswitch_pool) = (0, Vec::new());
    }
    let host = Topology::new(parts).unwrap();
    let allow = Allow { split: true, ..Allow::default() };
    let (what, _, hint) = refusal(plan_on(&host, &[], &Request { allow, ..run(2, 1) }));
    assert!(what.contains("Fabric Manager opens exact sets only"), "{what}");
    assert!(hint.starts_with("legal indexes for 2 GPUs: 0, 2"), "{hint}");
    let domains = held_singles(&host, &[0, 4, 8, 12]);
    let request = Request { allow, ..Request::for_gpus(4) };
    assert!(
        refusal(plan_on(&host, &domains, &request)).0.contains("no partition of 4 GPUs is free")
    );
}

#[test]
fn the_choice_is_explained_by_the_next_best_and_by_what_it_breaks() {
    let host = dgx2();
    let one = held_singles(&host, &[0]);
    let placement = plan_on(&host, &one, &Request::for_gpus(2)).unwrap();
    assert!(says(
        &placement,
        "best of 7 free sets; the next, GPUs 4 and 5, costs later guests",
        false
    ));
    let first = plan_on(&host, &[], &Request::for_gpus(4)).unwrap();
    assert!(says(&first, "is as good but has higher indexes", false));
    let text = "costs later guests: breaks partition 0 of 16 free GPUs; no 16 GPUs fit then, 8 do";
    assert!(says(&first, text, false), "{:?}", first.reasons);
}

#[test]
fn why_gpus_are_on_more_nodes_than_needed_is_what_counted() {
    let mut parts = HostSpec::even(2, 16, 64, 4).parts();
    let gpus: Vec<Bdf> = parts.devices.iter().map(|gpu| gpu.bdf).collect();
    let free = Topology::new(parts.clone()).unwrap();
    let link = |a: usize, b: usize| NvLink { a: gpus[a], b: gpus[b], links: 4 };
    parts.fabric.links = vec![link(0, 2), link(1, 3)];
    let bridged = Topology::new(parts).unwrap();
    let plan = plan_on(&bridged, &[], &Request::for_gpus(2)).unwrap();
    let text = "its GPUs are spread over 2 nodes; 1 would do with GPUs 0 and 1, but that set has 0 \
                NVLinks inside instead of 4";
    assert!(says(&plan, text, true), "{:?}", plan.reasons);
    // One GPU of each node is held.
    let domains = held_singles(&free, &[0, 2]);
    let plan = plan_on(&free, &domains, &Request::for_gpus(2)).unwrap();
    let text = "its GPUs are spread over 2 nodes; 1 would do were they free";
    assert!(says(&plan, text, true), "{:?}", plan.reasons);
}

#[test]
fn gpus_of_nodes_without_cores_are_not_on_one_node() {
    let mut spec = HostSpec::even(2, 8, 64, 2);
    spec.nodes[1].cores = 0;
    let host = spec.build();
    let plan = plan_on(&host, &[], &Request::for_gpus(2)).unwrap();
    assert!(says(&plan, "all nearest to the cores of one node", false), "{:?}", plan.reasons);
}

#[test]
fn the_number_of_compared_sets_is_what_it_says() {
    let said = |host: &Topology, number| {
        let placement = plan_on(host, &[], &floating(number, false)).unwrap();
        let reasons = placement.reasons.iter().map(|reason| reason.because.to_string());
        reasons.filter(|text| text.starts_with("best of")).collect::<String>()
    };
    // A GPU of each node.
    let two = HostSpec::even(2, 8, 64, 2).build();
    assert!(said(&two, 1).starts_with("best of 2 free sets; the next, GPU 1"), "{}", said(&two, 1));
    // Four of each node, of which any two are as good: both on one node, or one on each.
    let mut parts = HostSpec::even(2, 8, 64, 8).parts();
    parts.devices.iter_mut().for_each(|gpu| gpu.root = Some("pci0000:00".into()));
    let eight = Topology::new(parts).unwrap();
    let text = "free sets, those of like GPUs counted once; the next, ";
    assert!(said(&eight, 2).starts_with("best of 3 "), "{}", said(&eight, 2));
    assert!(said(&eight, 2).contains(text), "{}", said(&eight, 2));
    let mut spec = HostSpec::even(8, 64, 512, 72);
    spec.gpus.iter_mut().enumerate().for_each(|(at, node)| *node = Some(at % 8));
    let many = said(&spec.build(), 20);
    assert!(many.contains("free sets that were tried of many; the next, "), "{many}");
}

#[test]
fn of_many_gpus_equal_ones_go_together() {
    // Too many sets to try all: of each node's nine GPUs the odd ones are of another model.
    let mut spec = HostSpec::even(8, 64, 512, 72);
    spec.gpus.iter_mut().enumerate().for_each(|(at, node)| *node = Some(at % 8));
    let mut parts = spec.parts();
    for (at, gpu) in parts.devices.iter_mut().enumerate() {
        gpu.device = MODELS[at / 8 % 2];
    }
    let host = Topology::new(parts).unwrap();
    for (number, nodes, models) in [(4, 1, 1), (5, 1, 1), (6, 1, 2), (9, 1, 2), (10, 2, 1)] {
        let placement = plan_on(&host, &[], &floating(number, false)).unwrap();
        let of = |bdf: &Bdf| host.device(*bdf).unwrap();
        let on: BTreeSet<_> = placement.devices.iter().map(|bdf| of(bdf).node).collect();
        let kinds: BTreeSet<_> = placement.devices.iter().map(|bdf| of(bdf).device).collect();
        assert_eq!((on.len(), kinds.len()), (nodes, models), "{number} GPUs");
        assert_eq!(says(&placement, "its GPUs are of several models", true), models > 1);
    }
}

#[test]
fn seventy_two_gpus_go_by_the_tree() {
    let mut spec = HostSpec::even(8, 64, 512, 72);
    spec.gpus.iter_mut().enumerate().for_each(|(at, node)| *node = Some(at % 8));
    let host = spec.build();
    for (number, nodes) in [(1, 1), (2, 1), (9, 1), (10, 2), (18, 2), (40, 5), (72, 8)] {
        let placement = plan_on(&host, &[], &floating(number, false)).unwrap();
        let node = |bdf: &Bdf| host.device(*bdf).unwrap().node;
        let on: BTreeSet<_> = placement.devices.iter().map(node).collect();
        assert_eq!((placement.devices.len(), on.len()), (number, nodes));
    }
    // Node 5 has four GPUs left: a guest of four fills it and leaves the others whole.
    let lost = held_singles(&host, &[5, 13, 21, 29, 37]);
    let placement = plan_on(&host, &lost, &floating(4, false)).unwrap();
    let node = |bdf: &Bdf| host.device(*bdf).unwrap().node;
    assert!(placement.devices.iter().all(|bdf| node(bdf) == Some(NodeId(5))), "{placement:?}");
}
