//! Which guests are moved, and where to. Changes nothing.

use super::live::Live;
use super::rules::{
    accepted, cannot_move, cards, fixed, is_movable, items, moved, of_kind, refuse_far,
    refuse_fixed, refuse_impassable, refuse_shared, refuse_unready, vgpu_at,
};
use super::{PlannedMove, RoomError, RoomPlan, RoomRequest, Target};
use crate::bdf::Bdf;
use crate::cpuset::CpuSet;
use crate::domain::DomainXml;
use crate::error::{Coded as _, Error, NoPlace, Refusal, Result};
use crate::guest::with_template;
use crate::hypervisor::{DomainState, DomainSummary, XmlOf};
use crate::lookup::{LISTED, hint_of_domains, not_found};
use crate::placement::{Held, Occupancy, PlanError, nearest, plan};
use crate::request::{GpuWish, Request};
use crate::set::allowed;
use crate::shell::word;
use crate::source::Source;
use crate::taken::{Taken, domains_of_files, is_active, taken_for_new};
use crate::topology::Topology;
use crate::tune::Tune;
use crate::tune::extra;
use crate::tune::subject::Subject;
use crate::tune::subjects::{self, Subjects};
use crate::world::World;
use gpuvm_core::guest::gpus_of;
use gpuvm_core::placement::RoomOffer;
use gpuvm_core::placement::model_of;
use gpuvm_core::placement::room::{Limits, Move, Mover, NoRoom, Room, room};
use gpuvm_core::tune::{Tuned, planned_request, together};

/// The host's state for a search.
pub(super) struct Ground {
    /// The host.
    pub topology: Topology,
    /// The occupancy of the domains.
    pub held: Occupancy,
    /// The request that needs a place.
    pub request: Request,
    /// The guests that could be moved.
    all: Vec<Eligible>,
}

impl Ground {
    fn read(world: &World, wanted: &RoomRequest) -> Result<Ground> {
        let mut ground = Ground::without_guests(world, wanted)?;
        ground.all = if world.is_recorded() {
            recorded(world, wanted, &ground.topology)?
        } else {
            eligible(world, &wanted.allow_stop, &ground.topology)?
        };
        Ok(ground)
    }

    /// The same without the guests that could be moved.
    pub fn without_guests(world: &World, wanted: &RoomRequest) -> Result<Ground> {
        let topology = world.topology_with(wanted.guest.taken.assume)?;
        let guest = &wanted.guest;
        let request = with_template(world, guest, guest.request.clone(), &topology)?;
        let has_gpus = request.gpus.number() > 0;
        let held = taken_for_new(world, &guest.taken, &topology, has_gpus)?;
        Ok(Ground { topology, held, request, all: Vec::new() })
    }

    /// The place of the new guest without moves, as far as `create` takes it; else why there is
    /// none.
    pub fn place(
        &self,
        world: &World,
        wanted: &RoomRequest,
    ) -> Result<Result<RoomPlan, PlanError>> {
        match plan(&self.topology, &self.held, &self.request) {
            Ok(placement) => {
                refuse_shared(&self.topology, wanted, &placement)?;
                refuse_impassable(world, &self.topology, (wanted, &self.request), &placement)?;
                Ok(Ok(RoomPlan::of_new(&self.topology, &placement)))
            }
            Err(error) => Ok(Err(error)),
        }
    }

    /// The moves of some of the guests.
    fn find(
        &self,
        world: &World,
        wanted: &RoomRequest,
        may_move: impl Fn(&Eligible) -> bool,
        limits: Limits,
    ) -> Result<Result<RoomPlan, NoRoom>> {
        let some: Vec<&Eligible> = self.all.iter().filter(|one| may_move(one)).collect();
        let Ground { topology, held, request, .. } = self;
        RoomSearch { world, topology, held, request, wanted }.find(&some, limits)
    }

