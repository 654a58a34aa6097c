//! One example of each setting: the change by `tune`, and the lines removed and added.

use crate::cpuset::CpuSet;
use crate::domain::edit::DomainEdit;
use crate::domain::guest::{Made, Role};
use crate::domain::placed::IoThread;
use crate::domain::rate::Rate;
use crate::domain::setting::{AddressBits, DiskTuning, NicTuning, Put, Setting};
use crate::memsize::MemSize;
use crate::placement::{GuestCache, GuestCell, GuestTopology};
use crate::request::{PageSize, Request};

/// How many kinds of settings there are.
pub const VARIANTS: usize = 35;

/// A number for each variant; without a catch-all arm, so that a new one needs an example.
pub fn variant(setting: &Setting) -> usize {
    match setting {
        Setting::VcpuPins { .. } => 0,
        Setting::EmulatorPin { .. } => 1,
        Setting::IothreadPins { .. } => 2,
        Setting::Iothreads { .. } => 3,
        Setting::Topology { .. } => 4,
        Setting::Cells { .. } => 5,
        Setting::Pages { .. } => 6,
        Setting::Fill { .. } => 7,
        Setting::NoFill => 8,
        Setting::Disks { .. } => 9,
        Setting::Nics { .. } => 10,
        Setting::Agent { .. } => 11,
        Setting::HostCpu => 12,
        Setting::AddressBits { .. } => 13,
        Setting::Balloon => 14,
        Setting::NoPciHole => 15,
        Setting::Unseated { .. } => 16,
        Setting::IothreadSchedulers { .. } => 17,
        Setting::Made { .. } => 18,
        Setting::Request { .. } => 19,
        Setting::KvmHints { .. } => 20,
        Setting::CpuCache { .. } => 21,
        Setting::Migratable { .. } => 22,
        Setting::RemapInterrupts { .. } => 23,
        Setting::SerialLog { .. } => 24,
        Setting::Reserved { .. } => 25,
        Setting::Bound { .. } => 26,
        Setting::Gone { .. } => 27,
        Setting::Guarded { .. } => 28,
        Setting::Known { .. } => 29,
        Setting::Machine { .. } => 30,
        Setting::Iommufd { .. } => 31,
        Setting::SharedMemory => 32,
        Setting::Smmus { .. } => 33,
        Setting::CellMemory { .. } => 34,
    }
}

/// Settings, and the MMIO window set for UEFI, with the effect of each on the document of the other
/// examples.
pub fn examples() -> Vec<(DomainEdit, &'static str)> {
    let settings = cpu_examples().into_iter().chain(device_examples());
    let metadata = (
        DomainEdit::SetFirmwareWindow { mib: 4096 },
        r#"
+    <qemu:arg value='-fw_cfg'/>
+    <qemu:arg value='name=opt/ovmf/X-PciMmio64Mb,string=4096'/>"#,
    );
    settings
        .map(|(setting, lines)| (DomainEdit::Set { setting }, lines))
        .chain([metadata])
        .collect()
}

