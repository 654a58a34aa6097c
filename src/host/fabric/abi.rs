//! The values exchanged with Fabric Manager's client library, as published (gpuvm-hardware(7),
//! FABRIC MANAGER): arrays of 32-bit words, with texts padded by zeros. Calls nothing, and trusts
//! no count that the library writes.

use super::config::Address;
use super::{FailedDevice, FailedDevices, UnsupportedPartition};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::fabric::{HIGHEST_MODULE as HIGHEST, Listed, ListedGpu};
use std::collections::BTreeSet;

/// Words of connection parameters of version 2; version 1 has one fewer.
const CONNECT_WORDS: usize = 68;
/// Bytes of an address, including the terminating zero.
const ADDRESS_BYTES: usize = 256;
/// Words of one GPU of a partition: module id, UUID of 80 bytes, bus id of 32, working links, all
/// links, line rate.
const GPU_WORDS: usize = 32;
/// Capacity of a partition in GPUs.
const GPUS: usize = 16;
/// Words of one partition: number, whether active, count of GPUs, GPUs.
const PARTITION_WORDS: usize = 3 + GPUS * GPU_WORDS;
/// Capacity of a list in partitions.
const PARTITIONS: usize = 64;
/// Words of a list: version, count, capacity, partitions.
pub const LIST_WORDS: usize = 3 + PARTITIONS * PARTITION_WORDS;
/// Words of a list of active partitions: version, count, numbers.
const ACTIVATED_WORDS: usize = 2 + PARTITIONS;
/// Words of a device with failed NVLinks: UUID of 80 bytes, bus id of 32, count of ports, ports.
const FAILED_WORDS: usize = 93;
/// Capacity of such a device in ports.
const PORTS: usize = 64;
/// Capacity of a list of such devices in NVSwitches.
const SWITCHES: usize = 12;
/// Words of a list of such devices: version, counts of GPUs and of NVSwitches, GPUs, NVSwitches.
pub const FAILED_LIST_WORDS: usize = 3 + (GPUS + SWITCHES) * FAILED_WORDS;
/// Words of a partition that is unsupported: number, count of GPUs, module ids.
const UNSUPPORTED_WORDS: usize = 2 + GPUS;
/// Words of a list of such partitions: version, count, partitions.
pub const UNSUPPORTED_LIST_WORDS: usize = 2 + PARTITIONS * UNSUPPORTED_WORDS;

/// The version word of a value: its bytes, and its version in the highest byte.
const fn version(words: usize, version: u32) -> u32 {
    // No value reaches 16 MiB.
    (words * 4) as u32 | version << 24
}

/// Connection parameters for an address; `newer`: of version 2. None if the address is too long.
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

