//! `--iommufd` from outside, on recorded hosts: its output, its messages, and its refusals. A libvirt
//! that knows the element judges it (`tests/trixie/run`); an older one judges the rest.

use crate::support::{gpuvm, host_tree, project, run, skip};
use crate::xml::tools::{as_host, has};
use gpuvm::discover::source::load;
use gpuvm::domain::{DomainXml, differences};
use gpuvm::topology::file::to_json;
use gpuvm::topology::{Iommufd, Topology};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// A libvirt and a QEMU that have it.
const NEW: &str = "--assume libvirt=12.9,qemu=11.1";

/// An HGX H100 with this kernel, which has /dev/iommu, has none, or does not say.
fn host(dir: &Path, node: Option<bool>, kernel: &str) -> String {
    host_of("dgx-h100", dir, node, kernel)
}

/// Another recorded host.
fn host_of(name: &str, dir: &Path, node: Option<bool>, kernel: &str) -> String {
    let mut parts =
        load(&project().join(format!("topologies/{name}.json"))).unwrap().parts().clone();
    parts.machine.iommufd =
        node.map(|node| Iommufd { node, unsafe_interrupts: None, groups: None });
    parts.machine.kernel_release = Some(kernel.to_owned());
    let path = dir.join(format!("{name}-{node:?}-{kernel}.json"));
    std::fs::write(&path, to_json(&Topology::new(parts).unwrap())).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Runs a command line on a host.
fn on(host: &str, line: &str) -> (i32, String, String) {
    let words: Vec<&str> = line.split_whitespace().collect();
    run(gpuvm(&words).args(["--host", host]))
}

const VERBS: [&str; 3] = ["plan", "export", "create --dry-run --accept-shared-fabric"];
/// Its answer is whether such a guest has a place.
const ROOM: &str = "make-room --accept-shared-fabric";

#[test]
fn missing_features_of_the_host_are_named_by_every_verb_before_any_change() {
    let dir = tempfile::tempdir().unwrap();
    let without = host(dir.path(), Some(false), "7.3.4");
    let old = host(dir.path(), Some(true), "6.17.0-5-generic");
    let new = host(dir.path(), Some(true), "7.3.4");
    for (host, line, said) in [
        (&without, format!("--gpus 1 {NEW}"), &["/dev/iommu", "CONFIG_IOMMUFD"][..]),
        (&without, "--gpus 1".to_owned(), &["/dev/iommu", "libvirt 11.3.0"]),
        (&new, "--gpus 1".to_owned(), &["libvirt 11.3.0", "12.2.0 or later"]),
        (
            &new,
            "--gpus 1 --assume libvirt=12.1,qemu=11.1".to_owned(),
            &["knows iommufd of single devices only", "12.2.0"],
        ),
        (
            &old,
            format!("--gpus 2 {NEW}"),
            &["devices of this guest could not reach each other", "6.17.0", "6.19.0 or later"],
        ),
        (&old, format!("--gpus 1 --nic 1 {NEW}"), &["could not reach each other"]),
        (
            &new,
            "--gpus 2 --assume libvirt=12.9,qemu=10.2".to_owned(),
            &["could not reach each other", "QEMU is 10.2.0", "11.0.0 or later"],
        ),
        (&old, format!("--gpus 1 {NEW}"), &[]),
        (&new, format!("--gpus 2 {NEW}"), &[]),
    ] {
        for verb in VERBS {
            let (code, _, err) = on(host, &format!("{verb} --name a --iommufd on {line}"));
            assert_eq!(code, i32::from(!said.is_empty()), "{verb} {line}: {err}");
            for words in said {
                assert!(err.contains(words), "{verb} {line}: {words}: {err}");
            }
            let back = "`--iommufd off` passes them through by VFIO groups";
            assert_eq!(err.contains(back), code == 1, "{verb} {line}: {err}");
        }
        let (code, out, err) = on(host, &format!("{ROOM} --iommufd on {line}"));
        assert_eq!(code, i32::from(!said.is_empty()), "{line}: {out}{err}");
        assert!(said.iter().all(|words| err.contains(words)), "{line}: {err}");
    }
    let (_, out, _) = on(&without, &format!("plan --name a --gpus 1 --iommufd on {NEW} --json"));
    let error: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(error["code"], "guest-no-iommufd", "{out}");
}

/// libvirt 12.9 says of each function "VFIO PCI device assignment is not supported by the host".
#[test]
fn a_kernel_without_vfio_groups_passes_nothing_through_either_way() {
    let dir = tempfile::tempdir().unwrap();
    let path = host(dir.path(), Some(true), "7.3.4");
    let (code, xml, err) = on(&path, &format!("export --name a --gpus 1 --iommufd off {NEW}"));
    assert_eq!(code, 0, "{err}");
    let by_groups = dir.path().join("groups.xml");
    std::fs::write(&by_groups, xml).unwrap();
    let check = format!("check {} {NEW}", by_groups.display());
    let (_, out, err) = on(&path, &check);
    assert!(!out.contains("iommufd-missing"), "{out}{err}");
    let mut parts = load(Path::new(&path)).unwrap().parts().clone();
    let iommufd = Iommufd { node: true, unsafe_interrupts: None, groups: Some(false) };
    parts.machine.iommufd = Some(iommufd);
    std::fs::write(&path, to_json(&Topology::new(parts).unwrap())).unwrap();
    for how in ["on", "off"] {
        for verb in VERBS {
            let line = format!("{verb} --name a --gpus 1 --iommufd {how} {NEW}");
            let (status, _, err) = on(&path, &line);
            assert!(status == 1 && err.contains("CONFIG_VFIO_GROUP"), "{line}: {err}");
            assert!(!err.contains("--iommufd off"), "{line}: {err}");
        }
        let (_, out, _) = on(&path, &format!("plan --gpus 1 --iommufd {how} {NEW} --json"));
        assert!(out.contains("guest-no-groups"), "{how}: {out}");
        let (status, _, err) = on(&path, &format!("{ROOM} --gpus 1 --iommufd {how} {NEW}"));
        assert!(status == 1 && err.contains("CONFIG_VFIO_GROUP"), "{how}: {err}");
        let (status, _, err) = on(&path, &format!("capacity --iommufd {how} {NEW}"));
        assert!(status == 1 && err.contains("CONFIG_VFIO_GROUP"), "{how}: {err}");
    }
    for files in ["", "--files"] {
        let (status, out, err) = on(&path, &format!("slurm conf --node-name n {files} {NEW}"));
        assert!(status == 1 && err.contains("CONFIG_VFIO_GROUP"), "{files}: {out}{err}");
    }
    for list in ["gpu", "device"] {
        let (_, out, err) = on(&path, &format!("{list} list --json {NEW}"));
        assert!(out.contains("without which libvirt 12.9.0 passes"), "{list}: {out}{err}");
    }
    let (status, _, err) = on(&path, &format!("plan --gpus 0 --vcpus 2 {NEW}"));
    assert_eq!(status, 0, "{err}");
    // A guest by groups that exists already.
    let (status, out, err) = on(&path, &check);
    assert!(status == 3 && out.contains("iommufd-missing"), "{status} {out}{err}");
    assert!(out.contains("CONFIG_VFIO_GROUP") && !out.contains("--iommufd off"), "{out}{err}");
}

#[test]
fn capacity_counts_the_guests_that_plan_accepts() {
    let dir = tempfile::tempdir().unwrap();
    let without = host(dir.path(), Some(false), "7.3.4");
    let old = host(dir.path(), Some(true), "6.17.0-5-generic");
    let new = host(dir.path(), Some(true), "7.3.4");
    let asked = |host: &str, more: &str| on(host, &format!("capacity --iommufd on {more}"));
    for (host, more, said) in [
        (&without, NEW, "the host has no /dev/iommu"),
        (&new, "", "libvirt 11.3.0"),
        (&old, &format!("{NEW} --gpus 2"), "devices of this guest could not reach each other"),
        (&old, &format!("{NEW} --nic 1"), "devices of this guest could not reach each other"),
    ] {
        let (code, out, err) = asked(host, more);
        assert!(code == 1 && err.contains(said), "{more}: {out}{err}");
        assert!(err.contains("`--iommufd off` passes them through by VFIO groups"), "{err}");
        let (_, out, _) = asked(host, &format!("{more} --json"));
        assert!(out.contains("guest-no-iommufd"), "{out}");
        // The same request is refused by the same words there.
        if more.contains("--gpus") || !more.contains("--nic") {
            let gpus = if more.contains("--gpus") { "" } else { "--gpus 1" };
            let (code, _, planned) = on(host, &format!("plan --iommufd on {more} {gpus}"));
            let line = |text: &str| text.lines().next().unwrap_or_default().to_owned();
            assert!(code == 1 && line(&planned) == line(&err), "{planned}{err}");
        }
    }
    let sizes = |host: &str, more: &str| {
        let (code, out, err) = asked(host, &format!("{more} --json"));
        assert_eq!(code, 0, "{more}: {err}");
        let answer: Value = serde_json::from_str(&out).unwrap();
        let sizes = answer["sizes"].as_array().unwrap().iter();
        let warnings = answer["warnings"].as_array().into_iter().flatten();
        let warned = warnings.filter(|text| text.to_string().contains("are not counted")).count();
        (sizes.map(|size| size["gpus"].as_u64().unwrap()).collect::<Vec<_>>(), warned)
    };
    assert_eq!(sizes(&new, NEW), (vec![1, 2, 4, 8], 0));
    assert_eq!(sizes(&old, NEW), (vec![1], 1));
    assert_eq!(sizes(&old, &format!("{NEW} --gpus 1")), (vec![1], 0));
    let (_, _, err) = asked(&old, NEW);
    assert!(err.contains("guests with 2, 4, 8 GPUs are not counted"), "{err}");
    // This machine's libvirt is asked, and not assumed.
    let (code, _, err) = run(&mut gpuvm(&["capacity", "--assume", "libvirt=12.9,qemu=11.1"]));
    assert!(code == 2 && err.contains("--host"), "{err}");
}

#[test]
fn the_definition_says_it_once_and_shares_its_huge_pages() {
    let dir = tempfile::tempdir().unwrap();
    let new = host(dir.path(), Some(true), "7.3.4");
    let line = |more: &str| format!("export --name a --gpus 1 --memory 8G {NEW} {more}");
    let made = |more: &str| {
        let (code, xml, err) = on(&new, &line(more));
        assert_eq!(code, 0, "{more}: {err}");
        xml
    };
    let element = "\n  <iommufd enabled='yes'/>\n";
    let shared = "<access mode='shared'/>";
    let (on_, off, auto) = (made("--iommufd on"), made("--iommufd off"), made(""));
    assert_eq!(on_.matches("<iommufd").count(), 1, "{on_}");
    assert!(on_.contains(element) && !on_.contains("<driver iommufd"), "{on_}");
    assert!(!on_.contains(shared), "{on_}");
    assert!(!off.contains("<iommufd") && !auto.contains("<iommufd"), "{off}");
    for (pages, is_shared) in [("2M", true), ("off", false)] {
        let xml = made(&format!("--iommufd on --huge-pages {pages}"));
        assert_eq!(xml.contains(shared), is_shared, "{xml}");
        assert_eq!(xml.matches("<memoryBacking>").count(), 1, "{xml}");
        let xml = made(&format!("--iommufd off --huge-pages {pages}"));
        assert!(!xml.contains(shared), "{xml}");
    }
    // The recorded setting, and that of a template.
    assert!(on_.contains("\"iommufd\":\"on\""), "{on_}");
    let template = dir.path().join("template.xml");
    let text = std::fs::read_to_string(project().join("templates/gpu-guest.xml")).unwrap();
    let text = text.replacen("<features>", "<iommufd enabled='yes'/>\n  <features>", 1);
    std::fs::write(&template, text).unwrap();
    let template = format!("--template {}", template.display());
    assert!(made(&template).contains("<iommufd enabled='yes'/>"));
    assert!(!made(&format!("{template} --iommufd off")).contains("<iommufd"));
    let (code, _, err) = on(&host(dir.path(), Some(false), "7.3.4"), &line(&template));
    assert!(code == 1 && err.contains("/dev/iommu"), "{err}");
}

#[test]
fn the_plan_says_the_way_and_why() {
    let dir = tempfile::tempdir().unwrap();
    let new = host(dir.path(), Some(true), "7.3.4");
    let unsaid = host(dir.path(), None, "7.3.4");
    for (host, more, said) in [
        (&new, "--iommufd on", Some("by iommufd, as requested")),
        (&new, "--iommufd on --huge-pages 2M", Some("its huge pages are shared memory")),
        (&new, "--iommufd off", Some("by VFIO groups, as requested")),
        (&new, "", Some("by VFIO groups, the default")),
        (&unsaid, "", None),
    ] {
        let line = format!("plan --name a --gpus 1 --memory 8G {NEW} {more}");
        let (code, out, err) = on(host, &format!("{line} --explain"));
        assert_eq!(code, 0, "{more}: {err}");
        assert_eq!(out.contains("iommufd"), said.is_some(), "{more}: {out}");
        let (code, out, err) = on(host, &format!("{line} --json"));
        assert_eq!(code, 0, "{more}: {err}");
        let plan: Value = serde_json::from_str(&out).unwrap();
        assert!(!out.contains("\"iommufd\":null"), "{out}");
        let reasons = out.split("\"choice\":\"iommufd\",\"because\":\"").nth(1);
        let reasons = reasons.or_else(|| out.split("\"choice\": \"iommufd\"").nth(1));
        assert_eq!(reasons.is_some(), said.is_some(), "{more}: {plan}");
        if let (Some(reasons), Some(said)) = (reasons, said) {
            assert!(reasons.contains(said), "{more}: {reasons}");
        }
    }
}

#[test]
fn platforms_that_cannot_say_it_list_it_as_lost() {
    let dir = tempfile::tempdir().unwrap();
    let new = host(dir.path(), Some(true), "7.3.4");
    for (format, said) in [("kubevirt", "feature gate IOMMUFD"), ("nova", "VFIO groups")] {
        let line = format!("export --name a --gpus 1 {NEW} --format {format}");
        let (code, out, err) = on(&new, &format!("{line} --iommufd on"));
        assert!(code == 0 && out.contains("lost: iommufd: "), "{err}{out}");
        let lost = out.split("lost: iommufd: ").nth(1).unwrap();
        assert!(lost.split("lost: ").next().unwrap().replace("\n#  ", "").contains(said), "{lost}");
        let (code, out, err) = on(&new, &line);
        assert!(code == 0 && !out.contains("lost: iommufd"), "{err}{out}");
    }
}

#[test]
fn a_definition_is_converted_by_tune_and_judged_by_check() {
    let dir = tempfile::tempdir().unwrap();
    let new = host(dir.path(), Some(true), "7.3.4");
    let (code, xml, err) = on(&new, &format!("export --name a --gpus 2 {NEW}"));
    assert_eq!(code, 0, "{err}");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let groups = file("groups.xml", &xml);
    let tuned = |of: &str, more: &str| on(&new, &format!("tune {of} {NEW} {more}"));
    let (code, by_iommufd, err) = tuned(&groups, "--iommufd on");
    assert!(code == 0 && by_iommufd.contains("<iommufd enabled='yes'/>"), "{err}{by_iommufd}");
    let (code, back, err) = tuned(&file("on.xml", &by_iommufd), "--iommufd off");
    assert!(code == 0 && !back.contains("<iommufd"), "{err}{back}");
    let (code, _, err) = on(&new, &format!("tune {groups} --iommufd on"));
    assert!(code == 1 && err.contains("--iommufd: libvirt"), "{err}");
    assert!(err.contains("12.2.0 or later"), "{err}");
    // One device goes its own way: a warning, and the command that ends it.
    let mixed = by_iommufd.replacen("<hostdev mode", "<hostdev\nmode", 1);
    let start = mixed.find("<hostdev\n").unwrap();
    let end = start + mixed[start..].find('>').unwrap() + 1;
    let mixed = format!("{}<driver iommufd='no'/>{}", &mixed[..end], &mixed[end..]);
    let mixed = file("mixed.xml", &mixed);
    let (_, out, err) = on(&new, &format!("check {mixed} {NEW}"));
    assert_eq!(out.matches("iommufd-mixed").count(), 1, "{out}{err}");
    assert!(out.contains(" --iommufd off`"), "{out}");
    let (code, whole, err) = tuned(&mixed, "--iommufd on");
    assert!(code == 0 && !whole.contains("<driver iommufd"), "{err}{whole}");
    let missing = host(dir.path(), Some(false), "7.3.4");
    let (_, out, err) =
        on(&missing, &format!("check {} {NEW}", dir.path().join("on.xml").display()));
    assert!(out.contains("iommufd-missing") && out.contains("--iommufd off`"), "{out}{err}");
}

#[test]
fn a_guest_by_iommufd_gets_no_function_that_plan_would_refuse() {
    let dir = tempfile::tempdir().unwrap();
    let new = host(dir.path(), Some(true), "7.3.4");
    let without = host(dir.path(), Some(false), "7.3.4");
    let old = host(dir.path(), Some(true), "6.17.0-5-generic");
    let line = format!("export --name a --gpus 1 --memory 8G --iommufd on {NEW}");
    let (code, xml, err) = on(&new, &line);
    assert_eq!(code, 0, "{err}");
    let file = dir.path().join("a.xml");
    std::fs::write(&file, xml).unwrap();
    let set =
        |host: &str, more: &str| on(host, &format!("set {} {NEW} --diff {more}", file.display()));
    for (host, said) in [(&old, "could not reach each other"), (&without, "/dev/iommu")] {
        let (code, out, err) = set(host, "--nic 1");
        assert!(code == 1 && err.contains(said), "{code} {out}{err}");
        assert!(err.contains("--iommufd off"), "{err}");
        // Its functions stay.
        let (code, out, err) = set(host, "--memory 16G");
        assert_eq!(code, 0, "{out}{err}");
    }
    let (code, out, err) = set(&new, "--nic 1");
    assert_eq!(code, 0, "{out}{err}");
}

#[test]
fn functions_that_come_go_the_way_of_those_that_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let new = host(dir.path(), Some(true), "7.3.4");
    let old = host(dir.path(), Some(true), "6.17.0-5-generic");
    let line = format!("export --name a --gpus 2 --vcpus 8 --memory 8G {NEW}");
    let (code, groups, err) = on(&new, &line);
    assert_eq!(code, 0, "{err}");
    let (code, whole, err) = on(&new, &format!("{line} --iommufd on"));
    assert_eq!(code, 0, "{err}");
    let said = |text: &str, on: &str| {
        text.replace("<driver name='vfio'/>", &format!("<driver name='vfio' iommufd='{on}'/>"))
    };
    let file = dir.path().join("a.xml");
    let set = |text: &str, host: &str, line: &str| {
        std::fs::write(&file, text).unwrap();
        on(host, &format!("set {} {NEW} {line}", file.display()))
    };
    for (text, yes, no) in [
        (said(&groups, "yes"), 4, 0),
        (said(&groups, "no"), 0, 2),
        (said(&whole, "no"), 0, 4),
        (said(&whole, "yes"), 2, 0),
        (groups.clone(), 0, 0),
        (whole, 0, 0),
    ] {
        let (code, out, err) = set(&text, &new, "--gpus 4");
        assert_eq!(code, 0, "{out}{err}");
        assert_eq!(out.matches("<hostdev").count(), 4, "{out}");
        let count = |on: &str| out.matches(&format!("iommufd='{on}'")).count();
        assert_eq!((count("yes"), count("no")), (yes, no), "{out}");
        std::fs::write(&file, &out).unwrap();
        let (_, out, err) = on(&new, &format!("check {} {NEW}", file.display()));
        assert!(!out.contains("iommufd-mixed"), "{out}{err}");
    }
    let (code, out, err) = set(&said(&groups, "yes"), &old, "--gpus 4");
    assert!(code == 1 && err.contains("could not reach each other"), "{out}{err}");
}

