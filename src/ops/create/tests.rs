//! A guest on a hypervisor in memory and on this machine, with its files as disks: refusals before
//! anything is done, and changes before the lock is held.

use super::*;
use crate::apply::VolumeStep;
use crate::domain::guest::{VirtType, mac};
use crate::domain::nic_request::NicWish;
use crate::error::Error;
use crate::guest::NameRequest;
use crate::hypervisor::HypervisorErrorKind;
use crate::memsize::MemSize;
use crate::network::AddressSource;
use crate::placement::PlanError;
use crate::reporter::Answer;
use crate::request::{DomainName, PinPolicy, Request};
use crate::session::Confirm;
use crate::stage::{Stage, UUID, is_free, manner};
use crate::storage::{DataRequest, Keyless, SeedWanted};
use crate::taken::Taken;
use std::path::Path;

/// A guest of this name that boots from this file.
fn wanted(name: &str, disk: &Path) -> CreateRequest {
    let request = Request {
        vcpus: Some(1),
        memory_kib: Some(MemSize::from_kib(64 << 10)),
        pins: PinPolicy::None,
        ..Request::for_gpus(0)
    };
    CreateRequest {
        guest: GuestRequest {
            request,
            name: NameRequest::Exact(DomainName::new(name).unwrap()),
            template: None,
            virt: VirtType::Qemu,
            networks: Vec::new(),
            taken: Taken::default(),
            place: None,
        },
        storage: StorageRequest {
            disk: vec![disk.to_owned()],
            data: DataRequest::None,
            ..StorageRequest::default()
        },
        seed: SeedRequest {
            ssh_key: Vec::new(),
            home: None,
            user: None,
            password_hash: None,
            password_file: None,
            user_data: None,
            meta_data: None,
            network_config: None,
            agent: false,
            nccl: crate::storage::NcclWanted::Link,
            imex_nodes: Vec::new(),
            wanted: SeedWanted::No,
            keyless: Keyless::Refused,
        },
        uuid: Some(UUID.into()),
        private_net: false,
        without_nics: false,
        reserve_pages: false,
        accept_shared_fabric: false,
        starts: true,
        applied: None,
        job: None,
    }
}

const DEFAULT: &str = "<network><name>default</name><bridge name='virbr0'/></network>";

/// A machine with a disk file, whose network `default` is up.
fn stage() -> (Stage, std::path::PathBuf) {
    let stage = Stage::who_says(Answer::Yes);
    stage.fake.put_network(DEFAULT, true);
    let disk = stage.dir.path().join("disk.raw");
    std::fs::write(&disk, vec![0; 4096]).unwrap();
    (stage, disk)
}

/// A guest `a` that boots from this file and is on these networks.
fn wanted_with(disk: &Path, networks: &[&str]) -> CreateRequest {
    let mut wanted = wanted("a", disk);
    wanted.guest.networks = networks.iter().map(|name| NicWish::on(*name)).collect();
    wanted
}

/// A domain with this file as its disk.
fn with_disk(name: &str, disk: &Path) -> String {
    let disk = disk.display();
    format!(
        "<domain type='test'><name>{name}</name><uuid>22222222-2222-4333-8444-555555555555</uuid>\
         <memory>1024</memory><vcpu>1</vcpu><os><type>hvm</type></os><devices><disk type='file' \
         device='disk'>\
         <source file='{disk}'/><target dev='vda' bus='virtio'/></disk></devices></domain>"
    )
}

fn make(stage: &Stage, wanted: &CreateRequest) -> Result<Created> {
    let mut session = Session::begin(&stage.world, manner(Confirm::IfNeeded))?;
    run(&mut session, &stage.world, wanted, Waits { address_s: 0, seed_s: None })
}

/// The refusal, before anything is done.
fn refused(stage: &Stage, wanted: &CreateRequest) -> Error {
    let before = stage.fake.calls.get();
    let error = make(stage, wanted).unwrap_err();
    assert_eq!(stage.fake.calls.get(), before, "{error}");
    assert!(stage.journals() == 0 && is_free(stage.dir.path()), "{error}");
    error
}

fn refusal_code(error: &Error) -> Option<&'static str> {
    error.refusal().map(|refusal| refusal.code)
}

/// The kind of a hypervisor's error.
fn kind(error: &Error) -> Option<HypervisorErrorKind> {
    match error {
        Error::Hypervisor(error) => Some(error.kind),
        Error::Around { source, .. } => kind(source),
        _ => None,
    }
}

