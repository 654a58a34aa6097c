//! One example of each edit: its input, and the lines removed and added.

use super::super::edit::NvramPath;
use super::guests::made;
use crate::cpuset::{CpuSet, NodeSet};
use crate::domain::Override;
use crate::domain::edit::DomainEdit;
use crate::domain::guest::{CpuModel, Disk, DiskFormat, DiskKind, Record, VirtType};
use crate::domain::pci::{Controller, PciAddress};
use crate::domain::placed::{DevicePlace, DiskSeat, HostdevSeat, IoThread, NicSeat};
use crate::memsize::MemSize;
use crate::placement::{GuestCell, GuestTopology};
use crate::request::{PageSize, Request};
use crate::topology::PartitionId;

/// A document that a person wrote: mixed quotes, odd spaces, comments, unknown elements.
pub const HAND: &str = include_str!("hand.xml");

fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn nodes(text: &str) -> NodeSet {
    text.parse().unwrap()
}

pub fn at(bus: u8) -> PciAddress {
    PciAddress::behind(bus)
}

pub fn disk(path: &str) -> Disk {
    Disk::new(path, DiskFormat::Qcow2, DiskKind::File)
}

/// A number for each variant. Without a catch-all arm, so that a new variant does not compile
/// before it has a number here and an example below.
pub fn variant(edit: &DomainEdit) -> usize {
    match edit {
        DomainEdit::SetType { .. } => 0,
        DomainEdit::SetName { .. } => 1,
        DomainEdit::SetMetadata { .. } => 2,
        DomainEdit::SetMemory { .. } => 3,
        DomainEdit::SetMemoryBacking { .. } => 4,
        DomainEdit::SetVcpus { .. } => 5,
        DomainEdit::SetIothreads { .. } => 6,
        DomainEdit::SetCputune { .. } => 7,
        DomainEdit::SetNumatune { .. } => 8,
        DomainEdit::SetCpu { .. } => 9,
        DomainEdit::SetAddresses { .. } => 10,
        DomainEdit::SetControllers { .. } => 11,
        DomainEdit::SetPciHole { .. } => 12,
        DomainEdit::SetDisks { .. } => 13,
        DomainEdit::SetInterfaces { .. } => 14,
        DomainEdit::SetHostdevs { .. } => 15,
        DomainEdit::SetBalloon { .. } => 16,
        DomainEdit::SetOverrides { .. } => 17,
        DomainEdit::DropDisk { .. } => 18,
        DomainEdit::SetFirmwareWindow { .. } => 19,
        DomainEdit::SetUuid { .. } => 20,
        DomainEdit::Rename { .. } => 21,
        DomainEdit::SetPlugged { .. } => 22,
        DomainEdit::AddMdev { .. } => 23,
        DomainEdit::DropMdev { .. } => 24,
        DomainEdit::SetMemoryNodes { .. } => 25,
        DomainEdit::Set { setting } => 26 + super::settings::variant(setting),
    }
}

/// Edits with the effect of each on [`HAND`].
pub fn examples() -> Vec<(DomainEdit, &'static str)> {
    let mut examples = domain_examples();
    examples.extend(cpu_examples());
    examples.extend(device_examples());
    examples.extend(super::functions::examples());
    examples.extend(super::settings::examples());
    examples
}

