//! The fake of Fabric Manager's library against the published interface, byte by byte: sizes,
//! offsets, version words, return codes, and the order of calls. Written from the tables of
//! NVIDIA's Fabric Manager guide ("Fabric Manager SDK", "GPU Partitions", "Resiliency", "Partition
//! Life Cycle Errors") and of its Go binding go-nvfm. Nothing here comes from the program's own
//! declarations, nor from the fake's: values are places in plain memory.
#![allow(unsafe_code)] // calls into a C library

use super::machine::{Machine, fakes, guest_with, remembering};
use crate::support::tree::scratch;
use crate::support::{project, run};
use libloading::Library;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::ptr::null_mut;

/// A structure of the guide.
struct Layout {
    /// Its name there, without `fm` and `Fabric`, with its version.
    name: &'static str,
    /// Members: name, offset, bytes of one, how many; in the order of the guide.
    members: &'static [(&'static str, usize, usize, usize)],
    /// Its size in bytes.
    size: usize,
    /// The number in its version word's highest byte, and the word.
    version: Option<(u32, u32)>,
}

/// Connection parameters of the guide's book; `addressInfo` has FM_MAX_STR_LENGTH characters.
const CONNECT_1: Layout = Layout {
    name: "ConnectParams 1",
    members: &[
        ("version", 0, 4, 1),
        ("addressInfo", 4, 1, 256),
        ("timeoutMs", 260, 4, 1),
        ("addressIsUnixSocket", 264, 4, 1),
    ],
    size: 268,
    version: Some((1, 0x0100_010C)),
};
/// Those of newer headers.
const CONNECT_2: Layout = Layout {
    name: "ConnectParams 2",
    members: &[
        ("version", 0, 4, 1),
        ("addressInfo", 4, 1, 256),
        ("timeoutMs", 260, 4, 1),
        ("addressIsUnixSocket", 264, 4, 1),
        ("addressType", 268, 4, 1),
    ],
    size: 272,
    version: Some((2, 0x0200_0110)),
};
/// A virtual function.
const PCI_DEVICE: Layout = Layout {
    name: "PciDevice",
    members: &[("domain", 0, 4, 1), ("bus", 4, 4, 1), ("device", 8, 4, 1), ("function", 12, 4, 1)],
    size: 16,
    version: None,
};
/// A GPU of a partition; FM_UUID_BUFFER_SIZE is 80, FM_DEVICE_PCI_BUS_ID_BUFFER_SIZE 32.
const GPU_INFO: Layout = Layout {
    name: "PartitionGpuInfo",
    members: &[
        ("physicalId", 0, 4, 1),
        ("uuid", 4, 1, 80),
        ("pciBusId", 84, 1, 32),
        ("numNvLinksAvailable", 116, 4, 1),
        ("maxNumNvLinks", 120, 4, 1),
        ("nvlinkLineRateMBps", 124, 4, 1),
    ],
    size: 128,
    version: None,
};
/// A partition, of FM_MAX_NUM_GPUS.
const PARTITION_INFO: Layout = Layout {
    name: "PartitionInfo",
    members: &[
        ("partitionId", 0, 4, 1),
        ("isActive", 4, 4, 1),
        ("numGpus", 8, 4, 1),
        ("gpuInfo", 12, 128, 16),
    ],
    size: 2060,
    version: None,
};
/// FM_MAX_FABRIC_PARTITIONS of these. The type ends in `_v2`, its version word has a 1.
const PARTITION_LIST: Layout = Layout {
    name: "PartitionList",
    members: &[
        ("version", 0, 4, 1),
        ("numPartitions", 4, 4, 1),
        ("maxNumPartitions", 8, 4, 1),
        ("partitionInfo", 12, 2060, 64),
    ],
    size: 131_852,
    version: Some((1, 0x0102_030C)),
};
/// The partitions active before a restart.
const ACTIVATED_LIST: Layout = Layout {
    name: "ActivatedList",
    members: &[("version", 0, 4, 1), ("numPartitions", 4, 4, 1), ("partitionIds", 8, 4, 64)],
    size: 264,
    version: Some((1, 0x0100_0108)),
};
/// A device with failed links, of FM_MAX_NUM_NVLINK_PORTS.
const FAILED_INFO: Layout = Layout {
    name: "FailedDeviceInfo",
    members: &[
        ("uuid", 0, 1, 80),
        ("pciBusId", 80, 1, 32),
        ("numPorts", 112, 4, 1),
        ("portNum", 116, 4, 64),
    ],
    size: 372,
    version: None,
};
/// Such GPUs and NVSwitches, of FM_MAX_NUM_NVSWITCHES.
const FAILED_DEVICES: Layout = Layout {
    name: "FailedDevices",
    members: &[
        ("version", 0, 4, 1),
        ("numGpus", 4, 4, 1),
        ("numSwitches", 8, 4, 1),
        ("gpuInfo", 12, 372, 16),
        ("switchInfo", 5964, 372, 12),
    ],
    size: 10_428,
    version: Some((1, 0x0100_28BC)),
};
/// A partition that is not available.
const UNSUPPORTED_INFO: Layout = Layout {
    name: "UnsupportedInfo",
    members: &[("partitionId", 0, 4, 1), ("numGpus", 4, 4, 1), ("gpuPhysicalIds", 8, 4, 16)],
    size: 72,
    version: None,
};
/// All of these.
const UNSUPPORTED_LIST: Layout = Layout {
    name: "UnsupportedList",
    members: &[("version", 0, 4, 1), ("numPartitions", 4, 4, 1), ("partitionInfo", 8, 72, 64)],
    size: 4616,
    version: Some((1, 0x0100_1208)),
};
/// All of them.
const LAYOUTS: [&Layout; 11] = [
    &CONNECT_1,
    &CONNECT_2,
    &PCI_DEVICE,
    &GPU_INFO,
    &PARTITION_INFO,
    &PARTITION_LIST,
    &ACTIVATED_LIST,
    &FAILED_INFO,
    &FAILED_DEVICES,
    &UNSUPPORTED_INFO,
    &UNSUPPORTED_LIST,
];

