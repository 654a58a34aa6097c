//! Disks with several I/O threads.

use super::guests::{TEMPLATES, guest, host, render};
use gpuvm::domain::DomainXml;
use gpuvm::domain::guest::{Abilities, Guest, VirtType};
use gpuvm::placement::{Occupancy, Placement, plan};
use gpuvm::request::Request;

/// The guest with all GPUs of a DGX-2, which has two cells, on a hypervisor with these abilities.
fn whole(queue_mapping: bool) -> (Guest, Placement, DomainXml) {
    let (topology, request) = (host("dgx-2"), Request::for_gpus(16));
    let place = plan(&topology, &Occupancy::default(), &request).unwrap();
    let mut guest = guest("whole", VirtType::Kvm, &request);
    guest.abilities = Abilities { queue_mapping, ..Abilities::default() };
    let xml = render(TEMPLATES[0].1, &guest, &place, &topology);
    (guest, place, xml)
}

/// The I/O threads of each disk with their queues.
fn mapped(xml: &DomainXml) -> Vec<Vec<(String, Vec<String>)>> {
    let devices = xml.root().child("devices").unwrap();
    let id = |element: gpuvm::domain::Element<'_>| element.attr("id").unwrap().into_owned();
    let disks = devices.children("disk").map(|disk| {
        let driver = disk.child("driver").unwrap();
        assert!(driver.attr("iothread").is_none() || driver.child("iothreads").is_none());
        let threads = driver.child("iothreads").into_iter().flat_map(|t| t.children("iothread"));
        threads.map(|thread| (id(thread), thread.children("queue").map(id).collect())).collect()
    });
    disks.collect()
}

#[test]
fn each_cells_thread_serves_the_queues_of_its_vcpus() {
    let (_, place, xml) = whole(true);
    assert_eq!((place.cells.len(), place.iothread_pins.len()), (2, 2));
    assert_eq!(xml.root().child("iothreads").unwrap().text(), "2");
    let run = |queues: std::ops::Range<u32>| queues.map(|queue| queue.to_string()).collect();
    let both: Vec<(String, Vec<String>)> =
        vec![("1".into(), run(0..32)), ("2".into(), run(32..64))];
    assert_eq!(mapped(&xml), [both.clone(), both]);
}

#[test]
fn without_the_ability_each_disk_names_one_thread_and_back() {
    let (guest, place, plain) = whole(false);
    assert!(mapped(&plain).iter().all(Vec::is_empty));
    let threads = |xml: &DomainXml| -> Vec<String> {
        let disks: Vec<_> = xml.root().child("devices").unwrap().children("disk").collect();
        let named = disks.iter().filter_map(|d| d.child("driver")?.attr("iothread"));
        named.map(Into::into).collect()
    };
    assert_eq!(threads(&plain), ["1", "2"]);
    // From one form to the other and back nothing is left over.
    let topology = host("dgx-2");
    let (able, _, rich) = whole(true);
    let mut xml = plain.clone();
    let edits = gpuvm::domain::edits(&xml, &able, &place, &topology).unwrap();
    xml.apply_all(&edits).unwrap();
    assert_eq!((mapped(&xml), threads(&xml)), (mapped(&rich), vec![]));
    let edits = gpuvm::domain::edits(&xml, &guest, &place, &topology).unwrap();
    xml.apply_all(&edits).unwrap();
    assert_eq!((mapped(&xml), threads(&xml)), (mapped(&plain), threads(&plain)));
}
