//! Allowed content of a definition in a bundle. Anyone can write one, and libvirt follows it as
//! root: it opens files, runs programs, takes devices of its host. So everything is refused except
//! elements of our guests. Names of files of a host are refused or replaced
//! ([`DomainXml::for_another_host`]).

use super::fragment::Fragment;
use super::guest::Record;
use super::setting::Setting;
use super::{DomainEdit, DomainXml, DomainXmlError, Element};

/// Where packages put firmware, which all users may read and only packages write.
const FIRMWARE: &str = "/usr/share/";
/// The longest value in an error, in characters.
const SHOWN: usize = 80;

/// The elements that a definition may have, each once below its parent, or as often as wanted
/// (`*`), with their attributes. No value may have a `/`, but `name=*` takes any, and `name=a,b`
/// only these; `=*` and `=a,b` without a name are about the element's own text. `**` takes all
/// attributes and elements below it that have no `/`.
const ALLOWED: &[(&str, &str)] = &[
    ("domain", "type=kvm,qemu xmlns:qemu=*"),
    ("domain/name", ""),
    ("domain/uuid", ""),
    ("domain/genid", ""),
    ("domain/title", "=*"),
    ("domain/description", "=*"),
    // Replaced.
    ("domain/metadata", "=*"),
    ("domain/seclabel*", "type=dynamic model relabel=yes"),
    ("domain/maxMemory", "unit slots"),
    ("domain/memory", "unit dumpCore"),
    ("domain/currentMemory", "unit"),
    ("domain/memoryBacking", ""),
    ("domain/memoryBacking/hugepages", "**"),
    ("domain/memoryBacking/nosharepages", ""),
    ("domain/memoryBacking/source", "type=anonymous,memfd"),
    ("domain/memoryBacking/access", "mode"),
    ("domain/memoryBacking/allocation", "mode threads"),
    ("domain/memoryBacking/discard", ""),
    ("domain/vcpu", "placement current cpuset"),
    ("domain/vcpus", "**"),
    ("domain/iothreads", ""),
    ("domain/iothreadids", "**"),
    ("domain/defaultiothread", "**"),
    ("domain/cputune", ""),
    ("domain/cputune/vcpupin*", "vcpu cpuset"),
    ("domain/cputune/emulatorpin", "cpuset"),
    ("domain/cputune/iothreadpin*", "iothread cpuset"),
    ("domain/numatune", "**"),
    ("domain/resource", ""),
    ("domain/resource/partition", "=/machine"),
    ("domain/sysinfo*", "type=smbios"),
    ("domain/sysinfo/bios", ""),
    ("domain/sysinfo/bios/entry*", "name =*"),
    ("domain/sysinfo/system", ""),
    ("domain/sysinfo/system/entry*", "name =*"),
    ("domain/sysinfo/baseBoard*", ""),
    ("domain/sysinfo/baseBoard/entry*", "name =*"),
    ("domain/sysinfo/chassis", ""),
    ("domain/sysinfo/chassis/entry*", "name =*"),
    ("domain/sysinfo/oemStrings", ""),
    ("domain/sysinfo/oemStrings/entry*", "=*"),
    ("domain/os", "firmware"),
    ("domain/os/type", "arch machine =hvm"),
    ("domain/os/firmware", ""),
    ("domain/os/firmware/feature*", "enabled name"),
    ("domain/os/loader", "readonly=yes type=pflash,rom secure stateless format =*"),
    ("domain/os/nvram", "template=* templateFormat format =*"),
    ("domain/os/boot*", "dev"),
    ("domain/os/bootmenu", "enable timeout"),
    ("domain/os/bios", "useserial rebootTimeout"),
    ("domain/os/smbios", "mode=emulate,sysinfo"),
    ("domain/features", "**"),
    ("domain/cpu", "**"),
    ("domain/clock", "**"),
    ("domain/pm", "**"),
    ("domain/on_poweroff", "=destroy,restart,preserve,rename-restart"),
    ("domain/on_reboot", "=destroy,restart,preserve,rename-restart"),
    ("domain/on_crash", "=destroy,restart,preserve,rename-restart"),
    ("domain/devices", ""),
    // Always the host's own.
    ("domain/devices/emulator", "=*"),
    ("domain/devices/disk*", "type=file device=disk,cdrom,floppy model"),
    (
        "domain/devices/disk/driver",
        "name=qemu type=raw,qcow2 cache io discard iothread queues queue_size error_policy \
      rerror_policy copy_on_read detect_zeroes discard_no_unref ioeventfd event_idx iommu ats \
      packed page_per_vq",
    ),
    ("domain/devices/disk/driver/iothreads", "**"),
    ("domain/devices/disk/driver/metadata_cache", "**"),
    // Each is a file of the bundle.
    ("domain/devices/disk/source", "file=*"),
    ("domain/devices/disk/backingStore", ""),
    ("domain/devices/disk/target", "dev bus removable tray rotation_rate"),
    ("domain/devices/disk/iotune", "**"),
    ("domain/devices/disk/blockio", "**"),
    ("domain/devices/disk/geometry", "**"),
    ("domain/devices/disk/readonly", ""),
    ("domain/devices/disk/serial", "=*"),
    ("domain/devices/disk/wwn", ""),
    ("domain/devices/disk/vendor", ""),
    ("domain/devices/disk/product", ""),
    ("domain/devices/disk/boot", "order"),
    ("domain/devices/disk/alias", "name"),
    ("domain/devices/disk/address", "**"),
    ("domain/devices/controller*", "**"),
    ("domain/devices/interface*", "type=network,bridge trustGuestRxFilters=no"),
    ("domain/devices/interface/mac", "address type"),
    ("domain/devices/interface/source", "network portgroup bridge"),
    ("domain/devices/interface/virtualport", "**"),
    ("domain/devices/interface/model", "type"),
    (
        "domain/devices/interface/driver",
        "name=vhost,qemu queues rx_queue_size tx_queue_size txmode ioeventfd event_idx iommu ats \
      packed page_per_vq rss rss_hash_report",
    ),
    ("domain/devices/interface/driver/host", "**"),
    ("domain/devices/interface/driver/guest", "**"),
    ("domain/devices/interface/filterref", "**"),
    ("domain/devices/interface/bandwidth", "**"),
    ("domain/devices/interface/vlan", "**"),
    ("domain/devices/interface/mtu", "size"),
    ("domain/devices/interface/link", "state"),
    ("domain/devices/interface/port", "isolated"),
    ("domain/devices/interface/boot", "order"),
    ("domain/devices/interface/alias", "name"),
    ("domain/devices/interface/address", "**"),
    ("domain/devices/serial*", "type=pty"),
    ("domain/devices/serial/log", "file=* append"),
    ("domain/devices/serial/target", "**"),
    ("domain/devices/serial/alias", "name"),
    ("domain/devices/serial/address", "**"),
    ("domain/devices/console*", "type=pty"),
    ("domain/devices/console/log", "file=* append"),
    ("domain/devices/console/target", "**"),
    ("domain/devices/console/alias", "name"),
    ("domain/devices/console/address", "**"),
    ("domain/devices/channel*", "type=unix"),
    ("domain/devices/channel/target", "type=virtio name"),
    ("domain/devices/channel/alias", "name"),
    ("domain/devices/channel/address", "**"),
    ("domain/devices/input*", "type=mouse,keyboard,tablet bus model"),
    ("domain/devices/input/alias", "name"),
    ("domain/devices/input/address", "**"),
    ("domain/devices/graphics*", "type=vnc port autoport keymap listen=127.0.0.1,::1"),
    ("domain/devices/graphics/listen*", "type=address address=127.0.0.1,::1"),
    ("domain/devices/video*", ""),
    ("domain/devices/video/model", "type vram vram64 ram vgamem heads primary blob=off"),
    ("domain/devices/video/alias", "name"),
    ("domain/devices/video/address", "**"),
    ("domain/devices/audio*", "id type=none"),
    ("domain/devices/watchdog*", "model action=reset,shutdown,poweroff,pause,none,inject-nmi"),
    ("domain/devices/watchdog/alias", "name"),
    ("domain/devices/watchdog/address", "**"),
    ("domain/devices/panic*", "model"),
    ("domain/devices/panic/address", "**"),
    ("domain/devices/memballoon", "model=virtio,none autodeflate freePageReporting"),
    ("domain/devices/memballoon/stats", "period"),
    ("domain/devices/memballoon/driver", "**"),
    ("domain/devices/memballoon/alias", "name"),
    ("domain/devices/memballoon/address", "**"),
    ("domain/devices/rng*", "model"),
    ("domain/devices/rng/rate", "bytes period"),
    ("domain/devices/rng/backend", "model=random,builtin =/dev/urandom,/dev/random"),
    ("domain/devices/rng/driver", "**"),
    ("domain/devices/rng/alias", "name"),
    ("domain/devices/rng/address", "**"),
    ("domain/devices/iommu", "**"),
    ("domain/qemu:override", ""),
    ("domain/qemu:override/qemu:device*", "alias"),
    ("domain/qemu:override/qemu:device/qemu:frontend", ""),
    (
        "domain/qemu:override/qemu:device/qemu:frontend/qemu:property*",
        "name=x-nv-gpudirect-clique,x-speed,x-width type value",
    ),
    ("domain/qemu:commandline", ""),
    ("domain/qemu:commandline/qemu:arg*", "value=*"),
];

