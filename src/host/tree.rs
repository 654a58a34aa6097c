//! A file of YAML, JSON or TOML as a tree in which every key and value knows its line and column.
//! All scalars are text: the option that they are for decides their meaning, so that `no`, `1_000`
//! and MAC addresses are taken literally.

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};
use std::ops::Range;
use toml_edit::{Document, Item, TableLike, Value as Toml};

const DEEPEST: usize = 8;

/// A place in a file, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    /// Line.
    pub line: usize,
    /// Column, in characters.
    pub column: usize,
}

/// A value with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Where it begins.
    pub at: Spot,
    /// The value.
    pub value: Value,
}

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Nothing.
    Null,
    /// A scalar.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// Keys and values, in the order of the file.
    Map(Vec<(String, Spot, Node)>),
}

/// A fault of a file, and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub at: Spot,
    /// The reason.
    pub why: String,
}

fn fault<T>(at: Spot, why: impl Into<String>) -> Result<T, Fault> {
    Err(Fault { at, why: why.into() })
}

/// Adds a key to a map; an error if it is there.
fn add(
    map: &mut Vec<(String, Spot, Node)>,
    (key, at): (String, Spot),
    node: Node,
) -> Result<(), Fault> {
    if let Some((_, first, _)) = map.iter().find(|(known, ..)| *known == key) {
        return fault(at, format!("`{key}` is given twice, first in line {}", first.line));
    }
    map.push((key, at, node));
    Ok(())
}

/// Reads YAML, of which JSON is a part.
pub fn yaml(text: &str) -> Result<Node, Fault> {
    let mut events = Events { events: Parser::new_from_str(text) };
    let mut found = None;
    loop {
        let (event, at) = events.next()?;
        match event {
            Event::StreamEnd => break,
            Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
            _ if found.is_some() => return fault(at, "a second document; put all guests into one"),
            event => found = Some(events.node(event, at, 0)?),
        }
    }
    found.map_or_else(|| fault(Spot { line: 1, column: 1 }, "the file is empty"), Ok)
}

/// The events of a YAML file.
struct Events<I> {
    events: I,
}

impl<'t, I: Iterator<Item = Result<(Event<'t>, Span), ScanError>>> Events<I> {
    /// The next event with its place.
    fn next(&mut self) -> Result<(Event<'t>, Spot), Fault> {
        match self.events.next() {
            None => Ok((Event::StreamEnd, Spot { line: 1, column: 1 })),
            Some(Ok((event, span))) => {
                let at = Spot { line: span.start.line(), column: span.start.col() + 1 };
                Ok((event, at))
            }
            Some(Err(error)) => {
                let mark = error.marker();
                fault(Spot { line: mark.line(), column: mark.col() + 1 }, error.info())
            }
        }
    }

    /// The value that begins with an event.
    fn node(&mut self, event: Event<'t>, at: Spot, depth: usize) -> Result<Node, Fault> {
        if depth > DEEPEST {
            return fault(at, "nested too deeply");
        }
        let value = match event {
            Event::Scalar(text, style, ..) => {
                let is_null = matches!(&*text, "" | "~" | "null");
                if is_null && style == ScalarStyle::Plain {
                    Value::Null
                } else {
                    Value::Text(text.into_owned())
                }
            }
            Event::SequenceStart(..) => {
                let mut list = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => break Value::List(list),
                        (event, at) => list.push(self.node(event, at, depth + 1)?),
                    }
                }
            }
            Event::MappingStart(..) => {
                let mut map = Vec::new();
                loop {
                    let (key, key_at) = match self.next()? {
                        (Event::MappingEnd, _) => break Value::Map(map),
                        (Event::Scalar(key, ..), key_at) => (key.into_owned(), key_at),
                        (_, at) => return fault(at, "a key has to be a word"),
                    };
                    let (event, value_at) = self.next()?;
                    let node = self.node(event, value_at, depth + 1)?;
                    add(&mut map, (key, key_at), node)?;
                }
            }
            Event::Alias(_) => return fault(at, "aliases (`*name`) are not accepted"),
            _ => return fault(at, "a value is missing"),
        };
        Ok(Node { at, value })
    }
}

/// Reads TOML.
pub fn toml(text: &str) -> Result<Node, Fault> {
    let lines = Lines { text };
    let document = Document::parse(text)
        .map_err(|error| Fault { at: lines.spot(error.span()), why: error.message().to_owned() })?;
    let map = lines.map(document.as_table(), 0)?;
    Ok(Node { at: Spot { line: 1, column: 1 }, value: map })
}

