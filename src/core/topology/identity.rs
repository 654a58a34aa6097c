//! Identities of PCI functions: what distinguishes a device from others of its model wherever it is
//! plugged in. An address only names a place: cards that are added or removed move it to another
//! device, and a board may have eight drives of one model.

use super::PciDevice;
use crate::bdf::Bdf;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use strum::{EnumString, IntoStaticStr};

/// The class of mass storage controllers.
pub const CLASS_STORAGE: u32 = 0x01;
/// The class of network controllers.
pub const CLASS_NETWORK: u32 = 0x02;
/// The longest value in bytes: serial numbers have 20 in NVMe, WWIDs of SCSI some more.
const LONGEST: usize = 128;
/// Words that firmware reports where it has no value.
const PLACEHOLDERS: [&str; 5] = ["n/a", "none", "unknown", "default string", "not specified"];

/// A kind of mark, the strongest first: the first one known both times decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, EnumString, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum MarkKind {
    /// Serial number of an NVMe controller.
    Serial,
    /// NGUID or EUI-64 of an NVMe namespace.
    Eui,
    /// UUID of a GPU.
    Uuid,
    /// Permanent MAC address of a NIC.
    Mac,
    /// Node GUID of an RDMA device.
    Guid,
    /// WWID of a drive behind a storage controller; a controller may have several.
    Wwid,
    /// PCI Device Serial Number (PCI Express Base Specification 7.9.3).
    Dsn,
    /// Model of a drive, for messages: it identifies nothing.
    Model,
    /// Which function of its card it is, `fn1`, or which virtual function, `vf3`: these share all
    /// other marks.
    Part,
}

impl MarkKind {
    fn name(self) -> &'static str {
        match self {
            MarkKind::Serial => "serial number",
            MarkKind::Eui => "EUI",
            MarkKind::Uuid => "UUID",
            MarkKind::Mac => "MAC address",
            MarkKind::Guid => "GUID",
            MarkKind::Wwid => "WWID",
            MarkKind::Dsn => "PCI serial number",
            MarkKind::Model => "model",
            MarkKind::Part => "function",
        }
    }

    /// Whether it distinguishes a device from others of its model.
    fn identifies(self) -> bool {
        !matches!(self, MarkKind::Model | MarkKind::Part)
    }
}

/// Whether the device at an address is the recorded one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Likeness {
    /// It reports the same identity.
    Same,
    /// It is another one.
    Other,
    /// Nothing that identifies it is known both times.
    Unproven,
}

/// The identity of a PCI function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DeviceIdentity {
    ids: (u16, u16),
    /// Vendor and device of the subsystem; `None` if written by a version that did not record it.
    subsystem: Option<(u16, u16)>,
    marks: Vec<(MarkKind, String)>,
}

impl DeviceIdentity {
    /// The identity of a function with these ids and no marks yet.
    pub fn new(ids: (u16, u16), subsystem: (u16, u16)) -> DeviceIdentity {
        DeviceIdentity { ids, subsystem: Some(subsystem), marks: Vec::new() }
    }

    /// The identity that a topology knows: the ids alone.
    pub fn of(device: &PciDevice) -> DeviceIdentity {
        let subsystem = (device.subsystem_vendor, device.subsystem_device);
        DeviceIdentity::new((device.vendor, device.device), subsystem)
    }

    /// Adds a mark, unless the value is one that firmware reports where it has none: empty, one
    /// character repeated, a placeholder.
    pub fn add(&mut self, kind: MarkKind, value: &str) {
        let value = value.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        let mut digits = value.chars().filter(|c| c.is_alphanumeric() || *c == '?');
        let is_repeated = digits.next().is_none_or(|first| digits.all(|c| c == first));
        let is_word = PLACEHOLDERS.iter().any(|word| value.eq_ignore_ascii_case(word));
        let is_good = !is_repeated && !is_word && !value.contains('?') && value.len() <= LONGEST;
        if is_good {
            self.marks.push((kind, value.to_owned()));
            self.marks.sort();
            self.marks.dedup();
        }
    }

