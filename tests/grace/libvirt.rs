//! libvirt's judgement on guests of Grace, where it knows SMMUv3s of single buses
//! (`tests/trixie/run`): its schema, and its QEMU driver as if this machine were the tray.

use super::{NEW, exported, on, tray};
use crate::support::grace::complete_for_libvirt;
use crate::support::{lawful, skip};
use crate::xml::tools::{as_host, has};
use gpuvm::domain::{DomainXml, differences};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use tempfile::TempDir;

/// Parts of a definition that this machine, an x86 one, cannot have, and the emulated ones.
const OF_KVM: [(&str, &str); 2] = [
    ("<domain type='kvm'", "<domain type='qemu'"),
    ("<cpu mode='host-passthrough' check='none'", "<cpu mode='maximum' check='none'"),
];

/// Whether this machine's libvirt and QEMU can judge guests of Grace; otherwise reports the reason.
fn can_judge() -> bool {
    let schema = fs::read_to_string("/usr/share/libvirt/schemas/domaincommon.rng");
    if !schema.is_ok_and(|text| text.contains("name=\"ssidsize\"")) {
        return skip(lawful::NOT_DEBIAN_13);
    }
    if !nix::unistd::geteuid().is_root() {
        return skip("needs root");
    }
    has("virsh") && has("qemu-system-aarch64")
}

/// A tray with all files that libvirt reads, and a directory for definitions; none: libvirt cannot
/// judge them.
pub fn place() -> Option<(TempDir, TempDir)> {
    if !can_judge() {
        return None;
    }
    let mode = fs::Permissions::from_mode(0o755);
    let dir = tempfile::Builder::new().permissions(mode).tempdir().unwrap();
    fs::create_dir_all(dir.path().join("embedded/etc")).unwrap();
    Some((tray(complete_for_libvirt), dir))
}

/// The definition of a guest of this name, emulated.
pub fn emulated(host: &Path, name: &str, options: &[&str]) -> String {
    let text = exported(host, options).text().to_owned();
    let text = text.replace("<name>a</name>", &format!("<name>{name}</name>"));
    OF_KVM.iter().fold(text, |text, (kvm, tcg)| {
        assert!(text.contains(kvm), "{kvm}: {text}");
        text.replace(kvm, tcg)
    })
}

/// QEMU's arguments for definitions in files of these names, without the shell's quotes.
pub fn rendered(host: &Path, dir: &Path, names: &[String]) -> Vec<String> {
    let command = |name: &String| format!("domxml-to-native qemu-argv {name}.xml");
    let said = as_host(host, dir, &names.iter().map(command).collect::<Vec<_>>());
    said.into_iter().map(|text| text.replace("\\\n", " ").replace('\'', "")).collect()
}

/// The findings of our checker in a definition that libvirt has, as of a guest by KVM.
fn checked(host: &Path, dir: &Path, text: &str) -> (i32, String) {
    let text = OF_KVM.iter().fold(text.to_owned(), |text, (kvm, tcg)| text.replace(tcg, kvm));
    let file = dir.join("checked.xml");
    fs::write(&file, text).unwrap();
    let (code, out, err) = on(host, &["check", file.to_str().unwrap(), NEW[0], NEW[1]]);
    (code, out + &err)
}

#[test]
fn guests_are_valid_kept_as_planned_and_without_findings() {
    let Some((host, dir)) = place() else { return };
    let (host, dir) = (host.path(), dir.path());
    let sizes = [1, 2, 4];
    let mut commands = Vec::new();
    for gpus in sizes {
        let xml = emulated(host, &format!("g{gpus}"), &["--gpus", &gpus.to_string()]);
        fs::write(dir.join(format!("g{gpus}.xml")), &xml).unwrap();
        commands.push(format!("define --validate g{gpus}.xml"));
        commands.push(format!("dumpxml --inactive g{gpus}"));
    }
    let said = as_host(host, dir, &commands);
    for (gpus, said) in sizes.iter().zip(said.chunks(2)) {
        let [defined, dumped] = said else { panic!("{said:?}") };
        assert!(!defined.contains("error:"), "{gpus}: {defined}");
        let start = dumped.find("<domain").unwrap_or_else(|| panic!("{gpus}: {dumped}"));
        let dumped = DomainXml::parse(&dumped[start..]).unwrap();
        let written = fs::read_to_string(dir.join(format!("g{gpus}.xml"))).unwrap();
        assert_eq!(differences(&DomainXml::parse(&written).unwrap(), &dumped), [], "{gpus}");
        let (code, found) = checked(host, dir, dumped.text());
        assert!(code == 0 && found.contains("nothing found"), "{gpus}: {found}");
    }
}

