//! `host matrix`: how near GPUs, NICs and drives are to each other. Only formats [`Matrix`].

use crate::cli::args::MatrixArgs;
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::cli::output::width;
use crate::topology::{DeviceKind, Matrix, MatrixRow, Proximity};
use std::fmt::Write as _;

/// Runs the verb.
pub fn run(args: &MatrixArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let topology = cx.topology()?;
    let matrix = Matrix::of(&topology, args.nvme);
    if cx.output.json {
        cx.output.json("gpuvm-matrix", &matrix)?;
    } else if args.tsv {
        cx.output.verbatim(&tsv(&matrix))?;
    } else if matrix.devices.is_empty() {
        cx.output.text(&format!("{}\n", topology.without("GPU or RDMA NIC")))?;
    } else {
        cx.output.verbatim(&text(&matrix, width().unwrap_or(100)))?;
    }
    Ok(EXIT_DONE)
}

/// The form of `nvidia-smi topo -m`, separated by tabs, with an address column.
fn tsv(matrix: &Matrix) -> String {
    let mut text = String::new();
    for row in &matrix.devices {
        write!(text, "\t{}", row.name).expect("text");
    }
    text.push_str("\tCPU Affinity\tNUMA Affinity\tbdf\n");
    for (row, cells) in matrix.devices.iter().zip(&matrix.proximity) {
        text.push_str(&row.name);
        for cell in cells {
            write!(text, "\t{cell}").expect("text");
        }
        let [cpus, node] = affinity(row);
        writeln!(text, "\t{cpus}\t{node}\t{}", row.bdf).expect("text");
    }
    text
}

/// Makes the text table; columns that do not fit into `width` follow in further tables below.
fn text(matrix: &Matrix, width: usize) -> String {
    let mut columns: Vec<Vec<String>> = Vec::new();
    for (position, row) in matrix.devices.iter().enumerate() {
        let cells = matrix.proximity.iter().map(|cells| cells[position].to_string());
        columns.push(std::iter::once(row.name.clone()).chain(cells).collect());
    }
    let extra = |head: &str, cell: &dyn Fn(&MatrixRow) -> String| {
        std::iter::once(head.to_owned()).chain(matrix.devices.iter().map(cell)).collect()
    };
    let known = |row: &MatrixRow, at: usize| match affinity(row)[at].clone() {
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
    text.push_str(&legend(matrix));
    text
}

/// Explains the words used in the matrix.
fn legend(matrix: &Matrix) -> String {
    let cells = || matrix.proximity.iter().flatten();
    let mut text = String::new();
    if cells().any(|cell| matches!(cell, Proximity::NvLink(_))) {
        text.push_str("NV#   joined by # NVLinks\n");
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
        matrix.devices.iter().filter(|row| row.node_unknown).map(|row| &*row.name).collect();
    if !unknown.is_empty() && cells().any(|cell| *cell == Proximity::Sys) {
        let names = unknown.join(", ");
        writeln!(text, "      or unknown: the kernel reports no node for {names}").expect("text");
    }
    text
}

/// Pcpus and node of a row, or nothing.
fn affinity(row: &MatrixRow) -> [String; 2] {
    let text = |value: Option<String>| value.unwrap_or_default();
    [
        text(row.cpu_affinity.as_ref().map(ToString::to_string)),
        text(row.numa_affinity.as_ref().map(ToString::to_string)),
    ]
}

fn wide(column: &[String]) -> usize {
    column.iter().map(|cell| cell.chars().count()).max().unwrap_or(0)
}