    /// Adds the marks of another reading of the same function, where this one has none of the kind.
    pub fn complete(&mut self, other: &DeviceIdentity) {
        let has: Vec<MarkKind> = self.marks.iter().map(|(kind, _)| *kind).collect();
        let more = other.marks.iter().filter(|(kind, _)| !has.contains(kind));
        self.marks.extend(more.cloned());
        self.marks.sort();
    }

    /// Its values of a kind.
    pub fn values(&self, kind: MarkKind) -> impl Iterator<Item = &str> {
        self.marks.iter().filter(move |(of, _)| *of == kind).map(|(_, value)| value.as_str())
    }

    /// Whether anything distinguishes it from others of its model.
    pub fn is_marked(&self) -> bool {
        self.marks.iter().any(|(kind, _)| kind.identifies())
    }

    /// Whether a drive has reported it.
    pub fn is_of_drive(&self) -> bool {
        [MarkKind::Serial, MarkKind::Eui, MarkKind::Wwid]
            .iter()
            .any(|kind| self.values(*kind).next().is_some())
    }

    /// Whether its driver's marks are known, which are stronger than the PCI serial number.
    pub fn is_named(&self) -> bool {
        self.marks.iter().any(|(kind, _)| *kind < MarkKind::Dsn)
    }

    /// Vendor and device.
    pub fn vendor_and_device(&self) -> (u16, u16) {
        self.ids
    }

    /// Vendor and device, as module options have them: `10de:1db8`.
    pub fn ids(&self) -> String {
        format!("{:04x}:{:04x}", self.ids.0, self.ids.1)
    }

    /// Whether both have a value of a kind in common; `None` if not both have one.
    fn agrees(&self, now: &DeviceIdentity, kind: MarkKind) -> Option<bool> {
        let mut had = self.values(kind).peekable();
        if had.peek().is_none() || now.values(kind).next().is_none() {
            return None;
        }
        Some(had.any(|value| now.values(kind).any(|one| one == value)))
    }

    /// Whether it is the same drive by its serial number, with none of the recorded namespaces.
    pub fn has_other_namespaces(&self, now: &DeviceIdentity) -> bool {
        self.agrees(now, MarkKind::Serial) == Some(true)
            && self.agrees(now, MarkKind::Eui) == Some(false)
    }

    /// Compares this recorded identity with the present one.
    pub fn likeness(&self, now: &DeviceIdentity) -> Likeness {
        if self.ids != now.ids || self.agrees(now, MarkKind::Part) == Some(false) {
            return Likeness::Other;
        }
        // A serial number that another maker has given, too, or recreated namespaces.
        if self.has_other_namespaces(now) {
            return Likeness::Unproven;
        }
        for kind in [
            MarkKind::Serial,
            MarkKind::Eui,
            MarkKind::Uuid,
            MarkKind::Mac,
            MarkKind::Guid,
            MarkKind::Wwid,
            MarkKind::Dsn,
        ] {
            match self.agrees(now, kind) {
                None => {}
                Some(true) => return Likeness::Same,
                Some(false) => return Likeness::Other,
            }
        }
        match (self.subsystem, now.subsystem) {
            (Some(was), Some(now)) if was != now => Likeness::Other,
            _ => Likeness::Unproven,
        }
    }
}

/// Describes it in a message: model and strongest mark, or the ids.
impl fmt::Display for DeviceIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.values(MarkKind::Model).next() {
            // Firmware may report anything: no line of a message may be forged by it.
            Some(model) => write!(f, "{}", model.escape_debug())?,
            None => f.write_str(&self.ids())?,
        }
        match self.marks.iter().find(|(kind, _)| kind.identifies()) {
            Some((kind, value)) => write!(f, " with {} {}", kind.name(), value.escape_debug()),
            None => Ok(()),
        }
    }
}

/// A value as a word that systemd, a shell and XML take as it is: other bytes than letters, digits,
/// `.`, `_` and `-` become `+` and two digits.
fn encoded(value: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => char::from(byte).into(),
        _ => format!("+{byte:02X}"),
    };
    value.bytes().map(byte).collect()
}

fn decoded(word: &str) -> Option<String> {
    let mut parts = word.split('+');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (code, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(code, 16).ok()?);
        bytes.extend(rest.bytes());
    }
    String::from_utf8(bytes).ok()
}

