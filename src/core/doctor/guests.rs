//! Rules on the programs that run guests: kernels that refuse them, libvirt's configuration, the
//! host's shutdown.

use super::report::{Report, Wrong, warn};
use super::{Case, Traits, fix, name};
use crate::check::SLOW_BARS;
use crate::finding::{Rule, Severity};
use crate::shell::word;
use crate::versions::{
    Component, Defect, KERNEL_PERMISSION, KERNEL_SMALL_MAPS, LIBVIRT_AGENT_DISKS, LIBVIRT_CVES,
    LIBVIRT_TPM_LOG, QEMU_SMALL_MAPS, Version,
};
use std::borrow::Cow;

/// Kernels whose VFIO refuses QEMU.
pub const PERMISSION: Rule =
    Rule::error("permission", "a kernel that gives QEMU no access to VFIO groups");
/// libvirt refuses guests whose NICs ask for it.
pub const VHOST_NET: Rule =
    Rule::warning("vhost-net", "a kernel that does not serve virtio NICs of guests");
/// Requirements of confidential guests on the IOMMU.
pub const CONFIDENTIAL: Rule =
    Rule::note("snp-tdx", "settings of the host that confidential guests cannot use");
/// The daemon runs as root, and guests reach it by their agents.
pub const VULNERABLE: Rule =
    Rule::warning("libvirt-cves", "a libvirt daemon of a version with known vulnerabilities");
/// QEMU cannot open VFIO's nodes.
pub const QEMU_USER: Rule =
    Rule::error("qemu-user", "a configuration of libvirt that keeps QEMU from VFIO");
/// Guests with much memory take minutes to end.
pub const SHUTDOWN: Rule =
    Rule::warning("guests-at-shutdown", "guests that are killed when the host goes down");

/// No guest gets a GPU again that one has had.
pub const UNTESTABLE: Rule = Rule::warning(
    "gpu-untestable",
    "GPUs that must be tested between guests, and no usable image to test them with",
);

/// The vendor of processors with SEV-SNP, as /proc/cpuinfo has it.
const AMD: &str = "AuthenticAMD";
/// BARs from this size on are slow with old versions.
const LARGE_BAR: u64 = 64 << 30;
/// Seconds that a guest with much memory takes to end.
const ENOUGH_S: u64 = 300;
/// The first libvirt whose daemon can end guests itself.
const AUTO_SHUTDOWN: Version = Version(11, 2, 0);
/// The first whose daemon is not ended by systemd before its guests are (libvirt news, 11.6.0).
const SAFE_AUTO_SHUTDOWN: Version = Version(11, 6, 0);
/// The entry that a list of devices needs for guests with GPUs.
const NODE: &str = "/dev/vfio/vfio";

pub(super) fn judge(case: &Case<'_>, report: &mut Report<'_>) {
    permission(case, report);
    slow(case, report);
    confidential(case, report);
    vulnerable(case, report);
    configuration(case, report);
    vhost(case, report);
    shutdown(case, report);
    untestable(case, report);
}

/// Finds a policy that requires tests of GPUs that cannot be made.
fn untestable(case: &Case<'_>, report: &mut Report<'_>) {
    let path = "etc/gpuvm/test.toml";
    let Some(tests) = report.need(&UNTESTABLE, &case.facts.gpu_tests, path) else { return };
    let Some(why) = &tests.untestable else { return };
    let at = format!("/{path}");
    let wrong = Wrong {
        message: format!("GPUs must be tested between guests, and cannot be: {why}"),
        values: ("a usable image and its SHA-256".into(), why.clone()),
        at: at.clone(),
        hint: format!(
            "name an image of `gpuvm image list` in {at}, as gpuvm-guide(7) says under GPUS BETWEEN \
             GUESTS; `gpuvm gpu include BDF --untested` answers for one GPU"
        ),
        fix: vec![format!("# name an image of `gpuvm image list` in {at}, with its sha256sum")],
    };
    report.add(&UNTESTABLE, wrong);
}

