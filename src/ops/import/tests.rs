//! Imports on a hypervisor in memory: a guest of a DGX-2 on hosts with other GPUs, and refused.

use super::*;
use crate::domain::DomainEdit;
use crate::domain::guest::VirtType;
use crate::guest::{Extra, GuestRequest, NameRequest, render, resolve};
use crate::placement::Occupancy;
use crate::reporter::Answer;
use crate::request::{Allow, Request};
use crate::session::{Confirm, Done};
use crate::stage::{Stage, UUID, manner};
use crate::taken::Taken;
use crate::undo::{self, Undo};
use gpuvm_core::bundle::{DEFINITION, MANIFEST, Manifest, SUMS};
use gpuvm_core::check::check;
use gpuvm_core::finding::Severity;
use gpuvm_core::image::Sha256;
use gpuvm_core::topology::file::from_json;
use gpuvm_core::versions::Versions;
use std::fs;

/// A host with V100s, and one with A100s.
const HOSTS: [&str; 2] = [
    include_str!("../../../topologies/dgx-2.json"),
    include_str!("../../../topologies/dgx-a100.json"),
];

fn host(record: &str) -> Stage {
    let mut stage = Stage::who_says(Answer::Yes);
    stage.world = stage.world.with_topology(from_json(record).unwrap());
    stage
}

/// Writes the bundle of a guest with this many GPUs of a DGX-2, without disks.
fn bundle_of(gpus: u32, edit: impl Fn(String) -> String) -> (tempfile::TempDir, Bundle) {
    let stage = host(HOSTS[0]);
    let request = GuestRequest {
        request: Request::for_gpus(gpus),
        name: NameRequest::Exact(DomainName::new("a").unwrap()),
        template: None,
        virt: VirtType::Kvm,
        networks: Vec::new(),
        taken: Taken { assume_empty: true, ..Taken::default() },
        place: None,
    };
    let planned = resolve(&stage.world, &request, None).unwrap();
    let mut xml = render(&request, &planned, &Extra::default()).unwrap();
    xml.apply(&DomainEdit::SetUuid { uuid: UUID.into() }).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut manifest = Manifest::new("a", UUID, Some("first".into()));
    manifest.gpus = gpus;
    let files = [(MANIFEST, manifest.text()), (DEFINITION, edit(xml.text().to_owned()))];
    let mut sums = String::new();
    for (name, text) in files {
        sums += &format!("{}  {name}\n", Sha256::of_bytes(text.as_bytes()));
        fs::write(dir.path().join(name), text).unwrap();
    }
    fs::write(dir.path().join(SUMS), sums).unwrap();
    let bundle = Bundle::open(dir.path()).unwrap();
    (dir, bundle)
}

fn wanted(bundle: &Bundle) -> ImportRequest {
    ImportRequest {
        path: bundle.path.clone(),
        name: None,
        copy: None,
        disk_dir: Some(bundle.path.clone()),
        gpus: None,
        allow: Allow::default(),
        accept_shared_fabric: true,
    }
}

fn run(stage: &Stage, wanted: &ImportRequest, bundle: &Bundle) -> Result<Done<ImportedGuest>> {
    Session::begin(&stage.world, manner(Confirm::Ask))?.run(|world| import(world, wanted, bundle))
}

/// A definition whose firmware and networks are asked of no host.
fn plain(text: String) -> String {
    let (before, rest) = text.split_once("<interface").unwrap();
    let (_, after) = rest.split_once("</interface>").unwrap();
    format!("{before}{after}")
}

#[test]
fn a_guest_is_planned_for_the_gpus_of_its_new_host() {
    for (record, gpus) in HOSTS.into_iter().flat_map(|record| [0, 1, 4].map(|n| (record, n))) {
        let (_dir, bundle) = bundle_of(gpus, plain);
        let stage = host(record);
        let made = run(&stage, &wanted(&bundle), &bundle).unwrap().change.about;
        let topology = stage.world.topology().unwrap();
        let xml = DomainXml::parse(&stage.fake.definition("a")).unwrap();
        let held = xml.held(false).unwrap();
        assert_eq!((&held.devices, xml.uuid().as_deref()), (&made.devices, Some(UUID)));
        let of_host = made.devices.iter().filter(|bdf| topology.gpus().any(|gpu| gpu.bdf == **bdf));
        assert_eq!(of_host.count(), gpus as usize, "{made:?}");
        let findings = check(&xml, &topology, &Occupancy::default(), &Versions::default());
        let errors: Vec<_> =
            findings.iter().filter(|one| one.severity == Severity::Error).collect();
        assert!(errors.is_empty(), "{gpus}: {errors:?}");
        // It is here now, and no second time; undone it is gone.
        assert_eq!(code(run(&stage, &wanted(&bundle), &bundle)), "libvirt-exists");
        let other = Some(DomainName::new("b").unwrap());
        let again = ImportRequest { name: other, ..wanted(&bundle) };
        assert_eq!(code(run(&stage, &again, &bundle)), "import-identity");
        let undo = Undo { name: "a".into(), force: false, edited: false };
        let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
        let undone = undo::run(&mut session, &stage.world, &undo).unwrap().unwrap();
        assert_eq!(undone.what, ["import of domain `a` of first"]);
        assert!(stage.fake.runs("a").is_none() && stage.journals() == 0);
    }
}

fn code<T: std::fmt::Debug>(refused: Result<T>) -> &'static str {
    let error = refused.unwrap_err();
    error.refusal().unwrap_or_else(|| panic!("{error}")).code
}

#[test]
fn missing_devices_of_a_host_are_named_before_any_change() {
    let stage = host(HOSTS[1]);
    let refused = |gpus: u32, edit: &dyn Fn(String) -> String| {
        let (_dir, bundle) = bundle_of(gpus, edit);
        let refused = run(&stage, &wanted(&bundle), &bundle);
        assert_eq!((stage.fake.calls.get(), stage.journals()), (0, 0));
        code(refused)
    };
    assert_eq!(refused(16, &plain), "clone-no-place");
    let disk = "<devices><disk type='file' device='disk'><source file='/etc/passwd'/>\
                <target dev='vdz' bus='virtio'/></disk>";
    assert_eq!(refused(0, &|text| plain(text).replace("<devices>", disk)), "import-definition");
    let host = "<devices><hostdev mode='subsystem' type='usb'><source><vendor id='0x1'/>\
                <product id='0x2'/></source></hostdev>";
    assert_eq!(refused(0, &|text| plain(text).replace("<devices>", host)), "import-definition");
    let root = "<devices><filesystem type='mount'><source dir='/'/><target dir='x'/></filesystem>";
    assert_eq!(refused(0, &|text| plain(text).replace("<devices>", root)), "import-definition");
    let nic = |source: &str| {
        let nic = format!("<devices><interface type='bridge'><source {source}/></interface>");
        refused(0, &|text| plain(text).replace("<devices>", &nic))
    };
    assert_eq!(nic("network='nosuch'"), "import-network");
    assert_eq!(nic("bridge='nosuch0'"), "import-network");
    let other = |text: String| plain(text).replace(UUID, "33333333-2222-4333-8444-555555555555");
    assert_eq!(refused(0, &other), "import-definition");
    let loader = "<os><loader readonly='yes' type='pflash'>/usr/share/nonexistent/code.fd</loader>";
    let os = |text: String| {
        let (before, rest) = text.split_once("<os").unwrap();
        let (_, rest) = rest.split_once('>').unwrap();
        plain(format!("{before}{loader}{rest}"))
    };
    assert_eq!(refused(0, &os), "import-firmware");
}
