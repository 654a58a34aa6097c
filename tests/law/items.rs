//! Contradictions between verbs that were once found, one by one.

use super::pairs::Asked;
use crate::support::{gpuvm, host_tree, project, run};
use gpuvm::check::judge;
use gpuvm::discover::source::load;
use gpuvm::domain::DomainXml;
use gpuvm::domain::claims::Claims;
use gpuvm::placement::{Occupancy, PlanError};
use gpuvm::request::PageSize;
use gpuvm::topology::{Bar, Topology};
use gpuvm::tune::{Given, Item, Items, tune};
use gpuvm::versions::Versions;
use std::collections::{BTreeMap, BTreeSet};

/// A recorded host of the project.
fn host(name: &str) -> Topology {
    load(&project().join(format!("topologies/{name}.json"))).unwrap()
}

/// Runs a verb on a recorded host.
fn on(name: &str, verb: &str, line: &str) -> (i32, String, String) {
    let file = project().join(format!("topologies/{name}.json"));
    let words: Vec<&str> = [verb].into_iter().chain(line.split_whitespace()).collect();
    run(gpuvm(&words).arg("--host").arg(file))
}

/// A template from which more than 255 vCPUs cannot be made: another IOMMU is there.
fn crowded_template(dir: &std::path::Path) -> String {
    let file = dir.join("crowded.xml");
    let text = std::fs::read_to_string(project().join("templates/gpu-guest.xml")).unwrap();
    let iommu = "  <iommu model='virtio'/>\n  </devices>";
    std::fs::write(&file, text.replacen("</devices>", iommu, 1)).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn more_vcpus_than_a_guest_can_have_are_refused_by_all_with_the_largest_that_works() {
    let dir = tempfile::tempdir().unwrap();
    let template = format!("--template {}", crowded_template(dir.path()));
    for verb in ["plan", "export", "create --dry-run"] {
        let (verb, more) = verb.split_once(' ').unwrap_or((verb, ""));
        let line = |vcpus| format!("--vcpus {vcpus} --name a {template} {more}");
        let (code, _, said) = on("dgx-a100", verb, &line(256));
        assert_eq!(code, 1, "{verb}: {said}");
        assert!(said.contains("256 vCPUs are more than the 255"), "{verb}: {said}");
        assert!(said.contains("--vcpus 255") && !said.contains("--vcpus 254"), "{verb}: {said}");
        let (code, _, said) = on("dgx-a100", verb, &line(255));
        assert_eq!(code, 0, "{verb}: {said}");
    }
    // The one number that is suggested, in the reason and in the nearest request alike, can be
    // planned, and no larger one can.
    for (host, line, most) in [
        ("dgx-a100", "--pins none", 255),
        ("dgx-h100", "--pins none", 255),
        ("dgx-a100", "--pins none --threads 2", 254),
        ("dgx-a100", "--pins none --cells 4", 252),
        ("dgx-a100", "--gpus 1 --allow remote", 255),
        ("dgx-a100", "--gpus 8 --allow remote --pins thread --cells 1", 255),
    ] {
        let (code, _, said) = on(host, "plan", &format!("{line} --vcpus 256 {template}"));
        assert_eq!(code, 1, "{line}: {said}");
        let offers: BTreeSet<&str> = said
            .split("--vcpus ")
            .skip(1)
            .map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap())
            .collect();
        assert_eq!(offers, BTreeSet::from([most.to_string().as_str()]), "{line}: {said}");
        for vcpus in most..256 {
            let (code, _, said) = on(host, "plan", &format!("{line} --vcpus {vcpus} {template}"));
            assert_eq!(code == 0, vcpus == most, "{line} {vcpus}: {said}");
        }
    }
    let (code, out, _) = on("dgx-a100", "capacity", "--gpus 8 --vcpus 5000 --pins none");
    assert!(code == 0 && out.contains("5000 vCPUs are more than the 4096"), "{out}");
    let (code, out, _) = on("dgx-a100", "capacity", "--gpus 8 --vcpus 256 --pins none");
    assert!(code == 0 && !out.contains("more than"), "{out}");
}

