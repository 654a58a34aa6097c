//! Rules on the connections of a domain's NICs. The facts are read on the machine and passed in.

use super::report::{Finding, Report};
use crate::domain::DomainXml;
use crate::domain::read::Spot;
use crate::finding::Rule;

/// libvirt defines it, and its start fails.
const SOURCE: Rule = Rule::error(
    "nic-source",
    "a NIC on a network, bridge or network device that does not exist, or takes no guests",
);

/// Rules of this module.
pub const RULES: &[Rule] = &[SOURCE];

/// The obstacle to connecting a NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicFact {
    /// Index of the `<interface>` in the definition, from 0.
    pub nth: usize,
    /// The reason.
    pub why: String,
    /// The remedy.
    pub hint: String,
}

/// Checks the NICs of a domain against the known facts of the machine.
pub fn nics(domain: &DomainXml, facts: &[NicFact]) -> Vec<Finding> {
    let devices = domain.root().children("devices");
    let all: Vec<_> = devices.flat_map(|devices| devices.children("interface")).collect();
    let mut report = Report::default();
    for NicFact { nth, why, hint } in facts {
        let Some(nic) = all.get(*nth) else { continue };
        let spot = Spot::of(nic.child("source").unwrap_or(*nic));
        report.add(&SOURCE, spot, why.clone(), hint.clone());
    }
    report.finish()
}