/// Functions, with the codes that the guide lists for each. -6 is in its table of errors of all; -5
/// is the result of a timeout of 0 (go-nvfm); -9 is that of a Fabric Manager that has ended.
const FUNCTIONS: [(&str, &[c_int]); 10] = [
    ("fmLibInit", &[0, -7, -2]),
    ("fmLibShutdown", &[0, -4]),
    ("fmConnect", &[0, -9, -4, -1, -6, -5]),
    ("fmDisconnect", &[0, -4, -1, -2]),
    ("fmGetSupportedFabricPartitions", &[0, -4, -1, -2, -3, -8, -6]),
    // Newer ones name the partition: -17 and -18.
    ("fmActivateFabricPartition", &[0, -4, -1, -2, -3, -8, -7, -17]),
    ("fmActivateFabricPartitionWithVFs", &[0, -4, -1, -2, -3, -8, -7, -17]),
    ("fmDeactivateFabricPartition", &[0, -4, -1, -2, -3, -8, -18]),
    ("fmSetActivatedFabricPartitions", &[0, -4, -1, -2, -3, -6]),
    ("fmGetNvlinkFailedDevices", &[0, -4, -1, -2, -3, -8, -6]),
];
/// The eleventh one.
const UNSUPPORTED: (&str, &[c_int]) =
    ("fmGetUnsupportedFabricPartitions", &[0, -4, -1, -2, -3, -8, -6]);

/// Return codes from 0 downwards, without `FM_ST_` (the guide up to -10, go-nvfm).
const CODES: [&str; 30] = [
    "SUCCESS",
    "BADPARAM",
    "GENERIC_ERROR",
    "NOT_SUPPORTED",
    "UNINITIALIZED",
    "TIMEOUT",
    "VERSION_MISMATCH",
    "IN_USE",
    "NOT_CONFIGURED",
    "CONNECTION_NOT_VALID",
    "NVLINK_ERROR",
    "RESOURCE_BAD",
    "RESOURCE_IN_USE",
    "RESOURCE_NOT_IN_USE",
    "RESOURCE_EXHAUSTED",
    "RESOURCE_NOT_READY",
    "PARTITION_EXISTS",
    "PARTITION_ID_IN_USE",
    "PARTITION_ID_NOT_IN_USE",
    "PARTITION_NAME_IN_USE",
    "PARTITION_NAME_NOT_IN_USE",
    "PARTITION_ID_NAME_MISMATCH",
    "NOT_READY",
    "RESOURCE_USED_IN_THIS_PARTITION",
    "RESOURCE_USED_IN_ANOTHER_PARTITION",
    "PARTITION_MISWIRED_TRUNKS",
    "PARTITION_INSUFFICIENT_TRUNKS",
    "PARTITION_MISSING_SWITCHES",
    "PARTITION_NETWORK_CONFIG_ERROR",
    "PARTITION_ROUTE_PROGRAMMING_ERROR",
];

/// The guide's partitions of a board: number, physical ids, NVLinks of each GPU.
type Partitions = Vec<(u32, Vec<u32>, u32)>;

/// Those of DGX-2, A100 with two boards, H100 and B200, row by row: number, physical ids, links.
const GUIDE: [(&str, &str); 4] = [
    (
        "hgx2",
        "0: 1-16 6, 1: 1-8 6, 2: 9-16 6, 3: 1 4 6 7 9 12 14 15 5, 4: 2 3 5 8 10 11 13 16 5, \
         5: 1 4 6 7 5, 6: 2 3 5 8 5, 7: 9 12 14 15 5, 8: 10 11 13 16 5, 9: 1 4 5, 10: 2 3 5, \
         11: 5 8 5, 12: 6 7 5, 13: 9 12 5, 14: 10 11 5, 15: 13 16 5, 16: 14 15 5, 17-32: 1-16 0",
    ),
    (
        "a100x2",
        "0: 1-16 12, 1: 1-8 12, 2: 9-16 12, 3: 1-4 9-12 12, 4: 5-8 13-16 12, 5: 1-4 13-16 12, \
         6: 5-8 9-12 12, 7: 1-4 12, 8: 5-8 12, 9: 9-12 12, 10: 13-16 12, 11: 1 2 12, 12: 3 4 12, \
         13: 5 6 12, 14: 7 8 12, 15: 9 10 12, 16: 11 12 12, 17: 13 14 12, 18: 15 16 12, \
         19-34: 1-16 0",
    ),
    (
        "h100",
        "0: 1-8 18, 1: 1-4 18, 2: 5-8 18, 3: 1 3 18, 4: 2 4 18, 5: 5 7 18, 6: 6 8 18, 7-14: 1-8 0",
    ),
    (
        "b200",
        "1: 1-8 18, 2: 1-4 18, 3: 5-8 18, 4: 1 2 18, 5: 3 4 18, 6: 5 6 18, 7: 7 8 18, 8-15: 1-8 0",
    ),
];

