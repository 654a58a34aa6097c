//! Adds a disk to an existing domain, or removes one: its name, its port, the I/O threads that
//! serve it. Everything else is unchanged. Knows no plan: `tune` decides the settings of a tuned
//! domain.

use super::claims::Claims;
use super::device::{disk_path, remembered_path};
use super::disks::{disk_name, disk_queues, named_iothreads, share};
use super::element::Element;
use super::fragment::Fragment;
use super::guest::{Disk, Made};
use super::pci::{Buses, PciAddress};
use super::placed::{DiskSeat, IoThread};
use super::splice::Splicer;
use super::{DomainEdit, DomainXml, DomainXmlError, shape, tree};

/// The root port of an added disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// A free one, as a running guest needs it.
    Free,
    /// A free one, otherwise a new one.
    FreeOrNew,
}

/// Returns libvirt's name for a disk, such as `vda`.
pub fn target_of(disk: Element<'_>) -> Option<String> {
    Some(disk.child("target")?.attr("dev")?.into_owned())
}

/// Returns the first name of a virtio disk that is unused in these documents.
pub fn free_target(documents: &[&DomainXml]) -> String {
    let taken: Vec<String> =
        documents.iter().flat_map(|xml| xml.disks()).filter_map(target_of).collect();
    let mut names = (0..).map(disk_name);
    names.find(|name| !taken.contains(name)).expect("names do not end")
}

impl DomainXml {
    /// Returns its disks, in document order.
    pub fn disks(&self) -> impl Iterator<Item = Element<'_>> {
        let devices = self.root().child("devices").into_iter();
        devices.flat_map(|devices| devices.children("disk"))
    }

    /// Finds the disk of this name.
    pub fn disk_named(&self, target: &str) -> Option<Element<'_>> {
        self.disks().find(|disk| target_of(*disk).as_deref() == Some(target))
    }

    /// Returns it with another virtio disk of this name; `None` if no root port is free. `mapping`:
    /// whether several I/O threads can serve one disk.
    pub fn with_disk(
        &self,
        disk: &Disk,
        target: &str,
        mapping: bool,
        port: Port,
    ) -> Result<Option<DomainXml>, DomainXmlError> {
        let mut edits = Vec::new();
        let address = if self.is_pcie() {
            let devices = self.root().child("devices");
            let mut buses = devices.map(Buses::read).transpose()?.unwrap_or_default();
            match (self.free_port(&buses), port) {
                (Some(index), _) => Some(PciAddress::behind(index)),
                (None, Port::Free) => return Ok(None),
                (None, Port::FreeOrNew) => {
                    let port = buses.add_port()?;
                    let address = PciAddress::behind(port.index);
                    let (controllers, dropped) = (vec![port], Vec::new());
                    edits.push(DomainEdit::SetControllers { controllers, dropped });
                    Some(address)
                }
            }
        } else {
            None
        };
        let queues = if disk.read_only { 1 } else { disk_queues(Claims::read(self).vcpus.value) };
        let iothreads = self.threads_for(disk, queues, mapping);
        let target = target.to_owned();
        let seat = DiskSeat { disk: disk.clone(), target, queues, iothreads, address };
        edits.push(DomainEdit::SetDisks { disks: vec![seat] });
        let mut xml = self.clone();
        xml.apply_all(&edits)?;
        Ok(Some(xml))
    }

    /// Finds the first free root port on the root bus that supports hotplug. Those of an expander
    /// bus belong to one cell and are for passed-through functions.
    fn free_port(&self, buses: &Buses) -> Option<u8> {
        self.free_ports(buses).next()
    }

    /// The same for all of them.
    pub(super) fn free_ports<'b>(&'b self, buses: &'b Buses) -> impl Iterator<Item = u8> + 'b {
        buses.free_root_ports().filter(|index| !self.is_fixed_port(*index))
    }

    /// Whether a root port does not support hotplug.
    pub(super) fn is_fixed_port(&self, index: u8) -> bool {
        let devices = self.root().child("devices").into_iter();
        let mut all = devices.flat_map(|devices| devices.children("controller"));
        all.any(|controller| {
            let is = controller.attr("index").is_some_and(|own| own == index.to_string());
            let target = controller.child("target").filter(|_| is);
            target.and_then(|t| t.attr("hotplug")).is_some_and(|hotplug| hotplug == "off")
        })
    }

    /// Returns the I/O threads for another disk: all of them, or the one that serves the fewest
    /// disks.
    fn threads_for(&self, disk: &Disk, queues: u32, mapping: bool) -> Vec<IoThread> {
        let mut threads: Vec<u32> = Claims::read(self).iothreads.keys().copied().collect();
        if disk.read_only || threads.is_empty() {
            return Vec::new();
        }
        let named: Vec<Vec<u32>> = self.disks().map(named_iothreads).collect();
        if mapping {
            // In the order of the cells, as a disk that is there has them.
            let all = named.into_iter().find(|named| named.len() == threads.len());
            return share(queues, &all.unwrap_or(threads));
        }
        let users = |id: &u32| named.iter().filter(|named| named.contains(id)).count();
        threads.sort_by_key(|id| (users(id), *id));
        share(queues, &threads[..1])
    }

    /// Returns it without a disk. `forget`: path of a disk to be removed from the record.
    pub fn without_disk(
        &self,
        target: &str,
        forget: Option<&str>,
    ) -> Result<DomainXml, DomainXmlError> {
        let disk = Fragment::gone("disk").key(target_of, target);
        let domain = Fragment::new("domain");
        let mut domain = domain.child(Fragment::new("devices").if_there().child(disk));
        if let Some(path) = forget {
            let disk = Fragment::gone("gpuvm:disk").key(remembered_path, path);
            let made = Fragment::new("gpuvm:made").if_there().child(disk);
            let guest = Fragment::new("gpuvm:guest").if_there().child(made);
            domain = domain.child(Fragment::new("metadata").if_there().child(guest));
        }
        self.spliced(&domain)
    }

    /// Returns it with a created disk recorded, if it is a guest of ours.
    pub fn with_made(&self, made: &Made) -> Result<DomainXml, DomainXmlError> {
        let disk = shape::made(made).key(remembered_path, &made.path);
        let made = Fragment::new("gpuvm:made").child(disk);
        let guest = Fragment::new("gpuvm:guest").if_there().child(made);
        let metadata = Fragment::new("metadata").if_there().child(guest);
        self.spliced(&Fragment::new("domain").child(metadata))
    }

    /// Returns it with a fragment applied.
    pub(super) fn spliced(&self, wanted: &Fragment) -> Result<DomainXml, DomainXmlError> {
        let splicer = Splicer::new(&self.tree, wanted);
        if splicer.is_empty() {
            Ok(self.clone())
        } else {
            Ok(DomainXml { tree: tree::Tree::parse(splicer.finish())? })
        }
    }
}

