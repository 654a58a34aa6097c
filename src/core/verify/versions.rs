//! Compares the driver in a guest with the host's Fabric Manager: where it controls the NVSwitches,
//! both must have the same version ("Fabric Manager User Guide"). Unknown versions are reported as
//! not compared.

use super::guest::View;
use super::report::{Between, Report, Wrong};
use super::{Host, Subject};
use crate::check::guest::Guest;
use crate::finding::Rule;
use crate::topology::{FabricModel, Topology};

/// CUDA in the guest waits for a fabric that its driver never joins.
const DRIVER: Rule =
    Rule::error("guest-driver", "a guest whose NVIDIA driver is not of Fabric Manager's version");

/// Rules of this module.
pub const RULES: &[Rule] = &[DRIVER];

/// Whether a guest has GPUs whose NVSwitches Fabric Manager controls.
fn is_on_fabric(live: &Guest<'_>, topology: &Topology) -> bool {
    let is_passed = |gpu| live.passed.iter().any(|passed| passed.bdf.value == gpu);
    topology.fabric().model == FabricModel::SharedNvswitch && topology.ruled().any(is_passed)
}

/// Compares the versions.
pub fn compare(live: &Guest<'_>, view: &View, host: Host<'_>, report: &mut Report) {
    let (Some(expected), Some(found)) = (host.manager, view.driver.as_deref()) else { return };
    if expected == found || !is_on_fabric(live, host.topology) {
        return;
    }
    let wrong = Wrong {
        what: "version of the NVIDIA driver".into(),
        expected: format!("{expected} as Fabric Manager of the host"),
        found: found.to_owned(),
        at: "/sys/module/nvidia/version of the guest".into(),
        hint: "install the driver of Fabric Manager's version in the guest: `gpuvm fabric show` \
               tells it",
    };
    report.differs(&DRIVER, Between::Guest, wrong);
}

/// Returns the parts that cannot be compared although the guest's agent answers.
pub fn unchecked(subject: &Subject<'_>) -> Option<&'static str> {
    let (host, view) = (subject.host?, subject.guest?);
    if !is_on_fabric(&Guest::read(subject.live?), host.topology) {
        return None;
    }
    match (host.manager, &view.driver) {
        (None, _) => Some("the guest's NVIDIA driver (Fabric Manager's version is not known)"),
        (_, None) => {
            Some("the guest's NVIDIA driver (none is loaded, or not reported by its agent)")
        }
        _ => None,
    }
}
