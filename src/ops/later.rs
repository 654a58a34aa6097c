//! Refuses to write files that run a program as root later, if others than root could replace it by
//! then. Every change is checked, whichever verb plans it.

use crate::apply::{FileStep, Step};
use crate::error::{Coded, Result};
use crate::shell::word;
use gpuvm_host::later::{programs, replaceable};

/// The reason a file for later is not written.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "later-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum LaterError {
    /// Others than root can replace the program.
    #[error("{file} would run {program} as root, which others can replace: {why}")]
    Replaceable { file: String, program: String, why: String },
}

impl Coded for LaterError {}

/// Refuses steps that write such a file.
pub(crate) fn refuse_replaceable(steps: &[Step]) -> Result<()> {
    for step in steps {
        let Step::File(FileStep::Set { path, text: Some(text), .. }) = step else { continue };
        for program in programs(text) {
            if let Some(why) = replaceable(&program) {
                let file = path.display().to_string();
                let program = program.display().to_string();
                let hint = format!(
                    "install it first, by the package or `make install`, and run that one; `ls -ld \
                     {}` shows the file",
                    word(&program)
                );
                return Err(LaterError::Replaceable { file, program, why }.hint(hint));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_for_later_is_not_written_if_others_can_replace_its_program() {
        let write = |path: &str, text: &str| {
            Step::File(FileStep::Set {
                path: path.into(),
                text: Some(text.to_owned()),
                was: None,
                program: false,
                kept: false,
            })
        };
        let unit = "/etc/systemd/system/gpuvm-vfs.service";
        let steps = [
            write("/etc/modprobe.d/gpuvm-vfio.conf", "options vfio-pci ids=10de:1db8\n"),
            write(unit, "[Service]\nExecStart=/tmp/gpuvm nic vfs --early x\n"),
        ];
        let error = refuse_replaceable(&steps).unwrap_err();
        assert_eq!(error.refusal().unwrap().code, "later-replaceable");
        let said = error.to_string();
        assert!(said.starts_with(&format!("{unit} would run /tmp/gpuvm as root")), "{said}");
        refuse_replaceable(&steps[..1]).unwrap();
        let removed = Step::File(FileStep::Set {
            path: unit.into(),
            text: None,
            was: Some("ExecStart=/tmp/gpuvm x".into()),
            program: false,
            kept: false,
        });
        refuse_replaceable(&[removed]).unwrap();
    }
}
