//! The policy on tests of GPUs between guests, `/etc/gpuvm/test.toml`. The file is read strictly:
//! a policy that is misread would offer GPUs that it keeps back. One that others than root can write
//! is refused: it names the program that root runs on every GPU.

use crate::fsroot::{FsError, FsRoot};
use crate::later::replaceable;
use crate::tree::{Fault, Node, Value, toml};
use gpuvm_core::domain::guest::VirtType;
use gpuvm_core::image::{ImageName, Sha256};
use gpuvm_core::memsize::MemSize;
use gpuvm_core::shell::word;
use gpuvm_core::topology::facts::GpuTests;
use std::path::{Path, PathBuf};

/// The file, below the root.
pub const FILE: &str = "etc/gpuvm/test.toml";
/// Its keys.
const KEYS: [&str; 12] = [
    "mode",
    "image",
    "sha256",
    "template",
    "virt_type",
    "pool",
    "memory",
    "vcpus",
    "level",
    "timeout",
    "on_fail",
    "max_age",
];
/// The highest level of DCGM's diagnostics.
const MOST_LEVEL: u8 = 4;
/// The time limit of a test in seconds: one needs time to boot, and blocks its GPUs.
const LIMITS_S: std::ops::RangeInclusive<u64> = 10..=24 * 3600;

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
    /// The GPU is excluded until an admin includes it.
    #[default]
    Exclude,
    /// It is only recorded.
    Record,
}

/// The policy of a host for GPUs between guests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestPolicy {
    /// Which GPUs the next guest may get.
    pub mode: TestMode,
    /// The image of test guests; `None`: gpuvm runs no test.
    pub image: Option<ImageName>,
    /// The SHA-256 of that image's file.
    pub sha256: Option<Sha256>,
    /// The template of test guests; `None` for the built-in one.
    pub template: Option<PathBuf>,
    /// How test guests run.
    pub virt_type: VirtType,
    /// The storage pool of what test guests write; `None` for that of other guests.
    pub pool: Option<String>,
    /// Memory of a test guest.
    pub memory: MemSize,
    /// vCPUs of a test guest; `None` for the share of its GPUs.
    pub vcpus: Option<u32>,
    /// Level of DCGM's diagnostics, 1 to 4.
    pub level: u8,
    /// The time limit of a test, its boot included, in seconds.
    pub timeout_s: u64,
    /// The consequence of a failed test.
    pub on_fail: OnFail,
    /// For how many seconds a test counts; `None`: until the next guest.
    pub max_age_s: Option<u64>,
}

impl Default for TestPolicy {
    fn default() -> TestPolicy {
        TestPolicy {
            mode: TestMode::default(),
            image: None,
            sha256: None,
            template: None,
            virt_type: VirtType::Kvm,
            pool: None,
            memory: MemSize::from_gib(16),
            vcpus: None,
            level: 1,
            timeout_s: 600,
            on_fail: OnFail::default(),
            max_age_s: None,
        }
    }
}

/// The policy of a host; that of an absent file is off.
pub fn test_policy(root: &FsRoot) -> Result<TestPolicy, FsError> {
    let Some(text) = root.read(FILE)? else { return Ok(TestPolicy::default()) };
    if root.is_live() {
        // The files of a record belong to whoever made it.
        trusted(&Path::new("/").join(FILE), replaceable)?;
    }
    parse(&text).map_err(|fault| located(root, FILE, fault))
}

/// The error of a file whose text has a fault: it was read without the blank lines in front.
pub(super) fn located(root: &FsRoot, file: &str, Fault { at, why }: Fault) -> FsError {
    let bytes = root.bytes(file).unwrap_or_default();
    let blank = bytes.iter().take_while(|byte| byte.is_ascii_whitespace());
    let before = blank.filter(|byte| **byte == b'\n').count();
    root.malformed(file, before + at.line, why)
}

/// Refuses a file that others than root can write, or whose directory they can; `why` finds that.
fn trusted(file: &Path, why: impl Fn(&Path) -> Option<String>) -> Result<(), FsError> {
    match why(file) {
        Some(why) => Err(FsError::Untrusted { path: file.display().to_string(), why }),
        None => Ok(()),
    }
}

/// Returns why the policy allows no test of GPUs where it requires one, if so.
pub fn gpu_tests(root: &FsRoot) -> Result<Option<GpuTests>, FsError> {
    root.regular(FILE)?;
    let policy = test_policy(root)?;
    let lacks = match (policy.mode, policy.image, policy.sha256) {
        (TestMode::Off | TestMode::Note, ..) | (_, Some(_), Some(_)) => None,
        (_, None, _) => Some("image"),
        (_, Some(_), None) => Some("sha256"),
    };
    let untestable = lacks.map(|key| format!("/{FILE} has no `{key}`"));
    Ok(Some(GpuTests { untestable }))
}

/// The mode of a host's policy.
pub fn test_mode(root: &FsRoot) -> Result<TestMode, FsError> {
    Ok(test_policy(root)?.mode)
}

