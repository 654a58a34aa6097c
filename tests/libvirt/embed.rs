//! libvirt's QEMU driver in the program's own process: no daemon, and the definitions stay between
//! processes.

use super::{files, on_dgx2};
use crate::support::daemon::namespaces;
use crate::support::{host_tree, known, run, skip};
use std::path::Path;

/// A driver's directory, and a directory for disks.
fn place() -> Option<tempfile::TempDir> {
    if !namespaces() {
        return skip("namespaces need root");
    }
    if !Path::new("/usr/bin/qemu-system-x86_64").exists() {
        return skip("qemu-system-x86_64 is not installed");
    }
    let dir = fresh();
    known::give(&dir.path().join("root").join(known::EMBEDDED), &host_tree("dgx-2"));
    Some(dir)
}

/// An empty driver's directory, and a directory for disks.
fn fresh() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("root/etc")).unwrap();
    std::fs::create_dir(dir.path().join("disks")).unwrap();
    let conf = "stdio_handler = \"file\"\nsecurity_driver = \"none\"\nremember_owner = 0\n";
    std::fs::write(dir.path().join("root/etc/qemu.conf"), conf).unwrap();
    dir
}

/// Runs the program on it, as if on a DGX-2.
fn gpuvm(dir: &Path, arguments: &str) -> (i32, String, String) {
    let mut command = on_dgx2(&format!("$GPUVM {arguments}"));
    let uri = format!("qemu:///embed?root={}", dir.join("root").display());
    run(command.env("LIBVIRT_DEFAULT_URI", uri).env("DISKS", dir.join("disks")))
}

#[test]
fn a_guest_is_created_listed_and_deleted_by_three_processes() {
    let Some(dir) = place() else { return };
    let at = dir.path();
    let (code, out, err) =
        gpuvm(at, "create --gpus 2 --accept-shared-fabric --name e --no-start --disk-dir $DISKS");
    assert_eq!(code, 0, "{err}");
    assert!(out.starts_with("e: create mac: 52:54:00:") && out.lines().count() == 1, "{out}");
    assert!(!err.contains("otherwise than planned"), "{err}");
    assert_eq!(files(&at.join("disks")), ["e.raw"]);

    let (code, out, err) = gpuvm(at, "list");
    assert_eq!(code, 0, "{err}");
    let row: Vec<&str> = out.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    assert_eq!(row[..4], ["e", "shut", "off", "10"], "{out}");
    assert!(row.contains(&"0,1") && row.ends_with(&["gpuvm"]), "{out}");

    // QEMU's log is in the driver's directory.
    let (code, _, err) = gpuvm(at, "logs e --qemu");
    assert!(code == 1 && err.contains("root/log/qemu/e.log yet"), "{err}");

    // The second guest is put beside the first, and a third of that name is refused.
    let (code, out, err) =
        gpuvm(at, "create --gpus 2 --accept-shared-fabric --no-start --disk-dir $DISKS --json");
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("\"gpuvm-2g2-3\""), "{out}");
    let (code, _, err) = gpuvm(at, "create --name e --no-start --disk-dir $DISKS");
    assert_eq!(code, 1);
    assert!(err.contains("has a domain of this name") && err.contains("hint:"), "{err}");

    // Clones get other GPUs, whose buses libvirt takes as they are arranged then.
    for name in ["f", "g"] {
        let (code, _, err) = gpuvm(at, &format!("clone e {name} --accept-shared-fabric"));
        assert_eq!(code, 0, "{err}");
    }

    for name in ["e", "gpuvm-2g2-3", "f", "g"] {
        let (code, _, err) = gpuvm(at, &format!("delete {name} --yes"));
        assert_eq!(code, 0, "{err}");
    }
    // The driver in our process is a daemon's; its log is not for our users.
    let end = gpuvm(at, "list");
    assert_eq!(end, (0, String::new(), "no domain is defined\n".to_owned()));
    assert_eq!(files(&at.join("disks")), [""; 0]);
    let left = run(std::process::Command::new("find")
        .arg(at)
        .args(["-name", "cache", "-prune", "-o", "-name", "*.xml", "-print"]))
    .1;
    assert_eq!(left, "", "definitions are left");
}

#[test]
fn a_guest_by_iommufd_is_refused_where_kernel_or_libvirt_lacks_it() {
    let Some(dir) = place() else { return };
    let at = dir.path();
    let line = "--gpus 1 --iommufd on --accept-shared-fabric --name i --no-start --disk-dir $DISKS";
    let (code, out, err) = gpuvm(at, &format!("create {line}"));
    if code == 0 {
        return skip("kernel, libvirt and QEMU have iommufd");
    }
    assert!(code == 1 && out.is_empty(), "{out}{err}");
    assert!(err.contains("functions cannot be passed through by iommufd: "), "{err}");
    if !Path::new("/dev/iommu").exists() {
        assert!(err.contains("/dev/iommu") && err.contains("CONFIG_IOMMUFD"), "{err}");
    }
    assert!(err.contains("`--iommufd off` passes them through by VFIO groups"), "{err}");
    assert_eq!(files(&at.join("disks")), [""; 0]);
    let off = line.replace("--iommufd on", "--iommufd off");
    let (code, _, err) = gpuvm(at, &format!("create {off}"));
    assert_eq!(code, 0, "{err}");
    // What stands in the way of the change is what stands in that of the guest.
    let (code, _, err) = gpuvm(at, "tune i --iommufd on --yes");
    assert!(code == 1 && err.contains("--iommufd: "), "{err}");
    let (code, out, err) = gpuvm(at, "tune i --iommufd off --yes");
    assert!(code == 0 && !format!("{out}{err}").contains("iommufd: "), "{out}{err}");
    let (code, _, err) = gpuvm(at, "delete i --yes");
    assert_eq!(code, 0, "{err}");
}

