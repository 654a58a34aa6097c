//! A cloud image on a real libvirtd, from adding it to deleting its guest: the typical first use.
//! The guest is emulated, so it takes its time.

use super::files;
use crate::support::daemon::{Daemon, daemon};
use crate::support::{gpuvm, project, run, skip};
use gpuvm::hypervisor::Hypervisor as _;
use gpuvm::hypervisor::libvirt::Libvirt;
use gpuvm_core::seed::Seed;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The name of the guest and of its host.
const NAME: &str = "boot-a";
/// A network of addresses without a way out.
const NET: &str = "<network><name>boot-net</name><bridge name='virbr7'/>\
     <ip address='192.168.77.1' netmask='255.255.255.0'>\
     <dhcp><range start='192.168.77.2' end='192.168.77.254'/></dhcp></ip></network>";

/// The directory of a small Debian with cloud-init, which is built once; none, with the reason
/// reported, if the machine cannot build it.
fn image() -> Option<&'static Path> {
    /// Where it is.
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest-image");
        let (code, _, err) = run(Command::new(project().join("tests/guest-image")).arg(&dir));
        if code == 0 { Ok(dir) } else { Err(format!("no image for a guest: {}", err.trim())) }
    };
    match MADE.get_or_init(build) {
        Ok(dir) => Some(dir),
        Err(why) => skip(why),
    }
}

/// A guest with a login.
struct Guest {
    /// Where it runs.
    daemon: &'static Daemon,
    /// Key, known hosts and data disk.
    dir: PathBuf,
    /// MAC address.
    mac: String,
    /// Address.
    ip: String,
}

impl Guest {
    /// Runs a verb on the host of the guest's network, and expects success; its answer and the
    /// rest.
    fn gpuvm(&self, args: &[&str]) -> (String, String) {
        let mut command = self.daemon.enter(&["--net"], env!("CARGO_BIN_EXE_gpuvm"));
        command.args(args).env("LIBVIRT_DEFAULT_URI", self.daemon.uri()).env("LC_ALL", "C");
        let (code, out, err) = run(command.stdin(Stdio::null()));
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        (out, err)
    }

    /// Runs a script in the guest, over SSH from the host's side of its network.
    fn ssh(&self, script: &str) -> (i32, String, String) {
        let mut ssh = self.daemon.enter(&["--net"], "ssh");
        let file = |name: &str| self.dir.join(name).to_str().unwrap().to_owned();
        let hosts = format!("UserKnownHostsFile={}", file("known_hosts"));
        ssh.args(["-q", "-F", "none", "-i", &file("key"), "-o", &hosts]);
        for option in ["BatchMode=yes", "StrictHostKeyChecking=accept-new", "ConnectTimeout=10"] {
            ssh.args(["-o", option]);
        }
        // A guest that no longer runs must not delay the test.
        ssh.args(["-o", "ServerAliveInterval=20", "-o", "ServerAliveCountMax=6"]);
        run(ssh.arg(format!("lab@{}", self.ip)).arg(script).stdin(Stdio::null()))
    }

    /// The output of a script in the guest, which must succeed.
    fn says(&self, script: &str) -> String {
        let (code, out, err) = self.ssh(script);
        assert_eq!(code, 0, "`{script}` in the guest: {out}{err}");
        out.trim().to_owned()
    }

    /// The command line that makes it.
    fn wanted(&self) -> Vec<String> {
        let shape = "--network default --network boot-net --virt-type qemu --pins none --vcpus 2 \
                     --cells 2 --memory 1G --user lab --os-size 3G --data-size 256M --image-pool \
                     boot-images --pool boot-guests";
        let mut args = vec!["create", "--name", NAME];
        args.extend(shape.split_whitespace());
        let mut args: Vec<String> = args.into_iter().map(str::to_owned).collect();
        let files =
            [("--ssh-key", "key.pub"), ("--data-dir", "data"), ("--user-data", "user-data")];
        for (option, file) in files {
            args.extend([option.to_owned(), self.dir.join(file).to_str().unwrap().to_owned()]);
        }
        args
    }

