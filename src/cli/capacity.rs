//! `capacity`: the guests that still fit, the obstacles to more, and their remedy. Changes nothing.

mod text;

use super::args::{CapacityArgs, GpuArgs, request};
use super::context::Context;
use super::error::EXIT_DONE;
use super::output::offered_text;
use super::{metrics, room, view};
use crate::request::Request;
use crate::words::count;
use gpuvm_core::view::{Page, Subject};
use gpuvm_ops::capacity::{CapacityRequest, Fits, capacity};
use gpuvm_ops::capture;
use gpuvm_ops::taken::Taken;

/// Runs the verb.
pub fn run(args: &CapacityArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    view::check(&args.view, cx)?;
    let is_taken = cx.output.json || args.view.is_out();
    metrics::check(args.metrics.as_deref(), is_taken)?;
    // One GPU, so that options about devices near GPUs are meaningful; each size replaces it.
    let gpu_model = args.gpu_model.clone();
    let gpus = GpuArgs { gpus: Some(1), gpu_model, ..GpuArgs::default() };
    let wanted = CapacityRequest {
        like: Request { vgpu: args.vgpu.clone(), ..request(&gpus, &args.shape)? },
        sizes: args.gpus.into_iter().collect(),
        taken: Taken { assume: args.assume, ..Taken::from(&args.taken) },
    };
    let mut fits = capacity(cx, &wanted)?;
    room::of_capacity(&mut fits, &wanted.like, &wanted.taken, cx);
    if let Some(file) = &args.metrics {
        metrics::warn_of_name(file, cx);
        metrics::write(file, &fits.metrics(wanted.like.reserve.cores), cx)?;
    }
    let Fits { capacity, is_empty, no_gpus, .. } = &fits;
    for warning in &capacity.warnings {
        cx.output.warning(warning);
    }
    if args.view.is_wanted() && draw(args, cx, &fits)? {
        return Ok(EXIT_DONE);
    }
    if cx.output.json {
        cx.output.json("gpuvm-capacity", capacity)?;
        return Ok(EXIT_DONE);
    }
    if args.metrics.is_some() {
        return Ok(EXIT_DONE);
    }
    if args.vgpu.is_none() && !capacity.sizes.is_empty() {
        cx.output.table(&text::table(capacity, *is_empty))?;
    }
    if !capacity.vgpus.is_empty() {
        cx.output.table(&text::vgpus(&capacity.vgpus))?;
    }
    let rest = match &args.vgpu {
        Some(_) => text::limits(&capacity.vgpus),
        None => text::text(capacity, no_gpus),
    };
    let rest = text::doubts(&capacity.vgpus) + &rest;
    if !rest.is_empty() {
        cx.output.text(&rest)?;
    }
    Ok(EXIT_DONE)
}

/// Draws the capacity; returns whether standard output is used.
fn draw(args: &CapacityArgs, cx: &Context<'_>, fits: &Fits) -> anyhow::Result<bool> {
    let Fits { capacity, topology, held, .. } = fits;
    let topology = capture::shown(cx, topology, args.view.identify)?;
    let _nameless = view::nameless(&args.view);
    let (largest, commands) = match capacity.largest {
        Some(gpus) => (
            format!("the largest guest that fits has {}", count(gpus, "GPU")),
            vec![format!("gpuvm plan --gpus {gpus}")],
        ),
        None => ("no guest of these sizes fits".to_owned(), Vec::new()),
    };
    let sizes = capacity.in_a_line().map(|line| format!("what still fits: {line}"));
    let verdict: Vec<String> = sizes.into_iter().chain([largest]).collect();
    let shown = Page {
        subject: Subject { topology: &topology, held, planned: &[] },
        verb: "capacity",
        verdict: &verdict,
        date: args.view.date.as_deref(),
        placement: None,
        reasons: &[],
        capacity: Some(capacity),
        fits: None,
        changed: &[],
        notes: &topology.fabric().degraded,
        commands: &view::shown(commands),
        json: &cx.output.json_string("gpuvm-capacity", capacity)?,
        offered: offered_text,
    };
    view::write(&args.view, cx, &shown)
}
