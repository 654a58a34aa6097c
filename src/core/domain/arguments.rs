//! What QEMU's own arguments (`<qemu:commandline>`) and overrides (`<qemu:override>`) give to a
//! guest: PCI functions and files of the host. libvirt passes them on unread, so a guest can have a
//! GPU of which its `<devices>` say nothing. Read as QEMU reads them; what names a function only
//! together with something outside the definition is reported, never guessed.

use super::Element;
use super::overrides::of_qemu;
use super::read::{At, Fault, GuestAddress, Spot, short};
use crate::bdf::Bdf;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The start of a drive's name that QEMU's own NVMe driver opens: `nvme://0000:44:00.0/1`.
const NVME: &str = "nvme://";
/// The start of a file name that is a description in JSON.
const JSON: &str = "json:";
/// The options whose files may be images with a backing file.
const IMAGES: [&str; 7] = ["drive", "blockdev", "hda", "hdb", "hdc", "hdd", "cdrom"];
/// The properties by which a passed-through device names its function; where it has several, QEMU
/// takes the first of these.
const NAMING: [&str; 4] = ["sysfsdev", "host", "hostaddr", "fd"];
/// QEMU's devices that are functions of the host, besides `vfio-pci` and its variants: those of
/// older versions, and Xen's.
const PASSED: [&str; 3] = ["pci-assign", "kvm-pci-assign", "xen-pci-passthrough"];
/// The block driver of libblkio that has a virtio-blk function by VFIO (QAPI
/// `BlockdevOptionsVirtioBlkVfioPci`).
const BLOCK_BY_VFIO: &str = "virtio-blk-vfio-pci";
/// Where sysfs has PCI functions: by address, and by their place in the tree.
const SYSFS: [&str; 2] = ["/sys/bus/pci/devices/", "/sys/devices/pci"];

/// A part of the host that a setting passes to the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// A PCI function.
    Function(Bdf),
    /// A mediated device, by UUID.
    Mediated(String),
}

/// A host resource named by a text, or the reason it cannot be determined.
type Named = Result<Part, Unread>;

/// The reason a function cannot be determined from a definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// The reason, with the setting.
    pub message: String,
    /// The path in sysfs that leads to the function, if one does: its host can follow it.
    pub link: Option<String>,
}

impl From<String> for Unread {
    fn from(message: String) -> Unread {
        Unread { message, link: None }
    }
}

/// The files and devices named by the arguments and overrides of a domain.
#[derive(Debug, Default)]
pub struct Arguments<'t> {
    /// PCI functions of the host, in document order.
    pub functions: Vec<At<'t, Bdf>>,
    /// Mediated devices, by UUID in lower case, in document order.
    pub mediated: Vec<At<'t, String>>,
    /// Settings that may name a function that cannot be determined from the definition.
    pub unread: Vec<Fault<'t>>,
    /// Those of them that name a path in sysfs.
    pub links: Vec<Unread>,
}

