//! `make-room`: moves guests until a new one has a place. Running ones are stopped, planned
//! elsewhere and started again; each move is a change of its own, which an interrupted run undoes,
//! or finishes once the guest may run at its new place: it runs somewhere exactly once. Only guests
//! that may be moved are: those made with --movable, and those that are named.

mod change;
mod live;
mod look;
mod rules;
#[cfg(test)]
mod tests;

pub use look::{look, offer};

use crate::apply::{DomainStep, Step};
use crate::bdf::Bdf;
use crate::domain::view::gpu_indexes;
use crate::error::{Class, Coded, Error, Refusal, Result};
use crate::guest::GuestRequest;
use crate::hypervisor::DomainState;
use crate::lookup::find;
use crate::placement::{Held, Placement};
use crate::reporter::Question;
use crate::request::VgpuWish;
use crate::session::Session;
use crate::shell::word;
use crate::topology::{PartitionId, Topology};
use crate::verify::{Verify, verify};
use crate::words::count;
use crate::world::World;
use change::{move_guests, refuse_taken, repin};
use gpuvm_core::placement::room::{MoveCost, reserved};
use look::Ground;
use serde::Serialize;
use std::time::Duration;

/// The reason that no room is made.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "make-room-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum RoomError {
    /// No guest may be moved.
    #[error("the guest has no place, and no guest may be moved to make room for it")]
    NoneMovable,
    /// No moves do.
    #[error("{}", none_does(*movable, *is_certain))]
    NoMoves {
        /// How many guests may be moved.
        movable: usize,
        is_certain: bool,
    },
    /// Sufficient moves are beyond the limits.
    #[error("no moves make room for the guest within {limits}{}", doubt(*is_certain))]
    Limits { limits: String, is_certain: bool },
    /// Guests would share an NVLink fabric.
    #[error("{why}")]
    SharedFabric { why: String },
    /// A named guest cannot be moved.
    #[error("domain `{name}` cannot be moved: it {why}")]
    Fixed { name: String, why: String },
}

impl Coded for RoomError {}

/// The words for ways that were not tried.
fn doubt(is_certain: bool) -> &'static str {
    if is_certain { "" } else { " (not every way was tried)" }
}

/// The words for moves that do not help.
fn none_does(movable: usize, is_certain: bool) -> String {
    let (guests, doubt) = (count(movable, "guest"), doubt(is_certain));
    format!("no moves of the {guests} that may be moved make room{doubt}")
}

/// A request to make room.
#[derive(Debug, Clone)]
pub struct RoomRequest {
    /// The guest that is to have a place.
    pub guest: GuestRequest,
    /// Its options, as `create` takes them, for commands.
    pub options: String,
    /// The most guests that are stopped; `None` for any number.
    pub max_stops: Option<u32>,
    /// The most guests that are moved; `None` for any number.
    pub max_moves: Option<u32>,
    /// Guests that may be moved besides those that are movable.
    pub allow_stop: Vec<String>,
    /// How long a guest may take to shut down, in seconds.
    pub wait_s: u64,
    /// Whether other guests may reach the NVLinks of those that are moved, and of the new one.
    pub accept_shared_fabric: bool,
}

impl RoomRequest {
    fn limits(&self) -> String {
        let limit = |number: Option<u32>, option| Some(format!("{option} {}", number?));
        let limits = [limit(self.max_stops, "--max-stops"), limit(self.max_moves, "--max-moves")];
        limits.into_iter().flatten().collect::<Vec<_>>().join(" and ")
    }
}

