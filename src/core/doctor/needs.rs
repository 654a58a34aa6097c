//! Rules on the basic needs of every guest with a GPU: KVM, libvirt, QEMU with firmware, a GPU.
//! Each finding has the command that installs or starts the missing part.

use super::report::{Report, Wrong};
use super::{Case, Finding};
use crate::finding::Rule;
use crate::topology::Facts;
use crate::topology::software::{GuestSupport, LibvirtDaemon, Package, UnusableKvm};

/// Guests are emulated without it.
pub const NO_KVM: Rule = Rule::error("no-kvm", "a machine whose guests cannot use KVM");
/// It runs guests.
pub const NO_LIBVIRT: Rule =
    Rule::error("no-libvirt", "a host whose libvirt is not installed or does not run");
/// Guests run in it.
pub const NO_QEMU: Rule = Rule::error("no-qemu", "a host without QEMU");
/// GPUs need UEFI.
pub const NO_FIRMWARE: Rule =
    Rule::error("no-firmware", "a host without UEFI firmware for guests (OVMF)");
/// The host has nothing to pass through.
pub const NO_GPU: Rule = Rule::error("no-gpu", "a host without a GPU");

pub(super) const RULES: [&Rule; 5] = [&NO_KVM, &NO_LIBVIRT, &NO_QEMU, &NO_FIRMWARE, &NO_GPU];

/// Whether libvirt answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Connection {
    /// It was not asked, or refuses, for this reason.
    NotAsked(String),
    /// There is none, for this reason.
    Absent {
        /// Its message.
        why: String,
        /// Whether its client library is missing.
        is_library: bool,
    },
    /// It answers; with the guests that it can run, where it reports them.
    Answers(Option<GuestSupport>),
}

impl Connection {
    /// libvirt's report of guests.
    pub fn support(&self) -> Option<&GuestSupport> {
        match self {
            Connection::Answers(support) => support.as_ref(),
            _ => None,
        }
    }

    /// Why libvirt does not report of guests.
    fn silence(&self) -> &str {
        match self {
            Connection::NotAsked(why) => why,
            Connection::Absent { .. } => "no libvirt answers",
            Connection::Answers(_) => "libvirt does not report it",
        }
    }
}

pub(super) fn judge(case: &Case<'_>, report: &mut Report<'_>) {
    kvm(case, report);
    libvirt(case, report);
    qemu(case, report);
    firmware(case, report);
    gpu(case, report);
}

/// Returns findings for each of KVM, libvirt, QEMU and firmware that a host lacks.
pub fn missing(case: &Case<'_>) -> Vec<Finding> {
    let mut report = Report::new(case.facts);
    kvm(case, &mut report);
    libvirt(case, &mut report);
    qemu(case, &mut report);
    firmware(case, &mut report);
    report.finish().findings
}

/// Finds a machine without KVM, or with one that libvirt cannot use.
fn kvm(case: &Case<'_>, report: &mut Report<'_>) {
    let support = case.connection.support().filter(|support| support.emulator.is_some());
    let unusable = support.and_then(|support| support.no_kvm.as_ref());
    match (case.facts.kernel.kvm, unusable) {
        (Some(false), _) => {
            report.add(&NO_KVM, without_kvm(case));
        }
        (_, Some(why)) => {
            report.add(&NO_KVM, unusable_kvm(why));
        }
        (Some(true), None) if support.is_some() => {}
        (None, None) if support.is_some() => {}
        (Some(true), None) => {
            let why = case.connection.silence();
            report.skip_part(&NO_KVM, format!("whether libvirt can use it: {why}"));
        }
        (None, None) => report.skip(&NO_KVM, "/dev/kvm is not known"),
    }
}

/// The cost of emulation, as the end of a hint.
const EMULATED: &str = "`--virt-type qemu` of `gpuvm create` emulates the CPU, many times slower";

/// Describes a machine without `/dev/kvm`.
fn without_kvm(case: &Case<'_>) -> Wrong {
    let (why, help, fix) = if case.is_arm() { kvm_on_arm() } else { kvm_on_x86(case) };
    Wrong {
        message: format!("this machine has no /dev/kvm, which guests need{why}"),
        values: ("a character device".into(), "none".into()),
        at: "/dev/kvm".into(),
        hint: format!("{help}; {EMULATED}"),
        fix: vec![fix],
    }
}

