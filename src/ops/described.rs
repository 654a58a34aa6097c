//! `apply` and `get`: guests as a file describes them. Those that are missing are planned together
//! and made as `create` makes them, those that differ are changed as `set` and `autostart` change
//! them, and each change is journaled by itself: what an interrupted run leaves is finished by
//! `recover`, and by applying the file again.

mod clash;
mod functions;
mod get;
mod nics;
mod sizes;
mod vcpus;

pub use clash::NamedDisk;
pub use get::{Described, Field, describe, describe_all};

use crate::autostart::{Autostart, autostart};
use crate::change::Change;
use crate::compare::{Compared, compare};
use crate::create::{self, CreateError, CreateRequest, Waits, create};
use crate::delete::{Delete, delete};
use crate::domain::DomainXml;
use crate::domain::guest::VirtType;
use crate::domain::view::View;
use crate::domain::view::gpu_indexes;
use crate::error::{Class, Coded, Error, NoPlace, Obstacles, Refusal, Result, classed, usage};
use crate::guest::{PlannedPlace, with_template};
use crate::history::guest::{AppliedFile, applied, set_set};
use crate::hypervisor::{DomainSummary, Hypervisor, XmlOf};
use crate::identity::random_uuid;
use crate::lookup::find;
use crate::pages;
use crate::placement::joint::{Joint, JointGuest, NoJoint, in_order};
use crate::placement::{GuestVgpu, Occupancy, Placement, PlanError, nearest};
use crate::reporter::{Answer, Question};
use crate::request::{DomainName, GpuWish, HugePages, IommufdWish, Request};
use crate::restart;
use crate::session::Session;
use crate::set::{SetRequest, set};
use crate::shell::word;
use crate::start::{Start, start};
use crate::stop::{Down, stop};
use crate::taken::Taken;
use crate::topology::{TAKES_ONE, Topology};
use crate::tune::Tuning;
use crate::vgpu::claim::warn_unoffered;
use crate::words::count;
use crate::world::World;
use gpuvm_core::guest::{GPU_OPTIONS, GuestDifference, Opt};
use gpuvm_core::tune::Item;
use serde::Serialize;
use sizes::{SizeTurn, ToPlace, is_taken, together};
use std::cell::Cell;
use std::collections::VecDeque;
use std::path::PathBuf;

/// How long a guest may take to shut down, in seconds.
const WAIT_S: u64 = 120;

/// The reason that a file is not applied.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "apply-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum DescribedError {
    /// A guest differs in fixed options.
    #[error("domain `{name}` differs in fixed options: {what}")]
    Conflict { name: String, what: String },
    /// A guest that would be deleted has another name in the file.
    #[error("domain `{name}` was made as guest `{was}` of this file, so it is not deleted")]
    Renamed { name: String, was: String },
    /// The file has no guests, so all of its set would be deleted.
    #[error("the file has no guests, so --prune would delete all of set `{set}`: {names}")]
    Empty { set: String, names: String },
    /// The missing guests have no place together.
    #[error("{what}")]
    NoPlace { what: String },
}

impl Coded for DescribedError {}

/// The reason that a file of guests is refused.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "guests-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum GuestsError {
    /// It cannot be parsed.
    #[error("{at}: {why}")]
    Syntax { at: String, why: String },
    /// It has a field that is not known.
    #[error("{at}: unknown field `{field}`")]
    Field { at: String, field: String },
    /// A field cannot have this value.
    #[error("{at}: {why}")]
    Value { at: String, why: String },
}

impl Coded for GuestsError {}

/// A guest of a file.
#[derive(Debug, Clone)]
pub struct DescribedGuest {
    /// Its name.
    pub name: DomainName,
    /// How it is made.
    pub create: CreateRequest,
    /// Whether it starts with the host; `None` to leave it.
    pub autostart: Option<bool>,
    /// Whether it may be restarted for a change.
    pub may_restart: bool,
    /// The disks that its entry names, which are there already.
    pub disks: Vec<NamedDisk>,
}

/// The guests of a file.
#[derive(Debug, Clone)]
pub struct ApplyRequest {
    /// The file, for messages.
    pub path: PathBuf,
    /// The guests, in its order, each name once.
    pub guests: Vec<DescribedGuest>,
    /// The name of the set that they are; `None` if it has no name, and nothing is pruned.
    pub set: Option<String>,
    /// Whether guests that an earlier file of this set made are deleted if it no longer has them.
    pub prune: bool,
    /// Whether they are deleted without a question.
    pub yes: bool,
    /// Whether drives with data may be given to guests.
    pub accept_data_loss: bool,
    /// The program that units run at boot.
    pub program: String,
}

/// The action on a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum GuestAction {
    /// It is as described.
    Keep,
    /// It is made.
    Create,
    /// It is changed.
    Change,
    /// It would be changed, but runs and may not be restarted.
    Pending,
    /// It is deleted.
    Delete,
    /// It differs in fixed options.
    Conflict,
}

