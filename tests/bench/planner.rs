//! The planner's latency in process: host and occupancy in memory to complete placement, over
//! streams of guests; how it grows with the host; and the memory of a process that plans.

use crate::measure::{Subject, Verdict, quantile, rotate};
use gpuvm::placement::{Held, Occupancy, Placement, plan};
use gpuvm::request::{DeviceWish, Request, VgpuWish};
use gpuvm::topology::sharing::NVIDIA;
use gpuvm::topology::vgpu::{VfioType, Vgpu};
use gpuvm::topology::{PciDevice, Sriov, Topology};
use gpuvm_bench::hosts::{self, Host};
use gpuvm_bench::stream::Random;
use gpuvm_core::bdf::Bdf;
use std::time::Instant;

/// The p99 to stay below with 96 pcpus and 16 GPUs, in µs (gpuvm-placement(7), METRICS).
const P99_US: f64 = 100.0;
/// The p99 limit that a DGX-2 must meet, in µs.
const GATE_US: f64 = 1_000.0;
/// The p99 to stay below with 4096 pcpus and 200 guests, in µs, and the limit that every host must
/// meet.
const LARGE_US: (f64, f64) = (1_000.0, 50_000.0);
/// The memory limit of a process that plans on the largest host, in MiB.
const PEAK_MIB: f64 = 100.0;
/// Sizes of the growth table: pcpus; nodes, GPUs and guests in proportion to the largest.
const GROWTH: [u32; 5] = [256, 512, 1024, 2048, 4096];
/// Guests that are present on the largest hosts.
const GUESTS: usize = 200;

/// Measures.
pub fn bench(quick: bool) -> Vec<Verdict> {
    let plans = if quick { 300 } else { 3000 };
    let dgx2 = hosts::named("dgx-2");
    let times = stream(&dgx2.topology, if quick { 500 } else { 5000 });
    let mut verdicts = p99("plan(), DGX-2", &times, (P99_US, GATE_US));
    let times = vgpus(&with_vgpus(&dgx2.topology), if quick { 500 } else { 5000 });
    verdicts.extend(p99("plan(), vGPUs of 16 cards", &times, (P99_US, GATE_US)));
    for gpus in [72, 128] {
        let host = hosts::large(if gpus == 72 { 8 } else { 16 }, 4096, gpus);
        let times = crowded(&host.topology, GUESTS, plans);
        let what = format!("plan(), {}, {GUESTS} guests", host.name);
        verdicts.extend(p99(&what, &times, LARGE_US));
    }
    verdicts.push(growth(plans));
    verdicts.push(memory());
    verdicts
}

/// The goal and the gate of a p99, with the median printed.
fn p99(what: &str, times: &[f64], limits: (f64, f64)) -> Vec<Verdict> {
    let (middle, value) = (quantile(times, 0.5), quantile(times, 0.99));
    println!("{what}: median {middle:.1} us, p99 {value:.1} us");
    let verdict = |limit: f64, gate: bool| {
        let what = format!("{what}, 99 % of a stream{}", if gate { ", at most" } else { "" });
        Verdict { what, value, limit, unit: " us", gate }
    };
    vec![verdict(limits.0, false), verdict(limits.1, true)]
}

/// The resources of a placement.
pub fn held(name: String, placement: Placement) -> Held {
    Held {
        domain: name,
        active: true,
        vcpu_pins: placement.vcpu_pins,
        emulator_pin: Some(placement.emulator_pin),
        iothread_pins: placement.iothread_pins,
        devices: placement.devices,
        memory: placement.cells.into_iter().map(|c| (c.host_nodes, c.memory_kib)).collect(),
        ..Held::default()
    }
}

/// Times of the plans of a stream of arrivals and departures, in µs; the stream is the same in
/// every run.
fn stream(topology: &Topology, plans: usize) -> Vec<f64> {
    let (mut held_now, mut times, mut random) = (Occupancy::default(), Vec::new(), Random(1));
    while times.len() < plans {
        if random.below(3) == 0 && !held_now.domains.is_empty() {
            held_now.domains.remove(random.below(held_now.domains.len()));
            continue;
        }
        let gpus = [1, 1, 1, 1, 2, 2, 4, 4, 8, 16][random.below(10)];
        let (us, placed) = timed(topology, &held_now, &Request::for_gpus(gpus));
        times.push(us);
        let name = format!("guest-{}", times.len());
        held_now.domains.extend(placed.map(|placement| held(name, placement)));
    }
    times
}

