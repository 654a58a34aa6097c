//! The configuration of the fake libraries: a text file of one setting per line, named by
//! GPUVM_FAKE_NVIDIA; where that is not set, the file `fake` beside the library.
//!
//! `board NAME`          h100, b200, a100, a100x2, hgx2: the list of partitions
//! `mode NUMBER`         Fabric Manager's mode, 1 by default; in 0 it rules no partitions, 2 is for
//!                       virtual functions
//! `address TEXT`        where Fabric Manager listens; without it everywhere
//! `gpu ADDRESS MODULE`  a GPU that the NVIDIA driver has; Fabric Manager reports its address on
//!                       a100 and hgx2
//! `active PARTITION`    a partition that is active from the start
//! `links MODULE COUNT`  a GPU with fewer NVLinks that work
//! `nvlink A B COUNT`    NVLinks between the GPUs at two addresses; those to switches follow from
//!                       the board
//! `gone MODULE`         a GPU that failed: its partitions are not listed, except on h100 and b200,
//!                       which list all
//! `failed MODULE PORT`  a port of a GPU that failed; reported on a100 and hgx2
//! `fail CALL CODE`      the result of a function
//! `fail_nth N CODE`     the result of the operation of this number, from 1; `done` behind it: the
//!                       operation takes effect all the same
//! `hang CALL`, `crash CALL`; `hang N`: the operation of this number
//! `die_after N WHEN`    the process ends in the operation of this number, `before` or `after` it
//!                       takes effect
//! `kill_caller N WHEN`  likewise the process that waits for this one, as by kill -9
//! `answers NAME`        `old`: IN_USE and UNINITIALIZED for partitions that are active and
//!                       inactive already; `new`: PARTITION_ID_IN_USE and
//!                       PARTITION_ID_NOT_IN_USE
//! `starting_for_ms MS`  Fabric Manager is not configured for this long from the first operation on
//! `restart_mode MS`     it waits for the list of active partitions, and ends without it after this
//!                       long
//! `resets FILE`         addresses of GPUs, one a line, in the order in which they are reset: on
//!                       a100 and hgx2 NVLinks of a partition that was active before do not come up
//!                       again
//! `health ADDRESS KEY N` NVML's report about a GPU, 0 by default: `remap-failed`,
//!                       `remap-pending`, `pages-pending`, `pages-sbe`, `pages-dbe`, `uncorrected`,
//!                       `sram-exceeded`, `replays`, `recoveries`, `crc-data`, `recovery` (with
//!                       `recovery-actions yes`, as of newer drivers), `mig`, `mig-pending`; `handle` and `every`: the
//!                       code that its handle, or every call on it, returns
//! `backed TYPE PROFILE EACH`  a vGPU type that GPU instances of this profile back, and how many vGPUs
//!                       share one; `-`: NVML does not report that
//! `instances ADDRESS PROFILE COUNT`  GPU instances of a GPU
//! `strict`              functions must be those of a partition's GPUs, in their order
//! `reversed`            partitions list their GPUs by descending module id
//! `old`                 Fabric Manager knows connection parameters of version 1 only
//! `count NUMBER`        the reported count of partitions, whatever the list
//! `journal FILE`        gets the name of each function that is called
//! `calls FILE`          gets a line for each operation: milliseconds since 1970, its name, its
//!                       arguments
//! `state FILE`          Fabric Manager's memory from one process to the next; without it only
//!                       `active` counts

use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// The dynamic loader's data about an address.
#[repr(C)]
struct DlInfo {
    file: *const c_char,
    base: *mut c_void,
    symbol: *const c_char,
    address: *mut c_void,
}

unsafe extern "C" {
    /// dlfcn.h.
    fn dladdr(address: *const c_void, info: *mut DlInfo) -> c_int;
}

/// The file `fake` beside the library that this code is in.
fn beside() -> OsString {
    let mut info = DlInfo {
        file: std::ptr::null(),
        base: std::ptr::null_mut(),
        symbol: std::ptr::null(),
        address: std::ptr::null_mut(),
    };
    // SAFETY: the address is that of a function; the value written has the requested size.
    let found = unsafe { dladdr(beside as *const c_void, &raw mut info) };
    assert!(found != 0, "the loader knows its libraries");
    // SAFETY: the loader's text lasts as long as the library.
    let file = unsafe { CStr::from_ptr(info.file) };
    let file = Path::new(std::ffi::OsStr::from_bytes(file.to_bytes()));
    file.with_file_name("fake").into_os_string()
}

/// The file's settings, as words.
pub struct Setting(Vec<Vec<String>>);

impl Setting {
    /// Reads the file.
    pub fn read() -> Setting {
        let file = std::env::var_os("GPUVM_FAKE_NVIDIA").unwrap_or_else(beside);
        let text = std::fs::read_to_string(file).expect("the test wrote the file");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        Setting(text.lines().map(words).collect())
    }

    /// Arguments of every line of a setting.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &[String]> {
        self.0
            .iter()
            .filter(move |words| words.first().is_some_and(|word| word == name))
            .map(|words| &words[1..])
    }

    /// The first argument of a setting.
    pub fn one(&self, name: &str) -> Option<&str> {
        self.all(name).next()?.first().map(String::as_str)
    }

    /// Whether a setting names a key.
    pub fn has(&self, name: &str, key: &str) -> bool {
        self.all(name).any(|words| words[0] == key)
    }

    /// The value of a key of a GPU's health; only NVML's fake asks.
    #[allow(dead_code)]
    pub fn health(&self, gpu: &str, key: &str) -> Option<u64> {
        let of = |words: &&[String]| words[0] == gpu && words[1] == key;
        Some(self.all("health").find(of)?[2].parse().expect("a number"))
    }

    /// Adds a line to the file that a setting names, if it does, in one go: two libraries in two
    /// processes write to it.
    pub fn append(&self, name: &str, line: &str) {
        let Some(file) = self.one(name) else { return };
        let file = std::fs::OpenOptions::new().append(true).create(true).open(file);
        let line = format!("{line}\n");
        let _ = file.expect("the file can be written").write_all(line.as_bytes());
    }

    /// Notes a call, and fails, hangs or crashes in it as told; a code to return at once, or none.
    pub fn enter(&self, call: &str) -> Option<i32> {
        // Output that a real library would write to the terminal.
        println!("fake: {call}");
        self.append("journal", call);
        if self.has("hang", call) {
            std::thread::sleep(Duration::from_secs(600));
        }
        if self.has("crash", call) {
            std::process::abort();
        }
        let failed = self.all("fail").find(|words| words[0] == call)?;
        Some(failed[1].parse().expect("a code"))
    }
}
