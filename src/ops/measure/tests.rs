//! A guest whose programs are scripts that print recorded outputs.

use super::*;
use crate::hypervisor::DomainState;
use crate::stage::local::LocalAgent;
use crate::stage::{Stage, UUID, guest};
use gpuvm_core::measure::Verdict;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

const SMI: &str = "cat <<'END'
<nvidia_smi_log><driver_version>550.54.15</driver_version><gpu id='0'>
<product_name>NVIDIA H100 80GB HBM3</product_name><utilization><gpu_util>BUSY %</gpu_util></utilization>
<processes></processes></gpu></nvidia_smi_log>
END";

const NVBANDWIDTH: &str = "cat <<'END'
{\"nvbandwidth\":{\"testcases\":[{\"name\":\"host_to_device_memcpy_ce\",\"status\":\"Passed\",
\"bandwidth_matrix\":[[\"RATE\"]]}]}}
END";

/// Writes a program that is a script.
fn program(dir: &Path, name: &str, script: &str) {
    let path = dir.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn request(dir: &Path, only: &[Tool]) -> MeasureRequest {
    MeasureRequest {
        name: "g".into(),
        suite: Suite::Quick,
        only: only.to_vec(),
        directories: vec![dir.to_str().unwrap().to_owned()],
        ssh: None,
        peer: None,
        file: None,
        force: false,
        threshold: 1.0,
    }
}

fn measured(stage: &Stage, request: &MeasureRequest) -> Result<MeasureReport> {
    measure(&stage.world, request, &|_| {})
}

fn code(result: Result<MeasureReport>) -> &'static str {
    result.unwrap_err().refusal().expect("a refusal").code
}

/// A directory with programs of a guest with one H100.
fn programs(rate: &str, busy: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    program(dir.path(), "nvidia-smi", &SMI.replace("BUSY", busy));
    program(dir.path(), "nvbandwidth", &NVBANDWIDTH.replace("RATE", rate));
    dir
}

#[test]
fn a_value_is_judged_and_remembered() {
    let stage = guest("connected");
    let fast = programs("55.1", "0");
    let bandwidth = [Tool::Nvbandwidth];
    for _ in 0..2 {
        let report = measured(&stage, &request(fast.path(), &bandwidth)).unwrap();
        assert_eq!((report.shape.gpus, report.is_bad(), report.is_empty()), (1, false, false));
        assert_eq!(report.lines[0].verdict, Verdict::Ok, "{report:?}");
    }
    // Above the table, but below its own usual value.
    let slower = programs("49.5", "0");
    let report = measured(&stage, &request(slower.path(), &bandwidth)).unwrap();
    assert_eq!(report.lines[0].verdict, Verdict::Regressed, "{report:?}");
    assert!(report.is_bad());
    let slow = programs("12", "0");
    let report = measured(&stage, &request(slow.path(), &bandwidth)).unwrap();
    assert_eq!(report.lines[0].verdict, Verdict::Low);
    let all = usual(&stage.world, "g").unwrap();
    assert_eq!((all.len(), all[0].runs, all[0].range), (1, 4, [12.0, 55.1]));
    assert_eq!(all[0].reading.value, f64::midpoint(49.5, 55.1));
}

#[test]
fn missing_measurements_are_reported() {
    let stage = guest("connected");
    let dir = programs("55.1", "0");
    program(dir.path(), "stream", "echo no numbers today");
    program(dir.path(), "cyclictest", "echo boom >&2; exit 3");
    program(dir.path(), "dcgmi", "sleep 60");
    let request = request(dir.path(), &[Tool::Stream, Tool::Cyclictest, Tool::AllReducePerf]);
    let report = measured(&stage, &request).unwrap();
    assert!(report.is_empty() && !report.is_bad());
    let why: Vec<String> =
        report.not_measured.iter().map(|one| format!("{}: {}", one.tool, one.why)).collect();
    let expected = [
        "all_reduce_perf: it needs 2 GPUs with NVIDIA's driver; the guest has 1",
        "stream: its output has no triad",
        "cyclictest: it ended with status 3: boom",
    ];
    assert_eq!(why, expected);
    assert_eq!(usual(&stage.world, "g").unwrap(), []);
}

#[test]
fn a_busy_gpu_and_a_second_measurement_are_refused() {
    let stage = guest("connected");
    let dir = programs("55.1", "80");
    let mut wanted = request(dir.path(), &[Tool::Nvbandwidth]);
    assert_eq!(code(measured(&stage, &wanted)), "measure-busy");
    wanted.force = true;
    assert!(!measured(&stage, &wanted).unwrap().is_empty());
    let held = measured::lock(stage.world.state()).unwrap();
    assert_eq!(code(measured(&stage, &wanted)), "measure-running");
    drop(held);
    stage.fake.local.replace(Some(LocalAgent::that_forbids("guest-exec")));
    assert_eq!(code(measured(&stage, &wanted)), "exec-forbidden");
    stage.fake.states.borrow_mut().insert("g".into(), DomainState::ShutOff);
    assert_eq!(code(measured(&stage, &wanted)), "wrong-state");
}

#[test]
fn a_program_beyond_its_limit_is_ended_in_the_guest() {
    let stage = guest("connected");
    let dir = tempfile::tempdir().unwrap();
    program(dir.path(), "sleeps", "exec sleep 60");
    let there = Inside::open(&stage.world, "g", &[], None).unwrap();
    let path = format!("{}/sleeps", dir.path().display());
    let ended = there.run(&path, &[], 1).unwrap();
    assert_eq!(ended.status, TIMED_OUT[0]);
    let call = Tool::Stream.calls(Suite::Quick, &Parts::of_gpus(0)).remove(0);
    let why = taken(&call, &ended).unwrap_err();
    assert!(why.contains("took longer than 120 s"), "{why}");
}

/// A program of perftest: one side waits for the other one's word in a file, and the other prints
/// the report.
const PERFTEST: &str = r#"
case "$*" in
*--out_json*) [ -e "$0.listens" ] || { echo "Couldn't connect to 127.0.0.1:18515" >&2; exit 1; }
  printf '{\n"results": {\n"BW_average": 391.20,\n}\n}\n' ;;
