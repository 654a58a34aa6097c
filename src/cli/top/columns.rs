//! The columns of the table of guests, and which of them fit.

use super::bytes::{page, short};
use gpuvm_core::load::{DeviceLoad, GuestLoad};

/// A column of numbers.
pub(super) struct Column {
    /// Its head.
    pub(super) head: &'static str,
    /// Its least width, so that it seldom changes.
    least: usize,
    /// Columns with a higher number are left out first.
    rank: u8,
    /// Its cell of a guest.
    pub(super) cell: fn(&GuestLoad) -> String,
}

/// The columns between the name and the findings.
const COLUMNS: [Column; 15] = [
    Column { head: "VCPU", least: 4, rank: 4, cell: |guest| guest.vcpus.to_string() },
    Column { head: "CPU%", least: 4, rank: 0, cell: |guest| percent(guest.cpu_ratio, 0) },
    Column { head: "WAIT%", least: 5, rank: 1, cell: |guest| percent(guest.wait_ratio, 1) },
    Column { head: "EMU%", least: 4, rank: 5, cell: |guest| percent(guest.emulator_ratio, 0) },
    Column { head: "LOCAL%", least: 6, rank: 6, cell: local },
    Column { head: "HUGE", least: 4, rank: 9, cell: huge },
    Column { head: "READ", least: 4, rank: 2, cell: |guest| read(guest.storage().as_ref()) },
    Column { head: "WRITE", least: 5, rank: 2, cell: |guest| written(guest.storage().as_ref()) },
    Column { head: "NET IN", least: 6, rank: 3, cell: |guest| read(guest.network().as_ref()) },
    Column { head: "OUT", least: 4, rank: 3, cell: |guest| written(guest.network().as_ref()) },
    Column { head: "THROTTLED", least: 9, rank: 10, cell: throttled },
    Column {
        head: "EXITS",
        least: 5,
        rank: 13,
        cell: |guest| guest.exits_s.map_or_else(none, short),
    },
    Column { head: "HALT%", least: 5, rank: 14, cell: halt },
    Column { head: "IO%", least: 4, rank: 11, cell: |guest| percent(guest.iothread_ratio, 0) },
    Column { head: "LINK", least: 5, rank: 12, cell: link },
];

/// A column that is shown, with its cells.
pub(super) struct Shown {
    /// Its head.
    pub(super) head: &'static str,
    /// Its width.
    pub(super) width: usize,
    /// Its cells, in the order of the guests.
    pub(super) cells: Vec<String>,
}

/// Returns the columns that fit into a width, each with a blank before it.
pub(super) fn fitting(guests: &[GuestLoad], width: usize) -> Vec<Shown> {
    let mut shown: Vec<(u8, Shown)> = COLUMNS
        .iter()
        .map(|column| {
            let cells: Vec<String> = guests.iter().map(column.cell).collect();
            let widest = cells.iter().map(String::len).max().unwrap_or(0);
            let width = widest.max(column.least);
            (column.rank, Shown { head: column.head, width, cells })
        })
        .collect();
    while shown.iter().map(|(_, column)| column.width + 1).sum::<usize>() > width {
        let Some(last) = shown.iter().map(|(rank, _)| *rank).max() else { break };
        shown.retain(|(rank, _)| *rank != last);
    }
    shown.into_iter().map(|(_, column)| column).collect()
}

fn percent(ratio: f64, digits: usize) -> String {
    format!("{:.digits$}", ratio * 100.0)
}

fn none() -> String {
    "-".to_owned()
}

fn local(guest: &GuestLoad) -> String {
    let local = guest.memory.as_ref().and_then(|memory| memory.local_ratio);
    // Only memory that is on its nodes to the last page is 100.
    local.map_or_else(none, |ratio| format!("{:.0}", (ratio * 100.0).floor()))
}

fn huge(guest: &GuestLoad) -> String {
    guest.memory.as_ref().and_then(|memory| memory.page_kib).map_or_else(none, page)
}

fn read(rate: Option<&gpuvm_core::load::ByteRate>) -> String {
    rate.map_or_else(none, |rate| short(rate.read_bytes_s))
}

fn written(rate: Option<&gpuvm_core::load::ByteRate>) -> String {
    rate.map_or_else(none, |rate| short(rate.written_bytes_s))
}

fn halt(guest: &GuestLoad) -> String {
    guest.halt_poll_ratio.map_or_else(none, |ratio| percent(ratio, 0))
}

fn throttled(guest: &GuestLoad) -> String {
    let sum: f64 = guest.throttled.iter().map(|quota| quota.throttled_ratio).sum();
    if guest.throttled.is_empty() { none() } else { percent(sum, 0) }
}

/// The link that lacks the most lanes: `x8/16`, or `x16`.
fn link(guest: &GuestLoad) -> String {
    let lanes = |device: &DeviceLoad| device.width.zip(device.max_width);
    let links = guest.devices.iter().filter_map(lanes);
    let worst = links.min_by_key(|(width, most)| (width * 64 / (*most).max(1), *width));
    worst.map_or_else(none, |(width, most)| {
        if width < most { format!("x{width}/{most}") } else { format!("x{width}") }
    })
}
