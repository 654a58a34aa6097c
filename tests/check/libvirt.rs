//! libvirt's own judgement of the defects, on the recorded DGX-2: it accepts most of them.

use super::defects::{DEFECTS, Defect};
use super::{edited, good};
use crate::support;
use crate::support::lawful::NO_KVM;
use crate::support::skip;
use std::path::Path;

/// Whether libvirt's embedded driver can be run as on another host: root, the tools, KVM.
fn can_run() -> bool {
    let tools = ["/usr/bin/virsh", "/usr/bin/qemu-system-x86_64"];
    if let Some(tool) = tools.into_iter().find(|tool| !Path::new(tool).exists()) {
        return skip(format!("no {tool}"));
    }
    if !nix::unistd::geteuid().is_root() {
        return skip("needs root");
    }
    Path::new("/dev/kvm").exists() || skip(NO_KVM)
}

/// Defines every `*.xml` of the directory `$0` beside one another and prints a verdict each; then
/// the correct domain on a host whose node 0 has no memory. All ask for the same GPUs and pcpus,
/// which libvirt accepts as well.
const SCRIPT: &str = r#"
cd "$0" && mkdir -p root || exit
define() {
  virsh -q -c "qemu:///embed?root=$0/root" define --validate "$1" >/dev/null 2>"$2.log" && \
    echo "accepted $2" || echo "refused $2"
}
for f in case-*.xml good.xml; do define "$f" "${f%.xml}"; done
node=/sys/devices/system/node/node0
sed 's/MemTotal:.*/MemTotal: 0 kB/' $node/meminfo > meminfo
mount --bind meminfo $node/meminfo || exit
virsh -c "qemu:///embed?root=$0/root" capabilities | grep '<memory' >&2
define node-empty.txt node-empty
"#;

#[test]
fn libvirt_accepts_what_the_checker_refuses() {
    if !can_run() {
        return;
    }
    let host = support::host_tree("dgx-2");
    let dir = tempfile::tempdir().unwrap();
    let cases: Vec<&Defect> =
        DEFECTS.iter().filter(|defect| defect.libvirt_accepts.is_some()).collect();
    let write = |file: &str, text: String| {
        let name = file.split('.').next().unwrap();
        let text = text.replace("train-a-2g0-1", name);
        std::fs::write(dir.path().join(file), text).unwrap();
    };
    write("good.xml", good());
    write("node-empty.txt", good());
    for (number, defect) in cases.iter().enumerate() {
        write(&format!("case-{number}.xml"), edited(defect.edits));
    }
    support::known::give(&dir.path().join("root").join(support::known::EMBEDDED), &host);
    let (code, out, err) = support::run(
        std::process::Command::new(support::project().join("tests/as-host"))
            .arg(host)
            .args(["bash", "-c", SCRIPT])
            .arg(dir.path()),
    );
    assert_eq!(code, 0, "{out}{err}");
    // The host really was without memory on node 0; node 1 has its own.
    assert!(!err.contains("791244484") && err.contains("792712816"), "{err}");
    let accepted = |name: &str| {
        let verdict = out.lines().find_map(|line| line.strip_suffix(&format!(" {name}")));
        let log = std::fs::read_to_string(dir.path().join(format!("{name}.log")));
        (verdict == Some("accepted"), log.unwrap_or_default())
    };
    for name in ["good", "node-empty"] {
        assert!(accepted(name).0, "{name}: {}", accepted(name).1);
    }
    let mut differs = Vec::new();
    for (number, defect) in cases.iter().enumerate() {
        let (accepts, log) = accepted(&format!("case-{number}"));
        if Some(accepts) != defect.libvirt_accepts {
            differs.push(format!("{} at {}: accepted {accepts}: {log}", defect.rule, defect.path));
        }
    }
    assert!(differs.is_empty(), "{}", differs.join("\n"));
}
