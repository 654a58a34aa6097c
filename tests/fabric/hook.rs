//! Guests that others start: libvirt's hook and the unit of systemd.

use super::machine::{H100, Machine, domain_with, guest_with, operations};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

#[test]
fn a_guest_that_others_start_gets_its_partition_by_its_xml_alone() {
    let Some(machine) = Machine::h100() else { return };
    let (state, calls) = (machine.path("state"), machine.path("calls"));
    let fake =
        |more: &str| machine.fake("h100", &H100, &format!("{more}\nstate {state}\ncalls {calls}"));
    fake("");
    let uuid = "11111111-2222-3333-4444-555555555555";
    let ask = |verb: &str, xml: &str| {
        // A query to libvirt would fail.
        let program = env!("CARGO_BIN_EXE_gpuvm");
        let words = [program, "fabric", verb, "--stdin", "-c", "test:///nosuch"];
        machine.gpuvm_on(&words, true, xml)
    };
    // Nothing is loaded for a guest without GPUs.
    let (code, out, err) = ask("ensure", &domain_with(uuid, &[]));
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""));
    assert_eq!(std::fs::read_to_string(machine.path("journal")).unwrap_or_default(), "");
    // Nobody could deactivate its partition.
    for verb in ["ensure", "release"] {
        let nameless = domain_with("", &["1b", "43"]).replace("<uuid></uuid>", "");
        let (code, _, err) = ask(verb, &nameless);
        assert_eq!(
            (code, err.contains("domain `foreign` has no UUID")),
            (1, true),
            "{verb}: {err}"
        );
    }
    assert_eq!(std::fs::read_to_string(machine.path("journal")).unwrap_or_default(), "");
    // Modules 1 and 5.
    let (code, _, err) = ask("ensure", &domain_with(uuid, &["9d", "1b"]));
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("CUDA would not work in domain `foreign`: no NVLink"), "{err}");
    assert!(err.contains("2 GPUs of this guest (modules 1, 5)"), "{err}");
    assert!(err.contains("partitions have 1, 2, 4, 8 GPUs"), "{err}");
    assert!(err.contains("hint: partitions of 2 GPUs: modules 1, 3; "), "{err}");
    let pair = domain_with(uuid, &["9d", "c3"]);
    for _ in 0..2 {
        let (code, _, err) = ask("ensure", &pair);
        assert_eq!(code, 0, "{err}");
    }
    assert_eq!(operations(&machine), ["fmActivateFabricPartition 3"]);
    let kept = std::fs::read_to_string(machine.path("var/gpuvm/fabric.json")).unwrap();
    assert!(kept.contains(uuid), "{kept}");
    // It is another guest's: refused, and the hook that libvirt calls after the refusal takes
    // nothing from its owner.
    let other = domain_with("22222222-2222-3333-4444-555555555555", &["9d", "c3"]);
    let (code, _, err) = ask("ensure", &other);
    assert!(
        code == 1
            && err.contains("partition 3 is active")
            && err.contains("hint: `gpuvm fabric release "),
        "{err}"
    );
    assert_eq!(ask("release", &other).0, 0);
    assert_eq!(operations(&machine).len(), 1);
    let (code, _, err) = ask("release", &pair);
    assert_eq!(code, 0, "{err}");
    assert_eq!(operations(&machine)[1..], ["fmDeactivateFabricPartition 3"]);
    for (xml, why) in [
        ("<domain><devices>".to_owned(), "domain XML"),
        (String::new(), "domain XML"),
        (format!("<domain>{}</domain>", " ".repeat(17 << 20)), "more than the limit"),
    ] {
        let (code, _, err) = ask("ensure", &xml);
        assert!(code == 1 && err.contains(why), "{err}");
    }
    fake("address elsewhere");
    let (code, _, err) = ask("ensure", &pair);
    assert!(code == 1 && err.contains("CONNECTION_NOT_VALID (-9)"), "{err}");
}

