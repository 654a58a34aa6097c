//! `plan`: the placement of a guest, as text and JSON. Changes nothing.

mod text;

use super::args::PlanArgs;
use super::context::Context;
use super::error::EXIT_DONE;
use super::output::offered_text;
use super::{room, view};
use crate::domain::guest::VirtType;
use crate::placement::{Placement, Reason};
use crate::request::{DomainName, Request};
use crate::shell::word;
use crate::words::count;
use gpuvm_core::versions::Stack;
use gpuvm_core::view::{Page, Subject};
use gpuvm_ops::capture;
use gpuvm_ops::plan::plan;
use gpuvm_ops::planned::Planned;
use serde::Serialize;
use std::path::Path;

/// The answer as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Answer<'a> {
    /// The guest's name.
    name: &'a DomainName,
    /// The request.
    request: &'a Request,
    /// The template that was named, as an absolute path.
    #[serde(skip_serializing_if = "Option::is_none")]
    template: Option<&'a Path>,
    /// The domain type, if it is not `kvm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    virt_type: Option<VirtType>,
    /// Where it goes.
    placement: &'a Placement,
    /// The libvirt and QEMU that are assumed of a recorded host which names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    assumed: Option<Stack>,
    /// Why `create` refuses this guest whatever is accepted for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    /// Skipped checks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<&'a str>,
}

/// Runs the verb.
pub fn run(args: &PlanArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    view::check(&args.view, cx)?;
    let wanted = args.request()?;
    let planned =
        plan(cx, &wanted).map_err(|error| room::of_error(error.into(), &wanted.taken, cx))?;
    let Planned { name, request, placement, .. } = &planned;
    let warnings = cx.unseen().into_iter().collect();
    let template = wanted.template.as_deref().map(std::path::absolute).transpose()?;
    let template = template.as_deref();
    let refused = placement.refused(planned.topology.machine().trust).map(ToString::to_string);
    let assumed = planned.assumed();
    let virt_type = Some(wanted.virt).filter(|virt| *virt != VirtType::Kvm);
    let answer =
        Answer { name, request, template, virt_type, placement, assumed, refused, warnings };
    if args.view.is_wanted() && draw(args, cx, &planned, &answer)? {
        return Ok(EXIT_DONE);
    }
    if cx.output.json {
        cx.output.json("gpuvm-plan", &answer)?;
    } else {
        let mut said = text::describe(&planned);
        said += &text::reasons(&planned.placement.reasons, args.explain);
        if answer.refused.is_some() {
            said += &text::refused(&planned.topology);
        }
        cx.output.text(&said)?;
    }
    Ok(EXIT_DONE)
}

/// Draws the plan; returns whether standard output is used.
fn draw(
    args: &PlanArgs,
    cx: &Context<'_>,
    planned: &Planned,
    answer: &Answer<'_>,
) -> anyhow::Result<bool> {
    let Planned { topology, placement, name, occupancy, .. } = planned;
    let topology = capture::shown(cx, topology, args.view.identify)?;
    let _nameless = view::nameless(&args.view);
    let new = [placement.held(name.as_str())];
    let gpus = topology.gpus().filter(|gpu| placement.devices.contains(&gpu.bdf)).count();
    let reasons: Vec<Reason> = placement.reasons.clone();
    let compromises = reasons.iter().filter(|reason| reason.is_compromise()).count();
    let is_refused = answer.refused.is_some();
    let fits = if is_refused { "is refused by `gpuvm create`" } else { "fits" };
    let fits = format!(
        "{name} {fits}: {}, {}, {}",
        count(gpus, "GPU"),
        count(placement.vcpus(), "vCPU"),
        placement.memory()
    );
    let compromises = match compromises {
        0 => "without a compromise".to_owned(),
        some => format!("with {}, marked under Why", count(some, "compromise")),
    };
    let file = word(&format!("{name}.json")).into_owned();
    let own = word(name.as_str());
    let commands = if is_refused {
        vec!["gpuvm capacity".to_owned()]
    } else {
        vec![
            format!("# {file}: what `gpuvm plan --json` prints, which is also in this page"),
            format!("gpuvm create --plan {file}"),
            format!("gpuvm verify {own}"),
        ]
    };
    let shown = Page {
        subject: Subject { topology: &topology, held: occupancy, planned: &new },
        verb: "plan",
        verdict: &[fits, compromises],
        date: args.view.date.as_deref(),
        placement: Some(placement),
        reasons: &reasons,
        capacity: None,
        fits: None,
        changed: &[],
        notes: &answer.warnings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        commands: &commands,
        json: &cx.output.json_string("gpuvm-plan", answer)?,
        offered: offered_text,
    };
    view::write(&args.view, cx, &shown)
}
