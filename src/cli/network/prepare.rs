//! What `network create` would do: the request of its arguments, the network that it makes beside this host, and the
//! steps.

use super::super::args::{NetworkCreateArgs, NetworkKindArg, PfName, StaticArg, Who};
use super::super::change::program;
use super::super::context::Context;
use super::super::error::{Coded, around, usage};
use super::guests::{Guests, told};
use super::read;
use crate::apply::nic::NicStep;
use crate::apply::{NetworkStep, Step};
use crate::cli::network::error::NetworkError;
use crate::history::network::remember_before;
use crate::hypervisor::Hypervisor;
use crate::hypervisor::network::NetworkState;
use crate::network::host::HostNetwork;
use crate::network::{
    Kind, Mode, Network, Planned, Problem, Refused, Request, Static, known, plan,
};
use crate::shell::word;
use crate::topology::Sriov;
use anyhow::Context as _;
use gpuvm_ops::sriov::{Card, Functions, set_functions};

/// Is a network that can be made.
pub struct Prepared {
    /// The network.
    pub network: Network,
    /// What is worth knowing.
    pub notes: Vec<String>,
    /// The definition that it has now; none: it is not there.
    pub before: Option<String>,
    /// What makes it.
    pub steps: Vec<Step>,
    /// What guests and the host lose, a line each.
    pub lost: Vec<String>,
}

/// Plans what the arguments ask for.
pub fn prepare(
    args: &NetworkCreateArgs,
    hypervisor: &dyn Hypervisor,
    cx: &Context<'_>,
) -> anyhow::Result<Prepared> {
    crate::request::DomainName::new(&args.name)
        .map_err(|error| usage(error.to_string().replacen("domain name", "network name", 1), ""))?;
    let local = cx.has_guests_here()?;
    let host = if local { Some(host()?) } else { None };
    let guests = Guests::read(hypervisor)?;
    let states = hypervisor.networks().all_networks()?;
    let networks = states.iter().map(read).collect::<anyhow::Result<Vec<Network>>>()?;
    let request = request(args, host.as_ref(), &guests, cx)?;
    let planned = plan(&request, host.as_ref(), &networks, args.replace);
    let Planned { network, notes } = planned.map_err(refusal)?;
    let state = states.into_iter().find(|state| state.name == network.name);
    if state.as_ref().is_some_and(|state| !state.persistent) {
        let hint = format!("`gpuvm network delete {}`, then make it", word(&network.name));
        return Err(NetworkError::Transient { name: network.name.to_string() }.hint(hint));
    }
    let before = networks.iter().find(|other| other.name == network.name);
    let mut steps = functions(args, &network, local, cx)?;
    let mut lost = Vec::new();
    for step in &steps {
        if let Step::Nic(NicStep::SetCount { was: 1.., .. }) = step {
            lost.push(step.to_string());
        }
    }
    let xml = network.xml();
    let changes = steps_of(args, &network.name, &xml, state.as_ref(), before);
    let stops = changes.iter().any(|step| matches!(step, NetworkStep::Stop { .. }));
    if let (Some(before), true) = (before, stops) {
        lost.extend(told(before, &guests.on(before), true));
    }
    steps.extend(remember_before(&changes, state.as_ref(), hypervisor)?);
    steps.extend(changes.into_iter().map(Step::Network));
    Ok(Prepared { network, notes, before: state.map(|state| state.xml), steps, lost })
}

/// The error that a network cannot be made, with what helps.
pub fn refusal(refused: Refused) -> anyhow::Error {
    let hints = refused.problems.iter().map(Problem::hint);
    let hint = hints.into_iter().find(|hint| !hint.is_empty()).unwrap_or_default();
    let message = refused.to_string();
    around(refused, message, hint)
}

/// The NIC of a network whose name says it: the replaced tool's was the one that the host itself goes out by.
pub fn usual_nic(name: &str, host: Option<&HostNetwork>) -> Option<String> {
    let link = host?.default_link()?;
    (name == "macvtap-net" && !link.is_bridge()).then(|| link.name.clone())
}

/// The steps that make a network of a name that is free: up, and with libvirt.
pub fn new_steps(name: &str, xml: &str) -> Vec<NetworkStep> {
    let named = || name.to_owned();
    vec![
        NetworkStep::Define { name: named(), xml: xml.to_owned() },
        NetworkStep::Autostart { name: named(), on: true },
        NetworkStep::Start { name: named() },
        NetworkStep::Check { name: named(), xml: xml.to_owned(), active: true },
    ]
}

/// The host's links, addresses and routes.
pub fn host() -> anyhow::Result<HostNetwork> {
    crate::discover::network::network()
        .context("cannot read this host's links, addresses and routes")
}

