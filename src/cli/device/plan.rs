//! The steps that bind and release devices, and the reasons why not.

use crate::apply::Step;
use crate::apply::bind::boot;
use crate::apply::boot::steps as boot_steps;
use crate::bdf::Bdf;
use crate::cli::args::{BindArgs, ReleaseArgs};
use crate::cli::change::program;
use crate::cli::context::Context;
use crate::cli::error::hinted;
use crate::fsroot::FsRoot;
use crate::holders::{self, Hindrance, Take, Use, UseKind};
use crate::placement::Occupancy;
use crate::topology::{Binding, Topology, is_vfio};
use gpuvm_ops::claim::bound_to;
use std::collections::BTreeSet;

/// Is the host that devices are bound on.
struct Host {
    /// Its files.
    root: FsRoot,
    /// What it is.
    topology: Topology,
    /// What domains hold.
    held: Occupancy,
}

impl Host {
    /// Reads this machine; without domains where no libvirt answers.
    fn read(cx: &Context<'_>) -> anyhow::Result<Host> {
        Ok(Host { root: FsRoot::live()?, topology: cx.topology()?, held: cx.occupancy_or_warn()? })
    }

    /// Who uses these functions.
    fn uses(&self, functions: &[Bdf]) -> anyhow::Result<Vec<Use>> {
        let mut uses = holders::known(&self.topology, &self.held, functions);
        uses.extend(holders::read(&self.root, &self.topology, functions)?.uses);
        Ok(uses)
    }

    /// The files that have to change for these functions to be bound at boot.
    fn at_boot(&self, wanted: &BTreeSet<Bdf>) -> anyhow::Result<Vec<Step>> {
        let kernel = self.topology.machine().kernel_release.as_deref().unwrap_or_default();
        let built_in = boot::is_built_in(&self.root, kernel)?;
        let by_id = !built_in && !boot::has_other_ids(&self.root)?;
        Ok(boot_steps(boot::files(&self.topology, wanted, &program()?, by_id))?)
    }
}

/// The error that devices cannot be had, with every reason.
fn refused(doing: &str, hindrances: &[&Hindrance], all: &[Hindrance]) -> anyhow::Error {
    let bdfs: BTreeSet<String> = hindrances.iter().map(|h| h.bdf.to_string()).collect();
    let bdfs: Vec<String> = bdfs.into_iter().collect();
    let mut message = format!("{} cannot be {doing}", bdfs.join(", "));
    for hindrance in hindrances {
        message += &format!("\n  {} {}", hindrance.bdf, hindrance.why);
    }
    let yields = |h: &Hindrance| h.kind.is_some_and(UseKind::yields);
    let hint = match hindrances.iter().all(|h| yields(h)) && hindrances.len() == all.len() {
        true => "end what uses it, or --force, after which a driver may hang until a reboot",
        false => "`gpuvm device list` shows who holds which device; nothing was changed",
    };
    hinted(message, hint)
}

/// The steps of `device bind`.
pub fn bind(args: &BindArgs, cx: &Context<'_>) -> anyhow::Result<Vec<Step>> {
    let host = Host::read(cx)?;
    let topology = &host.topology;
    let mut asked = args.devices.clone();
    asked.sort();
    asked.dedup();
    let on_vfio = |bdf: &Bdf| {
        let driver = topology.device(*bdf).and_then(|device| device.driver.as_deref());
        driver.is_some_and(is_vfio)
    };
    let uses = host.uses(&holders::with_groups(topology, &asked))?;
    let mut take = Take::new(topology, &uses, &asked);
    // What a guest has already is bound already.
    take.hindrances.retain(|hindrance| !on_vfio(&hindrance.bdf));
    let refusals = take.refusals(args.force);
    if !refusals.is_empty() {
        return Err(refused("bound", &refusals, &take.hindrances));
    }
    let mut steps = Vec::new();
    for &bdf in take.functions.iter().filter(|bdf| !on_vfio(bdf)) {
        let Some(was) = bound_to(topology, bdf)? else { continue };
        steps.push(Step::BindDevice { bdf, to: Binding::vfio(), was, force: args.force });
    }
    if args.at_boot {
        let mut wanted = boot::functions(&host.root)?;
        wanted.extend(&take.functions);
        steps.extend(host.at_boot(&wanted)?);
    }
    Ok(steps)
}

/// The steps of `device release`.
pub fn release(args: &ReleaseArgs, cx: &Context<'_>) -> anyhow::Result<Vec<Step>> {
    let host = Host::read(cx)?;
    let topology = &host.topology;
    let mut asked = args.devices.clone();
    asked.sort();
    asked.dedup();
    if let Some(absent) = asked.iter().find(|bdf| topology.device(**bdf).is_none()) {
        return Err(hinted(
            format!("this host has no device {absent}"),
            "`gpuvm device list --all` shows every device",
        ));
    }
    let mut steps = Vec::new();
    let mut bound = Vec::new();
    for &bdf in &asked {
        let Some(was) = bound_to(topology, bdf)? else { continue };
        if was.driver.as_deref().is_some_and(is_vfio) {
            bound.push(bdf);
            steps.push(Step::ReleaseDevice { bdf, was, force: args.force });
        }
    }
    let uses = host.uses(&bound)?;
    let of = |used: Use| Hindrance {
        bdf: used.bdf,
        why: format!("is used by {}", used.by),
        kind: Some(used.kind),
    };
    let all: Vec<Hindrance> = uses.into_iter().map(of).collect();
    let take = Take { functions: bound, hindrances: all };
    let refusals = take.refusals(args.force);
    if !refusals.is_empty() {
        return Err(refused("released", &refusals, &take.hindrances));
    }
    for domain in &host.held.domains {
        for bdf in domain.devices.iter().filter(|bdf| take.functions.contains(bdf)) {
            let name = &domain.domain;
            cx.output.warning(&format!("domain `{name}` has {bdf} and takes it when it starts"));
        }
    }
    if args.at_boot {
        let mut wanted = boot::functions(&host.root)?;
        wanted.retain(|bdf| !asked.contains(bdf));
        steps.extend(host.at_boot(&wanted)?);
    }
    Ok(steps)
}
