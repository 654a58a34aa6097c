//! A DGX-2 without guests, on which tests tune domains.

use super::{Given, Items, TuneError, Tuned, tune};
use crate::domain::DomainXml;
use crate::domain::guest::{Abilities, NAMESPACE};
use crate::placement::Occupancy;
use crate::request::Request;
use crate::topology::Topology;
use crate::versions::Versions;
use std::collections::BTreeMap;

/// The host.
fn host() -> Topology {
    crate::topology::file::from_json(include_str!("../../../topologies/dgx-2.json")).unwrap()
}

/// A domain tuned, or resized, on it.
pub(super) fn made(xml: &DomainXml, items: &Items) -> Result<Tuned, TuneError> {
    made_beside(xml, items, &Occupancy::default())
}

/// The same beside other domains.
pub(super) fn made_beside(
    xml: &DomainXml,
    items: &Items,
    others: &Occupancy,
) -> Result<Tuned, TuneError> {
    let (topology, versions) = (host(), Versions::default());
    let given = Given {
        topology: &topology,
        others,
        items,
        allow_remote: false,
        disks: &BTreeMap::new(),
        abilities: Abilities::default(),
        versions: &versions,
    };
    tune(xml, &given)
}

/// The metadata of a guest of ours with this request; none: somebody else's has none.
pub(super) fn metadata(request: Option<&Request>) -> String {
    let Some(request) = request else { return String::new() };
    let request = serde_json::to_string(request).unwrap();
    format!(
        "<metadata>\n<gpuvm:guest xmlns:gpuvm='{NAMESPACE}'><gpuvm:request>{request}\
         </gpuvm:request></gpuvm:guest>\n</metadata>"
    )
}
