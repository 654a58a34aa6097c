//! `set --network` on a real libvirtd: NICs of a guest that is off and of one that runs, with undo,
//! killed at every record of the journal.

use super::place::{MOST, Place, same};
use crate::support::daemon::Tiny;
use serde_json::Value;

/// Name of the guest.
const NAME: &str = "nics-s";

/// The networks and MAC addresses of its NICs: of the definition, or of what runs.
fn nics(place: &Place, inactive: bool) -> Vec<(String, String)> {
    let more: &[&str] = if inactive { &["--inactive"] } else { &[] };
    let all = place.virsh(&[&["domiflist", NAME], more].concat());
    let rows = all.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let rows = rows.filter(|row| row.len() == 5);
    rows.map(|row| (row[2].to_owned(), row[4].to_owned())).collect()
}

/// The networks alone.
fn networks(place: &Place, inactive: bool) -> Vec<String> {
    nics(place, inactive).into_iter().map(|(network, _)| network).collect()
}

/// The PCI address of each NIC's line in the definition, by MAC address.
fn seat(place: &Place, mac: &str) -> String {
    let xml = place.virsh(&["dumpxml", "--inactive", NAME]);
    let nic =
        xml.split("<interface ").find(|nic| nic.contains(mac)).unwrap_or_else(|| panic!("{xml}"));
    let at = nic.split_once("<address ").unwrap().1;
    at.split_once("/>").unwrap().0.to_owned()
}

/// What `check` and `tune --check` find.
fn judged(place: &Place) -> [(i32, String); 2] {
    [&["check", NAME][..], &["tune", NAME, "--check"]].map(|args| {
        let (code, out, _) = place.gpuvm(args);
        // Other tests reserve huge pages on this machine meanwhile.
        let own = out.lines().filter(|line| !line.contains("huge pages that nobody uses"));
        (code, own.collect::<Vec<_>>().join("\n"))
    })
}

/// A verb that is refused with this code; returns its hint.
fn refused(place: &Place, code: &str, args: &[&str]) -> String {
    let (ended, out, err) = place.gpuvm(&[args, &["--json"]].concat());
    let said: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    assert_eq!((ended, said["code"].as_str()), (1, Some(code)), "{args:?}: {out}{err}");
    said["hint"].as_str().unwrap_or_default().to_owned()
}

/// A guest that is off, of one vCPU and 256 MiB, with a NIC on `default`.
fn guest(more: &[&str]) -> Option<Place> {
    let place = Place::new()?;
    let disks = place.disks.to_str().unwrap().to_owned();
    let shape = ["--no-start", "--os-size", "16M", "--disk-dir", &disks, "--network", "default"];
    place.done(&place.create(NAME, &[&shape[..], more].concat()));
    Some(place)
}

#[test]
fn nics_of_a_guest_that_is_off_come_go_and_stay_in_their_places() {
    let Some(place) = guest(&[]) else { return };
    let (before, found, first) = (place.state(), judged(&place), nics(&place, true));
    let at = seat(&place, &first[0].1);
    let set = ["set", NAME, "--network", "default", "--network", "private-net"];
    let shown = place.done(&[&set[..], &["--diff"]].concat());
    assert!(shown.contains("+      <source network='private-net'/>"), "{shown}");
    let (_, out, err) = place.gpuvm(&[&set[..], &["--dry-run", "--json"]].concat());
    let said: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    assert_eq!(said["domains"][0]["changes"][0]["item"], "network", "{said}");
    same(&before, &place.state(), "a preview changed something");
    place.done(&[&set[..], &["--yes"]].concat());
    assert_eq!(networks(&place, true), ["default", "private-net"]);
    assert_eq!((&nics(&place, true)[0], &seat(&place, &first[0].1)), (&first[0], &at));
    assert_eq!(judged(&place), found, "check or tune see it otherwise");
    assert!(place.done(&[&set[..], &["--yes"]].concat()).contains("nothing to do"));
    // The second stays where it is when the first goes.
    let second = nics(&place, true)[1].clone();
    let at = seat(&place, &second.1);
    place.done(&["set", NAME, "--network", "private-net,mtu=1400", "--yes"]);
    assert_eq!((nics(&place, true), seat(&place, &second.1)), (vec![second.clone()], at));
    // One that is named by its MAC address is connected to another network.
    let moved = format!("default,mac={}", second.1);
    place.done(&["set", NAME, "--network", &moved, "--yes"]);
    assert_eq!(nics(&place, true), [("default".to_owned(), second.1.clone())]);
    assert!(place.virsh(&["dumpxml", "--inactive", NAME]).contains("<mtu size='1400'/>"));
    place.done(&["set", NAME, "--no-network", "--yes"]);
    assert_eq!(networks(&place, true), [""; 0]);
    assert_eq!(judged(&place), found);
    for _ in 0..4 {
        place.done(&["undo", NAME, "--yes"]);
    }
    same(&before, &place.state(), "undo left something");
    // Missing networks are refused, unless their names imply their kind.
    let (_, _, err) = place.gpuvm(&["set", NAME, "--network", "nowhere", "--yes"]);
    assert!(err.contains("no network `nowhere`"), "{err}");
    place.virsh(&["net-destroy", "private-net"]);
    place.done(&[&set[..], &["--yes"]].concat());
    assert!(place.virsh(&["net-list", "--all", "--name"]).contains("private-net"));
    place.done(&["delete", NAME, "--yes"]);
}