/// Reads a list of partitions; the error describes its fault.
pub fn partitions(list: &[u32]) -> Result<Vec<Listed>, String> {
    let count = at_most(list[1], PARTITIONS, "partitions")?;
    let mut ids = BTreeSet::new();
    let mut partitions = Vec::new();
    for words in list[3..].chunks_exact(PARTITION_WORDS).take(count) {
        let (id, active) = (words[0], words[1] != 0);
        if !ids.insert(id) {
            return Err(format!("partition {id} appears twice in its list"));
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

/// Makes the list of partitions to be set active; an error if there are too many.
pub fn activated(ids: &[u32]) -> Result<Vec<u32>, String> {
    let count = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    at_most(count, PARTITIONS, "partitions")?;
    let mut list = vec![0; ACTIVATED_WORDS];
    (list[0], list[1]) = (version(ACTIVATED_WORDS, 1), count);
    list[2..2 + ids.len()].copy_from_slice(ids);
    Ok(list)
}

/// Converts functions to the library's form: segment, bus, device and function of each.
pub fn functions(all: &[Bdf]) -> Vec<u32> {
    let words =
        |bdf: &Bdf| [bdf.segment(), bdf.bus().into(), bdf.device().into(), bdf.function().into()];
    all.iter().flat_map(words).collect()
}

/// An empty list of failed devices, for the library to fill.
pub fn empty_failed() -> Vec<u32> {
    let mut list = vec![0; FAILED_LIST_WORDS];
    list[0] = version(FAILED_LIST_WORDS, 1);
    list
}

/// Reads a list of devices with failed NVLinks; the error describes its fault.
pub fn failed(list: &[u32]) -> Result<FailedDevices, String> {
    let gpus = at_most(list[1], GPUS, "GPUs")?;
    let switches = at_most(list[2], SWITCHES, "NVSwitches")?;
    let (of_gpus, of_switches) = list[3..].split_at(GPUS * FAILED_WORDS);
    let read = |words: &[u32], count| -> Result<Vec<FailedDevice>, String> {
        words.chunks_exact(FAILED_WORDS).take(count).map(failed_device).collect()
    };
    Ok(FailedDevices { gpus: read(of_gpus, gpus)?, switches: read(of_switches, switches)? })
}

fn failed_device(words: &[u32]) -> Result<FailedDevice, String> {
    let ports = at_most(words[28], PORTS, "ports of a device")?;
    Ok(FailedDevice {
        uuid: text(&words[..20]),
        bus: bus_id(&text(&words[20..28])),
        ports: words[29..29 + ports].to_vec(),
    })
}

/// An empty list of partitions that are unsupported, for the library to fill.
pub fn empty_unsupported() -> Vec<u32> {
    let mut list = vec![0; UNSUPPORTED_LIST_WORDS];
    list[0] = version(UNSUPPORTED_LIST_WORDS, 1);
    list
}

/// Reads a list of unsupported partitions; the error describes its fault.
pub fn unsupported(list: &[u32]) -> Result<Vec<UnsupportedPartition>, String> {
    let count = at_most(list[1], PARTITIONS, "partitions")?;
    let read = |words: &[u32]| -> Result<UnsupportedPartition, String> {
        let gpus = at_most(words[1], GPUS, "GPUs in a partition")?;
        Ok(UnsupportedPartition {
            id: words[0],
            modules: words[2..2 + gpus].iter().copied().collect(),
        })
    };
    list[2..].chunks_exact(UNSUPPORTED_WORDS).take(count).map(read).collect()
}

fn text(words: &[u32]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let bytes = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

/// Checks a count against a capacity.
fn at_most(count: u32, most: usize, what: &str) -> Result<usize, String> {
    match usize::try_from(count) {
        Ok(count) if count <= most => Ok(count),
        _ => Err(format!("it counts {count} {what}, more than {most}")),
    }
}

/// Reads one GPU. The address is null if the GPU is not on Fabric Manager's machine.
fn gpu(words: &[u32]) -> ListedGpu {
    let bus = bus_id(&text(&words[21..29]));
    ListedGpu { module: words[0], bus, links: words[29], most: words[30] }
}

/// Reads an address; none for a null or invalid address.
fn bus_id(text: &str) -> Option<Bdf> {
    let null = Bdf::new(0, 0, 0, 0).ok();
    text.parse().ok().filter(|bdf| Some(*bdf) != null)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!((FAILED_WORDS * 4, UNSUPPORTED_WORDS * 4), (372, 72));
        assert_eq!((empty_failed()[0], FAILED_LIST_WORDS * 4), (0x0100_28BC, 10428));
        assert_eq!((3 + GPUS * FAILED_WORDS) * 4, 5964, "NVSwitches of failed devices");
        assert_eq!((empty_unsupported()[0], UNSUPPORTED_LIST_WORDS * 4), (0x0100_1208, 4616));
        let activated = activated(&[3, 5]).unwrap();
        assert_eq!((activated[0], activated.len() * 4), (0x0100_0108, 264));
        assert_eq!(activated[1..5], [2, 3, 5, 0]);
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
            (3, 8, "partition 8 appears twice"),
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
    fn oversized_lists_are_not_passed() {
        assert!(activated(&[7; 64]).is_ok());
        assert_eq!(activated(&[7; 65]).unwrap_err(), "it counts 65 partitions, more than 64");
        let functions =
            functions(&["10000:1b:02.3".parse().unwrap(), "0000:9d:00.4".parse().unwrap()]);
        assert_eq!(functions, [0x10000, 0x1b, 2, 3, 0, 0x9d, 0, 4]);
    }

    #[test]
    fn failed_devices_and_unsupported_partitions_are_read() {
        let mut list = empty_failed();
        (list[1], list[2]) = (1, 1);
        let switch = 3 + GPUS * FAILED_WORDS;
        for (at, uuid) in [(3, "GPU-1"), (switch, "SWX-2")] {
            write(&mut list[at..at + 20], uuid);
            write(&mut list[at + 20..at + 28], "00000000:1B:00.0");
            (list[at + 28], list[at + 29], list[at + 30]) = (2, 7, 9);
        }
        let device = |uuid: &str| FailedDevice {
            uuid: uuid.into(),
            bus: Some("0000:1b:00.0".parse().unwrap()),
            ports: vec![7, 9],
        };
        let read = failed(&list).unwrap();
        assert_eq!(
            read,
            FailedDevices { gpus: vec![device("GPU-1")], switches: vec![device("SWX-2")] }
        );
        list[switch + 28] = 65;
        assert_eq!(failed(&list).unwrap_err(), "it counts 65 ports of a device, more than 64");
        list[2] = 13;
        assert_eq!(failed(&list).unwrap_err(), "it counts 13 NVSwitches, more than 12");
        let mut list = empty_unsupported();
        list[1] = 1;
        list[2..6].copy_from_slice(&[4, 2, 2, 4]);
        let modules = [2, 4].into_iter().collect();
        assert_eq!(unsupported(&list).unwrap(), [UnsupportedPartition { id: 4, modules }]);
        list[3] = 17;
        assert_eq!(
            unsupported(&list).unwrap_err(),
            "it counts 17 GPUs in a partition, more than 16"
        );
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
}
