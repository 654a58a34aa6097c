//! `check`: what our own checker finds in a domain, and what it could not look at.

use super::args::CheckArgs;
use super::context::Context;
use super::error::{EXIT_DONE, EXIT_FOUND, around, usage};
use crate::check::{self, Finding, InXml, Note};
use crate::domain::DomainXml;
use crate::finding::Severity;
use crate::hypervisor::{DomainState, XmlOf};
use crate::input::{self, DOMAIN_BYTES};
use crate::placement::Occupancy;
use crate::versions::Versions;
use crate::words;
use anyhow::Context as _;
use gpuvm_ops::disks;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

/// Is the answer, as JSON shows it.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Answer {
    /// Name of the domain.
    domain: String,
    /// What was found: errors first, then by line.
    findings: Vec<Finding>,
    /// What is as good as this host or what was asked for lets it be.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<Note>,
    /// How many rules were applied.
    rules: usize,
    /// What was not looked at, and why.
    not_checked: Vec<String>,
}

/// Runs the verb.
pub fn run(args: &CheckArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let (domain, running) = read(&args.target, cx)?;
    let topology = cx.topology()?;
    let mut not_checked = Vec::new();
    let mut others = match cx.occupancy(args.taken.assume_empty) {
        _ if !args.taken.domain_xml.is_empty() => cx.taken(&args.taken)?,
        _ if cx.is_recorded() => {
            not_checked.push("other domains (--host is given without --domain-xml)".to_owned());
            Occupancy::default()
        }
        Ok(others) => others,
        Err(error) => {
            not_checked.push(format!("other domains ({error})"));
            Occupancy::default()
        }
    };
    others.domains.retain(|held| held.domain != domain.name());
    let versions = match cx.is_recorded() {
        true => Versions::default(),
        false => cx.hypervisor().map(|hypervisor| hypervisor.versions()).unwrap_or_default(),
    };
    if versions == Versions::default() {
        not_checked.push("versions of QEMU and libvirt".to_owned());
    }
    let (mut findings, notes) = check::judge(&domain, &topology, &others, &versions);
    match disks_of(&domain, cx) {
        Ok(found) => findings.extend(found),
        Err(why) => not_checked.push(format!("whose the disks are ({why})")),
    }
    findings.sort_by_key(|finding| (finding.severity, finding.says.line));
    if running {
        findings.retain(|finding| finding.rule != check::HUGE_PAGES_SHORT);
        not_checked.push("free huge pages (the domain runs and holds its own)".to_owned());
    }
    not_checked.extend(check::unchecked(&topology).into_iter().map(str::to_owned));
    let name = Some(domain.name()).filter(|name| !name.is_empty());
    let domain = name.unwrap_or_else(|| args.target.clone());
    let answer = Answer { domain, findings, notes, rules: check::rules().count(), not_checked };
    if cx.output.json {
        cx.output.json("gpuvm-check", &answer)?;
    } else {
        cx.output.text(&text(&answer))?;
    }
    Ok(if answer.findings.is_empty() { EXIT_DONE } else { EXIT_FOUND })
}

/// What stands against the disks of a domain, by the hypervisor's other domains and by the host.
fn disks_of(domain: &DomainXml, cx: &Context<'_>) -> anyhow::Result<Vec<Finding>> {
    if cx.global.host.is_some() {
        return Err(usage("--host is given", ""));
    }
    let hypervisor = cx.hypervisor()?;
    let of_name = || Ok::<_, anyhow::Error>(hypervisor.domain(&domain.name())?.map(|row| row.uuid));
    let own = domain.uuid().map_or_else(of_name, |uuid| Ok(Some(uuid)))?;
    let facts = disks::facts(domain, own.as_deref(), false, &*hypervisor)?;
    Ok(check::disks(domain, &facts))
}

/// Reads the domain, and whether it runs: a file where it looks like one, else a domain of the hypervisor.
fn read(target: &str, cx: &Context<'_>) -> anyhow::Result<(DomainXml, bool)> {
    if is_file(target) {
        let text = read_file(target)?;
        let domain = DomainXml::parse(&text).map_err(|error| {
            let message = format!("{target}: {error}");
            around(error, message, "`virt-xml-validate FILE domain` says more")
        })?;
        return Ok((domain, false));
    }
    let hypervisor = cx.hypervisor()?;
    let xml = hypervisor.xml(target, XmlOf::Inactive)?;
    let summary = hypervisor.domains()?.into_iter().find(|summary| summary.name == target);
    let running = summary.is_some_and(|summary| summary.state != DomainState::ShutOff);
    let domain = DomainXml::parse(&xml).with_context(|| format!("cannot read `{target}`"))?;
    Ok((domain, running))
}

/// Whether what is named looks like a file.
pub fn is_file(target: &str) -> bool {
    let xml_name = Path::new(target).extension().is_some_and(|e| e.eq_ignore_ascii_case("xml"));
    target == "-" || target.contains('/') || xml_name || Path::new(target).exists()
}

/// Reads a file with domain XML or standard input.
pub fn read_file(target: &str) -> anyhow::Result<String> {
    input::text_or_stdin(Path::new(target), DOMAIN_BYTES).map_err(|error| {
        let hint = error.hint().unwrap_or_else(|| {
            "name a file with domain XML (`virsh dumpxml NAME`), `-`, or a domain of `gpuvm list`"
                .into()
        });
        let message = error.to_string();
        around(error, message, hint)
    })
}

/// The answer for people.
fn text(answer: &Answer) -> String {
    let mut text = String::new();
    for Finding { rule, severity, says, hint } in &answer.findings {
        let InXml { path, line, message } = says;
        writeln!(text, "{severity}: {message}").expect("text");
        writeln!(text, "  {path}, line {line} ({rule})").expect("text");
        writeln!(text, "  hint: {hint}").expect("text");
    }
    for Note { rule, path, line, message } in &answer.notes {
        writeln!(text, "note: {message}\n  {path}, line {line} ({rule})").expect("text");
    }
    let count = |severity| answer.findings.iter().filter(|f| f.severity == severity).count();
    let found = match (count(Severity::Error), count(Severity::Warning)) {
        (0, 0) => "nothing found".to_owned(),
        (errors, warnings) => {
            format!("{}, {}", words::count(errors, "error"), words::count(warnings, "warning"))
        }
    };
    let Answer { domain, rules, not_checked, .. } = answer;
    let not_checked = not_checked.join(", ");
    writeln!(text, "{domain}: {found}, {rules} rules checked, not checked: {not_checked}")
        .expect("text");
    text
}
