//! Names of GPUs in sentences: their labels, places, and why they are unavailable. Chooses nothing.

use super::candidates::whole;
use super::explain::domains;
use super::groups::Block;
use super::reason::{GpuList, Unit};
use super::slots::{Mask, Slots, bits, first, touched};
use super::types::{DeviceState, PlanError};
use crate::topology::Barred;

impl Slots<'_> {
    /// GPUs by their indexes: `GPU 3 (0000:39:00.0)`, `GPUs 0 to 3`, `GPUs 0, 5 and 7`; displays
    /// have none and are named by address.
    pub(super) fn label(&self, set: Mask) -> GpuList {
        let displays = bits(set & !first(self.gpus.counted)).map(|at| self.gpus.bdfs[at]).collect();
        let indexes: Vec<usize> = bits(set & first(self.gpus.counted)).collect();
        let only = if let [only] = indexes[..] { Some(self.gpus.bdfs[only]) } else { None };
        GpuList { indexes, only, displays }
    }

    /// The smallest unit that GPUs share.
    pub(super) fn shared_unit(&self, set: Mask) -> Unit {
        let units = &self.units;
        let one = |level: &[Mask]| touched(level, set) == 1;
        match () {
            () if set & units.switched == set && one(&units.switches) => Unit::Switch,
            () if one(&units.roots) => Unit::Root,
            () if one(&units.nodes) && !self.are_of_several(set) => Unit::Node,
            () if one(&units.nodes) => Unit::Home,
            () if one(&units.packages) => Unit::Package,
            () => Unit::Host,
        }
    }

    /// Whether GPUs of a set are on several nodes: those without cores are served by another's.
    fn are_of_several(&self, set: Mask) -> bool {
        let node = |at: usize| self.topology.device(self.gpus.bdfs[at]).and_then(|gpu| gpu.node);
        let mut nodes: Vec<_> = bits(set).map(node).collect();
        nodes.dedup();
        nodes.len() > 1 && nodes.iter().any(|node| node.is_some())
    }

    /// NVLinks between GPUs of a set.
    pub(super) fn links(&self, set: Mask) -> u64 {
        let inside = |bdf| self.gpus.index(bdf).is_some_and(|index| set >> index & 1 == 1);
        let links = self.topology.fabric().links.iter();
        links.filter(|l| inside(l.a) && inside(l.b)).map(|link| u64::from(link.links)).sum()
    }

    /// Returns the reasons why GPUs among these are unavailable, each with its GPUs.
    fn by_reason(&self, among: Mask) -> Vec<(&Block<'_>, Mask)> {
        let mut by_reason: Vec<(&Block<'_>, Mask)> = Vec::new();
        for gpu in bits(among) {
            let Some(block) = &self.gpus.blocked[gpu] else { continue };
            match by_reason.iter_mut().find(|(other, _)| *other == block) {
                Some((_, set)) => *set |= 1 << gpu,
                None => by_reason.push((block, 1 << gpu)),
            }
        }
        by_reason
    }

    /// Returns why GPUs among these are unavailable, one line for each reason.
    pub(super) fn lines(&self, among: Mask) -> Vec<String> {
        let line = |(block, set): (&Block<'_>, Mask)| {
            format!("{} {}", self.label(set), block.why(super::slots::size(set)))
        };
        self.by_reason(among).into_iter().map(line).collect()
    }

    /// As [`Slots::lines`], with the remedy for their obstacles.
    pub(super) fn lines_with_hints(&self, among: Mask) -> Vec<String> {
        let hint = |(block, set): (&Block<'_>, Mask)| {
            let barred = block.barred().map(|why| why.hint().to_owned());
            barred.or_else(|| self.with_group(set, 1)).or_else(|| self.with_test(set, 1))
        };
        let hints = self.by_reason(among).into_iter().map(hint);
        let with = |(line, hint): (String, Option<String>)| match hint {
            Some(hint) => format!("{line}; {hint}"),
            None => line,
        };
        self.lines(among).into_iter().zip(hints).map(with).collect()
    }

    /// How a guest gets at least this many GPUs among these, which only NICs or drives of their
    /// IOMMU group prevent: with the whole group.
    pub(super) fn with_group(&self, among: Mask, number: usize) -> Option<String> {
        let is_among = |at: usize| among >> at & 1 == 1;
        let mut tied = self.whole.iter().filter(|(at, _)| is_among(*at));
        tied.find(|(_, options)| options.matches("--gpu ").count() >= number)
            .map(|(_, options)| whole(options))
    }

    /// How a guest gets at least this many GPUs among these, which only the lack of a test
    /// withholds.
    pub(super) fn with_test(&self, among: Mask, number: usize) -> Option<String> {
        let is_untested = |at: &usize| {
            let block = self.gpus.blocked[*at].as_ref();
            block.is_some_and(|block| block.state() == DeviceState::Untested)
        };
        let untested = bits(among).filter(is_untested).map(|at| self.gpus.bdfs[at].to_string());
        let untested: Vec<String> = untested.take(number).collect();
        let bdf = untested.first().filter(|_| untested.len() == number)?;
        let (them, one) = if number == 1 { ("it", "it") } else { ("them", "one") };
        Some(format!(
            "`gpuvm gpu test {}` tests {them}; `gpuvm gpu include {bdf} --untested` accepts {one} \
             without a test",
            untested.join(" ")
        ))
    }

    /// Returns why no guest can get the first such GPU among these.
    pub(super) fn barred(&self, among: Mask) -> Option<Barred> {
        bits(among).find_map(|gpu| self.gpus.blocked[gpu].as_ref()?.barred())
    }

    /// Returns the names of the domains that hold these GPUs.
    pub(super) fn in_the_way(&self, set: Mask) -> Option<String> {
        let names = bits(set & self.gpus.held).filter_map(|gpu| self.gpus.blocked[gpu]?.domain);
        let names: Vec<&str> = names.collect();
        (!names.is_empty()).then(|| domains(names))
    }

    /// Makes the error of unavailable GPUs: permanent if no domain holds them, otherwise temporary.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bdf::Bdf;
    use crate::placement::affinity::Homes;
    use crate::placement::taken::Taken;

    #[test]
    fn the_smallest_unit_that_gpus_share_is_named() {
        let host = crate::placement::tests::dgx2();
        let held = crate::placement::Occupancy::default();
        let (homes, taken) = (Homes::new(&host, 0), Taken::new(&host, &held));
        let slots = Slots::new(&host, &homes, &taken);
        let switch = slots.units.switches[0];
        assert_eq!(slots.shared_unit(switch), Unit::Switch);
        assert_eq!(slots.shared_unit(slots.units.roots[0]), Unit::Root);
        assert_eq!(slots.shared_unit(slots.units.nodes[0]), Unit::Node);
        assert_eq!(slots.shared_unit(first(16)), Unit::Host);
    }

    #[test]
    fn gpus_are_listed_by_index_and_displays_by_address() {
        let bdf = |text: &str| text.parse::<Bdf>().unwrap();
        let list = |indexes: &[usize], only: Option<&str>, displays: &[&str]| {
            let displays = displays.iter().map(|text| bdf(text)).collect();
            GpuList { indexes: indexes.to_vec(), only: only.map(bdf), displays }.to_string()
        };
        let (one, two) = ("0000:01:00.0", "0000:02:00.0");
        assert_eq!(list(&[3], Some(one), &[]), "GPU 3 (0000:01:00.0)");
        assert_eq!(list(&[3, 4], None, &[]), "GPUs 3 and 4");
        assert_eq!(list(&[3, 4, 5], None, &[]), "GPUs 3 to 5");
        assert_eq!(list(&[3, 4, 6], None, &[]), "GPUs 3, 4 and 6");
        assert_eq!(list(&[], None, &[one]), "GPU 0000:01:00.0");
        let all = "GPUs 0 and 1, GPU 0000:01:00.0 and GPU 0000:02:00.0";
        assert_eq!(list(&[0, 1], None, &[one, two]), all);
    }
}
