//! The configuration that decides at boot which driver gets a GPU: files of modprobe, module lists,
//! kernel arguments, the initramfs; and how arguments and initramfs are changed on this
//! distribution.

use super::{lines, text};
use crate::discover::isolation::option_files;
use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::topology::Topology;
use gpuvm_core::topology::facts::{BootDrivers, BootLoader, GivenIds, InitramfsTool};

const LISTS: [&str; 2] = ["etc/modules", "etc/initramfs-tools/modules"];
const LIST_DIRS: [&str; 2] = ["etc/modules-load.d", "etc/dracut.conf.d"];
/// Where initramfs-tools has the scripts that run before udev.
pub const SCRIPTS: &str = "etc/initramfs-tools/scripts/init-top";
/// Our script of the initramfs: `driver_override` keeps a driver that is in it, too, from a
/// function.
pub const EARLY: &str = "etc/initramfs-tools/scripts/init-top/gpuvm-vfio";
/// Our scripts of the initramfs that release drives which [`EARLY`] holds: where the root file
/// system is not found, and where nothing else would release them.
pub const RELEASE: [&str; 2] = [
    "etc/initramfs-tools/scripts/local-block/gpuvm-vfio",
    "etc/initramfs-tools/scripts/init-bottom/gpuvm-vfio",
];
/// A module that was joined with another one.
const VIRQFD: &str = "vfio_virqfd";

/// Reads the configuration that binds drivers at boot; `None` if there is nothing to read.
pub(super) fn drivers(root: &FsRoot, topology: &Topology) -> Result<Option<BootDrivers>, FsError> {
    let mut drivers = BootDrivers::default();
    let mut is_known = arguments(&topology.machine().kernel_arguments, &mut drivers);
    for path in option_files(root)? {
        is_known = true;
        let text = text(root, &path)?.unwrap_or_default();
        lines(&text).for_each(|line| option(line, &path, &mut drivers));
    }
    let mut listed: Vec<String> = LISTS.map(str::to_owned).to_vec();
    for dir in LIST_DIRS {
        listed.extend(root.names(dir)?.iter().map(|name| format!("{dir}/{name}")));
    }
    for path in listed {
        let text = text(root, &path)?.unwrap_or_default();
        let is_there = lines(&text).any(|line| words(line).any(|word| word == VIRQFD));
        if is_there && drivers.virqfd.is_none() {
            drivers.virqfd = Some(path);
            is_known = true;
        }
    }
    let release = topology.machine().kernel_release.as_deref().unwrap_or_default();
    // The release becomes part of a path.
    let release = Some(release).filter(|name| !name.is_empty() && !name.contains(['/', '\0']));
    if let Some(release) = release {
        let list = text(root, &format!("lib/modules/{release}/modules.builtin"))?;
        drivers.built_in = list.map(|list| lists_vfio(&list));
        drivers.stale = stale(root, release, &drivers);
    }
    Ok((is_known || root.exists("etc/modprobe.d")).then_some(drivers))
}

/// Whether a list of modules that are built in has vfio-pci.
pub fn lists_vfio(list: &str) -> bool {
    list.lines().any(|path| path.ends_with("/vfio-pci.ko"))
}

/// Words of a line of a list or of a configuration.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '=' | '+'))
}

/// Reads kernel arguments; returns whether one of them is about drivers of GPUs.
fn arguments(arguments: &[String], drivers: &mut BootDrivers) -> bool {
    let mut is_known = false;
    for argument in arguments {
        let Some((name, value)) = argument.split_once('=') else { continue };
        let list = || value.split(',').map(str::to_owned).filter(|word| !word.is_empty());
        match name.replace('_', "-").as_str() {
            "vfio-pci.ids" => {
                let at = "proc/cmdline".to_owned();
                drivers.vfio_ids.push(GivenIds { at, ids: list().collect() });
                is_known = true;
            }
            "module-blacklist" | "modprobe.blacklist" | "rd.driver.blacklist" => {
                drivers.later.extend(list());
            }
            _ => {}
        }
    }
    is_known
}

