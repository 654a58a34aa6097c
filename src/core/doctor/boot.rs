//! Rules on the driver of a GPU: the one that wins at boot, and the present one.

use super::report::{Report, Wrong, warn};
use super::{Case, fix, name};
use crate::finding::Rule;
use crate::shell::word;
use crate::topology::facts::{BINDING_UNIT, BootDrivers, GPU_SERVICES};
use crate::topology::{PciDevice, is_vfio};
use crate::versions::KERNEL_VIRQFD;

/// After an update of driver or kernel the host's driver takes the GPU.
pub const DRIVER_FIRST: Rule =
    Rule::error("driver-first", "a GPU for guests that a driver of the host takes at boot");
/// Unbinding a driver waits for these, for ever.
pub const HOLDERS: Rule = Rule::warning("holders", "a GPU that programs or a console hold");

/// Root would run programs of other users.
pub const REPLACEABLE: Rule = Rule::error(
    "program-replaceable",
    "a program that root runs at boot or at a guest's start, and that others can replace",
);
/// It is not bound at boot, since a change of hardware would go unnoticed.
pub const UNIDENTIFIED: Rule =
    Rule::warning("boot-unidentified", "a drive or a NIC that is listed without its identity");

/// Finds the parts missing from files that older versions wrote.
fn files(case: &Case<'_>, report: &mut Report<'_>) {
    for one in case.facts.replaceable.iter().flatten() {
        let (file, program) = (&one.file, &one.program);
        let wrong = Wrong {
            message: format!(
                "{file} runs {program} as root, which others can replace: {}",
                one.why
            ),
            values: ("writable by root only".into(), one.why.clone()),
            at: file.clone(),
            hint: format!(
                "install gpuvm, and let the installed one write the file again: the first lines of \
                 {file} say by which command"
            ),
            fix: vec![format!("head -3 {}", word(file))],
        };
        report.add(&REPLACEABLE, wrong);
    }
    for bdf in case.facts.boot_drivers.iter().flat_map(|drivers| &drivers.unidentified) {
        let command = format!("gpuvm device bind {bdf} --at-boot --initramfs");
        // Only its own driver reads its identity.
        let driver = case.topology.device(*bdf).and_then(|device| device.driver.as_deref());
        let release = driver.is_some_and(is_vfio).then(|| format!("gpuvm device release {bdf}"));
        let hint = match &release {
            Some(release) => format!(
                "`{release}` returns it to its driver, which reads that, and `{command}` lists it \
                 again"
            ),
            None => format!("`{command}` lists it again"),
        };
        let wrong = Wrong {
            message: format!(
                "{bdf} is listed for the boot by an older gpuvm, without its serial number or \
                 address: it is not bound at boot, since another device may be there then"
            ),
            values: ("listed with its identity".into(), "listed by address".into()),
            at: format!("/{BINDING_UNIT}"),
            hint,
            fix: release.into_iter().chain([command]).collect(),
        };
        report.of(&UNIDENTIFIED, *bdf, wrong);
    }
}

pub(super) fn judge(case: &Case<'_>, report: &mut Report<'_>) {
    if let Some(drivers) = report.need(&DRIVER_FIRST, &case.facts.boot_drivers, "etc/modprobe.d") {
        first(case, drivers, report);
    }
    holders(case, report);
    files(case, report);
}

/// Whether an id of vfio-pci's list means a device: `10de:2330`, or more of the fields after it.
fn is_id_of(listed: &str, device: &PciDevice) -> bool {
    let mut fields = listed.split(':');
    let ids = [device.vendor, device.device];
    ids.iter()
        .all(|id| fields.next().is_some_and(|field| u16::from_str_radix(field, 16) == Ok(*id)))
}

/// Finds GPUs that are meant for guests and that another driver has or will have.
fn first(case: &Case<'_>, drivers: &BootDrivers, report: &mut Report<'_>) {
    let mut meant = 0;
    for gpu in case.gpus() {
        let given =
            drivers.vfio_ids.iter().find(|given| given.ids.iter().any(|one| is_id_of(one, gpu)));
        let listed = drivers.at_boot.contains(&gpu.bdf);
        if given.is_none() && !listed {
            continue;
        }
        meant += 1;
        let driver = gpu.driver.as_deref().filter(|driver| !is_vfio(driver));
        let Some(driver) = driver else { continue };
        let at = given.map_or_else(|| BINDING_UNIT.to_owned(), |g| g.at.clone());
        let from_cmdline = at == "proc/cmdline";
        let why = match given {
            Some(_) if drivers.built_in == Some(true) && !from_cmdline => {
                "vfio-pci is built into this kernel, so options in /etc/modprobe.d do not apply"
                    .to_owned()
            }
            Some(_) if !from_cmdline && !drivers.later.iter().any(|later| later == driver) => {
                format!("no `softdep {driver} pre: vfio-pci` makes {driver} wait")
            }
            _ => match &drivers.stale {
                Some((image, file)) => format!("/{image} has an older copy of /{file}"),
                None => "it was loaded earlier, or took the GPU later".to_owned(),
            },
        };
        let wrong = Wrong {
            message: format!(
                "{} should be bound to vfio-pci at boot, but {driver} has it: {why}",
                name(gpu)
            ),
            values: ("vfio-pci".into(), driver.to_owned()),
            at: format!("/{at}"),
            hint: format!(
                "`gpuvm device bind {} --at-boot --initramfs` binds it now and before any driver \
                 at each boot",
                gpu.bdf
            ),
            fix: vec![format!("gpuvm device bind {} --at-boot --initramfs", gpu.bdf)],
        };
        report.of(&DRIVER_FIRST, gpu.bdf, wrong);
    }
    stale(case, drivers, meant, report);
    virqfd(case, drivers, report);
}

