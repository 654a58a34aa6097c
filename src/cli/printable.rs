//! Sanitizing of foreign text before it is printed: names, titles, metadata, records, output of
//! agents and programs. Control characters are shown escaped, and so are bidirectional overrides;
//! passwords are removed. `output` applies it to everything printed.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The reader of a text, which decides how control characters are escaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A person: `\u{202e}`.
    Text,
    /// A reader of JSON: `\u202e` within a string.
    Json,
    /// A reader of XML: `&#x202e;`.
    Xml,
}

const HIDDEN: &str = "***";
/// Words that mark an element's text or value as secret, in lower case.
const SECRET_WORDS: [&str; 8] =
    ["passw", "secret", "credential", "token", "apikey", "api_key", "authkey", "private"];

/// Drivers that libvirt's URIs begin with.
const LIBVIRT_DRIVERS: [&str; 7] = ["bhyve", "ch", "lxc", "qemu", "test", "vz", "xen"];

/// Whether a terminal interprets a character: C0 and C1 controls except newline and tab,
/// bidirectional marks and overrides, line and paragraph separators, tags, and our own colour
/// marks.
fn is_obeyed(c: char) -> bool {
    (c.is_control() && !matches!(c, '\n' | '\t'))
        || matches!(
            c,
            '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{fdd0}'..='\u{fdef}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// Returns a text with everything escaped that a terminal would interpret. Documents keep their
/// meaning.
pub fn escaped(text: &str, form: Form) -> Cow<'_, str> {
    if !text.chars().any(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match form {
            _ if !is_obeyed(c) => shown.push(c),
            Form::Text if (c as u32) < 0x80 => write!(shown, "\\x{:02x}", c as u32).expect("text"),
            Form::Text => write!(shown, "\\u{{{:x}}}", c as u32).expect("text"),
            Form::Json => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(shown, "\\u{unit:04x}").expect("text");
                }
            }
            // Lines of a document may end in CR; as a character reference it would mean something
            // else.
            Form::Xml if c == '\r' => {}
            Form::Xml => write!(shown, "&#x{:x};", c as u32).expect("text"),
        }
    }
    Cow::Owned(shown)
}

/// Removes passwords of definitions from a text, as libvirt does for unprivileged readers, and
/// apparent passwords in arguments, firmware configuration and OEM strings. The text may be XML, a
/// diff of it, or JSON containing it.
pub fn redacted(text: &str) -> Cow<'_, str> {
    let text = without_values(text, "passwd");
    let text = within(text, "<cookie", "</cookie>", |_| true);
    let text = within(text, "<entry", "</entry>", is_secret);
    arguments(kernel_arguments(text))
}

/// Removes secrets from the URLs in a text: the password after a user name, and the values of query
/// parameters, which in downloads carry signatures and tokens under many names.
pub fn redacted_urls(text: &str) -> Cow<'_, str> {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, url) = rest.split_at(at + "://".len());
        shown.push_str(before);
        let ends = |c: char| c.is_whitespace() || matches!(c, '`' | '\'' | '"' | '<' | '>');
        let (url, after) = url.split_at(url.find(ends).unwrap_or(url.len()));
        let (place, more) = url.split_at(url.find('?').unwrap_or(url.len()));
        let host = place.find('/').unwrap_or(place.len());
        match place[..host].rsplit_once('@') {
            Some((user, _)) if user.contains(':') => {
                let name = user.split(':').next().unwrap_or_default();
                shown.extend([name, ":", HIDDEN, &place[user.len()..]]);
            }
            _ => shown.push_str(place),
        }
        let is_of_libvirt = is_of_libvirt(before);
        let parts = more.split_inclusive(['?', '&']).map(|part| match part.split_once('=') {
            None => part.to_owned(),
            Some((name, _)) if is_of_libvirt && !is_secret(name) => part.to_owned(),
            Some((name, value)) => {
                let end = if value.ends_with('&') { "&" } else { "" };
                format!("{name}={HIDDEN}{end}")
            }
        });
        shown.extend(parts);
        rest = after;
    }
    if shown.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(shown + rest) }
}

