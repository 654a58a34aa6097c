//! The limits of the rules of `tune`: the values at the edges, and guests to which a rule does not
//! apply.

use super::domains::{Wanted, tuned};
use crate::support::tree::Small;
use crate::support::{gpuvm, project, run};
use crate::xml::guests::host;
use gpuvm::check::judge;
use gpuvm::domain::DomainXml;
use gpuvm::domain::claims::Claims;
use gpuvm::domain::guest::{Abilities, DiskIo};
use gpuvm::placement::Occupancy;
use gpuvm::topology::Topology;
use gpuvm::tune::together::together;
use gpuvm::tune::{Given, Item, Items, Tuned, tune};
use gpuvm::versions::Versions;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Tunes a document alone on a DGX-2.
fn one(text: &str, items: &Items) -> Result<Tuned, String> {
    let xml = DomainXml::parse(text).unwrap();
    let done = tuned(&xml, &host("dgx-2"), &Occupancy::default(), items);
    done.map_err(|error| error.to_string())
}

/// The document of a guest of the vendor's kind, with replacements.
fn guest(wanted: &Wanted, replacements: &[(&str, &str)]) -> String {
    replacements.iter().fold(wanted.xml(&host("dgx-2")), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    })
}

/// Items of which one is set.
fn with(set: fn(&mut Items)) -> Items {
    let mut items = Items::default();
    set(&mut items);
    items
}

/// The host's CPU, as the guests of the vendor's kind have it.
const CPU: &str = "<cpu mode='host-passthrough' check='none'/>";

#[test]
fn a_guest_with_devices_starts_with_all_its_memory() {
    let less = "<currentMemory unit='GiB'>1</currentMemory>\n  <vcpu placement";
    let text = guest(&Wanted::vendor(0, 8), &[("<vcpu placement", less)]);
    let after = one(&text, &Items::all()).unwrap().after;
    let current = after.root().child("currentMemory").unwrap().text().trim().to_owned();
    assert_eq!(current, Claims::read(&after).memory.value.kib().to_string());
    // One without devices may have its balloon.
    let bare = Wanted { gpus: 0..0, memory_kib: 8 << 20, ..Wanted::vendor(0, 1) };
    let text = guest(&bare, &[("<vcpu placement", less)]);
    let after = one(&text, &Items::all()).unwrap().after;
    assert!(after.text().contains("<currentMemory unit='GiB'>1<"), "{}", after.text());
    assert!(after.text().contains("<memballoon model='virtio'/>"), "{}", after.text());
}

#[test]
fn emulated_guests_need_no_topoext() {
    let mut parts = host("dgx-2").parts().clone();
    parts.machine.cpu_vendor = Some("AuthenticAMD".into());
    let amd = Topology::new(parts).unwrap();
    for (kind, needs) in [("kvm", true), ("qemu", false)] {
        let text = guest(&Wanted::vendor(0, 8), &[("type='kvm'", &format!("type='{kind}'"))]);
        let xml = DomainXml::parse(&text).unwrap();
        let after = tuned(&xml, &amd, &Occupancy::default(), &Items::all()).unwrap().after;
        assert_eq!(after.text().contains("topoext"), needs, "{kind}");
    }
}

#[test]
fn cells_that_are_there_are_renewed_and_what_they_lack_is_added() {
    // Without devices, pins and bindings, one cell is only made if there is one already.
    let bare = Wanted { gpus: 0..0, pins: Vec::new(), memory_kib: 8 << 20, ..Wanted::vendor(0, 2) };
    let cells = "<cpu><numa><cell id='0' cpus='0-4' memory='4' unit='GiB'/>\
                 <cell id='1' cpus='5-9' memory='4' unit='GiB'/></numa></cpu>";
    let items = Items { pins: Item::Off, cells: Item::On, ..Items::default() };
    let one_cell = "<cpu><numa><cell id='0' cpus='0-8' memory='8' unit='GiB'/></numa></cpu>";
    let text = one(&guest(&bare, &[(CPU, one_cell)]), &items).unwrap().after.text().to_owned();
    assert!(text.contains("<cell id='0' cpus='0-9'"), "{text}");
    assert!(!one(&guest(&bare, &[]), &items).unwrap().after.text().contains("<cell"));
    // Two that have everything but their distances get these.
    let two = Wanted::vendor(0, 16);
    let after = one(&two.xml(&host("dgx-2")), &Items::all()).unwrap().after.text().to_owned();
    assert!(after.contains("<sibling id='1' value='21'/>"), "{after}");
    let far = after.replace("<sibling id='1' value='21'/>", "<sibling id='1' value='99'/>");
    assert_eq!(one(&far, &Items::all()).unwrap().after.text(), after);
    assert!(one(&guest(&bare, &[(CPU, cells)]), &items).unwrap().changes.is_empty());
}

