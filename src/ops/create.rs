//! `create`: defines and starts a planned guest, and waits for its address. It is created
//! completely or not at all.

mod creation_options;
mod machine;
mod prepare;
#[cfg(test)]
mod tests;

use crate::address::{Wait, Waited};
use crate::apply::{DomainStep, Step, Transaction};
use crate::change::{Change, Part};
use crate::domain::DomainXml;
use crate::domain::view::View;
use crate::drop_seed::{self, FirstBoot, wait_for};
use crate::error::{Coded, Result};
use crate::guest::{GuestRequest, log_hint, refuse_name_taken};
use crate::history::guest::{AppliedFile, SlurmJob};
use crate::hypervisor::machine::is_plain;
use crate::hypervisor::{Hypervisor, XmlOf};
use crate::network::GuestAddress;
use crate::pages;
use crate::reporter::Question;
use crate::session::{Running, Session};
use crate::shell::word;
use crate::start::{Start, start};
use crate::storage::{SeedRequest, StorageRequest};
use crate::world::World;
pub(crate) use creation_options::{CreationOptions, creation_options};
use prepare::{Prepared, prepare};
use serde::Serialize;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The reason a guest is not created.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "create-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum CreateError {
    /// The guest would share an NVLink fabric with other guests.
    #[error("{why}")]
    SharedFabric { why: String },
    /// The guest is to run by hardware virtualization, and the machine has no KVM, or libvirt
    /// cannot use it.
    #[error("{what}")]
    NoKvm { what: String },
    /// The machine has no QEMU.
    #[error("{what}")]
    NoQemu { what: String },
    /// The machine has no UEFI firmware for guests.
    #[error("{what}")]
    NoFirmware { what: String },
    /// A domain of this name exists and is another guest than the requested one.
    #[error("domain `{name}` exists and differs: {what}")]
    Differs { name: String, what: String },
}

impl Coded for CreateError {}

/// A request to create a guest.
#[derive(Debug, Clone)]
pub struct CreateRequest {
    /// The guest.
    pub guest: GuestRequest,
    /// Its disks.
    pub storage: StorageRequest,
    /// Its cloud-init seed.
    pub seed: SeedRequest,
    /// Its UUID, if its template has none: the same for all plans, since undoing and later cleanup
    /// identify it by the UUID. `None` if libvirt chooses one, for previews.
    pub uuid: Option<String>,
    /// Whether it gets a NIC on the network `private-net`, too.
    pub private_net: bool,
    /// Whether it gets no NIC at all, not even those of its template.
    pub without_nics: bool,
    /// Whether missing huge pages are reserved.
    pub reserve_pages: bool,
    /// Whether other guests may reach its NVLinks.
    pub accept_shared_fabric: bool,
    /// Whether it is started.
    pub starts: bool,
    /// How a file describes it, which is remembered; `None` if no file does.
    pub applied: Option<AppliedFile>,
    /// The job of Slurm that it is for, which is remembered; `None` if it is for none.
    pub job: Option<SlurmJob>,
}

/// The result of `create`.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Created {
    /// Full name.
    pub name: String,
    /// Whether it was started.
    pub started: bool,
    /// MAC address of the NIC that has the address; of the first NIC if none has.
    pub mac: Option<String>,
    /// Address of its first NIC that has one; none if there was none in time.
    pub ip: Option<IpAddr>,
    /// The user that its seed makes; `None` for that of its image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Whether its seed was removed; `None` if not requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed_dropped: Option<bool>,
    /// The signal that ended the wait for its address; `None` if none came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
}

/// The result of a wait for an address.
#[derive(Debug, Default)]
struct Found {
    /// The address.
    address: Option<GuestAddress>,
    /// The signal that ended the wait.
    signal: Option<String>,
}

impl Found {
    /// The MAC address and the address of the NIC that has one; of the first of these if none has.
    fn of(&self, macs: Vec<String>) -> (Option<String>, Option<IpAddr>) {
        match &self.address {
            Some(address) => (Some(address.mac.clone()), Some(address.ip)),
            None => (macs.into_iter().next(), None),
        }
    }
}

/// Why a wait ends.
enum Stopped {
    /// A signal.
    Signal(String),
}

/// Time limits of waiting, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// For its address.
    pub address_s: u64,
    /// For reading its seed, which is removed then, counted from its start; `None` if the seed
    /// stays.
    pub seed_s: Option<u64>,
}

/// Refuses a guest on a machine whose libvirt does not answer, with all else that stops it: nothing
/// else asks for that once libvirt is missing.
pub fn refuse_without_libvirt(world: &World, wanted: &CreateRequest) -> Result<()> {
    // Another machine is asked once the request has been read.
    if !is_plain(&world.settings.connect) {
        return Ok(());
    }
    prepare::opened(world, wanted).map(drop)
}

