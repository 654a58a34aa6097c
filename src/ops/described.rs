//! `apply` and `get`: guests as a file describes them. Those that are missing are planned together
//! and made as `create` makes them, those that differ are changed as `set` and `autostart` change
//! them, and each change is journaled by itself: what an interrupted run leaves is finished by
//! `recover`, and by applying the file again.

mod get;

pub use get::{Field, describe, describe_all};

use crate::autostart::{Autostart, autostart};
use crate::change::Change;
use crate::compare::{Compared, GuestDifference, compare};
use crate::create::{self, CreateRequest, Waits, create};
use crate::delete::{Delete, delete};
use crate::domain::DomainXml;
use crate::domain::guest::VirtType;
use crate::domain::view::View;
use crate::domain::view::gpu_indexes;
use crate::error::{Class, Coded, Error, NoPlace, Refusal, Result, classed, usage};
use crate::guest::{PlannedPlace, find, with_template};
use crate::history::guest::{AppliedFile, applied, set_set};
use crate::hypervisor::{DomainSummary, Hypervisor, XmlOf};
use crate::identity::random_uuid;
use crate::pages;
use crate::placement::joint::{Joint, NoJoint, Wanted, joint};
use crate::placement::{Placement, PlanError};
use crate::reporter::{Answer, Question};
use crate::request::{DomainName, HugePages, Request};
use crate::restart;
use crate::session::Session;
use crate::set::{SetRequest, set};
use crate::shell::word;
use crate::start::{Start, start};
use crate::stop::{Down, stop};
use crate::taken::{Taken, taken_for_new};
use crate::topology::Topology;
use crate::words::count;
use crate::world::World;
use gpuvm_core::tune::Item;
use serde::Serialize;
use std::path::PathBuf;

/// How long a guest may take to shut down, in seconds.
const WAIT_S: u64 = 120;

/// The reason that a file is not applied.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "apply-")]
pub enum DescribedError {
    /// A guest differs in what cannot be changed.
    #[error("domain `{name}` differs in what cannot be changed: {what}")]
    Conflict {
        /// Its name.
        name: String,
        /// What differs.
        what: String,
    },
    /// A guest that would be deleted has another name in the file.
    #[error("domain `{name}` was made as guest `{was}` of this file, so it is not deleted")]
    Renamed {
        /// Its name.
        name: String,
        /// Its name in the file.
        was: String,
    },
    /// The missing guests have no place together.
    #[error("{what}")]
    NoPlace {
        /// Which guest, beside which others.
        what: String,
    },
}

impl Coded for DescribedError {}

/// The reason that a file of guests is refused.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "guests-")]
pub enum GuestsError {
    /// It cannot be parsed.
    #[error("{at}: {why}")]
    Syntax {
        /// The place in the file.
        at: String,
        /// What is wrong.
        why: String,
    },
    /// It has a field that is not known.
    #[error("{at}: unknown field `{field}`")]
    Field {
        /// The place in the file.
        at: String,
        /// The field.
        field: String,
    },
    /// A field cannot have this value.
    #[error("{at}: {why}")]
    Value {
        /// The place in the file.
        at: String,
        /// What is wrong.
        why: String,
    },
}

impl Coded for GuestsError {}

/// A guest of a file.
#[derive(Debug, Clone)]
pub struct DescribedGuest {
    /// Its name.
    pub name: DomainName,
    /// How it is made.
    pub create: CreateRequest,
    /// Whether it starts with the host; none: as it is.
    pub autostart: Option<bool>,
    /// Whether it may be restarted for a change.
    pub may_restart: bool,
}

/// The guests of a file.
#[derive(Debug, Clone)]
pub struct ApplyRequest {
    /// The file, for messages.
    pub path: PathBuf,
    /// The guests, in its order, each name once.
    pub guests: Vec<DescribedGuest>,
    /// The name of the set that they are; none: it has no name, and nothing is pruned.
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

/// What is done with a guest.
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
    /// It differs in what cannot be changed.
    Conflict,
}

