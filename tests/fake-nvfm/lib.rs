//! A fake of Fabric Manager's client library, `libnvfm.so.1`, and of Fabric Manager behind it:
//! partitions are listed, activated and deactivated, with the published layouts (gpuvm-hardware(7),
//! FABRIC MANAGER). Compiled by the tests with rustc; see setting.rs for its settings, state.rs for
//! its state.
//!
//! The lists and the answers are repeated here from the publication, so that the program's tables
//! are checked independently.

mod setting;
mod state;

use setting::Setting;
use state::State;
use std::ffi::{c_char, c_int};
use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicU32, Ordering};

/// The arguments are wrong, or there is no such partition.
const BADPARAM: c_int = -1;
/// Not in this mode.
const NOT_SUPPORTED: c_int = -3;
/// The library is not initialised; by older releases also: the partition is not active.
const UNINITIALIZED: c_int = -4;
/// The version word is not known.
const VERSION_MISMATCH: c_int = -6;
/// By older releases: the partition is active, or another one has GPUs of it.
const IN_USE: c_int = -7;
/// Fabric Manager cannot be reached.
const CONNECTION_NOT_VALID: c_int = -9;
/// By newer releases.
const PARTITION_ID_IN_USE: c_int = -17;
/// By newer releases.
const PARTITION_ID_NOT_IN_USE: c_int = -18;

/// Connection parameters, version 2; version 1 ends before `address_type`.
#[repr(C)]
pub struct ConnectParams {
    version: u32,
    address: [c_char; 256],
    timeout_ms: u32,
    is_unix: u32,
    address_type: u32,
}

/// A GPU of a partition.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct GpuInfo {
    physical_id: u32,
    uuid: [c_char; 80],
    pci_bus_id: [c_char; 32],
    links_available: u32,
    links_most: u32,
    line_rate_mbps: u32,
}

/// A partition.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PartitionInfo {
    partition_id: u32,
    is_active: u32,
    num_gpus: u32,
    gpus: [GpuInfo; 16],
}

/// The list.
#[repr(C)]
pub struct PartitionList {
    version: u32,
    num_partitions: u32,
    max_partitions: u32,
    partitions: [PartitionInfo; 64],
}

/// A PCI function.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PciDevice {
    domain: u32,
    bus: u32,
    device: u32,
    function: u32,
}

/// The list of partitions to be marked as active.
#[repr(C)]
pub struct ActivatedList {
    version: u32,
    num_partitions: u32,
    partition_ids: [u32; 64],
}

/// A device with failed NVLinks.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FailedDeviceInfo {
    uuid: [c_char; 80],
    pci_bus_id: [c_char; 32],
    num_ports: u32,
    port_num: [u32; 64],
}

/// The list of these.
#[repr(C)]
pub struct FailedDevices {
    version: u32,
    num_gpus: u32,
    num_switches: u32,
    gpus: [FailedDeviceInfo; 16],
    switches: [FailedDeviceInfo; 12],
}

/// A partition that is not available.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UnsupportedInfo {
    partition_id: u32,
    num_gpus: u32,
    physical_ids: [u32; 16],
}

/// The list of these.
#[repr(C)]
pub struct UnsupportedList {
    version: u32,
    num_partitions: u32,
    partitions: [UnsupportedInfo; 64],
}

const _: () = assert!(size_of::<PciDevice>() == 16 && size_of::<ActivatedList>() == 264);
const _: () = assert!(size_of::<FailedDeviceInfo>() == 372 && size_of::<FailedDevices>() == 10428);
const _: () = assert!(offset_of!(FailedDevices, switches) == 5964);
const _: () = assert!(size_of::<UnsupportedInfo>() == 72 && size_of::<UnsupportedList>() == 4616);
const _: () =
    assert!(size_of::<ConnectParams>() == 272 && offset_of!(ConnectParams, timeout_ms) == 260);
