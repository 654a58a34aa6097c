//! Features that a host, its libvirt and its QEMU lack for passthrough by iommufd. Knows no
//! definition.

use crate::bdf::Bdf;
use crate::shell::word;
use crate::topology::{DeviceKind, PciDevice, Topology};
use crate::versions::{
    Defect, KERNEL_PEERS, LIBVIRT_IOMMUFD, LIBVIRT_IOMMUFD_DEVICES, QEMU_PEERS, Version, Versions,
};

/// The host and the hypervisor that pass the functions through.
#[derive(Debug, Clone, Copy)]
pub struct Way<'a> {
    /// The host.
    pub topology: &'a Topology,
    /// Versions of libvirt and QEMU.
    pub versions: Versions,
    /// The support in libvirt's domain capabilities; `None` if not known, so its version counts.
    pub offered: Option<bool>,
}

/// Something that is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// The missing feature, half a sentence.
    pub what: String,
    /// The version or setting that enables it.
    pub remedy: String,
    /// Whether passing through by VFIO groups needs it, too.
    pub by_groups_too: bool,
}

impl Way<'_> {
    /// Returns the missing features, as far as known. `is_whole`: for the element of the domain,
    /// which newer versions of libvirt support than that of a device.
    pub fn lacks(&self, is_whole: bool, functions: &[Bdf]) -> Vec<Lack> {
        let node = self.node();
        let device = self.device(functions).filter(|_| node.is_none());
        let libvirt = self.libvirt(is_whole, node.is_none());
        [node, device, libvirt].into_iter().flatten().collect()
    }

    /// A kernel without iommufd.
    fn node(&self) -> Option<Lack> {
        self.topology.machine().iommufd.filter(|iommufd| !iommufd.node)?;
        Some(Lack {
            what: "the host has no /dev/iommu: its kernel is built without CONFIG_IOMMUFD, or the \
                   module iommufd is not loaded"
                .to_owned(),
            remedy: "`modprobe iommufd` loads it, if the kernel has CONFIG_IOMMUFD".to_owned(),
            by_groups_too: false,
        })
    }

    /// A kernel that makes no devices of VFIO beside its groups.
    fn device(&self, functions: &[Bdf]) -> Option<Lack> {
        let functions = functions.iter().filter_map(|bdf| self.topology.device(*bdf));
        let mut without = functions.filter(|one| one.vfio.is_some_and(|vfio| !vfio.node));
        let bdf = without.next()?.bdf;
        Some(Lack {
            what: format!(
                "{bdf} has no /dev/vfio/devices/vfioN: the kernel is built without \
                 CONFIG_VFIO_DEVICE_CDEV"
            ),
            remedy: "a kernel with CONFIG_VFIO_DEVICE_CDEV has it".to_owned(),
            by_groups_too: false,
        })
    }

    /// A kernel without VFIO groups: libvirt 12.9 passes no function through where /dev/vfio/vfio
    /// is missing, not even by iommufd ("VFIO PCI device assignment is not supported by the host").
    pub fn groups(&self) -> Option<Lack> {
        let version = self.versions.libvirt;
        let version = version.map_or_else(String::new, |version| format!(" {version}"));
        (self.topology.lacks_vfio_groups() && self.offered != Some(true)).then(|| Lack {
            what: format!(
                "this kernel has no VFIO groups (CONFIG_VFIO_GROUP), without which \
                 libvirt{version} passes no function through"
            ),
            remedy: "a kernel with CONFIG_VFIO_GROUP has them".to_owned(),
            by_groups_too: true,
        })
    }

    /// A libvirt that cannot do it. Where the kernel lacks it, a libvirt that knows it offers none
    /// either.
    fn libvirt(&self, is_whole: bool, has_node: bool) -> Option<Lack> {
        if let Some(lack) = self.groups().filter(|_| has_node) {
            return Some(lack);
        }
        let version = self.versions.libvirt;
        let needed = if is_whole { LIBVIRT_IOMMUFD } else { LIBVIRT_IOMMUFD_DEVICES };
        let is_old = version.is_some_and(|version| version < needed);
        let knows_devices = version.is_none_or(|version| version >= LIBVIRT_IOMMUFD_DEVICES);
        let what = match (self.offered, version) {
            (Some(true), Some(version)) if is_old && knows_devices => {
                format!(
                    "libvirt {version} knows iommufd of single devices only, and gpuvm writes that \
                     of the domain"
                )
            }
            (None, Some(version)) if is_old => {
                format!("libvirt {version} does not know iommufd there: {needed} does")
            }
            (Some(false), _) if has_node || !knows_devices => {
                let version = version.map_or_else(String::new, |version| format!(" {version}"));
                format!("libvirt{version} with its QEMU does not offer iommufd")
            }
            _ => return None,
        };
        let remedy = format!("libvirt {needed} or later has it");
        Some(Lack { what, remedy, by_groups_too: false })
    }

    /// Returns the defect by which GPUs and NICs of one guest do not reach each other, and the
    /// version that has it; `None` if they do, or there are not two.
    pub fn unreached(&self, functions: &[Bdf]) -> Option<(Defect, Version)> {
        let functions = functions.iter().filter_map(|bdf| self.topology.device(*bdf));
        let of = |kind| functions.clone().filter(move |device| device.kind() == kind);
        let is_coherent = |gpu: &&PciDevice| self.topology.coherent_model(gpu).is_some();
        let coherent = of(DeviceKind::Gpu).filter(is_coherent).count();
        self.among(of(DeviceKind::Gpu).count(), coherent, of(DeviceKind::Nic).count())
    }

    /// The same of this many GPUs, those with coherent memory included, and NICs. GPUs with coherent
    /// memory reach each other by NVLink, and NICs by the processor's memory.
    fn among(&self, gpus: usize, coherent: usize, nics: usize) -> Option<(Defect, Version)> {
        let by_pcie = gpus.saturating_sub(coherent);
        if by_pcie == 0 && coherent > 0 { None } else { self.among_peers(by_pcie + nics) }
    }

    /// The same of this many functions whose only way to each other is PCIe.
    fn among_peers(&self, peers: usize) -> Option<(Defect, Version)> {
        if peers < 2 {
            return None;
        }
        let release = self.topology.machine().kernel_release.as_deref().unwrap_or_default();
        let has = |defect: Defect, version: Option<Version>| {
            let bad = version.filter(|version| defect.is_in(*version, release));
            bad.map(|version| (defect, version))
        };
        has(KERNEL_PEERS, Version::read(release)).or_else(|| has(QEMU_PEERS, self.versions.qemu))
    }

    /// The same as something that is missing.
    pub fn unreached_lack(&self, functions: &[Bdf]) -> Option<Lack> {
        self.unreached(functions).map(apart)
    }

    /// The same for guests with this many of the host's GPUs, or shares of these, and NICs.
    pub fn lack_among(&self, gpus: usize, nics: usize) -> Option<Lack> {
        let mut all = self.topology.of_kind(DeviceKind::Gpu);
        let are_coherent = all.all(|gpu| self.topology.coherent_model(gpu).is_some());
        let coherent = if are_coherent { gpus } else { 0 };
        self.among(gpus, coherent, nics).map(apart)
    }
}

