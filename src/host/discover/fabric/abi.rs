//! The values that Fabric Manager's client library takes and gives, as published
//! (gpuvm-hardware(7), FABRIC MANAGER): arrays of 32-bit words, texts in them padded with zeros.
//! Calls nothing, and trusts no count that the library writes.

use super::config::Address;
use super::modules::HIGHEST;
use gpuvm_core::bdf::Bdf;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// Words of connection parameters of version 2; version 1 has one less.
const CONNECT_WORDS: usize = 68;
/// Bytes of an address, its ending zero included.
const ADDRESS_BYTES: usize = 256;
/// Words of one GPU of a partition: module id, UUID of 80 bytes, bus id of 32, links there, links at most, line rate.
const GPU_WORDS: usize = 32;
/// GPUs that a partition has room for.
const GPUS: usize = 16;
/// Words of one partition: number, whether active, count of GPUs, GPUs.
const PARTITION_WORDS: usize = 3 + GPUS * GPU_WORDS;
/// Partitions that a list has room for.
const PARTITIONS: usize = 64;
/// Words of a list: version, count, count at most, partitions.
pub const LIST_WORDS: usize = 3 + PARTITIONS * PARTITION_WORDS;

/// Says that the version word of a value is not known.
pub const VERSION_MISMATCH: i32 = -6;
/// Says that the library was initialised before.
pub const IN_USE: i32 = -7;

/// Names of the codes from -1 downwards, without the `FM_ST_` in front, and what to do about each; empty: nothing is
/// known.
const CODES: [(&str, &str); 29] = [
    ("BADPARAM", "the address in fabricmanager.cfg may be wrong"),
    ("GENERIC_ERROR", "its log has the reason: `journalctl -u nvidia-fabricmanager`"),
    (
        "NOT_SUPPORTED",
        "it runs in another mode than shared NVSwitch, or waits after a restart for the \
                       list of active partitions: see FABRIC_MODE in fabricmanager.cfg",
    ),
    ("UNINITIALIZED", "library and service may be of different versions"),
    ("TIMEOUT", "it does not answer: `systemctl status nvidia-fabricmanager`"),
    ("VERSION_MISMATCH", "install libnvfm and Fabric Manager of the same version"),
    ("IN_USE", "another program holds it; run the command again"),
    ("NOT_CONFIGURED", "it is still starting; run the command again in a minute"),
    (
        "CONNECTION_NOT_VALID",
        "it does not run, or listens elsewhere: \
                              `systemctl status nvidia-fabricmanager`",
    ),
    ("NVLINK_ERROR", "NVLinks could not be trained: `journalctl -u nvidia-fabricmanager`"),
    ("RESOURCE_BAD", ""),
    ("RESOURCE_IN_USE", ""),
    ("RESOURCE_NOT_IN_USE", ""),
    ("RESOURCE_EXHAUSTED", ""),
    ("RESOURCE_NOT_READY", "it is still starting; run the command again in a minute"),
    ("PARTITION_EXISTS", ""),
    ("PARTITION_ID_IN_USE", ""),
    ("PARTITION_ID_NOT_IN_USE", ""),
    ("PARTITION_NAME_IN_USE", ""),
    ("PARTITION_NAME_NOT_IN_USE", ""),
    ("PARTITION_ID_NAME_MISMATCH", ""),
    ("NOT_READY", "it is still starting; run the command again in a minute"),
    ("used in this partition", ""),
    ("used in another partition", ""),
    ("miswired trunks", "check the cables between the boards"),
    ("insufficient trunks", "check the cables between the boards"),
    ("missing switches", "an NVSwitch does not answer: `journalctl -u nvidia-fabricmanager`"),
    ("network configuration error", "`journalctl -u nvidia-fabricmanager`"),
    ("route programming error", "`journalctl -u nvidia-fabricmanager`"),
];

/// Is a return code that is not success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Code(pub i32);

impl Code {
    /// Its entry in the table; none for a code that is not published.
    fn entry(self) -> Option<(&'static str, &'static str)> {
        let place = usize::try_from(self.0.checked_neg()?).ok()?.checked_sub(1)?;
        CODES.get(place).copied()
    }

    /// What to do about it; none where nothing is known.
    pub fn advice(self) -> Option<&'static str> {
        self.entry().map(|(_, advice)| advice).filter(|advice| !advice.is_empty())
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entry() {
            Some((name, _)) => write!(f, "{name} ({})", self.0),
            None => write!(f, "unknown code {}", self.0),
        }
    }
}

