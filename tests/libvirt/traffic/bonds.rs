//! A bond of two of the host's NICs below a bridge, in each mode that the program makes; behind it
//! the switch configuration of that mode.

use super::lan::{GUEST, Lan, Side};
use super::{BONDED, LARGE, mib};
use gpuvm::hostnet::BondMode;
use std::time::{Duration, Instant};

/// The host's NICs, and the bridge.
const PORTS: &str = "
for n in 4 5; do
  ip link add nic$n mtu 9000 type veth peer name far$n mtu 9000
  ip link set far$n netns $LAN
done
ip link add br2 mtu 9000 type bridge stp_state 0 forward_delay 0
ip address add 10.50.4.2/24 dev br2
ip link set br2 up
";
/// Recreates the bond in `$MODE` with its `$OPTIONS`, and behind it `$SWITCH`: a plain one, or one
/// that knows of the bond. The switch keeps its MAC address.
const BOND: &str = "
far() { nsenter --net --target $LAN ip \"$@\"; }
ip link del bond0 2>/dev/null || true
far link del switch 2>/dev/null || true
ip link add bond0 mtu 9000 type bond mode $MODE miimon 50 $OPTIONS
far link add switch mtu 9000 address 52:54:00:88:00:04 type $SWITCH
for n in 4 5; do
  ip link set nic$n down
  ip link set nic$n master bond0
  far link set far$n down
  far link set far$n master switch
  far link set far$n up
done
ip link set bond0 up
ip link set bond0 master br2
far address add 10.50.4.1/24 dev switch
far link set switch up
";
/// The modes: one that the switch has to know of, and one that it does not. With `GPUVM_BOND_MODES`
/// as `all`, the two others that the switch has to know of come before them.
const MODES: [BondMode; 4] =
    [BondMode::RoundRobin, BondMode::Xor, BondMode::Lacp, BondMode::ActiveBackup];
/// The guest's NIC under test.
const NIC: &str = "0b";

impl Lan {
    /// Makes NICs and bridge of the bonds, and the first bond.
    pub fn first_bond(&self) {
        let (code, out, err) = self.net("bash", &["-ec", PORTS]);
        assert_eq!(code, 0, "{out}{err}");
        self.bond(BondMode::ActiveBackup);
    }

    /// Makes the bond in a mode.
    fn bond(&self, mode: BondMode) {
        let word = mode.word();
        let options = if mode == BondMode::Lacp { "lacp_rate fast" } else { "" };
        let switch = match mode.of_switch() {
            Some(_) => format!("bond mode {word} miimon 50 {options}"),
            None => "bridge stp_state 0 forward_delay 0".to_owned(),
        };
        let script = format!("MODE={word} OPTIONS='{options}' SWITCH='{switch}'{BOND}");
        let (code, out, err) = self.net("bash", &["-ec", &script]);
        assert_eq!(code, 0, "{word}: {out}{err}");
    }

    /// Waits until the guest's packets pass by the bond.
    fn passes(&mut self, when: &str) -> Duration {
        let begun = Instant::now();
        while !self.ping(NIC, BONDED.lan, 56, false) {
            assert!(begun.elapsed() < Duration::from_secs(120), "{when}: nothing passes");
        }
        begun.elapsed()
    }
}

/// In each mode packets of every size pass both ways, also when one of two NICs is down, and the
/// doctor reports which.
pub fn each(lan: &mut Lan) {
    let address = lan.address(NIC).unwrap();
    assert_eq!(lan.guest(&format!("on {NIC} ip link set nic mtu 9000")).0, 0);
    let all = std::env::var("GPUVM_BOND_MODES").is_ok_and(|value| value == "all");
    for mode in MODES.into_iter().skip(if all { 0 } else { 2 }) {
        let word = mode.word();
        lan.bond(mode);
        let waited = lan.passes(word).as_secs_f64();
        let begun = Instant::now();
        let bytes = mib() << 20;
        assert!(lan.ping(NIC, BONDED.lan, LARGE, true), "{word}: 9000 bytes do not pass");
        assert!(lan.side_pings(Side::Lan, &address, true), "{word}: LAN to guest");
        assert_eq!(lan.guest_sends(NIC, (Side::Lan, BONDED.lan), bytes), bytes, "{word}");
        assert_eq!(lan.guest_gets(NIC, Side::Lan, bytes), bytes, "{word}");
        let took = begun.elapsed().as_secs_f64();
        eprintln!("traffic: bond {word}: up after {waited:.1} s, both ways after {took:.1} s");
        sound(lan, word);
        // With a plain switch the guest must be found again at the other port, and back.
        let ports: &[u32] = if mode.of_switch().is_some() { &[4] } else { &[4, 5] };
        for port in ports {
            lan.host(&format!("LAN ip link set far{port} down"));
            lan.passes(&format!("{word} without nic{port}"));
            let (code, found, out) = lan.doctor();
            let lost = [NIC, &format!("NIC nic{port}"), "port-lost"].map(str::to_owned).into();
            assert!(code == 0 && found.contains(&lost), "{word}: {out}");
            lan.host(&format!("LAN ip link set far{port} up"));
            lan.passes(&format!("{word} with nic{port} again"));
        }
    }
    lan.host("LAN ip link set far4 down; ip link set far5 down");
    assert!(!lan.ping(NIC, BONDED.lan, 56, false), "it passes without any NIC");
    lan.finds(NIC, "bond bond0", "bond-without-port");
    lan.host("LAN ip link set far4 up; ip link set far5 up");
    lan.passes("with all NICs again");
    lan.host("ip link set bond0 mtu 1500");
    assert!(!lan.ping(NIC, BONDED.lan, LARGE, false), "9000 bytes pass by a bond of 1500");
    lan.finds(NIC, "bond bond0", "mtu-smaller");
    lan.host("ip link set bond0 mtu 9000");
    assert!(lan.ping(NIC, BONDED.lan, LARGE, true), "9000 bytes do not pass any more");
    sound(lan, "at last");
}

/// The doctor finds nothing, and has checked the bond and both its NICs.
fn sound(lan: &Lan, when: &str) {
    let (code, out, err) = lan.gpuvm(&["network", "doctor", GUEST]);
    assert!(code == 0 && !out.contains("warning:"), "{when}: {out}{err}");
    for hop in ["bond bond0", "NIC nic4", "NIC nic5"] {
        assert!(out.contains(&format!("ok           {hop}")), "{when}: `{hop}` is not in\n{out}");
    }
}
