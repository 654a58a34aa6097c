//! The files, devices and volumes that a definition names.

use super::How;
use gpuvm_core::domain::{DomainXml, Element, arguments};
use std::path::PathBuf;

/// A file or volume that a definition names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    /// The file or device; `None` for a volume.
    pub file: Option<PathBuf>,
    /// Pool and name of a volume.
    pub volume: Option<(String, String)>,
    /// The kind of use.
    pub how: How,
    /// Whether it is raw, so that it has no backing file whatever its content.
    pub raw: bool,
    /// Whether it may have backing files that the definition does not name: its format is one that
    /// can.
    pub layered: bool,
    /// Whether libvirt reports its complete backing chain, as for disks in use.
    pub is_whole: bool,
    /// Whether it is written.
    pub writes: bool,
    /// Whether others may use it, too.
    pub shares: bool,
}

/// Everything that a definition names; `live`: it is that of a running domain.
pub(super) fn read(xml: &DomainXml, live: bool) -> Vec<Named> {
    let root = xml.root();
    let devices = || root.children("devices");
    let disks = devices().flat_map(|devices| devices.children("disk"));
    let mut all: Vec<Named> = disks.flat_map(|one| disk(one, live)).collect();
    let plain = |path: String, how: How, writes: bool| Named {
        file: Some(path.into()),
        volume: None,
        how,
        raw: true,
        layered: false,
        is_whole: true,
        writes,
        shares: false,
    };
    for os in root.children("os") {
        for element in os.elements() {
            let text = Some(element.text().into_owned()).filter(|text| text.starts_with('/'));
            let source = element.child("source").and_then(file);
            let (how, writes) = match element.name() {
                "nvram" => (How::Nvram, true),
                "varstore" => (How::Nvram, true),
                "kernel" | "initrd" | "dtb" | "loader" | "shim" => (How::Boot, false),
                _ => continue,
            };
            let path = element.attr("path").map(|path| path.into_owned());
            // The source of new firmware settings; other domains' are, too.
            let template = attr(element, "template").filter(|path| path.starts_with('/'));
            all.extend(template.map(|path| plain(path, How::Boot, false)));
            let found = text.into_iter().chain(source).chain(path);
            all.extend(found.map(|path| plain(path, how.clone(), writes)));
        }
    }
    for device in devices().flat_map(Element::elements) {
        let Some(source) = device.child("source") else { continue };
        match device.name() {
            "filesystem" => {
                let path = ["file", "dev"].into_iter().find_map(|name| attr(source, name));
                all.extend(path.map(|path| plain(path, How::Other, true)));
            }
            "memory" => {
                let path = source.child("path").map(|path| path.text().into_owned());
                all.extend(path.map(|path| plain(path, How::Other, true)));
            }
            _ => {}
        }
    }
    // Of files named by an argument of QEMU it is not known whether they are written.
    all.extend(arguments::paths(root).into_iter().map(|(path, is_image)| Named {
        raw: !is_image,
        is_whole: false,
        ..plain(path, How::Other, false)
    }));
    all
}

/// The files that the disks themselves name, each with its number in the definition.
pub(super) fn disks(xml: &DomainXml) -> Vec<(usize, Named)> {
    let devices = xml.root().children("devices");
    let all = devices.flat_map(|devices| devices.children("disk")).enumerate();
    let named = all.flat_map(|(nth, one)| disk(one, false).into_iter().map(move |n| (nth, n)));
    named.filter(|(_, named)| named.how == How::Disk).collect()
}

fn disk(disk: Element<'_>, live: bool) -> Vec<Named> {
    let is_read = disk.child("readonly").is_some()
        || disk.attr("device").is_some_and(|device| device == "cdrom");
    let shares = disk.child("shareable").is_some();
    let format = disk.child("driver").and_then(|driver| attr(driver, "type"));
    let is_whole = live && disk.child("backingStore").is_some();
    let mut all = Vec::new();
    // Each with its role in the chain and its format.
    let mut open = vec![(disk, How::Disk, format)];
    while let Some((part, how, format)) = open.pop() {
        let (raw, writes) = (format.as_deref() == Some("raw"), how != How::Over && !is_read);
        // libvirt takes a disk without a format for raw.
        let layered = !raw && format.is_some() && part.child("backingStore").is_none();
        let named = |file: Option<String>, volume| Named {
            file: file.map(PathBuf::from),
            volume,
            how: how.clone(),
            raw,
            layered,
            is_whole,
            writes,
            shares,
        };
        // The form of older libvirt versions: <mirror file='..'>.
        let own = attr(part, "file").filter(|_| part.name() == "mirror");
        all.extend(own.map(|path| named(Some(path), None)));
        for source in part.children("source") {
            all.extend(file(source).map(|path| named(Some(path), None)));
            let volume = attr(source, "pool").zip(attr(source, "volume"));
            all.extend(volume.map(|volume| named(None, Some(volume))));
            let data = source.children("dataStore");
            open.extend(data.map(|data| (data, how.clone(), format_of(data))));
        }
        for below in part.elements() {
            let how = match below.name() {
                "backingStore" => How::Over,
                "mirror" => How::Mirror,
                _ => continue,
            };
            open.push((below, how, format_of(below)));
        }
    }
    all
}

/// The format of a part of a chain.
fn format_of(part: Element<'_>) -> Option<String> {
    part.child("format").and_then(|format| attr(format, "type"))
}

/// The file or device of a source.
fn file(source: Element<'_>) -> Option<String> {
    let path = ["file", "dev"].into_iter().find_map(|name| attr(source, name))?;
    path.starts_with('/').then_some(path)
}

fn attr(element: Element<'_>, name: &str) -> Option<String> {
    element.attr(name).map(|value| value.into_owned())
}