/// A guest that is moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlannedMove {
    /// Its name.
    pub domain: String,
    /// Whether it runs, so that it is stopped and started again.
    pub stops: bool,
    /// Whether it gets other cores while it runs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub live: bool,
    /// Indexes of its GPUs, or of the cards of its vGPUs.
    pub from: Vec<usize>,
    /// Indexes of those that it gets.
    pub to: Vec<usize>,
    /// The host cores of its vCPUs then; empty: any.
    pub pcpus: String,
    /// Memory to be filled again, in GiB.
    pub memory_gib: u64,
    /// Guests that are off at the same time, since it gets their resources.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub with: Vec<String>,
    /// The steps to do afterwards.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// How room is made.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RoomPlan {
    /// The partition of the new guest then; `None` if the host has none.
    pub partition: Option<PartitionId>,
    /// Indexes of the GPUs of the new guest.
    pub gpus: Vec<usize>,
    /// The moves in their order; none if it has a place already.
    pub moves: Vec<PlannedMove>,
    /// Their cost.
    pub cost: MoveCost,
    /// Whether no cheaper moves would do.
    pub is_best: bool,
    /// The same moves, as they are made.
    #[serde(skip)]
    legs: Vec<Vec<Target>>,
    /// Resources kept from the guests that move.
    #[serde(skip)]
    new: Held,
}

/// A guest and its new place.
#[derive(Debug, Clone)]
struct Target {
    name: String,
    uuid: String,
    before: String,
    /// Its GPUs then; empty: it has none.
    gpus: Vec<Bdf>,
    /// Its vGPUs then; `None` if it has none.
    vgpu: Option<VgpuWish>,
    /// Whether only its pins change, while it runs.
    live: bool,
    /// Whether it may be stopped: it runs.
    stops: bool,
}

impl RoomPlan {
    /// A plan without moves, for a guest that gets this place.
    fn of_new(topology: &Topology, placement: &Placement) -> RoomPlan {
        RoomPlan {
            partition: placement.partition,
            gpus: gpu_indexes(topology, &placement.devices),
            moves: Vec::new(),
            cost: MoveCost::default(),
            is_best: true,
            legs: Vec::new(),
            new: reserved(placement),
        }
    }

    /// Whether there is room already.
    pub fn is_done(&self) -> bool {
        self.moves.is_empty()
    }

    /// The moves in words, a line each, and the notes on each.
    pub fn lines(&self) -> Vec<String> {
        let noted = |one: &PlannedMove| {
            let notes = one.notes.iter().map(|note| format!("  {note}"));
            std::iter::once(one.line()).chain(notes).collect::<Vec<_>>()
        };
        self.moves.iter().flat_map(noted).collect()
    }
}

impl PlannedMove {
    /// It in words.
    pub fn line(&self) -> String {
        let PlannedMove { domain, stops, live, from, to, pcpus, with, .. } = self;
        if *live {
            return format!("pin `{domain}`, which runs on, to pcpus {pcpus}");
        }
        let gpus = |gpus: &[usize]| -> String {
            gpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
        };
        let place = match (&from[..], &to[..], pcpus.as_str()) {
            ([], _, "") | (_, [], "") => "to other memory".to_owned(),
            ([], _, pcpus) | (_, [], pcpus) => format!("to pcpus {pcpus}"),
            (from, to, "") if from == to => format!("on GPUs {}, to other memory", gpus(to)),
            (from, to, _) if from == to => format!("on GPUs {}, to pcpus {pcpus}", gpus(to)),
            (from, to, _) if from.len() == 1 => {
                format!("from GPU {} to GPU {}", gpus(from), gpus(to))
            }
            (from, to, _) => format!("from GPUs {} to GPUs {}", gpus(from), gpus(to)),
        };
        let together = match &with[..] {
            [] => String::new(),
            with => format!(", while {} is off, too", with.join(", ")),
        };
        match stops {
            true => format!("stop `{domain}`, move it {place}{together}, and start it"),
            false => format!("move `{domain}`, which is off, {place}{together}"),
        }
    }
}

/// Makes room: asks, and moves one guest after the other. Returns the planned moves.
pub fn make_room(
    session: &mut Session<'_>,
    world: &World,
    wanted: &RoomRequest,
    yes: bool,
) -> Result<RoomPlan> {
    session.refuse_unfinished()?;
    let room = look(world, wanted)?;
    if room.is_done() {
        return Ok(room);
    }
    if !yes {
        let (lines, what) = (Some(room.lines()), "moving the guests".to_owned());
        let question = Question::Agree { lines, question: "move them?", what };
        let said = session.ask(&question, &[], &[])?;
        question.settle(said, &[])?;
    }
    moves(session, world, wanted, room)
}

