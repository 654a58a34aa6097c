//! Parses the output of `nvidia-smi topo -m` as a source of NVLinks for a record: for machines
//! whose driver answers only its own tool, and for texts sent by users. Reads the rows of GPUs;
//! text around the table (a prompt, the legend) is ignored. Reports contradictions within the text
//! and with the PCIe tree.

use super::fabric::answer::GpuLinks;
use super::fabric::links::{MOST_LINKS, Read, lay_over};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::topology::vendor::VENDOR_NVIDIA;
use gpuvm_core::topology::{DeviceKind, FabricModel, Proximity, Topology, TopologyError};
use gpuvm_core::words;

/// The most differences from the PCIe tree reported one by one.
const SHOWN: usize = 4;

/// The error of a text that is not a table of `nvidia-smi topo -m` for this host.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "gpu-table-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum TopoError {
    /// There is no table.
    #[error("no header row that begins with `GPU0`")]
    NoTable,
    /// A word differs from the expected one.
    #[error("line {line} column {column}: {reason}")]
    Word {
        /// From 1.
        line: usize,
        /// From 1, in characters.
        column: usize,
        reason: String,
    },
    /// A row is missing.
    #[error("the row of GPU{gpu} is missing: the table names {gpus} GPUs")]
    NoRow { gpu: usize, gpus: usize },
    /// It belongs to another host.
    #[error("the table has {}, this host has {there} of NVIDIA", words::count(*listed, "GPU"))]
    OtherHost { listed: usize, there: usize },
    /// The record would contradict itself.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    Topology(#[from] TopologyError),
}

#[derive(Debug, Clone)]
struct Word {
    /// Line, from 1.
    line: usize,
    /// Column of its first character, from 1.
    column: usize,
    text: String,
}

impl Word {
    /// The error that something is wrong with it.
    fn wrong(&self, reason: impl Into<String>) -> TopoError {
        TopoError::Word { line: self.line, column: self.column, reason: reason.into() }
    }
}

/// The link of two GPUs according to the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cell {
    /// The same GPU.
    Same,
    /// This many NVLinks.
    Links(u32),
    /// Over PCIe.
    Pcie(Proximity),
}

/// A table of `nvidia-smi topo -m`: the part about GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topo {
    /// A row for each GPU, by index.
    cells: Vec<Vec<Cell>>,
}

/// The words of a line. nvidia-smi underlines the first one on a terminal: escape sequences are
/// skipped.
fn split(line: &str, number: usize) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let mut inside = false;
    let mut escape = false;
    for (at, c) in line.chars().enumerate() {
        if escape {
            escape = !c.is_ascii_alphabetic();
            continue;
        }
        if c == '\u{1b}' {
            escape = true;
            continue;
        }
        if c.is_whitespace() {
            inside = false;
            continue;
        }
        match words.last_mut() {
            Some(word) if inside => word.text.push(c),
            _ => words.push(Word { line: number, column: at + 1, text: c.into() }),
        }
        inside = true;
    }
    words
}

/// The index of `GPU3`.
fn gpu_index(word: &str) -> Option<usize> {
    word.strip_prefix("GPU")?.parse().ok()
}

impl Topo {
    /// Reads a text.
    pub fn parse(text: &str) -> Result<Topo, TopoError> {
        let mut lines = text.lines().enumerate().map(|(at, line)| split(line, at + 1));
        let is_head = |words: &Vec<Word>| words.first().is_some_and(|word| word.text == "GPU0");
        let head = lines.find(is_head).ok_or(TopoError::NoTable)?;
        let gpus = head.iter().map_while(|word| gpu_index(&word.text)).count();
        for (at, word) in head[..gpus].iter().enumerate() {
            if gpu_index(&word.text) != Some(at) {
                let reason = format!("`{}` where GPU{at} belongs", word.text);
                return Err(word.wrong(reason));
            }
        }
        let mut rows: Vec<Option<(Vec<Cell>, Vec<Word>)>> = vec![None; gpus];
        for words in lines {
            let Some((name, cells)) = words.split_first() else {
                // A legend follows the table; before its first row there may be an empty line.
                if rows.iter().any(Option::is_some) {
                    break;
                }
                continue;
            };
            let Some(index) = gpu_index(&name.text) else { continue };
            let Some(row) = rows.get_mut(index) else {
                return Err(name.wrong(format!("{} has no column", name.text)));
            };
            if row.is_some() {
                return Err(name.wrong(format!("{} appears twice", name.text)));
            }
            *row = Some((row_of(name, index, &cells[..cells.len().min(gpus)], gpus)?, words));
        }
        let mut cells = Vec::with_capacity(gpus);
        let mut places = Vec::with_capacity(gpus);
        for (gpu, row) in rows.into_iter().enumerate() {
            let (row, words) = row.ok_or(TopoError::NoRow { gpu, gpus })?;
            cells.push(row);
            places.push(words);
        }
        for (a, row) in cells.iter().enumerate() {
            for (b, cell) in row.iter().enumerate().take(a) {
                if *cell != cells[b][a] {
                    let word = &places[a][b + 1];
                    let other = &places[b][a + 1].text;
                    let reason = format!("GPU{a} to GPU{b} is {}, back it is {other}", word.text);
                    return Err(word.wrong(reason));
                }
            }
        }
        Ok(Topo { cells })
    }

