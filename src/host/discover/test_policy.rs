//! The policy on tests of GPUs between guests, `/etc/gpuvm/test.toml`. The file is read strictly:
//! a policy that is misread would offer GPUs that it keeps back.

use crate::fsroot::{FsError, FsRoot};
use crate::tree::{Fault, Node, Spot, Value, toml};
use gpuvm_core::memsize::MemSize;
use std::time::Duration;

/// The file, below the root.
pub const FILE: &str = "etc/gpuvm/test.toml";

const KEYS: [&str; 7] = ["mode", "image", "level", "memory", "timeout", "on_fail", "max_age"];
/// Levels of `dcgmi diag -r`.
const LEVELS: std::ops::RangeInclusive<u8> = 1..=4;
/// The longest test, in seconds: level 4 of DCGM takes hours.
const LONGEST_S: u64 = 86_400;

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

/// The consequence of a failed test.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum OnFail {
    /// The GPU is excluded, as by `gpu exclude`.
    #[default]
    Exclude,
}

/// The policy. Only `mode` has an effect so far; the others describe the guest that tests GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestPolicy {
    /// The consequence of a GPU's state for plans.
    pub mode: TestMode,
    /// The image of the test guest.
    pub image: Option<String>,
    /// The level of DCGM's diagnostics.
    pub level: u8,
    /// Memory of the test guest.
    pub memory: MemSize,
    /// The time limit of a test.
    pub timeout: Duration,
    /// What happens to a GPU that fails.
    pub on_fail: OnFail,
    /// The age at which a test no longer counts.
    pub max_age: Duration,
}

impl Default for TestPolicy {
    fn default() -> TestPolicy {
        TestPolicy {
            mode: TestMode::Off,
            image: None,
            level: 1,
            memory: MemSize::from_gib(16),
            timeout: Duration::from_secs(600),
            on_fail: OnFail::Exclude,
            max_age: Duration::from_secs(7 * 86_400),
        }
    }
}

/// The policy of a host; that of an absent file is off.
pub fn test_policy(root: &FsRoot) -> Result<TestPolicy, FsError> {
    let Some(text) = root.read(FILE)? else { return Ok(TestPolicy::default()) };
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

fn parse(text: &str) -> Result<TestPolicy, Fault> {
    let Value::Map(fields) = toml(text)?.value else { unreachable!("a document is a table") };
    let mut policy = TestPolicy::default();
    for (key, at, node) in fields {
        let Some(known) = KEYS.iter().find(|known| **known == key) else {
            let key = key.escape_debug();
            let why = format!("`{key}` is unknown; known are {}", KEYS.join(", "));
            return Err(Fault { at, why });
        };
        let at = node.at;
        let value = Given { key: known, at, text: scalar(known, node)? };
        match *known {
            "mode" => policy.mode = value.read("off, note or require", |text| text.parse().ok())?,
            "image" => {
                let image = |text: &str| {
                    let is_name = !text.is_empty() && !text.chars().any(char::is_control);
                    is_name.then(|| text.to_owned())
                };
                policy.image = Some(value.read("the name of an image", image)?);
            }
            "level" => {
                let level = |text: &str| text.parse().ok().filter(|level| LEVELS.contains(level));
                policy.level = value.read("1, 2, 3 or 4", level)?;
            }
            "memory" => {
                let size = |text: &str| text.parse().ok().filter(|size| *size > MemSize::default());
                policy.memory = value.read("a size such as \"16G\"", size)?;
            }
            "timeout" => policy.timeout = value.read("1 to 86400 seconds", seconds)?,
            "on_fail" => policy.on_fail = value.read("exclude", |text| text.parse().ok())?,
            _ => policy.max_age = value.read("a number of s, m, h or d, such as \"7d\"", age)?,
        }
    }
    Ok(policy)
}

/// A value of the file.
struct Given<'k> {
    key: &'k str,
    at: Spot,
    text: String,
}

impl Given<'_> {
    fn read<T>(&self, wanted: &str, read: impl FnOnce(&str) -> Option<T>) -> Result<T, Fault> {
        read(&self.text).ok_or_else(|| {
            let shown: String = self.text.chars().take(40).collect();
            let (key, shown) = (self.key, shown.escape_debug());
            Fault { at: self.at, why: format!("`{key}` is `{shown}`; it must be {wanted}") }
        })
    }
}

fn scalar(key: &str, node: Node) -> Result<String, Fault> {
    match node.value {
        Value::Text(text) => Ok(text),
        _ => Err(Fault { at: node.at, why: format!("`{key}` must be a single value") }),
    }
}

fn seconds(text: &str) -> Option<Duration> {
    let seconds = text.parse().ok().filter(|seconds| (1..=LONGEST_S).contains(seconds));
    seconds.map(Duration::from_secs)
}

fn age(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit_s: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = number.parse().ok().filter(|number| is_number && *number > 0)?;
    number.checked_mul(unit_s).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_has_every_key_and_no_file_is_off() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        assert_eq!(test_policy(&root).unwrap(), TestPolicy::default());
        assert_eq!(parse("").unwrap().mode, TestMode::Off);
        std::fs::create_dir_all(dir.path().join("etc/gpuvm")).unwrap();
        let text = "# between tenants\nmode = \"require\"\nimage = \"gpu-test\"\nlevel = 2\n\
                    memory = \"8G\"\ntimeout = 1200\non_fail = \"exclude\"\nmax_age = \"36h\"\n";
        std::fs::write(dir.path().join(FILE), text).unwrap();
        let policy = TestPolicy {
            mode: TestMode::Require,
            image: Some("gpu-test".into()),
            level: 2,
            memory: MemSize::from_gib(8),
            timeout: Duration::from_secs(1200),
            on_fail: OnFail::Exclude,
            max_age: Duration::from_secs(36 * 3_600),
        };
        assert_eq!(test_policy(&root).unwrap(), policy);
        assert_eq!(parse("mode = \"note\"").unwrap().mode, TestMode::Note);
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
            ("mode = \"note\"\n\nmodes = 1", 3, "`modes` is unknown; known are mode, image"),
            ("[test]\nmode = \"note\"", 1, "`test` is unknown"),
            ("level = 5", 1, "`level` is `5`; it must be 1, 2, 3 or 4"),
            ("level = 1.5", 1, "`1.5`"),
            ("memory = \"16\"", 1, "`memory` is `16`"),
            ("memory = \"0G\"", 1, "`0G`"),
            ("timeout = 0", 1, "`0`"),
            ("timeout = -1", 1, "`-1`"),
            ("timeout = 86401", 1, "1 to 86400 seconds"),
            ("on_fail = \"ignore\"", 1, "it must be exclude"),
            ("max_age = 7", 1, "such as \"7d\""),
            ("max_age = \"d\"", 1, "`d`"),
            ("max_age = \"+7d\"", 1, "`+7d`"),
            ("max_age = \"99999999999999999d\"", 1, "`max_age`"),
            ("max_age = \"7ä\"", 1, "`7ä`"),
            ("image = \"\"", 1, "the name of an image"),
            ("image = \"a\\nb\"", 1, "`a\\nb`"),
            ("{", 1, ""),
        ] {
            std::fs::write(dir.path().join(FILE), text).unwrap();
            let error = test_policy(&root).unwrap_err();
            let said = error.to_string();
            assert!(said.contains(&format!("etc/gpuvm/test.toml line {line}: ")), "{text}: {said}");
            assert!(said.contains(part), "{text}: {said}");
            assert!(hint(&error).unwrap().contains("gpuvm-guide(7)"));
        }
    }
}