/// A guest, and the action on it.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AppliedGuest {
    /// Its name.
    pub name: String,
    /// The action.
    pub action: GuestAction,
    /// The differences from the description.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<GuestDifference>,
    /// Indexes of the GPUs that a new guest gets, or one that gets others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<usize>,
    /// vGPUs that a new guest gets, or one that gets others: card, function and type of each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vgpus: Vec<GuestVgpu>,
    /// Whether it first releases resources for another guest that must be changed before it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub gives_up_first: bool,
    /// Whether it runs, and is restarted for its change.
    #[serde(skip)]
    restarts: bool,
    /// The command that resumes it, after which it can be changed without a restart; `None` if it
    /// takes one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake: Option<String>,
}

impl AppliedGuest {
    /// A guest with which this is done.
    fn new(name: impl Into<String>, action: GuestAction) -> AppliedGuest {
        let (name, differences) = (name.into(), Vec::new());
        let (gpus, vgpus) = (Vec::new(), Vec::new());
        let (gives_up_first, restarts, wake) = (false, false, None);
        AppliedGuest { name, action, differences, gpus, vgpus, gives_up_first, restarts, wake }
    }
}

/// The changes that a file would make.
#[derive(Debug)]
pub struct Drift {
    /// The guests of the file in its order, then those that are deleted.
    pub guests: Vec<AppliedGuest>,
    /// Changes of sizes, in the order in which they are made.
    turns: Vec<SizeTurn>,
    /// The missing guests by their number in the file, in the order in which they are made, each
    /// with its place.
    places: Vec<(usize, PlannedPlace)>,
    gone: Vec<DomainSummary>,
    /// Whether no other sets of GPUs would serve the new guests better, as far as is known.
    pub is_best: bool,
}

impl Drift {
    /// Whether all is as described.
    pub fn is_none(&self) -> bool {
        self.guests.iter().all(|guest| guest.action == GuestAction::Keep)
    }
}

/// Compares the file with the guests that exist, and finds places for those that are missing.
pub fn look(world: &World, wanted: &ApplyRequest) -> Result<Drift> {
    let (hypervisor, topology) = (world.hypervisor()?, world.topology()?);
    let rows = hypervisor.domains()?;
    let at = (&*hypervisor, &topology, &rows[..]);
    let mut guests = Vec::new();
    let (mut missing, mut unread) = (Vec::new(), None);
    for (number, guest) in wanted.guests.iter().enumerate() {
        let compared = compare(world, at, (guest.name.as_str(), &guest.create))?;
        match compared {
            Some(compared) => {
                unread = unread.or(world.unread_records().filter(|_| !compared.is_told));
                let is_off = !compared.summary.state.is_active();
                let found = existing(guest, compared, wanted.set.as_ref(), &*hypervisor, world)?;
                if is_off && found.differences.iter().all(|one| one.option != Opt::Vgpu) {
                    let xml = DomainXml::parse(&hypervisor.xml(&found.name, XmlOf::Inactive)?)?;
                    warn_unoffered(&xml, &topology, world)?;
                }
                guests.push(found);
            }
            None => {
                missing.push(number);
                guests.push(AppliedGuest::new(guest.name.as_str(), GuestAction::Create));
            }
        }
    }
    if let Some(why) = unread {
        world.warning(&format!("creation options of guests are not compared: {why}"));
    }
    clash::refuse_twice(&wanted.guests, &missing, &*hypervisor)?;
    let gone = if wanted.prune { pruned(world, wanted, &*hypervisor, &rows)? } else { Vec::new() };
    let is_refused = guests.iter().any(|guest| guest.action == GuestAction::Conflict);
    // Nothing of such a file is done, so no place is needed.
    let found = if is_refused {
        together(world, wanted, ToPlace { missing: &[], changing: &[], gone: &gone }, &topology)?
    } else {
        let requests = missing.into_iter().map(|number| {
            Ok((number, request_of(world, &wanted.guests[number].create, &topology)?))
        });
        let requests: Vec<(usize, Request)> = requests.collect::<Result<_>>()?;
        let changing = changing(wanted, &guests, &topology);
        let all = ToPlace { missing: &requests, changing: &changing, gone: &gone };
        together(world, wanted, all, &topology)?
    };
    for (number, placement, _) in &found.places {
        guests[*number].gpus = gpu_indexes(&topology, &placement.devices);
        guests[*number].vgpus.clone_from(&placement.vgpus);
    }
    for turn in &found.turns {
        let guest = &mut guests[turn.number];
        guest.gives_up_first |= turn.gives_up;
        guest.gpus = turn.gpus.clone().unwrap_or_default();
        guest.vgpus.clone_from(&turn.vgpus);
    }
    guests.extend(gone.iter().map(|row| AppliedGuest::new(&row.name, GuestAction::Delete)));
    let place = |(number, placement, request): (usize, Placement, Request)| {
        let create = &wanted.guests[number];
        let placement = match create.create.guest.virt {
            VirtType::Kvm => placement,
            VirtType::Qemu => placement.emulated(),
        };
        (number, PlannedPlace::of_file(&wanted.path, create.name.clone(), request, placement))
    };
    let places = found.places.into_iter().map(place).collect();
    Ok(Drift { guests, turns: found.turns, places, gone, is_best: found.is_best })
}

