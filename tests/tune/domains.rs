//! Domains to tune, as others write them.

use gpuvm::bdf::Bdf;
use gpuvm::domain::DomainXml;
use gpuvm::domain::guest::Abilities;
use gpuvm::placement::Occupancy;
use gpuvm::topology::Topology;
use gpuvm::tune::{Given, Items, TuneError, Tuned, tune};
use gpuvm::versions::Versions;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The content of a domain as `nvidia-vm` and then an admin would have written it.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Its name.
    pub name: &'static str,
    /// Its vCPUs.
    pub vcpus: u32,
    /// Its memory.
    pub memory_kib: u64,
    /// Its pins, vCPU 0 first.
    pub pins: Vec<u32>,
    /// Indexes of its GPUs.
    pub gpus: std::ops::Range<usize>,
    /// What stands in `<domain>` besides.
    pub more: &'static str,
}

impl Wanted {
    /// A guest of `nvidia-vm` on a DGX-2 (gpuvm-nvidia-vm(7), SIZES and PINS).
    pub fn vendor(first: usize, count: usize) -> Wanted {
        let names = [(1, "one"), (2, "two"), (4, "four"), (8, "eight"), (16, "sixteen")];
        let name = names.iter().find(|(number, _)| *number == count).unwrap().1;
        let cores = |package: u32, from: u32, number: u32| {
            let from = 24 * package + from;
            (from..from + number, from + 48..from + 48 + number)
        };
        let pins = match count {
            16 => {
                let ((a, c), (b, d)) = (cores(0, 0, 23), cores(1, 0, 23));
                a.chain(b).chain(c).chain(d).collect()
            }
            _ => {
                let count = u32::try_from(count).unwrap();
                let first = u32::try_from(first).unwrap();
                let (a, b) = cores(first / 8, 3 * (first % 8), 3 * count);
                let keep = if count == 1 { (3, 2) } else { (3 * count - 1, 3 * count - 1) };
                a.take(keep.0 as usize).chain(b.take(keep.1 as usize)).collect::<Vec<u32>>()
            }
        };
        Wanted {
            name,
            vcpus: u32::try_from(pins.len()).unwrap(),
            memory_kib: 94_807_040 * count as u64,
            pins,
            gpus: first..first + count,
            more: "",
        }
    }

    /// Its XML on a host.
    pub fn xml(&self, host: &Topology) -> String {
        let Wanted { name, vcpus, memory_kib, more, .. } = self;
        let mut pins = String::new();
        for (vcpu, pcpu) in self.pins.iter().enumerate() {
            write!(pins, "\n    <vcpupin vcpu='{vcpu}' cpuset='{pcpu}'/>").unwrap();
        }
        let cputune = if pins.is_empty() {
            String::new()
        } else {
            format!("\n  <cputune>{pins}\n  </cputune>")
        };
        let all: Vec<Bdf> = host.gpus().map(|gpu| gpu.bdf).collect();
        let mut hostdevs = String::new();
        for bdf in &all[self.gpus.clone()] {
            write!(
                hostdevs,
                "
    <hostdev mode='subsystem' type='pci' managed='yes'>
      <source>
        <address domain='0x{:04x}' bus='0x{:02x}' slot='0x{:02x}' function='0x{:x}'/>
      </source>
    </hostdev>",
                bdf.segment(),
                bdf.bus(),
                bdf.device(),
                bdf.function()
            )
            .unwrap();
        }
        format!(
            "<domain type='kvm'>
  <name>{name}</name>
  <metadata>
    <their:note xmlns:their='urn:their'>ours &amp; theirs</their:note>
  </metadata>
  <memory unit='KiB'>{memory_kib}</memory>
  <vcpu placement='static'>{vcpus}</vcpu>{cputune}{more}
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
  </os>
  <cpu mode='host-passthrough' check='none'/>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <!-- the boot disk -->
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2'/>
      <source file='/var/lib/libvirt/images/{name}.qcow2'/>
      <target dev='vda' bus='virtio'/>
    </disk>
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2'/>
      <source file='/raid/dgx-kvm/vol-{name}'/>
      <target dev='vdb' bus='virtio'/>
    </disk>
    <interface type='network'>
      <mac address='52:54:00:d8:ec:20'/>
      <source network='default'/>
      <model type='virtio'/>
    </interface>
    <console type='pty'/>{hostdevs}
    <memballoon model='virtio'/>
  </devices>
</domain>
"
        )
    }
}

/// Tunes a domain on a host whose other domains hold this, and knows nothing of a hypervisor.
pub fn tuned(
    xml: &DomainXml,
    topology: &Topology,
    others: &Occupancy,
    items: &Items,
) -> Result<Tuned, TuneError> {
    let given = Given {
        topology,
        others,
        items,
        allow: gpuvm::request::Allow::default(),
        disks: &BTreeMap::new(),
        abilities: Abilities::default(),
        versions: &Versions::default(),
    };
    tune(xml, &given)
}