#[test]
fn a_file_of_guests_changes_their_nics_in_place() {
    let Some(place) = guest(&[]) else { return };
    let got = place.done(&["get", NAME, "-o", "yaml"]);
    let file = place.disks.join("guests.yaml");
    let apply = |text: &str, code: i32| {
        std::fs::write(&file, text).unwrap();
        let (ended, out, err) = place.gpuvm(&["apply", "-f", file.to_str().unwrap(), "--yes"]);
        assert_eq!(ended, code, "{out}{err}");
        out
    };
    let first = nics(&place, true);
    assert!(apply(&got, 0).contains("unchanged"));
    let named = got.lines().position(|line| line.contains(&first[0].1)).unwrap();
    let mut lines: Vec<&str> = got.lines().collect();
    let line = format!("{}- private-net", lines[named].split_once("- ").unwrap().0);
    lines.insert(named + 1, &line);
    let more = lines.join("\n") + "\n";
    assert!(apply(&more, 0).contains("changed: network default -> default,private-net"));
    assert_eq!(networks(&place, true), ["default", "private-net"]);
    assert_eq!(nics(&place, true)[0], first[0]);
    assert!(apply(&more, 0).contains("unchanged"));
    assert!(apply(&got, 0).contains("changed: network default,private-net -> default"));
    assert_eq!(nics(&place, true), first);
    place.done(&["delete", NAME, "--yes"]);
}