/// The card configures them, and the guest has them as NICs.
#[test]
fn virtual_functions_that_come_go_the_way_of_those_that_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let host = host_of("dual-socket", dir.path(), Some(true), "7.3.4");
    let line = format!("export --name a --gpus 1 --vcpus 4 --memory 8G {NEW}");
    let (code, xml, err) = on(&host, &line);
    assert_eq!(code, 0, "{err}");
    let file = dir.path().join("a.xml");
    for own in [Some("yes"), Some("no"), None] {
        let driver = own.map(|own| format!("<driver name='vfio' iommufd='{own}'/>"));
        let text = xml.replace("<driver name='vfio'/>", driver.as_deref().unwrap_or("<driver/>"));
        let count = |text: &str| text.matches("iommufd='").count();
        let number = count(&text) + usize::from(own == Some("yes"));
        std::fs::write(&file, text).unwrap();
        let (code, out, err) = on(&host, &format!("set {} {NEW} --vf 1", file.display()));
        assert_eq!(code, 0, "{own:?}: {out}{err}");
        let (_, nic) = out.split_once("<interface type='hostdev'").unwrap();
        let (nic, _) = nic.split_once("</interface>").unwrap();
        assert_eq!(nic.contains("<driver iommufd='yes'/>"), own == Some("yes"), "{nic}");
        assert_eq!(count(&out), number, "{own:?}: {out}");
        std::fs::write(&file, &out).unwrap();
        let (_, out, err) = on(&host, &format!("check {} {NEW}", file.display()));
        assert!(!out.contains("iommufd-mixed"), "{own:?}: {out}{err}");
    }
}

