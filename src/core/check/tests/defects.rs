//! Defects as edits of one correct domain, each with the rule and the place that must be found.

use super::setting::{
    BALLOON, BRIDGE_33, GIB_PAGES, INTEL_GRAPHICS, NIC_35, NIC_B8, SWITCH_62, Setting, TWIN_NIC,
    bars_on, confine, intel_graphics, isolation, large_bars, nic_35, offline, open_ports, other,
    pages, set, without_bridge, without_manager,
};
use gpuvm_core::memsize::MemSize;
use gpuvm_core::topology::{
    DriveUse, FabricModel, Iommu, KeptOff, KeptOffBy, Mig, NetFace, Sriov, Trust, Vgpu,
};

/// One defect.
pub struct Defect {
    /// Rule that must find it.
    pub rule: &'static str,
    /// Place of the finding.
    pub path: &'static str,
    /// Rules that find consequences of it.
    pub also: &'static [&'static str],
    /// Changes of the domain: every occurrence of the first text becomes the second.
    pub edits: &'static [(&'static str, &'static str)],
    /// Changes of the host and of the other domains.
    pub setting: fn(&mut Setting),
    /// Whether `virsh define --validate` accepts it on the recorded DGX-2; none where the host
    /// differs.
    pub libvirt_accepts: Option<bool>,
}

/// A MAC address of the first interface.
const WITH_MAC: (&str, &str) = (
    "<source network='default'/>",
    "<mac address='52:54:00:aa:bb:cc'/><source network='default'/>",
);

/// A defect of the domain alone.
const fn defect(
    rule: &'static str,
    path: &'static str,
    libvirt_accepts: bool,
    edits: &'static [(&'static str, &'static str)],
) -> Defect {
    let (also, libvirt_accepts) = (&[], Some(libvirt_accepts));
    Defect { rule, path, also, edits, setting: |_| {}, libvirt_accepts }
}

/// A defect that needs another host or other domains.
pub const fn setting(
    rule: &'static str,
    path: &'static str,
    setting: fn(&mut Setting),
    edits: &'static [(&'static str, &'static str)],
) -> Defect {
    Defect { rule, path, also: &[], edits, setting, libvirt_accepts: None }
}

impl Defect {
    /// Says that libvirt accepts the edits on the unchanged host.
    const fn accepted(mut self) -> Defect {
        self.libvirt_accepts = Some(true);
        self
    }

    /// Names rules that find consequences.
    pub const fn also(mut self, also: &'static [&'static str]) -> Defect {
        self.also = also;
        self
    }
}

/// A GPU of the host.
const CARD_36: &str = "0000:36:00.0";
/// The record of a vGPU on the function that [`NIC_35`] passes.
const VGPU_35: (&str, &str) = (
    "</name>",
    "</name><metadata><gpuvm:guest xmlns:gpuvm='urn:gpuvm:domain:1'><gpuvm:vgpus><gpuvm:device \
     bdf='0000:35:00.0' card='0000:36:00.0' type='8' name='H200X-18C'/></gpuvm:vgpus>\
     </gpuvm:guest></metadata>",
);

/// Makes the function that [`NIC_35`] passes a slot for vGPUs that has this type; 0: none.
fn vgpu_35(s: &mut Setting, current: u32) {
    let vf = s.host.devices.iter_mut().find(|d| d.bdf.bus() == 0x35).unwrap();
    (vf.class, vf.vendor, vf.net) = (0x03_0200, 0x10de, None);
    vf.sriov = Some(Sriov::Vf { pf: CARD_36.parse().unwrap() });
    vf.vgpu = Some(Vgpu::Vfio { current, creatable: Vec::new() });
}

/// Place of the first hostdev's host address.
const FIRST: &str = "/domain/devices/hostdev[1]/source/address";
/// Place of the first vCPU's pin.
const PIN: &str = "/domain/cputune/vcpupin[1]/@cpuset";

/// The correct domain with 512 vCPUs.
pub const MANY: [(&str, &str); 3] =
    [(">10</vcpu>", ">512</vcpu>"), ("cores='5'", "cores='256'"), ("'0-9'", "'0-511'")];

