//! Creates a bridge: the plan, the program that configures the host's network, netplan's file and
//! the result of netplan, the steps.

use super::guard::{Guarded, follow};
use super::{HostBridgeError, SETTLE_S, paths};
use crate::apply::Step;
use crate::apply::hostnet::{HostNetStep, PlannedNetwork, units};
use crate::discover::manager::manager;
use crate::error::{Coded as _, Error, Refusal, Result};
use crate::fsroot::FsRoot;
use crate::hostnet::manager::Manager;
use crate::hostnet::units::Link;
use crate::hostnet::{Addressing, HostBridge, Planned, Problem, Refused, Request, netplan, plan};
use crate::network::host::HostNetwork;
use crate::networks::this_host;
use crate::reporter::Question;
use crate::world::World;
use std::net::Ipv4Addr;

/// A bridge to be created.
#[derive(Debug, Clone)]
pub struct NewHostBridge {
    /// The bridge.
    pub request: Request,
    /// How long to wait for confirmation, in seconds.
    pub within_s: u64,
    /// The host's address that the caller's login uses; `None` if it does not use the network, or
    /// is not known.
    pub login: Option<Ipv4Addr>,
    /// Whether the plan is only shown.
    pub only_shown: bool,
}

/// A bridge that can be created.
#[derive(Debug)]
pub struct HostBridgePlan {
    /// The plan.
    pub planned: Planned,
    /// The program that configures the host's network.
    pub manager: Manager,
    /// How it is created; none if not by netplan, or if the plan is only shown.
    pub made: Option<MadeBridge>,
}

/// How a bridge is created.
#[derive(Debug)]
pub struct MadeBridge {
    /// Netplan's file.
    pub text: String,
    /// The steps.
    pub steps: Vec<Step>,
}

/// Plans a bridge.
pub fn prepare(wanted: &NewHostBridge) -> Result<HostBridgePlan> {
    let host = this_host()?;
    let mut planned = plan(&wanted.request, &host).map_err(refusal)?;
    planned.lost.extend(cut_off(wanted.login, &planned.bridge, &host));
    let by = manager(&FsRoot::live()?, &planned.bridge.nics)?;
    if wanted.only_shown || by != Manager::Netplan {
        return Ok(HostBridgePlan { planned, manager: by, made: None });
    }
    let bridge = &planned.bridge;
    let one =
        |problem: Problem| refusal(Refused { name: bridge.name.clone(), problems: vec![problem] });
    let before = units(None)?;
    netplan::free(bridge, &before.units).map_err(one)?;
    let links: Vec<Link> = host.links.iter().map(unit_link).collect();
    let nic = links.iter().find(|link| bridge.nics.first() == Some(&link.name));
    let id = match nic.filter(|_| bridge.keeps_nic()) {
        Some(nic) => netplan::id_of(&before.units, nic, &links).map_err(one)?,
        None => String::new(),
    };
    let text = netplan::text(bridge, &id);
    let after = units(Some((&netplan::file(&bridge.name), &text)))?;
    if after.nm.iter().any(|file| file.contains(&bridge.name)) {
        return Ok(HostBridgePlan { planned, manager: Manager::NetplanNm, made: None });
    }
    netplan::judge(bridge, &id, &after.units).map_err(one)?;
    let steps = steps_of(bridge, &text, wanted.within_s);
    Ok(HostBridgePlan { planned, manager: by, made: Some(MadeBridge { text, steps }) })
}

/// The steps that create a bridge, for the process that runs them with the host's lock.
pub fn steps(wanted: &NewHostBridge) -> Result<Vec<Step>> {
    let made = prepare(wanted)?.made.map(|made| made.steps);
    made.ok_or_else(|| {
        HostBridgeError::NoNetplan.hint("nothing is done; `--print-for netplan` prints the file")
    })
}

/// Asks for consent if something is lost, and lets the guard create the bridge. Returns its exit
/// code.
pub fn make(world: &World, planned: &Planned, guarded: &Guarded) -> Result<u8> {
    let question = (!planned.lost.is_empty()).then(|| Question::Agree {
        lines: Some(planned.lost.clone()),
        question: "make it?",
        what: format!("making bridge {}", planned.bridge.name),
    });
    follow(world, question, guarded)
}

/// The error that a bridge cannot be created, with a hint.
fn refusal(refused: Refused) -> Error {
    let hints = refused.problems.iter().map(Problem::hint);
    let hint = hints.into_iter().find(|hint| !hint.is_empty()).unwrap_or_default();
    let message = refused.to_string();
    Error::HostBridge(refused).around(Refusal::around(message, hint))
}

/// A network device in the form that units are matched against.
fn unit_link(link: &crate::network::host::Link) -> Link {
    Link { name: link.name.clone(), mac: link.mac.clone() }
}

/// The warning that the caller's login uses the NICs, which lose its address; `None` if it does
/// not.
pub(super) fn cut_off(
    login: Option<Ipv4Addr>,
    bridge: &HostBridge,
    host: &HostNetwork,
) -> Option<String> {
    let held = host.addresses.iter().find(|held| Some(held.ip) == login)?;
    let cuts = !bridge.keeps_nic() && bridge.nics.contains(&held.link);
    cuts.then(|| format!("interrupt this login, which comes in by {} on {}", held.ip, held.link))
}

/// The steps that create a bridge.
pub(super) fn steps_of(bridge: &HostBridge, text: &str, within_s: u64) -> Vec<Step> {
    let (kept, tried) = paths(&bridge.name);
    let (address, gateway) = match &bridge.addressing {
        Addressing::Static { address, gateway, .. } => (Some(*address), *gateway),
        _ => (None, None),
    };
    let wanted = PlannedNetwork {
        bridge: Some(bridge.name.clone()),
        ports: bridge.ports(),
        address,
        leased: bridge.addressing == Addressing::Dhcp,
        gateway,
        default_route: bridge.default_route,
        wait_s: SETTLE_S.min(within_s),
    };
    let text = || text.to_owned();
    let steps = [
        HostNetStep::Try {
            what: format!("make bridge {} over {}", bridge.name, bridge.nics.join(" and ")),
            path: tried.clone(),
            text: text(),
            was: None,
            makes: bridge.links(),
            takes: Vec::new(),
        },
        HostNetStep::Check(wanted),
        HostNetStep::Await { bridge: bridge.name.clone(), within_s },
        HostNetStep::Write { path: kept, text: Some(text()), was: None },
        HostNetStep::Write { path: tried, text: None, was: Some(text()) },
    ];
    steps.into_iter().map(Step::from).collect()
}
