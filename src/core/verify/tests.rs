mod unfound;

use super::guest::{Function, View};
use super::*;
use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use crate::health::{Health, HealthCode, HealthFinding, HealthSource};
use crate::memsize::MemSize;
use crate::request::{HugePages, PageSize};
use crate::topology::{FabricModel, VfioDevice};
use crate::verify::process::{Mapped, Opened, Thread};

/// The running XML of a guest on a DGX-2: two cells on 1 GiB pages, a GPU on each node, an
/// interface, a disk.
const LIVE: &str = "<domain type='kvm' id='3'><name>a</name><memory unit='GiB'>4</memory><memoryBacking><hugepages>
<page size='1' unit='GiB'/></hugepages></memoryBacking><vcpu>4</vcpu><iothreads>1</iothreads><cputune>
<vcpupin vcpu='0' cpuset='0'/><vcpupin vcpu='1' cpuset='48'/><vcpupin vcpu='2' cpuset='24'/>
<vcpupin vcpu='3' cpuset='72'/><emulatorpin cpuset='1,49'/><iothreadpin iothread='1' cpuset='2'/></cputune>
<numatune><memnode cellid='0' mode='strict' nodeset='0'/><memnode cellid='1' mode='strict' nodeset='1'/></numatune>
<cpu mode='host-passthrough'><topology sockets='2' dies='1' clusters='1' cores='1' threads='2'/>
<numa><cell id='0' cpus='0-1' memory='2' unit='GiB'/><cell id='1' cpus='2-3' memory='2' unit='GiB'/></numa></cpu>
<devices>
<disk type='file'><driver type='raw' cache='none' queues='2'/><source file='/d/a.raw'/><target dev='vda' bus='virtio'/></disk>
<controller type='pci' index='0' model='pcie-root'/>
<controller type='pci' index='1' model='pcie-expander-bus'><target busNr='64'><node>0</node></target>
<address type='pci' bus='0' slot='4'/></controller>
<controller type='pci' index='2' model='pcie-root-port'><address type='pci' bus='1' slot='0'/></controller>
<controller type='pci' index='3' model='pcie-expander-bus'><target busNr='128'><node>1</node></target>
<address type='pci' bus='0' slot='5'/></controller>
<controller type='pci' index='4' model='pcie-root-port'><address type='pci' bus='3' slot='0'/></controller>
<interface type='network'><mac address='52:54:00:ab:00:01'/><source network='default'/><target dev='vnet0'/>
<model type='virtio'/><driver name='vhost' queues='2'/></interface>
<hostdev type='pci' managed='no'><source><address domain='0' bus='0x34' slot='0' function='0'/></source>
<address type='pci' bus='2' slot='0'/></hostdev>
<hostdev type='pci' managed='no'><source><address domain='0' bus='0xb7' slot='0' function='0'/></source>
<address type='pci' bus='4' slot='0'/></hostdev>
</devices></domain>";

/// Everything a guest is compared with, to be broken.
struct Case {
    definition: String,
    live: String,
    process: Process,
    view: View,
    parts: crate::topology::Parts,
    tuning: Tuning,
}

fn set<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().unwrap()
}

