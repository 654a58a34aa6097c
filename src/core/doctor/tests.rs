//! The rules on values; the integration tests have a tree of files for each.

use super::*;
use crate::topology::file::from_json;

fn host() -> Topology {
    from_json(include_str!("../../../topologies/dual-socket.json")).unwrap()
}

/// Diagnoses a host with these facts.
fn found(topology: &Topology, facts: &Facts) -> Diagnosis {
    let versions = Versions::default();
    let connection = &Connection::NotAsked("not asked".into());
    diagnose(&Case { topology, facts, guests: None, versions: &versions, connection })
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
    let names: std::collections::BTreeSet<_> = rules().map(|rule| rule.id).collect();
    assert_eq!((names.len(), RULES.len() + journal::RULES.len()), (42, 42));
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
fn a_libvirt_before_12_7_is_named_with_its_vulnerabilities() {
    let (host, facts) = (host(), Facts::default());
    let found = |libvirt: Option<Version>| {
        let versions = Versions { libvirt, ..Versions::default() };
        let connection = &Connection::NotAsked("not asked".into());
        let (topology, facts, versions) = (&host, &facts, &versions);
        let case = Case { topology, facts, guests: None, versions, connection };
        let Diagnosis { findings, not_checked, .. } = diagnose(&case);
        let one = findings.into_iter().find(|finding| finding.rule == "libvirt-cves");
        (one, not_checked.iter().any(|rule| rule.starts_with("libvirt-cves (")))
    };
    let (one, unchecked) = found(Some(Version(12, 6, 0)));
    let one = one.unwrap();
    for cve in ["CVE-2026-18917", "CVE-2026-77158", "CVE-2026-77159"] {
        assert!(one.says.message.contains(cve), "{}", one.says.message);
    }
    assert_eq!((one.severity, unchecked), (Severity::Warning, false));
    assert!(one.hint.contains("fixed upstream in 12.7; your distribution may have backported it"));
    assert_eq!(found(Some(Version(12, 7, 0))), (None, false));
    assert_eq!(found(None), (None, true));
}

#[test]
fn an_older_initramfs_is_told_while_something_is_bound_or_was_taken_away() {
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
fn what_a_host_names_is_no_command() {
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
    let told = format!("# remove from the kernel's arguments: {evil}");
    assert!(lines.contains(&told), "{lines:?}");
}
