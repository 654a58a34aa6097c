//! `drive restore-array`: brings a released array back.

use super::named;
use super::release::{FSTAB, tell_initramfs};
use crate::apply::Step;
use crate::apply::array::{
    ArrayStep, Assembly, CommandError, Mounting, can_make, content, output, unmark,
};
use crate::blockdev::signatures::foreign;
use crate::cli::args::RestoreArrayArgs;
use crate::cli::change::asking;
use crate::cli::codes::Class;
use crate::cli::context::Context;
use crate::cli::error::{Coded, EXIT_DONE, around, classed, usage};
use crate::discover::arrays::array;
use crate::discover::drives::kernel_name;
use crate::discover::holders::Uses;
use crate::discover::released::{self, Released, plain};
use crate::fsroot::FsRoot;
use crate::shell::word;
use crate::topology::{Content, DriveUse, Signature};
use gpuvm_ops::change::Change;
use gpuvm_ops::drives::error::ArrayVerbError;
use gpuvm_ops::drives::state::{Reason, State};
use gpuvm_ops::reporter::Deed;
use gpuvm_ops::session::Session;
use std::path::Path;

/// Seconds that mdadm may take to read superblocks.
const EXAMINE_S: u64 = 60;

/// Runs the verb.
pub fn run(args: &RestoreArrayArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("drive restore-array")?;
    cx.refuse_elsewhere("drive restore-array")?;
    let (common, name) = (&args.common, args.name.trim_start_matches("/dev/"));
    let (yes, dry_run) = (common.change.yes, common.change.dry_run);
    let mut session = Session::begin(cx, asking(&common.change.lock, (yes, dry_run)))?;
    let done = session.run(|_| -> anyhow::Result<_> {
        let (record, steps) = plan(args, name, cx)?;
        let what = ("drive restore-array", name);
        let change = named(what, (Deed::Restore, "array", name), steps, record);
        Ok(Change { again: format!("gpuvm drive restore-array {}", word(name)), ..change })
    })?;
    if !done.made {
        return Ok(EXIT_DONE);
    }
    let record = &done.change.about;
    verify(record, &done.change.steps())?;
    let Released { level, members, mounts, .. } = record;
    let places: Vec<&str> = mounts.iter().map(|mount| mount.at.as_str()).collect();
    let mounted = match &places[..] {
        [] => String::new(),
        places => format!(", mounted at {}", places.join(", ")),
    };
    cx.output.progress(&format!(
        "array {name} is restored: {level} of {} drives{mounted}",
        members.len()
    ));
    if is_guarded(args) && !places.is_empty() {
        cx.output.progress(&format!(
            "mounted with nodev and nosuid, because a guest may have written it; `mount -o remount,dev,suid {}` and \
             {FSTAB} without both trust it",
            places.join(" ")
        ));
    }
    tell_initramfs(common.initramfs, cx);
    Ok(EXIT_DONE)
}

