//! `snapshot create`, `list`, `revert`, `delete`.

use super::args::{ChangeArgs, NameArgs, SnapshotCreateArgs, SnapshotVerb};
use super::change::asking;
use super::context::Context;
use super::diff::Diff;
use super::error::EXIT_DONE;
use super::table::Table;
use gpuvm_ops::change::Change;
use gpuvm_ops::session::Session;
use gpuvm_ops::snapshot::{
    ChangedSnapshot, SnapshotDeed, SnapshotOf, create, delete, list, revert,
};
use gpuvm_ops::world::World;

/// The plan of a change of a snapshot.
type Plan = fn(&World, &SnapshotOf) -> gpuvm_ops::error::Result<Change<ChangedSnapshot>>;

/// Runs the verb.
pub fn run(verb: &SnapshotVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    match verb {
        SnapshotVerb::Create(args) => change("snapshot create", args, true, create, cx),
        SnapshotVerb::List(args) => print(args, cx),
        SnapshotVerb::Revert(args) => change("snapshot revert", &args.of, args.yes, revert, cx),
        SnapshotVerb::Delete(args) => change("snapshot delete", &args.of, args.yes, delete, cx),
    }
}

/// Runs `snapshot list`.
fn print(args: &NameArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_without_guests("snapshot list")?;
    let snapshots = list(cx, &args.name)?;
    if cx.output.json {
        cx.output.json_rows("gpuvm-snapshot-list", &snapshots)?;
        return Ok(EXIT_DONE);
    }
    if snapshots.is_empty() {
        cx.output.progress(&format!("domain `{}` has no snapshot", args.name));
        return Ok(EXIT_DONE);
    }
    let mut table = Table::new(["SNAPSHOT", "MADE", "KIND", "DISKS"]);
    for one in &snapshots {
        let disks = if one.disks.is_empty() { "-".to_owned() } else { one.disks.join(", ") };
        table.push([one.name.clone(), one.made.clone(), one.kind.word().to_owned(), disks]);
    }
    cx.output.table(&table)?;
    Ok(EXIT_DONE)
}

fn change(
    verb: &'static str,
    args: &SnapshotCreateArgs,
    yes: bool,
    plan: Plan,
    cx: &Context<'_>,
) -> anyhow::Result<u8> {
    cx.refuse_recorded(verb)?;
    let wanted = args.wanted();
    let ChangeArgs { dry_run, diff, ref lock } = args.change;
    let mut session = Session::begin(cx, asking(lock, (yes, dry_run)))?;
    if diff {
        session.look(|world| plan(world, &wanted))?;
        return Ok(Diff::same(&args.name, cx.output).map(|()| EXIT_DONE)?);
    }
    let done = session.run(|world| plan(world, &wanted))?;
    if dry_run {
        return Ok(EXIT_DONE);
    }
    let changed = done.change.about;
    let ChangedSnapshot { name, snapshot, deed, .. } = &changed;
    cx.output.progress(&match deed {
        SnapshotDeed::Created => format!("domain `{name}` has snapshot `{snapshot}`"),
        SnapshotDeed::Reverted => format!("domain `{name}` is as in snapshot `{snapshot}`"),
        SnapshotDeed::Deleted => format!("snapshot `{snapshot}` of domain `{name}` is deleted"),
    });
    if cx.output.json {
        cx.output.json("gpuvm-snapshot-changed", &changed)?;
    }
    Ok(EXIT_DONE)
}