/// The guests that get another size now, by their numbers in the file.
fn changing(
    wanted: &ApplyRequest,
    guests: &[AppliedGuest],
    topology: &Topology,
) -> Vec<(usize, SetRequest)> {
    let all = wanted.guests.iter().zip(guests).enumerate();
    let is_changed = |found: &AppliedGuest| found.action == GuestAction::Change;
    let changed = all.filter(|(_, (_, found))| is_changed(found));
    let accept_data_loss = wanted.accept_data_loss;
    { changed }
        .filter_map(|(number, (guest, found))| Some((number, resized(guest, found, topology)?)))
        .map(|(number, set)| (number, SetRequest { accept_data_loss, ..set }))
        .collect()
}

/// The action on an existing guest.
fn existing(
    guest: &DescribedGuest,
    compared: Compared,
    set: Option<&String>,
    hypervisor: &dyn Hypervisor,
    world: &World,
) -> Result<AppliedGuest> {
    let Compared { summary, differences, .. } = compared;
    let runs = summary.state.is_active();
    // Nothing of the running guest depends on that.
    let (moves, of_guest): (Vec<_>, Vec<_>) =
        differences.into_iter().partition(|one| RECORDED.contains(&one.option));
    let is_live = || -> Result<bool> {
        let plugs = vcpus::is_live(world, guest, &of_guest)?;
        let functions = || functions::is_live(world, guest, &of_guest);
        Ok(plugs || nics::is_live(world, guest, &of_guest)? || functions()?)
    };
    let needs_restart = runs && !of_guest.is_empty() && !is_live()?;
    let wake = vcpus::wake(&summary, guest, &of_guest, hypervisor)?.filter(|_| needs_restart);
    let mut differences = of_guest;
    differences.extend(moves);
    let word = |on: bool| if on { "on" } else { "off" }.to_owned();
    if let Some(on) = guest.autostart {
        let is = hypervisor.autostart(&summary.name)?;
        if is != on {
            let (option, is, wanted) = (Opt::Autostart, word(is), word(on));
            differences.push(GuestDifference { option, is, wanted, changeable: true });
        }
    }
    if let (Some(set), Some(file)) = (set, applied(world.state(), &summary.uuid)) {
        let is = file.set.unwrap_or_else(|| "none".to_owned());
        if is != *set {
            // The other file would delete it.
            let (option, wanted) = (Opt::Set, set.clone());
            differences.push(GuestDifference { option, is, wanted, changeable: true });
        }
    }
    let is_held = needs_restart && !guest.may_restart;
    let action = match &differences[..] {
        [] => GuestAction::Keep,
        some if some.iter().any(|one| !one.changeable) => GuestAction::Conflict,
        _ if is_held => GuestAction::Pending,
        _ => GuestAction::Change,
    };
    let restarts = needs_restart && action == GuestAction::Change;
    let wake = wake.filter(|_| action == GuestAction::Pending);
    Ok(AppliedGuest { differences, restarts, wake, ..AppliedGuest::new(summary.name, action) })
}

/// Guests that an earlier file of this set made and that it no longer has, by the record of their
/// UUID.
fn pruned(
    world: &World,
    wanted: &ApplyRequest,
    hypervisor: &dyn Hypervisor,
    rows: &[DomainSummary],
) -> Result<Vec<DomainSummary>> {
    let Some(set) = &wanted.set else {
        let hint =
            "add `set: NAME` to the file: guests that it makes from then on are known as its own";
        return Err(usage("--prune: the file does not name its set of guests", hint));
    };
    let is_named = |name: &str| wanted.guests.iter().any(|guest| guest.name.as_str() == name);
    let mut gone = Vec::new();
    for row in rows.iter().filter(|row| !is_named(&row.name)) {
        let Some(file) = of_set(set, row, hypervisor, world)? else { continue };
        if let Some(was) = file.name.filter(|was| is_named(was)) {
            let name = row.name.clone();
            let hint = format!(
                "`gpuvm rename {} {}` gives it that name again; or write its new name into the \
                 file",
                word(&name),
                word(&was)
            );
            return Err(DescribedError::Renamed { name, was }.hint(hint));
        }
        gone.push(row.clone());
    }
    if let [first, ..] = &gone[..]
        && wanted.guests.is_empty()
    {
        // Nobody has to look at a file that a program writes, and its answer is `--yes`.
        let names: Vec<&str> = gone.iter().map(|row| row.name.as_str()).collect();
        let empty = DescribedError::Empty { set: set.clone(), names: names.join(", ") };
        let hint = format!("`gpuvm delete {}` deletes one of them", word(&first.name));
        return Err(empty.hint(hint));
    }
    Ok(gone)
}

/// The file of a set that made a domain which is still the one that it made; `None` if none did.
fn of_set(
    set: &str,
    row: &DomainSummary,
    hypervisor: &dyn Hypervisor,
    world: &World,
) -> Result<Option<AppliedFile>> {
    let is_here = world.owner(&row.uuid, hypervisor).other_hypervisor().is_none();
    let file = applied(world.state(), &row.uuid).filter(|file| file.set.as_deref() == Some(set));
    let Some(file) = file.filter(|_| is_here) else { return Ok(None) };
    // Somebody may have defined another one with its UUID.
    let xml = DomainXml::parse(&hypervisor.xml(&row.name, XmlOf::Inactive)?)?;
    let is_made = View::of(&xml, None)?.remembered.is_some_and(|record| record.request.is_some());
    Ok(Some(file).filter(|_| is_made && !xml.is_copy()))
}

