//! A fake of NVML, `libnvidia-ml.so.1`: the functions that tell module ids. Compiled by the tests with rustc; told what
//! to be by the file of the fake Fabric Manager (fake-nvfm/setting.rs).

#[path = "../fake-nvfm/setting.rs"]
mod setting;

use setting::Setting;
use std::ffi::{CStr, c_char, c_int, c_uint};

/// NVML's "invalid argument" and "not found".
const INVALID: c_int = 2;
const NOT_FOUND: c_int = 6;

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(flags: c_uint) -> c_int {
    let code = Setting::read().enter("nvmlInitWithFlags");
    code.unwrap_or(if flags > 3 { INVALID } else { 0 })
}

/// # Safety
/// The address ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    address: *const c_char,
    handle: *mut usize,
) -> c_int {
    let setting = Setting::read();
    if let Some(code) = setting.enter("nvmlDeviceGetHandleByPciBusId_v2") {
        return code;
    }
    // SAFETY: as the caller vouches.
    let address = unsafe { CStr::from_ptr(address) }.to_string_lossy().into_owned();
    match setting.all("gpu").position(|words| words[0] == address) {
        Some(place) => {
            // SAFETY: the caller gives a place for it.
            unsafe { *handle = place + 1 };
            0
        }
        None => NOT_FOUND,
    }
}

/// # Safety
/// The id has a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetModuleId(handle: usize, module: *mut c_uint) -> c_int {
    let setting = Setting::read();
    if let Some(code) = setting.enter("nvmlDeviceGetModuleId") {
        return code;
    }
    let Some(place) = handle.checked_sub(1) else { return INVALID };
    let Some(words) = setting.all("gpu").nth(place) else { return INVALID };
    // SAFETY: the caller gives a place for it.
    unsafe { *module = words[1].parse().expect("a module id") };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: c_int) -> *const c_char {
    match code {
        3 => c"Not Supported",
        NOT_FOUND => c"Not Found",
        15 => c"GPU is lost",
        18 => c"Driver/library version mismatch",
        _ => c"Unknown Error",
    }
    .as_ptr()
}