#[test]
fn a_nic_has_eight_queues_unless_it_has_a_number_of_its_own() {
    let eight = Wanted::vendor(0, 8).xml(&host("dgx-2"));
    let model = "<model type='virtio'/>";
    let with_queues = |queues: u32| {
        let driver = format!("{model}<driver name='vhost' queues='{queues}'/>");
        eight.replace(model, &driver)
    };
    let queues = |item| Items { net_queues: item, ..Items::default() };
    let after = |text: &str, item| {
        let tuned = one(text, &queues(item)).unwrap();
        let nic = tuned.after.text().split("<driver name='vhost' queues='").nth(1).unwrap();
        nic.split('\'').next().unwrap().parse::<u32>().unwrap()
    };
    assert_eq!(after(&eight, Item::On), 8);
    // With 46 vCPUs: a number of several stays; an unusable one does not.
    for (had, has) in [(1, 8), (7, 7), (8, 8), (9, 9), (46, 46), (47, 8), (300, 8)] {
        assert_eq!(after(&with_queues(had), Item::On), has, "{had}");
        assert_eq!(after(&with_queues(had), Item::To(8)), 8, "{had}");
        assert_eq!(after(&with_queues(had), Item::To(46)), 46, "{had}");
    }
}

#[test]
fn values_at_the_edge_are_taken_and_beyond_it_refused() {
    let eight = Wanted::vendor(0, 8).xml(&host("dgx-2"));
    let mut parts = host("dgx-2").parts().clone();
    parts.machine.physical_address_bits = Some(46);
    let known = Topology::new(parts).unwrap();
    let xml = DomainXml::parse(&eight).unwrap();
    for (bits, taken) in [(31, false), (32, true), (46, true), (47, false)] {
        let items = Items { maxphysaddr: Item::To(bits), ..Items::default() };
        let tuned = tuned(&xml, &known, &Occupancy::default(), &items);
        assert_eq!(tuned.is_ok(), taken, "{bits} bits");
    }
    let queues = |queues| Items { disk_queues: Item::To(queues), ..Items::default() };
    assert!(one(&eight, &queues(46)).is_ok() && one(&eight, &queues(1)).is_ok());
    for none in [0, 47] {
        assert!(one(&eight, &queues(none)).unwrap_err().contains("a disk takes 1 to 46"));
    }
    let nodes = with(|items| items.memory_nodes = Item::To("0,2".parse().unwrap()));
    let cells = "<cpu><numa><cell id='0' cpus='0-45' memory='758456320'/></numa></cpu>";
    let error = one(&guest(&Wanted::vendor(0, 8), &[(CPU, cells)]), &nodes).unwrap_err();
    assert!(error.contains("this host has no node 2"), "{error}");
    let error = one(&eight, &nodes).unwrap_err();
    assert!(error.contains("this host has no node 2"), "{error}");
}

#[test]
fn memory_of_a_guest_without_cells_is_bound_to_the_named_nodes() {
    let eight = Wanted::vendor(0, 8).xml(&host("dgx-2"));
    for nodes in ["0", "0-1"] {
        let items = Items { memory_nodes: Item::To(nodes.parse().unwrap()), ..Items::default() };
        let tuned = one(&eight, &items).unwrap().after.text().to_owned();
        let bound = format!("<memory mode='strict' nodeset='{nodes}'/>");
        assert!(tuned.contains(&bound) && !tuned.contains("<numa>"), "{tuned}");
        assert_eq!(one(&tuned, &items).unwrap().after.text(), tuned);
    }
}

