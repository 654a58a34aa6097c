//! Reads the devices of the host, other than PCI functions, that a domain has.

use super::Element;
use super::arguments::{self, Arguments};
use super::read::{At, Spot};
use crate::host_device::HostDevice;

/// Returns those of a domain, in document order, those of QEMU's arguments last. Devices that
/// several domains may have at once are left out.
pub fn host_devices(root: Element<'_>) -> Vec<At<'_, HostDevice>> {
    let devices = root.children("devices").flat_map(|devices| devices.children("hostdev"));
    let of_elements = devices
        .filter_map(|device| Some(At { value: host_device(device)?, spot: Spot::of(device) }));
    let of_arguments = arguments::devices(root, "usb-host").into_iter().filter_map(|settings| {
        let number = |name: &str| parse(settings.value.get(name)?);
        let (id, place) =
            ((number("vendorid"), number("productid")), (number("hostbus"), number("hostaddr")));
        Some(At { value: usb(id.0.zip(id.1), place.0.zip(place.1))?, spot: settings.spot })
    });
    let mediated = Arguments::read(root).mediated.into_iter();
    let mediated =
        mediated.map(|At { value, spot }| At { value: HostDevice::Mediated(value), spot });
    of_elements.chain(of_arguments).chain(mediated).collect()
}

/// Reads a `<hostdev>`; `None` if it is a PCI function, or shared, or unspecified.
fn host_device(device: Element<'_>) -> Option<HostDevice> {
    let source = device.child("source")?;
    let address = source.child("address");
    match device.attr("type")?.as_ref() {
        "usb" => {
            let id = |name: &str| number(source.child(name)?, "id");
            let place = |name: &str| number(address?, name);
            usb(id("vendor").zip(id("product")), place("bus").zip(place("device")))
        }
        "scsi" if device.child("shareable").is_none() => {
            let (adapter, address) = (source.child("adapter")?, address?);
            let part = |name: &str| number(address, name).unwrap_or_default();
            let name = adapter.attr("name")?;
            let place = ["bus", "target", "unit"].map(part);
            Some(HostDevice::Scsi(format!("{name}:{}:{}:{}", place[0], place[1], place[2])))
        }
        "scsi_host" => Some(HostDevice::Target(source.attr("wwpn")?.to_lowercase())),
        "mdev" => Some(HostDevice::Mediated(address?.attr("uuid")?.to_lowercase())),
        _ => None,
    }
}

/// A USB device of which something is said.
fn usb(id: Option<(u32, u32)>, place: Option<(u32, u32)>) -> Option<HostDevice> {
    (id.is_some() || place.is_some()).then_some(HostDevice::Usb { id, place })
}

/// A number of an element, as libvirt reads it.
fn number(element: Element<'_>, name: &str) -> Option<u32> {
    parse(&element.attr(name)?)
}

/// The same in decimal or, after `0x`, in hexadecimal.
fn parse(text: &str) -> Option<u32> {
    match text.trim().strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.trim().parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::DomainXml;

    /// The devices of a domain with these.
    fn of(devices: &str, arguments: &[&str]) -> Vec<HostDevice> {
        let each = arguments.iter().map(|value| format!("<qemu:arg value='{value}'/>"));
        let text = format!(
            "<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>\
             <name>a</name><devices>{devices}</devices><qemu:commandline>{}</qemu:commandline>\
             </domain>",
            each.collect::<String>()
        );
        let xml = DomainXml::parse(&text).unwrap();
        host_devices(xml.root()).into_iter().map(|one| one.value).collect()
    }

    #[test]
    fn devices_of_elements_and_arguments_are_read() {
        let usb = "<hostdev mode='subsystem' type='usb'><source><vendor id='0x046d'/>\
                   <product id='0xc52b'/><address bus='1' device='4'/></source></hostdev>";
        let scsi = "<hostdev mode='subsystem' type='scsi'><source><adapter name='scsi_host2'/>\
                    <address bus='0' target='1' unit='3'/></source></hostdev>";
        let shared = scsi.replace("</source>", "</source><shareable/>");
        let all = of(
            &format!("{usb}{scsi}{shared}"),
            &[
                "-device",
                "usb-host,vendorid=0x046d,productid=50475",
                "-device",
                "usb-host,hostbus=1,hostaddr=5",
            ],
        );
        let said: Vec<String> = all.iter().map(HostDevice::to_string).collect();
        assert_eq!(
            said,
            [
                "USB device 046d:c52b",
                "SCSI device scsi_host2:0:1:3",
                "USB device 046d:c52b",
                "USB device 5 of bus 1"
            ]
        );
        assert!(all[0].is(&all[2]) && all[2].is(&all[0]), "a kind without a place is any of it");
        assert!(!all[0].is(&all[3]), "another place");
        assert!(!all[2].is(&all[3]), "nothing says that they are one");
        assert!(!all[0].is(&all[1]));
    }

    #[test]
    fn a_mediated_device_of_an_argument_is_held_like_that_of_a_hostdev() {
        let uuid = "6ab1f0c4-44aa-4d06-8b4e-9cf1c0f0ce6b";
        let path = format!("/sys/bus/mdev/devices/{}", uuid.to_uppercase());
        for arguments in
            [
                vec!["-device".to_owned(), format!("vfio-pci,sysfsdev={path}")],
                vec!["-device".to_owned(), format!("vfio-pci-nohotplug,id=x,sysfsdev={path}/")],
                vec![
                    "-device".to_owned(),
                    "vfio-pci,id=x".into(),
                    "-set".into(),
                    format!("device.x.sysfsdev={path}"),
                ],
                vec!["-global".to_owned(), format!("vfio-pci.sysfsdev={path}")],
                vec!["-device".to_owned(), format!(
                "{{\"driver\":\"vfio-pci\",\"sysfsdev\":\"/sys/devices/pci0000:3a/{uuid}\"}}"
            ).replace('"', "&quot;")],
            ]
        {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            assert_eq!(of("", &arguments), [HostDevice::Mediated(uuid.into())], "{arguments:?}");
        }
        // A UUID alone is that of the guest.
        assert_eq!(of("", &["-uuid", uuid]), []);
    }
}
