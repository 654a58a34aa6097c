//! The text output of `capacity`.

use crate::cli::table::Table;
use crate::placement::{Capacity, UNKNOWN_INSTANCES, VgpuCapacity};
use crate::words::count;
use std::fmt::Write as _;

/// Makes the table of fitting guests by size; on an empty host with one column.
pub(super) fn table(capacity: &Capacity, empty: bool) -> Table {
    let columns = if empty { 2 } else { 3 };
    let head = ["GPUs of a guest", "guests that fit", "on the empty host"];
    let mut table = Table::new(&head[..columns]);
    for size in &capacity.sizes {
        table.push([size.gpus, size.now, size.empty][..columns].iter().map(u32::to_string));
    }
    table
}

/// Makes the table of vGPUs by type; with the guests that fit where they were counted.
pub(super) fn vgpus(all: &[VgpuCapacity]) -> Table {
    let has_guests = all.iter().any(|of| of.guests.is_some());
    let head = ["vGPU type", "creatable", "in use", "vGPUs of a guest", "guests that fit"];
    let mut table = Table::new(&head[..if has_guests { 5 } else { 3 }]);
    for of in all {
        let mut row = vec![of.name.clone(), of.creatable.to_string(), of.in_use.to_string()];
        if let Some(guests) = &of.guests {
            row.extend([guests.vgpus.to_string(), guests.now.to_string()]);
        }
        table.push(row);
    }
    table
}

/// Returns why no further guest with vGPUs fits.
pub(super) fn limits(all: &[VgpuCapacity]) -> String {
    let limits = all.iter().filter_map(|of| of.guests.as_ref());
    let lines = limits.map(|guests| format!("\nno further one: {}\n", guests.limit));
    lines.collect()
}

/// Returns which types may have fewer than they show; empty: none.
pub(super) fn doubts(all: &[VgpuCapacity]) -> String {
    let unknown = all.iter().filter(|of| of.unknown_instances && of.creatable > 0);
    let names: Vec<&str> = unknown.map(|of| of.name.as_str()).collect();
    match &names[..] {
        [] => String::new(),
        names => format!("\nat most: {}: {UNKNOWN_INSTANCES}\n", names.join(", ")),
    }
}

/// Returns the rest of the text output, `none` if there are no GPUs.
pub(super) fn text(capacity: &Capacity, none: &str) -> String {
    let mut text = String::new();
    if capacity.sizes.is_empty() {
        text += &format!("{none}; `gpuvm capacity --gpus 0` counts guests without GPUs\n");
    }
    for of in &capacity.models {
        let gpus = |number: u32| count(number as usize, "GPU");
        let sizes = of.sizes.iter().map(|size| format!("{} with {}", size.now, gpus(size.gpus)));
        let sizes: Vec<String> = sizes.collect();
        let sizes = if sizes.is_empty() { "none".to_owned() } else { sizes.join(", ") };
        let gpus = gpus(of.gpus);
        writeln!(text, "{} ({}): {gpus}; guests that fit: {sizes}", of.model, of.ids)
            .expect("text");
    }
    for line in capacity.not_isolated() {
        writeln!(text, "{line}").expect("text");
    }
    for line in &capacity.never_placed {
        writeln!(text, "never placed: {line}").expect("text");
    }
    if let Some(next) = &capacity.next {
        text.push('\n');
        next.lines().iter().for_each(|line| writeln!(text, "{line}").expect("text"));
    }
    text
}