*) sleep 1; touch "$0.listens" ;;
esac"#;

/// A guest whose sysfs has these RDMA devices: programs that list it come first.
fn with_rdma(dir: &Path) {
    program(dir, "ib_write_bw", PERFTEST);
}

#[test]
fn a_guest_without_rdma_devices_is_reported_if_they_are_wanted() {
    let stage = guest("connected");
    let dir = programs("55.1", "0");
    with_rdma(dir.path());
    let report = measured(&stage, &request(dir.path(), &[Tool::IbWriteBw])).unwrap();
    let [one] = &report.not_measured[..] else { panic!("{report:?}") };
    assert_eq!(one.why, "guest `g` has no RDMA device with an active port");
    let mut wanted = request(dir.path(), &[Tool::IbWriteBw]);
    wanted.peer = Some("g".into());
    assert_eq!(code(measured(&stage, &wanted)), "usage");
    wanted.peer = Some("absent".into());
    assert!(measured(&stage, &wanted).is_err());
}

#[test]
fn the_side_that_measures_waits_until_the_other_one_listens() {
    use gpuvm_core::measure::RdmaDevice;
    let stage = guest("connected");
    let dir = tempfile::tempdir().unwrap();
    with_rdma(dir.path());
    let inside = Inside::open(&stage.world, "g", &[], None).unwrap();
    let device = |name: &str| RdmaDevice { name: name.into(), line_gbit_s: Some(400.0), at: None };
    let devices = vec![device("mlx5_0"), device("mlx5_1"), device("mlx5_2")];
    let program = dir.path().join("ib_write_bw").display().to_string();
    let found = rdma::tests::measured(&inside, devices, program);
    let [(first, second), rest @ ..] = &found[..] else { panic!("{found:?}") };
    assert_eq!((first.as_str(), *second), ("mlx5_0 to mlx5_1", 391.2));
    assert_eq!(rest, [("mlx5_2 to mlx5_2".to_owned(), 391.2)]);
}

