//! Evaluates a host's packet filter for one packet: chains and rules of nftables and of iptables as
//! values, and the walk of a packet through them. Knows the conditions used by filters around
//! guests; any other one is `Maybe`.
//!
//! IPv4 and filtering only: NAT and marks are not followed.

mod iptables;
mod nft;

pub use iptables::read as read_iptables;
pub use nft::read as read_nft;

use super::Subnet;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// The deepest nesting of chains; the kernel allows 16.
const DEEPEST: usize = 16;

/// The hook at which the kernel evaluates a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// For a packet to the host itself.
    Input,
    /// For a packet that the host passes on.
    Forward,
}

/// A packet to be filtered.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'a> {
    /// The hook that it passes.
    pub hook: Hook,
    /// The network device that receives it.
    pub from: &'a str,
    /// The network device that sends it; `None` if it is for the host.
    pub to: Option<&'a str>,
    /// Its source address.
    pub source: Ipv4Addr,
    /// Its destination address.
    pub target: Ipv4Addr,
    /// Its protocol, as both programs name it: `tcp`, `udp`.
    pub protocol: &'a str,
    /// Its destination port.
    pub port: u16,
    /// Its state in the kernel's table of connections: `new`, `established`.
    pub state: &'a str,
}

/// A condition of a rule, possibly negated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The test.
    pub asks: Asks,
    /// Whether it is negated.
    pub not: bool,
}

/// A test of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asks {
    /// The input device; with the flag, the name is a prefix.
    From(String, bool),
    /// The output device, likewise.
    To(String, bool),
    /// Its source is in one of these subnets.
    Source(Vec<Subnet>),
    /// Its destination is in one of these subnets.
    Target(Vec<Subnet>),
    /// Its protocol is one of these.
    Protocol(Vec<String>),
    /// Its destination port is in one of these ranges.
    Port(Vec<(u16, u16)>),
    /// Its state is one of these.
    State(Vec<String>),
    /// A test unknown here.
    Unknown,
}

/// The action of a rule on matching packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Accepts it in this chain.
    Accept,
    /// Drops or rejects it.
    Drop,
    /// Evaluates another chain, then the next rule.
    Jump(String),
    /// Evaluates another chain instead of the rest.
    Goto(String),
    /// Ends this chain.
    Return,
    /// Does not decide: it counts, logs, marks.
    Next,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Its conditions, all of which must hold.
    pub conditions: Vec<Condition>,
    /// Its action.
    pub action: Action,
    /// Its text in one line.
    pub text: String,
}

/// A chain of rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chain {
    /// Its hook; `None` if only other chains jump to it.
    pub hook: Option<Hook>,
    /// Whether its policy is to drop.
    pub drops: bool,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// The host's packet filter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// Chains by table and name; the table is as people call it: `iptables filter`,
    /// `nft ip libvirt_network`.
    pub chains: BTreeMap<(String, String), Chain>,
}

/// The fate of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It passes.
    Passes,
    /// It ends at this rule or policy.
    Ends(String),
    /// It ends at this rule or policy unless an earlier rule that cannot be judged here accepts it.
    Unsure(String),
}

/// Whether a rule matches a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// It is.
    Yes,
    /// It is not.
    No,
    /// Unknown.
    Maybe,
}

/// How a chain ends for a packet.
enum End {
    /// It is let through.
    Accepted,
    /// It is dropped here.
    Dropped(String),
    /// No rule decided.
    Open,
}

impl Ruleset {
    /// Adds the rules from another program.
    pub fn extend(&mut self, other: Ruleset) {
        self.chains.extend(other.chains);
    }