/// Returns the file or block device of a disk; `None` for one on the network, a volume by name, or
/// empty.
pub fn path_of(disk: Element<'_>) -> Option<String> {
    disk_path(disk)
}

/// Returns the source of a disk: its file, device, directory, name on the network or volume; at
/// last its protocol or type; `None` without medium.
pub fn source_of(disk: Element<'_>) -> Option<String> {
    let source = disk.child("source")?;
    let of_source =
        |name: &str| Some(source.attr(name)?.into_owned()).filter(|text| !text.is_empty());
    let volume = || Some(format!("{}/{}", of_source("pool")?, of_source("volume")?));
    let elsewhere = || disk.attr("type").filter(|kind| kind != "file" && kind != "block");
    ["file", "dev", "dir", "name", "path"]
        .into_iter()
        .find_map(of_source)
        .or_else(volume)
        .or_else(|| of_source("protocol"))
        .or_else(|| elsewhere().map(Into::into))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::guest::{DiskFormat, DiskKind, Role, VolumeRef};

    /// A guest with two vCPUs, an I/O thread, a disk below its first port, and one port more.
    fn guest(port: &str) -> DomainXml {
        let text = format!(
            "<domain type='kvm'>
  <metadata>
    <gpuvm:guest xmlns:gpuvm='urn:gpuvm:domain:1'/>
  </metadata>
  <vcpu>2</vcpu>
  <iothreads>2</iothreads>
  <os>
    <type machine='q35'>hvm</type>
  </os>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw' iothread='1'/>
      <source file='/a.raw'/>
      <target dev='vda' bus='virtio'/>
      <address type='pci' domain='0x0000' bus='0x01' slot='0x00' function='0x0'/>
    </disk>
    <controller type='pci' index='0' model='pcie-root'/>
    <controller type='pci' index='1' model='pcie-root-port'>
      <address type='pci' domain='0x0000' bus='0x00' slot='0x02' function='0x0'/>
    </controller>{port}
  </devices>
</domain>
"
        );
        DomainXml::parse(&text).unwrap()
    }

    /// One port more, with this inside.
    fn port(inside: &str) -> String {
        format!(
            "<controller type='pci' index='2' model='pcie-root-port'>{inside}<address type='pci' \
             domain='0x0000' bus='0x00' slot='0x03' function='0x0'/></controller>"
        )
    }

    #[test]
    fn a_disk_more_sits_below_a_free_port_or_a_new_one_and_goes_again() {
        let disk = Disk::new("/b.raw", DiskFormat::Raw, DiskKind::File);
        let (with_port, without) = (guest(&port("")), guest(""));
        assert_eq!(free_target(&[&with_port]), "vdb");
        for (xml, bus, is_free) in [(&with_port, "0x02", true), (&without, "0x02", false)] {
            let live = xml.with_disk(&disk, "vdb", false, Port::Free).unwrap();
            assert_eq!(live.is_some(), is_free);
            let more = xml.with_disk(&disk, "vdb", false, Port::FreeOrNew).unwrap().unwrap();
            let added = more.disk_named("vdb").unwrap();
            assert_eq!(added.child("address").unwrap().attr("bus").unwrap(), bus);
            // The thread that serves no disk yet.
            let driver = added.child("driver").unwrap();
            assert_eq!(driver.attr("iothread").unwrap(), "2");
            assert_eq!(driver.attr("queues").unwrap(), "2");
            assert_eq!(path_of(added).as_deref(), Some("/b.raw"));
            let ports = more.text().matches("pcie-root-port").count();
            assert_eq!(ports, 2);
            let less = more.without_disk("vdb", None).unwrap();
            let gone = if is_free { less.text() == xml.text() } else { less.disks().count() == 1 };
            assert!(gone, "{}", less.text());
        }
        let fixed = guest(&port("<target chassis='2' hotplug='off'/>"));
        assert_eq!(fixed.with_disk(&disk, "vdb", false, Port::Free).unwrap().map(|_| ()), None);
    }

    #[test]
    fn a_port_of_an_expander_bus_is_of_its_cell_alone() {
        let expander = "<controller type='pci' index='3' model='pcie-expander-bus'><target \
             busNr='250'/>\
             <address type='pci' domain='0x0000' bus='0x00' slot='0x10' \
             function='0x0'/></controller>\
             <controller type='pci' index='4' model='pcie-root-port'><address type='pci' \
             domain='0x0000' \
             bus='0x03' slot='0x00' function='0x0'/></controller>";
        let disk = Disk::new("/b.raw", DiskFormat::Raw, DiskKind::File);
        let live = guest(expander).with_disk(&disk, "vdb", true, Port::Free).unwrap();
        assert!(live.is_none());
        let both = guest(&port("")).with_disk(&disk, "vdb", true, Port::Free).unwrap().unwrap();
        let driver = both.disk_named("vdb").unwrap().child("driver").unwrap();
        assert_eq!(driver.child("iothreads").unwrap().elements().count(), 2);
    }

    #[test]
    fn the_record_of_a_made_disk_goes_with_the_disk() {
        let volume = Some(VolumeRef { pool: "p".into(), name: "v".into() });
        let made = Made { role: Role::Data, path: "/a.raw".into(), volume };
        let with = guest("").with_made(&made).unwrap();
        assert_eq!(with.made(), std::slice::from_ref(&made));
        assert_eq!(with.with_made(&made).unwrap().text(), with.text());
        let kept = with.without_disk("vda", None).unwrap();
        assert_eq!((kept.disks().count(), kept.made().len()), (0, 1));
        let gone = with.without_disk("vda", Some("/a.raw")).unwrap();
        assert_eq!((gone.disks().count(), gone.made().len()), (0, 0));
        // Nothing is recorded in a guest that is not ours.
        let other = DomainXml::parse("<domain><devices/></domain>").unwrap();
        assert_eq!(other.with_made(&made).unwrap().text(), other.text());
    }
}
