//! NVLinks that NVML reports: bridges, remembered links, links that a board has lost.

use super::machine::{A100, Machine, source};
use crate::support::tree::host_text;
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// A DGX-1 without its name, so that no table knows its links: eight GPUs on the driver `nvidia`,
/// in two packages.
fn bridged() -> String {
    host_text("dgx-1").replace("product_name = NVIDIA DGX-1", "product_name = SYS-4029")
}

/// NVLinks of a fabric as pairs of buses with a count.
pub fn links(fabric: &Value) -> Vec<(String, String, u64)> {
    let bus = |gpu: &Value| gpu.as_str().unwrap()[5..7].to_owned();
    let all = fabric["links"].as_array().into_iter().flatten();
    all.map(|l| (bus(&l["a"]), bus(&l["b"]), l["links"].as_u64().unwrap())).collect()
}

#[test]
fn bridges_are_read_from_nvml_and_stay_known_on_vfio_pci() {
    let record = bridged();
    let Some(machine) = Machine::new(&record) else { return };
    let gpus: Vec<(&str, u32)> =
        ["06", "07", "0a", "0b", "85", "86", "89", "8a"].map(|bus| (bus, 1)).to_vec();
    // The NVLink bridges are crossed: the first GPU is linked to one of the other package.
    let bridges = "nvlink 0000:06:00.0 0000:8a:00.0 4\nnvlink 0000:07:00.0 0000:0b:00.0 4";
    machine.fake("none", &gpus, bridges);
    let wanted =
        [("06", "8a", 4), ("07", "0b", 4)].map(|(a, b, n)| (a.to_owned(), b.to_owned(), n));
    let (fabric, _) = machine.fabric(true);
    assert_eq!(links(&fabric), wanted);
    assert_eq!(fabric["source"], "NVLinks read from NVML");
    let (_, out, _) = machine.gpuvm(&["host", "matrix", "--tsv"], true);
    let row: Vec<&str> = out.lines().nth(1).unwrap().split('\t').collect();
    assert_eq!(row[8], "NV4", "{out}");
    // The captured host has them, and the linked pair is planned.
    let (code, out, err) = machine.gpuvm(&["host", "capture", "-"], true);
    assert_eq!(code, 0, "{err}");
    let captured: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(links(&captured["host"]["fabric"]), wanted);
    // Drivers that cannot distinguish a switch from a GPU.
    machine.fake("none", &gpus, &format!("{bridges}\nfail nvmlDeviceGetNvLinkRemoteDeviceType 13"));
    assert_eq!(links(&machine.fabric(true).0), wanted);
    // Without NVML nothing is known, and that is reported.
    let (fabric, notes) = machine.fabric(false);
    assert_eq!(links(&fabric), []);
    assert!(notes.contains("NVML has not reported the NVLinks: libnvidia-ml.so.1"), "{notes}");

    machine.fake("none", &gpus, bridges);
    let (code, _, err) = machine.gpuvm(&["host", "modules", "--write", "--dry-run"], true);
    let path = "/var/lib/gpuvm/nvlinks.json";
    assert!(err.contains(&format!("would write {path}")), "{code} {err}");
    assert!(!Path::new(&machine.path("var/gpuvm/nvlinks.json")).exists());
    let (code, _, err) = machine.gpuvm(&["host", "modules", "--write"], true);
    assert!(err.contains(&format!("{path}: NVLinks by NVML")), "{code} {err}");
    // A file of a newer version, and a link, stay as they are.
    let stored = machine.path("var/gpuvm/nvlinks.json");
    let good = std::fs::read_to_string(&stored).unwrap();
    let newer = r#"{"format":"gpuvm-nvlinks","version":99}"#;
    std::fs::write(&stored, newer).unwrap();
    let (code, _, err) = machine.gpuvm(&["host", "modules", "--write"], true);
    assert!(code == 1 && err.contains("version 99 is of a newer gpuvm"), "{code} {err}");
    assert!(err.contains("nvlinks.json.old` puts it away"), "{err}");
    assert_eq!(std::fs::read_to_string(&stored).unwrap(), newer);
    std::fs::remove_file(&stored).unwrap();
    std::os::unix::fs::symlink("/nowhere", &stored).unwrap();
    let (code, _, err) = machine.gpuvm(&["host", "modules", "--write"], true);
    assert!(code == 1 && err.contains("is a symbolic link"), "{code} {err}");
    assert!(Path::new(&stored).is_symlink());
    std::fs::remove_file(&stored).unwrap();
    std::fs::write(&stored, good).unwrap();
    // Stored since this boot: NVML is not asked again.
    machine.fake("none", &gpus, "crash nvmlInitWithFlags");
    assert_eq!(links(&machine.fabric(true).0), wanted);

    // All GPUs on vfio-pci: the stored file is used, without NVML.
    let vfio = record.replace("/bus/pci/drivers/nvidia\n", "/bus/pci/drivers/vfio-pci\n");
    let Some(later) = Machine::new(&vfio) else { return };
    later.fake("none", &gpus, "");
    assert_eq!(links(&later.fabric(false).0), []);
    let kept = later.path("var/gpuvm/nvlinks.json");
    std::fs::create_dir_all(later.path("var/gpuvm")).unwrap();
    std::fs::copy(machine.path("var/gpuvm/nvlinks.json"), &kept).unwrap();
    let (fabric, _) = later.fabric(false);
    assert_eq!(links(&fabric), wanted);
    assert_eq!(fabric["source"], format!("NVLinks read from {path}"));
    // Another card at the same address: its links are not those of the previous card.
    let text = std::fs::read_to_string(&kept).unwrap();
    std::fs::write(&kept, text.replacen("7601", "7602", 1).replacen("7605", "7602", 1)).unwrap();
    let (fabric, _) = later.fabric(false);
    assert_eq!(links(&fabric).len(), 2, "told by the other end: {fabric}");
    // Whatever is wrong with it: the same words everywhere, and no error.
    let text = std::fs::read_to_string(machine.path("var/gpuvm/nvlinks.json")).unwrap();
    for (wrong, reason) in [
        ("{".to_owned(), "nvlinks.json line 1: EOF while parsing an object"),
        (text.replace("\"version\": 1", "\"version\": 2"), "version 2 is of a newer gpuvm"),
        (text.replace("gpuvm-nvlinks", "other"), "it is `other` version 1"),
        (text.replace("0000:06:00.0", "0000:06:00.9"), "PCI function 0x9 is above 0x7"),
        (text.replace("0000:06:00.0", "0000:05:00.0"), "this host has no"),
        ("\u{0}".to_owned(), "nvlinks.json"),
    ] {
        std::fs::write(&kept, wrong).unwrap();
        unread(&later, reason, &[]);
    }
    std::fs::write(&kept, &text).unwrap();
    std::fs::set_permissions(&kept, Permissions::from_mode(0o666)).unwrap();
    let others = "others than root may have written it: it is of user 0, mode 0666";
    unread(&later, others, &[]);
    std::fs::remove_file(&kept).unwrap();
    std::fs::create_dir(&kept).unwrap();
    let verbs = [
        &["plan", "--gpus", "2", "--assume-empty", "--json"][..],
        &["capacity", "--assume-empty", "--json"],
        &["host", "doctor", "--json"],
        &["host", "capture", "-"],
    ];
    unread(&later, "it is not a regular file", &verbs);
}

