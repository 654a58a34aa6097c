//! A copy of a domain's definition that is another domain: with a name, a UUID, MAC addresses,
//! disks and files of its own. The identity of the first one is removed: the settings of its
//! firmware, the serial number of its machine, the world-wide names of its disks, what our metadata
//! says was made or bound for it. Chooses no place: its pins and functions are still the first's.

use super::edit::{DomainEdit, NvramPath};
use super::element::Element;
use super::fragment::{Fragment, Want};
use super::guest::{Made, Record};
use super::nics::free_mac;
use super::setting::serial_log_path;
use super::{DomainXml, DomainXmlError};
use crate::request::{Extras, Request};
use std::collections::BTreeMap;

/// The own parts of a copy.
#[derive(Debug, Clone)]
pub struct Own<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its UUID; `None` if libvirt chooses one.
    pub uuid: Option<&'a str>,
    /// The new paths of disks, by the old ones.
    pub disks: &'a BTreeMap<String, String>,
    /// Objects made for it.
    pub made: &'a [Made],
    /// MAC addresses that others have.
    pub taken_macs: &'a [String],
    /// The parts that it keeps, as the very same guest on another host; `None` if it is another
    /// guest.
    pub stays: Option<Stays<'a>>,
}

/// The parts that a guest keeps when it moves to another host: everything that its system sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stays<'a> {
    /// Where the settings of its firmware are there.
    pub nvram: &'a str,
}

fn kind(element: Element<'_>) -> Option<String> {
    Some(element.attr("type")?.into_owned())
}

fn named(entry: Element<'_>) -> Option<String> {
    Some(entry.attr("name")?.into_owned())
}

impl DomainXml {
    /// Returns a copy that is another domain.
    pub fn cloned(&self, own: &Own<'_>) -> Result<DomainXml, DomainXmlError> {
        let mut edits = Vec::new();
        if let Some(record) = self.record()? {
            let request = Request { extras: Extras::default(), ..record.request };
            let made = own.made.to_vec();
            let (bound, reserved, guarded) = (Vec::new(), Vec::new(), Vec::new());
            let vgpus = Vec::new();
            let (known, user, nccl, assumed) = (Vec::new(), record.user, None, None);
            let record = Record {
                request,
                made,
                bound,
                reserved,
                guarded,
                vgpus,
                nccl,
                known,
                user,
                assumed,
            };
            let (record, partition, devices) = (Box::new(record), None, Vec::new());
            edits.push(DomainEdit::SetMetadata { record, partition, devices });
        }
        let name = own.name.to_owned();
        edits.push(match own.stays {
            None => DomainEdit::SetName { name },
            Some(Stays { nvram }) => {
                let is_source = self.root().find("os/nvram/source").is_some();
                let nvram = Some(NvramPath { path: nvram.to_owned(), is_source });
                DomainEdit::Rename { name, nvram, serial_log: None }
            }
        });
        let mut xml = self.clone();
        xml.apply_all(&edits)?;
        if let Some(uuid) = own.uuid {
            xml.apply(&DomainEdit::SetUuid { uuid: uuid.to_owned() })?;
        }
        if let Some((from, to)) = self.log_of_copy(own.name) {
            let (name, nvram, serial_log) = (own.name.to_owned(), None, Some((from, to)));
            xml.apply(&DomainEdit::Rename { name, nvram, serial_log })?;
        }
        xml.spliced(&xml.without_identity(own))
    }

    /// The file that its first serial port is written to, and that of a copy, beside it.
    fn log_of_copy(&self, name: &str) -> Option<(String, String)> {
        let serial = self.root().child("devices")?.children("serial").next()?;
        let from = serial.child("log")?.attr("file")?.into_owned();
        let (dir, _) = from.rsplit_once('/')?;
        let to = serial_log_path(dir, name);
        Some((from, to))
    }

