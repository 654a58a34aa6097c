//! One setting of a domain at a time, for `tune`: its wanted state, and nothing else of the
//! surrounding element.

mod disk;

pub use disk::DiskTuning;

use super::claims::IothreadSet;
use super::device::{hostdev_bdf, remembered_path};
use super::element::Element;
use super::fragment::{Fragment, Want};
use super::guest::{Bound, Guarded, Made, Reserved};
use super::iommufd::is_smmu;
use super::rate::Rate;
use super::{DomainXml, shape};
use crate::bdf::Bdf;
use crate::cpuset::CpuSet;
use crate::memsize::MemSize;
use crate::placement::{GuestCache, GuestCell, GuestTopology};
use crate::request::{MachineModel, PageSize, Request};
use crate::topology::KnownDevice;
use serde::Serialize;

/// The name of the channel between libvirt and the guest agent.
pub const AGENT: &str = "org.qemu.guest_agent.0";

/// The change of a value that a document may have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Put<T> {
    /// It stays as it is.
    #[default]
    Stays,
    /// It goes, so that libvirt's default holds.
    Gone,
    /// It is this.
    Is(T),
}

impl<T: ToString> Put<T> {
    /// Returns the wanted state of an attribute; `None` if unchanged.
    fn want(&self) -> Option<Want> {
        match self {
            Put::Stays => None,
            Put::Gone => Some(Want::Absent),
            Put::Is(value) => Some(Want::Set(value.to_string())),
        }
    }
}

/// How many physical address bits a guest sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum AddressBits {
    /// The host's.
    Passthrough {
        /// The most, where the IOMMU has fewer.
        limit: Option<u8>,
    },
    /// This many.
    Emulate(u8),
}

/// The wanted settings of a NIC.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NicTuning {
    /// Place among the document's interfaces, from 0.
    pub nth: usize,
    /// Its queues.
    pub queues: Put<u32>,
    /// Whether the host's kernel is named as the mover of its packets.
    pub vhost: bool,
    /// Inbound limit of the guest.
    pub inbound: Put<Rate>,
    /// Outbound limit of the guest.
    pub outbound: Put<Rate>,
    /// Its MTU.
    pub mtu: Put<u32>,
    /// Whether its model becomes virtio.
    pub on_virtio: bool,
}

