//! Plans on every recorded host, and `plan` from outside.

use crate::support::grace::Grace;
use crate::support::shared::{Recorded, each_shared_host};
use crate::support::{gpuvm, host_tree, project, run, skip};
use gpuvm::cpuset::{CpuSet, NodeId};
use gpuvm::discover::source::load;
use gpuvm::memsize::MemSize;
use gpuvm::placement::{Occupancy, Placement, PlanError, Reason, plan};
use gpuvm::request::{CellWish, GpuWish, HugePages, PageSize, PinPolicy, Profile, Request};
use gpuvm::topology::{Topology, Trust};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The hosts of `topologies/`, by name.
fn topologies() -> Vec<(String, Topology)> {
    let mut hosts: Vec<(String, Topology)> = std::fs::read_dir(project().join("topologies"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), load(&path).unwrap()))
        .collect();
    hosts.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(hosts.len() >= 5);
    hosts
}

/// Requests for a host: every GPU count it may have, several vCPU counts, both profiles, pages, no
/// pins.
fn requests(topology: &Topology) -> Vec<Request> {
    let gpus = u32::try_from(topology.gpus().count()).unwrap();
    let mut all = Vec::new();
    for count in 0..=gpus + 1 {
        let base = Request::for_gpus(count);
        let vendor = Request { profile: Profile::NvidiaVm, ..base.clone() };
        let floating = Request { pins: PinPolicy::None, ..base.clone() };
        let cells = CellWish::Count(2);
        let two = Request { cells, vcpus: Some(8), threads: Some(2), ..floating.clone() };
        let small = MemSize::from_gib(8);
        all.extend([base.clone(), vendor.clone(), floating, two]);
        for huge_pages in [PageSize::TwoMib, PageSize::OneGib] {
            let huge_pages = HugePages::Size(huge_pages);
            all.push(Request { huge_pages, ..base.clone() });
            all.push(Request { huge_pages, memory_kib: Some(small), ..vendor.clone() });
        }
        for vcpus in [1, 2, 3, 4, 6, 8, 16, 24, 40, 64, 92, 128, 256] {
            all.push(Request { vcpus: Some(vcpus), ..base.clone() });
            all.push(Request { vcpus: Some(vcpus), memory_kib: Some(small), ..vendor.clone() });
        }
    }
    all.extend((0..gpus).map(|first| {
        let gpus = GpuWish::Run { first, count: 1 };
        Request { gpus, ..Request::for_gpus(0) }
    }));
    all
}

/// Checks a plan against its host; returns how many vCPUs it has.
fn check(name: &str, topology: &Topology, request: &Request, placement: &Placement) {
    let vcpus = placement.vcpus();
    let context = format!("{name}: {request:?}");
    assert_eq!(placement.vcpu_pins.len(), vcpus as usize, "{context}");
    assert_eq!(placement.cells.iter().map(|c| c.vcpus.len()).sum::<usize>(), vcpus as usize);
    // The sizes of nvidia-vm are whole MiB.
    let vendor = request.profile == Profile::NvidiaVm && request.memory_kib.is_none();
    let normal = if vendor { MemSize::from_kib(1024) } else { PageSize::TwoMib.size() };
    let unit = placement.huge_pages.map_or(normal, PageSize::size);
    for cell in &placement.cells {
        assert_eq!(cell.memory_kib.round_down(unit), cell.memory_kib, "{context}");
        let nodes = topology.nodes().iter().filter(|n| cell.host_nodes.contains(n.os_index));
        let there: MemSize = nodes.map(|node| node.memory_kib).sum();
        assert!(cell.host_nodes.is_empty() || cell.memory_kib <= there, "{context}");
    }
    let devices: BTreeSet<_> = placement.devices.iter().collect();
    assert_eq!(devices.len(), placement.devices.len(), "{context}");
    assert!(devices.iter().all(|bdf| topology.device(**bdf).is_some()), "{context}");
    let text = serde_json::to_string(placement).unwrap();
    let read: Placement = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), text, "JSON round trip");
    if request.pins == PinPolicy::None {
        return;
    }
    let mut seen = CpuSet::new();
    for pin in &placement.vcpu_pins {
        assert!(pin.len() == 1 && !seen.intersects(pin), "{context}");
        seen = seen.or(pin);
    }
    assert!(seen.is_subset(&topology.pcpus()), "{context}");
    if request.profile == Profile::NvidiaVm {
        return;
    }
    let floats =
        |r: &Reason| r.compromise && r.because.to_string().contains("I/O threads float over");
    let floats = placement.reasons.iter().any(floats);
    assert!(floats || !seen.intersects(&placement.emulator_pin), "{context}");
    for cores in placement.vcpu_pins.chunks(placement.topology.threads as usize) {
        let core = topology.core_of(cores[0].first().unwrap()).unwrap();
        assert!(cores.iter().all(|pin| pin.is_subset(&core.pcpus)), "{context}");
    }
    for cell in &placement.cells {
        let pins = &placement.vcpu_pins[cell.vcpus.start as usize..cell.vcpus.end as usize];
        let node = |pin: &CpuSet| topology.core_of(pin.first().unwrap()).unwrap().node;
        assert!(pins.iter().all(|pin| node(pin) == node(&pins[0])), "{context}");
    }
}

