//! The rules on values; the integration tests have a tree of files for each.

use super::*;
use crate::cpuset::CpuSet;
use crate::topology::file::from_json;

fn host() -> Topology {
    from_json(include_str!("../../../topologies/dual-socket.json")).unwrap()
}

/// A host of which no guest and no version is known.
fn case<'a>(topology: &'a Topology, facts: &'a Facts, connection: &'a Connection) -> Case<'a> {
    const NOTHING_FIXED: &BTreeSet<String> = &BTreeSet::new();
    const VERSIONS: &Versions = &Versions { libvirt: None, qemu: None };
    let (versions, fixed, offers_iommufd) = (VERSIONS, NOTHING_FIXED, None);
    let (guests, traits) = (None, None);
    Case { topology, facts, guests, versions, offers_iommufd, connection, traits, fixed }
}

/// Diagnoses a host with these facts.
fn found(topology: &Topology, facts: &Facts) -> Diagnosis {
    let versions = Versions::default();
    let connection = &Connection::NotAsked("not asked".into());
    diagnose(&Case { versions: &versions, ..case(topology, facts, connection) })
}

#[test]
fn a_record_without_facts_has_no_error_and_says_what_was_not_checked() {
    let diagnosis = found(&host(), &Facts::default());
    let is_error = |finding: &&Finding| finding.severity == Severity::Error;
    assert_eq!(diagnosis.findings.iter().find(is_error), None);
    for rule in ["console-holds-gpu", "d3cold", "memlock", "ksm", "governor"] {
        let is_of = |text: &String| text.starts_with(&format!("{rule} ("));
        assert!(diagnosis.not_checked.iter().any(is_of), "{rule}: {:?}", diagnosis.not_checked);
    }
}

#[test]
fn a_host_without_gpus_differs_from_one_whose_functions_are_not_known() {
    let judged = |keep: fn(&PciDevice) -> bool| {
        let mut parts = host().parts().clone();
        parts.devices.retain(keep);
        parts.drives.clear();
        let diagnosis = found(&Topology::new(parts).unwrap(), &Facts::default());
        let is_error = diagnosis.findings.iter().any(|finding| finding.rule == "no-gpu");
        (is_error, diagnosis.not_checked.iter().any(|text| text.starts_with("no-gpu (")))
    };
    assert_eq!(judged(|device| device.kind() != DeviceKind::Gpu), (true, false));
    assert_eq!(judged(|_| false), (false, true));
}

#[test]
fn rules_have_names_of_their_own_and_findings_come_in_their_order() {
    let names: BTreeSet<_> = rules().map(|rule| rule.id).collect();
    assert_eq!((names.len(), RULES.len() + journal::RULES.len()), (50, 50));
    let kernel = crate::topology::facts::KernelSettings {
        ksm: Some(true),
        aspm: Some("powersave".into()),
        ..Default::default()
    };
    let gpu: Bdf = "0000:86:00.0".parse().unwrap();
    // It fell off the bus.
    let mut parts = host().parts().clone();
    let lost = parts.devices.iter_mut().find(|device| device.bdf == gpu).unwrap();
    (lost.vendor, lost.device) = (0xffff, 0xffff);
    let host = Topology::new(parts).unwrap();
    let facts = Facts { kernel, ..Facts::default() };
    let all = found(&host, &facts).findings;
    let ids: Vec<_> = all.iter().map(|finding| finding.rule).collect();
    assert_eq!(ids, ["d3cold", "slow-large-bars", "ksm", "aspm"]);
    let of = |devices: &[Bdf]| concerning(all.clone(), devices).len();
    assert_eq!((of(&[gpu]), of(&[])), (1, 0));
    assert!(all[0].says.fatal);
    // The kernel's default is no word at each guest.
    let mut idle = all.clone();
    idle[0].severity = Severity::Warning;
    assert!(concerning(idle, &[gpu]).is_empty());
}

