//! `nccl`: the files that it prints, parsed as NCCL parses them, and those shipped by clouds.

mod firmware;
mod reader;

use crate::support::tree::{host_text, scratch, unpack};
use crate::support::{gpuvm, project, run, shared_hosts};
use gpuvm::bdf::Bdf;
use gpuvm::domain::DomainXml;
use gpuvm::nccl::{Cpu, Pci, PcieLink, System, addresses_of, place};
use gpuvm::topology::Link;
use reader::{Node, Placed, Refused, read};
use std::path::{Path, PathBuf};

/// A recorded host, a request on it, and the number of elements that NCCL reads.
const GUESTS: [(&str, &str, usize); 6] = [
    ("dgx-a100", "--gpus 2 --nic 2 --nic-near switch", 8),
    ("dgx-h100", "--gpus 8 --nic 8", 27),
    ("dgx-1", "--gpus 8 --nic 4", 19),
    ("dgx-2", "--gpus 16", 31),
    ("dual-socket", "--gpus 1", 3),
    ("dual-socket", "--gpus 2 --nic 1", 6),
];

/// A recorded host.
fn host(name: &str) -> String {
    project().join(format!("topologies/{name}.json")).display().to_string()
}

/// The definition that `create` would make, in a file.
pub fn exported(dir: &Path, host_name: &str, words: &str) -> PathBuf {
    let host = host(host_name);
    let mut args = vec!["export", "--name", "t", "--host", &host];
    args.extend(words.split(' '));
    let (code, xml, err) = run(&mut gpuvm(&args));
    assert_eq!(code, 0, "{words}: {err}");
    let file = dir.join("t.xml");
    std::fs::write(&file, xml).unwrap();
    file
}

/// Runs `nccl` for a definition on a host.
fn nccl(file: &Path, host_name: &str, more: &[&str]) -> (i32, String, String) {
    let (file, host) = (file.display().to_string(), host(host_name));
    run(&mut gpuvm(&[&["nccl", &file, "--host", &host], more].concat()))
}

#[test]
fn files_of_recorded_hosts_are_as_kept_and_nccl_reads_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for (host, words, elements) in GUESTS {
        let file = exported(dir.path(), host, words);
        let (code, out, err) = nccl(&file, host, &[]);
        assert_eq!(code, 0, "{err}");
        assert_eq!(nccl(&file, host, &[]).1, out, "another file of the same");
        let recorded = self::host(host);
        let mut args = vec!["export", "--name", "t", "--host", &recorded, "--format", "nccl"];
        args.extend(words.split(' '));
        assert_eq!(run(&mut gpuvm(&args)).1, out, "export prints another one");
        assert_eq!(read(out.as_bytes()).unwrap().count(), elements, "{host} {words}: {out}");
        let name = format!("{host}{}.xml", words.replace(" --", "-").replace(' ', ""));
        let kept = project().join("tests/golden/nccl").join(name.replace("--", "-"));
        let text = format!("{err}{out}");
        if std::env::var_os("GPUVM_RENEW").is_some() {
            std::fs::create_dir_all(kept.parent().unwrap()).unwrap();
            std::fs::write(&kept, &text).unwrap();
        }
        if std::fs::read_to_string(&kept).unwrap_or_default() != text {
            wrong.push((kept, text));
        }
    }
    assert!(wrong.is_empty(), "GPUVM_RENEW=1 renews: {wrong:#?}");
}

#[test]
fn a_switch_that_redirects_to_the_root_complex_is_reported() {
    let dir = scratch();
    let tree = dir.path().join("host");
    unpack(&host_text("dgx-a100"), &tree).unwrap();
    let file = exported(dir.path(), "dgx-a100", "--gpus 2 --nic 2 --nic-near switch");
    let (file, tree_text) = (file.to_str().unwrap(), tree.to_str().unwrap());
    let told = || {
        let (code, _, err) = run(&mut gpuvm(&["nccl", file, "--host", tree_text]));
        assert_eq!(code, 0, "{err}");
        err
    };
    assert!(!told().contains("ACS"), "nobody can see it");
    // ACS with request redirect, as Linux sets it where the IOMMU is on.
    let mut config = [0; 4096];
    config[0x100..0x108].copy_from_slice(&[0x0d, 0x00, 0x01, 0x00, 0x5f, 0x00, 0x1d, 0x00]);
    let devices = tree.join("sys/bus/pci/devices");
    let all: Vec<_> = std::fs::read_dir(&devices).unwrap().map(|one| one.unwrap().path()).collect();
    let write = |config: &[u8]| {
        all.iter().for_each(|device| std::fs::write(device.join("config"), config).unwrap());
    };
    write(&config);
    let err = told();
    assert!(err.contains("ACS redirects transfers at 0000:"), "{err}");
    assert!(!err.contains("0000:00:01.1"), "a root port is above what they share: {err}");
    config[0x106] = 0x01;
    write(&config);
    assert!(!told().contains("ACS"), "it is off");
}

