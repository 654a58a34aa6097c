//! Judges a macvtap on a NIC of the host.

use super::report::Hops;
use super::{Case, HostSide, mtu, rules, wires};
use crate::network::{Kind, Mode, Reach};
use crate::shell::word;

/// Judges the path from the macvtap outwards.
pub(super) fn judge(case: &Case<'_>, host: &HostSide, nic: &str, mode: Mode, hops: &mut Hops) {
    let device = case.nic.device.as_deref().filter(|_| case.running);
    let again = format!("start the guest again: `gpuvm restart {}`", word(case.guest));
    let Some(found) = host.device(nic) else {
        let hint = "name a NIC that is there: `ip -br link`; `gpuvm network create NAME --kind \
                    macvtap --nic NIC --replace`";
        let hop = hops.hop(&format!("NIC {nic}"));
        return hop.wrong(&rules::NIC_MISSING, "it is", ("there", "not there"), nic, hint);
    };
    match device {
        None => hops.unchecked("macvtap", "the guest is off, so it has none"),
        Some(name) => {
            let hop = hops.hop(&format!("macvtap {name}"));
            match host.device(name) {
                None => {
                    let hint = again.clone();
                    hop.wrong(&rules::TAP_MISSING, "it is", ("there", "not there"), name, hint);
                }
                Some(tap) => {
                    // The macvtap's own MTU does not limit the guest's packets: that of the NIC
                    // below counts.
                    hop.says(format!("MTU {}", tap.link.mtu));
                    if tap.link.up {
                        hop.says("up");
                    } else {
                        let hint = format!("`ip link set {name} up`", name = word(name));
                        hop.wrong(&rules::TAP_DOWN, "it is", ("up", "down"), name, hint);
                    }
                    hop.says(format!("mode {}", tap.mode.unwrap_or(mode).word()));
                    if let Some(below) =
                        tap.link.over.as_ref().filter(|over| **over != found.link.name)
                    {
                        let hint = again.clone();
                        hop.wrong(&rules::MACVTAP_NIC, "it stands on", (nic, below), name, hint);
                    }
                }
            }
            if mode == Mode::Vepa {
                let hint =
                    "turn on hairpin (reflective relay) at the switch's port, or use mode bridge";
                let at = format!("the switch behind {nic}");
                let what = "packets to other guests of this NIC come back:";
                hop.wrong(&rules::HAIRPIN, what, ("yes", "not known from here"), at, hint);
            }
        }
    }
    let wanted = mtu::wanted(case, device.and_then(|name| host.device(name)));
    wires::down(host, found, (None, false), wanted, 2, hops);
}

/// Returns a note on limits by design.
pub(super) fn notes(mode: Mode) -> Option<String> {
    let reach = Reach::of(Kind::Macvtap(mode))?;
    let on = format!("by design of macvtap in mode {}", mode.word());
    Some(format!("guest - host: {} ({on})", reach.guest_host))
}
