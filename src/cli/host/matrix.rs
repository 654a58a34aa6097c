//! `host matrix`: how near GPUs, NICs and drives are to each other. Only arranges what
//! [`Topology::proximity`] says.

use crate::bdf::Bdf;
use crate::cli::args::MatrixArgs;
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::cli::names::natural;
use crate::cli::output::width;
use crate::cpuset::{CpuSet, NodeId};
use crate::topology::{DeviceKind, PciDevice, Proximity, Topology};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Is one device of the matrix.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Row {
    /// `GPU0`, `mlx5_0`, `nvme0n1`.
    pub name: String,
    /// Address.
    pub bdf: Bdf,
    /// What it is.
    pub kind: DeviceKind,
    /// Pcpus of its node; only for GPUs, as in the tool that people know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_affinity: Option<CpuSet>,
    /// Its node; only for GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_affinity: Option<NodeId>,
    /// Whether the record names no node of it, so that it may be nearer to others than `SYS` says.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub node_unknown: bool,
}

/// Is the whole matrix.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Matrix {
    /// GPUs by address, then NICs, then drives, each by name.
    pub devices: Vec<Row>,
    /// A row for each device, in the same order both ways.
    pub proximity: Vec<Vec<Proximity>>,
}

/// Runs the verb.
pub fn run(args: &MatrixArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let topology = cx.topology()?;
    let matrix = Matrix::of(&topology, args.nvme);
    if cx.output.json {
        cx.output.json("gpuvm-matrix", &matrix)?;
    } else if args.tsv {
        cx.output.verbatim(&matrix.tsv())?;
    } else if matrix.devices.is_empty() {
        cx.output.text(&format!("{}\n", topology.without("GPU or RDMA NIC")))?;
    } else {
        cx.output.verbatim(&matrix.text(width().unwrap_or(100)))?;
    }
    Ok(EXIT_DONE)
}

impl Matrix {
    /// The matrix of a host; `nvme`: with NVMe drives.
    pub fn of(topology: &Topology, nvme: bool) -> Matrix {
        let mut devices: Vec<Row> = topology
            .gpus()
            .enumerate()
            .map(|(index, gpu)| Row {
                cpu_affinity: gpu.node.and_then(|id| Some(topology.node(id)?.pcpus.clone())),
                numa_affinity: gpu.node,
                ..row(format!("GPU{index}"), gpu)
            })
            .collect();
        let mut nics: Vec<Row> = topology
            .of_kind(DeviceKind::Nic)
            .flat_map(|nic| nic.net.iter().flat_map(|net| &net.rdma).map(move |name| (name, nic)))
            .map(|(name, nic)| row(name.clone(), nic))
            .collect();
        nics.sort_by(|a, b| natural(&a.name, &b.name));
        devices.extend(nics);
        if nvme {
            let mut names: BTreeMap<Bdf, &str> = BTreeMap::new();
            for drive in &topology.parts().drives {
                if let Some(bdf) = drive.bdf {
                    names.entry(bdf).or_insert(&drive.name);
                }
            }
            let name = |bdf: Bdf| names.get(&bdf).map_or(bdf.to_string(), |&name| name.into());
            let mut drives: Vec<Row> = topology
                .of_kind(DeviceKind::Nvme)
                .map(|drive| row(name(drive.bdf), drive))
                .collect();
            drives.sort_by(|a, b| natural(&a.name, &b.name));
            devices.extend(drives);
        }
        let near = |a: &Row| devices.iter().map(|b| topology.proximity(a.bdf, b.bdf)).collect();
        let proximity = devices.iter().map(near).collect();
        Matrix { devices, proximity }
    }

    /// The form of `nvidia-smi topo -m`, separated by tabs, with an address column.
    pub fn tsv(&self) -> String {
        let mut text = String::new();
        for row in &self.devices {
            write!(text, "\t{}", row.name).expect("text");
        }
        text.push_str("\tCPU Affinity\tNUMA Affinity\tbdf\n");
        for (row, cells) in self.devices.iter().zip(&self.proximity) {
            text.push_str(&row.name);
            for cell in cells {
                write!(text, "\t{cell}").expect("text");
            }
            let [cpus, node] = affinity(row);
            writeln!(text, "\t{cpus}\t{node}\t{}", row.bdf).expect("text");
        }
        text
    }