#[test]
fn misreadable_trees_are_refused_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let file = exported(dir.path(), "dgx-h100", "--gpus 2 --nic 2");
    let good = std::fs::read_to_string(&file).unwrap();
    let parsed = DomainXml::parse(&good).unwrap();
    let devices = parsed.root().child("devices").unwrap();
    let hostdevs: Vec<_> = devices.children("hostdev").collect();
    let address = |hostdev: usize| hostdevs[hostdev].child("address").unwrap().xml().to_owned();
    let nic = hostdevs.len() - 2;
    let moved = address(nic).replace("slot='0x00'", "slot='0x01'");
    let same_bus = address(nic + 1).replace("slot='0x00'", "slot='0x01'");
    let bus = address(0).split("bus='").nth(1).unwrap()[..4].to_owned();
    let nowhere = address(0).replace(&format!("bus='{bus}'"), "bus='0x77'");
    for (xml, code, what, hint) in [
        // libvirt adds the controllers of buses when it defines a domain; `check` has no say in it.
        (
            good.replace(&address(0), &nowhere),
            "nccl-unconnected",
            "not connected to a root bus",
            "virsh define",
        ),
        (good.replace(&address(nic), &moved), "nccl-nic-place", ":01.0 in the guest", "tune"),
        (
            good.replace(&address(nic), &same_bus),
            "nccl-nics-on-one-bus",
            "NCCL treats them as one",
            "tune",
        ),
        (good.replace(&address(0), ""), "nccl-no-address", "has no guest address", "virsh define"),
        (good.replace("machine='q35'", "machine='pc'"), "nccl-no-pcie", "no PCI Express", "q35"),
    ] {
        assert_ne!(xml, good);
        std::fs::write(&file, xml).unwrap();
        let (exit, out, err) = nccl(&file, "dgx-h100", &[]);
        assert!(exit == 1 && out.is_empty() && err.contains(what), "{exit} {out}{err}");
        assert!(err.contains("hint: ") && err.contains(hint), "{err}");
        let (exit, out, _) = nccl(&file, "dgx-h100", &["--json"]);
        assert!(exit == 1 && out.contains(&format!("\"code\": \"{code}\"")), "{out}");
    }
    std::fs::write(&file, &good).unwrap();
    let (exit, _, err) = nccl(&file, "dgx-h100", &["--install"]);
    let here = "leave --host out; `gpuvm list` without --host shows them";
    assert!(exit == 2 && err.contains(here), "{err}");
    // On another host the functions are others, or none.
    std::fs::write(&file, &good).unwrap();
    let (exit, _, err) = nccl(&file, "dual-socket", &[]);
    assert!(exit == 1 && err.contains("does not include the bridges"), "{err}");
}

