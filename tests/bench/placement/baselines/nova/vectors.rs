//! Vectors of Nova's choice of host cells.

use super::super::testhost::{GPU, NIC, add, ask, dgx2, even, join, only_free, rows};
use super::*;

const SPREAD: Nova = Nova { packing: false, affinity: Affinity::Legacy };
const PACK: Nova = Nova { packing: true, affinity: Affinity::Legacy };

/// A case: cores of each host cell, pcpus that are free, vCPUs of each guest cell, host cells
/// chosen in any order (empty: refused).
type Case = (&'static [&'static str], &'static str, &'static [u64], &'static [usize]);

/// The cases of CPUPinningTestCase in Nova's `test_hardware.py`: single cell, with usage, fail;
/// fit, barely fit, fail by capacity, fail by topology. Where Nova's test lets either cell be
/// right, it is the first of equals.
const FITS: [Case; 7] = [
    (&["0/1", "2/3"], "0-3", &[2], &[0]),
    (&["0/1", "2/3"], "1-3", &[2], &[1]),
    (&["0/1", "2/3"], "1,3", &[2], &[]),
    (&["0/1/2/3", "4/5/6/7"], "0-7", &[2, 2], &[0, 1]),
    (&["0/1/2/3", "4/5/6/7", "8/9/10/11"], "1-3,7-9", &[2, 2], &[0, 2]),
    (&["0/1/2/3", "4/5/6/7"], "1-3,7", &[2, 2], &[]),
    (&["0/1/2/3", "4/5/6/7"], "0-7", &[2, 2, 2], &[]),
];