/// The types of the bench's cards: name, number, and how many a card has room for.
const TYPES: [(&str, u32, usize); 3] =
    [("V100X-2C", 1, 16), ("V100X-8C", 2, 4), ("V100X-32C", 3, 1)];
/// Virtual functions of each card.
const SLOTS: u8 = 16;

/// A host with virtual functions for vGPUs at each of its GPUs, on the vendor's VFIO driver.
fn with_vgpus(topology: &Topology) -> Topology {
    let mut parts = topology.parts().clone();
    let types = TYPES.map(|(name, id, _)| VfioType { id, name: name.into(), mig: None }).to_vec();
    let creatable = TYPES.map(|(_, id, _)| id).to_vec();
    let cards: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
    let mut group = 10_000;
    let mut slots = Vec::new();
    for card in parts.devices.iter_mut().filter(|device| cards.contains(&device.bdf)) {
        card.driver = Some(NVIDIA.into());
        card.sriov = Some(Sriov::Pf { total: SLOTS.into(), enabled: SLOTS.into() });
        card.vgpu = Some(Vgpu::Card { types: types.clone() });
        for slot in 0..SLOTS {
            group += 1;
            let (device, function) = (0x10 + slot / 8, slot % 8);
            let bdf = Bdf::new(card.bdf.segment(), card.bdf.bus(), device, function);
            slots.push(PciDevice {
                bdf: bdf.expect("an address of a virtual function"),
                sriov: Some(Sriov::Vf { pf: card.bdf }),
                vgpu: Some(Vgpu::Vfio { current: 0, creatable: creatable.clone() }),
                iommu_group: Some(group),
                ..card.clone()
            });
        }
    }
    parts.devices.extend(slots);
    parts.devices.sort_by_key(|device| device.bdf);
    Topology::new(parts).expect("the host has its virtual functions")
}

/// As [`stream`], of guests with a vGPU.
fn vgpus(topology: &Topology, plans: usize) -> Vec<f64> {
    let (mut held_now, mut times, mut random) = (Occupancy::default(), Vec::new(), Random(3));
    let mut admitted = 0;
    while times.len() < plans {
        if random.below(3) == 0 && !held_now.domains.is_empty() {
            held_now.domains.remove(random.below(held_now.domains.len()));
            continue;
        }
        let (name, ..) = TYPES[[0, 0, 0, 1, 1, 2][random.below(6)]];
        let vgpu = VgpuWish { type_name: name.into(), count: 1, gpu: None };
        let request = Request { vgpu: Some(vgpu), vcpus: Some(2), ..Request::for_gpus(0) };
        let (us, placed) = timed(topology, &held_now, &request);
        times.push(us);
        let Some(placement) = placed else { continue };
        admitted += 1;
        let vgpus = placement.vgpus.clone();
        let name = format!("guest-{}", times.len());
        held_now.domains.push(Held { vgpus, ..held(name, placement) });
    }
    assert!(admitted * 2 > plans, "{admitted} of {plans} guests have a vGPU");
    times
}

/// Times that each plan is made; the minimum counts, because the work is the same and on a busy
/// machine another process may take the CPU for milliseconds.
const REPEATS: usize = 3;

/// One plan with its time in µs.
fn timed(topology: &Topology, held: &Occupancy, request: &Request) -> (f64, Option<Placement>) {
    let (mut least, mut placed) = (f64::INFINITY, None);
    for _ in 0..REPEATS {
        let started = Instant::now();
        placed = plan(topology, held, request).ok();
        least = least.min(started.elapsed().as_secs_f64() * 1e6);
    }
    (least, placed)
}

/// A guest without GPUs on four cores.
fn plain() -> Request {
    Request { vcpus: Some(8), ..Request::for_gpus(0) }
}

