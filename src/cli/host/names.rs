//! What people call parts: models by PCI id, addresses, sizes, link speeds. Ids that are not listed are printed as
//! numbers; nothing depends on these names.

use crate::bdf::Bdf;
use crate::topology::pci::{VENDOR_MELLANOX, VENDOR_NVIDIA};
use crate::topology::{Link, PciDevice};

/// Models by vendor and device id (spec/nvswitch.md 7, the PCI ID list).
const MODELS: &[(u16, u16, &str)] = &[
    (VENDOR_NVIDIA, 0x1db1, "V100 SXM2 16 GB"),
    (VENDOR_NVIDIA, 0x1db5, "V100 SXM2 32 GB"),
    (VENDOR_NVIDIA, 0x1db8, "V100 SXM3 32 GB"),
    (VENDOR_NVIDIA, 0x1eb8, "T4"),
    (VENDOR_NVIDIA, 0x20b0, "A100 SXM4 40 GB"),
    (VENDOR_NVIDIA, 0x20b2, "A100 SXM4 80 GB"),
    (VENDOR_NVIDIA, 0x20b3, "A100 SXM4 64 GB"),
    (VENDOR_NVIDIA, 0x20bd, "A800 SXM4 40 GB"),
    (VENDOR_NVIDIA, 0x20f3, "A800 SXM4 80 GB"),
    (VENDOR_NVIDIA, 0x2324, "H800 SXM5"),
    (VENDOR_NVIDIA, 0x2329, "H20"),
    (VENDOR_NVIDIA, 0x232c, "H20-3e"),
    (VENDOR_NVIDIA, 0x2330, "H100 SXM5 80 GB"),
    (VENDOR_NVIDIA, 0x2335, "H200 SXM 141 GB"),
    (VENDOR_NVIDIA, 0x233b, "H200 NVL"),
    (VENDOR_NVIDIA, 0x2901, "B200 SXM"),
    (VENDOR_NVIDIA, 0x2941, "GB200"),
    (VENDOR_NVIDIA, 0x3182, "B300 SXM6"),
    (VENDOR_NVIDIA, 0x31c2, "GB300"),
    (VENDOR_NVIDIA, 0x1ac2, "NVSwitch 1"),
    (VENDOR_NVIDIA, 0x1af1, "NVSwitch 2"),
    (VENDOR_NVIDIA, 0x22a3, "NVSwitch 3"),
    (VENDOR_MELLANOX, 0x1013, "ConnectX-4"),
    (VENDOR_MELLANOX, 0x1015, "ConnectX-4 Lx"),
    (VENDOR_MELLANOX, 0x1017, "ConnectX-5"),
    (VENDOR_MELLANOX, 0x1019, "ConnectX-5 Ex"),
    (VENDOR_MELLANOX, 0x101b, "ConnectX-6"),
    (VENDOR_MELLANOX, 0x101d, "ConnectX-6 Dx"),
    (VENDOR_MELLANOX, 0x101f, "ConnectX-6 Lx"),
    (VENDOR_MELLANOX, 0x1021, "ConnectX-7"),
    (VENDOR_MELLANOX, 0x1023, "ConnectX-8"),
    (VENDOR_MELLANOX, 0xa2d6, "BlueField-2"),
    (VENDOR_MELLANOX, 0xa2dc, "BlueField-3"),
];

/// The model of a function, or its ids.
pub fn model(device: &PciDevice) -> String {
    let PciDevice { vendor, device, .. } = *device;
    MODELS
        .iter()
        .find(|(v, d, _)| (*v, *d) == (vendor, device))
        .map_or_else(|| format!("{vendor:04x}:{device:04x}"), |(_, _, name)| (*name).to_owned())
}

/// An address without segment 0, as `lspci` prints it.
pub fn short(bdf: Bdf) -> String {
    let text = bdf.to_string();
    text.strip_prefix("0000:").map_or(text.clone(), ToOwned::to_owned)
}

/// A drive's size in the units that its maker uses.
pub fn drive_size(bytes: u64) -> String {
    let units: [(u64, _); 3] =
        [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB")];
    let Some((unit, name)) = units.into_iter().find(|(unit, _)| bytes >= *unit) else {
        return format!("{bytes} B");
    };
    let hundredths = u128::from(bytes) * 100 / u128::from(unit);
    let (whole, rest) = (hundredths / 100, hundredths % 100);
    match (whole, rest) {
        (100.., _) | (_, 0) => format!("{whole} {name}"),
        _ => format!("{whole}.{rest:02} {name}"),
    }
}

/// What a link lacks against the best it can have; nothing where it is at its best or nothing is known.
pub fn slow_link(device: &PciDevice) -> Option<String> {
    let (now, best) = (device.link.as_ref()?, device.link_max.as_ref()?);
    let speed = |link: &Link| link.speed_dgts.map(|dgts| (dgts, rate(dgts)));
    let mut lacks = Vec::new();
    if let (Some(now), Some(best)) = (now.width, best.width)
        && now < best
    {
        lacks.push(format!("x{now} of x{best}"));
    }
    if let (Some((now, text)), Some((best, best_text))) = (speed(now), speed(best))
        && now < best
    {
        lacks.push(format!("{text} of {best_text} GT/s"));
    }
    (!lacks.is_empty()).then(|| format!("link {}", lacks.join(", ")))
}

/// A link speed in GT/s.
fn rate(dgts: u32) -> String {
    match (dgts / 10, dgts % 10) {
        (whole, 0) => whole.to_string(),
        (whole, tenth) => format!("{whole}.{tenth}"),
    }
}

/// A text of the host's without what a terminal would act on.
pub fn plain(text: &str) -> String {
    let harmless = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().map(harmless).collect()
}

/// Words in lines of at most `width` columns: `head` stands before the first line, blanks of its width before the
/// others. A word that is longer than a line stands alone.
pub fn wrapped(head: &str, words: &str, width: usize) -> String {
    let indent = head.chars().count();
    let (mut text, mut used) = (head.to_owned(), indent);
    for (position, word) in plain(words).split(' ').enumerate() {
        let long = word.chars().count();
        if position > 0 && used + 1 + long > width {
            text = text.trim_end().to_owned();
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', indent));
            used = indent;
        } else if position > 0 {
            text.push(' ');
            used += 1;
        }
        text.push_str(word);
        used += long;
    }
    text.push('\n');
    text
}

/// A count with its noun.
pub fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_makers_print_them() {
        for (bytes, text) in [
            (0, "0 B"),
            (512, "512 B"),
            (960_197_124_096, "960 GB"),
            (3_840_755_982_336, "3.84 TB"),
            (2_000_000_000_000, "2 TB"),
            (u64::MAX, "18446744 TB"),
        ] {
            assert_eq!(drive_size(bytes), text);
        }
    }

    #[test]
    fn words_go_on_below_each_other() {
        assert_eq!(wrapped("  a  ", "bc de fgh", 10), "  a  bc de\n     fgh\n");
        assert_eq!(wrapped("", "longer than this", 3), "longer\nthan\nthis\n");
        assert_eq!(wrapped("  ", "", 3), "  \n");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(plain("a\x1b[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
    }
}