/// A guest, and what is done with it.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AppliedGuest {
    /// Its name.
    pub name: String,
    /// What is done.
    pub action: GuestAction,
    /// What differs from the description.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<GuestDifference>,
    /// Indexes of the GPUs that a new guest gets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<usize>,
}

/// What a file would change.
#[derive(Debug)]
pub struct Drift {
    /// The guests of the file in its order, then those that are deleted.
    pub guests: Vec<AppliedGuest>,
    /// The missing guests by their number in the file, in the order in which they are made, each
    /// with its place.
    places: Vec<(usize, PlannedPlace)>,
    /// The guests that are deleted.
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
    let mut missing = Vec::new();
    for (number, guest) in wanted.guests.iter().enumerate() {
        let compared = compare(world, at, (guest.name.as_str(), &guest.create))?;
        match compared {
            Some(compared) => {
                guests.push(existing(guest, compared, wanted.set.as_ref(), (&*hypervisor, world))?);
            }
            None => {
                missing.push(number);
                let name = guest.name.to_string();
                let (action, differences) = (GuestAction::Create, Vec::new());
                guests.push(AppliedGuest { name, action, differences, gpus: Vec::new() });
            }
        }
    }
    let gone =
        if wanted.prune { pruned(world, wanted, (&*hypervisor, &rows))? } else { Vec::new() };
    if guests.iter().any(|guest| guest.action == GuestAction::Conflict) {
        // Nothing of the file is done, so no place is needed.
        missing.clear();
    }
    let found = together(world, wanted, (&missing, &gone), &topology)?;
    for (number, placement, _) in &found.places {
        guests[*number].gpus = gpu_indexes(&topology, &placement.devices);
    }
    guests.extend(gone.iter().map(|row| AppliedGuest {
        name: row.name.clone(),
        action: GuestAction::Delete,
        differences: Vec::new(),
        gpus: Vec::new(),
    }));
    let place = |(number, placement, request): (usize, Placement, Request)| {
        let name = wanted.guests[number].name.clone();
        (number, PlannedPlace::of_file(&wanted.path, name, request, placement))
    };
    let places = found.places.into_iter().map(place).collect();
    Ok(Drift { guests, places, gone, is_best: found.is_best })
}

/// What is done with a guest that exists.
fn existing(
    guest: &DescribedGuest,
    compared: Compared,
    set: Option<&String>,
    (hypervisor, world): (&dyn Hypervisor, &World),
) -> Result<AppliedGuest> {
    let Compared { summary, mut differences } = compared;
    let needs_restart = !differences.is_empty();
    let word = |on: bool| if on { "on" } else { "off" }.to_owned();
    if let Some(on) = guest.autostart {
        let is = hypervisor.autostart(&summary.name)?;
        if is != on {
            let (option, is, wanted) = ("autostart".to_owned(), word(is), word(on));
            differences.push(GuestDifference { option, is, wanted, changeable: true });
        }
    }
    if let (Some(set), Some(file)) = (set, applied(world.state(), &summary.uuid)) {
        let is = file.set.unwrap_or_else(|| "none".to_owned());
        if is != *set {
            // The other file would delete it.
            let (option, wanted) = ("set".to_owned(), set.clone());
            differences.push(GuestDifference { option, is, wanted, changeable: true });
        }
    }
    let is_held = needs_restart && summary.state.is_active() && !guest.may_restart;
    let action = match &differences[..] {
        [] => GuestAction::Keep,
        some if some.iter().any(|one| !one.changeable) => GuestAction::Conflict,
        _ if is_held => GuestAction::Pending,
        _ => GuestAction::Change,
    };
    Ok(AppliedGuest { name: summary.name, action, differences, gpus: Vec::new() })
}

