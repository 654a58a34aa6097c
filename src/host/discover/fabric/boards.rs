//! The boards whose NVLink fabric is published: the number of parts, and the sets of GPUs that may
//! form a guest.
//!
//! Tables only (gpuvm-hardware(7), BOARDS to SHARED NVSWITCH). They are for planning; a running
//! Fabric Manager takes precedence.

use super::lists::{
    A100, A100_SHARED, A800, B200, BLACKWELL, H100, H800, HGX2, HGX2_SHARED, HOPPER, Run, Shared,
};
use gpuvm_core::topology::FabricModel;

/// The rule for sets of GPUs on a board.
#[derive(Debug, Clone, Copy)]
pub enum Sets {
    /// Any set may form a guest; GPUs are linked directly: pairs by GPU index, with the count of
    /// links.
    Mesh(&'static [(usize, usize, u32)]),
    /// Any set may form a guest; every GPU reaches every other over switches outside of the host.
    Rack,
    /// The board has NVSwitches of its own; guests get them, too, or Fabric Manager controls them.
    Switched {
        /// Sizes in full passthrough, largest first.
        runs: &'static [Run],
        /// Fabric Manager's list.
        shared: &'static Shared,
        /// The default model if the host does not report it.
        usual: FabricModel,
    },
}

/// An NVIDIA machine.
#[derive(Debug)]
pub struct Machine {
    /// A part of its DMI product name, letters and digits only.
    pub product: &'static str,
    /// Its common name.
    pub name: &'static str,
    /// GPU boards in it.
    pub boards: usize,
    /// Whether its published module ids are 1 to 8 in bus order (gpuvm-hardware(7), MODULE IDS).
    pub modules_by_bus: bool,
}

/// A kind of GPU board.
#[derive(Debug)]
pub struct Board {
    /// Its common name, without NVIDIA's machine.
    pub name: &'static str,
    /// Machines that NVIDIA sells with it.
    pub machines: &'static [Machine],
    /// Whether the tables apply to those machines only.
    pub only_machines: bool,
    /// PCI device ids of its GPUs.
    pub gpu_ids: &'static [u16],
    /// GPUs of one board.
    pub gpus: usize,
    /// NVSwitches on PCI of one board.
    pub switches: usize,
    /// Boards that a host can have.
    pub most: usize,
    /// NVLinks of each GPU.
    pub links: u32,
    /// The rule of its sets.
    pub sets: Sets,
}

impl Board {
    /// Returns the number of GPUs in Fabric Manager's list: those of all boards that a host can
    /// have.
    pub fn gpus_in_list(&self) -> usize {
        self.gpus * self.most
    }
}

/// Links of DGX-1's hybrid cube mesh with V100 (gpuvm-hardware(7), BOARDS), by GPU index.
const DGX1: &[(usize, usize, u32)] = &[
    (0, 1, 1),
    (0, 2, 1),
    (0, 3, 2),
    (0, 4, 2),
    (1, 2, 2),
    (1, 3, 1),
    (1, 5, 2),
    (2, 3, 2),
    (2, 6, 1),
    (3, 7, 1),
    (4, 5, 1),
    (4, 6, 1),
    (4, 7, 2),
    (5, 6, 2),
    (5, 7, 1),
    (6, 7, 2),
];

/// A machine whose module ids are not published.
const fn machine(product: &'static str, name: &'static str, boards: usize) -> Machine {
    Machine { product, name, boards, modules_by_bus: false }
}

/// The rule of a board whose switches usually stay with Fabric Manager.
const fn by_fabric_manager(runs: &'static [Run], shared: &'static Shared) -> Sets {
    Sets::Switched { runs, shared, usual: FabricModel::SharedNvswitch }
}

/// The rule of a board whose switches usually go along with its GPUs.
const fn passed(runs: &'static [Run], shared: &'static Shared) -> Sets {
    Sets::Switched { runs, shared, usual: FabricModel::FullPassthrough }
}

/// DGX H100.
const DGX_H100: Machine = Machine { modules_by_bus: true, ..machine("DGXH100", "DGX H100", 1) };

/// DGX H200; GPUs of both ids were seen in it.
const DGX_H200: Machine = Machine { modules_by_bus: true, ..machine("DGXH200", "DGX H200", 1) };

/// The common part of boards with eight GPUs and no NVIDIA machine.
const EIGHT: Board = Board {
    name: "",
    machines: &[],
    only_machines: false,
    gpu_ids: &[],
    gpus: 8,
    switches: 0,
    most: 1,
    links: 18,
    sets: by_fabric_manager(H100, &HOPPER),
};

/// Every known board. Boards with the same GPUs differ in their count.
pub const BOARDS: &[Board] = &[
    Board {
        name: "DGX-1",
        machines: &[machine("DGX1", "DGX-1", 1)],
        only_machines: true,
        gpu_ids: &[0x1db1, 0x1db5],
        links: 6,
        sets: Sets::Mesh(DGX1),
        ..EIGHT
    },
    Board {
        name: "HGX-2",
        machines: &[machine("DGX2", "DGX-2", 2)],
        gpu_ids: &[0x1db8],
        switches: 6,
        most: 2,
        links: 6,
        sets: passed(HGX2, &HGX2_SHARED),
        ..EIGHT
    },
    Board {
        name: "HGX A100",
        machines: &[machine("DGXA100", "DGX A100", 1)],
        gpu_ids: &[0x20b0, 0x20b2, 0x20b3],
        switches: 6,
        most: 2,
        links: 12,
        sets: passed(A100, &A100_SHARED),
        ..EIGHT
    },
    // The variant for export: pci.ids 20bd "A800 SXM4 40GB", 20f3 "A800-SXM4-80GB"; 8 links of 50
    // GB/s in place of 12, which `nvidia-smi topo -m` shows as NV8 (NVIDIA/nccl issue 933). Which
    // four links are disabled is not published.
    Board {
        name: "HGX A800",
        machines: &[machine("DGXA800", "DGX A800", 1)],
        gpu_ids: &[0x20bd, 0x20f3],
        switches: 6,
        most: 2,
        links: 8,
        sets: passed(A800, &A100_SHARED),
        ..EIGHT
    },
    Board {
        name: "HGX H100",
        machines: &[DGX_H100, DGX_H200],
        gpu_ids: &[0x2330, 0x2336, 0x2337, 0x2338, 0x2339],
        switches: 4,
        ..EIGHT
    },
    Board { name: "HGX H200", machines: &[DGX_H200], gpu_ids: &[0x2335], switches: 4, ..EIGHT },
    Board {
        name: "HGX H800",
        gpu_ids: &[0x2324],
        switches: 4,
        links: 8,
        sets: by_fabric_manager(H800, &HOPPER),
        ..EIGHT
    },
    Board { name: "HGX H20", gpu_ids: &[0x2329, 0x232c], switches: 4, ..EIGHT },
    Board {
        name: "HGX B200",
        machines: &[machine("DGXB200", "DGX B200", 1)],
        gpu_ids: &[0x2901, 0x29bc],
        sets: by_fabric_manager(B200, &BLACKWELL),
        ..EIGHT
    },
    Board {
        name: "HGX B300",
        machines: &[machine("DGXB300", "DGX B300", 1)],
        gpu_ids: &[0x3182, 0x31c2],
        sets: by_fabric_manager(B200, &BLACKWELL),
        ..EIGHT
    },
    Board { name: "GB200 tray", gpu_ids: &[0x2941], gpus: 4, sets: Sets::Rack, ..EIGHT },
    Board { name: "GB300 tray", gpu_ids: &[0x31c2], gpus: 4, sets: Sets::Rack, ..EIGHT },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gpu_of_the_cube_mesh_has_six_links() {
        for gpu in 0..8 {
            let links = DGX1.iter().filter(|(a, b, _)| *a == gpu || *b == gpu);
            assert_eq!(links.map(|(_, _, n)| n).sum::<u32>(), 6, "GPU {gpu}");
        }
    }

    /// Boards with switches of their own.
    fn switched() -> impl Iterator<Item = (&'static Board, &'static [Run], &'static Shared)> {
        BOARDS.iter().filter_map(|board| match board.sets {
            Sets::Switched { runs, shared, .. } => Some((board, runs, shared)),
            _ => None,
        })
    }

    #[test]
    fn shared_lists_name_each_gpu_as_often_for_every_size() {
        for (board, _, shared) in switched() {
            let most = board.gpus * board.most;
            for size in [16, 8, 4, 2].into_iter().filter(|size| *size <= most) {
                let sets = shared.sets.iter().filter(|set| set.len() == size);
                let mut ids: Vec<u32> = sets.flat_map(|set| set.iter().copied()).collect();
                ids.sort_unstable();
                let times = ids.len() / most;
                let each = (1..=u32::try_from(most).unwrap()).flat_map(|id| vec![id; times]);
                assert_eq!(ids, each.collect::<Vec<_>>(), "{} size {size}", board.name);
                // Sets of 8 are listed once per board, and once or twice across boards.
                let whole = if board.gpus_in_list() == 16 && size == 8 { 2..=3 } else { 1..=1 };
                assert!(whole.contains(&times), "{} size {size}: {times}", board.name);
            }
            for set in shared.sets {
                assert!(set.is_sorted(), "{}: {set:?}", board.name);
            }
        }
    }

    #[test]
    fn lists_are_as_long_as_published() {
        let length = |name: &str| {
            let (board, _, shared) = switched().find(|(board, ..)| board.name == name).unwrap();
            let all = shared.sets.len() + board.gpus_in_list();
            (shared.first_id, all, shared.sets.len() - shared.unreduced)
        };
        assert_eq!(length("HGX-2"), (0, 33, 14));
        assert_eq!(length("HGX A100"), (0, 35, 0));
        for hopper in ["HGX H100", "HGX H200", "HGX H800", "HGX H20"] {
            assert_eq!(length(hopper), (0, 15, 0));
        }
        for blackwell in ["HGX B200", "HGX B300"] {
            assert_eq!(length(blackwell), (1, 15, 0));
        }
    }

    #[test]
    fn runs_use_no_more_than_a_board_has() {
        for (board, runs, _) in switched() {
            for run in runs {
                assert!(run.links <= board.links && run.gpus <= board.gpus * board.most);
                assert_eq!(
                    run.switches * board.gpus,
                    match run.gpus {
                        1 => 0,
                        2 => board.gpus,
                        4 => 3 * board.gpus,
                        n => n * board.switches,
                    },
                    "{} of {}",
                    run.gpus,
                    board.name
                );
                // Guests of a whole board have all links, and single GPUs none.
                let links = match run.gpus {
                    1 => 0,
                    8 | 16 => board.links,
                    // Every switch of the guest has as many links to each of its GPUs.
                    _ => board.links * u32::try_from(run.switches).unwrap() / 6,
                };
                assert_eq!(run.links, links, "{} of {}", run.gpus, board.name);
            }
        }
    }
}