/// Asks whether the guests that the file no longer has may be deleted, if there are any.
fn agree_to_delete(session: &Session<'_>, gone: &[DomainSummary]) -> Result<()> {
    if gone.is_empty() {
        return Ok(());
    }
    let line = |row: &DomainSummary| {
        let runs = if row.state.is_active() { ", which runs," } else { "" };
        format!("delete domain `{}`{runs} and the disks that were made for it", row.name)
    };
    let lines = Some(gone.iter().map(line).collect());
    let what = format!("deleting {} of the set", count(gone.len(), "guest"));
    let question = Question::Agree { lines, question: "delete them?", what };
    let said = session.ask(&question, &[], &[])?;
    question.settle(said, &[])
}

/// Deletes a guest that the file no longer has, if it is still that one. Returns whether it was
/// still there.
fn prune(session: &mut Session<'_>, row: &DomainSummary, set: Option<&String>) -> Result<bool> {
    let DomainSummary { name, uuid, .. } = row;
    let plan = |world: &World| {
        let hypervisor = &*world.hypervisor()?;
        let Some(now) = hypervisor.domain(name)? else {
            return Ok(Change::new("delete", name, Vec::new(), Vec::new()));
        };
        let file = match set.filter(|_| now.uuid == *uuid) {
            Some(set) => of_set(set, &now, hypervisor, world)?,
            None => None,
        };
        if file.is_none() {
            let message = format!("domain `{name}` is now a different one, so it is not deleted");
            let hint = format!("`gpuvm show {}` shows it", word(name));
            return Err(classed(Class::Changed, message, hint));
        }
        delete(world, &Delete { name: name.clone(), keep_data: false })
    };
    session.run(plan).map(|done| done.made)
}

/// Checks whether the planned changes and new guests are possible, before the first of them: as far
/// as that does not depend on earlier ones, for which there is a plan. Other GPUs of a running
/// guest are not checked: it is stopped for that, and started again.
pub fn foresee(world: &World, wanted: &ApplyRequest, drift: &Drift) -> Result<()> {
    if drift.guests.iter().any(|guest| guest.action == GuestAction::Conflict) {
        return Ok(());
    }
    for guest in drift.guests.iter().filter(|guest| guest.restarts) {
        // One that does not hear that it is to shut down would be changed, and not restarted.
        stop(world, &guest.name, Down { force: false, wait_s: WAIT_S })?;
    }
    for SizeTurn { request, losses, .. } in drift.turns.iter().filter(|_| !wanted.accept_data_loss)
    {
        if !losses.is_empty() {
            let question = Question::Losses { name: request.name.clone() };
            question.settle(Answer::Nobody, losses)?;
        }
    }
    let (rows, topology) = (world.hypervisor()?.domains()?, world.topology()?);
    let runs = |name: &str| rows.iter().any(|row| row.name == name && row.state.is_active());
    let first = drift.turns.first().filter(|_| drift.gone.is_empty());
    if let Some(SizeTurn { request, .. }) =
        first.filter(|turn| !takes_off(&turn.request) || !runs(&turn.request.name))
    {
        set_without_loss(world, request)?;
    }
    for (guest, found) in wanted.guests.iter().zip(&drift.guests) {
        let nics = nics::changed(guest, &found.differences, &topology);
        if let Some(nics) = nics.filter(|_| found.action == GuestAction::Change) {
            set(world, &nics)?;
        }
    }
    for (number, _) in &drift.places {
        // Not at its place, which may need those that are made before.
        let guest = &wanted.guests[*number];
        let planned = create(world, &guest.create).map_err(|error| or_shared(error, &guest.name));
        // Another has made it since it was looked for; it is compared once the lock is held.
        if planned.is_err() && world.hypervisor()?.domain(guest.name.as_str())?.is_some() {
            continue;
        }
        let change = unless_of_room(planned, drift)?;
        if let Some(change) = change.filter(|_| !wanted.accept_data_loss) {
            change.refuse_losses()?;
        }
    }
    Ok(())
}

/// The refusal of a new guest on NVLinks that others reach, with the field of the file that takes
/// it.
fn or_shared(error: Error, name: &DomainName) -> Error {
    match error {
        Error::Refused(mut refusal) if refusal.code == "create-shared-fabric" => {
            refusal.message = format!("guest `{name}`: {}", refusal.message);
            // Guests that are strangers by `gpuvm host trust` are not taken by either.
            refusal.hint = refusal.hint.replace(
                TAKES_ONE,
                "`accept-shared-fabric: true` in its entry takes it for this guest",
            );
            Error::Refused(refusal)
        }
        Error::Several(Obstacles { errors }) => {
            let errors = errors.into_iter().map(|error| or_shared(error, name)).collect();
            Error::Several(Obstacles { errors })
        }
        other => other,
    }
}

