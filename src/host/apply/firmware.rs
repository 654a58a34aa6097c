//! The state of a guest that libvirt removes together with its definition: the settings of its
//! firmware (NVRAM) and of its emulated TPM. libvirt removes whatever path the definition names, so
//! only what lies in its own directories, or came after the definition, may go.

use super::StepError;
use crate::discover::hung_mounts::Silent;
use crate::hypervisor::file_users::Uses;
use crate::hypervisor::machine::{nvram_dir_of, tpm_state_of};
use crate::hypervisor::{Hypervisor, HypervisorError, HypervisorErrorKind, Keep, XmlOf};
use crate::identity::{FileId, Identity};
use gpuvm_core::domain::DomainXml;
use gpuvm_core::shell::word;
use std::path::{Path, PathBuf};

/// Whether a file lies directly in the directory in which the libvirt of this URI keeps the NVRAM
/// of guests. A file elsewhere was put there by an administrator.
pub fn is_nvram_of_libvirt(path: &Path, uri: &str) -> bool {
    nvram_dir_of(uri).is_some_and(|dir| path.parent() == Some(&dir) && path.file_name().is_some())
}

/// Why the NVRAM of a domain is not removed wherever it may be in use; `None` if libvirt made it.
pub fn foreign_nvram(path: &Path, uri: &str) -> Option<String> {
    let shown = path.to_string_lossy();
    (!is_nvram_of_libvirt(path, uri)).then(|| {
        format!("it is outside libvirt's directory of NVRAM; `rm {}` removes it", word(&shown))
    })
}

/// Why the state of a domain's TPM is not removed; `None` if libvirt keeps it.
pub fn tpm_stays(xml: &DomainXml, hypervisor: &dyn Hypervisor) -> Option<String> {
    let linked = || {
        let uuid = xml.uuid().filter(|_| hypervisor.machine().is_here())?;
        let dir = tpm_state_of(&hypervisor.opened_uri(), &uuid)?;
        // libvirt would empty the link's target.
        dir.is_symlink().then(|| {
            format!("TPM state {} stays: it is a link to another directory", dir.display())
        })
    };
    let Some(path) = xml.foreign_tpm() else { return linked() };
    Some(format!(
        "TPM state {path} stays: it is outside libvirt's directory of TPM state; `rm -r {}` \
         removes it",
        word(&path)
    ))
}

/// Whether a domain that was just defined has neither NVRAM nor TPM state yet, so that later ones
/// are its own.
pub(super) fn is_bare(hypervisor: &dyn Hypervisor, name: &str) -> Option<bool> {
    let xml = hypervisor.xml(name, XmlOf::Inactive).ok()?;
    let xml = DomainXml::parse(&xml).ok()?;
    if xml.has_tpm() {
        let tpm = tpm_state_of(&hypervisor.opened_uri(), &xml.uuid().unwrap_or_default());
        let is_absent = |dir: PathBuf| is_absent(&dir);
        if !hypervisor.machine().is_here() || !tpm.is_some_and(is_absent) {
            return Some(false);
        }
    }
    let Some(path) = xml.nvram().map(PathBuf::from) else { return Some(true) };
    let is_seen = hypervisor.machine().is_here() && Silent::read().why(&path).is_none();
    Some(is_seen && matches!(FileId::at(&path), Ok(None)))
}

/// Removes a definition that a step made, with the state that came after it. NVRAM that may be
/// older, or that another domain has, stays, which is returned as an error.
pub(super) fn undefine_made(
    hypervisor: &dyn Hypervisor,
    (name, uuid): (&str, &str),
    made: Option<&Identity>,
) -> Result<(), StepError> {
    let xml = hypervisor.xml(name, XmlOf::Inactive)?;
    let xml = DomainXml::parse(&xml).ok();
    let came_after = matches!(made, Some(Identity::Domain { bare: true, .. }));
    let foreign = xml.as_ref().and_then(DomainXml::foreign_tpm).is_some();
    let tpm = foreign || !came_after && xml.as_ref().is_some_and(DomainXml::has_tpm);
    let path = xml.as_ref().and_then(DomainXml::nvram).map(PathBuf::from);
    let stays = path.map(|path| older(hypervisor, path, uuid, made)).transpose()?.flatten();
    let nvram = stays.is_some() || xml.is_none();
    hypervisor.undefine_but(name, Keep { nvram, tpm, no_tpm: false })?;
    match stays {
        Some(path) if is_there(hypervisor, &path) => Err(StepError::NvramStays { path }),
        _ => Ok(()),
    }
}

/// NVRAM that is not proven to have come after the definition, or that another domain has.
fn older(
    hypervisor: &dyn Hypervisor,
    path: PathBuf,
    uuid: &str,
    made: Option<&Identity>,
) -> Result<Option<PathBuf>, HypervisorError> {
    let came_after = matches!(made, Some(Identity::Domain { bare: true, .. }));
    if !came_after {
        return Ok(Some(path));
    }
    let is_others = match Uses::read(hypervisor) {
        // The uses of a definition that cannot be parsed are unknown.
        Err(error) if error.kind == HypervisorErrorKind::BadXml => true,
        uses => !uses?.others(&path, uuid).is_empty(),
    };
    Ok(is_others.then_some(path))
}

/// Whether a path certainly does not exist: an inaccessible path may exist.
pub fn is_absent(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Whether a file of this machine exists.
fn is_there(hypervisor: &dyn Hypervisor, path: &Path) -> bool {
    hypervisor.machine().is_here()
        && Silent::read().why(path).is_none()
        && path.symlink_metadata().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_libvirts_own_directory_are_libvirts() {
        let is = |path: &str, uri: &str| is_nvram_of_libvirt(Path::new(path), uri);
        let system = "qemu:///system";
        assert!(is("/var/lib/libvirt/qemu/nvram/a_VARS.fd", system));
        assert!(is("/var/lib/libvirt/qemu/nvram/a_VARS.fd", "qemu+ssh://root@host/system"));
        for path in [
            "/srv/enrolled.fd",
            "/var/lib/libvirt/qemu/nvram/../../../../srv/enrolled.fd",
            "/var/lib/libvirt/qemu/nvram/theirs/enrolled.fd",
            "/var/lib/libvirt/qemu/nvram",
            "/var/lib/libvirt/qemu/nvram/..",
        ] {
            assert!(!is(path, system), "{path}");
        }
        assert!(!is("/var/lib/libvirt/qemu/nvram/a_VARS.fd", "test:///default"));
        assert!(is("/r/lib/qemu/nvram/a_VARS.fd", "qemu:///embed?root=/r"));
    }
}