const _: () = assert!(offset_of!(ConnectParams, address_type) == 268);
const _: () = assert!(size_of::<GpuInfo>() == 128 && offset_of!(GpuInfo, pci_bus_id) == 84);
const _: () =
    assert!(offset_of!(GpuInfo, links_available) == 116 && offset_of!(GpuInfo, links_most) == 120);
const _: () = assert!(size_of::<PartitionInfo>() == 2060 && offset_of!(PartitionInfo, gpus) == 12);
const _: () =
    assert!(size_of::<PartitionList>() == 131_852 && offset_of!(PartitionList, partitions) == 12);

/// Sets of more than one GPU, the links of each GPU in them, and the number of the first.
fn list(board: &str) -> (&'static str, u32, u32) {
    match board {
        "h100" => ("1-8 1-4 5-8 1,3 2,4 5,7 6,8", 18, 0),
        "b200" => ("1-8 1-4 5-8 1,2 3,4 5,6 7,8", 18, 1),
        "a100" | "a100x2" => (
            "1-16 1-8 9-16 1-4,9-12 5-8,13-16 1-4,13-16 5-8,9-12 1-4 5-8 9-12 13-16 1,2 3,4 5,6 \
             7,8 9,10 11,12 13,14 15,16",
            12,
            0,
        ),
        "hgx2" => (
            "1-16 1-8 9-16 1,4,6,7,9,12,14,15 2,3,5,8,10,11,13,16 1,4,6,7 2,3,5,8 9,12,14,15 \
             10,11,13,16 1,4 2,3 5,8 6,7 9,12 10,11 13,16 14,15",
            6,
            0,
        ),
        other => panic!("board {other} is not known"),
    }
}

/// Reads `1-4,9-12`.
fn modules(set: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<u32>().unwrap()..=last.parse().unwrap()
    };
    set.split(',').flat_map(range).collect()
}

/// 0: the library is not initialised; else 1 and one for each open connection.
static STATE: AtomicU32 = AtomicU32::new(0);
/// The handle of every connection.
const HANDLE: usize = 0xfab;