#[test]
fn programs_run_by_ssh_as_by_the_agent() {
    use crate::by_ssh::tests::by_script;
    let stage = guest("disconnected");
    let dir = programs("55.1", "0");
    let ssh = tempfile::tempdir().unwrap();
    let directories = [dir.path().to_str().unwrap().to_owned()];
    let way = by_script(ssh.path(), "");
    let inside = Inside::by_ssh(&stage.world, "g", &directories, way);
    let (gpus, note) = inside.gpus().unwrap();
    assert_eq!((gpus.len(), note), (1, None));
    let program = inside.find(|there| Tool::Nvbandwidth.paths(there)).unwrap().unwrap();
    let call = Tool::Nvbandwidth.calls(Suite::Quick, &Parts::of_gpus(1)).remove(0);
    let ended = inside.run(&program, &call.words, call.limit_s).unwrap();
    assert_eq!(taken(&call, &ended).unwrap().readings[0].value, 55.1);
    assert_eq!(inside.run("/bin/sleep", &["60".to_owned()], 1).unwrap().status, TIMED_OUT[0]);
    assert!(inside.begin("/bin/sleep", &["60".to_owned()], 60).is_ok());
}

#[test]
fn a_history_that_cannot_be_read_does_not_keep_its_guest() {
    let stage = guest("connected");
    let dir = programs("55.1", "0");
    measured(&stage, &request(dir.path(), &[Tool::Nvbandwidth])).unwrap();
    let uuid = UUID;
    let path = stage.world.state().unwrap().join(format!("measured/{uuid}.json"));
    // Longer than any file that is read.
    std::fs::File::create(&path).unwrap().set_len(100 << 20).unwrap();
    assert!(usual(&stage.world, "g").is_err());
    let wanted = crate::delete::Delete { name: "g".into(), keep_data: false };
    let steps = crate::delete::delete(&stage.world, &wanted).unwrap().steps();
    let last = steps.last().unwrap().to_string();
    assert_eq!(last, format!("delete record {}", path.display()));
}

/// A guest on a DGX-2 with these functions, each below a root port of its own.
fn on_dgx2(functions: &[Bdf]) -> DomainXml {
    let of = |(at, bdf): (usize, &Bdf)| {
        let (index, slot) = (at + 1, at + 2);
        let (bus, device, function) = (bdf.bus(), bdf.device(), bdf.function());
        format!(
            "<controller type='pci' index='{index}' model='pcie-root-port'><address type='pci' \
             domain='0' bus='0' slot='{slot}' function='0'/></controller><hostdev \
             mode='subsystem' type='pci'><source><address domain='0' bus='{bus}' slot='{device}' \
             function='{function}'/></source><address type='pci' domain='0' bus='{index}' slot='0' \
             function='0'/></hostdev>"
        )
    };
    let devices: String = functions.iter().enumerate().map(of).collect();
    DomainXml::parse(&format!(
        "<domain type='kvm'><name>g</name><os><type arch='x86_64' machine='pc-q35-9.0'>hvm</type>\
         </os><devices><controller type='pci' index='0' model='pcie-root'/>{devices}</devices>\
         </domain>"
    ))
    .unwrap()
}