#[test]
fn guest_cells_find_host_cells() {
    for (cells, free, guest, wanted) in FITS {
        let row = |(at, cores): (u32, &&'static str)| (at, at, at, *cores);
        let list: Vec<_> = (0..).zip(cells).map(row).collect();
        let topology = Topology::new(rows(&list)).unwrap();
        let mut host = Host::new(&topology, &[]);
        only_free(&mut host, free);
        let memory = MemSize::from_gib(2);
        let guest: Vec<Cell> = guest.iter().map(|&vcpus| Cell { vcpus, memory }).collect();
        for nova in [SPREAD, PACK] {
            let fitted = nova.fit(&host, &ask(0, 4), &guest);
            let mut got: Vec<usize> =
                fitted.map(|f| f.cells.iter().map(|(node, _)| *node).collect()).unwrap_or_default();
            got.sort_unstable();
            assert_eq!(got, wanted, "{cells:?} {free}");
        }
    }
}

/// A case of sorting: free memory in GiB, free pcpus and free devices of each cell; whether devices
/// are wanted; the order when spreading and when packing.
type SortCase = ([u64; 3], [usize; 3], [usize; 3], bool, [usize; 3], [usize; 3]);

/// The sorts of gpuvm-placement(7), OTHER PLANNERS; spreading uses cells with more free CPU, memory
/// and PCI first (release note extra-sorting-for-host-cells).
#[test]
fn host_cells_are_sorted() {
    let cases: [SortCase; 6] = [
        // Only memory differs.
        ([8, 32, 16], [8, 8, 8], [0, 0, 0], false, [1, 2, 0], [0, 2, 1]),
        // pcpus go before memory.
        ([8, 32, 16], [8, 2, 4], [0, 0, 0], false, [0, 2, 1], [1, 2, 0]),
        // Devices go before both: cells with few where none are wanted, with many where some are;
        // also when packing.
        ([8, 32, 16], [8, 2, 4], [1, 0, 2], false, [1, 0, 2], [1, 0, 2]),
        ([8, 32, 16], [8, 2, 4], [1, 0, 2], true, [2, 0, 1], [2, 0, 1]),
        // Equal devices leave the order to pcpus.
        ([8, 32, 16], [2, 8, 4], [1, 1, 1], true, [1, 2, 0], [0, 2, 1]),
        // All equal: as the host lists them.
        ([8, 8, 8], [4, 4, 4], [1, 1, 1], true, [0, 1, 2], [0, 1, 2]),
    ];
    for (memory, pcpus, devices, wanted, spread, packed) in cases {
        let mut parts = even(3, 1, 4);
        let nodes: Vec<Option<u32>> =
            (0..3).flat_map(|at| vec![Some(at); devices[at as usize]]).collect();
        add(&mut parts, NIC, 0x10, &nodes);
        let topology = Topology::new(parts).unwrap();
        let mut host = Host::new(&topology, &[]);
        for node in 0..3 {
            host.nodes[node].free = MemSize::from_gib(memory[node]);
            let cores = host.nodes[node].cores.clone();
            let threads: Vec<usize> =
                cores.iter().flat_map(|&core| host.cores[core].threads.clone()).collect();
            for thread in &threads[pcpus[node]..] {
                host.threads[*thread].free = false;
            }
        }
        assert_eq!(SPREAD.order(&host, 1, wanted), spread, "{memory:?} {pcpus:?} {devices:?}");
        assert_eq!(PACK.order(&host, 1, wanted), packed, "{memory:?} {pcpus:?} {devices:?}");
        assert_eq!(SPREAD.order(&host, 3, wanted), [0, 1, 2], "no sort for equal lengths");
    }
}

/// On a DGX-2: the GPUs of a cell come from the front, and so do vCPUs, in pairs of siblings;
/// spreading sends the second guest to the other node, packing leaves it on the first by pcpus, but
/// devices dominate both.
#[test]
fn a_dgx2_fills_as_nova_would() {
    let host = dgx2();
    let gpus: Vec<_> = host.gpus().map(|gpu| gpu.bdf).collect();
    let one = SPREAD.place(&host, &[], &ask(2, 10)).unwrap();
    let highest = |place: &Place| place.gpus.iter().map(|g| gpus.iter().position(|o| o == g)).max();
    let cell = host.nodes().iter().position(|n| n.os_index == one.memory[0].0).unwrap();
    assert_eq!(highest(&one), Some(Some(cell * 8 + 1)));
    let first = if cell == 0 { "0-4,48-52" } else { "24-28,72-76" };
    assert_eq!(join(&one.pins), first);
    let two = SPREAD.place(&host, std::slice::from_ref(&one), &ask(2, 10)).unwrap();
    assert_ne!(two.memory[0].0, one.memory[0].0);
}

/// A guest of sixteen GPUs gets two guest cells with half of everything each.
#[test]
fn large_guests_get_two_cells() {
    let place = SPREAD.place(&dgx2(), &[], &ask(16, 92)).unwrap();
    assert_eq!(join(&place.pins), "0-22,24-46,48-70,72-94");
    let sizes: Vec<u64> = place.memory.iter().map(|(_, size)| size.kib()).collect();
    assert_eq!(sizes, [32 << 20, 32 << 20]);
}

/// Preferred takes far devices where near ones are gone, legacy looks for another cell or refuses.
#[test]
fn preferred_takes_far_devices() {
    let mut parts = even(2, 1, 4);
    add(&mut parts, GPU, 0x10, &[Some(0), Some(0), Some(1), Some(1)]);
    let topology = Topology::new(parts).unwrap();
    let guest = SPREAD.place(&topology, &[], &ask(1, 2)).unwrap();
    let other = SPREAD.place(&topology, std::slice::from_ref(&guest), &ask(1, 2)).unwrap();
    let guests = [guest, other];
    assert!(SPREAD.place(&topology, &guests, &ask(2, 4)).is_none());
    let preferred = Nova { affinity: Affinity::Preferred, ..SPREAD };
    let place = preferred.place(&topology, &guests, &ask(2, 4)).unwrap();
    assert_eq!((place.gpus.len(), place.memory.len()), (2, 1));
}