#[test]
fn no_guest_moves_for_functions_that_cannot_be_passed_through() {
    let dir = tempfile::tempdir().unwrap();
    let new = host(dir.path(), Some(true), "7.3.4");
    let without = host(dir.path(), Some(false), "7.3.4");
    let mut beside = String::new();
    for (name, gpu) in [("a", 0), ("b", 4)] {
        let line = format!("export --name {name} --gpu {gpu} --vcpus 4 --memory 8G {NEW}");
        let (code, xml, err) = on(&new, &line);
        assert_eq!(code, 0, "{err}");
        let file = dir.path().join(format!("{name}.xml"));
        std::fs::write(&file, xml).unwrap();
        beside += &format!(" --domain-xml {}", file.display());
    }
    let room = format!("{ROOM} --gpus 4 --vcpus 8 --memory 8G{beside} --allow-stop b {NEW}");
    for (host, way, refused) in [
        (&new, "--iommufd on", false),
        (&without, "--iommufd on", true),
        (&without, "--iommufd off", false),
    ] {
        let (code, out, err) = on(host, &format!("{room} {way}"));
        assert_eq!(code, i32::from(refused), "{way}: {out}{err}");
        assert_eq!(out.starts_with("move `b`, which is off"), !refused, "{way}: {out}{err}");
        assert_eq!(err.contains("/dev/iommu"), refused, "{way}: {err}");
    }
}

