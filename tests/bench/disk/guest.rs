//! From inside an emulated guest: the default disk of `nvidia-vm` and gpuvm's, written and read in
//! turns past the guest's page cache by two `dd` each. The emulated CPU costs more than it would on
//! hardware, so what differs here differs more there.

use super::{OURS, VARIANTS, create};
use crate::measure::{Verdict, median};
use crate::support::daemon::Tiny;
use crate::support::{project, run};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Size of the disks, in MiB: three rounds of 160 (tests/tiny/disk-bench).
const DISK_MIB: u64 = 512;

/// Runs the guest and compares.
pub fn bench(_quick: bool) -> Vec<Verdict> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("the target directory takes files");
    let Some(initramfs) = initramfs(dir.path()) else { return Vec::new() };
    let (theirs, ours) = (dir.path().join("theirs"), dir.path().join("ours"));
    create(&VARIANTS[0], &theirs, DISK_MIB);
    create(&VARIANTS[OURS], &ours, DISK_MIB);
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-accel", "tcg,thread=multi", "-M", "q35", "-cpu", "max", "-smp", "2", "-m", "512"]);
    qemu.args(["-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"]);
    qemu.arg("-kernel").arg(dir.path().join("vmlinuz")).arg("-initrd").arg(initramfs);
    qemu.args(["-append", "console=ttyS0 quiet loglevel=3", "-object", "iothread,id=io"]);
    let (theirs_at, ours_at) = (theirs.display(), ours.display());
    let aio = VARIANTS[OURS].aio;
    qemu.args(["-blockdev", &format!(
        "driver=qcow2,node-name=theirs,file.driver=file,file.filename={theirs_at},file.aio=threads"
    )]);
    qemu.args([
        "-blockdev",
        &format!(
            "driver=raw,node-name=ours,discard=unmap,cache.direct=on,file.driver=file,\
         file.filename={ours_at},file.aio={aio},file.cache.direct=on"
        ),
    ]);
    qemu.args(["-device", "virtio-blk-pci,drive=theirs,num-queues=1"]);
    qemu.args(["-device", "virtio-blk-pci,drive=ours,num-queues=2,iothread=io"]);
    let mut child = qemu.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("QEMU starts");
    let console = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut times: BTreeMap<String, [Vec<f64>; 2]> = BTreeMap::new();
    for line in console.lines().map_while(Result::ok) {
        let Some((_, said)) = line.trim_end().split_once("bench: ") else { continue };
        let words: Vec<&str> = said.split(' ').collect();
        match words[..] {
            // The data written must not be read back from the host's memory.
            ["written"] => [&theirs, &ours].into_iter().for_each(|image| drop_pages(image)),
            [load, disk, begun, ended] => {
                let seconds = |text: &str| text.parse::<f64>().expect("the guest says seconds");
                let both = times.entry(load.to_owned()).or_default();
                both[usize::from(disk == "vdb")].push(seconds(ended) - seconds(begun));
            }
            _ => {}
        }
    }
    assert!(child.wait().expect("it was started").success(), "QEMU failed");
    assert_eq!(times.len(), 4, "the guest did not say all: {times:?}");
    println!(
        "{:<38} {:>10} {:>10} {:>10}",
        "in a guest (emulated CPU)", "default s", "tuned s", "speed-up"
    );
    let mut verdicts = Vec::new();
    for (load, [theirs, ours]) in &times {
        let (theirs, ours) = (median(theirs), median(ours));
        println!("  {load:<36} {theirs:>10.2} {ours:>10.2} {:>9.2}x", theirs / ours);
        let what = format!("{load} in a guest: gpuvm's disk / nvidia-vm's");
        verdicts.push(Verdict { what, value: ours / theirs, limit: 1.0, unit: "x", gate: false });
    }
    verdicts
}

/// Drops a file's pages from the host's cache.
fn drop_pages(image: &Path) {
    let file = std::fs::File::open(image).expect("it was made");
    file.sync_all().expect("it is a file");
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).expect("it is a file");
}

/// The test guest's initial file system with the benchmark as its first program; none, with the
/// reason reported, if the machine cannot have it.
fn initramfs(dir: &Path) -> Option<std::path::PathBuf> {
    let tiny = Tiny::new(dir);
    if tiny.is_none() || !Path::new("/usr/bin/qemu-system-x86_64").exists() {
        println!("skipped: disks in a guest");
        return None;
    }
    std::fs::copy(project().join("tests/tiny/disk-bench"), dir.join("init")).expect("it is there");
    // The kernel unpacks one archive after the other; the last file of a name stays.
    let packed = "echo init | cpio -o -H newc --quiet >>initramfs";
    let (code, _, err) = run(Command::new("sh").args(["-c", packed]).current_dir(dir));
    assert_eq!(code, 0, "{err}");
    Some(dir.join("initramfs"))
}