/// The record and the steps, or why the array cannot be restored.
fn plan(
    args: &RestoreArrayArgs,
    name: &str,
    cx: &Context<'_>,
) -> anyhow::Result<(Released, Vec<Step>)> {
    let root = FsRoot::live()?;
    let is_name = !name.is_empty() && !name.contains('/') && !name.starts_with('.');
    let record = if is_name { released::read(&root, name)? } else { None };
    let Some(record) = record else {
        let names = released::names(&root)?.join(", ");
        let hint = if names.is_empty() { String::new() } else { format!("released: {names}") };
        return Err(classed(Class::NotFound, format!("no array `{name}` was released"), hint));
    };
    if args.mkfs {
        refuse_unmakeable(&record)?;
    }
    let running = members_free(&record, cx)?;
    let device = running.clone().unwrap_or_else(|| format!("/dev/{name}"));
    if running.is_none() && array(&root, name)?.is_some() {
        return Err(ArrayVerbError::NameTaken { device: device.to_string() }.hint(format!(
            "`mdadm --stop {device}` stops it, if nothing uses it",
            device = word(&device)
        )));
    }
    let mut steps = Vec::new();
    let lost: Vec<String> = match running {
        Some(_) => outside(&root, &record, &device)?,
        None => lost(&record)?,
    };
    let known = match args.create {
        true => overwritten(args, &record, record.members.iter().map(|member| &member.id))?,
        false if args.rebuild => overwritten(args, &record, lost.iter())?,
        false => Vec::new(),
    };
    match running {
        None => steps.push(bring_up(args, &record, &device, &lost, &known)?),
        Some(_) if args.create => {
            return Err(usage(
                format!("array `{name}` runs as {device}"),
                "leave --create out: it makes the array anew, and --mkfs alone makes a file system on the one that runs",
            ));
        }
        Some(_) if !lost.is_empty() && !args.rebuild => {
            return Err(ArrayVerbError::Incomplete { name: name.to_string(), device: device.to_string(), lines: lost.join(", ").to_string() }.hint(format!(
                    "`gpuvm drive restore-array {name} --rebuild` adds them, which destroys what is on them",
                    name = word(name)
                )));
        }
        Some(_) => {}
    }
    let file_system = record.file_system.clone().map(|file_system| (device.clone(), file_system));
    steps.extend(file_system.map(|(device, file_system)| match args.mkfs {
        true => ArrayStep::MakeFileSystem { device, file_system, uuid: record.uuid.clone() },
        false => ArrayStep::CheckFileSystem { device, file_system },
    }));
    let config = Path::new(&record.mdadm_conf);
    let guard = is_guarded(args);
    steps.extend(unmarked(config, name, &record.array_lines, false, cx)?);
    steps.extend(unmarked(Path::new(FSTAB), name, &record.fstab, guard, cx)?);
    steps.extend(record.mounts.iter().map(|mount| {
        ArrayStep::Mount(Mounting {
            device: device.clone(),
            at: mount.at.clone(),
            kind: mount.kind.clone(),
            options: match guard {
                true => guarded(&mount.options),
                false => mount.options.clone(),
            },
        })
    }));
    let path = Path::new("/").join(released::file(name));
    steps.push(ArrayStep::ReplaceText {
        before: content(&path)?,
        path,
        after: None,
        what: "forget that the array was released".to_owned(),
        units: false,
    });
    if args.rebuild && !lost.is_empty() {
        let (known, uuid) = (Some(known), record.uuid.clone());
        steps.push(ArrayStep::Add { device, members: lost, known, uuid });
    }
    steps.extend(args.common.initramfs.then_some(ArrayStep::UpdateInitramfs));
    Ok((record, steps.into_iter().map(Step::Array).collect()))
}

/// Refuses a new file system of a kind that is not made here.
fn refuse_unmakeable(record: &Released) -> anyhow::Result<()> {
    match &record.file_system {
        Some(file_system) if can_make(&file_system.kind) => Ok(()),
        Some(file_system) => Err(usage(
            format!("a file system of kind `{}` cannot be made here", file_system.kind),
            "restore the array without --mkfs and make it by hand",
        )),
        None => Err(usage("there was no file system on the array", "leave --mkfs out")),
    }
}

/// Refuses while a member is missing or used by another than this array; the array's device where it runs already.
fn members_free(record: &Released, cx: &Context<'_>) -> anyhow::Result<Option<String>> {
    let state = State::read(cx, cx.occupancy(false)?)?;
    let drives = &state.topology.parts().drives;
    let mut reasons = Vec::new();
    let mut running = None;
    for member in &record.members {
        let Some(name) = kernel_name(Path::new(&member.id)) else {
            reasons.push(format!(
                "{} (was {}) is not there: taken out, or bound to vfio-pci for a guest",
                member.id, member.name
            ));
            continue;
        };
        let whole = drives.iter().find(|drive| drive.name == name);
        let uses = match whole {
            Some(drive) => state.of_drive(drive),
            None => drives
                .iter()
                .flat_map(|drive| drive.partitions.iter().map(move |part| (drive, part)))
                .find(|(_, part)| part.name == name)
                .map(|(drive, part)| state.of_partition(drive, part))
                .unwrap_or_default(),
        };
        for used in uses {
            match &used {
                Reason::Host { used: DriveUse::Holder { device, .. }, .. }
                    if running.as_ref() == Some(device)
                        || uuid_of("--detail", &format!("/dev/{device}"))
                            == Some(plain(&record.uuid)) =>
                {
                    running = Some(device.clone());
                }
                // What is written there is dealt with where the superblocks are looked for.
                Reason::Host { used: DriveUse::Member { .. }, .. } => {}
                used => reasons.push(used.to_string()),
            }
        }
    }
    if reasons.is_empty() {
        return Ok(running.map(|name| format!("/dev/{name}")));
    }
    reasons.dedup();
    let lines: String = reasons.iter().map(|reason| format!("\n  {reason}")).collect();
    Err(ArrayVerbError::MembersInUse { name: record.name.to_string(), lines: lines.to_string() }.hint("stop and delete the guests that have its drives; `gpuvm drive list` shows who uses what"))
}

/// The UUID of an array (`--detail`) or in the superblock of a member (`--examine`), without punctuation.
fn uuid_of(how: &str, device: &str) -> Option<String> {
    let text = output(&["mdadm", how, "--export", device], EXAMINE_S).ok()?;
    text.lines().find_map(|line| line.strip_prefix("MD_UUID=")).map(plain)
}