/// Asserts that `host show` says for this reason that the kept NVLinks are not used, and these
/// verbs in the same words.
fn unread(machine: &Machine, reason: &str, verbs: &[&[&str]]) {
    let said = |args: &[&str]| {
        let (code, out, err) = machine.gpuvm(args, false);
        assert!(code == 0 || (code == 3 && args[1] == "doctor"), "{reason}: {args:?}: {err}");
        let text = format!("{out} {err}").replace("\\n", "\n");
        let words: Vec<&str> = text.split_whitespace().collect();
        let text = words.join(" ");
        let end = text.find(" rewrites it while GPUs are bound to `nvidia`");
        let so = text.find("; so the NVLinks kept there");
        let begin = so.and_then(|so| text[..so].rfind("/var/lib/gpuvm/nvlinks.json"));
        let (Some(begin), Some(end)) = (begin, end) else { panic!("{reason}: {args:?}: {text}") };
        text[begin..end].to_owned()
    };
    let shown = said(&["host", "show", "--json"]);
    assert!(shown.contains(reason), "{reason}: {shown}");
    assert!(shown.ends_with(
        "so the NVLinks kept there are not used; `mv /var/lib/gpuvm/nvlinks.json \
         /var/lib/gpuvm/nvlinks.json.old` puts it away; `gpuvm host modules --write`"
    ));
    for args in verbs {
        assert_eq!(said(args), shown, "{args:?}");
    }
}

#[test]
fn nvml_wins_over_the_table_of_a_board() {
    // Full passthrough: only NVML reports that a GPU has lost two links.
    let Some(machine) = Machine::new(&host_text("dgx-a100")) else { return };
    machine.fake("a100", &A100, "links 3 10");
    let (fabric, _) = machine.fabric(true);
    let of = |links: &[(String, String, u64)], bus: &str| {
        let mut all: Vec<u64> =
            links.iter().filter(|(a, b, _)| a == bus || b == bus).map(|(.., n)| *n).collect();
        all.dedup();
        all
    };
    let read = links(&fabric);
    assert_eq!((of(&read, "07"), read.len()), (vec![10], 28), "{fabric}");
    assert!(of(&read, "0f").contains(&12), "{fabric}");
    assert_eq!(fabric["degraded"], serde_json::json!(["GPU 0000:07:00.0 has 10 of 12 NVLinks"]));
    assert!(source(&fabric).ends_with("NVLinks read from NVML"), "{fabric}");
    let whole = |fabric: &Value| {
        let all = fabric["partitions"].as_array().unwrap().clone();
        let whole = all.iter().find(|p| p["gpus"].as_array().unwrap().len() == 8).unwrap();
        whole["nvlinks_per_gpu"].as_u64().unwrap()
    };
    assert_eq!(whole(&fabric), 10);
    // Before Fabric Manager has trained them no link is up: the table counts, and a note says so.
    let down: Vec<String> = A100.iter().map(|(_, id)| format!("links {id} 0")).collect();
    machine.fake("a100", &A100, &down.join("\n"));
    let (fabric, notes) = machine.fabric(true);
    assert_eq!((links(&fabric).len(), whole(&fabric)), (28, 12));
    assert!(notes.contains("NVML shows no NVLink that works"), "{notes}");
}
