//! The verbs on a running guest: its console, its address, stop and restart.

use crate::support::daemon::{Daemon, Tiny, daemon};
use crate::support::run;
use nix::pty::openpty;
use nix::sys::termios::{LocalFlags, tcgetattr};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// The program's exit code and both outputs.
fn on(daemon: &Daemon, args: &[&str]) -> (i32, String, String) {
    run(&mut daemon.gpuvm(args))
}

/// Makes a template's console attachable; its output still goes to the file.
fn attachable(tiny: &Tiny) {
    let xml = std::fs::read_to_string(&tiny.template).unwrap();
    let log = tiny.console.display();
    let xml = xml.replace("type='file'>", "type='pty'>");
    let xml = xml.replacen(
        &format!("<source path='{log}'/>"),
        &format!("<log file='{log}' append='on'/>"),
        1,
    );
    let xml = xml.replace(&format!("<source path='{log}'/>"), "");
    std::fs::write(&tiny.template, xml).unwrap();
}

/// Waits until a file holds a text, and returns all that it holds.
fn shown(file: &Path, text: &str) -> String {
    let until = Instant::now() + Duration::from_secs(300);
    loop {
        let all = String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()).into_owned();
        if all.contains(text) {
            return all;
        }
        assert!(Instant::now() < until, "no `{text}` in:\n{all}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until a program has ended, and returns its exit code.
fn ended(child: &mut Child) -> Option<i32> {
    let until = Instant::now() + Duration::from_secs(300);
    while Instant::now() < until {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    panic!("it does not end");
}

/// A console over pipes: output and input pass, and a second one cannot attach without force.
fn by_pipes(daemon: &Daemon, dir: &Path) {
    let out = dir.join("pipe.out");
    let mut console = daemon.gpuvm(&["console", "verbs"]);
    console.stdin(Stdio::piped()).stdout(std::fs::File::create(&out).unwrap());
    let mut console = console.stderr(Stdio::null()).spawn().unwrap();
    let mut keys = console.stdin.take().unwrap();
    // The first line may come before anybody reads.
    let until = Instant::now() + Duration::from_secs(300);
    while !String::from_utf8_lossy(&std::fs::read(&out).unwrap()).contains("heard: hello") {
        assert!(Instant::now() < until, "the guest does not hear");
        keys.write_all(b"hello\n").unwrap();
        std::thread::sleep(Duration::from_millis(300));
    }
    let (code, _, err) = on(daemon, &["console", "verbs"]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("--force verbs"), "{err}");
    drop(keys);
    assert_eq!(ended(&mut console), Some(0));
    let all = shown(&out, "heard: hello");
    assert!(all.contains("hello\r\n"), "the terminal of the guest does not echo: {all}");
}

/// The guest's output is in its log, and the list has its address.
fn logged_and_listed(daemon: &Daemon, ip: &str) {
    let (code, out, err) = on(daemon, &["logs", "verbs"]);
    assert!(code == 0 && out.contains("heard: hello"), "{out}{err}");
    let (code, out, err) = on(daemon, &["logs", "verbs", "--lines", "1"]);
    assert!(code == 0 && out.lines().count() == 1, "{out}{err}");
    // QEMU's own log is in the daemon's mounts: not here, and from within they are another machine.
    let (code, out, err) = on(daemon, &["logs", "verbs", "--qemu"]);
    assert!(code == 1 && err.contains("/var/log/libvirt/qemu/verbs.log yet"), "{out}{err}");
    let (code, out, err) = run(daemon
        .enter(&["--mount"], env!("CARGO_BIN_EXE_gpuvm"))
        .args(["logs", "verbs"])
        .env("LIBVIRT_DEFAULT_URI", daemon.uri()));
    assert!(code == 1 && err.contains("are files of machine"), "{out}{err}");
    assert!(err.contains(" gpuvm logs verbs"), "{err}");
    for (args, more) in [(&["list"][..], ""), (&["list", "--long"], "UPTIME")] {
        let (code, out, err) = on(daemon, args);
        let has = |word: &str| out.contains(word);
        assert!(code == 0 && has(ip) && has("ADDRESS") && has(more), "{out}{err}");
    }
}

/// A console at a terminal, which is in raw mode meanwhile and restored afterwards.
fn at_a_terminal(daemon: &Daemon, leave: impl FnOnce(&mut Child, &mut std::fs::File)) {
    let pty = openpty(None, None).unwrap();
    let cooked = |on: bool| {
        let until = Instant::now() + Duration::from_secs(300);
        loop {
            let flags = tcgetattr(&pty.slave).unwrap().local_flags;
            if flags.contains(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG) == on {
                return;
            }
            assert!(Instant::now() < until, "cooked mode is not {on}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    cooked(true);
    let mut console = daemon.gpuvm(&["console", "verbs", "--force"]);
    console.stdin(pty.slave.try_clone().unwrap()).stdout(pty.slave.try_clone().unwrap());
    let mut console = console.stderr(Stdio::piped()).spawn().unwrap();
    cooked(false);
    let mut keys = std::fs::File::from(pty.master);
    keys.write_all(b"raw\r").unwrap();
    let (mut all, mut buffer) = (String::new(), [0; 512]);
    while !all.contains("heard: raw") {
        let got = keys.read(&mut buffer).unwrap();
        all += &String::from_utf8_lossy(&buffer[..got]);
    }
    leave(&mut console, &mut keys);
    assert_eq!(ended(&mut console), Some(0));
    let mut err = String::new();
    console.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert!(err.contains("console of domain `verbs`; Ctrl-] leaves"), "{err}");
    let flags = tcgetattr(&pty.slave).unwrap().local_flags;
    assert!(flags.contains(LocalFlags::ICANON | LocalFlags::ECHO), "the terminal is left raw");
}

#[test]
fn a_running_guest_is_reached_stopped_and_restarted() {
    let Some(daemon) = daemon() else { return };
    let dir = daemon.fresh_dir("verbs");
    let Some(tiny) = Tiny::new(&dir) else { return };
    attachable(&tiny);
    let shape = "--virt-type qemu --pins none --vcpus 1 --memory 256M --no-start";
    let mut create =
        vec!["create", "--name", "verbs", "--template", tiny.template.to_str().unwrap()];
    create.extend(shape.split(' '));
    create.extend(["--disk-dir", dir.to_str().unwrap(), "--network", "default"]);
    let (code, out, err) = on(daemon, &create);
    assert_eq!(code, 0, "{out}{err}");
    let mac = out.trim_end().rsplit(' ').next().unwrap().to_owned();
    for verb in ["console", "ip"] {
        let (code, out, err) = on(daemon, &[verb, "verbs"]);
        assert_eq!((code, out.as_str()), (1, ""), "{verb}: {err}");
        assert!(err.contains("does not run") && err.contains("gpuvm start verbs"), "{err}");
    }
    let defined = daemon.virsh(&["dumpxml", "--inactive", "verbs"]).1;
    let uuid = daemon.virsh(&["domuuid", "verbs"]).1;
    // Another one than a script has looked at.
    for verb in [&["start"][..], &["stop"], &["restart"], &["delete", "--yes"]] {
        let other = ["verbs", "--uuid", "5a4d6a3e-6d0f-4c0f-9d5c-3f1c1b0a2e99"];
        for dry in [&[][..], &["--dry-run"]] {
            let (code, out, err) = on(daemon, &[verb, &other, dry].concat());
            assert_eq!((code, out.as_str()), (1, ""), "{verb:?}: {err}");
            assert!(err.contains(&format!("has UUID {}, not 5a4d6a3e", uuid.trim())), "{err}");
        }
    }
    assert_eq!(daemon.virsh(&["dumpxml", "--inactive", "verbs"]).1, defined);
    let mine = uuid.trim().to_uppercase();
    assert_eq!(on(daemon, &["stop", "verbs", "--uuid", &mine]).0, 0);

    // A domain that is off is started.
    let (code, dry, err) = on(daemon, &["restart", "verbs", "--dry-run"]);
    assert_eq!((code, dry.as_str()), (0, "start domain `verbs`\n"), "{err}");
    assert_eq!(on(daemon, &["restart", "verbs"]).0, 0);
    let (code, ip, err) = on(daemon, &["ip", "verbs", "--wait", "600"]);
    assert_eq!(code, 0, "{err}");
    assert!(ip.starts_with("192.168.122.") && !ip.trim_end().contains(char::is_whitespace), "{ip}");
    let line = format!("{mac} {} lease\n", ip.trim_end());
    assert_eq!(on(daemon, &["ip", "verbs", "--all"]).1, line);
    let json = on(daemon, &["ip", "verbs", "--json"]).1;
    assert!(json.contains("\"source\": \"lease\""), "{json}");
    let show = on(daemon, &["show", "verbs"]).1;
    for text in [
        "console   pty /dev/pts/",
        "agent     no channel",
        "started   by hand",
        "(DHCP lease)",
        "request   --vcpus",
    ] {
        assert!(show.contains(text), "no `{text}` in:\n{show}");
    }
    // This program is in another network than the guest, which is not proven to be there.
    let print = ["ssh", "verbs", "--user", "lab", "--print"];
    let (code, _, err) = on(daemon, &print);
    assert!(code == 1 && err.contains("cannot be confirmed that packets to"), "{code} {err}");
    let named = ["--address", ip.trim_end(), "--", "uptime"];
    let login = on(daemon, &[&print[..], &named].concat()).1;
    assert!(login.ends_with(&format!(" -- {} uptime\n", ip.trim_end())), "{login}");
    assert!(login.starts_with("ssh -o User=lab -o HostKeyAlias=gpuvm-"), "{login}");
    tiny.wait_for("seen: all");
    by_pipes(daemon, &dir);
    logged_and_listed(daemon, ip.trim_end());
    at_a_terminal(daemon, |_, keys| keys.write_all(b"\x1d").unwrap());
    at_a_terminal(daemon, |console, _| {
        let pid = nix::unistd::Pid::from_raw(console.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    });

    let (code, dry, err) = on(daemon, &["restart", "verbs", "--dry-run", "--wait", "60"]);
    let steps =
        "shut down domain `verbs` by the power button, waiting up to 60 s\nstart domain `verbs`\n";
    assert_eq!((code, dry.as_str()), (0, steps), "{err}");
    let id = |daemon: &Daemon| daemon.virsh(&["domid", "verbs"]).1;
    let before = id(daemon);
    let (code, _, err) = on(daemon, &["restart", "verbs"]);
    assert_eq!(code, 0, "{err}");
    assert!(tiny.wait_for("seen: power button").contains("power button"), "it was not asked");
    assert_ne!(id(daemon), before, "it was not started anew");
    // The lease is still there, and so is the host's ARP entry: both are of the boot before.
    let leases = daemon.virsh(&["net-dhcp-leases", "default"]).1;
    assert!(leases.contains(ip.trim_end()), "{leases}");
    let (code, out, err) = run(daemon
        .enter(&["--net"], env!("CARGO_BIN_EXE_gpuvm"))
        .args(["ip", "verbs"])
        .env("LIBVIRT_DEFAULT_URI", daemon.uri()));
    assert!(code == 1 && err.contains("since its start"), "{code} {out}{err}");
    assert!(!on(daemon, &["show", "verbs"]).1.contains("(DHCP lease)"), "an old lease is shown");
    assert_eq!(daemon.virsh(&["dumpxml", "--inactive", "verbs"]).1, defined);

    // Before it hears the power button: it is left running.
    let (code, _, err) = on(daemon, &["restart", "verbs", "--wait", "0"]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("still runs after 0 s, so it is left running"), "{err}");
    assert!(err.contains("gpuvm restart --force verbs"), "{err}");
    assert_eq!(on(daemon, &["ip", "verbs", "--wait", "600"]).1, ip, "another address");
    assert_eq!(on(daemon, &["delete", "verbs", "--yes"]).0, 0);
}

#[test]
fn a_guest_without_an_address_in_time_is_made_and_reported() {
    let Some(daemon) = daemon() else { return };
    let dir = daemon.fresh_dir("silent");
    let disk = dir.join("disk.raw");
    std::fs::write(&disk, vec![0; 1 << 20]).unwrap();
    let shape = "create --name silent --virt-type qemu --pins none --vcpus 1 --memory 64M --disk";
    let mut create: Vec<&str> = shape.split(' ').collect();
    create.extend([disk.to_str().unwrap(), "--network", "default"]);
    let (code, out, err) = on(daemon, &[&create[..], &["--wait", "1"]].concat());
    assert_eq!(code, 3, "{out}{err}");
    assert!(out.starts_with("silent: create start mac: ") && out.ends_with(" ip: -\n"), "{out}");
    assert!(err.contains("`silent` has no address after 1 s; it runs on"), "{err}");
    assert!(err.contains("`gpuvm ip silent --wait`"), "{err}");
    assert_eq!(daemon.virsh(&["domstate", "silent"]).1.trim(), "running");
    assert_eq!(on(daemon, &["delete", "silent", "--yes"]).0, 0);
    // Without waiting no address is requested.
    let (code, out, err) = on(daemon, &[&create[..], &["--no-wait"]].concat());
    assert_eq!(code, 0, "{out}{err}");
    assert_eq!(on(daemon, &["delete", "silent", "--yes"]).0, 0);
}

/// Stops `gone`, which does not react, at a terminal with this answer. Returns exit code and
/// output.
fn stopped_at_a_terminal(daemon: &Daemon, answer: &[u8]) -> (Option<i32>, String) {
    let pty = openpty(None, None).unwrap();
    let mut stop = daemon.gpuvm(&["stop", "gone", "--wait", "0"]);
    stop.stdin(pty.slave.try_clone().unwrap()).stderr(pty.slave.try_clone().unwrap());
    let mut stop = stop.stdout(Stdio::null()).spawn().unwrap();
    let mut terminal = std::fs::File::from(pty.master);
    let (mut all, mut buffer) = (String::new(), [0; 512]);
    while !all.contains("[y/N]") {
        let got = terminal.read(&mut buffer).unwrap();
        all += &String::from_utf8_lossy(&buffer[..got]);
    }
    terminal.write_all(answer).unwrap();
    (ended(&mut stop), all)
}

#[test]
fn a_deaf_guest_is_reported_and_so_is_a_failed_start_after_the_stop() {
    let Some(daemon) = daemon() else { return };
    let dir = daemon.fresh_dir("gone");
    let disk = dir.join("disk.raw");
    std::fs::write(&disk, vec![0; 1 << 20]).unwrap();
    let xml = format!(
        "<domain type='qemu'><name>gone</name><memory unit='MiB'>64</memory><os><type \
         arch='x86_64' \
         machine='q35'>hvm</type></os><devices><disk type='file'><driver name='qemu' type='raw'/>\
         <source file='{}'/><target dev='vda' bus='virtio'/></disk><serial type='null'/><channel \
         type='unix'>\
         <target type='virtio' name='org.qemu.guest_agent.0'/></channel></devices></domain>",
        disk.display()
    );
    let file = dir.join("gone.xml");
    std::fs::write(&file, xml).unwrap();
    let (done, text) = daemon.virsh(&["define", file.to_str().unwrap()]);
    assert!(done, "{text}");
    let (code, _, err) = on(daemon, &["start", "gone"]);
    assert_eq!(code, 0, "{err}");
    let (code, _, err) = on(daemon, &["console", "gone"]);
    assert_eq!(code, 1);
    assert!(err.contains("is a null, which cannot be attached to") && err.contains("pty"), "{err}");
    let (code, _, err) = on(daemon, &["ip", "gone"]);
    assert_eq!(code, 1);
    assert!(err.contains("has no NIC"), "{err}");
    // The agent's channel has no peer, and the power button has no effect.
    assert!(on(daemon, &["show", "gone"]).1.contains("agent     not connected"));
    let (_, dry, err) = on(daemon, &["stop", "gone", "--dry-run"]);
    assert!(dry.contains("by the power button"), "{dry}{err}");
    let (code, text) = stopped_at_a_terminal(daemon, b"\n");
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("still runs after 0 s; cut its power, which may lose data?"), "{text}");
    assert_eq!(daemon.virsh(&["domstate", "gone"]).1.trim(), "running");
    assert_eq!(stopped_at_a_terminal(daemon, b"y\n").0, Some(0));
    assert_eq!(daemon.virsh(&["domstate", "gone"]).1.trim(), "shut off");
    assert_eq!(on(daemon, &["start", "gone"]).0, 0);
    // Another change of the host goes on.
    let go_on = |_| std::ops::ControlFlow::Continue(());
    let held = gpuvm::apply::HostLock::take(Duration::from_secs(600), go_on).unwrap();
    let (code, _, err) = on(daemon, &["stop", "gone", "--lock-wait", "0"]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains(&format!("is held by process {}", std::process::id())), "{err}");
    assert!(err.contains("--lock-wait SECONDS"), "{err}");
    drop(held);
    std::fs::remove_file(&disk).unwrap();
    // It could not start again, and so is not stopped.
    let (code, _, err) = on(daemon, &["restart", "gone", "--force"]);
    assert!(code == 1 && err.contains("disk.raw"), "{err}");
    assert_eq!(daemon.virsh(&["domstate", "gone"]).1.trim(), "running");
    // That is not seen before.
    std::fs::create_dir(&disk).unwrap();
    let (code, _, err) = on(daemon, &["restart", "gone", "--force"]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("is stopped, which cannot be undone, and is not started again"), "{err}");
    assert!(err.contains("disk.raw") && err.contains("then `gpuvm start gone`"), "{err}");
    // Journals of other tests lie in the same directory.
    let (_, out, err) = on(daemon, &["recover", "--dry-run"]);
    let own = ["start gone", "stop gone", "restart gone"];
    assert!(own.iter().all(|one| !(out.contains(one) || err.contains(one))), "{out}{err}");
    assert!(daemon.virsh(&["undefine", "gone"]).0);
}