/// The members that carry the array's superblocks no more.
fn lost(record: &Released) -> anyhow::Result<Vec<String>> {
    if let Err(error @ CommandError::Unstarted { .. }) = output(&["mdadm", "--version"], EXAMINE_S)
    {
        let message = error.to_string();
        return Err(around(error, message, "install it: apt install mdadm"));
    }
    let is_of = |id: &str| uuid_of("--examine", id) == Some(plain(&record.uuid));
    let ids = record.members.iter().map(|member| &member.id);
    Ok(ids.filter(|id| !is_of(id)).cloned().collect())
}

/// The members that an array which runs does without.
fn outside(root: &FsRoot, record: &Released, device: &str) -> anyhow::Result<Vec<String>> {
    let running = kernel_name(Path::new(device)).map(|name| array(root, &name)).transpose()?;
    let inside = running.flatten().map(|array| array.members).unwrap_or_default();
    let is_in = |id: &str| {
        let name = kernel_name(Path::new(id));
        inside.iter().any(|(_, member)| name.as_ref() == Some(member))
    };
    let ids = record.members.iter().map(|member| &member.id);
    Ok(ids.filter(|id| !is_in(id)).cloned().collect())
}

/// The step that makes the array run: assembled where every member still belongs to it, or enough of them do.
fn bring_up(
    args: &RestoreArrayArgs,
    record: &Released,
    device: &str,
    lost: &[String],
    known: &[String],
) -> anyhow::Result<ArrayStep> {
    let (name, all) = (&record.name, record.members.len());
    let keeps = lost.len() <= record.spares();
    let assemble = || {
        let ids = record.members.iter().map(|member| &member.id);
        ArrayStep::Assemble(Assembly {
            device: device.to_owned(),
            uuid: record.uuid.clone(),
            members: ids.filter(|id| !lost.contains(id)).cloned().collect(),
            degraded: !lost.is_empty(),
        })
    };
    match (lost.is_empty(), args.create) {
        (true, false) => Ok(assemble()),
        (true, true) => Err(usage(
            format!("all {all} drives of `{name}` still carry its superblocks"),
            "leave --create out: the array is assembled with what is on it",
        )),
        (false, false) if args.rebuild && keeps => Ok(assemble()),
        (false, false) => {
            let lines: String = lost.iter().map(|id| format!("\n  {id}")).collect();
            let anew = format!(
                "`gpuvm drive restore-array {name} --create --mkfs` makes array and file system anew and destroys what is \
                 on all {all} drives",
                name = word(name)
            );
            let hint = match keeps {
                true => format!(
                    "`gpuvm drive restore-array {name} --rebuild` keeps what is on it, which the other drives still have; \
                     {anew}",
                    name = word(name)
                ),
                false => anew,
            };
            Err(ArrayVerbError::SuperblocksLost {
                count: lost.len().to_string(),
                all: all.to_string(),
                name: name.to_string(),
                lines: lines.to_string(),
            }
            .hint(hint))
        }
        (false, true) if record.file_system.is_some() && !args.mkfs => Err(usage(
            "an array that is made anew has no file system, and the released one had",
            "--create --mkfs makes one with the old UUID, so that the lines of fstab hold",
        )),
        (false, true) => {
            let (device, array) = (device.to_owned(), Box::new(record.clone()));
            Ok(ArrayStep::Create { device, array, known: Some(known.to_vec()) })
        }
    }
}

/// What lies on drives that are to be overwritten, a phrase each; an error where they belong to something else, or data
/// lies on them and its loss was not accepted.
fn overwritten<'i>(
    args: &RestoreArrayArgs,
    record: &Released,
    ids: impl Iterator<Item = &'i String>,
) -> anyhow::Result<Vec<String>> {
    let (mut known, mut lines, mut refused) = (Vec::new(), String::new(), false);
    for id in ids {
        let content = foreign(Path::new(id), &record.uuid);
        let told = content.says(id);
        refused |= matches!(content, Content::Unread(_))
            || content.signatures().iter().any(Signature::is_member);
        told.iter().for_each(|phrase| lines += &format!("\n  {phrase}"));
        known.extend(told);
    }
    let name = &record.name;
    if refused {
        return Err(ArrayVerbError::MembersOfAnother {
            name: name.to_string(),
            lines: lines.to_string(),
        }
        .hint("`gpuvm drive wipe ID` erases one of them, where nothing needs it"));
    }
    if !known.is_empty() && !args.accept_data_loss {
        return Err(ArrayVerbError::MembersHaveData {
            name: name.to_string(),
            lines: lines.to_string(),
        }
        .hint("--accept-data-loss overwrites them"));
    }
    Ok(known)
}

/// Whether the file system may be one that a guest has written, and nobody has said that it is to be trusted.
fn is_guarded(args: &RestoreArrayArgs) -> bool {
    !args.mkfs && !args.trust_content
}

