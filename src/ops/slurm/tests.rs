//! Guests of jobs on a hypervisor in memory: which are deleted, and which belong to others.

use super::*;
use crate::apply::{FileStep, Step};
use crate::domain::DomainEdit;
use crate::domain::guest::{Record, VirtType};
use crate::guest::{GuestRequest, NameRequest};
use crate::history::guest::GuestRecord;
use crate::reporter::Answer;
use crate::request::{DomainName, Prefer, Request};
use crate::session::{Confirm, Manner};
use crate::stage::{Stage, UUID, kill, manner};
use crate::storage::{DataRequest, Keyless, NcclWanted, SeedRequest, SeedWanted, StorageRequest};
use crate::taken::Taken;
use gpuvm_core::topology::file::from_json;
use std::panic::{AssertUnwindSafe, catch_unwind};

const OTHER: &str = "22222222-2222-4333-8444-555555555555";
const THIRD: &str = "33333333-2222-4333-8444-555555555555";

fn job(id: u32) -> SlurmJob {
    SlurmJob { cluster: "c".into(), id, node: "n".into(), submitted_s: 100 }
}

/// Slurm's answer about a job.
fn said(id: u32, state: &str, submitted_s: u64) -> NodeJob {
    NodeJob { id, state: state.into(), submitted_s, gres: "gres:gpuvm:2".into() }
}

/// A DGX-2 without guests.
fn dgx2() -> Stage {
    let mut stage = Stage::who_says(Answer::Nobody);
    stage.fake.put_network("<network><name>default</name><bridge name='virbr0'/></network>", true);
    let host = from_json(include_str!("../../../topologies/dgx-2.json")).unwrap();
    stage.world = stage.world.with_topology(host);
    stage
}

/// A definition that gpuvm made for the domain of this UUID.
fn made(name: &str, uuid: &str) -> String {
    let xml = format!(
        "<domain type='test'><name>{name}</name><uuid>{uuid}</uuid><memory>1024</memory>\
         <vcpu>1</vcpu><os><type>hvm</type></os></domain>"
    );
    let mut xml = DomainXml::parse(&xml).unwrap();
    let record = Record {
        request: Request::for_gpus(0),
        made: Vec::new(),
        bound: Vec::new(),
        reserved: Vec::new(),
        guarded: Vec::new(),
        vgpus: Vec::new(),
        nccl: None,
        known: Vec::new(),
        user: None,
        assumed: None,
    };
    let devices = Vec::new();
    xml.apply(&DomainEdit::SetMetadata { record: Box::new(record), partition: None, devices })
        .unwrap();
    xml.apply(&DomainEdit::SetUuid { uuid: uuid.into() }).unwrap();
    xml.text().to_owned()
}

