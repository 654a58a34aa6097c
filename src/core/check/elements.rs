//! Elements without effect: libvirt silently drops unknown and misplaced elements; QEMU's own
//! arguments override others.

use super::report::Report;
use crate::domain::arguments::{Replacing, replacing};
use crate::domain::order::{Dropped, dropped};
use crate::domain::read::Spot;
use crate::domain::{DomainXml, Element};
use crate::finding::Rule;

/// An element that has no effect, unlike its author's intention.
const DROPPED: Rule = Rule::warning("element-dropped", "a misplaced or misspelt element");

/// An owner's choice, which is easily forgotten.
const REPLACED: Rule =
    Rule::note("argument-replaces", "a QEMU argument that overrides an XML element");

/// Rules of this module.
pub const RULES: &[Rule] = &[DROPPED, REPLACED];

/// Checks the elements of a domain.
pub fn check<'t>(domain: &'t DomainXml, report: &mut Report<'t>) {
    let root = domain.root();
    of(root, report);
    for child in root.elements() {
        of(child, report);
    }
    for said in replacing(root) {
        let Replacing { option, element, value } = said.value;
        let message = format!("the QEMU argument `-{option} {value}` overrides {element}");
        report.note(&REPLACED, said.spot, message);
    }
}

/// Checks the children of an element.
fn of<'t>(parent: Element<'t>, report: &mut Report<'t>) {
    for child in parent.elements() {
        let name = child.name();
        let (why, hint) = match (name.split_once(':'), parent.name()) {
            (Some(_), "domain") => continue,
            (Some(("qemu", _)), "devices" | "features" | "cpu" | "os") => {
                ("it belongs right below <domain>".to_owned(), format!("move <{name}> there"))
            }
            (Some(_), _) => continue,
            (None, within) => match dropped(within, name) {
                None => continue,
                Some(Dropped::Misplaced(place)) => {
                    (format!("it belongs into <{place}>"), format!("move it into <{place}>"))
                }
                Some(Dropped::Misspelt(other)) => {
                    (format!("it is spelt like <{other}>"), format!("write <{other}>"))
                }
            },
        };
        let message = format!("libvirt drops <{name}> of <{}>: {why}", parent.name());
        report.add(&DROPPED, Spot::of(child), message, hint);
    }
}