#[test]
fn a_guest_without_login_is_made_only_on_request() {
    let (stage, disk) = stage();
    let mut none = wanted("a", &disk);
    none.seed.wanted = SeedWanted::Yes;
    let error = refused(&stage, &none);
    assert_eq!(refusal_code(&error), Some("storage-no-login"));
    assert!(error.refusal().unwrap().hint.contains("--no-login"), "{error:?}");
    // A key in the caller's home directory is one.
    let home = stage.dir.path().join("home");
    std::fs::create_dir_all(home.join(".ssh")).unwrap();
    let key = format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA{} me\n", "a".repeat(44));
    std::fs::write(home.join(".ssh/id_ed25519.pub"), key).unwrap();
    let mut with_key = none.clone();
    with_key.seed.home = Some(home);
    with_key.seed.user = Some("lab".into());
    for (wanted, warned) in [(with_key, 0), (with_keyless(&none, Keyless::Accepted), 0)] {
        create(&stage.world, &wanted).unwrap();
        assert_eq!(stage.caller.heard("no user can log in"), warned);
    }
    create(&stage.world, &with_keyless(&none, Keyless::Warned)).unwrap();
    assert_eq!(stage.caller.heard("no user can log in"), 1);
}

/// The same with another answer about keys.
fn with_keyless(wanted: &CreateRequest, keyless: Keyless) -> CreateRequest {
    let mut wanted = wanted.clone();
    wanted.seed.keyless = keyless;
    wanted
}

#[test]
fn the_user_of_the_seed_is_in_the_domains_record() {
    let (stage, disk) = stage();
    let mut with_user = with_keyless(&wanted("a", &disk), Keyless::Accepted);
    with_user.seed.user = Some("lab".into());
    with_user.seed.wanted = SeedWanted::Yes;
    let user = |wanted: &CreateRequest| create(&stage.world, wanted).unwrap().about.login_user();
    assert_eq!(user(&with_user).as_deref(), Some("lab"));
    assert_eq!(user(&wanted("a", &disk)), None);
}

#[test]
fn impossible_requests_are_refused_before_any_change() {
    let (stage, disk) = stage();
    let good = wanted("a", &disk);
    stage.fake.put("there", "33333333-2222-4333-8444-555555555555", false);
    let other = with_disk("other", &stage.dir.path().join("shared.raw"));
    stage.fake.domains.borrow_mut().insert("other".into(), (other, false));
    std::fs::write(stage.dir.path().join("shared.raw"), vec![0; 4096]).unwrap();

    let error = refused(&stage, &wanted("there", &disk));
    assert_eq!(refusal_code(&error), Some(HypervisorErrorKind::Exists.into()), "{error}");
    let hint = error.refusal().unwrap().hint.clone();
    assert!(hint.contains("`gpuvm show there`"), "{hint}");

    let error = refused(&stage, &wanted("a", &stage.dir.path().join("shared.raw")));
    assert_eq!(error.refusal().map(|refusal| refusal.code), Some("unsound"), "{error}");
    assert!(error.to_string().contains("`other`"), "{error}");

    let error = refused(&stage, &wanted("a", &stage.dir.path().join("absent.raw")));
    let code = error.refusal().map(|refusal| refusal.code);
    assert_eq!(code, Some("storage-unreadable"), "{error}");

    let mut nowhere = good.clone();
    nowhere.guest.networks = vec![NicWish::on("nowhere")];
    let error = refused(&stage, &nowhere);
    assert_eq!(kind(&error), Some(HypervisorErrorKind::NoNetwork), "{error}");
    let hint = error.refusal().map(|refusal| refusal.hint.clone()).unwrap();
    assert!(hint.contains("`gpuvm network create nowhere --kind nat`"), "{hint}");
    // The missing parts for the start of a guest that is only defined are reported.
    nowhere.starts = false;
    create(&stage.world, &nowhere).unwrap();
    assert_eq!(stage.caller.heard("does not start before there is a network `nowhere`"), 1);

    let mut large = good.clone();
    large.guest.request.memory_kib = Some(MemSize::from_gib(1 << 20));
    let error = refused(&stage, &large);
    assert!(matches!(&error, Error::NoPlace(refused) if !refused.nearest.is_empty()), "{error}");

    // No host has pages for all of its memory: the kernel uses some.
    let mut paged = good.clone();
    paged.guest.request.huge_pages =
        crate::request::HugePages::Size(crate::request::PageSize::TwoMib);
    let topology = stage.world.topology().unwrap();
    paged.guest.request.memory_kib = Some(topology.nodes().iter().map(|n| n.memory_kib).sum());
    let error = refused(&stage, &paged);
    let Error::NoPlace(no) = &error else { panic!("{error}") };
    assert!(matches!(no.error, PlanError::Taken { .. } | PlanError::Impossible { .. }), "{error}");

    // Without that it is made.
    assert!(make(&stage, &good).unwrap().started);
}

