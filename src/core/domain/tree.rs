//! A document and the byte spans of its parts, read once with quick-xml. Knows XML, and of libvirt
//! only the name of the root. Unneeded XML features (DOCTYPE, custom entities) are refused, so that
//! no document can grow while it is read.

use super::DomainXmlError;
use quick_xml::escape::unescape;
use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};
use std::ops::Range;

/// The largest document that is read; libvirt itself stops at 10 MiB.
pub const MAX_BYTES: usize = 8 << 20;
/// The deepest nesting that is read; libvirt's own documents reach 10.
pub const MAX_DEPTH: usize = 64;
/// The longest attribute value, in bytes; the kernel passes no longer argument to QEMU.
pub const MAX_VALUE: usize = 128 << 10;
/// The longest domain name, in bytes; libvirt uses it as a file name, which has 255 at most.
pub const MAX_NAME: usize = 1024;

/// The place of a name and of the value between the quotes.
#[derive(Debug, Clone)]
pub(super) struct Attribute {
    /// The name, with its prefix.
    pub name: Range<usize>,
    /// The value, as it is written.
    pub value: Range<usize>,
}

/// A run of an element's own text.
#[derive(Debug, Clone)]
pub(super) struct Text {
    /// Its bytes; of a CDATA section those inside.
    pub span: Range<usize>,
    /// Whether it is a CDATA section, where `&` and `<` are literal.
    pub cdata: bool,
}

/// The place of an element's parts.
#[derive(Debug, Clone)]
pub(super) struct Node {
    /// Its parent; none for the root.
    pub parent: Option<usize>,
    /// The name in the start tag, with its prefix.
    pub name: Range<usize>,
    /// The start tag, `<` to `>`.
    pub open: Range<usize>,
    /// The end tag, `<` to `>`; empty and at the end of `open` for a self-closing element.
    pub close: Range<usize>,
    /// Its attributes, in order.
    pub attributes: Vec<Attribute>,
    /// Its own text, in order.
    pub texts: Vec<Text>,
    /// Its children, in order.
    pub children: Vec<usize>,
}

/// A well-formed document with the places of its elements; element 0 is the root.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    /// The document.
    pub text: String,
    /// Its elements, in the order of their start tags.
    pub nodes: Vec<Node>,
}

impl Tree {
    /// Reads a document with `<domain>` at its root.
    pub fn parse(text: String) -> Result<Tree, DomainXmlError> {
        if text.len() > MAX_BYTES {
            let message = format!("{} bytes are more than {MAX_BYTES}", text.len());
            return Err(DomainXmlError::Syntax { line: 1, message });
        }
        let indexed = Indexer { text: &text, nodes: Vec::new(), open: Vec::new() }.run();
        let bounded = indexed.and_then(|nodes| match too_long(&text, &nodes) {
            Some(failure) => Err(failure),
            None => Ok(nodes),
        });
        match bounded {
            Ok(nodes) => Ok(Tree { text, nodes }),
            Err((at, message)) => Err(DomainXmlError::Syntax { line: line_at(&text, at), message }),
        }
    }

    /// The bytes of a span.
    pub fn slice(&self, span: &Range<usize>) -> &str {
        &self.text[span.clone()]
    }
}

/// Returns the first name or value that is too long for a domain; they are compared and printed
/// many times.
fn too_long(text: &str, nodes: &[Node]) -> Option<Failure> {
    nodes.iter().find_map(|node| {
        let values = node.attributes.iter().map(|attribute| &attribute.value);
        if let Some(value) = values.clone().find(|value| value.len() > MAX_VALUE) {
            let what = format!("a value of {} bytes, more than {MAX_VALUE}", value.len());
            return Some((value.start, what));
        }
        let is_name = node.parent == Some(0) && &text[node.name.clone()] == "name";
        let length: usize = node.texts.iter().map(|text| text.span.len()).sum();
        let what = || format!("a domain's name of {length} bytes, more than {MAX_NAME}");
        (is_name && length > MAX_NAME).then(|| (node.open.start, what()))
    })
}

/// Returns the line, from 1, of a byte.
pub(super) fn line_at(text: &str, at: usize) -> usize {
    text.as_bytes().iter().take(at).filter(|&&byte| byte == b'\n').count() + 1
}

/// A byte offset and the fault there.
type Failure = (usize, String);

struct Indexer<'t> {
    text: &'t str,
    nodes: Vec<Node>,
    open: Vec<usize>,
}

