//! Huge pages that are reserved for a guest, on the kernel of this machine: if the run is killed,
//! signalled or denied the journal at any record, their number is as before.

use super::place::{MOST, Place, same};
use crate::support::lawful::NO_HUGE_PAGES;
use crate::support::pool::{self, number, set};
use crate::support::{run, skip};

/// The machine's pool while a test has it, with some pages that belong to others.
struct Pool {
    /// The pool.
    pool: pool::Pool,
    /// Pages of the guests here: more than are free, whatever others have left there.
    pages: u64,
    /// Their memory, as an option takes it.
    memory: String,
}

impl Pool {
    /// Takes the pool; none if this machine has none.
    fn take() -> Option<Pool> {
        let pool = pool::Pool::take()?;
        let nodes = std::fs::read_dir("/sys/devices/system/node").map_or(0, |dir| {
            let names = dir.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.filter(|name| name.starts_with("node")).count()
        });
        if nodes != 1 || number("surplus_hugepages") != Some(0) {
            return None;
        }
        let pages = number("free_hugepages")? + 16;
        let pool = Pool { pool, pages, memory: format!("{}M", 2 * pages) };
        set(pool.total());
        let is_there = number("nr_hugepages") == Some(pool.total());
        (is_there && number("free_hugepages")? >= 3).then_some(pool)
    }

    /// Pages at the beginning of the test.
    fn total(&self) -> u64 {
        self.pool.before + 3
    }
}

/// The number of pages now.
fn total() -> u64 {
    number("nr_hugepages").unwrap()
}

/// A machine and its pool; none, with the reason reported, if there is none.
fn place() -> Option<(Place, Pool)> {
    let place = Place::new()?;
    match Pool::take() {
        Some(pool) => Some((place, pool)),
        None => skip(NO_HUGE_PAGES),
    }
}

/// The arguments of a create of a guest in huge pages.
fn create<'a>((place, pool): (&'a Place, &'a Pool), more: &[&'a str]) -> Vec<&'a str> {
    let shape = "--virt-type qemu --pins none --vcpus 1 --huge-pages 2M --no-wait";
    let mut args = vec!["create", "--name", "guest", "--disk-dir", place.disks.to_str().unwrap()];
    args.extend(shape.split(' '));
    args.extend(["--os-size", "1M", "--memory", &pool.memory]);
    args.extend(more);
    args
}

#[test]
fn missing_pages_are_reported_reserved_and_released() {
    let Some((place, pool)) = place() else { return };
    let (free, reserve) = (number("free_hugepages").unwrap(), ["--reserve-pages"]);
    let (pages, missing) = (pool.pages, pool.pages - free);
    let (code, out, err) = place.gpuvm(&create((&place, &pool), &[]));
    assert!(code == 1 && out.is_empty(), "{code}: {out}{err}");
    let lack = format!("{pages} pages of 2 MiB are needed on node 0, {free} are free");
    assert!(err.contains(&lack), "{err}");
    assert!(err.contains("--reserve-pages` reserves"), "{err}");
    let args = create((&place, &pool), &reserve);
    let dry = place.done(&[&args[..], &["--dry-run"]].concat());
    let step =
        format!("reserve {missing} pages of 2 MiB on node 0, {} in all", pool.total() + missing);
    assert!(dry.starts_with(&step), "{dry}");
    assert_eq!((total(), place.has("guest")), (pool.total(), false), "--dry-run changed something");
    place.done(&args);
    assert_eq!((total(), number("free_hugepages")), (pool.total() + missing, Some(0)));
    let (_, out, _) = place.gpuvm(&["host", "pages", "--node", "0", "--size", "2M", "--json"]);
    let rows: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(rows[0]["used"], total(), "{out}");
    let (code, _, err) =
        place.gpuvm(&["host", "pages", "--node", "0", "--size", "2M", "--count", "1", "--yes"]);
    assert!(code == 1 && err.contains("are in use, so 1 are too few"), "{err}");
    // Somebody else adds two and takes none: they stay theirs.
    set(total() + 2);
    let dry = place.done(&["delete", "guest", "--dry-run"]);
    assert!(dry.contains(&format!("release {missing} pages of 2 MiB of node 0")), "{dry}");
    place.done(&["delete", "guest", "--yes"]);
    assert_eq!(total(), pool.total() + 2);
}