/// Guests that an earlier file of this set made and that it no longer has, by the record of their
/// UUID.
fn pruned(
    world: &World,
    wanted: &ApplyRequest,
    (hypervisor, rows): (&dyn Hypervisor, &[DomainSummary]),
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
    Ok(gone)
}

/// The file of a set that made a domain which is still the one that it made; none: none did.
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
        format!("domain `{}`{runs} and the disks that were made for it are deleted", row.name)
    };
    let lines = Some(gone.iter().map(line).collect());
    let what = format!("deleting {} of the set", count(gone.len(), "guest"));
    let question = Question::Agree { lines, question: "delete them?", what };
    let said = session.ask(&question, &[], &[])?;
    question.settle(said, &[])
}

/// Deletes a guest that the file no longer has, if it is still that one.
fn prune(session: &mut Session<'_>, row: &DomainSummary, set: Option<&String>) -> Result<()> {
    let DomainSummary { name, uuid, .. } = row;
    let plan = |world: &World| {
        let hypervisor = &*world.hypervisor()?;
        let now = find(hypervisor, name)?;
        let file = match set.filter(|_| now.uuid == *uuid) {
            Some(set) => of_set(set, &now, hypervisor, world)?,
            None => None,
        };
        if file.is_none() {
            let message = format!("domain `{name}` is another one by now, so it is not deleted");
            let hint = format!("`gpuvm show {}` shows it", word(name));
            return Err(classed(Class::Changed, message, hint));
        }
        delete(world, &Delete { name: name.clone(), keep_data: false })
    };
    session.run(plan).map(drop)
}

/// Looks whether what is to be changed and made can be, before the first of it is done. Changes
/// have to fit beside guests that are deleted; new guests have places without them already. Another
/// number of GPUs of a guest that runs is not looked at: it is stopped for that, and started again.
pub fn foresee(world: &World, wanted: &ApplyRequest, drift: &Drift) -> Result<()> {
    if drift.guests.iter().any(|guest| guest.action == GuestAction::Conflict) {
        return Ok(());
    }
    let rows = world.hypervisor()?.domains()?;
    let runs = |name: &str| rows.iter().any(|row| row.name == name && row.state.is_active());
    for (guest, found) in wanted.guests.iter().zip(&drift.guests) {
        let resized =
            (found.action == GuestAction::Change).then(|| resized(guest, found)).flatten();
        if let Some(resized) = resized.filter(|size| size.gpus.is_none() || !runs(&size.name)) {
            set(world, &resized)?;
        }
    }
    for (number, _) in &drift.places {
        // Not at its place, which may need those that are made before.
        let request = &wanted.guests[*number].create;
        let change = unless_of_room(create(world, request), drift)?;
        if let Some(change) = change.filter(|_| !wanted.accept_data_loss) {
            refuse_losses(&change)?;
        }
    }
    Ok(())
}

/// The plan of a new guest; none: it has no place now, but one without guests that are deleted
/// first.
fn unless_of_room<T>(planned: Result<T>, drift: &Drift) -> Result<Option<T>> {
    let error = match planned {
        Ok(planned) => return Ok(Some(planned)),
        Err(error) => error,
    };
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source());
    let is_of_room = { causes }.any(|cause| cause.is::<PlanError>() || cause.is::<NoPlace>());
    if is_of_room && !drift.gone.is_empty() { Ok(None) } else { Err(error) }
}

/// Places of missing guests.
struct Together {
    /// In the order in which they are made: the guest, its place, and what was requested.
    places: Vec<(usize, Placement, Request)>,
    /// Whether there are no better ones.
    is_best: bool,
}

