//! Disks: the format of a guest's disk and its QEMU I/O settings, against the default of
//! `nvidia-vm`.
//!
//! On the host by `qemu-img bench`, which is QEMU's block layer without a guest; each write test
//! uses a new disk and includes `fsync`; each read to a disk whose pages are dropped from the
//! host's cache. And from inside an emulated guest that has the default and the tuned disk side by
//! side. On a busy machine only ratios count.

mod guest;

use crate::measure::{Verdict, median};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Size of the disks on the host, in MiB; each is recreated for each run.
const DISK_MIB: u64 = 256;

/// A variant of a disk.
pub struct Variant {
    name: &'static str,
    /// Options of `qemu-img create` after `-f`.
    made: &'static [&'static str],
    /// `none` or `writeback`.
    cache: &'static str,
    /// `threads`, `native` or `io_uring`.
    aio: &'static str,
    /// Whether it is written with zeros first.
    zeros: bool,
}

const fn way(
    name: &'static str,
    made: &'static [&'static str],
    cache: &'static str,
    aio: &'static str,
) -> Variant {
    Variant { name, made, cache, aio, zeros: false }
}

/// qcow2 with its blocks reserved.
const RESERVED_QCOW2: &[&str] = &["qcow2", "-o", "preallocation=falloc"];
/// raw with its blocks reserved, which is gpuvm's default.
const RESERVED: &[&str] = &["raw", "-o", "preallocation=falloc"];

/// The default of `nvidia-vm` first, then six others that may be the best, gpuvm's among them; and
/// gpuvm's other `--preallocate`.
const VARIANTS: [Variant; 9] = [
    way("qcow2 that grows, writeback, threads", &["qcow2"], "writeback", "threads"),
    way("qcow2 reserved, writeback, threads", RESERVED_QCOW2, "writeback", "threads"),
    way("raw reserved, writeback, threads", RESERVED, "writeback", "threads"),
    way("raw reserved, none, threads", RESERVED, "none", "threads"),
    way("raw reserved, none, native", RESERVED, "none", "native"),
    way("raw reserved, none, io_uring", RESERVED, "none", "io_uring"),
    way("qcow2 reserved, none, native", RESERVED_QCOW2, "none", "native"),
    way("raw sparse, none, io_uring", &["raw"], "none", "io_uring"),
    Variant {
        zeros: true,
        ..way("raw full of zeros, none, io_uring", RESERVED, "none", "io_uring")
    },
];
const OURS: usize = 5;

struct Load {
    name: &'static str,
    writes: bool,
    /// Bytes of a request.
    bytes: u64,
    /// Bytes from one request to the next: a large stride, coprime with the disk in requests,
    /// scatters them.
    step: u64,
    count: u64,
    depth: u32,
}

/// The loads: scattered small requests and large ones in a row.
const LOADS: [Load; 4] = [
    Load {
        name: "4K scattered write",
        writes: true,
        bytes: 4096,
        step: 4096 * 7919,
        count: 4096,
        depth: 32,
    },
    Load {
        name: "1M write",
        writes: true,
        bytes: 1 << 20,
        step: 1 << 20,
        count: DISK_MIB,
        depth: 16,
    },
    Load {
        name: "4K scattered read",
        writes: false,
        bytes: 4096,
        step: 4096 * 7919,
        count: 4096,
        depth: 32,
    },
    Load {
        name: "1M read",
        writes: false,
        bytes: 1 << 20,
        step: 1 << 20,
        count: DISK_MIB,
        depth: 16,
    },
];

/// Measures and compares.
pub fn bench(quick: bool) -> Vec<Verdict> {
    let mut verdicts = host(quick);
    verdicts.extend(guest::bench(quick));
    verdicts
}

fn host(quick: bool) -> Vec<Verdict> {
    if !Command::new("qemu-img").arg("--version").output().is_ok_and(|out| out.status.success()) {
        println!("skipped: no qemu-img");
        return Vec::new();
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("the target directory takes files");
    let image = dir.path().join("disk");
    let mut verdicts = Vec::new();
    for load in &LOADS {
        let mut times = vec![Vec::new(); VARIANTS.len()];
        for _ in 0..if quick { 2 } else { 5 } {
            for (variant, times) in VARIANTS.iter().zip(&mut times) {
                times.push(once(variant, load, &image));
            }
        }
        let medians: Vec<f64> = times.iter().map(|times| median(times)).collect();
        let best = medians.iter().copied().fold(f64::INFINITY, f64::min);
        println!("{:<38} {:>10} {:>10}", load.name, "seconds", "speed-up");
        for (variant, seconds) in VARIANTS.iter().zip(&medians) {
            let mark = if *seconds <= best { "  best" } else { "" };
            println!("  {:<36} {seconds:>10.3} {:>9.2}x{mark}", variant.name, medians[0] / seconds);
        }
        let what = format!("{}: gpuvm's disk / the best of all", load.name);
        let value = medians[OURS] / best;
        verdicts.push(Verdict { what, value, limit: 1.1, unit: "x", gate: false });
        let what = format!("{}: gpuvm's disk / nvidia-vm's", load.name);
        let value = medians[OURS] / medians[0];
        verdicts.push(Verdict { what, value, limit: 1.0, unit: "x", gate: false });
    }
    verdicts
}

/// One run of a load on a fresh disk; seconds.
fn once(variant: &Variant, load: &Load, image: &Path) -> f64 {
    let _ = std::fs::remove_file(image);
    create(variant, image, DISK_MIB);
    let (format, size) = (variant.made[0], format!("{DISK_MIB}M"));
    if variant.zeros || !load.writes {
        // A read of a block that was never written reads nothing.
        let write = format!("write -q -P {} 0 {size}", if load.writes { 0 } else { 7 });
        tool("qemu-io", &["-f", format, "-c", &write, &image.display().to_string()]);
    }
    let file = File::options().read(true).write(true).open(image).expect("it was made");
    file.sync_all().expect("it is a file");
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).expect("it is a file");
    let numbers = [load.count, u64::from(load.depth), load.bytes, load.step].map(|n| n.to_string());
    let [count, depth, bytes, step] = &numbers[..] else { unreachable!("four are given") };
    let mut args = vec!["bench", "-f", format, "-t", variant.cache, "-i", variant.aio, "-c", count];
    args.extend(["-d", depth, "-s", bytes, "-S", step]);
    if load.writes {
        args.push("-w");
    }
    let image = image.display().to_string();
    args.push(&image);
    let said = tool("qemu-img", &args);
    let seconds = said.lines().find_map(|line| {
        line.strip_prefix("Run completed in ")?.split(' ').next()?.parse::<f64>().ok()
    });
    let seconds = seconds.unwrap_or_else(|| panic!("qemu-img says no time: {said}"));
    let begun = Instant::now();
    file.sync_all().expect("it is a file");
    seconds + if load.writes { begun.elapsed().as_secs_f64() } else { 0.0 }
}

/// Creates a disk of this many MiB.
pub fn create(variant: &Variant, image: &Path, mib: u64) {
    let (image, size) = (image.display().to_string(), format!("{mib}M"));
    let mut args = vec!["create", "-q", "-f"];
    args.extend(variant.made);
    args.extend([&*image, &*size]);
    tool("qemu-img", &args);
}

/// Runs a tool, which must succeed. Returns its output.
fn tool(name: &str, args: &[&str]) -> String {
    let output = Command::new(name).args(args).output().expect("it is there");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{name} {args:?}: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    said
}
