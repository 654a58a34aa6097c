//! The test network: the host's NICs, the LAN behind them, the guest, and commands for each.

use super::{BONDED, Net};
use crate::support::daemon::{Daemon, Tiny};
use crate::support::lawful::NO_VETH;
use crate::support::{run, skip};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The guest's name.
pub const GUEST: &str = "talker";
/// How often a packet that should pass is sent, and the seconds that an answer may take: one is
/// easily lost on a busy machine.
const PATIENT: (u32, u32) = (3, 20);
/// The LAN's side of the veth pairs; `$LAN` is its namespace. All of it carries packets of 9000
/// bytes.
const LAN: &str = "
for n in 0 1 2 3; do
  ip link add nic$n mtu 9000 type veth peer name far$n mtu 9000
  ip link set far$n netns $LAN
  ip link set nic$n up
  nsenter --net --target $LAN ip address add 10.50.$n.1/24 dev far$n
  nsenter --net --target $LAN ip link set far$n up
done
nsenter --net --target $LAN ip link set lo up
ip address add 10.50.0.2/24 dev nic0
ip route add default via 10.50.0.1
ip link add br1 mtu 9000 type bridge stp_state 0 forward_delay 0
ip link set nic1 master br1
ip address add 10.50.1.2/24 dev br1
ip link set br1 up
ip address add 10.50.2.2/24 dev nic2
ip address add 10.50.3.2/24 dev nic3
sysctl -qw net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=0
";
/// A peer that is not a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The host.
    Host,
    /// The machine behind its NICs.
    Lan,
}

/// The test network.
pub struct Lan {
    /// The libvirtd.
    daemon: Daemon,
    /// The holder of the LAN's namespace, and its DHCP server.
    others: Vec<Child>,
    /// Kernel, initial file system and console of the guest.
    pub dir: PathBuf,
    /// Its console, once it was started.
    console: Option<UnixStream>,
    /// Addresses of its NICs, by their last bytes.
    addresses: BTreeMap<&'static str, String>,
    /// The networks that the guest is on.
    nets: Vec<&'static Net>,
}

