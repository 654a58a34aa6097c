//! A DGX-2 without guests, on which tests tune domains.

use super::{Given, Items, Left, TuneError, Tuned, left_alone, tune};
use crate::domain::DomainXml;
use crate::domain::guest::{Abilities, NAMESPACE};
use crate::placement::Occupancy;
use crate::request::{Allow, Request};
use crate::topology::Topology;
use crate::versions::Versions;
use std::collections::BTreeMap;

fn host() -> Topology {
    crate::topology::file::from_json(include_str!("../../../topologies/dgx-2.json")).unwrap()
}

/// A domain tuned, or resized, on it.
pub(super) fn made(xml: &DomainXml, items: &Items) -> Result<Tuned, TuneError> {
    made_beside(xml, items, &Occupancy::default())
}

pub(super) fn made_beside(
    xml: &DomainXml,
    items: &Items,
    others: &Occupancy,
) -> Result<Tuned, TuneError> {
    with_given(items, others, |given| tune(xml, given))
}

pub(super) fn left(xml: &DomainXml, items: &Items) -> Vec<Left> {
    with_given(items, &Occupancy::default(), |given| {
        left_alone(xml, given, &tune(xml, given).unwrap())
    })
}

fn with_given<T>(items: &Items, others: &Occupancy, run: impl FnOnce(&Given<'_>) -> T) -> T {
    let (topology, versions) = (host(), Versions::default());
    run(&Given {
        topology: &topology,
        others,
        items,
        allow: Allow::default(),
        disks: &BTreeMap::new(),
        abilities: Abilities::default(),
        versions: &versions,
    })
}

/// The metadata of a guest of ours with this request; `None` for that of another tool has none.
pub(super) fn metadata(request: Option<&Request>) -> String {
    let Some(request) = request else { return String::new() };
    let request = serde_json::to_string(request).unwrap();
    format!(
        "<metadata>\n<gpuvm:guest xmlns:gpuvm='{NAMESPACE}'><gpuvm:request>{request}\
         </gpuvm:request></gpuvm:guest>\n</metadata>"
    )
}
