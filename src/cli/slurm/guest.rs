//! From a job to the arguments of `create`, and to its guest.

use super::Call;
use crate::apply::HostLock;
use crate::cli::args::{CreateArgs, ImageArg, SlurmPrologArgs};
use crate::cli::change::manner;
use crate::cli::codes::Class;
use crate::cli::context::Context;
use crate::cli::error::{classed, usage};
use crate::identity::random_uuid;
use crate::image::ImageName;
use crate::memsize::MemSize;
use crate::request::{GpuWish, Which};
use anyhow::Context as _;
use clap::{Args as _, Command, FromArgMatches as _};
use gpuvm_core::slurm::{JobError, JobLimits, Key, Resources, read_comment};
use gpuvm_host::history::guest::SlurmJob;
use gpuvm_host::slurm::{NodeJob, Slurm, keys_of};
use gpuvm_ops::create::{Created, Waits};
use gpuvm_ops::session::{Confirm, Manner, Session};
use gpuvm_ops::slurm::{
    Begun, gpus, lock_job, prolog, request_refused, running, slurm_failed, vgpus,
};
use gpuvm_ops::storage::Keyless;
use std::ffi::OsString;
use std::io::Write as _;
use std::time::Duration;

/// How long a prolog waits for another prolog or epilog of its job.
const OTHER_WAIT: Duration = Duration::from_secs(600);

/// Reads options of `create`.
fn parsed(words: &[OsString]) -> anyhow::Result<CreateArgs> {
    let command = Command::default().name("create").disable_help_flag(true).no_binary_name(true);
    let matches = CreateArgs::augment_args(command).try_get_matches_from(words);
    let args = matches.and_then(|matches| CreateArgs::from_arg_matches(&matches));
    args.map_err(|error| {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default();
        usage(line.trim_start_matches("error: "), "`gpuvm create --help` lists the options")
    })
}

/// Reads the options for all guests.
pub(super) fn options(words: &[OsString]) -> anyhow::Result<CreateArgs> {
    let args = parsed(words)?;
    let gpus = &args.guest.gpus;
    let is_of_job = args.named.is_some()
        || args.guest.name.is_some()
        || args.guest.domain.is_some()
        || args.guest.plan.is_some()
        || gpus.gpus.is_some()
        || !gpus.gpu.is_empty()
        || gpus.gpu_model.is_some()
        || gpus.vgpu.is_some();
    if is_of_job {
        let hint = "leave the name, the plan and the GPUs out: they are those of the job";
        return Err(usage("options of one guest are given for the guests of all jobs", hint));
    }
    if args.change.dry_run || args.change.diff || args.if_absent {
        let hint = "`gpuvm create --dry-run` with the same options shows what would be made";
        return Err(usage("a prolog does not take --dry-run, --diff or --if-absent", hint));
    }
    args.request()?;
    Ok(args)
}

/// Returns the lock of a job, or who has it.
pub(super) fn locked(lock: Option<HostLock>, job: u32) -> anyhow::Result<HostLock> {
    lock.ok_or_else(|| {
        let message = format!("another prolog or epilog of job {job} is still running");
        classed(Class::Timeout, message, "`pgrep -af 'gpuvm.* slurm '` lists them")
    })
}

