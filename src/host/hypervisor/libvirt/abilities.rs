//! What this libvirt and its QEMU can do. Disk features are found by probing: libvirt's domain
//! capabilities do not list them, and version numbers mislead where a distribution adds or removes
//! features.
//! libvirt generates the command line of a probe guest, or reports that QEMU cannot; nothing is
//! created or started.

use gpuvm_core::domain::guest::{Abilities, VirtType};
use virt::connect::Connect;

/// The feature of a probed disk: an attribute, elements.
type Wish = (&'static str, &'static str);

const IO_URING: Wish = ("io='io_uring'", "");
/// Two I/O threads for two queues.
const QUEUE_MAPPING: Wish = (
    "",
    "<iothreads><iothread id='1'><queue id='0'/></iothread>\
     <iothread id='2'><queue id='1'/></iothread></iothreads>",
);

/// Probes the features. A driver that cannot be probed, such as libvirt's test driver, and a
/// read-only connection have only the common ones.
pub(super) fn ask(connection: &Connect) -> Abilities {
    // Emulation uses the same program, and works without hardware virtualization; a few QEMUs are
    // built without it.
    match ask_for(connection, VirtType::Qemu) {
        none if none == Abilities::default() => ask_for(connection, VirtType::Kvm),
        some => some,
    }
}

/// Whether the host is one of Arm, by libvirt.
fn is_arm(connection: &Connect) -> bool {
    connection.node_info().is_ok_and(|node| node.model == "aarch64")
}

/// Probes a nested SMMUv3, which no other host than one of Arm has. Without validation libvirt drops
/// attributes that it does not know, so what counts is that its QEMU would get this one.
pub(super) fn accelerates_smmu(connection: &Connect) -> bool {
    if !is_arm(connection) {
        return false;
    }
    let can = |virt: VirtType| {
        let probe = smmu_probe(virt);
        let line = connection.domain_xml_to_native("qemu-argv", &probe, 0);
        line.is_ok_and(|line| line.contains("\"accel\":true"))
    };
    can(VirtType::Kvm) || can(VirtType::Qemu)
}

/// Makes a guest with a nested SMMUv3.
fn smmu_probe(virt: VirtType) -> String {
    format!(
        "<domain type='{}'><name>gpuvm-probe</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>\
         <os><type arch='aarch64' machine='virt'>hvm</type></os><devices>\
         <controller type='pci' index='0' model='pcie-root'/>\
         <controller type='pci' index='1' model='pcie-expander-bus'><target busNr='32'/>\
         </controller><iommu model='smmuv3'><driver pciBus='1' accel='on'/></iommu></devices>\
         </domain>",
        virt.as_str()
    )
}

/// Probes the features for guests of a kind.
fn ask_for(connection: &Connect, virt: VirtType) -> Abilities {
    let can = |wish| connection.domain_xml_to_native("qemu-argv", &probe(virt, wish), 0).is_ok();
    // One probe in the usual case that everything works.
    if can((IO_URING.0, QUEUE_MAPPING.1)) {
        return Abilities { io_uring: true, queue_mapping: true, ..Abilities::default() };
    }
    Abilities { io_uring: can(IO_URING), queue_mapping: can(QUEUE_MAPPING), ..Abilities::default() }
}

/// Makes a guest whose only disk uses a feature. libvirt does not open the disk's file for the
/// probe.
fn probe(virt: VirtType, (attribute, elements): Wish) -> String {
    let virt = virt.as_str();
    format!(
        "<domain type='{virt}'><name>gpuvm-probe</name><memory unit='MiB'>64</memory><vcpu>2</vcpu>\
         <iothreads>2</iothreads><os><type>hvm</type></os><devices><disk type='file' device='disk'>\
         <driver name='qemu' type='raw' cache='none' queues='2' {attribute}>{elements}</driver>\
         <source file='/var/lib/libvirt/images/gpuvm-probe'/><target dev='vda' \
         bus='virtio'/></disk>\
         </devices></domain>"
    )
}