#[test]
fn pages_that_a_set_reserves_are_not_said_to_lack() {
    let Some((place, pool)) = place() else { return };
    place.done(&create((&place, &pool), &["--no-start"]));
    let set = ["set", "guest", "--vcpus", "2", "--yes"];
    let (code, out, err) = place.gpuvm(&[&set[..], &["--dry-run"]].concat());
    assert!(code == 0 && format!("{out}{err}").contains("are needed on node 0"), "{out}{err}");
    let (code, out, err) = place.gpuvm(&[&set[..], &["--reserve-pages"]].concat());
    assert!(code == 0 && out.contains("reserve "), "{out}{err}");
    assert!(!format!("{out}{err}").contains("are needed on node 0"), "{out}{err}");
    place.done(&["delete", "guest", "--yes"]);
    assert_eq!(total(), pool.total());
}

#[test]
fn a_guest_of_another_boot_gives_nothing_back() {
    let Some((place, pool)) = place() else { return };
    place.done(&create((&place, &pool), &["--reserve-pages", "--no-start"]));
    let reserved = total();
    assert!(reserved > pool.total());
    reboot(&place, &pool);
    set(reserved);
    place.done(&["delete", "guest", "--yes"]);
    assert_eq!(total(), reserved);
}

/// Makes the guest look as if from another boot: its pages no longer exist, nor does the record
/// that would release them.
fn reboot(place: &Place, pool: &Pool) {
    let xml = place.virsh(&["dumpxml", "--inactive", "guest"]);
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert!(xml.contains(boot.trim()), "{xml}");
    let file = place.daemon.own_path("other.xml");
    std::fs::write(&file, xml.replace(boot.trim(), "another")).unwrap();
    place.virsh(&["define", file.to_str().unwrap()]);
    set(pool.total());
}

#[test]
fn a_start_after_a_reboot_says_which_pages_are_missing_and_reserves_them() {
    let Some((place, pool)) = place() else { return };
    let free = number("free_hugepages").unwrap();
    place.done(&create((&place, &pool), &["--reserve-pages", "--no-start"]));
    let (all, missing) = (total(), pool.pages - free);
    assert_eq!(all, pool.total() + missing);
    reboot(&place, &pool);
    let (code, _, err) = place.gpuvm(&["start", "guest"]);
    assert_eq!(code, 1, "{err}");
    for words in [
        format!("{} pages of 2 MiB are needed on node 0, {free} are free", pool.pages),
        "`gpuvm start guest --reserve-pages`".into(),
        format!("`gpuvm host pages --node 0 --size 2M --count {all}`"),
    ] {
        assert!(err.contains(&words), "{words}: {err}");
    }
    let start = ["start", "guest", "--reserve-pages"];
    let dry = place.done(&[&start[..], &["--dry-run"]].concat());
    let steps = format!("reserve {missing} pages of 2 MiB on node 0, {all} in all");
    assert_eq!(dry.lines().collect::<Vec<_>>(), [&*steps, "start domain `guest`"]);
    assert_eq!(total(), pool.total(), "--dry-run changed something");
    // A start that is killed takes nothing.
    assert!(!place.killed(6, &start));
    place.recover();
    assert_eq!(total(), pool.total());
    place.done(&start);
    assert_eq!((total(), number("free_hugepages")), (all, Some(0)));
    let said = place.done(&["tune", "guest", "--huge-pages", "2M", "--reserve-pages", "--yes"]);
    assert!(said.contains("no pages are reserved for it while it runs"), "{said}");
    let history = place.done(&["history", "guest"]);
    assert!(history.contains("start") && history.contains("reserve "), "{history}");
    place.done(&["stop", "guest", "--force"]);
    place.done(&["undo", "guest", "--yes"]);
    assert_eq!(total(), pool.total());
    // Pages that are there already need nothing; those of a start go with the guest.
    place.done(&start);
    place.done(&["stop", "guest", "--force"]);
    assert_eq!(place.done(&["start", "guest", "--dry-run"]).trim(), "start domain `guest`");
    place.done(&["delete", "guest", "--yes"]);
    assert_eq!((total(), place.journal()), (pool.total(), String::new()));
}

