//! The file in a guest, through an agent in memory.

use super::*;
use crate::error::Error;
use crate::nccl::uninstall::{Removal, uninstall};
use crate::reporter::Answer;
use crate::stage::agent::FakeAgent;
use crate::stage::{Stage, UUID};
use gpuvm_core::topology::file::from_json;

/// A guest with two GPUs of a DGX H100, below an expander bus of this number.
fn definition(bus: u32, state: &str) -> String {
    let device = |bdf: &str, index: u32, slot: u32| {
        format!(
            "<controller type='pci' index='{index}' model='pcie-root-port'><address type='pci' \
             bus='1' slot='{slot}'/>\
             </controller><hostdev mode='subsystem' type='pci'><source><address domain='0' \
             bus='0x{bdf}' slot='0' \
             function='0'/></source><address type='pci' bus='{index}' slot='0' function='0'/></hostdev>"
        )
    };
    format!(
        "<domain type='kvm'><name>a</name><uuid>{UUID}</uuid><memory>1048576</memory><vcpu>2</vcpu>\
         <os><type arch='x86_64' machine='q35'>hvm</type></os><devices><controller type='pci' \
         index='1' \
         model='pcie-expander-bus'><target busNr='{bus}'/><address type='pci' bus='0' \
         slot='4'/></controller>{}{}\
         <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0' \
         state='{state}'/></channel>\
         </devices></domain>",
        device("1b", 2, 0),
        device("43", 3, 1)
    )
}

/// A stage with such a guest, running and with an agent.
fn stage() -> Stage {
    let mut stage = Stage::who_says(Answer::Nobody);
    let host = include_str!("../../../../topologies/dgx-h100.json");
    stage.world = stage.world.with_topology(from_json(host).unwrap());
    stage.fake.put_xml(&definition(100, "connected"), true);
    *stage.fake.guest.borrow_mut() = Some(FakeAgent::new());
    stage
}

fn done(stage: &Stage, manner: Manner) -> Result<Installed> {
    install(&stage.world, &Source::Domain("a".into()), manner)
}

fn file(stage: &Stage, path: &str) -> Option<String> {
    stage.fake.guest.borrow().as_ref().unwrap().file(path)
}

/// How often something of the guest was changed.
fn changes(stage: &Stage) -> usize {
    stage.fake.guest.borrow().as_ref().unwrap().changes.get()
}

/// Puts a file into the guest.
fn put(stage: &Stage, path: &str, text: &str) {
    stage.fake.guest.borrow().as_ref().unwrap().put(path, text);
}

fn states(done: &Installed) -> Vec<(&'static str, State)> {
    done.files.iter().map(|file| (file.path, file.state)).collect()
}

#[test]
fn the_file_is_written_once_and_found_until_the_guest_changes() {
    let stage = stage();
    let noted = nccl(&stage.world, &Source::Domain("a".into())).unwrap().file;
    let missing = [(FILE, State::Missing), (TMPFILES, State::Missing)];
    for manner in [Manner::Check, Manner::DryRun] {
        let seen = done(&stage, manner).unwrap();
        assert_eq!((states(&seen), seen.found, changes(&stage)), (missing.to_vec(), false, 0));
    }
    let first = done(&stage, Manner::Install).unwrap();
    assert_eq!((states(&first), first.found, first.written), (missing.to_vec(), true, true));
    assert_eq!(file(&stage, FILE), Some(noted.clone()));
    assert_eq!(file(&stage, FOUND_AT), Some(noted), "it is not found");
    assert_eq!(file(&stage, &format!("{FILE}.gpuvm-new")), None);
    let before = changes(&stage);
    let second = done(&stage, Manner::Install).unwrap();
    assert_eq!((second.found, second.written, changes(&stage)), (true, false, before));
    // Other addresses give another file; the old one is gpuvm's and not kept.
    stage.fake.put_xml(&definition(120, "connected"), true);
    let stale = done(&stage, Manner::Check).unwrap();
    assert_eq!((stale.files[0].state, stale.found), (State::Differs, false));
    assert!(stale.files[0].kept.is_none());
    assert!(done(&stage, Manner::Install).unwrap().found);
    assert!(file(&stage, FOUND_AT).unwrap().contains("0000:79:00.0"));
}