/// The arguments of a guest with 4 GPUs are these for each of them (grace.md, 4).
#[test]
fn arguments_have_cells_buses_and_smmus_of_each_gpu() {
    let Some((host, dir)) = place() else { return };
    let (host, dir) = (host.path(), dir.path());
    let sizes = [(1, 1), (2, 1), (4, 2)];
    let mut names = Vec::new();
    for (gpus, _) in sizes {
        let name = format!("g{gpus}");
        let xml = emulated(host, &name, &["--gpus", &gpus.to_string()]);
        fs::write(dir.join(format!("{name}.xml")), xml).unwrap();
        names.push(name);
    }
    for ((gpus, sockets), said) in sizes.into_iter().zip(rendered(host, dir, &names)) {
        let count = |text: &str| said.matches(text).count();
        let cells = sockets + 8 * gpus;
        assert_eq!(count("-numa node,nodeid="), cells, "{said}");
        assert_eq!(count("-numa dist,src="), cells * cells, "{said}");
        assert_eq!(count("\"qom-type\":\"iommufd\""), 1, "{said}");
        let devices =
            DomainXml::parse(&fs::read_to_string(dir.join(format!("g{gpus}.xml"))).unwrap())
                .unwrap();
        let devices = devices.root().child("devices").unwrap();
        let window = devices.children("controller").find_map(|one| one.child("pcihole64"));
        let window = format!(",highmem-mmio-size={}K", window.unwrap().text());
        assert_eq!(count(&window), 1, "{window}: {said}");
        let buses =
            devices.children("iommu").map(|smmu| super::attribute(smmu, "driver", "pciBus"));
        for (at, bus) in buses.enumerate() {
            let node = at * sockets / gpus;
            for part in [
                format!("\"id\":\"pci.{bus}\",\"numa_node\":{node}"),
                format!("\"id\":\"ua-gpu{at}-port\",\"bus\":\"pci.{bus}\""),
                format!(
                    "{{\"driver\":\"arm-smmuv3\",\"primary-bus\":\"pci.{bus}\",\"id\":\"iommu{at}\",\
                     \"accel\":true,\"ats\":\"on\",\"ril\":\"off\",\"ssidsize\":\"20\",\
                     \"oas\":\"48\"}}"
                ),
                format!(
                    "\"id\":\"ua-gpu{at}\",\"iommufd\":\"iommufd0\",\"bus\":\"ua-gpu{at}-port\""
                ),
            ] {
                assert_eq!(count(&part), 1, "{part}: {said}");
            }
            for cell in (0..8).map(|cell| sockets + 8 * at + cell) {
                let part = format!("\"pci-dev\":\"ua-gpu{at}\",\"node\":{cell}}}");
                assert_eq!(count(&part), 1, "{part}: {said}");
            }
        }
        assert_eq!(count("\"acpi-generic-initiator\""), 8 * gpus, "{said}");
        assert_eq!(count("\"driver\":\"vfio-pci\""), gpus, "{said}");
    }
}

/// Changes of a definition that libvirt accepts, and the rule that finds each (grace.md, 4).
const TRAPS: [(&str, &str, &str); 10] = [
    ("smmu-without-bus", "<driver pciBus='6' accel", "<driver accel"),
    ("smmu-needs-iommufd", "  <iommufd enabled='yes'/>\n", ""),
    ("smmu-bus-twice", "<driver pciBus='8'", "<driver pciBus='6'"),
    ("smmu-bus-kind", "<driver pciBus='8'", "<driver pciBus='9'"),
    (
        "smmu-without-bus",
        "<driver pciBus='8' accel='on' ats='on' ril='off' ssidsize='20' oas='48'/>",
        "",
    ),
    ("gi-nodeset", "nodeset='9-16'", "nodeset='40-47'"),
    ("gi-nodeset", "nodeset='9-16'", "nodeset='1-8'"),
    ("smmu-value", "oas='48'", "oas='52'"),
    ("arm-window", "<pcihole64 unit='KiB'>", "<pcihole64 unit='KiB'>3"),
    ("smmu-value", "ssidsize='20'", "ssidSize='20'"),
];

#[test]
fn faults_that_libvirt_accepts_are_found() {
    let Some((host, dir)) = place() else { return };
    let (host, dir) = (host.path(), dir.path());
    let sound = emulated(host, "a", &["--gpus", "2"]);
    let mut commands = Vec::new();
    for (at, (rule, from, to)) in TRAPS.iter().enumerate() {
        assert!(sound.contains(from), "{rule}: {from}");
        let xml =
            sound.replacen(from, to, 1).replace("<name>a</name>", &format!("<name>t{at}</name>"));
        fs::write(dir.join(format!("t{at}.xml")), xml).unwrap();
        commands.push(format!("define t{at}.xml"));
    }
    let said = as_host(host, dir, &commands);
    for (at, ((rule, ..), said)) in TRAPS.iter().zip(said).enumerate() {
        assert!(!said.contains("error:"), "{rule}: {said}");
        let text = fs::read_to_string(dir.join(format!("t{at}.xml"))).unwrap();
        let (code, found) = checked(host, dir, &text);
        assert!(code == 3 && found.contains(&format!("({rule})")), "{rule}: {found}");
    }
}
