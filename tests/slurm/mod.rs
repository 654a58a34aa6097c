//! A job of Slurm gets a guest: munge, slurmctld and slurmd of the distribution, on nodes that are
//! recorded hosts with a real libvirtd each. Guests of recorded GPUs are defined and not started.

mod cluster;

use crate::support::{project, run};
use cluster::{Cluster, until};
use gpuvm::discover::source::load;
use gpuvm::domain::DomainXml;
use nix::fcntl::{Flock, FlockArg};
use std::collections::BTreeSet;
use std::fs::File;
use std::process::Stdio;

/// Reads every guest of a node back, and expects that no GPU and no pcpu is in two of them. Returns
/// the number of GPUs in guests.
fn sound(cluster: &Cluster, number: usize) -> usize {
    let (mut devices, mut pcpus, mut all) = (BTreeSet::new(), BTreeSet::new(), 0);
    let host = load(&project().join("topologies/dgx-2.json")).unwrap();
    let gpus: BTreeSet<_> = host.gpus().map(|gpu| gpu.bdf).collect();
    for name in cluster.domains(number) {
        let (done, xml) = cluster.nodes[number].daemon.virsh(&["dumpxml", "--inactive", &name]);
        if !done {
            // It ended meanwhile.
            continue;
        }
        let held = DomainXml::parse(&xml).unwrap().held(false).unwrap();
        for device in held.devices {
            assert!(devices.insert(device), "{device} is in `{name}` and in another");
            // Guests may have NVSwitches, too.
            all += usize::from(gpus.contains(&device));
        }
        for pcpu in held.vcpu_pins.iter().flat_map(|pins| pins.iter()).collect::<BTreeSet<_>>() {
            assert!(pcpus.insert(pcpu), "pcpu {pcpu} is of `{name}` and of another");
        }
    }
    all
}

/// Holds the lock of a node, so that its prologs wait.
fn hold(cluster: &Cluster, number: usize) -> Flock<File> {
    let dir = cluster.nodes[number].daemon.own_path("/run/gpuvm");
    std::fs::create_dir_all(&dir).unwrap();
    let file = File::options().create(true).append(true).open(dir.join("lock")).unwrap();
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno).unwrap()
}

/// Whether a prolog of a node waits for the lock that a test holds.
fn waits(cluster: &Cluster, number: usize, job: u32) -> bool {
    // It has taken the lock of its job.
    let lock = format!("/run/gpuvm/slurm/{}/lock", job % 1024);
    let path = cluster.nodes[number].daemon.own_path(&lock);
    File::open(path).is_ok_and(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock).is_err())
}

