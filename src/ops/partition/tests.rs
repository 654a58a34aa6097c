//! Partitions of guests on a machine in memory, with a Fabric Manager in memory.

use super::*;
use crate::apply::partition::{Switch, Watched};
use crate::autostart::refuse_without_hook;
use crate::capacity::{CapacityRequest, capacity};
use crate::check::{Check, check};
use crate::claim::refuse_strangers;
use crate::domain::guest::VirtType;
use crate::error::Error;
use crate::guest::{GuestRequest, NameRequest};
use crate::placement::Topic;
use crate::plan::plan;
use crate::reporter::Answer;
use crate::request::Request;
use crate::set::{SetRequest, set};
use crate::source::Source;
use crate::stage::Stage;
use crate::taken::Taken;
use crate::topology::{Partition, PartitionId, Trust};
use crate::tune::answer::warnings;
use crate::tune::{Tune, look};
use crate::world::Settings;
use gpuvm_core::fabric::{Code, FabricVersions, ListedGpu, Pauses};
use gpuvm_core::topology::file::from_json;
use gpuvm_core::tune::{Item, Items};
use gpuvm_host::fabric::{ManagerRefusal, Stop};
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::time::Duration;

const OWN: &str = "11111111-2222-4333-8444-555555555555";
const OTHER: &str = "22222222-2222-4333-8444-555555555555";
/// The partitions of an HGX H100 that matter here.
const SETS: [(u32, &[u32]); 4] =
    [(0, &[1, 2, 3, 4, 5, 6, 7, 8]), (3, &[1, 3]), (4, &[2, 4]), (7, &[1])];

#[derive(Default)]
struct Fm {
    active: RefCell<BTreeSet<u32>>,
    /// The code that every call returns.
    code: Cell<Option<i32>>,
    /// Whether its partition definitions have changed.
    is_changed: Cell<bool>,
}

impl Fm {
    fn call(&self, call: &str) -> Result<(), ManagerRefusal> {
        let call = call.to_owned();
        let refused = |code| Err(ManagerRefusal::Call { call, code: Code(code) });
        self.code.get().map_or(Ok(()), refused)
    }
}

impl Partitions for Fm {
    fn list(&self) -> Result<Vec<Listed>, ManagerRefusal> {
        self.call("fmGetSupportedFabricPartitions")?;
        let gpu = |&module: &u32| ListedGpu { module, bus: None, links: 18, most: 18 };
        let sets = SETS.iter().map(|(id, modules)| Listed {
            id: *id,
            active: self.active.borrow().contains(id),
            gpus: modules.iter().skip(usize::from(self.is_changed.get())).map(gpu).collect(),
        });
        Ok(sets.collect())
    }
    fn activate(&self, partition: u32, _: &[Bdf], _: Stop<'_>) -> Result<(), ManagerRefusal> {
        self.call("fmActivateFabricPartition")?;
        self.active.borrow_mut().insert(partition);
        Ok(())
    }
    fn deactivate(&self, partition: u32, _: Stop<'_>) -> Result<(), ManagerRefusal> {
        self.call("fmDeactivateFabricPartition")?;
        self.active.borrow_mut().remove(&partition);
        Ok(())
    }
    fn pauses(&self) -> Pauses {
        Pauses::NONE
    }
}

/// A machine of a test with such a Fabric Manager.
struct Place {
    stage: Stage,
    fm: Rc<Fm>,
    /// Its GPUs, by module id from 1.
    gpus: Vec<Bdf>,
}