/// Returns the hint for an error of the file; `None`: it is of another.
pub fn hint(error: &FsError) -> Option<String> {
    if let FsError::Untrusted { path, why } = error {
        let dir = path.rsplit_once('/').map_or("/", |(dir, _)| dir);
        let mut all = vec![dir, path];
        // A directory further up may be at fault.
        let first = why.split(' ').next().filter(|first| first.starts_with('/'));
        all.splice(0..0, first.filter(|first| ![dir, path].contains(first)));
        let all = all.join(" ");
        return path.ends_with(FILE).then(|| {
            format!("read it, then `chown root:root {all}` and `chmod go-w {all}` make it root's")
        });
    }
    if let FsError::Unreadable { path, source } = error {
        return path.ends_with(FILE).then(|| of_unreadable(path, source));
    }
    let (FsError::Malformed { path, .. } | FsError::NotText { path, .. }) = error else {
        return None;
    };
    let text = || "gpuvm-guide(7) lists its keys under GPUS BETWEEN GUESTS".to_owned();
    path.ends_with(FILE).then(text)
}

/// The hint for a file of the admin's that cannot be read.
pub(super) fn of_unreadable(path: &str, source: &std::io::Error) -> String {
    if source.kind() == std::io::ErrorKind::PermissionDenied {
        return "run as root".to_owned();
    }
    let path = word(path);
    format!("`ls -ld {path}` shows it; put a file there, or `mv {path} {path}.old` puts it away")
}

fn parse(text: &str) -> Result<TestPolicy, Fault> {
    let Value::Map(fields) = toml(text)?.value else { unreachable!("a document is a table") };
    let mut policy = TestPolicy::default();
    for (key, at, node) in fields {
        if !KEYS.contains(&&*key) {
            let known = KEYS.join(", ");
            let why = format!("`{}` is unknown; known are {known}", key.escape_debug());
            return Err(Fault { at, why });
        }
        take(&mut policy, &key, node)?;
    }
    Ok(policy)
}

/// Takes one key of the file.
fn take(policy: &mut TestPolicy, key: &str, node: Node) -> Result<(), Fault> {
    let Value::Text(text) = node.value else {
        return Err(Fault { at: node.at, why: format!("`{key}` must be a single value") });
    };
    let wrong = |must: &str| {
        let shown: String = text.chars().take(40).collect();
        let shown = shown.escape_debug();
        Fault { at: node.at, why: format!("`{key}` is `{shown}`; it must be {must}") }
    };
    match key {
        "mode" => policy.mode = text.parse().map_err(|_| wrong("off, note or require"))?,
        "image" => {
            policy.image = Some(text.parse().map_err(|_| wrong("the name of an image"))?);
        }
        "sha256" => {
            policy.sha256 = Some(text.parse().map_err(|_| wrong("64 hexadecimal digits"))?);
        }
        "template" => {
            let path = Some(PathBuf::from(&text)).filter(|path| path.is_absolute());
            policy.template = Some(path.ok_or_else(|| wrong("an absolute path"))?);
        }
        "virt_type" => {
            policy.virt_type = match &*text {
                "kvm" => VirtType::Kvm,
                "qemu" => VirtType::Qemu,
                _ => return Err(wrong("kvm or qemu")),
            }
        }
        "pool" => {
            let name = Some(text.clone()).filter(|name| !name.is_empty());
            policy.pool = Some(name.ok_or_else(|| wrong("the name of a storage pool"))?);
        }
        "memory" => policy.memory = text.parse().map_err(|_| wrong("a size such as 16G"))?,
        "vcpus" => {
            let vcpus = text.parse().ok().filter(|vcpus| *vcpus > 0);
            policy.vcpus = Some(vcpus.ok_or_else(|| wrong("a number from 1"))?);
        }
        "level" => {
            let level = text.parse().ok().filter(|level| (1..=MOST_LEVEL).contains(level));
            policy.level = level.ok_or_else(|| wrong("1 to 4"))?;
        }
        "timeout" => {
            let limit = seconds(&text).filter(|limit| LIMITS_S.contains(limit));
            policy.timeout_s = limit.ok_or_else(|| wrong("10s to 1d"))?;
        }
        "on_fail" => policy.on_fail = text.parse().map_err(|_| wrong("exclude or record"))?,
        _ => {
            let age = seconds(&text).filter(|age| *age > 0);
            policy.max_age_s = Some(age.ok_or_else(|| wrong("a time such as 7d or 12h"))?);
        }
    }
    Ok(())
}