#[test]
fn more_than_255_vcpus_get_an_iommu_that_remaps_interrupts() {
    let line = "--gpus 8 --vcpus 256 --pins none --name a";
    let (code, told, said) = on("dgx-a100", "plan", &format!("{line} --explain"));
    assert_eq!(code, 0, "{said}");
    assert!(told.contains("an Intel IOMMU that only remaps interrupts"), "{told}");
    let (code, xml, said) = on("dgx-a100", "export", line);
    assert_eq!(code, 0, "{said}");
    let iommu = "<iommu model='intel'>";
    let driver = "<driver intremap='on' caching_mode='on' eim='on' dma_translation='off'/>";
    assert!(xml.contains(iommu) && xml.contains(driver), "{xml}");
    assert!(xml.contains("<ioapic driver='qemu'/>"), "{xml}");
    let (_, xml, _) = on("dgx-a100", "export", "--gpus 8 --vcpus 250 --pins none --name a");
    assert!(!xml.contains("iommu") && !xml.contains("ioapic"), "{xml}");
    // A template's settings of its own device stay.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("many.xml");
    let text = std::fs::read_to_string(project().join("templates/gpu-guest.xml")).unwrap();
    let own = "<iommu model='intel'><driver intremap='on' caching_mode='on' eim='on'/></iommu>";
    std::fs::write(&file, text.replacen("</devices>", &format!("  {own}\n  </devices>"), 1))
        .unwrap();
    let line = format!("{line} --template {}", file.display());
    let (code, xml, said) = on("dgx-a100", "export", &line);
    assert_eq!(code, 0, "{said}");
    assert!(xml.contains(own), "{xml}");
}

#[test]
fn templates_that_export_refuses_are_refused_by_all() {
    let dir = tempfile::tempdir().unwrap();
    let text =
        |name: &str| std::fs::read_to_string(project().join("templates").join(name)).unwrap();
    let x86 = text("gpu-guest.xml");
    let file = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        format!("--name a --template {}", dir.path().join(name).display())
    };
    let pc = file("pc.xml", &x86.replace("machine='q35'", "machine='pc'"));
    let arm = file("arm.xml", &text("gpu-guest-aarch64.xml"));
    for (line, why) in [
        (format!("--gpus 1 {pc}"), "PCI Express"),
        (format!("--nic 1 {pc}"), "PCI Express"),
        (format!("--vcpus 256 --pins none {pc}"), "more than the 255 of a template"),
        (format!("--gpus 1 {arm}"), "is for `aarch64`"),
        (format!("--vcpus 2 {arm}"), "is for `aarch64`"),
        (format!("--vcpus 2 {pc}"), ""),
    ] {
        for verb in ["plan", "export", "create --dry-run"] {
            let (verb, more) = verb.split_once(' ').unwrap_or((verb, ""));
            let (code, _, said) = on("dgx-a100", verb, &format!("{line} {more}"));
            assert_eq!(code, i32::from(!why.is_empty()), "{verb} {line}: {said}");
            assert!(said.contains(why), "{verb} {line}: {said}");
        }
    }
}

#[test]
fn pages_that_were_left_to_the_planner_are_reserved() {
    let on = |more: &str| {
        let line = format!("--name a --accept-shared-fabric --reserve-pages --dry-run {more}");
        on("dgx-2", "create", &line)
    };
    for (line, step) in [
        ("--gpus 1", "reserve 45879 pages of 2 MiB on node 0"),
        ("--vcpus 2", "reserve 1024 pages of 2 MiB on node 0"),
        ("--gpus 1 --huge-pages 1G", "reserve 89 pages of 1 GiB on node 0"),
    ] {
        let (code, steps, said) = on(line);
        assert!(code == 0 && steps.contains(step), "{line}: {steps}{said}");
        assert!(!said.contains("pages"), "what is reserved is not missing: {line}: {said}");
    }
    for line in ["--gpus 1 --huge-pages off", "--gpus 1 --profile nvidia-vm"] {
        let (code, _, said) = on(line);
        assert!(code == 2 && said.contains("--huge-pages 2M --reserve-pages"), "{line}: {said}");
    }
}