#[test]
fn memory_follows_pins_that_no_plan_has() {
    let on = with(|items| items.memory_nodes = Item::On);
    let wide = |cpuset: &str| Wanted {
        pins: Vec::new(),
        vcpus: 2,
        gpus: 0..0,
        memory_kib: 8 << 20,
        more: match cpuset {
            "24-47" => {
                "\n<cputune><vcpupin vcpu='0' cpuset='24-47'/><vcpupin vcpu='1' cpuset='24-47'/></cputune>"
            }
            _ => {
                "\n<cputune><vcpupin vcpu='0' cpuset='0-47'/><vcpupin vcpu='1' cpuset='30'/></cputune>"
            }
        },
        ..Wanted::vendor(0, 1)
    };
    for (cpuset, nodes) in [("24-47", "1"), ("0-47", "0-1")] {
        let text = guest(&wide(cpuset), &[]);
        let tuned = one(&text, &on).unwrap().after.text().to_owned();
        let bound = format!("<memory mode='strict' nodeset='{nodes}'/>");
        assert!(tuned.contains(&bound) && tuned.contains(wide(cpuset).more), "{tuned}");
        assert_eq!(one(&tuned, &on).unwrap().after.text(), tuned);
    }
    // Their node has less memory than the guest.
    let large = Wanted { memory_kib: 1000 << 20, ..wide("24-47") };
    let tuned = one(&guest(&large, &[]), &on).unwrap();
    assert!(!tuned.after.text().contains("numatune"), "{}", tuned.after.text());
}

#[test]
fn memory_that_cannot_leave_its_nodes_stays_bound_as_it_is() {
    let cells = "<cpu mode='host-passthrough' check='none'>\n<numa>\n\
                 <cell id='0' cpus='0-45' memory='758456320'/>\n</numa>\n</cpu>";
    let bound = "<numatune>\n<memory mode='restrictive' nodeset='0'/>\n</numatune>\n<vcpu ";
    let text = guest(&Wanted::vendor(0, 8), &[(CPU, cells), ("<vcpu ", bound)]);
    let stays = "<memory mode='restrictive' nodeset='0'/>\n</numatune>";
    let after = one(&text, &Items::all()).unwrap().after.text().to_owned();
    assert!(after.contains(stays), "{after}");
    let named = one(&text, &with(|items| items.memory_nodes = Item::On)).unwrap();
    assert!(named.after.text().contains("<memnode cellid='0' mode='strict' nodeset='0'/>"));
    let far = text.replace("restrictive' nodeset='0'", "restrictive' nodeset='1'");
    let after = one(&far, &Items::all()).unwrap().after.text().to_owned();
    assert!(after.contains("<memory mode='strict' nodeset='0'/>"), "{after}");
}

#[test]
fn a_guest_is_pinned_on_the_node_that_its_owner_confined_it_to() {
    let dgx2 = host("dgx-2");
    let (free, own) = ("<vcpu placement='static'>", "<vcpu placement='static' cpuset='24-47'>");
    let bound = |mode: &str| {
        let numatune = format!("<numatune><memory mode='{mode}' nodeset='1'/></numatune>");
        (free.to_owned(), numatune + free)
    };
    let floats = Wanted { gpus: 0..0, pins: Vec::new(), ..Wanted::vendor(0, 1) };
    let few = own.replace("24-47", "30");
    let confined = |to: &str| (free.to_owned(), to.to_owned());
    for (from, to) in [confined(own), confined(&few), bound("strict"), bound("preferred")] {
        let after = one(&guest(&floats, &[(&from, &to)]), &Items::all()).unwrap();
        let pins = after.placement.unwrap().vcpu_pins;
        let node = dgx2.node(gpuvm::cpuset::NodeId(1)).unwrap();
        assert!(pins.iter().all(|pin| pin.is_subset(&node.pcpus)), "{to}: {pins:?}");
        let again = one(after.after.text(), &Items::all()).unwrap();
        assert_eq!(again.after.text(), after.after.text());
    }
    // Its GPU's node is nearer.
    let near = Wanted { pins: Vec::new(), ..Wanted::vendor(0, 1) };
    let (from, to) = bound("strict");
    let after = one(&guest(&near, &[(&from, &to)]), &Items::all()).unwrap();
    assert!(
        after.after.text().contains("<memory mode='strict' nodeset='0'/>"),
        "{:?}",
        after.changes
    );
}

