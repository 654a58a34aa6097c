//! Validates an lstopo XML before hwloc parses it: its form, format version, and the sizes and
//! depths that hwloc would trust. It does not know the meaning of the objects.

use super::LstopoError;
use gpuvm_core::cpuset::MAX_ID;
use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

/// The largest record accepted, in bytes; the largest known one is 1 MB.
const LONGEST: usize = 32 << 20;
/// The deepest nesting accepted; the deepest known record has 23 levels.
const DEEPEST: usize = 128;
/// The largest distance matrix accepted, in objects per side.
const MATRIX: u64 = 4096;

/// The sets of every object except I/O objects. hwloc does not check whether one is missing.
const SETS: [&str; 4] = ["cpuset", "complete_cpuset", "nodeset", "complete_nodeset"];

/// Refuses texts that are not lstopo records of a supported format, or that would mislead hwloc.
pub fn check(text: &str) -> Result<(), LstopoError> {
    if text.len() > LONGEST {
        return Err(LstopoError::TooLong { bytes: text.len(), most: LONGEST });
    }
    let mut reader = Reader::from_str(text);
    let mut depth = 0usize;
    let mut started = false;
    loop {
        let event = reader.read_event();
        let line = || line_of(text, reader.buffer_position());
        let event = event.map_err(|source| LstopoError::Xml {
            line: line_of(text, reader.error_position()),
            reason: source.to_string(),
        })?;
        match event {
            Event::Start(element) => {
                examine(&element, started, &line)?;
                started = true;
                depth += 1;
                if depth > DEEPEST {
                    return Err(LstopoError::TooDeep { line: line(), most: DEEPEST });
                }
            }
            Event::Empty(element) => {
                examine(&element, started, &line)?;
                started = true;
            }
            Event::End(_) => depth = depth.saturating_sub(1),
            Event::DocType(doctype) => {
                let words = doctype.xml10_content();
                if words.contains(['[', '<', '&', '%']) || started {
                    return Err(LstopoError::Doctype { line: line() });
                }
                let name = words.split_whitespace().next().unwrap_or_default();
                if name != "topology" {
                    let found = format!("document type `{name}`");
                    return Err(LstopoError::NotLstopo { found, line: line() });
                }
            }
            Event::GeneralRef(name) if !name.is_char_ref() && !known_entity(&name) => {
                return Err(LstopoError::Doctype { line: line() });
            }
            Event::Eof if started => return Ok(()),
            Event::Eof => {
                return Err(LstopoError::NotLstopo { found: "no element".into(), line: 1 });
            }
            _ => {}
        }
    }
}

/// Whether an entity is one of XML's own five.
fn known_entity(name: &str) -> bool {
    matches!(name, "amp" | "lt" | "gt" | "quot" | "apos")
}

