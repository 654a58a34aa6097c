//! Which settings a guest's NIC may have, by the kind of its network: libvirt reports it only when
//! the guest starts.

use super::{NetworkError, read};
use crate::domain::nic_request::NicWish;
use crate::error::{Coded as _, Result};
use crate::hypervisor::Hypervisor;
use crate::network::{Kind, known};
use gpuvm_core::versions::Version;

/// The first libvirt that supports VLAN tags for NICs on a Linux bridge.
const BRIDGE_VLANS: Version = Version(11, 0, 0);

/// Refuses settings that the networks of these NICs do not support. Of a missing network only the
/// kind implied by its name is known.
pub fn refuse_unfit(wishes: &[NicWish], hypervisor: &dyn Hypervisor) -> Result<()> {
    let settings = |wish: &&NicWish| !wish.settings.is_plain();
    if !wishes.iter().any(|wish| settings(&wish)) {
        return Ok(());
    }
    let states = hypervisor.networks().all_networks()?;
    let libvirt = hypervisor.versions().libvirt;
    for wish in wishes.iter().filter(settings) {
        let state = states.iter().find(|state| state.name == wish.network);
        let kind = match state {
            Some(state) => Some(read(state)?.kind),
            None => known(&wish.network),
        };
        let switched = state.is_some_and(|state| state.now().contains("type='openvswitch'"));
        let Some(kind) = kind else { continue };
        if let Some((words, hint)) = unfit(wish, kind, switched, libvirt) {
            return Err(NetworkError::NicSetting {
                words: words.to_string(),
                network: wish.network.to_string(),
                kind: kind.to_string(),
            }
            .hint(hint));
        }
    }
    Ok(())
}

/// The settings that a kind of network does not take, and the remedy; `None` if it accepts all.
fn unfit(
    wish: &NicWish,
    kind: Kind,
    switched: bool,
    libvirt: Option<Version>,
) -> Option<(String, &'static str)> {
    let words = wish.settings.words();
    let named = |unfit: &[&str]| {
        let found: Vec<&str> = words.iter().filter(|word| unfit.contains(word)).copied().collect();
        (!found.is_empty()).then(|| found.join(" "))
    };
    match kind {
        Kind::Sriov => named(&["model=", "queues=", "mtu=", "inbound=", "outbound="])
            .map(|words| (words, "a virtual function is configured in the guest; mac= and vlan= \
                                  are set on its card")),
        Kind::Macvtap(_) if wish.settings.mtu.is_some() => {
            Some(("mtu=".into(), "a macvtap has its NIC's MTU, and the guest sets its own"))
        }
        Kind::Bridge if switched => None,
        Kind::Bridge if libvirt.is_none_or(|libvirt| libvirt >= BRIDGE_VLANS) => None,
        Kind::Bridge => named(&["vlan="])
            .map(|words| (words, "libvirt does that from 11.0 on, on a bridge with VLAN filtering")),
        Kind::Other => None,
        Kind::Nat | Kind::Private | Kind::Macvtap(_) | Kind::Routed | Kind::Isolated => named(&["vlan="])
            .map(|words| (words, "only a bridge of the host's and virtual functions take a VLAN; or set it in the guest")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::nic_request::NicSettings;
    use crate::network::Mode;

    #[test]
    fn a_kind_takes_what_libvirt_starts_with() {
        let vlan = NicSettings { vlan: Some(5), ..NicSettings::default() };
        let mtu = NicSettings { mtu: Some(9000), ..NicSettings::default() };
        let both = NicSettings { mtu: Some(9000), ..vlan.clone() };
        let said = |settings: &NicSettings, kind, switched, libvirt| {
            let wish = NicWish { network: "n".into(), settings: settings.clone() };
            unfit(&wish, kind, switched, libvirt).map(|(words, _)| words)
        };
        let (old, new) = (Version(9, 0, 0), BRIDGE_VLANS);
        let is = |words: &str| Some(words.to_owned());
        assert_eq!(said(&vlan, Kind::Nat, false, Some(new)), is("vlan="));
        assert_eq!(said(&mtu, Kind::Nat, false, Some(new)), None);
        assert_eq!(said(&both, Kind::Sriov, false, Some(new)), is("mtu="));
        assert_eq!(said(&both, Kind::Macvtap(Mode::Bridge), false, Some(new)), is("mtu="));
        assert_eq!(said(&vlan, Kind::Macvtap(Mode::Vepa), false, Some(new)), is("vlan="));
        assert_eq!(said(&both, Kind::Bridge, false, Some(new)), None);
        assert_eq!(said(&vlan, Kind::Bridge, false, Some(old)), is("vlan="));
        assert_eq!(said(&vlan, Kind::Bridge, true, Some(old)), None);
    }
}
