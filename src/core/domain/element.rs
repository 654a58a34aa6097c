//! A readable element of a document. Knows nothing of libvirt.

use super::tree::{Node, Text, Tree, line_at, namespace};
use quick_xml::escape::unescape;
use std::borrow::Cow;

/// A readable element of a document.
#[derive(Clone, Copy)]
pub struct Element<'t> {
    pub(super) tree: &'t Tree,
    pub(super) node: usize,
}

/// Parses a number as in libvirt's addresses: hexadecimal with prefix (`0x1f`) or decimal.
pub(super) fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl Tree {
    /// Returns the root.
    pub fn root(&self) -> Element<'_> {
        Element { tree: self, node: 0 }
    }
}

impl<'t> Element<'t> {
    pub(super) fn place(self) -> &'t Node {
        &self.tree.nodes[self.node]
    }

    /// Its name as it is written, with its prefix: `disk`, `qemu:arg`.
    pub fn name(self) -> &'t str {
        self.tree.slice(&self.place().name)
    }

    /// Its namespace; none where it has none.
    pub fn namespace(self) -> Option<&'t str> {
        let prefix = self.name().split_once(':').map_or("", |(prefix, _)| prefix);
        namespace(&self.tree.text, &self.tree.nodes, self.node, prefix)
    }

    /// The value of an attribute.
    pub fn attr(self, name: &str) -> Option<Cow<'t, str>> {
        self.attrs().find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    /// Its attributes, in order.
    pub fn attrs(self) -> impl Iterator<Item = (&'t str, Cow<'t, str>)> {
        self.place().attributes.iter().map(move |attribute| {
            let raw = self.tree.slice(&attribute.value);
            let value = unescape(raw).unwrap_or(Cow::Borrowed(raw)); // checked at parsing
            (self.tree.slice(&attribute.name), value)
        })
    }

    /// Its own text without the white space around it, without that of its children.
    pub fn text(self) -> Cow<'t, str> {
        let texts = &self.place().texts;
        let piece = |text: &Text| {
            let raw = self.tree.slice(&text.span);
            if text.cdata {
                Cow::Borrowed(raw)
            } else {
                unescape(raw).unwrap_or(Cow::Borrowed(raw))
            }
        };
        match texts.as_slice() {
            [] => Cow::Borrowed(""),
            [one] => match piece(one) {
                Cow::Borrowed(text) => Cow::Borrowed(text.trim()),
                Cow::Owned(text) => Cow::Owned(text.trim().to_owned()),
            },
            many => Cow::Owned(many.iter().map(piece).collect::<String>().trim().to_owned()),
        }
    }

    /// Its child elements with this name, in order.
    pub fn children(self, name: &str) -> impl Iterator<Item = Element<'t>> {
        self.elements().filter(move |child| child.name() == name)
    }

    /// Its child elements, in order.
    pub fn elements(self) -> impl Iterator<Item = Element<'t>> {
        self.place().children.iter().map(move |&node| Element { tree: self.tree, node })
    }

    /// Its first child element with this name.
    pub fn child(self, name: &str) -> Option<Element<'t>> {
        self.children(name).next()
    }

    /// The first element at a path of names below it: `cpu/numa`.
    pub fn find(self, path: &str) -> Option<Element<'t>> {
        path.split('/').try_fold(self, Element::child)
    }

    /// Its parent; none for the root.
    pub fn parent(self) -> Option<Element<'t>> {
        self.place().parent.map(|node| Element { tree: self.tree, node })
    }

    /// Its path, with an index from 1 among siblings of the same name:
    /// `domain/devices/hostdev[2]/source`.
    pub fn path(self) -> String {
        let Some(parent) = self.parent() else { return self.name().to_owned() };
        let mut same = parent.children(self.name());
        let before = same.by_ref().take_while(|other| other.node != self.node).count();
        let alone = before == 0 && same.next().is_none();
        let number = if alone { String::new() } else { format!("[{}]", before + 1) };
        format!("{}/{}{number}", parent.path(), self.name())
    }

    /// The line of its start tag, from 1.
    pub fn line(self) -> usize {
        line_at(&self.tree.text, self.place().open.start)
    }

    /// Its bytes, start tag to end tag.
    pub fn xml(self) -> &'t str {
        &self.tree.text[self.place().open.start..self.place().close.end]
    }
}

impl std::fmt::Debug for Element<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.xml())
    }
}

#[cfg(test)]
mod tests {
    use super::super::DomainXml;

    #[test]
    fn reads_written_values() {
        let text =
            "\u{feff}<?xml version='1.0'?>\n<!-- a <b> -->\n<domain type=\"kvm\" xmlns:q='urn:q'>
  <name> a&amp;b<![CDATA[<c>]]> </name>
  <devices><disk  x = 'a&quot;b' /><q:arg value=\"it's\"/><disk></disk ></devices>
</domain>\n";
        let xml = DomainXml::parse(text).unwrap();
        assert_eq!((xml.text(), xml.name().as_str(), xml.uuid()), (text, "a&b<c>", None));
        let devices = xml.root().child("devices").unwrap();
        let disks: Vec<_> = devices.children("disk").collect();
        assert_eq!(disks[0].attr("x").unwrap(), "a\"b");
        assert_eq!(disks[0].attr("y"), None);
        assert_eq!(disks[0].xml(), "<disk  x = 'a&quot;b' />");
        assert_eq!(disks[1].xml(), "<disk></disk >");
        let paths: Vec<_> = devices.elements().map(|e| (e.path(), e.line())).collect();
        let path = |end: &str| (format!("domain/devices/{end}"), 5);
        assert_eq!(paths, [path("disk[1]"), path("q:arg"), path("disk[2]")]);
        let arg = devices.child("q:arg").unwrap();
        assert_eq!((arg.namespace(), devices.namespace()), (Some("urn:q"), None));
        assert_eq!(xml.root().find("devices/q:arg").unwrap().attr("value").unwrap(), "it's");
        assert_eq!(disks[0].parent().unwrap().text(), "");
    }
}
