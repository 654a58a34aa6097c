//! Parts of a plan that a platform cannot carry.

use serde::Serialize;
use std::fmt::Write as _;

/// A part of a plan that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, strum::IntoStaticStr)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum LostKind {
    /// Which pcpus and nodes it has.
    Pins,
    /// Which devices it has, and how near they are to each other.
    Devices,
    /// NVLink partition and NVSwitches.
    Partition,
    /// Emulator and I/O threads have other pcpus.
    Emulator,
    /// Threads for disks.
    IoThreads,
    /// Its NUMA cells differ.
    Cells,
    /// Distances between its cells.
    Distances,
    /// Dies and L3 caches that it sees.
    Caches,
    /// Nodes of its devices, as the guest sees them.
    PcieTree,
    /// Window for 64-bit BARs.
    MmioWindow,
    /// Speed and width of links that it sees.
    LinkSpeeds,
    /// GPUs that may send to each other over PCIe.
    Cliques,
    /// Bits of PCIe ports for direct transfers between GPUs and NICs.
    P2p,
    /// Functions passed through by iommufd.
    Iommufd,
    /// The SMMUv3 of each GPU with coherent memory, nested in the host's.
    NestedSmmu,
    /// Functions of the same IOMMU group.
    Companions,
    /// VLAN, MAC address and rights of virtual functions.
    VfSettings,
    /// Numbers of queues.
    Queues,
    /// vCPUs that can be plugged.
    MaxVcpus,
    /// Root ports for devices that come later.
    SparePorts,
    /// Existing disks, images and drives.
    Disks,
    /// NICs on networks.
    Networks,
    /// The template's own elements.
    Template,
    /// How it runs.
    VirtType,
}

/// Something that is lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Lost {
    /// The code of the loss.
    pub code: LostKind,
    /// The lost setting, and the platform's behaviour instead: a sentence without full stop.
    pub what: String,
}

impl Lost {
    /// Something that is lost.
    pub fn new(code: LostKind, what: impl Into<String>) -> Lost {
        Lost { code, what: what.into() }
    }
}

const COLUMNS: usize = 78;

/// Lost settings as comments, which begin with `#` in YAML, shell and ini files alike. Foreign text
/// cannot end a comment.
pub fn comments(lost: &[Lost]) -> String {
    let mut text = String::new();
    for Lost { code, what } in lost {
        let code: &str = code.into();
        wrapped(&mut text, &format!("lost: {code}: {what}"));
    }
    text
}

/// Adds a comment of one or several lines.
pub(super) fn wrapped(text: &mut String, what: &str) {
    let clean = |c: char| if c.is_control() || "\u{2028}\u{2029}".contains(c) { '?' } else { c };
    let what: String = what.chars().map(clean).collect();
    let mut line = String::from("#");
    let mut is_first = true;
    for word in what.split(' ').filter(|word| !word.is_empty()) {
        if line.chars().count() + word.chars().count() >= COLUMNS && line.len() > 1 {
            let _ = writeln!(text, "{line}");
            line = String::from("#  ");
            is_first = false;
        }
        let _ = write!(line, " {word}");
    }
    if line.len() > 1 || is_first {
        let _ = writeln!(text, "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_stays_one_whatever_it_quotes() {
        let what = "network `a\nkind: Pod\r\u{85}\u{2028}b`".to_owned();
        let text = comments(&[Lost::new(LostKind::Networks, what)]);
        assert_eq!(text, "# lost: networks: network `a?kind: Pod???b`\n");
        let long = "word ".repeat(40);
        let text = comments(&[Lost::new(LostKind::Pins, long)]);
        assert!(text.lines().count() == 3 && text.lines().all(|l| l.starts_with("# ")), "{text}");
        assert!(text.lines().all(|line| line.len() <= COLUMNS + 1), "{text}");
    }
}
