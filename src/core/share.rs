//! The share of cases that unit tests try: `make test-nightly` tries all of them.

/// Whether all are tried: `GPUVM_LAW=all`.
#[allow(clippy::disallowed_methods)] // The choice of a run of tests.
pub(crate) fn is_all() -> bool {
    std::env::var("GPUVM_LAW").is_ok_and(|law| law == "all")
}

/// This number of random cases, or a third of it.
pub(crate) fn cases(all: u32) -> u32 {
    if is_all() { all } else { all.div_ceil(3) }
}