#[test]
fn disks_are_tuned_where_they_are_written_and_as_their_files_can_take_it() {
    let direct = "type='qcow2' cache='none' io='native'/>\n      <source file='/raid";
    let text = guest(
        &Wanted::vendor(0, 8),
        &[
            ("bus='virtio'/>\n", "bus='virtio'/>\n      <readonly/>\n"),
            ("type='qcow2'/>\n      <source file='/raid", direct),
        ],
    );
    let xml = DomainXml::parse(&text).unwrap();
    let disks: BTreeMap<String, DiskIo> =
        [("/raid/dgx-kvm/vol-eight".to_owned(), DiskIo::Threads)].into();
    let given = Given {
        topology: &host("dgx-2"),
        others: &Occupancy::default(),
        items: &Items::all(),
        allow: gpuvm::request::Allow::default(),
        disks: &disks,
        abilities: Abilities::default(),
        versions: &Versions::default(),
    };
    let after = tune(&xml, &given).unwrap().after.text().to_owned();
    // The file system of the second one does not support direct writes: its settings are corrected.
    let (cache, io) = DiskIo::Threads.words();
    assert!(after.contains(&format!("cache='{cache}' io='{io}'")), "{after}");
    assert_eq!(after.matches("queues='32'").count(), 1, "the first is only read:\n{after}");
}

#[test]
fn iothreads_lose_the_pins_of_those_that_go_and_gaps_are_refused() {
    let threads = |more| Wanted { more, ..Wanted::vendor(0, 8) };
    let pins = "<cputune>\n    <iothreadpin iothread='1' cpuset='22'/>\n    <iothreadpin \
                iothread='46' cpuset='23'/>";
    let text = guest(&threads("\n  <iothreads>46</iothreads>"), &[("<cputune>", pins)]);
    let items = Items { pins: Item::On, iothreads: Item::On, ..Items::default() };
    let after = one(&text, &items).unwrap().after.text().to_owned();
    assert!(after.contains("<iothreadpin iothread='1' cpuset='22'/>"), "{after}");
    assert!(!after.contains("iothread='46'"), "{after}");
    let gaps =
        "\n  <iothreadids>\n    <iothread id='2'/>\n    <iothread id='5'/>\n  </iothreadids>";
    let text = threads(gaps).xml(&host("dgx-2"));
    let pin = with(|items| items.iothread_pins = Item::To("22".parse().unwrap()));
    let error = one(&text, &pin).unwrap_err();
    assert!(error.contains("have the ids 2, 5"), "{error}");
}

#[test]
fn old_cores_do_not_outweigh_the_devices_node() {
    let dgx2 = host("dgx-2");
    // Pinned to the package that its GPUs are not on.
    let far = Wanted { pins: (24..29).chain(72..77).collect(), ..Wanted::vendor(0, 2) };
    let after = one(&far.xml(&dgx2), &Items::all()).unwrap().after;
    let node = dgx2.node(gpuvm::cpuset::NodeId(0)).unwrap();
    let claims = Claims::read(&after);
    assert!(claims.vcpu_pins.iter().all(|pin| pin.cpuset.value.is_subset(&node.pcpus)));
}

#[test]
fn where_helpers_float_says_nothing_of_where_a_guest_is() {
    let near = Wanted {
        pins: vec![6, 54, 7, 55, 8, 56],
        vcpus: 6,
        gpus: 0..0,
        memory_kib: 8 << 20,
        ..Wanted::vendor(0, 1)
    };
    let pins = "<cputune>\n    <emulatorpin cpuset='9,57'/>\n    <iothreadpin iothread='1' \
                cpuset='0-23,48-71'/>";
    let wanted = Wanted { more: "\n  <iothreads>1</iothreads>", ..near };
    let after = one(&guest(&wanted, &[("<cputune>", pins)]), &Items::all()).unwrap().after;
    let claims = Claims::read(&after);
    let own: gpuvm::cpuset::CpuSet = "6-9,54-57".parse().unwrap();
    assert!(
        claims.vcpu_pins.iter().all(|pin| pin.cpuset.value.is_subset(&own)),
        "{}",
        after.text()
    );
}