fn domain_examples() -> Vec<(DomainEdit, &'static str)> {
    let record = Record {
        request: Request::for_gpus(1),
        made: vec![made("/a 'b'.raw")],
        bound: Vec::new(),
        reserved: Vec::new(),
        guarded: Vec::new(),
        vgpus: Vec::new(),
        nccl: None,
        known: Vec::new(),
        user: None,
        assumed: None,
    };
    vec![
        (
            DomainEdit::SetType { virt: VirtType::Kvm },
            r#"
-<domain type = "qemu" xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
+<domain type = "kvm" xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>"#,
        ),
        (DomainEdit::SetType { virt: VirtType::Qemu }, ""),
        (
            DomainEdit::SetName { name: "new".into() },
            r"
-  <name>old</name>  <!-- its name -->
-  <uuid>11111111-2222-3333-4444-555555555555</uuid>
+  <name>new</name>  <!-- its name -->
-    <nvram>/old_VARS.fd</nvram>",
        ),
        (
            DomainEdit::Rename {
                name: "new".into(),
                nvram: Some(NvramPath { path: "/new_VARS.fd".into(), is_source: false }),
                serial_log: Some(("/l/old-serial.log".into(), "/l/new-serial.log".into())),
            },
            r"
-  <name>old</name>  <!-- its name -->
+  <name>new</name>  <!-- its name -->
-    <nvram>/old_VARS.fd</nvram>
+    <nvram>/new_VARS.fd</nvram>",
        ),
        (
            DomainEdit::SetUuid { uuid: "11111111-2222-4333-8444-666666666666".into() },
            r"
-  <uuid>11111111-2222-3333-4444-555555555555</uuid>
+  <uuid>11111111-2222-4333-8444-666666666666</uuid>",
        ),
        (
            DomainEdit::SetMetadata {
                record: Box::new(record),
                partition: Some(PartitionId(3)),
                devices: vec!["34:00.0".parse().unwrap()],
            },
            r#"
+  <metadata>
+    <gpuvm:guest xmlns:gpuvm='urn:gpuvm:domain:1'>
+      <gpuvm:request>{"gpus":{"count":1},"vcpus":null,"memory_kib":null,"huge_pages":"auto","profile":"share","pins":"core","cells":"auto","threads":null}</gpuvm:request>
+      <gpuvm:plan partition='3'>
+        <gpuvm:device bdf='0000:34:00.0'/>
+      </gpuvm:plan>
+      <gpuvm:made>
+        <gpuvm:disk path='/a &apos;b&apos;.raw' role='os'/>
+      </gpuvm:made>
+    </gpuvm:guest>
+  </metadata>"#,
        ),
        (
            DomainEdit::SetMemory { memory: MemSize::from_gib(4) },
            r#"
-  <memory unit="GiB">2</memory>
+  <memory unit="KiB">4194304</memory>
+  <currentMemory unit='KiB'>4194304</currentMemory>"#,
        ),
        (
            DomainEdit::SetMemoryBacking { pages: Some(PageSize::OneGib), threads: Some(4) },
            r"
+  <memoryBacking>
+    <hugepages>
+      <page size='1048576' unit='KiB'/>
+    </hugepages>
+    <allocation mode='immediate' threads='4'/>
+  </memoryBacking>",
        ),
        (DomainEdit::SetMemoryBacking { pages: None, threads: None }, ""),
        (
            DomainEdit::SetVcpus { vcpus: 2, pinned: true },
            r#"
-  <vcpu  current='1' cpuset="0-3" >4</vcpu>
+  <vcpu >2</vcpu>"#,
        ),
        (
            DomainEdit::SetPlugged { vcpus: Some(3) },
            r#"
-  <vcpu  current='1' cpuset="0-3" >4</vcpu>
+  <vcpu  current='3' cpuset="0-3" >4</vcpu>"#,
        ),
        (
            DomainEdit::SetPlugged { vcpus: None },
            r#"
-  <vcpu  current='1' cpuset="0-3" >4</vcpu>
+  <vcpu cpuset="0-3" >4</vcpu>"#,
        ),
        (
            DomainEdit::SetIothreads { iothreads: 1 },
            r"
+  <iothreads>1</iothreads>",
        ),
    ]
}

fn cpu_examples() -> Vec<(DomainEdit, &'static str)> {
    let topology = GuestTopology { sockets: 1, dies: 1, cores: 1, threads: 2 };
    let cell = |vcpus, node: &str| GuestCell {
        vcpus,
        memory_kib: MemSize::from_gib(1),
        host_nodes: nodes(node),
        distances: vec![10, 21],
    };
    vec![
        (
            DomainEdit::SetCputune {
                vcpus: vec![cpus("0"), cpus("9"), cpus("1")],
                emulator: cpus("5,53"),
                iothreads: vec![cpus("5,53")],
            },
            r#"
-    <vcpupin vcpu="7" cpuset="8"/>
+    <vcpupin vcpu='0' cpuset='0'/>
+    <vcpupin vcpu='2' cpuset='1'/>
+    <emulatorpin cpuset='5,53'/>
+    <iothreadpin iothread='1' cpuset='5,53'/>"#,
        ),
        (
            DomainEdit::SetCputune { vcpus: vec![], emulator: cpus(""), iothreads: vec![] },
            r#"
-    <vcpupin  cpuset="9"   vcpu="1" />
-    <vcpupin vcpu="7" cpuset="8"/>"#,
        ),
        (
            DomainEdit::SetNumatune { cells: vec![nodes("0"), nodes("1")] },
            r"
+  <numatune>
+    <memory mode='strict' nodeset='0-1'/>
+    <memnode cellid='0' mode='strict' nodeset='0'/>
+    <memnode cellid='1' mode='strict' nodeset='1'/>
+  </numatune>",
        ),
        (DomainEdit::SetNumatune { cells: vec![nodes("")] }, ""),
        (
            DomainEdit::SetMemoryNodes { nodes: nodes("0-1") },
            r"
+  <numatune>
+    <memory mode='strict' nodeset='0-1'/>
+  </numatune>",
        ),
        (
            DomainEdit::SetCpu {
                model: CpuModel::HostPassthrough { maxphysaddr: true, limit: None },
                topology,
                topoext: true,
                cells: vec![cell(0..1, "0"), cell(1..2, "1")],
                initiators: None,
            },
            r#"
-  <cpu mode="custom" match='exact'>
-    <model>Nehalem</model>
+  <cpu mode="host-passthrough" check='none'>
+    <topology sockets='1' cores='1' threads='2'/>
+    <maxphysaddr mode='passthrough'/>
     <feature name='x2apic' policy="require"/>
+    <feature policy='require' name='topoext'/>
+    <numa>
+      <cell id='0' cpus='0' memory='1048576' unit='KiB'>
+        <distances>
+          <sibling id='0' value='10'/>
+          <sibling id='1' value='21'/>
+        </distances>
+      </cell>
+      <cell id='1' cpus='1' memory='1048576' unit='KiB'>
+        <distances>
+          <sibling id='0' value='10'/>
+          <sibling id='1' value='21'/>
+        </distances>
+      </cell>
+    </numa>"#,
        ),
        (
            DomainEdit::SetCpu {
                model: CpuModel::Kept,
                topology,
                topoext: false,
                cells: vec![],
                initiators: None,
            },
            r"
+    <topology sockets='1' cores='1' threads='2'/>",
        ),
    ]
}

