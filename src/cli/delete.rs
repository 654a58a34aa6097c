//! `delete`: the domain, its NVRAM and saved state, and the disks that were made for it.

use super::args::DeleteArgs;
use super::change::{Agreed, Reporter, confirm, journal, print_steps, refuse_unfinished};
use super::claim::give_back;
use super::context::Context;
use super::diff::Diff;
use super::error::{EXIT_DONE, usage};
use super::history::boot;
use super::made::{self, Fate, Proof};
use super::pages;
use super::show::find;
use super::view::View;
use crate::apply::{Step, apply, is_of_this_machine};
use crate::domain::DomainXml;
use crate::domain::guest::{Made, Role};
use crate::history::History;
use crate::hypervisor::uses::Uses;
use crate::hypervisor::{DomainState, Hypervisor, Lease, XmlOf};
use crate::kept;
use crate::shell::word;
use std::collections::BTreeSet;

/// Runs the verb.
pub fn run(args: &DeleteArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("delete")?;
    let Some(name) = args.name.as_deref().or(args.domain.as_deref()) else {
        return Err(usage("no domain is named", "`gpuvm delete NAME`"));
    };
    let mut reporter = Reporter::new(cx.output)?;
    let hypervisor = cx.hypervisor()?;
    if args.dry_run {
        let plan = plan(&*hypervisor, name, args.keep_data, cx)?;
        tell(&plan, &mut BTreeSet::new(), cx);
        print_steps(&plan.steps, cx)?;
        return Ok(EXIT_DONE);
    }
    if args.diff {
        let xml = hypervisor.xml(&find(&*hypervisor, name)?.name, XmlOf::Public)?;
        Diff::of(name, Some(&xml), None).print(cx.output)?;
        return Ok(EXIT_DONE);
    }
    refuse_unfinished(&*hypervisor, cx.output)?;
    let (mut told, mut agreed) = (BTreeSet::new(), Agreed::default());
    if !args.yes {
        let plan = plan(&*hypervisor, name, args.keep_data, cx)?;
        tell(&plan, &mut told, cx);
        reporter.ask(|| confirm(&plan.steps, "domain", name))?;
        agreed = Agreed::to(&plan.steps);
    }
    let _lock = reporter.lock(&args.lock)?;
    // Once more: it may have been changed while the question stood.
    let plan = plan(&*hypervisor, name, args.keep_data, cx)?;
    agreed.covers(&plan.steps, &[], &format!("gpuvm delete {}", word(name)))?;
    tell(&plan, &mut told, cx);
    let kept = super::drive::kept(&hypervisor.xml(name, XmlOf::Inactive)?, &*hypervisor)?;
    let journal = journal("delete", name, &*hypervisor)?;
    apply(&plan.steps, &*hypervisor, &mut reporter, Some(journal))?;
    cx.output.progress(&format!("domain `{name}` is deleted"));
    kept.iter().for_each(|line| cx.output.progress(line));
    Ok(EXIT_DONE)
}

/// Is what a deletion does.
struct Plan {
    /// The steps.
    steps: Vec<Step>,
    /// What stays of the domain, and why.
    stays: Vec<String>,
}

/// Plans a deletion.
fn plan(
    hypervisor: &dyn Hypervisor,
    name: &str,
    keep_data: bool,
    cx: &Context<'_>,
) -> anyhow::Result<Plan> {
    let summary = find(hypervisor, name)?;
    let xml = hypervisor.xml(name, XmlOf::Inactive)?;
    let parsed = DomainXml::parse(&xml)?;
    let has_nvram = parsed.root().child("os").is_some_and(|os| os.child("nvram").is_some());
    let view = View::of(&parsed, None)?;
    let mut steps = Vec::new();
    if !matches!(summary.state, DomainState::ShutOff | DomainState::Crashed) {
        steps.push(Step::EndDomain { name: name.to_owned(), uuid: Some(summary.uuid.clone()) });
    }
    if summary.persistent {
        steps.push(Step::UndefineDomain { name: name.to_owned(), xml: xml.clone() });
    }
    let here = hypervisor.machine().is_here();
    // What another hypervisor of this machine has made for a domain of this UUID is that one's.
    let made_on = here.then(|| kept::elsewhere(&summary.uuid, hypervisor)).flatten();
    if made_on.is_none() {
        steps.extend(give_back(&parsed, cx)?);
        steps.extend(pages::give_back(&parsed, cx)?);
    }
    // An address of a network there may be one of this machine by chance.
    if here {
        steps.extend(leases(hypervisor, &view, cx));
    }
    let drops_nvram = summary.persistent && has_nvram && made_on.is_none();
    let mut made = parsed.made();
    // Images that a conversion has left behind, which no definition names any more.
    let left = kept::made(&summary.uuid).into_iter().filter(|_| here);
    let is_known = |old: &Made| made.iter().any(|known| known.path == old.path);
    let left: Vec<Made> = left.filter(|old| old.volume.is_some() && !is_known(old)).collect();
    made.extend(left);
    let mut stays: Vec<String> = made_on.iter().map(|uri| others(name, uri)).collect();
    let uses = match made.is_empty() && !drops_nvram && !parsed.is_copy() {
        true => Uses::default(),
        false => Uses::read(hypervisor)?,
    };
    let proof = Proof::of(&parsed, &summary.uuid, &uses, hypervisor);
    for disk in made.iter().filter(|disk| !(keep_data && disk.role == Role::Data)) {
        match proof.fate(disk) {
            Fate::Goes(step) => steps.push(step),
            Fate::Gone => {}
            Fate::Stays(why) => stays.push(why),
        }
    }
    stays.extend(made::of_copy(&parsed, &summary.uuid, &uses));
    // A guest there may have been one of this machine once.
    if here && made_on.is_none() {
        steps.extend(kept::forget(&summary.uuid)?);
        // What it was is nobody's concern any more, and may hold passwords.
        let history = History::of(&summary.uuid)?;
        if !history.entries.is_empty() {
            steps.extend(history.give_back_pages(&boot()?));
            steps.extend(history.forget_all());
        }
    }
    if drops_nvram {
        match made::nvram_stays(&parsed, &summary.uuid, &uses, hypervisor) {
            Some(why) => stays.push(why),
            None => steps.push(Step::DropNvram { name: name.to_owned(), xml }),
        }
    }
    Ok(Plan { steps, stays })
}

/// What is said where another hypervisor of this machine has made what this domain's metadata is about.
fn others(name: &str, uri: &str) -> String {
    format!(
        "disks, devices, pages and history of domain `{name}` stay: they are of the domain of this UUID at {uri}; \
         `gpuvm delete {} --connect {}` gives them back",
        word(name),
        word(uri)
    )
}

/// Says what stays of a domain, once.
fn tell(plan: &Plan, told: &mut BTreeSet<String>, cx: &Context<'_>) {
    for why in &plan.stays {
        if told.insert(why.clone()) {
            cx.output.warning(why);
        }
    }
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