/// The plan of a new guest; `None` if it has no place now, but one after the deletions and changes
/// before it.
fn unless_of_room<T>(planned: Result<T>, drift: &Drift) -> Result<Option<T>> {
    let error = match planned {
        Ok(planned) => return Ok(Some(planned)),
        Err(error) => error,
    };
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source());
    let is_of_room = { causes }.any(|cause| cause.is::<PlanError>() || cause.is::<NoPlace>());
    let is_first = drift.gone.is_empty() && drift.turns.is_empty();
    if is_of_room && !is_first { Ok(None) } else { Err(error) }
}

/// A guest's request to the planner.
fn request_of(world: &World, create: &CreateRequest, topology: &Topology) -> Result<Request> {
    let request = create.guest.request.clone();
    let mut request = with_template(world, &create.guest, request, topology)?;
    if create.reserve_pages && request.huge_pages == HugePages::Auto {
        let page = pages::size_to_reserve(request.huge_pages, topology)?;
        request.huge_pages = HugePages::Size(page);
    }
    Ok(request)
}

/// The error that a new guest has no place beside the others of the file; `olds`: those that
/// change, with the occupancy without them.
fn no_place(
    refused: &NoJoint,
    guests: &[JointGuest<'_>],
    (olds, held, topology): (&[String], &Occupancy, &Topology),
) -> Error {
    let JointGuest { name, request, .. } = guests[refused.guest];
    let placed = refused.placed.iter().map(|&at| guests[at]);
    let names = placed.clone().map(|guest| guest.name);
    let names: Vec<&str> = olds.iter().map(String::as_str).chain(names).collect();
    let beside = match &names[..] {
        [] => "beside the domains of this host".to_owned(),
        names => {
            format!("beside {} of the file: {}", count(names.len(), "guest"), names.join(", "))
        }
    };
    let doubt = if refused.is_certain { "" } else { " (not every set of GPUs was tried)" };
    let what = format!("guest `{name}` has no place {beside}{doubt}");
    // Guests that would fit beside those that have a place; not beside guests whose sizes change.
    let placed: Vec<JointGuest<'_>> = placed.collect();
    let nearest = match in_order(topology, held, &placed) {
        Ok(Joint { placements, .. }) if olds.is_empty() => {
            let mut held = held.clone();
            let places = placed.iter().zip(&placements);
            held.domains.extend(places.map(|(guest, place)| place.held(guest.name)));
            nearest(topology, &held, request)
        }
        _ => Vec::new(),
    };
    let no_place = NoPlace {
        error: refused.error.clone(),
        request: Box::new(request.clone()),
        nearest,
        room: None,
    };
    let refusal: Refusal = DescribedError::NoPlace { what }
        .refusal("`gpuvm capacity` shows what fits; request less, or leave a guest out");
    Error::from(no_place).around(refusal)
}

/// Refuses a file with guests that differ in fixed options.
fn refuse_conflicts(drift: &Drift) -> Result<()> {
    let conflict = drift.guests.iter().find(|guest| guest.action == GuestAction::Conflict);
    let Some(AppliedGuest { name, differences, .. }) = conflict else { return Ok(()) };
    let fixed = differences.iter().filter(|difference| !difference.changeable);
    let what: Vec<String> = fixed.map(ToString::to_string).collect();
    let error = DescribedError::Conflict { name: name.clone(), what: what.join("; ") };
    let name = word(name);
    Err(error.hint(format!(
        "`gpuvm get {name}` prints it; to recreate it as described, delete it first"
    )))
}

/// Applies a file: deletes, then changes, then makes guests. Nothing is done unless all of it can
/// be planned.
pub fn apply(session: &mut Session<'_>, world: &World, wanted: &ApplyRequest) -> Result<Drift> {
    session.refuse_unfinished()?;
    let mut drift = session.settled(|world| {
        let drift = look(world, wanted)?;
        refuse_conflicts(&drift)?;
        foresee(world, wanted, &drift)?;
        Ok(drift)
    })?;
    if !wanted.yes {
        agree_to_delete(session, &drift.gone)?;
    }
    let mut done = 0;
    let made = carry_out(session, world, wanted, &mut drift, &mut done);
    if made.is_err() && done > 0 {
        let changes = count(done, "change");
        world.warning(&format!(
            "{changes} of the file made before stay; applied again, it continues with the rest"
        ));
    }
    made.map(|()| drift)
}

/// Applies the differences; `done`: how many changes are made.
fn carry_out(
    session: &mut Session<'_>,
    world: &World,
    wanted: &ApplyRequest,
    drift: &mut Drift,
    done: &mut usize,
) -> Result<()> {
    for row in std::mem::take(&mut drift.gone) {
        if !prune(session, &row, wanted.set.as_ref())? {
            let is_it = |one: &AppliedGuest| one.name == row.name;
            drift.guests.retain(|one| one.action != GuestAction::Delete || !is_it(one));
            continue;
        }
        *done += 1;
        world.progress(&format!("domain `{}` is deleted", row.name));
    }
    let changed = change_all(session, world, wanted, drift, done)?;
    for (found, is_changed) in drift.guests.iter_mut().zip(changed) {
        if found.action != GuestAction::Change {
            continue;
        }
        if is_changed {
            let what: Vec<String> = found.differences.iter().map(ToString::to_string).collect();
            world.progress(&format!("domain `{}` is changed: {}", found.name, what.join("; ")));
        } else {
            // Another has changed it since it was examined.
            *found = AppliedGuest::new(&found.name, GuestAction::Keep);
        }
    }
    make_all(session, world, wanted, drift, done)
}

/// Changes the guests that exist. Returns of each whether it was changed.
fn change_all(
    session: &mut Session<'_>,
    world: &World,
    wanted: &ApplyRequest,
    drift: &Drift,
    done: &mut usize,
) -> Result<Vec<bool>> {
    let mut changed = vec![false; wanted.guests.len()];
    let all = || wanted.guests.iter().zip(&drift.guests).enumerate();
    // The size of a pending one waits for a restart, its set and start with the host do not.
    let is_now =
        |found: &AppliedGuest| matches!(found.action, GuestAction::Change | GuestAction::Pending);
    for (number, (guest, found)) in all().filter(|(_, (_, found))| is_now(found)) {
        changed[number] |= join(session, guest, found, wanted.set.as_ref())?;
        changed[number] |= record_options(session, guest, found)?;
    }
    let topology = world.topology()?;
    for (number, (guest, found)) in all() {
        let nics = nics::changed(guest, &found.differences, &topology);
        let Some(nics) = nics.filter(|_| found.action == GuestAction::Change) else { continue };
        let restarts = drift.turns.iter().any(|turn| turn.request.name == nics.name);
        let is_made = nics::change(session, guest, &nics, restarts)?;
        changed[number] |= is_made;
        *done += usize::from(is_made);
    }
    for turn in &drift.turns {
        let is_made = resize(session, &wanted.guests[turn.number], &turn.request)?;
        changed[turn.number] |= is_made;
        *done += usize::from(is_made);
        if turn.gives_up && is_made {
            let name = &turn.request.name;
            world.progress(&format!(
                "domain `{name}` has released resources that other guests need"
            ));
        }
    }
    for (number, (guest, found)) in all().filter(|(_, (_, found))| is_now(found)) {
        changed[number] |= start_with_host(session, guest, found, &wanted.program)?;
    }
    Ok(changed)
}

/// Whether a guest differs in one of these options now.
fn differs_now(
    world: &World,
    guest: &DescribedGuest,
    counts: impl Fn(Opt) -> bool,
) -> Result<bool> {
    let differs = |found: Compared| found.differences.iter().any(|one| counts(one.option));
    Ok(compared_now(world, guest)?.is_none_or(differs))
}

/// A plan that is made only while a guest differs in one of these options: another run may have
/// changed it while this one waited for the lock.
fn while_differs<'g, T>(
    guest: &'g DescribedGuest,
    counts: impl Fn(Opt) -> bool + 'g,
    plan: impl Fn(&World) -> Result<Change<T>> + 'g,
) -> impl Fn(&World) -> Result<Change<Option<T>>> + 'g {
    move |world| {
        if differs_now(world, guest, &counts)? {
            plan(world).map(Change::needed)
        } else {
            Ok(Change::new("apply", guest.name.as_str(), Vec::new(), None))
        }
    }
}

