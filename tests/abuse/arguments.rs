//! Devices and files that a domain has by arguments of QEMU (`<qemu:commandline>`) alone, which
//! libvirt passes on unread, and devices that come along with a template.

use super::devices::{GPU, Host, OTHER, function};
use super::uses::Ground;
use std::fs;

/// A domain of others with these arguments.
fn domain(name: &str, arguments: &[&str]) -> String {
    let arguments: String =
        arguments.iter().map(|value| format!("<qemu:arg value='{value}'/>")).collect();
    format!(
        "<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>\
         <name>{name}</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>\
         <os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features>\
         <devices><memballoon model='none'/></devices>\
         <qemu:commandline>{arguments}</qemu:commandline></domain>"
    )
}

/// A `<hostdev>` of the GPU.
const HOSTDEV: &str = "<hostdev mode='subsystem' type='pci' managed='yes'><source><address \
    domain='0' bus='0x34' slot='0' function='0'/></source></hostdev>";

/// The same domain with the GPU by a `<hostdev>`.
fn with_hostdev(name: &str, arguments: &[&str]) -> String {
    domain(name, arguments).replace("<devices>", &format!("<devices>{HOSTDEV}"))
}

impl Host {
    /// Writes a file beside the disks. Returns its path.
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.place.disks.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Defines domain `other`, or redefines it.
    fn other(&self, arguments: &[&str]) {
        let uuid = "</name><uuid>5f2a1c7e-9b3d-4e6f-8a1b-2c3d4e5f6a70</uuid>";
        let text = domain("other", arguments).replace("</name>", uuid);
        let file = self.file("other.xml", &text);
        self.place.virsh(&["define", &file]);
    }

    /// Runs a verb that must fail and say this.
    fn refused(&self, args: &[&str], said: &str) {
        let (code, out, err) = self.place.gpuvm(args);
        assert!(code == 1 && err.contains(said), "{args:?}: {code}: {out}{err}");
    }

    /// Runs `check`, which must find this rule, or none.
    fn checked(&self, of: &str, rule: Option<&str>) {
        let (code, out, err) = self.place.gpuvm(&["check", of, "--json"]);
        assert!(matches!(code, 0 | 3), "{code}: {out}{err}");
        let rules = ["device-held", "argument-unread"];
        let found: Vec<&str> =
            rules.into_iter().filter(|rule| out.contains(&format!("\"{rule}\""))).collect();
        assert_eq!(found.first().copied(), rule, "{of}: {out}");
    }
}