#[test]
fn nics_of_a_running_guest_come_and_go_at_once_or_not_at_all() {
    let Some(mut place) = Place::new() else { return };
    place.net = true;
    let Some(tiny) = Tiny::new(&place.disks) else { return };
    let disks = place.disks.to_str().unwrap().to_owned();
    let template = tiny.template.to_str().unwrap();
    let shape = ["--template", template, "--no-start", "--disk-dir", &disks, "--spare-ports", "0"];
    place.done(&place.create(NAME, &[&shape[..], &["--network", "default"]].concat()));
    let both = ["set", NAME, "--network", "default", "--network", "private-net", "--live", "--yes"];
    let hint = refused(&place, "set-not-running", &both);
    assert!(
        hint.contains(&format!("`gpuvm set {NAME} --network default --network private-net`")),
        "{hint}"
    );
    place.virsh(&["start", NAME]);
    // Without a free port nothing is changed.
    let hint = refused(&place, "tune-no-port", &both);
    assert!(
        hint.contains(&format!("`gpuvm set {NAME} --network default --network private-net`")),
        "{hint}"
    );
    let hint = refused(&place, "set-not-live", &["set", NAME, "--memory", "1G", "--live", "--yes"]);
    assert!(hint.contains(&format!("`gpuvm set {NAME} --memory 1G`")), "{hint}");
    place.virsh(&["destroy", NAME]);
    let xml = place.virsh(&["dumpxml", "--inactive", NAME]);
    let port = "<controller type='pci' model='pcie-root-port'/></devices>";
    let file = place.disks.join("more-ports.xml");
    std::fs::write(&file, xml.replace("</devices>", port)).unwrap();
    place.virsh(&["define", file.to_str().unwrap()]);
    place.virsh(&["start", NAME]);
    tiny.wait_for("seen: all");
    let (before, ran) = (place.virsh(&["dumpxml", "--inactive", NAME]), nics(&place, false));
    let said = place.done(&both);
    assert!(said.contains("attach NIC") && !said.contains("next start"), "{said}");
    let two = nics(&place, true);
    assert_eq!(
        (networks(&place, true), &nics(&place, false)),
        (vec!["default".into(), "private-net".into()], &two)
    );
    assert!(place.done(&both).contains("nothing to do"));
    let (_, verified, err) = place.gpuvm(&["verify", NAME, "--json"]);
    assert!(!verified.contains("pending-"), "{verified}{err}");
    // What does not change while it runs is refused, and bandwidth changes at once.
    let slower = [
        "set",
        NAME,
        "--network",
        "default,mtu=1400",
        "--network",
        "private-net",
        "--live",
        "--yes",
    ];
    refused(&place, "set-not-live", &slower);
    // Not every kernel limits rates, so it is only shown.
    let limited =
        ["set", NAME, "--network", "default,inbound=1MB/s", "--network", "private-net", "--live"];
    let shown = place.done(&[&limited[..], &["--dry-run"]].concat());
    assert!(shown.contains("change the bandwidth of interface"), "{shown}");
    assert!(!shown.contains("next start") && !shown.contains("attach"), "{shown}");
    // Undo takes it from the running guest, too, which lets go of it.
    place.done(&["undo", NAME, "--yes"]);
    assert_eq!((nics(&place, true), nics(&place, false)), (ran.clone(), ran.clone()));
    assert_eq!(place.virsh(&["dumpxml", "--inactive", NAME]), before);
    // One that is named by its MAC address moves, and undo moves it back.
    let moves = format!("private-net,mac={}", ran[0].1);
    place.done(&["set", NAME, "--network", &moves, "--live", "--yes"]);
    let there = vec![("private-net".to_owned(), ran[0].1.clone())];
    assert_eq!((&nics(&place, true), &nics(&place, false)), (&there, &there));
    place.done(&["undo", NAME, "--yes"]);
    assert_eq!((nics(&place, true), nics(&place, false)), (ran.clone(), ran.clone()));
    // One goes for another: its port is the other's.
    place.done(&["set", NAME, "--network", "private-net", "--live", "--yes"]);
    assert_eq!(
        (networks(&place, true), networks(&place, false)),
        (vec!["private-net".into()], vec!["private-net".into()])
    );
    place.done(&["undo", NAME, "--yes"]);
    assert_eq!((nics(&place, true), nics(&place, false)), (ran.clone(), ran.clone()));
    killed_while_it_runs(&place, &both, &ran);
    // Paused it cannot let go of one: nothing is changed.
    place.done(&both);
    place.virsh(&["suspend", NAME]);
    refused(&place, "set-not-running", &["set", NAME, "--no-network", "--live", "--yes"]);
    assert_eq!((nics(&place, true), nics(&place, false)), (two.clone(), two));
    place.virsh(&["destroy", NAME]);
    place.done(&["delete", NAME, "--yes"]);
}

/// Kills a change of the running guest at every record: both are changed afterwards, or neither.
fn killed_while_it_runs(place: &Place, set: &[&str], ran: &[(String, String)]) {
    let before = place.virsh(&["dumpxml", "--inactive", NAME]);
    for n in 1..MOST {
        let ended = place.killed(n, set);
        let said = place.recover();
        let (has, runs) = (nics(place, true), nics(place, false));
        assert_eq!(has, runs, "record {n}: {said}");
        if has.len() > 1 {
            place.done(&["undo", NAME, "--yes", "--force"]);
        }
        assert_eq!(
            (&nics(place, false)[..], nics(place, true).as_slice()),
            (ran, ran),
            "record {n}"
        );
        assert_eq!(place.virsh(&["dumpxml", "--inactive", NAME]), before, "record {n}");
        if ended {
            assert!(n > 6, "only {n} records were seen: the test proves nothing");
            return;
        }
    }
    panic!("it never comes to its end");
}

#[test]
fn a_set_of_nics_killed_at_any_record_is_undone_or_whole() {
    let Some(place) = guest(&[]) else { return };
    let before = place.state();
    let set = ["set", NAME, "--network", "private-net", "--yes"];
    for n in 1..MOST {
        let ended = place.killed(n, &set);
        let said = place.recover();
        if place.state() != before {
            place.done(&["undo", NAME, "--yes", "--force"]);
        }
        same(&before, &place.state(), &format!("record {n}: {said}"));
        if ended {
            assert!(n > 4, "only {n} records were seen: the test proves nothing");
            place.done(&["delete", NAME, "--yes"]);
            return;
        }
    }
    panic!("it never comes to its end");
}
