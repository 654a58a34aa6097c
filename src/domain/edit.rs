//! One change to a domain, as data. What it does to a document is a [`Fragment`]; the numbers are all in the edit, so
//! this module knows no plan and no host.

use super::fragment::{Fragment, Want};
use super::guest::{Disk, NAMESPACE, Record, VirtType};
use super::pci::{Controller, PciAddress};
use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeSet};
use crate::memsize::MemSize;
use crate::placement::{GuestCell, GuestTopology};
use crate::request::PageSize;
use crate::topology::PartitionId;
use serde::Serialize;

/// Is what CPU a guest sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CpuModel {
    /// The host's, with the host's physical address bits where the architecture has that setting.
    HostPassthrough {
        /// Whether to write `<maxphysaddr mode='passthrough'/>`, which OVMF's 64-bit window depends on.
        maxphysaddr: bool,
    },
    /// All that an emulator can do.
    Maximum,
    /// A model of libvirt's.
    Named(&'static str),
    /// The one that the document names.
    Kept,
}

/// Is a disk with its place in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DiskSeat {
    /// The disk.
    pub disk: Disk,
    /// Name that libvirt knows it by: `vda`.
    pub target: String,
    /// Queues; 1 is not written.
    pub queues: u32,
    /// I/O thread, from 1; none where the guest has none.
    pub iothread: Option<u32>,
    /// Its address, where the edit sets one.
    pub address: Option<PciAddress>,
}

/// Is a NIC with its place in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NicSeat {
    /// Place among the document's interfaces, from 0; behind the last: a new one.
    pub nth: usize,
    /// libvirt network; none: what the document says.
    pub network: Option<String>,
    /// MAC address; none: what the document says.
    pub mac: Option<String>,
    /// Whether it is virtio and its packets are moved by the kernel or by QEMU, so that queues can be set.
    pub queues: Option<u32>,
    /// Whether the host's kernel moves its packets (vhost).
    pub vhost: bool,
    /// Its address, where the edit sets one.
    pub address: Option<PciAddress>,
}

/// Is a passed-through function with its place in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostdevSeat {
    /// Its address on the host.
    pub bdf: Bdf,
    /// Name for `virsh` and overrides, with libvirt's prefix for users' names: `ua-gpu0`.
    pub alias: String,
    /// Whether libvirt rebinds it to vfio-pci and back.
    pub managed: bool,
    /// Its address in the guest.
    pub address: PciAddress,
}

/// Is a device of the document that has no name of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DevicePlace {
    /// The element's name.
    pub name: &'static str,
    /// Place among the document's devices of that name, from 0.
    pub nth: usize,
}