/// One setting of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "setting", rename_all = "kebab-case")]
pub enum Setting {
    /// Pins of vCPUs, vCPU 0 first; an empty set is no pin, no set at all no pins.
    VcpuPins {
        /// The pins.
        pins: Vec<CpuSet>,
    },
    /// The pin of the emulator; empty: none.
    EmulatorPin {
        /// The pin.
        pin: CpuSet,
    },
    /// Pins of I/O threads, thread 1 first; an empty set is no pin.
    IothreadPins {
        /// The pins.
        pins: Vec<CpuSet>,
    },
    /// The number of I/O threads; 0: the element goes.
    Iothreads {
        /// The number.
        number: u32,
    },
    /// The I/O threads that schedulers are for.
    IothreadSchedulers {
        /// Each `<iothreadsched>` with a changed setting, by its place among them, from 0; with no
        /// thread it is removed.
        threads: Vec<(usize, IothreadSet)>,
    },
    /// The guest's packages, cores and threads; none for libvirt's one package for each vCPU.
    Topology {
        /// The topology that the guest sees.
        topology: Option<GuestTopology>,
        /// Whether to require `topoext`.
        topoext: bool,
    },
    /// Guest NUMA cells; none at all: no NUMA.
    Cells {
        /// The cells.
        cells: Vec<GuestCell>,
    },
    /// The memory of guest NUMA cells, one by one; their vCPUs and distances stay.
    CellMemory {
        /// The memory.
        memory: Vec<MemSize>,
    },
    /// Page size that backs the memory; none for normal pages.
    Pages {
        /// The size.
        pages: Option<PageSize>,
    },
    /// Memory is filled by so many threads before the guest starts.
    Fill {
        /// The number.
        threads: u32,
    },
    /// Memory is filled when it is used.
    NoFill,
    /// A disk that was made for the guest is listed in our metadata, if the guest has any.
    Made {
        /// The disk.
        disk: Made,
    },
    /// Disks.
    Disks {
        /// Each disk with a changed setting.
        disks: Vec<DiskTuning>,
    },
    /// NICs.
    Nics {
        /// Each NIC with a changed setting.
        nics: Vec<NicTuning>,
    },
    /// The channel of the guest's agent.
    Agent {
        /// Whether it is there.
        there: bool,
    },
    /// The machine type.
    Machine {
        /// Its name.
        machine: MachineModel,
    },
    /// The CPU is the host's.
    HostCpu,
    /// Whether the guest gets the hint that its vCPUs have their own pcpus (`hint-dedicated`: no
    /// paravirtual spin locks and TLB flushes), and that it may poll instead of the host when idle
    /// (`poll-control`).
    KvmHints {
        /// Whether.
        on: bool,
    },
    /// Where the guest's cache leaves come from; none for QEMU's default.
    CpuCache {
        /// The source.
        cache: Option<GuestCache>,
    },
    /// Whether the guest has CPU features that no migration keeps, of which the invariant TSC is
    /// one.
    Migratable {
        /// Whether; else libvirt's default holds, without them.
        is_off: bool,
    },
    /// Physical address bits; none for those of the CPU model.
    AddressBits {
        /// The bits.
        bits: Option<AddressBits>,
    },
    /// An IOMMU that remaps interrupts, so that they reach vCPUs whose APIC id has more than 8
    /// bits. `caching_mode`, since QEMU ends at the start of a guest with passed-through functions
    /// and an Intel IOMMU without (its `intel_iommu.c`, `vtd_machine_done_notify_one`). Without DMA
    /// translation, else a guest that uses it maps all memory of its GPUs.
    RemapInterrupts {
        /// Whether DMA translation is unspecified, in which case libvirt does not know it.
        translates_dma: bool,
    },
    /// Whether functions are passed through by iommufd: the domain says it, and none of these
    /// devices for itself.
    Iommufd {
        /// Whether.
        on: bool,
        /// Places of `<hostdev>` that say it for themselves.
        hostdevs: Vec<usize>,
        /// Places of `<interface>` that do.
        interfaces: Vec<usize>,
    },
    /// Memory in files, as huge pages are, is shared with whoever opens the file. QEMU 10.1 to
    /// 11.0.1 give devices by iommufd the file's pages, which are not the guest's where its memory
    /// is private.
    SharedMemory,
    /// An SMMUv3 that is nested in the host's, by iommufd, for each of these expander buses, and no
    /// other.
    Smmus {
        /// Indexes of the expander buses.
        buses: Vec<u8>,
    },
    /// A memory balloon of virtio; libvirt chooses its address.
    Balloon,
    /// The window for 64-bit BARs goes, so that QEMU's default holds.
    NoPciHole,
    /// Guest addresses of passed-through functions go, so that libvirt chooses them.
    Unseated {
        /// The functions.
        devices: Vec<Bdf>,
    },
    /// Passed-through functions go.
    Gone {
        /// The functions.
        devices: Vec<Bdf>,
    },
    /// The file that the first serial port is written to as well, emptied at each start; none if it
    /// goes.
    SerialLog {
        /// The file.
        path: Option<String>,
    },
    /// The huge pages that our metadata says were reserved, where there is any.
    Reserved {
        /// The pages.
        reserved: Vec<Reserved>,
    },
    /// The functions that our metadata says were bound, where there is any.
    Bound {
        /// The functions.
        bound: Vec<Bound>,
    },
    /// The identities of passed-through functions in our metadata, where there is any.
    Known {
        /// The functions.
        known: Vec<KnownDevice>,
    },
    /// The virtual functions that our metadata says were set up on their cards, where there is any.
    Guarded {
        /// The functions.
        guarded: Vec<Guarded>,
    },
    /// The request in our metadata, if there is any.
    Request {
        /// The wish.
        request: Box<Request>,
    },
}

