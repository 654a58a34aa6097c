//! Locks, private files, secrets, terminal escapes and endless inputs.

use crate::hostbridge;
use crate::support::daemon::{Daemon, namespaces};
use crate::support::{gpuvm, host_tree, project, run, skip};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A script as root of a machine like a DGX-2, in mounts of its own where /etc and /run are empty;
/// `$0` is the program. None where that is not possible.
fn on_dgx2(script: &str) -> Option<String> {
    if !namespaces() {
        return skip("namespaces need root");
    }
    let mounts = "for dir in etc run; do mount -t tmpfs -o mode=755 tmpfs /$dir; done\n\
                  echo root:x:0:0::/root:/bin/sh >/etc/passwd; echo root:x:0: >/etc/group\n";
    let mut command = Command::new(project().join("tests/as-host"));
    command.arg(host_tree("dgx-2")).args(["bash", "-c", &format!("set -e\n{mounts}{script}")]);
    command.arg(env!("CARGO_BIN_EXE_gpuvm")).env("LC_ALL", "C").env_remove("COLUMNS");
    let (code, out, err) = run(command.stdin(Stdio::null()));
    assert_eq!(code, 0, "{out}{err}");
    Some(out)
}

/// Asserts that the output has lines that begin so, in this order.
fn says(said: &str, lines: &[&str]) {
    let mut rest = said.lines();
    for line in lines {
        assert!(rest.any(|said| said.starts_with(line)), "{line}, in this order:\n{said}");
    }
}

#[test]
fn other_users_cannot_hold_block_or_split_the_lock() {
    let said = on_dgx2(
        r#"
        mkdir -m 1777 /run/lock /run/x; mkdir -p /run/user/0
        as() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
        change() { timeout 10 "$0" gpu exclude 34:00.0 --lock-wait 0 2>&1 || echo "= $?"; rm -rf /etc/gpuvm; }
        # As any user may.
        as mkfifo -m 666 /run/lock/gpuvm.lock
        change
        rm /run/lock/gpuvm.lock; as touch /run/lock/gpuvm.lock
        (exec setpriv --reuid=65534 --regid=65534 --clear-groups bash -c \
          'exec 9</run/lock/gpuvm.lock; flock 9; exec sleep 60' >/dev/null 2>&1) & sleeper=$!
        while flock -n /run/lock/gpuvm.lock true; do sleep 0.01; done
        change; kill $sleeper
        stat -c '%U %a %F' /run/gpuvm /run/gpuvm/lock
        echo "nobody: $(as flock -n /run/gpuvm/lock echo held 2>&1)"
        echo "nobody: $(as touch /run/gpuvm/x 2>&1)"
        # One lock whatever the caller's settings are.
        flock -n /run/gpuvm/lock env XDG_RUNTIME_DIR=/run/user/0 XDG_STATE_HOME=/run/x HOME=/run/x \
          "$0" gpu exclude 34:00.0 --lock-wait 0 2>&1 || echo "= $?"
        for umask in 0 077; do rm -r /run/gpuvm; (umask $umask; change); stat -c "%a" /run/gpuvm /run/gpuvm/lock; done
        # What only root could have put there is named, and nothing else is used instead.
        for bad in 'mkfifo lock' 'ln -s /etc/passwd lock' 'mkdir lock' 'mknod lock c 1 5' 'touch lock; chmod 666 lock' \
            'touch lock; chown 65534 lock' 'chmod 777 .' 'rmdir ../gpuvm; mkdir /run/mine; ln -s mine ../gpuvm' \
            'rmdir ../gpuvm; touch ../gpuvm'; do
          rm -rf /run/gpuvm; mkdir /run/gpuvm; echo "-- $bad"; (cd /run/gpuvm; eval "$bad"); change
        done
        ls -A /run/mine /run/user/0 /run/x | sed 's/^$/empty/'; echo end"#,
    );
    let Some(said) = said else { return };
    let one = ["0000:34:00.0 is excluded"];
    let refused = |reason| [reason, "hint: `ls -ld /run/gpuvm", "= 1"];
    let lines = [
        &one[..],
        &one[..],
        &["root 755 directory", "root 640 regular empty file"],
        &["nobody: flock: cannot open lock file /run/gpuvm/lock: Permission denied"],
        &["nobody: touch: cannot touch '/run/gpuvm/x': Permission denied"],
        &["error: /run/gpuvm/lock is held by process", "= 1"],
        &["0000:34:00.0 is excluded", "755", "640", "0000:34:00.0 is excluded", "755", "640"],
        &refused("error: /run/gpuvm/lock is not used as the lock: it is not a regular file"),
        &refused("error: /run/gpuvm/lock is not used as the lock: it is a symbolic link"),
        &["error: ", "= 1"],
        &refused("error: /run/gpuvm/lock is not used as the lock: it is not a regular file"),
        &refused("error: /run/gpuvm/lock is not used as the lock: mode 0666 lets others write it"),
        &refused("error: /run/gpuvm/lock is not used as the lock: it belongs to user 65534"),
        &refused("error: /run/gpuvm is not used as the lock: mode 0777 lets others write it"),
        &["error: ", "= 1", "error: ", "= 1", "end"],
    ];
    says(&said, &lines.concat());
    assert!(!said.contains("= 124"), "it hangs: {said}");
}

