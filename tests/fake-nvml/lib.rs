//! A fake of NVML, `libnvidia-ml.so.1`: the functions that report module ids and NVLinks. Compiled
//! by the tests with rustc; configured by the file of the fake Fabric Manager
//! (fake-nvfm/setting.rs).

#[path = "../fake-nvfm/setting.rs"]
mod setting;

use setting::Setting;
use std::ffi::{CStr, c_char, c_int, c_uint};

/// NVML's "invalid argument" and "not found".
const INVALID: c_int = 2;
const NOT_FOUND: c_int = 6;
/// NVML's "not supported".
const NOT_SUPPORTED: c_int = 3;

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

/// What is at the end of a link.
enum End {
    /// A GPU at this address.
    Gpu(String),
    /// An NVSwitch.
    Switch,
    /// Nothing: the link is down.
    Down,
}

/// The links of the GPU of a handle; none if the handle is unknown.
fn links(setting: &Setting, handle: usize) -> Option<Vec<End>> {
    let gpu = setting.all("gpu").nth(handle.checked_sub(1)?)?;
    let mut ends = Vec::new();
    for pair in setting.all("nvlink") {
        let peer = match (pair[0] == gpu[0], pair[1] == gpu[0]) {
            (true, _) => &pair[1],
            (_, true) => &pair[0],
            _ => continue,
        };
        let count: usize = pair[2].parse().expect("a count of links");
        ends.extend((0..count).map(|_| End::Gpu(peer.clone())));
    }
    let most = match setting.one("board") {
        Some("h100" | "b200") => 18,
        Some("a100" | "a100x2") => 12,
        Some("hgx2") => 6,
        _ => 0,
    };
    let fewer = setting.all("links").find(|words| words[0] == gpu[1]);
    let up = fewer.map_or(most, |words| words[1].parse().expect("a count of links"));
    ends.extend((0..most).map(|link| if link < up { End::Switch } else { End::Down }));
    Some(ends)
}

/// Answers a question about a link; NVML does not support those that a GPU does not have.
fn of_link(call: &str, handle: usize, link: c_uint, answer: impl FnOnce(&End) -> c_int) -> c_int {
    let setting = Setting::read();
    if let Some(code) = setting.enter(call) {
        return code;
    }
    let Some(ends) = links(&setting, handle) else { return INVALID };
    match ends.get(link as usize) {
        Some(end) => answer(end),
        None if link < 18 => NOT_SUPPORTED,
        None => INVALID,
    }
}

/// # Safety
/// The state has a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkState(
    handle: usize,
    link: c_uint,
    state: *mut c_uint,
) -> c_int {
    of_link("nvmlDeviceGetNvLinkState", handle, link, |end| {
        // SAFETY: the caller gives a place for it.
        unsafe { *state = c_uint::from(!matches!(end, End::Down)) };
        0
    })
}

/// # Safety
/// The kind has a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkRemoteDeviceType(
    handle: usize,
    link: c_uint,
    kind: *mut c_uint,
) -> c_int {
    of_link("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link, |end| {
        let known = match end {
            End::Gpu(_) => 0,
            End::Switch => 2,
            End::Down => 255,
        };
        // SAFETY: the caller gives a place for it.
        unsafe { *kind = known };
        0
    })
}

/// # Safety
/// The information has a place of 68 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
    handle: usize,
    link: c_uint,
    info: *mut u8,
) -> c_int {
    of_link("nvmlDeviceGetNvLinkRemotePciInfo_v2", handle, link, |end| {
        let address = match end {
            End::Gpu(address) => address.as_str(),
            // No function of the recorded hosts.
            End::Switch => "00c0:05:00.0",
            End::Down => return NOT_SUPPORTED,
        };
        let number = |text: &str| u32::from_str_radix(text, 16).expect("an address");
        let (segment, rest) = address.split_once(':').expect("an address");
        let fields = [number(segment), number(&rest[..2]), number(&rest[3..5]), 0x233010de, 0];
        let mut bytes = [0u8; 68];
        bytes[..12].copy_from_slice(&address.as_bytes()[..12]);
        for (place, field) in fields.iter().enumerate() {
            bytes[16 + 4 * place..20 + 4 * place].copy_from_slice(&field.to_ne_bytes());
        }
        bytes[36..36 + address.len()].copy_from_slice(address.as_bytes());
        // SAFETY: the caller gives a place for it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), info, bytes.len()) };
        0
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: c_int) -> *const c_char {
    match code {
        NOT_SUPPORTED => c"Not Supported",
        NOT_FOUND => c"Not Found",
        15 => c"GPU is lost",
        18 => c"Driver/library version mismatch",
        _ => c"Unknown Error",
    }
    .as_ptr()
}