/// libvirt's schema of domains.
const SCHEMA: &str = "/usr/share/libvirt/schemas/domain.rng";

/// Whether the libvirt of this machine knows the element.
pub fn is_known() -> bool {
    let common = Path::new(SCHEMA).with_file_name("domaincommon.rng");
    std::fs::read_to_string(common).is_ok_and(|text| text.contains("name=\"iommufd\""))
}

/// Guests by iommufd of one and of all GPUs of a host, with each kind of pages, in files by name;
/// without the element where this machine's libvirt does not know it.
fn guests(name: &str, dir: &Path) -> Vec<String> {
    let host = host_of(name, dir, Some(true), "7.3.4");
    let all = load(Path::new(&host)).unwrap().gpus().count();
    let mut names = Vec::new();
    for gpus in std::collections::BTreeSet::from([1, all]) {
        for pages in ["auto", "2M", "1G"] {
            let guest = format!("{name}-{gpus}-{pages}");
            let line = format!("export --name {guest} --gpus {gpus} --iommufd on {NEW} --quiet");
            let (code, mut xml, err) = on(&host, &format!("{line} --huge-pages {pages}"));
            assert_eq!(code, 0, "{guest}: {err}");
            if !is_known() {
                xml = xml.replace("  <iommufd enabled='yes'/>\n", "");
            }
            std::fs::write(dir.join(format!("{guest}.xml")), xml).unwrap();
            names.push(guest);
        }
    }
    names
}

