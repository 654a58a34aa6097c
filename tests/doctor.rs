//! `host doctor`: a few files over a plain host's for each rule, which finds exactly that; recorded
//! hosts without an error; damaged files without a false finding.

use crate::schemas::faults;
use crate::support::daemon::namespaces;
use crate::support::tree::{host_text, host_tree, scratch, unpack};
use crate::support::{gpuvm, project, run, skip};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Files laid over the host: path and text; a text that begins with `->` is a link's target.
type Overlay = &'static [(&'static str, &'static str)];

const DROP_IN: &str = "etc/systemd/system/libvirtd.service.d/hardened.conf";
const GUESTS: &str = "usr/lib/systemd/system/libvirt-guests.service";
const RESOURCE: &str = "0x00000000e4000000 0x00000000e4ffffff 0x0000000000040200\n\
                        0x0000004000000000 0x0000004fffffffff 0x000000000014220c\n";
/// A descriptor of firmware, as packages have it.
const OVMF: &str = r#"{"interface-types": ["uefi"], "mapping": {"device": "flash", "executable":
    {"filename": "/usr/share/OVMF/OVMF_CODE.fd", "format": "raw"}}, "targets": [{"architecture": "x86_64"}]}"#;
const VFIO_IDS: &str = "options vfio-pci ids=10de:2230,10de:1aef\n";

