//! `network create`: the network that results from a request, given this host and the other
//! networks, and the losses of guests and the host.

use super::guests::{Guests, effects_on_guests};
use super::{Answered, NetworkError, answered, host, read};
use crate::apply::nic::NicStep;
use crate::apply::{HostStep, NetworkStep, Step};
use crate::change::{Change, Hold};
use crate::error::{Coded as _, Error, Refusal, Result, usage};
use crate::history::network::{directory, remember_before};
use crate::hypervisor::network::NetworkState;
use crate::network::host::HostNetwork;
use crate::network::{
    Card, Dhcp, FixedAddress, Kind, Mode, Network, Planned, Problem, Range, Refused, Request,
    Static, Who, known, plan,
};
use crate::reporter::Question;
use crate::session::Session;
use crate::shell::word;
use crate::sriov::{Functions, set_functions};
use crate::topology::{PciDevice, Sriov};
use crate::world::World;

/// A network to be created.
#[derive(Debug, Clone)]
pub struct NewNetwork {
    /// Its name.
    pub name: String,
    /// Its kind; `None` if implied by its name.
    pub kind: Option<Kind>,
    /// The mode of macvtap; `None` for the default of the kind.
    pub mode: Option<Mode>,
    /// The host's NIC.
    pub nic: Option<Card>,
    /// The host's bridge, or the name of the one that libvirt creates.
    pub bridge: Option<String>,
    /// Its address range; `None` for a free one.
    pub range: Option<Range>,
    /// The range of DHCP; `None` for the default.
    pub dhcp: Option<Dhcp>,
    /// Fixed addresses of guests.
    pub statics: Vec<FixedAddress>,
    /// Largest packet, in bytes; `None` for libvirt's default.
    pub mtu: Option<u32>,
    /// Number of virtual functions of the card; `None` to leave it.
    pub vfs: Option<u32>,
    /// The program that creates them at boot.
    pub program: Option<String>,
    /// Whether an existing one of this name is replaced.
    pub replace: bool,
    /// Whether it starts with the hypervisor.
    pub autostart: bool,
    /// Whether it starts now.
    pub start: bool,
}

/// The plan of a network.
#[derive(Debug)]
pub struct NetworkPlan {
    /// The network.
    pub network: Network,
    /// Notes, which become the warnings of the change.
    pub notes: Vec<String>,
    /// Its current definition; `None` if it does not exist.
    pub before: Option<String>,
    /// The current network, parsed.
    pub now: Option<Network>,
}

/// Creates or replaces a network.
pub fn make(session: &mut Session<'_>, wanted: &NewNetwork) -> Result<Answered<NetworkPlan>> {
    answered(session, &wanted.name, |world| create(world, wanted), |about| about.now.clone())
}

/// Plans to create or replace a network.
pub fn create(world: &World, wanted: &NewNetwork) -> Result<Change<NetworkPlan>> {
    crate::request::DomainName::new(&wanted.name)
        .map_err(|error| usage(error.to_string().replacen("domain name", "network name", 1), ""))?;
    let hypervisor = &*world.hypervisor()?;
    let host = host(world)?;
    if host.is_none() {
        world.warning(
            "links, addresses and routes of that host are not known here, so nothing is checked \
             against them",
        );
    }
    let guests = Guests::read(hypervisor)?;
    let states = hypervisor.networks().all_networks()?;
    let networks = states.iter().map(read).collect::<Result<Vec<Network>>>()?;
    let request = request(wanted, host.as_ref(), &guests, world)?;
    let planned = plan(&request, host.as_ref(), &networks, wanted.replace);
    let Planned { network, notes } = planned.map_err(refusal)?;
    let state = states.into_iter().find(|state| state.name == network.name);
    if state.as_ref().is_some_and(|state| !state.persistent) {
        let hint = format!("`gpuvm network delete {}`, then make it", word(&network.name));
        return Err(NetworkError::Transient { name: network.name }.hint(hint));
    }
    let before = networks.iter().find(|other| other.name == network.name);
    let mut steps = functions(wanted, &network, host.is_some(), world)?;
    let is_removal = |step: &&Step| {
        matches!(step, Step::Host(HostStep::Nic(NicStep::SetCount { was: 1.., .. })))
    };
    let mut lost: Vec<String> = steps.iter().filter(is_removal).map(Step::to_string).collect();
    let changes = steps_of(wanted, &network.xml(), state.as_ref(), before);
    let stops = changes.iter().any(|step| matches!(step, NetworkStep::Stop { .. }));
    if let (Some(before), true) = (before, stops) {
        lost.extend(effects_on_guests(before, &guests.on(before), true));
    }
    let kept = directory(world.state());
    steps.extend(remember_before(&kept, &changes, state.as_ref(), hypervisor)?);
    steps.extend(changes.into_iter().map(Step::from));
    let (before, now) = (state.map(|state| state.xml), before.cloned());
    let about = NetworkPlan { network, notes, before, now };
    Ok(change(&wanted.name, steps, lost, about))
}