/// A version with a defect by which devices do not reach each other.
fn apart((defect, version): (Defect, Version)) -> Lack {
    let name = defect.of.name();
    let what = format!("devices of this guest could not reach each other: {name} is {version}");
    let remedy = match defect.good_from() {
        Some(good) => format!("with {name} {good} or later they do"),
        None => defect.remedy(),
    };
    Lack { what, remedy, by_groups_too: false }
}

/// A remedy with the command that leads the domain of this name back to groups, unless it needs
/// iommufd.
pub fn or_back(remedy: &str, name: &str, needs_iommufd: bool) -> String {
    if needs_iommufd {
        return remedy.to_owned();
    }
    let name = word(name);
    format!(
        "{remedy}; `gpuvm tune {name} --iommufd off` passes the functions through by VFIO groups"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::file::from_json;
    use crate::topology::{Iommufd, VfioDevice};

    /// A host with this kernel, which has /dev/iommu or not.
    fn host(node: Option<bool>, kernel: &str) -> Topology {
        let host = from_json(include_str!("../../topologies/dgx-h100.json")).unwrap();
        let mut parts = host.parts().clone();
        parts.machine.iommufd =
            node.map(|node| Iommufd { node, unsafe_interrupts: None, groups: None });
        parts.machine.kernel_release = Some(kernel.to_owned());
        Topology::new(parts).unwrap()
    }

    #[test]
    fn missing_parts_are_named() {
        let old = Version(11, 3, 0);
        for (node, libvirt, offered, is_whole, said) in [
            (None, None, None, true, ""),
            (Some(true), Some(Version(12, 9, 0)), Some(true), true, ""),
            (Some(false), Some(Version(12, 9, 0)), Some(false), true, "/dev/iommu"),
            (Some(false), Some(old), Some(false), true, "/dev/iommu; 11.3.0"),
            (Some(true), Some(old), None, true, "11.3.0"),
            (Some(true), Some(Version(12, 1, 0)), Some(true), true, "single devices only"),
            (Some(true), Some(Version(12, 1, 0)), Some(true), false, ""),
            (Some(true), Some(Version(12, 9, 0)), Some(false), true, "does not offer"),
            // One that a distribution has taken into an older version.
            (Some(true), Some(Version(12, 0, 0)), Some(true), true, ""),
        ] {
            let topology = &host(node, "7.3.4");
            let versions = Versions { libvirt, qemu: None };
            let lacks = Way { topology, versions, offered }.lacks(is_whole, &[]);
            let parts: Vec<&str> = said.split("; ").filter(|part| !part.is_empty()).collect();
            assert_eq!(lacks.len(), parts.len(), "{node:?} {libvirt:?} {offered:?}: {lacks:?}");
            for (lack, part) in lacks.iter().zip(parts) {
                assert!(lack.what.contains(part), "{part}: {lack:?}");
            }
        }
    }

    #[test]
    fn a_kernel_without_groups_passes_nothing_through() {
        let versions = Versions { libvirt: Some(Version(12, 9, 0)), qemu: None };
        for (groups, offered, is_refused) in [
            (Some(false), Some(false), true),
            (Some(false), None, true),
            (Some(false), Some(true), false),
            (Some(true), Some(true), false),
            (None, Some(true), false),
        ] {
            let mut parts = host(Some(true), "7.3.4").parts().clone();
            let iommufd = parts.machine.iommufd.unwrap();
            parts.machine.iommufd = Some(Iommufd { groups, ..iommufd });
            let topology = &Topology::new(parts).unwrap();
            let way = Way { topology, versions, offered };
            let lacks = way.lacks(true, &[]);
            assert_eq!(lacks.first().cloned(), way.groups());
            assert_eq!(way.groups().is_some(), is_refused, "{groups:?} {offered:?}");
            assert!(lacks.iter().all(|lack| lack.what.contains("CONFIG_VFIO_GROUP")), "{lacks:?}");
        }
    }

    #[test]
    fn a_kernel_that_makes_no_devices_of_vfio_is_named() {
        let mut parts = host(Some(true), "7.3.4").parts().clone();
        let gpu = host(None, "").gpus().next().unwrap().bdf;
        let found = parts.devices.iter_mut().find(|device| device.bdf == gpu).unwrap();
        found.vfio = Some(VfioDevice { number: 0, node: false });
        let topology = &Topology::new(parts).unwrap();
        let way = Way { topology, versions: Versions::default(), offered: None };
        let lacks = way.lacks(true, &[gpu]);
        assert!(lacks[0].what.contains("CONFIG_VFIO_DEVICE_CDEV"), "{lacks:?}");
        assert_eq!(way.lacks(true, &[]), []);
    }

    #[test]
    fn gpus_with_coherent_memory_reach_each_other_and_nics_without_pcie() {
        let mut parts = host(Some(true), "6.17.0").parts().clone();
        let gpus: Vec<Bdf> = host(None, "").gpus().map(|gpu| gpu.bdf).collect();
        parts.machine.architecture = Some("aarch64".to_owned());
        for gpu in parts.devices.iter_mut().filter(|device| gpus.contains(&device.bdf)) {
            gpu.device = 0x2941;
        }
        let coherent = &Topology::new(parts.clone()).unwrap();
        let nics: Vec<Bdf> = coherent.of_kind(DeviceKind::Nic).map(|nic| nic.bdf).take(2).collect();
        let way = |topology| Way { topology, versions: Versions::default(), offered: None };
        assert_eq!(way(coherent).unreached_lack(&[&gpus[..4], &nics].concat()), None);
        assert_eq!(way(coherent).lack_among(4, 2), None);
        // NICs alone have only PCIe, and so has another GPU.
        assert!(way(coherent).unreached_lack(&nics).is_some());
        assert!(way(coherent).lack_among(0, 2).is_some());
        parts.devices.iter_mut().find(|device| device.bdf == gpus[0]).unwrap().device = 0x2330;
        let mixed = &Topology::new(parts).unwrap();
        assert!(way(mixed).unreached_lack(&[gpus[0], gpus[1], nics[0]]).is_some());
        assert_eq!(way(mixed).unreached_lack(&[gpus[1], gpus[2], nics[0]]), None);
    }

    #[test]
    fn two_devices_need_a_kernel_and_a_qemu_that_join_them() {
        let (old, new) = (Some(Version(10, 2, 0)), Some(Version(11, 1, 0)));
        for (kernel, qemu, count, component) in [
            ("6.17.0-5-generic", new, 2, Some("the host's kernel is 6.17.0")),
            ("6.17.0-5-generic", new, 1, None),
            ("6.19.0", old, 2, Some("QEMU is 10.2.0")),
            ("6.19.0", new, 2, None),
            ("", None, 2, None),
        ] {
            let topology = &host(Some(true), kernel);
            let gpus: Vec<Bdf> = topology.gpus().take(count).map(|gpu| gpu.bdf).collect();
            let versions = Versions { libvirt: None, qemu };
            let lack = Way { topology, versions, offered: None }.unreached_lack(&gpus);
            let what = lack.map(|lack| lack.what);
            assert_eq!(what.is_some(), component.is_some(), "{kernel} {qemu:?}: {what:?}");
            if let (Some(what), Some(component)) = (what, component) {
                assert!(what.contains("could not reach each other") && what.contains(component));
            }
        }
    }
}
