//! What a place must not go beyond, whatever the host has: what the guest's template and its firmware take. Asked at the
//! end of every plan, so that no verb counts what `export` would refuse.

use super::window::window;
use super::{Placement, PlanError, Reason};
use crate::request::Request;
use crate::topology::Topology;

/// vCPUs of an x86 guest whose interrupts need no remapping: 8-bit APIC ids, of which one addresses all.
pub const MOST_VCPUS: u32 = 255;

/// The place, where it is within the limits; says what the built-in templates lack.
pub(super) fn within(
    mut placement: Placement,
    topology: &Topology,
    request: &Request,
) -> Result<Placement, PlanError> {
    let architecture = topology.machine().architecture.as_deref();
    let is_x86 = matches!(architecture, None | Some("x86_64"));
    let (vcpus, threads) = (placement.vcpus(), placement.topology.threads);
    if is_x86 && vcpus > MOST_VCPUS && !request.template.remaps_interrupts {
        let what = format!(
            "{vcpus} vCPUs are more than the {MOST_VCPUS} of a guest without an IOMMU that remaps interrupts"
        );
        let hint = format!(
            "--vcpus {}, or --template FILE with <iommu model='intel'> and intremap='on', eim='on' and \
             caching_mode='on' on its driver",
            MOST_VCPUS - MOST_VCPUS % threads.max(1)
        );
        return Err(PlanError::Impossible { what, hint });
    }
    if let Err(what) = window(&placement, topology) {
        let hint = "less --memory, or fewer GPUs".to_owned();
        return Err(PlanError::Impossible { what, hint });
    }
    if let Some(other) = architecture.filter(|a| !is_x86 && *a != "aarch64")
        && !request.template.is_given
    {
        let because =
            format!("there is no built-in template for {other}: --template FILE names one");
        placement.reasons.push(Reason { choice: "template".into(), because, compromise: true });
    }
    Ok(placement)
}