fn good() -> Case {
    let dgx2 = include_str!("../../../topologies/dgx-2.json");
    let mut parts = crate::topology::file::from_json(dgx2).unwrap().parts().clone();
    for (device, group) in parts.devices.iter_mut().zip(1u32..) {
        device.iommu_group = Some(group);
        device.driver = Some("vfio-pci".into());
    }
    let group = |parts: &crate::topology::Parts, bdf: &str| {
        let device = parts.devices.iter().find(|device| device.bdf == bdf.parse().unwrap());
        device.expect(bdf).iommu_group.unwrap().to_string()
    };
    let thread = |(tid, name, pcpus): (u32, &str, &str)| Thread {
        tid,
        name: name.into(),
        pcpus: set(pcpus),
    };
    let threads = [
        (40, "qemu-system-x86", "1,49"),
        (41, "CPU 0/KVM", "0"),
        (42, "CPU 1/KVM", "48"),
        (43, "CPU 2/KVM", "24"),
        (44, "CPU 3/KVM", "72"),
        (45, "IO iothread1", "2"),
        (46, "worker", "2"),
        (47, "vhost-40", "1,49"),
        (48, "vhost-40", "1,49"),
        (49, "TC tc-ram-node0", "0-23,48-71"),
        (50, "iou-wrk-45", "0-95"),
    ];
    let memory = |cell: u32| Mapped {
        cell: Some(cell),
        bound: true,
        page_kib: MemSize::from_gib(1),
        nodes: [(NodeId(cell), MemSize::from_gib(2))].into(),
    };
    let vfio = ["0000:34:00.0", "0000:b7:00.0"].map(|bdf| group(&parts, bdf)).into();
    let files = [("/d/a.raw".to_owned(), true)].into();
    let process = Process {
        pid: 40,
        threads: threads.into_iter().map(thread).collect(),
        vhosts: vec![],
        memory: Some(vec![memory(0), memory(1)]),
        opened: Some(Opened { taps: 2, vhosts: 2, vfio, files }),
        file_limit: Some(1024),
    };
    let gpu = |cell| Function { vendor: 0x10de, device: 0x1db8, cell: Some(cell) };
    let view = View {
        vcpus: Some(4),
        cells: [(0, set("0-1")), (1, set("2-3"))].into(),
        siblings: [(0, set("0-1")), (1, set("0-1")), (2, set("2-3")), (3, set("2-3"))].into(),
        l3: [(0, set("0-1")), (2, set("2-3"))].into(),
        macs: Some(["52:54:00:ab:00:01".to_owned()].into()),
        virtio_disks: Some(1),
        functions: Some(vec![gpu(0), gpu(1)]),
        nccl: None,
        driver: None,
        untold: vec![],
    };
    let tuning = Tuning::default();
    let (definition, live) = (LIVE.replace(" id='3'", ""), LIVE.to_owned());
    Case { definition, live, process, view, parts, tuning }
}

impl Case {
    /// The findings: rule, message.
    fn found(&self, runs: bool) -> Vec<(&'static str, String)> {
        let parse = |text: &str| DomainXml::parse(text).unwrap();
        let (definition, live) = (parse(&self.definition), parse(&self.live));
        let topology = Topology::new(self.parts.clone()).unwrap();
        let (others, versions) = (Occupancy::default(), Versions::default());
        let tuning = &self.tuning;
        let subject = Subject {
            definition: &definition,
            live: runs.then_some(&live),
            process: runs.then_some(&self.process),
            guest: runs.then_some(&self.view),
            host: Some(Host {
                topology: &topology,
                tuning,
                others: &others,
                versions: &versions,
                manager: Some("570.1"),
            }),
            partitions: None,
        };
        let own =
            verify(&subject).into_iter().filter(|finding| finding.says.between != Between::Rule);
        own.map(|finding| (finding.rule, finding.says.message)).collect()
    }

    fn thread(&mut self, name: &str) -> &mut Thread {
        self.process.threads.iter_mut().find(|thread| thread.name == name).unwrap()
    }

    fn memory(&mut self, cell: usize) -> &mut Mapped {
        &mut self.process.memory.as_mut().unwrap()[cell]
    }

    fn opened(&mut self) -> &mut Opened {
        self.process.opened.as_mut().unwrap()
    }
}

/// A break: the rule that finds it, part of its message, and the change.
type Break = (&'static str, &'static str, fn(&mut Case));

/// Applies each break alone, and checks that its rule finds it, and nothing else but consequences:
/// pages on other nodes are missing at the next start.
fn expect(breaks: &[Break]) {
    for (rule, says, harm) in breaks {
        let mut case = good();
        harm(&mut case);
        let found = case.found(true);
        let follows = |other: &str| other == *rule || other == "huge-pages-next-start";
        let others: Vec<_> = found.iter().filter(|(other, _)| !follows(other)).collect();
        assert!(others.is_empty(), "{rule}: also {others:?}");
        assert!(found.iter().any(|(_, message)| message.contains(says)), "{rule}: {found:?}");
    }
}

#[test]
fn a_correct_guest_has_no_difference() {
    assert_eq!(good().found(true), []);
    assert_eq!(good().found(false), []);
}

