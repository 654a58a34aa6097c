//! Pictures of a host and its guests: an SVG, and an HTML page around it that answers a reviewer's
//! questions.
//!
//! [`Scene`] is the geometry, in integers; [`svg()`] draws it. Values in, text out: the same input
//! gives the same bytes. A guest's kind, place and isolation are determined elsewhere and only
//! shown here.

mod devices;
mod guests;
mod markup;
mod page;
mod palette;
mod scene;
mod svg;

pub use devices::{Device, Look};
pub use guests::{Guest, Role, Use};
pub use page::{Changed, Line, PAGE_MARK, Page, page};
pub use scene::{
    Arc, Area, Board, Bridge, BridgeKind, Cache, CoreBox, Entry, Item, MemoryBar, Mesh, NodeBox,
    Package, PartitionRow, Scene, Segment, Share, Sign, Slot, Spoke, Thread, Tile, WIDTH,
};

use crate::occupancy::{Held, Occupancy};
use crate::topology::Topology;

/// The host and the guests that are drawn.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The host.
    pub topology: &'a Topology,
    /// The occupancy.
    pub held: &'a Occupancy,
    /// Guests that are planned; each replaces the one of its name.
    pub planned: &'a [Held],
}

/// The first bytes of every picture: a file that begins with them is one of ours, and may be
/// replaced.
pub const SVG_MARK: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"gpuvm\"";

/// Draws a picture, as an SVG document that needs nothing else.
pub fn svg(subject: &Subject<'_>) -> String {
    svg::document(&Scene::of(subject), subject.topology)
}

#[cfg(test)]
mod tests;