/// Makes planned moves, as far as they are unchanged.
fn moves(
    session: &mut Session<'_>,
    world: &World,
    wanted: &RoomRequest,
    room: RoomPlan,
) -> Result<RoomPlan> {
    let mut done = 0;
    for (at, leg) in room.legs.iter().enumerate() {
        let rest = room.legs[at..].concat();
        let plan = |world: &World| {
            refuse_taken(world, wanted, &rest, &room.new)?;
            match &leg[..] {
                [target] if target.live => repin(world, target, &room.new, wanted),
                leg => move_guests(world, leg, &room.new, wanted),
            }
        };
        let moved = session.run(plan).map_err(|error| with_progress(error, leg, done, world));
        let moved = moved?;
        done += leg.len();
        for target in leg.iter().filter(|_| moved.made) {
            ended(world, target, &room)?;
        }
    }
    match Ground::without_guests(world, wanted)?.place(world, wanted)? {
        Ok(now) => Ok(RoomPlan { gpus: now.gpus, partition: now.partition, ..room }),
        Err(error) => {
            let message = "the guests were moved, but the new guest still does not fit";
            let hint = "run it again: it shows what would have to move now";
            Err(Error::from(error).around(Refusal::new(Class::Changed, message, hint)))
        }
    }
}

/// Reports that a guest is moved, and its deviations.
fn ended(world: &World, target: &Target, room: &RoomPlan) -> Result<()> {
    let name = &target.name;
    world.progress(&format!("domain `{name}` is moved"));
    let planned = room.moves.iter().find(|one| one.domain == *name);
    for note in planned.iter().flat_map(|one| &one.notes) {
        world.warning(&format!("{name}: {note}"));
    }
    let wanted =
        Verify { names: vec![name.clone()], agent_wait: Duration::ZERO, sample: Duration::ZERO };
    let compared = match verify(world, &wanted) {
        Ok(compared) => compared,
        Err(error) => {
            world.warning(&format!("{name}: it is not compared with its plan: {error}"));
            return Ok(());
        }
    };
    for finding in compared.all.iter().flat_map(|one| &one.findings) {
        world.warning(&format!("{name}: {}", finding.says.message));
    }
    Ok(())
}

/// Adds how far the moves have come to an error.
fn with_progress(error: Error, leg: &[Target], done: usize, world: &World) -> Error {
    let names: Vec<String> = leg.iter().map(|target| format!("`{}`", target.name)).collect();
    let is_left = matches!(&error, Error::Apply(applied) if applied.needs_recovery());
    let state = |target: &Target| -> Option<DomainState> {
        Some(find(&*world.hypervisor().ok()?, &target.name).ok()?.state)
    };
    let is_asked = matches!(error.step(), Some(Step::Domain(DomainStep::ShutDown { .. })));
    let place = match leg {
        _ if is_left => "and the change is unfinished",
        [_] if is_asked => "and was asked to shut down, which it may still do",
        [target] => match state(target) {
            Some(DomainState::Running) => "and runs where it was",
            Some(_) => "and stays where it was",
            None => "and is not there any more",
        },
        _ => "and stay where they were",
    };
    let before = match done {
        0 => String::new(),
        done => format!("; {} moved before stay where they are", count(done, "guest")),
    };
    let subject = match &names[..] {
        [name] => format!("domain {name} is"),
        names => format!("domains {} are", names.join(", ")),
    };
    let message = format!("{subject} not moved, {place}{before}");
    let hint = match (&error, error.step()) {
        _ if is_left => "remove the cause, then `gpuvm recover`".to_owned(),
        (_, Some(Step::Domain(DomainStep::ShutDown { name, .. }))) => format!(
            "--wait SECONDS waits longer; it may still shut down: `gpuvm start {}` starts it then",
            word(name)
        ),
        (error, _) => match error.refusal() {
            Some(refusal) => refusal.hint.clone(),
            None => {
                let name = leg.first().map(|target| word(&target.name).into_owned());
                let name = name.unwrap_or_default();
                format!(
                    "remove the cause and run it again; `gpuvm show {name}` shows where the guest is"
                )
            }
        },
    };
    error.around(Refusal::around(message, hint))
}