impl DomainXml {
    /// Returns an element that guests of bundles do not have: the path of an element, and of its
    /// attribute or text the value; none if there is none.
    pub fn not_bundled(&self) -> Option<String> {
        // Syntax that libvirt itself never writes, and its parser and ours may read differently.
        if self.text().contains("<?") {
            return Some("a processing instruction".to_owned());
        }
        refused(self.root(), "domain").or_else(|| self.foreign_firmware())
    }

    /// The first file of its firmware that may be no firmware, or argument that is not ours.
    fn foreign_firmware(&self) -> Option<String> {
        let is_firmware =
            |path: &str| path.starts_with(FIRMWARE) && !path.split('/').any(|part| part == "..");
        let loader = self.root().find("os/loader").filter(|loader| !is_firmware(&loader.text()));
        if let Some(loader) = loader {
            return Some(shown(&loader.path(), &loader.text()));
        }
        let nvram = self.root().find("os/nvram");
        let template = nvram.and_then(|nvram| nvram.attr("template"));
        if let Some(template) = template.filter(|path| !is_firmware(path)) {
            return Some(shown("domain/os/nvram/@template", &template));
        }
        let arguments = self.root().child("qemu:commandline")?.elements();
        let mut values = arguments.map(|arg| (arg, arg.attr("value").unwrap_or_default()));
        let (arg, value) = values.find(|(_, value)| !super::window::is_ours(value))?;
        Some(shown(&arg.path(), &value))
    }

