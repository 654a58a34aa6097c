//! The law of options: parsed, the options of a request make that request, for every field.

use crate::bdf::Bdf;
use crate::cli::args::{Cli, Verb};
use crate::memsize::MemSize;
use crate::request::{
    Allow, CellWish, DeviceWish, Extras, GpuWish, Guard, HugePages, IommufdWish, L3Wish, Near,
    P2pWish, PinPolicy, Policy, Prefer, Profile, Request, Reserve, Spelled, Template, VfSettings,
};
use clap::Parser as _;
use gpuvm_core::guest::options;
use proptest::collection::btree_set;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

/// Functions on one slot each of buses from this one on.
fn bdfs(first: u8) -> impl Strategy<Value = Vec<Bdf>> {
    btree_set(0_u8..32, 1..4).prop_map(move |buses| {
        buses.into_iter().map(|bus| Bdf::new(0, first + bus, 0, 0).unwrap()).collect()
    })
}

fn devices(first: u8) -> impl Strategy<Value = DeviceWish> {
    prop_oneof![(0_u32..5).prop_map(DeviceWish::Count), bdfs(first).prop_map(DeviceWish::Exact)]
}

fn gpus() -> impl Strategy<Value = GpuWish> {
    prop_oneof![
        (0_u32..17).prop_map(GpuWish::Count),
        (0_u32..8, 1_u32..8).prop_map(|(first, count)| GpuWish::Run { first, count }),
        btree_set(0_u32..16, 1..4).prop_map(|all| GpuWish::Indexes(all.into_iter().collect())),
        bdfs(0x10).prop_map(GpuWish::Exact),
    ]
}

fn settings() -> impl Strategy<Value = VfSettings> {
    let guard = (option::of(any::<bool>()), option::of(any::<bool>()));
    (option::of(1_u16..4095), guard).prop_map(|(vlan, (trust, spoof))| VfSettings {
        vlan,
        guard: Guard { trust, spoof },
        ..VfSettings::default()
    })
}

fn extras() -> impl Strategy<Value = Extras> {
    let near = (select(Near::all()), select(Near::all()));
    let all = (devices(0x30), devices(0x50), devices(0x70), near, settings());
    all.prop_map(|(nics, vfs, nvmes, (nic_near, nvme_near), vf)| {
        let number = if let DeviceWish::Exact(bdfs) = &vfs { bdfs.len() } else { 1 };
        let is_set = vf != VfSettings::default() && vfs.number() > 0;
        let vf_settings = if is_set { vec![vf; number] } else { Vec::new() };
        Extras { nics, vfs, vf_settings, nic_near, nvmes, nvme_near }
    })
}

fn sizes() -> impl Strategy<Value = Request> {
    let pages = (select(HugePages::all()), option::of(1_u32..9));
    let memory = option::of((1_u64 << 10)..(1 << 32));
    (gpus(), option::of(1_u32..200), option::of(1_u32..200), memory, pages).prop_map(
        |(gpus, vcpus, start, memory, (huge_pages, threads))| Request {
            gpus,
            vcpus,
            vcpus_at_start: start.filter(|start| vcpus.is_some_and(|most| most >= *start)),
            memory_kib: memory.map(MemSize::from_kib),
            huge_pages,
            threads,
            ..Request::for_gpus(0)
        },
    )
}

fn place() -> impl Strategy<Value = Request> {
    let words = (
        select(Policy::all()),
        select(Prefer::all()),
        (select(L3Wish::all()), select(IommufdWish::all()), select(P2pWish::all())),
        (
            option::of(select(vec!["H100", "10de:2330", "A100 80GB"])),
            option::of(select(vec!["H200X-18C", "1437,count=2", "A DC-1-2Q,gpu=0000:3b:00.0"])),
        ),
        option::of(select(vec!["q35", "pc-q35-9.2", "virt-8.2"])),
    );
    let reserve = (0_u32..4, option::of(1_u64..(1 << 30)));
    let numbers = (option::of(1_u32..5), option::of(0_u32..9));
    let rules = (select(Profile::all()), select(PinPolicy::all()), any::<[bool; 4]>());
    (words, reserve, numbers, rules).prop_map(|(words, reserve, numbers, rules)| {
        let (policy, prefer, (l3, iommufd, p2p), (model, vgpu), machine) = words;
        let ((cores, memory), (cells, spare_ports)) = (reserve, numbers);
        let (profile, pins, [remote, split, p2p_clique, movable]) = rules;
        Request {
            gpu_model: model.map(str::to_owned),
            vgpu: vgpu.map(|text| text.parse().unwrap()),
            profile,
            pins,
            cells: cells.map_or(CellWish::Auto, CellWish::Count),
            reserve: Reserve { cores, memory_kib: memory.map(MemSize::from_kib) },
            policy,
            prefer,
            l3,
            allow: Allow { remote, split, mig: remote && split },
            p2p_clique,
            p2p,
            iommufd,
            spare_ports,
            machine: machine.map(|name| name.parse().unwrap()),
            movable,
            ..Request::for_gpus(0)
        }
    })
}

/// A request that the command line can make: without parts that contradict others.
fn request(sizes: Request, extras: Extras, place: Request) -> Request {
    let Request { gpus, vcpus, vcpus_at_start, memory_kib, huge_pages, threads, .. } = sizes;
    let has_own_pins = place.profile == Profile::NvidiaVm && place.pins != PinPolicy::None;
    let pins = if has_own_pins { PinPolicy::Auto } else { place.pins };
    let (floats, has_gpus) = (pins == PinPolicy::None, gpus.number() > 0);
    let is_counted = matches!(gpus, GpuWish::Count(1..));
    let near = |near: Near, number: usize| if number > 0 && has_gpus { near } else { Near::Any };
    let extras = Extras {
        nic_near: near(extras.nic_near, extras.nics.number() + extras.vfs.number()),
        nvme_near: near(extras.nvme_near, extras.nvmes.number()),
        ..extras
    };
    let reserve = Reserve { cores: if floats { 0 } else { place.reserve.cores }, ..place.reserve };
    Request {
        gpu_model: place.gpu_model.filter(|_| is_counted),
        vgpu: place.vgpu.filter(|_| !has_gpus),
        threads: threads.filter(|_| floats),
        pins,
        extras,
        reserve,
        allow: Allow { remote: place.allow.remote && !floats, ..place.allow },
        template: Template::default(),
        gpus,
        vcpus,
        vcpus_at_start,
        memory_kib,
        huge_pages,
        ..place
    }
}

proptest! {
    #[test]
    fn options_make_the_request_that_they_are_of(
        (sizes, extras, place) in (sizes(), extras(), place()),
    ) {
        let request = request(sizes, extras, place);
        let mut words = vec!["gpuvm".to_owned(), "create".to_owned()];
        for (opt, values) in options(&request) {
            words.extend(values.is_empty().then(|| opt.flag()));
            words.extend(values.into_iter().flat_map(|value| [opt.flag(), value]));
        }
        let line = words.join(" ");
        let Verb::Create(args) = Cli::try_parse_from(words).unwrap().verb else { panic!("{line}") };
        let made = args.request().map(|made| made.guest.request);
        prop_assert_eq!(made.map_err(|error| error.to_string()), Ok(request), "{}", line);
    }
}
