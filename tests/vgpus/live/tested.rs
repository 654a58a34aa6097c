//! `gpu test` on real guests without KVM: a libvirtd on a tree with two L40S, QEMU without their
//! functions, and a guest whose agent and programs of NVIDIA are scripts (tests/tiny/agent).

use super::super::Card;
use super::Machine;
use crate::support::daemon::Tiny;
use crate::support::tree::Small;
use gpuvm::image::Sha256;
use serde_json::Value;
use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const FIRST: &str = "0000:3b:00.0";
const SECOND: &str = "0000:5e:00.0";

/// A machine with two L40S on vfio-pci.
fn host() -> Small {
    let host = Small::new(1, 16);
    for bus in ["3b", "5e"] {
        let ids = ("0302 10de:26b9", "0302 10de:26b9");
        Card { host: &host, bus, ids, driver: "vfio-pci", total: 0 }.add(&[], None);
        // libvirt looks for a driver of its own by this.
        let modalias = "pci:v000010DEd000026B9sv000010DEsd00001851bc03sc02i00";
        host.write(&format!("sys/bus/pci/devices/0000:{bus}:00.0/modalias"), modalias);
    }
    host
}

/// The machine, its test guest, and the image that the policy names.
struct Bench {
    machine: Machine,
    tiny: Tiny,
    sha256: Sha256,
}

impl Bench {
    /// Sets it up; none if this machine cannot have it.
    fn new() -> Option<Bench> {
        let machine = Machine::on(host(), &[])?;
        let tiny = Tiny::new(&machine.place.daemon.fresh_dir("tiny"))?;
        let image = machine.place.daemon.fresh_dir("files").join("gputest.img");
        let bytes = vec![0x5a; 1 << 20];
        fs::write(&image, &bytes).unwrap();
        machine.place.done(&["image", "add", image.to_str().unwrap()]);
        let bench = Bench { machine, tiny, sha256: Sha256::of_bytes(&bytes) };
        bench.policy("require", "");
        Some(bench)
    }

    /// Writes the policy: the mode, and more keys.
    fn policy(&self, mode: &str, more: &str) {
        let (sum, template) = (self.sha256, self.tiny.template.with_file_name("agent.xml"));
        let text = format!(
            "mode = \"{mode}\"\nimage = \"gputest\"\nsha256 = \"{sum}\"\nvirt_type = \"qemu\"\n\
             memory = \"256M\"\nvcpus = 1\ntemplate = \"{}\"\n{more}\n",
            template.display()
        );
        fs::write(self.machine.place.daemon.own_path("etc/gpuvm/test.toml"), text).unwrap();
    }

    /// Has the next test guests behave in this way.
    fn guest(&self, is: &str) {
        let text = fs::read_to_string(&self.tiny.template).unwrap();
        let limit = "<memtune><hard_limit unit='KiB'>8192</hard_limit></memtune>\n  <os>";
        let channel = "<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/>\
                       </channel>\n    <serial";
        let text = text.replacen("<os>", limit, 1).replacen("<serial", channel, 1);
        let text =
            text.replacen("console=ttyS0", &format!("rdinit=/agent gputest={is} console=ttyS0"), 1);
        fs::write(self.tiny.template.with_file_name("agent.xml"), text).unwrap();
    }

    /// Runs a test; its exit code and the rows of its answer.
    fn test(&self, args: &[&str]) -> (i32, Vec<Value>, String) {
        let (code, out, err) =
            self.machine.place.gpuvm(&[&["gpu", "test", "--json"], args].concat());
        let document: Value = serde_json::from_str(&out).unwrap_or_default();
        (code, document.as_array().cloned().unwrap_or_default(), format!("{out}{err}"))
    }

    /// The rows of `gpu list`.
    fn listed(&self) -> Vec<Value> {
        self.machine.json(&["gpu", "list"]).as_array().unwrap().clone()
    }

    /// Expects that nothing is left of test guests.
    fn is_tidy(&self) {
        let domains = self.machine.place.virsh(&["list", "--all", "--name"]);
        assert!(!domains.contains("gpuvm-test-"), "{domains}");
        assert_eq!(self.machine.place.journal(), "");
        let pool = self.machine.place.daemon.own_path("/var/lib/libvirt/gpuvm-guests");
        assert_eq!(fs::read_dir(pool).map_or(0, Iterator::count), 0);
    }

    /// Makes a guest with a GPU and deletes it, so that the GPU is used.
    fn use_up(&self, gpu: &str) {
        let create = self.machine.create("a", &["--gpu", gpu, "--no-start"]);
        self.machine.place.done(&create);
        self.machine.place.done(&["delete", "a", "--yes"]);
    }

