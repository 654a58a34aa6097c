//! Outputs of two versions of each program, rebuilt by their sources, and damaged ones; verdicts.

use super::*;
use crate::finding::Says;
use proptest::prelude::*;
use strum::IntoEnumIterator as _;

fn call(tool: Tool) -> Call {
    tool.calls(Suite::Quick, 8, "/var/tmp/x").remove(0)
}

/// The values of an output, as `what device value`.
fn values(tool: Tool, output: &str) -> Vec<String> {
    let taken = read(&call(tool), output).unwrap_or_else(|error| panic!("{tool}: {error}"));
    let device = |one: &Reading| one.device.clone().unwrap_or_else(|| "-".into());
    let text = |one: &Reading| format!("{} {} {}", one.what, device(one), one.value);
    taken.readings.iter().map(text).collect()
}

fn faults(tool: Tool, output: &str) -> Vec<String> {
    let taken = read(&call(tool), output).unwrap();
    taken.faults.iter().map(|one| format!("{}: {}", one.code, one.message)).collect()
}

/// nvbandwidth 0.5 wrote no host name and no samples; 0.8 does.
const NVBANDWIDTH: [&str; 2] = [
    r#"{"nvbandwidth":{"CUDA Runtime Version":12040,"Driver Version":"550.54.15","git_version":"v0.5",
    "testcases":[{"name":"host_to_device_memcpy_ce","status":"Passed","bandwidth_matrix":[["55.2","54.9"]],
    "sum":110.1,"bandwidth_description":"memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)"}]}}"#,
    r#"nvbandwidth Version: v0.8
    {"nvbandwidth":{"Hostname":"vm","bufferSize":512,"testSamples":3,"useMean":false,"version":"v0.8",
    "GPU Device list":["0: NVIDIA H100 80GB HBM3: (00000000:05:00)"],"testcases":[
    {"name":"device_to_device_memcpy_read_ce","status":"Passed","bandwidth_matrix":
    [["N/A","381.5"],["380.9","N/A"]],"max":381.5,"min":380.9,"average":381.2,"sum":762.4},
    {"name":"device_to_host_memcpy_ce","status":"Error","error":"CUDA_ERROR_OUT_OF_MEMORY"},
    {"name":"host_to_device_memcpy_ce","status":"Waived"}]}}"#,
];

#[test]
fn nvbandwidth_is_read_by_gpu_and_by_pair() {
    let [old, new] = NVBANDWIDTH;
    let both = ["host-to-device GPU 0 55.2", "host-to-device GPU 1 54.9"];
    assert_eq!(values(Tool::Nvbandwidth, old), both);
    let pairs =
        ["device-to-device GPU 0 from GPU 1 381.5", "device-to-device GPU 1 from GPU 0 380.9"];
    assert_eq!(values(Tool::Nvbandwidth, new), pairs);
    let failed = "test-failed: device_to_host_memcpy_ce: CUDA_ERROR_OUT_OF_MEMORY";
    assert_eq!(faults(Tool::Nvbandwidth, new), [failed]);
    // Without a GPU it says so in the document.
    let none = r#"{"nvbandwidth":{"error":"No CUDA devices found\n"}}"#;
    let error = read(&call(Tool::Nvbandwidth), none).unwrap_err();
    assert_eq!(error.to_string(), "No CUDA devices found");
}

const ALL_REDUCE: &str = "# nThread 1 nGpus 8 minBytes 1073741824 maxBytes 8589934592 step: 2(factor)
#  Rank  0 Group  0 Pid  4711 on vm device  0 [0x05] NVIDIA H100 80GB HBM3
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
  1073741824     268435456     float     sum      -1   4123.9  260.37  455.65      0   4120.1  260.61  456.07    WRONG
  8589934592    2147483648     float     sum      -1    31880  269.44  471.52      0    31873  269.51  471.64    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 463.718
";

#[test]
fn an_all_reduce_counts_by_its_best_bandwidth_and_its_wrong_values() {
    let good = ALL_REDUCE.replace("WRONG", "0");
    assert_eq!(values(Tool::AllReducePerf, &good), ["all-reduce - 471.64"]);
    assert_eq!(faults(Tool::AllReducePerf, &good), [""; 0]);
    let bad = ALL_REDUCE.replace("WRONG", "3");
    let wrong = "data-wrong: 3 values of the all-reduce are wrong";
    assert_eq!(faults(Tool::AllReducePerf, &bad), [wrong]);
    // A column more or less than known is no number.
    let error = read(&call(Tool::AllReducePerf), &good.replace("4123.9", "x")).unwrap_err();
    assert!(error.to_string().contains("a line of its table"), "{error}");
    let error = read(&call(Tool::AllReducePerf), "# only comments\n").unwrap_err();
    assert_eq!(error.to_string(), "its output has no table");
}

