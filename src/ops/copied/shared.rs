//! Parts that a clone shares with its source and that are not copied: those that only one of them
//! can have while it runs, and those that both would write to.

use crate::domain::{DomainXml, Element};

/// The conflict of two guests with the same device or file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The second one to start is refused.
    OneRuns,
    /// Both use it.
    BothUse,
}

pub(super) fn warnings(source: &DomainXml, clone: &DomainXml) -> Vec<String> {
    let of_source = parts(source);
    let both = parts(clone).into_iter().filter(|part| of_source.contains(part));
    let (name, other) = (clone.name(), source.name());
    let said = both.map(|(what, outcome)| match outcome {
        Outcome::OneRuns => {
            format!("`{name}` and `{other}` both have {what}: only one of them can run with it")
        }
        Outcome::BothUse => format!("`{name}` and `{other}` both use {what}, which is not copied"),
    });
    said.collect()
}

/// The parts of a definition that a copy has as well.
fn parts(xml: &DomainXml) -> Vec<(String, Outcome)> {
    let devices = xml.root().child("devices").into_iter().flat_map(Element::elements);
    let of_qemu = xml.root().elements().filter(|line| line.name().ends_with(":commandline"));
    // Arguments with a path or an address of the host; gpuvm's own ones have none.
    let arguments = of_qemu.flat_map(Element::elements).filter_map(|argument| {
        let value = argument.attr("value")?;
        let names = value.contains('/') || value.contains("host=");
        names.then(|| (format!("what argument `{value}` of QEMU names"), Outcome::BothUse))
    });
    devices.flat_map(part).chain(arguments).collect()
}

/// The parts of a device that a copy has as well.
fn part(device: Element<'_>) -> Vec<(String, Outcome)> {
    let attr = |child: &str, name: &str| Some(device.child(child)?.attr(name)?.into_owned());
    let one = |what: Option<String>| what.map(|what| (what, Outcome::OneRuns));
    let both = |what: Option<String>| what.map(|what| (what, Outcome::BothUse));
    let name = device.name();
    let found = match name {
        "serial" | "parallel" | "channel" => [
            one(attr("source", "path").map(|path| format!("{name} {path}"))),
            both(attr("log", "file").map(|file| format!("log {file}"))),
        ],
        "graphics" => {
            let port = device.attr("port").filter(|port| port != "-1");
            [one(port.map(|port| format!("port {port} of its display"))), None]
        }
        "vsock" => {
            let is_own = attr("cid", "auto").as_deref() == Some("yes");
            let cid = attr("cid", "address").filter(|_| !is_own);
            [one(cid.map(|cid| format!("vsock address {cid}"))), None]
        }
        "interface" => [
            one(attr("target", "dev").map(|dev| format!("network device {dev} of the host"))),
            one(attr("source", "dev")
                .filter(|_| device.attr("type").is_some_and(|kind| kind == "vdpa"))),
        ],
        "filesystem" => [both(attr("source", "dir").map(|dir| format!("directory {dir}"))), None],
        "shmem" => {
            let memory = device.attr("name").map(|name| format!("shared memory `{name}`"));
            [both(memory), None]
        }
        _ => [None, None],
    };
    found.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_used_by_both_guests_are_reported() {
        let with = |name: &str, log: &str| {
            DomainXml::parse(&format!(
                "<domain xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><name>{name}</name>\
                 <devices><serial type='pty'><log file='{log}'/></serial>\
                 <serial type='file'><source path='/var/log/x'/></serial>\
                 <interface type='vdpa'><source dev='/dev/vhost-vdpa-0'/></interface>\
                 <interface type='ethernet'><target dev='tap7'/></interface>\
                 <graphics type='vnc' port='5903'/><graphics type='spice' port='-1'/>\
                 <vsock><cid auto='no' address='5'/></vsock><vsock><cid auto='yes' address='6'/></vsock>\
                 <filesystem type='mount'><source dir='/srv'/></filesystem><shmem name='s'/></devices>\
                 <qemu:commandline><qemu:arg value='-drive'/><qemu:arg value='file=/srv/x'/>\
                 </qemu:commandline></domain>"
            ))
            .unwrap()
        };
        let said = warnings(&with("a", "/a.log"), &with("b", "/b.log"));
        for what in [
            "serial /var/log/x: only one",
            "/dev/vhost-vdpa-0: only one",
            "network device tap7 of the host: only one",
            "port 5903 of its display: only one",
            "vsock address 5: only one",
            "both use directory /srv, which is not copied",
            "shared memory `s`",
            "`file=/srv/x` of QEMU",
        ] {
            assert!(said.iter().any(|line| line.contains(what)), "{what}: {said:?}");
        }
        assert_eq!(said.len(), 8, "{said:?}");
    }
}
