//! How many files guests may have open: the configured limit, the limits in force, and the need of
//! a definition.

use crate::discover::files::{Files, Limit, limit, read};
use crate::discover::process;
use crate::domain::DomainXml;
use crate::error::Result;
use crate::fsroot::FsRoot;
use crate::world::World;
use gpuvm_core::check::guest::Guest as GuestFacts;
use gpuvm_core::verify::files::{advised, needed};
use gpuvm_core::versions::Version;
use serde::Serialize;

/// The limits of open files of a machine.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OpenFiles {
    /// The settings for guests that start.
    #[serde(flatten)]
    pub files: Files,
    /// QEMU processes of running guests, with the limit of each.
    pub guests: Vec<OpenFilesOfGuest>,
}

/// The limit of a running guest.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OpenFilesOfGuest {
    /// Its UUID.
    pub uuid: String,
    /// Its process.
    pub pid: u32,
    /// Its limit.
    pub limit: Limit,
}

/// Reads the limits of a machine and of the guests that run on it.
pub fn open_files_now(root: &FsRoot) -> Result<OpenFiles> {
    let files = read(root)?;
    let mut guests = Vec::new();
    for (uuid, pid) in process::all(root)? {
        guests.extend(limit(root, pid).map(|limit| OpenFilesOfGuest { uuid, pid, limit }));
    }
    Ok(OpenFiles { files, guests })
}

/// The service to restart for a new limit to take effect.
pub fn daemon(root: &FsRoot) -> Result<String> {
    let names = read(root)?.daemons.into_iter().map(|daemon| daemon.name);
    Ok(names.min().unwrap_or_else(|| "libvirtd".into()))
}

/// The warning that a definition may need more files than a guest of this machine may have open;
/// `None` if it does not, or the guests run elsewhere.
pub fn too_few_files(world: &World, xml: &DomainXml, qemu: Option<Version>) -> Option<String> {
    if world.settings.host.is_some() || !world.has_guests_here().unwrap_or(false) {
        return None;
    }
    // A caller who may not read the configuration cannot change it either, and `verify` reports the
    // unknown parts.
    let allowed = read(&FsRoot::live().ok()?).ok()?.of_next_guest(qemu)?;
    let needed = needed(xml, &GuestFacts::read(xml));
    (needed > allowed).then(|| {
        format!(
            "it may need {needed} open files for its queues, and may have {allowed}: `gpuvm host \
             files --count {}`",
            advised(needed)
        )
    })
}