#[test]
fn guests_of_32_bits_are_tuned_and_modules_are_not_counted_twice() {
    let text = guest(&Wanted::vendor(0, 2), &[("arch='x86_64'", "arch='i686'")]);
    assert!(one(&text, &Items::all()).is_ok());
    // Of 12 GiB 4 are a module, which stays so.
    let bare = Wanted { gpus: 0..0, memory_kib: 12 << 20, ..Wanted::vendor(0, 2) };
    let cells = "<cpu><numa><cell id='0' cpus='0-9' memory='8' unit='GiB'/></numa></cpu>";
    let module = "<memory model='dimm'><target><size unit='GiB'>4</size><node>0</node></target>\
                  </memory>\n    <console";
    let more = "\n  <maxMemory slots='4' unit='GiB'>32</maxMemory>";
    let text = guest(&Wanted { more, ..bare }, &[(CPU, cells), ("<console", module)]);
    let tuned = one(&text, &Items::all()).unwrap();
    assert_eq!(tuned.placement.unwrap().memory().kib(), 8 << 20);
    assert!(tuned.after.text().contains("memory='8' unit='GiB'"), "{}", tuned.after.text());
}

#[test]
fn running_guests_keep_their_place_until_the_next_start() {
    let dgx2 = host("dgx-2");
    let one = DomainXml::parse(&Wanted::vendor(0, 1).xml(&dgx2)).unwrap();
    let two = Wanted { name: "other", gpus: 1..2, ..Wanted::vendor(0, 1) };
    let two = DomainXml::parse(&two.xml(&dgx2)).unwrap();
    // The first runs on the cores of the other's GPU, which its new definition leaves.
    let running = Wanted { pins: vec![3, 51, 4, 52, 5], ..Wanted::vendor(0, 1) };
    let running = DomainXml::parse(&running.xml(&dgx2)).unwrap().held(true).unwrap();
    let others = Occupancy { domains: vec![running.clone()], ..Occupancy::default() };
    let given = Given {
        topology: &dgx2,
        others: &others,
        items: &Items::all(),
        allow: gpuvm::request::Allow::default(),
        disks: &BTreeMap::new(),
        abilities: Abilities::default(),
        versions: &Versions::default(),
    };
    let answers = together(&[one, two], &given);
    let taken: gpuvm::cpuset::CpuSet =
        running.vcpu_pins.iter().flat_map(|pin| pin.iter()).collect();
    let other = answers[1].as_ref().unwrap();
    for pin in Claims::read(&other.after).vcpu_pins {
        assert!(!pin.cpuset.value.intersects(&taken), "{}", pin.cpuset.value);
    }
}

#[test]
fn older_faults_do_not_refuse_the_rest() {
    // Two domains' worth of one GPU: wrong, but not because of the disks.
    let twice = guest(&Wanted::vendor(0, 1), &[]);
    let hostdev = twice.split("    <hostdev").nth(1).unwrap().split("</hostdev>").next().unwrap();
    let again = format!("    <hostdev{hostdev}</hostdev>\n    <memballoon");
    let text = twice.replacen("    <memballoon", &again, 1);
    let queues = Items { disk_queues: Item::To(2), ..Items::default() };
    let tuned = one(&text, &queues).unwrap();
    assert!(tuned.findings.iter().any(|finding| finding.rule == "hostdev-twice"));
    assert!(tuned.after.text().contains("queues='2'"));
}

#[test]
fn guests_of_the_time_before_nodes_without_gpus_were_shared_out_stay_where_they_are() {
    let a100 = host("dgx-a100");
    let record = project().join("topologies/dgx-a100.json");
    let sizes = [("1", None), ("4", None), ("8", None), ("1", Some("24")), ("8", Some("96"))];
    for (gpus, vcpus) in sizes {
        // Without queues that several I/O threads serve, as `tuned` has it.
        let host = ["export", "--host", record.to_str().unwrap(), "--assume", "libvirt=9.0"];
        let words = [&host[..], &["--profile", "near"]].concat();
        let number: Vec<&str> =
            vcpus.map(|vcpus| ["--vcpus", vcpus]).into_iter().flatten().collect();
        let all = [&words[..], &["--gpus", gpus], &number].concat();
        let (code, text, err) = run(&mut gpuvm(&all));
        assert_eq!(code, 0, "{err}");
        let was = text.replace("\"profile\":\"near\"", "\"profile\":\"share\"");
        assert_ne!(was, text);
        for text in [was, text] {
            let xml = DomainXml::parse(&text).unwrap();
            let done = tuned(&xml, &a100, &Occupancy::default(), &Items::all()).unwrap();
            let after = done.after.text();
            let part = |text: &str, name: &str| {
                let rest = text.split(&format!("<{name}")).nth(1).unwrap().to_owned();
                rest.split(&format!("</{name}>")).next().unwrap().to_owned()
            };
            for name in ["vcpu ", "cputune>", "numatune>", "numa>"] {
                assert_eq!(part(after, name), part(&text, name), "{gpus} GPUs, {vcpus:?}");
            }
        }
    }
}

