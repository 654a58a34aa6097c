//! A libvirtd for the tests, separate from the machine's: private mounts, network and processes,
//! which end with the test run however that ends. And a small Linux guest that prints its view on
//! its console.

use super::{gpuvm, known, machine, project, run, skip};
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Runs as the first process of its namespaces: sets up a private libvirt, waits until its standard
/// input ends, and ends; all other processes of the namespace, guests too, end with it. With a
/// second argument it belongs to one test: a libvirtd that ends is started again, lock and journals
/// are private, and if the argument is a recorded host's directory, the machine imitates that host.
const INIT: &str = r#"
dir=$1 host=$2 name=$3
if [ -n "$name" ]; then echo "$name" >/proc/sys/kernel/hostname; fi
for private in /run/libvirt /var/lib/libvirt /etc/libvirt /var/log/libvirt /var/cache/libvirt; do
  mkdir -p $private && mount -t tmpfs -o mode=755 tmpfs $private || exit 1
done
if [ -n "$host" ]; then . "$dir/own.sh"; fi
# Where the user of QEMU may not open /dev/kvm, libvirt probes QEMU again at each define: seconds to minutes.
if [ -c /dev/kvm ]; then
  cp -a /dev/kvm "$dir/kvm" && chown root:root "$dir/kvm" && chmod 666 "$dir/kvm" && mount --bind "$dir/kvm" /dev/kvm
fi
mkdir /run/libvirt/hugepages && mount -t hugetlbfs -o pagesize=2M hugetlbfs /run/libvirt/hugepages
ip link set lo up
if [ -d "$dir/capabilities" ]; then mkdir /var/cache/libvirt/qemu; mv "$dir/capabilities" /var/cache/libvirt/qemu/; fi
mkdir /etc/libvirt/qemu /var/log/libvirt/qemu
printf '%s\n' "unix_sock_dir = \"$dir\"" 'unix_sock_rw_perms = "0770"' 'unix_sock_ro_perms = "0777"' \
  'auth_unix_rw = "none"' 'auth_unix_ro = "none"' 'unix_sock_group = "root"' >/etc/libvirt/libvirtd.conf
if [ -n "$name" ]; then
  echo 'host_uuid = "5f2a1c7e-9b3d-4e6f-8a1b-2c3d4e5f6a7b"' >>/etc/libvirt/libvirtd.conf