#[test]
fn each_thread_that_is_elsewhere_is_found() {
    expect(&[
        ("vcpu-affinity", "vcpu 1 may run on pcpus: expected 48, found 0,48", |case| {
            case.thread("CPU 1/KVM").pcpus = set("0,48");
        }),
        ("vcpu-thread-missing", "vcpu 3: expected a thread, found none", |case| {
            case.process.threads.retain(|thread| thread.name != "CPU 3/KVM");
        }),
        ("emulator-affinity", "the main thread may run on pcpus: expected 1,49, found 1", |case| {
            case.thread("qemu-system-x86").pcpus = set("1");
        }),
        ("helper-affinity", "a thread `worker` may run on pcpus: expected within 1-2,49", |case| {
            case.thread("worker").pcpus = set("0-95");
        }),
        ("iothread-affinity", "iothread 1 may run on pcpus: expected 2, found 3", |case| {
            case.thread("IO iothread1").pcpus = set("3");
        }),
        ("iothread-missing", "iothread 1: expected a thread", |case| {
            case.process.threads.retain(|thread| thread.name != "IO iothread1");
        }),
        ("vhost-affinity", "2 threads `vhost-40` may run on pcpus: expected within 1,49", |case| {
            let vhosts = case.process.threads.iter_mut().filter(|t| t.name.starts_with("vhost"));
            vhosts.for_each(|thread| thread.pcpus = set("2"));
        }),
    ]);
}

#[test]
fn vcpus_that_are_not_plugged_have_no_thread_and_need_none() {
    let mut case = good();
    for text in [&mut case.definition, &mut case.live] {
        *text = text.replace("<vcpu>4", "<vcpu current='3'>4");
    }
    case.process.threads.retain(|thread| thread.name != "CPU 3/KVM");
    case.view.vcpus = Some(3);
    case.view.cells.insert(1, set("2"));
    case.view.siblings = [(2, set("2"))].into();
    case.view.l3 = [(2, set("2"))].into();
    assert_eq!(case.found(true), []);
}

#[test]
fn memory_on_other_nodes_or_pages_is_found() {
    expect(&[
        (
            "memory-off-node",
            "memory of cell 1 is on node: expected 1, found 1 GiB on node 0",
            |case| {
                let gib = MemSize::from_gib(1);
                case.memory(1).nodes = [(NodeId(0), gib), (NodeId(1), gib)].into();
            },
        ),
        (
            "memory-off-node",
            "memory of the guest is on node: expected 0, found 2 GiB on node 1",
            |case| {
                for text in [&mut case.definition, &mut case.live] {
                    *text = text
                        .replace("cellid='1' mode='strict' nodeset='1'", "cellid='1' nodeset='0'");
                }
                case.memory(0).cell = None;
                case.memory(1).cell = None;
            },
        ),
        (
            "memory-not-on-huge-pages",
            "memory on pages of 1 GiB: expected 4 GiB, found 2 GiB",
            |case| {
                case.memory(1).page_kib = MemSize::from_kib(4);
            },
        ),
        (
            "huge-pages-next-start",
            "for its next start on node 1: expected 2, found 1 (0 free, 2 its",
            |case| {
                let (page_kib, total) = (MemSize::from_gib(1), 2);
                let pool = crate::topology::HugePagePool { page_kib, total, free: 0, surplus: 1 };
                case.parts.nodes[1].huge_pages = vec![pool];
            },
        ),
        ("hostdev-not-open", "IOMMU groups open for 0000:34:00.0", |case| {
            case.opened().vfio.pop_first();
        }),
        (
            "hostdev-not-open",
            "the VFIO device open for 0000:34:00.0: expected devices/vfio7, found devices/vfio8",
            |case| {
                by_iommufd(case, &[7, 8]);
                case.opened().vfio = ["devices/vfio8".into()].into();
            },
        ),
        (
            "hostdev-not-open",
            "the VFIO device open for 0000:34:00.0: expected devices/vfio7, found devices/vfio8, \
             devices/vfio9",
            |case| {
                by_iommufd(case, &[7, 8]);
                case.opened().vfio = ["devices/vfio8".into(), "devices/vfio9".into()].into();
            },
        ),
        ("net-queues-missing", "open network queues: expected 2, found 1", |case| {
            case.opened().taps = 1;
        }),
        ("vhost-missing", "served by the kernel: expected 2, found 0", |case| {
            case.opened().vhosts = 0;
        }),
        ("disk-cache", "/d/a.raw is read and written by: expected O_DIRECT", |case| {
            case.opened().files.insert("/d/a.raw".into(), false);
        }),
    ]);
}

