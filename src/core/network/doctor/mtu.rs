//! Compares the MTU on each hop of one link layer with the guest's.

use super::report::Hop;
use super::{Case, Device, rules};
use crate::finding::Rule;
use crate::shell::word;

/// Returns the largest packet that the guest may send, in bytes, from the first source that has it:
/// the guest itself if larger, its NIC, its network, its device on the host.
pub(super) fn wanted(case: &Case<'_>, device: Option<&Device>) -> Option<u32> {
    let network = case.on.network().and_then(|network| network.mtu);
    let offered = case.nic.mtu.or(network).or(device.map(|device| device.link.mtu));
    let inside = case.inside.as_ref().and_then(|inside| inside.mtu);
    offered.max(inside)
}

/// Judges the MTU of a hop that sends packets: the kernel drops larger ones.
pub(super) fn judge(hop: &mut Hop, device: &Device, wanted: Option<u32>) {
    compare(hop, device, wanted, &rules::MTU_SMALLER, false);
}

/// Judges the MTU of a bridge, which the kernel ignores between two ports; `from_host`: the host
/// has an address there, so that its packets may be too large for the guest.
pub(super) fn judge_bridge(hop: &mut Hop, device: &Device, wanted: Option<u32>, from_host: bool) {
    compare(hop, device, wanted, &rules::BRIDGE_MTU, from_host);
}

/// Judges an MTU: `smaller` is the rule of one that is too small.
fn compare(
    hop: &mut Hop,
    device: &Device,
    wanted: Option<u32>,
    smaller: &'static Rule,
    from_host: bool,
) {
    let (name, mtu) = (&device.link.name, device.link.mtu);
    hop.says(format!("MTU {mtu}"));
    let Some(wanted) = wanted else { return };
    let hint = format!(
        "`ip link set {name} mtu {wanted}`, and in the host's network configuration",
        name = word(name)
    );
    let rule = match mtu {
        mtu if mtu < wanted => smaller,
        mtu if mtu > wanted && from_host => &rules::MTU_LARGER,
        _ => return,
    };
    hop.wrong(rule, "its MTU is", (wanted, mtu), name, hint);
}