    /// Waits until one can log in.
    fn wait_for_login(&self) {
        self.kept_alive(|| until("one can log in", 1200, || self.ssh("true").0 == 0));
    }

    /// Nanoseconds that its vCPUs have run.
    fn ran_ns(&self) -> u64 {
        let (_, stats) = self.daemon.virsh(&["domstats", NAME, "--vcpu"]);
        let times = stats.lines().filter_map(|line| line.split_once(".time="));
        times.filter_map(|(_, ns)| ns.trim().parse::<u64>().ok()).sum()
    }

    /// Waits for its boot with `work`. Occasionally two emulated vCPUs stall: a timer interrupt of
    /// one stays in service because of a bug in QEMU, so both idle forever. A booting guest runs
    /// more than a twentieth of the time.
    fn kept_alive<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let work = scope.spawn(work);
            let (mut since, mut ran, mut resets) = (Instant::now(), self.ran_ns(), 0);
            while !work.is_finished() {
                std::thread::sleep(Duration::from_millis(200));
                if since.elapsed() < Duration::from_secs(60) {
                    continue;
                }
                let now = self.ran_ns();
                let stands = now > 0 && now.saturating_sub(ran) < 3_000_000_000;
                if stands && !work.is_finished() && resets < 3 {
                    eprintln!("boot: the guest stands still and is reset");
                    self.daemon.virsh(&["reset", NAME]);
                    resets += 1;
                }
                (since, ran) = (Instant::now(), now);
            }
            work.join().unwrap()
        })
    }

    /// Waits until its agent answers.
    fn wait_for_agent(&self) {
        let ping = ["qemu-agent-command", NAME, "{\"execute\":\"guest-ping\"}"];
        until("the agent answers", 600, || self.daemon.virsh(&ping).0);
    }
}

