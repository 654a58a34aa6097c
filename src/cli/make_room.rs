//! `make-room`: moves guests until a new one has a place.

use super::args::{RoomArgs, request};
use super::change::manner;
use super::context::Context;
use super::error::EXIT_DONE;
use super::room;
use crate::words::count;
use gpuvm_ops::guest::GuestRequest;
use gpuvm_ops::make_room::{RoomPlan, RoomRequest, look, make_room};
use gpuvm_ops::session::Session;
use gpuvm_ops::taken::Taken;
use serde::Serialize;

/// The answer as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct RoomAnswer<'a> {
    /// Whether it was only looked at.
    dry_run: bool,
    /// The moves, and the place that there is after them.
    #[serde(flatten)]
    room: &'a RoomPlan,
    /// The command that creates the new guest.
    create: &'a str,
}

/// Runs the verb.
pub fn run(args: &RoomArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let dry_run = args.dry_run || cx.is_recorded();
    let request = request(&args.gpus, &args.shape)?;
    let room = room::wanted(request, args.accept_shared_fabric);
    let taken = Taken::from(&args.held);
    let wanted = RoomRequest {
        guest: GuestRequest { taken, ..room.guest },
        max_stops: args.max_stops,
        max_moves: args.max_moves,
        allow_stop: args.allow_stop.clone(),
        wait_s: args.wait,
        ..room
    };
    let room = if dry_run {
        look(cx, &wanted)?
    } else {
        let mut session = Session::begin(cx, manner(&args.lock))?;
        make_room(&mut session, cx, &wanted, args.yes)?
    };
    answer(&room, &wanted, dry_run, cx)?;
    Ok(EXIT_DONE)
}

/// Prints the moves made, or planned, and the command that creates the new guest.
fn answer(
    room: &RoomPlan,
    wanted: &RoomRequest,
    dry_run: bool,
    cx: &Context<'_>,
) -> std::io::Result<()> {
    let create = format!("gpuvm create {}", wanted.options);
    if cx.output.json {
        return cx.output.json("gpuvm-make-room", &RoomAnswer { dry_run, room, create: &create });
    }
    let gpus: Vec<String> = room.gpus.iter().map(usize::to_string).collect();
    let place = match &gpus[..] {
        [] => String::new(),
        gpus => format!(" on GPUs {}", gpus.join(",")),
    };
    if room.is_done() {
        let line = format!("nothing to move: `{create}` has room{place}");
        return cx.output.text(&line);
    }
    let mut lines = if dry_run { room.lines() } else { Vec::new() };
    if dry_run {
        let cost = room.cost;
        let stops = count(cost.stops as usize, "stop");
        let pins = count(cost.pins as usize, "pin");
        lines.push(format!("cost: {stops}, {} GiB of memory to fill, {pins}", cost.memory_gib));
        if !room.is_best {
            lines.push("not every way was tried: there may be a cheaper one".to_owned());
        }
    }
    lines.push(format!("then `{create}` has room{place}"));
    cx.output.text(&lines.join("\n"))
}