/// Plans all requests on a host. Returns how many were accepted.
fn ask(name: &str, topology: &Topology) -> usize {
    let mut accepted = 0;
    for request in requests(topology) {
        match plan(topology, &Occupancy::default(), &request) {
            Ok(placement) => {
                check(name, topology, &request, &placement);
                accepted += 1;
            }
            Err(PlanError::Impossible { what, hint }) => {
                assert!(!what.is_empty() && !hint.is_empty(), "{name}: {request:?}");
            }
            Err(PlanError::Taken { what, .. }) => {
                let idle = topology.nodes().iter().flat_map(|n| &n.huge_pages);
                assert!(idle.map(|pool| pool.free).sum::<u64>() > 0, "{name}: {what}");
            }
            Err(error) => panic!("{name}: {request:?}: {error}"),
        }
    }
    accepted
}

#[test]
fn every_plan_on_every_topology_holds() {
    for (name, topology) in topologies() {
        let accepted = ask(&name, &topology);
        assert!(accepted > 20, "{name}: only {accepted} accepted");
        let all = u32::try_from(topology.gpus().count()).unwrap();
        for count in [0, 1, all] {
            let request = Request::for_gpus(count);
            let answer = plan(&topology, &Occupancy::default(), &request);
            assert!(answer.is_ok(), "{name}, {count} GPUs: {answer:?}");
        }
    }
}

#[test]
fn every_plan_on_the_shared_hosts_holds() {
    let mut accepted = 0;
    let look = |host: &Recorded<'_>| accepted += ask(host.name, host.topology);
    let Some(loaded) = each_shared_host(look) else { return };
    eprintln!("{accepted} plans accepted on {loaded} shared hosts");
    assert!(loaded >= 40 && accepted > 1000, "{accepted} plans on {loaded} hosts");
}

#[test]
fn pins_stand_in_hwlocs_order() {
    let Ok(version) = Command::new("hwloc-calc").arg("--version").output() else {
        return skip("hwloc-calc is not installed");
    };
    assert!(version.status.success());
    let mut compared = 0;
    for (name, topology) in topologies().into_iter().filter(|(name, _)| name.starts_with("dgx")) {
        let tree = host_tree(&name);
        let all = u32::try_from(topology.gpus().count()).unwrap();
        let placement = plan(&topology, &Occupancy::default(), &Request::for_gpus(all)).unwrap();
        for cell in &placement.cells {
            let node = cell.host_nodes.first().unwrap();
            let own =
                placement.vcpu_pins[cell.vcpus.start as usize..cell.vcpus.end as usize].iter();
            let own = own.map(|pin| pin.first().unwrap().0.to_string());
            let there = &topology.node(node).unwrap().pcpus;
            let emulator = placement.emulator_pin.and(there);
            assert!(placement.iothread_pins.contains(&emulator), "{name}, node {node}");
            let emulator = emulator.iter().map(|pcpu| pcpu.0.to_string());
            let mine: Vec<String> = own.chain(emulator.collect::<Vec<_>>()).collect();
            let hwloc = hwloc_order(&tree, node);
            assert_eq!(mine.join(","), hwloc, "{name}, node {node}");
            compared += 1;
        }
    }
    assert!(compared >= 10, "{compared} nodes compared");
}

/// The pcpus of a node in hwloc's order.
fn hwloc_order(tree: &Path, node: NodeId) -> String {
    let mut command = Command::new("hwloc-calc");
    command.arg("--input").arg(tree).args(["--po", "-I", "pu", &format!("numa:{node}")]);
    // `numa:N` counts nodes from 0; the recorded DGX nodes have no gaps.
    let (code, out, err) = run(command.env_remove("HWLOC_COMPONENTS"));
    assert_eq!(code, 0, "{err}");
    out.trim().to_owned()
}

/// Runs `plan` on a topology.
fn plan_cli(host: &str, line: &str) -> (i32, String, String) {
    let file = project().join(format!("topologies/{host}.json"));
    let mut args = vec!["plan", "--host", file.to_str().unwrap()];
    args.extend(line.split_whitespace());
    run(&mut gpuvm(&args))
}