impl<'t> Arguments<'t> {
    /// Reads those of a domain.
    pub fn read(root: Element<'t>) -> Arguments<'t> {
        let mut found = Arguments::default();
        let elements: Vec<Element<'t>> = arguments(root).collect();
        let values: Vec<String> = elements.iter().map(|arg| value_of(*arg)).collect();
        for (at, named) in functions(&values) {
            found.add(elements[at], named);
        }
        for property in properties(root) {
            let name = property.attr("name").unwrap_or_default();
            let value = property.attr("value").filter(|_| NAMING.contains(&&*name));
            if let Some(value) = value {
                found.add(property, setting(&name, &value));
            }
        }
        found
    }

    fn add(&mut self, element: Element<'t>, named: Named) {
        let spot = Spot::attribute(element, "value");
        match named {
            Ok(Part::Function(value)) => self.functions.push(At { value, spot }),
            Ok(Part::Mediated(value)) => self.mediated.push(At { value, spot }),
            Err(unread) => {
                self.unread.push(Fault { spot, message: unread.message.clone() });
                self.links.extend(Some(unread).filter(|unread| unread.link.is_some()));
            }
        }
    }
}

/// The elements of QEMU's arguments, in order.
fn arguments(root: Element<'_>) -> impl Iterator<Item = Element<'_>> {
    let is = |element: &Element<'_>, name: &str| local(element.name()) == name;
    let lines = of_qemu(root).filter(move |line| is(line, "commandline"));
    lines.flat_map(of_qemu).filter(move |arg| is(arg, "arg"))
}

/// The properties that replace those of libvirt's devices.
fn properties(root: Element<'_>) -> impl Iterator<Item = Element<'_>> {
    let overrides = of_qemu(root).filter(|all| local(all.name()) == "override");
    overrides.flat_map(of_qemu).flat_map(of_qemu).flat_map(of_qemu)
}

fn local(name: &str) -> &str {
    name.rsplit(':').next().unwrap_or(name)
}

fn value_of(argument: Element<'_>) -> String {
    argument.attr("value").unwrap_or_default().into_owned()
}

/// Returns every path of a file in the arguments of a domain, whatever option names it, and whether
/// it may be an image with a backing file. libvirt starts QEMU in `/`, where relative ones begin.
pub fn paths(root: Element<'_>) -> BTreeMap<String, bool> {
    let mut found = BTreeMap::new();
    let values: Vec<String> = arguments(root).map(value_of).collect();
    for (at, argument) in values.iter().enumerate() {
        let option = at.checked_sub(1).and_then(|before| values[before].strip_prefix('-'));
        // A first argument without an option is a drive.
        let is_image = option.is_none_or(|name| IMAGES.contains(&name.trim_start_matches('-')));
        let names_file = |name: &str| FILES.iter().any(|file| name.ends_with(file));
        let values =
            pairs(argument, "").into_iter().map(|(name, value)| (names_file(&name), value));
        let is_whole = argument.starts_with('/') || !argument.contains('=');
        let whole = is_whole.then(|| (is_image, argument.clone()));
        for (is_file, value) in values.chain(whole) {
            for path in paths_of(&value, is_file) {
                *found.entry(path).or_default() |= is_image;
            }
        }
    }
    found
}

/// The endings of QEMU's settings that name a file of the host, whatever their option.
const FILES: [&str; 6] = ["file", "filename", "path", "image", "config", "dev"];

/// Returns the paths that a value names. QEMU's protocols (`file:`, `fat:rw:`,
/// `blkdebug:CONFIG:IMAGE`) stand before them; `is_file`: the setting names a file, so that a mere
/// name is one, too.
fn paths_of(value: &str, is_file: bool) -> Vec<String> {
    if value.contains("://") && !value.starts_with("file://") || value.starts_with(['{', '"']) {
        return Vec::new();
    }
    let parts: Vec<&str> = value.split(':').filter(|part| !part.is_empty()).collect();
    let path = |part: &&str| {
        let below = part.trim_start_matches('/');
        let is_relative = is_file && (parts.len() == 1 || part.contains('/'));
        let is_relative =
            is_relative && !part.starts_with(['-', '{']) && !part.contains(['=', ',']);
        let is_path = ["/", "dev/", "./", "../"].iter().any(|begin| part.starts_with(begin));
        ((is_path || is_relative) && !below.is_empty())
            .then(|| format!("/{}", below.strip_prefix("./").unwrap_or(below)))
    };
    let each = parts.iter().filter_map(path);
    // A path may have colons of its own.
    let whole = Some(value).filter(|whole| whole.starts_with('/') && parts.len() > 1);
    each.chain(whole.map(str::to_owned)).collect()
}

/// Returns the arguments that may name files which the definition does not show: a file of
/// settings, or invalid JSON.
pub fn hidden(root: Element<'_>) -> Vec<String> {
    let values: Vec<String> = arguments(root).map(value_of).collect();
    let is_hidden = |at: usize| {
        let (_, name, value) = option(&values, at)?;
        let is_broken = || value.starts_with('{') && pairs(value, "").is_empty();
        (name == "readconfig" || is_broken()).then(|| format!("-{name} {}", short(value)))
    };
    (0..values.len()).filter_map(is_hidden).collect()
}

/// Whether an argument of QEMU names the firmware.
pub fn names_firmware(root: Element<'_>) -> bool {
    arguments(root)
        .map(value_of)
        .any(|value| value.trim_start_matches('-') == "bios" || value.contains("pflash"))
}

/// Returns the settings of the devices of a kind that arguments of QEMU add.
pub fn devices<'t>(root: Element<'t>, driver: &str) -> Vec<At<'t, BTreeMap<String, String>>> {
    let elements: Vec<Element<'t>> = arguments(root).collect();
    let values: Vec<String> = elements.iter().map(|arg| value_of(*arg)).collect();
    let read = |at| {
        let (of, "device", value) = option(&values, at)? else { return None };
        let settings: BTreeMap<String, String> = pairs(value, "driver").into_iter().collect();
        let is_its = settings.get("driver").is_some_and(|name| name == driver);
        is_its.then(|| At { value: settings, spot: Spot::attribute(elements[of], "value") })
    };
    (0..values.len()).filter_map(read).collect()
}

/// Returns the places that arguments give to devices of their own: `-device x,bus=pcie.0,addr=0x2`.
pub fn guest_places(root: Element<'_>) -> Vec<At<'_, GuestAddress>> {
    let elements: Vec<Element<'_>> = arguments(root).collect();
    let values: Vec<String> = elements.iter().map(|arg| value_of(*arg)).collect();
    let mut found = Vec::new();
    for at in 0..values.len() {
        let Some((of, "device", value)) = option(&values, at) else { continue };
        if let Some(value) = place_of(value) {
            found.push(At { value, spot: Spot::attribute(elements[of], "value") });
        }
    }
    found
}

/// The place that a device is given, on a bus that libvirt names: its root bus, or `pci.N` of
/// controller N.
fn place_of(device: &str) -> Option<GuestAddress> {
    let settings: BTreeMap<String, String> = pairs(device, "driver").into_iter().collect();
    let controller = match settings.get("bus")?.as_str() {
        "pcie.0" | "pci.0" => 0,
        bus => bus.strip_prefix("pci.")?.parse().ok()?,
    };
    // QEMU reads both parts in base 16 (`set_pci_devfn` in hw/core/qdev-properties.c).
    let addr = settings.get("addr")?;
    let (slot, function) = addr.split_once('.').unwrap_or((addr, "0"));
    let (slot, function) = (c_unsigned(slot, 16)?, c_unsigned(function, 16)?);
    Some(GuestAddress { segment: 0, controller, slot, function })
}

/// Options of QEMU that override an element of the definition: the option, and the element.
const SAID_TWICE: [(&str, &str); 3] = [("cpu", "<cpu>"), ("smp", "<vcpu>"), ("m", "<memory>")];

/// An argument of QEMU that replaces the setting of an element of the definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacing {
    /// The option, without its dash.
    pub option: &'static str,
    /// The element.
    pub element: &'static str,
    /// Its value.
    pub value: String,
}

/// Returns the arguments that replace settings of elements of the definition, in document order.
pub fn replacing(root: Element<'_>) -> Vec<At<'_, Replacing>> {
    let elements: Vec<Element<'_>> = arguments(root).collect();
    let values: Vec<String> = elements.iter().map(|arg| value_of(*arg)).collect();
    let read = |at| {
        let (of, name, value) = option(&values, at)?;
        let (option, element) = SAID_TWICE.into_iter().find(|(option, _)| *option == name)?;
        let value = Replacing { option, element, value: short(value) };
        Some(At { value, spot: Spot::attribute(elements[of], "value") })
    };
    (0..values.len()).filter_map(read).collect()
}

/// Whether a domain is of macOS: by its entry of libosinfo, or by the device that macOS asks for.
pub fn is_macos(root: Element<'_>) -> bool {
    let metadata = root.child("metadata").into_iter().flat_map(Element::elements);
    let of = metadata.flat_map(Element::elements).filter_map(|os| os.attr("id"));
    let mut systems = of.filter(|id| id.contains("apple.com"));
    systems.next().is_some() || arguments(root).any(|arg| value_of(arg).contains("isa-applesmc"))
}

/// Returns the character devices of the vDPA NICs of a domain.
pub fn vdpa_nodes(root: Element<'_>) -> Vec<String> {
    let devices = root.child("devices").into_iter();
    let nics = devices.flat_map(|devices| devices.children("interface"));
    let nics = nics.filter(|nic| nic.attr("type").is_some_and(|kind| kind == "vdpa"));
    nics.filter_map(|nic| Some(nic.child("source")?.attr("dev")?.into_owned())).collect()
}

/// Returns the functions that arguments of QEMU name, each with the index of its argument.
fn functions(arguments: &[String]) -> Vec<(usize, Named)> {
    let mut found = Vec::new();
    // The drivers of devices with an id, which `-set` may name, and may be the one to choose.
    let mut drivers = set_drivers(arguments);
    for (at, argument) in arguments.iter().enumerate() {
        let named = drives(argument).into_iter().chain(in_sysfs(argument));
        found.extend(named.map(|bdf| (at, Ok(Part::Function(bdf)))));
        if argument.starts_with(JSON) {
            found.extend(block(argument).into_iter().map(|named| (at, named)));
        }
        let Some((at, option, value)) = option(arguments, at) else { continue };
        let named = match option {
            "device" => device(value, &mut drivers),
            "set" => set(value, &drivers),
            "global" => global(value),
            "drive" | "blockdev" => block(value),
            "pcidevice" => assigned(value),
            "readconfig" => vec![Err(format!("file `{value}` may name devices").into())],
            _ => continue,
        };
        found.extend(named.into_iter().map(|named| (at, named)));
    }
    found.sort_by_key(|(at, _)| *at);
    found
}

/// Returns the option that begins at an argument, without its dashes, and its value with its index.
/// The value of one option may look like another option: both are read, since nothing that may be
/// a device must be missed.
fn option(arguments: &[String], at: usize) -> Option<(usize, &str, &str)> {
    let name = arguments[at].strip_prefix('-')?;
    let name = name.strip_prefix('-').unwrap_or(name);
    if let Some((name, value)) = name.split_once('=') {
        return Some((at, name, value));
    }
    Some((at + 1, name, arguments.get(at + 1)?))
}

/// Reads `vfio-pci,host=01:00.0,id=x`, or the same in JSON.
fn device(text: &str, drivers: &mut BTreeMap<String, String>) -> Vec<Named> {
    let settings = pairs(text, "driver");
    let last = |name: &str| {
        let mut of_name = settings.iter().rev().filter(|(key, _)| key == name);
        of_name.next().map(|(_, value)| value.as_str())
    };
    let Some(driver) = last("driver") else {
        // Its letters may be written as numbers.
        let is_possible = text.starts_with('{');
        let unread = || Err(format!("`{}` cannot be parsed", short(text)).into());
        return is_possible.then(unread).into_iter().collect();
    };
    let set = last("id").and_then(|id| drivers.get(id)).filter(|driver| is_passed(driver));
    let is_set = set.is_some();
    if let (false, Some(id)) = (is_set, last("id")) {
        drivers.insert(id.to_owned(), driver.to_owned());
    }
    if !is_set && !is_passed(driver) {
        return Vec::new();
    }
    let named = NAMING.into_iter().find_map(|name| Some((name, last(name)?)));
    named.map(|(name, value)| setting(name, value)).into_iter().collect()
}

/// The drivers that `-set device.ID.driver=` gives to devices, by id; those that pass a function
/// count before all others.
fn set_drivers(arguments: &[String]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for at in 0..arguments.len() {
        let Some((_, "set", text)) = option(arguments, at) else { continue };
        let of_driver = text.strip_prefix("device.").and_then(|rest| rest.split_once(".driver="));
        if let Some((id, driver)) = of_driver.filter(|(_, driver)| is_passed(driver)) {
            found.insert(id.to_owned(), driver.to_owned());
        }
    }
    found
}

/// Reads `device.ID.host=01:00.0`.
fn set(text: &str, drivers: &BTreeMap<String, String>) -> Vec<Named> {
    let setting_of = || {
        let (group, rest) = text.split_once('.')?;
        let (id, rest) = rest.split_once('.')?;
        let (name, value) = rest.split_once('=')?;
        let is_other = drivers.get(id).is_some_and(|driver| !is_passed(driver));
        let is_naming = group == "device" && NAMING.contains(&name) && !is_other;
        is_naming.then(|| setting(name, value))
    };
    setting_of().into_iter().collect()
}

/// Reads `vfio-pci.host=01:00.0` or `driver=vfio-pci,property=host,value=01:00.0`.
fn global(text: &str) -> Vec<Named> {
    let short = text.split_once('=').and_then(|(name, value)| {
        let (driver, property) = name.split_once('.')?;
        Some((driver.to_owned(), property.to_owned(), value.to_owned()))
    });
    let long = || {
        let settings: BTreeMap<String, String> = pairs(text, "").into_iter().collect();
        let value = |name: &str| settings.get(name).cloned();
        Some((value("driver")?, value("property")?, value("value")?))
    };
    let Some((driver, property, value)) = short.or_else(long) else { return Vec::new() };
    let is_naming = is_passed(&driver) && NAMING.contains(&property.as_str());
    is_naming.then(|| setting(&property, &value)).into_iter().collect()
}

/// Reads the option of older versions: `host=01:00.0,dma=none`.
fn assigned(text: &str) -> Vec<Named> {
    let settings = pairs(text, "host");
    let host = settings.iter().rev().find(|(name, _)| name == "host");
    host.map(|(name, value)| setting(name, value)).into_iter().collect()
}

/// Reads the functions of drives that QEMU's own drivers have: `driver=nvme,device=..`, and links
/// in sysfs to one (`driver=virtio-blk-vfio-pci,path=..`).
fn block(text: &str) -> Vec<Named> {
    let text = text.strip_prefix(JSON).unwrap_or(text);
    let settings: BTreeMap<String, String> = pairs(text, "driver").into_iter().collect();
    let named = |(key, driver): (&String, &String)| {
        let above = key.strip_suffix("driver")?;
        let value = |name: &str| settings.get(&format!("{above}{name}"));
        match driver.as_str() {
            "nvme" => {
                let device = value("device")?;
                let function = device.parse().map(Part::Function);
                Some(function.map_err(|_| no_address("device", device)))
            }
            // `in_sysfs` finds paths that are not links.
            BLOCK_BY_VFIO => Some(sysfs("path", value("path")?)).filter(Result::is_err),
            _ => None,
        }
    };
    settings.iter().filter_map(named).collect()
}

/// The functions whose directory in sysfs, or a BAR in it, an argument names, such as
/// `memory-backend-file,mem-path=/sys/bus/pci/devices/0000:44:00.0/resource2`.
fn in_sysfs(argument: &str) -> BTreeSet<Bdf> {
    let function = |path: &str| {
        SYSFS.iter().find(|place| path.starts_with(**place))?;
        let (rest, last) = path.trim_end_matches('/').rsplit_once('/')?;
        let name = if last.starts_with("resource") { rest.rsplit('/').next()? } else { last };
        name.parse().ok()
    };
    // The reader of the option has these.
    let is_read = |name: &str| matches!(name.rsplit('.').next(), Some("sysfsdev" | "value"));
    let settings = pairs(argument, "").into_iter().filter(|(name, _)| !is_read(name));
    settings.filter_map(|(_, value)| function(&value)).collect()
}

/// The functions in names such as `nvme://0000:44:00.0/1`, wherever they are in an argument.
fn drives(argument: &str) -> BTreeSet<Bdf> {
    let after = argument.match_indices(NVME).map(|(at, _)| &argument[at + NVME.len()..]);
    after.filter_map(|rest| rest.split('/').next()?.parse().ok()).collect()
}

/// Whether a device of QEMU is a passed-through PCI function.
fn is_passed(driver: &str) -> bool {
    driver == "vfio-pci" || driver.starts_with("vfio-pci-") || PASSED.contains(&driver)
}

/// Returns the function, or the mediated device, that a property of a VFIO device names.
fn setting(name: &str, value: &str) -> Named {
    match name {
        "host" | "hostaddr" => {
            host_address(value).map(Part::Function).ok_or_else(|| no_address(name, value))
        }
        "sysfsdev" => sysfs(name, value),
        _ => Err(format!("`{name}={}` is a function opened by another", short(value)).into()),
    }
}

/// The reason an address is none.
fn no_address(name: &str, value: &str) -> Unread {
    format!("`{name}={}` is not a PCI address: QEMU does not start with it", short(value)).into()
}

/// Reads an address as QEMU does (`set_pci_host_devaddr` in hw/core/qdev-properties-system.c):
/// segment, bus and device by strtoul(3) in base 16, the function in base 10, the segment may be
/// left out.
fn host_address(text: &str) -> Option<Bdf> {
    let (rest, function) = text.rsplit_once('.')?;
    let fields: Vec<u32> =
        rest.split(':').map(|field| c_unsigned(field, 16)).collect::<Option<_>>()?;
    let (segment, bus, device) = match fields[..] {
        [bus, device] => (0, bus, device),
        [segment, bus, device] => (segment, bus, device),
        _ => return None,
    };
    let narrow = |value: u32| u8::try_from(value).ok();
    let function = narrow(c_unsigned(function, 10)?)?;
    Bdf::new(segment, narrow(bus)?, narrow(device)?, function).ok()
}

/// Reads a number as strtoul(3) does, where nothing may follow it.
fn c_unsigned(text: &str, radix: u32) -> Option<u32> {
    let text = text.trim_ascii_start();
    let text = text.strip_prefix('+').unwrap_or(text);
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let digits = hex.filter(|_| radix == 16).unwrap_or(text);
    let is_number = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix));
    if is_number { u32::from_str_radix(digits, radix).ok() } else { None }
}