impl Place {
    /// A DGX H100 whose GPUs are bound for guests; `lost`: the module whose GPU has left the bus.
    fn new(lost: Option<u32>) -> Place {
        let text = include_str!("../../../topologies/dgx-h100.json");
        let mut parts = from_json(text).unwrap().parts().clone();
        let gpus: Vec<Bdf> = Topology::new(parts.clone()).unwrap().gpus().map(|g| g.bdf).collect();
        let of = |module: u32| gpus[module as usize - 1];
        let is_lost = |bdf: Bdf| lost.is_some_and(|module| of(module) == bdf);
        parts.devices.retain(|device| !is_lost(device.bdf));
        for device in parts.devices.iter_mut().filter(|device| gpus.contains(&device.bdf)) {
            device.driver = Some("vfio-pci".into());
        }
        let fabric = &mut parts.fabric;
        fabric.model = FabricModel::SharedNvswitch;
        fabric.links.retain(|link| !is_lost(link.a) && !is_lost(link.b));
        let known = (1..=8).map(|module| (of(module), module));
        fabric.module_ids = known.filter(|(bdf, _)| !is_lost(*bdf)).collect();
        let sets = SETS.iter().filter(|(_, modules)| !modules.iter().any(|m| is_lost(of(*m))));
        let set = |(id, modules): &(u32, &[u32])| Partition {
            id: PartitionId(*id),
            gpus: modules.iter().map(|module| of(*module)).collect(),
            nvlinks_per_gpu: 18,
            nvswitches: 0,
            nvswitch_pool: Vec::new(),
            active: false,
        };
        fabric.partitions = sets.map(set).collect();
        let mut stage = Stage::who_says(Answer::Yes);
        let fm = Rc::new(Fm::default());
        let settings = Settings {
            connect: "qemu:///system".into(),
            state: Some(stage.dir.path().to_owned()),
            ..Settings::default()
        };
        let desk = FabricDesk {
            manager: Rc::clone(&fm) as Rc<dyn Partitions>,
            file: stage.dir.path().join("fabric.json"),
            versions: Some(FabricVersions::default()),
            is_of_vgpu: false,
        };
        let hypervisor = Rc::clone(&stage.fake) as Rc<dyn crate::hypervisor::Hypervisor>;
        let world = World::on(hypervisor, settings, stage.caller.clone());
        stage.world = world.with_topology(Topology::new(parts).unwrap()).with_fabric(desk);
        Place { stage, fm, gpus }
    }

    /// The same place with these versions.
    fn with_versions(mut self, manager: &str, driver: &str) -> Place {
        let (manager, driver) = (Some(manager.into()), Some(driver.into()));
        let known = Some(FabricVersions { manager, driver, library: None });
        let desk = self.stage.world.known_fabric().unwrap();
        let world = std::mem::replace(&mut self.stage.world, Stage::who_says(Answer::Yes).world);
        self.stage.world = world.with_fabric(FabricDesk { versions: known, ..desk });
        self
    }

    fn of(&self, modules: &[u32]) -> Vec<Bdf> {
        modules.iter().map(|module| self.gpus[*module as usize - 1]).collect()
    }

    /// A domain with the GPUs of these modules.
    fn domain(&self, name: &str, uuid: &str, modules: &[u32]) -> DomainXml {
        let hostdev = |bdf: Bdf| {
            let (bus, slot) = (bdf.bus(), bdf.device());
            format!(
                "<hostdev mode='subsystem' type='pci' managed='no'><source><address domain='0' \
                 bus='{bus}' slot='{slot}' function='0'/></source></hostdev>"
            )
        };
        let devices: String = self.of(modules).into_iter().map(hostdev).collect();
        let text = format!(
            "<domain type='kvm'><name>{name}</name><uuid>{uuid}</uuid><memory>1024</memory>\
             <vcpu>1</vcpu><os><type>hvm</type></os><devices>{devices}</devices></domain>"
        );
        DomainXml::parse(&text).unwrap()
    }

    /// Marks a partition as active and recorded for a domain.
    fn has(&self, id: u32, uuid: &str) {
        let modules = SETS.iter().find(|(known, _)| *known == id).unwrap().1;
        let mut file = RestoreFile::lock(&self.file(), Duration::ZERO).unwrap();
        let entry = RestoreEntry {
            id,
            modules: modules.iter().copied().collect(),
            domain: uuid.into(),
            vfs: Vec::new(),
        };
        file.write(file.list().with(entry)).unwrap();
        self.fm.active.borrow_mut().insert(id);
    }

    fn file(&self) -> PathBuf {
        self.stage.dir.path().join("fabric.json")
    }

    /// The step that a guest with these modules needs to start.
    fn start(&self, modules: &[u32]) -> Result<Option<Step>> {
        let topology = self.stage.world.topology().unwrap();
        let devices = self.of(modules);
        let guest = Guest { name: "a", uuid: Some(OWN), devices: &devices, vgpus: &[] };
        Ok(to_start(&self.stage.world, &topology, guest)?.pop())
    }