/// The partitions of a board.
fn guide(board: &str) -> Partitions {
    if board == "a100" {
        // One board of two: the partitions of its GPUs keep their numbers.
        let mut all = guide("a100x2");
        all.retain(|(_, gpus, _)| gpus.iter().all(|gpu| *gpu <= 8));
        return all;
    }
    let range = |word: &str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        first.parse::<u32>().unwrap()..=last.parse().unwrap()
    };
    let (_, rows) = GUIDE.iter().find(|(name, _)| *name == board).expect("the guide has it");
    let mut all = Vec::new();
    for row in rows.split(", ") {
        let (ids, rest) = row.split_once(": ").unwrap();
        let (gpus, links) = rest.rsplit_once(' ').unwrap();
        let (ids, links) = (range(ids), links.parse().unwrap());
        let gpus: Vec<u32> = gpus.split(' ').flat_map(range).collect();
        if ids.clone().count() == 1 {
            all.push((*ids.start(), gpus, links));
        } else {
            // "Physical ID 1 for Partition ID 17, Physical ID 2 for Partition ID 18, and so on."
            all.extend(ids.zip(gpus).map(|(id, gpu)| (id, vec![gpu], links)));
        }
    }
    all
}

impl Layout {
    /// Where a member is.
    fn at(&self, member: &str) -> usize {
        self.members.iter().find(|(name, ..)| *name == member).expect("the guide has it").1
    }
}

/// Plain memory of a structure, with more behind it that stays as it is.
struct Value {
    /// The structure.
    layout: &'static Layout,
    /// Its words, and the guard.
    words: Vec<u32>,
}

/// The pattern behind a structure.
const GUARD: u32 = 0xA5A5_A5A5;

impl Value {
    /// Memory of zeros, with the version word where the structure has one.
    fn new(layout: &'static Layout) -> Value {
        assert_eq!(layout.size % 4, 0);
        let mut words = vec![0; layout.size / 4];
        words.extend([GUARD; 64]);
        let mut value = Value { layout, words };
        if let Some((_, word)) = layout.version {
            value.put(0, word);
        }
        value
    }

    /// Writes a number.
    fn put(&mut self, at: usize, number: u32) -> &mut Value {
        assert_eq!(at % 4, 0);
        self.words[at / 4] = number;
        self
    }

    /// Writes a text, with a zero behind it.
    fn put_text(&mut self, at: usize, text: &str) -> &mut Value {
        for (place, pair) in text.bytes().collect::<Vec<_>>().chunks(4).enumerate() {
            let mut bytes = [0; 4];
            bytes[..pair.len()].copy_from_slice(pair);
            self.put(at + 4 * place, u32::from_le_bytes(bytes));
        }
        self
    }

    /// A number.
    fn get(&self, at: usize) -> u32 {
        assert_eq!(at % 4, 0);
        self.words[at / 4]
    }

    /// A text of at most so many bytes, which ends with a zero.
    fn text(&self, at: usize, most: usize) -> String {
        let bytes: Vec<u8> = self.words[at / 4..(at + most) / 4]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .take_while(|byte| *byte != 0)
            .collect();
        assert!(bytes.len() < most, "a zero is missing");
        String::from_utf8(bytes).unwrap()
    }

    /// The memory for a call; the bytes behind the structure must be unchanged.
    fn place(&mut self) -> *mut c_void {
        self.words.as_mut_ptr().cast()
    }

    /// That nothing was written behind the structure.
    fn is_within(&self) -> bool {
        self.words[self.layout.size / 4..].iter().all(|word| *word == GUARD)
    }
}

/// The library, with what its settings are.
struct Fake {
    /// The library.
    library: Library,
    /// Where its settings are.
    dir: PathBuf,
    /// What each function has returned.
    returned: RefCell<BTreeMap<&'static str, Vec<c_int>>>,
}

impl Fake {
    /// Sets it to be a board; it has forgotten everything.
    fn set(&self, board: &str, more: &str) {
        let state = self.dir.join("state");
        let _ = std::fs::remove_file(&state);
        self.keep(board, more);
    }

    /// Changes its settings.
    fn keep(&self, board: &str, more: &str) {
        let gpus: String = (1..=16).map(|id| format!("gpu 0000:{id:02x}:00.0 {id}\n")).collect();
        let state = self.dir.join("state").display().to_string();
        let text = format!("board {board}\n{gpus}state {state}\n{more}\n");
        std::fs::write(self.dir.join("fake"), text).unwrap();
    }

    /// Notes a code, which must be one that the guide lists for this function.
    fn note(&self, name: &str, code: c_int) -> c_int {
        let all = FUNCTIONS.iter().chain([&UNSUPPORTED]);
        let (name, listed) = all.copied().find(|(known, _)| *known == name).unwrap();
        assert!(listed.contains(&code), "{name} returns {code}, which the guide does not list");
        self.returned.borrow_mut().entry(name).or_default().push(code);
        code
    }

    /// Calls a function without arguments.
    fn plain(&self, name: &str) -> c_int {
        // SAFETY: the guide's type: int (void).
        let call = unsafe { self.library.get::<unsafe extern "C" fn() -> c_int>(name.as_bytes()) };
        // SAFETY: takes nothing.
        self.note(name, unsafe { call.unwrap()() })
    }