/// Reads a line of modprobe's configuration.
fn option(line: &str, path: &str, drivers: &mut BootDrivers) {
    let mut words = line.split_whitespace();
    let (verb, module) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let is_vfio = |name: &str| name.replace('_', "-") == "vfio-pci";
    match verb {
        "options" if is_vfio(module) => {
            for ids in words.filter_map(|word| word.strip_prefix("ids=")) {
                let ids = ids
                    .trim_matches('"')
                    .split(',')
                    .map(str::to_owned)
                    .filter(|id| !id.is_empty())
                    .collect();
                drivers.vfio_ids.push(GivenIds { at: path.to_owned(), ids });
            }
        }
        "softdep" if words.any(is_vfio) => drivers.later.push(module.to_owned()),
        "blacklist" => drivers.later.push(module.to_owned()),
        "install" if words.next().is_some_and(|program| program.ends_with("/false")) => {
            drivers.later.push(module.to_owned());
        }
        _ => {}
    }
}

/// Returns the initramfs of a kernel, and the file of which it has an older copy: a file with ids,
/// our script, or the directory of scripts, from which one was taken.
fn stale(root: &FsRoot, release: &str, drivers: &BootDrivers) -> Option<(String, String)> {
    let images = [
        format!("boot/initrd.img-{release}"),
        format!("boot/initramfs-{release}.img"),
        format!("boot/initrd-{release}"),
    ];
    let (image, built) =
        images.into_iter().find_map(|path| Some((path.clone(), root.kind(&path)?)))?;
    let newer =
        |path: &&str| root.kind(path).is_some_and(|kind| kind.modified_s > built.modified_s);
    let given = drivers.vfio_ids.iter().map(|given| given.at.as_str());
    let files = given.filter(|at| at.starts_with("etc/")).chain([EARLY]);
    let found = files.filter(newer).min().or_else(|| Some(SCRIPTS).filter(newer));
    Some((image, found.filter(|_| built.is_regular)?.to_owned()))
}

/// Whether the root file system is on one block device, without which an initramfs finds no root:
/// one of several devices, as of ZFS and btrfs, has a number of its own, whose major one is 0.
pub fn root_needs_its_device(root: &FsRoot) -> bool {
    let read = |process: &str| root.read(&format!("proc/{process}/mountinfo")).ok().flatten();
    let mounts = read("1").or_else(|| read("self")).unwrap_or_default();
    let device = |line: &str| {
        let mut words = line.split_whitespace().skip(2);
        let device = words.next()?.to_owned();
        (words.nth(1)? == "/").then_some(device)
    };
    // The last one covers the others.
    let device = mounts.lines().filter_map(device).next_back();
    device.is_some_and(|device| !device.starts_with("0:"))
}

/// How kernel arguments are changed here.
pub(super) fn loader(root: &FsRoot) -> Option<BootLoader> {
    let has = |name: &str| {
        ["usr/sbin", "usr/bin", "sbin"].iter().any(|dir| root.exists(&format!("{dir}/{name}")))
    };
    if has("proxmox-boot-tool") && root.exists("etc/kernel/cmdline") {
        return Some(BootLoader::ProxmoxBootTool);
    }
    if has("update-grub") && root.exists("etc/default/grub") {
        return Some(BootLoader::UpdateGrub);
    }
    has("grubby").then_some(BootLoader::Grubby)
}

/// The program that makes the initramfs here; `None` if no known one is there.
pub fn initramfs_tool(root: &FsRoot) -> Option<InitramfsTool> {
    let known = [
        ("update-initramfs", InitramfsTool::UpdateInitramfs),
        ("dracut", InitramfsTool::Dracut),
        ("mkinitcpio", InitramfsTool::Mkinitcpio),
    ];
    let is_there = |name: &str| {
        ["usr/sbin", "usr/bin", "sbin"].iter().any(|dir| root.exists(&format!("{dir}/{name}")))
    };
    known.into_iter().find(|(name, _)| is_there(name)).map(|(_, tool)| tool)
}
