//! The newest file of a web server's directory, by its name.

use std::cmp::Ordering;

/// The longest listing that is looked through, in entries.
const MOST: usize = 20_000;

/// Returns the newest entry of a directory listing (HTML with links) that a pattern fits, by the
/// numbers in its name. `*` in a pattern stands for any text, and a pattern of `*` alone for a
/// version such as `44` or `10.1`.
pub fn newest(listing: &str, pattern: &str) -> Option<String> {
    let links = listing.split("href=").skip(1).take(MOST).filter_map(|rest| {
        let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let link = rest[1..].split(quote).next()?;
        let link = link.strip_prefix("./").unwrap_or(link);
        Some(link.strip_suffix('/').unwrap_or(link))
    });
    let is_name = |name: &&str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.+~".contains(c);
        !name.is_empty() && !name.starts_with('.') && name.chars().all(is_plain)
    };
    let fitting = links.filter(is_name).filter(|name| fits(name, pattern));
    fitting.max_by(|a, b| by_numbers(a, b)).map(str::to_owned)
}

/// Whether a pattern fits a name; see [`newest`].
pub fn fits(name: &str, pattern: &str) -> bool {
    if pattern == "*" {
        return name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_digit() || c == '.');
    }
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Compares names by the numbers in them: `9.2` is before `10.1`.
fn by_numbers(mut a: &str, mut b: &str) -> Ordering {
    loop {
        let (first, second) = (chunk(&mut a), chunk(&mut b));
        let (Some(first), Some(second)) = (first, second) else {
            return first.is_some().cmp(&second.is_some());
        };
        let number = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
        let order = if number(first) && number(second) {
            let (first, second) = (first.trim_start_matches('0'), second.trim_start_matches('0'));
            first.len().cmp(&second.len()).then(first.cmp(second))
        } else {
            first.cmp(second)
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// Takes the leading digits, or the leading other characters, of a text.
fn chunk<'t>(text: &mut &'t str) -> Option<&'t str> {
    let is_digit = text.chars().next()?.is_ascii_digit();
    let end = text.find(|c: char| c.is_ascii_digit() != is_digit).unwrap_or(text.len());
    let (first, rest) = text.split_at(end);
    *text = rest;
    Some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_that_fits_is_found() {
        let releases = "<a href=\"../\">up</a> <a href=\"9/\">9</a> <a href='44/'>44</a>\n\
                        <a href=\"./43/\">43</a><a href=\"test/\">t</a> <a href=\"/44/x\">x</a>";
        assert_eq!(newest(releases, "*").as_deref(), Some("44"));
        let files = "<a href=\"F-Generic-44-1.7.x.qcow2\">a</a><a href=\"F-Generic-44-1.10.x.qcow2\">\
                     <a href=\"F-44-1.10-x-CHECKSUM\"> <a href=\"F-Generic-44-1.9.y.qcow2\">";
        let generic = newest(files, "F-Generic-*.x.qcow2");
        assert_eq!(generic.as_deref(), Some("F-Generic-44-1.10.x.qcow2"));
        assert_eq!(newest(files, "F-*-CHECKSUM").as_deref(), Some("F-44-1.10-x-CHECKSUM"));
        assert_eq!(newest(files, "F-Generic-44-1.7.x.qcow2").as_deref(), files.get(9..33));
        assert_eq!(newest(files, "G-*"), None);
        // Nothing that would lead elsewhere.
        for bad in ["../a", "a%2fb", "https://h/a", "a?x", ".a", ""] {
            assert_eq!(newest(&format!("<a href=\"{bad}\">"), "*a*"), None, "{bad}");
        }
        assert_eq!(newest("<a href=>", "*"), None);
    }
}