/// The change of these steps, which needs consent if something is lost.
fn change(
    name: &str,
    steps: Vec<Step>,
    lost: Vec<String>,
    about: NetworkPlan,
) -> Change<NetworkPlan> {
    let question = (!lost.is_empty()).then(|| Question::Agree {
        lines: Some(lost.clone()),
        question: "change it?",
        what: format!("changing network `{name}`"),
    });
    let again = format!("gpuvm network create {} --replace --dry-run", word(name));
    let warnings = about.notes.clone();
    let change = Change::new("network create", name, steps, about);
    Change { losses: lost, warnings, question, again, hold: Hold::Answered, ..change }
}

/// The error that a network cannot be created, with a hint.
pub(super) fn refusal(refused: Refused) -> Error {
    let hints = refused.problems.iter().map(Problem::hint);
    let hint = hints.into_iter().find(|hint| !hint.is_empty()).unwrap_or_default();
    let message = refused.to_string();
    Error::Network(refused).around(Refusal::around(message, hint))
}

/// The NIC of a network whose name implies it: `nvidia-vm` used the one of the host's default
/// route.
pub(super) fn usual_nic(name: &str, host: Option<&HostNetwork>) -> Option<String> {
    let link = host?.default_link()?;
    (name == "macvtap-net" && !link.is_bridge()).then(|| link.name.clone())
}

/// The steps that create a network with a free name: started, and with autostart.
pub(super) fn new_steps(name: &str, xml: &str) -> Vec<NetworkStep> {
    let named = || name.to_owned();
    vec![
        NetworkStep::Define { name: named(), xml: xml.to_owned() },
        NetworkStep::Autostart { name: named(), on: true },
        NetworkStep::Start { name: named() },
        NetworkStep::Check { name: named(), xml: xml.to_owned(), active: true },
    ]
}

fn kind(wanted: &NewNetwork) -> Result<Kind> {
    let Some(kind) = wanted.kind.or_else(|| known(&wanted.name)) else {
        let message = format!("the kind of network `{}` is not given", wanted.name);
        let hint = "--kind nat, private, macvtap, bridge or sriov; only `default`, `private-net`, \
                    `macvtap-net` and `iovnet0` are known by their names";
        return Err(usage(message, hint));
    };
    let kind = match (kind, wanted.mode) {
        (Kind::Macvtap(_), Some(mode)) => Kind::Macvtap(mode),
        (kind, None) => kind,
        (kind, Some(_)) => {
            let message = format!("--mode is of macvtap, and this network is {kind}");
            return Err(usage(message, "leave it out"));
        }
    };
    if wanted.vfs.is_some() && kind != Kind::Sriov {
        let message = format!("--vfs is of sriov, and this network is {kind}");
        return Err(usage(message, "leave it out"));
    }
    Ok(kind)
}

/// The request, with this host and its guests.
fn request(
    wanted: &NewNetwork,
    host: Option<&HostNetwork>,
    guests: &Guests,
    world: &World,
) -> Result<Request> {
    let kind = kind(wanted)?;
    let named = wanted.nic.as_ref().map(|nic| netdev(nic, world)).transpose()?;
    let statics = wanted.statics.iter().map(|fixed| resolve(fixed, &wanted.name, guests));
    Ok(Request {
        name: wanted.name.clone(),
        kind,
        nic: named.or_else(|| usual_nic(&wanted.name, host)),
        bridge: wanted.bridge.clone(),
        range: wanted.range,
        dhcp: wanted.dhcp,
        statics: statics.collect::<Result<Vec<Static>>>()?,
        mtu: wanted.mtu,
    })
}