/// Reads a time: a number of seconds, or one with the unit s, m, h or d.
fn seconds(text: &str) -> Option<u64> {
    let (number, unit) = match text.chars().last()? {
        's' => (&text[..text.len() - 1], 1),
        'm' => (&text[..text.len() - 1], 60),
        'h' => (&text[..text.len() - 1], 3600),
        'd' => (&text[..text.len() - 1], 24 * 3600),
        _ => (text, 1),
    };
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_is_off() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        assert_eq!(test_mode(&root).unwrap(), TestMode::Off);
        assert_eq!(parse("").unwrap(), TestPolicy::default());
        std::fs::create_dir_all(dir.path().join("etc/gpuvm")).unwrap();
        std::fs::write(dir.path().join(FILE), "# between tenants\nmode = \"require\"\n").unwrap();
        assert_eq!(test_mode(&root).unwrap(), TestMode::Require);
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
            ("mode = \"note\"\n\nmodes = 1", 3, "`modes` is unknown; known are mode, image, "),
            ("[test]\nmode = \"note\"", 1, "`test` is unknown"),
            ("mode = \"a\\nb\"", 1, "`a\\nb`"),
            ("level = 5", 1, "`level` is `5`; it must be 1 to 4"),
            ("sha256 = \"ab\"", 1, "it must be 64 hexadecimal digits"),
            ("image = \"../x\"", 1, "it must be the name of an image"),
            ("template = \"x.xml\"", 1, "it must be an absolute path"),
            ("timeout = \"5s\"", 1, "it must be 10s to 1d"),
            ("timeout = -5", 1, "it must be 10s to 1d"),
            ("max_age = \"7w\"", 1, "it must be a time such as 7d or 12h"),
            ("max_age = \"0d\"", 1, "`max_age` is `0d`"),
            ("on_fail = \"\"", 1, "it must be exclude or record"),
            ("virt_type = \"xen\"", 1, "it must be kvm or qemu"),
            ("memory = \"much\"", 1, "it must be a size such as 16G"),
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

    #[test]
    fn a_policy_that_is_a_link_to_nowhere_or_a_directory_is_not_off() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        let file = dir.path().join(FILE);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let refused = || {
            let error = test_mode(&root).unwrap_err();
            let hint = hint(&error).unwrap();
            assert!(hint.contains("`ls -ld ") && hint.contains(FILE), "{hint}");
            error.to_string()
        };
        std::os::unix::fs::symlink("missing", &file).unwrap();
        assert!(refused().ends_with("it is a symbolic link to a missing file"));
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert!(refused().contains("Is a directory"));
    }

    #[test]
    fn a_policy_that_others_can_write_is_refused_with_the_commands() {
        let file = Path::new("/").join(FILE);
        assert!(trusted(&file, |_| None).is_ok());
        let why = "/etc/gpuvm has mode 0777: others can write it";
        let error = trusted(&file, |_| Some(why.into())).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("others than root may have written /etc/gpuvm/test.toml: {why}")
        );
        let hint = hint(&error).unwrap();
        assert!(hint.contains("`chown root:root /etc/gpuvm /etc/gpuvm/test.toml`"), "{hint}");
        let error = trusted(&file, |_| Some("/etc has mode 1777: others can write it".into()));
        let hint = super::hint(&error.unwrap_err()).unwrap();
        assert!(hint.contains("`chmod go-w /etc /etc/gpuvm /etc/gpuvm/test.toml`"), "{hint}");
    }

    #[test]
    fn a_required_test_without_an_image_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        std::fs::create_dir_all(dir.path().join("etc/gpuvm")).unwrap();
        let sum = "ab".repeat(32);
        let image = "mode = \"require\"\nimage = \"gputest\"\n";
        for (text, part) in [
            ("mode = \"note\"", ""),
            ("mode = \"require\"", "has no `image`"),
            (image, "has no `sha256`"),
            (&*format!("{image}sha256 = \"{sum}\""), ""),
        ] {
            std::fs::write(dir.path().join(FILE), text).unwrap();
            let tests = gpu_tests(&root).unwrap().unwrap();
            let why = tests.untestable.unwrap_or_default();
            assert!(why.contains(part) && why.is_empty() == part.is_empty(), "{text}: {why}");
        }
    }

    #[test]
    fn every_key_is_read() {
        let sum = "ab".repeat(32);
        let text = format!(
            "mode = \"note\"\nimage = \"gputest\"\nsha256 = \"{sum}\"\ntemplate = \"/etc/t.xml\"\n\
             virt_type = \"qemu\"\npool = \"ram\"\nmemory = \"8G\"\nvcpus = 4\nlevel = 2\ntimeout = \"20m\"\n\
             on_fail = \"record\"\nmax_age = \"7d\""
        );
        let policy = TestPolicy {
            mode: TestMode::Note,
            image: Some("gputest".parse().unwrap()),
            sha256: Some(sum.parse().unwrap()),
            template: Some("/etc/t.xml".into()),
            virt_type: VirtType::Qemu,
            pool: Some("ram".into()),
            memory: MemSize::from_gib(8),
            vcpus: Some(4),
            level: 2,
            timeout_s: 1200,
            on_fail: OnFail::Record,
            max_age_s: Some(7 * 86400),
        };
        assert_eq!(parse(&text).unwrap(), policy);
        assert_eq!(text.lines().count(), KEYS.len());
    }
}