/// Is a partition of Fabric Manager's list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Its number.
    pub id: u32,
    /// Whether it is active: its NVLinks are routed for a guest.
    pub active: bool,
    /// Its GPUs, in Fabric Manager's order.
    pub gpus: Vec<ListedGpu>,
}

/// Is a GPU of such a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedGpu {
    /// Its module id.
    pub module: u32,
    /// Its address; none where Fabric Manager does not know it, as on H100 and later.
    pub bus: Option<Bdf>,
    /// NVLinks that work.
    pub links: u32,
    /// NVLinks that it should have in this partition.
    pub most: u32,
}

/// The version word of a value: its bytes, and its version in the highest byte.
const fn version(words: usize, version: u32) -> u32 {
    // No value has 16 MiB.
    (words * 4) as u32 | version << 24
}

/// Connection parameters for an address; `newer`: of version 2. None where the address is too long.
pub fn connect(address: &Address, timeout_ms: u32, newer: bool) -> Option<Vec<u32>> {
    let (text, is_unix) = match address {
        Address::Inet(text) => (text, false),
        Address::Unix(path) => (path, true),
    };
    if text.len() >= ADDRESS_BYTES {
        return None;
    }
    let words = if newer { CONNECT_WORDS } else { CONNECT_WORDS - 1 };
    let mut bytes = text.clone().into_bytes();
    bytes.resize(ADDRESS_BYTES, 0);
    let mut params = vec![version(words, if newer { 2 } else { 1 })];
    params.extend(bytes.chunks_exact(4).map(|c| u32::from_ne_bytes([c[0], c[1], c[2], c[3]])));
    params.extend([timeout_ms, u32::from(is_unix)]);
    if newer {
        params.push(if is_unix { 2 } else { 1 });
    }
    Some(params)
}

/// An empty list of partitions, for the library to fill.
pub fn empty_list() -> Vec<u32> {
    let mut list = vec![0; LIST_WORDS];
    // The type is named "v2", its version number is 1.
    list[0] = version(LIST_WORDS, 1);
    list
}

/// Reads a list of partitions; says what is wrong with one that cannot be.
pub fn partitions(list: &[u32]) -> Result<Vec<Listed>, String> {
    let count = at_most(list[1], PARTITIONS, "partitions")?;
    let mut ids = BTreeSet::new();
    let mut partitions = Vec::new();
    for words in list[3..].chunks_exact(PARTITION_WORDS).take(count) {
        let (id, active) = (words[0], words[1] != 0);
        if !ids.insert(id) {
            return Err(format!("partition {id} stands twice in its list"));
        }
        let gpus = at_most(words[2], GPUS, "GPUs in a partition")?;
        let gpus: Vec<ListedGpu> = words[3..].chunks_exact(GPU_WORDS).take(gpus).map(gpu).collect();
        let modules: BTreeSet<u32> = gpus.iter().map(|gpu| gpu.module).collect();
        if modules.len() < gpus.len() || gpus.is_empty() {
            return Err(format!("partition {id} has no GPU, or one twice"));
        }
        if let Some(module) = modules.iter().find(|id| !(1..=HIGHEST).contains(*id)) {
            return Err(format!("partition {id} has module id {module}, not 1 to {HIGHEST}"));
        }
        partitions.push(Listed { id, active, gpus });
    }
    Ok(partitions)
}

/// A count that has room.
fn at_most(count: u32, most: usize, what: &str) -> Result<usize, String> {
    match usize::try_from(count) {
        Ok(count) if count <= most => Ok(count),
        _ => Err(format!("it counts {count} {what}, more than {most}")),
    }
}

/// Reads one GPU. An address is null where the GPU is not on Fabric Manager's machine.
fn gpu(words: &[u32]) -> ListedGpu {
    let bus: Vec<u8> = words[21..29].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let bus = bus.split(|&byte| byte == 0).next().unwrap_or_default();
    let bus = std::str::from_utf8(bus).ok().and_then(bus_id);
    ListedGpu { module: words[0], bus, links: words[29], most: words[30] }
}

