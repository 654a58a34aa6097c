//! The wanted state of an element: those attributes, texts and children that matter to us.
//! [`super::splice`] applies it to a document; parts that a fragment does not name stay. Knows XML
//! and libvirt's formatting, not its meaning.

use super::element::Element;
use quick_xml::escape::{escape, partial_escape};
use std::borrow::Cow;
use std::fmt::Write as _;

/// Reads the key that distinguishes an element from its siblings of the same name.
pub(super) type KeyOf = fn(Element<'_>) -> Option<String>;

/// Tells whether an element is ours to remove.
pub(super) type IsOurs = fn(Element<'_>) -> bool;

/// Selects the element of a name that a fragment is about.
#[derive(Debug, Clone)]
pub(super) enum Pick {
    /// The first that no other fragment has taken.
    First,
    /// The one at this place among those of its name, from 0.
    Nth(usize),
    /// The one with this key.
    Key(KeyOf, String),
}

/// The wanted state of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Want {
    /// Present, with this value.
    Set(String),
    /// Absent, or with this value, which is the default.
    Default(String),
    /// Absent.
    Absent,
}

/// The wanted state of an element.
#[derive(Debug, Clone)]
pub(super) struct Fragment {
    /// Its name.
    pub name: &'static str,
    /// Selects one of that name.
    pub pick: Pick,
    /// Its attributes.
    pub attributes: Vec<(&'static str, Want)>,
    /// Its own text.
    pub text: Option<String>,
    /// Its child elements.
    pub children: Vec<Fragment>,
    /// Names of child elements that are ours: those that no child fragment names are removed if the
    /// test holds.
    pub only: Vec<(&'static str, IsOurs)>,
    /// Whether it is to be removed.
    pub gone: bool,
    /// Whether it is only changed, never created.
    pub if_there: bool,
    /// Whether it is removed, or not created, if it would have no children.
    pub drop_empty: bool,
}

impl Fragment {
    /// Makes a fragment that only wants the element to exist.
    pub fn new(name: &'static str) -> Fragment {
        Fragment {
            name,
            pick: Pick::First,
            attributes: Vec::new(),
            text: None,
            children: Vec::new(),
            only: Vec::new(),
            gone: false,
            if_there: false,
            drop_empty: false,
        }
    }

    /// Makes a fragment that wants the element removed.
    pub fn gone(name: &'static str) -> Fragment {
        Fragment { gone: true, ..Fragment::new(name) }
    }

    /// Wants an attribute.
    pub fn attr(mut self, name: &'static str, value: impl ToString) -> Fragment {
        self.attributes.push((name, Want::Set(value.to_string())));
        self
    }

    /// Wants an attribute to be as `want` says.
    pub fn want(mut self, name: &'static str, want: Want) -> Fragment {
        self.attributes.push((name, want));
        self
    }

    /// Wants a text.
    pub fn text(mut self, text: impl ToString) -> Fragment {
        self.text = Some(text.to_string());
        self
    }

    /// Wants a child element.
    pub fn child(mut self, child: Fragment) -> Fragment {
        self.children.push(child);
        self
    }

    /// Wants child elements.
    pub fn children(mut self, children: impl IntoIterator<Item = Fragment>) -> Fragment {
        self.children.extend(children);
        self
    }

    /// Selects the element with this key.
    pub fn key(mut self, of: KeyOf, key: impl ToString) -> Fragment {
        self.pick = Pick::Key(of, key.to_string());
        self
    }

    /// Selects the element at this index among those of its name.
    pub fn nth(mut self, nth: usize) -> Fragment {
        self.pick = Pick::Nth(nth);
        self
    }

    /// Wants no other children of this name.
    pub fn only(self, name: &'static str) -> Fragment {
        self.only_where(name, |_| true)
    }

    /// Wants no other children of this name for which the test holds.
    pub fn only_where(mut self, name: &'static str, ours: IsOurs) -> Fragment {
        self.only.push((name, ours));
        self
    }

    /// Wants nothing if the element does not exist.
    pub fn if_there(mut self) -> Fragment {
        self.if_there = true;
        self
    }

    /// Wants the element removed when empty.
    pub fn drop_empty(mut self) -> Fragment {
        self.drop_empty = true;
        self
    }

    /// Whether the element is created if absent.
    pub fn is_made(&self) -> bool {
        !self.gone
            && !self.if_there
            && (!self.drop_empty || self.children.iter().any(Fragment::is_made))
    }

    /// Merges another fragment of the same element.
    pub fn join(&mut self, other: Fragment) {
        let both = |a: &Fragment, b: &Fragment| {
            a.name == b.name
                && matches!((&a.pick, &b.pick), (Pick::First, Pick::First))
                && matches!(
                    a.name,
                    "devices" | "cpu" | "os" | "features" | "metadata" | "memoryBacking"
                )
        };
        // Two edits may both need a namespace; declared twice it would not be well-formed.
        let again = |name: &str| other.attributes.iter().any(|(other, _)| *other == name);
        self.attributes.retain(|(name, _)| !again(name));
        self.attributes.extend(other.attributes);
        self.text = other.text.or(self.text.take());
        self.only.extend(other.only);
        for child in other.children {
            match self.children.iter_mut().find(|mine| both(mine, &child)) {
                Some(mine) => mine.join(child),
                None => self.children.push(child),
            }
        }
    }

    /// Writes it in libvirt's format: two spaces per level, single quotes. `line` starts a line at
    /// its level; none writes everything on one line.
    pub fn write(&self, out: &mut String, line: Option<&str>) {
        let _ = write!(out, "<{}", self.name);
        for (name, want) in &self.attributes {
            if let Want::Set(value) = want {
                let _ = write!(out, " {name}='{}'", escaped(value));
            }
        }
        let below = line.map(|line| format!("{line}  "));
        let mut made = self.children.iter().filter(|child| child.is_made()).peekable();
        match &self.text {
            None if made.peek().is_none() => return out.push_str("/>"),
            None => out.push('>'),
            Some(text) => {
                let _ = write!(out, ">{}", partial_escape(text.as_str()));
            }
        }
        if made.peek().is_some() {
            for child in made {
                out.push_str(below.as_deref().unwrap_or_default());
                child.write(out, below.as_deref());
            }
            out.push_str(line.unwrap_or_default());
        }
        let _ = write!(out, "</{}>", self.name);
    }
}

/// Escapes a value for an attribute in single or double quotes.
pub(super) fn escaped(value: &str) -> Cow<'_, str> {
    let value = escape(value);
    if !value.contains(['\n', '\r', '\t']) {
        return value;
    }
    // Bare, these would be read back as spaces in an attribute.
    Cow::Owned(value.replace('\n', "&#10;").replace('\r', "&#13;").replace('\t', "&#9;"))
}