#[test]
fn shortages_are_reported_once() {
    let line = "--gpus 1 --name a --accept-shared-fabric --huge-pages 1G";
    let (_, _, said) = on("dgx-2", "create", &format!("{line} --dry-run"));
    assert_eq!(said.matches("89 pages of 1 GiB are needed on node 0").count(), 1, "{said}");
    let (_, xml, _) = on("dgx-2", "export", line);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.xml");
    std::fs::write(&file, xml.replace("placement='static'", "")).unwrap();
    let (_, out, err) = on("dgx-2", "tune", &format!("{} --check", file.display()));
    assert!((out + &err).matches("89 pages of 1 GiB are needed").count() <= 1);
}

#[test]
fn a_missing_template_is_refused_before_sizes_are_offered() {
    let text = std::fs::read_to_string(project().join("topologies/dgx-2.json")).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
    record["host"]["machine"]["architecture"] = "ppc64le".into();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("power.json");
    std::fs::write(&file, record.to_string()).unwrap();
    for verb in ["plan", "export", "create --dry-run"] {
        for vcpus in ["4", "4000"] {
            let words: Vec<&str> = verb.split(' ').chain(["--name", "a", "--vcpus"]).collect();
            let (code, _, said) = run(gpuvm(&words).args([vcpus, "--host"]).arg(&file));
            let is_told = said.contains("--template FILE") && !said.contains("would fit");
            assert!(code == 1 && is_told, "{verb} {vcpus}: {said}");
        }
    }
    let (code, _, said) = run(gpuvm(&["capacity", "--host"]).arg(&file));
    assert!(code == 0 && said.contains("need --template FILE"), "{said}");
    // An emulated guest may be of another architecture.
    let line = ["plan", "--vcpus", "4000", "--virt-type", "qemu", "--host"];
    let (code, _, said) = run(gpuvm(&line).arg(&file));
    assert!(code == 1 && said.contains("would fit now: --vcpus 96"), "{said}");
}

#[test]
fn memory_that_stays_with_the_host_is_named_where_it_leaves_too_little() {
    let (code, _, said) = on("dgx-2", "plan", "--gpus 1 --reserve-memory 2T");
    assert!(code == 1 && said.contains("2 TiB of each node stay with the host"), "{said}");
    let is_helped = said.contains("would fit now: without --reserve-memory");
    assert!(is_helped && !said.contains("--memory 2M"), "{said}");
    let (code, _, said) = on("dgx-2", "plan", "--gpus 1 --reserve-memory 2T --memory 4G");
    let kept = "besides the 2 TiB of each node that stay with the host";
    assert!(code == 1 && said.contains(kept), "{said}");
}

#[test]
fn two_nics_of_one_mac_address_are_refused_by_tune_as_by_create() {
    let (_, xml, _) = on("dgx-2", "export", "--gpus 1 --name a --accept-shared-fabric");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.xml");
    std::fs::write(&file, xml).unwrap();
    let nics = "--network one,mac=52:54:00:00:00:0a --network two,mac=52:54:00:00:00:0A";
    for (verb, line) in [
        ("tune", format!("{} {nics}", file.display())),
        ("create", format!("--gpus 1 --name a --dry-run {nics}")),
    ] {
        let (code, _, said) = on("dgx-2", verb, &line);
        let is_told = said.contains("two NICs have the MAC address 52:54:00:00:00:0");
        assert!(code == 2 && is_told, "{verb}: {said}");
    }
}

#[test]
fn memory_that_no_node_has_is_measured_by_the_node_that_comes_nearest() {
    // Node 1 has some memory more.
    let (code, _, said) = on("dgx-2", "plan", "--vcpus 2 --memory 2000G");
    let all = "of node 1; all nodes together have 1";
    assert!(code == 1 && said.contains(all), "{said}");
    let (_, _, said) = on("dgx-2", "plan", "--vcpus 60 --memory 2000G");
    assert!(said.contains("requested 1000 GiB of memory"), "{said}");
}

