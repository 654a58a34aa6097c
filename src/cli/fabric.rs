//! `fabric show`, `fabric release`, `fabric restore`, `fabric ensure`, `fabric hook`,
//! `fabric unit`.

use super::args::{
    FabricHookArgs, FabricReleaseArgs, FabricRestoreArgs, FabricUnitArgs, FabricVerb,
};
use super::change::{asking, change_host, program};
use super::context::Context;
use super::error::{EXIT_DONE, EXIT_FOUND};
use super::table::Table;
use crate::fsroot::FsRoot;
use crate::input::{DOMAIN_BYTES, text_or_stdin};
use crate::topology::FabricModel;
use crate::words::count;
use gpuvm_core::fabric::{Domain, VersionCheck};
use gpuvm_ops::fabric::{
    EnsuredPartitions, FabricFile, PendingPartition, Restored, Restoring, ShownFabric,
    ShownPartition, StartMode, Unrestored, config_steps, ensure, file_steps, hook,
    refuse_old_libvirt, release_of, release_partition, released, restore, show, unit,
};
use gpuvm_ops::host_files::daemon;
use gpuvm_ops::partition::MANAGER_OFF;
use gpuvm_ops::session::{Manner, Of, Session};
use std::fmt::Display;
use std::path::Path;

/// Runs the verb.
pub fn run(verb: &FabricVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    match verb {
        FabricVerb::Show => shows(cx),
        FabricVerb::Release(args) => releases(args, cx),
        FabricVerb::Restore(args) => restores(args, cx),
        FabricVerb::Ensure(_) => {
            cx.refuse_named_elsewhere("fabric ensure")?;
            report(&ensure(&xml()?)?, cx)
        }
        FabricVerb::Hook(args) => hooks(args, cx),
        FabricVerb::Unit(args) => units(args, cx),
    }
}

/// Runs `fabric show`.
fn shows(cx: &Context<'_>) -> anyhow::Result<u8> {
    let shown = show(cx)?;
    if cx.output.json {
        cx.output.json("gpuvm-fabric-show", &shown)?;
    } else {
        cx.output.text(&head(&shown, cx.is_recorded()))?;
        if !shown.partitions.is_empty() {
            cx.output.table(&table(&shown.partitions))?;
        }
        for PendingPartition { entry, name } in &shown.pending {
            let (id, uuid) = (entry.id, &entry.domain);
            let domain = match name {
                Some(name) => format!("domain `{name}` does not run"),
                None => format!("domain {uuid} is no longer defined"),
            };
            cx.output.warning(&format!(
                "partition {id} is still to be deactivated: {domain}; `gpuvm fabric release {id}` \
                 does it"
            ));
        }
        let is_asked = shown.model == FabricModel::SharedNvswitch && !cx.is_recorded();
        if let Some(text) = versions(&shown).filter(|_| is_asked) {
            match shown.versions {
                VersionCheck::Differ => cx.output.warning(&text),
                _ => cx.output.text(&format!("{text}\n"))?,
            }
        }
        if !shown.managed_switches.is_empty() {
            let many = count(shown.managed_switches.len(), "NVSwitch");
            cx.output.warning(&format!(
                "Fabric Manager of this host manages {many}, which no guest gets meanwhile: \
                 {MANAGER_OFF}"
            ));
        }
        for unknown in shown.refusal.iter().chain(&shown.unread) {
            cx.output.warning(unknown);
        }
    }
    Ok(if shown.is_wrong() { EXIT_FOUND } else { EXIT_DONE })
}

/// Returns version mismatches and unknown versions.
fn versions(shown: &ShownFabric) -> Option<String> {
    let known = |version: &Option<String>| version.as_deref().unwrap_or("unknown").to_owned();
    match shown.versions {
        VersionCheck::Same if shown.library_version.is_none() => Some(
            "not checked: the version of the client library libnvfm, which its file name does not \
             contain"
                .into(),
        ),
        VersionCheck::Same => None,
        VersionCheck::Differ => {
            let (what, other) = if shown.manager_version == shown.driver_version {
                ("its client library libnvfm", &shown.library_version)
            } else {
                ("the driver of this host", &shown.driver_version)
            };
            Some(format!(
                "Fabric Manager has version {}, and {what} has {}: no guest is started until they \
                 match",
                known(&shown.manager_version),
                known(other)
            ))
        }
        VersionCheck::NotChecked => Some(format!(
            "not checked: whether the running Fabric Manager (version {}) matches the driver \
             (version {})",
            known(&shown.manager_version),
            known(&shown.driver_version)
        )),
    }
}

/// Returns the lines above the table.
fn head(shown: &ShownFabric, is_record: bool) -> String {
    let board = shown.board.as_deref().unwrap_or("no known NVLink board");
    match shown.model {
        FabricModel::SharedNvswitch => {
            let version = shown.manager_version.as_deref().unwrap_or("of unknown version");
            let at = Some(&shown.address).filter(|_| !is_record);
            let at = at.map(|address| format!(" at {address}")).unwrap_or_default();
            format!("{board}: NVSwitches are shared by Fabric Manager {version}{at}\n")
        }
        FabricModel::FullPassthrough => {
            format!("{board}: NVSwitches go to guests, so Fabric Manager manages no partitions\n")
        }
        FabricModel::None => format!("{board}: Fabric Manager manages no partitions\n"),
    }
}

fn table(rows: &[ShownPartition]) -> Table {
    let mut table = Table::new(["PARTITION", "MODULES", "GPUS", "NVLINKS", "HOLDER", "STATE"]);
    for row in rows {
        table.push([
            row.id.to_string(),
            joined(&row.modules),
            if row.gpus.is_empty() { "-".to_owned() } else { joined(&row.gpus) },
            format!("{} of {}", row.links, row.links_at_most),
            if row.holders.is_empty() { "-".to_owned() } else { joined(&row.holders) },
            row.verdict.to_string(),
        ]);
    }
    table
}

