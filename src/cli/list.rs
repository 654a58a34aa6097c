//! `list`: every domain, whoever made it. Each definition is read once, over one connection.

use super::args::ListArgs;
use super::context::Context;
use super::error::{EXIT_DONE, usage};
use super::names::state;
use super::table::Table;
use crate::domain::view::View;
use crate::domain::view::gpu_indexes;
use crate::domain::{DomainXml, DomainXmlError};
use crate::hypervisor::{DomainState, DomainSummary, HypervisorErrorKind, XmlOf};
use gpuvm_ops::taken::{domains_of_files, is_active};
use serde::Serialize;
use std::path::PathBuf;

/// Is one row.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Row {
    /// Name, state and UUID.
    #[serde(flatten)]
    summary: DomainSummary,
    /// What it holds; none: its definition cannot be understood.
    #[serde(flatten)]
    view: Option<View>,
}

/// Runs the verb.
pub fn run(args: &ListArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let files = domains_of_files(cx, &args.domain_xml)?;
    if files.is_empty() && cx.is_recorded() {
        return Err(usage(
            "`list` asks libvirt, which a recorded host does not have, and no --domain-xml is given",
            "--domain-xml PATH lists what `virsh dumpxml` printed there; `gpuvm list` without --host asks the \
             libvirt of this machine",
        ));
    }
    let rows = match files.is_empty() {
        true => rows(known(cx)?, cx),
        false => rows(files.into_iter().map(of_file).collect(), cx),
    };
    if cx.output.json {
        cx.output.json_rows("gpuvm-list", &rows)?;
    } else if rows.is_empty() {
        cx.output.progress("no domain is defined");
    } else {
        cx.output.table(&table(&rows))?;
    }
    Ok(EXIT_DONE)
}

/// The domains that the hypervisor knows, each with what can be understood of its definition.
fn known(
    cx: &Context<'_>,
) -> anyhow::Result<Vec<(DomainSummary, Result<DomainXml, DomainXmlError>)>> {
    let hypervisor = cx.hypervisor()?;
    let mut found = Vec::new();
    for summary in hypervisor.domains()? {
        let text = match hypervisor.xml(&summary.name, XmlOf::Live) {
            // Deleted since it was listed.
            Err(error) if error.kind == HypervisorErrorKind::NoDomain => continue,
            text => text?,
        };
        let xml = DomainXml::parse(&text);
        found.push((summary, xml));
    }
    Ok(found)
}

/// A domain of a recorded host, as its file shows it.
fn of_file((_, xml): (PathBuf, DomainXml)) -> (DomainSummary, Result<DomainXml, DomainXmlError>) {
    let state = if is_active(&xml) { DomainState::Running } else { DomainState::ShutOff };
    let uuid = xml.uuid().unwrap_or_default();
    (DomainSummary { name: xml.name(), uuid, state, persistent: true }, Ok(xml))
}

/// Reads what each domain holds.
fn rows(
    domains: Vec<(DomainSummary, Result<DomainXml, DomainXmlError>)>,
    cx: &Context<'_>,
) -> Vec<Row> {
    let mut rows = Vec::with_capacity(domains.len());
    for (summary, xml) in domains {
        let view = xml.and_then(|xml| View::of(&xml, None));
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
    rows
}

/// The rows as a table.
fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(["NAME", "STATE", "VCPUS", "MEMORY", "GPUS", "PCPUS", "MADE BY"]);
    for Row { summary, view } in rows {
        let cell = |text: fn(&View) -> String| view.as_ref().map_or("?".to_owned(), text);
        table.push([
            summary.name.clone(),
            state(summary.state).to_owned(),
            cell(|view| view.vcpus.to_string()),
            cell(|view| view.memory_kib.to_string()),
            cell(View::gpu_text),
            cell(|view| if view.pcpus.is_empty() { "any".into() } else { view.pcpus.to_string() }),
            cell(|view| if view.remembered.is_some() { "gpuvm" } else { "other" }.to_owned()),
        ]);
    }
    table
}