    /// Puts the table's NVLinks into a host; `name` is the source to display. nvidia-smi numbers
    /// GPUs in bus order, boot displays included. The table's PCIe entries are compared with the
    /// tree, and differences become notes: the tree takes precedence.
    pub fn lay_over(&self, host: &Topology, name: &str) -> Result<Topology, TopoError> {
        let gpus: Vec<Bdf> = host
            .of_kind(DeviceKind::Gpu)
            .filter(|gpu| gpu.vendor == VENDOR_NVIDIA)
            .filter(|gpu| !gpu.is_vf())
            .map(|gpu| gpu.bdf)
            .collect();
        if gpus.len() != self.cells.len() {
            return Err(TopoError::OtherHost { listed: self.cells.len(), there: gpus.len() });
        }
        let switched = host.fabric().model != FabricModel::None
            || host.of_kind(DeviceKind::NvSwitch).next().is_some();
        let read = self.cells.iter().zip(&gpus).map(|(row, &bdf)| {
            let to = |(cell, &peer): (&Cell, &Bdf)| match cell {
                Cell::Links(links) => Some((peer, *links)),
                Cell::Same | Cell::Pcie(_) => None,
            };
            let linked: Vec<(Bdf, u32)> = row.iter().zip(&gpus).filter_map(to).collect();
            if switched {
                let most = linked.iter().map(|(_, links)| *links).max().unwrap_or(0);
                GpuLinks { bdf, direct: Vec::new(), switched: most }
            } else {
                GpuLinks { bdf, direct: linked, switched: 0 }
            }
        });
        let read = Read { gpus: read.collect(), by: name.to_owned(), ..Read::default() };
        let mut parts = host.parts().clone();
        let mut notes = self.differences(host, &gpus, name);
        notes.extend(lay_over(&mut parts.fabric, &read, false));
        parts.notes.append(&mut notes);
        Ok(Topology::new(parts)?)
    }

    /// Returns where the table's PCIe entries differ from the tree.
    fn differences(&self, host: &Topology, gpus: &[Bdf], name: &str) -> Vec<String> {
        let way = |bdf: Bdf| host.device(bdf).map(|device| host.way(device));
        let mut notes = Vec::new();
        for (a, row) in self.cells.iter().enumerate() {
            for (b, cell) in row.iter().enumerate().skip(a + 1) {
                let (Cell::Pcie(printed), Some(from), Some(to)) =
                    (cell, way(gpus[a]), way(gpus[b]))
                else {
                    continue;
                };
                let tree = from.over_pcie(&to);
                if tree != *printed {
                    let what = format!("GPU{a} to GPU{b} is {printed} in {name}");
                    notes.push(format!("{what}, and {tree} by the PCIe tree, which counts"));
                }
            }
        }
        if notes.len() > SHOWN {
            let more = notes.len() - SHOWN;
            notes.truncate(SHOWN);
            notes.push(format!("{more} more pairs of GPUs are not in {name} as in the PCIe tree"));
        }
        notes
    }
}

fn row_of(name: &Word, index: usize, words: &[Word], gpus: usize) -> Result<Vec<Cell>, TopoError> {
    let mut row = Vec::with_capacity(gpus);
    for (at, word) in words.iter().enumerate() {
        let cell = cell(word)?;
        if (cell == Cell::Same) != (at == index) {
            let reason = if at == index {
                format!("`{}` where GPU{index} meets itself: X belongs there", word.text)
            } else {
                format!("X where GPU{index} meets GPU{at}")
            };
            return Err(word.wrong(reason));
        }
        row.push(cell);
    }
    if row.len() < gpus {
        let last = words.last().unwrap_or(name);
        let reason = format!("GPU{index} has {} of {gpus} cells", row.len());
        return Err(last.wrong(reason));
    }
    Ok(row)
}