    /// The moves of some of the guests without limits, and the command that makes them; `None` if
    /// they do not help.
    fn without_limits(
        &self,
        world: &World,
        wanted: &RoomRequest,
        may_move: impl Fn(&Eligible) -> bool,
    ) -> Option<(RoomPlan, String)> {
        let find = |wanted: &RoomRequest| self.find(world, wanted, &may_move, Limits::default());
        let shared = RoomRequest { accept_shared_fabric: true, ..wanted.clone() };
        let (found, option) = match find(wanted) {
            // NVLinks that others reach are accepted by an option, unless they are strangers.
            Err(_) if !wanted.accept_shared_fabric => (find(&shared), " --accept-shared-fabric"),
            found => (found, ""),
        };
        let found = found.ok()?.ok()?;
        let names = self.unmarked(&found);
        let options = format!("{}{option}", wanted.options);
        Some((found, command(&options, &names)))
    }

    /// The hint that some of the guests could be moved without limits.
    fn hint(
        &self,
        world: &World,
        wanted: &RoomRequest,
        may_move: impl Fn(&Eligible) -> bool,
    ) -> String {
        match self.without_limits(world, wanted, may_move) {
            Some((found, command)) => format!("`{command}` moves {}", listed(&found)),
            None => NO_MOVES.to_owned(),
        }
    }

    /// The guests of a plan that are not marked as movable.
    fn unmarked(&self, found: &RoomPlan) -> Vec<String> {
        let is_marked =
            |name: &str| self.all.iter().any(|one| one.is_movable && one.row.name == name);
        let names = found.moves.iter().map(|one| one.domain.clone());
        names.filter(|name| !is_marked(name)).collect()
    }
}

/// The hint where no moves help.
const NO_MOVES: &str = "`gpuvm capacity` shows what fits, and what would have to end";

/// Plans the moves after which the guest has a place.
pub fn look(world: &World, wanted: &RoomRequest) -> Result<RoomPlan> {
    let ground = Ground::read(world, wanted)?;
    let refused = match ground.place(world, wanted)? {
        Ok(place) => return Ok(place),
        Err(error) => error,
    };
    refuse_too_large(&ground.topology, &ground.held, &ground.request)?;
    let may_move = |one: &Eligible| one.is_movable || wanted.allow_stop.contains(&one.row.name);
    let limits = Limits { stops: wanted.max_stops, moves: wanted.max_moves };
    let error = match ground.find(world, wanted, may_move, limits)? {
        Ok(found) => return Ok(found),
        Err(no) if no.is_limited => {
            let limits = wanted.limits();
            RoomError::Limits { limits, is_certain: no.is_certain }
                .refusal(ground.hint(world, wanted, may_move))
        }
        Err(no) => {
            let number = ground.all.iter().filter(|one| may_move(one)).count();
            // Moves that would suffice, if they were allowed.
            let hint = if number < ground.all.len() {
                ground.hint(world, wanted, |_| true)
            } else {
                NO_MOVES.to_owned()
            };
            let (movable, is_certain) = (number, no.is_certain);
            match movable {
                0 => RoomError::NoneMovable.refusal(hint),
                _ => RoomError::NoMoves { movable, is_certain }.refusal(hint),
            }
        }
    };
    Err(Error::from(refused).around(error))
}

/// The command by which a guest without a place would get one, and its moves; `None` if it would
/// not. Guests that are not marked as movable are named in it.
pub fn offer(world: &World, wanted: &RoomRequest) -> Option<RoomOffer> {
    if world.is_recorded() || wanted.guest.taken != Taken::default() {
        return None;
    }
    let ground = Ground::read(world, wanted).ok()?;
    if ground.all.is_empty() || plan(&ground.topology, &ground.held, &ground.request).is_ok() {
        return None;
    }
    for names_all in [false, true] {
        let may_move = |one: &Eligible| names_all || one.is_movable;
        let Some((found, command)) = ground.without_limits(world, wanted, may_move) else {
            continue;
        };
        return Some(RoomOffer { command, moves: found.lines(), gpus: found.gpus });
    }
    None
}

/// The command that makes room and moves these guests, too.
fn command(options: &str, names: &[String]) -> String {
    let allow = names.iter().map(|name| format!(" --allow-stop {}", word(name)));
    format!("gpuvm make-room {options}{}", allow.collect::<String>())
}

fn listed(found: &RoomPlan) -> String {
    let names: Vec<String> = found.moves.iter().map(|one| format!("`{}`", one.domain)).collect();
    names.join(", ")
}

