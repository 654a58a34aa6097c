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

const NOT_KNOWN: &str = "the guest's GPUs are not known";

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
    assert!(ended.is_timeout && ended.status == TIMED_OUT[0]);
    let call = Tool::Stream.calls(Suite::Quick, &Parts::of_gpus(0)).remove(0);
    let why = taken(&call, &ended).unwrap_err();
    assert!(why.contains("took longer than 120 s"), "{why}");
    // The guest's kernel ends programs, too, and a program may have the same status.
    program(dir.path(), "sleeps", "kill -KILL $$");
    let killed = taken(&call, &there.run(&path, &[], 120).unwrap()).unwrap_err();
    // By the agent, the shell in between adds its own word.
    assert!(killed.starts_with("it was killed (status 137), such as for lack"), "{killed}");
    program(dir.path(), "sleeps", "echo no license; exit 124");
    let why = taken(&call, &there.run(&path, &[], 120).unwrap()).unwrap_err();
    assert_eq!(why, "it ended with status 124: no license");
}

#[test]
fn the_reason_of_a_failure_is_the_line_that_says_it() {
    let failed = |tool: Tool, stdout: &str| {
        let how = Executed {
            domain: "g".into(),
            status: 1,
            stdout: stdout.into(),
            stderr: Vec::new(),
            cut_off: false,
        };
        let call = tool.calls(Suite::Quick, &Parts::of_gpus(2)).remove(0);
        taken(&call, &Ended::of(how, Duration::ZERO, 120)).unwrap_err()
    };
    let json = "{\"nvbandwidth\":{\n\"error\":\"CUDA_ERROR_SYSTEM_NOT_READY\"\n}\n}\n";
    let why = "it ended with status 1: CUDA_ERROR_SYSTEM_NOT_READY";
    assert_eq!(failed(Tool::Nvbandwidth, json), why);
    let json = "{\"DCGM Diagnostic\":{\n\"runtime_error\":\"no host engine\"\n}\n}\n";
    assert_eq!(failed(Tool::Dcgmi, json), "it ended with status 1: no host engine");
    let nccl = "vm: Test CUDA failure common.cu:1018 'out of memory'\n \
                .. vm pid 1: Test failure common.cu:795\n .. vm pid 1: Test failure common.cu:1080\n";
    let why = "it ended with status 1: vm: Test CUDA failure common.cu:1018 'out of memory'";
    assert_eq!(failed(Tool::AllReducePerf, nccl), why);
    assert_eq!(failed(Tool::Stream, "no room\n)\n}\n"), "it ended with status 1: no room");
}

#[test]
fn a_guest_that_is_lost_keeps_the_values_until_then() {
    use crate::by_ssh::tests::by_script;
    let stage = guest("disconnected");
    let ssh = tempfile::tempdir().unwrap();
    let inside = Inside::by_ssh(&stage.world, "g", &[], by_script(ssh.path(), "lost"));
    // A lost connection is no fact about the guest.
    let why = "`/bin/ls` in guest `g`: it ended with status 255: lost";
    assert_eq!(inside.rdma_devices().unwrap_err().whole(), why);
    assert_eq!(inside.cells().unwrap_err().whole(), why);
    // Only the program that runs then is not measured.
    let mut report = report();
    let (gpus, quick) = (Gpus::of(&[], NicLinks::default()), Suite::Quick);
    let judged = Judged(Basis::of(&[]));
    let ends = (&inside, &gpus, None);
    let how = (Tool::IbWriteBw, quick);
    let done = rdma::measure(&stage.world, ends, how, false, &mut report, &judged, &|_| {});
    or_skipped(Tool::IbWriteBw, done, &mut report);
    let wanted = request(ssh.path(), &[]);
    let how = (Tool::Stream, &wanted, Promise::default());
    let done = measure_alone(&inside, how, &mut report, &judged, &|_| {});
    or_skipped(Tool::Stream, done, &mut report);
    let of = |tool| NotMeasured { tool, why: why.to_owned() };
    assert_eq!(report.not_measured, [of(Tool::IbWriteBw), of(Tool::Stream)]);
}