impl From<DeviceIdentity> for String {
    /// Writes it as a word: `144d:a80a:144d:a801=serial:S6XNNA0T=model:SAMSUNG+20MZ`.
    fn from(identity: DeviceIdentity) -> String {
        let mut word = identity.ids();
        if let Some((vendor, device)) = identity.subsystem {
            word += &format!(":{vendor:04x}:{device:04x}");
        }
        for (kind, value) in &identity.marks {
            word += &format!("={}:{}", <&str>::from(kind), encoded(value));
        }
        word
    }
}

impl TryFrom<String> for DeviceIdentity {
    type Error = &'static str;
    fn try_from(word: String) -> Result<DeviceIdentity, &'static str> {
        word.parse()
    }
}

impl FromStr for DeviceIdentity {
    type Err = &'static str;
    fn from_str(word: &str) -> Result<DeviceIdentity, &'static str> {
        const WRONG: &str = "not ids of a function with its marks";
        let mut fields = word.split('=');
        let ids = fields.next().unwrap_or_default().split(':').map(|id| {
            let is_id = id.len() == 4 && id.bytes().all(|b| b.is_ascii_hexdigit());
            u16::from_str_radix(id, 16).ok().filter(|_| is_id).ok_or(WRONG)
        });
        let ids = ids.collect::<Result<Vec<u16>, _>>()?;
        let (ids, subsystem) = match ids[..] {
            [vendor, device] => ((vendor, device), None),
            [vendor, device, sub_vendor, sub_device] => {
                ((vendor, device), Some((sub_vendor, sub_device)))
            }
            _ => return Err(WRONG),
        };
        let mark = |field: &str| {
            let (kind, value) = field.split_once(':')?;
            Some((kind.parse().ok()?, decoded(value)?))
        };
        let marks = fields.map(|field| mark(field).ok_or(WRONG)).collect::<Result<Vec<_>, _>>()?;
        let mut identity = DeviceIdentity { ids, subsystem, marks: Vec::new() };
        marks.iter().for_each(|(kind, value)| identity.add(*kind, value));
        Ok(identity)
    }
}

/// A function with its identity when it was recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KnownDevice {
    /// Its address.
    pub bdf: Bdf,
    /// Its identity.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub identity: DeviceIdentity,
}