const DCGM: [&str; 2] = [
    r#"{"DCGM GPU Diagnostic":{"test_categories":[{"category":"Deployment","tests":[
    {"name":"Denylist","results":[{"status":"Pass"}]}]},{"category":"Integration","tests":[
    {"name":"PCIe","results":[{"gpu_ids":"0","status":"Pass"},{"gpu_ids":"1","status":"Fail",
    "warnings":["PCIe link width 8 of 16"]}]}]}],"version":"3.1.8"}}"#,
    r#"{"DCGM Diagnostic":{"test_categories":[{"category":"Hardware","tests":[{"name":"pcie",
    "results":[{"entity_group":"GPU","entity_id":0,"status":"Fail","warnings":[
    {"error_id":46,"warning":"Detected a link width of 8"}]}]}]}]}}"#,
];

#[test]
fn a_failed_diagnostic_names_its_gpu_and_code() {
    let [three, four] = DCGM;
    assert_eq!(faults(Tool::Dcgmi, three), ["test-failed: PCIe of GPU 1: PCIe link width 8 of 16"]);
    let said = "test-failed: pcie of GPU 0: Detected a link width of 8 (DCGM 46)";
    assert_eq!(faults(Tool::Dcgmi, four), [said]);
    assert_eq!(faults(Tool::Dcgmi, &three.replace("Fail", "Skip")), [""; 0]);
    assert!(read(&call(Tool::Dcgmi), r#"{"DCGM Diagnostic":{"test_categories":[]}}"#).is_err());
}

const FIO: &str = r#"fio: this platform does not support process shared mutexes
{"fio version":"fio-3.33","jobs":[{"jobname":"gpuvm","error":0,
"read":{"bw_bytes":2500000000,"iops":2384.2}}]}"#;

const STREAM: &str = "Function    Best Rate MB/s  Avg time     Min time     Max time
Copy:          330000.0     0.010     0.009     0.011
Triad:         345678.9     0.012     0.011     0.013
Solution Validates: avg error less than 1.000000e-13 on all three arrays
";

const CYCLICTEST: &str = r#"{"file_version":1,"cmdline:":"cyclictest -q","rt_test_version:":"2.40",
"thread":{"0":{"histogram":{},"cycles":10000,"min":3,"max":41,"avg":5.1,"cpu":0},
"1":{"histogram":{},"cycles":9990,"min":3,"max":27,"avg":4.9,"cpu":1}}}
T: 0 (5855) P:95 I:1000 C:10000 Min: 3 Act: 5 Avg: 5 Max: 41"#;

#[test]
fn disks_memory_and_timers_are_read() {
    assert_eq!(values(Tool::Fio, FIO), ["disk-read - 2.5"]);
    let random = &Tool::Fio.calls(Suite::Quick, 0, "/var/tmp/x")[1];
    assert_eq!(read(random, FIO).unwrap().readings[0].value, 2384.2);
    assert!(read(random, &FIO.replace("\"error\":0", "\"error\":28")).is_err());
    assert_eq!(values(Tool::Stream, STREAM), ["triad - 345.6789"]);
    let wrong = STREAM.replace("Solution Validates", "Failed Validation on array");
    assert_eq!(faults(Tool::Stream, &wrong), ["data-wrong: the results of STREAM are wrong"]);
    assert_eq!(values(Tool::Cyclictest, CYCLICTEST), ["timer-latency - 41"]);
}

const SMI: &str = "<?xml version=\"1.0\" ?>
<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">
<nvidia_smi_log><driver_version>550.54.15</driver_version><attached_gpus>1</attached_gpus>
<gpu id=\"00000000:05:00.0\"><product_name>NVIDIA H100 80GB HBM3</product_name>
<clocks_event_reasons><clocks_event_reason_gpu_idle>Not Active</clocks_event_reason_gpu_idle>
<clocks_event_reason_sw_thermal_slowdown>Active</clocks_event_reason_sw_thermal_slowdown>
</clocks_event_reasons><utilization><gpu_util>7 %</gpu_util></utilization>
<processes><process_info><pid>7</pid><type>C</type></process_info>
<process_info><pid>8</pid><type>G</type></process_info></processes></gpu></nvidia_smi_log>";

#[test]
fn gpus_are_read_in_both_spellings_of_the_driver() {
    let old = SMI.replace("clocks_event_reason", "clocks_throttle_reason");
    for text in [SMI, &old] {
        let gpus = read_gpus(text).unwrap();
        let heat = vec!["heat".to_owned()];
        let [GpuState { name, driver, busy_percent: 7, processes: 1, throttled, .. }] = &gpus[..]
        else {
            panic!("{gpus:?}");
        };
        assert_eq!((name.as_str(), driver.as_str()), ("NVIDIA H100 80GB HBM3", "550.54.15"));
        assert_eq!(*throttled, heat);
    }
    assert!(read_gpus("NVIDIA-SMI has failed").is_err());
}

/// An output of each program.
fn outputs() -> Vec<(Tool, String)> {
    let mut all: Vec<(Tool, String)> =
        NVBANDWIDTH.iter().map(|text| (Tool::Nvbandwidth, (*text).to_owned())).collect();
    all.extend(DCGM.iter().map(|text| (Tool::Dcgmi, (*text).to_owned())));
    let others = [
        (Tool::AllReducePerf, ALL_REDUCE),
        (Tool::Fio, FIO),
        (Tool::Stream, STREAM),
        (Tool::Cyclictest, CYCLICTEST),
    ];
    all.extend(others.map(|(tool, text)| (tool, text.to_owned())));
    all
}

proptest! {
    #[test]
    fn damaged_output_is_refused_or_read_but_never_a_panic(
        which in 0..8_usize,
        at in 0.0..1.0_f64,
        with in prop::sample::select(vec!["", "9e999", "-5", "\"", "}", "nan", "\u{0}"]),
    ) {
        let all = outputs();
        let (tool, text) = &all[which % all.len()];
        let at = (text.len() as f64 * at) as usize;
        let at = (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let end = if with.is_empty() { text.len() } else { at };
        let damaged = format!("{}{with}{}", &text[..at], &text[end..]);
        if let Ok(taken) = read(&call(*tool), &damaged) {
            let is_sound = |one: &Reading| one.value.is_finite() && one.value >= 0.0;
            prop_assert!(taken.readings.iter().all(is_sound), "{damaged}");
        }
        let cut = SMI.char_indices().map(|(at, _)| at).nth(at.min(SMI.len() - 1)).unwrap_or(0);
        let _ = read_gpus(&SMI[..cut]);
    }
}

fn h100s(gpus: usize) -> Shape {
    Shape { model: "NVIDIA H100 80GB HBM3".into(), gpus, driver: "550.54.15".into() }
}

fn reading(what: What, value: f64) -> Reading {
    Reading { what, device: None, value }
}

/// The verdict on a value, with the expected value.
fn verdict(what: What, value: f64, of: (&Shape, Promise), runs: &[Run]) -> (Verdict, Option<f64>) {
    let line = judge(Tool::Fio, reading(what, value), of, (runs, 1.0));
    (line.verdict, line.expected.map(|value| value.round()))
}

#[test]
fn the_expected_value_is_the_smaller_of_path_and_table() {
    let fast = Promise { path_gb_s: Some(48), nvlink: true };
    let slow = Promise { path_gb_s: Some(24), nvlink: true };
    let eight = h100s(8);
    let h2d = What::HostToDevice;
    assert_eq!(verdict(h2d, 50.0, (&eight, fast), &[]), (Verdict::Ok, Some(43.0)));
    assert_eq!(verdict(h2d, 20.0, (&eight, fast), &[]), (Verdict::Low, Some(43.0)));
    assert_eq!(verdict(h2d, 23.0, (&eight, slow), &[]), (Verdict::Ok, Some(22.0)));
    // The whole board has a published number, a part of it the rate of its links.
    assert_eq!(verdict(What::AllReduce, 413.0, (&eight, fast), &[]), (Verdict::Low, Some(414.0)));
    assert_eq!(verdict(What::AllReduce, 340.0, (&h100s(4), fast), &[]), (Verdict::Ok, Some(338.0)));
    // Without NVLink nothing is known, nor of an unknown model.
    let none = Promise::default();
    assert_eq!(verdict(What::AllReduce, 9.0, (&eight, none), &[]), (Verdict::NoReference, None));
    let other = Shape { model: "NVIDIA X".into(), ..h100s(8) };
    assert_eq!(verdict(What::AllReduce, 9.0, (&other, fast), &[]), (Verdict::NoReference, None));
    // A GB200 is no B200.
    let grace = Shape { model: "NVIDIA GB200".into(), ..h100s(4) };
    assert_eq!(verdict(What::AllReduce, 433.0, (&grace, fast), &[]), (Verdict::Ok, Some(432.0)));
}

#[test]
fn a_guest_is_compared_with_its_own_last_runs() {
    let shape = h100s(8);
    let of = (&shape, Promise::default());
    let run = |at_s: u64, shape: Shape, value: f64| Run {
        at_s,
        shape,
        readings: vec![reading(What::Triad, value)],
    };
    let runs = [run(1, h100s(8), 300.0), run(2, h100s(8), 310.0), run(3, h100s(4), 900.0)];
    let triad = What::Triad;
    assert_eq!(verdict(triad, 275.0, of, &runs), (Verdict::Regressed, Some(305.0)));
    assert_eq!(verdict(triad, 292.0, of, &runs), (Verdict::Ok, Some(305.0)));
    // One run is no habit.
    assert_eq!(verdict(triad, 1.0, of, &runs[..1]), (Verdict::NoReference, None));
    // A delay has regressed if it is longer.
    let late = |value: f64| Run {
        at_s: 1,
        shape: h100s(8),
        readings: vec![reading(What::TimerLatency, value)],
    };
    let runs = [late(20.0), late(20.0)];
    assert_eq!(verdict(What::TimerLatency, 40.0, of, &runs).0, Verdict::Regressed);
    assert_eq!(verdict(What::TimerLatency, 10.0, of, &runs).0, Verdict::Ok);
    assert_eq!(median(&[3.0, 1.0]), Some(2.0));
    assert_eq!(median(&[]), None);
}

#[test]
fn every_candidate_is_a_rule() {
    let verify = crate::verify::rules();
    let doctor = <crate::doctor::OfHost as Says>::rules();
    let known: Vec<&str> =
        verify.chain(doctor).chain(crate::load::rules()).map(|rule| rule.id).collect();
    for what in What::iter() {
        for id in candidates(what) {
            assert!(known.contains(&id), "{id}");
        }
    }
}

#[test]
fn programs_are_called_by_absolute_paths_with_fixed_words() {
    let further = ["/opt/x".to_owned()];
    for tool in Tool::iter() {
        assert!(tool.paths(&further).iter().all(|path| path.starts_with('/')));
        assert!(tool.paths(&further)[0].starts_with("/opt/x/"));
        for suite in [Suite::Quick, Suite::Full] {
            for call in tool.calls(suite, 2, "/var/tmp/x") {
                let is_plain = |word: &String| !word.contains([' ', ';', '$', '`', '|']);
                assert!(call.words.iter().all(is_plain) && call.limit_s > 0, "{call:?}");
            }
        }
    }
    let one = Tool::Nvbandwidth.calls(Suite::Quick, 1, "").remove(0);
    assert!(!one.words.iter().any(|word| word.contains("device_to_device")));
}

#[test]
fn faults_of_cards_are_read_and_absent_counters_are_none() {
    let gpu = |width: &str, errors: &str, failure: &str| {
        format!(
            "<nvidia_smi_log><gpu><product_name>NVIDIA H100</product_name><pci>\
             <pci_gpu_link_info><link_widths><max_link_width>16x</max_link_width>\
             <current_link_width>{width}</current_link_width></link_widths></pci_gpu_link_info>\
             </pci><ecc_errors><volatile><dram_uncorrectable>{errors}</dram_uncorrectable>\
             </volatile></ecc_errors><remapped_rows><remapped_row_pending>No</remapped_row_pending>\
             <remapped_row_failure>{failure}</remapped_row_failure></remapped_rows></gpu>\
             </nvidia_smi_log>"
        )
    };
    let faults = |text: &str| read_gpus(text).unwrap().remove(0).faults;
    assert_eq!(faults(&gpu("16x", "0", "No")), [""; 0]);
    assert_eq!(faults(&gpu("N/A", "N/A", "N/A")), [""; 0]);
    let all =
        ["PCIe width 8 of 16", "3 uncorrected DRAM errors", "memory rows could not be remapped"];
    assert_eq!(faults(&gpu("8x", "3", "Yes")), all);
    let none = "<nvidia_smi_log><gpu><remapped_rows>N/A</remapped_rows></gpu></nvidia_smi_log>";
    assert_eq!(faults(none), [""; 0]);
}
