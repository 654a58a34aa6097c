//! The networks that the replaced tool knew by name (spec/nvidia-vm.md 3).

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