#[test]
fn a_kernel_without_vfio_groups_is_an_error_unless_libvirt_does_without_them() {
    let found = |groups: Option<bool>, offers_iommufd| {
        let mut parts = host().parts().clone();
        let iommufd = crate::topology::Iommufd { node: true, unsafe_interrupts: None, groups };
        parts.machine.iommufd = Some(iommufd);
        let (topology, facts) = (Topology::new(parts).unwrap(), Facts::default());
        let connection = &Connection::NotAsked("not asked".into());
        let base = case(&topology, &facts, connection);
        let all = diagnose(&Case { offers_iommufd, ..base });
        let one = all.findings.iter().find(|finding| finding.rule == "no-vfio-groups");
        let is_checked = !all.not_checked.iter().any(|rule| rule.starts_with("no-vfio-groups ("));
        // Each verb that gives a guest functions says so itself.
        assert_eq!(concerning(all.findings.clone(), &[]), []);
        (one.map(|one| (one.severity, one.hint.clone())), is_checked)
    };
    let (one, is_checked) = found(Some(false), None);
    let (severity, hint) = one.unwrap();
    assert_eq!((severity, is_checked), (Severity::Error, true));
    assert!(hint.contains("CONFIG_VFIO_GROUP"), "{hint}");
    assert!(found(Some(false), Some(false)).0.is_some());
    assert_eq!(found(Some(false), Some(true)), (None, true));
    assert_eq!(found(Some(true), None), (None, true));
    assert_eq!(found(None, None), (None, false));
}

#[test]
fn vulnerabilities_of_libvirt_weigh_by_what_guests_have_and_the_package_has_fixed() {
    let (host, facts) = (host(), Facts::default());
    let fixed = |cves: &[&str]| BTreeSet::from_iter(cves.iter().map(|cve| (*cve).to_owned()));
    let found = |libvirt: Option<Version>, traits: Traits, fixed: &BTreeSet<String>| {
        let versions = Versions { libvirt, ..Versions::default() };
        let connection = &Connection::NotAsked("not asked".into());
        let traits = Some(traits);
        let base = case(&host, &facts, connection);
        let Diagnosis { findings, not_checked, .. } =
            diagnose(&Case { versions: &versions, traits, fixed, ..base });
        let one = findings.into_iter().find(|finding| finding.rule == "libvirt-cves");
        (one, not_checked.iter().any(|rule| rule.starts_with("libvirt-cves (")))
    };
    let (none, plain) = (BTreeSet::new(), Traits::default());
    let (agent, tpm) = (Traits { agent: true, ..plain }, Traits { tpm: true, ..plain });
    let (one, unchecked) = found(Some(Version(12, 6, 0)), agent, &none);
    let one = one.unwrap();
    for cve in ["CVE-2026-18917", "CVE-2026-77158", "CVE-2026-77159"] {
        assert!(one.says.message.contains(cve), "{}", one.says.message);
    }
    assert!(!one.says.message.contains("CVE-2025-"), "{}", one.says.message);
    assert_eq!((one.severity, unchecked), (Severity::Warning, false));
    assert!(one.hint.contains("fixed upstream in 12.7; your distribution may have backported it"));
    let severity = |libvirt: Version, traits, fixed: &BTreeSet<String>| {
        found(Some(libvirt), traits, fixed).0.map(|one| one.severity)
    };
    let old = Version(11, 3, 0);
    let agents = fixed(&["CVE-2026-77158"]);
    assert_eq!(severity(old, plain, &none), Some(Severity::Note));
    assert_eq!(severity(old, tpm, &none), Some(Severity::Warning));
    assert_eq!(severity(old, agent, &agents), Some(Severity::Note));
    assert_eq!(severity(old, tpm, &agents), Some(Severity::Warning));
    let all = ["CVE-2026-18917", "CVE-2026-77158", "CVE-2026-77159"];
    assert_eq!(severity(Version(12, 0, 0), agent, &fixed(&all)), None);
    assert_eq!(severity(Version(12, 9, 0), agent, &none), None);
    assert_eq!(found(None, agent, &none), (None, true));
}