/// A report of nothing.
pub(super) fn report() -> MeasureReport {
    MeasureReport {
        domain: "g".into(),
        peer: None,
        suite: Suite::Quick,
        shape: Shape::default(),
        lines: Vec::new(),
        faults: Vec::new(),
        passed: Vec::new(),
        notes: Vec::new(),
        not_measured: Vec::new(),
    }
}

#[test]
fn faulty_and_missing_gpus_are_faults() {
    let stage = guest("connected");
    let dir = programs("55.1", "0");
    let widths = "<pci><pci_gpu_link_info><link_widths><max_link_width>16x</max_link_width>\
                  <current_link_width>1x</current_link_width></link_widths></pci_gpu_link_info></pci>";
    let smi = SMI.replace("BUSY", "0").replace("<processes>", &format!("{widths}<processes>"));
    program(dir.path(), "nvidia-smi", &smi);
    let report = measured(&stage, &request(dir.path(), &[Tool::Nvbandwidth])).unwrap();
    let said = |faults: &[Faulty]| -> Vec<String> {
        faults.iter().map(|one| format!("{}: {}", one.code, one.message)).collect()
    };
    assert_eq!(said(&report.faults), ["gpu-fault: GPU 0: PCIe width 1 of 16"]);
    assert!(report.is_bad() && report.notes.is_empty(), "{report:?}");
    let inside = [dir.path().to_str().unwrap().to_owned()];
    let shown = |smi: &str| {
        program(dir.path(), "nvidia-smi", smi);
        Inside::open(&stage.world, "g", &inside, None).unwrap().gpus().unwrap()
    };
    let gpus = shown(&smi).into_gpus();
    let lacks = "gpu-missing: NVIDIA's driver in the guest shows 1 of its 2 GPUs";
    assert_eq!(said(&faulty(&gpus, 2))[1..], [lacks]);
    assert_eq!(missing(&[], 1).unwrap(), "NVIDIA's driver in the guest shows 0 of its 1 GPU");
    assert_eq!(missing(&gpus, 1), None);
    // One that shows none of them is no note, whatever its status.
    for end in ["exit 0", "exit 6"] {
        let none = shown(&format!("echo 'No devices were found'; {end}"));
        let NoGpus { note, fault, why } = NoGpus::of(&none, 2);
        let lacks = "NVIDIA's driver in the guest shows 0 of its 2 GPUs";
        assert_eq!((note, said(fault.as_slice())), (None, vec![format!("gpu-missing: {lacks}")]));
        assert_eq!(why.unwrap(), lacks);
    }
    assert!(NoGpus::of(&Shown::Gpus(Vec::new()), 2).fault.is_some());
    // Without NVIDIA's driver, how many it shows is not known, which is no fault.
    let NoGpus { note, fault, why } = NoGpus::of(&Shown::NoProgram, 2);
    assert_eq!(note.unwrap(), "the guest has no nvidia-smi, so its 2 GPUs are not known");
    assert_eq!((fault, why.unwrap()), (None, format!("{NOT_KNOWN}: it has no nvidia-smi")));
    let lack = NoGpus::of(&Shown::NoProgram, 0);
    assert!(lack.note.is_none() && lack.why.is_none());
    let NoGpus { note, fault, why } = NoGpus::of(&shown("echo boom >&2; exit 9"), 1);
    let boom = "nvidia-smi: it ended with status 9: boom";
    assert_eq!(
        (note, fault, why),
        (Some(boom.to_owned()), None, Some(format!("{NOT_KNOWN}: {boom}")))
    );
    // A driver that answered before the runs and does not after them has lost a GPU.
    let smi = "echo 'Unable to determine the device handle' >&2; exit 15";
    program(dir.path(), "nvidia-smi", smi);
    let guest = Inside::open(&stage.world, "g", &inside, None).unwrap();
    let mut lost = self::report();
    report_gpus(&guest, gpus, 1, &mut lost);
    let says =
        "gpu-fault: nvidia-smi: it ended with status 15: Unable to determine the device handle";
    assert!(said(&lost.faults).contains(&says.to_owned()), "{lost:?}");
}

