//! Limits of a placement whatever the host has: those of the guest's template and firmware. Applied
//! at the end of every plan, so that no verb counts what `export` would refuse.

use super::caches::needs_remapping;
use super::reason::{Topic, TreeReason};
use super::window::window;
use super::{Placement, PlanError, Reason};
use crate::request::{CellWish, PinPolicy, Request};
use crate::topology::Topology;

/// The most vCPUs of an x86 guest without interrupt remapping: 8-bit APIC ids, one of which is
/// broadcast.
pub const MOST_VCPUS: u32 = 255;

/// Whether the host is one of x86, as those are whose record does not say.
fn is_x86_host(topology: &Topology) -> bool {
    matches!(topology.machine().architecture.as_deref(), None | Some("x86_64"))
}

/// Whether the guest is one of x86.
pub(super) fn is_x86(topology: &Topology, request: &Request) -> bool {
    if request.template.is_given { request.template.is_x86 } else { is_x86_host(topology) }
}

/// Whether the guest can have vCPUs that need interrupt remapping: gpuvm adds an IOMMU for it
/// unless the template prevents that.
fn can_remap(request: &Request) -> bool {
    !request.template.is_given || request.template.remaps_interrupts
}

/// The most vCPUs that a guest of this shape can have, however large the host is; none: as many as
/// QEMU takes. Pinned vCPUs need not fill their last core; floating ones are divided into the
/// requested cells and threads.
pub(super) fn most_vcpus(topology: &Topology, request: &Request) -> Option<u32> {
    if !is_x86(topology, request) || can_remap(request) {
        return None;
    }
    let cells = if let CellWish::Count(cells) = request.cells { cells } else { 1 };
    let step = match request.pins {
        PinPolicy::None => cells.saturating_mul(request.threads.unwrap_or(1)).max(1),
        PinPolicy::Auto | PinPolicy::Core | PinPolicy::Thread => 1,
    };
    Some(MOST_VCPUS - MOST_VCPUS % step)
}

/// Returns the place if it is within the limits; otherwise the error says what the template lacks.
pub(super) fn within(
    mut placement: Placement,
    topology: &Topology,
    request: &Request,
) -> Result<Placement, PlanError> {
    let vcpus = placement.vcpus();
    if let Some(most) = most_vcpus(topology, request).filter(|_| vcpus > MOST_VCPUS) {
        let what = format!(
            "{vcpus} vCPUs are more than the {MOST_VCPUS} of a template without machine q35 or \
             with an <iommu> that is not Intel's"
        );
        let fewer = if most > 0 { format!("--vcpus {most}, or ") } else { String::new() };
        return Err(PlanError::Impossible { what, hint: format!("{fewer}leave --template out") });
    }
    if is_x86(topology, request) && needs_remapping(placement.topology) && can_remap(request) {
        let because = TreeReason::Remaps.into();
        placement.reasons.push(Reason { choice: Topic::Vcpus, because, compromise: false });
    }
    let has_template = request.template.is_given;
    if has_template && !request.template.is_pcie && !placement.devices.is_empty() {
        let what =
            "domain/os/type/@machine of the template is a machine without PCI Express, which \
                    passed-through devices need"
                .to_owned();
        let hint = "leave --template out, or give it machine q35 (`virt` on Arm)".to_owned();
        return Err(PlanError::Impossible { what, hint });
    }
    if let Err(error) = window(&placement, topology) {
        let what = error.to_string();
        let hint = "less --memory, or fewer GPUs".to_owned();
        return Err(PlanError::Impossible { what, hint });
    }
    let architecture = topology.machine().architecture.as_deref();
    if let Some(other) = architecture.filter(|a| !is_x86_host(topology) && *a != "aarch64")
        && !has_template
    {
        let because = TreeReason::NoTemplate { architecture: other.to_owned() }.into();
        placement.reasons.push(Reason { choice: Topic::Template, because, compromise: true });
    }
    Ok(placement)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Template;

    #[test]
    fn what_floats_divides_into_cells_and_threads() {
        let host = crate::placement::tests::dgx2();
        let floating = |cells, threads| Request {
            pins: PinPolicy::None,
            cells: CellWish::Count(cells),
            threads: Some(threads),
            ..Request::for_gpus(0)
        };
        // A template without room for an IOMMU.
        let plain = |request: Request| {
            let given = Template { is_given: true, ..Template::default() };
            let template = Template { is_x86: true, is_pcie: true, ..given };
            Request { template, ..request }
        };
        for (cells, threads, most) in [(1, 1, 255), (2, 1, 254), (4, 2, 248), (128, 2, 0)] {
            assert_eq!(most_vcpus(&host, &plain(floating(cells, threads))), Some(most));
            assert_eq!(most_vcpus(&host, &floating(cells, threads)), None);
        }
        let said = |vcpus, request: Request| {
            let request = Request { vcpus: Some(vcpus), ..request };
            let held = crate::placement::Occupancy::default();
            match crate::placement::plan(&host, &held, &request) {
                Err(PlanError::Impossible { hint, .. }) => hint,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(said(256, plain(floating(1, 1))), "--vcpus 255, or leave --template out");
        assert_eq!(said(512, plain(floating(128, 2))), "leave --template out");
        let many = Request { vcpus: Some(256), ..floating(1, 1) };
        let held = crate::placement::Occupancy::default();
        let placed = crate::placement::plan(&host, &held, &many).unwrap();
        let says = |r: &Reason| r.because.to_string().contains("remaps interrupts");
        assert!(placed.reasons.iter().any(says), "{:?}", placed.reasons);
    }
}