/// Whether a text ends in the scheme of one of libvirt's connections, whose parameters are paths
/// and settings (libvirt.org/uri.html).
fn is_of_libvirt(text: &str) -> bool {
    let text = text.strip_suffix("://").unwrap_or(text);
    let scheme = text.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '+').next();
    let driver = scheme.and_then(|scheme| scheme.split('+').next());
    driver.is_some_and(|driver| LIBVIRT_DRIVERS.contains(&driver))
}

/// Whether a text contains a word for a secret.
fn is_secret(text: &str) -> bool {
    let small = text.to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| small.contains(word))
}

/// Hides the values of an attribute of this name, whose quotes may be escaped as in JSON.
fn without_values<'t>(text: &'t str, name: &str) -> Cow<'t, str> {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(name) {
        let (before, after) = rest.split_at(at + name.len());
        shown.push_str(before);
        rest = after;
        if let Some((open, end)) = value(after) {
            shown.push_str(&after[..open]);
            shown.push_str(HIDDEN);
            rest = &after[end..];
        }
    }
    if shown.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(shown + rest) }
}

/// Returns where the value of `='...'` begins and ends; `None` if no such value. An unterminated
/// value reaches to the end of the text.
fn value(text: &str) -> Option<(usize, usize)> {
    let blank = |text: &str| text.len() - text.trim_start().len();
    let equals = blank(text);
    let after = text[equals..].strip_prefix('=')?;
    let quote = equals + 1 + blank(after);
    let slashes = text[quote..].bytes().take_while(|byte| *byte == b'\\').count();
    let open = quote + slashes + 1;
    if !matches!(text.as_bytes().get(open - 1), Some(b'\'' | b'"')) {
        return None;
    }
    let end = text[open..].find(&text[quote..open]).map_or(text.len(), |length| open + length);
    Some((open, end))
}

/// Hides the texts of elements with this start and end if `hides` returns true for the element.
fn within<'t>(
    text: Cow<'t, str>,
    begin: &str,
    end: &str,
    hides: impl Fn(&str) -> bool,
) -> Cow<'t, str> {
    let mut shown = String::new();
    let mut rest = &*text;
    while let Some(at) = rest.find(begin) {
        let (before, element) = rest.split_at(at);
        shown.push_str(before);
        let length = element.find(end).unwrap_or(element.len());
        let (whole, after) = element.split_at(length);
        match whole.find('>').filter(|_| hides(whole)) {
            Some(close) => shown.extend([&whole[..=close], HIDDEN]),
            None => shown.push_str(whole),
        }
        rest = after;
    }
    if shown.is_empty() { text } else { Cow::Owned(shown + rest) }
}