#[test]
fn guests_by_iommufd_are_valid_by_libvirts_schema() {
    if !has("xmllint") {
        return;
    }
    if !Path::new(SCHEMA).exists() {
        return skip("libvirt's schemas are not installed");
    }
    let dir = tempfile::tempdir().unwrap();
    let hosts = ["dgx-1", "dgx-2", "dgx-a100", "dgx-h100", "dual-socket", "h100-guest"];
    let names: Vec<String> = hosts.iter().flat_map(|host| guests(host, dir.path())).collect();
    let mut lint = Command::new("xmllint");
    lint.args(["--noout", "--relaxng", SCHEMA]).current_dir(dir.path());
    let (code, _, err) = run(lint.args(names.iter().map(|name| format!("{name}.xml"))));
    assert_eq!(code, 0, "{err}");
    let bad = dir.path().join("bad.xml");
    std::fs::write(&bad, "<domain type='kvm'><name>a</name><iommufd enabled='maybe'/></domain>")
        .unwrap();
    let mut lint = Command::new("xmllint");
    let (code, ..) = run(lint.args(["--noout", "--relaxng", SCHEMA]).arg(bad));
    assert_ne!(code, 0, "the schema takes everything");
}

/// libvirt keeps the plan, and gives QEMU one iommufd for all functions.
#[test]
fn libvirt_defines_guests_by_iommufd_as_planned() {
    if !nix::unistd::geteuid().is_root() {
        return skip("needs root");
    }
    if !has("virsh") || !has("qemu-system-x86_64") {
        return;
    }
    let builder = std::fs::Permissions::from_mode(0o755);
    let dir = tempfile::Builder::new().permissions(builder).tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("embedded/etc")).unwrap();
    let names = guests("dgx-h100", dir.path());
    let native = |name: &&String| !name.ends_with("-1G");
    let mut commands = Vec::new();
    for name in &names {
        commands.push(format!("define --validate {name}.xml"));
        commands.push(format!("dumpxml --inactive {name}"));
    }
    commands.extend(
        names.iter().filter(native).map(|name| format!("domxml-to-native qemu-argv {name}.xml")),
    );
    let said = as_host(&host_tree("dgx-h100"), dir.path(), &commands);
    let (defined, arguments) = said.split_at(2 * names.len());
    for (name, said) in names.iter().zip(defined.chunks(2)) {
        let [defined, dumped] = said else { panic!("{name}: {said:?}") };
        assert!(!defined.contains("error:"), "{name}: {defined}");
        let start = dumped.find("<domain").unwrap_or_else(|| panic!("{name}: {dumped}"));
        let dumped = DomainXml::parse(&dumped[start..]).unwrap();
        let written = std::fs::read_to_string(dir.path().join(format!("{name}.xml"))).unwrap();
        let written = DomainXml::parse(&written).unwrap();
        assert_eq!(differences(&written, &dumped), [], "{name}");
    }
    for (name, said) in names.iter().filter(native).zip(arguments) {
        let functions = if name.contains("-1-") { 1 } else { 8 };
        let (by_iommufd, objects) = if is_known() { (functions, 1) } else { (0, 0) };
        let count = |text: &str| said.matches(text).count();
        assert!(count("\"vfio-pci\"") >= functions, "{name}: {said}");
        assert_eq!(count("\"qom-type\":\"iommufd\""), objects, "{name}: {said}");
        assert!(count("\"iommufd\":\"iommufd0\"") >= by_iommufd, "{name}: {said}");
        let is_shared = name.ends_with("-2M");
        assert_eq!(said.contains("\"share\":true"), is_shared, "{name}: {said}");
    }
}
