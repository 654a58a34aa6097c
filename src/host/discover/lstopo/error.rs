//! Errors of lstopo records; the same with hwloc and without.

use gpuvm_core::cpuset::MAX_ID;
use gpuvm_core::topology::TopologyError;

/// The error of a text that is not a usable lstopo record.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "lstopo-")]
pub enum LstopoError {
    /// Longer than any host's.
    #[error("lstopo record of {bytes} bytes; at most {most} are read")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        most: usize,
    },
    /// Nested deeper than any host's.
    #[error("elements nested more than {most} deep (line {line})")]
    TooDeep {
        /// Where.
        line: usize,
        /// The limit.
        most: usize,
    },
    /// Not well-formed.
    #[error("not well-formed XML (line {line}): {reason}")]
    Xml {
        /// Where.
        line: usize,
        /// The XML parser's error.
        reason: String,
    },
    /// Declares or uses entities.
    #[error(
        "document type with declarations, or an entity (line {line}), neither of which lstopo \
         writes"
    )]
    Doctype {
        /// Where.
        line: usize,
    },
    /// XML of another kind.
    #[error("not an lstopo record: {found} where `topology` belongs (line {line})")]
    NotLstopo {
        /// The element found.
        found: String,
        /// Where.
        line: usize,
    },
    /// A format that hwloc 2 does not read.
    #[error("lstopo record of format {version} (line {line}); formats 1 and 2 are read")]
    Version {
        /// The format.
        version: String,
        /// Where.
        line: usize,
    },
    /// A number out of range.
    #[error("{name}=\"{value}\" is out of range (line {line})")]
    Value {
        /// Attribute.
        name: String,
        /// The value, shortened.
        value: String,
        /// Where.
        line: usize,
    },
    /// An object that hwloc would mishandle.
    #[error("object {reason} (line {line})")]
    Object {
        /// In what way.
        reason: &'static str,
        /// Where.
        line: usize,
    },
    /// hwloc refuses it.
    #[error("hwloc does not accept the record: {reason}")]
    Hwloc {
        /// What hwloc says.
        reason: String,
    },
    /// An id above what a host can have.
    #[error("{kind} set of {owner} is unbounded or above {max}", max = MAX_ID)]
    Set {
        /// What the set holds.
        kind: &'static str,
        /// Whose set.
        owner: &'static str,
    },
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
