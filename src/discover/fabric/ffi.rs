//! NVIDIA's libraries, loaded by name at run time and called in a process of their own: they may be missing, may hang
//! in the driver, may write to the terminal and may crash, and none of that may reach our program. The declarations are
//! our own, after the published interface (spec/nvswitch.md 4; NVML's public documentation).
#![allow(unsafe_code)] // calls into C libraries, and the fork that keeps them away

use super::abi::{self, Code, IN_USE, LIST_WORDS, Listed, VERSION_MISMATCH};
use super::ask::{ManagerRefusal, NvmlAnswer};
use super::config::Address;
use crate::bdf::Bdf;
use libloading::{Library, Symbol};
use nix::libc;
use nix::unistd::{ForkResult, Pid, fork};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fs::OpenOptions;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::ptr;

/// Names of Fabric Manager's client library; only development packages have the second.
const MANAGER: [&str; 2] = ["libnvfm.so.1", "libnvfm.so"];
/// NVML's name.
const NVML: &str = "libnvidia-ml.so.1";

/// Takes nothing.
type Plain = unsafe extern "C" fn() -> c_int;
/// Takes an opaque handle.
type WithHandle = unsafe extern "C" fn(*mut c_void) -> c_int;
/// `fmConnect`.
type Connect = unsafe extern "C" fn(*mut u32, *mut *mut c_void) -> c_int;
/// `fmGetSupportedFabricPartitions`.
type GetPartitions = unsafe extern "C" fn(*mut c_void, *mut u32) -> c_int;
/// `nvmlInitWithFlags`.
type InitWithFlags = unsafe extern "C" fn(c_uint) -> c_int;
/// `nvmlDeviceGetHandleByPciBusId_v2`.
type GetHandle = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
/// `nvmlDeviceGetModuleId`.
type GetModuleId = unsafe extern "C" fn(*mut c_void, *mut c_uint) -> c_int;
/// `nvmlErrorString`.
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// Runs `ask` in a child process; gives its id and the end of a socket that what `ask` returns comes out of.
pub fn in_child(ask: impl FnOnce() -> Vec<u8>) -> std::io::Result<(Pid, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    // SAFETY: the child runs only `ask`, writes and leaves by `_exit`; should another thread of ours hold a lock that
    // it needs, it hangs, and the parent's deadline ends it.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok((child, ours)),
        ForkResult::Child => {
            drop(ours);
            answer(theirs, ask)
        }
    }
}

/// The child's whole life: silent, ended with its parent, never returning into the parent's code.
fn answer(mut to: UnixStream, ask: impl FnOnce() -> Vec<u8>) -> ! {
    let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
    if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdout(&null);
        let _ = nix::unistd::dup2_stderr(&null);
    }
    // Without an answer the parent sees that there is none.
    if let Ok(bytes) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(ask)) {
        let _ = to.write_all(&bytes);
        // Ends the answer also where another child holds a copy of the socket.
        let _ = to.shutdown(Shutdown::Write);
    }
    drop(to);
    // SAFETY: ends the process at once; the parent's exit handlers are not the child's to run.
    unsafe { libc::_exit(0) }
}

/// Loads the first of the libraries that is there; the error says what the loader says of the first.
fn load(names: &[&str]) -> Result<Library, String> {
    let mut first = None;
    for name in names {
        // SAFETY: the libraries' initialisers have no preconditions.
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok(library),
            Err(error) => first = first.or(Some(error.to_string())),
        }
    }
    Err(first.unwrap_or_default())
}

/// Finds a function.
///
/// # Safety
/// `F` must be the type of the function of that name.
unsafe fn find<'l, F>(library: &'l Library, name: &str) -> Result<Symbol<'l, F>, String> {
    // SAFETY: as the caller vouches.
    unsafe { library.get(name.as_bytes()) }.map_err(|error| error.to_string())
}