    /// Calls `fmDisconnect`.
    fn disconnect(&self, handle: *mut c_void) -> c_int {
        // SAFETY: the guide's type: int (fmHandle_t).
        let call = unsafe {
            self.library.get::<unsafe extern "C" fn(*mut c_void) -> c_int>(b"fmDisconnect")
        };
        // SAFETY: the handle is a number to the fake.
        self.note("fmDisconnect", unsafe { call.unwrap()(handle) })
    }

    /// Calls a function of a handle and a partition.
    fn number(&self, name: &str, handle: *mut c_void, id: u32) -> c_int {
        type Function = unsafe extern "C" fn(*mut c_void, u32) -> c_int;
        // SAFETY: the guide's type: int (fmHandle_t, unsigned int).
        let call = unsafe { self.library.get::<Function>(name.as_bytes()) };
        // SAFETY: both are numbers to the fake.
        self.note(name, unsafe { call.unwrap()(handle, id) })
    }

    /// Calls a function of two addresses: a handle or parameters, and a value or a handle's place.
    fn two(&self, name: &str, first: *mut c_void, second: *mut c_void) -> c_int {
        type Function = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
        // SAFETY: the guide's type: int (pointer, pointer).
        let call = unsafe { self.library.get::<Function>(name.as_bytes()) };
        // SAFETY: both are null, or point to as much as the guide says.
        self.note(name, unsafe { call.unwrap()(first, second) })
    }

    /// Calls a function of a handle and a value, which it may fill and not exceed.
    fn value(&self, name: &str, handle: *mut c_void, value: &mut Value) -> c_int {
        let code = self.two(name, handle, value.place());
        assert!(value.is_within(), "{name} writes behind {}", value.layout.name);
        code
    }

    /// Calls `fmActivateFabricPartitionWithVFs`.
    fn functions(&self, handle: *mut c_void, id: u32, bdfs: &[[u32; 4]]) -> c_int {
        type Function = unsafe extern "C" fn(*mut c_void, u32, *mut c_void, u32) -> c_int;
        let mut words: Vec<u32> = Vec::new();
        for bdf in bdfs {
            let mut one = Value::new(&PCI_DEVICE);
            for (member, number) in ["domain", "bus", "device", "function"].iter().zip(bdf) {
                one.put(PCI_DEVICE.at(member), *number);
            }
            words.extend(&one.words[..PCI_DEVICE.size / 4]);
        }
        let name = "fmActivateFabricPartitionWithVFs";
        // SAFETY: the guide's type: int (fmHandle_t, unsigned int, fmPciDevice_t *, unsigned int).
        let call = unsafe { self.library.get::<Function>(name.as_bytes()) };
        let (place, count) = (words.as_mut_ptr().cast(), bdfs.len() as u32);
        // SAFETY: there are as many functions as the count says.
        self.note(name, unsafe { call.unwrap()(handle, id, place, count) })
    }

    /// Connects with these parameters. Returns the code and the handle.
    fn connect(&self, params: &mut Value) -> (c_int, *mut c_void) {
        let mut handle: *mut c_void = null_mut();
        let place: *mut *mut c_void = &raw mut handle;
        let code = self.two("fmConnect", params.place(), place.cast());
        assert!(params.is_within(), "fmConnect writes behind its parameters");
        assert_eq!(handle.is_null(), code != 0, "a handle comes with success");
        (code, handle)
    }

    /// Initialises the library and connects.
    fn open(&self) -> *mut c_void {
        assert_eq!(self.plain("fmLibInit"), 0);
        let (code, handle) = self.connect(&mut inet("127.0.0.1"));
        assert_eq!(code, 0);
        handle
    }

    /// Closes the connection and the library.
    fn close(&self, handle: *mut c_void) {
        assert_eq!((self.disconnect(handle), self.plain("fmLibShutdown")), (0, 0));
    }

    /// The list of partitions, as the guide's table has it, with which of them are active.
    fn partitions(&self, handle: *mut c_void, board: &str) -> (Partitions, Vec<u32>) {
        let mut list = Value::new(&PARTITION_LIST);
        assert_eq!(self.value("fmGetSupportedFabricPartitions", handle, &mut list), 0);
        assert_eq!(list.get(PARTITION_LIST.at("maxNumPartitions")), 64);
        let (mut found, mut active) = (Vec::new(), Vec::new());
        for place in 0..list.get(PARTITION_LIST.at("numPartitions")) as usize {
            let at = PARTITION_LIST.at("partitionInfo") + place * PARTITION_INFO.size;
            let id = list.get(at + PARTITION_INFO.at("partitionId"));
            match list.get(at + PARTITION_INFO.at("isActive")) {
                0 => {}
                1 => active.push(id),
                other => panic!("isActive is {other}"),
            }
            let (mut gpus, mut links) = (Vec::new(), Vec::new());
            for gpu in 0..list.get(at + PARTITION_INFO.at("numGpus")) as usize {
                let at = at + PARTITION_INFO.at("gpuInfo") + gpu * GPU_INFO.size;
                let physical = list.get(at + GPU_INFO.at("physicalId"));
                let known = [
                    list.text(at + GPU_INFO.at("uuid"), 80),
                    list.text(at + GPU_INFO.at("pciBusId"), 32),
                ];
                // "GPU information such as UUID, PCI Device (BDF) will be empty" from H100 on.
                if matches!(board, "h100" | "b200") {
                    assert_eq!(known, ["", "00000000:00:00.0"], "{board}");
                } else {
                    let wanted =
                        [format!("GPU-{physical}"), format!("00000000:{physical:02X}:00.0")];
                    assert_eq!(known, wanted, "{board}");
                }
                links.push(list.get(at + GPU_INFO.at("maxNumNvLinks")));
                let available = list.get(at + GPU_INFO.at("numNvLinksAvailable"));
                assert_eq!(available, *links.last().unwrap());
                assert!(list.get(at + GPU_INFO.at("nvlinkLineRateMBps")) > 0);
                gpus.push(physical);
            }
            assert!(links.iter().all(|one| *one == links[0]));
            found.push((id, gpus, links[0]));
        }
        (found, active)
    }
}