#[test]
fn a_data_volume_lies_on_the_array_and_goes_with_the_guest() {
    let Some(dir) = place() else { return };
    let script = "made=; [ -d /raid ] || { mkdir /raid; made=1; }; mount -t tmpfs tmpfs /raid; [ \
                  -z $made ] || trap 'umount /raid; rmdir /raid' EXIT; $GPUVM create --domain v \
                  --gpu-count 1 --gpu-index 4 --volGB 1 --no-start --disk-dir $DISKS; stat -c '%n \
                  %s' /raid/dgx-kvm/*; $GPUVM delete v-1g4 --yes; ls /raid/dgx-kvm; ! $GPUVM \
                  create --name w --volGB 3 --no-start --disk-dir $DISKS/absent; ls /raid/dgx-kvm";
    let mut command = on_dgx2(script);
    let uri = format!("qemu:///embed?root={}", dir.path().join("root").display());
    command.env("LIBVIRT_DEFAULT_URI", uri).env("DISKS", dir.path().join("disks"));
    let (code, out, err) = run(&mut command);
    assert_eq!(code, 0, "{out}{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("v-1g4: create mac: "), "{out}");
    assert_eq!(lines[1..], ["/raid/dgx-kvm/vol-v-1g4 1000000000"], "{out}{err}");
}

#[test]
fn a_disk_that_another_domain_has_is_not_taken() {
    let Some(dir) = place() else { return };
    let at = dir.path();
    let (code, _, err) = gpuvm(at, "create --name one --no-start --disk-dir $DISKS --os-size 8M");
    assert_eq!(code, 0, "{err}");
    let two = "create --name two --no-start --disk $DISKS/one.raw";
    let (code, _, err) = gpuvm(at, two);
    assert!(code == 1 && err.contains("domain `one` has it as a disk"), "{err}");
    // A copy of it is another disk.
    std::fs::copy(at.join("disks/one.raw"), at.join("disks/two.raw")).unwrap();
    let (code, _, err) = gpuvm(at, &two.replace("one.raw", "two.raw"));
    assert_eq!(code, 0, "{err}");
    for name in ["one", "two"] {
        let (code, _, err) = gpuvm(at, &format!("delete {name} --yes"));
        assert_eq!(code, 0, "{err}");
    }
    // Given with --disk, so not made for it.
    assert_eq!(files(&at.join("disks")), ["two.raw"]);
}

/// The definition that the steps of a preview define.
fn defined(steps: &serde_json::Value) -> Option<&str> {
    match steps {
        serde_json::Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            let text = value.as_str().filter(|text| name == "xml" && text.contains("<domain"));
            text.or_else(|| defined(value))
        }),
        serde_json::Value::Array(all) => all.iter().find_map(defined),
        _ => None,
    }
}

/// Without what `create` has bound by itself, which an export cannot know.
fn without_bound(xml: &str) -> String {
    let Some((before, rest)) = xml.split_once("      <gpuvm:bound>\n") else {
        return xml.trim_end().to_owned();
    };
    let (_, after) = rest.split_once("</gpuvm:bound>\n").unwrap();
    format!("{before}{after}").trim_end().to_owned()
}

/// A record names libvirt and QEMU, so that `create` defines the exported domain there.
#[test]
fn the_export_of_a_record_is_what_create_defines() {
    for (host, gpus) in
        [("dgx-1", 2), ("dgx-2", 16), ("dgx-a100", 4), ("dgx-h100", 8), ("dual-socket", 1)]
    {
        if !namespaces() {
            return skip("namespaces need root");
        }
        let dir = fresh();
        let at = dir.path();
        known::give(&at.join("root").join(known::EMBEDDED), &host_tree(host));
        let words = format!(
            "--gpus {gpus} --name e --image none --disk-dir {}",
            at.join("disks").display()
        );
        let record = at.join("host.json");
        let script = format!(
            "$GPUVM host capture {} >/dev/null; $GPUVM export {words} >{}; $GPUVM create {words} \
             --no-start --accept-shared-fabric --dry-run --json",
            record.display(),
            at.join("live.xml").display()
        );
        let uri = format!("qemu:///embed?root={}", at.join("root").display());
        let mut command = super::on_host(host, &script);
        let (code, steps, err) = run(command.env("LIBVIRT_DEFAULT_URI", &uri));
        assert_eq!(code, 0, "{host}: {err}");
        let exported = format!("export --host {} {words}", record.display());
        let exported: Vec<&str> = exported.split_whitespace().collect();
        let (code, recorded, err) = run(&mut crate::support::gpuvm(&exported));
        assert_eq!(code, 0, "{host}: {err}");
        let live = std::fs::read_to_string(at.join("live.xml")).unwrap();
        assert_eq!(recorded, live, "{host}");
        let steps: serde_json::Value = serde_json::from_str(&steps).unwrap();
        let created = without_bound(defined(&steps).unwrap());
        assert_eq!(created, recorded.trim_end(), "{host}");
        assert!(!recorded.contains("gpuvm:assumed"), "{host}: the record names them");
        let json = std::fs::read_to_string(&record).unwrap();
        let mut json: serde_json::Value = serde_json::from_str(&json).unwrap();
        json["host"]["machine"].as_object_mut().unwrap().remove("stack").unwrap();
        std::fs::write(&record, json.to_string()).unwrap();
        let (_, old, _) = run(crate::support::gpuvm(&exported).args(["--assume", "libvirt=12.9"]));
        assert!(old.contains("<gpuvm:assumed libvirt='12.9.0' qemu='10.0.0'/>"), "{host}: {old}");
    }
}