    /// Returns the fate of a packet: every chain at its hook must accept it.
    pub fn fate(&self, packet: &Packet<'_>) -> Fate {
        let mut unsure = None;
        let asked = self.chains.iter().filter(|(_, chain)| chain.hook == Some(packet.hook));
        for ((table, name), chain) in asked {
            let mut doubt = false;
            let by = match self.walk(table, name, packet, DEEPEST, &mut doubt) {
                End::Accepted => continue,
                End::Dropped(by) => by,
                End::Open if chain.drops => format!("{table}: chain {name} has policy drop"),
                End::Open => continue,
            };
            if !doubt {
                return Fate::Ends(by);
            }
            unsure = Some(by);
        }
        unsure.map_or(Fate::Passes, Fate::Unsure)
    }

    /// Evaluates the rules of a chain; sets `doubt` if one that cannot be judged might have
    /// accepted the packet. One that might have dropped it is ignored: such rules (sets, limits)
    /// are for other traffic.
    fn walk(
        &self,
        table: &str,
        name: &str,
        packet: &Packet<'_>,
        deep: usize,
        doubt: &mut bool,
    ) -> End {
        let Some(chain) = self.chains.get(&(table.to_owned(), name.to_owned())) else {
            return End::Open;
        };
        for rule in &chain.rules {
            let holds = rule.holds(packet);
            if holds == Holds::No {
                continue;
            }
            let below = |other: &str, doubt: &mut bool| match deep {
                0 => End::Open,
                deep => self.walk(table, other, packet, deep - 1, doubt),
            };
            let (end, last) = match &rule.action {
                Action::Accept => (End::Accepted, true),
                Action::Drop => (End::Dropped(format!("{table}: {}", rule.text)), true),
                Action::Jump(other) => (below(other, doubt), false),
                Action::Goto(other) => (below(other, doubt), true),
                Action::Return => (End::Open, true),
                Action::Next => continue,
            };
            match (holds, &end) {
                (Holds::Yes, End::Open) if !last => {}
                (Holds::Yes, _) => return end,
                // A rule that may leave this chain leaves the decision to the caller.
                (_, End::Accepted) => *doubt = true,
                _ => {}
            }
        }
        End::Open
    }
}

impl Rule {
    /// Whether the rule matches a packet.
    fn holds(&self, packet: &Packet<'_>) -> Holds {
        let mut all = Holds::Yes;
        for condition in &self.conditions {
            match condition.holds(packet) {
                Holds::No => return Holds::No,
                Holds::Maybe => all = Holds::Maybe,
                Holds::Yes => {}
            }
        }
        all
    }
}

impl Condition {
    /// Whether it holds for a packet.
    fn holds(&self, packet: &Packet<'_>) -> Holds {
        let is = |name: &str, open: bool, device: &str| {
            if open { device.starts_with(name) } else { device == name }
        };
        let within = |subnets: &[Subnet], ip| subnets.iter().any(|subnet| subnet.contains(ip));
        let is_one = |words: &[String], word: &str| words.iter().any(|one| one == word);
        let holds = match &self.asks {
            Asks::From(name, open) => is(name, *open, packet.from),
            Asks::To(name, open) => packet.to.is_some_and(|device| is(name, *open, device)),
            Asks::Source(subnets) => within(subnets, packet.source),
            Asks::Target(subnets) => within(subnets, packet.target),
            Asks::Protocol(words) => is_one(words, packet.protocol),
            Asks::State(words) => is_one(words, packet.state),
            Asks::Port(runs) => {
                runs.iter().any(|(first, last)| (*first..=*last).contains(&packet.port))
            }
            Asks::Unknown => return Holds::Maybe,
        };
        if holds == self.not { Holds::No } else { Holds::Yes }
    }
}

/// An address with or without a prefix, as both programs write it.
fn subnet(text: &str) -> Option<Subnet> {
    let (ip, bits) = text.split_once('/').unwrap_or((text, "32"));
    let mask = |bits: &str| {
        let mask: u32 = bits.parse::<Ipv4Addr>().ok()?.to_bits();
        (mask.leading_ones() == mask.count_ones()).then(|| mask.leading_ones() as u8)
    };
    let bits = bits.parse().ok().or_else(|| mask(bits))?;
    Subnet::around(ip.parse().ok()?, bits)
}

#[cfg(test)]
mod tests;
