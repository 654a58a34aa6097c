//! The cost of a guest's NVLink partition in its `create`: Fabric Manager's list for the plan, and
//! the activation before the start, beyond the same change without them. Fabric Manager is the fake
//! of its library (tests/fake-nvfm), which itself takes next to nothing.

use crate::measure::{Verdict, median};
use crate::support::daemon::namespaces;
use crate::support::{project, run};
use gpuvm::apply::partition::{PartitionGpu, PartitionStep};
use gpuvm::apply::{FileStep, Journal, PartitionChange, Quiet, Step, apply};
use gpuvm::hypervisor::none::NoHypervisor;
use gpuvm_host::fabric::Manager;
use gpuvm_host::fabric::config::Address;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

/// Limit of their cost, in ms.
const ADDED_MS: f64 = 100.0;
/// The partition, and module ids of its GPUs, which are their buses, too.
const PARTITION: (u32, [u8; 2]) = (3, [1, 3]);

/// Measures.
pub fn bench(quick: bool) -> Vec<Verdict> {
    if !namespaces() {
        println!("skipped: namespaces need root");
        return Vec::new();
    }
    let dir = tempfile::tempdir().expect("a temporary directory is made");
    prepare(dir.path()).expect("its files are written");
    let rustc = Path::new(env!("CARGO")).with_file_name("rustc");
    let mut compile = Command::new(rustc);
    compile.args(["--edition", "2024", "--crate-type", "cdylib", "-o"]);
    compile.arg(dir.path().join("libnvfm.so.1")).arg(project().join("tests/fake-nvfm/lib.rs"));
    let (code, _, err) = run(&mut compile);
    assert_eq!(code, 0, "{err}");
    let mut measured = Command::new("unshare");
    measured.args(["-m", "--propagation", "private", "sh", "-ec"]);
    measured.arg(
        "mount --bind \"$DIR/var\" /var/lib; mount --bind \"$DIR/pci\" /sys/bus/pci; exec \"$@\"",
    );
    measured.arg("sh").arg(std::env::current_exe().expect("the benchmark knows its own path"));
    measured.args(["partition-steps", if quick { "5" } else { "31" }]).env("DIR", dir.path());
    measured.env("GPUVM_FAKE_NVIDIA", dir.path().join("fake"));
    let (code, out, err) = run(measured.env("LD_LIBRARY_PATH", dir.path()));
    assert_eq!(code, 0, "{out}{err}");
    let times: Vec<f64> = out.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let every_second =
        |first: usize| -> Vec<f64> { times.iter().skip(first).step_by(2).copied().collect() };
    let (with, without) = (median(&every_second(0)), median(&every_second(1)));
    println!("{:<34} {with:>10.1} ms", "a change with a partition");
    println!("{:<34} {without:>10.1} ms", "the same without it");
    let what = "NVLink partition of a create, fake Fabric Manager".to_owned();
    vec![Verdict { what, value: with - without, limit: ADDED_MS, unit: " ms", gate: false }]
}

/// Writes the settings of the fake, and a PCI bus with GPUs that are bound for guests.
fn prepare(dir: &Path) -> std::io::Result<()> {
    for made in ["var", "made", "pci/drivers/vfio-pci"] {
        std::fs::create_dir_all(dir.join(made))?;
    }
    let mut settings = format!("board h100\nstate {}\n", dir.join("state").display());
    for module in 1..=8 {
        settings += &format!("gpu 0000:{module:02x}:00.0 {module}\n");
        let gpu = dir.join(format!("pci/devices/0000:{module:02x}:00.0"));
        std::fs::create_dir_all(&gpu)?;
        symlink("../../drivers/vfio-pci", gpu.join("driver"))?;
        std::fs::write(gpu.join("driver_override"), "vfio-pci\n")?;
        std::fs::write(gpu.join("reset"), "")?;
    }
    std::fs::write(dir.join("fake"), settings)
}

/// The measured process: prints the times of rounds with and without the partition, in ms.
pub fn child(rounds: &str) -> ExitCode {
    let dir = std::env::var("DIR").expect("the benchmark sets it");
    let dir = Path::new(&dir);
    let gpu = |module: u8| PartitionGpu {
        module: module.into(),
        bdf: format!("0000:{module:02x}:00.0").parse().expect("it is an address"),
    };
    let domain = "0b1c2d3e-0000-4000-8000-000000000001".to_owned();
    let step = PartitionStep::new(PARTITION.0, PARTITION.1.map(gpu).to_vec(), domain);
    let made = ["before", "after"].map(|name| dir.join("made").join(name));
    let [before, after] = made.clone().map(|path| Step::File(FileStep::CreateDirectory { path }));
    let carried_out = |steps: &[Step]| {
        let journal = Journal::begin("create", "a", "test:///default").expect("it is written");
        apply(steps, &NoHypervisor, &mut Quiet, Some(journal)).expect("nothing is in the way");
    };
    // The first round warms caches.
    for round in 0..=rounds.parse().unwrap_or(1) {
        let started = Instant::now();
        Manager::at(Address::Inet("127.0.0.1".into())).list().expect("the fake answers");
        carried_out(&[
            before.clone(),
            Step::Partition(PartitionChange::Activate(step.clone())),
            after.clone(),
        ]);
        let with = started.elapsed().as_secs_f64() * 1000.0;
        carried_out(&[Step::Partition(PartitionChange::Deactivate(step.clone()))]);
        made.iter().for_each(|path| std::fs::remove_dir(path).expect("it was made"));
        let started = Instant::now();
        carried_out(&[before.clone(), after.clone()]);
        let without = started.elapsed().as_secs_f64() * 1000.0;
        made.iter().for_each(|path| std::fs::remove_dir(path).expect("it was made"));
        if round > 0 {
            println!("{with} {without}");
        }
    }
    ExitCode::SUCCESS
}