/// The network device of a NIC.
fn netdev(nic: &Card, world: &World) -> Result<String> {
    let bdf = match nic {
        Card::Netdev(name) => return Ok(name.clone()),
        Card::At(bdf) => *bdf,
    };
    let topology = world.topology()?;
    let net = topology.device(bdf).and_then(|device| device.net.as_ref());
    net.and_then(|net| net.netdevs.first().cloned()).ok_or_else(|| {
        NetworkError::NoNetdev { bdf: bdf.to_string() }
            .hint("`gpuvm nic list` shows the cards and their network devices")
    })
}

/// A static address with its MAC address.
fn resolve(fixed: &FixedAddress, network: &str, guests: &Guests) -> Result<Static> {
    let FixedAddress { who, ip, name } = fixed;
    let mac = match who {
        Who::Mac(mac) => mac.clone(),
        Who::Guest(guest) => guests.mac_on(guest, network).ok_or_else(|| {
            NetworkError::NoGuestNic { name: guest.clone(), network: network.to_owned() }
                .refusal(format!("--static MAC={ip} names the NIC by its MAC address"))
        })?,
    };
    Ok(Static { mac, ip: *ip, name: name.clone() })
}

/// The steps that create the virtual functions of a network's card, permanently. Refuses a card
/// that would have none.
fn functions(
    wanted: &NewNetwork,
    network: &Network,
    local: bool,
    world: &World,
) -> Result<Vec<Step>> {
    if !local && wanted.vfs.is_some() {
        let message =
            "--vfs makes virtual functions on this machine, and that libvirt is elsewhere";
        return Err(usage(message, "run it there"));
    }
    let (Kind::Sriov, Some(card), true) = (network.kind, network.nics.first(), local) else {
        return Ok(Vec::new());
    };
    if let Some(count) = wanted.vfs.filter(|count| *count > 0) {
        let (card, at_boot) = (Card::Netdev(card.clone()), wanted.program.clone());
        let wanted = Functions { card, count, host_drivers: false, at_boot };
        return Ok(set_functions(world, &wanted)?.steps());
    }
    let topology = world.topology()?;
    let is_it =
        |device: &&PciDevice| device.net.as_ref().is_some_and(|net| net.netdevs.contains(card));
    match topology.devices().iter().find(is_it).and_then(|device| device.sriov.clone()) {
        Some(Sriov::Pf { enabled: 1.., .. }) if wanted.vfs.is_none() => Ok(Vec::new()),
        Some(Sriov::Pf { total, .. }) => {
            Err(NetworkError::NoVfs { card: card.clone(), total: total.to_string() }
                .hint(format!("--vfs N makes 1 to {total} of them")))
        }
        _ => Err(NetworkError::NoSriov { card: card.clone() }
            .hint("`gpuvm nic list` shows in the column VFS which card has how many")),
    }
}

/// The steps that create a network, or replace an existing one.
fn steps_of(
    wanted: &NewNetwork,
    xml: &str,
    state: Option<&NetworkState>,
    before: Option<&Network>,
) -> Vec<NetworkStep> {
    let named = || wanted.name.clone();
    let xml = xml.to_owned();
    let (active, autostart) = state.map_or((false, false), |state| (state.active, state.autostart));
    let mut steps = Vec::new();
    // Values that libvirt chose itself are left to it again, so they are not compared.
    let same = before.is_some_and(|before| {
        Network::read(&xml).is_ok_and(|planned| planned.differences(before).is_empty())
    });
    let up = (active && same) || wanted.start;
    match state {
        Some(_) if same => {}
        Some(state) => {
            if active {
                steps.push(NetworkStep::Stop { name: named() });
            }
            let before = state.xml.clone();
            steps.push(NetworkStep::Redefine { name: named(), xml: xml.clone(), before });
        }
        None => steps.push(NetworkStep::Define { name: named(), xml: xml.clone() }),
    }
    if autostart != wanted.autostart {
        steps.push(NetworkStep::Autostart { name: named(), on: wanted.autostart });
    }
    if up && !(active && same) {
        steps.push(NetworkStep::Start { name: named() });
    }
    if !steps.is_empty() {
        steps.push(NetworkStep::Check { name: named(), xml, active: up });
    }
    steps
}
