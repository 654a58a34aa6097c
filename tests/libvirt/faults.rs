//! Every step of a create and of a delete fails or is interrupted in turn, by real causes: signals,
//! a full disk, a killed libvirtd, pools, images and networks that disappear meanwhile. Afterwards,
//! or after `recover`, everything is as before.

use super::place::{MOST, POOL_DIR, Place, same, until};

/// The disk of the guests here: a clone that is made larger.
const CLONE: [&str; 2] = ["--os-size", "16M"];

#[test]
fn a_create_that_is_interrupted_at_any_record_is_undone() {
    let Some(place) = Place::with_image() else { return };
    let args = place.create("guest", &CLONE);
    let before = place.state();
    for n in 1..MOST {
        let (code, out, err) = place.injected(&format!("signal=INT:when={n}"), &args);
        let said = format!("record {n}: {code}: {out}{err}");
        if code == 0 {
            assert!(n > 10, "only {n} records were seen: the test proves nothing");
            return;
        }
        assert!(code == 1 && err.contains("error: interrupted by SIGINT"), "{said}");
        assert_eq!(place.journal(), "", "{said}");
        same(&before, &place.state(), &said);
    }
    panic!("it never comes to its end");
}

#[test]
fn a_create_whose_journal_is_full_at_any_record_is_undone() {
    let Some(place) = Place::with_image() else { return };
    let args = place.create("guest", &CLONE);
    let full = |n| format!("error=ENOSPC:when={n}+");
    let before = place.state();
    for n in 1..MOST {
        let (code, out, err) = place.injected(&full(n), &args);
        let said = format!("record {n}: {code}: {out}{err}");
        if code == 0 {
            assert!(n > 11, "{said}");
            return;
        }
        assert!(err.contains("journal") && err.contains("No space left"), "{said}");
        assert!(err.contains("hint: make room"), "{said}");
        assert_eq!(place.journal(), "", "{said}");
        same(&before, &place.state(), &said);
    }
    panic!("it never comes to its end");
}

#[test]
fn a_delete_that_is_broken_off_at_any_record_leaves_a_guest_whole_or_nothing() {
    let Some(place) = Place::with_image() else { return };
    let args = place.create("guest", &CLONE);
    for tamper in ["signal=INT", "error=ENOSPC"] {
        let (mut whole, mut gone, mut before) = (0, 0, String::new());
        for n in 1..12 {
            if !place.has("guest") {
                place.done(&args);
                place.virsh(&["destroy", "guest"]);
                before = place.state();
            }
            place.virsh(&["start", "guest"]);
            let delete = ["delete", "guest", "--yes"];
            let (code, out, err) = place.injected(&format!("{tamper}:when={n}"), &delete);
            let said = format!("{tamper} at record {n}: {code}: {out}{err}");
            if err.contains("gpuvm recover") {
                place.recover();
            }
            assert_eq!(place.journal(), "", "{said}");
            if place.has("guest") {
                assert_eq!(code, 1, "{said}");
                // Only the running guest cannot be restored.
                let _ = place.daemon.virsh(&["destroy", "guest"]);
                same(&before, &place.state(), &said);
                whole += 1;
            } else {
                let volumes = place.virsh(&["vol-list", "gpuvm-guests"]);
                assert!(!volumes.contains("guest.os"), "{said}");
                gone += 1;
            }
        }
        assert!(whole > 2 && gone > 2, "{tamper}: {whole} whole, {gone} gone");
    }
}

/// An event while a create is halted before one of its steps, and its reversal.
type Cause<'p> = (&'p str, &'p str, Box<dyn Fn() + 'p>, Box<dyn Fn() + 'p>);

/// The number of the record that says that a step of this kind begins, by a dry run.
fn begins(place: &Place, args: &[&str], kind: &str) -> usize {
    let mut dry = args.to_vec();
    dry.extend(["--dry-run", "--json"]);
    let steps: serde_json::Value = serde_json::from_str(&place.done(&dry)).unwrap();
    let steps = steps.as_array().unwrap();
    let at = steps.iter().position(|step| step["step"] == kind).unwrap();
    // The description of the change and the plan come first, and each step before has begun and is
    // done. The start has a plan of its own. A file and a volume are recorded before they get their
    // name.
    let is_named =
        |step: &&serde_json::Value| step["step"] == "create-disk" || step["step"] == "make-volume";
    let files = steps[..at].iter().filter(is_named).count();
    // Objects made are recorded before the domain is defined, which a dry run does not show.
    let noted = if matches!(kind, "define-domain" | "start-domain") { 2 } else { 0 };
    3 + 2 * at + files + noted + usize::from(kind == "start-domain")
}