#[test]
fn jobs_get_guests_wait_for_gpus_and_give_them_back() {
    let Some(cluster) = Cluster::new() else { return };
    let node = cluster.done(&["scontrol", "show", "node", "dgx01"]);
    assert!(node.contains("Gres=gpuvm:v100:16"), "{node}");
    // Three jobs, of which two have room.
    let eight = ["--nodelist=dgx01", "--gres=gpuvm:8"];
    let jobs: Vec<u32> = (0..3).map(|_| cluster.submit(&eight)).collect();
    until("two jobs have guests", || (0..2).all(|at| cluster.has_guest(0, jobs[at])));
    assert_eq!(cluster.field(jobs[2], "JobState"), "PENDING");
    assert_eq!(cluster.domains(0).len(), 2);
    sound(&cluster, 0);
    // A request that its owner cannot make cancels a job, whatever its form; so does a domain of
    // others.
    let hostile = [
        "image=$(touch /tmp/gpuvm-slurm-test)",
        "vcpus=4;reboot",
        "x\nJobId=1 UserId=root(0) image=../../etc/shadow",
        "memory=4096T",
        // More than Slurm allotted, and than the two GPUs' share of the node.
        "vcpus=64",
        "memory=600G",
        "x\n     Nodes=dgx02 CPU_IDs=0-95 Mem=9999999 GRES= vcpus=64",
        "image=noble",
        "disk=/dev/sda",
    ];
    let two = ["--nodelist=dgx02", "--gres=gpuvm:2"];
    for comment in hostile {
        let job = cluster.submit(&[&two[..], &["--comment", comment]].concat());
        cluster.until_job(job, "CANCELLED");
        let why = cluster.field(job, "AdminComment");
        assert!(why.starts_with("gpuvm: ") && why.len() > 30, "{comment}: {why}");
    }
    assert!(!std::path::Path::new("/tmp/gpuvm-slurm-test").exists());
    let name = cluster.next_name();
    let xml = cluster.path("foreign.xml");
    let text = format!(
        "<domain type='qemu'><name>{name}</name><memory>1024</memory><os><type>hvm</type></os></domain>"
    );
    std::fs::write(&xml, text).unwrap();
    let (done, said) = cluster.nodes[1].daemon.virsh(&["define", xml.to_str().unwrap()]);
    assert!(done, "{said}");
    let job = cluster.submit(&two);
    assert_eq!(name, format!("slurm-{job}"));
    cluster.until_job(job, "CANCELLED");
    let why = cluster.field(job, "AdminComment");
    assert!(why.contains("has a domain of this name") && why.contains(&name), "{why}");
    until("its epilog has run", || !cluster.states()[1].contains("completing"));
    let (code, said) = cluster.gpuvm(1, &["slurm", "reconcile"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(cluster.domains(1), [name.as_str()], "somebody's domain is gone");
    assert!(
        cluster.states().iter().all(|state| !state.contains("drain")),
        "{:?}",
        cluster.states()
    );
    // The first ends, and the third begins.
    cluster.done(&["scancel", &jobs[0].to_string()]);
    until("the third job has its guest", || cluster.has_guest(0, jobs[2]));
    assert!(!cluster.has_guest(0, jobs[0]), "the guest of a cancelled job stays");
    sound(&cluster, 0);
    // A guest on each node, of a task of an array, and none without GPUs of guests.
    cluster.done(&["scancel", &jobs[1].to_string()]);
    let both = cluster.submit(&["--nodes=2", "--gres=gpuvm:v100:4"]);
    until("both nodes have a guest", || (0..2).all(|number| cluster.has_guest(number, both)));
    let allotted = ["--cpus-per-task=32", "--comment=vcpus=16"];
    let large = cluster.submit(&[&two[..], &allotted].concat());
    until("the job has the CPUs that Slurm allotted", || cluster.has_guest(1, large));
    cluster.done(&["scancel", &large.to_string()]);
    until("its guest is gone", || !cluster.has_guest(1, large));
    let plain = cluster.submit(&["--nodelist=dgx02"]);
    cluster.until_job(plain, "RUNNING");
    let said = "--comment=vcpus=2";
    let array = cluster.submit(&[&two[..], &["--array=3-4", said]].concat());
    until("both tasks have guests", || cluster.domains(1).len() == 4);
    assert!(!cluster.has_guest(1, plain) && sound(&cluster, 1) == 4 + 2 * 2, "{array}");
    let (code, said) = cluster.gpuvm(1, &["slurm", "reconcile", "--json", "--quiet"]);
    let told: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, told["kept"].as_array().unwrap().len()), (0, 3), "{said}");
    cluster.end_all();
    assert_eq!((cluster.domains(0).len(), cluster.domains(1)), (0, vec![name]));
}

#[test]
#[ignore = "nightly: a Slurm cluster with real guests"]
fn a_killed_slurmd_leaves_no_guest_behind() {
    let Some(mut cluster) = Cluster::new() else { return };
    // In the middle of a prolog, which goes on or is killed, too.
    for ends in [false, true] {
        let lock = hold(&cluster, 0);
        let job = cluster.submit(&["--nodelist=dgx01", "--gres=gpuvm:2"]);
        until("the prolog waits", || waits(&cluster, 0, job));
        cluster.kill_node(0);
        if ends {
            let kill = "for p in /proc/[0-9]*; do \
                if tr '\\0' ' ' <$p/cmdline 2>/dev/null | grep -q 'gpuvm --quiet slurm pro[l]og'; then \
                kill -9 ${p#/proc/}; fi; done";
            assert_eq!(run(cluster.on_node(0, "sh").args(["-c", kill])).0, 0);
        }
        cluster.done(&["scancel", &job.to_string()]);
        let (code, said) = cluster.gpuvm(0, &["slurm", "reconcile"]);
        assert_eq!((code, cluster.domains(0).len()), (0, 0), "{said}");
        drop(lock);
        if !ends {
            until("the prolog has made its guest", || cluster.has_guest(0, job));
            until("the prolog has ended", || !waits(&cluster, 0, job));
        }
        cluster.start_node(0);
        until("the job is cleaned up", || {
            let (code, said) = cluster.gpuvm(0, &["slurm", "reconcile"]);
            assert_eq!(code, 0, "{said}");
            cluster.domains(0).is_empty()
        });
        cluster.until_idle();
    }
    // In the middle of a job whose guest is there.
    let job = cluster.submit(&["--nodelist=dgx01", "--gres=gpuvm:2", "--no-requeue"]);
    until("the job has its guest", || cluster.has_guest(0, job));
    cluster.kill_node(0);
    let (code, said) = cluster.gpuvm(0, &["slurm", "reconcile"]);
    assert_eq!(code, 0, "{said}");
    assert!(cluster.has_guest(0, job), "the job has its node still");
    cluster.start_node(0);
    cluster.end_all();
    assert!(cluster.domains(0).is_empty());
}