#[test]
fn a_window_that_does_not_fit_is_refused_by_the_plan() {
    let mut parts = host("dgx-2").parts().clone();
    parts.machine.physical_address_bits = Some(39);
    let large = |index| Bar { is_64bit: true, prefetchable: true, ..Bar::new(index, 32 << 30) };
    for device in &mut parts.devices {
        device.bars = vec![large(1)];
    }
    let small = Topology::new(parts).unwrap();
    let asked = Asked::new(&small, "--gpus 16 --memory 64G");
    let Err(PlanError::Impossible { what, .. }) = &asked.answer else { panic!("planned") };
    assert!(what.contains("do not fit into 39 physical address bits"), "{what}");
}

#[test]
fn an_emulator_without_a_core_of_its_own_is_a_note() {
    let dgx = host("dgx-2");
    for (size, notes) in [("--vcpus 2", 0), ("--gpus 1 --vcpus 8", 0), ("--vcpus 48", 2)] {
        let asked = Asked::new(&dgx, size);
        let xml = asked.export(asked.answer.as_ref().unwrap()).unwrap();
        let found = judge(&xml, &dgx, &Occupancy::default(), &Versions::default());
        assert_eq!((found.0.len(), found.1.len()), (0, notes), "{size}: {found:?}");
    }
    let (_, xml, _) = on("dgx-2", "export", "--vcpus 48 --name full");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("full.xml");
    std::fs::write(&file, &xml).unwrap();
    let path = file.to_str().unwrap();
    let (code, out, _) = on("dgx-2", "check", path);
    assert_eq!(code, 0, "{out}");
    assert!(out.contains("note: the emulator may run on pcpus"), "{out}");
    let (code, out, _) = on("dgx-2", "check", &format!("{path} --json"));
    let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, answer["notes"].as_array().unwrap().len()), (0, 2));
    // The same pin where another core is free is a finding.
    let moved = xml.replacen("<vcpu placement='static'>48<", "<vcpu placement='static'>40<", 1);
    assert_ne!(moved, xml);
    let pins: Vec<String> = (40..48).map(|vcpu| format!("<vcpupin vcpu='{vcpu}'")).collect();
    let kept = moved.lines().filter(|line| !pins.iter().any(|pin| line.contains(pin)));
    let text = kept.collect::<Vec<_>>().join("\n");
    let text = text.replace("cores='24'", "cores='20'").replace("cpus='0-47'", "cpus='0-39'");
    let found =
        judge(&DomainXml::parse(&text).unwrap(), &dgx, &Occupancy::default(), &Versions::default());
    let rules: Vec<&str> = found.0.iter().map(|finding| finding.rule).collect();
    assert!(rules.contains(&"emulator-on-vcpu-core"), "{found:?}");
}

#[test]
fn gpus_without_a_vcpu_on_their_node_need_permission() {
    let dgx = host("dgx-2");
    let refused = Asked::new(&dgx, "--gpus 16 --vcpus 1");
    let Err(PlanError::Impossible { what, hint }) = &refused.answer else { panic!("planned") };
    assert!(what.contains("too few vCPUs (1 core)"), "{what}");
    assert!(hint.contains("--vcpus 2") && hint.contains("--allow remote"), "{hint}");
    for size in ["--gpus 16 --vcpus 2", "--gpus 16 --vcpus 1 --allow remote"] {
        let asked = Asked::new(&dgx, size);
        let xml = asked.export(asked.answer.as_ref().unwrap()).unwrap();
        let found = judge(&xml, &dgx, &Occupancy::default(), &Versions::default());
        assert_eq!(found.0, [], "{size}");
    }
}

#[test]
fn a_gpu_on_an_implied_root_bus_is_found() {
    let flat = "<domain type='kvm'><name>a</name><memory unit='GiB'>1</memory><vcpu>1</vcpu>\n<os>\
        <type arch='x86_64' machine='q35'>hvm</type></os><devices><hostdev mode='subsystem' \
        type='pci'>\
        <source><address domain='0' bus='0x34' slot='0' function='0'/></source>\
        <address type='pci' bus='0' slot='5'/></hostdev></devices></domain>";
    let rules = |text: &str| {
        let xml = DomainXml::parse(text).unwrap();
        let found = judge(&xml, &host("dgx-2"), &Occupancy::default(), &Versions::default()).0;
        found.into_iter().any(|finding| finding.rule == "gpu-on-root-bus")
    };
    assert!(rules(flat));
    assert!(!rules(&flat.replace("machine='q35'", "machine='pc'")), "a root bus of another kind");
}

