//! Steps on files and directories of this machine.

use super::StepError;
use super::noun::{Noun, Ours, interruptible};
use crate::apply::bundle::BundleStep;
use crate::apply::disk::{self, Preallocate, unfinished};
use crate::apply::proven::{is_made, not_ours, unseen, unused};
use crate::apply::{Observer, file, last_check, made_files as recorded, moved};
use crate::discover::openers::in_use;
use crate::hypervisor::Hypervisor;
use crate::identity::{FileId, Proof};
use crate::input;
use gpuvm_core::image::Sha256;
use gpuvm_core::memsize::MemSize;
use gpuvm_core::shell::word;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// One change of a file or a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum FileStep {
    /// Creates a missing directory in an existing one.
    CreateDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// Creates a raw image of zeros, or the copy of another file; never replaces a file.
    CreateDisk {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// Its preallocation.
        #[serde(default)]
        preallocate: Preallocate,
        /// The file whose bytes it gets; `None` for zeros.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<PathBuf>,
        /// SHA-256 of these bytes; `None` if not known when the change was planned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sha256: Option<Sha256>,
    },
    /// Writes a bundle: a new directory with copies of a guest's disks.
    WriteBundle(BundleStep),
    /// Gives a file another path on its file system; never replaces a file.
    #[serde(rename = "move-file")]
    Move {
        /// Where it is.
        from: PathBuf,
        /// Where it is to be.
        to: PathBuf,
        /// Identity of the file.
        file: FileId,
    },
    /// Deletes an image created for a domain; not undone, so it comes last.
    DeleteDisk {
        /// The file.
        path: PathBuf,
        /// Identity of the file; `None` if recorded by an older version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<FileId>,
    },
    /// Writes or removes a configuration file of gpuvm's own.
    #[serde(rename = "set-file")]
    Set {
        /// The file.
        path: PathBuf,
        /// Its text; `None` if it is removed.
        text: Option<String>,
        /// Its text before; `None` if it did not exist.
        was: Option<String>,
        /// Whether it is executable, as a hook is.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        program: bool,
        /// Whether it is recorded as ours ([`crate::apply::made_files`]).
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        kept: bool,
    },
    /// Writes or removes a record of a domain, readable only by root.
    Remember {
        /// The file.
        path: PathBuf,
        /// Its text; `None` if it is removed, and its directory with the last one.
        text: Option<String>,
        /// Its text before; `None` if it did not exist.
        was: Option<String>,
    },
    /// Removes a record of a domain, and its directory with the last one, whatever is in it: a guest
    /// decides how much that is. Not undone, so it comes last.
    Forget {
        /// The file.
        path: PathBuf,
        /// Identity of the file.
        file: FileId,
    },
}

impl FileStep {
    /// The step that reverts it; `None` if there is none, or its product is removed by other means.
    pub(super) fn reversed(&self) -> Option<FileStep> {
        let mut back = self.clone();
        match &mut back {
            FileStep::Set { text, was, .. } | FileStep::Remember { text, was, .. } => {
                std::mem::swap(text, was);
            }
            _ => return None,
        }
        Some(back)
    }
}

impl Noun for FileStep {
    fn expects(&self, _: &dyn Hypervisor) -> Result<(), StepError> {
        match self {
            FileStep::CreateDirectory { path }
            | FileStep::CreateDisk { path, .. }
            | FileStep::WriteBundle(BundleStep { path, .. }) => Ok(disk::absent(path)?),
            FileStep::Move { from, to, file } => moved::expects(from, to, file),
            FileStep::DeleteDisk { .. }
            | FileStep::Set { .. }
            | FileStep::Remember { .. }
            | FileStep::Forget { .. } => Ok(()),
        }
    }

    fn stays(&self, later: bool, hypervisor: &dyn Hypervisor) -> Result<Option<String>, StepError> {
        match self {
            FileStep::DeleteDisk { path, file } => {
                last_check::disk_stays(path, file.as_ref(), later, hypervisor)
            }
            FileStep::Forget { path, file } => {
                let why = last_check::another(path, Some(file), later);
                Ok(why.map(|why| format!("record {} stays: {why}", path.display())))
            }
            _ => Ok(None),
        }
    }

    fn perform(
        &self,
        _hypervisor: &dyn Hypervisor,
        observer: &mut dyn Observer,
        ours: &mut Ours<'_>,
    ) -> Result<(), StepError> {
        match self {
            FileStep::CreateDirectory { path } => {
                Ok(ours.making(|making| disk::create_directory(path, making))?)
            }
            FileStep::CreateDisk { path, bytes, preallocate, from, sha256 } => {
                let (from, sha256) = (from.as_deref(), *sha256);
                let content = disk::Content { from, sha256, preallocate: *preallocate };
                interruptible(observer, *bytes, |progress| {
                    Ok(ours
                        .making(|making| disk::create(path, *bytes, content, making, progress))?)
                })
            }
            FileStep::WriteBundle(step) => interruptible(observer, step.bytes(), |progress| {
                Ok(ours.making(|making| step.perform(making, progress))?)
            }),
            FileStep::Move { from, to, file } => moved::file(from, to, file),
            FileStep::DeleteDisk { path, .. } => Ok(disk::delete(path)?),
            FileStep::Set { path, text, program, kept, .. } => {
                let set = if *program { file::set_program } else { file::set_file };
                set(path, text.as_deref())?;
                if *kept {
                    recorded::keep(path, text.as_deref())?;
                }
                Ok(())
            }
            FileStep::Remember { path, text, .. } => {
                Ok(file::set_private_file(path, text.as_deref())?)
            }
            FileStep::Forget { path, .. } => {
                // The guest and its disks are gone, and nothing depends on its record.
                if let Err(error) = file::set_private_file(path, None) {
                    observer.left(&format!("{error}, so this record stays"));
                }
                Ok(())
            }
        }
    }

