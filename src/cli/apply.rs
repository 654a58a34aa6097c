//! `apply`: makes, changes and deletes guests until they are as a file describes them.

use super::args::ApplyArgs;
use super::change::{manner, program};
use super::context::Context;
use super::error::{EXIT_DONE, EXIT_FOUND};
use super::guests;
use crate::placement::GuestVgpu;
use crate::shell::word;
use crate::words::count;
use gpuvm_core::guest::GuestDifference;
use gpuvm_ops::described::{AppliedGuest, ApplyRequest, Drift, GuestAction, apply, foresee, look};
use gpuvm_ops::session::Session;
use serde::Serialize;

/// The answer as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Applied<'a> {
    /// Whether it was only looked at.
    dry_run: bool,
    /// The guests of the file in its order, then those that are deleted.
    guests: &'a [AppliedGuest],
    /// Whether no other sets of GPUs would serve the new guests better, as far as is known.
    is_best: bool,
}

/// Runs the verb.
pub fn run(args: &ApplyArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("apply")?;
    let file = guests::read(&args.file, args.restart)?;
    let wanted = ApplyRequest {
        path: guests::named(&args.file),
        guests: file.guests,
        set: file.set,
        prune: args.prune,
        yes: args.yes,
        accept_data_loss: args.accept_data_loss,
        program: program()?,
    };
    if args.dry_run {
        let drift = look(cx, &wanted)?;
        // A refusal has one answer.
        foresee(cx, &wanted, &drift)?;
        answer(&drift, true, args, cx)?;
        return Ok(if drift.is_none() { EXIT_DONE } else { EXIT_FOUND });
    }
    let mut session = Session::begin(cx, manner(&args.lock))?;
    let drift = apply(&mut session, cx, &wanted)?;
    answer(&drift, false, args, cx)?;
    let is_pending = drift.guests.iter().any(|guest| guest.action == GuestAction::Pending);
    Ok(if is_pending { EXIT_FOUND } else { EXIT_DONE })
}

/// Prints the changes made, or planned.
fn answer(drift: &Drift, dry_run: bool, args: &ApplyArgs, cx: &Context<'_>) -> std::io::Result<()> {
    if cx.output.json {
        let Drift { guests, is_best, .. } = drift;
        return cx.output.json("gpuvm-apply", &Applied { dry_run, guests, is_best: *is_best });
    }
    let lines: Vec<String> = drift.guests.iter().map(|guest| line(guest, dry_run)).collect();
    if !lines.is_empty() {
        cx.output.text(&lines.join("\n"))?;
    }
    let file = args.file.to_string_lossy();
    let file = word(&file);
    for (guest, wake) in drift.guests.iter().filter_map(|guest| Some((guest, guest.wake.as_ref()?)))
    {
        let name = &guest.name;
        cx.output.progress(&format!(
            "domain `{name}` stands still: {wake} first, then `gpuvm apply -f {file}` changes it \
             without a restart"
        ));
    }
    let needs_restart =
        |guest: &AppliedGuest| guest.action == GuestAction::Pending && guest.wake.is_none();
    if drift.guests.iter().any(needs_restart) {
        let again = format!("`gpuvm apply --restart -f {file}`");
        cx.output.progress(&format!("pending changes need a restart: {again} makes them"));
    }
    Ok(())
}

fn line(guest: &AppliedGuest, dry_run: bool) -> String {
    let what = match (guest.action, dry_run) {
        (GuestAction::Keep, _) => "unchanged",
        (GuestAction::Create, true) => "would be created",
        (GuestAction::Create, false) => "created",
        (GuestAction::Change, true) => "would be changed",
        (GuestAction::Change, false) => "changed",
        (GuestAction::Pending, _) => "pending",
        (GuestAction::Delete, true) => "would be deleted",
        (GuestAction::Delete, false) => "deleted",
        (GuestAction::Conflict, _) => "differs in fixed options",
    };
    // Beside fixed ones nothing is changed.
    let is_shown =
        |one: &&GuestDifference| guest.action != GuestAction::Conflict || !one.changeable;
    let shown = guest.differences.iter().filter(is_shown);
    let mut more: Vec<String> = shown.map(ToString::to_string).collect();
    if !guest.gpus.is_empty() {
        let gpus: Vec<String> = guest.gpus.iter().map(usize::to_string).collect();
        more.push(format!("GPUs {}", gpus.join(",")));
    }
    more.extend(vgpus(&guest.vgpus));
    if guest.gives_up_first {
        more.push("it gives up its own first, which others need".to_owned());
    }
    match &more[..] {
        [] => format!("{}: {what}", guest.name),
        more => format!("{}: {what}: {}", guest.name, more.join("; ")),
    }
}

/// The vGPUs of a guest, those of one card and type together, with their virtual functions.
fn vgpus(all: &[GuestVgpu]) -> impl Iterator<Item = String> {
    let is_same =
        |one: &GuestVgpu, other: &GuestVgpu| (one.card, &one.name) == (other.card, &other.name);
    all.chunk_by(is_same).map(|run| {
        let GuestVgpu { card, name, .. } = &run[0];
        let of = format!("{} {name} of {card}", count(run.len(), "vGPU"));
        let functions = run.iter().map(|vgpu| vgpu.function).filter(|function| function != card);
        let functions: Vec<String> = functions.map(|function| function.to_string()).collect();
        if functions.is_empty() { of } else { format!("{of} ({})", functions.join(" ")) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vgpus_of_a_card_are_named_together() {
        let vgpu = |card: &str, function: &str, name: &str| GuestVgpu {
            card: card.parse().unwrap(),
            function: function.parse().unwrap(),
            type_id: "7".into(),
            name: name.into(),
            uuid: None,
        };
        let all = [
            vgpu("3b:00.0", "3b:00.4", "X-8C"),
            vgpu("3b:00.0", "3b:00.5", "X-8C"),
            vgpu("5e:00.0", "5e:00.0", "T4-4Q"),
        ];
        let said: Vec<String> = vgpus(&all).collect();
        let first = "2 vGPUs X-8C of 0000:3b:00.0 (0000:3b:00.4 0000:3b:00.5)";
        assert_eq!(said, [first, "1 vGPU T4-4Q of 0000:5e:00.0"]);
    }
}
