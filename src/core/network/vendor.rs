//! The networks that the replaced tool knew by name (gpuvm-nvidia-vm(7), NETWORKS, FILES AND
//! DEFAULTS).

use super::{Kind, Mode};

/// What a name of the replaced tool's stands for; none: it is not one.
pub fn known(name: &str) -> Option<Kind> {
    match name {
        "default" => Some(Kind::Nat),
        "private-net" => Some(Kind::Private),
        "macvtap-net" => Some(Kind::Macvtap(Mode::Bridge)),
        "iovnet0" => Some(Kind::Sriov),
        _ => None,
    }
}
