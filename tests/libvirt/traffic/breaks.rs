//! Every break that can be made here, with the command that causes it, the one that repairs it, and
//! the place where the doctor must find it.

use super::lan::{GUEST, Lan};

/// One break: its cause, its repair, the NIC, the hop, the rule. `TAP` stands for the device of
/// that NIC.
type Break = (&'static str, &'static str, &'static str, &'static str, &'static str);

/// The breaks.
const BREAKS: &[Break] = &[
    ("ip link set TAP down", "ip link set TAP up", "05", "tap TAP", "tap-down"),
    (
        "ip link set TAP nomaster",
        "ip link set TAP master br1",
        "05",
        "tap TAP",
        "tap-not-in-bridge",
    ),
    ("ip link set br1 down", "ip link set br1 up", "05", "bridge br1", "bridge-down"),
    ("ip link set nic1 down", "ip link set nic1 up", "05", "NIC nic1", "nic-down"),
    ("LAN ip link set far1 down", "LAN ip link set far1 up", "05", "NIC nic1", "nic-no-carrier"),
    ("ip link set nic2 down", "ip link set nic2 up", "07", "NIC nic2", "nic-down"),
    ("LAN ip link set far3 down", "LAN ip link set far3 up", "09", "NIC nic3", "nic-no-carrier"),
    ("ip link set TAP down", "ip link set TAP up", "08", "macvtap TAP", "tap-down"),
    (
        "sysctl -qw net.ipv4.ip_forward=0",
        "sysctl -qw net.ipv4.ip_forward=1",
        "01",
        "forwarding",
        "forwarding-off",
    ),
    (
        "sysctl -qw net.ipv4.conf.labbr.forwarding=0",
        "sysctl -qw net.ipv4.conf.labbr.forwarding=1",
        "02",
        "forwarding",
        "forwarding-off",
    ),
    (
        "iptables -I FORWARD -i labbr -j DROP",
        "iptables -D FORWARD -i labbr -j DROP",
        "01",
        "firewall, guest to LAN",
        "firewall",
    ),
    (
        "iptables -I INPUT -p udp -m udp --dport 67 -j REJECT",
        "iptables -D INPUT -p udp -m udp --dport 67 -j REJECT",
        "03",
        "firewall, guest to host",
        "firewall",
    ),
    // What Docker does to a bridge of the host's where the kernel's netfilter sees bridged packets.
    (
        "iptables -P FORWARD DROP; sysctl -qw net.bridge.bridge-nf-call-iptables=1",
        "iptables -P FORWARD ACCEPT; sysctl -qw net.bridge.bridge-nf-call-iptables=0",
        "05",
        "firewall, bridged",
        "firewall",
    ),
    (
        "ip link set br1 type bridge stp_state 1 forward_delay 1500; ip link set TAP down; ip link \
         set TAP up",
        "ip link set br1 type bridge stp_state 0; ip link set TAP down; ip link set TAP up",
        "05",
        "tap TAP",
        "port-not-forwarding",
    ),
    (
        "ip link set nic0 down",
        "ip link set nic0 up; ip route replace default via 10.50.0.1",
        "01",
        "NIC nic0",
        "nic-down",
    ),
    (
        "ip route add ADDRESS/32 dev nic2",
        "ip route del ADDRESS/32 dev nic2",
        "01",
        "address",
        "route-elsewhere",
    ),
];

/// Causes and repairs each break.
pub fn each(lan: &mut Lan) {
    for (make, mend, nic, hop, rule) in BREAKS {
        let (tap, address) = (lan.tap(nic), lan.address(nic).unwrap());
        let fill = |text: &str| text.replace("TAP", &tap).replace("ADDRESS", &address);
        lan.host(&fill(make));
        lan.finds(nic, &fill(hop), rule);
        lan.host(&fill(mend));
        let (code, found, out) = lan.doctor();
        assert!(code == 0, "after `{mend}`: {found:?}\n{out}");
    }
    let setlink = |lan: &Lan, state: &str| {
        let (done, said) = lan.virsh(&["domif-setlink", GUEST, "52:54:00:77:00:06", state]);
        assert!(done, "{said}");
    };
    setlink(lan, "down");
    lan.finds("06", "guest NIC", "nic-link-down");
    assert!(!lan.ping("06", "10.50.1.1", 56, false), "it passes without a link");
    setlink(lan, "up");
    // A bridge without a NIC is a warning: host and guests alone may be meant.
    lan.host("ip link set nic1 nomaster");
    let (code, found, _) = lan.doctor();
    let alone = ["05", "bridge br1", "bridge-without-nic"].map(str::to_owned).into();
    assert!(code == 0 && found.contains(&alone), "{code}: {found:?}");
    lan.host("ip link set nic1 master br1");
    // These cannot be repaired without a restart.
    lan.host("kill $(cat /run/libvirt/network/alone.pid)");
    lan.finds("03", "DHCP server", "dnsmasq-missing");
    let (done, said) = lan.virsh(&["net-destroy", "lab"]);
    assert!(done, "{said}");
    lan.finds("01", "network lab", "network-down");
    lan.finds("01", "bridge labbr", "bridge-missing");
    let (_, out, _) = lan.gpuvm(&["network", "doctor", GUEST]);
    for part in [
        "error: the network is down, expected up",
        "hint: `virsh net-start lab`",
        "libvirt network `lab` (network-down)",
    ] {
        assert!(out.contains(part), "`{part}` is not in\n{out}");
    }
}
