//! The topology file for NCCL in the guest, as its agent reads it, against the one that the running XML asks for. A file that
//! gpuvm did not write is its admin's own.

use super::report::{Between, Report, Wrong};
use crate::domain::DomainXml;
use crate::finding::Rule;
use crate::nccl::place::{FILE, is_ours};
use crate::nccl::{addresses_of, topology};
use crate::shell::word;
use crate::topology::Topology;

/// NCCL takes a GPU that it does not find in the file for one of a flat guest.
const STALE: Rule =
    Rule::error("nccl-file", "a topology file for NCCL that names functions at other addresses");

/// Rules of this module.
pub const RULES: &[Rule] = &[STALE];

/// Compares.
pub fn compare(live: &DomainXml, found: &str, host: &Topology, report: &mut Report) {
    let Ok(told) = topology(live, host) else { return };
    if !is_ours(found) || told.system.to_string() == found {
        return;
    }
    let hint = format!("`gpuvm nccl {} --install` writes it anew", word(&live.name()));
    let mut tell = |what: String, expected: String, found: String| {
        let at = format!("{FILE} of the guest");
        report.differs(&STALE, Between::Guest, Wrong { what, expected, found, at, hint: &hint });
    };
    let (functions, named) = (told.system.functions(), addresses_of(found));
    let moved = functions.iter().zip(&named).filter(|((_, guest), named)| guest != *named);
    let moved: Vec<_> = moved.collect();
    if functions.len() != named.len() || moved.is_empty() {
        let prints = format!("as `gpuvm nccl {}` prints it", word(&live.name()));
        return tell("NCCL's topology file".into(), prints, "another one".into());
    }
    for ((host, guest), named) in moved {
        tell(format!("address of {host} that NCCL is told"), guest.to_string(), named.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::file::from_json;

    /// A guest with a GPU of a DGX H100, below an expander bus of this number.
    fn domain(bus: u32) -> DomainXml {
        let text = format!(
            "<domain><name>a</name><os><type arch='x86_64' machine='q35'>hvm</type></os><devices>\
             <controller type='pci' index='1' model='pcie-expander-bus'><target busNr='{bus}'/>\
             <address type='pci' bus='0' slot='4'/></controller><controller type='pci' index='2' \
             model='pcie-root-port'><address type='pci' bus='1' slot='0'/></controller>\
             <hostdev mode='subsystem' type='pci'><source><address domain='0' bus='0x1b' slot='0' \
             function='0'/></source><address type='pci' bus='2' slot='0' function='0'/></hostdev>\
             </devices></domain>"
        );
        DomainXml::parse(&text).unwrap()
    }

    #[test]
    fn a_file_of_other_addresses_is_found_with_both() {
        let host = from_json(include_str!("../../../topologies/dgx-h100.json")).unwrap();
        let (old, new) = (domain(100), domain(120));
        let found = |file: &str| {
            let mut report = Report::default();
            compare(&new, file, &host, &mut report);
            report.finish()
        };
        let file = |domain| topology(domain, &host).unwrap().system.to_string();
        assert!(found(&file(&new)).is_empty());
        let stale = found(&file(&old));
        let [one] = &stale[..] else { panic!("{stale:?}") };
        assert_eq!(one.rule, "nccl-file");
        for part in ["0000:1b:00.0", "0000:79:00.0", "0000:65:00.0"] {
            assert!(one.says.message.contains(part), "{part}: {one:?}");
        }
        assert!(one.hint.contains("`gpuvm nccl a --install`"), "{one:?}");
        // Of the same addresses with another link, and one that is not ours.
        let other = file(&new).replace("32.0 GT/s", "16.0 GT/s");
        assert_eq!(found(&other).len(), 1);
        assert!(found(&file(&old).replace("Made by gpuvm", "Mine")).is_empty());
    }
}
