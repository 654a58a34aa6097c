//! What a host's packet filter does with one packet: chains and rules of nftables and of iptables as values, and the walk
//! of a packet through them. Knows the conditions that filters in front of guests are made of; every other one is `maybe`.
//!
//! IPv4 alone, and the filter alone: what is translated or marked is not followed.

mod iptables;
mod nft;

pub use iptables::read as read_iptables;
pub use nft::read as read_nft;

use super::Subnet;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// Chains that may follow each other at most; the kernel allows 16.
const DEEPEST: usize = 16;

/// Where in the kernel a chain is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// For a packet to the host itself.
    Input,
    /// For a packet that the host passes on.
    Forward,
}

/// A packet that is to pass.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'a> {
    /// Where it is asked for.
    pub hook: Hook,
    /// The network device that it comes by.
    pub from: &'a str,
    /// The network device that it leaves by; none: it is for the host.
    pub to: Option<&'a str>,
    /// Who sends it.
    pub source: Ipv4Addr,
    /// Whom it is for.
    pub target: Ipv4Addr,
    /// Its protocol, as both programs name it: `tcp`, `udp`.
    pub protocol: &'a str,
    /// The port that it is for.
    pub port: u16,
    /// Its state in the kernel's table of connections: `new`, `established`.
    pub state: &'a str,
}

/// Something that a rule asks of a packet, and whether the answer is turned round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// What is asked.
    pub asks: Asks,
    /// Whether the rule is for packets that it does not hold for.
    pub not: bool,
}

/// What can be asked of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asks {
    /// The device that it comes by; the name's end is open where the flag is set.
    From(String, bool),
    /// The device that it leaves by, likewise.
    To(String, bool),
    /// The subnets that its sender is in one of.
    Source(Vec<Subnet>),
    /// The subnets that its target is in one of.
    Target(Vec<Subnet>),
    /// Its protocol is one of these.
    Protocol(Vec<String>),
    /// Its target's port is in one of these runs.
    Port(Vec<(u16, u16)>),
    /// Its state is one of these.
    State(Vec<String>),
    /// Something that is not known here.
    Unknown,
}

/// What a rule does with the packets that it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Lets it pass, as far as this chain goes.
    Accept,
    /// Ends it, silently or with an answer.
    Drop,
    /// Asks another chain, and then the next rule.
    Jump(String),
    /// Asks another chain instead of the rest.
    Goto(String),
    /// Ends this chain.
    Return,
    /// Nothing that decides: it counts, logs, marks.
    Next,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// What it asks; all of it has to hold.
    pub conditions: Vec<Condition>,
    /// What it does.
    pub action: Action,
    /// It as people read it, one line.
    pub text: String,
}

/// A chain of rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chain {
    /// Where the kernel asks it; none: other chains do.
    pub hook: Option<Hook>,
    /// Whether what no rule decides is dropped.
    pub drops: bool,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// The host's packet filter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// Chains by table and name; the table is as people call it: `iptables filter`, `nft ip libvirt_network`.
    pub chains: BTreeMap<(String, String), Chain>,
}

/// What becomes of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It passes.
    Passes,
    /// It ends at this rule or policy.
    Ends(String),
    /// It ends at this rule or policy unless one holds that cannot be judged here.
    Unsure(String),
}

/// Whether a rule is for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// It is.
    Yes,
    /// It is not.
    No,
    /// That is not known.
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
    /// Adds what another program tells.
    pub fn extend(&mut self, other: Ruleset) {
        self.chains.extend(other.chains);
    }

    /// What becomes of a packet: each chain that the kernel asks has to let it pass.
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

    /// Asks the rules of a chain; `doubt` is set where one that cannot be judged might have let the packet pass. One
    /// that might have dropped it is passed over: such rules are for strangers (sets, limits).
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
                // One that may leave this chain leaves the decision to what asked it.
                (_, End::Accepted) => *doubt = true,
                _ => {}
            }
        }
        End::Open
    }
}

impl Rule {
    /// Whether it is for a packet.
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
        let is = |name: &str, open: bool, device: &str| match open {
            true => device.starts_with(name),
            false => device == name,
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