/// Whether a word is the UUID of a mediated device.
pub fn is_uuid(word: &str) -> bool {
    word.len() == 36
        && word.split('-').map(str::len).eq([8, 4, 4, 4, 12])
        && word.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

/// Returns the function, or the mediated device, of a directory in sysfs that a property names. A
/// path outside sysfs is a link, which may have the name of another function.
fn sysfs(property: &str, path: &str) -> Named {
    let name = Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_there = path.starts_with("/sys/") && !path.contains("/../");
    if let (true, Ok(bdf)) = (is_there, name.parse()) {
        return Ok(Part::Function(bdf));
    }
    if is_there && is_uuid(name) {
        return Ok(Part::Mediated(name.to_lowercase()));
    }
    let message = format!("`{property}={}` is known to the host alone", short(path));
    Err(Unread { message, link: Some(path.to_owned()) })
}

/// Reads the settings of an option, in QEMU's own syntax or in JSON, whose nested names are joined
/// by dots. `implied`: the name of a first value without one. A name may occur more than once;
/// QEMU takes the last.
fn pairs(text: &str, implied: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    if text.starts_with('{') {
        flatten(text, "", &mut found);
        return found;
    }
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(['=', ',']).unwrap_or(rest.len());
        let (name, (value, after)) = match rest[end..].strip_prefix('=') {
            Some(value) => (&rest[..end], value_before_comma(value)),
            None if found.is_empty() => (implied, value_before_comma(rest)),
            None => (&rest[..end], ("on".to_owned(), value_before_comma(rest).1)),
        };
        if let Some(json) = value.strip_prefix(JSON) {
            flatten(json, &format!("{name}."), &mut found);
        }
        found.push((name.to_owned(), value));
        rest = after;
    }
    found
}