/// A guest as it is now; `None` if it does not exist.
fn compared_now(world: &World, guest: &DescribedGuest) -> Result<Option<Compared>> {
    let (hypervisor, topology) = (world.hypervisor()?, world.topology()?);
    let rows = hypervisor.domains()?;
    compare(world, (&*hypervisor, &topology, &rows), (guest.name.as_str(), &guest.create))
}

/// The error that a missing guest has been made otherwise meanwhile.
fn made_otherwise(name: &str, differences: &[GuestDifference]) -> Error {
    let what: Vec<String> = differences.iter().map(ToString::to_string).collect();
    let error = CreateError::Differs { name: name.to_owned(), what: what.join("; ") };
    error.hint(format!(
        "it was created meanwhile: `gpuvm get {}` prints it; apply the file again to change it",
        word(name)
    ))
}

/// Makes the missing guests, at their places; if one was taken by another guest, all remaining ones
/// get others.
fn make_all(
    session: &mut Session<'_>,
    world: &World,
    wanted: &ApplyRequest,
    drift: &mut Drift,
    done: &mut usize,
) -> Result<()> {
    let mut places = VecDeque::from(std::mem::take(&mut drift.places));
    let mut is_planned_anew = false;
    while let Some((number, place)) = places.pop_front() {
        match make(session, world, &wanted.guests[number], place, wanted) {
            Err(error) if is_taken(&error) && !is_planned_anew => {
                is_planned_anew = true;
                let again = look(world, &ApplyRequest { prune: false, ..wanted.clone() })?;
                refuse_conflicts(&again)?;
                let left: Vec<usize> =
                    { places.iter() }.map(|(number, _)| *number).chain([number]).collect();
                for number in left {
                    let (old, new) = (&mut drift.guests[number], &again.guests[number]);
                    match new.action {
                        GuestAction::Create => {
                            old.gpus.clone_from(&new.gpus);
                            old.vgpus.clone_from(&new.vgpus);
                        }
                        GuestAction::Keep => *old = new.clone(),
                        _ => return Err(made_otherwise(&new.name, &new.differences)),
                    }
                }
                places = again.places.into();
            }
            Err(error) => return Err(error),
            Ok(true) => *done += 1,
            Ok(false) => {
                // Another has made it since it was looked for.
                let found = &mut drift.guests[number];
                *found = AppliedGuest::new(&found.name, GuestAction::Keep);
            }
        }
    }
    Ok(())
}