    /// Returns it without parts of its former host: the program that runs it, labels, the file of
    /// its console, objects made and bound for it; with `record` as our metadata, and if its
    /// console was kept in a file, it is kept in `log`.
    pub fn for_another_host(
        &self,
        record: Record,
        log: Option<String>,
    ) -> Result<DomainXml, DomainXmlError> {
        let devices = self.root().child("devices");
        let logs = ["serial", "console"].into_iter().flat_map(|name| {
            let number = devices.map_or(0, |all| all.children(name).count());
            let gone = move |nth| Fragment::new(name).nth(nth).child(Fragment::gone("log"));
            (0..number).map(gone)
        });
        let is_logged = devices.is_some_and(|all| all.find("serial/log").is_some());
        let devices = Fragment::new("devices").if_there().children(logs);
        let domain = Fragment::new("domain")
            .child(Fragment::gone("metadata"))
            .child(devices.child(Fragment::gone("emulator")))
            .only("seclabel");
        let mut xml = self.spliced(&domain)?;
        let (record, partition) = (Box::new(record), None);
        xml.apply(&DomainEdit::SetMetadata { record, partition, devices: Vec::new() })?;
        if let Some(uuid) = self.uuid() {
            xml.apply(&DomainEdit::SetUuid { uuid })?;
        }
        if let Some(path) = log.filter(|_| is_logged) {
            xml.apply(&DomainEdit::Set { setting: Setting::SerialLog { path: Some(path) } })?;
        }
        Ok(xml)
    }
}