#[test]
fn files_removed_meanwhile_fail_the_create_and_nothing_is_left() {
    let Some(place) = Place::with_image() else { return };
    let args = place.create("guest", &CLONE);
    // The pool of guests is there, so that it can go away.
    place.done(&args);
    place.done(&["delete", "guest", "--yes"]);
    let lib = |path: &str| place.daemon.own_path("/var/lib/libvirt").join(path);
    let moves = |from: &str, to: &str| {
        let (from, to) = (lib(from), lib(to));
        Box::new(move || std::fs::rename(&from, &to).unwrap())
    };
    let theirs = place.daemon.own_path(POOL_DIR).join("guest.os");
    let virsh = |args: &'static [&'static str]| Box::new(|| drop(place.virsh(args)));
    let network = place.daemon.own_path("network.xml");
    std::fs::write(&network, place.virsh(&["net-dumpxml", "default"])).unwrap();
    let causes: Vec<Cause<'_>> = vec![
        (
            "the pool is stopped",
            "make-volume",
            virsh(&["pool-destroy", "gpuvm-guests"]),
            virsh(&["pool-start", "gpuvm-guests"]),
        ),
        (
            "the image is gone",
            "make-volume",
            moves("gpuvm-images/tiny.raw", "gpuvm-images/away"),
            moves("gpuvm-images/away", "gpuvm-images/tiny.raw"),
        ),
        (
            "the file is there",
            "make-volume",
            Box::new(|| std::fs::write(&theirs, "theirs").unwrap()),
            Box::new(|| {
                assert_eq!(std::fs::read_to_string(&theirs).unwrap(), "theirs");
                std::fs::remove_file(&theirs).unwrap();
                place.virsh(&["pool-refresh", "gpuvm-guests"]);
            }),
        ),
        (
            "the network is gone",
            "start-domain",
            virsh(&["net-destroy", "default"]),
            Box::new(|| drop(place.virsh(&["net-create", network.to_str().unwrap()]))),
        ),
        (
            "somebody has defined it",
            "define-domain",
            Box::new(|| {
                let file = place.daemon.own_path("guest.xml");
                let xml = "<domain type='qemu'><name>guest</name><memory>65536</memory><os><type>hvm</type></os></domain>";
                std::fs::write(&file, xml).unwrap();
                place.virsh(&["define", file.to_str().unwrap()]);
            }),
            virsh(&["undefine", "guest"]),
        ),
    ];
    let before = place.state();
    for (what, kind, happens, back) in causes {
        let n = begins(&place, &args, kind);
        let ended = place.halted(n, &args, |journal| {
            assert!(journal.trim_end().lines().last().unwrap().contains("begin"), "{journal}");
            happens();
        });
        let (code, out, err) = ended.expect(what);
        let said = format!("{what}: {code}: {out}{err}");
        assert!(code == 1 && err.contains("error: cannot ") && out.is_empty(), "{said}");
        if err.contains("gpuvm recover") {
            place.recover();
        }
        back();
        assert_eq!(place.journal(), "", "{said}");
        same(&before, &place.state(), &said);
    }
}

#[test]
fn a_create_whose_libvirtd_is_killed_before_any_step_is_undone() {
    let Some(place) = Place::with_image() else { return };
    let args = place.create("guest", &CLONE);
    let before = place.state();
    for kind in ["make-pool", "make-volume", "seal-volume", "define-domain", "start-domain"] {
        let n = begins(&place, &args, kind);
        let ended = place.halted(n, &args, |_| place.daemon.restart());
        let (code, out, err) = ended.expect(kind);
        let said = format!("{kind}: {code}: {out}{err}");
        // It reconnects, and undoes all.
        assert!(code == 1 && out.is_empty() && !err.contains("gpuvm recover"), "{said}");
        assert_eq!(place.journal(), "", "{said}");
        until("libvirtd sees that the guest has ended", || !place.has("guest"));
        same(&before, &place.state(), &said);
    }
}

#[test]
fn a_pool_that_is_full_fails_the_create_and_leaves_nothing() {
    let Some(place) = Place::with_image() else { return };
    let small = place.daemon.fresh_dir("small");
    assert!(place.daemon.mount_tmpfs(&small, "4m"), "no tmpfs");
    place.virsh(&["pool-create-as", "small", "dir", "--target", small.to_str().unwrap()]);
    let before = place.state();
    let args = place.create("guest", &["--os-size", "16M", "--pool", "small"]);
    let (code, out, err) = place.gpuvm(&args);
    assert!(code == 1 && out.is_empty(), "{code}: {out}{err}");
    assert!(
        err.contains("may grow to") && err.contains("but pool `small` has 4 MiB left"),
        "{err}"
    );
    assert!(err.contains("No space left"), "{err}");
    same(&before, &place.state(), &err);
    // An unknown volume is not mistaken for the guest's, and reported before anything is created.
    place.virsh(&["vol-create-as", "small", "guest.os", "1M"]);
    let before = place.state();
    let (code, _, err) = place.gpuvm(&args);
    assert!(code == 1 && err.contains("already has a volume `guest.os`"), "{err}");
    assert!(err.contains("virsh vol-delete --pool small guest.os"), "{err}");
    same(&before, &place.state(), &err);
}

#[test]
fn a_diff_shows_a_definition_and_changes_nothing() {
    let Some(place) = Place::new() else { return };
    let mut create = place.create("guest", &["--no-start", "--disk-dir"]);
    create.push(place.disks.to_str().unwrap());
    let before = place.state();
    let diff = [&create[..], &["--diff"]].concat();
    let out = place.done(&diff);
    assert!(out.starts_with("--- /dev/null\n+++ b/guest.xml\n@@ -0,0 +1,"), "{out}");
    assert!(out.lines().skip(3).all(|line| line.starts_with('+')), "{out}");
    let json: serde_json::Value =
        serde_json::from_str(&place.done(&[&diff[..], &["--json"]].concat())).unwrap();
    assert_eq!((&json["name"], &json["changed"]), (&"guest".into(), &true.into()));
    same(&before, &place.state(), "--diff changed something");
    place.done(&create);
    let before = place.state();
    let out = place.done(&["delete", "guest", "--diff"]);
    assert!(out.starts_with("--- a/guest.xml\n+++ /dev/null\n@@ -1,"), "{out}");
    assert!(out.contains("-  <name>guest</name>"), "{out}");
    same(&before, &place.state(), "--diff changed something");
    let (code, _, err) = place.gpuvm(&["delete", "guest", "--diff", "--dry-run"]);
    assert_eq!(code, 2, "{err}");
    assert_eq!(place.gpuvm(&["delete", "absent", "--diff"]).0, 1);
    place.done(&["delete", "guest", "--yes"]);
}