/// Why an Arm machine has no KVM, and how it gets it: as words, and in a script. KVM is no module
/// there, and its processors have no flag for it.
fn kvm_on_arm() -> (String, String, String) {
    let help = "KVM is part of Arm kernels with CONFIG_KVM, and needs firmware that starts the \
                kernel at EL2, and no `kvm-arm.mode=none`: `journalctl -k | grep -i kvm` shows \
                which is missing";
    let fix = "# see `journalctl -k | grep -i kvm`: no module brings KVM on Arm";
    (String::new(), help.to_owned(), fix.to_owned())
}

/// The same of other machines.
fn kvm_on_x86(case: &Case<'_>) -> (String, String, String) {
    let is_amd = case.topology.machine().cpu_vendor.as_deref() == Some("AuthenticAMD");
    let (module, technology) =
        if is_amd { ("kvm_amd", "AMD-V (SVM)") } else { ("kvm_intel", "VT-x") };
    let platform = case.facts.platform.as_ref();
    let mut why = String::new();
    let (help, fix) = match platform {
        Some(platform) if platform.is_container => (
            "give the container the device /dev/kvm when it is started".to_owned(),
            "# start the container with the device /dev/kvm".to_owned(),
        ),
        Some(platform) if platform.has_virtualization => {
            (format!("`sudo modprobe {module}` loads it"), format!("modprobe {module}"))
        }
        Some(platform) if platform.is_virtual => {
            why = format!(
                ": this is a virtual machine{}, and its hypervisor gives it no hardware \
                 virtualization",
                case.product()
            );
            let help = "turn on nested virtualization in its hypervisor (libvirt: CPU mode \
                        host-passthrough; QEMU: `-cpu host`; a cloud: a type with nested \
                        virtualization, or bare metal)";
            (help.to_owned(), "# turn on nested virtualization in its hypervisor".to_owned())
        }
        Some(_) => {
            why = format!(": {technology} is off in the BIOS setup");
            let help = format!("turn on {technology} in the BIOS setup and reboot");
            (help, format!("# turn on {technology} in the BIOS setup: no command does"))
        }
        None => (
            "`sudo modprobe kvm_intel` or `sudo modprobe kvm_amd` loads it where the firmware has \
             virtualization on"
                .to_owned(),
            "modprobe kvm_intel || modprobe kvm_amd".to_owned(),
        ),
    };
    (why, help, fix)
}

/// Describes a `/dev/kvm` that libvirt cannot use.
fn unusable_kvm(UnusableKvm { why, command }: &UnusableKvm) -> Wrong {
    let (help, fix) = match command {
        None => (
            "`ls -l /dev/kvm` shows who may open it, `journalctl -k | grep -i kvm` whether the \
             kernel can use it"
                .to_owned(),
            "# see `ls -l /dev/kvm` and `journalctl -k | grep -i kvm`".to_owned(),
        ),
        Some(command) => {
            (format!("`sudo sh -c {}` lets it", crate::shell::word(command)), command.clone())
        }
    };
    Wrong {
        message: format!("/dev/kvm is there, but libvirt cannot run guests with it: {why}"),
        values: ("domain capabilities for kvm".into(), "none".into()),
        at: "/dev/kvm".into(),
        hint: format!("{help}; {EMULATED}"),
        fix: vec![fix],
    }
}

/// Finds a host without a libvirt that answers.
fn libvirt(case: &Case<'_>, report: &mut Report<'_>) {
    let software = case.facts.software.as_ref();
    let is_installed = software.map(|software| software.daemon.is_some());
    let (message, found, package) = match (case.connection, is_installed) {
        (Connection::Answers(_), _) => return,
        (Connection::Absent { why, is_library: true }, _) => {
            (format!("libvirt's client library cannot be loaded: {why}"), "none", Package::Library)
        }
        (_, Some(false)) => {
            ("libvirt is not installed".to_owned(), "not installed", Package::Daemon)
        }
        (Connection::Absent { why, .. }, _) => {
            let start = software.and_then(|software| software.daemon);
            report.add(&NO_LIBVIRT, stopped(why, start));
            return;
        }
        (Connection::NotAsked(why), Some(true)) => {
            return report.skip_part(&NO_LIBVIRT, format!("whether it runs: {why}"));
        }
        (Connection::NotAsked(why), None) => return report.skip(&NO_LIBVIRT, why.as_str()),
    };
    let packages = packages(case, &[package]);
    let wrong = Wrong {
        message,
        values: ("a daemon that answers".into(), found.into()),
        at: "libvirt".into(),
        hint: packages.0,
        fix: packages.1,
    };
    report.add(&NO_LIBVIRT, wrong);
}

