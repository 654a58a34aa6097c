//! `slurm conf`, `slurm prolog`, `slurm epilog`, `slurm reconcile`.

mod guest;

use super::args::{
    SlurmArgs, SlurmConfArgs, SlurmEpilogArgs, SlurmPrologArgs, SlurmReconcileArgs, SlurmVerb,
};
use super::change::manner;
use super::codes;
use super::context::Context;
use super::error::{EXIT_DONE, ErrorParts, whole};
use crate::hypervisor::machine::host_name;
use anyhow::Context as _;
use gpuvm_core::slurm::{ConfRequest, conf};
use gpuvm_host::slurm::Slurm;
use gpuvm_ops::error::Result as OpsResult;
use gpuvm_ops::session::{Confirm, Manner, Session};
use gpuvm_ops::slurm::{
    Begun, Epilog, JobGuest, Prolog, Reconciled, SlurmJobError, conf_refused, epilog, is_fault,
    job_refused, lock_job, reconcile, refuse_impassable, slurm_failed, vgpu_count,
};
use std::env;
use std::time::Duration;

/// How long an epilog waits for the prolog of its job, which may be making the guest.
const PROLOG_WAIT: Duration = Duration::from_secs(1800);

/// Runs the verb.
pub fn run(verb: &SlurmVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    match verb {
        SlurmVerb::Conf(args) => prints_conf(args, cx),
        SlurmVerb::Prolog(args) => begins(args, cx),
        SlurmVerb::Epilog(args) => ends(args, cx),
        SlurmVerb::Reconcile(args) => reconciles(args, cx),
    }
}

/// A job, as slurmd describes it to its prolog and epilog.
struct Call {
    /// The job, that of an array's task.
    id: u32,
    cluster: String,
    node: String,
    uid: u32,
    /// The GPUs that Slurm chose by device files.
    gpus: Option<String>,
}

impl Call {
    fn read() -> OpsResult<Call> {
        let unknown = |variable, what| job_refused(SlurmJobError::Unknown { variable, what });
        let text = |name| env::var(name).ok().filter(|text| !text.is_empty());
        let number = |name: &'static str| {
            let number = text(name).and_then(|text| text.parse().ok());
            number.ok_or_else(|| unknown(name, "a number"))
        };
        if !nix::unistd::geteuid().is_root() {
            return Err(job_refused(SlurmJobError::NotRoot));
        }
        Ok(Call {
            id: number("SLURM_JOB_ID")?,
            cluster: text("SLURM_CLUSTER_NAME")
                .ok_or_else(|| unknown("SLURM_CLUSTER_NAME", "the cluster's name"))?,
            node: text("SLURMD_NODENAME")
                .ok_or_else(|| unknown("SLURMD_NODENAME", "the node's name"))?,
            uid: number("SLURM_JOB_UID")?,
            gpus: text("SLURM_JOB_GPUS"),
        })
    }
}

/// Slurm, as the arguments and the environment name it.
fn slurm(args: &SlurmArgs) -> Slurm {
    Slurm { programs: args.programs.clone(), conf: env::var_os("SLURM_CONF") }
}

/// Runs `slurm conf`.
fn prints_conf(args: &SlurmConfArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let recorded = cx.global.host.as_deref().and_then(|path| path.file_stem()?.to_str());
    let node = args.node_name.clone().unwrap_or_else(|| match recorded {
        Some(name) => name.to_owned(),
        None => host_name().split('.').next().unwrap_or_default().to_owned(),
    });
    let topology = cx.topology_with(args.assume)?;
    refuse_impassable(cx, &topology, args.assume)?;
    let counted = args.vgpu.as_deref().map(|name| vgpu_count(&topology, name));
    let wanted = ConfRequest {
        node,
        files: args.files,
        vgpu: counted.transpose()?,
        reserve_cores: args.reserve_cores,
        reserve_memory: args.reserve_memory.unwrap_or_default(),
    };
    let conf = conf(&topology, &wanted).map_err(conf_refused)?;
    if cx.output.json {
        cx.output.json("gpuvm-slurm-conf", &conf)?;
        return Ok(EXIT_DONE);
    }
    let doubts: String = conf.doubts.iter().map(|doubt| format!("# {doubt}\n")).collect();
    let lines = conf.gres_conf.join("\n");
    let mut text = format!("# gres.conf\n{doubts}{lines}\n\n# slurm.conf\n");
    let left_out: Vec<String> = conf.left_out.iter().map(|what| format!("# {what}")).collect();
    for line in conf.settings.iter().chain(&left_out).chain([&conf.node_line]) {
        text += line;
        text.push('\n');
    }
    cx.output.verbatim(&text)?;
    Ok(EXIT_DONE)
}

