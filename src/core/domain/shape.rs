//! The elements that edits set, as fragments. Writes numbers but chooses none.

use super::device::{disk_path, hostdev_bdf};
use super::element::Element;
use super::fragment::{Fragment, KeyOf, Want};
use super::guest::{BackingImage, Bound, CpuModel, Guarded, Made, NAMESPACE, Record, Reserved};
use super::nic_request::{NicModel, vlan};
use super::pci::PciAddress;
use super::placed::{DiskSeat, HostdevSeat, IoThread, NicSeat};
use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeId, NodeSet, PcpuId};
use crate::occupancy::GuestVgpu;
use crate::placement::{GuestCell, GuestTopology, Initiators};
use crate::request::{PageSize, Request};
use crate::topology::{KnownDevice, PartitionId};
use crate::versions::Stack;

impl DiskSeat {
    /// Returns the wanted state of its element.
    pub(super) fn fragment(&self) -> Fragment {
        let (kind, source) = self.disk.kind.words();
        let (cache, io) = self.disk.io.words();
        let driver = Fragment::new("driver")
            .attr("name", "qemu")
            .attr("type", self.disk.format.as_str())
            .attr("cache", cache)
            .attr("io", io)
            .attr("discard", if self.disk.keeps_blocks { "ignore" } else { "unmap" });
        let driver = served(driver, self.queues, &self.iothreads);
        Fragment::new("disk")
            .key(disk_path, &self.disk.path)
            .attr("type", kind)
            .attr("device", "disk")
            .child(driver)
            .child(Fragment::new("source").attr(source, &self.disk.path))
            .children(self.disk.backing.as_ref().map(|below| backing_store(below)))
            .child(Fragment::new("target").attr("dev", &self.target).attr("bus", "virtio"))
            .children(self.disk.read_only.then(|| Fragment::new("readonly")))
            .children(self.disk.serial.as_ref().map(|serial| Fragment::new("serial").text(serial)))
            .children(self.address.map(PciAddress::fragment))
    }
}

/// Wants these images below a disk and no others; the last one ends the chain.
fn backing_store(below: &[BackingImage]) -> Fragment {
    let store = Fragment::new("backingStore");
    let Some((first, rest)) = below.split_first() else { return store };
    let (kind, source) = first.kind.words();
    store
        .attr("type", kind)
        .child(Fragment::new("format").attr("type", first.format.as_str()))
        .child(Fragment::new("source").attr(source, &first.path))
        .child(backing_store(rest))
}

/// Wants a disk's driver with this many queues, served by these I/O threads.
pub(super) fn served(driver: Fragment, queues: u32, iothreads: &[IoThread]) -> Fragment {
    with_queues(with_iothreads(driver, iothreads), queues)
}

/// Wants a driver with this many queues; a single queue is not written.
pub(super) fn with_queues(driver: Fragment, queues: u32) -> Fragment {
    match queues {
        0 | 1 => driver.want("queues", Want::Absent),
        queues => driver.attr("queues", queues),
    }
}

/// Wants a disk's driver served by these I/O threads.
pub(super) fn with_iothreads(driver: Fragment, iothreads: &[IoThread]) -> Fragment {
    match iothreads {
        [] => driver.want("iothread", Want::Absent).child(Fragment::gone("iothreads")),
        [only] => driver.attr("iothread", only.id).child(Fragment::gone("iothreads")),
        several => driver.want("iothread", Want::Absent).child(mapping(several)),
    }
}

/// Maps the queues of a disk to I/O threads.
fn mapping(threads: &[IoThread]) -> Fragment {
    let id = |element: Element<'_>| element.attr("id").map(Into::into);
    let threads = threads.iter().map(|thread| {
        let queues = thread
            .queues
            .clone()
            .map(|queue| Fragment::new("queue").key(id, queue).attr("id", queue));
        let element = Fragment::new("iothread").key(id, thread.id).attr("id", thread.id);
        element.children(queues).only("queue")
    });
    Fragment::new("iothreads").children(threads).only("iothread")
}

