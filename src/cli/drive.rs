//! Drives: `drive list`, `drive release-array`, `drive restore-array`, `drive wipe`, and which drives guests have as disks.

mod list;
mod release;
mod restore;
pub mod state;
mod wipe;

use super::args::DriveVerb;
use super::context::Context;
use super::error::{hinted, usage};
use super::output::{ask, tell};
use crate::apply::Step;
use crate::bdf::Bdf;
use crate::discover::drives::{function_of, kernel_name};
use crate::domain::DomainXml;
use crate::fsroot::FsRoot;
use crate::hypervisor::Hypervisor;
use crate::shell::word;
use std::io::IsTerminal as _;

/// Runs the verb.
pub fn run(verb: &DriveVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    match verb {
        DriveVerb::List(args) => list::run(args, cx),
        DriveVerb::ReleaseArray(args) => release::run(args, cx),
        DriveVerb::RestoreArray(args) => restore::run(args, cx),
        DriveVerb::Wipe(args) => wipe::run(args, cx),
    }
}

/// The PCI functions of the drives that a domain of this machine has, whole or in part, as disks: they are taken, so
/// that no other guest gets the function. Only functions that could be passed: a disk of an AHCI controller shares it.
pub fn functions_of_disks(xml: &DomainXml) -> anyhow::Result<Vec<Bdf>> {
    let files = super::image::uses::files_of(xml, &[]);
    let devices: Vec<_> = files.iter().filter(|file| file.starts_with("/dev")).collect();
    if devices.is_empty() {
        return Ok(Vec::new());
    }
    let root = FsRoot::live()?;
    let mut functions = Vec::new();
    for name in devices.into_iter().filter_map(|file| kernel_name(file)) {
        if name.starts_with("nvme") {
            functions.extend(function_of(&root, &name)?);
        }
    }
    functions.sort();
    functions.dedup();
    Ok(functions)
}

/// What is left on drives of this machine that a domain had, whole or in part, a line each: they keep what its guest wrote.
pub fn kept(xml: &str, hypervisor: &dyn Hypervisor) -> anyhow::Result<Vec<String>> {
    if !hypervisor.machine().is_here() {
        return Ok(Vec::new());
    }
    let (xml, root) = (DomainXml::parse(xml)?, FsRoot::live()?);
    let erase = |what: &str, id: &str| {
        format!("{what} keeps what the guest wrote; `gpuvm drive wipe {}` erases it", word(id))
    };
    let mut lines = Vec::new();
    for bdf in xml.held(false)?.devices {
        let class = root.read(&format!("sys/bus/pci/devices/{bdf}/class"))?;
        if class.is_some_and(|class| class.starts_with("0x0108")) {
            lines.push(erase(&format!("NVMe drive {bdf}"), &bdf.to_string()));
        }
    }
    for file in super::image::uses::files_of(&xml, &[]) {
        let Some(name) = kernel_name(&file).filter(|_| file.starts_with("/dev")) else { continue };
        let block = format!("sys/class/block/{name}");
        let path = file.display();
        if root.exists(&format!("{block}/partition")) {
            lines.push(format!("partition {path} keeps what the guest wrote"));
        } else if root.exists(&format!("{block}/device")) {
            lines.push(erase(&format!("drive {path}"), &path.to_string()));
        }
    }
    Ok(lines)
}

/// Names what will be done to a thing of a kind (`array`), and asks for its name to be typed.
fn confirm(steps: &[Step], doing: &str, kind: &str, name: &str) -> anyhow::Result<()> {
    for step in steps {
        tell(&format!("will {step}"));
    }
    if !std::io::stdin().is_terminal() {
        return Err(usage(
            format!("{doing} {kind} `{name}` is not confirmed, and there is no terminal to ask at"),
            "--yes does it without asking",
        ));
    }
    if ask(&format!("type `{name}`, the {kind}'s name, to go on:"))? == name {
        return Ok(());
    }
    Err(hinted(
        format!("{doing} {kind} `{name}`: the name was not repeated, so nothing is done"),
        "",
    ))
}