fn cpu_examples() -> Vec<(Setting, &'static str)> {
    let set = |text: &str| -> CpuSet { text.parse().unwrap() };
    let topology = GuestTopology { sockets: 1, dies: 1, cores: 2, threads: 2 };
    let cell = GuestCell {
        vcpus: 0..4,
        memory_kib: MemSize::from_gib(2),
        host_nodes: "0".parse().unwrap(),
        distances: vec![],
    };
    vec![
        (
            Setting::VcpuPins { pins: vec![set("3"), set("9")] },
            r#"
-  <vcpu  current='1' cpuset="0-3" >4</vcpu>
+  <vcpu  current='1' >4</vcpu>
-    <vcpupin vcpu="7" cpuset="8"/>
+    <vcpupin vcpu='0' cpuset='3'/>"#,
        ),
        (
            Setting::VcpuPins { pins: vec![] },
            r#"
-    <vcpupin  cpuset="9"   vcpu="1" />
-    <vcpupin vcpu="7" cpuset="8"/>"#,
        ),
        (
            Setting::EmulatorPin { pin: set("5,53") },
            r#"
+    <emulatorpin cpuset='5,53'/>"#,
        ),
        (Setting::EmulatorPin { pin: set("") }, ""),
        (
            Setting::IothreadPins { pins: vec![set("5")] },
            r#"
+    <iothreadpin iothread='1' cpuset='5'/>"#,
        ),
        (
            Setting::Machine { machine: "pc-q35-9.2".parse().unwrap() },
            r#"
-    <type arch="x86_64" machine='q35'>hvm</type>
+    <type arch="x86_64" machine='pc-q35-9.2'>hvm</type>"#,
        ),
        (
            Setting::Iommufd { on: true, hostdevs: vec![], interfaces: vec![] },
            r#"
+  <iommufd enabled='yes'/>"#,
        ),
        (Setting::Iommufd { on: false, hostdevs: vec![0], interfaces: vec![9] }, ""),
        (
            Setting::SharedMemory,
            r#"
+  <memoryBacking>
+    <access mode='shared'/>
+  </memoryBacking>"#,
        ),
        (
            Setting::Iothreads { number: 2 },
            r#"
+  <iothreads>2</iothreads>"#,
        ),
        (Setting::Iothreads { number: 0 }, ""),
        (
            Setting::IothreadSchedulers {
                threads: vec![(0, "1".parse().unwrap()), (1, "".parse().unwrap())],
            },
            r#"
-    <iothreadsched iothreads="1-2" scheduler="batch"/>
-    <iothreadsched iothreads="2" scheduler="idle"/>
+    <iothreadsched iothreads="1" scheduler="batch"/>"#,
        ),
        (
            Setting::Topology { topology: Some(topology), topoext: true },
            r#"
+    <topology sockets='1' cores='2' threads='2'/>
+    <feature policy='require' name='topoext'/>"#,
        ),
        (Setting::Topology { topology: None, topoext: false }, ""),
        (
            Setting::Cells { cells: vec![cell] },
            r#"
+    <numa>
+      <cell id='0' cpus='0-3' memory='2097152' unit='KiB'/>
+    </numa>"#,
        ),
        // The guest has none.
        (Setting::CellMemory { memory: vec![MemSize::from_gib(1)] }, ""),
        (
            Setting::Pages { pages: Some(PageSize::TwoMib) },
            r#"
+  <memoryBacking>
+    <hugepages>
+      <page size='2048' unit='KiB'/>
+    </hugepages>
+  </memoryBacking>"#,
        ),
        (Setting::Pages { pages: None }, ""),
        (
            Setting::Fill { threads: 4 },
            r#"
+  <memoryBacking>
+    <allocation mode='immediate' threads='4'/>
+  </memoryBacking>"#,
        ),
        (Setting::NoFill, ""),
        (
            Setting::HostCpu,
            r#"
-  <cpu mode="custom" match='exact'>
-    <model>Nehalem</model>
+  <cpu mode="host-passthrough">"#,
        ),
        (
            Setting::KvmHints { on: true },
            r"
+  <features>
+    <kvm>
+      <hint-dedicated state='on'/>
+      <poll-control state='on'/>
+    </kvm>
+  </features>",
        ),
        (Setting::KvmHints { on: false }, ""),
        (
            Setting::CpuCache { cache: Some(GuestCache::Passthrough) },
            r"
+    <cache mode='passthrough'/>",
        ),
        (
            Setting::CpuCache { cache: Some(GuestCache::Emulate) },
            r"
+    <cache level='3' mode='emulate'/>",
        ),
        (Setting::CpuCache { cache: None }, ""),
        (
            Setting::Migratable { is_off: true },
            r#"
-  <cpu mode="custom" match='exact'>
+  <cpu mode="custom" match='exact' migratable='off'>"#,
        ),
        (Setting::Migratable { is_off: false }, ""),
        (
            Setting::AddressBits { bits: Some(AddressBits::Passthrough { limit: None }) },
            r#"
+    <maxphysaddr mode='passthrough'/>"#,
        ),
        (
            Setting::AddressBits { bits: Some(AddressBits::Emulate(42)) },
            r#"
+    <maxphysaddr mode='emulate' bits='42'/>"#,
        ),
    ]
}