    /// The wanted state of the parts that identify a domain.
    fn without_identity(&self, own: &Own<'_>) -> Fragment {
        let devices = self.root().child("devices");
        let number = |name: &'static str| devices.map_or(0, |all| all.children(name).count());
        let is_new = own.stays.is_none();
        let nics = if is_new { number("interface") } else { 0 };
        let nics = (0..nics).map(|nth| {
            let nth_nic = u32::try_from(nth).unwrap_or(u32::MAX);
            let address = free_mac(own.uuid.unwrap_or(own.name), nth_nic, own.taken_macs);
            let ports = ["interfaceid", "instanceid"].into_iter();
            let ports = Fragment {
                attributes: ports.map(|id| (id, Want::Absent)).collect(),
                ..Fragment::new("parameters").if_there()
            };
            Fragment::new("interface")
                .nth(nth)
                .if_there()
                .child(Fragment::new("mac").attr("address", address))
                .child(Fragment::new("virtualport").if_there().child(ports))
        });
        let disks = self.disks().enumerate().filter_map(|(nth, disk)| {
            let source = disk.child("source")?.attr("file")?.into_owned();
            let new = own.disks.get(&source)?;
            let disk = Fragment::new("disk").nth(nth).if_there();
            let disk = disk
                .child(Fragment::new("source").if_there().attr("file", new))
                .child(Fragment::gone("backingStore"));
            Some(if is_new { disk.child(Fragment::gone("wwn")) } else { disk })
        });
        let entry = |name: &str| Fragment::gone("entry").key(named, name);
        let machine = Fragment::new("system").if_there();
        let machine = machine.child(entry("serial")).child(entry("uuid"));
        let sysinfo = Fragment::new("sysinfo").key(kind, "smbios").if_there().child(machine);
        let devices = Fragment::new("devices").if_there().children(nics).children(disks);
        let domain = Fragment::new("domain").child(devices);
        if !is_new {
            return domain;
        }
        // libvirt makes one of its own.
        let domain = domain.child(Fragment::new("genid").if_there().text("")).child(sysinfo);
        match own.uuid {
            Some(_) => domain,
            None => {
                let guest = Fragment::new("gpuvm:guest").if_there().want("uuid", Want::Absent);
                domain.child(Fragment::new("metadata").if_there().child(guest))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::guest::{Role, mac};

    /// A domain with all that is its own alone.
    const TEXT: &str = "<domain type='kvm'>
  <name>a</name>
  <uuid>11111111-2222-4333-8444-555555555555</uuid>
  <genid>21111111-2222-4333-8444-555555555555</genid>
  <metadata>
    <gpuvm:guest xmlns:gpuvm='urn:gpuvm:domain:1' uuid='11111111-2222-4333-8444-555555555555'/>
  </metadata>
  <os>
    <type machine='q35'>hvm</type>
    <nvram>/var/lib/libvirt/qemu/nvram/a_VARS.fd</nvram>
  </os>
  <sysinfo type='fwcfg'>
    <entry name='opt/x'>mine</entry>
  </sysinfo>
  <sysinfo type='smbios'>
    <system>
      <entry name='serial'>S1</entry>
      <entry name='uuid'>11111111-2222-4333-8444-555555555555</entry>
      <entry name='product'>P</entry>
    </system>
  </sysinfo>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2'/>
      <source file='/a.os'/>
      <backingStore type='file'>
        <source file='/base'/>
      </backingStore>
      <target dev='vda' bus='virtio'/>
      <serial>gpuvm-data</serial>
      <wwn>5000c50015ea71ad</wwn>
    </disk>
    <disk type='file' device='cdrom'>
      <source file='/cd.iso'/>
      <target dev='sda' bus='sata'/>
    </disk>
    <interface type='network'>
      <mac address='52:54:00:00:00:01'/>
      <source network='default'/>
      <virtualport type='openvswitch'>
        <parameters interfaceid='09b11c53-8b5c-4eeb-8f00-d84eaa0aaa4f' profileid='p'/>
      </virtualport>
    </interface>
    <serial type='pty'>
      <log file='/var/log/libvirt/qemu/a-serial.log' append='off'/>
    </serial>
  </devices>
</domain>
";

    #[test]
    fn nothing_that_is_the_first_ones_alone_is_in_a_copy() {
        let text = TEXT;
        let xml = DomainXml::parse(text).unwrap();
        let disks = BTreeMap::from([("/a.os".to_owned(), "/b.os".to_owned())]);
        let uuid = "33333333-2222-4333-8444-555555555555";
        let own = Own {
            name: "b",
            uuid: Some(uuid),
            disks: &disks,
            made: &[],
            taken_macs: &[],
            stays: None,
        };
        // Metadata without a request is no record; that of a guest is tested with its clone.
        assert!(xml.cloned(&own).is_err());
        let xml = DomainXml::parse(&text.replace(
            "<gpuvm:guest xmlns:gpuvm='urn:gpuvm:domain:1' \
             uuid='11111111-2222-4333-8444-555555555555'/>",
            "<other xmlns='urn:other'>kept</other>",
        ))
        .unwrap();
        let new = xml.cloned(&own).unwrap();
        let text = new.text();
        for gone in [
            "11111111-",
            "21111111-",
            "a_VARS",
            ">S1<",
            "/a.os",
            "/base",
            "5000c5",
            "00:00:01",
            "09b11c53",
            "a-serial",
        ] {
            assert!(!text.contains(gone), "{gone}: {text}");
        }
        for stays in [
            "<genid></genid>",
            ">mine<",
            ">P<",
            "/cd.iso",
            ">gpuvm-data<",
            "profileid='p'",
            "kept",
            "qemu/b-serial.log",
        ] {
            assert!(text.contains(stays), "{stays}: {text}");
        }
        assert_eq!((new.name(), new.uuid().as_deref()), ("b".into(), Some(uuid)));
        assert!(text.contains("<source file='/b.os'/>") && text.contains(&mac(uuid, 0)), "{text}");
        let taken = [mac(uuid, 0)];
        let beside = Own { taken_macs: &taken, ..own.clone() };
        assert!(!xml.cloned(&beside).unwrap().text().contains(&taken[0]), "another has it");
        // A guest that moves to another host stays the same guest.
        let there = "/there/a_VARS.fd";
        let moved = Own {
            name: "a",
            uuid: Some("11111111-2222-4333-8444-555555555555"),
            stays: Some(Stays { nvram: there }),
            ..own.clone()
        };
        let moved = xml.cloned(&moved).unwrap();
        let paths = xml.text().replace("/var/lib/libvirt/qemu/nvram/a_VARS.fd", there);
        let (before, rest) = paths.split_once("/a.os'/>").unwrap();
        let (_, rest) = rest.split_once("</backingStore>\n").unwrap();
        assert_eq!(moved.text(), format!("{before}/b.os'/>\n{rest}"));
        let made = Made { role: Role::Os, path: "/b.os".into(), volume: None };
        let preview = Own { uuid: None, made: std::slice::from_ref(&made), ..own };
        assert_eq!(xml.cloned(&preview).unwrap().uuid(), None);
    }
}
