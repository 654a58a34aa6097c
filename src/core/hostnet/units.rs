//! systemd-networkd's units, as far as needed here: which unit applies to a network device, and its
//! settings (systemd.network(5)).

/// One unit: a `.network`, or a `.netdev`, which makes a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Its file name, which decides its order among the others.
    pub file: String,
    /// Its lines: section, key and value.
    lines: Vec<(String, String, String)>,
}

/// A network device, as a unit is matched with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Its MAC address, lower case; `None` if the device does not exist yet.
    pub mac: Option<String>,
}

impl Unit {
    /// Reads a unit.
    pub fn read(file: &str, text: &str) -> Unit {
        let (mut section, mut lines) = (String::new(), Vec::new());
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                name.clone_into(&mut section);
            } else if let Some((key, value)) = line.split_once('=')
                && !line.starts_with(['#', ';'])
            {
                lines.push((section.clone(), key.trim().to_owned(), value.trim().to_owned()));
            }
        }
        Unit { file: file.to_owned(), lines }
    }

    /// Returns the values of a key in a section.
    fn values<'a>(&'a self, section: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
        let is_it = move |line: &&(String, String, String)| line.0 == section && line.1 == key;
        self.lines.iter().filter(is_it).map(|line| line.2.as_str())
    }

    /// Whether a key has this value in any section; each word of a list counts.
    pub fn says(&self, key: &str, value: &str) -> bool {
        let has = |said: &str| said == value || said.split_whitespace().any(|word| word == value);
        self.lines.iter().any(|(_, k, v)| k == key && has(v))
    }

    /// The network device that it makes; `None` if it makes none.
    pub fn makes(&self) -> Option<&str> {
        let is_netdev = self.file.ends_with(".netdev");
        self.values("NetDev", "Name").next().filter(|_| is_netdev)
    }

    /// Whether it matches this device. Conditions that cannot be evaluated, such as the driver,
    /// count as matching.
    fn fits(&self, link: &Link) -> bool {
        let names = self.values("Match", "Name").all(|value| {
            let (not, value) = match value.strip_prefix('!') {
                Some(rest) => (true, rest),
                None => (false, value),
            };
            value.split_whitespace().any(|pattern| is_like(&link.name, pattern)) != not
        });
        let is_mac = |value: &str| {
            let mut words = value.split_whitespace();
            words.any(|word| Some(word.to_ascii_lowercase().replace('-', ":")) == link.mac)
        };
        names
            && self.values("Match", "MACAddress").all(is_mac)
            && self.values("Match", "PermanentMACAddress").all(is_mac)
    }
}

/// Returns the unit that applies to a device: the first matching one by name. Of files with the
/// same name only the one from the first directory is given.
pub fn taker<'a>(units: &'a [Unit], link: &Link) -> Option<&'a Unit> {
    let networks = units.iter().filter(|unit| unit.file.ends_with(".network"));
    networks.filter(|unit| unit.fits(link)).min_by(|a, b| a.file.cmp(&b.file))
}

/// Whether a text matches a shell pattern: `*`, `?`, `[a-z]`, `[!a]`.
fn is_like(text: &str, pattern: &str) -> bool {
    let mut rest = pattern.chars();
    let Some(first) = rest.next() else { return text.is_empty() };
    let rest = rest.as_str();
    let mut chars = text.chars();
    let next = chars.next();
    match (first, next) {
        ('*', _) => {
            let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            ends.into_iter().any(|at| is_like(&text[at..], rest))
        }
        (_, None) => false,
        ('?', Some(_)) => is_like(chars.as_str(), rest),
        ('[', Some(next)) => match rest.get(1..).and_then(|tail| tail.find(']')) {
            Some(end) => {
                let (set, rest) = (&rest[..=end], &rest[end + 2..]);
                is_in(next, set) && is_like(chars.as_str(), rest)
            }
            None => next == '[' && is_like(chars.as_str(), rest),
        },
        (first, Some(next)) => first == next && is_like(chars.as_str(), rest),
    }
}

/// Whether a character is in a set: `a-z0`, `!a`.
fn is_in(c: char, set: &str) -> bool {
    let (not, set) = match set.strip_prefix(['!', '^']) {
        Some(rest) => (true, rest),
        None => (false, set),
    };
    let all: Vec<char> = set.chars().collect();
    let mut at = 0;
    let mut found = false;
    while let Some(&first) = all.get(at) {
        match (all.get(at + 1), all.get(at + 2)) {
            (Some('-'), Some(&last)) => {
                found |= first <= c && c <= last;
                at += 3;
            }
            _ => {
                found |= first == c;
                at += 1;
            }
        }
    }
    found != not
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_the_shell() {
        for (text, pattern, like) in [
            ("enp6s0", "en*", true),
            ("enp6s0", "enp?s0", true),
            ("enp6s0", "enp[5-7]s0", true),
            ("enp6s0", "enp[!5-7]s0", false),
            ("enp6s0", "eth*", false),
            ("enp6s0", "*", true),
            ("", "*", true),
            ("a[", "a[", true),
            ("enp6s0", "enp6s", false),
            ("é", "?", true),
        ] {
            assert_eq!(is_like(text, pattern), like, "{text} {pattern}");
        }
    }

    #[test]
    fn the_first_unit_that_fits_has_a_device() {
        let unit = |file: &str, text: &str| Unit::read(file, text);
        let units = [
            unit("20-b.network", "[Match]\nName=eth*\n"),
            unit("10-a.network", "[Match]\n# Name=eth0\nName=!eth0 eth1\n[Network]\nDHCP=ipv4\n"),
            unit("05-m.network", "[Match]\nMACAddress=52:54:00:AA:00:01\n"),
            unit("01-x.netdev", "[NetDev]\nName=br0\nKind=bridge\n"),
        ];
        let link =
            |name: &str, mac: Option<&str>| Link { name: name.into(), mac: mac.map(Into::into) };
        for (link, file) in [
            (link("eth0", None), Some("20-b.network")),
            (link("eth2", None), Some("10-a.network")),
            (link("eth0", Some("52:54:00:aa:00:01")), Some("05-m.network")),
        ] {
            assert_eq!(taker(&units, &link).map(|unit| unit.file.as_str()), file, "{link:?}");
        }
        assert!(units[1].says("DHCP", "ipv4") && !units[1].says("DHCP", "ipv6"));
        assert_eq!((units[3].makes(), units[0].makes()), (Some("br0"), None));
    }
}