impl Indexer<'_> {
    fn run(mut self) -> Result<Vec<Node>, Failure> {
        let is_control = |c: char| {
            (c < ' ' && !matches!(c, '\t' | '\n' | '\r')) || matches!(c, '\u{fffe}' | '\u{ffff}')
        };
        if let Some((at, c)) = self.text.char_indices().find(|&(_, c)| is_control(c)) {
            return Err((at, format!("character {c:?} is not allowed in XML")));
        }
        let mut reader = Reader::from_str(self.text);
        reader.config_mut().check_comments = true;
        loop {
            let event = reader.read_event();
            let event = event.map_err(|error| {
                let at = usize::try_from(reader.error_position()).unwrap_or(self.text.len());
                (at, error.to_string())
            })?;
            let at = self.span(&event);
            match event {
                Event::Start(tag) => self.start(&tag, false)?,
                Event::Empty(tag) => self.start(&tag, true)?,
                Event::End(_) => self.end(at),
                Event::Text(text) => self.characters(&text, at)?,
                Event::CData(_) => match self.open.last() {
                    Some(&node) => self.nodes[node].texts.push(Text { span: at, cdata: true }),
                    None => return Err((at.start, "text outside of the root".into())),
                },
                Event::GeneralRef(_) => self.reference(at)?,
                Event::DocType(_) => {
                    return Err((at.start, "a DOCTYPE is refused: domain XML needs none".into()));
                }
                Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
                Event::Eof => break,
            }
        }
        match (self.open.last(), self.nodes.is_empty()) {
            (Some(&node), _) => {
                let Node { name, open, .. } = &self.nodes[node];
                Err((open.start, format!("<{}> is never closed", &self.text[name.clone()])))
            }
            (None, true) => Err((self.text.len(), "there is no element".into())),
            (None, false) => Ok(self.nodes),
        }
    }

    /// Returns the span of a part of the document.
    fn span(&self, part: &str) -> Range<usize> {
        // Events borrow from the document, so the difference of addresses is the offset; that of
        // the end of the file does not.
        let start = (part.as_ptr() as usize).wrapping_sub(self.text.as_ptr() as usize);
        if start > self.text.len() {
            return self.text.len()..self.text.len();
        }
        start..start + part.len()
    }

    fn start(&mut self, tag: &BytesStart<'_>, empty: bool) -> Result<(), Failure> {
        let content = self.span(tag);
        let name = self.span(tag.name().0);
        let open = content.start - 1..content.end + if empty { 2 } else { 1 };
        check_name(&self.text[name.clone()]).map_err(|message| (open.start, message))?;
        if self.open.is_empty() {
            if !self.nodes.is_empty() {
                return Err((open.start, "a second root element".into()));
            }
            if &self.text[name.clone()] != "domain" {
                let found = &self.text[name];
                return Err((open.start, format!("the root is <{found}>, not <domain>")));
            }
        }
        if self.open.len() == MAX_DEPTH {
            return Err((open.start, format!("elements nest deeper than {MAX_DEPTH}")));
        }
        let attributes = self.attributes(tag, open.start)?;
        let (parent, node) = (self.open.last().copied(), self.nodes.len());
        let close = open.end..open.end;
        let (texts, children) = (Vec::new(), Vec::new());
        self.nodes.push(Node { parent, name, open, close, attributes, texts, children });
        if let Some(parent) = parent {
            self.nodes[parent].children.push(node);
        }
        self.check_prefixes(node)?;
        if !empty {
            self.open.push(node);
        }
        Ok(())
    }

    /// Reads the attributes of a start tag that begins at `at`.
    fn attributes(&self, tag: &BytesStart<'_>, at: usize) -> Result<Vec<Attribute>, Failure> {
        let mut attributes = Vec::new();
        let mut end = 0;
        for attribute in tag.attributes() {
            let attribute = attribute.map_err(|error| (at, error.to_string()))?;
            let (name, value) = (self.span(attribute.key.0), self.span(&attribute.value));
            let text = &self.text[name.clone()];
            check_name(text).map_err(|message| (name.start, message))?;
            if attribute.value.contains('<') {
                return Err((value.start, format!("attribute `{text}` holds a bare `<`")));
            }
            if name.start == end {
                return Err((name.start, format!("no space in front of attribute `{text}`")));
            }
            end = value.end + 1;
            attribute
                .normalized_value(XmlVersion::Implicit1_0)
                .map_err(|error| (value.start, format!("attribute `{text}`: {error}")))?;
            attributes.push(Attribute { name, value });
        }
        Ok(attributes)
    }

    /// Checks that the prefixes of an element and of its attributes are declared on it or an
    /// ancestor.
    fn check_prefixes(&self, node: usize) -> Result<(), Failure> {
        let this = &self.nodes[node];
        let names = std::iter::once(&this.name).chain(this.attributes.iter().map(|a| &a.name));
        for span in names {
            let name = &self.text[span.clone()];
            let Some((prefix, _)) = name.split_once(':') else { continue };
            if prefix != "xml"
                && prefix != "xmlns"
                && namespace(self.text, &self.nodes, node, prefix).is_none()
            {
                return Err((span.start, format!("prefix of `{name}` is not declared")));
            }
        }
        Ok(())
    }

    /// Handles an end tag whose name is at `name`; the reader has checked that it matches.
    fn end(&mut self, name: Range<usize>) {
        let close = self.text[name.end..].find('>').map_or(self.text.len(), |at| name.end + at + 1);
        if let Some(node) = self.open.pop() {
            self.nodes[node].close = name.start - 2..close;
        }
    }

    fn characters(&mut self, text: &str, at: Range<usize>) -> Result<(), Failure> {
        if let Some(bad) = text.find("]]>") {
            return Err((at.start + bad, "`]]>` in text".into()));
        }
        match self.open.last() {
            Some(&node) => self.nodes[node].texts.push(Text { span: at, cdata: false }),
            None if text.trim_start_matches('\u{feff}').trim().is_empty() => {}
            None => return Err((at.start, "text outside of the root".into())),
        }
        Ok(())
    }

    /// Handles a reference such as `&amp;`, whose name is at `name`.
    fn reference(&mut self, name: Range<usize>) -> Result<(), Failure> {
        let span = name.start - 1..name.end + 1;
        unescape(&self.text[span.clone()]).map_err(|error| (span.start, error.to_string()))?;
        match self.open.last() {
            Some(&node) => self.nodes[node].texts.push(Text { span, cdata: false }),
            None => return Err((span.start, "text outside of the root".into())),
        }
        Ok(())
    }
}

