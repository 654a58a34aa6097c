//! Reads values from a domain's XML, each with its place. Knows libvirt's spellings of numbers,
//! sets, sizes and PCI addresses, but not the purpose of a value. A value that cannot be parsed
//! becomes a [`Fault`], never a panic and never a guess.

use super::Element;
use crate::bdf::Bdf;
use crate::cpuset::{Id, IdSet};
use crate::memsize::MemSize;
use std::ops::Deref;

/// A place in a domain's XML. Path and line are computed only on demand.
#[derive(Debug, Clone, Copy)]
pub struct Spot<'t> {
    element: Element<'t>,
    /// The attribute; `None` for the element itself.
    attribute: Option<&'static str>,
}

impl<'t> Spot<'t> {
    /// The place of an element.
    pub fn of(element: Element<'t>) -> Spot<'t> {
        Spot { element, attribute: None }
    }

    /// The place of an attribute of an element.
    pub fn attribute(element: Element<'t>, name: &'static str) -> Spot<'t> {
        Spot { element, attribute: Some(name) }
    }

    /// Returns the element, or the attribute's element.
    pub fn element(self) -> Element<'t> {
        self.element
    }

    /// Path of the element or attribute: `/domain/cputune/vcpupin[3]/@cpuset`.
    pub fn path(self) -> String {
        match self.attribute {
            Some(name) => format!("/{}/@{name}", self.element.path()),
            None => format!("/{}", self.element.path()),
        }
    }

    /// Line of the start tag, from 1.
    pub fn line(self) -> usize {
        self.element.line()
    }
}

/// A value with its place.
#[derive(Debug, Clone)]
pub struct At<'t, T> {
    /// The value.
    pub value: T,
    /// Its place.
    pub spot: Spot<'t>,
}

impl<T> Deref for At<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

/// A value that cannot be parsed.
#[derive(Debug, Clone)]
pub struct Fault<'t> {
    /// Its place.
    pub spot: Spot<'t>,
    /// The fault, including the value.
    pub message: String,
}

/// Collects faults while values are read.
#[derive(Debug, Default)]
pub struct Reader<'t> {
    /// Faults so far.
    pub faults: Vec<Fault<'t>>,
}

impl<'t> Reader<'t> {
    /// Notes a fault.
    pub fn fault(&mut self, spot: Spot<'t>, message: impl Into<String>) {
        self.faults.push(Fault { spot, message: message.into() });
    }