fn device_examples() -> Vec<(DomainEdit, &'static str)> {
    let mut examples = bus_examples();
    examples.extend(vec![
        (
            DomainEdit::SetDisks {
                disks: vec![
                    DiskSeat { disk: disk("/a.raw"), target: "vdb".into(), queues: 1, iothreads: vec![], address: None },
                    DiskSeat {
                        disk: Disk::new("/dev/b", DiskFormat::Raw, DiskKind::Block),
                        target: "vda".into(),
                        queues: 8,
                        iothreads: vec![IoThread { id: 1, queues: 0..8 }],
                        address: Some(at(2)),
                    },
                ],
            },
            r#"
-    <disk type='file' device="disk"><source file='/a.raw'/><target dev='vdb' bus="virtio"/></disk>
+    <disk type='file' device="disk"><driver name='qemu' type='qcow2' cache='none' io='native' discard='unmap'/><source file='/a.raw'/><target dev='vdb' bus="virtio"/></disk>
+    <disk type='block' device='disk'>
+      <driver name='qemu' type='raw' cache='none' io='native' discard='unmap' iothread='1' queues='8'/>
+      <source dev='/dev/b'/>
+      <target dev='vda' bus='virtio'/>
+      <address type='pci' domain='0x0000' bus='0x02' slot='0x00' function='0x0'/>
+    </disk>"#,
        ),
        (
            DomainEdit::SetInterfaces {
                nics: vec![NicSeat { nth: 0, network: Some("net".into()), mac: Some("52:54:00:00:00:01".into()), queues: Some(1), vhost: false, is_vf: false, settings: Default::default(), address: None }],
                dropped: vec![],
            },
            r"
-      <source network='default'/>
-      <driver iommu='on' queues='9'/>
+      <mac address='52:54:00:00:00:01'/>
+      <source network='net'/>
+      <model type='virtio'/>
+      <driver iommu='on'/>",
        ),
        (
            DomainEdit::SetInterfaces {
                nics: vec![NicSeat { nth: 1, network: Some("net".into()), mac: None, queues: Some(4), vhost: true, is_vf: false, settings: Default::default(), address: Some(at(9)) }],
                dropped: vec![],
            },
            r#"
+    <interface type='network'>
+      <source network='net'/>
+      <model type='virtio'/>
+      <driver name='vhost' queues='4'/>
+      <address type='pci' domain='0x0000' bus='0x09' slot='0x00' function='0x0'/>
+    </interface>"#,
        ),
        (
            DomainEdit::SetInterfaces { nics: vec![], dropped: vec![0] },
            r#"
-    <interface type="network">
-      <source network='default'/>
-      <driver iommu='on' queues='9'/>
-    </interface>"#,
        ),
        (
            DomainEdit::AddMdev { uuid: "6ab1f0c4-44aa-4d06-8b4e-9cf1c0f0ce6b".into() },
            r"
+    <hostdev mode='subsystem' type='mdev' model='vfio-pci' managed='no'>
+      <source>
+        <address uuid='6ab1f0c4-44aa-4d06-8b4e-9cf1c0f0ce6b'/>
+      </source>
+    </hostdev>",
        ),
        // It has none of this UUID.
        (DomainEdit::DropMdev { uuid: "00000000-44aa-4d06-8b4e-9cf1c0f0ce6b".into() }, ""),
        (
            DomainEdit::SetHostdevs {
                hostdevs: vec![HostdevSeat { bdf: "0000:02:00.0".parse().unwrap(), alias: "ua-gpu0".into(), managed: false, kept: None, iommufd: None, nic: None, cells: None, address: at(7) }],
            },
            r"
-    <hostdev mode='subsystem' type='pci'>
-      <source><address domain='0' bus='0x1' slot='0' function='0'/></source>
+    <hostdev mode='subsystem' type='pci' managed='no'>
+      <driver name='vfio'/>
+      <source><address domain='0x0000' bus='0x02' slot='0x00' function='0x0'/></source>
       <alias name='ua-gpu0'/>
-    </hostdev>
-    <hostdev mode='subsystem' type='pci'>
-      <source><address domain='0' bus='0x2' slot='0' function='0'/></source>
+      <rom bar='off'/>
+      <address type='pci' domain='0x0000' bus='0x07' slot='0x00' function='0x0'/>",
        ),
    ]);
    examples
}