#[test]
#[ignore = "nightly: a Slurm cluster with real guests"]
fn without_controller_or_munge_nothing_is_deleted() {
    let Some(cluster) = Cluster::new() else { return };
    let job = cluster.submit(&["--nodelist=dgx01", "--gres=gpuvm:2"]);
    until("the job has its guest", || cluster.has_guest(0, job));
    cluster.kill_controller();
    let (code, said) = cluster.gpuvm(0, &["slurm", "reconcile"]);
    assert!(code == 1 && said.contains("Slurm does not answer"), "{said}");
    assert!(cluster.has_guest(0, job));
    cluster.start_controller();
    until("the controller answers", || cluster.run(&["squeue"]).0 == 0);
    cluster.kill_munge();
    let (code, said) = cluster.gpuvm(0, &["slurm", "reconcile"]);
    assert!(code == 1 && said.contains("Slurm does not answer"), "{said}");
    assert!(cluster.has_guest(0, job));
    // An epilog needs neither.
    let (code, said) = cluster.epilog(0, job);
    assert_eq!((code, cluster.domains(0).len()), (0, 0), "{said}");
    let (code, said) = cluster.epilog(0, job);
    assert_eq!(code, 0, "{said}");
    cluster.start_munge();
    until("the controller answers", || cluster.run(&["squeue"]).0 == 0);
    cluster.end_all();
    assert!(cluster.domains(0).is_empty());
}

#[test]
#[ignore = "nightly: a Slurm cluster with real guests, and its timeouts"]
fn requeued_jobs_get_new_guests_and_a_failing_machine_is_drained() {
    let Some(cluster) = Cluster::new() else { return };
    let two = ["--nodelist=dgx01", "--gres=gpuvm:2"];
    let job = cluster.submit(&[&two[..], &["--requeue"]].concat());
    let name = format!("slurm-{job}");
    let uuid = || cluster.nodes[0].daemon.virsh(&["domuuid", &name]);
    until("the job has its guest", || cluster.has_guest(0, job));
    let first = uuid().1;
    cluster.done(&["scontrol", "requeue", &job.to_string()]);
    until("the job has another guest", || uuid().0 && uuid().1 != first);
    // Its epilog comes before its prolog ends: the guest is made, and deleted at once.
    cluster.end_all();
    let lock = hold(&cluster, 0);
    let job = cluster.submit(&two);
    until("the prolog waits", || waits(&cluster, 0, job));
    cluster.done(&["scancel", &job.to_string()]);
    let mut epilog = cluster.on_node(0, env!("CARGO_BIN_EXE_gpuvm"));
    epilog.args(["slurm", "epilog"]).env("SLURM_JOB_ID", job.to_string());
    epilog.env("SLURM_CLUSTER_NAME", "gpuvm").env("SLURM_JOB_UID", "0");
    epilog.env("SLURMD_NODENAME", "dgx01").stderr(Stdio::piped());
    let epilog = epilog.spawn().unwrap();
    drop(lock);
    let said = epilog.wait_with_output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    cluster.until_idle();
    assert!(cluster.domains(0).is_empty());
    // A node reboots: /run is empty, and the guest is off.
    let job = cluster.submit(&two);
    until("the job has its guest", || cluster.has_guest(0, job));
    std::fs::remove_dir_all(cluster.nodes[0].daemon.own_path("/run/gpuvm/slurm")).unwrap();
    cluster.end_all();
    assert!(cluster.domains(0).is_empty());
    // libvirt is gone: the machine's fault, and not the job's.
    let libvirtd = cluster.nodes[0].daemon.inside("/run/libvirt/libvirt-sock");
    let aside = libvirtd.with_file_name("aside");
    std::fs::rename(&libvirtd, &aside).unwrap();
    let job = cluster.submit(&two);
    until("the node is drained", || cluster.states()[0].contains("drain"));
    until("the job is held", || {
        cluster.field(job, "JobState") == "PENDING" && cluster.field(job, "Priority") == "0"
    });
    std::fs::rename(&aside, &libvirtd).unwrap();
    cluster.done(&["scontrol", "update", "NodeName=dgx01", "State=RESUME"]);
    cluster.done(&["scontrol", "release", &job.to_string()]);
    until("the job has its guest", || cluster.has_guest(0, job));
    cluster.end_all();
}

