//! `delete`: the domain, its NVRAM and saved state, and the disks that were made for it.

use super::args::DeleteArgs;
use super::change::{Reporter, confirm, journal, print_steps, refuse_unfinished};
use super::claim::give_back;
use super::context::Context;
use super::diff::Diff;
use super::error::{EXIT_DONE, usage};
use super::history::boot;
use super::pages;
use super::show::find;
use super::view::View;
use crate::apply::{Step, apply, is_of_this_machine};
use crate::domain::DomainXml;
use crate::domain::guest::{Role, VolumeRef};
use crate::history::History;
use crate::hypervisor::{DomainState, DomainSummary, Hypervisor, Lease, XmlOf};

/// Runs the verb.
pub fn run(args: &DeleteArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("delete")?;
    let Some(name) = args.name.as_deref().or(args.domain.as_deref()) else {
        return Err(usage("no domain is named", "gpuvm delete NAME"));
    };
    let mut reporter = Reporter::new(cx.output)?;
    let hypervisor = cx.hypervisor()?;
    if args.dry_run {
        print_steps(&plan(&*hypervisor, name, args.keep_data, cx)?, cx)?;
        return Ok(EXIT_DONE);
    }
    if args.diff {
        let xml = hypervisor.xml(&find(&*hypervisor, name)?.name, XmlOf::Public)?;
        Diff::of(name, Some(&xml), None).print(cx.output)?;
        return Ok(EXIT_DONE);
    }
    refuse_unfinished(&*hypervisor)?;
    if !args.yes {
        let steps = plan(&*hypervisor, name, args.keep_data, cx)?;
        reporter.ask(|| confirm(&steps, "domain", name))?;
    }
    let _lock = reporter.lock(&args.lock)?;
    // Once more: it may have been changed while the question stood.
    let steps = plan(&*hypervisor, name, args.keep_data, cx)?;
    let journal = journal("delete", name, &*hypervisor)?;
    apply(&steps, &*hypervisor, &mut reporter, Some(journal))?;
    cx.output.progress(&format!("domain `{name}` is deleted"));
    Ok(EXIT_DONE)
}

/// The steps of a deletion.
fn plan(
    hypervisor: &dyn Hypervisor,
    name: &str,
    keep_data: bool,
    cx: &Context<'_>,
) -> anyhow::Result<Vec<Step>> {
    let summary = find(hypervisor, name)?;
    let xml = hypervisor.xml(name, XmlOf::Inactive)?;
    let parsed = DomainXml::parse(&xml)?;
    let has_nvram = parsed.root().child("os").is_some_and(|os| os.child("nvram").is_some());
    let view = View::of(&parsed, None)?;
    let mut steps = Vec::new();
    if !matches!(summary.state, DomainState::ShutOff | DomainState::Crashed) {
        steps.push(Step::EndDomain { name: name.to_owned() });
    }
    if summary.persistent {
        steps.push(Step::UndefineDomain { name: name.to_owned(), xml: xml.clone() });
    }
    steps.extend(give_back(&parsed, cx)?);
    steps.extend(pages::give_back(&parsed, cx)?);
    steps.extend(leases(hypervisor, &view, cx));
    let mut made = view.remembered.map(|remembered| remembered.made).unwrap_or_default();
    if keep_data {
        made.retain(|disk| disk.role != Role::Data);
    }
    if !made.is_empty() {
        let others = disks_of_others(hypervisor, &summary)?;
        for disk in made {
            if let Some((other, _)) = others.iter().find(|(_, path)| *path == disk.path) {
                cx.output.warning(&format!(
                    "disk {} stays, because domain `{other}` has it too",
                    disk.path
                ));
                continue;
            }
            steps.push(match disk.volume {
                None => Step::DeleteDisk { path: disk.path.into() },
                Some(VolumeRef { pool, name }) => Step::DeleteVolume { pool, name },
            });
        }
    }
    // What it was is nobody's concern any more, and may hold passwords.
    let history = History::of(&summary.uuid)?;
    if !history.entries.is_empty() {
        steps.extend(history.give_back_pages(&boot()?));
        steps.extend(history.forget_all());
    }
    if summary.persistent && has_nvram {
        steps.push(Step::DropNvram { name: name.to_owned(), xml });
    }
    Ok(steps)
}

/// The steps that give the addresses of a guest back. What keeps its lease keeps no guest from going: leases end.
fn leases(hypervisor: &dyn Hypervisor, view: &View, cx: &Context<'_>) -> Vec<Step> {
    let mut steps = Vec::new();
    for nic in &view.nics {
        let given = hypervisor.leases(&nic.source, &nic.mac).unwrap_or_else(|error| {
            cx.output.warning(&error.to_string());
            Vec::new()
        });
        for Lease { server, ip, mac } in given {
            if is_of_this_machine(server) {
                steps.push(Step::ReleaseLease { server, ip, mac });
            } else {
                let what = "its network's DHCP server is not on this machine";
                cx.output.progress(&format!("the lease of {ip} stays until it ends: {what}"));
            }
        }
    }
    steps
}

/// The disks of all other domains.
fn disks_of_others(
    hypervisor: &dyn Hypervisor,
    deleted: &DomainSummary,
) -> anyhow::Result<Vec<(String, String)>> {
    let mut disks = Vec::new();
    for other in hypervisor.domains()?.into_iter().filter(|other| other.name != deleted.name) {
        let xml = DomainXml::parse(&hypervisor.xml(&other.name, XmlOf::Inactive)?)?;
        let of_it = View::of(&xml, None)?.disks.into_iter();
        disks.extend(of_it.map(|disk| (other.name.clone(), disk.source)));
    }
    Ok(disks)
}