#[test]
fn a_second_run_finds_the_first() {
    let (stage, disk) = stage();
    let mut usual = wanted("a", &disk);
    usual.guest.name = NameRequest::Usual;
    assert_eq!(make(&stage, &usual).unwrap().name, "gpuvm-0g");
    assert_eq!((stage.fake.runs("gpuvm-0g"), stage.journals()), (Some(true), 0));
    // Its disk and its name now belong to the first one.
    let error = refused(&stage, &usual);
    assert_eq!(error.refusal().map(|refusal| refusal.code), Some("unsound"), "{error}");
    let second = stage.dir.path().join("second.raw");
    std::fs::write(&second, vec![0; 4096]).unwrap();
    usual.storage.disk = vec![second];
    usual.uuid = Some("44444444-2222-4333-8444-555555555555".into());
    assert_eq!(make(&stage, &usual).unwrap().name, "gpuvm-0g.2");
    let error = refused(&stage, &wanted("gpuvm-0g", &disk));
    assert_eq!(refusal_code(&error), Some(HypervisorErrorKind::Exists.into()), "{error}");
}

#[test]
fn a_disk_that_changes_between_the_question_and_the_lock_is_refused() {
    for change in ["gone", "qcow2", "of another", "nothing"] {
        let (stage, disk) = stage();
        let at = disk.clone();
        stage.caller.at(move |text| match (text, change) {
            ("ask", "gone") => std::fs::remove_file(&at).unwrap(),
            ("ask", "qcow2") => std::fs::write(&at, b"QFI\xfb").unwrap(),
            _ => {}
        });
        let wanted = wanted("a", &disk);
        let plan = |world: &World| {
            if change == "of another" && stage.caller.heard("ask") > 0 {
                let other = (with_disk("other", &disk), false);
                stage.fake.domains.borrow_mut().insert("other".into(), other);
            }
            let mut change = create(world, &wanted)?;
            // As for a drive with data on it.
            change.losses = vec!["data".into()];
            change.question = Some(Question::Losses { name: change.subject.clone() });
            Ok::<_, Error>(change)
        };
        let mut session = Session::begin(&stage.world, manner(Confirm::IfNeeded)).unwrap();
        let made = session.run(plan);
        assert_eq!(stage.caller.heard("ask"), 1, "{change}");
        assert_eq!(
            (made.is_ok(), stage.fake.runs("a")),
            match change {
                "nothing" => (true, Some(true)),
                _ => (false, None),
            },
            "{change}"
        );
        assert_eq!(stage.journals(), 0, "{change}");
    }
}

#[test]
fn without_an_answer_of_the_hypervisor_nothing_is_left() {
    let (stage, disk) = stage();
    stage.fake.gone.set(true);
    let error = refused(&stage, &wanted("a", &disk));
    assert_eq!(kind(&error), Some(HypervisorErrorKind::NoConnection), "{error}");
    stage.fake.gone.set(false);
    // At the define, and at the start.
    for from in 0..2 {
        stage.fake.away_from.set(Some(stage.fake.calls.get() + from));
        let error = make(&stage, &wanted("a", &disk)).unwrap_err();
        assert!(matches!(error, Error::Apply(_)), "{error}");
        stage.fake.away_from.set(None);
        stage.recover();
        assert!(stage.is_untouched(), "away from call {from}: {error}");
    }
    assert!(make(&stage, &wanted("a", &disk)).unwrap().started);
}

#[test]
fn a_preview_asks_and_makes_nothing() {
    let (stage, disk) = stage();
    let shown = crate::session::Manner { dry_run: true, ..manner(Confirm::IfNeeded) };
    let mut session = Session::begin(&stage.world, shown).unwrap();
    let wanted = CreateRequest { uuid: None, ..wanted("a", &disk) };
    let done = session.run(|world| create(world, &wanted)).unwrap();
    assert!(!done.made && stage.is_untouched() && stage.fake.calls.get() == 0);
    assert_eq!((stage.caller.heard("preview of 2"), stage.caller.heard("ask")), (1, 0));
    assert_eq!(done.change.about.uuid(), None, "a dry run prints the same each time");
}

