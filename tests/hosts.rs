//! Recorded hosts: ours equal their file in `topologies`, and no record makes the program panic.

use crate::support::{host_tree, project};
use gpuvm::discover::source;
use gpuvm::topology::file::to_json;

/// Our recorded hosts.
const HOSTS: [&str; 5] = ["dgx-1", "dgx-2", "dgx-a100", "dgx-h100", "dual-socket"];

/// Set to renew `topologies` from `tests/hosts`.
const RENEW: &str = "GPUVM_RENEW";

#[test]
fn every_topology_is_what_is_discovered() {
    let mut stale = Vec::new();
    for name in HOSTS {
        let host = source::load(&host_tree(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let file = project().join(format!("topologies/{name}.json"));
        let found = to_json(&host);
        if std::env::var_os(RENEW).is_some() {
            std::fs::write(&file, &found).unwrap();
        }
        let kept = std::fs::read_to_string(&file).unwrap_or_default();
        if kept != found {
            let line = kept.lines().zip(found.lines()).take_while(|(a, b)| a == b).count();
            let (a, b) = (kept.lines().nth(line), found.lines().nth(line));
            stale.push(format!("{name} line {}: {a:?} in the file, {b:?} found", line + 1));
        }
    }
    assert!(stale.is_empty(), "{RENEW}=1 renews topologies/*.json:\n{}", stale.join("\n"));
}
