//! Networks on a libvirtd in a private network namespace: veth pairs for NICs, a bridge, a default
//! route. No guest is started.

use super::place::{MOST, Place};
use crate::support::run;

/// The host of these tests: nic0 with the default route, nic1 with large packets, nic2 in the
/// bridge br7.
const HOST: &str = "
for n in 0 1 2; do ip link add nic$n type veth peer name far$n; ip link set far$n up; ip link set nic$n up; done
ip address add 10.77.0.2/24 dev nic0
ip route add default via 10.77.0.1
ip route add 10.99.0.0/16 via 10.77.0.9
ip link set nic1 mtu 9000
ip link add br7 type bridge
ip link set nic2 master br7
ip link set br7 up
";

/// A domain that is off, on the network `lab`.
const GUEST: &str = "<domain \
    type='qemu'><name>train-a</name><memory>65536</memory><vcpu>1</vcpu><os>\
    <type arch='x86_64'>hvm</type></os><devices><interface type='network'><mac \
    address='52:54:00:aa:00:07'/>\
    <source network='lab'/></interface></devices></domain>";

/// The place with its host; none if the machine cannot have it.
fn place() -> Option<Place> {
    let mut place = Place::new()?;
    place.net = true;
    let (code, _, err) = run(place.daemon.within_net("bash").args(["-ec", HOST]));
    assert_eq!(code, 0, "{err}");
    Some(place)
}

/// The program with the words of a line.
fn gpuvm(place: &Place, line: &str) -> (i32, String, String) {
    place.gpuvm(&line.split_whitespace().collect::<Vec<_>>())
}

/// The output of the program, which must succeed.
fn done(place: &Place, line: &str) -> String {
    let (code, out, err) = gpuvm(place, line);
    assert_eq!(code, 0, "{line}: {out}{err}");
    out
}

/// The output of virsh, which must succeed.
fn virsh(place: &Place, line: &str) -> String {
    let (done, text) = place.daemon.virsh(&line.split_whitespace().collect::<Vec<_>>());
    assert!(done, "{line}: {text}");
    text
}

/// A lease that was given before a guest started is another system's: its address does not answer.
#[test]
fn an_address_older_than_the_guests_start_is_none() {
    let Some(place) = place() else { return };
    done(&place, "network create lab --kind nat --range 10.88.0.0/24 --bridge labbr");
    let disks = place.disks.to_str().unwrap();
    let network = "lab,mac=52:54:00:aa:00:11";
    place.done(&place.create("fresh", &["--network", network, "--disk-dir", disks]));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    // dnsmasq's record of a lease of an hour, as libvirt's helper writes it.
    let leased = |minutes_ago: u64| {
        let lease = serde_json::json!([{
            "ip-address": "10.88.0.77",
            "mac-address": "52:54:00:aa:00:11",
            "expiry-time": now + 3600 - 60 * minutes_ago,
        }]);
        let status = place.daemon.inside("/var/lib/libvirt/dnsmasq/labbr.status");
        std::fs::write(status, lease.to_string()).unwrap();
        place.gpuvm(&["ip", "fresh", "--wait", "1"])
    };
    let (code, out, err) = leased(30);
    assert!(code != 0 && out.is_empty(), "{out}{err}");
    assert!(err.contains("domain `fresh` has no address after 1 s"), "{err}");
    let (code, out, err) = leased(0);
    assert_eq!((code, out.trim()), (0, "10.88.0.77"), "{err}");
    place.done(&["delete", "fresh", "--yes"]);
    done(&place, "network delete lab --yes");
}

#[test]
fn networks_of_every_kind_are_made_changed_and_deleted() {
    let Some(place) = place() else { return };
    let before = virsh(&place, "net-list --all --name");
    made(&place);
    refused(&place);
    changed(&place);
    listed(&place);
    demanded(&place);
    killed(&place);
    for name in ["lab", "alone", "macvtap-net", "lan", "kill"] {
        done(&place, &format!("network delete {name} --yes"));
    }
    assert_eq!(virsh(&place, "net-list --all --name"), before);
    let links = run(place.daemon.within_net("ip").args(["-br", "link"])).1;
    assert!(!links.contains("labbr"), "a bridge is left: {links}");
}

