//! Building blocks of defects: the host and the other domains that a domain is checked against, and
//! changes to them.

use gpuvm_core::cpuset::{CpuSet, NodeId, PcpuId};
use gpuvm_core::fabric::Unready;
use gpuvm_core::p2p::Acs;
use gpuvm_core::placement::{Held, Occupancy};
use gpuvm_core::topology::{Bar, FabricModel, Isolation, Parts, PciDevice};
use gpuvm_core::versions::Versions;

/// The host and the other domains that a case is checked against.
pub struct Setting {
    /// The recorded DGX-2, changed.
    pub host: Parts,
    /// Other domains.
    pub others: Occupancy,
    /// Versions the guest runs on.
    pub versions: Versions,
}

/// The element before which more devices are inserted.
pub const BALLOON: &str = "<memballoon model='none'/>";
/// Pages of 1 GiB.
pub const GIB_PAGES: (&str, &str) = (
    "<os>",
    "<memoryBacking><hugepages><page size='1' unit='GiB'/></hugepages></memoryBacking><os>",
);
/// A second interface that is a NIC of the host.
pub const NIC_35: (&str, &str) = (
    BALLOON,
    "<interface type='hostdev' managed='yes'><source><address type='pci' bus='0x35' slot='0' \
     function='0'/></source></interface><memballoon model='none'/>",
);

/// A second interface with the MAC address of the first.
pub const TWIN_NIC: (&str, &str) = (
    BALLOON,
    "<interface type='network'><mac address='52:54:00:AA:bb:cc'/><source \
     network='other'/></interface>\
     <memballoon model='none'/>",
);

/// A switch port of the host.
pub const BRIDGE_33: (&str, &str) = (
    BALLOON,
    "<hostdev mode='subsystem' type='pci' managed='no'><source><address bus='0x33' slot='0' \
     function='0'/></source></hostdev><memballoon model='none'/>",
);
/// A NIC of node 1.
pub const NIC_B8: (&str, &str) = (
    BALLOON,
    "<hostdev mode='subsystem' type='pci' managed='no'><source><address bus='0xb8' slot='0' \
     function='0'/></source></hostdev><memballoon model='none'/>",
);
/// The Intel graphics of the processor, at another place of the guest.
pub const INTEL_GRAPHICS: (&str, &str) = (
    BALLOON,
    "<hostdev mode='subsystem' type='pci' managed='yes'><source><address bus='0' slot='2' \
     function='0'/></source><address type='pci' domain='0' bus='0' slot='0x1d' function='0'/>\
     </hostdev><memballoon model='none'/>",
);

/// Gives the host the graphics of an Intel processor.
pub fn intel_graphics(setting: &mut Setting) {
    let devices = &mut setting.host.devices;
    let mut own = devices.iter().find(|device| device.bdf.bus() == 0x34).unwrap().clone();
    (own.bdf, own.class) = ("0000:00:02.0".parse().unwrap(), 0x03_0000);
    (own.vendor, own.device, own.parent) = (0x8086, 0x4680, None);
    own.iommu_group = Some(9999);
    devices.push(own);
    devices.sort_by_key(|device| device.bdf);
}

/// A second NVSwitch.
pub const SWITCH_62: (&str, &str) = (
    BALLOON,
    "<hostdev mode='subsystem' type='pci' managed='no'><source><address bus='0x62' slot='0' \
     function='0'/></source></hostdev><memballoon model='none'/>",
);

/// A clique for the first GPU.
pub const CLIQUE: (&str, &str) = (
    "</devices>",
    "</devices><q:override xmlns:q='http://libvirt.org/schemas/domain/qemu/1.0'><q:device \
     alias='ua-gpu0'>\
     <q:frontend><q:property name='x-nv-gpudirect-clique' type='unsigned' \
     value='0'/></q:frontend></q:device>\
     </q:override>",
);

/// Reads a set.
pub fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// Adds another domain.
pub fn other(setting: &mut Setting, change: fn(&mut Held)) {
    let mut held = Held { domain: "train-b".into(), autostart: true, ..Held::default() };
    change(&mut held);
    setting.others.domains.push(held);
}

/// Puts the NVSwitches behind a bridge.
pub fn without_bridge(setting: &mut Setting) {
    setting.host.fabric.partitions.iter_mut().for_each(|one| one.nvswitches = 0);
    setting.host.fabric.bridge = vec!["0000:b8:00.0".parse().unwrap()];
}

/// Has a Fabric Manager control the NVSwitches that does not answer.
pub fn without_manager(setting: &mut Setting) {
    setting.host.fabric.model = FabricModel::SharedNvswitch;
    let unready = Unready { why: "it is off".into(), hint: "start it".into() };
    setting.others.readiness.unready = Some(unready);
}

/// Switches a pcpu off.
pub fn offline(setting: &mut Setting, pcpu: u32) {
    let host = &mut setting.host;
    host.offline.insert(PcpuId(pcpu));
    host.nodes.iter_mut().for_each(|node| node.pcpus.remove(PcpuId(pcpu)));
    host.cores.iter_mut().for_each(|core| core.pcpus.remove(PcpuId(pcpu)));
    host.l3.iter_mut().for_each(|cache| cache.pcpus.remove(PcpuId(pcpu)));
}

/// The host's NIC that [`NIC_35`] passes.
pub fn nic_35(setting: &mut Setting) -> &mut PciDevice {
    let mut devices = setting.host.devices.iter_mut();
    devices.find(|device| device.bdf.to_string() == "0000:35:00.0").unwrap()
}

/// Confines guests to all pcpus but one.
pub fn confine(setting: &mut Setting, pcpu: u32) {
    let cores = setting.host.cores.iter().flat_map(|core| core.pcpus.iter());
    setting.host.machine_slice = Some(cores.filter(|other| *other != PcpuId(pcpu)).collect());
}

/// Changes how the host's record describes isolation.
pub fn isolation(setting: &mut Setting, change: fn(&mut Isolation)) {
    for (device, group) in setting.host.devices.iter_mut().zip(1000..) {
        device.iommu_group.get_or_insert(group);
    }
    change(setting.host.machine.isolation.insert(Isolation::default()));
}

/// Gives every pool of node 0 free pages.
pub fn pages(setting: &mut Setting, free: u64) {
    let node = setting.host.nodes.iter_mut().find(|node| node.os_index == NodeId(0)).unwrap();
    node.huge_pages.iter_mut().for_each(|pool| pool.free = free);
}

/// Clears ACS control of every bridge.
pub fn open_ports(setting: &mut Setting) {
    let bridges = setting.host.devices.iter_mut().filter(|device| device.class == 0x06_0400);
    bridges.for_each(|bridge| bridge.acs = Some(Acs { cap: 0x5f, ctl: 0 }));
}

/// Gives the GPUs the BARs of a V100 of 32 GB.
pub fn large_bars(setting: &mut Setting) {
    bars_on(setting, 32, |_| {});
}

/// Gives each GPU a BAR of `gib` GiB and applies another change.
pub fn bars_on(setting: &mut Setting, gib: u64, change: fn(&mut Setting)) {
    change(setting);
    let gpus = setting.host.devices.iter_mut().filter(|device| device.class == 0x03_0200);
    let bytes = gib << 30;
    gpus.for_each(|gpu| {
        gpu.bars = vec![Bar { is_64bit: true, prefetchable: true, ..Bar::new(1, bytes) }];
    });
}