#[test]
fn foreign_files_are_kept_and_named() {
    let stage = stage();
    put(&stage, FILE, "<system version=\"1\"/>\n");
    put(&stage, &format!("{FILE}.before-gpuvm"), "older\n");
    // NVIDIA's daemon has a file of its own, so NCCL's settings name gpuvm's.
    put(&stage, FOUND_AT, "the daemon's\n");
    put(&stage, CONF, "NCCL_DEBUG=INFO");
    let seen = done(&stage, Manner::Install).unwrap();
    let kept = format!("{FILE}.before-gpuvm.2");
    assert_eq!(seen.files[0].kept.as_deref(), Some(&*kept));
    assert_eq!(file(&stage, &kept).as_deref(), Some("<system version=\"1\"/>\n"));
    assert_eq!(file(&stage, &format!("{FILE}.before-gpuvm")).as_deref(), Some("older\n"));
    assert_eq!(file(&stage, FOUND_AT).as_deref(), Some("the daemon's\n"));
    let conf = "NCCL_DEBUG=INFO\nNCCL_TOPO_FILE=/etc/nccl-topo.xml\n";
    assert_eq!(file(&stage, CONF).as_deref(), Some(conf));
    let kept = format!("{CONF}.before-gpuvm");
    assert_eq!(seen.files[1].kept.as_deref(), Some(&*kept));
    assert_eq!(file(&stage, &kept).as_deref(), Some("NCCL_DEBUG=INFO"));
    assert!(seen.found && file(&stage, TMPFILES).is_none());
    assert!(done(&stage, Manner::Check).unwrap().found);
    // Settings that name another file stay as they are, and are reported.
    put(&stage, CONF, "NCCL_TOPO_FILE=/mine.xml\n");
    let overruled = done(&stage, Manner::Install).unwrap();
    assert_eq!((overruled.overruled_by.as_deref(), overruled.found), (Some("/mine.xml"), false));
    assert_eq!(file(&stage, CONF).as_deref(), Some("NCCL_TOPO_FILE=/mine.xml\n"));
}

#[test]
fn a_guest_that_cannot_take_it_is_refused_untouched() {
    let refused = |change: &dyn Fn(&Stage), code: &str| {
        let stage = stage();
        change(&stage);
        let error: Error = done(&stage, Manner::Install).unwrap_err();
        let refusal = error.refusal().unwrap_or_else(|| panic!("{error}"));
        assert_eq!(refusal.code, code, "{error}");
        assert!(!refusal.hint.is_empty(), "{error}");
        for path in [FILE, TMPFILES, CONF] {
            assert_eq!(file(&stage, path), None, "{path}: {error}");
        }
    };
    refused(&|stage| stage.fake.put_xml(&definition(100, "connected"), false), "nccl-install-off");
    let deaf = |stage: &Stage| stage.fake.put_xml(&definition(100, "disconnected"), true);
    refused(&deaf, "nccl-install-no-agent");
    let forbid = |command: &'static str| {
        move |stage: &Stage| {
            let agent = stage.fake.guest.borrow();
            agent.as_ref().unwrap().forbidden.borrow_mut().push(command);
        }
    };
    refused(&forbid("guest-ping"), "nccl-install-no-agent");
    refused(&forbid("guest-file-open"), "nccl-install-forbidden");
    refused(&forbid("guest-file-write"), "nccl-install-forbidden");
    refused(&forbid("guest-exec"), "nccl-install-forbidden");
    refused(&|stage| put(stage, "/proc/sys/kernel/ostype", "FreeBSD\n"), "nccl-install-not-linux");
    let stuck = |stage: &Stage| {
        let dir = stage.fake.guest.borrow().as_ref().unwrap().root.path().join("etc/nccl-topo.xml");
        std::fs::create_dir_all(dir.join("a")).unwrap();
    };
    refused(&stuck, "nccl-install-failed");
    let source = Source::File("a.xml".into());
    let error = install(&stage().world, &source, Manner::Check).unwrap_err();
    assert!(error.refusal().unwrap().is_usage());
}

fn undone(stage: &Stage) -> Vec<(&'static str, Removal, Option<String>)> {
    let done = uninstall(&stage.world, &Source::Domain("a".into()), false).unwrap();
    done.files.into_iter().map(|file| (file.path, file.state, file.back)).collect()
}

/// Makes a link in the guest.
fn link(stage: &Stage, path: &str, to: &str) {
    stage.fake.guest.borrow().as_ref().unwrap().link(path, to);
}

/// The target of a link in the guest.
fn link_to(stage: &Stage, path: &str) -> Option<String> {
    stage.fake.guest.borrow().as_ref().unwrap().link_to(path)
}