impl PciDevice {
    /// Whether it is bound at boot only once it has proven its identity, for which its own driver
    /// may have to read it: drives, controllers with drives, NICs.
    pub fn needs_proof(&self) -> bool {
        [CLASS_STORAGE, CLASS_NETWORK].contains(&(self.class >> 16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drive(marks: &[(MarkKind, &str)]) -> DeviceIdentity {
        let mut identity = DeviceIdentity::new((0x144d, 0xa80a), (0x144d, 0xa801));
        marks.iter().for_each(|(kind, value)| identity.add(*kind, value));
        identity
    }

    #[test]
    fn an_identity_survives_as_one_word_whatever_firmware_reports() {
        for serial in
            ["S6XNNA0T1", "a b  c", "%n%i$(reboot)`id`'\"\\", "x\ny", "=:+", "ä", "<&>", "*?~"]
        {
            let one = drive(&[(MarkKind::Serial, serial), (MarkKind::Model, "SAMSUNG MZ 3.84TB")]);
            let word = String::from(one.clone());
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-+:=".contains(c);
            assert!(word.chars().all(plain), "{word}");
            assert_eq!(word.parse::<DeviceIdentity>().unwrap(), one, "{serial}");
            assert!(!one.to_string().contains('\n'));
        }
    }

    #[test]
    fn a_value_that_names_nothing_is_no_mark() {
        let none = ["", "  ", "\0\0", "0000000000000000", "00:00:00:00:00:00", "ffff-ffff", "N/A"];
        for value in none.into_iter().chain(["GPU-????????-????", "00-00-00-00-00-00-00-00"]) {
            assert!(!drive(&[(MarkKind::Serial, value)]).is_marked(), "{value:?}");
        }
        assert!(!drive(&[(MarkKind::Model, "SAMSUNG")]).is_marked());
        assert!(drive(&[(MarkKind::Serial, "0000000000000001")]).is_marked());
        let long = "ab".repeat(LONGEST);
        assert!(!drive(&[(MarkKind::Serial, &long)]).is_marked());
    }

    #[test]
    fn the_strongest_mark_known_both_times_decides() {
        use MarkKind::{Dsn, Model, Serial, Wwid};
        let like =
            |was: &[(MarkKind, &str)], now: &[(MarkKind, &str)]| drive(was).likeness(&drive(now));
        assert_eq!(like(&[(Serial, "A1")], &[(Serial, "A1")]), Likeness::Same);
        assert_eq!(like(&[(Serial, "A1")], &[(Serial, "A2")]), Likeness::Other);
        // One serial number of the PCI function for all drives of a model proves nothing.
        let (was, now) = ([(Serial, "A1"), (Dsn, "12")], [(Serial, "A2"), (Dsn, "12")]);
        assert_eq!(like(&was, &now), Likeness::Other);
        assert_eq!(like(&was, &[(Dsn, "12")]), Likeness::Same);
        assert_eq!(like(&[(Serial, "A1")], &[(Dsn, "12")]), Likeness::Unproven);
        assert_eq!(like(&[(Model, "X1")], &[(Model, "X1")]), Likeness::Unproven);
        assert_eq!(like(&[(Wwid, "a1"), (Wwid, "a2")], &[(Wwid, "a2")]), Likeness::Same);
        let mut other = drive(&[(Serial, "A1")]);
        other.ids.1 = 1;
        assert_eq!(drive(&[(Serial, "A1")]).likeness(&other), Likeness::Other);
    }

    #[test]
    fn one_serial_number_with_other_namespaces_proves_nothing() {
        use MarkKind::{Eui, Serial};
        let like =
            |was: &[(MarkKind, &str)], now: &[(MarkKind, &str)]| drive(was).likeness(&drive(now));
        let was = [(Serial, "A1"), (Eui, "e1"), (Eui, "e2")];
        assert_eq!(like(&was, &[(Serial, "A1"), (Eui, "e2"), (Eui, "e3")]), Likeness::Same);
        assert_eq!(like(&was, &[(Serial, "A1"), (Eui, "e3")]), Likeness::Unproven);
        assert_eq!(like(&was, &[(Serial, "A2"), (Eui, "e3")]), Likeness::Other);
        assert_eq!(like(&was, &[(Serial, "A1")]), Likeness::Same);
    }

    #[test]
    fn functions_of_one_card_are_distinguished_by_their_place_on_it() {
        use MarkKind::{Dsn, Mac, Part};
        let like =
            |was: &[(MarkKind, &str)], now: &[(MarkKind, &str)]| drive(was).likeness(&drive(now));
        let port = [(Dsn, "12"), (Part, "fn1")];
        assert_eq!(like(&port, &[(Dsn, "12"), (Part, "fn1")]), Likeness::Same);
        assert_eq!(like(&port, &[(Dsn, "12"), (Part, "fn0")]), Likeness::Other);
        // An older version did not record it.
        assert_eq!(like(&[(Dsn, "12")], &port), Likeness::Same);
        let of_port = [(Mac, "52:54:00:00:00:01"), (Part, "vf2")];
        assert_eq!(like(&of_port, &[(Mac, "52:54:00:00:00:01"), (Part, "vf3")]), Likeness::Other);
        let bare = drive(&[(Part, "fn0")]);
        assert!(!bare.is_marked() && !bare.is_named());
        assert_eq!(bare.to_string(), "144d:a80a");
        assert_eq!(String::from(bare.clone()).parse(), Ok(bare));
    }

    #[test]
    fn files_of_older_versions_are_read() {
        let old: DeviceIdentity = "144d:a80a".parse().unwrap();
        assert_eq!((old.ids(), old.is_marked()), ("144d:a80a".to_owned(), false));
        assert_eq!(old.likeness(&drive(&[(MarkKind::Serial, "A1")])), Likeness::Unproven);
        for bad in ["", "144d", "144d:a80a:1", "144d:a80a=x", "144d:a80a=serial:+0", "+44d:a80a"] {
            assert!(bad.parse::<DeviceIdentity>().is_err(), "{bad}");
        }
    }
}
