//! A fake of NVML, `libnvidia-ml.so.1`: the functions that report module ids, NVLinks and the
//! health of GPUs. Compiled by the tests with rustc; configured by the file of the fake Fabric
//! Manager (fake-nvfm/setting.rs).

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
    if let Some(code) = setting.health(&address, "handle") {
        return code as c_int;
    }
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

/// The end of a link.
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

/// Answers a question about the health of a GPU: the setting of each key, 0 unless told. `rows`:
/// whether the call is of GPUs that remap rows; `None` if of all.
fn of_health<const N: usize>(
    call: &str,
    handle: usize,
    rows: Option<bool>,
    keys: [&str; N],
) -> Result<[u64; N], c_int> {
    let setting = Setting::read();
    if let Some(code) = setting.enter(call) {
        return Err(code);
    }
    let gpu = handle.checked_sub(1).and_then(|place| setting.all("gpu").nth(place));
    let Some(gpu) = gpu else { return Err(INVALID) };
    // Since A100 rows are remapped, before pages are retired.
    let remaps = setting.one("board") != Some("hgx2");
    if rows.is_some_and(|rows| rows != remaps) {
        return Err(NOT_SUPPORTED);
    }
    if let Some(code) = setting.health(&gpu[0], "every") {
        return Err(code as c_int);
    }
    Ok(keys.map(|key| setting.health(&gpu[0], key).unwrap_or(0)))
}

/// # Safety
/// The numbers have places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetRemappedRows(
    handle: usize,
    corrected: *mut c_uint,
    uncorrected: *mut c_uint,
    pending: *mut c_uint,
    failed: *mut c_uint,
) -> c_int {
    let keys = ["rows-corrected", "rows-uncorrected", "remap-pending", "remap-failed"];
    match of_health("nvmlDeviceGetRemappedRows", handle, Some(true), keys) {
        Ok(values) => {
            for (place, value) in [corrected, uncorrected, pending, failed].into_iter().zip(values) {
                // SAFETY: the caller gives places for them.
                unsafe { *place = value as c_uint };
            }
            0
        }
        Err(code) => code,
    }
}

/// # Safety
/// The count has a place, and the addresses have as many as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetRetiredPages(
    handle: usize,
    cause: c_uint,
    count: *mut c_uint,
    addresses: *mut u64,
) -> c_int {
    if cause > 1 || count.is_null() || addresses.is_null() {
        return INVALID;
    }
    let keys = ["pages-sbe", "pages-dbe"];
    match of_health("nvmlDeviceGetRetiredPages", handle, Some(false), keys) {
        Ok(values) => {
            let pages = values[cause as usize] as c_uint;
            // SAFETY: as the caller vouches.
            let room = unsafe { std::mem::replace(&mut *count, pages) };
            if pages > room {
                return 7;
            }
            for page in 0..pages as usize {
                // SAFETY: as the caller vouches.
                unsafe { *addresses.add(page) = 0x1000 * page as u64 };
            }
            0
        }
        Err(code) => code,
    }
}

/// # Safety
/// The state has a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetRetiredPagesPendingStatus(
    handle: usize,
    state: *mut c_uint,
) -> c_int {
    let call = "nvmlDeviceGetRetiredPagesPendingStatus";
    match of_health(call, handle, Some(false), ["pages-pending"]) {
        Ok([pending]) => {
            // SAFETY: the caller gives a place for it.
            unsafe { *state = pending as c_uint };
            0
        }
        Err(code) => code,
    }
}

/// # Safety
/// The number has a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    handle: usize,
    kind: c_uint,
    counter: c_uint,
    errors: *mut u64,
) -> c_int {
    let key = match (kind, counter) {
        (0, 0) => "corrected",
        (1, 0) => "uncorrected",
        (0, 1) => "corrected-ever",
        (1, 1) => "uncorrected-ever",
        _ => return INVALID,
    };
    match of_health("nvmlDeviceGetTotalEccErrors", handle, None, [key]) {
        Ok([value]) => {
            // SAFETY: the caller gives a place for it.
            unsafe { *errors = value };
            0
        }
        Err(code) => code,
    }
}

/// # Safety
/// The status has a place of 104 bytes, with the version in front.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetSramEccErrorStatus(handle: usize, status: *mut u8) -> c_int {
    // SAFETY: as the caller vouches.
    let version = unsafe { status.cast::<c_uint>().read() };
    if version != 104 | 1 << 24 {
        return 25; // argument version mismatch
    }
    match of_health("nvmlDeviceGetSramEccErrorStatus", handle, Some(true), ["sram-exceeded"]) {
        Ok([exceeded]) => {
            // SAFETY: as the caller vouches; the flag follows eleven counters.
            unsafe { status.add(96).cast::<c_uint>().write(exceeded as c_uint) };
            0
        }
        Err(code) => code,
    }
}