    /// Starts a test that goes on.
    fn begin(&self, args: &[&str]) -> Child {
        let mut command = self.machine.place.command(&[&["gpu", "test", "--json"], args].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Waits until a test guest runs.
    fn runs(&self) {
        let until = Instant::now() + Duration::from_secs(600);
        let listed = || self.machine.place.virsh(&["list", "--name"]);
        while !listed().contains("gpuvm-test-") {
            assert!(Instant::now() < until, "no test guest runs");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

#[test]
fn a_gpu_that_passes_is_offered_again_and_one_that_fails_is_excluded() {
    let Some(bench) = Bench::new() else { return };
    bench.guest("pass");
    bench.use_up("0");
    let plan = ["plan", "--gpu", "0"];
    bench.machine.refused(&plan, 1, &["is untested: domain `a` had it", "gpuvm gpu test 0000:3b"]);
    let (code, rows, said) = bench.test(&["0"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!([&rows[0]["verdict"], &rows[0]["state"]], ["passed", "clean"], "{said}");
    bench.is_tidy();
    bench.machine.place.done(&plan);
    // A fault excludes it, and only a person ends that.
    bench.guest("fail");
    let (code, rows, said) = bench.test(&["0"]);
    assert_eq!(code, 3, "{said}");
    assert_eq!([&rows[0]["verdict"], &rows[0]["excluded"]], [&"failed".into(), &Value::Bool(true)]);
    assert!(said.contains("PCIe width 8 of 16") && said.contains("(DCGM 46)"), "{said}");
    bench.is_tidy();
    bench.machine.refused(&plan, 1, &["is excluded: test: PCIe width 8 of 16"]);
    bench.machine.refused(&["gpu", "test", "0"], 1, &["is excluded: test: PCIe width 8 of 16"]);
    let (code, rows, _) = bench.test(&["--pending"]);
    assert_eq!((code, rows.len()), (0, 0));
    bench.machine.place.gpuvm(&["gpu", "include", "0"]);
    bench.machine.refused(&plan, 1, &["is withheld: it failed its test: PCIe width 8 of 16"]);
    assert_eq!(bench.listed()[0]["test"]["state"], "failed");
}

#[test]
fn a_test_that_does_not_come_to_its_end_leaves_the_gpu_used() {
    let Some(bench) = Bench::new() else { return };
    let unknown = |why: &str| {
        let (code, rows, said) = bench.test(&["--pending"]);
        assert_eq!(code, 1, "{said}");
        assert_eq!([&rows[0]["verdict"], &rows[0]["state"]], ["unknown", "used"], "{said}");
        assert!(rows[0]["why"][0].as_str().unwrap().contains(why), "{why}: {said}");
        assert_eq!(bench.listed()[0]["test"]["by"]["name"], "a");
        bench.is_tidy();
    };
    bench.guest("mute");
    bench.use_up("0");
    bench.policy("require", "timeout = 12");
    unknown("did not end within 12 s");
    bench.policy("require", "");
    bench.guest("bare");
    unknown("the image has no dcgmi");
    // Another image than that of the policy is not started.
    bench.policy("require", "");
    let file = bench.machine.place.daemon.own_path("etc/gpuvm/test.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace(&bench.sha256.to_string(), &"0".repeat(64))).unwrap();
    let said = ["image `gputest` has SHA-256", "states 000000"];
    bench.machine.refused(&["gpu", "test", "0"], 1, &said);
    fs::write(&file, "mode = \"require\"\n").unwrap();
    bench.machine.refused(&["gpu", "test", "0"], 1, &["has no `image`", "gpuvm-guide(7)"]);
}

#[test]
fn a_killed_test_is_recovered_and_meanwhile_others_take_another_gpu_or_wait() {
    let Some(bench) = Bench::new() else { return };
    bench.guest("hang");
    bench.use_up("0");
    let mut child = bench.begin(&["--pending"]);
    bench.runs();
    // Its GPU is a guest's; a guest gets the other one.
    let shown = bench.machine.place.done(&["plan", "--gpus", "1"]);
    assert!(shown.contains(SECOND) && !shown.contains(FIRST), "{shown}");
    bench.machine.refused(
        &["gpu", "test", "1", "--lock-wait", "0"],
        1,
        &["another test of GPUs runs on this host"],
    );
    child.kill().unwrap();
    child.wait().unwrap();
    bench.machine.refused(&["gpu", "test", "1"], 1, &["gpuvm recover"]);
    bench.machine.place.recover();
    bench.is_tidy();
    assert_eq!(bench.listed()[0]["test"]["state"], "used");
    // A signal undoes it.
    let child = bench.begin(&["0"]);
    bench.runs();
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(child.id().try_into().unwrap()),
        nix::sys::signal::Signal::SIGTERM,
    )
    .unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(said.contains("SIGTERM: undoing the change"), "{said}");
    assert!(!ended.status.success(), "{:?}", ended.status);
    bench.is_tidy();
    assert_eq!(bench.listed()[0]["test"]["state"], "used");
}