impl NicSeat {
    /// Returns the wanted state of its element.
    pub(super) fn fragment(&self) -> Fragment {
        let mut nic = Fragment::new("interface").nth(self.nth);
        if let Some(network) = &self.network {
            nic = nic.attr("type", "network");
            nic = nic.child(Fragment::new("source").attr("network", network));
        }
        let model = self.settings.model.or(self.network.is_some().then_some(NicModel::Virtio));
        nic = nic.children(if self.is_vf {
            Some(Fragment::gone("model"))
        } else {
            model.map(|model| Fragment::new("model").attr("type", model.word()))
        });
        nic = self.settings.onto(nic);
        nic = nic.children(self.mac.as_ref().map(|mac| Fragment::new("mac").attr("address", mac)));
        if let Some(queues) = self.queues {
            let name = if self.vhost { Want::Set("vhost".into()) } else { Want::Absent };
            let count = if queues > 1 { Want::Set(queues.to_string()) } else { Want::Absent };
            let driver = Fragment::new("driver").want("name", name.clone());
            let driver = driver.want("queues", count.clone());
            let plain = [name, count].iter().all(|want| *want == Want::Absent);
            nic = nic.child(Fragment { drop_empty: plain, ..driver });
        }
        let emulated = self.is_vf || self.settings.is_emulated();
        nic.children(emulated.then(|| Fragment::gone("driver")))
            .children(self.address.map(PciAddress::fragment))
    }
}

impl HostdevSeat {
    /// Returns the wanted state of its element.
    pub(super) fn fragment(&self) -> Fragment {
        let bdf = self.bdf;
        let source = Fragment::new("address")
            .attr("domain", format!("0x{:04x}", bdf.segment()))
            .attr("bus", format!("0x{:02x}", bdf.bus()))
            .attr("slot", format!("0x{:02x}", bdf.device()))
            .attr("function", format!("0x{:x}", bdf.function()));
        let alias = Fragment::new("alias").attr("name", &self.alias);
        if let Some(name) = self.kept {
            let kept = Fragment::new(name).key(hostdev_bdf, bdf).if_there();
            let nic = self.nic.as_ref();
            return kept
                .children(self.initiator())
                .children(nic.map(|nic| Fragment::new("mac").attr("address", &nic.mac)))
                .children(nic.and_then(|nic| nic.vlan).map(vlan))
                .child(alias)
                .child(self.address.fragment());
        }
        if let Some(nic) = &self.nic {
            let vlan = nic.vlan.map(vlan);
            let by = self.by().map(|by| Fragment::new("driver").attr("iommufd", by));
            return Fragment::new("interface")
                .key(hostdev_bdf, bdf)
                .attr("type", "hostdev")
                .attr("managed", "yes")
                .children(by)
                .child(Fragment::new("mac").attr("address", &nic.mac))
                .child(Fragment::new("source").child(source.attr("type", "pci")))
                .child(vlan.unwrap_or_else(|| Fragment::gone("vlan")))
                .child(alias)
                .child(self.address.fragment());
        }
        let driver = Fragment::new("driver").attr("name", "vfio");
        let driver = match self.by() {
            Some(by) => driver.attr("iommufd", by),
            None => driver,
        };
        Fragment::new("hostdev")
            .key(hostdev_bdf, bdf)
            .attr("mode", "subsystem")
            .attr("type", "pci")
            .attr("managed", if self.managed { "yes" } else { "no" })
            .child(driver)
            .child(Fragment::new("source").child(source))
            .child(alias)
            .child(Fragment::new("rom").attr("bar", "off"))
            .children(self.initiator())
            .child(self.address.fragment())
    }

    /// Its own word on iommufd.
    fn by(&self) -> Option<&'static str> {
        self.iommufd.map(|on| if on { "yes" } else { "no" })
    }

    /// Names the empty cells of its memory.
    fn initiator(&self) -> Option<Fragment> {
        let cells = self.cells.clone()?;
        let nodeset: NodeSet = cells.map(NodeId).collect();
        Some(Fragment::new("acpi").attr("nodeset", nodeset))
    }
}

/// Returns the wanted state of a guest's request in our metadata.
pub(super) fn request(request: &Request) -> Fragment {
    let request = serde_json::to_string(request).expect("a request has no map");
    Fragment::new("gpuvm:request").text(request)
}

/// Returns the wanted state of the functions that our metadata says were bound.
pub(super) fn bound(bound: &[Bound]) -> Fragment {
    let bound = bound.iter().map(|bound| {
        let device = Fragment::new("gpuvm:device").attr("bdf", bound.bdf);
        let device = match &bound.was.driver {
            Some(driver) => device.attr("driver", driver),
            None => device.want("driver", Want::Absent),
        };
        match &bound.was.driver_override {
            Some(reserved) => device.attr("override", reserved),
            None => device.want("override", Want::Absent),
        }
    });
    Fragment::new("gpuvm:bound").children(bound).only("gpuvm:device").drop_empty()
}

