//! Bridges of the host, on a private machine of the test: its network with veth pairs for NICs,
//! netplan and systemd-networkd as on a real host, and a LAN behind the pairs. Only `systemctl` is
//! a stand-in, since systemd itself does not run here: netplan asks it for nothing that these tests
//! are about. Bonds are on user-mode Linux (`tests/uml/run`) where this machine's kernel lacks
//! them; `GPUVM_BONDS=here` keeps them on this one's.

use crate::support::daemon::namespaces;
use crate::support::lawful::NO_VLAN;
use crate::support::{run, skip, uml};
use std::process::{Command, Stdio};

/// Begins a script: private directories, nic0 and nic1 with a LAN behind them where 10.77.0.1 is
/// the gateway, and a host that netplan configures: 10.77.0.2 on nic0. `$0`: the program.
const BEGIN: &str = r#"
set -e
for dir in /run /etc/netplan /etc/systemd/network /var/lib/gpuvm /etc/network; do
  mkdir -p $dir; mount -t tmpfs tmpfs $dir
done
mkdir -p /run/lock /run/dbus /run/netplan /run/stand
# systemd-networkd does not wait for udev where the kernel's files cannot be written.
mount -t sysfs -o ro sysfs /sys
printf '#!/bin/sh\ncase $1 in is-active) exit 3;; esac\n' >/run/stand/systemctl
printf '#!/bin/sh\n' >/run/stand/udevadm
chmod 755 /run/stand/*
mount --bind /run/stand/systemctl /usr/bin/systemctl
mount --bind /run/stand/udevadm /usr/bin/udevadm
ip link set lo up
ip netns add lan
ip -n lan link set lo up
ip -n lan link add sw type bridge
ip -n lan address add 10.77.0.1/24 dev sw
ip -n lan link set sw up
for n in 0 1; do
  ip link add nic$n type veth peer name far$n netns lan
  ip -n lan link set far$n master sw
  ip -n lan link set far$n up
done
cat >/etc/netplan/50-host.yaml <<'END'
network:
  version: 2
  ethernets:
    nic0:
      addresses: [10.77.0.2/24]
      routes: [{to: default, via: 10.77.0.1}]
END
chmod 600 /etc/netplan/50-host.yaml
bridge="$0 network host-bridge"
fails() { if "$@" 2>&1; then echo "it was done: $*"; exit 8; fi; }
# Until what is given holds; the machine may be loaded.
until_so() { for _ in $(seq 1500); do if "$@" >/dev/null 2>&1; then return; fi; sleep 0.2; done; echo "never: $*"; ip a; exit 7; }
has() { ip -br address show dev $1 | grep -q " $2"; }
pings() { ip netns exec lan busybox ping -c 1 -W 2 10.77.0.2; }
waits() { test -s /var/lib/gpuvm/host-bridge/br0.wait; }
files() { find /etc/netplan /etc/systemd/network /var/lib/gpuvm /run/netplan -type f -printf '%m %p\n' -exec cat {} + | sort; }
same() { files >/run/after; cmp /run/before /run/after; }
as_before() { until_so has nic0 10.77.0.2/24; until_so pings; until_so same; fails ip link show br0; }
start() {
  dbus-daemon --system --fork --nopidfile
  netplan generate
  $networkd & until_so networkctl status nic0
  netplan apply; until_so has nic0 10.77.0.2/24; until_so pings
  files >/run/before
}
"#;

/// The paths of systemd-networkd.
const NETWORKD: [&str; 2] = ["/usr/lib/systemd/systemd-networkd", "/lib/systemd/systemd-networkd"];

/// The output of a script, which must succeed; none if the machine cannot run it.
pub fn script(text: &str) -> Option<String> {
    if !namespaces() {
        return skip("namespaces need root");
    }
    for program in ["netplan", "networkctl", "dbus-daemon", "ip", "busybox", "dnsmasq"] {
        if run(Command::new("which").arg(program)).0 != 0 {
            return skip(format!("{program} is not installed"));
        }
    }
    let networkd = NETWORKD.into_iter().find(|path| std::path::Path::new(path).exists());
    let Some(networkd) = networkd else { return skip("systemd-networkd is not installed") };
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    shell.args(["--propagation", "private", "bash", "-c", &format!("{BEGIN}{text}")]);
    shell.arg(env!("CARGO_BIN_EXE_gpuvm")).env("networkd", networkd).stdin(Stdio::null());
    shell.env("LC_ALL", "C").env_remove("COLUMNS").env_remove("SSH_CONNECTION");
    let (code, out, err) = run(&mut shell);
    assert_eq!(code, 0, "{out}{err}");
    Some(out + &err)
}

/// Asserts that the output contains these words.
fn says(said: &str, words: &[&str]) {
    words.iter().for_each(|words| assert!(said.contains(words), "{words}: {said}"));
}

#[test]
fn a_bridge_comes_up_is_confirmed_and_goes_without_trace() {
    let said = script(
        r#"start
        make="create br0 --nic nic0 --address 10.77.0.2/24 --gateway 10.77.0.1 --dns 10.77.0.1"
        $bridge $make --dry-run; same
        fails $bridge $make
        $bridge $make --yes & made=$!
        until_so waits; pings; has br0 10.77.0.2/24; fails has nic0 10.77.0.2; test ! -e /etc/netplan/90-gpuvm-br0.yaml
        $bridge show --json; $bridge confirm; wait $made; fails $bridge confirm
        stat -c 'mode %a' /etc/netplan/90-gpuvm-br0.yaml; test ! -e /run/netplan/90-gpuvm-br0.yaml; pings
        $bridge show; fails $bridge $make
        # What boots with these files is the same.
        netplan apply; until_so pings; has br0 10.77.0.2/24
        fails "$0" host undo; "$0" host undo --yes & undone=$!
        until_so waits; $bridge confirm br0; wait $undone; as_before; fails $bridge delete br0; echo whole"#,
    );
    let Some(said) = said else { return };
    says(
        &said,
        &[
            "this would move 10.77.0.2/24 from nic0 to br0",
            "make bridge br0 over nic0, by /run/netplan/90-gpuvm-br0.yaml until the next boot\n",
            "will take the default route by 10.77.0.1 from nic0",
            "making bridge br0 was not confirmed, and there is no terminal to ask at",
            "wait up to 120 s for `gpuvm network host-bridge confirm br0`",
            "\"confirm_within_s\": 1",
            "br0: confirmed",
            "mode 600",
            "nothing is waiting for confirmation",
            "br0 cannot be its name: this host has it, of kind bridge",
            "remove bridge br0, by /run/netplan/90-gpuvm-br0.yaml until the next boot",
            "bridge br0 is gone",
            "gpuvm has no bridge br0",
            "whole",
        ],
    );
}

#[test]
fn a_silent_gateway_and_a_timeout_revert_the_change() {
    let said = script(
        r#"start
        make="create br0 --nic nic0 --address 10.77.0.2/24 --yes"
        fails $bridge $make --gateway 10.77.0.77 --confirm-within 10; as_before
        fails $bridge $make --gateway 10.77.0.1 --confirm-within 10; as_before
        $bridge $make --gateway 10.77.0.1 & made=$!
        until_so waits; $bridge delete br0; fails wait $made; as_before
        $bridge $make --gateway 10.77.0.1 & made=$!
        until_so waits; kill -TERM $made; fails wait $made; as_before
        "$0" recover; echo whole"#,
    );
    let Some(said) = said else { return };
    says(
        &said,
        &[
            "gateway 10.77.0.77 does not answer on br0",
            "nobody confirmed within 10 s that this host can be reached",
            "it is reverted as requested",
            "interrupted by SIGTERM; earlier steps are undone",
            "no change was interrupted",
            "whole",
        ],
    );
}

#[test]
fn killing_the_tool_during_the_wait_reverts_the_change() {
    let said = script(
        r#"start
        make="create br0 --nic nic0 --address 10.77.0.2/24 --gateway 10.77.0.1 --yes --confirm-within"
        guard() { pgrep -f 'host-bridge create br0.*--guard'; }
        # The one that waits at the terminal: the guard goes on, and its time ends.
        $bridge $make 10 & until_so waits; kill -9 $!; fails has nic0 10.77.0.2; as_before
        # The guard: the one that waits takes it back at once.
        $bridge $make 600 & made=$!; until_so waits; kill -9 $(guard); fails wait $made; as_before
        # Both: the next change is refused until it is recovered.
        $bridge $make 600 & made=$!; until_so waits; kill -9 $made $(guard); sleep 0.2; has br0 10.77.0.2/24
        fails $bridge $make 5; "$0" recover; as_before
        # Forgotten and not undone, it can be taken away.
        $bridge $make 600 & made=$!; until_so waits; kill -9 $made $(guard); sleep 0.2; "$0" recover --discard --yes; rm -r /var/lib/gpuvm/host-bridge
        $bridge delete br0 --yes & gone=$!; until_so waits; $bridge confirm; wait $gone; until_so has nic0 10.77.0.2/24
        as_before
        # The end of the terminal ends nothing.
        $bridge $make 600 & made=$!; until_so waits; kill -HUP $made; fails wait $made; $bridge confirm
        until_so test -e /etc/netplan/90-gpuvm-br0.yaml; has br0 10.77.0.2/24; echo whole"#,
    );
    let Some(said) = said else { return };
    says(
        &said,
        &[
            "the process that makes the change was killed (signal: 9 (SIGKILL))",
            "was interrupted",
            "undo: make bridge br0 over nic0",
            "the change continues, and is reverted unless it is confirmed",
            "whole",
        ],
    );
}

#[test]
fn dhcp_and_another_file_about_the_nic() {
    let said = script(
        r#"# Addresses are in another file by another name, whose lists no later file could make shorter.
        cat >/etc/netplan/50-host.yaml <<'END'
network:
  version: 2
  ethernets:
    lan: {match: {name: "nic[0-8]"}, addresses: [10.77.0.2/24], routes: [{to: default, via: 10.77.0.1}]}
END
        ip link delete nic1; start
        ip netns exec lan dnsmasq --interface=sw --bind-interfaces --port=0 --dhcp-range=10.77.0.50,10.77.0.60 \
          --dhcp-option=3,10.77.0.1 --dhcp-host=$(cat /sys/class/net/nic0/address),10.77.0.7 --leasefile-ro --pid-file= \
          --conf-file=/dev/null --user=root
        $bridge create br0 --nic nic0 --dhcp --mtu 1400 --yes & made=$!
        until_so waits; $bridge show; cat /sys/class/net/br0/mtu; $bridge confirm; wait $made
        $bridge delete br0 --yes --json & gone=$!; until_so waits; $bridge confirm; wait $gone; as_before; echo whole"#,
    );
    let Some(said) = said else { return };
    says(
        &said,
        &[
            "the DHCP server sees the MAC address of nic0 as before, and may give br0 another \
             address than 10.77.0.2",
            "10.77.0.7/24, default route",
            "\n1400\n",
            "whole",
        ],
    );
}

#[test]
fn a_vlan_beside_the_nics_own_network() {
    let said = script(
        r#"start
        ip -n lan link add link sw name sw5 type vlan id 5 || { echo none; exit 0; }
        ip -n lan address add 10.79.0.1/24 dev sw5; ip -n lan link set sw5 up
        $bridge create br0 --nic nic0 --vlan 5 --address 10.79.0.2/24 & made=$!
        until_so waits; has nic0 10.77.0.2/24; pings; ip netns exec lan busybox ping -c 1 -W 5 10.79.0.2; $bridge show
        $bridge delete br0; fails wait $made; as_before; fails ip link show nic0.5; echo whole"#,
    );
    let Some(said) = said else { return };
    if said.contains("none") {
        return skip(NO_VLAN);
    }
    says(&said, &["make bridge br0 over nic0", "nic0.5 (nic0)", "10.79.0.2/24", "whole"]);
}

#[test]
fn a_bond_under_the_bridge() {
    let said = script(
        r#"make="create br0 --nic nic0 --nic nic1 --address 10.77.0.2/24 --gateway 10.77.0.1 --bond"
        for mode in 802.3ad active-backup balance-xor balance-rr; do $bridge $make $mode --dry-run; done
        modprobe -q bonding || true
        ip link add probe type bond 2>/dev/null || { echo "no bonds in this kernel"; exit 0; }
        ip link delete probe; ip link delete bond0 2>/dev/null || true; start
        $bridge $make active-backup --yes & made=$!
        until_so waits; pings; $bridge show; cat /proc/net/bonding/bond0
        ip -n lan link set far0 down; until_so pings; ip -n lan link set far0 up
        $bridge confirm; wait $made
        $bridge delete br0 --yes & gone=$!; until_so waits; $bridge confirm; wait $gone; as_before; fails ip link show bond0
        # A switch that speaks LACP.
        for n in 0 1; do ip -n lan link set far$n nomaster; done
        ip -n lan link add lag type bond mode 802.3ad miimon 100; ip -n lan link set lag master sw
        for n in 0 1; do ip -n lan link set far$n down; ip -n lan link set far$n master lag; done
        ip -n lan link set lag up
        # A port carries packets when both ends have agreed on it.
        $bridge $make 802.3ad --yes & made=$!; until_so waits; until_so pings
        grep -A1 'Mode\|Partner Mac' /proc/net/bonding/bond0
        kill -TERM $made; fails wait $made; echo whole"#,
    );
    let Some(said) = said else { return };
    let modes = ["mode: 802.3ad", "mode: active-backup", "mode: balance-xor", "mode: balance-rr"];
    says(&said, &modes);
    if said.contains("no bonds in this kernel") {
        let here = ("GPUVM_BONDS", "here");
        assert!(std::env::var(here.0).is_err(), "user-mode Linux has no bonds: {said}");
        return uml::passes(module_path!(), "a_bond_under_the_bridge", here);
    }
    let up = [
        "bond0 (nic0,nic1)",
        "Bonding Mode: fault-tolerance (active-backup)",
        "MII Polling Interval (ms): 100",
        "Bonding Mode: IEEE 802.3ad Dynamic link aggregation",
        "whole",
    ];
    says(&said, &up);
}

#[test]
fn impossible_requests_and_other_managers_change_nothing() {
    let said = script(
        r#"ip link set nic0 up; ip address add 10.77.0.2/24 dev nic0; ip route add default via 10.77.0.1; files >/run/before
        fails $bridge create br0 --nic nic9 --dhcp; fails $bridge create br0 --nic nic0
        fails $bridge create br0 --nic nic0 --address 10.77.0.2/24 --gateway 10.78.0.1 --mtu 70000
        fails $bridge create br0 --nic nic0 --nic nic1 --bond balance-alb --dhcp
        fails $bridge create br0 --nic nic0 --bond 802.3ad --dhcp
        fails $bridge create a-very-long-name --nic nic0 --dhcp
        # A unit that comes before every other is not overruled silently.
        printf '[Match]\nName=nic*\n' >/etc/systemd/network/00-all.network
        fails $bridge create br0 --nic nic0 --dhcp; rm /etc/systemd/network/00-all.network
        $bridge create br0 --nic nic0 --dhcp --print-for netplan; $bridge create br0 --nic nic0 --dhcp --dry-run --json
        # netplan hands the host to NetworkManager.
        printf 'network: {renderer: NetworkManager}\n' >/etc/netplan/60-nm.yaml
        fails $bridge create br0 --nic nic0 --dhcp; rm /etc/netplan/60-nm.yaml
        same
        # Without netplan's files.
        rm /etc/netplan/*; fails $bridge create br0 --nic nic0 --dhcp
        mkdir /run/NetworkManager; fails $bridge create br0 --nic nic0 --dhcp
        printf 'auto nic0\niface nic0 inet dhcp\n' >/etc/network/interfaces; fails $bridge create br0 --nic nic0 --dhcp
        fails ip link show br0; echo whole"#,
    );
    let Some(said) = said else { return };
    says(
        &said,
        &[
            "this host has no network device nic9",
            "nic0 carries the host's default route, but br0 would have no address",
            "gateway 10.78.0.1 is outside 10.77.0.0/24",
            "MTU 70000 is out of range",
            "it answers for guests with the MAC address of a NIC",
            "a bond needs two NICs; 1 is given",
            "it has 16 characters; the limit is 15",
            "nic0 would be configured by 00-all.network, which comes before \
             10-netplan-00-gpuvm-nic0.network",
            "cat >/etc/netplan/90-gpuvm-br0.yaml",
            "\"do\": \"try\"",
            "is configured by NetworkManager, by netplan, which gpuvm does not change",
            "is configured by nothing that is known here",
            "is configured by NetworkManager, which gpuvm",
            "is configured by ifupdown",
            "hint: `gpuvm man networks` has its configuration",
            "whole",
        ],
    );
}
