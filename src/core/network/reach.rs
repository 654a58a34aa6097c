//! Who reaches whom on a network.

use super::{Kind, Mode};
use serde::Serialize;

/// Who reaches whom, in words for people: `yes`, `no`, or on which condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reach {
    /// Guests reach each other.
    pub guest_guest: &'static str,
    /// A guest and the host reach each other.
    pub guest_host: &'static str,
    /// A guest and other machines on the host's network reach each other.
    pub guest_lan: &'static str,
}

/// The condition of modes that need a switch that reflects packets.
const HAIRPIN: &str = "if the switch sends packets back (hairpin)";

impl Reach {
    /// Who reaches whom on a network of a kind; none for other kinds.
    ///
    /// macvtap has the modes of the kernel's macvlan, which never passes packets of the lower
    /// device itself to the upper ones, so that the host is reachable only through a switch.
    pub fn of(kind: Kind) -> Option<Reach> {
        let (guest_guest, guest_host, guest_lan) = match kind {
            Kind::Nat => ("yes", "yes", "outwards, by the host's address; not inwards"),
            Kind::Routed => ("yes", "yes", "if the others have a route to its range"),
            Kind::Private => ("yes", "yes", "no"),
            Kind::Isolated => ("yes", "no", "no"),
            Kind::Bridge => ("yes", "yes, where the bridge has an address of the host's", "yes"),
            Kind::Macvtap(Mode::Bridge) => {
                ("yes", "no; a second NIC on a private network does", "yes")
            }
            Kind::Macvtap(Mode::Private) => {
                ("no", "no; a second NIC on a private network does", "yes")
            }
            Kind::Macvtap(Mode::Vepa) => (HAIRPIN, HAIRPIN, "yes"),
            Kind::Macvtap(Mode::Passthrough) => {
                ("over the LAN: the NIC is one guest's", "over the LAN, by another NIC", "yes")
            }
            Kind::Sriov => ("yes, by the card", "yes, by the card", "yes"),
            Kind::Other => return None,
        };
        Some(Reach { guest_guest, guest_host, guest_lan })
    }

    /// Returns it as lines, each a pair and whether it is reachable.
    pub fn lines(self) -> [(&'static str, &'static str); 3] {
        [
            ("guest - guest", self.guest_guest),
            ("guest - host", self.guest_host),
            ("guest - LAN", self.guest_lan),
        ]
    }
}
