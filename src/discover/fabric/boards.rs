//! The boards whose NVLink fabric is published: how many parts each has, and which sets of GPUs form a guest.
//!
//! Tables only (spec/nvswitch.md 1.1, 2.1, 3.1, 7; spec/nvidia-vm.md 2.1). They are for planning; the host's Fabric
//! Manager, where one runs, has the last word.

/// Is how the sets of GPUs of a board are ruled.
#[derive(Debug, Clone, Copy)]
pub enum Sets {
    /// Any set may form a guest; GPUs are linked directly: pairs by GPU index, with the count of links.
    Mesh(&'static [(usize, usize, u32)]),
    /// Any set may form a guest; every GPU reaches every other over switches outside of the host.
    Rack,
    /// Aligned runs of GPUs by address, largest first; guests get NVSwitches along.
    Runs(&'static [Run]),
    /// Fabric Manager's list, by module id; the switches stay with the host.
    ByModule {
        /// Number of the first partition of the list.
        first_id: u32,
        /// Module ids of each partition of more than one GPU; the single ones follow.
        sets: &'static [&'static [u32]],
    },
}

/// Is one size of guest in full passthrough.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// GPUs; also what the first one's index is a multiple of.
    pub gpus: usize,
    /// NVLinks of each GPU that work.
    pub links: u32,
    /// NVSwitches that go along.
    pub switches: usize,
}

/// Is a machine of NVIDIA's.
#[derive(Debug)]
pub struct Machine {
    /// What its DMI product name holds once everything but letters and digits is left out.
    pub product: &'static str,
    /// Its name as people say it.
    pub name: &'static str,
    /// GPU boards in it.
    pub boards: usize,
    /// Whether its module ids were published as 1 to 8 in order of the bus (spec/nvswitch.md 5.2).
    pub modules_by_bus: bool,
}

/// Is a kind of GPU board.
#[derive(Debug)]
pub struct Board {
    /// Name as people say it, without the maker's machine.
    pub name: &'static str,
    /// Machines that NVIDIA sells with it.
    pub machines: &'static [Machine],
    /// Whether the tables hold on those machines only.
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

/// Links of DGX-1's hybrid cube mesh with V100 (hosts/README.md 3), by GPU index.
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

/// Sizes on HGX-2.
const HGX2: &[Run] = &[
    Run { gpus: 16, links: 6, switches: 12 },
    Run { gpus: 8, links: 6, switches: 6 },
    Run { gpus: 4, links: 3, switches: 3 },
    Run { gpus: 2, links: 1, switches: 1 },
    Run { gpus: 1, links: 0, switches: 0 },
];

/// Sizes on HGX A100.
const A100: &[Run] = &[
    Run { gpus: 16, links: 12, switches: 12 },
    Run { gpus: 8, links: 12, switches: 6 },
    Run { gpus: 4, links: 6, switches: 3 },
    Run { gpus: 2, links: 2, switches: 1 },
    Run { gpus: 1, links: 0, switches: 0 },
];

/// Module ids of the sets of HGX H100, H200, H800 and H20.
const HOPPER: Sets = Sets::ByModule {
    first_id: 0,
    sets: &[
        &[1, 2, 3, 4, 5, 6, 7, 8],
        &[1, 2, 3, 4],
        &[5, 6, 7, 8],
        &[1, 3],
        &[2, 4],
        &[5, 7],
        &[6, 8],
    ],
};

/// Module ids of the sets of HGX B200 and B300; the pairs differ from Hopper's.
const BLACKWELL: Sets = Sets::ByModule {
    first_id: 1,
    sets: &[
        &[1, 2, 3, 4, 5, 6, 7, 8],
        &[1, 2, 3, 4],
        &[5, 6, 7, 8],
        &[1, 2],
        &[3, 4],
        &[5, 6],
        &[7, 8],
    ],
};

/// A machine whose module ids are not published.
const fn machine(product: &'static str, name: &'static str, boards: usize) -> Machine {
    Machine { product, name, boards, modules_by_bus: false }
}

/// DGX H100.
const DGX_H100: Machine = Machine { modules_by_bus: true, ..machine("DGXH100", "DGX H100", 1) };

/// DGX H200; GPUs of both ids were seen in it.
const DGX_H200: Machine = Machine { modules_by_bus: true, ..machine("DGXH200", "DGX H200", 1) };

/// Is what boards of eight GPUs without a machine of NVIDIA's have in common.
const EIGHT: Board = Board {
    name: "",
    machines: &[],
    only_machines: false,
    gpu_ids: &[],
    gpus: 8,
    switches: 0,
    most: 1,
    links: 18,
    sets: HOPPER,
};

/// Every board that is known. GPUs that stand in two of them differ in their count.
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
        sets: Sets::Runs(HGX2),
        ..EIGHT
    },
    Board {
        name: "HGX A100",
        machines: &[machine("DGXA100", "DGX A100", 1)],
        gpu_ids: &[0x20b0, 0x20b2, 0x20b3, 0x20bd, 0x20f3],
        switches: 6,
        most: 2,
        links: 12,
        sets: Sets::Runs(A100),
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
    Board { name: "HGX H800", gpu_ids: &[0x2324], switches: 4, links: 8, ..EIGHT },
    Board { name: "HGX H20", gpu_ids: &[0x2329, 0x232c], switches: 4, ..EIGHT },
    Board {
        name: "HGX B200",
        machines: &[machine("DGXB200", "DGX B200", 1)],
        gpu_ids: &[0x2901, 0x29bc],
        sets: BLACKWELL,
        ..EIGHT
    },
    Board {
        name: "HGX B300",
        machines: &[machine("DGXB300", "DGX B300", 1)],
        gpu_ids: &[0x3182, 0x31c2],
        sets: BLACKWELL,
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

    #[test]
    fn sets_by_module_name_each_gpu_once_per_size() {
        for board in BOARDS {
            let Sets::ByModule { sets, .. } = board.sets else { continue };
            for size in [8, 4, 2] {
                let mut ids: Vec<u32> = sets
                    .iter()
                    .filter(|s| s.len() == size)
                    .flat_map(|s| s.iter().copied())
                    .collect();
                ids.sort_unstable();
                assert_eq!(ids, [1, 2, 3, 4, 5, 6, 7, 8], "{} size {size}", board.name);
            }
        }
    }

    #[test]
    fn runs_use_no_more_than_a_board_has() {
        for board in BOARDS {
            let Sets::Runs(runs) = board.sets else { continue };
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
            }
        }
    }
}