/// Networks are made as they are planned.
fn made(place: &Place) {
    let lab =
        "network create lab --kind nat --range 10.88.0.0/24 --bridge labbr --nic nic0 --mtu 1400";
    let fixed = "--static 52:54:00:aa:00:01=10.88.0.45,name=one";
    let steps = done(place, &format!("{lab} {fixed} --dry-run"));
    assert!(
        steps.starts_with("define network `lab`\nhave network `lab` start with libvirt\nstart"),
        "{steps}"
    );
    assert!(!virsh(place, "net-list --all --name").contains("lab"));
    let told = done(place, &format!("{lab} {fixed}"));
    for fact in ["range          10.88.0.0/24", "10.88.0.46-10.88.0.254, 209 addresses", "outwards"]
    {
        assert!(told.contains(fact), "{fact}: {told}");
    }
    let xml = virsh(place, "net-dumpxml lab");
    for part in [
        "<forward dev='nic0' mode='nat'>",
        "<bridge name='labbr' stp='on' delay='0'/>",
        "<mtu size='1400'/>",
        "<range start='10.88.0.46' end='10.88.0.254'/>",
        "<host mac='52:54:00:aa:00:01' name='one' ip='10.88.0.45'/>",
    ] {
        assert!(xml.contains(part), "{part}: {xml}");
    }
    let link = run(place.daemon.within_net("ip").args(["link", "show", "labbr"])).1;
    assert!(link.contains("mtu 1400"), "{link}");
    done(place, "network create alone --kind private --no-start --no-autostart");
    let told = done(place, "network create macvtap-net --json");
    assert!(told.contains("\"nic0\""), "the NIC with the default route: {told}");
    done(place, "network create lan --kind bridge --bridge br7");
}

/// Impossible requests are refused with numbers, all reasons at once, and nothing is created.
fn refused(place: &Place) {
    let before = virsh(place, "net-list --all");
    for (line, said) in [
        ("lab --kind nat", &["a network of this name already exists", "--replace"][..]),
        (
            "x --kind nat --range 10.77.0.0/16",
            &["10.77.0.0/24, where the host has 10.77.0.2 on nic0"],
        ),
        ("x --kind nat --range 10.99.3.0/24", &["the host's route to 10.99.0.0/16 by nic0"]),
        ("x --kind nat --range 10.88.0.128/25", &["10.88.0.0/24 of network `lab`"]),
        (
            "x --kind nat --nic nic0 --mtu 9000 --range 192.168.200.0/24 --static \
             52:54:00:00:00:01=10.0.0.1",
            &["MTU 9000 is above 1500, that of nic0", "10.0.0.1 is outside 192.168.200.0/24"],
        ),
        (
            "x --kind macvtap --mode passthrough --nic nic0",
            &["nic0 carries the host's default route"],
        ),
        ("x --kind macvtap --nic nic2", &["nic2 is a port of br7"]),
        ("x --kind bridge --bridge nic1", &["nic1 is not a bridge but of kind veth"]),
        ("x --kind sriov --nic nic1", &["nic1 is not a NIC with SR-IOV"]),
        (
            "x --kind nat --static train-a=10.0.0.1",
            &["guest `train-a` does not exist or has no NIC on"],
        ),
    ] {
        let (code, out, err) = gpuvm(place, &format!("network create {line}"));
        assert_eq!((code, out.as_str()), (1, ""), "{line}: {err}");
        said.iter().for_each(|said| assert!(err.contains(said), "{line}: {err}"));
    }
    for line in ["x", "x --kind nat --mode vepa", "x --kind nat --vfs 4", "a/b --kind nat"] {
        let (code, _, err) = gpuvm(place, &format!("network create {line}"));
        assert_eq!(code, 2, "{line}: {err}");
    }
    assert_eq!(virsh(place, "net-list --all"), before);
}

/// A network is replaced: addresses that are not given stay; and guests on it are named.
fn changed(place: &Place) {
    let uuid = virsh(place, "net-uuid lab");
    let file = place.daemon.fresh_dir("guest").join("guest.xml");
    std::fs::write(&file, GUEST).unwrap();
    virsh(place, &format!("define {}", file.display()));
    let lab = "network create lab --kind nat --static train-a=10.88.0.46 --replace";
    let diff = done(place, &format!("{lab} --diff"));
    assert!(diff.contains("-  <mtu size='1400'/>"), "{diff}");
    done(place, lab);
    assert_eq!(virsh(place, "net-uuid lab"), uuid);
    let xml = virsh(place, "net-dumpxml lab");
    for part in
        ["<bridge name='labbr'", "52:54:00:aa:00:07' ip='10.88.0.46'", "<range start='10.88.0.47'"]
    {
        assert!(xml.contains(part), "{part}: {xml}");
    }
    assert!(!xml.contains("<mtu"), "{xml}");
    let (code, _, err) = gpuvm(place, lab);
    assert!(code == 0 && err.contains("already set; nothing to do"), "{err}");
    undone(place, lab);
    let (code, _, err) = gpuvm(place, "network delete lab");
    assert_eq!(code, 2, "{err}");
    let said = "this will leave guest `train-a`, which is off, unable to start";
    assert!(err.contains(said) && err.contains("will stop network `lab`"), "{err}");
}