/// A value and where it is.
fn shown(path: &str, value: &str) -> String {
    format!("{path} {:?}", value.chars().take(SHOWN).collect::<String>())
}

/// The first part of an element that is not allowed.
fn refused(element: Element<'_>, path: &str) -> Option<String> {
    let is_it = |(name, _): &&(&str, &str)| name.trim_end_matches('*') == path;
    let Some((name, allowed)) = ALLOWED.iter().find(is_it) else { return Some(element.path()) };
    let same = || element.parent().map_or(1, |above| above.children(element.name()).count());
    if !name.ends_with('*') && same() > 1 {
        return Some(element.path());
    }
    if *allowed == "**" {
        return with_path(element);
    }
    let words: Vec<(&str, Option<&str>)> = allowed
        .split_whitespace()
        .map(|word| word.split_once('=').map_or((word, None), |(name, of)| (name, Some(of))))
        .collect();
    let fits = |name: &str, value: &str| {
        let found = words.iter().find(|(word, _)| *word == name);
        match found.map(|(_, values)| *values) {
            None => name.is_empty() && !value.contains('/'),
            Some(None) => !value.contains('/'),
            Some(Some("*")) => true,
            Some(Some(values)) => {
                values.split(',').any(|one| one == value) || (name.is_empty() && value.is_empty())
            }
        }
    };
    if let Some((name, value)) = element.attrs().find(|(name, value)| !fits(name, value)) {
        return Some(shown(&format!("{}/@{name}", element.path()), &value));
    }
    if !fits("", &element.text()) {
        return Some(shown(&element.path(), &element.text()));
    }
    if path == "domain/metadata" {
        return None;
    }
    element.elements().find_map(|below| refused(below, &format!("{path}/{}", below.name())))
}

