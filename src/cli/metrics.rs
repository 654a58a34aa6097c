//! `--metrics`: numbers for the node exporter of Prometheus, as a file or on standard output.

use super::context::Context;
use super::error::usage;
use gpuvm_core::metrics::{METRICS_MARK, is_metrics_of};
use gpuvm_ops::files::write_own;
use std::path::Path;

/// Whether this means standard output.
pub fn is_out(file: &Path) -> bool {
    file == Path::new("-")
}

/// Warns of a name that the node exporter does not read.
pub fn warn_of_name(file: &Path, cx: &Context<'_>) {
    if !is_out(file) && file.extension().is_none_or(|end| end != "prom") {
        cx.output.warning(&format!("the node exporter reads no {}: no .prom", file.display()));
    }
}

/// Refuses two answers on standard output.
pub fn check(file: Option<&Path>, others: bool) -> anyhow::Result<()> {
    if others && file.is_some_and(is_out) {
        return Err(usage(
            "--metrics - prints metrics on standard output, where another answer goes, too",
            "write the metrics to a file: --metrics gpuvm.prom",
        ));
    }
    Ok(())
}

/// Writes metrics of `capacity`.
pub fn write(file: &Path, text: &str, cx: &Context<'_>) -> anyhow::Result<()> {
    if is_out(file) {
        return Ok(cx.output.exact(text)?);
    }
    Ok(write_own(file, METRICS_MARK, |there| is_metrics_of("capacity", there), text.as_bytes())?)
}