/// Returns the line of a byte, from 1.
fn line_of(text: &str, position: u64) -> usize {
    let position = usize::try_from(position).unwrap_or(usize::MAX).min(text.len());
    text.as_bytes()[..position].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// Refuses an element that is the wrong root, or with numbers that hwloc would mishandle.
fn examine(
    element: &BytesStart<'_>,
    started: bool,
    line: &dyn Fn() -> usize,
) -> Result<(), LstopoError> {
    let name = element.name().as_ref().to_owned();
    let mut version = None;
    let mut kind = String::new();
    let (mut sets, mut bridge) = (0u8, false);
    for attribute in element.attributes() {
        let attribute = attribute
            .map_err(|source| LstopoError::Xml { line: line(), reason: source.to_string() })?;
        let key: &str = attribute.key.as_ref();
        let value = attribute
            .normalized_value(XmlVersion::Implicit1_0)
            .map_err(|source| LstopoError::Xml { line: line(), reason: source.to_string() })?;
        if name == "object" {
            if kind.is_empty() && key != "type" {
                return Err(LstopoError::Object { reason: "without its type first", line: line() });
            }
            bridge |= key == "bridge_type";
            sets |= SETS.iter().position(|set| *set == key).map_or(0, |bit| 1 << bit);
        }
        let most = match (name.as_str(), key) {
            ("topology", "version") => {
                version = Some(value.into_owned());
                continue;
            }
            ("object", "type") => {
                kind = value.into_owned();
                continue;
            }
            ("object", "os_index") if matches!(kind.as_str(), "PU" | "NUMANode") => {
                u64::from(MAX_ID)
            }
            ("object", "bridge_type") if !matches!(&*value, "0-1" | "1-1") => 0,
            ("page_type", "size") if value.trim_start_matches('0').is_empty() => 0,
            (_, "nbobjs" | "nbobj") => MATRIX,
            (_, "length") => LONGEST as u64,
            _ => continue,
        };
        if !value.trim().parse::<u64>().is_ok_and(|number| number <= most && most > 0) {
            let value = value.chars().take(40).collect();
            return Err(LstopoError::Value { name: key.to_owned(), value, line: line() });
        }
    }
    if name == "object" {
        let io = matches!(kind.as_str(), "PCIDev" | "Bridge" | "OSDev" | "Misc");
        // Format 1 has no node sets on hosts without NUMA.
        if !(if io { sets == 0 } else { matches!(sets, 0b1111 | 0b0011) }) {
            let reason = "without the sets that its type has";
            return Err(LstopoError::Object { reason, line: line() });
        }
        if kind == "Bridge" && !bridge {
            return Err(LstopoError::Object { reason: "without bridge_type", line: line() });
        }
    }
    if started { Ok(()) } else { root(&name, version.as_deref(), line) }
}

/// Refuses a first element that is no lstopo record's, or of a format that hwloc 2 does not read.
fn root(name: &str, version: Option<&str>, line: &dyn Fn() -> usize) -> Result<(), LstopoError> {
    match (name, version) {
        // Format 1 names no version.
        ("topology", None) => Ok(()),
        ("topology", Some(version)) if version.starts_with("1.") || version.starts_with("2.") => {
            Ok(())
        }
        ("topology", Some(version)) => {
            let version = version.chars().take(40).collect();
            Err(LstopoError::Version { version, line: line() })
        }
        _ => Err(LstopoError::NotLstopo { found: format!("element `{name}`"), line: line() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_hwloc_must_not_see() {
        let bomb = "<!DOCTYPE topology [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]>\
             <topology>&b;</topology>";
        let outside = "<!DOCTYPE topology [<!ENTITY x SYSTEM \"file:///etc/passwd\">]><topology/>";
        let deep = format!("<topology version=\"2.0\">{}", "<object type=\"Group\">".repeat(5000));
        let object = |attributes: &str| {
            format!("<topology version=\"2.0\"><object {attributes}/></topology>")
        };
        for text in [
            String::new(),
            "host".into(),
            "{\"format\":\"gpuvm-host\"}".into(),
            "<domain type='kvm'/>".into(),
            bomb.into(),
            outside.into(),
            "<topology version=\"2.0\">&x;</topology>".into(),
            "<topology version=\"2.0\"><object></topology>".into(),
            "<topology version=\"2.0\" version=\"2.0\"/>".into(),
            "<topology version=\"3.0\"/>".into(),
            deep,
            object("type=\"PU\" os_index=\"4294967295\""),
            object("type=\"PU\" os_index=\"-1\""),
            object("type=\"Bridge\" bridge_type=\"0-0\""),
            object("type=\"Bridge\" depth=\"0\""),
            object("os_index=\"99999999\" type=\"PU\""),
            object("type=\"PU\" os_index=\"0\" cpuset=\"0x1\""),
            object("type=\"PCIDev\" cpuset=\"0x1\" complete_cpuset=\"0x1\""),
            "<topology><page_type size=\"0\" count=\"1\"/></topology>".into(),
            "<topology><distances2 nbobjs=\"65536\"/></topology>".into(),
        ] {
            assert!(check(&text).is_err(), "accepted: {}", &text[..text.len().min(120)]);
        }
    }

    #[test]
    fn names_the_line() {
        let text = "<?xml version=\"1.0\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n\
             <topology version=\"3.0\">";
        let error = check(text).unwrap_err();
        assert_eq!(
            error.to_string(),
            "lstopo record of format 3.0 (line 3); formats 1 and 2 are read"
        );
    }
}