/// Writes a text that ends with a zero.
fn write(to: &mut [c_char], text: &str) {
    for (place, byte) in to.iter_mut().zip(text.bytes()) {
        *place = byte as c_char;
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn fmLibInit() -> c_int {
    if let Some(code) = Setting::read().enter("fmLibInit") {
        return code;
    }
    let first = STATE.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst);
    if first.is_ok() { 0 } else { IN_USE }
}

#[unsafe(no_mangle)]
pub extern "C" fn fmLibShutdown() -> c_int {
    Setting::read().enter("fmLibShutdown");
    // Connections end with it.
    if STATE.swap(0, Ordering::SeqCst) > 0 { 0 } else { UNINITIALIZED }
}

/// # Safety
/// The parameters have the size that their version says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fmConnect(params: *const ConnectParams, handle: *mut usize) -> c_int {
    let setting = Setting::read();
    if let Some(code) = setting.enter("fmConnect") {
        return code;
    }
    if STATE.load(Ordering::SeqCst) == 0 {
        return UNINITIALIZED;
    }
    if params.is_null() || handle.is_null() {
        return BADPARAM;
    }
    // SAFETY: all versions start with the same fields.
    let (version, address, timeout_ms, is_unix) =
        unsafe { ((*params).version, (*params).address, (*params).timeout_ms, (*params).is_unix) };
    match version {
        0x0200_0110 if setting.all("old").next().is_none() => {
            // SAFETY: this version has the field.
            if unsafe { (*params).address_type } != is_unix + 1 {
                return BADPARAM;
            }
        }
        0x0100_010C => {}
        _ => return VERSION_MISMATCH,
    }
    if timeout_ms == 0 {
        return -5;
    }
    if state::has_ended(&setting) {
        return CONNECTION_NOT_VALID;
    }
    let address: Vec<u8> = address.iter().map(|c| *c as u8).take_while(|byte| *byte != 0).collect();
    if setting.one("address").is_some_and(|listens| listens.as_bytes() != address) {
        return CONNECTION_NOT_VALID;
    }
    STATE.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the caller gives a place for it.
    unsafe { *handle = HANDLE };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn fmDisconnect(handle: usize) -> c_int {
    Setting::read().enter("fmDisconnect");
    match connected(handle) {
        0 => {
            STATE.fetch_sub(1, Ordering::SeqCst);
            0
        }
        code => code,
    }
}

/// The library's own answer before it asks Fabric Manager: 0 if the handle is one of an open
/// connection.
fn connected(handle: usize) -> c_int {
    match STATE.load(Ordering::SeqCst) {
        0 => UNINITIALIZED,
        2.. if handle == HANDLE => 0,
        _ => BADPARAM,
    }
}

/// As [`connected`], for an operation that reads or fills a value.
fn connected_with<T>(handle: usize, value: *const T) -> c_int {
    match connected(handle) {
        0 if value.is_null() => BADPARAM,
        code => code,
    }
}

/// # Safety
/// The list has the size that its version says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fmGetSupportedFabricPartitions(
    handle: usize,
    list: *mut PartitionList,
) -> c_int {
    let open = connected_with(handle, list);
    state::operation("fmGetSupportedFabricPartitions", "", open, |setting, state| {
        // SAFETY: as the caller vouches.
        let list = unsafe { &mut *list };
        if list.version != 0x0102_030C {
            return VERSION_MISMATCH;
        }
        fill(list, setting, state);
        0
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn fmActivateFabricPartition(handle: usize, id: u32) -> c_int {
    let (name, given) = ("fmActivateFabricPartition", id.to_string());
    state::operation(name, &given, connected(handle), |setting, state| {
        // In the mode for vGPU functions go along.
        if setting.number("mode") == Some(2) {
            return NOT_SUPPORTED;
        }
        activate(id, setting, state)
    })
}

/// # Safety
/// `functions` points to `count` functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fmActivateFabricPartitionWithVFs(
    handle: usize,
    id: u32,
    functions: *const PciDevice,
    count: u32,
) -> c_int {
    let open = connected_with(handle, functions);
    let all = if functions.is_null() {
        &[]
    } else {
        // SAFETY: as the caller vouches.
        unsafe { std::slice::from_raw_parts(functions, count as usize) }
    };
    let text = |one: &PciDevice| {
        format!(" {:04x}:{:02x}:{:02x}.{}", one.domain, one.bus, one.device, one.function)
    };
    let given = format!("{id}{}", all.iter().map(text).collect::<String>());
    state::operation("fmActivateFabricPartitionWithVFs", &given, open, |setting, state| {
        let gpus = partitions(setting).into_iter().find(|(known, _)| *known == id);
        match gpus {
            // Functions go with the mode for vGPU only.
            _ if setting.number("mode") != Some(2) => NOT_SUPPORTED,
            Some((_, gpus)) if gpus.len() == all.len() && are_theirs(setting, &gpus, all) => {
                activate(id, setting, state)
            }
            _ => BADPARAM,
        }
    })
}

/// Whether functions are of a partition's GPUs, in the order in which these are listed; not looked
/// at unless the test wants it.
fn are_theirs(setting: &Setting, gpus: &[u32], functions: &[PciDevice]) -> bool {
    let bus = |one: &PciDevice| format!("{:04x}:{:02x}:00.0", one.domain, one.bus);
    let is_of = |(gpu, one): (&u32, &PciDevice)| {
        let address = setting.all("gpu").find(|words| words[1] == gpu.to_string());
        address.is_some_and(|words| words[0] == bus(one))
    };
    setting.all("strict").next().is_none() || gpus.iter().zip(functions).all(is_of)
}

#[unsafe(no_mangle)]
pub extern "C" fn fmDeactivateFabricPartition(handle: usize, id: u32) -> c_int {
    let (name, given) = ("fmDeactivateFabricPartition", id.to_string());
    state::operation(name, &given, connected(handle), |setting, state| {
        if partitions(setting).iter().all(|(known, _)| *known != id) {
            return BADPARAM;
        }
        match state.deactivate(id) {
            true => 0,
            false if setting.one("answers") == Some("new") => PARTITION_ID_NOT_IN_USE,
            false => UNINITIALIZED,
        }
    })
}

/// # Safety
/// The list has the size that its version says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fmSetActivatedFabricPartitions(
    handle: usize,
    list: *const ActivatedList,
) -> c_int {
    let open = connected_with(handle, list);
    let none = ActivatedList { version: 0, num_partitions: 0, partition_ids: [0; 64] };
    // SAFETY: as the caller vouches.
    let list = unsafe { list.as_ref() }.unwrap_or(&none);
    let ids = &list.partition_ids[..(list.num_partitions as usize).min(64)];
    let given = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    state::operation("fmSetActivatedFabricPartitions", &given, open, |setting, state| {
        let known = partitions(setting);
        let gpus: Vec<u32> = ids
            .iter()
            .flat_map(|id| known.iter().filter(move |(known, _)| known == id))
            .flat_map(|(_, gpus)| gpus.clone())
            .collect();
        let twice = gpus.iter().any(|gpu| gpus.iter().filter(|other| *other == gpu).count() > 1);
        if list.version != 0x0100_0108 {
            VERSION_MISMATCH
        } else if state.is_told || setting.number("restart_mode").is_none() {
            NOT_SUPPORTED
        } else if list.num_partitions > 64
            || twice
            || ids.iter().any(|id| known.iter().all(|(known, _)| known != id))
        {
            BADPARAM
        } else {
            state.report(ids);
            0
        }
    })
}

/// # Safety
/// The list has the size that its version says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fmGetNvlinkFailedDevices(
    handle: usize,
    list: *mut FailedDevices,
) -> c_int {
    let open = connected_with(handle, list);
    state::operation("fmGetNvlinkFailedDevices", "", open, |setting, _| {
        // SAFETY: as the caller vouches.
        let list = unsafe { &mut *list };
        if list.version != 0x0100_28BC {
            return VERSION_MISMATCH;
        }
        let failed = setting.all("failed").filter(|_| knows_addresses(setting));
        for (info, words) in list.gpus.iter_mut().zip(failed) {
            write(&mut info.uuid, &format!("GPU-{}", words[0]));
            if let Some(gpu) = setting.all("gpu").find(|gpu| gpu[1] == words[0]) {
                write(&mut info.pci_bus_id, &format!("0000{}", gpu[0].to_uppercase()));
            }
            info.num_ports = words[1..].len() as u32;
            for (port, word) in info.port_num.iter_mut().zip(&words[1..]) {
                *port = word.parse().unwrap();
            }
            list.num_gpus += 1;
        }
        0
    })
}

