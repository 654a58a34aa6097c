//! A fake of Fabric Manager's client library, `libnvfm.so.1`: the functions that list partitions, with the published
//! layouts (gpuvm-hardware(7), FABRIC MANAGER). Compiled by the tests with rustc; see setting.rs
//! for what it can be told.
//!
//! The lists are written down a second time here, from the publication, so that the program's tables are checked by
//! others than themselves.

mod setting;

use setting::Setting;
use std::ffi::{c_char, c_int};
use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicU32, Ordering};

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
            "1-16 1-8 9-16 1-4,9-12 5-8,13-16 1-4,13-16 5-8,9-12 1-4 5-8 9-12 13-16 \
             1,2 3,4 5,6 7,8 9,10 11,12 13,14 15,16",
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

/// Whether the library is initialised and connected: 0, 1, 2.
static STATE: AtomicU32 = AtomicU32::new(0);

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
    if STATE.swap(1, Ordering::SeqCst) == 0 { 0 } else { -7 }
}

#[unsafe(no_mangle)]
pub extern "C" fn fmLibShutdown() -> c_int {
    Setting::read().enter("fmLibShutdown");
    if STATE.swap(0, Ordering::SeqCst) == 1 { 0 } else { -4 }
}

/// # Safety
/// The parameters have the size that their version says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fmConnect(params: *const ConnectParams, handle: *mut usize) -> c_int {
    let setting = Setting::read();
    if let Some(code) = setting.enter("fmConnect") {
        return code;
    }
    if STATE.load(Ordering::SeqCst) != 1 {
        return -4;
    }
    // SAFETY: all versions start with the same fields.
    let (version, address, timeout_ms, is_unix) =
        unsafe { ((*params).version, (*params).address, (*params).timeout_ms, (*params).is_unix) };
    match version {
        0x0200_0110 if setting.all("old").next().is_none() => {
            // SAFETY: this version has the field.
            if unsafe { (*params).address_type } != is_unix + 1 {
                return -1;
            }
        }
        0x0100_010C => {}
        _ => return -6,
    }
    if timeout_ms == 0 {
        return -5;
    }
    let address: Vec<u8> = address.iter().map(|c| *c as u8).take_while(|byte| *byte != 0).collect();
    if setting.one("address").is_some_and(|listens| listens.as_bytes() != address) {
        return -9;
    }
    STATE.store(2, Ordering::SeqCst);
    // SAFETY: the caller gives a place for it.
    unsafe { *handle = 0xfab };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn fmDisconnect(handle: usize) -> c_int {
    Setting::read().enter("fmDisconnect");
    let open = STATE.compare_exchange(2, 1, Ordering::SeqCst, Ordering::SeqCst);
    if handle == 0xfab && open.is_ok() { 0 } else { -1 }
}

/// # Safety
/// The list has the size that its version says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fmGetSupportedFabricPartitions(
    handle: usize,
    list: *mut PartitionList,
) -> c_int {
    let setting = Setting::read();
    if let Some(code) = setting.enter("fmGetSupportedFabricPartitions") {
        return code;
    }
    if handle != 0xfab || STATE.load(Ordering::SeqCst) != 2 {
        return -4;
    }
    // SAFETY: as the caller vouches.
    let list = unsafe { &mut *list };
    if list.version != 0x0102_030C {
        return -6;
    }
    fill(list, &setting);
    0
}

/// Fills the list in.
fn fill(list: &mut PartitionList, setting: &Setting) {
    let board = setting.one("board").expect("the test names a board");
    let (sets, all_links, first) = self::list(board);
    let tells_addresses = matches!(board, "a100" | "a100x2" | "hgx2");
    let most = if matches!(board, "a100x2" | "hgx2") { 16 } else { 8 };
    let listed = if board == "a100" { 16 } else { most };
    let sets: Vec<&str> = sets.split_whitespace().collect();
    let singles: Vec<String> = (1..=listed).map(|module| module.to_string()).collect();
    let all = sets.iter().copied().chain(singles.iter().map(String::as_str));
    let mut count = 0;
    for (id, modules) in (first..).zip(all.map(modules)) {
        let there = |id: &u32| *id <= most && !setting.has("gone", &id.to_string());
        if !modules.iter().all(there) {
            continue;
        }
        let reduced = board == "hgx2" && id > 2;
        let info = &mut list.partitions[count];
        info.partition_id = id;
        info.is_active = u32::from(setting.has("active", &id.to_string()));
        info.num_gpus = modules.len() as u32;
        for (gpu, &module) in info.gpus.iter_mut().zip(&modules) {
            let links = match modules.len() {
                1 => 0,
                _ => all_links - u32::from(reduced),
            };
            gpu.physical_id = module;
            gpu.links_most = links;
            let working = setting.all("links").find(|words| words[0] == module.to_string());
            gpu.links_available =
                working.map_or(links, |words| words[1].parse::<u32>().unwrap().min(links));
            gpu.line_rate_mbps = 26562;
            let address = setting.all("gpu").find(|words| words[1] == module.to_string());
            match address.filter(|_| tells_addresses) {
                Some(words) => {
                    write(&mut gpu.pci_bus_id, &format!("0000{}", words[0].to_uppercase()))
                }
                None => write(&mut gpu.pci_bus_id, "00000000:00:00.0"),
            }
        }
        count += 1;
    }
    list.num_partitions = setting.one("count").map_or(count as u32, |count| count.parse().unwrap());
    list.max_partitions = 64;
}
