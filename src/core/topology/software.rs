//! Needs of a host before any guest: hardware virtualization, libvirt, QEMU, firmware for guests;
//! and the commands that install it, by distribution.

use serde::{Deserialize, Serialize};

/// The machine below the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Platform {
    /// Whether it is a virtual machine: the flag `hypervisor` of its processors.
    pub is_virtual: bool,
    /// Whether its processors offer hardware virtualization: the flags `vmx`, `svm`.
    pub has_virtualization: bool,
    /// Whether the files are those of a container.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_container: bool,
}

/// The program that installs packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PackageTool {
    /// Debian, Ubuntu.
    Apt,
    /// Fedora, RHEL and its rebuilds.
    Dnf,
    /// SUSE.
    Zypper,
    /// Arch.
    Pacman,
}

/// The content of a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Package {
    /// libvirt's daemon, with its QEMU driver.
    Daemon,
    /// libvirt's client library.
    Library,
    /// QEMU.
    Qemu,
    /// UEFI firmware for guests.
    Firmware,
}

impl PackageTool {
    /// Returns the tool of a distribution by the words `ID` and `ID_LIKE` of os-release(5).
    pub fn of_distribution<'w>(words: impl IntoIterator<Item = &'w str>) -> Option<PackageTool> {
        words.into_iter().find_map(|word| match word {
            "debian" | "ubuntu" => Some(PackageTool::Apt),
            "fedora" | "rhel" | "centos" | "rocky" | "almalinux" => Some(PackageTool::Dnf),
            "suse" | "opensuse" | "sles" => Some(PackageTool::Zypper),
            "arch" => Some(PackageTool::Pacman),
            _ => None,
        })
    }

    /// Returns the command that installs packages on an architecture, as `uname -m` names it.
    pub fn install(self, packages: &[Package], architecture: &str) -> String {
        let command = match self {
            PackageTool::Apt => "apt install",
            PackageTool::Dnf => "dnf install",
            PackageTool::Zypper => "zypper install",
            PackageTool::Pacman => "pacman -S",
        };
        let names = packages.iter().map(|package| self.package(*package, architecture));
        format!("{command} {}", names.collect::<Vec<_>>().join(" "))
    }

    fn package(self, package: Package, architecture: &str) -> &'static str {
        let is_arm = architecture == "aarch64";
        match (self, package) {
            (PackageTool::Apt, Package::Daemon) => "libvirt-daemon-system",
            (PackageTool::Apt, Package::Library) => "libvirt0",
            (PackageTool::Apt, Package::Qemu) if is_arm => "qemu-system-arm",
            (PackageTool::Apt, Package::Qemu) => "qemu-system-x86",
            (PackageTool::Apt, Package::Firmware) if is_arm => "qemu-efi-aarch64",
            (PackageTool::Apt, Package::Firmware) => "ovmf",
            (PackageTool::Dnf, Package::Daemon) => "libvirt-daemon-kvm",
            (PackageTool::Dnf | PackageTool::Zypper, Package::Library) => "libvirt-libs",
            (PackageTool::Dnf, Package::Qemu) => "qemu-kvm",
            (PackageTool::Dnf, Package::Firmware) if is_arm => "edk2-aarch64",
            (PackageTool::Dnf, Package::Firmware) => "edk2-ovmf",
            (PackageTool::Zypper, Package::Daemon) => "libvirt-daemon-qemu",
            (PackageTool::Zypper, Package::Qemu) if is_arm => "qemu-arm",
            (PackageTool::Zypper, Package::Qemu) => "qemu-x86",
            (PackageTool::Zypper, Package::Firmware) if is_arm => "qemu-uefi-aarch64",
            (PackageTool::Zypper, Package::Firmware) => "qemu-ovmf-x86_64",
            (PackageTool::Pacman, Package::Daemon | Package::Library) => "libvirt",
            (PackageTool::Pacman, Package::Qemu) if is_arm => "qemu-system-aarch64",
            (PackageTool::Pacman, Package::Qemu) => "qemu-base",
            (PackageTool::Pacman, Package::Firmware) if is_arm => "edk2-aarch64",
            (PackageTool::Pacman, Package::Firmware) => "edk2-ovmf",
        }
    }
}

/// The daemon of libvirt that a host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LibvirtDaemon {
    /// One daemon for everything, libvirtd.
    Libvirtd,
    /// A daemon for each driver: virtqemud and others.
    Modular,
}

impl LibvirtDaemon {
    /// Returns the command that starts it, also at each boot.
    pub fn start(self) -> &'static str {
        match self {
            LibvirtDaemon::Libvirtd => "systemctl enable --now libvirtd",
            LibvirtDaemon::Modular => {
                "systemctl enable --now virtqemud.socket virtnetworkd.socket virtstoraged.socket"
            }
        }
    }
}

/// The programs that guests need, as far as a host's files show.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Software {
    /// The program that installs packages; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packages: Option<PackageTool>,
    /// libvirt's daemon; `None` if not installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daemon: Option<LibvirtDaemon>,
    /// QEMU's program; `None` if not installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qemu: Option<String>,
    /// Whether there is UEFI firmware for guests.
    pub firmware: bool,
}

impl Software {
    /// Returns the command that installs packages; `None` for an unknown distribution.
    pub fn install(&self, packages: &[Package], architecture: Option<&str>) -> Option<String> {
        Some(self.packages?.install(packages, architecture.unwrap_or("x86_64")))
    }
}

/// Why libvirt runs no guest with KVM, though the kernel offers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusableKvm {
    /// The reason.
    pub why: String,
    /// The command that mends it, for root; `None` if unknown.
    pub command: Option<String>,
}

/// libvirt's report of the guests that it can run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuestSupport {
    /// QEMU's program; `None` if it finds none.
    pub emulator: Option<String>,
    /// Why it runs no guest with KVM; `None` if it does.
    pub no_kvm: Option<UnusableKvm>,
    /// Whether it finds UEFI firmware for guests.
    pub has_firmware: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_distribution_has_its_own_command() {
        let of = |words: &str| PackageTool::of_distribution(words.split(' '));
        assert_eq!(of("debian"), Some(PackageTool::Apt));
        assert_eq!(of("linuxmint ubuntu debian"), Some(PackageTool::Apt));
        assert_eq!(of("rocky rhel centos fedora"), Some(PackageTool::Dnf));
        assert_eq!(of("opensuse-leap suse opensuse"), Some(PackageTool::Zypper));
        assert_eq!(of("nixos"), None);
        let all = [Package::Daemon, Package::Qemu, Package::Firmware];
        for (tool, machine, command) in [
            (PackageTool::Apt, "x86_64", "apt install libvirt-daemon-system qemu-system-x86 ovmf"),
            (
                PackageTool::Apt,
                "aarch64",
                "apt install libvirt-daemon-system qemu-system-arm qemu-efi-aarch64",
            ),
            (PackageTool::Dnf, "x86_64", "dnf install libvirt-daemon-kvm qemu-kvm edk2-ovmf"),
            (
                PackageTool::Zypper,
                "x86_64",
                "zypper install libvirt-daemon-qemu qemu-x86 qemu-ovmf-x86_64",
            ),
            (PackageTool::Pacman, "x86_64", "pacman -S libvirt qemu-base edk2-ovmf"),
        ] {
            assert_eq!(tool.install(&all, machine), command);
        }
    }
}