#[test]
fn a_gpu_that_a_domain_has_by_an_argument_is_given_to_no_other() {
    let Some(host) = Host::new() else { return };
    let json = "{\"driver\":\"vfio-pci\",\"host\":\"0000:34:00.0\"}".replace('"', "&quot;");
    let sysfs = "vfio-pci,sysfsdev=/sys/bus/pci/devices/0000:34:00.0";
    let link = host.place.disks.join("function");
    std::os::unix::fs::symlink("/sys/bus/pci/devices/0000:34:00.0", &link).unwrap();
    let linked = format!("vfio-pci,sysfsdev={}", link.display());
    let held = "is held by domain `other`";
    // A link that leads to it is followed, so nothing is left unread.
    host.other(&["-device", &linked]);
    let (_, out, err) = host.place.gpuvm(&["plan", "--name", "a", "--gpus", "1"]);
    assert!(!err.contains("count as free"), "{out}{err}");
    for arguments in [
        &["-device", &linked][..],
        &["-device", "vfio-pci,host=34:00.0,id=gpu"],
        &["-device", sysfs],
        &["-device", &json],
        &["-device", "vfio-pci-nohotplug,id=x", "-set", "device.x.host=34:00.0"],
        &["-device", "vfio-pci", "-global", "vfio-pci.host=0000:34:00.0"],
        &["-device", "pci-assign,host=34:00.0"],
        &[
            "-object",
            "memory-backend-file,id=m,mem-path=/sys/bus/pci/devices/0000:34:00.0/resource1",
        ],
    ] {
        host.other(arguments);
        host.refused(&["plan", "--name", "a", "--gpu", GPU], held);
    }
    let disks = host.place.disks.to_str().unwrap();
    let how = ["--name", "a", "--gpu", GPU];
    let create = [&["create", "--no-start", "--accept-shared-fabric"], &how[..]].concat();
    host.refused(&[&create[..], &["--disk-dir", disks]].concat(), held);
    host.refused(&[&["export"], &how[..]].concat(), held);
    let shown = |verb: &[&str]| host.place.done(verb);
    let line = |text: String| text.lines().find(|line| line.contains(GPU)).unwrap().to_owned();
    assert!(line(shown(&["gpu", "list"])).contains("other"));
    assert!(line(shown(&["device", "list"])).contains("other"));
    let row = shown(&["list", "--json"]);
    assert!(row.contains("\"0000:34:00.0\""), "{row}");
    // 16 GPUs, of which one is taken.
    host.refused(&["plan", "--name", "a", "--gpus", "16"], "other");
    // Two definitions with one GPU, by an argument or by a device.
    let file = host.file("b.xml", &with_hostdev("b", &[]));
    host.checked(&file, Some("device-held"));
    let file = host.file("b.xml", &domain("b", &["-device", "vfio-pci,host=0000:34:00.0"]));
    host.checked(&file, Some("device-held"));
    host.checked("other", None);
    host.place.virsh(&["define", &file]);
    host.checked("other", Some("device-held"));
}

#[test]
fn a_gpu_that_a_running_domain_has_by_an_argument_is_not_touched() {
    let Some(host) = Host::new() else { return };
    host.define("a", GPU);
    host.to_vfio(GPU);
    // QEMU starts with it where there is no VFIO, since no device of it has this property.
    host.other(&["-global", "vfio-pci.host=34:00.0"]);
    host.place.virsh(&["start", "--paused", "other"]);
    // The running domain differs from its definition.
    host.other(&[]);
    host.refused(&["start", "a"], "domain `other`");
    host.refused(&["device", "release", GPU], "domain `other`, which runs");
    let (code, out, err) = host.place.gpuvm(&["delete", "a", "--yes"]);
    assert!(code == 0 && err.contains("in use by domain `other`, which runs"), "{out}{err}");
    host.untouched(&err);
}

#[test]
fn functions_of_arguments_are_neither_moved_nor_copied() {
    let Some(host) = Host::new() else { return };
    host.define("a", OTHER);
    let xml = host.place.virsh(&["dumpxml", "--inactive", "a"]);
    let line = "<qemu:commandline xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>\
                <qemu:arg value='-device'/><qemu:arg value='vfio-pci,host=34:00.0'/>\
                </qemu:commandline></domain>";
    host.place.virsh(&["define", &host.file("a.xml", &xml.replace("</domain>", line))]);
    let argument = "0000:34:00.0 by an argument of QEMU";
    host.refused(&["set", "a", "--gpus", "4", "--accept-shared-fabric"], argument);
    host.refused(&["set", "a", "--gpus", "1", "--accept-shared-fabric"], argument);
    host.refused(&["clone", "a", "b"], "0000:34:00.0 (by an argument of QEMU)");
    host.refused(&["nccl", "a"], "0000:34:00.0 is passed by an argument of QEMU");
    let before = host.place.virsh(&["dumpxml", "--inactive", "a"]);
    let (code, out, err) = host.place.gpuvm(&["tune", "a", "--all-settings"]);
    assert_eq!(code, 0, "{out}{err}");
    let after = host.place.virsh(&["dumpxml", "--inactive", "a"]);
    let of = |text: &str| text.matches("<hostdev").count();
    assert!(of(&after) == of(&before) && after.contains("vfio-pci,host=34:00.0"), "{after}");
}

