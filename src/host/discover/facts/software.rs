//! Requirements of every guest on its host: KVM, libvirt's daemon, QEMU, UEFI firmware.

use super::text;
use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::topology::software::{LibvirtDaemon, PackageTool, Platform, Software};
use serde::Deserialize;
use std::os::unix::fs::FileTypeExt as _;

/// The device of the kernel's KVM.
const KVM: &str = "dev/kvm";
const CONTAINER: [&str; 3] = [".dockerenv", "run/.containerenv", "run/systemd/container"];
const PROGRAMS: [&str; 5] =
    ["usr/bin", "usr/sbin", "usr/libexec", "usr/local/bin", "usr/local/sbin"];
/// Where descriptors of firmware are, as libvirt looks for them (QEMU, docs/interop/firmware.json).
const DESCRIPTORS: [&str; 2] = ["usr/share/qemu/firmware", "etc/qemu/firmware"];

/// A descriptor of firmware, as far as needed.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Descriptor {
    /// `uefi`, `bios`.
    #[serde(default)]
    interface_types: Vec<String>,
    mapping: Mapping,
    #[serde(default)]
    targets: Vec<Target>,
}

/// The files of firmware: in flash the executable one, otherwise the only one.
#[derive(Debug, Deserialize)]
struct Mapping {
    executable: Option<Executable>,
    filename: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Executable {
    /// Its path.
    filename: String,
}

/// The machines that firmware is for.
#[derive(Debug, Deserialize)]
struct Target {
    architecture: String,
}

/// Whether there is `/dev/kvm`; `None` if the record has no devices.
pub(super) fn kvm(root: &FsRoot) -> Option<bool> {
    if root.is_live() {
        // A file in its place is none.
        let meta = std::fs::metadata(format!("/{KVM}"));
        return Some(meta.is_ok_and(|meta| meta.file_type().is_char_device()));
    }
    root.exists("dev").then(|| root.exists(KVM))
}

/// Reads the kind of processors; `None` if their flags are not known.
pub(super) fn platform(root: &FsRoot) -> Result<Option<Platform>, FsError> {
    let text = root.read_head("proc/cpuinfo")?.unwrap_or_default();
    let flags = text.lines().find_map(|line| {
        let (key, flags) = line.split_once(':')?;
        (key.trim() == "flags").then(|| flags.split_whitespace().collect::<Vec<_>>())
    });
    let Some(flags) = flags else { return Ok(None) };
    // Xen's own first domain sees a hypervisor, too.
    let xen = root.read("proc/xen/capabilities").ok().flatten().unwrap_or_default();
    Ok(Some(Platform {
        is_virtual: flags.contains(&"hypervisor") && !xen.contains("control_d"),
        has_virtualization: flags.contains(&"vmx") || flags.contains(&"svm"),
        is_container: CONTAINER.iter().any(|path| root.exists(path)),
    }))
}

/// Reads which programs for guests a system has; none where the files are not those of a whole
/// system.
pub(super) fn software(root: &FsRoot) -> Result<Option<Software>, FsError> {
    let release = match text(root, "etc/os-release") {
        Ok(Some(release)) => release,
        _ => text(root, "usr/lib/os-release")?.unwrap_or_default(),
    };
    if !release.contains('=') {
        return Ok(None);
    }
    let arm = root.read("proc/sys/kernel/arch").ok().flatten();
    let arm = arm.as_deref().unwrap_or(std::env::consts::ARCH) == "aarch64";
    let architecture = if arm { "aarch64" } else { "x86_64" };
    let program = |names: &[&str]| {
        let paths = PROGRAMS.iter().flat_map(|dir| names.iter().map(move |n| format!("{dir}/{n}")));
        paths.into_iter().find(|path| root.exists(path))
    };
    let emulator = format!("qemu-system-{architecture}");
    Ok(Some(Software {
        packages: PackageTool::of_distribution(words(&release)),
        daemon: daemon(root, |name| program(&[name]).is_some()),
        qemu: program(&[&emulator, "qemu-kvm"]).map(|path| format!("/{path}")),
        firmware: has_firmware(root, architecture),
    }))
}

/// The words of `ID`, then those of `ID_LIKE`, of os-release(5).
fn words(release: &str) -> Vec<&str> {
    let of = |key: &str| {
        let mut values = release.lines().filter_map(|line| line.trim().strip_prefix(key));
        values.next().unwrap_or_default().trim_matches(['"', '\'']).split_whitespace()
    };
    of("ID=").chain(of("ID_LIKE=")).collect()
}

/// The daemon of libvirt that the system starts, or could.
fn daemon(root: &FsRoot, has: impl Fn(&str) -> bool) -> Option<LibvirtDaemon> {
    let is_enabled = root.exists("etc/systemd/system/sockets.target.wants/virtqemud.socket");
    match (has("virtqemud"), has("libvirtd")) {
        (true, true) if is_enabled => Some(LibvirtDaemon::Modular),
        (_, true) => Some(LibvirtDaemon::Libvirtd),
        (true, false) => Some(LibvirtDaemon::Modular),
        (false, false) => None,
    }
}

/// Whether a descriptor names UEFI firmware for this architecture that is there.
fn has_firmware(root: &FsRoot, architecture: &str) -> bool {
    let is_one = |path: String| {
        let text = text(root, &path).ok().flatten().unwrap_or_default();
        let Ok(found) = serde_json::from_str::<Descriptor>(&text) else { return false };
        let file = found.mapping.executable.map(|file| file.filename).or(found.mapping.filename);
        found.interface_types.iter().any(|kind| kind == "uefi")
            && found.targets.iter().any(|target| target.architecture == architecture)
            && file.is_some_and(|file| root.exists(file.trim_start_matches('/')))
    };
    DESCRIPTORS.iter().any(|dir| {
        let names = root.names(dir).unwrap_or_default();
        names.iter().filter(|name| name.ends_with(".json")).any(|n| is_one(format!("{dir}/{n}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, FsRoot) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = FsRoot::at(dir.path()).unwrap();
        (dir, root)
    }

    #[test]
    fn a_virtual_machine_and_what_its_processors_offer_are_read() {
        let of = |flags: &str, more: &[(&str, &str)]| {
            let text = format!("processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: {flags}\n");
            let (_dir, root) = host(&[&[("proc/cpuinfo", text.as_str())], more].concat());
            platform(&root).unwrap()
        };
        let bare = Platform { has_virtualization: true, ..Platform::default() };
        let guest = Platform { is_virtual: true, ..Platform::default() };
        assert_eq!(of("fpu vmx", &[]), Some(bare.clone()));
        assert_eq!(of("fpu hypervisor", &[]), Some(guest.clone()));
        let nested = Platform { has_virtualization: true, ..guest };
        assert_eq!(of("svm hypervisor", &[]), Some(nested));
        assert_eq!(of("vmx hypervisor", &[("proc/xen/capabilities", "control_d\n")]), Some(bare));
        assert!(of("vmx", &[("run/systemd/container", "docker")]).unwrap().is_container);
        let (_dir, root) = host(&[("proc/cpuinfo", "processor: 0\n")]);
        assert_eq!(platform(&root).unwrap(), None);
    }

    #[test]
    fn programs_and_firmware_are_found_where_distributions_have_them() {
        let of = |files: &[(&str, &str)]| {
            let (_dir, root) = host(files);
            software(&root).unwrap()
        };
        assert_eq!(of(&[("usr/bin/qemu-system-x86_64", "")]), None);
        let debian = ("etc/os-release", "NAME=\"Debian\"\nID=debian\n");
        let bare = Software { packages: Some(PackageTool::Apt), ..Software::default() };
        assert_eq!(of(&[debian]), Some(bare.clone()));
        let arch = ("proc/sys/kernel/arch", "x86_64\n");
        let descriptor = r#"{"interface-types": ["uefi"], "targets": [{"architecture": "x86_64"}],
            "mapping": {"device": "flash", "executable": {"filename": "/usr/share/OVMF/C.fd"}}}"#;
        let described = ("usr/share/qemu/firmware/50-ovmf.json", descriptor);
        let whole = of(&[
            debian,
            arch,
            described,
            ("usr/share/OVMF/C.fd", ""),
            ("usr/sbin/libvirtd", ""),
            ("usr/bin/qemu-system-x86_64", ""),
        ]);
        let qemu = Some("/usr/bin/qemu-system-x86_64".to_owned());
        let daemon = Some(LibvirtDaemon::Libvirtd);
        assert_eq!(whole, Some(Software { daemon, qemu, firmware: true, ..bare.clone() }));
        // A descriptor of a file that is not there, and one of another architecture.
        assert!(!of(&[debian, arch, described]).unwrap().firmware);
        let other = descriptor.replace("x86_64", "aarch64");
        let other = ("etc/qemu/firmware/a.json", other.as_str());
        assert!(!of(&[debian, arch, other, ("usr/share/OVMF/C.fd", "")]).unwrap().firmware);
        let rocky = of(&[
            ("usr/lib/os-release", "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"),
            ("usr/sbin/virtqemud", ""),
            ("usr/libexec/qemu-kvm", ""),
        ]);
        let rocky = rocky.unwrap();
        assert_eq!(
            (rocky.packages, rocky.daemon),
            (Some(PackageTool::Dnf), Some(LibvirtDaemon::Modular))
        );
        assert_eq!(rocky.qemu.as_deref(), Some("/usr/libexec/qemu-kvm"));
    }

    #[test]
    fn a_record_without_devices_says_nothing_of_kvm() {
        let (_dir, root) = host(&[("proc/cpuinfo", "")]);
        assert_eq!(kvm(&root), None);
        let (_dir, root) = host(&[("dev/null", "")]);
        assert_eq!(kvm(&root), Some(false));
        let (_dir, root) = host(&[("dev/kvm", "")]);
        assert_eq!(kvm(&root), Some(true));
    }
}