/// Refuses a guest that has no place even without any other.
fn refuse_too_large(topology: &Topology, held: &Occupancy, request: &Request) -> Result<()> {
    let readiness = held.readiness.without_domains();
    let empty = Occupancy { domains: Vec::new(), readiness, ..held.clearing(|_| true) };
    let Err(error) = plan(topology, &empty, request) else { return Ok(()) };
    let nearest = nearest(topology, held, request);
    Err(NoPlace { error, request: Box::new(request.clone()), nearest, room: None }.into())
}

/// A guest that could be moved.
struct Eligible {
    row: DomainSummary,
    /// Whether it is marked as movable.
    is_movable: bool,
}

/// The guests that could be moved; refuses named ones that cannot.
fn eligible(world: &World, named: &[String], topology: &Topology) -> Result<Vec<Eligible>> {
    let hypervisor = world.hypervisor()?;
    let rows = hypervisor.domains()?;
    refuse_unknown(named, &rows, LISTED)?;
    let mut all = Vec::new();
    for row in rows {
        let is_named = named.contains(&row.name);
        match refuse_fixed(&*hypervisor, &row) {
            Err(refused) if is_named => return Err(refused),
            Err(_) => continue,
            Ok(()) => {}
        }
        let Ok(xml) = DomainXml::parse(&hypervisor.xml(&row.name, XmlOf::Inactive)?) else {
            continue;
        };
        if !can_move(&xml, is_named, topology)? {
            continue;
        }
        let is_movable = is_movable(&xml);
        // Of others nothing is offered.
        if is_named || xml.is_ours() {
            all.push(Eligible { row, is_movable });
        }
    }
    Ok(all)
}

/// Whether a guest has other places at all; a named one without any is refused.
fn can_move(xml: &DomainXml, is_named: bool, topology: &Topology) -> Result<bool> {
    match fixed(xml, topology) {
        Some((why, hint)) if is_named => Err(RoomError::Fixed { name: xml.name(), why }.hint(hint)),
        fixed => Ok(fixed.is_none()),
    }
}

/// The same of a recorded host: those whose definitions are named.
fn recorded(world: &World, wanted: &RoomRequest, topology: &Topology) -> Result<Vec<Eligible>> {
    let all = domains_of_files(world, &wanted.guest.taken.domain_xml)?;
    let row = |xml: &DomainXml| DomainSummary {
        name: xml.name(),
        uuid: xml.uuid().unwrap_or_default(),
        state: if is_active(xml) { DomainState::Running } else { DomainState::ShutOff },
        persistent: true,
    };
    let rows: Vec<DomainSummary> = all.iter().map(|(_, xml)| row(xml)).collect();
    refuse_unknown(
        &wanted.allow_stop,
        &rows,
        hint_of_domains(world, &wanted.guest.taken.domain_xml),
    )?;
    let is_named = |row: &DomainSummary| wanted.allow_stop.contains(&row.name);
    let guests = rows.into_iter().zip(&all);
    // An exported definition has no UUID yet, which is proof enough where nothing is changed.
    let is_ours = |xml: &DomainXml| xml.record().is_ok_and(|record| record.is_some());
    let guests = guests.filter(|(row, (_, xml))| is_named(row) || is_ours(xml));
    let mut movable = Vec::new();
    for (row, (_, xml)) in guests {
        if can_move(xml, is_named(&row), topology)? {
            movable.push(Eligible { row, is_movable: is_movable(xml) });
        }
    }
    Ok(movable)
}

/// Refuses names of --allow-stop that no domain has.
fn refuse_unknown(named: &[String], rows: &[DomainSummary], hint: &str) -> Result<()> {
    let Some(name) = named.iter().find(|name| rows.iter().all(|row| row.name != **name)) else {
        return Ok(());
    };
    let missing = not_found(name, rows);
    let message = format!("--allow-stop: {}", missing.message);
    Err(Refusal { message, hint: hint.to_owned(), ..missing }.into())
}

struct RoomSearch<'a> {
    world: &'a World,
    topology: &'a Topology,
    held: &'a Occupancy,
    /// The request that needs a place.
    request: &'a Request,
    wanted: &'a RoomRequest,
}