/// A host with pages of one size on each node, which a guest of default size takes whole.
#[test]
fn a_plan_on_the_hosts_own_pages_is_taken_again() {
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(project().join("topologies/dual-socket.json")).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
    let pool = |page: u64, total: u64| serde_json::json!([{ "page_kib": page, "total": total, "free": total }]);
    record["host"]["nodes"][0]["huge_pages"] = pool(1 << 20, 100);
    record["host"]["nodes"][1]["huge_pages"] = pool(2048, 65536);
    record["host"]["machine"]["hugetlbfs"] =
        serde_json::json!([{ "at": "/dev/hugepages", "page_kib": 2048 }]);
    let (host, plan) = (dir.path().join("host.json"), dir.path().join("plan.json"));
    std::fs::write(&host, record.to_string()).unwrap();
    let [host, file] = [&host, &plan].map(|path| path.to_str().unwrap());
    for gpus in ["1", "2"] {
        let args = ["plan", "--host", host, "--gpus", gpus, "--name", "a", "--json"];
        let (code, json, err) = run(&mut gpuvm(&args));
        assert_eq!(code, 0, "{err}");
        std::fs::write(&plan, json).unwrap();
        let (code, out, err) = run(&mut gpuvm(&["export", "--host", host, "--plan", file]));
        assert!(code == 0 && out.contains("<domain"), "{gpus}: {err}");
    }
}

#[test]
fn the_answer_of_plan_is_taken_again() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plan.json");
    let path = file.to_str().unwrap();
    let (code, json, err) = plan_cli("dgx-2", "--gpu 3 --vcpus 7 --memory 20G --name train --json");
    assert_eq!(code, 0, "{err}");
    std::fs::write(&file, &json).unwrap();
    let (code, again, err) = plan_cli("dgx-2", &format!("--plan {path} --json"));
    assert_eq!(code, 0, "{err}");
    assert_eq!(again, json);
    let export = |more: &[&str]| {
        let host = project().join("topologies/dgx-2.json");
        let args = ["export", "--host", host.to_str().unwrap(), "--image", "none"];
        run(&mut gpuvm(&[&args, more].concat()))
    };
    let asked = ["--gpu", "3", "--vcpus", "7", "--memory", "20G", "--name", "train"];
    assert_eq!(export(&["--plan", path]), export(&asked));
    // So is the template that it was made with.
    let template = dir.path().join("own.xml");
    let text = std::fs::read_to_string(project().join("templates/gpu-guest.xml")).unwrap();
    std::fs::write(&template, text.replace("</devices>", "<watchdog model='i6300esb'/></devices>"))
        .unwrap();
    let named = template.to_str().unwrap();
    let line = format!("--gpu 3 --vcpus 7 --memory 20G --name train --template {named} --json");
    let (code, json, err) = plan_cli("dgx-2", &line);
    assert_eq!(code, 0, "{err}");
    std::fs::write(&file, &json).unwrap();
    let (code, again, err) = plan_cli("dgx-2", &format!("--plan {path} --json"));
    assert_eq!((code, again.as_str()), (0, json.as_str()), "{err}");
    let asked = [&asked[..], &["--template", named]].concat();
    let exported = export(&["--plan", path]);
    assert!(exported == export(&asked) && exported.1.contains("i6300esb"), "{exported:?}");
    // So is how it runs.
    let line = "--vcpus 2 --memory 1G --virt-type qemu --name emulated --json";
    let (code, json, err) = plan_cli("dgx-2", line);
    assert_eq!(code, 0, "{err}");
    std::fs::write(&file, &json).unwrap();
    let asked = ["--vcpus", "2", "--memory", "1G", "--virt-type", "qemu", "--name", "emulated"];
    let exported = export(&["--plan", path]);
    assert!(exported.1.contains("<domain type='qemu'"), "{exported:?}");
    assert_eq!(exported, export(&asked));
    // An odd number of vCPUs leaves half of a core, which must not lead to another choice.
    for (host, line) in [
        ("dgx-1", "--gpu 0 --vcpus 7 --reserve-cores 1 --memory 4G --name a --json"),
        ("dgx-2", "--gpu 0 --vcpus 3 --reserve-cores 1 --memory 4G --name a --json"),
    ] {
        let (code, json, err) = plan_cli(host, line);
        assert_eq!(code, 0, "{err}");
        std::fs::write(&file, &json).unwrap();
        let (code, again, err) = plan_cli(host, &format!("--plan {path} --json"));
        assert_eq!((code, again.as_str()), (0, json.as_str()), "{host} {line}: {err}");
    }
    let (_, json, _) = plan_cli("dgx-2", "--gpu 3 --vcpus 7 --memory 20G --name train --json");
    std::fs::write(&file, &json).unwrap();
    // Another host has no such place, and the plan's text is not repeated.
    let (code, _, err) = plan_cli("dual-socket", &format!("--plan {path}"));
    assert!(code == 1 && err.contains("other devices by now"), "{code} {err}");
    let (code, _, err) = plan_cli("dgx-2", &format!("--plan {path} --vcpus 8"));
    assert!(code == 2 && err.contains("cannot be used with"), "{code} {err}");
    let (code, _, err) = plan_cli("dgx-2", &format!("--plan {path}.none"));
    assert!(code == 1 && err.contains("plan.json.none"), "{code} {err}");
}