    /// Reads an attribute with `read`; none if it is absent or cannot be parsed.
    pub fn attribute<T>(
        &mut self,
        element: Element<'t>,
        name: &'static str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<At<'t, T>> {
        let text = element.attr(name)?;
        let spot = Spot::attribute(element, name);
        match read(&text) {
            Ok(value) => Some(At { value, spot }),
            Err(message) => {
                self.fault(spot, message);
                None
            }
        }
    }

    /// Reads an attribute that must be present.
    pub fn required<T>(
        &mut self,
        element: Element<'t>,
        name: &'static str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<At<'t, T>> {
        if element.attr(name).is_none() {
            self.fault(Spot::of(element), format!("attribute `{name}` is missing"));
        }
        self.attribute(element, name, read)
    }

    /// Reads an element's text with `read`.
    pub fn text<T>(
        &mut self,
        element: Element<'t>,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<At<'t, T>> {
        let spot = Spot::of(element);
        match read(element.text().trim()) {
            Ok(value) => Some(At { value, spot }),
            Err(message) => {
                self.fault(spot, message);
                None
            }
        }
    }

    /// Reads a size from an element's text, with the unit in its attribute `unit`.
    pub fn size(&mut self, element: Element<'t>) -> Option<At<'t, MemSize>> {
        let unit = element.attr("unit");
        self.text(element, |number| memory(number, unit.as_deref()))
    }

    /// Reads the `<address type='pci'>` of a device; none where libvirt chooses it.
    pub fn guest_address(&mut self, device: Element<'t>) -> Option<At<'t, GuestAddress>> {
        let pci = |address: &Element<'t>| address.attr("type").as_deref() == Some("pci");
        let address = device.children("address").find(pci)?;
        address.attr("bus")?;
        let [segment, controller, slot, function] = self.address_fields(address)?;
        let value = GuestAddress { segment, controller, slot, function };
        Some(At { value, spot: Spot::of(address) })
    }

    /// Reads the four fields of a PCI address; absent ones are 0.
    fn address_fields(&mut self, address: Element<'t>) -> Option<[u32; 4]> {
        let mut fields = [0u32; 4];
        for (field, name) in fields.iter_mut().zip(["domain", "bus", "slot", "function"]) {
            if address.attr(name).is_some() {
                *field = self.attribute(address, name, c_number)?.value;
            }
        }
        Some(fields)
    }

    /// Reads the host address from an `<address>` below `<source>`; absent fields are 0, as in
    /// libvirt.
    pub fn host_address(&mut self, address: Element<'t>) -> Option<At<'t, Bdf>> {
        let [segment, bus, device, function] = self.address_fields(address)?;
        let narrow = |field: &str, value: u32| {
            u8::try_from(value).map_err(|_| format!("PCI {field} {value:#x} is above 0xff"))
        };
        let bdf = narrow("bus", bus).and_then(|bus| {
            let (device, function) = (narrow("slot", device)?, narrow("function", function)?);
            Bdf::new(segment, bus, device, function).map_err(|e| e.to_string())
        });
        match bdf {
            Ok(value) => Some(At { value, spot: Spot::of(address) }),
            Err(message) => {
                self.fault(Spot::of(address), message);
                None
            }
        }
    }
}

/// A device's place in the guest's PCI tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuestAddress {
    /// PCI segment.
    pub segment: u32,
    /// Index of the PCI controller that it is connected to, not the bus number that the guest sees.
    pub controller: u32,
    /// Device.
    pub slot: u32,
    /// Function.
    pub function: u32,
}

impl std::fmt::Display for GuestAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let GuestAddress { segment, controller, slot, function } = self;
        write!(f, "{segment:04x}:{controller:02x}:{slot:02x}.{function:x}")
    }
}

/// Shortens a text for a message.
pub(super) fn short(text: &str) -> String {
    text.chars().take(60).collect()
}

/// Reads a decimal number.
pub fn number(text: &str) -> Result<u32, String> {
    let digits = text.trim();
    let good = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let value = if good { digits.parse().ok() } else { None };
    value.ok_or_else(|| format!("`{}` is not a number from 0 to {}", short(text), u32::MAX))
}

/// Reads a number as C does: `0x34` is hexadecimal, `010` octal. PCI addresses are written this
/// way.
pub fn c_number(text: &str) -> Result<u32, String> {
    let trimmed = text.trim();
    let (digits, radix) = match trimmed.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&trimmed[2..], 16),
        [b'0', _, ..] => (&trimmed[1..], 8),
        _ => (trimmed, 10),
    };
    let good = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_alphanumeric());
    let value = if good { u32::from_str_radix(digits, radix).ok() } else { None };
    value.ok_or_else(|| format!("`{}` is not a number such as 0x34", short(text)))
}

/// Reads a set that is not empty.
pub fn set<I: Id>(text: &str) -> Result<IdSet<I>, String> {
    let set: IdSet<I> = text.parse().map_err(|e: crate::cpuset::IdSetError| e.to_string())?;
    if set.is_empty() {
        return Err(format!("`{}` names no {}", short(text), I::KIND));
    }
    Ok(set)
}

