//! The file of a recorded host: versioned JSON around [`Parts`].

use super::{NumaNode, Parts, Topology, TopologyError};
use crate::memsize::MemSize;
use serde::{Deserialize, Serialize};

/// The `format` that the file must name.
pub const FORMAT: &str = "gpuvm-host";
/// The version that this program writes, and the newest that it reads.
pub const VERSION: u32 = 1;

/// The whole file.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct HostFile {
    /// [`FORMAT`].
    format: String,
    /// [`VERSION`].
    version: u32,
    /// Source of the facts of a host that was not recorded, for people; not parsed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    sources: Vec<String>,
    /// The host.
    host: Parts,
}

/// The JSON Schema of a recorded host, as [`to_json`] writes it.
#[cfg(feature = "schema")]
pub fn schema(generator: schemars::SchemaGenerator) -> schemars::Schema {
    generator.into_root_schema_for::<HostFile>()
}

/// The header, read where the file as a whole cannot be, so that a newer version is reported as
/// such rather than as an unknown field.
#[derive(Deserialize)]
struct Header {
    /// [`FORMAT`].
    format: Option<String>,
    /// [`VERSION`].
    version: Option<u32>,
}

/// The error of a text that is not a recorded host.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "record-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum FileError {
    /// Not JSON, or a field is missing, unknown or of the wrong kind. The source has line and
    /// column.
    #[error("not a recorded host: {source}")]
    Json {
        #[from]
        source: serde_json::Error,
    },
    /// JSON of another kind.
    #[error("`format` is {found}, not `{FORMAT}`")]
    Format { found: String },
    /// A version that this program does not know.
    #[error("host file version {found} is not supported; this program reads version {VERSION}")]
    Version { found: u32 },
    /// A string too long for any host: tables and searches would take forever.
    #[error(
        "line {line}, column {column}: a string of {bytes} bytes, more than the limit of \
         {MOST_STRING}"
    )]
    #[strum(to_string = "string-length")]
    Long { line: usize, column: usize, bytes: usize },
    /// The data contradicts itself.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    Topology(#[from] TopologyError),
}

/// Reads a recorded host.
pub fn from_json(text: &str) -> Result<Topology, FileError> {
    if let Some((line, column, bytes)) = long_string(text) {
        return Err(FileError::Long { line, column, bytes });
    }
    let read = serde_json::from_str::<HostFile>(text);
    let file = match read {
        Ok(file) if file.format == FORMAT && file.version == VERSION => file,
        other => {
            check_header(text)?;
            other?
        }
    };
    memory_is_possible(&file.host.nodes)?;
    Ok(Topology::new(file.host)?)
}

/// The most memory that a CPU addresses, 4 PiB: both x86-64 and arm64 have at most 52 physical
/// address bits (Linux: `MAX_PHYSMEM_BITS`).
const MOST_MEMORY: MemSize = MemSize::from_kib(1 << 42);

/// Checks amounts of memory. Only a file is judged: discovery reads numbers that change meanwhile.
fn memory_is_possible(nodes: &[NumaNode]) -> Result<(), TopologyError> {
    for node in nodes {
        let contradiction = |reason: String| {
            let id = node.os_index.to_string();
            Err(TopologyError::Contradiction { kind: "node", id, reason })
        };
        if node.memory_kib > MOST_MEMORY {
            let most = MOST_MEMORY;
            return contradiction(format!(
                "{} KiB of memory, more than {most}",
                node.memory_kib.kib()
            ));
        }
        if let Some(pool) = node.huge_pages.iter().find(|pool| pool.free > pool.total) {
            return contradiction(format!(
                "{} of {} huge pages of {} are free",
                pool.free, pool.total, pool.page_kib
            ));
        }
    }
    Ok(())
}

/// Refuses a file of another format or version.
fn check_header(text: &str) -> Result<(), FileError> {
    let header: Header = serde_json::from_str(text)?;
    match (header.format.as_deref(), header.version) {
        (Some(FORMAT), Some(VERSION)) => Ok(()),
        (Some(FORMAT), found) => Err(FileError::Version { found: found.unwrap_or(0) }),
        (found, _) => {
            let found = found.map_or("missing".into(), |f| format!("`{f}`"));
            Err(FileError::Format { found })
        }
    }
}

/// The longest string in a record, in bytes, also for discovered data; the pcpu lists of the
/// largest machines have some thousand.
pub const MOST_STRING: usize = 64 << 10;

/// Returns line and column, from 1, and the length of the first string that is too long for a host.
/// An escape counts as the character that it stands for, as in the limits of discovery.
fn long_string(text: &str) -> Option<(usize, usize, usize)> {
    let bytes = text.as_bytes();
    // A quick check: without escapes every quote delimits a string, so if each part has enough
    // quotes no string is too long.
    let mut parts = bytes.chunks_exact(MOST_STRING / 2);
    if !bytes.contains(&b'\\') && parts.all(|part| part.contains(&b'"')) {
        return None;
    }
    let mut at = 0;
    while let Some(open) = bytes[at..].iter().position(|byte| *byte == b'"').map(|n| at + n) {
        let (mut end, mut length) = (open + 1, 0);
        while bytes.get(end).is_some_and(|byte| *byte != b'"') {
            let (step, counts) = match &bytes[end..] {
                [b'\\', b'u', b'0', b'0', ..] => (6, 1),
                [b'\\', b'u', ..] => (6, 3),
                [b'\\', ..] => (2, 1),
                _ => (1, 1),
            };
            end += step;
            length += counts;
        }
        if length > MOST_STRING {
            let before = &text[..open];
            let line = before.matches('\n').count() + 1;
            let column = open - before.rfind('\n').map_or(0, |at| at + 1) + 1;
            return Some((line, column, length));
        }
        at = (end + 1).min(bytes.len());
    }
    None
}

/// Writes a host for a file; ends with a newline.
pub fn to_json(topology: &Topology) -> String {
    to_json_with(topology, Vec::new())
}

/// Writes a host for a file, with the sources of its facts.
pub fn to_json_with(topology: &Topology, sources: Vec<String>) -> String {
    let host = topology.parts().clone();
    let file = HostFile { format: FORMAT.into(), version: VERSION, sources, host };
    let mut text = serde_json::to_string_pretty(&file).expect("a host has no map with odd keys");
    text.push('\n');
    text
}