/// The feature missing without `VHOST_NET`.
pub const NO_VHOST: &str =
    "this machine has no /dev/vhost-net, which virtio NICs of guests need at their start";
/// The remedy for [`NO_VHOST`].
pub const NO_VHOST_HINT: &str = "`sudo modprobe vhost_net` loads it, and a guest of `--virt-type \
                                 qemu` does without";

/// Finds a kernel that does not serve virtio NICs.
fn vhost(case: &Case<'_>, report: &mut Report<'_>) {
    let path = "dev/vhost-net";
    if report.need(&VHOST_NET, &case.facts.kernel.vhost_net, path) != Some(&false) {
        return;
    }
    let wrong = Wrong {
        message: NO_VHOST.into(),
        values: ("a character device".into(), "none".into()),
        at: format!("/{path}"),
        hint: NO_VHOST_HINT.into(),
        fix: vec![
            "modprobe vhost_net".into(),
            "echo vhost_net >/etc/modules-load.d/vhost-net.conf".into(),
        ],
    };
    report.add(&VHOST_NET, wrong);
}

fn permission(case: &Case<'_>, report: &mut Report<'_>) {
    let release = &case.topology.machine().kernel_release;
    let Some(release) = report.need(&PERMISSION, release, "proc/sys/kernel/osrelease") else {
        return;
    };
    if case.defect(&KERNEL_PERMISSION).is_none() {
        return;
    }
    let wrong = Wrong {
        message: format!("kernel {release}: {}", KERNEL_PERMISSION.what),
        values: ("another kernel".into(), release.clone()),
        at: "/proc/sys/kernel/osrelease".into(),
        hint: format!("boot the kernel before, or a later one: {}", KERNEL_PERMISSION.source),
        fix: vec!["# boot another kernel".into()],
    };
    // Users have reported it of virtual functions; whether all devices are refused is not known.
    report.add(&PERMISSION, wrong);
}

fn vulnerable(case: &Case<'_>, report: &mut Report<'_>) {
    let Some(version) = case.versions.libvirt else {
        report.skip(&VULNERABLE, "the version of libvirt is not known");
        return;
    };
    let is_open =
        |defect: &&Defect| case.defect(defect).is_some() && !case.fixed.contains(defect.source);
    let has: Vec<_> = LIBVIRT_CVES.iter().filter(is_open).collect();
    let Some(good) = has.iter().filter_map(|defect| defect.good_from()).max() else { return };
    let said: Vec<String> =
        has.iter().map(|defect| format!("{} ({})", defect.source, defect.what)).collect();
    let wrong = Wrong {
        message: format!("libvirt {version} has {}", said.join(", ")),
        values: (format!("{good} or later"), version.to_string()),
        at: "version of the running libvirt daemon".into(),
        hint: format!(
            "fixed upstream in {}.{}; your distribution may have backported it: check its changelog",
            good.0, good.1
        ),
        fix: vec![format!(
            "# upgrade libvirt to {good}, or to a fixed package of the distribution"
        )],
    };
    // A defect that a guest can use against the daemon is more than a note.
    let traits = case.traits.unwrap_or_default();
    let is_open = |one: &Defect| has.iter().any(|defect| defect.source == one.source);
    let is_reached =
        traits.agent && is_open(&LIBVIRT_AGENT_DISKS) || traits.tpm && is_open(&LIBVIRT_TPM_LOG);
    let finding = report.add(&VULNERABLE, wrong);
    if !is_reached {
        finding.severity = Severity::Note;
    }
}