#[test]
fn a_defect_is_listed_where_the_host_has_what_it_is_about() {
    let facts = Facts::default();
    let listed = |change: &dyn Fn(&mut crate::topology::Machine), versions: Versions| {
        let mut parts = host().parts().clone();
        parts.machine.kernel_release = Some("6.12.43+deb13-amd64".into());
        change(&mut parts.machine);
        let topology = Topology::new(parts).unwrap();
        let connection = &Connection::NotAsked("not asked".into());
        let base = case(&topology, &facts, connection);
        let all = diagnose(&Case { versions: &versions, ..base }).known_defects;
        all.into_iter().map(|defect| defect.what).collect::<Vec<_>>().join("\n")
    };
    let of = |libvirt: (u32, u32), qemu: (u32, u32)| Versions {
        libvirt: Some(Version(libvirt.0, libvirt.1, 0)),
        qemu: Some(Version(qemu.0, qemu.1, 0)),
    };
    let iommufd = |machine: &mut crate::topology::Machine| {
        machine.iommufd =
            Some(crate::topology::Iommufd { node: true, unsafe_interrupts: None, groups: None });
    };
    let plain = |_: &mut crate::topology::Machine| {};
    assert!(!listed(&plain, of((11, 3), (10, 2))).contains("iommufd"));
    let said = listed(&iommufd, of((11, 3), (10, 2)));
    for words in ["iommufd and dma-buf", "wrong pages", "count as locked memory"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!listed(&iommufd, of((12, 9), (11, 1))).contains("wrong pages"));
    let amd = |machine: &mut crate::topology::Machine| {
        machine.cpu_vendor = Some("AuthenticAMD".into());
    };
    let of_amd = "arch-capabilities";
    assert!(listed(&amd, of((12, 4), (10, 1))).contains(of_amd));
    for (change, versions) in [
        (&amd as &dyn Fn(&mut _), of((12, 4), (10, 0))),
        (&amd, of((12, 5), (10, 1))),
        (&plain, of((12, 4), (10, 1))),
    ] {
        assert!(!listed(change, versions).contains(of_amd));
    }
    assert!(listed(&plain, of((12, 5), (11, 1))).contains("missing from its list"));
    assert_eq!(listed(&plain, of((12, 9), (11, 1))), "");
}

#[test]
fn the_daemon_ends_guests_itself_from_11_6_on() {
    use crate::topology::facts::{GuestsUnit, LibvirtConfig};
    let topology = host();
    let said = |enabled: bool, auto_shutdown: bool, libvirt: (u32, u32)| {
        let unit = GuestsUnit { enabled, timeout_s: None };
        let config = LibvirtConfig { auto_shutdown, ..LibvirtConfig::default() };
        let facts = Facts { guests_unit: Some(unit), libvirt: Some(config), ..Facts::default() };
        let versions = Versions { libvirt: Some(Version(libvirt.0, libvirt.1, 0)), qemu: None };
        let connection = &Connection::NotAsked("not asked".into());
        let base = case(&topology, &facts, connection);
        let all = diagnose(&Case { versions: &versions, ..base }).findings;
        all.into_iter().find(|one| one.rule == "guests-at-shutdown").map(|one| one.hint)
    };
    assert!(said(false, false, (11, 3)).unwrap().contains("`systemctl enable --now"));
    for enabled in [false, true] {
        let hint = said(enabled, true, (11, 3)).unwrap();
        assert!(hint.starts_with("remove auto_shutdown_*"), "{hint}");
    }
    assert!(said(true, true, (11, 6)).unwrap().contains("`systemctl disable libvirt-guests`"));
    assert_eq!(said(false, true, (11, 6)), None);
}

