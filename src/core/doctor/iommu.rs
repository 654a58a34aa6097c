//! Rules on the IOMMU: whether it is on, the members of its groups, and its kind of mapping.

use super::report::{Report, Wrong, warn};
use super::{Case, fix, name};
use crate::finding::Rule;
use crate::iommufd::Way;
use crate::p2p;
use crate::placement::whole_group;
use crate::topology::isolation::{ACS_OVERRIDE as OVERRIDE, acs_override};
use crate::topology::{Barred, DeviceKind, PciDevice, Topology, Weakness};
use crate::topology::{is_vfio, leaves_group};
use crate::words::count;

/// libvirt then says only that the host does not support passthrough.
pub const OFF: Rule = Rule::error("iommu-off", "a host whose IOMMU is off");
/// libvirt then says only that the host does not support VFIO.
pub const NO_GROUPS: Rule =
    Rule::error("no-vfio-groups", "a kernel without the VFIO groups that libvirt needs");
/// QEMU refuses a group that is not viable.
pub const GROUP_SHARED: Rule = Rule::error(
    "group-shared",
    "a GPU that shares its IOMMU group with a device that a driver of the host has",
);
/// Groups look fine and isolate nothing.
pub const ACS_OVERRIDE: Rule =
    Rule::error("acs-override", "groups that are split against what the hardware isolates");
/// Groups are formed once, and stay if the bits that they were formed by are cleared later.
pub const ACS_OFF: Rule =
    Rule::error("acs-off", "a port that does not keep functions of different IOMMU groups apart");
/// The kernel refuses to attach such a group (field knowledge; HPE's RBSU has an option).
pub const RMRR: Rule = Rule::error(
    "group-legacy-rmrr",
    "a GPU whose group has memory that the firmware keeps for itself",
);
/// VFIO refuses devices without it.
pub const IRQ_REMAP: Rule = Rule::error("irq-remap", "a host without interrupt remapping");
/// The host's own NICs and drives then pay for each mapping.
pub const MODE: Rule = Rule::note("iommu-mode", "devices of the host whose DMA is mapped strictly");

const GROUPS: &str = "sys/kernel/iommu_groups";

pub(super) fn judge(case: &Case<'_>, report: &mut Report<'_>) {
    off(case, report);
    without_groups(case, report);
    shared(case, report);
    overridden(case, report);
    open_ports(case, report);
    rmrr(case, report);
    interrupts(case, report);
    mode(case, report);
}

/// Says why the host has no IOMMU groups.
fn off(case: &Case<'_>, report: &mut Report<'_>) {
    let devices = case.topology.devices();
    let has_groups = devices.iter().any(|device| device.iommu_group.is_some());
    let iommu = &case.topology.machine().iommu;
    let is_known = has_groups || report.need(&OFF, iommu, GROUPS).is_some();
    if !is_known || !has_no_group(case) {
        return;
    }
    let is_amd = case.topology.machine().cpu_vendor.as_deref() == Some("AuthenticAMD");
    let (technology, on) =
        if is_amd { ("AMD-Vi (IOMMU)", "amd_iommu=on") } else { ("VT-d", "intel_iommu=on") };
    let given = turned_off(case);
    let restart = "then restart libvirt's daemon once vfio-pci is loaded: it asks for the IOMMU \
                   only at its start";
    let no_groups = "the IOMMU is off: the host has no IOMMU group";
    let tables = case.facts.iommu_tables.as_deref();
    let is_virtual = case.facts.platform.as_ref().is_some_and(|platform| platform.is_virtual);
    let (why, hint, fix) = if case.is_arm() {
        of_smmu(restart)
    } else if !given.is_empty() {
        let words = given.join(" ");
        let hint = format!("remove `{words}` from the kernel's arguments and reboot; {restart}");
        (
            format!("the kernel's command line has `{words}`"),
            hint,
            fix::kernel(case.facts, &[], &given),
        )
    } else if is_virtual && tables.is_none_or(<[String]>::is_empty) {
        of_virtual_machine(case, restart)
    } else if tables.is_some_and(<[String]>::is_empty) {
        let hint = format!("turn on {technology} in the BIOS setup and reboot; {restart}");
        let line = format!("# turn on {technology} in the BIOS setup: no command does");
        (
            format!("the firmware offers none: {technology} is off in the BIOS setup"),
            hint,
            vec![line],
        )
    } else if !is_amd && case.argument("intel_iommu").is_none() {
        let hint = format!("add `{on}` to the kernel's arguments and reboot; {restart}");
        let why = match tables {
            Some(_) => format!("the firmware offers it, and the command line lacks `{on}`"),
            None => {
                format!("the command line lacks `{on}`, or {technology} is off in the BIOS setup")
            }
        };
        (why, hint, fix::kernel(case.facts, &[on], &[]))
    } else {
        let hint = format!(
            "turn on {technology} in the BIOS setup, or boot a kernel that is built with it; `dmesg \
             | grep -e DMAR -e AMD-Vi` says more; {restart}"
        );
        let line = format!("# turn on {technology} in the BIOS setup: no command does");
        ("the firmware does not offer it, or the kernel lacks it".to_owned(), hint, vec![line])
    };
    let wrong = Wrong {
        message: format!("{no_groups}; {why}"),
        values: ("IOMMU groups".into(), "none".into()),
        at: format!("/{GROUPS}"),
        hint,
        fix,
    };
    report.add(&OFF, wrong).says.fatal = true;
}