impl RoomSearch<'_> {
    /// The cheapest moves of these guests that make room. A guest that its new place does not suit
    /// is left where it is.
    fn find(&self, guests: &[&Eligible], limits: Limits) -> Result<Result<RoomPlan, NoRoom>> {
        if guests.is_empty() {
            return Ok(Err(NoRoom { is_certain: true, is_limited: false }));
        }
        let sources = guests.iter().map(|one| Source::Domain(one.row.name.clone())).collect();
        let taken = self.wanted.guest.taken.clone();
        let subjects = subjects::read(self.world, &Tune { sources, taken, ..Tune::default() })?;
        let RoomSearch { topology, held, request, .. } = *self;
        let wanted = self.wanted;
        let live = Live { world: self.world, topology, held, request, wanted, subjects: &subjects };
        if let Some(live) = live.find(limits.moves) {
            return Ok(Ok(live));
        }
        // Stops of some and pins of others together are not tried.
        let mut is_whole = !live.has_guests();
        let mut left: Vec<usize> = (0..subjects.all.len()).collect();
        let mut why = None;
        loop {
            let mut movers: Vec<(usize, Mover)> = Vec::new();
            for &at in &left {
                movers.extend(self.mover(&subjects, at).map(|mover| (at, mover)));
            }
            let (numbers, movers): (Vec<usize>, Vec<Mover>) = movers.into_iter().unzip();
            let found = match room(self.topology, self.held, self.request, &movers, limits) {
                Ok(found) => found,
                // A guest without which there is none cannot be moved.
                Err(no) => {
                    let is_certain = is_whole && no.is_certain;
                    return why.map_or(Ok(Err(NoRoom { is_certain, ..no })), Err);
                }
            };
            match self.verified(&subjects, (&numbers, &movers), &found, guests)? {
                Ok(plan) => {
                    return Ok(Ok(RoomPlan { is_best: is_whole && plan.is_best, ..plan }));
                }
                Err((at, error)) => {
                    left.retain(|&other| other != at);
                    why = why.or(Some(error));
                }
            }
            is_whole = false;
        }
    }

    /// A guest as the search needs it; `None` if it cannot be planned.
    fn mover(&self, subjects: &Subjects, at: usize) -> Option<Mover> {
        let subject = &subjects.all[at];
        let number = u32::try_from(gpus_of(&subject.xml, self.topology).len()).ok()?;
        let items = items((number > 0).then_some(GpuWish::Count(number)), None, &subject.xml);
        let others = together::without_member(self.held, &subject.xml, true);
        let given = subjects.beside(&others, &items, self.topology);
        let mut request = planned_request(&subject.xml, &given).ok()?;
        request.gpu_model = model_of(self.topology, &gpus_of(&subject.xml, self.topology));
        if let Some(wish) = &mut request.vgpu {
            wish.gpu = None;
        }
        let held = self.held.domains.iter().find(|held| held.domain == subject.name)?;
        Some(Mover {
            name: subject.name.clone(),
            request,
            runs: subject.running,
            gpus: number,
            memory: held.memory.iter().map(|(_, size)| *size).sum(),
            pins: u32::try_from(held.vcpu_pins.len()).unwrap_or(u32::MAX),
            vgpus: u32::try_from(held.vgpus.len()).unwrap_or(u32::MAX),
            is_fixed: false,
        })
    }

    /// The plan of moves that were found, each tuned as it will be; else a guest that cannot be,
    /// and why not.
    fn verified(
        &self,
        subjects: &Subjects,
        (numbers, movers): (&[usize], &[Mover]),
        found: &Room,
        guests: &[&Eligible],
    ) -> Result<Result<RoomPlan, (usize, Error)>> {
        let asked = (self.wanted, self.request);
        let is_possible = refuse_shared(self.topology, self.wanted, &found.placement)
            .and_then(|()| refuse_impassable(self.world, self.topology, asked, &found.placement));
        if let Err(error) = is_possible {
            // With others it may have another place.
            let first = found.legs.iter().flatten().next().map(|one| numbers[one.guest]);
            return Ok(Err((first.unwrap_or_default(), error)));
        }
        let mut planned = RoomPlan::of_new(self.topology, &found.placement);
        (planned.cost, planned.is_best) = (found.cost, found.is_best);
        let is_one = |held: &Held| movers.iter().any(|mover| mover.name == held.domain);
        let mut now = self.held.clearing(is_one);
        for leg in &found.legs {
            let names: Vec<&str> =
                leg.iter().map(|one| subjects.all[numbers[one.guest]].name.as_str()).collect();
            now.domains.retain(|held| !names.contains(&held.domain.as_str()));
            let mut targets = Vec::new();
            for Move { guest, placement } in leg {
                let at = numbers[*guest];
                let subject = &subjects.all[at];
                let gpus = of_kind(&placement.devices, self.topology);
                let own = gpus_of(&subject.xml, self.topology).len();
                let gpus: Vec<Bdf> = gpus.into_iter().take(own).collect();
                let vgpu = vgpu_at(&movers[*guest].request, placement);
                let places = (&gpus[..], vgpu.as_ref(), self.topology);
                let tuned = match moved(subject, subjects, (&now, &planned.new), places) {
                    Ok(tuned) => tuned,
                    Err(error) => return Ok(Err((at, cannot_move(subject, &error)))),
                };
                let place = tuned.placement.as_ref();
                let accepted = accepted(self.wanted);
                if let Err(error) = allowed(subjects, subject, place, &accepted, self.world) {
                    return Ok(Err((at, not_there(subject, &error))));
                }
                // Facts that later ones depend on have been changed by the moves before them.
                let is_first = planned.legs.is_empty();
                let is_ready = refuse_far(subject, &tuned)
                    .and_then(|()| refuse_unready(self.world, subject, &tuned, is_first));
                if let Err(error) = is_ready {
                    return Ok(Err((at, error)));
                }
                let held = tuned.after.held_instead(&self.held.domains)?;
                now.domains.push(self.kept(held, subject));
                planned.moves.push(self.words(subject, &tuned, &names));
                let uuid = { guests.iter() }.find(|one| one.row.name == subject.name);
                let uuid = uuid.map(|one| one.row.uuid.clone()).unwrap_or_default();
                let (name, stops) = (subject.name.clone(), subject.running);
                let before = subject.text().to_owned();
                targets.push(Target { name, uuid, before, gpus, vgpu, live: false, stops });
            }
            planned.legs.push(targets);
        }
        // The new guest's resources are kept for it throughout.
        if let Err(error) = plan(self.topology, &now, self.request) {
            let last = found.legs.last().and_then(|leg| leg.last());
            let last = last.map(|one| numbers[one.guest]).unwrap_or_default();
            return Ok(Err((last, error.into())));
        }
        Ok(Ok(planned))
    }

    /// A guest's resources at its new place.
    fn kept(&self, held: Held, subject: &Subject) -> Held {
        let mut own = self.held.domains.iter().filter(|held| held.domain == subject.name);
        let autostart = own.any(|held| held.autostart);
        Held { active: subject.running, autostart, ..held }
    }

    /// A move in words and numbers.
    fn words(&self, subject: &Subject, tuned: &Tuned, leg: &[&str]) -> PlannedMove {
        let memory = tuned
            .placement
            .as_ref()
            .map(|placement| placement.cells.iter().map(|cell| cell.memory_kib.kib()).sum::<u64>());
        let pins = tuned.placement.iter().flat_map(|placement| &placement.vcpu_pins);
        let pcpus = pins.fold(CpuSet::new(), |all, pin| all.or(pin));
        let with = leg.iter().filter(|name| **name != subject.name).map(|name| (*name).to_owned());
        PlannedMove {
            domain: subject.name.clone(),
            stops: subject.running,
            live: false,
            from: cards(&subject.xml, self.topology),
            to: cards(&tuned.after, self.topology),
            pcpus: pcpus.to_string(),
            memory_gib: memory.filter(|_| subject.running).unwrap_or_default().div_ceil(1 << 20),
            with: with.collect(),
            notes: extra::nccl(subject, tuned, self.topology).into_iter().collect(),
        }
    }
}

/// The error of a guest that would not be isolated at its new place.
fn not_there(subject: &Subject, error: &Error) -> Error {
    let hint = error.refusal().map(|refusal| refusal.hint.clone()).unwrap_or_default();
    let why = format!("at its new place domain `{}` would not be isolated: {error}", subject.name);
    RoomError::SharedFabric { why }.hint(hint)
}