/// The file that the serial console of a domain is written to, in the directory of the hypervisor's
/// logs.
pub fn serial_log_path(dir: &str, name: &str) -> String {
    format!("{dir}/{name}-serial.log")
}

/// Puts something of gpuvm's own into a domain's metadata, where that is there.
fn recorded(domain: Fragment, of_guest: Fragment) -> Fragment {
    let guest = Fragment::new("gpuvm:guest").if_there().child(of_guest);
    domain.child(Fragment::new("metadata").if_there().child(guest))
}

/// The passed functions of some addresses, each as a hostdev and as an interface.
fn passed(devices: &[Bdf], of: impl Fn(&'static str) -> Fragment) -> Fragment {
    let of = &of;
    let named = |name| devices.iter().map(move |bdf| of(name).key(hostdev_bdf, bdf));
    Fragment::new("devices")
        .if_there()
        .children(["hostdev", "interface"].into_iter().flat_map(named))
}

impl Setting {
    /// All functions of a domain are passed through by iommufd, or by their groups.
    pub fn iommufd(of: &DomainXml, on: bool) -> Setting {
        let [hostdevs, interfaces] =
            ["hostdev", "interface"].map(|name| of.devices_that_choose(name));
        Setting::Iommufd { on, hostdevs, interfaces }
    }

    /// Returns the wanted state of the domain.
    #[expect(clippy::too_many_lines, reason = "one arm for each variant")]
    pub(super) fn fragment(&self) -> Fragment {
        let domain = Fragment::new("domain");
        match self {
            Setting::VcpuPins { pins } => vcpu_pins(domain, pins),
            Setting::Machine { machine } => {
                let kind = Fragment::new("type").attr("machine", machine);
                domain.child(Fragment::new("os").child(kind))
            }
            Setting::EmulatorPin { pin } => {
                domain.child(tune("emulatorpin", shape::emulator_pin(pin)))
            }
            Setting::IothreadPins { pins } => {
                domain.child(tune("iothreadpin", shape::iothread_pins(pins)))
            }
            Setting::Iothreads { number: 0 } => {
                domain.child(Fragment::gone("iothreads")).child(Fragment::gone("iothreadids"))
            }
            Setting::Iothreads { number } => domain
                .child(Fragment::new("iothreads").text(number))
                .child(Fragment::gone("iothreadids")),
            Setting::IothreadSchedulers { threads } => {
                let schedulers = threads.iter().map(|(nth, threads)| {
                    if threads.is_empty() {
                        Fragment::gone("iothreadsched").nth(*nth)
                    } else {
                        let scheduler = Fragment::new("iothreadsched").nth(*nth).if_there();
                        scheduler.attr("iothreads", threads)
                    }
                });
                domain.child(Fragment::new("cputune").children(schedulers).drop_empty())
            }
            Setting::Pages { pages } => domain.child(backing(shape::hugepages(*pages))),
            Setting::Fill { threads } => domain.child(backing(shape::allocation(*threads))),
            Setting::NoFill => domain.child(backing(Fragment::gone("allocation"))),
            Setting::Made { disk } => {
                let disk = shape::made(disk).key(remembered_path, &disk.path);
                recorded(domain, Fragment::new("gpuvm:made").if_there().child(disk))
            }
            Setting::Disks { disks } => {
                let disks = disks.iter().map(DiskTuning::fragment);
                domain.child(Fragment::new("devices").if_there().children(disks))
            }
            Setting::Nics { nics } => {
                let nics = nics.iter().map(NicTuning::fragment);
                domain.child(Fragment::new("devices").if_there().children(nics))
            }
            Setting::Agent { there } => domain.child(agent(*there)),
            Setting::KvmHints { on } => domain.child(kvm_hints(*on)),
            Setting::RemapInterrupts { translates_dma } => remapping(domain, *translates_dma),
            Setting::Iommufd { on, hostdevs, interfaces } => {
                iommufd(domain, *on, [("hostdev", hostdevs), ("interface", interfaces)])
            }
            Setting::SharedMemory => {
                domain.child(backing(Fragment::new("access").attr("mode", "shared")))
            }
            Setting::Smmus { buses } => domain.child(smmus(buses)),
            Setting::Balloon => {
                let balloon = Fragment::new("memballoon").attr("model", "virtio");
                domain.child(Fragment::new("devices").child(balloon))
            }
            Setting::NoPciHole => {
                let root = super::pci::Controller::root().if_there();
                let root = root.child(Fragment::gone("pcihole64"));
                domain.child(Fragment::new("devices").if_there().child(root))
            }
            Setting::Unseated { devices } => {
                let seat = |name| Fragment::new(name).if_there().child(Fragment::gone("address"));
                domain.child(passed(devices, seat))
            }
            Setting::Gone { devices } => domain.child(passed(devices, Fragment::gone)),
            Setting::SerialLog { path } => {
                let log = match path {
                    Some(path) => Fragment::new("log").attr("file", path).attr("append", "off"),
                    None => Fragment::gone("log"),
                };
                let serial = Fragment::new("serial").nth(0).if_there().child(log);
                domain.child(Fragment::new("devices").if_there().child(serial))
            }
            Setting::Reserved { reserved } => recorded(domain, shape::reserved(reserved)),
            Setting::Guarded { guarded } => recorded(domain, shape::guarded(guarded)),
            Setting::Bound { bound } => recorded(domain, shape::bound(bound)),
            Setting::Known { known } => recorded(domain, shape::known(known)),
            Setting::Request { request } => recorded(domain, shape::request(request)),
            _ => domain.child(self.cpu(Fragment::new("cpu"))),
        }
    }

    /// Returns the wanted state of `<cpu>`.
    fn cpu(&self, cpu: Fragment) -> Fragment {
        match self {
            Setting::Topology { topology: None, .. } => {
                cpu.child(Fragment::gone("topology")).drop_empty()
            }
            Setting::Topology { topology: Some(topology), topoext } => cpu
                .child(shape::cpu_topology(*topology))
                .children(topoext.then(shape::require_topoext)),
            Setting::Cells { cells } if cells.is_empty() => {
                cpu.child(shape::numa(cells, None)).drop_empty()
            }
            Setting::Cells { cells } => cpu.child(shape::numa(cells, None)),
            Setting::CellMemory { memory } => {
                let cell = |(nth, memory): (usize, &MemSize)| {
                    let cell = Fragment::new("cell").nth(nth).if_there();
                    cell.attr("memory", memory.kib()).attr("unit", "KiB")
                };
                let cells = memory.iter().enumerate().map(cell);
                cpu.if_there().child(Fragment::new("numa").if_there().children(cells))
            }
            Setting::HostCpu => cpu
                .attr("mode", "host-passthrough")
                .want("check", Want::Default("none".into()))
                .want("match", Want::Absent)
                .only("model")
                .only("vendor"),
            Setting::CpuCache { cache: None } => cpu.child(Fragment::gone("cache")).drop_empty(),
            Setting::CpuCache { cache: Some(cache) } => {
                let level = match cache {
                    GuestCache::Passthrough => Want::Absent,
                    GuestCache::Emulate => Want::Set("3".into()),
                };
                let cache =
                    Fragment::new("cache").want("level", level).attr("mode", cache.as_str());
                cpu.child(cache)
            }
            Setting::Migratable { is_off: true } => cpu.attr("migratable", "off"),
            Setting::Migratable { is_off: false } => {
                cpu.want("migratable", Want::Absent).drop_empty()
            }
            Setting::AddressBits { bits } => match bits {
                None => cpu.child(Fragment::gone("maxphysaddr")).drop_empty(),
                Some(AddressBits::Passthrough { limit }) => cpu.child(shape::passed_bits(*limit)),
                Some(AddressBits::Emulate(bits)) => {
                    let bits =
                        Fragment::new("maxphysaddr").attr("mode", "emulate").attr("bits", bits);
                    cpu.child(bits.want("limit", Want::Absent))
                }
            },
            _ => cpu,
        }
    }
}

/// Wants a domain with these vCPU pins. A common pin of all threads makes no sense beside them and
/// is removed.
fn vcpu_pins(domain: Fragment, pins: &[CpuSet]) -> Fragment {
    let domain = domain.child(tune("vcpupin", shape::vcpu_pins(pins)));
    if pins.iter().all(CpuSet::is_empty) {
        return domain;
    }
    let vcpu = Fragment::new("vcpu").if_there().want("cpuset", Want::Absent);
    domain.child(vcpu.want("placement", Want::Default("static".into())))
}

/// Returns the wanted state of `<cputune>` for pins of this name.
fn tune(name: &'static str, pins: Vec<Fragment>) -> Fragment {
    Fragment::new("cputune").children(pins).only(name).drop_empty()
}

/// Returns the wanted state of `<features>` for KVM's hints to its guests.
fn kvm_hints(on: bool) -> Fragment {
    let names = ["hint-dedicated", "poll-control"].into_iter();
    let kvm = Fragment::new("kvm");
    let features = Fragment::new("features");
    if !on {
        let kvm = kvm.if_there().children(names.map(Fragment::gone)).drop_empty();
        return features.if_there().child(kvm);
    }
    features.child(kvm.children(names.map(|name| Fragment::new(name).attr("state", "on"))))
}

/// Wants a domain whose functions are passed through in one way, and no device that says it for
/// itself.
fn iommufd(domain: Fragment, on: bool, devices: [(&'static str, &Vec<usize>); 2]) -> Fragment {
    let way = Fragment::new("iommufd").attr("enabled", "yes");
    let way = if on { way } else { Fragment::gone("iommufd") };
    let devices = devices.into_iter().flat_map(|(name, places)| {
        places.iter().map(move |nth| Fragment::new(name).nth(*nth).if_there())
    });
    let driver = || Fragment::new("driver").if_there().want("iommufd", Want::Absent).drop_empty();
    let devices = devices.map(|device| device.child(driver()));
    domain.child(way).child(Fragment::new("devices").if_there().children(devices))
}

/// Wants an SMMUv3 for each of these expander buses: what QEMU's nested one needs of `ats`, `ril` and
/// `oas` for Grace (KubeVirt's enhancement 199). Without a bus libvirt drops all of it.
fn smmus(buses: &[u8]) -> Fragment {
    let bus = |iommu: Element<'_>| Some(iommu.child("driver")?.attr("pciBus")?.into());
    let smmus = buses.iter().map(|index| {
        let driver = Fragment::new("driver").attr("pciBus", index).attr("accel", "on");
        let driver = driver.attr("ats", "on").attr("ril", "off").attr("ssidsize", 20);
        let iommu = Fragment::new("iommu").key(bus, index).attr("model", "smmuv3");
        iommu.child(driver.attr("oas", 48))
    });
    Fragment::new("devices").children(smmus).only_where("iommu", is_smmu)
}

/// The I/O APIC in QEMU, which libvirt wants beside an IOMMU that remaps interrupts.
fn ioapic() -> Fragment {
    Fragment::new("ioapic").attr("driver", "qemu")
}

fn iommu(translates_dma: bool) -> Fragment {
    let driver = ["intremap", "caching_mode", "eim"].into_iter();
    let driver = driver.fold(Fragment::new("driver"), |driver, name| driver.attr(name, "on"));
    let driver = if translates_dma { driver } else { driver.attr("dma_translation", "off") };
    Fragment::new("iommu").attr("model", "intel").child(driver)
}

/// A domain whose IOMMU remaps interrupts.
fn remapping(domain: Fragment, translates_dma: bool) -> Fragment {
    domain
        .child(Fragment::new("features").child(ioapic()))
        .child(Fragment::new("devices").child(iommu(translates_dma)))
}

/// The elements that remap interrupts, as text: the one in `<devices>` and the one in `<features>`.
pub fn remapping_elements(translates_dma: bool) -> [String; 2] {
    [iommu(translates_dma), ioapic()].map(|element| {
        let mut text = String::new();
        element.write(&mut text, None);
        text
    })
}

/// Returns the wanted state of `<memoryBacking>` for one of its elements.
fn backing(part: Fragment) -> Fragment {
    Fragment::new("memoryBacking").child(part).drop_empty()
}

/// Returns the wanted state of the guest agent's channel.
fn agent(there: bool) -> Fragment {
    let name = |channel: Element<'_>| Some(channel.child("target")?.attr("name")?.into());
    let devices = Fragment::new("devices");
    if !there {
        return devices.if_there().child(Fragment::gone("channel").key(name, AGENT));
    }
    let target = Fragment::new("target").attr("type", "virtio").attr("name", AGENT);
    devices.child(Fragment::new("channel").key(name, AGENT).attr("type", "unix").child(target))
}

impl NicTuning {
    /// Returns the wanted state of its element.
    fn fragment(&self) -> Fragment {
        let mut nic = Fragment::new("interface").nth(self.nth).if_there();
        if self.on_virtio {
            nic = nic.child(Fragment::new("model").attr("type", "virtio"));
        }
        let driver = Fragment::new("driver");
        nic = match self.queues {
            Put::Stays => nic,
            Put::Is(queues) if queues > 1 || self.vhost => {
                let driver = if self.vhost { driver.attr("name", "vhost") } else { driver };
                nic.child(shape::with_queues(driver, queues))
            }
            _ => nic.child(shape::with_queues(driver, 1).if_there()),
        };
        let rates: Vec<Fragment> = [("inbound", &self.inbound), ("outbound", &self.outbound)]
            .into_iter()
            .filter_map(|(name, rate)| match rate {
                Put::Stays => None,
                Put::Gone => Some(Fragment::gone(name)),
                Put::Is(rate) => Some(rate.fragment(name)),
            })
            .collect();
        if !rates.is_empty() {
            nic = nic.child(Fragment::new("bandwidth").children(rates).drop_empty());
        }
        match self.mtu {
            Put::Stays => nic,
            Put::Gone => nic.child(Fragment::gone("mtu")),
            Put::Is(mtu) => nic.child(Fragment::new("mtu").attr("size", mtu)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_written_where_there_are_several_or_the_kernel_is_named() {
        let text = "<domain><devices><interface type='network'/></devices></domain>";
        for (queues, vhost, wanted) in [
            (4, false, "<driver queues=\"4\"/>"),
            (4, true, "<driver name=\"vhost\" queues=\"4\"/>"),
            (1, true, "<driver name=\"vhost\"/>"),
            (1, false, ""),
        ] {
            let nic = NicTuning { queues: Put::Is(queues), vhost, ..NicTuning::default() };
            let mut xml = DomainXml::parse(text).unwrap();
            let setting = Setting::Nics { nics: vec![nic] };
            xml.apply(&crate::domain::DomainEdit::Set { setting }).unwrap();
            let text = xml.text().replace('\'', "\"");
            assert!(text.contains(wanted), "{queues} {vhost}: {text}");
            assert_eq!(text.contains("<driver"), !wanted.is_empty(), "{text}");
        }
    }
}