/// Finds versions that map large BARs slowly.
fn slow(case: &Case<'_>, report: &mut Report<'_>) {
    let large = |bar: &&crate::topology::Bar| bar.index < 6 && bar.bytes >= LARGE_BAR;
    let Some(gpu) = case.topology.gpus().find(|gpu| gpu.bars.iter().any(|bar| large(&bar))) else {
        return;
    };
    for defect in [KERNEL_SMALL_MAPS, QEMU_SMALL_MAPS] {
        if case.version(defect.of).is_none() {
            let what = if defect.of == Component::Kernel { "the kernel" } else { "QEMU" };
            let why = format!("the version of {what} is not known");
            let other = [KERNEL_SMALL_MAPS, QEMU_SMALL_MAPS].map(|one| case.version(one.of));
            if other.iter().any(Option::is_some) {
                report.skip_part(&SLOW_BARS, why);
            } else {
                report.skip(&SLOW_BARS, why);
            }
        }
        let Some(version) = case.defect(&defect) else { continue };
        let good = defect.good_from().unwrap_or(version);
        let what = if defect.of == Component::Kernel { "kernel" } else { defect.of.name() };
        let upgrade = format!("install {what} {good} or later");
        let wrong = Wrong {
            message: format!("{} {version} and {}: {}", defect.of.name(), name(gpu), defect.what),
            values: (format!("{good} or later"), version.to_string()),
            at: match defect.of {
                Component::Kernel => "/proc/sys/kernel/osrelease".into(),
                _ => "the hypervisor".into(),
            },
            hint: upgrade.clone(),
            fix: vec![format!("# {upgrade}")],
        };
        report.add(&SLOW_BARS, wrong);
    }
}

fn confidential(case: &Case<'_>, report: &mut Report<'_>) {
    let path = "sys/module/kvm_amd/parameters/sev_snp";
    let offered = &case.facts.kernel.sev_snp;
    let vendor = case.topology.machine().cpu_vendor.as_deref();
    let is_other = case.is_arm() || vendor.is_some_and(|one| one != AMD);
    if is_other && offered.is_none() && !case.facts.unread.contains_key(path) {
        return;
    }
    let offered = report.need(&CONFIDENTIAL, offered, path);
    if offered == Some(&true) && case.argument("iommu") == Some("pt") {
        let wrong = Wrong {
            message:
                "KVM offers SEV-SNP, and `iommu=pt` keeps the IOMMU from protecting such guests"
                    .into(),
            values: ("no iommu=pt".into(), "iommu=pt".into()),
            at: "/proc/cmdline".into(),
            hint: "remove `iommu=pt` from the kernel's arguments if guests are to be confidential"
                .into(),
            fix: fix::kernel(case.facts, &[], &["iommu=pt"]),
        };
        report.add(&CONFIDENTIAL, wrong);
    }
}

fn configuration(case: &Case<'_>, report: &mut Report<'_>) {
    let Some(config) = report.need(&QEMU_USER, &case.facts.libvirt, "etc/libvirt/qemu.conf") else {
        return;
    };
    let at = "/etc/libvirt/qemu.conf";
    // libvirt itself opens the devices of a guest by iommufd.
    let needs_node = !case.traits.is_some_and(Traits::are_without_groups);
    let lacks_node = |list: &&Vec<String>| needs_node && !list.iter().any(|one| one == NODE);
    if let Some(list) = config.device_acl.as_ref().filter(lacks_node) {
        let wrong = Wrong {
            message: format!(
                "cgroup_device_acl lists devices for QEMU, and {NODE} is not one of them"
            ),
            values: (NODE.into(), list.join(" ")),
            at: at.into(),
            hint: format!("add \"{NODE}\" to the list, and restart libvirt's daemon"),
            fix: vec![format!("# add \"{NODE}\" to cgroup_device_acl in {at}")],
        };
        report.add(&QEMU_USER, wrong);
    }
    let usual = ["root", "qemu", "libvirt-qemu", "+0", "0"];
    if let Some(user) = config.user.as_ref().filter(|user| !usual.contains(&user.as_str())) {
        let wrong = Wrong {
            message: format!(
                "QEMU runs as user `{user}`, whose access to VFIO and huge pages is not libvirt's usual one"
            ),
            values: ("the distribution's user".into(), user.clone()),
            at: at.into(),
            hint: format!(
                "`sudo -u {} test -w {NODE}` tells; udev rules and hugetlbfs mounts have to allow it",
                word(&of_sudo(user))
            ),
            fix: vec![format!("# remove `user` from {at}")],
        };
        warn(report.add(&QEMU_USER, wrong));
    }
}