#[test]
fn a_flat_guest_without_cells_is_mended_by_the_command_that_is_hinted_at() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("flat.xml");
    let hostdev = |bus: &str, at: &str| {
        format!(
            "<hostdev mode='subsystem' type='pci' managed='yes'><source><address domain='0' \
             bus='0x{bus}' slot='0' function='0'/></source><address type='pci' {at} \
             function='0'/></hostdev>"
        )
    };
    let xml = format!(
        "<domain type='kvm'><name>flat</name><memory unit='GiB'>8</memory><vcpu>4</vcpu><os><type \
         arch='x86_64' \
         machine='q35'>hvm</type></os><devices><controller type='pci' index='0' \
         model='pcie-root'/><controller \
         type='pci' index='1' model='pcie-root-port'><address type='pci' bus='0' slot='2' \
         function='0'/>\
         </controller><controller type='usb' index='0' model='none'/><memballoon model='none'/>{}{}</devices></domain>",
        hostdev("1b", "bus='0' slot='5'"),
        hostdev("18", "bus='1' slot='1'")
    );
    std::fs::write(&file, xml).unwrap();
    let (code, _, err) = nccl(&file, "dgx-h100", &[]);
    assert!(code == 1 && err.contains("--pcie on` gives each a root port"), "{err}");
    let (path, host) = (file.display().to_string(), host("dgx-h100"));
    let (code, tuned, err) = run(&mut gpuvm(&["tune", "--host", &host, &path, "--pcie", "on"]));
    assert_eq!(code, 0, "{err}");
    assert!(!tuned.contains("<node>"), "{tuned}");
    std::fs::write(&file, tuned).unwrap();
    let (code, out, err) = nccl(&file, "dgx-h100", &[]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(read(out.as_bytes()).unwrap().placed().len(), 3, "{out}");
}

#[test]
fn the_definition_remembers_the_file_that_the_seed_brings() {
    let dir = tempfile::tempdir().unwrap();
    let (own, host) = (dir.path().join("user-data"), host("dgx-h100"));
    let own_path = own.display().to_string();
    for (user_data, is_told, said) in [
        ("runcmd: [[a]]", true, "second start"),
        ("write_files: []", false, "a --install` writes it later"),
        ("bootcmd: []", true, ""),
    ] {
        std::fs::write(&own, format!("#cloud-config\n{user_data}\n")).unwrap();
        let words = ["create", "--name", "a", "--gpus", "2", "--nic", "2", "--dry-run", "--json"];
        let more = ["--accept-shared-fabric", "--user-data", &own_path, "--host", &host];
        let (code, out, err) = run(&mut gpuvm(&[&words[..], &more].concat()));
        assert!(code == 0 && err.contains(said), "{user_data}: {err}");
        let steps: serde_json::Value = serde_json::from_str(&out).unwrap();
        let mut defined = steps.as_array().unwrap().iter().filter_map(|step| step["xml"].as_str());
        let xml = DomainXml::parse(defined.next().expect("it is defined")).unwrap();
        let remembered = xml.seeded_nccl();
        assert_eq!(remembered.is_some(), is_told, "{user_data}: {err}");
        let Some(remembered) = remembered else { continue };
        let file = dir.path().join("a.xml");
        std::fs::write(&file, xml.text()).unwrap();
        let (_, told, _) = nccl(&file, "dgx-h100", &[]);
        assert_eq!(place::sum_of(&told), Some(&*remembered.sum));
        let named: Vec<Bdf> = remembered.functions.iter().map(|(_, guest)| *guest).collect();
        assert_eq!(named, addresses_of(&told));
        assert_eq!(xml.record().unwrap().unwrap().nccl, Some(remembered));
    }
}

#[test]
fn tune_says_that_a_file_in_the_guest_is_outdated() {
    let dir = tempfile::tempdir().unwrap();
    let file = exported(dir.path(), "dgx-h100", "--gpus 2 --nic 2");
    let (path, host) = (file.display().to_string(), host("dgx-h100"));
    let words = ["tune", &path, "--host", &host, "--pcie", "on", "--dry-run", "--assume-empty"];
    let told = |more: &[&str]| run(&mut gpuvm(&[&words[..], more].concat())).1;
    let renew = "` prints it then";
    assert!(!told(&[]).contains(renew), "{}", told(&[]));
    // On root ports NCCL finds no node; tune gives other addresses.
    let device = |bus: &str, index: u32| {
        format!(
            "<controller type='pci' index='{index}' model='pcie-root-port'><address type='pci' \
             bus='0' \
             slot='{index}' function='0'/></controller><hostdev mode='subsystem' type='pci' \
             managed='yes'><source>\
             <address domain='0' bus='0x{bus}' slot='0' function='0'/></source><address type='pci' \
             bus='{index}' \
             slot='0' function='0'/></hostdev>"
        )
    };
    let xml = format!(
        "<domain type='kvm'><name>flat</name><memory unit='GiB'>8</memory><vcpu>4</vcpu><os><type \
         arch='x86_64' machine='q35'>hvm</type></os><devices><controller type='usb' index='0' \
         model='none'/><memballoon model='none'/>{}{}</devices></domain>",
        device("1b", 2),
        device("18", 3)
    );
    std::fs::write(&file, xml).unwrap();
    assert!(told(&[]).contains(renew), "{}", told(&[]));
    assert!(told(&["--json"]).contains(renew), "{}", told(&["--json"]));
    let check = |file: &str| {
        let out = run(&mut gpuvm(&["check", file, "--host", &host, "--assume-empty"])).1;
        (out.contains("gpu-near-no-cell"), out)
    };
    let (is_found, out) = check(&path);
    assert!(is_found && out.contains("--cells on --pcie on"), "{out}");
    let cells = ["tune", &path, "--host", &host, "--cells", "on", "--pcie", "on"];
    let (code, tuned, err) = run(&mut gpuvm(&[&cells[..], &["--assume-empty"]].concat()));
    assert_eq!(code, 0, "{err}");
    std::fs::write(&file, tuned).unwrap();
    let (is_found, out) = check(&path);
    assert!(!is_found, "{out}");
}