#[test]
fn bad_input_says_what_to_do() {
    for (line, code, error, hint) in [
        ("--gpus 3", 1, "no partition of this board has 3 GPUs", "1, 2, 4, 8, 16"),
        (
            "--gpu-index 5 --gpu-count 4",
            1,
            "GPUs 5 to 8 do not form an NVLink partition",
            "0, 4, 8, 12",
        ),
        ("--gpu-index 16", 1, "from index 16", "0 to 15"),
        ("--gpu 0000:61:00.0", 1, "0000:61:00.0 is not a GPU", "gpuvm host show"),
        ("--gpus 3 --vcpus 100 --memory 9T", 1, "3 GPUs", "--vcpus 96 --memory"),
        ("--cells 7", 1, "", "without --cells"),
        ("--vcpus 97", 1, "this host has 96 hyperthreads", "--vcpus 96"),
        ("--gpus 1 --cells 3", 1, "a pinned guest on 1 host node has one cell", "--cells 1"),
        ("--memory 4T", 1, "requested 4 TiB of memory", "--memory"),
        ("--cells two", 2, "neither auto nor per-node", ""),
        ("--gpu 3 --gpu 34:00.0", 2, "with indexes and with PCI addresses", "in one way"),
        ("--gpus 1 --nic-near switch", 2, "--nic-near is given, but not --nic", "--nic or --vf"),
        ("--nvme 1 --nvme-near node", 2, "the guest has none", "--gpus"),
        ("--gpus 1 --allow everything", 2, "remote, split", ""),
        ("--threads 2", 2, "--threads goes only with --pins none", "--pins none"),
        ("--vcpus 0", 2, "at least one vCPU", ""),
        ("--memory 12", 2, "did you mean 12G?", ""),
        ("--name a/b", 2, "character '/' at 2", ""),
        ("--name ..", 2, "character '.' at 1", ""),
        ("--gpu 34:00", 2, "is not a PCI address", ""),
        ("--gpus 2 --gpu 34:00.0", 2, "cannot be used with", ""),
        ("--gpus -1", 2, "", ""),
    ] {
        let (status, out, err) = plan_cli("dgx-2", line);
        assert_eq!(status, code, "{line}: {err}");
        assert!(out.is_empty(), "{line}: {out}");
        assert!(err.contains(error), "{line}: {err}");
        if !hint.is_empty() {
            let line = err.lines().find(|l| l.starts_with("hint: ")).unwrap_or_default();
            assert!(line.contains(hint), "{line:?} lacks {hint:?}");
        }
    }
}

#[test]
fn a_plan_reads_well_and_explains_itself() {
    let (code, out, err) = plan_cli("dgx-2", "--domain demo --gpus 2 --explain");
    assert_eq!((code, err.as_str()), (0, ""));
    for line in [
        "demo-2g0-1",
        "  GPUs         0: 0000:34:00.0, node 0",
        "  NVSwitches   0000:61:00.0, node 0",
        "  pins         vCPUs 0-9 on 0,48 to 4,52",
        "  emulator     pcpus 5,53",
        "  vcpus        node 0 has 24 cores and 8 GPUs: 3 for each, 6 for 2 GPUs of this guest; 10 \
         vCPUs on 5 cores",
    ] {
        assert!(out.lines().any(|l| l == line), "{out} lacks {line:?}");
    }
    assert!(out.lines().any(|l| l.starts_with("! isolation    not isolated on NVLink")), "{out}");
}

#[test]
fn a_plan_as_json_is_the_placement() {
    let (code, out, _) = plan_cli("dgx-2", "--json --name x --gpus 16");
    assert_eq!(code, 0);
    let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(answer["name"], "x");
    assert_eq!(answer["request"]["gpus"], serde_json::json!({"count": 16}));
    let placement: Placement = serde_json::from_value(answer["placement"].clone()).unwrap();
    assert_eq!((placement.vcpus(), placement.cells.len(), placement.devices.len()), (92, 2, 28));
}

