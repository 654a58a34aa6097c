//! The switch ports of a guest: set before it starts, if it has the option, and restored once it is
//! off or gone.

use crate::apply::Step;
use crate::apply::p2p::{P2pStep, owners};
use crate::discover::process;
use crate::domain::DomainXml;
use crate::error::{Class, Error, Result, classed, coded};
use crate::fsroot::FsRoot;
use crate::hypervisor::machine::{Machine, command_there};
use crate::placement::Occupancy;
use crate::request::P2pWish;
use crate::shell::word;
use crate::topology::{DirectPorts, DirectRefusal, OtherFunction, Topology};
use crate::world::World;
use gpuvm_core::bdf::Bdf;
use std::collections::{BTreeMap, BTreeSet};

/// Guests by port, as gpuvm has recorded them.
pub(super) type Owners = BTreeMap<Bdf, BTreeSet<String>>;

/// The verb that starts a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Starting {
    /// It is made; the lock is held.
    Create,
    /// It is off; the lock is held.
    Start,
    /// It may run; others start and stop guests while it shuts down.
    Restart,
}

impl Starting {
    /// Whether a guest that is off when the steps are planned still is when they are done: then its
    /// ports can be restored by the way.
    fn holds_lock(self) -> bool {
        match self {
            Starting::Create | Starting::Start => true,
            Starting::Restart => false,
        }
    }
}

/// Returns the steps before a guest starts. `wish`: for this start; `None`: as recorded of it.
/// `held`: the devices that domains hold; `None`: they are read. Ports that it needed before, and
/// does not any more, are restored, and those of guests that went off without gpuvm.
pub fn to_start(
    xml: &DomainXml,
    wish: Option<P2pWish>,
    verb: Starting,
    held: Option<&Occupancy>,
    world: &World,
) -> Result<Vec<Step>> {
    // A record by a later version is refused elsewhere.
    let recorded = || xml.record().ok().flatten().map(|record| record.request.p2p);
    let wish = wish.or_else(recorded).unwrap_or_default();
    if world.is_test() && !world.is_recorded() {
        return Ok(Vec::new());
    }
    let uuid = xml.uuid().unwrap_or_default();
    let had = recorded_owners(world)?;
    let mut all = Vec::new();
    if verb.holds_lock() && !had.is_empty() {
        let active = world.hypervisor()?.domains()?.into_iter().filter(|row| row.state.is_active());
        let active = active.map(|row| row.uuid).collect();
        for other in ended(&active, &processes()?, &had).iter().filter(|other| **other != uuid) {
            all.extend(cleared(other, &had, |_| true));
        }
    }
    let mut found = DirectPorts::default();
    if wish == P2pWish::Auto {
        refuse_elsewhere(&xml.name(), world)?;
        let held = held.map_or_else(|| world.occupancy(false), |held| Ok(held.clone()))?;
        found = ports(xml, &world.topology()?, &held)
            .map_err(|why| refused(&xml.name(), &why, verb))?;
        note(&xml.name(), &found, world);
    }
    all.extend(steps(&uuid, &found, &had));
    Ok(all)
}

/// The steps of a guest with these ports: unneeded ones are restored, the others set.
fn steps(uuid: &str, found: &DirectPorts, had: &Owners) -> Vec<Step> {
    let is_needed = |port: Bdf| found.ports.iter().any(|needed| needed.at == port);
    let mut steps = cleared(uuid, had, |port| !is_needed(port));
    let guest = || uuid.to_owned();
    steps.extend(found.ports.iter().map(|port| {
        Step::from(P2pStep::SetDirect { port: port.at, guest: guest(), was: port.ctl })
    }));
    steps
}

/// The steps that restore ports of a guest.
pub(super) fn cleared(uuid: &str, had: &Owners, which: impl Fn(Bdf) -> bool) -> Vec<Step> {
    let own = had.iter().filter(|(port, guests)| guests.contains(uuid) && which(**port));
    own.map(|(port, _)| Step::from(P2pStep::ClearDirect { port: *port, guest: uuid.to_owned() }))
        .collect()
}

/// Returns the steps once a guest is off or gone.
pub fn once_off(uuid: &str, world: &World) -> Result<Vec<Step>> {
    Ok(cleared(uuid, &recorded_owners(world)?, |_| true))
}

/// Returns the steps after a running guest has lost functions: ports that it does not need any
/// more.
pub fn once_taken(after: &DomainXml, world: &World) -> Result<Vec<Step>> {
    let uuid = after.uuid().unwrap_or_default();
    let had = recorded_owners(world)?;
    if !had.values().any(|guests| guests.contains(&uuid)) {
        return Ok(Vec::new());
    }
    // Ports that must not be set any more stay until it is off.
    let Ok(found) = ports(after, &world.topology()?, &world.occupancy(false)?) else {
        return Ok(Vec::new());
    };
    let is_needed = |port: Bdf| found.ports.iter().any(|needed| needed.at == port);
    Ok(cleared(&uuid, &had, |port| !is_needed(port)))
}

/// The recorded guests that are off or gone: libvirt runs none of this UUID, nor does this machine
/// by `processes`. A guest of another libvirt (a session, an embedded one) is not known to this one.
pub(super) fn ended(
    active: &BTreeSet<String>,
    processes: &BTreeSet<String>,
    had: &Owners,
) -> BTreeSet<String> {
    let runs = |uuid: &str| {
        active.contains(uuid) || processes.contains(uuid.to_ascii_lowercase().as_str())
    };
    had.values().flatten().filter(|guest| !runs(guest)).cloned().collect()
}