/// The files of clouds and of machines that others recorded.
fn public_files() -> Option<Vec<PathBuf>> {
    let entries = std::fs::read_dir(shared_hosts()?.join("nccl")).unwrap();
    let files = entries.map(|entry| entry.unwrap().path());
    Some(files.filter(|path| path.extension().is_some_and(|end| end == "xml")).collect())
}

#[test]
fn nccls_reader_takes_the_files_of_clouds() {
    let Some(files) = public_files() else { return };
    assert!(files.len() >= 11, "{files:?}");
    for file in files {
        let name = file.file_name().unwrap().to_str().unwrap();
        let bytes = std::fs::read(&file).unwrap();
        match (name.starts_with("rccl"), read(&bytes)) {
            // RCCL's are of a version of its own, which NCCL refuses.
            (true, Err(Refused::Usage(_))) | (true, Ok(_)) => {}
            (false, Ok(system)) => {
                let gpus =
                    system.placed().iter().filter(|one| one.class.starts_with("0x03")).count();
                let expected = match name {
                    "aws-g5.48xl-topo.xml" => 0,
                    _ if name.contains("ncv4") || name.contains("perlmutter") => 4,
                    _ => 8,
                };
                assert_eq!(gpus, expected, "{name}");
            }
            (_, other) => panic!("{name}: {other:?}"),
        }
    }
}

/// The element of one that was read, as ours; none if its address is not PCI's.
fn as_ours(node: &Node) -> Pci {
    let busid: Bdf = node.attr("busid").unwrap().parse().unwrap();
    let speed = node.attr("link_speed").and_then(|speed| {
        let number: f64 = speed.split(' ').next()?.parse().ok()?;
        Some((number * 10.0).round() as u32)
    });
    let width = node.attr("link_width").and_then(|width| width.parse().ok());
    Pci {
        busid,
        host: busid,
        class: node.attr("class").unwrap().to_owned(),
        link: PcieLink::new(&Link { speed_dgts: speed, width }),
        ids: None,
        below: node.below.iter().filter(|node| node.name == "pci").map(as_ours).collect(),
    }
}

#[test]
fn our_writer_says_of_a_clouds_tree_what_the_clouds_file_says() {
    let Some(files) = public_files() else { return };
    let names = ["azure-ndv4-topo.xml", "azure-ndv2-topo.xml", "aws-p4d-24xl-topo.xml"];
    for name in names {
        let file = files.iter().find(|file| file.ends_with(name)).expect("it is there");
        let theirs = read(&std::fs::read(file).unwrap()).unwrap();
        let cpus = theirs.below.iter().map(|cpu| Cpu {
            numaid: cpu.attr("numaid").unwrap().parse().unwrap(),
            below: cpu.below.iter().map(as_ours).collect(),
        });
        let ours = System { cpus: cpus.collect() }.to_string();
        let known = |one: &Placed| one.rate.is_some();
        let (ours, theirs) = (read(ours.as_bytes()).unwrap().placed(), theirs.placed());
        assert!(theirs.len() >= 9 && theirs.iter().all(known), "{name}: {theirs:?}");
        assert_eq!(ours, theirs, "{name}");
    }
}
