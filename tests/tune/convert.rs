//! Disks that move to another file: the definition, and the metadata of gpuvm's guests.

use super::domains::{Wanted, tuned};
use crate::xml::guests::host;
use gpuvm::domain::guest::{Made, Record, Role, VolumeRef};
use gpuvm::domain::{DomainEdit, DomainXml};
use gpuvm::placement::Occupancy;
use gpuvm::request::Request;
use gpuvm::tune::items::Converted;
use gpuvm::tune::{ItemName, Items};

#[test]
fn a_disk_that_was_made_for_a_guest_is_remembered_with_its_copy() {
    let (dgx2, unoccupied) = (host("dgx-2"), Occupancy::default());
    let text = Wanted::vendor(0, 1).xml(&dgx2);
    let mut ours = DomainXml::parse(&text).unwrap();
    let path = "/raid/dgx-kvm/vol-one";
    let old = Made { role: Role::Os, path: path.into(), volume: None };
    let record = Record {
        request: Request::for_gpus(1),
        made: vec![old.clone()],
        bound: Vec::new(),
        reserved: Vec::new(),
        guarded: Vec::new(),
        vgpus: Vec::new(),
        nccl: None,
        known: Vec::new(),
        user: None,
        assumed: None,
    };
    let (record, devices) = (Box::new(record), Vec::new());
    ours.apply(&DomainEdit::SetMetadata { record, partition: None, devices }).unwrap();
    let volume = VolumeRef { pool: "raid".into(), name: "vol-one.raw".into() };
    let new =
        Made { role: Role::Data, path: "/raid/dgx-kvm/vol-one.raw".into(), volume: Some(volume) };
    let converted = Converted { format: "raw".into(), made: new.clone() };
    let items = Items { convert: [(path.to_owned(), converted)].into(), ..Items::default() };
    let theirs = DomainXml::parse(&text).unwrap();
    for (xml, made) in
        [(&theirs, vec![]), (&ours, vec![old, Made { role: Role::Os, ..new.clone() }])]
    {
        let done = tuned(xml, &dgx2, &unoccupied, &items).unwrap();
        assert_eq!(done.after.made(), made);
        assert!(done.after.disk(path).is_none() && done.after.disk(&new.path).is_some());
        let [change] = &done.changes[..] else { panic!("{:?}", done.changes) };
        assert_eq!(change.item, ItemName::Convert);
        assert_eq!((&*change.was, &*change.now), ("vda qcow2, vdb qcow2", "vda qcow2, vdb raw"));
        let again = tuned(&done.after, &dgx2, &unoccupied, &items).unwrap();
        assert_eq!(again.changes, []);
    }
}
