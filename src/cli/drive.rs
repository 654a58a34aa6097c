//! Drives: `drive list`, `drive release-array`, `drive restore-array`, `drive wipe`.

mod list;

use super::args::{DriveChangeArgs, DriveVerb, ReleaseArrayArgs, RestoreArrayArgs, WipeArgs};
use super::change::asking;
use super::context::Context;
use super::error::EXIT_DONE;
use crate::discover::released;
use gpuvm_ops::drives::FSTAB;
use gpuvm_ops::drives::release::{ReleaseArray, release_array};
use gpuvm_ops::drives::restore::{RestoreArray, restore_array};
use gpuvm_ops::drives::wipe;
use gpuvm_ops::initramfs::renewed_by;
use gpuvm_ops::session::Session;

/// Runs the verb.
pub fn run(verb: &DriveVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    match verb {
        DriveVerb::List(args) => list::run(args, cx),
        DriveVerb::ReleaseArray(args) => release(args, cx),
        DriveVerb::RestoreArray(args) => restore(args, cx),
        DriveVerb::Wipe(args) => wipe(args, cx),
    }
}

/// Begins a change of drives of this machine.
fn begin<'c>(
    verb: &str,
    args: &DriveChangeArgs,
    cx: &'c Context<'_>,
) -> anyhow::Result<Session<'c>> {
    cx.refuse_recorded(verb)?;
    cx.refuse_elsewhere(verb)?;
    Ok(Session::begin(cx, asking(&args.lock, (args.yes, args.dry_run)))?)
}

/// Runs `drive release-array`.
fn release(args: &ReleaseArrayArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let mut session = begin("drive release-array", &args.common.change, cx)?;
    let initramfs = args.common.initramfs;
    let wanted = ReleaseArray { device: args.device.clone(), unmount: args.unmount, initramfs };
    let Some(name) = release_array(&mut session, &wanted)? else { return Ok(EXIT_DONE) };
    let record = released::file(&name);
    cx.output.progress(&format!("array {name} is released; /{record} keeps what restores it"));
    note_initramfs(initramfs, cx)?;
    Ok(EXIT_DONE)
}

/// Runs `drive restore-array`.
fn restore(args: &RestoreArrayArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let mut session = begin("drive restore-array", &args.common.change, cx)?;
    let wanted = RestoreArray {
        name: args.name.trim_start_matches("/dev/").to_owned(),
        rebuild: args.rebuild,
        create: args.create,
        mkfs: args.mkfs,
        accept_data_loss: args.accept_data_loss,
        trust_content: args.trust_content,
        initramfs: args.common.initramfs,
    };
    let Some(record) = restore_array(&mut session, &wanted)? else { return Ok(EXIT_DONE) };
    let places: Vec<&str> = record.mounts.iter().map(|mount| mount.at.as_str()).collect();
    let mounted = match &places[..] {
        [] => String::new(),
        places => format!(", mounted at {}", places.join(", ")),
    };
    let (name, level, members) = (&wanted.name, &record.level, record.members.len());
    cx.output.progress(&format!("array {name} is restored: {level} of {members} drives{mounted}"));
    if wanted.is_guarded() && !places.is_empty() {
        cx.output.progress(&format!(
            "mounted with nodev and nosuid, because a guest may have written it; `mount -o \
             remount,dev,suid {}` and {FSTAB} without both trust it",
            places.join(" ")
        ));
    }
    note_initramfs(wanted.initramfs, cx)?;
    Ok(EXIT_DONE)
}

/// Prints the remaining step if the initramfs was not rebuilt.
fn note_initramfs(is_done: bool, cx: &Context<'_>) -> anyhow::Result<()> {
    if !is_done {
        cx.output.progress(&renewed_by("still has the old mdadm.conf", true)?);
    }
    Ok(())
}

/// Runs `drive wipe`.
fn wipe(args: &WipeArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let mut session = begin("drive wipe", &args.change, cx)?;
    let done = session.run(|world| wipe::wipe(world, &args.id))?;
    if !done.made {
        return Ok(EXIT_DONE);
    }
    let wiped = &done.change.about;
    if cx.output.json {
        cx.output.json("gpuvm-wiped-drive", wiped)?;
    }
    cx.output.progress(&format!("drive {} ({}) is erased", wiped.name, wiped.path.display()));
    Ok(EXIT_DONE)
}