/// Finds places for the missing guests together, without those that are deleted before.
fn together(
    world: &World,
    wanted: &ApplyRequest,
    (missing, gone): (&[usize], &[DomainSummary]),
    topology: &Topology,
) -> Result<Together> {
    if missing.is_empty() {
        return Ok(Together { places: Vec::new(), is_best: true });
    }
    let mut requests = Vec::new();
    for &number in missing {
        requests.push(request_of(&wanted.guests[number].create, topology)?);
    }
    let has_gpus = requests.iter().any(|request| request.gpus.number() > 0);
    let mut held = taken_for_new(world, &Taken::default(), (topology, has_gpus))?;
    held.domains.retain(|domain| gone.iter().all(|row| row.name != domain.domain));
    let name = |number: &usize| wanted.guests[*number].name.as_str();
    let guests: Vec<Wanted<'_>> = missing
        .iter()
        .zip(&requests)
        .map(|(number, request)| Wanted { name: name(number), request })
        .collect();
    let found = joint(topology, &held, &guests).map_err(|refused| no_place(&refused, &guests))?;
    let Joint { placements, order, is_best, .. } = found;
    let place = |at: usize| {
        let placement = placements[at].clone();
        let placement = match wanted.guests[missing[at]].create.guest.virt {
            VirtType::Kvm => placement,
            VirtType::Qemu => placement.emulated(),
        };
        (missing[at], placement, requests[at].clone())
    };
    Ok(Together { places: order.into_iter().map(place).collect(), is_best })
}

/// What a guest requests of the planner.
fn request_of(create: &CreateRequest, topology: &Topology) -> Result<Request> {
    let mut request = with_template(&create.guest, create.guest.request.clone(), topology)?;
    if create.reserve_pages && request.huge_pages == HugePages::Auto {
        let page = pages::size_to_reserve(request.huge_pages, topology)?;
        request.huge_pages = HugePages::Size(page);
    }
    Ok(request)
}