#[test]
fn the_callers_path_and_settings_choose_no_program() {
    let said = on_dgx2(
        r#"
        mkdir -p /run/t/evil /run/t/sys /run/t/lib; cp -r /sys/devices /run/t/sys/devices
        mount --bind /run/t/sys/devices /sys/devices
        pages=/sys/devices/system/node/node0/hugepages/hugepages-2048kB
        for name in tee modprobe cat ip nft mdadm netplan qemu-img systemd-run env sh bash; do
          printf '#!/bin/bash\necho %s >>/run/t/stolen\n' $name >/run/t/evil/$name
        done
        chmod 755 /run/t/evil/*
        # What the program's own children see: the real one is looked at through a script in its place.
        cp /usr/bin/tee /run/t/tee.real
        printf '#!/bin/bash -p\n/usr/bin/env >/run/t/seen\nexec /run/t/tee.real "$@"\n' >/run/t/tee; chmod 755 /run/t/tee*
        mount --bind /run/t/tee "$(readlink -f /usr/bin/tee)"
        env PATH=/run/t/evil:$PATH PYTHONPATH=/run/t/lib GCONV_PATH=/run/t/lib LC_ALL=de_DE.UTF-8 BASH_ENV=/run/t/evil/sh \
          "$0" --connect test:///default host pages --node 0 --size 2M --count 3 --yes 2>&1 || echo "= $?"
        echo "set to $(cat $pages/nr_hugepages)"; sort /run/t/seen; ls /run/t/stolen 2>&1 || true; echo end"#,
    );
    let Some(said) = said else { return };
    let seen = ["set to 3", "LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"];
    says(&said, &[&seen[..], &["ls: cannot access '/run/t/stolen'", "end"]].concat());
    for name in ["evil", "PYTHONPATH", "GCONV", "BASH_ENV", "de_DE", "HOME"] {
        assert!(!said.contains(name), "{name}: {said}");
    }
}

#[test]
fn one_function_makes_every_command() {
    let out = run(Command::new("grep")
        .args(["-rln", "Command::new", "--include=*.rs"])
        .arg(project().join("src")));
    // The last two are the agent of a guest in tests.
    let not = [
        "src/host/program.rs",
        "src/core/seed/tests.rs",
        "src/ops/stage/agent.rs",
        "src/ops/stage/local.rs",
    ];
    let files: Vec<&str> =
        out.1.lines().filter(|file| !not.iter().any(|not| file.ends_with(not))).collect();
    assert_eq!(files, [""; 0], "programs are run by `program::command`");
}

/// Runs the program with limits on time and memory, so that endless reads are detected and
/// harmless.
fn bounded(args: &[&str]) -> (i32, String) {
    let plain = gpuvm(args);
    let mut command = Command::new("timeout");
    command.args(["20", "prlimit", "--as=2000000000", "--"]).arg(plain.get_program()).args(args);
    command.env_remove("LIBVIRT_DEFAULT_URI").env_remove("COLUMNS").env("LC_ALL", "C");
    let (code, out, err) = run(command.stdin(Stdio::null()));
    (code, out + &err)
}

/// Paths that are not usable files, with the expected message.
fn traps(dir: &Path) -> Vec<(PathBuf, &'static str)> {
    let fifo = dir.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let link = dir.join("link.xml");
    std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
    let sparse = dir.join("sparse");
    std::fs::File::create(&sparse).unwrap().set_len(1 << 40).unwrap();
    let mut traps = vec![
        (PathBuf::from("/dev/zero"), "is a character device"),
        (fifo, "is a named pipe"),
        (link, "is a character device"),
        (sparse, "more than the limit of"),
        (PathBuf::from("/proc/self/mem"), "a file of the kernel's proc"),
    ];
    if Path::new("/proc/kmsg").exists() {
        traps.push((PathBuf::from("/proc/kmsg"), "/proc/kmsg"));
    }
    traps
}

#[test]
fn no_input_is_read_without_end_or_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let host = project().join("topologies/dgx-2.json");
    let host = host.to_str().unwrap();
    let plan = ["plan", "--gpus", "1", "--host"];
    let scratch = dir.path().to_str().unwrap();
    let guest = "--connect test:///default create --name t --vcpus 1 --memory 64M --pins none \
                 --data-size none --os-size 1M --dry-run --disk-dir";
    let with = |option| guest.split(' ').chain([scratch, option]).collect::<Vec<_>>();
    let inputs: Vec<Vec<&str>> = vec![
        plan.to_vec(),
        [&plan[..], &[host, "--domain-xml"]].concat(),
        with("--template"),
        with("--ssh-key"),
        with("--user-data"),
        with("--meta-data"),
        with("--network-config"),
        with("--password-hash"),
        vec!["check", "--host", host],
        vec!["tune", "--all-settings", "--host", host],
        vec!["--connect", "test:///default", "image", "add"],
        vec!["--connect", "test:///default", "create", "--no-seed", "--dry-run", "--disk"],
    ];
    for (path, reason) in traps(dir.path()) {
        for input in &inputs {
            let disk = input.last() == Some(&"--disk") || input.last() == Some(&"add");
            if disk && reason.starts_with("more than") {
                continue;
            }
            let (code, said) = bounded(&[&input[..], &[path.to_str().unwrap()]].concat());
            assert_eq!(code, 1, "{input:?} {path:?}: {said}");
            assert!(disk || said.contains(reason), "{input:?} {path:?}: {said}");
        }
    }
}

#[test]
fn input_from_a_shell_is_read_and_bounded() {
    let host = project().join("topologies/dgx-2.json");
    let script = r#"
        plan() { timeout 20 prlimit --as=2000000000 "$0" plan --gpus 1 --host "$@" 2>&1 >/dev/null && echo planned || echo "= $?"; }
        plan <(cat "$1"); plan /dev/stdin <"$1"; cat "$1" | plan /dev/stdin
        plan <(cat /dev/zero); cat /dev/zero | timeout 20 prlimit --as=2000000000 "$0" check - --host "$1" 2>&1; echo end"#;
    let mut shell = Command::new("bash");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_gpuvm")]).arg(host).env("LC_ALL", "C");
    let (_, said, _) = run(shell.stdin(Stdio::null()));
    says(
        &said,
        &[
            "planned",
            "planned",
            "planned",
            "error: /dev/fd/",
            "= 1",
            "error: standard input has no end, more than the limit of 16777216 bytes",
            "end",
        ],
    );
}

#[test]
fn other_users_cannot_read_copies_of_netplans_files() {
    // A replacement for netplan inspects the files while netplan would run.
    let said = hostbridge::script(
        r#"start
        real=$(readlink -f /usr/sbin/netplan); cp $real /run/stand/real
        cat >/run/stand/netplan <<END
#!/bin/bash
for word; do
  if [[ \$before == --root-dir ]]; then
    stat -c 'root %U %a %n' \$word; find \$word -mindepth 1 -printf '%y %m %f\n'
  fi >>/run/seen
  before=\$word
done
PYTHONPATH=${real%/*} exec /usr/bin/python3 /run/stand/real "\$@"
END
        chmod 755 /run/stand/netplan; mount --bind /run/stand/netplan $real
        export TMPDIR=/run/callers; mkdir -m 1777 $TMPDIR; umask 0
        $bridge create br0 --nic nic0 --address 10.77.0.2/24 --gateway 10.77.0.1 --dry-run
        cat /run/seen; echo "left: $(ls -d /run/gpuvm-netplan* /tmp/gpuvm-netplan* $TMPDIR/* 2>/dev/null)"; echo whole"#,
    );
    let Some(said) = said else { return };
    says(&said, &["root root 700 /run/gpuvm-netplan-", "left: ", "whole"]);
    assert!(said.contains("f 600 50-host.yaml") && said.contains("left: \n"), "{said}");
    let open = said.lines().find(|line| {
        let mode = line.strip_prefix("f ").or_else(|| line.strip_prefix("d "));
        mode.is_some_and(|mode| !mode.starts_with("600") && !mode.starts_with("700"))
    });
    assert_eq!(open, None, "{said}");
}

/// The control characters in a program's output that a terminal would obey, as code points.
fn obeyed(said: &str) -> Vec<u32> {
    let is_bad = |c: char| {
        (c.is_control() && !matches!(c, '\n' | '\t'))
            || ('\u{202a}'..='\u{202e}').contains(&c)
            || ('\u{2066}'..='\u{2069}').contains(&c)
    };
    said.chars().filter(|c| is_bad(*c)).map(u32::from).collect()
}

/// The password that definitions hold here.
const PASSWORD: &str = "hunter2x";

/// A domain whose texts contain newlines and escape sequences, and whose definition contains
/// passwords.
fn domain(name: &str) -> String {
    format!(
        "<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>\
         <name>{name}</name><title>t\u{9b}2J\u{202e}t</title>\
         <description>d\u{9d}0;x\u{2066}</description><memory unit='MiB'>64</memory>\
         <vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os><devices>\
         <graphics type='vnc' passwd='{PASSWORD}'/><serial type='pty'/>\
         <disk type='network' device='cdrom'><source protocol='http' name='a\u{202e}b'>\
         <host name='h' port='80'/><cookies><cookie name='c'>{PASSWORD}</cookie></cookies>\
         </source><target dev='sda' bus='sata'/></disk></devices><qemu:commandline>\
         <qemu:arg value='-object'/><qemu:arg value='secret,id=s,data={PASSWORD}'/>\
         </qemu:commandline></domain>"
    )
}

/// The output of every verb that reads or shows the domain, with its command line.
fn every_verb(daemon: &Daemon, name: &str, dir: &Path) -> Vec<(String, String)> {
    let file = dir.join("host.json");
    let file = file.to_str().unwrap();
    let lines = [
        "list",
        "show D",
        "check D",
        "verify D",
        "verify --all",
        "ip D",
        "console D",
        "history D",
        "tune D --diff",
        "tune D --dry-run",
        "tune D --check",
        "tune D --explain --dry-run",
        "tune --all --diff",
        "start D --dry-run",
        "stop D",
        "restart D",
        "seed drop D --dry-run",
        "delete D --dry-run",
        "delete D",
        "image list",
        "network list",
        "network show default",
        "network doctor",
        "gpu list",
        "device list",
        "nic list",
        "drive list",
        "capacity",
        "plan --gpus 0 --vcpus 1 --memory 64M",
        "create --name D --vcpus 1 --memory 64M --no-seed",
        "tune D --yes",
        "history D",
        "history D --diff",
        "undo D --dry-run",
        "undo D --diff",
        "undo D",
        "host show",
        "host capture -",
        "recover --dry-run",
        "undo D --yes",
    ];
    let mut said = Vec::new();
    for line in lines.into_iter().chain(["host show --host F", "plan --gpus 1 --host F"]) {
        for json in [&[][..], &["--json"]] {
            // A change is made only once.
            if !json.is_empty() && line.ends_with("--yes") {
                continue;
            }
            let words = line.split(' ').map(|word| match word {
                "D" => name,
                "F" => file,
                word => word,
            });
            let mut command = daemon.within("timeout");
            command.args(["60", env!("CARGO_BIN_EXE_gpuvm")]).args(words).args(json);
            let (code, out, err) = run(command.stdin(Stdio::null()));
            assert!(code != 70 && code != 124, "{line}: {code}: {err}");
            if !json.is_empty() && code == 0 && !out.is_empty() {
                serde_json::from_str::<serde_json::Value>(&out)
                    .unwrap_or_else(|error| panic!("{line}: {error}: {out}"));
            }
            said.push((format!("{line} {json:?}"), format!("{code}\n{out}{err}")));
        }
    }
    said
}

#[test]
fn no_verb_shows_a_password_or_lets_words_of_others_rule_the_terminal() {
    let Some(daemon) = Daemon::own(None) else { return };
    let dir = daemon.fresh_dir("files");
    let name = "v\u{9b}31m\u{202e}x";
    let xml = dir.join("domain.xml");
    std::fs::write(&xml, domain(name)).unwrap();
    let (done, text) = daemon.virsh(&["define", xml.to_str().unwrap()]);
    assert!(done, "{text}");
    let definition = || daemon.virsh(&["dumpxml", "--inactive", "--security-info", name]).1;
    let before = definition();
    assert!(before.matches(PASSWORD).count() >= 2, "{before}");
    let host = std::fs::read_to_string(project().join("topologies/dgx-2.json")).unwrap();
    let host = host.replace("NVIDIA", "NV\\u001b[2J\\u202eIA");
    std::fs::write(dir.join("host.json"), host).unwrap();
    let all = every_verb(&daemon, name, &dir);
    let of = |line: &str| all.iter().filter(|(verb, _)| verb.starts_with(line)).count();
    assert!(of("history") == 6 && of("undo") == 7, "{all:?}");
    for (line, said) in &all {
        assert!(!said.contains(PASSWORD), "{line}: {said}");
        assert_eq!(obeyed(said), [0; 0], "{line}: {said}");
    }
    // Something was shown, changed, kept and put back: with the password, to the byte.
    let holds = |line: &str, words: &str| {
        let mut texts = all.iter().filter(|(verb, _)| verb.starts_with(line));
        assert!(texts.any(|(_, said)| said.contains(words)), "{line}, {words}: {all:?}");
    };
    holds("list []", "\\u{9b}31m\\u{202e}x");
    holds("list [\"--json\"]", "v\\u009b31m\\u202ex");
    holds("history D --diff []", "---");
    holds("history D [\"--json\"]", "passwd='***'");
    holds("undo D --yes", "is undone");
    holds("host show --host F []", "\\u{202e}IA");
    assert_eq!(definition(), before);
    // Only root may read the data kept for undo.
    let kept = daemon.own_path("/var/lib/gpuvm");
    let (_, open, _) =
        run(Command::new("find").arg(&kept).args(["-mindepth", "1", "-perm", "/077"]));
    assert_eq!(open, "");
}

#[test]
fn control_characters_in_typed_text_are_not_obeyed() {
    for args in
        [&["show", "a\u{1b}]0;x\u{7}"][..], &["\u{1b}[2J"], &["check", "/no\u{1b}[2J\u{202e}"]]
    {
        let (code, out, err) = run(&mut gpuvm(&[&["--connect", "test:///default"], args].concat()));
        assert!(code == 1 || code == 2, "{out}{err}");
        assert_eq!(obeyed(&(out + &err)), [0; 0], "{args:?}");
    }
}

#[test]
fn three_places_print() {
    let src = project().join("src");
    let words =
        r"std::io::stdout\(\)|std::io::stderr\(\)|io::stderr\(\)|println!|eprint|[^a-z]print!";
    let (_, out, _) = run(Command::new("grep").args(["-rnE", words, "--include=*.rs"]).arg(&src));
    // Examples of the front pages print, too.
    let allowed = |line: &&str| {
        let of = [
            "cli/output.rs:",
            "cli/console.rs:",
            "cli/exec.rs:",
            "cli/top/screen.rs:",
            "host/build.rs:",
            "is_terminal()",
            "://!",
        ];
        !of.iter().any(|word| line.contains(word))
    };
    assert_eq!(out.lines().filter(allowed).collect::<Vec<_>>(), [""; 0], "`cli::output` prints");
}