fn device_examples() -> Vec<(Setting, &'static str)> {
    let disk = DiskTuning {
        nth: 0,
        format: Put::Is("raw".into()),
        file: Put::Is("/b.raw".into()),
        cache: Put::Is("none".into()),
        io: Put::Gone,
        queues: Put::Is(4),
        iothreads: Put::Is(vec![IoThread { id: 1, queues: 0..4 }]),
        on_virtio: None,
    };
    let rate = Rate { average_kb_s: 1000, peak_kb_s: Some(2000), burst_kib: None };
    let nic = NicTuning {
        nth: 0,
        queues: Put::Is(4),
        vhost: true,
        inbound: Put::Is(rate),
        outbound: Put::Gone,
        mtu: Put::Is(9000),
        on_virtio: false,
    };
    let made = Made { role: Role::Data, path: "/b.raw".into(), volume: None };
    let plain = NicTuning { queues: Put::Gone, ..NicTuning::default() };
    vec![
        (
            Setting::Disks { disks: vec![disk] },
            r#"
-    <disk type='file' device="disk"><source file='/a.raw'/><target dev='vdb' bus="virtio"/></disk>
+    <disk type='file' device="disk"><driver name='qemu' type='raw' cache='none' queues='4' iothread='1'/><source file='/b.raw'/><target dev='vdb' bus="virtio"/></disk>"#,
        ),
        (
            Setting::Disks {
                disks: vec![DiskTuning { queues: Put::Gone, ..DiskTuning::default() }],
            },
            "",
        ),
        (
            Setting::Nics { nics: vec![nic] },
            r#"
-      <driver iommu='on' queues='9'/>
+      <bandwidth>
+        <inbound average='1000' peak='2000'/>
+      </bandwidth>
+      <driver iommu='on' queues='4' name='vhost'/>
+      <mtu size='9000'/>"#,
        ),
        (
            Setting::Nics { nics: vec![plain] },
            r#"
-      <driver iommu='on' queues='9'/>
+      <driver iommu='on'/>"#,
        ),
        (
            Setting::Agent { there: true },
            r#"
+    <channel type='unix'>
+      <target type='virtio' name='org.qemu.guest_agent.0'/>
+    </channel>"#,
        ),
        (Setting::Agent { there: false }, ""),
        // The guest was not made by us.
        (Setting::Made { disk: made }, ""),
        (Setting::Balloon, ""),
        (
            Setting::RemapInterrupts { translates_dma: false },
            r"
+  <features>
+    <ioapic driver='qemu'/>
+  </features>
+    <iommu model='intel'>
+      <driver intremap='on' caching_mode='on' eim='on' dma_translation='off'/>
+    </iommu>",
        ),
        (
            Setting::Smmus { buses: vec![1, 3] },
            r"
+    <iommu model='smmuv3'>
+      <driver pciBus='1' accel='on' ats='on' ril='off' ssidsize='20' oas='48'/>
+    </iommu>
+    <iommu model='smmuv3'>
+      <driver pciBus='3' accel='on' ats='on' ril='off' ssidsize='20' oas='48'/>
+    </iommu>",
        ),
        (Setting::NoPciHole, ""),
        (Setting::SerialLog { path: Some("/l/a-serial.log".into()) }, ""),
        (Setting::Unseated { devices: vec!["01:00.0".parse().unwrap()] }, ""),
        // Guests made by others get no record.
        (Setting::Reserved { reserved: Vec::new() }, ""),
        (Setting::Bound { bound: Vec::new() }, ""),
        (Setting::Guarded { guarded: Vec::new() }, ""),
        (Setting::Known { known: Vec::new() }, ""),
        (
            Setting::Gone { devices: vec!["02:00.0".parse().unwrap()] },
            r#"
-    <hostdev mode='subsystem' type='pci'>
-      <source><address domain='0' bus='0x2' slot='0' function='0'/></source>
-    </hostdev>"#,
        ),
        (Setting::Request { request: Box::new(Request::for_gpus(1)) }, ""),
    ]
}