#[test]
fn names_are_the_replaced_tools_under_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("nvidia-vm");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_gpuvm"), &link).unwrap();
    let file = project().join("topologies/dgx-2.json");
    let mut command = Command::new(&link);
    command.args(["plan", "--gpu-count", "8", "--gpu-index", "8", "--host"]).arg(file);
    let (code, out, err) = run(command.env("USER", "lab"));
    assert_eq!(code, 0, "{err}");
    let name = out.lines().next().unwrap();
    let stamp = name.strip_prefix("dgx2vm-lab").and_then(|rest| rest.strip_suffix("-8g8-15"));
    let (day, time) = stamp.unwrap_or_else(|| panic!("{name}")).split_at(3);
    assert!(["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"].contains(&day), "{name}");
    assert!(time.len() == 4 && time.bytes().all(|b| b.is_ascii_digit()), "{name}");
}

#[test]
fn sizes_are_the_replaced_tools_under_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("nvidia-vm");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_gpuvm"), &link).unwrap();
    let file = project().join("topologies/dgx-2.json");
    let placed = |program: &Path, more: &[&str]| {
        let mut command = Command::new(program);
        command.args(["plan", "--json", "--name", "a", "--gpus", "4", "--host"]).arg(&file);
        let (code, out, err) = run(command.args(more));
        assert_eq!(code, 0, "{err}");
        serde_json::from_str::<serde_json::Value>(&out).unwrap()["placement"].clone()
    };
    let gpuvm = Path::new(env!("CARGO_BIN_EXE_gpuvm"));
    let (vendor, own) = (["--profile", "nvidia-vm"], ["--profile", "share"]);
    assert_eq!(placed(&link, &[]), placed(gpuvm, &vendor));
    assert_eq!(placed(&link, &own), placed(gpuvm, &[]));
    assert_ne!(placed(gpuvm, &own), placed(gpuvm, &vendor));
}

#[test]
fn sizes_offered_under_the_replaced_tools_name_are_planned() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("nvidia-vm");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_gpuvm"), &link).unwrap();
    let mut command = Command::new(&link);
    command.args(["plan", "--gpus", "1", "--memory", "10T", "--host"]);
    let (code, _, err) = run(command.arg(project().join("topologies/dgx-2.json")));
    assert_eq!(code, 1, "{err}");
    let offered = err.split("`gpuvm ").nth(1).and_then(|rest| rest.split_once('`'));
    let (offered, _) = offered.unwrap_or_else(|| panic!("{err}"));
    assert!(offered.contains("--profile nvidia-vm"), "{err}");
    let (code, _, err) = run(&mut gpuvm(&offered.split(' ').collect::<Vec<_>>()));
    assert_eq!(code, 0, "`gpuvm {offered}`: {err}");
}

#[test]
fn two_nics_of_one_mac_address_are_refused() {
    let nic = |network: &str| format!("{network},mac=52:54:00:12:34:56");
    let (a, b) = (nic("default"), nic("lab"));
    let host = project().join("topologies/dgx-2.json");
    for verb in [&["plan"][..], &["export", "--name", "a"], &["create", "--name", "a", "--dry-run"]]
    {
        let asked = ["--network", &a, "--network", &b, "--host", host.to_str().unwrap()];
        let (code, _, err) = run(&mut gpuvm(&[verb, &asked].concat()));
        let said = "two NICs have the MAC address 52:54:00:12:34:56";
        assert!(code == 2 && err.contains(said), "{verb:?}: {code}, {err}");
    }
}

#[test]
fn a_word_on_trust_that_is_not_read_is_not_shown_as_the_admins() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dgx-2.json");
    let mut parts = load(&project().join("topologies/dgx-2.json")).unwrap().parts().clone();
    parts.machine.trust = Some(Trust::Strangers);
    parts.machine.trust_unread = Some("/etc/gpuvm/trust.json line 1: EOF".into());
    let host = Topology::new(parts).unwrap();
    std::fs::write(&file, gpuvm::topology::file::to_json(&host)).unwrap();
    let file = file.to_str().unwrap();
    for (line, code) in [
        ("plan --gpus 2", 0),
        ("capacity", 0),
        ("host trust", 0),
        ("create --gpus 2 --name a --dry-run", 1),
    ] {
        let words: Vec<&str> = line.split(' ').chain(["--host", file]).collect();
        let (is, out, err) = run(&mut gpuvm(&words));
        let said = format!("{out}{err}").split_whitespace().collect::<Vec<_>>().join(" ");
        let why = "/etc/gpuvm/trust.json line 1: EOF; guests are treated as strangers";
        assert!(is == code && said.contains(why), "{line}: {is}, {said}");
        assert!(!said.contains("belong to strangers, by"), "{line}: {said}");
    }
}