/// Plans the change that makes and starts a guest; its data is the definition.
pub fn create(world: &World, wanted: &CreateRequest) -> Result<Change<DomainXml>> {
    let Prepared { name, xml, steps, losses } = prepare(world, wanted)?;
    let mut change = Change::new("create", &name, Vec::new(), xml.clone());
    change.parts.clear();
    let is_here = !world.is_recorded() && world.has_guests_here()?;
    if is_here && !xml.held(false)?.devices.is_empty() {
        change.parts.push(Part::Reports);
    }
    let start = Step::Domain(DomainStep::Start { name: name.clone(), uuid: xml.uuid() });
    change.parts.extend([Part::Steps(steps), Part::ReadBack { name: name.clone(), planned: xml }]);
    if wanted.starts {
        change.parts.extend([Part::Steps(vec![start]), Part::Complete]);
    }
    change.question = (!losses.is_empty()).then_some(Question::Losses { name });
    change.losses = losses;
    Ok(change)
}

/// Makes a guest, and waits as requested. A signal undoes everything until the guest is started,
/// and ends the wait for its address.
pub fn run(
    session: &mut Session<'_>,
    world: &World,
    wanted: &CreateRequest,
    waits: Waits,
) -> Result<Created> {
    make(session, world, wanted, waits, |world| create(world, wanted))
}

/// Makes a guest by a plan, and waits as requested.
pub(crate) fn make(
    session: &mut Session<'_>,
    world: &World,
    wanted: &CreateRequest,
    waits: Waits,
    plan: impl Fn(&World) -> Result<Change<DomainXml>>,
) -> Result<Created> {
    // Checked before any call to the hypervisor, which may be remote.
    if wanted.reserve_pages {
        pages::refuse_elsewhere("create", world)?;
    }
    let starts = wanted.starts;
    let (done, waited) = session.run_and(plan, |running, change| {
        let name = &change.subject;
        let macs = defined_macs(running.hypervisor, name);
        let began = Instant::now();
        let mut found = if starts {
            wait(name, &macs, waits.address_s, running, world)?
        } else {
            Found::default()
        };
        let (mac, ip) = found.of(macs);
        let seed = match waits.seed_s.filter(|_| found.signal.is_none()) {
            // The time left after the wait for its address.
            Some(seconds) => {
                let rest = Duration::from_secs(seconds).saturating_sub(began.elapsed());
                running.transaction.go_on()?;
                running.keep();
                let transaction = &mut *running.transaction;
                match wait_for(running.hypervisor, name, rest, || unless_stopped(transaction)) {
                    Ok(ended) => Some((seconds, ended)),
                    Err(Stopped::Signal(signal)) => {
                        world.warning(&format!(
                            "the seed of `{name}` stays: `gpuvm seed drop {}` removes it later",
                            word(name)
                        ));
                        found.signal = Some(signal);
                        None
                    }
                }
            }
            None => None,
        };
        Ok((mac, ip, seed, found.signal))
    })?;
    let (mac, ip, seed, signal) = waited.unwrap_or_default();
    let name = done.change.subject;
    let seed_dropped =
        seed.map(|(seconds, ended)| drop_seed(session, world, &name, seconds, ended));
    let user = user_of(world, &name);
    Ok(Created { name, started: starts, mac, ip, user, seed_dropped, signal })
}

/// The user that logs in to a guest, as its record has it.
fn user_of(world: &World, name: &str) -> Option<String> {
    let xml = world.hypervisor().ok()?.xml(name, XmlOf::Inactive).ok()?;
    DomainXml::parse(&xml).ok()?.login_user()
}

/// Starts a guest that exists as requested and is off, and waits for its address as for that of a
/// new one.
pub fn start_existing(
    session: &mut Session<'_>,
    world: &World,
    name: &str,
    wanted: &CreateRequest,
    waits: Waits,
) -> Result<Created> {
    let dry_run = session.is_preview();
    let reserve_pages = wanted.reserve_pages;
    let wanted = Start { name: name.to_owned(), reserve_pages, p2p: None, dry_run };
    let (_, waited) = session.run_and(
        |world| start(world, &wanted),
        |running, _| -> Result<_> {
            let macs = defined_macs(running.hypervisor, name);
            let found = wait(name, &macs, waits.address_s, running, world)?;
            let (mac, ip) = found.of(macs);
            Ok((mac, ip, found.signal))
        },
    )?;
    let (mac, ip, signal) = waited.unwrap_or_default();
    let (name, user) = (name.to_owned(), user_of(world, name));
    Ok(Created { name, started: !dry_run, mac, ip, user, seed_dropped: None, signal })
}