/// Only the command line counts: libvirt's hook has the environment of its daemon.
#[test]
fn verbs_of_the_hook_refuse_records_and_remote_connections() {
    let Some(machine) = Machine::h100() else { return };
    let calls = machine.path("calls");
    machine.fake("h100", &H100, &format!("state {}\ncalls {calls}", machine.path("state")));
    let pair = domain_with("11111111-2222-3333-4444-555555555555", &["9d", "c3"]);
    let record = machine.path("record");
    for verb in ["ensure --stdin", "release --stdin", "restore --boot"] {
        for (more, why) in [
            (["--host", record.as_str()], "changes the machine, so it does not take --host"),
            (["--connect", "qemu+ssh://gpu9.invalid/system"], "gpu9.invalid/system may be of"),
            (["-c", "qemu+ext:///system?command=/bin/false"], "may be of another"),
            (["-c", "an-alias"], "an-alias may be of another"),
        ] {
            let words: Vec<&str> = [env!("CARGO_BIN_EXE_gpuvm"), "fabric"]
                .into_iter()
                .chain(verb.split(' '))
                .chain(more)
                .collect();
            let (code, out, err) = machine.gpuvm_on(&words, true, &pair);
            assert_eq!((code, out.as_str()), (2, ""), "{words:?}: {err}");
            assert!(err.contains(why) && err.contains("run it on that machine"), "{err}");
        }
    }
    assert_eq!(std::fs::read_to_string(&calls).unwrap_or_default(), "");
    assert!(std::fs::read(machine.path("var/gpuvm/fabric.json")).is_err());
    let away = "LIBVIRT_DEFAULT_URI=qemu+ssh://gpu9.invalid/system";
    for verb in ["ensure", "release"] {
        let words = ["env", away, env!("CARGO_BIN_EXE_gpuvm"), "fabric", verb, "--stdin"];
        let (code, _, err) = machine.gpuvm_on(&words, true, &pair);
        assert_eq!((code, err.as_str()), (0, ""), "{verb}");
    }
    let done = ["fmActivateFabricPartition 3", "fmDeactivateFabricPartition 3"];
    assert_eq!(operations(&machine), done);
}

