//! One change to a domain, as data. It becomes a `Fragment` of the document; the edit holds all the
//! numbers, so that this module knows no plan and no host.

use super::DomainXml;
use super::device::{disk_path, is_our_hostdev, remembered_path};
use super::element::Element;
use super::fragment::{Fragment, Want};
use super::guest::{CpuModel, Record, VirtType};
use super::overrides::Override;
use super::pci::{Controller, PciAddress};
use super::placed::{DevicePlace, DiskSeat, HostdevSeat, NicSeat};
use super::setting::Setting;
use super::shape::{backing, cpu, cputune, metadata, numatune, numatune_of};
use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeSet};
use crate::memsize::MemSize;
use crate::placement::{GuestCell, GuestTopology, Initiators};
use crate::request::PageSize;
use crate::topology::PartitionId;
use serde::Serialize;

/// The file with the settings of a domain's firmware.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NvramPath {
    /// The file.
    pub path: String,
    /// Whether the document names it as a source, not as a text.
    pub is_source: bool,
}

/// One change to a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "edit", rename_all = "kebab-case")]
pub enum DomainEdit {
    /// Sets the kind of virtual machine.
    SetType {
        /// The kind.
        virt: VirtType,
    },
    /// Renames the domain and removes the identity of the one that the document came from: UUID and
    /// NVRAM file.
    SetName {
        /// The name.
        name: String,
    },
    /// Gives the same domain another name; its UUID stays.
    Rename {
        /// The name.
        name: String,
        /// Where the settings of its firmware are; `None` where they were.
        nvram: Option<NvramPath>,
        /// The file that its serial console was written to, and the new one; `None` where it was.
        serial_log: Option<(String, String)>,
    },
    /// Sets the domain's UUID, also as that of the domain that our metadata is about, where there
    /// is any: a copy of the definition gets another UUID, and objects made for this one do not
    /// belong to the copy.
    SetUuid {
        /// The UUID.
        uuid: String,
    },
    /// Sets the record of how the guest was made.
    SetMetadata {
        /// The request and the objects made.
        record: Box<Record>,
        /// NVLink partition.
        partition: Option<PartitionId>,
        /// Passed-through functions.
        devices: Vec<Bdf>,
    },
    /// Sets the amount of memory.
    SetMemory {
        /// The amount.
        memory: MemSize,
    },
    /// Sets the backing of the memory.
    SetMemoryBacking {
        /// Page size; `None` for normal pages.
        pages: Option<PageSize>,
        /// Threads that fill the memory before the guest starts; `None` if it is filled when it is
        /// used.
        threads: Option<u32>,
    },
    /// Sets the number of vCPUs.
    SetVcpus {
        /// The number.
        vcpus: u32,
        /// Whether each is pinned, so that a pin of all together makes no sense.
        pinned: bool,
    },
    /// Sets how many of the vCPUs are plugged at start.
    SetPlugged {
        /// The number; `None` for all.
        vcpus: Option<u32>,
    },
    /// Sets the number of I/O threads.
    SetIothreads {
        /// The number.
        iothreads: u32,
    },
    /// Sets pins; an empty set is no pin.
    SetCputune {
        /// By vCPU.
        vcpus: Vec<CpuSet>,
        /// Of the emulator.
        emulator: CpuSet,
        /// By I/O thread, thread 1 first.
        iothreads: Vec<CpuSet>,
    },
    /// Binds the memory of cells to host nodes; an empty set is no binding.
    SetNumatune {
        /// By cell.
        cells: Vec<NodeSet>,
    },
    /// Binds all memory to the same host nodes, whatever cells there are.
    SetMemoryNodes {
        /// The nodes.
        nodes: NodeSet,
    },
    /// Sets the guest's CPU.
    SetCpu {
        /// Its model.
        model: CpuModel,
        /// Its packages, cores and threads.
        topology: GuestTopology,
        /// Whether to require `topoext`, without which AMD guests see no threads.
        topoext: bool,
        /// Guest NUMA cells; empty: the guest has no NUMA.
        cells: Vec<GuestCell>,
        /// Empty cells for the memory of GPUs.
        #[serde(skip_serializing_if = "Option::is_none")]
        initiators: Option<Initiators>,
    },
    /// Gives addresses to devices that the document has already.
    SetAddresses {
        /// Device and address.
        addresses: Vec<(DevicePlace, PciAddress)>,
    },
    /// Sets and removes controllers.
    SetControllers {
        /// Those that shall be there.
        controllers: Vec<Controller>,
        /// Indexes of PCI controllers that shall not be there.
        dropped: Vec<u8>,
    },
    /// Sets the guest's window for 64-bit BARs.
    SetPciHole {
        /// Its size.
        kib: u64,
    },
    /// Tells UEFI the size of its window for 64-bit BARs, where its own would be too small.
    SetFirmwareWindow {
        /// Its size.
        mib: u64,
    },
    /// Adds or sets disks; others stay.
    SetDisks {
        /// The disks.
        disks: Vec<DiskSeat>,
    },
    /// Takes a disk away.
    DropDisk {
        /// Its path on the host.
        path: String,
        /// Whether it was made for the guest and is not remembered any more.
        forget: bool,
    },
    /// Sets NICs.
    SetInterfaces {
        /// The NICs.
        nics: Vec<NicSeat>,
        /// Places of NICs that shall not be there.
        dropped: Vec<usize>,
    },
    /// Sets the passed-through functions; other hostdevs stay.
    SetHostdevs {
        /// The functions.
        hostdevs: Vec<HostdevSeat>,
    },
    /// Passes a mediated device through, where libvirt finds a place for it.
    AddMdev {
        /// Its UUID.
        uuid: String,
    },
    /// Takes a mediated device away.
    DropMdev {
        /// Its UUID.
        uuid: String,
    },
    /// Sets properties of QEMU's devices that libvirt has no element for; those of others stay.
    SetOverrides {
        /// The properties.
        overrides: Vec<Override>,
    },
    /// Sets one thing alone.
    Set {
        /// The thing.
        setting: Setting,
    },
    /// Sets the memory balloon: a guest whose memory is all mapped for devices must have none.
    SetBalloon {
        /// Its address; `None` without balloon.
        address: Option<PciAddress>,
    },
}