/// Makes the guest of a job.
pub(super) fn make(
    call: &Call,
    (slurm, args, mut create): (&Slurm, &SlurmPrologArgs, CreateArgs),
    cx: &Context<'_>,
) -> anyhow::Result<(Begun, Option<Created>)> {
    let _lock = locked(lock_job(cx, call.id, OTHER_WAIT)?, call.id)?;
    let jobs = slurm.jobs(&call.node, true).map_err(slurm_failed)?;
    let Some(job) = running(&jobs, call.id) else { return Ok((Begun::Ended, None)) };
    let Some(gpus) = take_gpus(&mut create, job, (call, args), cx)? else {
        return Ok((Begun::NoGpus, None));
    };
    create.named = Some(format!("slurm-{}", call.id).parse().context("the name of the guest")?);
    let comment = slurm.comment(call.id).map_err(slurm_failed)?;
    obey(&mut create, &comment.unwrap_or_default(), args, |usual| {
        let share = Resources::share(&cx.topology()?, gpus);
        let usual = Resources {
            cpus: usual.cpus.unwrap_or(share.cpus),
            memory: usual.memory.or(share.memory),
        };
        let allotted = slurm.allotted(call.id).map_err(slurm_failed)?;
        let (most_vcpus, most_memory) = (args.max_job_vcpus, args.max_job_memory);
        Ok(JobLimits { usual, allotted, most_vcpus, most_memory })
    })?;
    let keys = if boots_image(&create) { keys_of(call.uid) } else { Vec::new() };
    let mut file = tempfile::NamedTempFile::new().context("cannot write the keys of the user")?;
    if !keys.is_empty() {
        file.write_all((keys.join("\n") + "\n").as_bytes()).context("cannot write the keys")?;
        create.seed.ssh_key.push(file.path().to_owned());
    }
    let mut wanted = create.request()?;
    // Who logs in is the matter of the cluster: its template, or its user-data.
    wanted.seed.keyless = Keyless::Warned;
    wanted.uuid = Some(random_uuid().context("cannot choose a UUID")?);
    wanted.job = Some(SlurmJob {
        cluster: call.cluster.clone(),
        id: call.id,
        node: call.node.clone(),
        submitted_s: job.submitted_s,
    });
    let waits = Waits {
        address_s: if create.no_wait { 0 } else { create.wait },
        seed_s: create.seed.drop_seed.then_some(create.wait),
    };
    let confirm = if create.accept_data_loss { Confirm::Given } else { Confirm::IfNeeded };
    let mut session = Session::begin(cx, Manner { confirm, ..manner(&args.lock) })?;
    let (done, guest) = prolog(&mut session, cx, &wanted, waits)?;
    Ok((done, Some(guest)))
}

/// Requests the GPUs of a job, or its vGPUs. Returns how many GPUs its share of the host is of;
/// `None`: it requests none.
fn take_gpus(
    create: &mut CreateArgs,
    job: &NodeJob,
    (call, args): (&Call, &SlurmPrologArgs),
    cx: &Context<'_>,
) -> anyhow::Result<Option<u32>> {
    if let Some(wish) = vgpus(cx, job, &args.gres)? {
        create.guest.gpus.vgpu = Some(wish);
        return Ok(Some(1));
    }
    let Some((wish, model)) = gpus(cx, job, (&args.gres, call.gpus.as_deref()))? else {
        return Ok(None);
    };
    let number = wish.number();
    match wish {
        GpuWish::Exact(bdfs) => create.guest.gpus.gpu = bdfs.into_iter().map(Which::At).collect(),
        GpuWish::Count(count) => create.guest.gpus.gpus = Some(count),
        GpuWish::Indexes(_) | GpuWish::Run { .. } => {}
    }
    create.guest.gpus.gpu_model = model;
    Ok(Some(number))
}

/// Whether the guest boots from an image, whose cloud-init takes keys.
fn boots_image(args: &CreateArgs) -> bool {
    let is_blank = matches!(args.storage.image, Some(ImageArg::None));
    !is_blank
        && args.storage.disk.is_empty()
        && args.storage.disk_dir.is_none()
        && !args.seed.no_seed
}

/// The resources from the admin's options; none if the planner chooses.
struct Usual {
    cpus: Option<u32>,
    memory: Option<MemSize>,
}

/// Applies the comment of the job, within its limits, for which Slurm is queried only if they
/// matter. Its options are refused if the admin's options leave no choice.
fn obey(
    create: &mut CreateArgs,
    comment: &str,
    args: &SlurmPrologArgs,
    limits: impl FnOnce(Usual) -> anyhow::Result<JobLimits>,
) -> anyhow::Result<()> {
    let said = read_comment(comment).map_err(request_refused)?;
    let words = said.iter().map(|(key, value)| format!("--{}={value}", key.as_str()).into());
    let user = parsed(&words.collect::<Vec<_>>())?;
    let (vcpus, memory) = (user.guest.shape.vcpus, user.guest.shape.memory);
    if vcpus.is_some() || memory.is_some() {
        let shape = &create.guest.shape;
        let limits = limits(Usual { cpus: shape.vcpus, memory: shape.memory })?;
        vcpus.map_or(Ok(()), |wanted| limits.refuse_vcpus(wanted)).map_err(request_refused)?;
        memory.map_or(Ok(()), |wanted| limits.refuse_memory(wanted)).map_err(request_refused)?;
    }
    for (key, _) in said {
        match key {
            Key::Image if !boots_image(create) => {
                let hint = "leave image= out of the comment";
                return Err(usage("guests of this node boot from no image", hint));
            }
            Key::Image => choose_image(create, user.storage.image.as_ref(), &args.job_image)?,
            Key::Vcpus => create.guest.shape.vcpus = vcpus,
            Key::Memory => create.guest.shape.memory = memory,
        }
    }
    Ok(())
}