/// The meaning of a cell. Drivers before 384 called SYS `SOC`.
fn cell(word: &Word) -> Result<Cell, TopoError> {
    let links = |text: &str| text.strip_prefix("NV")?.parse().ok();
    match word.text.as_str() {
        "X" => Ok(Cell::Same),
        "PIX" => Ok(Cell::Pcie(Proximity::Pix)),
        "PXB" => Ok(Cell::Pcie(Proximity::Pxb)),
        "PHB" => Ok(Cell::Pcie(Proximity::Phb)),
        "NODE" => Ok(Cell::Pcie(Proximity::Node)),
        "SYS" | "SOC" => Ok(Cell::Pcie(Proximity::Sys)),
        text => match links(text) {
            Some(links @ 1..=MOST_LINKS) => Ok(Cell::Links(links)),
            Some(links) => {
                Err(word.wrong(format!("NV{links} is out of range (1 to {MOST_LINKS})")))
            }
            None => {
                Err(word.wrong(format!("`{text}` is none of X, NV#, PIX, PXB, PHB, NODE, SYS")))
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_table_is_an_error_with_its_place() {
        let head = "\tGPU0\tGPU1\tCPU Affinity\n";
        for (rows, said) in [
            ("GPU0\t X \tNV4\t0\nGPU1\tNV4\t X \t0\n", None),
            // As on a terminal, and followed by the table of NICs.
            ("\u{1b}[4mGPU0\u{1b}[0m X NV4 PHB 0-3\nGPU1 NV4 X PHB\nNIC0 PHB PHB X\n", None),
            ("GPU0 X NV4\n", Some("the row of GPU1 is missing: the table names 2 GPUs")),
            (
                "GPU0 X NV4\nGPU1 NV2 X\n",
                Some("line 3 column 6: GPU1 to GPU0 is NV2, back it is NV4"),
            ),
            ("GPU0 X NV0\n", Some("line 2 column 8: NV0 is out of range (1 to 72)")),
            ("GPU0 X LINK\n", Some("line 2 column 8: `LINK` is none of X, NV#")),
            ("GPU0 X\n", Some("line 2 column 6: GPU0 has 1 of 2 cells")),
            ("GPU0\n", Some("line 2 column 1: GPU0 has 0 of 2 cells")),
            ("GPU0 SYS X\n", Some("line 2 column 6: `SYS` where GPU0 meets itself")),
            ("GPU0 X X\n", Some("line 2 column 8: X where GPU0 meets GPU1")),
            ("GPU0 X SYS\nGPU0 X SYS\n", Some("line 3 column 1: GPU0 appears twice")),
            ("GPU0 X SYS\nGPU2 X SYS\n", Some("line 3 column 1: GPU2 has no column")),
        ] {
            let found = Topo::parse(&format!("{head}{rows}"));
            match (found, said) {
                (Ok(_), None) => {}
                (Err(error), Some(said)) => {
                    assert!(error.to_string().starts_with(said), "{rows}: {error}");
                }
                (found, _) => panic!("{rows}: {found:?}"),
            }
        }
        assert_eq!(Topo::parse("GPU 0: NVIDIA H100\n"), Err(TopoError::NoTable));
        let error = Topo::parse("GPU0 GPU2\n").unwrap_err().to_string();
        assert_eq!(error, "line 1 column 6: `GPU2` where GPU1 belongs");
    }

    #[test]
    fn a_boot_display_has_its_row() {
        let gpu = |bdf: &str, boot_vga: bool| {
            let json = serde_json::json!({ "bdf": bdf, "class": "0x030000", "vendor": "0x10de",
                "device": "0x2204", "boot_vga": boot_vga });
            serde_json::from_value::<gpuvm_core::topology::PciDevice>(json).unwrap()
        };
        let json = serde_json::json!({ "machine": {}, "nodes": [{ "os_index": 0, "pcpus": "0", "memory_kib": 1024 }],
            "cores": [{ "package": 0, "core_id": 0, "node": 0, "pcpus": "0" }], "devices": [] });
        let mut parts: gpuvm_core::topology::Parts = serde_json::from_value(json).unwrap();
        parts.devices = vec![gpu("0000:01:00.0", true), gpu("0000:02:00.0", false)];
        let host = Topology::new(parts).unwrap();
        assert_eq!(host.gpus().count(), 1);
        let table = Topo::parse("\tGPU0\tGPU1\nGPU0 X NV4\nGPU1 NV4 X\n").unwrap();
        let with = table.lay_over(&host, "t").unwrap();
        assert_eq!(with.fabric().links.iter().map(|link| link.links).collect::<Vec<_>>(), [4]);
        let one = Topo::parse("\tGPU0\nGPU0 X\n").unwrap();
        let error = one.lay_over(&host, "t").unwrap_err().to_string();
        assert_eq!(error, "the table has 1 GPU, this host has 2 of NVIDIA");
    }
}