/// Reads an address; none for a null address and for no address.
fn bus_id(text: &str) -> Option<Bdf> {
    let null = Bdf::new(0, 0, 0, 0).ok();
    text.parse().ok().filter(|bdf| Some(*bdf) != null)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a text into words.
    fn write(words: &mut [u32], text: &str) {
        for (word, chunk) in words.iter_mut().zip(text.as_bytes().chunks(4)) {
            let mut bytes = [0; 4];
            bytes[..chunk.len()].copy_from_slice(chunk);
            *word = u32::from_ne_bytes(bytes);
        }
    }

    #[test]
    fn sizes_are_the_published_ones() {
        assert_eq!((GPU_WORDS * 4, PARTITION_WORDS * 4, LIST_WORDS * 4), (128, 2060, 131_852));
        assert_eq!(empty_list()[0], 0x0102_030C);
        let inet = |newer| connect(&Address::Inet("127.0.0.1".into()), 1000, newer).unwrap();
        assert_eq!((inet(true)[0], inet(true).len()), (0x0200_0110, 68));
        assert_eq!((inet(false)[0], inet(false).len()), (0x0100_010C, 67));
        assert_eq!(inet(true)[65..], [1000, 0, 1], "bytes 260, 264 and 268");
        let unix = connect(&Address::Unix("/run/fm".into()), 5, true).unwrap();
        assert_eq!(unix[65..], [5, 1, 2]);
        assert_eq!(unix[1].to_ne_bytes(), *b"/run");
        assert_eq!(connect(&Address::Unix("x".repeat(256)), 5, true), None);
        assert!(connect(&Address::Unix("x".repeat(255)), 5, true).is_some());
    }

    #[test]
    fn a_list_is_read_and_a_broken_one_refused() {
        let mut list = empty_list();
        (list[1], list[2]) = (2, 64);
        for (place, (module, bus)) in
            [(3, "00000000:1B:00.0"), (1, "00000000:00:00.0")].iter().enumerate()
        {
            let at = 3 + place * PARTITION_WORDS;
            (list[at], list[at + 1], list[at + 2]) = (7, u32::from(place == 1), 1);
            list[at] += u32::try_from(place).unwrap();
            list[at + 3] = *module;
            write(&mut list[at + 24..at + 32], bus);
            (list[at + 32], list[at + 33]) = (16, 18);
        }
        let read = partitions(&list).unwrap();
        let gpu = |module, bus| ListedGpu { module, bus, links: 16, most: 18 };
        let bus = Some(Bdf::new(0, 0x1b, 0, 0).unwrap());
        assert_eq!(read[0], Listed { id: 7, active: false, gpus: vec![gpu(3, bus)] });
        assert_eq!(read[1], Listed { id: 8, active: true, gpus: vec![gpu(1, None)] });
        for (word, value, reason) in [
            (1, 65, "counts 65 partitions"),
            (1, u32::MAX, "counts 4294967295 partitions"),
            (3, 8, "partition 8 stands twice"),
            (5, 17, "counts 17 GPUs"),
            (5, 0, "has no GPU"),
            (5, 2, "module id 0"),
            (6, 99, "module id 99, not 1 to 16"),
        ] {
            let mut broken = list.clone();
            broken[word] = value;
            let said = partitions(&broken).unwrap_err();
            assert!(said.contains(reason), "{word}: {said}");
        }
    }

    #[test]
    fn bus_ids_of_any_form() {
        for (text, bdf) in [
            ("00000000:1B:00.0", Some("0000:1b:00.0")),
            ("0000:1b:00.0", Some("0000:1b:00.0")),
            ("00010000:01:00.0", Some("10000:01:00.0")),
            ("00000000:00:00.0", None),
            ("", None),
            ("zz", None),
        ] {
            assert_eq!(bus_id(text).map(|bdf| bdf.to_string()).as_deref(), bdf, "{text}");
        }
    }

    #[test]
    fn codes_have_names() {
        for (code, text) in [
            (-1, "BADPARAM (-1)"),
            (-8, "NOT_CONFIGURED (-8)"),
            (-18, "PARTITION_ID_NOT_IN_USE (-18)"),
            (-22, "NOT_READY (-22)"),
            (-29, "route programming error (-29)"),
            (-30, "unknown code -30"),
            (1, "unknown code 1"),
            (i32::MIN, "unknown code -2147483648"),
        ] {
            assert_eq!(Code(code).to_string(), text);
        }
        assert!((-10..=-1).all(|code| Code(code).advice().is_some()), "each of 3.5");
    }
}