/// The UUIDs of guests that processes of this machine name, proven or not, in lower case: where one
/// lies, a bit only stays.
pub(super) fn processes() -> Result<BTreeSet<String>> {
    let claims = process::claims(&FsRoot::live()?)?;
    Ok(claims.into_iter().map(|claim| claim.uuid).collect())
}

/// The records of ports of this machine.
fn recorded_owners(world: &World) -> Result<Owners> {
    if world.is_recorded() || !world.has_guests_here()? {
        return Ok(Owners::new());
    }
    Ok(owners(&FsRoot::live()?))
}

/// The ports of a guest, or why one must not be set.
pub(super) fn ports(
    xml: &DomainXml,
    topology: &Topology,
    held: &Occupancy,
) -> std::result::Result<DirectPorts, DirectRefusal> {
    // A definition whose functions cannot be read is refused by the claim of these.
    let (name, devices) = (xml.name(), xml.held(false).unwrap_or_default().devices);
    let others = held.domains.iter().filter(|held| held.domain != name);
    let others = others.flat_map(|held| {
        held.devices
            .iter()
            .map(move |bdf| OtherFunction { function: *bdf, domain: held.domain.clone() })
    });
    // A function that two guests have is of the one that runs.
    let others: Vec<OtherFunction> =
        others.filter(|other| !devices.contains(&other.function)).collect();
    topology.direct_ports(&devices, &others)
}

/// The refusal of a port, with the remedy and the way without it.
fn refused(name: &str, why: &DirectRefusal, verb: Starting) -> Error {
    let (not, without) = match verb {
        Starting::Create => ("created", "--p2p off creates it".to_owned()),
        Starting::Start | Starting::Restart => {
            ("started", format!("`gpuvm start {} --p2p off` starts it", word(name)))
        }
    };
    let message = format!("domain `{name}` is not {not} with --p2p auto: {why}");
    let with = if why.is_rejecting() {
        ", but that port rejects its transfers all the same"
    } else {
        " with transfers over the root complex"
    };
    let hint = format!("{}; {without}{with}", why.advice());
    coded(why.into(), message, hint)
}

/// Says why fewer ports are set than the option may promise.
fn note(name: &str, found: &DirectPorts, world: &World) {
    if found.is_ats_off {
        world.note("`pci=noats` turns ATS off, so --p2p auto sets no port");
    }
    for function in &found.without_ats {
        world.note(&format!(
            "{function} of `{name}` has no ATS, so its transfers go over the root complex; \
             `gpuvm host p2p` shows them"
        ));
    }
    if *found == DirectPorts::default() {
        world.note(&format!(
            "no GPU and NIC of `{name}` meet below a PCIe switch: --p2p auto sets no port"
        ));
    }
}

/// Refuses ports of another machine, which only the gpuvm there can set.
fn refuse_elsewhere(name: &str, world: &World) -> Result<()> {
    if world.is_recorded() {
        return Ok(());
    }
    let Machine::Elsewhere { host } = world.machine()? else { return Ok(()) };
    let message = format!("--p2p auto of domain `{name}` sets ports of machine `{host}`");
    let hint = format!("`{}`", command_there(&host, &format!("start {} --p2p auto", word(name))));
    Err(classed(Class::OtherMachine, message, hint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuvm_core::topology::DirectPort;

    #[test]
    fn no_way_is_promised_where_a_port_rejects_transfers() {
        let port = "0000:22:07.0".parse::<Bdf>().unwrap();
        let hint = |why: DirectRefusal| {
            let error = refused("a", &why, Starting::Create);
            error.refusal().unwrap().hint.clone()
        };
        let blocked = hint(DirectRefusal::TranslationBlocked { port });
        assert!(blocked.starts_with("`setpci -s 0000:22:07.0 ECAP_ACS+6.w=00:02`"), "{blocked}");
        assert!(
            blocked.ends_with(
                "--p2p off creates it, but that port rejects its transfers all the same"
            )
        );
        let without = hint(DirectRefusal::DtUnsupported { port });
        assert!(without.ends_with("--p2p off creates it with transfers over the root complex"));
    }

    #[test]
    fn ports_of_guests_that_went_off_are_restored_where_none_starts_meanwhile() {
        let holds = |verb: Starting| verb.holds_lock();
        assert!(holds(Starting::Create) && holds(Starting::Start) && !holds(Starting::Restart));
    }

    #[test]
    fn ports_that_are_needed_are_set_and_former_ones_restored() {
        let port = |text: &str| text.parse::<Bdf>().unwrap();
        let (a, b) = (port("0000:22:07.0"), port("0000:22:08.0"));
        let had = |port: Bdf, guests: &[&str]| -> Owners {
            [(port, guests.iter().map(|&guest| guest.to_owned()).collect())].into()
        };
        let found =
            DirectPorts { ports: vec![DirectPort { at: a, ctl: 0x1d }], ..DirectPorts::default() };
        let said = |steps: Vec<Step>| -> Vec<String> {
            steps.iter().map(|step| step.to_string().split(',').next().unwrap().into()).collect()
        };
        assert_eq!(said(steps("x", &found, &Owners::new())), [format!("set DT at {a}")]);
        // A reset may have cleared it since.
        assert_eq!(said(steps("x", &found, &had(a, &["x"]))), [format!("set DT at {a}")]);
        let moved = said(steps("x", &found, &had(b, &["x", "y"])));
        assert_eq!(moved, [format!("clear DT at {b}"), format!("set DT at {a}")]);
        assert_eq!(said(cleared("x", &had(b, &["y"]), |_| true)), [""; 0]);
    }
}