/// Refuses a name that a domain has, before anything is made.
fn refuse_existing(hypervisor: &dyn Hypervisor, name: &str) -> Result<()> {
    refuse_name_taken(hypervisor, name, (format!("create domain `{name}`"), "--name"))
}

/// The MAC addresses of a definition's NICs, in the guest's order.
fn macs(xml: &DomainXml) -> Vec<String> {
    let nics = View::of(xml, None).map(|view| view.nics).unwrap_or_default();
    nics.into_iter().map(|nic| nic.mac).filter(|mac| !mac.is_empty()).collect()
}

/// The MAC addresses of a guest's NICs, as the hypervisor defined it.
fn defined_macs(hypervisor: &dyn Hypervisor, name: &str) -> Vec<String> {
    let defined = hypervisor.xml(name, XmlOf::Inactive).ok();
    let defined = defined.and_then(|text| DomainXml::parse(&text).ok());
    defined.map(|xml| macs(&xml)).unwrap_or_default()
}

/// Waits for an address of a guest's NICs, that of the first one if it has one.
fn wait(
    name: &str,
    macs: &[String],
    seconds: u64,
    running: &mut Running<'_, '_>,
    world: &World,
) -> Result<Found> {
    // A guest that has just been started has none, and the question takes some time.
    if macs.is_empty() || seconds == 0 {
        return Ok(Found::default());
    }
    // A signal until now undoes all of it; the guest runs from now on, as after the time limit.
    running.transaction.go_on()?;
    running.keep();
    world.progress(&format!("waiting up to {seconds} s for an address of `{name}`"));
    let wait = Wait { name, macs, wait: Duration::from_secs(seconds), each: false };
    let transaction = &mut *running.transaction;
    let waited = match wait.run(running.hypervisor, || unless_stopped(transaction)) {
        Ok((waited, _)) => waited,
        Err(Stopped::Signal(signal)) => {
            world.warning(&format!(
                "`{name}` runs on: `gpuvm ip {name} --wait` waits for its address, `gpuvm console \
                 {name}` shows what it does, `gpuvm delete {name}` removes it",
                name = word(name)
            ));
            return Ok(Found { address: None, signal: Some(signal) });
        }
    };
    match waited {
        Waited::Found(address) => {
            let first = &macs[0];
            if address.mac != *first {
                world.warning(&format!(
                    "the first NIC of `{name}`, {first}, has no address; {} has one",
                    address.mac
                ));
            }
            return Ok(Found { address: Some(address), signal: None });
        }
        Waited::Claimed(GuestAddress { ip, .. }) => world.warning(&format!(
            "the agent of `{name}` reports the address {ip}, which this host cannot confirm; if you \
             know that it is this guest's: `gpuvm ssh {} --address {ip}`",
            word(name)
        )),
        Waited::Ended => {
            let log = log_hint(running.hypervisor, name).map(|log| format!("; {log}"));
            let log = log.unwrap_or_default();
            world.warning(&format!("`{name}` has ended before it had an address{log}"));
        }
        Waited::Over => world.warning(&format!(
            "`{name}` has no address after {seconds} s; it runs on: `gpuvm ip {name} --wait` waits \
             longer, `gpuvm console {name}` shows what it does",
            name = word(name)
        )),
    }
    Ok(Found::default())
}

/// Ends a wait by a signal, which undoes nothing.
fn unless_stopped(transaction: &mut Transaction<'_>) -> Result<(), Stopped> {
    transaction.interrupted().map_or(Ok(()), |signal| Err(Stopped::Signal(signal)))
}

/// Removes the seed of a guest that has read it; returns whether it did. A failure is only a
/// warning: the guest is otherwise as requested.
fn drop_seed(
    session: &mut Session<'_>,
    world: &World,
    name: &str,
    seconds: u64,
    ended: FirstBoot,
) -> bool {
    let stays = |why: &str| {
        let later = format!("`gpuvm seed drop {name}` removes it later", name = word(name));
        world.warning(&format!("the seed of `{name}` stays: {why}; {later}"));
        false
    };
    match ended {
        FirstBoot::Done => {}
        FirstBoot::Over(said) => {
            return stays(&format!("cloud-init is not done after {seconds} s ({said})"));
        }
        FirstBoot::Ended => return stays("the guest has ended"),
        FirstBoot::Unknown(why) => {
            return stays(&format!("the agent may not tell whether cloud-init is done ({why})"));
        }
    }
    drop_seed::run(session, world, name).unwrap_or_else(|error| stays(&error.to_string()))
}
