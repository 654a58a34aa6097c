use super::*;
use crate::domain::DomainXml;
use crate::domain::claims::Claims;
use proptest::prelude::*;

/// The functions that arguments name, and the number of settings that cannot be read.
fn read(arguments: &[&str]) -> (Vec<String>, usize) {
    let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
    let found = functions(&arguments);
    let known = found.iter().filter_map(|(_, named)| match named {
        Ok(Part::Function(bdf)) => Some(bdf.to_string()),
        _ => None,
    });
    (known.collect(), found.iter().filter(|(_, n)| n.is_err()).count())
}

/// The functions that one `-device` names.
fn of_device(value: &str) -> Vec<String> {
    let (found, unread) = read(&["-device", value]);
    assert_eq!(unread, 0, "{value}");
    found
}

// Each row was tried with QEMU 10.0, which names the function in its error.
#[test]
fn every_spelling_of_a_function_is_read_as_qemu_reads_it() {
    for (value, found) in [
        ("vfio-pci,host=01:00.0", "0000:01:00.0"),
        ("vfio-pci,host=0000:01:00.0,id=gpu,bus=rp1,addr=00.0,x-vga=on", "0000:01:00.0"),
        ("vfio-pci-nohotplug,host=AB:1F.7", "0000:ab:1f.7"),
        ("vfio-pci,host=0x1:0x0.0", "0000:01:00.0"),
        ("vfio-pci,host= +1:0.0", "0000:01:00.0"),
        ("vfio-pci,host=10000:01:00.0", "10000:01:00.0"),
        ("driver=vfio-pci,host=01:00.0", "0000:01:00.0"),
        ("host=01:00.0,driver=vfio-pci", "0000:01:00.0"),
        // The last one counts, and sysfsdev before host.
        ("vfio-pci,host=01:00.0,host=02:00.0", "0000:02:00.0"),
        ("vfio-pci,sysfsdev=/sys/bus/pci/devices/0000:03:00.0,host=01:00.0", "0000:03:00.0"),
        ("vfio-pci,sysfsdev=/sys/bus/pci/devices/0000:03:00.0/", "0000:03:00.0"),
        ("vfio-pci,sysfsdev=/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0", "0000:01:00.0"),
        ("vfio-pci,romfile=/a,,host=09:00.0,host=01:00.0", "0000:01:00.0"),
        // Devices of older versions, and Xen's.
        ("pci-assign,host=01:00.0,id=x", "0000:01:00.0"),
        ("kvm-pci-assign,host=0000:01:00.0,configfd=3", "0000:01:00.0"),
        ("xen-pci-passthrough,hostaddr=0000:01:00.0", "0000:01:00.0"),
        (r#"{"driver":"vfio-pci","host":"0000:01:00.0","id":"x"}"#, "0000:01:00.0"),
        (r#"{ "host": "01:00.0", "driver": "vfio\u002dpci" }"#, "0000:01:00.0"),
        ("{'driver':'vfio-pci','host':'01:00.0'}", "0000:01:00.0"),
        (
            r#"{"driver":"vfio-pci-nohotplug","sysfsdev":"/sys/bus/pci/devices/0000:01:00.0"}"#,
            "0000:01:00.0",
        ),
    ] {
        assert_eq!(of_device(value), [found], "{value}");
    }
}

#[test]
fn other_devices_are_not_read_as_functions_of_the_host() {
    for value in [
        "virtio-net-pci,host=01:00.0",
        "vfio-pci",
        "vfio-pci,,nohotplug,host=01:00.0",
        "vfio-ccw,sysfsdev=/sys/bus/mdev/devices/0000:01:00.0",
        "vfio-pci,romfile=/a,,host=09:00.0",
        "vfio-pci,sysfsdev=/sys/bus/mdev/devices/11111111-2222-3333-4444-555555555555",
        "vfio-pci,HOST=01:00.0",
        "pci-assign,romfile=/sys/bus/pci/devices/0000:01:00.0/rom",
        "vfio-ap,sysfsdev=/sys/devices/vfio_ap/matrix/11111111-2222-3333-4444-555555555555",
        r#"{"driver":"usb-host","host":"01:00.0"}"#,
        r#"["vfio-pci",{"driver":"vfio-pci","host":"01:00.0"}]"#,
        "",
        ",",
        "=",
        ",,,,",
    ] {
        assert_eq!(of_device(value), [""; 0], "{value}");
    }
}

#[test]
fn undeterminable_arguments_are_reported() {
    for value in [
        "vfio-pci,host=garbage",
        "vfio-pci,host=01:00.A",
        "vfio-pci,host=01:00.8",
        "vfio-pci,host=01:20.0",
        "vfio-pci,host=101:00.0",
        "vfio-pci,host=1:2:3:4.0",
        "vfio-pci,host=01:00",
        "vfio-pci,host=",
        "vfio-pci,host=0x:0.0",
        "vfio-pci,host=ä:00.0",
        "vfio-pci,fd=7",
        "vfio-pci,sysfsdev=/sys/class/net/eth0/device",
        "vfio-pci,sysfsdev=/sys/bus/pci/devices/0000:86:00.0/virtfn0",
        "vfio-pci,sysfsdev=/sys/bus/pci/devices/0000:01:00.0/..",
        r#"{"driver":"vfio-pci","host":"#,
    ] {
        assert_eq!(read(&["-device", value]), (vec![], 1), "{value}");
    }
    assert_eq!(read(&["-readconfig", "/etc/vm.cfg"]), (vec![], 1));
    assert_eq!(read(&["-blockdev", "driver=nvme,device=x,namespace=1"]), (vec![], 1));
    let link = "driver=virtio-blk-vfio-pci,path=/sys/class/block/vda/device,node-name=a";
    assert_eq!(read(&["-blockdev", link]), (vec![], 1));
    assert_eq!(read(&["-pcidevice", "host=x"]), (vec![], 1));
}

#[test]
fn only_links_in_sysfs_are_for_the_host_to_follow() {
    let space = "xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'";
    let link = "/sys/class/net/eth0/device";
    let values = [
        "-device".to_owned(),
        format!("vfio-pci,sysfsdev={link}"),
        "-device".to_owned(),
        "vfio-pci,fd=7".to_owned(),
        "-readconfig".to_owned(),
        "/sys/x".to_owned(),
    ];
    let args: String = values.iter().map(|v| format!("<qemu:arg value='{v}'/>")).collect();
    let property = format!("<qemu:property name='sysfsdev' type='string' value='{link}/..'/>");
    let text = format!(
        "<domain {space}><qemu:commandline>{args}</qemu:commandline><qemu:override><qemu:device \
         alias='x'><qemu:frontend>{property}</qemu:frontend></qemu:device></qemu:override></domain>"
    );
    let xml = DomainXml::parse(&text).unwrap();
    let found = Arguments::read(xml.root());
    let links: Vec<_> = found.links.iter().filter_map(|unread| unread.link.clone()).collect();
    assert_eq!((links, found.unread.len()), (vec![link.to_owned(), format!("{link}/..")], 4));
}

#[test]
fn options_other_than_device_are_read() {
    for (arguments, found) in [
        (&["--device", "vfio-pci,host=01:00.0"][..], &["0000:01:00.0"][..]),
        (&["-device=vfio-pci,host=01:00.0"], &["0000:01:00.0"]),
        (&["-device", "vfio-pci,id=x", "-set", "device.x.host=07:00.0"], &["0000:07:00.0"]),
        // A device of libvirt's.
        (&["-set", "device.hostdev0.sysfsdev=/sys/0000:07:00.0"], &["0000:07:00.0"]),
        (&["-device", "usb-host,id=x", "-set", "device.x.host=07:00.0"], &[]),
        (&["-set", "drive.x.host=07:00.0", "-set", "device", "-set", "a.b=c"], &[]),
        (&["-global", "vfio-pci.host=05:00.0"], &["0000:05:00.0"]),
        (&["-global", "driver=vfio-pci,property=host,value=06:00.0"], &["0000:06:00.0"]),
        (&["-global", "usb-host.host=05:00.0", "-global", "vfio-pci.x-vga=on"], &[]),
        (&["-drive", "file=nvme://0000:44:00.0/1,if=none"], &["0000:44:00.0"]),
        (&["nvme://0000:44:00.0/1"], &["0000:44:00.0"]),
        (
            &["-blockdev", "driver=nvme,device=0000:44:00.0,namespace=1,node-name=a"],
            &["0000:44:00.0"],
        ),
        (
            &["-blockdev", r#"{"driver":"raw","file":{"driver":"nvme","device":"44:00.0"}}"#],
            &["0000:44:00.0"],
        ),
        (&["-drive", "driver=raw,file.driver=nvme,file.device=0000:44:00.0"], &["0000:44:00.0"]),
        (&["-drive", r#"file=json:{"driver":"nvme",,"device":"0000:44:00.0"}"#], &["0000:44:00.0"]),
        (&["-drive", "file=/nvme,driver=raw", "-blockdev", "driver=nvme"], &[]),
        (
            &["-hda", r#"json:{"driver":"nvme","device":"0000:44:00.0","namespace":1}"#],
            &["0000:44:00.0"],
        ),
        (&["-pcidevice", "host=01:00.0,dma=none"], &["0000:01:00.0"]),
        (&["-global", "pci-assign.host=05:00.0"], &["0000:05:00.0"]),
        (
            &["-blockdev", "driver=virtio-blk-vfio-pci,path=/sys/bus/pci/devices/0000:01:00.0"],
            &["0000:01:00.0"],
        ),
        (
            &[
                "-blockdev",
                r#"{"driver":"raw","file":{"driver":"virtio-blk-vfio-pci","path":"/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/"}}"#,
            ],
            &["0000:01:00.0"],
        ),
        // The memory of a function.
        (
            &[
                "-object",
                "memory-backend-file,id=m,mem-path=/sys/bus/pci/devices/0000:01:00.0/resource2_wc",
            ],
            &["0000:01:00.0"],
        ),
        (&["-mem-path", "/sys/devices/pci0000:00/0000:01:00.0/resource0"], &["0000:01:00.0"]),
        (
            &["-object", "memory-backend-file,mem-path=/sys/bus/pci/devices/0000:01:00.0/config"],
            &[],
        ),
        // Several, in their order; an option without its value; a value like an option.
        (
            &["-device", "vfio-pci,host=2:0.0", "-device", "vfio-pci,host=1:0.0", "-device"],
            &["0000:02:00.0", "0000:01:00.0"],
        ),
        (&["-name", "-set", "-device", "vfio-pci,host=1:0.0"], &["0000:01:00.0"]),
        (&["-device vfio-pci,host=1:0.0"], &[]),
    ] {
        assert_eq!(read(arguments).0, found, "{arguments:?}");
    }
}

/// The functions of a domain with these elements.
fn passed(content: &str) -> Vec<(String, String)> {
    let space = "xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'";
    let xml = DomainXml::parse(&format!("<domain {space}>{content}</domain>")).unwrap();
    let claims = Claims::read(&xml);
    let one = |passed: &crate::domain::claims::Passed<'_>| {
        assert_eq!(passed.by_argument, !passed.bdf.spot.path().contains("/devices"));
        (passed.bdf.value.to_string(), passed.bdf.spot.path())
    };
    claims.passed.iter().map(one).collect()
}

#[test]
fn arguments_and_overrides_are_found_by_their_namespace() {
    let args = "<qemu:arg value='-device'/><qemu:arg value='vfio-pci,host=&#x30;1:00.0'/>";
    let at = "/domain/qemu:commandline/qemu:arg[2]/@value";
    let wanted = |path: &str| vec![("0000:01:00.0".to_owned(), path.to_owned())];
    assert_eq!(passed(&format!("<qemu:commandline>{args}</qemu:commandline>")), wanted(at));
    let other = args.replace("qemu:", "q:");
    let line = "xmlns:q='http://libvirt.org/schemas/domain/qemu/1.0'";
    let text = format!("<q:commandline {line}>{other}</q:commandline>");
    assert_eq!(passed(&text), wanted(&at.replace("qemu:", "q:")));
    // libvirt reads neither of these.
    let text = args.replace("qemu:", "");
    assert_eq!(passed(&format!("<commandline>{text}</commandline>")), []);
    let text = format!("<devices><qemu:commandline>{args}</qemu:commandline></devices>");
    assert_eq!(passed(&text), []);
    let property = "<qemu:property name='host' type='string' value='01:00.0'/>";
    let text = format!(
        "<qemu:override><qemu:device alias='hostdev0'><qemu:frontend>{property}\
         <qemu:property name='x-vga' type='bool' value='true'/>\
         <qemu:property name='sysfsdev' type='remove'/></qemu:frontend></qemu:device>\
         </qemu:override>"
    );
    let at = "/domain/qemu:override/qemu:device/qemu:frontend/qemu:property[1]/@value";
    assert_eq!(passed(&text), wanted(at));
}

#[test]
fn nvme_drives_below_a_disk_are_functions() {
    let nvme = |name: &str, bus: u8| {
        format!("<{name} type='nvme'><source type='pci'><address bus='{bus}'/></source></{name}>")
    };
    let below = nvme("backingStore", 2);
    let deep = format!("<backingStore type='file'>{below}</backingStore>");
    let data = format!("<source file='/a'>{}</source>", nvme("dataStore", 4));
    let disk = format!("<disk type='file'>{data}{deep}{}</disk>", nvme("mirror", 3));
    let all = format!(
        "<devices>{}{disk}</devices><devices>{}</devices>",
        nvme("disk", 1),
        nvme("disk", 5)
    );
    let mut found: Vec<String> = passed(&all).into_iter().map(|(bdf, _)| bdf).collect();
    found.sort();
    assert_eq!(found, [1, 2, 3, 4, 5].map(|bus| format!("0000:0{bus}:00.0")));
}

#[test]
fn paths_are_found_in_any_option() {
    let text = "<domain xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><qemu:commandline>\
        <qemu:arg value='-hda'/><qemu:arg value='/d/a.raw'/>\
        <qemu:arg value='-drive'/><qemu:arg value='if=none,file=/d/b,,c.raw,format=raw'/>\
        <qemu:arg value='-blockdev'/>\
        <qemu:arg value='{\"driver\":\"raw\",\"file\":{\"filename\":\"/d/e.raw\"}}'/>\
        <qemu:arg value='file:///d/f.raw'/><qemu:arg value='file=file:/d/g.raw'/>\
        <qemu:arg value='-device'/><qemu:arg value='vfio-pci,romfile=/d/rom'/>\
        <qemu:arg value='-drive'/><qemu:arg value='file=host_device:/dev/nvme0n1,format=raw'/>\
        <qemu:arg value='-drive'/><qemu:arg value='file=raw:file:dev/nvme1n1'/>\
        <qemu:arg value='-netdev'/><qemu:arg value='vhost-vdpa,vhostdev=/dev/vhost-vdpa-0,id=n'/>\
        <qemu:arg value='-hda'/><qemu:arg value='d/h.raw'/>\
        <qemu:arg value='-drive'/><qemu:arg value='if=none,id=x,file=./d/i.raw'/>\
        <qemu:arg value='-drive'/><qemu:arg value='file=blkdebug::/d/j.raw'/>\
        <qemu:arg value='-drive'/><qemu:arg value='file=blkverify:d/k.raw:/d/l.raw'/>\
        <qemu:arg value='-drive'/><qemu:arg value='file=nbd://h/d/x,if=none'/>\
        <qemu:arg value='-name'/><qemu:arg value='a/b'/></qemu:commandline></domain>";
    let xml = DomainXml::parse(text).unwrap();
    let found: Vec<(String, bool)> = paths(xml.root()).into_iter().collect();
    let wanted = [
        ("/d/a.raw", true),
        ("/d/b,c.raw", true),
        ("/d/e.raw", true),
        ("/d/f.raw", true),
        ("/d/g.raw", true),
        ("/d/h.raw", true),
        ("/d/i.raw", true),
        ("/d/j.raw", true),
        ("/d/k.raw", true),
        ("/d/l.raw", true),
        ("/d/rom", false),
        ("/dev/nvme0n1", true),
        ("/dev/nvme1n1", true),
        ("/dev/vhost-vdpa-0", false),
    ];
    assert_eq!(found, wanted.map(|(path, is_image)| (path.to_owned(), is_image)));
}

fn with(arguments: &[&str]) -> DomainXml {
    let space = "xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'";
    let quoted = |text: &&str| text.replace('\'', "&apos;").replace('"', "&quot;");
    let one = |text: &&str| format!("<qemu:arg value='{}'/>", quoted(text));
    let arguments: String = arguments.iter().map(one).collect();
    let lines = format!("<qemu:commandline>{arguments}</qemu:commandline>");
    DomainXml::parse(&format!("<domain {space}>{lines}</domain>")).unwrap()
}

#[test]
fn arguments_that_may_name_files_are_reported() {
    let found = |arguments: &[&str]| hidden(with(arguments).root());
    assert_eq!(found(&["-readconfig", "/d/vm.cfg"]), ["-readconfig /d/vm.cfg"]);
    assert_eq!(found(&["-blockdev", "{driver:file}"]), ["-blockdev {driver:file}"]);
    assert!(found(&["-name", "a"]).is_empty());
    assert!(found(&["-blockdev", r#"{"driver":"file","filename":"/d/a"}"#]).is_empty());
}

#[test]
fn functions_are_found_under_any_name() {
    let of = |arguments: &[&str]| {
        let xml = with(arguments);
        let found = Arguments::read(xml.root());
        let functions: Vec<String> =
            found.functions.iter().map(|one| one.value.to_string()).collect();
        (functions, found.unread.len(), found.links.len())
    };
    let one = |bdf: &str| (vec![bdf.to_owned()], 0, 0);
    let set = ["-device", "e1000,id=x", "-set", "device.x.driver=vfio-pci"];
    assert_eq!(of(&[&set[..], &["-set", "device.x.host=34:00.0"]].concat()), one("0000:34:00.0"));
    let own = ["-device", "e1000,id=x,host=34:00.0", "-set", "device.x.driver=vfio-pci"];
    assert_eq!(of(&own), one("0000:34:00.0"));
    // A link may be called as another function is.
    let path = |path: &str| of(&["-device", &format!("vfio-pci,sysfsdev={path}")]);
    assert_eq!(path("/sys/bus/pci/devices/0000:34:00.0"), one("0000:34:00.0"));
    assert_eq!(path("/srv/0000:34:00.0"), (Vec::new(), 1, 1));
    assert_eq!(path("/sys/../srv/0000:34:00.0"), (Vec::new(), 1, 1));
    assert_eq!(of(&["-device", "{'driver':v}"]), (Vec::new(), 1, 0));
    let uuid = "11111111-2222-3333-4444-555555555555";
    let passed = format!("vfio-pci,sysfsdev=/sys/bus/mdev/devices/{uuid}");
    assert_eq!(of(&["-device", &passed]), (Vec::new(), 0, 0), "it is no function");
    assert_eq!(with(&["-device", &passed]).mediated(), [uuid]);
    let hostdev = format!(
        "<domain><devices><hostdev mode='subsystem' type='mdev' model='vfio-pci'><source>\
         <address uuid='{uuid}'/></source></hostdev></devices></domain>"
    );
    assert_eq!(DomainXml::parse(&hostdev).unwrap().mediated(), [uuid]);
}

#[test]
fn vdpa_nics_name_their_nodes() {
    let text = "<domain><devices><interface type='vdpa'><source dev='/dev/vhost-vdpa-0'/>\
        </interface><interface type='direct'><source dev='eth0'/></interface></devices></domain>";
    let xml = DomainXml::parse(text).unwrap();
    assert_eq!(vdpa_nodes(xml.root()), ["/dev/vhost-vdpa-0"]);
}

proptest! {
    #[test]
    fn never_panics(arguments in proptest::collection::vec(
        "-(device|set|global|drive|blockdev)=?|[-a-z.:,={}\\[\\]\"'0-9ä]{0,30}|vfio-pci,host=[0-9a-fx:., +-]{0,12}",
        0..6,
    )) {
        functions(&arguments);
        arguments.iter().for_each(|text| drop(pairs(text, "driver")));
    }
}