/// The size that a guest gets; `None` if it has it.
fn resized(
    guest: &DescribedGuest,
    found: &AppliedGuest,
    topology: &Topology,
) -> Option<SetRequest> {
    let differs = |option: Opt| found.differences.iter().any(|one| one.option == option);
    let request = &guest.create.guest.request;
    let named = match &request.gpus {
        GpuWish::Count(_) => None,
        GpuWish::Exact(gpus) => Some(gpus.clone()),
        GpuWish::Run { first, count } => {
            let all = topology.gpus().skip(*first as usize).take(*count as usize);
            Some(all.map(|gpu| gpu.bdf).collect())
        }
        GpuWish::Indexes(indexes) => {
            let at = |index: &u32| topology.gpus().nth(*index as usize).map(|gpu| gpu.bdf);
            Some(indexes.iter().filter_map(at).collect())
        }
    };
    let sizes = [Opt::Vgpu, Opt::Vcpus, Opt::MaxVcpus, Opt::Memory, Opt::HugePages, Opt::Iommufd];
    let sizes = GPU_OPTIONS.into_iter().chain(sizes);
    let room = request.vcpus_at_start;
    let functions = functions::changed(request, differs);
    let is_other = !functions.is_kept() || { sizes }.any(differs);
    is_other.then(|| SetRequest {
        source: None,
        taken: Taken::default(),
        name: guest.name.to_string(),
        vcpus: room.or(request.vcpus).filter(|_| differs(Opt::Vcpus)),
        // Without room for more it has as many as it starts with.
        max_vcpus: request.vcpus.filter(|_| differs(Opt::MaxVcpus)),
        memory: request.memory_kib.filter(|_| differs(Opt::Memory)),
        may_move: false,
        gpus: differs(Opt::Gpus).then(|| request.gpus.number()),
        gpu_set: named.filter(|_| differs(Opt::Gpu) || differs(Opt::GpuIndex)),
        gpus_said: GPU_OPTIONS.into_iter().any(differs).then(|| request.gpus.clone()),
        vgpu: match &request.vgpu {
            _ if !differs(Opt::Vgpu) => Item::Keep,
            Some(wish) => Item::To(wish.clone()),
            None => Item::Off,
        },
        functions,
        accept_data_loss: false,
        networks: None,
        live: false,
        accept_shared_fabric: guest.create.accept_shared_fabric,
        huge_pages: match request.huge_pages {
            HugePages::Off if differs(Opt::HugePages) => Item::Off,
            HugePages::Size(page) if differs(Opt::HugePages) => Item::To(page),
            _ => Item::Keep,
        },
        allow: request.allow,
        reserve_pages: false,
        movable: None,
        p2p: None,
        recorded_allow: None,
        iommufd: match request.iommufd {
            _ if !differs(Opt::Iommufd) => Item::Keep,
            IommufdWish::On => Item::On,
            IommufdWish::Auto | IommufdWish::Off => Item::Off,
        },
    })
}

/// Whether a guest must be off for a change, unless it gets the functions while it runs.
fn takes_off(wanted: &SetRequest) -> bool {
    let has_gpus = wanted.gpus.is_some() || wanted.gpu_set.is_some();
    has_gpus || !wanted.vgpu.is_kept() || !wanted.functions.is_kept()
}

/// Plans another size. Refuses drives with data on them, unless that was accepted.
fn set_without_loss(world: &World, wanted: &SetRequest) -> Result<Change<Tuning>> {
    let change = set(world, wanted)?;
    change.refuse_losses()?;
    Ok(change)
}

/// Gives a guest another size; one that runs has it afterwards. Returns whether it was changed.
fn resize(session: &mut Session<'_>, guest: &DescribedGuest, wanted: &SetRequest) -> Result<bool> {
    let name = &wanted.name;
    let rows = session.hypervisor()?.domains()?;
    let down = Down { force: false, wait_s: WAIT_S };
    let is_off = !rows.iter().any(|row| row.name == *name && row.state.is_active());
    if is_off {
        let plan = while_differs(guest, |_| true, |world| set_without_loss(world, wanted));
        return session.run(plan).map(|done| done.made);
    }
    let live = vcpus::at_once(session.world(), wanted);
    let live = live.or_else(|| functions::at_once(session.world(), wanted));
    if let Some(live) = live {
        let plan = while_differs(guest, |_| true, |world| set_without_loss(world, &live));
        return session.run(plan).map(|done| done.made);
    }
    if !takes_off(wanted) {
        let is_set = session.run(while_differs(guest, |_| true, |world| set(world, wanted)))?.made;
        // Another run may restart it meanwhile.
        let is_due = |world: &World| differs_now(world, guest, |_| true);
        return restart::run_if(session, name, down, is_due).map(|done| is_set || done.made);
    }
    // Functions come and go only while it is off; it runs again whether it got them or not.
    // It may have ended by itself; it is changed and started all the same.
    let stopped = session.run(while_differs(guest, |_| true, |world| stop(world, name, down)))?;
    if stopped.change.about.is_none() {
        return Ok(false);
    }
    let changed = session.run(|world| set_without_loss(world, wanted));
    let again = Start { name: name.clone(), reserve_pages: false, p2p: None, dry_run: false };
    session.run(|world| start(world, &again))?;
    changed.map(|done| done.made)
}

