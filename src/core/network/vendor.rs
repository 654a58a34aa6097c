//! The networks that `nvidia-vm` knows by name (gpuvm-nvidia-vm(7), NETWORKS, FILES AND DEFAULTS).

use super::{Kind, Mode};

/// Returns the kind of a network by its `nvidia-vm` name; `None` if not such a name.
pub fn known(name: &str) -> Option<Kind> {
    match name {
        "default" => Some(Kind::Nat),
        "private-net" => Some(Kind::Private),
        "macvtap-net" => Some(Kind::Macvtap(Mode::Bridge)),
        "iovnet0" => Some(Kind::Sriov),
        _ => None,
    }
}
