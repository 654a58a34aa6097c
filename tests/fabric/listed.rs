//! Partitions and module ids as Fabric Manager and NVML report them, and the tables that stand in.

use super::machine::{A100, H100, Machine, set, sets, sizes, source};
use crate::support::project;
use crate::support::tree::host_text;
use serde_json::Value;
use std::time::{Duration, Instant};

#[test]
fn an_h100_host_shows_fabric_managers_partitions_by_nvmls_module_ids() {
    let Some(machine) = Machine::h100() else { return };
    machine.fake("h100", &H100, "active 4\nactive 7");
    let (fabric, notes) = machine.fabric(true);
    assert_eq!(sizes(&fabric), [0, 1, 2, 4, 8]);
    let pairs = [
        set(3, &["9d", "c3"]),
        set(4, &["d1", "df"]),
        set(5, &["1b", "43"]),
        set(6, &["52", "61"]),
    ];
    assert_eq!(sets(&fabric, 2), pairs);
    assert_eq!(sets(&fabric, 1)[0], set(7, &["9d"]));
    let active = fabric["partitions"].as_array().unwrap().iter().filter(|p| p["active"] == true);
    assert_eq!(active.map(|p| p["id"].as_u64().unwrap()).collect::<Vec<_>>(), [4, 7]);
    let ids: Vec<Value> =
        H100.iter().map(|(bus, id)| serde_json::json!([format!("0000:{bus}:00.0"), id])).collect();
    assert_eq!(fabric["module_ids"], Value::Array(ids));
    assert_eq!(
        source(&fabric),
        "partitions read from Fabric Manager; model by FABRIC_MODE=1 in \
         /usr/share/nvidia/nvswitch/fabricmanager.cfg; module ids read from NVML"
    );
    assert!(!notes.contains("Fabric Manager"), "{notes}");
    let calls = [
        "fmLibInit",
        "fmConnect",
        "fmGetSupportedFabricPartitions",
        "fmDisconnect",
        "fmLibShutdown",
    ];
    assert_eq!(machine.journal(), calls);

    let (code, out, err) = machine.gpuvm(&["host", "show"], true);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(
        out.contains("active in Fabric Manager: partition 4 (GPUs 6-7), partition 7 (GPUs 4)"),
        "{out}"
    );
    assert!(!out.contains("fake:"), "the libraries' own output is kept away: {out}");

    // A pair is one of the list, which is no pair of neighbours by published order.
    let (code, out, err) =
        machine.gpuvm(&["plan", "--gpus", "2", "--assume-empty", "--json"], true);
    assert_eq!(code, 0, "{err}");
    let plan: Value = serde_json::from_str(&out).unwrap();
    let text = plan.to_string();
    let offered = pairs
        .iter()
        .any(|(_, buses)| buses.iter().all(|bus| text.contains(&format!("\"0000:{bus}:00.0\""))));
    assert!(offered, "{out}");
}

#[test]
fn an_a100_host_gets_module_ids_from_fabric_manager() {
    let Some(machine) = Machine::new(&host_text("dgx-a100")) else { return };
    // As shipped the switches go along with the GPUs, and no question is asked.
    machine.fake("a100", &A100, "");
    let (fabric, _) = machine.fabric(true);
    assert_eq!(
        (fabric["model"].as_str(), sizes(&fabric)),
        (Some("full-passthrough"), [0, 1, 2, 4, 8])
    );
    assert_eq!(machine.journal(), [""; 0]);

    let machine = machine.mode(1);
    machine.fake("a100", &A100, "fail nvmlInitWithFlags 18\nold");
    let (fabric, notes) = machine.fabric(true);
    assert_eq!(
        (fabric["model"].as_str(), sizes(&fabric)),
        (Some("shared-nvswitch"), [0, 1, 2, 4, 8])
    );
    assert_eq!(sets(&fabric, 2)[0], set(11, &["0f", "4e"]), "modules 1 and 2");
    assert!(source(&fabric).contains("module ids read from Fabric Manager"), "{fabric}");
    assert!(notes.contains("nvmlInitWithFlags: Driver/library version mismatch (18)"), "{notes}");
    assert!(notes.contains("stock QEMU resets"), "{notes}");

    // What failed before Fabric Manager started is not in its list; numbers stay.
    machine.fake("a100", &A100, "gone 1");
    let (fabric, _) = machine.fabric(true);
    assert_eq!(sizes(&fabric), [0, 0, 1, 3, 7]);
    assert_eq!(sets(&fabric, 2)[0].0, 12);
}