/// A guest of all GPUs of a DGX A100, as it is made now; and as it was before gpuvm knew dies and
/// caches.
fn old_and_new() -> (String, String) {
    let record = project().join("topologies/dgx-a100.json");
    let words = ["export", "--host", record.to_str().unwrap(), "--gpus", "8", "--name", "old"];
    let (code, new, err) = run(&mut gpuvm(&words));
    assert_eq!(code, 0, "{err}");
    let shape = "sockets='2' dies='4' cores='15'";
    let cache = new.lines().find(|line| line.contains("<cache ")).unwrap();
    let old = new.replace(shape, "sockets='2' dies='1' cores='60'");
    assert_ne!(old, new, "no {shape} in {new}");
    (old.replace(&format!("{cache}\n"), ""), new)
}

#[test]
fn an_old_guest_gets_dies_only_when_they_are_asked_for() {
    let a100 = host("dgx-a100");
    let (old, new) = old_and_new();
    let given = |text: &str, items: &Items| {
        let xml = DomainXml::parse(text).unwrap();
        tuned(&xml, &a100, &Occupancy::default(), items).unwrap()
    };
    let plain = given(&old, &Items::all());
    assert!(plain.after.text().contains("dies='1'"), "{:?}", plain.changes);
    assert!(!plain.after.text().contains("<cache "), "{:?}", plain.changes);
    let because = plain.reasons.iter().map(|reason| reason.because.to_string());
    let way = "`gpuvm tune old --topology on --cpu-cache on`";
    assert_eq!(because.filter(|text| text.contains(way)).count(), 1);
    // The checker calls it a note, so that it is no reason to fail.
    let none = (&Occupancy::default(), &Versions::default());
    let seen = |text: &str| {
        let (found, notes) = judge(&DomainXml::parse(text).unwrap(), &a100, none.0, none.1);
        let is = |rule: &str| rule == "guest-caches";
        (found.iter().any(|f| is(f.rule)), notes.iter().find(|n| is(n.rule)).cloned())
    };
    let (found, note) = seen(plain.after.text());
    assert!(!found && note.unwrap().message.contains(&way[1..way.len() - 1]));
    // A definition that describes caches describes them wrongly.
    let said = old.replace("<maxphysaddr", "<cache level='3' mode='emulate'/><maxphysaddr");
    assert!(matches!(seen(&said), (true, None)), "{said}");
    // As the note says.
    let items = Items { topology: Item::On, cpu_cache: Item::On, ..Items::default() };
    let asked = given(&old, &items);
    let part = |text: &str| {
        let lines = text.lines().filter(|line| line.contains("dies=") || line.contains("<cache"));
        lines.map(|line| line.trim().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(part(asked.after.text()), part(&new), "{:?}", asked.changes);
    assert!(matches!(seen(asked.after.text()), (false, None)));
    // A guest that was created with them keeps them.
    let again = given(&new, &Items::all());
    assert_eq!(part(again.after.text()), part(&new), "{:?}", again.changes);
    // One that has another shape gets the planned one, dies and all.
    let other = old.replace("cores='60' threads='2'", "cores='120' threads='1'");
    assert_ne!(other, old);
    assert_eq!(part(given(&other, &Items::all()).after.text()), part(&new));
}

#[test]
fn only_guests_with_the_hosts_cpu_get_its_hints_and_need_its_address_bits() {
    let a100 = host("dgx-a100");
    let (_, new) = old_and_new();
    let items = Items { kvm_hints: Item::On, ..Items::default() };
    let hints: Vec<&str> = new.lines().filter(|line| line.contains("state='on'")).collect();
    let bare = hints.iter().fold(new.clone(), |text, line| text.replace(&format!("{line}\n"), ""));
    let given = |text: &str| {
        let xml = DomainXml::parse(text).unwrap();
        tuned(&xml, &a100, &Occupancy::default(), &items).unwrap()
    };
    assert!(given(&bare).after.text().contains("hint-dedicated"));
    let model = bare.replace("mode='host-passthrough'", "mode='host-model'");
    let after = given(&model);
    assert!(!after.after.text().contains("hint-dedicated"), "{:?}", after.changes);
    let bits = "<maxphysaddr mode='passthrough'/>";
    let found = |text: &str| {
        let xml = DomainXml::parse(text).unwrap();
        let (found, _) = judge(&xml, &a100, &Occupancy::default(), &Versions::default());
        found.iter().any(|finding| finding.rule == "maxphysaddr-missing")
    };
    // The host's CPU passes on its bits without it, the model of one does not.
    assert!(!found(&new.replace(bits, "")));
    let without = new.replace(bits, "").replace("mode='host-passthrough'", "mode='host-model'");
    assert!(found(&without) && !found(&new));
    assert!(!found(&without.replace("<domain type='kvm'", "<domain type='qemu'")));
}

/// The definition that a verb prints for a small host, written to a file there.
fn exported(host: &Small, args: &[&str]) -> PathBuf {
    let (code, xml, err) = host.run(&[&["export", "--name", "a"], args].concat());
    assert_eq!(code, 0, "{err}");
    let file = host.path().join("a.xml");
    std::fs::write(&file, xml).unwrap();
    file
}

#[test]
fn pins_beside_set_aside_pcpus_are_mended_as_check_says() {
    let host = Small::new(1, 16);
    host.write("sys/devices/system/cpu/isolated", "2-15,18-31");
    let file = exported(&host, &["--vcpus", "8"]);
    let right = std::fs::read_to_string(&file).unwrap();
    let name = file.to_str().unwrap();
    let check = |file: &str| host.run(&["check", file]).1;
    assert!(!check(name).contains("pins-against-isolation"));
    // Two vCPUs on a core of the host.
    let pins = |text: &str| {
        let pin = |line: &&str| line.contains("<vcpupin");
        text.lines().filter(pin).map(str::to_owned).collect::<Vec<_>>()
    };
    let lines = pins(&right);
    let moved = |line: &str, pcpu: &str| {
        let at = line.find("cpuset='").unwrap() + 8;
        format!("{}{pcpu}'/>", &line[..at])
    };
    let wrong = right.replace(&lines[0], &moved(&lines[0], "1"));
    let wrong = wrong.replace(&lines[1], &moved(&lines[1], "17"));
    std::fs::write(&file, &wrong).unwrap();
    assert!(check(name).contains("pins-against-isolation"));
    let tune = ["tune", name, "--pins", "on", "--emulator", "on", "--iothread-pins", "on"];
    let (code, tuned, err) = host.run(&tune);
    assert_eq!(code, 0, "{err}");
    std::fs::write(&file, &tuned).unwrap();
    assert!(!check(name).contains("pins-against-isolation"), "{tuned}");
    let (code, again, _) = host.run(&tune);
    assert_eq!((code, again), (0, tuned));
}

#[test]
fn fewer_queues_than_usual_are_their_owners() {
    let host = Small::new(1, 16);
    let two = ["--vcpus", "12", "--network", "default,queues=2"];
    let file = exported(&host, &two);
    let name = file.to_str().unwrap();
    assert_eq!(host.run(&["tune", name, "--check"]).0, 0);
    // Those of a default follow the vCPUs.
    let file = exported(&host, &["--vcpus", "2"]);
    let (code, xml, err) = host.run(&["set", file.to_str().unwrap(), "--vcpus", "12"]);
    assert!(code == 0 && xml.contains("queues='8'"), "{xml}{err}");
}

#[test]
fn a_size_with_memory_of_other_nodes_is_planned_again_as_it_was_set() {
    let host = Small::new(2, 8);
    host.function("pci0000:00/0000:00:01.0/0000:01:00.0", "0302 10de:2330", 1, &[]);
    let file = exported(&host, &["--gpus", "1"]);
    let name = file.to_str().unwrap();
    let (code, xml, err) = host.run(&["set", name, "--memory", "24G", "--allow", "remote"]);
    assert_eq!(code, 0, "{err}");
    std::fs::write(&file, xml).unwrap();
    let (code, out, err) = host.run(&["tune", name, "--check"]);
    assert_eq!(code, 0, "{out}{err}");
    assert_eq!(host.run(&["set", name, "--vcpus", "4"]).0, 0);
}