#[test]
fn hook_and_unit_are_installed_and_taken_back_byte_for_byte() {
    let Some(machine) = Machine::h100() else { return };
    machine.fake("h100", &H100, "");
    let uri = guest_with(&machine, &["9d"]);
    let gpuvm = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().chain(["-c", &uri]).collect();
        machine.gpuvm(&words, true)
    };
    let done = |line: &str| {
        let (code, out, err) = gpuvm(line);
        assert_eq!(code, 0, "{line}: {out}{err}");
        out + &err
    };
    let file = PathBuf::from(machine.path("etc/libvirt/hooks/qemu.d/50-gpuvm"));
    let printed = gpuvm("fabric hook --print").1;
    assert!(done("fabric hook --install").contains("systemctl restart"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), printed);
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o755);
    assert!(done("fabric hook --install").contains("nothing to do"));
    // The hook calls for migrations, restores and restarts of libvirt print nothing and block
    // nothing.
    let hook = |operation: &[&str], xml: &str| {
        let words = [&["/etc/libvirt/hooks/qemu.d/50-gpuvm", "foreign"], operation].concat();
        machine.gpuvm_on(&words, true, xml)
    };
    for operation in ["migrate", "restore", "reconnect", "start"] {
        let silent = (0, String::new(), String::new());
        assert_eq!(hook(&[operation, "begin", "-"], "<domain>"), silent, "{operation}");
    }
    let (code, out, err) = hook(&["prepare", "begin", "-"], "<domain>");
    assert!(code != 0 && out.is_empty() && err.contains("domain XML"), "{err}");
    let alone = domain_with("11111111-2222-3333-4444-555555555555", &[]);
    assert_eq!(hook(&["prepare", "begin", "-"], &alone), (0, String::new(), String::new()));
    done("host undo --yes");
    assert!(!file.exists());
    done("fabric hook --install");
    done("fabric hook --remove");
    assert!(!file.exists());
    // A file is not gpuvm's because of its header: a foreign one, an edited one of gpuvm's, one
    // that only contains the header.
    let edited = printed.replace("#!/bin/sh\n", "#!/bin/sh -x\n");
    let marked = format!("#!/bin/sh\n{}\nexit 0\n", printed.lines().nth(1).unwrap());
    let kept = |text: &str| {
        for line in ["fabric hook --install", "fabric hook --remove"] {
            let (code, _, err) = gpuvm(line);
            let is_told = err.contains("not made by gpuvm") && err.contains("hint: `cat ");
            assert!(code == 1 && is_told, "{line}: {err}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
    };
    done("fabric hook --install");
    for text in ["#!/bin/sh\nexit 0\n", &edited, &marked] {
        std::fs::write(&file, text).unwrap();
        kept(text);
    }
    std::fs::remove_file(&file).unwrap();
    // One of an older version without a record is gpuvm's if it is correct to the byte.
    for text in [&edited, &printed] {
        std::fs::write(&file, text).unwrap();
        if text == &edited {
            kept(text)
        } else {
            done("fabric hook --remove");
        }
    }
    assert!(!file.exists());

    let unit = machine.path("etc/systemd/system/nvidia-fabricmanager.service.d/50-gpuvm.conf");
    let printed = gpuvm("fabric unit --print").1;
    assert!(printed.contains("ExecStartPost=-/") && printed.contains("fabric restore --boot"));
    let said = done("fabric unit --install");
    assert!(said.contains("daemon-reload"), "{said}");
    assert_eq!(std::fs::read_to_string(&unit).unwrap(), printed);
    done("host undo --yes");
    assert!(!Path::new(&unit).exists());
    done("fabric unit --install");
    assert!(done("fabric unit --remove --dry-run").contains("50-gpuvm.conf"));
    done("fabric unit --remove");
    assert!(!Path::new(&unit).exists());
    assert!(done("fabric unit --remove").contains("nothing to do"));
    // A foreign one stays, and a pipe in its place is refused at once.
    std::fs::create_dir_all(Path::new(&unit).parent().unwrap()).unwrap();
    std::fs::write(&unit, "[Service]\n").unwrap();
    let (code, _, err) = gpuvm("fabric unit --remove");
    assert!(code == 1 && err.contains("not made by gpuvm"), "{err}");
    std::fs::remove_file(&unit).unwrap();
    nix::unistd::mkfifo(Path::new(&unit), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for line in ["fabric unit --install", "fabric unit --remove"] {
        let (code, _, err) = gpuvm(line);
        assert!(code == 1 && err.contains("a named pipe, not a regular file"), "{line}: {err}");
        assert!(err.contains("hint: `ls -l "), "{line}: {err}");
    }
    assert_eq!(done("fabric unit --print"), printed, "what is installed does not matter");
    std::fs::remove_file(&unit).unwrap();
    // A dangling link belongs to others, too.
    std::os::unix::fs::symlink("/nowhere", &unit).unwrap();
    for line in ["fabric unit --install", "fabric unit --remove"] {
        let (code, _, err) = gpuvm(line);
        assert!(code == 1 && err.contains("not made by gpuvm"), "{line}: {err}");
        assert!(err.contains("hint: `ls -l ") && Path::new(&unit).is_symlink(), "{line}: {err}");
    }
    std::fs::remove_file(&unit).unwrap();
    let said = done("fabric unit --install --config --dry-run");
    assert!(
        said.contains("fabricmanager.cfg.before-gpuvm") && !Path::new(&unit).exists(),
        "{said}"
    );
    assert!(said.contains("+STATE_FILE_NAME=/var/lib/nvidia-fabricmanager/"), "{said}");
    // A copy of others stays; gpuvm's own is recreated.
    let script = "cd /usr/share/nvidia/nvswitch; G=\"$0 -q fabric unit --install --config -c $1\"
         echo theirs >fabricmanager.cfg.before-gpuvm; cp fabricmanager.cfg was
         for more in --dry-run ''; do ! $G $more 2>&1; cmp fabricmanager.cfg was; done
         test \"$(cat fabricmanager.cfg.before-gpuvm)\" = theirs; rm fabricmanager.cfg.before-gpuvm
         $G; cmp fabricmanager.cfg.before-gpuvm was; ! cmp -s fabricmanager.cfg was
         echo '# more' >>was; cp was fabricmanager.cfg; $G; cmp fabricmanager.cfg.before-gpuvm was
         echo '# theirs' >>fabricmanager.cfg.before-gpuvm; cp was fabricmanager.cfg; ! $G 2>&1";
    let words = ["bash", "-ec", script, env!("CARGO_BIN_EXE_gpuvm"), &uri];
    let (code, out, err) = machine.gpuvm_on(&words, true, "");
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let told = "fabricmanager.cfg.before-gpuvm was not made by gpuvm, or was changed since";
    assert_eq!((out.matches(told).count(), out.matches("hint: `cat ").count()), (3, 3), "{out}");
}
