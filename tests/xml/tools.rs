//! libvirt's judgement: its schema, and its QEMU driver as if this machine were the recorded host.

use super::guests::{TEMPLATES, guest, hosts, render, requests};
use crate::support::{host_tree, known, project, run, skip};
use gpuvm::domain::guest::{Guest, VirtType};
use gpuvm::domain::{DomainXml, differences, edits};
use gpuvm::placement::{Occupancy, Placement, plan};
use gpuvm::topology::Topology;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Whether a program is installed; otherwise reports that a test was skipped.
pub fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    if !found {
        skip::<()>(format!("{program} is not installed"));
    }
    found
}

/// The complaint of `virt-xml-validate` about a file; none if it is valid.
pub fn invalid(file: &Path) -> Option<String> {
    let (code, out, err) = run(Command::new("virt-xml-validate").arg(file));
    (code != 0).then(|| format!("{}: {out}{err}", file.display()))
}

/// The guests of the built-in template on a host, by name.
pub fn guests_of(
    host: &str,
    topology: &Topology,
) -> BTreeMap<String, (Guest, Placement, DomainXml)> {
    let mut guests = BTreeMap::new();
    for (wish, request) in requests(topology) {
        if let Ok(place) = plan(topology, &Occupancy::default(), &request) {
            let name = format!("{host}-{wish}");
            let guest = guest(&name, VirtType::Kvm, &request);
            let xml = render(TEMPLATES[0].1, &guest, &place, topology);
            guests.insert(name, (guest, place, xml));
        }
    }
    guests
}

#[test]
fn templates_and_guests_are_valid_by_libvirts_schema() {
    if !has("virt-xml-validate") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for entry in fs::read_dir(project().join("templates")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            files.push(path);
        }
    }
    let mut add = |name: String, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        files.push(path);
    };
    for (host, topology) in hosts() {
        let guests = guests_of(&host, &topology);
        for (name, (guest, place, xml)) in &guests {
            add(format!("{name}.xml"), xml.text());
            if name.ends_with("g1") || name.ends_with("huge-2m") {
                for (template, text) in &TEMPLATES[1..] {
                    let xml = render(text, guest, place, &topology);
                    add(format!("{name}-{template}.xml"), xml.text());
                }
            }
        }
    }
    let wrong: Vec<String> = files.iter().filter_map(|file| invalid(file)).collect();
    assert_eq!(wrong, Vec::<String>::new());
    let bad = dir.path().join("bad.xml");
    fs::write(&bad, "<domain type='kvm'><name>a</name><nonsense/></domain>").unwrap();
    assert!(invalid(&bad).is_some(), "virt-xml-validate takes everything");
}

/// Whether a host, by its directory, can pass functions through. libvirt 12 refuses to write QEMU's
/// arguments elsewhere.
pub fn passes_functions(host: &Path) -> bool {
    let groups = host.join("sys/kernel/iommu_groups").read_dir();
    groups.is_ok_and(|mut groups| groups.next().is_some())
}

/// Runs virsh commands on QEMU's embedded driver as if this machine were a recorded host, and
/// returns what each printed.
pub fn as_host(host: &Path, root: &Path, commands: &[String]) -> Vec<String> {
    fs::write(root.join("script"), commands.join("\n") + "\n").unwrap();
    let uri = format!("qemu:///embed?root={}", root.join("embedded").display());
    // libvirt 12 gives QEMU functions only where there is VFIO, which nothing opens here.
    let vfio = "mkdir -p /dev/vfio; mount -t tmpfs tmpfs /dev/vfio && touch /dev/vfio/vfio";
    let virsh = format!("exec virsh -q -c '{uri}' <script 2>&1");
    let shell = format!("{vfio}; cd '{}' && {virsh}", root.display());
    let mut command = Command::new(project().join("tests/as-host"));
    // libvirt opens tap devices for a command line of QEMU, by numbers of the network namespace.
    command.arg(host).args(["unshare", "--net", "bash", "-c", &shell]).env("LC_ALL", "C");
    let known = root.join("embedded").join(known::EMBEDDED);
    known::give(&known, host);
    let (_, out, err) = run(&mut command);
    known::keep(&known);
    // Each command follows its prompt, and its answer is in the lines below.
    let answer = |text: &str| text.split_once('\n').unwrap_or_default().1.trim().to_owned();
    let said: Vec<String> = out.split("virsh # ").skip(1).map(answer).collect();
    let said = said[..commands.len().min(said.len())].to_vec();
    assert_eq!(said.len(), commands.len(), "{out}\n{err}");
    said
}

/// libvirt accepts every guest of a recorded host on that host, and keeps it as planned.
fn taken(host: &str, topology: &Topology) {
    let dir = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir()
        .unwrap();
    fs::create_dir_all(dir.path().join("embedded/etc")).unwrap();
    let guests = guests_of(host, topology);
    let mut commands = Vec::new();
    let tree = host_tree(host);
    let has_arguments = |name: &str, place: &Placement| {
        // No 1 GiB pages can be mounted on every machine, and libvirt looks for a mount.
        !name.ends_with("huge-1g") && (place.devices.is_empty() || passes_functions(&tree))
    };
    for (name, (_, place, xml)) in &guests {
        let file = dir.path().join(format!("{name}.xml"));
        fs::write(&file, xml.text()).unwrap();
        commands.push(format!("define --validate {name}.xml"));
        commands.push(format!("dumpxml --inactive {name}"));
        let command = format!("domxml-to-native qemu-argv {name}.xml");
        let is_asked = has_arguments(name, place);
        commands.push(if is_asked { command } else { "echo -smp".into() });
    }
    let said = as_host(&tree, dir.path(), &commands);
    for ((name, (guest, place, xml)), said) in guests.iter().zip(said.chunks(3)) {
        let [defined, dumped, native] = said else { panic!("{name}: {said:?}") };
        assert!(!defined.contains("error:"), "{name}: {defined}");
        let start = dumped.find("<domain").unwrap_or_else(|| panic!("{name}: {dumped}"));
        let dumped = DomainXml::parse(&dumped[start..]).unwrap();
        assert_eq!(differences(xml, &dumped), [], "{name}");
        assert_eq!(edits(&dumped, guest, place, topology).unwrap(), [], "{name}");
        assert!(native.contains("-smp"), "{name}: {native}");
        let functions = native.matches("\"vfio-pci\"").count();
        let wanted = if has_arguments(name, place) { place.devices.len() } else { 0 };
        assert_eq!(functions, wanted, "{name}: {native}");
    }
}

#[test]
fn libvirt_takes_every_guest_on_its_host_and_keeps_it_as_planned() {
    if !nix::unistd::geteuid().is_root() {
        return skip("needs root");
    }
    if !has("virsh") || !has("qemu-system-x86_64") {
        return;
    }
    // Each libvirt takes seconds to probe QEMU's capabilities.
    std::thread::scope(|scope| {
        for (host, topology) in hosts() {
            scope.spawn(move || taken(&host, &topology));
        }
    });
}