/// Parameters for an IP address.
fn inet(address: &str) -> Value {
    let mut params = Value::new(&CONNECT_2);
    params.put_text(CONNECT_2.at("addressInfo"), address);
    params.put(CONNECT_2.at("timeoutMs"), 1000).put(CONNECT_2.at("addressType"), 1);
    params
}

#[test]
fn the_tables_agree_with_themselves_and_with_the_manual() {
    let manual = std::fs::read_to_string(project().join("man/gpuvm-hardware.7")).unwrap();
    let (_, manual) = manual.split_once(".SH FABRIC MANAGER\n").unwrap();
    let manual = manual.split("\n.SH ").next().unwrap();
    let manual = manual.split_whitespace().collect::<Vec<_>>().join(" ");
    for layout in LAYOUTS {
        let mut end = 0;
        for (member, at, bytes, count) in layout.members {
            assert_eq!(end, *at, "{} {member}: there is no padding", layout.name);
            end += bytes * count;
        }
        assert_eq!(end, layout.size, "{}", layout.name);
        if let Some((number, word)) = layout.version {
            assert_eq!(word, layout.size as u32 | number << 24, "{}", layout.name);
        }
        // Version 2 of the parameters is described by its additions.
        let said = |(member, at, _, count): &(&str, usize, usize, usize)| match count {
            1 => format!("{member} {at}"),
            _ => format!("{member}[{count}] {at}"),
        };
        let members = match layout.name {
            "ConnectParams 2" => "as 1, addressType 268: 1 INET, 2 UNIX, 3 VSOCK".to_owned(),
            _ => layout.members.iter().map(said).collect::<Vec<_>>().join(", "),
        };
        let row = format!("{}|T{{ {members} T}}|{}", layout.name, layout.size);
        assert!(manual.contains(&row), "gpuvm-hardware(7) lacks `{row}`");
    }
}

#[test]
fn codes_have_the_names_that_a_search_finds() {
    for (place, name) in CODES.iter().enumerate().skip(1) {
        let number = -(place as i32);
        let shown = gpuvm_core::fabric::Code(number).to_string();
        assert_eq!(shown, format!("{name} ({number})"));
    }
    assert_eq!(gpuvm_core::fabric::Code(-30).to_string(), "unknown code -30");
}

/// Names the directory of the process in which the fake is called.
const DIR: &str = "GPUVM_TEST_FABRIC_ABI";

#[test]
fn the_fake_is_what_the_guide_says() {
    let dir = scratch();
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "fabric::abi::calls_the_fake", "--nocapture"]);
    again.env(DIR, dir.path()).env("GPUVM_FAKE_NVIDIA", dir.path().join("fake"));
    let (code, out, err) = run(&mut again);
    assert_eq!(code, 0, "{out}{err}");
    assert!(dir.path().join("done").exists(), "it did nothing: {out}");
}

/// The part of [`the_fake_is_what_the_guide_says`] that runs in a process of its own, since the
/// fake prints and is configured by the environment; by itself it does nothing.
#[test]
fn calls_the_fake() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    // SAFETY: it does nothing when it is loaded.
    let library = unsafe { Library::new(fakes().join("libnvfm.so.1")) }.unwrap();
    let fake = Fake { library, dir: dir.clone(), returned: RefCell::default() };
    before_and_after_the_library_is_open(&fake);
    parameters_of_both_versions(&fake);
    lists_of_every_board(&fake);
    activation_and_its_refusals(&fake);
    modes_and_a_restart(&fake);
    what_failed(&fake);
    // Each function was called, and each has answered both well and with an error.
    for (name, _) in FUNCTIONS.iter().chain([&UNSUPPORTED]) {
        let returned = &fake.returned.borrow()[name];
        assert!(returned.contains(&0) && returned.iter().any(|code| *code < 0), "{name}");
    }
    std::fs::write(dir.join("done"), "").unwrap();
}

/// Functions of a handle that take a value.
const WITH_VALUE: [(&str, &Layout); 4] = [
    ("fmGetSupportedFabricPartitions", &PARTITION_LIST),
    ("fmSetActivatedFabricPartitions", &ACTIVATED_LIST),
    ("fmGetNvlinkFailedDevices", &FAILED_DEVICES),
    ("fmGetUnsupportedFabricPartitions", &UNSUPPORTED_LIST),
];

/// The codes of all functions of this handle.
fn all(fake: &Fake, handle: *mut c_void) -> Vec<c_int> {
    let values = WITH_VALUE.map(|(name, layout)| fake.value(name, handle, &mut Value::new(layout)));
    let numbers = ["fmActivateFabricPartition", "fmDeactivateFabricPartition"]
        .map(|name| fake.number(name, handle, 3));
    let functions = fake.functions(handle, 3, &[[0, 0x9d, 0, 4], [0, 0xc3, 0, 4]]);
    [&values[..], &numbers, &[functions]].concat()
}

