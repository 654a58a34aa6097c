//! Arithmetic of counters that only grow.

/// A counter that falls from above this was full, and began at zero again; any other that falls was
/// reset.
const NEARLY_FULL: u64 = u64::MAX - (1 << 48);

/// Returns how much a counter grew; `None` if it was reset, so that this is unknown.
pub(super) fn grown(before: u64, after: u64) -> Option<u64> {
    match after.checked_sub(before) {
        None if before > NEARLY_FULL => Some(after.wrapping_sub(before)),
        grown => grown,
    }
}

/// A ratio as it is printed, with four digits.
pub(super) fn rounded(ratio: f64) -> f64 {
    (ratio * 1e4).round() / 1e4
}

/// A part of a whole; 0 of nothing.
pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { rounded(part as f64 / whole as f64) }
}
