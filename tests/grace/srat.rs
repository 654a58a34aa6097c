//! ACPICA's `iasl` as a second reader of the firmware's table: it takes the table apart without an
//! error, puts the same bytes together again, and its generic initiators are those that `gpuvm host
//! show` has.

use super::{on, tray};
use crate::support::grace::TRAY;
use crate::support::run;
use crate::support::tree::scratch;
use crate::xml::tools::has;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The function of each node that is a generic initiator's.
pub type Functions = BTreeMap<u64, String>;

/// Bytes of the header that a compiler writes itself: the checksum; its name and revision.
const OF_COMPILER: [std::ops::Range<usize>; 2] = [9..10, 28..36];

/// An entry as iasl prints it.
#[derive(Default)]
struct Entry {
    kind: u32,
    domain: u32,
    function: Option<String>,
    is_enabled: bool,
}

impl Entry {
    fn add(&mut self, name: &str, value: &str) {
        let number = || u32::from_str_radix(value, 16).expect(value);
        match name {
            "Proximity Domain" | "Proximity Domain Low(8)" => self.domain |= number(),
            "Proximity Domain High(24)" => self.domain |= number() << 8,
            "Device Handle" if self.kind == 5 => {
                let bytes: Vec<u32> =
                    value.split(' ').map(|byte| u32::from_str_radix(byte, 16).unwrap()).collect();
                let [low, high, bus, slot] = bytes[..4] else { panic!("{value}") };
                let (device, function) = (slot >> 3, slot & 7);
                let segment = high << 8 | low;
                self.function = Some(format!("{segment:04x}:{bus:02x}:{device:02x}.{function}"));
            }
            "Enabled" => self.is_enabled = value == "1",
            _ => {}
        }
    }
}

/// The entries of a table that iasl has taken apart.
fn entries(text: &str) -> Vec<Entry> {
    let mut found: Vec<Entry> = Vec::new();
    for line in text.lines() {
        let Some((left, value)) = line.split_once(" : ") else { continue };
        let name = left.rsplit(']').next().unwrap_or_default().trim();
        if name == "Subtable Type" {
            let kind = value.split(' ').next().unwrap_or_default();
            let kind = u32::from_str_radix(kind, 16).expect(value);
            found.push(Entry { kind, ..Entry::default() });
        } else if let Some(entry) = found.last_mut() {
            entry.add(name, value.trim());
        }
    }
    found
}

/// Has iasl judge a table: the functions of its generic initiators by node, as Linux numbers nodes.
/// `None` without iasl.
pub fn judged(table: &[u8]) -> Option<Functions> {
    if !has("iasl") {
        return None;
    }
    let dir = scratch();
    let iasl = |words: &[&str]| {
        let (code, out, err) = run(Command::new("iasl").args(words).current_dir(dir.path()));
        assert_eq!(code, 0, "{out}{err}");
        out + &err
    };
    fs::write(dir.path().join("srat"), table).unwrap();
    iasl(&["-d", "srat"]);
    let said = iasl(&["-p", "again", "srat.dsl"]);
    assert!(said.contains("0 Errors, 0 Warnings"), "{said}");
    let mut again = fs::read(dir.path().join("again.aml")).unwrap();
    assert_eq!(again.len(), table.len(), "{said}");
    for range in OF_COMPILER {
        again[range.clone()].copy_from_slice(&table[range]);
    }
    assert!(again == table, "iasl put other bytes together");
    assert_eq!(table.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)), 0, "checksum");
    let text = fs::read_to_string(dir.path().join("srat.dsl")).unwrap();
    let (of_memory, others): (Vec<Entry>, Vec<Entry>) = entries(&text)
        .into_iter()
        .filter(|entry| entry.is_enabled)
        .partition(|entry| entry.kind == 1);
    let (mut domains, mut found) = (Vec::new(), Functions::new());
    for entry in others.into_iter().chain(of_memory) {
        let known = domains.iter().position(|domain| *domain == entry.domain);
        let node = known.unwrap_or_else(|| {
            domains.push(entry.domain);
            domains.len() - 1
        });
        found.extend(entry.function.map(|function| (node as u64, function)));
    }
    Some(found)
}

/// A table of two sockets and of these generic initiators: proximity domain and function.
fn table(initiators: &[(u32, &str)]) -> Vec<u8> {
    let mut body = [1_u32.to_le_bytes().to_vec(), vec![0; 8]].concat();
    for socket in 0..2_u32 {
        let mut entry = vec![0; 18];
        (entry[0], entry[1], entry[10]) = (3, 18, 1);
        entry[2..6].copy_from_slice(&socket.to_le_bytes());
        body.extend(entry);
    }
    for (domain, function) in initiators {
        let mut entry = vec![0; 32];
        (entry[0], entry[1], entry[3], entry[24]) = (5, 32, 1, 1);
        entry[4..8].copy_from_slice(&domain.to_le_bytes());
        let hex = |range| u16::from_str_radix(&function[range], 16).unwrap();
        entry[8..10].copy_from_slice(&hex(0..4).to_le_bytes());
        let slot = hex(8..10) << 3 | hex(11..12);
        (entry[10], entry[11]) = (hex(5..7).to_le_bytes()[0], slot.to_le_bytes()[0]);
        body.extend(entry);
    }
    let length = u32::try_from(36 + body.len()).unwrap();
    let mut all = [b"SRAT".as_slice(), &length.to_le_bytes(), &[3, 0], b"GPUVM GRACE   "].concat();
    all.extend([1_u32.to_le_bytes().as_slice(), b"GPUV", &1_u32.to_le_bytes()].concat());
    all.extend(body);
    all[9] = all.iter().fold(0_u8, |sum, byte| sum.wrapping_sub(*byte));
    all
}

/// The functions of nodes that `gpuvm host show` prints.
fn shown(host: &Path) -> Functions {
    let (code, out, err) = on(host, &["host", "show", "--json"]);
    assert_eq!(code, 0, "{err}");
    let host: Value = serde_json::from_str(&out).unwrap();
    let nodes = host["host"]["nodes"].as_array().unwrap();
    let of = |node: &Value| Some((node["os_index"].as_u64()?, node["gpu"].as_str()?.to_owned()));
    nodes.iter().filter_map(of).collect()
}

/// In the order of QEMU's hashes, and with the nodes of the GPUs of a socket the other way round
/// than by the numbers of both.
#[test]
fn nodes_of_gpus_are_those_of_the_generic_initiators_that_iasl_finds() {
    let order = [1, 0, 3, 2].map(|at| TRAY[at]);
    let mut initiators = Vec::new();
    for (at, gpu) in order.iter().enumerate() {
        let first = 10 * u32::try_from(at).unwrap();
        initiators.extend([6, 5, 4, 3, 2, 8, 1, 7].map(|domain| (first + domain + 1, *gpu)));
    }
    let bytes = table(&initiators);
    let path = "sys/firmware/acpi/tables/SRAT";
    let host = tray(|root| {
        fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
        fs::write(root.join(path), &bytes).unwrap();
    });
    let Some(found) = judged(&bytes) else { return };
    assert_eq!(found.len(), 32);
    assert_eq!(found[&2], TRAY[1]);
    assert_eq!(shown(host.path()), found);
    // Without the table the order of both decides.
    fs::remove_file(host.path().join(path)).unwrap();
    assert_eq!(shown(host.path())[&2], TRAY[0]);
}