/// # Safety
/// The fields have places of 40 bytes each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetFieldValues(
    handle: usize,
    count: c_int,
    fields: *mut u8,
) -> c_int {
    for place in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: as the caller vouches.
        let field = unsafe { fields.add(40 * place) };
        // SAFETY: as the caller vouches.
        let id = unsafe { field.cast::<c_uint>().read() };
        let answer = of_health("nvmlDeviceGetFieldValues", handle, None, ["recovery"]);
        let (code, value) = match answer {
            // Drivers before 570 do not have it.
            Ok(_) if id != 230 || Setting::read().one("recovery-actions").is_none() => (3, 0),
            Ok([value]) => (0, value),
            Err(code) => (code, 0),
        };
        // SAFETY: as the caller vouches: type, code, value.
        unsafe {
            field.add(24).cast::<c_uint>().write(1);
            field.add(28).cast::<c_int>().write(code);
            field.add(32).cast::<u64>().write(value);
        }
    }
    0
}

/// # Safety
/// The number has a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkErrorCounter(
    handle: usize,
    link: c_uint,
    counter: c_uint,
    errors: *mut u64,
) -> c_int {
    let keys = ["replays", "recoveries", "crc-flits", "crc-data", "ecc-data"];
    let Some(key) = keys.get(counter as usize) else { return INVALID };
    match of_health("nvmlDeviceGetNvLinkErrorCounter", handle, None, [key]) {
        Ok([value]) => {
            // SAFETY: the caller gives a place for it. All errors are those of the first link.
            unsafe { *errors = if link == 0 { value } else { 0 } };
            0
        }
        Err(code) => code,
    }
}

/// # Safety
/// The numbers have places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(
    handle: usize,
    now: *mut c_uint,
    pending: *mut c_uint,
) -> c_int {
    // GPUs before A100 have no MIG.
    let keys = ["mig", "mig-pending"];
    match of_health("nvmlDeviceGetMigMode", handle, Some(true), keys) {
        Ok([mode, after]) => {
            // SAFETY: the caller gives places for them.
            unsafe { (*now, *pending) = (mode as c_uint, after as c_uint) };
            0
        }
        Err(code) => code,
    }
}

/// # Safety
/// The profile has a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlVgpuTypeGetGpuInstanceProfileId(
    of: c_uint,
    profile: *mut c_uint,
) -> c_int {
    let setting = Setting::read();
    if let Some(code) = setting.enter("nvmlVgpuTypeGetGpuInstanceProfileId") {
        return code;
    }
    let known = setting.all("backed").find(|words| words[0] == of.to_string());
    // SAFETY: the caller gives a place for it.
    unsafe { *profile = known.map_or(c_uint::MAX, |words| words[1].parse().expect("a profile")) };
    0
}

/// # Safety
/// The structure has three numbers: version, type, maximum.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlVgpuTypeGetMaxInstancesPerGpuInstance(all: *mut [c_uint; 3]) -> c_int {
    let setting = Setting::read();
    if let Some(code) = setting.enter("nvmlVgpuTypeGetMaxInstancesPerGpuInstance") {
        return code;
    }
    // SAFETY: as the caller vouches.
    let [version, of, most] = unsafe { &mut *all };
    if *version != 12 | 1 << 24 {
        return 25; // argument version mismatch
    }
    let known = setting.all("backed").find(|words| words[0] == of.to_string());
    match known.and_then(|words| words[2].parse().ok()) {
        Some(number) => {
            *most = number;
            0
        }
        None => NOT_SUPPORTED,
    }
}

/// # Safety
/// The instances have as many places as the GPU has of the profile, and their number has one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstances(
    handle: usize,
    profile: c_uint,
    instances: *mut usize,
    count: *mut c_uint,
) -> c_int {
    let setting = Setting::read();
    if let Some(code) = setting.enter("nvmlDeviceGetGpuInstances") {
        return code;
    }
    let gpu = handle.checked_sub(1).and_then(|place| setting.all("gpu").nth(place));
    let Some(gpu) = gpu else { return INVALID };
    let is_it = |words: &&[String]| words[0] == gpu[0] && words[1] == profile.to_string();
    let Some(known) = setting.all("instances").find(is_it) else { return NOT_SUPPORTED };
    let number: usize = known[2].parse().expect("a number");
    for place in 0..number {
        // SAFETY: as the caller vouches.
        unsafe { *instances.add(place) = place + 1 };
    }
    // SAFETY: as the caller vouches.
    unsafe { *count = number as c_uint };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: c_int) -> *const c_char {
    match code {
        NOT_SUPPORTED => c"Not Supported",
        NOT_FOUND => c"Not Found",
        15 => c"GPU is lost",
        16 => c"GPU requires reset",
        18 => c"Driver/library version mismatch",
        _ => c"Unknown Error",
    }
    .as_ptr()
}