/// # Safety
/// The list has the size that its version says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fmGetUnsupportedFabricPartitions(
    handle: usize,
    list: *mut UnsupportedList,
) -> c_int {
    let open = connected_with(handle, list);
    state::operation("fmGetUnsupportedFabricPartitions", "", open, |setting, _| {
        // SAFETY: as the caller vouches.
        let list = unsafe { &mut *list };
        if list.version != 0x0100_1208 {
            return VERSION_MISMATCH;
        }
        let listed = partitions(setting);
        let is_gone = |id: u32| listed.iter().all(|(known, _)| *known != id);
        let gone = published(setting).into_iter().filter(|(id, _)| is_gone(*id));
        for (info, (id, gpus)) in list.partitions.iter_mut().zip(gone) {
            (info.partition_id, info.num_gpus) = (id, gpus.len() as u32);
            for (place, gpu) in info.physical_ids.iter_mut().zip(gpus) {
                *place = gpu;
            }
            list.num_partitions += 1;
        }
        0
    })
}

/// Activates a partition, unless one that is active has a GPU of it.
fn activate(id: u32, setting: &Setting, state: &mut State) -> c_int {
    let all = partitions(setting);
    let gpus_of = |id: u32| all.iter().find(|(known, _)| *known == id).map(|(_, gpus)| gpus);
    let Some(gpus) = gpus_of(id) else { return BADPARAM };
    let shares = |other: u32| gpus_of(other).is_some_and(|one| one.iter().any(|g| gpus.contains(g)));
    if state.active().any(shares) {
        return match setting.one("answers") {
            Some("new") => PARTITION_ID_IN_USE,
            _ => IN_USE,
        };
    }
    state.activate(id, setting);
    0
}