#[test]
fn links_are_kept_as_links_and_settings_are_edited_where_they_lead_to() {
    let stage = stage();
    put(&stage, "/opt/own.xml", "mine\n");
    put(&stage, "/opt/nccl.conf", "NCCL_DEBUG=INFO\n");
    link(&stage, FILE, "/opt/own.xml");
    link(&stage, TMPFILES, "/gone");
    link(&stage, CONF, "/opt/nccl.conf");
    let seen = done(&stage, Manner::Check).unwrap();
    assert_eq!(states(&seen), [(FILE, State::Differs), (TMPFILES, State::Differs)]);
    assert!(done(&stage, Manner::Install).unwrap().found);
    for (path, to) in [(FILE, "/opt/own.xml"), (TMPFILES, "/gone")] {
        assert_eq!(link_to(&stage, path), None, "{path}");
        assert_eq!(link_to(&stage, &format!("{path}.before-gpuvm")).as_deref(), Some(to));
    }
    assert_eq!(file(&stage, "/opt/own.xml").as_deref(), Some("mine\n"));
    let back = |path: &str| Some(format!("{path}.before-gpuvm"));
    let gone = [
        (CONF, Removal::Absent, None),
        (TMPFILES, Removal::Removed, back(TMPFILES)),
        (FILE, Removal::Removed, back(FILE)),
    ];
    assert_eq!(undone(&stage), gone);
    assert_eq!(link_to(&stage, FILE).as_deref(), Some("/opt/own.xml"));
    assert_eq!(link_to(&stage, TMPFILES).as_deref(), Some("/gone"));
    assert_eq!(file(&stage, FOUND_AT), None);
    // Without systemd the settings name the file, through their link.
    put(&stage, "/proc/1/comm", "init\n");
    let seen = done(&stage, Manner::Install).unwrap();
    let conf = &seen.files[1];
    assert_eq!(conf.leads_to.as_deref(), Some("/opt/nccl.conf"));
    assert_eq!(conf.kept.as_deref(), Some("/opt/nccl.conf.before-gpuvm"));
    assert_eq!(link_to(&stage, CONF).as_deref(), Some("/opt/nccl.conf"));
    let named = "NCCL_DEBUG=INFO\nNCCL_TOPO_FILE=/etc/nccl-topo.xml\n";
    assert_eq!(file(&stage, "/opt/nccl.conf").as_deref(), Some(named));
    assert_eq!(undone(&stage)[0].1, Removal::Removed);
    assert_eq!(file(&stage, "/opt/nccl.conf").as_deref(), Some("NCCL_DEBUG=INFO\n"));
    assert_eq!(file(&stage, "/opt/nccl.conf.before-gpuvm"), None);
}

#[test]
fn only_exact_files_of_gpuvm_are_removed() {
    let stage = stage();
    done(&stage, Manner::Install).unwrap();
    let ours = file(&stage, FILE).unwrap();
    let edited = ours.clone() + "<!-- mine -->\n";
    put(&stage, FILE, &edited);
    assert_eq!(undone(&stage)[2], (FILE, Removal::Changed, None));
    assert_eq!(file(&stage, FILE), Some(edited.clone()));
    assert_eq!((file(&stage, TMPFILES), link_to(&stage, FOUND_AT)), (None, None));
    // A file that was changed by others is kept when it is rewritten, once however often that
    // happens.
    for _ in 0..2 {
        put(&stage, FILE, &edited);
        let seen = done(&stage, Manner::Install).unwrap();
        assert_eq!(seen.files[0].kept, Some(format!("{FILE}.before-gpuvm")));
    }
    assert_eq!(file(&stage, &format!("{FILE}.before-gpuvm.2")), None);
    let before = changes(&stage);
    let removed = uninstall(&stage.world, &Source::Domain("a".into()), true).unwrap();
    assert_eq!((removed.written, changes(&stage)), (false, before));
    assert_eq!(undone(&stage)[2].1, Removal::Removed);
    assert_eq!(file(&stage, FILE), Some(edited));
    // Settings that were changed since lose only the line, and a line for a user's own file stays.
    let stage = self::stage();
    put(&stage, "/proc/1/comm", "init\n");
    put(&stage, CONF, "A=1\n");
    done(&stage, Manner::Install).unwrap();
    put(&stage, CONF, &(file(&stage, CONF).unwrap() + "B=2\n"));
    assert_eq!(undone(&stage)[0], (CONF, Removal::Removed, None));
    assert_eq!(file(&stage, CONF).as_deref(), Some("A=1\nB=2\n"));
    put(&stage, FILE, "mine\n");
    put(&stage, CONF, "NCCL_TOPO_FILE=/etc/nccl-topo.xml\nC=3\n");
    let stays = [
        (CONF, Removal::Foreign, None),
        (TMPFILES, Removal::Absent, None),
        (FILE, Removal::Foreign, None),
    ];
    assert_eq!(undone(&stage), stays);
    assert_eq!(file(&stage, FILE).as_deref(), Some("mine\n"));
}

