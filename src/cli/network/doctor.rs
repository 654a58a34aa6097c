//! `network doctor`: what breaks the path of each of a guest's NICs. The judgement is [`crate::network::doctor`]'s; here is
//! what is asked of libvirt, of the guest's agent and of the host, and how the answer is printed.

mod filter;

use super::super::args::NetworkDoctorArgs;
use super::super::codes::Class;
use super::super::context::Context;
use super::super::error::{EXIT_DONE, EXIT_FOUND, classed};
use crate::discover::path;
use crate::domain::DomainXml;
use crate::fsroot::FsRoot;
use crate::hypervisor::{DomainState, Hypervisor, XmlOf};
use crate::network::GuestAddress;
use crate::network::Network;
use crate::network::doctor::{
    Attached, Behind, Case, Diagnosis, Finding, Hop, HostSide, Inside, Nic, OfHop, On, Verdict,
    examine,
};
use crate::shell::word;
use anyhow::Context as _;
use gpuvm_ops::agent::{Agent, has_agent};
use gpuvm_ops::guest::find;
use gpuvm_ops::networks::read;
use serde::Serialize;
use serde_json::json;
use std::fmt::Write as _;
use std::time::Duration;

/// Is the answer.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Answer {
    /// Name of the domain.
    domain: String,
    /// Whether it runs.
    running: bool,
    /// Whether the path of a NIC is broken.
    broken: bool,
    /// Each of its NICs.
    nics: Vec<Looked>,
}

/// Is what was found of a NIC, with where it leads.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Looked {
    /// libvirt's network; none: the domain names a bridge or a device itself.
    network: Option<String>,
    /// Its kind, in words.
    kind: Option<String>,
    /// What was found.
    #[serde(flatten)]
    diagnosis: Diagnosis,
}

/// Runs the verb.
pub fn run(args: &NetworkDoctorArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_without_guests("network doctor")?;
    let hypervisor = cx.hypervisor()?;
    let name = args.name.as_str();
    let state = find(&*hypervisor, name)?.state;
    let running = !matches!(state, DomainState::ShutOff | DomainState::Crashed);
    let which = if running { XmlOf::Live } else { XmlOf::Public };
    let domain = DomainXml::parse(&hypervisor.xml(name, which)?)?;
    let nics = Nic::all(&domain);
    if nics.is_empty() {
        let hint = format!(
            "`gpuvm console {}` needs no network; `gpuvm create --network NAME` gives a NIC",
            word(name)
        );
        return Err(classed(Class::NotFound, format!("domain `{name}` has no NIC"), hint));
    }
    let root = if cx.has_guests_here()? { Some(FsRoot::live()?) } else { None };
    let host = root.as_ref().map(|root| path::read(root, filter::read(root)));
    let host = host.transpose().context("cannot read the host's network")?;
    let wait = Duration::from_secs(args.agent_wait);
    let asked = running && args.agent_wait > 0 && has_agent(&domain);
    let agent = if asked { Agent::greet(&*hypervisor, name, wait) } else { None };
    let known =
        if running { hypervisor.addresses(name, &[]).unwrap_or_default() } else { Vec::new() };
    let seen = Seen { running, agent: agent.as_ref().map(Inner::ask), known: &known };
    let mut looked = Vec::new();
    for nic in nics {
        looked.push(look(name, nic, &seen, (root.as_ref(), host.as_ref()), &*hypervisor)?);
    }
    let broken = looked.iter().any(|nic| nic.diagnosis.is_broken());
    let answer = Answer { domain: name.to_owned(), running, broken, nics: looked };
    if cx.output.json {
        cx.output.json("gpuvm-network-doctor", &answer)?;
    } else {
        cx.output.text(&text(&answer))?;
    }
    Ok(if broken { EXIT_FOUND } else { EXIT_DONE })
}

/// Is what is known of the guest.
struct Seen<'a> {
    /// Whether it runs.
    running: bool,
    /// What its agent says; none: it does not answer.
    agent: Option<Inner<'a>>,
    /// Addresses of its NICs.
    known: &'a [GuestAddress],
}

/// Is the guest's own view of its NICs.
struct Inner<'a> {
    /// Its agent.
    agent: &'a Agent<'a>,
    /// Names and MAC addresses of its NICs, in its order; none: it does not tell.
    nics: Option<Vec<(String, String)>>,
}