    /// A table for people: columns that do not fit into `width` stand in further tables below.
    pub fn text(&self, width: usize) -> String {
        let mut columns: Vec<Vec<String>> = Vec::new();
        for (position, row) in self.devices.iter().enumerate() {
            let cells = self.proximity.iter().map(|cells| cells[position].to_string());
            columns.push(std::iter::once(row.name.clone()).chain(cells).collect());
        }
        let extra = |head: &str, cell: &dyn Fn(&Row) -> String| {
            std::iter::once(head.to_owned()).chain(self.devices.iter().map(cell)).collect()
        };
        let known = |row: &Row, at: usize| match affinity(row)[at].clone() {
            none if none.is_empty() && row.kind == DeviceKind::Gpu => "unknown".to_owned(),
            text => text,
        };
        columns.push(extra("node", &|row| known(row, 1)));
        columns.push(extra("pcpus", &|row| known(row, 0)));
        columns.push(extra("address", &|row| row.bdf.to_string()));
        let names: Vec<String> = extra("", &|row| row.name.clone());
        let mut text = String::new();
        let mut rest = columns.as_slice();
        while !rest.is_empty() {
            let mut used = wide(&names);
            let fit = rest.iter().take_while(|column| {
                used += wide(column) + 2;
                used <= width
            });
            let (now, later) = rest.split_at(fit.count().max(1));
            rest = later;
            for line in 0..names.len() {
                let mut printed = format!("{:<1$}", names[line], wide(&names));
                for column in now {
                    write!(printed, "  {:<1$}", column[line], wide(column)).expect("text");
                }
                text.push_str(printed.trim_end());
                text.push('\n');
            }
            text.push('\n');
        }
        text.push_str(&self.legend());
        text
    }

    /// What the words that stand in the matrix mean.
    fn legend(&self) -> String {
        let cells = || self.proximity.iter().flatten();
        let mut text = String::new();
        if cells().any(|cell| matches!(cell, Proximity::NvLink(_))) {
            text.push_str("NV#   so many NVLinks\n");
        }
        for (word, meaning) in [
            (Proximity::Pix, "at most one PCIe switch between them"),
            (Proximity::Pxb, "several PCIe switches, no host bridge"),
            (Proximity::Phb, "over the host bridge"),
            (Proximity::Node, "over host bridges of one NUMA node"),
            (Proximity::Sys, "over the link between NUMA nodes"),
        ] {
            if cells().any(|cell| *cell == word) {
                writeln!(text, "{word:<5} {meaning}").expect("text");
            }
        }
        let unknown: Vec<&str> =
            self.devices.iter().filter(|row| row.node_unknown).map(|row| &*row.name).collect();
        if !unknown.is_empty() && cells().any(|cell| *cell == Proximity::Sys) {
            let names = unknown.join(", ");
            writeln!(text, "      or unknown: the kernel names no node of {names}").expect("text");
        }
        text
    }
}

/// A row without affinity.
fn row(name: String, device: &PciDevice) -> Row {
    let (cpu_affinity, numa_affinity) = (None, None);
    let node_unknown = device.node.is_none();
    Row { name, bdf: device.bdf, kind: device.kind(), cpu_affinity, numa_affinity, node_unknown }
}

/// Pcpus and node of a row, or nothing.
fn affinity(row: &Row) -> [String; 2] {
    let text = |value: Option<String>| value.unwrap_or_default();
    [
        text(row.cpu_affinity.as_ref().map(ToString::to_string)),
        text(row.numa_affinity.as_ref().map(ToString::to_string)),
    ]
}

/// The widest cell.
fn wide(column: &[String]) -> usize {
    column.iter().map(|cell| cell.chars().count()).max().unwrap_or(0)
}