/// Returns the wanted state of the identities of functions in our metadata.
pub(super) fn known(known: &[KnownDevice]) -> Fragment {
    let known = known.iter().map(|KnownDevice { bdf, identity }| {
        let device = Fragment::new("gpuvm:device").attr("bdf", bdf);
        device.attr("identity", String::from(identity.clone()))
    });
    Fragment::new("gpuvm:known").children(known).only("gpuvm:device").drop_empty()
}

/// Returns the wanted state of the huge pages that our metadata says were reserved.
pub(super) fn reserved(reserved: &[Reserved]) -> Fragment {
    let pages = reserved.iter().map(|pages| {
        let fragment = Fragment::new("gpuvm:pages").attr("node", pages.node);
        let fragment = fragment.attr("kib", pages.page_kib.kib()).attr("count", pages.count);
        fragment.attr("boot", &pages.boot)
    });
    Fragment::new("gpuvm:reserved").children(pages).only("gpuvm:pages").drop_empty()
}

/// Returns the wanted state of the virtual functions that our metadata says were set up.
pub(super) fn guarded(guarded: &[Guarded]) -> Fragment {
    let guarded = guarded.iter().map(|Guarded { bdf, to, was }| {
        let word = |on: bool| if on { "on" } else { "off" };
        let set = [("trust", to.trust), ("spoof", to.spoof)];
        let before = [("was-trust", was.trust), ("was-spoof", was.spoof)];
        let all = set.into_iter().chain(before);
        let device = Fragment::new("gpuvm:device").attr("bdf", bdf);
        all.fold(device, |device, (name, on)| match on {
            Some(on) => device.attr(name, word(on)),
            None => device.want(name, Want::Absent),
        })
    });
    let guarded = Fragment::new("gpuvm:guarded").children(guarded).only("gpuvm:device");
    guarded.drop_empty()
}

/// Returns the wanted state of the vGPUs of a guest in our metadata.
fn vgpus(vgpus: &[GuestVgpu]) -> Fragment {
    let vgpus = vgpus.iter().map(|GuestVgpu { card, function, type_id, name, uuid }| {
        let device = Fragment::new("gpuvm:device").attr("bdf", function).attr("card", card);
        let device = device.attr("type", type_id).attr("name", name);
        match uuid {
            Some(uuid) => device.attr("uuid", uuid),
            None => device.want("uuid", Want::Absent),
        }
    });
    Fragment::new("gpuvm:vgpus").children(vgpus).only("gpuvm:device").drop_empty()
}

/// Returns the wanted state of `<metadata>`.
pub(super) fn metadata(
    record: &Record,
    partition: Option<PartitionId>,
    devices: &[Bdf],
) -> Fragment {
    let mut plan = Fragment::new("gpuvm:plan");
    plan = match partition {
        Some(partition) => plan.attr("partition", partition),
        None => plan.want("partition", Want::Absent),
    };
    let devices = devices.iter().map(|bdf| Fragment::new("gpuvm:device").attr("bdf", bdf));
    let disks = record.made.iter().map(made);
    let nccl = match &record.nccl {
        None => Fragment::gone("gpuvm:nccl"),
        Some(nccl) => {
            let functions = nccl.functions.iter().map(|(bdf, guest)| {
                Fragment::new("gpuvm:device").attr("bdf", bdf).attr("guest", guest)
            });
            let nccl = Fragment::new("gpuvm:nccl").attr("sum", &nccl.sum);
            nccl.children(functions).only("gpuvm:device")
        }
    };
    let login = match &record.user {
        None => Fragment::gone("gpuvm:login"),
        Some(user) => Fragment::new("gpuvm:login").attr("user", user),
    };
    let assumed = match &record.assumed {
        None => Fragment::gone("gpuvm:assumed"),
        Some(Stack { libvirt, qemu, .. }) => {
            Fragment::new("gpuvm:assumed").attr("libvirt", libvirt).attr("qemu", qemu)
        }
    };
    let guest = Fragment::new("gpuvm:guest")
        .attr("xmlns:gpuvm", NAMESPACE)
        .child(request(&record.request))
        .child(plan.children(devices).only("gpuvm:device"))
        .child(Fragment::new("gpuvm:made").children(disks).only("gpuvm:disk").drop_empty())
        .child(bound(&record.bound))
        .child(known(&record.known))
        .child(reserved(&record.reserved))
        .child(guarded(&record.guarded))
        .child(vgpus(&record.vgpus))
        .child(nccl)
        .child(login)
        .child(assumed);
    Fragment::new("metadata").child(guest)
}