/// The rules by which a guest differs from its request.
fn not_as_asked(place: &Place) -> Vec<String> {
    let (_, out, err) = place.gpuvm(&["verify", "guest", "--json"]);
    let answer: serde_json::Value = serde_json::from_str(&out).expect(&err);
    let rules = answer["findings"].as_array().unwrap().iter();
    let rules = rules.filter(|finding| finding["between"] == "plan");
    rules.map(|finding| finding["rule"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_guest_is_tuned_to_its_request() {
    let Some((place, pool)) = place() else { return };
    place.done(&create((&place, &pool), &["--reserve-pages", "--no-start"]));
    let definition = || place.virsh(&["dumpxml", "--inactive", "--security-info", "guest"]);
    let before = definition();
    assert_eq!(not_as_asked(&place), [""; 0]);
    let tune = ["tune", "guest", "--iothreads", "1", "--huge-pages", "off", "--yes"];
    let said = place.done(&tune);
    assert!(said.contains("  request: ") && said.contains("-> no pins, normal pages"), "{said}");
    assert_eq!(not_as_asked(&place), [""; 0]);
    assert!(place.done(&tune).contains("nothing to do"));
    place.done(&["undo", "guest", "--yes"]);
    assert_eq!(definition(), before);
    assert_eq!(not_as_asked(&place), [""; 0]);
    // A change by others was not requested.
    let file = place.daemon.own_path("edited.xml");
    let from = before.find("<memoryBacking>").unwrap()..before.find("</memoryBacking>").unwrap();
    let edited =
        format!("{}{}", &before[..from.start], &before[from.end + "</memoryBacking>".len()..]);
    std::fs::write(&file, edited).unwrap();
    place.virsh(&["define", file.to_str().unwrap()]);
    assert_eq!(not_as_asked(&place), ["plan-pages"]);
    place.done(&["delete", "guest", "--yes"]);
}

#[test]
fn a_create_with_pages_killed_at_any_record_is_undone() {
    let Some((place, pool)) = place() else { return };
    let args = create((&place, &pool), &["--reserve-pages"]);
    let before = place.state();
    let mut reserved = 0;
    for n in 1..MOST {
        if place.killed(n, &args) {
            assert!(reserved > 4, "pages were there {reserved} times: the test proves nothing");
            place.done(&["delete", "guest", "--yes"]);
            assert_eq!(total(), pool.total());
            return;
        }
        reserved += u32::from(total() > pool.total());
        // What runs is ended by its name only.
        let said = place.done(&["recover", "--end", "guest"]);
        assert_eq!(place.journal(), "", "a journal is left: {said}");
        if place.has("guest") {
            place.done(&["delete", "guest", "--yes"]);
        }
        assert_eq!(total(), pool.total(), "record {n}: {said}");
        same(&before, &place.state(), &format!("record {n}: {said}"));
    }
    panic!("it never comes to its end");
}

#[test]
fn a_create_with_pages_that_fails_at_any_record_is_undone() {
    let Some((place, pool)) = place() else { return };
    let args = create((&place, &pool), &["--reserve-pages"]);
    let before = place.state();
    for tamper in ["signal=INT:when=", "error=ENOSPC:when="] {
        let mut failed = 0;
        for n in 1..MOST {
            let (code, out, err) = place.injected(&format!("{tamper}{n}"), &args);
            let said = format!("{tamper}{n}: {code}: {out}{err}");
            if code != 0 {
                failed += 1;
            } else if place.has("guest") {
                place.done(&["delete", "guest", "--yes"]);
            }
            assert_eq!((place.journal().as_str(), total()), ("", pool.total()), "{said}");
            same(&before, &place.state(), &said);
            if code == 0 && n > 14 {
                break;
            }
        }
        assert!(failed > 6, "{tamper}: {failed} runs failed: the test proves nothing");
    }
}

#[test]
fn a_delete_killed_at_any_record_gives_pages_back_once() {
    let Some((place, pool)) = place() else { return };
    let args = create((&place, &pool), &["--reserve-pages"]);
    let mut gone = 0;
    for n in 1..MOST {
        if !place.has("guest") {
            place.done(&args);
        }
        assert!(total() > pool.total(), "the guest has its pages");
        let ended = place.killed(n, &["delete", "guest", "--yes"]);
        let said = place.recover();
        let expected = if place.has("guest") { number("free_hugepages") } else { Some(0) };
        if place.has("guest") {
            assert!(total() > pool.total(), "record {n}: {said} {expected:?}")
        } else {
            gone += 1;
            assert_eq!(total(), pool.total(), "record {n}: {said}");
        }
        if ended {
            assert!(gone > 4, "it was gone {gone} times: the test proves nothing");
            return;
        }
    }
    panic!("it never comes to its end");
}

#[test]
fn the_pages_of_a_node_are_set_now_and_at_boot() {
    let Some((place, pool)) = place() else { return };
    let (count, less) = ((pool.total() + 5).to_string(), (pool.total() + 1).to_string());
    let set = |count: &str, more: &[&str]| {
        let base = ["host", "pages", "--node", "0", "--size", "2M", "--count"];
        place.gpuvm(&[&base[..], &[count], more].concat())
    };
    let (code, out, err) = set(&count, &["--dry-run"]);
    assert_eq!(
        (code, out.trim(), total()),
        (0, &*format!("reserve 5 pages of 2 MiB on node 0, {count} in all"), pool.total()),
        "{err}"
    );
    assert_eq!(set(&count, &[]).0, 0);
    assert_eq!(total().to_string(), count);
    let (code, _, err) = set(&count, &[]);
    assert!(code == 0 && err.contains("already set; nothing to do"), "{err}");
    // Giving back is asked for.
    let (code, _, err) = set(&less, &[]);
    assert!(code == 2 && err.contains("--yes"), "{code}: {err}");
    assert_eq!(set(&less, &["--yes"]).0, 0);
    assert_eq!((total().to_string(), place.journal()), (less, String::new()));
    let (code, _, err) = set("99999999", &[]);
    assert!(code == 1 && err.contains("more pages of 2 MiB on node 0 are"), "{err}");
    let absent = ["host", "pages", "--node", "77", "--size", "2M", "--count", "1"];
    let (code, _, err) = place.gpuvm(&absent);
    assert!(code == 1 && err.contains("node 77 does not exist") && err.contains("hint:"), "{err}");
    // At boot, on a directory that is the test's own.
    let mut shell = place.daemon.within("bash");
    let script = r#"mount -t tmpfs tmpfs /etc/tmpfiles.d || exit 9
        f=/etc/tmpfiles.d/gpuvm-pages.conf; set -- "$0" host pages --node 0 --size 2M --boot-only
        "$@" --count 40 && cat $f && "$@" --count 0 && ls /etc/tmpfiles.d"#;
    let before = total();
    let (code, out, err) = run(shell.args(["-c", script, env!("CARGO_BIN_EXE_gpuvm")]));
    assert_eq!(code, 0, "{out}{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[1..], [&format!("w! {}/nr_hugepages - - - - 40", pool::POOL)], "{out}");
    assert!(err.contains("hugepagesz=2M hugepages=0:40"), "{err}");
    assert_eq!(total(), before);
}