#[test]
fn programs_without_their_gpus_are_listed_if_the_driver_fails() {
    let stage = guest("connected");
    let dir = tempfile::tempdir().unwrap();
    program(dir.path(), "nvidia-smi", "exit 9");
    let report = measured(&stage, &request(dir.path(), &[])).unwrap();
    let has = |report: &MeasureReport| {
        let mut tools = report.not_measured.iter().map(|one| one.tool);
        tools.any(|tool| tool == Tool::Nvbandwidth)
    };
    assert!(has(&report) && report.notes == ["nvidia-smi: it ended with status 9"], "{report:?}");
    // A guest without GPUs and their driver needs no such line.
    let none = tempfile::tempdir().unwrap();
    assert!(!has(&measured(&stage, &request(none.path(), &[])).unwrap()));
}

/// A program of perftest: one side waits for the other one's word in a file, and the other prints
/// the report.
const PERFTEST: &str = r#"
case "$*" in
*--out_json*) [ -e "$0.listens" ] || { echo "Couldn't connect to 127.0.0.1:18515
Unable to open file descriptor for socket connection Unable to init the socket connection" >&2; exit 1; }
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
    assert_eq!(inside.gpus().unwrap().into_gpus().len(), 1);
    let program = inside.find(|there| Tool::Nvbandwidth.paths(there)).unwrap().unwrap();
    let call = Tool::Nvbandwidth.calls(Suite::Quick, &Parts::of_gpus(1)).remove(0);
    let ended = inside.run(&program, &call.words, call.limit_s).unwrap();
    assert_eq!(taken(&call, &ended).unwrap().readings[0].value, 55.1);
    assert!(inside.run("/bin/sleep", &["60".to_owned()], 1).unwrap().is_timeout);
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
    // Nor does a directory of them that is none.
    let of_all = path.parent().unwrap();
    std::fs::remove_dir_all(of_all).unwrap();
    std::fs::write(of_all, "").unwrap();
    let steps = crate::delete::delete(&stage.world, &wanted).unwrap().steps();
    assert!(!steps.last().unwrap().to_string().contains("record"), "{steps:?}");
    assert_eq!(stage.caller.heard("so the measurements of this domain stay"), 1);
}

#[test]
fn a_peer_is_entered_only_if_a_program_needs_it() {
    let stage = guest("connected");
    let uuid = "5f4dcc3b-5aa7-4d61-8327-deb882cf99aa";
    let other = stage.fake.definition("g").replace(UUID, uuid).replace(">g<", ">h<");
    let mute = other.replace("state='connected'", "state='disconnected'");
    stage.fake.put_xml(&mute, true);
    let dir = programs("55.1", "0");
    let wanted = |tool| MeasureRequest { peer: Some("h".into()), ..request(dir.path(), &[tool]) };
    let report = measured(&stage, &wanted(Tool::Nvbandwidth)).unwrap();
    assert_eq!(
        (report.peer, report.notes),
        (None, vec!["no program of this run needs guest `h`".to_owned()])
    );
    assert_eq!(code(measured(&stage, &wanted(Tool::IbWriteBw))), "exec-not-running");
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
    assert_eq!(found.gpus, 1);
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
    let tools = [Tool::IbWriteBw, Tool::Nvbandwidth];
    let wanted = MeasureRequest { peer: Some("h".into()), ..request(dir.path(), &tools) };
    let MeasureReport { notes, not_measured, .. } = measured(&stage, &wanted).unwrap();
    let why = "nvidia-smi: No devices were found";
    assert_eq!(notes, [why.to_owned(), format!("guest `h`: {why}")]);
    // The host gives it none either.
    let of_gpus = not_measured.iter().find(|one| one.tool == Tool::Nvbandwidth).unwrap();
    assert_eq!(of_gpus.why, "NVIDIA's driver in the guest shows no GPU");
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
