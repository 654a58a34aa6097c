//! The sets of GPUs that may form a guest on boards with NVSwitches: sizes in full passthrough
//! (gpuvm-hardware(7), FULL PASSTHROUGH) and Fabric Manager's lists (SHARED NVSWITCH). Tables only.

/// Fabric Manager's list of a kind of board, by module id; single GPUs follow the sets.
#[derive(Debug)]
pub struct Shared {
    /// Number of the first partition.
    pub first_id: u32,
    /// Module ids of each partition of more than one GPU.
    pub sets: &'static [&'static [u32]],
    /// How many of the first sets have all NVLinks of their GPUs; the others have one fewer:
    /// switches of the first generation reset ports in pairs only.
    pub unreduced: usize,
    /// Whether a GPU's reset after its partition was activated disables its NVLinks
    /// (gpuvm-hardware(7), SHARED NVSWITCH).
    pub reset_cuts_links: bool,
}

/// One size of guest in full passthrough.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// Number of GPUs; the first index is a multiple of it.
    pub gpus: usize,
    /// Working NVLinks of each GPU.
    pub links: u32,
    /// NVSwitches that go along.
    pub switches: usize,
}

/// Sizes on HGX-2.
pub const HGX2: &[Run] = &[
    Run { gpus: 16, links: 6, switches: 12 },
    Run { gpus: 8, links: 6, switches: 6 },
    Run { gpus: 4, links: 3, switches: 3 },
    Run { gpus: 2, links: 1, switches: 1 },
    Run { gpus: 1, links: 0, switches: 0 },
];

/// Sizes on HGX A100.
pub const A100: &[Run] = &[
    Run { gpus: 16, links: 12, switches: 12 },
    Run { gpus: 8, links: 12, switches: 6 },
    Run { gpus: 4, links: 6, switches: 3 },
    Run { gpus: 2, links: 2, switches: 1 },
    Run { gpus: 1, links: 0, switches: 0 },
];

/// Sizes on HGX A800: those of HGX A100 with its share of links.
pub const A800: &[Run] = &[
    Run { gpus: 16, links: 8, switches: 12 },
    Run { gpus: 8, links: 8, switches: 6 },
    Run { gpus: 4, links: 4, switches: 3 },
    Run { gpus: 2, links: 1, switches: 1 },
    Run { gpus: 1, links: 0, switches: 0 },
];

/// Sizes on HGX H100, H200 and H20.
pub const H100: &[Run] =
    &[Run { gpus: 8, links: 18, switches: 4 }, Run { gpus: 1, links: 0, switches: 0 }];

/// Sizes on HGX H800.
pub const H800: &[Run] =
    &[Run { gpus: 8, links: 8, switches: 4 }, Run { gpus: 1, links: 0, switches: 0 }];

/// Sizes on HGX B200 and B300, whose switches are not PCI functions.
pub const B200: &[Run] =
    &[Run { gpus: 8, links: 18, switches: 0 }, Run { gpus: 1, links: 0, switches: 0 }];

/// Fabric Manager's list on HGX-2: 33 partitions, those of single GPUs from 17 on.
pub const HGX2_SHARED: Shared = Shared {
    first_id: 0,
    sets: &[
        &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
        &[1, 2, 3, 4, 5, 6, 7, 8],
        &[9, 10, 11, 12, 13, 14, 15, 16],
        &[1, 4, 6, 7, 9, 12, 14, 15],
        &[2, 3, 5, 8, 10, 11, 13, 16],
        &[1, 4, 6, 7],
        &[2, 3, 5, 8],
        &[9, 12, 14, 15],
        &[10, 11, 13, 16],
        &[1, 4],
        &[2, 3],
        &[5, 8],
        &[6, 7],
        &[9, 12],
        &[10, 11],
        &[13, 16],
        &[14, 15],
    ],
    unreduced: 3,
    reset_cuts_links: true,
};

/// Fabric Manager's list on two boards HGX A100; a single board has the part with its own modules.
pub const A100_SHARED: Shared = Shared {
    first_id: 0,
    sets: &[
        &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
        &[1, 2, 3, 4, 5, 6, 7, 8],
        &[9, 10, 11, 12, 13, 14, 15, 16],
        &[1, 2, 3, 4, 9, 10, 11, 12],
        &[5, 6, 7, 8, 13, 14, 15, 16],
        &[1, 2, 3, 4, 13, 14, 15, 16],
        &[5, 6, 7, 8, 9, 10, 11, 12],
        &[1, 2, 3, 4],
        &[5, 6, 7, 8],
        &[9, 10, 11, 12],
        &[13, 14, 15, 16],
        &[1, 2],
        &[3, 4],
        &[5, 6],
        &[7, 8],
        &[9, 10],
        &[11, 12],
        &[13, 14],
        &[15, 16],
    ],
    unreduced: 19,
    reset_cuts_links: true,
};

/// Fabric Manager's list on HGX H100, H200, H800 and H20.
pub const HOPPER: Shared = Shared {
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
    unreduced: 7,
    reset_cuts_links: false,
};

/// Fabric Manager's list on HGX B200 and B300; the pairs differ from Hopper's.
pub const BLACKWELL: Shared = Shared {
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
    unreduced: 7,
    reset_cuts_links: false,
};
