//! The file of a recorded host: versioned JSON around [`Parts`].

use super::{Parts, Topology, TopologyError};
use serde::{Deserialize, Serialize};

/// The `format` that the file must name.
pub const FORMAT: &str = "gpuvm-host";
/// The version that this program writes, and the newest that it reads.
pub const VERSION: u32 = 1;

/// Is the whole file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostFile {
    /// [`FORMAT`].
    format: String,
    /// [`VERSION`].
    version: u32,
    /// The host.
    host: Parts,
}

/// Is read first, so that a newer version is named as such and not as an unknown field.
#[derive(Deserialize)]
struct Header {
    /// [`FORMAT`].
    format: Option<String>,
    /// [`VERSION`].
    version: Option<u32>,
}

/// Says why a text is no recorded host.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Not JSON, or a field is missing, unknown or of the wrong kind. The source names line and column.
    #[error("not a recorded host: {source}")]
    Json {
        /// What the JSON reader says.
        #[from]
        source: serde_json::Error,
    },
    /// JSON of another kind.
    #[error("`format` is {found}, not `{FORMAT}`")]
    Format {
        /// What stands there.
        found: String,
    },
    /// A version that this program does not know.
    #[error("version {found} of the host file is not known; this program reads version {VERSION}")]
    Version {
        /// The version.
        found: u32,
    },
    /// The data contradicts itself.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

/// Reads a recorded host.
pub fn from_json(text: &str) -> Result<Topology, FileError> {
    let header: Header = serde_json::from_str(text)?;
    match (header.format.as_deref(), header.version) {
        (Some(FORMAT), Some(VERSION)) => {}
        (Some(FORMAT), Some(found)) => return Err(FileError::Version { found }),
        (Some(FORMAT), None) => return Err(FileError::Version { found: 0 }),
        (found, _) => {
            let found = found.map_or("missing".into(), |f| format!("`{f}`"));
            return Err(FileError::Format { found });
        }
    }
    let file: HostFile = serde_json::from_str(text)?;
    Ok(Topology::new(file.host)?)
}

/// Writes a host for a file; ends with a newline.
pub fn to_json(topology: &Topology) -> String {
    let file = HostFile { format: FORMAT.into(), version: VERSION, host: topology.parts().clone() };
    let mut text = serde_json::to_string_pretty(&file).expect("a host has no map with odd keys");
    text.push('\n');
    text
}