/// Returns the text up to a comma, and the rest; a doubled comma is one of the text.
fn value_before_comma(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut rest = text;
    while let Some((part, after)) = rest.split_once(',') {
        value += part;
        let Some(more) = after.strip_prefix(',') else { return (value, after) };
        value.push(',');
        rest = more;
    }
    (value + rest, "")
}

/// Adds the values of a document in JSON.
fn flatten(json: &str, above: &str, found: &mut Vec<(String, String)>) {
    // QEMU takes single quotes as well.
    let parsed = serde_json::from_str(json);
    let Ok(value) = parsed.or_else(|_| serde_json::from_str(&json.replace('\'', "\""))) else {
        return;
    };
    let mut open = vec![(above.to_owned(), value)];
    while let Some((name, value)) = open.pop() {
        match value {
            Value::Object(all) => {
                open.extend(all.into_iter().map(|(key, value)| (format!("{name}{key}."), value)));
            }
            Value::Array(all) => {
                let all = all.into_iter().enumerate();
                open.extend(all.map(|(nth, value)| (format!("{name}{nth}."), value)));
            }
            Value::String(text) => found.push((name.trim_end_matches('.').to_owned(), text)),
            other => found.push((name.trim_end_matches('.').to_owned(), other.to_string())),
        }
    }
}

#[cfg(test)]
mod tests;
