//! `device list`, `device bind`, `device release`.

pub(super) mod list;
mod plan;

pub use list::uses;

use super::args::{BindArgs, DeviceVerb, Early, ReleaseArgs};
use super::change::{Watch, agree, print_steps, refuse_unfinished, watch};
use super::context::Context;
use super::error::{EXIT_DONE, hinted};
use crate::apply::bind::{boot, on_this_machine};
use crate::apply::{Journal, Step, apply};
use crate::bdf::Bdf;
use crate::fsroot::FsRoot;
use crate::hypervisor::none::{NoHypervisor, URI};
use crate::topology::{Binding, is_vfio};
use gpuvm_ops::links;
use std::path::Path;

/// Runs the verb.
pub fn run(verb: &DeviceVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    match verb {
        DeviceVerb::List(args) => list::run(args, cx),
        DeviceVerb::Bind(args) if !args.early.is_empty() => early(&args.early, cx),
        DeviceVerb::Bind(args) => bind(args, cx),
        DeviceVerb::Release(args) => release(args, cx),
    }
}

/// Runs `device bind`.
fn bind(args: &BindArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("device bind")?;
    cx.refuse_elsewhere("device bind")?;
    let mut reporter = watch(cx.output)?;
    if args.dry_run {
        print_steps(&plan::bind(args, cx)?, cx)?;
        return Ok(EXIT_DONE);
    }
    let _lock = reporter.lock(args.lock.wait())?;
    refuse_unfinished(&NoHypervisor, cx.output)?;
    let steps = plan::bind(args, cx)?;
    let taken: Vec<&Step> = steps.iter().filter(|step| takes(step)).collect();
    if !taken.is_empty() && !args.yes {
        let question = "take them from the host?";
        agree(&taken, question, "taking devices from the host")?;
    }
    links::keep(false, cx)?;
    change("device bind", &args.devices, &steps, reporter, cx)
}

/// Runs `device release`.
fn release(args: &ReleaseArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("device release")?;
    cx.refuse_elsewhere("device release")?;
    let mut reporter = watch(cx.output)?;
    if args.dry_run {
        print_steps(&plan::release(args, cx)?, cx)?;
        return Ok(EXIT_DONE);
    }
    let _lock = reporter.lock(args.lock.wait())?;
    refuse_unfinished(&NoHypervisor, cx.output)?;
    let steps = plan::release(args, cx)?;
    change("device release", &args.devices, &steps, reporter, cx)
}

/// Does the steps, and says what is still for the admin to do.
fn change(
    verb: &str,
    devices: &[Bdf],
    steps: &[Step],
    mut reporter: Watch,
    cx: &Context<'_>,
) -> anyhow::Result<u8> {
    let names: Vec<String> = devices.iter().map(Bdf::to_string).collect();
    if steps.is_empty() {
        cx.output.progress(&format!("{}: so already", names.join(" ")));
    } else {
        let hypervisor = cx.hypervisor_or_none()?;
        let journal = Journal::begin(verb, &names.join(" "), URI)?;
        apply(steps, &*hypervisor, &mut reporter, Some(journal))?;
    }
    let options = Path::new("/").join(boot::OPTIONS);
    if steps.iter().any(|step| matches!(step, Step::SetFile { path, .. } if *path == options)) {
        cx.output.progress(
            "the initial file system has its own copy of /etc/modprobe.d: `update-initramfs -u` \
             (Debian, Ubuntu) or `dracut --force` (Fedora, RHEL) renews it",
        );
    }
    if cx.output.json {
        cx.output.json_rows("gpuvm-steps", &steps)?;
    }
    Ok(EXIT_DONE)
}

/// Whether a step takes a function from a driver of the host.
fn takes(step: &Step) -> bool {
    matches!(step, Step::BindDevice { was, .. } if was.driver.is_some())
}

/// Binds while the machine boots: nothing uses the functions yet, no file can be written, and there is no libvirt. One
/// that cannot be bound does not hinder the others.
fn early(functions: &[Early], cx: &Context<'_>) -> anyhow::Result<u8> {
    let root = FsRoot::live()?;
    let mut failed = Vec::new();
    for Early { bdf, id } in functions {
        let dir = root.dir(&format!("sys/bus/pci/devices/{bdf}"))?;
        let ids = match &dir {
            None => None,
            Some(dir) => dir.hex::<u16>("vendor")?.zip(dir.hex::<u16>("device")?),
        };
        let seen = ids.map(|(vendor, device)| format!("{vendor:04x}:{device:04x}"));
        if seen.as_ref() != Some(id) {
            let seen = seen.unwrap_or_else(|| "nothing".into());
            failed.push(format!("at {bdf} is {seen}, not {id}: not bound"));
            continue;
        }
        let driver = dir.map(|dir| dir.link_name("driver")).transpose()?.flatten();
        if driver.as_deref().is_some_and(is_vfio) {
            continue;
        }
        match on_this_machine(&NoHypervisor, true, |binder| binder.set(*bdf, &Binding::vfio())) {
            Ok(()) => cx.output.progress(&format!("{bdf} is bound to vfio-pci")),
            Err(error) => failed.push(error.to_string()),
        }
    }
    if failed.is_empty() {
        return Ok(EXIT_DONE);
    }
    Err(hinted(failed.join("\n  "), "`gpuvm device bind BDF --at-boot` writes the list anew"))
}
