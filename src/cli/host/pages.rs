//! `host pages`: the huge pages of each node, and how many of one size a node is to have.

use crate::apply::pages::boot;
use crate::cli::args::HostPagesArgs;
use crate::cli::change::manner;
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::cli::table::Table;
use crate::cpuset::NodeId;
use crate::discover::hugetlb;
use crate::fsroot::FsRoot;
use crate::memsize::MemSize;
use crate::request::PageSize;
use crate::topology::pages::{how_to_mount, not_mounted};
use crate::words;
use gpuvm_ops::host_pages::{NodePages, set_pages};
use gpuvm_ops::session::{Confirm, Manner, Of, Session};
use serde::Serialize;
use std::collections::BTreeSet;

/// Is one pool.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Row {
    /// Its node.
    node: NodeId,
    /// Its page size.
    page_kib: MemSize,
    /// Pages that are reserved.
    reserved: u64,
    /// Pages in use, the surplus included.
    used: u64,
    /// Pages that nobody uses.
    free: u64,
    /// Pages that the kernel added and drops when they are no longer used.
    surplus: u64,
    /// How many more the node's memory could give now, at most; none: not known.
    room: Option<u64>,
    /// Pages that are reserved at boot by our file.
    at_boot: Option<u64>,
    /// Where a file system of this size is mounted; none: not known.
    mounted: Option<Vec<String>>,
}

/// Runs the verb.
pub fn run(args: &HostPagesArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    match args.count {
        None => show(args, cx),
        Some(count) => set(args, count, cx),
    }
}

/// Shows the pools.
fn show(args: &HostPagesArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let rows = rows(args, cx)?;
    if cx.output.json {
        cx.output.json_rows("gpuvm-host-pages", &rows)?;
    } else if rows.is_empty() {
        cx.output.text("no pools of huge pages")?;
    } else {
        cx.output.table(&table(&rows))?;
    }
    let lacks = |row: &&Row| {
        let wanted = row.reserved > 0 || row.at_boot.is_some_and(|count| count > 0);
        wanted && row.mounted.as_ref().is_some_and(Vec::is_empty)
    };
    let sizes: BTreeSet<MemSize> = rows.iter().filter(lacks).map(|row| row.page_kib).collect();
    for page in sizes {
        cx.output.warning(&format!("{}; {}", not_mounted(page), how_to_mount(page)));
    }
    Ok(EXIT_DONE)
}

/// The pools that are asked for, by node and size.
fn rows(args: &HostPagesArgs, cx: &Context<'_>) -> anyhow::Result<Vec<Row>> {
    let topology = cx.topology()?;
    let root = cx.root()?;
    let at_boot = root.as_ref().map(boot::numbers).transpose()?.unwrap_or_default();
    let asked = args.size.map(|size| PageSize::from(size).size());
    let mounts = topology.machine().hugetlbfs.as_ref();
    let mut rows = Vec::new();
    for node in topology.nodes() {
        let id = node.os_index;
        if args.node.is_some_and(|asked| asked != id.0) {
            continue;
        }
        let left = match &root {
            Some(root) => hugetlb::available(root, id)?,
            None => None,
        };
        for pool in &node.huge_pages {
            let page = pool.page_kib;
            if asked.is_some_and(|asked| asked != page) {
                continue;
            }
            let of_size = mounts.map(|mounts| mounts.iter().filter(|mount| mount.page_kib == page));
            rows.push(Row {
                node: id,
                page_kib: page,
                reserved: pool.reserved(),
                used: pool.used(),
                free: pool.free,
                surplus: pool.surplus,
                room: left.map(|left| left.kib() / page.kib()),
                at_boot: at_boot.get(&(id, page)).copied(),
                mounted: of_size.map(|mounts| mounts.map(|mount| mount.at.clone()).collect()),
            });
        }
    }
    Ok(rows)
}

/// The pools for people.
fn table(rows: &[Row]) -> Table {
    let head =
        ["NODE", "SIZE", "RESERVED", "USED", "FREE", "SURPLUS", "ROOM", "AT BOOT", "MOUNTED"];
    let known = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let mounted = match &row.mounted {
            None => "-".to_owned(),
            Some(at) if at.is_empty() => "no".to_owned(),
            Some(at) => at.join(" "),
        };
        let numbers =
            [row.reserved, row.used, row.free, row.surplus].map(|number| number.to_string());
        let mut line = vec![row.node.to_string(), row.page_kib.to_string()];
        line.extend(numbers);
        line.extend([known(row.room), known(row.at_boot), mounted]);
        lines.push(line);
    }
    Table::of(lines)
}

/// Sets how many pages of a size a node has, now or at boot.
fn set(args: &HostPagesArgs, count: u64, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("host pages --count")?;
    cx.refuse_elsewhere("host pages --count")?;
    // clap asks for both with --count.
    let (Some(node), Some(size)) = (args.node, args.size) else { return show(args, cx) };
    let (node, page) = (NodeId(node), PageSize::from(size).size());
    let (now, at_boot) = (!args.boot_only, args.at_boot || args.boot_only);
    let wanted = NodePages { node, page, count, now, at_boot };
    let confirm = if args.yes { Confirm::Given } else { Confirm::IfNeeded };
    let manner = Manner { confirm, dry_run: args.dry_run, of: Of::Host, ..manner(&args.lock) };
    let done = Session::begin(cx, manner)?.run(|_| set_pages(&wanted))?;
    if args.dry_run {
        return Ok(EXIT_DONE);
    }
    if !done.made {
        cx.output.progress(&format!(
            "{} {}: already set; nothing to do",
            words::count(count, "page"),
            done.change.subject
        ));
    }
    if at_boot {
        tell(page, &FsRoot::live()?, cx)?;
    }
    if cx.output.json {
        cx.output.json_rows("gpuvm-steps", &done.change.steps())?;
    }
    Ok(EXIT_DONE)
}

/// Says what reserves the same pages surer still.
fn tell(page: MemSize, root: &FsRoot, cx: &Context<'_>) -> anyhow::Result<()> {
    let numbers = boot::numbers(root)?;
    if numbers.keys().any(|(_, size)| *size == page) {
        let arguments = boot::arguments(&numbers, page);
        cx.output.progress(&format!(
            "surer, since it comes before anything uses memory: the kernel's arguments `{arguments}` \
             in the boot loader's configuration (Linux 5.16 and later)"
        ));
    }
    Ok(())
}
