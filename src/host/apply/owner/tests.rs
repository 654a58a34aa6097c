//! Owners of functions, on a tree with processes and a fake hypervisor with domains.

use super::*;
use crate::hypervisor::network::Networks;
use crate::hypervisor::none::{NoHypervisor, fail};
use crate::hypervisor::snapshot::Snapshots;
use crate::hypervisor::storage::Storage;
use crate::hypervisor::{
    Addresses, AskedBy, Console, DomainState, DomainSummary, Domains, HypervisorError, Lease, Live,
};
use gpuvm_core::cpuset::CpuSet;
use gpuvm_core::domain::live::GuestThread;
use gpuvm_core::network::GuestAddress;
use std::cell::{Cell, RefCell};
use std::fmt::Arguments;
use std::fs;
use std::os::unix::fs::symlink;

const GPU: &str = "0000:34:00.0";
const MATE: &str = "0000:34:00.1";
const OTHER: &str = "0000:36:00.0";

/// A hypervisor whose domains hold functions.
#[derive(Default)]
struct Fake {
    /// Name, state and functions of each domain; a text that is not an address makes its definition
    /// unreadable.
    domains: Vec<(&'static str, DomainState, Vec<&'static str>)>,
    away: bool,
    /// How often its domains were listed.
    asked: Cell<usize>,
    /// The listing from which the last domain exists.
    from: usize,
}

/// The error of a libvirtd that is dead.
fn gone<T>(doing: Arguments<'_>) -> Result<T, HypervisorError> {
    Err(HypervisorError {
        kind: HypervisorErrorKind::NoConnection,
        doing: doing.to_string(),
        message: "connection reset".into(),
    })
}

impl Hypervisor for Fake {
    fn uri(&self) -> &str {
        "fake:///"
    }
    fn storage(&self) -> &dyn Storage {
        &NoHypervisor
    }
    fn networks(&self) -> &dyn Networks {
        &NoHypervisor
    }
}

impl Domains for Fake {
    fn domains(&self) -> Result<Vec<DomainSummary>, HypervisorError> {
        if self.away {
            return gone(format_args!("list domains"));
        }
        let asked = self.asked.replace(self.asked.get() + 1);
        let seen = self.domains.len() - usize::from(asked < self.from);
        let row = |(name, state, _): &(&str, DomainState, _)| DomainSummary {
            name: (*name).to_owned(),
            uuid: format!("uuid-of-{name}"),
            state: *state,
            persistent: true,
        };
        Ok(self.domains[..seen].iter().map(row).collect())
    }
    fn xml(&self, name: &str, which: XmlOf) -> Result<String, HypervisorError> {
        assert_eq!(which, XmlOf::Live);
        let (_, _, has) = self.domains.iter().find(|(other, ..)| *other == name).unwrap();
        let hostdev = |bdf: &&str| match bdf.parse::<Bdf>() {
            Ok(bdf) => format!(
                "<hostdev type='pci'><source><address domain='{}' bus='{}' slot='{}' \
                 function='{}'/>\
                 </source></hostdev>",
                bdf.segment(),
                bdf.bus(),
                bdf.device(),
                bdf.function()
            ),
            Err(_) => "<hostdev type='pci'/>".to_owned(),
        };
        let devices: String = has.iter().map(hostdev).collect();
        Ok(format!("<domain><name>{name}</name><devices>{devices}</devices></domain>"))
    }
    fail! {
        gone;
        fn define(xml: &str) -> (), "define a domain";
        fn undefine(name: &str) -> (), "undefine `{name}`";
        fn autostart(name: &str) -> bool, "read autostart of `{name}`";
        fn set_autostart(name: &str, on: bool) -> (), "set autostart of `{name}`";
    }
}

impl Snapshots for Fake {}

impl Live for Fake {
    fail! {
        gone;
        fn start(name: &str) -> (), "start `{name}`";
        fn shutdown(name: &str, by: AskedBy) -> (), "shut down `{name}`";
        fn destroy(name: &str) -> (), "end `{name}`";
        fn detach(name: &str, device: &str) -> (), "detach a device of `{name}`";
        fn pin(name: &str, thread: GuestThread, pcpus: &CpuSet) -> (), "pin `{name}`";
        fn update(name: &str, device: &str) -> (), "update `{name}`";
        fn ask_agent(name: &str, command: &str, wait: Duration) -> String, "ask `{name}`";
        fn console(name: &str, force: bool) -> Box<dyn Console>, "attach to `{name}`";
    }
}

impl Addresses for Fake {
    fail! {
        gone;
        fn addresses(name: &str, macs: &[String]) -> Vec<GuestAddress>, "addresses of `{name}`";
        fn leases(network: &str, mac: &str) -> Vec<Lease>, "leases of `{network}`";
    }
}

/// A host with two functions in one IOMMU group on vfio-pci, and a GPU bound to NVIDIA's driver.
struct Host {
    dir: tempfile::TempDir,
    /// The result of opening a VFIO group.
    opens: Result<(), Errno>,
    opened: RefCell<Vec<String>>,
}

