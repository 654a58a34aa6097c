//! Judges a passed-through PCI function and the card behind it.

use super::report::Hops;
use super::{Case, HostSide, rules, wires};

/// Judges the path from a passed function outwards.
pub(super) fn judge(case: &Case<'_>, host: &HostSide, bdf: &str, hops: &mut Hops) {
    let name = format!("function {bdf}");
    let (Some(pf), Some(number)) = (&case.behind.pf, case.behind.vf) else {
        if case.behind.vf.is_none() {
            return hops.unchecked(&name, "not a virtual function: the guest owns the link");
        }
        let hint =
            "`gpuvm nic list` shows the cards; the card's driver has to be bound on the host";
        let expected = ("one on the host", "none");
        return hops.hop(&name).wrong(
            &rules::PF_MISSING,
            "its card's network device:",
            expected,
            bdf,
            hint,
        );
    };
    let Some(card) = host.device(pf) else {
        return hops.unchecked(&name, &format!("{pf} is in another network namespace"));
    };
    let at = format!("{pf} vf {number}");
    let hop = hops.hop(&format!("VF {number} of {pf}"));
    match card.vfs.get(&number) {
        None => hop.says("not reported by the card's driver"),
        Some(vf) => {
            if vf.disabled {
                let hint = format!("`ip link set {pf} vf {number} state auto`");
                hop.wrong(
                    &rules::VF_LINK,
                    "its link is",
                    ("auto or enabled", "disabled"),
                    &at,
                    hint,
                );
            }
            // A card that fixes no address reports zeros.
            let set = vf.mac.as_deref().filter(|mac| !mac.trim_matches(['0', ':']).is_empty());
            if let Some(mac) = set.filter(|mac| *mac != case.nic.mac)
                && vf.spoof_check != Some(false)
            {
                let hint = format!(
                    "`ip link set {pf} vf {number} mac {}`, or start the guest again",
                    case.nic.mac
                );
                hop.wrong(&rules::VF_SPOOF, "its MAC address is", (&case.nic.mac, mac), &at, hint);
            }
            let wanted = case.nic.vlan.unwrap_or(0);
            if let Some(vlan) = vf.vlan.filter(|vlan| *vlan != wanted) {
                let hint = format!(
                    "`ip link set {pf} vf {number} vlan {wanted}`, or <vlan> in the domain"
                );
                hop.wrong(
                    &rules::VF_VLAN,
                    "its VLAN is",
                    (vlan_word(wanted), vlan_word(vlan)),
                    &at,
                    hint,
                );
            }
            if hop.findings.is_empty() {
                hop.says(format!("VLAN {}", vlan_word(wanted)));
            }
        }
    }
    wires::down(host, card, (None, false), None, 0, hops);
}

fn vlan_word(vlan: u32) -> String {
    if vlan == 0 { "none".to_owned() } else { vlan.to_string() }
}
