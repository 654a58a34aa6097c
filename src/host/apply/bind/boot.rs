//! Binding of functions at boot: files of our own, generated from the list of functions, which they
//! contain.
//!
//! GPUs are bound by id if all GPUs of that id on the host are listed: the module's options do it
//! before any other driver is loaded. The module is also listed for loading, since nothing else
//! loads it on a host without a driver of its GPUs; if it is built into the kernel, options do not
//! apply, and the unit does it. Single functions, and all that are not GPUs, are bound by a unit
//! before udev loads drivers; NVSwitches never by id, since those of a shared board belong to the
//! host. The unit names ids and identities, so that it takes no other device that later appears at
//! an address. The initramfs cannot read the identity of drives and NICs, so only the unit binds
//! them. Drives are kept from every driver until then: the udev of the initramfs would assemble an
//! array or volumes of a guest's drive, which is then in use. A drive of the host may be at that
//! address now, so one that the initramfs needs to find the root file system, or that no unit would
//! compare, is released there.

use crate::apply::boot::{BootFile, listed, listing, unit, unit_word, wants};
use crate::blockdev::refuse_used_function;
use crate::discover::facts::boot::{EARLY, RELEASE, SCRIPTS, lists_vfio, root_needs_its_device};
use crate::discover::identity;
use crate::discover::isolation::option_files;
use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::topology::identity::CLASS_STORAGE;
use gpuvm_core::topology::{DeviceIdentity, DeviceKind, NVGRACE, PciDevice, Topology, VFIO};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// The module's options.
pub const OPTIONS: &str = "etc/modprobe.d/gpuvm-vfio.conf";
/// The unit.
pub const UNIT: &str = gpuvm_core::topology::facts::BINDING_UNIT;
/// The drop-in that makes the boot start the unit, as a symlink would.
pub const WANTED: &str = "etc/systemd/system/sysinit.target.d/gpuvm-vfio.conf";
/// The file that makes systemd load the module, since its options act only then.
pub const MODULES: &str = "etc/modules-load.d/gpuvm-vfio.conf";
/// The files that an initramfs has copies of.
pub const COPIED: [&str; 4] = [OPTIONS, EARLY, RELEASE[0], RELEASE[1]];
/// The driver that drives are reserved for in the initramfs, which does not exist.
const NO_DRIVER: &str = "gpuvm-boot";
/// The first line of each file.
const HEAD: &str =
    "# Made by `gpuvm device bind --at-boot`; `gpuvm device release --at-boot` takes it back.\n";
/// Drivers of GPUs by vendor, which must not be loaded before vfio-pci.
const DRIVERS: [(u16, &[&str]); 3] =
    [(0x10de, &["nvidia", "nouveau"]), (0x1002, &["amdgpu"]), (0x8086, &["i915", "xe"])];

/// Functions with their recorded identities; `None` if written by a version that recorded none.
pub type Listed = BTreeMap<Bdf, Option<DeviceIdentity>>;

/// The functions that are bound at boot.
pub fn functions(root: &FsRoot) -> Result<BTreeSet<Bdf>, FsError> {
    Ok(identities(root)?.into_keys().collect())
}

/// The same with their identities.
pub fn identities(root: &FsRoot) -> Result<Listed, FsError> {
    let mut all = Listed::new();
    for file in [OPTIONS, UNIT] {
        all.extend(listed(root, file, "a PCI address", read_word)?);
    }
    Ok(all)
}

/// The word of a function with its identity, if one is recorded.
fn word((bdf, identity): (Bdf, Option<&DeviceIdentity>)) -> String {
    match identity {
        Some(identity) => format!("{bdf}={}", String::from(identity.clone())),
        None => bdf.to_string(),
    }
}

fn read_word(word: &str) -> Option<(Bdf, Option<DeviceIdentity>)> {
    match word.split_once('=') {
        None => Some((word.parse().ok()?, None)),
        Some((bdf, identity)) => Some((bdf.parse().ok()?, Some(identity.parse().ok()?))),
    }
}