fn with_networks(stage: &Stage, names: &[&str]) {
    for name in names {
        let xml = format!("<network><name>{name}</name><bridge name='{name}'/></network>");
        stage.fake.put_network(&xml, true);
    }
}

#[test]
fn the_network_of_the_template_is_up_before_anything_is_copied() {
    let (stage, disk) = stage();
    let mut wanted = wanted("a", &disk);
    let mut steps = |starts| -> Vec<String> {
        wanted.starts = starts;
        let parts = create(&stage.world, &wanted).unwrap().parts;
        let steps = parts.iter().filter_map(|part| match part {
            Part::Steps(steps) => Some(steps),
            _ => None,
        });
        let steps = steps.flatten().map(ToString::to_string).collect::<Vec<_>>();
        let at = steps.iter().position(|step| step.contains("domain")).unwrap();
        steps[..at].to_vec()
    };
    assert_eq!(steps(true), [""; 0]);
    stage.fake.put_network(DEFAULT, false);
    assert_eq!(steps(true), ["start network `default`"]);
    assert_eq!(stage.caller.heard("network `default` is down and is started with the guest"), 1);
    stage.fake.networks.borrow_mut().clear();
    assert_eq!(steps(true)[0], "define network `default`");
    assert_eq!(steps(false), [""; 0], "it is not needed before the start");
}

#[test]
fn the_address_is_of_the_first_nic_that_has_one() {
    let address = |mac: &str, ip: &str| GuestAddress {
        mac: mac.to_owned(),
        ip: ip.parse().unwrap(),
        source: AddressSource::Lease,
    };
    let macs = [0, 1].map(|nic| mac(UUID, nic));
    let first = address(&macs[0], "10.0.0.1");
    let second = address(&macs[1], "10.0.1.1");
    let other = address("52:54:00:00:00:99", "10.0.2.1");
    for (known, wanted) in [
        (vec![second.clone(), first.clone()], Some(&first)),
        (vec![other.clone(), second.clone()], Some(&second)),
        (vec![other], None),
    ] {
        let (stage, disk) = stage();
        with_networks(&stage, &["one", "two"]);
        stage.fake.addresses.replace(known);
        let guest = wanted_with(&disk, &["one", "two"]);
        let mut session = Session::begin(&stage.world, manner(Confirm::IfNeeded)).unwrap();
        let waits = Waits { address_s: 1, seed_s: None };
        let created = run(&mut session, &stage.world, &guest, waits).unwrap();
        assert_eq!(created.ip, wanted.map(|address| address.ip));
        // Without an address the first NIC is shown.
        let shown = wanted.map_or(&macs[0], |address| &address.mac);
        assert_eq!(created.mac.as_ref(), Some(shown));
        let warned = stage.caller.heard("has no address");
        assert_eq!(warned, usize::from(wanted != Some(&first)), "{wanted:?}");
    }
}

#[test]
fn the_seed_names_every_nic_of_the_definition() {
    let (stage, disk) = stage();
    with_networks(&stage, &["one", "two"]);
    let content = |networks: &[&str]| {
        let mut wanted = wanted_with(&disk, networks);
        wanted.seed.wanted = SeedWanted::Yes;
        wanted.seed.keyless = Keyless::Accepted;
        wanted.guest.networks.iter_mut().last().unwrap().settings.mac =
            Some("52:54:00:00:00:42".into());
        let change = create(&stage.world, &wanted).unwrap();
        let steps = change.parts.iter().filter_map(|part| match part {
            Part::Steps(steps) => Some(steps),
            _ => None,
        });
        let sealed = steps.flatten().find_map(|step| match step {
            Step::Volume(VolumeStep::Seal { content, .. }) => Some(content.bytes().unwrap()),
            _ => None,
        });
        String::from_utf8_lossy(&sealed.expect("a seed")).into_owned()
    };
    let both = content(&["one", "two"]);
    assert!(both.contains(&mac(UUID, 0)) && both.contains("52:54:00:00:00:42"));
    assert!(both.find(&mac(UUID, 0)) < both.find("52:54:00:00:00:42"));
    let one = content(&["one"]);
    assert!(!one.contains("52:54:00:00:00:42"), "cloud-init's default is enough for one");
}