/// One line of the table of sizes: vCPUs and memory of a guest with this many GPUs in each profile.
fn sizes(host: &Path, gpus: u64) -> String {
    let of = |profile: &str| {
        let number = gpus.to_string();
        let words = ["plan", "--json", "--host", host.to_str().unwrap(), "--profile", profile];
        let (code, text, err) = run(&mut gpuvm(&[&words[..], &["--gpus", &number]].concat()));
        assert_eq!(code, 0, "{}, {gpus} GPUs, {profile}: {err}", host.display());
        let plan: serde_json::Value = serde_json::from_str(&text).unwrap();
        let placement: Placement = serde_json::from_value(plan["placement"].clone()).unwrap();
        let gib = placement.memory().kib() as f64 / f64::from(1 << 20);
        format!("{}|{gib:.1}", placement.vcpus())
    };
    let name = host.file_stem().unwrap().to_str().unwrap().replace('-', "\\-");
    format!("{name}|{gpus}|{}|{}|{}\n", of("share"), of("near"), of("nvidia-vm"))
}

#[test]
fn the_table_of_sizes_is_what_the_program_plans() {
    let mut table = String::new();
    for (name, topology) in topologies() {
        if topology.gpus().count() < 8 {
            continue;
        }
        let host = project().join(format!("topologies/{name}.json"));
        let (code, text, err) =
            run(&mut gpuvm(&["capacity", "--json", "--host", host.to_str().unwrap()]));
        assert_eq!(code, 0, "{err}");
        let capacity: serde_json::Value = serde_json::from_str(&text).unwrap();
        for size in capacity["sizes"].as_array().unwrap() {
            table += &sizes(&host, size["gpus"].as_u64().unwrap());
        }
    }
    assert!(table.lines().count() >= 17, "{table}");
    let file = project().join("man/gpuvm-hardware.7");
    let page = std::fs::read_to_string(&file).unwrap();
    let (before, rest) = page.split_once(".\\\" sizes\n").unwrap();
    let (was, after) = rest.split_once(".\\\" end of sizes\n").unwrap();
    if std::env::var_os("GPUVM_RENEW").is_some() {
        let page = format!("{before}.\\\" sizes\n{table}.\\\" end of sizes\n{after}");
        return std::fs::write(file, page).unwrap();
    }
    assert_eq!(was, table, "GPUVM_RENEW=1 renews it");
}

/// A recorded host with Fabric Manager in a mode, GPUs of another device ID and known module ids.
fn board(record: &str, device: &str, mode: u8) -> tempfile::TempDir {
    let dir = crate::support::tree::scratch();
    let text = crate::support::tree::host_text(record);
    let text = text.replace("product_name = DGXH100", "product_name = SYS-821");
    let text = text.replace("device = 0x2330", &format!("device = 0x{device}"));
    let text = text.replace("v000010DEd00002330", &format!("v000010DEd0000{device}"));
    // The switches of Blackwell are no functions on PCI; boards with Grace have Arm processors.
    let is_blackwell = device.starts_with("29") || device.starts_with("31");
    let text = match device {
        "2941" => text.replace("GenuineIntel", "ARM"),
        _ if is_blackwell => {
            text.replace("class = 0x068000", "class = 0x088000").replace("bc06sc80", "bc08sc80")
        }
        _ => text,
    };
    crate::support::tree::unpack(&text, dir.path()).unwrap();
    let config = dir.path().join("usr/share/nvidia/nvswitch");
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("fabricmanager.cfg"), format!("FABRIC_MODE={mode}\n")).unwrap();
    let host = gpuvm::discover::discover(&gpuvm::fsroot::FsRoot::at(dir.path()).unwrap()).unwrap();
    let ids: std::collections::BTreeMap<String, usize> =
        host.gpus().map(|gpu| gpu.bdf.to_string()).zip(1..).collect();
    std::fs::create_dir_all(dir.path().join("etc/gpuvm")).unwrap();
    let ids = serde_json::to_string(&ids).unwrap();
    std::fs::write(dir.path().join("etc/gpuvm/module-ids.json"), ids).unwrap();
    dir
}

/// The sizes of guests that fit the empty host, with further options of `capacity`.
fn fitting(host: &Path, more: &[&str]) -> String {
    let mut command = gpuvm(&["capacity", "--json", "--host", host.to_str().unwrap()]);
    let (code, text, err) = run(command.args(more));
    if code != 0 {
        return format!("none: {err}");
    }
    let capacity: serde_json::Value = serde_json::from_str(&text).unwrap();
    let fits = capacity["sizes"].as_array().unwrap().iter().filter(|size| size["empty"] != 0);
    let fits: Vec<String> = fits.map(|size| size["gpus"].to_string()).collect();
    if fits.is_empty() { "none".into() } else { fits.join(" ") }
}

