//! Compares the guest's NCCL topology file, as read by its agent, with the one for the running XML;
//! if it cannot be read, the one installed by the seed. A file that gpuvm did not write belongs to
//! the guest's admin.

use super::Subject;
use super::report::{Between, Report, Wrong};
use crate::bdf::Bdf;
use crate::domain::DomainXml;
use crate::domain::setting::AGENT;
use crate::finding::Rule;
use crate::nccl::place::{self, FILE, is_ours};
use crate::nccl::{NotedSystem, addresses_of, topology};
use crate::shell::word;
use crate::topology::Topology;

/// NCCL treats a GPU missing in the file as in a flat guest.
const STALE: Rule =
    Rule::error("nccl-file", "a topology file for NCCL that names functions at other addresses");

/// Rules of this module.
pub const RULES: &[Rule] = &[STALE];

/// Compares the file that the guest has.
pub fn compare(live: &DomainXml, found: &str, host: &Topology, report: &mut Report) {
    let Ok(noted) = topology(live, host) else { return };
    // The first line is gpuvm's own, and differs between versions.
    let body = |file: &str| file.split_once('\n').map(|(_, body)| body.to_owned());
    if !is_ours(found) || body(&noted.system.to_string()) == body(found) {
        return;
    }
    let at = format!("{FILE} of the guest");
    differs(live, &noted, &addresses_of(found), &at, report);
}

/// Compares the file installed by the seed if the guest does not report its file. A stopped guest
/// with an agent may have got another one since.
pub fn compare_seeded(subject: &Subject<'_>, host: &Topology, report: &mut Report) {
    let Some(seeded) = subject.definition.seeded_nccl() else { return };
    let is_told = subject.guest.is_some_and(|view| view.nccl.is_some() || view.untold.is_empty());
    let current = match subject.live {
        Some(live) => live,
        None if has_channel(subject.definition) => return,
        None => subject.definition,
    };
    let Ok(noted) = topology(current, host) else { return };
    if is_told || place::sum_of(&noted.system.to_string()) == Some(&seeded.sum) {
        return;
    }
    let named: Vec<Bdf> = seeded.functions.iter().map(|(_, guest)| *guest).collect();
    differs(current, &noted, &named, "the file that the guest's seed brought", report);
}

/// Whether a guest has a channel for an agent.
fn has_channel(domain: &DomainXml) -> bool {
    let devices = domain.root().child("devices");
    let channels = devices.into_iter().flat_map(|devices| devices.children("channel"));
    let mut targets = channels.filter_map(|channel| channel.child("target"));
    targets.any(|target| target.attr("name").as_deref() == Some(AGENT))
}

/// Reports how a file differs from its required content.
fn differs(domain: &DomainXml, noted: &NotedSystem, named: &[Bdf], at: &str, report: &mut Report) {
    let name = domain.name();
    let name = word(&name);
    let hint = &if noted.is_needed {
        format!("`gpuvm nccl {name} --install` rewrites it")
    } else {
        format!("`gpuvm nccl {name} --uninstall` removes it: the guest needs none")
    };
    let mut tell = |what: String, expected: String, found: String| {
        let at = at.to_owned();
        report.differs(&STALE, Between::Guest, Wrong { what, expected, found, at, hint });
    };
    let functions = noted.system.functions();
    let moved = functions.iter().zip(named).filter(|((_, guest), named)| guest != *named);
    let moved: Vec<_> = moved.collect();
    if functions.len() != named.len() || moved.is_empty() {
        let prints = format!("as `gpuvm nccl {name}` prints it");
        return tell("NCCL's topology file".into(), prints, "another one".into());
    }
    for ((host, guest), named) in moved {
        tell(format!("address of {host} that NCCL reads"), guest.to_string(), named.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::file::from_json;
    use crate::verify::guest::View;

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
        assert!(one.hint.contains("`gpuvm nccl a --uninstall`"), "one GPU needs none: {one:?}");
        assert!(found(&file(&new).replacen("Sum", "No sum", 1)).is_empty());
        // A file with the same addresses but another link, and one that is not ours.
        let other = file(&new).replace("32.0 GT/s", "16.0 GT/s");
        assert_eq!(found(&other).len(), 1);
        assert!(found(&file(&old).replace("Made by gpuvm", "Mine")).is_empty());
    }

    #[test]
    fn without_an_agent_the_file_of_the_seed_is_compared() {
        let host = from_json(include_str!("../../../topologies/dgx-h100.json")).unwrap();
        let system = topology(&domain(100), &host).unwrap().system;
        let seeded = |bus: u32, devices: &str| {
            let functions = system.functions().into_iter();
            let functions =
                functions.map(|(bdf, guest)| format!("<g:device bdf='{bdf}' guest='{guest}'/>"));
            let sum = place::sum_of(&system.to_string()).unwrap().to_owned();
            let metadata = format!(
                "<metadata><g:guest xmlns:g='urn:gpuvm:domain:1'><g:nccl \
                 sum='{sum}'>{}</g:nccl></g:guest></metadata>",
                functions.collect::<String>()
            );
            let text = domain(bus).text().replace("<os>", &format!("{metadata}<os>"));
            DomainXml::parse(&text.replace("</devices>", &format!("{devices}</devices>"))).unwrap()
        };
        let found = |definition: &DomainXml, runs: bool, view: Option<&View>| {
            let live = runs.then_some(definition);
            let subject = Subject {
                definition,
                live,
                process: None,
                guest: view,
                host: None,
                partitions: None,
            };
            let mut report = Report::default();
            compare_seeded(&subject, &host, &mut report);
            report.finish()
        };
        let (same, moved) = (seeded(100, ""), seeded(120, ""));
        assert_eq!(same.seeded_nccl().unwrap().functions, system.functions());
        assert!(found(&same, true, None).is_empty());
        for runs in [true, false] {
            let stale = found(&moved, runs, None);
            assert_eq!(stale.len(), 1);
            for part in ["0000:79:00.0", "0000:65:00.0"] {
                assert!(stale[0].says.message.contains(part), "{part}: {stale:?}");
            }
        }
        // The guest's report counts, and one with an agent may have got another file before it
        // stopped.
        let empty = View::default();
        assert!(found(&moved, true, Some(&empty)).is_empty());
        let silent = View { untold: vec!["its files"], ..View::default() };
        assert_eq!(found(&moved, true, Some(&silent)).len(), 1);
        let channel =
            "<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>";
        assert!(found(&seeded(120, channel), false, None).is_empty());
        assert_eq!(found(&seeded(120, channel), true, None).len(), 1);
    }
}