/// The lines of a TOML file.
struct Lines<'t> {
    text: &'t str,
}

impl Lines<'_> {
    fn spot(&self, span: Option<Range<usize>>) -> Spot {
        let start = span.map_or(0, |span| span.start).min(self.text.len());
        let before = self.text.get(..start).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Spot { line, column }
    }

    fn map(&self, table: &dyn TableLike, depth: usize) -> Result<Value, Fault> {
        let mut map = Vec::new();
        for (name, item) in table.iter() {
            let key = table.key(name).and_then(|key| key.span());
            let at = self.spot(key.or_else(|| item.span()));
            let node = self.item(item, at, depth + 1)?;
            add(&mut map, (name.to_owned(), at), node)?;
        }
        Ok(Value::Map(map))
    }

    fn item(&self, item: &Item, at: Spot, depth: usize) -> Result<Node, Fault> {
        if depth > DEEPEST {
            return fault(at, "nested too deeply");
        }
        let at = item.span().map_or(at, |span| self.spot(Some(span)));
        let value = match item {
            Item::None => Value::Null,
            Item::Table(table) => self.map(table, depth)?,
            Item::ArrayOfTables(tables) => {
                let node = |table: &toml_edit::Table| {
                    let at = self.spot(table.span());
                    Ok(Node { at, value: self.map(table, depth + 1)? })
                };
                Value::List(tables.iter().map(node).collect::<Result<_, _>>()?)
            }
            Item::Value(value) => return self.value(value, depth),
        };
        Ok(Node { at, value })
    }

    fn value(&self, value: &Toml, depth: usize) -> Result<Node, Fault> {
        let at = self.spot(value.span());
        if depth > DEEPEST {
            return fault(at, "nested too deeply");
        }
        let value = match value {
            Toml::String(text) => Value::Text(text.value().clone()),
            Toml::Integer(number) => Value::Text(number.value().to_string()),
            Toml::Float(number) => Value::Text(number.value().to_string()),
            Toml::Boolean(on) => Value::Text(on.value().to_string()),
            Toml::Datetime(time) => Value::Text(time.value().to_string()),
            Toml::Array(array) => {
                let nodes = array.iter().map(|value| self.value(value, depth + 1));
                Value::List(nodes.collect::<Result<_, _>>()?)
            }
            Toml::InlineTable(table) => self.map(table, depth)?,
        };
        Ok(Node { at, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A scalar of a map's key, and its place.
    fn at(node: &Node, key: &str) -> (Value, usize, usize) {
        let Value::Map(map) = &node.value else { panic!("no map: {node:?}") };
        let (_, _, value) = map.iter().find(|(name, ..)| name == key).unwrap();
        (value.value.clone(), value.at.line, value.at.column)
    }

    #[test]
    fn values_know_their_places_and_are_text() {
        let text = |text: &str| Value::Text(text.to_owned());
        let yaml = yaml("a: no\nb:   0755\nc: \"~\"\nd: ~\n").unwrap();
        assert_eq!(at(&yaml, "a"), (text("no"), 1, 4));
        assert_eq!(at(&yaml, "b"), (text("0755"), 2, 6));
        assert_eq!(at(&yaml, "c"), (text("~"), 3, 4));
        assert_eq!(at(&yaml, "d").0, Value::Null);
        let toml = toml("a = false\n  b = 12\n[[c]]\nd = [\"x\", 1]\n").unwrap();
        assert_eq!(at(&toml, "a"), (text("false"), 1, 5));
        assert_eq!(at(&toml, "b"), (text("12"), 2, 7));
        assert!(matches!(at(&toml, "c").0, Value::List(list) if list.len() == 1));
    }

    #[test]
    fn a_malformed_tree_is_refused_with_its_place() {
        for (bad, line, column) in [
            ("", 1, 1),
            ("a: 1\na: 2\n", 2, 1),
            ("a: [1\n", 2, 1),
            ("a: &x 1\nb: *x\n", 2, 4),
            ("a: 1\n---\nb: 1\n", 3, 1),
            ("? [a]\n: 1\n", 1, 3),
        ] {
            let fault = yaml(bad).unwrap_err();
            assert_eq!((fault.at.line, fault.at.column), (line, column), "{bad:?}: {}", fault.why);
        }
        assert_eq!(yaml(&"[".repeat(50)).unwrap_err().at.line, 1);
        assert_eq!(toml("a = 1\na = 2\n").unwrap_err().at.line, 2);
        assert_eq!(toml("a = \n").unwrap_err().at.line, 1);
    }
}
