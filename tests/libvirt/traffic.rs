//! Traffic of a guest on networks of every kind, and `network doctor` for each way to break it, on
//! a libvirtd in a network of its own: veth pairs for NICs, and behind them a LAN in another
//! network namespace, with a DHCP server. The guest is emulated and boots once; each of its NICs is
//! alone in a network namespace of the guest, so that two NICs on one network are two guests for
//! it.
//!
//! Bonds and bandwidth limits have a guest of their own. Where this machine's kernel lacks either,
//! the whole of that test, its libvirtd and its guest too, runs on user-mode Linux
//! (`tests/uml/run`), whose kernel has both. `GPUVM_TRAFFIC=here` keeps it on this machine's
//! kernel.

mod bonds;
mod breaks;
mod lan;
mod send;

use crate::support::daemon::{Tiny, namespaces};
use crate::support::uml;
use lan::{Lan, Side};
use std::time::{Duration, Instant};

/// Mebibytes of each transfer: few, so that the whole suite stays short, unless `GPUVM_MIB` says
/// more.
fn mib() -> u64 {
    std::env::var("GPUVM_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(2)
}

/// A network with two NICs of the guest on it.
pub struct Net {
    /// Its name.
    pub name: &'static str,
    /// How `network create` makes it.
    pub kind: &'static str,
    /// Last bytes of the MAC addresses of the NICs.
    pub nics: [&'static str; 2],
    /// Address of the host there.
    pub host: &'static str,
    /// Address of the LAN's machine there; for a private network, an address that others reach.
    pub lan: &'static str,
}

/// The networks of the first guest.
pub const NETS: [Net; 5] = [
    Net {
        name: "lab",
        kind: "--kind nat --range 10.88.0.0/24 --bridge labbr --nic nic0 --mtu 9000",
        nics: ["01", "02"],
        host: "10.88.0.1",
        lan: "10.50.0.1",
    },
    Net {
        name: "alone",
        kind: "--kind private --range 10.89.0.0/24 --bridge alonebr",
        nics: ["03", "04"],
        host: "10.89.0.1",
        lan: "10.50.0.1",
    },
    Net {
        name: "lan",
        kind: "--kind bridge --bridge br1",
        nics: ["05", "06"],
        host: "10.50.1.2",
        lan: "10.50.1.1",
    },
    Net {
        name: "mv",
        kind: "--kind macvtap --nic nic2 --mode bridge",
        nics: ["07", "08"],
        host: "10.50.2.2",
        lan: "10.50.2.1",
    },
    Net {
        name: "mp",
        kind: "--kind macvtap --nic nic3 --mode private",
        nics: ["09", "0a"],
        host: "10.50.3.2",
        lan: "10.50.3.1",
    },
];
/// The one over a bond.
pub const BONDED: Net = Net {
    name: "bonded",
    kind: "--kind bridge --bridge br2",
    nics: ["0b", "0c"],
    host: "10.50.4.2",
    lan: "10.50.4.1",
};

#[test]
fn every_network_carries_traffic_and_the_doctor_names_each_break() {
    let Some(mut lan) = Lan::new(&NETS.each_ref()) else { return };
    let begun = Instant::now();
    let told = |what: &str| eprintln!("traffic: {what} after {} s", begun.elapsed().as_secs());
    lan.boot(2);
    told("the guest answers");
    addresses(&mut lan);
    told("every NIC has an address");
    healthy(&lan);
    for net in &NETS {
        reach(&mut lan, net);
    }
    told("reach is as shown");
    for net in &NETS {
        transfers(&mut lan, net);
    }
    told("transfers are done");
    queues(&mut lan);
    jumbo(&mut lan);
    told("large packets pass, or the doctor says why not");
    breaks::each(&mut lan);
    told("every break is named");
}

/// Keeps a test on this machine's kernel, whatever that lacks; so it is on user-mode Linux.
const HERE: (&str, &str) = ("GPUVM_TRAFFIC", "here");

#[test]
fn bonds_carry_traffic_and_limits_hold() {
    let here = std::env::var(HERE.0).is_ok_and(|value| value == HERE.1) || !namespaces();
    if let Some(refused) = if here { None } else { uml::refused() } {
        // There is no network to fetch the guest's kernel over.
        let dir = tempfile::tempdir().unwrap();
        if Tiny::new(dir.path()).is_some() {
            eprintln!("traffic: on user-mode Linux, since this kernel refuses `{refused}`");
            uml::passes(module_path!(), "bonds_carry_traffic_and_limits_hold", HERE);
        }
        return;
    }
    let Some(mut lan) = Lan::new(&[&NETS[0], &BONDED]) else { return };
    let begun = Instant::now();
    let told = |what: &str| eprintln!("traffic: {what} after {} s", begun.elapsed().as_secs());
    // User-mode Linux has one CPU.
    lan.boot(1);
    told("the guest answers");
    addresses(&mut lan);
    told("every NIC has an address");
    reach(&mut lan, &BONDED);
    transfers(&mut lan, &BONDED);
    told("a bond carries traffic");
    bonds::each(&mut lan);
    told("so does one of each mode, with a NIC out and in again");
    limits(&mut lan);
    told("limits hold");
}

/// Every NIC gets an address, and the program finds it: by lease, by ARP, or from the guest's
/// packets.
fn addresses(lan: &mut Lan) {
    for (net, nic) in lan.nics() {
        let until = Instant::now() + Duration::from_secs(300);
        while lan.address(nic).is_none() {
            assert!(Instant::now() < until, "NIC {nic} on {} has no address", net.name);
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    // For a macvtap only the guest's packets to its neighbours reveal its address.
    let speak = std::thread::scope(|scope| {
        let waits = scope
            .spawn(|| lan.gpuvm_command(&["ip", lan::GUEST, "--all", "--wait", "60"]).output());
        // On a busy machine it is long before it listens.
        while !waits.is_finished() {
            for (net, nic) in lan.nics() {
                lan.quietly(&format!("on {nic} arping -c 1 -w 1 -I nic {}", net.lan));
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        waits.join().unwrap().unwrap()
    });
    let told = String::from_utf8_lossy(&speak.stdout).into_owned();
    assert!(speak.status.success(), "{told}{}", String::from_utf8_lossy(&speak.stderr));
    for (net, nic) in lan.nics() {
        let by = if matches!(net.name, "lab" | "alone") { "lease" } else { "arp" };
        let line = format!("52:54:00:77:00:{nic} {} {by}", lan.address(nic).unwrap());
        assert!(told.lines().any(|one| one == line), "`{line}` is not in\n{told}");
    }
    let (code, out, err) = lan.gpuvm(&["ip", lan::GUEST]);
    assert_eq!((code, out.trim()), (0, lan.address("01").unwrap().as_str()), "{err}");
    assert!(err.contains("of 52:54:00:77:00:01, by lease"), "{err}");
}

/// The doctor finds nothing, and lists its checks.
fn healthy(lan: &Lan) {
    let (code, out, err) = lan.gpuvm(&["network", "doctor", lan::GUEST]);
    assert_eq!(code, 0, "{out}{err}");
    for part in [
        "ok           tap ",
        "on network `lab` (nat)",
        "bridge labbr",
        "dnsmasq runs",
        "labbr to nic0",
        "ok           NIC nic1",
        "ok           macvtap",
        "mode private",
        "note: guest - host: no; a second NIC on a private network does",
        "no path is broken",
    ] {
        assert!(out.contains(part), "`{part}` is not in\n{out}");
    }
    assert!(!out.contains("error:") && !out.contains("warning:"), "{out}");
}

/// Reachability is as `network show` reports.
fn reach(lan: &mut Lan, net: &'static Net) {
    let (_, out, err) = lan.gpuvm(&["network", "show", net.name, "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&out).expect(&err);
    let says = |key: &str| shown["reach"][key].as_str().unwrap().to_owned();
    let is = |word: &str| !word.starts_with("no");
    let [one, other] = net.nics;
    let (ours, theirs) = (lan.address(one).unwrap(), lan.address(other).unwrap());
    let guests = is(&says("guest_guest"));
    assert_eq!(lan.ping(one, &theirs, 56, guests), guests, "{}: one guest the other", net.name);
    assert_eq!(lan.ping(other, &ours, 56, guests), guests, "{}: the other guest the one", net.name);
    let host = is(&says("guest_host"));
    assert_eq!(lan.ping(one, net.host, 56, host), host, "{}: guest to host", net.name);
    assert_eq!(lan.side_pings(Side::Host, &ours, host), host, "{}: host to guest", net.name);
    let outwards = is(&says("guest_lan"));
    assert_eq!(lan.ping(one, net.lan, 56, outwards), outwards, "{}: guest to LAN", net.name);
    let inwards = outwards && !says("guest_lan").contains("not inwards");
    assert_eq!(lan.side_pings(Side::Lan, &ours, inwards), inwards, "{}: LAN to guest", net.name);
}

/// Data arrives whole, both ways, between each two that reach each other.
fn transfers(lan: &mut Lan, net: &'static Net) {
    let bytes = mib() << 20;
    let [one, other] = net.nics;
    let begun = Instant::now();
    let mut ways = 0;
    if matches!(net.name, "lab" | "alone" | "lan" | "bonded") {
        ways += 2;
        assert_eq!(lan.guest_gets(one, Side::Host, bytes), bytes, "{}: host to guest", net.name);
        assert_eq!(
            lan.guest_sends(one, (Side::Host, net.host), bytes),
            bytes,
            "{}: guest to host",
            net.name
        );
    }
    if net.name != "alone" {
        ways += 1;
        assert_eq!(
            lan.guest_sends(one, (Side::Lan, net.lan), bytes),
            bytes,
            "{}: guest to LAN",
            net.name
        );
    }
    if matches!(net.name, "lan" | "mv" | "mp" | "bonded") {
        ways += 1;
        assert_eq!(lan.guest_gets(one, Side::Lan, bytes), bytes, "{}: LAN to guest", net.name);
    }
    if net.name != "mp" {
        ways += 1;
        assert_eq!(lan.between(one, other, bytes), bytes, "{}: guest to guest", net.name);
    }
    let each = (ways * mib()) as f64 / begun.elapsed().as_secs_f64();
    eprintln!("traffic: {}: {ways} transfers of {} MiB, {each:.0} MiB/s", net.name, mib());
}

/// The guest sees the number of queues in its domain.
fn queues(lan: &mut Lan) {
    let seen = lan.guest("on 05 ls /sys/class/net/nic/queues").1;
    assert_eq!(seen.split_whitespace().collect::<Vec<_>>(), ["rx-0", "rx-1", "tx-0", "tx-1"]);
    let seen = lan.guest("on 01 ls /sys/class/net/nic/queues").1;
    assert_eq!(seen.split_whitespace().collect::<Vec<_>>(), ["rx-0", "tx-0"]);
}

/// Bandwidth of a running guest is the value set by the program, within 15 %.
fn limits(lan: &mut Lan) {
    // In kB/s of 1000 bytes.
    let limit = 512.0;
    let off = |found: f64| (found / limit - 1.0) * 100.0;
    let tune = |lan: &Lan, to: &str| {
        let (code, out, err) =
            lan.gpuvm(&["tune", lan::GUEST, "--inbound", to, "--outbound", to, "--live", "--yes"]);
        assert_eq!(code, 0, "{out}{err}");
    };
    // With a smaller burst the kernel does not catch up after it was off the CPU for a while.
    tune(lan, "512kB/s,1MB/s,512K");
    for (inbound, way) in [(true, "inbound"), (false, "outbound")] {
        // A busy machine is slower for minutes; faster than the limit it never is.
        let mut found = Vec::new();
        let until = Instant::now() + Duration::from_secs(240);
        while !found.last().is_some_and(|found| off(*found).abs() < 15.0) {
            assert!(Instant::now() < until, "{way} {limit} kB/s: {found:.0?}");
            found.push(lan.speed(inbound));
            let last = found[found.len() - 1];
            eprintln!("traffic: {way} {limit} kB/s: {last:.0}, {:+.1} %", off(last));
            assert!(off(last) < 15.0, "{way} {limit} kB/s: {last:.0}");
        }
    }
    tune(lan, "off");
    for (inbound, way) in [(true, "inbound"), (false, "outbound")] {
        // As above: one that is faster shows that the limit is gone.
        let until = Instant::now() + Duration::from_secs(240);
        loop {
            let free = lan.speed_at_least(inbound);
            eprintln!("traffic: {way} without a limit: {free:.0} kB/s at least");
            if free > 1.5 * limit {
                break;
            }
            assert!(Instant::now() < until, "{way}: without the limit it is no faster");
        }
    }
}

/// Bytes of a ping that makes a packet of 9000, with the heads of ICMP and IPv4.
const LARGE: u32 = 9000 - 8 - 20;

/// Packets of 9000 bytes pass; where one hop has 1500, they do not, and the doctor names that hop.
fn jumbo(lan: &mut Lan) {
    for nic in ["01", "05", "07"] {
        assert_eq!(lan.guest(&format!("on {nic} ip link set nic mtu 9000")).0, 0);
    }
    let (lab, bridge, macvtap) = ("10.88.0.1", "10.50.1.1", "10.50.2.1");
    for (nic, to) in [("01", lab), ("05", bridge), ("07", macvtap)] {
        assert!(lan.ping(nic, to, LARGE, true), "9000 bytes do not pass from {nic} to {to}");
    }
    let (tap, lab_tap) = (lan.tap("05"), lan.tap("01"));
    for (nic, to, device, hop) in [
        ("05", bridge, tap.as_str(), format!("tap {tap}")),
        ("05", bridge, "nic1", "NIC nic1".to_owned()),
        ("01", lab, lab_tap.as_str(), format!("tap {lab_tap}")),
    ] {
        lan.host(&format!("ip link set {device} mtu 1500"));
        assert!(!lan.ping(nic, to, LARGE, false), "9000 bytes pass by {device} of 1500");
        lan.finds(nic, &hop, "mtu-smaller");
        lan.host(&format!("ip link set {device} mtu 9000"));
        assert!(
            lan.ping(nic, to, LARGE, true),
            "9000 bytes do not pass from {nic} after {device} is back"
        );
    }
    // A bridge passes what its ports do, whatever its own MTU is.
    lan.host("ip link set br1 mtu 1500");
    assert!(
        lan.ping("05", bridge, LARGE, true),
        "a bridge of 1500 drops 9000 bytes between its ports"
    );
    let (code, found, _) = lan.doctor();
    let named = ["05", "bridge br1", "bridge-mtu"].map(str::to_owned).into();
    assert!(code == 0 && found.contains(&named), "{code}: {found:?}");
    lan.host("ip link set br1 mtu 9000");
    let (code, found, out) = lan.doctor();
    assert!(code == 0 && found.is_empty(), "{out}");
}