/// Has a guest that exists start with the host, or not, if that differs. Returns whether that was
/// changed.
fn start_with_host(
    session: &mut Session<'_>,
    guest: &DescribedGuest,
    found: &AppliedGuest,
    program: &str,
) -> Result<bool> {
    let differs = found.differences.iter().any(|one| one.option == Opt::Autostart);
    match guest.autostart.filter(|_| differs) {
        Some(on) => started(session, guest.name.as_str(), on, program),
        None => Ok(false),
    }
}

/// Records that a guest is of this set, so that the file of another one does not delete it.
/// Returns whether it was not.
fn join(
    session: &mut Session<'_>,
    guest: &DescribedGuest,
    found: &AppliedGuest,
    set: Option<&String>,
) -> Result<bool> {
    let is_of_other = found.differences.iter().any(|one| one.option == Opt::Set);
    let Some(set) = set.filter(|_| is_of_other) else { return Ok(false) };
    let name = guest.name.as_str();
    let plan = |world: &World| -> Result<Change> {
        let row = find(&*world.hypervisor()?, name)?;
        let steps = set_set(world.state(), &row.uuid, set)?.into_iter().collect();
        Ok(Change::new("apply", name, steps, ()))
    };
    session.run(plan).map(|done| done.made)
}

/// Options that are only recorded: whether it may be moved, and what its next start does.
const RECORDED: [Opt; 3] = [Opt::Movable, Opt::P2p, Opt::Allow];

/// Records such options, if they differ. Returns whether that was changed.
fn record_options(
    session: &mut Session<'_>,
    guest: &DescribedGuest,
    found: &AppliedGuest,
) -> Result<bool> {
    let differs = |opt| found.differences.iter().any(|one| one.option == opt);
    if !RECORDED.into_iter().any(differs) {
        return Ok(false);
    }
    let name = guest.name.to_string();
    let Request { movable, p2p, allow, .. } = guest.create.guest.request;
    let movable = differs(Opt::Movable).then_some(movable);
    let p2p = differs(Opt::P2p).then_some(p2p);
    let recorded_allow = differs(Opt::Allow).then_some(allow);
    let wanted = SetRequest { name, movable, p2p, recorded_allow, ..SetRequest::default() };
    session.run(|world| set(world, &wanted)).map(|done| done.made)
}

/// Has a guest start with the host, or not. Returns whether that was changed.
fn started(session: &mut Session<'_>, name: &str, on: bool, program: &str) -> Result<bool> {
    let wanted = Autostart { name: name.to_owned(), on, program: program.to_owned() };
    session.run(|world| autostart(world, &wanted)).map(|done| done.made)
}

/// A request for a missing guest at its place.
fn request_at(guest: &DescribedGuest, place: PlannedPlace) -> Result<CreateRequest> {
    let mut request = guest.create.clone();
    request.guest.place = Some(place);
    request.uuid = Some(random_uuid()?);
    Ok(request)
}

/// Makes a missing guest at its place. Returns whether it was still missing.
fn make(
    session: &mut Session<'_>,
    world: &World,
    guest: &DescribedGuest,
    place: PlannedPlace,
    wanted: &ApplyRequest,
) -> Result<bool> {
    let request = request_at(guest, place)?;
    let is_missing = Cell::new(true);
    let plan = |world: &World| {
        // Another may have made it while this run waited.
        let Some(found) = compared_now(world, guest)? else {
            is_missing.set(true);
            let change = create(world, &request)?;
            if !wanted.accept_data_loss {
                change.refuse_losses()?;
            }
            return Ok(change);
        };
        if !found.differences.is_empty() {
            return Err(made_otherwise(&found.summary.name, &found.differences));
        }
        is_missing.set(false);
        let name = &found.summary.name;
        let xml = world.hypervisor()?.xml(name, XmlOf::Inactive)?;
        Ok(Change::new("create", name, Vec::new(), DomainXml::parse(&xml)?))
    };
    create::make(session, world, &request, Waits { address_s: 0, seed_s: None }, plan)?;
    let is_missing = is_missing.get();
    if guest.autostart == Some(true) {
        started(session, guest.name.as_str(), true, &wanted.program)?;
    }
    if is_missing {
        world.progress(&format!("domain `{}` is made", guest.name));
    }
    Ok(is_missing)
}

#[cfg(test)]
mod tests;
