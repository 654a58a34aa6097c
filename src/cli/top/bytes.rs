//! Numbers in few columns.

/// Bytes per second in at most four characters: `999`, `1.2K`, `34M`.
pub(super) fn short(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes as f64, "");
    for next in ["K", "M", "G", "T", "P", "E"] {
        // A value that would round to four digits takes the next unit.
        if value < 999.5 {
            break;
        }
        (value, unit) = (value / 1000.0, next);
    }
    if unit.is_empty() || value >= 9.95 {
        format!("{value:.0}{unit}")
    } else {
        format!("{value:.1}{unit}")
    }
}

/// A page size in two or three characters: `2M`.
pub(super) fn page(kib: u64) -> String {
    match kib {
        kib if kib >= 1 << 20 => format!("{}G", kib >> 20),
        kib if kib >= 1 << 10 => format!("{}M", kib >> 10),
        kib => format!("{kib}K"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (bytes, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1.0K"),
            (9949, "9.9K"),
            (9951, "10K"),
            (999_400, "999K"),
            (999_600, "1.0M"),
            (1_234_000_000, "1.2G"),
            (u64::MAX, "18E"),
        ] {
            assert_eq!(short(bytes), text);
        }
        assert_eq!([2048, 1 << 20, 64].map(page), ["2M", "1G", "64K"]);
    }
}
