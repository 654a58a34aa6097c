//! Kinds of steps that this version does not know.

use super::Step;
use serde_json::Value;
use strum::VariantNames as _;

/// Returns the kind of the first step in a document that this version has no step of; none: all are
/// known, or it is no document.
pub fn unknown_step(text: &str) -> Option<String> {
    unknown(&serde_json::from_str(text).ok()?).map(str::to_owned)
}

fn unknown(value: &Value) -> Option<&str> {
    match value {
        Value::Array(all) => all.iter().find_map(unknown),
        Value::Object(fields) => {
            let kind = fields.get("step").and_then(Value::as_str);
            let of_this = kind.filter(|kind| !Step::VARIANTS.contains(kind));
            of_this.or_else(|| fields.values().find_map(unknown))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_a_newer_version_is_told_from_damage() {
        let path = std::path::PathBuf::from("/a");
        let known = Step::DeleteDisk { path, file: None };
        let text = serde_json::to_string(&[known]).unwrap();
        assert_eq!(unknown_step(&text), None);
        let newer = text.replace("delete-disk", "polish-lens");
        assert_eq!(unknown_step(&newer).as_deref(), Some("polish-lens"));
        assert_eq!(unknown_step(&newer[1..]), None);
        // The names are those of the documents.
        let wrong = serde_json::from_str::<Step>("{\"step\":\"x\"}").unwrap_err().to_string();
        for kind in Step::VARIANTS {
            assert!(wrong.contains(&format!("`{kind}`")), "{kind}: {wrong}");
        }
    }
}