/// Hides the values of kernel arguments named like secrets.
fn kernel_arguments(text: Cow<'_, str>) -> Cow<'_, str> {
    let mut shown = String::new();
    let mut rest = &*text;
    while let Some(at) = rest.find("<cmdline>") {
        let (before, element) = rest.split_at(at);
        shown.push_str(before);
        let (whole, after) = element.split_at(element.find("</cmdline>").unwrap_or(element.len()));
        for argument in whole.split_inclusive(' ') {
            match argument.split_once('=').filter(|_| is_secret(argument)) {
                None => shown.push_str(argument),
                Some((name, value)) => {
                    let end = if value.ends_with(' ') { " " } else { "" };
                    shown.extend([name, "=", HIDDEN, end]);
                }
            }
        }
        rest = after;
    }
    if shown.is_empty() { text } else { Cow::Owned(shown + rest) }
}

/// Hides arguments and variables passed verbatim to QEMU that are named like secrets.
fn arguments(text: Cow<'_, str>) -> Cow<'_, str> {
    let mut shown = String::new();
    let mut rest = &*text;
    while let Some(at) = ["<qemu:arg", "<qemu:env"].iter().filter_map(|tag| rest.find(tag)).min() {
        let (before, element) = rest.split_at(at);
        shown.push_str(before);
        let (whole, after) = element.split_at(element.find("/>").unwrap_or(element.len()));
        if is_secret(whole) {
            shown.push_str(&without_values(whole, "value"));
        } else {
            shown.push_str(whole);
        }
        rest = after;
    }
    if shown.is_empty() { text } else { Cow::Owned(shown + rest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_that_a_terminal_obeys() {
        let bad = "a\u{1b}]0;x\u{7}\u{9b}2J\r\u{202e}b\u{2066}\u{e0041}\u{7f}\u{feff}";
        let text = escaped(bad, Form::Text);
        assert_eq!(text, r"a\x1b]0;x\x07\u{9b}2J\x0d\u{202e}b\u{2066}\u{e0041}\x7f\u{feff}");
        let json = serde_json::to_string(&bad).unwrap();
        let shown = escaped(&json, Form::Json);
        assert!(shown.is_ascii(), "{shown}");
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), bad);
        assert_eq!(escaped("<a>\u{85}\u{202e}</a>\r\n", Form::Xml), "<a>&#x85;&#x202e;</a>\n");
        let plain = "name\tö 漢字 👩‍🚀\n";
        assert!(matches!(escaped(plain, Form::Text), Cow::Borrowed(text) if text == plain));
    }

    #[test]
    fn urls_are_shown_without_passwords_and_parameters() {
        for (url, shown) in [
            ("`get https://ann:hunter2@x.org/a?b` and", "`get https://ann:***@x.org/a?b` and"),
            ("https://x.org/a?sig=hunter2&X-Amz-T=2 c", "https://x.org/a?sig=***&X-Amz-T=*** c"),
            ("qemu+ssh://ann@host/system a=b", "qemu+ssh://ann@host/system a=b"),
            ("`qemu:///embed?root=/a` b", "`qemu:///embed?root=/a` b"),
            ("qemu+ssh://h/system?keyfile=/k&token=x", "qemu+ssh://h/system?keyfile=/k&token=***"),
            ("https://qemu/?root=x", "https://qemu/?root=***"),
            ("http://x/@a:b@c http://a:p@@x/?k='v'", "http://x/@a:b@c http://a:***@x/?k=***'v'"),
            ("a: b", "a: b"),
        ] {
            assert_eq!(redacted_urls(url), shown);
        }
    }

    #[test]
    fn passwords_are_hidden_wherever_a_definition_stands() {
        let xml = "<graphics type='vnc' passwd='hun&apos;ter2' passwdValidTo='2030'/>\n\
                   <graphics passwd = \"hunter2\"/>\n\
                   <cookies><cookie name='a'>hunter2</cookie><cookie \
                   name=\"b\">hunter2</cookie></cookies>\n\
                   <entry>io.systemd.credential:passwd=hunter2</entry><entry \
                   name='serial'>7</entry>\n\
                   <qemu:arg value='secret,id=s,data=hunter2'/><qemu:arg value='-vnc'/>\
                   <qemu:env name='TOKEN' value='hunter2'/>\n\
                   <cmdline>quiet rd.luks.token=hunter2 \
                   ip=dhcp</cmdline><cmdline>a_password=hunter2</cmdline>\n\
                   <entry name='opt/io/authkey'>hunter2</entry>\n";
        let shown = redacted(xml);
        assert!(!shown.contains("unter2") && !shown.contains("hun&"), "{shown}");
        for kept in
            ["passwdValidTo='2030'", "<entry name='serial'>7</entry>", "value='-vnc'", " ip=dhcp<"]
        {
            assert!(shown.contains(kept), "{kept}: {shown}");
        }
        // As JSON in a step, in its history, and in a step that writes that history.
        let mut json = xml.to_owned();
        for _ in 0..3 {
            json = serde_json::to_string(&[&json]).unwrap();
            let shown = redacted(&json);
            assert!(!shown.contains("unter2") && !shown.contains("hun&"), "{shown}");
            serde_json::from_str::<[String; 1]>(&shown).unwrap();
        }
        for plain in ["passwd", "passwd=", "passwd=x", "the passwd file", "<cookie", "<qemu:arg"] {
            assert_eq!(redacted(plain), plain);
        }
        assert_eq!(redacted("passwd='cut"), "passwd='***");
    }
}
