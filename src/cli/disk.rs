//! The disks of a guest: `disk list`, `disk add`, `disk resize`, `disk remove`.

use super::args::{ChangeArgs, DiskAddArgs, DiskRemoveArgs, DiskResizeArgs, DiskVerb, NameArgs};
use super::change::{asking, manner};
use super::context::Context;
use super::diff::Diff;
use super::error::EXIT_DONE;
use super::table::Table;
use crate::memsize::MemSize;
use crate::shell::word;
use gpuvm_ops::change::Change;
use gpuvm_ops::error::{Error as OpsError, Result as OpsResult};
use gpuvm_ops::guest_disks::add::{ChangedDisk, add};
use gpuvm_ops::guest_disks::list::{DiskWhen, ListedDisk, list};
use gpuvm_ops::guest_disks::remove::{explained, remove};
use gpuvm_ops::guest_disks::resize::{self, ResizedDisk, resize};
use gpuvm_ops::session::{Manner, Session};
use gpuvm_ops::world::World;

/// Runs the verb.
pub fn run(verb: &DiskVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    match verb {
        DiskVerb::List(args) => print(args, cx),
        DiskVerb::Add(args) => run_add(args, cx),
        DiskVerb::Resize(args) => run_resize(args, cx),
        DiskVerb::Remove(args) => run_remove(args, cx),
    }
}

/// Runs `disk list`.
fn print(args: &NameArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_without_guests("disk list")?;
    let disks = list(cx, &args.name)?;
    if cx.output.json {
        cx.output.json_rows("gpuvm-disk-list", &disks)?;
    } else if disks.is_empty() {
        cx.output.progress(&format!("domain `{}` has no disks", args.name));
    } else {
        cx.output.table(&table(&disks))?;
    }
    Ok(EXIT_DONE)
}

fn table(disks: &[ListedDisk]) -> Table {
    let mut table = Table::new([
        "DISK",
        "BUS",
        "KIND",
        "SIZE",
        "ALLOCATED",
        "FORMAT",
        "MADE",
        "SOURCE",
        "USED BY",
    ]);
    let dash = || "-".to_owned();
    let size = |bytes: Option<u64>| {
        bytes.map_or_else(dash, |bytes| MemSize::from_kib(bytes.div_ceil(1024)).to_string())
    };
    for disk in disks {
        let mut notes = disk.used_by.clone();
        match disk.when {
            DiskWhen::Always => {}
            DiskWhen::UntilOff => notes.insert(0, "until the guest is off".to_owned()),
            DiskWhen::NextStart => notes.insert(0, "from the next start".to_owned()),
        }
        if disk.read_only {
            notes.insert(0, "read-only".to_owned());
        }
        table.push([
            disk.target.clone(),
            if disk.bus.is_empty() { dash() } else { disk.bus.clone() },
            disk.kind.word().to_owned(),
            size(disk.bytes),
            size(disk.allocated_bytes),
            disk.format.clone().unwrap_or_else(dash),
            if disk.made { "yes" } else { "no" }.to_owned(),
            disk.source.clone().unwrap_or_else(dash),
            notes.join("; "),
        ]);
    }
    table
}

/// Runs `disk add`.
fn run_add(args: &DiskAddArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("disk add")?;
    let wanted = args.wanted();
    let (how, yes) = (&args.change, args.accept_data_loss);
    change(how, yes, |world| add(world, &wanted), |error| error, "added to", cx)
}

/// Runs `disk remove`.
fn run_remove(args: &DiskRemoveArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("disk remove")?;
    let wanted = args.wanted();
    let explained = |error| explained(error, &wanted);
    change(&args.change, args.yes, |world| remove(world, &wanted), explained, "removed from", cx)
}

/// Makes or shows a change of a disk.
fn change(
    args: &ChangeArgs,
    yes: bool,
    plan: impl Fn(&World) -> OpsResult<Change<ChangedDisk>>,
    explained: impl FnOnce(OpsError) -> OpsError,
    done: &str,
    cx: &Context<'_>,
) -> anyhow::Result<u8> {
    let mut session = Session::begin(cx, asking(&args.lock, (yes, args.dry_run)))?;
    if args.diff {
        let about = session.look(&plan)?.about;
        let (before, after) = &about.definitions;
        Diff::of(&about.name, Some(before), Some(after)).print(cx.output)?;
        return Ok(EXIT_DONE);
    }
    let made = session.run(&plan).map_err(explained)?;
    if made.made {
        report(&made.change.about, done, cx)?;
    }
    Ok(EXIT_DONE)
}

fn report(disk: &ChangedDisk, done: &str, cx: &Context<'_>) -> anyhow::Result<()> {
    if cx.output.json {
        return Ok(cx.output.json("gpuvm-disk-changed", disk)?);
    }
    let ChangedDisk { name, target, source, live, waits_for_start, deleted, other_names, .. } =
        disk;
    let source = source.as_ref().map(|source| format!(" ({source})")).unwrap_or_default();
    let data = match (deleted, other_names) {
        (false, _) => String::new(),
        (true, 0) => "; its data is deleted".to_owned(),
        (true, 1) => "; its file is deleted, and 1 other name of it keeps the data".to_owned(),
        (true, names) => {
            format!("; its file is deleted, and {names} other names of it keep the data")
        }
    };
    cx.output.progress(&format!("disk {target}{source} {done} domain `{name}`{data}"));
    if *live {
        cx.output.progress("the running guest is changed, too");
    } else if *waits_for_start {
        let name = word(name);
        cx.output.progress(&format!(
            "the guest is running; the change takes effect at its next start (`gpuvm restart \
             {name}`)"
        ));
    }
    Ok(())
}

/// Runs `disk resize`.
fn run_resize(args: &DiskResizeArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("disk resize")?;
    let (wanted, dry_run) = (args.wanted(), args.change.dry_run);
    let mut session = Session::begin(cx, Manner { dry_run, ..manner(&args.change.lock) })?;
    if args.change.diff {
        // A disk's size is not in the definition.
        let about = session.look(|world| resize(world, &wanted))?.about;
        Diff::of(&about.name, Some(""), Some("")).print(cx.output)?;
        return Ok(EXIT_DONE);
    }
    if let Some(resized) = resize::run(&mut session, cx, &wanted)? {
        report_resized(&resized, cx)?;
    }
    Ok(EXIT_DONE)
}

/// Reports the growth, and the remaining steps in the guest.
fn report_resized(disk: &ResizedDisk, cx: &Context<'_>) -> anyhow::Result<()> {
    if cx.output.json {
        return Ok(cx.output.json("gpuvm-disk-resized", disk)?);
    }
    let ResizedDisk { name, target, before_bytes, bytes, guest, .. } = disk;
    let size = |bytes: &u64| MemSize::from_kib(bytes / 1024);
    let Some(guest) = guest else {
        cx.output
            .progress(&format!("disk {target} of domain `{name}` already has {}", size(bytes)));
        return Ok(());
    };
    let (was, is) = (size(before_bytes), size(bytes));
    cx.output.progress(&format!("disk {target} of domain `{name}` grown from {was} to {is}"));
    for line in &guest.done {
        cx.output.progress(&format!("run in the guest: `{line}`"));
    }
    if let Some(why) = &guest.why {
        let lines = guest.left.join("`, `");
        cx.output.progress(&format!("to be run in the guest ({why}): `{lines}`"));
    }
    Ok(())
}