/// Initialisation, connections and invalid handles.
fn before_and_after_the_library_is_open(fake: &Fake) {
    fake.set("h100", "");
    let nowhere: *mut c_void = std::ptr::without_provenance_mut(0x1234);
    let closed = |fake: &Fake| {
        assert_eq!(fake.connect(&mut inet("127.0.0.1")).0, -4);
        assert_eq!(fake.disconnect(nowhere), -4);
        assert_eq!(all(fake, nowhere), [-4; 7]);
        assert_eq!(fake.plain("fmLibShutdown"), -4);
    };
    closed(fake);
    assert_eq!([fake.plain("fmLibInit"), fake.plain("fmLibInit")], [0, -7]);
    // Initialised, not connected.
    assert_eq!((all(fake, nowhere), fake.disconnect(nowhere)), (vec![-1; 7], -1));
    assert_eq!(fake.two("fmConnect", inet("127.0.0.1").place(), null_mut()), -1);
    let (code, handle) = fake.connect(&mut inet("127.0.0.1"));
    assert_eq!(code, 0);
    assert_eq!(fake.plain("fmLibInit"), -7, "and the connection stays");
    assert_eq!(fake.disconnect(nowhere), -1);
    for (name, _) in WITH_VALUE {
        assert_eq!(fake.two(name, handle, null_mut()), -1, "{name}");
    }
    fake.partitions(handle, "h100");
    assert_eq!([fake.disconnect(handle), fake.disconnect(handle)], [0, -1]);
    assert_eq!(fake.plain("fmLibShutdown"), 0);
    // A shutdown closes connections.
    let handle = fake.open();
    assert_eq!(fake.plain("fmLibShutdown"), 0);
    assert_eq!(fake.disconnect(handle), -4);
    closed(fake);
}

/// Connection parameters.
fn parameters_of_both_versions(fake: &Fake) {
    assert_eq!(fake.plain("fmLibInit"), 0);
    let connects = |params: &mut Value| {
        let (code, handle) = fake.connect(params);
        if code == 0 {
            assert_eq!(fake.disconnect(handle), 0);
        }
        code
    };
    let first = |address: &str, is_unix: u32| {
        let mut params = Value::new(&CONNECT_1);
        params.put_text(CONNECT_1.at("addressInfo"), address);
        params.put(CONNECT_1.at("timeoutMs"), 1000);
        params.put(CONNECT_1.at("addressIsUnixSocket"), is_unix);
        params
    };
    let unix = |path: &str| {
        let mut params = inet(path);
        params.put(CONNECT_2.at("addressIsUnixSocket"), 1).put(CONNECT_2.at("addressType"), 2);
        params
    };
    fake.set("h100", "address 127.0.0.1");
    assert_eq!((connects(&mut inet("127.0.0.1")), connects(&mut first("127.0.0.1", 0))), (0, 0));
    assert_eq!((connects(&mut inet("127.0.0.2")), connects(&mut unix("127.0.0.2"))), (-9, -9));
    assert_eq!(connects(inet("127.0.0.1").put(CONNECT_2.at("timeoutMs"), 0)), -5);
    for word in [0, 0x0200_010C, 0x0200_0111, 0x0300_0110, 0x0100_0110] {
        assert_eq!(connects(inet("127.0.0.1").put(0, word)), -6, "{word:x}");
    }
    fake.set("h100", "address /run/nvidia-fabricmanager/socket");
    let path = "/run/nvidia-fabricmanager/socket";
    assert_eq!((connects(&mut unix(path)), connects(&mut first(path, 1))), (0, 0));
    // The longest address that has a zero behind it.
    let longest = "x".repeat(255);
    fake.set("h100", &format!("address {longest}"));
    assert_eq!((connects(&mut unix(&longest)), connects(&mut unix(path))), (0, -9));
    fake.set("h100", "old");
    assert_eq!((connects(&mut inet("127.0.0.1")), connects(&mut first("127.0.0.1", 0))), (-6, 0));
    assert_eq!(fake.plain("fmLibShutdown"), 0);
}

/// The lists, and their version words.
fn lists_of_every_board(fake: &Fake) {
    for board in ["hgx2", "a100x2", "a100", "h100", "b200"] {
        fake.set(board, "");
        let handle = fake.open();
        assert_eq!(fake.partitions(handle, board), (guide(board), vec![]), "{board}");
        fake.close(handle);
    }
    fake.set("h100", "restart_mode 600000");
    let handle = fake.open();
    assert_eq!(fake.value(WITH_VALUE[1].0, handle, Value::new(&ACTIVATED_LIST).put(0, 264)), -6);
    fake.set("h100", "");
    for (name, layout) in WITH_VALUE.iter().filter(|(name, _)| name.starts_with("fmGet")) {
        let (number, word) = layout.version.unwrap();
        for wrong in [0, word + 1, word - 4, layout.size as u32 | (number + 1) << 24] {
            let mut value = Value::new(layout);
            value.put(0, wrong);
            assert_eq!(fake.value(name, handle, &mut value), -6, "{name} {wrong:x}");
            value.put(0, 0);
            let is_untouched = value.words[..layout.size / 4].iter().all(|word| *word == 0);
            assert!(is_untouched, "{name} fills what it refuses");
        }
    }
    fake.close(handle);
}

