//! The rules of path findings; their names never change.

use crate::finding::Rule;

/// Like an unplugged cable; set in the domain.
pub const NIC_LINK: Rule =
    Rule::error("nic-link-down", "a NIC whose link is taken down in the domain");
/// The guest has no driver for it, or it was unplugged from inside.
pub const INSIDE_MISSING: Rule =
    Rule::error("guest-nic-missing", "a NIC that the guest does not see");
/// The guest's own setting.
pub const INSIDE_DOWN: Rule = Rule::error("guest-nic-down", "a NIC that is down in the guest");
/// The guest sends smaller packets than it could; larger ones sent to it may be lost.
pub const INSIDE_MTU: Rule =
    Rule::warning("guest-mtu", "a guest that uses another MTU than its NIC offers");
/// It was deleted after the guest was made.
pub const NETWORK_MISSING: Rule =
    Rule::error("network-missing", "a libvirt network that does not exist");
/// Guests do not start on it, and running ones lose their bridge.
pub const NETWORK_DOWN: Rule = Rule::error("network-down", "a libvirt network that is down");
/// QEMU's end of the cable.
pub const TAP_MISSING: Rule =
    Rule::error("tap-missing", "a guest's device that the host does not have");
/// Set by hand; libvirt brings it up at start.
pub const TAP_DOWN: Rule = Rule::error("tap-down", "a guest's device that is down on the host");
/// The network was restarted under a running guest, or the tap was removed by hand.
pub const TAP_LOOSE: Rule =
    Rule::error("tap-not-in-bridge", "a tap that is not a port of its bridge");
/// The spanning tree protocol waits, or has cut a loop.
pub const PORT_STATE: Rule =
    Rule::error("port-not-forwarding", "a port that its bridge does not pass packets to");
/// Without it nothing is connected.
pub const BRIDGE_MISSING: Rule = Rule::error("bridge-missing", "a bridge that does not exist");
/// Set by hand, or its network is down.
pub const BRIDGE_DOWN: Rule = Rule::error("bridge-down", "a bridge that is down");
/// Only guests and host reach each other.
pub const BRIDGE_ALONE: Rule =
    Rule::warning("bridge-without-nic", "a bridge of the host's without a NIC");
/// The way to the LAN.
pub const NIC_MISSING: Rule = Rule::error("nic-missing", "a network device that does not exist");
/// Set by hand, or by the host's configuration.
pub const NIC_DOWN: Rule = Rule::error("nic-down", "a network device of the path that is down");
/// Cable, switch, or a port that is off there.
pub const NIC_CARRIER: Rule =
    Rule::error("nic-no-carrier", "a network device of the path without a link");
/// The other ports still work.
pub const PORT_LOST: Rule =
    Rule::warning("port-lost", "one of several NICs of a bridge or bond that is out");
/// No NIC of it works.
pub const BOND_EMPTY: Rule =
    Rule::error("bond-without-port", "a bond none of whose NICs has a link");
/// Larger packets are lost there silently.
pub const MTU_SMALLER: Rule =
    Rule::error("mtu-smaller", "a hop with a smaller MTU than the guest's NIC");
/// Larger packets pass between two ports, but the host itself sends none, and the next tap gets
/// this MTU.
pub const BRIDGE_MTU: Rule =
    Rule::warning("bridge-mtu", "a bridge with a smaller MTU than the guest's NIC");
/// Packets from the host may be too large for the guest.
pub const MTU_LARGER: Rule =
    Rule::warning("mtu-larger", "a bridge with a larger MTU than the guest's NIC");
/// libvirt sets it when a network of this kind starts; something has reset it.
pub const FORWARDING: Rule =
    Rule::error("forwarding-off", "a host that does not forward IPv4 packets");
/// Docker's policy, firewalld, ufw, or a rule by hand.
pub const FIREWALL: Rule = Rule::error("firewall", "a firewall that drops the guest's packets");
/// Nothing beyond the host is reachable.
pub const NO_ROUTE: Rule = Rule::warning("host-without-route", "a host without a default route");
/// It ended, or never came up.
pub const DNSMASQ: Rule =
    Rule::error("dnsmasq-missing", "a network with DHCP whose server does not run");
/// Its NIC is down inside, or has no driver there.
pub const NO_ADDRESS: Rule = Rule::error(
    "no-address",
    "a guest that has no address where DHCP gives one, and has sent nothing",
);
/// It has a static one and is silent, or DHCP gives it none.
pub const ADDRESS_UNKNOWN: Rule =
    Rule::warning("address-unknown", "a guest that sends, and has no lease where DHCP gives one");
/// Two devices have the same address.
pub const CONFLICT: Rule =
    Rule::error("address-twice", "an address that another MAC address answers for");
/// A copied guest.
pub const MAC_ELSEWHERE: Rule =
    Rule::error("mac-elsewhere", "a MAC address that the bridge hears on another port");
/// A definition copied without removing its MAC address.
pub const MAC_SHARED: Rule =
    Rule::error("mac-shared", "a MAC address that another domain of the host has, too");
/// The host's route leads elsewhere: ranges overlap.
pub const ROUTE: Rule =
    Rule::error("route-elsewhere", "a host that looks for the guest on another network device");
/// The macvtap was made on another NIC, or was moved.
pub const MACVTAP_NIC: Rule =
    Rule::error("macvtap-elsewhere", "a macvtap on another NIC than the domain's");
/// The switch decides.
pub const HAIRPIN: Rule = Rule::warning(
    "vepa-needs-hairpin",
    "guests that reach each other only over a switch that sends back",
);
/// The card has no network device of its own on the host.
pub const PF_MISSING: Rule =
    Rule::error("pf-missing", "a virtual function whose card has no network device");
/// Set on the card.
pub const VF_LINK: Rule =
    Rule::error("vf-link-disabled", "a virtual function whose link is disabled");
/// The card drops its packets.
pub const VF_SPOOF: Rule = Rule::error(
    "vf-foreign-mac",
    "a checked virtual function with another MAC address than the NIC's",
);
/// Neither side hears the other.
pub const VF_VLAN: Rule =
    Rule::error("vf-vlan", "a virtual function on another VLAN than the domain's");

/// Every rule.
pub const RULES: &[Rule] = &[
    NIC_LINK,
    INSIDE_MISSING,
    INSIDE_DOWN,
    INSIDE_MTU,
    NETWORK_MISSING,
    NETWORK_DOWN,
    TAP_MISSING,
    TAP_DOWN,
    TAP_LOOSE,
    PORT_STATE,
    BRIDGE_MISSING,
    BRIDGE_DOWN,
    BRIDGE_ALONE,
    NIC_MISSING,
    NIC_DOWN,
    NIC_CARRIER,
    PORT_LOST,
    BOND_EMPTY,
    MTU_SMALLER,
    BRIDGE_MTU,
    MTU_LARGER,
    FORWARDING,
    FIREWALL,
    NO_ROUTE,
    DNSMASQ,
    NO_ADDRESS,
    ADDRESS_UNKNOWN,
    CONFLICT,
    MAC_ELSEWHERE,
    MAC_SHARED,
    ROUTE,
    MACVTAP_NIC,
    HAIRPIN,
    PF_MISSING,
    VF_LINK,
    VF_SPOOF,
    VF_VLAN,
];
