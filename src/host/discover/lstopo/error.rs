//! Errors of lstopo records; the same with hwloc and without.

use gpuvm_core::cpuset::MAX_ID;
use gpuvm_core::topology::TopologyError;

/// The error of a text that is not a usable lstopo record.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "lstopo-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum LstopoError {
    /// Longer than any host's.
    #[error("lstopo record of {bytes} bytes; at most {most} are read")]
    TooLong { bytes: usize, most: usize },
    /// Nested deeper than any host's.
    #[error("elements nested more than {most} deep (line {line})")]
    TooDeep { line: usize, most: usize },
    /// Not well-formed.
    #[error("not well-formed XML (line {line}): {reason}")]
    Xml { line: usize, reason: String },
    /// Declares or uses entities.
    #[error(
        "document type with declarations, or an entity (line {line}), neither of which lstopo \
         writes"
    )]
    Doctype { line: usize },
    /// XML of another kind.
    #[error("not an lstopo record: {found} where `topology` belongs (line {line})")]
    NotLstopo { found: String, line: usize },
    /// A format that hwloc 2 does not read.
    #[error("lstopo record of format {version} (line {line}); formats 1 and 2 are read")]
    Version { version: String, line: usize },
    /// A number out of range.
    #[error("{name}=\"{value}\" is out of range (line {line})")]
    Value { name: String, value: String, line: usize },
    /// An object that hwloc would mishandle.
    #[error("object {reason} (line {line})")]
    Object { reason: &'static str, line: usize },
    /// hwloc refuses it.
    #[error("hwloc does not accept the record: {reason}")]
    Hwloc { reason: String },
    /// An id above a host's limit.
    #[error("{kind} set of {owner} is unbounded or above {max}", max = MAX_ID)]
    Set { kind: &'static str, owner: &'static str },
    /// The objects contradict each other.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    Topology(#[from] TopologyError),
    /// This build reads no such records.
    #[error(
        "this gpuvm was built without hwloc (cargo feature `hwloc`), which reads lstopo records"
    )]
    NoHwloc,
}
