//! The rate of one direction of a NIC, with its units.

use super::fragment::{Fragment, Want};
use crate::memsize::MemSize;
use serde::{Deserialize, Serialize};

/// The rate of one direction of a NIC, as libvirt has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rate {
    /// Mean rate, in units of 1000 bytes per second.
    pub average_kb_s: u64,
    /// Highest rate, in the same unit; `None` for libvirt's default. Ignored for outbound traffic.
    pub peak_kb_s: Option<u64>,
    /// How much may go at the highest rate, in KiB; `None` for libvirt's default.
    pub burst_kib: Option<u64>,
}

impl Rate {
    /// Reads an average rate and, optionally, peak and burst, separated by `between`:
    /// `1Gbit/s:2Gbit/s:4M`.
    pub fn read(text: &str, between: char) -> Option<Rate> {
        let mut parts = text.split(between);
        let average_kb_s = speed(parts.next()?)?;
        let peak_kb_s = parts.next().map(speed);
        let burst = parts.next().map(|text| text.parse::<MemSize>().ok());
        if parts.next().is_some() || peak_kb_s == Some(None) || burst == Some(None) {
            return None;
        }
        let burst_kib = burst.flatten().map(MemSize::kib);
        Some(Rate { average_kb_s, peak_kb_s: peak_kb_s.flatten(), burst_kib })
    }

    /// Returns it as options of NICs take it: average, peak and burst, separated by colons.
    pub fn typed(self) -> String {
        let speed = |kb_s: u64| match kb_s {
            whole if whole.is_multiple_of(125_000) => format!("{}Gbit/s", whole / 125_000),
            whole if whole.is_multiple_of(125) => format!("{}Mbit/s", whole / 125),
            other => format!("{other}kB/s"),
        };
        let peak = self.peak_kb_s.map(|peak| format!(":{}", speed(peak))).unwrap_or_default();
        let burst = self.burst_kib.filter(|_| self.peak_kb_s.is_some());
        let burst = burst.map(|kib| format!(":{kib}K")).unwrap_or_default();
        format!("{}{peak}{burst}", speed(self.average_kb_s))
    }

    /// Returns the wanted state of its element.
    pub(super) fn fragment(self, name: &'static str) -> Fragment {
        let or_absent =
            |value: Option<u64>| value.map_or(Want::Absent, |value| Want::Set(value.to_string()));
        Fragment::new(name)
            .attr("average", self.average_kb_s)
            .want("peak", or_absent(self.peak_kb_s))
            .want("burst", or_absent(self.burst_kib))
    }
}

/// Reads a rate with its unit; returns it in units of 1000 bytes per second, like libvirt.
fn speed(text: &str) -> Option<u64> {
    /// Units, each with how many bits per second it is.
    const UNITS: [(&str, u64); 6] = [
        ("kbit/s", 1000),
        ("Mbit/s", 1_000_000),
        ("Gbit/s", 1_000_000_000),
        ("kB/s", 8000),
        ("MB/s", 8_000_000),
        ("GB/s", 8_000_000_000),
    ];
    let (number, bits) =
        UNITS.iter().find_map(|(unit, bits)| Some((text.strip_suffix(unit)?, *bits)))?;
    let number: u64 = number.parse().ok()?;
    Some(number.checked_mul(bits)? / 8000).filter(|rate| *rate > 0)
}