#[test]
fn arguments_that_may_name_devices_are_reported() {
    let Some(host) = Host::new() else { return };
    for (argument, said) in [
        (&["-readconfig", "/etc/vm.cfg"][..], "file `/etc/vm.cfg` may name devices"),
        (&["-device", "vfio-pci,host=garbage"], "`host=garbage` is not a PCI address"),
        (&["-device", "vfio-pci,fd=7"], "`fd=7`"),
    ] {
        host.other(argument);
        host.checked("other", Some("argument-unread"));
        let (code, out, err) = host.place.gpuvm(&["plan", "--name", "a", "--gpu", GPU]);
        assert!(code == 0 && err.contains("may give domain `other` devices"), "{out}{err}");
        assert!(err.contains(said), "{err}");
    }
}

#[test]
fn a_function_of_a_template_comes_only_if_it_is_requested() {
    let Some(host) = Host::new() else { return };
    let disks = host.place.disks.to_str().unwrap().to_owned();
    let verbs = |template: &str, gpu: &str| -> Vec<Vec<String>> {
        let how = ["--name", "a", "--gpu", gpu, "--template", template].map(str::to_owned);
        let more =
            ["--no-start", "--accept-shared-fabric", "--disk-dir", &disks].map(str::to_owned);
        let verb = |verb: &str| [&[verb.to_owned()], &how[..]].concat();
        vec![verb("plan"), verb("export"), [verb("create"), more.to_vec()].concat()]
    };
    let refused = |template: &str, gpu: &str, said: &str| {
        for verb in verbs(template, gpu) {
            let args: Vec<&str> = verb.iter().map(String::as_str).collect();
            host.refused(&args, said);
            assert!(!host.place.has("a"));
        }
    };
    let template = host.file("hostdev.xml", &with_hostdev("t", &[]));
    refused(&template, OTHER, "the template has GPU 0000:34:00.0, which was not requested");
    refused(&template, OTHER, "or request it with --gpu 0000:34:00.0");
    // An argument gives it a second time.
    let by_argument = domain("t", &["-device", "vfio-pci,host=34:00.0"]);
    let by_argument = host.file("argument.xml", &by_argument);
    for gpu in [OTHER, GPU] {
        refused(&by_argument, gpu, "the template passes GPU 0000:34:00.0 by an argument");
    }
    // An argument that does not name the passed device may pass any.
    let unread = domain("t", &["-readconfig", "/etc/vm.cfg"]);
    let unread = host.file("unread.xml", &unread);
    refused(&unread, GPU, "does not say which: file `/etc/vm.cfg` may name devices");
    // A path in sysfs is followed on its host.
    let link = format!("{disks}/function");
    std::os::unix::fs::symlink("/sys/bus/pci/devices/0000:34:00.0", &link).unwrap();
    let linked = domain("t", &["-device", &format!("vfio-pci,sysfsdev={link}")]);
    let linked = host.file("linked.xml", &linked);
    refused(&linked, OTHER, "the template passes GPU 0000:34:00.0 by an argument");
    // The plan has it.
    for verb in verbs(&template, GPU) {
        let args: Vec<&str> = verb.iter().map(String::as_str).collect();
        host.place.done(&args);
    }
    let xml = host.place.virsh(&["dumpxml", "--inactive", "a"]);
    assert_eq!(xml.matches("bus='0x34' slot='0x00' function='0x0'/>").count(), 1, "{xml}");
}

#[test]
fn a_disk_that_another_domain_names_in_an_argument_stays() {
    let Some(ground) = Ground::new() else { return };
    let path = ground.path("a.raw");
    // libvirt starts QEMU in `/`.
    let relative = path.trim_start_matches('/');
    for arguments in [
        &["-drive", &format!("if=none,format=raw,file={path}")][..],
        &["-hda", &path],
        &["-blockdev", &format!("driver=file,node-name=x,filename={path}")],
        &["-drive", &format!("if=none,format=raw,file={relative}")],
        &["-drive", &format!("if=none,format=raw,file=blkdebug::{path}")],
        &["-hda", &format!("./{relative}")],
    ] {
        ground.stays("a disk of an argument", "domain `b` uses it", |g| {
            g.define("b", &domain("b", arguments));
        });
    }
    ground.stays("a file of settings", "domain `b` has argument -readconfig", |g| {
        g.define("b", &domain("b", &["-readconfig", "/srv/vm.cfg"]));
    });
}

