//! GPUs in sentences: what they are called, where they hang, and why they cannot be had. Chooses nothing.

use super::PlanError;
use super::explain::{domains, list};
use super::groups::Block;
use super::slots::{Mask, Slots, bits, first, touched};

impl Slots<'_> {
    /// GPUs by their indexes: `GPU 3 (0000:39:00.0)`, `GPUs 0 to 3`, `GPUs 0, 5 and 7`; displays have none and are named
    /// by address.
    pub(super) fn label(&self, set: Mask) -> String {
        let displays = bits(set & !first(self.gpus.counted)).map(|at| self.gpus.bdfs[at]);
        let displays: Vec<String> = displays.map(|bdf| format!("GPU {bdf}")).collect();
        if !displays.is_empty() {
            let counted = Some(set & first(self.gpus.counted)).filter(|&rest| rest != 0);
            return list(counted.map(|rest| self.label(rest)).into_iter().chain(displays));
        }
        let indexes: Vec<usize> = bits(set).collect();
        match indexes[..] {
            [only] => format!("GPU {only} ({})", self.gpus.bdfs[only]),
            [first, .., last] if indexes.len() > 2 && last - first == indexes.len() - 1 => {
                format!("GPUs {first} to {last}")
            }
            _ => format!("GPUs {}", list(&indexes)),
        }
    }

    /// The place that GPUs share, to be read after "all".
    pub(super) fn place(&self, set: Mask) -> &'static str {
        let units = &self.units;
        let one = |level: &[Mask]| touched(level, set) == 1;
        match () {
            () if set & units.switched == set && one(&units.switches) => "below one PCIe switch",
            () if one(&units.roots) => "below one root complex",
            () if one(&units.nodes) => "on one node",
            () if one(&units.packages) => "in one package",
            () => "on this host, not all in one package",
        }
    }

    /// NVLinks between GPUs of a set.
    pub(super) fn links(&self, set: Mask) -> u64 {
        let inside = |bdf| self.gpus.index(bdf).is_some_and(|index| set >> index & 1 == 1);
        let links = self.topology.fabric().links.iter();
        links.filter(|l| inside(l.a) && inside(l.b)).map(|link| u64::from(link.links)).sum()
    }

    /// Why GPUs among these cannot be had, one line for each reason.
    pub(super) fn lines(&self, among: Mask) -> Vec<String> {
        let mut by_reason: Vec<(&Block<'_>, Mask)> = Vec::new();
        for gpu in bits(among) {
            let Some(block) = &self.gpus.blocked[gpu] else { continue };
            match by_reason.iter_mut().find(|(other, _)| *other == block) {
                Some((_, set)) => *set |= 1 << gpu,
                None => by_reason.push((block, 1 << gpu)),
            }
        }
        let line = |(block, set): (&Block<'_>, Mask)| {
            format!("{} {}", self.label(set), block.why(super::slots::size(set)))
        };
        by_reason.into_iter().map(line).collect()
    }

    /// Names of the domains that stand in the way of these GPUs.
    pub(super) fn in_the_way(&self, set: Mask) -> Option<String> {
        let names = bits(set & self.gpus.held).filter_map(|gpu| self.gpus.blocked[gpu]?.domain);
        let names: Vec<&str> = names.collect();
        (!names.is_empty()).then(|| domains(names))
    }

    /// Makes the error that these GPUs cannot be had: for good where no domain is in the way, else for now.
    pub(super) fn refusal(
        &self,
        what: String,
        lines: Vec<String>,
        among: Mask,
        hint: String,
    ) -> PlanError {
        if among & !self.gpus.free == 0 || among & self.gpus.held != 0 {
            return PlanError::Taken { what, holders: lines, hint };
        }
        PlanError::Impossible { what: format!("{what}: {}", lines.join("; ")), hint }
    }
}