/// Adds functions to those that are listed, with the identities that they report now. The recorded
/// identity of a listed function is kept unless it is seen to be another one: its driver may not
/// have it.
///
/// # Errors
///
/// If a file cannot be read.
pub fn add(
    root: &FsRoot,
    listed: &mut Listed,
    functions: impl IntoIterator<Item = Bdf>,
) -> Result<(), FsError> {
    for bdf in functions {
        let before = listed.get(&bdf).cloned().flatten();
        listed.insert(bdf, identity::renewed(root, bdf, before.as_ref())?);
    }
    Ok(())
}

/// Whether another file gives vfio-pci ids: the module uses only one list.
pub fn has_other_ids(root: &FsRoot) -> Result<bool, FsError> {
    for path in option_files(root)? {
        let text = if path == OPTIONS { None } else { root.read(&path)? };
        let mut lines = text.as_deref().unwrap_or_default().lines().map(str::split_whitespace);
        let gives = |mut words: std::str::SplitWhitespace<'_>| {
            let module = words.next() == Some("options")
                && words.next().is_some_and(|name| name.replace('_', "-") == "vfio-pci");
            module && words.any(|word| word.starts_with("ids="))
        };
        if lines.any(gives) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether vfio-pci is built into a kernel, as in Ubuntu 20.04: module options do not apply then.
pub fn is_built_in(root: &FsRoot, kernel_release: &str) -> Result<bool, FsError> {
    let list = root.read(&format!("lib/modules/{kernel_release}/modules.builtin"))?;
    Ok(lists_vfio(&list.unwrap_or_default()))
}

/// Returns all files that bind these functions at boot of this host, each with its text, or none if
/// it must not exist. `program`: the program that the unit runs.
pub fn all(
    root: &FsRoot,
    topology: &Topology,
    functions: &Listed,
    program: &str,
) -> Result<Vec<BootFile>, FsError> {
    let kernel = topology.machine().kernel_release.as_deref().unwrap_or_default();
    let by_id = !is_built_in(root, kernel)? && !has_other_ids(root)?;
    let mut all = files(topology, functions, program, by_id).to_vec();
    // Without initramfs-tools nothing would run the script.
    if root.exists(SCRIPTS) {
        let held = held_drives(root, topology, functions);
        all.push(early(topology, functions, &held));
        let is_needed = !held.is_empty();
        all.extend(RELEASE.into_iter().zip([MISSES_ROOT, HAS_NO_UNIT]).map(|(path, when)| {
            let text = || format!("#!/bin/sh\n{HEAD}{PREREQS}{}{when}", releasing());
            (path, is_needed.then(text))
        }));
    }
    Ok(all)
}

/// The listed drives that the initramfs keeps from every driver: those that the unit would bind,
/// where a root file system that lacks its drive is noticed. The host uses none of them.
fn held_drives(root: &FsRoot, topology: &Topology, functions: &Listed) -> BTreeSet<Bdf> {
    if !root_needs_its_device(root) {
        return BTreeSet::new();
    }
    let is_held = |(bdf, identity): &(&Bdf, &Option<DeviceIdentity>)| {
        let is_drive = topology.device(**bdf).is_some_and(|d| d.class >> 16 == CLASS_STORAGE);
        let is_known = identity.as_ref().is_some_and(DeviceIdentity::is_named);
        is_drive && is_known && refuse_used_function(root, **bdf).is_ok()
    };
    functions.iter().filter(is_held).map(|(bdf, _)| *bdf).collect()
}

/// Returns the files of the running system that bind these functions at boot. `by_id`: whether
/// vfio-pci may be given ids.
fn files(topology: &Topology, functions: &Listed, program: &str, by_id: bool) -> [BootFile; 4] {
    let mut of_id: BTreeMap<(u16, u16), Vec<&PciDevice>> = BTreeMap::new();
    for device in topology.devices() {
        of_id.entry((device.vendor, device.device)).or_default().push(device);
    }
    let whole = |device: &PciDevice| {
        let all = of_id.get(&(device.vendor, device.device)).into_iter().flatten();
        by_id
            && device.kind() == DeviceKind::Gpu
            && topology.passing_driver(device.bdf) == VFIO
            && all.map(|d| d.bdf).all(|b| functions.contains_key(&b))
    };
    let devices = functions.keys().filter_map(|&bdf| topology.device(bdf));
    let (by_id, single): (Vec<_>, Vec<_>) = devices.partition(|d| whole(d));
    [
        (OPTIONS, (!by_id.is_empty()).then(|| options(&by_id, functions))),
        (UNIT, (!single.is_empty()).then(|| binding(&single, functions, program))),
        (WANTED, (!single.is_empty()).then(|| wants(HEAD, "gpuvm-vfio.service"))),
        (MODULES, (!by_id.is_empty()).then(|| format!("{HEAD}vfio-pci\n"))),
    ]
}

/// The line of the initramfs's script that accepts the other driver of GPUs.
const NVGRACE_TOO: &str = "    nvgrace-gpu-vfio-pci:0x03*) ;;\n";

/// The first answer of a script of the initramfs (initramfs-tools(7)).
const PREREQS: &str = "case $1 in prereqs) exit 0 ;; esac\n";

/// Returns the script of the initramfs that reserves these functions for vfio-pci, and the `held`
/// drives for no driver, each if its ids match. Not NICs and other drives, whose identity is not
/// known there.
fn early(topology: &Topology, functions: &Listed, held: &BTreeSet<Bdf>) -> BootFile {
    let devices = functions.keys().filter_map(|&bdf| topology.device(bdf));
    let is_reserved = |device: &&PciDevice| !device.needs_proof() || held.contains(&device.bdf);
    let devices: Vec<&PciDevice> = devices.filter(is_reserved).collect();
    if devices.is_empty() {
        return (EARLY, None);
    }
    let driver_of = |bdf: &Bdf| {
        if held.contains(bdf) { NO_DRIVER } else { topology.passing_driver(*bdf) }
    };
    let is_other = |device: &&PciDevice| driver_of(&device.bdf) == NVGRACE;
    let others = if devices.iter().any(is_other) { NVGRACE_TOO } else { "" };
    let mut text = format!(
        "#!/bin/sh\n{}{PREREQS}\
         reserve() {{\n  at=/sys/bus/pci/devices/$1\n  [ -e \"$at/driver_override\" ] || return 0\n  \
         read -r class <\"$at/class\"\n  read -r vendor <\"$at/vendor\"\n  \
         read -r device <\"$at/device\"\n  [ \"$vendor:$device\" = \"$2\" ] || return 0\n  \
         case $3:$class in\n    vfio-pci:0x01*|vfio-pci:0x02*) return 0 ;;\n    vfio-pci:*) ;;\n{others}    \
         *:0x01*) [ ! -e \"$at/driver\" ] || return 0 ;;\n    *) return 0 ;;\n  esac\n  \
         echo \"$3\" >\"$at/driver_override\"\n}}\n",
        head(&devices, functions)
    );
    for device in devices {
        let PciDevice { bdf, vendor, device: id, .. } = device;
        let driver = driver_of(bdf);
        writeln!(text, "reserve {bdf} {vendor:#06x}:{id:#06x} {driver}").expect("text");
    }
    (EARLY, Some(text))
}

/// The beginning of scripts of the initramfs that release held drives: `release DIRECTORY` lets the
/// kernel choose a driver for one, if it is held.
fn releasing() -> String {
    format!(
        "release() {{\n  [ -e \"$1/driver_override\" ] || return 0\n  \
         read -r now <\"$1/driver_override\"\n  [ \"$now\" = {NO_DRIVER} ] || return 0\n  \
         echo >\"$1/driver_override\"\n  read -r alias <\"$1/modalias\"\n  \
         modprobe -q \"$alias\"\n  echo \"${{1##*/}}\" >/sys/bus/pci/drivers_probe\n}}\n"
    )
}

/// The rest of the script that initramfs-tools runs each second while it does not find the root
/// file system: after ten, since drives take some to appear, and before mdadm starts an array
/// without a drive that it lacks, which it does after twenty.
const MISSES_ROOT: &str = "count=0\n[ ! -e /run/gpuvm-boot ] || read -r count </run/gpuvm-boot\n\
    count=$((count + 1))\necho $count >/run/gpuvm-boot\n[ $count -ge 10 ] || exit 0\n\
    for at in /sys/bus/pci/devices/*; do release \"$at\"; done\n";

/// The rest of the script that is run with the root file system mounted: releases drives that its
/// unit does not name, as after `gpuvm device release --at-boot` without a new initramfs.
const HAS_NO_UNIT: &str = "unit=${rootmnt:-/root}/etc/systemd/system/gpuvm-vfio.service\n\
    for at in /sys/bus/pci/devices/*; do\n  is_listed=\n  \
    [ ! -e \"$unit\" ] || while read -r line; do\n    \
    case $line in *\" --early ${at##*/}=\"*) is_listed=1 ;; esac\n  done <\"$unit\"\n  \
    [ -n \"$is_listed\" ] || release \"$at\"\ndone\n";

/// The first lines of a file that binds these.
fn head(devices: &[&PciDevice], functions: &Listed) -> String {
    let of = |device: &&PciDevice| functions.get(&device.bdf).and_then(Option::as_ref);
    let list = devices.iter().map(|device| word((device.bdf, of(device))));
    listing(HEAD, &list.collect::<Vec<_>>())
}

/// The module's options for the ids of these.
fn options(devices: &[&PciDevice], functions: &Listed) -> String {
    let ids: BTreeSet<String> = devices.iter().map(|device| id(device)).collect();
    let ids: Vec<String> = ids.into_iter().collect();
    let mut text = format!("{}options vfio-pci ids={}\n", head(devices, functions), ids.join(","));
    for (vendor, drivers) in DRIVERS {
        for driver in drivers.iter().filter(|_| devices.iter().any(|d| d.vendor == vendor)) {
            writeln!(text, "softdep {driver} pre: vfio-pci").expect("text");
        }
    }
    text
}

/// The ids of a function, as module options have them.
pub fn id(device: &PciDevice) -> String {
    format!("{:04x}:{:04x}", device.vendor, device.device)
}

/// The unit that binds these.
fn binding(devices: &[&PciDevice], functions: &Listed, program: &str) -> String {
    let order = "Description=Bind PCI functions to vfio-pci for guests\nDefaultDependencies=no\n\
                 Before=systemd-modules-load.service systemd-udevd.service \
                 systemd-udev-trigger.service\n\
                 Before=nvidia-persistenced.service nvidia-fabricmanager.service \
                 nvidia-dcgm.service\n\
                 Before=libvirtd.service virtqemud.service\n";
    let mut command = format!("{} device bind", unit_word(program));
    for device in devices {
        let recorded = functions.get(&device.bdf).cloned().flatten();
        let identity = recorded.map_or_else(|| id(device), String::from);
        write!(command, " --early {}={identity}", device.bdf).expect("text");
    }
    unit(&head(devices, functions), order, &command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuvm_core::topology::file::from_json;

    /// The recorded DGX-2.
    fn dgx2() -> Topology {
        from_json(include_str!("../../../../topologies/dgx-2.json")).unwrap()
    }

    /// These functions without identities, as of an older version.
    fn bare(functions: &BTreeSet<Bdf>) -> Listed {
        functions.iter().map(|&bdf| (bdf, None)).collect()
    }

    /// Writes files below a directory, and reads the list back.
    fn back(files: &[(&str, Option<String>)]) -> BTreeSet<Bdf> {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            crate::apply::file::set_file(&dir.path().join(path), text.as_deref()).unwrap();
        }
        functions(&FsRoot::at(dir.path()).unwrap()).unwrap()
    }

    #[test]
    fn all_gpus_of_an_id_are_bound_by_it_and_single_ones_by_the_unit() {
        let host = dgx2();
        let gpus: BTreeSet<Bdf> = host.gpus().map(|gpu| gpu.bdf).collect();
        let all = files(&host, &bare(&gpus), "/usr/bin/gpuvm", true);
        let text = all[0].1.as_deref().unwrap();
        assert!(text.contains("\noptions vfio-pci ids=10de:1db8\nsoftdep nvidia pre: vfio-pci\n"));
        assert_eq!((&all[1].1, &all[2].1, back(&all)), (&None, &None, gpus.clone()));
        assert_eq!(all[3].0, "etc/modules-load.d/gpuvm-vfio.conf");
        assert!(all[3].1.as_deref().unwrap().ends_with("\nvfio-pci\n"));
        let by_unit = files(&host, &bare(&gpus), "/usr/bin/gpuvm", false);
        assert!(by_unit[0].1.is_none() && by_unit[3].1.is_none());
        assert_eq!(back(&by_unit), gpus);
        let some: BTreeSet<Bdf> = gpus.into_iter().skip(1).collect();
        let single = files(&host, &bare(&some), "/usr/bin/gpuvm", true);
        assert!(single[0].1.is_none() && single[2].1.is_some());
        let text = single[1].1.as_deref().unwrap();
        let start =
            "\nExecStart=/usr/bin/gpuvm device bind --early 0000:36:00.0=10de:1db8 --early ";
        assert!(text.contains(start), "{text}");
        assert_eq!(back(&single), some);
        let none = files(&host, &Listed::new(), "/usr/bin/gpuvm", true);
        assert!(none.iter().all(|(_, text)| text.is_none()));
    }

    #[test]
    fn the_script_of_the_initramfs_is_there_where_something_runs_it() {
        let (host, dir) = (dgx2(), tempfile::tempdir().unwrap());
        let root = FsRoot::at(dir.path()).unwrap();
        let gpus: BTreeSet<Bdf> = host.gpus().map(|gpu| gpu.bdf).collect();
        let paths = || {
            let all = all(&root, &host, &bare(&gpus), "/usr/bin/gpuvm").unwrap();
            all.into_iter().filter_map(|(path, text)| text.map(|_| path)).collect::<Vec<_>>()
        };
        assert_eq!(paths(), [OPTIONS, MODULES]);
        std::fs::create_dir_all(dir.path().join(SCRIPTS)).unwrap();
        assert_eq!(paths(), [OPTIONS, MODULES, EARLY]);
        // Others' ids leave only the unit.
        let other = dir.path().join("lib/modprobe.d/other.conf");
        crate::apply::file::set_file(&other, Some("options vfio-pci ids=1:2\n")).unwrap();
        assert_eq!(paths(), [UNIT, WANTED, EARLY]);
    }

    #[test]
    fn the_script_of_the_initramfs_reserves_what_has_the_ids_and_nothing_else() {
        let host = dgx2();
        let gpus: BTreeSet<Bdf> = host.gpus().map(|gpu| gpu.bdf).take(3).collect();
        let none_held = BTreeSet::new();
        assert_eq!(early(&host, &Listed::new(), &none_held).1, None);
        let text = early(&host, &bare(&gpus), &none_held).1.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let devices = dir.path().join("devices");
        let at = |bdf: &Bdf, file: &str| devices.join(bdf.to_string()).join(file);
        let all: Vec<Bdf> = gpus.into_iter().collect();
        // The second one is another device now, the third is gone.
        for (bdf, id) in all.iter().zip(["0x1db8", "0x2330"]) {
            std::fs::create_dir_all(at(bdf, "")).unwrap();
            let class = ("class", "0x030200");
            for (file, value) in
                [class, ("vendor", "0x10de"), ("device", id), ("driver_override", "(null)")]
            {
                std::fs::write(at(bdf, file), format!("{value}\n")).unwrap();
            }
        }
        let here = text.replace("/sys/bus/pci/devices", devices.to_str().unwrap());
        let script = dir.path().join("script");
        std::fs::write(&script, here).unwrap();
        let run = |words: &[&str]| {
            let mut command = crate::program::command("sh");
            let done = command.arg(&script).args(words).output().unwrap();
            assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
            let read = |bdf: &Bdf| std::fs::read_to_string(at(bdf, "driver_override")).unwrap();
            (read(&all[0]), read(&all[1]))
        };
        let none = "(null)\n".to_owned();
        assert_eq!(run(&["prereqs"]), (none.clone(), none.clone()));
        assert_eq!(run(&[]), ("vfio-pci\n".to_owned(), none));
        assert!(!at(&all[2], "").exists());
    }

    /// Plain vfio-pci passes no memory of such a GPU through.
    #[test]
    fn gpus_with_coherent_memory_are_bound_by_the_unit_and_reserved_for_their_own_driver() {
        let mut parts = dgx2().parts().clone();
        parts.machine.architecture = Some("aarch64".into());
        let own = serde_json::json!({ "bdf": "0009:01:00.0", "class": "0x030200",
            "vendor": "0x10de", "device": "0x2941" });
        parts.devices.push(serde_json::from_value(own).unwrap());
        let host = Topology::new(parts).unwrap();
        let gpu: Bdf = "0009:01:00.0".parse().unwrap();
        let all = files(&host, &bare(&[gpu].into()), "/usr/bin/gpuvm", true);
        assert!(all[0].1.is_none() && all[3].1.is_none(), "{all:?}");
        assert!(all[1].1.as_deref().unwrap().contains("--early 0009:01:00.0=10de:2941"));
        let dir = tempfile::tempdir().unwrap();
        let early = early(&host, &bare(&[gpu].into()), &BTreeSet::new());
        let initramfs = Initramfs { dir: dir.path(), files: vec![early] };
        initramfs.put(gpu, host.device(gpu).unwrap());
        initramfs.run(EARLY);
        assert_eq!(initramfs.reserved(gpu), "nvgrace-gpu-vfio-pci");
    }

    #[test]
    fn drives_and_nics_are_bound_by_the_unit_alone_which_names_what_they_must_report() {
        let host = dgx2();
        let of = |kind| host.of_kind(kind).next().unwrap();
        let (drive, nic, gpu) = (of(DeviceKind::Nvme), of(DeviceKind::Nic), of(DeviceKind::Gpu));
        let mut identity = DeviceIdentity::of(drive);
        identity.add(gpuvm_core::topology::MarkKind::Serial, "a %b $c");
        let mut wanted = bare(&[nic.bdf, gpu.bdf].into());
        wanted.insert(drive.bdf, Some(identity));
        let script = early(&host, &wanted, &BTreeSet::new()).1.unwrap();
        assert!(script.contains(&format!("reserve {}", gpu.bdf)), "{script}");
        for bdf in [drive.bdf, nic.bdf] {
            assert!(!script.contains(&bdf.to_string()), "{script}");
        }
        let files = files(&host, &wanted, "/usr/bin/gpuvm", true);
        let unit = files[1].1.as_deref().unwrap();
        let word = format!("--early {}={}", drive.bdf, id(drive));
        assert!(unit.contains(&word) && unit.contains("=serial:a+20+25b+20+24c"), "{unit}");
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in &files {
            crate::apply::file::set_file(&dir.path().join(path), text.as_deref()).unwrap();
        }
        assert_eq!(identities(&FsRoot::at(dir.path()).unwrap()).unwrap(), wanted);
    }

    /// Runs the files of an initramfs on functions below a directory.
    struct Initramfs<'a> {
        dir: &'a std::path::Path,
        files: Vec<BootFile>,
    }

    impl Initramfs<'_> {
        /// Puts a function there, without a driver.
        fn put(&self, bdf: Bdf, device: &PciDevice) {
            let at = self.dir.join("sys/bus/pci/devices").join(bdf.to_string());
            std::fs::create_dir_all(&at).unwrap();
            let hex = |value: u16| format!("{value:#06x}");
            for (file, value) in [
                ("class", format!("{:#08x}", device.class)),
                ("vendor", hex(device.vendor)),
                ("device", hex(device.device)),
                ("driver_override", "(null)".to_owned()),
            ] {
                std::fs::write(at.join(file), format!("{value}\n")).unwrap();
            }
        }

        /// Runs a script, if it is there.
        fn run(&self, file: &str) {
            let text = self.files.iter().find(|(path, _)| *path == file).unwrap().1.clone();
            let Some(text) = text else { return };
            let dir = self.dir.to_str().unwrap();
            let text = text
                .replace("/sys/bus", &format!("{dir}/sys/bus"))
                .replace("/run/", &format!("{dir}/run/"))
                .replace("modprobe", ":");
            let script = self.dir.join("script");
            std::fs::write(&script, text).unwrap();
            let mut command = crate::program::command("sh");
            let done = command.arg(&script).env("rootmnt", dir).output().unwrap();
            assert!(done.status.success(), "{done:?}");
        }

        /// The purpose for which a function is reserved.
        fn reserved(&self, bdf: Bdf) -> String {
            let at = self.dir.join("sys/bus/pci/devices").join(bdf.to_string());
            std::fs::read_to_string(at.join("driver_override")).unwrap().trim().to_owned()
        }
    }

    /// A host that lists a drive and a NIC, and its initramfs. `root_at`: the number of the device
    /// of its root file system.
    fn listing_a_drive<'a>(
        dir: &'a std::path::Path,
        host: &Topology,
        root_at: &str,
    ) -> (Initramfs<'a>, [Bdf; 3]) {
        let of = |kind| host.of_kind(kind);
        let drives: Vec<&PciDevice> = of(DeviceKind::Nvme).take(2).collect();
        let nic = of(DeviceKind::Nic).next().unwrap();
        let mut listed = bare(&[nic.bdf].into());
        let mut identity = DeviceIdentity::of(drives[0]);
        identity.add(gpuvm_core::topology::MarkKind::Serial, "S1A");
        listed.insert(drives[0].bdf, Some(identity));
        // One of an older version, which no unit binds.
        listed.insert(drives[1].bdf, None);
        for place in [SCRIPTS, "proc/self", "run", "sys/bus/pci"] {
            std::fs::create_dir_all(dir.join(place)).unwrap();
        }
        let mounts =
            format!("21 1 0:2 / / rw - rootfs rootfs rw\n22 1 {root_at} / / rw - x y rw\n");
        std::fs::write(dir.join("proc/self/mountinfo"), mounts).unwrap();
        let root = FsRoot::at(dir).unwrap();
        let files = all(&root, host, &listed, "/usr/bin/gpuvm").unwrap();
        for (path, text) in files.iter().filter(|(path, _)| *path == UNIT) {
            crate::apply::file::set_file(&dir.join(path), text.as_deref()).unwrap();
        }
        let initramfs = Initramfs { dir, files };
        for device in [drives[0], drives[1], nic] {
            initramfs.put(device.bdf, device);
        }
        (initramfs, [drives[0].bdf, drives[1].bdf, nic.bdf])
    }

    #[test]
    fn an_initramfs_keeps_listed_drives_from_every_driver_until_they_are_compared() {
        let (host, dir) = (dgx2(), tempfile::tempdir().unwrap());
        let (initramfs, [drive, old, nic]) = listing_a_drive(dir.path(), &host, "259:1");
        initramfs.run(EARLY);
        let reserved = || [drive, old, nic].map(|bdf| initramfs.reserved(bdf));
        assert_eq!(reserved(), [NO_DRIVER, "(null)", "(null)"]);
        // The unit has it compared.
        initramfs.run(RELEASE[1]);
        assert_eq!(initramfs.reserved(drive), NO_DRIVER);
        let probed = || std::fs::read_to_string(dir.path().join("sys/bus/pci/drivers_probe"));
        assert!(probed().is_err());
        // Without a unit nothing would.
        std::fs::remove_file(dir.path().join(UNIT)).unwrap();
        initramfs.run(RELEASE[1]);
        assert_eq!(
            (initramfs.reserved(drive), probed().unwrap()),
            ("".into(), format!("{drive}\n"))
        );
        // A GPU, or another model, is at the address; or a driver that is built in has the drive.
        let gpu = host.gpus().next().unwrap();
        let other =
            host.of_kind(DeviceKind::Nvme).find(|d| Some(*d) != host.device(drive)).unwrap();
        let other = PciDevice { device: 0xffff, ..other.clone() };
        for device in [gpu, &other] {
            initramfs.put(drive, device);
            initramfs.run(EARLY);
            assert_eq!(initramfs.reserved(drive), "(null)");
        }
        initramfs.put(drive, host.device(drive).unwrap());
        let at = dir.path().join("sys/bus/pci/devices").join(drive.to_string());
        std::fs::create_dir(at.join("driver")).unwrap();
        initramfs.run(EARLY);
        assert_eq!(initramfs.reserved(drive), "(null)");
    }

    #[test]
    fn an_initramfs_that_does_not_find_its_root_releases_the_drives() {
        let (host, dir) = (dgx2(), tempfile::tempdir().unwrap());
        let (initramfs, [drive, ..]) = listing_a_drive(dir.path(), &host, "8:2");
        initramfs.run(EARLY);
        for _ in 1..10 {
            initramfs.run(RELEASE[0]);
            assert_eq!(initramfs.reserved(drive), NO_DRIVER);
        }
        initramfs.run(RELEASE[0]);
        assert_eq!(initramfs.reserved(drive), "");
        // Of a root on several devices one may be missing unnoticed.
        let dir = tempfile::tempdir().unwrap();
        let (initramfs, [drive, ..]) = listing_a_drive(dir.path(), &host, "0:31");
        assert!(
            initramfs
                .files
                .iter()
                .all(|(path, text)| *path == UNIT || *path == WANTED || text.is_none())
        );
        initramfs.run(EARLY);
        assert_eq!(initramfs.reserved(drive), "(null)");
    }

    #[test]
    fn switches_are_never_bound_by_id() {
        let host = dgx2();
        let both = host.gpus().chain(host.of_kind(DeviceKind::NvSwitch));
        let both: BTreeSet<Bdf> = both.map(|device| device.bdf).collect();
        let [(_, options), (_, unit), ..] = files(&host, &bare(&both), "/usr/bin/gpuvm", true);
        let (options, unit) = (options.unwrap(), unit.unwrap());
        assert!(options.contains("10de:1db8") && !options.contains("1ac2"), "{options}");
        assert!(unit.contains("=10de:1ac2") && !unit.contains("1db8"), "{unit}");
    }

    #[test]
    fn a_driver_that_is_built_in_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        let built_in = |release| is_built_in(&root, release).unwrap();
        assert!(!built_in("5.4.0-generic"));
        let list = "kernel/drivers/vfio/vfio.ko\nkernel/drivers/vfio/pci/vfio-pci.ko\n";
        let at = dir.path().join("lib/modules/5.4.0-generic/modules.builtin");
        crate::apply::file::set_file(&at, Some(list)).unwrap();
        assert!(built_in("5.4.0-generic") && !built_in("6.8.0-generic"));
        let other = dir.path().join("lib/modules/6.8.0-generic/modules.builtin");
        crate::apply::file::set_file(&other, Some("kernel/drivers/vfio/pci/vfio-pci-core.ko\n"))
            .unwrap();
        assert!(!built_in("6.8.0-generic"));
    }

    #[test]
    fn others_ids_and_damaged_lists_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        assert!(!has_other_ids(&root).unwrap());
        let put = |path: &str, text: &str| {
            crate::apply::file::set_file(&dir.path().join(path), Some(text)).unwrap();
        };
        put(OPTIONS, "options vfio-pci ids=10de:1db8\n");
        put(
            "etc/modprobe.d/a.conf",
            "# options vfio-pci ids=1:2\noptions vfio-pci disable_vga=1\n",
        );
        assert!(!has_other_ids(&root).unwrap());
        put("etc/modprobe.d/b.conf", "options  vfio_pci disable_vga=1 ids=1:2\n");
        assert!(has_other_ids(&root).unwrap());
        put(UNIT, "# Functions: 0000:34:00.0 x\n");
        let error = functions(&root).unwrap_err().to_string();
        assert!(error.contains("gpuvm-vfio.service line 1: `x` is not a PCI address"), "{error}");
    }
}
