//! `host pages`: shows the huge pages of each node, or sets their number.

use crate::cli::args::HostPagesArgs;
use crate::cli::change::manner;
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::cli::table::Table;
use crate::cpuset::NodeId;
use crate::request::PageSize;
use crate::words;
use gpuvm_ops::host_pages::{NodePages, NodePool, not_mounted_pools, pools, set_pages, surer};
use gpuvm_ops::session::{Confirm, Manner, Of, Session};

/// Runs the verb.
pub fn run(args: &HostPagesArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    match args.count {
        None => show(args, cx),
        Some(count) => set(args, count, cx),
    }
}

fn show(args: &HostPagesArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let page = args.size.map(PageSize::size);
    let rows = pools(cx, args.node.map(NodeId), page)?;
    if cx.output.json {
        cx.output.json_rows("gpuvm-host-pages", &rows)?;
    } else if rows.is_empty() {
        cx.output.text("no pools of huge pages")?;
    } else {
        cx.output.table(&table(&rows))?;
    }
    not_mounted_pools(&rows).iter().for_each(|warning| cx.output.warning(warning));
    Ok(EXIT_DONE)
}

fn table(rows: &[NodePool]) -> Table {
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
    // clap requires both with --count.
    let (Some(node), Some(size)) = (args.node, args.size) else { return show(args, cx) };
    let (node, page) = (NodeId(node), size.size());
    let (now, at_boot) = (!args.boot_only, args.at_boot || args.boot_only);
    let wanted = NodePages { node, page, count, now, at_boot };
    let confirm = if args.yes { Confirm::Given } else { Confirm::IfNeeded };
    let manner = Manner { confirm, dry_run: args.dry_run, of: Of::Host, ..manner(&args.lock) };
    let done = Session::begin(cx, manner)?.run(|world| set_pages(world, &wanted))?;
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
        surer(page)?.iter().for_each(|text| cx.output.progress(text));
    }
    if cx.output.json {
        cx.output.json_rows("gpuvm-steps", &done.change.steps())?;
    }
    Ok(EXIT_DONE)
}
