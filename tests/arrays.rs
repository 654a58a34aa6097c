//! md arrays of drives, on user-mode Linux with drives of its own (`tests/uml/arrays.sh`): one
//! level; with `GPUVM_ARRAYS=all`, which takes some ten minutes of a processor, every level, and
//! kills at every command.

use crate::support::uml;

#[test]
fn arrays_are_released_restored_and_rebuilt() {
    let set = std::env::var("GPUVM_ARRAYS").unwrap_or_else(|_| "short".into());
    let words = ["tests/uml/arrays.sh", env!("CARGO_BIN_EXE_gpuvm"), &set];
    let options = [["--disk", "64M"].repeat(4), vec!["--timeout", "3000"]].concat();
    uml::succeeds(&options, &words, &[], "arrays: no failures");
}