#[test]
fn the_table_of_boards_has_the_sizes_that_the_program_offers() {
    let page = std::fs::read_to_string(project().join("man/gpuvm-hardware.7")).unwrap();
    let (_, rest) = page.split_once(".\\\" boards\n").unwrap();
    let (table, _) = rest.split_once(".\\\" end of boards\n").unwrap();
    let mut rows: Vec<Vec<String>> = Vec::new();
    for line in table.lines() {
        rows.push(line.split('|').map(|cell| cell.replace("\\-", "-")).collect());
    }
    let row_of = |name: &str, mode: &str| {
        let row = rows.iter().find(|row| row[0] == name && row[1] == mode);
        row.unwrap_or_else(|| panic!("{name}, {mode} is not in the table"))
    };
    let mut wrong = Vec::new();
    for (name, mode, record, device, number) in [
        ("DGX-1", "none", "dgx-1", "", 0),
        ("DGX-2", "passed", "dgx-2", "", 0),
        ("DGX-2", "shared", "dgx-2", "", 1),
        ("HGX A100, A800", "passed", "dgx-a100", "", 0),
        ("HGX A100, A800", "shared", "dgx-a100", "", 1),
        ("HGX H100, H200", "shared", "dgx-h100", "2330", 1),
        ("HGX H100, H200", "shared", "dgx-h100", "2335", 1),
        ("HGX H100, H200", "passed", "dgx-h100", "2330", 0),
        ("HGX H100, H200", "passed", "dgx-h100", "2335", 0),
        ("HGX B200, B300", "shared", "dgx-h100", "2901", 1),
        ("HGX B200, B300", "shared", "dgx-h100", "3182", 1),
        ("HGX B200, B300", "passed", "dgx-h100", "2901", 0),
        ("HGX B200, B300", "passed", "dgx-h100", "3182", 0),
    ] {
        let row = row_of(name, mode);
        let dir = board(record, if device.is_empty() { "2330" } else { device }, number);
        let fits = fitting(dir.path(), &[]);
        if fits != row[2] {
            wrong.push(format!("{name} {device} {mode}: {fits}"));
        }
    }
    // Their sizes depend on libvirt and QEMU.
    let tray = crate::support::tree::scratch();
    Grace::tray().make(tray.path());
    let new = fitting(tray.path(), &["--assume", "libvirt=12.9,qemu=11.1"]);
    assert_eq!(new, row_of("GB200, GB300", "rack")[2], "with new versions");
    assert_eq!(
        fitting(board("dgx-h100", "2941", 0).path(), &[]),
        "none",
        "with those of Debian 13"
    );
    let any = fitting(&project().join("topologies/dual-socket.json"), &[]);
    assert_eq!(any, "1 2", "every number of PCIe cards");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Trust makes isolation needless, and CUDA no less broken.
#[test]
fn a_guest_without_cuda_is_reported_beside_any_neighbours() {
    let text = std::fs::read_to_string(project().join("topologies/dgx-h100.json")).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
    record["host"]["fabric"]["model"] = "full-passthrough".into();
    record["host"]["fabric"]["links_stay_on"] = true.into();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("host.json");
    for trust in [None, Some("one-tenant"), Some("strangers")] {
        if let Some(trust) = trust {
            record["host"]["machine"]["trust"] = trust.into();
        }
        std::fs::write(&file, record.to_string()).unwrap();
        let plan = |gpus: &str| {
            let mut command = gpuvm(&["plan", "--assume-empty", "--gpus", gpus, "--host"]);
            run(command.arg(&file)).1
        };
        let one = plan("1");
        assert!(
            one.contains("! ") && one.contains("CUDA fails with error 802"),
            "{trust:?}: {one}"
        );
        assert!(!plan("8").contains("802"), "{trust:?}");
    }
}

#[test]
fn one_of_a_kind_is_written_in_the_singular() {
    let said = |args: &[&str]| {
        let mut command = gpuvm(&["plan", "--assume-empty"]);
        command.args(args).arg("--host").arg(project().join("topologies/dgx-h100.json"));
        let (_, out, err) = run(&mut command);
        out + &err
    };
    let one = said(&["--vcpus", "1", "--max-vcpus", "1"]);
    assert!(one.contains("  vCPUs        1: 1 socket of 1 core with 1 thread\n"), "{one}");
    assert!(one.contains("  pins         vCPU 0 on "), "{one}");
    let more = said(&["--vcpus", "1", "--max-vcpus", "2"]);
    assert!(more.contains("  vCPUs        2, 1 at start: "), "{more}");
    let none = said(&["--threads", "0", "--pins", "none"]);
    assert!(none.contains("error: a core of a guest has at least one thread"), "{none}");
    let kept = said(&["--reserve-cores", "1", "--vcpus", "999"]);
    assert!(kept.contains("the 1 core of each node that is kept for it"), "{kept}");
}

/// `plan` promised what `export` and `create` refuse.
#[test]
fn room_for_vcpus_is_refused_by_plan_too_where_guests_cannot_get_any() {
    let text = std::fs::read_to_string(project().join("topologies/dual-socket.json")).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
    record["host"]["machine"]["architecture"] = "aarch64".into();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("host.json");
    std::fs::write(&file, record.to_string()).unwrap();
    for verb in [&["plan"][..], &["export"], &["create", "a", "--dry-run"]] {
        for (most, code) in [("8", 1), ("4", 0)] {
            let mut command = gpuvm(verb);
            command.args(["--assume-empty", "--gpus", "0", "--vcpus", "4", "--max-vcpus", most]);
            let (ended, out, err) = run(command.arg("--host").arg(&file));
            assert_eq!(ended, code, "{verb:?} {most}: {out}{err}");
            let refused = err.contains("cannot get vCPUs while they run");
            assert_eq!(refused, code == 1, "{verb:?} {most}: {out}{err}");
        }
    }
}

/// `plan` promised what `export` and `create` refuse.
#[test]
fn more_queues_than_vcpus_are_refused_by_plan_too() {
    for verb in [&["plan"][..], &["export"], &["create", "--dry-run"]] {
        for (queues, code) in [("4", 1), ("2", 0)] {
            let mut command = gpuvm(verb);
            command.arg("--host").arg(project().join("topologies/dgx-2.json"));
            command.args(["--name", "a", "--vcpus", "2", "--network"]);
            let (ended, out, err) = run(command.arg(format!("a,queues={queues}")));
            assert_eq!(ended, code, "{verb:?} {queues}: {out}{err}");
            let refused =
                err.contains("4 queues on network `a`, and a NIC of 2 vCPUs takes 1 to 2");
            assert_eq!(refused, code == 1, "{verb:?} {queues}: {out}{err}");
        }
    }
}

/// A plan is no promise where `create` refuses the guest whatever is accepted for it.
#[test]
fn a_plan_says_that_create_refuses_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut parts = load(&project().join("topologies/dgx-2.json")).unwrap().parts().clone();
    for (said, is_refused) in [(Trust::Strangers, true), (Trust::OneTenant, false)] {
        parts.machine.trust = Some(said);
        let host = dir.path().join("host.json");
        std::fs::write(
            &host,
            gpuvm::topology::file::to_json(&Topology::new(parts.clone()).unwrap()),
        )
        .unwrap();
        let asked = ["--host", host.to_str().unwrap(), "--gpus", "2", "--name", "a"];
        let ask = |more: &[&str]| run(&mut gpuvm(&[more, &asked].concat()));
        let (code, _, err) = ask(&["create", "--dry-run", "--accept-shared-fabric"]);
        assert_eq!(code == 1, is_refused, "{err}");
        let (code, page, err) = ask(&["plan", "--html", "-"]);
        assert_eq!(code, 0, "{err}");
        assert_eq!(page.contains("a fits: "), !is_refused);
        assert_eq!(page.contains("would define a guest"), !is_refused);
        assert_eq!(page.contains("gpuvm create --plan a.json"), !is_refused);
        let (_, text, _) = ask(&["plan"]);
        let line = text.lines().find(|line| line.starts_with("! create "));
        let says = line.is_some_and(|line| line.contains(" refuses this guest; guests of"));
        assert_eq!(says, is_refused, "{text}");
        let (_, json, _) = ask(&["plan", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["refused"].is_string(), is_refused, "{json}");
    }
}

#[test]
fn a_name_that_create_refuses_is_refused_by_the_plan() {
    let host = project().join("topologies/dgx-2.json");
    let host = host.to_str().unwrap();
    for name in ["7", "007", "40955dd6-1111-4222-8333-444444444444"] {
        let (code, out, err) = run(&mut gpuvm(&["plan", name, "--gpus", "1", "--host", host]));
        assert_eq!((code, out.as_str()), (2, ""), "{name}: {err}");
        assert!(err.contains("virsh would take that name for"), "{err}");
        assert!(err.contains(&format!("such as `vm-{name}`")), "{err}");
    }
}

#[test]
fn the_plan_reports_a_taken_name() {
    let host = project().join("topologies/dgx-2.json");
    let host = host.to_str().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (code, xml, err) =
        run(&mut gpuvm(&["export", "--name", "old", "--gpus", "1", "--host", host]));
    assert_eq!(code, 0, "{err}");
    std::fs::write(dir.path().join("old.xml"), xml).unwrap();
    for (name, is_told) in [("old", true), ("new", false)] {
        let mut command = gpuvm(&["plan", name, "--gpus", "1", "--host", host, "--domain-xml"]);
        let (code, _, err) = run(command.arg(dir.path()));
        assert_eq!(code, 0, "{err}");
        assert_eq!(err.contains("a new guest needs another name"), is_told, "{name}: {err}");
    }
}