/// The error that a guest has no place beside the others of the file.
fn no_place(refused: &NoJoint, guests: &[Wanted<'_>]) -> Error {
    let name = guests[refused.guest].name;
    let placed: Vec<&str> = refused.placed.iter().map(|&at| guests[at].name).collect();
    let beside = match &placed[..] {
        [] => "beside the domains of this host".to_owned(),
        names => {
            format!("beside {} of the file: {}", count(names.len(), "guest"), names.join(", "))
        }
    };
    let doubt = if refused.is_certain { "" } else { " (not every set of GPUs was tried)" };
    let what = format!("guest `{name}` has no place {beside}{doubt}");
    let no_place = NoPlace {
        error: refused.error.clone(),
        request: Box::new(guests[refused.guest].request.clone()),
        nearest: Vec::new(),
    };
    let refusal: Refusal = DescribedError::NoPlace { what }
        .refusal("`gpuvm capacity` shows what fits; request less, or leave a guest out");
    Error::from(no_place).around(refusal)
}

/// Refuses a file with guests that differ in what cannot be changed.
fn refuse_conflicts(drift: &Drift) -> Result<()> {
    let conflict = drift.guests.iter().find(|guest| guest.action == GuestAction::Conflict);
    let Some(AppliedGuest { name, differences, .. }) = conflict else { return Ok(()) };
    let fixed = differences.iter().filter(|difference| !difference.changeable);
    let what: Vec<String> = fixed.map(ToString::to_string).collect();
    let error = DescribedError::Conflict { name: name.clone(), what: what.join("; ") };
    let name = word(name);
    Err(error.hint(format!(
        "`gpuvm get {name}` prints what it is; once it is deleted, it is made anew as described"
    )))
}

/// Applies a file: deletes, then changes, then makes guests. Nothing is done unless all of it can
/// be planned.
pub fn apply(session: &mut Session<'_>, world: &World, wanted: &ApplyRequest) -> Result<Drift> {
    session.refuse_unfinished()?;
    let mut drift = look(world, wanted)?;
    refuse_conflicts(&drift)?;
    foresee(world, wanted, &drift)?;
    if !wanted.yes {
        agree_to_delete(session, &drift.gone)?;
    }
    for row in &drift.gone {
        prune(session, row, wanted.set.as_ref())?;
        world.progress(&format!("domain `{}` is deleted", row.name));
    }
    let mut is_changed = !drift.gone.is_empty();
    let mut in_order: Vec<_> = wanted.guests.iter().zip(&drift.guests).collect();
    // Who gives GPUs back comes before who gets more.
    in_order.sort_by_key(|(guest, found)| !gives_back(guest, found));
    for (guest, found) in in_order {
        if matches!(found.action, GuestAction::Change | GuestAction::Pending) {
            join(session, (guest, found), wanted.set.as_ref())?;
        }
        match found.action {
            GuestAction::Change => {
                change(session, world, (guest, found), &wanted.program)?;
                is_changed = true;
            }
            // Its size waits for a restart, its start with the host does not.
            GuestAction::Pending => start_with_host(session, (guest, found), &wanted.program)?,
            _ => {}
        }
    }
    if is_changed && !drift.places.is_empty() {
        // Others hold other things by now.
        let again = look(world, &ApplyRequest { prune: false, ..wanted.clone() })?;
        drift.places = again.places;
    }
    let places = std::mem::take(&mut drift.places);
    for (number, place) in places {
        let guest = &wanted.guests[number];
        make(session, world, (guest, place), wanted)?;
    }
    Ok(drift)
}

/// Changes a guest that exists.
fn change(
    session: &mut Session<'_>,
    world: &World,
    (guest, found): (&DescribedGuest, &AppliedGuest),
    program: &str,
) -> Result<()> {
    let name = guest.name.as_str();
    if let Some(resized) = resized(guest, found) {
        resize(session, &resized)?;
    }
    start_with_host(session, (guest, found), program)?;
    let what: Vec<String> = found.differences.iter().map(ToString::to_string).collect();
    world.progress(&format!("domain `{name}` is changed: {}", what.join("; ")));
    Ok(())
}

/// Whether a guest gets fewer GPUs than it has.
fn gives_back(guest: &DescribedGuest, found: &AppliedGuest) -> bool {
    let gpus = found.differences.iter().find(|one| one.option == "gpus");
    let is = gpus.and_then(|one| one.is.parse::<u32>().ok());
    is.is_some_and(|is| is > guest.create.guest.request.gpus.number())
}

/// The size that a guest gets; none: it has it.
fn resized(guest: &DescribedGuest, found: &AppliedGuest) -> Option<SetRequest> {
    let differs = |option: &str| found.differences.iter().any(|one| one.option == option);
    let request = &guest.create.guest.request;
    let sizes = ["gpus", "vcpus", "memory", "huge-pages"];
    sizes.into_iter().any(differs).then(|| SetRequest {
        name: guest.name.to_string(),
        vcpus: request.vcpus.filter(|_| differs("vcpus")),
        memory: request.memory_kib.filter(|_| differs("memory")),
        gpus: differs("gpus").then(|| request.gpus.number()),
        accept_shared_fabric: guest.create.accept_shared_fabric,
        huge_pages: match request.huge_pages {
            HugePages::Off if differs("huge-pages") => Item::Off,
            HugePages::Size(page) if differs("huge-pages") => Item::To(page),
            _ => Item::Keep,
        },
        allow_remote: request.allow.remote,
        reserve_pages: false,
    })
}

/// Gives a guest another size; one that runs has it afterwards.
fn resize(session: &mut Session<'_>, wanted: &SetRequest) -> Result<()> {
    let name = &wanted.name;
    let rows = session.hypervisor()?.domains()?;
    let down = Down { force: false, wait_s: WAIT_S };
    if !rows.iter().any(|row| row.name == *name && row.state.is_active()) {
        return session.run(|world| set(world, wanted)).map(drop);
    }
    if wanted.gpus.is_none() {
        session.run(|world| set(world, wanted))?;
        return restart::run(session, name, down).map(drop);
    }
    // GPUs come and go only while it is off; it runs again whether it got them or not.
    session.run(|world| stop(world, name, down))?;
    let changed = session.run(|world| set(world, wanted));
    let again = Start { name: name.clone(), reserve_pages: false, dry_run: false };
    session.run(|world| start(world, &again))?;
    changed.map(drop)
}

/// Has a guest that exists start with the host, or not, if that differs.
fn start_with_host(
    session: &mut Session<'_>,
    (guest, found): (&DescribedGuest, &AppliedGuest),
    program: &str,
) -> Result<()> {
    let differs = found.differences.iter().any(|one| one.option == "autostart");
    match guest.autostart.filter(|_| differs) {
        Some(on) => started(session, (guest.name.as_str(), on), program),
        None => Ok(()),
    }
}

/// Records that a guest is of this set, so that the file of another one does not delete it.
fn join(
    session: &mut Session<'_>,
    (guest, found): (&DescribedGuest, &AppliedGuest),
    set: Option<&String>,
) -> Result<()> {
    let is_of_other = found.differences.iter().any(|one| one.option == "set");
    let Some(set) = set.filter(|_| is_of_other) else { return Ok(()) };
    let name = guest.name.as_str();
    let plan = |world: &World| -> Result<Change> {
        let row = find(&*world.hypervisor()?, name)?;
        let steps = set_set(world.state(), &row.uuid, set)?.into_iter().collect();
        Ok(Change::new("apply", name, steps, ()))
    };
    session.run(plan).map(drop)
}

/// Has a guest start with the host, or not.
fn started(session: &mut Session<'_>, (name, on): (&str, bool), program: &str) -> Result<()> {
    let wanted = Autostart { name: name.to_owned(), on, program: program.to_owned() };
    session.run(|world| autostart(world, &wanted)).map(drop)
}

/// A request for a missing guest at its place.
fn request_at(guest: &DescribedGuest, place: PlannedPlace) -> Result<CreateRequest> {
    let mut request = guest.create.clone();
    request.guest.place = Some(place);
    request.uuid = Some(random_uuid()?);
    Ok(request)
}

/// Refuses drives with data on them.
fn refuse_losses<T>(change: &Change<T>) -> Result<()> {
    if change.losses.is_empty() {
        return Ok(());
    }
    let question = Question::Losses { name: change.subject.clone() };
    question.settle(Answer::Nobody, &change.losses)
}

/// Makes a missing guest at its place.
fn make(
    session: &mut Session<'_>,
    world: &World,
    (guest, place): (&DescribedGuest, PlannedPlace),
    wanted: &ApplyRequest,
) -> Result<()> {
    let request = request_at(guest, place)?;
    if !wanted.accept_data_loss {
        refuse_losses(&session.look(|world| create(world, &request))?)?;
    }
    create::run(session, world, &request, Waits { address_s: 0, seed_s: None })?;
    if guest.autostart == Some(true) {
        started(session, (guest.name.as_str(), true), &wanted.program)?;
    }
    world.progress(&format!("domain `{}` is made", guest.name));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hypervisor::DomainState;
    use crate::session::Confirm;
    use crate::stage::{Stage, UUID, manner};

    #[test]
    fn a_domain_that_is_another_by_now_is_not_deleted() {
        let stage = Stage::who_says(Answer::Yes);
        stage.fake.put("a", UUID, false);
        let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
        let set = "training".to_owned();
        // It has the UUID, but no file made it; the one that was listed is gone.
        for uuid in [UUID, "11111111-2222-4333-8444-000000000000"] {
            let (name, uuid) = ("a".to_owned(), uuid.to_owned());
            let row = DomainSummary { name, uuid, state: DomainState::ShutOff, persistent: true };
            let error = prune(&mut session, &row, Some(&set)).unwrap_err();
            assert!(error.to_string().contains("is another one by now"), "{error}");
        }
        assert_eq!(stage.fake.runs("a"), Some(false), "it is deleted");
    }
}
