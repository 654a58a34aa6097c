//! What an element shall be: attributes, text and elements in it, as far as we want them. [`super::splice`] makes it so
//! in a document, and what a fragment does not name stays. Knows XML and libvirt's writing style, not its meaning.

use super::element::Element;
use quick_xml::escape::{escape, partial_escape};
use std::borrow::Cow;
use std::fmt::Write as _;

/// Reads from an element what tells it from its siblings of the same name.
pub(super) type KeyOf = fn(Element<'_>) -> Option<String>;

/// Tells whether an element is ours to remove.
pub(super) type IsOurs = fn(Element<'_>) -> bool;

/// Which element of a name a fragment speaks of.
#[derive(Debug, Clone)]
pub(super) enum Pick {
    /// The first that no other fragment has taken.
    First,
    /// The one at this place among those of its name, from 0.
    Nth(usize),
    /// The one with this key.
    Key(KeyOf, String),
}

/// What an attribute shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Want {
    /// There, with this value.
    Set(String),
    /// Absent, or with this value, which absence stands for.
    Default(String),
    /// Absent.
    Absent,
}

/// What an element shall be.
#[derive(Debug, Clone)]
pub(super) struct Fragment {
    /// Its name.
    pub name: &'static str,
    /// Which of that name.
    pub pick: Pick,
    /// Its attributes.
    pub attributes: Vec<(&'static str, Want)>,
    /// Its own text.
    pub text: Option<String>,
    /// Elements in it.
    pub children: Vec<Fragment>,
    /// Names of elements in it that are ours: those that no child speaks of are removed if the test says so.
    pub only: Vec<(&'static str, IsOurs)>,
    /// Whether it shall not be there.
    pub gone: bool,
    /// Whether it is left out where it is not there.
    pub if_there: bool,
    /// Whether it is removed, or not made, where it would be left without elements.
    pub drop_empty: bool,
}

impl Fragment {
    /// An element about which nothing is wanted but that it is there.
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

    /// An element that shall not be there.
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

    /// Wants an element in it.
    pub fn child(mut self, child: Fragment) -> Fragment {
        self.children.push(child);
        self
    }

    /// Wants elements in it.
    pub fn children(mut self, children: impl IntoIterator<Item = Fragment>) -> Fragment {
        self.children.extend(children);
        self
    }

    /// Speaks of the element with this key.
    pub fn key(mut self, of: KeyOf, key: impl ToString) -> Fragment {
        self.pick = Pick::Key(of, key.to_string());
        self
    }

    /// Speaks of the element at this place among those of its name.
    pub fn nth(mut self, nth: usize) -> Fragment {
        self.pick = Pick::Nth(nth);
        self
    }

    /// Wants no other elements of this name in it.
    pub fn only(self, name: &'static str) -> Fragment {
        self.only_where(name, |_| true)
    }

    /// Wants no other elements of this name in it for which the test says yes.
    pub fn only_where(mut self, name: &'static str, ours: IsOurs) -> Fragment {
        self.only.push((name, ours));
        self
    }

    /// Wants nothing where the element is not there.
    pub fn if_there(mut self) -> Fragment {
        self.if_there = true;
        self
    }

    /// Wants no empty element to be left.
    pub fn drop_empty(mut self) -> Fragment {
        self.drop_empty = true;
        self
    }

    /// Whether it is to be made where it is not there.
    pub fn is_made(&self) -> bool {
        !self.gone
            && !self.if_there
            && (!self.drop_empty || self.children.iter().any(Fragment::is_made))
    }

    /// Adds the wishes of another fragment about the same element.
    pub fn join(&mut self, other: Fragment) {
        let both = |a: &Fragment, b: &Fragment| {
            a.name == b.name
                && matches!((&a.pick, &b.pick), (Pick::First, Pick::First))
                && matches!(a.name, "devices" | "cpu" | "os" | "features" | "metadata")
        };
        // Two edits may both need a namespace; written twice it would be no document.
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

    /// Writes it as libvirt does: two more spaces per level, single quotes. `line` begins a line at its level; none
    /// writes everything in one line.
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

/// Escapes a value for an attribute with any quotes.
pub(super) fn escaped(value: &str) -> Cow<'_, str> {
    let value = escape(value);
    if !value.contains(['\n', '\r', '\t']) {
        return value;
    }
    // Bare, these would be read back as spaces in an attribute.
    Cow::Owned(value.replace('\n', "&#10;").replace('\r', "&#13;").replace('\t', "&#9;"))
}