/// Defects of the domain itself: the table "Who catches what", and more.
pub const DEFECTS: &[Defect] = &[
    defect("unreadable-value", "/domain/cputune/vcpupin[4]/@cpuset", false, &[("'49'", "'4 9x'")]),
    defect(
        "vcpupin-no-vcpu",
        "/domain/cputune/vcpupin[11]/@vcpu",
        true,
        &[("<emulatorpin", "<vcpupin vcpu='19' cpuset='6'/><emulatorpin")],
    ),
    defect(
        "hint-dedicated-shared",
        "/domain/features/kvm/hint-dedicated",
        true,
        &[
            ("<features>", "<features><kvm><hint-dedicated state='on'/></kvm>"),
            ("<vcpupin vcpu='0' cpuset='0'/>", ""),
        ],
    )
    .also(&["vcpu-partly-pinned"]),
    defect(
        "cpu-cache-mode",
        "/domain/cpu/cache",
        false,
        &[
            ("mode='host-passthrough' check='none' migratable='off'", "mode='host-model'"),
            (
                "<maxphysaddr mode='passthrough'/>",
                "<cache mode='passthrough'/><maxphysaddr mode='emulate' bits='46'/>",
            ),
        ],
    ),
    defect(
        "vcpu-partly-pinned",
        "/domain/cputune/vcpupin[1]/@vcpu",
        true,
        &[("<vcpupin vcpu='9' cpuset='52'/>", "")],
    ),
    defect("vcpus-without-remapping", "/domain/vcpu", true, &MANY).also(&["vcpu-partly-pinned"]),
    setting(
        "vcpus-without-remapping",
        "/domain/vcpu",
        |_| {},
        &[
            MANY[0],
            MANY[1],
            MANY[2],
            (
                BALLOON,
                "<memballoon model='none'/><iommu model='intel'><driver intremap='on' \
                 caching_mode='on' eim='on'/></iommu>",
            ),
        ],
    )
    .also(&["vcpu-partly-pinned"]),
    defect(
        "iommu-without-caching",
        "/domain/devices/iommu",
        true,
        &[
            ("<features>", "<features><ioapic driver='qemu'/>"),
            (
                BALLOON,
                "<memballoon model='none'/><iommu model='intel'><driver intremap='on'/></iommu>",
            ),
        ],
    ),
    defect(
        "guest-caches",
        "/domain/cpu/topology",
        true,
        &[("dies='1' clusters='1' cores='5'", "dies='5' clusters='1' cores='1'")],
    ),
    defect("pin-absent-pcpu", "/domain/cputune/vcpupin[10]/@cpuset", true, &[("'52'", "'9999'")]),
    defect(
        "pin-absent-pcpu",
        "/domain/cputune/emulatorpin/@cpuset",
        true,
        &[("<emulatorpin cpuset='5,53'", "<emulatorpin cpuset='5,200'")],
    ),
    setting("pin-offline-pcpu", "/domain/cputune/vcpupin[10]/@cpuset", |s| offline(s, 52), &[]),
    setting("pin-outside-slice", "/domain/cputune/vcpupin[10]/@cpuset", |s| confine(s, 52), &[]),
    setting(
        "pin-outside-slice",
        "/domain/cputune/emulatorpin/@cpuset",
        |s| confine(s, 7),
        &[("<emulatorpin cpuset='5,53'", "<emulatorpin cpuset='7'")],
    ),
    setting(
        "pin-offline-pcpu",
        "/domain/cputune/emulatorpin/@cpuset",
        |s| offline(s, 7),
        &[("<emulatorpin cpuset='5,53'", "<emulatorpin cpuset='5,7'")],
    ),
    defect("pcpu-twice", "/domain/cputune/vcpupin[2]/@cpuset", true, &[("'48'", "'0'")]),
    defect(
        "pcpu-twice",
        "/domain/cputune/vcpupin[6]/@cpuset",
        true,
        &[("cpuset='2'", "cpuset='2,50'"), ("'50'", "'2,50'"), ("'51'", "'50'")],
    )
    .also(&["vcpu-pair-split"]),
    defect(
        "vcpu-pair-split",
        "/domain/cputune/vcpupin[2]/@cpuset",
        true,
        &[
            ("vcpu='1' cpuset='48'", "vcpu='1' cpuset='1'"),
            ("vcpu='2' cpuset='1'", "vcpu='2' cpuset='48'"),
        ],
    ),
    defect("topology-product", "/domain/cpu/topology", false, &[("cores='5'", "cores='6'")]),
    defect("topology-product", "/domain/cpu/topology", false, &[("sockets='1'", "sockets='2'")]),
    setting(
        "topoext-missing",
        "/domain/cpu",
        |s| s.host.machine.cpu_vendor = Some("AuthenticAMD".into()),
        &[],
    ),
    defect(
        "emulator-on-vcpu-core",
        "/domain/cputune/emulatorpin/@cpuset",
        true,
        &[("<emulatorpin cpuset='5,53'", "<emulatorpin cpuset='52'")],
    ),
    defect(
        "emulator-on-vcpu-core",
        "/domain/cputune/iothreadpin/@cpuset",
        true,
        &[("iothread='1' cpuset='5,53'", "iothread='1' cpuset='0-5'")],
    ),
    // cells, nodes, memory
    defect("cell-vcpu-above-count", "/domain/cpu/numa/cell/@cpus", false, &[("'0-9'", "'0-11'")]),
    defect("vcpu-in-no-cell", "/domain/cpu/numa/cell/@cpus", true, &[("'0-9'", "'0-8'")]),
    defect(
        "vcpu-in-two-cells",
        "/domain/cpu/numa/cell[2]/@cpus",
        false,
        &[("</numa>", "<cell id='1' cpus='9' memory='1048576' unit='KiB'/></numa>")],
    ),
    defect(
        "guest-core-split",
        "/domain/cpu/numa/cell[2]/@cpus",
        true,
        &[(
            "<cell id='0' cpus='0-9' memory='188743680' unit='KiB'/>",
            "<cell id='0' cpus='0-4' memory='94371840' unit='KiB'/>\
             <cell id='1' cpus='5-9' memory='94371840' unit='KiB'/>",
        )],
    ),
    defect(
        "guest-address-twice",
        "/domain/qemu:commandline/qemu:arg[2]/@value",
        true,
        &[
            (
                "<domain type='kvm'>",
                "<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>",
            ),
            (
                "</devices>",
                "</devices><qemu:commandline><qemu:arg value='-device'/>\
                 <qemu:arg value='ich9-intel-hda,bus=pcie.0,addr=0x2'/></qemu:commandline>",
            ),
        ],
    ),
    defect(
        "guest-core-split",
        "/domain/cpu/numa/cell[1]/@cpus",
        true,
        &[
            ("sockets='1'", "sockets='2'"),
            ("threads='2'", "threads='1'"),
            (
                "<cell id='0' cpus='0-9' memory='188743680' unit='KiB'/>",
                "<cell id='0' cpus='0-3,8-9' memory='94371840' unit='KiB'/>\
                 <cell id='1' cpus='4-7' memory='94371840' unit='KiB'/>",
            ),
        ],
    ),
    defect(
        "memnode-no-cell",
        "/domain/numatune/memnode/@cellid",
        false,
        &[("cellid='0'", "cellid='3'")],
    ),
    defect(
        "node-absent",
        "/domain/numatune/memory/@nodeset",
        true,
        &[("<memory mode='strict' nodeset='0'", "<memory mode='strict' nodeset='5'")],
    ),
    defect(
        "vcpu-far-from-memory",
        "/domain/numatune/memnode/@nodeset",
        true,
        &[("nodeset='0'", "nodeset='1'")],
    ),
    setting(
        "memory-node-empty",
        "/domain/numatune/memnode/@nodeset",
        |s| {
            s.host.nodes[0].memory_kib = MemSize::default();
        },
        &[],
    ),
    defect(
        "memory-exceeds-node",
        "/domain/numatune/memnode/@nodeset",
        true,
        &[("188743680", "1516912640")],
    ),
    setting(
        "huge-page-pool-absent",
        "/domain/memoryBacking/hugepages/page/@size",
        |s| {
            s.host.nodes.iter_mut().for_each(|node| node.huge_pages.truncate(1));
        },
        &[GIB_PAGES],
    )
    .accepted(),
    setting(
        "huge-pages-short",
        "/domain/memoryBacking/hugepages/page/@size",
        |s| pages(s, 179),
        &[GIB_PAGES],
    )
    .accepted(),
    setting(
        "huge-pages-short",
        "/domain/memoryBacking/hugepages",
        |s| pages(s, 0),
        &[("<os>", "<memoryBacking><hugepages/></memoryBacking><os>")],
    )
    .accepted(),
    setting(
        "memory-no-page-multiple",
        "/domain/cpu/numa/cell/@memory",
        |s| pages(s, 200),
        &[GIB_PAGES, ("memory='188743680'", "memory='188745728'")],
    )
    .accepted(),
    // the guest's PCI tree
    defect(
        "guest-address-twice",
        "/domain/devices/interface/address",
        false,
        &[("bus='0x02' slot='0x00'", "bus='0x01' slot='0x00'")],
    ),
    defect("pxb-bus-low", "/domain/devices/controller[4]/target/@busNr", true, &[("'128'", "'2'")]),
    defect(
        "pxb-bus-overlap",
        "/domain/devices/controller[4]/target/@busNr",
        true,
        &[("'128'", "'253'")],
    ),
    defect(
        "pxb-bus-overlap",
        "/domain/devices/controller[4]/target/@busNr",
        true,
        &[(
            BALLOON,
            "<controller type='pci' index='7' model='pcie-expander-bus'><target busNr='130'>\
            <node>0</node></target><address type='pci' bus='0' slot='9'/></controller>\
            <memballoon model='none'/>",
        )],
    ),
    defect(
        "pxb-no-cell",
        "/domain/devices/controller[4]/target/node",
        false,
        &[("<node>0</node>", "<node>2</node>")],
    ),
    defect(
        "switch-port-place",
        "/domain/devices/controller[8]/address",
        false,
        &[(
            BALLOON,
            "<controller type='pci' index='7' model='pcie-switch-upstream-port'>\
            <address type='pci' bus='0x00' slot='0x09'/></controller><memballoon model='none'/>",
        )],
    ),
    defect(
        "gpu-on-root-bus",
        "/domain/devices/hostdev[1]/address",
        true,
        &[("bus='0x04' slot='0x00'", "bus='0x00' slot='0x0b'")],
    ),
    defect(
        "device-on-root-bus",
        "/domain/devices/hostdev[3]/address",
        true,
        &[("bus='0x06' slot='0x00'", "bus='0x00' slot='0x0b'")],
    ),
    setting(
        "nic-place",
        "/domain/devices/hostdev[4]/address",
        |_| {},
        &[(
            BALLOON,
            "<controller type='pci' index='7' model='pcie-root-port'><address type='pci' \
             bus='0x03' slot='0x03'/></controller><hostdev mode='subsystem' type='pci' \
             managed='yes'><source><address domain='0' bus='0x35' slot='0' \
             function='0'/></source><address type='pci' bus='7' slot='0' function='1'/></hostdev>\
             <memballoon model='none'/>",
        )],
    ),
    defect(
        "gpu-near-no-cell",
        "/domain/devices/hostdev[1]/source/address",
        true,
        &[("bus='0x03' slot='0x00'", "bus='0x00' slot='0x09'")],
    ),
    // passed devices
    defect(
        "hostdev-absent",
        "/domain/devices/hostdev[2]/source/address",
        true,
        &[("0x36", "0x99")],
    )
    .also(&["nvswitch-count"]),
    defect(
        "hostdev-twice",
        "/domain/devices/hostdev[2]/source/address",
        false,
        &[("0x36", "0x34")],
    )
    .also(&["nvswitch-count"]),
    defect("hostdev-bridge", "/domain/devices/hostdev[4]/source/address", true, &[BRIDGE_33]),
    setting(
        "hostdev-used-by-host",
        "/domain/devices/disk[2]/source/address",
        |s| {
            let drive = s.host.drives.iter_mut().find(|d| d.bdf.is_some_and(|b| b.bus() == 0x2e));
            drive.unwrap().used_by.push(DriveUse::Holder {
                device: "md1".into(),
                what: None,
                carries: Vec::new(),
            });
        },
        &[(
            BALLOON,
            "<disk type='nvme' device='disk'><driver name='qemu' type='raw'/>\
            <source type='pci' managed='yes' namespace='1'><address domain='0' bus='0x2e' slot='0' \
            function='0'/></source><target dev='vdb' bus='virtio'/></disk>\
            <memballoon model='none'/>",
        )],
    ),
    setting(
        "hostdev-used-by-host",
        "/domain/devices/interface[2]/source/address",
        |s| {
            nic_35(s).net.get_or_insert_with(NetFace::default).used_by.push("default route".into());
        },
        &[NIC_35],
    ),
    setting(
        "hostdev-used-by-host",
        "/domain/devices/interface[2]/source/address",
        |s| {
            nic_35(s).sriov = Some(Sriov::Pf { total: 8, enabled: 2 });
        },
        &[NIC_35],
    ),
    defect(
        "shared-memory-file",
        "/domain/memoryBacking/access",
        true,
        &[("<vcpu ", "<memoryBacking><access mode='shared'/></memoryBacking><vcpu ")],
    ),
    setting(
        "gpu-without-atomics",
        "/domain/devices/hostdev[1]/address",
        |s| {
            let gpu = s.host.devices.iter_mut().find(|device| device.bdf.bus() == 0x34);
            gpu.unwrap().vendor = 0x1002;
        },
        &[(
            "bus='0x05' slot='0x00' function='0x0'/>\n    </hostdev>",
            "bus='0x04' slot='0x00' function='0x1'/>\n    </hostdev>",
        )],
    ),
    setting(
        "intel-graphics-place",
        "/domain/devices/hostdev[4]/address",
        intel_graphics,
        &[INTEL_GRAPHICS],
    ),
    defect(
        "argument-replaces",
        "/domain/qemu:commandline/qemu:arg[2]/@value",
        true,
        &[(
            "</domain>",
            "<qemu:commandline xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>\
             <qemu:arg value='-cpu'/><qemu:arg value='host,kvm=off'/></qemu:commandline></domain>",
        )],
    ),
    setting(
        "pin-over-isolated",
        PIN,
        |s| s.host.isolated = "0,2,48,50".parse().unwrap(),
        &[("<vcpupin vcpu='0' cpuset='0'/>", "<vcpupin vcpu='0' cpuset='0,2'/>")],
    ),
    setting(
        "pins-against-isolation",
        "/domain/cputune/emulatorpin/@cpuset",
        |s| s.host.isolated = "5-23,53-71".parse().unwrap(),
        &[],
    ),
    setting(
        "pins-against-isolation",
        PIN,
        |s| s.host.isolated = "6-23,54-71".parse().unwrap(),
        &[],
    ),
    setting(
        "pins-against-isolation",
        "/domain/cputune/emulatorpin/@cpuset",
        |s| {
            let pcpus = "0-5,48-53".parse().unwrap();
            s.host.kept_off = Some(KeptOff { pcpus, by: KeptOffBy::NohzFull });
        },
        &[],
    ),
    setting(
        "maxphysaddr-over-iommu",
        "/domain/cpu",
        |s| s.host.machine.iommu_address_bits = Some(39),
        &[],
    ),
    defect("element-dropped", "/domain/kvm", false, &[("<devices>", "<kvm/><devices>")]),
    defect(
        "element-dropped",
        "/domain/devices/vcpu",
        false,
        &[("</devices>", "<vcpu>2</vcpu></devices>")],
    ),
    setting(
        "iommu-group-split",
        FIRST,
        |s| {
            // A driver of the host has it.
            s.host.devices.iter_mut().find(|d| d.bdf.bus() == 0x35).unwrap().driver =
                Some("nvidia".into());
            let group = s.host.devices.iter().find(|d| d.bdf.bus() == 0x34).unwrap().iommu_group;
            s.host.devices.iter_mut().find(|d| d.bdf.bus() == 0x35).unwrap().iommu_group = group;
        },
        &[],
    ),
    setting("vgpu-managed", "/domain/devices/interface[2]", |s| vgpu_35(s, 7), &[NIC_35]),
    setting(
        "vgpu-retyped",
        "/domain/devices/interface[2]/source/address",
        |s| vgpu_35(s, 7),
        &[NIC_35, ("managed='yes'", "managed='no'"), VGPU_35],
    ),
    setting(
        "vgpu-unavailable",
        "/domain/devices/interface[2]/source/address",
        |s| {
            vgpu_35(s, 0);
            let card = s.host.devices.iter_mut().find(|d| d.bdf.to_string() == CARD_36).unwrap();
            card.mig = Some(Mig { enabled: true, pending: true });
        },
        &[NIC_35, ("managed='yes'", "managed='no'"), VGPU_35],
    ),
    setting(
        "hostdev-unsupported",
        FIRST,
        |s| {
            s.host.machine.architecture = Some("aarch64".into());
            let gpu = s.host.devices.iter_mut().find(|d| d.bdf.bus() == 0x34).unwrap();
            gpu.device = 0x3041;
        },
        &[],
    )
    .also(&["gi-missing", "smmu-missing"]),
    setting(
        "hostdev-barred",
        FIRST,
        |s| {
            let gpu = s.host.devices.iter_mut().find(|d| d.bdf.bus() == 0x34).unwrap();
            let kept = *gpu.iommu_group.get_or_insert(1000);
            let iommu = Iommu { groups: 100, firmware_groups: Some(vec![kept]) };
            s.host.machine.iommu = Some(iommu);
        },
        &[],
    ),
    defect("device-off-node", "/domain/devices/hostdev[4]/source/address", true, &[NIC_B8]),
    setting(
        "maxphysaddr-missing",
        "/domain/cpu",
        large_bars,
        &[
            ("<maxphysaddr mode='passthrough'/>", ""),
            ("mode='host-passthrough'", "mode='host-model'"),
        ],
    ),
    setting(
        "maxphysaddr-missing",
        "/domain/cpu",
        large_bars,
        &[("<maxphysaddr mode='passthrough'/>", "<maxphysaddr mode='emulate' bits='39'/>")],
    ),
    setting(
        "bios-huge-bars",
        "/domain/devices/hostdev[1]/source/address",
        |s| bars_on(s, 128, |_| {}),
        &[],
    ),
    defect(
        "emulated-model",
        "/domain/devices/disk[2]",
        true,
        &[(
            BALLOON,
            "<disk type='file' device='disk'><source file='/a'/><target dev='sda' bus='sata'/></disk>\
             <memballoon model='none'/>",
        )],
    ),
    defect(
        "emulated-model",
        "/domain/devices/interface[2]",
        true,
        &[(
            BALLOON,
            "<interface type='network'><source network='other'/><model type='e1000e'/></interface>\
             <memballoon model='none'/>",
        )],
    ),
    defect("balloon-with-hostdev", "/domain/devices", true, &[(BALLOON, "")]),
    defect(
        "balloon-with-hostdev",
        "/domain/devices/memballoon",
        true,
        &[(BALLOON, "<memballoon model='virtio'/>")],
    ),
    // NVLink
    defect("gpus-no-partition", "/domain/devices/hostdev[1]", true, &[("0x36", "0x39")]),
    defect("nvswitch-count", "/domain/devices/hostdev[1]", true, &[("0x61", "0x35")]),
    defect("nvswitch-count", "/domain/devices/hostdev[4]", true, &[SWITCH_62]),
    defect(
        "nvswitch-foreign",
        "/domain/devices/hostdev[3]/source/address",
        true,
        &[("0x61", "0xc1")],
    ),
    setting(
        "nvswitch-shared",
        "/domain/devices/hostdev[3]/source/address",
        |s| {
            s.host.fabric.model = FabricModel::SharedNvswitch;
        },
        &[],
    ),
    setting(
        "nvlinks-not-blocked",
        "/domain/devices/hostdev[1]",
        |s| s.host.fabric.links_stay_on = true,
        &[],
    ),
    setting(
        "nvswitch-bridge",
        "/domain/devices/interface[2]/source/address",
        |s| s.host.fabric.bridge = vec!["0000:35:00.0".parse().unwrap()],
        &[NIC_35],
    ),
    setting("nvswitch-bridge-missing", "/domain/devices/hostdev[1]", without_bridge, &[])
        .also(&["nvswitch-count"]),
    setting(
        "nvlinks-of-strangers",
        "/domain/devices/hostdev[1]",
        |s| s.host.machine.trust = Some(Trust::Strangers),
        &[],
    ),
    setting("partition-not-ready", "/domain/devices/hostdev[1]", without_manager, &[])
        .also(&["nvswitch-shared"]),
    // I/O threads and queues
    setting(
        "mac-twice",
        "/domain/devices/interface[2]/mac/@address",
        |_| {},
        &[WITH_MAC, TWIN_NIC],
    ),
    defect(
        "iothreadpin-undefined",
        "/domain/cputune/iothreadpin/@iothread",
        false,
        &[("iothreadpin iothread='1'", "iothreadpin iothread='4'")],
    ),
    defect(
        "iothread-undefined",
        "/domain/devices/disk/driver/@iothread",
        false,
        &[("io='native' iothread='1'", "io='native' iothread='3'")],
    )
    .also(&["iothread-unused"]),
    defect("iothread-unused", "/domain/iothreads", true, &[("<iothreads>1<", "<iothreads>46<")]),
    defect(
        "disk-queues",
        "/domain/devices/disk/driver/@queues",
        true,
        &[("iothread='1' queues='8'", "iothread='1' queues='32'")],
    ),
    defect(
        "net-queues",
        "/domain/devices/interface/driver/@queues",
        true,
        &[("<driver queues='8'", "<driver queues='300'")],
    ),
    defect(
        "net-queues-idle",
        "/domain/devices/interface/driver/@queues",
        true,
        &[("<driver queues='8'", "<driver queues='11'")],
    ),
    defect(
        "net-queues-many",
        "/domain/devices/interface/driver/@queues",
        true,
        &[("<driver queues='8'", "<driver queues='9'")],
    ),
    setting(
        "device-held",
        FIRST,
        |s| other(s, |h| h.devices.push("34:00.0".parse().unwrap())),
        &[],
    ),
    setting("pcpu-held", PIN, |s| other(s, |h| h.vcpu_pins.push(set("0-2,48-50"))), &[]),
    setting("core-split", PIN, |s| other(s, |h| h.vcpu_pins.push(set("48"))), &[("'48'", "'0'")])
        .also(&["pcpu-twice"]),
    setting(
        "memory-held",
        "/domain/numatune/memnode/@nodeset",
        |s| other(s, |h| h.memory.push(("0".parse().unwrap(), MemSize::from_gib(600)))),
        &[],
    ),
    setting(
        "helper-on-held-core",
        "/domain/cputune/emulatorpin/@cpuset",
        |s| {
            other(s, |h| h.vcpu_pins.push(set("53")));
        },
        &[],
    ),
    setting("helper-on-held-core", PIN, |s| other(s, |h| h.emulator_pin = Some(set("48"))), &[]),
    // Functions that the IOMMU does not isolate
    setting(
        "acs-override",
        FIRST,
        |s| isolation(s, |i| i.acs_override = Some("downstream".into())),
        &[],
    ),
    setting(
        "acs-off",
        FIRST,
        |s| {
            isolation(s, |_| {});
            open_ports(s);
        },
        &[],
    ),
    setting("unsafe-interrupts", FIRST, |s| isolation(s, |i| i.unsafe_interrupts = true), &[]),
    setting(
        "no-iommu",
        FIRST,
        |s| {
            isolation(s, |_| {});
            s.host.devices.iter_mut().for_each(|device| device.iommu_group = None);
        },
        &[],
    ),
    defect(
        "argument-unread",
        "/domain/qemu:commandline/qemu:arg[2]/@value",
        true,
        &[("</domain>", READS_CONFIG)],
    ),
    defect(
        "hostdev-twice",
        "/domain/qemu:commandline/qemu:arg[2]/@value",
        true,
        &[("</domain>", SAME_BY_ARGUMENT)],
    ),
];

/// A file that may name devices.
const READS_CONFIG: &str = "<qemu:commandline xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>\
    <qemu:arg value='-readconfig'/><qemu:arg value='/etc/vm.cfg'/></qemu:commandline></domain>";
/// A GPU that is passed by a hostdev as well.
const SAME_BY_ARGUMENT: &str = "<qemu:commandline xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>\
    <qemu:arg value='-device'/><qemu:arg value='vfio-pci,host=34:00.0'/></qemu:commandline></domain>";