/// Is one change to a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "edit", rename_all = "kebab-case")]
pub enum DomainEdit {
    /// Sets the kind of virtual machine.
    SetType {
        /// The kind.
        virt: VirtType,
    },
    /// Renames the domain and takes out what belongs to the one that the document came from: UUID and NVRAM file.
    SetName {
        /// The name.
        name: String,
    },
    /// Sets what is remembered of how the guest was made.
    SetMetadata {
        /// Wish and what was made.
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
    /// Sets what backs the memory.
    SetMemoryBacking {
        /// Page size; none: normal pages.
        pages: Option<PageSize>,
        /// Threads that fill the memory before the guest starts; none: it is filled when it is used.
        threads: Option<u32>,
    },
    /// Sets the number of vCPUs.
    SetVcpus {
        /// The number.
        vcpus: u32,
        /// Whether each is pinned, so that a pin of all together makes no sense.
        pinned: bool,
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
    /// Adds or sets disks; others stay.
    SetDisks {
        /// The disks.
        disks: Vec<DiskSeat>,
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
    /// Sets the memory balloon: a guest whose memory is all mapped for devices must have none.
    SetBalloon {
        /// Its address; none: no balloon.
        address: Option<PciAddress>,
    },
}

impl DomainEdit {
    /// What the domain shall be like.
    pub(super) fn fragment(&self) -> Fragment {
        let domain = Fragment::new("domain");
        match self {
            DomainEdit::SetType { virt } => domain.attr("type", virt.as_str()),
            DomainEdit::SetName { name } => domain
                .child(Fragment::new("name").text(name))
                .child(Fragment::gone("uuid"))
                .child(Fragment::new("os").child(Fragment::gone("nvram"))),
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
            DomainEdit::SetIothreads { iothreads } => domain
                .child(Fragment::new("iothreads").text(iothreads))
                .child(Fragment::gone("iothreadids")),
            DomainEdit::SetCputune { vcpus, emulator, iothreads } => {
                domain.child(cputune(vcpus, emulator, iothreads))
            }
            DomainEdit::SetNumatune { cells } => domain.child(numatune(cells)),
            DomainEdit::SetCpu { model, topology, topoext, cells } => {
                domain.child(cpu(*model, *topology, *topoext, cells))
            }
            _ => domain.child(self.devices(Fragment::new("devices"))),
        }
    }

    /// What the domain's devices shall be like.
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
                .only_where("hostdev", super::device::is_our_hostdev),
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

impl DiskSeat {
    /// What its element shall be like.
    fn fragment(&self) -> Fragment {
        let (kind, source) = match self.disk.kind {
            super::guest::DiskKind::File => ("file", "file"),
            super::guest::DiskKind::Block => ("block", "dev"),
        };
        let mut driver = Fragment::new("driver")
            .attr("name", "qemu")
            .attr("type", self.disk.format.as_str())
            .attr("cache", "none")
            .attr("io", "native")
            .attr("discard", "unmap");
        driver = match self.iothread {
            Some(thread) => driver.attr("iothread", thread),
            None => driver.want("iothread", Want::Absent),
        };
        driver = match self.queues {
            0 | 1 => driver.want("queues", Want::Absent),
            queues => driver.attr("queues", queues),
        };
        Fragment::new("disk")
            .key(super::device::disk_path, &self.disk.path)
            .attr("type", kind)
            .attr("device", "disk")
            .child(driver)
            .child(Fragment::new("source").attr(source, &self.disk.path))
            .child(Fragment::new("target").attr("dev", &self.target).attr("bus", "virtio"))
            .children(self.address.map(PciAddress::fragment))
    }
}

impl NicSeat {
    /// What its element shall be like.
    fn fragment(&self) -> Fragment {
        let mut nic = Fragment::new("interface").nth(self.nth);
        if let Some(network) = &self.network {
            nic = nic.attr("type", "network");
            nic = nic.child(Fragment::new("source").attr("network", network));
            nic = nic.child(Fragment::new("model").attr("type", "virtio"));
        }
        nic = nic.children(self.mac.as_ref().map(|mac| Fragment::new("mac").attr("address", mac)));
        if let Some(queues) = self.queues {
            let name = if self.vhost { Want::Set("vhost".into()) } else { Want::Absent };
            let count = if queues > 1 { Want::Set(queues.to_string()) } else { Want::Absent };
            let driver = Fragment::new("driver").want("name", name.clone());
            let driver = driver.want("queues", count.clone());
            let plain = [name, count].iter().all(|want| *want == Want::Absent);
            nic = nic.child(Fragment { drop_empty: plain, ..driver });
        }
        nic.children(self.address.map(PciAddress::fragment))
    }
}

impl HostdevSeat {
    /// What its element shall be like.
    fn fragment(&self) -> Fragment {
        let bdf = self.bdf;
        let source = Fragment::new("address")
            .attr("domain", format!("0x{:04x}", bdf.segment()))
            .attr("bus", format!("0x{:02x}", bdf.bus()))
            .attr("slot", format!("0x{:02x}", bdf.device()))
            .attr("function", format!("0x{:x}", bdf.function()));
        Fragment::new("hostdev")
            .key(super::device::hostdev_bdf, bdf)
            .attr("mode", "subsystem")
            .attr("type", "pci")
            .attr("managed", if self.managed { "yes" } else { "no" })
            .child(Fragment::new("driver").attr("name", "vfio"))
            .child(Fragment::new("source").child(source))
            .child(Fragment::new("alias").attr("name", &self.alias))
            .child(Fragment::new("rom").attr("bar", "off"))
            .child(self.address.fragment())
    }
}

/// What `<metadata>` shall be like.
fn metadata(record: &Record, partition: Option<PartitionId>, devices: &[Bdf]) -> Fragment {
    let request = serde_json::to_string(&record.request).expect("a request has no map");
    let mut plan = Fragment::new("gpuvm:plan");
    plan = match partition {
        Some(partition) => plan.attr("partition", partition),
        None => plan.want("partition", Want::Absent),
    };
    let devices = devices.iter().map(|bdf| Fragment::new("gpuvm:device").attr("bdf", bdf));
    let disks = record.made_disks.iter().map(|path| Fragment::new("gpuvm:disk").attr("path", path));
    let guest = Fragment::new("gpuvm:guest")
        .attr("xmlns:gpuvm", NAMESPACE)
        .child(Fragment::new("gpuvm:request").text(request))
        .child(plan.children(devices).only("gpuvm:device"))
        .child(Fragment::new("gpuvm:made").children(disks).only("gpuvm:disk").drop_empty());
    Fragment::new("metadata").child(guest)
}

/// What `<memoryBacking>` shall be like.
fn backing(pages: Option<PageSize>, threads: Option<u32>) -> Fragment {
    let backing = Fragment::new("memoryBacking").drop_empty();
    let backing = match pages {
        Some(pages) => {
            let page = Fragment::new("page").attr("size", pages.size().kib()).attr("unit", "KiB");
            backing.child(Fragment::new("hugepages").child(page).only("page"))
        }
        None => backing.child(Fragment::gone("hugepages")),
    };
    backing.child(match threads {
        Some(threads) => {
            Fragment::new("allocation").attr("mode", "immediate").attr("threads", threads)
        }
        None => Fragment::gone("allocation"),
    })
}

/// What `<cputune>` shall be like.
fn cputune(vcpus: &[CpuSet], emulator: &CpuSet, iothreads: &[CpuSet]) -> Fragment {
    let pins = |name, key: &'static str, of, first: usize, sets: &[CpuSet]| {
        let pinned = sets.iter().enumerate().filter(|(_, set)| !set.is_empty());
        let pin = move |(id, set): (usize, &CpuSet)| {
            let id = id + first;
            Fragment::new(name).key(of, id).attr(key, id).attr("cpuset", set)
        };
        pinned.map(pin).collect::<Vec<_>>()
    };
    let emulator =
        (!emulator.is_empty()).then(|| Fragment::new("emulatorpin").attr("cpuset", emulator));
    Fragment::new("cputune")
        .children(pins("vcpupin", "vcpu", |pin| Some(pin.attr("vcpu")?.into()), 0, vcpus))
        .children(emulator)
        .children(pins(
            "iothreadpin",
            "iothread",
            |pin| Some(pin.attr("iothread")?.into()),
            1,
            iothreads,
        ))
        .only("vcpupin")
        .only("emulatorpin")
        .only("iothreadpin")
        .drop_empty()
}

/// What `<numatune>` shall be like.
fn numatune(cells: &[NodeSet]) -> Fragment {
    let bound = cells.iter().enumerate().filter(|(_, nodes)| !nodes.is_empty());
    let nodes = bound.clone().map(|(cell, nodes)| {
        Fragment::new("memnode")
            .key(|memnode| Some(memnode.attr("cellid")?.into()), cell)
            .attr("cellid", cell)
            .attr("mode", "strict")
            .attr("nodeset", nodes)
    });
    let all = (bound.clone().count() == cells.len() && !cells.is_empty()).then(|| {
        let union = bound.fold(NodeSet::new(), |union, (_, nodes)| union.or(nodes));
        Fragment::new("memory")
            .attr("mode", "strict")
            .attr("nodeset", union)
            .want("placement", Want::Default("static".into()))
    });
    let numatune = Fragment::new("numatune").children(all).children(nodes);
    numatune.only("memory").only("memnode").drop_empty()
}

/// What `<cpu>` shall be like.
fn cpu(model: CpuModel, topology: GuestTopology, topoext: bool, cells: &[GuestCell]) -> Fragment {
    let GuestTopology { sockets, cores, threads } = topology;
    let one = || Want::Default("1".into());
    let topology = Fragment::new("topology")
        .attr("sockets", sockets)
        .want("dies", one())
        .want("clusters", one())
        .attr("cores", cores)
        .attr("threads", threads);
    let cpu = Fragment::new("cpu");
    let cpu = match model {
        CpuModel::HostPassthrough { .. } => {
            cpu.attr("mode", "host-passthrough").attr("check", "none")
        }
        CpuModel::Maximum => cpu.attr("mode", "maximum").attr("check", "none"),
        CpuModel::Named(_) => {
            cpu.attr("mode", "custom").attr("match", "exact").attr("check", "none")
        }
        CpuModel::Kept => cpu,
    };
    let cpu = match model {
        CpuModel::Named(name) => cpu.child(
            Fragment::new("model").want("fallback", Want::Default("forbid".into())).text(name),
        ),
        CpuModel::Kept => cpu,
        _ => cpu.want("match", Want::Absent).only("model").only("vendor"),
    };
    let cpu = cpu.child(topology).child(match model {
        CpuModel::HostPassthrough { maxphysaddr: true } => {
            Fragment::new("maxphysaddr").attr("mode", "passthrough").want("bits", Want::Absent)
        }
        _ => Fragment::gone("maxphysaddr"),
    });
    let feature = topoext.then(|| {
        let name = |feature: super::Element<'_>| feature.attr("name").map(Into::into);
        Fragment::new("feature")
            .key(name, "topoext")
            .attr("policy", "require")
            .attr("name", "topoext")
    });
    let cell = |(id, cell): (usize, &GuestCell)| {
        let distances = cell.distances.iter().enumerate().map(|(other, distance)| {
            Fragment::new("sibling")
                .key(|sibling| Some(sibling.attr("id")?.into()), other)
                .attr("id", other)
                .attr("value", distance)
        });
        let cpus: CpuSet = cell.vcpus.clone().map(crate::cpuset::PcpuId).collect();
        Fragment::new("cell")
            .key(|cell| Some(cell.attr("id")?.into()), id)
            .attr("id", id)
            .attr("cpus", cpus)
            .attr("memory", cell.memory_kib.kib())
            .attr("unit", "KiB")
            .child(Fragment::new("distances").children(distances).only("sibling").drop_empty())
    };
    let cells = cells.iter().enumerate().map(cell);
    let numa = Fragment::new("numa").children(cells).only("cell").drop_empty();
    cpu.children(feature).child(numa)
}
