//! The comparison in a build without hwloc: reports that nothing was compared.

use gpuvm_core::topology::Topology;

/// Reports that nothing was compared.
pub fn crosscheck(_: &Topology) -> Vec<String> {
    vec!["not compared with hwloc: this gpuvm was built without it (cargo feature `hwloc`)".into()]
}
