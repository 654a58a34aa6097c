//! What this libvirt and its QEMU can do with disks, found by asking: libvirt's domain capabilities do not say it, and
//! version numbers lie where a distribution adds or leaves out. libvirt writes the command line of a guest that asks for
//! it, or says that QEMU cannot; nothing is made or started for that.

use gpuvm_core::domain::guest::{Abilities, VirtType};
use virt::connect::Connect;

/// What the probed disk asks for: an attribute, elements.
type Wish = (&'static str, &'static str);

/// io_uring.
const IO_URING: Wish = ("io='io_uring'", "");
/// Two I/O threads for two queues.
const QUEUE_MAPPING: Wish = (
    "",
    "<iothreads><iothread id='1'><queue id='0'/></iothread>\
     <iothread id='2'><queue id='1'/></iothread></iothreads>",
);

/// Asks. A driver that cannot be asked, such as libvirt's test driver, and a connection for reading only can do nothing
/// beyond what every one can.
pub(super) fn ask(connection: &Connect) -> Abilities {
    // The emulator is the same program, and works where the host has no hardware virtualization; a few are built without.
    match ask_for(connection, VirtType::Qemu) {
        none if none == Abilities::default() => ask_for(connection, VirtType::Kvm),
        some => some,
    }
}

/// Asks what guests of a kind can have.
fn ask_for(connection: &Connect, virt: VirtType) -> Abilities {
    let can = |wish| connection.domain_xml_to_native("qemu-argv", &probe(virt, wish), 0).is_ok();
    // One question where all goes well, which is the usual case.
    if can((IO_URING.0, QUEUE_MAPPING.1)) {
        return Abilities { io_uring: true, queue_mapping: true, ..Abilities::default() };
    }
    Abilities { io_uring: can(IO_URING), queue_mapping: can(QUEUE_MAPPING), ..Abilities::default() }
}

/// A guest whose only disk asks for something. libvirt does not open the disk's file for that.
fn probe(virt: VirtType, (attribute, elements): Wish) -> String {
    let virt = virt.as_str();
    format!(
        "<domain type='{virt}'><name>gpuvm-probe</name><memory unit='MiB'>64</memory><vcpu>2</vcpu>\
         <iothreads>2</iothreads><os><type>hvm</type></os><devices><disk type='file' device='disk'>\
         <driver name='qemu' type='raw' cache='none' queues='2' {attribute}>{elements}</driver>\
         <source file='/var/lib/libvirt/images/gpuvm-probe'/><target dev='vda' bus='virtio'/></disk>\
         </devices></domain>"
    )
}
