//! Whether the devices at a guest's addresses are those that it had when they were recorded in its
//! metadata. Cards that are added or removed move addresses: the drive at one may now be the host's.

use crate::bdf::Bdf;
use crate::discover::identity::{self, Present};
use crate::domain::setting::Setting;
use crate::domain::{DomainEdit, DomainXml};
use crate::error::{Coded, Result};
use crate::fsroot::FsRoot;
use crate::shell::word;
use crate::topology::{DeviceIdentity, KnownDevice, Likeness};
use crate::world::World;
use gpuvm_core::verify::identity::{Presence, command};

/// The reason a guest does not start with the devices at its addresses.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "identity-")]
pub enum IdentityError {
    /// Other devices are at its addresses.
    #[error("domain `{name}` cannot start with other devices than it had{lines}")]
    Other {
        /// The domain.
        name: String,
        /// Which, a line each.
        lines: String,
    },
    /// A drive does not report its identity.
    #[error(
        "domain `{name}` cannot start: drive {bdf} does not report its serial number now (driver: \
         {driver}); `{name}` had {recorded}"
    )]
    Unproven {
        /// The domain.
        name: String,
        /// The drive.
        bdf: Bdf,
        /// Its driver.
        driver: String,
        /// The recorded drive.
        recorded: Box<DeviceIdentity>,
    },
    /// The definition cannot record which drive a guest has.
    #[error(
        "domain `{name}` was not made by gpuvm, so its definition does not record which drive \
         {bdf} is: after a change of hardware libvirt would start it with another one"
    )]
    NoRecord {
        /// The domain.
        name: String,
        /// The drive.
        bdf: Bdf,
    },
}

impl Coded for IdentityError {}

/// The identities of functions of this machine, for a guest's record; none where its guests run
/// elsewhere. `before`: those that are recorded.
pub(crate) fn known(
    world: &World,
    functions: &[Bdf],
    before: &[KnownDevice],
) -> Result<Vec<KnownDevice>> {
    if functions.is_empty() || world.is_recorded() || !world.has_guests_here()? {
        return Ok(Vec::new());
    }
    Ok(identity::known(&FsRoot::live()?, functions, before)?)
}

/// Records the identities of a definition's functions. `had`: those that the guest had, which keep
/// theirs unless they are `named`; they are recorded if they were not.
pub(crate) fn record(
    world: &World,
    had: &DomainXml,
    after: &mut DomainXml,
    named: &[Bdf],
) -> Result<()> {
    if !after.is_ours() {
        return Ok(());
    }
    let functions = after.held(false)?.devices;
    let mut kept = had.known_devices();
    kept.retain(|one| functions.contains(&one.bdf) && !named.contains(&one.bdf));
    let is_new = |bdf: &&Bdf| !kept.iter().any(|one| one.bdf == **bdf);
    let new: Vec<Bdf> = functions.iter().filter(is_new).copied().collect();
    let before = had.known_devices();
    kept.extend(known(world, &new, &before)?);
    kept.sort_by_key(|one| one.bdf);
    if kept != after.known_devices() {
        after.apply(&DomainEdit::Set { setting: Setting::Known { known: kept } })?;
    }
    Ok(())
}

/// Compares a guest's devices with what is at their addresses now.
pub(crate) fn presences(root: &FsRoot, xml: &DomainXml) -> Result<Vec<Presence>> {
    let known = xml.known_devices();
    let mut all = Vec::new();
    for bdf in xml.held(false)?.devices {
        let Some(present) = identity::settled(root, bdf)? else { continue };
        let recorded = known.iter().find(|one| one.bdf == bdf).map(|one| one.identity.clone());
        let likeness = recorded.as_ref().map(|one| one.likeness(&present.identity));
        let place = match &recorded {
            Some(one) if likeness == Some(Likeness::Other) => identity::find(root, one)?,
            _ => None,
        };
        let (is_storage, option) = (present.is_storage(), present.option());
        let Present { identity: now, driver, .. } = present;
        all.push(Presence { bdf, recorded, likeness, now, driver, place, is_storage, option });
    }
    Ok(all)
}

/// Refuses to start a guest with other devices than those that are recorded, and with a drive that
/// does not report its identity. What is proven is remembered for this boot, since vfio-pci reports
/// none of it. Returns drives of a guest of ours of which nothing is recorded.
pub(crate) fn refuse_others(xml: &DomainXml, root: &FsRoot) -> Result<Vec<Bdf>> {
    let name = xml.name();
    let all = presences(root, xml)?;
    let others = all.iter().filter(|one| one.likeness == Some(Likeness::Other));
    let lines: String = others.map(|one| format!("\n  {}", one.differs(&name))).collect();
    if !lines.is_empty() {
        let command = command(&name, &all).unwrap_or_default();
        let hint = format!("`{command}` names its devices as they are now");
        return Err(IdentityError::Other { name, lines }.hint(hint));
    }
    for one in &all {
        let Some(recorded) = &one.recorded else { continue };
        if one.likeness == Some(Likeness::Unproven) && one.is_storage {
            let (bdf, recorded) = (one.bdf, Box::new(recorded.clone()));
            let driver = one.driver.clone().unwrap_or_else(|| "none".to_owned());
            let hint = format!(
                "`gpuvm device release {bdf}` returns it to its driver, which reads the serial \
                 number"
            );
            return Err(IdentityError::Unproven { name, bdf, driver, recorded }.hint(hint));
        }
    }
    all.iter().for_each(|one| identity::remember(root, one.bdf));
    let is_old = xml.is_ours();
    let old = all.iter().filter(|one| is_old && one.is_storage && one.recorded.is_none());
    Ok(old.map(|one| one.bdf).collect())
}

/// The same for a start on this machine, with a warning for what is not recorded.
pub(crate) fn refuse_others_here(xml: &DomainXml, world: &World) -> Result<()> {
    let name = xml.name();
    for bdf in refuse_others(xml, &FsRoot::live()?)? {
        world.warning(&format!(
            "domain `{name}` was made by an older gpuvm, which did not record which drive {bdf} \
             is; `gpuvm set {} --nvme {bdf}` records it",
            word(&name)
        ));
    }
    Ok(())
}