/// Waits until a condition holds, and fails after this many seconds.
fn until(what: &str, seconds: u64, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(seconds);
    while !is_so() {
        assert!(Instant::now() < end, "not so after {seconds} s: {what}");
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// The file for NCCL of a guest with two GPUs and two NICs of a DGX H100.
fn topology_file() -> String {
    let words = "export --format nccl --name a --gpus 2 --nic 2 --host";
    let host = project().join("topologies/dgx-h100.json");
    let mut export = gpuvm(&words.split(' ').collect::<Vec<_>>());
    let (code, text, err) = run(export.arg(host));
    assert!(code == 0 && text.ends_with("</system>\n"), "{err}");
    text
}

/// The user-data by which such a guest gets it, beside what this one gets: a guest without GPUs
/// gets none by itself.
fn user_data() -> String {
    let nccl = Some(topology_file());
    let seed = Seed { nccl, guest_agent: true, data_disk: true, ..Seed::default() };
    let (_, text) = seed.files().into_iter().find(|(name, _)| *name == "user-data").unwrap();
    text
}

/// NCCL's own place has the file, byte for byte, and everyone may read it.
fn nccl_finds_its_file(guest: &Guest) {
    let (file, at) = (topology_file(), "/run/nvidia-topologyd/virtualTopology.xml");
    assert_eq!(guest.says(&format!("cat {at}")), file.trim());
    let about = guest.says(&format!("stat -L -c '%s %a %U' {at}; stat -c '%F' {at}"));
    assert_eq!(about, format!("{} 644 root\nsymbolic link", file.len()));
}

/// Makes the pools and the key, adds the image, and creates the guest.
fn create(daemon: &'static Daemon, built: &Path) -> Guest {
    let (images, guests) = (daemon.fresh_dir("boot-images"), daemon.fresh_dir("boot-guests"));
    let dir = daemon.fresh_dir("boot-files");
    std::fs::create_dir(dir.join("data")).unwrap();
    let libvirt = Libvirt::open(&daemon.uri()).unwrap();
    for (pool, dir) in [("boot-images", &images), ("boot-guests", &guests)] {
        libvirt.storage().make_pool(pool, dir, None).unwrap();
    }
    // A second network with addresses of its own.
    let file = dir.join("net.xml");
    std::fs::write(&file, NET).unwrap();
    for args in [&["net-define", file.to_str().unwrap()][..], &["net-start", "boot-net"]] {
        let (ok, said) = daemon.virsh(args);
        assert!(ok, "{said}");
    }
    let mut keygen = Command::new("ssh-keygen");
    keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(dir.join("key"));
    assert_eq!(run(&mut keygen).0, 0);
    std::fs::write(dir.join("user-data"), user_data()).unwrap();
    let mut guest = Guest { daemon, dir, mac: String::new(), ip: String::new() };
    let file = built.join("guest.qcow2");
    let file = file.to_str().unwrap();
    guest.gpuvm(&["image", "add", file, "--name", "debian-12", "--pool", "boot-images"]);
    let args = guest.wanted();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (out, err) = guest.kept_alive(|| guest.gpuvm(&[&args[..], &["--wait", "1800"]].concat()));
    assert!(!err.contains("otherwise than planned"), "{err}");
    let words: Vec<&str> = out.trim_end().split(' ').collect();
    let ["boot-a:", "create", "start", "mac:", mac, "ip:", ip] = words[..] else {
        panic!("{out}{err}");
    };
    assert!(ip.starts_with("192.168.122."), "{out}{err}");
    (guest.mac, guest.ip) = (mac.to_owned(), ip.to_owned());
    guest
}

/// Both networks are up, the first one asked for is the first that the guest sees, and its is the
/// way out.
fn two_networks(guest: &Guest) {
    let links = guest.says("ip -br link | grep -v ^lo | sort");
    let links: Vec<Vec<&str>> =
        links.lines().map(|line| line.split_whitespace().collect()).collect();
    let [first, second] = &links[..] else { panic!("{links:?}") };
    assert_eq!((first[1], first[2], second[1]), ("UP", &guest.mac[..], "UP"), "{links:?}");
    let of = |nic: &str| guest.says(&format!("ip -4 -br addr show dev {nic}"));
    assert!(of(first[0]).contains(&guest.ip), "{}", of(first[0]));
    assert!(of(second[0]).contains(" 192.168.77."), "{}", of(second[0]));
    let out = guest.says("ip route show default");
    assert!(out.lines().count() == 1 && out.contains(first[0]), "{out}");
    let (all, _) = guest.gpuvm(&["ip", NAME, "--all", "--wait", "60"]);
    assert!(all.contains(&format!("{} 192.168.77.", second[2])), "{all}");
}

/// The required state of a guest after its first start.
fn first_start(guest: &Guest) {
    guest.wait_for_login();
    let status = guest.says("sudo cloud-init status --wait --long || true");
    assert!(
        status.contains("status: done"),
        "{status}\n{}",
        guest.says("sudo cat /var/log/cloud-init-output.log")
    );
    let result = guest.says("cat /run/cloud-init/result.json");
    let result: serde_json::Value = serde_json::from_str(&result).unwrap();
    assert_eq!(result["v1"]["errors"], serde_json::json!([]), "{result}");
    let source = result["v1"]["datasource"].to_string();
    assert!(source.contains("NoCloud") && source.contains("/dev/vd"), "{source}");
    assert_eq!(guest.says("systemctl --failed --no-legend --plain"), "");
    assert_eq!(guest.says("hostname; id -un; sudo -n id -un"), "boot-a\nlab\nroot");

    // The image's own file system is of less than 1.5 GiB.
    let root: u64 = guest.says("df --output=size -k / | tail -1").parse().unwrap();
    assert!(root > 2700 << 10, "the root file system was not made larger: {root} KiB");
    let raid = guest
        .says("findmnt -no SOURCE,FSTYPE /raid; lsblk -dno SERIAL $(findmnt -no SOURCE /raid)");
    assert!(raid.contains("ext4") && raid.ends_with("gpuvm-data"), "{raid}");
    guest.says("echo precious | sudo tee /raid/kept; sync");

    assert_eq!(guest.says("cat /sys/devices/system/node/node[01]/cpulist"), "0\n1");
    let disks = "lsblk -dno NAME,RO | tr -s ' '";
    assert_eq!(guest.says(disks), "vda 0\nvdb 0\nvdc 1");
    // Devices sit behind root ports: none but the host's own bridge and chip set on bus 0.
    let flat = guest.says("lspci -D | grep ' 0000:00:' | grep -ci virtio || true");
    let behind = guest.says("lspci -D | grep -ci virtio");
    assert_eq!(flat, "0");
    assert!(behind.parse::<u32>().unwrap() >= 6, "{}", guest.says("lspci -tv"));

    guest.wait_for_agent();
    let (ip, _) = guest.gpuvm(&["ip", NAME]);
    assert_eq!(ip.trim(), guest.ip);
    let (all, _) = guest.gpuvm(&["ip", NAME, "--all"]);
    assert!(all.contains(&format!("{} {} lease", guest.mac, guest.ip)), "{all}");
    two_networks(guest);
    nccl_finds_its_file(guest);
    let (show, _) = guest.gpuvm(&["show", NAME]);
    seen_from_inside(guest);
    for word in ["connected", "boot-a.os, raw, made for it", "boot-a.seed", "vol-boot-a"] {
        assert!(show.contains(word), "`{word}` is not in\n{show}");
    }
    console(guest);
}

/// The guest's own view, by its agent, agrees with the running domain: cells, vCPUs, interfaces,
/// disks.
fn seen_from_inside(guest: &Guest) {
    let mut verify = guest.daemon.gpuvm(&["verify", NAME, "--json", "--agent-wait", "60"]);
    let (_, out, err) = run(&mut verify);
    let answer: serde_json::Value = serde_json::from_str(&out).expect(&err);
    let findings = answer["findings"].as_array().unwrap();
    assert!(findings.iter().all(|finding| finding["between"] != "guest"), "{out}");
    let untold = answer["not_checked"].to_string();
    assert!(!untold.contains("guest's"), "the guest does not tell all: {untold}");
}

/// The console shows a login prompt, to anyone who presses the return key.
fn console(guest: &Guest) {
    let mut console = guest.daemon.gpuvm(&["console", NAME]);
    console.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut console = console.spawn().unwrap();
    let (mut keys, mut screen) = (console.stdin.take().unwrap(), console.stdout.take().unwrap());
    let reader = std::thread::spawn(move || {
        let (mut seen, mut part) = (String::new(), [0; 256]);
        while let Ok(got @ 1..) = screen.read(&mut part) {
            seen += &String::from_utf8_lossy(&part[..got]);
            if seen.contains("boot-a login:") {
                break;
            }
        }
        seen
    });
    until("the console shows a login prompt", 600, || {
        let _ = keys.write_all(b"\n");
        reader.is_finished()
    });
    drop(keys);
    assert!(reader.join().unwrap().contains("boot-a login:"));
    assert_eq!(console.wait().unwrap().code(), Some(0));
}

/// The required state after a further start.
fn second_start(guest: &Guest) {
    let (ip, _) = guest.kept_alive(|| guest.gpuvm(&["ip", NAME, "--wait", "1200"]));
    assert_eq!(ip.trim(), guest.ip, "another address after a further start");
    guest.wait_for_login();
    until("/raid is mounted", 300, || guest.ssh("findmnt /raid").0 == 0);
    assert_eq!(guest.says("cat /raid/kept"), "precious");
    nccl_finds_its_file(guest);
    guest.wait_for_agent();
}

/// An agent that is connected but silent blocks nothing forever, and the power button remains.
fn hung_agent(guest: &Guest) {
    guest.says("sudo systemctl kill --signal=STOP qemu-guest-agent");
    let (ip, _) = guest.gpuvm(&["ip", NAME]);
    assert_eq!(ip.trim(), guest.ip);
    let (all, _) = guest.gpuvm(&["ip", NAME, "--all"]);
    assert!(all.contains(&guest.ip), "{all}");
    let (show, _) = guest.gpuvm(&["show", NAME]);
    assert!(show.contains(&guest.ip), "{show}");
    assert!(guest.gpuvm(&["list"]).0.contains("boot-a"));
}

#[test]
fn an_image_becomes_a_guest_with_a_login_and_deletion_leaves_nothing() {
    let Some(daemon) = daemon() else { return };
    let Some(built) = image() else { return };
    let begun = Instant::now();
    let told = |what: &str| eprintln!("boot: {what} after {} s", begun.elapsed().as_secs());
    let guest = create(daemon, built);
    told("an address");
    first_start(&guest);
    told("the first start is done");
    hung_agent(&guest);
    // Each start of a whole Linux takes a minute and a half of a processor.
    if std::env::var("GPUVM_BOOTS").is_ok_and(|value| value == "all") {
        let (_, err) = guest.gpuvm(&["restart", NAME, "--wait", "900"]);
        assert!(err.contains("power button"), "{err}");
        told("restarted past a hung agent");
        second_start(&guest);
        told("the second start is done");
    } else {
        guest.says("sudo systemctl kill --signal=CONT qemu-guest-agent");
    }
    let (_, err) = guest.gpuvm(&["stop", NAME, "--wait", "900"]);
    assert!(!err.contains("power button"), "the agent was not asked, or did not help: {err}");
    told("stopped by its agent");

    let (_, err) = guest.gpuvm(&["delete", NAME, "--yes"]);
    for goes in ["boot-a.os", "boot-a.seed", "vol-boot-a"] {
        assert!(err.contains(goes), "`{goes}` is not named: {err}");
    }
    nothing_is_left(&guest);
    told("nothing is left");
    data_is_kept(&guest);
}

/// A guest with an overlay on its image is deleted, and its data disk stays if requested.
fn data_is_kept(guest: &Guest) {
    let args = guest.wanted();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    guest.gpuvm(&[&args[..], &["--os-disk", "overlay", "--no-start"]].concat());
    let (guests, data) = (guest.dir.parent().unwrap().join("boot-guests"), guest.dir.join("data"));
    let mut info = Command::new("qemu-img");
    let info = run(info.args(["info", "--output=json"]).arg(guests.join("boot-a.os"))).1;
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["virtual-size"], 3u64 << 30, "{info}");
    let below = info["full-backing-filename"].as_str().unwrap();
    assert!(below.ends_with("boot-images/debian-12.qcow2"), "{info}");
    guest.gpuvm(&["delete", NAME, "--keep-data", "--yes"]);
    assert_eq!((files(&guests), files(&data)), (vec![], vec!["vol-boot-a".to_owned()]));
}

/// The leftovers that a deletion must not leave.
fn nothing_is_left(guest: &Guest) {
    let daemon = guest.daemon;
    assert!(!daemon.virsh(&["dominfo", NAME]).0, "the domain is left");
    assert_eq!(daemon.virsh(&["vol-list", "boot-guests"]).1.trim(), "");
    let dir = guest.dir.parent().unwrap();
    for (what, dir) in
        [("a volume", dir.join("boot-guests")), ("a data disk", guest.dir.join("data"))]
    {
        assert_eq!(files(&dir), [""; 0], "{what} is left");
    }
    let of_it =
        |dir: &Path| files(dir).into_iter().filter(|f| f.contains(NAME)).collect::<Vec<_>>();
    for dir in ["/var/lib/libvirt/qemu/nvram", "/run/libvirt/qemu", "/var/lib/libvirt/qemu"] {
        assert_eq!(of_it(&daemon.inside(dir)), [""; 0], "in {dir}");
    }
    assert_eq!(of_it(Path::new("/var/lib/gpuvm/journal")), [""; 0], "a journal is left");
    // The server of leases does not answer a release, and processes it later.
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let (_, leases) = daemon.virsh(&["net-dhcp-leases", "default"]);
        if !leases.contains(&guest.mac) {
            break;
        }
        assert!(Instant::now() < until, "a lease is left:\n{leases}");
        std::thread::sleep(Duration::from_millis(250));
    }
}
