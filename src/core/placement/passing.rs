//! Says in which way a guest's functions are passed through.

use super::explain::Reasons;
use super::reason::{PassReason, Topic};
use crate::request::{IommufdWish, Request};
use crate::topology::Topology;

/// Describes the way of a guest with functions and the reason. A host without iommufd leaves no
/// choice, so its default is not reported.
pub(super) fn explain(
    topology: &Topology,
    request: &Request,
    is_coherent: bool,
    reasons: &mut Reasons,
) {
    if is_coherent {
        return reasons.say(Topic::Iommufd, PassReason::Coherent);
    }
    let is_asked = request.iommufd != IommufdWish::Auto;
    let has_choice = topology.machine().iommufd.is_some_and(|iommufd| iommufd.node);
    if request.is_by_iommufd() {
        let has_huge_pages = request.huge_pages.asked().is_some();
        reasons.say(Topic::Iommufd, PassReason::Iommufd { is_asked, has_huge_pages });
    } else if is_asked || has_choice {
        reasons.say(Topic::Iommufd, PassReason::Groups { is_asked });
    }
}