/// Whether this Fabric Manager knows addresses of GPUs: not from H100 on.
fn knows_addresses(setting: &Setting) -> bool {
    matches!(setting.one("board"), Some("a100" | "a100x2" | "hgx2"))
}

/// The partitions of a board whose GPUs are all there in principle: number and module ids.
fn published(setting: &Setting) -> Vec<(u32, Vec<u32>)> {
    let board = setting.one("board").expect("the test names a board");
    let (sets, _, first) = list(board);
    let most = if matches!(board, "a100x2" | "hgx2") { 16 } else { 8 };
    let listed = if board == "a100" { 16 } else { most };
    let singles: Vec<String> = (1..=listed).map(|module| module.to_string()).collect();
    let all = sets.split_whitespace().chain(singles.iter().map(String::as_str));
    let is_there = |gpus: &Vec<u32>| gpus.iter().all(|gpu| *gpu <= most);
    (first..).zip(all.map(modules)).filter(|(_, gpus)| is_there(gpus)).collect()
}

/// The partitions that are listed. From H100 on those of failed GPUs are, too.
fn partitions(setting: &Setting) -> Vec<(u32, Vec<u32>)> {
    let is_gone = |gpu: &u32| knows_addresses(setting) && setting.has("gone", &gpu.to_string());
    let mut all = published(setting);
    all.retain(|(_, gpus)| !gpus.iter().any(is_gone));
    if setting.all("reversed").next().is_some() {
        all.iter_mut().for_each(|(_, gpus)| gpus.reverse());
    }
    all
}

/// Fills the list in.
fn fill(list: &mut PartitionList, setting: &Setting, state: &State) {
    let board = setting.one("board").expect("the test names a board");
    let (_, all_links, _) = self::list(board);
    let all = partitions(setting);
    let count = all.len();
    for (info, (id, modules)) in list.partitions.iter_mut().zip(all) {
        let reduced = board == "hgx2" && id > 2;
        info.partition_id = id;
        info.is_active = u32::from(state.active().any(|active| active == id));
        info.num_gpus = modules.len() as u32;
        for (gpu, &module) in info.gpus.iter_mut().zip(&modules) {
            let links = match modules.len() {
                1 => 0,
                _ => all_links - u32::from(reduced),
            };
            gpu.physical_id = module;
            gpu.links_most = links;
            let working = setting.of("links", &module.to_string());
            gpu.links_available =
                working.map_or(links, |words| words[0].parse::<u32>().unwrap().min(links));
            let address = setting.all("gpu").find(|words| words[1] == module.to_string());
            if knows_addresses(setting)
                && address.is_some_and(|words| state.was_reset(id, &words[0], setting))
            {
                gpu.links_available = 0;
            }
            gpu.line_rate_mbps = 26562;
            match address.filter(|_| knows_addresses(setting)) {
                Some(words) => {
                    write(&mut gpu.uuid, &format!("GPU-{module}"));
                    write(&mut gpu.pci_bus_id, &format!("0000{}", words[0].to_uppercase()));
                }
                None => write(&mut gpu.pci_bus_id, "00000000:00:00.0"),
            }
        }
    }
    list.num_partitions = setting.one("count").map_or(count as u32, |count| count.parse().unwrap());
    list.max_partitions = 64;
}