#[test]
fn the_links_of_nics_are_those_of_their_own_paths_and_ways() {
    use gpuvm_core::p2p::{Acs, Ats};
    let text = include_str!("../../../topologies/dgx-2.json");
    let host = |change: &dyn Fn(&mut gpuvm_core::topology::PciDevice)| {
        let mut parts = gpuvm_core::topology::file::from_json(text).unwrap().parts().clone();
        for device in &mut parts.devices {
            let is_bridge = device.kind() == DeviceKind::Bridge;
            device.acs = Some(Acs { cap: 0x5f, ctl: if is_bridge { 0x5d } else { 0 } });
            let present = device.kind() == DeviceKind::Nic;
            device.ats = Some(Ats { present, enabled: present });
            device.devctl = Some(1 << 4);
            change(device);
        }
        Topology::new(parts).unwrap()
    };
    let plain = host(&|_| {});
    let pairs = plain.gpus().flat_map(|gpu| {
        let nics = plain.of_kind(DeviceKind::Nic);
        nics.map(move |nic| (gpu.bdf, nic.bdf))
    });
    let pairs: Vec<(Bdf, Bdf)> = pairs.collect();
    let meets = |(gpu, nic): &&(Bdf, Bdf)| plain.meeting(*gpu, *nic).is_some();
    let (gpu, near) = *pairs.iter().find(meets).unwrap();
    let far = pairs.iter().find(|(one, nic)| *one == gpu && plain.meeting(gpu, *nic).is_none());
    let far = far.unwrap().1;
    let live = on_dgx2(&[gpu, near, far]);
    let at = |bus: u8| Bdf::new(0, bus, 0, 0).unwrap();
    let relation = |host: &Topology, nic: u8| links_of(&live, host).nics.pairs[&(at(nic), at(1))];
    let found = links_of(&live, &plain);
    assert_eq!(found.nics.nics.keys().copied().collect::<Vec<_>>(), [at(2), at(3)]);
    let (first, second) = (relation(&plain, 2), relation(&plain, 3));
    assert!(first.steps.is_some() && first.write.way == Way::Switch, "{first:?}");
    assert!(second.steps.is_none() && second.write.way == Way::Root, "{second:?}");
    // ATS that is off in a running guest counts; where they meet does not depend on it.
    let off = host(&|device| {
        device.ats = device.ats.map(|ats| Ats { enabled: false, ..ats });
    });
    let root = relation(&off, 2);
    assert_eq!((root.steps, root.write.way), (first.steps, Way::Root));
    // A slow NIC is slow in its own relation alone.
    let slow = host(&|device| {
        if device.bdf == far {
            let (speed_dgts, width) = (Some(25), Some(1));
            device.link_max = Some(gpuvm_core::topology::Link { speed_dgts, width });
        }
    });
    let links = links_of(&live, &slow).nics;
    assert_eq!((links.nics[&at(2)], links.nics[&at(3)]), (found.nics.nics[&at(2)], Some(0.1875)));
    assert_eq!(links.pairs[&(at(3), at(1))].write.gb_s, Some(0.1875));
    // A guest without a NIC has no relation, and one without PCI Express no address.
    assert!(links_of(&on_dgx2(&[gpu]), &plain).nics.pairs.is_empty());
    let other = live.text().replace("pc-q35-9.0", "pc-i440fx-9.0");
    assert_eq!(links_of(&DomainXml::parse(&other).unwrap(), &plain).nics, NicLinks::default());
}

#[test]
fn a_driver_that_fails_is_noted_for_each_guest() {
    let stage = guest("connected");
    let uuid = "5f4dcc3b-5aa7-4d61-8327-deb882cf99aa";
    let other = stage.fake.definition("g").replace(UUID, uuid).replace(">g<", ">h<");
    stage.fake.put_xml(&other, true);
    let dir = tempfile::tempdir().unwrap();
    program(dir.path(), "nvidia-smi", "echo 'No devices were found' >&2; exit 6");
    let wanted =
        MeasureRequest { peer: Some("h".into()), ..request(dir.path(), &[Tool::IbWriteBw]) };
    let notes = measured(&stage, &wanted).unwrap().notes;
    let why = "nvidia-smi: it ended with status 6: No devices were found";
    assert_eq!(notes, [why.to_owned(), format!("guest `h`: {why}")]);
}

#[test]
fn findings_on_the_other_guest_explain_rdma_alone() {
    let one = |rule: &str, message: &str| Candidate {
        rule: rule.into(),
        message: message.into(),
        hint: String::new(),
    };
    let found = [
        (true, one("p2p-redirected", "guest `b`: slow")),
        (false, one("link-width", "narrow")),
        (true, one("link-width", "guest `b`: narrow")),
    ];
    let said = |what| -> Vec<String> {
        fitting(&found, what).into_iter().map(|one| one.message).collect()
    };
    assert_eq!(said(What::RdmaWriteGpu), ["guest `b`: slow", "narrow", "guest `b`: narrow"]);
    assert_eq!(said(What::HostToDevice), ["narrow"]);
}