/// A user of qemu.conf as sudo takes it: `+64055` is a number, for sudo `#64055`.
fn of_sudo(user: &str) -> Cow<'_, str> {
    let number = user.strip_prefix('+').unwrap_or(user);
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { format!("#{number}").into() } else { user.into() }
}

/// Judges how guests end with the host.
fn shutdown(case: &Case<'_>, report: &mut Report<'_>) {
    let unit = &case.facts.guests_unit;
    let Some(unit) = report.need(&SHUTDOWN, unit, "etc/default/libvirt-guests") else { return };
    let auto = case.facts.libvirt.as_ref().is_some_and(|config| config.auto_shutdown);
    let version = case.versions.libvirt;
    let knows_auto = version.is_none_or(|version| version >= AUTO_SHUTDOWN);
    let is_early = version.is_some_and(|version| version < SAFE_AUTO_SHUTDOWN);
    let wrong = if !unit.enabled && !auto {
        Wrong {
            message: "libvirt-guests is not enabled: guests are killed when the host goes down".into(),
            values: ("enabled".into(), "disabled".into()),
            at: "/etc/systemd/system/multi-user.target.wants/libvirt-guests.service".into(),
            hint: "`systemctl enable --now libvirt-guests`, with ON_SHUTDOWN=shutdown and \
                   SHUTDOWN_TIMEOUT=600 in /etc/default/libvirt-guests (Fedora, RHEL: /etc/sysconfig)"
                .into(),
            fix: vec!["systemctl enable --now libvirt-guests".into()],
        }
    } else if auto && knows_auto && is_early {
        Wrong {
            message:
                "libvirt's daemon ends guests when the host goes down, and before 11.6 systemd \
                      may kill them first"
                    .into(),
            values: ("libvirt-guests alone".into(), "auto_shutdown_*".into()),
            at: "/etc/libvirt/qemu.conf".into(),
            hint: "remove auto_shutdown_* from qemu.conf; `systemctl enable --now libvirt-guests` \
                   ends guests instead"
                .into(),
            fix: vec!["systemctl enable --now libvirt-guests".into()],
        }
    } else if unit.enabled && auto && knows_auto {
        Wrong {
            message: "libvirt's daemon and libvirt-guests both end guests when the host goes down"
                .into(),
            values: ("one of them".into(), "both".into()),
            at: "/etc/libvirt/qemu.conf".into(),
            hint: "`systemctl disable libvirt-guests`, or remove auto_shutdown_* from qemu.conf"
                .into(),
            fix: vec!["systemctl disable libvirt-guests".into()],
        }
    } else if let Some((seconds, at)) = unit
        .timeout_s
        .as_ref()
        .filter(|(seconds, _)| unit.enabled && (1..ENOUGH_S).contains(seconds))
    {
        Wrong {
            message: format!(
                "guests have {seconds} s to end when the host goes down, and those with much memory \
                 take longer"
            ),
            values: (format!("{ENOUGH_S} or more"), seconds.to_string()),
            at: format!("/{at}"),
            hint: format!("write SHUTDOWN_TIMEOUT=600 in /{at}"),
            fix: vec![format!(
                "sed -i 's/^\\s*SHUTDOWN_TIMEOUT=.*/SHUTDOWN_TIMEOUT=600/' {}",
                word(&format!("/{at}"))
            )],
        }
    } else {
        return;
    };
    report.add(&SHUTDOWN, wrong);
}
