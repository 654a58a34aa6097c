//! Calls of Fabric Manager's client library, made in a child process. The declarations are our own,
//! from the published interface (gpuvm-hardware(7), FABRIC MANAGER).
#![allow(unsafe_code)] // calls into a C library

use super::config::Address;
use super::{Ask, ManagerRefusal, ManagerReply, abi};
use crate::loaded::{find, load};
use gpuvm_core::fabric::{Code, IN_USE, VERSION_MISMATCH};
use libloading::{Library, Symbol};
use std::ffi::{OsString, c_int, c_void};
use std::ptr;
use std::thread::sleep;
use std::time::{Duration, Instant};

const TIMEOUT: i32 = -5;
/// The code for a failed connection.
const CONNECTION_NOT_VALID: i32 = -9;

type Plain = unsafe extern "C" fn() -> c_int;
/// A function of an opaque handle.
type WithHandle = unsafe extern "C" fn(*mut c_void) -> c_int;
/// `fmConnect`.
type Connect = unsafe extern "C" fn(*mut u32, *mut *mut c_void) -> c_int;
/// Fills or reads a value: `fmGetSupportedFabricPartitions`, `fmSetActivatedFabricPartitions`,
/// `fmGetNvlinkFailedDevices`, `fmGetUnsupportedFabricPartitions`.
type WithValue = unsafe extern "C" fn(*mut c_void, *mut u32) -> c_int;
/// `fmActivateFabricPartition` and `fmDeactivateFabricPartition`: handle, number.
type WithNumber = unsafe extern "C" fn(*mut c_void, u32) -> c_int;
/// `fmActivateFabricPartitionWithVFs`: handle, number, functions, their count.
type WithFunctions = unsafe extern "C" fn(*mut c_void, u32, *mut u32, u32) -> c_int;

/// How to reach Fabric Manager.
pub struct Route<'a> {
    /// Names of its library, the first that exists is used.
    pub libraries: &'a [OsString],
    /// Its address.
    pub address: &'a Address,
    /// The library's connect timeout in milliseconds.
    pub connect_ms: u32,
    /// Number of attempts.
    pub connects: u32,
}

struct Session<'l> {
    library: &'l Library,
    handle: *mut c_void,
}

/// Makes the refusal of an unusable library.
fn absent(reason: String) -> ManagerRefusal {
    ManagerRefusal::Library { reason }
}

/// Makes the refusal of a call.
fn refused(call: &str, code: c_int) -> ManagerRefusal {
    ManagerRefusal::Call { call: call.into(), code: Code(code) }
}

/// Makes one request to Fabric Manager over a separate connection, which is always closed again.
pub fn ask(ask: &Ask, route: &Route<'_>) -> Result<ManagerReply, ManagerRefusal> {
    let library = load(route.libraries).map_err(absent)?;
    if *ask == Ask::Version {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        return Ok(ManagerReply::Version(version_in(&maps)));
    }
    // SAFETY: the types are those of the published interface.
    let (init, shutdown, disconnect) = unsafe {
        (
            find::<Plain>(&library, "fmLibInit").map_err(absent)?,
            find::<Plain>(&library, "fmLibShutdown").map_err(absent)?,
            find::<WithHandle>(&library, "fmDisconnect").map_err(absent)?,
        )
    };
    // SAFETY: takes nothing.
    match unsafe { init() } {
        0 | IN_USE => {}
        code => return Err(refused("fmLibInit", code)),
    }
    // SAFETY: takes nothing, and no connection is open.
    let close = |_: &ManagerRefusal| _ = unsafe { shutdown() };
    let handle = connect(&library, route).inspect_err(close)?;
    let answer = Session { library: &library, handle }.ask(ask);
    // SAFETY: the handle is open, and not used afterwards.
    unsafe {
        disconnect(handle);
        shutdown();
    }
    answer
}

/// Returns the version in the name of the library's file, as the kernel lists loaded files
/// (proc(5), `maps`), with links resolved. NVIDIA's versions begin with the driver's branch; a
/// lower number is an interface version.
fn version_in(maps: &str) -> Option<String> {
    let file = |line: &'_ str| line.rsplit_once('/').map(|(_, name)| name.to_owned());
    let name = maps.lines().filter_map(file).find(|name| name.starts_with("libnvfm.so"))?;
    let version = name.strip_prefix("libnvfm.so.")?;
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let (branch, _) = version.split_once('.')?;
    let is_version = branch.len() >= 3 && version.split('.').all(is_number);
    is_version.then(|| version.to_owned())
}

