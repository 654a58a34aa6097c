//! Which guests are on a network.

use crate::domain::{Hook, hooks};
use crate::error::Result;
use crate::hypervisor::{Definition, DomainSummary, Hypervisor, XmlOf, definitions};
use crate::network::Network;
use serde::Serialize;

/// An interface of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuestNic {
    /// The domain's name.
    pub domain: String,
    /// Whether it runs.
    pub running: bool,
    /// MAC address, lower case.
    pub mac: String,
}

/// The interfaces of every domain, each with its source.
#[derive(Debug)]
pub struct Guests(Vec<(GuestNic, Hook)>);

impl Guests {
    /// Reads every domain: the live XML of a running one, otherwise the definition. One that cannot
    /// be parsed counts as not connected.
    pub fn read(hypervisor: &dyn Hypervisor) -> Result<Guests> {
        let mut found = Vec::new();
        let which = |row: &DomainSummary| -> &'static [XmlOf] {
            if row.state.is_active() { &[XmlOf::Live] } else { &[XmlOf::Public] }
        };
        for Definition { summary, xml, .. } in definitions(hypervisor, which)? {
            let running = summary.state.is_active();
            let Ok(xml) = xml else { continue };
            found.extend(hooks(&xml).into_iter().map(|hook| {
                let (domain, mac) = (summary.name.clone(), hook.mac.clone());
                (GuestNic { domain, running, mac }, hook)
            }));
        }
        Ok(Guests(found))
    }

    /// The interfaces on a network, by its name or by its bridge.
    pub fn on(&self, network: &Network) -> Vec<GuestNic> {
        let bridge = network.bridge.as_ref().filter(|_| network.kind.has_own_bridge());
        let is_on = |hook: &Hook| match &hook.network {
            Some(name) => *name == network.name,
            None => bridge.is_some() && hook.bridge.as_ref() == bridge,
        };
        self.0.iter().filter(|(_, hook)| is_on(hook)).map(|(nic, _)| nic.clone()).collect()
    }

    /// The MAC address of a guest's first interface on the named network.
    pub fn mac_on(&self, domain: &str, network: &str) -> Option<String> {
        let is_it = |(nic, hook): &&(GuestNic, Hook)| {
            nic.domain == domain && hook.network.as_deref() == Some(network)
        };
        self.0.iter().find(is_it).map(|(nic, _)| nic.mac.clone())
    }
}

/// The effect on the guests on a network that goes down, one line each; `back`: it comes up again.
pub fn effects_on_guests(network: &Network, guests: &[GuestNic], back: bool) -> Vec<String> {
    let lines = guests.iter().filter_map(|GuestNic { domain, running, mac }| {
        Some(match (running, network.kind.has_own_bridge()) {
            (true, true) if back => {
                format!("cut the link {mac} of running guest `{domain}`, until it is started again")
            }
            (true, true) => format!("cut the link {mac} of running guest `{domain}`"),
            (true, false) if back => return None,
            (true, false) => format!("leave running guest `{domain}` without it at its next start"),
            (false, _) if back => return None,
            (false, _) => format!("leave guest `{domain}`, which is off, unable to start"),
        })
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{Kind, Mode};

    /// Three guests: one that runs on the network, one that runs on the network's bridge, one that
    /// is off.
    fn guests() -> Guests {
        let of = |domain: &str, running, network: Option<&str>, bridge: Option<&str>| {
            let nic = GuestNic { domain: domain.into(), running, mac: format!("mac-{domain}") };
            let (network, bridge) = (network.map(Into::into), bridge.map(Into::into));
            let hook = Hook { mac: nic.mac.clone(), network, bridge };
            (nic, hook)
        };
        Guests(vec![
            of("a", true, Some("lab"), Some("virbr1")),
            of("b", true, None, Some("virbr1")),
            of("c", false, Some("lab"), None),
            of("d", true, Some("other"), Some("virbr1")),
            of("e", true, None, None),
        ])
    }

    #[test]
    fn guests_that_lose_a_link_are_named() {
        let network = |kind| {
            let bridge = Some("virbr1".into());
            Network { bridge, ..Network::bare("lab", kind) }
        };
        let (nat, guests) = (network(Kind::Nat), guests());
        let cut = |domain: &str| format!("cut the link mac-{domain} of running guest `{domain}`");
        let off = "leave guest `c`, which is off, unable to start".to_owned();
        assert_eq!(
            effects_on_guests(&nat, &guests.on(&nat), false),
            [cut("a"), cut("b"), off.clone()]
        );
        let until = |domain: &str| cut(domain) + ", until it is started again";
        assert_eq!(effects_on_guests(&nat, &guests.on(&nat), true), [until("a"), until("b")]);
        // An interface on a bridge or NIC of the host keeps its link without libvirt's network.
        for kind in [Kind::Bridge, Kind::Macvtap(Mode::Bridge)] {
            let network = network(kind);
            let without = "leave running guest `a` without it at its next start".to_owned();
            assert_eq!(
                effects_on_guests(&network, &guests.on(&network), false),
                [without, off.clone()]
            );
            assert!(effects_on_guests(&network, &guests.on(&network), true).is_empty());
        }
        assert_eq!(guests.mac_on("c", "lab").as_deref(), Some("mac-c"));
        assert_eq!(guests.mac_on("b", "lab"), None);
    }
}