impl Host {
    fn new() -> Host {
        let host =
            Host { dir: tempfile::tempdir().unwrap(), opens: Ok(()), opened: RefCell::default() };
        for (bdf, group, driver) in
            [(GPU, "12", "vfio-pci"), (MATE, "12", "vfio-pci"), (OTHER, "13", "nvidia")]
        {
            let function = host.dir.path().join("sys/bus/pci/devices").join(bdf);
            fs::create_dir_all(&function).unwrap();
            fs::write(function.join("class"), "0x030200\n").unwrap();
            symlink(format!("../../../bus/pci/drivers/{driver}"), function.join("driver")).unwrap();
            let at = format!("../../../kernel/iommu_groups/{group}");
            symlink(at, function.join("iommu_group")).unwrap();
            host.put(&format!("sys/kernel/iommu_groups/{group}/devices/{bdf}/vendor"), "0x10de");
        }
        host.put("sys/class/vfio/12/dev", "240:0\n");
        host.put(&format!("proc/driver/nvidia/gpus/{OTHER}/information"), "Device Minor: \t 3\n");
        host.process(7, "bash", "/dev/null");
        host
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A process that has this open.
    fn process(&self, pid: u32, name: &str, file: &str) {
        self.put(&format!("proc/{pid}/comm"), name);
        let dir = self.dir.path().join(format!("proc/{pid}/fd"));
        fs::create_dir_all(&dir).unwrap();
        symlink(file, dir.join("3")).unwrap();
    }

    /// Whether these functions are free, and how many groups are held.
    fn look(
        &self,
        hypervisor: &dyn Hypervisor,
        force: bool,
        all: &[&str],
    ) -> Result<usize, String> {
        let root = FsRoot::at(self.dir.path()).unwrap();
        let open = |group: &str| {
            self.opened.borrow_mut().push(group.to_owned());
            self.opens.map(|()| File::open("/dev/null").unwrap())
        };
        let pause = Duration::ZERO;
        let look = Look { root: &root, hypervisor, force, pause, open: &open };
        let functions: Vec<Bdf> = all.iter().map(|bdf| bdf.parse().unwrap()).collect();
        let free = look.free(&functions).map(|hold| hold.len());
        free.map_err(|error| error.to_string())
    }
}

fn with(domains: &[(&'static str, DomainState, &[&'static str])]) -> Fake {
    let domains = domains.iter().map(|(name, state, has)| (*name, *state, has.to_vec()));
    Fake { domains: domains.collect(), ..Fake::default() }
}

#[test]
fn a_free_function_is_held_until_the_write_is_done() {
    let host = Host::new();
    let others =
        with(&[("a", DomainState::ShutOff, &[GPU]), ("b", DomainState::Running, &[OTHER])]);
    assert_eq!(host.look(&others, false, &[GPU]), Ok(1));
    assert_eq!(host.look(&others, false, &[GPU, MATE]), Ok(1), "one group, opened once");
    // A function of NVIDIA's driver is in no VFIO group.
    assert_eq!(host.look(&with(&[]), false, &[OTHER]), Ok(0));
    assert_eq!(*host.opened.borrow(), ["12", "12"]);
    assert_eq!(others.asked.get(), 4, "asked once more when the group is open");
}

#[test]
fn functions_of_a_domain_are_never_free_in_any_state() {
    let host = Host::new();
    use DomainState::{Crashed, Paused, Running, ShuttingDown};
    for state in [Running, Paused, ShuttingDown, Crashed] {
        for force in [false, true] {
            let error = host.look(&with(&[("b", state, &[GPU])]), force, &[GPU]).unwrap_err();
            assert_eq!(error, format!("{GPU} is in use by domain `b`, which runs"));
        }
    }
    let error = host.look(&with(&[("b", Running, &[MATE])]), true, &[GPU]);
    let said = format!("{GPU} is in use by domain `b`, which runs with {MATE} of its IOMMU group");
    assert_eq!(error.unwrap_err(), said);
    assert!(host.opened.borrow().is_empty(), "a domain that starts is not disturbed");
}

#[test]
fn a_domain_that_comes_while_the_group_is_opened_gets_it() {
    let host = Host::new();
    let comes = Fake { from: 1, ..with(&[("b", DomainState::ShuttingDown, &[GPU])]) };
    let error = host.look(&comes, false, &[GPU]).unwrap_err();
    assert_eq!(error, format!("{GPU} is in use by domain `b`, which runs"));
    assert_eq!(*host.opened.borrow(), ["12"]);
}

