//! Limits of a placement on any host: those of the guest's template and firmware. Applied at the
//! end of every plan, so that no verb counts a guest that `export` would refuse.

use super::caches::needs_remapping;
use super::reason::Reason;
use super::reason::{Topic, TreeReason};
use super::result::Placement;
use super::types::PlanError;
use super::window::window;
use crate::occupancy::{Held, Occupancy};
use crate::request::{CellWish, PinPolicy, Request, Template};
use crate::topology::{DeviceKind, PciDevice, Topology};

/// The most vCPUs of an x86 guest without interrupt remapping: 8-bit APIC ids, one of which is
/// broadcast.
pub const MOST_VCPUS: u32 = 255;

/// Whether the host is one of x86, as those are whose record does not say.
pub(super) fn is_x86_host(topology: &Topology) -> bool {
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

/// The most vCPUs that a guest of this shape can have, however large the host is; `None` for as
/// many as QEMU takes. Pinned vCPUs need not fill their last core; floating ones are divided into
/// the requested cells and threads.
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

/// Returns the place if it is within the limits; otherwise the error names the part that the
/// template lacks.
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
    refuse_functions(&placement, topology, request)?;
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

/// Refuses functions of the host that the guest would get from its template alone: they were not
/// requested, and other guests may have them.
fn refuse_functions(
    placement: &Placement,
    topology: &Topology,
    request: &Request,
) -> Result<(), PlanError> {
    let is_vf = |device: &PciDevice| device.is_vf();
    let Template { functions, fixed_functions, unread, .. } = &request.template;
    if let Some(why) = unread.first() {
        let what = format!(
            "the template may pass devices by an argument of QEMU that does not say which: {why}"
        );
        let hint =
            "remove the argument from the template; --gpu, --nic and --nvme pass devices, and \
                    a <hostdev> passes others"
                .to_owned();
        return Err(PlanError::Impossible { what, hint });
    }
    let unplanned = functions.iter().find(|bdf| !placement.devices.contains(bdf));
    let Some(&bdf) = fixed_functions.first().or(unplanned) else { return Ok(()) };
    let device = topology.device(bdf);
    let (noun, option) = match device.map(PciDevice::kind) {
        Some(DeviceKind::Gpu) => ("GPU", "--gpu"),
        Some(DeviceKind::Nic) if device.is_some_and(is_vf) => ("virtual function", "--vf"),
        Some(DeviceKind::Nic) => ("NIC", "--nic"),
        Some(DeviceKind::Nvme) => ("NVMe drive", "--nvme"),
        _ => ("device", ""),
    };
    if fixed_functions.contains(&bdf) {
        let what = format!(
            "the template passes {noun} {bdf} by an argument of QEMU or as a disk, which no plan \
             replaces"
        );
        let hint = if option.is_empty() {
            "remove it from the template".to_owned()
        } else {
            format!("remove it from the template; {option} {bdf} passes it instead")
        };
        return Err(PlanError::Impossible { what, hint });
    }
    let what = format!("the template has {noun} {bdf}, which was not requested");
    let hint = if option.is_empty() {
        "remove it from the template".to_owned()
    } else {
        format!("remove it from the template, or request it with {option} {bdf}")
    };
    Err(PlanError::Impossible { what, hint })
}

/// Refuses other devices of the host that the guest would get from its template while another
/// domain has them: one template makes many guests.
pub(super) fn refuse_host_devices(
    occupancy: &Occupancy,
    request: &Request,
) -> Result<(), PlanError> {
    for device in &request.template.host_devices {
        let has = |held: &&Held| held.host_devices.iter().any(|one| one.is(device));
        if let Some(held) = occupancy.domains.iter().find(has) {
            let what = format!("the template has {device}, which domain `{}` has", held.domain);
            let hint = "remove it from the template".to_owned();
            return Err(PlanError::Impossible { what, hint });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_a_template_must_be_planned() {
        let host = crate::placement::tests::dgx2();
        let [gpu, other]: [crate::bdf::Bdf; 2] =
            ["0000:34:00.0", "0000:36:00.0"].map(|bdf| bdf.parse().unwrap());
        let given = |functions: &[crate::bdf::Bdf], fixed: &[crate::bdf::Bdf], unread: &[&str]| {
            let template = Template {
                is_given: true,
                is_x86: true,
                is_pcie: true,
                remaps_interrupts: true,
                is_by_iommufd: false,
                functions: functions.to_vec(),
                fixed_functions: fixed.to_vec(),
                host_devices: Vec::new(),
                unread: unread.iter().map(|why| (*why).to_owned()).collect(),
            };
            let request = Request {
                gpus: crate::request::GpuWish::Exact(vec![gpu]),
                template,
                ..Request::for_gpus(1)
            };
            match crate::placement::plan(&host, &Occupancy::default(), &request) {
                Ok(_) => String::new(),
                Err(PlanError::Impossible { what, hint }) => format!("{what}; {hint}"),
                Err(error) => panic!("{error}"),
            }
        };
        let with = |functions: &[_], fixed: &[_]| given(functions, fixed, &[]);
        assert_eq!(with(&[], &[]), "");
        let said = given(&[gpu], &[], &["file `/etc/vm.cfg` may name devices"]);
        assert!(
            said.contains("does not say which: file `/etc/vm.cfg` may name devices;"),
            "{said}"
        );
        assert_eq!(with(&[gpu], &[]), "");
        let wanted = "the template has GPU 0000:36:00.0, which was not requested; remove it from \
                      the template, or request it with --gpu 0000:36:00.0";
        assert_eq!(with(&[gpu, other], &[]), wanted);
        assert!(with(&[], &[gpu]).contains("which no plan replaces; remove it"));
        // One that the host does not have.
        let absent = "0000:fe:00.0".parse().unwrap();
        let wanted = "the template has device 0000:fe:00.0, which was not requested; remove it \
                      from the template";
        assert_eq!(with(&[absent], &[]), wanted);
    }

    #[test]
    fn floating_guests_divide_into_cells_and_threads() {
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
            let held = Occupancy::default();
            match crate::placement::plan(&host, &held, &request) {
                Err(PlanError::Impossible { hint, .. }) => hint,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(said(256, plain(floating(1, 1))), "--vcpus 255, or leave --template out");
        assert_eq!(said(512, plain(floating(128, 2))), "leave --template out");
        let many = Request { vcpus: Some(256), ..floating(1, 1) };
        let held = Occupancy::default();
        let placed = crate::placement::plan(&host, &held, &many).unwrap();
        let says = |r: &Reason| r.because.to_string().contains("remaps interrupts");
        assert!(placed.reasons.iter().any(says), "{:?}", placed.reasons);
    }
}