/// Returns the record of a disk that was made for the guest.
pub(super) fn made(made: &Made) -> Fragment {
    let disk = Fragment::new("gpuvm:disk").attr("path", &made.path);
    let disk = disk.attr("role", made.role.as_str());
    match &made.volume {
        // The record of a copy is written over that of the first one.
        None => disk.want("pool", Want::Absent).want("volume", Want::Absent),
        Some(volume) => disk.attr("pool", &volume.pool).attr("volume", &volume.name),
    }
}

/// Returns the wanted state of `<memoryBacking>`.
pub(super) fn backing(pages: Option<PageSize>, threads: Option<u32>) -> Fragment {
    let backing = Fragment::new("memoryBacking").drop_empty();
    backing.child(hugepages(pages)).child(match threads {
        Some(threads) => allocation(threads),
        None => Fragment::gone("allocation"),
    })
}

/// Returns the wanted state of `<hugepages>`; `None` for normal pages.
pub(super) fn hugepages(pages: Option<PageSize>) -> Fragment {
    let Some(pages) = pages else { return Fragment::gone("hugepages") };
    let page = Fragment::new("page").attr("size", pages.size().kib()).attr("unit", "KiB");
    Fragment::new("hugepages").child(page.want("nodeset", Want::Absent)).only("page")
}

/// Wants memory preallocated by this many threads before the guest starts.
pub(super) fn allocation(threads: u32) -> Fragment {
    Fragment::new("allocation").attr("mode", "immediate").attr("threads", threads)
}

/// Returns the wanted state of `<cputune>`.
pub(super) fn cputune(vcpus: &[CpuSet], emulator: &CpuSet, iothreads: &[CpuSet]) -> Fragment {
    let pins = [vcpu_pins(vcpus), emulator_pin(emulator), iothread_pins(iothreads)];
    Fragment::new("cputune")
        .children(pins.concat())
        .only("vcpupin")
        .only("emulatorpin")
        .only("iothreadpin")
        .drop_empty()
}

/// Returns the pins of vCPUs, vCPU 0 first; an empty set means no pin.
pub(super) fn vcpu_pins(sets: &[CpuSet]) -> Vec<Fragment> {
    let of: KeyOf = |pin| Some(pin.attr("vcpu")?.into());
    pins("vcpupin", "vcpu", of, 0, sets)
}

/// Returns the pin of the emulator; none if the set is empty.
pub(super) fn emulator_pin(set: &CpuSet) -> Vec<Fragment> {
    let pin = Fragment::new("emulatorpin").attr("cpuset", set);
    if set.is_empty() { Vec::new() } else { vec![pin] }
}

/// Returns the pins of I/O threads, thread 1 first; an empty set means no pin.
pub(super) fn iothread_pins(sets: &[CpuSet]) -> Vec<Fragment> {
    let of: KeyOf = |pin| Some(pin.attr("iothread")?.into());
    pins("iothreadpin", "iothread", of, 1, sets)
}

/// Returns pins of threads numbered from `first` in an attribute.
fn pins(
    name: &'static str,
    key: &'static str,
    of: KeyOf,
    first: usize,
    sets: &[CpuSet],
) -> Vec<Fragment> {
    let pinned = sets.iter().zip(first..).filter(|(set, _)| !set.is_empty());
    let pin = |(set, id): (&CpuSet, usize)| {
        Fragment::new(name).key(of, id).attr(key, id).attr("cpuset", set)
    };
    pinned.map(pin).collect()
}

/// Returns the wanted state of `<numatune>`.
pub(super) fn numatune(cells: &[NodeSet]) -> Fragment {
    let bound = cells.iter().enumerate().filter(|(_, nodes)| !nodes.is_empty());
    let nodes = bound.clone().map(|(cell, nodes)| {
        Fragment::new("memnode")
            .key(|memnode| Some(memnode.attr("cellid")?.into()), cell)
            .attr("cellid", cell)
            .attr("mode", "strict")
            .attr("nodeset", nodes)
    });
    let all = (bound.clone().count() == cells.len() && !cells.is_empty())
        .then(|| bound_to(&bound.fold(NodeSet::new(), |union, (_, nodes)| union.or(nodes))));
    let numatune = Fragment::new("numatune").children(all).children(nodes);
    numatune.only("memory").only("memnode").drop_empty()
}

