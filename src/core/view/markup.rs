//! Markup: the one place where text becomes XML or HTML. The output is well-formed as both, for any
//! text.

use std::fmt::{self, Write as _};

/// An attribute: its name and its value, which is escaped.
pub(super) type Attr<'a> = (&'a str, &'a dyn fmt::Display);

#[derive(Default)]
pub(super) struct Markup(String);

impl Markup {
    pub(super) fn open(&mut self, name: &str, attrs: &[Attr<'_>]) {
        self.begin(name, attrs);
        self.0.push('>');
    }

    pub(super) fn close(&mut self, name: &str) {
        self.0.extend(["</", name, ">"]);
    }

    /// Adds an element with text only.
    pub(super) fn element(&mut self, name: &str, attrs: &[Attr<'_>], text: impl fmt::Display) {
        self.open(name, attrs);
        self.text(text);
        self.close(name);
    }

    /// Adds an element of SVG without content.
    pub(super) fn empty(&mut self, name: &str, attrs: &[Attr<'_>]) {
        self.begin(name, attrs);
        self.0.push_str("/>");
    }

    pub(super) fn text(&mut self, text: impl fmt::Display) {
        write!(Escaping(&mut self.0), "{text}").expect("text");
    }

    pub(super) fn line(&mut self) {
        self.0.push('\n');
    }

    /// Adds markup of this program, as it is: styles, scripts, a finished picture.
    pub(super) fn verbatim(&mut self, markup: &str) {
        self.0.push_str(markup);
    }

    pub(super) fn finish(self) -> String {
        self.0
    }

    /// Writes a tag but for its end.
    fn begin(&mut self, name: &str, attrs: &[Attr<'_>]) {
        self.0.extend(["<", name]);
        for (key, value) in attrs {
            self.0.extend([" ", key, "=\""]);
            write!(Escaping(&mut self.0), "{value}").expect("text");
            self.0.push('"');
        }
    }
}

/// Escapes text written to it: the five characters that markup is made of. Characters that XML
/// forbids and HTML calls an error (controls, noncharacters) become U+FFFD.
struct Escaping<'a>(&'a mut String);

impl fmt::Write for Escaping<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                '\n' | '\t' => self.0.push(c),
                c if is_forbidden(c) => self.0.push('\u{fffd}'),
                c if is_invisible(c) => write!(self.0, "&#x{:x};", u32::from(c))?,
                c => self.0.push(c),
            }
        }
        Ok(())
    }
}

/// Whether a character is forbidden in a document.
fn is_forbidden(c: char) -> bool {
    let number = u32::from(c);
    c.is_control() || (0xfdd0..=0xfdef).contains(&number) || number & 0xfffe == 0xfffe
}

/// Whether a character changes its neighbours and is invisible: marks and overrides of direction,
/// joiners, separators, tags. Written as a number, an editor shows it.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

/// Returns JSON that is allowed in a script element: no tag and no comment begins in it.
pub(super) fn island(json: &str) -> String {
    let mut text = String::with_capacity(json.len() + 64);
    for c in json.chars() {
        match c {
            '<' => text.push_str("\\u003c"),
            // Only strings have such characters, since JSON escapes controls.
            c if is_invisible(c) || is_forbidden(c) && !matches!(c, '\n' | '\t') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(text, "\\u{unit:04x}").expect("text");
                }
            }
            c => text.push(c),
        }
    }
    text
}

/// Cuts a text to a number of characters, with an ellipsis if something is lost.
pub(super) fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        let mut markup = Markup::default();
        let attrs: [Attr<'_>; 1] = [("title", &"\"'<&>\n")];
        markup.element("b", &attrs, "</b><script>\u{0}\u{202e}\u{ffff}");
        assert_eq!(
            markup.finish(),
            "<b title=\"&quot;&#39;&lt;&amp;&gt;\n\">&lt;/b&gt;&lt;script&gt;\u{fffd}&#x202e;\u{fffd}</b>"
        );
    }

    #[test]
    fn json_keeps_its_meaning_in_a_script() {
        let json = "{\"a\":\"</script><!--\u{ffff}\u{85}\u{202e}\"}";
        let text = island(json);
        assert_eq!(text, "{\"a\":\"\\u003c/script>\\u003c!--\\uffff\\u0085\\u202e\"}");
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["a"], "</script><!--\u{ffff}\u{85}\u{202e}");
    }

    #[test]
    fn a_cut_says_that_it_is_one() {
        assert_eq!(cut("abcd", 4), "abcd");
        assert_eq!(cut("abcde", 4), "abc…");
        assert_eq!(cut("ééééé", 2), "é…");
    }
}