#[test]
fn without_libvirt_processes_and_the_kernel_show_owners() {
    let mut host = Host::new();
    let away = Fake { away: true, ..Fake::default() };
    assert_eq!(host.look(&away, false, &[GPU]), Ok(1));
    assert_eq!(host.look(&NoHypervisor, false, &[GPU]), Ok(1));
    host.process(9, "qemu-system-x86", "/dev/vfio/12");
    let said = "is in use by process 9 (qemu-system-x86), which has /dev/vfio/12 open";
    for force in [false, true] {
        let error = host.look(&away, force, &[GPU]).unwrap_err();
        assert_eq!(error, format!("{GPU} {said}"), "also with --force: it may be a guest");
    }
    // libvirt says that it is not a guest's.
    assert_eq!(host.look(&with(&[]), true, &[GPU]), Ok(1));
    // The group counts as one.
    assert_eq!(host.look(&away, false, &[MATE]).unwrap_err(), format!("{MATE} {said}"));
    fs::remove_dir_all(host.dir.path().join("proc/9")).unwrap();
    host.opens = Err(Errno::EBUSY);
    let error = host.look(&away, false, &[GPU]).unwrap_err();
    let said = "is in use by a process that is not seen here and has it open through VFIO \
                (/dev/vfio/12)";
    assert_eq!(error, format!("{GPU} {said}"));
}

#[test]
fn without_groups_the_functions_own_device_is_held() {
    let mut host = Host::new();
    host.put(&format!("sys/bus/pci/devices/{GPU}/vfio-dev/vfio3/dev"), "511:3");
    let uevent = "DEVNAME=vfio/devices/vfio3\n";
    host.put(&format!("sys/bus/pci/devices/{GPU}/vfio-dev/vfio3/uevent"), uevent);
    assert_eq!(host.look(&with(&[]), false, &[GPU]), Ok(1));
    assert_eq!(*host.opened.borrow(), ["12"], "the group keeps out guests by iommufd, too");
    fs::remove_dir_all(host.dir.path().join("sys/class/vfio")).unwrap();
    host.opened.borrow_mut().clear();
    assert_eq!(host.look(&with(&[]), false, &[GPU, MATE]), Ok(1));
    assert_eq!(*host.opened.borrow(), ["devices/vfio3"]);
    host.process(9, "qemu-system-x86", "/dev/vfio/devices/vfio3");
    let error = host.look(&with(&[]), false, &[GPU]).unwrap_err();
    let said = "is in use by process 9 (qemu-system-x86), which has /dev/vfio/devices/vfio3 open";
    assert_eq!(error, format!("{GPU} {said}"));
    fs::remove_dir_all(host.dir.path().join("proc/9")).unwrap();
    host.opens = Err(Errno::EBUSY);
    let error = host.look(&with(&[]), false, &[GPU]).unwrap_err();
    assert!(error.ends_with("has it open through VFIO (/dev/vfio/devices/vfio3)"), "{error}");
    // A kernel before 6.1, or without nodes: the directory alone is none.
    let dir = host.dir.path().join(format!("sys/bus/pci/devices/{GPU}/vfio-dev/vfio3"));
    fs::remove_file(dir.join("dev")).unwrap();
    assert_eq!(host.look(&with(&[]), false, &[GPU]), Ok(0));
}

#[test]
fn functions_with_unknown_owners_stay() {
    let mut host = Host::new();
    host.opens = Err(Errno::EACCES);
    // Every process is seen, so the group need not be opened.
    assert_eq!(host.look(&with(&[]), false, &[GPU]), Ok(0));
    let hidden = host.dir.path().join("proc/8/fd");
    fs::create_dir_all(hidden.parent().unwrap()).unwrap();
    // A directory that cannot be opened, for root too.
    symlink("fd", &hidden).unwrap();
    let away = Fake { away: true, ..Fake::default() };
    let error = host.look(&away, false, &[GPU]).unwrap_err();
    let said = format!(
        "unknown whether {GPU} is in use: list domains: connection reset; the open files of 1 \
         processes are not seen, and /dev/vfio/12 cannot be opened: Permission denied"
    );
    assert_eq!(error, said);
    host.opens = Ok(());
    assert_eq!(host.look(&away, false, &[GPU]), Ok(1), "the kernel says it");
    let unread = with(&[("b", DomainState::Running, &["?"])]);
    assert_eq!(host.look(&unread, false, &[GPU]), Ok(1));
}

#[test]
fn a_process_on_the_hosts_driver_gives_way_to_force_alone() {
    let host = Host::new();
    host.process(11, "python3", "/dev/nvidia3");
    let error = host.look(&with(&[]), false, &[OTHER]).unwrap_err();
    let said = "is in use by process 11 (python3), which has /dev/nvidia3 open";
    assert_eq!(error, format!("{OTHER} {said}"));
    assert_eq!(host.look(&NoHypervisor, true, &[OTHER]), Ok(0));
    // Other functions are not affected.
    assert_eq!(host.look(&with(&[]), false, &[GPU]), Ok(1));
}

#[test]
fn others_that_run_with_a_function_are_named_and_oneself_is_not() {
    let domains = with(&[
        ("a", DomainState::Running, &[GPU]),
        ("b", DomainState::Running, &[GPU, MATE]),
        ("c", DomainState::ShutOff, &[GPU]),
    ]);
    let functions: Vec<Bdf> = [GPU, OTHER].iter().map(|bdf| bdf.parse().unwrap()).collect();
    let found = runs_with(&domains, "uuid-of-a", &functions);
    assert_eq!(found, [(functions[0], "b".to_owned())]);
}