fn joined<T: Display>(all: impl IntoIterator<Item = T>) -> String {
    all.into_iter().map(|one| one.to_string()).collect::<Vec<_>>().join(",")
}

/// Runs `fabric release`.
fn releases(args: &FabricReleaseArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let FabricReleaseArgs { partition, stdin: _, yes, dry_run, lock } = args;
    let Some(partition) = partition else {
        cx.refuse_named_elsewhere("fabric release")?;
        return report(&release_of(&xml()?)?, cx);
    };
    let manner = Manner { of: Of::HostWithGuests, ..asking(lock, (*yes, *dry_run)) };
    let mut session = Session::begin(cx, manner)?;
    let done = session.run(|world| release_partition(world, *partition))?;
    if !done.made && !dry_run {
        cx.output.progress(&format!("partition {partition} is not active; nothing to do"));
    } else if !dry_run {
        released(*partition)?;
    }
    Ok(EXIT_DONE)
}

/// Reads the domain's XML from standard input.
fn xml() -> anyhow::Result<String> {
    Ok(text_or_stdin(Path::new("-"), DOMAIN_BYTES)?)
}

/// Prints which partitions were a guest's.
fn report(done: &EnsuredPartitions, cx: &Context<'_>) -> anyhow::Result<u8> {
    if cx.output.json {
        cx.output.json("gpuvm-fabric-ensure", done)?;
    }
    Ok(EXIT_DONE)
}

/// Runs `fabric restore`.
fn restores(args: &FabricRestoreArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let FabricRestoreArgs { dry_run, boot } = *args;
    let done = restore(cx, Restoring { dry_run, boot })?;
    if cx.output.json {
        cx.output.json("gpuvm-fabric-restore", &done)?;
    } else {
        cx.output.text(&restored(&done))?;
    }
    let is_told = |guest: &&Domain| done.unrestored.iter().all(|one| one.domain != **guest);
    for guest in done.unplaced.iter().filter(is_told) {
        cx.output.warning(&format!(
            "domain `{}` runs, and its NVLink partition is not known or not free: it has no NVLink",
            guest.name
        ));
    }
    for Unrestored { domain, partition, why, hint } in &done.unrestored {
        let its = partition.map_or("its NVLink partition".into(), |id| format!("partition {id}"));
        cx.output.warning(&format!(
            "domain `{}` runs without NVLink, since {its} is not active: {why}; {hint}",
            domain.name
        ));
    }
    for guest in &done.broken {
        cx.output.warning(&format!(
            "domain `{}` ran while its partition was inactive and has lost NVLink: power cycle it, \
             a reboot inside the guest is not enough",
            guest.name
        ));
    }
    Ok(if done.is_wrong() { EXIT_FOUND } else { EXIT_DONE })
}

/// Returns the restored partitions, as text.
fn restored(done: &Restored) -> String {
    let ids = match done.partitions.as_slice() {
        [] => "no partition".to_owned(),
        [one] => format!("partition {one}"),
        many => format!("partitions {}", joined(many)),
    };
    let would = |did: &'static str, would: &'static str| if done.made { did } else { would };
    match done.mode {
        None => "NVSwitches of this host are not shared; nothing to do\n".into(),
        Some(StartMode::Restart) => {
            format!("{} to Fabric Manager as active: {ids}\n", would("passed", "would be passed"))
        }
        Some(StartMode::Normal) if done.partitions.is_empty() => {
            "no running guest lacks its partition; nothing to do\n".into()
        }
        Some(StartMode::Normal) => format!("{} {ids}\n", would("activated", "would activate")),
    }
}

/// Runs `fabric hook`.
fn hooks(args: &FabricHookArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let file = hook(&program()?)?;
    if args.print {
        return prints(&file, cx);
    }
    if !args.remove {
        refuse_old_libvirt(cx)?;
    }
    let verb = if args.remove { "fabric hook --remove" } else { "fabric hook --install" };
    let steps = || Ok(file_steps(&file, args.remove)?);
    let made = change_host(verb, &args.lock, args.dry_run, steps, cx)?;
    if !made.is_empty() {
        cx.output.progress(&format!(
            "libvirt's daemon looks for hooks when it starts: `systemctl restart {}`; running \
             guests are not affected",
            daemon(&FsRoot::live()?)?
        ));
    }
    Ok(EXIT_DONE)
}

/// Runs `fabric unit`.
fn units(args: &FabricUnitArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let file = unit(&program()?)?;
    if args.print {
        return prints(&file, cx);
    }
    let (config, lines) = if args.config { config_steps()? } else { Default::default() };
    let steps = || Ok([file_steps(&file, args.remove)?, config.clone()].concat());
    let verb = if args.remove { "fabric unit --remove" } else { "fabric unit --install" };
    let made = change_host(verb, &args.lock, args.dry_run, steps, cx)?;
    lines.iter().for_each(|line| cx.output.progress(line));
    if !made.is_empty() {
        cx.output.progress(
            "systemd reads it after `systemctl daemon-reload`; Fabric Manager reads its file when \
             it starts",
        );
    }
    Ok(EXIT_DONE)
}

/// Prints a file that would be installed.
fn prints(file: &FabricFile, cx: &Context<'_>) -> anyhow::Result<u8> {
    if cx.output.json {
        cx.output.json_document("gpuvm-fabric-file", file)?;
    } else {
        cx.output.document(&file.text)?;
    }
    Ok(EXIT_DONE)
}
