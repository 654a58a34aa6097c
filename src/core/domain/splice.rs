//! Changes a document by replacing as few bytes as needed. Everything else, white space and
//! comments included, is copied; nothing is reformatted. Knows libvirt's order of elements, not
//! their meaning.

use super::element::Element;
use super::fragment::{Fragment, Pick, Want, escaped};
use super::order::rank;
use super::tree::{Node, Tree};
use quick_xml::escape::partial_escape;
use std::collections::BTreeSet;
use std::ops::Range;

/// New text for a span of a document.
#[derive(Debug)]
struct Splice {
    /// The replaced bytes; empty: an insertion.
    span: Range<usize>,
    text: String,
}

/// A set of changes to a document.
pub(super) struct Splicer<'t> {
    tree: &'t Tree,
    /// The changes; none overlaps another.
    splices: Vec<Splice>,
}

impl<'t> Splicer<'t> {
    /// Collects the changes that make the root as wanted.
    pub fn new(tree: &'t Tree, wanted: &Fragment) -> Splicer<'t> {
        let mut splicer = Splicer { tree, splices: Vec::new() };
        splicer.merge(tree.root(), wanted);
        splicer
    }

    /// Whether nothing has to change.
    pub fn is_empty(&self) -> bool {
        self.splices.is_empty()
    }

    /// The changed document.
    pub fn finish(mut self) -> String {
        self.splices.sort_by_key(|splice| (splice.span.start, splice.span.end));
        let text = &self.tree.text;
        let added: usize = self.splices.iter().map(|splice| splice.text.len()).sum();
        let (mut out, mut at) = (String::with_capacity(text.len() + added), 0);
        for Splice { span, text: new } in &self.splices {
            debug_assert!(at <= span.start, "changes overlap at byte {at}: {new:?}");
            out.push_str(text.get(at..span.start).unwrap_or_default());
            out.push_str(new);
            at = span.end;
        }
        out.push_str(&text[at..]);
        out
    }

    fn splice(&mut self, span: Range<usize>, text: impl Into<String>) {
        self.splices.push(Splice { span, text: text.into() });
    }

    fn merge(&mut self, element: Element<'t>, wanted: &Fragment) {
        let (mut taken, mut made) = (BTreeSet::new(), Vec::new());
        let mut pairs = Vec::new();
        for child in &wanted.children {
            match pick(element, child, &taken) {
                Some(found) => {
                    taken.insert(found.node);
                    pairs.push((found, child));
                }
                None if child.is_made() => made.push(child),
                None => {}
            }
        }
        let ours = |child: &Element<'_>| {
            wanted.only.iter().any(|(name, ours)| child.name() == *name && ours(*child))
        };
        let removed = |child: &Element<'_>| {
            let pair = pairs.iter().find(|(found, _)| found.node == child.node);
            pair.map_or_else(|| ours(child), |(found, wish)| wish.gone || is_dropped(*found, wish))
        };
        let (gone, kept): (Vec<_>, Vec<_>) = element.elements().partition(removed);
        self.attributes(element, wanted);
        if let Some(text) = wanted.text.as_ref().filter(|text| element.text() != text.trim()) {
            self.set_text(element.place(), text);
        }
        for child in gone {
            self.remove(child.place());
        }
        for (child, wish) in pairs {
            if kept.iter().any(|kept| kept.node == child.node) {
                self.merge(child, wish);
            }
        }
        self.insert(element, made);
    }

    /// Makes an element's attributes as wanted.
    fn attributes(&mut self, element: Element<'t>, wanted: &Fragment) {
        let place = element.place();
        let end = place.attributes.last().map_or(place.name.end, |last| last.value.end + 1);
        for (name, want) in &wanted.attributes {
            let found = element.attrs().position(|(found, _)| found == *name);
            let value = found.and_then(|at| element.attrs().nth(at)).map(|(_, value)| value);
            let spans = found.map(|at| &place.attributes[at]);
            match (want, spans) {
                (Want::Set(want), None) => {
                    self.splice(end..end, format!(" {name}='{}'", escaped(want)));
                }
                (Want::Set(want) | Want::Default(want), Some(at))
                    if value.as_deref() != Some(want) =>
                {
                    self.splice(at.value.clone(), escaped(want));
                }
                (Want::Absent, Some(at)) => {
                    let before = self.tree.text[..at.name.start].trim_end().len();
                    self.splice(before..at.value.end + 1, "");
                }
                _ => {}
            }
        }
    }

    /// Replaces all that is in an element by a text: no libvirt element has both text and children.
    fn set_text(&mut self, place: &Node, text: &str) {
        let name = self.tree.slice(&place.name);
        if place.close.is_empty() {
            let end = place.attributes.last().map_or(place.name.end, |last| last.value.end + 1);
            return self.splice(end..place.open.end, format!(">{}</{name}>", partial_escape(text)));
        }
        self.splice(place.open.end..place.close.start, partial_escape(text));
    }

    /// Removes an element and the line left empty by it.
    fn remove(&mut self, place: &Node) {
        let start = match self.line_start(place) {
            Some(start) => start,
            None => place.open.start,
        };
        self.splice(start..place.close.end, "");
    }

    /// Returns where the line break and indentation before an element begin; none if other text
    /// precedes it.
    fn line_start(&self, place: &Node) -> Option<usize> {
        let before = &self.tree.text[..place.open.start];
        let line = before.trim_end_matches([' ', '\t']);
        let line = line.strip_suffix('\n')?;
        Some(line.strip_suffix('\r').unwrap_or(line).len())
    }

    /// Inserts new elements into an element, each behind the neighbour that libvirt would write
    /// before it.
    fn insert(&mut self, element: Element<'t>, mut made: Vec<&Fragment>) {
        if made.is_empty() {
            return;
        }
        let place = element.place();
        let parent = element.name();
        made.sort_by_key(|fragment| rank(parent, fragment.name));
        let line = self.line_of_children(element);
        let written = |fragments: &[&Fragment]| {
            let mut text = String::new();
            for fragment in fragments {
                text.push_str(line.as_deref().unwrap_or_default());
                fragment.write(&mut text, line.as_deref());
            }
            text
        };
        if place.children.is_empty() {
            let body = written(&made);
            let line = line.as_deref().map_or("", |line| line.strip_suffix("  ").unwrap_or(line));
            let name = self.tree.slice(&place.name);
            if place.close.is_empty() {
                let end = place.attributes.last().map_or(place.name.end, |last| last.value.end + 1);
                self.splice(end..place.open.end, format!(">{body}{line}</{name}>"));
            } else {
                let inside = &self.tree.text[place.open.end..place.close.start];
                let end = place.open.end + inside.trim_end().len();
                self.splice(end..place.close.start, format!("{body}{line}"));
            }
            return;
        }
        for fragment in made {
            let mine = rank(parent, fragment.name);
            let before = element.elements().filter(|other| rank(parent, other.name()) <= mine);
            let at = match before.last() {
                Some(neighbour) => self.after(neighbour.place().close.end),
                None => place.open.end,
            };
            self.splice(at..at, written(&[fragment]));
        }
    }

    /// Returns where to insert after an element that ends at `end`: after a comment that follows on
    /// the same line.
    fn after(&self, end: usize) -> usize {
        let rest = &self.tree.text[end..];
        let space = rest.len() - rest.trim_start_matches([' ', '\t']).len();
        let comment = rest[space..].strip_prefix("<!--").and_then(|rest| rest.find("-->"));
        let Some(length) = comment else { return end };
        let close = end + space + "<!--".len() + length + "-->".len();
        if self.tree.text[end..close].contains('\n') { end } else { close }
    }

    /// Returns the line break and indentation before the children of an element; none if they are
    /// on one line.
    fn line_of_children(&self, element: Element<'t>) -> Option<String> {
        let place = element.place();
        let line = |node: &Node| {
            let start = self.line_start(node)?;
            Some(&self.tree.text[start..node.open.start])
        };
        match place.children.last() {
            Some(&child) => line(&self.tree.nodes[child]).map(str::to_owned),
            None => match (line(place), place.parent) {
                (Some(line), _) => Some(format!("{line}  ")),
                (None, None) => Some("\n  ".to_owned()),
                (None, Some(_)) => None,
            },
        }
    }
}