/// Reads an amount of memory with libvirt's units: `b` and `bytes` are bytes, `KB` is 1000 and `K`
/// or `KiB` 1024 of them, and so on to `E`; no unit is KiB (libvirt's formatdomain, "Memory
/// Allocation"). Rounded up to KiB.
pub fn memory(text: &str, unit: Option<&str>) -> Result<MemSize, String> {
    let digits = text.trim();
    let good = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let number: u64 = if good { digits.parse().ok() } else { None }
        .ok_or_else(|| format!("`{}` is not an amount of memory", short(text)))?;
    let unit = unit.unwrap_or("KiB");
    let scale = unit_bytes(unit)
        .ok_or_else(|| format!("unit `{}` is not one such as b, KB, KiB, MiB, GiB", short(unit)))?;
    let kib = (u128::from(number) * scale).div_ceil(1024);
    match u64::try_from(kib) {
        Ok(kib) if kib < 1 << 53 => Ok(MemSize::from_kib(kib)),
        _ => Err(format!("{digits} {unit} is more memory than any machine has")),
    }
}

/// Returns the number of bytes in a unit.
fn unit_bytes(unit: &str) -> Option<u128> {
    let lower = unit.to_ascii_lowercase();
    if matches!(lower.as_str(), "b" | "byte" | "bytes") {
        return Some(1);
    }
    let mut letters = lower.chars();
    let power = "kmgtpe".find(letters.next()?)? as u32 + 1;
    match letters.as_str() {
        "" | "ib" => Some(1 << (10 * power)),
        "b" => Some(1000u128.pow(power)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpuset::CpuSet;

    #[test]
    fn refuses_invalid_numbers() {
        for text in ["", "-1", "+1", "1.0", "a", "4294967296", "0x", "1 2"] {
            assert!(number(text).is_err(), "{text:?}");
            assert!(c_number(text).is_err(), "{text:?}");
        }
        for text in ["0xg", "08", "0x+1", "ä", "0ä"] {
            assert!(c_number(text).is_err(), "{text:?}");
        }
        for text in ["", " ", ",", "^1", "1-", "0-999999"] {
            assert!(set::<crate::cpuset::PcpuId>(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn reads_numbers_as_c_does() {
        for (text, value) in [("0", 0), ("0x34", 0x34), ("0XfF", 255), ("010", 8), ("31", 31)] {
            assert_eq!(c_number(text).unwrap(), value, "{text}");
        }
        assert_eq!(set("0-3,^2").unwrap(), "0,1,3".parse::<CpuSet>().unwrap());
    }

    #[test]
    fn reads_the_units_of_libvirt() {
        for (number, unit, kib) in [
            ("1024", Some("b"), 1),
            ("1025", Some("bytes"), 2),
            ("1", Some("byte"), 1),
            ("4", None, 4),
            ("4", Some("k"), 4),
            ("4", Some("KiB"), 4),
            ("1024", Some("KB"), 1000),
            ("2", Some("M"), 2048),
            ("128", Some("MB"), 125_000),
            ("1", Some("GiB"), 1 << 20),
            ("1", Some("gb"), 976_563),
            ("1", Some("TiB"), 1 << 30),
            ("1", Some("PiB"), 1 << 40),
        ] {
            assert_eq!(memory(number, unit).unwrap().kib(), kib, "{number} {unit:?}");
        }
        for (number, unit) in [
            ("", None),
            ("-1", None),
            ("1.5", Some("GiB")),
            ("1", Some("")),
            ("1", Some("Kib ")),
            ("1", Some("x")),
            ("1", Some("KiBB")),
            ("1", Some("ä")),
            ("18446744073709551615", Some("EiB")),
            ("99999999999999999999", None),
        ] {
            assert!(memory(number, unit).is_err(), "{number} {unit:?}");
        }
    }

    #[test]
    fn an_amount_is_digits_alone() {
        assert_eq!(memory(" 5 ", None).unwrap().kib(), 5);
        for bad in ["+5", "-5", "", "5 5", "0x5"] {
            assert!(memory(bad, None).is_err(), "{bad}");
        }
    }
}