/// Describes a libvirt that does not run.
fn stopped(why: &str, daemon: Option<LibvirtDaemon>) -> Wrong {
    let start = daemon.unwrap_or(LibvirtDaemon::Libvirtd).start();
    Wrong {
        message: format!("libvirt does not run: {why}"),
        values: ("a daemon that answers".into(), "none".into()),
        at: "libvirt".into(),
        hint: format!("`sudo {start}` starts it, also at each boot"),
        fix: vec![start.to_owned()],
    }
}

fn qemu(case: &Case<'_>, report: &mut Report<'_>) {
    let by_libvirt = case.connection.support().map(|support| support.emulator.is_some());
    let by_files = || case.facts.software.as_ref().map(|software| software.qemu.is_some());
    match by_libvirt.or_else(by_files) {
        None => report.skip(&NO_QEMU, case.connection.silence()),
        Some(true) => {}
        Some(false) => {
            let (hint, fix) = packages(case, &[Package::Qemu]);
            let wrong = Wrong {
                message: "QEMU is not installed, in which guests run".into(),
                values: ("a program".into(), "none".into()),
                at: "QEMU".into(),
                hint,
                fix,
            };
            report.add(&NO_QEMU, wrong);
        }
    }
}

/// Finds a host without firmware for guests.
fn firmware(case: &Case<'_>, report: &mut Report<'_>) {
    // Without an emulator libvirt looks for no firmware.
    let asked = case.connection.support().filter(|support| support.emulator.is_some());
    let by_libvirt = asked.map(|support| support.has_firmware);
    let by_files = case.facts.software.as_ref().map(|software| software.firmware);
    // libvirt lists the firmware of its default machine only: firmware for another machine may be
    // installed, too.
    let by_libvirt = by_libvirt.filter(|has| *has || by_files != Some(true));
    match by_libvirt.or(by_files) {
        None => report.skip(&NO_FIRMWARE, case.connection.silence()),
        Some(true) => {}
        Some(false) => {
            let (hint, fix) = packages(case, &[Package::Firmware]);
            let wrong = Wrong {
                message: "there is no UEFI firmware (OVMF) for guests, which GPUs need".into(),
                values: ("a descriptor of UEFI firmware".into(), "none".into()),
                at: "/usr/share/qemu/firmware".into(),
                hint,
                fix,
            };
            report.add(&NO_FIRMWARE, wrong);
        }
    }
}

/// Returns the hint and the commands that install packages.
fn packages(case: &Case<'_>, wanted: &[Package]) -> (String, Vec<String>) {
    let of_host = |facts: &Facts| {
        let architecture = case.topology.machine().architecture.as_deref();
        facts.software.as_ref()?.install(wanted, architecture)
    };
    match of_host(case.facts) {
        Some(command) => (format!("`sudo {command}`"), vec![command]),
        None => {
            let what = match wanted {
                [Package::Daemon, ..] => "libvirt's daemon with its QEMU driver",
                [Package::Library, ..] => "libvirt's client library",
                [Package::Qemu, ..] => "QEMU for this machine's processors",
                _ => "UEFI firmware for guests: OVMF, edk2",
            };
            (format!("install {what}"), vec![format!("# install {what}")])
        }
    }
}

/// Finds a host without a GPU.
fn gpu(case: &Case<'_>, report: &mut Report<'_>) {
    if case.gpus().next().is_some() {
        return;
    }
    let is_virtual = case.facts.platform.as_ref().is_some_and(|platform| platform.is_virtual);
    if !is_virtual && case.topology.unlisted().is_some() {
        report.skip(&NO_GPU, "/sys/bus/pci/devices is not known");
        return;
    }
    let (message, hint, fix) = if is_virtual {
        (
            format!(
                "no GPU: this is a virtual machine{}, and its hypervisor passes no GPU to it",
                case.product()
            ),
            "pass a GPU to it in its hypervisor, with a virtual IOMMU; guests without GPUs work",
            "# pass a GPU to this virtual machine, in its hypervisor",
        )
    } else {
        (
            "no GPU: the PCI bus shows none".to_owned(),
            "`lspci -nn | grep -i nvidia` shows whether the kernel sees the card: seat it, turn on \
             \"Above 4G decoding\" in the BIOS setup; guests without GPUs work",
            "# look for the card: lspci -nn | grep -i nvidia",
        )
    };
    let wrong = Wrong {
        message,
        values: ("a GPU".into(), "none".into()),
        at: "/sys/bus/pci/devices".into(),
        hint: hint.into(),
        fix: vec![fix.into()],
    };
    report.add(&NO_GPU, wrong);
}