#[test]
fn the_tables_are_what_fabric_manager_lists() {
    let h100 = host_text("dgx-h100").replace("product_name = DGXH100", "product_name = SYS-821");
    // A B200 board's switches are no functions on PCI.
    let b200 = h100
        .replace("device = 0x2330", "device = 0x2901")
        .replace("v000010DEd00002330", "v000010DEd00002901")
        .replace("class = 0x068000", "class = 0x088000")
        .replace("bc06sc80i00", "bc08sc80i00");
    let dgx2 = host_text("dgx-2");
    let buses: Vec<String> = {
        let host = gpuvm::topology::file::from_json(
            &std::fs::read_to_string(project().join("topologies/dgx-2.json")).unwrap(),
        );
        host.unwrap().gpus().map(|gpu| gpu.bdf.to_string()[5..7].to_owned()).collect()
    };
    let dgx2_ids: Vec<(&str, u32)> = buses.iter().map(String::as_str).zip(1..).collect();
    for (board, record, ids) in [
        ("h100", h100, &H100[..]),
        ("b200", b200, &H100),
        ("a100", host_text("dgx-a100"), &A100),
        ("hgx2", dgx2, &dgx2_ids),
    ] {
        let Some(machine) = Machine::new(&record) else { return };
        let machine = machine.mode(1);
        machine.fake(board, ids, "");
        let (listed, notes) = machine.fabric(true);
        assert!(!notes.contains("left out"), "{board}: {notes}");
        machine.fake(board, ids, "fail fmLibInit -2");
        let (planned, _) = machine.fabric(true);
        assert!(
            source(&listed).contains("read from Fabric Manager")
                && source(&planned).contains("published table")
        );
        assert_eq!(listed["partitions"], planned["partitions"], "{board}");
        assert_eq!(listed["links"], planned["links"], "{board}");
        let all = listed["partitions"].as_array().unwrap().len();
        assert_eq!(all, if board == "hgx2" { 33 } else { 15 }, "{board}");
        // Numbers begin at 1 on a B200, and modules 1 and 2 are a pair.
        if board == "b200" {
            assert_eq!(sets(&listed, 2)[0], set(4, &["9d", "d1"]));
        }
    }
}

#[test]
fn any_failure_falls_back_to_the_tables_with_a_note() {
    let Some(machine) = Machine::h100() else { return };
    for (setting, reason) in [
        ("fail fmGetSupportedFabricPartitions -8", "NOT_CONFIGURED (-8); it is still starting"),
        (
            "address 10.0.0.5",
            "Fabric Manager at 127.0.0.1 gave no partitions: fmConnect: CONNECTION_NOT_VALID (-9)",
        ),
        ("fail fmConnect -5", "fmConnect: TIMEOUT (-5)"),
        ("fail fmConnect -6", "fmConnect: VERSION_MISMATCH (-6); install libnvfm"),
        ("fail fmGetSupportedFabricPartitions -3", "NOT_SUPPORTED (-3)"),
        ("fail fmGetSupportedFabricPartitions -99", "unknown code -99"),
        ("fail fmLibInit -1", "fmLibInit: BADPARAM (-1)"),
        (
            "count 65",
            "Fabric Manager's partitions are not used: it counts 65 partitions, more than 64",
        ),
        ("count 16", "are not used: partition 0 appears twice"),
        ("crash fmConnect", "its library crashed with SIGABRT"),
    ] {
        machine.fake("h100", &H100, setting);
        let (fabric, notes) = machine.fabric(true);
        assert!(notes.contains(reason), "{setting}: {notes}");
        assert_eq!(sizes(&fabric), [0, 1, 2, 4, 8], "{setting}");
        assert_eq!(sets(&fabric, 2)[0], set(3, &["9d", "c3"]), "{setting}: by NVML");
        assert!(source(&fabric).starts_with("NVLinks and partitions: published table"), "{fabric}");
    }
    // Connections are closed even if the list is refused.
    machine.fake("h100", &H100, "fail fmGetSupportedFabricPartitions -8");
    machine.fabric(true);
    assert_eq!(machine.journal()[3..], ["fmDisconnect", "fmLibShutdown"]);
    // Without NVIDIA's libraries everything is as on a recorded host.
    let (fabric, notes) = machine.fabric(false);
    assert!(notes.contains("Fabric Manager was not asked: libnvfm.so.1"), "{notes}");
    assert!(notes.contains("NVML has no module ids: libnvidia-ml.so.1"), "{notes}");
    assert_eq!(sets(&fabric, 2)[0], set(3, &["1b", "52"]), "by publication");
}

#[test]
fn a_library_that_hangs_is_given_up() {
    let Some(machine) = Machine::h100() else { return };
    machine.fake("h100", &H100, "hang fmGetSupportedFabricPartitions");
    let started = Instant::now();
    let (fabric, notes) = machine.fabric(true);
    assert!(notes.contains("its library did not answer within 4 s"), "{notes}");
    assert_eq!(sizes(&fabric), [0, 1, 2, 4, 8]);
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}

#[test]
fn links_that_are_down_show_as_degraded() {
    let Some(machine) = Machine::h100() else { return };
    machine.fake("h100", &H100, "links 3 16\nfail nvmlDeviceGetModuleId 3");
    let (fabric, notes) = machine.fabric(true);
    assert!(
        notes.contains("NVML has no module id of GPU 0000:1b:00.0: Not Supported (3)"),
        "{notes}"
    );
    // By publication module 3 is the third GPU on the bus.
    assert_eq!(fabric["degraded"][0], "GPU 0000:52:00.0 (module 3) has 16 of 18 NVLinks");
    let links = |id: u64| {
        let all = fabric["partitions"].as_array().unwrap();
        all.iter().find(|p| p["id"] == id).unwrap()["nvlinks_per_gpu"].clone()
    };
    assert_eq!([links(0), links(2), links(3)], [16, 18, 16]);
    let (_, out, _) = machine.gpuvm(&["host", "show"], true);
    assert!(out.contains("Degraded  GPU 0000:52:00.0 (module 3) has 16 of 18 NVLinks"), "{out}");
}
