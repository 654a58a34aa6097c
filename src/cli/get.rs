//! `get`: guests in the words of a file that `apply` takes.

use super::args::{GetArgs, GuestsFormat};
use super::context::Context;
use super::error::EXIT_DONE;
use super::guests::{document, no_guest, to_toml, to_yaml};
use crate::shell::word;
use gpuvm_ops::described::{describe, describe_all};

/// Runs the verb.
pub fn run(args: &GetArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_without_guests("get")?;
    let guests = match &args.name {
        Some(name) => vec![describe(cx, name)?],
        None if args.all => describe_all(cx)?,
        None => return Err(no_guest()),
    };
    for guest in guests.iter().filter(|guest| !guest.runs.is_empty()) {
        let runs = guest.runs.iter().map(|one| format!("{} {}", one.option, one.is));
        let next = guest.runs.iter().map(|one| format!("{} {}", one.option, one.wanted));
        let comes = if guest.at_once {
            "`apply` gives it those at once".to_owned()
        } else {
            let restart = format!("`gpuvm restart {}`", word(&guest.name));
            format!("for `apply` that is pending until {restart}")
        };
        cx.output.warning(&format!(
            "domain `{}` runs with {}, and its next start, which is printed, has {}: {comes}",
            guest.name,
            runs.collect::<Vec<_>>().join(", "),
            next.collect::<Vec<_>>().join(", "),
        ));
    }
    // Of several guests it is said once; JSON has no place for comments.
    if let Some(why) = guests.iter().find_map(|guest| guest.unread.as_ref()) {
        cx.output.warning(&format!("how guests were made is not known: {why}"));
    }
    if cx.output.json || matches!(args.output, GuestsFormat::Json) {
        for guest in guests.iter().filter(|guest| !guest.other_disks.is_empty()) {
            let disks = guest.other_disks.join(", ");
            let name = &guest.name;
            cx.output.warning(&format!("no field describes these disks of `{name}`: {disks}"));
        }
    }
    match args.output {
        _ if cx.output.json => cx.output.json("gpuvm-guests", &document(&guests))?,
        GuestsFormat::Json => cx.output.json("gpuvm-guests", &document(&guests))?,
        GuestsFormat::Yaml => cx.output.verbatim(&to_yaml(&guests))?,
        GuestsFormat::Toml => cx.output.verbatim(&to_toml(&guests))?,
    }
    Ok(EXIT_DONE)
}