/// Checks a name: letters, digits, `_`, `-`, `.` and at most one `:` inside.
fn check_name(name: &str) -> Result<(), String> {
    let good = |part: &str| {
        let mut chars = part.chars();
        chars.next().is_some_and(|c| c.is_alphabetic() || c == '_')
            && chars.all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))
    };
    let (prefix, local) = name.split_once(':').unwrap_or(("x", name));
    if good(prefix) && good(local) { Ok(()) } else { Err(format!("`{name}` is not a valid name")) }
}

/// Returns the namespace of a prefix at an element; an empty prefix asks for the default one.
pub(super) fn namespace<'t>(
    text: &'t str,
    nodes: &[Node],
    node: usize,
    prefix: &str,
) -> Option<&'t str> {
    let declares = |name: &str| match name.strip_prefix("xmlns") {
        Some("") => prefix.is_empty(),
        Some(rest) => rest.strip_prefix(':') == Some(prefix),
        None => false,
    };
    let mut next = Some(node);
    while let Some(node) = next {
        let found = nodes[node].attributes.iter().find(|a| declares(&text[a.name.clone()]));
        if let Some(attribute) = found {
            return Some(&text[attribute.value.clone()]);
        }
        next = nodes[node].parent;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error of a document that must be refused.
    fn refused(text: &str) -> (usize, String) {
        match Tree::parse(text.to_owned()) {
            Err(DomainXmlError::Syntax { line, message }) => (line, message),
            other => panic!("{text:?} gave {other:?}"),
        }
    }

    #[test]
    fn refuses_malformed_xml() {
        for (line, text) in [
            (1, ""),
            (1, "domain"),
            (1, "<domain>"),
            (2, "<domain>\n<name></domain>"),
            (1, "<domain/><domain/>"),
            (1, "<domain/>x"),
            (1, "x<domain/>"),
            (1, "<domain/>&amp;"),
            (2, "<domain>\n<a b='1' b='2'/></domain>"),
            (2, "<domain>\n<a b=1/></domain>"),
            (2, "<domain>\n<a b/></domain>"),
            (2, "<domain>\n<a b='1'c='2'/></domain>"),
            (2, "<domain>\n<a b='<'/></domain>"),
            (2, "<domain>\n<a b='&x;'/></domain>"),
            (2, "<domain>\n<a b='&#0;'/></domain>"),
            (2, "<domain>\n<1a/></domain>"),
            (2, "<domain>\n<a 1='x'/></domain>"),
            (2, "<domain>\n<a><b></a></b></domain>"),
            (2, "<domain>\n&bomb;</domain>"),
            (2, "<domain>\na & b</domain>"),
            (2, "<domain>\n]]></domain>"),
            (2, "<domain>\n\u{0}</domain>"),
            (2, "<domain>\n<!-- a -- b --></domain>"),
            (2, "<domain>\n<qemu:arg/></domain>"),
            (2, "<domain>\n<a q:b='1'/></domain>"),
            (2, "<domain>\n<a:b:c xmlns:a='x'/></domain>"),
            (3, "<domain>\n<a\n></domain>"),
        ] {
            let (found, message) = refused(text);
            assert_eq!(found, line, "{text:?}: {message}");
            assert!(!message.is_empty(), "{text:?}");
        }
    }

    #[test]
    fn refuses_bombs_and_other_roots() {
        let bomb =
            "<?xml version='1.0'?>\n<!DOCTYPE domain [<!ENTITY a 'aa'>]>\n<domain>&a;</domain>";
        assert!(refused(bomb).1.contains("DOCTYPE"));
        assert!(refused("<network/>").1.contains("<network>"));
        assert!(refused("<q:domain xmlns:q='x'/>").1.contains("<q:domain>"));
        let deep = format!("<domain>{}{}</domain>", "<a>".repeat(64), "</a>".repeat(64));
        assert!(refused(&deep).1.contains("deeper"));
        let large = format!("<domain>{}</domain>", " ".repeat(MAX_BYTES));
        assert!(refused(&large).1.contains("bytes"));
        let wide = format!("<domain>{}</domain>", "<a/>".repeat(100_000));
        assert_eq!(Tree::parse(wide).unwrap().nodes.len(), 100_001);
    }
}
