//! `host files`: the open-files limit of guests, and the line of libvirt's qemu.conf that sets it.

use crate::cli::args::HostFilesArgs;
use crate::cli::change::change_host;
use crate::cli::context::Context;
use crate::cli::error::{EXIT_DONE, usage};
use crate::cli::table::Table;
use crate::discover::files::Limit;
use crate::fsroot::FsRoot;
use crate::verify::tuning::{CONF, MAX_FILES};
use gpuvm_ops::host_files::{OpenFiles, daemon, open_files_now};
use gpuvm_ops::host_settings::open_files;

/// Runs the verb.
pub fn run(args: &HostFilesArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let Some(count) = args.count else {
        if cx.is_recorded() {
            return Err(usage(
                "the open file limit of guests is not recorded",
                "`gpuvm host files` on that machine, without --host, shows it",
            ));
        }
        cx.refuse_elsewhere("host files")?;
        return show(&FsRoot::live()?, cx);
    };
    cx.refuse_recorded("host files --count")?;
    cx.refuse_elsewhere("host files --count")?;
    let made = change_host("host files", &args.lock, args.dry_run, || Ok(open_files(count)?), cx)?;
    if !made.is_empty() {
        let daemon = daemon(&FsRoot::live()?)?;
        cx.output.progress(&format!(
            "libvirt's daemon reads it when it starts: `systemctl restart {daemon}`; running \
             guests keep their limit until they are restarted"
        ));
    }
    Ok(EXIT_DONE)
}

fn show(root: &FsRoot, cx: &Context<'_>) -> anyhow::Result<u8> {
    let open = open_files_now(root)?;
    if cx.output.json {
        cx.output.json("gpuvm-host-files", &open)?;
        return Ok(EXIT_DONE);
    }
    let OpenFiles { files, guests } = open;
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
