//! The way of a peer-to-peer transaction below a switch (gpuvm-hardware(7), PEER-TO-PEER AND ACS).
//!
//! The paths of two functions to the root part below a common bridge. What happens is decided at
//! the port right below it on each side, the divergence port: a request by that of the requester,
//! the completion of a read by that of the completer. Ports further down only may reject
//! translated requests; ports further up have no part in it.

use super::registers::{Acs, bits};
use crate::bdf::Bdf;
use serde::Serialize;
use std::fmt;

/// A port between a function and the bridge at which it meets its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// Its address.
    pub at: Bdf,
    /// Its ACS; `None` if unknown.
    pub acs: Option<Acs>,
}

/// Whether requests of a function carry translated addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Translation {
    /// No: it has no ATS.
    Absent,
    /// No: its ATS is off.
    Off,
    /// Yes.
    On,
}

/// One of two functions that meet below a switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// The function.
    pub function: Bdf,
    /// Its address translation; `None` if unknown.
    pub translation: Option<Translation>,
    /// Whether its requests may be ordered loosely; `None` if unknown.
    pub relaxed: Option<bool>,
    /// The function whose register says so: the physical one of a virtual function.
    pub ordered_by: Bdf,
    /// The ports above it, its own first, its divergence port last.
    pub ports: Vec<Port>,
}

/// The kind of transfer from a function to its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// Writes its memory.
    Write,
    /// Reads its memory.
    Read,
}

/// The way of a transaction. Of request and completion of a read the later one of this list counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Through the switch.
    Switch,
    /// Not known.
    Unknown,
    /// Over the root complex.
    Root,
    /// A port rejects it.
    Rejected,
}

/// Why a transaction does not go through the switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// The requester has no ATS.
    NoAts,
    /// The requester's ATS is off.
    AtsOff,
    /// The port does not pass translated requests on: bit DT is off.
    NoDt,
    /// The port cannot: it has no bit DT.
    DtUnsupported,
    /// The port rejects translated requests: bit TB is on.
    Tb,
    /// The port has egress control on.
    Egress,
    /// The port redirects completions, and the requester's relaxed ordering is off.
    CrWithoutRo,
    /// A register could not be read.
    Unknown,
}

/// One reason, and the port or function that it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Block {
    /// The reason.
    pub code: Code,
    /// The port or function.
    pub at: Bdf,
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at;
        match self.code {
            Code::NoAts => write!(f, "{at} has no ATS"),
            Code::AtsOff => write!(f, "ATS of {at} is off"),
            Code::NoDt => write!(f, "bit DT of {at} is off"),
            Code::DtUnsupported => write!(f, "{at} has no bit DT"),
            Code::Tb => write!(f, "bit TB of {at} is on"),
            Code::Egress => write!(f, "bit EC of {at} is on"),
            Code::CrWithoutRo => write!(f, "relaxed ordering of {at} is off"),
            Code::Unknown => write!(f, "registers of {at} are unknown"),
        }
    }
}

/// The way of a transaction, and why it is not the switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Route {
    /// The way.
    pub way: Way,
    /// Every reason; empty if the way is the switch.
    pub blocked: Vec<Block>,
}

impl Route {
    fn by(way: Way, code: Code, at: Bdf) -> Route {
        Route { way, blocked: vec![Block { code, at }] }
    }

    fn direct() -> Route {
        Route { way: Way::Switch, blocked: Vec::new() }
    }
}

/// Returns the route of transfers from one function to another.
pub fn route(from: &End, to: &End, op: Op) -> Route {
    let mut route = request(from);
    if op == Op::Read && matches!(route.way, Way::Switch | Way::Root) {
        let Route { way, blocked } = completion(from, to);
        route.way = route.way.max(way);
        route.blocked.extend(blocked);
    }
    route
}

fn request(from: &End) -> Route {
    let Some(Port { at, acs }) = from.ports.last().copied() else {
        return Route::by(Way::Unknown, Code::Unknown, from.function);
    };
    let Some(acs) = acs else { return Route::by(Way::Unknown, Code::Unknown, at) };
    let Some(translation) = from.translation else {
        let with = |translation| request(&End { translation: Some(translation), ..from.clone() });
        let (off, on) = (with(Translation::Off), with(Translation::On));
        // It may make no difference.
        let unknown = Route::by(Way::Unknown, Code::Unknown, from.function);
        return if off.way == on.way { on } else { unknown };
    };
    let mut blocked = match translation {
        Translation::On => match translated(from) {
            Some(rejected) => return rejected,
            None if acs.is_on(bits::DT) => return Route::direct(),
            None => Vec::new(),
        },
        Translation::Absent => vec![Block { code: Code::NoAts, at: from.function }],
        Translation::Off => vec![Block { code: Code::AtsOff, at: from.function }],
    };
    if !acs.is_on(bits::RR | bits::EC) {
        return Route::direct();
    }
    // Both are needed: translated requests, and a port that lets these through.
    if !acs.is_on(bits::DT) {
        let code = if acs.cap & bits::DT == 0 { Code::DtUnsupported } else { Code::NoDt };
        blocked.push(Block { code, at });
    }
    if acs.is_on(bits::EC) {
        blocked.push(Block { code: Code::Egress, at });
    }
    Route { way: Way::Root, blocked }
}

/// Returns whether a port rejects a translated request, or may; `None` if none does.
fn translated(from: &End) -> Option<Route> {
    let rejects = |port: &&Port| port.acs.is_some_and(|acs| acs.is_on(bits::TB));
    if let Some(port) = from.ports.iter().find(rejects) {
        return Some(Route::by(Way::Rejected, Code::Tb, port.at));
    }
    let unknown = from.ports.iter().find(|port| port.acs.is_none());
    unknown.map(|port| Route::by(Way::Unknown, Code::Unknown, port.at))
}

/// The way of the completion of a read.
fn completion(from: &End, to: &End) -> Route {
    let Some(Port { at, acs }) = to.ports.last().copied() else {
        return Route::by(Way::Unknown, Code::Unknown, to.function);
    };
    match acs {
        None if from.relaxed == Some(true) => Route::direct(),
        None => Route::by(Way::Unknown, Code::Unknown, at),
        Some(acs) if !acs.is_on(bits::CR) => Route::direct(),
        Some(_) => match from.relaxed {
            Some(true) => Route::direct(),
            Some(false) => Route::by(Way::Root, Code::CrWithoutRo, from.ordered_by),
            None => Route::by(Way::Unknown, Code::Unknown, from.ordered_by),
        },
    }
}