impl Drop for Lan {
    fn drop(&mut self) {
        for child in &mut self.others {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Lan {
    /// Sets it up for a guest on these networks; none, with the reason reported, if the machine
    /// cannot have it.
    pub fn new(nets: &[&'static Net]) -> Option<Lan> {
        let daemon = Daemon::own(None)?;
        let dir = daemon.fresh_dir("traffic");
        Tiny::new(&dir)?;
        // It ends with the test run, however that ends.
        let mut holder = Command::new("setpriv");
        holder.args(["--pdeathsig", "KILL", "unshare", "--net", "sleep", "100000"]);
        let holder = holder.stdin(Stdio::null()).spawn().unwrap();
        let pid = holder.id().to_string();
        let mut lan = Lan {
            daemon,
            others: vec![holder],
            dir,
            console: None,
            addresses: BTreeMap::new(),
            nets: nets.to_vec(),
        };
        lan.wait_for_namespace(&pid);
        let (code, out, err) = lan.net("bash", &["-ec", LAN]);
        if code != 0 && err.contains("Unknown device type") {
            return skip(NO_VETH);
        }
        assert_eq!(code, 0, "{out}{err}");
        if lan.on(&BONDED) {
            lan.first_bond();
        }
        lan.serve(&pid);
        lan.networks();
        Some(lan)
    }

    /// Waits until the LAN's namespace is one of its own.
    fn wait_for_namespace(&self, pid: &str) {
        let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let until = Instant::now() + Duration::from_secs(60);
        while of(pid).is_none() || of(pid) == of("self") {
            assert!(Instant::now() < until, "no namespace for the LAN");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A program in the host's network, which has the LAN's namespace as `$LAN`.
    pub fn net(&self, program: &str, args: &[&str]) -> (i32, String, String) {
        let lan = self.others[0].id().to_string();
        run(self.daemon.enter(&["--net"], program).args(args).env("LAN", lan))
    }

    /// Starts the LAN's DHCP server.
    fn serve(&mut self, pid: &str) {
        let mut server = Command::new("setpriv");
        server.args([
            "--pdeathsig",
            "KILL",
            "nsenter",
            "--net",
            "--target",
            pid,
            "dnsmasq",
            "--keep-in-foreground",
        ]);
        server.args([
            "--conf-file=/dev/null",
            "--port=0",
            "--dhcp-authoritative",
            "--no-ping",
            "--log-facility=-",
            "--pid-file=",
        ]);
        server.arg(format!("--dhcp-leasefile={}/leases", self.dir.display())).arg("--user=root");
        for net in 1..=4 {
            server.arg(format!("--dhcp-range=10.50.{net}.10,10.50.{net}.200,255.255.255.0,1h"));
        }
        let log = std::fs::File::create(self.dir.join("dnsmasq.log")).unwrap();
        let server = server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        self.others.push(server.unwrap());
    }

    /// Makes the networks.
    fn networks(&self) {
        for net in &self.nets {
            let line = format!("network create {} {}", net.name, net.kind);
            let args: Vec<&str> = line.split(' ').collect();
            let (code, out, err) = self.gpuvm(&args);
            assert_eq!(code, 0, "{line}: {out}{err}");
        }
    }

    /// Whether the guest is on a network.
    fn on(&self, net: &Net) -> bool {
        self.nets.iter().any(|one| one.name == net.name)
    }

    /// Its NICs, by the last bytes of their MAC addresses, with their networks.
    pub fn nics(&self) -> Vec<(&'static Net, &'static str)> {
        self.nets.iter().flat_map(|&net| net.nics.map(|nic| (net, nic))).collect()
    }

    /// Defines and starts the guest, and waits until its console answers.
    pub fn boot(&mut self, vcpus: u32) {
        let dir = self.dir.display();
        let mut nics = String::new();
        // None of them behind a port of its own, which takes an emulated guest seconds.
        for (slot, (net, nic)) in (8..).zip(self.nics()) {
            let queues = if net.name == "lan" { " queues='2'" } else { "" };
            let mtu = if matches!(net.name, "lan" | "bonded") { "<mtu size='9000'/>" } else { "" };
            write!(
                nics,
                "<interface type='network'><mac address='52:54:00:77:00:{nic}'/><source \
                 network='{}'/>\
                 <model type='virtio'/><driver name='qemu'{queues}/>{mtu}\
                 <address type='pci' domain='0' bus='0' slot='0x{slot:x}' function='0'/></interface>",
                net.name
            )
            .unwrap();
        }
        let xml = format!(
            "<domain type='qemu'><name>{GUEST}</name><memory \
             unit='MiB'>256</memory><vcpu>{vcpus}</vcpu><os>\
             <type arch='x86_64' machine='q35'>hvm</type><kernel>{dir}/vmlinuz</kernel><initrd>{dir}/initramfs</initrd>\
             <cmdline>rdinit=/net console=ttyS0 quiet loglevel=3 \
             mitigations=off no_timer_check</cmdline></os><features><acpi/><apic/></features>\
             <cpu mode='custom' match='exact'><model \
             fallback='forbid'>Skylake-Client-v1</model></cpu><devices>\
             <serial type='unix'><source mode='bind' path='{dir}/console.sock'/><target \
             port='0'/></serial>\
             <memballoon model='none'/>{nics}</devices></domain>"
        );
        let file = self.dir.join("guest.xml");
        std::fs::write(&file, xml).unwrap();
        let (done, said) = self.virsh(&["define", file.to_str().unwrap()]);
        assert!(done, "{said}");
        let (code, out, err) = self.gpuvm(&["start", GUEST]);
        assert_eq!(code, 0, "{out}{err}");
        let console = UnixStream::connect(self.dir.join("console.sock")).unwrap();
        console.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        self.console = Some(console);
        let until = Instant::now() + Duration::from_secs(600);
        while self.answer("true", 5).is_none() {
            assert!(Instant::now() < until, "the guest's console does not answer");
        }
    }

    /// Runs a command in the guest. Returns its exit code and output, or none if it does not answer
    /// in time.
    fn answer(&mut self, line: &str, seconds: u64) -> Option<(i32, String)> {
        /// Numbers the commands, so that a late answer is not mistaken for another's.
        static ASKED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = ASKED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let console = self.console.as_mut().expect("the guest was started");
        // Split in two, so that an echo of the line is not mistaken for its end.
        writeln!(console, "echo be''gun {number}; {line}; echo en''ded {number} $?").unwrap();
        let (begun, ended) = (format!("begun {number}"), format!("ended {number} "));
        let until = Instant::now() + Duration::from_secs(seconds);
        let (mut seen, mut part) = (String::new(), [0; 4096]);
        while Instant::now() < until {
            if let Ok(got) = console.read(&mut part) {
                seen += &String::from_utf8_lossy(&part[..got]);
            }
            let after = seen.rsplit_once(&ended).filter(|(_, code)| code.contains('\n'));
            if let Some((said, code)) = after {
                let said = said.rsplit_once(&begun).map_or(said, |(_, said)| said);
                return Some((code.trim().parse().ok()?, said.trim().replace('\r', "")));
            }
        }
        None
    }

    /// Runs a command in the guest, which must answer.
    pub fn guest(&mut self, line: &str) -> (i32, String) {
        let answer = self.answer(line, 300);
        answer.unwrap_or_else(|| panic!("the guest does not answer `{line}`"))
    }

    /// Runs a command in the guest in the background, and ignores its result.
    pub fn quietly(&self, line: &str) {
        let mut console = self.console.as_ref().expect("the guest was started");
        writeln!(console, "{line} >/dev/null 2>&1 &").unwrap();
    }

    /// The address of a NIC; `None` if it has none yet.
    pub fn address(&mut self, nic: &'static str) -> Option<String> {
        if let Some(known) = self.addresses.get(nic) {
            return Some(known.clone());
        }
        let (_, said) = self.guest(&format!("on {nic} ip -4 -o address show dev nic"));
        let found = said.split_whitespace().skip_while(|word| *word != "inet").nth(1)?;
        let ip = found.split('/').next()?.to_owned();
        self.addresses.insert(nic, ip.clone());
        Some(ip)
    }

    /// The program under test where the libvirtd is.
    pub fn gpuvm_command(&self, args: &[&str]) -> Command {
        let mut command =
            self.daemon.enter(&["--mount", "--net", "--pid"], env!("CARGO_BIN_EXE_gpuvm"));
        command
            .args(args)
            .stdin(Stdio::null())
            .env("LIBVIRT_DEFAULT_URI", self.daemon.uri())
            .env("LC_ALL", "C");
        command
    }

    /// Its exit code, standard output and standard error.
    pub fn gpuvm(&self, args: &[&str]) -> (i32, String, String) {
        run(&mut self.gpuvm_command(args))
    }

    /// virsh: whether it succeeded, and its output.
    pub fn virsh(&self, args: &[&str]) -> (bool, String) {
        self.daemon.virsh(args)
    }

    /// A command of the host's, which has to succeed; `LAN COMMAND` is one of the LAN's.
    pub fn host(&self, line: &str) {
        let (side, line) = match line.strip_prefix("LAN ") {
            Some(line) => (Side::Lan, line),
            None => (Side::Host, line),
        };
        let (code, out, err) = run(self.on_side(side, "sh").args(["-c", line]));
        assert_eq!(code, 0, "{line}: {out}{err}");
    }

    /// A program of a side.
    pub fn on_side(&self, side: Side, program: &str) -> Command {
        match side {
            Side::Host => self.daemon.enter(&["--mount", "--net", "--pid"], program),
            Side::Lan => {
                let mut command = Command::new("nsenter");
                command.args(["--net", "--target", &self.others[0].id().to_string(), program]);
                command
            }
        }
    }

    /// Whether the guest's NIC reaches an address as expected; if it should, retries are allowed.
    pub fn ping(&mut self, nic: &str, to: &str, size: u32, should: bool) -> bool {
        let (tries, seconds) = if should { PATIENT } else { (1, 1) };
        let ping = format!("on {nic} ping -c 1 -W {seconds} -q -s {size} {to} >/dev/null 2>&1");
        (0..tries).any(|_| self.guest(&ping).0 == 0)
    }

    /// Whether a side does.
    pub fn side_pings(&self, side: Side, to: &str, should: bool) -> bool {
        let (tries, seconds) = if should { PATIENT } else { (1, 1) };
        let seconds = seconds.to_string();
        let ping = |_| {
            let mut ping = self.on_side(side, "busybox");
            run(ping.args(["ping", "-c", "1", "-W", &seconds, "-q", to])).0 == 0
        };
        (0..tries).any(ping)
    }

    /// The NIC's device on the host.
    pub fn tap(&self, nic: &str) -> String {
        let (_, said) = self.virsh(&["domiflist", GUEST]);
        let row =
            said.lines().find(|line| line.trim_end().ends_with(&format!("52:54:00:77:00:{nic}")));
        row.unwrap_or_else(|| panic!("{nic}: {said}")).split_whitespace().next().unwrap().to_owned()
    }

    /// The doctor's findings, each with the NIC's last byte, the hop and the rule; and its exit
    /// code.
    pub fn doctor(&self) -> (i32, Vec<(String, String, String)>, String) {
        let (code, out, err) = self.gpuvm(&["network", "doctor", GUEST, "--json"]);
        let answer: serde_json::Value =
            serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
        let word = |value: &serde_json::Value, key: &str| value[key].as_str().unwrap().to_owned();
        let mut found = Vec::new();
        for nic in answer["nics"].as_array().unwrap() {
            let mac = word(nic, "mac");
            for hop in nic["hops"].as_array().unwrap() {
                for finding in hop["findings"].as_array().unwrap() {
                    let of = mac.rsplit(':').next().unwrap().to_owned();
                    found.push((of, word(hop, "name"), word(finding, "rule")));
                }
            }
        }
        (code, found, out)
    }

    /// Expects a finding of the doctor's.
    pub fn finds(&self, nic: &str, hop: &str, rule: &str) {
        let (code, found, _) = self.doctor();
        let wanted = (nic.to_owned(), hop.to_owned(), rule.to_owned());
        assert!(code == 3 && found.contains(&wanted), "{code}: {wanted:?} is not in {found:?}");
    }
}
