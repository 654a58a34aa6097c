//! Checks the host's network: devices up, ports in their bridge or bond, an address, and a gateway
//! that answers.

use super::HostNetError;
use crate::apply::{Observer, StepError};
use crate::discover::network::{neighbour, network};
use gpuvm_core::hostnet::HostIp;
use gpuvm_core::network::host::HostNetwork;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(250);
/// A port on which nothing answers (RFC 863): a packet there makes the kernel ask for the MAC
/// address.
const DISCARD: u16 = 9;

/// The planned network of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlannedNetwork {
    /// The bridge that must be up; `None` without bridge.
    pub bridge: Option<String>,
    /// Ports, each with the device that it must be a port of.
    pub ports: Vec<(String, String)>,
    /// The address that the bridge must have.
    pub address: Option<HostIp>,
    /// Whether the bridge has to have some address.
    pub leased: bool,
    /// The gateway that has to answer on the bridge.
    pub gateway: Option<Ipv4Addr>,
    /// Whether the host must have a default route with a gateway that answers, through the bridge
    /// if one is named.
    pub default_route: bool,
    /// Time limit in seconds.
    pub wait_s: u64,
}

impl fmt::Display for PlannedNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut wants = Vec::new();
        wants.extend(self.bridge.as_ref().map(|bridge| format!("{bridge} is up")));
        wants.extend(self.address.map(|address| format!("has {address}")));
        if self.leased {
            wants.push("has an address".into());
        }
        wants.extend(self.gateway.map(|gateway| format!("gateway {gateway} answers")));
        if self.default_route && self.gateway.is_none() {
            wants.push("the default route's gateway answers".into());
        }
        if wants.is_empty() {
            wants.push("nothing is left of it".into());
        }
        write!(f, "see within {} s that {}", self.wait_s, wants.join(", "))
    }
}

impl PlannedNetwork {
    pub(super) fn wait(&self, observer: &mut dyn Observer) -> Result<(), StepError> {
        let until = Instant::now() + Duration::from_secs(self.wait_s);
        loop {
            let missing = self.missing().map_err(HostNetError::Kernel)?;
            if missing.is_empty() {
                return Ok(());
            }
            if let Some(signal) = observer.interrupted() {
                return Err(StepError::Signal { signal });
            }
            if Instant::now() >= until {
                let waited_s = self.wait_s;
                return Err(HostNetError::NotSo { missing, waited_s }.into());
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn missing(&self) -> io::Result<Vec<String>> {
        let host = network()?;
        let mut missing = Vec::new();
        for (port, master) in &self.ports {
            let now = host.link(port).and_then(|link| link.master.as_ref());
            if now != Some(master) {
                missing.push(format!("{port} is not a port of {master}"));
            }
        }
        if let Some(bridge) = &self.bridge {
            match host.link(bridge) {
                None => missing.push(format!("{bridge} is not there")),
                Some(link) if !link.up => missing.push(format!("{bridge} is down")),
                Some(_) => {}
            }
            let mut held = host.addresses.iter().filter(|held| held.link == *bridge);
            match self.address {
                Some(HostIp { ip, subnet }) if !held.any(|h| h.ip == ip && h.subnet == subnet) => {
                    missing.push(format!("{bridge} does not have {ip}"));
                }
                None if self.leased && held.next().is_none() => {
                    missing.push(format!("{bridge} has no address"));
                }
                _ => {}
            }
        }
        missing.extend(self.gateway(&host)?);
        Ok(missing)
    }

    /// Returns the missing part of the default route; `None` if it is complete.
    fn gateway(&self, host: &HostNetwork) -> io::Result<Option<String>> {
        let by = self.bridge.as_ref().map_or(String::new(), |bridge| format!(" by {bridge}"));
        let ours = |link: &Option<String>| self.bridge.is_none() || *link == self.bridge;
        let mut defaults =
            host.routes.iter().filter(|route| route.is_default() && ours(&route.link));
        let route = match self.gateway {
            Some(gateway) => defaults.find(|route| route.gateway == Some(gateway)),
            None if self.default_route => defaults.next(),
            None => return Ok(None),
        };
        let Some(route) = route else {
            return Ok(Some(format!("there is no default route{by}")));
        };
        // A route without a gateway leads to a point-to-point link.
        let (Some(gateway), Some(link)) =
            (route.gateway, route.link.as_deref().and_then(|name| host.link(name)))
        else {
            return Ok(None);
        };
        // A failure to send means no more than a missing answer.
        let _ = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
            .and_then(|socket| socket.send_to(&[0], (gateway, DISCARD)));
        let answers = neighbour(link.index, gateway.into())?.is_some();
        Ok((!answers).then(|| format!("gateway {gateway} does not answer on {}", link.name)))
    }
}