#[test]
fn an_older_initramfs_is_reported_while_devices_are_bound_or_removed() {
    use crate::topology::facts::{BootDrivers, InitramfsTool};
    let said = |file: &str, at_boot: &[&str]| {
        let at_boot = at_boot.iter().map(|bdf| bdf.parse().unwrap()).collect();
        let stale = Some(("boot/initrd.img-6.1".to_owned(), file.to_owned()));
        let drivers = BootDrivers { stale, at_boot, ..BootDrivers::default() };
        let initramfs = Some(InitramfsTool::Dracut);
        let facts = Facts { boot_drivers: Some(drivers), initramfs, ..Facts::default() };
        let all = found(&host(), &facts).findings;
        let of_image = |one: &&Finding| one.says.at == "/boot/initrd.img-6.1";
        all.iter().find(of_image).map(|one| (one.says.message.clone(), one.says.fix.clone()))
    };
    assert_eq!(said("etc/modprobe.d/a.conf", &[]), None);
    let (bound, _) = said("etc/modprobe.d/a.conf", &["0000:86:00.0"]).unwrap();
    assert!(bound.contains("/etc/modprobe.d/a.conf") && bound.contains("may take the GPU"));
    let (taken, fix) = said("etc/initramfs-tools/scripts/init-top", &[]).unwrap();
    assert!(taken.contains("is still in it") && fix == ["dracut --force --regenerate-all"]);
}

#[test]
fn a_script_has_each_command_once_and_those_for_all_changes_last() {
    let finding = |fix: &[&str]| {
        let says = OfHost {
            message: "m".into(),
            expected: "e".into(),
            found: "f".into(),
            at: "a".into(),
            device: None,
            fatal: false,
            fix: fix.iter().map(|line| (*line).to_owned()).collect(),
        };
        crate::finding::Finding::by(&device::D3COLD, says, String::new())
    };
    let renew = "update-initramfs -u -k all";
    let both = [finding(&["a", renew]), finding(&["a", "b", renew])];
    let head = "# warning: m (d3cold)";
    assert_eq!(script(&both), [head, "a", head, "b", renew]);
    assert!(script(&[]).is_empty());
}

#[test]
fn names_on_a_host_are_not_commands() {
    use crate::topology::facts::{BootDrivers, BootLoader, FunctionUser};
    let mut parts = host().parts().clone();
    let evil = "pcie_acs_override='$(reboot)/e;";
    parts.machine.kernel_arguments.push(evil.into());
    parts.machine.kernel_release = Some("6.8.0-generic".into());
    let gpu = "0000:18:00.0".parse().unwrap();
    let user = FunctionUser { bdf: gpu, by: "process 7 (x\nreboot\u{1b})".into() };
    let virqfd = Some("etc/modules-load.d/a;reboot\n.conf".to_owned());
    let facts = Facts {
        users: Some(vec![user]),
        boot_drivers: Some(BootDrivers { virqfd, ..BootDrivers::default() }),
        boot_loader: Some(BootLoader::UpdateGrub),
        ..Facts::default()
    };
    let lines = script(&found(&Topology::new(parts).unwrap(), &facts).findings);
    assert!(lines.iter().all(|line| !line.chars().any(char::is_control)), "{lines:?}");
    let commands: Vec<_> = lines.iter().filter(|line| !line.starts_with('#')).collect();
    let quoted = "'/etc/modules-load.d/a;reboot\u{fffd}.conf'";
    assert_eq!(commands, [&format!(r"sed -i 's/\bvfio_virqfd\b//' {quoted}")]);
    let line = format!("# remove from the kernel's arguments: {evil}");
    assert!(lines.contains(&line), "{lines:?}");
}

#[test]
fn isolation_of_whole_cores_leaves_each_node_one_for_the_host() {
    // A node of 8 cores: pcpu 0 and 8 are one, and so on.
    let expected = |isolated: &str| {
        let mut parts = host().parts().clone();
        let whole: Vec<CpuSet> =
            (0..8).map(|core| format!("{core},{}", core + 8).parse().unwrap()).collect();
        let first = parts.cores[0].clone();
        parts.nodes.truncate(1);
        parts.nodes[0].pcpus = "0-15".parse().unwrap();
        parts.nodes[0].distances = vec![10];
        let core = |(pcpus, id): (CpuSet, u32)| crate::topology::Core {
            pcpus,
            core_id: id,
            ..first.clone()
        };
        parts.cores = whole.into_iter().zip(0..).map(core).collect();
        (parts.l3, parts.offline, parts.devices) = (Vec::new(), CpuSet::new(), Vec::new());
        parts.drives.clear();
        parts.fabric = crate::topology::Fabric::default();
        parts.isolated = isolated.parse().unwrap();
        let all = found(&Topology::new(parts).unwrap(), &Facts::default()).findings;
        let one = all.into_iter().find(|finding| finding.rule == "isolation-mismatch");
        one.map(|one| one.says.expected)
    };
    for (isolated, whole) in [
        ("4-7,12-15", None),
        // The other threads are added where that leaves cores to the host.
        ("4-7", Some("4-7,12-15")),
        // 8 to 11 are second threads of the host's cores.
        ("4-15", Some("4-7,12-15")),
        ("1-15", Some("1-7,9-15")),
        // A thread of each core: all but one core.
        ("8-15", Some("1-7,9-15")),
    ] {
        assert_eq!(expected(isolated).as_deref(), whole, "{isolated}");
    }
}