/// What the arguments ask for.
fn request(
    args: &NetworkCreateArgs,
    host: Option<&HostNetwork>,
    guests: &Guests,
    cx: &Context<'_>,
) -> anyhow::Result<Request> {
    let kind = match (args.kind, known(&args.name)) {
        (Some(kind), _) => match kind {
            NetworkKindArg::Nat => Kind::Nat,
            NetworkKindArg::Private => Kind::Private,
            NetworkKindArg::Macvtap => Kind::Macvtap(Mode::Bridge),
            NetworkKindArg::Bridge => Kind::Bridge,
            NetworkKindArg::Sriov => Kind::Sriov,
        },
        (None, Some(kind)) => kind,
        (None, None) => {
            let message = format!("the kind of network `{}` is not given", args.name);
            let hint = "--kind nat, private, macvtap, bridge or sriov; only `default`, `private-net`, `macvtap-net` and \
                        `iovnet0` are known by their names";
            return Err(usage(message, hint));
        }
    };
    let kind = match (kind, args.mode) {
        (Kind::Macvtap(_), Some(mode)) => Kind::Macvtap(mode.into()),
        (kind, None) => kind,
        (kind, Some(_)) => {
            return Err(usage(
                format!("--mode is of macvtap, and this network is {kind}"),
                "leave it out",
            ));
        }
    };
    if args.vfs.is_some() && kind != Kind::Sriov {
        return Err(usage(
            format!("--vfs is of sriov, and this network is {kind}"),
            "leave it out",
        ));
    }
    let named = args.nic.as_ref().map(|nic| netdev(nic, cx)).transpose()?;
    let statics = args.statics.iter().map(|fixed| resolve(fixed, &args.name, guests));
    Ok(Request {
        name: args.name.clone(),
        kind,
        nic: named.or_else(|| usual_nic(&args.name, host)),
        bridge: args.bridge.clone(),
        range: args.range,
        dhcp: args.dhcp.map(|dhcp| dhcp.0),
        statics: statics.collect::<anyhow::Result<Vec<Static>>>()?,
        mtu: args.mtu,
    })
}

/// The network device that a NIC is named by.
fn netdev(nic: &PfName, cx: &Context<'_>) -> anyhow::Result<String> {
    let bdf = match nic {
        PfName::Netdev(name) => return Ok(name.clone()),
        PfName::At(bdf) => *bdf,
    };
    let topology = cx.topology()?;
    let net = topology.device(bdf).and_then(|device| device.net.as_ref());
    net.and_then(|net| net.netdevs.first().cloned()).ok_or_else(|| {
        NetworkError::NoNetdev { bdf: bdf.to_string() }
            .hint("`gpuvm nic list` shows the cards and their network devices")
    })
}

/// A static address with the MAC address that it is for.
fn resolve(arg: &StaticArg, network: &str, guests: &Guests) -> anyhow::Result<Static> {
    let mac = match &arg.who {
        Who::Mac(mac) => mac.clone(),
        Who::Guest(name) => guests.mac_on(name, network).ok_or_else(|| {
            NetworkError::NoGuestNic { name: name.to_string(), network: network.to_string() }
                .refusal(format!("--static MAC={} names the NIC by its MAC address", arg.ip))
        })?,
    };
    Ok(Static { mac, ip: arg.ip, name: arg.name.clone() })
}

/// The steps that give the card of a network its virtual functions, for good. Refuses a card that would have none.
fn functions(
    args: &NetworkCreateArgs,
    network: &Network,
    local: bool,
    cx: &Context<'_>,
) -> anyhow::Result<Vec<Step>> {
    let (Kind::Sriov, Some(card), true) = (network.kind, network.nics.first(), local) else {
        return match (args.vfs, local) {
            (Some(_), false) => {
                let message =
                    "--vfs makes virtual functions on this machine, and that libvirt is elsewhere";
                Err(usage(message, "run it there"))
            }
            _ => Ok(Vec::new()),
        };
    };
    if let Some(count) = args.vfs.filter(|count| *count > 0) {
        let (card, at_boot) = (Card::Netdev(card.clone()), Some(program()?));
        let wanted = Functions { card, count, host_drivers: false, at_boot };
        return Ok(set_functions(cx, &wanted)?.steps());
    }
    let topology = cx.topology()?;
    let is_it = |device: &&crate::topology::PciDevice| {
        device.net.as_ref().is_some_and(|net| net.netdevs.contains(card))
    };
    match topology.devices().iter().find(is_it).and_then(|device| device.sriov.clone()) {
        Some(Sriov::Pf { enabled: 1.., .. }) if args.vfs.is_none() => Ok(Vec::new()),
        Some(Sriov::Pf { total, .. }) => {
            Err(NetworkError::NoVfs { card: card.to_string(), total: total.to_string() }
                .hint(format!("--vfs N makes 1 to {total} of them")))
        }
        _ => Err(NetworkError::NoSriov { card: card.to_string() }
            .hint("`gpuvm nic list` shows in the column VFS which card has how many")),
    }
}

/// The steps that make a network, or make it anew where it is there.
fn steps_of(
    args: &NetworkCreateArgs,
    name: &str,
    xml: &str,
    state: Option<&NetworkState>,
    before: Option<&Network>,
) -> Vec<NetworkStep> {
    let named = || name.to_owned();
    let xml = xml.to_owned();
    let (active, autostart) = state.map_or((false, false), |state| (state.active, state.autostart));
    let mut steps = Vec::new();
    // What libvirt chose itself is left to it again, so it is not compared.
    let same = before.is_some_and(|before| {
        Network::read(&xml).is_ok_and(|planned| planned.differences(before).is_empty())
    });
    let up = (active && same) || !args.no_start;
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
    if autostart == args.no_autostart {
        steps.push(NetworkStep::Autostart { name: named(), on: !args.no_autostart });
    }
    if up && !(active && same) {
        steps.push(NetworkStep::Start { name: named() });
    }
    if !steps.is_empty() {
        steps.push(NetworkStep::Check { name: named(), xml, active: up });
    }
    steps
}