impl DomainEdit {
    /// Returns the wanted state of the domain.
    pub(super) fn fragment(&self) -> Fragment {
        let domain = Fragment::new("domain");
        match self {
            DomainEdit::SetType { virt } => domain.attr("type", virt.as_str()),
            DomainEdit::SetName { name } => domain
                .child(Fragment::new("name").text(name))
                .child(Fragment::gone("uuid"))
                .child(Fragment::new("os").child(Fragment::gone("nvram"))),
            DomainEdit::Rename { name, nvram, serial_log } => {
                rename(domain, name, nvram.as_ref(), serial_log.as_ref())
            }
            DomainEdit::SetUuid { uuid } => {
                let guest = Fragment::new("gpuvm:guest").if_there().attr("uuid", uuid);
                let metadata = Fragment::new("metadata").if_there().child(guest);
                domain.child(Fragment::new("uuid").text(uuid)).child(metadata)
            }
            DomainEdit::SetMetadata { record, partition, devices } => {
                domain.child(metadata(record, *partition, devices))
            }
            DomainEdit::SetMemory { memory } => {
                let amount = |name| Fragment::new(name).attr("unit", "KiB").text(memory.kib());
                domain.child(amount("memory")).child(amount("currentMemory"))
            }
            DomainEdit::SetMemoryBacking { pages, threads } => {
                domain.child(backing(*pages, *threads))
            }
            DomainEdit::SetVcpus { vcpus, pinned } => {
                let mut vcpu = Fragment::new("vcpu").text(vcpus).want("current", Want::Absent);
                vcpu = vcpu.want("placement", Want::Default("static".into()));
                if *pinned {
                    vcpu = vcpu.want("cpuset", Want::Absent);
                }
                domain.child(vcpu).child(Fragment::gone("vcpus"))
            }
            DomainEdit::SetPlugged { vcpus } => {
                let vcpu = Fragment::new("vcpu").if_there();
                let vcpu = match vcpus {
                    Some(vcpus) => vcpu.attr("current", vcpus),
                    None => vcpu.want("current", Want::Absent),
                };
                domain.child(vcpu).child(Fragment::gone("vcpus"))
            }
            DomainEdit::SetIothreads { iothreads } => domain
                .child(Fragment::new("iothreads").text(iothreads))
                .child(Fragment::gone("iothreadids")),
            DomainEdit::SetCputune { vcpus, emulator, iothreads } => {
                domain.child(cputune(vcpus, emulator, iothreads))
            }
            DomainEdit::SetNumatune { cells } => domain.child(numatune(cells)),
            DomainEdit::SetMemoryNodes { nodes } => domain.child(numatune_of(nodes)),
            DomainEdit::SetCpu { model, topology, topoext, cells, initiators } => {
                domain.child(cpu(*model, *topology, *topoext, cells, initiators.as_ref()))
            }
            DomainEdit::SetOverrides { overrides } => super::overrides::fragment(domain, overrides),
            DomainEdit::SetFirmwareWindow { mib } => super::window::fragment(domain, *mib),
            DomainEdit::Set { setting } => setting.fragment(),
            DomainEdit::DropDisk { path, forget } => drop_disk(domain, path, *forget),
            _ => domain.child(self.devices(Fragment::new("devices"))),
        }
    }