/// Asks Fabric Manager for its partitions. Whatever happens, the connection is closed again.
pub fn partitions(address: &Address, timeout_ms: u32) -> Result<Vec<Listed>, ManagerRefusal> {
    let absent = |reason| ManagerRefusal::Library { reason };
    let library = load(&MANAGER).map_err(absent)?;
    // SAFETY: the types are those of the published interface.
    let (init, shutdown, connect, disconnect, get) = unsafe {
        (
            find::<Plain>(&library, "fmLibInit").map_err(absent)?,
            find::<Plain>(&library, "fmLibShutdown").map_err(absent)?,
            find::<Connect>(&library, "fmConnect").map_err(absent)?,
            find::<WithHandle>(&library, "fmDisconnect").map_err(absent)?,
            find::<GetPartitions>(&library, "fmGetSupportedFabricPartitions").map_err(absent)?,
        )
    };
    let refused = |call: &str, code| ManagerRefusal::Call { call: call.into(), code: Code(code) };
    // SAFETY: takes nothing.
    match unsafe { init() } {
        0 | IN_USE => {}
        code => return Err(refused("fmLibInit", code)),
    }
    let mut handle = ptr::null_mut();
    let mut open = |newer| -> Result<c_int, ManagerRefusal> {
        let params = abi::connect(address, timeout_ms, newer);
        let mut params = params.ok_or_else(|| ManagerRefusal::Address(address.clone()))?;
        // SAFETY: the parameters have the size that their version word says; the handle is written on success only.
        Ok(unsafe { connect(params.as_mut_ptr(), &raw mut handle) })
    };
    let connected = match open(true)? {
        VERSION_MISMATCH => open(false)?,
        code => code,
    };
    if connected != 0 {
        return Err(refused("fmConnect", connected));
    }
    let mut list = abi::empty_list();
    debug_assert_eq!(list.len(), LIST_WORDS, "the library writes into all of it");
    // SAFETY: the handle is open; the list has the size that its version word says.
    let code = unsafe { get(handle, list.as_mut_ptr()) };
    // SAFETY: the handle is open, and not used afterwards.
    unsafe {
        disconnect(handle);
        shutdown();
    }
    match code {
        0 => abi::partitions(&list).map_err(|reason| ManagerRefusal::List { reason }),
        code => Err(refused("fmGetSupportedFabricPartitions", code)),
    }
}

/// Asks NVML for module ids of GPUs that are bound to its driver.
pub fn module_ids(gpus: &[Bdf]) -> Result<NvmlAnswer, String> {
    /// No GPU need be there, and none is attached before it is asked for.
    const LAZY: c_uint = 1 | 2;
    let library = load(&[NVML])?;
    // SAFETY: the types are those of NVML's documentation.
    let (init, handle_of, module_of, words) = unsafe {
        (
            find::<InitWithFlags>(&library, "nvmlInitWithFlags")?,
            find::<GetHandle>(&library, "nvmlDeviceGetHandleByPciBusId_v2")?,
            find::<GetModuleId>(&library, "nvmlDeviceGetModuleId")?,
            find::<ErrorString>(&library, "nvmlErrorString")?,
        )
    };
    let name = |code: c_int| {
        // SAFETY: gives a text for every number, which lasts as long as the library is loaded.
        let text = unsafe { words(code) };
        if text.is_null() {
            return format!("code {code}");
        }
        // SAFETY: not null, and ended by a zero.
        let text = unsafe { CStr::from_ptr(text) };
        format!("{} ({code})", text.to_string_lossy())
    };
    // SAFETY: takes a number.
    let code = unsafe { init(LAZY) };
    if code != 0 {
        return Err(format!("nvmlInitWithFlags: {}", name(code)));
    }
    let mut answer = NvmlAnswer::default();
    for &gpu in gpus {
        let address = CString::new(gpu.to_string()).expect("an address has no zero byte");
        let (mut handle, mut module): (*mut c_void, c_uint) = (ptr::null_mut(), 0);
        // SAFETY: the address ends with a zero; the handle is written on success only.
        let mut code = unsafe { handle_of(address.as_ptr(), &raw mut handle) };
        if code == 0 {
            // SAFETY: the handle is NVML's; the number is written on success only.
            code = unsafe { module_of(handle, &raw mut module) };
        }
        match (code, module) {
            (0, 0) => answer.silent.push((gpu, "it is on no baseboard (module id 0)".into())),
            (0, module) => answer.ids.push((gpu, module)),
            (code, _) => answer.silent.push((gpu, name(code))),
        }
    }
    // The process ends now; NVML's own shutdown would only take time.
    Ok(answer)
}