/// Takes the image that a job chooses, if that is the admin's or one of those that jobs may choose.
fn choose_image(
    create: &mut CreateArgs,
    wanted: Option<&ImageArg>,
    allowed: &[ImageName],
) -> anyhow::Result<()> {
    let is_allowed = match wanted {
        Some(ImageArg::Named(name)) => allowed.contains(name),
        _ => false,
    };
    if !is_allowed && wanted != create.storage.image.as_ref() {
        let image = match wanted {
            Some(ImageArg::Named(name)) => name.to_string(),
            _ => "none".to_owned(),
        };
        return Err(request_refused(JobError::Image { image }).into());
    }
    create.storage.image = wanted.cloned();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admin(line: &str) -> anyhow::Result<CreateArgs> {
        options(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn options_of_one_guest_are_refused() {
        for line in
            ["a", "--name a", "--gpus 2", "--gpu 0", "--plan x", "--dry-run", "--diff", "--nosuch"]
        {
            assert!(admin(line).is_err(), "{line}");
        }
        assert!(admin("--image debian-12 --no-wait --accept-shared-fabric").is_ok());
    }

    /// The admin's options after a comment of a job with two CPUs.
    fn obeyed(line: &str, more: &[&str], comment: &str) -> anyhow::Result<CreateArgs> {
        let mut create = admin(line)?;
        let command = SlurmPrologArgs::augment_args(Command::default().no_binary_name(true));
        let args = SlurmPrologArgs::from_arg_matches(&command.get_matches_from(more)).unwrap();
        let allotted = Resources { cpus: 2, memory: None };
        let (most_vcpus, most_memory) = (args.max_job_vcpus, args.max_job_memory);
        obey(&mut create, comment, &args, |usual| {
            let share = Resources { cpus: 24, memory: Some(MemSize::from_gib(100)) };
            let cpus = usual.cpus.unwrap_or(share.cpus);
            let usual = Resources { cpus, memory: usual.memory.or(share.memory) };
            Ok(JobLimits { usual, allotted, most_vcpus, most_memory })
        })?;
        Ok(create)
    }

    #[test]
    fn a_comment_chooses_among_few_things() {
        let images = ["--job-image", "noble,trixie"];
        let comment = "for the paper; vcpus=8 memory=64G image=noble";
        let args = obeyed("--image debian-12", &images, comment).unwrap();
        assert_eq!(args.guest.shape.vcpus, Some(8));
        assert_eq!(args.guest.shape.memory.map(|memory| memory.kib()), Some(64 << 20));
        assert!(
            matches!(&args.storage.image, Some(ImageArg::Named(name)) if name.as_str() == "noble")
        );
        for bad in
            ["vcpus=x", "image=none;", "disk=/dev/sda", "image=--disk", "memory=1G memory=2G"]
        {
            assert!(obeyed("", &[], bad).is_err(), "{bad}");
        }
        assert!(obeyed("--disk-dir /srv", &images, "image=noble").is_err());
    }

    #[test]
    fn a_comment_gets_no_more_than_the_job_was_allotted() {
        let line = "--image debian-12 --vcpus 4 --memory 8G";
        for (good, bad) in [("vcpus=4", "vcpus=44"), ("memory=8G", "memory=600G")] {
            obeyed(line, &[], good).unwrap();
            let error = obeyed(line, &[], bad).unwrap_err().to_string();
            assert!(error.contains("that this job may request"), "{error}");
        }
        // The share of the job's GPUs where the admin says nothing, and less where he says so.
        assert!(obeyed("", &[], "vcpus=24").is_ok() && obeyed("", &[], "vcpus=25").is_err());
        assert!(obeyed("", &["--max-job-vcpus", "8"], "vcpus=9").is_err());
        assert!(obeyed("", &["--max-job-memory", "8G"], "memory=9G").is_err());
        assert!(obeyed(line, &["--max-job-vcpus", "99"], "vcpus=5").is_err());
    }

    #[test]
    fn a_comment_chooses_only_images_that_the_admin_lists() {
        let line = "--image debian-12";
        assert!(obeyed(line, &[], "image=debian-12").is_ok());
        for (line, images) in [(line, &[][..]), ("", &[]), (line, &["--job-image", "trixie"])] {
            for image in ["noble", "none", "debian-12.old"] {
                let error = obeyed(line, images, &format!("image={image}")).unwrap_err();
                let says = "may not choose image";
                assert!(error.to_string().contains(says), "{line} {image}: {error}");
            }
        }
    }
}