impl<'a> Inner<'a> {
    /// Asks a guest's agent for its NICs.
    fn ask(agent: &'a Agent<'a>) -> Inner<'a> {
        let answer = agent.ask("guest-network-get-interfaces", &json!({})).ok();
        let nics = answer.as_ref().and_then(|answer| answer.as_array()).map(|nics| {
            let word = |nic: &serde_json::Value, key: &str| Some(nic[key].as_str()?.to_owned());
            let one = |nic| {
                Some((word(nic, "name")?, word(nic, "hardware-address")?.to_ascii_lowercase()))
            };
            nics.iter().filter_map(one).collect()
        });
        Inner { agent, nics }
    }

    /// What it says of one NIC; none: it does not tell.
    fn view(&self, mac: &str) -> Option<Inside> {
        let name = self.nics.as_ref()?.iter().find(|(_, found)| found == mac).map(|(name, _)| name);
        // What the guest says is printed, and part of a path: it has to be a name.
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let Some(name) = name.filter(|name| !name.starts_with('.') && name.chars().all(fits))
        else {
            return Some(Inside::default());
        };
        let read = |file: &str| self.agent.read(&format!("/sys/class/net/{name}/{file}")).ok();
        let flags = read("flags");
        let flags = flags
            .and_then(|text| u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok());
        let mtu = read("mtu").and_then(|text| text.trim().parse().ok());
        Some(Inside { name: Some(name.clone()), mtu, up: flags.map(|flags| flags & 1 == 1) })
    }
}

/// Looks at one NIC.
fn look(
    guest: &str,
    mut nic: Nic,
    seen: &Seen<'_>,
    (root, host): (Option<&FsRoot>, Option<&HostSide>),
    hypervisor: &dyn Hypervisor,
) -> anyhow::Result<Looked> {
    let on = network_of(&nic, hypervisor);
    if let Some(network) = on.network() {
        nic.resolve(network);
    }
    let behind = match (&nic.attached, root) {
        (Attached::Function(bdf), Some(root)) => path::behind(root, bdf)?,
        _ => Behind::default(),
    };
    let known: Vec<GuestAddress> =
        seen.known.iter().filter(|address| address.mac == nic.mac).cloned().collect();
    let inside = seen.agent.as_ref().and_then(|agent| agent.view(&nic.mac));
    let running = seen.running;
    let kind = on.network().map(|network| network.kind.to_string());
    let case = Case { guest, running, nic: &nic, on, known: &known, inside, behind, host };
    let diagnosis = examine(&case);
    Ok(Looked { network: nic.network.clone(), kind, diagnosis })
}

/// The network that a NIC is on: the one that it names, or the one whose own bridge it names.
fn network_of(nic: &Nic, hypervisor: &dyn Hypervisor) -> On {
    let networks = hypervisor.networks();
    let known = |state| match read(&state) {
        Ok(network) => On::Known(Box::new(network), state.active),
        Err(_) => On::Unknown(state.name.clone()),
    };
    match (&nic.network, &nic.attached) {
        (Some(name), _) => match networks.network(name) {
            Ok(Some(state)) => known(state),
            Ok(None) => On::Gone(name.clone()),
            Err(_) => On::Unknown(name.clone()),
        },
        (None, Attached::Bridge(bridge)) => {
            let owns = |network: &Network| {
                network.kind.has_own_bridge() && network.bridge.as_ref() == Some(bridge)
            };
            let mut states = networks.all_networks().unwrap_or_default().into_iter();
            let found = states.find(|state| read(state).is_ok_and(|network| owns(&network)));
            found.map_or(On::None, known)
        }
        _ => On::None,
    }
}

/// The answer for people.
fn text(answer: &Answer) -> String {
    let Answer { domain, running, nics, .. } = answer;
    let state = if *running { "running" } else { "off" };
    let mut text = String::new();
    for Looked { network, kind, diagnosis } in nics {
        let Diagnosis { nic, mac, hops, notes } = diagnosis;
        let on = network.as_ref().map_or(String::new(), |name| format!(" on network `{name}`"));
        let kind = kind.as_ref().map_or(String::new(), |kind| format!(" ({kind})"));
        writeln!(text, "{domain} ({state}), NIC {nic}, {mac}{on}{kind}").expect("text");
        let width = hops.iter().map(|hop| hop.name.len()).max().unwrap_or(0);
        for hop in hops {
            text += &hop_text(hop, width);
        }
        for note in notes {
            writeln!(text, "  note: {note}").expect("text");
        }
    }
    let broken = nics.iter().flat_map(|nic| &nic.diagnosis.hops);
    let broken = broken.filter(|hop| hop.verdict == Verdict::Broken).count();
    text + &match broken {
        0 => format!("{domain}: no path is broken\n"),
        1 => format!("{domain}: 1 hop is broken\n"),
        many => format!("{domain}: {many} hops are broken\n"),
    }
}

/// A hop for people.
fn hop_text(hop: &Hop, width: usize) -> String {
    let Hop { name, verdict, says, findings } = hop;
    let verdict = match verdict {
        Verdict::Ok => "ok",
        Verdict::Broken => "broken",
        Verdict::NotChecked => "not checked",
    };
    let line = format!("  {verdict:<12} {name:<width$}  {says}");
    let mut text = line.trim_end().to_owned() + "\n";
    for Finding { rule, severity, says, hint } in findings {
        let OfHop { what, expected, found, at } = says;
        writeln!(text, "    {severity}: {what} {found}, expected {expected}").expect("text");
        writeln!(text, "      {at} ({rule})\n      hint: {hint}").expect("text");
    }
    text
}