#[test]
#[ignore = "nightly: twenty jobs of a Slurm cluster"]
fn of_twenty_random_jobs_no_two_hold_a_gpu_and_nothing_stays() {
    let Some(cluster) = Cluster::new() else { return };
    // A generator of numbers that are the same in each run.
    let mut seed = 20_u32;
    let mut random = |below: u32| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 16) % below
    };
    let mut jobs = Vec::new();
    for _ in 0..20 {
        let gres = format!("--gres=gpuvm:{}", [1, 2, 4, 8, 16][random(5) as usize]);
        let seconds = ["exec sleep 0", "exec sleep 1", "exec sleep 3"][random(3) as usize];
        let mut words = vec![gres.as_str()];
        words.extend((random(5) == 0).then_some("--nodes=2"));
        let job = cluster.submit_script(&words, seconds);
        if random(5) == 0 {
            cluster.done(&["scancel", &job.to_string()]);
        }
        jobs.push(job);
    }
    let mut most = 0;
    until("all jobs have ended", || {
        let held = sound(&cluster, 0) + sound(&cluster, 1);
        most = most.max(held);
        assert!(held <= 32, "{held} GPUs are held");
        cluster.done(&["squeue", "--noheader"]).trim().is_empty()
    });
    cluster.until_idle();
    assert!(most > 4, "{most} GPUs were seen in guests");
    for number in 0..2 {
        assert_eq!(cluster.domains(number), Vec::<String>::new());
        for dir in ["/var/lib/gpuvm/reserved", "/var/lib/gpuvm/journal"] {
            let dir = cluster.nodes[number].daemon.own_path(dir);
            let left: Vec<_> = std::fs::read_dir(dir).map(Iterator::collect).unwrap_or_default();
            assert!(left.is_empty(), "{left:?}");
        }
        let disks = cluster.path(["disks-dgx01", "disks-dgx02"][number]);
        assert_eq!(std::fs::read_dir(disks).unwrap().count(), 0);
    }
    for job in jobs {
        let (state, why) = (cluster.field(job, "JobState"), cluster.field(job, "AdminComment"));
        let is_refused = !why.is_empty() && state == "CANCELLED";
        assert!(
            is_refused || state == "COMPLETED" || state == "CANCELLED",
            "{job}: {state}: {why}"
        );
        if is_refused {
            eprintln!("job {job} is refused: {why}");
        }
    }
    // What Slurm's jobs pay for their guests.
    let times = std::fs::read_to_string(cluster.path("times")).unwrap();
    for name in ["prolog", "epilog"] {
        let taken = times.lines().filter_map(|line| {
            let mut words = line.strip_prefix(name)?.split_whitespace().skip(1);
            let (begun, now) =
                (words.next()?.parse::<f64>().ok()?, words.next()?.parse::<f64>().ok()?);
            Some(now - begun)
        });
        let mut taken: Vec<f64> = taken.collect();
        taken.sort_by(f64::total_cmp);
        assert!(!taken.is_empty(), "{name}");
        let (middle, most) = (taken[taken.len() / 2], taken[taken.len() - 1]);
        eprintln!("{name}: {} runs, median {middle:.2} s, at most {most:.2} s", taken.len());
    }
}

#[test]
fn a_gres_is_named_alone() {
    for name in ["", "gpu:2", "gres/gpu"] {
        let mut command = crate::support::gpuvm(&["slurm", "prolog", "--gres", name]);
        let (code, out, err) = run(command.env("SLURM_JOB_ID", "7"));
        assert!(code == 2 && err.contains("the name alone is needed"), "{name:?}: {out}{err}");
    }
}
