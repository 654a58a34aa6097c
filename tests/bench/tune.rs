//! `tune --dry-run` of 50 domains in one run against 50 runs of `virt-xml --edit --print-diff`,
//! which each edit one thing of one of the same domains.

use crate::measure::{Subject, Verdict, rotate};
use crate::support::project;
use gpuvm::bdf::Bdf;
use gpuvm::topology::file::to_json;
use gpuvm_bench::hosts;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The largest share of virt-xml's time that `tune --dry-run` may take.
const OF_VIRT_XML: f64 = 0.1;
const DOMAINS: usize = 50;
/// The virt-xml edit of each file of the directory `$0`.
const VIRT_XML: &str = "for file in \"$0\"/*.xml; do virt-xml --connect test:///default --edit \
                        --cputune vcpupin0.vcpu=0,vcpupin0.cpuset=0 --print-diff <\"$file\" || exit; done";

/// Measures and compares.
pub fn bench(quick: bool) -> Vec<Verdict> {
    if !Command::new("virt-xml").arg("--version").output().is_ok_and(|o| o.status.success()) {
        println!("skipped: no virt-xml to compare with");
        return Vec::new();
    }
    let dir = tempfile::tempdir().expect("a temporary directory is made");
    let large = hosts::large(8, 4096, 72).topology;
    let host = dir.path().join("large.json");
    std::fs::write(&host, to_json(&large)).expect("the host is written");
    // On the small host the guests have no cores of their own: they would not fit.
    let small = files(dir.path(), "small", |_| String::new());
    let gpus: Vec<Bdf> = large.gpus().map(|gpu| gpu.bdf).collect();
    let large = files(dir.path(), "large", |number| hostdev(gpus[number]));
    let dgx2 = project().join("topologies/dgx-2.json");
    let cases = [
        (
            "DGX-2, pins off",
            "gpuvm tune",
            ours(&dgx2, &small, &["--all-settings", "--pins", "off"]),
            &small,
        ),
        ("4096 pcpus, a GPU each", "gpuvm tune", ours(&host, &large, &[]), &large),
    ];
    let mut verdicts = Vec::new();
    for (case, name, ours, files) in cases {
        let ours: Vec<&str> = ours.iter().map(String::as_str).collect();
        let mut subjects = [
            Subject::new(name, &ours),
            Subject::new("50 times virt-xml --print-diff", &["bash", "-c", VIRT_XML, text(files)]),
        ];
        rotate(&mut subjects, if quick { 1 } else { 3 });
        for subject in &subjects {
            println!("{:<34} {:>10.1} ms ({case})", subject.name, subject.median_ms());
        }
        let what = format!("tune --dry-run / virt-xml, {DOMAINS} domains, {case}");
        let value = subjects[0].median_ms() / subjects[1].median_ms();
        verdicts.push(Verdict { what, value, limit: OF_VIRT_XML, unit: "x", gate: true });
    }
    verdicts
}

/// The command that tunes the domains of a directory on a host.
fn ours(host: &Path, files: &Path, more: &[&str]) -> Vec<String> {
    let words = [env!("CARGO_BIN_EXE_gpuvm"), "tune", "--all", "--dry-run"];
    let places = ["--host", text(host), "--domain-xml", text(files)];
    [&words[..], &places, more].concat().into_iter().map(str::to_owned).collect()
}

/// A path of a temporary directory or of the project.
fn text(path: &Path) -> &str {
    path.to_str().expect("it is UTF-8")
}

/// Writes the domains, as an admin makes them by default, into a directory of their own; `more` are
/// devices of each.
fn files(dir: &Path, name: &str, more: impl Fn(usize) -> String) -> PathBuf {
    let dir = dir.join(name);
    std::fs::create_dir(&dir).expect("a temporary directory takes another");
    for number in 0..DOMAINS {
        let xml = format!(
            "<domain type='kvm'>
  <name>guest-{number}</name>
  <memory unit='GiB'>4</memory>
  <vcpu placement='static'>8</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
  </os>
  <cpu mode='host-passthrough' check='none'/>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2'/>
      <source file='/var/lib/libvirt/images/guest-{number}.qcow2'/>
      <target dev='vda' bus='virtio'/>
    </disk>
    <interface type='network'>
      <mac address='52:54:00:d8:ec:{number:02x}'/>
      <source network='default'/>
      <model type='virtio'/>
    </interface>{}
  </devices>
</domain>
",
            more(number)
        );
        std::fs::write(dir.join(format!("guest-{number}.xml")), xml).expect("a file is written");
    }
    dir
}

fn hostdev(bdf: Bdf) -> String {
    format!(
        "
    <hostdev mode='subsystem' type='pci' managed='yes'>
      <source>
        <address domain='{:#06x}' bus='{:#04x}' slot='{:#04x}' function='{:#x}'/>
      </source>
    </hostdev>",
        bdf.segment(),
        bdf.bus(),
        bdf.device(),
        bdf.function()
    )
}