/// A host with this many guests: half of its GPUs in guests of one to eight, the other guests
/// without GPUs.
pub fn filled(topology: &Topology, guests: usize) -> Occupancy {
    let mut occupancy = Occupancy::default();
    let all = topology.gpus().count();
    let mut used = 0;
    for number in 0..guests {
        let gpus = [1, 2, 1, 4, 1, 2, 1, 8][number % 8];
        let with = used + gpus <= all / 2;
        used += if with { gpus } else { 0 };
        let wish = if with { Request::for_gpus(u32::try_from(gpus).unwrap_or(1)) } else { plain() };
        let placed = plan(topology, &occupancy, &wish);
        occupancy.domains.extend(placed.ok().map(|p| held(format!("guest-{number}"), p)));
    }
    occupancy
}

/// Times of plans on a host with this many guests, in µs: guests of all sizes, half of them with a
/// NIC for each GPU; admitted ones replace the oldest.
fn crowded(topology: &Topology, guests: usize, plans: usize) -> Vec<f64> {
    let mut occupancy = filled(topology, guests);
    let mut random = Random(2);
    let mut times = Vec::new();
    for number in 0..plans {
        let gpus = [0, 0, 1, 1, 1, 2, 2, 4, 4, 8][random.below(10)];
        let mut request = if gpus == 0 { plain() } else { Request::for_gpus(gpus) };
        if random.below(2) == 0 {
            request.extras.nics = DeviceWish::Count(gpus);
        }
        let (us, placed) = timed(topology, &occupancy, &request);
        times.push(us);
        if let Some(placement) = placed {
            occupancy.domains.push(held(format!("later-{number}"), placement));
            if occupancy.domains.len() > guests {
                occupancy.domains.remove(0);
            }
        }
    }
    times
}

/// Prints the times over the sizes, and compares their growth with that of n log n: the exponent of
/// the median over n log n, fitted by least squares.
fn growth(plans: usize) -> Verdict {
    println!(
        "\n{:>6} {:>5} {:>7} {:>11} {:>11} {:>14}",
        "pcpus", "GPUs", "guests", "p50 us", "p99 us", "p50/(n log n)"
    );
    let mut points = Vec::new();
    for pcpus in GROWTH {
        let of = |whole: u32| whole * pcpus / GROWTH[GROWTH.len() - 1];
        let host: Host = hosts::large(of(16).max(1), pcpus, of(128));
        let guests = GUESTS * pcpus as usize / 4096;
        let times = crowded(&host.topology, guests, plans);
        let (p50, p99) = (quantile(&times, 0.5), quantile(&times, 0.99));
        let n = f64::from(pcpus);
        let scale = n * n.log2();
        println!(
            "{pcpus:>6} {:>5} {guests:>7} {p50:>11.1} {p99:>11.1} {:>14.5}",
            of(128),
            p50 / scale
        );
        points.push((scale.ln(), p50.ln()));
    }
    let value = slope(&points);
    println!("exponent over n log n: {value:.2}");
    let what = "plan(), growth: exponent over n log n".to_owned();
    Verdict { what, value, limit: 1.0, unit: "", gate: false }
}

/// The slope of the line through these points with the least squares.
#[allow(clippy::cast_precision_loss)]
fn slope(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |sum, p| (sum.0 + p.0 / n, sum.1 + p.1 / n));
    let over: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    over / points.iter().map(|p| (p.0 - x).powi(2)).sum::<f64>()
}

/// Peak memory of a process of its own that plans on the largest host.
fn memory() -> Verdict {
    let me = std::env::current_exe().expect("the benchmark knows its own path");
    let command = [me.to_string_lossy().into_owned(), "plan-once".to_owned()];
    let mut subjects = [Subject::new("plan", &[&command[0], &command[1]])];
    rotate(&mut subjects, 1);
    let value = subjects[0].peak_mib;
    println!("peak memory of a process that plans: {value:.1} MiB");
    let what = "plan(), 4096 pcpus, 72 GPUs: peak memory".to_owned();
    Verdict { what, value, limit: PEAK_MIB, unit: " MiB", gate: true }
}

/// Plans on the largest host with all its guests: the process whose memory is measured.
pub fn once() {
    let host = hosts::large(8, 4096, 72);
    let occupancy = filled(&host.topology, GUESTS);
    let placed = plan(&host.topology, &occupancy, &Request::for_gpus(4));
    println!("{} guests; {:?}", occupancy.domains.len(), placed.map(|p| p.devices));
}