/// The first part of an element that may name a file, or is of another namespace.
fn with_path(element: Element<'_>) -> Option<String> {
    if element.name().contains(':') {
        return Some(element.path());
    }
    let is_bad = |name: &str, value: &str| value.contains('/') || name.starts_with("xmlns");
    if let Some((name, value)) = element.attrs().find(|(name, value)| is_bad(name, value)) {
        return Some(shown(&format!("{}/@{name}", element.path()), &value));
    }
    if element.text().contains('/') {
        return Some(shown(&element.path(), &element.text()));
    }
    element.elements().find_map(with_path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest of ours, as libvirt writes it.
    const GUEST: &str = include_str!("tests/bundled.xml");

    fn device(text: &str) -> String {
        GUEST.replace("<devices>", &format!("<devices>{text}"))
    }

    /// The refused part of a text.
    fn found(text: &str) -> String {
        assert_ne!(text, GUEST);
        DomainXml::parse(text).unwrap().not_bundled().unwrap_or_default()
    }

    #[test]
    fn guests_of_ours_have_nothing_that_is_refused() {
        assert_eq!(DomainXml::parse(GUEST).unwrap().not_bundled(), None);
        for template in [
            include_str!("../../../templates/gpu-guest.xml"),
            include_str!("../../../templates/gpu-guest-aarch64.xml"),
        ] {
            assert_eq!(DomainXml::parse(template).unwrap().not_bundled(), None);
        }
        let more = GUEST.replace("<domain ", "<domain xmlns:qemu='urn:q' ").replace(
            "</devices>",
            "</devices><qemu:commandline><qemu:arg value='-fw_cfg'/><qemu:arg \
             value='name=opt/ovmf/X-PciMmio64Mb,string=4096'/></qemu:commandline><qemu:override>\
             <qemu:device alias='ua-gpu0'><qemu:frontend><qemu:property name='x-speed' \
             type='string' value='16'/></qemu:frontend></qemu:device></qemu:override>",
        );
        assert_eq!(found(&more), "");
    }

    /// Devices that are refused, and by which path below `domain/devices`.
    const DEVICES: &[(&str, &str)] = &[
        ("<filesystem type='mount'><source dir='/'/><target dir='x'/></filesystem>", "filesystem"),
        ("<hostdev mode='subsystem' type='mdev' model='vfio-pci'/>", "hostdev"),
        ("<interface type='ethernet'/>", "interface[1]/@type"),
        (
            "<interface type='direct'><source dev='eth0' mode='passthrough'/></interface>",
            "interface[1]/@type",
        ),
        ("<interface type='vhostuser'/>", "interface[1]/@type"),
        ("<interface type='bridge'><script path='/tmp/x'/></interface>", "interface[1]/script"),
        ("<interface type='bridge'><backend tap='/dev/x'/></interface>", "interface[1]/backend"),
        ("<interface type='bridge'><target dev='eth0'/></interface>", "interface[1]/target"),
        ("<disk type='block' device='disk'/>", "disk[1]/@type"),
        ("<disk type='network' device='disk'/>", "disk[1]/@type"),
        ("<disk type='vhostuser' device='disk'/>", "disk[1]/@type"),
        ("<disk type='nvme' device='disk'/>", "disk[1]/@type"),
        ("<disk type='file' device='lun'/>", "disk[1]/@device"),
        ("<disk type='file'><source file='/a' dev='/dev/sda'/></disk>", "disk[1]/source/@dev"),
        (
            "<disk type='file'><source file='/a'><dataStore type='file'/></source></disk>",
            "disk[1]/source/dataStore",
        ),
        (
            "<disk type='file'><source file='/a'><seclabel model='dac'/></source></disk>",
            "disk[1]/source/seclabel",
        ),
        ("<disk type='file'><backingStore type='file'/></disk>", "disk[1]/backingStore/@type"),
        ("<disk type='file'><mirror type='file'/></disk>", "disk[1]/mirror"),
        ("<disk type='file'><encryption format='luks'/></disk>", "disk[1]/encryption"),
        ("<serial type='file'/>", "serial[1]/@type"),
        ("<serial type='pty'><source path='/dev/tty0'/></serial>", "serial[1]/source"),
        ("<console type='dev'/>", "console[1]/@type"),
        ("<parallel type='pty'/>", "parallel"),
        ("<channel type='unix'><source mode='bind' path='/run/x'/></channel>", "channel[1]/source"),
        ("<channel type='file'/>", "channel[1]/@type"),
        ("<channel type='unix'><log file='/etc/x'/></channel>", "channel[1]/log"),
        ("<rng model='virtio'><backend model='egd' type='unix'/></rng>", "rng[1]/backend/@model"),
        (
            "<rng model='virtio'><backend model='random'>/dev/sda</backend></rng>",
            "rng[1]/backend \"/dev/sda\"",
        ),
        ("<tpm model='tpm-tis'><backend type='passthrough'/></tpm>", "tpm"),
        ("<shmem name='x'/>", "shmem"),
        ("<vsock model='virtio'/>", "vsock"),
        ("<smartcard mode='host'/>", "smartcard"),
        ("<redirdev bus='usb' type='tcp'/>", "redirdev"),
        ("<memory model='nvdimm'/>", "memory"),
        ("<lease/>", "lease"),
        ("<crypto model='virtio' type='qemu'/>", "crypto"),
        ("<graphics type='vnc' listen='0.0.0.0'/>", "graphics/@listen"),
        ("<graphics type='vnc' socket='/run/x'/>", "graphics/@socket"),
        ("<graphics type='egl-headless'/>", "graphics/@type"),
        ("<input type='evdev'/>", "input[1]/@type"),
        ("<video><driver name='vhostuser'/></video>", "video/driver"),
        ("<audio id='2' type='oss'/>", "audio[1]/@type"),
        ("<watchdog model='itco' action='dump'/>", "watchdog[1]/@action"),
        ("<controller type='x'><driver path='/x'/></controller>", "controller[1]/driver/@path"),
        ("<emulator>/tmp/x</emulator>", "emulator[1]"),
    ];

    /// Refused parts of a domain, and their paths below `domain`.
    const PARTS: &[(&str, &str)] = &[
        ("<seclabel type='none'/>", "seclabel/@type"),
        ("<seclabel type='static' model='dac'><label>0:0</label></seclabel>", "seclabel/@type"),
        ("<resource><partition>/x</partition></resource>", "resource/partition"),
        ("<launchSecurity type='sev'/>", "launchSecurity"),
        ("<blkiotune/>", "blkiotune"),
        ("<sysinfo type='fwcfg'><entry name='x' file='/etc/passwd'/></sysinfo>", "sysinfo/@type"),
        ("<idmap/>", "idmap"),
        ("<bootloader>/tmp/x</bootloader>", "bootloader"),
        ("<devices><emulator>/tmp/x</emulator></devices>", "devices[1]"),
        ("<metadata/>", "metadata[1]"),
        ("<name>b</name>", "name[1]"),
        ("<commandline xmlns='http://libvirt.org/schemas/domain/qemu/1.0'/>", "commandline"),
        ("<q:commandline xmlns:q='http://libvirt.org/schemas/domain/qemu/1.0'/>", "q:commandline"),
        ("<qemu:commandline xmlns:qemu='q'/>", "qemu:commandline/@xmlns:qemu"),
    ];

    #[test]
    fn references_to_files_programs_or_devices_of_a_host_are_refused() {
        for (device_text, path) in DEVICES {
            let text = device(device_text);
            let found = found(&text);
            let expected = format!("domain/devices/{path}");
            assert!(found.starts_with(&expected), "{device_text}: {found:?}");
        }
        let of_domain = |text: &str| GUEST.replace("<devices>", &format!("{text}<devices>"));
        for (text, path) in PARTS {
            let found = found(&of_domain(text));
            assert!(found.starts_with(&format!("domain/{path}")), "{text}: {found:?}");
        }
        let argument = |value: &str| {
            of_domain(&format!("<qemu:commandline><qemu:arg value='{value}'/></qemu:commandline>"))
                .replace("<domain ", "<domain xmlns:qemu='urn:q' ")
        };
        for value in ["-runas", "name=opt/ovmf/X-PciMmio64Mb,file=/etc/passwd"] {
            assert!(found(&argument(value)).contains(value));
        }
        for (from, to) in [
            ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/etc/shadow"),
            ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/../../etc/shadow"),
            ("/usr/share/OVMF/OVMF_VARS_4M.fd", "/etc/shadow"),
            ("<loader readonly='yes'", "<loader readonly='no'"),
            ("<boot dev='hd'/>", "<kernel>/etc/shadow</kernel>"),
            ("<boot dev='hd'/>", "<acpi><table type='slic'>/etc/shadow</table></acpi>"),
            ("<nvram ", "<nvram type='block' "),
            ("<on_crash>destroy", "<on_crash>coredump-destroy"),
        ] {
            assert_ne!(found(&GUEST.replace(from, to)), "", "{to}");
        }
        assert_ne!(found(&format!("<?xml version='1.0'?>{GUEST}")), "");
    }

    #[test]
    fn settings_of_the_former_host_are_left_behind() {
        let xml =
            GUEST.replace("</devices>", "</devices><seclabel type='dynamic' model='selinux'/>");
        let theirs = "<gpuvm:disk path=\"/srv/others\" role=\"data\"/>";
        let twice = format!("<gpuvm:made>{theirs}</gpuvm:made>");
        let xml = xml.replace("<gpuvm:made>", &format!("{twice}<gpuvm:made>{theirs}"));
        let xml = xml.replace("<metadata>", "<metadata><x:y xmlns:x='urn:x'>/</x:y>");
        let xml = DomainXml::parse(&xml).unwrap();
        assert_eq!(xml.not_bundled(), None);
        let record = Record { made: Vec::new(), ..xml.record().unwrap().unwrap() };
        let moved = xml.for_another_host(record.clone(), Some("/l/ba.log".into())).unwrap();
        let gone = ["emulator", "seclabel", "/srv/others", "x:y", "/var/log", "gpuvm:disk"];
        for gone in gone {
            assert!(!moved.text().contains(gone), "{gone}: {}", moved.text());
        }
        assert!(moved.text().contains("<log file='/l/ba.log' append='off'/>"), "{}", moved.text());
        assert_eq!((moved.is_copy(), moved.made().len()), (false, 0));
        assert_eq!(moved.recorded_uuid(), xml.uuid());
        let moved = xml.for_another_host(record, None).unwrap();
        assert!(!moved.text().contains("<log "), "{}", moved.text());
    }
}