/// The record of a request, and the end of a domain.
fn remembered(request: &crate::request::Request) -> String {
    let text = serde_json::to_string(request).unwrap();
    format!(
        "<metadata><g:guest xmlns:g='{}'><g:request>{text}</g:request></g:guest></metadata></domain>",
        crate::domain::guest::NAMESPACE
    )
}

/// Passes the guest's functions through by iommufd, whose devices have these numbers.
fn by_iommufd(case: &mut Case, numbers: &[u32]) {
    for text in [&mut case.definition, &mut case.live] {
        *text = text.replace("<devices>", "<iommufd enabled='yes'/>\n<devices>");
    }
    let passed = |text: &str| {
        let xml = DomainXml::parse(text).unwrap();
        xml.held(true).unwrap().devices
    };
    let functions = passed(&case.live);
    for (bdf, &number) in functions.iter().zip(numbers) {
        let device = case.parts.devices.iter_mut().find(|device| device.bdf == *bdf).unwrap();
        device.vfio = Some(VfioDevice { number, node: true });
    }
    case.opened().files.insert("/dev/iommu".into(), false);
}

#[test]
fn functions_that_are_open_in_another_way_than_the_xml_says_are_found() {
    let groups = |case: &mut Case| {
        by_iommufd(case, &[7, 8]);
        case.opened().files.remove("/dev/iommu");
    };
    for (found, change) in [
        ("expected by iommufd, found VFIO groups alone", groups as fn(&mut Case)),
        ("expected by VFIO groups, found /dev/iommu open", |case| {
            by_iommufd(case, &[7, 8]);
            case.opened().vfio = ["devices/vfio7".into(), "devices/vfio8".into()].into();
            for text in [&mut case.definition, &mut case.live] {
                *text = text.replace("<iommufd enabled='yes'/>", "");
            }
        }),
    ] {
        let mut case = good();
        change(&mut case);
        let message = format!("functions are passed: {found}");
        assert_eq!(case.found(true), [("hostdev-way", message)]);
    }
    // One of each, and the group of the one that goes by itself.
    let mut case = good();
    by_iommufd(&mut case, &[7, 8]);
    let group = case.opened().vfio.pop_first().unwrap();
    case.opened().vfio = [group, "devices/vfio8".into()].into();
    let found = case.found(true);
    assert!(found.len() == 1 && found[0].0 == "hostdev-not-open", "{found:?}");
}

#[test]
fn a_definition_that_passes_functions_in_another_way_than_was_requested_is_found() {
    use crate::request::{IommufdWish, Request};
    for (asked, is_by_iommufd, message) in [
        (IommufdWish::Auto, true, None),
        (IommufdWish::On, true, None),
        (IommufdWish::Off, false, None),
        (IommufdWish::On, false, Some("expected by iommufd, found by its VFIO group")),
        (IommufdWish::Off, true, Some("expected by its VFIO group, found by iommufd")),
    ] {
        let mut case = good();
        if is_by_iommufd {
            by_iommufd(&mut case, &[]);
        }
        let request = Request { iommufd: asked, ..Request::for_gpus(2) };
        case.definition = case.definition.replace("</domain>", &remembered(&request));
        let found = case.found(false);
        let found = found.iter().find(|(rule, _)| *rule == "plan-iommufd");
        let wanted = message.map(|text| format!("0000:34:00.0 is passed: {text}"));
        assert_eq!(found.map(|(_, text)| text.clone()), wanted, "{asked:?}");
    }
    // What runs is compared with the definition.
    let mut case = good();
    by_iommufd(&mut case, &[]);
    case.opened().files.remove("/dev/iommu");
    case.live = case.live.replace("<iommufd enabled='yes'/>", "");
    let rules: Vec<&str> = case.found(true).into_iter().map(|(rule, _)| rule).collect();
    assert_eq!(rules, ["pending-hostdev"]);
}