/// Returns the wanted state of `<numatune>` where no cell is named.
pub(super) fn numatune_of(nodes: &NodeSet) -> Fragment {
    Fragment::new("numatune").child(bound_to(nodes)).only("memory").only("memnode")
}

/// Returns the wanted `<memory>` of `<numatune>`.
fn bound_to(nodes: &NodeSet) -> Fragment {
    Fragment::new("memory")
        .attr("mode", "strict")
        .attr("nodeset", nodes)
        .want("placement", Want::Default("static".into()))
}

/// Returns the wanted state of `<cpu>`.
pub(super) fn cpu(
    model: CpuModel,
    topology: GuestTopology,
    topoext: bool,
    cells: &[GuestCell],
    initiators: Option<&Initiators>,
) -> Fragment {
    let topology = cpu_topology(topology);
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
        CpuModel::HostPassthrough { maxphysaddr: true, limit } => passed_bits(limit),
        _ => Fragment::gone("maxphysaddr"),
    });
    cpu.children(topoext.then(require_topoext)).child(numa(cells, initiators))
}

/// Returns the wanted state of `<maxphysaddr>` with the host's bits, or fewer where the IOMMU has
/// fewer.
pub(super) fn passed_bits(limit: Option<u8>) -> Fragment {
    let bits = Fragment::new("maxphysaddr").attr("mode", "passthrough");
    let bits = bits.want("bits", Want::Absent);
    match limit {
        Some(limit) => bits.attr("limit", limit),
        None => bits,
    }
}

/// Returns the wanted state of `<topology>`.
pub(super) fn cpu_topology(topology: GuestTopology) -> Fragment {
    let GuestTopology { sockets, dies, cores, threads } = topology;
    let one = || Want::Default("1".into());
    Fragment::new("topology")
        .attr("sockets", sockets)
        .want("dies", if dies == 1 { one() } else { Want::Set(dies.to_string()) })
        .want("clusters", one())
        .attr("cores", cores)
        .attr("threads", threads)
}

/// Requires the feature without which guests on AMD CPUs see no threads.
pub(super) fn require_topoext() -> Fragment {
    let name = |feature: Element<'_>| feature.attr("name").map(Into::into);
    let feature = Fragment::new("feature").key(name, "topoext");
    feature.attr("policy", "require").attr("name", "topoext")
}

/// Returns the wanted state of `<numa>`; removed without cells. The empty cells of GPUs' memory follow
/// those with vCPUs.
pub(super) fn numa(cells: &[GuestCell], initiators: Option<&Initiators>) -> Fragment {
    let id_of: KeyOf = |one| Some(one.attr("id")?.into());
    let cell = |id: usize, distances: Vec<(usize, u32)>| {
        let distances = distances.into_iter().map(|(other, distance)| {
            let sibling = Fragment::new("sibling").key(id_of, other);
            sibling.attr("id", other).attr("value", distance)
        });
        let distances = Fragment::new("distances").children(distances).only("sibling");
        (Fragment::new("cell").key(id_of, id).attr("id", id), distances.drop_empty())
    };
    let with_vcpus = cells.iter().enumerate().map(|(id, own)| {
        let distances = match initiators {
            Some(initiators) => initiators.distances_from(id).collect(),
            None => own.distances.iter().copied().enumerate().collect(),
        };
        let (element, distances) = cell(id, distances);
        let cpus: CpuSet = own.vcpus.clone().map(PcpuId).collect();
        let element = element.attr("cpus", cpus).attr("memory", own.memory_kib.kib());
        element.attr("unit", "KiB").child(distances)
    });
    let empty = initiators.into_iter().flat_map(|initiators| {
        let ids = initiators.gpus.iter().flat_map(|gpu| gpu.cells.clone());
        ids.map(|id| {
            let id = id as usize;
            let (element, distances) = cell(id, initiators.distances_from(id).collect());
            let element = element.want("cpus", Want::Absent).attr("memory", 0);
            element.attr("unit", "KiB").child(distances)
        })
    });
    Fragment::new("numa").children(with_vcpus).children(empty).only("cell").drop_empty()
}
