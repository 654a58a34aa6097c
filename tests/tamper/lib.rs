//! `fdatasync`, which is tampered with at its n-th call: gpuvm syncs only the records of its
//! journal by it. Compiled by the tests with rustc and loaded by `LD_PRELOAD` (support/tamper.rs).
//!
//! `GPUVM_TAMPER` is `signal=NAME:when=N` or `error=ENOSPC:when=N`; with `+` behind the number all
//! later calls are meant, too. A signal comes before the call, an error in its place.
//! `GPUVM_TAMPER_LOG` is a file that gets the process ID at each signal.

use std::env;
use std::ffi::{c_int, c_long};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of the system call.
const FDATASYNC: c_long = if cfg!(target_arch = "x86_64") { 75 } else { 83 };
/// "No space left on device".
const ENOSPC: c_int = 28;

/// The change of a call.
enum Act {
    Signal(c_int),
    Error(c_int),
}

/// A change, and the call from which on it is made.
struct Tamper {
    act: Act,
    first: u64,
    is_open: bool,
}

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn kill(process: c_int, signal: c_int) -> c_int;
    fn __errno_location() -> *mut c_int;
}

/// Reads the variable; a program without it is left alone.
fn tamper() -> Option<&'static Tamper> {
    static TAMPER: OnceLock<Option<Tamper>> = OnceLock::new();
    let read = || {
        let text = env::var("GPUVM_TAMPER").ok()?;
        let (act, when) = text.split_once(":when=").expect("GPUVM_TAMPER has :when=");
        let act = match act {
            "signal=INT" => Act::Signal(2),
            "signal=KILL" => Act::Signal(9),
            "signal=STOP" => Act::Signal(19),
            "error=ENOSPC" => Act::Error(ENOSPC),
            other => panic!("GPUVM_TAMPER: {other}"),
        };
        let first = when.trim_end_matches('+').parse().expect("GPUVM_TAMPER has a number");
        Some(Tamper { act, first, is_open: when.ends_with('+') })
    };
    TAMPER.get_or_init(read).as_ref()
}

/// Adds this process to the log.
fn log() {
    let Ok(path) = env::var("GPUVM_TAMPER_LOG") else { return };
    let file = OpenOptions::new().append(true).create(true).open(path);
    writeln!(file.expect("the log"), "{}", process::id()).expect("the log");
}

/// As libc's.
#[unsafe(no_mangle)]
pub extern "C" fn fdatasync(file: c_int) -> c_int {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    if let Some(tamper) = tamper() {
        let call = CALLS.fetch_add(1, Ordering::SeqCst) + 1;
        if call == tamper.first || tamper.is_open && call > tamper.first {
            match tamper.act {
                Act::Signal(signal) => {
                    log();
                    // SAFETY: it has no memory.
                    unsafe { kill(process::id() as c_int, signal) };
                }
                Act::Error(error) => {
                    // SAFETY: the place is this thread's own.
                    unsafe { *__errno_location() = error };
                    return -1;
                }
            }
        }
    }
    // SAFETY: as libc calls it.
    unsafe { syscall(FDATASYNC, file) as c_int }
}
