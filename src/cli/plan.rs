//! `plan`: the placement of a guest, as text and JSON. Changes nothing.

mod text;

use super::args::PlanArgs;
use super::context::Context;
use super::error::EXIT_DONE;
use crate::placement::Placement;
use crate::request::{DomainName, Request};
use gpuvm_ops::guest::Planned;
use gpuvm_ops::plan::plan;
use serde::Serialize;

/// The answer as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Answer<'a> {
    /// The guest's name.
    name: &'a DomainName,
    /// The request.
    request: &'a Request,
    /// Where it goes.
    placement: &'a Placement,
    /// What was not checked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<&'a str>,
}

/// Runs the verb.
pub fn run(args: &PlanArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let planned = plan(cx, &args.request()?)?;
    if cx.output.json {
        let Planned { name, request, placement, .. } = &planned;
        let warnings = cx.unseen().into_iter().collect();
        cx.output.json("gpuvm-plan", &Answer { name, request, placement, warnings })?;
    } else {
        let mut said = text::describe(&planned);
        said += &text::reasons(&planned.placement.reasons, args.explain);
        cx.output.text(&said)?;
    }
    Ok(EXIT_DONE)
}