    fn undo(&self, hypervisor: &dyn Hypervisor, proof: &Proof<'_>) -> Result<(), StepError> {
        match self {
            FileStep::CreateDirectory { path } => delete_directory(path, proof),
            FileStep::CreateDisk { path, .. } => delete_disk(path, hypervisor, proof),
            FileStep::WriteBundle(step) => delete_bundle(step, proof),
            FileStep::Move { from, to, file } => moved::back(from, to, file),
            FileStep::Set { path, text, was, program, kept } => {
                let set = if *program { file::set_program } else { file::set_file };
                written(path, text.as_deref(), was.as_deref(), set)?;
                if *kept {
                    recorded::keep(path, was.as_deref())?;
                }
                Ok(())
            }
            FileStep::Remember { path, text, was } => {
                written(path, text.as_deref(), was.as_deref(), file::set_private_file)
            }
            FileStep::DeleteDisk { .. } | FileStep::Forget { .. } => Ok(()),
        }
    }

    fn by_hand(&self) -> Option<String> {
        let said = |path: &Path| word(&path.to_string_lossy()).into_owned();
        Some(match self {
            FileStep::CreateDirectory { path } => format!("rmdir {}", said(path)),
            FileStep::CreateDisk { path, .. } => format!("rm {}", said(path)),
            FileStep::WriteBundle(step) => format!("rm -r {}", said(&step.path)),
            FileStep::Move { from, to, .. } => format!("mv -n {} {}", said(to), said(from)),
            _ => return None,
        })
    }

    fn is_final(&self) -> bool {
        matches!(self, FileStep::DeleteDisk { .. } | FileStep::Forget { .. })
    }

    fn is_of_machine(&self) -> bool {
        true
    }

    fn is_of_host(&self) -> bool {
        matches!(self, FileStep::Set { .. })
    }

    fn is_needed_by_guest(&self) -> bool {
        matches!(self, FileStep::Move { .. })
    }
}

impl fmt::Display for FileStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileStep::CreateDirectory { path } => write!(f, "create directory {}", path.display()),
            FileStep::CreateDisk { path, bytes, from: Some(from), .. } => {
                let size = MemSize::from_kib(bytes.div_ceil(1024));
                write!(f, "copy {} of {size} to {}", from.display(), path.display())
            }
            FileStep::CreateDisk { path, bytes, preallocate, from: None, .. } => {
                let size = MemSize::from_kib(bytes.div_ceil(1024));
                let how = match preallocate {
                    Preallocate::None => "sparse",
                    Preallocate::Reserve => "its blocks reserved",
                    Preallocate::Full => "written with zeros",
                };
                write!(f, "create disk {} of {size}, {how}", path.display())
            }
            FileStep::WriteBundle(step) => step.fmt(f),
            FileStep::Move { from, to, .. } => {
                write!(f, "move {} to {}", from.display(), to.display())
            }
            FileStep::DeleteDisk { path, .. } => write!(f, "delete disk {}", path.display()),
            FileStep::Set { path, text: Some(_), .. } => write!(f, "write {}", path.display()),
            FileStep::Set { path, text: None, .. } => write!(f, "remove {}", path.display()),
            FileStep::Remember { path, text: Some(_), .. } => {
                write!(f, "write record {}", path.display())
            }
            FileStep::Remember { path, text: None, .. } | FileStep::Forget { path, .. } => {
                write!(f, "delete record {}", path.display())
            }
        }
    }
}

/// Removes a directory that was made, unless it is not empty.
fn delete_directory(path: &Path, proof: &Proof<'_>) -> Result<(), StepError> {
    if let Some(token) = proof.mark.token() {
        disk::delete_directory(&unfinished(path, &token))?;
    }
    if is_made(path, proof)? {
        disk::delete_directory(path)?;
    }
    Ok(())
}

/// Removes a bundle that was made.
fn delete_bundle(step: &BundleStep, proof: &Proof<'_>) -> Result<(), StepError> {
    if let Some(token) = proof.mark.token() {
        step.drop_unfinished(&token)?;
    }
    if is_made(&step.path, proof)? {
        step.delete()?;
    }
    Ok(())
}

/// Removes an image that was made, unless it is in use as a disk now.
fn delete_disk(
    path: &Path,
    hypervisor: &dyn Hypervisor,
    proof: &Proof<'_>,
) -> Result<(), StepError> {
    if let Some(token) = proof.mark.token() {
        disk::delete(&unfinished(path, &token))?;
    }
    if is_made(path, proof)? {
        unused(hypervisor, path)?;
        if let Some(by) = in_use(path, false) {
            return Err(StepError::InUse { what: path.display().to_string(), by });
        }
        disk::delete(path)?;
    }
    Ok(())
}

/// Restores a file's previous text, unless others have written to it since.
fn written<E: Into<StepError>>(
    path: &Path,
    text: Option<&str>,
    was: Option<&str>,
    set: impl FnOnce(&Path, Option<&str>) -> Result<(), E>,
) -> Result<(), StepError> {
    let now = input::state_bytes(path).map_err(unseen(path))?;
    let is = |text: Option<&str>| now.as_deref() == text.map(str::as_bytes);
    match (is(was), is(text)) {
        (true, _) => Ok(()),
        (_, true) => set(path, was).map_err(E::into),
        _ => not_ours(path.display(), "it was changed since"),
    }
}