/// Makes Fabric Manager control the NVSwitches, and gives the guest this driver.
fn on_fabric(case: &mut Case, driver: &str) {
    case.parts.fabric.model = FabricModel::SharedNvswitch;
    case.view.driver = Some(driver.into());
}

#[test]
fn a_driver_that_is_not_known_is_said_to_be_not_compared() {
    let findings = |manager: Option<&str>, change: &dyn Fn(&mut Case)| {
        let mut case = good();
        on_fabric(&mut case, "570.1");
        change(&mut case);
        let parse = |text: &str| DomainXml::parse(text).unwrap();
        let (definition, live) = (parse(&case.definition), parse(&case.live));
        let topology = Topology::new(case.parts.clone()).unwrap();
        let (others, versions) = (&Occupancy::default(), &Versions::default());
        let (topology, tuning) = (&topology, &case.tuning);
        let subject = Subject {
            definition: &definition,
            live: Some(&live),
            process: None,
            guest: Some(&case.view),
            host: Some(Host { topology, tuning, others, versions, manager }),
            partitions: None,
        };
        let said = unchecked(&subject).into_iter().find(|text| text.contains("NVIDIA driver"));
        assert!(!verify(&subject).iter().any(|finding| finding.rule == "guest-driver"));
        said.unwrap_or_default()
    };
    assert_eq!(findings(Some("570.1"), &|_| {}), "");
    assert!(findings(None, &|_| {}).contains("Fabric Manager's version is not known"));
    assert!(findings(Some("570.1"), &|case| case.view.driver = None).contains("none is loaded"));
    // If guests get the NVSwitches, Fabric Manager runs in the guest.
    let passed = |case: &mut Case| case.parts.fabric.model = FabricModel::FullPassthrough;
    assert_eq!(findings(None, &passed), "");
}

#[test]
fn differences_seen_by_the_guest_are_found() {
    expect(&[
        ("guest-vcpus", "expected 4, found 3", |case| case.view.vcpus = Some(3)),
        ("guest-cells", "vCPUs of cell 1: expected 2-3, found 2", |case| {
            case.view.cells.insert(1, set("2"));
        }),
        ("guest-threads", "threads of the core of vcpu 2: expected 2-3, found 2", |case| {
            case.view.siblings.insert(2, set("2"));
        }),
        ("guest-l3-caches", "L3 cache of vcpu 0: expected 0-1, found 0-3", |case| {
            case.view.l3 = [(0, set("0-3"))].into();
        }),
        ("guest-interfaces", "MAC address 52:54:00:ab:00:01", |case| {
            case.view.macs = Some(BTreeSet::new());
        }),
        ("guest-disks", "virtio disks: expected 1, found 0", |case| {
            case.view.virtio_disks = Some(0);
        }),
        ("guest-devices", "functions 10de:1db8: expected 2, found 1", |case| {
            case.view.functions.as_mut().unwrap().pop();
        }),
        ("guest-driver", "expected 570.1 as Fabric Manager of the host, found 565.2", |case| {
            on_fabric(case, "565.2");
        }),
        ("guest-device-cell", "cells of functions 10de:1db8: expected 0,1, found 0,0", |case| {
            case.view.functions.as_mut().unwrap()[1].cell = Some(0);
        }),
    ]);
}

/// Gives the guest's first GPU a finding over a limit.
fn unhealthy(case: &mut Case, accepted: &[HealthCode]) {
    let bdf: Bdf = "0000:34:00.0".parse().unwrap();
    let device = case.parts.devices.iter_mut().find(|device| device.bdf == bdf).unwrap();
    let (code, text) = (HealthCode::RemapFailed, "remapping a row failed".to_owned());
    let findings = vec![HealthFinding { code, text }];
    let source = HealthSource::Nvml;
    device.health = Some(Health { source, findings, accepted: accepted.to_vec() });
}

