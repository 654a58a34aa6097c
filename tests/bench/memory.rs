//! Start time against memory size: QEMU, stopped before its first instruction, with memory of 4K
//! and 2M pages that is filled by one thread or by as many as there are CPUs. Guests with GPUs have
//! all of their memory filled at the start.

use crate::measure::{Verdict, median};
use std::process::{Command, Stdio};
use std::time::Instant;

const QEMU: &str = "qemu-system-x86_64";
/// The kernel's file with the number of 2M pages.
const POOL: &str = "/proc/sys/vm/nr_hugepages";
/// Sizes, in GiB; those larger than half of the free memory are left out.
const SIZES: [u64; 4] = [1, 2, 4, 8];

/// The kernel's pool, restored to its size at the end.
struct Pool(String);

impl Pool {
    /// Makes the pool large enough for this many GiB; none, with the reason reported, if that is
    /// not possible.
    fn grow(gib: u64) -> Option<Pool> {
        let before = std::fs::read_to_string(POOL).ok()?.trim().to_owned();
        let pages = gib * 512 + before.parse::<u64>().ok()?;
        if let Err(error) = std::fs::write(POOL, pages.to_string()) {
            println!("skipped: 2M pages, which need root: {error}");
            return None;
        }
        let pool = Pool(before);
        let got = std::fs::read_to_string(POOL).ok()?.trim().parse::<u64>().ok()?;
        if got < pages {
            println!("skipped: 2M pages for {gib} GiB; the kernel gave {got} of {pages}");
            return None;
        }
        Some(pool)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = std::fs::write(POOL, &self.0);
    }
}

/// Measures; without a peer there is no verdict.
pub fn bench(quick: bool) -> Vec<Verdict> {
    if !Command::new(QEMU).arg("--version").output().is_ok_and(|out| out.status.success()) {
        println!("skipped: no {QEMU}");
        return Vec::new();
    }
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let fitting = |gib: &&u64| available_gib().is_some_and(|free| free >= 2 * **gib);
    println!(
        "{:<28} {:>8} {:>10} {:>8}",
        "start of QEMU, memory filled", "GiB", "seconds", "GiB/s"
    );
    for &gib in SIZES.iter().filter(fitting) {
        let pool = Pool::grow(gib);
        let mut kinds = vec![("not filled", false, 0), ("4K pages, 1 thread", false, 1)];
        let several = format!("4K pages, {cpus} threads");
        let several_huge = format!("2M pages, {cpus} threads");
        kinds.push((&several, false, cpus));
        if pool.is_some() {
            kinds.extend([("2M pages, 1 thread", true, 1), (&several_huge, true, cpus)]);
        }
        let mut times = vec![Vec::new(); kinds.len()];
        for round in 0..=if quick { 1 } else { 3 } {
            for ((_, huge, threads), times) in kinds.iter().zip(&mut times) {
                let seconds = start(gib, *huge, *threads);
                // The first round touches memory that the machine's own hypervisor may not have
                // backed yet.
                if round > 0 {
                    times.push(seconds);
                }
            }
        }
        for ((name, ..), times) in kinds.iter().zip(&times) {
            let seconds = median(times);
            #[allow(clippy::cast_precision_loss)]
            let rate = gib as f64 / seconds;
            println!("{name:<28} {gib:>8} {seconds:>10.2} {rate:>8.1}");
        }
    }
    Vec::new()
}

/// Starts QEMU with this much memory and ends it as soon as it answers. Returns the time in
/// seconds. Zero threads: nothing is filled.
fn start(gib: u64, huge: bool, threads: usize) -> f64 {
    let mut memory = format!("memory-backend-memfd,id=m,size={gib}G,share=off");
    if huge {
        memory += ",hugetlb=on,hugetlbsize=2M";
    }
    if threads > 0 {
        memory += &format!(",prealloc=on,prealloc-threads={threads}");
    }
    let mut qemu = Command::new(QEMU);
    qemu.args(["-accel", "tcg", "-M", "q35,memory-backend=m", "-nodefaults", "-display", "none"]);
    qemu.args(["-S", "-monitor", "stdio", "-m", &format!("{gib}G"), "-object", &memory]);
    let begun = Instant::now();
    let mut child = qemu.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("QEMU starts");
    let mut stdin = child.stdin.take().expect("it is piped");
    std::io::Write::write_all(&mut stdin, b"quit\n").expect("QEMU reads");
    let output = child.wait_with_output().expect("it was started");
    assert!(output.status.success(), "{memory}: {}", String::from_utf8_lossy(&output.stdout));
    begun.elapsed().as_secs_f64()
}

/// Memory that the machine can give, in whole GiB.
fn available_gib() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib >> 20)
}