/// A rule, its severity, and files that make it fire; the first one is the sign.
#[rustfmt::skip]
const CASES: &[(&str, &str, Overlay)] = &[
    ("no-kvm", "error", &[("dev/vhost-net", "")]),
    ("no-libvirt", "error", &[
        ("etc/os-release", "ID=debian\n"), ("usr/bin/qemu-system-x86_64", ""),
        ("usr/share/qemu/firmware/60-ovmf.json", OVMF), ("usr/share/OVMF/OVMF_CODE.fd", ""),
    ]),
    ("no-qemu", "error", &[
        ("etc/os-release", "ID=debian\n"), ("usr/sbin/libvirtd", ""),
        ("usr/share/qemu/firmware/60-ovmf.json", OVMF), ("usr/share/OVMF/OVMF_CODE.fd", ""),
    ]),
    ("no-firmware", "error", &[
        ("etc/os-release", "ID=debian\n"), ("usr/sbin/libvirtd", ""), ("usr/bin/qemu-system-x86_64", ""),
    ]),
    ("no-vfio-groups", "error", &[
        ("dev/kvm", ""), ("dev/vhost-net", ""), ("dev/iommu", ""), ("sys/class/vfio-dev/vfio0/dev", "511:0\n"),
    ]),
    ("driver-first", "error", &[("etc/modprobe.d/vfio.conf", VFIO_IDS)]),
    ("driver-first", "warning", &[("etc/modules", "vfio\nvfio_virqfd\n"), ("proc/sys/kernel/osrelease", "6.14.0-1-pve\n")]),
    ("boot-unidentified", "warning", &[("etc/systemd/system/gpuvm-vfio.service", "# Functions: 0000:b0:00.0\n")]),
    ("group-shared", "error", &[
        ("sys/bus/pci/devices/0000:3b:00.0/iommu_group", "->../../../../kernel/iommu_groups/19"),
    ]),
    ("acs-override", "error", &[("proc/cmdline", "ro intel_iommu=on iommu=pt pcie_acs_override=downstream isolcpus=2,3,34,35")]),
    ("console-holds-gpu", "error", &[
        ("proc/iomem", "e0000000-efffffff : PCI Bus 0000:85\n  e4100000-e43fffff : BOOTFB\n"),
        ("sys/bus/pci/devices/0000:86:00.0/resource", RESOURCE),
    ]),
    // vfio-pci is not bound yet, and ends the console when it is.
    ("console-holds-gpu", "warning", &[
        ("proc/iomem", "e0000000-efffffff : PCI Bus 0000:17\n  e4100000-e43fffff : simpledrm\n"),
        ("sys/bus/pci/devices/0000:18:00.0/resource", RESOURCE),
    ]),
    ("console-holds-gpu", "error", &[
        ("proc/iomem", "e0000000-efffffff : PCI Bus 0000:17\n  e4100000-e43fffff : BOOTFB\n"),
        ("sys/bus/pci/devices/0000:18:00.0/resource", RESOURCE),
        ("proc/sys/kernel/osrelease", "5.15.0-1040-nvidia\n"),
    ]),
    ("console-holds-gpu", "error", &[
        ("sys/bus/platform/devices/efi-framebuffer.0/uevent", "\n"),
        ("sys/bus/pci/devices/0000:86:00.0/boot_vga", "1\n"),
    ]),
    ("holders", "warning", &[("proc/77/comm", "nvidia-persiste\n")]),
    ("d3cold", "error", &[("sys/bus/pci/devices/0000:86:00.0/power_state", "D3cold\n")]),
    ("d3cold", "warning", &[
        ("sys/bus/pci/devices/0000:86:00.0/d3cold_allowed", "1\n"),
        ("sys/module/vfio_pci/parameters/disable_idle_d3", "N\n"),
    ]),
    ("reset-missing", "warning", &[("sys/bus/pci/devices/0000:86:00.0/reset_method", "\n")]),
    ("reset-missing", "warning", &[("proc/sys/kernel/osrelease", "6.14.2\n")]),
    ("lanes-missing", "warning", &[("sys/bus/pci/devices/0000:86:00.0/current_link_width", "4\n")]),
    ("bar-window", "error", &[("sys/bus/pci/devices/0000:86:00.0/resource",
        "0x00000000c4000000 0x00000000c4ffffff 0x0000000000040200\n0x0000000000000000 0x0000000fffffffff 0x000000002014220c\n")]),
    ("bar-window", "warning", &[
        ("sys/bus/pci/devices/0000:86:00.0/resource",
         "0x00000000c4000000 0x00000000c4ffffff 0x0000000000040200\n0x00000000d0000000 0x00000000dfffffff 0x000000000014220c\n"),
        ("sys/bus/pci/devices/0000:86:00.0/resource1_resize", "000000000001ffc0\n"),
    ]),
    ("memlock", "warning", &[("etc/systemd/system/libvirtd.service.d/hardened.conf", "[Service]\nLimitMEMLOCK=64M\n")]),
    ("memlock", "warning", &[("etc/systemd/system/libvirtd.service.d/hardened.conf",
        "[Service]\nCapabilityBoundingSet=CAP_NET_ADMIN CAP_IPC_LOCK\n")]),
    ("memlock", "warning", &[("sys/module/vfio_iommu_type1/parameters/dma_entry_limit", "1000\n")]),
    ("group-legacy-rmrr", "error", &[("sys/kernel/iommu_groups/19/reserved_regions",
        "0x00000000fee00000 0x00000000feefffff msi\n0x0000000079000000 0x00000000790fffff direct\n")]),
    ("irq-remap", "error", &[("proc/cmdline", "ro intel_iommu=on iommu=pt intremap=off isolcpus=2,3,34,35")]),
    ("irq-remap", "error", &[("proc/cmdline", "ro intel_iommu=on iommu=pt intremap=no_x2apic_optout,off isolcpus=2,3,34,35")]),
    ("irq-remap", "error", &[("proc/cmdline", "ro intel_iommu=on iommu=pt intremap=on nointremap isolcpus=2,3,34,35")]),
    ("irq-remap", "warning", &[("sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "Y\n")]),
    ("permission", "error", &[("proc/sys/kernel/osrelease", "6.8.12-12-pve\n")]),
    ("pages-fragmented", "warning", &[("proc/cmdline",
        "ro intel_iommu=on iommu=pt isolcpus=2,3,34,35 hugepagesz=1G hugepages=400")]),
    ("pages-fragmented", "warning", &[("proc/cmdline",
        "ro intel_iommu=on iommu=pt isolcpus=2,3,34,35 default_hugepagesz=1G hugepages=400")]),
    ("ksm", "warning", &[("sys/kernel/mm/ksm/run", "1\n")]),
    ("irqbalance", "note", &[("proc/78/comm", "irqbalance\n"), ("etc/default/irqbalance", "#IRQBALANCE_ONESHOT=\n")]),
    ("governor", "note", &[("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n")]),
    ("numa-balancing-off", "note", &[("proc/sys/kernel/numa_balancing", "0\n")]),
    ("transparent-huge-pages-off", "note", &[("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")]),
    ("isolation-mismatch", "warning", &[("proc/cmdline", "ro intel_iommu=on iommu=pt nohz_full=4-5 isolcpus=2,3,34,35")]),
    ("isolation-mismatch", "warning", &[
        ("proc/cmdline", "ro intel_iommu=on iommu=pt isolcpus=0-63"),
        ("sys/devices/system/cpu/isolated", "0-63"),
    ]),
    ("aspm", "warning", &[("sys/module/pcie_aspm/parameters/policy", "default performance [powersave] powersupersave\n")]),
    ("iommu-mode", "note", &[
        ("proc/cmdline", "ro intel_iommu=on isolcpus=2,3,34,35"),
        ("sys/kernel/iommu_groups/20/type", "DMA\n"), ("sys/kernel/iommu_groups/21/type", "DMA\n"),
        ("sys/kernel/iommu_groups/10/type", "DMA\n"), ("sys/kernel/iommu_groups/17/type", "DMA\n"),
    ]),
    ("snp-tdx", "note", &[("sys/module/kvm_amd/parameters/sev_snp", "Y\n")]),
    ("qemu-user", "error", &[("etc/libvirt/qemu.conf", "cgroup_device_acl = [\n  \"/dev/null\", \"/dev/kvm\"\n]\n")]),
    ("qemu-user", "warning", &[("etc/libvirt/qemu.conf", "user = \"svc\"\n")]),
    ("qemu-user", "warning", &[("etc/libvirt/qemu.conf", "user = \"+64055\"\n")]),
    ("vhost-net", "warning", &[("dev/kvm", "")]),
    ("guests-at-shutdown", "warning", &[("usr/lib/systemd/system/libvirt-guests.service", "[Unit]\n")]),
    ("guests-at-shutdown", "warning", &[
        ("etc/default/libvirt-guests", "SHUTDOWN_TIMEOUT=30\n"),
        ("usr/lib/systemd/system/libvirt-guests.service", "[Unit]\n"),
        ("etc/systemd/system/multi-user.target.wants/libvirt-guests.service", "->/usr/lib/systemd/system/libvirt-guests.service"),
    ]),
    ("guests-at-shutdown", "warning", &[
        ("etc/sysconfig/libvirt-guests", "SHUTDOWN_TIMEOUT=30\n"),
        ("usr/lib/systemd/system/libvirt-guests.service", "[Unit]\n"),
        ("etc/systemd/system/multi-user.target.wants/libvirt-guests.service", "->/usr/lib/systemd/system/libvirt-guests.service"),
    ]),
    ("gpu-untestable", "warning", &[("etc/gpuvm/test.toml", "mode = \"require\"\n")]),
];

/// Rules without such files, and why.
const WITHOUT_CASE: &[(&str, &str)] = &[
    ("coherent-gpu", "a host with Grace: tests/grace"),
    ("pf-with-vfs-on-vfio", "a host with vGPUs: tests/vgpus.rs"),
    ("sriov-unbound", "as above"),
    ("vf-without-type", "as above"),
    ("iommu-off", "files are taken away for it: a test of its own"),
    ("no-gpu", "devices are taken away for it: a test of its own"),
    ("hostdev-unhealthy", "NVML and the kernel's log tell it"),
    ("program-replaceable", "owners of files are this machine's: a test of its own"),
    ("slow-large-bars", "the plain host's kernel has it"),
    ("acs-redirect", "the registers of ports tell it, which are no text"),
    ("p2p-rejected", "as above; tests/p2p.rs"),
    ("iommu-fault", "the kernel's log reports it"),
    ("iommu-width", "the kernel's log reports it"),
    ("gpu-rom", "the kernel's log reports it"),
    ("pcie-atomics", "the kernel's log reports it"),
    ("acs-off", "as above; tests/abuse/acs.rs has them"),
    ("libvirt-cves", "libvirt tells its version"),
];

/// Lays files over a host.
fn lay(root: &Path, overlay: Overlay) {
    for (path, text) in overlay {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        match text.strip_prefix("->") {
            Some(target) => std::os::unix::fs::symlink(target, &path).unwrap(),
            None => fs::write(&path, text).unwrap(),
        }
    }
}

/// Takes files away again, and puts the host's own back.
fn lift(root: &Path, base: &Path, overlay: Overlay) {
    for (path, _) in overlay {
        let (laid, own) = (root.join(path), base.join(path));
        let is_dir = laid.symlink_metadata().is_ok_and(|meta| meta.is_dir());
        if is_dir {
            fs::remove_dir_all(&laid).unwrap()
        } else {
            let _ = fs::remove_file(&laid);
        }
        if let Ok(target) = own.read_link() {
            std::os::unix::fs::symlink(target, &laid).unwrap();
        } else if own.is_file() {
            fs::copy(&own, &laid).unwrap();
        }
        // Empty directories would be known, empty places.
        let mut above = laid.parent();
        while let Some(dir) = above.filter(|dir| *dir != root && fs::remove_dir(dir).is_ok()) {
            above = dir.parent();
        }
    }
}

/// Diagnoses a host.
fn doctor(host: &Path) -> (i32, Value) {
    let (code, out, err) =
        run(&mut gpuvm(&["host", "doctor", "--json", "--host", host.to_str().unwrap()]));
    assert!(code == 0 || code == 3, "{}: {code} {err}", host.display());
    let answer = serde_json::from_str(&out).unwrap();
    assert_eq!(faults("gpuvm-host-doctor", &answer), "", "{}", host.display());
    (code, answer)
}

/// The rules of findings, each with its severity.
fn rules(answer: &Value) -> BTreeSet<(String, String)> {
    let findings = answer["findings"].as_array().unwrap().iter();
    let word = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
    findings.map(|finding| (word(finding, "rule"), word(finding, "severity"))).collect()
}

/// The plain host, and another copy of it to lay files over.
fn hosts() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = scratch();
    let (base, root) = (dir.path().join("base"), dir.path().join("root"));
    for path in [&base, &root] {
        unpack(&host_text("dual-socket"), path).unwrap();
    }
    (dir, base, root)
}

#[test]
fn each_rule_finds_its_sign_and_no_other_does() {
    let (dir, base, root) = hosts();
    let record = dir.path().join("record.json");
    let plain = rules(&doctor(&base).1);
    for &(rule, severity, overlay) in CASES {
        lay(&root, overlay);
        let (code, answer) = doctor(&root);
        let found = rules(&answer).into_iter();
        let others: BTreeSet<_> = found.filter(|one| !plain.contains(one)).collect();
        assert_eq!(others, BTreeSet::from([(rule.to_owned(), severity.to_owned())]), "{overlay:?}");
        assert_eq!(code, if severity == "error" { 3 } else { 0 }, "{rule}");
        let is_of = |finding: &&Value| finding["rule"] == rule;
        let finding = answer["findings"].as_array().unwrap().iter().find(is_of).unwrap();
        for key in ["message", "expected", "found", "at", "hint"] {
            assert!(!finding[key].as_str().unwrap().is_empty(), "{rule}: {key}");
        }
        assert!(!finding["fix"].as_array().unwrap().is_empty(), "{rule}");
        // A record of that host gives the same result, except for programs that run.
        let _ = fs::remove_file(&record);
        let words = ["host", "capture", record.to_str().unwrap(), "--host"];
        let (code, _, err) = run(gpuvm(&words).arg(&root));
        assert_eq!(code, 0, "{rule}: {err}");
        assert_eq!(rules(&doctor(&record).1), rules(&answer), "{overlay:?}");
        lift(&root, &base, overlay);
    }
    assert_eq!(rules(&doctor(&root).1), plain, "an overlay is left");
}

#[test]
fn every_rule_has_a_sign_or_a_reason_for_none() {
    let all: BTreeSet<&str> = gpuvm_core::doctor::rules().map(|rule| rule.id).collect();
    let with: BTreeSet<&str> = CASES.iter().map(|(rule, ..)| *rule).collect();
    let without: BTreeSet<&str> = WITHOUT_CASE.iter().map(|(rule, _)| *rule).collect();
    assert_eq!(with.intersection(&without).next(), None);
    assert_eq!(with.union(&without).copied().collect::<BTreeSet<_>>(), all);
}

/// The texts of the one finding of a rule with these files, and its commands.
fn said(rule: &str, overlay: Overlay) -> (String, String, String) {
    let (_dir, _, root) = hosts();
    lay(&root, overlay);
    let (_, answer) = doctor(&root);
    let mut of_rule = answer["findings"].as_array().unwrap().iter().filter(|f| f["rule"] == rule);
    let one = of_rule.next().unwrap();
    let text = |key: &str| one[key].as_str().unwrap().to_owned();
    (text("at"), text("hint"), one["fix"].to_string())
}

#[test]
fn required_changes_are_named_with_their_file() {
    let of = |rule: &str, sign: &str| {
        let is_sign = |one: &&(&str, &str, Overlay)| {
            one.0 == rule
                && one.2.iter().any(|(path, text)| path.ends_with(sign) || text.contains(sign))
        };
        said(rule, CASES.iter().find(is_sign).unwrap().2)
    };
    let (at, hint, fix) = of("guests-at-shutdown", "etc/sysconfig/libvirt-guests");
    assert_eq!(at, "/etc/sysconfig/libvirt-guests");
    assert!(hint.contains(&at) && fix.contains(&at) && !(hint + &fix).contains("/default/"));
    let (at, hint, fix) = of("guests-at-shutdown", "etc/default/libvirt-guests");
    assert_eq!(at, "/etc/default/libvirt-guests");
    assert!(hint.contains(&at) && fix.contains(&at), "{hint} {fix}");
    let (_, hint, _) = of("qemu-user", "+64055");
    assert!(hint.starts_with("`sudo -u '#64055' test -w "), "{hint}");
    let (_, hint, _) = of("qemu-user", "svc");
    assert!(hint.starts_with("`sudo -u svc test -w "), "{hint}");
    // It would take a NIC of the host's.
    let (_, _, fix) = of("group-shared", "groups/19");
    assert!(
        fix.starts_with("[\"# where the host can do without them: gpuvm device bind "),
        "{fix}"
    );
    let (_, hint, fix) = of("irq-remap", "intremap=on nointremap");
    assert!(hint.contains("remove `nointremap` from") && !fix.contains("intremap=on"), "{fix}");
}

#[test]
fn of_arguments_that_contradict_each_other_the_last_one_counts() {
    let (_dir, base, root) = hosts();
    let plain = rules(&doctor(&base).1);
    for (given, is_off) in [
        ("intremap=off intremap=on", false),
        ("nointremap intremap=nosid,on", false),
        ("intremap=on,off", true),
        ("intremap=on intremap=off,nosid", true),
    ] {
        let arguments = format!("ro intel_iommu=on iommu=pt {given} isolcpus=2,3,34,35");
        fs::write(root.join("proc/cmdline"), arguments).unwrap();
        let (code, answer) = doctor(&root);
        assert_eq!((code == 3, rules(&answer) != plain), (is_off, is_off), "{given}: {answer}");
    }
}

/// Commands that change nothing say so, and a second run changes nothing.
#[test]
fn arguments_of_the_kernel_are_changed_once_and_only_where_they_are() {
    let (dir, _, root) = hosts();
    lay(&root, &[("usr/sbin/update-grub", ""), ("etc/default/grub", "")]);
    fs::write(root.join("proc/cmdline"), "ro intremap=off pcie_acs_override=downstream").unwrap();
    lay(&root, &[("sys/kernel/iommu_groups/20/type", "DMA\n")]);
    for group in ["10", "17", "21"] {
        let path = root.join(format!("sys/kernel/iommu_groups/{group}/type"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "DMA\n").unwrap();
    }
    let words = ["host", "doctor", "--fix", "--host", root.to_str().unwrap()];
    let (_, script, _) = run(&mut gpuvm(&words));
    let grub = dir.path().join("grub");
    let of_grub = |line: &&str| line.contains("/etc/default/grub");
    let lines: Vec<&str> = script.lines().filter(of_grub).collect();
    assert!(lines.len() >= 4, "{script}");
    let lines = lines.join("\n").replace("/etc/default/grub", grub.to_str().unwrap());
    let changed = |text: &str| {
        fs::write(&grub, text).unwrap();
        let mut told = Vec::new();
        for _ in 0..2 {
            let (code, out, err) = run(std::process::Command::new("sh").args(["-c", &lines]));
            assert_eq!((code, err.as_str()), (0, ""), "{lines}");
            told.push((fs::read_to_string(&grub).unwrap(), out));
        }
        assert_eq!(told[0].0, told[1].0, "a second run changes it again");
        told.remove(0)
    };
    let given = "GRUB_CMDLINE_LINUX=\"quiet intremap=off pcie_acs_override=downstream\"\n";
    let (text, out) = changed(given);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!((text.as_str(), out.as_str()), ("GRUB_CMDLINE_LINUX=\"quiet iommu=pt\"", ""));
    let (text, out) = changed("GRUB_CMDLINE_LINUX='quiet'\n");
    assert_eq!(text, "GRUB_CMDLINE_LINUX='quiet'\n");
    for told in ["# intremap=off is not in ", "# add iommu=pt to GRUB_CMDLINE_LINUX in "] {
        assert!(out.contains(told), "{out}");
    }
}

/// Mounts empty directories over those that `device bind --at-boot` writes, and over that of the
/// programs.
const OWN_DIRS: &str = r#"
set -e
for dir in etc/systemd/system etc/modprobe.d etc/modules-load.d var/lib/gpuvm run/gpuvm usr/sbin; do
  mkdir -p /$dir; mount -t tmpfs -o mode=755 tmpfs /$dir
done
bind() { "$GPUVM" device bind --at-boot --yes -c none:/// "$@" 2>&1 && echo "done" || echo "failed"; }
tool() { printf '#!/bin/sh\necho "renewed by $*"  >>/run/gpuvm/log; exit %s\n' $1 >/usr/sbin/update-initramfs; chmod 755 /usr/sbin/update-initramfs; }
part() { echo "== $1"; }
"#;

#[test]
fn the_initramfs_is_renewed_when_that_is_asked_whatever_the_files_are() {
    let Some(host) = with_rmrr("0000:34:00.0") else { return };
    if ["dracut", "mkinitcpio"].iter().any(|name| Path::new("/usr/bin").join(name).exists()) {
        return skip("another program for the initramfs is installed");
    }
    for gpu in ["0000:36:00.0", "0000:39:00.0"] {
        let driver = host.path().join(format!("sys/bus/pci/devices/{gpu}/driver"));
        fs::remove_file(&driver).unwrap();
        std::os::unix::fs::symlink("../../../../../../bus/pci/drivers/vfio-pci", driver).unwrap();
    }
    let script = format!(
        r#"{OWN_DIRS}
        unit=/etc/systemd/system/gpuvm-vfio.service
        part none; bind 0000:36:00.0 --initramfs; cat $unit 2>&1 || true
        tool 0
        part files; bind 0000:36:00.0; cat /run/gpuvm/log 2>&1 || true
        part asked; bind 0000:36:00.0 --initramfs; cat /run/gpuvm/log
        tool 1
        cp $unit /run/gpuvm/before
        part fails; bind 0000:39:00.0 --initramfs; cmp $unit /run/gpuvm/before && echo "as before"
        "$GPUVM" recover -c none:/// --dry-run 2>&1
        "#
    );
    let (code, out, err) = on(host.path(), &script);
    assert_eq!(code, 0, "{out}{err}");
    let part = |name: &str| {
        let rest = out.split(&format!("== {name}\n")).nth(1).unwrap_or_else(|| panic!("{out}"));
        rest.split("== ").next().unwrap().to_owned()
    };
    let none = part("none");
    assert!(none.contains("no known program that makes its initramfs\nhint: "), "{none}");
    assert!(none.contains("failed") && none.contains("No such file"), "{none}");
    let files = part("files");
    assert!(files.contains("done") && files.contains("No such file"), "{files}");
    let asked = part("asked");
    assert!(asked.contains("done") && asked.contains("renewed by -u -k all"), "{asked}");
    let fails = part("fails");
    assert!(fails.contains("failed") && fails.contains("as before"), "{fails}");
    assert!(fails.contains("renew the initramfs: `update-initramfs -u -k all`"), "{fails}");
    assert!(!fails.contains("would be"), "a journal stays: {fails}");
}

/// A virtual function has no ids of its own: its config space always reads all ones there.
#[test]
fn a_lost_gpu_does_not_answer_and_a_virtual_function_is_none() {
    let (_dir, base, root) = hosts();
    let plain = rules(&doctor(&base).1);
    let gpu = root.join("sys/bus/pci/devices/0000:86:00.0");
    fs::write(gpu.join("config"), [0xff; 64]).unwrap();
    let (code, answer) = doctor(&root);
    assert!(code == 3 && rules(&answer).contains(&("d3cold".into(), "error".into())), "{answer}");
    let lost = &answer["findings"][0];
    assert_eq!((&lost["fatal"], &lost["device"]), (&true.into(), &"0000:86:00.0".into()));
    std::os::unix::fs::symlink("../0000:85:00.0", gpu.join("physfn")).unwrap();
    let (code, answer) = doctor(&root);
    assert_eq!((code, rules(&answer)), (0, plain), "{answer}");
}

#[test]
fn an_iommu_that_is_off_is_said_with_where_to_turn_it_on() {
    let (_dir, _, root) = hosts();
    let groups = root.join("sys/kernel/iommu_groups");
    fs::remove_dir_all(&groups).unwrap();
    fs::create_dir_all(&groups).unwrap();
    let devices = root.join("sys/bus/pci/devices");
    for entry in fs::read_dir(devices).unwrap() {
        let _ = fs::remove_file(entry.unwrap().path().join("iommu_group"));
    }
    let tables = root.join("sys/firmware/acpi/tables");
    fs::create_dir_all(&tables).unwrap();
    let said = |cmdline: &str| {
        fs::write(root.join("proc/cmdline"), cmdline).unwrap();
        let (code, answer) = doctor(&root);
        let findings = answer["findings"].as_array().unwrap();
        assert_eq!((code, findings[0]["rule"].as_str()), (3, Some("iommu-off")));
        assert_eq!(findings[0]["fatal"], true);
        format!(
            "{} | {}",
            findings[0]["message"].as_str().unwrap(),
            findings[0]["hint"].as_str().unwrap()
        )
    };
    let firmware = said("ro intel_iommu=on iommu=pt isolcpus=2,3,34,35");
    assert!(firmware.contains("VT-d is off in the BIOS setup"), "{firmware}");
    fs::write(tables.join("DMAR"), "DMAR").unwrap();
    let cmdline = said("ro iommu=pt isolcpus=2,3,34,35");
    assert!(cmdline.contains("the command line lacks `intel_iommu=on`"), "{cmdline}");
    let given = said("ro intel_iommu=off isolcpus=2,3,34,35");
    assert!(given.contains("remove `intel_iommu=off` from"), "{given}");
    let said = [
        "cannot be passed through: the IOMMU is off, so the host has no IOMMU group",
        "says why it is off and how to turn it on",
    ];
    agrees(&root, "0000:86:00.0", said);
    // Debian's program for the boot loader makes the commands exact.
    lay(&root, &[("usr/sbin/update-grub", ""), ("etc/default/grub", "")]);
    let (_, script, _) =
        run(&mut gpuvm(&["host", "doctor", "--fix", "--host", root.to_str().unwrap()]));
    let head = format!("# for the host of {}, not this machine\n", root.display());
    assert!(script.starts_with(&head), "{script}");
    assert!(
        script.contains("\nupdate-grub\n") && script.contains(r"s/\bintel_iommu=off\b *//"),
        "{script}"
    );
}

/// A real machine: the guest of another hypervisor, which gives it a GPU and no IOMMU.
#[test]
fn a_virtual_machine_without_an_iommu_has_one_verdict_and_says_what_its_hypervisor_lacks() {
    let dir = scratch();
    let (root, record) = (dir.path().join("root"), dir.path().join("record.json"));
    unpack(&host_text("h100-guest"), &root).unwrap();
    // As the kernel shows it, each function has a link to its bus; the record written by hand lacks
    // it.
    let functions = root.join("sys/devices/pci0000:00");
    for entry in fs::read_dir(functions).unwrap() {
        let function = entry.unwrap().path();
        if function.is_dir() {
            std::os::unix::fs::symlink("../../../bus/pci", function.join("subsystem")).unwrap();
        }
    }
    let words = ["host", "capture", record.to_str().unwrap(), "--host", root.to_str().unwrap()];
    let (code, _, err) = run(&mut gpuvm(&words));
    assert_eq!(code, 0, "{err}");
    for host in [&root, &record] {
        let (code, answer) = doctor(host);
        let finding = &answer["findings"][0];
        assert_eq!((code, finding["rule"].as_str()), (3, Some("iommu-off")), "{answer}");
        assert_eq!(rules(&answer).iter().filter(|(_, s)| s == "error").count(), 1, "{answer}");
        let said = [
            "cannot be passed through: the IOMMU is off, so the host has no IOMMU group",
            "says why it is off and how to turn it on",
        ];
        agrees(host, "0000:00:06.0", said);
    }
    let (_, answer) = doctor(&root);
    let text = |key: &str| answer["findings"][0][key].as_str().unwrap().to_owned();
    let message = text("message");
    assert!(
        message.contains("this is a virtual machine") && !message.contains("BIOS"),
        "{message}"
    );
    assert!(text("hint").contains("-device intel-iommu,intremap=on,caching-mode=on`"), "{answer}");
}

/// The first obstacles of a bare machine, in the words of its distribution.
#[test]
fn missing_packages_of_a_bare_machine_come_first_with_the_command() {
    let (_dir, _, root) = hosts();
    let said = |release: &str, cpu: &str| -> Vec<(String, String, String)> {
        lay_text(&root, "etc/os-release", release);
        let text = format!("processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t: {cpu}\n");
        lay_text(&root, "proc/cpuinfo", &text);
        let (code, answer) = doctor(&root);
        assert_eq!(code, 3, "{answer}");
        let text = |one: &Value, key: &str| one[key].as_str().unwrap().to_owned();
        let all = answer["findings"].as_array().unwrap().iter();
        let errors = all.filter(|one| one["severity"] == "error");
        errors.map(|one| (text(one, "rule"), text(one, "message"), text(one, "hint"))).collect()
    };
    lay(&root, &[("dev/vhost-net", "")]);
    let devices = root.join("sys/bus/pci/devices");
    for gpu in ["0000:18:00.0", "0000:86:00.0"] {
        fs::remove_file(devices.join(gpu)).unwrap();
    }
    let debian = said("ID=debian\n", "fpu vmx");
    let names: Vec<&str> = debian.iter().map(|(rule, ..)| rule.as_str()).collect();
    assert_eq!(names, ["no-kvm", "no-libvirt", "no-qemu", "no-firmware", "no-gpu"]);
    assert!(debian[0].2.starts_with("`sudo modprobe kvm_intel` loads it"), "{debian:?}");
    assert_eq!(debian[1].2, "`sudo apt install libvirt-daemon-system`");
    assert_eq!(debian[2].2, "`sudo apt install qemu-system-x86`");
    assert_eq!(debian[3].2, "`sudo apt install ovmf`");
    assert!(debian[4].1.contains("the PCI bus shows none"), "{debian:?}");
    let rocky = said("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", "fpu hypervisor");
    assert_eq!(rocky[1].2, "`sudo dnf install libvirt-daemon-kvm`");
    assert_eq!(rocky[3].2, "`sudo dnf install edk2-ovmf`");
    for at in [0, 4] {
        assert!(rocky[at].1.contains("this is a virtual machine (Example Systems "), "{rocky:?}");
    }
    assert!(rocky[0].2.starts_with("turn on nested virtualization in its hypervisor"), "{rocky:?}");
    let bare = said("ID=debian\n", "fpu");
    assert!(bare[0].1.ends_with("VT-x is off in the BIOS setup"), "{bare:?}");
    let words = ["host", "doctor", "--fix", "--host", root.to_str().unwrap()];
    let (_, script, _) = run(&mut gpuvm(&words));
    let install = script.lines().filter(|line| line.starts_with("apt install ")).count();
    assert_eq!(install, 3, "{script}");
}

/// Writes a file of a host.
fn lay_text(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Every verb says in these words that no guest gets a GPU of a host, and what helps.
fn agrees(host: &Path, gpu: &str, [why, helps]: [&str; 2]) {
    let host = host.to_str().unwrap();
    let disks = ["--name", "d", "--no-start"];
    for (verb, more, is_refused) in [
        (&["plan", "--gpu", gpu][..], &[][..], true),
        (&["export", "--gpu", gpu, "--name", "d"], &[], true),
        (&["create", "--gpu", gpu, "--dry-run"], &disks, true),
        (&["capacity", "--json"], &[], false),
        (&["gpu", "list", "--json"], &[], false),
        (&["device", "list", "--json"], &[], false),
    ] {
        let (code, out, err) = run(gpuvm(verb).args(more).args(["--host", host]));
        assert_eq!(code, i32::from(is_refused), "{verb:?}: {out}{err}");
        let all = format!("{out}{err}").split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(all.contains(why), "{verb:?}: {all}");
        let is_listed = matches!(verb[0], "gpu" | "device");
        assert!(is_listed || all.contains(helps), "{verb:?}: {all}");
    }
}

#[test]
fn a_gpu_whose_group_the_firmware_keeps_is_offered_by_no_verb() {
    let (_dir, base, root) = hosts();
    let gpus = |host: &Path| {
        let words = ["capacity", "--json", "--host", host.to_str().unwrap()];
        let (_, out, _) = run(&mut gpuvm(&words));
        let answer: Value = serde_json::from_str(&out).unwrap();
        answer["sizes"][0]["empty"].as_u64().unwrap()
    };
    let sign = CASES.iter().find(|(rule, ..)| *rule == "group-legacy-rmrr").unwrap();
    let (whole, gpu) = (gpus(&base), "0000:86:00.0");
    lay(&root, sign.2);
    assert_eq!(gpus(&root), whole - 1);
    let said = [
        "cannot be passed through: the firmware keeps memory of IOMMU group 19 for itself (RMRR)",
        "turn the device's shared memory off in the firmware",
    ];
    agrees(&root, gpu, said);
    let (_, answer) = doctor(&root);
    assert!(answer["findings"][0]["message"].as_str().unwrap().contains(said[0]), "{answer}");
    // The other one goes to guests.
    let words = ["plan", "--gpus", "1", "--host", root.to_str().unwrap()];
    let (code, _, err) = run(&mut gpuvm(&words));
    assert_eq!(code, 0, "{err}");
}

#[test]
fn create_warns_once_of_groups_that_are_split() {
    let (_dir, _, root) = hosts();
    let sign = CASES.iter().find(|(rule, ..)| *rule == "acs-override").unwrap();
    lay(&root, sign.2);
    let words = ["create", "--gpus", "1", "--name", "d", "--no-start", "--dry-run", "--host"];
    let (code, out, err) = run(gpuvm(&words).arg(&root).env("COLUMNS", "400"));
    assert_eq!(code, 0, "{out}{err}");
    let warnings = err.lines().filter(|line| line.contains("pcie_acs_override=")).count();
    assert_eq!(warnings, 1, "{err}");
}

#[test]
fn recorded_hosts_have_no_error() {
    for name in ["dgx-1", "dgx-2", "dgx-a100", "dgx-h100", "dual-socket", "h100-guest"] {
        let file = project().join(format!("topologies/{name}.json"));
        for host in [host_tree(name), file] {
            let (code, answer) = doctor(&host);
            let errors: Vec<_> = rules(&answer).into_iter().filter(|(_, s)| s == "error").collect();
            assert_eq!((code, errors.len()), (0, 0), "{}: {errors:?}", host.display());
            assert!(!answer["not_checked"].as_array().unwrap().is_empty(), "{name}");
        }
    }
}

/// Puts something else where a file was.
fn damage(path: &Path, kind: &str) {
    let _ = fs::remove_file(path);
    match kind {
        "empty" => fs::write(path, "").unwrap(),
        "garbage" => fs::write(path, b"\xff\xfe\x00\x01garbage\xff").unwrap(),
        "large" => fs::write(path, "x".repeat(1 << 20)).unwrap(),
        "fifo" => nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap(),
        "loop" => std::os::unix::fs::symlink(path.file_name().unwrap(), path).unwrap(),
        _ => fs::create_dir(path).unwrap(),
    }
}

#[test]
fn a_damaged_file_is_not_checked_and_nothing_else() {
    let (_dir, base, root) = hosts();
    let plain = rules(&doctor(&base).1);
    let mut seen = 0;
    for &(rule, _, overlay) in CASES {
        let sign = overlay[0].0;
        // Without its content a kernel argument or a release is none, and of these files it is the
        // name that counts.
        let others =
            ["proc/cmdline", "uevent", "osrelease", ".service", "dev/kvm", "dev/vhost-net"];
        if others.iter().any(|one| sign.ends_with(one)) || overlay[0].1.starts_with("->") {
            continue;
        }
        for kind in ["empty", "garbage", "large", "fifo", "directory", "loop"] {
            // An empty file says that there is no method; a pipe without a writer is empty.
            let by_discovery = ["allow_unsafe_interrupts", "numa_balancing", "reset_method"];
            if kind == "empty" && sign.ends_with("reset_method")
                || kind == "fifo" && by_discovery.iter().any(|one| sign.ends_with(one))
            {
                continue;
            }
            lay(&root, overlay);
            damage(&root.join(sign), kind);
            let host = root.to_str().unwrap();
            let (code, out, err) = run(&mut gpuvm(&["host", "doctor", "--json", "--host", host]));
            assert!(code == 0 || code == 1, "{rule} {kind}: {code} {out}{err}");
            if code == 1 {
                // Discovery reads it, too, and names it.
                let told: Value = serde_json::from_str(&out).unwrap();
                let told = told["message"].as_str().unwrap();
                assert!(told.contains(sign.rsplit('/').next().unwrap()), "{rule} {kind}: {told}");
            } else {
                let answer: Value = serde_json::from_str(&out).unwrap();
                let found = rules(&answer);
                let more: Vec<_> = found.iter().filter(|one| !plain.contains(one)).collect();
                assert!(more.is_empty(), "{rule} {kind}: {more:?}");
                let not_checked = answer["not_checked"].to_string();
                // Nothing, or words that mean nothing, is no damage of a configuration.
                let is_checked = not_checked.contains(&format!("\"{rule} ("));
                assert!(is_checked || ["empty", "large"].contains(&kind), "{rule} {kind} {sign}");
            }
            seen += 1;
            lift(&root, &base, overlay);
        }
    }
    assert!(seen > 100, "{seen}");
    assert_eq!(rules(&doctor(&root).1), plain, "damage is left");
}

#[test]
fn a_file_of_the_kernel_that_is_too_long_leaves_its_rules_unchecked() {
    let (_dir, base, root) = hosts();
    let plain = rules(&doctor(&base).1);
    for (path, unchecked) in [
        ("proc/cmdline", &["acs-override", "irq-remap", "iommu-mode"][..]),
        ("proc/sys/kernel/osrelease", &["permission", "slow-large-bars"]),
        ("proc/sys/kernel/numa_balancing", &["numa-balancing-off"]),
        ("proc/sys/kernel/arch", &[]),
        ("proc/iomem", &["console-holds-gpu"]),
        ("proc/buddyinfo", &["pages-fragmented"]),
    ] {
        fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
        fs::write(root.join(path), "x".repeat(9 << 20)).unwrap();
        let (code, answer) = doctor(&root);
        assert_eq!(code, 0, "{path}: {answer}");
        assert!(rules(&answer).is_subset(&plain), "{path}: {answer}");
        for rule in unchecked {
            let says = |why: &Value| why.as_str().unwrap().starts_with(&format!("{rule} ("));
            assert!(answer["not_checked"].as_array().unwrap().iter().any(says), "{path} {rule}");
        }
        let _ = fs::remove_file(root.join(path));
        let _ = fs::copy(base.join(path), root.join(path));
    }
}

/// A host on which the group of this GPU has memory of the firmware's, as if this machine were it.
fn with_rmrr(gpu: &str) -> Option<tempfile::TempDir> {
    if !nix::unistd::geteuid().is_root() || !namespaces() {
        return skip("needs root and namespaces");
    }
    if !Path::new("/usr/bin/qemu-system-x86_64").exists() {
        return skip("qemu-system-x86_64 is not installed");
    }
    let dir = scratch();
    unpack(&host_text("dgx-2"), dir.path()).unwrap();
    let group = dir.path().join(format!("sys/bus/pci/devices/{gpu}/iommu_group"));
    let group = group.read_link().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    let regions = dir.path().join(format!("sys/kernel/iommu_groups/{group}/reserved_regions"));
    fs::create_dir_all(regions.parent().unwrap()).unwrap();
    fs::write(regions, "0x0000000079000000 0x00000000790fffff direct\n").unwrap();
    Some(dir)
}

/// Runs a script as if on this host; `$GPUVM` is the program.
fn on(host: &Path, script: &str) -> (i32, String, String) {
    let mut command = std::process::Command::new(project().join("tests/as-host"));
    command.arg(host).args(["bash", "-c", script]).env("GPUVM", env!("CARGO_BIN_EXE_gpuvm"));
    command.env("LC_ALL", "C").env_remove("COLUMNS").env_remove("LIBVIRT_DEFAULT_URI");
    run(&mut command)
}

#[test]
fn create_and_bind_refuse_what_surely_fails_and_let_the_other_gpus_be() {
    let Some(host) = with_rmrr("0000:34:00.0") else { return };
    let own = tempfile::tempdir().unwrap();
    let uri = format!("qemu:///embed?root={}/root", own.path().display());
    fs::create_dir_all(own.path().join("root/etc")).unwrap();
    let conf = "stdio_handler = \"file\"\nsecurity_driver = \"none\"\n";
    fs::write(own.path().join("root/etc/qemu.conf"), conf).unwrap();
    let disks = own.path().display();
    let create = format!(
        "create --name d --accept-shared-fabric --no-start --disk-dir {disks} --dry-run -c {uri}"
    );
    for (verb, gpu, refused) in [
        ("device bind --dry-run -c none:///", "0000:34:00.0", true),
        ("device bind --dry-run -c none:///", "0000:36:00.0", false),
        (&create, "--gpu 0000:34:00.0", true),
        (&create, "--gpu 0000:36:00.0", false),
    ] {
        let (code, out, err) = on(host.path(), &format!("$GPUVM {verb} {gpu}"));
        assert_eq!(code, i32::from(refused), "{verb} {gpu}: {out}{err}");
        let rule = "cannot be passed through: the firmware keeps memory";
        assert_eq!(err.contains(rule), refused, "{verb} {gpu}: {err}");
        assert!(!err.contains("host doctor"), "a warning on a clean host: {err}");
        if refused {
            assert!(err.contains("0000:34:00.0") && err.contains("\nhint: "), "{err}");
            let code = if verb == create { "plan-impossible" } else { "doctor-surely-fails" };
            let (_, out, _) = on(host.path(), &format!("$GPUVM {verb} {gpu} --json"));
            let told: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"));
            assert_eq!(told["code"], code);
        }
    }
}

/// A KVM that is none, a request that no host meets and an image that is missing: all are named,
/// and no step is done.
#[test]
fn create_names_all_obstacles_at_once() {
    let Some(host) = with_rmrr("0000:34:00.0") else { return };
    let own = tempfile::tempdir().unwrap();
    let uri = format!("qemu:///embed?root={}/root", own.path().display());
    fs::create_dir_all(own.path().join("root/etc")).unwrap();
    let conf = "stdio_handler = \"file\"\nsecurity_driver = \"none\"\n";
    fs::write(own.path().join("root/etc/qemu.conf"), conf).unwrap();
    // A device that is there and not KVM, where there is one at all.
    let hide = "umount /dev/kvm; [[ ! -e /dev/kvm ]] || mount --bind /dev/null /dev/kvm";
    let create =
        |more: &str| on(host.path(), &format!("{hide}; $GPUVM create d --gpus 99 -c {uri} {more}"));
    let (code, out, err) = create("");
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.contains("error: the guest cannot be created, for 3 reasons\n"), "{err}");
    for said in ["/dev/kvm", "99 GPUs", "image"] {
        assert!(
            err.lines().any(|line| line.starts_with("  ") && line.contains(said)),
            "{said}: {err}"
        );
    }
    assert!(err.matches("\nhint: ").count() >= 3 && !err.contains("'efi'"), "{err}");
    let (_, out, _) = create("--json");
    let told: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"));
    assert_eq!(
        (&told["code"], told["causes"].as_array().unwrap().len() >= 3),
        (&"create-no-kvm".into(), true)
    );
    // An emulated guest needs none.
    let (_, _, err) = create("--virt-type qemu");
    assert!(err.contains("for 2 reasons") && !err.contains("/dev/kvm"), "{err}");
}

#[test]
fn fix_prints_the_commands_and_runs_none() {
    let Some(host) = with_rmrr("0000:34:00.0") else { return };
    let overlay: Overlay = &[("sys/kernel/mm/ksm/run", "1\n")];
    lay(host.path(), overlay);
    let policy = host.path().join("sys/module/pcie_aspm/parameters/policy");
    fs::create_dir_all(policy.parent().unwrap()).unwrap();
    fs::write(&policy, "default [powersave]\n").unwrap();
    let own = tempfile::tempdir().unwrap();
    let bin = own.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let log = own.path().join("log");
    for name in ["sh", "sed", "systemctl", "modprobe", "update-grub", "echo", "gpuvm", "dmesg"] {
        let path = bin.join(name);
        fs::write(&path, format!("#!/bin/bash\necho {name} >>{}\n", log.display())).unwrap();
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let script = format!("PATH={} \"$GPUVM\" host doctor --fix -c none:///", bin.display());
    let (code, out, err) = on(host.path(), &script);
    assert_eq!(code, 3, "{out}{err}");
    assert!(!log.exists(), "it ran {:?}", fs::read_to_string(&log));
    let at = |path: &str| fs::read_to_string(host.path().join(path)).unwrap();
    assert_eq!(at("sys/kernel/mm/ksm/run"), "1\n");
    assert_eq!(fs::read_to_string(&policy).unwrap(), "default [powersave]\n");
    assert!(out.contains("\necho 2 >/sys/kernel/mm/ksm/run\n"), "{out}");
    assert!(out.contains("# error: GPU 0000:34:00.0"), "{out}");
    // Its output is a script, by whatever name it was found.
    let file = own.path().join("script");
    fs::write(&file, &out).unwrap();
    let (code, _, err) = run(std::process::Command::new("sh").arg("-n").arg(&file));
    assert_eq!(code, 0, "{err}\n{out}");
    let (code, out, err) = on(host.path(), "$GPUVM host doctor --fix --json");
    assert!(code == 2 && out.contains("--fix"), "{code} {out}{err}");
}

#[test]
fn a_journal_that_is_no_file_or_too_long_is_an_error_and_bytes_are_none() {
    let dir = tempfile::tempdir().unwrap();
    let host = project().join("topologies/dual-socket.json");
    let doctor = |file: &Path| {
        let mut command = gpuvm(&["host", "doctor", "--json", "--journal"]);
        let (code, out, _) = run(command.arg(file).arg("--host").arg(&host));
        (code, serde_json::from_str::<Value>(&out).unwrap_or_else(|e| panic!("{e}: {out}")))
    };
    let at = |name: &str| dir.path().join(name);
    nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::File::create(at("long")).unwrap().set_len((256 << 20) + 1).unwrap();
    for (name, said) in [
        ("fifo", "named pipe"),
        ("long", "more than the limit"),
        ("missing", "No such file"),
        ("", "directory"),
    ] {
        let (code, error) = doctor(&at(name));
        assert_eq!((code, error["format"].as_str()), (1, Some("gpuvm-error")), "{name}: {error}");
        let all = error.to_string();
        assert!(all.contains(said) && all.contains(name), "{name}: {error}");
    }
    let line = "NVRM: Xid (PCI:0000:86:00): 48, pid=1\n";
    let one = "x".repeat(4 << 20);
    for (name, bytes, entries) in [
        ("empty", Vec::new(), 0),
        ("binary", [&b"\xff\xfe\x00\n"[..], line.as_bytes(), b"\x00\x1b[31m"].concat(), 1),
        ("line", [one.as_bytes(), line.as_bytes()].concat(), 1),
    ] {
        fs::write(at(name), bytes).unwrap();
        let (code, answer) = doctor(&at(name));
        // An Xid of hardware is a finding.
        assert_eq!(code, if entries == 0 { 0 } else { 3 }, "{name}");
        let journal = answer["journal"].as_array().unwrap();
        assert_eq!(journal.len(), entries, "{name}: {journal:?}");
        assert_eq!(faults("gpuvm-host-doctor", &answer), "", "{name}");
        if let Some(entry) = journal.first() {
            assert_eq!((&entry["xid"], &entry["rule"]), (&48.into(), &"hostdev-unhealthy".into()));
            assert!(entry["example"].as_str().unwrap().len() <= 800, "{name}");
        }
    }
}

#[test]
fn a_log_is_searched_and_a_record_keeps_the_facts() {
    let (dir, _, root) = hosts();
    lay(
        &root,
        &[("sys/kernel/mm/ksm/run", "1\n"), (DROP_IN, "LimitMEMLOCK=64M\n"), (GUESTS, "[Unit]\n")],
    );
    let record = dir.path().join("host.json");
    let words = ["host", "capture", record.to_str().unwrap(), "--host", root.to_str().unwrap()];
    let (code, _, err) = run(&mut gpuvm(&words));
    assert_eq!(code, 0, "{err}");
    assert_eq!(rules(&doctor(&record).1), rules(&doctor(&root).1));
    let log = "kernel: NVRM: Xid (PCI:0000:86:00): 79\nkernel: vfio-pci 0000:86:00.0: Unable to \
               change power state from D3cold to D0, device inaccessible\n\u{0}";
    let words = ["host", "doctor", "--journal", "-", "--json", "--host", record.to_str().unwrap()];
    let mut child = gpuvm(&words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(log.as_bytes()).unwrap();
    stdin.write_all(b"\xff\xfe\n").unwrap();
    drop(stdin);
    let done = child.wait_with_output().unwrap();
    let answer: Value = serde_json::from_slice(&done.stdout).unwrap();
    let found = answer["journal"].as_array().unwrap();
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(
        (&found[0]["rule"], &found[1]["rule"]),
        (&"d3cold".into(), &"hostdev-unhealthy".into())
    );
    assert_eq!((&found[1]["xid"], &found[1]["text"]), (&79.into(), &"fallen off the bus".into()));
}

#[test]
fn findings_are_reported_without_zero_counts() {
    let dir = tempfile::tempdir().unwrap();
    let host = project().join("topologies/dgx-2.json");
    let doctor = |more: &[&str]| {
        let mut command = gpuvm(&["host", "doctor"]);
        run(command.args(more).arg("--host").arg(&host).current_dir(dir.path()))
    };
    let (code, out, _) = doctor(&[]);
    let line = "19 of 46 rules checked: no problem; 27 not checked:\n";
    assert!(code == 0 && out.starts_with(line), "{out}");
    let listed = out.lines().skip(1).take_while(|line| line.starts_with("  ")).count();
    assert_eq!(listed, 27, "{out}");
    let (code, out, _) = doctor(&["--fix"]);
    assert!(code == 0 && out.contains("\n# nothing to fix: no rule found a problem"), "{out}");
    fs::write(dir.path().join("log"), "\n").unwrap();
    let (_, out, _) = doctor(&["--journal", "log"]);
    assert!(out.contains("the kernel's log (the input is empty"), "{out}");
    fs::write(dir.path().join("log"), "NVRM: GPU 0000:34:00.0: GPU has fallen off the bus.\n")
        .unwrap();
    let (code, out, _) = doctor(&["--journal", "log"]);
    assert!(code == 3 && out.contains("error: in the log, 1 line like line 1: NVRM"), "{out}");
    assert!(out.contains("\n23 of 50 rules checked: 1 error; 27 not checked:\n"), "{out}");
    let (code, _, err) = doctor(&["--journal", "missing"]);
    assert!(code == 1 && err.contains("missing") && err.contains("hint: `sudo jour"), "{err}");
    let (_dir, _, root) = hosts();
    lay(&root, &[("sys/kernel/mm/ksm/run", "1\n")]);
    let (_, out, _) = run(gpuvm(&["host", "doctor", "--host"]).arg(&root));
    let last = out.lines().find(|line| line.contains(" rules checked: ")).unwrap();
    assert!(last.contains(" of 46 rules checked: 2 warnings; "), "{last}");
}

/// What `journalctl -k` prints where it may read nothing.
#[test]
fn a_log_without_a_line_of_the_kernel_is_no_clean_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("log");
    for (log, is_checked) in [
        ("", false),
        ("No journal files were found.\n-- No entries --\n", false),
        ("Nov 24 10:00:00 host kernel: usb 1-1: new device\n", true),
    ] {
        fs::write(&file, log).unwrap();
        let mut command = gpuvm(&["host", "doctor", "--json", "--host"]);
        command.arg(project().join("topologies/dgx-2.json")).arg("--journal").arg(&file);
        let (_, out, err) = run(&mut command);
        let answer: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {err}"));
        let of_log = answer["not_checked"].as_array().unwrap().iter();
        let of_log = of_log.filter(|why| why.as_str().unwrap().starts_with("the kernel's log"));
        assert_eq!(of_log.count(), usize::from(!is_checked), "{log}: {out}");
    }
}
