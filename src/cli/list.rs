//! `list`: every domain, whoever made it. Each definition is read once, over one connection.

use super::context::Context;
use super::error::EXIT_DONE;
use super::guest::gpu_indexes;
use super::output::width;
use super::view::View;
use crate::domain::DomainXml;
use crate::hypervisor::{DomainState, DomainSummary, HypervisorErrorKind, XmlOf};
use serde::Serialize;
use tabled::builder::Builder;
use tabled::settings::{Style, Width};

/// Is one row.
#[derive(Debug, Serialize)]
struct Row {
    /// Name, state and UUID.
    #[serde(flatten)]
    summary: DomainSummary,
    /// What it holds; none: its definition cannot be understood.
    #[serde(flatten)]
    view: Option<View>,
}

/// Runs the verb.
pub fn run(cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_without_guests("list")?;
    let rows = rows(cx)?;
    if cx.output.json {
        cx.output.json(&rows)?;
    } else if rows.is_empty() {
        cx.output.progress("no domain is defined");
    } else {
        cx.output.text(&table(&rows))?;
    }
    Ok(EXIT_DONE)
}

/// Reads every domain.
fn rows(cx: &Context<'_>) -> anyhow::Result<Vec<Row>> {
    let hypervisor = cx.hypervisor()?;
    let summaries = hypervisor.domains()?;
    let mut rows = Vec::with_capacity(summaries.len());
    for summary in summaries {
        let text = match hypervisor.xml(&summary.name, XmlOf::Live) {
            // Deleted since it was listed.
            Err(error) if error.kind == HypervisorErrorKind::NoDomain => continue,
            text => text?,
        };
        let view = DomainXml::parse(&text).and_then(|xml| View::of(&xml, None));
        if let Err(error) = &view {
            cx.output.warning(&format!("domain `{}`: {error}", summary.name));
        }
        rows.push(Row { summary, view: view.ok() });
    }
    let has_devices = |row: &Row| row.view.as_ref().is_some_and(|view| !view.devices.is_empty());
    // Reading the host takes as long as all else, and only indexes of GPUs come from it. A host that cannot be read
    // costs these, not the list.
    if rows.iter().any(has_devices)
        && let Ok(topology) = cx.topology()
    {
        for view in rows.iter_mut().filter_map(|row| row.view.as_mut()) {
            view.gpus = gpu_indexes(&topology, &view.devices);
        }
    }
    Ok(rows)
}

/// A domain's state in a word or two.
pub fn state_text(state: DomainState) -> &'static str {
    match state {
        DomainState::Running => "running",
        DomainState::Paused => "paused",
        DomainState::ShuttingDown => "shutting down",
        DomainState::ShutOff => "shut off",
        DomainState::Crashed => "crashed",
    }
}

/// The rows as a table.
fn table(rows: &[Row]) -> String {
    let mut table = Builder::new();
    table.push_record(["NAME", "STATE", "VCPUS", "MEMORY", "GPUS", "PCPUS", "MADE BY"]);
    for Row { summary, view } in rows {
        let cell = |text: fn(&View) -> String| view.as_ref().map_or("?".to_owned(), text);
        table.push_record([
            summary.name.clone(),
            state_text(summary.state).to_owned(),
            cell(|view| view.vcpus.to_string()),
            cell(|view| view.memory_kib.to_string()),
            cell(View::gpu_text),
            cell(|view| if view.pcpus.is_empty() { "any".into() } else { view.pcpus.to_string() }),
            cell(|view| if view.remembered.is_some() { "gpuvm" } else { "other" }.to_owned()),
        ]);
    }
    let mut table = table.build();
    table.with(Style::blank()).with(Width::wrap(width()).keep_words(true));
    // Cells are padded to the width of their column, which no reader needs at the end of a line.
    table.to_string().lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}
