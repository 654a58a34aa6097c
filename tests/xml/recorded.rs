//! Guests of the hosts that others recorded: nothing for our checker, and valid by libvirt's schema. What its QEMU
//! driver says is asked for our own recorded hosts only (`tools`): on some of the others libvirt asks QEMU anew what it
//! can do for each command, which takes hours.

use super::tools::{guests_of, has, invalid};
use crate::support::shared::{Recorded, each_shared_host};
use gpuvm::check::{Severity, check};
use gpuvm::domain::DomainXml;
use gpuvm::placement::Occupancy;
use std::fs;

/// A file's name as a domain's.
fn plain(name: &str) -> String {
    let name = name.split(".tar").next().unwrap().trim_end_matches(".xml");
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

/// What our checker says is wrong with a guest of a host on which nothing is taken.
fn wrong(host: &Recorded<'_>, xml: &DomainXml) -> Vec<String> {
    check(xml, host.topology, &Occupancy::default())
        .into_iter()
        .filter(|finding| finding.severity == Severity::Error)
        .map(|finding| format!("{}: {}: {}", host.name, finding.path, finding.message))
        .collect()
}

#[test]
fn guests_of_every_shared_host_are_sound_and_valid() {
    let validate = has("virt-xml-validate");
    let dir = tempfile::tempdir().unwrap();
    let (mut guests, mut bad) = (0, Vec::new());
    let look = |host: &Recorded<'_>| {
        // The template is for x86-64, and is refused elsewhere.
        if !matches!(host.topology.machine().architecture.as_deref(), None | Some("x86_64")) {
            return;
        }
        for (name, (_, _, xml)) in guests_of(&plain(host.name), host.topology) {
            guests += 1;
            bad.extend(wrong(host, &xml));
            if validate {
                let file = dir.path().join(format!("{name}.xml"));
                fs::write(&file, xml.text()).unwrap();
                bad.extend(invalid(&file));
            }
        }
    };
    let Some(hosts) = each_shared_host(look) else { return };
    assert_eq!(bad, Vec::<String>::new());
    assert!(hosts >= 40 && guests >= 100, "{guests} guests on {hosts} hosts");
}
