//! `host files`: how many files guests may have open, and the line of libvirt's qemu.conf that says it.

use super::change::change;
use crate::check;
use crate::cli::args::HostFilesArgs;
use crate::cli::context::Context;
use crate::cli::error::{EXIT_DONE, usage};
use crate::cli::table::Table;
use crate::discover::files::{Files, Limit, limit, read};
use crate::discover::process;
use crate::domain::DomainXml;
use crate::fsroot::FsRoot;
use crate::verify::files::{advised, needed};
use crate::verify::tuning::{CONF, MAX_FILES};
use crate::versions::Version;
use gpuvm_ops::host_settings::open_files;
use serde::Serialize;

/// Is what `host files` shows.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Shown {
    /// What decides about guests that start.
    #[serde(flatten)]
    files: Files,
    /// QEMU processes of guests that run, with the limit of each.
    guests: Vec<Guest>,
}

/// Is a guest that runs.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Guest {
    /// Its UUID.
    uuid: String,
    /// Its process.
    pid: u32,
    /// Its limit.
    limit: Limit,
}

/// Runs the verb.
pub fn run(args: &HostFilesArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let Some(count) = args.count else {
        if cx.is_recorded() {
            return Err(usage(
                "how many files guests may have open is not recorded",
                "`gpuvm host files` on that machine, without --host, shows it",
            ));
        }
        cx.refuse_elsewhere("host files")?;
        return show(&FsRoot::live()?, cx);
    };
    cx.refuse_recorded("host files --count")?;
    cx.refuse_elsewhere("host files --count")?;
    let root = FsRoot::live()?;
    let made = change("host files", (&args.lock, args.dry_run), || Ok(open_files(count)?), cx)?;
    if !made.is_empty() {
        let names = read(&root)?.daemons.into_iter().map(|daemon| daemon.name);
        let daemon = names.min().unwrap_or_else(|| "libvirtd".into());
        cx.output.progress(&format!(
            "libvirt's daemon reads it when it starts: `systemctl restart {daemon}`; guests that run go on with the \
             limit that they have, until they are started anew"
        ));
    }
    Ok(EXIT_DONE)
}

/// What to say of a definition that may need more files than a guest of this machine may have open; none: nothing.
pub fn warning(xml: &DomainXml, qemu: Option<Version>, cx: &Context<'_>) -> Option<String> {
    if cx.global.host.is_some() || !cx.has_guests_here().unwrap_or(false) {
        return None;
    }
    // Who may not read the configuration cannot change it either, and `verify` says what is not known.
    let allowed = read(&FsRoot::live().ok()?).ok()?.of_next_guest(qemu)?;
    let needed = needed(xml, &check::guest::Guest::read(xml));
    (needed > allowed).then(|| {
        format!(
            "it may need {needed} open files for its queues, and may have {allowed}: `gpuvm host files --count {}`",
            advised(needed)
        )
    })
}

/// Shows what holds.
fn show(root: &FsRoot, cx: &Context<'_>) -> anyhow::Result<u8> {
    let files = read(root)?;
    let mut guests = Vec::new();
    for (uuid, pid) in process::all(root)? {
        guests.extend(limit(root, pid).map(|limit| Guest { uuid, pid, limit }));
    }
    if cx.output.json {
        cx.output.json("gpuvm-host-files", &Shown { files, guests })?;
        return Ok(EXIT_DONE);
    }
    let set = files.set.map_or("the daemon's own limit".to_owned(), |set| set.to_string());
    let mut rows = vec![["WHAT", "SOFT", "HARD"].map(str::to_owned).to_vec()];
    rows.push(vec![format!("{MAX_FILES} of /{CONF}"), set, String::new()]);
    let row =
        |what: String, limit: Limit| vec![what, limit.soft.to_string(), limit.hard.to_string()];
    rows.extend(files.daemons.iter().map(|d| row(format!("{} ({})", d.name, d.pid), d.limit)));
    rows.extend(guests.iter().map(|g| row(format!("guest {} ({})", g.uuid, g.pid), g.limit)));
    cx.output.table(&Table::of(rows))?;
    Ok(EXIT_DONE)
}