/// Returns the child of `parent` that a fragment selects.
fn pick<'t>(
    parent: Element<'t>,
    wanted: &Fragment,
    taken: &BTreeSet<usize>,
) -> Option<Element<'t>> {
    let mut named = parent.children(wanted.name);
    match &wanted.pick {
        Pick::First => named.find(|child| !taken.contains(&child.node)),
        Pick::Nth(nth) => named.nth(*nth),
        Pick::Key(of, key) => named.find(|child| of(*child).as_ref() == Some(key)),
    }
}

/// Whether an element is to be removed because it would be empty.
fn is_dropped(element: Element<'_>, wanted: &Fragment) -> bool {
    let ours = |child: Element<'_>| {
        let goes = |wish: &Fragment| {
            let picked = || pick(element, wish, &BTreeSet::new());
            wish.gone || (is_dropped(child, wish) && picked().is_some_and(|p| p.node == child.node))
        };
        let gone = wanted.children.iter().any(|wish| wish.name == child.name() && goes(wish));
        gone || wanted.only.iter().any(|(name, ours)| child.name() == *name && ours(child))
    };
    let unwanted = |name: &str| wanted.attributes.contains(&(name, Want::Absent));
    wanted.drop_empty
        && !wanted.is_made()
        && element.elements().all(ours)
        && element.attrs().all(|(name, _)| unwanted(name))
}
