//! The checker on a hypervisor in memory, with the processors of a DGX-2: the parts that it checks,
//! and those that it reports as not checked.

use super::*;
use crate::error::Error;
use crate::hypervisor::HypervisorErrorKind;
use crate::reporter::Answer;
use crate::stage::{Stage, UUID};
use gpuvm_core::topology::file::from_json;

/// A definition with a pin to a pcpu that no host has.
fn pinned_beyond() -> String {
    format!(
        "<domain type='kvm'><name>a</name><uuid>{UUID}</uuid><memory>1048576</memory>\
         <vcpu>1</vcpu><cputune><vcpupin vcpu='0' cpuset='9999'/></cputune>\
         <os><type arch='x86_64' machine='q35'>hvm</type></os></domain>"
    )
}

/// Domain `a` on a DGX-2.
fn stage(runs: bool) -> Stage {
    let mut stage = Stage::who_says(Answer::Nobody);
    let host = from_json(include_str!("../../../topologies/dgx-2.json")).unwrap();
    stage.world = stage.world.with_topology(host);
    stage.fake.put_xml(&pinned_beyond(), runs);
    stage
}

/// A request to check a source.
fn named(source: Source) -> Check {
    Check { source, taken: Taken::default() }
}

fn is_unseen(checked: &Checked, what: &str) -> bool {
    checked.not_checked.iter().any(|text| text.starts_with(what))
}

#[test]
fn a_domain_is_judged_as_it_is_defined_and_its_own_pages_do_not_count() {
    for runs in [false, true] {
        let domain = named(Source::Domain("a".into()));
        let checked = check(&stage(runs).world, &domain).unwrap();
        assert!(!checked.findings.is_empty() && checked.domain == "a", "{checked:?}");
        assert!(checked.findings.is_sorted_by_key(|finding| finding.severity));
        assert_eq!(is_unseen(&checked, "free huge pages"), runs);
        assert!(!is_unseen(&checked, "other domains") && !is_unseen(&checked, "whose the disks"));
    }
}

#[test]
fn one_that_is_gone_is_an_error() {
    let stage = stage(false);
    let error = check(&stage.world, &named(Source::Domain("b".into()))).unwrap_err();
    let Error::Hypervisor(error) = error else { panic!("{error}") };
    assert_eq!(error.kind, HypervisorErrorKind::NoDomain);
}

#[test]
fn a_file_is_judged_without_libvirt_and_what_that_leaves_out_is_said() {
    let stage = stage(false);
    let file = stage.dir.path().join("a.xml");
    std::fs::write(&file, pinned_beyond().replace("<name>a</name>", "")).unwrap();
    let file = file.display().to_string();
    let wanted = named(Source::File(file.clone()));
    let checked = check(&stage.world, &wanted).unwrap();
    assert_eq!(checked.domain, file);
    assert!(!is_unseen(&checked, "other domains"));
    stage.fake.gone.set(true);
    let checked = check(&stage.world, &wanted).unwrap();
    assert!(!checked.findings.is_empty());
    for what in ["other domains (", "versions of QEMU and libvirt"] {
        assert!(is_unseen(&checked, what), "{what}: {checked:?}");
    }
}

#[test]
fn a_record_that_cannot_be_read_is_named_beside_the_findings() {
    let stage = stage(false);
    let metadata = format!(
        "<metadata><gpuvm:guest xmlns:gpuvm='urn:gpuvm:domain:1' uuid='{UUID}'>\
         <gpuvm:request>{{</gpuvm:request></gpuvm:guest></metadata><memory>"
    );
    stage.fake.put_xml(&pinned_beyond().replace("<memory>", &metadata), false);
    let checked = check(&stage.world, &named(Source::Domain("a".into()))).unwrap();
    assert!(!checked.findings.is_empty());
    assert_eq!(stage.caller.heard("its record cannot be read"), 1);
}