    /// Returns the wanted state of the domain's devices.
    fn devices(&self, devices: Fragment) -> Fragment {
        match self {
            DomainEdit::SetAddresses { addresses } => {
                devices.children(addresses.iter().map(|(place, address)| {
                    Fragment::new(place.name).nth(place.nth).if_there().child(address.fragment())
                }))
            }
            DomainEdit::SetControllers { controllers, dropped } => devices
                .children(dropped.iter().map(|&index| Controller::dropped(index)))
                .children(controllers.iter().map(Controller::fragment)),
            DomainEdit::SetPciHole { kib } => {
                let hole = Fragment::new("pcihole64").attr("unit", "KiB").text(kib);
                devices.child(Controller::root().child(hole))
            }
            DomainEdit::SetDisks { disks } => {
                devices.children(disks.iter().map(DiskSeat::fragment))
            }
            DomainEdit::SetInterfaces { nics, dropped } => devices
                .children(dropped.iter().map(|&nth| Fragment::gone("interface").nth(nth)))
                .children(nics.iter().map(NicSeat::fragment)),
            DomainEdit::SetHostdevs { hostdevs } => devices
                .children(hostdevs.iter().map(HostdevSeat::fragment))
                .only_where("hostdev", is_our_hostdev)
                .only_where("interface", is_our_hostdev),
            DomainEdit::AddMdev { uuid } => devices.child(mdev(uuid)),
            DomainEdit::DropMdev { uuid } => {
                devices.child(Fragment::gone("hostdev").key(mdev_uuid, uuid))
            }
            DomainEdit::SetBalloon { address } => {
                let model = if address.is_some() { "virtio" } else { "none" };
                let balloon = Fragment::new("memballoon").attr("model", model);
                devices.child(match address {
                    Some(address) => balloon.child(address.fragment()),
                    None => balloon.only("address").only("stats").only("driver").only("alias"),
                })
            }
            _ => devices,
        }
    }
}

impl DomainXml {
    /// UUIDs of its mediated devices, in lower case.
    pub fn mdevs(&self) -> Vec<String> {
        let devices = self.root().child("devices");
        let hostdevs = devices.into_iter().flat_map(|devices| devices.children("hostdev"));
        hostdevs.filter_map(mdev_uuid).collect()
    }
}

/// The UUID of a `<hostdev>` that is a mediated device.
fn mdev_uuid(hostdev: Element<'_>) -> Option<String> {
    Some(hostdev.find("source/address")?.attr("uuid")?.to_lowercase())
}

/// Wants a mediated device.
fn mdev(uuid: &str) -> Fragment {
    let address = Fragment::new("address").attr("uuid", uuid);
    Fragment::new("hostdev")
        .key(mdev_uuid, uuid)
        .attr("mode", "subsystem")
        .attr("type", "mdev")
        .attr("model", "vfio-pci")
        .attr("managed", "no")
        .child(Fragment::new("source").child(address))
}

fn log_file(log: Element<'_>) -> Option<String> {
    Some(log.attr("file")?.into_owned())
}

/// Wants a domain of another name, with its files where they are then.
fn rename(
    domain: Fragment,
    name: &str,
    nvram: Option<&NvramPath>,
    serial_log: Option<&(String, String)>,
) -> Fragment {
    let mut domain = domain.child(Fragment::new("name").text(name));
    if let Some(NvramPath { path, is_source }) = nvram {
        let file = Fragment::new("nvram").if_there();
        let file = if *is_source {
            file.child(Fragment::new("source").attr("file", path))
        } else {
            file.text(path)
        };
        domain = domain.child(Fragment::new("os").if_there().child(file));
    }
    let Some((from, to)) = serial_log else { return domain };
    // libvirt shows the first serial port as the first console, too.
    let ports = ["serial", "console"].map(|port| {
        let log = Fragment::new("log").key(log_file, from).if_there().attr("file", to);
        Fragment::new(port).nth(0).if_there().child(log)
    });
    domain.child(Fragment::new("devices").if_there().children(ports))
}

/// Wants a domain without a disk; with `forget`, the metadata drops it, too.
fn drop_disk(domain: Fragment, path: &str, forget: bool) -> Fragment {
    let disk = Fragment::gone("disk").key(disk_path, path);
    let domain = domain.child(Fragment::new("devices").if_there().child(disk));
    if !forget {
        return domain;
    }
    let disk = Fragment::gone("gpuvm:disk").key(remembered_path, path);
    let made = Fragment::new("gpuvm:made").if_there().child(disk);
    let guest = Fragment::new("gpuvm:guest").if_there().child(made);
    domain.child(Fragment::new("metadata").if_there().child(guest))
}