/// Connects, with retries: Fabric Manager may be starting.
fn connect(library: &Library, route: &Route<'_>) -> Result<*mut c_void, ManagerRefusal> {
    // SAFETY: the type is that of the published interface.
    let connect: Symbol<'_, Connect> = unsafe { find(library, "fmConnect") }.map_err(absent)?;
    let mut handle = ptr::null_mut();
    let mut open = |newer| -> Result<c_int, ManagerRefusal> {
        let params = abi::connect(route.address, route.connect_ms, newer);
        let mut params = params.ok_or_else(|| ManagerRefusal::Address(route.address.clone()))?;
        // SAFETY: the parameters have the size that their version word says; the handle is written
        // on success only.
        Ok(unsafe { connect(params.as_mut_ptr(), &raw mut handle) })
    };
    let wait = Duration::from_millis(route.connect_ms.into());
    for tries_left in (0..route.connects.max(1)).rev() {
        let begun = Instant::now();
        let code = match open(true)? {
            VERSION_MISMATCH => open(false)?,
            code => code,
        };
        match code {
            0 => return Ok(handle),
            TIMEOUT | CONNECTION_NOT_VALID if tries_left > 0 => {
                sleep(wait.saturating_sub(begun.elapsed()));
            }
            code => return Err(refused("fmConnect", code)),
        }
    }
    unreachable!("the last try returns")
}

impl Session<'_> {
    fn ask(&self, ask: &Ask) -> Result<ManagerReply, ManagerRefusal> {
        let list = |reason| ManagerRefusal::List { reason };
        match ask {
            Ask::List => {
                let mut value = abi::empty_list();
                self.value("fmGetSupportedFabricPartitions", &mut value)?;
                abi::partitions(&value).map(ManagerReply::Partitions).map_err(list)
            }
            Ask::Failed => {
                let mut value = abi::empty_failed();
                self.value("fmGetNvlinkFailedDevices", &mut value)?;
                abi::failed(&value).map(ManagerReply::Failed).map_err(list)
            }
            Ask::Unsupported => {
                let mut value = abi::empty_unsupported();
                self.value("fmGetUnsupportedFabricPartitions", &mut value)?;
                abi::unsupported(&value).map(ManagerReply::Unsupported).map_err(list)
            }
            Ask::SetActivated(ids) => {
                let mut value = abi::activated(ids).map_err(list)?;
                self.value("fmSetActivatedFabricPartitions", &mut value)?;
                Ok(ManagerReply::Done)
            }
            Ask::Activate { partition, vfs } if vfs.is_empty() => {
                self.number("fmActivateFabricPartition", *partition)
            }
            Ask::Activate { partition, vfs } => {
                let mut functions = abi::functions(vfs);
                self.functions("fmActivateFabricPartitionWithVFs", *partition, &mut functions)
            }
            Ask::Deactivate { partition } => self.number("fmDeactivateFabricPartition", *partition),
            Ask::Version => Ok(ManagerReply::Version(None)),
        }
    }

    /// Calls a function that fills or reads a value.
    fn value(&self, name: &str, value: &mut [u32]) -> Result<(), ManagerRefusal> {
        // SAFETY: the type is that of the published interface.
        let call: Symbol<'_, WithValue> = unsafe { find(self.library, name) }.map_err(absent)?;
        // SAFETY: the handle is open; the value has the size that its version word says.
        match unsafe { call(self.handle, value.as_mut_ptr()) } {
            0 => Ok(()),
            code => Err(refused(name, code)),
        }
    }

    /// Calls a function of a partition.
    fn number(&self, name: &str, partition: u32) -> Result<ManagerReply, ManagerRefusal> {
        // SAFETY: the type is that of the published interface.
        let call: Symbol<'_, WithNumber> = unsafe { find(self.library, name) }.map_err(absent)?;
        // SAFETY: the handle is open.
        match unsafe { call(self.handle, partition) } {
            0 => Ok(ManagerReply::Done),
            code => Err(refused(name, code)),
        }
    }

    /// Calls a function of a partition and PCI functions of four words each.
    fn functions(
        &self,
        name: &str,
        partition: u32,
        functions: &mut [u32],
    ) -> Result<ManagerReply, ManagerRefusal> {
        let count = u32::try_from(functions.len() / 4).unwrap_or(u32::MAX);
        // SAFETY: the type is that of the published interface.
        let call: Symbol<'_, WithFunctions> =
            unsafe { find(self.library, name) }.map_err(absent)?;
        // SAFETY: the handle is open; the count is that of the functions.
        match unsafe { call(self.handle, partition, functions.as_mut_ptr(), count) } {
            0 => Ok(ManagerReply::Done),
            code => Err(refused(name, code)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_the_name_of_the_file() {
        let maps = |name: &str| {
            format!(
                "7f00-7f01 r-xp 0 08:01 7 /usr/lib/libc.so.6\n7f02-7f03 rw-p 0 00:00 0 \n\
                 7f04-7f05 r-xp 0 08:01 9 /usr/lib/x86_64-linux-gnu/{name}\n"
            )
        };
        for (name, version) in [
            ("libnvfm.so.570.124.06", Some("570.124.06")),
            ("libnvfm.so.570.1", Some("570.1")),
            ("libnvfm.so.1", None),
            ("libnvfm.so.1.0.0", None),
            ("libnvfm.so.570", None),
            ("libnvfm.so.570.1.old", None),
            ("libnvfm.so", None),
            ("libcuda.so.570.1", None),
        ] {
            assert_eq!(version_in(&maps(name)).as_deref(), version, "{name}");
        }
    }
}