fi
ln -s "$dir/libvirt-sock" "$dir/libvirt-sock-ro" /run/libvirt/
# Control groups are those of the whole machine, where guests of the same name and number of two libvirts would share one, and
# the one that ends takes it from the other.
if [ -n "$host" ]; then echo 'cgroup_controllers = []' >/etc/libvirt/qemu.conf; fi
virtlogd --pid-file $dir/virtlogd.pid &
daemon() { libvirtd --config /etc/libvirt/libvirtd.conf --pid-file $dir/libvirtd.pid; }
if [ -n "$host" ]; then while :; do daemon; sleep 0.1; done & else daemon & fi
cat >/dev/null
# Mounts below would stay in place.
while read -r _ at _; do
  case $at in "$dir"/*) umount --lazy "$at" ;; esac
done </proc/mounts
# Notes of guests that are gone with their libvirtd.
grep -sl "socket=$dir/" /var/lib/gpuvm/reserved/*.json | xargs -r rm -f
rm -rf "$dir"
"#;

/// Sets up a machine for one test: its directories are mounted over the machine's, and if `$host`
/// is a recorded host's directory, its `/sys` and `/proc` are shown. It runs before each program of
/// the test, so it takes as few processes as it can.
const OWN: &str = r#"
mount --fstab "$dir/own.fstab" --all || exit 1
"#;

/// The directories that a machine for one test has for itself.
const PLACES: [&str; 9] = [
    "run/gpuvm",
    "var/lib/gpuvm",
    "var/lib/libvirt",
    "etc/gpuvm",
    "etc/libvirt/hooks",
    "etc/systemd/system",
    "etc/tmpfiles.d",
    "etc/modprobe.d",
    "etc/modules-load.d",
];

/// The mounts of a machine for one test, as fstab(5): the directories of [`PLACES`], which are
/// made, and the parts of the recorded host shown in this directory.
fn mounts(dir: &Path, host: &Path) -> String {
    let mut lines = String::new();
    // fstab(5) ends a path at a blank.
    let word =
        |path: &Path| path.display().to_string().replace('\\', "\\134").replace(' ', "\\040");
    let mut bind = |from: &Path, to: &Path| {
        // libvirt's directories are empty when these are mounted.
        writeln!(lines, "{} {} none bind,X-mount.mkdir 0 0", word(from), word(to)).unwrap();
    };
    for place in PLACES {
        let (own, shown) = (dir.join("own").join(place), Path::new("/").join(place));
        std::fs::create_dir_all(&own).unwrap();
        std::fs::create_dir_all(&shown).unwrap();
        bind(&own, &shown);
    }
    if host.is_dir() {
        for shown in ["sys", "proc/cpuinfo", "proc/meminfo"] {
            bind(&host.join(shown), &Path::new("/").join(shown));
        }
    }
    lines
}

/// Lays the kernel's view of the networks of a libvirtd over the recorded host that it imitates.
/// The value of a sysctl that findings depend on is that of a usual host.
const NETWORKED: &str = r#"
mkdir "$dir/net" && mount -t tmpfs tmpfs "$dir/net" && cd "$dir/net" && mkdir up work real sys || exit 1
mkdir -p up/class/net up/devices/virtual/net && mount -t sysfs sysfs real || exit 1
for nic in virbr0 vnet0 vnet1 vnet2 vnet3 vnet4 vnet5 vnet6 vnet7 vnet8 vnet9; do
  ln -s ../../devices/virtual/net/$nic up/class/net/$nic
done
mount -t overlay -o "lowerdir=$host/sys,upperdir=up,workdir=work" overlay sys || exit 1
mount --rbind real/devices/virtual/net sys/devices/virtual/net && mount --rbind sys /sys || exit 1
if [ -e /proc/sys/kernel/numa_balancing ]; then
  echo 1 >balancing && mount --bind balancing /proc/sys/kernel/numa_balancing
fi
cd /
"#;

/// The networks of the private libvirt: one with DHCP and NAT as on every host, one isolated from
/// the host.
const NETWORKS: [&str; 2] = [
    "<network><name>default</name><forward mode='nat'/><bridge name='virbr0'/>\
     <ip address='192.168.122.1' netmask='255.255.255.0'><dhcp><range start='192.168.122.2' \
     end='192.168.122.254'/></dhcp></ip></network>",
    "<network><name>private-net</name><bridge name='virbr1'/></network>",
];

/// A libvirtd for the tests.
pub struct Daemon {
    /// Sockets, disks and consoles.
    dir: PathBuf,
    /// The recorded host that it imitates, if any.
    host: Option<PathBuf>,
    /// The process that holds its namespaces.
    holder: Child,
    /// Keeps the daemon alive: it ends when this closes, also if the test run is killed.
    _alive: ChildStdin,
}

/// Whether the tests may create namespaces on this machine.
pub fn namespaces() -> bool {
    Command::new("unshare").args(["-m", "true"]).output().is_ok_and(|out| out.status.success())
}

/// The shared daemon of this test run; none, with the reason reported, if the machine cannot have
/// it.
pub fn daemon() -> Option<&'static Daemon> {
    /// The daemon, after its first use.
    static DAEMON: OnceLock<Result<Daemon, String>> = OnceLock::new();
    match DAEMON.get_or_init(|| Daemon::start(None, None)) {
        Ok(daemon) => Some(daemon),
        Err(why) => skip(why),
    }
}

impl Daemon {
    /// A daemon for one test, with its own lock and journals, on this machine or as if on a
    /// recorded host, on which networks are only defined; none, with the reason reported, if the
    /// machine cannot have it.
    pub fn own(host: Option<&Path>) -> Option<Daemon> {
        let host = host.unwrap_or(Path::new("this machine"));
        Daemon::start(Some(host), None).map_or_else(skip, Some)
    }

    /// A daemon for one test as if on a recorded host, on which networks run; it has none at first.
    /// Programs reach it by [`Daemon::enter`] alone. None, with the reason reported, if the machine
    /// cannot have it.
    pub fn with_networks(host: &Path) -> Option<Daemon> {
        Daemon::start_with(Some(host), None, true).map_or_else(skip, Some)
    }

    /// A daemon for one test on a machine of another name and UUID; none, with the reason reported,
    /// if the machine cannot have it.
    pub fn elsewhere(name: &str) -> Option<Daemon> {
        let here = Path::new("this machine");
        Daemon::start(Some(here), Some(name)).map_or_else(skip, Some)
    }

    /// Starts a daemon and waits until it answers; `own`: for one test, on the host recorded in
    /// this directory, if any; `name`: on a machine of this name.
    fn start(own: Option<&Path>, name: Option<&str>) -> Result<Daemon, String> {
        Daemon::start_with(own, name, false)
    }

    /// Starts one; `networked`: with what networks need, and without networks.
    fn start_with(
        own: Option<&Path>,
        name: Option<&str>,
        networked: bool,
    ) -> Result<Daemon, String> {
        machine::enter();
        for program in ["libvirtd", "virtlogd", "virsh", "qemu-system-x86_64", "ip", "dnsmasq"] {
            let known = Command::new("which").arg(program).output();
            if !known.is_ok_and(|out| out.status.success()) {
                return Err(format!("{program} is not installed"));
            }
        }
        if !namespaces() {
            return Err("namespaces need root".into());
        }
        let dir = tempfile::Builder::new().prefix("gpuvm-test-").tempdir().unwrap().keep();
        open_to_all(&dir);
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "--net",
            "--uts",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]);
        command.args(["--propagation", "private", "bash", "-c", INIT, "init"]).arg(&dir);
        command.args(own).args(name);
        let more = if networked { NETWORKED } else { "" };
        std::fs::write(dir.join("own.sh"), format!("{OWN}{more}")).unwrap();
        // The shared one has them for `within`, too.
        std::fs::write(dir.join("own.fstab"), mounts(&dir, own.unwrap_or(Path::new("")))).unwrap();
        known::give(
            &dir.join("capabilities"),
            own.filter(|own| own.is_dir()).unwrap_or(Path::new("/")),
        );
        let log = std::fs::File::create(dir.join("daemon.log")).unwrap();
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        let mut holder = command.spawn().unwrap();
        let alive = holder.stdin.take().unwrap();
        let host = own.map(Path::to_owned);
        let daemon = Daemon { dir, host, holder, _alive: alive };
        let until = Instant::now() + Duration::from_secs(300);
        while !daemon.virsh(&["version"]).0 {
            if Instant::now() > until {
                let log = std::fs::read_to_string(daemon.dir.join("daemon.log"));
                panic!("the private libvirtd does not answer:\n{}", log.unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        for (number, network) in NETWORKS.iter().enumerate().filter(|_| !networked) {
            let file = daemon.dir.join(format!("network-{number}.xml"));
            std::fs::write(&file, network).unwrap();
            let verb = if own.is_some_and(Path::is_dir) { "net-define" } else { "net-create" };
            let (done, text) = daemon.virsh(&[verb, file.to_str().unwrap()]);
            assert!(done, "{text}");
        }
        if !own.is_some_and(Path::is_dir) {
            daemon.keep_capabilities();
        }
        Ok(daemon)
    }

    /// Keeps this libvirtd's QEMU capabilities for those that start later, once in a test run:
    /// probing takes seconds, and libvirt itself detects outdated ones.
    fn keep_capabilities(&self) {
        static KEPT: OnceLock<()> = OnceLock::new();
        KEPT.get_or_init(|| {
            let (known, text) = self.virsh(&["domcapabilities"]);
            assert!(known, "{text}");
            known::keep(&self.inside("/var/cache/libvirt/qemu/capabilities"));
        });
    }

    /// Its connection URI.
    pub fn uri(&self) -> String {
        format!("qemu+unix:///system?socket={}/libvirt-sock", self.dir.display())
    }

    /// A fresh directory that QEMU's user can enter.
    pub fn fresh_dir(&self, name: &str) -> PathBuf {
        let dir = self.dir.join(name);
        std::fs::create_dir(&dir).unwrap();
        open_to_all(&dir);
        dir
    }

    /// The program under test, connected to it.
    pub fn gpuvm(&self, args: &[&str]) -> Command {
        let mut command = gpuvm(args);
        command.env("LIBVIRT_DEFAULT_URI", self.uri());
        command
    }

    /// A path in the daemon's private mounts, as seen from outside.
    pub fn inside(&self, path: &str) -> PathBuf {
        let holder = self.holder.id();
        let children = format!("/proc/{holder}/task/{holder}/children");
        let first = std::fs::read_to_string(children).unwrap();
        let first = first.split_whitespace().next().expect("it holds its first process").to_owned();
        Path::new("/proc").join(first).join("root").join(path.trim_start_matches('/'))
    }

    /// The user of the process inside whose command line contains this text.
    pub fn uid_of(&self, text: &str) -> u32 {
        use std::os::unix::fs::MetadataExt as _;
        let entries = std::fs::read_dir(self.inside("/proc")).unwrap();
        let has = |dir: &Path| {
            std::fs::read(dir.join("cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(text))
        };
        let mut dirs = entries.map(|entry| entry.unwrap().path());
        let found = dirs.find(|dir| has(dir)).expect("it runs");
        found.metadata().unwrap().uid()
    }

    /// A program on the machine of a test's own daemon.
    pub fn within(&self, program: &str) -> Command {
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private", "bash", "-c"]);
        command.arg(r#"dir=$1 host=$2; . "$dir/own.sh"; shift 2; exec "$@""#).arg("own");
        command.arg(&self.dir).arg(self.host.as_deref().unwrap_or(Path::new("-"))).arg(program);
        command.env("LIBVIRT_DEFAULT_URI", self.uri()).env_remove("COLUMNS").env("LC_ALL", "C");
        command
    }

    /// The same, in its network.
    pub fn within_net(&self, program: &str) -> Command {
        let mut command = self.within("nsenter");
        command.args(["--net", "--target", &self.first(), program]);
        command
    }

    /// The process ID of its libvirtd, as seen from outside.
    pub fn libvirtd(&self) -> nix::unistd::Pid {
        let ours = self.dir.join("libvirtd.pid").display().to_string();
        let found = std::fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
            let pid = entry.file_name().to_str()?.parse::<i32>().ok()?;
            let command = std::fs::read(entry.path().join("cmdline")).ok()?;
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            (command.starts_with("libvirtd ") && command.contains(&ours)).then_some(pid)
        });
        nix::unistd::Pid::from_raw(found.expect("libvirtd runs"))
    }

    /// The path of a file of a test's own machine, as seen from outside.
    pub fn own_path(&self, path: &str) -> PathBuf {
        self.dir.join("own").join(path.trim_start_matches('/'))
    }

    /// Kills libvirtd, and waits until the next one answers; guests continue to run.
    pub fn restart(&self) {
        let pid = std::fs::read_to_string(self.dir.join("libvirtd.pid")).unwrap();
        let mut kill = Command::new("nsenter");
        kill.args(["--mount", "--pid", "--target", &self.first(), "kill", "-9", pid.trim()]);
        let (code, _, err) = run(&mut kill);
        assert_eq!(code, 0, "{err}");
        let until = Instant::now() + Duration::from_secs(300);
        // The socket of the killed one no longer accepts connections.
        while !self.virsh(&["version"]).0 {
            assert!(Instant::now() < until, "libvirtd does not come back");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The process ID of the first process of its namespaces, as seen from outside.
    fn first(&self) -> String {
        let first = self.inside("/");
        first.parent().and_then(Path::file_name).unwrap().to_str().unwrap().to_owned()
    }

    /// A program inside some of its namespaces, as `nsenter` names them.
    pub fn enter(&self, namespaces: &[&str], program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(namespaces).args(["--target", &self.first(), program]);
        command
    }

    /// Mounts a small file system on a directory, visible only to the daemon. Returns whether that
    /// succeeded.
    pub fn mount_tmpfs(&self, dir: &Path, size: &str) -> bool {
        let pid = self.first();
        let mut mount = Command::new("nsenter");
        mount.args(["--mount", "--target", &pid, "mount", "-t", "tmpfs", "-o"]);
        mount.arg(format!("size={size}")).arg("tmpfs").arg(dir);
        run(&mut mount).0 == 0
    }

    /// A command inside its mounts, where it is the machine's own libvirtd, as an unprivileged
    /// user.
    pub fn as_unprivileged(&self, program: &Path) -> Command {
        let pid = self.first();
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &pid, "setpriv", "--reuid=65534", "--regid=65534"]);
        command.arg("--clear-groups").arg(program);
        command.env_remove("XDG_RUNTIME_DIR").env_remove("LIBVIRT_DEFAULT_URI").env("LC_ALL", "C");
        let home = self.dir.join("home-of-nobody");
        if std::fs::create_dir(&home).is_ok() {
            std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        command.env_remove("XDG_STATE_HOME").env("HOME", home);
        command
    }

    /// Runs virsh on it. Returns whether it succeeded, and its output.
    pub fn virsh(&self, args: &[&str]) -> (bool, String) {
        let mut command = Command::new("virsh");
        command.args(["-q", "-c", &self.uri()]).args(args).env("LC_ALL", "C");
        let (code, out, err) = run(&mut command);
        (code == 0, out + &err)
    }
}

/// Copies the files of a directory, if it exists, into one that is created; each file appears
/// atomically.
pub fn copy_files(from: &Path, to: &Path) {
    let Ok(entries) = std::fs::read_dir(from) else { return };
    std::fs::create_dir_all(to).unwrap();
    for entry in entries {
        let entry = entry.unwrap();
        // A file that another test is copying.
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        let scratch = tempfile::NamedTempFile::new_in(to).unwrap();
        std::fs::copy(entry.path(), scratch.path()).unwrap();
        scratch.persist(to.join(entry.file_name())).unwrap();
    }
}

/// Lets everyone enter a directory.
fn open_to_all(dir: &Path) {
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// A small Linux guest, ready to be created.
pub struct Tiny {
    /// The template that it is created from.
    pub template: PathBuf,
    /// The file of its console output.
    pub console: PathBuf,
}

impl Tiny {
    /// Puts kernel, initial file system and template into a directory; none, with the reason
    /// reported, if the machine cannot have them.
    pub fn new(dir: &Path) -> Option<Tiny> {
        /// The directory in which kernel and initial file system are kept for later runs.
        static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        let made = match MADE.get_or_init(make) {
            Ok(made) => made,
            Err(why) => return skip(why),
        };
        for file in ["vmlinuz", "initramfs"] {
            std::fs::copy(made.join(file), dir.join(file)).unwrap();
        }
        let xml = std::fs::read_to_string(project().join("tests/tiny/domain.xml")).unwrap();
        let template = dir.join("tiny.xml");
        std::fs::write(&template, xml.replace("/tiny/", &format!("{}/", dir.display()))).unwrap();
        Some(Tiny { template, console: dir.join("console.log") })
    }

    /// Whether the console shows a text.
    pub fn shows(&self, text: &str) -> bool {
        let shown = std::fs::read(&self.console).unwrap_or_default();
        String::from_utf8_lossy(&shown).contains(text)
    }

    /// Removes the console's output: the next start rewrites it.
    pub fn forget(&self) {
        std::fs::remove_file(&self.console).unwrap();
    }

    /// Waits until the console shows a text, and returns all of its output.
    pub fn wait_for(&self, text: &str) -> String {
        let until = Instant::now() + Duration::from_secs(1200);
        loop {
            let shown = std::fs::read(&self.console).unwrap_or_default();
            let shown = String::from_utf8_lossy(&shown).into_owned();
            if shown.contains(text) {
                return shown;
            }
            let goes_on = Instant::now() < until && !shown.contains("Kernel panic");
            assert!(goes_on, "the guest does not say `{text}`:\n{shown}");
            std::thread::sleep(Duration::from_millis(250));
        }
    }
}

/// Fetches the kernel, unless it was fetched before, and packs the initial file system.
fn make() -> Result<PathBuf, String> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tiny");
    std::fs::create_dir_all(&dir).unwrap();
    let (code, _, err) = run(Command::new(project().join("tests/fetch-kernel")).arg(&dir));
    if code != 0 {
        return Err(format!("no kernel for the test guest: {}", err.trim()));
    }
    let busybox = Path::new("/bin/busybox");
    let is_static = run(Command::new("ldd").arg(busybox)).0 != 0;
    if !busybox.exists() || !is_static {
        return Err("busybox-static is not installed".into());
    }
    let root = tempfile::tempdir_in(&dir).unwrap();
    for below in ["bin", "modules"] {
        std::fs::create_dir(root.path().join(below)).unwrap();
    }
    std::fs::copy(busybox, root.path().join("bin/busybox")).unwrap();
    for script in ["init", "net", "agent"] {
        std::fs::copy(project().join("tests/tiny").join(script), root.path().join(script)).unwrap();
    }
    let mut names = String::from(".\nbin\nbin/busybox\ninit\nnet\nagent\nmodules\n");
    for module in std::fs::read_dir(dir.join("modules")).unwrap() {
        let module = module.unwrap().path();
        let name = module.file_name().unwrap().to_str().unwrap();
        std::fs::copy(&module, root.path().join("modules").join(name)).unwrap();
        names += &format!("modules/{name}\n");
    }
    // Another test program may copy the file meanwhile: the rename replaces it at once.
    let packed = root.path().with_extension("cpio");
    let archive = std::fs::File::create(&packed).unwrap();
    let mut cpio = Command::new("cpio");
    cpio.args(["-o", "-H", "newc", "--quiet"]).current_dir(root.path());
    let child = cpio.stdin(Stdio::piped()).stdout(archive).spawn();
    let mut child = child.map_err(|_| "cpio is not installed".to_owned())?;
    child.stdin.take().unwrap().write_all(names.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "cpio failed");
    std::fs::rename(&packed, dir.join("initramfs")).unwrap();
    Ok(dir)
}