/// Activation, deactivation and their refusals, by older and newer codes.
fn activation_and_its_refusals(fake: &Fake) {
    for (answers, active, inactive) in [("old", -7, -4), ("new", -17, -18)] {
        fake.set("h100", &format!("answers {answers}"));
        let handle = fake.open();
        let on = |id| fake.number("fmActivateFabricPartition", handle, id);
        let off = |id| fake.number("fmDeactivateFabricPartition", handle, id);
        assert_eq!([on(64), off(64), on(15), off(15)], [-1; 4], "no such partition");
        assert_eq!([off(3), on(3), on(3)], [inactive, 0, active], "{answers}");
        assert_eq!(fake.partitions(handle, "h100").1, [3]);
        // Modules 1 and 3: all, the first four, and each alone.
        assert_eq!([on(0), on(1), on(7), on(9)], [active; 4]);
        assert_eq!([on(4), on(2), off(3)], [0; 3]);
        assert_eq!(fake.partitions(handle, "h100").1, [2, 4]);
        assert_eq!([on(7), off(4), off(2), off(2)], [0, 0, 0, inactive]);
        // Functions go along in the mode for vGPU only.
        assert_eq!(fake.functions(handle, 8, &[[0, 1, 0, 4]]), -3);
        fake.close(handle);
        // Another process finds the active partitions.
        let handle = fake.open();
        assert_eq!(fake.partitions(handle, "h100").1, [7]);
        fake.close(handle);
    }
}

/// Modes, the start, and a restart.
fn modes_and_a_restart(fake: &Fake) {
    let calls = std::fs::File::create(fake.dir.join("calls")).map(|_| fake.dir.join("calls"));
    let calls = calls.unwrap();
    fake.set("h100", "mode 0");
    let handle = fake.open();
    assert_eq!(all(fake, handle), [-3; 7]);
    // In the mode for vGPU functions come with each activation, one for each GPU.
    fake.set("h100", &format!("mode 2\ncalls {}", calls.display()));
    let (one, other) = ([0, 0x9d, 0, 4], [1, 0xc3, 1, 5]);
    assert_eq!(fake.number("fmActivateFabricPartition", handle, 3), -3);
    assert_eq!([fake.functions(handle, 3, &[one]), fake.functions(handle, 3, &[])], [-1, -1]);
    assert_eq!(fake.functions(handle, 3, &[one, other]), 0);
    let text = std::fs::read_to_string(&calls).unwrap();
    let last = text.lines().last().unwrap();
    assert!(last.ends_with(" 3 0000:9d:00.4 0001:c3:01.5"), "{last}");
    assert_eq!(fake.number("fmDeactivateFabricPartition", handle, 3), 0);
    // Initializing, there is no data yet.
    fake.set("h100", "starting_for_ms 600000");
    fake.number("fmActivateFabricPartition", handle, 3);
    let codes = WITH_VALUE.iter().filter(|(name, _)| name.starts_with("fmGet"));
    for (name, layout) in codes {
        assert_eq!(fake.value(name, handle, &mut Value::new(layout)), -8, "{name}");
    }
    // Restarted: "typical partition operations .. will be rejected" until the list comes.
    fake.set("h100", "restart_mode 600000");
    let set = |ids: &[u32]| {
        let mut list = Value::new(&ACTIVATED_LIST);
        list.put(ACTIVATED_LIST.at("numPartitions"), ids.len() as u32);
        for (place, id) in ids.iter().take(64).enumerate() {
            list.put(ACTIVATED_LIST.at("partitionIds") + 4 * place, *id);
        }
        fake.value("fmSetActivatedFabricPartitions", handle, &mut list)
    };
    let rejected = |name: &str, layout| fake.value(name, handle, &mut Value::new(layout)) == -3;
    assert!(rejected("fmGetSupportedFabricPartitions", &PARTITION_LIST));
    assert!(rejected("fmGetUnsupportedFabricPartitions", &UNSUPPORTED_LIST));
    assert!(rejected("fmGetNvlinkFailedDevices", &FAILED_DEVICES));
    assert_eq!(fake.number("fmActivateFabricPartition", handle, 3), -3);
    assert_eq!(fake.number("fmDeactivateFabricPartition", handle, 3), -3);
    assert_eq!([set(&[99]), set(&[3, 3]), set(&[0, 3]), set(&[7; 65])], [-1; 4]);
    assert_eq!([set(&[3, 4]), set(&[3, 4])], [0, -3], "it is told once");
    assert_eq!(fake.partitions(handle, "h100").1, [3, 4]);
    assert_eq!(fake.number("fmDeactivateFabricPartition", handle, 3), 0);
    // "This API is not supported when FM is running in .. resiliency restart .. modes."
    assert!(rejected("fmGetNvlinkFailedDevices", &FAILED_DEVICES));
    // "this call must be made with the number of partitions as zero"
    fake.set("h100", "restart_mode 600000");
    assert_eq!(set(&[]), 0);
    assert_eq!(fake.partitions(handle, "h100").1, [0; 0]);
    fake.set("h100", "");
    assert_eq!(set(&[3]), -3, "it has not restarted so");
    fake.close(handle);
    // Without the list in time it exits, and cannot be reached.
    fake.set("h100", "restart_mode 0");
    let handle = fake.open();
    fake.value("fmGetSupportedFabricPartitions", handle, &mut Value::new(&PARTITION_LIST));
    fake.close(handle);
    assert_eq!(fake.plain("fmLibInit"), 0);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while fake.connect(&mut inet("127.0.0.1")).0 == 0 {
        assert!(std::time::Instant::now() < until, "it still answers");
    }
    assert_eq!(fake.connect(&mut inet("127.0.0.1")).0, -9);
    assert_eq!(fake.plain("fmLibShutdown"), 0);
}

