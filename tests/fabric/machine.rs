//! Machines for these tests: recorded hosts with fakes of NVIDIA's libraries, guests in libvirt's
//! test driver, and readers of the output.

use crate::support::daemon::namespaces;
use crate::support::tamper::library;
use crate::support::tree::{host_text, scratch, unpack};
use crate::support::{known, project, run, skip};
use serde_json::Value;
use std::fs::Permissions;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Buses of the GPUs of the DGX H100, with module ids in no order of the bus.
pub const H100: [(&str, u32); 8] =
    [("1b", 5), ("43", 7), ("52", 6), ("61", 8), ("9d", 1), ("c3", 3), ("d1", 2), ("df", 4)];
/// Buses of the GPUs of the DGX A100, and such module ids.
pub const A100: [(&str, u32); 8] =
    [("07", 3), ("0f", 1), ("47", 4), ("4e", 2), ("87", 7), ("90", 5), ("b7", 8), ("bd", 6)];

/// The directory of the fakes, compiled once a run.
pub fn fakes() -> &'static Path {
    static FAKES: OnceLock<PathBuf> = OnceLock::new();
    FAKES.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fakes");
        std::fs::create_dir_all(&dir).unwrap();
        for (source, name) in [("fake-nvfm", "libnvfm.so.1"), ("fake-nvml", "libnvidia-ml.so.1")] {
            library(&dir, source, name);
        }
        dir
    })
}

/// A machine that the program runs on.
pub struct Machine {
    /// Its files: the recorded host, the settings of the fakes, Fabric Manager's configuration, the
    /// admin's file.
    pub dir: tempfile::TempDir,
}

impl Machine {
    /// A recorded host; none if namespaces are not available.
    pub fn new(record: &str) -> Option<Machine> {
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
    pub fn h100() -> Option<Machine> {
        Some(Machine::new(&host_text("dgx-h100"))?.mode(1))
    }

    /// Sets Fabric Manager's mode.
    pub fn mode(self, mode: u32) -> Machine {
        let text = format!("# a comment\nFABRIC_MODE={mode}\n");
        std::fs::write(self.dir.path().join("config/fabricmanager.cfg"), text).unwrap();
        self
    }

    /// Configures the fakes.
    pub fn fake(&self, board: &str, gpus: &[(&str, u32)], more: &str) {
        let gpus: String =
            gpus.iter().map(|(bus, id)| format!("gpu 0000:{bus}:00.0 {id}\n")).collect();
        let text = format!("board {board}\n{gpus}{more}\njournal {}\n", self.path("journal"));
        std::fs::write(self.dir.path().join("fake"), text).unwrap();
        let _ = std::fs::remove_file(self.path("journal"));
    }

    /// The path of one of its files.
    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// The functions that were called, each once.
    pub fn journal(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("journal")).unwrap_or_default();
        let mut calls: Vec<String> = Vec::new();
        for call in text.lines().filter(|call| call.starts_with("fm")) {
            calls.push(call.to_owned());
        }
        calls
    }

    /// Runs the program there; `libraries`: whether NVIDIA's are installed.
    pub fn gpuvm(&self, args: &[&str], libraries: bool) -> (i32, String, String) {
        self.gpuvm_on(&[&[env!("CARGO_BIN_EXE_gpuvm")], args].concat(), libraries, "")
    }

    /// Runs a command there with a text on standard input.
    pub fn gpuvm_on(&self, words: &[&str], libraries: bool, text: &str) -> (i32, String, String) {
        run(&mut self.command(words, libraries, text))
    }

    /// Such a command, whose process number is in the file `pid`.
    pub fn command(&self, words: &[&str], libraries: bool, text: &str) -> Command {
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
    pub fn with_versions(&self, manager: &str, driver: &str) {
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
    pub fn fabric(&self, libraries: bool) -> (Value, String) {
        let (code, out, err) = self.gpuvm(&["host", "show", "--json"], libraries);
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        let shown: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"));
        (shown["host"]["fabric"].clone(), shown["host"]["notes"].to_string())
    }
}

/// Partitions as number and buses, those of one size.
pub fn sets(fabric: &Value, size: usize) -> Vec<(u64, Vec<String>)> {
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
pub fn set(id: u64, buses: &[&str]) -> (u64, Vec<String>) {
    (id, buses.iter().map(|bus| (*bus).to_owned()).collect())
}

/// How many partitions there are of each size from 16 down to 1.
pub fn sizes(fabric: &Value) -> [usize; 5] {
    [16, 8, 4, 2, 1].map(|size| sets(fabric, size).len())
}

/// The source of partitions, in words.
pub fn source(fabric: &Value) -> &str {
    fabric["source"].as_str().unwrap()
}

/// Runs the program on a recorded tree; the exit code, and both outputs concatenated.
pub fn on(host: &Path, args: &[&str]) -> (i32, String) {
    let (code, out, err) =
        run(crate::support::gpuvm(args).args(["--host", host.to_str().unwrap()]));
    (code, out + &err)
}

/// A URI of libvirt's test driver with one running domain that has these GPUs.
pub fn guest_with(machine: &Machine, buses: &[&str]) -> String {
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
pub fn shown(machine: &Machine, uri: &str) -> (i32, Value) {
    let (code, out, err) = machine.gpuvm(&["fabric", "show", "--json", "--connect", uri], true);
    (code, serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}")))
}

/// The machine of libvirt's test driver with its domain off.
pub fn off(machine: &Machine, uri: &str) -> String {
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
pub fn embedded(machine: &Machine) -> Option<String> {
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

/// The operations of Fabric Manager so far, without their time and without lists.
pub fn operations(machine: &Machine) -> Vec<String> {
    let text = std::fs::read_to_string(machine.path("calls")).unwrap_or_default();
    let calls = text.lines().map(|line| line.split_once(' ').unwrap().1.to_owned());
    calls.filter(|call| !call.starts_with("fmGet")).collect()
}

/// A domain's XML with these GPUs.
pub fn domain_with(uuid: &str, buses: &[&str]) -> String {
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

/// The machine with a guest of modules 1 and 3, its fakes' settings beside state and calls.
pub fn remembering(machine: &Machine, more: &str) {
    let (state, calls) = (machine.path("state"), machine.path("calls"));
    machine.fake("h100", &H100, &format!("{more}\nstate {state}\ncalls {calls}"));
}
