//! Fabric Manager and NVML on a live machine: the program runs as if on a recorded host, and the
//! dynamic loader finds fakes of both libraries (tests/fake-nvfm, tests/fake-nvml).

mod abi;
mod guests;
mod health;

use crate::support::daemon::namespaces;
use crate::support::tree::{host_text, scratch, unpack};
use crate::support::{known, project, run, skip};
use gpuvm_host::fabric::{Limits, limit_this_process};
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Buses of the GPUs of the DGX H100, with module ids in no order of the bus.
const H100: [(&str, u32); 8] =
    [("1b", 5), ("43", 7), ("52", 6), ("61", 8), ("9d", 1), ("c3", 3), ("d1", 2), ("df", 4)];
/// Buses of the GPUs of the DGX A100, and such module ids.
const A100: [(&str, u32); 8] =
    [("07", 3), ("0f", 1), ("47", 4), ("4e", 2), ("87", 7), ("90", 5), ("b7", 8), ("bd", 6)];

/// The directory of the fakes, compiled once a run.
pub fn fakes() -> &'static Path {
    static FAKES: OnceLock<PathBuf> = OnceLock::new();
    FAKES.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fakes");
        std::fs::create_dir_all(&dir).unwrap();
        // The toolchain that builds the tests; PATH may lack it under sudo.
        let rustc = Path::new(env!("CARGO")).with_file_name("rustc");
        for (crate_dir, library) in
            [("fake-nvfm", "libnvfm.so.1"), ("fake-nvml", "libnvidia-ml.so.1")]
        {
            let made = tempfile::tempdir_in(&dir).unwrap();
            let file = made.path().join(library);
            let mut compile = Command::new(&rustc);
            compile.args(["--edition", "2024", "--crate-type", "cdylib", "-D", "warnings", "-o"]);
            compile.arg(&file).arg(project().join("tests").join(crate_dir).join("lib.rs"));
            let (code, _, err) = run(&mut compile);
            assert_eq!(code, 0, "{crate_dir}: {err}");
            std::fs::rename(file, dir.join(library)).unwrap();
        }
        dir
    })
}

/// A machine that the program runs on.
struct Machine {
    /// Its files: the recorded host, the settings of the fakes, Fabric Manager's configuration, the
    /// admin's file.
    dir: tempfile::TempDir,
}

impl Machine {
    /// A recorded host; none if namespaces are not available.
    fn new(record: &str) -> Option<Machine> {
        if !namespaces() {
            return skip("namespaces need root");
        }
        let dir = scratch();
        unpack(record, &dir.path().join("host")).unwrap();
        std::fs::create_dir(dir.path().join("config")).unwrap();
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        Some(Machine { dir })
    }

    /// A DGX H100 with Fabric Manager in the shared mode.
    fn h100() -> Option<Machine> {
        Some(Machine::new(&host_text("dgx-h100"))?.mode(1))
    }

    /// Sets Fabric Manager's mode.
    fn mode(self, mode: u32) -> Machine {
        let text = format!("# a comment\nFABRIC_MODE={mode}\n");
        std::fs::write(self.dir.path().join("config/fabricmanager.cfg"), text).unwrap();
        self
    }

    /// Configures the fakes.
    fn fake(&self, board: &str, gpus: &[(&str, u32)], more: &str) {
        let gpus: String =
            gpus.iter().map(|(bus, id)| format!("gpu 0000:{bus}:00.0 {id}\n")).collect();
        let text = format!("board {board}\n{gpus}{more}\njournal {}\n", self.path("journal"));
        std::fs::write(self.dir.path().join("fake"), text).unwrap();
        let _ = std::fs::remove_file(self.path("journal"));
    }

    /// The path of one of its files.
    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// The functions that were called, each once.
    fn journal(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("journal")).unwrap_or_default();
        let mut calls: Vec<String> = Vec::new();
        for call in text.lines().filter(|call| call.starts_with("fm")) {
            calls.push(call.to_owned());
        }
        calls
    }

    /// Runs the program there; `libraries`: whether NVIDIA's are installed.
    fn gpuvm(&self, args: &[&str], libraries: bool) -> (i32, String, String) {
        self.gpuvm_on(&[&[env!("CARGO_BIN_EXE_gpuvm")], args].concat(), libraries, "")
    }

    /// Runs a command there with a text on standard input.
    fn gpuvm_on(&self, words: &[&str], libraries: bool, text: &str) -> (i32, String, String) {
        run(&mut self.command(words, libraries, text))
    }

    /// Such a command, whose process number is in the file `pid`.
    fn command(&self, words: &[&str], libraries: bool, text: &str) -> Command {
        std::fs::write(self.path("stdin"), text).unwrap();
        let script = "mount -t tmpfs tmpfs /usr/share; mkdir -p /usr/share/nvidia/nvswitch; cp \
                      \"$DIR\"/config/* /usr/share/nvidia/nvswitch/ 2>/dev/null || true; cp -a \
                      /etc/. \"$DIR\"/etc/ 2>/dev/null || true; mount --bind \"$DIR\"/etc /etc; \
                      mkdir -p \"$DIR\"/var; mount --bind \"$DIR\"/var /var/lib; [ ! -f \
                      \"$DIR\"/kmsg ] || mount --bind \"$DIR\"/kmsg /dev/kmsg; [ ! -d \
                      \"$DIR\"/nvidia ] || { mount -t tmpfs tmpfs /proc/driver; cp -r \
                      \"$DIR\"/nvidia /proc/driver/; }; [ ! -d \"$DIR\"/fm ] || mount --bind \
                      \"$DIR\"/fm /proc/$PPID; [ ! -d \"$DIR\"/sbin ] || { mkdir -p \"$DIR\"/own; \
                      mount --bind /usr/sbin \"$DIR\"/own; cp -asn \"$DIR\"/own/. \"$DIR\"/sbin/ \
                      2>/dev/null || true; mount --bind \"$DIR\"/sbin /usr/sbin; }; echo $$ \
                      >\"$DIR\"/pid; exec \"$@\"";
        let mut command = Command::new(project().join("tests/as-host"));
        command.arg(self.dir.path().join("host")).args(["bash", "-ec", script, "bash"]);
        command.args(words).stdin(std::fs::File::open(self.path("stdin")).unwrap());
        command.env("DIR", self.dir.path()).env("LC_ALL", "C").env_remove("COLUMNS");
        command.env("GPUVM_FAKE_NVIDIA", self.path("fake"));
        if libraries {
            let dirs = format!("{}:{}", self.path("lib"), fakes().display());
            command.env("LD_LIBRARY_PATH", dirs);
        }
        command
    }

    /// Has Fabric Manager of this version run there, and the driver of that one: a process of
    /// root's in the place of another one's, and the system's program that it runs.
    fn with_versions(&self, manager: &str, driver: &str) {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let module = self.dir.path().join("host/sys/module/nvidia");
        let (fm, sbin) = (self.dir.path().join("fm"), self.dir.path().join("sbin"));
        for dir in [&module, &fm, &sbin] {
            std::fs::create_dir_all(dir).unwrap();
        }
        std::fs::write(module.join("version"), format!("{driver}\n")).unwrap();
        let program = sbin.join("nv-fabricmanager");
        std::fs::write(&program, format!("#!/bin/sh\necho 'Version is : {manager}'\n")).unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        std::fs::write(fm.join("comm"), "nv-fabricmanage\n").unwrap();
        std::fs::write(fm.join("status"), "Name:\tnv-fabricmanage\nUid:\t0\t0\t0\t0\n").unwrap();
        let _ = std::fs::remove_file(fm.join("exe"));
        symlink(&program, fm.join("exe")).unwrap();
    }

    /// The fabric that `host show` finds, and its notes.
    fn fabric(&self, libraries: bool) -> (Value, String) {
        let (code, out, err) = self.gpuvm(&["host", "show", "--json"], libraries);
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        let shown: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"));
        (shown["host"]["fabric"].clone(), shown["host"]["notes"].to_string())
    }
}

/// Partitions as number and buses, those of one size.
fn sets(fabric: &Value, size: usize) -> Vec<(u64, Vec<String>)> {
    let partitions = fabric["partitions"].as_array().into_iter().flatten();
    let bus = |gpu: &Value| gpu.as_str().unwrap()[5..7].to_owned();
    partitions
        .map(|p| {
            (p["id"].as_u64().unwrap(), p["gpus"].as_array().unwrap().iter().map(bus).collect())
        })
        .filter(|(_, gpus): &(u64, Vec<String>)| gpus.len() == size)
        .collect()
}

/// A set as [`sets`] shows it.
fn set(id: u64, buses: &[&str]) -> (u64, Vec<String>) {
    (id, buses.iter().map(|bus| (*bus).to_owned()).collect())
}

/// How many partitions there are of each size from 16 down to 1.
fn sizes(fabric: &Value) -> [usize; 5] {
    [16, 8, 4, 2, 1].map(|size| sets(fabric, size).len())
}