/// Warns of an initramfs that is older than the files that it has copies of.
fn stale(case: &Case<'_>, drivers: &BootDrivers, meant: usize, report: &mut Report<'_>) {
    let Some((image, file)) = &drivers.stale else { return };
    let command = fix::initramfs(case.facts);
    // Also where nothing is bound any more: the script in the image still does it.
    let is_directory = file.ends_with("/init-top");
    let why = match is_directory {
        true => {
            "what was removed from there since, as by `gpuvm device release --at-boot`, is still \
                 in it"
        }
        false if meant > 0 => "a driver in it may take the GPU at the next boot",
        false => return,
    };
    let wrong = Wrong {
        message: format!("/{image} is older than /{file}, of which it has a copy: {why}"),
        values: (format!("newer than /{file}"), "older".into()),
        at: format!("/{image}"),
        hint: format!("renew it: `{}`", command.trim_start_matches("# ")),
        fix: vec![command],
    };
    warn(report.add(&DRIVER_FIRST, wrong));
}

/// Warns of a module that newer kernels do not have.
fn virqfd(case: &Case<'_>, drivers: &BootDrivers, report: &mut Report<'_>) {
    let Some(file) = &drivers.virqfd else { return };
    let Some(kernel) = case.defect(&KERNEL_VIRQFD) else { return };
    let wrong = Wrong {
        message: format!("/{file} lists a module that kernel {kernel} does not have: vfio_virqfd"),
        values: ("vfio, vfio_iommu_type1, vfio_pci".into(), "vfio_virqfd".into()),
        at: format!("/{file}"),
        hint: "remove the word and rebuild the initramfs; the build may fail on the missing module"
            .into(),
        fix: vec![
            format!("sed -i 's/\\bvfio_virqfd\\b//' {}", word(&format!("/{file}"))),
            fix::initramfs(case.facts),
        ],
    };
    warn(report.add(&DRIVER_FIRST, wrong));
}

/// Finds the holders of GPUs that a driver of the host has.
fn holders(case: &Case<'_>, report: &mut Report<'_>) {
    let taken = |gpu: &&PciDevice| gpu.driver.as_deref().is_some_and(|driver| !is_vfio(driver));
    let gpus: Vec<&PciDevice> = case.topology.gpus().filter(taken).collect();
    if gpus.is_empty() {
        return;
    }
    let nvidia = gpus.iter().find(|gpu| gpu.driver.as_deref() == Some("nvidia"));
    if let Some(users) = report.need(&HOLDERS, &case.facts.users, "proc/PID/fd") {
        for gpu in &gpus {
            let by: Vec<&str> = users
                .iter()
                .filter(|user| user.bdf == gpu.bdf)
                .map(|user| user.by.as_str())
                .collect();
            let Some(first) = by.first() else { continue };
            let more =
                if by.len() > 1 { format!(" and {} more", by.len() - 1) } else { String::new() };
            let wrong = Wrong {
                message: format!("{} is used by {first}{more}", name(gpu)),
                values: ("no user".into(), by.join(", ")),
                at: format!("/sys/bus/pci/devices/{}", gpu.bdf),
                hint: format!("end it before `gpuvm device bind {}`", gpu.bdf),
                fix: vec![format!("# end {}", by.join(", "))],
            };
            report.of(&HOLDERS, gpu.bdf, wrong);
        }
    }
    let Some(nvidia) = nvidia else { return };
    let services = report.need_part(&HOLDERS, &case.facts.services, "proc/PID/comm");
    if let Some(services) = services {
        let held: Vec<&str> = GPU_SERVICES
            .into_iter()
            .filter(|name| services.iter().any(|one| one == name))
            .collect();
        if !held.is_empty() {
            let units: Vec<&str> = held
                .iter()
                .map(|name| if *name == "nv-hostengine" { "nvidia-dcgm" } else { name })
                .collect();
            let wrong = Wrong {
                message: format!(
                    "{} runs: it opens every GPU of the driver nvidia",
                    held.join(", ")
                ),
                values: ("stopped before GPUs are bound".into(), "running".into()),
                at: format!("/sys/bus/pci/devices/{}/driver", nvidia.bdf),
                hint: format!("`systemctl stop {}`, then bind", units.join(" ")),
                fix: vec![format!("systemctl stop {}", units.join(" "))],
            };
            report.add(&HOLDERS, wrong);
        }
    }
    if case.facts.kernel.drm_console == Some(true) {
        let wrong = Wrong {
            message: "nvidia_drm shows the host's console, so the driver nvidia does not let go"
                .into(),
            values: ("modeset=N, or no console on it".into(), "modeset=Y".into()),
            at: "/sys/module/nvidia_drm/parameters/modeset".into(),
            hint: "`options nvidia_drm modeset=0` in /etc/modprobe.d, then unload nvidia_drm, \
                   nvidia_modeset, nvidia_uvm, nvidia in this order"
                .into(),
            fix: vec![
                fix::module_option("options nvidia_drm modeset=0"),
                fix::initramfs(case.facts),
                "modprobe -r nvidia_drm nvidia_modeset nvidia_uvm nvidia".into(),
            ],
        };
        report.add(&HOLDERS, wrong);
    }
}
