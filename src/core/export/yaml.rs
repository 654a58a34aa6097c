//! A writer of YAML: block style, with every text quoted as JSON quotes it, which all versions of
//! YAML read alike. `serde_yaml` is no longer maintained, and the reader of `apply` writes nothing.

use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;

/// A value as a YAML document.
pub fn to_yaml<T: Serialize>(value: &T) -> serde_json::Result<String> {
    let value = serde_json::to_value(value)?;
    let mut text = String::new();
    block(&mut text, &value, 0);
    Ok(text)
}

/// Whether a value is written in one line.
fn is_inline(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => true,
    }
}

/// Writes a value that begins at a column, on lines of its own.
fn block(text: &mut String, value: &Value, column: usize) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (number, (key, value)) in fields.iter().enumerate() {
                // The first field of an item follows its dash.
                let indent = if number == 0 && !text.ends_with('\n') { 0 } else { column };
                let _ = write!(text, "{:indent$}{}:", "", key_text(key));
                below(text, value, column);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let _ = write!(text, "{:column$}-", "");
                if is_inline(item) {
                    let _ = writeln!(text, " {}", scalar(item));
                } else if item.is_array() {
                    text.push('\n');
                    block(text, item, column + 2);
                } else {
                    text.push(' ');
                    block(text, item, column + 2);
                }
            }
        }
        value => {
            let _ = writeln!(text, "{:column$}{}", "", scalar(value));
        }
    }
}

/// Writes the value of a key.
fn below(text: &mut String, value: &Value, column: usize) {
    if is_inline(value) {
        let _ = writeln!(text, " {}", scalar(value));
        return;
    }
    text.push('\n');
    block(text, value, if value.is_array() { column } else { column + 2 });
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        value => value.to_string(),
    }
}

/// A text as both JSON and YAML quote it: characters that YAML does not print are written by
/// number.
fn quoted(text: &str) -> String {
    let json = Value::from(text).to_string();
    let mut all = String::with_capacity(json.len());
    for c in json.chars() {
        let is_plain = matches!(c, ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}');
        if is_plain && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') {
            all.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(all, "\\u{unit:04x}");
            }
        }
    }
    all
}

/// A key: plain where no version of YAML reads another thing.
fn key_text(key: &str) -> String {
    let first = key.chars().next().is_some_and(|c| c.is_ascii_alphabetic());
    let rest = key.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
    let words = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    let is_word = words.contains(&key.to_ascii_lowercase().as_str());
    if first && rest && !is_word { key.to_owned() } else { quoted(key) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_written_in_blocks() {
        let value = json!({
            "kind": "VirtualMachine", "n": 3, "y": "no", "hw:numa_nodes": "2", "none": null,
            "empty": {}, "also": [], "list": ["a", {"name": "x", "deep": {"b": true}}, [1, 2]],
        });
        // Fields are in the order of the map, by name.
        let expected = "also: []
empty: {}
\"hw:numa_nodes\": \"2\"
kind: \"VirtualMachine\"
list:
- \"a\"
- deep:
    b: true
  name: \"x\"
-
  - 1
  - 2
\"n\": 3
none: null
\"y\": \"no\"
";
        assert_eq!(to_yaml(&value).unwrap(), expected);
    }

    #[test]
    fn text_is_quoted_so_that_it_stays_text() {
        for (text, is) in [
            ("1Gi", "\"1Gi\""),
            ("a\nb: \"c\" \\", "\"a\\nb: \\\"c\\\" \\\\\""),
            ("\u{7f}\u{85}\u{2028}é", "\"\\u007f\\u0085\\u2028é\""),
        ] {
            assert_eq!(quoted(text), is);
            assert_eq!(serde_json::from_str::<String>(&quoted(text)).unwrap(), text);
        }
    }
}