    /// The same if it is refused: code, text, hint.
    fn refused(&self, modules: &[u32]) -> (&'static str, String, String) {
        let mut error = self.start(modules).unwrap_err();
        loop {
            match error {
                Error::Doing { source, .. } => error = *source,
                Error::Refused(refusal) => return (refusal.code, refusal.message, refusal.hint),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Performs the deactivations among these steps. Returns the active partitions then, by Fabric
    /// Manager and by the file.
    fn after(&self, steps: &[Step]) -> (Vec<u32>, Vec<u32>) {
        let guests = |_: &[Bdf]| Ok::<(), crate::apply::bind::BindError>(());
        let (manager, file, wait) = (&*self.fm as &dyn Partitions, &self.file(), Duration::ZERO);
        let switch = Switch { manager, file, wait, guests: &guests };
        for step in steps {
            if let Step::Partition(PartitionChange::Deactivate(step)) = step {
                switch.deactivate(step, &mut Watched(None), &mut |_| Ok(())).unwrap();
            }
        }
        let kept = RestoreFile::read(file).unwrap().partitions;
        (self.fm.active.borrow().iter().copied().collect(), kept.iter().map(|e| e.id).collect())
    }
}

fn shown(steps: &[Step]) -> Vec<String> {
    steps.iter().map(Step::to_string).collect()
}

#[test]
fn a_start_activates_the_partition_of_exactly_its_gpus() {
    let place = Place::new(None);
    let step = |modules: &[u32]| place.start(modules).unwrap().map(|step| step.to_string());
    assert_eq!(step(&[3, 1]).unwrap(), "activate NVLink partition 3 (modules 1, 3)");
    assert_eq!(step(&[1]).unwrap(), "activate NVLink partition 7 (module 1)");
    assert_eq!(step(&[]), None);
    // Its own partition is still active.
    place.has(3, OWN);
    assert_eq!(step(&[1, 3]).unwrap(), "activate NVLink partition 3 (modules 1, 3)");
    // While Fabric Manager is starting, the known topology of the host is used.
    place.fm.code.set(Some(-8));
    assert!(step(&[1, 3]).is_some());
}

#[test]
fn a_plan_avoids_refusals_at_start_or_says_why() {
    let place = Place::new(None);
    let world = &place.stage.world;
    let planned = |gpus: u32| {
        let guest = GuestRequest {
            request: Request::for_gpus(gpus),
            name: NameRequest::Usual,
            template: None,
            virt: VirtType::Kvm,
            networks: Vec::new(),
            taken: Taken::default(),
            place: None,
        };
        let found = plan(world, &guest).unwrap().placement;
        let said = found.reasons.iter().filter(|one| one.choice == Topic::Partition);
        let said =
            said.map(|one| format!("{}{}", if one.compromise { "! " } else { "" }, one.because));
        (found.partition.unwrap().0, said.collect::<Vec<_>>().join("\n"), found.devices)
    };
    let fits = || {
        let like = Request::for_gpus(1);
        let wanted = CapacityRequest { like, sizes: vec![2, 8], taken: Taken::default() };
        let found = capacity(world, &wanted).unwrap().capacity;
        (found.sizes.iter().map(|size| size.now).collect::<Vec<_>>(), found.warnings.join("\n"))
    };
    let agrees = |devices: &[Bdf]| {
        let topology = world.topology().unwrap();
        let guest = Guest { name: "a", uuid: Some(OWN), devices, vgpus: &[] };
        to_start(world, &topology, guest).is_ok()
    };
    let (first, said, devices) = planned(2);
    assert!(said.starts_with("gpuvm activates partition") && agrees(&devices), "{said}");
    assert_eq!(fits(), (vec![2, 1], String::new()));
    let other = if first == 3 { 4 } else { 3 };

    // Nobody uses it.
    place.fm.active.borrow_mut().insert(first);
    let (id, said, devices) = planned(2);
    assert_eq!(id, other, "{said}");
    assert!(said.starts_with("gpuvm activates partition") && agrees(&devices), "{said}");
    let release = format!("`gpuvm fabric release {first}` deactivates it");
    let (sizes, warnings) = fits();
    assert_eq!((sizes, warnings.matches(&release).count()), (vec![1, 0], 1), "{warnings}");
    let (_, said, devices) = planned(8);
    assert!(
        said.starts_with("! `create` refuses partition 0") && said.ends_with(&release),
        "{said}"
    );
    assert!(!agrees(&devices));
    place.fm.active.borrow_mut().insert(other);
    let (_, said, devices) = planned(2);
    assert!(said.starts_with("! ") && said.contains("`gpuvm fabric release "), "{said}");
    assert!(!agrees(&devices));

    // A guest runs with it.
    place.fm.active.borrow_mut().remove(&other);
    let modules = SETS.iter().find(|(id, _)| *id == first).unwrap().1;
    place.stage.fake.put_xml(place.domain("b", OTHER, modules).text(), true);
    assert_eq!((planned(2).0, fits()), (other, (vec![1, 0], String::new())));

    // Fabric Manager is starting; it does not answer.
    place.fm.code.set(Some(-8));
    assert!(agrees(&planned(2).2));
    place.fm.code.set(Some(-9));
    let (_, said, devices) = planned(2);
    assert!(
        said.starts_with("! ") && said.contains("(-9)") && said.contains("systemctl"),
        "{said}"
    );
    let (sizes, warnings) = fits();
    assert!(sizes == [0, 0] && warnings.contains("(-9)"), "{sizes:?} {warnings}");
    assert!(!agrees(&devices));
}

#[test]
fn a_plan_that_assumes_an_empty_host_ignores_guests_only() {
    let place = Place::new(None);
    let world = &place.stage.world;
    let empty = || Taken { assume_empty: true, ..Taken::default() };
    let planned = |gpus: u32| {
        let guest = GuestRequest {
            request: Request::for_gpus(gpus),
            name: NameRequest::Usual,
            template: None,
            virt: VirtType::Kvm,
            networks: Vec::new(),
            taken: empty(),
            place: None,
        };
        let found = plan(world, &guest).unwrap().placement;
        let said = found.reasons.into_iter().filter(|one| one.choice == Topic::Partition);
        let said = said.filter(|one| one.compromise).map(|one| one.because.to_string());
        (found.partition.unwrap().0, said.collect::<Vec<_>>().join("\n"))
    };
    let fits = || {
        let like = Request::for_gpus(1);
        let wanted = CapacityRequest { like, sizes: vec![2], taken: empty() };
        capacity(world, &wanted).unwrap().capacity.sizes[0].now
    };
    let checked = || {
        let guest = place.stage.dir.path().join("a.xml");
        std::fs::write(&guest, place.domain("a", OWN, &[1, 3]).text()).unwrap();
        let wanted = Check { source: Source::File(guest.display().to_string()), taken: empty() };
        let found = check(world, &wanted).unwrap().findings;
        found.into_iter().any(|one| one.rule == "partition-not-ready")
    };
    let (first, said) = planned(2);
    assert_eq!((said.as_str(), fits(), checked()), ("", 2, false));
    // A guest has it, active: nothing changes.
    let modules = SETS.iter().find(|(id, _)| *id == first).unwrap().1;
    place.has(first, OTHER);
    place.stage.fake.put_xml(place.domain("b", OTHER, modules).text(), true);
    assert_eq!((planned(2), fits(), checked()), ((first, String::new()), 2, false));
    // Nobody has the other one, which is active all the same.
    let other = if first == 3 { 4 } else { 3 };
    place.fm.active.borrow_mut().insert(other);
    assert_eq!((planned(2), fits()), ((first, String::new()), 1));
    let (_, said) = planned(8);
    assert!(said.contains(&format!("`gpuvm fabric release {other}`")), "{said}");
    assert_eq!(checked(), other == 3);
    // Fabric Manager does not answer.
    place.fm.code.set(Some(-9));
    let (_, said) = planned(2);
    assert!(said.contains("(-9)") && said.contains("systemctl"), "{said}");
    assert_eq!((fits(), checked()), (0, true));
}

#[test]
fn check_and_tune_say_of_a_guest_that_is_off_what_its_start_would_refuse() {
    let place = Place::new(None);
    let world = &place.stage.world;
    let xml = place.domain("a", OWN, &[1, 3]);
    place.stage.fake.put_xml(xml.text(), false);
    let said = || {
        let source = Source::Domain("a".into());
        let wanted = Check { source: source.clone(), taken: Taken::default() };
        let found = check(world, &wanted).unwrap().findings;
        let mut found = found.into_iter().filter(|one| one.rule == "partition-not-ready");
        let checked = found.next().map(|one| format!("{}; {}", one.says.message, one.hint));
        let items = Items { pins: Item::On, ..Items::default() };
        let tuning =
            look(world, &Tune { sources: vec![source], items, ..Tune::default() }).unwrap();
        let (subject, tuned) = tuning.pairs().next().unwrap();
        let all = warnings(subject, tuned, (false, false)).join("\n");
        let starts = place.start(&[1, 3]).is_ok();
        (checked.unwrap_or_default(), all.contains("NVLink partition"), starts)
    };
    assert_eq!(said(), (String::new(), false, true));
    // Nobody uses it; it is active for another guest that is off.
    place.fm.active.borrow_mut().insert(3);
    let stale = "`start` refuses it: NVLink partition 3 is active, and no running domain uses it; \
                 `gpuvm fabric release 3` deactivates it";
    assert_eq!(said(), (stale.to_owned(), true, false));
    place.has(3, OTHER);
    assert_eq!(said(), (stale.to_owned(), true, false));
    // It is still active for this one.
    place.has(3, OWN);
    assert_eq!(said(), (String::new(), false, true));
    // Another one with a GPU of it is.
    place.fm.active.replace([7].into());
    let (checked, tuned, starts) = said();
    assert!(checked.contains("shares GPUs with partition 7") && tuned && !starts, "{checked}");
    // Fabric Manager does not answer: nothing of a guest that runs.
    place.fm.active.replace(BTreeSet::new());
    place.fm.code.set(Some(-9));
    let (checked, tuned, starts) = said();
    assert!(checked.contains("(-9)") && checked.contains("systemctl") && tuned && !starts);
    place.stage.fake.put_xml(xml.text(), true);
    let (checked, tuned, _) = said();
    assert!(checked.is_empty() && !tuned, "{checked}");
}

#[test]
fn autostart_is_allowed_only_if_the_partition_gets_activated() {
    let place = Place::new(None);
    let topology = place.stage.world.topology().unwrap();
    let judged = |modules: &[u32], topology: &Topology, has_hook: bool| {
        let xml = place.domain("a b", OWN, modules);
        refuse_without_hook(&xml, "a b", topology, || Ok(has_hook))
    };
    let Err(Error::Refused(refusal)) = judged(&[1], &topology, false) else { panic!("accepted") };
    assert!(refusal.message.contains("NVLink partition of domain `a b`"), "{}", refusal.message);
    let wanted =
        "`gpuvm fabric hook --install` lets libvirt activate it, then `gpuvm autostart 'a b' on`";
    assert_eq!(refusal.hint, wanted);
    assert!(judged(&[1], &topology, true).is_ok());
    assert!(judged(&[], &topology, false).is_ok());
    let mut parts = topology.parts().clone();
    parts.fabric.model = FabricModel::FullPassthrough;
    assert!(judged(&[1], &Topology::new(parts).unwrap(), false).is_ok());
}

#[test]
fn a_refused_start_has_a_remedy() {
    let place = Place::new(None);
    let (code, text, hint) = place.refused(&[1, 2]);
    assert_eq!(code, "partition-none");
    assert!(
        text.contains("(modules 1, 2)") && hint.contains("modules 1, 3; modules 2, 4"),
        "{hint}"
    );
    place.fm.active.borrow_mut().insert(3);
    let (code, _, hint) = place.refused(&[1, 3]);
    assert_eq!(
        (code, hint.as_str()),
        ("partition-stale", "`gpuvm fabric release 3` deactivates it")
    );
    let (code, _, hint) = place.refused(&[1]);
    assert_eq!(
        (code, hint.as_str()),
        ("partition-overlap", "`gpuvm fabric release 3` deactivates it")
    );
    let other = place.domain("b", OTHER, &[1, 3]);
    place.stage.fake.put_xml(other.text(), true);
    let (code, _, hint) = place.refused(&[1, 3]);
    assert_eq!((code, hint.as_str()), ("partition-held", "`gpuvm stop b` ends it"));
    place.fm.is_changed.set(true);
    assert_eq!(place.refused(&[2, 4]).0, "partition-changed");
    place.fm.code.set(Some(-9));
    let (code, text, hint) = place.refused(&[2, 4]);
    assert_eq!(code, "partition-unreachable");
    assert!(text.contains("domain `a`, which has no working CUDA") && hint.contains("systemctl"));
}

#[test]
fn a_start_beside_another_driver_is_refused_and_an_unknown_one_not_compared() {
    let place = Place::new(None).with_versions("570.1", "570.2");
    let (code, text, hint) = place.refused(&[1, 3]);
    assert_eq!(code, "fabric-versions");
    assert!(text.contains("570.1") && text.contains("570.2"), "{text}");
    assert!(hint.contains("install Fabric Manager 570.2"), "{hint}");
    assert!(place.start(&[]).unwrap().is_none(), "nothing is compared for a guest without GPUs");
    let same = Place::new(None).with_versions("570.2", "570.2");
    assert!(same.start(&[1, 3]).unwrap().is_some());
}

#[test]
fn a_guests_partitions_are_deactivated_and_its_gpus_reset() {
    let place = Place::new(None);
    let xml = place.domain("a", OWN, &[1, 3]);
    assert!(once_stopped(&place.stage.world, &xml, true).unwrap().is_empty(), "nothing is active");
    place.has(3, OWN);
    place.has(4, OTHER);
    let steps = once_stopped(&place.stage.world, &xml, true).unwrap();
    let gpus = place.of(&[1, 3]);
    let wanted = [
        "deactivate NVLink partition 3 (modules 1, 3)".to_owned(),
        format!("reset {}", gpus[0]),
        format!("reset {}", gpus[1]),
    ];
    assert_eq!(shown(&steps), wanted);
    assert_eq!(shown(&once_gone(&place.stage.world, &xml, true).unwrap()), wanted[..1]);
    // If Fabric Manager is not running, the steps exist anyway: they leave it for later.
    place.fm.code.set(Some(-9));
    assert_eq!(once_stopped(&place.stage.world, &xml, true).unwrap(), steps);
    assert_eq!(place.after(&steps), (vec![3, 4], vec![3, 4]));
    place.fm.code.set(None);
    assert_eq!(place.after(&steps), (vec![4], vec![4]));
    // Activated by others: the guest that runs with all of its GPUs is its only user.
    place.fm.active.borrow_mut().insert(3);
    assert_eq!(once_stopped(&place.stage.world, &xml, true).unwrap(), steps);
    assert!(once_stopped(&place.stage.world, &xml, false).unwrap().is_empty());
}

#[test]
fn the_partition_of_a_gpu_that_has_left_the_bus_is_deactivated_whole() {
    let place = Place::new(Some(3));
    place.has(3, OWN);
    let xml = place.domain("a", OWN, &[1, 3]);
    let steps = once_stopped(&place.stage.world, &xml, true).unwrap();
    let reset = format!("reset {}", place.gpus[0]);
    assert_eq!(shown(&steps), ["deactivate NVLink partition 3 (modules 1, 3)".to_owned(), reset]);
    assert_eq!(place.after(&steps), (vec![], vec![]));
    // Without a record it cannot be determined that it is only this guest's; a warning is given,
    // and it stays.
    place.fm.active.borrow_mut().insert(3);
    assert!(once_stopped(&place.stage.world, &xml, true).unwrap().is_empty());
    assert_eq!(place.stage.caller.heard("warning: NVLink partition 3 has GPUs of domain `a`"), 1);
}

#[test]
fn remembered_partitions_of_a_guest_without_functions_are_deactivated() {
    let place = Place::new(None);
    let (xml, with) = (place.domain("a", OWN, &[]), place.domain("a", OWN, &[2, 4]));
    assert!(once_stopped(&place.stage.world, &xml, true).unwrap().is_empty());
    place.has(3, OWN);
    for steps in [
        once_stopped(&place.stage.world, &xml, false).unwrap(),
        once_gone(&place.stage.world, &xml, false).unwrap(),
        to_restart(&place.stage.world, &xml, &xml).unwrap(),
    ] {
        assert_eq!(shown(&steps)[0], "deactivate NVLink partition 3 (modules 1, 3)");
    }
    let steps = to_restart(&place.stage.world, &xml, &with).unwrap();
    assert_eq!(shown(&steps).last().unwrap(), "activate NVLink partition 4 (modules 2, 4)");
    assert_eq!(place.after(&steps), (vec![], vec![]));
    // For this guest an unreadable list does not matter.
    std::fs::write(place.file(), "{").unwrap();
    assert!(once_stopped(&place.stage.world, &xml, true).unwrap().is_empty());
    assert_eq!(place.stage.caller.heard("warning"), 0);
    assert!(once_stopped(&place.stage.world, &with, true).unwrap().is_empty());
    assert_eq!(place.stage.caller.heard("warning"), 1);
}

#[test]
fn a_restart_takes_what_the_stop_gives_back_and_refuses_what_others_have() {
    let place = Place::new(None);
    let (before, after) = (place.domain("a", OWN, &[1, 3]), place.domain("a", OWN, &[1]));
    place.has(3, OWN);
    place.stage.fake.put_xml(before.text(), true);
    let steps = shown(&to_restart(&place.stage.world, &before, &after).unwrap());
    assert_eq!(steps[0], "deactivate NVLink partition 3 (modules 1, 3)");
    assert_eq!(steps.last().unwrap(), "activate NVLink partition 7 (module 1)");
    // The partition of another guest.
    place.fm.active.borrow_mut().insert(4);
    let other = place.domain("b", OTHER, &[2, 4]);
    place.stage.fake.put_xml(other.text(), true);
    let after = place.domain("a", OWN, &[2, 4]);
    let error = to_restart(&place.stage.world, &before, &after).unwrap_err();
    assert!(error.to_string().contains("partition 4 is held by running domain `b`"), "{error}");
}

#[test]
fn a_guest_that_is_moved_has_its_partition_again_where_that_fails() {
    let place = Place::new(None);
    let (before, after) = (place.domain("a", OWN, &[1, 3]), place.domain("a", OWN, &[2, 4]));
    place.has(3, OWN);
    place.stage.fake.put_xml(before.text(), true);
    let (steps, next) = to_move(&place.stage.world, &before, &after, true).unwrap();
    assert_eq!(shown(&steps)[0], "deactivate NVLink partition 3 (modules 1, 3)");
    assert_eq!(next[0].to_string(), "activate NVLink partition 4 (modules 2, 4)");
    let back = steps[0].reversed().map(|step| step.to_string());
    assert_eq!(back.as_deref(), Some("activate NVLink partition 3 (modules 1, 3)"));
    place.stage.fake.put_xml(before.text(), false);
    let (steps, _) = to_move(&place.stage.world, &before, &after, false).unwrap();
    assert!(steps[0].reversed().is_none(), "it is off");
}

#[test]
fn new_gpus_of_a_stopped_guest_deactivate_its_partition() {
    let place = Place::new(None);
    let with = |modules: &[u32]| place.domain("a", OWN, modules);
    let world = &place.stage.world;
    assert_eq!(to_change(world, &with(&[1, 3]), &with(&[1])).unwrap(), [], "nothing is active");
    // It is active still: Fabric Manager did not answer when the guest stopped.
    place.has(3, OWN);
    let steps = to_change(world, &with(&[1, 3]), &with(&[1])).unwrap();
    assert_eq!(shown(&steps)[0], "deactivate NVLink partition 3 (modules 1, 3)");
    let resets =
        steps.iter().filter(|step| matches!(step, Step::Device(DeviceStep::Reset { .. }))).count();
    assert_eq!(resets, steps.len() - 1, "its start activates the next one: {steps:?}");
    assert_eq!(resets, 2);
    let down = steps[0].clone();
    assert!(
        down.reversed().is_none(),
        "undo of the change activates nothing for a guest that is off"
    );
    assert_eq!(place.after(&steps), (vec![], vec![]));
    assert_eq!(
        place.start(&[1]).unwrap().unwrap().to_string(),
        "activate NVLink partition 7 (module 1)"
    );
    // A guest whose start would be refused is refused before anything is bound for it.
    place.fm.active.borrow_mut().insert(4);
    place.stage.fake.put_xml(place.domain("b", OTHER, &[2, 4]).text(), true);
    let error = to_change(world, &with(&[1]), &with(&[1, 2, 3, 4, 5, 6, 7, 8])).unwrap_err();
    assert!(error.to_string().contains('b'), "{error}");
    assert_eq!(to_change(world, &with(&[1]), &with(&[])).unwrap(), [], "none needs none");
}

#[test]
fn set_ends_the_partition_of_a_guest_that_gets_fewer_gpus() {
    let place = Place::new(None);
    let world = &place.stage.world;
    place.stage.fake.put_xml(place.domain("a", OWN, &[1, 3]).text(), false);
    place.has(3, OWN);
    let wanted = SetRequest {
        name: "a".into(),
        gpus: Some(1),
        accept_shared_fabric: true,
        ..SetRequest::default()
    };
    let change = set(world, &wanted).unwrap();
    let steps = shown(&change.steps());
    let at = |text: &str| steps.iter().position(|step| step.starts_with(text));
    let (down, define) = (at("deactivate NVLink partition 3 "), at("change the definition "));
    assert!(down.is_some() && down < define, "{steps:?}");
    assert_eq!(at("activate "), None, "{steps:?}");
    // It is no obstacle to the next one.
    let planned = &change.about.domains(false)[0];
    assert!(
        planned.reasons.iter().all(|one| one.choice != Topic::Partition),
        "{:?}",
        planned.reasons
    );
    assert!(planned.findings.iter().all(|one| one.rule != "partition-not-ready"));
}

#[test]
fn strangers_below_an_open_port_are_not_started() {
    let mut place = Place::new(None);
    let text = include_str!("../../../topologies/dgx-2.json");
    let mut parts = from_json(text).unwrap().parts().clone();
    place.gpus = Topology::new(parts.clone()).unwrap().gpus().map(|gpu| gpu.bdf).collect();
    let one = place.domain("a", OWN, &[1]);
    let gpu = one.held(false).unwrap().devices[0];
    parts.machine.trust = Some(Trust::Strangers);
    let refused = |parts: &gpuvm_core::topology::Parts| {
        let world = World::on(
            Rc::clone(&place.stage.fake) as Rc<dyn crate::hypervisor::Hypervisor>,
            Settings { connect: "qemu:///system".into(), ..Settings::default() },
            place.stage.caller.clone(),
        );
        let world = world.with_topology(Topology::new(parts.clone()).unwrap());
        refuse_strangers(&one, &world).err()
    };
    assert!(refused(&parts).is_none());
    let above = parts.devices.iter().find(|device| device.bdf == gpu).unwrap().parent;
    for device in parts.devices.iter_mut().filter(|device| Some(device.bdf) == above) {
        device.acs = Some(gpuvm_core::p2p::Acs { cap: 0x5f, ctl: 0 });
    }
    let Some(Error::Refused(refusal)) = refused(&parts) else { panic!("it is started") };
    assert_eq!(refusal.code, "claim-shared-fabric");
    assert!(refusal.message.contains("does not redirect"), "{}", refusal.message);
    assert!(refusal.hint.contains("ECAP_ACS+6.w=1d:1d"), "{}", refusal.hint);
}

#[test]
fn strangers_that_reach_each_other_are_not_started() {
    let mut place = Place::new(None);
    let text = include_str!("../../../topologies/dgx-2.json");
    let parts = from_json(text).unwrap().parts().clone();
    let dgx2 = Topology::new(parts.clone()).unwrap();
    place.gpus = dgx2.gpus().map(|gpu| gpu.bdf).collect();
    let switch = dgx2.of_kind(DeviceKind::NvSwitch).next().unwrap().bdf;
    let one = place.domain("a", OWN, &[1]);
    // Another guest holds an NVSwitch of the board.
    place.gpus.push(switch);
    place.stage.fake.put_xml(place.domain("b", OTHER, &[2, 17]).text(), true);
    for (said, is_refused) in
        [(None, false), (Some(Trust::OneTenant), false), (Some(Trust::Strangers), true)]
    {
        let mut parts = parts.clone();
        parts.machine.trust = said;
        let world = World::on(
            Rc::clone(&place.stage.fake) as Rc<dyn crate::hypervisor::Hypervisor>,
            Settings { connect: "qemu:///system".into(), ..Settings::default() },
            place.stage.caller.clone(),
        );
        let world = world.with_topology(Topology::new(parts).unwrap());
        let refused = refuse_strangers(&one, &world).err();
        assert_eq!(refused.is_some(), is_refused, "{said:?}: {refused:?}");
        let Some(Error::Refused(refusal)) = refused else { continue };
        assert_eq!(refusal.code, "claim-shared-fabric");
        assert!(
            refusal.message.contains('b') && refusal.hint == Trust::advice(said),
            "{refusal:?}"
        );
        // Alone on the host it is isolated.
        place.stage.fake.domains.borrow_mut().clear();
        assert!(refuse_strangers(&one, &world).is_ok());
    }
}