/// A change, and a deletion, are reverted, unless the network has been edited since.
fn undone(place: &Place, lab: &str) {
    let diff = done(place, "network undo lab --diff");
    assert!(diff.contains("+  <mtu size='1400'/>"), "{diff}");
    done(place, "network undo lab");
    let back = virsh(place, "net-dumpxml lab");
    assert!(back.contains("<mtu size='1400'/>") && !back.contains("52:54:00:aa:00:07"), "{back}");
    let (code, _, err) = gpuvm(place, "network undo lab");
    assert!(code == 1 && err.contains("network `lab` has no change to undo"), "{err}");
    done(place, lab);
    let (host, other) = ("ip-dhcp-host", "<host mac='52:54:00:aa:00:09' ip='10.88.0.99'/>");
    let (edited, said) =
        place.daemon.virsh(&["net-update", "lab", "add", host, other, "--live", "--config"]);
    assert!(edited, "{said}");
    let (code, _, err) = gpuvm(place, "network undo lab");
    assert!(code == 1 && err.contains("network `lab` was edited since the change"), "{err}");
    let steps = done(place, "network undo lab --force --dry-run");
    assert!(steps.contains("change the definition of network `lab`"), "{steps}");
    done(place, "network undo lab --force");
    assert_eq!(virsh(place, "net-dumpxml lab"), back);
    // Nothing is left of one that another program has deleted.
    done(place, lab);
    virsh(place, "net-destroy lab");
    virsh(place, "net-undefine lab");
    let (code, _, err) = gpuvm(place, "network undo lab");
    assert!(code == 1 && err.contains("--force"), "{err}");
    done(place, "network undo lab --force");
    assert_eq!(virsh(place, "net-dumpxml lab"), back);
    done(place, lab);
    let changed = virsh(place, "net-dumpxml lab");
    done(place, "network delete lab --yes");
    let steps = done(place, "network undo lab --dry-run");
    assert!(steps.starts_with("define network `lab`\nhave network `lab` start"), "{steps}");
    done(place, "network undo lab");
    assert_eq!(virsh(place, "net-dumpxml lab"), changed);
    assert!(virsh(place, "net-list --name --autostart").contains("lab"));
}

/// Existing networks are listed and shown.
fn listed(place: &Place) {
    let rows: serde_json::Value =
        serde_json::from_str(&done(place, "network list --json")).unwrap();
    let row = |name: &str| {
        rows.as_array().unwrap().iter().find(|row| row["name"] == name).unwrap().clone()
    };
    let lab = row("lab");
    assert_eq!(
        (&lab["kind"], &lab["active"], &lab["autostart"]),
        (&"nat".into(), &true.into(), &true.into())
    );
    assert_eq!(lab["guests"][0]["domain"], "train-a");
    let alone = row("alone");
    assert_eq!((&alone["active"], &alone["autostart"]), (&false.into(), &false.into()));
    let macvtap = row("macvtap-net");
    assert_eq!((&macvtap["kind"], &macvtap["mode"]), (&"macvtap".into(), &"bridge".into()));
    let table = done(place, "network list");
    assert!(table.lines().any(|l| l.contains("lan") && l.contains("br7")), "{table}");
    let shown = done(place, "network show lab");
    assert!(shown.contains("guest          train-a with 52:54:00:aa:00:07, off"), "{shown}");
    let xml = done(place, "network show lab --xml");
    assert!(xml.starts_with("<network>") && xml.contains("labbr"), "{xml}");
    let (code, _, err) = gpuvm(place, "network show none");
    assert!(code == 1 && err.contains("no network `none`"), "{err}");
}

/// A network of `nvidia-vm` that a request names is created with the guest.
fn demanded(place: &Place) {
    let dir = place.disks.to_str().unwrap();
    let create = place.create("g", &["--disk-dir", dir, "--privateIP", "--dry-run"]);
    assert!(!place.done(&create).contains("network"), "it is there");
    let xml = virsh(place, "net-dumpxml private-net");
    virsh(place, "net-destroy private-net");
    let steps = place.done(&create);
    let made = "define network `private-net`\nhave network `private-net` start with libvirt\nstart \
                network `private-net`\n";
    assert!(steps.contains(made), "{steps}");
    let file = place.daemon.fresh_dir("private").join("private-net.xml");
    std::fs::write(&file, xml).unwrap();
    virsh(place, &format!("net-create {}", file.display()));
}

/// A change that is killed at any record is undone, or finished where guests may have lost their
/// links. Creating and deleting one is tested on a fake (`apply::tests::network`).
fn killed(place: &Place) {
    let create =
        ["network", "create", "kill", "--kind", "macvtap", "--nic", "nic1", "--mode", "vepa"];
    let replace = ["network", "create", "kill", "--kind", "macvtap", "--nic", "nic1", "--replace"];
    let mode = || if virsh(place, "net-dumpxml kill").contains("vepa") { "vepa" } else { "bridge" };
    place.done(&create);
    for n in 1..MOST {
        let ended = place.killed(n, &replace);
        let said = place.recover();
        if ended {
            assert!(
                mode() == "bridge" && n > 8,
                "only {n} records were seen: the test proves nothing"
            );
            return;
        }
        // The first that removes something is the fifth record: change, plan, the remembering and
        // its end, stop.
        assert!(n < 5 || mode() == "bridge", "record {n}: {said}");
        assert!(n >= 5 || mode() == "vepa", "record {n}: {said}");
        assert!(virsh(place, "net-list --name").contains("kill"), "record {n}: it is down: {said}");
        if mode() == "bridge" {
            place.done(&[&create[..], &["--replace"]].concat());
        }
    }
    panic!("it never comes to its end");
}