/// The source of partitions, in words.
fn source(fabric: &Value) -> &str {
    fabric["source"].as_str().unwrap()
}

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
fn an_a100_host_is_told_addresses_by_fabric_manager() {
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
fn whatever_fails_leaves_the_tables_and_a_note() {
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

#[test]
fn module_ids_are_written_for_gpus_that_leave_the_driver() {
    let record = host_text("dgx-h100").replace("product_name = DGXH100", "product_name = SYS-821");
    let Some(machine) = Machine::new(&record) else { return };
    let machine = machine.mode(1);
    machine.fake("h100", &H100, "");
    let (code, out, err) = machine.gpuvm(&["host", "modules"], true);
    assert_eq!((code, err.as_str()), (0, ""));
    let lines: Vec<Vec<&str>> = out.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(lines[1], ["0", "0000:1b:00.0", "5", "NVML"], "{out}");
    assert!(!Path::new(&machine.path("etc/gpuvm/module-ids.json")).exists());
    let links = "/var/lib/gpuvm/nvlinks.json: NVLinks by NVML\n";
    for (links, said) in [(links, "8 module ids"), ("", "already set; nothing to do")] {
        let (code, _, err) = machine.gpuvm(&["host", "modules", "--write"], true);
        let said = format!("{links}/etc/gpuvm/module-ids.json: {said}\n");
        assert_eq!((code, err), (0, said));
    }
    let written = std::fs::read_to_string(machine.path("etc/gpuvm/module-ids.json")).unwrap();
    let written: Value = serde_json::from_str(&written).unwrap();
    assert_eq!(written["0000:9d:00.0"], 1);

    // All GPUs on vfio-pci: NVML is not asked, and the file is used.
    let vfio = record.replace("/bus/pci/drivers/nvidia\n", "/bus/pci/drivers/vfio-pci\n");
    let Some(later) = Machine::new(&vfio) else { return };
    let later = later.mode(1);
    later.fake("h100", &H100, "");
    let (fabric, _) = later.fabric(true);
    assert_eq!(sizes(&fabric), [0, 1, 0, 0, 0], "nobody knows");
    assert!(source(&fabric).contains("`gpuvm host modules --write`"), "{fabric}");
    let (code, _, err) = later.gpuvm(&["host", "modules", "--write"], true);
    assert_eq!(code, 1);
    assert!(err.contains("no module id is known") && err.contains("hint:"), "{err}");
    let file = later.path("etc/gpuvm/module-ids.json");
    std::fs::create_dir_all(later.path("etc/gpuvm")).unwrap();
    std::fs::copy(machine.path("etc/gpuvm/module-ids.json"), &file).unwrap();
    let (fabric, notes) = later.fabric(true);
    assert_eq!(sets(&fabric, 2)[0], set(3, &["9d", "c3"]));
    assert!(source(&fabric).contains("module ids read from /etc/gpuvm/module-ids.json"));
    assert!(!notes.contains("NVML"), "{notes}");

    std::fs::write(&file, "{\n  \"0000:1b:00.0\": 1,\n  \"0000:43:00.0\": 1\n}\n").unwrap();
    let (code, _, err) = later.gpuvm(&["host", "show"], true);
    assert_eq!(code, 1);
    let said = "/etc/gpuvm/module-ids.json line 3: module id 1 appears twice: 0000:1b:00.0 and \
                0000:43:00.0";
    assert!(err.contains(said), "{err}");
    // A file that others than root may have written is ignored, and so is a path that is not a
    // file.
    std::fs::copy(machine.path("etc/gpuvm/module-ids.json"), &file).unwrap();
    let mode = |mode| std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
    let refused = |said: &str| {
        for verb in [["host", "show"], ["fabric", "show"], ["host", "modules"]] {
            let (code, _, err) = later.gpuvm(&verb, true);
            assert!(code == 1 && err.contains(said), "{verb:?}: {err}");
            let hint = "hint: `ls -l /etc/gpuvm/module-ids.json` shows it; `mv ";
            assert!(err.contains(hint), "{verb:?}: {err}");
        }
    };
    mode(0o666);
    refused("module-ids.json line 1: others than root may have written it: it is of user 0, mode");
    mode(0o644);
    assert_eq!(later.gpuvm(&["host", "show"], true).0, 0);
    std::os::unix::fs::chown(&file, Some(12345), None).unwrap();
    refused("others than root may have written it: it is of user 12345, mode 0644");
    std::fs::remove_file(&file).unwrap();
    nix::unistd::mkfifo(Path::new(&file), nix::sys::stat::Mode::S_IRWXU).unwrap();
    refused("module-ids.json line 1: it is not a regular file");
}

/// A DGX-1 without its name, so that no table knows its links: eight GPUs on the driver `nvidia`,
/// in two packages.
fn bridged() -> String {
    host_text("dgx-1").replace("product_name = NVIDIA DGX-1", "product_name = SYS-4029")
}

/// NVLinks of a fabric as pairs of buses with a count.
fn links(fabric: &Value) -> Vec<(String, String, u64)> {
    let bus = |gpu: &Value| gpu.as_str().unwrap()[5..7].to_owned();
    let all = fabric["links"].as_array().into_iter().flatten();
    all.map(|l| (bus(&l["a"]), bus(&l["b"]), l["links"].as_u64().unwrap())).collect()
}

#[test]
fn bridges_are_read_from_nvml_and_stay_known_on_vfio_pci() {
    let record = bridged();
    let Some(machine) = Machine::new(&record) else { return };
    let gpus: Vec<(&str, u32)> =
        ["06", "07", "0a", "0b", "85", "86", "89", "8a"].map(|bus| (bus, 1)).to_vec();
    // The NVLink bridges are crossed: the first GPU is linked to one of the other package.
    let bridges = "nvlink 0000:06:00.0 0000:8a:00.0 4\nnvlink 0000:07:00.0 0000:0b:00.0 4";
    machine.fake("none", &gpus, bridges);
    let wanted =
        [("06", "8a", 4), ("07", "0b", 4)].map(|(a, b, n)| (a.to_owned(), b.to_owned(), n));
    let (fabric, _) = machine.fabric(true);
    assert_eq!(links(&fabric), wanted);
    assert_eq!(fabric["source"], "NVLinks read from NVML");
    let (_, out, _) = machine.gpuvm(&["host", "matrix", "--tsv"], true);
    let row: Vec<&str> = out.lines().nth(1).unwrap().split('\t').collect();
    assert_eq!(row[8], "NV4", "{out}");
    // The captured host has them, and the linked pair is planned.
    let (code, out, err) = machine.gpuvm(&["host", "capture", "-"], true);
    assert_eq!(code, 0, "{err}");
    let captured: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(links(&captured["host"]["fabric"]), wanted);
    // Drivers that cannot distinguish a switch from a GPU.
    machine.fake("none", &gpus, &format!("{bridges}\nfail nvmlDeviceGetNvLinkRemoteDeviceType 13"));
    assert_eq!(links(&machine.fabric(true).0), wanted);
    // Without NVML nothing is known, and that is reported.
    let (fabric, notes) = machine.fabric(false);
    assert_eq!(links(&fabric), []);
    assert!(notes.contains("NVML has not told the NVLinks: libnvidia-ml.so.1"), "{notes}");

    machine.fake("none", &gpus, bridges);
    let (code, _, err) = machine.gpuvm(&["host", "modules", "--write", "--dry-run"], true);
    let path = "/var/lib/gpuvm/nvlinks.json";
    assert!(err.contains(&format!("would write {path}")), "{code} {err}");
    assert!(!Path::new(&machine.path("var/gpuvm/nvlinks.json")).exists());
    let (code, _, err) = machine.gpuvm(&["host", "modules", "--write"], true);
    assert!(err.contains(&format!("{path}: NVLinks by NVML")), "{code} {err}");
    // A file of a newer version, and a link, stay as they are.
    let stored = machine.path("var/gpuvm/nvlinks.json");
    let good = std::fs::read_to_string(&stored).unwrap();
    let newer = r#"{"format":"gpuvm-nvlinks","version":99}"#;
    std::fs::write(&stored, newer).unwrap();
    let (code, _, err) = machine.gpuvm(&["host", "modules", "--write"], true);
    assert!(code == 1 && err.contains("version 99 is of a newer gpuvm"), "{code} {err}");
    assert!(err.contains("nvlinks.json.old` puts it away"), "{err}");
    assert_eq!(std::fs::read_to_string(&stored).unwrap(), newer);
    std::fs::remove_file(&stored).unwrap();
    std::os::unix::fs::symlink("/nowhere", &stored).unwrap();
    let (code, _, err) = machine.gpuvm(&["host", "modules", "--write"], true);
    assert!(code == 1 && err.contains("is a symbolic link"), "{code} {err}");
    assert!(Path::new(&stored).is_symlink());
    std::fs::remove_file(&stored).unwrap();
    std::fs::write(&stored, good).unwrap();
    // Stored since this boot: NVML is not asked again.
    machine.fake("none", &gpus, "crash nvmlInitWithFlags");
    assert_eq!(links(&machine.fabric(true).0), wanted);

    // All GPUs on vfio-pci: the stored file is used, without NVML.
    let vfio = record.replace("/bus/pci/drivers/nvidia\n", "/bus/pci/drivers/vfio-pci\n");
    let Some(later) = Machine::new(&vfio) else { return };
    later.fake("none", &gpus, "");
    assert_eq!(links(&later.fabric(false).0), []);
    let kept = later.path("var/gpuvm/nvlinks.json");
    std::fs::create_dir_all(later.path("var/gpuvm")).unwrap();
    std::fs::copy(machine.path("var/gpuvm/nvlinks.json"), &kept).unwrap();
    let (fabric, _) = later.fabric(false);
    assert_eq!(links(&fabric), wanted);
    assert_eq!(fabric["source"], format!("NVLinks read from {path}"));
    // Another card at the same address: its links are not those of the previous card.
    let text = std::fs::read_to_string(&kept).unwrap();
    std::fs::write(&kept, text.replacen("7601", "7602", 1).replacen("7605", "7602", 1)).unwrap();
    let (fabric, _) = later.fabric(false);
    assert_eq!(links(&fabric).len(), 2, "told by the other end: {fabric}");
    // Whatever is wrong with it: the same words everywhere, and no error.
    let text = std::fs::read_to_string(machine.path("var/gpuvm/nvlinks.json")).unwrap();
    for (wrong, reason) in [
        ("{".to_owned(), "nvlinks.json line 1: EOF while parsing an object"),
        (text.replace("\"version\": 1", "\"version\": 2"), "version 2 is of a newer gpuvm"),
        (text.replace("gpuvm-nvlinks", "other"), "it is `other` version 1"),
        (text.replace("0000:06:00.0", "0000:06:00.9"), "PCI function 0x9 is above 0x7"),
        (text.replace("0000:06:00.0", "0000:05:00.0"), "this host has no"),
        ("\u{0}".to_owned(), "nvlinks.json"),
    ] {
        std::fs::write(&kept, wrong).unwrap();
        unread(&later, reason, &[]);
    }
    std::fs::write(&kept, &text).unwrap();
    std::fs::set_permissions(&kept, Permissions::from_mode(0o666)).unwrap();
    let others = "others than root may have written it: it is of user 0, mode 0666";
    unread(&later, others, &[]);
    std::fs::remove_file(&kept).unwrap();
    std::fs::create_dir(&kept).unwrap();
    let verbs = [
        &["plan", "--gpus", "2", "--assume-empty", "--json"][..],
        &["capacity", "--assume-empty", "--json"],
        &["host", "doctor", "--json"],
        &["host", "capture", "-"],
    ];
    unread(&later, "it is not a regular file", &verbs);
}

/// Asserts that `host show` says for this reason that the kept NVLinks are not used, and these
/// verbs in the same words.
fn unread(machine: &Machine, reason: &str, verbs: &[&[&str]]) {
    let said = |args: &[&str]| {
        let (code, out, err) = machine.gpuvm(args, false);
        assert!(code == 0 || (code == 3 && args[1] == "doctor"), "{reason}: {args:?}: {err}");
        let text = format!("{out} {err}").replace("\\n", "\n");
        let words: Vec<&str> = text.split_whitespace().collect();
        let text = words.join(" ");
        let end = text.find(" writes it anew while GPUs are bound to `nvidia`");
        let so = text.find("; so the NVLinks kept there");
        let begin = so.and_then(|so| text[..so].rfind("/var/lib/gpuvm/nvlinks.json"));
        let (Some(begin), Some(end)) = (begin, end) else { panic!("{reason}: {args:?}: {text}") };
        text[begin..end].to_owned()
    };
    let shown = said(&["host", "show", "--json"]);
    assert!(shown.contains(reason), "{reason}: {shown}");
    assert!(shown.ends_with(
        "so the NVLinks kept there are not used; `mv /var/lib/gpuvm/nvlinks.json \
         /var/lib/gpuvm/nvlinks.json.old` puts it away; `gpuvm host modules --write`"
    ));
    for args in verbs {
        assert_eq!(said(args), shown, "{args:?}");
    }
}

#[test]
fn nvml_wins_over_the_table_of_a_board() {
    // Full passthrough: only NVML reports that a GPU has lost two links.
    let Some(machine) = Machine::new(&host_text("dgx-a100")) else { return };
    machine.fake("a100", &A100, "links 3 10");
    let (fabric, _) = machine.fabric(true);
    let of = |links: &[(String, String, u64)], bus: &str| {
        let mut all: Vec<u64> =
            links.iter().filter(|(a, b, _)| a == bus || b == bus).map(|(.., n)| *n).collect();
        all.dedup();
        all
    };
    let read = links(&fabric);
    assert_eq!((of(&read, "07"), read.len()), (vec![10], 28), "{fabric}");
    assert!(of(&read, "0f").contains(&12), "{fabric}");
    assert_eq!(fabric["degraded"], serde_json::json!(["GPU 0000:07:00.0 has 10 of 12 NVLinks"]));
    assert!(source(&fabric).ends_with("NVLinks read from NVML"), "{fabric}");
    let whole = |fabric: &Value| {
        let all = fabric["partitions"].as_array().unwrap().clone();
        let whole = all.iter().find(|p| p["gpus"].as_array().unwrap().len() == 8).unwrap();
        whole["nvlinks_per_gpu"].as_u64().unwrap()
    };
    assert_eq!(whole(&fabric), 10);
    // Before Fabric Manager has trained them no link is up: the table counts, and a note says so.
    let down: Vec<String> = A100.iter().map(|(_, id)| format!("links {id} 0")).collect();
    machine.fake("a100", &A100, &down.join("\n"));
    let (fabric, notes) = machine.fabric(true);
    assert_eq!((links(&fabric).len(), whole(&fabric)), (28, 12));
    assert!(notes.contains("NVML shows no NVLink that works"), "{notes}");
}

/// Runs the program on a recorded tree; the exit code, and both outputs concatenated.
fn on(host: &Path, args: &[&str]) -> (i32, String) {
    let (code, out, err) =
        run(crate::support::gpuvm(args).args(["--host", host.to_str().unwrap()]));
    (code, out + &err)
}

#[test]
fn a_gpu_whose_module_is_unknown_is_refused_by_every_verb() {
    let known = host_text("dgx-h100");
    let record = known.replace("product_name = DGXH100", "product_name = SYS-821");
    let (dir, named) = (scratch(), scratch());
    unpack(&record, dir.path()).unwrap();
    unpack(&known, named.path()).unwrap();
    let why = "no partition of this board has 1 GPU: the module ids of 8 GPUs are unknown";
    let how = "`gpuvm host modules --write`";
    let make = ["--no-seed", "--data-size", "none", "--disk-dir", "/a", "--dry-run"];
    let create = [&["create", "--gpus", "1", "--name", "a"][..], &make].concat();
    for verb in [
        &["plan", "--gpus", "1"][..],
        &["plan", "--gpu", "3"],
        &["export", "--gpus", "1", "--name", "a"],
        &create,
    ] {
        let (code, text) = on(dir.path(), verb);
        assert_eq!(code, 1, "{verb:?}: {text}");
        assert!(text.contains(why) && text.contains(how), "{verb:?}: {text}");
        assert!(!text.contains("1 GPU would fit"), "{verb:?}: {text}");
        let (code, text) = on(named.path(), verb);
        assert_eq!(code, 0, "{verb:?} with known ids: {text}");
    }
    let (code, text) = on(dir.path(), &["capacity", "--json"]);
    let sizes: Value = serde_json::from_str(&text).unwrap();
    let sizes: Vec<(u64, u64)> = sizes["sizes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|size| (size["gpus"].as_u64().unwrap(), size["empty"].as_u64().unwrap()))
        .collect();
    assert_eq!((code, sizes), (0, vec![(1, 0), (8, 1)]), "{text}");
    // A definition exported with known ids is checked without them.
    let (code, out, _) = run(crate::support::gpuvm(&["export", "--gpus", "1", "--name", "a"])
        .args(["--host", named.path().to_str().unwrap()]));
    assert_eq!(code, 0);
    let file = dir.path().join("a.xml");
    std::fs::write(&file, out).unwrap();
    let check = ["check", file.to_str().unwrap()];
    let (_, text) = on(dir.path(), &check);
    assert!(text.contains("gpus-no-partition") && text.contains(how), "{text}");
    let (_, text) = on(named.path(), &check);
    assert!(!text.contains("gpus-no-partition"), "{text}");
    // The partition of all GPUs needs no ids.
    let (code, text) = on(dir.path(), &["plan", "--gpus", "8"]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn a_set_that_was_asked_for_split_is_sound_and_one_of_others_is_not() {
    let dir = scratch();
    unpack(&host_text("dgx-2"), dir.path()).unwrap();
    let wish = ["--gpu", "0", "--gpu", "5", "--name", "a"];
    let split = [&wish[..], &["--allow", "split"]].concat();
    assert_eq!(on(dir.path(), &[&["plan"], &wish[..4]].concat()).0, 1);
    let (code, out, err) = run(crate::support::gpuvm(&["export"])
        .args(&split)
        .args(["--host", dir.path().to_str().unwrap()]));
    assert_eq!(code, 0, "{err}");
    let file = dir.path().join("a.xml");
    std::fs::write(&file, &out).unwrap();
    let check = ["check", file.to_str().unwrap()];
    let (code, text) = on(dir.path(), &check);
    assert_eq!(code, 0, "{text}");
    let make = ["--no-seed", "--data-size", "none", "--disk-dir", "/a", "--dry-run"];
    let create = [&["create", "--accept-shared-fabric"][..], &split, &make].concat();
    let (code, text) = on(dir.path(), &create);
    assert_eq!(code, 0, "{text}");
    // A definition without a requested split.
    std::fs::write(&file, out.replace(r#""split":true"#, r#""split":false"#)).unwrap();
    let (code, text) = on(dir.path(), &check);
    assert!(code == 3 && text.contains("gpus-no-partition"), "{text}");
}

/// A URI of libvirt's test driver with one running domain that has these GPUs.
fn guest_with(machine: &Machine, buses: &[&str]) -> String {
    let hostdev = |bus: &&str| {
        format!(
            "<hostdev mode='subsystem' type='pci' managed='no'><source>\
             <address domain='0' bus='0x{bus}' slot='0' function='0'/></source></hostdev>"
        )
    };
    let devices: String = buses.iter().map(hostdev).collect();
    let node = format!(
        "<node><domain type='test'><name>train-a</name>\
         <uuid>6695eb01-f6a4-8304-79aa-97f2502e193f</uuid><memory>65536</memory><vcpu>1</vcpu>\
         <os><type>hvm</type></os><devices>{devices}</devices></domain></node>"
    );
    std::fs::write(machine.path("node.xml"), node).unwrap();
    format!("test://{}", machine.path("node.xml"))
}

/// Runs `fabric show` on this machine with this guest. Returns the exit code and the document.
fn shown(machine: &Machine, uri: &str) -> (i32, Value) {
    let (code, out, err) = machine.gpuvm(&["fabric", "show", "--json", "--connect", uri], true);
    (code, serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}")))
}

#[test]
fn partitions_are_shown_beside_the_guests_that_hold_them_and_stale_ones_released() {
    let Some(machine) = Machine::h100() else { return };
    let module = machine.dir.path().join("host/sys/module/nvidia");
    std::fs::create_dir_all(&module).unwrap();
    std::fs::write(module.join("version"), "570.1\n").unwrap();
    let state = format!("state {}", machine.path("state"));
    machine.fake("h100", &H100, &format!("active 3\nlinks 8 16\n{state}"));
    let verdict = |document: &Value, id: usize| {
        let partition = &document["partitions"][id];
        assert_eq!(partition["id"], id);
        partition["verdict"].as_str().unwrap().to_owned()
    };
    // Modules 1 and 3.
    let uri = guest_with(&machine, &["9d", "c3"]);
    let (code, document) = shown(&machine, &uri);
    assert_eq!((code, verdict(&document, 3).as_str()), (0, "ok"), "{document}");
    assert_eq!(document["partitions"][3]["holder"]["name"], "train-a");
    assert_eq!(
        document["partitions"][3]["gpus"],
        serde_json::json!(["0000:9d:00.0", "0000:c3:00.0"])
    );
    assert_eq!(
        (verdict(&document, 6).as_str(), verdict(&document, 5).as_str()),
        ("degraded", "free")
    );
    let (code, out, err) = machine.gpuvm(&["fabric", "show", "--connect", &uri], true);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let row = out.lines().find(|line| line.starts_with("3 ")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    let wanted = ["3", "1,3", "0000:9d:00.0,0000:c3:00.0", "18", "of", "18", "train-a", "ok"];
    assert_eq!(cells, wanted);
    assert!(out.starts_with("DGX H100: NVSwitches are shared by Fabric Manager"), "{out}");
    // No process of Fabric Manager runs here, although the fake answers.
    assert!(
        out.contains("not checked: whether the running Fabric Manager (version unknown)"),
        "{out}"
    );
    assert_eq!(
        (&document["driver_version"], &document["versions"]),
        (&"570.1".into(), &"not-checked".into())
    );
    // Held.
    let release = |uri: &str, more: &[&str]| {
        let args = [&["fabric", "release", "3", "--yes", "--connect", uri][..], more].concat();
        machine.gpuvm(&args, true)
    };
    let (code, _, err) = release(&uri, &[]);
    assert!(code == 1 && err.contains("partition 3 is held by running domain `train-a`"), "{err}");
    assert!(err.contains("hint: `gpuvm stop ") && err.contains("train-a` ends it"), "{err}");
    // A guest of other GPUs: one is stale, the other missing.
    let uri = guest_with(&machine, &["1b", "43"]);
    let (code, document) = shown(&machine, &uri);
    let verdicts = (verdict(&document, 3), verdict(&document, 5));
    assert_eq!((code, verdicts), (3, ("stale".into(), "missing".into())), "{document}");
    let (code, out, err) = release(&uri, &["--dry-run"]);
    assert!(
        code == 0 && out.contains("deactivate NVLink partition 3 (modules 1, 3)"),
        "{out}{err}"
    );
    let (code, _, err) = release(&uri, &[]);
    assert_eq!(code, 0, "{err}");
    let (_, document) = shown(&machine, &uri);
    assert_eq!(verdict(&document, 3), "free");
    let (code, _, err) = release(&uri, &[]);
    assert!(code == 0 && err.contains("partition 3 is not active; nothing to do"), "{err}");
    // Nothing is asked of it.
    let (code, _, err) = machine.gpuvm(&["fabric", "release", "3", "-c", &uri], true);
    assert!(code == 0 && err.contains("partition 3 is not active; nothing to do"), "{err}");
    let (code, _, err) = machine.gpuvm(&["fabric", "release", "99", "--yes", "-c", &uri], true);
    assert!(code == 1 && err.contains("lists no partition 99, among 15"), "{err}");
    // The partitions of a guest with virtual functions are unknown, so none is called stale.
    machine.fake("h100", &H100, "active 3");
    let (code, document) = shown(&machine, &uri);
    assert_eq!((code, verdict(&document, 3).as_str()), (3, "stale"), "{document}");
    let (_, document) = shown(&machine.mode(2), &uri);
    assert_eq!(verdict(&document, 3), "unknown", "{document}");
}

#[test]
fn a_partition_is_released_where_nobody_can_have_it_though_module_ids_are_unknown() {
    // All GPUs are bound for guests, and of two the admin's file has the module ids.
    let record = host_text("dgx-h100")
        .replace("product_name = DGXH100", "product_name = SYS-821")
        .replace("/bus/pci/drivers/nvidia\n", "/bus/pci/drivers/vfio-pci\n");
    let Some(machine) = Machine::new(&record) else { return };
    let machine = machine.mode(1);
    std::fs::create_dir_all(machine.path("etc/gpuvm")).unwrap();
    let known = "{\"0000:9d:00.0\": 1, \"0000:c3:00.0\": 3}\n";
    std::fs::write(machine.path("etc/gpuvm/module-ids.json"), known).unwrap();
    remembering(&machine, "active 3\nactive 5");
    let release = |id: &str, uri: &str| {
        let (code, _, err) = machine.gpuvm(&["fabric", "release", id, "--yes", "-c", uri], true);
        (code, err)
    };
    // A guest runs with a GPU of unknown module id: it is neither 1 nor 3, and may be 5 or 7.
    let uri = guest_with(&machine, &["1b"]);
    let (_, document) = shown(&machine, &uri);
    let verdict = |id: usize| document["partitions"][id]["verdict"].clone();
    assert_eq!((verdict(3), verdict(5)), ("stale".into(), "unknown".into()), "{document}");
    let (code, err) = release("5", &uri);
    assert!(code == 1 && err.contains("it is unknown whether domain `train-a` uses it"), "{err}");
    for hint in ["once `gpuvm stop ", " 5` deactivates the partition"] {
        assert!(err.contains(hint), "{err}");
    }
    assert_eq!(operations(&machine), [""; 0]);
    let (code, err) = release("3", &uri);
    assert_eq!(code, 0, "{err}");
    assert_eq!(operations(&machine), ["fmDeactivateFabricPartition 3"]);
    // Nobody has any of those that may be 5 or 7.
    let uri = guest_with(&machine, &["9d", "c3"]);
    let (code, err) = release("5", &uri);
    assert_eq!(code, 0, "{err}");
    assert_eq!(operations(&machine)[1..], ["fmDeactivateFabricPartition 5"]);
    // What libvirt calls once a guest is off asks for no more.
    remembering(&machine, "active 6");
    std::fs::remove_file(machine.path("state")).unwrap();
    std::fs::create_dir_all(machine.path("var/gpuvm")).unwrap();
    let uuid = "11111111-2222-3333-4444-555555555555";
    let text = format!(
        "{{\"version\":1,\"partitions\":[{{\"id\":6,\"modules\":[6,8],\"domain\":\"{uuid}\"}}]}}"
    );
    std::fs::write(machine.path("var/gpuvm/fabric.json"), text).unwrap();
    let words = [env!("CARGO_BIN_EXE_gpuvm"), "fabric", "release", "--stdin"];
    let (code, _, err) = machine.gpuvm_on(&words, true, &domain_with(uuid, &["52", "61"]));
    assert_eq!(code, 0, "{err}");
    assert_eq!(operations(&machine)[2..], ["fmDeactivateFabricPartition 6"]);
}

#[test]
fn what_is_still_to_be_deactivated_is_shown_without_fabric_manager() {
    let Some(machine) = Machine::h100() else { return };
    machine.fake("h100", &H100, "address elsewhere");
    let uri = guest_with(&machine, &["1b", "43"]);
    std::fs::create_dir_all(machine.path("var/gpuvm")).unwrap();
    let gone = "11111111-2222-3333-4444-555555555555";
    let text = format!(
        "{{\"version\":1,\"partitions\":[{{\"id\":3,\"modules\":[1,3],\"domain\":\"{gone}\"}},\
         {{\"id\":5,\"modules\":[5,7],\"domain\":\"6695eb01-f6a4-8304-79aa-97f2502e193f\"}}]}}"
    );
    std::fs::write(machine.path("var/gpuvm/fabric.json"), text).unwrap();
    let (code, document) = shown(&machine, &uri);
    assert_eq!(code, 3, "{document}");
    let pending = serde_json::json!([{ "id": 3, "modules": [1, 3], "domain": gone }]);
    assert_eq!((&document["pending"], &document["partitions"]), (&pending, &serde_json::json!([])));
    assert!(document["refusal"].as_str().unwrap().contains("CONNECTION_NOT_VALID (-9)"));
    let (code, _, err) = machine.gpuvm(&["fabric", "show", "-c", &uri], true);
    assert!(
        code == 3 && err.contains("`gpuvm fabric release ") && err.contains(" 3` does it"),
        "{err}"
    );
    let (code, _, err) = machine.gpuvm(&["fabric", "release", "3", "--yes", "-c", &uri], true);
    assert!(code == 1 && err.contains("hint: it does not run, or listens elsewhere"), "{err}");
    std::fs::write(machine.path("var/gpuvm/fabric.json"), "{").unwrap();
    let (code, document) = shown(&machine, &uri);
    assert!(
        code == 3 && document["unread"].as_str().unwrap().contains("fabric.json"),
        "{document}"
    );
    // Somebody else's: it is not read, and what puts it away is said.
    machine.fake("h100", &H100, "");
    let foreign = machine.path("var/gpuvm/fabric.json");
    std::os::unix::fs::chown(&foreign, Some(12345), None).unwrap();
    let text = domain_with("11111111-2222-3333-4444-555555555555", &["9d", "c3"]);
    let words = [env!("CARGO_BIN_EXE_gpuvm"), "fabric", "ensure", "--stdin"];
    let (code, _, err) = machine.gpuvm_on(&words, true, &text);
    assert!(code == 1 && err.contains("it belongs to user 12345"), "{err}");
    assert!(err.contains("hint: `ls -l ") && err.contains(".foreign` puts it away"), "{err}");
    // Virtual functions of its GPUs may be anybody's.
    let machine = machine.mode(2);
    let (code, _, err) = machine.gpuvm(&["fabric", "release", "3", "--yes", "-c", &uri], true);
    assert!(code == 1 && err.contains("FABRIC_MODE=2"), "{err}");
    assert!(err.contains("hint: `fmpm -d 3`"), "{err}");
    // If switches are passed to guests, there is nothing to release.
    let machine = machine.mode(0);
    let (code, document) = shown(&machine, &uri);
    assert_eq!((code, &document["model"]), (0, &"full-passthrough".into()), "{document}");
    let (code, _, err) = machine.gpuvm(&["fabric", "release", "3", "--yes", "-c", &uri], true);
    assert!(code == 1 && err.contains("NVSwitches are not shared"), "{err}");
}

/// The findings of `verify` on partitions: the exit code, findings as domain, rule and message,
/// skipped checks, and the metrics about them.
fn verified(machine: &Machine, uri: &str) -> (i32, Vec<[String; 3]>, String, Vec<String>) {
    let metrics = machine.path("gpuvm.prom");
    let args = ["verify", "--all", "--json", "--metrics", &metrics, "--connect", uri];
    let (code, out, err) = machine.gpuvm(&args, true);
    let all: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let (mut findings, mut untold) = (Vec::new(), String::new());
    for one in all.as_array().unwrap() {
        untold += &one["not_checked"].to_string();
        for finding in one["findings"].as_array().unwrap() {
            if text(&finding["rule"]).starts_with("partition-") {
                findings.push([&one["domain"], &finding["rule"], &finding["message"]].map(text));
            }
        }
    }
    let lines = std::fs::read_to_string(&metrics).unwrap();
    let lines = lines.lines().filter(|line| line.starts_with("gpuvm_fabric_"));
    (code, findings, untold, lines.map(str::to_owned).collect())
}

#[test]
fn verify_finds_what_fabric_show_calls_wrong() {
    let Some(machine) = Machine::h100() else { return };
    let ours = "6695eb01-f6a4-8304-79aa-97f2502e193f";
    let remember = |partition: u32, modules: &str| {
        std::fs::create_dir_all(machine.path("var/gpuvm")).unwrap();
        let text = format!(
            "{{\"version\":1,\"partitions\":[{{\"id\":{partition},\"modules\":[{modules}],\
             \"domain\":\"{ours}\"}}]}}"
        );
        std::fs::write(machine.path("var/gpuvm/fabric.json"), text).unwrap();
    };
    let found = |uri: &str| {
        let (code, found, ..) = verified(&machine, uri);
        let found: Vec<String> = found.iter().map(|one| one.join(" ")).collect();
        (code, found)
    };
    // Modules 6 and 8.
    let uri = guest_with(&machine, &["52", "61"]);
    machine.fake("h100", &H100, "active 6");
    assert_eq!(found(&uri).1, [""; 0]);
    for (fake, wanted) in [
        (
            "",
            "train-a partition-missing NVLink partition 6 (modules 6, 8): expected active, found \
             inactive",
        ),
        (
            "active 6\nlinks 8 16",
            "train-a partition-degraded NVLinks of each GPU of NVLink partition 6 (modules 6, 8): \
             expected 18, found 16",
        ),
        (
            "active 6\nactive 12",
            "train-a partition-overlap NVLink partition 12 (module 6): expected inactive, since \
             domain `train-a` has modules 6, 8, found active",
        ),
        (
            "active 6\nactive 3",
            " partition-stale NVLink partition 3 (modules 1, 3): expected inactive, since no \
             running domain uses it, found active",
        ),
    ] {
        machine.fake("h100", &H100, fake);
        assert_eq!(found(&uri), (3, vec![wanted.to_owned()]), "{fake}");
        let (_, document) = shown(&machine, &uri);
        let rule = wanted.split(' ').nth(1).unwrap();
        let verdict = rule.strip_prefix("partition-").unwrap();
        let verdicts = document["partitions"].as_array().unwrap();
        assert!(verdicts.iter().any(|one| one["verdict"] == verdict), "{verdict}: {document}");
    }
    let (_, _, _, metrics) = verified(&machine, &uri);
    for line in [
        "gpuvm_fabric_manager_up 1",
        "gpuvm_fabric_partitions_pending 0",
        "gpuvm_fabric_partitions{verdict=\"ok\"} 1",
        "gpuvm_fabric_partitions{verdict=\"stale\"} 1",
        "gpuvm_fabric_partitions{verdict=\"missing\"} 0",
    ] {
        assert!(metrics.iter().any(|one| one == line), "{line}: {metrics:#?}");
    }
    let (_, out, _) = machine.gpuvm(&["verify", "--all", "-c", &uri], true);
    assert!(out.contains("\nthis host: 1 difference"), "{out}");
    assert!(out.contains("hint: `gpuvm fabric release ") && out.contains(" 3` deactivates it"));
    // Off: the partitions active for it, and those that may be.
    let uri = off(&machine, &uri);
    remember(6, "6,8");
    machine.fake("h100", &H100, "active 6");
    let stale = "train-a partition-stale NVLink partition 6 (modules 6, 8): expected inactive, \
                 since domain `train-a` is off, found active";
    assert_eq!(found(&uri), (3, vec![stale.to_owned()]));
    machine.fake("h100", &H100, "address elsewhere");
    let (code, found, untold, metrics) = verified(&machine, &uri);
    assert_eq!((code, found[0][1].as_str(), found.len()), (3, "partition-pending", 1));
    assert!(untold.contains("NVLink partitions (Fabric Manager at 127.0.0.1 gave no"), "{untold}");
    let wanted = ["gpuvm_fabric_manager_up 0", "gpuvm_fabric_partitions_pending 1"];
    assert_eq!(metrics, wanted);
    // Virtual GPUs are not judged, and if switches are passed to guests, there is nothing to judge.
    let machine = machine.mode(2);
    let (_, found, untold, metrics) = verified(&machine, &uri);
    assert_eq!((found.len(), metrics.len()), (0, 0));
    assert!(untold.contains("FABRIC_MODE=2"), "{untold}");
    let (_, found, untold, metrics) = verified(&machine.mode(0), &uri);
    assert_eq!((found.len(), metrics.len(), untold.contains("NVLink")), (0, 0, false), "{untold}");
}

/// The machine of libvirt's test driver with its domain off.
fn off(machine: &Machine, uri: &str) -> String {
    let path = uri.strip_prefix("test://").unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    let text = text.replace(
        "<domain type='test'>",
        "<domain type='test' xmlns:test='http://libvirt.org/schemas/domain/test/1.0'>\
         <test:runstate>5</test:runstate>",
    );
    std::fs::write(machine.path("off.xml"), text).unwrap();
    format!("test://{}", machine.path("off.xml"))
}

/// A driver of libvirt in the program's own process, with its files in the machine's directory;
/// none without QEMU.
fn embedded(machine: &Machine) -> Option<String> {
    if !Path::new("/usr/bin/qemu-system-x86_64").exists() {
        return skip("qemu-system-x86_64 is not installed");
    }
    std::fs::create_dir_all(machine.path("root/etc")).unwrap();
    std::fs::create_dir_all(machine.path("disks")).unwrap();
    let conf = "stdio_handler = \"file\"\nsecurity_driver = \"none\"\nremember_owner = 0\n";
    std::fs::write(machine.path("root/etc/qemu.conf"), conf).unwrap();
    let known = Path::new(&machine.path("root")).join(known::EMBEDDED);
    known::give(&known, Path::new(&machine.path("host")));
    Some(format!("qemu:///embed?root={}", machine.path("root")))
}

/// A dry run of `create`: the exit code, the steps, and the other output.
fn dry_run(machine: &Machine, uri: &str, gpus: &str) -> (i32, Vec<String>, String) {
    let disks = machine.path("disks");
    let args = [
        "-c",
        uri,
        "create",
        "--name",
        "a",
        "--gpus",
        gpus,
        "--dry-run",
        "--no-seed",
        "--disk-dir",
        &disks,
        "--os-size",
        "8M",
        "--data-size",
        "none",
    ];
    let (code, out, err) = machine.gpuvm(&args, true);
    (code, out.lines().map(str::to_owned).collect(), err)
}

#[test]
fn a_guest_gets_its_partition_after_the_resets_or_is_refused_before_anything_is_bound() {
    let Some(machine) = Machine::h100() else { return };
    let Some(uri) = embedded(&machine) else { return };
    let state = format!("state {}", machine.path("state"));
    machine.fake("h100", &H100, &state);
    let plan = |more: &[&str]| {
        let args = [&["-c", &uri, "plan", "--gpus", "2"][..], more].concat();
        let (code, out, err) = machine.gpuvm(&args, true);
        assert_eq!(code, 0, "{err}");
        out
    };
    let planned: Value = serde_json::from_str(&plan(&["--json"])).unwrap();
    let partition = planned["placement"]["partition"].as_u64().unwrap();
    let gpus: Vec<&str> = planned["placement"]["devices"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(Value::as_str)
        .collect();
    let module = |bdf: &&str| H100.iter().find(|(bus, _)| *bus == &bdf[5..7]).map(|(_, id)| *id);
    let mut modules: Vec<String> =
        gpus.iter().filter_map(module).map(|id| id.to_string()).collect();
    modules.sort();
    let called = format!("{partition} (modules {})", modules.join(", "));
    let text = plan(&["--explain"]);
    assert!(text.contains(&format!("{called}, activated by gpuvm before the start")), "{text}");
    assert!(!text.contains("has to be activated"), "{text}");

    let (code, steps, err) = dry_run(&machine, &uri, "2");
    assert_eq!(code, 0, "{err}");
    let activation = format!("activate NVLink partition {called}");
    let at = steps.iter().position(|step| *step == activation);
    let at = at.unwrap_or_else(|| panic!("{activation}: {steps:#?}"));
    let resets: Vec<usize> =
        (0..steps.len()).filter(|&step| steps[step].starts_with("reset 0000:")).collect();
    assert_eq!((resets.len(), resets.iter().max() < Some(&at)), (2, true), "{steps:#?}");
    assert!(steps[at + 1..].iter().any(|step| step.starts_with("define domain")), "{steps:#?}");

    // Another one that has one of its GPUs.
    let other = if partition == 1 { 2 } else { 1 };
    machine.fake("h100", &H100, &format!("{state}y\nactive {other}\nactive 0"));
    let (code, _, err) = dry_run(&machine, &uri, "2");
    assert!(code == 1 && err.contains("which is active for no running domain"), "{err}");
    assert!(err.contains(" 0` deactivates it"), "{err}");

    // Fabric Manager is starting, and the step will wait; it is not running.
    machine.fake("h100", &H100, "fail fmGetSupportedFabricPartitions -8");
    let (code, steps, err) = dry_run(&machine, &uri, "2");
    let activates = |step: &String| step.starts_with("activate NVLink partition ");
    assert!(code == 0 && steps.iter().any(activates), "{steps:#?}{err}");
    machine.fake("h100", &H100, "address elsewhere");
    let (code, steps, err) = dry_run(&machine, &uri, "2");
    assert_eq!((code, steps.len()), (1, 0), "{steps:#?}");
    assert!(err.contains("cannot be activated for domain `a`, which has no working CUDA"), "{err}");
    assert!(err.contains("hint: it does not run, or listens elsewhere"), "{err}");
    // A guest without GPUs needs no query.
    let (code, steps, err) = dry_run(&machine, &uri, "0");
    assert!(code == 0 && !steps.iter().any(activates), "{steps:#?}{err}");
    // Virtual GPUs get their partitions by other means.
    let machine = machine.mode(2);
    let (code, steps, err) = dry_run(&machine, &uri, "2");
    assert!(code == 0 && !steps.iter().any(activates), "{steps:#?}{err}");
}

#[test]
fn a_plan_avoids_unused_active_partitions_and_says_what_create_would_refuse() {
    let Some(machine) = Machine::h100() else { return };
    let Some(uri) = embedded(&machine) else { return };
    let run = |verb: &str, size: &str| {
        let (code, out, err) = machine.gpuvm(&["-c", &uri, verb, "--gpus", size], true);
        assert_eq!(code, 0, "{err}");
        out + &err
    };
    let activated = || {
        let (code, steps, err) = dry_run(&machine, &uri, "2");
        assert_eq!(code, 0, "{err}");
        let step = steps.iter().find_map(|step| step.strip_prefix("activate NVLink partition "));
        step.unwrap_or_else(|| panic!("{steps:#?}")).to_owned()
    };
    machine.fake("h100", &H100, "");
    let first = activated();
    let said = "activated by gpuvm before the start";
    assert!(run("plan", "2").contains(&format!("{first}, {said}")), "{}", run("plan", "2"));
    // Nobody runs with it, and another one is free.
    let id = first.split(' ').next().unwrap();
    machine.fake("h100", &H100, &format!("active {id}"));
    let next = activated();
    assert_ne!(next, first);
    assert!(run("plan", "2").contains(&format!("{next}, {said}")), "{}", run("plan", "2"));
    let counted = run("capacity", "2");
    let release = format!(" {id}` deactivates it");
    assert!(counted.contains("`gpuvm fabric release ") && counted.contains(&release), "{counted}");
    // None of this size is; Fabric Manager does not answer.
    for (fake, why) in [
        ("active 3\nactive 4\nactive 5\nactive 6", "`gpuvm fabric release "),
        ("fail fmConnect -9", "fmConnect: CONNECTION_NOT_VALID (-9)"),
    ] {
        machine.fake("h100", &H100, fake);
        let text = run("plan", "2");
        assert!(text.contains("which cannot be activated now") && !text.contains(said), "{text}");
        assert!(text.contains("! partition ") && text.contains(why), "{text}");
        assert!(run("capacity", "2").contains(why), "{}", run("capacity", "2"));
        let (code, _, err) = dry_run(&machine, &uri, "2");
        assert!(code == 1 && err.contains(why), "{err}");
    }
}

/// Has the arguments of a run of the program in a process of this binary that waits for no change
/// longer than 0.3 s.
const HURRIED: &str = "GPUVM_TEST_FABRIC_HURRIED";

/// What another test runs in a process of its own; by itself it does nothing.
#[test]
fn runs_the_program_hurriedly() {
    let Some(line) = std::env::var_os(HURRIED) else { return };
    let change = Duration::from_millis(300);
    limit_this_process(Limits { change, list: Duration::from_secs(20), ..Limits::default() });
    let words = line.to_str().unwrap().split(' ').map(Into::into);
    std::process::exit(
        gpuvm::cli::main([std::ffi::OsString::from("gpuvm")].into_iter().chain(words)).into(),
    );
}

/// A machine on which a guest of one GPU can be made up to its start: its GPUs are bound for
/// guests, as an admin had them.
fn unbound() -> Option<(Machine, String)> {
    let record =
        host_text("dgx-h100").replace("/bus/pci/drivers/nvidia\n", "/bus/pci/drivers/vfio-pci\n");
    let machine = Machine::new(&record)?.mode(1);
    for (bus, _) in H100 {
        let dir = machine.dir.path().join(format!("host/sys/bus/pci/devices/0000:{bus}:00.0"));
        std::fs::write(dir.join("reset"), "").unwrap();
    }
    let uri = embedded(&machine)?;
    Some((machine, uri))
}

/// The words that make a guest of one GPU there.
fn makes(machine: &Machine, uri: &str) -> String {
    let disks = machine.path("disks");
    // The embedded driver has no networks, which `create` would make.
    let text = std::fs::read_to_string(project().join("templates/gpu-guest.xml")).unwrap();
    let (before, rest) = text.split_once("<interface").unwrap();
    let (_, after) = rest.split_once("</interface>").unwrap();
    let template = machine.path("template.xml");
    std::fs::write(&template, [before, after].concat()).unwrap();
    format!(
        "-c {uri} create --name a --gpus 1 --no-seed --no-wait --disk-dir {disks} --os-size 8M \
         --data-size none --template {template}"
    )
}

/// Tells the fakes what to be, in the beginning.
fn afresh(machine: &Machine, more: &str) {
    for file in ["state", "calls"] {
        let _ = std::fs::remove_file(machine.path(file));
    }
    remembering(machine, more);
}

/// That nothing is left of a guest that was not made.
fn nothing_is_left(machine: &Machine, uri: &str, case: &str) {
    let state = std::fs::read_to_string(machine.path("state")).unwrap_or_default();
    assert!(!state.contains("active"), "{case}: {state}");
    let file = std::fs::read_to_string(machine.path("var/gpuvm/fabric.json")).unwrap_or_default();
    assert!(!file.contains("domain"), "{case}: {file}");
    let files = |dir: &str| std::fs::read_dir(machine.path(dir)).map_or(0, |dir| dir.count());
    assert_eq!((files("disks"), files("var/gpuvm/journal")), (0, 0), "{case}");
    let (code, out, _) = machine.gpuvm(&["-c", uri, "list"], true);
    assert_eq!((code, out.as_str()), (0, ""), "{case}");
}

#[test]
fn a_create_is_undone_whatever_fabric_manager_answers_or_does_not() {
    let Some((machine, uri)) = unbound() else { return };
    let line = makes(&machine, &uri);
    let words: Vec<&str> =
        [env!("CARGO_BIN_EXE_gpuvm")].into_iter().chain(line.split(' ')).collect();
    let create = || {
        let (code, _, err) = machine.gpuvm_on(&words, true, "");
        (code, operations(&machine), err)
    };
    // All is well up to the start, which this machine's QEMU cannot do: the partition is given
    // back.
    afresh(&machine, "");
    let (code, calls, err) = create();
    let [activated, deactivated] = &calls[..] else { panic!("{calls:?}: {err}") };
    let id =
        activated.strip_prefix("fmActivateFabricPartition ").unwrap_or_else(|| panic!("{err}"));
    assert_eq!((code, deactivated), (1, &format!("fmDeactivateFabricPartition {id}")), "{err}");
    nothing_is_left(&machine, &uri, "start");
    let text = std::fs::read_to_string(machine.path("calls")).unwrap();
    let number = 1 + text.lines().position(|line| line.contains("fmActivate")).unwrap();
    for code in [-7, -17] {
        // It is not active: refused.
        afresh(&machine, &format!("fail fmActivateFabricPartition {code}"));
        let (ended, calls, err) = create();
        assert_eq!((ended, calls.len()), (1, 1), "{code}: {err}");
        assert!(err.contains(&format!("IN_USE ({code})")), "{err}");
        assert!(err.contains("earlier steps are undone"), "{err}");
        nothing_is_left(&machine, &uri, &code.to_string());
        // It is active all the same: that counts.
        afresh(&machine, &format!("fail_nth {number} {code} done"));
        let (ended, calls, err) = create();
        assert_eq!((ended, calls.len()), (1, 2), "{code}: {err}");
        assert!(err.contains(&format!("IN_USE ({code}), and lists it as active")), "{err}");
        nothing_is_left(&machine, &uri, &format!("{code}, and done"));
    }
    // It hangs: given up after its limit.
    afresh(&machine, "hang fmActivateFabricPartition");
    let own = std::env::current_exe().unwrap();
    let own =
        [own.to_str().unwrap(), "--exact", "fabric::runs_the_program_hurriedly", "--nocapture"];
    let (ended, _, err) = run(machine.command(&own, true, "").env(HURRIED, &line));
    assert_eq!(ended, 1, "{err}");
    assert!(err.contains("library did not answer within 0.3 s"), "{err}");
    nothing_is_left(&machine, &uri, "hang");
}

#[test]
fn a_signal_ends_the_wait_of_a_create_and_recover_goes_on_where_nothing_is_known() {
    let Some((machine, uri)) = unbound() else { return };
    let line = makes(&machine, &uri);
    // Who starts the tests in the background may have it ignored.
    let program = ["env", "--default-signal=INT", env!("CARGO_BIN_EXE_gpuvm")];
    let words: Vec<&str> = program.into_iter().chain(line.split(' ')).collect();
    // Interrupted once it has been asked for; `then`: what Fabric Manager is from that moment on.
    let interrupted = |then: &str| {
        afresh(&machine, "hang fmActivateFabricPartition");
        let mut command = machine.command(&words, true, "");
        let piped = std::process::Stdio::piped;
        let child = command.stdout(piped()).stderr(piped()).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(300);
        while operations(&machine).is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
        remembering(&machine, &format!("hang fmActivateFabricPartition\n{then}"));
        let pid = std::fs::read_to_string(machine.path("pid")).unwrap();
        let (code, _, err) = run(Command::new("kill").args(["-INT", pid.trim()]));
        assert_eq!(code, 0, "{err}");
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, err) = interrupted("");
    assert!(code != Some(0) && err.contains("before Fabric Manager answered, and lists"), "{err}");
    assert!(err.contains("interrupted by SIGINT; earlier steps are undone\n"), "{err}");
    nothing_is_left(&machine, &uri, "SIGINT");
    // Nor does it answer afterwards: that is said, and the journal stays.
    let (code, err) = interrupted("hang fmGetSupportedFabricPartitions");
    assert!(
        code != Some(0) && err.contains("so it is not known whether NVLink partition"),
        "{err}"
    );
    assert!(err.contains("undone only in part") && err.contains("gpuvm recover"), "{err}");
    remembering(&machine, "");
    let (code, out, err) = machine.gpuvm(&["recover", "--yes", "-c", &uri], true);
    assert_eq!(code, 0, "{out}{err}");
    nothing_is_left(&machine, &uri, "recover");
}

#[test]
fn before_h100_only_a_guest_of_all_gpus_is_made_in_the_shared_mode() {
    let Some(machine) = Machine::new(&host_text("dgx-a100")) else { return };
    let machine = machine.mode(1);
    let Some(uri) = embedded(&machine) else { return };
    machine.fake("a100", &A100, "");
    let (code, out, err) = machine.gpuvm(&["-c", &uri, "plan", "--gpus", "2"], true);
    assert!(code == 0 && out.contains("would lose its NVLinks at the start"), "{out}{err}");
    let (code, steps, err) = dry_run(&machine, &uri, "2");
    assert_eq!((code, steps.len()), (1, 0), "{err}");
    assert!(err.contains("would lose its NVLinks at the start"), "{err}");
    assert!(err.contains("hint: all GPUs of the host form one guest that works"), "{err}");
    let (code, steps, err) = dry_run(&machine, &uri, "8");
    let activates = |step: &String| step.starts_with("activate NVLink partition ");
    assert!(code == 0 && steps.iter().any(activates), "{steps:#?}{err}");
}

#[test]
fn nvswitches_that_go_to_the_guest_are_reset_and_refused_while_fabric_manager_has_them() {
    let Some(machine) = Machine::h100() else { return };
    let machine = machine.mode(0);
    let Some(uri) = embedded(&machine) else { return };
    machine.fake("h100", &H100, "");
    let resets = |steps: &[String]| -> Vec<String> {
        steps.iter().filter_map(|step| step.strip_prefix("reset ")).map(str::to_owned).collect()
    };
    // The kernel supports no reset of one.
    let (code, steps, err) = dry_run(&machine, &uri, "8");
    assert_eq!((code, resets(&steps).len()), (0, 8), "{steps:#?}{err}");
    let devices = machine.dir.path().join("host/sys/bus/pci/devices");
    let class = |dir: &Path| std::fs::read_to_string(dir.join("class")).unwrap_or_default();
    let all = std::fs::read_dir(&devices).unwrap().map(|entry| entry.unwrap().path());
    let switches: Vec<PathBuf> = all.filter(|dir| class(dir).starts_with("0x0680")).collect();
    assert_eq!(switches.len(), 4);
    for switch in &switches {
        std::fs::write(switch.join("reset"), "").unwrap();
    }
    let (code, steps, err) = dry_run(&machine, &uri, "8");
    let (all, name) = (resets(&steps), |dir: &PathBuf| dir.file_name().unwrap().to_owned());
    assert_eq!((code, all.len()), (0, 12), "{steps:#?}{err}");
    let last: std::collections::BTreeSet<_> = all[8..].iter().map(Into::into).collect();
    assert_eq!(last, switches.iter().map(name).collect(), "after the GPUs: {steps:#?}");
    // Fabric Manager of the host runs: a process of root, in place of another user's.
    let fm = machine.dir.path().join("fm");
    std::fs::create_dir(&fm).unwrap();
    std::fs::write(fm.join("comm"), "nv-fabricmanage\n").unwrap();
    std::fs::write(fm.join("status"), "Name:\tnv-fabricmanage\nUid:\t0\t0\t0\t0\n").unwrap();
    let (code, steps, err) = dry_run(&machine, &uri, "8");
    assert_eq!((code, steps.len()), (1, 0), "{steps:#?}{err}");
    assert!(err.contains("domain `a` needs NVSwitches, and Fabric Manager of the host"), "{err}");
    assert!(err.contains("4 NVSwitches are bound to the nvidia driver"), "{err}");
    assert!(err.contains("hint: `systemctl disable --now nvidia-fabricmanager`"), "{err}");
    let (code, _, err) = dry_run(&machine, &uri, "1");
    assert!(code == 1 && !err.contains("Fabric Manager of the host"), "in nobody's way: {err}");
    let (code, document) = shown(&machine, "test:///default");
    assert_eq!((code, document["managed_switches"].as_array().unwrap().len()), (0, 4));
    let (_, _, err) = machine.gpuvm(&["fabric", "show", "-c", "test:///default"], true);
    assert!(err.contains("manages 4 NVSwitches, which no guest gets meanwhile"), "{err}");
    // Without the driver it has none of them.
    for switch in &switches {
        std::fs::remove_file(switch.join("driver")).unwrap();
    }
    let (code, _, err) = dry_run(&machine, &uri, "8");
    assert_eq!(code, 0, "{err}");
}

#[test]
fn some_gpus_of_an_h100_keep_their_nvlinks_on_unless_they_are_shared() {
    let Some(machine) = Machine::h100() else { return };
    let machine = machine.mode(0);
    machine.fake("h100", &H100, "");
    let said = "not isolated on NVLink: on H100 and later the NVLinks of a guest with some of the \
                board's GPUs stay on";
    let plan = |gpus: &str| {
        let (code, out, err) = machine.gpuvm(&["plan", "--gpus", gpus, "--assume-empty"], true);
        assert_eq!(code, 0, "{err}");
        out + &err
    };
    assert!(plan("1").contains(said), "{}", plan("1"));
    assert!(!plan("8").contains(said) && !plan("8").contains("bridge"), "{}", plan("8"));
    // It is made for who says that this is known.
    if let Some(uri) = embedded(&machine) {
        let (code, steps, err) = dry_run(&machine, &uri, "1");
        assert_eq!((code, steps.len()), (1, 0), "{err}");
        assert!(err.contains(said) && err.contains("--accept-shared-fabric"), "{err}");
        let (code, _, err) = dry_run(&machine, &uri, "8");
        assert_eq!(code, 0, "{err}");
    }
    // So it is with guests that are there, and not where Fabric Manager keeps the NVSwitches.
    let rules = |machine: &Machine, buses: &[&str]| {
        let xml = domain_with("11111111-2222-3333-4444-555555555555", buses);
        std::fs::write(machine.path("guest.xml"), xml).unwrap();
        let (_, out, err) = machine.gpuvm(&["check", &machine.path("guest.xml"), "--json"], true);
        let text = out + &err;
        assert!(text.contains("gpuvm-check"), "{text}");
        text.contains("nvlinks-not-blocked")
    };
    assert!(rules(&machine, &["9d"]));
    assert!(!rules(&machine, &H100.map(|(bus, _)| bus)));
    assert!(!rules(&machine.mode(1), &["9d"]));
}

#[test]
fn nics_in_front_of_nvswitches_go_to_the_guest_of_all_gpus_alone() {
    let record = host_text("dgx-h100")
        .replace("product_name = DGXH100", "product_name = SYS-821")
        .replace("device = 0x2330", "device = 0x2901")
        .replace("v000010DEd00002330", "v000010DEd00002901")
        .replace("class = 0x068000", "class = 0x088000")
        .replace("bc06sc80i00", "bc08sc80i00");
    let Some(machine) = Machine::new(&record) else { return };
    let machine = machine.mode(0);
    machine.fake("b200", &H100, "");
    let run = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (code, out, err) = machine.gpuvm(&words, true);
        (code, out + &err)
    };
    let (code, text) = run("plan --gpus 8 --assume-empty");
    assert!(
        code == 0 && text.contains("behind a ConnectX-7 bridge, whose functions are not"),
        "{text}"
    );
    // The card of one NIC says that it is the bridge.
    let devices = machine.dir.path().join("host/sys/bus/pci/devices");
    let read =
        |bdf: &str, file: &str| std::fs::read_to_string(devices.join(bdf).join(file)).unwrap();
    let names = std::fs::read_dir(&devices).unwrap().map(|one| one.unwrap().file_name());
    let mut nics: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    nics.retain(|bdf| read(bdf, "class").starts_with("0x02"));
    let number = nics.len();
    nics.retain(|bdf| read(bdf, "vendor").contains("15b3"));
    nics.sort();
    let bridge = nics[0].clone();
    std::fs::write(devices.join(&bridge).join("vpd"), b"\x82\x05\0CX7\xff\x90V5\x06SW_MNG\0")
        .unwrap();
    let slot = &bridge[..10];
    let card = nics.iter().filter(|bdf| bdf.starts_with(slot)).count();
    let (_, text) = run("host show --json");
    let shown: Value = serde_json::from_str(&text).unwrap();
    let fabric = &shown["host"]["fabric"];
    assert_eq!(fabric["bridge"].as_array().map(Vec::len), Some(card), "{fabric}");
    assert!(shown["host"]["notes"].to_string().contains(&format!("({bridge}")), "{text}");
    let (code, text) = run("plan --gpus 8 --assume-empty");
    assert!(code == 0 && text.contains(&format!("whose functions {bridge}")), "{text}");
    let all: String = nics
        .iter()
        .filter(|bdf| bdf.starts_with(slot))
        .map(|bdf| format!(" --nic {bdf}"))
        .collect();
    let (code, text) = run(&format!("plan --gpus 8 --assume-empty{all}"));
    assert!(code == 0 && !text.contains("no NVLink in the guest"), "{text}");
    // No number takes it, and no guest gets it while Fabric Manager of the host needs it.
    let (code, text) = run(&format!("plan --gpus 8 --assume-empty --nic {number}"));
    let why = "is in front of the board's NVSwitches, which Fabric Manager reaches by it";
    assert!(code == 1 && text.contains(&format!("{bridge} {why}")), "{text}");
    let machine = machine.mode(1);
    let (code, _, err) =
        machine.gpuvm(&["plan", "--gpus", "8", "--assume-empty", "--nic", &bridge], true);
    assert!(code == 1 && err.contains(why), "{err}");
}

/// The document of `fabric restore`, with its exit code.
fn restored(machine: &Machine, more: &[&str]) -> (i32, Value) {
    let args = [&["fabric", "restore", "--json"], more].concat();
    let (code, out, err) = machine.gpuvm(&args, true);
    (code, serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}")))
}

/// The operations of Fabric Manager so far, without their time and without lists.
fn operations(machine: &Machine) -> Vec<String> {
    let text = std::fs::read_to_string(machine.path("calls")).unwrap_or_default();
    let calls = text.lines().map(|line| line.split_once(' ').unwrap().1.to_owned());
    calls.filter(|call| !call.starts_with("fmGet")).collect()
}

#[test]
fn a_restarted_fabric_manager_is_told_what_running_guests_have() {
    let Some(machine) = Machine::h100() else { return };
    let uri = guest_with(&machine, &["9d", "c3"]);
    std::fs::create_dir_all(machine.path("var/gpuvm")).unwrap();
    let ours = "6695eb01-f6a4-8304-79aa-97f2502e193f";
    let gone = "11111111-2222-3333-4444-555555555555";
    let text = format!(
        "{{\"version\":1,\"partitions\":[{{\"id\":3,\"modules\":[1,3],\"domain\":\"{ours}\"}},\
         {{\"id\":5,\"modules\":[5,7],\"domain\":\"{gone}\"}}]}}"
    );
    let fresh = |more: &str| {
        let _ = std::fs::remove_file(machine.path("state"));
        let _ = std::fs::remove_file(machine.path("calls"));
        std::fs::write(machine.path("var/gpuvm/fabric.json"), &text).unwrap();
        let (state, calls) = (machine.path("state"), machine.path("calls"));
        machine.fake("h100", &H100, &format!("{more}\nstate {state}\ncalls {calls}"));
    };
    fresh("restart_mode 600000");
    let (code, shown) = restored(&machine, &["--dry-run", "-c", &uri]);
    let wanted = serde_json::json!([3]);
    assert_eq!((code, &shown["partitions"], &shown["made"]), (0, &wanted, &false.into()));
    assert_eq!(operations(&machine), [""; 0]);
    // One runs, one does not.
    let (code, shown) = restored(&machine, &["-c", &uri]);
    assert_eq!((code, &shown["mode"], &shown["partitions"]), (0, &"restart".into(), &wanted));
    assert_eq!(operations(&machine), ["fmSetActivatedFabricPartitions 3"]);
    let kept = std::fs::read_to_string(machine.path("var/gpuvm/fabric.json")).unwrap();
    assert!(kept.contains(ours) && !kept.contains(gone), "{kept}");
    let (code, shown) = restored(&machine, &["-c", &uri]);
    assert_eq!((code, &shown["mode"], &shown["made"]), (0, &"normal".into(), &false.into()));
    // At boot libvirt is not asked: no process of a guest runs, so no partition is active.
    fresh("restart_mode 600000\nstarting_for_ms 300");
    let (code, shown) = restored(&machine, &["--boot", "-c", "test:///nosuch"]);
    assert_eq!((code, &shown["partitions"]), (0, &serde_json::json!([])), "{shown}");
    assert_eq!(operations(&machine), ["fmSetActivatedFabricPartitions"]);
    // Started plainly: missing partitions are activated, and the guest is broken.
    fresh("answers new");
    let (code, out, err) = machine.gpuvm(&["fabric", "restore", "-c", &uri], true);
    assert_eq!(code, 3, "{out}{err}");
    assert!(out.contains("activated partition 3") && err.contains("power cycle it"), "{out}{err}");
    assert_eq!(operations(&machine), ["fmActivateFabricPartition 3"]);
    fresh("address elsewhere");
    let (code, _, err) = machine.gpuvm(&["fabric", "restore", "-c", &uri], true);
    assert!(code == 1 && err.contains("CONNECTION_NOT_VALID (-9)"), "{err}");
}

/// A domain's XML with these GPUs.
fn domain_with(uuid: &str, buses: &[&str]) -> String {
    let hostdev = |bus: &&str| {
        format!(
            "<hostdev mode='subsystem' type='pci' managed='no'><source>\
             <address domain='0' bus='0x{bus}' slot='0' function='0'/></source></hostdev>"
        )
    };
    let devices: String = buses.iter().map(hostdev).collect();
    format!(
        "<domain type='kvm'><name>foreign</name><uuid>{uuid}</uuid>\
         <devices>{devices}</devices></domain>"
    )
}

#[test]
fn a_missing_library_of_nvidia_is_named_and_not_the_guest() {
    let record = host_text("dgx-h100").replace("product_name = DGXH100", "product_name = SYS-821");
    let Some(machine) = Machine::new(&record) else { return };
    let machine = machine.mode(1);
    machine.fake("h100", &H100, "");
    let uuid = "11111111-2222-3333-4444-555555555555";
    let pair = domain_with(uuid, &["9d", "c3"]);
    let ask = |verb: &str| {
        let words = [env!("CARGO_BIN_EXE_gpuvm"), "fabric", verb, "--stdin"];
        machine.gpuvm_on(&words, false, &pair)
    };
    let root = tempfile::tempdir().unwrap();
    let uri = format!("qemu:///embed?root={}", root.path().display());
    let library = "Fabric Manager was not asked: libnvfm.so.1: cannot open shared object file";
    let hint = "development package (nvidia-fabricmanager-dev or -devel) has the library";
    let named = |(code, _, err): (i32, String, String), wanted: i32| {
        assert!(code == wanted && err.contains(library) && err.contains(hint), "{err}");
        assert!(!err.contains("guest") && !err.contains("module"), "{err}");
    };
    named(ask("ensure"), 1);
    for (verb, code) in [(&["show"][..], 3), (&["release", "3", "--yes"], 1), (&["restore"], 1)] {
        let words = [&["fabric"], verb, &["-c", &uri]].concat();
        named(machine.gpuvm(&words, false), code);
    }
    let kept = r#"{"version":1,"partitions":[{"id":3,"modules":[1,3],"domain":"UUID"}]}"#;
    std::fs::create_dir_all(machine.path("var/gpuvm")).unwrap();
    std::fs::write(machine.path("var/gpuvm/fabric.json"), kept.replace("UUID", uuid)).unwrap();
    named(ask("release"), 1);
    // The plan says which library has the module ids.
    let (code, _, err) = machine.gpuvm(&["plan", "--gpus", "2", "--assume-empty"], false);
    assert!(code == 1 && err.contains("NVML has no module ids: libnvidia-ml.so.1"), "{err}");
    assert!(err.contains("libnvidia-ml1 of Debian"), "{err}");
    // Only that one is missing.
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(fakes().join("libnvfm.so.1"), dir.path().join("libnvfm.so.1"))
        .unwrap();
    let words = [env!("CARGO_BIN_EXE_gpuvm"), "fabric", "ensure", "--stdin"];
    let mut command = machine.command(&words, false, &pair);
    let (code, _, err) = run(command.env("LD_LIBRARY_PATH", dir.path()));
    let told = "is unknown: the module ids of 2 of them are not known";
    assert!(code == 1 && err.contains(told), "{err}");
    assert!(err.contains("hint: NVML has no module ids: libnvidia-ml.so.1"), "{err}");
}

#[test]
fn a_guest_that_others_start_gets_its_partition_by_its_xml_alone() {
    let Some(machine) = Machine::h100() else { return };
    let (state, calls) = (machine.path("state"), machine.path("calls"));
    let fake =
        |more: &str| machine.fake("h100", &H100, &format!("{more}\nstate {state}\ncalls {calls}"));
    fake("");
    let uuid = "11111111-2222-3333-4444-555555555555";
    let ask = |verb: &str, xml: &str| {
        // A query to libvirt would fail.
        let program = env!("CARGO_BIN_EXE_gpuvm");
        let words = [program, "fabric", verb, "--stdin", "-c", "test:///nosuch"];
        machine.gpuvm_on(&words, true, xml)
    };
    // Nothing is loaded for a guest without GPUs.
    let (code, out, err) = ask("ensure", &domain_with(uuid, &[]));
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""));
    assert_eq!(std::fs::read_to_string(machine.path("journal")).unwrap_or_default(), "");
    // Nobody could deactivate its partition.
    for verb in ["ensure", "release"] {
        let nameless = domain_with("", &["1b", "43"]).replace("<uuid></uuid>", "");
        let (code, _, err) = ask(verb, &nameless);
        assert_eq!(
            (code, err.contains("domain `foreign` has no UUID")),
            (1, true),
            "{verb}: {err}"
        );
    }
    assert_eq!(std::fs::read_to_string(machine.path("journal")).unwrap_or_default(), "");
    // Modules 1 and 5.
    let (code, _, err) = ask("ensure", &domain_with(uuid, &["9d", "1b"]));
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("domain `foreign` would have no working CUDA: no NVLink"), "{err}");
    assert!(err.contains("2 GPUs of this guest (modules 1, 5)"), "{err}");
    assert!(err.contains("partitions have 1, 2, 4, 8 GPUs"), "{err}");
    assert!(err.contains("hint: partitions of 2 GPUs: modules 1, 3; "), "{err}");
    let pair = domain_with(uuid, &["9d", "c3"]);
    for _ in 0..2 {
        let (code, _, err) = ask("ensure", &pair);
        assert_eq!(code, 0, "{err}");
    }
    assert_eq!(operations(&machine), ["fmActivateFabricPartition 3"]);
    let kept = std::fs::read_to_string(machine.path("var/gpuvm/fabric.json")).unwrap();
    assert!(kept.contains(uuid), "{kept}");
    // It is another guest's: refused, and the hook that libvirt calls after the refusal takes
    // nothing from its owner.
    let other = domain_with("22222222-2222-3333-4444-555555555555", &["9d", "c3"]);
    let (code, _, err) = ask("ensure", &other);
    assert!(
        code == 1
            && err.contains("partition 3 is active")
            && err.contains("hint: `gpuvm fabric release "),
        "{err}"
    );
    assert_eq!(ask("release", &other).0, 0);
    assert_eq!(operations(&machine).len(), 1);
    let (code, _, err) = ask("release", &pair);
    assert_eq!(code, 0, "{err}");
    assert_eq!(operations(&machine)[1..], ["fmDeactivateFabricPartition 3"]);
    for (xml, why) in [
        ("<domain><devices>".to_owned(), "domain XML"),
        (String::new(), "domain XML"),
        (format!("<domain>{}</domain>", " ".repeat(17 << 20)), "more than the limit"),
    ] {
        let (code, _, err) = ask("ensure", &xml);
        assert!(code == 1 && err.contains(why), "{err}");
    }
    fake("address elsewhere");
    let (code, _, err) = ask("ensure", &pair);
    assert!(code == 1 && err.contains("CONNECTION_NOT_VALID (-9)"), "{err}");
}

/// Only the command line counts: libvirt's hook has the environment of its daemon.
#[test]
fn what_never_asks_libvirt_takes_no_record_and_no_connection_to_another_machine() {
    let Some(machine) = Machine::h100() else { return };
    let calls = machine.path("calls");
    machine.fake("h100", &H100, &format!("state {}\ncalls {calls}", machine.path("state")));
    let pair = domain_with("11111111-2222-3333-4444-555555555555", &["9d", "c3"]);
    let record = machine.path("record");
    for verb in ["ensure --stdin", "release --stdin", "restore --boot"] {
        for (more, why) in [
            (["--host", record.as_str()], "changes the machine, so it does not take --host"),
            (["--connect", "qemu+ssh://gpu9.invalid/system"], "gpu9.invalid/system may be of"),
            (["-c", "qemu+ext:///system?command=/bin/false"], "may be of another"),
            (["-c", "an-alias"], "an-alias may be of another"),
        ] {
            let words: Vec<&str> = [env!("CARGO_BIN_EXE_gpuvm"), "fabric"]
                .into_iter()
                .chain(verb.split(' '))
                .chain(more)
                .collect();
            let (code, out, err) = machine.gpuvm_on(&words, true, &pair);
            assert_eq!((code, out.as_str()), (2, ""), "{words:?}: {err}");
            assert!(err.contains(why) && err.contains("run it on that machine"), "{err}");
        }
    }
    assert_eq!(std::fs::read_to_string(&calls).unwrap_or_default(), "");
    assert!(std::fs::read(machine.path("var/gpuvm/fabric.json")).is_err());
    let away = "LIBVIRT_DEFAULT_URI=qemu+ssh://gpu9.invalid/system";
    for verb in ["ensure", "release"] {
        let words = ["env", away, env!("CARGO_BIN_EXE_gpuvm"), "fabric", verb, "--stdin"];
        let (code, _, err) = machine.gpuvm_on(&words, true, &pair);
        assert_eq!((code, err.as_str()), (0, ""), "{verb}");
    }
    let done = ["fmActivateFabricPartition 3", "fmDeactivateFabricPartition 3"];
    assert_eq!(operations(&machine), done);
}

#[test]
fn whatever_activates_passes_the_version_gate_and_what_deactivates_does_not() {
    let Some(machine) = Machine::h100() else { return };
    remembering(&machine, "");
    let pair = domain_with("11111111-2222-3333-4444-555555555555", &["9d", "c3"]);
    let asks = |verb: &str| {
        let words = [env!("CARGO_BIN_EXE_gpuvm"), "fabric", verb, "--stdin"];
        machine.gpuvm_on(&words, true, &pair)
    };
    let uri = guest_with(&machine, &["9d", "c3"]);
    let restores = |more: &str| {
        let words = [&["fabric", "restore", "-c", &uri][..], &[more]].concat();
        machine.gpuvm(&words[..words.len() - usize::from(more.is_empty())], true)
    };
    let apart = "Fabric Manager has version 570.1, and the driver of this host has 570.2: guests \
                 get NVLink only if they match";
    let hint = "hint: install Fabric Manager 570.2";
    machine.with_versions("570.1", "570.2");
    let refusals = [asks("ensure"), restores(""), restores("--dry-run"), restores("--boot")];
    for (code, out, err) in refusals {
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        assert!(err.contains(apart) && err.contains(hint), "{err}");
    }
    assert_eq!(operations(&machine), [""; 0]);
    // `create` says the same.
    if let Some(uri) = embedded(&machine) {
        let (code, _, err) = dry_run(&machine, &uri, "2");
        assert!(code == 1 && err.contains(apart) && err.contains(hint), "{err}");
    }
    machine.with_versions("570.2", "570.2");
    assert_eq!(asks("ensure").0, 0);
    assert_eq!(operations(&machine), ["fmActivateFabricPartition 3"]);
    let (code, out, _) = machine.gpuvm(&["fabric", "show", "-c", &uri], true);
    assert!(
        code == 0 && out.contains("not checked: the version of the client library libnvfm"),
        "{out}"
    );
    machine.with_versions("570.1", "570.2");
    assert_eq!(asks("release").0, 0);
    assert_eq!(operations(&machine)[1..], ["fmDeactivateFabricPartition 3"]);

    // The library's own version, if its file's name shows it.
    machine.with_versions("570.2", "570.2");
    let lib = machine.dir.path().join("lib");
    std::fs::create_dir(&lib).unwrap();
    std::fs::copy(fakes().join("libnvfm.so.1"), lib.join("libnvfm.so.570.3")).unwrap();
    std::os::unix::fs::symlink("libnvfm.so.570.3", lib.join("libnvfm.so.1")).unwrap();
    let apart = "Fabric Manager has version 570.2, and its client library libnvfm has 570.3";
    for (code, _, err) in [asks("ensure"), restores("")] {
        assert!(code == 1 && err.contains(apart) && err.contains("of version 570.2\n"), "{err}");
    }
    let (code, document) = shown(&machine, &uri);
    let wanted = ["570.2", "570.3", "differ"].map(Value::from);
    let found = ["manager_version", "library_version", "versions"].map(|key| &document[key]);
    assert_eq!((code, found), (3, [&wanted[0], &wanted[1], &wanted[2]]), "{document}");
    let (_, _, err) = machine.gpuvm(&["fabric", "show", "-c", &uri], true);
    assert!(err.contains(apart), "{err}");
    std::fs::rename(lib.join("libnvfm.so.570.3"), lib.join("libnvfm.so.570.2")).unwrap();
    std::fs::remove_file(lib.join("libnvfm.so.1")).unwrap();
    std::os::unix::fs::symlink("libnvfm.so.570.2", lib.join("libnvfm.so.1")).unwrap();
    assert_eq!(asks("ensure").0, 0);
    let (_, out, _) = machine.gpuvm(&["fabric", "show", "-c", &uri], true);
    assert!(!out.contains("not checked"), "{out}");
}

#[test]
fn hook_and_unit_are_installed_and_taken_back_byte_for_byte() {
    let Some(machine) = Machine::h100() else { return };
    machine.fake("h100", &H100, "");
    let uri = guest_with(&machine, &["9d"]);
    let gpuvm = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().chain(["-c", &uri]).collect();
        machine.gpuvm(&words, true)
    };
    let done = |line: &str| {
        let (code, out, err) = gpuvm(line);
        assert_eq!(code, 0, "{line}: {out}{err}");
        out + &err
    };
    let file = PathBuf::from(machine.path("etc/libvirt/hooks/qemu.d/50-gpuvm"));
    let printed = gpuvm("fabric hook --print").1;
    assert!(done("fabric hook --install").contains("systemctl restart"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), printed);
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o755);
    assert!(done("fabric hook --install").contains("nothing to do"));
    // The hook calls for migrations, restores and restarts of libvirt print nothing and block
    // nothing.
    let hook = |operation: &[&str], xml: &str| {
        let words = [&["/etc/libvirt/hooks/qemu.d/50-gpuvm", "foreign"], operation].concat();
        machine.gpuvm_on(&words, true, xml)
    };
    for operation in ["migrate", "restore", "reconnect", "start"] {
        let silent = (0, String::new(), String::new());
        assert_eq!(hook(&[operation, "begin", "-"], "<domain>"), silent, "{operation}");
    }
    let (code, out, err) = hook(&["prepare", "begin", "-"], "<domain>");
    assert!(code != 0 && out.is_empty() && err.contains("domain XML"), "{err}");
    let alone = domain_with("11111111-2222-3333-4444-555555555555", &[]);
    assert_eq!(hook(&["prepare", "begin", "-"], &alone), (0, String::new(), String::new()));
    done("host undo --yes");
    assert!(!file.exists());
    done("fabric hook --install");
    done("fabric hook --remove");
    assert!(!file.exists());
    // A file is not gpuvm's because of its header: a foreign one, an edited one of gpuvm's, one
    // that only contains the header.
    let edited = printed.replace("#!/bin/sh\n", "#!/bin/sh -x\n");
    let marked = format!("#!/bin/sh\n{}\nexit 0\n", printed.lines().nth(1).unwrap());
    let kept = |text: &str| {
        for line in ["fabric hook --install", "fabric hook --remove"] {
            let (code, _, err) = gpuvm(line);
            let is_told = err.contains("not made by gpuvm") && err.contains("hint: `cat ");
            assert!(code == 1 && is_told, "{line}: {err}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
    };
    done("fabric hook --install");
    for text in ["#!/bin/sh\nexit 0\n", &edited, &marked] {
        std::fs::write(&file, text).unwrap();
        kept(text);
    }
    std::fs::remove_file(&file).unwrap();
    // One of an older version without a record is gpuvm's if it is correct to the byte.
    for text in [&edited, &printed] {
        std::fs::write(&file, text).unwrap();
        if text == &edited {
            kept(text)
        } else {
            done("fabric hook --remove");
        }
    }
    assert!(!file.exists());

    let unit = machine.path("etc/systemd/system/nvidia-fabricmanager.service.d/50-gpuvm.conf");
    let printed = gpuvm("fabric unit --print").1;
    assert!(printed.contains("ExecStartPost=-/") && printed.contains("fabric restore --boot"));
    let said = done("fabric unit --install");
    assert!(said.contains("daemon-reload"), "{said}");
    assert_eq!(std::fs::read_to_string(&unit).unwrap(), printed);
    done("host undo --yes");
    assert!(!Path::new(&unit).exists());
    done("fabric unit --install");
    assert!(done("fabric unit --remove --dry-run").contains("50-gpuvm.conf"));
    done("fabric unit --remove");
    assert!(!Path::new(&unit).exists());
    assert!(done("fabric unit --remove").contains("nothing to do"));
    // A foreign one stays, and a pipe in its place is refused at once.
    std::fs::create_dir_all(Path::new(&unit).parent().unwrap()).unwrap();
    std::fs::write(&unit, "[Service]\n").unwrap();
    let (code, _, err) = gpuvm("fabric unit --remove");
    assert!(code == 1 && err.contains("not made by gpuvm"), "{err}");
    std::fs::remove_file(&unit).unwrap();
    nix::unistd::mkfifo(Path::new(&unit), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for line in ["fabric unit --install", "fabric unit --remove"] {
        let (code, _, err) = gpuvm(line);
        assert!(code == 1 && err.contains("a named pipe, not a regular file"), "{line}: {err}");
        assert!(err.contains("hint: `ls -l "), "{line}: {err}");
    }
    assert_eq!(done("fabric unit --print"), printed, "what is installed does not matter");
    std::fs::remove_file(&unit).unwrap();
    // A dangling link belongs to others, too.
    std::os::unix::fs::symlink("/nowhere", &unit).unwrap();
    for line in ["fabric unit --install", "fabric unit --remove"] {
        let (code, _, err) = gpuvm(line);
        assert!(code == 1 && err.contains("not made by gpuvm"), "{line}: {err}");
        assert!(err.contains("hint: `ls -l ") && Path::new(&unit).is_symlink(), "{line}: {err}");
    }
    std::fs::remove_file(&unit).unwrap();
    let said = done("fabric unit --install --config --dry-run");
    assert!(
        said.contains("fabricmanager.cfg.before-gpuvm") && !Path::new(&unit).exists(),
        "{said}"
    );
    assert!(said.contains("+STATE_FILE_NAME=/var/lib/nvidia-fabricmanager/"), "{said}");
    // A copy of others stays; gpuvm's own is recreated.
    let script = "cd /usr/share/nvidia/nvswitch; G=\"$0 -q fabric unit --install --config -c $1\"
         echo theirs >fabricmanager.cfg.before-gpuvm; cp fabricmanager.cfg was
         for more in --dry-run ''; do ! $G $more 2>&1; cmp fabricmanager.cfg was; done
         test \"$(cat fabricmanager.cfg.before-gpuvm)\" = theirs; rm fabricmanager.cfg.before-gpuvm
         $G; cmp fabricmanager.cfg.before-gpuvm was; ! cmp -s fabricmanager.cfg was
         echo '# more' >>was; cp was fabricmanager.cfg; $G; cmp fabricmanager.cfg.before-gpuvm was
         echo '# theirs' >>fabricmanager.cfg.before-gpuvm; cp was fabricmanager.cfg; ! $G 2>&1";
    let words = ["bash", "-ec", script, env!("CARGO_BIN_EXE_gpuvm"), &uri];
    let (code, out, err) = machine.gpuvm_on(&words, true, "");
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let told = "fabricmanager.cfg.before-gpuvm was not made by gpuvm, or was changed since";
    assert_eq!((out.matches(told).count(), out.matches("hint: `cat ").count()), (3, 3), "{out}");
}

/// The machine with a guest of modules 1 and 3, its fakes' settings beside state and calls.
fn remembering(machine: &Machine, more: &str) {
    let (state, calls) = (machine.path("state"), machine.path("calls"));
    machine.fake("h100", &H100, &format!("{more}\nstate {state}\ncalls {calls}"));
}

#[test]
fn a_library_that_ends_in_the_middle_is_told_by_the_list() {
    let Some(machine) = Machine::h100() else { return };
    let pair = domain_with("11111111-2222-3333-4444-555555555555", &["9d", "c3"]);
    let ensure = |fake: &str| {
        let _ = std::fs::remove_file(machine.path("calls"));
        remembering(&machine, fake);
        let words = [env!("CARGO_BIN_EXE_gpuvm"), "fabric", "ensure", "--stdin"];
        let (code, _, err) = machine.gpuvm_on(&words, true, &pair);
        (code, operations(&machine).len(), err)
    };
    let file = || std::fs::read_to_string(machine.path("var/gpuvm/fabric.json")).unwrap();
    // Operations: the host's list, the step's list, the activation.
    let (code, calls, err) = ensure("die_after 3 before");
    assert_eq!((code, calls), (1, 1), "{err}");
    assert!(err.contains("ended without an answer"), "{err}");
    assert!(!file().contains("11111111"), "nothing was done: {}", file());
    std::fs::remove_file(machine.path("state")).unwrap();
    let (code, calls, err) = ensure("die_after 3 after");
    assert_eq!((code, calls), (1, 1), "{err}");
    // It was done: the next start finds it active, and requests nothing.
    assert!(file().contains("11111111"), "{}", file());
    let (code, calls, err) = ensure("");
    assert_eq!((code, calls), (0, 0), "{err}");
    // A release that answers as older ones do: in use, although it was done.
    std::fs::remove_file(machine.path("state")).unwrap();
    std::fs::remove_file(machine.path("var/gpuvm/fabric.json")).unwrap();
    let (code, calls, err) = ensure("answers old\nfail_nth 3 -7 done");
    assert_eq!((code, calls), (0, 1), "{err}");
}

#[test]
fn a_reset_after_the_activation_is_seen_on_an_a100() {
    let Some(machine) = Machine::new(&host_text("dgx-a100")) else { return };
    let machine = machine.mode(1);
    let uri = guest_with(&machine, &A100.map(|(bus, _)| bus));
    let (state, resets) = (machine.path("state"), machine.path("resets"));
    let fake = format!("active 1\nstate {state}\nresets {resets}");
    machine.fake("a100", &A100, &fake);
    let verdict = || {
        let (_, document) = shown(&machine, &uri);
        let all = document["partitions"].as_array().unwrap();
        let one = all.iter().find(|one| one["id"] == 1).unwrap().clone();
        (one["verdict"].as_str().unwrap().to_owned(), one["links"].as_u64().unwrap())
    };
    assert_eq!(verdict(), ("ok".into(), 12));
    std::fs::write(&resets, "0000:47:00.0\n").unwrap();
    assert_eq!(verdict(), ("degraded".into(), 0));
}

#[test]
fn one_guest_that_cannot_be_restored_keeps_no_other_from_it() {
    let Some(machine) = Machine::h100() else { return };
    let guest = |name: &str, digit: u32, buses: &[&str]| {
        let uuid = format!("{digit}{digit}111111-2222-3333-4444-555555555555");
        let xml = domain_with(&uuid, buses)
            .replace("<name>foreign</name>", &format!("<name>{name}</name>"));
        let more = "<memory>65536</memory><vcpu>1</vcpu><os><type>hvm</type></os><devices>";
        xml.replace("type='kvm'", "type='test'").replacen("<devices>", more, 1)
    };
    let node =
        format!("<node>{}{}</node>", guest("a", 1, &["9d", "c3"]), guest("b", 2, &["d1", "df"]));
    std::fs::write(machine.path("two.xml"), node).unwrap();
    let uri = format!("test://{}", machine.path("two.xml"));
    // Operations: the host's list, how it started, the first step's list, its activation.
    remembering(&machine, "fail_nth 4 -10");
    let (code, shown) = restored(&machine, &["-c", &uri]);
    assert_eq!((code, &shown["partitions"]), (3, &serde_json::json!([4])), "{shown}");
    let left = &shown["unrestored"][0];
    assert_eq!((&left["domain"]["name"], &left["partition"]), (&"a".into(), &3.into()), "{shown}");
    assert!(left["why"].as_str().unwrap().contains("NVLINK_ERROR (-10)"), "{shown}");
    let wanted = ["fmActivateFabricPartition 3", "fmActivateFabricPartition 4"];
    assert_eq!(operations(&machine), wanted);
    let (code, _, err) = machine.gpuvm(&["fabric", "restore", "-c", &uri], true);
    assert_eq!(code, 3, "the other is restored, and has lost NVLink: {err}");
    assert!(err.contains("domain `a` ran while its partition was inactive"), "{err}");
    // It hangs: abandoned after its limit, without waiting for the others.
    remembering(&machine, "");
    std::fs::remove_file(machine.path("state")).unwrap();
    remembering(&machine, "hang 2");
    let (code, _, err) = machine.gpuvm(&["fabric", "restore", "-c", &uri], true);
    assert!(code == 1 && err.contains("did not answer within 5 s"), "{err}");
}
