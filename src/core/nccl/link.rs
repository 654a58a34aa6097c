//! PCIe links as NCCL reads them. It compares the speed's text with those that Linux prints and
//! takes any other for 8 GT/s.

use crate::topology::Link;
use serde::Serialize;

/// The link of an element to the next one above it. Values that the host's record lacks are none,
/// and are not written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PcieLink {
    /// Speed of a lane, as sysfs writes it: `16.0 GT/s PCIe`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_speed: Option<&'static str>,
    /// Lanes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_width: Option<u8>,
}

/// Speeds that NCCL knows (src/graph/topo.h, `kvDictPciGen`), in units of 0.1 GT/s.
const SPEEDS: [(u32, &str); 6] = [
    (25, "2.5 GT/s PCIe"),
    (50, "5.0 GT/s PCIe"),
    (80, "8.0 GT/s PCIe"),
    (160, "16.0 GT/s PCIe"),
    (320, "32.0 GT/s PCIe"),
    (640, "64.0 GT/s PCIe"),
];

impl PcieLink {
    /// Makes the link as written for NCCL.
    pub fn new(link: &Link) -> PcieLink {
        let known = SPEEDS.iter().find(|(speed, _)| Some(*speed) == link.speed_dgts);
        PcieLink { link_speed: known.map(|(_, text)| *text), link_width: link.width }
    }

    /// Whether speed and width are known.
    pub fn is_known(self) -> bool {
        self.link_speed.is_some() && self.link_width.is_some()
    }
}

/// The best link between two ends: the best both support. A value unknown at one end is taken from
/// the other.
pub fn between(one: Option<&Link>, other: Option<&Link>) -> Link {
    fn lesser<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
        one.into_iter().chain(other).min()
    }
    let ends = |part: fn(&Link) -> Option<u32>| lesser(one.and_then(part), other.and_then(part));
    Link {
        speed_dgts: ends(|link| link.speed_dgts),
        width: ends(|link| link.width.map(u32::from)).and_then(|lanes| u8::try_from(lanes).ok()),
    }
}

/// Returns the slowest known link of a path.
pub fn slowest(links: impl IntoIterator<Item = Link>) -> Link {
    let rate = |link: &Link| Some(link.speed_dgts? * u32::from(link.width?));
    let unknown = Link { speed_dgts: None, width: None };
    // A partly known link is used only if no other is known.
    links.into_iter().fold(unknown, |least, link| match (rate(&least), rate(&link)) {
        (Some(before), Some(now)) if now < before => link,
        (None, Some(_)) => link,
        (None, None) if least == Link { speed_dgts: None, width: None } => link,
        _ => least,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link of this speed and width, 0 for unknown.
    fn link(speed: u32, width: u8) -> Link {
        Link {
            speed_dgts: Some(speed).filter(|speed| *speed > 0),
            width: Some(width).filter(|width| *width > 0),
        }
    }

    #[test]
    fn unknown_values_are_left_out() {
        let read = |speed, width| PcieLink::new(&link(speed, width));
        assert_eq!(read(0, 0), PcieLink::default());
        assert_eq!(read(1280, 16), PcieLink { link_speed: None, link_width: Some(16) });
        assert!(!read(160, 0).is_known() && read(25, 1).is_known());
        assert_eq!(read(320, 8).link_speed, Some("32.0 GT/s PCIe"));
    }

    #[test]
    fn a_link_is_what_both_ends_can_have() {
        let between = |one: Link, other: Link| between(Some(&one), Some(&other));
        assert_eq!(between(link(160, 16), link(80, 16)), link(80, 16));
        assert_eq!(between(link(160, 8), link(80, 16)), link(80, 8));
        assert_eq!(between(link(0, 0), link(80, 16)), link(80, 16));
        assert_eq!(between(link(0, 0), link(0, 0)), link(0, 0));
        assert_eq!(super::between(None, Some(&link(25, 1))), link(25, 1));
    }

    #[test]
    fn the_slowest_link_is_that_of_the_least_rate() {
        assert_eq!(slowest([]), link(0, 0));
        // 16 lanes of 8 GT/s carry as much as 8 of 16; 2 of 32 GT/s less.
        assert_eq!(slowest([link(80, 16), link(160, 8)]), link(80, 16));
        assert_eq!(slowest([link(80, 16), link(320, 2), link(160, 16)]), link(320, 2));
        assert_eq!(slowest([link(0, 16), link(80, 16), link(0, 0)]), link(80, 16));
        assert_eq!(slowest([link(0, 0), link(0, 16)]), link(0, 16));
    }
}
