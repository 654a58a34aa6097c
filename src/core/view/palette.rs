//! The colours of a picture. Each is beside a letter or a pattern; text on it has a contrast of at
//! least 4.5 to 1.

use super::guests::HUES;

/// Hues of guests with the colour of text on them: those of Okabe and Ito, which colour-blind
/// people can distinguish, and four more.
pub(super) const GUESTS: [(&str, &str); HUES] = [
    ("#e69f00", "#000000"),
    ("#56b4e9", "#000000"),
    ("#009e73", "#000000"),
    ("#f0e442", "#000000"),
    ("#0072b2", "#ffffff"),
    ("#d55e00", "#000000"),
    ("#cc79a7", "#000000"),
    ("#6a3d9a", "#ffffff"),
    ("#a6d96a", "#000000"),
    ("#8c510a", "#ffffff"),
    ("#80cdc1", "#000000"),
    ("#404040", "#ffffff"),
];

/// Colours of parts without a guest.
pub(super) struct Scheme {
    pub(super) ground: &'static str,
    pub(super) package: &'static str,
    pub(super) node: &'static str,
    pub(super) bridge: &'static str,
    pub(super) free: &'static str,
    /// Of parts in use by the host, with lines of the second colour.
    pub(super) host: (&'static str, &'static str),
    /// Of devices that no guest can have, with a cross of the second colour.
    pub(super) unusable: (&'static str, &'static str),
    /// Borders.
    pub(super) line: &'static str,
    pub(super) text: &'static str,
}

/// On a white screen and on paper.
pub(super) const LIGHT: Scheme = Scheme {
    ground: "#ffffff",
    package: "#eef0f3",
    node: "#ffffff",
    bridge: "#f4f5f8",
    free: "#ffffff",
    host: ("#dcdfe4", "#b9bec7"),
    unusable: ("#ffe3e0", "#c8102e"),
    line: "#6b7280",
    text: "#16181d",
};

pub(super) const DARK: Scheme = Scheme {
    ground: "#14171c",
    package: "#1d2128",
    node: "#14171c",
    bridge: "#1b1f26",
    free: "#262b34",
    host: ("#3a404a", "#555d6b"),
    unusable: ("#4a1d1f", "#ff8a80"),
    line: "#8b93a1",
    text: "#eceef2",
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance of a colour, by WCAG 2.
    fn luminance(colour: &str) -> f64 {
        let part = |at: usize| {
            let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    /// Contrast of two colours, by WCAG 2.
    fn contrast(a: &str, b: &str) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn text_can_be_read_on_every_colour() {
        for (hue, text) in GUESTS {
            assert!(contrast(hue, text) >= 4.5, "{text} on {hue}: {}", contrast(hue, text));
        }
        for Scheme { ground, package, node, bridge, free, host, unusable, line, text } in
            [LIGHT, DARK]
        {
            for below in [ground, package, node, bridge, free, host.0, host.1, unusable.0] {
                assert!(contrast(text, below) >= 4.5, "{text} on {below}");
            }
            // Borders and the cross are graphics, for which 3 to 1 is enough.
            for (line, below) in [(line, node), (line, package), (unusable.1, unusable.0)] {
                assert!(contrast(line, below) >= 3.0, "{line} on {below}");
            }
        }
    }

    #[test]
    fn no_two_guests_have_the_same_hue() {
        let hues: std::collections::BTreeSet<&str> = GUESTS.iter().map(|(hue, _)| *hue).collect();
        assert_eq!(hues.len(), HUES);
    }
}