/// Options of a mount, so that neither device files nor set-user-ID programs of the file system count.
fn guarded(options: &str) -> String {
    let kept = options.split(',').filter(|word| !["dev", "suid", "nodev", "nosuid"].contains(word));
    kept.filter(|word| !word.is_empty()).chain(["nodev", "nosuid"]).collect::<Vec<_>>().join(",")
}

/// A line of fstab with such options; its other bytes stay.
fn guarded_line(line: &str) -> String {
    let mut fields = line.split_whitespace();
    let Some(options) = fields.nth(3) else { return format!("{line} nodev,nosuid") };
    let at = options.as_ptr() as usize - line.as_ptr() as usize;
    format!("{}{}{}", &line[..at], guarded(options), &line[at + options.len()..])
}

/// The step that puts the lines of a file back; none where it has no mark of the array.
fn unmarked(
    path: &Path,
    name: &str,
    kept: &[String],
    guard: bool,
    cx: &Context<'_>,
) -> anyhow::Result<Option<ArrayStep>> {
    let before = content(path)?;
    let text = before.as_deref().unwrap_or_default();
    let mut back = unmark(text, name);
    for line in kept.iter().filter(|line| !back.lines.contains(line)) {
        cx.output.warning(&format!("{} has no longer the line `{line}`", path.display()));
    }
    if back.text == text {
        return Ok(None);
    }
    for line in back.lines.iter_mut().filter(|_| guard) {
        let safe = guarded_line(line);
        back.text = back.text.replacen(line.as_str(), &safe, 1);
        *line = safe;
    }
    let what = match back.lines.is_empty() {
        true => "take out the line that kept the array from being assembled".to_owned(),
        false => format!("put back `{}`", back.lines.join("`, `")),
    };
    // A file that was made for the mark alone goes with it.
    let after = Some(back.text).filter(|text| !text.is_empty());
    let (path, units) = (path.to_owned(), path == Path::new(FSTAB));
    Ok(Some(ArrayStep::ReplaceText { path, before, after, what, units }))
}

/// Looks whether the array runs as it was, and is mounted where it was.
fn verify(record: &Released, steps: &[Step]) -> anyhow::Result<()> {
    let root = FsRoot::live()?;
    let mut wrong = Vec::new();
    let first = record.members.first().map(|member| member.id.as_str()).unwrap_or_default();
    let holder = kernel_name(Path::new(first))
        .map(|name| root.names(&format!("sys/class/block/{name}/holders")))
        .transpose()?
        .unwrap_or_default();
    let name = holder.first().cloned().unwrap_or_else(|| record.name.clone());
    match array(&root, &name)? {
        None => wrong.push(format!("/dev/{name} does not run")),
        Some(array) => {
            if (&array.level, array.members.len()) != (&record.level, record.members.len()) {
                let members = array.members.len();
                wrong.push(format!("/dev/{name} is {} of {members} drives", array.level));
            }
            let is_new = |step: &Step| matches!(step, Step::Array(ArrayStep::Create { .. }));
            if array.bytes != record.bytes && !steps.iter().any(is_new) {
                wrong.push(format!("/dev/{name} has {} bytes, not {}", array.bytes, record.bytes));
            }
            if uuid_of("--detail", &format!("/dev/{name}")) != Some(plain(&record.uuid)) {
                wrong.push(format!("/dev/{name} has another UUID than {}", record.uuid));
            }
        }
    }
    let uses = Uses::read(&root)?;
    let mounts = uses.mounts_of(&root, &name)?;
    for wanted in &record.mounts {
        if !mounts.iter().any(|mount| mount.at == wanted.at) {
            wrong.push(format!("/dev/{name} is not mounted at {}", wanted.at));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let lines: String = wrong.iter().map(|line| format!("\n  {line}")).collect();
    Err(ArrayVerbError::NotRestored { name: record.name.to_string(), lines: lines.to_string() }
        .bare())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_s_file_system_is_mounted_without_devices_and_set_user_ids() {
        for (options, safe) in [
            ("defaults", "defaults,nodev,nosuid"),
            ("rw,suid,dev,noatime", "rw,noatime,nodev,nosuid"),
            ("", "nodev,nosuid"),
        ] {
            assert_eq!(guarded(options), safe);
        }
        for (line, safe) in [
            (
                "UUID=a\t/raid\text4 defaults,nofail 0 2",
                "UUID=a\t/raid\text4 defaults,nofail,nodev,nosuid 0 2",
            ),
            ("/dev/md1 /raid ext4", "/dev/md1 /raid ext4 nodev,nosuid"),
        ] {
            assert_eq!(guarded_line(line), safe);
        }
    }
}
