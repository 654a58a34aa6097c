//! Speeds that an admin expects in guests, `/etc/gpuvm/expected.toml`: a table for each model of
//! GPU.

use super::test_policy::{located, of_unreadable};
use crate::fsroot::{FsError, FsRoot};
use crate::tree::{Fault, Value, toml};
use gpuvm_core::measure::{MOST_VALUE, OwnExpected, What};
use strum::IntoEnumIterator as _;

/// Reads the speeds; none without the file.
pub fn expected(root: &FsRoot) -> Result<Vec<OwnExpected>, FsError> {
    let Some(text) = root.read(OwnExpected::FILE)? else { return Ok(Vec::new()) };
    parse(&text).map_err(|fault| located(root, OwnExpected::FILE, fault))
}

/// Returns the hint for an error of the file; `None`: it is of another.
pub fn hint(error: &FsError) -> Option<String> {
    if let FsError::Unreadable { path, source } = error {
        return path.ends_with(OwnExpected::FILE).then(|| of_unreadable(path, source));
    }
    let (FsError::Malformed { path, .. } | FsError::NotText { path, .. }) = error else {
        return None;
    };
    let text = || "gpuvm-hardware(7) shows its form under REFERENCE SPEEDS".to_owned();
    path.ends_with(OwnExpected::FILE).then(text)
}

fn parse(text: &str) -> Result<Vec<OwnExpected>, Fault> {
    let Value::Map(models) = toml(text)?.value else { unreachable!("a document is a table") };
    let mut all = Vec::new();
    for (model, at, node) in models {
        let Value::Map(fields) = node.value else {
            let why = format!("`{}` is no table of a model", model.escape_debug());
            return Err(Fault { at, why });
        };
        if let Some(other) =
            all.iter().find(|one: &&OwnExpected| one.model.eq_ignore_ascii_case(&model))
        {
            let (other, model) = (other.model.escape_debug(), model.escape_debug());
            let why = format!("`{model}` has a table already, `{other}`: case makes no difference");
            return Err(Fault { at, why });
        }
        let mut own = OwnExpected { model, ..OwnExpected::default() };
        for (key, at, node) in fields {
            let what: What = key.parse().map_err(|_| {
                let known: Vec<String> = What::iter().map(|what| what.to_string()).collect();
                let known = known.join(", ");
                let why = format!("`{}` is unknown; known are {known}", key.escape_debug());
                Fault { at, why }
            })?;
            let value = match &node.value {
                Value::Text(text) => text.parse::<f64>().ok(),
                _ => None,
            };
            let value =
                value.filter(|value| value.is_finite() && *value > 0.0 && *value <= MOST_VALUE);
            let unit = what.unit();
            let why =
                || format!("`{key}` must be a number of {unit} above 0, at most {MOST_VALUE:e}");
            own.values.insert(what, value.ok_or_else(|| Fault { at: node.at, why: why() })?);
        }
        all.push(own);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_by_model_and_bad_ones_are_named_with_their_line() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        assert_eq!(expected(&root).unwrap(), []);
        let file = dir.path().join(OwnExpected::FILE);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let good = "[H100]\nhost-to-device = 54.5\n\n[\"NVIDIA A100\"]\nall-reduce = 228\n";
        std::fs::write(&file, good).unwrap();
        let all = expected(&root).unwrap();
        assert_eq!((all[0].model.as_str(), all[1].model.as_str()), ("H100", "NVIDIA A100"));
        assert_eq!(all[0].values, [(What::HostToDevice, 54.5)].into());
        for (text, line, part) in [
            ("host-to-device = 54", 1, "is no table of a model"),
            ("\n[H100]\nspeed = 5", 3, "`speed` is unknown; known are host-to-device, "),
            ("[H100]\ntriad = 0", 2, "`triad` must be a number of GB/s above 0"),
            ("[H100]\ntriad = nan", 2, "above 0"),
            ("[H100]\ntriad = 1e10", 2, "above 0, at most 1e9"),
            ("[H100]\ntriad = [1]", 2, "above 0"),
            ("[H100]\ntriad = 5\n\n[h100]\ntriad = 6", 4, "`h100` has a table already, `H100`"),
            ("[H100", 1, ""),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = expected(&root).unwrap_err();
            let said = error.to_string();
            assert!(said.contains(&format!("expected.toml line {line}: ")), "{text}: {said}");
            assert!(said.contains(part), "{text}: {said}");
            assert!(hint(&error).unwrap().contains("REFERENCE SPEEDS"));
        }
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        let hint = hint(&expected(&root).unwrap_err()).unwrap();
        assert!(hint.starts_with("`ls -ld "), "{hint}");
    }
}