fn bus_examples() -> Vec<(DomainEdit, &'static str)> {
    let expander = Controller {
        kind: "pci",
        index: 5,
        model: Some("pcie-expander-bus"),
        bus_nr: Some(250),
        cell: Some(1),
        alias: None,
        address: Some(PciAddress { bus: 0, slot: 16, function: 0, multifunction: true }),
    };
    vec![
        (
            DomainEdit::SetAddresses {
                addresses: vec![
                    (DevicePlace { name: "rng", nth: 0 }, at(3)),
                    (DevicePlace { name: "disk", nth: 0 }, at(4)),
                ],
            },
            r#"
-    <disk type='file' device="disk"><source file='/a.raw'/><target dev='vdb' bus="virtio"/></disk>
+    <disk type='file' device="disk"><source file='/a.raw'/><target dev='vdb' bus="virtio"/><address type='pci' domain='0x0000' bus='0x04' slot='0x00' function='0x0'/></disk>
-    <rng model="virtio"/>
+    <rng model="virtio">
+      <address type='pci' domain='0x0000' bus='0x03' slot='0x00' function='0x0'/>
+    </rng>"#,
        ),
        (
            DomainEdit::SetControllers {
                controllers: vec![expander, Controller::port(6, at(5))],
                dropped: vec![],
            },
            r#"
-    <controller type='pci' index="5" model='pcie-root-port'/>
+    <controller type='pci' index="5" model='pcie-expander-bus'>
+      <target busNr='250'>
+        <node>1</node>
+      </target>
+      <address type='pci' domain='0x0000' bus='0x00' slot='0x10' function='0x0' multifunction='on'/>
+    </controller>
+    <controller type='pci' index='6' model='pcie-root-port'>
+      <address type='pci' domain='0x0000' bus='0x05' slot='0x00' function='0x0'/>
+    </controller>"#,
        ),
        (
            DomainEdit::SetControllers { controllers: vec![], dropped: vec![5] },
            r#"
-    <controller type='pci' index="5" model='pcie-root-port'/>"#,
        ),
        (
            DomainEdit::SetPciHole { kib: 1 << 30 },
            r"
+    <controller type='pci' index='0' model='pcie-root'>
+      <pcihole64 unit='KiB'>1073741824</pcihole64>
+    </controller>",
        ),
        (DomainEdit::DropDisk { path: "/absent".into(), forget: false }, ""),
        (
            DomainEdit::DropDisk { path: "/a.raw".into(), forget: true },
            r#"
-    <disk type='file' device="disk"><source file='/a.raw'/><target dev='vdb' bus="virtio"/></disk>"#,
        ),
        (
            DomainEdit::SetBalloon { address: None },
            r"
-    <memballoon model='virtio'><stats period='10'/></memballoon>
+    <memballoon model='none'></memballoon>",
        ),
        (
            DomainEdit::SetBalloon { address: Some(at(1)) },
            r"
-    <memballoon model='virtio'><stats period='10'/></memballoon>
+    <memballoon model='virtio'><stats period='10'/><address type='pci' domain='0x0000' bus='0x01' slot='0x00' function='0x0'/></memballoon>",
        ),
        (
            DomainEdit::SetOverrides {
                overrides: vec![Override {
                    alias: "ua-gpu0".into(),
                    property: "x-nv-gpudirect-clique",
                    kind: "unsigned",
                    value: "0".into(),
                }],
            },
            r#"
-    <qemu:device alias="ua-gpu9"><qemu:frontend><qemu:property name='x-nv-gpudirect-clique' type='unsigned' value='3'/></qemu:frontend></qemu:device>
+    <qemu:device alias='ua-gpu0'>
+      <qemu:frontend>
+        <qemu:property name='x-nv-gpudirect-clique' type='unsigned' value='0'/>
+      </qemu:frontend>
+    </qemu:device>"#,
        ),
    ]
}
