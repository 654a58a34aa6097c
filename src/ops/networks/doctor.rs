//! `network doctor`: queries libvirt, the guest's agent and the host to find the faults in the path
//! of each of a guest's NICs. The judgement is in [`crate::network::doctor`].

mod filter;

use super::read;
use crate::agent::{Agent, has_agent};
use crate::apply::mac_owner;
use crate::discover::path;
use crate::domain::DomainXml;
use crate::error::{Class, Doing as _, Result, classed};
use crate::fsroot::FsRoot;
use crate::hypervisor::{DomainSummary, Hypervisor, XmlOf};
use crate::lookup::find;
use crate::network::doctor::{
    Attached, Behind, Case, Diagnosis, HostSide, Inside, Nic, On, examine,
};
use crate::network::{GuestAddress, Network};
use crate::shell::word;
use crate::world::World;
use serde::Serialize;
use serde_json::json;
use std::time::Duration;

/// The findings about a guest's NICs.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Diagnoses {
    /// Name of the domain.
    pub domain: String,
    /// Whether it runs.
    pub running: bool,
    /// Whether the path of a NIC is broken.
    pub broken: bool,
    /// Each of its NICs.
    pub nics: Vec<Diagnosed>,
}

/// The findings about a NIC, with its connection.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Diagnosed {
    /// libvirt's network; `None` if the domain names a bridge or a device itself.
    pub network: Option<String>,
    /// Its kind, in words.
    pub kind: Option<String>,
    /// The findings.
    #[serde(flatten)]
    pub diagnosis: Diagnosis,
}

/// Diagnoses the NICs of a guest; its agent may take up to `wait`, and is not asked if that is
/// zero.
pub fn diagnose(world: &World, name: &str, wait: Duration) -> Result<Diagnoses> {
    let hypervisor = &*world.hypervisor()?;
    let DomainSummary { state, uuid, .. } = find(hypervisor, name)?;
    let running = state.is_active();
    let which = if running { XmlOf::Live } else { XmlOf::Public };
    let domain = DomainXml::parse(&hypervisor.xml(name, which)?)?;
    let nics = Nic::all(&domain);
    if nics.is_empty() {
        let hint = format!("`gpuvm console {}` needs no network", word(name));
        return Err(classed(Class::NotFound, format!("domain `{name}` has no NIC"), hint));
    }
    let root = if world.has_guests_here()? { Some(FsRoot::live()?) } else { None };
    let host = root.as_ref().map(|root| path::read(root, filter::read(root)));
    let host = host.transpose().doing(|| "cannot read the host's network".into())?;
    let has_channel = has_agent(&domain);
    let asked = state.has_guest() && !wait.is_zero() && has_channel;
    let agent = if asked { Agent::greet(hypervisor, name, wait) } else { None };
    let known = if state.has_guest() {
        hypervisor.addresses(name, &[]).unwrap_or_default()
    } else {
        Vec::new()
    };
    let agent = agent.as_ref().map(Inner::ask);
    let seen = Seen { running, has_channel, agent, known: &known };
    let sides = (root.as_ref(), host.as_ref());
    let looked = nics.into_iter().map(|nic| look((name, &uuid), nic, &seen, sides, hypervisor));
    let nics = looked.collect::<Result<Vec<Diagnosed>>>()?;
    let broken = nics.iter().any(|nic| nic.diagnosis.is_broken());
    Ok(Diagnoses { domain: name.to_owned(), running, broken, nics })
}

/// The known facts about the guest.
struct Seen<'a> {
    running: bool,
    /// Whether it has the channel of an agent.
    has_channel: bool,
    /// Its agent's report; `None` if it does not answer.
    agent: Option<Inner<'a>>,
    /// Addresses of its NICs.
    known: &'a [GuestAddress],
}

/// The guest's own view of its NICs.
struct Inner<'a> {
    agent: &'a Agent<'a>,
    /// Names and MAC addresses of its NICs, in its order; `None` if it does not report them.
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

    /// Its report on one NIC; `None` if it has none.
    fn view(&self, mac: &str) -> Option<Inside> {
        let name = self.nics.as_ref()?.iter().find(|(_, found)| found == mac).map(|(name, _)| name);
        // The guest's answer is printed and used in a path, so it must be a plain name.
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

fn look(
    (guest, uuid): (&str, &str),
    mut nic: Nic,
    seen: &Seen<'_>,
    (root, host): (Option<&FsRoot>, Option<&HostSide>),
    hypervisor: &dyn Hypervisor,
) -> Result<Diagnosed> {
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
    let Seen { running, has_channel, .. } = *seen;
    let kind = on.network().map(|network| network.kind.to_string());
    let twin = Some(&nic.mac).filter(|mac| !mac.is_empty());
    let twin = twin.and_then(|mac| mac_owner(hypervisor, mac, Some(uuid)).ok().flatten());
    let twin = twin.as_ref().map(|twin| twin.name.as_str());
    let (nic_of, known) = (&nic, &known[..]);
    let case =
        Case { guest, running, nic: nic_of, twin, on, known, has_channel, inside, behind, host };
    let diagnosis = examine(&case);
    Ok(Diagnosed { network: nic.network.clone(), kind, diagnosis })
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