#[test]
fn an_overruled_guest_is_reported_with_its_file_and_written_once() {
    for (by, line) in [
        ("/etc/environment", "NCCL_TOPO_FILE=\"/mine.xml\"\n"),
        ("/etc/profile.d/site.sh", "export NCCL_TOPO_FILE=/mine.xml\n"),
        ("/root/.nccl.conf", "NCCL_TOPO_FILE=/mine.xml\n"),
        (CONF, "NCCL_TOPO_FILE=/mine.xml\n"),
    ] {
        let stage = stage();
        put(&stage, by, line);
        let first = done(&stage, Manner::Install).unwrap();
        assert!(first.written && !first.found, "{by}: {first:?}");
        let before = changes(&stage);
        for manner in [Manner::Install, Manner::Check] {
            let seen = done(&stage, manner).unwrap();
            assert_eq!(seen.overruled_by.as_deref(), Some("/mine.xml"), "{by}");
            assert_eq!(seen.overruled_in.as_deref(), Some(by));
            assert!(!seen.found && !seen.written && !seen.is_settled(), "{seen:?}");
            assert!(seen.hint.unwrap().contains(by));
        }
        assert_eq!((changes(&stage), file(&stage, by).as_deref()), (before, Some(line)));
        put(&stage, by, "");
        assert!(done(&stage, Manner::Install).unwrap().is_settled(), "{by}");
    }
}

#[test]
fn nvidias_daemon_does_not_write_through_gpuvms_link() {
    let stage = stage();
    done(&stage, Manner::Install).unwrap();
    put(&stage, DAEMON[1], "[Unit]\n");
    let seen = done(&stage, Manner::Check).unwrap();
    let expected = [(FILE, State::Same), (CONF, State::Missing), (TMPFILES, State::Unwanted)];
    assert_eq!(states(&seen), expected);
    assert!(done(&stage, Manner::Install).unwrap().found);
    assert_eq!((file(&stage, TMPFILES), link_to(&stage, FOUND_AT)), (None, None));
    assert!(done(&stage, Manner::Check).unwrap().is_settled());
    assert_eq!(undone(&stage)[0], (CONF, Removal::Removed, None));
    assert_eq!((file(&stage, CONF), file(&stage, FILE)), (None, None));
}

#[test]
fn a_guest_that_needs_no_file_gets_none() {
    let one = |bus, state| {
        let both = definition(bus, state);
        let (start, second) = both.split_once("</hostdev>").unwrap();
        let end = second.split_once("</hostdev>").unwrap().1;
        format!("{start}</hostdev>{end}")
    };
    let stage = stage();
    for state in ["connected", "disconnected"] {
        stage.fake.put_xml(&one(100, state), true);
        for manner in [Manner::Check, Manner::Install] {
            let seen = done(&stage, manner).unwrap();
            assert!(!seen.needed && seen.is_settled() && seen.files.is_empty(), "{seen:?}");
        }
    }
    assert_eq!((file(&stage, FILE), changes(&stage)), (None, 0));
    // An existing file of gpuvm is kept up to date.
    stage.fake.put_xml(&definition(100, "connected"), true);
    done(&stage, Manner::Install).unwrap();
    stage.fake.put_xml(&one(120, "connected"), true);
    let seen = done(&stage, Manner::Check).unwrap();
    assert_eq!(
        (seen.needed, seen.files[0].state, seen.is_settled()),
        (false, State::Differs, false)
    );
    assert!(done(&stage, Manner::Install).unwrap().found);
}

#[test]
fn files_changed_while_written_are_left() {
    let stage = stage();
    put(&stage, FILE, "mine\n");
    let guest = stage.fake.guest.borrow();
    *guest.as_ref().unwrap().rival.borrow_mut() = Some((FILE.into(), "another's\n".into()));
    drop(guest);
    let error = done(&stage, Manner::Install).unwrap_err();
    assert_eq!(error.refusal().unwrap().code, "nccl-install-changed", "{error}");
    assert_eq!(file(&stage, FILE).as_deref(), Some("another's\n"));
    assert_eq!(file(&stage, &format!("{FILE}.before-gpuvm")), None);
    assert_eq!(file(&stage, &format!("{FILE}.gpuvm-new")), None);
}