#[test]
fn an_arm_machine_gets_no_advice_of_x86() {
    use crate::topology::Iommu;
    use crate::topology::facts::KernelSettings;
    let hints = |architecture: &str, vendor: Option<&str>| {
        let mut parts = host().parts().clone();
        parts.machine.architecture = Some(architecture.into());
        parts.machine.cpu_vendor = vendor.map(str::to_owned);
        parts.machine.iommu = Some(Iommu { groups: 0, firmware_groups: None });
        parts.devices.iter_mut().for_each(|device| device.iommu_group = None);
        let kernel = KernelSettings { kvm: Some(false), ..KernelSettings::default() };
        let facts = Facts { kernel, ..Facts::default() };
        let Diagnosis { findings, not_checked, .. } = found(&Topology::new(parts).unwrap(), &facts);
        let of = |rule: &str| {
            let one = findings.iter().find(|finding| finding.rule == rule).unwrap();
            format!("{} {} {}", one.says.message, one.hint, one.says.fix.join(" "))
        };
        let others = not_checked.iter().any(|rule| rule.starts_with("snp-tdx ("));
        (of("no-kvm"), of("iommu-off"), others)
    };
    let x86_words = ["kvm_intel", "kvm_amd", "VT-", "AMD-V", "intel_iommu", "BIOS"];
    let (kvm, iommu, others) = hints("aarch64", None);
    assert!(kvm.contains("EL2") && kvm.contains("CONFIG_KVM"), "{kvm}");
    assert!(iommu.contains("SMMU") && !others, "{iommu}");
    for word in x86_words {
        assert!(!kvm.contains(word) && !iommu.contains(word), "{word}: {kvm} {iommu}");
    }
    let (kvm, iommu, _) = hints("x86_64", Some("GenuineIntel"));
    assert!(kvm.contains("modprobe kvm_intel") && iommu.contains("VT-d"), "{kvm} {iommu}");
}

#[test]
fn gpus_with_coherent_memory_are_judged_by_known_versions_alone() {
    let mut parts = host().parts().clone();
    parts.machine.architecture = Some("aarch64".into());
    let gpu = parts.devices.iter_mut().find(|device| device.kind() == DeviceKind::Gpu).unwrap();
    (gpu.vendor, gpu.device, gpu.driver) = (0x10de, 0x2941, None);
    let topology = Topology::new(parts).unwrap();
    let (facts, connection) = (Facts::default(), &Connection::NotAsked("not asked".into()));
    let in_part = |topology: &Topology, libvirt: Option<Version>| {
        let versions = &Versions { libvirt, ..Versions::default() };
        let Diagnosis { findings, partly_checked, .. } =
            diagnose(&Case { versions, ..case(topology, &facts, connection) });
        let is_found = findings.iter().any(|finding| finding.rule == "coherent-gpu");
        (is_found, partly_checked.iter().any(|rule| rule.starts_with("coherent-gpu (")))
    };
    assert_eq!(in_part(&topology, None), (false, true));
    assert_eq!(in_part(&topology, Some(Version(12, 9, 0))), (false, false));
    let (libvirt, is_assumed) = (Some(Version(11, 3, 0)), false);
    let old = crate::topology::OldStack { libvirt, qemu: None, is_assumed };
    assert_eq!(in_part(&topology.with_old_stack(Some(old)), libvirt), (true, false));
}