/// Runs `slurm prolog`.
fn begins(args: &SlurmPrologArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("slurm prolog")?;
    cx.refuse_elsewhere("slurm prolog")?;
    let call = Call::read()?;
    // Options that no guest can have are the admin's error, and no job's.
    let options = guest::options(&args.create)?;
    let slurm = slurm(&args.slurm);
    let error = match guest::make(&call, (&slurm, args, options), cx) {
        Ok((done, guest)) => {
            answer(&Prolog { job: call.id, done, guest, why: None }, cx)?;
            return Ok(EXIT_DONE);
        }
        Err(error) if is_fault(codes::code(&error)) => return Err(error),
        Err(error) => error,
    };
    let hint = ErrorParts::of(&error).hint.map_or(String::new(), |hint| format!("; {hint}"));
    let why = format!("{}{hint}", whole(&error));
    slurm.cancel(call.id, &why).map_err(slurm_failed).with_context(|| {
        format!("job {} is refused and cannot be cancelled: {}", call.id, whole(&error))
    })?;
    answer(&Prolog { job: call.id, done: Begun::Cancelled, guest: None, why: Some(why) }, cx)?;
    Ok(EXIT_DONE)
}

/// Prints the actions for a job that begins.
fn answer(done: &Prolog, cx: &Context<'_>) -> std::io::Result<()> {
    if cx.output.json {
        return cx.output.json("gpuvm-slurm-prolog", done);
    }
    let (job, name) = (done.job, done.guest.as_ref().map_or("", |guest| guest.name.as_str()));
    cx.output.progress(&match done.done {
        Begun::Made => format!("job {job} has guest `{name}`"),
        Begun::Kept => format!("job {job} has guest `{name}` already"),
        Begun::NoGpus => format!("job {job} requests no GPUs of guests; nothing to do"),
        Begun::Ended => format!("job {job} has ended; no guest is made"),
        Begun::Cancelled => {
            let why = done.why.as_deref().unwrap_or_default();
            format!("job {job} is cancelled: {why}")
        }
    });
    Ok(())
}

/// Runs `slurm epilog`.
fn ends(args: &SlurmEpilogArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("slurm epilog")?;
    cx.refuse_elsewhere("slurm epilog")?;
    let call = Call::read()?;
    let mut session = Session::begin(cx, manner(&args.lock))?;
    let _lock = guest::locked(lock_job(cx, call.id, PROLOG_WAIT)?, call.id)?;
    let deleted = epilog(&mut session, cx, &call.cluster, call.id)?;
    if cx.output.json {
        cx.output.json("gpuvm-slurm-epilog", &Epilog { job: call.id, deleted })?;
        return Ok(EXIT_DONE);
    }
    for name in &deleted {
        cx.output.progress(&format!("guest `{name}` of job {} is deleted", call.id));
    }
    if deleted.is_empty() {
        cx.output.progress(&format!("job {} has no guest; nothing to do", call.id));
    }
    Ok(EXIT_DONE)
}

/// Runs `slurm reconcile`.
fn reconciles(args: &SlurmReconcileArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("slurm reconcile")?;
    cx.refuse_elsewhere("slurm reconcile")?;
    let slurm = slurm(&args.slurm);
    let confirm = Confirm::Given;
    let manner = Manner { confirm, dry_run: args.dry_run, ..manner(&args.lock) };
    let mut session = Session::begin(cx, manner)?;
    let cluster = slurm.cluster().map_err(slurm_failed)?;
    let ask = |node: &str| slurm.jobs(node, false).map_err(slurm_failed);
    let done = reconcile(&mut session, cx, &cluster, ask)?;
    if cx.output.json {
        cx.output.json("gpuvm-slurm-reconcile", &done)?;
        return Ok(EXIT_DONE);
    }
    let Reconciled { deleted, kept, busy, others } = &done;
    let said = |guests: &[JobGuest], what: &str| {
        for JobGuest { name, job, .. } in guests {
            cx.output
                .progress(&format!("guest `{name}`: job {} of `{}` {what}", job.id, job.cluster));
        }
    };
    let is = if args.dry_run { "would be" } else { "is" };
    said(deleted, &format!("is gone; the guest {is} deleted"));
    said(kept, "has its node; the guest stays");
    said(busy, "begins or ends now; the guest stays");
    said(others, "is of another cluster; the guest stays");
    Ok(EXIT_DONE)
}
