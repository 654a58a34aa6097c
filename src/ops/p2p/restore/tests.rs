//! Restores on a DGX-2 in memory: the steps for each state of a port and of its guests.

use super::*;
use crate::reporter::Answer;
use crate::stage::Stage;
use gpuvm_core::p2p::{Acs, Ats};
use gpuvm_core::topology::DeviceKind;
use gpuvm_core::topology::file::from_json;

const A: &str = "11111111-2222-4333-8444-000000000001";
const GONE: &str = "11111111-2222-4333-8444-000000000002";
const ELSEWHERE: &str = "11111111-2222-4333-8444-00000000000a";

/// The functions of guest `a`, and the port of its NIC.
struct Own {
    gpu: Bdf,
    nic: Bdf,
    port: Bdf,
}

/// A DGX-2 whose NICs have ATS and whose ports have this ACS control.
fn host(ctl: impl Fn(Bdf) -> u16, kernel: &str) -> (Topology, Own) {
    let text = include_str!("../../../../topologies/dgx-2.json");
    let mut parts = from_json(text).unwrap().parts().clone();
    parts.machine.kernel_release = Some(kernel.to_owned());
    for device in &mut parts.devices {
        let is_bridge = device.kind() == DeviceKind::Bridge;
        device.acs = is_bridge.then(|| Acs { cap: 0x5f, ctl: ctl(device.bdf) });
        let present = device.kind() == DeviceKind::Nic;
        device.ats = Some(Ats { present, enabled: false });
        device.devctl = Some(1 << 4);
    }
    let topology = Topology::new(parts).unwrap();
    let nics: Vec<Bdf> = topology.of_kind(DeviceKind::Nic).map(|nic| nic.bdf).collect();
    let pairs = topology.gpus().flat_map(|gpu| nics.iter().map(move |nic| (gpu.bdf, *nic)));
    let (gpu, nic) = { pairs }.find(|(gpu, nic)| topology.meeting(*gpu, *nic).is_some()).unwrap();
    let port = topology.divergence(nic, gpu).unwrap().bdf;
    (topology, Own { gpu, nic, port })
}

/// The definition of `a` with the two.
fn xml(own: &Own) -> String {
    let hostdev = |bdf: Bdf| {
        format!(
            "<hostdev mode='subsystem' type='pci' managed='no'><source><address domain='0' \
             bus='{:#x}' slot='{:#x}' function='{}'/></source></hostdev>",
            bdf.bus(),
            bdf.device(),
            bdf.function()
        )
    };
    let devices = format!("<devices>{}{}</devices></domain>", hostdev(own.gpu), hostdev(own.nic));
    crate::stage::fake::xml("a", A).replace("</domain>", &devices)
}

/// What gpuvm has recorded of a port.
fn record(topology: &Topology, port: Bdf, guests: &[&str]) -> PortRecord {
    let device = topology.device(port).unwrap();
    let ids = (device.vendor, device.device);
    let guests = guests.iter().map(|&guest| guest.to_owned()).collect();
    PortRecord { port, ids, was: 0x1d, set: 0x5d, guests }
}

/// Restores ports of a host on which `a` runs or is off: the steps, and the result.
fn restored(
    ctl: u16,
    runs: bool,
    guests: &[&str],
    change: impl Fn(&mut PortRecord),
) -> (Vec<String>, Restored) {
    let (_, own) = host(|_| 0x1d, "6.12.43+deb13-amd64");
    let (topology, own) = host(|at| if at == own.port { ctl } else { 0x1d }, "6.12.43+deb13-amd64");
    let mut records = vec![record(&topology, own.port, guests)];
    change(&mut records[0]);
    records.retain(|record| !record.guests.is_empty());
    let Stage { dir, fake, world, .. } = Stage::who_says(Answer::Nobody);
    fake.put_xml(&xml(&own), runs);
    // One that libvirt does not know, but a process of the machine is.
    let elsewhere = BTreeSet::from([ELSEWHERE.to_owned()]);
    let (steps, found) = planned(&world.with_topology(topology), &records, &elsewhere).unwrap();
    drop(dir);
    let said = |step: &Step| {
        let text = step.to_string().replace(&own.port.to_string(), "PORT");
        text.split(',').next().unwrap().to_owned()
    };
    (steps.iter().map(said).collect(), found)
}

#[test]
fn a_lost_bit_of_a_running_guest_is_set_again_and_that_of_others_cleared() {
    let same = |_: &mut PortRecord| {};
    let (steps, found) = restored(0x5d, true, &[A], same);
    assert_eq!(steps, [""; 0]);
    assert!(found.argument.unwrap().starts_with("pci=config_acs=1x111x1@0000:"));
    assert_eq!(restored(0x1d, true, &[A], same).0, ["set DT at PORT"]);
    // It is off, or gone.
    assert_eq!(restored(0x5d, false, &[A], same).0, ["clear DT at PORT"]);
    assert_eq!(restored(0x1d, false, &[GONE], same).0, ["clear DT at PORT"]);
    // Another libvirt of this machine runs it.
    assert_eq!(restored(0x5d, false, &[ELSEWHERE], same).0, [""; 0]);
    assert_eq!(restored(0x5d, false, &[&ELSEWHERE.to_uppercase()], same).0, [""; 0]);
    assert_eq!(restored(0x5d, true, &[A, GONE], same).0, ["clear DT at PORT"]);
    // A guest without the option and without a record gets none.
    assert_eq!(restored(0x1d, true, &[], same).0, [""; 0]);
}

#[test]
fn a_port_that_others_have_changed_is_left_and_named() {
    for (ctl, change, part) in [
        (0x7d, (|_| {}) as fn(&mut PortRecord), "ACS control is 0x7d, not 0x5d as set by gpuvm"),
        (0x5d, |record| record.ids.1 ^= 1, "another device"),
        (0x5f, |_| {}, "rejects translated requests"),
    ] {
        let (steps, found) = restored(ctl, true, &[A], change);
        assert_eq!(steps, [""; 0], "{part}");
        let error = found.refuse_left().unwrap_err();
        let said = error.to_string();
        assert!(said.contains("domain `a`") && said.contains(part), "{said}");
    }
}

#[test]
fn the_kernels_argument_is_offered_where_the_kernel_reads_it() {
    let (topology, own) = host(|_| 0x1d, "6.12.22");
    let of = |kernel: &str, ports: &[Bdf]| {
        let mut parts = topology.parts().clone();
        parts.machine.kernel_release = Some(kernel.to_owned());
        argument(&Topology::new(parts).unwrap(), &ports.iter().copied().collect())
    };
    let path = topology.kernel_path(own.port);
    assert!(path.contains('/'), "{path}");
    assert_eq!(of("6.11.0", &[own.port]), Some(format!("pci=config_acs=1x111x1@{path}")));
    let above = topology.path_to_root(own.port)[1];
    let two = [own.port, above];
    assert_eq!((of("6.10.5", &[own.port]), of("6.12.22", &two)), (None, None));
    assert_eq!((of("6.13.10", &two), of("6.15.0", &[])), (None, None));
    for kernel in ["6.12.23", "6.14.2", "6.15.0-rc1", "7.0.0"] {
        assert!(of(kernel, &two).unwrap().contains(';'), "{kernel}");
    }
}