/// Failed devices, and their cost.
fn what_failed(fake: &Fake) {
    for (board, is_told) in [("a100", true), ("hgx2", true), ("h100", false), ("b200", false)] {
        fake.set(board, "failed 2 5 7\ngone 3");
        let handle = fake.open();
        let mut failed = Value::new(&FAILED_DEVICES);
        assert_eq!(fake.value("fmGetNvlinkFailedDevices", handle, &mut failed), 0);
        let counts = ["numGpus", "numSwitches"].map(|name| failed.get(FAILED_DEVICES.at(name)));
        assert_eq!(counts, [u32::from(is_told), 0], "{board}");
        if is_told {
            let at = FAILED_DEVICES.at("gpuInfo");
            assert_eq!(failed.text(at + FAILED_INFO.at("uuid"), 80), "GPU-2");
            assert_eq!(failed.text(at + FAILED_INFO.at("pciBusId"), 32), "00000000:02:00.0");
            let port = |place: usize| failed.get(at + FAILED_INFO.at("portNum") + 4 * place);
            let ports = failed.get(at + FAILED_INFO.at("numPorts"));
            assert_eq!([ports, port(0), port(1), port(2)], [2, 5, 7, 0]);
        }
        let mut gone = Value::new(&UNSUPPORTED_LIST);
        assert_eq!(fake.value("fmGetUnsupportedFabricPartitions", handle, &mut gone), 0);
        let count = gone.get(UNSUPPORTED_LIST.at("numPartitions")) as usize;
        let place = |n: usize| UNSUPPORTED_LIST.at("partitionInfo") + n * UNSUPPORTED_INFO.size;
        let lost = (0..count).map(|n| {
            let gpus = gone.get(place(n) + UNSUPPORTED_INFO.at("numGpus")) as usize;
            let gpu = |k: usize| gone.get(place(n) + UNSUPPORTED_INFO.at("gpuPhysicalIds") + 4 * k);
            let id = gone.get(place(n) + UNSUPPORTED_INFO.at("partitionId"));
            (id, (0..gpus).map(gpu).collect::<Vec<_>>())
        });
        let lost: Vec<_> = lost.collect();
        // The others keep their numbers; from H100 on all are listed "regardless of .. states".
        let (listed, _) = fake.partitions(handle, board);
        let has = |gpus: &[u32]| is_told && gpus.contains(&3);
        let (out, left): (Partitions, _) =
            guide(board).into_iter().partition(|(_, gpus, _)| has(gpus));
        assert_eq!(listed, left, "{board}");
        let out: Vec<_> = out.into_iter().map(|(id, gpus, _)| (id, gpus)).collect();
        assert_eq!(lost, out, "{board}");
        fake.close(handle);
    }
}

/// Calls of the program, one connection after another: the requests over each.
fn asked(machine: &Machine) -> Vec<String> {
    let journal = machine.journal();
    let _ = std::fs::remove_file(machine.path("journal"));
    let mut asked = Vec::new();
    let mut calls = journal.iter().map(String::as_str).peekable();
    while let Some(first) = calls.next() {
        assert_eq!(first, "fmLibInit", "{journal:?}");
        let mut tries = 0;
        while calls.next_if_eq(&"fmConnect").is_some() {
            tries += 1;
        }
        let next = calls.next();
        if next == Some("fmLibShutdown") {
            asked.push(format!("{tries} refused"));
            continue;
        }
        assert_eq!(tries, 1, "{journal:?}");
        asked.push(next.unwrap().to_owned());
        assert_eq!(calls.next(), Some("fmDisconnect"), "{journal:?}");
        assert_eq!(calls.next(), Some("fmLibShutdown"), "{journal:?}");
    }
    asked
}

#[test]
fn the_program_opens_and_closes_a_connection_for_each_request() {
    let Some(machine) = Machine::h100() else { return };
    let uri = guest_with(&machine, &["9d", "c3"]);
    let run = |words: &[&str]| machine.gpuvm(&[words, &["-c", &uri]].concat(), true);
    let list = "fmGetSupportedFabricPartitions";
    remembering(&machine, "active 3\nactive 6");
    let (code, out, err) = run(&["fabric", "show"]);
    assert_eq!(code, 3, "{out}{err}");
    assert!(asked(&machine).iter().all(|one| one == list));
    // The host's list, the step's, the change, and the list that proves it.
    let (code, out, err) = run(&["fabric", "release", "6", "--yes"]);
    assert_eq!(code, 0, "{out}{err}");
    let all = asked(&machine);
    let has =
        |all: &[String], change: &str| all.windows(3).any(|calls| calls == [list, change, list]);
    assert!(has(&all, "fmDeactivateFabricPartition"), "{all:?}");
    remembering(&machine, "");
    std::fs::remove_file(machine.path("state")).unwrap();
    run(&["fabric", "restore"]);
    let all = asked(&machine);
    assert!(has(&all, "fmActivateFabricPartition"), "{all:?}");
    std::fs::remove_file(machine.path("state")).unwrap();
    remembering(&machine, "restart_mode 600000");
    let (code, out, err) = run(&["fabric", "restore"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(asked(&machine).contains(&"fmSetActivatedFabricPartitions".to_owned()));
    remembering(&machine, "address elsewhere");
    run(&["fabric", "show"]);
    let all = asked(&machine);
    // Who only looks tries once, others three times; each closes the library.
    let is_refused = all.iter().all(|one| one.ends_with(" refused"));
    assert!(is_refused && all.contains(&"3 refused".to_owned()), "{all:?}");
}