#[test]
fn usb_and_scsi_devices_of_a_template_go_to_one_guest() {
    let Some(host) = Host::new() else { return };
    let disks = host.place.disks.to_str().unwrap().to_owned();
    let scsi = "<hostdev mode='subsystem' type='scsi'><source><adapter name='scsi_host0'/><address \
                bus='0' target='0' unit='0'/></source></hostdev>";
    let usb = "<hostdev mode='subsystem' type='usb'><source><vendor id='0x046d'/><product \
               id='0xc52b'/></source></hostdev>";
    let has = |devices: &str, arguments: &[&str]| {
        domain("t", arguments).replace("<devices>", &format!("<devices>{devices}"))
    };
    let by_argument = ["-device", "usb-host,vendorid=0x046d,productid=0xc52b"];
    let stick = "USB device 046d:c52b";
    for (template, other, said) in [
        (has(usb, &[]), has(usb, &[]), stick),
        (has("", &by_argument), has(usb, &[]), stick),
        (has(usb, &[]), has("", &by_argument), stick),
        (has(scsi, &[]), has(scsi, &[]), "SCSI device scsi_host0:0:0:0"),
    ] {
        let template = host.file("template.xml", &template);
        let of_verb = |verb: &'static str| -> Vec<&str> {
            let more = ["--no-start", "--accept-shared-fabric", "--disk-dir", &disks];
            let more = if verb == "create" { &more[..] } else { &[] };
            [&[verb, "--name", "a", "--gpu", GPU, "--template", &template], more].concat()
        };
        // The first has it to itself.
        host.place.done(&of_verb("plan"));
        let other = host.file("other.xml", &other.replace("<name>t<", "<name>other<"));
        host.place.virsh(&["define", &other]);
        let said = format!("the template has {said}, which domain `other` has");
        for verb in ["plan", "export", "create"] {
            host.refused(&of_verb(verb), &said);
            assert!(!host.place.has("a"));
        }
        host.place.virsh(&["undefine", "other"]);
    }
}

#[test]
fn functions_of_a_network_that_does_not_run_are_its_own() {
    let Some(host) = Host::new() else { return };
    let network = "<network><name>pool</name><forward mode='hostdev' managed='yes'><address \
                   type='pci' domain='0x0000' bus='0x34' slot='0x00' function='0x0'/></forward>\
                   </network>";
    let network = host.file("pool.xml", network);
    // libvirt takes virtual functions only, and looks once.
    let physfn = host.path(&format!("{}/physfn", function(GPU)));
    std::os::unix::fs::symlink("/sys/bus/pci/devices/0000:36:00.0", &physfn).unwrap();
    host.place.virsh(&["net-define", &network]);
    fs::remove_file(physfn).unwrap();
    host.refused(&["plan", "--name", "a", "--gpu", GPU], "network `pool` hands it out");
    host.place.virsh(&["net-undefine", "pool"]);
    host.place.done(&["plan", "--name", "a", "--gpu", GPU]);
}

#[test]
fn a_gpu_of_which_a_domain_has_a_part_is_given_to_no_other() {
    let Some(host) = Host::new() else { return };
    host.other(&["-device", "vfio-pci,sysfsdev=/srv/0000:36:00.0"]);
    host.checked("other", Some("argument-unread"));
    host.other(&["-device", "e1000,id=x,host=34:00.0", "-set", "device.x.driver=vfio-pci"]);
    host.refused(&["plan", "--name", "a", "--gpu", GPU, "--allow", "split"], "other");
}
