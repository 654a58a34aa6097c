//! The pages of section 7, written by hand in `man`: embedded, so that `gpuvm man` prints them
//! without an installation; and which of them explain a verb.

/// Every page with its text, in the order in which a newcomer reads them.
pub const PAGES: &[(&str, &str)] = &[
    ("gpuvm-guide", include_str!("../../man/gpuvm-guide.7")),
    ("gpuvm-tuning", include_str!("../../man/gpuvm-tuning.7")),
    ("gpuvm-networks", include_str!("../../man/gpuvm-networks.7")),
    ("gpuvm-drives", include_str!("../../man/gpuvm-drives.7")),
    ("gpuvm-placement", include_str!("../../man/gpuvm-placement.7")),
    ("gpuvm-export", include_str!("../../man/gpuvm-export.7")),
    ("gpuvm-safety", include_str!("../../man/gpuvm-safety.7")),
    ("gpuvm-slurm", include_str!("../../man/gpuvm-slurm.7")),
    ("gpuvm-nvidia-vm", include_str!("../../man/gpuvm-nvidia-vm.7")),
    ("gpuvm-ansible", include_str!("../../man/gpuvm-ansible.7")),
    ("gpuvm-codes", include_str!("../../man/gpuvm-codes.7")),
    ("gpuvm-hardware", include_str!("../../man/gpuvm-hardware.7")),
    ("gpuvm-glossary", include_str!("../../man/gpuvm-glossary.7")),
    ("gpuvm-design", include_str!("../../man/gpuvm-design.7")),
];

/// The text of a page, by its name with or without `gpuvm-`.
pub fn find(name: &str) -> Option<&'static str> {
    let name = name.strip_prefix("gpuvm-").unwrap_or(name);
    let is_it = |page: &str| page.strip_prefix("gpuvm-") == Some(name);
    PAGES.iter().find(|(page, _)| is_it(page)).map(|(_, text)| *text)
}

/// The pages that explain a verb, by the words of its command after `gpuvm`.
pub fn beside(words: &[&str]) -> Vec<&'static str> {
    let pages: &[&str] = match words {
        [] => return PAGES.iter().map(|(name, _)| *name).collect(),
        ["export", ..] => &["guide", "placement", "export"],
        ["plan" | "capacity", ..] => &["guide", "placement"],
        ["create", ..] => &["guide", "placement", "drives", "networks", "safety", "nvidia-vm"],
        ["delete", ..] => &["guide", "safety", "nvidia-vm"],
        ["make-room", ..] => &["guide", "placement", "safety"],
        ["apply" | "get", ..] => &["guide", "ansible"],
        ["check", ..] => &["codes", "guide"],
        ["verify", ..] => &["tuning", "codes"],
        ["nccl", ..] => &["hardware", "guide"],
        ["set" | "tune" | "undo" | "history", ..] => &["tuning", "safety"],
        ["recover", ..] => &["guide", "safety"],
        ["slurm", ..] => &["slurm", "safety"],
        ["network", "doctor", ..] => &["networks", "codes"],
        ["network" | "nic" | "ip", ..] => &["networks", "safety"],
        ["drive" | "image" | "seed", ..] => &["drives", "safety"],
        ["host", "pages" | "files" | "tuning" | "undo", ..] => &["tuning", "safety"],
        ["host", "modules" | "matrix", ..] => &["placement", "hardware"],
        ["host" | "gpu" | "device" | "vgpu", ..] => &["guide", "safety", "hardware"],
        _ => &["guide"],
    };
    let named = |short: &&str| {
        PAGES.iter().map(|(name, _)| *name).find(|name| name.strip_prefix("gpuvm-") == Some(*short))
    };
    pages.iter().filter_map(named).collect()
}