/// Records that a domain was made for a job.
fn record(stage: &Stage, (name, uuid): (&str, &str), job: SlurmJob) {
    let record = GuestRecord { job: Some(job), ..GuestRecord::new(uuid, name, "test:///fake") };
    let Some(Step::File(FileStep::Remember { path, text: Some(text), .. })) =
        record.remember(Some(stage.dir.path()), None)
    else {
        panic!("a job is worth a record");
    };
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn end(stage: &Stage, id: u32) -> Result<Vec<String>> {
    let mut session = Session::begin(&stage.world, manner(Confirm::Given))?;
    epilog(&mut session, &stage.world, "c", id)
}

fn compare(stage: &Stage, jobs: &[NodeJob]) -> Result<Reconciled> {
    let mut session = Session::begin(&stage.world, manner(Confirm::Given))?;
    reconcile(&mut session, &stage.world, "c", |node| {
        assert_eq!(node, "n");
        Ok(jobs.to_vec())
    })
}

#[test]
fn an_epilog_deletes_only_proven_guests_of_its_job() {
    let stage = dgx2();
    // By name alone; a record, but a definition by others; a copy; another job's.
    stage.fake.put("slurm-7", UUID, true);
    assert_eq!(end(&stage, 7).unwrap(), Vec::<String>::new());
    record(&stage, ("slurm-7", UUID), job(7));
    assert_eq!(end(&stage, 7).unwrap(), Vec::<String>::new());
    stage.fake.put_xml(
        &made("slurm-7", UUID).replace(&format!("<uuid>{UUID}"), &format!("<uuid>{OTHER}")),
        true,
    );
    record(&stage, ("slurm-7", OTHER), job(7));
    assert_eq!(end(&stage, 7).unwrap(), Vec::<String>::new());
    stage.fake.put_xml(&made("slurm-8", THIRD), true);
    record(&stage, ("slurm-8", THIRD), job(8));
    assert_eq!(end(&stage, 7).unwrap(), Vec::<String>::new());
    let other = SlurmJob { cluster: "d".into(), ..job(7) };
    record(&stage, ("slurm-8", THIRD), other);
    assert_eq!(end(&stage, 7).unwrap(), Vec::<String>::new());
    // The guest, renamed since.
    stage.fake.put_xml(&made("train", UUID), true);
    record(&stage, ("slurm-7", UUID), job(7));
    assert_eq!(end(&stage, 7).unwrap(), ["train"]);
    assert_eq!((stage.fake.runs("train"), stage.fake.runs("slurm-8")), (None, Some(true)));
    assert_eq!(stage.fake.runs("slurm-7"), Some(true));
    assert_eq!(end(&stage, 7).unwrap(), Vec::<String>::new(), "a second time there is nothing");
    assert_eq!(stage.journals(), 0);
}

#[test]
fn reconcile_deletes_guests_of_jobs_that_are_gone() {
    let there = |stage: &Stage| {
        stage.fake.put_xml(&made("slurm-7", UUID), true);
        record(stage, ("slurm-7", UUID), job(7));
    };
    for (jobs, is_deleted) in [
        (vec![said(7, "RUNNING", 100)], false),
        (vec![said(7, "COMPLETING", 100)], false),
        (vec![said(7, "SUSPENDED", 100), said(8, "RUNNING", 100)], false),
        (vec![], true),
        (vec![said(8, "RUNNING", 100)], true),
        // Requeued, and not here yet.
        (vec![said(7, "PENDING", 100)], true),
        // Another job of that number.
        (vec![said(7, "RUNNING", 101)], true),
    ] {
        let stage = dgx2();
        there(&stage);
        let done = compare(&stage, &jobs).unwrap();
        assert_eq!(
            (done.deleted.len(), done.kept.len()),
            (is_deleted.into(), (!is_deleted).into())
        );
        assert_eq!(stage.fake.runs("slurm-7").is_none(), is_deleted, "{jobs:?}");
    }
    let stage = dgx2();
    there(&stage);
    let lock = lock_job(&stage.world, 7, Duration::ZERO).unwrap().expect("nobody has it");
    assert!(lock_job(&stage.world, 7, Duration::ZERO).unwrap().is_none());
    let done = compare(&stage, &[]).unwrap();
    assert_eq!((done.busy.len(), stage.fake.runs("slurm-7")), (1, Some(true)));
    drop(lock);
    let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
    let silent = |_: &str| Err(classed(Class::System, "Slurm does not answer", ""));
    assert!(reconcile(&mut session, &stage.world, "c", silent).is_err());
    let of_other = reconcile(&mut session, &stage.world, "d", silent).unwrap();
    assert_eq!((of_other.others.len(), stage.fake.runs("slurm-7")), (1, Some(true)));
    drop(session);
    let preview = Manner { dry_run: true, ..manner(Confirm::Given) };
    let mut session = Session::begin(&stage.world, preview).unwrap();
    let would = reconcile(&mut session, &stage.world, "c", |_| Ok(Vec::new())).unwrap();
    assert_eq!((would.deleted.len(), stage.fake.runs("slurm-7")), (1, Some(true)));
    drop(session);
    assert_eq!(compare(&stage, &[]).unwrap().deleted.len(), 1);
}

#[test]
fn a_node_that_slurm_does_not_answer_for_keeps_no_other_guest() {
    let stage = dgx2();
    for (name, uuid, number, node) in [("slurm-7", UUID, 7, "n"), ("slurm-8", OTHER, 8, "m")] {
        stage.fake.put_xml(&made(name, uuid), true);
        record(&stage, (name, uuid), SlurmJob { node: node.into(), ..job(number) });
    }
    let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
    let ask = |node: &str| match node {
        "n" => Err(classed(Class::System, "Slurm does not answer", "")),
        _ => Ok(Vec::new()),
    };
    let error = reconcile(&mut session, &stage.world, "c", ask).unwrap_err();
    assert!(error.to_string().contains("Slurm does not answer"), "{error}");
    assert_eq!((stage.fake.runs("slurm-7"), stage.fake.runs("slurm-8")), (Some(true), None));
}

#[test]
fn every_refusal_has_a_remedy() {
    let text = String::new;
    let all = [
        job_refused(SlurmJobError::Unknown { variable: "SLURM_JOB_ID", what: "a number" }),
        job_refused(SlurmJobError::NotRoot),
        job_refused(SlurmJobError::Type { of: text(), has: text() }),
        job_refused(SlurmJobError::Indexes { indexes: text(), has: 0 }),
        request_refused(JobError::Key { key: text(), known: text() }),
        request_refused(JobError::Gres { text: text() }),
        conf_refused(SlurmConfError::NoGpus),
        conf_refused(SlurmConfError::NoVgpu { name: text() }),
        conf_refused(SlurmConfError::NodeName { name: text() }),
        slurm_failed(SlurmError::Answer { program: "squeue", line: text() }),
    ];
    for error in all {
        assert!(!error.refusal().unwrap().hint.is_empty(), "{error}");
    }
}

/// A guest of job 7 with two GPUs.
fn wanted(stage: &Stage) -> CreateRequest {
    let disk = stage.dir.path().join("disk.raw");
    std::fs::write(&disk, vec![0; 4096]).unwrap();
    let request = Request {
        vcpus: Some(4),
        memory_kib: Some(crate::memsize::MemSize::from_gib(16)),
        prefer: Prefer::Auto,
        ..Request::for_gpus(2)
    };
    CreateRequest {
        guest: GuestRequest {
            request,
            name: NameRequest::Exact(DomainName::new("slurm-7").unwrap()),
            template: None,
            virt: VirtType::Qemu,
            networks: Vec::new(),
            taken: Taken::default(),
            place: None,
        },
        storage: StorageRequest {
            disk: vec![disk],
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
            nccl: NcclWanted::No,
            imex_nodes: Vec::new(),
            wanted: SeedWanted::No,
            keyless: Keyless::Refused,
        },
        uuid: Some(UUID.into()),
        private_net: false,
        without_nics: false,
        reserve_pages: false,
        accept_shared_fabric: true,
        starts: false,
        applied: None,
        job: Some(job(7)),
    }
}

fn begin(stage: &Stage, wanted: &CreateRequest) -> Result<Begun> {
    let mut session = Session::begin(&stage.world, manner(Confirm::IfNeeded))?;
    let waits = Waits { address_s: 0, seed_s: None };
    prolog(&mut session, &stage.world, wanted, waits).map(|(done, _)| done)
}

#[test]
fn a_prolog_that_is_killed_at_any_call_is_undone_by_the_next_verb() {
    let mut at = 0;
    loop {
        let stage = dgx2();
        let wanted = wanted(&stage);
        *stage.fake.at.borrow_mut() = Some(Box::new(move |number| {
            if number == at {
                kill();
            }
        }));
        let ended = catch_unwind(AssertUnwindSafe(|| begin(&stage, &wanted)));
        *stage.fake.at.borrow_mut() = None;
        let is_done = ended.is_ok();
        // A guest that is whole has its record on a real hypervisor.
        if stage.fake.runs("slurm-7").is_some() {
            record(&stage, ("slurm-7", UUID), job(7));
        }
        compare(&stage, &[]).unwrap();
        assert_eq!((stage.fake.runs("slurm-7"), stage.journals()), (None, 0), "call {at}");
        if is_done {
            assert!(at >= 1, "it was never killed");
            return;
        }
        at += 1;
    }
}

#[test]
fn the_guest_of_a_job_is_kept_and_that_of_its_earlier_run_is_replaced() {
    let stage = dgx2();
    let mut request = wanted(&stage);
    assert_eq!(begin(&stage, &request).unwrap(), Begun::Made);
    record(&stage, ("slurm-7", UUID), job(7));
    assert_eq!(begin(&stage, &request).unwrap(), Begun::Kept);
    request.job = Some(SlurmJob { submitted_s: 101, ..job(7) });
    request.uuid = Some(OTHER.into());
    assert_eq!(begin(&stage, &request).unwrap(), Begun::Made);
    assert!(stage.fake.definition("slurm-7").contains(OTHER));
    // Somebody's domain of that name is in the way, and stays.
    let stage = dgx2();
    stage.fake.put("slurm-7", THIRD, true);
    let error = begin(&stage, &wanted(&stage)).unwrap_err();
    assert!(!is_fault(error.refusal().unwrap().code), "{error}");
    assert_eq!(stage.fake.runs("slurm-7"), Some(true));
}

#[test]
fn interrupted_changes_of_others_stay_unfinished() {
    let stage = dgx2();
    *stage.fake.at.borrow_mut() = Some(Box::new(|number| {
        if number == 1 {
            kill();
        }
    }));
    let ended = catch_unwind(AssertUnwindSafe(|| stage.create(Confirm::Given).map(drop)));
    *stage.fake.at.borrow_mut() = None;
    assert!(ended.is_err() && stage.journals() == 1);
    let error = begin(&stage, &wanted(&stage)).unwrap_err();
    assert!(is_fault(error.refusal().unwrap().code), "{error}");
    assert_eq!((compare(&stage, &[]).unwrap().deleted.len(), stage.journals()), (0, 1));
}

#[test]
fn gpus_are_those_that_the_job_requests_of_this_host() {
    let stage = dgx2();
    let ask = |gres: &str, of: (&str, Option<&str>)| {
        gpus(&stage.world, &NodeJob { gres: gres.into(), ..said(7, "RUNNING", 1) }, of)
    };
    let count = |gres: &str| ask(gres, (GRES, None)).unwrap();
    assert_eq!(count("N/A"), None);
    assert_eq!(count("gres:gpuvm:0"), None);
    assert_eq!(count("gres:gpu:2"), None);
    assert_eq!(count("gres:gpuvm:v100:2"), Some((GpuWish::Count(2), None)));
    let error = ask("gres:gpuvm:h100:2", (GRES, None)).unwrap_err();
    assert_eq!(error.to_string(), "the job requests GPUs of type `h100`, and the host has v100");
    // Without device files it is not Slurm that chooses.
    assert_eq!(ask("gres:gpuvm:2", (GRES, Some("0,1"))).unwrap(), Some((GpuWish::Count(2), None)));
    let all: Vec<_> = stage.world.topology().unwrap().gpus().map(|gpu| gpu.bdf).collect();
    let chosen = ask("gres:gpu:2", ("gpu", Some("3,15"))).unwrap();
    assert_eq!(chosen, Some((GpuWish::Exact(vec![all[3], all[15]]), None)));
    for bad in ["16", "x", "1,,2", "-1"] {
        assert!(ask("gres:gpu:2", ("gpu", Some(bad))).is_err(), "{bad}");
    }
}

#[test]
fn the_gpus_that_slurm_chose_have_the_numbers_of_gres_conf() {
    use gpuvm_core::slurm::{ConfRequest, conf};
    use gpuvm_core::topology::Sriov;
    let mut stage = dgx2();
    let host = stage.world.topology().unwrap();
    let all: Vec<Bdf> = host.gpus().map(|gpu| gpu.bdf).collect();
    let mut parts = host.parts().clone();
    for device in &mut parts.devices {
        // The first is given out as virtual functions, and the third is of another model.
        if device.bdf == all[0] {
            device.sriov = Some(Sriov::Pf { total: 16, enabled: 16 });
        } else if device.bdf == all[2] {
            device.device = 0x2330;
        }
    }
    stage.world = stage.world.with_topology(Topology::new(parts).unwrap());
    let wanted = ConfRequest { node: "n".into(), files: true, ..ConfRequest::default() };
    let lines = conf(&stage.world.topology().unwrap(), &wanted).unwrap().gres_conf;
    let group = |bdf: Bdf| host.iommu_group(bdf).unwrap().number;
    let ask = |gres: &str, chosen: &str| {
        let job = NodeJob { gres: gres.into(), ..said(7, "RUNNING", 1) };
        gpus(&stage.world, &job, ("gpu", Some(chosen)))
    };
    for (number, line) in lines.iter().enumerate() {
        let (wish, _) = ask("gres:gpu:1", &number.to_string()).unwrap().unwrap();
        assert_eq!(wish, GpuWish::Exact(vec![all[number + 1]]));
        assert!(line.contains(&format!(" File=/dev/vfio/{} ", group(all[number + 1]))), "{line}");
    }
    assert!(ask("gres:gpu:1", "15").is_err());
    // Lines for other GPUs are noticed by the type, unless it is a word of the admin's.
    assert!(ask("gres:gpu:v100:1", "0").is_ok() && ask("gres:gpu:large:1", "1").is_ok());
    let error = ask("gres:gpu:v100:1", "1").unwrap_err();
    let refusal = error.refusal().unwrap();
    assert!(is_fault(refusal.code), "{error}");
    assert!(
        error.to_string().contains("is of type `h100`, and the job requests `v100`"),
        "{error}"
    );
    // A type of cards that are given out otherwise.
    let job = NodeJob { gres: "gres:gpuvm:h100:1".into(), ..said(7, "RUNNING", 1) };
    assert!(gpus(&stage.world, &job, (GRES, None)).is_ok());
}

#[test]
fn faults_are_the_machines_and_refusals_the_jobs() {
    for fault in [
        "libvirt-no-connection",
        "lock-held",
        "unfinished",
        "program-failed",
        "system",
        "create-no-kvm",
        "discovery-no-host",
        "storage-pool-inactive",
        "fabric-silent",
    ] {
        assert!(is_fault(fault), "{fault}");
    }
    for refusal in [
        "usage",
        "refused",
        "not-found",
        "libvirt-exists",
        "slurm-comment-key",
        "in-use",
        "fabric-no-partition",
    ] {
        assert!(!is_fault(refusal), "{refusal}");
    }
}
