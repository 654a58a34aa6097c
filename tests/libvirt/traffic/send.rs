//! Data transfers, counted at the receiver.

use super::NETS;
use super::lan::{Lan, Side};
use crate::support::run;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// Prints the time, in seconds, and the bytes that a network device (`$1`) has received or sent
/// (`$2`: `rx`, `tx`): now, once they are so many more (`$3`), and again when they are more by
/// `$4`. It ends after five minutes in any case.
const METER: &str = r#"
look() {
  while read -r name rx _ _ _ _ _ _ _ tx _; do
    if [[ $name == "$1:" ]]; then bytes=${!2}; fi
  done </proc/net/dev
}
look $1 $2
begun=$bytes
echo $EPOCHREALTIME $bytes
for more in $3 $4; do
  until look $1 $2; ((bytes - begun >= more)); do sleep 0.05; ((SECONDS < 300)) || exit 1; done
  echo $EPOCHREALTIME $bytes
done
"#;

/// A command that connects to an address and sends this many bytes; it retries until there is a
/// listener. `nc` itself moves 1 KiB at a time, which takes an emulated guest ten times as long.
fn send(on: &str, ip: &str, bytes: u64) -> String {
    let send = format!("dd if=/dev/zero bs=65536 count={} 2>/dev/null", bytes >> 16);
    let send = format!("{on} busybox nc {ip} 5000 -e sh -c '{send}'");
    format!("for try in 1 2 3 4 5 6 7 8 9 10; do {send} && break; sleep 0.3; done")
}

/// A command that takes one connection and writes into a file how many bytes came.
fn count(on: &str, file: &str) -> String {
    format!("{on} busybox nc -l -p 5000 -e sh -c 'wc -c >{file}'")
}

impl Lan {
    /// Lets the guest count the packets that come to a NIC.
    fn hear(&mut self, nic: &str) {
        self.guest(&format!("{{ {} & }}", count(&format!("on {nic}"), "/got")));
    }

    /// Its count, after no more data arrives.
    fn heard(&mut self) -> u64 {
        self.guest("wait $!; cat /got").1.parse().unwrap()
    }

    /// Sends bytes from a side to the guest; how many arrive.
    pub fn guest_gets(&mut self, nic: &'static str, from: Side, bytes: u64) -> u64 {
        let ip = self.address(nic).unwrap();
        self.hear(nic);
        let (code, _, err) = run(self.on_side(from, "sh").args(["-c", &send("", &ip, bytes)]));
        assert_eq!(code, 0, "{err}");
        self.heard()
    }

    /// Sends bytes from the guest to a side at an address; how many arrive.
    pub fn guest_sends(&mut self, nic: &str, (to, ip): (Side, &str), bytes: u64) -> u64 {
        let file = self.dir.join("got");
        let line = count("", file.to_str().unwrap());
        let mut hear =
            self.on_side(to, "sh").args(["-c", &line]).stdin(Stdio::null()).spawn().unwrap();
        let sent = self.guest(&send(&format!("on {nic}"), ip, bytes));
        assert_eq!(sent.0, 0, "{}", sent.1);
        assert!(hear.wait().unwrap().success());
        std::fs::read_to_string(file).unwrap().trim().parse().unwrap()
    }

    /// Sends bytes from one NIC of the guest to another; how many arrive.
    pub fn between(&mut self, from: &str, to: &'static str, bytes: u64) -> u64 {
        let ip = self.address(to).unwrap();
        self.hear(to);
        let sent = self.guest(&send(&format!("on {from}"), &ip, bytes));
        assert_eq!(sent.0, 0, "{}", sent.1);
        self.heard()
    }

    /// Sends 4 MiB from the host to the guest's first NIC (`inbound`) or from there to the host.
    fn transfer(&mut self, inbound: bool) -> u64 {
        let bytes = 4 << 20;
        let got = if inbound {
            self.guest_gets("01", Side::Host, bytes)
        } else {
            self.guest_sends("01", (Side::Host, NETS[0].host), bytes)
        };
        assert_eq!(got, bytes);
        bytes
    }

    /// How fast data pass a limit of the guest's first NIC, to the guest (`inbound`) or from it, in
    /// kB/s of 1000 bytes.
    pub fn speed(&mut self, inbound: bool) -> f64 {
        // Packets received by the host's side of the NIC are counted before they are limited, those
        // that the bridge gets from it after that.
        let (device, way) = if inbound { (self.tap("01"), "tx") } else { ("labbr".into(), "rx") };
        // At first a limit lets more pass, until its burst is used up.
        let mut meter = self.on_side(Side::Host, "bash");
        meter.args(["-c", METER, "meter", &device, way, "1200000", "4000000"]);
        let mut meter = meter.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        // What passes before its first look, it never counts.
        let mut lines = BufReader::new(meter.stdout.take().unwrap()).lines();
        lines.next().unwrap().unwrap();
        self.transfer(inbound);
        let seen: Vec<String> = lines.map(Result::unwrap).collect();
        assert!(meter.wait().unwrap().success(), "{way} of {device}: {seen:?}");
        let seen: Vec<f64> = seen
            .iter()
            .flat_map(|line| line.split(' '))
            .map(|word| word.parse().unwrap())
            .collect();
        let [begun, before, ended, after] = seen[..] else { panic!("{seen:?}") };
        (after - before) / 1000.0 / (ended - begun)
    }

    /// A lower bound of the speed, which includes the transfer's overhead: without a limit all data
    /// may pass between two readings of the meter.
    pub fn speed_at_least(&mut self, inbound: bool) -> f64 {
        let begun = std::time::Instant::now();
        self.transfer(inbound) as f64 / 1000.0 / begun.elapsed().as_secs_f64()
    }
}