#[test]
fn one_disk_is_planned_the_io_threads_that_it_gets() {
    let (_, out, _) = on("dgx-2", "plan", "--gpus 16 --json");
    let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
    let planned = answer["placement"]["iothread_pins"].as_array().unwrap().len();
    let (_, xml, _) = on("dgx-2", "export", "--gpus 16 --name a");
    assert_eq!(planned, Claims::read(&DomainXml::parse(&xml).unwrap()).iothreads.len());
}

/// Tunes a document alone.
fn tuned(xml: &DomainXml, topology: &Topology, items: &Items) -> gpuvm::tune::Tuned {
    let (others, disks) = (Occupancy::default(), BTreeMap::new());
    let given = Given {
        topology,
        others: &others,
        items,
        allow: gpuvm::request::Allow::default(),
        disks: &disks,
        abilities: Default::default(),
        versions: &Versions::default(),
    };
    tune(xml, &given).unwrap()
}

#[test]
fn a_guest_of_ours_gets_pages_of_1_gib_without_all_and_once() {
    for (name, gpus) in [("dgx-2", 1), ("dgx-2", 16), ("dgx-1", 5), ("dgx-1", 8), ("dgx-a100", 4)] {
        let topology = host(name);
        let asked = Asked::new(&topology, &format!("--gpus {gpus}"));
        let xml = asked.export(asked.answer.as_ref().unwrap()).unwrap();
        let items = Items { huge_pages: Item::To(PageSize::OneGib), ..Items::default() };
        let first = tuned(&xml, &topology, &items);
        let claims = Claims::read(&first.after);
        assert!(claims.cells.iter().all(|cell| cell.memory.value.kib() % (1 << 20) == 0), "{name}");
        let again = tuned(&first.after, &topology, &items);
        assert_eq!(again.changes, [], "{name} with {gpus}");
        assert_eq!(tuned(&first.after, &topology, &Items::all()).changes, [], "{name}, {gpus}");
    }
}

#[test]
fn functions_of_a_card_that_share_a_slot_stay_together() {
    let topology = load(&host_tree("dgx-2")).unwrap();
    let mut parts = topology.parts().clone();
    let gpu = parts.devices.iter().find(|d| d.bdf == "34:00.0".parse().unwrap()).unwrap().clone();
    let bdf = "34:00.1".parse().unwrap();
    parts.devices.push(gpuvm::topology::PciDevice {
        bdf,
        class: 0x040300,
        iommu_group: None,
        bars: Vec::new(),
        ..gpu
    });
    parts.devices.sort_by_key(|device| device.bdf);
    let topology = Topology::new(parts).unwrap();
    let hostdev = |function: u8, more: &str| {
        format!(
            "<hostdev mode='subsystem' type='pci' managed='yes'><source><address domain='0' \
             bus='0x34' slot='0' function='{function}'/></source><address type='pci' bus='0x01' \
             slot='0x00' function='{function}'{more}/></hostdev>\n"
        )
    };
    let text = format!(
        "<domain type='kvm'>\n<name>a</name>\n<memory \
         unit='GiB'>4</memory>\n<vcpu>4</vcpu>\n<os><type \
         arch='x86_64' machine='q35'>hvm</type></os>\n<devices>\n<controller type='pci' index='0' \
         model='pcie-root'/>\n<controller type='pci' index='1' \
         model='pcie-root-port'/>\n{}{}</devices>\n\
         </domain>",
        hostdev(0, " multifunction='on'"),
        hostdev(1, "")
    );
    let first = tuned(&DomainXml::parse(&text).unwrap(), &topology, &Items::all());
    let claims = Claims::read(&first.after);
    let at: Vec<_> = claims.passed.iter().map(|p| p.at.as_ref().unwrap().value).collect();
    assert_eq!(at[0].controller, at[1].controller, "{}", first.after.text());
    assert!(first.after.text().contains("multifunction='on'"), "{}", first.after.text());
    assert_eq!(tuned(&first.after, &topology, &Items::all()).changes, []);
}