/// The arguments of the kernel that turn the IOMMU off. Of those for one vendor the last one counts;
/// the values of `iommu=` add up.
fn turned_off(case: &Case<'_>) -> Vec<&'static str> {
    let is_off = |name| case.argument(name) == Some("off");
    let arguments = &case.topology.machine().kernel_arguments;
    let given = [
        ("iommu=off", arguments.iter().any(|given| given == "iommu=off")),
        ("intel_iommu=off", is_off("intel_iommu")),
        ("amd_iommu=off", is_off("amd_iommu")),
    ];
    given.into_iter().filter_map(|(word, on)| on.then_some(word)).collect()
}

/// The missing SMMU of an Arm machine, the remedy, and the same as a script. No argument of the kernel
/// turns it on.
fn of_smmu(restart: &str) -> (String, String, Vec<String>) {
    let why = "the firmware describes no SMMU, or the kernel has no driver for it";
    let hint = format!(
        "turn on the SMMU in the firmware's setup and reboot, or boot a kernel with \
         CONFIG_ARM_SMMU_V3; `journalctl -k | grep -i smmu` says more; {restart}"
    );
    let line = "# turn on the SMMU in the firmware's setup: no command does";
    (why.to_owned(), hint, vec![line.to_owned()])
}

/// Finds a kernel without VFIO groups, unless libvirt does without them.
fn without_groups(case: &Case<'_>, report: &mut Report<'_>) {
    let Case { topology, versions, offers_iommufd: offered, .. } = *case;
    let groups = topology.machine().iommufd.and_then(|iommufd| iommufd.groups);
    if groups.is_none() {
        report.skip(&NO_GROUPS, "VFIO is not loaded, or its groups are not recorded");
    }
    let Some(lack) = (Way { topology, versions: *versions, offered }).groups() else { return };
    let wrong = Wrong {
        message: lack.what,
        values: ("CONFIG_VFIO_GROUP".into(), "no VFIO groups".into()),
        at: "/sys/class/vfio".into(),
        hint: lack.remedy,
        fix: vec!["# boot a kernel that is built with CONFIG_VFIO_GROUP".into()],
    };
    report.add(&NO_GROUPS, wrong).says.fatal = true;
}

/// The missing IOMMU of a virtual machine, the remedy on its hypervisor, and the same as a script.
/// QEMU's intel-iommu works with processors of any vendor, and VFIO needs its caching mode.
fn of_virtual_machine(case: &Case<'_>, restart: &str) -> (String, String, Vec<String>) {
    let why = format!(
        "this is a virtual machine{}, and its hypervisor gives it no IOMMU",
        case.product()
    );
    let hint = format!(
        "give it a virtual IOMMU in its hypervisor (libvirt: machine type q35, `<ioapic \
         driver='qemu'/>`, `<iommu model='intel'><driver intremap='on' \
         caching_mode='on'/></iommu>`; QEMU: `-machine q35,kernel-irqchip=split -device \
         intel-iommu,intremap=on,caching-mode=on`; a cloud: a bare-metal type), then add \
         `intel_iommu=on` to the kernel's arguments here; {restart}"
    );
    let line = "# give this virtual machine a virtual IOMMU, in its hypervisor".to_owned();
    (why, hint, [vec![line], fix::kernel(case.facts, &["intel_iommu=on"], &[])].concat())
}

/// Finds GPUs whose groups have other members that a driver of the host has.
fn shared(case: &Case<'_>, report: &mut Report<'_>) {
    for gpu in case.topology.gpus() {
        let Some(group) = case.topology.iommu_group(gpu.bdf) else { continue };
        let slot =
            |device: &PciDevice| (device.bdf.segment(), device.bdf.bus(), device.bdf.device());
        let is_in_the_way = |device: &&PciDevice| {
            let driver = device.driver.as_deref();
            let is_bridge = matches!(device.kind(), DeviceKind::Bridge | DeviceKind::HostBridge);
            !is_bridge
                && slot(device) != slot(gpu)
                && driver.is_some_and(|driver| !leaves_group(driver))
        };
        let members = group.members.iter().filter_map(|bdf| case.topology.device(*bdf));
        let others: Vec<&PciDevice> = members.filter(is_in_the_way).collect();
        if others.is_empty() {
            continue;
        }
        let all_gpus = others.iter().all(|device| device.kind() == DeviceKind::Gpu);
        let list: Vec<String> = others
            .iter()
            .map(|device| {
                format!("{} (driver {})", device.bdf, device.driver.as_deref().unwrap_or_default())
            })
            .collect();
        let list = list.join(", ");
        let take = if all_gpus { "" } else { "# where the host can do without them: " };
        let bind: Vec<String> = others.iter().map(|device| device.bdf.to_string()).collect();
        let wrong = Wrong {
            message: format!("{} shares IOMMU group {} with {list}", name(gpu), group.number),
            values: ("its own slot only, or devices on vfio-pci".into(), list.clone()),
            at: format!("/{GROUPS}/{}/devices", group.number),
            hint: whole_group_hint(case.topology, gpu),
            fix: vec![format!("{take}gpuvm device bind {} {}", gpu.bdf, bind.join(" "))],
        };
        let finding = report.of(&GROUP_SHARED, gpu.bdf, wrong);
        // Together they go to one guest.
        if all_gpus {
            warn(finding);
        }
    }
}

/// The remedies for a group of several cards.
fn whole_group_hint(topology: &Topology, gpu: &PciDevice) -> String {
    let other = match whole_group(topology, gpu.bdf) {
        Some(options) => format!("give the whole group to one guest: `gpuvm plan {options}`"),
        None => "leave the card to the host: `gpuvm device list` shows the group".to_owned(),
    };
    let slot = match topology.fixed_place(gpu) {
        None => "move the card to another slot, ",
        Some(_) => "",
    };
    format!("{slot}turn on ACS in the BIOS setup, or {other}")
}

/// Finds the argument that splits groups.
fn overridden(case: &Case<'_>, report: &mut Report<'_>) {
    let Some(value) = case.topology.acs_override() else { return };
    let arguments = &case.topology.machine().kernel_arguments;
    let given = arguments.iter().rev().find(|word| acs_override(word).as_ref() == Some(&value));
    let argument = given.cloned().unwrap_or_else(|| format!("{OVERRIDE}={value}"));
    let weakness = Weakness::AcsOverride(value);
    let wrong = Wrong {
        message: weakness.says(),
        values: (format!("no {OVERRIDE}="), argument.clone()),
        at: "/proc/cmdline".into(),
        hint: weakness.hint().into_owned(),
        fix: fix::kernel(case.facts, &[], &[&argument]),
    };
    report.add(&ACS_OVERRIDE, wrong);
}

const CONFIG: &str = "sys/bus/pci/devices/N/config";

/// Finds ports whose ACS control was cleared after the groups were formed.
fn open_ports(case: &Case<'_>, report: &mut Report<'_>) {
    let unread = case.topology.unread_ports();
    if !unread.is_empty() {
        let why = format!("/{CONFIG} of {} is not known", count(unread.len(), "port"));
        let is_bridge = |device: &&PciDevice| device.kind() == DeviceKind::Bridge;
        if unread.len() < case.topology.devices().iter().filter(is_bridge).count() {
            report.skip_part(&ACS_OFF, why);
        } else {
            report.skip(&ACS_OFF, why);
        }
    }
    let files = case.facts.acs_files.as_deref().unwrap_or_default();
    let named: Vec<String> = files.iter().map(|file| format!("/{file}")).collect();
    let who = match named.len() {
        0 => "a boot script may clear them: `grep -rn ECAP_ACS /etc /usr/local /opt`".to_owned(),
        _ => format!("{} may clear them at boot: remove them from there", named.join(", ")),
    };
    for port in case.topology.open_ports(&[]) {
        let command = port.command();
        let mut fix = vec![command.clone()];
        fix.extend(named.iter().map(|file| format!("# remove ECAP_ACS from {file}")));
        let wrong = Wrong {
            message: Weakness::OpenPorts(vec![port]).says(),
            values: (
                format!("{} on", p2p::names(port.wanted)),
                format!("{} off", p2p::names(port.open)),
            ),
            at: format!("ACSCtl of `lspci -vvv -s {}`", port.at),
            hint: format!("`{command}` turns them on until the next boot; {who}"),
            fix,
        };
        report.of(&ACS_OFF, port.at, wrong);
    }
}

/// Whether the host is known to have no IOMMU group, so that rules on groups have no object.
fn has_no_group(case: &Case<'_>) -> bool {
    let is_off = |device| case.topology.barred(device) == Some(Barred::IommuOff);
    case.topology.devices().iter().any(is_off)
}

/// Finds groups that the kernel does not attach.
fn rmrr(case: &Case<'_>, report: &mut Report<'_>) {
    let path = "sys/kernel/iommu_groups/N/reserved_regions";
    let iommu = case.topology.machine().iommu.as_ref();
    let known = iommu.and_then(|iommu| iommu.firmware_groups.clone());
    if has_no_group(case) || report.need(&RMRR, &known, path).is_none() {
        return;
    }
    for gpu in case.gpus() {
        let Some(why @ Barred::FirmwareMemory(number)) = case.topology.barred(gpu) else {
            continue;
        };
        let wrong = Wrong {
            message: format!(
                "{} {why}; the kernel says \"ineligible for IOMMU domain attach due to platform \
                 RMRR\"",
                name(gpu)
            ),
            values: ("no region of type direct".into(), "direct".into()),
            at: format!("/{GROUPS}/{number}/reserved_regions"),
            hint: why.hint().into(),
            fix: vec!["# change the firmware's setting: no command does".into()],
        };
        report.of(&RMRR, gpu.bdf, wrong).says.fatal = true;
    }
}

/// Returns the arguments that turn interrupt remapping off. The kernel reads the values of all, one
/// after the other, by how they begin: each `on` and `off` replaces the one before.
fn without_remapping(arguments: &[String]) -> Vec<&str> {
    let mut off = Vec::new();
    for argument in arguments {
        if argument == "nointremap" {
            off.push(argument.as_str());
        }
        for value in argument.strip_prefix("intremap=").unwrap_or_default().split(',') {
            if value.starts_with("on") {
                off.clear();
            } else if value.starts_with("off") {
                off.push(argument);
            }
        }
    }
    off.dedup();
    off
}

/// Finds interrupt remapping that is off, or that VFIO does without.
fn interrupts(case: &Case<'_>, report: &mut Report<'_>) {
    let arguments = &case.topology.machine().kernel_arguments;
    let off = without_remapping(arguments);
    let allowed = case.topology.machine().isolation.as_ref();
    if !off.is_empty() {
        let argument = off.join(" ");
        let wrong = Wrong {
            message: format!(
                "interrupt remapping is off by `{argument}`: VFIO refuses devices, or a guest can \
                 raise interrupts of the host"
            ),
            values: (format!("no {argument}"), argument.clone()),
            at: "/proc/cmdline".into(),
            hint: format!("remove `{argument}` from the kernel's arguments and reboot"),
            fix: fix::kernel(case.facts, &[], &off),
        };
        let is_allowed = allowed.is_some_and(|settings| settings.unsafe_interrupts);
        report.add(&IRQ_REMAP, wrong).says.fatal = !is_allowed;
    } else if let Some(settings) = allowed {
        if settings.unsafe_interrupts {
            let weakness = Weakness::UnsafeInterrupts;
            let wrong = Wrong {
                message: weakness.says(),
                values: ("N".into(), "Y".into()),
                at: "/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts".into(),
                hint: weakness.hint().into_owned(),
                fix: vec![
                    r"grep -rl allow_unsafe_interrupts /etc/modprobe.d | xargs -r sed -i 's/allow_unsafe_interrupts=[^ ]*//'"
                        .to_owned(),
                    fix::initramfs(case.facts),
                ],
            };
            warn(report.add(&IRQ_REMAP, wrong));
        }
    } else {
        report.skip_part(&IRQ_REMAP, "/sys/module is not known");
    }
}

/// Finds devices of the host whose DMA is mapped strictly.
fn mode(case: &Case<'_>, report: &mut Report<'_>) {
    let path = "sys/kernel/iommu_groups/N/type";
    if has_no_group(case) {
        return;
    }
    let Some(strict) = report.need(&MODE, &case.facts.strict_groups, path) else { return };
    let is_passed_through = case.argument("iommu") == Some("pt");
    let is_host = |device: &&PciDevice| {
        matches!(device.kind(), DeviceKind::Nic | DeviceKind::Nvme)
            && device.iommu_group.is_some_and(|group| strict.contains(&group))
            && !device.driver.as_deref().is_some_and(is_vfio)
    };
    let slow = case.topology.devices().iter().filter(is_host).count();
    if slow == 0 || is_passed_through {
        return;
    }
    let wrong = Wrong {
        message: format!(
            "{slow} NICs and drives of the host map each transfer in the IOMMU, which costs them \
             speed"
        ),
        values: ("identity".into(), "DMA".into()),
        at: format!("/{GROUPS}/N/type"),
        hint: "`iommu=pt` on the kernel's command line leaves the host's own devices unmapped; \
               guests stay isolated"
            .into(),
        fix: fix::kernel(case.facts, &["iommu=pt"], &[]),
    };
    report.add(&MODE, wrong);
}
