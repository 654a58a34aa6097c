//! A guest's NICs with settings of their own, on a real libvirtd, which reads and refuses them.

use crate::support::daemon::{Daemon, daemon};
use crate::support::run;

/// The program on the daemon with the words of a line.
fn gpuvm(daemon: &Daemon, line: &str) -> (i32, String, String) {
    run(&mut daemon.gpuvm(&line.split_whitespace().collect::<Vec<_>>()))
}

/// The output of the program, which must succeed.
fn done(daemon: &Daemon, line: &str) -> String {
    let (code, out, err) = gpuvm(daemon, line);
    assert_eq!(code, 0, "{line}: {out}{err}");
    out
}

/// The interfaces of a guest's definition, each without indentation and its address.
fn nics(daemon: &Daemon, name: &str) -> Vec<String> {
    let (found, xml) = daemon.virsh(&["dumpxml", "--inactive", name]);
    assert!(found, "{xml}");
    let parts = xml.split("<interface type='network'>").skip(1);
    let nics = parts.map(|part| part.split("</interface>").next().unwrap());
    nics.map(|nic| {
        let lines = nic.lines().map(str::trim).filter(|line| !line.starts_with("<address"));
        lines.collect::<String>()
    })
    .collect()
}

#[test]
fn nics_have_the_requested_settings_and_are_tuned_by_network() {
    let Some(daemon) = daemon() else { return };
    let dir = daemon.fresh_dir("guestnics");
    let make =
        "create --name nics-a --no-start --virt-type qemu --pins none --vcpus 4 --memory 64M";
    let make = format!("{make} --disk-dir {}", dir.display());
    done(
        daemon,
        &format!(
            "{make} --network default,mac=52:54:00:AA:11:01,queues=2,mtu=9000,bandwidth=1Gbit/s \
             --network private-net,model=e1000e,outbound=100MB/s:200MB/s:4M --network default"
        ),
    );
    let made = nics(daemon, "nics-a");
    assert_eq!(made.len(), 3, "{made:?}");
    assert_eq!(
        made[0],
        "<mac address='52:54:00:aa:11:01'/><source network='default'/><bandwidth>\
         <inbound average='125000'/><outbound average='125000'/></bandwidth><model type='virtio'/>\
         <driver queues='2'/><mtu size='9000'/>"
    );
    assert!(made[1].contains("<source network='private-net'/>"), "{}", made[1]);
    assert!(made[1].contains("<outbound average='100000' peak='200000' burst='4096'/>"));
    assert!(made[1].contains("<model type='e1000e'/>") && !made[1].contains("<driver"));
    assert!(made[2].contains("<driver queues='4'/>") && !made[2].contains("<mtu"), "{}", made[2]);
    let before = daemon.virsh(&["dumpxml", "--inactive", "nics-a"]).1;
    // The first that is named is the first that is there; a network without a NIC gets one.
    let tune = "tune nics-a --network default,mtu=1400 --network private-net,model=virtio,queues=3";
    let dry = done(daemon, &format!("{tune} --network private-net --dry-run"));
    assert!(dry.contains("network") && dry.contains("mtu 1400"), "{dry}");
    assert_eq!(daemon.virsh(&["dumpxml", "--inactive", "nics-a"]).1, before);
    done(daemon, &format!("{tune} --network private-net --yes"));
    let tuned = nics(daemon, "nics-a");
    assert_eq!(tuned.len(), 4, "{tuned:?}");
    assert_eq!(tuned[0], made[0].replace("9000", "1400"));
    assert!(tuned[1].contains("<model type='virtio'/><driver queues='3'/>"), "{}", tuned[1]);
    assert_eq!(tuned[2], made[2]);
    assert!(
        tuned[3].contains("<source network='private-net'/>") && tuned[3].contains("queues='4'")
    );
    let again = done(daemon, "tune nics-a --network default,mtu=1400 --check");
    assert!(!again.contains("->"), "{again}");
    done(daemon, "undo nics-a --yes");
    assert_eq!(daemon.virsh(&["dumpxml", "--inactive", "nics-a"]).1, before);
    done(daemon, "delete nics-a --yes");
}

#[test]
fn unsupported_network_settings_are_refused_before_any_change() {
    let Some(daemon) = daemon() else { return };
    let make =
        "create --name nics-b --no-start --virt-type qemu --pins none --vcpus 4 --memory 64M";
    let make = format!("{make} --disk-dir {}", daemon.fresh_dir("guestnics-b").display());
    for (nic, said) in [
        ("default,vlan=5", "vlan= cannot be set on network `default` (nat)"),
        ("default,queues=5", "5 queues on network `default`, and a NIC of 4 vCPUs takes 1 to 4"),
        ("default,mtu=70000", "`mtu=70000` is not a number from 68 to 65535"),
        ("default,model=virtio,speed=1", "`speed=1` is none of mac="),
    ] {
        let (code, out, err) = gpuvm(daemon, &format!("{make} --network {nic}"));
        assert!(code == 1 || code == 2, "{nic}: {out}{err}");
        assert!(err.contains(said), "{nic}: {err}");
    }
    assert!(!daemon.virsh(&["list", "--all", "--name"]).1.contains("nics-b"));
}
