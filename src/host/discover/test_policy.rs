//! The policy on tests of GPUs between guests, `/etc/gpuvm/test.toml`. The file is read strictly:
//! a policy that is misread would offer GPUs that it keeps back.

use crate::fsroot::{FsError, FsRoot};
use crate::tree::{Fault, Value, toml};

/// The file, below the root.
pub const FILE: &str = "etc/gpuvm/test.toml";

/// The consequence of a GPU's state for the next guest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, strum::EnumString, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum TestMode {
    /// States are neither recorded nor considered.
    #[default]
    Off,
    /// States are recorded; plans name GPUs that are not tested since their last guest.
    Note,
    /// Such GPUs are not offered.
    Require,
}

/// The policy of a host; that of an absent file is off.
pub fn test_mode(root: &FsRoot) -> Result<TestMode, FsError> {
    let Some(text) = root.read(FILE)? else { return Ok(TestMode::default()) };
    parse(&text).map_err(|Fault { at, why }| {
        // The text has no blank lines in front.
        let bytes = root.bytes(FILE).unwrap_or_default();
        let blank = bytes.iter().take_while(|byte| byte.is_ascii_whitespace());
        let before = blank.filter(|byte| **byte == b'\n').count();
        root.malformed(FILE, before + at.line, why)
    })
}

/// Returns the hint for an error of the file; `None`: it is of another.
pub fn hint(error: &FsError) -> Option<String> {
    let (FsError::Malformed { path, .. } | FsError::NotText { path, .. }) = error else {
        return None;
    };
    let text = || "gpuvm-guide(7) lists its keys under GPUS BETWEEN GUESTS".to_owned();
    path.ends_with(FILE).then(text)
}

fn parse(text: &str) -> Result<TestMode, Fault> {
    let Value::Map(fields) = toml(text)?.value else { unreachable!("a document is a table") };
    let mut mode = TestMode::default();
    for (key, at, node) in fields {
        if key != "mode" {
            let why = format!("`{}` is unknown; known is mode", key.escape_debug());
            return Err(Fault { at, why });
        }
        let Value::Text(text) = node.value else {
            return Err(Fault { at: node.at, why: "`mode` must be a single value".into() });
        };
        mode = text.parse().map_err(|_| {
            let shown: String = text.chars().take(40).collect();
            let shown = shown.escape_debug();
            let why = format!("`mode` is `{shown}`; it must be off, note or require");
            Fault { at: node.at, why }
        })?;
    }
    Ok(mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_is_off() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        assert_eq!(test_mode(&root).unwrap(), TestMode::Off);
        assert_eq!(parse("").unwrap(), TestMode::Off);
        std::fs::create_dir_all(dir.path().join("etc/gpuvm")).unwrap();
        std::fs::write(dir.path().join(FILE), "# between tenants\nmode = \"require\"\n").unwrap();
        assert_eq!(test_mode(&root).unwrap(), TestMode::Require);
        assert_eq!(parse("mode = \"note\"").unwrap(), TestMode::Note);
    }

    #[test]
    fn a_bad_value_is_named_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        std::fs::create_dir_all(dir.path().join("etc/gpuvm")).unwrap();
        for (text, line, part) in [
            ("mode = \"strict\"", 1, "`mode` is `strict`; it must be off, note or require"),
            ("\nmode = require", 2, ""),
            ("mode = \"Require\"", 1, "`Require`"),
            ("mode = \"off\"\nmode = \"note\"", 2, ""),
            ("mode = [\"note\"]", 1, "`mode` must be a single value"),
            ("mode = \"note\"\n\nmodes = 1", 3, "`modes` is unknown; known is mode"),
            ("[test]\nmode = \"note\"", 1, "`test` is unknown"),
            ("mode = \"a\\nb\"", 1, "`a\\nb`"),
            ("level = 1", 1, "`level` is unknown"),
            ("{", 1, ""),
        ] {
            std::fs::write(dir.path().join(FILE), text).unwrap();
            let error = test_mode(&root).unwrap_err();
            let said = error.to_string();
            assert!(said.contains(&format!("etc/gpuvm/test.toml line {line}: ")), "{text}: {said}");
            assert!(said.contains(part), "{text}: {said}");
            assert!(hint(&error).unwrap().contains("gpuvm-guide(7)"));
        }
    }
}
