//! Traffic of a guest on networks of every kind, and `network doctor` on each way that it can be broken, on a libvirtd in a
//! network of its own: veth pairs for NICs, and behind them a LAN in another network namespace, with a DHCP server. The guest
//! is emulated and boots once; each of its NICs is alone in a network namespace of the guest, so that two NICs on one network
//! are two guests for it.

mod breaks;
mod lan;
mod send;

use lan::{Lan, Side};
use std::time::{Duration, Instant};

/// Mebibytes of each transfer: few, so that the whole suite stays short, unless `GPUVM_MIB` says more.
fn mib() -> u64 {
    std::env::var("GPUVM_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(2)
}

/// Is a network with two NICs of the guest on it.
pub struct Net {
    /// Its name.
    pub name: &'static str,
    /// Last bytes of the MAC addresses of the NICs.
    pub nics: [&'static str; 2],
    /// Address of the host there.
    pub host: &'static str,
    /// Address of the LAN's own machine there; for a private one, one that others reach.
    pub lan: &'static str,
}

/// The networks of the guest.
pub const NETS: [Net; 5] = [
    Net { name: "lab", nics: ["01", "02"], host: "10.88.0.1", lan: "10.50.0.1" },
    Net { name: "alone", nics: ["03", "04"], host: "10.89.0.1", lan: "10.50.0.1" },
    Net { name: "lan", nics: ["05", "06"], host: "10.50.1.2", lan: "10.50.1.1" },
    Net { name: "mv", nics: ["07", "08"], host: "10.50.2.2", lan: "10.50.2.1" },
    Net { name: "mp", nics: ["09", "0a"], host: "10.50.3.2", lan: "10.50.3.1" },
];
/// The one over a bond, where the kernel has bonds.
pub const BONDED: Net =
    Net { name: "bonded", nics: ["0b", "0c"], host: "10.50.4.2", lan: "10.50.4.1" };

#[test]
fn every_network_carries_what_it_should_and_the_doctor_names_each_break() {
    let Some(mut lan) = Lan::new() else { return };
    let begun = Instant::now();
    let told = |what: &str| eprintln!("traffic: {what} after {} s", begun.elapsed().as_secs());
    lan.boot();
    told("the guest answers");
    addresses(&mut lan);
    told("every NIC has an address");
    healthy(&lan);
    reach(&mut lan);
    told("reach is as it is told");
    transfers(&mut lan);
    told("transfers are done");
    queues(&mut lan);
    limits(&mut lan);
    jumbo(&mut lan);
    told("large packets pass, or the doctor says why not");
    breaks::each(&mut lan);
    told("every break is named");
}

/// Every NIC gets an address, and the program knows it: by lease, by ARP, or by what the guest says on the wire.
fn addresses(lan: &mut Lan) {
    for (net, nic) in lan.nics() {
        let until = Instant::now() + Duration::from_secs(300);
        while lan.address(nic).is_none() {
            assert!(Instant::now() < until, "NIC {nic} on {} has no address", net.name);
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    // What the guest says to its neighbours while the program waits is all that is known of a macvtap.
    let speak = std::thread::scope(|scope| {
        let waits = scope
            .spawn(|| lan.gpuvm_command(&["ip", lan::GUEST, "--all", "--wait", "60"]).output());
        std::thread::sleep(Duration::from_millis(1500));
        for (net, nic) in lan.nics() {
            lan.quietly(&format!("on {nic} arping -c 1 -w 1 -I nic {}", net.lan));
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

/// The doctor finds nothing, and says what it looked at.
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

/// Who reaches whom is what `network show` says.
fn reach(lan: &mut Lan) {
    for net in lan.nets() {
        let (_, out, err) = lan.gpuvm(&["network", "show", net.name, "--json"]);
        let shown: serde_json::Value = serde_json::from_str(&out).expect(&err);
        let says = |key: &str| shown["reach"][key].as_str().unwrap().to_owned();
        let is = |word: &str| !word.starts_with("no");
        let [one, other] = net.nics;
        let (ours, theirs) = (lan.address(one).unwrap(), lan.address(other).unwrap());
        let guests = is(&says("guest_guest"));
        assert_eq!(lan.ping(one, &theirs, 56, guests), guests, "{}: one guest the other", net.name);
        assert_eq!(
            lan.ping(other, &ours, 56, guests),
            guests,
            "{}: the other guest the one",
            net.name
        );
        let host = is(&says("guest_host"));
        assert_eq!(lan.ping(one, net.host, 56, host), host, "{}: guest to host", net.name);
        assert_eq!(lan.side_pings(Side::Host, &ours, host), host, "{}: host to guest", net.name);
        let outwards = is(&says("guest_lan"));
        assert_eq!(lan.ping(one, net.lan, 56, outwards), outwards, "{}: guest to LAN", net.name);
        let inwards = outwards && !says("guest_lan").contains("not inwards");
        assert_eq!(
            lan.side_pings(Side::Lan, &ours, inwards),
            inwards,
            "{}: LAN to guest",
            net.name
        );
    }
}

/// What is sent arrives whole, both ways, between each two that reach each other.
fn transfers(lan: &mut Lan) {
    let bytes = mib() << 20;
    for net in lan.nets() {
        let [one, other] = net.nics;
        let begun = Instant::now();
        let mut ways = 0;
        if matches!(net.name, "lab" | "alone" | "lan" | "bonded") {
            ways += 2;
            assert_eq!(
                lan.guest_gets(one, Side::Host, bytes),
                bytes,
                "{}: host to guest",
                net.name
            );
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
}

/// The guest sees as many queues as its domain has.
fn queues(lan: &mut Lan) {
    let seen = lan.guest("on 05 ls /sys/class/net/nic/queues").1;
    assert_eq!(seen.split_whitespace().collect::<Vec<_>>(), ["rx-0", "rx-1", "tx-0", "tx-1"]);
    let seen = lan.guest("on 01 ls /sys/class/net/nic/queues").1;
    assert_eq!(seen.split_whitespace().collect::<Vec<_>>(), ["rx-0", "tx-0"]);
}

/// Bandwidth of a NIC is what it is set to, within 15 %, where the host's kernel can limit it.
fn limits(lan: &mut Lan) {
    // In kB/s, as libvirt has it: 4 MiB/s, which the emulated guest is far above.
    let rate: u64 = 4096;
    let seconds = 4;
    let bytes = rate * 1024 * seconds;
    for (what, option) in [("inbound", "--inbound"), ("outbound", "--outbound")] {
        // The burst is what passes at once.
        let value = format!("{rate},{rate},64");
        let mac = "52:54:00:77:00:01";
        let (set, said) = lan.virsh(&["domiftune", lan::GUEST, mac, option, &value]);
        if !set {
            eprintln!("skipped: {what} bandwidth: this kernel does not limit it: {}", said.trim());
            continue;
        }
        let begun = Instant::now();
        let got = match what {
            "inbound" => lan.guest_gets("01", Side::Host, bytes),
            _ => lan.guest_sends("01", (Side::Host, "10.88.0.1"), bytes),
        };
        let found = bytes as f64 / 1024.0 / begun.elapsed().as_secs_f64();
        eprintln!("traffic: {what} limit {rate} KiB/s, found {found:.0}");
        assert_eq!(got, bytes);
        assert!((found / rate as f64 - 1.0).abs() < 0.15, "{what}: {found} KiB/s of {rate}");
        let (undone, said) = lan.virsh(&["domiftune", lan::GUEST, mac, option, "0"]);
        assert!(undone, "{said}");
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
