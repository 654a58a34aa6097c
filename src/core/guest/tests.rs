//! The law of a guest's options: read back from the definition that a request makes, it is that
//! request, on every recorded host and from every template.

use super::{differences, now, options};
use crate::domain::guest::VirtType;
use crate::domain::tests::guests::{TEMPLATES, guest, hosts, render, requests};
use crate::placement::{Occupancy, plan};
use crate::request::{
    CellWish, DeviceWish, GpuWish, IommufdWish, P2pWish, PinPolicy, Policy, Profile, Request,
    Spelled as _,
};
use crate::topology::Topology;

/// Requests beside the usual ones: of each field one that is not its default.
fn more(topology: &Topology) -> Vec<(String, Request)> {
    let one = |name: &str, change: &dyn Fn(&mut Request)| {
        let mut request = Request::for_gpus(u32::from(topology.gpus().count() > 0));
        change(&mut request);
        (name.to_owned(), request)
    };
    let mut all = vec![
        one("indexes", &|r| r.gpus = GpuWish::Indexes(vec![0])),
        one("run", &|r| r.gpus = GpuWish::Run { first: 0, count: 1 }),
        one("room", &|r| (r.vcpus, r.vcpus_at_start) = (Some(4), Some(2))),
        one("memory", &|r| r.memory_kib = Some("7G".parse().unwrap())),
        one("thread", &|r| r.pins = PinPolicy::Thread),
        one("one-cell", &|r| r.cells = CellWish::Count(1)),
        one("vendor", &|r| r.profile = Profile::NvidiaVm),
        one("near", &|r| (r.profile, r.policy) = (Profile::Near, Policy::Spread)),
        one("machine", &|r| r.machine = Some("pc-q35-9.2".parse().unwrap())),
        one("ports", &|r| (r.spare_ports, r.movable) = (Some(3), true)),
        one("iommufd", &|r| r.iommufd = IommufdWish::On),
        one("groups", &|r| r.iommufd = IommufdWish::Off),
        one("direct", &|r| r.p2p = P2pWish::Auto),
        one("reserve", &|r| r.reserve.cores = 1),
        one("allow", &|r| (r.allow.remote, r.allow.split) = (true, true)),
    ];
    if let Some(gpu) = topology.gpus().next() {
        all.push(one("exact", &|r| r.gpus = GpuWish::Exact(vec![gpu.bdf])));
        all.push(one("nics", &|r| r.extras.nics = DeviceWish::Count(2)));
    }
    all
}

#[test]
fn a_request_is_read_back_from_its_domain() {
    let mut compared = 0;
    for (host, topology) in hosts() {
        let all = requests(&topology).into_iter().chain(more(&topology));
        for (name, request) in all {
            let Ok(place) = plan(&topology, &Occupancy::default(), &request) else { continue };
            for (template, text) in TEMPLATES {
                let xml = render(text, &guest("a", VirtType::Kvm, &request), &place, &topology);
                let has = now(&xml, &topology, &request);
                let what = format!("{host} {name} {template}");
                assert_eq!(options(&has.request), options(&request), "{what}");
                let found = differences(&request, &request, &has, &topology).0;
                // That many vCPUs are plugged by an edit of its own.
                let start = request.vcpus_at_start.is_some();
                let found: Vec<_> = { found.iter() }
                    .filter(|one| !(start && one.option.field() == "vcpus"))
                    .map(ToString::to_string)
                    .collect();
                assert_eq!(found, [""; 0], "{what}");
                let sized = has.sized();
                assert_eq!(sized.huge_pages.word(), has.pages.word(), "{what}");
                compared += 1;
            }
        }
    }
    assert!(compared > 300, "{compared}");
}

#[test]
fn a_difference_is_in_the_words_that_the_option_takes() {
    let host = crate::domain::tests::guests::host("dgx-2");
    let request = Request { profile: Profile::Near, ..Request::for_gpus(1) };
    let place = plan(&host, &Occupancy::default(), &request).unwrap();
    let (_, template) = TEMPLATES[0];
    let xml = render(template, &guest("a", VirtType::Kvm, &request), &place, &host);
    let has = now(&xml, &host, &request);
    let said = |wanted: &Request| {
        let found = differences(wanted, &request, &has, &host).0;
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let vendor = Request { profile: Profile::NvidiaVm, ..request.clone() };
    assert_eq!(said(&vendor), ["profile near -> nvidia-vm"]);
    let newer = Request { machine: Some("pc-q35-99.0".parse().unwrap()), ..request.clone() };
    assert_eq!(said(&newer), ["machine q35 -> pc-q35-99.0"]);
    let by_iommufd = Request { iommufd: IommufdWish::On, ..request.clone() };
    assert_eq!(said(&by_iommufd), ["iommufd off -> on"]);
    let groups = Request { iommufd: IommufdWish::Off, ..request.clone() };
    assert_eq!(said(&groups), [""; 0], "it has them by default");
    let more = Request { gpus: GpuWish::Count(2), movable: true, ..request.clone() };
    assert_eq!(said(&more), ["gpus 1 -> 2", "movable off -> on"]);
}
