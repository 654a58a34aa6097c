//! A kernel setting in effect until the next boot: one value in one file of /proc/sys or /sys, or
//! in one for each pcpu.

pub mod boot;

use super::bind::{BindError, Kernel, Live};
use crate::discover::tuning::value;
use crate::fsroot::{FsError, FsRoot};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// How long the kernel may take, in seconds.
const WRITE_S: u64 = 10;

/// A change of one setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SettingStep {
    /// The setting, for people.
    pub name: String,
    /// Its changes, by the file's path below the root.
    pub to: BTreeMap<String, String>,
    /// Its value when the change was planned.
    pub was: BTreeMap<String, String>,
}

/// The error of changing a setting.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "setting-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum SettingError {
    /// Reading the host's files failed.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    File(#[from] FsError),
    /// It cannot be written.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    Write(#[from] BindError),
    /// It has changed since the plan.
    #[error("/{path} is {now}; it was {was} when this was planned")]
    Changed { path: String, now: String, was: String },
}

impl fmt::Display for SettingStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |values: &BTreeMap<String, String>| {
            let all: BTreeSet<&str> = values.values().map(String::as_str).collect();
            all.into_iter().collect::<Vec<_>>().join(" and ")
        };
        write!(f, "set {} to {}, from {}", self.name, words(&self.to), words(&self.was))
    }
}

impl SettingStep {
    /// Refuses a setting with neither the old nor the new value.
    pub(super) fn expects(&self, root: &FsRoot) -> Result<(), SettingError> {
        for (path, to) in &self.to {
            let now = value(root, path)?.unwrap_or_else(|| "gone".into());
            let was = self.was.get(path).cloned().unwrap_or_default();
            if now != was && now != *to {
                return Err(SettingError::Changed { path: path.clone(), now, was });
            }
        }
        Ok(())
    }

    pub(super) fn perform(&self) -> Result<(), SettingError> {
        self.write(&FsRoot::live()?, &Live, &self.to, None)
    }

    /// Undoes it; a value that others have set since stays.
    pub(super) fn undo(&self) -> Result<(), SettingError> {
        self.write(&FsRoot::live()?, &Live, &self.was, Some(&self.to))
    }

    /// Writes values that differ, to all files or only to those with the expected value.
    fn write(
        &self,
        root: &FsRoot,
        kernel: &dyn Kernel,
        values: &BTreeMap<String, String>,
        only: Option<&BTreeMap<String, String>>,
    ) -> Result<(), SettingError> {
        for (path, wanted) in values {
            // A pcpu that went offline has no such file any more.
            let Some(now) = value(root, path)? else { continue };
            let ours = only.is_none_or(|only| only.get(path) == Some(&now));
            if now != *wanted && ours {
                kernel.write(path, wanted, WRITE_S)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A fake kernel with its files in a directory.
    struct Files(PathBuf);

    impl Kernel for Files {
        fn write(&self, path: &str, text: &str, _: u64) -> Result<(), BindError> {
            std::fs::write(self.0.join(path), text).unwrap();
            Ok(())
        }
        fn load(&self, _: &str) -> Result<(), BindError> {
            unreachable!("no module is loaded for a setting")
        }
    }

    #[test]
    fn values_are_set_and_what_others_set_since_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (root, kernel) = (FsRoot::at(dir.path()).unwrap(), Files(dir.path().to_owned()));
        let set = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let values = |a: &str, b: &str| -> BTreeMap<String, String> {
            [("a".into(), a.into()), ("b".into(), b.into())].into()
        };
        set("a", "powersave\n");
        set("b", "ondemand\n");
        let (to, was) = (values("performance", "performance"), values("powersave", "ondemand"));
        let step = SettingStep { name: "governors".into(), to, was };
        assert_eq!(step.to_string(), "set governors to performance, from ondemand and powersave");
        step.expects(&root).unwrap();
        step.write(&root, &kernel, &step.to, None).unwrap();
        assert_eq!(value(&root, "a").unwrap().as_deref(), Some("performance"));
        set("b", "schedutil\n");
        assert!(matches!(step.expects(&root).unwrap_err(), SettingError::Changed { .. }));
        step.write(&root, &kernel, &step.was, Some(&step.to)).unwrap();
        assert_eq!(value(&root, "a").unwrap().as_deref(), Some("powersave"));
        assert_eq!(value(&root, "b").unwrap().as_deref(), Some("schedutil"));
    }
}
