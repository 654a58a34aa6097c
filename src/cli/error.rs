//! Errors as printed for users: headline, causes level by level, hint. The only place that knows
//! exit codes.

mod hint;

use super::codes::refusal_of;
use super::offer;
pub use super::refuse::{around, classed, coded, usage};
use crate::apply::ApplyError;
use crate::placement::explain::NOTHING_LEFT;
use crate::placement::{PlanError, RoomOffer};
use gpuvm_ops::error::NoPlace;
use gpuvm_ops::error::Obstacles;
pub use gpuvm_ops::error::{Coded, Refusal as Hinted, dump_and_define};
use hint::hint;
use std::fmt::Write as _;

/// Done, already so, or broken pipe.
pub const EXIT_DONE: u8 = 0;
/// Refused or failed.
pub const EXIT_FAILED: u8 = 1;
/// Usage error.
pub const EXIT_USAGE: u8 = 2;
/// A check found something.
pub const EXIT_FOUND: u8 = 3;
/// Internal error.
pub const EXIT_BUG: u8 = 70;

/// Returns an error with all its causes in one line, each once.
pub fn whole(error: &anyhow::Error) -> String {
    let texts = error.chain().map(ToString::to_string);
    texts
        .reduce(|text, cause| if text.contains(&cause) { text } else { format!("{text}: {cause}") })
        .unwrap_or_default()
}

/// The parts of an error, for text and JSON.
#[derive(Debug)]
pub struct ErrorParts {
    /// The failure; the first line is the headline.
    pub message: String,
    /// Causes level by level, and details.
    pub causes: Vec<String>,
    /// The remedy.
    pub hint: Option<String>,
    /// The command of a request that would fit.
    pub command: Option<String>,
    /// The remedies for further reasons.
    pub more: Vec<String>,
}

impl ErrorParts {
    /// Takes an error apart.
    pub fn of(error: &anyhow::Error) -> ErrorParts {
        match error.chain().find_map(|cause| cause.downcast_ref::<Obstacles>()) {
            Some(obstacles) => ErrorParts::of_several(obstacles),
            // The context of a cause is reachable only through the whole error.
            None => ErrorParts::of_one(error.as_ref(), refusal_of(error)),
        }
    }

    /// Takes an error of several reasons apart, each with its hint.
    fn of_several(obstacles: &Obstacles) -> ErrorParts {
        let (mut causes, mut hints) = (Vec::new(), Vec::new());
        for error in &obstacles.errors {
            let parts = ErrorParts::of_one(error, error.refusal());
            causes.push(parts.message);
            causes.extend(parts.causes.into_iter().map(|cause| format!("  {cause}")));
            hints.extend(parts.hint);
            hints.extend(parts.command.map(|command| format!("`{command}`")));
        }
        let message = obstacles.to_string();
        let mut hints = hints.into_iter();
        ErrorParts { message, causes, hint: hints.next(), command: None, more: hints.collect() }
    }

    /// Takes one error apart; `around`: its own refusal.
    fn of_one(error: &(dyn std::error::Error + 'static), around: Option<&Hinted>) -> ErrorParts {
        let chain = || std::iter::successors(Some(error), |cause| cause.source());
        let message = error.to_string();
        let mut causes = Vec::new();
        let mut said = message.clone();
        for cause in chain().skip(1).map(ToString::to_string) {
            if !said.contains(&cause) {
                said.push_str(&cause);
                causes.push(cause);
            }
        }
        let planned = chain().find_map(|cause| cause.downcast_ref::<PlanError>());
        if let Some(PlanError::Taken { holders, .. }) = planned {
            causes.extend_from_slice(holders);
        }
        let applied = chain().find_map(|cause| cause.downcast_ref::<ApplyError>());
        let left = applied.iter().flat_map(|error| error.left());
        causes.extend(left.map(ToString::to_string));
        let refused = chain().find_map(|cause| cause.downcast_ref::<NoPlace>());
        let (nearest, command) = refused.map(offer::nearest).unwrap_or_default();
        let around = around.map(|hinted| hinted.hint.clone());
        let around = around.filter(|hint| !hint.is_empty());
        let hint = around.or_else(|| chain().find_map(hint)).map(offer::fitting);
        let room = refused.and_then(|refused| refused.room.as_deref());
        let hint = with_nearest(hint.filter(|hint| !hint.is_empty()), &nearest);
        ErrorParts { message, causes, hint: with_room(hint, room), command, more: Vec::new() }
    }
}

/// Returns the text of an error; ends with a newline.
pub fn report(error: &anyhow::Error) -> String {
    let parts = ErrorParts::of(error);
    let mut text = format!("error: {}\n", parts.message);
    for cause in &parts.causes {
        writeln!(text, "  {cause}").expect("text");
    }
    if let Some(hint) = parts.hint {
        writeln!(text, "hint: {hint}").expect("text");
    }
    if let Some(command) = parts.command {
        writeln!(text, "hint: `{command}`").expect("text");
    }
    for hint in parts.more {
        writeln!(text, "hint: {hint}").expect("text");
    }
    text
}

/// Adds the command that makes room by moves of other guests.
fn with_room(hint: Option<String>, room: Option<&RoomOffer>) -> Option<String> {
    let Some(RoomOffer { command, moves, .. }) = room else { return hint };
    let said = format!("`{command}` makes room: {}", moves.join(", "));
    Some(hint.map_or_else(|| said.clone(), |hint| format!("{hint}; {said}")))
}

/// Adds the nearest requests that a planner's hint does not name itself.
fn with_nearest(hint: Option<String>, nearest: &[String]) -> Option<String> {
    // A fitting request is more useful than where to look.
    let parts = |hint: String| {
        let said: Vec<&str> = hint.split("; ").filter(|part| *part != NOTHING_LEFT).collect();
        Some(said.join("; ")).filter(|said| !said.is_empty())
    };
    let hint = if nearest.is_empty() { hint } else { hint.and_then(parts) };
    let said = hint.as_deref().unwrap_or_default();
    let more: Vec<&str> =
        nearest.iter().map(String::as_str).filter(|option| !said.contains(option)).collect();
    match (hint, more.is_empty()) {
        (hint, true) => hint,
        (None, false) => Some(format!("would fit now: {}", more.join("; "))),
        (Some(hint), false) => Some(format!("{hint}; would fit now: {}", more.join("; "))),
    }
}

/// The exit code of an error.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    let broken_pipe = |cause: &(dyn std::error::Error + 'static)| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    };
    if error.chain().any(broken_pipe) {
        return EXIT_DONE;
    }
    let below = || error.chain().find_map(|cause| cause.downcast_ref::<Hinted>());
    let is_usage = refusal_of(error).or_else(below).is_some_and(Hinted::is_usage);
    if is_usage { EXIT_USAGE } else { EXIT_FAILED }
}
