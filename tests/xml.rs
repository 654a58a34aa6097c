//! Domain XML: the effect of edits, and libvirt's judgement of the result.

mod disks;
mod export;
#[path = "../src/core/domain/tests/guests.rs"]
pub mod guests;
mod recorded;
pub mod tools;

#[test]
fn guests_are_made_on_every_recorded_host() {
    let dir = std::fs::read_dir(crate::support::project().join("topologies")).unwrap();
    let mut files: Vec<_> =
        dir.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    let hosts: Vec<_> = guests::hosts().into_iter().map(|(name, _)| name + ".json").collect();
    assert_eq!(files, hosts);
}
