//! From a planned guest to its domain XML: reads the template and looks at the disks. Defines and makes nothing.

use super::args::{GuestArgs, VirtTypeArg};
use super::error::hinted;
use super::guest::Planned;
use crate::domain::guest::{Disk, DiskFormat, DiskKind, Guest, Made, Record, VirtType};
use crate::domain::{DomainXml, edits};
use anyhow::Context as _;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

/// The template for x86 hosts where the admin names none.
const X86: &str = include_str!("../../templates/gpu-guest.xml");
/// The template for Arm hosts where the admin names none.
const AARCH64: &str = include_str!("../../templates/gpu-guest-aarch64.xml");

/// Is what a verb adds to a guest beyond its arguments.
#[derive(Debug, Clone, Default)]
pub struct Extra {
    /// Its disks, the one that it boots from first.
    pub disks: Vec<Disk>,
    /// Networks that get a NIC unless the guest has one there already.
    pub networks: Vec<String>,
    /// Disks that are made for the guest and go with it.
    pub made: Vec<Made>,
}

/// Makes a planned guest's domain XML from its template.
pub fn render(args: &GuestArgs, planned: &Planned, extra: &Extra) -> anyhow::Result<DomainXml> {
    let architecture = planned.topology.machine().architecture.as_deref();
    let mut xml = template(args.template.as_deref(), architecture)?;
    let record = Record { request: planned.request.clone(), made: extra.made.clone() };
    let guest = Guest {
        name: planned.name.clone(),
        virt: match args.virt_type {
            VirtTypeArg::Kvm => VirtType::Kvm,
            VirtTypeArg::Qemu => VirtType::Qemu,
        },
        disks: extra.disks.clone(),
        networks: args.network.clone(),
        added_networks: extra.networks.clone(),
        record,
    };
    let edits = edits(&xml, &guest, &planned.placement, &planned.topology)?;
    xml.apply_all(&edits)?;
    Ok(xml)
}

/// Reads a template, the built-in one of the host's architecture where no file is named.
fn template(file: Option<&Path>, architecture: Option<&str>) -> anyhow::Result<DomainXml> {
    let Some(path) = file else {
        let text = if architecture == Some("aarch64") { AARCH64 } else { X86 };
        return Ok(DomainXml::parse(text)?);
    };
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read template `{}`", path.display()))?;
    DomainXml::parse(&text).with_context(|| format!("template `{}`", path.display()))
}

/// Looks at a disk that is there: a device or a file, qcow2 by its magic bytes, else raw. The path stays as it is given,
/// since links such as those of /dev/disk/by-id outlive what they point to.
pub fn existing_disk(path: &Path, recorded: bool) -> anyhow::Result<Disk> {
    let failed = |error: std::io::Error| {
        let hint = match error.kind() {
            ErrorKind::NotFound => {
                "--disk takes an image or a device that is there; without it a blank one is made"
            }
            _ => "",
        };
        hinted(format!("cannot open disk `{}`: {error}", path.display()), hint)
    };
    if recorded {
        let is_device = path.starts_with("/dev");
        let is_qcow2 = path.extension().is_some_and(|extension| extension == "qcow2");
        let kind = if is_device { DiskKind::Block } else { DiskKind::File };
        let format = if is_qcow2 { DiskFormat::Qcow2 } else { DiskFormat::Raw };
        return Ok(Disk::new(path_text(path)?, format, kind));
    }
    let kind = std::fs::metadata(path).map_err(failed)?.file_type();
    if kind.is_block_device() {
        return Ok(Disk::new(path_text(path)?, DiskFormat::Raw, DiskKind::Block));
    }
    if !kind.is_file() {
        return Err(hinted(
            format!("disk `{}` is no file and no block device", path.display()),
            "",
        ));
    }
    let mut magic = Vec::new();
    File::open(path).and_then(|file| file.take(4).read_to_end(&mut magic)).map_err(failed)?;
    let format = if magic == *b"QFI\xfb" { DiskFormat::Qcow2 } else { DiskFormat::Raw };
    Ok(Disk::new(path_text(path)?, format, DiskKind::File))
}

/// A path as text, which XML can hold; made absolute from the working directory.
pub fn path_text(path: &Path) -> anyhow::Result<String> {
    let path = std::path::absolute(path)?;
    let bad =
        || hinted(format!("path {path:?} cannot stand in XML"), "use a path of plain UTF-8 text");
    let text = path.to_str().ok_or_else(bad)?;
    if text.chars().any(char::is_control) { Err(bad()) } else { Ok(text.to_owned()) }
}
