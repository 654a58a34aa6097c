//! What making a bridge needs: the plan, who configures the host, netplan's file and what netplan makes of it, the steps.

use super::super::super::args::HostBridgeCreateArgs;
use super::super::super::error::around;
use super::paths;
use crate::apply::Step;
use crate::apply::hostnet::{HostNetStep, Wanted, units};
use crate::discover::manager::manager;
use crate::fsroot::FsRoot;
use crate::hostnet::others::Manager;
use crate::hostnet::units::Link;
use crate::hostnet::{Addressing, HostBridge, Planned, Problem, Refused, Request, netplan, plan};
use crate::network::host::HostNetwork;
use gpuvm_ops::networks::this_host as host;
use std::net::Ipv4Addr;

/// How long a bridge may take to be as it is to be, in seconds: DHCP, and LACP of a bond.
pub const SETTLE_S: u64 = 45;

/// Is a bridge that can be made.
pub struct Prepared {
    /// The plan.
    pub planned: Planned,
    /// Who configures the host.
    pub manager: Manager,
    /// What makes it; none where that is not netplan, or the bridge is only to be shown.
    pub made: Option<Made>,
}

/// Is what makes a bridge.
pub struct Made {
    /// Netplan's file.
    pub text: String,
    /// The steps.
    pub steps: Vec<Step>,
}

/// Plans what the arguments ask for.
pub fn prepare(args: &HostBridgeCreateArgs) -> anyhow::Result<Prepared> {
    let host = host()?;
    let mut planned = plan(&request(args), &host).map_err(refusal)?;
    planned.lost.extend(login(&planned.bridge, &host));
    let by = manager(&FsRoot::live()?, &planned.bridge.nics)?;
    if args.print_for.is_some() || by != Manager::Netplan {
        return Ok(Prepared { planned, manager: by, made: None });
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
        return Ok(Prepared { planned, manager: Manager::NetplanNm, made: None });
    }
    netplan::judge(bridge, &id, &after.units).map_err(one)?;
    let steps = steps(bridge, &text, args.within.confirm_within);
    Ok(Prepared { planned, manager: by, made: Some(Made { text, steps }) })
}

/// The error that a bridge cannot be made, with what helps.
fn refusal(refused: Refused) -> anyhow::Error {
    let hints = refused.problems.iter().map(Problem::hint);
    let hint = hints.into_iter().find(|hint| !hint.is_empty()).unwrap_or_default();
    let message = refused.to_string();
    around(refused, message, hint)
}

/// What the arguments ask for.
fn request(args: &HostBridgeCreateArgs) -> Request {
    let addressing = match args.address {
        Some(address) => {
            Addressing::Static { address, gateway: args.gateway, dns: args.dns.clone() }
        }
        None if args.dhcp => Addressing::Dhcp,
        None => Addressing::None,
    };
    Request {
        name: args.name.clone(),
        nics: args.nic.clone(),
        bond: args.bond,
        addressing,
        vlan: args.vlan,
        mtu: args.mtu,
    }
}

/// A network device as a unit is matched with it.
fn unit_link(link: &crate::network::host::Link) -> Link {
    Link { name: link.name.clone(), mac: link.mac.clone() }
}

/// That the login which runs this comes in by the NICs; none: it does not, or cannot be told.
fn login(bridge: &HostBridge, host: &HostNetwork) -> Option<String> {
    // The client's address and port, then ours (ssh(1)).
    let ssh = std::env::var("SSH_CONNECTION").ok()?;
    let ip: Ipv4Addr = ssh.split_whitespace().nth(2)?.parse().ok()?;
    let held = host.addresses.iter().find(|held| held.ip == ip)?;
    let cuts = !bridge.keeps_nic() && bridge.nics.contains(&held.link);
    cuts.then(|| format!("interrupt this login, which comes in by {} on {}", held.ip, held.link))
}

/// The steps that make a bridge.
fn steps(bridge: &HostBridge, text: &str, within_s: u64) -> Vec<Step> {
    let (kept, tried) = paths(&bridge.name);
    let (address, gateway) = match &bridge.addressing {
        Addressing::Static { address, gateway, .. } => (Some(*address), *gateway),
        _ => (None, None),
    };
    let wanted = Wanted {
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
    steps.into_iter().map(Step::HostNet).collect()
}