#[test]
fn hosts_that_cost_the_guest_are_found() {
    /// Takes huge pages and one node's binding away.
    fn unbound(case: &mut Case) {
        let page = "<hugepages>\n<page size='1' unit='GiB'/></hugepages>";
        let memnode = "<memnode cellid='1' mode='strict' nodeset='1'/>";
        for text in [&mut case.definition, &mut case.live] {
            *text = text.replace(page, "").replace(memnode, "");
        }
    }
    expect(&[
        ("governor", "governor of pcpus 24,48: expected performance, found powersave", |case| {
            case.tuning.governors = [("powersave".into(), set("24-30,48"))].into();
        }),
        ("numa-balancing-off", "expected 1, found 0", |case| {
            unbound(case);
            case.parts.machine.numa_balancing = Some(false);
        }),
        ("transparent-huge-pages-off", "found never", |case| {
            unbound(case);
            case.tuning.transparent_huge_pages = Some("never".into());
        }),
        ("open-files", "expected 168 or more, found 128", |case| {
            case.process.file_limit = Some(128);
        }),
        ("isolated-not-spread", "pcpus of the emulator, which", |case| {
            case.parts.isolated = set("0-20,48-60");
        }),
        ("hostdev-unhealthy", "health of 0000:34:00.0: expected no finding over", |case| {
            unhealthy(case, &[]);
        }),
    ]);
    // An accepted finding is none.
    let mut case = good();
    unhealthy(&mut case, &[HealthCode::RemapFailed]);
    assert_eq!(case.found(true), []);
}

#[test]
fn pending_changes_are_distinguished_from_faults() {
    expect(&[
        ("pending-pins", "pin of vcpu 1 of what runs: expected 50, found 48", |case| {
            case.definition = case.definition.replace("'1' cpuset='48'", "'1' cpuset='50'");
        }),
        ("pending-memory", "memnode[2]/@nodeset of what runs: expected 0, found 1", |case| {
            case.definition = case.definition.replace("strict' nodeset='1'", "strict' nodeset='0'");
        }),
        ("pending-disk", "driver/@cache of what runs: expected writeback, found none", |case| {
            case.definition = case.definition.replace("cache='none'", "cache='writeback'");
        }),
        ("pending-interface", "driver/@queues of what runs: expected 4, found 2", |case| {
            case.definition = case.definition.replace("vhost' queues='2'", "vhost' queues='4'");
        }),
        ("pending-hostdev", "found nothing", |case| {
            let more = "<hostdev type='pci'><source><address domain='0' bus='0x36' slot='0' \
                        function='0'/></source></hostdev></devices>";
            case.definition = case.definition.replace("</devices>", more);
        }),
        ("pending-iothreads", "expected 2, found 1", |case| {
            case.definition = case.definition.replace("<iothreads>1", "<iothreads>2");
        }),
    ]);
}

#[test]
fn a_definition_is_compared_with_its_request() {
    let request = crate::request::Request {
        vcpus: Some(6),
        memory_kib: Some(MemSize::from_gib(8)),
        huge_pages: HugePages::Size(PageSize::TwoMib),
        cells: crate::request::CellWish::Count(1),
        threads: Some(1),
        pins: crate::request::PinPolicy::None,
        ..crate::request::Request::for_gpus(4)
    };
    let mut case = good();
    case.definition = case.definition.replace("</domain>", &remembered(&request));
    let rules: Vec<&str> = case.found(false).into_iter().map(|(rule, _)| rule).collect();
    let wanted = ["vcpus", "memory", "pages", "cells", "cells", "pins", "devices"]
        .map(|rule| format!("plan-{rule}"));
    assert_eq!(rules, wanted);
    let mut case = good();
    let asked = crate::request::Request {
        vcpus: Some(4),
        memory_kib: Some(MemSize::from_gib(4)),
        huge_pages: HugePages::Size(PageSize::OneGib),
        ..crate::request::Request::for_gpus(2)
    };
    case.definition = case.definition.replace("</domain>", &remembered(&asked));
    assert_eq!(case.found(false), []);
    // Values left to the planner are right as they are.
    let mut case = good();
    let left = crate::request::Request { huge_pages: HugePages::Auto, ..asked };
    case.definition = case.definition.replace("</domain>", &remembered(&left));
    assert_eq!(case.found(false), []);
}
